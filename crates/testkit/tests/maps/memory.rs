//! What maps cost: ours beside what the kernel reports for its own (`memlock` in `/proc/self/fdinfo`).
//!
//! `cargo test -p xway-testkit --test maps memory -- --nocapture` prints the table.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::time::Duration;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_kernel::{Batch, KernelMap};
use xway_maps::Map;
use xway_testkit::Rng;

use crate::subject::{Ours, kernel_maps, kernel_nr_cpus};

fn memlock(map: &KernelMap) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:")).expect("the kernel reports memlock");
    line.trim().parse().unwrap()
}

/// Keys that all can be in the map at once.
fn keys(spec: &MapSpec) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(7);
    (0..spec.max_entries)
        .map(|n| match spec.map_type {
            MapType::LpmTrie => {
                let bits = (spec.key_size - 4) * 8;
                let len = 8 + rng.below(u64::from(bits) - 7) as u32;
                [&len.to_ne_bytes()[..], &rng.bytes(spec.key_size as usize - 4)].concat()
            }
            _ => n.to_ne_bytes().into_iter().cycle().take(spec.key_size as usize).collect(),
        })
        .collect()
}

/// The value that `keys` get in both.
fn value(spec: &MapSpec, size: usize) -> Vec<u8> {
    match spec.map_type {
        // The loopback device, without a program.
        MapType::DevmapHash => vec![1, 0, 0, 0, 0, 0, 0, 0],
        _ => vec![1; size],
    }
}

/// Entries from which on only maps are filled that take memory as they are.
const MANY: u32 = 1_000_000;

/// What ours takes with these keys in it.
fn of_ours(spec: &MapSpec, keys: &[Vec<u8>]) -> u64 {
    let map = Map::create(spec, &Ours::new().env).unwrap();
    let value = value(spec, map.user_value_size());
    if spec.max_entries >= MANY && spec.flags & map_flags::NO_PREALLOC != 0 {
        let count = keys.len() as u32;
        assert_eq!(map.update_batch(&keys.concat(), &value.repeat(keys.len()), count, 0, 0).result, Ok(()), "{spec:?}");
    } else if spec.max_entries < MANY {
        keys.iter().for_each(|key| map.update(key, &value, 0).unwrap());
    }
    // What has just been exchanged waits for guards.
    xway_maps::Guard::collect();
    map.memory().bytes
}

fn fill_theirs(map: &KernelMap, spec: &MapSpec, keys: &[Vec<u8>]) {
    let value = value(spec, map.user_value_size());
    if matches!(spec.map_type, MapType::DevmapHash | MapType::PercpuHash) {
        // Linux has no batches for the one; for the other it takes from a stock that is filled again a little later.
        for key in keys {
            let put = || map.update(key, &value, 0).map_err(|_| std::thread::sleep(Duration::from_millis(1)));
            (0..1000).find(|_| put().is_ok()).unwrap_or_else(|| panic!("{spec:?}"));
        }
        return;
    }
    let (mut keys, mut values, count) = (keys.concat(), value.repeat(keys.len()), keys.len() as u32);
    let (keys, values) = (&mut keys[..], &mut values[..]);
    let (_, done) =
        map.update_batch(Batch { in_batch: None, out_batch: &mut [], keys, values, count, elem_flags: 0, flags: 0 });
    assert_eq!(done, Ok(()), "{spec:?}");
}

/// What Linux 6.18 takes for a trie, where `memlock` is the prefixes' bare bytes: a node for each prefix and one for each place at which
/// ways part, each with a pointer of the allocator, in the allocator's next size.
fn taken_by_a_trie(spec: &MapSpec, keys: &[Vec<u8>]) -> u64 {
    let bit = |address: &[u8], n: u32| address[n as usize / 8] >> (7 - n % 8) & 1;
    let cut = |address: &[u8], len: u32| {
        let inside = |n: usize| len.saturating_sub(8 * n as u32).min(8);
        address.iter().enumerate().map(|(n, byte)| byte & !(0xff_u32 >> inside(n)) as u8).collect::<Vec<u8>>()
    };
    let prefix = |key: &Vec<u8>| {
        let len = u32::from_ne_bytes(key[..4].try_into().unwrap());
        (cut(&key[4..], len), len)
    };
    let prefixes: BTreeSet<(Vec<u8>, u32)> = keys.iter().map(prefix).collect();
    let mut nodes = prefixes.clone();
    for ((one, short), (other, long)) in prefixes.iter().zip(prefixes.iter().skip(1)) {
        let most = *short.min(long);
        let common = (0..most).find(|n| bit(one, *n) != bit(other, *n)).unwrap_or(most);
        nodes.insert((cut(one, common), common));
    }
    nodes.len() as u64 * u64::from(size_of_a_node(spec))
}

