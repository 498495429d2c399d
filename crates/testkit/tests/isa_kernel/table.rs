//! Every instruction once, by hand: `instructions.txt`.

use std::collections::BTreeSet;

use xway_isa::{AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, MovExt, Operand, Reg, Size, Slot, Width};
use xway_testkit::Needs;

use super::machines::Machines;
use super::named::both;

/// Programs and the r0 that they must leave.
fn vectors() -> Vec<(String, u64)> {
    let lines = include_str!("instructions.txt").lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|line| {
            let (text, r0) = line.split_once(" -> 0x").unwrap_or_else(|| panic!("no result: {line}"));
            (text.replace("; ", "\n"), u64::from_str_radix(r0, 16).unwrap_or_else(|e| panic!("{line}: {e}")))
        })
        .collect()
}

fn assembled(text: &str) -> Vec<Slot> {
    xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn every_vector_gives_its_result_everywhere() {
    let kernel = Needs::of("testkit::isa_kernel::every_vector_gives_its_result_everywhere, the kernel's side");
    let kernel = kernel.root().kernel(6, 15).met();
    let mut ran = 0;
    for (text, r0) in vectors() {
        // A verdict has 32 bits: the upper half in a run of its own, behind the first function's last instruction but one.
        let high = format!("call main\nr0 >>= 32\nexit\nmain:\n{text}");
        for (text, want) in [(text.as_str(), r0 as u32), (high.as_str(), (r0 >> 32) as u32)] {
            let object = Machines::object(assembled(text), vec![]);
            let mut machines = Machines::new(object, kernel, &both()).unwrap_or_else(|e| panic!("{e}\n{text}"));
            for (who, left) in machines.run(&[]).unwrap_or_else(|e| panic!("{e}\n{text}")) {
                assert_eq!(left.ret, want, "{who}, {want:#x} expected\n{text}");
            }
        }
        ran += 1;
    }
    assert!(ran > 300, "{ran}");
}

/// What tells one instruction from another: the opcode, and the fields that widen it.
fn key(slot: &Slot) -> (u8, u8, i16, i32) {
    let (class, code) = (slot.opcode & 7, slot.opcode);
    let alu = class == 4 || class == 7;
    // Signed division and moves are told by the offset; byte orders by the immediate; calls and 64-bit immediates by the source.
    let off = if alu { slot.off } else { 0 };
    let endian = alu && code & 0xf0 == 0xd0;
    let atomic = class == 3 && code & 0xe0 == 0xc0;
    let imm = if endian || atomic { slot.imm } else { 0 };
    let src = if code == 0x85 || code == 0x18 { slot.src } else { 0 };
    (code, src, off, imm)
}

/// The instruction set without what needs maps, the context or a kernel.
fn every() -> Vec<Insn> {
    let (dst, src, base, off) = (Reg::R1, Reg::R2, Reg::FP, -8);
    let operands = [Operand::Imm(1), Operand::Reg(src)];
    let mut all = vec![
        Insn::Jump { off: 0, long: false },
        Insn::Jump { off: 0, long: true },
        Insn::MayGoto { off: 0 },
        Insn::Call(CallTarget::Local(0)),
        Insn::Exit,
        Insn::LoadImm64 { dst, imm: Imm64::Value(0) },
    ];
    for width in [Width::W32, Width::W64] {
        all.push(Insn::Neg { width, dst });
        for operand in operands {
            all.extend(AluOp::ALL.map(|op| Insn::Alu { width, op, dst, src: operand }));
            all.extend(Cond::ALL.map(|cond| Insn::Branch { width, cond, dst, src: operand, off: 0 }));
            all.push(Insn::Mov { width, dst, src: operand, ext: MovExt::None });
        }
        all.extend([MovExt::S8, MovExt::S16].map(|ext| Insn::Mov { width, dst, src: Operand::Reg(src), ext }));
    }
    all.push(Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src), ext: MovExt::S32 });
    for order in [ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap] {
        all.extend([16, 32, 64].map(|bits| Insn::Endian { order, bits, dst }));
    }
    for size in [Size::B, Size::H, Size::W, Size::DW] {
        all.push(Insn::Load { size, signed: false, dst, base, off });
        all.extend((size != Size::DW).then_some(Insn::Load { size, signed: true, dst, base, off }));
        all.extend(operands.map(|src| Insn::Store { size, base, off, src }));
        all.push(Insn::LoadAcquire { size, dst, base, off });
        all.push(Insn::StoreRelease { size, base, off, src });
    }
    for size in [Size::W, Size::DW] {
        for fetch in [false, true] {
            let ops =
                [AtomicOp::Add { fetch }, AtomicOp::Or { fetch }, AtomicOp::And { fetch }, AtomicOp::Xor { fetch }];
            all.extend(ops.map(|op| Insn::Atomic { size, op, base, off, src }));
        }
        all.extend([AtomicOp::Xchg, AtomicOp::CmpXchg].map(|op| Insn::Atomic { size, op, base, off, src }));
    }
    all
}

#[test]
fn no_instruction_is_left_out() {
    let mut there = BTreeSet::new();
    for (text, _) in vectors() {
        let mut slots = assembled(&text).into_iter();
        while let Some(slot) = slots.next() {
            there.insert(key(&slot));
            if slot.opcode == 0x18 {
                slots.next();
            }
        }
    }
    let missing: Vec<Insn> = every()
        .into_iter()
        .filter(|insn| {
            let mut slots = vec![];
            xway_isa::encode(insn, &mut slots);
            !there.contains(&key(&slots[0]))
        })
        .collect();
    assert!(missing.is_empty(), "no vector for {missing:?}");
}
