//! Single operations on maps: look-up, update, insert, delete, from a program and from user space, ours and the kernel's.
//!
//! Four sides do the same with the same keys in the same order:
//!
//! | side | is |
//! |---|---|
//! | ours, program | what helpers of interpreted and compiled programs call; generated code that inlines a look-up is faster (`bench prog`) |
//! | ours, user | the calls named after `bpf(2)`, which copy |
//! | kernel, program | a loop in BPF inside test-runs, less the same loop without the call |
//! | kernel, user | the system call |
//!
//! A round fills the empty map (*insert*), looks up every key (*look-up*), overwrites every value (*update*), and removes
//! every key (*delete*). An LRU map is then run through with four times more keys than it holds (*insert + evict*).
//!
//! A figure is of operations that did what they should: outcomes are counted and values added up while the clock runs, and once it has
//! stopped the map is looked at (`check`). Anything else is an error.
//!
//! [`threads`] does the same from several cores at once; [`memory`] says what maps take.

mod check;
mod in_kernel;
mod keys;
pub mod memory;
mod sides;
pub mod threads;

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_kernel::{KernelError, KernelMap};
use xway_maps::{Env, Map};

use self::check::Pass;
use self::in_kernel::InTestRun;
use self::keys::Keys;
use self::sides::{Program, SystemCall, User};
use crate::measure::{MeasureError, Stat, pin};

/// Bytes of a value.
const VALUE: usize = 8;
/// Operations inside one test-run, and between two guards of ours.
const BATCH: usize = 64;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A key that is there.
    Lookup,
    /// A key that is there gets another value.
    Update,
    /// A key that is not there, into a map with room.
    Insert,
    /// A key that is there.
    Delete,
    /// A key that is not there, into an LRU map without room.
    Evict,
}

impl Op {
    /// In tables.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Lookup => "look-up",
            Op::Update => "update",
            Op::Insert => "insert",
            Op::Delete => "delete",
            Op::Evict => "insert + evict",
        }
    }
}

/// Which map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// Type: ARRAY, HASH, LRU_HASH, their per-CPU forms, or LPM_TRIE.
    pub map_type: MapType,
    /// Bytes of a key: 4 for arrays, whatever is asked for; of tries a prefix length of 4 bytes and the address.
    pub key_size: u32,
    /// Entries.
    pub entries: u32,
}

