//! The map as everybody sees it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use xway_abi::{Errno, MapSpec, MapType, map_flags};

use crate::array::{Array, PercpuArray};
use crate::bloom::Bloom;
use crate::env::{ProgramObject, ProgramUse, SocketObject};
use crate::hash::{HashMap, MANY};
use crate::lpm::LpmTrie;
use crate::native::MapLayout;
use crate::objects::{CgroupArray, MapArray, MapHash, ProgArray, XskMap};
use crate::ops::Ops;
use crate::perf::PerfArray;
use crate::queue::Queue;
use crate::redirect::{CpuMap, DevHash, DevMap, Target};
use crate::ringbuf::RingBuf;
use crate::stack_trace::StackTrace;
use crate::{CreateError, Env, Guard, ValueRef, create};

/// A map: created once, shared by programs and the system call side through an `Arc`.
///
/// Two sides use it. Programs go through [`Map::value`] and the `prog_…` calls: they get pointers and see the values of the
/// CPU they run on. Everyone else goes through the calls named after `bpf(2)` commands ([`Map::lookup`], [`Map::update`],
/// …): they get copies, see all CPUs' values side by side, and are subject to the permissions of the creation flags and to
/// [`Map::freeze`].
#[repr(C)]
pub struct Map {
    /// Where its memory lies; in front, because generated code reads it there of maps that it meets at run time.
    pub(crate) layout: MapLayout,
    id: u32,
    cpus: u32,
    name: Name,
    spec: MapSpec,
    frozen: AtomicBool,
    /// Held for reading by who writes into an array whose contents may become constants, and for writing while it is frozen.
    pub(crate) writers: RwLock<()>,
    pub(crate) kind: Kind,
    node: Option<u32>,
    /// Itself.
    me: Weak<Map>,
}

/// A name as Linux keeps it, with its length behind it.
struct Name([u8; 16]);

impl Name {
    fn of(name: &str) -> Name {
        let allowed = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.');
        let mut kept = [0; 16];
        for (at, byte) in name.bytes().filter(allowed).take(15).enumerate() {
            (kept[at], kept[15]) = (byte, at as u8 + 1);
        }
        Name(kept)
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.0[..self.0[15] as usize]).unwrap_or_default()
    }
}

/// The implementation behind the map's type. Large ones lie apart: every map is as long as the longest of these.
pub(crate) enum Kind {
    Array(Array),
    PercpuArray(PercpuArray),
    Hash(Box<HashMap>),
    ProgArray(ProgArray),
    MapArray(MapArray),
    MapHash(Box<MapHash>),
    XskMap(XskMap),
    CgroupArray(CgroupArray),
    DevMap(DevMap),
    DevHash(Box<DevHash>),
    CpuMap(CpuMap),
    Queue(Queue),
    Bloom(Bloom),
    LpmTrie(Box<LpmTrie>),
    RingBuf(Box<RingBuf>),
    PerfArray(PerfArray),
    StackTrace(StackTrace),
}

/// Ids count up through the life of the process and are never given twice.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// Every map that is alive, by its id.
static ALIVE: Mutex<BTreeMap<u32, Weak<Map>>> = Mutex::new(BTreeMap::new());

impl Drop for Map {
    fn drop(&mut self) {
        ALIVE.lock().remove(&self.id);
    }
}

impl Map {
    /// Creates a map without a name.
    pub fn create(spec: &MapSpec, env: &Env) -> Result<Arc<Map>, CreateError> {
        Map::create_named("", spec, env)
    }

    /// Creates a map. Of the name, the first 15 characters that Linux allows in one are kept.
    ///
    /// Errors are Linux's (see `docs/maps.md`): `EINVAL` for attributes that the type does not allow, `E2BIG` for sizes
    /// above its limits, `ENOMEM` when there is no memory for it. Cost: memory is reserved at once, and used as it is
    /// touched.
    pub fn create_named(name: &str, spec: &MapSpec, env: &Env) -> Result<Arc<Map>, CreateError> {
        create::check(spec, env)?;
        let spec = create::adjusted(spec, env);
        let kind =
            Kind::new(&spec, env).map_err(|(errno, reason)| CreateError { errno, map_type: spec.map_type, reason })?;
        let node = place(&spec, &kind);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let name = Name::of(name);
        let layout = kind.layout();
        let (frozen, writers) = (AtomicBool::new(false), RwLock::new(()));
        let map = Arc::new_cyclic(|me| Map {
            id,
            name,
            spec,
            cpus: env.cpus,
            frozen,
            writers,
            kind,
            node,
            layout,
            me: me.clone(),
        });
        ALIVE.lock().insert(id, Arc::downgrade(&map));
        Ok(map)
    }

