//! Look-ups in tries as code (`lower/trie.rs`, `address.rs`) beside the map's own: addresses of every length, prefixes of every length,
//! tables on tables and lists, keys on the stack and in the packet, keys of whole addresses and of parts.

use std::collections::BTreeSet;
use std::sync::Arc;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_jit::{Compiled, Options, RunEnv, compile};
use xway_maps::{Guard, Map};
use xway_object::{MapDef, Program};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_testkit::Rng;
use xway_verifier::{Config, MapsView};
use xway_vm::FixedHost;

/// Addresses of more bytes than look-ups are made for are asked too.
const WIDTHS: std::ops::RangeInclusive<usize> = 1..=18;
/// Most prefixes of a trie.
const PREFIXES: usize = 1500;
const NOTHING: u64 = 0xffff_ffff;

/// Prefix length and address.
type Key = Vec<u8>;

fn key(len: usize, address: &[u8]) -> Key {
    [(len as u32).to_ne_bytes().as_slice(), address].concat()
}

/// Another address: the first `keep` bits as they are, the others by chance, but seldom many of them.
fn beside(address: &[u8], keep: usize, random: &mut Rng) -> Vec<u8> {
    let mut other = address.to_vec();
    let all = 8 * address.len();
    match random.index(3) {
        // One bit.
        0 if keep < all => {
            let bit = keep + random.index(all - keep);
            other[bit / 8] ^= 0x80 >> (bit % 8);
        }
        // What follows.
        1 => (keep..all.min(keep + 20)).for_each(|bit| other[bit / 8] ^= (0x80 >> (bit % 8)) & random.u64() as u8),
        _ => (keep..all).for_each(|bit| other[bit / 8] ^= (0x80 >> (bit % 8)) & random.u64() as u8),
    }
    other
}

/// Prefixes that lie below one another, beside one another and nowhere near.
fn prefixes(width: usize, random: &mut Rng) -> Vec<Key> {
    let all = 8 * width;
    let count = 1 + random.index(PREFIXES);
    let mut made = vec![vec![0u8; width]];
    (0..count)
        .map(|_| {
            let from = made[random.index(made.len())].clone();
            let keep = random.index(all + 1);
            let address = beside(&from, keep, random);
            let len = match random.index(4) {
                0 => all,
                1 => (keep + random.index(12)).min(all),
                _ => random.index(all + 1),
            };
            // Most lie in a few places, so that there are nodes with many below them.
            if made.len() < 24 || random.index(50) == 0 {
                made.push(address.clone());
            }
            key(len, &address)
        })
        .collect()
}

/// The trie's map and its key as memory: on the stack, where the packet's bytes are copied to, or in the packet.
fn text(key_size: usize, on_stack: bool) -> String {
    let head = format!(
        "r6 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += {key_size}\nr0 = 1\nif r2 > r8 goto out\nr2 = r6\n"
    );
    let mut copy = String::new();
    if on_stack {
        let base = key_size.next_multiple_of(8);
        let mut at = 0;
        while at < key_size {
            let size = [8, 4, 2, 1].into_iter().find(|size| at + size <= key_size && at % size == 0).expect("one");
            let kind = 8 * size;
            copy += &format!("r7 = *(u{kind} *)(r6 +{at})\n*(u{kind} *)(r10 -{}) = r7\n", base - at);
            at += size;
        }
        copy += &format!("r2 = r10\nr2 += -{base}\n");
    }
    format!(
        "{head}{copy}r1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\nr0 = *(u32 *)(r0 +0)\nexit\nnone: w0 = -1\nout: exit"
    )
}

fn code(text: &str, spec: &MapSpec, map: &Arc<Map>, options: &Options) -> Arc<Compiled> {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = Program { name: "tries".into(), section: "xdp".into(), insns, ..Program::default() };
    let defs = [MapDef::new("tries", spec.clone())];
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let program = xway_vm::Program::verify(&image, std::slice::from_ref(map), &view, &Config::default())
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    compile(&program, program.proof().unwrap(), options).unwrap()
}

