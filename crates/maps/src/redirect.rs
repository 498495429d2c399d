//! Where frames are redirected to: DEVMAP, DEVMAP_HASH, CPUMAP.
//!
//! An entry is replaced whole and atomically; who follows an old one under a guard may finish with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec};

use crate::env::{ProgramObject, ProgramUse};
use crate::hash::next_key;
use crate::keyhash::Seed;
use crate::native::{MapLayout, SlotsLayout};
use crate::ops::{Ops, check_plain_flags, index_of, next_index};
use crate::pool::Pool;
use crate::slots::Slots;
use crate::storage::Block;
use crate::table::{Shape, Table};
use crate::{Env, Guard, Handles, HugePages, SocketObject, ValueRef};

/// Where `bpf_redirect_map` sends a frame.
#[derive(Clone, Copy)]
pub enum Target<'g> {
    /// Out of a device, after the entry's program, if it has one.
    Device {
        /// The device.
        ifindex: u32,
        /// Runs for each frame on its way out.
        program: Option<&'g Arc<dyn ProgramObject>>,
    },
    /// To another CPU, where the entry's program, if it has one, runs for each frame.
    Cpu {
        /// The CPU.
        cpu: u32,
        /// Frames that its queue holds.
        qsize: u32,
        /// Runs there.
        program: Option<&'g Arc<dyn ProgramObject>>,
    },
    /// To an AF_XDP-style socket.
    Socket(&'g Arc<dyn SocketObject>),
}

/// An entry of the maps in this file.
#[repr(C)]
struct Entry {
    /// The value as programs and user space read it: the first word (ifindex or queue size) and the program's id.
    value: AtomicU64,
    program: Option<Arc<dyn ProgramObject>>,
}

/// Where generated code finds the first word.
pub(crate) const ENTRY_WORD: usize = std::mem::offset_of!(Entry, value);

impl Entry {
    fn new(word: u32, program: Option<Arc<dyn ProgramObject>>) -> Entry {
        let id = program.as_ref().map_or(0, |program| program.id());
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&word.to_ne_bytes());
        bytes[4..].copy_from_slice(&id.to_ne_bytes());
        Entry { value: AtomicU64::new(u64::from_ne_bytes(bytes)), program }
    }

    fn word(&self) -> u32 {
        index_of(&self.value.load(Ordering::Relaxed).to_ne_bytes())
    }

    fn value(&self, len: usize) -> ValueRef<'_> {
        ValueRef::of_word(&self.value, len)
    }

    fn read(&self, out: &mut [u8]) {
        let _ = self.value(out.len().min(8)).read_bytes(0, out);
    }

    fn device(&self) -> Target<'_> {
        Target::Device { ifindex: self.word(), program: self.program.as_ref() }
    }
}

/// First word and program descriptor of a value; a value of 4 bytes has no descriptor.
fn split(value: &[u8]) -> (u32, i32) {
    (index_of(value), value.get(4..8).map_or(-1, |fd| index_of(fd) as i32))
}

fn program_for(
    handles: &dyn Handles,
    fd: i32,
    program_use: ProgramUse,
) -> Result<Option<Arc<dyn ProgramObject>>, Errno> {
    if fd <= 0 {
        return Ok(None);
    }
    let program = handles.program(fd).map_err(|_| Errno::EINVAL)?;
    if program.program_use() == program_use { Ok(Some(program)) } else { Err(Errno::EINVAL) }
}

fn device_entry(handles: &dyn Handles, value: &[u8]) -> Result<Entry, Errno> {
    let (ifindex, fd) = split(value);
    if !handles.device(ifindex) {
        return Err(Errno::EINVAL);
    }
    Ok(Entry::new(ifindex, program_for(handles, fd, ProgramUse::XdpDevmap)?))
}

/// Programs of entries that lie by index.
fn programs_in<'g>(slots: &Slots<Entry>, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<dyn ProgramObject>)) {
    (0..slots.used() as usize).filter_map(|index| slots.get(index, guard)?.program.as_ref()).for_each(visit);
}

/// Removes the entries that have a program.
fn clear_programs_in(slots: &Slots<Entry>) {
    let guard = Guard::pin();
    let has = |index: &usize| slots.get(*index, &guard).is_some_and(|entry| entry.program.is_some());
    for index in (0..slots.used() as usize).filter(has) {
        slots.set(index, None);
    }
}

/// DEVMAP: devices by index.
pub(crate) struct DevMap {
    value_size: usize,
    handles: Arc<dyn Handles>,
    slots: Slots<Entry>,
}

impl DevMap {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<DevMap, Errno> {
        let slots = Slots::new(spec.max_entries)?;
        Ok(DevMap { value_size: spec.value_size as usize, handles: env.handles.clone(), slots })
    }

