//! Random arithmetic, moves, comparisons and spills, walked beside a run with numbers: what is known holds for what is there, of every
//! register, every slot, every pair that is linked, and every quotient.

use xway_isa::{AtomicOp, Cond, Insn, MovExt, Operand, Reg, Size, Width};

use crate::cfg::Cfg;
use crate::explore::{Flow, Verifier};
use crate::state::{Byte, State};
use crate::testing::{Rng, program};
use crate::value::{Num, Value};
use crate::{Config, MapsView};

/// A number where programs break.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => rng.below(20) as u64,
        1 => rng.below(600) as u64,
        2 => rng.pick(&[i32::MAX as u64, 1 << 31, u32::MAX.into(), 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX]),
        3 => rng.u64() >> rng.below(64),
        4 => (rng.u64() >> 32) & rng.u64(),
        _ => (rng.below(300) as u64).wrapping_neg(),
    }
}

const ALU: [&str; 15] =
    ["+=", "+=", "-=", "-=", "*=", "/=", "%=", "s/=", "s%=", "|=", "&=", "^=", "<<=", ">>=", "s>>="];
const CONDITIONS: [&str; 11] = ["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<=", "&"];
const SIZES: [(&str, usize); 4] = [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)];

/// Registers r5 to r8 hold numbers, r9 the context.
fn text(rng: &mut Rng) -> String {
    let mut out =
        "r9 = r1\ncall bpf_ktime_get_ns\nr8 = r0\nr6 = *(u32 *)(r9 +16)\nr7 = *(u32 *)(r9 +12)\nr5 = r6\n".to_owned();
    for _ in 0..4 + rng.below(14) {
        let (d, s) = (5 + rng.below(4), 5 + rng.below(4));
        let w = rng.pick(&["r", "r", "w"]);
        let small =
            rng.pick(&[1i64, 2, 3, 4, 5, 7, 8, 10, 16, 31, 32, 60, 63, 64, 100, 255, 4096, 65535, i64::from(i32::MAX)]);
        let imm = if rng.below(4) == 0 { -small } else { small };
        let line = match rng.below(20) {
            0 | 1 => format!("{w}{d} = {w}{s}"),
            2 => match w {
                "w" => format!("w{d} = (s{})w{s}", rng.pick(&[8, 16])),
                _ => format!("r{d} = (s{})r{s}", rng.pick(&[8, 16, 32])),
            },
            3 => format!("{w}{d} = -{w}{d}"),
            4 => format!("r{d} = {}{} r{d}", rng.pick(&["be", "le", "bswap"]), rng.pick(&[16, 32, 64])),
            5 => format!("r{d} <<= 32\nr{d} {} 32", rng.pick(&[">>=", "s>>="])),
            6 => {
                let by = rng.pick(&[3, 10, 60, 1000]);
                format!("r{d} = r{s}\n{w}{d} /= {by}\n{w}{d} *= {by}\n{w}{s} -= {w}{d}")
            }
            7 => format!("{w}{d} s>>= {}\n{w}{d} {} {imm}", if w == "w" { 31 } else { 63 }, rng.pick(&["&=", "|="])),
            8..=10 => match rng.pick(&ALU) {
                op @ ("<<=" | ">>=" | "s>>=") => format!("{w}{d} {op} {}", rng.below(if w == "w" { 32 } else { 64 })),
                op => format!("{w}{d} {op} {imm}"),
            },
            11 => format!("{w}{d} {} {w}{s}", rng.pick(&ALU)),
            12 | 13 => format!("if {w}{d} {} {imm} goto +1\ngoto +0", rng.pick(&CONDITIONS)),
            14 => format!("if {w}{d} {} {w}{s} goto +1\ngoto +0", rng.pick(&CONDITIONS)),
            15 => format!("if {w}{d} > {small} goto +1\ngoto +0"),
            16 => {
                let ((size, n), slot) = (rng.pick(&SIZES), 8 + 8 * rng.below(2));
                let off = slot - n * rng.below(8 / n);
                format!("*({size} *)(r10 -{off}) = {}", if rng.below(4) == 0 { "0".into() } else { format!("r{s}") })
            }
            17 => {
                let ((size, n), slot) = (rng.pick(&SIZES), 8 + 8 * rng.below(2));
                let off = slot - n * rng.below(8 / n);
                let sign = if n < 8 && rng.below(3) == 0 { size.replace('u', "s") } else { size.to_owned() };
                format!("r{d} = *({sign} *)(r10 -{off})")
            }
            18 => format!("*(u64 *)(r10 -8) = r{s}\nr{d} = *(u64 *)(r10 -8)"),
            _ => format!("r{d} = atomic64_fetch_add((u64 *)(r10 -16), r{d})"),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out + "r0 = 0\nexit"
}

/// The run with numbers.
struct Machine {
    regs: [u64; 11],
    stack: [u8; 16],
}

fn extended(x: u64, bits: u32) -> u64 {
    ((x << (64 - bits)) as i64 >> (64 - bits)) as u64
}

fn bits(width: Width) -> u32 {
    if width == Width::W64 { 64 } else { 32 }
}

fn cut(x: u64, bits: u32) -> u64 {
    x & (u64::MAX >> (64 - bits))
}

impl Machine {
    fn operand(&self, o: Operand) -> u64 {
        match o {
            Operand::Reg(r) => self.regs[r.index()],
            Operand::Imm(i) => i64::from(i) as u64,
        }
    }

    fn at(off: i16, size: Size) -> std::ops::Range<usize> {
        let from = (16 + i32::from(off)) as usize;
        from..from + size.bytes() as usize
    }

    fn load(&self, off: i16, size: Size) -> u64 {
        let mut word = [0; 8];
        word[..size.bytes() as usize].copy_from_slice(&self.stack[Machine::at(off, size)]);
        u64::from_le_bytes(word)
    }

    fn store(&mut self, off: i16, size: Size, x: u64) {
        self.stack[Machine::at(off, size)].copy_from_slice(&x.to_le_bytes()[..size.bytes() as usize]);
    }

    fn holds(&self, width: Width, cond: Cond, dst: Reg, src: Operand) -> bool {
        let b = bits(width);
        cond.holds(cut(self.regs[dst.index()], b), cut(self.operand(src), b), b)
    }

    /// Does what an instruction does, jumps apart.
    fn step(&mut self, insn: &Insn, rng: &mut Rng) {
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                let b = bits(width);
                self.regs[dst.index()] = op.apply(cut(self.regs[dst.index()], b), cut(self.operand(src), b), b);
            }
            Insn::Mov { width, dst, src, ext } => {
                let x = self.operand(src);
                let x = match ext {
                    MovExt::None => x,
                    MovExt::S8 => extended(x, 8),
                    MovExt::S16 => extended(x, 16),
                    MovExt::S32 => extended(x, 32),
                };
                self.regs[dst.index()] = cut(x, bits(width));
            }
            Insn::Neg { width, dst } => {
                self.regs[dst.index()] = cut(self.regs[dst.index()].wrapping_neg(), bits(width))
            }
            Insn::Endian { order, bits, dst } => {
                let x = self.regs[dst.index()];
                let swapped = x.swap_bytes() >> (64 - u32::from(bits));
                self.regs[dst.index()] = if order == xway_isa::ByteOrder::ToLe { cut(x, bits.into()) } else { swapped };
            }
            Insn::Load { size, signed, dst, base, off } if base == Reg::FP => {
                let x = self.load(off, size);
                self.regs[dst.index()] = if signed { extended(x, size.bytes() * 8) } else { x };
            }
            Insn::Load { dst, .. } => self.regs[dst.index()] = cut(number(rng), 32),
            Insn::Store { size, off, src, .. } => self.store(off, size, self.operand(src)),
            Insn::Atomic { size, op: AtomicOp::Add { .. }, off, src, .. } => {
                let old = self.load(off, size);
                self.store(off, size, old.wrapping_add(self.regs[src.index()]));
                self.regs[src.index()] = old;
            }
            Insn::Call(_) => self.regs[0] = number(rng),
            _ => {}
        }
    }

    /// What is known of a state holds here.
    fn check(&self, st: &State, said: &str) {
        let mut numbers: Vec<(Num, u64)> = Vec::new();
        for (r, v) in st.frame().regs.iter().enumerate() {
            if let Value::Num(n) = v {
                numbers.push((*n, self.regs[r]));
            }
        }
        for (i, slot) in st.frame().stack.iter().enumerate() {
            let bytes = &self.stack[8 - 8 * i..16 - 8 * i];
            let zeros = slot.bytes.iter().zip(bytes).all(|(known, b)| *known != Byte::Zero || *b == 0);
            assert!(zeros, "{said}: slot {i} is {slot:?}, and holds {bytes:?}");
            if let (len @ 1.., Value::Num(n)) = (slot.spill_len(), slot.spill) {
                let mut word = [0; 8];
                word[..len].copy_from_slice(&bytes[..len]);
                numbers.push((n, u64::from_le_bytes(word)));
            }
        }
        for (n, x) in &numbers {
            assert!(n.s.contains(*x), "{said}: {x:#x} is not in {n:x?}");
            for (m, y) in numbers.iter().filter(|(m, _)| n.link != 0 && m.link == n.link) {
                assert_eq!(y.wrapping_sub(*x), m.delta.wrapping_sub(n.delta) as u64, "{said}: {n:x?} {m:x?}");
            }
            // A quotient is one of the number that it was made of.
            let Some(q) = st.quotient.filter(|q| (n.link, n.delta) == (q.link, 0)) else { continue };
            for (_, of) in numbers.iter().filter(|(m, _)| (m.link, m.delta) == q.of) {
                let quotient = if q.whole { of / q.by * q.by } else { of / q.by };
                assert_eq!(*x, quotient, "{said}: {q:?}");
            }
        }
    }
}

