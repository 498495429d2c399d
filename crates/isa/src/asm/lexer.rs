//! One line of program text as tokens.

use super::AsmErrorKind as E;

/// A token, with its column (from 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token<'a> {
    pub kind: Kind<'a>,
    pub text: &'a str,
    pub col: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind<'a> {
    Word(&'a str),
    /// Magnitude; the sign is a token of its own.
    Number {
        value: u64,
        hex: bool,
    },
    Punct(&'a str),
    /// `(b7)`: what a listing writes before an instruction.
    Opcode(u8),
}

/// Operators, the longer before those that they begin with.
const PUNCT: [&str; 34] = [
    "s>>=", "s>=", "s<=", "s/=", "s%=", "<<=", ">>=", "s>", "s<", "+=", "-=", "*=", "/=", "|=", "&=", "%=", "^=", "==",
    "!=", ">=", "<=", "=", ">", "<", "&", "(", ")", "[", "]", "*", ",", "+", "-", "#",
];

/// Splits a line; a comment (`;` or `//`) ends it. Errors carry the column.
pub(super) fn tokens(line: &str) -> Result<Vec<Token<'_>>, (usize, E)> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(c) = line[at..].chars().next() {
        let rest = &line[at..];
        if c == ';' || rest.starts_with("//") {
            break;
        }
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let (kind, len) = token(rest, c).map_err(|e| (at + 1, e))?;
        out.push(Token { kind, text: &rest[..len], col: at + 1 });
        at += len;
    }
    Ok(out)
}

fn token(rest: &str, first: char) -> Result<(Kind<'_>, usize), E> {
    if let Some(opcode) = rest.get(..4).and_then(opcode) {
        return Ok((Kind::Opcode(opcode), 4));
    }
    if let Some(p) = PUNCT.iter().find(|p| rest.starts_with(**p)) {
        return Ok((Kind::Punct(&rest[..p.len()]), p.len()));
    }
    if first == ':' {
        return Ok((Kind::Punct(&rest[..1]), 1));
    }
    let len = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
    if len == 0 {
        return Err(E::BadCharacter(first));
    }
    let text = &rest[..len];
    if first.is_ascii_digit() { Ok((number(text)?, len)) } else { Ok((Kind::Word(text), len)) }
}

fn opcode(text: &str) -> Option<u8> {
    let digits = text.strip_prefix('(')?.strip_suffix(')')?;
    let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    if hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')
}

fn number(text: &str) -> Result<Kind<'_>, E> {
    let hex_digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex_digits.map_or((text, 10), |d| (d, 16));
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(E::Expected { wanted: "a number", found: format!("`{text}`") });
    }
    match u64::from_str_radix(digits, radix) {
        Ok(value) => Ok(Kind::Number { value, hex: radix == 16 }),
        Err(_) => Err(E::OutOfRange { value: text.to_owned(), limit: "at most 64 bits" }),
    }
}
