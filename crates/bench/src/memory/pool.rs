//! Pools: three paths, bulk sizes, returns from other cores, exhaustion, and the allocator beside them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xway_packet::ring::frames;
use xway_packet::{Burst, Pages, Pool, PoolConfig, layout};

use super::{BULKS, Line, MemoryError, MemoryOptions, ended, other_cpus, timed};
use crate::measure::pin;

/// The whole table. Takes some seconds.
///
/// # Errors
/// A core or memory is missing, frames did not come home, or the path that was to be measured was not taken.
pub fn pool(options: &MemoryOptions) -> Result<Vec<Line>, MemoryError> {
    pin(options.cpu)?;
    let mut lines = Vec::new();
    for bulk in BULKS {
        lines.push(fast(bulk, options)?);
    }
    for bulk in BULKS {
        lines.push(ring_path(bulk, options)?);
    }
    for chunk in [layout::CHUNK, layout::CHUNK_MIN] {
        lines.push(slow(chunk, options)?);
        lines.push(around(chunk, options)?);
    }
    lines.push(exhausted(options)?);
    lines.push(shared(options)?);
    for bulk in BULKS {
        lines.push(malloc(bulk, options));
    }
    lines.extend(super::hints::hints(options)?);
    let cpus = other_cpus(options.cpu);
    for others in 1..=cpus.len().max(2) {
        let name = "returned by other cores";
        if cpus.is_empty() {
            lines.push(Line::missing("cross-core", name, others as u32, "there is no second core"));
            continue;
        }
        for bulk in [1, 64] {
            lines.push(cross(bulk, others, &cpus, options)?);
        }
    }
    Ok(lines)
}

const FRAMES: u32 = 1024;

fn sum(pool: Pool) -> Result<(), MemoryError> {
    pool.close().map_err(MemoryError::from)
}

/// Owner takes and gives back: the stack alone.
fn fast(bulk: usize, options: &MemoryOptions) -> Result<Line, MemoryError> {
    let mut pool = Pool::new(PoolConfig::new(FRAMES))?;
    let mut burst = Burst::new();
    let turns = (options.count / bulk as u64).max(1);
    let mut samples = Vec::new();
    // Every chunk has been used once before anything is timed.
    warm(&mut pool);
    for _ in 0..options.rounds {
        let before = pool.counters();
        samples.push(timed(turns * bulk as u64, || {
            for _ in 0..turns {
                if bulk == 1 {
                    if let Ok(frame) = pool.alloc() {
                        pool.release(black_box(frame));
                    }
                } else {
                    pool.alloc_burst(&mut burst, bulk);
                    pool.release_burst(black_box(&mut burst));
                }
            }
        }));
        let after = pool.counters();
        path("fast path", after.fast - before.fast, turns * bulk as u64)?;
    }
    sum(pool)?;
    let line = Line::new("pool", "fast path", bulk, samples);
    // mlx5e_alloc_rx_wqe 4.5 ns and mlx5e_page_release 1.5 ns in the profile of the generic-XDP write-up.
    Ok(if bulk == 1 { line.documented(6.0, "documented: a driver's recycled page, alloc and release") } else { line })
}

/// Every frame goes home through the return queue, on the same core: what the queue itself costs.
fn ring_path(bulk: usize, options: &MemoryOptions) -> Result<Line, MemoryError> {
    let mut pool = Pool::new(PoolConfig::new(bulk as u32))?;
    let mut burst = Burst::new();
    let turns = (options.count / bulk as u64).max(1);
    let mut samples = Vec::new();
    warm(&mut pool);
    for _ in 0..options.rounds {
        let before = pool.counters();
        samples.push(timed(turns * bulk as u64, || {
            for _ in 0..turns {
                pool.alloc_burst(&mut burst, bulk);
                black_box(&mut burst).release();
            }
        }));
        let after = pool.counters();
        // The first of a bulk collects the others.
        path("ring path", after.returned - before.returned, turns * bulk as u64)?;
    }
    sum(pool)?;
    Ok(Line::new("pool", "ring path", bulk, samples))
}

