//! Walking a given way with formulas instead of numbers.
//!
//! The verifier says which instructions lead to the refusal. Following them in that order, every branch on the way becomes a
//! constraint on the packet. Formulas are built for one guessed packet at a time: where an address depends on the packet
//! (a header of variable length) the guess decides which bytes are read.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use xway_abi::{ArgKind, CtxValue, MapType, MemAccess, XdpAttach};
use xway_isa::{AluOp, ByteOrder, CallTarget, Cond, Imm64, Insn, MovExt, Operand, Reg, Width};
use xway_object::{Initial, MapDef};

use crate::expr::{Constraint, E, Expr, Guess, alu, constant, eval, low, opaque, sign, swapped};

/// What a register holds.
#[derive(Clone, Debug)]
enum Val {
    Num(E),
    Ptr(Base, E),
}

/// What an address counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Base {
    /// `data` as the packet came in.
    Packet,
    /// The same, for `data_end`: the offset is the length.
    End,
    Ctx,
    Stack(usize),
    /// A map itself.
    Map(usize),
    /// A value of a map.
    Value(usize),
    /// Something else that is no number.
    Other,
}

struct Frame {
    regs: Vec<Val>,
    stack: HashMap<i64, (Val, u32)>,
    callsite: usize,
}

/// How far the guess follows the way.
pub(crate) enum Walked {
    /// Another outcome at this constraint.
    Diverged(Constraint),
    /// To the refused instruction; it goes wrong there when one of these holds. Empty: it goes wrong as it is, if at all.
    Arrived(Vec<Constraint>),
}

/// One walk.
pub(crate) struct Walk<'a> {
    insns: &'a [Option<Insn>],
    maps: &'a [MapDef],
    guess: &'a Guess,
    frames: Vec<Frame>,
    /// `data` now, from `data` as the packet came in.
    head: E,
    /// `data_end` now, counted likewise.
    end: E,
    /// Packet memory that the program wrote: exact cells, and all their bytes.
    cells: HashMap<(i64, u32), Val>,
    written: HashSet<i64>,
    /// Maps whose values the program wrote.
    dirty: HashSet<usize>,
    /// Constraints that hold so far.
    pub met: Vec<Constraint>,
}

fn unknown() -> Val {
    Val::Num(opaque())
}

