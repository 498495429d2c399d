//! What leaves a map is used again. Alone in its program: guards of other tests would hold the memory back.

use std::sync::Mutex;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_maps::{Env, Guard, Map};

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_trie_under_churn_does_not_grow() {
    let _turn = TURN.lock();
    let spec = MapSpec::new(MapType::LpmTrie, 8, 8, 200).with_flags(map_flags::NO_PREALLOC);
    let map = Map::create(&spec, &Env::with_cpus(1)).unwrap();
    let key = |n: u32| [(16 + n % 17).to_ne_bytes(), n.wrapping_mul(7_919_077).to_be_bytes()].concat();
    let round = || {
        (0..200).for_each(|n| map.update(&key(n), &[1; 8], 0).unwrap());
        (0..200).for_each(|n| map.update(&key(n), &[2; 8], map_flags::EXIST).unwrap());
        (0..200).for_each(|n| map.delete(&key(n)).unwrap());
        map.memory().bytes
    };
    // Some of it waits for guards at any time: hundreds of pieces, whatever the number of rounds.
    (0..if cfg!(miri) { 1 } else { 30 }).for_each(|_| assert!(round() > 0));
    let before = map.memory().bytes;
    (0..if cfg!(miri) { 1 } else { 300 }).for_each(|_| assert!(round() > 0));
    let after = map.memory().bytes;
    assert!(after < 2 * before || cfg!(miri), "{after} after {before}");
}

/// A worker changes the trie under a guard for each burst. What leaves is used again a few bursts later, however many prefixes there are:
/// otherwise the map's memory grows until there is none, and updates and deletions fail.
#[test]
#[cfg_attr(miri, ignore = "a long walk, the same code as the short ones")]
fn what_bursts_take_out_serves_again() {
    let _turn = TURN.lock();
    // More than share memory with other tries.
    let count = (1u32 << 14) + 1000;
    let spec = MapSpec::new(MapType::LpmTrie, 8, 8, 2 * count).with_flags(map_flags::NO_PREALLOC);
    let map = Map::create(&spec, &Env::with_cpus(1)).unwrap();
    let key = |n: u32| [32u32.to_ne_bytes(), n.wrapping_mul(0x9e37_79b9).to_be_bytes()].concat();
    (0..count).for_each(|n| map.update(&key(n), &[1; 8], 0).unwrap());
    for burst in 0..1000 {
        let _guard = Guard::pin();
        for n in burst * 64..(burst + 1) * 64 {
            map.delete(&key(n)).unwrap();
            map.update(&key(count + n), &[2; 8], 0).unwrap();
        }
    }
    let bytes = map.memory().bytes;
    assert!(bytes < 80 * u64::from(count), "{bytes} bytes for {count} prefixes");
}