/// Chunks that were never used: the kernel finds and clears pages for them. The packet's first line is written.
fn slow(chunk: u32, options: &MemoryOptions) -> Result<Line, MemoryError> {
    const CHUNKS: u32 = 8192;
    let mut samples = Vec::new();
    let mut note = String::new();
    for _ in 0..options.rounds {
        let mut pool = Pool::new(PoolConfig::new(CHUNKS).in_chunks_of(chunk))?;
        let memory = pool.memory();
        note = format!("pages: {:?} asked for, {:?} got", memory.requested, memory.effective).to_lowercase();
        let mut frames = Vec::with_capacity(CHUNKS as usize);
        samples.push(timed(CHUNKS.into(), || {
            while let Ok(mut frame) = pool.alloc() {
                frame.chunk_mut()[256..320].fill(1);
                frames.push(frame);
            }
        }));
        path("slow path", pool.counters().slow, CHUNKS.into())?;
        frames.into_iter().for_each(|frame| pool.release(frame));
        sum(pool)?;
    }
    let name =
        if chunk == layout::CHUNK { "slow path, first touch" } else { "slow path, first touch, two chunks to a page" };
    Ok(Line::new("pool", name, 1, samples).noted(note))
}

/// All chunks of a pool in turn, with a packet of 64 bytes written into each, on ordinary pages: what memory of this shape costs when
/// it is used from end to end.
fn around(chunk: u32, options: &MemoryOptions) -> Result<Line, MemoryError> {
    const CHUNKS: u32 = 8192;
    let mut pool = Pool::new(PoolConfig { pages: Pages::Base, ..PoolConfig::new(CHUNKS).in_chunks_of(chunk) })?;
    let mut frames = Vec::with_capacity(CHUNKS as usize);
    let mut samples = Vec::new();
    for round in 0..=options.rounds {
        let mut written = 0u64;
        let ns = timed(CHUNKS.into(), || {
            while let Ok(mut frame) = pool.alloc() {
                frame.chunk_mut()[256..320].fill(1);
                frames.push(frame);
            }
            written += frames.len() as u64;
            frames.drain(..).for_each(|frame| pool.release(frame));
        });
        if written != u64::from(CHUNKS) {
            return Err(MemoryError::Lost { what: "chunks".into(), expected: CHUNKS.into(), arrived: written });
        }
        // The first time is the slow path's.
        samples.extend((round > 0).then_some(ns));
    }
    let bytes = pool.memory().bytes >> 20;
    sum(pool)?;
    let name = if chunk == layout::CHUNK {
        "8,192 chunks in turn, one to a page"
    } else {
        "8,192 chunks in turn, two to a page"
    };
    Ok(Line::new("pool", name, 1, samples).noted(format!("{bytes} MiB of ordinary pages")))
}

/// What a refusal costs when nothing is left.
fn exhausted(options: &MemoryOptions) -> Result<Line, MemoryError> {
    let mut pool = Pool::new(PoolConfig::new(4))?;
    let held: Vec<_> = (0..4).map_while(|_| pool.alloc().ok()).collect();
    let turns = options.count;
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let before = pool.counters().refused;
        samples.push(timed(turns, || {
            for _ in 0..turns {
                black_box(pool.alloc().is_err());
            }
        }));
        path("refusal", pool.counters().refused - before, turns)?;
    }
    held.into_iter().for_each(|frame| pool.release(frame));
    sum(pool)?;
    Ok(Line::new("pool", "refusal, nothing left", 1, samples))
}

/// A second holder comes and goes.
fn shared(options: &MemoryOptions) -> Result<Line, MemoryError> {
    let mut pool = Pool::new(PoolConfig::new(4))?;
    let turns = options.count;
    let mut samples = Vec::new();
    let frame = pool.alloc().map_err(|_| MemoryError::Path { what: "a frame to share", share: 0.0 })?;
    let shared = frame.share();
    for _ in 0..options.rounds {
        samples.push(timed(turns, || (0..turns).for_each(|_| drop(black_box(shared.clone())))));
    }
    // Holders that came went again: with the last one the frame goes home.
    drop(shared);
    sum(pool)?;
    Ok(Line::new("pool", "a frame shared once more", 1, samples))
}

