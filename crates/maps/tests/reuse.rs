//! What leaves a map is used again. Alone in its program: guards of other tests would hold the memory back.

use xway_abi::{MapSpec, MapType, map_flags};
use xway_maps::{Env, Map};

#[test]
fn a_trie_under_churn_does_not_grow() {
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
