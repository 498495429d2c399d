//! What a program must not do, and what is said about it.

mod common;

use std::sync::Arc;

use common::{checked, fault, map, raw_over, try_link};
use xway_abi::{MapSpec, MapType, SpecialField, SpecialKind, map_flags};
use xway_maps::Guard;
use xway_object::ProgramKind;
use xway_packet::{Pool, PoolConfig};
use xway_vm::{Access, Env, FaultKind, FixedHost, RegionKind, Timers};

fn link(text: &str) -> Arc<xway_vm::Program> {
    try_link(text, &[], ProgramKind::Xdp { frags: false }).unwrap()
}

const DATA: &str = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\n";

#[test]
fn packets_end_where_they_end() {
    for (access, message) in [
        ("r0 = *(u32 *)(r2 +61)", "read of 4 bytes at offset 61 of the packet (64 bytes)"),
        ("r0 = *(u8 *)(r3 +0)", "read of 1 byte at offset 64 of the packet (64 bytes)"),
        ("r0 = *(u8 *)(r2 -1)", "read of 1 byte at offset -1 of the packet (64 bytes)"),
        ("*(u64 *)(r2 +57) = 0", "write of 8 bytes at offset 57 of the packet (64 bytes)"),
    ] {
        let f = fault(&format!("{DATA}{access}\nexit"), &[]);
        assert_eq!(f.insn, 2);
        assert!(f.to_string().contains(message), "{f}");
        assert!(f.to_string().contains("only 0..64 may be accessed"), "{f}");
        assert_eq!((f.kind.name(), f.kind.region().unwrap().kind), ("packet-bounds", RegionKind::Packet));
    }
    // After the packet has moved, old pointers are checked against the new bounds.
    let text = format!("r6 = r1\n{DATA}r7 = r2\nr2 = 20\ncall 44\nr0 = *(u8 *)(r7 +0)\nexit");
    assert!(matches!(fault(&text, &[]).kind, FaultKind::Bounds { off: -20, low: 0, high: 44, .. }));
}

#[test]
fn the_context_is_read_in_whole_fields() {
    for text in [
        "r0 = *(u64 *)(r1 +0)\nexit",
        "r0 = *(u32 *)(r1 +2)\nexit",
        "r0 = *(u32 *)(r1 +24)\nexit",
        "*(u32 *)(r1 +0) = 1\nr0 = 0\nexit",
    ] {
        let f = fault(text, &[]);
        assert!(matches!(f.kind, FaultKind::Denied { .. }), "{f}");
    }
}

#[test]
fn null_and_wild_pointers() {
    let values = map(MapType::Hash, 4, 8, 4);
    let text = "*(u32 *)(r10 -4) = 1\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nr0 = *(u64 *)(r0 +0)\nexit";
    let f = fault(text, &[values]);
    assert!(matches!(f.kind, FaultKind::Null { access: Access::Read, addr: 0, .. }), "{f}");
    assert!(f.to_string().contains("check the pointer"), "{f}");
    let f = fault("r1 = 0x123456789abcdef0\nr0 = *(u8 *)(r1 +0)\nexit", &[]);
    assert!(matches!(f.kind, FaultKind::Wild { .. }), "{f}");
}

#[test]
fn stacks_are_512_bytes_each() {
    assert!(matches!(fault("r0 = *(u64 *)(r10 +0)\nexit", &[]).kind, FaultKind::Bounds { off: 0, low: -512, .. }));
    assert!(matches!(fault("*(u8 *)(r10 -513) = 0\nr0 = 0\nexit", &[]).kind, FaultKind::Bounds { off: -513, .. }));
    // A function that recurses ends at eight frames.
    let f = fault("call f\nexit\nf:\ncall f\nexit", &[]);
    assert!(matches!(f.kind, FaultKind::Depth), "{f}");
    let callers: Vec<usize> = f.callers.iter().map(|c| c.insn).collect();
    assert_eq!(callers, [2, 2, 2, 2, 2, 2, 2, 0], "innermost first");
    // A pointer to the frame of a function that has returned reaches zeroed or reused memory of that frame, nothing else.
    assert!(checked(&link("call f\nr0 = *(u64 *)(r0 -8)\nexit\nf:\nr0 = r10\nexit")).fault.is_none());
}

#[test]
fn map_values_are_granted_one_by_one() {
    let values = map(MapType::Array, 4, 8, 4);
    let look_up = "*(u32 *)(r10 -4) = 1\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\n";
    let f = fault(&format!("{look_up}r0 = *(u64 *)(r0 +8)\nexit"), std::slice::from_ref(&values));
    assert!(f.to_string().contains("a map value of 8 bytes"), "{f}");
    let f = fault("r1 = map[idx:0]\nr0 = *(u32 *)(r1 +0)\nexit", &[values]);
    assert!(f.to_string().contains("through helpers"), "{f}");
    let spec = MapSpec::new(MapType::Array, 4, 8, 4).with_flags(map_flags::RDONLY_PROG);
    let read_only = xway_maps::Map::create(&spec, &xway_maps::Env::with_cpus(1)).unwrap();
    for write in ["*(u64 *)(r0 +0) = 1", "r1 = 1\nlock *(u64 *)(r0 +0) += r1"] {
        let f = fault(&format!("{look_up}{write}\nr0 = 0\nexit"), std::slice::from_ref(&read_only));
        assert!(f.to_string().contains("read-only"), "{f}");
    }
}

