//! Our reading and our text of instructions against those of the running kernel, for the same slots.

use std::borrow::Cow;

use xway_isa::{CallTarget, Imm64, Insn, Names, Slot, assemble, decode_at, encode, op, with_names};
use xway_kernel::{KernelProg, ProgSpec};
use xway_testkit::{Needs, Rng};

struct LinuxHelpers;

impl Names for LinuxHelpers {
    fn helper(&self, id: u32) -> Option<Cow<'_, str>> {
        xway_abi::helper(id).map(|h| h.name.into())
    }
}

/// Eleven instructions that give every register a value that most instructions may work on; the last one also
/// leads around the instruction in question, so that the end of the program can always be reached.
const PROLOGUE: &str = "r6 = r1\nr0 = 0\nr1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\nr7 = 7\nr8 = 8\nr9 = 9\n";

/// The kernel's text of `insn`: what its log shows for slot 11, accepted or not.
fn kernel_text(insn: &Insn) -> Option<String> {
    let around = format!("{PROLOGUE}if r7 == 0 goto pc+{}", insn.slots());
    let mut slots = assemble(&around).expect("prologue");
    encode(insn, &mut slots);
    slots.extend(assemble("r0 = 2\nexit").expect("end"));
    let spec = ProgSpec { log_level: 2, ..ProgSpec::xdp("text", &slots) };
    let log = match KernelProg::load(&spec) {
        Ok(prog) => prog.log().to_owned(),
        Err(e) => e.log().to_owned(),
    };
    let line = log.lines().find_map(|l| l.strip_prefix("11: "))?;
    // Behind the instruction stands what the verifier knows.
    let text = line.split(" ;").next().unwrap_or(line);
    Some(text.trim_end().to_owned())
}

/// Random bits around an opcode, jumps going to the next slot, so that the kernel's first passes let them through.
fn candidate(rng: &mut Rng, opcode: u8) -> Option<Insn> {
    let word = rng.u64().to_le_bytes();
    let mut slot = Slot::from_bytes(word);
    (slot.opcode, slot.dst, slot.src) = (opcode, slot.dst % 10, slot.src % 10);
    // Small values and the modifiers of operations, often.
    if rng.below(2) == 0 {
        slot.imm = *rng.pick(&[0, 1, 16, 32, 64, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1, 0x100, 0x110, 12, -1]);
    }
    if rng.below(2) == 0 {
        slot.off = *rng.pick(&[0, 0, 0, 1, 8, 16, 32]);
    }
    if rng.below(2) == 0 {
        slot.src = 0;
    }
    if rng.below(4) == 0 {
        slot.dst = 0;
    }
    let second = Slot { imm: rng.u64() as i32, ..Slot::default() };
    let mut insn = decode_at(&[slot, second], 0).ok()?;
    match &mut insn {
        Insn::Jump { off, .. } => *off = 0,
        Insn::Branch { off, .. } | Insn::MayGoto { off } => *off = 0,
        Insn::Call(CallTarget::Helper(id)) => *id = 1 + *id % xway_abi::HELPER_MAX,
        // The kernel prints these as it finds them in its own tables, and needs them to exist.
        Insn::Call(_) | Insn::AddrSpaceCast { .. } => return None,
        Insn::LoadImm64 { imm, .. } if !matches!(imm, Imm64::Value(_)) => return None,
        _ => {}
    }
    Some(insn)
}

#[test]
fn our_text_is_the_kernels() {
    if !Needs::of("our_text_is_the_kernels").root().kernel(6, 18).met() {
        return;
    }
    let mut rng = Rng::new(0x7e47);
    let mut opcodes = 0;
    for opcode in 0..=255 {
        let candidates: Vec<Insn> = (0..2000).filter_map(|_| candidate(&mut rng, opcode)).take(25).collect();
        opcodes += u32::from(!candidates.is_empty());
        for insn in candidates {
            let ours = format!("({opcode:02x}) {}", with_names(&insn, &LinuxHelpers));
            let theirs = kernel_text(&insn).unwrap_or_else(|| panic!("the kernel does not show {ours}"));
            assert_eq!(ours, theirs, "{insn:?}");
        }
    }
    // Every opcode of RFC 9669 and Linux's additions.
    assert_eq!(opcodes, 128);
}

/// What the kernel says about slots that are no instruction.
const MALFORMED: [&str; 6] = [
    "unknown opcode",
    "reserved fields",
    "is invalid",
    "invalid bpf_ld_imm64 insn",
    "unrecognized bpf_ld_imm64 insn",
    "BPF_ATOMIC uses invalid atomic opcode",
];

/// A slot around an opcode, its fields often near those that mean something.
fn any_slot(rng: &mut Rng, opcode: u8) -> Slot {
    let mut slot = Slot::from_bytes(rng.u64().to_le_bytes());
    slot.opcode = opcode;
    if !rng.one_in(4) {
        (slot.dst, slot.src) = (slot.dst % 11, slot.src % 11);
    }
    if !rng.one_in(3) {
        slot.imm = *rng.pick(&[0, 0, 1, 16, 32, 64, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1, 0x100, 0x110, -1]);
    }
    let is_jump = matches!(opcode & op::CLASS_MASK, op::JMP | op::JMP32);
    if is_jump {
        slot.off = 0;
    } else if !rng.one_in(4) {
        slot.off = *rng.pick(&[0, 0, 0, 1, 8, 16, 32]);
    }
    if rng.one_in(2) {
        slot.src = *rng.pick(&[0, 0, 1, 2]);
    }
    if rng.one_in(2) {
        slot.dst = 0;
    }
    slot
}

#[test]
fn slots_without_a_meaning_are_those_that_the_kernel_refuses() {
    if !Needs::of("slots_without_a_meaning_are_those_that_the_kernel_refuses").root().kernel(6, 18).met() {
        return;
    }
    let mut rng = Rng::new(0xdec0de);
    let (mut meaningless, mut meaningful) = (0, 0);
    for opcode in (0..=255).flat_map(|o| [o; 60]) {
        let slot = any_slot(&mut rng, opcode);
        let second = Slot { imm: *rng.pick(&[0, 5]), ..Slot::default() };
        let this = if slot.is_wide() { vec![slot, second] } else { vec![slot] };
        let mut slots = assemble(&format!("{PROLOGUE}if r7 == 0 goto pc+{}", this.len())).expect("prologue");
        slots.extend(&this);
        slots.extend(assemble("r0 = 2\nexit").expect("end"));
        let answer = KernelProg::load(&ProgSpec::xdp("text", &slots));
        match decode_at(&this, 0) {
            Ok(insn) => {
                meaningful += 1;
                let log = answer.err().map(|e| e.log().to_owned()).unwrap_or_default();
                assert!(!MALFORMED.iter().any(|m| log.contains(m)), "{insn} ({slot:?}): {log}");
            }
            Err(e) => {
                meaningless += 1;
                assert!(answer.is_err(), "the kernel accepts it: {e} ({slot:?})");
            }
        }
    }
    assert!(meaningless > 5000 && meaningful > 800, "{meaningless} {meaningful}");
}
