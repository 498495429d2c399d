//! The program side: pointers, per-CPU values, rings, perf buffers, objects.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use xway_abi::{Errno, MapSpec, MapType, SpecialField, SpecialKind, map_flags};
use xway_maps::{
    Env, Guard, Handles, Map, PERF_CURRENT_CPU, PerfRecord, ProgramObject, ProgramUse, Target, ringbuf_flags,
    ringbuf_query,
};

fn env() -> Env {
    Env::with_cpus(4)
}

fn map(map_type: MapType, key: u32, value: u32, entries: u32) -> Arc<Map> {
    Map::create(&MapSpec::new(map_type, key, value, entries), &env()).unwrap()
}

fn key(n: u32) -> [u8; 4] {
    n.to_ne_bytes()
}

#[test]
fn values_keep_their_address() {
    for map_type in [MapType::Hash, MapType::LruHash, MapType::Array] {
        let map = map(map_type, 4, 16, 500);
        let guard = Guard::pin();
        map.prog_update(0, &key(1), &[1; 16], 0).unwrap();
        let value = map.value(0, &key(1), &guard).unwrap();
        assert_eq!(value.addr() % 8, 0);
        for n in 2..400 {
            map.prog_update(0, &key(n), &[2; 16], 0).unwrap();
        }
        assert_eq!(map.value(0, &key(1), &guard).unwrap().addr(), value.addr(), "{map_type:?}");
        value.store(8, 8, 77).unwrap();
        let mut out = [0; 16];
        map.lookup(&key(1), &mut out, 0).unwrap();
        assert_eq!(out[8..], 77u64.to_ne_bytes());
    }
}

/// Every length of key that has a way of its own, and others. Who holds a pointer to what is replaced goes on in the old memory; of per-CPU
/// types the value is written where it lies.
#[test]
fn what_is_put_in_again_is_what_is_found() {
    use MapType::{Hash, LruHash, LruPercpuHash, PercpuHash};
    let kinds = [(Hash, 0), (LruHash, 0), (LruHash, map_flags::NO_COMMON_LRU), (PercpuHash, 0), (LruPercpuHash, 0)];
    let mut random = 1u32;
    for (n, (map_type, flags)) in kinds.into_iter().enumerate() {
        let percpu = matches!(map_type, PercpuHash | LruPercpuHash);
        for (key_size, value_size) in
            [3, 4, 8, 12, 16, 20, 36, 40, 44].into_iter().flat_map(|k| [1, 7, 8, 12, 72].map(|v| (k, v)))
        {
            let spec = MapSpec::new(map_type, key_size, value_size, 64).with_flags(flags);
            let (map, guard) = (Map::create(&spec, &env()).unwrap(), Guard::pin());
            let key = |n: u8| vec![n; key_size as usize];
            let mut model = BTreeMap::new();
            for step in 0..if cfg!(miri) { 40 } else { 400u32 } {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (name, flags) = ((random >> 24) as u8 % 12, u64::from(random >> 16 & 3));
                let value = vec![step as u8; value_size as usize];
                let before = map.value(1, &key(name), &guard);
                assert_eq!(before.map(|v| v.to_vec()), model.get(&name).cloned(), "{n} {key_size} {value_size}");
                let expected = match (flags, before) {
                    (3, _) => Err(Errno::EINVAL),
                    (map_flags::NOEXIST, Some(_)) => Err(Errno::EEXIST),
                    (map_flags::EXIST, None) => Err(Errno::ENOENT),
                    _ => Ok(()),
                };
                assert_eq!(map.prog_update(1, &key(name), &value, flags), expected);
                if expected.is_ok() {
                    let after = map.value(1, &key(name), &guard).unwrap();
                    assert_eq!(after.to_vec(), value);
                    let old = model.insert(name, value);
                    if let Some(before) = before {
                        assert_eq!(before.addr() == after.addr(), percpu);
                        assert!(percpu || Some(before.to_vec()) == old);
                    }
                } else {
                    assert_eq!(map.prog_update(1, &key(name), &value, map_flags::LOCK), Err(Errno::EINVAL));
                }
                if step % 7 == 0 {
                    let gone = model.remove(&name).map(|_| ()).ok_or(Errno::ENOENT);
                    assert_eq!(map.prog_delete(1, &key(name)), gone);
                }
            }
            let mut others = model.keys().filter_map(|name| map.value(0, &key(*name), &guard));
            assert!(!percpu || others.all(|value| value.to_vec().iter().all(|byte| *byte == 0)), "another CPU's");
        }
    }
}

