//! Random programs over numbers alone: every instruction of the set that touches no packet, map or helper.
//!
//! A program is a row of *bodies*. A body takes nine registers and eight words of stack from its part of a map value, does
//! something random with them, and leaves all of them behind what it took. So one load into the kernel tries many programs, and
//! neither side's verifier can know the numbers in advance, except where a body asks for constants.

use xway_isa::{AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, MovExt, Operand, Reg, Size, Slot, Width};
use xway_testkit::Rng;

/// Registers that a body works on; r6 is the address of its part of the map value.
const REGS: [u8; 9] = [0, 1, 2, 3, 4, 5, 7, 8, 9];

/// Words of stack that a body works on, below the frame pointer.
const WORDS: usize = 8;

/// Bytes that a body takes, and as many that it leaves.
const SIDE: usize = 8 * (REGS.len() + WORDS);

/// Bytes of the map value for each body: behind what it takes and leaves as many words as on the stack, to work on in place.
pub const STRIDE: usize = 2 * SIDE + 8 * WORDS;

/// Bodies of one program.
pub const BODIES: usize = 32;

/// Functions of one program.
const FUNCTIONS: usize = 6;

/// Where a loop keeps its turns: behind the words of the body.
const TURNS: i16 = -8 * (WORDS as i16 + 1);

/// Which instruction leads to which body, for messages.
pub struct Made {
    /// The whole program.
    pub insns: Vec<Slot>,
    /// The first slot of each body.
    pub starts: Vec<usize>,
}

const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
    0x0123_4567_89ab_cdef,
];

/// A number: a corner of some width, one of random length, or any.
pub fn number(rng: &mut Rng) -> u64 {
    match rng.below(3) {
        0 => *rng.pick(&INTERESTING),
        1 => rng.u64() >> rng.below(64),
        _ => rng.u64(),
    }
}

/// What the bodies of a program take: the map value before a run.
pub fn input(rng: &mut Rng) -> Vec<u8> {
    (0..BODIES * STRIDE / 8).flat_map(|_| number(rng).to_ne_bytes()).collect()
}

/// A program of [`BODIES`] bodies and the functions that they call.
pub fn program(rng: &mut Rng) -> Made {
    let functions: Vec<Vec<Insn>> = (0..FUNCTIONS).map(|_| function(rng)).collect();
    let mut insns = Vec::new();
    let mut starts = Vec::new();
    let mut at = 0;
    let mut calls = Vec::new();
    for n in 0..BODIES {
        starts.push(at);
        for insn in body(rng, n) {
            if let Insn::Call(CallTarget::Local(f)) = insn {
                calls.push((insns.len(), at, f as usize));
            }
            at += insn.slots();
            insns.push(insn);
        }
    }
    insns.extend([mov(Width::W64, 0, Operand::Imm(2)), Insn::Exit]);
    at += 2;
    let mut first = Vec::new();
    for function in functions {
        first.push(at);
        at += slots(&function);
        insns.extend(function);
    }
    for (index, from, f) in calls {
        insns[index] = Insn::Call(CallTarget::Local(first[f] as i32 - from as i32 - 1));
    }
    let mut out = vec![];
    insns.iter().for_each(|i| xway_isa::encode(i, &mut out));
    Made { insns: out, starts }
}

fn body(rng: &mut Rng, n: usize) -> Vec<Insn> {
    let base = Imm64::MapIdxValue { idx: 0, off: (n * STRIDE) as u32 };
    let mut insns = vec![Insn::LoadImm64 { dst: Reg::R6, imm: base }];
    for w in 0..WORDS {
        insns.push(load(0, Reg::R6, 8 * (REGS.len() + w) as i16));
        insns.push(store(Reg::FP, -8 * (w as i16 + 1), 0));
    }
    for (i, r) in REGS.into_iter().enumerate() {
        // Constants let both verifiers and both compilers compute in advance.
        insns.push(if rng.one_in(5) {
            Insn::LoadImm64 { dst: reg(r), imm: Imm64::Value(number(rng)) }
        } else {
            load(r, Reg::R6, 8 * i as i16)
        });
    }
    if n < FUNCTIONS {
        // A function that nobody calls would be refused.
        insns.extend(call(n));
    }
    let len = 16 + rng.below(16);
    insns.extend(block(rng, len, 0, true));
    for (i, r) in REGS.into_iter().enumerate() {
        insns.push(store(Reg::R6, (SIDE + 8 * i) as i16, r));
    }
    for w in 0..WORDS {
        insns.push(load(0, Reg::FP, -8 * (w as i16 + 1)));
        insns.push(store(Reg::R6, (SIDE + 8 * (REGS.len() + w)) as i16, 0));
    }
    insns
}

