//! What the process holds, and that it does not grow.
//!
//! Two numbers, because each alone can hide something: bytes that the allocator has given out, which are ours to the last one but
//! leave out packet memory and machine code; and resident memory, which has all of it but moves with what the allocator and
//! the kernel keep. Each is looked at once a second. The first third of a run is for warming up; then the median of its last third must
//! be that of the middle one.

use std::time::{Duration, Instant};

use crate::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Bytes given out now. Of what was removed from maps under readers nothing is left over.
pub fn held() -> i64 {
    // Each turn of the epoch frees some of it.
    (0..1000).for_each(|_| drop(xway_maps::Guard::pin()));
    ALLOCATOR.now() as i64
}

/// How the two numbers went.
pub struct Memory {
    next: Instant,
    /// Seconds, KiB given out, KiB resident.
    seen: Vec<(f64, u64, u64)>,
    started: Instant,
    every: Duration,
}

/// Growth from the middle third of the run to its last, KiB.
#[derive(Debug)]
pub struct Growth {
    pub given_out: i64,
    pub resident: i64,
}

impl Memory {
    /// Of a run of this length.
    pub fn watch(length: Duration) -> Memory {
        let now = Instant::now();
        Memory { next: now, seen: Vec::new(), started: now, every: (length / 30).min(Duration::from_secs(1)) }
    }

    /// Looks, if it is time.
    pub fn look(&mut self) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + self.every;
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            let resident = statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4;
            self.seen.push((self.started.elapsed().as_secs_f64(), ALLOCATOR.now() as u64 >> 10, resident));
        }
    }

    /// The end of the run.
    pub fn growth(&self) -> Growth {
        let end = self.seen.last().expect("a run looks at least once");
        let third = |from: f64, pick: fn(&(f64, u64, u64)) -> u64| {
            let mut numbers: Vec<u64> =
                self.seen.iter().filter(|at| (from..=from + end.0 / 3.0).contains(&at.0)).map(pick).collect();
            numbers.sort_unstable();
            numbers.get(numbers.len() / 2).copied().unwrap_or_default() as i64
        };
        let growth = |pick| third(end.0 * 2.0 / 3.0, pick) - third(end.0 / 3.0, pick);
        Growth { given_out: growth(|at| at.1), resident: growth(|at| at.2) }
    }

    /// A line for each tenth of the run.
    pub fn print(&self) {
        for (seconds, given_out, resident) in self.seen.iter().step_by(self.seen.len().div_ceil(10).max(1)) {
            println!("{seconds:6.1} s: {given_out} KiB given out, {resident} KiB resident");
        }
    }
}
