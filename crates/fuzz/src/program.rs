//! Bytes as a program that decodes: every byte string gives one, and near strings give near programs.

use xway_abi::{MapSpec, MapType, helpers, map_flags};
use xway_isa::{
    AluOp, AtomicOp, ByteOrder, CallTarget, Cond, Imm64, Insn, MovExt, Operand, Reg, Size, Slot, Width, encode,
};

/// A program, what it runs over, and the maps that it may name.
pub struct Shaped {
    /// Ends with `exit`.
    pub slots: Vec<Slot>,
    /// 14 to 269 bytes.
    pub packet: Vec<u8>,
}

/// Longest program, instructions.
const INSNS_MAX: usize = 192;

/// Reads the bytes: a flag byte, the packet's length, then eight bytes for each instruction.
pub fn shape(data: &[u8]) -> Shaped {
    let (flags, rest) = data.split_first().map_or((0, data), |(f, r)| (*f, r));
    let (len, rest) = rest.split_first().map_or((50, rest), |(n, r)| (*n, r));
    let mut slots = Vec::new();
    if flags & 1 != 0 {
        prologue(&mut slots);
    }
    for word in rest.chunks(8).take(INSNS_MAX) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        encode(&insn(bytes), &mut slots);
    }
    for last in [Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Imm(2), ext: MovExt::None }, Insn::Exit] {
        encode(&last, &mut slots);
    }
    let packet = (0..14 + usize::from(len)).map(|i| rest.get(i).copied().unwrap_or(i as u8)).collect();
    Shaped { slots, packet }
}

/// What most programs begin with: packet pointers with 34 bytes checked, and numbers in the other registers.
fn prologue(slots: &mut Vec<Slot>) {
    let text = "r6 = r1\nr7 = *(u32 *)(r6 +0)\nr8 = *(u32 *)(r6 +4)\nr0 = r7\nr0 += 34\nif r0 <= r8 goto pc+2\nr0 = 1\nexit\n\
                r0 = 0\nr1 = 1\nr2 = 2\nr3 = 3\nr4 = 4\nr5 = 5\nr9 = 9\n*(u64 *)(r10 -8) = 0\n*(u64 *)(r10 -16) = 1";
    slots.extend(xway_isa::assemble(text).expect("the prologue is right"));
}

fn insn(b: [u8; 8]) -> Insn {
    let (dst, src) = (reg(b[1] & 15), reg(b[1] >> 4));
    let off = i16::from_le_bytes([b[2], b[3]]);
    let imm = i32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    let width = if b[0] & 0x40 == 0 { Width::W64 } else { Width::W32 };
    let operand = if b[0] & 0x80 == 0 { Operand::Imm(imm) } else { Operand::Reg(src) };
    let size = [Size::B, Size::H, Size::W, Size::DW][usize::from(b[3] & 3)];
    // Offsets of accesses stay near their base, those of jumps near the jump.
    let near = i16::from(b[2] as i8);
    let hop = near / 4;
    match b[0] & 0x3f {
        0..=12 => Insn::Alu { width, op: AluOp::ALL[usize::from(b[0] & 0x3f)], dst, src: operand },
        13..=18 => Insn::Mov { width, dst, src: operand, ext: MovExt::None },
        19 => extended(b, width, dst, src),
        20 => Insn::Neg { width, dst },
        21 => {
            let order = [ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap][usize::from(b[2] % 3)];
            Insn::Endian { order, bits: [16, 32, 64][usize::from(b[3] % 3)], dst }
        }
        22 => Insn::LoadImm64 { dst, imm: Imm64::Value(u64::from_le_bytes(b)) },
        23..=25 => Insn::LoadImm64 { dst, imm: map(b) },
        26..=33 => Insn::Load { size, signed: b[3] & 4 != 0 && size != Size::DW, dst, base: src, off: near },
        34..=40 => Insn::Store { size, base: dst, off: near, src: operand },
        41 | 42 => atomic(b, dst, src, near),
        43 => Insn::LoadAcquire { size, dst, base: src, off: near },
        44 => Insn::StoreRelease { size, base: dst, off: near, src },
        45..=51 => Insn::Branch { width, cond: Cond::ALL[usize::from(b[3] % 11)], dst, src: operand, off: hop },
        52 => Insn::Jump { off: hop.into(), long: b[3] & 1 != 0 },
        53 => Insn::MayGoto { off: hop },
        54 => Insn::Exit,
        55 => Insn::Call(CallTarget::Local(hop.into())),
        56 => Insn::LoadImm64 { dst, imm: Imm64::Func(hop.into()) },
        57 => Insn::Load { size: Size::W, signed: false, dst, base: Reg::R1, off: off & 0x1c },
        58 => Insn::Mov { width: Width::W64, dst, src: Operand::Reg(Reg::FP), ext: MovExt::None },
        _ => Insn::Call(CallTarget::Helper(helper(b[2], b[3]))),
    }
}

