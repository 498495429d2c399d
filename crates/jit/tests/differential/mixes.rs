//! Programs of which the passes take much apart, over bursts of every length, with some passes and without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_jit::Options;
use xway_maps::{Map, SocketObject};
use xway_object::{Object, Program, ProgramKind};
use xway_testkit::Rng;
use xway_verifier::{Config, Kind, MapsView, verify};
use xway_vm::Instance;

use crate::engines::{Engine, NO_METADATA, Outcome, Traffic, Variants, compare_random_with, variants};
use crate::generate;
use crate::number;
use crate::world::{World, first_prefixes};

/// Burst lengths: one, fewer and more than are computed, looked ahead or fetched for together, and whatever is left over.
const COUNTS: [usize; 12] = [1, 2, 3, 4, 5, 7, 13, 31, 63, 64, 65, 300];
/// Packet lengths around the ends of headers, none at all, and more than a page's rest.
const LENGTHS: [usize; 20] = [0, 1, 13, 14, 15, 16, 17, 18, 20, 24, 33, 34, 38, 42, 53, 54, 60, 64, 100, 1500];

/// What stands in the second slot of the tail calls' array, of which this is the number: changes a byte, and goes on there or in the first,
/// as the byte says.
fn again(programs: usize) -> String {
    format!(
        "r6 = r1\nr7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr0 = 3\nr2 = r7\nr2 += 14\nif r2 > r8 goto out\n\
         r9 = *(u8 *)(r7 +3)\nr9 += 1\n*(u8 *)(r7 +3) = r9\nr2 = map[idx:{programs}]\nif r9 & 3 goto second\nr3 = 0\n\
         call 12\ngoto last\nsecond: r3 = 1\ncall 12\nlast: r0 = 1\nout: exit"
    )
}

/// Instructions that a verifier goes through in a program that is run.
const SHORT: u64 = 10_000;

fn config(budget: u64) -> Config {
    Config { budget, errors_max: 1, ..Config::default() }
}

/// What stands in a map of sockets.
struct Socket(u32);

impl SocketObject for Socket {
    fn id(&self) -> u64 {
        1
    }

