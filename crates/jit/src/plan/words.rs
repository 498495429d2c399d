//! `value-words`: bytes that are read one by one from a map's value are read as words.
//!
//! clang copies what is aligned to less than a word byte by byte: an Ethernet address in a tunnel's entry is six loads. A map's value begins
//! at a multiple of eight bytes, so that a word at a multiple of its size is read by the processor at one moment. That is a moment at which
//! the program might have read each of its bytes, if nothing that others can see lies between the first of them and the last: no other
//! load of shared memory, no store to it, no atomic, no call.
//!
//! ```text
//! r1 = *(u8 *)(r6 +4)                       word = *(u32 *)(r6 +4)
//! … r4 = *(u8 *)(r6 +7)            ──>      r1 = word & 255, … r4 = word >> 24
//! ```
//!
//! `lanes` then stores the bytes as they were loaded, side by side.

use xway_isa::{Reg, Size};
use xway_verifier::{Place, Region};

use super::{Kind, Op, Part, Plan};

/// Bytes in a row below which a word saves nothing: each byte has to be cut out of it.
const BYTES_MIN: usize = 4;

impl Plan {
    /// Finds such bytes in every block.
    pub fn value_words(&mut self) {
        for func in &mut self.funcs {
            let mut words = 0;
            func.blocks.iter_mut().for_each(|block| of_block(&mut block.ops, &mut words));
        }
    }
}

/// Loads of bytes from one value, with nothing between them that others can see.
struct Stretch {
    base: Reg,
    map: u32,
    /// Where the register points, counted from the start of the value.
    start: i32,
    /// Operation, and its byte of the value.
    loads: Vec<(usize, i32)>,
}

fn of_block(ops: &mut [Op], words: &mut u32) {
    let mut open: Option<Stretch> = None;
    for n in 0..ops.len() {
        let byte = byte_of_value(&ops[n].kind);
        if let Some((base, map, start, at)) = byte {
            let same = |s: &Stretch| (s.base, s.map, s.start) == (base, map, start);
            if !open.as_ref().is_some_and(same) {
                close(ops, open.take(), words);
            }
            open.get_or_insert(Stretch { base, map, start, loads: vec![] }).loads.push((n, at));
        }
        let ends = byte.is_none() && !is_private(&ops[n].kind);
        let moves = |s: &Stretch| ops[n].kind.sets(s.base);
        if ends || open.as_ref().is_some_and(moves) {
            close(ops, open.take(), words);
        }
    }
    close(ops, open, words);
}

/// Marks what can be read as words.
fn close(ops: &mut [Op], stretch: Option<Stretch>, words: &mut u32) {
    let Some(Stretch { start, mut loads, .. }) = stretch else { return };
    loads.sort_by_key(|(op, at)| (*at, *op));
    for run in loads.chunk_by(|a, b| b.1 - a.1 <= 1) {
        let (mut at, end) = (run[0].1, run[run.len() - 1].1 + 1);
        if ((end - at) as usize) < BYTES_MIN {
            continue;
        }
        while at < end {
            let fits = |size: &Size| at % size.bytes() as i32 == 0 && at + size.bytes() as i32 <= end;
            let Some(size) = [Size::DW, Size::W, Size::H].into_iter().find(fits) else {
                at += 1;
                continue;
            };
            let inside = at..at + size.bytes() as i32;
            let parts = run.iter().filter(|(_, byte)| inside.contains(byte));
            let first = parts.clone().map(|(op, _)| *op).min();
            if let Ok(off) = i16::try_from(at - start) {
                for (op, byte) in parts {
                    if let Kind::Load { part, .. } = &mut ops[*op].kind {
                        *part =
                            Some(Part { word: *words, size, off, byte: (byte - at) as u8, first: first == Some(*op) });
                    }
                }
                *words += 1;
            }
            at = inside.end;
        }
    }
}

