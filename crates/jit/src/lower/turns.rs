//! `inline-functions`: `bpf_loop` as a loop, with the callback in it, and `bpf_for_each_map_elem` of an array as another.
//!
//! ```text
//! i = 0
//! head: if i == count goto out
//!       r0 = callback(i, ctx)             its blocks, where it is small; or callback(map, &i, base + i * stride, ctx)
//!       i += 1;  if r0 == 0 goto head
//! out:  r0 = i
//! ```
//!
//! What the helper refuses is refused here: flags, and of `bpf_loop` more turns than `BPF_MAX_LOOPS`, of all bits of the count. All
//! elements of an array are there, in the order of their numbers; other maps are walked by the helper.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, StackSlotData, StackSlotKind, Value, types};
use xway_abi::Errno;
use xway_abi::prog::{MAX_LOOPS, TOO_MANY_TURNS};
use xway_isa::Reg;
use xway_maps::native::MapLayout;

use super::{Body, Callee, bounds, space};
use crate::plan::{Call, EACH, Turns};

/// What a loop goes over.
struct Elements {
    base: Value,
    stride: usize,
    /// The map, as the callback gets it.
    map: Value,
    /// Where the key stands that the callback is given.
    key: Value,
}

impl Body<'_, '_> {
    /// Runs the callback where the helper would, in a loop of its own.
    pub(super) fn loop_over(&mut self, call: &Call, turns: Turns) {
        let borrowed = self.lend(call);
        let (ctx, flags) = (self.reg(Reg::R3), self.reg(Reg::R4));
        let out = self.b.create_block();
        self.b.append_block_param(out, types::I64);
        let wrong = self.b.ins().icmp_imm_u(IntCC::NotEqual, flags, 0);
        self.refuse(wrong, Errno::EINVAL.as_ret(), out);
        let (count, elements) = match self.elements(call) {
            Some((count, elements)) => (count, Some(elements)),
            None => {
                let count = self.reg(Reg::R1);
                let too_many = self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, count, i64::from(MAX_LOOPS));
                self.refuse(too_many, TOO_MANY_TURNS, out);
                (count, None)
            }
        };

        let (head, turn) = (self.b.create_block(), self.b.create_block());
        let i = self.b.append_block_param(head, types::I64);
        let zero = self.b.ins().iconst(types::I64, 0);
        self.b.ins().jump(head, &[BlockArg::Value(zero)]);
        self.b.switch_to_block(head);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, i, count);
        self.b.ins().brif(more, turn, &[], out, &[BlockArg::Value(i)]);

        self.open(turn);
        // A turn begins with what the one before has left.
        self.forget();
        let args = match elements {
            Some(Elements { base, stride, map, key }) => {
                let index = self.b.ins().ireduce(types::I32, i);
                let anywhere = self.flags(None);
                self.b.ins().store(anywhere, index, key, 0);
                let off = self.times(i, stride);
                [map, key, self.b.ins().iadd(base, off), ctx, zero]
            }
            None => [i, ctx, zero, zero, zero],
        };
        for (r, value) in super::call::ARGS.into_iter().zip(args) {
            self.set(r, value);
        }
        match turns.inline {
            true => self.copied(turns.func),
            false => self.function_of_program(turns.func),
        }
        let r0 = self.reg(Reg::R0);
        let next = self.b.ins().iadd_imm_s(i, 1);
        let next = BlockArg::Value(next);
        self.b.ins().brif(r0, out, &[next], head, &[next]);
        self.b.seal_block(head);

        self.open(out);
        self.forget();
        let r0 = self.b.block_params(out)[0];
        self.set(Reg::R0, r0);
        self.give_back(borrowed);
    }

    /// How many elements the call's array has, and where they lie; `None` for `bpf_loop`, which has none.
    fn elements(&mut self, call: &Call) -> Option<(Value, Elements)> {
        let map = call.map.filter(|_| call.proto.id == EACH)?;
        let layout = self.unit.maps.get(map as usize)?.layout();
        let (base, stride, count, own) = match layout {
            MapLayout::Array(array) => (array.base, array.stride, array.max_entries, None),
            MapLayout::PercpuArray(array) => (array.base, array.stride, array.max_entries, Some(array.cpu_stride)),
            _ => return None,
        };
        let mut base = self.b.ins().iconst(types::I64, base as i64);
        if let Some(cpu_stride) = own {
            let own = self.scaled_cpu(cpu_stride);
            base = self.b.ins().iadd(base, own);
        }
        let slot = self.b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, 4, 2));
        let key = self.b.ins().stack_addr(types::I64, slot, 0);
        let count = self.b.ins().iconst(types::I64, i64::from(count));
        Some((count, Elements { base, stride, map: self.reg(Reg::R1), key }))
    }

    /// A function of the program, called with r1 to r5.
    pub(super) fn function_of_program(&mut self, func: usize) {
        let callee = Callee { unit: self.number, func };
        let f = self.import((space::LOCAL, callee.symbol()), 6);
        let args = self.arguments(&super::call::ARGS);
        let inst = self.b.ins().call(f, &args);
        let r0 = self.b.inst_results(inst)[0];
        self.set(Reg::R0, r0);
    }

    /// What the program knows of memory of others, and of where the packet is.
    fn forget(&mut self) {
        self.words.clear();
        self.bounds = bounds::Bounds::default();
    }

    /// Leads out with an error where a condition holds.
    fn refuse(&mut self, condition: Value, errno: u64, out: cranelift_codegen::ir::Block) {
        let (refused, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(condition, refused, &[], on, &[]);
        self.b.set_cold_block(refused);
        self.open(refused);
        let errno = self.b.ins().iconst(types::I64, errno as i64);
        self.b.ins().jump(out, &[BlockArg::Value(errno)]);
        self.open(on);
    }
}
