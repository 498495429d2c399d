//! One map, several cores at the same time: what an operation costs then.
//!
//! Each thread is bound to a core of its own and works on its share of the keys, as a program there would; all begin an operation
//! together. What is reported is what one operation took a core, so a map whose cores do not disturb each other has the same figure
//! for any number of them. As with one core, what each thread did is looked at before its figure is believed.

use std::sync::{Arc, Barrier, Mutex, PoisonError};

use xway_maps::{Env, Map};

use super::check::{self, Pass};
use super::{InTestRun, Keys, MapError, Op, Program, Side, Subject, Timer, is_lru, kernel_map, next_stamp, ops, spec};
use crate::measure::{Stat, pin};

/// Figures of one operation on one map by so many threads, ns a core.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ThreadsRow {
    /// The map.
    pub subject: Subject,
    /// What was done.
    pub op: Op,
    /// Threads, each on a core of its own.
    pub threads: u32,
    /// Ours, as programs do it.
    pub ours: Stat,
    /// The kernel's, from a program.
    pub kernel: Option<Stat>,
}

/// Measures every operation of one map by each of these numbers of threads, in turns; the first so many CPUs run them.
///
/// # Errors
/// As [`super::measure`]; [`MapError::Pin`] too where there are fewer CPUs than threads.
pub fn measure(subject: Subject, kernel: bool, rounds: u32, threads: &[u32]) -> Result<Vec<ThreadsRow>, MapError> {
    let spec = spec(&subject);
    let keys = Keys::new(&subject);
    let most = threads.iter().copied().max().unwrap_or(1);
    let map = Map::create(&spec, &Env::with_cpus(most))?;
    let their_map = if kernel { Some(kernel_map(&spec)?) } else { None };
    let mut teams = Vec::new();
    for count in threads {
        let mut team = Vec::new();
        for nth in 0..*count {
            let keys = keys.share(nth as usize, *count as usize);
            let ours: Box<dyn Side + Send> = Box::new(Program(map.clone(), nth, Timer::Clock));
            let theirs = match &their_map {
                Some(map) => Some(Box::new(InTestRun::new(map.clone(), &keys, nth)?) as Box<dyn Side + Send>),
                None => None,
            };
            team.push(Member { keys, sides: [Some(ours), theirs] });
        }
        teams.push(team);
    }
    let ops = ops(subject.map_type);
    // By team, operation, side.
    let mut samples = vec![vec![[const { Vec::new() }; 2]; ops.len()]; teams.len()];
    let (mut passes, mut stamp) = (0, 0);
    for _ in 0..rounds.max(1) {
        for (team, samples) in teams.iter_mut().zip(&mut samples) {
            for (op, samples) in ops.iter().zip(samples) {
                (passes, stamp) = next_stamp(*op, passes, stamp);
                for (side, samples) in samples.iter_mut().enumerate().take(1 + usize::from(kernel)) {
                    samples.push(together(team, &subject, side, (*op, stamp))?);
                }
            }
        }
    }
    let mut rows = Vec::new();
    for (op, at) in ops.iter().zip(0..).filter(|(op, _)| **op != Op::Insert || !is_lru(subject.map_type)) {
        for (threads, samples) in threads.iter().zip(&samples) {
            let stat = |side: usize| (!samples[at][side].is_empty()).then(|| Stat::of(samples[at][side].clone()));
            let ours = stat(0).unwrap_or_default();
            rows.push(ThreadsRow { subject, op: *op, threads: *threads, ours, kernel: stat(1) });
        }
    }
    Ok(rows)
}

/// A thread's keys and its hands on both maps.
struct Member {
    keys: Keys,
    sides: [Option<Box<dyn Side + Send>>; 2],
}

/// All do `op` at the same time: the mean of what it took each of them. When the last one is ready, each one's share is looked at.
fn together(team: &mut [Member], subject: &Subject, side: usize, (op, stamp): (Op, u64)) -> Result<f64, MapError> {
    let start = Arc::new(Barrier::new(team.len()));
    let took = Mutex::new(Vec::with_capacity(team.len()));
    std::thread::scope(|scope| {
        for (nth, member) in team.iter_mut().enumerate() {
            let (start, took) = (start.clone(), &took);
            scope.spawn(move || {
                let pinned = pin(nth as u32);
                // Whoever could not be pinned comes too: the others wait for it.
                start.wait();
                let pass = pinned.map_err(MapError::from).and_then(|()| match &mut member.sides[side] {
                    Some(map) => map.pass(op, &member.keys, stamp),
                    None => Err(MapError::Thread),
                });
                took.lock().unwrap_or_else(PoisonError::into_inner).push((nth, pass));
            });
        }
    });
    let took = took.into_inner().unwrap_or_else(PoisonError::into_inner);
    if took.len() != team.len() {
        return Err(MapError::Thread);
    }
    let (mut ns, mut keys) = (0.0, 0);
    for (nth, pass) in took {
        let (member, pass): (_, Pass) = (&team[nth], pass?);
        let map = member.sides[side].as_deref().ok_or(MapError::Thread)?;
        check::pass(map, subject, op, &member.keys, stamp, &pass)?;
        (ns, keys) = (ns + pass.ns, keys + member.keys.of(op).len() / member.keys.size);
    }
    if op == Op::Delete
        && let Some(map) = team.first().and_then(|member| member.sides[side].as_deref())
    {
        check::whole(map, subject, op, keys)?;
    }
    Ok(ns / team.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_abi::MapType;

    #[test]
    fn every_number_of_threads_is_a_row() {
        let needs = xway_testkit::Needs::of("bench::maps::every_number_of_threads_is_a_row").root().kernel(5, 14);
        let kernel = needs.met();
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32).min(2);
        for map_type in [MapType::Hash, MapType::LruHash, MapType::LruPercpuHash, MapType::LpmTrie] {
            let key_size = if map_type == MapType::LpmTrie { 8 } else { 16 };
            let threads: Vec<u32> = (1..=cpus).collect();
            let rows = measure(Subject { map_type, key_size, entries: 2000 }, kernel, 1, &threads).expect("measured");
            let shown = ops(map_type).len() - usize::from(is_lru(map_type));
            assert_eq!(rows.len(), shown * cpus as usize, "{map_type:?}");
            assert!(rows.iter().all(|r| r.ours.median > 0.0 && r.kernel.is_some() == kernel), "{rows:?}");
        }
    }

    #[test]
    fn shares_are_all_keys_once() {
        let keys = Keys::new(&Subject { map_type: MapType::LruHash, key_size: 16, entries: 101 });
        let shares: Vec<Keys> = (0..3).map(|n| keys.share(n, 3)).collect();
        for of in [|k: &Keys| k.bytes.clone(), |k: &Keys| k.flood.clone()] {
            let chunks = |bytes: Vec<u8>| bytes.chunks(16).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let mut all: Vec<_> = shares.iter().flat_map(|k| chunks(of(k))).collect();
            let mut wanted = chunks(of(&keys));
            all.sort();
            wanted.sort();
            assert_eq!(all, wanted);
        }
    }
}