    /// The map of this process with this id. Costs a lock.
    pub fn find(id: u32) -> Option<Arc<Map>> {
        ALIVE.lock().get(&id)?.upgrade()
    }

    /// A reference to the map, for what keeps it. `None` while it goes.
    pub fn arc(&self) -> Option<Arc<Map>> {
        self.me.upgrade()
    }

    /// The number that names the map in this process, from 1.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The name, at most 15 characters, may be empty.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// What the map was created from, after the adjustments that Linux makes (an LRU map's `max_entries` may be rounded, a
    /// DEVMAP is read-only for programs).
    pub fn spec(&self) -> &MapSpec {
        &self.spec
    }

    /// The type.
    pub fn map_type(&self) -> MapType {
        self.spec.map_type
    }

    /// Key length in bytes.
    pub fn key_size(&self) -> usize {
        self.spec.key_size as usize
    }

    /// Value length in bytes, as programs see it.
    pub fn value_size(&self) -> usize {
        self.spec.value_size as usize
    }

    /// Length in bytes of what [`Map::lookup`] fills and [`Map::update`] takes: for per-CPU types one value for each CPU,
    /// each rounded up to 8 bytes; 4 for types that hold descriptors.
    pub fn user_value_size(&self) -> usize {
        use MapType::*;
        match self.spec.map_type {
            PercpuHash | PercpuArray | LruPercpuHash => self.value_size().next_multiple_of(8) * self.cpus as usize,
            PerfEventArray | ProgArray | CgroupArray | ArrayOfMaps | HashOfMaps => 4,
            _ => self.value_size(),
        }
    }

    /// CPUs that the map has values for.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Whether programs may read values (no `BPF_F_WRONLY_PROG`).
    pub fn prog_readable(&self) -> bool {
        self.spec.flags & map_flags::WRONLY_PROG == 0
    }

    /// Whether programs may write values (no `BPF_F_RDONLY_PROG`).
    pub fn prog_writable(&self) -> bool {
        self.spec.flags & map_flags::RDONLY_PROG == 0
    }

    /// Whether the system call side can no longer write.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    pub(crate) fn set_frozen(&self) -> bool {
        !self.frozen.swap(true, Ordering::AcqRel)
    }

    /// The NUMA node that the system agreed to.
    pub(crate) fn node(&self) -> Option<u32> {
        self.node
    }

    pub(crate) fn ops(&self) -> &dyn Ops {
        self.kind.ops()
    }
}

impl Kind {
    fn layout(&self) -> MapLayout {
        match self {
            Kind::Array(map) => map.layout(),
            Kind::PercpuArray(map) => map.layout(),
            Kind::Hash(map) => map.layout(),
            Kind::LpmTrie(map) => map.layout(),
            Kind::MapArray(map) => map.layout(),
            Kind::MapHash(map) => map.layout(),
            Kind::ProgArray(map) => map.layout(),
            Kind::DevMap(map) => map.layout(),
            Kind::CpuMap(map) => map.layout(),
            Kind::XskMap(map) => map.layout(),
            _ => MapLayout::Opaque,
        }
    }

    fn ops(&self) -> &dyn Ops {
        match self {
            Kind::Array(map) => map,
            Kind::PercpuArray(map) => map,
            Kind::Hash(map) => &**map,
            Kind::ProgArray(map) => map,
            Kind::MapArray(map) => map,
            Kind::MapHash(map) => &**map,
            Kind::XskMap(map) => map,
            Kind::CgroupArray(map) => map,
            Kind::DevMap(map) => map,
            Kind::DevHash(map) => &**map,
            Kind::CpuMap(map) => map,
            Kind::Queue(map) => map,
            Kind::Bloom(map) => map,
            Kind::LpmTrie(map) => &**map,
            Kind::RingBuf(map) => &**map,
            Kind::PerfArray(map) => map,
            Kind::StackTrace(map) => map,
        }
    }
}

/// What generated code needs.
impl Map {
    /// Where the map's memory lies; see [`native`](crate::native) for what may be done with it. Fixed for the map's life.
    pub fn layout(&self) -> MapLayout {
        self.layout
    }
}

