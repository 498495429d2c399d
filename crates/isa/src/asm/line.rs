//! The instruction on one line.

use super::AsmErrorKind as E;
use super::lexer::{Kind, Token};
use super::parser::{Failure, Parser, is_reserved};
use super::rhs;
use crate::disasm::{alu_op, condition};
use crate::{AluOp, AtomicOp, CallTarget, Cond, Insn, Names, Operand, Reg, Size, Width, encode};

/// An instruction, with the label (and its column) that its target still waits for.
pub(super) struct Parsed {
    pub insn: Insn,
    pub label: Option<(String, usize)>,
}

impl From<Insn> for Parsed {
    fn from(insn: Insn) -> Self {
        Parsed { insn, label: None }
    }
}

/// A jump target: a number, or a label with its column.
pub(super) enum Target {
    Rel(super::parser::Number),
    Label(String, usize),
}

/// Takes `name:` (a label) off the front; a numeric label, as listings have, is skipped.
pub(super) fn label<'a>(tokens: &mut &[Token<'a>]) -> Option<(&'a str, usize)> {
    loop {
        let [first, Token { kind: Kind::Punct(":"), .. }, rest @ ..] = *tokens else { return None };
        match first.kind {
            Kind::Word(name) if !is_reserved(name) => {
                *tokens = rest;
                return Some((name, first.col));
            }
            Kind::Number { .. } => *tokens = rest,
            _ => return None,
        }
    }
}

