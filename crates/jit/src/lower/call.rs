//! Calls: every operation that leaves the function, and the table from operations to the functions above.

use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types::I64};
use xway_isa::Reg;

use super::{Area, Body, signature, space};
use crate::calls::{self, Entry};
use crate::env::offsets;
use crate::plan::{Call, Kind};

const ARGS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

impl Body<'_, '_> {
    pub(super) fn op(&mut self, kind: &Kind) {
        match kind {
            Kind::Alu { width, op, dst, src } => self.alu(*width, *op, *dst, *src),
            Kind::Mov { width, dst, src, ext } => self.mov(*width, *dst, *src, *ext),
            Kind::Neg { width, dst } => self.neg(*width, *dst),
            Kind::Truncate { dst, bits } => self.truncate(*dst, *bits),
            Kind::Swap { dst, bits } => self.swap(*dst, *bits),
            Kind::Const { dst, value } => self.word(*dst, *value),
            Kind::Map { dst, map } => {
                let address = std::sync::Arc::as_ptr(&self.around.maps[*map as usize]) as u64;
                self.word(*dst, address);
            }
            Kind::Value { dst, map, off } => {
                let address = self.around.values[*map as usize].expect("checked before lowering");
                self.word(*dst, address + u64::from(*off));
            }
            Kind::Func { dst, func } => self.word(*dst, self.around.handles[*func]),
            Kind::Ctx { dst, base, field } => self.context(*dst, *base, *field),
            Kind::Load { size, signed, dst, base, off, place } => self.load(*size, *signed, *dst, *base, *off, place),
            Kind::Store { size, base, off, src, place } => self.store(*size, *base, *off, *src, place),
            Kind::Atomic { size, op, base, off, src, place } => self.atomic(*size, *op, *base, *off, *src, place),
            Kind::LoadAcquire { size, dst, base, off, place } => self.load_acquire(*size, *dst, *base, *off, place),
            Kind::StoreRelease { size, base, off, src, place } => self.store_release(*size, *base, *off, *src, place),
            Kind::Helper(call) if call.proto.id == calls::TAIL_CALL => self.tail_call(),
            Kind::Helper(call) => self.helper(call),
            Kind::Kfunc { which, .. } => self.enter(calls::kfunc(*which), &ARGS),
            Kind::Local { func, .. } => {
                let f = self.import((space::LOCAL, *func as u32), 6);
                let args = self.arguments(&ARGS);
                let inst = self.b.ins().call(f, &args);
                let r0 = self.b.inst_results(inst)[0];
                self.set(Reg::R0, r0);
            }
        }
    }

    fn word(&mut self, dst: Reg, value: u64) {
        let v = self.b.ins().iconst(I64, value as i64);
        self.set(dst, v);
    }

    fn arguments(&mut self, regs: &[Reg]) -> Vec<Value> {
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
            let flags = self.flags(Some(Area::Cpu)).with_readonly().with_can_move();
            let cpu = self.b.ins().uload32(flags, self.env, offsets::CPU);
            return self.set(Reg::R0, cpu);
        }
        if self.can_inline(call) {
            return self.inline_lookup(call, None);
        }
        let borrowed = self.lend(call);
        match calls::typed(call, self.around.maps).filter(|_| self.around.options.typed_calls) {
            Some((entry, args)) => self.enter(entry, args),
            None => self.enter(calls::general(call.proto), &ARGS),
        }
        self.give_back(borrowed);
    }

    /// Calls an entry with the environment and these registers.
    pub(super) fn enter(&mut self, entry: Entry, regs: &[Reg]) {
        let args = self.arguments(regs);
        let f = self.entry(entry, args.len());
        let inst = self.b.ins().call(f, &args);
        let r0 = self.b.inst_results(inst)[0];
        self.set(Reg::R0, r0);
    }

    fn entry(&mut self, entry: Entry, params: usize) -> cranelift_codegen::ir::FuncRef {
        let known = self.entries.iter().position(|e| e.address == entry.address);
        let n = known.unwrap_or_else(|| {
            self.entries.push(entry);
            self.entries.len() - 1
        });
        self.import((space::ENTRY, n as u32), params)
    }

    /// `bpf_tail_call(ctx, map, index)`: where there is a program, it runs in place of this function, whose result it gives.
    fn tail_call(&mut self) {
        let args = self.arguments(&[Reg::R2, Reg::R3]);
        let f = self.entry(calls::tail_target(), 3);
        let inst = self.b.ins().call(f, &args);
        let code = self.b.inst_results(inst)[0];
        let (go, stay) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(code, go, &[], stay, &[]);
        self.b.switch_to_block(go);
        let ctx = self.reg(Reg::R1);
        let sig = self.b.import_signature(signature(self.around.isa.default_call_conv(), 2, true));
        let inst = self.b.ins().call_indirect(sig, code, &[self.env, ctx]);
        let r0 = self.b.inst_results(inst)[0];
        self.b.ins().jump(self.exit, &[BlockArg::Value(r0)]);
        self.b.switch_to_block(stay);
        self.word(Reg::R0, 0);
    }
}
