//! Slots → instructions → slots and slots → text → slots lose nothing.

mod common;

use proptest::prelude::*;
use xway_isa::{Insn, NoNames, Slot, assemble, decode, decode_at, encode, listing};

fn encoded(insns: &[Insn]) -> Vec<Slot> {
    let mut slots = Vec::new();
    insns.iter().for_each(|i| encode(i, &mut slots));
    slots
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn an_instruction_survives_encoding(insns in prop::collection::vec(common::insn(), 1..20)) {
        let slots = encoded(&insns);
        let back: Vec<Insn> = decode(&slots).unwrap().into_iter().flatten().collect();
        prop_assert_eq!(back, insns);
    }

    #[test]
    fn text_assembles_to_the_same_slots(insns in prop::collection::vec(common::insn(), 1..20)) {
        let slots = encoded(&insns);
        let text = listing(&slots, &NoNames).unwrap();
        let back = assemble(&text);
        prop_assert!(back.is_ok(), "{}\n{text}", back.unwrap_err());
        prop_assert_eq!(back.unwrap(), slots, "{}", text);
    }

    #[test]
    fn decoding_random_bytes_never_panics_and_never_invents(a in any::<[u8; 8]>(), b in any::<[u8; 8]>()) {
        let slots = [Slot::from_bytes(a), Slot::from_bytes(b)];
        if let Ok(insn) = decode_at(&slots, 0) {
            let again = encoded(&[insn]);
            prop_assert_eq!(&again[..], &slots[..insn.slots()]);
        }
    }

    #[test]
    fn the_assembler_survives_any_text(text in "[ -~\n]{0,200}") {
        let _ = assemble(&text);
    }

    #[test]
    fn the_assembler_survives_likely_text(words in prop::collection::vec(
        proptest::sample::select(vec![
            "r0", "w1", "r10", "=", "+=", "-", "*", "(u32 *)", "(r1 +0)", "if", "goto", "pc+1", "x:", "x", "call", "#1", "[", "]",
            "map", "lock", "atomic_xchg", ",", "0xffffffff", "-1", "ll", "exit", "\n", "99999999999999999999", "kfunc", "skb", "(s8)",
        ]), 0..30))
    {
        let _ = assemble(&words.join(" "));
    }
}

/// Every opcode, with field values around every legal one: what decodes must encode to itself, and its text must too.
#[test]
fn all_opcodes_around_their_legal_fields() {
    let offs = [0, 1, 2, 8, 16, 32, -1, i16::MIN];
    let imms = [0, 1, 16, 32, 64, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe0, 0xe1, 0xf1, 0x100, 0x110, -1, i32::MIN];
    let seconds = [Slot::default(), Slot { imm: 7, ..Slot::default() }];
    let mut valid = 0;
    for opcode in 0..=255 {
        for (dst, src) in
            [(0, 0), (1, 0), (0, 1), (3, 2), (2, 3), (1, 4), (1, 5), (1, 6), (1, 7), (10, 10), (11, 0), (0, 15)]
        {
            for (off, imm) in offs.iter().flat_map(|o| imms.map(|i| (*o, i))) {
                for second in seconds {
                    let slots = [Slot { opcode, dst, src, off, imm }, second];
                    let Ok(insn) = decode_at(&slots, 0) else { continue };
                    assert_eq!(encoded(&[insn]), slots[..insn.slots()], "{insn:?}");
                    assert_eq!(assemble(&insn.to_string()).unwrap(), slots[..insn.slots()], "{insn}");
                    valid += 1;
                }
            }
        }
    }
    assert!(valid > 10_000, "only {valid} combinations were valid");
}
