//! A program over plain memory as machine code.
//!
//! The compiler takes XDP programs only. So the memory becomes a packet, and a few instructions in front of the program make
//! what it expects: r1 = the address of the memory, r2 = its length. They compare that length with `data_end`, so that the
//! verifier knows what the program may touch.
//!
//! RFC 9669 defines a few instructions that Linux, and so the verifier, refuses at sight: division by a constant zero, shifts
//! by more than the width, code that no jump reaches. They are replaced by instructions that do the same.

use xway_isa::{CallTarget, Imm64, Insn, Slot, assemble, decode, encode, op};
use xway_jit::{Options, RunEnv, compile};
use xway_maps::Guard;
use xway_object::{Program, ProgramKind};
use xway_packet::{Pool, PoolConfig};
use xway_vm::{Instance, SystemHost};

use crate::failure::Failure;

/// Runs a program that this instance links behind the verifier. Gives all of r0.
pub fn run(instance: &Instance, image: &Program, memory: &[u8]) -> Result<u64, Failure> {
    let refused = |e: &dyn std::fmt::Display| Failure::no(format!("--engine jit: {e}")).hint("--engine interp");
    let image = over_packet(image, memory.len());
    let linked = instance.link(&image).map_err(|e| refused(&e))?;
    let proof = linked.proof().ok_or_else(|| refused(&"the program is not verified"))?;
    let code = compile(&linked, proof, &Options::default()).map_err(|e| refused(&e))?;
    let mut pool = Pool::new(PoolConfig::new(1)).map_err(Failure::needs)?;
    let mut frame = pool.alloc().map_err(Failure::needs)?;
    let filled = frame.fill(memory).map_err(|full| Failure::input(format!("MEMORY: {full}")));
    let (guard, host) = (Guard::pin(), SystemHost::new());
    let mut env = RunEnv::new(&guard, &host, 0);
    let ret = filled.and_then(|()| code.run_one(&mut frame, &mut env).map_err(|e| refused(&e)));
    pool.release(frame);
    match env.take_faults().first() {
        Some((_, fault)) => Err(Failure::no(fault)),
        None => ret,
    }
}

/// The same program, for a packet of this length instead of memory.
fn over_packet(image: &Program, len: usize) -> Program {
    let mut insns = entry(len);
    let by = insns.len();
    // Objects of compilers hold nothing of that kind, and records that count their instructions.
    insns.extend(if image.subprogs.is_empty() { reached(&image.insns) } else { image.insns.clone() });
    spell_for_linux(&mut insns[by..]);
    let mut program = Program { kind: ProgramKind::Xdp { frags: false }, insns, ..image.clone() };
    for (n, function) in program.subprogs.iter_mut().enumerate() {
        // The main function begins with what stands in front.
        match n {
            0 => function.len += by,
            _ => function.start += by,
        }
    }
    program.line_info.iter_mut().for_each(|line| line.insn += by);
    program.poisons.iter_mut().for_each(|poison| poison.insn += by);
    program
}

/// The same meaning in instructions that Linux takes.
fn spell_for_linux(insns: &mut [Slot]) {
    let mut at = 0;
    while at < insns.len() {
        let slot = &mut insns[at];
        at += if slot.opcode == op::LD_IMM64 { 2 } else { 1 };
        let wide = slot.opcode & op::CLASS_MASK == op::ALU64;
        let (mov_imm, mov_reg) = if wide { (0xb7, 0xbf) } else { (0xb4, 0xbc) };
        let same = Slot { opcode: mov_reg, src: slot.dst, off: 0, imm: 0, ..*slot };
        match slot.opcode {
            // x / 0 = 0 and x % 0 = x, signed or not.
            0x37 | 0x34 if slot.imm == 0 => *slot = Slot { opcode: mov_imm, off: 0, ..*slot },
            0x97 | 0x94 if slot.imm == 0 => *slot = same,
            0x67 | 0x77 | 0xc7 => slot.imm &= 63,
            0x64 | 0x74 | 0xc4 => slot.imm &= 31,
            _ => {}
        }
    }
}

