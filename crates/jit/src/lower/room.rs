//! `inline-helpers`: `bpf_xdp_adjust_head`, `bpf_xdp_adjust_meta` and `bpf_xdp_adjust_tail` without a call.
//!
//! Each does what nearly always happens, in the descriptor: a packet without metadata gets another start, metadata get room, a
//! packet gets shorter. Everything else (metadata that move along, bytes that have to be cleared, several buffers, what is
//! refused and with which errno) is left to the helper, which finds the descriptor as it was.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, Value, types};
use xway_isa::Reg;
use xway_packet::descriptor::{DATA, DATA_END, DATA_META, HARD_END, NEXT};
use xway_packet::{ETH_HLEN, FRAME_RESERVE};

use super::bounds::{Bound, Bounds};
use super::pieces::pieces;
use super::{Area, Body};
use crate::env::offsets;
use crate::plan::asked::{self, Answer};
use crate::plan::{Call, Kind, Op, ROOM};

/// Bytes at the end of a packet that are cleared without a call.
const GAINED_MAX: i64 = 64;

/// What a check of a helper's arguments leads to.
pub(super) struct Ways {
    pub(super) slow: ir::Block,
    pub(super) done: ir::Block,
}

/// The result of a call is asked for at once.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// Where 0 goes, and which block of the plan it is.
    zero: ir::Block,
    then: usize,
    /// What follows stands twice: here, and where the helper was called.
    copied: bool,
    /// Where everything else goes.
    other: ir::Block,
    /// Operations behind the call, which only move numbers among registers.
    pub(super) between: &'a [Op],
}

