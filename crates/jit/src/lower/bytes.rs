//! `inline-helpers`: `bpf_xdp_get_buff_len`; `bpf_xdp_load_bytes` and `bpf_xdp_store_bytes` of a short, constant length, between the stack and a packet of one
//! buffer. Offsets that are no number of the program are compared with the packet's length; packets of several buffers, and what is
//! refused, are left to the helper.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use xway_isa::{Reg, Width};
use xway_packet::descriptor::{DATA, DATA_END, NEXT};
use xway_verifier::Region;

use super::pieces::pieces;
use super::{Area, Body};
use crate::plan::{Call, slots};

/// `bpf_xdp_get_buff_len`
pub(super) const BUFF_LEN: u32 = 188;
/// `bpf_xdp_load_bytes`
pub(super) const LOAD_BYTES: u32 = 189;
/// `bpf_xdp_store_bytes`
pub(super) const STORE_BYTES: u32 = 190;

/// The longest copy that stands in the code: headers.
const LEN_MAX: u64 = 64;
/// Linux looks at no offset above.
const OFFSET_MAX: u64 = 0xffff;

impl Body<'_, '_> {
    /// `bpf_xdp_get_buff_len()`: from the packet's start to its end, of a packet of one buffer.
    pub(super) fn buff_len(&mut self, call: &Call) {
        let desc = self.reg(Reg::R1);
        let data = self.field(desc, DATA, self.bounds.data);
        let end = self.field(desc, DATA_END, self.bounds.end);
        let one = self.one_buffer(desc);
        let ways = self.if_good(&[one]);
        let len = self.b.ins().isub(end, data);
        self.set(Reg::R0, len);
        self.b.ins().jump(ways.done, &[]);
        self.else_by_call(call, ways.slow, ways.done);
    }

    /// Whether the packet has no other buffers.
    fn one_buffer(&mut self, desc: Value) -> Value {
        let flags = self.flags(Some(Area::Descriptor));
        let next = self.b.ins().load(types::I64, flags, desc, NEXT);
        self.b.ins().icmp_imm_s(IntCC::Equal, next, 0)
    }

    /// False where there is no code for this use of it.
    pub(super) fn packet_bytes(&mut self, call: &Call) -> bool {
        let Some(len) = call.sizes[3].filter(|(least, most)| least == most).map(|(len, _)| len) else { return false };
        let Some(place) = call.args[2].filter(|p| p.region == Region::Stack) else { return false };
        let (true, Some(own)) = ((1..=LEN_MAX).contains(&len), slots::range(&place, len as usize)) else {
            return false;
        };

        let borrowed = self.lend(call);
        let desc = self.reg(Reg::R1);
        // The offset is 32 bits wide, whatever stands above.
        let offset = self.narrow(Reg::R2, Width::W32);
        let offset = self.b.ins().uextend(types::I64, offset);
        let data = self.field(desc, DATA, self.bounds.data);
        let end = self.field(desc, DATA_END, self.bounds.end);
        let one = self.one_buffer(desc);
        let last = self.b.ins().isub(end, data);
        let last = self.b.ins().iadd_imm_s(last, -(len as i64));
        let mut good = vec![one, self.b.ins().icmp(IntCC::SignedLessThanOrEqual, offset, last)];
        if crate::lanes::upper_bound(self.b.func, offset) > OFFSET_MAX {
            good.push(self.b.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, offset, OFFSET_MAX as i64));
        }
        let ways = self.if_good(&good);
        let start = match self.bounds.data {
            Some(bound) => bound.pointer,
            None => self.pointer(desc, data),
        };
        let packet = self.b.ins().iadd(start, offset);
        self.copy_bytes(packet, own.start as i32 - slots::STACK as i32, len as i32, call.proto.id == LOAD_BYTES);
        let zero = self.b.ins().iconst(types::I64, 0);
        self.set(Reg::R0, zero);
        self.b.ins().jump(ways.done, &[]);

        self.seldom(ways.slow);
        self.name_frame();
        self.enter_helper(call);
        self.seldom = false;
        self.b.ins().jump(ways.done, &[]);
        self.open(ways.done);
        self.give_back(borrowed);
        true
    }

    /// Copies between the packet and the stack, in the words that programs look at later.
    fn copy_bytes(&mut self, packet: Value, own: i32, len: i32, load: bool) {
        let (theirs, ours) = (self.flags(Some(Area::Packet)), self.flags(Some(Area::Stack)));
        for (at, size) in pieces(len) {
            let (from, to) = ((packet, at), (self.fp, own + at));
            let ((from, to), (read, write)) =
                if load { ((from, to), (theirs, ours)) } else { ((to, from), (ours, theirs)) };
            let v = self.load_piece(read, from.0, from.1, size);
            self.store_piece(write, v, to.0, to.1, size);
        }
    }
}
