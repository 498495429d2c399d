//! `inline-helpers`: `bpf_csum_diff` over constant lengths, the clock, random numbers and who runs without a call.
//!
//! The packet's room is in `room.rs`, where it goes in `redirect.rs`.
//!
//! The checksum is the helper's (`vm/src/helpers/checksum.rs`) word by word: 32-bit words added in 64 bits, folded to 32 with the
//! carries, then to 16. Folding a sum that is not zero never gives zero, so it does not matter in which steps the words
//! were added.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, MemFlagsData, Value, ValueDef, types};
use cranelift_codegen::ir::{InstructionData, Opcode};
use xway_isa::Reg;
use xway_verifier::{Place, Region};
use xway_vm::host::Ticks;

use super::{Area, Body};
use crate::lanes::{Run, word_sum};
use crate::plan::{Call, NAMING, slots};

/// `bpf_csum_diff`
pub(super) const CSUM_DIFF: u32 = 28;
/// Bytes of each side that are summed inline.
const INLINE_MAX: u64 = 256;

const LOW: i64 = 0xffff_ffff;
/// Bytes from which on words are added in vectors.
const SUMMED_MIN: usize = 32;

impl Body<'_, '_> {
    /// Emits the helper where both lengths are constant and nobody else writes the bytes; false where they are not.
    pub(super) fn csum_diff(&mut self, call: &Call) -> bool {
        let (Some(from), Some(to)) = (self.constant_of(Reg::R2), self.constant_of(Reg::R4)) else { return false };
        if from > INLINE_MAX || to > INLINE_MAX {
            return false;
        }
        let own = |len: u64, place: &Option<Place>| {
            len == 0
                || matches!(place, Some(Place { region, off }) if match region {
                    Region::Packet | Region::Meta => true,
                    Region::Stack => off.is_some(),
                    _ => false,
                })
        };
        if !own(from, &call.args[0]) || !own(to, &call.args[2]) {
            return false;
        }
        let seed = self.reg(Reg::R5);
        let seed = self.low_word(seed);
        let sum = match (from, to) {
            (0, 0) => seed,
            (0, to) => self.partial(Reg::R3, call.args[2], to as usize, seed),
            (from, 0) => {
                let seed = self.inverted(seed);
                let sum = self.partial(Reg::R1, call.args[0], from as usize, seed);
                self.inverted(sum)
            }
            (from, to) => {
                let zero = self.b.ins().iconst(types::I64, 0);
                let gone = self.partial(Reg::R1, call.args[0], from as usize, zero);
                let gone = self.inverted(gone);
                let new = self.partial(Reg::R3, call.args[2], to as usize, seed);
                let sum = self.b.ins().iadd(new, gone);
                self.folded(sum, 32)
            }
        };
        let sum = self.folded(sum, 16);
        let sum = self.folded(sum, 16);
        self.set(Reg::R0, sum);
        true
    }

    /// A register's value, when it is a constant here.
    pub(super) fn constant_of(&mut self, r: Reg) -> Option<u64> {
        let v = self.reg(r);
        let dfg = &self.b.func.dfg;
        let mut v = dfg.resolve_aliases(v);
        loop {
            let ValueDef::Result(inst, 0) = dfg.value_def(v) else { return None };
            match dfg.insts[inst] {
                InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => return Some(imm.bits() as u64),
                InstructionData::Unary { opcode: Opcode::Uextend, arg } => v = dfg.resolve_aliases(arg),
                _ => return None,
            }
        }
    }

    pub(super) fn low_word(&mut self, v: Value) -> Value {
        let v = self.b.ins().ireduce(types::I32, v);
        self.b.ins().uextend(types::I64, v)
    }

    /// The 32 bits of a number, inverted.
    fn inverted(&mut self, v: Value) -> Value {
        let ones = self.b.ins().iconst(types::I64, LOW);
        self.b.ins().bxor(v, ones)
    }

