//! What may stand to the right of `rN =`.

use super::AsmErrorKind as E;
use super::lexer::Kind;
use super::line::{Parsed, with_target};
use super::parser::{Failure, Mem, Parser};
use crate::{AtomicOp, ByteOrder, Imm64, Insn, LegacyMode, MovExt, Names, Operand, Reg, Size, Width};

/// The instruction `dst = …`; the `=` has been read.
pub(super) fn value(p: &mut Parser, width: Width, dst: Reg, names: &dyn Names) -> Result<Parsed, Failure> {
    let start = p.col();
    if let Some((w, src)) = p.maybe_register() {
        if w != width {
            return Err((start, E::BadForm("both operands must have the same width (r with r, w with w)")));
        }
        return Ok(Insn::Mov { width, dst, src: Operand::Reg(src), ext: MovExt::None }.into());
    }
    match p.peek() {
        Some(Kind::Punct("(")) => sign_extended(p, width, dst).map(Parsed::from),
        Some(Kind::Punct("-")) => minus(p, width, dst).map(Parsed::from),
        Some(Kind::Number { .. } | Kind::Punct("+")) => constant(p, width, dst).map(Parsed::from),
        _ if width == Width::W32 => p.expected("a register w0 to w10, a number, or a sign extension"),
        Some(Kind::Punct("*")) => load(p, dst).map(Parsed::from),
        Some(Kind::Word(word)) => word_value(p, dst, word, names),
        _ => p.expected("a value"),
    }
}

/// `(s8)r2`
fn sign_extended(p: &mut Parser, width: Width, dst: Reg) -> Result<Insn, Failure> {
    p.want("(", "`(`")?;
    let col = p.col();
    let ext = match p.word("s8, s16 or s32")? {
        "s8" => MovExt::S8,
        "s16" => MovExt::S16,
        "s32" if width == Width::W64 => MovExt::S32,
        "s32" => return Err((col, E::BadForm("(s32) needs 64-bit registers"))),
        _ => return Err((col, E::BadForm("a register move extends from s8, s16 or s32"))),
    };
    p.want(")", "`)`")?;
    let col = p.col();
    match p.register()? {
        (w, src) if w == width => Ok(Insn::Mov { width, dst, src: Operand::Reg(src), ext }),
        _ => Err((col, E::BadForm("both operands must have the same width (r with r, w with w)"))),
    }
}

/// `-r1` or a negative number.
fn minus(p: &mut Parser, width: Width, dst: Reg) -> Result<Insn, Failure> {
    let mut ahead = p.clone();
    ahead.next();
    let col = ahead.col();
    let Some(found) = ahead.maybe_register() else { return constant(p, width, dst) };
    *p = ahead;
    if found != (width, dst) {
        return Err((col, E::BadForm("negation works in place: write `rN = -rN`")));
    }
    Ok(Insn::Neg { width, dst })
}

fn constant(p: &mut Parser, width: Width, dst: Reg) -> Result<Insn, Failure> {
    let n = p.number()?;
    let wide = p.eat_word("ll") || n.hex || i32::try_from(n.value).is_err();
    if width == Width::W64 && wide {
        return Ok(Insn::LoadImm64 { dst, imm: Imm64::Value(n.imm64()?) });
    }
    let src = Operand::Imm(n.imm(width == Width::W32)?);
    Ok(Insn::Mov { width, dst, src, ext: MovExt::None })
}

/// `*(u32 *)(r1 +0)`, or legacy packet access: `*(u8 *)skb[12]`, `*(u8 *)skb[r6 + 12]`.
fn load(p: &mut Parser, dst: Reg) -> Result<Insn, Failure> {
    p.want("*", "`*`")?;
    let col = p.col();
    let (size, signed) = p.pointer_type()?;
    if p.eat_word("skb") {
        if signed || size == Size::DW || dst != Reg::R0 {
            return Err((col, E::BadForm("packet access loads u8, u16 or u32 into r0")));
        }
        return legacy(p, size);
    }
    let (base, off) = p.address()?;
    Ok(Insn::Load { size, signed, dst, base, off })
}