/// The program side.
impl Map {
    /// What [`Map::value`] gives for each of `keys`, which lie side by side, in `out`: as many as there are whole keys and
    /// places. On hash tables that are larger than the CPU's cache this takes a fraction of the time of single look-ups,
    /// because the memory's latencies pass side by side.
    pub fn lookup_many<'g>(&self, cpu: u32, keys: &[u8], out: &mut [Option<ValueRef<'g>>], guard: &'g Guard) {
        let size = self.key_size();
        let count = out.len().min(keys.len().checked_div(size).unwrap_or(0));
        self.each_value(cpu, count, |n| &keys[n * size..][..size], guard, |n, value| out[n] = value);
    }

    /// The same with keys and results wherever they are.
    pub(crate) fn each_value<'k, 'g>(
        &self,
        cpu: u32,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        guard: &'g Guard,
        mut each: impl FnMut(usize, Option<ValueRef<'g>>),
    ) {
        match &self.kind {
            Kind::Hash(map) => {
                for start in (0..count).step_by(MANY) {
                    let len = MANY.min(count - start);
                    map.at_many(cpu, len, |n| key(start + n), guard, |n, value| each(start + n, value));
                }
            }
            _ => (0..count).for_each(|n| each(n, self.value(cpu, key(n), guard))),
        }
    }

    /// A pointer to the value of `key` (on per-CPU types: the value of `cpu`), as `bpf_map_lookup_elem` gives it.
    ///
    /// `key` must be [`Map::key_size`] long (else `None`). The pointer stays good as long as the guard; whose value it
    /// points to may change when the element is deleted, see [`Guard`].
    #[inline]
    pub fn value<'g>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        if key.len() != self.key_size() {
            return None;
        }
        match &self.kind {
            Kind::Array(map) => map.at(crate::ops::index_of(key), guard),
            Kind::PercpuArray(map) => map.at(cpu, crate::ops::index_of(key), guard),
            Kind::Hash(map) => map.at(cpu, key, guard),
            Kind::LpmTrie(map) => map.at(key, guard),
            _ => self.ops().value(cpu, key, guard),
        }
    }

    /// The key of the element whose value an address lies in: what [`Map::value`] gives for that key begins at or in front of it. Of tables
    /// and arrays with one value for each key; costs one look-up.
    pub fn key_at(&self, addr: usize) -> Option<Vec<u8>> {
        match &self.kind {
            Kind::Array(map) => {
                let index = addr.checked_sub(map.values.addr())? / map.layout.stride();
                u32::try_from(index).ok().filter(|index| *index < map.len).map(|index| index.to_ne_bytes().into())
            }
            Kind::Hash(map) if map.percpu.is_none() => map.table.key_at(addr),
            _ => None,
        }
    }

    /// `bpf_map_update_elem` from a program that runs on `cpu`: creates or overwrites; on per-CPU types this CPU's value
    /// (a new element's other values are zero). `value` is [`Map::value_size`] long.
    #[inline]
    pub fn prog_update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        if key.len() != self.key_size() || value.len() != self.value_size() {
            return Err(Errno::EINVAL);
        }
        match &self.kind {
            Kind::Array(map) => map.prog_update(cpu, key, value, flags),
            Kind::PercpuArray(map) => map.prog_update(cpu, key, value, flags),
            Kind::Hash(map) => map.prog_update(cpu, key, value, flags),
            _ => self.ops().prog_update(cpu, key, value, flags),
        }
    }

    /// `bpf_map_delete_elem` from a program that runs on `cpu`.
    #[inline]
    pub fn prog_delete(&self, cpu: u32, key: &[u8]) -> Result<(), Errno> {
        if key.len() != self.key_size() {
            return Err(Errno::EINVAL);
        }
        match &self.kind {
            Kind::Hash(map) => map.prog_delete(cpu, key),
            _ => self.ops().prog_delete(cpu, key),
        }
    }

    /// `bpf_map_push_elem`: queue, stack, bloom filter.
    pub fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        if value.len() != self.value_size() {
            return Err(Errno::EINVAL);
        }
        match &self.kind {
            Kind::Queue(map) => map.push(value, flags),
            Kind::Bloom(map) => map.push(value, flags),
            _ => self.ops().push(value, flags),
        }
    }

    /// `bpf_map_pop_elem`: queue, stack. When empty: `ENOENT`, and `out` is zeroed.
    pub fn pop(&self, out: &mut [u8]) -> Result<(), Errno> {
        if out.len() != self.value_size() {
            return Err(Errno::EINVAL);
        }
        match &self.kind {
            Kind::Queue(map) => map.pop(out),
            _ => self.ops().pop(out),
        }
    }

    /// `bpf_map_peek_elem`: queue, stack; on a bloom filter, asks whether `value` may have been pushed (`ENOENT`: surely
    /// not).
    pub fn peek(&self, value: &mut [u8]) -> Result<(), Errno> {
        if value.len() != self.value_size() {
            return Err(Errno::EINVAL);
        }
        match &self.kind {
            Kind::Queue(map) => map.peek(value),
            Kind::Bloom(map) => map.peek(value),
            _ => self.ops().peek(value),
        }
    }

    /// `bpf_for_each_map_elem`: calls `visit` with key and value of each element until it returns `false`; returns the
    /// number of calls. `EINVAL` for types that programs cannot walk.
    pub fn for_each<'g>(
        &self,
        cpu: u32,
        guard: &'g Guard,
        visit: &mut dyn FnMut(&[u8], ValueRef<'g>) -> bool,
    ) -> Result<u64, Errno> {
        self.ops().for_each(cpu, guard, visit)
    }
}

