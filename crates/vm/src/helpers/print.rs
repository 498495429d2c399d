//! Text from numbers: `bpf_trace_printk`, `bpf_trace_vprintk`, `bpf_snprintf`.

use xway_abi::{Errno, HelperProto};

use crate::call::size_arg;
use crate::fault::{Access, Trap};
use crate::machine::Machine;

/// Arguments that the vector forms take (`MAX_BPRINTF_VARARGS`).
const VALUES_MAX: usize = 12;
/// Widest field (`FIELD_WIDTH_MAX`).
const WIDTH_MAX: i32 = (1 << 23) - 1;
/// Longest line of `bpf_trace_printk` (`BPF_TRACE_PRINTK_SIZE`), with its zero.
const TRACE_MAX: usize = 1024;

/// `bpf_trace_printk(fmt, fmt_size, a, b, c)`
pub(crate) fn trace_printk<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let fmt = read(vm, r[0], size_arg(proto, 1, r)?)?;
    Ok(trace(vm, &fmt, &[r[2], r[3], r[4]].map(u64::to_ne_bytes)))
}

/// `bpf_trace_vprintk(fmt, fmt_size, data, data_len)`
pub(crate) fn trace_vprintk<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let fmt = read(vm, r[0], size_arg(proto, 1, r)?)?;
    Ok(match values(vm, r[2], size_arg(proto, 3, r)?, &mut [0; VALUES_MAX * 8])? {
        Ok(values) => trace(vm, &fmt, values),
        Err(errno) => errno.as_ret(),
    })
}

fn trace<'e, M: Machine<'e>>(vm: &mut M, fmt: &[u8], values: &[[u8; 8]]) -> u64 {
    let mut text = Text::new(TRACE_MAX - 1);
    let end = fmt.iter().position(|b| *b == 0).ok_or(Errno::EINVAL);
    match end.and_then(|end| format(vm, &fmt[..end], values, &mut text)) {
        Ok(()) => {
            vm.host().trace(&String::from_utf8_lossy(text.bytes()));
            text.len as u64
        }
        Err(errno) => errno.as_ret(),
    }
}

/// `bpf_snprintf(str, str_size, fmt, data, data_len)`: the length of the whole text with its zero.
pub(crate) fn snprintf<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let size = size_arg(proto, 1, r)?;
    if size > 0 {
        vm.check(r[0], size, Access::Write)?;
    }
    let mut text = Text::new((size as usize).saturating_sub(1));
    let (reader, mut bytes) = (&*vm, [0; VALUES_MAX * 8]);
    let done = reader.const_str(proto, 2, r[2], |fmt| -> Result<_, Trap> {
        let values = values(reader, r[3], size_arg(proto, 4, r)?, &mut bytes)?;
        Ok(values.and_then(|values| format(reader, fmt, values, &mut text)))
    })??;
    match done {
        Ok(()) => {
            if size > 0 {
                vm.write(r[0], text.terminated())?;
            }
            Ok(text.len as u64 + 1)
        }
        Err(errno) => Ok(errno.as_ret()),
    }
}

fn read<'e, M: Machine<'e>>(vm: &M, addr: u64, len: u64) -> Result<Vec<u8>, Trap> {
    vm.check(addr, len, Access::Read)?;
    let mut bytes = vec![0; len as usize];
    vm.read(addr, &mut bytes)?;
    Ok(bytes)
}

/// Reads the arguments of a vector form into `bytes`; gives those that there are.
fn values<'e, 'b, M: Machine<'e>>(
    vm: &M,
    addr: u64,
    len: u64,
    bytes: &'b mut [u8; VALUES_MAX * 8],
) -> Result<Result<&'b [[u8; 8]], Errno>, Trap> {
    if !len.is_multiple_of(8) || len > bytes.len() as u64 || (len > 0 && addr == 0) {
        return Ok(Err(Errno::EINVAL));
    }
    let bytes = &mut bytes[..len as usize];
    if len > 0 {
        vm.read(addr, bytes)?;
    }
    Ok(Ok(bytes.as_chunks().0))
}

/// A text of which only the beginning is kept: what there is room for, without an allocation where that is little.
struct Text {
    short: [u8; Text::SHORT],
    long: Vec<u8>,
    room: usize,
    kept: usize,
    /// Length of all of it.
    len: usize,
}

impl Text {
    const SHORT: usize = 128;

    fn new(room: usize) -> Text {
        Text { short: [0; Text::SHORT], long: vec![], room, kept: 0, len: 0 }
    }