impl<'a> Walk<'a> {
    pub fn new(insns: &'a [Option<Insn>], maps: &'a [MapDef], guess: &'a Guess) -> Walk<'a> {
        let mut first = Frame::new(0, 0);
        first.regs[1] = Val::Ptr(Base::Ctx, constant(0));
        Walk {
            insns,
            maps,
            guess,
            frames: vec![first],
            head: constant(0),
            end: Rc::new(Expr::Len),
            cells: HashMap::new(),
            written: HashSet::new(),
            dirty: HashSet::new(),
            met: Vec::new(),
        }
    }

    /// Follows the way. `None` when it is no way of this program.
    pub fn follow(&mut self, way: &[u32]) -> Option<Walked> {
        for pair in way.windows(2) {
            let (pc, next) = (pair[0] as usize, pair[1] as usize);
            let insn = (*self.insns.get(pc)?)?;
            if let Some(constraint) = self.step(&insn, pc, next)? {
                match constraint.met(self.guess) {
                    Some(false) => return Some(Walked::Diverged(constraint)),
                    Some(true) => self.met.push(constraint),
                    None => {}
                }
            }
        }
        let last = (*self.insns.get(*way.last()? as usize)?)?;
        Some(Walked::Arrived(self.goals(&last)))
    }

    fn regs(&mut self) -> &mut Vec<Val> {
        let last = self.frames.len() - 1;
        &mut self.frames[last].regs
    }

    fn reg(&self, r: Reg) -> Val {
        self.frames[self.frames.len() - 1].regs[r.index()].clone()
    }

    fn set(&mut self, r: Reg, v: Val) {
        self.regs()[r.index()] = v;
    }

    fn operand(&self, src: Operand) -> Val {
        match src {
            Operand::Reg(r) => self.reg(r),
            Operand::Imm(i) => Val::Num(constant(i64::from(i) as u64)),
        }
    }

    /// One instruction, with the one that comes next. Gives the constraint of a branch.
    fn step(&mut self, insn: &Insn, pc: usize, next: usize) -> Option<Option<Constraint>> {
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                let v = combine(op, width, &self.reg(dst), &self.operand(src));
                self.set(dst, v);
            }
            Insn::Mov { width, dst, src, ext } => {
                let v = match (self.operand(src), width, ext) {
                    (v, Width::W64, MovExt::None) => v,
                    (Val::Num(e), Width::W32, MovExt::None) => Val::Num(low(32, &e)),
                    (Val::Num(e), width, ext) => {
                        let bits = match ext {
                            MovExt::S8 => 8,
                            MovExt::S16 => 16,
                            _ => 32,
                        };
                        let e = sign(bits, &e);
                        Val::Num(if width == Width::W32 { low(32, &e) } else { e })
                    }
                    _ => unknown(),
                };
                self.set(dst, v);
            }
            Insn::Neg { width, dst } => {
                let v = combine(AluOp::Sub, width, &Val::Num(constant(0)), &self.reg(dst));
                self.set(dst, v);
            }
            Insn::Endian { order, bits, dst } => {
                let bits = u32::from(bits);
                let v = match (self.reg(dst), order) {
                    (Val::Num(e), ByteOrder::ToLe) => Val::Num(low(bits, &e)),
                    (Val::Num(e), _) => Val::Num(swapped(bits, &e)),
                    _ => unknown(),
                };
                self.set(dst, v);
            }
            Insn::LoadImm64 { dst, imm } => {
                let v = match imm {
                    Imm64::Value(x) => Val::Num(constant(x)),
                    Imm64::MapIdx(i) => Val::Ptr(Base::Map(usize::try_from(i).ok()?), constant(0)),
                    Imm64::MapIdxValue { idx, off } => {
                        Val::Ptr(Base::Value(usize::try_from(idx).ok()?), constant(off.into()))
                    }
                    _ => Val::Ptr(Base::Other, opaque()),
                };
                self.set(dst, v);
            }
            Insn::Load { size, signed, dst, base, off } => {
                let mut v = self.load(&self.reg(base), off.into(), size.bytes());
                if let (true, Val::Num(e)) = (signed, &v) {
                    v = Val::Num(sign(size.bits(), e));
                }
                self.set(dst, v);
            }
            Insn::LoadAcquire { size, dst, base, off } => {
                let v = self.load(&self.reg(base), off.into(), size.bytes());
                self.set(dst, v);
            }
            Insn::Store { size, base, off, src } => {
                let v = self.operand(src);
                self.store(&self.reg(base), off.into(), size.bytes(), v);
            }
            Insn::StoreRelease { size, base, off, src } => {
                let v = self.reg(src);
                self.store(&self.reg(base), off.into(), size.bytes(), v);
            }
            Insn::Atomic { size, base, off, src, .. } => {
                self.store(&self.reg(base), off.into(), size.bytes(), unknown());
                self.set(src, unknown());
                self.set(Reg::R0, unknown());
            }
            Insn::Branch { width, cond, dst, src, off } => {
                let target = (pc as i64 + 1 + i64::from(off)) as usize;
                if target != pc + 1 {
                    return Some(self.branch(width, cond, &self.reg(dst), &self.operand(src), next == target));
                }
            }
            Insn::Call(target) => self.call(target, pc, next)?,
            Insn::Exit => {
                let frame = self.frames.pop()?;
                if self.frames.is_empty() {
                    return None;
                }
                if next == frame.callsite + 1 {
                    self.set(Reg::R0, frame.regs[0].clone());
                }
            }
            _ => {}
        }
        Some(None)
    }

    fn branch(&self, width: Width, cond: Cond, a: &Val, b: &Val, holds: bool) -> Option<Constraint> {
        let (a, b) = match (a, b) {
            (Val::Num(a), Val::Num(b)) => (a.clone(), b.clone()),
            (Val::Ptr(Base::Packet | Base::End, a), Val::Ptr(Base::Packet | Base::End, b)) if width == Width::W64 => {
                (a.clone(), b.clone())
            }
            _ => return None,
        };
        Some(Constraint { cond, width, a, b, holds })
    }

    fn load(&self, from: &Val, off: i64, size: u32) -> Val {
        let Val::Ptr(base, e) = from else { return unknown() };
        let Some(at) = eval(e, self.guess).map(|x| (x as i64).wrapping_add(off)) else { return unknown() };
        match base {
            Base::Ctx => match xway_abi::ctx_field(at, size, XdpAttach::Device).map(|f| f.value) {
                Some(CtxValue::PacketStart) => Val::Ptr(Base::Packet, self.head.clone()),
                Some(CtxValue::PacketEnd) => Val::Ptr(Base::End, self.end.clone()),
                Some(CtxValue::MetaStart) => Val::Ptr(Base::Other, opaque()),
                _ => unknown(),
            },
            Base::Packet => {
                if let Some(v) = self.cells.get(&(at, size)) {
                    return v.clone();
                }
                let touched = (at..at + i64::from(size)).any(|i| self.written.contains(&i));
                match usize::try_from(at) {
                    Ok(at) if !touched && at < 1 << 16 => Val::Num(Rc::new(Expr::Field(at, size as usize))),
                    _ => unknown(),
                }
            }
            Base::Stack(frame) => match self.frames.get(*frame).and_then(|f| f.stack.get(&at)) {
                Some((v, n)) if *n == size => v.clone(),
                _ => unknown(),
            },
            Base::Value(map) if !self.dirty.contains(map) => self.first_content(*map, at, size),
            _ => unknown(),
        }
    }

    /// What a value holds before the first packet.
    fn first_content(&self, map: usize, at: i64, size: u32) -> Val {
        let Some(def) = self.maps.get(map) else { return unknown() };
        let bytes = match &def.initial {
            Initial::Data(d) => usize::try_from(at).ok().and_then(|at| d.get(at..at + size as usize)),
            _ if matches!(def.spec.map_type, MapType::Array | MapType::PercpuArray) => {
                return Val::Num(constant(0));
            }
            _ => None,
        };
        let Some(bytes) = bytes else { return unknown() };
        let word = bytes.iter().rev().fold(0u64, |x, b| x << 8 | u64::from(*b));
        Val::Num(constant(word))
    }

    fn store(&mut self, to: &Val, off: i64, size: u32, v: Val) {
        let Val::Ptr(base, e) = to else { return };
        let at = eval(e, self.guess).map(|x| (x as i64).wrapping_add(off));
        let v = match v {
            Val::Num(e) => Val::Num(low(size * 8, &e)),
            v => v,
        };
        match (base, at) {
            (Base::Packet, Some(at)) => {
                let bytes = at..at + i64::from(size);
                self.cells.retain(|(start, n), _| start + i64::from(*n) <= bytes.start || *start >= bytes.end);
                self.written.extend(bytes);
                self.cells.insert((at, size), v);
            }
            (Base::Stack(frame), Some(at)) => {
                if let Some(f) = self.frames.get_mut(*frame) {
                    let end = at + i64::from(size);
                    f.stack.retain(|start, (_, n)| start + i64::from(*n) <= at || *start >= end);
                    f.stack.insert(at, (v, size));
                }
            }
            (Base::Stack(frame), None) => {
                if let Some(f) = self.frames.get_mut(*frame) {
                    f.stack.clear();
                }
            }
            (Base::Value(map), _) => {
                self.dirty.insert(*map);
            }
            _ => {}
        }
    }

    fn call(&mut self, target: CallTarget, pc: usize, next: usize) -> Option<()> {
        match target {
            CallTarget::Local(rel) => {
                let start = (pc as i64 + 1 + i64::from(rel)) as usize;
                if next == start {
                    let mut frame = Frame::new(self.frames.len(), pc);
                    frame.regs[1..6].clone_from_slice(&self.regs()[1..6]);
                    self.frames.push(frame);
                    return Some(());
                }
                // A function that was proved on its own: nothing is known of what it did.
                self.forget_packet();
            }
            CallTarget::Helper(id) => {
                let proto = xway_abi::helper(id)?;
                if next != pc + 1 && proto.args.iter().any(|a| matches!(a.kind, ArgKind::Func(_))) {
                    let mut frame = Frame::new(self.frames.len(), pc);
                    frame.regs[2] = self.regs()[3].clone();
                    self.frames.push(frame);
                    return Some(());
                }
                self.helper(id, proto);
                return Some(());
            }
            CallTarget::Kfunc { .. } => {}
        }
        for r in 0..6 {
            self.regs()[r] = unknown();
        }
        Some(())
    }

    fn helper(&mut self, id: u32, proto: &xway_abi::HelperProto) {
        let args = self.regs()[..6].to_vec();
        for (i, arg) in proto.args.iter().enumerate() {
            if let (ArgKind::Mem(MemAccess::Write | MemAccess::ReadWrite, _), Some(Val::Ptr(Base::Stack(f), _))) =
                (arg.kind, args.get(i + 1))
            {
                self.frames[*f].stack.clear();
            }
        }
        let number = |i: usize| match &args[i] {
            Val::Num(e) => Some(e.clone()),
            Val::Ptr(..) => None,
        };
        let result = match id {
            // A look-up gives null or a value; which one is left to the way.
            1 => match &args[1] {
                Val::Ptr(Base::Map(m), _) => Val::Ptr(Base::Value(*m), constant(0)),
                _ => unknown(),
            },
            44 => {
                if let Some(delta) = number(2) {
                    self.head = alu(AluOp::Add, Width::W64, &self.head, &sign(32, &delta));
                }
                unknown()
            }
            65 => {
                if let Some(delta) = number(2) {
                    self.end = alu(AluOp::Add, Width::W64, &self.end, &sign(32, &delta));
                }
                unknown()
            }
            // bpf_xdp_get_buff_len
            188 => Val::Num(alu(AluOp::Sub, Width::W64, &self.end, &self.head)),
            _ if proto.changes_packet && id != 54 => {
                self.forget_packet();
                unknown()
            }
            _ => unknown(),
        };
        if let (2 | 3, Val::Ptr(Base::Map(m), _)) = (id, &args[1]) {
            self.dirty.insert(*m);
        }
        let regs = self.regs();
        regs[0] = result;
        regs[1..6].fill_with(unknown);
    }

    fn forget_packet(&mut self) {
        self.cells.clear();
        self.written.extend(0..2048);
        self.head = opaque();
        self.end = opaque();
    }

    /// What must hold for the last instruction to go wrong.
    fn goals(&self, insn: &Insn) -> Vec<Constraint> {
        let access =
            |base: Reg, off: i16, size: u32| self.outside(&self.reg(base), i64::from(off), &constant(size.into()));
        match *insn {
            Insn::Load { size, base, off, .. }
            | Insn::LoadAcquire { size, base, off, .. }
            | Insn::Store { size, base, off, .. }
            | Insn::StoreRelease { size, base, off, .. }
            | Insn::Atomic { size, base, off, .. } => access(base, off, size.bytes()),
            Insn::Call(CallTarget::Helper(id)) => {
                let Some(proto) = xway_abi::helper(id) else { return Vec::new() };
                let mut out = Vec::new();
                for (i, arg) in proto.args.iter().enumerate() {
                    let ArgKind::Mem(_, size) = arg.kind else { continue };
                    let Some(p) = Reg::new(i as u8 + 1) else { continue };
                    let len = match size {
                        xway_abi::MemSize::Fixed(n) | xway_abi::MemSize::FixedAligned(n) => constant(n.into()),
                        xway_abi::MemSize::NextArg => match Reg::new(i as u8 + 2).map(|r| self.reg(r)) {
                            Some(Val::Num(e)) => e,
                            _ => continue,
                        },
                    };
                    out.extend(self.outside(&self.reg(p), 0, &len));
                }
                out
            }
            _ => Vec::new(),
        }
    }

    /// Constraints each of which puts `len` bytes at the pointer outside what it points into.
    fn outside(&self, p: &Val, off: i64, len: &E) -> Vec<Constraint> {
        let Val::Ptr(base, e) = p else { return Vec::new() };
        let plus = |e: &E, x: &E| alu(AluOp::Add, Width::W64, e, x);
        let start = plus(e, &constant(off as u64));
        let behind =
            |limit: E| Constraint { cond: Cond::SGt, width: Width::W64, a: plus(&start, len), b: limit, holds: true };
        let before =
            |limit: E| Constraint { cond: Cond::SLt, width: Width::W64, a: start.clone(), b: limit, holds: true };
        match base {
            Base::Packet => vec![behind(self.end.clone()), before(self.head.clone())],
            Base::Value(m) => {
                let size = self.maps.get(*m).map_or(0, |d| d.spec.value_size);
                vec![behind(constant(size.into())), before(constant(0))]
            }
            Base::Stack(_) => vec![behind(constant(0)), before(constant(-512i64 as u64))],
            _ => Vec::new(),
        }
    }
}

impl Frame {
    fn new(index: usize, callsite: usize) -> Frame {
        let mut regs = vec![unknown(); 11];
        regs[10] = Val::Ptr(Base::Stack(index), constant(0));
        Frame { regs, stack: HashMap::new(), callsite }
    }
}

/// `a OP b`
fn combine(op: AluOp, width: Width, a: &Val, b: &Val) -> Val {
    let sum = |p: &E, n: &E| alu(op, Width::W64, p, n);
    match (a, b, op, width) {
        (Val::Num(a), Val::Num(b), ..) => Val::Num(alu(op, width, a, b)),
        (Val::Ptr(base, p), Val::Num(n), AluOp::Add | AluOp::Sub, Width::W64) => Val::Ptr(*base, sum(p, n)),
        (Val::Num(n), Val::Ptr(base, p), AluOp::Add, Width::W64) => Val::Ptr(*base, sum(p, n)),
        (Val::Ptr(Base::Packet | Base::End, p), Val::Ptr(Base::Packet | Base::End, q), AluOp::Sub, width) => {
            Val::Num(alu(op, width, p, q))
        }
        _ => unknown(),
    }
}
