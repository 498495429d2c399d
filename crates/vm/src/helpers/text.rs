//! Numbers from text, comparison of strings.

use xway_abi::Errno;

use crate::call::Call;

/// Bytes that may hold digits: the kernel copies as many before it parses.
const DIGITS_MAX: usize = 63;

/// A parsed number.
struct Parsed {
    magnitude: u64,
    negative: bool,
    /// Bytes consumed, white space and sign included.
    consumed: u64,
}

fn parse(buf: &[u8], flags: u64) -> Result<Parsed, Errno> {
    let mut base = flags & 0x1f;
    if !matches!(base, 0 | 8 | 10 | 16) || flags & !0x1f != 0 {
        return Err(Errno::EINVAL);
    }
    let space = |b: &u8| matches!(*b, b' ' | 0x09..=0x0d | 0xa0);
    let mut at = buf.iter().take_while(|b| space(b)).count();
    let negative = buf.get(at) == Some(&b'-');
    at += usize::from(negative);
    let text = &buf[at..];
    if text.is_empty() {
        return Err(Errno::EINVAL);
    }
    let text = &text[..text.len().min(DIGITS_MAX)];
    let hex = text.len() > 1 && text[0] == b'0' && text[1].eq_ignore_ascii_case(&b'x');
    if base == 0 {
        base = match text {
            [b'0', ..] if hex && text.get(2).is_some_and(u8::is_ascii_hexdigit) => 16,
            [b'0', ..] => 8,
            _ => 10,
        };
    }
    let skip = if base == 16 && hex { 2 } else { 0 };
    let (mut value, mut overflow, mut digits) = (0u64, false, 0);
    for b in &text[skip..] {
        let Some(d) = (*b as char).to_digit(16).filter(|d| u64::from(*d) < base) else { break };
        match value.checked_mul(base).and_then(|v| v.checked_add(d.into())) {
            Some(v) => value = v,
            None => overflow = true,
        }
        digits += 1;
    }
    if overflow {
        return Err(Errno::ERANGE);
    }
    if digits == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Parsed { magnitude: value, negative, consumed: (at + skip + digits) as u64 })
}

fn set(call: &mut Call<'_, '_>, value: u64) {
    if let Some(out) = call.bytes_mut(3).first_chunk_mut::<8>() {
        *out = value.to_ne_bytes();
    }
}

/// `bpf_strtol(buf, len, flags, res)`
#[inline]
pub(crate) fn strtol(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    set(call, 0);
    let p = parse(call.bytes(0), call.num(2))?;
    let value = if p.negative { p.magnitude.wrapping_neg() } else { p.magnitude };
    let fits = if p.negative { value as i64 <= 0 } else { value as i64 >= 0 };
    if !fits {
        return Err(Errno::ERANGE);
    }
    set(call, value);
    Ok(p.consumed)
}

/// `bpf_strtoul(buf, len, flags, res)`
#[inline]
pub(crate) fn strtoul(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    set(call, 0);
    let p = parse(call.bytes(0), call.num(2))?;
    if p.negative {
        return Err(Errno::EINVAL);
    }
    set(call, p.magnitude);
    Ok(p.consumed)
}

/// `bpf_strncmp(s1, len, s2)`: -1, 0 or 1.
pub(crate) fn strncmp(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let (one, other) = (call.bytes(0), call.bytes(2));
    Ok(compare(one.len(), |n| one[n], |n| other.get(n).copied().unwrap_or(0)))
}

/// The helper over bytes that are asked for one by one, each once: of the first text `len` at most, of the second none behind its zero.
#[inline]
pub fn compare(len: usize, one: impl Fn(usize) -> u8, other: impl Fn(usize) -> u8) -> u64 {
    for n in 0..len {
        let (x, y) = (one(n), other(n));
        if x != y {
            return if x < y { -1i64 as u64 } else { 1 };
        }
        if x == 0 {
            break;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsigned(text: &str, flags: u64) -> Result<(u64, u64), Errno> {
        parse(text.as_bytes(), flags).map(|p| (p.magnitude, p.consumed))
    }

    #[test]
    fn bases_are_guessed_and_checked() {
        assert_eq!(unsigned("  0x1fz", 0), Ok((31, 6)));
        assert_eq!(unsigned("017", 0), Ok((15, 3)));
        assert_eq!(unsigned("0x", 0), Ok((0, 1)));
        assert_eq!(unsigned("19", 8), Ok((1, 1)));
        assert_eq!(unsigned("ff", 16), Ok((255, 2)));
        assert_eq!(unsigned("12", 7), Err(Errno::EINVAL));
        assert_eq!(unsigned("", 0), Err(Errno::EINVAL));
        assert_eq!(unsigned("x", 10), Err(Errno::EINVAL));
        assert_eq!(unsigned("18446744073709551616", 10), Err(Errno::ERANGE));
    }
}
