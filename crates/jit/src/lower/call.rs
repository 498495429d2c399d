//! Calls: every operation that leaves the function, and the table from operations to the functions above.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{self, BlockArg, FuncRef, InstBuilder, MemFlagsData, Value};
use cranelift_codegen::isa::CallConv;
use xway_isa::{Reg, Width};
use xway_maps::native::{MapLayout, ProgramSlot, SlotsLayout};
use xway_vm::TAIL_CALLS_MAX;
use xway_vm::host::Ticks;

use super::bytes::{BUFF_LEN, LOAD_BYTES, STORE_BYTES};
use super::inline::CSUM_DIFF;
use super::lookup::LOOKUP_PERCPU;
use super::redirect::{REDIRECT_MAP, REDIRECT_TO};
use super::update::UPDATE;
use super::{Area, Body, Jump, Shape, signature, space};
use crate::calls::{self, BOOT, COARSE, Entry, JIFFIES, KTIME, ONCE};
use crate::env::offsets;
use crate::plan::{Call, Kind, NAMING};

pub(super) const ARGS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// Helpers and tail calls that are code in one function, look-ups apart. Each is a handful of blocks for one instruction of the program: as
/// many as fit into a program took the back end a quarter of a minute. Those behind are calls.
const IN_PLACE_MAX: usize = 512;

impl Body<'_, '_> {
    pub(super) fn op(&mut self, kind: &Kind, at: usize) {
        match kind {
            Kind::Alu { width, op, dst, src } => self.alu(*width, *op, *dst, *src),
            Kind::Mov { width, dst, src, ext } => self.mov(*width, *dst, *src, *ext),
            Kind::Neg { width, dst } => self.neg(*width, *dst),
            Kind::Truncate { dst, bits } => self.truncate(*dst, *bits),
            Kind::Swap { dst, bits } => self.swap(*dst, *bits),
            Kind::Const { dst, value } => self.word(*dst, *value),
            Kind::Map { dst, map } => {
                let address = std::sync::Arc::as_ptr(&self.unit.maps[*map as usize]) as u64;
                self.word(*dst, address);
            }
            Kind::Value { dst, map, off } => {
                let address = self.unit.values[*map as usize].expect("checked before lowering");
                self.word(*dst, address + u64::from(*off));
            }
            Kind::Func { dst, func } => self.word(*dst, self.unit.handles[*func]),
            Kind::Ctx { dst, base, field, signed } => self.context(*dst, *base, *field, *signed),
            Kind::Load { dst, base, place, part: Some(part), .. } if self.load_part(*dst, *base, place, *part) => {}
            Kind::Load { size, signed, dst, base, off, place, .. } => {
                self.load(*size, *signed, *dst, *base, *off, place);
            }
            Kind::Store { size, base, off, src, place } => self.store(*size, *base, *off, *src, place),
            Kind::Atomic { size, op, base, off, src, place } => self.atomic(*size, *op, *base, *off, *src, place),
            Kind::LoadAcquire { size, dst, base, off, place } => self.load_acquire(*size, *dst, *base, *off, place),
            Kind::StoreRelease { size, base, off, src, place } => self.store_release(*size, *base, *off, *src, place),
            Kind::Helper(call) if call.proto.is_tail_call() => self.tail_call(call, at),
            Kind::Helper(call) => self.helper(call),
            Kind::Fetch { call, slot, then } => self.fetch(call, *slot, *then),
            Kind::Enter { frame } => self.enter_frame(*frame),
            Kind::Leave { frame } => self.leave_frame(*frame),
            Kind::Kfunc { which, .. } => self.enter(calls::kfunc(*which), &ARGS),
            Kind::Local { func, inline: true, .. } => self.copied(*func),
            Kind::Local { func, .. } => self.function_of_program(*func),
        }
    }

    fn word(&mut self, dst: Reg, value: u64) {
        let v = self.b.ins().iconst(I64, value as i64);
        self.set(dst, v);
    }

    pub(super) fn arguments(&mut self, regs: &[Reg]) -> Vec<Value> {
        let mut args = vec![self.env];
        for r in regs {
            args.push(self.reg(*r));
        }
        args
    }

