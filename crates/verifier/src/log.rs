//! The state log of `-v`, in the format of Linux's verifier: behind each instruction what it read and wrote, whole states where
//! a path is taken up. Held against Linux's own log by `crates/testkit/tests/verifier_log.rs`.
//!
//! What differs: maps are named in the instructions, identities are counted otherwise, and paths that only one of the two walks.

use std::fmt::Write;

use xway_isa::{Insn, Names, with_names};
use xway_object::{HelperNames, MapDef};

use crate::domain::Scalar;
use crate::explore::{Flow, NOWHERE, Verifier};
use crate::state::{Byte, Frame, Slot, State};
use crate::value::{Base, MemKind, Num, Ptr, Value};

/// The text, and the path that was taken up last.
#[derive(Default)]
pub(crate) struct Log {
    /// What is shown.
    pub text: String,
    /// Where the path that is taken up begins in the text, and the branch from which it goes; until its first instruction.
    switched: Option<(usize, u32)>,
}

impl Verifier<'_> {
    fn logs(&self) -> bool {
        self.config.log && self.log.text.len() < self.config.log_max
    }

    /// An instruction that is about to be walked. Gives the state before it, for [`Verifier::log_effect`].
    pub fn log_insn(&mut self, st: &State, insn: &Insn) -> Option<State> {
        if !self.logs() {
            return None;
        }
        self.log.switched = None;
        if self.log.text.is_empty() {
            let whole = self.state(st);
            let _ = writeln!(self.log.text, "{}:{whole}", st.pc);
        }
        let i = self.program.line_info.partition_point(|l| l.insn <= st.pc);
        if let Some(l) = i.checked_sub(1).map(|i| &self.program.line_info[i])
            && l.insn == st.pc
        {
            let file = l.file.rsplit('/').next().unwrap_or("");
            let _ = writeln!(self.log.text, "; {} @ {file}:{}", l.text.trim(), l.line);
        }
        let opcode = self.program.insns[st.pc].opcode;
        let line = format!("{}: ({opcode:02x}) {}", st.pc, with_names(insn, &Functions(self)));
        self.log.text.push_str(&line);
        Some(st.clone())
    }

    /// What the instruction made of it: the registers and stack slots that it read or wrote.
    pub fn log_effect(&mut self, before: &State, after: &State, insn: &Insn, flow: Option<&Flow>) {
        let same_frame = after.depth() == before.depth();
        if matches!(flow, Some(Flow::Next(_))) && same_frame {
            let (reads, writes) = self.cfg.uses(insn, before.pc);
            // A call leaves nothing in the registers of its arguments.
            let touched = if let Insn::Call(_) = insn { 1 } else { reads | writes };
            let slots = touched_slots(before, after, insn);
            let text = frame(after.frame(), after.depth(), self.view.maps, &|r| touched & 1 << r != 0, &|i| {
                slots.contains(&i)
            });
            let text = text + &references(after);
            if !text.is_empty() {
                let start = self.log.text.rfind('\n').map_or(0, |i| i + 1);
                let len = self.log.text.len() - start;
                let column = (len + 5).max(40).next_multiple_of(8) - 2;
                let _ = write!(self.log.text, "{}; {}", " ".repeat(column - len), text.trim_start());
            }
        }
        self.log.text.push('\n');
        let Some(Flow::Next(next)) = flow else { return };
        let (outer, inner) = (self.frame_at(after, after.depth().min(before.depth())), self.state(after));
        if after.depth() > before.depth() {
            let _ = writeln!(self.log.text, "caller:\n{outer}\ncallee:\n{inner}\n{next}:{inner}");
        } else if !same_frame {
            let callee = self.state(before);
            let _ = writeln!(self.log.text, "returning from callee:\n{callee}\nto caller at {next}:\n{inner}");
            let _ = writeln!(self.log.text, "\nfrom {} to {next}:{inner}", before.pc);
        }
    }

    /// Another path is taken up.
    pub fn log_state_switch(&mut self, st: &State) {
        if st.path == NOWHERE || !self.logs() {
            return;
        }
        let from = self.paths[st.path as usize].1;
        self.log.switched = Some((self.log.text.len(), from));
        let whole = self.state(st);
        let _ = writeln!(self.log.text, "\nfrom {from} to {}:{whole}\n{}:{whole}", st.pc, st.pc);
    }

    /// The path ended in a known state.
    pub fn log_pruned(&mut self, pc: usize) {
        if !self.logs() {
            return;
        }
        match self.log.switched.take() {
            Some((start, from)) => {
                self.log.text.truncate(start);
                let _ = writeln!(self.log.text, "\nfrom {from} to {pc}: safe");
            }
            None => _ = writeln!(self.log.text, "{pc}: safe"),
        }
    }

    /// The running frame.
    fn state(&self, st: &State) -> String {
        self.frame_at(st, st.depth())
    }

    fn frame_at(&self, st: &State, depth: usize) -> String {
        frame(&st.frames[depth], depth, self.view.maps, &|_| true, &|_| true) + &references(st)
    }
}

