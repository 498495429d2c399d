//! Memory fetched ahead for a burst: what a scout is, and that nobody sees it.
//!
//! Bursts of every length, in which flows come several times, through programs whose frames see what earlier frames did to
//! the maps: verdicts, bytes and map contents are those of the interpreter.
//!
//! `XWAY_BLESS=1 cargo test -p xway-jit --test staged` writes the golden files anew.

#[path = "../differential/engines.rs"]
mod engines;
mod functions;
#[allow(dead_code, unused_imports)] // Nothing is changed here.
#[path = "../../../testkit/examples/fuzz-kernel/generate/mod.rs"]
mod generate;
mod phases;
#[allow(dead_code)]
#[path = "../../../testkit/examples/fuzz-kernel/repeatable.rs"]
mod repeatable;
mod rounds;
#[path = "../../../testkit/examples/fuzz-kernel/world.rs"]
mod world;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engines::{Engine, Outcome, compare, compare_random, compare_with, variants};
use xway_abi::{MapSpec, MapType};
use xway_jit::{Options, compile};
use xway_object::{MapDef, Object, Program};
use xway_testkit::Rng;
use xway_verifier::{Config, Kind, MapsView, verify};
use xway_vm::Instance;

/// Packet into r6, its first 34 bytes checked, the context in r9.
const HEAD: &str =
    "r9 = r1\nr6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 34\nr0 = 0\nif r2 > r7 goto out\n";
/// The flow's eight bytes as a key at fp-8.
const KEY: &str = "r1 = *(u64 *)(r6 +26)\n*(u64 *)(r10 -8) = r1\n";

fn look_up(map: u32) -> String {
    format!("r2 = r10\nr2 += -8\nr1 = map[idx:{map}]\ncall 1\n")
}

fn object(text: &str, maps: Vec<MapDef>) -> Arc<Object> {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let program = Program { name: "staged".into(), section: "xdp".into(), insns, ..Program::default() };
    Arc::new(Object { programs: vec![program], maps, license: Some("GPL".into()), ..Object::default() })
}

/// A table of flows, counters by the flow's last byte, prefixes, and a table for each CPU.
fn maps(flows: MapType, room: u32) -> Vec<MapDef> {
    let trie = MapSpec { flags: xway_abi::map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 8, 8, 64) };
    vec![
        MapDef::new("flows", MapSpec::new(flows, 8, 8, room)),
        MapDef::new("counters", MapSpec::new(MapType::Array, 4, 8, 256)),
        MapDef::new("prefixes", trie),
        MapDef::new("own", MapSpec::new(MapType::PercpuHash, 8, 16, room)),
    ]
}

/// Enters a flow at its first packet, counts it, and takes it out at the fourth.
fn table() -> String {
    format!(
        "{HEAD}{KEY}{}if r0 == 0 goto miss\nr1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\nr0 = 2\nif r1 < 4 goto out\n\
         r2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 3\nr0 = 4\ngoto out\n\
         miss: *(u64 *)(r10 -16) = 1\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\nr1 = map[idx:0]\ncall 2\n\
         if r0 != 0 goto full\nr0 = 3\ngoto out\nfull: r0 = 1\nout: exit",
        look_up(0)
    )
}

/// Four maps in a row: what is pretended of one leads to the next, and some look-ups follow what the program wrote.
fn row() -> String {
    format!(
        "{HEAD}{KEY}{}if r0 == 0 goto next\nlock *(u64 *)(r0 +0) += r6\nr1 = 5\nr1 = 0\n*(u64 *)(r0 +0) = r1\n\
         next: r1 = *(u8 *)(r6 +29)\n*(u32 *)(r10 -24) = r1\nr2 = r10\nr2 += -24\nr1 = map[idx:1]\ncall 1\nif r0 == 0 goto out\n\
         r8 = *(u64 *)(r0 +0)\nr8 += 1\n*(u64 *)(r0 +0) = r8\n*(u8 *)(r6 +1) = r8\n\
         *(u32 *)(r10 -16) = 32\nr1 = *(u32 *)(r6 +26)\n*(u32 *)(r10 -12) = r1\nr2 = r10\nr2 += -16\nr1 = map[idx:2]\ncall 1\n\
         if r0 == 0 goto own\nr1 = *(u64 *)(r0 +0)\n*(u8 *)(r6 +2) = r1\n\
         own: *(u64 *)(r10 -8) = r8\n{}if r0 != 0 goto found\n\
         *(u64 *)(r10 -40) = 7\n*(u64 *)(r10 -48) = 9\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -48\nr4 = 0\nr1 = map[idx:3]\ncall 2\n\
         r0 = 3\ngoto out\nfound: r1 = *(u64 *)(r0 +8)\nr1 += 1\n*(u64 *)(r0 +8) = r1\nr0 = 2\nout: exit",
        look_up(0),
        look_up(3)
    )
}