/// Parses what is left of a line after its labels; `None` when that is nothing.
pub(super) fn statement(tokens: &[Token<'_>], end: usize, names: &dyn Names) -> Result<Option<Parsed>, Failure> {
    let (written, tokens) = match tokens {
        [Token { kind: Kind::Opcode(code), col, .. }, rest @ ..] => (Some((*code, *col)), rest),
        [] => return Ok(None),
        _ => (None, tokens),
    };
    let mut p = Parser::new(tokens, end);
    let parsed = instruction(&mut p, names)?;
    p.finish()?;
    if let Some((written, col)) = written {
        let mut slots = Vec::new();
        encode(&parsed.insn, &mut slots);
        let actual = slots[0].opcode;
        if actual != written {
            return Err((col, E::OpcodeMismatch { written, actual }));
        }
    }
    Ok(Some(parsed))
}

fn instruction(p: &mut Parser, names: &dyn Names) -> Result<Parsed, Failure> {
    if p.eat("*") {
        return store(p).map(Parsed::from);
    }
    let start = p.col();
    if let Some((width, dst)) = p.maybe_register() {
        return arithmetic(p, width, dst, names);
    }
    match p.peek() {
        Some(Kind::Word("if")) => after_word(p, branch),
        Some(Kind::Word("goto")) => after_word(p, |p| jump(p, false)),
        Some(Kind::Word("gotol")) => after_word(p, |p| jump(p, true)),
        Some(Kind::Word("may_goto")) => after_word(p, may_goto),
        Some(Kind::Word("call")) => after_word(p, |p| call(p, names)),
        Some(Kind::Word("lock")) => after_word(p, lock),
        Some(Kind::Word("store_release")) => after_word(p, store_release),
        Some(Kind::Word("exit")) => after_word(p, |_| Ok(Insn::Exit.into())),
        Some(Kind::Word(w)) => Err((start, E::UnknownName { what: "instruction or register", name: w.to_owned() })),
        _ => p.expected("an instruction"),
    }
}

fn after_word(p: &mut Parser, f: impl FnOnce(&mut Parser) -> Result<Parsed, Failure>) -> Result<Parsed, Failure> {
    p.next();
    f(p)
}

fn arithmetic(p: &mut Parser, width: Width, dst: Reg, names: &dyn Names) -> Result<Parsed, Failure> {
    if p.eat("=") {
        return rhs::value(p, width, dst, names);
    }
    for op in AluOp::ALL {
        if p.eat(alu_op(op)) {
            return Ok(Insn::Alu { width, op, dst, src: p.operand(width)? }.into());
        }
    }
    p.expected("`=` or an operator such as `+=`, `s>>=`")
}

fn store(p: &mut Parser) -> Result<Insn, Failure> {
    let col = p.col();
    let mem = p.mem()?;
    if mem.signed {
        return Err((col, E::BadForm("stores are written with unsigned types")));
    }
    p.want("=", "`=`")?;
    let src = match p.maybe_register() {
        Some((Width::W64, r)) => Operand::Reg(r),
        Some(_) => {
            return Err((col, E::BadForm("the stored register is written as r0 to r10; the type says the size")));
        }
        None => Operand::Imm(p.number()?.imm(mem.size != Size::DW)?),
    };
    Ok(Insn::Store { size: mem.size, base: mem.base, off: mem.off, src })
}

fn branch(p: &mut Parser) -> Result<Parsed, Failure> {
    let (width, dst) = p.register()?;
    let Some(cond) = Cond::ALL.into_iter().find(|c| p.eat(condition(*c))) else {
        return p.expected("a comparison: == != & > >= < <= s> s>= s< s<=");
    };
    let src = match p.peek() {
        Some(Kind::Word(_)) => p.operand(width)?,
        _ => Operand::Imm(p.number()?.imm(true)?),
    };
    if !p.eat_word("goto") {
        return p.expected("`goto`");
    }
    with_target(p, |off| Ok(Insn::Branch { width, cond, dst, src, off: off.int16(SHORT)? }))
}

const SHORT: &str = "this jump reaches -32768 to +32767 slots; `gotol` reaches farther";

fn jump(p: &mut Parser, long: bool) -> Result<Parsed, Failure> {
    with_target(p, |n| {
        let off = if long { n.int32()? } else { n.int16(SHORT)?.into() };
        Ok(Insn::Jump { off, long })
    })
}

fn may_goto(p: &mut Parser) -> Result<Parsed, Failure> {
    with_target(p, |off| Ok(Insn::MayGoto { off: off.int16(SHORT)? }))
}

/// Reads a target; a label leaves a distance of zero for now.
pub(super) fn with_target(
    p: &mut Parser,
    insn: impl FnOnce(super::parser::Number) -> Result<Insn, Failure>,
) -> Result<Parsed, Failure> {
    match target(p)? {
        Target::Rel(n) => Ok(insn(n)?.into()),
        Target::Label(name, col) => {
            let none = super::parser::Number { value: 0, hex: false, col };
            Ok(Parsed { insn: insn(none)?, label: Some((name, col)) })
        }
    }
}

fn target(p: &mut Parser) -> Result<Target, Failure> {
    let col = p.col();
    match p.peek() {
        Some(Kind::Word("pc")) => {
            p.next();
            Ok(Target::Rel(p.number()?))
        }
        Some(Kind::Punct("+" | "-")) => Ok(Target::Rel(p.number()?)),
        Some(Kind::Word(w)) if !is_reserved(w) => {
            p.next();
            Ok(Target::Label(w.to_owned(), col))
        }
        _ => p.expected("a target: `pc+N` or a label"),
    }
}

fn lock(p: &mut Parser) -> Result<Parsed, Failure> {
    p.want("*", "`*`")?;
    let col = p.col();
    let mem = p.mem()?;
    let op = [
        ("+=", AtomicOp::Add { fetch: false }),
        ("|=", AtomicOp::Or { fetch: false }),
        ("&=", AtomicOp::And { fetch: false }),
        ("^=", AtomicOp::Xor { fetch: false }),
    ];
    let Some((_, op)) = op.into_iter().find(|(text, _)| p.eat(text)) else {
        return p.expected("an atomic operator: += |= &= ^=");
    };
    rhs::atomic_size(mem, col)?;
    Ok(Insn::Atomic { size: mem.size, op, base: mem.base, off: mem.off, src: p.reg64()? }.into())
}

fn store_release(p: &mut Parser) -> Result<Parsed, Failure> {
    p.want("(", "`(`")?;
    let col = p.col();
    let mem = p.mem()?;
    if mem.signed {
        return Err((col, E::BadForm("stores are written with unsigned types")));
    }
    p.want(",", "`,`")?;
    let src = p.reg64()?;
    p.want(")", "`)`")?;
    Ok(Insn::StoreRelease { size: mem.size, base: mem.base, off: mem.off, src }.into())
}

/// `call NAME#ID`, `call #ID`, `call NAME`, `call pc+N`, `call LABEL`, `call kfunc NAME#ID [btf N]`.
fn call(p: &mut Parser, names: &dyn Names) -> Result<Parsed, Failure> {
    if p.eat_word("kfunc") {
        return kfunc(p, names);
    }
    if p.eat("#") {
        return Ok(Insn::Call(CallTarget::Helper(p.number()?.uint32()?)).into());
    }
    if let Some(Kind::Number { .. }) = p.peek() {
        return Ok(Insn::Call(CallTarget::Helper(p.number()?.uint32()?)).into());
    }
    match p.peek() {
        Some(Kind::Word(w)) if w != "pc" => {
            let col = p.col();
            p.next();
            if p.eat("#") {
                return Ok(Insn::Call(CallTarget::Helper(p.number()?.uint32()?)).into());
            }
            match names.helper_id(w) {
                Some(id) => Ok(Insn::Call(CallTarget::Helper(id)).into()),
                None => Ok(Parsed { insn: Insn::Call(CallTarget::Local(0)), label: Some((w.to_owned(), col)) }),
            }
        }
        _ => with_target(p, |n| Ok(Insn::Call(CallTarget::Local(n.int32()?)))),
    }
}

fn kfunc(p: &mut Parser, names: &dyn Names) -> Result<Parsed, Failure> {
    let col = p.col();
    let name = match p.peek() {
        Some(Kind::Word(w)) => {
            p.next();
            w
        }
        _ => "",
    };
    let (id, mut off) = if p.eat("#") {
        (p.number()?.int32()?, 0)
    } else if name.is_empty() {
        return p.expected("a kernel function: NAME or #ID");
    } else {
        let unknown = || (col, E::UnknownName { what: "kernel function", name: name.to_owned() });
        names.kfunc_id(name).ok_or_else(unknown)?
    };
    if p.eat_word("btf") {
        off = p.number()?.int16("a BTF index of 16 bits")?;
    }
    Ok(Insn::Call(CallTarget::Kfunc { id, off }).into())
}
