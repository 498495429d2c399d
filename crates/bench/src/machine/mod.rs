//! What things cost on this machine: caches, copies, pages, atomics, locks, calls, clocks, system calls; alone and with a second
//! core that does the same.
//!
//! Each figure is the median of several samples, each sample long enough that reading the clock does not matter. A thing that
//! needs a second core is left out, by name, where there is none.

mod calls;
mod cores;
mod locks;
mod memory;
mod tsc;

use std::hint::black_box;
use std::time::Instant;

use crate::measure::{MeasureError, pin};

/// One line of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Cost {
    /// Which part of the table.
    pub group: &'static str,
    /// What it is.
    pub name: String,
    /// Nanoseconds; `None` when it could not be measured here.
    pub ns: Option<f64>,
    /// Why not, or what belongs to the figure.
    pub note: String,
}

impl Cost {
    fn new(group: &'static str, name: impl Into<String>, ns: f64) -> Cost {
        Cost { group, name: name.into(), ns: Some(ns), note: String::new() }
    }

    fn noted(self, note: impl Into<String>) -> Cost {
        Cost { note: note.into(), ..self }
    }

    fn missing(group: &'static str, name: &str, why: impl Into<String>) -> Cost {
        Cost { group, name: name.into(), ns: None, note: why.into() }
    }
}

/// The whole table, measured on `cpu` (and, where two cores are needed, on another one too). Takes some seconds.
///
/// # Errors
/// [`MeasureError::Pin`]; [`MeasureError::Wrong`] when memory does not hold what was written, or a count is not what was counted.
pub fn costs(cpu: u32) -> Result<Vec<Cost>, MeasureError> {
    pin(cpu)?;
    let mut all = memory::costs()?;
    all.extend(calls::costs()?);
    all.extend(locks::alone());
    let other = other_than(cpu);
    all.extend(locks::together(cpu, other)?);
    all.extend(cores::costs(cpu, other));
    Ok(all)
}

/// The handful of costs by which other figures are judged, for the head of every benchmark's report: a quarter of a second, on the
/// core that this thread runs on.
pub fn short() -> Vec<Cost> {
    let mut all = memory::short();
    all.extend(calls::short());
    all
}

/// [`short`] as one line.
pub fn short_line() -> String {
    let one = |cost: &Cost| format!("{} {:.1}", cost.name, cost.ns.unwrap_or_default());
    format!("this machine, ns: {}", short().iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Another core than this one.
fn other_than(cpu: u32) -> Option<u32> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    // `pin` has narrowed what is available to one core; the machine's own list says how many there are.
    (0..cpus.max(xway_kernel::possible_cpus())).find(|n| *n != cpu)
}

/// What was timed must have come to this.
fn came_to<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, got: &T) -> Result<(), MeasureError> {
    match expected == got {
        true => Ok(()),
        false => Err(MeasureError::Wrong(format!("{what}: expected {expected:?}, got {got:?}"))),
    }
}

/// Samples of which the median is taken.
const SAMPLES: usize = 9;
/// Length of a sample, ns.
const SAMPLE_NS: f64 = 2e6;

/// Nanoseconds that one call of `what` takes.
fn ns_each(mut what: impl FnMut()) -> f64 {
    let mut timed = |count: u64| {
        let start = Instant::now();
        for _ in 0..count {
            what();
        }
        start.elapsed().as_nanos() as f64
    };
    // Warm up, and find out how many make a sample.
    let mut count = 1;
    while timed(count) < SAMPLE_NS / 8.0 && count < 1 << 30 {
        count *= 2;
    }
    count = (count * 8).max(1);
    let mut samples: Vec<f64> = (0..SAMPLES).map(|_| timed(count) / count as f64).collect();
    samples.sort_unstable_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

/// What an empty turn of [`ns_each`] takes.
fn empty_turn() -> f64 {
    ns_each(|| {
        black_box(());
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_table_has_a_figure_in_every_place() {
        let short = short();
        assert!(short.len() >= 6 && short.iter().all(|c| c.ns.is_some_and(|ns| ns > 0.0)), "{short:?}");
        assert!(short_line().starts_with("this machine, ns: load L1 "));
    }

    #[test]
    fn a_wrong_result_is_an_error() {
        assert!(came_to("sum", &3, &3).is_ok());
        let wrong = came_to("sum", &3, &4).expect_err("it is another number").to_string();
        assert_eq!(wrong, "sum: expected 3, got 4");
    }

    #[test]
    fn every_line_has_a_figure_or_a_reason() {
        let all = costs(0).expect("CPU 0 exists");
        let has = |group| all.iter().any(|c| c.group == group);
        assert!(has("cache") && has("atomics") && has("calls") && has("clocks") && has("copies") && has("cores"));
        assert!(has("locks") && has("two cores") && has("pages"));
        for cost in &all {
            assert!(cost.ns.is_some_and(|ns| ns.is_finite() && ns >= 0.0) || !cost.note.is_empty(), "{cost:?}");
        }
    }
}
