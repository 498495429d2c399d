//! The interpreter's loop.
//!
//! One Rust call for each active function of the program, so callee-saved registers are saved by being locals. Semantics
//! are those of RFC 9669; where it leaves a choice, Linux's. Arithmetic and conditions come from the table in `rows`; what
//! takes long or happens rarely stands in functions of its own, so that the loop keeps its state in registers.

use xway_isa::AtomicOp;
use xway_maps::Rmw;

use crate::addr::{self, at};
use crate::env::{CHAIN, FRAMES, STACK_LEN};
use crate::fault::{Caller, FaultKind, Trap};
use crate::kfuncs::kfunc;
use crate::machine::Checked;
use crate::mem::Vm;
use crate::op::{ATOMICS, Code, Op};
use crate::rows::rows;
use crate::{Fault, Program};

/// The run was stopped; the fault is in [`Vm::stopped`].
pub(crate) struct Stopped;

/// How a function was left.
enum Left<'e> {
    Exit(u64),
    /// A tail call: another program takes its place.
    Tail(&'e Program),
}

/// Iterations that `may_goto` grants to each call of a function.
const MAY_GOTO_MAX: u32 = xway_abi::prog::MAX_LOOPS;

impl<'e> Vm<'_, 'e> {
    /// Calls the function at `entry` with these arguments and runs it to its exit, through whatever tail calls it makes.
    pub(crate) fn call(&mut self, program: &'e Program, entry: usize, args: [u64; 5]) -> Result<u64, Stopped> {
        if self.depth >= FRAMES || self.depth - self.below >= CHAIN {
            return Err(self.stop(program, entry, FaultKind::Depth, &[]));
        }
        self.depth += 1;
        let below = self.below;
        let mut left = self.enter(program, entry, args)?;
        let ret = loop {
            self.clean_stack(self.depth - 1);
            match left {
                Left::Exit(ret) => break ret,
                Left::Tail(next) => {
                    // The callers wait; what takes the function's place may call as deep as any program.
                    self.below = self.depth - 1;
                    let ctx = [at(addr::CTX, 0), addr::POISON, addr::POISON, addr::POISON, addr::POISON];
                    left = self.enter(next, 0, ctx)?;
                }
            }
        };
        self.below = below;
        self.depth -= 1;
        Ok(ret)
    }

    fn enter(&mut self, program: &'e Program, entry: usize, args: [u64; 5]) -> Result<Left<'e>, Stopped> {
        match self.env.tracer {
            None => self.run::<false>(program, entry, args),
            Some(_) => self.run::<true>(program, entry, args),
        }
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
                .map(|n| (format!("r{n}"), self.describe(regs[n])))
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
                callers: vec![],
            }));
        }
        Stopped
    }

    /// Adds the call at `insn` to the way to a fault.
    #[cold]
    #[inline(never)]
    fn called_from(&mut self, program: &Program, insn: usize, stopped: Stopped) -> Stopped {
        if let Some(fault) = &mut self.stopped {
            let function = program.function(insn).to_owned();
            fault.callers.push(Caller { function, insn, line: program.line(insn).cloned() });
        }
        stopped
    }

    /// Runs a function until it is left. `TRACED`: the tracer sees every instruction.
    fn run<const TRACED: bool>(
        &mut self,
        program: &'e Program,
        entry: usize,
        args: [u64; 5],
    ) -> Result<Left<'e>, Stopped> {
        let ops = &program.ops[..];
        let mut r = [addr::POISON; 11];
        r[1..6].copy_from_slice(&args);
        r[10] = at(addr::STACK + self.depth as u64 - 1, STACK_LEN as u64);
        let mut may_goto = MAY_GOTO_MAX;
        // The next instruction. Instructions are counted by straight runs: `from` is where the present one began.
        let mut pc = entry;
        let mut from = entry;
        let trap: Trap = loop {
            let Some(op) = ops.get(pc) else {
                break Box::new(FaultKind::Pc(pc as i64));
            };
            if TRACED {
                self.observe(program, pc, &r);
            }
            pc += 1;
            let (d, s) = (op.dst as usize, op.src as usize);

            // Ends a straight run at something that counts for itself, or at the end.
            macro_rules! account {
                () => {
                    let run = (pc - from) as u64;
                    if run > self.fuel {
                        break Box::new(FaultKind::Budget(self.env.budget));
                    }
                    self.fuel -= run;
                };
            }
            // Another straight run begins at the jump's target, which the linker has checked.
            macro_rules! goto {
                ($op:expr) => {{
                    account!();
                    pc = $op.off as usize;
                    from = pc;
                }};
            }
            // Takes a result, or leaves the loop with the reason why there is none.
            macro_rules! ok {
                ($result:expr) => {
                    match $result {
                        Ok(v) => v,
                        Err(t) => break t,
                    }
                };
            }
            macro_rules! place {
                ($base:expr) => {
                    $base.wrapping_add(op.off as i64 as u64)
                };
            }
            macro_rules! load {
                ($n:literal, $as:ty) => {
                    r[d] = ok!(self.load::<$n>(place!(r[s]))) as $as as i64 as u64
                };
            }
            macro_rules! store {
                ($n:literal, $v:expr) => {
                    ok!(self.store::<$n>(place!(r[d]), $v))
                };
            }
            macro_rules! acquire {
                ($n:literal) => {
                    r[d] = ok!(self.load_acquire::<$n>(place!(r[s])))
                };
            }
            macro_rules! release {
                ($n:literal) => {
                    ok!(self.store_release::<$n>(place!(r[d]), r[s]))
                };
            }
            // Three instructions at once where the address is that of a map value, else the first of them.
            macro_rules! inc {
                ($n:literal, $delta:expr) => {
                    if let Some(add) = ops.get(pc)
                        && let Some(sum) = self.add_in_value::<$n>(place!(r[s]), $delta(add))
                    {
                        r[d] = sum;
                        pc += 2;
                    } else {
                        load!($n, u64)
                    }
                };
            }
            macro_rules! called {
                ($ret:expr) => {{
                    r[0] = $ret;
                    r[1..6].fill(addr::POISON);
                }};
            }
            // The four groups of rows, over operands of 64 and of 32 bits.
            macro_rules! unsigned {
                (64 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d], $right as u64);
                    r[d] = $meaning
                }};
                (32 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d] as u32, $right as u32);
                    r[d] = u64::from($meaning)
                }};
            }
            macro_rules! signed {
                (64 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d] as i64, $right as i64);
                    r[d] = ($meaning) as u64
                }};
                (32 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d] as i32, $right as i32);
                    r[d] = u64::from(($meaning) as u32)
                }};
            }
            macro_rules! if_unsigned {
                (64 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d], $right as u64);
                    if $meaning {
                        goto!(op)
                    }
                }};
                (32 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d] as u32, $right as u32);
                    if $meaning {
                        goto!(op)
                    }
                }};
            }
            macro_rules! if_signed {
                (64 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d] as i64, $right as i64);
                    if $meaning {
                        goto!(op)
                    }
                }};
                (32 $right:expr, $a:ident $b:ident $meaning:expr) => {{
                    let ($a, $b) = (r[d] as i32, $right as i32);
                    if $meaning {
                        goto!(op)
                    }
                }};
            }
            macro_rules! interpret {
                (
                    { $($arms:tt)* }
                    $($group:ident {
                        $($op:ident: $x64:ident $k64:ident $x32:ident $k32:ident, |$a:ident, $b:ident| $meaning:expr;)*
                    })*
                ) => {
                    match op.code {
                        $($(
                            Code::$x64 => $group!(64 r[s], $a $b $meaning),
                            Code::$k64 => $group!(64 op.imm, $a $b $meaning),
                            Code::$x32 => $group!(32 r[s], $a $b $meaning),
                            Code::$k32 => $group!(32 op.imm, $a $b $meaning),
                        )*)*
                        $($arms)*
                    }
                };
            }
            rows! { interpret! {
                Code::Jump => goto!(op),
                Code::MayGoto => match may_goto.checked_sub(1) {
                    Some(rest) => may_goto = rest,
                    None => goto!(op),
                },
                Code::Exit => {
                    account!();
                    return Ok(Left::Exit(r[0]));
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
                Code::Atomic32 => ok!(self.atomic::<4>(place!(r[d]), op.imm, s, &mut r)),
                Code::Atomic64 => ok!(self.atomic::<8>(place!(r[d]), op.imm, s, &mut r)),
                // Wide instructions: the second slot is stepped over.
                Code::LoadImm => {
                    r[d] = op.imm as u64;
                    pc += 1;
                }
                Code::LoadMap => {
                    r[d] = at(addr::MAP, op.imm as u64);
                    pc += 1;
                }
                Code::LoadMapValue => {
                    r[d] = ok!(self.data_value(program, op.imm as usize, op.off as u32));
                    pc += 1;
                }
                Code::LoadFunc => {
                    r[d] = at(addr::CODE, op.off as u64);
                    pc += 1;
                }
                // Calls.
                Code::CallLocal => {
                    account!();
                    from = pc;
                    let args = [r[1], r[2], r[3], r[4], r[5]];
                    match self.call(program, op.off as usize, args) {
                        Ok(ret) => called!(ret),
                        Err(stopped) => return Err(self.called_from(program, pc - 1, stopped)),
                    }
                }
                Code::CallHelper => {
                    account!();
                    from = pc;
                    let args = [r[1], r[2], r[3], r[4], r[5]];
                    match self.helper(program, &program.calls[op.imm as usize], &args) {
                        Ok(ret) => called!(ret),
                        // A callback of the helper was stopped.
                        Err(_) if self.stopped.is_some() => return Err(self.called_from(program, pc - 1, Stopped)),
                        Err(t) => break t,
                    }
                }
                Code::CallKfunc => {
                    let args = [r[1], r[2], r[3], r[4], r[5]];
                    called!(ok!(self.kernel_function(program, op.imm as usize, &args)))
                }
                Code::TailCall => {
                    account!();
                    from = pc;
                    if let Some(next) = ok!(self.tail_target(program, [r[1], r[2], r[3]])) {
                        return Ok(Left::Tail(next));
                    }
                    r[..6].fill(addr::POISON);
                }
                // Fast forms.
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
                    pc += 1;
                }
                Code::MovAddGt => {
                    r[d] = r[s].wrapping_add(op.imm as u64);
                    pc += 1;
                    if let Some(jump) = ops.get(pc) {
                        pc += 1;
                        if r[d] > r[jump.src as usize] {
                            goto!(jump)
                        }
                    }
                }
                Code::ZeroExtend => {
                    r[d] = u64::from(r[d] as u32);
                    pc += 1;
                }
                Code::IncWK => inc!(4, |add: &Op| add.imm as u64),
                Code::IncWX => inc!(4, |add: &Op| r[add.src as usize]),
                Code::IncDwK => inc!(8, |add: &Op| add.imm as u64),
                Code::IncDwX => inc!(8, |add: &Op| r[add.src as usize]),
                Code::Lookup => {
                    let args = [r[1], r[2], r[3], r[4], r[5]];
                    called!(ok!(self.lookup(program, op.imm as usize, &args)))
                }
                Code::LookupOnStack => {
                    called!(ok!(self.lookup_on_stack(&program.maps[op.imm as usize], op.off as usize)));
                    pc += 4;
                }
                Code::Hole => break Box::new(FaultKind::Pc(pc as i64 - 1)),
                Code::Trap => break Box::new(FaultKind::Call(program.traps[op.imm as usize].clone())),
            } }
        };
        self.fuel = self.fuel.saturating_sub(pc.saturating_sub(from) as u64);
        Err(self.stop(program, pc.saturating_sub(1), *trap, &r))
    }

    /// `bpf_map_lookup_elem` at a call site.
    #[inline(never)]
    fn lookup(&mut self, program: &'e Program, site: usize, args: &[u64; 5]) -> Result<u64, Trap> {
        crate::helpers::maps::lookup(&mut Checked { vm: self, program }, program.calls[site].proto, args)
    }

    /// A kernel function.
    #[inline(never)]
    fn kernel_function(&mut self, program: &'e Program, site: usize, args: &[u64; 5]) -> Result<u64, Trap> {
        kfunc(&mut Checked { vm: self, program }, program.kfuncs[site], args)
    }

    /// A read-modify-write instruction of `N` bytes, with its results in the registers.
    #[inline(never)]
    fn atomic<const N: usize>(&mut self, at: u64, op: i64, s: usize, r: &mut [u64; 11]) -> Result<(), Trap> {
        let narrow = |v: u64| if N == 8 { v } else { u64::from(v as u32) };
        let value = narrow(r[s]);
        let (rmw, fetch) = match ATOMICS[op as usize] {
            AtomicOp::Add { fetch } => (Rmw::Add, fetch),
            AtomicOp::Or { fetch } => (Rmw::Or, fetch),
            AtomicOp::And { fetch } => (Rmw::And, fetch),
            AtomicOp::Xor { fetch } => (Rmw::Xor, fetch),
            AtomicOp::Xchg => (Rmw::Xchg, true),
            AtomicOp::CmpXchg => {
                r[0] = self.rmw(at, N, Rmw::Xchg, value, Some(narrow(r[0])))?;
                return Ok(());
            }
        };
        let old = self.rmw(at, N, rmw, value, None)?;
        if fetch {
            r[s] = old;
        }
        Ok(())
    }
}
