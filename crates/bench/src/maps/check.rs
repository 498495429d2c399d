//! Whether an operation did what it should: before a figure is believed, outcomes are counted, values compared with what was written, and
//! the map is looked at.
//!
//! Each pass writes values of its own: key number `n` gets `stamp + n`. While the clock runs a side counts what came of each operation and
//! adds up what it reads; everything else is done when it has stopped.

use super::keys::Keys;
use super::{MapError, Op, Side, Subject, is_lru};

/// What a pass came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Pass {
    /// Nanoseconds for each operation.
    pub(super) ns: f64,
    /// Keys from the first on that something was done with, timed or not.
    pub(super) tried: usize,
    /// Operations that did what was asked: look-ups that found something, updates and deletes without an error.
    pub(super) done: usize,
    /// Sum of the values that look-ups read.
    pub(super) sum: u64,
}

/// Keys whose values are compared after a pass, spread over all of them.
const SAMPLE: usize = 4096;

/// A value that no other pass of a run writes to the same key, and that is no small number.
pub(super) fn stamp(pass: u64) -> u64 {
    (pass + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The value of key number `n`.
pub(super) fn value(stamp: u64, n: usize) -> u64 {
    stamp.wrapping_add(n as u64)
}

/// What look-ups of the first `count` keys add up to.
fn sum(stamp: u64, count: usize) -> u64 {
    (0..count).fold(0, |sum, n| sum.wrapping_add(value(stamp, n)))
}

/// Outcomes of one pass, and what the map holds of its keys afterwards. `stamp` is that of the last pass that wrote to them.
pub(super) fn pass(
    side: &dyn Side,
    subject: &Subject,
    op: Op,
    keys: &Keys,
    stamp: u64,
    pass: &Pass,
) -> Result<(), MapError> {
    let wrong = |what: String| Err(MapError::Wrong { side: side.name(), op: op.name(), what });
    let Pass { tried, done, .. } = *pass;
    let key = |n: usize| &keys.of(op)[n * keys.size..][..keys.size];
    if op == Op::Lookup {
        // What an LRU map still holds is its own business: as many as are there were to be found, and their values.
        let (mut hits, mut expected) = (tried, sum(stamp, tried));
        if is_lru(subject.map_type) {
            (hits, expected) = (0, 0);
            for n in 0..tried {
                if side.get(key(n))?.is_some() {
                    (hits, expected) = (hits + 1, expected.wrapping_add(value(stamp, n)));
                }
            }
        }
        if done != hits {
            return wrong(format!("{done} of {tried} keys were found, {hits} are there"));
        }
        if pass.sum != expected {
            return wrong(format!(
                "the values that were read add up to {:#x}, those written to {expected:#x}",
                pass.sum
            ));
        }
        return Ok(());
    }
    if done != tried {
        return wrong(format!("{} of {tried} operations failed", tried - done.min(tried)));
    }
    let (mut looked, mut there) = (0, 0);
    for n in (0..tried).step_by(tried.div_ceil(SAMPLE).max(1)) {
        looked += 1;
        let Some(found) = side.get(key(n))? else { continue };
        there += 1;
        let written = value(stamp, n);
        if op == Op::Delete {
            return wrong(format!("key {n} is still there"));
        }
        if let Some(other) = found.iter().find(|word| **word != written) {
            return wrong(format!("key {n} holds {other:#x}, {written:#x} was written"));
        }
    }
    let least = match (op, is_lru(subject.map_type)) {
        (Op::Delete, _) => 0,
        // Most of the flood is gone, but not all of it.
        (Op::Evict, _) => 1,
        // They are half of what the map has room for.
        (_, true) => looked / 2,
        (_, false) => looked,
    };
    if there < least {
        return wrong(format!("{there} of {looked} keys are there afterwards, at least {least} should be"));
    }
    Ok(())
}

/// How much the whole map holds after an operation with `keys` keys.
pub(super) fn whole(side: &dyn Side, subject: &Subject, op: Op, keys: usize) -> Result<(), MapError> {
    let (entries, lru) = (subject.entries as usize, is_lru(subject.map_type));
    let (least, most) = match op {
        Op::Delete => (0, 0),
        // Linux keeps some of the room back for each CPU.
        Op::Evict => (entries / 2, entries),
        _ if lru => (keys / 2, entries),
        _ => (keys, keys),
    };
    let elements = side.elements()?;
    if (least..=most).contains(&elements) {
        return Ok(());
    }
    let what = match least == most {
        true => format!("the map holds {elements} elements, {most} should be there"),
        false => format!("the map holds {elements} elements, {least} to {most} should be there"),
    };
    Err(MapError::Wrong { side: side.name(), op: op.name(), what })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use xway_abi::MapType;

    use super::*;

    const HASH: Subject = Subject { map_type: MapType::Hash, key_size: 8, entries: 100 };
    const LRU: Subject = Subject { map_type: MapType::LruHash, key_size: 8, entries: 100 };

    /// A side that holds what it is told.
    struct Told(HashMap<Vec<u8>, u64>);

    impl Side for Told {
        fn name(&self) -> &'static str {
            "told"
        }
        fn pass(&mut self, _: Op, _: &Keys, _: u64) -> Result<Pass, MapError> {
            Err(MapError::Thread)
        }
        fn get(&self, key: &[u8]) -> Result<Option<Vec<u64>>, MapError> {
            Ok(self.0.get(key).map(|value| vec![*value, *value]))
        }
        fn elements(&self) -> Result<usize, MapError> {
            Ok(self.0.len())
        }
    }

    /// The first `count` keys with the values of this stamp.
    fn told(subject: &Subject, op: Op, count: usize, stamp: u64) -> (Keys, Told) {
        let keys = Keys::new(subject);
        let all = keys.of(op).chunks(keys.size).take(count).enumerate();
        let held = all.map(|(n, key)| (key.to_vec(), value(stamp, n))).collect();
        (keys, Told(held))
    }

    fn of(tried: usize, done: usize, sum: u64) -> Pass {
        Pass { ns: 1.0, tried, done, sum }
    }

    fn words(result: Result<(), MapError>) -> String {
        result.expect_err("it is noticed").to_string()
    }

    #[test]
    fn a_value_that_was_not_written_is_noticed() {
        let at = stamp(7);
        let (keys, mut side) = told(&HASH, Op::Update, 100, at);
        for op in [Op::Update, Op::Insert] {
            pass(&side, &HASH, op, &keys, at, &of(100, 100, 0)).expect("it is as it should be");
        }
        // What an earlier pass wrote, in all places and in one.
        assert_eq!(
            words(pass(&side, &HASH, Op::Update, &keys, stamp(8), &of(100, 100, 0))),
            "told, update: key 0 holds 0xf1bbcdcbfa53e0a8, 0x8ff34785799e5cbd was written"
        );
        let key = keys.bytes[8 * 41..][..8].to_vec();
        side.0.insert(key.clone(), value(at, 42));
        assert!(words(pass(&side, &HASH, Op::Insert, &keys, at, &of(100, 100, 0))).contains("key 41 holds "));
        side.0.remove(&key);
        assert!(
            words(pass(&side, &HASH, Op::Insert, &keys, at, &of(100, 100, 0)))
                .ends_with("insert: 99 of 100 keys are there afterwards, at least 100 should be")
        );
    }

    #[test]
    fn operations_that_fail_are_noticed() {
        let (keys, side) = told(&HASH, Op::Insert, 100, stamp(0));
        for op in [Op::Update, Op::Insert, Op::Delete, Op::Evict] {
            let wrong = words(pass(&side, &HASH, op, &keys, stamp(0), &of(100, 97, 0)));
            assert!(wrong.ends_with("3 of 100 operations failed"), "{wrong}");
        }
    }

    #[test]
    fn a_look_up_that_misses_or_reads_another_value_is_noticed() {
        let at = stamp(3);
        let (keys, side) = told(&HASH, Op::Lookup, 100, at);
        let right = sum(at, 100);
        pass(&side, &HASH, Op::Lookup, &keys, at, &of(100, 100, right)).expect("it is as it should be");
        let missed = words(pass(&side, &HASH, Op::Lookup, &keys, at, &of(100, 99, right.wrapping_sub(at))));
        assert!(missed.ends_with("look-up: 99 of 100 keys were found, 100 are there"), "{missed}");
        let other = words(pass(&side, &HASH, Op::Lookup, &keys, at, &of(100, 100, right + 1)));
        assert!(other.contains("the values that were read add up to "), "{other}");
    }

    #[test]
    fn of_an_lru_map_what_is_there_is_found_and_nothing_else() {
        let at = stamp(3);
        let (keys, side) = told(&LRU, Op::Lookup, 40, at);
        pass(&side, &LRU, Op::Lookup, &keys, at, &of(50, 40, sum(at, 40))).expect("40 are there");
        let more = words(pass(&side, &LRU, Op::Lookup, &keys, at, &of(50, 41, sum(at, 41))));
        assert!(more.ends_with("41 of 50 keys were found, 40 are there"), "{more}");
        let other = words(pass(&side, &LRU, Op::Lookup, &keys, at, &of(50, 40, sum(at, 40) ^ 8)));
        assert!(other.contains("add up to"), "{other}");
        let (keys, side) = told(&LRU, Op::Insert, 20, at);
        let few = words(pass(&side, &LRU, Op::Insert, &keys, at, &of(50, 50, 0)));
        assert!(few.ends_with("20 of 50 keys are there afterwards, at least 25 should be"), "{few}");
        let (keys, side) = told(&LRU, Op::Evict, 0, at);
        let none = words(pass(&side, &LRU, Op::Evict, &keys, at, &of(400, 400, 0)));
        assert!(none.ends_with("0 of 400 keys are there afterwards, at least 1 should be"), "{none}");
    }

    #[test]
    fn what_was_deleted_is_gone_and_nothing_else_is_left() {
        let (keys, mut side) = told(&HASH, Op::Delete, 0, stamp(0));
        pass(&side, &HASH, Op::Delete, &keys, stamp(0), &of(100, 100, 0)).expect("it is empty");
        whole(&side, &HASH, Op::Delete, 100).expect("it is empty");
        side.0.insert(keys.bytes[8 * 5..][..8].to_vec(), 1);
        assert!(
            words(pass(&side, &HASH, Op::Delete, &keys, stamp(0), &of(100, 100, 0)))
                .ends_with("delete: key 5 is still there")
        );
        assert!(words(whole(&side, &HASH, Op::Delete, 100)).ends_with("the map holds 1 elements, 0 should be there"));
    }

    #[test]
    fn a_map_has_neither_too_much_nor_too_little() {
        let (_, side) = told(&HASH, Op::Insert, 100, stamp(0));
        whole(&side, &HASH, Op::Insert, 100).expect("as many as were put in");
        assert!(words(whole(&side, &HASH, Op::Insert, 99)).ends_with("holds 100 elements, 99 should be there"));
        let (_, side) = told(&LRU, Op::Evict, 101, stamp(0));
        assert!(words(whole(&side, &LRU, Op::Evict, 400)).ends_with("holds 101 elements, 50 to 100 should be there"));
        let (_, side) = told(&LRU, Op::Evict, 3, stamp(0));
        assert!(words(whole(&side, &LRU, Op::Evict, 400)).ends_with("holds 3 elements, 50 to 100 should be there"));
    }
}
