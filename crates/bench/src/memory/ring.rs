//! Rings: on one core, from core to core, many producers, and the standard library's channel beside them.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xway_packet::ring::{Entry, XdpDesc, frames, mpsc, spsc};
use xway_packet::{Burst, Pool, PoolConfig};

use super::{BULKS, Line, MemoryError, MemoryOptions, ended, other_cpus, timed};
use crate::measure::pin;

const ENTRIES: u32 = 1024;

/// The whole table. Takes some seconds.
///
/// # Errors
/// A core or memory is missing, or what arrived is not what was sent.
pub fn ring(options: &MemoryOptions) -> Result<Vec<Line>, MemoryError> {
    pin(options.cpu)?;
    let mut lines = Vec::new();
    for bulk in BULKS {
        lines.push(alone::<u64>("SPSC, addresses", bulk, options, |n| n, |n| n)?);
    }
    for bulk in BULKS {
        let make = |n| XdpDesc { addr: n, len: 64, options: 0 };
        lines.push(alone("SPSC, descriptors", bulk, options, make, |desc| desc.addr + u64::from(desc.len) - 64)?);
    }
    for bulk in BULKS {
        lines.push(alone_many(bulk, options)?);
    }
    for bulk in BULKS {
        lines.push(alone_frames(bulk, options)?);
    }
    lines.push(channel_alone(options)?);
    let cpus = other_cpus(options.cpu);
    let Some(&other) = cpus.first() else {
        lines.push(Line::missing("two cores", "SPSC, addresses", 1, "there is no second core"));
        return Ok(lines);
    };
    for bulk in [1, 2, 4, 8, 16, 32, 64] {
        lines.push(across(bulk, other, options)?);
    }
    for bulk in [1, 64] {
        lines.push(across_uncached(bulk, other, options)?);
    }
    for producers in [1, 2] {
        for bulk in [1, 64] {
            lines.push(across_many(bulk, producers, &cpus, options)?);
        }
    }
    lines.push(channel_across(other, options)?);
    Ok(lines)
}

/// In and out on one core.
fn alone<T: Entry>(
    name: &str,
    bulk: usize,
    options: &MemoryOptions,
    make: impl Fn(u64) -> T,
    number: impl Fn(T) -> u64,
) -> Result<Line, MemoryError> {
    let (mut producer, mut consumer) = spsc::ring::<T>(ENTRIES)?;
    let turns = (options.count / bulk as u64).max(1);
    let entries: Vec<T> = (1..=bulk as u64).map(make).collect();
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let (mut out, mut sum) = (0, 0u64);
        samples.push(timed(turns * bulk as u64, || {
            for _ in 0..turns {
                producer.push_slice(black_box(&entries));
                out += consumer.pop_each(bulk, |entry| sum = sum.wrapping_add(number(entry))) as u64;
            }
        }));
        arrived(name, turns * bulk as u64, out)?;
        arrived("sum of entries", turns * sum_of(bulk), sum)?;
    }
    Ok(Line::new("one core", name, bulk, samples))
}

fn alone_many(bulk: usize, options: &MemoryOptions) -> Result<Line, MemoryError> {
    let (mut producer, mut consumer) = mpsc::ring::<u64>(ENTRIES)?;
    let turns = (options.count / bulk as u64).max(1);
    let entries: Vec<u64> = (1..=bulk as u64).collect();
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let (mut out, mut sum) = (0, 0u64);
        samples.push(timed(turns * bulk as u64, || {
            for _ in 0..turns {
                producer.push_slice(black_box(&entries));
                out += consumer.pop_each(bulk, |entry| sum = sum.wrapping_add(entry)) as u64;
            }
        }));
        arrived("MPSC, addresses", turns * bulk as u64, out)?;
        arrived("sum of entries", turns * sum_of(bulk), sum)?;
    }
    Ok(Line::new("one core", "MPSC, addresses", bulk, samples))
}

