//! What the table says of each helper is what the verifier says of a program that calls it.
//!
//! The programs are made from the prototypes: each argument as its kind asks for, with what must come before the call (a record
//! to submit, a socket to release) and what must come after it.

use std::fmt::Write;
use std::sync::Arc;

use xway_abi::{
    Arg, ArgKind, DynptrKind, FuncAccess, HelperProto, MapSpec, MapType, Ret, SockKind, SpecialField, SpecialKind,
    helper_takes_map, helpers,
};
use xway_kernel::vmlinux;
use xway_object::{HelperNames, Initial, MapDef, Program};
use xway_testkit::Needs;
use xway_verifier::{Config, Kind, MapsView, needs_kernel_objects, unsupported, verify};

/// Maps, by what they are for.
const VALUES: usize = 0;
const LOCKS: usize = 1;
const TIMERS: usize = 2;
const KPTRS: usize = 3;
const TEXT: usize = 4;
const RING: usize = 5;
/// The first map that only stands for its type.
const TYPES: usize = 6;

fn maps() -> Vec<MapDef> {
    let special = |kind| {
        let mut spec = MapSpec::new(MapType::Array, 4, 64, 4);
        spec.special = vec![SpecialField { kind, offset: 0 }];
        spec
    };
    let mut text = MapDef::new("text", MapSpec::new(MapType::Array, 4, 8, 1));
    text.spec.flags = xway_abi::map_flags::RDONLY_PROG;
    (text.initial, text.frozen) = (Initial::Data(b"%d\0\0\0\0\0\0".to_vec()), true);
    let mut maps = vec![
        MapDef::new("values", MapSpec::new(MapType::Array, 4, 64, 4)),
        MapDef::new("locks", special(SpecialKind::SpinLock)),
        MapDef::new("timers", special(SpecialKind::Timer)),
        MapDef::new("kptrs", special(SpecialKind::Kptr)),
        text,
        MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096)),
    ];
    let of = |t: MapType| {
        let (key, value) = match t {
            MapType::Queue | MapType::Stack | MapType::BloomFilter => (0, 4),
            MapType::Ringbuf | MapType::UserRingbuf => (0, 0),
            _ => (4, 4),
        };
        MapDef::new(t.name(), MapSpec::new(t, key, value, 4096))
    };
    maps.extend(MapType::ALL.iter().filter(|t| !t.name().ends_with("of_maps")).map(|t| of(*t)));
    maps
}

/// The value of the map's element 0 in r0; never null, as the key is a constant inside an array.
fn value_of(map: usize) -> String {
    format!("*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:{map}]\ncall bpf_map_lookup_elem\n")
}

const END: &str = "r0 = 2\nexit\n";
const OR_END: &str = "if r0 != 0 goto +2\nr0 = 2\nexit\nr7 = r0\n";
const DYNPTR: &str = "r10\nr4 += -400\n";

/// What must come before a call with such an argument; it is left in r7.
fn before(proto: &HelperProto, arg: &Arg) -> String {
    let kept = |text: String| format!("{text}r7 = r0\n");
    match arg.kind {
        ArgKind::AllocMem { .. } => {
            format!("r1 = map[idx:{RING}]\nr2 = 8\nr3 = 0\ncall bpf_ringbuf_reserve\n{OR_END}")
        }
        ArgKind::SpinLock if proto.name == "bpf_spin_unlock" => {
            format!("{}r1 = r7\ncall bpf_spin_lock\n", kept(value_of(LOCKS)))
        }
        ArgKind::SpinLock => kept(value_of(LOCKS)),
        ArgKind::Timer => kept(value_of(TIMERS)),
        ArgKind::KptrDest => kept(value_of(KPTRS)),
        ArgKind::ConstStr => kept(value_of(TEXT)),
        ArgKind::Mem(..) if proto.name == "bpf_dynptr_from_mem" => kept(value_of(VALUES)),
        ArgKind::Dynptr(_, FuncAccess::Use) => {
            format!("{}r1 = r0\nr2 = 8\nr3 = 0\nr4 = {DYNPTR}call bpf_dynptr_from_mem\n", value_of(VALUES))
        }
        ArgKind::Dynptr(_, FuncAccess::Release) => {
            format!("r1 = map[idx:{RING}]\nr2 = 8\nr3 = 0\nr4 = {DYNPTR}call bpf_ringbuf_reserve_dynptr\n")
        }
        ArgKind::Sock { kind, .. } => {
            let find = if kind == SockKind::Common { "bpf_skc_lookup_tcp" } else { "bpf_sk_lookup_tcp" };
            format!("r1 = r6\nr2 = r10\nr2 += -64\nr3 = 12\nr4 = 0\nr5 = 0\ncall {find}\n{OR_END}")
        }
        ArgKind::BtfPtr("task_struct") if !arg.nullable => "call bpf_get_current_task_btf\nr7 = r0\n".into(),
        _ => String::new(),
    }
}

