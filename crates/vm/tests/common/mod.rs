//! Programs from text, run in one line: in an engine, or, where no verifier would accept them, in the checked interpreter.
#![allow(dead_code)] // Each test file uses its part.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_maps::{Guard, Map};
use xway_object::ProgramKind;
use xway_packet::{Frame, Pool, PoolConfig, Redirect};
use xway_trial::{ENGINES, Engine, Trial};
use xway_vm::{Env, Fault, FixedHost, LinkError, Outcome, Program};

fn image(text: &str, kind: ProgramKind) -> xway_object::Program {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    xway_object::Program { name: "test".into(), insns, kind, ..Default::default() }
}

/// Linked for the checked interpreter, unproved.
pub fn try_link(text: &str, maps: &[Arc<Map>], kind: ProgramKind) -> Result<Arc<Program>, LinkError> {
    Program::link(&image(text, kind), maps)
}

pub fn link(engine: Engine, text: &str, maps: &[Arc<Map>]) -> Trial {
    let image = image(text, ProgramKind::Xdp { frags: false });
    Trial::link(&image, maps, engine).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub fn map(map_type: MapType, key: u32, value: u32, entries: u32) -> Arc<Map> {
    Map::create(&MapSpec::new(map_type, key, value, entries), &xway_maps::Env::with_cpus(2)).unwrap()
}

/// r0 of a program that needs nothing, the same in each engine.
pub fn value(text: &str) -> u64 {
    value_over(text, &mut [])
}

/// r0 of a program with the address of this memory in r1 and its length in r2, the same in each engine. What the program writes
/// stays.
pub fn value_over(text: &str, memory: &mut [u8]) -> u64 {
    let before = memory.to_vec();
    let (ret, fault) = raw_over(text, memory);
    assert!(fault.is_none(), "{}\n{text}", fault.unwrap());
    // Machine code is made of programs over packets: the memory is a map's value there.
    let len = memory.len().max(1) as u32;
    let values = map(MapType::Array, 4, len, 1);
    let at = format!(
        "*(u32 *)(r10 -4) = 0\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 != 0 goto +1\nexit\n\
         r1 = r0\nr2 = {len}\n{text}"
    );
    for engine in ENGINES {
        values.update(&[0; 4], if before.is_empty() { &[0] } else { &before }, 0).unwrap();
        let program = link(engine, &at, std::slice::from_ref(&values));
        assert_eq!(run_on(&program, &[0; 64], |_| ()).outcome.ret, ret, "{engine:?}\n{text}");
        let mut after = vec![0; len as usize];
        values.lookup(&[0; 4], &mut after, 0).unwrap();
        assert_eq!(after[..memory.len()], *memory, "{engine:?}\n{text}");
    }
    ret
}

/// A raw program in the checked interpreter.
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

pub fn run_on(program: &Trial, packet: &[u8], prepare: impl FnOnce(&mut Frame)) -> Ran {
    run_with(program, packet, &FixedHost::new(1), prepare)
}

pub fn run_with(program: &Trial, packet: &[u8], host: &FixedHost, prepare: impl FnOnce(&mut Frame)) -> Ran {
    over(packet, prepare, |frame| program.run(frame, host, 1))
}

fn over(packet: &[u8], prepare: impl FnOnce(&mut Frame), run: impl FnOnce(&mut Frame) -> Outcome) -> Ran {
    let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(packet).unwrap();
    prepare(&mut frame);
    let outcome = run(&mut frame);
    let ran = Ran { outcome, packet: frame.packet().to_vec(), redirect: frame.redirect() };
    pool.release(frame);
    ran
}

/// r0 of a program over 64 zero bytes.
pub fn ret(engine: Engine, text: &str, maps: &[Arc<Map>]) -> u64 {
    let ran = run_on(&link(engine, text, maps), &[0; 64], |_| ());
    assert!(ran.outcome.fault.is_none(), "{}\n{text}", ran.outcome.fault.unwrap());
    ran.outcome.ret
}

/// What an unproved program came to, over 64 zero bytes in the checked interpreter.
pub fn checked(program: &Program) -> Outcome {
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut env = Env::new(&guard, &host, 1).with_budget(100_000_000);
    over(&[0; 64], |_| (), |frame| xway_vm::run(program, frame, &mut env)).outcome
}

pub fn fault(text: &str, maps: &[Arc<Map>]) -> Box<Fault> {
    let kind = ProgramKind::Xdp { frags: false };
    let outcome = checked(&try_link(text, maps, kind).unwrap_or_else(|e| panic!("{e}\n{text}")));
    assert_eq!(outcome.ret, 0, "a fault is XDP_ABORTED");
    outcome.fault.unwrap_or_else(|| panic!("no fault\n{text}"))
}
