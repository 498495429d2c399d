//! Classic BPF: the instructions of `linux/filter.h`, and which programs make sense.

/// One instruction, as `struct sock_filter` has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Classic {
    /// Class, size or operation, mode or source.
    pub code: u16,
    /// Instructions to skip when the condition holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Constant.
    pub k: u32,
}

/// Most instructions of a program: `BPF_MAXINSNS`.
pub const PROGRAM_MAX: usize = 4096;
/// Words of memory: `BPF_MEMWORDS`.
pub const MEMORY: u32 = 16;

/// Length of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Len {
    Byte,
    Half,
    Word,
}

/// Where an operand comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    K(u32),
    X,
}

/// Arithmetic on A.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    Lsh,
    Rsh,
    Mod,
    Xor,
}

/// Conditions on A.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Test {
    Eq,
    Gt,
    Ge,
    Set,
}

/// What an instruction means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// A = packet at `k`, or at X + `k`.
    Packet { len: Len, indexed: bool, k: u32 },
    /// X = 4 * (packet byte at `k` & 15): the length of an IPv4 header.
    HeaderLen(u32),
    /// A = the packet's length.
    LoadLen,
    /// X = the packet's length.
    IndexLen,
    /// A = a constant.
    Load(u32),
    /// X = a constant.
    Index(u32),
    /// A = memory.
    Recall(u32),
    /// X = memory.
    RecallIndex(u32),
    /// Memory = A.
    Store(u32),
    /// Memory = X.
    StoreIndex(u32),
    /// A = A op operand.
    Alu(Alu, From),
    /// A = -A.
    Neg,
    /// Skip so many.
    Jump(u32),
    /// Skip `jt` or `jf`.
    If(Test, From, u8, u8),
    /// End with a constant.
    Return(u32),
    /// End with A.
    ReturnA,
    /// X = A.
    ToIndex,
    /// A = X.
    FromIndex,
}

/// Why a program makes no sense, or not here. `at` counts instructions from 0.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckError {
    /// It has none, or too many.
    #[error("{len} instructions; a filter has 1 to {PROGRAM_MAX}")]
    Length {
        /// Its instructions.
        len: usize,
    },
    /// There is no such instruction.
    #[error("instruction {at}: code {code:#06x} is none of classic BPF")]
    Code {
        /// The instruction.
        at: usize,
        /// Its code.
        code: u16,
    },
    /// It asks for something that is not in the packet.
    #[error("instruction {at}: {name} is not in the packet, and XDP runs before anybody knows it")]
    Beside {
        /// The instruction.
        at: usize,
        /// What it asks for.
        name: &'static str,
    },
    /// It leaves the program.
    #[error("instruction {at}: a jump behind the last instruction")]
    Jump {
        /// The instruction.
        at: usize,
    },
    /// It goes back: libpcap makes that of `protochain` alone, and Linux takes it as little.
    #[error(
        "instruction {at}: a jump backwards, as protochain has it; Linux's filters have none either: proto looks at the first header"
    )]
    Back {
        /// The instruction.
        at: usize,
    },
    /// Memory that there is not.
    #[error("instruction {at}: memory word {word}; there are {MEMORY}")]
    Memory {
        /// The instruction.
        at: usize,
        /// The word.
        word: u32,
    },
    /// A constant that the operation cannot take.
    #[error("instruction {at}: {what}")]
    Constant {
        /// The instruction.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The last instruction does not end the program.
    #[error("the last instruction is no return")]
    End,
}

/// Offsets from here on are negative: Linux's names for what is beside the packet (`SKF_AD_OFF` of `linux/filter.h`).
const NEGATIVE: u32 = 0x8000_0000;

/// What Linux's filters find at a negative offset.
fn beside(k: u32) -> &'static str {
    const NAMES: [(u32, &str); 16] = [
        (0, "the protocol that the stack found"),
        (4, "the packet type (inbound, outbound)"),
        (8, "the interface index"),
        (12, "a netlink attribute"),
        (16, "a nested netlink attribute"),
        (20, "the mark"),
        (24, "the queue"),
        (28, "the hardware type"),
        (32, "the receive hash"),
        (36, "the CPU"),
        (40, "an exclusive or of registers"),
        (44, "the VLAN tag that the device took out of the packet"),
        (48, "whether the device took a VLAN tag out of the packet"),
        (52, "the offset of the payload"),
        (56, "a random number"),
        (60, "the protocol of a VLAN tag that the device took out of the packet"),
    ];
    const AD_OFF: u32 = -0x1000i32 as u32;
    match k.checked_sub(AD_OFF) {
        Some(at) => NAMES.iter().find(|(known, _)| *known == at).map_or("what is beside the packet", |(_, name)| name),
        None => "an offset before the packet",
    }
}