/// The argument itself.
fn given(proto: &HelperProto, maps: &[MapDef], i: usize, arg: &Arg) -> String {
    let r = i + 1;
    let stack = |at: usize| format!("r{r} = r10\nr{r} += -{at}\n");
    match arg.kind {
        ArgKind::Ctx => format!("r{r} = r6\n"),
        ArgKind::ConstMap if proto.name == "bpf_timer_init" => format!("r{r} = map[idx:{TIMERS}]\n"),
        ArgKind::ConstMap => {
            let fits = |m: &MapDef| helper_takes_map(proto.id, m.spec.map_type);
            let map = TYPES + maps[TYPES..].iter().position(fits).expect("a map type that the helper takes");
            format!("r{r} = map[idx:{map}]\n")
        }
        ArgKind::Mem(..) if proto.name == "bpf_dynptr_from_mem" => format!("r{r} = r7\n"),
        ArgKind::MapKey | ArgKind::MapValue(_) | ArgKind::Mem(..) => stack(64 * (i + 1)),
        ArgKind::Size { .. } | ArgKind::AllocSize => format!("r{r} = 8\n"),
        ArgKind::Func(_) => format!("r{r} = subprog[back]\n"),
        ArgKind::Dynptr(..) => stack(400),
        _ if arg.nullable || arg.kind == ArgKind::Anything => format!("r{r} = 0\n"),
        _ => format!("r{r} = r7\n"),
    }
}

/// What must come after the call.
fn after(proto: &HelperProto) -> String {
    let mut text = String::new();
    for arg in proto.args {
        text += match arg.kind {
            ArgKind::SpinLock if proto.name == "bpf_spin_lock" => "r1 = r7\ncall bpf_spin_unlock\n",
            ArgKind::Sock { release: false, .. } => "r1 = r7\ncall bpf_sk_release\n",
            ArgKind::Dynptr(DynptrKind::Ringbuf, FuncAccess::Init) => {
                "r1 = r10\nr1 += -400\nr2 = 0\ncall bpf_ringbuf_discard_dynptr\n"
            }
            _ => "",
        };
    }
    text += match proto.ret {
        Ret::SockOrNull { acquire: true, .. } => "if r0 == 0 goto out\nr1 = r0\ncall bpf_sk_release\n",
        Ret::AllocMemOrNull => "if r0 == 0 goto out\nr1 = r0\nr2 = 0\ncall bpf_ringbuf_discard\n",
        _ => "",
    };
    text
}

/// A program that calls the helper as its prototype wants.
fn program(proto: &HelperProto, maps: &[MapDef]) -> Program {
    let mut text = String::from("r6 = r1\n");
    (1..=40).for_each(|i| _ = writeln!(text, "*(u64 *)(r10 -{}) = 0", 8 * i));
    proto.args.iter().for_each(|arg| text += &before(proto, arg));
    proto.args.iter().enumerate().for_each(|(i, arg)| text += &given(proto, maps, i, arg));
    let _ = write!(text, "call {}\n{}out: {END}", proto.name, after(proto));
    if proto.args.iter().any(|a| matches!(a.kind, ArgKind::Func(_))) {
        text += "back: r0 = 0\nexit\n";
    }
    let insns = xway_isa::assemble_with(&text, &HelperNames).unwrap_or_else(|e| panic!("{}: {e}\n{text}", proto.name));
    Program { name: "row".into(), section: "xdp".into(), insns, ..Program::default() }
}

#[test]
fn every_row_is_what_the_verifier_says() {
    if !Needs::of("testkit::compatibility::every_row_is_what_the_verifier_says").kernel(6, 10).met() {
        return;
    }
    let kernel: Option<Arc<xway_object::Btf>> = vmlinux();
    let maps = maps();
    let view = MapsView { maps: &maps, btf: None, kernel: kernel.as_deref(), license: Some("GPL") };
    let mut asked = 0;
    for proto in helpers().iter().filter(|h| h.xdp) {
        // An address of a kernel variable cannot be written in assembler text.
        if proto.args.iter().any(|a| a.kind == ArgKind::PercpuBtfPtr) {
            assert!(needs_kernel_objects(proto), "{}", proto.name);
            continue;
        }
        asked += 1;
        let program = program(proto, &maps);
        let answer = verify(&program, &view, &Config { explain: 0, ..Config::default() });
        match answer {
            Err(refusal) if proto.might_sleep => assert_eq!(refusal.errors[0].kind, Kind::BadCall, "{}", proto.name),
            Err(refusal) if unsupported(proto).is_some() => {
                assert_eq!(refusal.errors[0].kind, Kind::Unsupported, "{}: {refusal}", proto.name);
            }
            Err(refusal) => {
                let listing = xway_isa::listing(&program.insns, &xway_isa::NoNames).unwrap_or_default();
                panic!("{} is refused: {refusal} at {}\n{listing}", proto.name, refusal.errors[0].insn);
            }
            Ok(proof) => {
                assert!(unsupported(proto).is_none() && !proto.might_sleep, "{} is accepted", proto.name);
                let objects = &proof.facts().kernel_objects;
                assert_eq!(!objects.is_empty(), needs_kernel_objects(proto), "{}: {objects:?}", proto.name);
            }
        }
    }
    assert!(asked > 90, "{asked}");
}
