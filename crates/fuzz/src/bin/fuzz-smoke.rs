//! `fuzz-smoke [SECONDS [SEED [TARGET…]]]`: each target for some seconds with seeded mutation.
//!
//! Prints what it did. A panic ends the run with exit code 1; the input that caused it is written to the current directory
//! and can be replayed with `fuzz-smoke --replay TARGET FILE`. With `XWAY_FUZZ_SLOW_MS` set, inputs that take as long as that
//! are written too. `fuzz-smoke --seeds TARGET DIR` writes the inputs to start from.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use xway_fuzz::{TARGETS, Target, mutate, target};
use xway_testkit::Rng;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, file] = &args[..]
        && flag == "--replay"
    {
        let input = std::fs::read(file).unwrap_or_else(|e| panic!("{file}: {e}"));
        let began = Instant::now();
        (target(name).run)(&input);
        println!("{name}: {file} does no harm ({:.1} ms)", began.elapsed().as_secs_f64() * 1e3);
        return ExitCode::SUCCESS;
    }
    if let [flag, name, dir] = &args[..]
        && flag == "--seeds"
    {
        return write_seeds(target(name), dir);
    }
    let number = |n: usize, default| args.get(n).map_or(default, |a| a.parse().expect("a number"));
    let (seconds, seed) = (number(0, 10), number(1, 1));
    let wanted = |t: &&Target| args.len() < 3 || args[2..].iter().any(|a| a == t.name);
    let clean = TARGETS.iter().filter(wanted).all(|t| smoke(t, Duration::from_secs(seconds), seed));
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one target; false when an input made it panic.
fn smoke(target: &Target, time: Duration, seed: u64) -> bool {
    let mut rng = Rng::new(seed);
    let mut pool = (target.seeds)();
    let seeds = pool.len();
    let slow = std::env::var("XWAY_FUZZ_SLOW_MS").ok().and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    let (start, mut runs, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
    while start.elapsed() < time {
        let (one, other) = (rng.index(pool.len()), rng.index(pool.len()));
        let input = mutate(&mut rng, &pool[one], &pool[other]);
        let began = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            report(target, seed, runs, &input);
            return false;
        }
        let took = began.elapsed();
        if slow.is_some_and(|limit| took >= limit) {
            save(target, "slow", seed, runs, &input);
        }
        slowest = slowest.max(took);
        runs += 1;
        // Mutants of mutants reach deeper; the pool stays small and keeps its seeds.
        if rng.one_in(64) {
            if pool.len() < seeds + 64 {
                pool.push(input);
            } else {
                let at = seeds + rng.index(64);
                pool[at] = input;
            }
        }
    }
    println!(
        "{}: {} inputs from {seeds} seeds in {:.1} s, slowest {:.1} ms ({}, seed {seed})",
        target.name,
        runs,
        start.elapsed().as_secs_f64(),
        slowest.as_secs_f64() * 1e3,
        target.what
    );
    true
}

fn report(target: &Target, seed: u64, runs: u64, input: &[u8]) {
    println!("{}: input {runs} of seed {seed} made it panic", target.name);
    let file = save(target, "panic", seed, runs, input);
    println!("replay with: cargo run -p xway-fuzz --bin fuzz-smoke -- --replay {} {file}", target.name);
}

/// Writes an input to the current directory and gives its name.
fn save(target: &Target, why: &str, seed: u64, runs: u64, input: &[u8]) -> String {
    let file = format!("fuzz-{}-{why}-{seed}-{runs}.bin", target.name);
    if let Err(e) = std::fs::write(&file, input) {
        eprintln!("{file}: {e}");
    }
    file
}

/// Writes a target's seeds into a directory, for other fuzzers.
fn write_seeds(target: &Target, dir: &str) -> ExitCode {
    for (n, seed) in (target.seeds)().iter().enumerate() {
        if let Err(e) = std::fs::write(format!("{dir}/seed-{n}"), seed) {
            eprintln!("{dir}: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
