//! Machine code as text, for people: x86-64 by `iced-x86`, aarch64 by `yaxpeax-arm`; of other machines the bytes.
//!
//! Constants of a function stand behind its instructions, or between them where that is too far away. The code generator does not say
//! where it has put them, so it is read off the instructions: each constant is named by the one that loads it, further in front.

use std::fmt::Write;

/// Bytes of a line of constants.
const LINE: usize = 16;

/// Calls `each` for every instruction of a function's machine code, which lies at `address`, with its offset from there and its text, and
/// for every line of its constants: `.byte` and the bytes in hexadecimal.
#[cfg(target_arch = "x86_64")]
pub(crate) fn each(code: &[u8], address: u64, mut each: impl FnMut(u32, &str)) {
    use iced_x86::FlowControl::{Exception, IndirectBranch, Return, UnconditionalBranch};
    use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};

    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    // Where constants begin that are loaded so far, and where the flow last ended in front of them.
    let (mut constants, mut end) = (Vec::new(), None);
    let mut first = code.len();
    while decoder.can_decode() && decoder.position() < first {
        decoder.decode_out(&mut insn);
        if decoder.position() > first {
            break; // What fills up to the constants is no instruction.
        }
        if insn.is_ip_rel_memory_operand()
            && let Ok(to) = usize::try_from(insn.ip_rel_memory_address().wrapping_sub(address))
            && (decoder.position()..code.len()).contains(&to)
        {
            constants.push(to);
            first = first.min(to);
        }
        if matches!(insn.flow_control(), UnconditionalBranch | IndirectBranch | Return | Exception) {
            end = Some(decoder.position());
        }
    }
    let end = end.filter(|_| !constants.is_empty()).unwrap_or(code.len());
    let mut decoder = Decoder::with_ip(64, &code[..end], address, DecoderOptions::NONE);
    let (mut formatter, mut text) = (IntelFormatter::new(), String::new());
    while decoder.can_decode() {
        decoder.decode_out(&mut insn);
        text.clear();
        formatter.format(&insn, &mut text);
        each(insn.ip().wrapping_sub(address) as u32, &text);
    }
    constants.extend([end, code.len()]);
    constants.sort_unstable();
    constants.dedup();
    constants.windows(2).for_each(|from_to| data(code, from_to[0], from_to[1], &mut each));
}

/// Calls `each` for every instruction of a function's machine code, which lies at `address`, with its offset from there and its text, and
/// for every line of its constants: `.byte` and the bytes in hexadecimal.
#[cfg(target_arch = "aarch64")]
pub(crate) fn each(code: &[u8], _address: u64, mut each: impl FnMut(u32, &str)) {
    use yaxpeax_arch::{Decoder, U8Reader};
    use yaxpeax_arm::armv8::a64::InstDecoder;

    let (decoder, mut text, mut at) = (InstDecoder::default(), String::new(), 0);
    let mut constants = std::collections::BTreeMap::<usize, usize>::new();
    while let Some(word) = code.get(at..at + 4) {
        while constants.first_key_value().is_some_and(|(_, end)| *end <= at) {
            constants.pop_first();
        }
        if let Some((from, end)) = constants.first_key_value().map(|(from, end)| (*from, (*end).min(code.len())))
            && from <= at
        {
            // A line for each, however many loads there are of it.
            let next = constants.keys().copied().find(|next| *next > at).unwrap_or(end);
            data(code, at, end.min(next), &mut each);
            at = end.min(next).next_multiple_of(4);
            continue;
        }
        let number = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if let Some((distance, len)) = literal(number) {
            let from = at + distance;
            let end: &mut usize = constants.entry(from).or_default();
            *end = (*end).max(from + len);
        }
        text.clear();
        let _ = match decoder.decode(&mut U8Reader::new(word)) {
            Ok(insn) => write!(text, "{insn}"),
            // What fills up in front of constants.
            Err(_) => write!(text, ".word {number:#010x}"),
        };
        each(at as u32, &text);
        at += 4;
    }
}

