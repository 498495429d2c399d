//! Maps as generated code sees them: where things lie, and what to call for the rest.
//!
//! [`Map::layout`](crate::Map::layout) describes a map's memory in plain numbers. They are fixed when the map is created, so a
//! compiler may use them as constants. The only exception are inner maps, which are reached at run time: the slot of an outer
//! array points to an [`InnerSlot`], which has the inner map's address; and a pointer to a map leads to its layout
//! ([`MAP_LAYOUT`]).
//!
//! # The contract of a reader
//!
//! 1. **A guard is pinned** (the worker's, once a burst) from before the first load to after the last use of what was found,
//!    and an `Arc` of the map was alive when it was pinned. Then every address made here stays good memory under the
//!    guard, also when the map is dropped or the element deleted meanwhile.
//! 2. **Loads**: what is marked *acquire* below must be an acquire load (on x86-64 any load that the compiler does not merge or
//!    move: Cranelift's `atomic_load`). What was loaded once is not loaded again for the same purpose.
//! 3. **Values** are shared with other threads: loads and stores of 1, 2, 4 and 8 aligned bytes, no merging with neighbours.
//! 4. **After a hit** the value pointer is good for as long as the guard. As in Linux, when the element is deleted or evicted,
//!    another key may get it at once.
//!
//! # Tries, first levels ([`LpmLayout`])
//!
//! For a key whose prefix length is all of the address, given as big-endian words of 32 bits, the last one filled up with zeros:
//!
//! ```text
//! best = 0
//! entry = load u32 [root]                  acquire
//! again:
//! if entry == 0:      found: value best - 1, or nothing when best == 0
//! if entry & 1:       found: value entry >> 1
//! node = nodes + 8 * (entry >> 2)
//! above = load u32 [node]                  acquire      if above & TRIE_BEST != 0: best = above & TRIE_BEST
//! if entry & 2:       a list of above >> TRIE_COUNT_SHIFT prefixes, see below
//! size = load u32 [node + 4], depth = load u32 [node + 8], own = load u32 [node + 12]     acquire for the last
//! if the first `depth` bits of the address are not those of the path at [node + 20]:  found: value best - 1, or nothing
//! if own != 0: best = own
//! entry = load u32 [node + 20 + 4 * path_words + 4 * (the `size` bits of the address after the first `depth`)]   acquire
//! go again
//! ```
//!
//! In the list of a trie with addresses of one word, prefix `n` is two words from `node + 4 + 8 * n` on (*acquire* for the first):
//! its value + 1, with its length from bit `TRIE_LENGTH_SHIFT` on, and its bits. The first that matches is found, else best - 1.
//!
//! For longer addresses it is three, from `node + 4 + 12 * n` on: its value + 1 (*acquire*), its length, and up to 32 of its bits behind those
//! that led to the list, which are `depth + size` of the last table, or none. Where these match, what it is lies whole behind the value:
//! value `v`'s words from `values + v * stride + key_at` on.
//!
//! # Hash tables, step by step ([`HashLayout`])
//!
//! ```text
//! h     = hash(key)                                       see below
//! tag   = max(h >> 56, 1)
//! line  = lines + (h & mask) * 64
//! head  = load u64 [line + 8]                acquire      tags of slots 8 to 10, filter, lock, removals
//! tags  = load u64 [line + 0]                acquire      tags of slots 0 to 7
//! for each slot of 0..11 whose tag is `tag`:
//!     word    = load u32 [line + 16 + 4 * slot]    acquire
//!     element = elements + (word & 0x0fffffff) * stride
//!     if the key at [element] is not the key: next slot, and after the last, call [`lookup`]    (zero-padded to 8 bytes there;
//!                                              the key's element may just have been replaced by another one)
//!     again   = load u64 [line + 8]            a second load, after those of the key
//!     if (head ^ again) >> 33 != 0: start again, or call    something was taken out of the bucket meanwhile
//!     if mark_used && word & 1 << 28 == 0:      atomic or of 1 << 28 into [line + 16 + 4 * slot]
//!     found: element + value_at, or for per-CPU types percpu_values + cpu * cpu_stride + (word & 0x0fffffff) * value_stride
//! no slot has the tag:
//!     if head >> 24 & 1 << (tag & 7) != 0: call [`lookup`]     there is more behind a full bucket
//!     not found
//! ```
//!
//! The two words at `line` may be one vector load of 16 bytes. Most machines load an aligned one at one moment; on one that loads the tags
//! first and the head behind a removal, an element that is being put in again under the same key may be found before its value is whole, as
//! it may in Linux. On machines with weak ordering the second load of the head needs an acquire fence before it.
//!
//! The hash: words of eight bytes in the machine's order, the last one filled up with zeros; `fold(a, b)` is the low half of the
//! 128-bit product of `a` and `b`, exclusive-or the high half.
//!
//! ```text
//! state = seed[0]
//! for each two words (a, b) of the key:  state = fold(state ^ a, seed[1] ^ b)
//! for one word (a) that is left:         state = fold(state ^ a, seed[1])
//! h = fold(state, seed[2])
//! ```
//!
//! A key of 4 bytes 01 02 03 04 on x86-64 with seed `[1, 3, 5]`: `state = fold(1 ^ 0x04030201, 3) = 0x0c090600`, and
//! `h = fold(state, 5) = 0x3c2d1e00`; so the tag is 1 and bucket 0 of 256.
//!
//! [`find`] is that in Rust, and a test holds it against the map.
#![allow(unsafe_code)]
// Why unsafe: these are the entry points of generated code, which passes raw pointers, and the reference for what it does by
// itself with raw addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::env::ProgramObject;
use crate::keyhash::Seed;
use crate::line::{NUMBER, SLOTS, USED, tag_of};
use crate::{Guard, Map};