impl Classic {
    /// What it means.
    pub(crate) fn op(self, at: usize) -> Result<Op, CheckError> {
        let unknown = CheckError::Code { at, code: self.code };
        let k = self.k;
        let word = || if k < MEMORY { Ok(k) } else { Err(CheckError::Memory { at, word: k }) };
        let inside = || if k < NEGATIVE { Ok(k) } else { Err(CheckError::Beside { at, name: beside(k) }) };
        let constant = |what| Err(CheckError::Constant { at, what });
        let from = if self.code & 0x08 == 0 { From::K(k) } else { From::X };
        Ok(match self.code {
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 => Op::Packet {
                len: match self.code & 0x18 {
                    0x00 => Len::Word,
                    0x08 => Len::Half,
                    _ => Len::Byte,
                },
                // X plus something negative may well be inside.
                indexed: self.code & 0xe0 == 0x40,
                k: if self.code & 0xe0 == 0x40 { k } else { inside()? },
            },
            0xb1 => Op::HeaderLen(inside()?),
            0x80 => Op::LoadLen,
            0x81 => Op::IndexLen,
            0x00 => Op::Load(k),
            0x01 => Op::Index(k),
            0x60 => Op::Recall(word()?),
            0x61 => Op::RecallIndex(word()?),
            0x02 => Op::Store(word()?),
            0x03 => Op::StoreIndex(word()?),
            0x34 | 0x94 if k == 0 => return constant("a division by zero"),
            0x64 | 0x74 if k >= 32 => return constant("a shift by 32 bits or more"),
            0x04 | 0x0c => Op::Alu(Alu::Add, from),
            0x14 | 0x1c => Op::Alu(Alu::Sub, from),
            0x24 | 0x2c => Op::Alu(Alu::Mul, from),
            0x34 | 0x3c => Op::Alu(Alu::Div, from),
            0x44 | 0x4c => Op::Alu(Alu::Or, from),
            0x54 | 0x5c => Op::Alu(Alu::And, from),
            0x64 | 0x6c => Op::Alu(Alu::Lsh, from),
            0x74 | 0x7c => Op::Alu(Alu::Rsh, from),
            0x94 | 0x9c => Op::Alu(Alu::Mod, from),
            0xa4 | 0xac => Op::Alu(Alu::Xor, from),
            0x84 => Op::Neg,
            0x05 => Op::Jump(k),
            0x15 | 0x1d => Op::If(Test::Eq, from, self.jt, self.jf),
            0x25 | 0x2d => Op::If(Test::Gt, from, self.jt, self.jf),
            0x35 | 0x3d => Op::If(Test::Ge, from, self.jt, self.jf),
            0x45 | 0x4d => Op::If(Test::Set, from, self.jt, self.jf),
            0x06 => Op::Return(k),
            0x16 => Op::ReturnA,
            0x07 => Op::ToIndex,
            0x87 => Op::FromIndex,
            _ => return Err(unknown),
        })
    }
}

/// Checks a program: every instruction means something, jumps go forward and stay inside, the end is a return. Linear.
///
/// # Errors
/// The first instruction that makes no sense.
pub fn check(program: &[Classic]) -> Result<(), CheckError> {
    ops(program).map(drop)
}

/// The meanings of a program that makes sense.
pub(crate) fn ops(program: &[Classic]) -> Result<Vec<Op>, CheckError> {
    let len = program.len();
    if len == 0 || len > PROGRAM_MAX {
        return Err(CheckError::Length { len });
    }
    let mut ops = Vec::with_capacity(len);
    for (at, insn) in program.iter().enumerate() {
        let op = insn.op(at)?;
        let furthest = match op {
            // libpcap counts in signed numbers there.
            Op::Jump(skip) if (skip as i32) < 0 => return Err(CheckError::Back { at }),
            Op::Jump(skip) => skip as usize,
            Op::If(_, _, jt, jf) => jt.max(jf).into(),
            _ => 0,
        };
        if at + 1 + furthest > len - 1 && !matches!(op, Op::Return(_) | Op::ReturnA) {
            return Err(if at + 1 == len { CheckError::End } else { CheckError::Jump { at } });
        }
        ops.push(op);
    }
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u16, k: u32) -> Classic {
        Classic { code, k, ..Classic::default() }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let end = insn(0x06, 1);
        assert_eq!(check(&[end]), Ok(()));
        assert_eq!(check(&[]), Err(CheckError::Length { len: 0 }));
        assert_eq!(check(&vec![end; 4097]), Err(CheckError::Length { len: 4097 }));
        assert_eq!(check(&[insn(0x00, 1)]), Err(CheckError::End));
        assert_eq!(check(&[insn(0x05, 1), end]), Err(CheckError::Jump { at: 0 }));
        assert_eq!(check(&[insn(0x05, u32::MAX), end]), Err(CheckError::Back { at: 0 }));
        assert_eq!(check(&[Classic { code: 0x15, jt: 0, jf: 1, k: 0 }, end]), Err(CheckError::Jump { at: 0 }));
        assert_eq!(check(&[insn(0xff, 0), end]), Err(CheckError::Code { at: 0, code: 0xff }));
        assert_eq!(check(&[insn(0x60, 16), end]), Err(CheckError::Memory { at: 0, word: 16 }));
        assert!(matches!(check(&[insn(0x34, 0), end]), Err(CheckError::Constant { at: 0, .. })));
        assert!(matches!(check(&[insn(0x64, 32), end]), Err(CheckError::Constant { at: 0, .. })));
        let inbound = check(&[insn(0x28, 0xffff_f004), end]).unwrap_err().to_string();
        assert!(inbound.contains("packet type (inbound, outbound)"), "{inbound}");
        assert!(check(&[insn(0x30, 0x8000_0000), end]).unwrap_err().to_string().contains("before the packet"));
    }
}