/// What must be released before the program ends.
fn references(st: &State) -> String {
    let refs: Vec<String> = st.refs.iter().map(|r| r.id.to_string()).collect();
    if refs.is_empty() { String::new() } else { format!(" refs={}", refs.join(",")) }
}

/// Names of functions, as the program calls them.
struct Functions<'v, 'a>(&'v Verifier<'a>);

impl Names for Functions<'_, '_> {
    fn helper(&self, id: u32) -> Option<std::borrow::Cow<'_, str>> {
        HelperNames.helper(id).map(|n| n.into_owned().into())
    }

    fn kfunc(&self, id: i32, _: i16) -> Option<std::borrow::Cow<'_, str>> {
        let kfunc = self.0.program.kfuncs.get(usize::try_from(id).ok()?)?;
        Some(kfunc.name.as_str().into())
    }
}

/// Slots of the running frame's stack that an instruction read or wrote.
fn touched_slots(before: &State, after: &State, insn: &Insn) -> Vec<usize> {
    let (old, new) = (&before.frame().stack, &after.frame().stack);
    let differ = |i: &usize| old.get(*i).is_none_or(|s| s.bytes != new[*i].bytes || s.spill != new[*i].spill);
    let mut out: Vec<usize> = (0..new.len()).filter(|i| shown(&new[*i]) && differ(i)).collect();
    let access = match *insn {
        Insn::Load { base, off, .. } | Insn::Store { base, off, .. } | Insn::Atomic { base, off, .. } => {
            Some((base, off))
        }
        _ => None,
    };
    if let Some((base, off)) = access
        && let Value::Ptr(p) = before.frame().regs[base.index()]
        && p.base == Base::Stack(before.depth() as u8)
        && p.is_fixed()
    {
        let at = i64::from(p.off) + i64::from(off);
        out.extend(usize::try_from((-at - 1) / 8));
    }
    out
}

fn shown(slot: &Slot) -> bool {
    slot.bytes != [Byte::Uninit; 8]
}

/// A frame: those registers and slots that are asked for.
fn frame(
    f: &Frame,
    index: usize,
    maps: &[MapDef],
    reg: &dyn Fn(usize) -> bool,
    slot: &dyn Fn(usize) -> bool,
) -> String {
    let mut out = String::new();
    for (i, v) in f.regs.iter().enumerate().filter(|(i, v)| **v != Value::Uninit && reg(*i)) {
        let _ = write!(out, " R{i}={}", value(v, maps, index));
    }
    for (i, s) in f.stack.iter().enumerate().filter(|(i, s)| shown(s) && slot(*i)) {
        let _ = write!(out, " fp-{}=", 8 * (i + 1));
        if s.bytes[0] == Byte::Spill || s.bytes[0] == Byte::Special {
            out.extend(s.bytes.iter().filter(|b| **b == Byte::Uninit).map(|_| '?'));
            out.push_str(&value(&s.spill, maps, index));
        } else {
            out.extend(s.bytes.iter().rev().map(|b| match b {
                Byte::Uninit => '?',
                Byte::Misc => 'm',
                Byte::Zero => '0',
                Byte::Spill => 'r',
                Byte::Special => 'i',
            }));
        }
    }
    if index > 0 && !out.is_empty() { format!(" frame{index}:{out}") } else { out }
}

/// A value. `maps` may be empty: then maps have no names.
pub(crate) fn value(v: &Value, maps: &[MapDef], frame: usize) -> String {
    match v {
        Value::Uninit | Value::Lost => "?".to_owned(),
        Value::Num(n) => num(n),
        Value::Ptr(p) => ptr(p, maps, frame),
        Value::Iter(i) => {
            let (kind, state) = (format!("{:?}", i.kind).to_lowercase(), if i.drained { "drained" } else { "active" });
            format!("iter_{kind}(ref_id={},state={state},depth={})", i.id, i.turns)
        }
        Value::Dynptr(d) => format!("dynptr_{:?}(id={})", d.kind, d.id).to_lowercase(),
    }
}