fn legacy(p: &mut Parser, size: Size) -> Result<Insn, Failure> {
    p.want("[", "`[`")?;
    let mode = match p.peek() {
        Some(Kind::Word(_)) => {
            let base = p.reg64()?;
            p.want("+", "`+`")?;
            LegacyMode::Ind(base)
        }
        _ => LegacyMode::Abs,
    };
    let imm = p.number()?.imm(true)?;
    p.want("]", "`]`")?;
    Ok(Insn::LegacyLoad { size, mode, imm })
}

fn word_value(p: &mut Parser, dst: Reg, word: &str, names: &dyn Names) -> Result<Parsed, Failure> {
    let col = p.col();
    if let Some((order, bits)) = byte_order(word) {
        p.next();
        let col = p.col();
        if p.reg64()? != dst {
            return Err((col, E::BadForm("byte order changes in place: write `rN = be16 rN`")));
        }
        return Ok(Insn::Endian { order, bits, dst }.into());
    }
    p.next();
    let imm = match word {
        "map" => map(p, names)?,
        "btf" => btf(p)?,
        "subprog" => return subprog(p, dst),
        "load_acquire" => return load_acquire(p, dst).map(Parsed::from),
        "addr_space_cast" => return addr_space_cast(p, dst).map(Parsed::from),
        _ if word.starts_with("atomic") => return atomic(p, dst, word, col).map(Parsed::from),
        _ => return Err((col, E::UnknownName { what: "value", name: word.to_owned() })),
    };
    Ok(Insn::LoadImm64 { dst, imm }.into())
}

fn byte_order(word: &str) -> Option<(ByteOrder, u8)> {
    let orders = [("bswap", ByteOrder::Swap), ("be", ByteOrder::ToBe), ("le", ByteOrder::ToLe)];
    let (bits, order) = orders.into_iter().find_map(|(name, order)| Some((word.strip_prefix(name)?, order)))?;
    let bits = match bits {
        "16" => 16,
        "32" => 32,
        "64" => 64,
        _ => return None,
    };
    Some((order, bits))
}

/// `[idx:0]`, `[fd:3]`, `[NAME]`, each also with `[0]+OFFSET` for an address in the value.
fn map(p: &mut Parser, names: &dyn Names) -> Result<Imm64, Failure> {
    p.want("[", "`[`")?;
    let col = p.col();
    let name = p.word("idx, fd, or the name of a map")?;
    let (by_fd, number) = if p.eat(":") {
        let by_fd = match name {
            "fd" => true,
            "idx" => false,
            _ => return Err((col, E::BadForm("a map is given as [idx:N], [fd:N] or [NAME]"))),
        };
        (by_fd, p.number()?.int32()?)
    } else {
        let unknown = || (col, E::UnknownName { what: "map", name: name.to_owned() });
        (false, names.map_idx(name).ok_or_else(unknown)?)
    };
    p.want("]", "`]`")?;
    let value = p.eat("[");
    let mut off = 0;
    if value {
        let col = p.col();
        if p.number()?.value != 0 {
            return Err((col, E::BadForm("only the address of a map's first value, [0], can be loaded")));
        }
        p.want("]", "`]`")?;
        if matches!(p.peek(), Some(Kind::Punct("+"))) {
            off = p.number()?.uint32()?;
        }
    }
    Ok(match (by_fd, value) {
        (true, false) => Imm64::MapFd(number),
        (true, true) => Imm64::MapFdValue { fd: number, off },
        (false, false) => Imm64::MapIdx(number),
        (false, true) => Imm64::MapIdxValue { idx: number, off },
    })
}

/// `[fd:0][id:1234]`
fn btf(p: &mut Parser) -> Result<Imm64, Failure> {
    let mut field = |name: &'static str, wanted: &'static str| {
        p.want("[", "`[`")?;
        if !p.eat_word(name) {
            return p.expected(wanted);
        }
        p.want(":", "`:`")?;
        let n = p.number()?.int32()?;
        p.want("]", "`]`")?;
        Ok(n)
    };
    Ok(Imm64::BtfId { btf_fd: field("fd", "`fd`")?, id: field("id", "`id`")? })
}