/// A function of five numbers: it changes registers that its caller keeps and has a stack of its own.
fn function(rng: &mut Rng) -> Vec<Insn> {
    let mut insns = vec![];
    for w in 0..WORDS {
        insns.push(store(Reg::FP, -8 * (w as i16 + 1), 1 + (w as u8) % 5));
    }
    for (r, from) in [(0, 1), (7, 2), (8, 3), (9, 4)] {
        insns.push(mov(Width::W64, r, Operand::Reg(reg(from))));
    }
    let len = 4 + rng.below(6);
    insns.extend(block(rng, len, 2, false));
    insns.push(Insn::Exit);
    insns
}

/// About `len` instructions: straight ones, and blocks behind branches and in loops.
/// In a body, unlike in a function, r6 is the address of its part of the map value.
fn block(rng: &mut Rng, len: u64, depth: u64, in_body: bool) -> Vec<Insn> {
    let mut insns = vec![];
    let mut left = len;
    while left > 0 {
        left -= 1;
        let inner = |rng: &mut Rng| {
            let len = 1 + rng.below(4);
            block(rng, len, depth + 1, in_body)
        };
        match rng.below(24) {
            0..=2 if depth < 3 => {
                let inner = inner(rng);
                insns.push(branch(rng, slots(&inner) as i16));
                insns.extend(inner);
            }
            3 if depth < 3 => {
                // One way or the other, by a jump of either length.
                let (yes, no) = (inner(rng), inner(rng));
                insns.push(branch(rng, slots(&yes) as i16 + 1));
                insns.extend(yes);
                insns.push(Insn::Jump { off: slots(&no) as i32, long: rng.one_in(2) });
                insns.extend(no);
            }
            // Both verifiers walk loops turn by turn.
            4 if depth == 0 && rng.one_in(3) => insns.extend(turns(rng)),
            5 if in_body && depth == 0 => {
                let function = rng.index(FUNCTIONS);
                insns.extend(call(function));
            }
            6 if depth < 3 => {
                // Its limit is far away: it always falls through.
                let inner = inner(rng);
                insns.push(Insn::MayGoto { off: slots(&inner) as i16 });
                insns.extend(inner);
            }
            7..=13 => insns.push(memory(rng, in_body)),
            _ => insns.push(arithmetic(rng)),
        }
    }
    insns
}

/// A call of a function, and what it leaves without a value made anew.
fn call(function: usize) -> Vec<Insn> {
    let mut insns = vec![Insn::Call(CallTarget::Local(function as i32))];
    insns.extend((1..=5).map(|r| load(r, Reg::FP, -8 * i16::from(r))));
    insns
}

/// A loop of a few turns, counted on the stack.
fn turns(rng: &mut Rng) -> Vec<Insn> {
    let place = TURNS;
    let count = Operand::Imm(1 + rng.below(3) as i32);
    let mut insns = vec![Insn::Store { size: Size::DW, base: Reg::FP, off: place, src: count }];
    let head = insns.len();
    let len = 1 + rng.below(4);
    insns.extend(block(rng, len, 2, true));
    insns.push(load(5, Reg::FP, place));
    insns.push(Insn::Alu { width: Width::W64, op: AluOp::Sub, dst: Reg::R5, src: Operand::Imm(1) });
    insns.push(store(Reg::FP, place, 5));
    let back = -(slots(&insns[head..]) as i16 + 1);
    insns.push(Insn::Branch { width: Width::W64, cond: Cond::Ne, dst: Reg::R5, src: Operand::Imm(0), off: back });
    insns
}