    fn helper(&mut self, call: &Call) {
        /// `bpf_get_smp_processor_id`
        const CPU_NUMBER: u32 = 8;
        if self.around.options.typed_calls && call.proto.id == CPU_NUMBER {
            let cpu = self.cpu_number();
            return self.set(Reg::R0, cpu);
        }
        if let Some(turns) = call.turns {
            return self.loop_over(call, turns);
        }
        if self.can_inline(call) {
            return self.inline_lookup(call, None);
        }
        if self.answered(call) {
            return;
        }
        if self.around.options.inline_helpers {
            // What was asked for in front of the block is code in any case.
            if (self.has_room_for_code() || self.after_room.is_some()) && self.in_place(call) {
                self.in_place += 1;
                return;
            }
            if NAMING.contains(&call.proto.id) {
                self.name_frame();
            }
        }
        self.by_call(call);
    }

    /// Whether one more helper may be code in the place of its call.
    pub(super) fn has_room_for_code(&self) -> bool {
        self.in_place < IN_PLACE_MAX
    }

    /// A helper's code in the place of its call; false where there is none for this use of it.
    fn in_place(&mut self, call: &Call) -> bool {
        /// `bpf_get_prandom_u32`
        const RANDOM: u32 = 7;
        /// `bpf_xdp_adjust_head`
        const ADJUST_HEAD: u32 = 44;
        /// `bpf_xdp_adjust_meta`
        const ADJUST_META: u32 = 54;
        /// `bpf_xdp_adjust_tail`
        const ADJUST_TAIL: u32 = 65;
        match call.proto.id {
            CSUM_DIFF => return self.csum_diff(call),
            UPDATE => return self.array_update(call),
            LOOKUP_PERCPU => return self.element_of_cpu(call),
            REDIRECT_MAP => return self.redirect_map(call),
            LOAD_BYTES | STORE_BYTES => return self.packet_bytes(call),
            BUFF_LEN => self.buff_len(call),
            RANDOM => self.random(call),
            ADJUST_HEAD => self.adjust_head(call),
            ADJUST_META => self.adjust_meta(call),
            ADJUST_TAIL => self.adjust_tail(call),
            REDIRECT_TO => self.redirect(),
            JIFFIES => self.ticks(call, Ticks::JIFFIES),
            COARSE => self.ticks(call, Ticks::COARSE),
            id if ONCE.contains(&id) => self.once(call),
            KTIME | BOOT if self.around.isa.name().starts_with("x64") => self.ktime(call),
            _ => return false,
        }
        true
    }

    /// Calls a helper, by the shortest way in.
    pub(super) fn by_call(&mut self, call: &Call) {
        let borrowed = self.lend(call);
        self.enter_helper(call);
        self.give_back(borrowed);
    }

    /// The same, where what it looks at on the stack stands there.
    pub(super) fn enter_helper(&mut self, call: &Call) {
        match calls::typed(call, self.unit.maps).filter(|_| self.around.options.typed_calls) {
            Some((entry, args)) => self.enter(entry, args),
            None => self.enter(calls::general(call.proto), &ARGS),
        }
    }

    /// Calls an entry with the environment and these registers.
    pub(super) fn enter(&mut self, entry: Entry, regs: &[Reg]) {
        let args = self.arguments(regs);
        let r0 = match self.keeping(entry, args.len()) {
            Some(f) => {
                self.b.ins().call(f, &args);
                let flags = self.flags(Some(Area::Env));
                self.b.ins().load(I64, flags, self.env, offsets::RESULT)
            }
            None => {
                let f = self.entry(entry, args.len());
                let inst = self.b.ins().call(f, &args);
                self.b.inst_results(inst)[0]
            }
        };
        self.set(Reg::R0, r0);
    }

    /// The way into an entry that leaves all registers alone, where calls are seldom made.
    fn keeping(&mut self, entry: Entry, params: usize) -> Option<FuncRef> {
        if !self.seldom || !self.around.options.keep_registers {
            return None;
        }
        let entry = calls::keeping(entry, params, self.around.isa)?;
        let n = self.entry_number(entry);
        Some(self.import_as((space::ENTRY, n), params, CallConv::PreserveAll))
    }