/// Walks one program along one run; gives the number of instructions.
fn walk(seed: u64) -> u64 {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let text = text(&mut rng);
    let (program, config) = (program(&text), Config::default());
    let cfg = Cfg::new(&program).unwrap_or_else(|e| panic!("{}\n{text}", e.message));
    let mut v = Verifier::new(&program, MapsView::empty(), &config, cfg);
    let mut st = v.entry(0).expect("a state").remove(0);
    let mut run = Machine { regs: [0; 11], stack: [0; 16] };
    for steps in 0.. {
        let pc = st.pc;
        let insn = *v.cfg.insn(pc).expect("an instruction");
        if matches!(insn, Insn::Exit) {
            return steps;
        }
        if v.cfg.prune[pc] {
            st.quotient = None;
        }
        let said = format!("seed {seed}, instruction {pc}\n{text}\n");
        let jumps = match insn {
            Insn::Branch { width, cond, dst, src, .. } => Some(run.holds(width, cond, dst, src)),
            _ => None,
        };
        let before = v.pending.len();
        let flow = v.step(&mut st, &insn).unwrap_or_else(|e| panic!("{said}{}", e.message));
        let Flow::Next(next) = flow else { panic!("{said}no way goes on") };
        st.pc = next;
        let other = (v.pending.len() > before).then(|| v.pending.pop().expect("it was just put there"));
        match (jumps, other) {
            (Some(jumps), Some(jumped)) => st = if jumps { jumped } else { st },
            (Some(jumps), None) => assert_eq!(next, v.cfg.successor(pc, jumps), "{said}the other way was closed"),
            // A sign was split: zero goes its own way.
            (None, Some(zero)) => {
                let Insn::Alu { width, dst, .. } = insn else { panic!("{said}two ways") };
                st = if cut(run.regs[dst.index()], bits(width)) == 0 { zero } else { st };
            }
            (None, None) => {}
        }
        run.step(&insn, &mut rng);
        run.check(&st, &said);
    }
    unreachable!("programs end")
}

#[test]
fn what_is_known_of_numbers_holds_where_they_go() {
    let steps: u64 = (1..=30_000).map(walk).sum();
    assert!(steps > 300_000, "{steps}");
}
