//! Classic BPF to eBPF.
//!
//! | eBPF | holds |
//! |---|---|
//! | r6 | the context |
//! | r7 | A |
//! | r8 | X |
//! | r9 | the packet's start |
//! | r5 | the packet's end; made again behind a call |
//! | r1 to r3 | for one instruction |
//! | stack, 64 bytes | memory words 0 to 15 |
//!
//! Where a load is outside the packet the program ends on the spot: no jump of the result is longer than those of its source,
//! times the longest translation of one instruction, which fits 16 bits for conditional jumps; others have 32.

use xway_isa::{AluOp, ByteOrder, CallTarget, Cond, Insn, MovExt, Operand, Reg, Size, Slot, Width, encode};

use crate::classic::{Alu, CheckError, Classic, From, Len, MEMORY, Op, Test, ops};

const CTX: Reg = Reg::R6;
const A: Reg = Reg::R7;
const X: Reg = Reg::R8;
const DATA: Reg = Reg::R9;
const END: Reg = Reg::R5;
/// Furthest byte of a packet that a program can prove to be there.
const OFFSET_MAX: u32 = 0xffff;
/// Offset of `data_end` in `struct xdp_md`; `data` is at 0.
const MD_DATA_END: i16 = 4;
/// `bpf_xdp_get_buff_len`: the length of all buffers.
const GET_BUFF_LEN: u32 = 188;

/// Makes an XDP program that returns what the filter returns: 0 for packets that do not match.
///
/// # Errors
/// As [`crate::check`].
pub fn translate(program: &[Classic]) -> Result<Vec<Slot>, CheckError> {
    let ops: Vec<Op> = ops(program)?.into_iter().map(bounded).collect();
    let reached = reached(&ops);
    let mut code = Code::default();
    code.prologue(&ops);
    let mut starts = Vec::with_capacity(ops.len());
    for (at, op) in ops.iter().enumerate() {
        starts.push(code.slots.len());
        if reached[at] {
            code.op(at, *op);
        }
    }
    code.link(&starts);
    Ok(code.slots)
}

/// A load that is outside every packet ends the program.
fn bounded(op: Op) -> Op {
    let (k, bytes) = match op {
        Op::Packet { len, indexed: false, k } => (k, size(len).1),
        Op::HeaderLen(k) => (k, 1),
        _ => return op,
    };
    if k + bytes > OFFSET_MAX { Op::Return(0) } else { op }
}

/// Which instructions some path comes to: eBPF has no others. Jumps go forward, so one walk is enough.
fn reached(ops: &[Op]) -> Vec<bool> {
    let mut reached = vec![false; ops.len()];
    reached[0] = true;
    for (at, op) in ops.iter().enumerate() {
        let next: &[usize] = match op {
            _ if !reached[at] => &[],
            Op::Return(_) | Op::ReturnA => &[],
            Op::Jump(skip) => &[*skip as usize],
            Op::If(_, _, jt, jf) => &[*jt as usize, *jf as usize],
            _ => &[0],
        };
        next.iter().for_each(|skip| reached[at + 1 + skip] = true);
    }
    reached
}

#[derive(Default)]
struct Code {
    slots: Vec<Slot>,
    /// Jumps to an instruction of the source: where they stand, and to which.
    jumps: Vec<(usize, usize)>,
}

impl Code {
    fn emit(&mut self, insn: Insn) {
        encode(&insn, &mut self.slots);
    }

    fn mov(&mut self, dst: Reg, src: Operand, width: Width) {
        self.emit(Insn::Mov { width, dst, src, ext: MovExt::None });
    }

    fn alu(&mut self, op: AluOp, dst: Reg, src: Operand, width: Width) {
        self.emit(Insn::Alu { width, op, dst, src });
    }

    fn load(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        self.emit(Insn::Load { size, signed: false, dst, base, off });
    }

    fn branch(&mut self, cond: Cond, dst: Reg, src: Operand, width: Width, off: i16) {
        self.emit(Insn::Branch { width, cond, dst, src, off });
    }

