//! Programs of which the passes take much apart, over bursts of every length, with some passes and without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_jit::Options;
use xway_object::Object;
use xway_testkit::Rng;
use xway_verifier::{Config, MapsView};

use crate::engines::{Engine, Outcome, compare_random_with, variants};
use crate::generate;
use crate::number;
use crate::world::World;

/// Burst lengths: one, fewer and more than are computed, looked ahead or fetched for together, and whatever is left over.
const COUNTS: [usize; 12] = [1, 2, 3, 4, 5, 7, 13, 31, 63, 64, 65, 300];
/// Packet lengths around the ends of headers, none at all, and more than a page's rest.
const LENGTHS: [usize; 20] = [0, 1, 13, 14, 15, 16, 17, 18, 20, 24, 33, 34, 38, 42, 53, 54, 60, 64, 100, 1500];

/// What stands in the second slot of the tail calls' array: changes a byte, and goes on there or in the first, as the byte says.
const AGAIN: &str = "r6 = r1\nr7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr0 = 3\nr2 = r7\nr2 += 14\nif r2 > r8 goto out\n\
                     r9 = *(u8 *)(r7 +3)\nr9 += 1\n*(u8 *)(r7 +3) = r9\nr2 = map[idx:7]\nif r9 & 3 goto second\nr3 = 0\n\
                     call 12\ngoto last\nsecond: r3 = 1\ncall 12\nlast: r0 = 1\nout: exit";

fn packets(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    // Some bursts are all of one length, and some hold few values, so that checks of them often hold.
    let same = rng.one_in(3).then(|| *rng.pick(&LENGTHS[3..]));
    let wild = rng.one_in(3);
    let mut packet = || {
        let len = same.unwrap_or_else(|| *rng.pick(&LENGTHS));
        let byte = |_| if wild || rng.one_in(6) { rng.u32() as u8 } else { *rng.pick(&[0, 1, 8, 0x45]) };
        (0..len).map(byte).collect()
    };
    (0..count).map(|_| packet()).collect()
}

/// `XWAY_SEED` and `XWAY_SECONDS` for others and more of them.
#[test]
fn mixed_programs_over_bursts_of_every_length() {
    let (seed, time) = (number("XWAY_SEED", 1), Duration::from_secs(number("XWAY_SECONDS", 15)));
    let (mut rng, started, world) = (Rng::new(seed), Instant::now(), World::default());
    let (mut same, mut apart, mut unverified, mut round) = (0, 0, 0, 0u64);
    while same < 100 || started.elapsed() < time && (same < 400 || std::env::var_os("XWAY_SECONDS").is_some()) {
        round += 1;
        let program = generate::mix(&mut rng, &world);
        let listing = xway_isa::listing(&program.insns, &xway_isa::NoNames).unwrap_or_else(|e| e.to_string());
        let object = Object { programs: vec![program], ..(*world.object).clone() };
        let most = if rng.one_in(4) { COUNTS.len() } else { 8 };
        let count = *rng.pick(&COUNTS[..most]);
        let packets = packets(&mut rng, count);
        let mut options = Options { check: true, cold: Some(rng.one_in(2)), ..Options::default() };
        options.stage_from = rng.one_in(2).then_some(0);
        let off: Vec<&str> = Options::PASSES.into_iter().filter(|_| rng.one_in(5)).collect();
        off.iter().for_each(|pass| assert!(options.set(pass, false), "{pass}"));
        let mut engines = variants();
        engines.push(("burst code without some passes", Engine::Burst(options)));
        let others = [generate::mix(&mut rng, &world), world.program(AGAIN, &[])];
        let prepare = |instance: &xway_vm::Instance| {
            for k in 0..4u64 {
                instance.maps()[1].update(&k.to_ne_bytes(), &[k as u8 * 17; 48], 0).expect("room");
            }
            for (slot, image) in others.iter().enumerate() {
                let view = MapsView::from(&*world.object);
                let other = xway_vm::Program::verify(image, instance.maps(), &view, &Config::default());
                instance.maps()[7].set_program(slot as u32, Some(other.expect("a proof"))).expect("room");
            }
        };
        match compare_random_with(&Arc::new(object), 0, &packets, &prepare, engines) {
            Outcome::Same => same += 1,
            Outcome::Unverified => unverified += 1,
            Outcome::Apart => apart += 1,
            Outcome::NotCompiled(why) => panic!("seed {seed}, {round}: {why}\n{listing}"),
            Outcome::Differs(how) => panic!("seed {seed}, {round}, {count} packets, without {off:?}: {how}\n{listing}"),
        }
    }
    println!("{same} programs are the same everywhere, {apart} not compared, {unverified} not verified");
    assert!(same > unverified + apart, "most are for nothing: {apart} not compared, {unverified} not verified");
}