/// In a table with room for one element Linux has taken it out by the time it finds that there is nothing to overwrite.
#[test]
fn an_update_that_fails_takes_the_only_element_out() {
    let (map, guard) = (map(MapType::LruHash, 4, 8, 1), Guard::pin());
    map.prog_update(0, &[1; 4], &[1; 8], map_flags::ANY).unwrap();
    assert_eq!(map.prog_update(0, &[2; 4], &[2; 8], map_flags::EXIST), Err(Errno::ENOENT));
    assert!(map.value(0, &[1; 4], &guard).is_none() && map.value(0, &[2; 4], &guard).is_none());
    map.prog_update(0, &[2; 4], &[2; 8], map_flags::NOEXIST).unwrap();
    assert!(map.value(0, &[2; 4], &guard).is_some());
}

/// As many insertions as there is no room for, updates and deletions, where the share of each CPU is that of the only one.
#[test]
fn the_share_of_an_only_cpu_is_all_there_is() {
    for map_type in [MapType::LruHash, MapType::LruPercpuHash] {
        let spec = MapSpec::new(map_type, 4, 8, 16).with_flags(map_flags::NO_COMMON_LRU);
        let (map, guard) = (Map::create(&spec, &Env::with_cpus(1)).unwrap(), Guard::pin());
        for n in 0..100 {
            map.prog_update(0, &key(n), &[n as u8; 8], map_flags::NOEXIST).unwrap();
            map.prog_update(0, &key(n), &[n as u8 + 1; 8], map_flags::EXIST).unwrap();
            assert_eq!(map.value(0, &key(n), &guard).unwrap().to_vec(), [n as u8 + 1; 8]);
            if n % 3 == 0 {
                map.prog_delete(0, &key(n)).unwrap();
            }
        }
    }
}

#[test]
fn each_cpu_has_its_own_value() {
    for map_type in [MapType::PercpuHash, MapType::LruPercpuHash, MapType::PercpuArray] {
        let map = map(map_type, 4, 12, 8);
        let guard = Guard::pin();
        if map_type != MapType::PercpuArray {
            assert!(map.value(2, &key(3), &guard).is_none());
            map.prog_update(2, &key(3), &[9; 12], map_flags::NOEXIST).unwrap();
        }
        map.prog_update(2, &key(3), &[7; 12], map_flags::EXIST).unwrap();
        map.value(1, &key(3), &guard).unwrap().store(4, 4, 5).unwrap();
        let mut out = [0xff; 64];
        map.lookup(&key(3), &mut out, 0).unwrap();
        let mut expected = [0; 64];
        expected[20] = 5;
        expected[32..44].fill(7);
        assert_eq!(out, expected, "{map_type:?}");
        // What one CPU writes shares no cache line with what another one writes, however short values are.
        let place = |cpu| map.value(cpu, &key(3), &guard).unwrap().addr();
        for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
            assert!(place(a).abs_diff(place(b)) >= 64, "{map_type:?}: CPUs {a} and {b}");
        }
        assert!(map.value(4, &key(3), &guard).is_none());
        let mut calls = 0;
        let visit = &mut |_: &[u8], value: xway_maps::ValueRef<'_>| {
            calls += 1;
            value.load(4, 4).unwrap() != 5
        };
        map.for_each(1, &guard, visit).unwrap();
        assert!(calls >= 1);
    }
}