fn num(n: &Num) -> String {
    if let Some(x) = n.s.as_const() {
        return signed(x as i64);
    }
    let mut parts = Vec::new();
    if n.link != 0 {
        let delta = if n.delta == 0 { String::new() } else { format!("{:+}", n.delta) };
        parts.push(format!("id={}{delta}", n.link));
    }
    parts.extend(ranges(&n.s));
    format!("scalar({})", parts.join(","))
}

fn ptr(p: &Ptr, maps: &[MapDef], frame: usize) -> String {
    let mut name = p.kind_name();
    if let Base::Stack(of) = p.base {
        if usize::from(of) != frame {
            let _ = write!(name, "[{of}]");
        }
        if p.is_fixed() {
            return format!("{name}{}", p.off);
        }
    }
    let packet = matches!(p.base, Base::Packet | Base::Meta);
    let mut parts = Vec::new();
    if p.id != 0 && (packet || p.nullable || p.reference != 0) {
        parts.push(format!("id={}", p.id));
    }
    if p.reference != 0 {
        parts.push(format!("ref_obj_id={}", p.reference));
    }
    if let Base::Map(m) | Base::MapValue(m) = p.base
        && let Some(def) = maps.get(m.index as usize)
    {
        let spec = if m.inner { def.spec.inner.as_deref().unwrap_or(&def.spec) } else { &def.spec };
        parts.push(format!("map={},ks={},vs={}", def.name, spec.key_size, spec.value_size));
    }
    if p.off != 0 {
        parts.push(format!("off={}", signed(p.off.into())));
    }
    if packet {
        parts.push(format!("r={}", p.range));
    }
    if let Base::Mem { size, kind, .. } = p.base
        && kind != MemKind::Input
    {
        parts.push(format!("sz={size}"));
    }
    if !p.is_fixed() {
        parts.extend(ranges(&p.var));
    }
    format!("{name}({})", parts.join(","))
}

/// A signed number: small ones in decimal.
fn signed(x: i64) -> String {
    if i16::try_from(x).is_ok() { x.to_string() } else { format!("{x:#x}") }
}

/// Bounds, those that say nothing left out, equal ones together, then the known bits.
fn ranges(s: &Scalar) -> Vec<String> {
    let (w, h) = (&s.whole, &s.half);
    // A 32-bit bound that is shown in hexadecimal has 32 bits.
    let half = |x: i64| if i16::try_from(x).is_ok() { x as u64 } else { u64::from(x as u32) };
    let (low, high) = (i64::from(h.smin as i32), i64::from(h.smax as i32));
    let bounds = [
        ("smin", w.smin as u64, w.smin == i64::MIN),
        ("smax", w.smax as u64, w.smax == i64::MAX),
        ("umin", w.umin, w.umin == 0),
        ("umax", w.umax, w.umax == u64::MAX),
        ("smin32", half(low), low == i64::from(i32::MIN)),
        ("smax32", half(high), high == i64::from(i32::MAX)),
        ("umin32", h.umin, h.umin == 0),
        ("umax32", h.umax, h.umax == u64::from(u32::MAX)),
    ];
    let negative = |b: &(&str, u64, bool)| b.0.starts_with('s') && (b.1 as i64) < 0;
    let mut out: Vec<String> = Vec::new();
    let mut done = [false; 8];
    for (i, b) in bounds.iter().enumerate() {
        if b.2 || done[i] {
            continue;
        }
        let mut text = String::new();
        for (j, other) in bounds.iter().enumerate().skip(i) {
            if !other.2 && !done[j] && other.1 == b.1 && negative(other) == negative(b) {
                done[j] = true;
                let _ = write!(text, "{}=", other.0);
            }
        }
        text += &match b.0.starts_with('s') {
            true => signed(b.1 as i64),
            false if b.1 <= u64::from(u16::MAX) => b.1.to_string(),
            false => format!("{:#x}", b.1),
        };
        out.push(text);
    }
    if s.tnum.mask != u64::MAX {
        out.push(format!("var_off={}", s.tnum));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_are_equal_stand_together() {
        assert_eq!(ranges(&Scalar::between(3, 255))[..2], ["smin=umin=smin32=umin32=3", "smax=umax=smax32=umax32=255"]);
        assert_eq!(ranges(&Scalar::of_bits(32)), ["smin=0", "smax=umax=0xffffffff", "var_off=(0x0; 0xffffffff)"]);
        assert!(ranges(&Scalar::unknown()).is_empty());
    }

    #[test]
    fn large_numbers_are_hexadecimal() {
        assert_eq!((signed(-32_768), signed(32_768)), ("-32768".to_owned(), "0x8000".to_owned()));
        assert_eq!(signed(-70_000), "0xfffffffffffeee90");
    }
}
