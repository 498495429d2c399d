//! Slots that are no instruction: where no path comes Linux does not mind most of them.

use xway_isa::{Slot, op};
use xway_kernel::{KernelProg, ProgSpec};
use xway_object::Program;
use xway_testkit::Needs;
use xway_verifier::{Config, MapsView, verify};

const fn slot(opcode: u8, dst: u8, src: u8, off: i16, imm: i32) -> Slot {
    Slot { opcode, dst, src, off, imm }
}

const PASS: Slot = slot(0xb7, 0, 0, 0, 2);
const EXIT: Slot = slot(op::EXIT, 0, 0, 0, 0);

/// r0 = 2; if r0 == 2 goto out; SLOT; out: exit
fn dead(bad: Slot) -> Vec<Slot> {
    vec![PASS, slot(0x15, 0, 0, 1, 2), bad, EXIT]
}

#[test]
fn wrong_fields_matter_where_execution_comes() {
    let asked =
        Needs::of("testkit::verifier_types::wrong_fields_matter_where_execution_comes").root().kernel(6, 18).met();
    let rows = [
        ("an addition with an offset", slot(0x07, 0, 0, 7, 1), true),
        ("a register that does not exist", slot(0x07, 13, 0, 0, 1), true),
        ("a source register beside an immediate", slot(0xb7, 0, 3, 0, 1), true),
        ("an unknown move", slot(0xbf, 0, 1, 9, 0), true),
        ("a byte swap of 17 bits", slot(0xdc, 0, 0, 0, 17), true),
        ("a store with both sources", slot(0x62, 10, 4, -8, 1), true),
        ("an unknown atomic", slot(0xdb, 10, 1, -8, 0x33), true),
        ("a jump with a source beside an immediate", slot(0x15, 0, 2, 0, 1), true),
        ("a division by zero", slot(0x37, 0, 0, 0, 0), true),
        ("a shift too far", slot(0x67, 0, 0, 0, 64), true),
        ("a cast of addresses without an arena", slot(0xbf, 0, 1, 1, 1), true),
        ("a cast between spaces that do not exist", slot(0xbf, 0, 1, 1, 7), true),
        ("an unknown opcode", slot(0xff, 0, 0, 0, 0), false),
        ("a load with an immediate", slot(0x61, 0, 1, 0, 3), false),
        ("half of a 64-bit immediate", slot(op::LD_IMM64, 0, 0, 0, 1), false),
    ];
    let mut wrong = Vec::new();
    for (name, bad, fine_when_dead) in rows {
        for (how, insns, want) in [("dead", dead(bad), fine_when_dead), ("live", vec![PASS, bad, EXIT], false)] {
            let program = Program { insns: insns.clone(), ..Program::default() };
            let ours = verify(&program, &MapsView::empty(), &Config::default());
            let theirs = asked.then(|| KernelProg::load(&ProgSpec::xdp("dead", &insns)).is_ok());
            if ours.is_ok() != want || theirs.is_some_and(|t| t != want) {
                wrong.push(format!("{how}: {name}: wanted {want}, ours {}, Linux {theirs:?}", ours.is_ok()));
            }
            // What runs holds no such slot.
            if let Ok(proof) = ours {
                assert!(xway_isa::decode(proof.insns()).is_ok(), "{name}");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Opcodes that do not exist are refused wherever they stand; those that do are not, in dead code.
#[test]
fn every_opcode_in_dead_code() {
    let asked = Needs::of("testkit::verifier_types::every_opcode_in_dead_code").root().kernel(6, 18).met();
    let mut wrong = Vec::new();
    let mut refused = 0;
    for opcode in 0..=255u8 {
        // Calls and halves of instructions are tested elsewhere; packet loads of classic BPF are refused by name wherever they stand.
        if matches!(opcode, op::CALL | op::LD_IMM64 | 0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50) {
            continue;
        }
        let insns = dead(slot(opcode, 0, 0, 0, 0));
        let program = Program { insns: insns.clone(), ..Program::default() };
        let ours = verify(&program, &MapsView::empty(), &Config::default());
        refused += u32::from(ours.is_err());
        let theirs = asked.then(|| KernelProg::load(&ProgSpec::xdp("dead", &insns)).map_err(|e| e.log().to_owned()));
        if let Some(theirs) = theirs
            && theirs.is_ok() != ours.is_ok()
        {
            wrong.push(format!(
                "{opcode:#04x}: ours {:?}, Linux {theirs:?}",
                ours.map(|_| ()).map_err(|e| e.to_string())
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 100, "{refused}");
}

#[test]
fn the_offset_of_a_64_bit_immediate_matters_where_execution_comes() {
    let wide = [slot(op::LD_IMM64, 0, 0, 5, 1), slot(0, 0, 0, 0, 0)];
    let asked = Needs::of("testkit::verifier_types::the_offset_of_a_64_bit_immediate_matters_where_execution_comes");
    let asked = asked.root().kernel(6, 18).met();
    let dead = [&[PASS, slot(0x15, 0, 0, 2, 2)], &wide[..], &[EXIT]].concat();
    for (insns, want) in [(dead, true), ([&wide[..], &[PASS, EXIT]].concat(), false)] {
        let program = Program { insns: insns.clone(), ..Program::default() };
        let ours = verify(&program, &MapsView::empty(), &Config::default());
        assert_eq!(ours.is_ok(), want);
        assert!(ours.is_ok_and(|p| xway_isa::decode(p.insns()).is_ok()) == want);
        assert!(!asked || KernelProg::load(&ProgSpec::xdp("dead", &insns)).is_ok() == want);
    }
}

/// Linux writes the function's address over both halves; found by the fuzzer against it.
#[test]
fn the_upper_half_of_an_address_of_a_function_is_not_looked_at() {
    // r2 = the callback, with 7 above it; r1 = 0 turns; bpf_loop; r0 = 2; exit; the callback: r0 = 0; exit
    let number = |dst, imm| slot(0xb7, dst, 0, 0, imm);
    let insns = vec![
        number(1, 0),
        slot(op::LD_IMM64, 2, 4, 0, 6),
        slot(0, 0, 0, 0, 7),
        number(3, 0),
        number(4, 0),
        slot(op::CALL, 0, 0, 0, 181),
        PASS,
        EXIT,
        number(0, 0),
        EXIT,
    ];
    let program = Program { insns: insns.clone(), ..Program::default() };
    let proof = verify(&program, &MapsView::empty(), &Config::default()).expect("accepted");
    assert_eq!(proof.insns()[2].imm, 0);
}

#[test]
fn the_offset_of_an_exit_is_not_looked_at() {
    let insns = [PASS, slot(op::EXIT, 0, 0, 77, 0)];
    let program = Program { insns: insns.to_vec(), ..Program::default() };
    let proof = verify(&program, &MapsView::empty(), &Config::default()).expect("accepted");
    assert_eq!(proof.insns()[1], EXIT);
    if Needs::of("testkit::verifier_types::the_offset_of_an_exit_is_not_looked_at").root().kernel(6, 18).met() {
        KernelProg::load(&ProgSpec::xdp("exit", &insns)).expect("Linux accepts it");
    }
}