/// A map's memory. Addresses are those of this process; none is zero where the text does not say so.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MapLayout {
    /// Only the calls of this module.
    Opaque,
    /// ARRAY.
    Array(ArrayLayout),
    /// PERCPU_ARRAY.
    PercpuArray(PercpuArrayLayout),
    /// HASH, LRU_HASH, PERCPU_HASH, LRU_PERCPU_HASH.
    Hash(HashLayout),
    /// LPM_TRIE.
    Lpm(LpmLayout),
    /// ARRAY_OF_MAPS: slots are pointers to [`InnerSlot`].
    Maps(SlotsLayout),
    /// PROG_ARRAY: slots are pointers to [`ProgramSlot`].
    Programs(SlotsLayout),
    /// DEVMAP: slots are pointers to entries, with the interface index in the 32 bits at [`ENTRY_WORD`].
    Devices(SlotsLayout),
    /// CPUMAP: a slot that is not null is a CPU with a queue.
    Cpus(SlotsLayout),
    /// XSKMAP: a slot that is not null is a socket.
    Sockets(SlotsLayout),
    /// HASH_OF_MAPS: a hash table whose elements have slots.
    MapsByKey(MapsByKeyLayout),
}

/// What the first 32 bits of a [`MapLayout`] are for an ARRAY.
pub const KIND_ARRAY: u32 = 1;
/// What they are for the hash tables.
pub const KIND_HASH: u32 = 3;
/// Where a kind's own fields begin in a [`MapLayout`].
pub const KIND_FIELDS: usize = 8;
/// Where a map that a pointer stands for has its [`MapLayout`]: programs hold such pointers to inner maps, and generated code
/// finds there what it has as constants of other maps.
pub const MAP_LAYOUT: usize = std::mem::offset_of!(Map, layout);
/// Where an entry of a DEVMAP has its interface index.
pub const ENTRY_WORD: usize = crate::redirect::ENTRY_WORD;

/// Value `i` lies at `base + i * stride`, if `i < max_entries`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ArrayLayout {
    /// Address of the first value.
    pub base: usize,
    /// Bytes from one value to the next.
    pub stride: usize,
    /// Values.
    pub max_entries: u32,
    /// The next power of two, less one: `i & index_mask` is below twice `max_entries` whatever the CPU speculates.
    pub index_mask: u32,
}

