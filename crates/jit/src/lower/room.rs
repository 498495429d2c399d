//! `inline-helpers`: `bpf_xdp_adjust_head`, `bpf_xdp_adjust_meta` and `bpf_xdp_adjust_tail` without a call.
//!
//! Each does what nearly always happens, in the descriptor: a packet without metadata gets another start, metadata get room, a
//! packet gets shorter. Everything else (metadata that move along, bytes that have to be cleared, several buffers, what is
//! refused and with which errno) is left to the helper, which finds the descriptor as it was.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, Value, types};
use xway_isa::Reg;
use xway_packet::descriptor::{DATA, DATA_END, DATA_META, NEXT};
use xway_packet::{ETH_HLEN, FRAME_RESERVE};

use super::{Area, Body};
use crate::plan::Call;

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
        let end = self.field(desc, DATA_END);
        // 0: empty; 1: a port without metadata.
        let behind = self.b.ins().isub(meta, data);
        let none = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, behind, 1);
        let new = self.b.ins().iadd(data, delta);
        // reserve <= new <= end - header, with one comparison each; chunks are far below 2 GiB.
        let first = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, new, i64::from(FRAME_RESERVE));
        let last = self.b.ins().iadd_imm_s(end, -i64::from(ETH_HLEN));
        let fits = self.b.ins().icmp(IntCC::SignedLessThanOrEqual, new, last);
        let good = self.b.ins().band(none, first);
        let good = self.b.ins().band(good, fits);
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

    /// It is done, with 0; where the condition did not hold, the helper does it.
    fn done_or(&mut self, call: &Call, ways: Ways) {
        let zero = self.b.ins().iconst(types::I64, 0);
        self.set(Reg::R0, zero);
        self.b.ins().jump(ways.done, &[]);
        self.b.set_cold_block(ways.slow);
        self.b.switch_to_block(ways.slow);
        self.by_call(call);
        self.b.ins().jump(ways.done, &[]);
        self.b.switch_to_block(ways.done);
    }
}
