//! Programs over the caller's own buffers.

use xway_embed::{Filter, LoadError, Packet, Redirect, Verdict, verify};
use xway_object::LoadOptions;
use xway_testkit::{Needs, clang};

fn object(test: &str, sample: &str) -> Option<Vec<u8>> {
    let met = Needs::of(&format!("xway-embed::filter::{test}")).clang().met();
    let source = clang::repository().join(format!("bpf/samples/{sample}.bpf.c"));
    met.then(|| clang::compile_file(&source, &[]).unwrap())
}

fn compiled(test: &str, text: &str) -> Option<Vec<u8>> {
    let met = Needs::of(&format!("xway-embed::filter::{test}")).clang().met();
    let head = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nchar _license[] SEC(\"license\") = \"GPL\";\n";
    met.then(|| clang::compile_text(test, &format!("{head}{text}"), &[]).unwrap())
}

/// Buffers that hold a UDP packet each, at offset 256.
fn buffers(count: usize) -> Vec<[u8; 512]> {
    let mut packet = [0u8; 60];
    packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    packet[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet[34..42].copy_from_slice(&[4, 0, 0, 53, 0, 26, 0, 0]);
    let mut buffer = [0u8; 512];
    buffer[256..316].copy_from_slice(&packet);
    vec![buffer; count]
}

fn packets(buffers: &mut [[u8; 512]]) -> Vec<Packet<'_>> {
    buffers.iter_mut().map(|buffer| Packet::new(buffer, 256..316).unwrap()).collect()
}

#[test]
fn verdicts_maps_and_threads() {
    let Some(object) = object("verdicts_maps_and_threads", "count") else { return };
    let options = xway_object::LoadOptions::of_running_kernel();
    let mut filter = Filter::load_for(&object, None, 2, &options).unwrap();
    assert_eq!(filter.engine(), if cfg!(target_arch = "x86_64") { ("jit", None) } else { filter.engine() });
    let mut memory = buffers(150); // more than two bursts
    let mut all = packets(&mut memory);
    assert!(filter.run(&mut all).all(|(packet, verdict)| verdict == Verdict::Pass && packet.packet().len() == 60));
    assert_eq!((filter.codes().len(), filter.faults().len()), (150, 0));
    // Another thread has values of its own.
    let mut second = filter.another(1).unwrap();
    assert!(matches!(filter.another(2), Err(LoadError::Threads(2))));
    // Programs rely on how many processors there can be.
    let many = xway_abi::CPUS_MAX + 1;
    assert!(matches!(Filter::load_for(&object, None, many, &options), Err(LoadError::Many(n)) if n == many));
    std::thread::scope(|scope| {
        let all = &mut all[..7];
        scope.spawn(|| assert_eq!(second.run(all).count(), 7)).join().unwrap();
    });
    let counters = filter.map("counters").unwrap();
    let mut values = vec![0; counters.user_value_size()];
    let udp = 6u32; // KIND_IPV4_UDP of the sample
    counters.lookup(&udp.to_ne_bytes(), &mut values, 0).unwrap();
    let packets = |cpu: usize| u64::from_ne_bytes(values[cpu * 24..][..8].try_into().unwrap());
    assert_eq!((packets(0), packets(1)), (150, 7));
    assert!(filter.maps().any(|(name, _)| name == "counters"));
    assert!(filter.map("nothing").is_none());
}

#[test]
fn a_program_moves_and_changes_the_packet_in_place() {
    const TEXT: &str = r#"
SEC("xdp") int push(struct xdp_md *ctx)
{
    if (bpf_xdp_adjust_head(ctx, -4))
        return XDP_ABORTED;
    unsigned char *data = (void *)(long)ctx->data;
    if ((void *)(data + 4) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    data[0] = 0xaa;
    return bpf_redirect(ctx->ingress_ifindex + 1, 0);
}
"#;
    let Some(object) = compiled("a_program_moves_and_changes_the_packet_in_place", TEXT) else { return };
    let mut filter = Filter::load(&object, Some("push")).unwrap();
    let mut memory = buffers(2);
    let [first, second] = &mut memory[..] else { unreachable!() };
    // The second has no room in front.
    let mut all = [
        Packet::new(first, 256..316).unwrap().with_ingress(5, 0),
        Packet::new(&mut second[214..], 42..102).unwrap().with_ingress(5, 0),
    ];
    let verdicts: Vec<Verdict> = filter.run(&mut all).map(|(_, verdict)| verdict).collect();
    assert_eq!(verdicts, [Verdict::Redirect, Verdict::Aborted]);
    assert_eq!((all[0].range(), all[0].redirect()), (252..316, Redirect::Ifindex(6)));
    assert_eq!((all[1].range(), all[1].redirect()), (42..102, Redirect::None));
    assert_eq!(memory[0][252], 0xaa);
}

#[test]
fn unknown_codes_are_aborted_and_kept() {
    let Some(object) =
        compiled("unknown_codes_are_aborted_and_kept", "SEC(\"xdp\") int odd(struct xdp_md *ctx) { return 77; }")
    else {
        return;
    };
    let mut filter = Filter::load(&object, None).unwrap();
    let mut memory = buffers(1);
    let mut all = packets(&mut memory);
    assert_eq!(filter.run(&mut all).map(|(_, v)| v).collect::<Vec<_>>(), [Verdict::Aborted]);
    assert_eq!(filter.codes(), [77]);
}

#[test]
fn what_is_not_safe_does_not_load() {
    let text = "SEC(\"xdp\") int bad(struct xdp_md *ctx) { return *(unsigned char *)(long)ctx->data; }";
    let Some(object) = compiled("what_is_not_safe_does_not_load", text) else { return };
    let refused = Filter::load(&object, None).unwrap_err();
    assert!(matches!(refused, LoadError::Program(_)), "{refused}");
    let options = LoadOptions::of_running_kernel();
    let asked = verify(&object, None, &options).unwrap_err();
    assert!(matches!(asked, LoadError::Refused { .. }), "{asked}");
    assert_eq!(asked.to_string(), refused.to_string());
    assert!(matches!(verify(&object, Some("other"), &options), Err(LoadError::Object(_))));
    assert!(matches!(Filter::load(&object, Some("other")), Err(LoadError::Object(_))));
    assert!(matches!(Filter::load(b"no object", None), Err(LoadError::Object(_))));
}

/// One table of connections for each worker, found by its number: workers write to no memory of one another.
#[test]
fn each_worker_has_an_inner_map_of_its_own() {
    const TEXT: &str = "struct table { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 64);
        __type(key, __u32); __type(value, __u64); } first SEC(\".maps\"), second SEC(\".maps\");
    struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 2); __type(key, __u32);
        __array(values, struct table); } tables SEC(\".maps\") = { .values = { &first, &second } };
    SEC(\"xdp\") int connections(struct xdp_md *ctx) {
        unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
        __u32 cpu = bpf_get_smp_processor_id(), key;
        __u64 one = 1, *seen;
        void *table;
        if (p + 34 > end) return XDP_PASS;
        __builtin_memcpy(&key, p + 26, 4);
        table = bpf_map_lookup_elem(&tables, &cpu);
        if (!table) return XDP_ABORTED;
        seen = bpf_map_lookup_elem(table, &key);
        if (seen) *seen += 1; else bpf_map_update_elem(table, &key, &one, BPF_ANY);
        return XDP_DROP;
    }";
    let Some(object) = compiled("each_worker_has_an_inner_map_of_its_own", TEXT) else { return };
    let options = xway_object::LoadOptions::of_running_kernel();
    let mut filter = Filter::load_for(&object, None, 2, &options).unwrap();
    let mut second = filter.another(1).unwrap();
    let run = |filter: &mut Filter, sender: u8, count: usize| {
        let mut memory = buffers(count);
        memory.iter_mut().for_each(|buffer| buffer[256 + 29] = sender);
        let mut all = packets(&mut memory);
        assert!(filter.run(&mut all).all(|(_, verdict)| verdict == Verdict::Drop));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(&mut second, 2, 70));
        run(&mut filter, 1, 100);
    });
    let held = |table: &str, sender: u8| {
        let mut value = [0; 8];
        let found = filter.map(table).unwrap().lookup(&[10, 0, 0, sender], &mut value, 0);
        found.ok().map(|()| u64::from_ne_bytes(value))
    };
    assert_eq!((held("first", 1), held("first", 2)), (Some(100), None));
    assert_eq!((held("second", 1), held("second", 2)), (None, Some(70)));
}