    /// The carries above the lowest `bits` added to these.
    fn folded(&mut self, sum: Value, bits: i64) -> Value {
        let mask = self.b.ins().iconst(types::I64, (1 << bits) - 1);
        let low = self.b.ins().band(sum, mask);
        let high = self.b.ins().ushr_imm_u(sum, bits);
        self.b.ins().iadd(low, high)
    }

    /// The sum of all words, and of a seed of 32 bits, in 32 bits.
    fn partial(&mut self, pointer: Reg, place: Option<Place>, len: usize, seed: Value) -> Value {
        let place = place.expect("own memory");
        let mut total = seed;
        let mut at = 0;
        let bytes = slots::range(&place, len);
        if bytes.is_none_or(|bytes| self.plan.slots.overlapping(bytes).is_empty()) {
            self.shared(&place);
            let p = self.reg(pointer);
            let flags = self.flags(super::memory::area(&place));
            if len >= SUMMED_MIN {
                let run = Run { flags, base: p, off: 0, words: len / 8 * 2 };
                at = run.words * 4;
                let sum = word_sum(&mut self.b, &[run]);
                total = self.b.ins().iadd(total, sum);
            }
        }
        while at < len {
            let part = 4.min(len - at);
            let word = self.bytes_at(pointer, &place, at, part);
            total = self.b.ins().iadd(total, word);
            at += part;
        }
        let once = self.folded(total, 32);
        self.folded(once, 32)
    }

    /// `bpf_ktime_get_ns()` and `bpf_ktime_get_boot_ns()` from the processor's counter, where the host's clock is this machine's and follows it
    /// (`clock.rs`); else by the helper.
    pub(super) fn ktime(&mut self, call: &Call) {
        use crate::calls::BOOT;
        use crate::env::offsets;
        let [fast, near, slow, done] = std::array::from_fn(|_| self.b.create_block());
        let flags = self.flags(Some(Area::Env));
        let scale = self.b.ins().load(types::I64, flags, self.env, offsets::CLOCK_SCALE);
        self.b.ins().brif(scale, fast, &[], slow, &[]);

        self.open(fast);
        let now = self.counter();
        let start = self.b.ins().load(types::I64, flags, self.env, offsets::CLOCK_START);
        let ticks = self.b.ins().isub(now, start);
        let limit = self.b.ins().load(types::I64, flags, self.env, offsets::CLOCK_LIMIT);
        let is_near = self.b.ins().icmp(IntCC::UnsignedLessThan, ticks, limit);
        self.b.ins().brif(is_near, near, &[], slow, &[]);

        self.open(near);
        let ns = self.b.ins().umulhi(ticks, scale);
        let base = self.b.ins().load(types::I64, flags, self.env, offsets::CLOCK_NS);
        let ns = self.b.ins().iadd(base, ns);
        // What counts by itself may lag a little behind the system's clock, from which the coarse one is: it is not told an earlier time.
        let coarse = self.tick(Ticks::COARSE);
        let mut ns = self.b.ins().umax(ns, coarse);
        let slept = call.proto.id == BOOT;
        if slept {
            let slept = self.b.ins().load(types::I64, flags, self.env, offsets::CLOCK_SLEPT);
            ns = self.b.ins().iadd(ns, slept);
        }
        self.set(Reg::R0, ns);
        self.b.ins().jump(done, &[]);

        self.seldom(slow);
        self.by_call(call);
        self.seldom = false;
        let told = self.reg(Reg::R0);
        let mut last = self.b.ins().load(types::I64, flags, self.env, offsets::CLOCK_LAST);
        if slept {
            let slept = self.b.ins().load(types::I64, flags, self.env, offsets::CLOCK_SLEPT);
            last = self.b.ins().iadd(last, slept);
        }
        let told = self.b.ins().umax(told, last);
        self.set(Reg::R0, told);
        self.b.ins().jump(done, &[]);
        self.open(done);
    }

