//! A differential fuzzer: our verifier and interpreter against the running kernel's.
//!
//! `cargo run --release -p xway-testkit --example fuzz-kernel -- [--seed N] [--minutes N] [--count N] [--show N]`
//!
//! Three generators take turns: a grammar whose programs often verify, the same with one or two instructions changed, and
//! mutants of the objects named behind the options. A program that we accept is run in the checked interpreter over
//! several packets; a fault there, or a result that differs from the kernel's, is wrong and ends the run with 1.

mod generate;
mod oracle;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oracle::{Answer, Maps, ask, map_defs};
use xway_object::{LoadOptions, Object, Program};
use xway_testkit::Rng;

fn main() {
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|a| a.parse().ok()).expect("a number behind the option");
        match arg.as_str() {
            "--seed" => options.seed = number(),
            "--minutes" => options.time = Duration::from_secs(60 * number()),
            "--count" => options.count = number(),
            "--show" => options.show = number() as usize,
            path => options.objects.push(path.to_owned()),
        }
    }
    let tally = fuzz(&options);
    println!("{tally}");
    std::process::exit(i32::from(!tally.wrong.is_empty()));
}

/// What to do.
pub struct Options {
    /// Where the generator starts.
    pub seed: u64,
    /// Longest run.
    pub time: Duration,
    /// Most programs.
    pub count: u64,
    /// Differences of each kind that are printed in full.
    pub show: usize,
    /// Object files to make mutants of.
    pub objects: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options { seed: 1, time: Duration::from_secs(60), count: u64::MAX, show: 1, objects: Vec::new() }
    }
}

/// What came of it.
#[derive(Default)]
pub struct Tally {
    programs: u64,
    /// Accepted by both.
    pub both_accept: u64,
    both_refuse: u64,
    only_we: BTreeMap<String, u64>,
    only_kernel: BTreeMap<String, u64>,
    /// Faults and differing results, with their programs.
    pub wrong: Vec<String>,
    seconds: f64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = |m: &BTreeMap<String, u64>| m.values().sum::<u64>();
        writeln!(
            f,
            "{} programs in {:.1} s: both accept {}, both refuse {}, only we refuse {}, only the kernel refuses {}, wrong {}",
            self.programs,
            self.seconds,
            self.both_accept,
            self.both_refuse,
            sum(&self.only_we),
            sum(&self.only_kernel),
            self.wrong.len()
        )?;
        for (name, map) in [("only we refuse", &self.only_we), ("only the kernel refuses", &self.only_kernel)] {
            let mut rows: Vec<_> = map.iter().collect();
            rows.sort_by_key(|r| std::cmp::Reverse(r.1));
            for (reason, n) in rows.iter().take(25) {
                writeln!(f, "  {name}: {n} x {reason}")?;
            }
        }
        for w in self.wrong.iter().take(3) {
            writeln!(f, "WRONG: {w}")?;
        }
        Ok(())
    }
}

/// Runs until time or count is used up, or something is wrong three times.
pub fn fuzz(options: &Options) -> Tally {
    let started = Instant::now();
    let mut rng = Rng::new(options.seed);
    let mut tally = Tally::default();
    let maps = Maps::new(map_defs()).expect("maps in the kernel");
    let real = real_programs(&options.objects);
    while tally.programs < options.count && started.elapsed() < options.time && tally.wrong.len() < 3 {
        tally.programs += 1;
        let kind = rng.below(if real.is_empty() { 3 } else { 4 });
        if kind == 3 {
            let (program, maps) = rng.pick(&real);
            let mut mutant = program.clone();
            generate::mutate(&mut rng, &mut mutant.insns);
            let answer = ask(&mutant, maps, false);
            note(&mut tally, answer, &mutant, options.show);
            continue;
        }
        let generated = generate::grammar(&mut rng);
        let insns = xway_isa::assemble(&generated.text).unwrap_or_else(|e| panic!("{e}\n{}", generated.text));
        let mut program = Program { name: "fuzz".into(), section: "xdp".into(), insns, ..Program::default() };
        let changed = kind == 2;
        if changed {
            generate::mutate(&mut rng, &mut program.insns);
        }
        let answer = ask(&program, &maps, generated.comparable && !changed);
        note(&mut tally, answer, &program, options.show);
    }
    tally.seconds = started.elapsed().as_secs_f64();
    tally
}

/// Programs of object files whose maps can be made plainly.
fn real_programs(paths: &[String]) -> Vec<(Program, Maps)> {
    let mut out = Vec::new();
    for path in paths {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let Ok(object) = Object::parse(&bytes, &LoadOptions::default()) else { continue };
        for program in object.programs {
            let Ok(maps) = Maps::new(object.maps.clone()) else { continue };
            // Without types and lines, so that both see the same bare program.
            out.push((Program { line_info: Vec::new(), ..program }, maps));
        }
    }
    out
}

fn note(tally: &mut Tally, answer: Answer, program: &Program, show: usize) {
    let listing = || xway_isa::listing(&program.insns, &xway_isa::NoNames).unwrap_or_else(|e| e.to_string());
    // Numbers out of the reasons, so that equal ones are counted together.
    let class = |s: &str| s.split(|c: char| c.is_ascii_digit()).filter(|p| !p.is_empty()).collect::<Vec<_>>().join("#");
    match answer {
        Answer::BothAccept => tally.both_accept += 1,
        Answer::BothRefuse => tally.both_refuse += 1,
        Answer::OnlyWeRefuse(why) => {
            let n = tally.only_we.entry(class(&why)).or_default();
            *n += 1;
            if *n <= show as u64 {
                println!("--- only we refuse: {why}\n{}", listing());
            }
        }
        Answer::OnlyKernelRefuses(why) => {
            let n = tally.only_kernel.entry(class(&why)).or_default();
            *n += 1;
            if *n <= show as u64 {
                println!("--- only the kernel refuses: {why}\n{}", listing());
            }
        }
        Answer::Wrong(why) => tally.wrong.push(format!("{why}\n{}", listing())),
    }
}
