//! A program from text to verdict.

use std::sync::Arc;

use xway_maps::{Guard, Map};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_vm::{Env, FaultKind, FixedHost, Outcome, Program};

fn link(text: &str, maps: &[Arc<Map>]) -> Arc<Program> {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}"));
    Program::link(&xway_object::Program { name: "test".into(), insns, ..Default::default() }, maps).unwrap()
}

fn run(text: &str, packet: &[u8]) -> (Outcome, Vec<u8>) {
    let program = link(text, &[]);
    let host = FixedHost::new(1);
    let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
    let mut frame: Frame = pool.alloc().unwrap();
    frame.fill(packet).unwrap();
    let guard = Guard::pin();
    let outcome = xway_vm::run(&program, &mut frame, &mut Env::new(&guard, &host, 0));
    let out = frame.packet().to_vec();
    pool.release(frame);
    (outcome, out)
}

#[test]
fn reads_the_packet_between_its_bounds() {
    let text = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr0 = *(u8 *)(r2 +13)\nr3 -= r2\nr0 += r3\nexit\n";
    let mut packet = [0u8; 60];
    packet[13] = 7;
    let (outcome, _) = run(text, &packet);
    assert_eq!(outcome.ret, 67, "{:?}", outcome.fault);
    assert_eq!(outcome.insns, 6);
}

#[test]
fn a_read_past_the_end_is_a_fault_that_says_where() {
    let (outcome, _) = run("r2 = *(u32 *)(r1 +0)\nr0 = *(u32 *)(r2 +58)\nexit\n", &[0; 60]);
    let fault = outcome.fault.expect("a fault");
    assert_eq!(outcome.ret, 0);
    assert_eq!(fault.insn, 1);
    assert!(matches!(fault.kind, FaultKind::Bounds { len: 4, .. }), "{fault}");
    assert!(fault.to_string().contains("r2 = the packet buffer"), "{fault}");
}