    /// Begins a block that is seldom gone to, and what is seldom called in it.
    pub(super) fn seldom(&mut self, block: ir::Block) {
        self.b.set_cold_block(block);
        self.open(block);
        self.seldom = true;
    }

    fn entry(&mut self, entry: Entry, params: usize) -> FuncRef {
        let n = self.entry_number(entry);
        self.import((space::ENTRY, n), params)
    }

    fn entry_number(&mut self, entry: Entry) -> u32 {
        let known = self.entries.iter().position(|e| e.address == entry.address);
        let n = known.unwrap_or_else(|| {
            self.entries.push(entry);
            self.entries.len() - 1
        });
        n as u32
    }

    /// The processor's counter of time: a stub of a few instructions leaves it in the environment, and all registers alone.
    pub(super) fn counter(&mut self) -> Value {
        let f = self.import_as((space::COUNTER, 0), 1, CallConv::PreserveAll);
        self.b.ins().call(f, &[self.env]);
        let flags = self.flags(Some(Area::Env));
        self.b.ins().load(I64, flags, self.env, offsets::CLOCK_NOW)
    }

    /// `bpf_tail_call(ctx, map, index)`: where there is a program, it runs in place of this function, whose result it gives.
    ///
    /// ```text
    /// cell = slot[index]->entry    if index < max_entries and there is a program
    /// code = *cell                 if there is code
    /// jump code(env, ctx)          if it is not the 34th tail call of the run
    /// ```
    ///
    /// A program that was known when this one was compiled stands in the same burst function: see [`super::Jump`].
    fn tail_call(&mut self, call: &Call, at: usize) {
        let (stay, slow) = (self.b.create_block(), self.b.create_block());
        let map = call.map.and_then(|m| self.unit.maps.get(m as usize)).map(|m| m.layout());
        match map {
            Some(MapLayout::Programs(slots)) if self.around.options.inline_tail_calls && self.has_room_for_code() => {
                self.in_place += 1;
                let known = self.unit.jumps.iter().find(|j| j.insn == at).filter(|_| self.shape == Shape::Burst);
                self.jump_through(&slots, known.copied(), stay, slow);
            }
            _ => {
                self.b.ins().jump(slow, &[]);
            }
        }
        self.open(slow);
        self.tell_tail_calls();
        let args = self.arguments(&[Reg::R2, Reg::R3]);
        let f = self.entry(calls::tail_target(), 3);
        let inst = self.b.ins().call(f, &args);
        let code = self.b.inst_results(inst)[0];
        let go = self.b.create_block();
        self.b.ins().brif(code, go, &[], stay, &[]);
        self.open(go);
        let conv = self.around.isa.default_call_conv();
        self.run_instead(code, conv);
        self.open(stay);
        self.word(Reg::R0, 0);
    }

    /// Tail calls of the run so far.
    fn tail_calls(&mut self) -> Value {
        match self.tails {
            Some(var) => self.b.use_var(var),
            None => {
                let flags = self.flags(Some(Area::Env));
                self.b.ins().load(I32, flags, self.env, offsets::TAIL_CALLS)
            }
        }
    }

    /// Before other code goes on counting them.
    fn tell_tail_calls(&mut self) {
        if let Some(var) = self.tails {
            let count = self.b.use_var(var);
            let flags = self.flags(Some(Area::Env));
            self.b.ins().store(flags, count, self.env, offsets::TAIL_CALLS);
        }
    }

    /// The program's code in place of the rest of this function.
    fn run_instead(&mut self, code: Value, conv: CallConv) {
        let ctx = self.reg(Reg::R1);
        let sig = self.b.import_signature(signature(conv, 2, true));
        if self.shape == Shape::Tail && conv == CallConv::Tail {
            self.b.ins().return_call_indirect(sig, code, &[self.env, ctx]);
            return;
        }
        let inst = self.b.ins().call_indirect(sig, code, &[self.env, ctx]);
        let r0 = self.b.inst_results(inst)[0];
        self.b.ins().jump(self.exit, &[BlockArg::Value(r0)]);
    }