/// Looks the address up in the trie before and after it has changed it: prefixes come, change and go in the middle of a burst.
fn routes() -> String {
    let ask = "*(u32 *)(r10 -8) = 32\nr1 = *(u32 *)(r6 +26)\n*(u32 *)(r10 -4) = r1\n\
               r2 = r10\nr2 += -8\nr1 = map[idx:2]\ncall 1\n";
    format!(
        "{HEAD}{ask}r8 = 0\nif r0 == 0 goto none\nr8 = *(u64 *)(r0 +0)\nr8 += 1\n*(u64 *)(r0 +0) = r8\n\
         none: r1 = *(u8 *)(r6 +33)\nr3 = r1\nr3 &= 3\nif r3 == 1 goto again\nr3 = r1\nr3 &= 15\nr3 += 8\n*(u32 *)(r10 -8) = r3\n\
         if r8 s> 2 goto delete\n*(u64 *)(r10 -16) = r1\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\nr1 = map[idx:2]\n\
         call 2\ngoto again\n\
         delete: r2 = r10\nr2 += -8\nr1 = map[idx:2]\ncall 3\n\
         again: {ask}if r0 == 0 goto out\nr0 = *(u64 *)(r0 +0)\nr0 <<= 4\nr0 += r8\nr0 &= 0xff\nout: exit"
    )
}

/// Counts by an atomic of four bytes, whose old value has no upper half: what the register held before would lead far away.
fn ticket() -> String {
    format!(
        "{HEAD}r8 = *(u64 *)(r6 +26)\nr1 = *(u8 *)(r6 +29)\n*(u32 *)(r10 -16) = r1\nr2 = r10\nr2 += -16\nr1 = map[idx:1]\n\
         call 1\nif r0 == 0 goto out\nr8 = atomic_fetch_add((u32 *)(r0 +0), r8)\nr8 >>= 29\nr0 += r8\n\
         r1 = *(u8 *)(r0 +0)\n*(u64 *)(r10 -8) = r1\n{}if r0 == 0 goto out\nr0 = 2\nout: exit",
        look_up(0)
    )
}

/// Looks up in an array by a key on the stack that is a constant, and asks nothing; or by one that others write, and asks.
fn sure() -> String {
    let value = "*(u32 *)(r10 -24) = 5\nr2 = r10\nr2 += -24\nr1 = map[idx:1]\ncall 1\n";
    format!(
        "{HEAD}r8 = *(u8 *)(r6 +26)\nr8 &= 1\n*(u32 *)(r10 -16) = 3\nr2 = r10\nr2 += -16\nif r8 != 0 goto shared\nr8 = 0\ngoto look\n\
         shared: {value}r2 = r0\nr8 = 1\nlook: r1 = map[idx:1]\ncall 1\nif r8 == 0 goto sure\nif r0 == 0 goto out\n\
         sure: r1 = *(u64 *)(r0 +0)\n*(u64 *)(r10 -8) = r1\n{}if r0 == 0 goto out\nr0 = 2\nout: exit",
        look_up(0)
    )
}

