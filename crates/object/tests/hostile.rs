//! Damaged and malicious input: one clear message, no panic, no memory or time without bound.

use xway_object::btf::{BtfBuilder, IntEncoding, Kind};
use xway_object::{Btf, LoadOptions, Object, ObjectError};
use xway_testkit::{Needs, Rng, clang};

const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
struct net_device { int ifindex; unsigned char flag : 3; } __attribute__((preserve_access_index));
struct inner { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 7); __type(key, __u32); __type(value, __u64); } inner_a SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 2); __type(key, __u32); __array(values, struct inner); }
outer SEC(".maps") = { .values = { [1] = &inner_a } };
struct { unsigned type, key, value, entries, flags; } legacy SEC("maps") = { 2, 4, 8, 3, 0 };
extern int CONFIG_X __kconfig __weak;
extern int some_function(void *) __ksym __weak;
const volatile __u32 limit = 7;
__u64 counter;
static __attribute__((noinline)) int leaf(int x) { return x * 3 + limit; }
static __attribute__((noinline)) int each(__u32 i, void *ctx) { return leaf(i); }
SEC("xdp") int tail(struct xdp_md *ctx) { return XDP_PASS; }
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 3); __uint(key_size, 4); __array(values, int (void *)); }
tails SEC(".maps") = { .values = { [2] = (void *)&tail } };
SEC("xdp") int entry(struct xdp_md *ctx) {
    __u32 k = 0;
    struct net_device *dev = (void *)(long)ctx->ingress_ifindex;
    counter += CONFIG_X + bpf_core_field_offset(dev->ifindex) + bpf_core_field_exists(dev->flag);
    if (some_function) some_function(ctx);
    bpf_tail_call(ctx, &tails, 2);
    bpf_loop(3, each, &k, 0);
    return bpf_map_lookup_elem(&outer, &k) ? leaf(k) : bpf_map_lookup_elem(&legacy, &k) != 0;
}
char _license[] SEC("license") = "GPL";
"#;

/// Every way to look at a result, so that what parsed can also be used.
fn use_all(o: &Object) {
    for p in &o.programs {
        let _ = (p.tag(), p.as_xdp().is_ok(), p.with_map_fds(|_| Some(1)).len());
        assert!(p.line_info.iter().all(|l| l.insn < p.insns.len()));
        assert!(p.subprogs.iter().all(|s| s.start + s.len <= p.insns.len()));
    }
    for m in &o.maps {
        if let (Some(btf), xway_object::Initial::Data(bytes)) = (&o.btf, &m.initial) {
            let _ = btf.decode_value(m.value_type, bytes).map(|v| btf.encode_value(m.value_type, &v));
        }
    }
    if let Some(btf) = &o.btf {
        use_types(btf);
    }
    let _ = o.select(&Default::default());
}

fn use_types(btf: &Btf) {
    for id in 0..=btf.max_id().min(2000) {
        let _ = (btf.type_name(id), btf.size_of(id), btf.align_of(id), btf.resolve(id).is_ok());
        let _ = btf.member_at(id, "a.b[3]");
        let _ = btf.decode_value(id, &[0; 64]);
    }
    let _ = btf.for_kernel().len();
    let _ = btf.c_header(None).is_ok();
    let _ = btf.find("no such name", |_| true);
}

fn sample() -> Vec<u8> {
    clang::compile_text("hostile", SOURCE, &[]).unwrap_or_else(|e| panic!("{e}"))
}

fn options() -> [LoadOptions; 2] {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    b.structure("net_device", 12, &[("other", int, 0), ("ifindex", int, 64)]);
    [LoadOptions::default(), LoadOptions { target_btf: Some(b.finish().into()), ..LoadOptions::default() }]
}

#[test]
fn a_file_cut_at_any_byte_is_an_error_and_no_panic() {
    if !Needs::of("hostile::a_file_cut_at_any_byte_is_an_error_and_no_panic").clang().met() {
        return;
    }
    let bytes = sample();
    let [plain, with_target] = options();
    use_all(&Object::parse(&bytes, &plain).unwrap());
    let whole = Object::parse(&bytes, &with_target).unwrap();
    assert!(whole.rejected.is_empty(), "{:?}", whole.rejected);
    use_all(&whole);
    for len in 0..bytes.len() {
        // The section headers stand last, so nothing but the whole file is one.
        let error = Object::parse(&bytes[..len], &plain).map(|_| ()).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn changed_bytes_never_panic() {
    if !Needs::of("hostile::changed_bytes_never_panic").clang().met() {
        return;
    }
    let whole = sample();
    let mut rng = Rng::new(0x0bec7);
    let options = options();
    for round in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=rng.below(6) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] = rng.u64() as u8,
                1 => bytes[at] ^= 1 << rng.below(8),
                2 => bytes[at] = 0xff,
                // Whole words: lengths, offsets, ids.
                _ => {
                    let word =
                        [0, u32::MAX, 0x7fff_ffff, rng.u64() as u32, rng.below(64) as u32][rng.below(5) as usize];
                    let end = (at + 4).min(bytes.len());
                    bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
                }
            }
        }
        if let Ok(o) = Object::parse(&bytes, &options[round % 2]) {
            use_all(&o);
        }
    }
}