    fn end(&mut self) {
        self.emit(Insn::Exit);
    }

    /// Ends with 0 unless the comparison holds.
    fn unless(&mut self, cond: Cond, dst: Reg, src: Operand, width: Width) {
        self.branch(cond, dst, src, width, 2);
        self.mov(Reg::R0, Operand::Imm(0), Width::W32);
        self.end();
    }

    fn jump(&mut self, to: usize) {
        self.jumps.push((self.slots.len(), to));
        self.emit(Insn::Jump { off: 0, long: true });
    }

    fn prologue(&mut self, ops: &[Op]) {
        self.mov(CTX, Operand::Reg(Reg::R1), Width::W64);
        self.load(Size::W, DATA, CTX, 0);
        self.load(Size::W, END, CTX, MD_DATA_END);
        self.mov(A, Operand::Imm(0), Width::W32);
        self.mov(X, Operand::Imm(0), Width::W32);
        for word in 0..MEMORY {
            if ops.iter().any(|op| matches!(op, Op::Recall(k) | Op::RecallIndex(k) if *k == word)) {
                self.emit(Insn::Store { size: Size::W, base: Reg::FP, off: slot(word), src: Operand::Imm(0) });
            }
        }
    }

    /// Number `k` of the packet to `dst`.
    fn packet(&mut self, dst: Reg, len: Len, k: u32) {
        let (size, bytes) = size(len);
        self.mov(Reg::R1, Operand::Reg(DATA), Width::W64);
        self.alu(AluOp::Add, Reg::R1, Operand::Imm((k + bytes) as i32), Width::W64);
        self.unless(Cond::Le, Reg::R1, Operand::Reg(END), Width::W64);
        self.load(size, dst, Reg::R1, -(bytes as i16));
        self.order(dst, len);
    }

    /// The same at X + `k`. The sum has 32 bits; what is negative is outside.
    fn packet_at(&mut self, len: Len, k: u32) {
        let (size, bytes) = size(len);
        self.mov(Reg::R2, Operand::Reg(X), Width::W32);
        self.alu(AluOp::Add, Reg::R2, Operand::Imm(k as i32), Width::W32);
        self.unless(Cond::Le, Reg::R2, Operand::Imm((OFFSET_MAX - bytes) as i32), Width::W64);
        self.mov(Reg::R1, Operand::Reg(DATA), Width::W64);
        self.alu(AluOp::Add, Reg::R1, Operand::Reg(Reg::R2), Width::W64);
        self.mov(Reg::R3, Operand::Reg(Reg::R1), Width::W64);
        self.alu(AluOp::Add, Reg::R3, Operand::Imm(bytes as i32), Width::W64);
        self.unless(Cond::Le, Reg::R3, Operand::Reg(END), Width::W64);
        self.load(size, A, Reg::R1, 0);
        self.order(A, len);
    }

    fn order(&mut self, dst: Reg, len: Len) {
        let bits = match len {
            Len::Byte => return,
            Len::Half => 16,
            Len::Word => 32,
        };
        self.emit(Insn::Endian { order: ByteOrder::ToBe, bits, dst });
    }

    fn packet_len(&mut self, dst: Reg) {
        self.mov(Reg::R1, Operand::Reg(CTX), Width::W64);
        self.emit(Insn::Call(CallTarget::Helper(GET_BUFF_LEN)));
        self.mov(dst, Operand::Reg(Reg::R0), Width::W32);
        self.load(Size::W, END, CTX, MD_DATA_END);
    }