    /// The next bytes of the text, of those there is room for.
    fn next(&mut self, count: usize) -> &mut [u8] {
        let (from, kept) = (self.kept, self.kept + count.min(self.room - self.kept));
        (self.kept, self.len) = (kept, self.len + count);
        if self.room < Text::SHORT {
            return &mut self.short[from..kept];
        }
        self.long.resize(kept, 0);
        &mut self.long[from..]
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let room = self.next(bytes.len());
        room.copy_from_slice(&bytes[..room.len()]);
    }

    fn repeat(&mut self, byte: u8, count: usize) {
        self.next(count).fill(byte);
    }

    /// What is kept.
    fn bytes(&self) -> &[u8] {
        if self.room < Text::SHORT { &self.short[..self.kept] } else { &self.long }
    }

    /// What is kept, and a zero behind it.
    fn terminated(&mut self) -> &[u8] {
        if self.room < Text::SHORT {
            self.short[self.kept] = 0;
            return &self.short[..=self.kept];
        }
        self.long.push(0);
        &self.long
    }
}

/// Formats as the kernel does for programs: a small set of conversions, everything else `EINVAL`. `fmt` has no zero.
fn format<'e, M: Machine<'e>>(vm: &M, fmt: &[u8], values: &[[u8; 8]], out: &mut Text) -> Result<(), Errno> {
    let at = |i: usize| fmt.get(i).copied().unwrap_or(0);
    let mut values = values.iter();
    let mut i = 0;
    while i < fmt.len() {
        let text = &fmt[i..];
        let text = &text[..text.iter().position(|b| *b == b'%').unwrap_or(text.len())];
        // What is not ASCII is copied: texts may be UTF-8.
        if text.iter().any(|b| matches!(*b, 0..=0x08 | 0x0e..=0x1f | 0x7f)) {
            return Err(Errno::EINVAL);
        }
        out.put(text);
        // Behind the sign, if there is one.
        i += text.len() + 1;
        if i > fmt.len() {
            break;
        }
        if at(i) == b'%' {
            out.put(b"%");
            i += 1;
            continue;
        }
        let value = u64::from_ne_bytes(*values.next().ok_or(Errno::EINVAL)?);
        let mut field = Field::default();
        while let flag @ (b'0' | b'+' | b'-' | b' ') = at(i) {
            match flag {
                b'0' => field.zeros = true,
                b'+' => field.plus = true,
                b'-' => field.left = true,
                _ => field.space = true,
            }
            i += 1;
        }
        // The kernel reads it into an `int`, whatever it is, and keeps so much of it.
        let mut width = 0i32;
        while at(i).is_ascii_digit() {
            width = width.wrapping_mul(10).wrapping_add(i32::from(at(i) - b'0'));
            i += 1;
        }
        field.width = width.clamp(0, WIDTH_MAX) as usize;
        i += conversion(vm, &fmt[i..], value, field, out)?;
    }
    Ok(())
}

/// The digits of a number, from the last one on.
struct Digits {
    bytes: [u8; 20],
    first: usize,
}

impl Digits {
    fn decimal(mut value: u64) -> Digits {
        let mut digits = Digits { bytes: [b'0'; 20], first: 20 };
        loop {
            digits.first -= 1;
            digits.bytes[digits.first] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return digits;
            }
        }
    }

    /// In letters of this case, with zeros in front where there are fewer digits than `least`.
    fn hexadecimal(mut value: u64, letters: &[u8; 16], least: usize) -> Digits {
        let mut digits = Digits { bytes: [b'0'; 20], first: 20 };
        loop {
            digits.first -= 1;
            digits.bytes[digits.first] = letters[(value & 15) as usize];
            value >>= 4;
            if value == 0 {
                digits.first = digits.first.min(20 - least);
                return digits;
            }
        }
    }
}

impl std::ops::Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.first..]
    }
}

const LOWER: &[u8; 16] = b"0123456789abcdef";
const UPPER: &[u8; 16] = b"0123456789ABCDEF";

