//! Programs from text, run in one line.
#![allow(dead_code)] // Each test file uses its part.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_maps::{Guard, Map};
use xway_object::ProgramKind;
use xway_packet::{Frame, Pool, PoolConfig, Redirect};
use xway_vm::{Env, Fault, FixedHost, LinkError, Outcome, Program};

pub fn try_link(text: &str, maps: &[Arc<Map>], kind: ProgramKind) -> Result<Arc<Program>, LinkError> {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = xway_object::Program { name: "test".into(), insns, kind, ..Default::default() };
    Program::link(&image, maps)
}

pub fn link(text: &str, maps: &[Arc<Map>]) -> Arc<Program> {
    try_link(text, maps, ProgramKind::Xdp { frags: false }).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub fn map(map_type: MapType, key: u32, value: u32, entries: u32) -> Arc<Map> {
    Map::create(&MapSpec::new(map_type, key, value, entries), &xway_maps::Env::with_cpus(2)).unwrap()
}

/// r0 of a raw program without memory.
pub fn raw(text: &str) -> u64 {
    let (ret, fault) = raw_over(text, &mut []);
    assert!(fault.is_none(), "{}\n{text}", fault.unwrap());
    ret
}

pub fn raw_over(text: &str, memory: &mut [u8]) -> (u64, Option<Box<Fault>>) {
    let program = try_link(text, &[], ProgramKind::Raw).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let outcome = xway_vm::run_raw(&program, memory, &mut Env::new(&guard, &host, 0));
    (outcome.ret, outcome.fault)
}

/// What a packet came back as.
pub struct Ran {
    pub outcome: Outcome,
    pub packet: Vec<u8>,
    pub redirect: Redirect,
}

pub fn run_on(program: &Program, packet: &[u8], prepare: impl FnOnce(&mut Frame)) -> Ran {
    run_with(program, packet, &FixedHost::new(1), prepare)
}

pub fn run_with(program: &Program, packet: &[u8], host: &FixedHost, prepare: impl FnOnce(&mut Frame)) -> Ran {
    let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(packet).unwrap();
    prepare(&mut frame);
    let guard = Guard::pin();
    let outcome = xway_vm::run(program, &mut frame, &mut Env::new(&guard, host, 1).with_budget(100_000_000));
    let ran = Ran { outcome, packet: frame.packet().to_vec(), redirect: frame.redirect() };
    pool.release(frame);
    ran
}

/// r0 of a program over 64 zero bytes.
pub fn ret(text: &str, maps: &[Arc<Map>]) -> u64 {
    let ran = run_on(&link(text, maps), &[0; 64], |_| ());
    assert!(ran.outcome.fault.is_none(), "{}\n{text}", ran.outcome.fault.unwrap());
    ran.outcome.ret
}

pub fn fault(text: &str, maps: &[Arc<Map>]) -> Box<Fault> {
    let ran = run_on(&link(text, maps), &[0; 64], |_| ());
    assert_eq!(ran.outcome.ret, 0, "a fault is XDP_ABORTED");
    ran.outcome.fault.unwrap_or_else(|| panic!("no fault\n{text}"))
}
