//! Maps whose values are objects: PROG_ARRAY, ARRAY_OF_MAPS, HASH_OF_MAPS, XSKMAP, CGROUP_ARRAY.
//!
//! User space writes descriptors, which [`Handles`] resolves at once, and reads ids. Programs get the object
//! itself, without a lock; what is replaced lives on behind the guards. Replacing an object is atomic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec, MapType};

use crate::env::{ProgramObject, ProgramUse, SocketObject};
use crate::hash::{next_key, walk_buckets};
use crate::keyhash::Seed;
use crate::native::{ArrayLayout, InnerSlot, MapLayout, MapsByKeyLayout, ProgramSlot, SlotsLayout};
use crate::ops::{Batches, Ops, Walk, check_plain_flags, index_of, next_index};
use crate::pool::Pool;
use crate::slots::{Retired, Slots};
use crate::storage::Block;
use crate::table::{Bucket, Place, Shape, Table};
use crate::{Env, Guard, Handles, HugePages, Map, ValueRef, ahead, create};

/// The descriptor that a value is.
fn descriptor(value: &[u8]) -> i32 {
    index_of(value) as i32
}

fn put_id(out: &mut [u8], id: u32) {
    out[..4].copy_from_slice(&id.to_ne_bytes());
}

/// PROG_ARRAY: what `bpf_tail_call` jumps to.
pub(crate) struct ProgArray {
    handles: Arc<dyn Handles>,
    slots: Slots<ProgramSlot>,
    /// What kind of program the array is for; the first one decides.
    owner: Mutex<Option<(ProgramUse, bool)>>,
}

impl ProgArray {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<ProgArray, Errno> {
        let slots = Slots::new(spec.max_entries)?;
        Ok(ProgArray { handles: env.handles.clone(), slots, owner: Mutex::new(None) })
    }

    #[inline]
    pub(crate) fn at<'g>(&self, index: u32, guard: &'g Guard) -> Option<&'g Arc<dyn ProgramObject>> {
        Some(&self.slots.get(index as usize, guard)?.object)
    }

    pub(crate) fn set(&self, index: u32, program: Option<Arc<dyn ProgramObject>>) -> Result<(), Errno> {
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if let Some(program) = &program {
            self.claim(program.program_use(), program.frags())?;
            program.before_tail_calls();
        }
        self.slots.set(index as usize, program.map(ProgramSlot::new));
        Ok(())
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::Programs(SlotsLayout { base: self.slots.block().addr(), max_entries: self.slots.len() })
    }

    /// Every program, in the order of the indexes.
    pub(crate) fn each<'g>(&self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<dyn ProgramObject>)) {
        (0..self.slots.used()).filter_map(|index| self.at(index, guard)).for_each(visit);
    }

    /// Takes every program out.
    pub(crate) fn clear(&self) {
        for index in 0..self.slots.used() {
            self.slots.set(index as usize, None);
        }
    }

    /// Makes this the kind of programs that the array is for, or checks that it is.
    pub(crate) fn claim(&self, program_use: ProgramUse, frags: bool) -> Result<(), Errno> {
        let owner = *self.owner.lock().get_or_insert((program_use, frags));
        if owner == (program_use, frags) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

impl Ops for ProgArray {
    fn blocks(&self) -> Vec<&Block> {
        vec![self.slots.block()]
    }

    fn memory(&self) -> usize {
        self.slots.memory()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        let guard = Guard::pin();
        put_id(out, self.at(index_of(key), &guard).ok_or(Errno::ENOENT)?.id());
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != f::ANY {
            return Err(Errno::EINVAL);
        }
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        self.set(index, Some(self.handles.program(descriptor(value))?))
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if self.slots.set(index as usize, None) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.slots.len(), out)
    }
}

/// What the inner maps of a map of maps must look like.
pub(crate) struct Template {
    spec: MapSpec,
    /// [`Map::spread_max`] of the largest map that was ever put in.
    largest: AtomicUsize,
}

impl Template {
    /// `EBADF` without a template, `EINVAL` for one that is a map of maps itself, `ENOTSUPP` for types that cannot be
    /// inner maps.
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<Template, (Errno, &'static str)> {
        use MapType::*;
        let inner = spec.inner.as_deref().ok_or((Errno::EBADF, "a map of maps needs a template"))?;
        match inner.map_type {
            ArrayOfMaps | HashOfMaps => Err((Errno::EINVAL, "maps of maps do not nest")),
            ProgArray | CgroupStorage | PercpuCgroupStorage | StructOps => {
                Err((Errno::ENOTSUPP, "maps of this type cannot be inner maps"))
            }
            _ => Ok(Template { spec: create::adjusted(inner, env), largest: AtomicUsize::new(0) }),
        }
    }