impl ArrayLayout {
    /// [`ArrayLayout::stride`] of every array with values of so many bytes.
    pub const fn stride_of(value_size: u32) -> usize {
        (value_size as usize).next_multiple_of(8)
    }
}

/// Value `i` of a CPU lies at `base + cpu * cpu_stride + i * stride`, if `i < max_entries`; `cpu < cpus` is the worker's
/// promise.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PercpuArrayLayout {
    /// Address of CPU 0's first value.
    pub base: usize,
    /// Bytes from one CPU's values to the next CPU's, a multiple of 64.
    pub cpu_stride: usize,
    /// Bytes from one value to the next.
    pub stride: usize,
    /// Values of each CPU.
    pub max_entries: u32,
    /// CPUs.
    pub cpus: u32,
}

/// A hash table; the steps stand in the text of this module.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HashLayout {
    /// Address of the first bucket; a bucket is [`LINE_BYTES`] long.
    pub lines: usize,
    /// Address of the first element. An element begins with its key.
    pub elements: usize,
    /// Secrets of the hash.
    pub seed: [u64; 3],
    /// Bytes from one element to the next: a power of two up to 64, else a multiple of 64.
    pub stride: usize,
    /// Where the value begins in an element.
    pub value_at: usize,
    /// Per-CPU types: address of element 0's value on CPU 0; otherwise 0.
    pub percpu_values: usize,
    /// Per-CPU types: bytes from one CPU's values to the next CPU's.
    pub cpu_stride: usize,
    /// Per-CPU types: bytes from one element's value to the next.
    pub value_stride: usize,
    /// Buckets less one; buckets are a power of two.
    pub mask: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Elements that the map holds at most.
    pub max_entries: u32,
    /// 1 for LRU types: a hit sets bit 28 of its slot's word if it is not set.
    pub mark_used: u32,
}

/// A trie of prefixes; the steps stand in the text of this module.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LpmLayout {
    /// Address of the first entry.
    pub root: usize,
    /// Address of the nodes: node `n` lies at `nodes + 8 * n`.
    pub nodes: usize,
    /// Address of the values: value `v` lies at `values + v * stride`.
    pub values: usize,
    /// Bytes from one value to the next.
    pub stride: usize,
    /// Bytes of an address: a key is four bytes longer.
    pub width: u32,
    /// Words of a table's path; its entries lie behind.
    pub path_words: u32,
    /// Address of a 64-bit word (*acquire*) that is another one whenever something was changed since.
    pub changes: usize,
    /// Where a value has its prefix's words.
    pub key_at: usize,
}

/// Pointers: slot `i` is the pointer at `base + 8 * i` (*acquire*), null when empty, if `i < max_entries`. What it points to
/// lives as long as the guard.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlotsLayout {
    /// Address of the first slot.
    pub base: usize,
    /// Slots.
    pub max_entries: u32,
}

/// The slot of the element with number `n` lies at `slots + 8 * n` and points to an [`InnerSlot`]. It is loaded in front of the second
/// look at the bucket, which then says of it too whether it is that of the key.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MapsByKeyLayout {
    /// The elements: keys and nothing behind them.
    pub table: HashLayout,
    /// Address of the first slot.
    pub slots: usize,
}

/// What a slot of a map of maps points to.
#[repr(C)]
pub struct InnerSlot {
    /// The inner map, as the calls of this module take it.
    pub raw: *const Map,
    pub(crate) map: Arc<Map>,
}

impl InnerSlot {
    pub(crate) fn new(map: Arc<Map>) -> InnerSlot {
        InnerSlot { raw: Arc::as_ptr(&map), map }
    }
}

// SAFETY: `raw` is the address of what `map` owns, and a `Map` may be used by any thread.
unsafe impl Send for InnerSlot {}
// SAFETY: as for `Send`.
unsafe impl Sync for InnerSlot {}