    fn jump_through(&mut self, slots: &SlotsLayout, known: Option<Jump>, stay: ir::Block, slow: ir::Block) {
        /// Cells and slots are written by others.
        const SHARED: MemFlagsData = MemFlagsData::new().with_notrap();
        let step = |body: &mut Self, condition: Value, otherwise: ir::Block| {
            let on = body.b.create_block();
            body.b.ins().brif(condition, on, &[], otherwise, &[]);
            body.open(on);
        };
        let at = match known {
            Some(jump) => self.b.ins().iconst(I64, (slots.base + 8 * jump.index as usize) as i64),
            None => {
                // The index is 32 bits wide, whatever stands above.
                let index = self.narrow(Reg::R3, Width::W32);
                let max = self.b.ins().iconst(I32, i64::from(slots.max_entries));
                let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, index, max);
                step(self, inside, stay);
                let index = self.b.ins().uextend(I64, index);
                let off = self.b.ins().ishl_imm_s(index, 3);
                let base = self.b.ins().iconst(I64, slots.base as i64);
                self.b.ins().iadd(base, off)
            }
        };
        let slot = self.b.ins().atomic_load(I64, SHARED, at);
        step(self, slot, stay);
        // Written before the slot was, and never again.
        let cell = self.b.ins().load(I64, SHARED, slot, std::mem::offset_of!(ProgramSlot, entry) as i32);
        let other = self.b.create_block();
        if let Some(jump) = known {
            let wanted = self.b.ins().iconst(I64, jump.cell as i64);
            let same = self.b.ins().icmp(IntCC::Equal, cell, wanted);
            step(self, same, other);
            let count = self.one_more(stay, step);
            if let Some(var) = self.tails {
                self.b.def_var(var, count);
            }
            let to = self.targets[jump.unit].expect("targets stand in the burst function");
            self.b.ins().jump(to, &[]);
        } else {
            self.b.ins().jump(other, &[]);
        }
        self.open(other);
        step(self, cell, slow);
        let code = self.b.ins().atomic_load(I64, SHARED, cell);
        step(self, code, slow);
        let count = self.one_more(stay, step);
        let flags = self.flags(Some(Area::Env));
        self.b.ins().store(flags, count, self.env, offsets::TAIL_CALLS);
        self.run_instead(code, CallConv::Tail);
    }

    /// The number of tail calls with one more, unless there have been all that a run may make.
    fn one_more(&mut self, stay: ir::Block, step: impl Fn(&mut Self, Value, ir::Block)) -> Value {
        let count = self.tail_calls();
        let limit = self.b.ins().iconst(I32, i64::from(TAIL_CALLS_MAX));
        let left = self.b.ins().icmp(IntCC::UnsignedLessThan, count, limit);
        step(self, left, stay);
        self.b.ins().iadd_imm_s(count, 1)
    }

    /// Programs that are jumped to are not asked whether this worker may run them: the code looks itself.
    pub(super) fn check_cpu(&mut self) {
        // Whoever calls has been admitted as one of those that there can be ([`Refusal::Cpu`](crate::Refusal::Cpu)).
        if self.around.cpus == xway_abi::CPUS_MAX {
            return;
        }
        let (good, bad) = (self.b.create_block(), self.b.create_block());
        let flags = self.flags(Some(Area::Cpu)).with_readonly();
        let cpu = self.b.ins().load(I32, flags, self.env, offsets::CPU);
        let cpus = self.b.ins().iconst(I32, i64::from(self.around.cpus));
        let known = self.b.ins().icmp(IntCC::UnsignedLessThan, cpu, cpus);
        self.b.ins().brif(known, good, &[], bad, &[]);
        self.b.set_cold_block(bad);
        self.open(bad);
        let f = self.entry(calls::wrong_cpu(), 1);
        let inst = self.b.ins().call(f, &[self.env]);
        let r0 = self.b.inst_results(inst)[0];
        self.b.ins().return_(&[r0]);
        self.open(good);
    }
}
