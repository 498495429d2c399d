//! Many small maps, and many threads on few elements: what maps or threads share is nobody's loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_maps::{Env, Guard, Map};

const ROUNDS: u32 = if cfg!(miri) { 20 } else { 4_000 };

/// Numbers without a pattern, from a seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

fn map(map_type: MapType, flags: u32, sizes: (u32, u32), entries: u32, cpus: u32) -> Arc<Map> {
    let spec = MapSpec::new(map_type, sizes.0, sizes.1, entries).with_flags(flags);
    Map::create(&spec, &Env::with_cpus(cpus)).unwrap()
}

/// A key of the length and its value, which says in both words whose it is.
fn key_of(n: u32, len: usize) -> Vec<u8> {
    let mut key = vec![0; len];
    key[..4].copy_from_slice(&n.to_ne_bytes());
    key
}

fn value_of(n: u32) -> [u8; 16] {
    (u128::from(n) << 64 | u128::from(n)).to_ne_bytes()
}

/// Threads put in, replace and take out a few keys of a table of very few elements. None of these is lost and none is there twice.
#[test]
fn few_elements_serve_many_threads() {
    use MapType::*;
    let kinds = [
        (Hash, 0),
        (Hash, map_flags::NO_PREALLOC),
        (LruHash, 0),
        (LruHash, map_flags::NO_COMMON_LRU),
        (PercpuHash, 0),
        (LruPercpuHash, 0),
    ];
    let all = if cfg!(miri) { vec![1, 3] } else { vec![1, 2, 3, 7, 8, 9, 17] };
    for (map_type, flags) in kinds {
        for entries in all.iter().copied() {
            for (cpus, len) in [(1, 4), (3, 5), (16, 8), (5, 16)] {
                hammer(&map(map_type, flags, (len, 16), entries, cpus), cpus);
            }
        }
    }
}

