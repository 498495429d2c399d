//! A cursor over the tokens of one line, and the parts that several instructions share.

use super::AsmErrorKind as E;
use super::lexer::{Kind, Token};
use crate::{Operand, Reg, Size, Width};

/// An error with its column.
pub(super) type Failure = (usize, E);

#[derive(Clone)]
pub(super) struct Parser<'t, 'a> {
    rest: &'t [Token<'a>],
    /// Column after the last token.
    end: usize,
}

/// `(u32 *)(r1 +4)` and what its type name said.
#[derive(Clone, Copy)]
pub(super) struct Mem {
    pub size: Size,
    pub signed: bool,
    pub base: Reg,
    pub off: i16,
}

/// A signed number as written.
#[derive(Clone, Copy)]
pub(super) struct Number {
    pub value: i128,
    pub hex: bool,
    pub col: usize,
}

impl<'t, 'a> Parser<'t, 'a> {
    pub fn new(rest: &'t [Token<'a>], end: usize) -> Self {
        Parser { rest, end }
    }

    pub fn peek(&self) -> Option<Kind<'a>> {
        self.rest.first().map(|t| t.kind)
    }

    pub fn col(&self) -> usize {
        self.rest.first().map_or(self.end, |t| t.col)
    }

    pub fn next(&mut self) -> Option<Kind<'a>> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first.kind)
    }

    /// Takes the operator `p` if it is next.
    pub fn eat(&mut self, p: &str) -> bool {
        let hit = matches!(self.peek(), Some(Kind::Punct(q)) if q == p);
        if hit {
            self.rest = &self.rest[1..];
        }
        hit
    }

    pub fn eat_word(&mut self, word: &str) -> bool {
        let hit = matches!(self.peek(), Some(Kind::Word(w)) if w == word);
        if hit {
            self.rest = &self.rest[1..];
        }
        hit
    }

    pub fn want(&mut self, p: &str, wanted: &'static str) -> Result<(), Failure> {
        if self.eat(p) { Ok(()) } else { self.expected(wanted) }
    }

    /// The error that `wanted` should be next.
    pub fn expected<T>(&self, wanted: &'static str) -> Result<T, Failure> {
        let found = self.rest.first().map_or_else(|| "the end of the line".to_owned(), |t| format!("`{}`", t.text));
        Err((self.col(), E::Expected { wanted, found }))
    }

    pub fn finish(&self) -> Result<(), Failure> {
        match self.rest.first() {
            None => Ok(()),
            Some(t) => Err((t.col, E::Trailing(format!("`{}`", t.text)))),
        }
    }

    pub fn word(&mut self, wanted: &'static str) -> Result<&'a str, Failure> {
        match self.peek() {
            Some(Kind::Word(w)) => {
                self.next();
                Ok(w)
            }
            _ => self.expected(wanted),
        }
    }

    /// A register of either width, if one is next.
    pub fn maybe_register(&mut self) -> Option<(Width, Reg)> {
        let Some(Kind::Word(w)) = self.peek() else { return None };
        let found = register(w)?;
        self.next();
        Some(found)
    }

    pub fn register(&mut self) -> Result<(Width, Reg), Failure> {
        match self.maybe_register() {
            Some(r) => Ok(r),
            None => self.expected("a register (r0 to r10, or w0 to w10 for its low half)"),
        }
    }

    /// A register in its 64-bit form.
    pub fn reg64(&mut self) -> Result<Reg, Failure> {
        let col = self.col();
        match self.register()? {
            (Width::W64, r) => Ok(r),
            _ => Err((col, E::BadForm("this operand is written as r0 to r10, not as a 32-bit half"))),
        }
    }

    pub fn number(&mut self) -> Result<Number, Failure> {
        let col = self.col();
        let negative = if self.eat("-") {
            true
        } else {
            self.eat("+");
            false
        };
        match self.peek() {
            Some(Kind::Number { value, hex }) => {
                self.next();
                let value = i128::from(value);
                Ok(Number { value: if negative { -value } else { value }, hex, col })
            }
            _ => self.expected("a number"),
        }
    }

    /// A register of width `width` or an immediate that this width keeps as written.
    pub fn operand(&mut self, width: Width) -> Result<Operand, Failure> {
        let col = self.col();
        match self.maybe_register() {
            Some((w, r)) if w == width => Ok(Operand::Reg(r)),
            Some(_) => Err((col, E::BadForm("both operands must have the same width (r with r, w with w)"))),
            None => Ok(Operand::Imm(self.number()?.imm(width == Width::W32)?)),
        }
    }

    /// `(u32 *)` or `(s8 *)`; the opening parenthesis is next.
    pub fn pointer_type(&mut self) -> Result<(Size, bool), Failure> {
        const WANTED: &str = "a type: u8, u16, u32, u64, s8, s16 or s32";
        self.want("(", "`(`")?;
        let (size, signed) = match self.peek() {
            Some(Kind::Word("u8")) => (Size::B, false),
            Some(Kind::Word("u16")) => (Size::H, false),
            Some(Kind::Word("u32")) => (Size::W, false),
            Some(Kind::Word("u64")) => (Size::DW, false),
            Some(Kind::Word("s8")) => (Size::B, true),
            Some(Kind::Word("s16")) => (Size::H, true),
            Some(Kind::Word("s32")) => (Size::W, true),
            _ => return self.expected(WANTED),
        };
        self.next();
        self.want("*", "`*`")?;
        self.want(")", "`)`")?;
        Ok((size, signed))
    }

    /// `(r1 +4)`; the opening parenthesis is next.
    pub fn address(&mut self) -> Result<(Reg, i16), Failure> {
        self.want("(", "`(`")?;
        let base = self.reg64()?;
        let off = if self.eat(")") {
            return Ok((base, 0));
        } else {
            self.number()?.int16("an offset of -32768 to 32767")?
        };
        self.want(")", "`)`")?;
        Ok((base, off))
    }

    /// `(u32 *)(r1 +4)`
    pub fn mem(&mut self) -> Result<Mem, Failure> {
        let (size, signed) = self.pointer_type()?;
        let (base, off) = self.address()?;
        Ok(Mem { size, signed, base, off })
    }
}

