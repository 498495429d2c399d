//! Element commands: every flag and odd argument on every type, and random runs whose every result must be the same.

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_kernel::KernelMap;
use xway_maps::Map;
use xway_testkit::Rng;

use crate::create::{supported, valid};
use crate::subject::{MapUnderTest, Ours, World, kernel_maps, on_both, same_on_both};

/// Values of the `flags` argument: all combinations of the bits that mean something, and some that do not.
pub const FLAGS: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX];

/// Specs worth running: each type, with the flags that change how it behaves.
pub fn variants() -> Vec<MapSpec> {
    use map_flags::{INNER_MAP, MMAPABLE, NO_COMMON_LRU, NO_PREALLOC, ZERO_SEED};
    let mut specs: Vec<MapSpec> = supported().map(valid).collect();
    for map_type in [MapType::Hash, MapType::PercpuHash, MapType::HashOfMaps] {
        specs.push(valid(map_type).with_flags(NO_PREALLOC));
        specs.push(valid(map_type).with_flags(NO_PREALLOC | ZERO_SEED));
    }
    for map_type in [MapType::LruHash, MapType::LruPercpuHash] {
        specs.push(MapSpec { max_entries: 64, ..valid(map_type).with_flags(NO_COMMON_LRU) });
    }
    specs.push(valid(MapType::Array).with_flags(MMAPABLE));
    specs.push(valid(MapType::Array).with_flags(INNER_MAP));
    for map_type in [MapType::Array, MapType::PercpuArray, MapType::Hash, MapType::PercpuHash, MapType::LruHash] {
        // Sizes that are no multiple of eight, or of four.
        for (value_size, entries) in [(1, 1), (3, 2), (13, 3), (20, 5)] {
            specs.push(MapSpec { value_size, max_entries: entries, ..valid(map_type) });
        }
    }
    for key_size in [1, 3, 9, 16, 31] {
        specs.push(MapSpec { key_size, ..valid(MapType::Hash) });
    }
    specs.push(MapSpec { value_size: 4, ..valid(MapType::Devmap) });
    specs.push(MapSpec { value_size: 4, ..valid(MapType::DevmapHash) });
    specs.push(MapSpec { value_size: 4, ..valid(MapType::Cpumap) });
    specs
}

fn title(spec: &MapSpec) -> String {
    let MapSpec { map_type, key_size, value_size, max_entries, flags, .. } = spec;
    format!("{} {key_size}/{value_size}/{max_entries}/{flags:#x}", map_type.name())
}

/// A value that is right for the type: devices, CPUs and the like are kept within what exists.
fn some_value(world: &dyn World, spec: &MapSpec, map: &dyn MapUnderTest, rng: &mut Rng) -> Vec<u8> {
    let mut value = rng.bytes(map.user_value_size());
    let mut word = |at: usize, n: u32| {
        if let Some(place) = value.get_mut(at..at + 4) {
            place.copy_from_slice(&n.to_ne_bytes());
        }
    };
    match spec.map_type {
        MapType::Devmap | MapType::DevmapHash => {
            word(0, *rng.pick(&[0, world.device(), world.device(), world.no_device()]));
            word(4, *rng.pick(&[0, 0, u32::MAX, 0x7fff_ffff]));
        }
        MapType::Cpumap => {
            word(0, *rng.pick(&[0, 1, 192, 16384, 16385, u32::MAX]));
            word(4, *rng.pick(&[0, 0, u32::MAX]));
        }
        // Descriptors that nobody has.
        MapType::ProgArray | MapType::PerfEventArray | MapType::CgroupArray | MapType::Xskmap => {
            word(0, *rng.pick(&[u32::MAX, 0x7fff_ffff]));
        }
        MapType::ArrayOfMaps | MapType::HashOfMaps => word(0, *rng.pick(&[u32::MAX, 0x7fff_ffff])),
        _ => {}
    }
    value
}

