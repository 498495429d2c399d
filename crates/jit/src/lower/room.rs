//! `inline-helpers`: `bpf_xdp_adjust_head`, `bpf_xdp_adjust_meta` and `bpf_xdp_adjust_tail` without a call.
//!
//! Each does what nearly always happens, in the descriptor: a packet without metadata gets another start, metadata get room, a
//! packet gets shorter. Everything else (metadata that move along, bytes that have to be cleared, several buffers, what is
//! refused and with which errno) is left to the helper, which finds the descriptor as it was.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, Value, types};
use xway_isa::{Cond, Operand, Reg};
use xway_packet::descriptor::{DATA, DATA_END, DATA_META, NEXT};
use xway_packet::{ETH_HLEN, FRAME_RESERVE};

use super::{Area, Body};
use crate::env::offsets;
use crate::plan::{Block, Call, End, Kind, ROOM};

/// What a check of a helper's arguments leads to.
struct Ways {
    slow: ir::Block,
    done: ir::Block,
}

impl Body<'_, '_> {
    /// `bpf_xdp_adjust_head(ctx, delta)` for packets without metadata, which have nothing to be moved along; what it refuses,
    /// and packets with metadata, are left to the helper.
    pub(super) fn adjust_head(&mut self, call: &Call) {
        let desc = self.reg(Reg::R1);
        let delta = self.reg(Reg::R2);
        let delta = self.b.ins().ireduce(types::I32, delta);
        let data = self.field(desc, DATA);
        let meta = self.field(desc, DATA_META);
        // 0: empty; 1: a port without metadata.
        let behind = self.b.ins().isub(meta, data);
        let none = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, behind, 1);
        let new = self.b.ins().iadd(data, delta);
        // reserve <= new <= end - header, with one comparison each; chunks are far below 2 GiB.
        let first = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, new, i64::from(FRAME_RESERVE));
        let mut good = self.b.ins().band(none, first);
        // A packet, however short, that grows by a header has one.
        if number(self.b.func, delta).is_none_or(|delta| delta > -i64::from(ETH_HLEN)) {
            let end = self.field(desc, DATA_END);
            let last = self.b.ins().iadd_imm_s(end, -i64::from(ETH_HLEN));
            let fits = self.b.ins().icmp(IntCC::SignedLessThanOrEqual, new, last);
            good = self.b.ins().band(good, fits);
        }
        let ways = self.if_good(good);
        let flags = self.flags(Some(Area::Descriptor));
        self.b.ins().store(flags, new, desc, DATA);
        let meta = self.b.ins().iadd(meta, delta);
        self.b.ins().store(flags, meta, desc, DATA_META);
        self.done_or(call, ways);
    }

    /// `bpf_xdp_adjust_meta(ctx, delta)`: metadata of 0 to 252 bytes, a multiple of four, in the headroom.
    pub(super) fn adjust_meta(&mut self, call: &Call) {
        /// Lengths that are allowed have no other bits.
        const LENGTHS: i64 = 0xfc;
        let (desc, delta) = (self.reg(Reg::R1), self.reg(Reg::R2));
        let delta = self.b.ins().ireduce(types::I32, delta);
        let data = self.field(desc, DATA);
        let meta = self.field(desc, DATA_META);
        // Behind the start of the packet: a port without metadata.
        let there = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, meta, data);
        let new = self.b.ins().iadd(meta, delta);
        let len = self.b.ins().isub(data, new);
        let odd = self.b.ins().band_imm_u(len, !LENGTHS & 0xffff_ffff);
        let right = self.b.ins().icmp_imm_s(IntCC::Equal, odd, 0);
        // A chunk is far below 2 GiB: what lies in front of it is a negative number.
        let room = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, new, i64::from(FRAME_RESERVE));
        let good = self.b.ins().band(there, right);
        let good = self.b.ins().band(good, room);
        let ways = self.if_good(good);
        let flags = self.flags(Some(Area::Descriptor));
        self.b.ins().store(flags, new, desc, DATA_META);
        self.done_or(call, ways);
    }

    /// `bpf_xdp_adjust_tail(ctx, delta)` of a packet of one buffer that gets shorter, or stays as long as it is.
    pub(super) fn adjust_tail(&mut self, call: &Call) {
        let (desc, delta) = (self.reg(Reg::R1), self.reg(Reg::R2));
        let delta = self.b.ins().ireduce(types::I32, delta);
        let data = self.field(desc, DATA);
        let end = self.field(desc, DATA_END);
        let flags = self.flags(Some(Area::Descriptor));
        let next = self.b.ins().load(types::I64, flags, desc, NEXT);
        let one = self.b.ins().icmp_imm_s(IntCC::Equal, next, 0);
        let shorter = self.b.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, delta, 0);
        let new = self.b.ins().iadd(end, delta);
        let least = self.b.ins().iadd_imm_s(data, i64::from(ETH_HLEN));
        let header = self.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, new, least);
        let good = self.b.ins().band(one, shorter);
        let good = self.b.ins().band(good, header);
        let ways = self.if_good(good);
        self.b.ins().store(flags, new, desc, DATA_END);
        self.done_or(call, ways);
    }

    /// A field of 32 bits of a descriptor.
    fn field(&mut self, desc: Value, at: i32) -> Value {
        let flags = self.flags(Some(Area::Descriptor));
        self.b.ins().load(types::I32, flags, desc, at)
    }

    /// Goes on where the condition holds.
    fn if_good(&mut self, good: Value) -> Ways {
        let (fast, slow, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.ins().brif(good, fast, &[], slow, &[]);
        self.b.switch_to_block(fast);
        Ways { slow, done }
    }

    /// It is done, with 0; where the condition did not hold, the helper does it. Where the result is compared with 0 at once, both
    /// go on where that leads.
    fn done_or(&mut self, call: &Call, ways: Ways) {
        let (zero_to, other) = self.after_room.map_or((ways.done, None), |(zero, other)| (zero, Some(other)));
        let zero = self.b.ins().iconst(types::I64, 0);
        self.set(Reg::R0, zero);
        self.b.ins().jump(zero_to, &[]);
        self.b.set_cold_block(ways.slow);
        self.b.switch_to_block(ways.slow);
        self.name_frame();
        self.by_call(call);
        let Some(other) = other else {
            self.b.ins().jump(ways.done, &[]);
            return self.b.switch_to_block(ways.done);
        };
        let r0 = self.reg(Reg::R0);
        let failed = self.b.ins().ireduce(types::I32, r0);
        self.b.ins().brif(failed, other, &[], zero_to, &[]);
    }

    /// Tells helpers which frame it is, where that was left to those that are called. Beside the way that is taken: most packets
    /// need no helper.
    fn name_frame(&mut self) {
        if let Some((_, frame)) = self.frame {
            let in_env = self.flags(Some(Area::Env));
            self.b.ins().store(in_env, frame, self.env, offsets::FRAME);
        }
    }

    /// When a block ends with a call that is part of the code here and the check of its result: where 0 goes, and what is not.
    pub(super) fn checked_room(&self, block: &Block) -> Option<(ir::Block, ir::Block)> {
        let Kind::Helper(call) = &block.ops.last()?.kind else { return None };
        let options = self.around.options;
        if !(options.thread_nulls && options.inline_helpers && ROOM.contains(&call.proto.id)) {
            return None;
        }
        match block.end {
            End::Branch { cond: Cond::Eq, dst: Reg::R0, src: Operand::Imm(0), taken, fall, .. } => {
                Some((self.blocks[taken], self.blocks[fall]))
            }
            End::Branch { cond: Cond::Ne, dst: Reg::R0, src: Operand::Imm(0), taken, fall, .. } => {
                Some((self.blocks[fall], self.blocks[taken]))
            }
            _ => None,
        }
    }
}

/// A number that is one constant, as 32 bits of it.
fn number(func: &ir::Function, v: Value) -> Option<i64> {
    let ir::ValueDef::Result(inst, 0) = func.dfg.value_def(func.dfg.resolve_aliases(v)) else { return None };
    match func.dfg.insts[inst] {
        ir::InstructionData::UnaryImm { opcode: ir::Opcode::Iconst, imm } => Some(i64::from(imm.bits() as i32)),
        ir::InstructionData::Unary { opcode: ir::Opcode::Ireduce | ir::Opcode::Uextend, arg } => number(func, arg),
        _ => None,
    }
}