/// Whole frames, owned all the way.
fn alone_frames(bulk: usize, options: &MemoryOptions) -> Result<Line, MemoryError> {
    let (mut sender, mut receiver) = frames::ring(ENTRIES)?;
    let mut pool = Pool::new(PoolConfig::new(bulk as u32))?;
    let (mut burst, mut received) = (Burst::new(), Burst::new());
    pool.alloc_burst(&mut burst, bulk);
    let turns = (options.count / bulk as u64).max(1);
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let mut out = 0;
        samples.push(timed(turns * bulk as u64, || {
            for _ in 0..turns {
                sender.send(&mut burst);
                out += receiver.receive(&mut received, bulk) as u64;
                std::mem::swap(&mut burst, &mut received);
            }
        }));
        arrived("frames", turns * bulk as u64, out)?;
    }
    pool.release_burst(&mut burst);
    pool.close()?;
    Ok(Line::new("one core", "frames", bulk, samples))
}

fn channel_alone(options: &MemoryOptions) -> Result<Line, MemoryError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<u64>(ENTRIES as usize);
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let mut sum = 0u64;
        samples.push(timed(options.count, || {
            for n in 0..options.count {
                let _ = sender.try_send(n);
                sum = sum.wrapping_add(receiver.try_recv().unwrap_or_default());
            }
        }));
        arrived("sum of entries", below(options.count), sum)?;
    }
    Ok(Line::new("one core", "std::sync::mpsc::sync_channel", 1, samples))
}

/// One producer on another core; the sum of what arrives proves that it is what was sent.
fn across(bulk: usize, other: u32, options: &MemoryOptions) -> Result<Line, MemoryError> {
    let count = (options.count / bulk as u64).max(1) * bulk as u64;
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let (mut producer, mut consumer) = spsc::ring::<u64>(ENTRIES)?;
        let sending = std::thread::spawn(move || {
            let pinned = pin(other);
            let mut next = 0;
            while next < count {
                let end = (next + bulk as u64).min(count);
                let mut entries = next..end;
                next += producer.push_some((end - next) as usize, || entries.next()) as u64;
            }
            pinned
        });
        let (mut got, mut sum) = (0, 0u64);
        samples.push(timed(count, || {
            while got < count {
                match consumer.pop_each(bulk, |entry| sum = sum.wrapping_add(entry)) {
                    0 => spin_loop(),
                    n => got += n as u64,
                }
            }
        }));
        ended(sending)?;
        arrived("sum of entries", below(count), sum)?;
    }
    Ok(Line::new("two cores", "SPSC, addresses", bulk, samples).others(1))
}

/// The same ring without copies of the other side's index: each call reads the line that the other core writes. What the
/// copies are worth is the difference to [`across`].
struct Uncached {
    slots: Vec<AtomicU64>,
    produced: Line64,
    consumed: Line64,
}

/// A number that has a cache line for itself.
#[repr(align(64))]
#[derive(Default)]
struct Line64(AtomicU64);

impl Uncached {
    fn new() -> Arc<Uncached> {
        let slots = (0..ENTRIES).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Uncached { slots, produced: Line64::default(), consumed: Line64::default() })
    }

    fn slot(&self, at: u64) -> &AtomicU64 {
        &self.slots[(at % u64::from(ENTRIES)) as usize]
    }

    /// As many of these as there is room for.
    fn push(&self, entries: std::ops::Range<u64>) -> u64 {
        let produced = self.produced.0.load(Ordering::Relaxed);
        let room = u64::from(ENTRIES) - (produced - self.consumed.0.load(Ordering::Acquire));
        let count = room.min(entries.end - entries.start);
        (0..count).for_each(|n| self.slot(produced + n).store(entries.start + n, Ordering::Relaxed));
        self.produced.0.store(produced + count, Ordering::Release);
        count
    }

    /// The sum of as many as there are, at most `bulk`, and how many those were.
    fn pop(&self, bulk: u64) -> (u64, u64) {
        let consumed = self.consumed.0.load(Ordering::Relaxed);
        let count = (self.produced.0.load(Ordering::Acquire) - consumed).min(bulk);
        let sum = (0..count).fold(0u64, |sum, n| sum.wrapping_add(self.slot(consumed + n).load(Ordering::Relaxed)));
        self.consumed.0.store(consumed + count, Ordering::Release);
        (count, sum)
    }
}

