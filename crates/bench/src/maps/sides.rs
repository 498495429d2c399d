//! Three of the four sides: our maps as programs and as user space use them, and the kernel's through the system call.

use std::sync::Arc;

use xway_abi::Errno;
use xway_kernel::KernelMap;
use xway_maps::{Guard, Map};

use super::check::{Pass, value};
use super::keys::Keys;
use super::{BATCH, MapError, Op, Side, Timer, VALUE, failed};

/// A map as programs use it, on this CPU, timed by this.
pub(super) struct Program(pub(super) Arc<Map>, pub(super) u32, pub(super) Timer);

impl Side for Program {
    fn name(&self) -> &'static str {
        "ours, program"
    }

    fn pass(&mut self, op: Op, keys: &Keys, stamp: u64) -> Result<Pass, MapError> {
        let (map, cpu, all, size) = (&*self.0, self.1, keys.of(op), keys.size);
        let (mut done, mut sum, mut n) = (0, 0u64, 0);
        let ns = self.2.of(all.len() / size, || {
            for batch in all.chunks(size * BATCH) {
                let guard = Guard::pin();
                for key in batch.chunks_exact(size) {
                    done += usize::from(match op {
                        Op::Lookup => match map.value(cpu, key, &guard).and_then(|v| v.load(0, VALUE).ok()) {
                            Some(word) => {
                                sum = sum.wrapping_add(word);
                                true
                            }
                            None => false,
                        },
                        Op::Delete => map.prog_delete(cpu, key).is_ok(),
                        Op::Update | Op::Insert | Op::Evict => {
                            map.prog_update(cpu, key, &value(stamp, n).to_ne_bytes(), 0).is_ok()
                        }
                    });
                    n += 1;
                }
            }
        });
        Ok(Pass { ns, tried: all.len() / size, done, sum })
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u64>>, MapError> {
        // Other CPUs have values of their own.
        Ok(held(&self.0, key)?.map(|words| words.get(self.1 as usize).or(words.first()).copied().into_iter().collect()))
    }

    fn elements(&self) -> Result<usize, MapError> {
        count(&self.0)
    }
}

pub(super) struct User(pub(super) Arc<Map>);

impl Side for User {
    fn name(&self) -> &'static str {
        "ours, user"
    }

    fn pass(&mut self, op: Op, keys: &Keys, stamp: u64) -> Result<Pass, MapError> {
        let map = &*self.0;
        let (all, size) = (keys.of(op), keys.size);
        let mut hand = Hand::new(op, stamp, map.user_value_size());
        let ns = Timer::Thread.of(all.len() / size, || {
            for key in all.chunks_exact(size) {
                hand.step(key, |op, key, value| match op {
                    Op::Lookup => map.lookup(key, value, 0),
                    Op::Delete => map.delete(key),
                    Op::Update | Op::Insert | Op::Evict => map.update(key, value, 0),
                });
            }
        });
        Ok(hand.pass(ns))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u64>>, MapError> {
        held(&self.0, key)
    }

    fn elements(&self) -> Result<usize, MapError> {
        count(&self.0)
    }
}

/// Operations that the system call is timed over; more would take minutes and change nothing.
const SYSTEM_CALLS: usize = 200_000;

pub(super) struct SystemCall(pub(super) KernelMap);

