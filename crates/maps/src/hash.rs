//! HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH.
//!
//! Atomicity. *HASH and LRU_HASH*: an update puts a new element in the place of the old one, so that a reader on the system
//! call side sees one whole value or the other; a program that holds a pointer goes on in the old memory. With
//! `BPF_F_LOCK` the value is overwritten in place under its spin lock. *Per-CPU types*: an update overwrites the values in
//! place; readers of other CPUs' values may see some aligned pieces old and others new. A new element appears with its
//! whole value, a deleted one disappears at once.

use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec, MapType};

use crate::ahead;
use crate::keyhash::{Seed, in_words};
use crate::layout::ValueLayout;
use crate::line::Line;
use crate::native::{HashLayout, MapLayout};
use crate::ops::{Batches, Ops, Walk, check_plain_flags, check_update_flags};
use crate::pool::Pool;
use crate::shared;
use crate::storage::Block;
use crate::table::{Bucket, Near, Place, Shape, Table};
use crate::{Env, Guard, HugePages, ValueRef};

pub(crate) struct HashMap {
    pub(crate) table: Table,
    pub(crate) layout: ValueLayout,
    pub(crate) percpu: Option<PerCpu>,
    /// Preallocated: all memory counts from the start.
    whole: bool,
    /// Values without special fields, in a table in which an update of what is there takes nothing out.
    plain: bool,
}

/// The values of all CPUs, where they do not lie in the elements: CPU by CPU, each by element number.
pub(crate) struct PerCpu {
    pub(crate) values: Block,
    /// Bytes from one CPU's values to the next CPU's: whole lines, and of larger maps whole pages, so that CPUs share none.
    pub(crate) cpu_stride: usize,
    pub(crate) cpus: u32,
}

/// From so many bytes for each CPU on, each has pages of its own; less than a line lies beside other maps'.
const OWN_PAGES: usize = 32 << 10;

impl PerCpu {
    /// Values of `stride` bytes for `count` elements on each CPU; without `pages` they take memory as they are used.
    pub(crate) fn new(stride: usize, count: usize, cpus: u32, pages: Option<HugePages>) -> Result<PerCpu, Errno> {
        let bytes = stride.checked_mul(count).ok_or(Errno::ENOMEM)?;
        if (1..64).contains(&bytes) {
            return Ok(PerCpu { values: shared::take(cpus, bytes)?, cpu_stride: shared::STRIDE, cpus });
        }
        // Half a page wasted for each CPU would be much for values of a few pages; lines are kept apart always.
        let unit = if bytes < OWN_PAGES { 64 } else { 4096 };
        let cpu_stride = bytes.checked_next_multiple_of(unit).ok_or(Errno::ENOMEM)?;
        let whole = cpu_stride.checked_mul(cpus as usize).ok_or(Errno::ENOMEM)?;
        let values = pages.map_or_else(|| Block::growing(whole), |pages| Block::with_pages(whole, pages))?;
        Ok(PerCpu { values, cpu_stride, cpus })
    }