    fn entry<'g>(&self, index: u32, guard: &'g Guard) -> Option<&'g Entry> {
        self.slots.get(index as usize, guard)
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::Devices(SlotsLayout { base: self.slots.block().addr(), max_entries: self.slots.len() })
    }

    pub(crate) fn at<'g>(&self, index: u32, guard: &'g Guard) -> Option<Target<'g>> {
        self.entry(index, guard).map(Entry::device)
    }

    /// Every device, in the order of the indexes.
    pub(crate) fn each<'g>(&self, guard: &'g Guard, visit: &mut dyn FnMut(Target<'g>)) {
        for index in 0..self.slots.len().min(self.slots.used()) {
            if let Some(target) = self.at(index, guard) {
                visit(target);
            }
        }
    }

    pub(crate) fn programs<'g>(&self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<dyn ProgramObject>)) {
        programs_in(&self.slots, guard, visit);
    }

    pub(crate) fn clear_programs(&self) {
        clear_programs_in(&self.slots);
    }
}

impl Ops for DevMap {
    fn blocks(&self) -> Vec<&Block> {
        vec![self.slots.block()]
    }

    fn memory(&self) -> usize {
        self.slots.memory()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        self.entry(index_of(key), &Guard::pin()).ok_or(Errno::ENOENT)?.read(out);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_plain_flags(flags)?;
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if flags == f::NOEXIST {
            return Err(Errno::EEXIST);
        }
        let entry = match split(value) {
            (0, fd) if fd > 0 => return Err(Errno::EINVAL),
            (0, _) => None,
            _ => Some(device_entry(&*self.handles, value)?),
        };
        self.slots.set(index as usize, entry);
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::EINVAL);
        }
        self.slots.set(index as usize, None);
        Ok(())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.slots.len(), out)
    }

    fn value<'g>(&self, _: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.entry(index_of(key), guard).map(|entry| entry.value(self.value_size))
    }
}

/// DEVMAP_HASH: devices by any 32-bit number.
pub(crate) struct DevHash {
    value_size: u32,
    handles: Arc<dyn Handles>,
    table: Table,
    /// By element number.
    slots: Slots<Entry>,
}

impl DevHash {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<DevHash, Errno> {
        if spec.max_entries > DEVICES_MAX {
            return Err(Errno::ENOMEM);
        }
        let pool = Pool::new(spec.max_entries, env.cpus, false, false);
        // As in Linux its elements take memory when they come.
        let slots = Slots::growing(pool.capacity())?;
        let shape =
            Shape { key_size: 4, value_size: 0, seed: Seed::random(), pool, pages: HugePages::Never, whole: false };
        Ok(DevHash { value_size: spec.value_size, handles: env.handles.clone(), table: Table::new(shape)?, slots })
    }

    /// Compiled for itself where programs ask, with the key's length as a constant.
    #[inline(always)]
    fn entry<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<&'g Entry> {
        let hash = self.table.hash(key);
        loop {
            let found = self.table.find(hash, key)?;
            let entry = self.slots.get(found.index as usize, guard);
            if self.table.still(found) {
                return entry;
            }
        }
    }

    pub(crate) fn at<'g>(&self, key: u32, guard: &'g Guard) -> Option<Target<'g>> {
        self.entry(&key.to_ne_bytes(), guard).map(Entry::device)
    }

    pub(crate) fn each<'g>(&self, guard: &'g Guard, visit: &mut dyn FnMut(Target<'g>)) {
        for bucket in 0..self.table.buckets() {
            for (key, _) in crate::hash::bucket_keys(&self.table, bucket) {
                if let Some(entry) = self.entry(&key, guard) {
                    visit(entry.device());
                }
            }
        }
    }

    pub(crate) fn programs<'g>(&self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<dyn ProgramObject>)) {
        programs_in(&self.slots, guard, visit);
    }

    /// Removes the entries that have a program.
    pub(crate) fn clear_programs(&self) {
        let keys = (0..self.table.buckets()).flat_map(|bucket| crate::hash::bucket_keys(&self.table, bucket));
        for (key, _) in keys.collect::<Vec<_>>() {
            let has = self.entry(&key, &Guard::pin()).is_some_and(|entry| entry.program.is_some());
            // Whoever removes it meanwhile has done the work.
            let _ = if has { self.delete(&key) } else { Ok(()) };
        }
    }
}

/// More devices than any DEVMAP_HASH can hold: an element's number has 28 bits.
const DEVICES_MAX: u32 = 1 << 27;

impl Ops for DevHash {
    fn blocks(&self) -> Vec<&Block> {
        vec![&self.table.lines, &self.table.elements, self.slots.block()]
    }