#[test]
fn other_files_are_named() {
    let parse = |bytes: &[u8]| Object::parse(bytes, &LoadOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(parse(b"").contains("empty"));
    assert!(parse(b"#include <linux/bpf.h>").contains("source"));
    assert!(parse(b"BC\xc0\xde").contains("bitcode"));
    assert!(parse(&[0u8; 100]).contains("not an ELF file"));
    assert!(parse(b"\x7fELF").contains("64 bytes"));
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let text = parse(&own);
    assert!(text.contains("not a BPF object") && text.contains("an ELF file for"), "{text}");
    // 64 bytes of header for a machine: class, byte order, type, machine.
    let header = |class: u8, order: u8, kind: u16, machine: u16| {
        let mut h = vec![0u8; 64];
        h[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order, 1]);
        let put = |n: u16| if order == 2 { n.to_be_bytes() } else { n.to_le_bytes() };
        h[16..18].copy_from_slice(&put(kind));
        h[18..20].copy_from_slice(&put(machine));
        h
    };
    assert!(parse(&header(2, 2, 1, 247)).contains("big-endian BPF"));
    assert!(parse(&header(1, 1, 1, 247)).contains("32-bit"));
    assert!(parse(&header(2, 1, 2, 247)).contains("linked file"));
    assert!(parse(&header(2, 1, 4, 247)).contains("core dump"));
    assert!(parse(&header(2, 1, 1, 183)).contains("AArch64"));
    // Nothing in it: no sections, no program, and no panic.
    let empty = Object::parse(&header(2, 1, 1, 247), &LoadOptions::default());
    assert!(empty.is_err() || empty.unwrap().select(&Default::default()).is_err());
}

#[test]
fn claims_without_bytes_are_refused() {
    let mut h = vec![0u8; 128];
    h[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    h[16] = 1;
    h[18] = 247;
    h[40..48].copy_from_slice(&64u64.to_le_bytes()); // section headers right after the file header
    h[58] = 64; // their size
    // No count: the first section's size says how many there are. Four billion.
    h[64 + 32..64 + 40].copy_from_slice(&0xffff_ffffu64.to_le_bytes());
    let error = Object::parse(&h, &LoadOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error, ObjectError::Elf { .. }), "{error}");
}

#[test]
fn types_that_never_end_are_refused() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    // A typedef of itself, a struct in itself, an array of itself.
    let myself = b.typedef("myself", int + 1);
    let inner = b.structure("inner", 4, &[("x", int + 2, 0)]);
    let array = b.array(int + 3, int, 2);
    // Each of thirty structs holds the next one eight times: 8^30 members if one followed them all.
    let first = array + 1;
    for i in 0..30u32 {
        let next = if i == 29 { int } else { first + i + 1 };
        b.structure(&format!("s{i}"), 4, &[("", next, 0); 8].map(|m| (m.0, m.1, m.2)));
    }
    let wide = b.array(int, int, u32::MAX);
    let wider = b.array(wide, int, u32::MAX);
    let btf = b.finish();
    for id in [myself, array] {
        assert!(btf.size_of(id).is_err(), "type {id}");
        assert!(btf.decode_value(id, &[0; 16]).is_err(), "type {id}");
    }
    assert!(btf.decode_value(inner, &[0; 16]).is_err());
    assert!(btf.resolve(myself).is_err());
    assert!(btf.decode_value(first, &[0; 16]).is_err());
    assert_eq!(btf.member_at(first, "nothing"), Err("nothing"));
    let _ = btf.align_of(first);
    assert!(btf.size_of(wide).is_err() && btf.size_of(wider).is_err());
    assert!(btf.type_name(array).len() < 10_000);
    use_types(&btf);
}

#[test]
fn damaged_types_are_refused() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    b.structure("pair", 8, &[("a", int, 0), ("b", int, 32)]);
    let good = b.to_bytes();
    assert!(Btf::parse(good.clone()).is_ok());
    for len in 0..good.len() {
        assert!(Btf::parse(good[..len].to_vec()).is_err(), "{len} bytes");
    }
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Btf::parse(bytes).map(|_| ()).unwrap_err().to_string()
    };
    assert!(changed(0, 0).contains("magic"));
    assert!(changed(2, 9).contains("version"));
    assert!(changed(4, 200).contains("cut off"));
    assert!(changed(24 + 7, 0x1f).contains("unknown kind"));
    assert!(changed(24, 0xff).contains("string offset"));
    let mut swapped = good.clone();
    swapped[..2].copy_from_slice(&[0xeb, 0x9f]);
    assert!(Btf::parse(swapped).unwrap_err().to_string().contains("big-endian"));
    // A member count of 65535 that no bytes stand behind.
    let mut many = good.clone();
    many[24 + 16 + 4] = 0xff;
    many[24 + 16 + 5] = 0xff;
    assert!(Btf::parse(many).unwrap_err().to_string().contains("cut off"));
    let parsed = Btf::parse(good).unwrap();
    assert!(parsed.ty(3).is_err() && matches!(parsed.ty(0).unwrap().kind, Kind::Void));
}
