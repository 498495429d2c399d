//! A differential fuzzer: our verifier and interpreter against the running kernel's.
//!
//! `make fuzz-kernel MINUTES=n`, or
//! `cargo run --release -p xway-testkit --example fuzz-kernel -- [--seed N] [--minutes N] [--count N] [--show N]
//! [--mutants] [--mixes] [--read TEXT] [OBJECT…]`
//!
//! `--read ""` shows the programs that differ with both logs, whatever explains them; `--seed N --count 1 --read ""` one of them.
//!
//! Three generators take turns: a grammar whose programs often verify, the same with one or two instructions changed, and
//! mutants of the programs in the objects named behind the options (`--mutants`: nothing but these). `--mixes`: nothing but programs of
//! which a compiler takes much apart, which are long, and half of them compiled; with `XWAY_ABOUT=n` in the environment they are about one
//! thing, by its number in `generate/mixes`. A program that we
//! accept is run in the checked interpreter over many packets; a fault there, a result that differs from the kernel's
//! test run (verdict, packet, map contents), one that contradicts the facts of the proof, or machine code (an eighth of the
//! programs) that does something else than the interpreter is wrong: the run prints it and ends with 1 after the third.

pub mod classes;
pub mod compiled;
pub mod corpus;
pub mod evidence;
pub mod generate;
pub mod insert;
pub mod links;
pub mod oracle;
pub mod repeatable;
pub mod seen;
pub mod tally;
pub mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use corpus::{Packets, Real, real_programs};
use oracle::{Effort, Oracle, Place};
use tally::{Origin, Show, Tally};
use world::World;
use xway_object::{Object, Program, ProgramKind};
use xway_testkit::Rng;

fn main() {
    let mut options = Options::default();
    let mut paths = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|a| a.parse().ok()).expect("a number behind the option");
        match arg.as_str() {
            "--seed" => options.seed = number(),
            "--minutes" => options.time = Duration::from_secs(60 * number()),
            "--count" => options.count = number(),
            "--show" => options.show = number(),
            "--mutants" => options.only_mutants = true,
            "--mixes" => options.only_mixes = true,
            "--read" => options.read = args.next(),
            path => paths.push(path.to_owned()),
        }
    }
    options.objects = real_programs(&paths);
    let tally = fuzz(&options);
    println!("seed {}: {tally}", options.seed);
    std::process::exit(i32::from(!tally.wrong.is_empty()));
}

/// What to do.
pub struct Options {
    /// Where the generators start.
    pub seed: u64,
    /// Longest run.
    pub time: Duration,
    /// Most programs.
    pub count: u64,
    /// Unexplained differences of each class that are printed in full.
    pub show: u64,
    /// Differences whose words hold this are printed too, although their reason is known.
    pub read: Option<String>,
    /// Real programs to make mutants of.
    pub objects: Vec<Real>,
    /// Mutants alone.
    pub only_mutants: bool,
    /// Mixes alone.
    pub only_mixes: bool,
}

impl Default for Options {
    fn default() -> Self {
        let time = Duration::from_secs(60);
        Options {
            seed: 1,
            time,
            count: u64::MAX,
            show: 1,
            read: None,
            objects: Vec::new(),
            only_mutants: false,
            only_mixes: false,
        }
    }
}

/// Runs until time or count is used up, or something is wrong three times.
pub fn fuzz(options: &Options) -> Tally {
    xway_testkit::stay_on_this_cpu();
    let started = Instant::now();
    let mut rng = Rng::new(options.seed);
    let mut tally = Tally::default();
    let world = World::default();
    // Maps have fields that can be read, by the kernel's types.
    let object = Object { target: xway_kernel::vmlinux(), ..(*world.object).clone() };
    let place = Place::new(Arc::new(object)).expect("maps in the kernel");
    let packets = Packets::default();
    let mut oracle = Oracle::default();
    let real: Vec<(&Program, &Place)> =
        options.objects.iter().flat_map(|r| r.programs.iter().map(|p| (p, &r.place))).collect();
    let mut said = Instant::now();
    while tally.programs() < options.count && started.elapsed() < options.time && tally.wrong.len() < 3 {
        if said.elapsed() > Duration::from_secs(300) {
            said = Instant::now();
            eprintln!("seed {}: {} programs", options.seed, tally.programs());
        }
        // Each program has a seed of its own, which repeats it alone: `--seed N --count 1`.
        let seed = if tally.programs() == 0 { options.seed } else { rng.u64() };
        let mut own = Rng::new(seed);
        let (origin, program, place) = if options.only_mixes {
            (Origin::Grammar, generate::mix(&mut own, &world), &place)
        } else {
            make(&mut own, &world, &place, &real, options.only_mutants)
        };
        let alone = if origin == Origin::Mutant { 1000 } else { 40 };
        // What takes us a while takes the kernel seconds: few programs may, real ones what they need.
        let visits = match origin {
            Origin::Mutant => 400_000,
            _ if options.only_mixes => 15_000,
            _ if own.one_in(400) => 15_000,
            _ if own.one_in(6) => 1_500,
            _ => 150,
        };
        // Compiling costs more than all the rest: some programs, and over few packets.
        let compiled = own.one_in(if options.only_mixes { 2 } else { 8 });
        let effort = Effort { compared: 4, alone, visits, compiled, guess: seed % 2 == 0 };
        let several = program.kind == ProgramKind::Xdp { frags: true };
        let mut next = || packets.sent(&mut own, several);
        let answer = oracle.ask(&program, place, effort, &mut next);
        let listing = || {
            let bytes = || oracle::hex(&xway_isa::slots_to_bytes(&program.insns));
            let text =
                xway_isa::listing(&program.insns, &xway_isa::NoNames).unwrap_or_else(|e| format!("{e}\n{}\n", bytes()));
            // What is to be read is shown as both see it.
            let logs = if options.read.is_some() { place.logs(&program) } else { String::new() };
            format!("seed {seed}, {origin:?} of {}\n{text}{logs}", program.name)
        };
        let show = Show { each: options.show, read: options.read.as_deref() };
        tally.note(origin, seed, answer, &show, listing);
    }
    tally.compiled_runs = oracle.compiled_runs;
    tally.seconds = [started.elapsed(), oracle.ours, oracle.theirs].map(|d| d.as_secs_f64());
    tally
}

fn make<'p>(
    rng: &mut Rng,
    world: &World,
    place: &'p Place,
    real: &[(&Program, &'p Place)],
    only_mutants: bool,
) -> (Origin, Program, &'p Place) {
    // Real programs are long: a tenth of all would take most of the time otherwise.
    let mutant = rng.one_in(20);
    // A seed gives the same program whether there are objects or not, mutants excepted.
    let kind = if only_mutants || (mutant && !real.is_empty()) { 3 } else { rng.below(3) };
    if kind == 3 {
        let (program, place) = *rng.pick(real);
        let mut mutant = program.clone();
        generate::mutate(rng, &mut mutant);
        return (Origin::Mutant, mutant, place);
    }
    let mut program = generate::grammar(rng, world);
    if kind == 2 {
        generate::mutate(rng, &mut program);
        return (Origin::Changed, program, place);
    }
    (Origin::Grammar, program, place)
}
