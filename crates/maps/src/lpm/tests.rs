//! The trie against the plainest thing that does the same: all prefixes, one by one.

use std::collections::BTreeMap;

use super::*;
use xway_abi::MapType;

fn trie(width: usize, max: u32) -> LpmTrie {
    let spec = MapSpec::new(MapType::LpmTrie, width as u32 + 4, 8, max).with_flags(f::NO_PREALLOC);
    LpmTrie::new(&spec, &crate::Env::with_cpus(1)).unwrap()
}

fn key(len: u32, bytes: &[u8]) -> Vec<u8> {
    [&len.to_ne_bytes()[..], bytes].concat()
}

/// Numbers without a pattern, from a seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

/// The bits of a prefix, one by one: what it is compared by.
fn bits_of(len: u32, bytes: &[u8]) -> Vec<bool> {
    (0..len as usize).map(|at| bytes[at / 8] & 0x80 >> (at % 8) != 0).collect()
}

fn best(all: &BTreeMap<Vec<bool>, u64>, bits: &[bool]) -> Option<u64> {
    (0..=bits.len()).rev().find_map(|len| all.get(&bits[..len]).copied())
}

/// A walk in which prefixes come and go; every answer is compared.
fn walk(width: usize, max: u32, steps: u32, alphabet: &[u8], long: bool, seed: u64) {
    let trie = trie(width, max);
    let mut all: BTreeMap<Vec<bool>, u64> = BTreeMap::new();
    let mut rng = Rng(seed);
    let bits_max = width as u32 * 8;
    for step in 0..steps {
        let guard = Guard::pin();
        let bytes: Vec<u8> = (0..width).map(|_| alphabet[rng.below(alphabet.len() as u32) as usize]).collect();
        let len = if long { bits_max - rng.below(bits_max.min(9)) } else { rng.below(bits_max + 1) };
        let bits = bits_of(len, &bytes);
        let by = if step % 3 == 0 { By::User } else { By::Program };
        // Times of growth and times of decay.
        let grow = step / (max / 2).max(40) % 3 != 2;
        if rng.below(10) < if grow { 8 } else { 2 } {
            let value = u64::from(step) + 1;
            let expected =
                if all.len() < max as usize || all.contains_key(&bits) { Ok(()) } else { Err(Errno::ENOSPC) };
            assert_eq!(trie.store(by, &key(len, &bytes), &value.to_ne_bytes(), 0), expected, "step {step}");
            if expected.is_ok() {
                all.insert(bits, value);
            }
        } else {
            // Mostly something that is there.
            let some = all.keys().nth(rng.below(all.len().max(1) as u32) as usize).cloned().unwrap_or(bits);
            let mut bytes = vec![0u8; width];
            some.iter().enumerate().for_each(|(at, bit)| bytes[at / 8] |= u8::from(*bit) << (7 - at % 8));
            let expected = all.remove(&some).map(drop).ok_or(Errno::ENOENT);
            assert_eq!(trie.remove(by, &key(some.len() as u32, &bytes)), expected, "step {step}");
        }
        for _ in 0..3 {
            let bytes: Vec<u8> = (0..width).map(|_| alphabet[rng.below(alphabet.len() as u32) as usize]).collect();
            let len = if rng.below(3) == 0 { rng.below(bits_max + 1) } else { bits_max };
            let found = trie.at(&key(len, &bytes), &guard).map(|value| value.load(0, 8).unwrap());
            assert_eq!(found, best(&all, &bits_of(len, &bytes)), "step {step}: {len} {bytes:?}");
        }
        if step % 97 == 0 {
            order_is_right(&trie, &all);
        }
    }
    order_is_right(&trie, &all);
}

fn order_is_right(trie: &LpmTrie, all: &BTreeMap<Vec<bool>, u64>) {
    let mut expected: Vec<&Vec<bool>> = all.keys().collect();
    // Bit by bit; where one ends, the longer one is the first.
    expected.sort_by(|a, b| {
        let differ = a.iter().zip(b.iter()).find(|(a, b)| a != b);
        differ.map_or(b.len().cmp(&a.len()), |(a, b)| a.cmp(b))
    });
    let mut seen = Vec::new();
    let mut next = vec![0; trie.width + 4];
    let mut from: Option<Vec<u8>> = None;
    while trie.next_key(from.as_deref(), &mut next).is_ok() {
        let (len, bytes) = trie.split(&next).unwrap();
        seen.push(bits_of(len, bytes));
        assert!(seen.len() <= all.len(), "a walk that does not end");
        from = Some(next.clone());
    }
    assert_eq!(seen.iter().collect::<Vec<_>>(), expected);
}