    /// Where a CPU's value begins; `None`: no such CPU.
    #[inline]
    pub(crate) fn offset(&self, cpu: u32, index: u32, stride: usize) -> Option<usize> {
        (cpu < self.cpus).then(|| cpu as usize * self.cpu_stride + index as usize * stride)
    }
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
        let whole = spec.flags & f::NO_PREALLOC == 0;
        let pages = if whole { env.huge_pages } else { HugePages::Never };
        let pool = Pool::new(spec.max_entries, env.cpus, lru, separate);
        let capacity = pool.capacity() as usize;
        let shape = Shape {
            key_size: spec.key_size as usize,
            value_size: if percpu { 0 } else { layout.size() },
            seed: if spec.flags & f::ZERO_SEED != 0 { Seed::zero() } else { Seed::random() },
            pool,
            pages,
            whole,
        };
        let table = Table::new(shape)?;
        let values = || PerCpu::new(layout.stride(), capacity, env.cpus, if whole { Some(pages) } else { None });
        let percpu = percpu.then(values).transpose()?;
        let plain = !layout.has_special() && !has_one_place(&table);
        Ok(HashMap { table, layout, percpu, whole, plain })
    }

    pub(crate) fn layout(&self) -> MapLayout {
        let table = self.table.layout();
        MapLayout::Hash(self.percpu.as_ref().map_or(table, |percpu| HashLayout {
            percpu_values: percpu.values.addr(),
            cpu_stride: percpu.cpu_stride,
            value_stride: self.layout.stride(),
            ..table
        }))
    }

    /// Looks up to [`MANY`] keys up, with all memory that the next step needs on its way before the step begins.
    pub(crate) fn at_many<'k, 'g>(
        &self,
        cpu: u32,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        guard: &'g Guard,
        mut each: impl FnMut(usize, Option<ValueRef<'g>>),
    ) {
        let mut hashes = [0; MANY];
        let hashes = &mut hashes[..count];
        for (n, hash) in hashes.iter_mut().enumerate() {
            *hash = self.table.hash(key(n));
            self.table.prefetch_bucket(*hash);
        }
        for hash in hashes.iter() {
            self.table.prefetch_elements(*hash, |_| ());
        }
        for (n, hash) in hashes.iter().enumerate() {
            let found = self.table.find(*hash, key(n));
            each(
                n,
                found.and_then(|found| {
                    self.table.touch(found);
                    self.value_of(found.index, cpu, guard)
                }),
            );
        }
    }

    /// Bytes that look-ups are spread over when so many elements are in use: buckets, elements, and one CPU's values.
    pub(crate) fn spread(&self, elements: usize) -> usize {
        let buckets = (elements * size_of::<Line>()).min(self.table.lines.bytes());
        let values = if self.percpu.is_some() { self.layout.stride() } else { 0 };
        buckets + elements * (self.table.stride() + values)
    }

    /// Fetches the elements that the buckets of these hashes name, and what stands behind full buckets.
    pub(crate) fn fetch_ahead(&self, cpu: u32, notes: &[u64]) {
        let value = |index: u32| {
            if let Some(values) = &self.percpu
                && let Some(at) = values.offset(cpu, index, self.layout.stride())
            {
                values.values.prefetch(at);
            }
        };
        let mut behind = [0; ahead::MANY];
        let mut count = 0;
        for &hash in notes {
            if self.table.prefetch_elements(hash, value)
                && let Some(place) = behind.get_mut(count)
            {
                *place = hash;
                count += 1;
            }
        }
        behind[..count].iter().for_each(|hash| self.table.prefetch_behind(*hash, value));
    }

    /// The look-up of programs.
    #[inline]
    pub(crate) fn at<'g>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        // The lengths that programs use, each compiled for itself.
        match key.len() {
            4 => self.at_sized::<4>(cpu, key, guard),
            8 => self.at_sized::<8>(cpu, key, guard),
            16 => self.at_sized::<16>(cpu, key, guard),
            20 => self.at_sized::<20>(cpu, key, guard),
            36 => self.at_sized::<36>(cpu, key, guard),
            40 => self.at_sized::<40>(cpu, key, guard),
            _ => self.at_any(cpu, key, guard),
        }
    }

    fn at_sized<'g, const LEN: usize>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.at_any(cpu, key.first_chunk::<LEN>()?, guard)
    }

    #[inline(always)]
    fn at_any<'g>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        let found = self.table.find(self.table.seed.words(key), key)?;
        self.table.touch(found);
        self.value_of(found.index, cpu, guard)
    }

    #[inline]
    pub(crate) fn value_of<'g>(&self, index: u32, cpu: u32, guard: &'g Guard) -> Option<ValueRef<'g>> {
        match &self.percpu {
            None => Some(self.table.value(index, guard)),
            Some(values) => {
                let offset = values.offset(cpu, index, self.layout.stride())?;
                Some(values.values.value(offset, self.layout.size(), guard))
            }
        }
    }

    /// As [`HashMap::value_of`], for the map itself.
    #[inline]
    fn own_value(&self, index: u32, cpu: u32) -> Option<ValueRef<'_>> {
        match &self.percpu {
            None => Some(self.table.own_value(index)),
            Some(values) => {
                let offset = values.offset(cpu, index, self.layout.stride())?;
                Some(values.values.place(offset, self.layout.size()))
            }
        }
    }

    /// One CPU's value with the bytes up to the next multiple of 8, for the map itself.
    fn padded(&self, index: u32, cpu: usize) -> Option<ValueRef<'_>> {
        let values = self.percpu.as_ref()?;
        let offset = values.offset(cpu as u32, index, self.layout.stride())?;
        Some(values.values.place(offset, self.layout.stride()))
    }

    /// How many values an element has.
    fn values(&self) -> u32 {
        self.percpu.as_ref().map_or(1, |values| values.cpus)
    }

    /// Copies an element's value, or all CPUs' values.
    fn read_value(&self, index: u32, out: &mut [u8], locked: bool) {
        if self.percpu.is_none() {
            let value = self.table.own_value(index);
            if locked {
                self.layout.read_locked(value, out)
            } else {
                self.layout.read(value, out)
            }
            return;
        }
        for (cpu, out) in out.chunks_exact_mut(self.layout.stride()).enumerate() {
            let Some(value) = self.padded(index, cpu) else { return };
            self.layout.read_padded(value, out);
        }
    }

    /// Fills the value of a new element: every CPU's, zero where the source has nothing for it.
    fn init_value(&self, index: u32, source: Source<'_>) {
        if self.percpu.is_none() {
            let (Source::Program(_, bytes) | Source::User(bytes)) = source;
            self.layout.init(self.table.own_value(index), bytes);
            return;
        }
        for cpu in 0..self.values() as usize {
            let Some(value) = self.padded(index, cpu) else { return };
            if let Source::Program(..) = source {
                const ZEROS: [u8; 256] = [0; 256];
                for at in (0..self.layout.stride()).step_by(ZEROS.len()) {
                    let part = &ZEROS[..ZEROS.len().min(self.layout.stride() - at)];
                    let _ = value.write_bytes(at, part);
                }
            }
            self.layout.clear_special(value);
        }
        self.write_value(index, source);
    }

    /// Overwrites in place: all CPUs' values, or the one that the source has.
    fn write_value(&self, index: u32, source: Source<'_>) {
        match source {
            Source::Program(cpu, bytes) => {
                if let Some(value) = self.own_value(index, cpu) {
                    self.layout.write(value, bytes);
                }
            }
            Source::User(bytes) => {
                for (cpu, bytes) in bytes.chunks_exact(self.layout.stride()).enumerate() {
                    if let Some(value) = self.padded(index, cpu) {
                        self.layout.write_padded(value, bytes);
                    }
                }
            }
        }
    }

    /// What an element that leaves the table takes with it: its timers and the like see the zero and stop.
    fn retire(&self, index: u32) {
        if self.layout.has_special() {
            for cpu in 0..self.values() {
                if let Some(value) = self.own_value(index, cpu) {
                    self.layout.clear_special(value);
                }
            }
        }
    }

    /// Flags that an update of this map may have.
    #[inline]
    fn check_flags(&self, flags: u64) -> Result<(), Errno> {
        if self.percpu.is_some() {
            return check_plain_flags(flags);
        }
        check_update_flags(flags)?;
        if flags & f::LOCK != 0 && !self.layout.has_lock() { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// What a program puts in. Plain values, of keys that are there or of new ones in a table that has room, are what is done here; the
    /// rest is [`HashMap::store`]'s.
    fn put<const N: usize>(
        &self,
        cpu: u32,
        (key, words): (&[u8], [u64; N]),
        value: &[u8],
        flags: u64,
    ) -> Result<(), Errno> {
        let hash = self.table.seed.of_words(&words);
        let mut bucket = self.table.lock(hash);
        if self.plain {
            match bucket.find_near(hash, &words) {
                Near::Here(place) if matches!(flags, f::ANY | f::EXIST) => {
                    if self.percpu.is_some() {
                        if let Some(own) = self.own_value(place.index, cpu) {
                            let _ = own.write_bytes(0, value);
                        }
                        bucket.touch(place);
                    } else {
                        let (spare, index) = self.table.pool().take_spare(cpu, place.index);
                        bucket.replace_plain(place, &words, index, value);
                        self.table.pool().give_spare(spare, place.index);
                    }
                    return Ok(());
                }
                Near::No(near) if matches!(flags, f::ANY | f::NOEXIST) && self.percpu.is_none() => {
                    if self.table.pool().evicts() {
                        // Plain elements take nothing with them.
                        let evicted = || bucket.make_room(cpu).map(|index| self.table.exchange(cpu, index));
                        if let Some(index) = self.table.take(cpu).or_else(evicted) {
                            let inserted = bucket.insert_plain(hash, &words, index, value);
                            inserted.inspect_err(|_| self.table.give(cpu, index))?;
                            return Ok(());
                        }
                    } else if let Some(slot) = near
                        && let Some(index) = self.table.take(cpu)
                    {
                        bucket.insert_near((hash, slot), &words, index, value);
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        self.store(bucket, hash, key, Source::Program(cpu, value), flags)
    }

    /// What a program takes out.
    fn take_out<const N: usize>(&self, cpu: u32, (key, words): (&[u8], [u64; N])) -> Result<(), Errno> {
        let hash = self.table.seed.of_words(&words);
        let mut bucket = self.table.lock(hash);
        match bucket.find_near(hash, &words) {
            Near::Here(place) => self.drop_element(&mut bucket, place, cpu),
            Near::No(_) => return Err(Errno::ENOENT),
            Near::Unknown => {
                let place = bucket.find(hash, key).ok_or(Errno::ENOENT)?;
                self.drop_element(&mut bucket, place, cpu);
            }
        }
        Ok(())
    }

    /// Puts a value in, under flags that are allowed. `bucket` is the one of the hash.
    #[inline(never)]
    fn store<'t>(
        &'t self,
        bucket: Bucket<'t>,
        hash: u64,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
    ) -> Result<(), Errno> {
        let cpu = source.cpu(self.cpus());
        let mut locked = Some(bucket);
        for tries in 0..TRIES {
            let mut bucket = locked.take().unwrap_or_else(|| self.table.lock(hash));
            let mut old = bucket.find(hash, key);
            // Linux makes room before it looks for the key. That shows where the only room is the key's own.
            if let Some(only) = old
                && has_one_place(&self.table)
                && (self.percpu.is_none() || flags != f::EXIST)
            {
                self.drop_element(&mut bucket, only, cpu);
                old = None;
            }
            match old {
                Some(_) if flags & !f::LOCK == f::NOEXIST => return Err(Errno::EEXIST),
                None if flags & !f::LOCK == f::EXIST => {
                    // Of another key, too: the room is made, and then there is nothing to put in.
                    if has_one_place(&self.table)
                        && self.percpu.is_none()
                        && let Some(other) = bucket.make_room(cpu)
                    {
                        self.retire(other);
                        self.table.give(cpu, other);
                    }
                    return Err(Errno::ENOENT);
                }
                Some(place) => {
                    self.overwrite(&mut bucket, place, key, source, flags, cpu);
                    return Ok(());
                }
                None => {}
            }
            let index = self.table.take(cpu).or_else(|| {
                let evicted = self.table.pool().evicts().then(|| bucket.make_room(cpu)).flatten()?;
                self.retire(evicted);
                Some(self.table.exchange(cpu, evicted))
            });
            if let Some(index) = index {
                let inserted = bucket.insert(hash, key, index, |index| self.init_value(index, source));
                if inserted.is_err() {
                    self.table.give(cpu, index);
                }
                return inserted;
            }
            if !self.table.pool().evicts() {
                return Err(Errno::E2BIG);
            }
            // Every element is in the hands of threads that are about to put it in.
            drop(bucket);
            if tries % 16 == 15 {
                std::thread::yield_now();
            }
        }
        Err(Errno::ENOMEM)
    }

    /// Gives a key that is there another value: in place under the value's lock and for per-CPU types, else in a new
    /// element.
    fn overwrite<'t>(
        &'t self,
        bucket: &mut Bucket<'t>,
        place: Place<'t>,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
        cpu: u32,
    ) {
        if flags & f::LOCK != 0 {
            let (Source::Program(_, bytes) | Source::User(bytes)) = source;
            self.layout.write_locked(self.table.own_value(place.index), bytes);
            return;
        }
        if self.percpu.is_some() {
            self.write_value(place.index, source);
            bucket.touch(place);
            return;
        }
        let (spare, index) = self.table.pool().take_spare(cpu, place.index);
        bucket.replace(place, key, index, |index| self.init_value(index, source));
        self.retire(place.index);
        self.table.pool().give_spare(spare, place.index);
    }

    fn remove(&self, cpu: u32, key: &[u8], before: impl FnOnce(u32)) -> Result<(), Errno> {
        let hash = self.table.hash(key);
        let mut bucket = self.table.lock(hash);
        let place = bucket.find(hash, key).ok_or(Errno::ENOENT)?;
        before(place.index);
        self.drop_element(&mut bucket, place, cpu);
        Ok(())
    }

    fn drop_element<'t>(&'t self, bucket: &mut Bucket<'t>, place: Place<'t>, cpu: u32) {
        bucket.remove(place);
        self.retire(place.index);
        self.table.give(cpu, place.index);
    }

    fn cpus(&self) -> usize {
        self.table.pool().cpus() as usize
    }
}

/// Whether an element that comes always takes the place of the only one there is.
fn has_one_place(table: &Table) -> bool {
    table.pool().evicts() && table.pool().max() == 1
}

/// Keys that are looked up at once: enough to hide the memory's latency, few enough to stay in the first cache.
pub(crate) const MANY: usize = 32;

/// How often a full LRU table is asked for room while other threads hold all its elements.
const TRIES: u32 = 1024;

/// A call with the key and its words, for the lengths that programs use, each of which is compiled for itself; else the other one.
macro_rules! by_length {
    ($key:expr, |$words:ident| $call:expr, $else:expr) => {{
        macro_rules! of {
            ($len:literal) => {{
                let $words = ($key, in_words::<{ usize::div_ceil($len, 8) }>(&$key[..$len]));
                $call
            }};
        }
        match $key.len() {
            4 => of!(4),
            6 => of!(6),
            8 => of!(8),
            12 => of!(12),
            16 => of!(16),
            20 => of!(20),
            36 => of!(36),
            40 => of!(40),
            _ => $else,
        }
    }};
}

impl Ops for HashMap {
    fn blocks(&self) -> Vec<&Block> {
        let values = self.percpu.as_ref().map(|values| &values.values);
        [&self.table.elements, &self.table.lines].into_iter().chain(values).collect()
    }

    fn memory(&self) -> usize {
        let values = self.percpu.as_ref().map_or(0, |PerCpu { values, cpu_stride, cpus }| {
            if self.whole {
                return values.memory();
            }
            let places = (0..*cpus as usize).map(|cpu| cpu * cpu_stride);
            self.table.touched_memory(values, places, self.layout.stride())
        });
        size_of::<HashMap>() + self.layout.memory() + self.table.memory(self.whole) + values
    }

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
        self.check_flags(flags)?;
        let hash = self.table.hash(key);
        self.store(self.table.lock(hash), hash, key, Source::User(value), flags)
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
        Some(walk_buckets(&self.table, walk, value_size, copy, |bucket, place| {
            if delete {
                self.drop_element(bucket, place, cpu);
            }
        }))
    }

    fn value<'g>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.at(cpu, key, guard)
    }

    fn prog_update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.check_flags(flags)?;
        by_length!(key, |key| self.put(cpu, key, value, flags), {
            let hash = self.table.hash(key);
            self.store(self.table.lock(hash), hash, key, Source::Program(cpu, value), flags)
        })
    }

    fn prog_delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        by_length!(key, |key| self.take_out(cpu, key), self.remove(cpu, key, |_| ()))
    }

    fn for_each<'g>(
        &self,
        cpu: u32,
        guard: &'g Guard,
        visit: &mut dyn FnMut(&[u8], ValueRef<'g>) -> bool,
    ) -> Result<u64, Errno> {
        let mut visits = 0;
        for bucket in 0..self.table.buckets() {
            let seen = self.table.look(bucket);
            // The callback may write to this very map, so the bucket is not locked while it runs.
            for (key, index) in bucket_keys(&self.table, bucket) {
                // Nor is the element still the key's then: it may have another one, or none any more.
                let index = match self.table.is_still(bucket, seen) {
                    true => Some(index),
                    false => self.table.find(self.table.hash(&key), &key).map(|found| found.index),
                };
                let Some(value) = index.and_then(|index| self.value_of(index, cpu, guard)) else { continue };
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
    let locked = table.lock(u64::from(bucket));
    let with_key = |place: Place<'_>| {
        let mut key = vec![0; table.key_size()];
        table.read_key(place.index, &mut key);
        (key, place.index)
    };
    locked.places().into_iter().map(with_key).collect()
}

/// `get_next_key` of hash tables: along the bucket, then on to the next bucket that holds something.
pub(crate) fn next_key(table: &Table, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
    let mut from = 0;
    if let Some(key) = key {
        let hash = table.hash(key);
        let bucket = table.lock(hash);
        if let Some(here) = bucket.find(hash, key) {
            if let Some(next) = bucket.places().iter().skip_while(|place| place.index != here.index).nth(1) {
                table.read_key(next.index, out);
                return Ok(());
            }
            from = (hash as u32 & (table.buckets() - 1)) + 1;
        }
    }
    for bucket in from..table.buckets() {
        if table.is_empty_bucket(bucket) {
            continue;
        }
        let locked = table.lock(u64::from(bucket));
        if let Some(first) = locked.places().first() {
            table.read_key(first.index, out);
            return Ok(());
        }
    }
    Err(Errno::ENOENT)
}

/// The batch walk of hash tables: whole buckets as Linux counts them, the token is the next bucket's number. `ENOSPC` when
/// not even one bucket fits, `ENOENT` after the last.
pub(crate) fn walk_buckets<'t>(
    table: &'t Table,
    walk: &mut Walk<'_>,
    value_size: usize,
    mut copy: impl FnMut(u32, &mut [u8]) -> Result<(), Errno>,
    mut after: impl FnMut(&mut Bucket<'t>, Place<'t>),
) -> (u32, Result<(), Errno>) {
    let parts_in_bucket = table.parts() / table.buckets();
    let mut part = walk.from.map_or(0, crate::ops::index_of);
    if part >= table.parts() {
        return (0, Err(Errno::ENOENT));
    }
    let key_size = table.key_size();
    let mut done = 0;
    let mut result = Ok(());
    loop {
        let number = part / parts_in_bucket;
        if !table.is_empty_bucket(number) {
            let mut bucket = table.lock(u64::from(number));
            let places = bucket.places_in_part(part);
            if places.len() > walk.max - done {
                if done == 0 {
                    result = Err(Errno::ENOSPC);
                }
                break;
            }
            for place in &places {
                let value = &mut walk.values[done * value_size..][..value_size];
                if copy(place.index, value).is_err() {
                    continue;
                }
                table.read_key(place.index, &mut walk.keys[done * key_size..][..key_size]);
                done += 1;
            }
            for place in places {
                after(&mut bucket, place);
            }
        }
        part += 1;
        if part >= table.parts() {
            result = Err(Errno::ENOENT);
            break;
        }
    }
    walk.token[..4].copy_from_slice(&part.to_ne_bytes());
    (done as u32, result)
}

/// The CPU that a call from the system call side counts for: threads are spread over them.
pub(crate) fn user_cpu(cpus: usize) -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! { static MINE: u32 = NEXT.fetch_add(1, Ordering::Relaxed); }
    MINE.with(|mine| mine % cpus.max(1) as u32)
}
