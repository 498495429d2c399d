//! Bytes written as text.
//!
//! | form | bytes |
//! |---|---|
//! | `hex:0a0b0c`, `hex:0a 0b 0c`, `hex:0a:0b` | as written |
//! | `base64:CgsM` | decoded |
//! | `text:abc` | the characters |
//! | `mac:02:00:00:00:00:01` | six |
//! | `ip:192.0.2.1`, `ip:2001:db8::1` | four or sixteen, network order |
//! | `be16:80`, `be32:…`, `be64:…` | network order |
//! | `u8:…`, `u16:…`, `u32:…`, `u64:…`, `s8:` … `s64:` | little-endian |
//!
//! Numbers may be decimal or `0x` hexadecimal.

use base64::Engine;

/// Why a literal could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LiteralError {
    /// Not an even number of hexadecimal digits, or another character among them.
    #[error(
        "{0:?} is not hexadecimal: expected pairs of the digits 0-9 and a-f, with spaces or colons between bytes if wanted"
    )]
    Hex(String),
    /// Not base64.
    #[error("{0:?} is not base64: {1}")]
    Base64(String, String),
    /// Not an address.
    #[error("{0:?} is not {1}")]
    Address(String, &'static str),
    /// Not a number, or too large for its size.
    #[error("{0:?} is not a number of {1} bits")]
    Number(String, u32),
}

/// Reads a literal with a prefix; `None` when the text has none of the prefixes of this module.
pub fn parse(text: &str) -> Option<Result<Vec<u8>, LiteralError>> {
    let (prefix, rest) = text.split_once(':')?;
    Some(match prefix {
        "hex" => hex(rest),
        "base64" => base64(rest),
        "text" => Ok(rest.as_bytes().to_vec()),
        "mac" => mac(rest).map(|m| m.to_vec()),
        "ip" => ip(rest),
        "be16" => unsigned(rest, 16).map(|v| (v as u16).to_be_bytes().to_vec()),
        "be32" => unsigned(rest, 32).map(|v| (v as u32).to_be_bytes().to_vec()),
        "be64" => unsigned(rest, 64).map(|v| v.to_be_bytes().to_vec()),
        "u8" => unsigned(rest, 8).map(|v| vec![v as u8]),
        "u16" => unsigned(rest, 16).map(|v| (v as u16).to_le_bytes().to_vec()),
        "u32" => unsigned(rest, 32).map(|v| (v as u32).to_le_bytes().to_vec()),
        "u64" => unsigned(rest, 64).map(|v| v.to_le_bytes().to_vec()),
        "s8" => signed(rest, 8).map(|v| vec![v as u8]),
        "s16" => signed(rest, 16).map(|v| (v as u16).to_le_bytes().to_vec()),
        "s32" => signed(rest, 32).map(|v| (v as u32).to_le_bytes().to_vec()),
        "s64" => signed(rest, 64).map(|v| v.to_le_bytes().to_vec()),
        _ => return None,
    })
}

/// Hexadecimal digits, in pairs. White space, colons and a `0x` before each byte or the whole are allowed.
pub fn hex(text: &str) -> Result<Vec<u8>, LiteralError> {
    let bad = || LiteralError::Hex(shorten(text));
    let mut out = Vec::new();
    for group in text.split(|c: char| c.is_whitespace() || c == ':' || c == ',').filter(|g| !g.is_empty()) {
        let digits = group.strip_prefix("0x").or_else(|| group.strip_prefix("0X")).unwrap_or(group).as_bytes();
        let (pairs, rest) = digits.as_chunks::<2>();
        if !rest.is_empty() || digits.is_empty() {
            return Err(bad());
        }
        for &[high, low] in pairs {
            out.push((digit(high).ok_or_else(bad)? << 4) | digit(low).ok_or_else(bad)?);
        }
    }
    Ok(out)
}

/// Standard base64, with or without padding; white space is ignored.
pub fn base64(text: &str) -> Result<Vec<u8>, LiteralError> {
    let clean: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(clean.trim_end_matches('='))
        .map_err(|e| LiteralError::Base64(shorten(text), e.to_string()))
}

