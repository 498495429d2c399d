//! Map declarations in every convention, as clang compiles them.

use xway_abi::{MapType, SpecialKind};
use xway_object::{Initial, LoadOptions, MapKind, Object, ObjectError, Pinning, SlotRef};
use xway_testkit::{Needs, clang};

fn load(name: &str, text: &str, flags: &[&str]) -> Result<Object, ObjectError> {
    let bytes = clang::compile_text(name, text, flags).unwrap_or_else(|e| panic!("{e}"));
    Object::parse(&bytes, &LoadOptions { possible_cpus: Some(6), ..LoadOptions::default() })
}

fn index(object: &Object, name: &str) -> usize {
    object.map_index(name).unwrap_or_else(|| panic!("no map {name}: {:?}", object.maps))
}

const BTF_MAPS: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct key { __u16 a, b; };
struct value { struct bpf_spin_lock lock; __u32 n; struct bpf_timer timer; };
struct inner { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 7); __type(key, struct key); __type(value, __u64); };
struct inner inner_a SEC(".maps"), inner_b SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 5); __type(key, __u32);
    __array(values, struct inner);
} outer SEC(".maps") = { .values = { [1] = &inner_b, [4] = &inner_a } };
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 10); __uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_NUMA_NODE);
    __uint(numa_node, 1); __uint(pinning, LIBBPF_PIN_BY_NAME); __type(key, struct key); __type(value, struct value); } pinned SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_BLOOM_FILTER); __uint(max_entries, 100); __uint(value_size, 4); __uint(map_extra, 3);
    } bloom SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); } events SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 5000); } ring SEC(".maps");
SEC("xdp") int late(struct xdp_md *ctx);
SEC("xdp") static int quiet(struct xdp_md *ctx) { return XDP_TX; }
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 3); __uint(key_size, 4);
    __array(values, int (struct xdp_md *)); } tails SEC(".maps") = { .values = { [0] = &late, [2] = (void *)&quiet } };
static struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u64); } hidden SEC(".maps");
SEC("xdp") int late(struct xdp_md *ctx) { return XDP_DROP; }
SEC("xdp") int first(struct xdp_md *ctx) {
    __u32 k = 0;
    __u64 *v = bpf_map_lookup_elem(&hidden, &k);
    void *m = bpf_map_lookup_elem(&outer, &k);
    if (v && m) *v += 1;
    bpf_tail_call(ctx, &tails, 2);
    return bpf_map_lookup_elem(&pinned, &k) ? XDP_PASS : XDP_ABORTED;
}
"#;

#[test]
fn btf_declarations() {
    if !Needs::of("maps::btf_declarations").clang().met() {
        return;
    }
    let o = load("btf_maps", BTF_MAPS, &[]).unwrap();
    let map = |name: &str| &o.maps[index(&o, name)];

    let outer = map("outer");
    let inner = outer.spec.inner.as_deref().expect("a template");
    assert_eq!((inner.map_type, inner.key_size, inner.value_size, inner.max_entries), (MapType::Hash, 4, 8, 7));
    assert_eq!(outer.spec.value_size, 4);
    let (a, b) = (index(&o, "inner_a"), index(&o, "inner_b"));
    assert_eq!(outer.initial, Initial::Slots(vec![(1, SlotRef::Map(b)), (4, SlotRef::Map(a))]));
    let btf = o.btf.as_ref().unwrap();
    assert_eq!(btf.type_name(outer.inner_key_type), "struct key");

    let pinned = map("pinned");
    assert_eq!(pinned.pinning, Pinning::ByName);
    assert_eq!((pinned.spec.flags, pinned.spec.numa_node), (1 | 4, 1));
    assert_eq!(btf.type_name(pinned.value_type), "struct value");
    let special: Vec<_> = pinned.spec.special.iter().map(|f| (f.kind, f.offset)).collect();
    assert_eq!(special, [(SpecialKind::SpinLock, 0), (SpecialKind::Timer, 8)]);

    assert_eq!((map("bloom").spec.map_extra, map("bloom").spec.value_size), (3, 4));
    assert_eq!((map("events").spec.max_entries, map("events").spec.key_size), (6, 4));
    assert_eq!(map("ring").spec.max_entries, 8192, "rounded up to a power of two of whole pages");

    let program = |name: &str| o.programs.iter().position(|p| p.name == name).unwrap();
    let slots = vec![(0, SlotRef::Program(program("late"))), (2, SlotRef::Program(program("quiet")))];
    assert_eq!(map("tails").initial, Initial::Slots(slots));
    assert_eq!(o.select(&Default::default()).unwrap().name, "first", "targets of tail calls are no candidates");
    assert_eq!(
        map_references(&o, "first"),
        [index(&o, "hidden"), index(&o, "outer"), index(&o, "tails"), index(&o, "pinned")]
    );
}