    /// Checks a map that is about to be put in.
    fn admit(&self, map: &Map) -> Result<(), Errno> {
        if !stands_for(&self.spec, map.spec()) {
            return Err(Errno::EINVAL);
        }
        self.largest.fetch_max(map.spread_max(), Ordering::Relaxed);
        Ok(())
    }

    /// Bytes that look-ups in the largest of the maps are spread over, should it be full: how full they are each of them would have to say.
    pub(crate) fn spread(&self) -> usize {
        self.largest.load(Ordering::Relaxed)
    }

    /// The same of what may be put in.
    pub(crate) fn spread_max(&self) -> usize {
        if !fixed_length(&self.spec) {
            return usize::MAX;
        }
        ArrayLayout::stride_of(self.spec.value_size) * self.spec.max_entries as usize / ahead::ARRAY_SHARE
    }
}

/// Whether an inner map (or a template) of the description `have` may stand where one of `want` was promised to a program: type,
/// lengths, fields of the runtime and what programs may do are the same, and the number of entries where code relies on it.
pub fn stands_for(want: &MapSpec, have: &MapSpec) -> bool {
    let same = want.map_type == have.map_type
        && want.key_size == have.key_size
        && want.value_size == have.value_size
        && (want.flags ^ have.flags) & !(f::RDONLY | f::WRONLY) == 0
        && want.special == have.special;
    same && (!fixed_length(want) || want.max_entries == have.max_entries)
}

/// Whether inner maps have as many entries as their template.
fn fixed_length(template: &MapSpec) -> bool {
    match template.map_type {
        MapType::Array => template.flags & f::INNER_MAP == 0,
        MapType::Xskmap => true,
        _ => false,
    }
}

fn each_in<'g>(slots: &'g Slots<InnerSlot>, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<Map>)) {
    (0..slots.used()).filter_map(|index| slots.get(index as usize, guard)).for_each(|slot| visit(&slot.map));
}

/// ARRAY_OF_MAPS.
pub(crate) struct MapArray {
    handles: Arc<dyn Handles>,
    template: Box<Template>,
    slots: Slots<InnerSlot>,
}

impl MapArray {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<MapArray, (Errno, &'static str)> {
        let template = Box::new(Template::new(spec, env)?);
        let slots = Slots::new(spec.max_entries).map_err(|errno| (errno, "no memory for it"))?;
        Ok(MapArray { handles: env.handles.clone(), template, slots })
    }

    #[inline]
    pub(crate) fn at<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<&'g Arc<Map>> {
        let index = index_of(key);
        Some(&self.slots.get(index as usize, guard)?.map)
    }

    pub(crate) fn each<'g>(&'g self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<Map>)) {
        each_in(&self.slots, guard, visit);
    }

    pub(crate) fn set(&self, key: &[u8], map: Arc<Map>) -> Result<(), Errno> {
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        self.template.admit(&map)?;
        self.slots.set(index as usize, Some(InnerSlot::new(map)));
        Ok(())
    }
}

impl MapArray {
    pub(crate) fn template(&self) -> &Template {
        &self.template
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::Maps(SlotsLayout { base: self.slots.block().addr(), max_entries: self.slots.len() })
    }
}

impl Ops for MapArray {
    fn blocks(&self) -> Vec<&Block> {
        vec![self.slots.block()]
    }

    fn memory(&self) -> usize {
        size_of::<Template>() + self.slots.memory()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        let guard = Guard::pin();
        put_id(out, self.at(key, &guard).ok_or(Errno::ENOENT)?.id());
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != f::ANY {
            return Err(Errno::EINVAL);
        }
        if index_of(key) >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        self.set(key, self.handles.map(descriptor(value))?)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if self.slots.set(index as usize, None) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.slots.len(), out)
    }

    fn batches(&self) -> Batches {
        Batches { lookup: true, update: true, ..Batches::default() }
    }
}