/// Figures of one operation on one map, ns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MapRow {
    /// The map.
    pub subject: Subject,
    /// What was done.
    pub op: Op,
    /// Ours, as programs do it.
    pub program: Stat,
    /// Ours, as user space does it.
    pub user: Stat,
    /// The kernel's, from a program.
    pub kernel_program: Option<Stat>,
    /// The kernel's, from user space.
    pub kernel_user: Option<Stat>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// See there.
    #[error(transparent)]
    Pin(#[from] MeasureError),
    /// Our map could not be made.
    #[error(transparent)]
    Create(#[from] xway_maps::CreateError),
    /// The kernel refused a map, a program or an operation.
    #[error("kernel: {what}: {errno} ({})", errno.text())]
    Kernel {
        /// What.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The kernel refused the loop.
    #[error(transparent)]
    Program(#[from] KernelError),
    /// An operation that cannot fail did.
    #[error("{op}: {failures} operations failed")]
    Failed {
        /// Which.
        op: &'static str,
        /// How many.
        failures: usize,
    },
    /// A thread ended early.
    #[error("a measuring thread ended early")]
    Thread,
    /// Our map cannot be looked at.
    #[error("{what}: {errno} ({})", errno.text())]
    Ours {
        /// What.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
    /// A side did something else than what was to be measured.
    #[error("{side}, {op}: {what}")]
    Wrong {
        /// Which of the four sides.
        side: &'static str,
        /// The operation.
        op: &'static str,
        /// What is not as it should be.
        what: String,
    },
}

/// Measures every operation of one map.
///
/// # Errors
/// [`MapError`]: a map or a core cannot be had, or an operation did not do what it should.
pub fn measure(subject: Subject, kernel: bool, rounds: u32, cpu: u32) -> Result<Vec<MapRow>, MapError> {
    measure_spoilt(subject, kernel, rounds, cpu, &mut |_, _| ())
}

/// As [`measure`]; `spoil` gets our program's map after each operation: for a test that looks whether anybody notices.
fn measure_spoilt(
    subject: Subject,
    kernel: bool,
    rounds: u32,
    cpu: u32,
    spoil: &mut dyn FnMut(Op, &Map),
) -> Result<Vec<MapRow>, MapError> {
    pin(cpu)?;
    let spec = spec(&subject);
    let keys = Keys::new(&subject);
    let env = Env::with_cpus(1);
    let [program, user] = [Map::create(&spec, &env)?, Map::create(&spec, &env)?];
    let mut sides: Vec<Box<dyn Side>> =
        vec![Box::new(Program(program.clone(), 0, Timer::Thread)), Box::new(User(user))];
    if kernel {
        sides.push(Box::new(InTestRun::new(kernel_map(&spec)?, &keys, cpu)?));
        let map = KernelMap::create("bench", &spec).map_err(|errno| failed("creating a map", errno))?;
        sides.push(Box::new(SystemCall(map)));
    }
    let (ops, rounds) = (ops(subject.map_type), rounds.max(1));
    let mut samples = vec![vec![Vec::new(); sides.len()]; ops.len()];
    let (mut passes, mut stamp) = (0, 0);
    for round in 0..rounds {
        for (op, samples) in ops.iter().zip(&mut samples) {
            (passes, stamp) = next_stamp(*op, passes, stamp);
            for (side, samples) in sides.iter_mut().zip(samples) {
                let pass = side.pass(*op, &keys, stamp)?;
                check::pass(&**side, &subject, *op, &keys, stamp, &pass)?;
                // Walking through a map takes longer than what was measured.
                if *op == Op::Delete || round + 1 == rounds {
                    check::whole(&**side, &subject, *op, keys.of(*op).len() / keys.size)?;
                }
                samples.push(pass.ns);
            }
            spoil(*op, &program);
        }
    }
    let row = |(op, samples): (&Op, Vec<Vec<f64>>)| {
        let mut stats = samples.into_iter().map(Stat::of);
        let mut next = || stats.next();
        MapRow {
            subject,
            op: *op,
            program: next().unwrap_or_default(),
            user: next().unwrap_or_default(),
            kernel_program: next(),
            kernel_user: next(),
        }
    };
    let shown = |row: &MapRow| row.op != Op::Insert || !is_lru(subject.map_type);
    Ok(ops.iter().zip(samples).map(row).filter(shown).collect())
}

fn ops(map_type: MapType) -> &'static [Op] {
    match map_type {
        MapType::Array | MapType::PercpuArray => &[Op::Update, Op::Lookup],
        // What an LRU map still holds after evictions is its own business, so nothing is deleted by key, and the first
        // step, which puts the keys back after the last round's flood, is no row.
        MapType::LruHash | MapType::LruPercpuHash => &[Op::Insert, Op::Update, Op::Lookup, Op::Evict],
        _ => &[Op::Insert, Op::Update, Op::Lookup, Op::Delete],
    }
}

fn is_lru(map_type: MapType) -> bool {
    matches!(map_type, MapType::LruHash | MapType::LruPercpuHash)
}

fn spec(subject: &Subject) -> MapSpec {
    let mut spec = MapSpec::new(subject.map_type, subject.key_size, VALUE as u32, subject.entries);
    if subject.map_type == MapType::LpmTrie {
        spec.flags |= map_flags::NO_PREALLOC;
    }
    spec
}

/// The next pass, and the stamp of what maps hold after it.
fn next_stamp(op: Op, passes: u64, stamp: u64) -> (u64, u64) {
    (passes + 1, if matches!(op, Op::Lookup | Op::Delete) { stamp } else { check::stamp(passes) })
}

/// One way to work on a map.
trait Side {
    /// In tables and errors.
    fn name(&self) -> &'static str;
    /// Does `op` with every key of it; what is written is [`check::value`] of `stamp`.
    fn pass(&mut self, op: Op, keys: &Keys, stamp: u64) -> Result<Pass, MapError>;
    /// What is there for a key, on each CPU that this side writes to.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u64>>, MapError>;
    /// How many elements there are.
    fn elements(&self) -> Result<usize, MapError>;
}

fn failed(what: &'static str, errno: Errno) -> MapError {
    MapError::Kernel { what, errno }
}

fn kernel_map(spec: &MapSpec) -> Result<Arc<KernelMap>, MapError> {
    KernelMap::create("bench", spec).map(Arc::new).map_err(|e| failed("creating a map", e))
}

/// What a pass is timed by.
#[derive(Clone, Copy)]
enum Timer {
    /// The thread's own time: what else this core does meanwhile is left out, as the kernel leaves it out of a test-run.
    Thread,
    /// The time that passes: a thread that waits for another one may sleep, which is a part of what it pays.
    Clock,
}

impl Timer {
    fn now(self) -> Duration {
        let of = match self {
            Timer::Thread => ClockId::ThreadCPUTime,
            Timer::Clock => ClockId::Monotonic,
        };
        let time = clock_gettime(of);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Nanoseconds for each of so many operations.
    fn of(self, count: usize, what: impl FnOnce()) -> f64 {
        let start = self.now();
        what();
        self.now().saturating_sub(start).as_nanos() as f64 / count.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types with lengths of keys.
    pub(super) const KINDS: [(MapType, u32); 9] = [
        (MapType::Array, 4),
        (MapType::Hash, 4),
        (MapType::Hash, 37),
        (MapType::LruHash, 16),
        (MapType::LpmTrie, 8),
        (MapType::LpmTrie, 20),
        (MapType::PercpuArray, 4),
        (MapType::PercpuHash, 20),
        (MapType::LruPercpuHash, 16),
    ];

    /// The kernel's test-runs leave such times out, too.
    #[test]
    fn what_a_core_does_besides_is_not_counted() {
        let pause = Duration::from_millis(50);
        let sleep = || std::thread::sleep(pause);
        assert!(Timer::Thread.of(1, sleep) < 0.5 * pause.as_nanos() as f64);
        assert!(Timer::Clock.of(1, sleep) >= pause.as_nanos() as f64);
    }

    #[test]
    fn both_sides_hold_the_same() {
        let needs = xway_testkit::Needs::of("bench::maps::both_sides_hold_the_same").root().kernel(5, 14);
        let kernel = needs.met();
        for (map_type, key_size) in KINDS {
            let rows = measure(Subject { map_type, key_size, entries: 500 }, kernel, 2, 0).expect("measured");
            assert!(rows.len() >= 2, "{map_type:?}");
            assert!(rows.iter().all(|r| r.program.median > 0.0 && r.kernel_user.is_some() == kernel));
        }
    }

    /// A map that holds something else than what was written, or less: the next look at it says so.
    #[test]
    fn a_map_that_was_spoilt_is_noticed() {
        let subject = Subject { map_type: MapType::Hash, key_size: 8, entries: 500 };
        let key = Keys::new(&subject).bytes[..8].to_vec();
        let spoilt = |after: Op, how: &dyn Fn(&Map)| {
            let spoil = &mut |op, map: &Map| {
                if op == after {
                    how(map);
                }
            };
            measure_spoilt(subject, false, 2, 0, spoil).expect_err("it is noticed").to_string()
        };
        let say = |what: &str| format!("ours, program, {what}");
        let wrong = spoilt(Op::Update, &|map| map.update(&key, &[9; 8], 0).expect("it is there"));
        assert!(wrong.starts_with(&say("look-up: the values that were read add up to ")), "{wrong}");
        let missed = spoilt(Op::Update, &|map| map.delete(&key).expect("it is there"));
        assert_eq!(missed, say("look-up: 499 of 500 keys were found, 500 are there"));
        let gone = spoilt(Op::Lookup, &|map| map.delete(&key).expect("it is there"));
        assert_eq!(gone, say("delete: 1 of 500 operations failed"));
        let more =
            spoilt(Op::Insert, &|map| map.delete(&key).and_then(|()| map.update(&[7; 8], &[1; 8], 0)).expect("room"));
        assert_eq!(more, say("update: 1 of 500 operations failed"));
    }
}
