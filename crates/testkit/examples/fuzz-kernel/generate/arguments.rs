//! Programs that hand memory of every kind to helpers, with lengths of every kind: what a prototype asks for is checked, what
//! was written is known afterwards, and nothing else is touched.

use std::fmt::Write;

use xway_testkit::Rng;

use super::super::world::Role;

/// Gives a record behind a dynptr back, by the dynptr or by its copy.
const BACK: &str = "r1 = r10\nr1 += -112\nr2 = 0\ncall 200";
const COPY_BACK: &str = "r1 = r10\nr1 += -128\nr2 = 0\ncall 200";
/// The map that programs may only write.
const SINK: u32 = 13;
/// Maps and the lengths of their values: plain ones, with a lock, with a timer, and one that programs may only write.
const VALUES: [(u32, u64); 8] = [(0, 64), (1, 48), (3, 16), (4, 16), (5, 24), (6, 24), (SINK, 16), (SINK, 16)];

/// A program and the roles of its functions. r6 is the context, r7 memory, r8 a sum of what was seen, r9 a number.
pub(super) fn text(rng: &mut Rng) -> (String, Vec<Role>) {
    let start = String::from("r6 = r1\nr8 = 0\nr9 = *(u32 *)(r1 +16)\n");
    let mut w = Writer { rng, out: start, functions: Vec::new(), sink: false, least: 0, exit: "out".into() };
    // All of it is written: what a helper that fails leaves of its buffer is what was there.
    for slot in 1..=9 {
        w.line(&format!("*(u64 *)(r10 -{}) = {slot}", 8 * slot));
    }
    for n in 0..1 + w.rng.below(2) {
        let (len, end) = w.memory(n);
        for _ in 0..1 + w.rng.below(2) {
            w.call(len);
            w.look(len);
        }
        let exit = std::mem::replace(&mut w.exit, "out".into());
        if end.is_empty() {
            continue;
        }
        w.line(&format!("{exit}: r0 = 0"));
        if !w.rng.one_in(12) {
            w.line(end);
        }
        w.line("r7 = 0");
    }
    w.line("out: r0 = r8\nexit");
    let Writer { mut out, functions, .. } = w;
    let roles = vec![Role::Memory; functions.len()];
    functions.iter().for_each(|f| out.push_str(f));
    (out, roles)
}