/// HASH_OF_MAPS: a hash table whose elements' values are the inner maps.
pub(crate) struct MapHash {
    handles: Arc<dyn Handles>,
    template: Template,
    table: Table,
    /// By element number.
    slots: Slots<InnerSlot>,
}

impl MapHash {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<MapHash, (Errno, &'static str)> {
        let template = Template::new(spec, env)?;
        MapHash::with_template(spec, env, template).map_err(|errno| (errno, "no memory for it"))
    }

    fn with_template(spec: &MapSpec, env: &Env, template: Template) -> Result<MapHash, Errno> {
        let pool = Pool::new(spec.max_entries, env.cpus, false, false);
        let capacity = pool.capacity();
        let seed = if spec.flags & f::ZERO_SEED != 0 { Seed::zero() } else { Seed::random() };
        let key_size = spec.key_size as usize;
        let table = Table::new(Shape { key_size, value_size: 0, seed, pool, pages: HugePages::Never, whole: true })?;
        Ok(MapHash { handles: env.handles.clone(), template, table, slots: Slots::new(capacity)? })
    }

    pub(crate) fn at<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<&'g Arc<Map>> {
        let hash = self.table.hash(key);
        loop {
            let found = self.table.find(hash, key)?;
            let slot = self.slots.get(found.index as usize, guard);
            if self.table.still(found) {
                return slot.map(|slot| &slot.map);
            }
        }
    }

    pub(crate) fn template(&self) -> &Template {
        &self.template
    }

    pub(crate) fn each<'g>(&'g self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<Map>)) {
        each_in(&self.slots, guard, visit);
    }

    pub(crate) fn set(&self, key: &[u8], map: Arc<Map>, flags: u64) -> Result<(), Errno> {
        self.template.admit(&map)?;
        check_plain_flags(flags)?;
        let hash = self.table.hash(key);
        let mut bucket = self.table.lock(hash);
        match (bucket.find(hash, key), flags) {
            (Some(_), f::NOEXIST) => Err(Errno::EEXIST),
            (None, f::EXIST) => Err(Errno::ENOENT),
            (Some(old), _) => {
                let (spare, index) = self.table.pool().take_spare(0, old.index);
                bucket.replace(old, key, index, |index| {
                    self.slots.set(index as usize, Some(InnerSlot::new(map)));
                });
                let gone = self.slots.replace(old.index as usize, None);
                self.table.pool().give_spare(spare, old.index);
                drop(bucket);
                drop(gone);
                Ok(())
            }
            (None, _) => {
                let index = self.table.take(0).ok_or(Errno::E2BIG)?;
                let inserted = bucket.insert(hash, key, index, |index| {
                    self.slots.set(index as usize, Some(InnerSlot::new(map)));
                });
                if inserted.is_err() {
                    self.table.give(0, index);
                }
                inserted
            }
        }
    }

    /// What it gives is dropped behind the bucket's lock.
    #[must_use]
    fn drop_element<'t>(&'t self, bucket: &mut Bucket<'t>, place: Place<'t>) -> Option<Retired<InnerSlot>> {
        bucket.remove(place);
        let gone = self.slots.replace(place.index as usize, None);
        self.table.give(0, place.index);
        gone
    }

    fn id_of(&self, index: u32, guard: &Guard) -> u32 {
        self.slots.get(index as usize, guard).map_or(0, |slot| slot.map.id())
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::MapsByKey(MapsByKeyLayout { table: self.table.layout(), slots: self.slots.block().addr() })
    }
}

impl Ops for MapHash {
    fn blocks(&self) -> Vec<&Block> {
        vec![&self.table.lines, &self.table.elements, self.slots.block()]
    }

    fn memory(&self) -> usize {
        size_of::<MapHash>() + self.table.memory(true) + self.slots.memory()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        let guard = Guard::pin();
        put_id(out, self.at(key, &guard).ok_or(Errno::ENOENT)?.id());
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.set(key, self.handles.map(descriptor(value))?, flags)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let hash = self.table.hash(key);
        let mut bucket = self.table.lock(hash);
        let place = bucket.find(hash, key).ok_or(Errno::ENOENT)?;
        let gone = self.drop_element(&mut bucket, place);
        drop(bucket);
        drop(gone);
        Ok(())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_key(&self.table, key, out)
    }

    fn batches(&self) -> Batches {
        Batches { lookup: true, update: true, delete: true, lookup_and_delete: true, checks_flags: true }
    }

