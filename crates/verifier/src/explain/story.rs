//! Questions about a way: where does this value come from, which check proved it, what do the lines call it.

use xway_isa::{AluOp, CallTarget, Insn, Operand, Reg, Width};
use xway_object::{Btf, Program};

use super::search::Way;
use super::text::{argument, assigned, assignment, condition, declares_pointer, elements, is_word, reached, statement};
use crate::cfg::Cfg;
use crate::diag::{Note, line_of, place};
use crate::state::State;
use crate::value::{Base, Ptr, Value};

/// A way with what is needed to talk about it.
pub(crate) struct Story<'a> {
    pub program: &'a Program,
    pub btf: Option<&'a Btf>,
    pub cfg: &'a Cfg,
    pub way: &'a Way,
}

/// A comparison of a packet pointer with the end of the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    /// Step of the way.
    pub step: usize,
    /// The pointer that is compared.
    pub ptr: Ptr,
    /// Bytes that were proved by it, for all pointers of the same identity; 0 when it proved nothing new.
    pub proved: u32,
}

impl<'a> Story<'a> {
    /// The last step: the instruction that is refused.
    pub fn last(&self) -> usize {
        self.way.steps.len() - 1
    }

    pub fn state(&self, step: usize) -> &'a State {
        &self.way.steps[step].state
    }

    pub fn insn(&self, step: usize) -> Option<&'a Insn> {
        self.cfg.insn(self.way.steps[step].pc)
    }

    fn depth(&self, step: usize) -> usize {
        self.state(step).depth()
    }

    /// Whether the way jumps at a step that is a branch.
    pub fn jumped(&self, step: usize) -> Option<bool> {
        let next = self.way.steps.get(step + 1)?.pc;
        Some(next != self.cfg.successor(self.way.steps[step].pc, false))
    }

    /// A register before a step.
    pub fn value(&self, step: usize, reg: usize) -> Value {
        self.state(step).frame().regs[reg]
    }

    /// The C statement of a step, without leading blanks: of a line that holds several the one at the step's column. Empty where
    /// it is not known. Names are read from it.
    pub fn source(&self, step: usize) -> String {
        let line = line_of(self.program, self.way.steps[step].pc);
        line.map_or(String::new(), |l| statement(&l.text, l.col).trim().to_owned())
    }

    /// Text of a step's line, without leading blanks; the instruction where lines are not known.
    pub fn text(&self, step: usize) -> String {
        place(self.program, self.way.steps[step].pc).2
    }

    /// `line 31`, or `instruction 12` where lines are not known.
    pub fn at(&self, step: usize) -> String {
        at(self.program, self.way.steps[step].pc)
    }

    /// A note at a step.
    pub fn note(&self, step: usize, text: impl Into<String>) -> Note {
        let insn = self.way.steps[step].pc;
        let (file, line, source) = place(self.program, insn);
        Note { insn, file, line, source, text: text.into() }
    }

    /// The step before `step` that wrote the register of the frame that runs at `step`.
    pub fn definition(&self, step: usize, reg: usize) -> Option<usize> {
        self.definition_in(step, self.depth(step), reg)
    }

    fn definition_in(&self, step: usize, depth: usize, reg: usize) -> Option<usize> {
        for k in (0..step).rev() {
            let insn = self.insn(k)?;
            let d = self.depth(k);
            let returns = d == depth + 1 && matches!(insn, Insn::Exit) && self.depth(k + 1) == depth;
            if returns && reg == 0 {
                return Some(k);
            }
            if d + 1 == depth && self.depth(k + 1) == depth {
                // The frame begins here: arguments are the caller's.
                return (1..=5).contains(&reg).then_some(k);
            }
            if d == depth && writes(insn) >> reg & 1 == 1 {
                let enters = matches!(insn, Insn::Call(CallTarget::Local(_))) && self.depth(k + 1) > depth;
                if !(enters && reg == 0) {
                    return Some(k);
                }
            }
        }
        None
    }

    /// The steps through which a register's value came, the latest first: copies, spills, additions to a pointer, calls of
    /// the program's own functions. The last one made it.
    pub fn chain(&self, step: usize, reg: usize) -> Vec<usize> {
        self.origins(step, reg).into_iter().map(|(k, _)| k).collect()
    }

    /// The steps of [`Story::chain`], each with the register that has the value behind it.
    fn origins(&self, step: usize, reg: usize) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        let (mut step, mut reg, mut depth) = (step, reg, self.depth(step));
        while out.len() < 64 {
            let Some(k) = self.definition_in(step, depth, reg) else { break };
            out.push((k, reg));
            let d = self.depth(k);
            let is_pointer = |r: usize| matches!(self.state(k).frames[d].regs[r], Value::Ptr(_));
            let next = match *self.insn(k).expect("a step is an instruction") {
                Insn::Mov { width: Width::W64, src: Operand::Reg(r), .. } => Some((k, r.index(), d)),
                Insn::Mov { src: Operand::Reg(r), .. } => Some((k, r.index(), d)),
                Insn::Alu { op: AluOp::Add | AluOp::Sub, dst, src, .. } => match src {
                    Operand::Reg(r) if is_pointer(r.index()) && !is_pointer(dst.index()) => Some((k, r.index(), d)),
                    _ => Some((k, dst.index(), d)),
                },
                Insn::Alu { dst, src: Operand::Imm(_), .. } | Insn::Endian { dst, .. } => Some((k, dst.index(), d)),
                Insn::Exit => Some((k, 0, d)),
                Insn::Call(CallTarget::Local(_)) if d + 1 == depth => Some((k, reg, d)),
                Insn::Load { base, off, .. } => self.spill(k, base, off).map(|(k, r)| (k, r, self.depth(k))),
                _ => None,
            };
            let Some((s, r, d)) = next else { break };
            (step, reg, depth) = (s, r, d);
        }
        out
    }

    /// The store that put a spilled value where step `k` loads from: its step and source register.
    fn spill(&self, k: usize, base: Reg, off: i16) -> Option<(usize, usize)> {
        let slot = |step: usize, base: Reg, off: i16| match self.value(step, base.index()) {
            Value::Ptr(p) if p.is_fixed() => match p.base {
                Base::Stack(f) => Some((f, i64::from(p.off) + i64::from(off))),
                _ => None,
            },
            _ => None,
        };
        let wanted = slot(k, base, off)?;
        (0..k).rev().find_map(|s| match *self.insn(s)? {
            Insn::Store { base, off, src: Operand::Reg(r), .. } if slot(s, base, off) == Some(wanted) => {
                Some((s, r.index()))
            }
            _ => None,
        })
    }

    /// The register that is refused as the length argument of a call, if that is what is refused.
    pub fn length_argument(&self) -> Option<usize> {
        let last = self.last();
        let r = *self.way.fail.regs.first()?;
        let number = r > 1 && matches!(self.value(last, r), Value::Num(_));
        (matches!(self.insn(last), Some(Insn::Call(_))) && number && !self.way.fail.message.contains("is given where"))
            .then_some(r)
    }

    /// The name that the source gives to a register's value: the parameter that it came in as, or guessed from the lines that
    /// made it. What a line declares as a number is no name of a pointer, and the other way round.
    pub fn name(&self, step: usize, reg: usize) -> Option<String> {
        let pointer = matches!(self.value(step, reg), Value::Ptr(_));
        let mut first = reg;
        let made = self.origins(step, reg).into_iter().find_map(|(k, reg)| {
            first = reg;
            self.name_at(k, reg, pointer)
        });
        // What no step made came with the function that is looked at on its own.
        made.or_else(|| if self.definition(step, reg).is_none() { self.parameter(0, first, pointer) } else { None })
    }

    /// The name that step `k` gives to the value which is in `reg` behind it.
    fn name_at(&self, k: usize, reg: usize, pointer: bool) -> Option<String> {
        if self.depth(k + 1) > self.depth(k) {
            // The line of a call names its result, not what it is given.
            return self.parameter(k + 1, reg, pointer);
        }
        let text = self.source(k);
        let name = assigned(&text).filter(|name| declares_pointer(&text, name).is_none_or(|p| p == pointer))?;
        // `sum += data[i]` computes an address, too, which is not what the variable gets.
        let sums_up = pointer && text.contains(&format!("{name} += ")) && text.contains('[');
        let func = &self.cfg.funcs[self.state(k).frame().func];
        let lines = (func.start..func.end).filter_map(|i| line_of(self.program, i));
        let declared: Vec<bool> = lines.filter_map(|l| declares_pointer(&l.text, &name)).collect();
        (!sums_up && (declared.is_empty() || declared.contains(&pointer))).then_some(name)
    }

    /// The name of the parameter that is in this register when the function at `step`, its first, begins. Of a static function
    /// parameters may have been taken away, so that only a name counts that its lines mention.
    fn parameter(&self, step: usize, reg: usize, pointer: bool) -> Option<String> {
        let func = &self.cfg.funcs[self.state(step).frame().func];
        let sub = self.program.subprogs.iter().find(|s| s.start == func.start)?;
        let (name, is_pointer) = crate::signature::parameter(self.btf?, sub.func_id, reg.checked_sub(1)?)?;
        let words = |text: &str| text.split(|c| !is_word(c)).any(|w| w == name);
        let lines = || (func.start..func.end).filter_map(|i| line_of(self.program, i)).any(|l| words(&l.text));
        (pointer == is_pointer && !name.is_empty() && (sub.global || lines())).then(|| name.to_owned())
    }

    /// The element of an array that a step reaches, `data[i & 31]`; of several on its line the one at its column.
    pub fn element(&self, step: usize) -> Option<String> {
        let line = line_of(self.program, self.way.steps[step].pc)?;
        let at_column = elements(&line.text).into_iter().find(|(at, _)| *at + 1 == line.col as usize);
        let source = self.source(step);
        let only = || match elements(&source).as_slice() {
            [(_, one)] => Some(*one),
            _ => None,
        };
        at_column.map(|(_, text)| text).or_else(only).map(str::to_owned)
    }

    /// The name through which the line of a step reaches memory: `ip` in `ip->protocol`. Of an assignment the side that
    /// the instruction works on.
    pub fn accessed(&self, step: usize) -> Option<String> {
        let text = self.source(step);
        let store = matches!(self.insn(step), Some(Insn::Store { .. } | Insn::Atomic { .. }));
        match assignment(&text) {
            Some((left, right)) => reached(if store { left } else { right }).or_else(|| reached(&text)),
            None => reached(&text),
        }
    }

    /// The nearest step that gave the value a name, the name, and the pointer as it was then.
    pub fn named_pointer(&self, step: usize, reg: usize) -> Option<(String, Ptr)> {
        self.origins(step, reg).into_iter().find_map(|(k, reg)| {
            let name = self.name_at(k, reg, true)?;
            let after = self.state(k + 1).frame().regs[reg];
            Some((name, *after.as_ptr()?))
        })
    }

    /// The text of an argument (1 to 5) of the call at a step, when the call stands on one line.
    pub fn argument(&self, step: usize, n: usize) -> Option<String> {
        let Some(Insn::Call(CallTarget::Helper(id))) = self.insn(step) else { return None };
        argument(&self.source(step), xway_abi::helper(*id)?.name, n)
    }

    /// The name that the refused function gives to the end of the packet.
    pub fn end_name(&self) -> Option<String> {
        let here = self.state(self.last()).frame().uid;
        let is_end = |k: usize, reg: usize| matches!(self.value(k, reg), Value::Ptr(p) if p.base == Base::End);
        let first = (0..self.last()).find(|k| self.state(*k).frame().uid == here)?;
        let given = (1..=5).filter(|r| is_end(first, *r)).find_map(|r| self.parameter(first, r, true));
        given.or_else(|| {
            (first..self.last()).find_map(|k| {
                let Insn::Load { dst, .. } = self.insn(k)? else { return None };
                // A comparison that is kept in a variable is another matter.
                let text = self.source(k);
                let plain = !text.replace("->", "").contains(['<', '>']);
                let ours = is_end(k + 1, dst.index()) && plain && self.state(k).frame().uid == here;
                if ours { assigned(&text) } else { None }
            })
        })
    }

    /// All comparisons of packet pointers with the end on the way.
    pub fn checks(&self) -> Vec<Check> {
        let mut out = Vec::new();
        for k in 0..self.last() {
            let Some(Insn::Branch { dst, src: Operand::Reg(src), .. }) = self.insn(k) else { continue };
            let (a, b) = (self.value(k, dst.index()), self.value(k, src.index()));
            let ptr = match (a, b) {
                (Value::Ptr(p), Value::Ptr(e)) if p.is_bounded_by(&e) => p,
                (Value::Ptr(e), Value::Ptr(p)) if p.is_bounded_by(&e) => p,
                _ => continue,
            };
            let (before, after) = (proved(self.state(k), &ptr), proved(self.state(k + 1), &ptr));
            out.push(Check { step: k, ptr, proved: if after > before { after } else { 0 } });
        }
        out
    }

    /// What stands between the parentheses of an `if` on a step's line, or the whole line.
    pub fn condition(&self, step: usize) -> String {
        condition(&self.source(step)).or_else(|| condition(&self.text(step))).unwrap_or_else(|| self.text(step))
    }
}