/// Looks up in an array by one of two keys on the stack. Where it is the constant one the proof knows of a value, and that what a
/// miss leads to is never reached with a number in r7.
fn apart() -> String {
    format!(
        "{HEAD}r8 = *(u8 *)(r6 +26)\nr8 &= 1\n*(u32 *)(r10 -16) = 3\nr1 = *(u8 *)(r6 +27)\nr1 <<= 4\n*(u32 *)(r10 -24) = r1\n\
         r2 = r10\nif r8 == 0 goto three\nr2 += -24\nr7 = r6\ngoto look\nthree: r2 += -16\nr7 = 0\n\
         look: r1 = map[idx:1]\ncall 1\nif r0 == 0 goto miss\nr0 = 2\nexit\n\
         miss: r1 = *(u64 *)(r7 +26)\n*(u64 *)(r10 -8) = r1\n{}if r0 == 0 goto out\nr0 = 3\nout: exit",
        look_up(0)
    )
}

/// So many packets of a few flows, some of them too short.
fn packets(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let flows = 1 + rng.below(12);
    let one = |rng: &mut Rng| {
        let flow = rng.below(flows) as u8;
        let len = if rng.one_in(8) { 14 + rng.below(20) as usize } else { 34 + rng.below(60) as usize };
        let mut packet: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31)).collect();
        packet.iter_mut().skip(26).take(8).enumerate().for_each(|(n, byte)| *byte = flow.wrapping_mul(n as u8 + 1));
        packet
    };
    (0..count).map(|_| one(rng)).collect()
}

fn fill(instance: &Instance) {
    for (n, len) in [8u8, 16, 24, 32].into_iter().enumerate() {
        let key = [u32::from(len).to_ne_bytes(), [0, 1, 2, 3]].concat();
        let map = instance.maps().iter().find(|m| m.map_type() == MapType::LpmTrie);
        map.expect("a trie").update(&key, &[n as u8 + 1; 8], 0).expect("room");
    }
}

#[test]
fn bursts_of_every_length_with_flows_that_come_again() {
    let mut rng = Rng::new(7);
    // LRU tables have room for all flows here: which one goes is nobody's promise.
    let kinds = [(MapType::Hash, 8), (MapType::Hash, 64), (MapType::LruHash, 64), (MapType::PercpuHash, 8)];
    let few = &kinds[..1];
    let programs = [table(), row(), routes(), ticket(), sure(), apart()];
    for (text, kinds) in programs.into_iter().zip([&kinds[..], &kinds[..3], few, few, few, few]) {
        for (kind, room) in kinds {
            let object = object(&text, maps(*kind, *room));
            for count in (1..=64).filter(|n| n % 3 == 1 || *n > 60) {
                let outcome = compare(&object, 0, &packets(&mut rng, count), &fill);
                assert_same(outcome, &format!("{kind:?} {room}, {count} packets"), &text);
            }
        }
    }
}

/// All engines came to the same over the packets that `what` names.
fn assert_same(outcome: Outcome, what: &str, text: &str) {
    match outcome {
        Outcome::Same => {}
        Outcome::Unverified | Outcome::Apart => panic!("{text}\nis refused, or runs for long"),
        Outcome::NotCompiled(why) => panic!("{why}\n{text}"),
        Outcome::Differs(how) => panic!("{what}: {how}\n{text}"),
    }
}

#[test]
fn random_programs_over_long_bursts() {
    let mut rng = Rng::new(11);
    let world = world::World::default();
    let put = |instance: &Instance| {
        for k in 0..4u64 {
            instance.maps()[1].update(&k.to_ne_bytes(), &[k as u8; 48], 0).expect("room");
        }
    };
    let mut same = 0;
    while same < 60 {
        let program = generate::grammar(&mut rng, &world);
        let object = Arc::new(Object { programs: vec![program], ..(*world.object).clone() });
        let count = 1 + rng.below(64) as usize;
        match compare_random(&object, 0, &packets(&mut rng, count), &put) {
            Outcome::Same => same += 1,
            Outcome::Unverified | Outcome::Apart => {}
            Outcome::NotCompiled(why) | Outcome::Differs(why) => panic!("{why}"),
        }
    }
}