impl<'a> Body<'a, '_> {
    /// `bpf_xdp_adjust_head(ctx, delta)` for packets without metadata, which have nothing to be moved along; what it refuses,
    /// and packets with metadata, are left to the helper.
    pub(super) fn adjust_head(&mut self, call: &Call) {
        let desc = self.reg(Reg::R1);
        let delta = self.reg(Reg::R2);
        let delta = self.int(delta);
        let data = self.field(desc, DATA, self.bounds.data);
        let meta = self.field(desc, DATA_META, self.bounds.meta);
        // 0: empty; 1: a port without metadata.
        let behind = self.b.ins().isub(meta, data);
        let none = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, behind, 1);
        let new = self.b.ins().iadd(data, delta);
        // reserve <= new <= end - header, with one comparison each.
        let first = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, new, i64::from(FRAME_RESERVE));
        let mut good = vec![none, first];
        // A packet, however short, that grows by a header has one.
        if number(self.b.func, delta).is_none_or(|delta| delta > -i64::from(ETH_HLEN)) {
            let end = self.field(desc, DATA_END, self.bounds.end);
            let last = self.b.ins().iadd_imm_s(end, -i64::from(ETH_HLEN));
            let fits = self.b.ins().icmp(IntCC::SignedLessThanOrEqual, new, last);
            good.push(fits);
        }
        let ways = self.if_good(&good);
        self.set_field(desc, DATA, new);
        let meta = self.b.ins().iadd(meta, delta);
        self.set_field(desc, DATA_META, meta);
        let (old, moved) = (self.bounds, self.moved(self.bounds.data, delta, desc, new));
        self.done_or(call, ways, Bounds { data: moved, end: old.end, meta: None });
    }

    /// `bpf_xdp_adjust_meta(ctx, delta)`: metadata of 0 to 252 bytes, a multiple of four, in the headroom.
    pub(super) fn adjust_meta(&mut self, call: &Call) {
        /// Lengths that are allowed have no other bits.
        const LENGTHS: i64 = 0xfc;
        let (desc, delta) = (self.reg(Reg::R1), self.reg(Reg::R2));
        let delta = self.int(delta);
        let data = self.field(desc, DATA, self.bounds.data);
        let meta = self.field(desc, DATA_META, self.bounds.meta);
        // Behind the start of the packet: a port without metadata.
        let there = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, meta, data);
        let new = self.b.ins().iadd(meta, delta);
        let len = self.b.ins().isub(data, new);
        let odd = self.b.ins().band_imm_s(len, !LENGTHS);
        let right = self.b.ins().icmp_imm_s(IntCC::Equal, odd, 0);
        // What lies in front of the chunk is a negative number.
        let room = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, new, i64::from(FRAME_RESERVE));
        let ways = self.if_good(&[there, right, room]);
        self.set_field(desc, DATA_META, new);
        let (old, moved) = (self.bounds, self.moved(self.bounds.meta, delta, desc, new));
        self.done_or(call, ways, Bounds { meta: moved, ..old });
    }

    /// `bpf_xdp_adjust_tail(ctx, delta)` of a packet of one buffer that gets shorter, stays as long as it is, or gets longer by a few bytes
    /// of which the code knows how many.
    pub(super) fn adjust_tail(&mut self, call: &Call) {
        let (desc, delta) = (self.reg(Reg::R1), self.reg(Reg::R2));
        let delta = self.int(delta);
        let data = self.field(desc, DATA, self.bounds.data);
        let end = self.field(desc, DATA_END, self.bounds.end);
        let flags = self.flags(Some(Area::Descriptor));
        let next = self.b.ins().load(types::I64, flags, desc, NEXT);
        let one = self.b.ins().icmp_imm_s(IntCC::Equal, next, 0);
        let gained = number(self.b.func, delta).filter(|delta| (1..=GAINED_MAX).contains(delta));
        let new = self.b.ins().iadd(end, delta);
        let right = if gained.is_some() {
            let hard_end = self.field(desc, HARD_END, None);
            self.b.ins().icmp(IntCC::SignedLessThanOrEqual, new, hard_end)
        } else {
            self.b.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, delta, 0)
        };
        let mut good = vec![one, right];
        if gained.is_none_or(|gained| gained < i64::from(ETH_HLEN)) {
            let least = self.b.ins().iadd_imm_s(data, i64::from(ETH_HLEN));
            good.push(self.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, new, least));
        }
        let ways = self.if_good(&good);
        if let Some(gained) = gained {
            self.clear_behind(desc, end, gained as i32);
        }
        self.set_field(desc, DATA_END, new);
        let (old, moved) = (self.bounds, self.moved(self.bounds.end, delta, desc, new));
        self.done_or(call, ways, Bounds { end: moved, ..old });
    }

    /// So many bytes of zero from where the packet ends.
    fn clear_behind(&mut self, desc: Value, end: Value, len: i32) {
        let at = self.pointer(desc, end);
        let zero = self.b.ins().iconst(types::I64, 0);
        for (done, size) in pieces(len) {
            let flags = self.flags(Some(Area::Packet));
            self.store_piece(flags, zero, at, done, size);
        }
    }

    /// A field of 32 bits of a descriptor. Chunks are far below 2 GiB: neither a sum nor a difference of two leaves 64 bits.
    pub(super) fn field(&mut self, desc: Value, at: i32, known: Option<Bound>) -> Value {
        if let Some(bound) = known {
            return bound.field;
        }
        let flags = self.flags(Some(Area::Descriptor));
        self.b.ins().uload32(flags, desc, at)
    }

    fn set_field(&mut self, desc: Value, at: i32, v: Value) {
        let flags = self.flags(Some(Area::Descriptor));
        self.b.ins().istore32(flags, v, desc, at);
    }

    /// An argument that is an `int`.
    fn int(&mut self, v: Value) -> Value {
        if let Some(known) = number(self.b.func, v) {
            return self.b.ins().iconst(types::I64, known);
        }
        let v = self.b.ins().ireduce(types::I32, v);
        self.b.ins().sextend(types::I64, v)
    }

    /// The pointer to a bound that was moved: from the one that the program had, where that is known, and the distance is a number. That
    /// is what checks in front of the call were about.
    fn moved(&mut self, old: Option<Bound>, delta: Value, desc: Value, new: Value) -> Option<Bound> {
        self.after_room.filter(|asked| asked.copied)?;
        let pointer = match (old, number(self.b.func, delta)) {
            (Some(old), Some(delta)) => self.b.ins().iadd_imm_s(old.pointer, delta),
            _ => self.pointer(desc, new),
        };
        Some(Bound { pointer, field: new })
    }

    /// Goes on where all conditions hold. A branch for each, all of which nearly always go the same way: to make one number of them
    /// takes more instructions.
    pub(super) fn if_good(&mut self, good: &[Value]) -> Ways {
        let (slow, done) = (self.b.create_block(), self.b.create_block());
        for good in good {
            let next = self.b.create_block();
            self.b.ins().brif(*good, next, &[], slow, &[]);
            self.open(next);
        }
        Ways { slow, done }
    }

    /// It is done, with 0; where the condition did not hold, the helper does it. Where the result is compared with 0 at once, both
    /// go on where that leads, this way knowing the packet's bounds.
    fn done_or(&mut self, call: &Call, ways: Ways, bounds: Bounds) {
        let asked = self.after_room;
        let zero_to = asked.map_or(ways.done, |asked| asked.zero);
        let zero = self.b.ins().iconst(types::I64, 0);
        self.set(Reg::R0, zero);
        self.between(asked);
        self.b.ins().jump(zero_to, &[]);
        self.seldom(ways.slow);
        self.name_frame();
        self.by_call(call);
        self.seldom = false;
        let Some(Asked { other, then, copied, .. }) = asked else {
            self.b.ins().jump(ways.done, &[]);
            return self.open(ways.done);
        };
        let r0 = self.reg(Reg::R0);
        let failed = self.b.ins().ireduce(types::I32, r0);
        self.between(asked);
        let zero_to = if copied { self.b.create_block() } else { zero_to };
        self.b.ins().brif(failed, other, &[], zero_to, &[]);
        if copied {
            self.begin_with(then, bounds);
            self.copy_for_seldom(then, zero_to);
        }
    }

    /// What the program does between the call and the check of its result.
    fn between(&mut self, asked: Option<Asked<'a>>) {
        asked.into_iter().for_each(|asked| self.ops(asked.between));
    }

    /// Tells helpers which frame it is, where that was left to those that are called. Beside the way that is taken: most packets
    /// need no helper.
    pub(super) fn name_frame(&mut self) {
        if let Some((_, frame)) = self.frame {
            let in_env = self.flags(Some(Area::Env));
            self.b.ins().store(in_env, frame, self.env, offsets::FRAME);
        }
    }

    /// When a block ends with a call that is part of the code here and the check of its result.
    pub(super) fn checked_room(&self, at: usize) -> Option<Asked<'a>> {
        let (block, options) = (&self.plan.blocks[at], self.around.options);
        if !(options.thread_nulls && options.inline_helpers && self.has_room_for_code()) {
            return None;
        }
        let is_room = |op: &Op| matches!(&op.kind, Kind::Helper(call) if ROOM.contains(&call.proto.id));
        let check = asked::check(block, is_room, Answer::Int)?;
        Some(Asked {
            zero: self.blocks[check.zero],
            then: check.zero,
            copied: self.may_copy(at, check.zero),
            other: self.blocks[check.other],
            between: check.between,
        })
    }
}

/// A number that is one constant, as 32 bits of it. What has fewer on its way is another number.
fn number(func: &ir::Function, mut v: Value) -> Option<i64> {
    /// A move of 32 bits is two operations.
    const STEPS: usize = 8;
    for _ in 0..STEPS {
        let ir::ValueDef::Result(inst, 0) = func.dfg.value_def(func.dfg.resolve_aliases(v)) else { return None };
        v = match func.dfg.insts[inst] {
            ir::InstructionData::UnaryImm { opcode: ir::Opcode::Iconst, imm } => {
                return Some(i64::from(imm.bits() as i32));
            }
            ir::InstructionData::Unary { opcode: ir::Opcode::Ireduce | ir::Opcode::Uextend, arg }
                if func.dfg.value_type(arg).bits() >= 32 =>
            {
                arg
            }
            _ => return None,
        };
    }
    None
}