/// `line 31`, or `instruction 12` where lines are not known.
pub(crate) fn at(program: &Program, insn: usize) -> String {
    match place(program, insn).1 {
        0 => format!("instruction {insn}"),
        n => format!("line {n}"),
    }
}

/// Bytes that a state knows for the place that `p` counts from.
fn proved(st: &State, p: &Ptr) -> u32 {
    let spills = st.frames.iter().flat_map(|f| f.stack.iter().filter_map(|s| s.spilled_ptr()));
    let regs = st.frames.iter().flat_map(|f| f.regs.iter().filter_map(|v| v.as_ptr()));
    regs.chain(spills).filter(|q| q.base == p.base && q.id == p.id).map(|q| q.range).max().unwrap_or(0)
}

/// Registers whose values are others behind an instruction (bit n: rn).
fn writes(insn: &Insn) -> u16 {
    match insn {
        Insn::Call(_) | Insn::LegacyLoad { .. } => 0x3f,
        _ => insn.result().map_or(0, |r| 1 << r.index()),
    }
}

#[cfg(test)]
mod tests {
    use xway_isa::Reg;
    use xway_object::LineInfo;

    use super::super::search::{Goal, shortest};
    use super::*;
    use crate::diag::Kind;
    use crate::explore::Verifier;
    use crate::testing::program;
    use crate::{Config, MapsView};