/// How far behind it `LDR (literal)` of aarch64 finds what it loads, and how many bytes that is: Arm's manual, C4.1, "Load register
/// (literal)". Others, and one that looks back or fetches ahead, load no constant of the function's.
#[cfg(any(target_arch = "aarch64", test))]
fn literal(insn: u32) -> Option<(usize, usize)> {
    if insn & 0x3b00_0000 != 0x1800_0000 {
        return None;
    }
    let vector = insn >> 26 & 1 == 1;
    let len = match (insn >> 30, vector) {
        (0, _) | (2, false) => 4,
        (1, _) => 8,
        (2, true) => 16,
        _ => return None,
    };
    let words = (insn << 8) as i32 >> 13;
    Some((4 * usize::try_from(words).ok().filter(|words| *words > 0)?, len))
}

/// Lines of constants. What is longer than one is cut where its places in memory are round.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn data(code: &[u8], from: usize, to: usize, each: &mut impl FnMut(u32, &str)) {
    let mut at = from;
    while at < to {
        let end = to.min((at + 1).next_multiple_of(LINE));
        each(at as u32, &bytes(&code[at..end]));
        at = end;
    }
}

/// Bytes that are no instruction.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let mut text = ".byte".to_owned();
    bytes.iter().for_each(|byte| {
        let _ = write!(text, " {byte:02x}");
    });
    text
}

/// Calls `each` for every byte.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn each(code: &[u8], _address: u64, mut each: impl FnMut(u32, &str)) {
    for (n, byte) in code.iter().enumerate() {
        each(n as u32, &bytes(&[*byte]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(code: &[u8], address: u64) -> Vec<(u32, String)> {
        let mut all = vec![];
        each(code, address, |at, text| all.push((at, text.to_owned())));
        all
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn constants_are_no_instructions() {
        // movups xmm0, [rip + 25]; xor rax, [rip + 34]; je +1; ret; ud2; filler; 16 bytes; 8 bytes
        let mut code = vec![0x0f, 0x10, 0x05, 25, 0, 0, 0, 0x48, 0x33, 0x05, 34, 0, 0, 0, 0x74, 0x01, 0xc3, 0x0f, 0x0b];
        code.resize(32, 0);
        code.extend(0xa0..0xb0);
        code.extend(0xb0..0xb8);
        for address in [0, 0x7fff_0000_1234] {
            let lines = lines(&code, address);
            let texts: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
            assert!(texts[0].starts_with("movups xmm0") && texts[3..5] == ["ret", "ud2"], "{texts:?}");
            assert_eq!(lines[5], (19, ".byte 00 00 00 00 00 00 00 00 00 00 00 00 00".into()));
            assert_eq!(lines[6], (32, ".byte a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 aa ab ac ad ae af".into()));
            assert_eq!(lines[7], (48, ".byte b0 b1 b2 b3 b4 b5 b6 b7".into()));
            assert_eq!(lines.len(), 8, "{texts:?}");
        }
        // Without constants all of it is code, also behind the end, and what is not there is not looked for.
        assert_eq!(lines(&[0xc3, 0x90, 0x90], 0).len(), 3);
        assert_eq!(lines(&[0xff, 0x25, 0, 0, 0, 0], 0).len(), 1);
        assert_eq!(lines(&[], 0).len(), 0);
    }

    #[test]
    fn what_loads_of_aarch64_load() {
        // ldr x0, #8; ldr q1, #32; ldr s2, #4; ldrsw x3, #12
        let all = [0x5800_0040, 0x9c00_0101, 0x1c00_0022, 0x9800_0063].map(literal);
        assert_eq!(all, [Some((8, 8)), Some((32, 16)), Some((4, 4)), Some((12, 4))]);
        // prfm #8; ldr x0, #-4; ldr x0, [x1]; ret
        assert_eq!([0xd800_0040, 0x58ff_ffe0, 0xf940_0020, 0xd65f_03c0].map(literal), [None; 4]);
    }
}