fn size_of_a_node(spec: &MapSpec) -> u32 {
    // Two pointers, length and flags; then the address and the value; then the pointer.
    let bytes = 24 + (spec.key_size - 4) + spec.value_size + 8;
    [64, 96, 128, 192, 256].into_iter().find(|size| *size >= bytes).expect("a small value")
}

/// Tests that look at what the kernel's allocator has given out, one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Objects in use of a cache of the kernel's allocator.
fn in_use(cache: &str) -> Option<i64> {
    let text = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(cache))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The arithmetic of `taken_by_a_trie` beside what the allocator says.
#[test]
fn what_linux_takes_for_a_trie_is_more_than_it_reports() {
    let name = "what_linux_takes_for_a_trie_is_more_than_it_reports";
    if !kernel_maps(name) {
        return;
    }
    let counted = in_use("kmalloc-cg-64").is_some();
    let needs = xway_testkit::Needs::of(&format!("testkit::maps::{name}")).kernel(6, 18);
    if !needs.that(counted, "/proc/slabinfo with kmalloc-cg-64").met() {
        return;
    }
    let spec = MapSpec::new(MapType::LpmTrie, 8, 8, 100_000).with_flags(map_flags::NO_PREALLOC);
    let keys = keys(&spec);
    let expected = taken_by_a_trie(&spec, &keys) / u64::from(size_of_a_node(&spec));
    // Others on this machine take and give back such objects meanwhile; what was given back last goes after a moment only.
    let _alone = ALONE.lock();
    let mut seen = Vec::new();
    for _ in 0..10 {
        let before = in_use("kmalloc-cg-64").unwrap();
        let theirs = KernelMap::create("memory", &spec).unwrap();
        keys.iter().for_each(|key| theirs.update(key, &[1; 8], 0).unwrap());
        let more = in_use("kmalloc-cg-64").unwrap() - before;
        let before = in_use("kmalloc-cg-512").unwrap();
        let heads: Vec<KernelMap> = (0..500).map(|_| KernelMap::create("memory", &spec).unwrap()).collect();
        let taken = in_use("kmalloc-cg-512").unwrap() - before;
        drop(heads);
        // Some of them may have been taken out of the allocator's stock of each CPU, which counts as in use.
        let whole = taken > 300;
        if !whole {
            seen.push(taken);
            std::thread::sleep(std::time::Duration::from_millis(500));
            continue;
        }
        if (more as f64 / expected as f64 - 1.0).abs() < 0.1 {
            assert!(memlock(&theirs) < 64 * expected * 2 / 3, "{} of {expected} nodes", memlock(&theirs));
            return;
        }
        seen.push(more);
        drop(theirs);
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    panic!("{expected} nodes: {seen:?}");
}

/// What Linux keeps of the template of an ARRAY_OF_MAPS, an array, and does not report: the head of one.
const TEMPLATE: u64 = 312;

/// Of that the allocator says how many there are.
#[test]
fn what_linux_takes_for_a_map_of_maps_is_more_than_it_reports() {
    let name = "what_linux_takes_for_a_map_of_maps_is_more_than_it_reports";
    if !kernel_maps(name) {
        return;
    }
    let counted = in_use("kmalloc-512").is_some();
    let needs = xway_testkit::Needs::of(&format!("testkit::maps::{name}")).kernel(6, 18);
    if !needs.that(counted, "/proc/slabinfo with kmalloc-512").met() {
        return;
    }
    let inner = MapSpec::new(MapType::Array, 4, 8, 1);
    let mut spec = MapSpec::new(MapType::ArrayOfMaps, 4, 4, 1);
    spec.inner = Some(inner.clone().into());
    let template = KernelMap::create("memory", &inner).unwrap();
    assert_eq!(memlock(&KernelMap::create("memory", &MapSpec::new(MapType::Array, 4, 8, 1)).unwrap()), TEMPLATE + 8);
    let _alone = ALONE.lock();
    let mut seen = Vec::new();
    for _ in 0..10 {
        let before = in_use("kmalloc-512").unwrap();
        let maps: Vec<KernelMap> =
            (0..1000).map(|_| KernelMap::create_like(0, "memory", &spec, None, Some(&template)).unwrap()).collect();
        let more = in_use("kmalloc-512").unwrap() - before;
        assert!(maps.iter().all(|map| memlock(map) == TEMPLATE + 8));
        // Some may have come out of the allocator's stock of each CPU, which counts as in use; others use it meanwhile.
        if (800..1200).contains(&more) {
            return;
        }
        seen.push(more);
        drop(maps);
        std::thread::sleep(Duration::from_millis(500));
    }
    panic!("1000 maps: {seen:?}");
}

/// What Linux takes for a DEVMAP_HASH of so many devices: the head in a piece of its allocator, of which it reports the bare bytes, a word
/// for each list, and the elements.
fn taken_by_devices(count: u32) -> u64 {
    HEAD + 8 * u64::from(count.next_power_of_two()) + ELEMENT * u64::from(count)
}

/// An element of a DEVMAP_HASH.
const ELEMENT: u64 = 64;

/// Of both the allocator says how many there are.
#[test]
fn what_linux_takes_for_devices_is_more_than_it_reports() {
    let name = "what_linux_takes_for_devices_is_more_than_it_reports";
    if !kernel_maps(name) {
        return;
    }
    let caches = [format!("kmalloc-cg-{HEAD}"), format!("kmalloc-cg-{ELEMENT}")];
    let counted = caches.iter().all(|cache| in_use(cache).is_some());
    let needs = xway_testkit::Needs::of(&format!("testkit::maps::{name}")).kernel(6, 18);
    if !needs.that(counted, "/proc/slabinfo with kmalloc-cg-64").met() {
        return;
    }
    let spec = MapSpec::new(MapType::DevmapHash, 4, 8, 1);
    let _alone = ALONE.lock();
    let mut seen = Vec::new();
    for _ in 0..10 {
        let before = caches.each_ref().map(|cache| in_use(cache).unwrap());
        let maps: Vec<KernelMap> = (0..1000).map(|_| KernelMap::create("memory", &spec).unwrap()).collect();
        maps.iter().for_each(|map| fill_theirs(map, &spec, &keys(&spec)));
        let more = [0, 1].map(|n| in_use(&caches[n]).unwrap() - before[n]);
        assert!(maps.iter().all(|map| memlock(map) < taken_by_devices(1)));
        // As above: some come out of stocks that count as in use, and others use the allocator meanwhile.
        if more.iter().all(|more| (800..1200).contains(more)) {
            return;
        }
        seen.push(more);
        drop(maps);
        std::thread::sleep(Duration::from_millis(500));
    }
    panic!("1000 maps with an element each: {seen:?}");
}

/// The maps of the comparison: type, and sizes of keys and values.
fn shapes() -> Vec<(MapType, &'static [(u32, u32)])> {
    use MapType::*;
    let hash: &[(u32, u32)] = &[(4, 8), (4, 64), (16, 8), (16, 64), (40, 8), (40, 64), (40, 24), (6, 100)];
    let indexed: &[(u32, u32)] = &[(4, 8), (4, 64), (4, 100)];
    let trie: &[(u32, u32)] = &[
        (8, 1),
        (8, 4),
        (8, 8),
        (8, 16),
        (8, 64),
        (12, 1),
        (12, 8),
        (12, 64),
        (20, 1),
        (20, 4),
        (20, 8),
        (20, 16),
        (20, 64),
    ];
    let queue: &[(u32, u32)] = &[(0, 8), (0, 64)];
    let descriptors: &[(u32, u32)] = &[(4, 4)];
    let of = |types: &[MapType], sizes| types.iter().map(move |map_type| (*map_type, sizes)).collect::<Vec<_>>();
    [
        of(&[Hash, LruHash, PercpuHash, LruPercpuHash], hash),
        of(&[LpmTrie], trie),
        of(&[Array, PercpuArray], indexed),
        of(&[Queue, Stack, BloomFilter], queue),
        of(&[ProgArray, PerfEventArray, CgroupArray, ArrayOfMaps, HashOfMaps, Xskmap], descriptors),
        of(&[Devmap, DevmapHash, Cpumap], &[(4, 8)]),
        of(&[StackTrace], &[(4, 8)]),
        of(&[Ringbuf, UserRingbuf], &[(0, 0)]),
    ]
    .concat()
}

/// From how many prefixes on a trie is held against what Linux reports: it reports neither the trie itself nor the nodes between the
/// prefixes. What it takes is more than ours at every size.
const REPORTED_FROM: u32 = 100;

/// How many times that much, at most. Larger tries have memory of their own, in which what was there before the first table doubled is free
/// until more prefixes need it.
fn most_of_reported(prefixes: u32) -> f64 {
    if prefixes < 16_384 { 1.3 } else { 1.5 }
}

/// What Linux takes for a trie without prefixes, and for a DEVMAP_HASH without devices: the head, in a piece of its allocator.
const HEAD: u64 = 512;

#[test]
fn memory_is_at_most_1_3_times_the_kernels() {
    if !kernel_maps("memory_is_at_most_1_3_times_the_kernels") {
        return;
    }
    use MapType::*;
    let _alone = ALONE.lock();
    let mut wrong = Vec::new();
    println!(
        "| map | key | value | entries | ours | Linux | ours, bytes each | Linux, bytes each | ratio | to what it takes |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for (map_type, sizes) in shapes() {
        let indexed = matches!(map_type, Array | PercpuArray);
        for &(key, value) in sizes {
            // Of a million entries the ones that Linux makes in a moment: it takes a second and more for a million parts of each CPU.
            let plain = matches!(map_type, Hash | LruHash) && (key, value) == (16, 8);
            let million = plain || indexed && value == 8 || map_type == LpmTrie && (key, value) == (8, 8);
            let mut entries = vec![1, 2, 5, 8, 16, 33, 64, 100, 257, 1000, 10_000, 100_000];
            match map_type {
                // Right behind the place where the first table has doubled, where it and the old one are both there.
                LpmTrie => entries.extend([5_000, 9_984, 16_383, 18_000, 34_790, 69_181]),
                Ringbuf | UserRingbuf => entries = (12..22).map(|log2| 1 << log2).collect(),
                Cpumap => entries.retain(|entries| *entries <= kernel_nr_cpus()),
                _ => {}
            }
            entries.extend(Some(1_000_000).filter(|_| million));
            for entries in entries {
                for flags in [0, map_flags::NO_PREALLOC] {
                    let growing = flags != 0;
                    if growing != (map_type == LpmTrie) && !(growing && matches!(map_type, Hash | PercpuHash)) {
                        continue;
                    }
                    let mut spec = MapSpec::new(map_type, key, value, entries).with_flags(flags);
                    spec.inner =
                        matches!(map_type, ArrayOfMaps | HashOfMaps).then(|| MapSpec::new(Array, 4, 8, 1).into());
                    let theirs = KernelMap::create("memory", &spec).unwrap();
                    let elements =
                        growing || matches!(map_type, Hash | LruHash | PercpuHash | LruPercpuHash | DevmapHash);
                    let keys = if elements { keys(&spec) } else { Vec::new() };
                    // What is preallocated takes no more when it is filled.
                    if growing || map_type == DevmapHash {
                        fill_theirs(&theirs, &spec, &keys);
                    }
                    // How keys share a small table's buckets is another with each seed: what counts is the most.
                    let tables = if elements && map_type != LpmTrie && entries <= 100 { 8 } else { 1 };
                    let ours = (0..tables).map(|_| of_ours(&spec, &keys)).max().unwrap();
                    let (ours, theirs) = (ours as f64, memlock(&theirs) as f64);
                    let taken = match map_type {
                        LpmTrie => Some((HEAD + taken_by_a_trie(&spec, &keys)) as f64),
                        ArrayOfMaps => Some(theirs + TEMPLATE as f64),
                        DevmapHash => Some(taken_by_devices(entries) as f64),
                        _ => None,
                    };
                    let (each, ratio) = (f64::from(entries), ours / theirs);
                    let grows = if growing && map_type != LpmTrie { ", growing" } else { "" };
                    let name = map_type.name();
                    println!(
                        "| {name}{grows} | {key} | {value} | {entries} | {ours} | {theirs} | {:.1} | {:.1} | {ratio:.2} | {:.2} |",
                        ours / each,
                        theirs / each,
                        ours / taken.unwrap_or(theirs),
                    );
                    let what = format!("{name}{grows} {key}/{value}/{entries}");
                    if ours > 1.3 * taken.unwrap_or(theirs) {
                        wrong.push(format!("{what}: {ours} to {taken:?} that it takes, {theirs} that it reports"));
                    }
                    if map_type == LpmTrie && entries >= REPORTED_FROM && ours > most_of_reported(entries) * theirs {
                        wrong.push(format!("{what}: {ratio:.2} of what is reported"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