impl Number {
    /// The 32 bits of an immediate. `bits` allows the unsigned spelling of a negative number, for places where the upper
    /// half does not exist or the kernel's style shows the stored bits.
    pub fn imm(self, bits: bool) -> Result<i32, Failure> {
        if let Ok(v) = i32::try_from(self.value) {
            return Ok(v);
        }
        match u32::try_from(self.value) {
            Ok(v) if bits => Ok(v as i32),
            _ if bits => self.out_of_range("32 bits"),
            _ => self.out_of_range("a signed 32-bit immediate; load it into a register with `rN = NUMBER ll` first"),
        }
    }

    pub fn int16(self, limit: &'static str) -> Result<i16, Failure> {
        i16::try_from(self.value).or_else(|_| self.out_of_range(limit))
    }

    pub fn int32(self) -> Result<i32, Failure> {
        i32::try_from(self.value).or_else(|_| self.out_of_range("a signed 32-bit number"))
    }

    pub fn uint32(self) -> Result<u32, Failure> {
        u32::try_from(self.value).or_else(|_| self.out_of_range("an unsigned 32-bit number"))
    }

    /// 64 bits, signed or unsigned.
    pub fn imm64(self) -> Result<u64, Failure> {
        match (u64::try_from(self.value), i64::try_from(self.value)) {
            (Ok(v), _) => Ok(v),
            (_, Ok(v)) => Ok(v as u64),
            _ => self.out_of_range("64 bits"),
        }
    }

    fn out_of_range<T>(self, limit: &'static str) -> Result<T, Failure> {
        Err((self.col, E::OutOfRange { value: self.value.to_string(), limit }))
    }
}

/// `r3` or `w3`.
fn register(word: &str) -> Option<(Width, Reg)> {
    let (width, digits) = match word.split_at_checked(1)? {
        ("r", d) => (Width::W64, d),
        ("w", d) => (Width::W32, d),
        _ => return None,
    };
    // "r01" is no register.
    if digits.len() > 1 && digits.starts_with('0') || digits.starts_with('+') {
        return None;
    }
    Some((width, Reg::new(digits.parse().ok()?)?))
}

/// True for words that cannot name a label.
pub(super) fn is_reserved(word: &str) -> bool {
    word == "pc" || register(word).is_some()
}