/// An update builds what is new beside the old and leaves the rest where it is: of a trie with thousands of prefixes, on the average
/// less than a list's worth, and never more than a part.
#[test]
fn updates_leave_the_rest_of_the_trie_where_it_is() {
    let (count, updates) = if cfg!(miri) { (60, 10) } else { (20_000, 600) };
    for (width, seed) in [(4, 5), (16, 6)] {
        let trie = trie(width, 2 * count);
        let mut rng = Rng(seed);
        let mut prefix = || {
            let bytes: Vec<u8> = (0..width).map(|_| rng.below(256) as u8).collect();
            key(8 + rng.below(width as u32 * 8 - 7), &bytes)
        };
        let mut held: Vec<Vec<u8>> = (0..count).map(|_| prefix()).collect();
        held.iter().for_each(|key| trie.store(By::User, key, &[1; 8], 0).unwrap());
        let nodes = || {
            let mut pieces = Vec::new();
            trie.collect_pieces(Entry::of(trie.root().load(Ordering::Relaxed)), &mut pieces);
            pieces.into_iter().map(|piece| (piece.number, piece.units)).collect::<BTreeMap<_, _>>()
        };
        let mut before = nodes();
        let whole: usize = before.values().sum();
        let (mut built, mut most) = (0, 0);
        for n in 0..updates {
            if n % 2 == 0 {
                held.push(prefix());
                trie.store(By::Program, held.last().unwrap(), &[2; 8], 0).unwrap();
            } else {
                // Given twice, it is gone already.
                let _ = trie.remove(By::Program, &held.swap_remove(n * 31 % held.len()));
            }
            let after = nodes();
            let new: usize = after.iter().filter(|(number, _)| !before.contains_key(number)).map(|node| node.1).sum();
            (built, most, before) = (built + new, most.max(new), after);
        }
        println!(
            "{width}: {whole} units in {} nodes; {built} built by {updates} updates, {most} at most",
            before.len()
        );
        if !cfg!(miri) {
            assert!(whole > 20_000 && built > updates / 4, "there is something to build: {whole}, {built}");
            assert!(
                built < 32 * updates && most < whole / 20,
                "{built} of {whole} in {updates} updates, {most} at once"
            );
        }
    }
}

#[test]
fn walks_with_few_bits_nest_deeply() {
    let steps = if cfg!(miri) { 60 } else { 4000 };
    for seed in 0..if cfg!(miri) { 1 } else { 6 } {
        walk(4, 300, steps, &[0, 0, 0x80, 0xc0, 0xff, 0x0f], false, seed);
        walk(1, 400, steps, &[0, 1, 2, 3, 0x80, 0x81, 0xff, 0x55], false, seed);
        walk(16, 200, steps, &[0, 0xff, 0x20], false, seed);
        walk(5, 200, steps, &[0, 0xff, 0x20], true, seed);
    }
    walk(256, 60, steps / 8, &[0, 0xff], false, 1);
    walk(37, 100, steps / 4, &[0, 0x10], true, 2);
}

#[test]
#[cfg_attr(miri, ignore = "a long walk, the same code as the short ones")]
fn walks_over_many_prefixes_grow_and_shrink_tables() {
    let bytes: Vec<u8> = (0..=255).collect();
    walk(4, 3000, 14_000, &bytes, false, 3);
    walk(4, 3000, 14_000, &bytes[..16], true, 4);
    walk(16, 2000, 8_000, &bytes[..7], true, 5);
}

/// Tries for few prefixes share pages, and what goes with one serves the next.
#[test]
#[cfg_attr(miri, ignore = "other tests share the memory")]
fn what_a_trie_had_serves_the_next() {
    // Values of a length that no other test has.
    let spec = MapSpec::new(MapType::LpmTrie, 8, 99, 100).with_flags(f::NO_PREALLOC);
    let new = || LpmTrie::new(&spec, &crate::Env::with_cpus(1)).unwrap();
    let stays = new();
    let mut highest = 0;
    for round in 0..300 {
        let trie = new();
        let keys: Vec<_> = (0..20u32).map(|n| key(8 + n, &(n * 77_777_777).to_be_bytes())).collect();
        keys.iter().for_each(|key| trie.store(By::User, key, &[1; 99], 0).unwrap());
        let guard = Guard::pin();
        let value = trie.at(&key(32, &(19 * 77_777_777u32).to_be_bytes()), &guard).unwrap();
        let at = (value.addr() - stays.arena.values().addr()) / stays.stride;
        drop(trie);
        assert_eq!(value.load(0, 1).unwrap(), 1, "it outlives the trie under the guard");
        if round > 100 {
            highest = highest.max(at);
        }
    }
    // Some of them wait for the guards of other tests.
    assert!(highest < 200 * 20, "{highest}");
}

/// While a writer is at work, what is found together may not belong together: there is no answer then.
#[test]
fn there_are_no_answers_beside_a_writer() {
    let trie = trie(4, 16);
    let still = trie.answer_many(&[], |_, _| ());
    trie.changes().fetch_add(1, Ordering::AcqRel);
    let meanwhile = trie.answer_many(&[], |_, _| ());
    trie.changes().fetch_add(1, Ordering::AcqRel);
    let behind = trie.answer_many(&[], |_, _| ());
    assert!(still.is_some() && meanwhile.is_none() && behind.is_some());
    assert_ne!(still, behind);
}
