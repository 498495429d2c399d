//! What a proof says of every run is held against real runs, instruction by instruction: the compiler builds on it.
//!
//! Random programs, their mutants, programs around the packet's length, and every program of the repository. `XWAY_PROGRAMS`
//! sets the number of random ones, `XWAY_SEED` where they start.

mod checker;
#[path = "../../examples/fuzz-kernel/generate/mod.rs"]
mod generate;
#[path = "../../examples/fuzz-kernel/world.rs"]
mod world;

use std::sync::Arc;

use checker::Checker;
use world::World;
use xway_maps::Guard;
use xway_object::{LoadOptions, Object, Program, ProgramKind};
use xway_packet::{Pool, PoolConfig};
use xway_testkit::packets::mixed_set;
use xway_testkit::{Needs, Rng, clang};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::{Env, FaultKind, FixedHost, Instance, Timers};

/// What came of one program.
enum Answer {
    /// Refused: there are no facts.
    Refused,
    /// So many steps were checked.
    Held(u64),
    /// A fact that did not hold.
    Wrong(String),
}

/// Runs a program over packets and checks every step.
fn check(object: &Arc<Object>, program: &Program, pool: &mut Pool, packets: &[Vec<u8>], budget: u64) -> Answer {
    let config = Config { budget, errors_max: 1, explain: 0, ..Config::default() };
    let Ok(proof) = verify(program, &MapsView::from(&**object), &config) else { return Answer::Refused };
    let Ok(instance) = Instance::new(object.clone(), 2) else { return Answer::Refused };
    for map in instance.maps() {
        let spec = map.spec();
        if spec.map_type == xway_abi::MapType::Hash && spec.key_size == 8 {
            (0..4u64).for_each(|k| _ = map.update(&k.to_ne_bytes(), &vec![k as u8; spec.value_size as usize], 0));
        }
    }
    // What was proved: dead slots that are no instruction are replaced in it.
    let proved = Program { insns: proof.insns().to_vec(), ..program.clone() };
    let linked = xway_vm::Program::link_plain(&proved, instance.maps()).expect("what is accepted can be linked");
    let (guard, host, timers) = (Guard::pin(), FixedHost::new(1), Timers::default());
    let checker = Checker::new(&proof, &linked);
    {
        let mut env = Env::new(&guard, &host, 1).with_budget(100_000).with_timers(&timers).with_tracer(&checker);
        for packet in packets {
            let mut frame = pool.alloc().expect("one packet at a time");
            frame.chunk_mut().fill(0);
            frame.fill(packet).expect("packets are short");
            frame.set_ingress(1, 0);
            checker.begin();
            let out = xway_vm::run(&linked, &mut frame, &mut env);
            let moved = frame.packet().len() != packet.len();
            pool.release(frame);
            match out.fault.as_ref().map(|f| &f.kind) {
                Some(FaultKind::Budget(_)) => break,
                Some(_) => return Answer::Wrong(format!("a fault: {}", out.fault.expect("there is one"))),
                None => {}
            }
            let facts = proof.facts();
            let said = facts.verdicts.as_ref().filter(|_| !facts.tail_calls);
            if said.is_some_and(|v| !v.iter().any(|v| *v as u64 == u64::from(out.ret as u32))) {
                return Answer::Wrong(format!("returns {:#x}, said to be one of {said:?}", out.ret));
            }
            if moved && !facts.packet_moved {
                return Answer::Wrong("the packet was moved".into());
            }
        }
    }
    match checker.outcome() {
        (Some(wrong), _) => Answer::Wrong(wrong),
        (None, steps) => Answer::Held(steps),
    }
}

fn listing(program: &Program) -> String {
    xway_isa::listing(&program.insns, &xway_isa::NoNames).unwrap_or_else(|e| e.to_string())
}

fn packets() -> Vec<Vec<u8>> {
    let shapes = mixed_set().into_iter().map(|n| n.bytes).filter(|b| (14..=1500).contains(&b.len()));
    let odd = [14usize, 15, 20, 34, 35, 64, 100, 300].map(|n| (0..n).map(|i| (i as u8).wrapping_mul(37)).collect());
    shapes.chain(odd).collect()
}

#[test]
fn facts_of_random_programs_hold() {
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(or);
    let (seed, programs) = (number("XWAY_SEED", 1), number("XWAY_PROGRAMS", 6000));
    let (world, packets) = (World::default(), packets());
    let mut pool = Pool::new(PoolConfig::new(1)).expect("packet memory");
    let mut rng = Rng::new(seed);
    let (mut held, mut steps) = (0u64, 0u64);
    for n in 0..programs {
        let own = rng.u64();
        let mut rng = Rng::new(own);
        let mut program = generate::grammar(&mut rng, &world);
        if rng.one_in(3) {
            generate::mutate(&mut rng, &mut program);
        }
        let some: Vec<_> = (0..4).map(|_| rng.pick(&packets).clone()).collect();
        match check(&world.object, &program, &mut pool, &some, 2000) {
            Answer::Refused => {}
            Answer::Held(n) => {
                held += 1;
                steps += n;
            }
            Answer::Wrong(why) => panic!("seed {seed}, program {n} ({own}): {why}\n{}", listing(&program)),
        }
    }
    println!("{held} of {programs} programs, {steps} steps");
    assert!(held > programs / 2, "{held}");
}

#[test]
fn facts_of_the_repository_s_programs_hold() {
    let needs = Needs::of("testkit::verifier_facts::facts_of_the_repository_s_programs_hold");
    if !needs.clang().met() {
        return;
    }
    let mut pool = Pool::new(PoolConfig::new(1)).expect("packet memory");
    let (mut held, mut steps) = (0, 0);
    let packets = packets();
    for dir in ["bpf/samples", "bpf/bench", "bpf/tests", "bpf/verifier-cases/false-refusals"] {
        let Ok(entries) = std::fs::read_dir(clang::repository().join(dir)) else { continue };
        for path in entries.map(|e| e.expect("readable").path()) {
            let name = path.display().to_string();
            if !name.ends_with(".bpf.c") {
                continue;
            }
            let Ok(bytes) = clang::compile_file(&path, &[]) else { continue };
            let Ok(mut object) = Object::parse(&bytes, &LoadOptions::default()) else { continue };
            let programs = std::mem::take(&mut object.programs);
            for map in &mut object.maps {
                if let xway_object::Initial::Slots(slots) = &mut map.initial {
                    slots.retain(|s| matches!(s.1, xway_object::SlotRef::Map(_)));
                }
            }
            let object = Arc::new(object);
            for program in programs.iter().filter(|p| !matches!(p.kind, ProgramKind::Other(_))) {
                match check(&object, program, &mut pool, &packets, 8_000_000) {
                    Answer::Refused => {}
                    Answer::Held(n) => {
                        held += 1;
                        steps += n;
                    }
                    Answer::Wrong(why) => panic!("{name}: {}: {why}\n{}", program.name, listing(program)),
                }
            }
        }
    }
    println!("{held} programs, {steps} steps");
    assert!(held >= 20, "{held}");
}
