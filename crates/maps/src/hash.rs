//! HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH.
//!
//! Atomicity. *HASH and LRU_HASH*: an update puts a new element in the place of the old one, so that a reader on the system
//! call side sees one whole value or the other; a program that holds a pointer goes on in the old memory. With
//! `BPF_F_LOCK` the value is overwritten in place under its spin lock. *Per-CPU types*: an update overwrites the values in
//! place; readers of other CPUs' values may see some aligned pieces old and others new. A new element appears with its
//! whole value, a deleted one disappears at once.

use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec, MapType};

use crate::keyhash::Seed;
use crate::layout::ValueLayout;
use crate::ops::{Batches, Ops, Walk, check_plain_flags, check_update_flags};
use crate::pool::{FreeList, Lru};
use crate::slab::Slab;
use crate::table::{Pool, SPARE, Table};
use crate::{Env, Guard, ValueRef};

pub(crate) struct HashMap {
    table: Table,
    layout: ValueLayout,
    /// One slab of values for each CPU, by element number; empty where the value lies in the element.
    percpu: Vec<Slab>,
}

/// The bytes that fill a value.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// From a program on this CPU.
    Program(u32, &'a [u8]),
    /// From the system call side: all CPUs' values, or the one value.
    User(&'a [u8]),
}

impl Source<'_> {
    fn cpu(self, cpus: usize) -> u32 {
        match self {
            Source::Program(cpu, _) => cpu,
            Source::User(_) => user_cpu(cpus),
        }
    }
}

impl HashMap {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<HashMap, Errno> {
        let lru = matches!(spec.map_type, MapType::LruHash | MapType::LruPercpuHash);
        let percpu = matches!(spec.map_type, MapType::PercpuHash | MapType::LruPercpuHash);
        let separate = spec.flags & f::NO_COMMON_LRU != 0;
        let layout = ValueLayout::new(spec);
        let (capacity, pool) = if lru {
            (spec.max_entries, Pool::Lru(Lru::new(spec.max_entries, env.cpus, separate)))
        } else {
            let capacity = spec.max_entries + SPARE;
            let free = FreeList::new(capacity);
            (capacity, Pool::Plain { free, count: Default::default(), max: spec.max_entries })
        };
        let whole = spec.flags & f::NO_PREALLOC == 0;
        let seed = if spec.flags & f::ZERO_SEED != 0 { Seed::ZERO } else { Seed::random() };
        let buckets = spec.max_entries.next_power_of_two();
        let inline = if percpu { 0 } else { layout.size };
        let table = Table::new(spec.key_size as usize, inline, buckets, capacity, whole, seed, pool)?;
        let values = if percpu { env.cpus } else { 0 };
        let percpu = (0..values).map(|_| Slab::new(layout.stride, capacity, whole)).collect::<Result<_, _>>()?;
        Ok(HashMap { table, layout, percpu })
    }

