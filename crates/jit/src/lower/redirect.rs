//! `inline-helpers`: `bpf_redirect` and `bpf_redirect_map` without a call.
//!
//! A target is a few words in the frame's descriptor. Which ports, workers and sockets a map has is looked at when the helper is
//! called, as ever: a slot that holds nothing gives the verdict in the flags. Maps of devices by hash and broadcasts are left to
//! the helper.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use xway_isa::{Reg, Width};
use xway_maps::native::{ENTRY_WORD, MapLayout};
use xway_packet::descriptor::{REDIRECT, redirect};

use super::{Area, Body, Shape};
use crate::env::offsets;
use crate::plan::Call;

/// `bpf_redirect`
pub(super) const REDIRECT_TO: u32 = 23;
/// `bpf_redirect_map`
pub(super) const REDIRECT_MAP: u32 = 51;

/// `XDP_REDIRECT`
const VERDICT: i64 = 4;
/// Flags of `bpf_redirect_map` that are the verdict for a slot that holds nothing.
const ACTION: i64 = 3;

impl Body<'_, '_> {
    /// `bpf_redirect(ifindex, flags)`: any flag gives `XDP_ABORTED`, and leaves an older target alone.
    pub(super) fn redirect(&mut self) {
        let (go, stay, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let known = self.constant_of(Reg::R2);
        if known != Some(0) {
            let flags = self.reg(Reg::R2);
            self.b.ins().brif(flags, stay, &[], go, &[]);
            self.open(stay);
            let aborted = self.b.ins().iconst(types::I64, 0);
            self.set(Reg::R0, aborted);
            self.b.ins().jump(done, &[]);
            self.open(go);
        }
        let ifindex = self.narrow(Reg::R1, Width::W32);
        self.choose(redirect::IFINDEX, &[ifindex]);
        self.b.ins().jump(done, &[]);
        self.open(done);
    }

    /// `bpf_redirect_map(map, key, flags)` for maps whose entries lie side by side, and flags that are a verdict alone; false for
    /// others.
    pub(super) fn redirect_map(&mut self, call: &Call) -> bool {
        let Some(map) = call.map.and_then(|m| self.unit.maps.get(m as usize)) else { return false };
        let (kind, slots) = match map.layout() {
            MapLayout::Devices(slots) => (redirect::DEVICE, slots),
            MapLayout::Cpus(slots) => (redirect::CPU, slots),
            MapLayout::Sockets(slots) => (redirect::SOCKET, slots),
            _ => return false,
        };
        let Some(action) = self.constant_of(Reg::R3).filter(|flags| *flags <= ACTION as u64) else { return false };
        let (inside, none, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let key = self.narrow(Reg::R2, Width::W32);
        let max = self.b.ins().iconst(types::I32, i64::from(slots.max_entries));
        let within = self.b.ins().icmp(IntCC::UnsignedLessThan, key, max);
        self.b.ins().brif(within, inside, &[], none, &[]);

        self.open(inside);
        let index = self.b.ins().uextend(types::I64, key);
        let off = self.b.ins().ishl_imm_s(index, 3);
        let base = self.b.ins().iconst(types::I64, slots.base as i64);
        let at = self.b.ins().iadd(base, off);
        // Slots are written by others; what one points to is as it is as long as it is there.
        let shared = MemFlagsData::new().with_notrap();
        let entry = self.b.ins().atomic_load(types::I64, shared, at);
        // Which slots hold something is not for the processor to guess: tables of flows are full of holes. So there is no branch, and
        // without an entry all but the kind means nothing.
        let id = self.b.ins().iconst(types::I32, i64::from(map.id()));
        let (named, none_named) =
            (self.b.ins().iconst(types::I32, i64::from(kind)), self.b.ins().iconst(types::I32, 0));
        let chosen = self.b.ins().select(entry, named, none_named);
        let mut words = vec![chosen, id, key];
        if kind == redirect::DEVICE {
            let zeros = self.b.ins().iconst(types::I64, self.around.zeros as i64);
            let some = self.b.ins().select(entry, entry, zeros);
            words.push(self.b.ins().load(types::I32, shared, some, ENTRY_WORD as i32));
        }
        self.write_target(&words);
        let in_env = self.flags(Some(Area::Env));
        let before = self.b.ins().load(types::I32, in_env, self.env, offsets::MISSED);
        let nothing = self.b.ins().icmp_imm_s(IntCC::Equal, entry, 0);
        let nothing = self.b.ins().uextend(types::I32, nothing);
        let missed = self.b.ins().bor(before, nothing);
        self.b.ins().store(in_env, missed, self.env, offsets::MISSED);
        let (verdict, otherwise) =
            (self.b.ins().iconst(types::I64, VERDICT), self.b.ins().iconst(types::I64, action as i64));
        let verdict = self.b.ins().select(entry, verdict, otherwise);
        self.set(Reg::R0, verdict);
        self.b.ins().jump(done, &[]);

        self.open(none);
        self.choose(0, &[]);
        // Whoever asks can tell it from a program that chose nothing.
        let (in_env, one) = (self.flags(Some(Area::Env)), self.b.ins().iconst(types::I32, 1));
        self.b.ins().store(in_env, one, self.env, offsets::MISSED);
        let action = self.b.ins().iconst(types::I64, action as i64);
        self.set(Reg::R0, action);
        self.b.ins().jump(done, &[]);
        self.open(done);
        true
    }

    /// Writes the frame's target, its kind first.
    fn write_target(&mut self, words: &[Value]) {
        let desc = self.descriptor();
        let flags = self.flags(Some(Area::Descriptor));
        for (n, word) in words.iter().enumerate() {
            self.b.ins().store(flags, *word, desc, REDIRECT + redirect::WORD * n as i32);
        }
    }

    /// Writes the frame's target, and the verdict that goes with it into r0.
    fn choose(&mut self, kind: u32, words: &[Value]) {
        let kind = self.b.ins().iconst(types::I32, i64::from(kind));
        let all: Vec<Value> = [kind].iter().chain(words).copied().collect();
        self.write_target(&all);
        let verdict = self.b.ins().iconst(types::I64, VERDICT);
        self.set(Reg::R0, verdict);
    }

    /// The descriptor of the frame that is being run, where no argument is the context.
    fn descriptor(&mut self) -> Value {
        if let (Shape::Burst, Some(ctx)) = (self.shape, self.ctx) {
            return ctx;
        }
        let env = self.flags(Some(Area::Env));
        let frame = self.b.ins().load(types::I64, env, self.env, offsets::FRAME);
        let frames = self.flags(Some(Area::Frames));
        self.b.ins().load(types::I64, frames, frame, 0)
    }
}
