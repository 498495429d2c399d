//! Questions about a way: where does this value come from, which check proved it, what do the lines call it.

use xway_isa::{AluOp, CallTarget, Insn, Operand, Reg, Width};
use xway_object::Program;

use super::search::Way;
use crate::cfg::Cfg;
use crate::diag::{Note, line_of, place};
use crate::state::State;
use crate::value::{Base, Ptr, Value};

/// A way with what is needed to talk about it.
pub(crate) struct Story<'a> {
    pub program: &'a Program,
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
        let mut out = Vec::new();
        let (mut step, mut reg, mut depth) = (step, reg, self.depth(step));
        while out.len() < 64 {
            let Some(k) = self.definition_in(step, depth, reg) else { break };
            out.push(k);
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

    /// The name that the source gives to a register's value, guessed from the lines that made it. What a line declares as a
    /// number is no name of a pointer, and the other way round.
    pub fn name(&self, step: usize, reg: usize) -> Option<String> {
        let pointer = matches!(self.value(step, reg), Value::Ptr(_));
        self.chain(step, reg).into_iter().find_map(|k| {
            let text = self.source(k);
            assigned(&text).filter(|name| declares_pointer(&text, name).is_none_or(|p| p == pointer))
        })
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
        self.chain(step, reg).into_iter().find_map(|k| {
            let text = self.source(k);
            let name = assigned(&text).filter(|name| declares_pointer(&text, name) != Some(false))?;
            let dst = writes(self.insn(k)?).trailing_zeros() as usize;
            let after = self.state(k + 1).frames.get(self.depth(k))?.regs[dst.min(10)];
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
        (0..self.last()).find_map(|k| {
            let Insn::Load { dst, .. } = self.insn(k)? else { return None };
            let is_end = matches!(self.value(k + 1, dst.index()), Value::Ptr(p) if p.base == Base::End);
            // A comparison that is kept in a variable is another matter.
            let text = self.source(k);
            let plain = !text.replace("->", "").contains(['<', '>']);
            if is_end && plain && self.state(k).frame().uid == here { assigned(&text) } else { None }
        })
    }

    /// All comparisons of packet pointers with the end on the way.
    pub fn checks(&self) -> Vec<Check> {
        let mut out = Vec::new();
        for k in 0..self.last() {
            let Some(Insn::Branch { dst, src: Operand::Reg(src), .. }) = self.insn(k) else { continue };
            let (a, b) = (self.value(k, dst.index()), self.value(k, src.index()));
            let ptr = match (a, b) {
                (Value::Ptr(p), Value::Ptr(e)) if is_end(&e, &p) => p,
                (Value::Ptr(e), Value::Ptr(p)) if is_end(&e, &p) => p,
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

fn is_end(end: &Ptr, p: &Ptr) -> bool {
    matches!((end.base, p.base), (Base::End, Base::Packet) | (Base::Packet, Base::Meta))
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

/// The part of a line that stands at a column (from 1; 0: unknown): one statement, one declaration of a list, or the head of an
/// `if` or a loop. Empty when the line has several parts and the column tells none.
fn statement(text: &str, col: u32) -> &str {
    let bytes = text.as_bytes();
    let (mut depth, mut quoted, mut start) = (0i32, false, 0);
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let head = |from: usize, to: usize| {
        let part = text[from..to].trim_start();
        let word: String = part.strip_prefix("else ").unwrap_or(part).chars().take_while(|c| is_word(*c)).collect();
        matches!(word.as_str(), "if" | "while" | "for" | "switch")
    };
    for (i, c) in text.char_indices() {
        let escaped = i > 0 && bytes[i - 1] == b'\\';
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        if quoted {
            continue;
        }
        let mut ends = false;
        match c {
            '(' | '[' => depth += 1,
            ']' => depth -= 1,
            ')' => {
                depth -= 1;
                ends = depth == 0 && head(start, i);
            }
            ';' | '{' | '}' | ',' => ends = depth == 0,
            _ => {}
        }
        if ends {
            parts.push((start, i + 1));
            start = i + 1;
        }
    }
    parts.push((start, text.len()));
    parts.retain(|(a, b)| text[*a..*b].chars().any(is_word));
    match (parts.as_slice(), (col as usize).checked_sub(1)) {
        ([(a, b)], _) => &text[*a..*b],
        (_, Some(at)) => parts.iter().find(|(a, b)| (*a..*b).contains(&at)).map_or("", |(a, b)| &text[*a..*b]),
        _ => "",
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The last identifier of a text that ends with one (an index in brackets is skipped).
fn trailing(text: &str) -> Option<String> {
    let mut text = text.trim_end();
    if text.ends_with(']') {
        text = text[..text.rfind('[')?].trim_end();
    }
    let start = text.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
    let word = &text[start..];
    let good = word.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_') && !KEYWORDS.contains(&word);
    good.then(|| word.to_owned())
}

const KEYWORDS: &[&str] = &[
    "if", "for", "while", "return", "int", "char", "void", "long", "unsigned", "sizeof", "struct", "ctx", "xdp", "md",
];

/// Both sides of an assignment that is a statement of its own.
fn assignment(text: &str) -> Option<(&str, &str)> {
    let i = text.match_indices('=').map(|(i, _)| i).find(|i| {
        let around = (text.as_bytes().get(i.wrapping_sub(1)), text.as_bytes().get(i + 1));
        !matches!(around.0, Some(b'=' | b'!' | b'<' | b'>')) && around.1 != Some(&b'=')
    })?;
    (!text.starts_with("if") && !text.starts_with("for")).then(|| (&text[..i], &text[i + 1..]))
}

/// The variable that a line assigns: `eth` in `struct ethhdr *eth = data;`.
pub(crate) fn assigned(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut depth = 0i32;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '=' if depth == 0 || text.starts_with("if") || text.starts_with("for") || text.starts_with("while") => {
                let before = i.checked_sub(1).map_or(b' ', |j| bytes[j]);
                let after = bytes.get(i + 1).copied().unwrap_or(b' ');
                if after == b'=' || matches!(before, b'=' | b'!' | b'<' | b'>') {
                    continue;
                }
                let end = if b"+-*/&|^%".contains(&before) { i - 1 } else { i };
                let left = &text[..end];
                // A member is no name of the value.
                let name = trailing(left)?;
                let lead = left.trim_end().strip_suffix(name.as_str()).unwrap_or("");
                return (!lead.ends_with('.') && !lead.ends_with("->")).then_some(name);
            }
            _ => {}
        }
    }
    None
}

/// The variable through which a line reaches memory: before `->`, before `[`, or behind `*`.
pub(crate) fn reached(text: &str) -> Option<String> {
    for (i, _) in text.match_indices("->") {
        if let Some(name) = trailing(&text[..i]) {
            return Some(name);
        }
    }
    for (i, _) in text.match_indices('[') {
        if let Some(name) = trailing(&text[..i]) {
            return Some(name);
        }
    }
    // `*p` where it cannot be a product or a declaration.
    for (i, _) in text.match_indices('*') {
        let before = text[..i].trim_end().chars().next_back();
        let before = before.filter(|_| !text[..i].trim_end().ends_with("return"));
        // `*(type *)p`: the star of the cast stands right before the name.
        let rest = text[i + 1..].strip_prefix(')');
        let before = if rest.is_some() { None } else { before };
        let name: String = rest.unwrap_or(&text[i + 1..]).chars().take_while(|c| is_word(*c)).collect();
        let first = name.chars().next();
        if matches!(before, None | Some('=' | '(' | ',' | '+' | '!' | '<' | '>' | ')'))
            && first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        {
            return Some(name);
        }
    }
    None
}

/// Elements of arrays that a text names, with where they begin: `data[i & 31]`, `eth->h_dest[i]`.
fn elements(text: &str) -> Vec<(usize, &str)> {
    let word = |c: char| is_word(c) || matches!(c, '.' | '-' | '>');
    let mut out = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].find('[').map(|i| from + i) {
        let start = text[from..open].rfind(|c| !word(c)).map_or(from, |i| from + i + 1);
        let mut depth = 0;
        let len = text[open..].find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            depth == 0
        });
        let Some(len) = len else { break };
        if text[start..open].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            out.push((start, &text[start..=open + len]));
        }
        from = open + len + 1;
    }
    out
}

/// Whether the statement declares this variable as a pointer (`__u8 *q = …`) or as a number (`for (int i = …`); `None` when
/// it declares nothing.
fn declares_pointer(text: &str, name: &str) -> Option<bool> {
    let at = text.match_indices(name).map(|(i, _)| i).find(|i| {
        let bytes = text.as_bytes();
        let alone = |b: Option<&u8>| b.is_none_or(|b| !is_word(char::from(*b)));
        alone(i.checked_sub(1).and_then(|i| bytes.get(i))) && alone(bytes.get(i + name.len()))
    })?;
    let before = text[..at].trim_end();
    let stars = before.trim_end_matches('*').trim_end();
    let start = stars.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
    let ty = &stars[start..];
    let is_type = ty.ends_with("_t")
        || matches!(
            ty.trim_start_matches("__"),
            "u8" | "u16" | "u32" | "u64" | "s8" | "s16" | "s32" | "s64" | "be16" | "be32"
        )
        || matches!(ty, "int" | "long" | "short" | "char" | "unsigned" | "void")
        || stars[..start].trim_end().ends_with("struct");
    is_type.then_some(before.len() != before.trim_end_matches('*').len())
}

/// The n-th argument (from 1) of a function that a text calls.
fn argument(text: &str, function: &str, n: usize) -> Option<String> {
    let (_, rest) = text.split_once(&format!("{function}("))?;
    let (mut depth, mut start, mut at) = (0i32, 0, 1);
    for (i, c) in rest.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ',' if depth == 0 => {
                if at == n {
                    return Some(rest[start..i].trim().to_owned());
                }
                (start, at) = (i + 1, at + 1);
            }
            ')' if depth == 0 => return (at == n).then(|| rest[start..i].trim().to_owned()),
            ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// What stands between the parentheses of an `if` or a loop, when all of it is on the line.
fn condition(text: &str) -> Option<String> {
    let start = text.find("if (").map(|i| i + 4).or_else(|| text.find("while (").map(|i| i + 7))?;
    let mut depth = 1;
    for (i, c) in text[start..].char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(text[start..start + i].to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_statements_on_a_line_the_column_tells_which() {
        let at = |text: &str, what: &str| {
            let col = text.find(what).unwrap() as u32 + 1;
            statement(text, col).trim().to_owned()
        };
        let line = "\tip = data + 14; if (ip + 1 > end) return 1; tcp = ip + ip->ihl;";
        assert_eq!(at(line, "data"), "ip = data + 14;");
        assert_eq!(at(line, "> end"), "if (ip + 1 > end)");
        assert_eq!(at(line, "return"), "return 1;");
        assert_eq!(at(line, "ip->"), "tcp = ip + ip->ihl;");
        assert_eq!(statement(line, 0), "", "nobody knows");
        // One statement needs no column; a list of declarations has several parts, arguments have not.
        assert_eq!(statement("  x = f(a, b);", 0).trim(), "x = f(a, b);");
        let list = "__u32 a = f(x, y), *b = p;";
        assert_eq!((at(list, "f(").as_str(), at(list, "= p").as_str()), ("__u32 a = f(x, y),", "*b = p;"));
        assert_eq!(assigned(at(list, "= p").as_str()), Some("b".into()));
        let turns = "for (i = 0; i < n; i++) sum += v[i];";
        assert_eq!(at(turns, "sum"), "sum += v[i];");
        assert_eq!(assigned(&at(turns, "v[i]")), Some("sum".into()));
        assert_eq!(at("if (!(v = get(\"a;b\"))) { n++; return 0; }", "get"), "if (!(v = get(\"a;b\")))");
        assert_eq!(at("if (a) { b = 1; c = d; }", "d;"), "c = d;");
    }

    #[test]
    fn elements_are_found_in_lines() {
        let all = |text| elements(text).into_iter().map(|(_, t)| t).collect::<Vec<_>>();
        assert_eq!(all("return data[i & 31];"), ["data[i & 31]"]);
        assert_eq!(all("x = f(eth->h_dest[i]) + b[2];"), ["eth->h_dest[i]", "b[2]"]);
        assert_eq!(all("v = t[u[3]];"), ["t[u[3]]"]);
        assert_eq!(elements("return c[0] + c[1] + c[2];")[2], (21, "c[2]"));
        assert!(all("return *p;").is_empty() && all("(a)[3]").is_empty() && all("a[").is_empty());
    }

    #[test]
    fn declarations_say_what_is_a_pointer() {
        assert_eq!(declares_pointer("__u8 *q = data + *neg;", "q"), Some(true));
        assert_eq!(declares_pointer("struct iphdr *ip = data;", "ip"), Some(true));
        assert_eq!(declares_pointer("for (int i = 0; i < n; i++)", "i"), Some(false));
        assert_eq!(declares_pointer("uint32_t n = ip->ihl;", "n"), Some(false));
        assert_eq!(declares_pointer("q = p + n;", "q"), None);
        assert_eq!(declares_pointer("x = n * q;", "q"), None);
    }

    #[test]
    fn names_are_found_in_lines() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(assigned("struct ethhdr *eth = data;"), some("eth"));
        assert_eq!(assigned("void *data_end = (void *)(long)ctx->data_end;"), some("data_end"));
        assert_eq!(assigned("off += ip->ihl * 4;"), some("off"));
        assert_eq!(assigned("if (a == b && c <= d)"), None);
        assert_eq!(assigned("if (!(v = bpf_map_lookup_elem(&m, &k)))"), some("v"));
        assert_eq!(assigned("v->count = 1;"), None);
        assert_eq!(assigned("key[3] = 1;"), some("key"));
        assert_eq!(reached("if (ip->protocol != 6)"), some("ip"));
        assert_eq!(reached("sum += table[i & 7];"), some("table"));
        assert_eq!(reached("return *(__u8 *)p;"), some("p"));
        assert_eq!(reached("return a * b;"), None);
        assert_eq!(condition("if ((void *)(eth + 1) > data_end) return 1;"), some("(void *)(eth + 1) > data_end"));
        assert_eq!(condition("return 1;"), None);
        let call = "if (bpf_xdp_load_bytes(ctx, f(a, b[1, 2]), buf, len) < 0) return 1;";
        let of = |n| argument(call, "bpf_xdp_load_bytes", n);
        assert_eq!([of(1), of(2), of(3), of(4)], [some("ctx"), some("f(a, b[1, 2])"), some("buf"), some("len")]);
        assert_eq!((of(5), argument(call, "bpf_redirect", 1)), (None, None));
    }
}