/// What a slot of a PROG_ARRAY points to.
#[repr(C)]
pub struct ProgramSlot {
    /// Address of the cell that [`ProgramObject::entry`] gave: a word (*acquire*) that is where a tail call jumps, 0: nowhere.
    /// 0 when there is no cell. It lives as long as the slot.
    pub entry: usize,
    /// The program's id.
    pub id: u32,
    pub(crate) object: Arc<dyn ProgramObject>,
}

impl ProgramSlot {
    pub(crate) fn new(object: Arc<dyn ProgramObject>) -> ProgramSlot {
        ProgramSlot { entry: object.entry().map_or(0, |cell| cell.as_ptr() as usize), id: object.id(), object }
    }
}

/// Bytes of a bucket.
pub const LINE_BYTES: usize = 64;
/// Where the word with the tags of slots 0 to 7 lies in a bucket.
pub const LINE_TAGS: usize = 0;
/// Where the head lies: tags of slots 8 to 10 in bits 0 to 23, the filter in bits 24 to 31, the lock in bit 32, the count of
/// removals above.
pub const LINE_HEAD: usize = 8;
/// Where the words of the slots lie.
pub const LINE_SLOTS: usize = 16;
/// Slots of a bucket.
pub const LINE_SLOT_COUNT: usize = SLOTS;
/// The bits of a slot's word that are the element's number.
pub const SLOT_NUMBER: u32 = NUMBER;
/// The bit of a slot's word that says that an LRU element was used.
pub const SLOT_USED: u32 = USED;
/// The lowest bit of the filter in the head; bit `tag & 7` of it says that there is more behind the bucket.
pub const HEAD_FILTER_SHIFT: u32 = crate::line::FILTER_SHIFT;
/// The lowest bit of the count of removals in the head.
pub const HEAD_REMOVALS_SHIFT: u32 = 33;

/// The bits of a trie's node that are its best value + 1; in a list the number of prefixes stands above them.
pub const TRIE_BEST: u32 = crate::lpm::BEST_MASK;
/// The lowest bit of the number of prefixes in a list's first word.
pub const TRIE_COUNT_SHIFT: u32 = crate::lpm::COUNT_SHIFT;
/// The lowest bit of a prefix's length in a list, for addresses of one word.
pub const TRIE_LENGTH_SHIFT: u32 = crate::lpm::LEN_SHIFT;
/// Bytes of a prefix in a list, for addresses of so many words.
pub fn trie_list_step(words: u32) -> usize {
    4 * crate::lpm::list_step(words as usize)
}

/// Where a table has the number of bits that index it, their distance from the address's first, its own best value + 1, and the
/// path; the entries lie behind the path.
pub const TRIE_TABLE: [usize; 4] = [4, 8, 12, 20];

/// The hash of a key, as the text of this module defines it.
pub fn hash(seed: [u64; 3], key: &[u8]) -> u64 {
    Seed(seed).hash(key)
}

