//! Atomics, calls, clocks, system calls: what one core does by itself.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{Cost, came_to, empty_turn, ns_each, tsc};
use crate::flows::Rng;
use crate::measure::MeasureError;

type Step = fn(u64) -> u64;

/// Functions that differ, so that none is folded into another.
macro_rules! steps {
    ($($name:ident $factor:literal),*) => {
        $(#[inline(never)] fn $name(x: u64) -> u64 { black_box(x).wrapping_mul($factor) })*
        const STEPS: [Step; 8] = [$($name),*];
    };
}
steps!(step_0 3, step_1 5, step_2 7, step_3 9, step_4 11, step_5 13, step_6 15, step_7 17);

pub(super) fn costs() -> Result<Vec<Cost>, MeasureError> {
    let turn = empty_turn();
    let net = |what: &mut dyn FnMut() -> f64| (what() - turn).max(0.0);
    let mut all = Vec::new();
    let word = AtomicU64::new(0);
    let mut times = 0u64;
    let add = net(&mut || {
        ns_each(|| {
            word.fetch_add(1, Ordering::Relaxed);
            times += 1;
        })
    });
    came_to("atomic additions of 1", &times, &word.load(Ordering::Relaxed))?;
    all.push(Cost::new("atomics", "add", add));
    let swap = net(&mut || {
        let mut seen = word.load(Ordering::Relaxed);
        ns_each(|| match word.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => (seen, times) = (seen + 1, times + 1),
            Err(now) => seen = now,
        })
    });
    came_to("exchanges by one more", &times, &word.load(Ordering::Relaxed))?;
    all.push(Cost::new("atomics", "compare and swap", swap));
    all.extend(calls(turn)?);
    all.push(Cost::new(
        "clocks",
        "Instant::now (clock_gettime)",
        net(&mut || ns_each(|| _ = black_box(Instant::now()))),
    ));
    all.push(match tsc::available() {
        true => Cost::new("clocks", "rdtsc", net(&mut || ns_each(|| _ = black_box(tsc::read())))),
        false => Cost::missing("clocks", "rdtsc", "this processor has none"),
    });
    let syscall = net(&mut || ns_each(|| _ = black_box(rustix::process::getppid())));
    all.push(Cost::new("system calls", "getppid", syscall));
    Ok(all)
}

/// For the head of other reports.
pub(super) fn short() -> Vec<Cost> {
    let turn = empty_turn();
    let word = AtomicU64::new(0);
    let net = |name: &'static str, what: &mut dyn FnMut()| {
        // Nothing costs nothing; what cannot be told from it is shown as the least that is shown.
        Cost::new("short", name, (ns_each(what) - turn).max(0.1))
    };
    vec![
        net("atomic add", &mut || _ = word.fetch_add(1, Ordering::Relaxed)),
        net("clock", &mut || _ = black_box(Instant::now())),
        net("system call", &mut || _ = black_box(rustix::process::getppid())),
    ]
}

fn calls(turn: f64) -> Result<Vec<Cost>, MeasureError> {
    const LEN: usize = 4096;
    let mut x = 1;
    // Measured over a table of targets, so that only the order of targets differs between the two.
    let mut through = |table: &[Step]| {
        let each = ns_each(|| {
            for step in table {
                x = step(x);
            }
        });
        each / LEN as f64
    };
    let same = vec![black_box(STEPS[0]); LEN];
    let mut rng = Rng(3);
    let random: Vec<Step> = (0..LEN * 16).map(|_| STEPS[rng.below(8) as usize]).collect();
    let predictable = through(&same);
    let mispredicted = through(&random) / 16.0;
    let mut y = 1;
    let mut threes = 1u64;
    let direct = ns_each(|| (y, threes) = (step_0(y), threes.wrapping_mul(3)));
    came_to("what was called", &threes, &y)?;
    black_box(x);
    Ok(vec![
        Cost::new("calls", "direct call", (direct - turn).max(0.0)),
        Cost::new("calls", "indirect call, always the same target", predictable),
        Cost::new("calls", "indirect call, eight targets at random", mispredicted)
            .noted("seven in eight are predicted wrong at best"),
    ])
}