/// Maps whose values are objects.
impl Map {
    /// The program at `index` of a PROG_ARRAY.
    #[inline]
    pub fn program<'g>(&self, index: u32, guard: &'g Guard) -> Option<&'g Arc<dyn ProgramObject>> {
        match &self.kind {
            Kind::ProgArray(map) => map.at(index, guard),
            _ => None,
        }
    }

    /// Puts a program into a PROG_ARRAY (`None` takes it out), without a descriptor. `EINVAL`: not a PROG_ARRAY, or the array
    /// is for another kind of program; `E2BIG`: index too high.
    ///
    /// A program keeps its maps alive, and so does an array the programs in it: whoever tears down an array that its own
    /// programs use calls [`Map::clear_programs`].
    pub fn set_program(&self, index: u32, program: Option<Arc<dyn ProgramObject>>) -> Result<(), Errno> {
        match &self.kind {
            Kind::ProgArray(map) => map.set(index, program),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Says that a program of this kind is going to use the PROG_ARRAY; `EINVAL` when the array is for others.
    pub fn claim_programs(&self, program_use: ProgramUse, frags: bool) -> Result<(), Errno> {
        match &self.kind {
            Kind::ProgArray(map) => map.claim(program_use, frags),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Every program that the map holds: those of a PROG_ARRAY, and those of the entries of a DEVMAP, DEVMAP_HASH or CPUMAP.
    pub fn each_program<'g>(&'g self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<dyn ProgramObject>)) {
        match &self.kind {
            Kind::ProgArray(map) => map.each(guard, visit),
            Kind::DevMap(map) => map.programs(guard, visit),
            Kind::DevHash(map) => map.programs(guard, visit),
            Kind::CpuMap(map) => map.programs(guard, visit),
            _ => {}
        }
    }

    /// Every map that is in this map of maps.
    pub fn each_inner<'g>(&'g self, guard: &'g Guard, visit: &mut dyn FnMut(&'g Arc<Map>)) {
        match &self.kind {
            Kind::MapArray(map) => map.each(guard, visit),
            Kind::MapHash(map) => map.each(guard, visit),
            _ => {}
        }
    }

    /// Takes every program out: of a PROG_ARRAY as Linux does when the last user of the map has gone, of a DEVMAP, DEVMAP_HASH or
    /// CPUMAP with its entry. For when nobody can reach the map any more but through the programs in it.
    pub fn clear_programs(&self) {
        match &self.kind {
            Kind::ProgArray(map) => map.clear(),
            Kind::DevMap(map) => map.clear_programs(),
            Kind::DevHash(map) => map.clear_programs(),
            Kind::CpuMap(map) => map.clear_programs(),
            _ => {}
        }
    }

    /// The inner map of `key` in an ARRAY_OF_MAPS or HASH_OF_MAPS.
    #[inline]
    pub fn inner<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<&'g Arc<Map>> {
        if key.len() != self.key_size() {
            return None;
        }
        match &self.kind {
            Kind::MapArray(map) => map.at(key, guard),
            Kind::MapHash(map) => map.at(key, guard),
            _ => None,
        }
    }

    /// Puts an inner map into a map of maps, without a descriptor. `EINVAL`: not a map of maps, or the inner map is not as the
    /// template says; `E2BIG`: full or index too high.
    pub fn set_inner(&self, key: &[u8], map: Arc<Map>) -> Result<(), Errno> {
        if key.len() != self.key_size() {
            return Err(Errno::EINVAL);
        }
        match &self.kind {
            Kind::MapArray(outer) => outer.set(key, map),
            Kind::MapHash(outer) => outer.set(key, map, map_flags::ANY),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Where `bpf_redirect_map` with this key goes: DEVMAP, DEVMAP_HASH, CPUMAP, XSKMAP.
    #[inline]
    pub fn target<'g>(&self, key: u32, guard: &'g Guard) -> Option<Target<'g>> {
        match &self.kind {
            Kind::DevMap(map) => map.at(key, guard),
            Kind::DevHash(map) => map.at(key, guard),
            Kind::CpuMap(map) => map.at(key, guard),
            Kind::XskMap(map) => map.at(key, guard).map(Target::Socket),
            _ => None,
        }
    }

    /// Every device of a DEVMAP or DEVMAP_HASH: where `BPF_F_BROADCAST` goes. Cost: the whole map.
    pub fn each_device<'g>(&self, guard: &'g Guard, visit: &mut dyn FnMut(Target<'g>)) {
        match &self.kind {
            Kind::DevMap(map) => map.each(guard, visit),
            Kind::DevHash(map) => map.each(guard, visit),
            _ => {}
        }
    }

    /// Puts a socket into an XSKMAP, without a descriptor.
    pub fn set_socket(&self, index: u32, socket: Arc<dyn SocketObject>) -> Result<(), Errno> {
        match &self.kind {
            Kind::XskMap(map) => map.set(index, socket, map_flags::ANY),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The ring of a RINGBUF or USER_RINGBUF.
    pub fn ringbuf(&self) -> Option<&RingBuf> {
        match &self.kind {
            Kind::RingBuf(ring) => Some(ring),
            _ => None,
        }
    }

    /// The buffers of a PERF_EVENT_ARRAY.
    pub fn perf(&self) -> Option<&PerfArray> {
        match &self.kind {
            Kind::PerfArray(array) => Some(array),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MapSpec { map_type, key_size, value_size, max_entries, flags, .. } = &self.spec;
        write!(
            f,
            "Map {{ id {}, {:?}, {}, key {key_size}, value {value_size}, max_entries {max_entries}, flags {flags:#x} }}",
            self.id,
            self.name(),
            map_type.name()
        )
    }
}

/// Asks for the pages of a new map on the node that its creator named. The node, if the system agreed for every piece that
/// has pages of its own.
fn place(spec: &MapSpec, kind: &Kind) -> Option<u32> {
    let node = crate::create::wanted_node(spec)?;
    let blocks = kind.ops().blocks();
    let mut mapped = blocks.iter().filter(|block| block.is_mapped()).peekable();
    mapped.peek()?;
    mapped.all(|block| block.prefer_node(node)).then_some(node)
}

impl Kind {
    fn new(spec: &MapSpec, env: &Env) -> Result<Kind, (Errno, &'static str)> {
        let memory = |errno| (errno, "no memory for it");
        match spec.map_type {
            MapType::Array => Array::new(spec, env).map(Kind::Array).map_err(memory),
            MapType::PercpuArray => PercpuArray::new(spec, env).map(Kind::PercpuArray).map_err(memory),
            MapType::Hash | MapType::PercpuHash | MapType::LruHash | MapType::LruPercpuHash => {
                HashMap::new(spec, env).map(|map| Kind::Hash(Box::new(map))).map_err(memory)
            }
            MapType::LpmTrie => LpmTrie::new(spec, env).map(|map| Kind::LpmTrie(Box::new(map))).map_err(memory),
            MapType::ProgArray => ProgArray::new(spec, env).map(Kind::ProgArray).map_err(memory),
            MapType::ArrayOfMaps => MapArray::new(spec, env).map(Kind::MapArray),
            MapType::HashOfMaps => MapHash::new(spec, env).map(|map| Kind::MapHash(Box::new(map))),
            MapType::Xskmap => XskMap::new(spec, env).map(Kind::XskMap).map_err(memory),
            MapType::CgroupArray => CgroupArray::new(spec, env).map(Kind::CgroupArray).map_err(memory),
            MapType::Devmap => DevMap::new(spec, env).map(Kind::DevMap).map_err(memory),
            MapType::DevmapHash => DevHash::new(spec, env).map(|map| Kind::DevHash(Box::new(map))).map_err(memory),
            MapType::Cpumap => CpuMap::new(spec, env).map(Kind::CpuMap).map_err(memory),
            MapType::Queue | MapType::Stack => Queue::new(spec).map(Kind::Queue).map_err(memory),
            MapType::BloomFilter => Bloom::new(spec).map(Kind::Bloom).map_err(memory),
            MapType::Ringbuf | MapType::UserRingbuf => {
                RingBuf::new(spec).map(|map| Kind::RingBuf(Box::new(map))).map_err(memory)
            }
            MapType::PerfEventArray => PerfArray::new(spec).map(Kind::PerfArray).map_err(memory),
            MapType::StackTrace => Ok(Kind::StackTrace(StackTrace::new(spec))),
            _ => Err((Errno::EINVAL, "this type has no meaning outside the kernel")),
        }
    }
}