/// Callbacks may write to the map that is walked. What they take out is not visited any more, what they give another value has it then,
/// and no key comes with the value of another one.
#[test]
fn a_walk_sees_what_its_callback_changes() {
    use MapType::{Hash, LruHash, LruPercpuHash, PercpuHash};
    for map_type in [Hash, PercpuHash, LruHash, LruPercpuHash] {
        let fresh = || {
            let map = map(map_type, 4, 8, 64);
            (0..24).for_each(|n| map.prog_update(0, &key(n), &u64::from(n).to_ne_bytes(), 0).unwrap());
            map
        };
        let guard = Guard::pin();

        let map = fresh();
        let mut left = Vec::new();
        let visits = map.for_each(0, &guard, &mut |at, _| {
            left.push(at.to_vec());
            for n in (0..24).filter(|n| key(*n) != at) {
                let _ = map.prog_delete(0, &key(n));
            }
            true
        });
        assert_eq!((visits, map.keys().unwrap()), (Ok(1), left), "{map_type:?}");

        let (map, mut first) = (fresh(), true);
        let visits = map.for_each(0, &guard, &mut |at, value| {
            let found = value.load(0, 8).unwrap();
            assert_eq!(found >> 32, u64::from(!std::mem::take(&mut first)), "{map_type:?}: a value from before");
            assert_eq!(found as u32, u32::from_ne_bytes(at.try_into().unwrap()), "{map_type:?}");
            for n in 0..24 {
                let value = (1 << 32 | u64::from(n)).to_ne_bytes();
                map.prog_update(0, &key(n), &value, map_flags::EXIST).unwrap();
            }
            true
        });
        assert_eq!(visits, Ok(24), "{map_type:?}");

        // Elements that are taken out are given to other keys at once.
        let (map, mut next) = (fresh(), 100);
        map.for_each(0, &guard, &mut |at, value| {
            let at = u32::from_ne_bytes(at.try_into().unwrap());
            assert_eq!(value.load(0, 8), Ok(at.into()), "{map_type:?}");
            for n in (0..24).filter(|n| *n != at) {
                if map.prog_delete(0, &key(n)).is_ok() {
                    map.prog_update(0, &key(next), &u64::from(next).to_ne_bytes(), map_flags::NOEXIST).unwrap();
                    next += 1;
                }
            }
            next < 1000
        })
        .unwrap();
    }
}

#[test]
fn values_lead_back_to_their_keys() {
    for (map_type, key_size) in [(MapType::Hash, 4), (MapType::LruHash, 11), (MapType::Hash, 70), (MapType::Array, 4)] {
        let map = map(map_type, key_size, 20, 50);
        let key = |n: u32| [key(n).to_vec(), vec![n as u8; key_size as usize - 4]].concat();
        let guard = Guard::pin();
        (0..50).for_each(|n| map.prog_update(0, &key(n), &[0; 20], 0).unwrap());
        let addr = |n| map.value(0, &key(n), &guard).unwrap().addr();
        for n in 0..50 {
            assert_eq!([0, 16].map(|off| map.key_at(addr(n) + off)), [Some(key(n)), Some(key(n))], "{map_type:?}");
        }
        let (first, nineteenth) = ((0..50).map(addr).min().unwrap(), addr(19));
        assert_eq!([0, first - 4096, usize::MAX].map(|addr| map.key_at(addr)), [None, None, None], "{map_type:?}");
        if map.prog_delete(0, &key(19)).is_ok() {
            assert_eq!(map.key_at(nineteenth), None, "it is nobody's any more");
        }
    }
}

#[test]
fn a_dropped_map_stays_readable_under_the_guard() {
    for map_type in [MapType::Array, MapType::Hash, MapType::PercpuArray, MapType::PercpuHash, MapType::LpmTrie] {
        let key: &[u8] = if map_type == MapType::LpmTrie { &[8, 0, 0, 0, 1, 0, 0, 0] } else { &[1, 0, 0, 0] };
        let mut spec = MapSpec::new(map_type, key.len() as u32, 8, 4);
        if map_type == MapType::LpmTrie {
            spec.flags = map_flags::NO_PREALLOC;
        }
        let guard = Guard::pin();
        let map = Map::create(&spec, &env()).unwrap();
        map.prog_update(0, key, &[3; 8], 0).unwrap();
        let value = map.value(0, key, &guard).unwrap();
        drop(map);
        assert_eq!(value.to_vec(), [3; 8], "{map_type:?}");
        value.store(0, 8, 1).unwrap();
    }
}

