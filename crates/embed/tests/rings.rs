//! A program array and the programs in it keep each other alive only as long as somebody uses them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use xway_embed::{Filter, Packet, Verdict};
use xway_maps::Map;

/// Two programs that call each other, and the first one itself, through an array that holds both from the start.
const RING: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
int ping(struct xdp_md *ctx);
int pong(struct xdp_md *ctx);
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, int);
	__array(values, int (void *));
} ring SEC(".maps") = { .values = { [0] = (void *)&ping, [1] = (void *)&pong } };
SEC("xdp/ping") int ping(struct xdp_md *ctx) { bpf_tail_call(ctx, &ring, 1); return XDP_DROP; }
SEC("xdp/pong") int pong(struct xdp_md *ctx) {
	unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (p + 61 <= end)
		bpf_tail_call(ctx, &ring, 0);
	return XDP_PASS;
}
char _license[] SEC("license") = "GPL";
"#;

fn gone(map: &Weak<Map>) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while map.upgrade().is_some() {
        assert!(Instant::now() < deadline, "the array is still there: {} hold it", map.strong_count());
        xway_maps::Guard::collect();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn hundreds_of_rings_leave_nothing() {
    if !xway_testkit::Needs::of("embed::hundreds_of_rings_leave_nothing").clang().met() {
        return;
    }
    let object = xway_testkit::clang::compile_text("ring", RING, &[]).unwrap();
    let mut memory = [[0u8; 2048]; 2];
    let mut arrays = Vec::new();
    for round in 0..300u32 {
        let mut filter = Filter::load_for(&object, Some("ping"), 2, &Default::default()).unwrap();
        if round.is_multiple_of(100) {
            let mut other = filter.another(1).unwrap();
            for filter in [&mut filter, &mut other] {
                let mut packets: Vec<Packet<'_>> =
                    memory.iter_mut().map(|buffer| Packet::new(buffer, 256..316)).collect::<Result<_, _>>().unwrap();
                assert!(filter.run(&mut packets).all(|(_, verdict)| verdict == Verdict::Pass));
            }
            // The array stays with the last of those who use it.
            drop(filter);
            assert!(other.map("ring").is_some_and(|ring| ring.lookup(&[0; 4], &mut [0; 4], 0).is_ok()));
            arrays.push(Arc::downgrade(other.map("ring").unwrap()));
        } else {
            arrays.push(Arc::downgrade(filter.map("ring").unwrap()));
        }
    }
    arrays.iter().for_each(gone);
}
