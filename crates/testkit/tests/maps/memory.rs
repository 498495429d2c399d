//! What maps cost: ours beside what the kernel reports for its own (`memlock` in `/proc/self/fdinfo`).
//!
//! `cargo test -p xway-testkit --test maps memory -- --nocapture` prints the table.

use std::os::fd::{AsFd, AsRawFd};

use xway_abi::{MapSpec, MapType, map_flags};
use xway_kernel::{Batch, KernelMap};
use xway_maps::Map;
use xway_testkit::Rng;

use crate::subject::{Ours, kernel_maps};

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

/// The same into both, many at a time.
fn fill(theirs: &KernelMap, ours: &Map, keys: &[u8]) {
    let (key_size, mut keys) = (ours.spec().key_size as usize, keys.to_vec());
    let count = (keys.len() / key_size) as u32;
    let mut values = vec![1; count as usize * ours.user_value_size()];
    assert_eq!(ours.update_batch(&keys, &values, count, 0, 0).result, Ok(()), "{:?}", ours.spec());
    let (keys, values) = (&mut keys[..], &mut values[..]);
    let (_, done) =
        theirs.update_batch(Batch { in_batch: None, out_batch: &mut [], keys, values, count, elem_flags: 0, flags: 0 });
    assert_eq!(done, Ok(()), "{:?}", theirs.spec());
}

#[test]
fn memory_is_at_most_1_3_times_the_kernels() {
    if !kernel_maps("memory_is_at_most_1_3_times_the_kernels") {
        return;
    }
    use MapType::*;
    let mut wrong = Vec::new();
    println!(
        "| map | key | value | entries | ours, bytes each | Linux, bytes each | ratio |\n|---|---|---|---|---|---|---|"
    );
    for map_type in [Hash, LruHash, PercpuHash, LruPercpuHash, LpmTrie, Array, PercpuArray] {
        let indexed = matches!(map_type, Array | PercpuArray);
        let sizes: &[(u32, u32)] = match map_type {
            LpmTrie => &[(8, 1), (8, 4), (8, 8), (8, 16), (8, 64), (20, 4), (20, 16)],
            _ if indexed => &[(4, 8), (4, 100)],
            _ => &[(4, 8), (16, 8), (16, 64), (40, 24), (6, 100)],
        };
        for &(key, value) in sizes {
            // Of a million entries the ones that Linux makes in a moment: it takes a second and more for a million parts of each CPU.
            let plain = matches!(map_type, Hash | LruHash) && (key, value) == (16, 8);
            let million = plain || indexed && value == 8 || map_type == LpmTrie && (key, value) == (8, 8);
            let entries: &[u32] = match map_type {
                // Right behind the place where the first table has doubled, where it and the old one are both there.
                LpmTrie if !million => &[1000, 5_000, 9_984, 18_000, 34_790, 69_181, 100_000],
                _ if million => &[1000, 16_384, 100_000, 1_000_000],
                _ => &[1000, 16_384, 100_000],
            };
            for &entries in entries {
                for flags in [0, map_flags::NO_PREALLOC] {
                    let growing = flags != 0;
                    if growing != (map_type == LpmTrie) && !(growing && matches!(map_type, Hash | PercpuHash)) {
                        continue;
                    }
                    let spec = MapSpec::new(map_type, key, value, entries).with_flags(flags);
                    let theirs = KernelMap::create("memory", &spec).unwrap();
                    let ours = Map::create(&spec, &Ours::new().env).unwrap();
                    if entries == 1_000_000 && growing {
                        fill(&theirs, &ours, &keys(&spec).concat());
                    }
                    // What is preallocated takes no more when it is filled, so a million are not put in.
                    if entries < 1_000_000 && !indexed {
                        for key in keys(&spec) {
                            let _ = theirs.update(&key, &vec![1; theirs.user_value_size()], 0);
                            let _ = ours.update(&key, &vec![1; ours.user_value_size()], 0);
                        }
                    }
                    let (ours, theirs) = (ours.memory().bytes as f64, memlock(&theirs) as f64);
                    let (each, ratio) = (f64::from(entries), ours / theirs);
                    let grows = if growing && map_type != LpmTrie { ", growing" } else { "" };
                    let name = map_type.name();
                    println!(
                        "| {name}{grows} | {key} | {value} | {entries} | {:.0} | {:.0} | {ratio:.2} |",
                        ours / each,
                        theirs / each
                    );
                    // What a trie has just exchanged waits for the guards: some KiB, whatever its size.
                    let waiting = if map_type == LpmTrie { 16.0 * 1024.0 } else { 0.0 };
                    // What a prefix takes besides its value grows with the value only in Linux.
                    let most = match (map_type, value) {
                        (LpmTrie, ..4) => 1.5,
                        (LpmTrie, _) => 1.4,
                        _ => 1.3,
                    };
                    if ours > most * theirs + waiting {
                        wrong.push(format!("{name}{grows} {key}/{value}/{entries}: {ratio:.2}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
