//! Text from numbers: `bpf_trace_printk`, `bpf_trace_vprintk`, `bpf_snprintf`.

use xway_abi::{Errno, HelperProto};

use crate::call::size_arg;
use crate::fault::{Access, Trap};
use crate::machine::Machine;

/// Arguments that the vector forms take (`MAX_BPRINTF_VARARGS`).
const VALUES_MAX: u64 = 12;
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
    Ok(trace(vm, &fmt, &r[2..5]))
}

/// `bpf_trace_vprintk(fmt, fmt_size, data, data_len)`
pub(crate) fn trace_vprintk<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let fmt = read(vm, r[0], size_arg(proto, 1, r)?)?;
    Ok(match values(vm, r[2], size_arg(proto, 3, r)?)? {
        Ok(values) => trace(vm, &fmt, &values),
        Err(errno) => errno.as_ret(),
    })
}

fn trace<'e, M: Machine<'e>>(vm: &mut M, fmt: &[u8], values: &[u64]) -> u64 {
    match format(vm, fmt, values, TRACE_MAX - 1) {
        Ok(text) => {
            vm.host().trace(&String::from_utf8_lossy(&text.bytes));
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
    let mut fmt = vm.const_str(proto, 2, r[2])?;
    fmt.push(0);
    let values = match values(vm, r[3], size_arg(proto, 4, r)?)? {
        Ok(values) => values,
        Err(errno) => return Ok(errno.as_ret()),
    };
    match format(vm, &fmt, &values, (size as usize).saturating_sub(1)) {
        Ok(mut text) => {
            if size > 0 {
                text.bytes.push(0);
                vm.write(r[0], &text.bytes)?;
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

fn values<'e, M: Machine<'e>>(vm: &M, addr: u64, len: u64) -> Result<Result<Vec<u64>, Errno>, Trap> {
    if !len.is_multiple_of(8) || len > VALUES_MAX * 8 || (len > 0 && addr == 0) {
        return Ok(Err(Errno::EINVAL));
    }
    if len == 0 {
        return Ok(Ok(vec![]));
    }
    let bytes = read(vm, addr, len)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(Ok(words.iter().map(|w| u64::from_ne_bytes(*w)).collect()))
}

/// A text of which only the beginning is kept: what there is room for.
#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    room: usize,
    /// Length of all of it.
    len: usize,
}

impl Text {
    fn push(&mut self, byte: u8) {
        self.repeat(byte, 1);
    }

    fn put(&mut self, bytes: &[u8]) {
        let free = self.room - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(free)]);
        self.len += bytes.len();
    }

    fn repeat(&mut self, byte: u8, count: usize) {
        let free = self.room - self.bytes.len();
        self.bytes.extend(std::iter::repeat_n(byte, count.min(free)));
        self.len += count;
    }
}

/// Formats as the kernel does for programs: a small set of conversions, everything else `EINVAL`. `fmt` ends with a zero.
fn format<'e, M: Machine<'e>>(vm: &M, fmt: &[u8], values: &[u64], room: usize) -> Result<Text, Errno> {
    let end = fmt.iter().position(|b| *b == 0).ok_or(Errno::EINVAL)?;
    let fmt = &fmt[..end];
    let at = |i: usize| fmt.get(i).copied().unwrap_or(0);
    let mut out = Text { room, ..Text::default() };
    let mut values = values.iter();
    let mut i = 0;
    while i < fmt.len() {
        let b = fmt[i];
        // What is not ASCII is copied: texts may be UTF-8.
        if b.is_ascii() && !(b.is_ascii_graphic() || b == b' ' || (0x09..=0x0d).contains(&b)) {
            return Err(Errno::EINVAL);
        }
        i += 1;
        if b != b'%' {
            out.push(b);
            continue;
        }
        if at(i) == b'%' {
            out.push(b'%');
            i += 1;
            continue;
        }
        let value = *values.next().ok_or(Errno::EINVAL)?;
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
        i += conversion(vm, &fmt[i..], value, field, &mut out)?;
    }
    Ok(out)
}

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
            field.put(out, "", &format!("{value:016x}"));
            Ok(1)
        }
        b'p' => match (at(1), at(2)) {
            (b'k' | b'u', b's') => string(vm, value, field, out, ends(3)).map(|()| 3),
            (b'K' | b'x' | b's' | b'S' | b'B', _) => {
                field.put(out, "", &format!("{value:016x}"));
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
                        (true, ..) => "-",
                        (_, true, _) => "+",
                        (_, _, true) => " ",
                        _ => "",
                    };
                    field.put(out, sign, &signed.unsigned_abs().to_string());
                }
                b'u' => field.put(out, "", &unsigned.to_string()),
                b'x' => field.put(out, "", &format!("{unsigned:x}")),
                b'X' => field.put(out, "", &format!("{unsigned:X}")),
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
    fn put(self, out: &mut Text, sign: &str, digits: &str) {
        let pad = self.width.saturating_sub(sign.len() + digits.len());
        if !self.left && !self.zeros {
            out.repeat(b' ', pad);
        }
        out.put(sign.as_bytes());
        if !self.left && self.zeros {
            out.repeat(b'0', pad);
        }
        out.put(digits.as_bytes());
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
