//! What two threads pay to talk: a cache line, a descriptor that wakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::Cost;
use crate::measure::pin;

pub(super) fn costs(cpu: u32, other: Option<u32>) -> Vec<Cost> {
    let mut all = Vec::new();
    match other.map(|other| line(cpu, other)) {
        Some(Ok(ns)) => all.push(Cost::new("cores", "cache line to another core and back", ns)),
        Some(Err(why)) => all.push(Cost::missing("cores", "cache line to another core and back", why)),
        None => all.push(Cost::missing("cores", "cache line to another core and back", "there is no second core")),
    }
    for (name, to) in [("eventfd round trip, one core", Some(cpu)), ("eventfd round trip, two cores", other)] {
        match to.map(|to| wake(cpu, to)) {
            Some(Ok(ns)) => all.push(Cost::new("cores", name, ns)),
            Some(Err(why)) => all.push(Cost::missing("cores", name, why)),
            None => all.push(Cost::missing("cores", name, "there is no second core")),
        }
    }
    all
}

/// A word that the other core raises after us; the median of several stretches.
fn line(cpu: u32, other: u32) -> Result<f64, String> {
    const TRIPS: u64 = 20_000;
    let word = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let answering = {
        let (word, stop) = (word.clone(), stop.clone());
        std::thread::spawn(move || {
            if pin(other).is_err() {
                return;
            }
            // Odd numbers are ours to raise, even ones theirs.
            while !stop.load(Ordering::Relaxed) {
                let seen = word.load(Ordering::Acquire);
                if seen % 2 == 1 {
                    word.store(seen + 1, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        })
    };
    pin(cpu).map_err(|e| e.to_string())?;
    let mut samples = Vec::new();
    let deadline = Instant::now() + std::time::Duration::from_secs(5);
    let mut stuck = false;
    'samples: for _ in 0..9 {
        let start = Instant::now();
        for _ in 0..TRIPS {
            let next = word.load(Ordering::Acquire) + 1;
            word.store(next, Ordering::Release);
            while word.load(Ordering::Acquire) == next {
                std::hint::spin_loop();
                if answering.is_finished() || (next % 4096 == 1 && Instant::now() > deadline) {
                    stuck = true;
                    break 'samples;
                }
            }
        }
        samples.push(start.elapsed().as_nanos() as f64 / TRIPS as f64);
    }
    stop.store(true, Ordering::Relaxed);
    answering.join().map_err(|_| "the other thread ended early".to_owned())?;
    if stuck || samples.is_empty() {
        return Err("the other core does not answer".into());
    }
    samples.sort_unstable_by(f64::total_cmp);
    Ok(samples[samples.len() / 2])
}

/// Writes to one eventfd and waits for another.
fn wake(cpu: u32, other: u32) -> Result<f64, String> {
    const TRIPS: usize = 2000;
    let pipe = || eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| e.to_string());
    let (there, back) = (Arc::new(pipe()?), Arc::new(pipe()?));
    let answering = {
        let (there, back) = (there.clone(), back.clone());
        std::thread::spawn(move || {
            // Unpinned it answers too, only from elsewhere: the figure would be another one, so it does not answer.
            if pin(other).is_err() {
                return;
            }
            let mut number = [0; 8];
            // One more for each sample's warm-up; the writer sends a 2 to end it.
            while rustix::io::read(&*there, &mut number).is_ok() {
                let last = u64::from_ne_bytes(number) > 1;
                if rustix::io::write(&*back, &1u64.to_ne_bytes()).is_err() || last {
                    return;
                }
            }
        })
    };
    let mut number = [0; 8];
    let mut trip = |value: u64| {
        rustix::io::write(&*there, &value.to_ne_bytes()).map_err(|e| e.to_string())?;
        if answering.is_finished() && value == 1 {
            return Err("the other thread cannot be pinned".to_owned());
        }
        rustix::io::read(&*back, &mut number).map_err(|e| e.to_string()).map(drop)
    };
    pin(cpu).map_err(|e| e.to_string())?;
    let mut samples = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        for _ in 0..TRIPS {
            trip(1)?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / TRIPS as f64);
    }
    trip(2)?;
    answering.join().map_err(|_| "the other thread ended early".to_owned())?;
    samples.sort_unstable_by(f64::total_cmp);
    Ok(samples[samples.len() / 2])
}