/// Indices in the map loads of a program, in order.
fn map_references(o: &Object, program: &str) -> Vec<usize> {
    let p = o.program(program).unwrap();
    p.insns.iter().filter(|s| s.is_wide() && s.src == 5).map(|s| s.imm as usize).collect()
}

const LEGACY: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct bpf_map_def { unsigned int type, key_size, value_size, max_entries, map_flags EXTRA; };
struct bpf_map_def SEC("maps") inner = { .type = BPF_MAP_TYPE_HASH, .key_size = 4, .value_size = 8, .max_entries = 9 };
struct bpf_map_def SEC("maps") second = { .type = BPF_MAP_TYPE_LRU_HASH, .key_size = 6, .value_size = 8, .max_entries = 3,
    .map_flags = BPF_F_NO_COMMON_LRU };
static struct bpf_map_def SEC("maps") third = { .type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 2 };
struct bpf_map_def SEC("maps") outer = { .type = BPF_MAP_TYPE_HASH_OF_MAPS, .key_size = 4, .value_size = 4, .max_entries = 3 INIT };
SEC("anything") int entry(struct xdp_md *ctx) {
    __u64 key = 0;
    if (bpf_map_lookup_elem(&second, &key) && bpf_map_lookup_elem(&third, &key)) return XDP_DROP;
    return bpf_map_lookup_elem(&outer, &key) ? XDP_TX : XDP_PASS;
}
unsigned int _version SEC("version") = 0x041000;
"#;

#[test]
fn legacy_declarations_of_the_kernel_samples() {
    if !Needs::of("maps::legacy_declarations_of_the_kernel_samples").clang().met() {
        return;
    }
    let text = LEGACY.replace("EXTRA", ", inner_map_idx, numa_node").replace("INIT", ", .inner_map_idx = 0");
    for flags in [&["-g"][..], &["-g0"]] {
        let o = load("legacy_samples", &text, flags).unwrap();
        assert_eq!(o.version, Some(0x041000));
        let outer = &o.maps[index(&o, "outer")];
        let template = outer.spec.inner.as_deref().expect("a template");
        assert_eq!((template.map_type, template.max_entries), (MapType::Hash, 9));
        assert_eq!(o.maps[index(&o, "second")].spec.flags, 2);
        assert_eq!(map_references(&o, "entry"), [index(&o, "second"), index(&o, "third"), index(&o, "outer")]);
    }
}

