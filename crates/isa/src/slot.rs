//! The raw eight-byte instruction slot (RFC 9669 section 3.1, little-endian form).

/// One raw instruction slot. A wide instruction (64-bit immediate) takes two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Slot {
    /// Class, operation and source bits.
    pub opcode: u8,
    /// Destination register number, 0–15 as stored; only 0–10 have a meaning.
    pub dst: u8,
    /// Source register number, or the kind of a pseudo instruction, 0–15.
    pub src: u8,
    /// Signed offset: of a memory access or of a jump, in slots.
    pub off: i16,
    /// Signed immediate.
    pub imm: i32,
}

impl Slot {
    /// Reads a slot from its little-endian bytes.
    pub const fn from_bytes(b: [u8; 8]) -> Self {
        Slot {
            opcode: b[0],
            dst: b[1] & 0x0f,
            src: b[1] >> 4,
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// The little-endian bytes of this slot.
    pub const fn to_bytes(self) -> [u8; 8] {
        let o = self.off.to_le_bytes();
        let i = self.imm.to_le_bytes();
        [self.opcode, (self.dst & 0x0f) | (self.src << 4), o[0], o[1], i[0], i[1], i[2], i[3]]
    }

    /// True for the first slot of a 64-bit immediate load, the only instruction of two slots.
    pub const fn is_wide(self) -> bool {
        self.opcode == op::LD_IMM64
    }
}

/// Slots from bytes; `None` when the length is no multiple of eight.
pub fn slots_from_bytes(bytes: &[u8]) -> Option<Vec<Slot>> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| chunks.iter().map(|c| Slot::from_bytes(*c)).collect())
}

/// The bytes of a slice of slots.
pub fn slots_to_bytes(slots: &[Slot]) -> Vec<u8> {
    slots.iter().flat_map(|s| s.to_bytes()).collect()
}

/// Opcode fields (RFC 9669 sections 3 to 5) and the few whole opcodes that other crates compare with.
pub mod op {
    /// Instruction class: the low three bits.
    pub const CLASS_MASK: u8 = 0x07;
    /// Non-standard loads: 64-bit immediates and legacy packet access.
    pub const LD: u8 = 0x00;
    /// Loads into a register.
    pub const LDX: u8 = 0x01;
    /// Stores of an immediate.
    pub const ST: u8 = 0x02;
    /// Stores of a register, atomics.
    pub const STX: u8 = 0x03;
    /// 32-bit arithmetic.
    pub const ALU: u8 = 0x04;
    /// 64-bit jumps, calls, exit.
    pub const JMP: u8 = 0x05;
    /// 32-bit jumps.
    pub const JMP32: u8 = 0x06;
    /// 64-bit arithmetic.
    pub const ALU64: u8 = 0x07;
    /// Source is the register, not the immediate.
    pub const X: u8 = 0x08;
    /// `lddw`: load of a 64-bit immediate, two slots.
    pub const LD_IMM64: u8 = 0x18;
    /// `call`.
    pub const CALL: u8 = 0x85;
    /// `exit`.
    pub const EXIT: u8 = 0x95;
}