fn some_key(spec: &MapSpec, rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![0; spec.key_size as usize];
    match spec.map_type {
        MapType::LpmTrie => {
            let bits = (spec.key_size - 4) * 8;
            let len =
                if rng.one_in(20) { bits + 1 + rng.below(3) as u32 } else { rng.below(u64::from(bits) + 1) as u32 };
            key[..4].copy_from_slice(&len.to_ne_bytes());
            // Few distinct addresses, so that prefixes nest.
            for byte in &mut key[4..] {
                *byte = *rng.pick(&[0, 0, 0x80, 0xc0, 0xff, 0x0f]);
            }
        }
        _ => {
            let number = match rng.below(10) {
                0 => spec.max_entries.saturating_sub(1),
                1 => spec.max_entries,
                2 => u32::MAX,
                _ => rng.below(u64::from(spec.max_entries) + 4) as u32,
            };
            for (byte, from) in key.iter_mut().zip(number.to_ne_bytes().iter().cycle()) {
                *byte = *from;
            }
        }
    }
    key
}

fn has_order(map_type: MapType) -> bool {
    use MapType::*;
    !matches!(map_type, Hash | PercpuHash | LruHash | LruPercpuHash | HashOfMaps | DevmapHash)
}

/// Whether the map's answers depend on chance (which element is evicted, which bits collide).
fn by_chance(map_type: MapType) -> bool {
    matches!(map_type, MapType::BloomFilter)
}

fn whole(map: &dyn MapUnderTest, spec: &MapSpec) -> String {
    let keys = map.keys().map(|mut keys| {
        if !has_order(spec.map_type) {
            keys.sort();
        }
        keys.iter().map(|key| (key.clone(), map.get(key))).collect::<Vec<_>>()
    });
    format!("{keys:?}")
}

#[test]
fn every_command_with_every_flag() {
    same_on_both("every_command_with_every_flag", |world| {
        let mut log = Vec::new();
        for spec in variants() {
            let title = title(&spec);
            let map = match world.create(&spec) {
                Ok(map) => map,
                Err(errno) => {
                    log.push(format!("{title}: {errno}"));
                    continue;
                }
            };
            let mut rng = Rng::new(1);
            let size = map.user_value_size();
            let key_size = spec.key_size as usize;
            let number = |n: u32| -> Vec<u8> { n.to_ne_bytes().iter().cycle().copied().take(key_size).collect() };
            let mut keys = vec![vec![], number(0), number(1), number(spec.max_entries), number(u32::MAX)];
            if key_size == 0 {
                // There a key that is not null is wrong.
                keys = vec![vec![], vec![0; 4]];
            } else if spec.map_type == MapType::LpmTrie {
                keys.push([8u32.to_ne_bytes(), [1, 2, 3, 4]].concat());
            }
            for key in &keys {
                if key.is_empty() && key_size != 0 {
                    continue;
                }
                for &flags in FLAGS {
                    let value = some_value(world, &spec, &*map, &mut rng);
                    let mut out = vec![0xa5; size];
                    log.push(format!("{title}: update {key:?} {flags:#x}: {:?}", map.update(key, &value, flags)));
                    let looked_up = map.lookup(key, &mut out, flags);
                    let shown = if looked_up.is_ok() { out.clone() } else { vec![] };
                    log.push(format!("{title}: lookup {key:?} {flags:#x}: {looked_up:?} {shown:?}"));
                    out.fill(0xa5);
                    if flags & 1 == 1 {
                        let taken = map.lookup_and_delete(key, &mut out, flags);
                        log.push(format!("{title}: take {key:?} {flags:#x}: {taken:?}"));
                        let taken = map.lookup_and_delete(key, &mut out, 0);
                        let shown = if taken.is_ok() { out.clone() } else { vec![] };
                        log.push(format!("{title}: take {key:?}: {taken:?} {shown:?}"));
                    }
                    let mut next = vec![0; key_size];
                    let result = map.next_key(Some(key), &mut next);
                    if result.is_err() || has_order(spec.map_type) {
                        log.push(format!("{title}: next {key:?}: {result:?} {next:?}"));
                    }
                    if flags == 2 || flags == 16 {
                        log.push(format!("{title}: delete {key:?}: {:?}", map.delete(key)));
                    }
                }
            }
            let mut next = vec![0; key_size];
            let first = map.next_key(None, &mut next);
            log.push(format!(
                "{title}: first {first:?} {}",
                if has_order(spec.map_type) { format!("{next:?}") } else { String::new() }
            ));
            log.push(format!("{title}: all {}", whole(&*map, &spec)));
        }
        log
    });
}

