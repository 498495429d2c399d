//! `inline-helpers`: `bpf_xdp_adjust_head`, `bpf_xdp_adjust_meta` and `bpf_xdp_adjust_tail` without a call.
//!
//! Each does what nearly always happens, in the descriptor: a packet without metadata gets another start, metadata get room, a
//! packet gets shorter. Everything else (metadata that move along, bytes that have to be cleared, several buffers, what is
//! refused and with which errno) is left to the helper, which finds the descriptor as it was.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, Value, types};
use xway_isa::{Cond, MovExt, Operand, Reg};
use xway_packet::descriptor::{DATA, DATA_END, DATA_META, NEXT};
use xway_packet::{ETH_HLEN, FRAME_RESERVE};

use super::{Area, Body};
use crate::env::offsets;
use crate::plan::{Block, Call, End, Kind, Op, ROOM};

/// What a check of a helper's arguments leads to.
struct Ways {
    slow: ir::Block,
    done: ir::Block,
}

/// The result of a call is asked for at once.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// Where 0 goes.
    zero: ir::Block,
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
        let delta = self.b.ins().ireduce(types::I32, delta);
        let data = self.field(desc, DATA);
        let meta = self.field(desc, DATA_META);
        // 0: empty; 1: a port without metadata.
        let behind = self.b.ins().isub(meta, data);
        let none = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, behind, 1);
        let new = self.b.ins().iadd(data, delta);
        // reserve <= new <= end - header, with one comparison each; chunks are far below 2 GiB.
        let first = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, new, i64::from(FRAME_RESERVE));
        let mut good = vec![none, first];
        // A packet, however short, that grows by a header has one.
        if number(self.b.func, delta).is_none_or(|delta| delta > -i64::from(ETH_HLEN)) {
            let end = self.field(desc, DATA_END);
            let last = self.b.ins().iadd_imm_s(end, -i64::from(ETH_HLEN));
            let fits = self.b.ins().icmp(IntCC::SignedLessThanOrEqual, new, last);
            good.push(fits);
        }
        let ways = self.if_good(&good);
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
        let ways = self.if_good(&[there, right, room]);
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
        let ways = self.if_good(&[one, shorter, header]);
        self.b.ins().store(flags, new, desc, DATA_END);
        self.done_or(call, ways);
    }

    /// A field of 32 bits of a descriptor.
    fn field(&mut self, desc: Value, at: i32) -> Value {
        let flags = self.flags(Some(Area::Descriptor));
        self.b.ins().load(types::I32, flags, desc, at)
    }

    /// Goes on where all conditions hold. A branch for each, all of which nearly always go the same way: to make one number of them
    /// takes more instructions.
    fn if_good(&mut self, good: &[Value]) -> Ways {
        let (slow, done) = (self.b.create_block(), self.b.create_block());
        for good in good {
            let next = self.b.create_block();
            self.b.ins().brif(*good, next, &[], slow, &[]);
            self.open(next);
        }
        Ways { slow, done }
    }

    /// It is done, with 0; where the condition did not hold, the helper does it. Where the result is compared with 0 at once, both
    /// go on where that leads.
    fn done_or(&mut self, call: &Call, ways: Ways) {
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
        let Some(Asked { other, .. }) = asked else {
            self.b.ins().jump(ways.done, &[]);
            return self.open(ways.done);
        };
        let r0 = self.reg(Reg::R0);
        let failed = self.b.ins().ireduce(types::I32, r0);
        self.between(asked);
        self.b.ins().brif(failed, other, &[], zero_to, &[]);
    }

    /// What the program does between the call and the check of its result.
    fn between(&mut self, asked: Option<Asked<'a>>) {
        for op in asked.map_or(&[][..], |asked| asked.between) {
            self.origin(op.at);
            self.op(&op.kind, op.at);
        }
    }

    /// Tells helpers which frame it is, where that was left to those that are called. Beside the way that is taken: most packets
    /// need no helper.
    fn name_frame(&mut self) {
        if let Some((_, frame)) = self.frame {
            let in_env = self.flags(Some(Area::Env));
            self.b.ins().store(in_env, frame, self.env, offsets::FRAME);
        }
    }

    /// When a block ends with a call that is part of the code here and the check of its result, which compilers like to move to
    /// another register first, to make room for the answer:
    ///
    /// ```text
    /// call bpf_xdp_adjust_head
    /// r1 = r0
    /// r0 = 1
    /// if r1 != 0 goto out
    /// ```
    pub(super) fn checked_room(&self, block: &'a Block) -> Option<Asked<'a>> {
        let options = self.around.options;
        if !(options.thread_nulls && options.inline_helpers) {
            return None;
        }
        let is_room = |op: &Op| matches!(&op.kind, Kind::Helper(call) if ROOM.contains(&call.proto.id));
        let between = &block.ops[block.ops.iter().rposition(is_room)? + 1..];
        // Registers that hold the result.
        let mut holds = vec![Reg::R0];
        for op in between {
            let (dst, same) = match op.kind {
                Kind::Const { dst, .. } => (dst, false),
                // Half of it too: a helper's answer is an int.
                Kind::Mov { ext: MovExt::None, dst, src: Operand::Reg(from), .. } => (dst, holds.contains(&from)),
                Kind::Mov { dst, .. } => (dst, false),
                _ => return None,
            };
            holds.retain(|held| *held != dst);
            holds.extend(same.then_some(dst));
        }
        let End::Branch { cond, dst, src: Operand::Imm(0), taken, fall, .. } = block.end else { return None };
        let (zero, other) = match cond {
            Cond::Eq => (taken, fall),
            Cond::Ne => (fall, taken),
            _ => return None,
        };
        holds.contains(&dst).then(|| Asked { zero: self.blocks[zero], other: self.blocks[other], between })
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
