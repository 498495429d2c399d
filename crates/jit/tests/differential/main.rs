//! Compiled code against the interpreter: same verdicts, same bytes, same map contents, in every form of the code.
//!
//! The kernel is held against both elsewhere: random programs of this very generator by `fuzz-kernel` (`crates/testkit/examples`; the
//! kernel's test-run beside the interpreter, and single-packet and burst code beside that; a part of `make test` where root and Linux
//! 6.18 are), the samples, the tests' programs and xdp-tools by `crates/testkit/tests/differential`.

mod engines;
mod fields;
mod helpers;
mod mixes;
mod pointers;
mod text;
mod waits;
// The fuzzer against the kernel has the generator; what it needs lies beside it.
#[path = "../../../testkit/examples/fuzz-kernel/generate/mod.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../../../testkit/examples/fuzz-kernel/repeatable.rs"]
mod repeatable;
#[path = "../../../testkit/examples/fuzz-kernel/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engines::{Outcome, compare_random};
use world::World;
use xway_object::Object;
use xway_testkit::Rng;

fn packets() -> Vec<Vec<u8>> {
    [14usize, 15, 34, 60, 64, 100, 300]
        .iter()
        .map(|n| (0..*n).map(|i| (i as u8).wrapping_mul(37).wrapping_add(*n as u8)).collect())
        .collect()
}

/// How many of each there were.
#[derive(Default, Debug)]
struct Tally {
    same: u32,
    unverified: u32,
    /// What they do depends on where memory lies, on time or on chance.
    apart: u32,
    not_compiled: BTreeMap<String, u32>,
}

#[test]
fn random_accepted_programs() {
    let (seed, count, time) = (number("XWAY_SEED", 1), 4000, Duration::from_secs(number("XWAY_SECONDS", 20)));
    let started = Instant::now();
    let mut rng = Rng::new(seed);
    let world = World::default();
    let mut tally = Tally::default();
    for _ in 0..count {
        // On a machine that is busy with other things: until there is something to judge by.
        if started.elapsed() > time && tally.same > 100 {
            break;
        }
        let mut program = generate::grammar(&mut rng, &world);
        if rng.below(3) == 0 {
            generate::mutate(&mut rng, &mut program);
        }
        let listing = xway_isa::listing(&program.insns, &xway_isa::NoNames).unwrap_or_else(|e| e.to_string());
        let object = Object { programs: vec![program], ..(*world.object).clone() };
        let prepare = |instance: &xway_vm::Instance| {
            for k in 0..4u64 {
                let value: Vec<u8> = (0..48u8).map(|i| i.wrapping_mul(7).wrapping_add(k as u8)).collect();
                instance.maps()[1].update(&k.to_ne_bytes(), &value, 0).expect("room");
            }
        };
        match compare_random(&Arc::new(object), 0, &packets(), &prepare) {
            Outcome::Same => tally.same += 1,
            Outcome::Unverified => tally.unverified += 1,
            Outcome::Apart => tally.apart += 1,
            Outcome::NotCompiled(why) => *tally.not_compiled.entry(why).or_default() += 1,
            Outcome::Differs(how) => panic!("seed {seed}: {how}\n{listing}"),
        }
    }
    println!("{tally:?}");
    // There is a reason for these on this machine alone.
    tally.not_compiled.retain(|why, _| !(cfg!(target_arch = "aarch64") && why.contains("may be unaligned")));
    assert!(tally.same > 100, "{tally:?}");
    assert!(tally.not_compiled.is_empty(), "{tally:?}");
}

/// A number from the environment, else always the same.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(otherwise)
}
