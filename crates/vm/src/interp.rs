//! The interpreter's loop.
//!
//! One Rust call for each active function of the program, so callee-saved registers are saved by being locals. Semantics
//! are those of RFC 9669; where it leaves a choice, Linux's.

use xway_isa::AtomicOp;
use xway_maps::Rmw;

use crate::addr::{self, at};
use crate::env::{FRAMES, STACK_LEN};
use crate::fault::{FaultKind, Trap};
use crate::kfuncs::kfunc;
use crate::machine::Checked;
use crate::mem::Vm;
use crate::op::{ATOMICS, Code, Op};
use crate::{Fault, Program};

/// The run was stopped; the fault is in [`Vm::stopped`].
pub(crate) struct Stopped;

/// How a function was left.
enum Left<'e> {
    Exit(u64),
    /// A tail call: another program takes its place.
    Tail(&'e Program),
}

/// Iterations that `may_goto` grants to each call of a function (Linux: `BPF_MAX_LOOPS`).
const MAY_GOTO_MAX: u32 = 8 * 1024 * 1024;

impl<'e> Vm<'_, 'e> {
    /// Calls the function at `entry` with these arguments and runs it to its exit, through whatever tail calls it makes.
    pub(crate) fn call(&mut self, program: &'e Program, entry: usize, args: [u64; 5]) -> Result<u64, Stopped> {
        if self.depth >= FRAMES {
            return Err(self.stop(program, entry, FaultKind::Depth, &[]));
        }
        self.depth += 1;
        self.stack[self.depth - 1] = [0; STACK_LEN];
        let mut left = self.run(program, entry, args)?;
        let ret = loop {
            match left {
                Left::Exit(ret) => break ret,
                Left::Tail(next) => {
                    self.stack[self.depth - 1] = [0; STACK_LEN];
                    left =
                        self.run(next, 0, [at(addr::CTX, 0), addr::POISON, addr::POISON, addr::POISON, addr::POISON])?;
                }
            }
        };
        self.depth -= 1;
        Ok(ret)
    }

    /// Records a fault, innermost first.
    #[cold]
    #[inline(never)]
    pub(crate) fn stop(&mut self, program: &Program, insn: usize, kind: FaultKind, regs: &[u64]) -> Stopped {
        let decoded = program.insns.get(insn).and_then(|i| i.as_ref());
        let known = decoded.map_or(vec![], |i| {
            let read = crate::op::registers_read(i);
            (0..regs.len().min(11))
                .filter(|n| read & (1 << n) != 0)
                .map(|n| format!("r{n} = {}", self.describe(regs[n])))
                .collect()
        });
        if self.stopped.is_none() {
            self.stopped = Some(Box::new(Fault {
                program: program.name().to_owned(),
                function: program.function(insn).to_owned(),
                insn,
                text: decoded.map_or(String::new(), |i| i.to_string()),
                line: program.line(insn).cloned(),
                kind,
                known,
            }));
        }
        Stopped
    }

    fn run(&mut self, program: &'e Program, entry: usize, args: [u64; 5]) -> Result<Left<'e>, Stopped> {
        let ops = &program.ops[..];
        let mut r = [addr::POISON; 11];
        r[1..6].copy_from_slice(&args);
        r[10] = at(addr::STACK + self.depth as u64 - 1, STACK_LEN as u64);
        let mut may_goto = MAY_GOTO_MAX;
        let mut code = ops.get(entry..).unwrap_or(&[]).iter();
        // Instructions are counted by straight runs: `from` is where the present one began.
        let mut from = entry;
        let trap: Trap = loop {
            let Some(op) = code.next() else {
                break Box::new(FaultKind::Pc(ops.len() as i64));
            };
            let (d, s) = (op.dst as usize, op.src as usize);

            macro_rules! load {
                ($n:literal, $as:ty) => {
                    match self.load::<$n>(r[s].wrapping_add(op.off as i64 as u64)) {
                        Ok(v) => r[d] = v as $as as i64 as u64,
                        Err(t) => break t,
                    }
                };
            }
            macro_rules! store {
                ($n:literal, $v:expr) => {
                    if let Err(t) = self.store::<$n>(r[d].wrapping_add(op.off as i64 as u64), $v) {
                        break t;
                    }
                };
            }
            macro_rules! acquire {
                ($n:literal) => {
                    match self.load_acquire::<$n>(r[s].wrapping_add(op.off as i64 as u64)) {
                        Ok(v) => r[d] = v,
                        Err(t) => break t,
                    }
                };
            }
            macro_rules! release {
                ($n:literal) => {
                    if let Err(t) = self.store_release::<$n>(r[d].wrapping_add(op.off as i64 as u64), r[s]) {
                        break t;
                    }
                };
            }
            // Index of the next instruction.
            macro_rules! pc {
                () => {
                    ops.len() - code.len()
                };
            }
            // Ends a straight run; another one begins at the jump's target, which the linker has checked.
            macro_rules! goto {
                ($op:expr) => {
                    account!();
                    from = $op.off as usize;
                    code = ops.get(from..).unwrap_or(&[]).iter();
                };
            }
            // Ends a straight run at something that counts for itself, or at the end.
            macro_rules! account {
                () => {
                    let run = (pc!() - from) as u64;
                    if run > self.fuel {
                        break Box::new(FaultKind::Budget(self.env.budget));
                    }
                    self.fuel -= run;
                };
            }
            // Three instructions at once where the address is that of a map value, else the first of them.
            macro_rules! inc {
                ($n:literal, $delta:expr) => {
                    if let Some(add) = code.as_slice().first()
                        && let Some(sum) = self.add_in_value::<$n>(r[s].wrapping_add(op.off as i64 as u64), $delta(add))
                    {
                        r[d] = sum;
                        code.next();
                        code.next();
                    } else {
                        load!($n, u64);
                    }
                };
            }
            macro_rules! jump {
                ($cond:expr) => {
                    if $cond {
                        goto!(op);
                    }
                };
            }
            match op.code {
                Code::Add64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a.wrapping_add(b);
                }
                Code::Add64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a.wrapping_add(b);
                }
                Code::Add32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a.wrapping_add(b));
                }
                Code::Add32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a.wrapping_add(b));
                }
                Code::Sub64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a.wrapping_sub(b);
                }
                Code::Sub64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a.wrapping_sub(b);
                }
                Code::Sub32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a.wrapping_sub(b));
                }
                Code::Sub32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a.wrapping_sub(b));
                }
                Code::Mul64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a.wrapping_mul(b);
                }
                Code::Mul64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a.wrapping_mul(b);
                }
                Code::Mul32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a.wrapping_mul(b));
                }
                Code::Mul32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a.wrapping_mul(b));
                }
                Code::Div64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a.checked_div(b).unwrap_or(0);
                }
                Code::Div64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a.checked_div(b).unwrap_or(0);
                }
                Code::Div32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a.checked_div(b).unwrap_or(0));
                }
                Code::Div32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a.checked_div(b).unwrap_or(0));
                }
                Code::SDiv64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = sdiv64(a, b);
                }
                Code::SDiv64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = sdiv64(a, b);
                }
                Code::SDiv32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(sdiv32(a, b));
                }
                Code::SDiv32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(sdiv32(a, b));
                }
                Code::Or64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a | b;
                }
                Code::Or64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a | b;
                }
                Code::Or32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a | b);
                }
                Code::Or32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a | b);
                }
                Code::And64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a & b;
                }
                Code::And64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a & b;
                }
                Code::And32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a & b);
                }
                Code::And32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a & b);
                }
                Code::Lsh64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a.wrapping_shl(b as u32);
                }
                Code::Lsh64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a.wrapping_shl(b as u32);
                }
                Code::Lsh32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a.wrapping_shl(b));
                }
                Code::Lsh32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a.wrapping_shl(b));
                }
                Code::Rsh64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a.wrapping_shr(b as u32);
                }
                Code::Rsh64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a.wrapping_shr(b as u32);
                }
                Code::Rsh32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a.wrapping_shr(b));
                }
                Code::Rsh32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a.wrapping_shr(b));
                }
                Code::Mod64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a.checked_rem(b).unwrap_or(a);
                }
                Code::Mod64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a.checked_rem(b).unwrap_or(a);
                }
                Code::Mod32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a.checked_rem(b).unwrap_or(a));
                }
                Code::Mod32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a.checked_rem(b).unwrap_or(a));
                }
                Code::SMod64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = smod64(a, b);
                }
                Code::SMod64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = smod64(a, b);
                }
                Code::SMod32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(smod32(a, b));
                }
                Code::SMod32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(smod32(a, b));
                }
                Code::Xor64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = a ^ b;
                }
                Code::Xor64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = a ^ b;
                }
                Code::Xor32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from(a ^ b);
                }
                Code::Xor32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from(a ^ b);
                }
                Code::Arsh64X => {
                    let (a, b) = (r[d], r[s]);
                    r[d] = (a as i64).wrapping_shr(b as u32) as u64;
                }
                Code::Arsh64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    r[d] = (a as i64).wrapping_shr(b as u32) as u64;
                }
                Code::Arsh32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    r[d] = u64::from((a as i32).wrapping_shr(b) as u32);
                }
                Code::Arsh32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    r[d] = u64::from((a as i32).wrapping_shr(b) as u32);
                }
                Code::Mov64X => r[d] = r[s],
                Code::Mov64K => r[d] = op.imm as u64,
                Code::Mov32X => r[d] = u64::from(r[s] as u32),
                Code::Mov32K => r[d] = u64::from(op.imm as u32),
                Code::MovS8X64 => r[d] = r[s] as i8 as u64,
                Code::MovS16X64 => r[d] = r[s] as i16 as u64,
                Code::MovS32X64 => r[d] = r[s] as i32 as u64,
                Code::MovS8X32 => r[d] = u64::from(r[s] as i8 as u32),
                Code::MovS16X32 => r[d] = u64::from(r[s] as i16 as u32),
                Code::Neg64 => r[d] = r[d].wrapping_neg(),
                Code::Neg32 => r[d] = u64::from((r[d] as u32).wrapping_neg()),
                Code::Le16 => r[d] = u64::from(r[d] as u16),
                Code::Le32 => r[d] = u64::from(r[d] as u32),
                Code::Nop => {}
                Code::Swap16 => r[d] = u64::from((r[d] as u16).swap_bytes()),
                Code::Swap32 => r[d] = u64::from((r[d] as u32).swap_bytes()),
                Code::Swap64 => r[d] = r[d].swap_bytes(),

                Code::JEq64X => {
                    let (a, b) = (r[d], r[s]);
                    jump!(a == b)
                }
                Code::JEq64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    jump!(a == b)
                }
                Code::JEq32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    jump!(a == b)
                }
                Code::JEq32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    jump!(a == b)
                }
                Code::JNe64X => {
                    let (a, b) = (r[d], r[s]);
                    jump!(a != b)
                }
                Code::JNe64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    jump!(a != b)
                }
                Code::JNe32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    jump!(a != b)
                }
                Code::JNe32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    jump!(a != b)
                }
                Code::JSet64X => {
                    let (a, b) = (r[d], r[s]);
                    jump!(a & b != 0)
                }
                Code::JSet64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    jump!(a & b != 0)
                }
                Code::JSet32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    jump!(a & b != 0)
                }
                Code::JSet32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    jump!(a & b != 0)
                }
                Code::JGt64X => {
                    let (a, b) = (r[d], r[s]);
                    jump!(a > b)
                }
                Code::JGt64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    jump!(a > b)
                }
                Code::JGt32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    jump!(a > b)
                }
                Code::JGt32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    jump!(a > b)
                }
                Code::JGe64X => {
                    let (a, b) = (r[d], r[s]);
                    jump!(a >= b)
                }
                Code::JGe64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    jump!(a >= b)
                }
                Code::JGe32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    jump!(a >= b)
                }
                Code::JGe32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    jump!(a >= b)
                }
                Code::JLt64X => {
                    let (a, b) = (r[d], r[s]);
                    jump!(a < b)
                }
                Code::JLt64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    jump!(a < b)
                }
                Code::JLt32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    jump!(a < b)
                }
                Code::JLt32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    jump!(a < b)
                }
                Code::JLe64X => {
                    let (a, b) = (r[d], r[s]);
                    jump!(a <= b)
                }
                Code::JLe64K => {
                    let (a, b) = (r[d], op.imm as u64);
                    jump!(a <= b)
                }
                Code::JLe32X => {
                    let (a, b) = (r[d] as u32, r[s] as u32);
                    jump!(a <= b)
                }
                Code::JLe32K => {
                    let (a, b) = (r[d] as u32, op.imm as u32);
                    jump!(a <= b)
                }
                Code::JSGt64X => {
                    let (a, b) = (r[d] as i64, r[s] as i64);
                    jump!(a > b)
                }
                Code::JSGt64K => {
                    let (a, b) = (r[d] as i64, op.imm);
                    jump!(a > b)
                }
                Code::JSGt32X => {
                    let (a, b) = (r[d] as i32, r[s] as i32);
                    jump!(a > b)
                }
                Code::JSGt32K => {
                    let (a, b) = (r[d] as i32, op.imm as i32);
                    jump!(a > b)
                }
                Code::JSGe64X => {
                    let (a, b) = (r[d] as i64, r[s] as i64);
                    jump!(a >= b)
                }
                Code::JSGe64K => {
                    let (a, b) = (r[d] as i64, op.imm);
                    jump!(a >= b)
                }
                Code::JSGe32X => {
                    let (a, b) = (r[d] as i32, r[s] as i32);
                    jump!(a >= b)
                }
                Code::JSGe32K => {
                    let (a, b) = (r[d] as i32, op.imm as i32);
                    jump!(a >= b)
                }
                Code::JSLt64X => {
                    let (a, b) = (r[d] as i64, r[s] as i64);
                    jump!(a < b)
                }
                Code::JSLt64K => {
                    let (a, b) = (r[d] as i64, op.imm);
                    jump!(a < b)
                }
                Code::JSLt32X => {
                    let (a, b) = (r[d] as i32, r[s] as i32);
                    jump!(a < b)
                }
                Code::JSLt32K => {
                    let (a, b) = (r[d] as i32, op.imm as i32);
                    jump!(a < b)
                }
                Code::JSLe64X => {
                    let (a, b) = (r[d] as i64, r[s] as i64);
                    jump!(a <= b)
                }
                Code::JSLe64K => {
                    let (a, b) = (r[d] as i64, op.imm);
                    jump!(a <= b)
                }
                Code::JSLe32X => {
                    let (a, b) = (r[d] as i32, r[s] as i32);
                    jump!(a <= b)
                }
                Code::JSLe32K => {
                    let (a, b) = (r[d] as i32, op.imm as i32);
                    jump!(a <= b)
                }
                Code::Jump => {
                    goto!(op);
                }
                Code::MayGoto => match may_goto.checked_sub(1) {
                    Some(rest) => may_goto = rest,
                    None => {
                        goto!(op);
                    }
                },
                Code::LoadB => load!(1, u64),
                Code::LoadH => load!(2, u64),
                Code::LoadW => load!(4, u64),
                Code::LoadDw => load!(8, u64),
                Code::LoadSB => load!(1, i8),
                Code::LoadSH => load!(2, i16),
                Code::LoadSW => load!(4, i32),
                Code::StoreXB => store!(1, r[s]),
                Code::StoreXH => store!(2, r[s]),
                Code::StoreXW => store!(4, r[s]),
                Code::StoreXDw => store!(8, r[s]),
                Code::StoreKB => store!(1, op.imm as u64),
                Code::StoreKH => store!(2, op.imm as u64),
                Code::StoreKW => store!(4, op.imm as u64),
                Code::StoreKDw => store!(8, op.imm as u64),
                Code::AcquireB => acquire!(1),
                Code::AcquireH => acquire!(2),
                Code::AcquireW => acquire!(4),
                Code::AcquireDw => acquire!(8),
                Code::ReleaseB => release!(1),
                Code::ReleaseH => release!(2),
                Code::ReleaseW => release!(4),
                Code::ReleaseDw => release!(8),
                Code::Atomic32 | Code::Atomic64 => {
                    let at = r[d].wrapping_add(op.off as i64 as u64);
                    if let Err(t) = self.atomic(at, op.code == Code::Atomic64, op.imm, s, &mut r) {
                        break t;
                    }
                }
                Code::LoadImm => {
                    r[d] = op.imm as u64;
                    code.next();
                }
                Code::LoadMap => {
                    r[d] = at(addr::MAP, op.imm as u64);
                    code.next();
                }
                Code::LoadMapValue => match self.data_value(program, op.imm as usize, op.off as u32) {
                    Ok(a) => {
                        r[d] = a;
                        code.next();
                    }
                    Err(t) => break t,
                },
                Code::LoadFunc => {
                    r[d] = at(addr::CODE, op.off as u64);
                    code.next();
                }
                Code::CallLocal => {
                    let args = [r[1], r[2], r[3], r[4], r[5]];
                    account!();
                    from = pc!();
                    match self.call(program, op.off as usize, args) {
                        Ok(ret) => r[0] = ret,
                        Err(Stopped) => return Err(Stopped),
                    }
                    r[1..6].fill(addr::POISON);
                }
                Code::CallHelper => {
                    let args = r[1..].first_chunk().expect("eleven registers");
                    account!();
                    from = pc!();
                    match self.helper(program, &program.calls[op.imm as usize], args) {
                        Ok(ret) => r[0] = ret,
                        Err(t) if self.stopped.is_some() => {
                            drop(t);
                            return Err(Stopped);
                        }
                        Err(t) => break t,
                    }
                    r[1..6].fill(addr::POISON);
                }
                Code::CallKfunc => {
                    let args = r[1..].first_chunk().expect("eleven registers");
                    match kfunc(&mut Checked { vm: self, program }, program.kfuncs[op.imm as usize], args) {
                        Ok(ret) => r[0] = ret,
                        Err(t) => break t,
                    }
                    r[1..6].fill(addr::POISON);
                }
                Code::TailCall => {
                    account!();
                    from = pc!();
                    match self.tail_target(program, [r[1], r[2], r[3]]) {
                        Ok(Some(next)) => return Ok(Left::Tail(next)),
                        Ok(None) => {}
                        Err(t) => break t,
                    }
                    r[..6].fill(addr::POISON);
                }
                Code::StackLoadB => r[d] = self.load_stack::<1>(op.off),
                Code::StackLoadH => r[d] = self.load_stack::<2>(op.off),
                Code::StackLoadW => r[d] = self.load_stack::<4>(op.off),
                Code::StackLoadDw => r[d] = self.load_stack::<8>(op.off),
                Code::StackStoreB => self.store_stack::<1>(op.off, r[s]),
                Code::StackStoreH => self.store_stack::<2>(op.off, r[s]),
                Code::StackStoreW => self.store_stack::<4>(op.off, r[s]),
                Code::StackStoreDw => self.store_stack::<8>(op.off, r[s]),
                Code::MovAdd => {
                    r[d] = r[s].wrapping_add(op.imm as u64);
                    code.next();
                }
                Code::ZeroExtend => {
                    r[d] = u64::from(r[d] as u32);
                    code.next();
                }
                Code::IncWK => inc!(4, |add: &Op| add.imm as u64),
                Code::IncWX => inc!(4, |add: &Op| r[add.src as usize]),
                Code::IncDwK => inc!(8, |add: &Op| add.imm as u64),
                Code::IncDwX => inc!(8, |add: &Op| r[add.src as usize]),
                Code::Lookup => {
                    let args = r[1..].first_chunk().expect("eleven registers");
                    let site = &program.calls[op.imm as usize];
                    match crate::helpers::maps::lookup(&mut Checked { vm: self, program }, site.proto, args) {
                        Ok(ret) => r[0] = ret,
                        Err(t) => break t,
                    }
                    r[1..6].fill(addr::POISON);
                }
                Code::LookupOnStack => {
                    let map = &program.maps[op.imm as usize];
                    match self.lookup_on_stack(map, op.off as usize) {
                        Some(Ok(ret)) => {
                            r[0] = ret;
                            r[1..6].fill(addr::POISON);
                            code.nth(3);
                        }
                        None => {
                            r[d] = r[s].wrapping_add(i64::from(op.off - STACK_LEN as i32) as u64);
                            code.next();
                        }
                        Some(Err(t)) => break t,
                    }
                }
                Code::Exit => {
                    account!();
                    return Ok(Left::Exit(r[0]));
                }
                Code::Hole => break Box::new(FaultKind::Pc(pc!() as i64 - 1)),
                Code::Trap => break Box::new(FaultKind::Call(program.traps[op.imm as usize].clone())),
            }
        };
        let pc = ops.len() - code.len();
        self.fuel = self.fuel.saturating_sub(pc.saturating_sub(from) as u64);
        Err(self.stop(program, pc.saturating_sub(1), *trap, &r))
    }

    /// A read-modify-write instruction, with its results in the registers.
    fn atomic(&mut self, at: u64, wide: bool, op: i64, s: usize, r: &mut [u64; 11]) -> Result<(), Trap> {
        let len = if wide { 8 } else { 4 };
        let narrow = |v: u64| if wide { v } else { u64::from(v as u32) };
        let value = narrow(r[s]);
        let (rmw, fetch) = match ATOMICS[op as usize] {
            AtomicOp::Add { fetch } => (Rmw::Add, fetch),
            AtomicOp::Or { fetch } => (Rmw::Or, fetch),
            AtomicOp::And { fetch } => (Rmw::And, fetch),
            AtomicOp::Xor { fetch } => (Rmw::Xor, fetch),
            AtomicOp::Xchg => (Rmw::Xchg, true),
            AtomicOp::CmpXchg => {
                r[0] = self.rmw(at, len, Rmw::Xchg, value, Some(narrow(r[0])))?;
                return Ok(());
            }
        };
        let old = self.rmw(at, len, rmw, value, None)?;
        if fetch {
            r[s] = old;
        }
        Ok(())
    }
}

// Division by zero gives 0 and remainder by zero gives the dividend; the quotient that does not fit wraps (RFC 9669
// section 4.1).

fn sdiv64(a: u64, b: u64) -> u64 {
    if b == 0 { 0 } else { (a as i64).wrapping_div(b as i64) as u64 }
}

fn sdiv32(a: u32, b: u32) -> u32 {
    if b == 0 { 0 } else { (a as i32).wrapping_div(b as i32) as u32 }
}

fn smod64(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }
}

fn smod32(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 }
}