    /// The look-up of programs.
    #[inline]
    pub(crate) fn at<'g>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        let found = self.table.find(self.table.hash(key), key)?;
        if let Pool::Lru(_) = self.table.pool() {
            self.table.touch(found.index);
        }
        self.value_of(found.index, cpu, guard)
    }

    #[inline]
    fn value_of<'g>(&self, index: u32, cpu: u32, guard: &'g Guard) -> Option<ValueRef<'g>> {
        if self.percpu.is_empty() {
            return Some(self.table.value(index, guard));
        }
        let (block, offset) = self.percpu.get(cpu as usize)?.place(index);
        Some(block.value(offset, self.layout.size, guard))
    }

    /// One CPU's value with the bytes up to the next multiple of 8.
    fn padded<'g>(&self, index: u32, cpu: usize, guard: &'g Guard) -> Option<ValueRef<'g>> {
        let (block, offset) = self.percpu.get(cpu)?.place(index);
        Some(block.value(offset, self.layout.stride, guard))
    }

    /// Copies an element's value, or all CPUs' values.
    fn read_value(&self, index: u32, out: &mut [u8], locked: bool) {
        let guard = Guard::pin();
        if self.percpu.is_empty() {
            let value = self.table.value(index, &guard);
            if locked { self.layout.read_locked(value, out) } else { self.layout.read(value, out) }
        }
        for (cpu, out) in out.chunks_exact_mut(self.layout.stride).enumerate() {
            let Some(value) = self.padded(index, cpu, &guard) else { return };
            self.layout.read_padded(value, out);
        }
    }

    /// Fills the value of a new element: every CPU's, zero where the source has nothing for it.
    fn init_value(&self, index: u32, source: Source<'_>) {
        let guard = Guard::pin();
        if self.percpu.is_empty() {
            let (Source::Program(_, bytes) | Source::User(bytes)) = source;
            self.layout.init(self.table.value(index, &guard), bytes);
            return;
        }
        for cpu in 0..self.percpu.len() {
            let Some(value) = self.padded(index, cpu, &guard) else { return };
            if let Source::Program(..) = source {
                let _ = value.write_bytes(0, &vec![0; self.layout.stride]);
            }
            self.layout.clear_special(value);
        }
        self.write_value(index, source);
    }

    /// Overwrites in place: all CPUs' values, or the one that the source has.
    fn write_value(&self, index: u32, source: Source<'_>) {
        let guard = Guard::pin();
        match source {
            Source::Program(cpu, bytes) => {
                if let Some(value) = self.value_of(index, cpu, &guard) {
                    self.layout.write(value, bytes);
                }
            }
            Source::User(bytes) => {
                for (cpu, bytes) in bytes.chunks_exact(self.layout.stride).enumerate() {
                    if let Some(value) = self.padded(index, cpu, &guard) {
                        self.layout.write_padded(value, bytes);
                    }
                }
            }
        }
    }

    fn grow(&self, index: u32) -> Result<(), Errno> {
        self.percpu.iter().try_for_each(|slab| slab.grow_to(index))
    }

    /// What an element that leaves the table takes with it: its timers and the like see the zero and stop.
    fn retire(&self, index: u32) {
        if self.layout.has_special() {
            let guard = Guard::pin();
            for cpu in 0..self.percpu.len().max(1) {
                if let Some(value) = self.value_of(index, cpu as u32, &guard) {
                    self.layout.clear_special(value);
                }
            }
        }
    }

    fn store(&self, key: &[u8], source: Source<'_>, flags: u64) -> Result<(), Errno> {
        check_update_flags(flags)?;
        if flags & f::LOCK != 0 && !self.layout.has_lock() {
            return Err(Errno::EINVAL);
        }
        let hash = self.table.hash(key);
        let cpu = source.cpu(self.cpus());
        let mut new = match self.table.pool() {
            // Making room may need another bucket's lock, so it comes before ours. A per-CPU update of what must exist
            // needs no new element.
            Pool::Lru(lru) if self.percpu.is_empty() || flags != f::EXIST => {
                Some(self.table.take_lru(lru, cpu, |index| self.retire(index))?)
            }
            _ => None,
        };
        let result = self.store_locked(hash, key, source, flags, cpu, &mut new);
        if let Some(unused) = new {
            self.table.give(cpu, unused, false);
        }
        result
    }

    fn store_locked(
        &self,
        hash: u32,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
        cpu: u32,
        new: &mut Option<u32>,
    ) -> Result<(), Errno> {
        let _lock = self.table.lock(hash);
        let old = self.table.find_locked(hash, key);
        match old {
            Some(_) if flags & !f::LOCK == f::NOEXIST => return Err(Errno::EEXIST),
            None if flags & !f::LOCK == f::EXIST => return Err(Errno::ENOENT),
            Some(index) if flags & f::LOCK != 0 => {
                let (Source::Program(_, bytes) | Source::User(bytes)) = source;
                self.layout.write_locked(self.table.value(index, &Guard::pin()), bytes);
                return Ok(());
            }
            Some(index) if !self.percpu.is_empty() => {
                self.write_value(index, source);
                if let Pool::Lru(_) = self.table.pool() {
                    self.table.touch(index);
                }
                return Ok(());
            }
            _ => {}
        }
        let lru = matches!(self.table.pool(), Pool::Lru(_));
        let index = match new.take() {
            Some(index) => index,
            None if lru => return Err(Errno::ENOENT),
            None => self.table.take_plain(old.is_some())?,
        };
        if let Err(errno) = self.grow(index) {
            self.table.give(cpu, index, old.is_none());
            return Err(errno);
        }
        self.table.insert(hash, key, index, |index| self.init_value(index, source));
        if let Some(old) = old {
            if lru {
                self.table.touch(index);
            }
            self.table.unlink_replaced(hash, old);
            self.retire(old);
            self.table.give(cpu, old, false);
        }
        Ok(())
    }

    fn remove(&self, cpu: u32, key: &[u8], before: impl FnOnce(u32)) -> Result<(), Errno> {
        let hash = self.table.hash(key);
        let _lock = self.table.lock(hash);
        let index = self.table.find_locked(hash, key).ok_or(Errno::ENOENT)?;
        before(index);
        self.drop_element(hash, index, cpu);
        Ok(())
    }

    /// Under the bucket's lock.
    fn drop_element(&self, hash: u32, index: u32, cpu: u32) {
        self.table.unlink(hash, index);
        self.retire(index);
        self.table.give(cpu, index, true);
    }

    fn cpus(&self) -> usize {
        match self.table.pool() {
            Pool::Lru(lru) => lru.cpus(),
            Pool::Plain { .. } => self.percpu.len().max(1),
        }
    }
}

impl Ops for HashMap {
    fn lookup(&self, key: &[u8], out: &mut [u8], locked: bool) -> Result<(), Errno> {
        let hash = self.table.hash(key);
        loop {
            let found = self.table.find(hash, key).ok_or(Errno::ENOENT)?;
            self.read_value(found.index, out, locked);
            if self.table.still(found) {
                return Ok(());
            }
        }
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if !self.percpu.is_empty() {
            check_plain_flags(flags)?;
        }
        self.store(key, Source::User(value), flags)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        self.remove(user_cpu(self.cpus()), key, |_| ())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_key(&self.table, key, out)
    }

    fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], locked: bool) -> Result<(), Errno> {
        self.remove(user_cpu(self.cpus()), key, |index| self.read_value(index, out, locked))
    }

    fn batches(&self) -> Batches {
        Batches { lookup: true, update: true, delete: true, lookup_and_delete: true, checks_flags: true }
    }

    fn walk(&self, walk: &mut Walk<'_>) -> Option<(u32, Result<(), Errno>)> {
        let delete = walk.delete;
        let locked = walk.locked;
        let cpu = user_cpu(self.cpus());
        let copy = |index, out: &mut [u8]| {
            self.read_value(index, out, locked);
            Ok(())
        };
        let value_size = walk.values.len() / walk.max;
        Some(walk_buckets(&self.table, walk, value_size, copy, |hash, index| {
            if delete {
                self.drop_element(hash, index, cpu);
            }
        }))
    }

    fn value<'g>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.at(cpu, key, guard)
    }

    fn prog_update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if !self.percpu.is_empty() {
            check_plain_flags(flags)?;
        }
        self.store(key, Source::Program(cpu, value), flags)
    }

    fn prog_delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        self.remove(cpu, key, |_| ())
    }

    fn for_each<'g>(
        &self,
        cpu: u32,
        guard: &'g Guard,
        visit: &mut dyn FnMut(&[u8], ValueRef<'g>) -> bool,
    ) -> Result<u64, Errno> {
        let mut visits = 0;
        for bucket in 0..self.table.buckets() {
            // The callback may write to this very map, so the bucket is not locked while it runs.
            for (key, index) in bucket_keys(&self.table, bucket) {
                let Some(value) = self.value_of(index, cpu, guard) else { continue };
                visits += 1;
                if !visit(&key, value) {
                    return Ok(visits);
                }
            }
        }
        Ok(visits)
    }
}

/// Keys and elements of a bucket at this moment.
pub(crate) fn bucket_keys(table: &Table, bucket: u32) -> Vec<(Vec<u8>, u32)> {
    if table.is_empty_bucket(bucket) {
        return Vec::new();
    }
    let _lock = table.lock(bucket);
    table
        .chain(bucket)
        .map(|index| {
            let mut key = vec![0; table.key_size()];
            table.read_key(index, &mut key);
            (key, index)
        })
        .collect()
}

/// `get_next_key` of hash tables: along the chain, then on to the next bucket that holds something.
pub(crate) fn next_key(table: &Table, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
    let mut from = 0;
    if let Some(key) = key {
        let hash = table.hash(key);
        let _lock = table.lock(hash);
        if let Some(here) = table.find_locked(hash, key) {
            let bucket = hash & (table.buckets() - 1);
            if let Some(next) = table.chain(bucket).skip_while(|&index| index != here).nth(1) {
                table.read_key(next, out);
                return Ok(());
            }
            from = bucket + 1;
        }
    }
    for bucket in from..table.buckets() {
        if table.is_empty_bucket(bucket) {
            continue;
        }
        let _lock = table.lock(bucket);
        if let Some(first) = table.chain(bucket).next() {
            table.read_key(first, out);
            return Ok(());
        }
    }
    Err(Errno::ENOENT)
}

/// The batch walk of hash tables: whole buckets, the token is the next bucket's number. `ENOSPC` when not even one bucket
/// fits, `ENOENT` after the last.
pub(crate) fn walk_buckets(
    table: &Table,
    walk: &mut Walk<'_>,
    value_size: usize,
    mut copy: impl FnMut(u32, &mut [u8]) -> Result<(), Errno>,
    mut after: impl FnMut(u32, u32),
) -> (u32, Result<(), Errno>) {
    let mut bucket = walk.from.map_or(0, crate::ops::index_of);
    if bucket >= table.buckets() {
        return (0, Err(Errno::ENOENT));
    }
    let key_size = table.key_size();
    let mut done = 0;
    let mut result = Ok(());
    loop {
        if !table.is_empty_bucket(bucket) {
            let _lock = table.lock(bucket);
            let elements: Vec<u32> = table.chain(bucket).collect();
            if elements.len() > walk.max - done {
                if done == 0 {
                    result = Err(Errno::ENOSPC);
                }
                break;
            }
            for &index in &elements {
                let value = &mut walk.values[done * value_size..][..value_size];
                if copy(index, value).is_err() {
                    continue;
                }
                table.read_key(index, &mut walk.keys[done * key_size..][..key_size]);
                done += 1;
            }
            for index in elements {
                after(table.hash_of(index), index);
            }
        }
        bucket += 1;
        if bucket >= table.buckets() {
            result = Err(Errno::ENOENT);
            break;
        }
    }
    walk.token[..4].copy_from_slice(&bucket.to_ne_bytes());
    (done as u32, result)
}

/// The CPU that a call from the system call side counts for: threads are spread over them.
pub(crate) fn user_cpu(cpus: usize) -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! { static MINE: u32 = NEXT.fetch_add(1, Ordering::Relaxed); }
    MINE.with(|mine| mine % cpus.max(1) as u32)
}