/// The load of a byte whose place in a map's value is known: base register, map, where the register points, and the byte.
fn byte_of_value(kind: &Kind) -> Option<(Reg, u32, i32, i32)> {
    let Kind::Load { size: Size::B, signed: false, base, off, place, .. } = kind else { return None };
    let Place { region: Region::MapValue(map), off: Some(at) } = *place else { return None };
    (at >= 0).then_some((*base, map, at - i32::from(*off), at))
}

/// What nobody but this run of the program can see: registers, the packet, the stack.
fn is_private(kind: &Kind) -> bool {
    match kind {
        Kind::Alu { .. }
        | Kind::Mov { .. }
        | Kind::Neg { .. }
        | Kind::Truncate { .. }
        | Kind::Swap { .. }
        | Kind::Const { .. }
        | Kind::Map { .. }
        | Kind::Value { .. }
        | Kind::Func { .. }
        | Kind::Ctx { .. } => true,
        Kind::Load { place, .. } | Kind::Store { place, .. } => {
            matches!(place.region, Region::Packet | Region::Meta | Region::Stack | Region::OuterStack)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use xway_isa::Operand;

    use super::*;

    fn load(dst: Reg, base: Reg, off: i16) -> Kind {
        let place = Place { region: Region::MapValue(0), off: Some(off.into()) };
        Kind::Load { size: Size::B, signed: false, dst, base, off, place, part: None }
    }

    fn store(region: Region) -> Kind {
        let place = Place { region, off: Some(1) };
        Kind::Store { size: Size::B, base: Reg::R7, off: 1, src: Operand::Imm(0), place }
    }

    /// Which word each load is a part of, with the word's place; `None` where it stays as it is.
    fn words(kinds: Vec<Kind>) -> Vec<Option<(u32, i16, u8, bool)>> {
        let mut ops: Vec<Op> = kinds.into_iter().map(|kind| Op { at: 0, kind }).collect();
        of_block(&mut ops, &mut 0);
        let part = |op: &Op| match &op.kind {
            Kind::Load { part, .. } => Some(part.map(|p| (p.word, p.off, p.byte, p.first))),
            _ => None,
        };
        ops.iter().filter_map(part).collect()
    }

    fn bytes(from: i16, to: i16) -> Vec<Kind> {
        (from..to).map(|off| load(Reg::R1, Reg::R6, off)).collect()
    }

    #[test]
    fn an_address_of_six_bytes_is_two_words() {
        let mut expected: Vec<_> = (0..4).map(|n| Some((0, 4, n, n == 0))).collect();
        expected.extend([Some((1, 8, 0, true)), Some((1, 8, 1, false))]);
        assert_eq!(words(bytes(4, 10)), expected);
        // From an odd place words begin where they are aligned.
        let odd = words(bytes(3, 9));
        assert_eq!((odd[0], odd[1], odd[5]), (None, Some((0, 4, 0, true)), None));
        // Three bytes are no word.
        assert_eq!(words(bytes(4, 7)), [None; 3]);
    }

    #[test]
    fn what_others_can_see_ends_a_word() {
        let between = |kind: Kind| {
            let mut all = bytes(0, 4);
            all.insert(2, kind);
            words(all).iter().all(Option::is_some)
        };
        assert!(between(Kind::Const { dst: Reg::R2, value: 0 }));
        assert!(between(store(Region::Packet)) && between(store(Region::Stack)));
        assert!(!between(store(Region::MapValue(0))) && !between(store(Region::MapValue(1))));
        // The register points elsewhere.
        assert!(!between(Kind::Const { dst: Reg::R6, value: 0 }));
        // Another value, and a whole word of the same.
        let other = |map, size| {
            let place = Place { region: Region::MapValue(map), off: Some(0) };
            Kind::Load { size, signed: false, dst: Reg::R2, base: Reg::R8, off: 0, place, part: None }
        };
        for size in [Size::B, Size::W] {
            let mut all = bytes(0, 4);
            all.insert(2, other(1, size));
            assert_eq!(words(all), [None; 5], "{size:?}");
        }
        // The last load may take the register for its result.
        let mut all = bytes(0, 3);
        all.push(load(Reg::R6, Reg::R6, 3));
        assert!(words(all).iter().all(Option::is_some));
    }
}