/// Writes one conversion and gives the number of bytes that it takes in the format.
fn conversion<'e, M: Machine<'e>>(
    vm: &M,
    fmt: &[u8],
    value: u64,
    field: Field,
    out: &mut Text,
) -> Result<usize, Errno> {
    let at = |i: usize| fmt.get(i).copied().unwrap_or(0);
    let ends = |i: usize| at(i) == 0 || at(i).is_ascii_whitespace() || at(i) == 0x0b || at(i).is_ascii_punctuation();
    let letters = |from: usize| from + fmt[from..].iter().take_while(|b| b.is_ascii_alphanumeric()).count();
    match at(0) {
        b'p' if ends(1) => {
            field.put(out, b"", &Digits::hexadecimal(value, LOWER, 16));
            Ok(1)
        }
        b'p' => match (at(1), at(2)) {
            (b'k' | b'u', b's') => string(vm, value, field, out, ends(3)).map(|()| 3),
            (b'K' | b'x' | b's' | b'S' | b'B', _) => {
                field.put(out, b"", &Digits::hexadecimal(value, LOWER, 16));
                Ok(2)
            }
            (b'i' | b'I', b'4') => {
                let mut a = [0; 4];
                let _ = vm.probe(value, &mut a); // What cannot be read prints as zero.
                let text = if at(1) == b'I' {
                    format!("{}.{}.{}.{}", a[0], a[1], a[2], a[3])
                } else {
                    format!("{:03}.{:03}.{:03}.{:03}", a[0], a[1], a[2], a[3])
                };
                // Addresses have one width, and letters behind them belong to the conversion.
                out.put(text.as_bytes());
                Ok(letters(3))
            }
            (b'i' | b'I', b'6') => {
                let mut a = [0; 16];
                let _ = vm.probe(value, &mut a);
                let colon = if at(1) == b'I' { ":" } else { "" };
                let words: Vec<String> = a.chunks(2).map(|w| format!("{:02x}{:02x}", w[0], w[1])).collect();
                out.put(words.join(colon).as_bytes());
                Ok(letters(3))
            }
            _ => Err(Errno::EINVAL),
        },
        b's' => string(vm, value, field, out, ends(1)).map(|()| 1),
        b'c' => {
            field.put_bytes(out, &[value as u8]);
            Ok(1)
        }
        _ => {
            let longs = fmt.iter().take(2).take_while(|b| **b == b'l').count();
            let wide = longs > 0;
            let (low, signed) = (value as u32, if wide { value as i64 } else { (value as i32).into() });
            let unsigned = if wide { value } else { low.into() };
            match at(longs) {
                b'd' | b'i' => {
                    let sign = match (signed < 0, field.plus, field.space) {
                        (true, ..) => &b"-"[..],
                        (_, true, _) => b"+",
                        (_, _, true) => b" ",
                        _ => b"",
                    };
                    field.put(out, sign, &Digits::decimal(signed.unsigned_abs()));
                }
                b'u' => field.put(out, b"", &Digits::decimal(unsigned)),
                b'x' => field.put(out, b"", &Digits::hexadecimal(unsigned, LOWER, 1)),
                b'X' => field.put(out, b"", &Digits::hexadecimal(unsigned, UPPER, 1)),
                _ => return Err(Errno::EINVAL),
            }
            Ok(longs + 1)
        }
    }
}

/// A string behind an address; what cannot be read is empty, as the kernel makes it.
fn string<'e, M: Machine<'e>>(vm: &M, addr: u64, field: Field, out: &mut Text, ends: bool) -> Result<(), Errno> {
    if !ends {
        return Err(Errno::EINVAL);
    }
    let mut text = vec![];
    // The kernel gives all strings of a call half a kilobyte.
    for i in 0..512 {
        let mut b = [0];
        if !vm.probe(addr.wrapping_add(i), &mut b) || b[0] == 0 {
            break;
        }
        text.push(b[0]);
    }
    field.put_bytes(out, &text);
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Field {
    zeros: bool,
    plus: bool,
    left: bool,
    space: bool,
    width: usize,
}

impl Field {
    fn put(self, out: &mut Text, sign: &[u8], digits: &[u8]) {
        let pad = self.width.saturating_sub(sign.len() + digits.len());
        if !self.left && !self.zeros {
            out.repeat(b' ', pad);
        }
        out.put(sign);
        if !self.left && self.zeros {
            out.repeat(b'0', pad);
        }
        out.put(digits);
        if self.left {
            out.repeat(b' ', pad);
        }
    }

    fn put_bytes(self, out: &mut Text, bytes: &[u8]) {
        let pad = self.width.saturating_sub(bytes.len());
        if self.left {
            out.put(bytes);
            out.repeat(b' ', pad);
        } else {
            out.repeat(b' ', pad);
            out.put(bytes);
        }
    }
}