/// The program without the instructions that no jump reaches. What makes no sense is left as it is: the verifier says why.
fn reached(slots: &[Slot]) -> Vec<Slot> {
    let whole = || slots.to_vec();
    let Ok(insns) = decode(slots) else { return whole() };
    let mut seen = vec![false; insns.len()];
    let mut work = vec![0];
    while let Some(at) = work.pop() {
        let Some(Some(insn)) = insns.get(at) else { return whole() };
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let (goes_on, jump) = ways(insn);
        work.extend(goes_on.then_some(at + insn.slots()));
        if let Some(off) = jump {
            let Ok(to) = usize::try_from(at as i64 + 1 + off) else { return whole() };
            work.push(to);
        }
    }
    let kept = |at: usize| insns[at].filter(|_| seen[at]);
    // Where each instruction comes to stand.
    let mut next = 0;
    let place: Vec<i64> = (0..insns.len())
        .map(|at| {
            let here = next;
            next += kept(at).map_or(0, |i| i.slots() as i64);
            here
        })
        .collect();
    let mut out = Vec::new();
    for (at, mut insn) in (0..insns.len()).filter_map(|at| Some((at, kept(at)?))) {
        if let (_, Some(off)) = ways(&insn) {
            let to = place[(at as i64 + 1 + off) as usize] - place[at] - 1;
            match &mut insn {
                // Jumps only get shorter.
                Insn::Branch { off, .. } | Insn::MayGoto { off } => *off = to as i16,
                Insn::Jump { off, .. }
                | Insn::Call(CallTarget::Local(off))
                | Insn::LoadImm64 { imm: Imm64::Func(off), .. } => *off = to as i32,
                _ => {}
            }
        }
        encode(&insn, &mut out);
    }
    out
}

/// Whether the next instruction may follow, and the offset of another one that may.
fn ways(insn: &Insn) -> (bool, Option<i64>) {
    match *insn {
        Insn::Exit => (false, None),
        Insn::Jump { off, .. } => (false, Some(off.into())),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => (true, Some(off.into())),
        Insn::Call(CallTarget::Local(off)) | Insn::LoadImm64 { imm: Imm64::Func(off), .. } => (true, Some(off.into())),
        _ => (true, None),
    }
}

/// r1 and r2 as a program over memory has them.
fn entry(len: usize) -> Vec<Slot> {
    let text = match len {
        0 => "r1 = 0\nr2 = 0\n".to_owned(),
        _ => format!(
            "r2 = *(u32 *)(r1 +4)\nr1 = *(u32 *)(r1 +0)\nr0 = r1\nr0 += {len}\nif r0 <= r2 goto +2\nr0 = 0\nexit\nr2 = {len}\n"
        ),
    };
    assemble(&text).expect("a text of ours")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_nothing_reaches_goes() {
        let text = "r0 = 1\ngoto in\nr0 = 5 ll\nback:\ncall f\nexit\nr0 = 2\nin:\nr0 = 3\ngoto back\nf:\nr0 = 4\nexit\nr0 = 5\nexit";
        let rest = "r0 = 1\ngoto in\nback:\ncall f\nexit\nin:\nr0 = 3\ngoto back\nf:\nr0 = 4\nexit";
        let slots = |text| assemble(text).expect("a text of ours");
        assert_eq!(reached(&slots(text)), slots(rest));
        for untouched in [rest, "goto -9\nexit", "r0 = 0\ngoto +7"] {
            assert_eq!(reached(&slots(untouched)), slots(untouched));
        }
    }

    #[test]
    fn what_linux_refuses_at_sight_is_spelled_differently() {
        for (bad, good) in [
            ([0x37, 1, 0, 0], "r1 = 0"),
            ([0x34, 1, 0, 0], "w1 = 0"),
            ([0x37, 1, 1, 0], "r1 = 0"),
            ([0x97, 1, 0, 0], "r1 = r1"),
            ([0x94, 1, 1, 0], "w1 = w1"),
            ([0x67, 1, 0, 65], "r1 <<= 1"),
            ([0x74, 1, 0, 33], "w1 >>= 1"),
            ([0xc4, 1, 0, -1], "w1 s>>= 31"),
            ([0x37, 1, 0, 7], "r1 /= 7"),
        ] {
            let [opcode, dst, off, imm] = bad;
            let mut slots = [Slot { opcode: opcode as u8, dst: dst as u8, src: 0, off: off as i16, imm }];
            spell_for_linux(&mut slots);
            assert_eq!(slots.to_vec(), assemble(good).expect("a text of ours"), "{good}");
        }
        // Half of a wide instruction is none.
        let mut wide = assemble("r1 = 0x3700000000 ll").expect("a text of ours");
        let before = wide.clone();
        spell_for_linux(&mut wide);
        assert_eq!(wide, before);
    }
}