    /// `bpf_jiffies64()` and `bpf_ktime_get_coarse_ns()` from the words of the process, where the host has its ticks there. The first reading
    /// of a burst, and where readings may be many one in so many behind it, is the helper's, which looks whether there was another tick.
    pub(super) fn ticks(&mut self, call: &Call, word: usize) {
        use crate::env::offsets;
        let (fast, slow, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let flags = self.flags(Some(Area::Env));
        let left = self.b.ins().load(types::I32, flags, self.env, offsets::TICKS_LEFT);
        self.b.ins().brif(left, fast, &[], slow, &[]);

        self.open(fast);
        // Where nothing goes round, a burst is over before many ticks can have passed.
        let main = std::ptr::eq(self.plan, &raw const self.unit.plan.funcs[0]);
        if !main || crate::plan::goes_round(self.plan) {
            let fewer = self.b.ins().iadd_imm_s(left, -1);
            self.b.ins().store(flags, fewer, self.env, offsets::TICKS_LEFT);
        }
        let told = self.tick(word);
        self.set(Reg::R0, told);
        self.b.ins().jump(done, &[]);

        self.else_by_call(call, slow, done);
    }

    /// Where there is no code for it, the helper does it; both ways go on from here.
    pub(super) fn else_by_call(&mut self, call: &Call, slow: Block, done: Block) {
        self.seldom(slow);
        if NAMING.contains(&call.proto.id) {
            self.name_frame();
        }
        self.by_call(call);
        self.seldom = false;
        self.b.ins().jump(done, &[]);
        self.open(done);
    }

    /// A word of [`Ticks`], which other threads make larger.
    fn tick(&mut self, word: usize) -> Value {
        let flags = self.flags(Some(Area::Env));
        let words = self.b.ins().load(types::I64, flags, self.env, crate::env::offsets::TICKS);
        let at = if word == 0 { words } else { self.b.ins().iadd_imm_s(words, word as i64) };
        self.b.ins().atomic_load(types::I64, MemFlagsData::new().with_notrap(), at)
    }

    /// What the helper said of the worker in this burst; the first packet that asks asks it.
    pub(super) fn once(&mut self, call: &Call) {
        let kept = crate::calls::once(call.proto.id).expect("one of these helpers");
        let (fast, slow, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let flags = self.flags(Some(Area::Env));
        let told = self.b.ins().load(types::I64, flags, self.env, crate::env::offsets::TOLD + 8 * kept as i32);
        self.b.ins().brif(told, fast, &[], slow, &[]);

        self.open(fast);
        let told = self.b.ins().iadd_imm_s(told, -1);
        self.set(Reg::R0, told);
        self.b.ins().jump(done, &[]);

        self.else_by_call(call, slow, done);
    }

    /// `bpf_get_prandom_u32()` from the state of the worker's generator (`xway_vm::Random`), where it has one that is ours.
    pub(super) fn random(&mut self, call: &Call) {
        use xway_vm::Random;
        let (fast, slow, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let env = self.flags(Some(Area::Env));
        let at = self.b.ins().load(types::I64, env, self.env, crate::env::offsets::RANDOM);
        self.b.ins().brif(at, fast, &[], slow, &[]);

        self.open(fast);
        let flags = self.flags(Some(Area::Random));
        let state = self.b.ins().load(types::I64, flags, at, 0);
        let step = self.b.ins().iconst(types::I64, Random::STEP as i64);
        let state = self.b.ins().iadd(state, step);
        self.b.ins().store(flags, state, at, 0);
        let mut z = state;
        for (shift, factor) in Random::MIX {
            let high = self.b.ins().ushr_imm_u(z, i64::from(shift));
            let mixed = self.b.ins().bxor(z, high);
            let factor = self.b.ins().iconst(types::I64, factor as i64);
            z = self.b.ins().imul(mixed, factor);
        }
        let high = self.b.ins().ushr_imm_u(z, i64::from(Random::LAST));
        let z = self.b.ins().bxor(z, high);
        let number = self.low_word(z);
        self.set(Reg::R0, number);
        self.b.ins().jump(done, &[]);

        self.else_by_call(call, slow, done);
    }
}
