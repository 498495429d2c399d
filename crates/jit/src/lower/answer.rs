//! Answers: look-ups in a trie that were made for the whole burst in front of it.
//!
//! A look-up in a trie is a walk of several dependent steps with branches that nobody predicts. Side by side for all frames it costs a
//! fraction, and so it is not repeated: what was found is kept beside the frame, with the key that was asked for and the trie's
//! count of changes. It is the answer when the program asks for that very key and nothing has been changed since; the
//! look-up would find the same. Otherwise the program looks up as ever.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, types::I64};
use xway_isa::Reg;
use xway_maps::native::MapLayout;

use super::lookup::LOOKUP;
use super::{Area, Body, Shape};
use crate::calls;
use crate::env::offsets;
use crate::plan::Call;
use crate::stage::Answer;

impl Body<'_, '_> {
    /// Whether a look-up may have been answered.
    pub(super) fn is_answered(&self, call: &Call) -> bool {
        let asked = call.map.map(|map| (self.number, map));
        call.proto.id == LOOKUP
            && asked.is_some()
            && self.around.answers == asked
            && self.shape == Shape::Burst
            && self.frame.is_some()
            && calls::typed(call, self.unit.maps).is_some()
    }

    /// Emits a look-up that may have been answered; false when it cannot have been.
    pub(super) fn answered(&mut self, call: &Call) -> bool {
        let (true, Some(asked), Some((frames, frame))) = (self.is_answered(call), call.map, self.frame) else {
            return false;
        };
        let MapLayout::Lpm(trie) = self.unit.maps[asked as usize].layout() else { return false };
        let Some((entry, args)) = calls::typed(call, self.unit.maps) else { return false };
        let (here, same, found, slow, join) = (
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
        );
        let env = self.flags(Some(Area::Env));
        let answers = self.b.ins().load(I64, env, self.env, offsets::ANSWERS);
        self.b.ins().brif(answers, here, &[], slow, &[]);

        self.open(here);
        let [key] = self.key_words(call, Answer::KEY)[..] else { unreachable!("eight bytes are one word") };
        // Frames are pointers of eight bytes.
        let off = self.b.ins().isub(frame, frames);
        let off = self.b.ins().ishl_imm_s(off, i64::from((size_of::<Answer>() / 8).trailing_zeros()));
        let answer = self.b.ins().iadd(answers, off);
        let plain = self.flags(Some(Area::Frames));
        let asked = self.b.ins().load(I64, plain, answer, std::mem::offset_of!(Answer, key) as i32);
        let equal = self.b.ins().icmp(IntCC::Equal, asked, key);
        self.b.ins().brif(equal, same, &[], slow, &[]);

        self.open(same);
        let then = self.b.ins().load(I64, env, self.env, offsets::ANSWERED_AT);
        let changes = self.b.ins().iconst(I64, trie.changes as i64);
        let now = self.b.ins().atomic_load(I64, MemFlagsData::new().with_notrap(), changes);
        let equal = self.b.ins().icmp(IntCC::Equal, then, now);
        self.b.ins().brif(equal, found, &[], slow, &[]);

        self.open(found);
        let value = self.b.ins().load(I64, plain, answer, std::mem::offset_of!(Answer, value) as i32);
        self.set(Reg::R0, value);
        self.b.ins().jump(join, &[]);

        self.seldom(slow);
        // Only reads the key.
        self.lend(call);
        self.enter(entry, args);
        self.seldom = false;
        self.b.ins().jump(join, &[]);
        self.open(join);
        true
    }
}
