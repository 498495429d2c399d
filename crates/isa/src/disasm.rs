//! Instructions as text, in the style of the kernel's verifier log and of `bpftool prog dump xlated`.
//!
//! Where that style loses information, ours adds a word, so that [`crate::assemble`] gets the same slots back: map
//! references say how they refer (`map[idx:0]`, `map[fd:3]`), and kernel functions are marked (`call kfunc NAME#ID`).

use std::fmt;

use crate::{
    AluOp, AtomicOp, ByteOrder, CallTarget, Cond, DecodeError, Imm64, Insn, LegacyMode, MovExt, Names, NoNames,
    Operand, Reg, Size, Slot, Width, decode_at,
};

/// The text of a whole program, a line for each instruction: `   0: (b7) r0 = 2`. Fails where decoding fails.
pub fn listing(slots: &[Slot], names: &dyn Names) -> Result<String, DecodeError> {
    use fmt::Write;
    let mut out = String::new();
    let mut at = 0;
    while at < slots.len() {
        let insn = decode_at(slots, at)?;
        let text = with_names(&insn, names);
        writeln!(out, "{at:4}: ({:02x}) {text}", slots[at].opcode).expect("writing to a String cannot fail");
        at += insn.slots();
    }
    Ok(out)
}

/// The text of one instruction, with names from `names`.
pub fn with_names<'a>(insn: &'a Insn, names: &'a dyn Names) -> impl fmt::Display + 'a {
    Text { insn, names }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Text { insn: self, names: &NoNames }.fmt(f)
    }
}

struct Text<'a> {
    insn: &'a Insn,
    names: &'a dyn Names,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.insn {
            Insn::Alu { width, op, dst, src } => {
                write!(f, "{} {} {}", Named(width, dst), alu_op(op), Rhs(width, src))
            }
            Insn::Mov { width, dst, src, ext } => {
                write!(f, "{} = {}{}", Named(width, dst), extension(ext), Rhs(width, src))
            }
            Insn::AddrSpaceCast { dst, src, spaces } => {
                let (to, from) = ((spaces as u32) >> 16, spaces as u16);
                write!(f, "{dst} = addr_space_cast({src}, {to}, {from})")
            }
            Insn::Neg { width, dst } => write!(f, "{0} = -{0}", Named(width, dst)),
            Insn::Endian { order, bits, dst } => {
                let name = match order {
                    ByteOrder::ToLe => "le",
                    ByteOrder::ToBe => "be",
                    ByteOrder::Swap => "bswap",
                };
                write!(f, "{dst} = {name}{bits} {dst}")
            }
            Insn::LoadImm64 { dst, imm } => {
                write!(f, "{dst} = ")?;
                self.imm64(f, imm)
            }
            Insn::Load { size, signed, dst, base, off } => {
                write!(f, "{dst} = *({}{} *)({base} {off:+})", if signed { "s" } else { "u" }, size.bits())
            }
            Insn::Store { size, base, off, src } => {
                write!(f, "*{} = {}", Mem { size, base, off }, Rhs(Width::W64, src))
            }
            Insn::Atomic { size, op, base, off, src } => atomic(f, op, Mem { size, base, off }, src),
            Insn::LoadAcquire { size, dst, base, off } => {
                write!(f, "{dst} = load_acquire({})", Mem { size, base, off })
            }
            Insn::StoreRelease { size, base, off, src } => {
                write!(f, "store_release({}, {src})", Mem { size, base, off })
            }
            Insn::Jump { off, long } => write!(f, "{} pc{off:+}", if long { "gotol" } else { "goto" }),
            Insn::Branch { width, cond, dst, src, off } => {
                write!(f, "if {} {} ", Named(width, dst), condition(cond))?;
                match src {
                    Operand::Reg(r) => write!(f, "{}", Named(width, r))?,
                    // As the kernel does: the stored 32 bits, even where the comparison sign-extends them.
                    Operand::Imm(i) => write!(f, "{i:#x}")?,
                }
                write!(f, " goto pc{off:+}")
            }
            Insn::MayGoto { off } => write!(f, "may_goto pc{off:+}"),
            Insn::Call(target) => self.call(f, target),
            Insn::Exit => f.write_str("exit"),
            Insn::LegacyLoad { size, mode: LegacyMode::Abs, imm } => write!(f, "r0 = *(u{} *)skb[{imm}]", size.bits()),
            Insn::LegacyLoad { size, mode: LegacyMode::Ind(r), imm } => {
                write!(f, "r0 = *(u{} *)skb[{r} + {imm}]", size.bits())
            }
        }
    }
}