fn arithmetic(rng: &mut Rng) -> Insn {
    let (width, dst, src) = (width(rng), any(rng), any(rng));
    match rng.below(8) {
        0 => Insn::Neg { width, dst },
        1 => {
            let order = *rng.pick(&[ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap]);
            Insn::Endian { order, bits: *rng.pick(&[16, 32, 64]), dst }
        }
        2 => {
            let ext = *rng.pick(&[MovExt::None, MovExt::S8, MovExt::S16, MovExt::S32]);
            let width = if ext == MovExt::S32 { Width::W64 } else { width };
            Insn::Mov { width, dst, src: Operand::Reg(src), ext }
        }
        3 if rng.one_in(4) => Insn::Mov { width, dst, src: Operand::Imm(number(rng) as i32), ext: MovExt::None },
        n => {
            let op = *rng.pick(&AluOp::ALL);
            let mut imm = number(rng) as i32;
            // The kernel refuses what is wrong at sight.
            match op {
                AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod if imm == 0 => imm = -1,
                AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => imm &= if width == Width::W32 { 31 } else { 63 },
                _ => {}
            }
            let src = if n < 5 { Operand::Imm(imm) } else { Operand::Reg(src) };
            Insn::Alu { width, op, dst, src }
        }
    }
}

/// A load, a store or an atomic operation of any size, aligned as the kernel wants it on the stack.
///
/// Atomic operations that give the old value work on the map value alone: Linux 6.18 loses track of what such an operation reads
/// from the stack, and may then remove a branch that is taken (docs/verifier-differences.md).
fn memory(rng: &mut Rng, in_body: bool) -> Insn {
    let size = *rng.pick(&[Size::B, Size::H, Size::W, Size::DW]);
    let (on_stack, in_map) = ((Reg::FP, -8 * WORDS as i16), (Reg::R6, 2 * SIDE as i16));
    let place = |rng: &mut Rng, size: Size, (base, first): (Reg, i16)| {
        let len = size.bytes() as i16;
        (base, first + rng.below(8 * WORDS as u64 / len as u64) as i16 * len)
    };
    let area = if in_body && rng.one_in(3) { in_map } else { on_stack };
    let (base, off) = place(rng, size, area);
    let (dst, src) = (any(rng), any(rng));
    match rng.below(7) {
        0 => Insn::Store { size, base, off, src: Operand::Reg(src) },
        1 => Insn::Store { size, base, off, src: Operand::Imm(number(rng) as i32) },
        2 | 3 => Insn::Load { size, signed: size != Size::DW && rng.one_in(2), dst, base, off },
        4 if rng.one_in(2) => Insn::LoadAcquire { size, dst, base, off },
        4 => Insn::StoreRelease { size, base, off, src },
        _ => {
            let size = if rng.one_in(2) { Size::W } else { Size::DW };
            let fetch = in_body && rng.one_in(2);
            let mut ops =
                vec![AtomicOp::Add { fetch }, AtomicOp::Or { fetch }, AtomicOp::And { fetch }, AtomicOp::Xor { fetch }];
            if fetch {
                ops.push(AtomicOp::Xchg);
            }
            // After one of 32 bits that exchanged, Linux 6.18 may leave the upper half of r0 as it was.
            if fetch && size == Size::DW {
                ops.push(AtomicOp::CmpXchg);
            }
            let (base, off) = place(rng, size, if fetch { in_map } else { area });
            Insn::Atomic { size, op: *rng.pick(&ops), base, off, src }
        }
    }
}

fn branch(rng: &mut Rng, off: i16) -> Insn {
    let src = if rng.one_in(2) { Operand::Imm(number(rng) as i32) } else { Operand::Reg(any(rng)) };
    Insn::Branch { width: width(rng), cond: *rng.pick(&Cond::ALL), dst: any(rng), src, off }
}

fn width(rng: &mut Rng) -> Width {
    if rng.one_in(2) { Width::W32 } else { Width::W64 }
}

fn any(rng: &mut Rng) -> Reg {
    reg(*rng.pick(&REGS))
}

fn reg(n: u8) -> Reg {
    Reg::new(n).expect("a register")
}

fn mov(width: Width, dst: u8, src: Operand) -> Insn {
    Insn::Mov { width, dst: reg(dst), src, ext: MovExt::None }
}

fn load(dst: u8, base: Reg, off: i16) -> Insn {
    Insn::Load { size: Size::DW, signed: false, dst: reg(dst), base, off }
}

fn store(base: Reg, off: i16, src: u8) -> Insn {
    Insn::Store { size: Size::DW, base, off, src: Operand::Reg(reg(src)) }
}

fn slots(insns: &[Insn]) -> usize {
    insns.iter().map(Insn::slots).sum()
}