    /// Asks the way to the refusal at an instruction. A line `C text` after `//` belongs to its instruction.
    fn ask<T>(text: &str, insn: usize, kind: Kind, question: impl Fn(&Story<'_>) -> T) -> T {
        let mut program =
            program(&text.lines().map(|l| l.split("//").next().unwrap_or("").to_owned() + "\n").collect::<String>());
        for (insn, line) in text.lines().enumerate() {
            let Some((_, source)) = line.split_once("// ") else { continue };
            let (file, text) = ("a.c".into(), source.into());
            program.line_info.push(LineInfo {
                insn,
                file,
                line: insn as u32 + 1,
                col: 1,
                text,
                file_off: 0,
                text_off: 0,
            });
        }
        let (config, cfg) = (Config::default(), Cfg::new(&program).ok().unwrap());
        let mut walker = Verifier::new(&program, MapsView::empty(), &config, cfg.clone());
        let way = shortest(&mut walker, Goal { func: 0, insn, kind }, 10_000).expect("a way");
        question(&Story { program: &program, btf: None, cfg: &cfg, way: &way })
    }

    const SPILLED: &str = "r2 = *(u32 *)(r1 +0) // void *data = (void *)(long)ctx->data;
r2 += 14 // struct iphdr *ip = data + 14;
*(u64 *)(r10 -8) = r2 // foo();
r2 = 0 // foo();
r3 = *(u64 *)(r10 -8) // bar();
r0 = *(u8 *)(r3 +0) // return ip->ihl;
exit // return ip->ihl;";

    #[test]
    fn a_value_is_followed_through_spills_to_what_made_it() {
        let (chain, made) = ask(SPILLED, 5, Kind::PacketBounds, |s| (s.chain(5, 3), s.definition(5, 3)));
        assert_eq!((chain, made), (vec![4, 1, 0], Some(4)));
        assert_eq!(
            ask(SPILLED, 5, Kind::PacketBounds, |s| s.definition(1, Reg::R1.index())),
            None,
            "what came with the call"
        );
    }

    #[test]
    fn names_are_those_of_the_line_that_made_the_value() {
        let names = ask(SPILLED, 5, Kind::PacketBounds, |s| (s.name(5, 3), s.accessed(5), s.at(5)));
        assert_eq!(names, (Some("ip".into()), Some("ip".into()), "line 6".into()));
    }

    #[test]
    fn a_check_is_one_when_it_proves_something() {
        let text = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 4\nif r4 > r3 goto +3\nr0 = *(u8 *)(r2 +4)\n\
                    r0 = 0\nexit\nr0 = 1\nexit";
        let checks = ask(text, 5, Kind::PacketBounds, |s| s.checks());
        let of: Vec<_> = checks.iter().map(|c| (c.step, c.ptr.off, c.proved)).collect();
        assert_eq!(of, [(4, 4, 4)]);
    }
}