/// What burst code answers to each key.
fn answers(code: &Compiled, keys: &[Key]) -> Vec<u64> {
    let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    keys.chunks(64)
        .flat_map(|keys| {
            let mut frames: Vec<Frame> = keys.iter().map(|_| pool.alloc().unwrap()).collect();
            for (frame, key) in frames.iter_mut().zip(keys) {
                frame.fill(&[key.as_slice(), &[0; 40]].concat()).unwrap();
            }
            let mut results = vec![0; keys.len()];
            code.run_burst(&mut frames, &mut RunEnv::new(&guard, &host, 1), &mut results).unwrap();
            frames.into_iter().for_each(|frame| pool.release(frame));
            results
        })
        .collect()
}

#[test]
fn code_finds_what_the_map_finds() {
    let mut random = Rng::new(0x1234_5678_9abc_def1);
    let (mut hits, mut seen) = (0, BTreeSet::new());
    for width in WIDTHS {
        for round in 0..3 {
            let value_size = [4, 8, 12][(width + round) % 3];
            let key_size = 4 + width;
            let spec = MapSpec {
                flags: map_flags::NO_PREALLOC,
                ..MapSpec::new(MapType::LpmTrie, key_size as u32, value_size as u32, PREFIXES as u32)
            };
            let map = Map::create(&spec, &xway_maps::Env::with_cpus(2)).unwrap();
            let stored = prefixes(width, &mut random);
            let value = |n: usize| [(n as u32).to_ne_bytes().as_slice(), &[0; 8]].concat()[..value_size].to_vec();
            for (n, prefix) in stored.iter().enumerate() {
                map.update(prefix, &value(n), 0).unwrap();
            }
            let codes: Vec<_> = [(true, Options::default()), (false, Options::default()), (true, Options::plain())]
                .into_iter()
                .map(|(on_stack, options)| code(&text(key_size, on_stack), &spec, &map, &options))
                .collect();
            // Then half of them go, and what is left is asked again.
            for turn in 0..2 {
                let mut asked = vec![key(8 * width, &vec![0; width]), key(8 * width, &vec![0xff; width])];
                for prefix in stored.iter().chain(&stored) {
                    let len = u32::from_ne_bytes(prefix[..4].try_into().unwrap()) as usize;
                    let other = beside(&prefix[4..], len.saturating_sub(random.index(4)), &mut random);
                    asked.push(key(8 * width, &prefix[4..]));
                    asked.push(key(8 * width, &other));
                    // Parts of addresses, and more than there is.
                    asked.push(key(random.index(8 * width + 2), &other));
                }
                let (guard, mut out) = (Guard::pin(), [0; 4]);
                let expected: Vec<u64> = asked
                    .iter()
                    .map(|key| match map.value(0, key, &guard) {
                        Some(found) => {
                            found.read_bytes(0, &mut out).unwrap();
                            u64::from(u32::from_ne_bytes(out))
                        }
                        None => NOTHING,
                    })
                    .collect();
                for (n, code) in codes.iter().enumerate() {
                    let found = answers(code, &asked);
                    let wrong = (0..asked.len()).find(|at| found[*at] != expected[*at]);
                    if let Some(at) = wrong {
                        panic!(
                            "width {width}, code {n}, turn {turn}: {:?}: {} and not {}",
                            asked[at], found[at], expected[at]
                        );
                    }
                }
                hits += expected.iter().filter(|answer| **answer != NOTHING).count();
                seen.extend(expected.iter().map(|answer| (width, *answer == NOTHING)));
                for prefix in stored.iter().step_by(2) {
                    let _ = map.delete(prefix);
                }
            }
        }
    }
    assert!(hits > 10_000, "{hits}");
    assert_eq!(seen.len(), 2 * WIDTHS.count(), "hits and misses with each width: {seen:?}");
}
