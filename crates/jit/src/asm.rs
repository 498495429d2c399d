//! Machine code as text, for people: x86-64 by `iced-x86`, aarch64 by `yaxpeax-arm`; of other machines the bytes.

/// Calls `each` for every instruction of machine code that lies at `address`, with its offset from there and its text.
#[cfg(target_arch = "x86_64")]
pub(crate) fn each(code: &[u8], address: u64, mut each: impl FnMut(u32, &str)) {
    use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};

    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut formatter = IntelFormatter::new();
    let (mut insn, mut text) = (Instruction::default(), String::new());
    while decoder.can_decode() {
        decoder.decode_out(&mut insn);
        text.clear();
        formatter.format(&insn, &mut text);
        each(insn.ip().wrapping_sub(address) as u32, &text);
    }
}

/// Calls `each` for every instruction of machine code that lies at `address`, with its offset from there and its text.
#[cfg(target_arch = "aarch64")]
pub(crate) fn each(code: &[u8], _address: u64, mut each: impl FnMut(u32, &str)) {
    use std::fmt::Write;

    use yaxpeax_arch::{Decoder, U8Reader};
    use yaxpeax_arm::armv8::a64::InstDecoder;

    let (decoder, mut text) = (InstDecoder::default(), String::new());
    for (n, word) in code.chunks_exact(4).enumerate() {
        text.clear();
        let _ = match decoder.decode(&mut U8Reader::new(word)) {
            Ok(insn) => write!(text, "{insn}"),
            // Constants stand between instructions.
            Err(_) => write!(text, ".word {:#010x}", u32::from_le_bytes([word[0], word[1], word[2], word[3]])),
        };
        each(4 * n as u32, &text);
    }
}

/// Calls `each` for every byte.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn each(code: &[u8], _address: u64, mut each: impl FnMut(u32, &str)) {
    for (n, byte) in code.iter().enumerate() {
        each(n as u32, &format!(".byte {byte:#04x}"));
    }
}