/// What generated code does for a look-up in a hash table, in Rust: the address of the value.
///
/// # Safety
/// `layout` is that of a map that is alive or whose last owner was alive when `guard` was pinned.
pub unsafe fn find(layout: &HashLayout, cpu: u32, key: &[u8], _guard: &Guard) -> Find {
    let hash = hash(layout.seed, key);
    let tag = tag_of(hash);
    let line = layout.lines + (hash as u32 & layout.mask) as usize * LINE_BYTES;
    // SAFETY: the caller's promise; the bucket lies in the map's memory because it is masked, elements are named by slots
    // that the map has filled, and all of it is only ever accessed atomically, in these widths.
    unsafe {
        let head_at = AtomicU64::from_ptr((line + LINE_HEAD) as *mut u64);
        let head = head_at.load(Ordering::Acquire);
        let tags = AtomicU64::from_ptr((line + LINE_TAGS) as *mut u64).load(Ordering::Acquire);
        let both = u128::from(head) << 64 | u128::from(tags);
        let mut strangers = false;
        for slot in (0..LINE_SLOT_COUNT).filter(|slot| (both >> (8 * slot)) as u8 == tag) {
            let slot_at = AtomicU32::from_ptr((line + LINE_SLOTS + 4 * slot) as *mut u32);
            let word = slot_at.load(Ordering::Acquire);
            let number = (word & SLOT_NUMBER) as usize;
            let element = layout.elements + number * layout.stride;
            let same = key.chunks(8).enumerate().all(|(n, bytes)| {
                AtomicU64::from_ptr((element + 8 * n) as *mut u64).load(Ordering::Relaxed)
                    == crate::keyhash::tail(bytes)
            });
            if !same {
                strangers = true;
                continue;
            }
            fence(Ordering::Acquire);
            if (head ^ head_at.load(Ordering::Relaxed)) >> HEAD_REMOVALS_SHIFT != 0 {
                return Find::Call;
            }
            if layout.mark_used != 0 && word & SLOT_USED == 0 {
                slot_at.fetch_or(SLOT_USED, Ordering::Relaxed);
            }
            return Find::At(match layout.percpu_values {
                0 => element + layout.value_at,
                values => values + cpu as usize * layout.cpu_stride + number * layout.value_stride,
            });
        }
        let behind = head >> HEAD_FILTER_SHIFT & 1 << (tag & 7) != 0;
        if strangers || behind { Find::Call } else { Find::None }
    }
}

/// What [`find`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Find {
    /// The value's address.
    At(usize),
    /// No such key.
    None,
    /// What generated code leaves to [`lookup`].
    Call,
}

/// `bpf_map_lookup_elem`: the value's address or null, for every type that programs can look up.
///
/// # Safety
/// `map` is a live map; `key` points to [`Map::key_size`] bytes that nobody writes meanwhile; the calling thread has a guard pinned while it uses the
/// result.
pub unsafe extern "C" fn lookup(map: *const Map, cpu: u32, key: *const u8) -> *mut u8 {
    // SAFETY: the caller's promise. The guard pinned here ends here; the caller's goes on.
    unsafe {
        let map = &*map;
        let key = std::slice::from_raw_parts(key, map.key_size());
        map.value(cpu, key, &Guard::pin()).map_or(std::ptr::null_mut(), |value| value.as_ptr())
    }
}

/// `bpf_map_update_elem`: 0 or a negative errno.
///
/// # Safety
/// As for [`lookup`]; `value` points to [`Map::value_size`] bytes that nobody writes meanwhile.
pub unsafe extern "C" fn update(map: *const Map, cpu: u32, key: *const u8, value: *const u8, flags: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        let map = &*map;
        let key = std::slice::from_raw_parts(key, map.key_size());
        let value = std::slice::from_raw_parts(value, map.value_size());
        result(map.prog_update(cpu, key, value, flags))
    }
}

/// `bpf_map_delete_elem`: 0 or a negative errno.
///
/// # Safety
/// As for [`lookup`].
pub unsafe extern "C" fn delete(map: *const Map, cpu: u32, key: *const u8) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        let map = &*map;
        result(map.prog_delete(cpu, std::slice::from_raw_parts(key, map.key_size())))
    }
}

/// `bpf_map_lookup_elem` in a map of maps: the [`InnerSlot`]'s map, or null.
///
/// # Safety
/// As for [`lookup`].
pub unsafe extern "C" fn inner(map: *const Map, key: *const u8) -> *const Map {
    // SAFETY: the caller's promise; the inner map lives as long as the caller's guard.
    unsafe {
        let map = &*map;
        let key = std::slice::from_raw_parts(key, map.key_size());
        map.inner(key, &Guard::pin()).map_or(std::ptr::null(), Arc::as_ptr)
    }
}