/// `[+5]` or `[LABEL]`
fn subprog(p: &mut Parser, dst: Reg) -> Result<Parsed, Failure> {
    p.want("[", "`[`")?;
    let parsed = with_target(p, |n| Ok(Insn::LoadImm64 { dst, imm: Imm64::Func(n.int32()?) }))?;
    p.want("]", "`]`")?;
    Ok(parsed)
}

fn load_acquire(p: &mut Parser, dst: Reg) -> Result<Insn, Failure> {
    p.want("(", "`(`")?;
    let col = p.col();
    let mem = p.mem()?;
    if mem.signed {
        return Err((col, E::BadForm("load_acquire takes unsigned types")));
    }
    p.want(")", "`)`")?;
    Ok(Insn::LoadAcquire { size: mem.size, dst, base: mem.base, off: mem.off })
}

/// `addr_space_cast(r2, 0, 1)`
fn addr_space_cast(p: &mut Parser, dst: Reg) -> Result<Insn, Failure> {
    p.want("(", "`(`")?;
    let src = p.reg64()?;
    let mut half = || {
        p.want(",", "`,`")?;
        let n = p.number()?;
        u16::try_from(n.value).map_err(|_| {
            let limit = "an address space is a 16-bit number";
            (n.col, E::OutOfRange { value: n.value.to_string(), limit })
        })
    };
    let (to, from) = (half()?, half()?);
    p.want(")", "`)`")?;
    let spaces = (u32::from(to) << 16 | u32::from(from)) as i32;
    Ok(Insn::AddrSpaceCast { dst, src, spaces })
}

/// `atomic64_fetch_add((u64 *)(r1 +0), r2)` and its relatives.
fn atomic(p: &mut Parser, dst: Reg, word: &str, start: usize) -> Result<Insn, Failure> {
    let tail = word.strip_prefix("atomic").unwrap_or(word);
    let (name, wide) = tail.strip_prefix("64").map_or((tail, false), |t| (t, true));
    let op = match name {
        "_fetch_add" => AtomicOp::Add { fetch: true },
        "_fetch_or" => AtomicOp::Or { fetch: true },
        "_fetch_and" => AtomicOp::And { fetch: true },
        "_fetch_xor" => AtomicOp::Xor { fetch: true },
        "_xchg" => AtomicOp::Xchg,
        "_cmpxchg" => AtomicOp::CmpXchg,
        _ => return Err((start, E::UnknownName { what: "atomic operation", name: word.to_owned() })),
    };
    p.want("(", "`(`")?;
    let col = p.col();
    let mem = p.mem()?;
    atomic_size(mem, col)?;
    if wide != (mem.size == Size::DW) {
        return Err((col, E::BadForm("atomic64_… takes a u64, atomic_… a u32")));
    }
    p.want(",", "`,`")?;
    let result_is = |p: &mut Parser, what: &'static str| {
        let col = p.col();
        if p.reg64()? == dst { Ok(()) } else { Err((col, E::BadForm(what))) }
    };
    let src = if op == AtomicOp::CmpXchg {
        if dst != Reg::R0 {
            return Err((start, E::BadForm("a compare-and-exchange compares with r0 and returns in r0")));
        }
        result_is(p, "a compare-and-exchange compares with r0 and returns in r0")?;
        p.want(",", "`,`")?;
        p.reg64()?
    } else {
        result_is(p, "a fetching operation returns in its operand register: rN = atomic…(…, rN)")?;
        dst
    };
    p.want(")", "`)`")?;
    Ok(Insn::Atomic { size: mem.size, op, base: mem.base, off: mem.off, src })
}

/// Refuses the sizes that no atomic read-modify-write has.
pub(super) fn atomic_size(mem: Mem, col: usize) -> Result<(), Failure> {
    match (mem.size, mem.signed) {
        (Size::W | Size::DW, false) => Ok(()),
        _ => Err((col, E::BadForm("atomic operations work on u32 and u64"))),
    }
}