#[test]
fn random_runs() {
    same_on_both("random_runs", |world| {
        let mut log = Vec::new();
        for (n, spec) in variants().into_iter().enumerate() {
            if by_chance(spec.map_type) {
                continue;
            }
            // LRU maps are compared while they are far from full: what they evict is theirs to choose.
            let lru = matches!(spec.map_type, MapType::LruHash | MapType::LruPercpuHash);
            let room = if lru { 4096 } else { spec.max_entries };
            for (round, entries) in [spec.max_entries, 16].into_iter().enumerate() {
                let ring = matches!(spec.map_type, MapType::Ringbuf | MapType::UserRingbuf);
                let asked = if lru {
                    room
                } else if ring || spec.map_type == MapType::Cpumap {
                    spec.max_entries
                } else {
                    entries
                };
                let Ok(map) = world.create(&MapSpec { max_entries: asked, ..spec.clone() }) else { continue };
                let keys_of = MapSpec { max_entries: entries, ..spec.clone() };
                log.push(title(&keys_of));
                random_run(world, &keys_of, &*map, 1000 * n as u64 + round as u64, &mut log);
            }
        }
        log
    });
}

fn random_run(world: &dyn World, spec: &MapSpec, map: &dyn MapUnderTest, seed: u64, log: &mut Vec<String>) {
    let mut rng = Rng::new(seed);
    let title = title(spec);
    for step in 0..600 {
        let key = some_key(spec, &mut rng);
        let mut out = vec![0xa5; map.user_value_size()];
        let flags = if rng.one_in(6) { *rng.pick(FLAGS) } else { *rng.pick(&[0, 0, 0, 1, 2]) };
        let what = match rng.below(12) {
            0..=4 => {
                let value = some_value(world, spec, map, &mut rng);
                format!("update {key:?} {flags:#x} {value:?}: {:?}", map.update(&key, &value, flags))
            }
            5 | 6 => {
                let result = map.lookup(&key, &mut out, if rng.one_in(8) { flags } else { 0 });
                format!("lookup {key:?}: {result:?} {:?}", result.is_ok().then_some(out))
            }
            7 | 8 => format!("delete {key:?}: {:?}", map.delete(&key)),
            9 => {
                let result = map.lookup_and_delete(&key, &mut out, if rng.one_in(8) { flags } else { 0 });
                format!("take {key:?}: {result:?} {:?}", result.is_ok().then_some(out))
            }
            _ => {
                let mut next = vec![0; key.len()];
                let from = (!rng.one_in(4)).then_some(key.as_slice());
                let result = map.next_key(from, &mut next);
                if has_order(spec.map_type) {
                    format!("next {from:?}: {result:?} {next:?}")
                } else {
                    "next".to_string()
                }
            }
        };
        log.push(format!("{title} seed {seed} step {step}: {what}"));
        if step % 50 == 49 {
            log.push(format!("{title} seed {seed} step {step}: all {}", whole(map, spec)));
        }
    }
}

#[test]
fn tries_in_depth() {
    same_on_both("tries_in_depth", |world| {
        let mut log = Vec::new();
        for (key_size, entries) in [(5, 200), (6, 40), (8, 64), (12, 300), (20, 300), (260, 50)] {
            for seed in 0..4 {
                let spec = MapSpec { key_size, max_entries: entries, ..valid(MapType::LpmTrie) };
                let map = world.create(&spec).unwrap();
                random_run(world, &spec, &*map, seed, &mut log);
            }
        }
        log
    });
}