#[test]
fn special_fields_belong_to_the_runtime() {
    for map_type in [MapType::Array, MapType::Hash] {
        let lock = SpecialField { kind: SpecialKind::SpinLock, offset: 4 };
        let timer = SpecialField { kind: SpecialKind::Timer, offset: 8 };
        let spec = MapSpec { special: vec![lock, timer], ..MapSpec::new(map_type, 4, 32, 4) };
        let map = Map::create(&spec, &env()).unwrap();
        let guard = Guard::pin();
        map.update(&key(0), &[0xee; 32], 0).unwrap();
        let value = map.value(0, &key(0), &guard).unwrap();
        let mut expected = [0xee; 32];
        expected[4..24].fill(0);
        assert_eq!(value.to_vec(), expected);
        // Programs see the fields, copies do not.
        value.store(8, 8, 99).unwrap();
        let mut out = [0x11; 32];
        map.lookup(&key(0), &mut out, map_flags::LOCK).unwrap();
        assert_eq!(out, expected);
        // In place under the lock: the same element, and its timer untouched but in an array.
        map.update(&key(0), &[0xdd; 32], map_flags::LOCK).unwrap();
        let again = map.value(0, &key(0), &guard).unwrap();
        let timer = if map_type == MapType::Hash { 99 } else { 0 };
        assert_eq!((again.addr(), again.load(8, 8).unwrap()), (value.addr(), timer));
        assert_eq!(again.load(4, 4).unwrap(), 0, "the lock is free again");
        assert_eq!(map.freeze(), Err(Errno::ENOTSUPP));
        if map_type == MapType::Hash {
            map.delete(&key(0)).unwrap();
            assert_eq!(value.load(8, 8).unwrap(), 0, "who runs the timer can see that it is over");
        }
    }
    let outside = SpecialField { kind: SpecialKind::Timer, offset: 24 };
    let spec = MapSpec { special: vec![outside], ..MapSpec::new(MapType::Array, 4, 32, 4) };
    assert_eq!(Map::create(&spec, &env()).unwrap_err().errno, Errno::EINVAL);
    let spec = MapSpec {
        special: vec![SpecialField { offset: 8, ..outside }],
        ..MapSpec::new(MapType::PercpuArray, 4, 32, 4)
    };
    assert_eq!(Map::create(&spec, &env()).unwrap_err().errno, Errno::EOPNOTSUPP);
}

/// An element may go to another key while a program holds its lock. That stays locked until the program gives it back, or two programs
/// would be behind one lock.
#[test]
fn a_lock_is_held_until_it_is_given_back() {
    let special = vec![SpecialField { kind: SpecialKind::SpinLock, offset: 0 }];
    let spec = MapSpec { special, ..MapSpec::new(MapType::Hash, 4, 16, 1) };
    type Goes = fn(&Map);
    let goes: [Goes; 3] = [
        |map| map.delete(&key(1)).unwrap(),
        // Its memory comes back with one of the next changes.
        |map| (0..4).for_each(|_| map.update(&key(1), &[1; 16], 0).unwrap()),
        |map| (0..4).for_each(|_| map.prog_update(0, &key(1), &[1; 16], 0).unwrap()),
    ];
    for goes in goes {
        let (map, guard) = (Map::create(&spec, &Env::with_cpus(1)).unwrap(), Guard::pin());
        map.update(&key(1), &[1; 16], 0).unwrap();
        let held = map.value(0, &key(1), &guard).unwrap();
        assert!(held.spin_lock(0));
        goes(&map);
        let _ = map.delete(&key(1));
        map.update(&key(2), &[2; 16], 0).unwrap();
        assert_eq!(held.load(0, 4), Ok(1));
        assert!(held.spin_unlock(0));
        assert_eq!(map.value(0, &key(2), &guard).unwrap().load(0, 4), Ok(0));
    }
}

#[test]
fn lru_keeps_what_is_used() {
    let map = map(MapType::LruHash, 4, 8, 256);
    let guard = Guard::pin();
    let used = || 0..32u32;
    used().for_each(|n| map.prog_update(0, &key(n), &[1; 8], 0).unwrap());
    for n in 100..if cfg!(miri) { 700 } else { 20_000 } {
        if n % 8 == 0 {
            assert!(used().filter_map(|n| map.value(0, &key(n), &guard)).count() <= 32);
        }
        map.prog_update(n % 4, &key(n), &[2; 8], 0).unwrap();
    }
    let kept = used().filter(|n| map.value(0, &key(*n), &guard).is_some()).count();
    assert!(kept >= 30, "{kept} of 32 keys in use were kept");
    assert!(map.keys().unwrap().len() >= 200);
}

#[test]
fn queues_and_stacks() {
    for (map_type, order) in [(MapType::Queue, [2, 3, 4]), (MapType::Stack, [4, 3, 2])] {
        let map = map(map_type, 0, 4, 3);
        for n in 1..=3 {
            map.push(&key(n), 0).unwrap();
        }
        assert_eq!(map.push(&key(4), 0), Err(Errno::E2BIG));
        assert_eq!(map.push(&key(4), map_flags::NOEXIST), Err(Errno::EINVAL));
        map.push(&key(4), map_flags::EXIST).unwrap();
        let mut out = [0; 4];
        for n in order {
            map.peek(&mut out).unwrap();
            assert_eq!(out, key(n));
            map.pop(&mut out).unwrap();
            assert_eq!(out, key(n));
        }
        assert_eq!((map.pop(&mut out), out), (Err(Errno::ENOENT), [0; 4]));
    }
}