    fn op(&mut self, at: usize, op: Op) {
        match op {
            Op::Packet { len, indexed: false, k } => self.packet(A, len, k),
            Op::Packet { len, indexed: true, k } => self.packet_at(len, k),
            Op::HeaderLen(k) => {
                self.packet(X, Len::Byte, k);
                self.alu(AluOp::And, X, Operand::Imm(15), Width::W32);
                self.alu(AluOp::Lsh, X, Operand::Imm(2), Width::W32);
            }
            Op::LoadLen => self.packet_len(A),
            Op::IndexLen => self.packet_len(X),
            Op::Load(k) => self.mov(A, Operand::Imm(k as i32), Width::W32),
            Op::Index(k) => self.mov(X, Operand::Imm(k as i32), Width::W32),
            Op::Recall(k) => self.load(Size::W, A, Reg::FP, slot(k)),
            Op::RecallIndex(k) => self.load(Size::W, X, Reg::FP, slot(k)),
            Op::Store(k) => self.store(k, A),
            Op::StoreIndex(k) => self.store(k, X),
            Op::Alu(alu, from) => {
                if let (Alu::Div | Alu::Mod, From::X) = (alu, from) {
                    self.unless(Cond::Ne, X, Operand::Imm(0), Width::W32);
                }
                self.alu(operation(alu), A, operand(from), Width::W32);
            }
            Op::Neg => self.emit(Insn::Neg { width: Width::W32, dst: A }),
            Op::Jump(skip) => self.jump(at + 1 + skip as usize),
            Op::If(test, from, jt, jf) => self.branches(at, test, from, jt, jf),
            Op::Return(k) => {
                self.mov(Reg::R0, Operand::Imm(k as i32), Width::W32);
                self.end();
            }
            Op::ReturnA => {
                self.mov(Reg::R0, Operand::Reg(A), Width::W32);
                self.end();
            }
            Op::ToIndex => self.mov(X, Operand::Reg(A), Width::W32),
            Op::FromIndex => self.mov(A, Operand::Reg(X), Width::W32),
        }
    }

    fn branches(&mut self, at: usize, test: Test, from: From, jt: u8, jf: u8) {
        let cond = match test {
            Test::Eq => Cond::Eq,
            Test::Gt => Cond::Gt,
            Test::Ge => Cond::Ge,
            Test::Set => Cond::Set,
        };
        if jt != jf {
            self.jumps.push((self.slots.len(), at + 1 + jt as usize));
            self.branch(cond, A, operand(from), Width::W32, 0);
        }
        if jf > 0 {
            self.jump(at + 1 + jf as usize);
        }
    }

    fn store(&mut self, word: u32, src: Reg) {
        self.emit(Insn::Store { size: Size::W, base: Reg::FP, off: slot(word), src: Operand::Reg(src) });
    }

    /// Jumps get their distances.
    fn link(&mut self, starts: &[usize]) {
        for (at, to) in std::mem::take(&mut self.jumps) {
            let distance = starts[to] - at - 1;
            let slot = &mut self.slots[at];
            match i16::try_from(distance) {
                // A short one is what every reader of eBPF knows.
                Ok(off) if slot.opcode == GOTOL => *slot = Slot { opcode: GOTO, off, ..Slot::default() },
                Ok(off) => slot.off = off,
                // Only unconditional ones can be that long.
                Err(_) => slot.imm = distance as i32,
            }
        }
    }
}

/// `BPF_JMP | BPF_JA` and `BPF_JMP32 | BPF_JA`.
const GOTO: u8 = 0x05;
const GOTOL: u8 = 0x06;

/// Where a memory word lies on the stack.
const fn slot(word: u32) -> i16 {
    word as i16 * 4 - 4 * MEMORY as i16
}

const fn size(len: Len) -> (Size, u32) {
    match len {
        Len::Byte => (Size::B, 1),
        Len::Half => (Size::H, 2),
        Len::Word => (Size::W, 4),
    }
}

const fn operand(from: From) -> Operand {
    match from {
        From::K(k) => Operand::Imm(k as i32),
        From::X => Operand::Reg(X),
    }
}

const fn operation(alu: Alu) -> AluOp {
    match alu {
        Alu::Add => AluOp::Add,
        Alu::Sub => AluOp::Sub,
        Alu::Mul => AluOp::Mul,
        Alu::Div => AluOp::Div,
        Alu::Or => AluOp::Or,
        Alu::And => AluOp::And,
        Alu::Lsh => AluOp::Lsh,
        Alu::Rsh => AluOp::Rsh,
        Alu::Mod => AluOp::Mod,
        Alu::Xor => AluOp::Xor,
    }
}