/// Many look-ups at once: all hashes, then all buckets, then all elements, each fetched ahead of its use. `results[i]` becomes
/// what [`lookup`] gives for the key at `keys + i * key_stride`.
///
/// # Safety
/// As for [`lookup`]; `keys` points to `count` keys, `key_stride` bytes apart, `results` to room for `count` pointers.
pub unsafe extern "C" fn lookup_many(
    map: *const Map,
    cpu: u32,
    keys: *const u8,
    key_stride: usize,
    count: usize,
    results: *mut *mut u8,
) {
    let guard = Guard::pin();
    // SAFETY: the caller's promise.
    unsafe {
        let map = &*map;
        let key = |n: usize| std::slice::from_raw_parts(keys.add(n * key_stride), map.key_size());
        map.each_value(cpu, count, key, &guard, |n, value| {
            *results.add(n) = value.map_or(std::ptr::null_mut(), |value| value.as_ptr());
        });
    }
}

fn result(done: Result<(), xway_abi::Errno>) -> i64 {
    match done {
        Ok(()) => 0,
        Err(errno) => -i64::from(errno.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env;
    use std::mem::offset_of;
    use xway_abi::{MapSpec, MapType, map_flags};

    #[test]
    fn offsets_are_what_the_text_says() {
        assert_eq!(crate::line::offsets(), [LINE_TAGS, LINE_HEAD, LINE_SLOTS, 60, LINE_BYTES]);
        assert_eq!(
            (offset_of!(InnerSlot, raw), offset_of!(ProgramSlot, entry), offset_of!(ProgramSlot, id)),
            (0, 0, 8)
        );
        // Each element of a map of maps, and of a PROG_ARRAY, takes so much besides its pointer.
        assert_eq!((size_of::<InnerSlot>(), size_of::<ProgramSlot>()), (16, 32));
        assert_eq!(
            (
                offset_of!(HashLayout, seed),
                offset_of!(HashLayout, stride),
                offset_of!(HashLayout, mask),
                size_of::<HashLayout>()
            ),
            (16, 40, 80, 96)
        );
        assert_eq!((offset_of!(ArrayLayout, max_entries), offset_of!(PercpuArrayLayout, cpus)), (16, 28));
        // The kind comes first, four bytes, then the layout at 8.
        let layout = MapLayout::Array(ArrayLayout { base: 7, stride: 8, max_entries: 1, index_mask: 0 });
        let MapLayout::Array(array) = &layout else { unreachable!() };
        assert_eq!(std::ptr::from_ref(array) as usize - std::ptr::from_ref(&layout) as usize, KIND_FIELDS);
        for (map_type, kind) in [(MapType::Array, KIND_ARRAY), (MapType::Hash, KIND_HASH)] {
            let map = Map::create(&MapSpec::new(map_type, 4, 8, 4), &Env::with_cpus(1)).unwrap();
            let at = Arc::as_ptr(&map) as usize + MAP_LAYOUT;
            // SAFETY: a field of a live map that begins with a number of 32 bits (`repr(C)`).
            assert_eq!(unsafe { (at as *const u32).read() }, kind, "{map_type:?}");
        }
    }

    #[test]
    fn the_example_of_the_text() {
        let h = hash([1, 3, 5], &[1, 2, 3, 4]);
        if cfg!(target_endian = "little") {
            assert_eq!((h, tag_of(h), h & 255), (0x3c2d_1e00, 1, 0));
        }
    }

    /// A million keys by hand and by the map, in each kind of table: the same value, or the same nothing.
    #[test]
    fn by_hand_and_by_the_map() {
        let count = if cfg!(miri) { 60u32 } else { 100_000 };
        for map_type in [MapType::Hash, MapType::LruHash, MapType::PercpuHash, MapType::LruPercpuHash] {
            for key_size in [4usize, 6, 16, 20, 40] {
                let spec = MapSpec::new(map_type, key_size as u32, 12, count / 2);
                let map = Map::create(&spec, &Env::with_cpus(3)).unwrap();
                let MapLayout::Hash(layout) = map.layout() else { panic!("a hash table") };
                let guard = Guard::pin();
                let key = |n: u32| -> Vec<u8> { n.to_be_bytes().into_iter().cycle().take(key_size).collect() };
                for n in 0..count / 2 {
                    map.prog_update(2, &key(n), &[1; 12], map_flags::NOEXIST).unwrap();
                }
                let (mut by_hand, mut calls) = (0, 0);
                for n in 0..count {
                    let expected = map.value(1, &key(n), &guard).map(|value| value.addr());
                    // SAFETY: the map is alive and the guard pinned.
                    match unsafe { find(&layout, 1, &key(n), &guard) } {
                        Find::At(addr) => assert_eq!(Some(addr), expected),
                        Find::None => assert_eq!(None, expected),
                        Find::Call => calls += 1,
                    }
                    by_hand += 1;
                    // SAFETY: as above; the key is as long as the map's.
                    let called = unsafe { lookup(Arc::as_ptr(&map), 1, key(n).as_ptr()) } as usize;
                    assert_eq!(called, expected.unwrap_or(0));
                }
                assert!(calls * 12 < by_hand, "{calls} of {by_hand} were left to the call");
            }
        }
    }

    #[test]
    fn many_at_once_are_the_same() {
        let keys: Vec<[u8; 16]> = (0..200u64).map(|n| [n.to_ne_bytes(), [7; 8]].concat().try_into().unwrap()).collect();
        for map_type in [MapType::Hash, MapType::LruHash, MapType::PercpuHash] {
            let map = Map::create(&MapSpec::new(map_type, 16, 8, 100), &Env::with_cpus(2)).unwrap();
            keys.iter().step_by(3).for_each(|key| map.prog_update(0, key, &[1; 8], 0).unwrap());
            let guard = Guard::pin();
            let mut results = vec![std::ptr::null_mut(); keys.len()];
            // SAFETY: the map is alive, the keys lie side by side, there is room for all results.
            unsafe { lookup_many(Arc::as_ptr(&map), 1, keys.as_ptr().cast(), 16, keys.len(), results.as_mut_ptr()) };
            for (key, result) in keys.iter().zip(&results) {
                assert_eq!(map.value(1, key, &guard).map_or(0, |value| value.addr()), *result as usize);
            }
            assert_eq!(results.iter().filter(|result| !result.is_null()).count(), 67);
            // SAFETY: as above.
            let gone = unsafe { delete(Arc::as_ptr(&map), 0, keys[0].as_ptr()) };
            // SAFETY: as above; the value is as long as the map's.
            let again = unsafe { update(Arc::as_ptr(&map), 0, keys[0].as_ptr(), [2; 8].as_ptr(), map_flags::EXIST) };
            assert_eq!((gone, again), (0, -2));
        }
    }

    #[test]
    fn slots_lead_to_inner_maps_and_these_to_their_layout() {
        let inner_spec = MapSpec::new(MapType::Array, 4, 8, 4);
        let spec = MapSpec { inner: Some(Box::new(inner_spec.clone())), ..MapSpec::new(MapType::ArrayOfMaps, 4, 4, 4) };
        let outer = Map::create(&spec, &Env::with_cpus(1)).unwrap();
        let map = Map::create(&inner_spec, &Env::with_cpus(1)).unwrap();
        outer.set_inner(&[2, 0, 0, 0], map.clone()).unwrap();
        let MapLayout::Maps(slots) = outer.layout() else { panic!("slots") };
        let _guard = Guard::pin();
        // SAFETY: slot 2 of 4; what it points to lives as long as the guard.
        let slot = unsafe { &**((slots.base + 16) as *const *const InnerSlot) };
        assert_eq!(slot.raw, Arc::as_ptr(&map));
        // SAFETY: the map is alive; its layout is written when it is made and never again.
        let layout = unsafe { slot.raw.byte_add(MAP_LAYOUT).cast::<MapLayout>().read() };
        assert_eq!(layout, map.layout());
        // SAFETY: the map is alive, the key four bytes long.
        assert_eq!(unsafe { inner(Arc::as_ptr(&outer), [2, 0, 0, 0].as_ptr()) }, Arc::as_ptr(&map));
    }
}