    fn queue(&self) -> u32 {
        self.0
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

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

/// For each packet where its further buffers begin: of some bursts all, of some a few, and of those of many buffers seldom.
fn cuts(rng: &mut Rng, packets: &[Vec<u8>]) -> Vec<Vec<usize>> {
    let seldom = 1 + rng.below(4);
    let mut of = |packet: &Vec<u8>| {
        if packet.len() < 2 || !rng.one_in(seldom) {
            return vec![];
        }
        let count = *rng.pick(&[1, 1, 1, 2, 3, 16]);
        let mut cuts: Vec<usize> = (0..count).map(|_| 1 + rng.index(packet.len() - 1)).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    };
    packets.iter().map(&mut of).collect()
}

/// For each packet the bytes of metadata that it comes with: none in most bursts, in some as many before each, in others one has them and
/// the next has not.
fn metas(rng: &mut Rng, count: usize) -> Vec<usize> {
    const LENGTHS: [usize; 8] = [4, 4, 8, 12, 32, 212, NO_METADATA, NO_METADATA];
    match rng.below(6) {
        0 => vec![*rng.pick(&LENGTHS); count],
        1 | 2 => (0..count).map(|_| if rng.one_in(2) { 0 } else { *rng.pick(&LENGTHS) }).collect(),
        _ => vec![],
    }
}

/// One program, or several that are a chain too, and what it meets.
struct Case {
    object: Arc<Object>,
    /// What stands in the slots of the tail calls' array, now and then.
    others: Vec<Program>,
    /// The number of that array.
    programs_of: usize,
    packets: Vec<Vec<u8>>,
    cuts: Vec<Vec<usize>>,
    metas: Vec<usize>,
    burst: usize,
    off: Vec<&'static str>,
    engines: Variants,
    listing: String,
}

impl Case {
    fn new(rng: &mut Rng, world: &World) -> Case {
        // Links of a chain are of one kind.
        let frags = rng.one_in(6);
        let kind = ProgramKind::Xdp { frags };
        // What takes a verifier long is verified again for each engine, and in slots between bursts.
        let view = MapsView::from(&*world.object);
        let short = |program: &Program| match verify(program, &view, &config(SHORT)) {
            Err(refused) => refused.errors[0].kind != Kind::Budget,
            Ok(_) => true,
        };
        let like = |rng: &mut Rng| loop {
            let program = generate::mix(rng, world);
            if program.kind == kind && short(&program) {
                return program;
            }
        };
        let links = if rng.one_in(4) { 2 + rng.below(4) } else { 1 };
        let programs: Vec<Program> = (0..links).map(|_| like(rng)).collect();
        let listing = |p: &Program| xway_isa::listing(&p.insns, &xway_isa::NoNames).unwrap_or_else(|e| e.to_string());
        let listing = programs.iter().map(listing).collect::<Vec<_>>().join("\nnext link\n");
        let most = if rng.one_in(4) { COUNTS.len() } else { 8 };
        let count = *rng.pick(&COUNTS[..most]);
        let packets = packets(rng, count);
        let cuts = if frags { cuts(rng, &packets) } else { vec![] };
        let metas = metas(rng, count);
        let mut options = Options { check: true, cold: Some(rng.one_in(2)), ..Options::default() };
        options.stage_from = rng.one_in(2).then_some(0);
        options.jcc_erratum = Some(rng.one_in(2));
        let off: Vec<&str> = Options::PASSES.into_iter().filter(|_| rng.one_in(5)).collect();
        off.iter().for_each(|pass| assert!(options.set(pass, false), "{pass}"));
        // More programs in fewer engines find more; chains of several programs are there to be run.
        let mut engines = variants();
        engines.retain(|(_, e)| rng.one_in(3) || links > 1 && matches!(e, Engine::Chain(_)));
        engines.push(("burst code without some passes", Engine::Burst(options)));
        let programs_of = if frags { 29 } else { 7 };
        let again = Program { kind, section: programs[0].section.clone(), ..world.program(&again(programs_of), &[]) };
        let others = vec![like(rng), again, like(rng)];
        let burst = if rng.one_in(2) { 0 } else { 1 + rng.index(9) };
        let object = Arc::new(Object { programs, ..(*world.object).clone() });
        Case { object, others, programs_of, packets, cuts, metas, burst, off, engines, listing }
    }

    /// What maps hold before the first packet.
    fn prepare(&self, world: &World, instance: &Instance) {
        let maps = instance.maps();
        for k in 0..4u64 {
            maps[1].update(&k.to_ne_bytes(), &[k as u8 * 17; 48], 0).expect("room");
            if k < 2 {
                maps[14].update(&k.to_ne_bytes(), &[k as u8 * 19; 32], 0).expect("room");
            }
        }
        for trie in &maps[16..19] {
            for (key, value) in first_prefixes(trie.spec()) {
                trie.update(&key, &value, 0).expect("room");
            }
        }
        // Some slots hold something, and one of them a device that comes and goes.
        for key in [0u32, 2, 3] {
            let device = u64::from(key + 5).to_ne_bytes();
            maps[23].update(&key.to_ne_bytes(), &device, 0).expect("room");
            for plain in [24, 30] {
                maps[plain].update(&key.to_ne_bytes(), &device[..4], 0).expect("room");
            }
        }
        for cpus in [25, 32] {
            maps[cpus].update(&1u32.to_ne_bytes(), &64u32.to_ne_bytes(), 0).expect("room");
        }
        maps[26].set_socket(2, Arc::new(Socket(3))).expect("a slot");
        for (slot, _) in self.others.iter().enumerate().take(2) {
            self.enter(world, instance, slot as u32, slot);
        }
    }

    /// Puts one of the others into a slot.
    fn enter(&self, world: &World, instance: &Instance, slot: u32, other: usize) {
        let Some(image) = self.others.get(other) else { return };
        let view = MapsView::from(&*world.object);
        // What is refused stands in no slot.
        let Ok(program) = xway_vm::Program::verify(image, instance.maps(), &view, &config(SHORT)) else { return };
        instance.maps()[self.programs_of].set_program(slot, Some(program)).expect("room");
    }

    /// What becomes of slots between two bursts: programs and inner maps are exchanged and taken out.
    fn between(&self, world: &World, instance: &Instance, number: usize) {
        let maps = instance.maps();
        match number % 5 {
            0 => maps[self.programs_of].set_program(1, None).expect("a slot"),
            1 => self.enter(world, instance, 0, 2),
            2 => self.enter(world, instance, 0, 1),
            3 => self.enter(world, instance, 1, 0),
            _ => maps[self.programs_of].set_program(0, None).expect("a slot"),
        }
        let slot = (number % 4) as u32;
        for devices in [&maps[23], &maps[24], &maps[30]] {
            let device = [(number % 200) as u8 + 1, 0, 0, 0, 0, 0, 0, 0];
            let _ = match number.is_multiple_of(2) {
                true => devices.delete(&slot.to_ne_bytes()),
                false => devices.update(&slot.to_ne_bytes(), &device[..devices.user_value_size()], 0),
            };
        }
        // A slot of the others holds something, nothing, or another thing than before.
        let (slot_bytes, queue) = (slot.to_ne_bytes(), number as u32 % 7);
        for cpus in [&maps[25], &maps[32]] {
            let _ = match number % 3 {
                0 => cpus.delete(&slot_bytes),
                _ => cpus.update(&slot_bytes, &(64 + queue).to_ne_bytes(), 0),
            };
        }
        let _ = match number % 4 {
            0 => maps[26].delete(&slot_bytes),
            _ => maps[26].delete(&slot_bytes).and(maps[26].set_socket(slot, Arc::new(Socket(queue)))),
        };
        for outer in &maps[19..22] {
            if number.is_multiple_of(3) {
                let _ = outer.delete(&slot.to_ne_bytes());
                continue;
            }
            let template = outer.spec().inner.as_deref().expect("a map of maps");
            let inner = Map::create(template, &xway_maps::Env::with_cpus(2)).expect("memory");
            for key in 0..2u32 {
                inner.update(&key.to_ne_bytes(), &[number as u8 + 1; 16], 0).expect("room");
            }
            outer.set_inner(&slot.to_ne_bytes(), inner).expect("room");
        }
    }

    fn compare(&mut self, world: &World) -> Outcome {
        let engines = std::mem::take(&mut self.engines);
        let between = |instance: &Instance, number: usize| self.between(world, instance, number);
        let traffic = Traffic {
            packets: &self.packets,
            cuts: &self.cuts,
            metas: &self.metas,
            burst: self.burst,
            between: &between,
        };
        compare_random_with(&self.object, 0, traffic, &|instance| self.prepare(world, instance), engines)
    }
}

/// `XWAY_SEED` and `XWAY_SECONDS` for others and more of them; `XWAY_ABOUT` for those that are about one thing, by its number in the
/// generator.
#[test]
fn mixed_programs_over_bursts_of_every_length() {
    let (seed, time) = (number("XWAY_SEED", 1), Duration::from_secs(number("XWAY_SECONDS", 15)));
    let (mut rng, started, world) = (Rng::new(seed), Instant::now(), World::default());
    let (mut same, mut apart, mut unverified, mut round) = (0, 0, 0, 0u64);
    while same < 60 || started.elapsed() < time && (same < 400 || std::env::var_os("XWAY_SECONDS").is_some()) {
        round += 1;
        let mut case = Case::new(&mut rng, &world);
        let outcome = case.compare(&world);
        let Case { packets, burst, off, listing, .. } = case;
        match outcome {
            Outcome::Same => same += 1,
            Outcome::Unverified => unverified += 1,
            Outcome::Apart => apart += 1,
            Outcome::NotCompiled(why) => panic!("seed {seed}, {round}: {why}\n{listing}"),
            Outcome::Differs(how) => {
                let count = packets.len();
                panic!("seed {seed}, {round}, {count} packets in bursts of {burst}, without {off:?}: {how}\n{listing}")
            }
        }
    }
    println!("seed {seed}: {same} programs are the same everywhere, {apart} not compared, {unverified} not verified");
    assert!(same > unverified + apart, "most are for nothing: {apart} not compared, {unverified} not verified");
}