/// What the allocator of the process takes for a buffer of the same size, and the writing of nothing.
fn malloc(bulk: usize, options: &MemoryOptions) -> Line {
    let turns = (options.count / bulk as u64 / 4).max(1);
    let mut held: Vec<Vec<u8>> = Vec::with_capacity(bulk);
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        samples.push(timed(turns * bulk as u64, || {
            for _ in 0..turns {
                held.extend((0..bulk).map(|_| black_box(Vec::with_capacity(4096))));
                black_box(&mut held).clear();
            }
        }));
    }
    Line::new("malloc", "malloc and free of 4 KiB", bulk, samples)
}

/// The owner sends frames to other cores through a ring each; those give them back.
fn cross(bulk: usize, others: usize, cpus: &[u32], options: &MemoryOptions) -> Result<Line, MemoryError> {
    let turns = (options.count / bulk as u64 / 8).max(64);
    let mut samples = Vec::new();
    for _ in 0..options.rounds {
        let mut pool = Pool::new(PoolConfig::new(FRAMES))?;
        warm(&mut pool);
        let returned = Arc::new(AtomicU64::new(0));
        let mut senders = Vec::new();
        let mut threads = Vec::new();
        for n in 0..others {
            let (sender, mut receiver) = frames::ring(256)?;
            senders.push(sender);
            let (cpu, returned) = (cpus[n % cpus.len()], returned.clone());
            threads.push(std::thread::spawn(move || {
                let pinned = pin(cpu);
                let mut burst = Burst::new();
                loop {
                    let count = receiver.receive(&mut burst, bulk);
                    if count == 0 {
                        // Others may want the core: there can be more threads than cores.
                        std::thread::yield_now();
                        continue;
                    }
                    let last = burst.frames().iter().any(|frame| frame.packet_id() == u64::MAX);
                    returned.fetch_add(count as u64, Ordering::Relaxed);
                    burst.release();
                    if last {
                        return pinned;
                    }
                }
            }));
        }
        let mut burst = Burst::new();
        let mut sent = 0;
        samples.push(timed(turns * bulk as u64, || {
            for turn in 0..turns {
                while burst.len() < bulk {
                    let missing = bulk - burst.len();
                    if pool.alloc_burst(&mut burst, missing) == 0 {
                        std::thread::yield_now();
                    }
                }
                let sender = &mut senders[turn as usize % others];
                while !burst.is_empty() {
                    match sender.send(&mut burst) {
                        0 => std::thread::yield_now(),
                        count => sent += count as u64,
                    }
                }
            }
        }));
        for sender in &mut senders {
            let mut last = loop {
                if let Ok(frame) = pool.alloc() {
                    break frame;
                }
            };
            last.set_packet_id(u64::MAX);
            // The burst is empty, so there is room.
            let _ = burst.push(last);
            while sender.send(&mut burst) == 0 {
                std::thread::yield_now();
            }
            sent += 1;
        }
        threads.into_iter().try_for_each(ended)?;
        let arrived = returned.load(Ordering::Relaxed);
        if arrived != sent {
            return Err(MemoryError::Lost { what: "frames".into(), expected: sent, arrived });
        }
        sum(pool)?;
    }
    let note =
        if others > cpus.len() { format!("{others} threads on {} other cores", cpus.len()) } else { String::new() };
    let line = Line::new("cross-core", "returned by other cores", bulk, samples).others(others as u32).noted(note);
    // The 2016 talk on network performance: steering to other CPUs stops at 4 Mpps, and at 9 Mpps with bulk enqueue.
    Ok(match (others, bulk) {
        (1, 1) => line.documented(250.0, "documented: a packet steered to another CPU, 4 Mpps"),
        (1, _) => line.documented(111.0, "documented: the same with bulk enqueue, 9 Mpps"),
        _ => line,
    })
}

/// Uses every chunk once.
fn warm(pool: &mut Pool) {
    let mut frames = Vec::new();
    while let Ok(mut frame) = pool.alloc() {
        frame.chunk_mut()[256] = 1;
        frames.push(frame);
    }
    frames.into_iter().for_each(|frame| pool.release(frame));
}

/// Fails unless nearly all took the path that is measured.
fn path(what: &'static str, taken: u64, of: u64) -> Result<(), MemoryError> {
    let share = taken as f64 * 100.0 / of.max(1) as f64;
    if share < 99.0 { Err(MemoryError::Path { what, share }) } else { Ok(()) }
}