/// An Ethernet address, `02:00:00:00:00:01`.
pub fn mac(text: &str) -> Result<[u8; 6], LiteralError> {
    let bad = || LiteralError::Address(shorten(text), "an Ethernet address (six bytes, as 02:00:00:00:00:01)");
    let mut out = [0; 6];
    let mut parts = text.trim().split([':', '-']);
    for byte in &mut out {
        let part = parts.next().filter(|p| matches!(p.len(), 1 | 2)).ok_or_else(bad)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
    }
    if parts.next().is_some() { Err(bad()) } else { Ok(out) }
}

/// An IPv4 or IPv6 address in network order.
pub fn ip(text: &str) -> Result<Vec<u8>, LiteralError> {
    match text.trim().parse() {
        Ok(std::net::IpAddr::V4(a)) => Ok(a.octets().to_vec()),
        Ok(std::net::IpAddr::V6(a)) => Ok(a.octets().to_vec()),
        Err(_) => Err(LiteralError::Address(shorten(text), "an IPv4 or IPv6 address")),
    }
}

/// An unsigned number of at most `bits` bits, decimal or `0x` hexadecimal.
pub fn unsigned(text: &str, bits: u32) -> Result<u64, LiteralError> {
    let t = text.trim();
    let value = match t.strip_prefix("0x").or_else(|| t.strip_prefix("0X")) {
        Some(h) => u64::from_str_radix(h, 16),
        None => t.parse(),
    };
    value.ok().filter(|v| bits >= 64 || v >> bits == 0).ok_or_else(|| LiteralError::Number(shorten(text), bits))
}

/// A signed number of at most `bits` bits.
pub fn signed(text: &str, bits: u32) -> Result<i64, LiteralError> {
    let limit = 1i128 << (bits - 1);
    text.trim()
        .parse::<i64>()
        .ok()
        .filter(|v| (-limit..limit).contains(&(*v as i128)))
        .ok_or_else(|| LiteralError::Number(shorten(text), bits))
}

fn digit(c: u8) -> Option<u8> {
    (c as char).to_digit(16).map(|d| d as u8)
}

/// Error messages quote what was written, but not a whole jumbo frame of it.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_gives_its_bytes() {
        let cases: &[(&str, &[u8])] = &[
            ("hex:0a0B 0c:0d", &[10, 11, 12, 13]),
            ("hex:0x0a 0x0b", &[10, 11]),
            ("hex:", &[]),
            ("base64:CgsM", &[10, 11, 12]),
            ("base64:CgsMDQ==", &[10, 11, 12, 13]),
            ("text:ab", b"ab"),
            ("mac:02:00:00:00:00:01", &[2, 0, 0, 0, 0, 1]),
            ("ip:192.0.2.1", &[192, 0, 2, 1]),
            ("ip:::1", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            ("be16:80", &[0, 80]),
            ("be32:0x01020304", &[1, 2, 3, 4]),
            ("u16:80", &[80, 0]),
            ("s32:-2", &[0xfe, 0xff, 0xff, 0xff]),
            ("s8:-128", &[0x80]),
            ("u64:18446744073709551615", &[0xff; 8]),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text).unwrap().unwrap(), *bytes, "{text}");
        }
    }

    #[test]
    fn wrong_literals_are_refused() {
        for text in [
            "hex:0",
            "hex:0g",
            "hex:0x",
            "hex:é0",
            "base64:!",
            "mac:1:2:3:4:5",
            "mac:1:2:3:4:5:6:7",
            "ip:1.2.3",
            "be16:65536",
            "u8:-1",
            "s8:128",
            "u32:",
            "be32:0x",
            "mac:+1:0:0:0:0:0x",
        ] {
            assert!(parse(text).unwrap().is_err(), "{text}");
        }
        assert_eq!(parse("plain"), None);
        assert_eq!(parse("other:1"), None);
    }
}