fn across_uncached(bulk: usize, other: u32, options: &MemoryOptions) -> Result<Line, MemoryError> {
    let bulk = bulk as u64;
    let count = (options.count / bulk).max(1) * bulk;
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let ring = Uncached::new();
        let far = ring.clone();
        let sending = std::thread::spawn(move || {
            let pinned = pin(other);
            let mut next = 0;
            while next < count {
                next += far.push(next..(next + bulk).min(count));
            }
            pinned
        });
        let (mut got, mut sum) = (0, 0u64);
        samples.push(timed(count, || {
            while got < count {
                let (taken, of) = ring.pop(bulk);
                (got, sum) = (got + taken, sum.wrapping_add(of));
                if taken == 0 {
                    spin_loop();
                }
            }
        }));
        ended(sending)?;
        arrived("sum of entries", below(count), sum)?;
    }
    let line = Line::new("two cores", "SPSC, indices not copied", bulk as usize, samples);
    Ok(line.others(1).noted("what copies of the other side's index save"))
}

fn across_many(bulk: usize, producers: u32, cpus: &[u32], options: &MemoryOptions) -> Result<Line, MemoryError> {
    let each = (options.count / bulk as u64 / u64::from(producers)).max(1) * bulk as u64;
    let count = each * u64::from(producers);
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let (producer, mut consumer) = mpsc::ring::<u64>(ENTRIES)?;
        let threads: Vec<_> = (0..producers)
            .map(|n| {
                let (mut producer, cpu) = (producer.clone(), cpus[n as usize % cpus.len()]);
                std::thread::spawn(move || {
                    let pinned = pin(cpu);
                    let entries: Vec<u64> = (1..=bulk as u64).collect();
                    let mut sent = 0;
                    while sent < each {
                        let from = sent as usize % bulk;
                        match producer.push_slice(&entries[from..]) {
                            0 => std::thread::yield_now(),
                            n => sent += n as u64,
                        }
                    }
                    pinned
                })
            })
            .collect();
        let (mut got, mut sum) = (0, 0u64);
        samples.push(timed(count, || {
            while got < count {
                match consumer.pop_each(64, |entry| sum = sum.wrapping_add(entry)) {
                    0 => spin_loop(),
                    n => got += n as u64,
                }
            }
        }));
        threads.into_iter().try_for_each(ended)?;
        arrived("sum of entries", count / bulk as u64 * sum_of(bulk), sum)?;
    }
    let cores = cpus.len().min(producers as usize);
    let note = if producers as usize > cpus.len() {
        format!("{producers} threads on {cores} other core")
    } else {
        String::new()
    };
    Ok(Line::new("two cores", "MPSC, addresses", bulk, samples).others(producers).noted(note))
}

fn channel_across(other: u32, options: &MemoryOptions) -> Result<Line, MemoryError> {
    let count = options.count / 4;
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<u64>(ENTRIES as usize);
        let sending = std::thread::spawn(move || {
            let pinned = pin(other);
            for n in 0..count {
                if sender.send(n).is_err() {
                    break;
                }
            }
            pinned
        });
        let mut sum = 0;
        samples.push(timed(count, || sum = receiver.iter().fold(0, u64::wrapping_add)));
        ended(sending)?;
        arrived("sum of entries", below(count), sum)?;
    }
    Ok(Line::new("two cores", "std::sync::mpsc::sync_channel", 1, samples).others(1))
}

/// Sum of the numbers below this one, as far as 64 bits go.
fn below(count: u64) -> u64 {
    (0..count).fold(0, u64::wrapping_add)
}

/// Sum of the entries of a bulk, which are 1 and on.
fn sum_of(bulk: usize) -> u64 {
    let bulk = bulk as u64;
    bulk * (bulk + 1) / 2
}

fn arrived(what: &str, expected: u64, arrived: u64) -> Result<(), MemoryError> {
    if expected == arrived { Ok(()) } else { Err(MemoryError::Lost { what: what.into(), expected, arrived }) }
}
