//! Watching a run: every instruction before it is executed, with what its registers hold.
//!
//! For tests that hold proofs against runs, and for tools. A run without a tracer pays nothing for it.

use crate::Program;
use crate::addr::{offset, region};
use crate::env::STACK_LEN;
use crate::fault::{Access, RegionKind};
use crate::mem::{Vm, stack_frame};

/// Somebody who looks at every instruction. Set with [`Env::with_tracer`](crate::Env::with_tracer); sees single instructions of
/// programs that were linked with [`Program::link_plain`], and the first ones of sequences else.
pub trait Tracer {
    /// The instruction is about to be executed.
    fn step(&self, step: &Step<'_>);
}

/// An instruction that is about to be executed.
pub struct Step<'s> {
    /// The program that it stands in.
    pub program: &'s Program,
    /// Its slot.
    pub insn: usize,
    /// Functions that are active, those of programs that wait for a tail call included; 1 in a program's main function.
    pub depth: usize,
    regs: &'s [u64; 11],
    run: &'s dyn Look,
}

/// What a number means as an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Which kind of memory.
    pub kind: RegionKind,
    /// Offset in it, counted as [`RegionKind`] says.
    pub off: i64,
    /// Stacks: the depth of the function that owns it, from 1. Map values and records: a number of the one element, the same
    /// for the whole run. Maps: their index. Else 0.
    pub which: u64,
}

impl Step<'_> {
    /// What a register holds.
    pub fn number(&self, reg: usize) -> u64 {
        self.regs[reg]
    }

    /// What a register plus an offset means as an address.
    pub fn seen(&self, reg: usize, off: i64) -> Seen {
        self.run.seen(self.regs[reg].wrapping_add(off as u64))
    }

    /// Bytes behind a register, as the program could read them; `false` when it could not.
    pub fn read(&self, reg: usize, out: &mut [u8]) -> bool {
        self.run.bytes(self.regs[reg], out)
    }

    /// Bytes of metadata in front of the packet.
    pub fn meta_len(&self) -> u32 {
        self.run.meta_len()
    }
}

/// What a step asks of the run.
trait Look {
    fn seen(&self, addr: u64) -> Seen;
    fn bytes(&self, addr: u64, out: &mut [u8]) -> bool;
    fn meta_len(&self) -> u32;
}

impl Look for Vm<'_, '_> {
    fn seen(&self, addr: u64) -> Seen {
        use crate::addr::{CLOBBERED, CODE, COPY, CTX, GRANT, MAP, NULL, OPAQUE, PACKET, RAW};
        use crate::env::GrantKind;
        let off = offset(addr) as i64;
        let (kind, off, which) = match region(addr) {
            NULL => (RegionKind::Nothing, addr as i64, 0),
            CTX => (RegionKind::Context, off, 0),
            PACKET => (RegionKind::Packet, self.packet_offset(off as u64), 0),
            RAW => (RegionKind::Memory, off, 0),
            MAP => (RegionKind::Handle, 0, off as u64),
            CODE | OPAQUE => (RegionKind::Handle, off, u64::MAX),
            CLOBBERED => (RegionKind::Unset, 0, 0),
            r if (COPY..GRANT).contains(&r) => (RegionKind::Lent, off, 0),
            r => match (stack_frame(r), self.grant(r)) {
                (Some(frame), _) => (RegionKind::Stack, off - STACK_LEN as i64, frame as u64 + 1),
                (None, Some(g)) if matches!(g.kind, GrantKind::Value) => (RegionKind::MapValue, off, r),
                (None, Some(_)) => (RegionKind::Record, off, r),
                (None, None) => (RegionKind::Nothing, addr as i64, 0),
            },
        };
        Seen { kind, off, which }
    }

    fn bytes(&self, addr: u64, out: &mut [u8]) -> bool {
        self.check(addr, out.len() as u64, Access::Read).is_ok() && self.read(addr, out).is_ok()
    }

    fn meta_len(&self) -> u32 {
        self.frame.as_deref().map_or(0, |f| f.meta_len())
    }
}

impl<'e> Vm<'_, 'e> {
    /// Shows the tracer what comes next.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe(&self, program: &'e Program, insn: usize, regs: &[u64; 11]) {
        if let Some(tracer) = self.env.tracer {
            tracer.step(&Step { program, insn, depth: self.depth, regs, run: self });
        }
    }
}