    fn memory(&self) -> usize {
        let pointers = self.table.touched_memory(self.slots.block(), [0], size_of::<*mut Entry>());
        size_of::<DevHash>() + self.table.memory(false) + pointers + self.table.touched() * size_of::<Entry>()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        self.entry(key, &Guard::pin()).ok_or(Errno::ENOENT)?.read(out);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags > f::EXIST || split(value).0 == 0 {
            return Err(Errno::EINVAL);
        }
        // Made before the bucket is locked: who resolves descriptors and devices may wait for workers, and workers wait for buckets when
        // they broadcast. Linux says first that the key is there, and then what is wrong with the entry.
        let entry = device_entry(&*self.handles, value);
        let hash = self.table.hash(key);
        let mut bucket = self.table.lock(hash);
        let old = bucket.find(hash, key);
        if old.is_some() && flags == f::NOEXIST {
            return Err(Errno::EEXIST);
        }
        let entry = entry?;
        let set = |index: u32| {
            self.slots.set(index as usize, Some(entry));
        };
        if let Some(old) = old {
            let (spare, index) = self.table.pool().take_spare(0, old.index);
            bucket.replace(old, key, index, set);
            let gone = self.slots.replace(old.index as usize, None);
            self.table.pool().give_spare(spare, old.index);
            drop(bucket);
            drop(gone);
            return Ok(());
        }
        let index = self.table.take(0).ok_or(Errno::E2BIG)?;
        let inserted = bucket.insert(hash, key, index, set);
        if inserted.is_err() {
            self.table.give(0, index);
        }
        inserted
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let hash = self.table.hash(key);
        let mut bucket = self.table.lock(hash);
        let place = bucket.find(hash, key).ok_or(Errno::ENOENT)?;
        bucket.remove(place);
        // Workers wait for the bucket when they broadcast, and what is removed may take long to go.
        let gone = self.slots.replace(place.index as usize, None);
        self.table.give(0, place.index);
        drop(bucket);
        drop(gone);
        Ok(())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_key(&self.table, key, out)
    }

    fn value<'g>(&self, _: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.entry(key, guard).map(|entry| entry.value(self.value_size as usize))
    }
}

/// CPUMAP: the CPUs that frames are handed to, by number.
pub(crate) struct CpuMap {
    cpus: u32,
    handles: Arc<dyn Handles>,
    slots: Slots<Entry>,
}

/// Frames that a CPU's queue holds at most.
const QUEUE_MAX: u32 = 16384;

impl CpuMap {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<CpuMap, Errno> {
        Ok(CpuMap { cpus: env.cpus, handles: env.handles.clone(), slots: Slots::new(spec.max_entries)? })
    }

    fn entry<'g>(&self, cpu: u32, guard: &'g Guard) -> Option<&'g Entry> {
        self.slots.get(cpu as usize, guard)
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::Cpus(SlotsLayout { base: self.slots.block().addr(), max_entries: self.slots.len() })
    }

    pub(crate) fn at<'g>(&self, cpu: u32, guard: &'g Guard) -> Option<Target<'g>> {
        let entry = self.entry(cpu, guard)?;
        Some(Target::Cpu { cpu, qsize: entry.word(), program: entry.program.as_ref() })
    }

    pub(crate) fn programs<'g>(&self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<dyn ProgramObject>)) {
        programs_in(&self.slots, guard, visit);
    }

    pub(crate) fn clear_programs(&self) {
        clear_programs_in(&self.slots);
    }
}

impl Ops for CpuMap {
    fn blocks(&self) -> Vec<&Block> {
        vec![self.slots.block()]
    }

    fn memory(&self) -> usize {
        self.slots.memory()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        self.entry(index_of(key), &Guard::pin()).ok_or(Errno::ENOENT)?.read(out);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_plain_flags(flags)?;
        let cpu = index_of(key);
        if cpu >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if flags == f::NOEXIST {
            return Err(Errno::EEXIST);
        }
        let (qsize, fd) = split(value);
        if qsize > QUEUE_MAX {
            return Err(Errno::EOVERFLOW);
        }
        if cpu >= self.cpus {
            return Err(Errno::ENODEV);
        }
        let entry = match qsize {
            0 => None,
            // Linux has one errno for everything that goes wrong with a new entry.
            _ => program_for(&*self.handles, fd, ProgramUse::XdpCpumap)
                .map(|program| Some(Entry::new(qsize, program)))
                .map_err(|_| Errno::ENOMEM)?,
        };
        self.slots.set(cpu as usize, entry);
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let cpu = index_of(key);
        if cpu >= self.slots.len() {
            return Err(Errno::EINVAL);
        }
        self.slots.set(cpu as usize, None);
        Ok(())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.slots.len(), out)
    }
}
