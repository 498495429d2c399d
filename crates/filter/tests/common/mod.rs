//! A second opinion on classic BPF: an interpreter, and random programs.
#![allow(dead_code)] // Each test file uses its part.

use xway_filter::Classic;
use xway_testkit::Rng;

/// What a program returns for a packet, step by step. It must have passed the check.
pub fn interpret(program: &[Classic], packet: &[u8]) -> u32 {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    let number = |at: u64, bytes: usize| -> Option<u32> {
        let from = usize::try_from(at).ok()?;
        let part = packet.get(from..from.checked_add(bytes)?)?;
        Some(part.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    };
    loop {
        let Classic { code, jt, jf, k } = program[at];
        at += 1;
        let operand = if code & 8 == 0 { k } else { x };
        let mut skip = |holds: bool| at += if holds { jt } else { jf } as usize;
        match code {
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 => {
                let bytes = match code & 0x18 {
                    0 => 4,
                    8 => 2,
                    _ => 1,
                };
                let offset = if code & 0x40 == 0 { k } else { x.wrapping_add(k) };
                let Some(value) = number(offset.into(), bytes) else { return 0 };
                a = value;
            }
            0xb1 => match number(k.into(), 1) {
                Some(byte) => x = (byte & 15) * 4,
                None => return 0,
            },
            0x80 => a = packet.len() as u32,
            0x81 => x = packet.len() as u32,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = memory[k as usize],
            0x61 => x = memory[k as usize],
            0x02 => memory[k as usize] = a,
            0x03 => memory[k as usize] = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c | 0x94 | 0x9c => {
                if operand == 0 {
                    return 0;
                }
                a = if code & 0xf0 == 0x30 { a / operand } else { a % operand };
            }
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0xa4 | 0xac => a ^= operand,
            0x84 => a = a.wrapping_neg(),
            0x05 => at += k as usize,
            0x15 | 0x1d => skip(a == operand),
            0x25 | 0x2d => skip(a > operand),
            0x35 | 0x3d => skip(a >= operand),
            0x45 | 0x4d => skip(a & operand != 0),
            0x06 => return k,
            0x16 => return a,
            0x07 => x = a,
            0x87 => a = x,
            other => panic!("code {other:#x} has passed the check"),
        }
    }
}

const CODES: [u16; 47] = [
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x80, 0x81, 0x00, 0x01, 0x60, 0x61, 0x02, 0x03, 0x04, 0x0c, 0x14, 0x1c,
    0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x94, 0x9c, 0xa4, 0xac, 0x84, 0x05, 0x15,
    0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x06, 0x16,
];

/// A random program that makes sense. Every memory word is written first: the kernel refuses to read others.
pub fn random(rng: &mut Rng) -> Vec<Classic> {
    let len = 2 + rng.below(40) as usize;
    let mut program = vec![Classic { code: 0x80, ..Classic::default() }];
    program.extend((0..16).map(|k| Classic { code: 0x02, k, ..Classic::default() }));
    program.push(Classic { code: 0x07, ..Classic::default() });
    for at in 0..len {
        let left = (len - at) as u64;
        let mut code = CODES[rng.below(CODES.len() as u64) as usize];
        // Ends are rarer than the table has them.
        if matches!(code, 0x06 | 0x16) && rng.below(4) > 0 {
            code = if code == 0x06 { 0x07 } else { 0x87 };
        }
        let mut insn = Classic { code, ..Classic::default() };
        insn.k = match code {
            0x02 | 0x03 | 0x60 | 0x61 => rng.below(16) as u32,
            0x64 | 0x74 => rng.below(32) as u32,
            0x05 => rng.below(left) as u32,
            0x40 | 0x48 | 0x50 if rng.one_in(4) => 0u32.wrapping_sub(rng.below(12) as u32),
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => match rng.below(20) {
                0 => rng.below(1 << 31) as u32,
                1 => 65_530 + rng.below(10) as u32,
                _ => rng.below(80) as u32,
            },
            _ => match rng.below(4) {
                0 => rng.u32(),
                1 => u32::MAX - rng.below(4) as u32,
                _ => 1 + rng.below(64) as u32,
            },
        };
        if matches!(code, 0x34 | 0x94) {
            insn.k = insn.k.max(1);
        }
        if matches!(code & 0x0f, 5 | 0xd) && code != 0x05 {
            insn.jt = rng.below(left.min(256)) as u8;
            insn.jf = rng.below(left.min(256)) as u8;
        }
        program.push(insn);
    }
    program.push(Classic { code: 0x16, ..Classic::default() });
    program
}
