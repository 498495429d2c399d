//! Compiled code against the interpreter: same verdicts, same bytes, same map contents, in every form of the code.

mod engines;
#[allow(dead_code)]
mod generate;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engines::{Outcome, compare, computes_with_pointers};
use xway_abi::{MapSpec, MapType};
use xway_object::{MapDef, Object, Program};
use xway_testkit::Rng;

/// The maps that generated programs use.
fn map_defs() -> Vec<MapDef> {
    vec![
        MapDef::new("array", MapSpec::new(MapType::Array, 4, 64, 4)),
        MapDef::new("hash", MapSpec::new(MapType::Hash, 8, 48, 8)),
        MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096)),
    ]
}

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
    /// Changed so that they compute with pointers.
    pointers: u32,
    not_compiled: BTreeMap<String, u32>,
}

#[test]
fn random_accepted_programs() {
    let (seed, count, time) = (seed(), 4000, Duration::from_secs(20));
    let started = Instant::now();
    let mut rng = Rng::new(seed);
    let mut tally = Tally::default();
    for _ in 0..count {
        if started.elapsed() > time {
            break;
        }
        let generated = generate::grammar(&mut rng);
        let insns = xway_isa::assemble(&generated.text).expect("the generator's own text");
        let mut program = Program { name: "fuzz".into(), section: "xdp".into(), insns, ..Program::default() };
        let changed = rng.below(3) == 0;
        if changed {
            generate::mutate(&mut rng, &mut program.insns);
        }
        let listing = xway_isa::listing(&program.insns, &xway_isa::NoNames).unwrap_or_else(|e| e.to_string());
        let object =
            Object { programs: vec![program], maps: map_defs(), license: Some("GPL".into()), ..Object::default() };
        let prepare = |instance: &xway_vm::Instance| {
            for k in 0..4u64 {
                let value: Vec<u8> = (0..48u8).map(|i| i.wrapping_mul(7).wrapping_add(k as u8)).collect();
                instance.maps()[1].update(&k.to_ne_bytes(), &value, 0).expect("room");
            }
        };
        let object = Arc::new(object);
        match compare(&object, 0, &packets(), &prepare) {
            Outcome::Same => tally.same += 1,
            Outcome::Unverified => tally.unverified += 1,
            Outcome::NotCompiled(why) => *tally.not_compiled.entry(why).or_default() += 1,
            Outcome::Differs(_) if changed && computes_with_pointers(&object, 0, &packets(), &prepare) => {
                tally.pointers += 1;
            }
            Outcome::Differs(how) => panic!("seed {seed}: {how}\n{listing}"),
        }
    }
    println!("{tally:?}");
    assert!(tally.same > 100 && tally.pointers < tally.same / 20, "{tally:?}");
    assert!(tally.not_compiled.is_empty(), "{tally:?}");
}

/// `XWAY_SEED`, else always the same.
fn seed() -> u64 {
    std::env::var("XWAY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}
