//! Computations that wait for themselves, which the burst function puts off and makes for several packets at once: of every
//! length, with what goes into them and what stands in front of them at random, over bursts of 1 to 64 packets.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::{MapSpec, MapType};
use xway_jit::{Options, compile};
use xway_object::{MapDef, Object, Program};
use xway_testkit::Rng;
use xway_verifier::{Config, MapsView, verify};
use xway_vm::Instance;

use crate::engines::{Outcome, compare};

/// A step, most of which need the one before.
fn step(rng: &mut Rng) -> String {
    let (number, bits) = (rng.below(1 << 30) | 1, 1 + rng.below(31));
    match rng.below(14) {
        0 | 1 => format!("r0 *= {number}"),
        2 | 3 => format!("w0 *= {number}"),
        4 => format!("r0 ^= {number}"),
        5 => "w0 ^= w1".into(),
        6 => "r0 += r2".into(),
        7 => format!("r0 += {number}"),
        8 => "r3 = r0\nr3 >>= 29\nr0 ^= r3".into(),
        9 => format!("r3 = r0\nw3 <<= {bits}\nr0 -= r3"),
        10 => "r1 ^= r0".into(),
        11 => format!("r0 s>>= {bits}\nr0 ^= r2"),
        12 => "r0 = -r0".into(),
        _ => "r0 = bswap64 r0".into(),
    }
}

/// Packets that are too short, and those whose first byte is odd, have their verdict at once; some are counted before, and some
/// written to.
fn program(rng: &mut Rng) -> String {
    let mut text =
        "r9 = r1\nr6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 34\nr0 = 1\nif r2 > r7 goto out\n\
                    r8 = *(u8 *)(r6 +0)\nr8 &= 1\nr0 = 3\nif r8 == 1 goto out\n"
            .to_owned();
    if rng.one_in(2) {
        text += "*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto out\nr1 = 1\n\
                 lock *(u64 *)(r0 +0) += r1\n";
    }
    if rng.one_in(2) {
        text += "r1 = *(u8 *)(r6 +33)\nr1 += 1\n*(u8 *)(r6 +1) = r1\n";
    }
    text += "r0 = *(u64 *)(r6 +26)\nr1 = *(u32 *)(r6 +14)\nr2 = *(u16 *)(r6 +2)\n";
    if rng.one_in(3) {
        let turns = 16 + rng.below(48);
        let _ = writeln!(text, "r5 = 0\nagain: w0 ^= w5\nw0 *= 0x1e3779b1\nr5 += 1\nif r5 < {turns} goto again");
    } else {
        (0..20 + rng.below(120)).for_each(|_| text += &(step(rng) + "\n"));
    }
    // The last steps: a verdict, or a choice between two.
    text +=
        ["r0 &= 3\n", "r0 >>= 63\nr0 += 2\n", "r1 = r0\nr0 = 2\nif r1 s< 0 goto out\nr0 = 3\n"][rng.below(3) as usize];
    text + "out: exit"
}

fn packets(rng: &mut Rng) -> Vec<Vec<u8>> {
    let one = |rng: &mut Rng| {
        let len = if rng.one_in(6) { 20 } else { 34 + rng.below(40) };
        (0..len).map(|_| rng.below(256) as u8).collect()
    };
    (0..1 + rng.below(64)).map(|_| one(rng)).collect()
}

/// `XWAY_SEED` and `XWAY_SECONDS` for others and more of them.
#[test]
fn computations_that_are_put_off() {
    let (mut rng, started) = (Rng::new(crate::number("XWAY_SEED", 23)), Instant::now());
    let time = Duration::from_secs(crate::number("XWAY_SECONDS", 20));
    let (mut put_off, mut count) = (0, 0);
    // On a machine that is busy or emulated: until there is something to judge by.
    let more = std::env::var_os("XWAY_SECONDS").is_some();
    while count < 12 || started.elapsed() < time && (count < 60 || more) {
        count += 1;
        let text = program(&mut rng);
        let insns = xway_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let image = Program { name: "waits".into(), section: "xdp".into(), insns, ..Program::default() };
        let maps = vec![MapDef::new("counters", MapSpec::new(MapType::Array, 4, 8, 1))];
        let object = Arc::new(Object { programs: vec![image], maps, license: Some("GPL".into()), ..Object::default() });
        put_off += usize::from(is_put_off(&object));
        for _ in 0..3 {
            let packets = packets(&mut rng);
            match compare(&object, 0, &packets, &|_| {}) {
                Outcome::Same => {}
                Outcome::Unverified | Outcome::Apart => panic!("is refused, or runs for long\n{text}"),
                Outcome::NotCompiled(why) => panic!("{why}\n{text}"),
                Outcome::Differs(how) => panic!("{} packets: {how}\n{text}", packets.len()),
            }
        }
    }
    // Of the first twelve it is four.
    assert!(put_off > count / 4, "{put_off} of {count} are put off");
}

/// Whether the burst function has places for what is put off, beside its stack.
fn is_put_off(object: &Arc<Object>) -> bool {
    let instance = Instance::new(object.clone(), 1).expect("an instance");
    let proof = verify(&object.programs[0], &MapsView::from(&**object), &Config::default()).expect("a proof");
    let program = instance.link(&object.programs[0]).expect("links");
    let forms = |interleave| {
        let options = Options { keep_text: true, single: false, interleave, ..Options::default() };
        let code = compile(&program, &proof, &options).expect("compiles");
        code.texts().iter().any(|text| text.contains("ss1 = explicit_slot"))
    };
    assert!(!forms(false), "the pass is off");
    forms(true)
}