struct Writer<'a> {
    rng: &'a mut Rng,
    out: String,
    functions: Vec<String>,
    /// r7 points into the map that programs may only write.
    sink: bool,
    /// The least constant length: what Linux thinks of no byte beside a lock is not the question.
    least: u64,
    /// Where a length that is too large leads: what is held is given back there.
    exit: String,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }

    /// Lets r7 point to memory; gives its length, and what gives it back.
    fn memory(&mut self, n: u64) -> (u64, &'static str) {
        let len = 1 + self.rng.below(40);
        (self.sink, self.least) = (false, 0);
        match self.rng.below(12) {
            0 => {
                let down = len + self.rng.below(20);
                self.line(&format!("r7 = r10\nr7 += -{down}"));
            }
            1 => {
                let max = *self.rng.pick(&[3, 7, 15]);
                self.line(&format!("r5 = r9\nr5 &= {max}\nr7 = r10\nr7 += -64\nr7 += r5"));
                return (64 - max, "");
            }
            2 => self.line(&format!(
                "r7 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\nr4 = r7\nr4 += {len}\nif r4 > r3 goto out"
            )),
            3 => {
                let (map, off) = (9 + self.rng.below(2), 8 * self.rng.below(4));
                self.line(&format!("r7 = map[idx:{map}][0]+{off}"));
                return (32 - off, "");
            }
            4 => {
                let len = len.next_multiple_of(8);
                self.line(&format!("r1 = map[idx:2]\nr2 = {len}\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr7 = r0"));
                self.exit = format!("give{n}");
                return (len, "r1 = r7\nr2 = 0\ncall 133");
            }
            5 | 6 => {
                let buffer = *self.rng.pick(&["r3 = 0", "r3 = r10\nr3 += -64", "r3 = map[idx:9][0]+0"]);
                let slice = if self.rng.one_in(2) { 4 } else { 6 };
                self.line(&format!("r1 = r6\nr2 = 0\nr3 = {}\ncall kfunc #3", at_dynptr(3)));
                self.copied();
                self.line(&format!("r1 = {}\nr2 = 2\n{buffer}\nr4 = {len}\ncall kfunc #{slice}", at_dynptr(1)));
                self.line("if r0 == 0 goto out\nr7 = r0");
            }
            7 => {
                self.line(&format!("r1 = map[idx:9][0]+0\nr2 = 60\nr3 = 0\nr4 = {}\ncall 197", at_dynptr(4)));
                self.copied();
                self.line(&format!(
                    "r1 = {}\nr2 = 3\nr3 = {len}\ncall 203\nif r0 == 0 goto out\nr7 = r0",
                    at_dynptr(1)
                ));
            }
            8 => {
                self.line(&format!("r1 = map[idx:2]\nr2 = {len}\nr3 = 0\nr4 = {}\ncall 198", at_dynptr(4)));
                self.copied();
                self.exit = format!("give{n}");
                self.line(&format!(
                    "r1 = {}\nr2 = 0\nr3 = {len}\ncall 203\nif r0 == 0 goto give{n}\nr7 = r0",
                    at_dynptr(1)
                ));
                return (len, if self.rng.one_in(4) { COPY_BACK } else { BACK });
            }
            _ => {
                let (map, len) = *self.rng.pick(&VALUES);
                self.sink = map == SINK;
                self.least = u64::from(matches!(map, 5 | 6));
                let (key, off) = (self.rng.below(3), if self.rng.one_in(2) { 8 } else { 0 });
                self.line(&format!("*(u64 *)(r10 -88) = {key}\nr2 = r10\nr2 += -88\nr1 = map[idx:{map}]\ncall 1"));
                self.line(&format!("if r0 == 0 goto out\nr7 = r0\nr7 += {off}"));
                return (len - off, "");
            }
        }
        (len, "")
    }

    /// A copy of the dynptr, sometimes, and one of the two made shorter.
    fn copied(&mut self) {
        if self.rng.one_in(2) {
            self.line(&format!("r1 = {}\nr2 = r10\nr2 += -128\ncall kfunc #7", at_dynptr(1)));
        }
        if self.rng.one_in(3) {
            let start = self.rng.below(4);
            self.line(&format!("r1 = {}\nr2 = {start}\nr3 = 50\ncall kfunc #8", at_dynptr(1)));
        }
    }

    /// A length in a register: a constant, or a number with bounds, of at most `len` as a rule.
    fn length(&mut self, r: usize, len: u64) {
        let most = len + u64::from(self.rng.one_in(10));
        let below = most.min((most + 1).next_power_of_two() / 2);
        let exit = self.exit.clone();
        match self.rng.below(5) {
            0 | 1 => {
                let some = self.least + self.rng.below(most + 1 - self.least);
                self.line(&format!("r{r} = {some}"));
            }
            2 => self.line(&format!("r{r} = {most}")),
            3 => self.line(&format!("r{r} = r9\nr{r} &= {below}\nif r{r} > {most} goto {exit}")),
            _ => self.line(&format!("r{r} = r9\nif r{r} > {most} goto {exit}\nif r{r} == 0 goto {exit}")),
        }
    }

    /// Another piece of memory, or the same.
    fn other(&mut self, r: usize, null: bool) -> u64 {
        match self.rng.below(3) {
            0 if null => {
                self.line(&format!("r{r} = 0"));
                0
            }
            1 => {
                self.line(&format!("r{r} = r7"));
                16
            }
            _ => {
                self.line(&format!("r{r} = r10\nr{r} += -72"));
                24
            }
        }
    }

    fn call(&mut self, len: u64) {
        match self.rng.below(14) {
            0..=2 => {
                self.length(4, len);
                let (off, helper) = (self.rng.below(20), if self.rng.one_in(3) { 190 } else { 189 });
                self.line(&format!("r1 = r6\nr2 = {off}\nr3 = r7\ncall {helper}"));
            }
            3 => {
                self.length(2, len);
                let more = self.other(3, true);
                self.length(4, more);
                self.line("r1 = r7\nr5 = 0\ncall 28");
            }
            4 => {
                self.length(2, len);
                self.other(4, false);
                self.line("r1 = r7\nr3 = 0\ncall 105");
            }
            5 => {
                self.length(2, 24);
                self.line("r1 = r10\nr1 += -72\nr3 = 0\nr4 = r7\ncall 106");
            }
            6 => {
                let (key, value) = if self.rng.one_in(2) { (2, 3) } else { (3, 2) };
                self.line(&format!("r{key} = r7\nr{value} = r10\nr{value} += -72"));
                let map = if self.rng.one_in(2) { 4 } else { 1 };
                self.line(&format!("r1 = map[idx:{map}]\nr4 = 0\ncall 2"));
            }
            7 => self.line("r1 = map[idx:1]\nr2 = r7\ncall 1\nif r0 == 0 goto +1\nr0 = 1"),
            8 => {
                let helper = 87 + self.rng.below(3);
                self.line(&format!("r1 = map[idx:11]\nr2 = r7\nr3 = 2\ncall {helper}"));
            }
            9 => {
                let name = format!("f{}", self.functions.len());
                let off = 8 * self.rng.below(2);
                self.line(&format!("r1 = r7\nr2 = r9\ncall {name}"));
                self.functions.push(format!(
                    "{name}: r0 = 0\nif r1 == 0 goto +2\nr0 = *(u64 *)(r1 +{off})\n*(u64 *)(r1 +8) = r2\nexit\n"
                ));
            }
            10 | 11 => {
                let off = self.rng.below(8);
                self.line(&format!("r1 = map[idx:9][0]+0\nr2 = 40\nr3 = 0\nr4 = {}\ncall 197", at_dynptr(4)));
                if self.rng.one_in(2) {
                    self.length(2, len);
                    self.line(&format!("r1 = r7\nr3 = {}\nr4 = {off}\nr5 = 0\ncall 201", at_dynptr(3)));
                } else {
                    self.length(4, len);
                    self.line(&format!("r1 = {}\nr2 = {off}\nr3 = r7\nr5 = 0\ncall 202", at_dynptr(1)));
                }
            }
            // Linux takes it for a write alone.
            12 if !self.sink => {
                self.length(2, len);
                self.line("r1 = r7\nr3 = map[idx:10][0]+0\nr4 = 0\nr5 = 0\ncall 165");
            }
            _ => {
                let (helper, by) = if self.rng.one_in(2) { (44, 4) } else { (65, -1) };
                self.line(&format!("r1 = r6\nr2 = {by}\ncall {helper}"));
            }
        }
        self.line("r8 += r0");
    }

    /// What lies there now: a byte of the memory, or of the stack.
    fn look(&mut self, len: u64) {
        let at = self.rng.below(len.max(1));
        match self.rng.below(4) {
            0 => self.line(&format!("*(u8 *)(r7 +{at}) = r8")),
            1 => self.line(&format!("r5 = *(u8 *)(r7 +{at})\nr8 += r5")),
            _ => {
                let slot = 8 + 8 * self.rng.below(9);
                self.line(&format!("r5 = *(u64 *)(r10 -{slot})\nr8 += r5"));
            }
        }
    }
}

/// The rest of a line that lets a register point to the dynptr.
fn at_dynptr(r: usize) -> String {
    format!("r10\nr{r} += -112")
}
