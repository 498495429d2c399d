//! Inner maps whose values have fields of the runtime: a template has them too.

use xway_hook::{Hook, LoadRequest, ObjectId, TestRequest};

use super::image;

const MAPS: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct timed { struct bpf_timer timer; __u64 n; };
struct locked { struct bpf_spin_lock lock; __u32 n; };
struct timers { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, struct timed); };
struct locks { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 2); __type(key, __u32); __type(value, struct locked); };
struct timers timer SEC(".maps");
struct locks lock SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 1); __type(key, __u32); __array(values, struct timers); }
    of_timers SEC(".maps") = { .values = { &timer } };
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 1); __type(key, __u32); __array(values, struct locks); }
    of_locks SEC(".maps") = { .values = { &lock } };

static int ended(void *map, __u32 *key, struct timed *value) { return 0; }
SEC("xdp") int special(struct xdp_md *ctx)
{
    __u32 zero = 0;
    struct locked fresh = {};
    void *map = bpf_map_lookup_elem(&of_timers, &zero);
    if (!map) return XDP_ABORTED;
    struct timed *timed = bpf_map_lookup_elem(map, &zero);
    if (!timed) return XDP_ABORTED;
    long refused = bpf_timer_init(&timed->timer, map, 1);
    if (!refused) refused = bpf_timer_set_callback(&timed->timer, ended);
    void *locks = bpf_map_lookup_elem(&of_locks, &zero);
    if (!locks || bpf_map_update_elem(locks, &zero, &fresh, BPF_ANY)) return XDP_ABORTED;
    struct locked *locked = bpf_map_lookup_elem(locks, &zero);
    if (!locked) return XDP_ABORTED;
    bpf_spin_lock(&locked->lock);
    __u32 n = ++locked->n;
    bpf_spin_unlock(&locked->lock);
    return !refused && n == 1 ? XDP_TX : XDP_DROP;
}
char _license[] SEC("license") = "GPL";
"#;

/// Timers are set and locks are held in inner maps.
pub fn special_fields(hook: &mut dyn Hook) {
    let loaded = hook.load(&image(MAPS), &LoadRequest::default()).unwrap();
    let program = loaded.program("special").unwrap();
    let test = TestRequest { data: &[0; 64], ctx: None, repeat: 1 };
    assert_eq!(hook.test_run(program, &test).unwrap().ret, 3);
    hook.release(ObjectId::Program(program)).unwrap();
    loaded.maps.iter().for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
}