fn reg(n: u8) -> Reg {
    Reg::new(n % 11).expect("below eleven")
}

fn extended(b: [u8; 8], width: Width, dst: Reg, src: Reg) -> Insn {
    let ext = match (b[2] % 3, width) {
        (0, _) => MovExt::S8,
        (1, _) | (_, Width::W32) => MovExt::S16,
        _ => MovExt::S32,
    };
    Insn::Mov { width, dst, src: Operand::Reg(src), ext }
}

fn atomic(b: [u8; 8], base: Reg, src: Reg, off: i16) -> Insn {
    let fetch = b[3] & 0x10 != 0;
    let op = match b[3] & 7 {
        0 | 1 => AtomicOp::Add { fetch },
        2 => AtomicOp::Or { fetch },
        3 => AtomicOp::And { fetch },
        4 => AtomicOp::Xor { fetch },
        5 => AtomicOp::Xchg,
        _ => AtomicOp::CmpXchg,
    };
    let size = if b[3] & 8 != 0 { Size::W } else { Size::DW };
    Insn::Atomic { size, op, base, off, src }
}

fn map(b: [u8; 8]) -> Imm64 {
    let idx = i32::from(b[2]) % map_specs().len() as i32;
    if b[3] & 1 == 0 { Imm64::MapIdx(idx) } else { Imm64::MapIdxValue { idx, off: u32::from(b[4] % 72) } }
}

/// A helper that XDP programs have, those of everyday use more often.
fn helper(a: u8, b: u8) -> u32 {
    const EVERYDAY: [u32; 16] = [1, 2, 3, 5, 12, 23, 25, 28, 44, 51, 54, 65, 130, 131, 132, 181];
    if a & 1 == 0 {
        return EVERYDAY[usize::from(b) % EVERYDAY.len()];
    }
    let all: Vec<u32> = helpers().iter().filter(|h| h.xdp).map(|h| h.id).collect();
    all[usize::from(b) % all.len()]
}

/// The maps, by index.
pub fn map_specs() -> [MapSpec; 9] {
    use MapType::*;
    [
        MapSpec::new(Array, 4, 64, 4),
        MapSpec::new(Hash, 8, 24, 4),
        MapSpec::new(PercpuArray, 4, 16, 2),
        MapSpec::new(LruHash, 4, 8, 4),
        MapSpec::new(LpmTrie, 8, 8, 4).with_flags(map_flags::NO_PREALLOC),
        MapSpec::new(Queue, 0, 8, 4),
        MapSpec::new(Ringbuf, 0, 0, 4096),
        MapSpec::new(ProgArray, 4, 4, 2),
        MapSpec::new(Devmap, 4, 4, 2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_testkit::Rng;

    #[test]
    fn every_byte_string_gives_a_program_that_decodes() {
        let mut rng = Rng::new(5);
        for _ in 0..2000 {
            let len = rng.index(600);
            let shaped = shape(&rng.bytes(len));
            xway_isa::decode(&shaped.slots).expect("shaped programs decode");
            assert!(shaped.packet.len() >= 14);
        }
    }
}