#[test]
fn legacy_declarations_with_unknown_tails() {
    if !Needs::of("maps::legacy_declarations_with_unknown_tails").clang().met() {
        return;
    }
    // The outer map is dropped: five fields cannot name an inner map.
    let five = |extra: &str, init: &str| {
        LEGACY.replace("EXTRA", extra).replace("BPF_MAP_TYPE_HASH_OF_MAPS", "BPF_MAP_TYPE_HASH").replace("INIT", init)
    };
    for flags in [&["-g"][..], &["-g0"]] {
        for (extra, init) in [("", ""), (", later, evenlater, more, still", "")] {
            let o = load("legacy_five", &five(extra, init), flags).unwrap();
            assert_eq!(o.maps.len(), 4);
            assert_eq!(o.maps[index(&o, "outer")].spec.max_entries, 3);
        }
        let tail = ", a, b, c, d, e, f";
        let error = load("legacy_tail", &five(tail, ", .f = 77"), flags).unwrap_err();
        assert!(matches!(&error, ObjectError::Map { map, .. } if map == "outer"), "{error}");
    }
}

const IPROUTE2: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct bpf_elf_map { __u32 type, size_key, size_value, max_elem, flags, id, pinning, inner_id, inner_idx; };
struct bpf_elf_map SEC("maps") jumps = { .type = BPF_MAP_TYPE_PROG_ARRAY, .id = 1, .size_key = 4, .size_value = 4,
    .pinning = 1, .max_elem = 4 };
struct bpf_elf_map SEC("maps") in = { .type = BPF_MAP_TYPE_ARRAY, .id = 42, .size_key = 4, .size_value = 8, .max_elem = 1,
    .inner_idx = 2, .pinning = 2 };
struct bpf_elf_map SEC("maps") out = { .type = BPF_MAP_TYPE_ARRAY_OF_MAPS, .size_key = 4, .size_value = 4, .max_elem = 3, .inner_id = 42 };
SEC("1/0") int zero(struct xdp_md *ctx) { return XDP_DROP; }
SEC("1/3") int three(struct xdp_md *ctx) { return XDP_TX; }
SEC("9/0") int nobody(struct xdp_md *ctx) { return XDP_TX; }
SEC("prog") int entry(struct xdp_md *ctx) { int k = 0; bpf_tail_call(ctx, &jumps, 3); return bpf_map_lookup_elem(&out, &k) ? 1 : 2; }
"#;

#[test]
fn iproute2_declarations_and_numbered_sections() {
    if !Needs::of("maps::iproute2_declarations_and_numbered_sections").clang().met() {
        return;
    }
    for flags in [&["-g"][..], &["-g0"]] {
        let o = load("iproute2", IPROUTE2, flags).unwrap();
        let map = |name: &str| &o.maps[index(&o, name)];
        let program = |name: &str| SlotRef::Program(o.programs.iter().position(|p| p.name == name).unwrap());
        assert_eq!(map("jumps").initial, Initial::Slots(vec![(0, program("zero")), (3, program("three"))]));
        assert_eq!((map("jumps").pinning, map("in").pinning), (Pinning::ObjectNs, Pinning::GlobalNs));
        assert_eq!(map("jumps").id, Some(1));
        assert_eq!(map("out").initial, Initial::Slots(vec![(2, SlotRef::Map(index(&o, "in")))]));
        assert_eq!(map("out").spec.inner.as_deref().unwrap().value_size, 8);
        assert!(o.notes.iter().any(|n| n.contains("9/0")), "{:?}", o.notes);
        assert!(o.programs.iter().all(|p| p.kind.is_xdp()));
        assert_eq!(o.select(&Default::default()).unwrap().name, "entry");
    }
}

const DATA: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
const volatile __u32 limit = 7;
static const char greeting[] = "hello";
__u64 counter = 5;
static volatile __u32 hidden = 3;
__u32 zeroes[4];
struct { __u32 a; __u16 b; } settings SEC(".data.settings") = { 1, 2 };
__u32 own SEC("own_section") = 11;
__u32 unused SEC("metadata_nobody_reads") = 1;
SEC("xdp") int entry(struct xdp_md *ctx) {
    char text[8];
    __builtin_memcpy(text, greeting, 6);
    bpf_trace_printk("%d", 3, limit);
    counter += zeroes[2] + settings.b + own;
    zeroes[1] = hidden;
    return text[ctx->ingress_ifindex & 3] > 'h';
}
char _license[] SEC("license") = "GPL";
"#;