#[test]
fn ring_records_come_in_order_and_fold_at_the_end() {
    let map = map(MapType::Ringbuf, 0, 0, 4096);
    let ring = map.ringbuf().unwrap();
    let mut expected = Vec::new();
    let mut seen = Vec::new();
    for n in 0..if cfg!(miri) { 60u32 } else { 3000 } {
        let len = 1 + (n as usize * 37) % 700;
        let record = ring.reserve(len as u64, 0).unwrap();
        record.value().write_bytes(0, &vec![n as u8; len]).unwrap();
        if n % 5 == 0 {
            record.discard(0);
        } else {
            record.submit(0);
            expected.push((len, n as u8));
        }
        if n % 3 == 2 {
            ring.consume(usize::MAX, &mut |bytes| {
                assert!(bytes.iter().all(|b| *b == bytes[0]));
                seen.push((bytes.len(), bytes[0]));
            })
            .unwrap();
        }
    }
    ring.consume(usize::MAX, &mut |bytes| seen.push((bytes.len(), bytes[0]))).unwrap();
    assert_eq!(seen, expected);
    assert_eq!(ring.query(ringbuf_query::AVAIL_DATA), 0);
}

#[test]
fn a_busy_ring_record_holds_back_those_after_it() {
    let map = map(MapType::Ringbuf, 0, 0, 4096);
    let ring = map.ringbuf().unwrap();
    let first = ring.reserve(8, 0).unwrap();
    ring.output(b"second", 0).unwrap();
    assert_eq!(ring.consume(9, &mut |_| panic!("nothing can be read yet")), Ok(0));
    assert!(!ring.wait(Duration::from_millis(1)));
    assert_eq!(ring.query(ringbuf_query::AVAIL_DATA), 32);
    drop(first); // as after a fault: discarded
    assert!(ring.wait(Duration::from_secs(5)));
    let mut seen = Vec::new();
    assert_eq!(ring.consume(9, &mut |bytes| seen.push(bytes.to_vec())), Ok(1));
    assert_eq!(seen, [b"second"]);
    assert_eq!(ring.reserve(4089, 0).err(), Some(Errno::E2BIG));
    assert_eq!(ring.reserve(8, 1).err(), Some(Errno::EINVAL));
    assert_eq!(ring.reserve(u64::MAX, 0).err(), Some(Errno::E2BIG));
    // All of the ring but its last byte can be in use, so a record that fills it never finds room.
    assert_eq!(ring.reserve(4088, 0).err(), Some(Errno::EAGAIN));
    ring.reserve(4080, 0).unwrap().submit(ringbuf_flags::NO_WAKEUP);
    assert_eq!(ring.output(&[], 0), Err(Errno::EAGAIN));
    assert_eq!(ring.output(&[], 4), Err(Errno::EINVAL));
}

#[test]
fn a_reader_sleeps_until_a_record_comes() {
    let map = map(MapType::Ringbuf, 0, 0, 4096);
    let ring = map.ringbuf().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..50u32 {
                while ring.output(&n.to_ne_bytes(), 0).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0u32;
        while next < 50 {
            assert!(ring.wait(Duration::from_secs(30)));
            ring.consume(7, &mut |bytes| {
                assert_eq!(bytes, next.to_ne_bytes());
                next += 1;
            })
            .unwrap();
        }
    });
}

#[test]
fn user_rings_are_drained_by_programs() {
    let map = map(MapType::UserRingbuf, 0, 0, 4096);
    let ring = map.ringbuf().unwrap();
    (0..10u8).for_each(|n| ring.output(&[n; 3], 0).unwrap());
    let mut seen = Vec::new();
    let mut visit = |value: xway_maps::ValueRef<'_>| {
        seen.push(value.to_vec()[0]);
        assert_eq!(ring.drain(&mut |_| true), Err(Errno::EBUSY));
        seen.len() < 4
    };
    assert_eq!(ring.drain(&mut visit), Ok(4));
    assert_eq!(ring.drain(&mut |_| true), Ok(6));
    assert_eq!(seen, [0, 1, 2, 3]);
}