fn hammer(map: &Map, cpus: u32) {
    let (max, len) = (map.spec().max_entries, map.key_size());
    let evicts = matches!(map.map_type(), MapType::LruHash | MapType::LruPercpuHash);
    let percpu = matches!(map.map_type(), MapType::PercpuHash | MapType::LruPercpuHash);
    let (done, named) = (AtomicBool::new(false), (map.map_type(), max, cpus, len));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..6)
            .map(|thread| {
                let map = &map;
                scope.spawn(move || {
                    let mut rng = Rng(u64::from(thread) + 1);
                    for _ in 0..ROUNDS / 4 {
                        let n = rng.below(max + 3);
                        let key = key_of(n, len);
                        match rng.below(6) {
                            0 => {
                                let _ = map.prog_delete(thread % cpus, &key);
                            }
                            1 if !percpu => {
                                let done = map.update(&key, &value_of(n), map_flags::ANY);
                                assert!(matches!(done, Ok(()) | Err(Errno::E2BIG | Errno::ENOMEM)), "{done:?}");
                            }
                            2 => {
                                let done = map.prog_update(thread % cpus, &key, &value_of(n), map_flags::NOEXIST);
                                let allowed = [Errno::E2BIG, Errno::EEXIST, Errno::ENOMEM];
                                assert!(done.is_ok() || done.is_err_and(|errno| allowed.contains(&errno)), "{done:?}");
                            }
                            _ => {
                                let done = map.prog_update(thread % cpus, &key, &value_of(n), map_flags::ANY);
                                assert!(matches!(done, Ok(()) | Err(Errno::E2BIG | Errno::ENOMEM)), "{done:?}");
                            }
                        }
                    }
                })
            })
            .collect();
        let done = &done;
        scope.spawn(move || {
            let (mut n, mut out) = (0, vec![0; map.user_value_size()]);
            while !done.load(Ordering::Relaxed) {
                n = (n + 1) % (max + 3);
                if map.lookup(&key_of(n, len), &mut out, 0).is_ok() {
                    // Of a CPU's value each word is old or new: what it begins as, or what everybody puts in.
                    let right = |word: &[u8]| *word == value_of(n)[..8] || (percpu && *word == [0; 8]);
                    assert!(out.chunks(8).all(right), "{named:?}: {out:?} of {n}");
                }
                std::thread::yield_now();
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    // All elements are there.
    (0..max + 3).for_each(|n| {
        let _ = map.delete(&key_of(n, len));
    });
    assert_eq!(map.next_key(None, &mut vec![0; len]), Err(Errno::ENOENT), "{named:?}");
    for cpu in [0, cpus - 1] {
        let separate = map.spec().flags & map_flags::NO_COMMON_LRU != 0 && cpus > 1;
        let own = if separate { max / cpus } else { max };
        for n in 0..own {
            assert_eq!(map.prog_update(cpu, &key_of(n, len), &value_of(n), map_flags::NOEXIST), Ok(()), "{named:?}");
        }
        let guard = Guard::pin();
        let addresses: std::collections::HashSet<usize> =
            (0..own).map(|n| map.value(cpu, &key_of(n, len), &guard).expect("it was put in").addr()).collect();
        assert_eq!(addresses.len(), own as usize, "{named:?}");
        let more = map.prog_update(cpu, &key_of(own, len), &value_of(own), map_flags::ANY);
        assert_eq!(more, if evicts { Ok(()) } else { Err(Errno::E2BIG) }, "{named:?}");
        let left = (0..=own).filter(|n| map.prog_delete(cpu, &key_of(*n, len)).is_ok()).count();
        assert_eq!(left, own as usize, "{named:?}");
    }
}

/// What a program puts in by the short way stands where the general way puts it: the same keys are evicted, the same are left.
#[test]
fn the_short_way_evicts_what_the_general_way_does() {
    let steps = if cfg!(miri) { 200 } else { 30_000 };
    for flags in [0, map_flags::NO_COMMON_LRU] {
        for entries in [2, 5, 8, 16, 60, 300, 2500] {
            let flags = flags | map_flags::ZERO_SEED;
            let [short, general] = [(); 2].map(|()| map(MapType::LruHash, flags, (8, 16), entries, 1));
            let mut rng = Rng(u64::from(entries));
            for step in 0..steps {
                let n = rng.below(entries * 3 / 2 + 2);
                let key = key_of(n, 8);
                match rng.below(8) {
                    0 => assert_eq!(short.prog_delete(0, &key), general.delete(&key), "{entries}: step {step}"),
                    1..4 => {
                        let guard = Guard::pin();
                        let [one, other] = [&short, &general].map(|map| map.value(0, &key, &guard).map(|v| v.to_vec()));
                        assert_eq!(one, other, "{entries}: step {step}");
                    }
                    _ => {
                        let (flags, value) = ([0, 0, 0, 1, 2][rng.below(5) as usize], value_of(rng.below(1 << 30)));
                        let [one, other] =
                            [short.prog_update(0, &key, &value, flags), general.update(&key, &value, flags)];
                        assert_eq!(one, other, "{entries}: step {step}");
                    }
                }
                if step % 500 == 0 {
                    same_contents(&short, &general);
                }
            }
            same_contents(&short, &general);
        }
    }
}

fn same_contents(one: &Map, other: &Map) {
    let mut from: Option<[u8; 8]> = None;
    loop {
        let (mut next, mut values) = ([[0; 8]; 2], [[0; 16]; 2]);
        let found = [one, other].map(|map| {
            let at = usize::from(std::ptr::eq(map, other));
            map.next_key(from.as_ref().map(|key| &key[..]), &mut next[at])
        });
        assert_eq!((found[0], next[0]), (found[1], next[1]));
        if found[0].is_err() {
            return;
        }
        one.lookup(&next[0], &mut values[0], 0).unwrap();
        other.lookup(&next[0], &mut values[1], 0).unwrap();
        assert_eq!(values[0], values[1]);
        from = Some(next[0]);
    }
}

/// A trie's value: whose trie, whose prefix, and in each word the same.
fn mark(trie: u32, n: u32) -> u64 {
    u64::from(trie) << 32 | u64::from(n)
}

/// Tries come, change and go, and share memory. Who has a guard finds only what stands in the trie asked, and what it found stays as it was,
/// though the trie goes meanwhile.
#[test]
fn tries_that_come_and_go_never_show_each_others_prefixes() {
    const SLOTS: usize = 6;
    let (rounds, prefixes) = if cfg!(miri) { (6, 12) } else { (ROUNDS / 8, 60) };
    let made = AtomicU32::new(0);
    // Addresses and values of several lengths: nodes of all share one region, values of like distance another.
    let new = |number: u32| {
        let (address, words) = [(4, 1), (4, 3), (16, 1), (12, 2), (4, 1), (6, 1)][number as usize % 6];
        let flags = map_flags::NO_PREALLOC;
        (number, map(MapType::LpmTrie, flags, (4 + address, 8 * words), prefixes, 2))
    };
    type Slot = parking_lot::Mutex<Arc<(u32, Arc<Map>)>>;
    let slots: Vec<Slot> = (0..SLOTS).map(|_| Slot::new(Arc::new(new(made.fetch_add(1, Ordering::Relaxed))))).collect();
    let key = |map: &Map, n: u32| {
        let mut key = vec![0; map.key_size()];
        let bits = 8 * (map.key_size() as u32 - 4);
        // A few lengths, so that prefixes lie below one another; the first bits say which it is.
        key[..4].copy_from_slice(&(32 - [0, 2, 7][n as usize % 3]).min(bits).to_ne_bytes());
        key[4..8].copy_from_slice(&(n.wrapping_mul(0x9e37_79b9) & !0x7f).to_be_bytes());
        key
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u64)
            .map(|thread| {
                let (slots, made, key, new) = (&slots, &made, &key, &new);
                scope.spawn(move || {
                    let mut rng = Rng(thread + 7);
                    for round in 0..rounds {
                        let slot = &slots[rng.below(SLOTS as u32) as usize];
                        if rng.below(8) == 0 {
                            let next = Arc::new(new(made.fetch_add(1, Ordering::Relaxed)));
                            let gone = std::mem::replace(&mut *slot.lock(), next);
                            drop(gone);
                        }
                        let now = slot.lock().clone();
                        let (number, map) = &*now;
                        let _guard = (round % 2 == 0).then(Guard::pin);
                        for _ in 0..16 {
                            let n = rng.below(prefixes + 5);
                            let value: Vec<u8> =
                                (0..map.value_size() / 8).flat_map(|_| mark(*number, n).to_ne_bytes()).collect();
                            let changed = match rng.below(3) {
                                0 => map.prog_delete(0, &key(map, n)),
                                _ => map.prog_update(0, &key(map, n), &value, 0),
                            };
                            assert!(matches!(changed, Ok(()) | Err(Errno::ENOENT | Errno::ENOSPC)), "{changed:?}");
                        }
                    }
                })
            })
            .collect();
        for thread in 0..2u64 {
            let (slots, done, key) = (&slots, &done, &key);
            scope.spawn(move || {
                let mut rng = Rng(thread + 77);
                while !done.load(Ordering::Relaxed) {
                    let guard = Guard::pin();
                    let mut held = Vec::new();
                    for slot in slots {
                        let now = slot.lock().clone();
                        let (number, map) = &*now;
                        for _ in 0..8 {
                            let n = rng.below(prefixes + 5);
                            let mut asked = key(map, n);
                            let bits = 8 * (asked.len() as u32 - 4);
                            asked[..4].copy_from_slice(&bits.to_ne_bytes());
                            if let Some(value) = map.value(1, &asked, &guard) {
                                held.push((mark(*number, n), value, value.to_vec()));
                            }
                        }
                        // The trie may go here, and what it gave out stays.
                        drop(now);
                    }
                    std::thread::yield_now();
                    for (mark, value, was) in held {
                        assert_eq!(value.to_vec(), was, "it changed under the guard");
                        let whose: Vec<u64> =
                            was.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
                        assert!(whose.iter().all(|word| *word == mark), "{whose:x?} for {mark:x}");
                    }
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
}