impl Text<'_> {
    fn imm64(&self, f: &mut fmt::Formatter<'_>, imm: Imm64) -> fmt::Result {
        match imm {
            Imm64::Value(v) => write!(f, "{v:#x}"),
            Imm64::MapFd(fd) => write!(f, "map[fd:{fd}]"),
            Imm64::MapFdValue { fd, off } => write!(f, "map[fd:{fd}][0]+{off}"),
            Imm64::MapIdx(idx) => self.map(f, idx),
            Imm64::MapIdxValue { idx, off } => {
                self.map(f, idx)?;
                write!(f, "[0]+{off}")
            }
            Imm64::BtfId { id, btf_fd } => write!(f, "btf[fd:{btf_fd}][id:{id}]"),
            Imm64::Func(rel) => write!(f, "subprog[{rel:+}]"),
        }
    }

    fn map(&self, f: &mut fmt::Formatter<'_>, idx: i32) -> fmt::Result {
        match self.names.map(idx) {
            Some(name) => write!(f, "map[{name}]"),
            None => write!(f, "map[idx:{idx}]"),
        }
    }

    fn call(&self, f: &mut fmt::Formatter<'_>, target: CallTarget) -> fmt::Result {
        match target {
            CallTarget::Helper(id) => match self.names.helper(id) {
                Some(name) => write!(f, "call {name}#{id}"),
                None => write!(f, "call helper#{id}"),
            },
            CallTarget::Local(rel) => write!(f, "call pc{rel:+}"),
            CallTarget::Kfunc { id, off } => {
                match self.names.kfunc(id, off) {
                    Some(name) => write!(f, "call kfunc {name}#{id}")?,
                    None => write!(f, "call kfunc #{id}")?,
                }
                if off != 0 { write!(f, " btf {off}") } else { Ok(()) }
            }
        }
    }
}

fn atomic(f: &mut fmt::Formatter<'_>, op: AtomicOp, mem: Mem, src: Reg) -> fmt::Result {
    let (name, sign, fetch) = match op {
        AtomicOp::Add { fetch } => ("add", "+=", fetch),
        AtomicOp::Or { fetch } => ("or", "|=", fetch),
        AtomicOp::And { fetch } => ("and", "&=", fetch),
        AtomicOp::Xor { fetch } => ("xor", "^=", fetch),
        AtomicOp::Xchg => return write!(f, "{src} = atomic{}_xchg({mem}, {src})", mem.suffix()),
        AtomicOp::CmpXchg => return write!(f, "r0 = atomic{}_cmpxchg({mem}, r0, {src})", mem.suffix()),
    };
    if fetch {
        write!(f, "{src} = atomic{}_fetch_{name}({mem}, {src})", mem.suffix())
    } else {
        write!(f, "lock *{mem} {sign} {src}")
    }
}

/// `(u32 *)(r1 +4)`
#[derive(Clone, Copy)]
struct Mem {
    size: Size,
    base: Reg,
    off: i16,
}

impl Mem {
    /// What the names of atomic operations carry for eight bytes.
    fn suffix(self) -> &'static str {
        if self.size == Size::DW { "64" } else { "" }
    }
}

impl fmt::Display for Mem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(u{} *)({} {:+})", self.size.bits(), self.base, self.off)
    }
}

/// A register under the name that says its width: `r1` or `w1`.
struct Named(Width, Reg);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.0 == Width::W64 { 'r' } else { 'w' }, self.1.index())
    }
}

struct Rhs(Width, Operand);

impl fmt::Display for Rhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Operand::Reg(r) => Named(self.0, r).fmt(f),
            Operand::Imm(i) => write!(f, "{i}"),
        }
    }
}

pub(crate) const fn extension(ext: MovExt) -> &'static str {
    match ext {
        MovExt::None => "",
        MovExt::S8 => "(s8)",
        MovExt::S16 => "(s16)",
        MovExt::S32 => "(s32)",
    }
}

pub(crate) const fn alu_op(op: AluOp) -> &'static str {
    match op {
        AluOp::Add => "+=",
        AluOp::Sub => "-=",
        AluOp::Mul => "*=",
        AluOp::Div => "/=",
        AluOp::SDiv => "s/=",
        AluOp::Or => "|=",
        AluOp::And => "&=",
        AluOp::Lsh => "<<=",
        AluOp::Rsh => ">>=",
        AluOp::Mod => "%=",
        AluOp::SMod => "s%=",
        AluOp::Xor => "^=",
        AluOp::Arsh => "s>>=",
    }
}

pub(crate) const fn condition(cond: Cond) -> &'static str {
    match cond {
        Cond::Eq => "==",
        Cond::Ne => "!=",
        Cond::Set => "&",
        Cond::Gt => ">",
        Cond::Ge => ">=",
        Cond::Lt => "<",
        Cond::Le => "<=",
        Cond::SGt => "s>",
        Cond::SGe => "s>=",
        Cond::SLt => "s<",
        Cond::SLe => "s<=",
    }
}