#[test]
fn perf_buffers_count_what_they_lose() {
    let map = map(MapType::PerfEventArray, 4, 4, 4);
    let perf = map.perf().unwrap();
    let guard = Guard::pin();
    assert_eq!(perf.output(1, PERF_CURRENT_CPU, &[b"x"], &guard), Err(Errno::ENOENT));
    let mut readers = perf.open_all(4, 64).unwrap();
    assert_eq!(perf.output(1, 9, &[b"x"], &guard), Err(Errno::E2BIG));
    assert_eq!(perf.output(1, 1 << 32, &[b"x"], &guard), Err(Errno::EINVAL));
    assert_eq!(perf.output(1, 2, &[b"x"], &guard), Err(Errno::EOPNOTSUPP));
    let mut seen = Vec::new();
    for round in 0..5u8 {
        assert_eq!(perf.output(1, PERF_CURRENT_CPU, &[&[round; 9], b"tail"], &guard), Ok(()));
        assert_eq!(perf.output(1, 1, &[&[round; 5]], &guard), Ok(()));
        assert_eq!(perf.output(1, 1, &[&[round; 20]], &guard), Err(Errno::ENOSPC));
        assert!(perf.wait(&readers, Duration::ZERO));
        readers[1].read(10, &mut |record| {
            seen.push(match record {
                PerfRecord::Sample(bytes) => bytes.to_vec(),
                PerfRecord::Lost(n) => vec![0xff, n as u8],
            });
        });
        let expected = vec![[&[round; 9][..], b"tail"].concat(), vec![round; 5], vec![0xff, 1]];
        assert_eq!(std::mem::take(&mut seen), expected);
    }
    assert!(readers.iter().all(|reader| reader.is_empty()));
    readers.remove(1);
    assert_eq!(perf.output(1, PERF_CURRENT_CPU, &[b"x"], &guard), Err(Errno::ENOENT));
    assert_eq!(map.delete(&key(0)), Ok(()));
    assert_eq!(map.delete(&key(0)), Err(Errno::ENOENT));
}

struct Program(u32, ProgramUse);

impl ProgramObject for Program {
    fn id(&self) -> u32 {
        self.0
    }
    fn program_use(&self) -> ProgramUse {
        self.1
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn programs_in_arrays() {
    let map = map(MapType::ProgArray, 4, 4, 3);
    let guard = Guard::pin();
    map.set_program(1, Some(Arc::new(Program(41, ProgramUse::Xdp)))).unwrap();
    let program = map.program(1, &guard).unwrap();
    assert_eq!(map.set_program(0, Some(Arc::new(Program(1, ProgramUse::XdpCpumap)))), Err(Errno::EINVAL));
    assert_eq!(map.set_program(3, None), Err(Errno::E2BIG));
    let mut id = [0; 4];
    map.lookup(&key(1), &mut id, 0).unwrap();
    assert_eq!(id, key(41));
    map.set_program(1, Some(Arc::new(Program(42, ProgramUse::Xdp)))).unwrap();
    assert_eq!(program.id(), 41, "a caller may still be on its way through the old one");
    map.clear_programs();
    assert!(map.program(1, &guard).is_none());
}

/// Descriptors of a test: any number from 1 on is a program.
struct AnyProgram(ProgramUse);

impl Handles for AnyProgram {
    fn program(&self, fd: i32) -> Result<Arc<dyn ProgramObject>, Errno> {
        Ok(Arc::new(Program(fd as u32, self.0)))
    }
}

#[test]
fn programs_in_entries_are_seen_and_taken_out() {
    for (map_type, program_use) in [
        (MapType::Devmap, ProgramUse::XdpDevmap),
        (MapType::DevmapHash, ProgramUse::XdpDevmap),
        (MapType::Cpumap, ProgramUse::XdpCpumap),
    ] {
        let env = Env { handles: Arc::new(AnyProgram(program_use)), ..env() };
        let map = Map::create(&MapSpec::new(map_type, 4, 8, 4), &env).unwrap();
        for (at, program) in [(0, 7), (1, 0), (3, 9)] {
            map.update(&key(at), &[key(64), key(program)].concat(), 0).unwrap();
        }
        let ids = || {
            let (guard, mut ids) = (Guard::pin(), Vec::new());
            map.each_program(&guard, &mut |program| ids.push(program.id()));
            ids.sort_unstable();
            ids
        };
        assert_eq!(ids(), [7, 9], "{map_type:?}");
        map.clear_programs();
        assert_eq!(ids(), [0; 0], "{map_type:?}");
        let there = |at| map.lookup(&key(at), &mut [0; 8], 0).is_ok();
        assert_eq!([there(0), there(1), there(3)], [false, true, false], "{map_type:?}");
    }
}

/// Descriptors of a test: who is asked for a device has every device of the map visited by another thread first, as a worker does that
/// the engine waits for before it says which devices there are.
#[derive(Default)]
struct AsksWorkers {
    map: OnceLock<Weak<Map>>,
    stuck: AtomicBool,
}

impl Handles for AsksWorkers {
    fn device(&self, _: u32) -> bool {
        let Some(map) = self.map.get().and_then(Weak::upgrade) else { return true };
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            map.each_device(&Guard::pin(), &mut |_| ());
            let _ = done.send(());
        });
        if wait.recv_timeout(Duration::from_secs(10)).is_err() {
            self.stuck.store(true, Ordering::Relaxed);
        }
        true
    }
}