#[test]
fn data_sections_are_array_maps() {
    if !Needs::of("maps::data_sections_are_array_maps").clang().met() {
        return;
    }
    let o = load("data", DATA, &[]).unwrap();
    let map = |name: &str| &o.maps[index(&o, name)];
    let btf = o.btf.as_ref().unwrap();
    let value = |name: &str| {
        let m = map(name);
        let bytes = match &m.initial {
            Initial::Data(bytes) => bytes.clone(),
            _ => vec![0; m.spec.value_size as usize],
        };
        btf.decode_value(m.value_type, &bytes).unwrap()
    };
    assert_eq!((map(".rodata").kind, map(".rodata").frozen), (MapKind::Rodata, true));
    assert_eq!(map(".rodata").spec.flags, 0x480);
    assert_eq!(value(".rodata").get("limit").and_then(|v| v.as_int()), Some(7));
    assert_eq!((map(".data").kind, map(".data").frozen), (MapKind::Data, false));
    assert_eq!(value(".data").get("counter").and_then(|v| v.as_int()), Some(5));
    assert_eq!(value(".data").get("hidden").and_then(|v| v.as_int()), Some(3));
    assert_eq!((map(".bss").kind, map(".bss").spec.value_size), (MapKind::Bss, 16));
    assert_eq!(map(".bss").initial, Initial::None, "zeros take no room");
    assert_eq!(value(".data.settings").get("settings").unwrap().get("b").and_then(|v| v.as_int()), Some(2));
    assert_eq!(value("own_section").get("own").and_then(|v| v.as_int()), Some(11));
    assert!(o.map_index("metadata_nobody_reads").is_none());
    // The same without types: the maps are the same, only untyped.
    let plain = load("data_plain", DATA, &["-g0"]).unwrap();
    assert_eq!(plain.maps.len(), o.maps.len());
    assert_eq!(plain.maps[index(&plain, ".data")].initial, map(".data").initial);
    assert_eq!(plain.programs[0].tag(), o.programs[0].tag());
}

#[test]
fn wrong_declarations_say_what_is_wrong() {
    if !Needs::of("maps::wrong_declarations_say_what_is_wrong").clang().met() {
        return;
    }
    let head = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n";
    let tail = "\nSEC(\"xdp\") int p(void *c) { return 2; }\n";
    for (name, body, flags, says) in [
        ("unknown_type", "struct { __uint(type, 999); } m SEC(\".maps\");", "-g", "unknown map type 999"),
        ("unknown_field", "struct { __uint(type, 1); __uint(colour, 3); } m SEC(\".maps\");", "-g", "colour"),
        ("no_type", "struct { __uint(max_entries, 1); } m SEC(\".maps\");", "-g", "no `type`"),
        (
            "two_sizes",
            "struct { __uint(type, 1); __type(key, __u32); __uint(key_size, 8); } m SEC(\".maps\");",
            "-g",
            "8 bytes",
        ),
        ("no_btf", "struct { __uint(type, 1); } m SEC(\".maps\");", "-g0", "compile with `-g`"),
        ("not_struct", "int m SEC(\".maps\");", "-g", "not as a struct"),
        ("short", "int m SEC(\"maps\") = 1;", "-g0", "shorter"),
        (
            "beyond",
            "int q(void *c); SEC(\"xdp\") int q(void *c) { return 1; }\nstruct { __uint(type, 3); __uint(max_entries, 2);
    __array(values, int (void *)); } m SEC(\".maps\") = { .values = { [5] = &q } };",
            "-g",
            "initial entry 5",
        ),
    ] {
        let error = load(name, &format!("{head}{body}{tail}"), &[flags]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(says) && text.contains("`m`") || flags == "-g0" && text.contains(says), "{name}: {text}");
    }
}