/// Look-ups with changes between them, in bursts that meet what they have changed: verdicts, bytes, and what maps and inner maps
/// hold. `XWAY_SEED` and `XWAY_SECONDS` for others and more of them.
#[test]
fn random_programs_in_phases() {
    let (seed, time) = (number("XWAY_SEED", 1), Duration::from_secs(number("XWAY_SECONDS", 10)));
    let (mut rng, started) = (Rng::new(seed), Instant::now());
    let (mut same, mut staged, mut long, mut round) = (0, 0, 0, 0u64);
    while same < 30 || started.elapsed() < time && (same < 150 || std::env::var_os("XWAY_SECONDS").is_some()) {
        round += 1;
        let case = phases::case(&mut rng);
        let object = phases::object(&case);
        if too_long(&object) {
            long += 1;
            continue;
        }
        staged += usize::from(is_staged(&object, &case.text));
        let count = 1 + rng.below(64) as usize;
        let packets = phases::packets(&mut rng, count);
        // Beside the usual engines, one in which some passes are off.
        let mut options = Options { check: true, stage_from: Some(0), cold: Some(rng.one_in(2)), ..Options::default() };
        let off: Vec<&str> = Options::PASSES.into_iter().filter(|_| rng.one_in(5)).collect();
        off.iter().for_each(|pass| assert!(options.set(pass, false), "{pass}"));
        let mut engines = variants();
        engines.push(("burst code without some passes", Engine::Burst(options)));
        match compare_with(&object, 0, &packets, &phases::fill, engines) {
            Outcome::Same => same += 1,
            Outcome::Unverified | Outcome::Apart => panic!("seed {seed}, {round}: runs for long\n{}", case.text),
            Outcome::NotCompiled(why) => panic!("seed {seed}, {round}: {why}\n{}", case.text),
            Outcome::Differs(how) => {
                panic!("seed {seed}, {round}, {count} packets, without {off:?}: {how}\n{}", case.text)
            }
        }
    }
    println!("{same} programs, {staged} of them staged; {long} others are analysed for long");
    assert!(10 * long <= same, "{long} beside {same} programs are analysed for long");
    assert!(2 * staged > same, "of {same} programs only {staged} are staged");
}

/// Whether the analysis of an object's program is given up: one in some twenty has loops that are walked turn by turn.
fn too_long(object: &Object) -> bool {
    let proof = verify(&object.programs[0], &MapsView::from(object), &Config::default());
    proof.is_err_and(|refused| refused.errors[0].kind == Kind::Budget)
}

/// Whether anything is looked up ahead for an object's program.
fn is_staged(object: &Arc<Object>, text: &str) -> bool {
    let instance = Instance::new(object.clone(), 2).expect("an instance");
    let proof = verify(&object.programs[0], &MapsView::from(&**object), &Config::default());
    let proof = proof.unwrap_or_else(|refusal| panic!("{refusal}\n{text}"));
    let program = instance.link(&object.programs[0]).expect("links");
    let code = compile(&program, &proof, &Options { stage_from: Some(0), ..Options::default() }).expect("compiles");
    code.staged().next().is_some()
}

/// A number from the environment, else always the same.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(otherwise)
}