#[test]
fn workers_broadcast_while_a_descriptor_is_resolved() {
    for map_type in [MapType::Devmap, MapType::DevmapHash] {
        let handles = Arc::new(AsksWorkers::default());
        let env = Env { handles: handles.clone(), ..env() };
        let map = Map::create(&MapSpec::new(map_type, 4, 8, 4), &env).unwrap();
        map.update(&key(1), &[key(7), key(0)].concat(), 0).unwrap();
        handles.map.set(Arc::downgrade(&map)).unwrap();
        map.update(&key(1), &[key(9), key(0)].concat(), map_flags::EXIST).unwrap();
        map.update(&key(2), &[key(9), key(0)].concat(), 0).unwrap();
        assert!(!handles.stuck.load(Ordering::Relaxed), "{map_type:?}");
    }
}

#[test]
fn inner_maps_are_reached_by_key() {
    for outer in [MapType::ArrayOfMaps, MapType::HashOfMaps] {
        let inner = MapSpec::new(MapType::Hash, 4, 8, 16);
        let spec = MapSpec { inner: Some(Box::new(inner.clone())), ..MapSpec::new(outer, 4, 4, 4) };
        let map = Map::create(&spec, &env()).unwrap();
        let guard = Guard::pin();
        assert!(map.inner(&key(2), &guard).is_none());
        let first = Map::create(&inner, &env()).unwrap();
        map.set_inner(&key(2), first.clone()).unwrap();
        let seen = map.inner(&key(2), &guard).unwrap();
        map.set_inner(&key(2), Map::create(&inner, &env()).unwrap()).unwrap();
        drop(first);
        seen.prog_update(0, &key(5), &[1; 8], 0).unwrap();
        assert_ne!(map.inner(&key(2), &guard).unwrap().id(), seen.id());
        let wrong = Map::create(&MapSpec { value_size: 4, ..inner }, &env()).unwrap();
        assert_eq!(map.set_inner(&key(2), wrong), Err(Errno::EINVAL));
        map.delete(&key(2)).unwrap();
        assert!(map.inner(&key(2), &guard).is_none());
    }
}

#[test]
fn redirect_targets() {
    let guard = Guard::pin();
    for map_type in [MapType::Devmap, MapType::DevmapHash] {
        let map = map(map_type, 4, 8, 4);
        for (index, ifindex) in [(0, 7), (3, 9)] {
            map.update(&key(index), &[key(ifindex), key(0)].concat(), 0).unwrap();
        }
        assert!(matches!(map.target(3, &guard), Some(Target::Device { ifindex: 9, program: None })));
        assert!(map.target(1, &guard).is_none() && map.target(400, &guard).is_none());
        let mut all = Vec::new();
        map.each_device(&guard, &mut |target| {
            if let Target::Device { ifindex, .. } = target {
                all.push(ifindex);
            }
        });
        all.sort_unstable();
        assert_eq!(all, [7, 9]);
        assert_eq!(map.value(0, &key(3), &guard).unwrap().load(0, 4).unwrap(), 9);
        assert!(!map.prog_writable());
    }
    let cpus = map(MapType::Cpumap, 4, 4, 4);
    cpus.update(&key(2), &key(192), 0).unwrap();
    assert!(matches!(cpus.target(2, &guard), Some(Target::Cpu { cpu: 2, qsize: 192, program: None })));
}