#[test]
fn calls_clobber_their_arguments() {
    let f = fault("r6 = r1\ncall 5\nr0 = *(u32 *)(r1 +0)\nexit", &[]);
    assert!(f.to_string().contains("clobbered"), "{f}");
    let f = fault("r0 = *(u8 *)(r7 +0)\nexit", &[]);
    assert!(f.to_string().contains("never set"), "{f}");
}

#[test]
fn arguments_are_checked_by_the_prototype() {
    let values = map(MapType::Hash, 8, 8, 4);
    for (text, arg) in [
        ("r1 = 5\nr2 = r10\nr2 += -8\ncall 1\nexit", 1),
        ("r6 = r1\nr1 = r10\nr2 = 4\ncall 44\nexit", 1),
        ("r1 = r10\nr1 += -8\nr2 = 0\nr3 = 0\nr4 = r10\nr4 += -16\ncall 105\nexit", 2),
        ("r1 = r10\nr1 += -8\nr2 = -1\nr3 = 0\nr4 = r10\nr4 += -16\ncall 105\nexit", 2),
        ("r1 = 3\nr2 = 5\nr3 = 0\nr4 = 0\ncall 181\nexit", 2),
        ("r1 = 5\ncall 86\nexit", 1),
    ] {
        let f = fault(text, std::slice::from_ref(&values));
        assert!(matches!(f.kind, FaultKind::Argument { arg: a, .. } if a == arg), "{f}");
    }
    // A key that leaves the stack.
    let f = fault("r1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nexit", &[values]);
    assert!(matches!(f.kind, FaultKind::Bounds { len: 8, .. }), "{f}");
}

#[test]
fn the_budget_ends_loops() {
    let program = link("again:\ngoto again\nexit");
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut pool = xway_packet::Pool::new(xway_packet::PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(&[0; 64]).unwrap();
    let outcome = xway_vm::run(&program, &mut frame, &mut Env::new(&guard, &host, 0).with_budget(1000));
    assert!(matches!(outcome.fault.unwrap().kind, FaultKind::Budget(1000)));
    assert!(outcome.insns <= 1000);
    // Also through callbacks.
    let program = link("r1 = 8000000\nr2 = subprog[f]\nr3 = 0\nr4 = 0\ncall 181\nexit\nf:\nr0 = 0\nexit");
    let outcome = xway_vm::run(&program, &mut frame, &mut Env::new(&guard, &host, 0).with_budget(1000));
    assert!(matches!(outcome.fault.unwrap().kind, FaultKind::Budget(1000)));
    pool.release(frame);
}

#[test]
fn raw_memory_has_its_length() {
    let (_, fault) = raw_over("r0 = *(u8 *)(r1 +4)\nexit", &mut [0; 4]);
    assert!(matches!(fault.unwrap().kind, FaultKind::Bounds { high: 4, .. }));
    let (ret, fault) = raw_over("r0 = r1\nr0 += r2\nexit", &mut []);
    assert!(fault.is_none() && ret == 0);
}

#[test]
fn a_fault_names_the_source_line() {
    let mut image = xway_object::Program {
        name: "lines".into(),
        insns: xway_isa::assemble(&format!("{DATA}r0 = *(u8 *)(r3 +0)\nexit")).unwrap(),
        ..Default::default()
    };
    image.line_info = vec![xway_object::LineInfo {
        insn: 2,
        file: "parse.c".into(),
        line: 31,
        col: 7,
        text: "\treturn *end;".into(),
        file_off: 0,
        text_off: 0,
    }];
    let program = xway_vm::Program::link(&image, &[]).unwrap();
    let fault = checked(&program).fault.unwrap().to_string();
    assert!(fault.contains("parse.c:31: return *end;") && fault.contains("instruction 2"), "{fault}");
}

/// A timer's callback, too, gives a lock back when it is stopped or ends: packets would wait for it for ever.
#[test]
fn a_callback_that_keeps_a_lock_loses_it() {
    for end in ["r1 = 0\nr0 = *(u64 *)(r1 +0)\nexit", "r0 = 0\nexit"] {
        let field = |kind, offset| SpecialField { kind, offset };
        let special = vec![field(SpecialKind::Timer, 0), field(SpecialKind::SpinLock, 16)];
        let spec = MapSpec { special, ..MapSpec::new(MapType::Array, 4, 24, 1) };
        let values = xway_maps::Map::create(&spec, &xway_maps::Env::with_cpus(1)).unwrap();
        let text = format!(
            "*(u32 *)(r10 -4) = 0\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 != 0 goto have\nexit\nhave: r6 = r0\n\
             r1 = r6\nr2 = map[idx:0]\nr3 = 1\ncall 169\nr1 = r6\nr2 = subprog[fire]\ncall 170\n\
             r1 = r6\nr2 = 10\nr3 = 0\ncall 171\nexit\n\
             fire: r1 = r3\nr1 += 16\ncall 93\n{end}"
        );
        let program = try_link(&text, std::slice::from_ref(&values), ProgramKind::Xdp { frags: false }).unwrap();
        let (timers, host) = (Timers::default(), FixedHost::new(1).with_clock(1_000_000, 0));
        let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
        let mut frame = pool.alloc().unwrap();
        let guard = Guard::pin();
        let outcome = xway_vm::run(&program, &mut frame, &mut Env::new(&guard, &host, 0).with_timers(&timers));
        assert_eq!(outcome.ret, 0, "{:?}", outcome.fault);
        host.advance(10);
        assert_eq!(timers.run_due(&host, 0).0, 1);
        let lock = values.value(0, &[0; 4], &guard).unwrap().load(16, 4);
        assert_eq!(lock, Ok(0), "behind {end}");
        pool.release(frame);
    }
}