#[test]
fn permissions_and_freeze() {
    same_on_both("permissions_and_freeze", |world| {
        let mut log = Vec::new();
        for spec in variants() {
            let access = [0, map_flags::RDONLY, map_flags::WRONLY, map_flags::RDONLY_PROG, map_flags::WRONLY_PROG];
            for flag in access {
                let spec = MapSpec { flags: spec.flags | flag, ..spec.clone() };
                let title = title(&spec);
                let Ok(map) = world.create(&spec) else { continue };
                for round in 0..3 {
                    let key = vec![0; spec.key_size as usize];
                    let value = some_value(world, &spec, &*map, &mut Rng::new(7));
                    let mut out = vec![0xa5; map.user_value_size()];
                    let mut next = vec![0; key.len()];
                    log.push(format!("{title} {round}: update {:?}", map.update(&key, &value, 0)));
                    log.push(format!("{title} {round}: update flags {:?}", map.update(&key, &value, 77)));
                    log.push(format!("{title} {round}: lookup {:?}", map.lookup(&key, &mut out, 0)));
                    log.push(format!("{title} {round}: lookup flags {:?}", map.lookup(&key, &mut out, 77)));
                    log.push(format!("{title} {round}: next {:?}", map.next_key(None, &mut next)));
                    log.push(format!("{title} {round}: take {:?}", map.lookup_and_delete(&key, &mut out, 0)));
                    log.push(format!("{title} {round}: delete {:?}", map.delete(&key)));
                    for delete in [false, true] {
                        let seen = map.lookup_batch(None, 2, 0, 0, delete);
                        log.push(format!("{title} {round}: batch {delete} {} {:?}", seen.count, seen.result));
                    }
                    let values = [value.clone(), value.clone()].concat();
                    let keys = [key.clone(), key.clone()].concat();
                    log.push(format!("{title} {round}: update batch {:?}", map.update_batch(&keys, &values, 2, 0, 0)));
                    log.push(format!("{title} {round}: delete batch {:?}", map.delete_batch(&keys, 2, 0, 0)));
                    log.push(format!("{title} {round}: freeze {:?}", map.freeze()));
                }
            }
        }
        log
    });
}

/// In Linux `BPF_F_RDONLY` and `BPF_F_WRONLY` are rights of the creator's descriptor. Here they are the map's, whoever asks (docs/maps.md).
#[test]
fn rights_of_the_creator_are_here_everybodys() {
    let kinds = [(map_flags::RDONLY, true, false), (map_flags::WRONLY, false, true)];
    let of = |may: bool| if may { Ok(()) } else { Err(Errno::EPERM) };
    for (flag, reads, writes) in kinds {
        let spec = valid(MapType::Array).with_flags(flag);
        let ours = Map::create_named("rights", &spec, &Ours::new().env).unwrap();
        let (key, mut value) = ([0; 4], vec![0; ours.user_value_size()]);
        for _ in 0..2 {
            assert_eq!(ours.lookup(&key, &mut value, 0), of(reads));
            assert_eq!(ours.update(&key, &value, 0), of(writes));
        }
        assert_eq!(ours.spec().flags, flag);
        if !kernel_maps("rights_of_the_creator_are_here_everybodys") {
            continue;
        }
        let creator = KernelMap::create("rights", &spec).unwrap();
        assert_eq!(creator.lookup(&key, &mut value, 0), of(reads));
        assert_eq!(creator.update(&key, &value, 0), of(writes));
        let info = creator.info().unwrap();
        assert_eq!(info.flags & (map_flags::RDONLY | map_flags::WRONLY), 0, "the map has none of it");
        let other = KernelMap::by_id(info.id).unwrap();
        assert_eq!((other.lookup(&key, &mut value, 0), other.update(&key, &value, 0)), (Ok(()), Ok(())));
    }
}

