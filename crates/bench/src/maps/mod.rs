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
//! [`threads`] does the same from several cores at once; [`memory`] says what maps take.

pub mod memory;
pub mod threads;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_isa::assemble;
use xway_kernel::{KernelError, KernelMap, KernelProg, ProgSpec, TestInput};
use xway_maps::{Env, Guard, Map};

use crate::flows::{mix32, prefix};
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
    /// Bytes of a key; 4 for arrays, 8 for tries, whatever is asked for.
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
    /// The two sides do not hold the same.
    #[error("{0:?}: after the same operations ours holds {1} keys of a sample, the kernel's {2}")]
    Differs(Subject, usize, usize),
}

/// Measures every operation of one map.
pub fn measure(subject: Subject, kernel: bool, rounds: u32, cpu: u32) -> Result<Vec<MapRow>, MapError> {
    pin(cpu)?;
    let spec = spec(&subject);
    let keys = Keys::new(&subject);
    let env = Env::with_cpus(1);
    let [program, user] = [Map::create(&spec, &env)?, Map::create(&spec, &env)?];
    let mut sides: Vec<Box<dyn Side>> = vec![Box::new(Program(program, 0)), Box::new(User(user))];
    if kernel {
        sides.push(Box::new(InTestRun::new(kernel_map(&spec)?, &keys)?));
        let map = KernelMap::create("bench", &spec).map_err(|errno| failed("creating a map", errno))?;
        sides.push(Box::new(SystemCall(map)));
    }
    let ops = ops(subject.map_type);
    let mut samples = vec![vec![Vec::new(); sides.len()]; ops.len()];
    for _ in 0..rounds.max(1) {
        for (op, samples) in ops.iter().zip(&mut samples) {
            for (side, samples) in sides.iter_mut().zip(samples) {
                samples.push(side.pass(*op, &keys)?);
            }
            if *op == Op::Insert && !is_lru(subject.map_type) {
                agree(&subject, &sides, &keys)?;
            }
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

/// The keys, in the order in which they come.
struct Keys {
    size: usize,
    /// As many as the map has entries; half as many for an LRU map.
    bytes: Vec<u8>,
    /// Keys that make an LRU map evict: four times its entries.
    flood: Vec<u8>,
}

impl Keys {
    fn new(subject: &Subject) -> Keys {
        let size = subject.key_size as usize;
        let many = |from: u32, count: u32| {
            let mut bytes = Vec::with_capacity(count as usize * size);
            let mut seen = std::collections::HashSet::new();
            for n in from..from + count {
                if subject.map_type == MapType::LpmTrie && !seen.insert(prefix(n)) {
                    continue;
                }
                bytes.extend_from_slice(&key(subject, n));
            }
            bytes
        };
        let entries = subject.entries;
        match subject.map_type {
            // Half of the entries: Linux's LRU map evicts before it is full.
            MapType::LruHash | MapType::LruPercpuHash => {
                Keys { size, bytes: many(0, entries.div_ceil(2)), flood: many(entries, 4 * entries) }
            }
            _ => Keys { size, bytes: many(0, entries), flood: Vec::new() },
        }
    }

    /// Every `of`th key from the `nth` on.
    fn share(&self, nth: usize, of: usize) -> Keys {
        let every = |bytes: &[u8]| bytes.chunks(self.size).skip(nth).step_by(of).flatten().copied().collect();
        Keys { size: self.size, bytes: every(&self.bytes), flood: every(&self.flood) }
    }

    fn of(&self, op: Op) -> &[u8] {
        if op == Op::Evict { &self.flood } else { &self.bytes }
    }
}

fn key(subject: &Subject, n: u32) -> Vec<u8> {
    match subject.map_type {
        // Every index once, in no order.
        MapType::Array | MapType::PercpuArray => {
            let bits = 32 - (subject.entries.max(2) - 1).leading_zeros();
            let mask = ((1u64 << bits) - 1) as u32;
            let mut at = n;
            loop {
                // A bijection of so many bits, again until the result is an index.
                at = at.wrapping_mul(0x9e37_79b1) & mask;
                at ^= at >> bits.div_ceil(2);
                if at < subject.entries {
                    return at.to_ne_bytes().to_vec();
                }
            }
        }
        MapType::LpmTrie => {
            let (length, address) = prefix(n);
            [length.to_ne_bytes(), address].concat()
        }
        _ => {
            let mut bytes: Vec<u8> =
                (0..subject.key_size.div_ceil(4)).flat_map(|w| mix32(n ^ w << 28).to_ne_bytes()).collect();
            bytes[..4].copy_from_slice(&mix32(n).to_ne_bytes());
            bytes.truncate(subject.key_size as usize);
            bytes
        }
    }
}

/// One way to work on a map.
trait Side {
    /// Does `op` with every key of it: ns each.
    fn pass(&mut self, op: Op, keys: &Keys) -> Result<f64, MapError>;
    /// Whether a key is there.
    fn has(&self, key: &[u8]) -> bool;
}

fn agree(subject: &Subject, sides: &[Box<dyn Side>], keys: &Keys) -> Result<(), MapError> {
    let step = (keys.bytes.len() / keys.size / 1000).max(1);
    let count = |side: &dyn Side| keys.bytes.chunks(keys.size).step_by(step).filter(|k| side.has(k)).count();
    let ours = count(&*sides[0]);
    match sides[1..].iter().map(|s| count(&**s)).find(|theirs| *theirs != ours) {
        Some(theirs) => Err(MapError::Differs(*subject, ours, theirs)),
        None => Ok(()),
    }
}

fn failed(what: &'static str, errno: Errno) -> MapError {
    MapError::Kernel { what, errno }
}

fn kernel_map(spec: &MapSpec) -> Result<Arc<KernelMap>, MapError> {
    KernelMap::create("bench", spec).map(Arc::new).map_err(|e| failed("creating a map", e))
}

fn timed(count: usize, what: impl FnOnce()) -> f64 {
    let start = Instant::now();
    what();
    start.elapsed().as_nanos() as f64 / count.max(1) as f64
}

/// A step that did not do what it should was not measured either. Look-ups may miss: an LRU map keeps what it likes, and the
/// keys of the others are compared.
fn all_done(op: Op, failures: usize) -> Result<(), MapError> {
    if failures == 0 || op == Op::Lookup { Ok(()) } else { Err(MapError::Failed { op: op.name(), failures }) }
}

/// A map as programs use it, on this CPU.
struct Program(Arc<Map>, u32);

impl Side for Program {
    fn pass(&mut self, op: Op, keys: &Keys) -> Result<f64, MapError> {
        let (map, cpu, all, size) = (&*self.0, self.1, keys.of(op), keys.size);
        let value = [1; VALUE];
        let mut failures = 0;
        let ns = timed(all.len() / size, || {
            for batch in all.chunks(size * BATCH) {
                let guard = Guard::pin();
                for key in batch.chunks_exact(size) {
                    let done = match op {
                        Op::Lookup => {
                            map.value(cpu, key, &guard).and_then(|v| black_box(v.load(0, VALUE)).ok()).is_some()
                        }
                        Op::Delete => map.prog_delete(cpu, key).is_ok(),
                        Op::Update | Op::Insert | Op::Evict => map.prog_update(cpu, key, &value, 0).is_ok(),
                    };
                    failures += usize::from(!done);
                }
            }
        });
        all_done(op, failures).map(|()| ns)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.0.value(self.1, key, &Guard::pin()).is_some()
    }
}

struct User(Arc<Map>);

impl Side for User {
    fn pass(&mut self, op: Op, keys: &Keys) -> Result<f64, MapError> {
        let (map, all, size) = (&*self.0, keys.of(op), keys.size);
        // Of a per-CPU type: a value for each CPU.
        let mut value = vec![1; map.user_value_size()];
        let mut failures = 0;
        let ns = timed(all.len() / size, || {
            for key in all.chunks_exact(size) {
                let done = match op {
                    Op::Lookup => map.lookup(key, &mut value, 0),
                    Op::Delete => map.delete(key),
                    Op::Update | Op::Insert | Op::Evict => map.update(key, &value, 0),
                };
                failures += usize::from(done.is_err());
            }
        });
        black_box(value);
        all_done(op, failures).map(|()| ns)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.0.lookup(key, &mut vec![0; self.0.user_value_size()], 0).is_ok()
    }
}

/// Operations that the system call is timed over; more would take minutes and change nothing.
const SYSTEM_CALLS: usize = 200_000;

struct SystemCall(KernelMap);

impl Side for SystemCall {
    fn pass(&mut self, op: Op, keys: &Keys) -> Result<f64, MapError> {
        let (map, all, size) = (&self.0, keys.of(op), keys.size);
        let mut value = vec![1; map.user_value_size()];
        let mut failures = 0;
        let mut each = |keys: &[u8]| {
            for key in keys.chunks_exact(size) {
                let done = match op {
                    Op::Lookup => map.lookup(key, &mut value, 0),
                    Op::Delete => map.delete(key),
                    Op::Update | Op::Insert | Op::Evict => map.update(key, &value, 0),
                };
                failures += usize::from(done.is_err());
            }
        };
        let (first, rest) = all.split_at(all.len().min(size * SYSTEM_CALLS));
        let ns = timed(first.len() / size, || each(first));
        // Not timed, but the next operation wants every key where it belongs.
        if op == Op::Insert || op == Op::Delete {
            each(rest);
        }
        all_done(op, failures).map(|()| ns)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.0.get(key).is_ok()
    }
}

/// A program for each operation, and one without the call, over an array that holds all keys.
struct InTestRun {
    map: Arc<KernelMap>,
    /// Keys of the map, keys of the evictions: array, number of keys.
    rings: Vec<(KernelMap, usize)>,
    state: KernelMap,
    size: usize,
    /// By ring, then: nothing, look-up, update, delete.
    programs: Vec<[KernelProg; 4]>,
}

impl InTestRun {
    fn new(map: Arc<KernelMap>, keys: &Keys) -> Result<InTestRun, MapError> {
        let create = |name, spec: &MapSpec| KernelMap::create(name, spec).map_err(|e| failed("creating a map", e));
        let state = create("state", &MapSpec::new(MapType::Array, 4, 16, 1))?;
        let stride = keys.size.next_power_of_two().max(8);
        let (mut rings, mut programs) = (Vec::new(), Vec::new());
        for bytes in [&keys.bytes, &keys.flood] {
            let count = bytes.len() / keys.size;
            if count == 0 {
                continue;
            }
            let len = count.next_power_of_two() * stride;
            let mut padded = vec![0; len];
            // The last keys come twice where their number is not a power of two.
            for (n, place) in padded.chunks_exact_mut(stride).enumerate() {
                place[..keys.size].copy_from_slice(&bytes[n % count * keys.size..][..keys.size]);
            }
            let ring = create("keys", &MapSpec::new(MapType::Array, 4, len as u32, 1))?;
            ring.update(&[0; 4], &padded, 0).map_err(|e| failed("writing the keys", e))?;
            let fds = [&ring, &state, &*map];
            let program = |call| load(call, len - stride, stride, fds);
            programs.push([program(None)?, program(Some(1))?, program(Some(2))?, program(Some(3))?]);
            rings.push((ring, count));
        }
        Ok(InTestRun { map, rings, state, size: keys.size, programs })
    }

    fn run(&self, ring: usize, program: usize) -> Result<f64, MapError> {
        self.state.update(&[0; 4], &[0; 16], 0).map_err(|e| failed("resetting the cursor", e))?;
        let repeat = self.rings[ring].1.div_ceil(BATCH) as u32;
        let input = TestInput { repeat, ..TestInput::packet(&[0; 64]) };
        let out = self.programs[ring][program].test_run(&input).map_err(|e| failed("test run", e))?;
        Ok(out.duration.as_nanos() as f64 / BATCH as f64)
    }
}

impl Side for InTestRun {
    fn pass(&mut self, op: Op, _: &Keys) -> Result<f64, MapError> {
        let ring = usize::from(op == Op::Evict);
        let program = match op {
            Op::Lookup => 1,
            Op::Update | Op::Insert | Op::Evict => 2,
            Op::Delete => 3,
        };
        let floor = self.run(ring, 0)?;
        Ok((self.run(ring, program)? - floor).max(0.0))
    }

    fn has(&self, key: &[u8]) -> bool {
        debug_assert_eq!(key.len(), self.size);
        self.map.get(key).is_ok()
    }
}

/// The loop over keys, with a call of a helper (look-up 1, update 2, delete 3) or without.
fn load(call: Option<u32>, mask: usize, stride: usize, maps: [&KernelMap; 3]) -> Result<KernelProg, MapError> {
    use std::os::fd::{AsFd, AsRawFd};
    let call = match call {
        None => String::new(),
        Some(1) => "call 1\nif r0 == 0 goto next\nr1 = *(u64 *)(r0 + 0)\n".into(),
        Some(2) => "r3 = r9\nr3 += 8\nr4 = 0\ncall 2\n".into(),
        Some(n) => format!("call {n}\n"),
    };
    let text = format!(
        "r9 = 0x7ffe0001 ll
         r7 = *(u64 *)(r9 + 0)
         r8 = 0
     again:
         r2 = 0x7ffe0000 ll
         r7 &= {mask}
         r2 += r7
         r7 += {stride}
         r1 = 0x7ffe0002 ll
         {call}
     next:
         r8 += 1
         if r8 < {BATCH} goto again
         *(u64 *)(r9 + 0) = r7
         r0 = 2
         exit"
    );
    let mut insns = assemble(&text).expect("the loop is assembler");
    for at in 0..insns.len() {
        if insns[at].is_wide() {
            let number = (insns[at].imm - 0x7ffe_0000) as usize;
            insns[at].imm = maps[number].as_fd().as_raw_fd();
            // A value's address for keys and state, the map itself for the helper.
            insns[at].src = if number == 2 { 1 } else { 2 };
            insns[at + 1].imm = 0;
        }
    }
    Ok(KernelProg::load(&ProgSpec::xdp("bench_map", &insns))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_all_different() {
        for (map_type, key_size) in [
            (MapType::Array, 4),
            (MapType::Hash, 4),
            (MapType::Hash, 37),
            (MapType::LruHash, 16),
            (MapType::LpmTrie, 8),
            (MapType::PercpuArray, 4),
            (MapType::LruPercpuHash, 16),
        ] {
            let keys = Keys::new(&Subject { map_type, key_size, entries: 1000 });
            let mut all: Vec<_> = keys.bytes.chunks(keys.size).chain(keys.flood.chunks(keys.size)).collect();
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{map_type:?}");
            assert!(count >= 900, "{map_type:?}: {count}");
        }
    }

    #[test]
    fn both_sides_hold_the_same() {
        let needs = xway_testkit::Needs::of("bench::maps::both_sides_hold_the_same").root().kernel(5, 14);
        let kernel = needs.met();
        for (map_type, key_size) in [
            (MapType::Array, 4),
            (MapType::Hash, 20),
            (MapType::LruHash, 16),
            (MapType::LpmTrie, 8),
            (MapType::PercpuArray, 4),
            (MapType::PercpuHash, 20),
            (MapType::LruPercpuHash, 16),
        ] {
            let rows = measure(Subject { map_type, key_size, entries: 500 }, kernel, 2, 0).expect("measured");
            assert!(rows.len() >= 2, "{map_type:?}");
            assert!(rows.iter().all(|r| r.program.median > 0.0 && r.kernel_user.is_some() == kernel));
        }
    }
}