/// What is left of these programs in a scout.
#[test]
fn scouts_are_as_written() {
    let cases = [
        ("table", table(), maps(MapType::Hash, 8)),
        ("row", row(), maps(MapType::LruHash, 64)),
        ("routes", routes(), maps(MapType::Hash, 8)),
        ("by-cpu", by_cpu(), maps_of(MapSpec::new(MapType::LruHash, 8, 8, 1))),
        ("ticket", ticket(), maps(MapType::Hash, 8)),
        ("apart", apart(), maps(MapType::Hash, 8)),
        ("options", rounds::options(), maps(MapType::Hash, 64)),
    ];
    for (name, text, maps) in cases {
        let object = object(&text, maps);
        let instance = Instance::new(object.clone(), 2).expect("an instance");
        let proof = verify(&object.programs[0], &MapsView::from(&*object), &Config::default()).expect("a proof");
        let program = instance.link(&object.programs[0]).expect("links");
        let options = Options { stage_from: Some(0), keep_text: true, ..Options::default() };
        let code = compile(&program, &proof, &options).expect("compiles");
        let scout = code.texts().iter().find(|t| t.contains("as a scout")).expect("a scout");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/staged/{name}.txt"));
        if std::env::var_os("XWAY_BLESS").is_some() {
            std::fs::write(&path, scout).expect("a golden file");
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(*scout, golden, "{}: XWAY_BLESS=1 writes it anew", path.display());
    }
}

/// On one of the ways to a look-up in an array the program knows that there is a value, and does not ask. A scout that passed over
/// it, as if there were none, would read at address zero.
#[test]
fn scouts_end_where_a_value_is_sure() {
    let object = object(&sure(), maps(MapType::Hash, 64));
    assert!(!is_staged(&object, &sure()), "nothing behind that look-up is a scout's");
    // With that way alone the look-up is an address, and the scout goes on.
    let text = format!(
        "{HEAD}*(u32 *)(r10 -16) = 3\nr2 = r10\nr2 += -16\nr1 = map[idx:1]\ncall 1\nr1 = *(u64 *)(r0 +0)\n\
         *(u64 *)(r10 -8) = r1\n{}if r0 == 0 goto out\nr0 = 2\nout: exit",
        look_up(0)
    );
    assert!(is_staged(&self::object(&text, maps(MapType::Hash, 64)), &text), "{text}");
}

/// A loop that ends by what a call gives would not end where the call is left out, and there is one note for each place: where something is
/// fetched in a loop, scouts only go forward.
#[test]
fn scouts_do_not_go_round_where_they_fetch() {
    let text = format!(
        "{HEAD}r8 = 0\nagain: {KEY}{}if r0 == 0 goto next\nr1 = *(u64 *)(r0 +0)\n*(u32 *)(r10 -16) = r1\n\
         next: r8 += 1\nif r8 < 5 goto again\n{}r0 = 2\nout: exit",
        look_up(0),
        // What leads here is worth following, and the loop's last branch does.
        look_up(3)
    );
    let object = object(&text, maps(MapType::Hash, 64));
    let instance = Instance::new(object.clone(), 1).expect("an instance");
    let proof = verify(&object.programs[0], &MapsView::from(&*object), &Config::default()).expect("a proof");
    let program = instance.link(&object.programs[0]).expect("links");
    let options = Options { stage_from: Some(0), keep_text: true, ..Options::default() };
    let code = compile(&program, &proof, &options).expect("compiles");
    let scout = code.texts().iter().find(|t| t.contains("as a scout")).expect("a scout");
    // Blocks in front of which each stands, by the lines "n:" and "to n or m".
    let (mut block, mut edges) = (0, Vec::<(usize, usize)>::new());
    for line in scout.lines() {
        block = line.strip_suffix(':').and_then(|n| n.parse().ok()).unwrap_or(block);
        let to = line.rsplit_once("to ").map_or("", |(_, to)| to);
        edges.extend(to.split(" or ").filter_map(|n| Some((block, n.parse().ok()?))));
    }
    assert!(!edges.is_empty(), "{scout}");
    // Whoever can be left for nowhere is taken away, again and again: what stays goes round.
    while let Some((from, _)) = edges.iter().copied().find(|(_, to)| !edges.iter().any(|(from, _)| from == to)) {
        let last = edges.iter().position(|(f, to)| *f == from && !edges.iter().any(|(f, _)| f == to));
        edges.remove(last.expect("the edge that was found"));
    }
    assert_eq!(edges, [], "{scout}");
}

/// A scout takes zeros for what it has not read. It may not where the program knows better (nobody can change the value), nor where
/// there are fewer zeros than the value has bytes.
#[test]
fn what_cannot_be_zeros_is_not_pretended() {
    let text = format!(
        "{HEAD}r1 = *(u8 *)(r6 +30)\n*(u32 *)(r10 -8) = r1\n{}if r0 == 0 goto out\nr1 = *(u64 *)(r0 +0)\n\
         *(u64 *)(r10 -8) = r1\n{}if r0 == 0 goto out\nr0 = 2\nout: exit",
        look_up(0),
        look_up(1)
    );
    let scout = |value: u32, frozen: bool| {
        let values = MapSpec::new(MapType::Array, 4, value, 256);
        let flows = MapSpec::new(MapType::Hash, 8, 8, 64);
        let object = object(&text, vec![MapDef::new("values", values), MapDef::new("flows", flows)]);
        let instance = Instance::new(object.clone(), 1).expect("an instance");
        if frozen {
            instance.maps()[0].freeze().expect("it is an array");
        }
        let proof = verify(&object.programs[0], &MapsView::from(&*object), &Config::default()).expect("a proof");
        let program = instance.link(&object.programs[0]).expect("links");
        let options = Options { stage_from: Some(0), keep_text: true, ..Options::default() };
        let code = compile(&program, &proof, &options).expect("compiles");
        code.texts().iter().find(|t| t.contains("as a scout")).expect("a scout").clone()
    };
    let goes_on =
        |text: &str| text.contains("in values, then as if there were a value of zeros") && text.contains("in flows");
    assert!(goes_on(&scout(8, false)), "{}", scout(8, false));
    for (value, frozen) in [(8, true), (4104, false), (4104, true)] {
        let text = scout(value, frozen);
        assert!(!text.contains("as if there were a value"), "{value} bytes, frozen: {frozen}\n{text}");
    }
}

#[test]
fn only_maps_that_outgrow_the_cache_are_staged() {
    let staged = |room: u32, options: &Options| {
        let object = object(&table(), maps(MapType::Hash, room));
        let instance = Instance::new(object.clone(), 1).expect("an instance");
        let proof = verify(&object.programs[0], &MapsView::from(&*object), &Config::default()).expect("a proof");
        let program = instance.link(&object.programs[0]).expect("links");
        compile(&program, &proof, options).expect("compiles").staged().count()
    };
    let from = |from| Options { stage_from: Some(from), ..Options::default() };
    assert_eq!(staged(100, &from(1 << 20)), 0, "it never outgrows the cache");
    // The look-up; the update and the deletion come behind it, with the same key.
    assert_eq!(staged(100_000, &from(1 << 20)), 1);
    assert_eq!(staged(100_000, &Options { stage: false, ..from(0) }), 0);
    assert_eq!(staged(100_000, &Options { inline_lookups: false, ..from(0) }), 0);
}

/// A table for each CPU, as a map of maps: which of them it is the run finds out, and how large they are nobody knows before.
fn by_cpu() -> String {
    format!(
        "{HEAD}{KEY}call 8\n*(u32 *)(r10 -12) = r0\nr2 = r10\nr2 += -12\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto out\n\
         r8 = r0\nr1 = r0\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto miss\nlock *(u64 *)(r0 +0) += r6\nr0 = 2\ngoto out\n\
         miss: *(u64 *)(r10 -24) = 1\nr1 = r8\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -24\nr4 = 0\ncall 2\nr0 = 3\nout: exit"
    )
}

fn maps_of(inner: MapSpec) -> Vec<MapDef> {
    let of = MapSpec { inner: Some(Box::new(inner)), ..MapSpec::new(MapType::ArrayOfMaps, 4, 4, 4) };
    vec![MapDef::new("tables", of)]
}

/// Of inner tables any length may be put in; of arrays only the template's.
#[test]
fn inner_maps_that_may_outgrow_the_cache_are_staged() {
    let staged = |text: &str, inner: MapSpec| {
        let object = object(text, maps_of(inner));
        let instance = Instance::new(object.clone(), 1).expect("an instance");
        let proof = verify(&object.programs[0], &MapsView::from(&*object), &Config::default()).expect("a proof");
        let program = instance.link(&object.programs[0]).expect("links");
        let options = Options { stage_from: Some(1 << 20), ..Options::default() };
        compile(&program, &proof, &options).expect("compiles").staged().count()
    };
    assert_eq!(staged(&by_cpu(), MapSpec::new(MapType::LruHash, 8, 8, 1)), 1);
    let in_array = by_cpu().replace("r10 -8", "r10 -32").replace("r2 += -8", "r2 += -32");
    assert_eq!(staged(&in_array, MapSpec::new(MapType::Array, 4, 8, 100)), 0);
    assert_eq!(staged(&in_array, MapSpec::new(MapType::Array, 4, 8, 2 << 20)), 1);
}