    fn walk(&self, walk: &mut Walk<'_>) -> Option<(u32, Result<(), Errno>)> {
        let delete = walk.delete;
        // In front of the locks, and what is taken out goes behind them.
        let guard = Guard::pin();
        let mut gone = Vec::new();
        let copy = |index, out: &mut [u8]| {
            put_id(out, self.id_of(index, &guard));
            Ok(())
        };
        Some(walk_buckets(&self.table, walk, 4, copy, |bucket, place| {
            if delete {
                gone.extend(self.drop_element(bucket, place));
            }
        }))
    }
}

/// XSKMAP: the AF_XDP-style sockets that frames are redirected to.
pub(crate) struct XskMap {
    handles: Arc<dyn Handles>,
    slots: Slots<Socket>,
}

struct Socket {
    object: Arc<dyn SocketObject>,
    /// What programs see of it: its queue, as the first field of `struct bpf_xdp_sock`.
    queue: AtomicU64,
}

impl Socket {
    fn new(object: Arc<dyn SocketObject>) -> Socket {
        let mut bytes = [0; 8];
        put_id(&mut bytes, object.queue());
        Socket { object, queue: AtomicU64::new(u64::from_ne_bytes(bytes)) }
    }
}

impl XskMap {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<XskMap, Errno> {
        let slots = Slots::new(spec.max_entries)?;
        Ok(XskMap { handles: env.handles.clone(), slots })
    }

    pub(crate) fn at<'g>(&self, index: u32, guard: &'g Guard) -> Option<&'g Arc<dyn SocketObject>> {
        self.socket(index, guard).map(|socket| &socket.object)
    }

    fn socket<'g>(&self, index: u32, guard: &'g Guard) -> Option<&'g Socket> {
        self.slots.get(index as usize, guard)
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::Sockets(SlotsLayout { base: self.slots.block().addr(), max_entries: self.slots.len() })
    }

    pub(crate) fn set(&self, index: u32, socket: Arc<dyn SocketObject>, flags: u64) -> Result<(), Errno> {
        check_plain_flags(flags)?;
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        let guard = Guard::pin();
        match (self.at(index, &guard), flags) {
            // Linux asks for this before it looks at the flags.
            (Some(old), _) if old.id() == socket.id() => return Ok(()),
            (Some(_), f::NOEXIST) => return Err(Errno::EEXIST),
            (None, f::EXIST) => return Err(Errno::ENOENT),
            (None, f::NOEXIST) => {
                self.slots.set_if_empty(index as usize, Socket::new(socket)).map_err(|_| Errno::EEXIST)?;
            }
            _ => {
                self.slots.set(index as usize, Some(Socket::new(socket)));
            }
        }
        Ok(())
    }
}

impl Ops for XskMap {
    fn blocks(&self) -> Vec<&Block> {
        vec![self.slots.block()]
    }

    fn memory(&self) -> usize {
        self.slots.memory()
    }

    fn lookup(&self, _: &[u8], _: &mut [u8], _: bool) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Programs ask whether a socket is there before they redirect to it.
    fn value<'g>(&self, _: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.socket(index_of(key), guard).map(|socket| ValueRef::of_word(&socket.queue, 4))
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_plain_flags(flags)?;
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        self.set(index, self.handles.socket(descriptor(value))?, flags)
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
}

/// CGROUP_ARRAY: user space may fill it; XDP programs have no helper that reads it.
pub(crate) struct CgroupArray {
    handles: Arc<dyn Handles>,
    slots: Slots<()>,
}

impl CgroupArray {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<CgroupArray, Errno> {
        Ok(CgroupArray { handles: env.handles.clone(), slots: Slots::new(spec.max_entries)? })
    }
}

impl Ops for CgroupArray {
    fn blocks(&self) -> Vec<&Block> {
        vec![self.slots.block()]
    }

    fn memory(&self) -> usize {
        self.slots.memory()
    }

    fn lookup(&self, _: &[u8], _: &mut [u8], _: bool) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags != f::ANY {
            return Err(Errno::EINVAL);
        }
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        self.handles.cgroup(descriptor(value))?;
        self.slots.set(index as usize, Some(()));
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let index = index_of(key);
        if index >= self.slots.len() {
            return Err(Errno::E2BIG);
        }
        if self.slots.set(index as usize, None) { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.slots.len(), out)
    }
}