impl Side for SystemCall {
    fn name(&self) -> &'static str {
        "kernel, user"
    }

    fn pass(&mut self, op: Op, keys: &Keys, stamp: u64) -> Result<Pass, MapError> {
        let (map, all, size) = (&self.0, keys.of(op), keys.size);
        let mut hand = Hand::new(op, stamp, map.user_value_size());
        let mut each = |keys: &[u8]| {
            for key in keys.chunks_exact(size) {
                hand.step(key, |op, key, value| match op {
                    Op::Lookup => map.lookup(key, value, 0),
                    Op::Delete => map.delete(key),
                    Op::Update | Op::Insert | Op::Evict => map.update(key, value, 0),
                });
            }
        };
        // The flood is four times as long as the map: a quarter of it fills the map, and what comes then evicts.
        let (first, rest) = all.split_at(if op == Op::Evict { all.len() / size / 4 * size } else { 0 });
        each(first);
        let (first, rest) = rest.split_at(rest.len().min(size * SYSTEM_CALLS));
        let ns = Timer::Thread.of(first.len() / size, || each(first));
        // Not timed, but the next operation wants every key where it belongs.
        if op == Op::Insert || op == Op::Delete {
            each(rest);
        }
        Ok(hand.pass(ns))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u64>>, MapError> {
        held_by_kernel(&self.0, key)
    }

    fn elements(&self) -> Result<usize, MapError> {
        count_of_kernel(&self.0)
    }
}

/// What goes through the keys one by one, with a value for each CPU.
pub(super) struct Hand {
    op: Op,
    stamp: u64,
    buffer: Vec<u8>,
    tried: usize,
    done: usize,
    sum: u64,
}

impl Hand {
    pub(super) fn new(op: Op, stamp: u64, value_size: usize) -> Hand {
        Hand { op, stamp, buffer: vec![0; value_size], tried: 0, done: 0, sum: 0 }
    }

    /// Goes on after the first `tried` keys, of which `done` were done with this sum.
    pub(super) fn after(self, tried: usize, done: usize, sum: u64) -> Hand {
        Hand { tried, done, sum, ..self }
    }

    pub(super) fn step(&mut self, key: &[u8], what: impl FnOnce(Op, &[u8], &mut [u8]) -> Result<(), Errno>) {
        if matches!(self.op, Op::Update | Op::Insert | Op::Evict) {
            let bytes = value(self.stamp, self.tried).to_ne_bytes();
            self.buffer.as_chunks_mut::<VALUE>().0.iter_mut().for_each(|place| *place = bytes);
        }
        self.tried += 1;
        if what(self.op, key, &mut self.buffer).is_ok() {
            self.done += 1;
            if self.op == Op::Lookup {
                self.sum = self.sum.wrapping_add(words(&self.buffer).next().unwrap_or_default());
            }
        }
    }

    pub(super) fn pass(self, ns: f64) -> Pass {
        Pass { ns, tried: self.tried, done: self.done, sum: self.sum }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<VALUE>().0.iter().map(|word| u64::from_ne_bytes(*word))
}

fn held(map: &Map, key: &[u8]) -> Result<Option<Vec<u64>>, MapError> {
    let mut value = vec![0; map.user_value_size()];
    match map.lookup(key, &mut value, 0) {
        Ok(()) => Ok(Some(words(&value).collect())),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(MapError::Ours { what: "looking at a key", errno }),
    }
}

/// What the kernel's map holds for a key, on each CPU.
pub(super) fn held_by_kernel(map: &KernelMap, key: &[u8]) -> Result<Option<Vec<u64>>, MapError> {
    match map.get(key) {
        Ok(value) => Ok(Some(words(&value).collect())),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(failed("looking at a key", errno)),
    }
}

fn count(map: &Map) -> Result<usize, MapError> {
    map.keys().map(|keys| keys.len()).map_err(|errno| MapError::Ours { what: "walking through the keys", errno })
}

/// Elements of the kernel's map.
pub(super) fn count_of_kernel(map: &KernelMap) -> Result<usize, MapError> {
    let size = map.spec().key_size as usize;
    let (mut key, mut next, mut count) = (vec![0; size], vec![0; size], 0);
    loop {
        match map.next_key((count > 0).then_some(&key[..]), &mut next) {
            Ok(()) => (count, _) = (count + 1, std::mem::swap(&mut key, &mut next)),
            Err(Errno::ENOENT) => return Ok(count),
            Err(errno) => return Err(failed("walking through the keys", errno)),
        }
    }
}
