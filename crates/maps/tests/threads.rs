//! Many threads on one map: nothing is lost, torn or taken for something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_maps::{Env, Guard, Map, Rmw};

const ROUNDS: u32 = if cfg!(miri) { 40 } else { 30_000 };

fn map(map_type: MapType, flags: u32, key: u32, value: u32, entries: u32) -> Arc<Map> {
    let spec = MapSpec::new(map_type, key, value, entries).with_flags(flags);
    Map::create(&spec, &Env::with_cpus(4)).unwrap()
}

/// A value that says which key it belongs to, in every word.
fn value_of(key: u32, round: u32) -> [u8; 32] {
    let mut value = [0; 32];
    for word in value.chunks_mut(8) {
        word.copy_from_slice(&(u64::from(key) << 32 | u64::from(round)).to_ne_bytes());
    }
    value
}

/// Key and round, if every word says the same.
fn parse(value: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| u64::from_ne_bytes(value[at * 8..][..8].try_into().unwrap());
    (1..4).all(|at| word(at) == word(0)).then(|| ((word(0) >> 32) as u32, word(0) as u32))
}

/// Writers replace, delete and insert few keys all the time; what readers of the system call side see is always whole and
/// belongs to the key they asked for.
fn copies_are_whole(map: &Map) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u32)
            .map(|writer| {
                let map = &map;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let key = (round * 7 + writer * 3) % 6;
                        match map.update(&key.to_ne_bytes(), &value_of(key, round), 0) {
                            Ok(()) | Err(Errno::E2BIG | Errno::ENOMEM) => {}
                            Err(errno) => panic!("{errno}"),
                        }
                        if round % 3 == writer {
                            let _ = map.delete(&(round % 6).to_ne_bytes());
                        }
                    }
                })
            })
            .collect();
        let done = &done;
        for reader in 0..2u32 {
            let map = &map;
            scope.spawn(move || {
                let mut at = reader;
                let mut seen = 0u64;
                while !done.load(Ordering::Relaxed) || seen == 0 {
                    at = (at + 1) % 6;
                    let mut out = [0; 32];
                    if map.lookup(&at.to_ne_bytes(), &mut out, 0).is_ok() {
                        let (key, _) = parse(&out).unwrap_or_else(|| panic!("a torn value: {out:?}"));
                        assert_eq!(key, at);
                    }
                    seen += 1;
                    if cfg!(miri) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn hash_copies_are_whole() {
    copies_are_whole(&map(MapType::Hash, 0, 4, 32, 8));
    copies_are_whole(&map(MapType::Hash, map_flags::NO_PREALLOC, 4, 32, 8));
    copies_are_whole(&map(MapType::Hash, 0, 4, 32, 4));
}

#[test]
fn lru_copies_are_whole() {
    copies_are_whole(&map(MapType::LruHash, 0, 4, 32, 8));
    // Smaller than the set of keys: eviction all the time.
    copies_are_whole(&map(MapType::LruHash, 0, 4, 32, 4));
    copies_are_whole(&map(MapType::LruHash, map_flags::NO_COMMON_LRU, 4, 32, 4));
}

#[test]
fn readers_always_find_a_key_that_is_only_replaced() {
    for (map_type, flags, entries) in
        [(MapType::Hash, 0, 4), (MapType::Hash, map_flags::NO_PREALLOC, 4), (MapType::LruHash, 0, 64)]
    {
        let map = map(map_type, flags, 4, 32, entries);
        map.update(&[1, 0, 0, 0], &value_of(1, 0), 0).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut looks = 0;
                while !done.load(Ordering::Relaxed) || looks == 0 {
                    let guard = Guard::pin();
                    assert!(map.value(0, &[1, 0, 0, 0], &guard).is_some());
                    looks += 1;
                    if cfg!(miri) {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 0..ROUNDS {
                map.update(&[1, 0, 0, 0], &value_of(1, round), map_flags::EXIST).unwrap();
                // Neighbours come and go in the same buckets.
                let other = 2 + round % 3;
                if round % 2 == 0 {
                    let _ = map.update(&other.to_ne_bytes(), &value_of(other, round), 0);
                } else {
                    let _ = map.delete(&other.to_ne_bytes());
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn each_key_is_inserted_and_taken_once() {
    let map = map(MapType::Hash, 0, 4, 32, 16);
    let (inserted, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let (map, inserted, taken) = (&map, &inserted, &taken);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let key = ((round + thread) % 5).to_ne_bytes();
                    if map.update(&key, &value_of(0, round), map_flags::NOEXIST).is_ok() {
                        inserted.fetch_add(1, Ordering::Relaxed);
                    }
                    let mut out = [0; 32];
                    if map.lookup_and_delete(&key, &mut out, 0).is_ok() {
                        assert!(parse(&out).is_some());
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let left = map.keys().unwrap().len() as u64;
    assert_eq!(inserted.into_inner(), taken.into_inner() + left);
}

#[test]
fn atomic_adds_in_place_lose_nothing() {
    for map_type in [MapType::Array, MapType::Hash] {
        let map = map(map_type, 0, 4, 8, 4);
        map.update(&[0; 4], &[0; 8], 0).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let guard = Guard::pin();
                        map.value(0, &[0; 4], &guard).unwrap().rmw(0, 8, Rmw::Add, 1).unwrap();
                    }
                });
            }
        });
        let mut out = [0; 8];
        map.lookup(&[0; 4], &mut out, 0).unwrap();
        assert_eq!(u64::from_ne_bytes(out), 3 * u64::from(ROUNDS));
    }
}

#[test]
fn tries_change_under_their_readers() {
    let map = map(MapType::LpmTrie, map_flags::NO_PREALLOC, 8, 32, 64);
    let prefix = |len: u32, address: u32| [len.to_ne_bytes(), address.to_be_bytes()].concat();
    map.update(&prefix(0, 0), &value_of(0, 0), 0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut n = 0u32;
                while !done.load(Ordering::Relaxed) || n == 0 {
                    n = n.wrapping_add(0x0101_0101);
                    let mut out = [0; 32];
                    // The empty prefix is always there, so every address finds something, and finds it whole.
                    map.lookup(&prefix(32, n & 0x0f0f_0f0f), &mut out, 0).unwrap();
                    let (len, _) = parse(&out).expect("a whole value");
                    assert!(len <= 32);
                    if cfg!(miri) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            let len = round % 33;
            let address = round.wrapping_mul(0x0030_1002) & 0x0f0f_0f0f;
            let _ = map.update(&prefix(len, address), &value_of(len, round), 0);
            let gone = round.wrapping_mul(0x0010_3001) & 0x0f0f_0f0f;
            if round % 33 != 0 {
                let _ = map.delete(&prefix(round % 32 + 1, gone));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn rings_keep_the_order_of_each_producer() {
    let map = map(MapType::Ringbuf, 0, 0, 0, 4096);
    let ring = map.ringbuf().unwrap();
    let rounds = ROUNDS as u64 / 2;
    std::thread::scope(|scope| {
        for producer in 0..3u64 {
            scope.spawn(move || {
                for n in 0..rounds {
                    let record = [producer.to_ne_bytes(), n.to_ne_bytes()].concat();
                    while ring.output(&record, 0).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0u64; 3];
        while next.iter().sum::<u64>() < 3 * rounds {
            let count = ring.consume(64, &mut |bytes| {
                let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
                assert_eq!(word(8), next[word(0) as usize]);
                next[word(0) as usize] += 1;
            });
            if count == Ok(0) {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn values_under_a_spin_lock_are_whole() {
    use xway_abi::{SpecialField, SpecialKind};
    let special = vec![SpecialField { kind: SpecialKind::SpinLock, offset: 0 }];
    for map_type in [MapType::Array, MapType::Hash] {
        let spec = MapSpec { special: special.clone(), ..MapSpec::new(map_type, 4, 40, 1) };
        let map = Map::create(&spec, &Env::with_cpus(4)).unwrap();
        let padded = |round| [&[0; 8][..], &value_of(1, round)].concat();
        map.update(&[0; 4], &padded(0), 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let map = &map;
                scope.spawn(move || {
                    for round in 0..ROUNDS / 4 {
                        map.update(&[0; 4], &padded(round * 2 + thread), map_flags::LOCK | map_flags::EXIST).unwrap();
                    }
                });
            }
            for _ in 0..ROUNDS / 4 {
                let mut out = [0; 40];
                map.lookup(&[0; 4], &mut out, map_flags::LOCK).unwrap();
                assert!(parse(&out[8..]).is_some(), "{out:?}");
            }
        });
    }
}