#[test]
fn lru_maps_take_more_than_they_hold() {
    on_both("lru_maps_take_more_than_they_hold", |world| {
        for map_type in [MapType::LruHash, MapType::LruPercpuHash] {
            for flags in [0, map_flags::NO_COMMON_LRU, map_flags::ZERO_SEED] {
                for entries in [1u32, 2, 10, 100, 1000] {
                    let spec = MapSpec { max_entries: entries, ..valid(map_type).with_flags(flags) };
                    let map = world.create(&spec).unwrap();
                    let (kept, _) = map.kept();
                    for n in 0..5 * entries {
                        let value: Vec<u8> =
                            n.to_ne_bytes().iter().cycle().copied().take(map.user_value_size()).collect();
                        map.update(&n.to_ne_bytes(), &value, 0).unwrap();
                        // What was just put in is there.
                        assert_eq!(map.get(&n.to_ne_bytes()), Ok(value), "{map_type:?} {flags:#x} {entries} {n}");
                    }
                    let keys = map.keys().unwrap();
                    assert!(!keys.is_empty() && keys.len() <= kept as usize, "{} of {kept}", keys.len());
                    // The newest tenth is there, whatever else was evicted: eviction goes for the old. Which keys share a bucket hangs on
                    // the seed: with one of a few hundred some of the newest push each other out.
                    let newest = (5 * entries - (entries / 10).max(1))..5 * entries;
                    let gone = newest.clone().filter(|n| !keys.contains(&n.to_ne_bytes().to_vec())).count();
                    let most = if flags == map_flags::ZERO_SEED { 0 } else { newest.len() / 10 };
                    if flags != map_flags::NO_COMMON_LRU {
                        assert!(gone <= most, "{map_type:?} {flags:#x} {entries}: {gone} of {}", newest.len());
                    }
                }
            }
        }
    });
}

#[test]
fn a_full_hash_takes_no_new_key_but_replaces() {
    on_both("a_full_hash_takes_no_new_key_but_replaces", |world| {
        for map_type in [MapType::Hash, MapType::PercpuHash] {
            for flags in [0, map_flags::NO_PREALLOC] {
                for entries in [1u32, 7, 500] {
                    let map =
                        world.create(&MapSpec { max_entries: entries, ..valid(map_type).with_flags(flags) }).unwrap();
                    let value = vec![1; map.user_value_size()];
                    for n in 0..entries {
                        map.update(&n.to_ne_bytes(), &value, map_flags::NOEXIST).unwrap();
                    }
                    assert_eq!(map.update(&entries.to_ne_bytes(), &value, 0), Err(xway_abi::Errno::E2BIG));
                    let newer = vec![2; map.user_value_size()];
                    for n in 0..entries {
                        map.update(&n.to_ne_bytes(), &newer, map_flags::EXIST).unwrap();
                        map.update(&n.to_ne_bytes(), &newer, 0).unwrap();
                    }
                    map.delete(&0u32.to_ne_bytes()).unwrap();
                    map.update(&entries.to_ne_bytes(), &value, 0).unwrap();
                    assert_eq!(map.keys().unwrap().len(), entries as usize);
                }
            }
        }
    });
}

#[test]
fn bloom_filters_forget_nothing() {
    on_both("bloom_filters_forget_nothing", |world| {
        for (value_size, map_extra, entries) in
            [(4, 0, 1000u32), (8, 3, 1000), (13, 15, 300), (1, 1, 50), (64, 7, 1000)]
        {
            let spec = MapSpec { value_size, map_extra, max_entries: entries, ..valid(MapType::BloomFilter) };
            let map = world.create(&spec).unwrap();
            let mut rng = Rng::new(u64::from(value_size));
            let values: Vec<Vec<u8>> = (0..entries).map(|_| rng.bytes(value_size as usize)).collect();
            for value in &values {
                map.update(&[], value, 0).unwrap();
            }
            for value in &values {
                assert_eq!(map.lookup(&[], &mut value.clone(), 0), Ok(()));
            }
            if value_size >= 4 {
                let wrong =
                    (0..2000).filter(|_| map.lookup(&[], &mut rng.bytes(value_size as usize), 0).is_ok()).count();
                assert!(wrong < 2000 / 4, "{wrong} of 2000 strangers were taken for members");
            }
        }
    });
}
