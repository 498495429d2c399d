//! The scout: see `plan/scout.rs`.
//!
//! For the key of a target it fetches the first line that the look-up will touch, and takes a *note*: one word for each target
//! and frame, 0 when the frame does not come there. The map's next step is made of the notes: see `stage.rs`.
//!
//! | map | note |
//! |---|---|
//! | hash tables | the hash of the key |
//! | arrays | none: there is nothing behind the value |
//! | a trie with keys of eight bytes, the look-up that is answered | the key |
//! | other look-ups in tries | the front of the address, as [`xway_maps::ahead`] has it |
//!
//! Where the map is one that the program has found in another one, its address is a second note, behind the first.

use std::sync::Arc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, BlockArg, ExtFuncData, ExternalName, InstBuilder, Signature, UserExternalName, Value, types::I64,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::Variable;
use xway_abi::MapType;
use xway_isa::Reg;
use xway_maps::native::{ArrayLayout, MapLayout};
use xway_maps::{Map, ahead};

use super::copied::KEPT;
use super::lookup::{KEY_MAX, Table, is_own_key};
use super::{Area, Body, inner, space};
use crate::plan::Call;
use crate::plan::scout::{self, In, Then};
use crate::stage::{Answer, FRAMES};

/// Whether a note can be made of a call's key.
pub(crate) fn can_fetch(call: &Call, maps: &[Arc<Map>]) -> bool {
    use MapType::{Array, Hash, LpmTrie, LruHash, LruPercpuHash, PercpuArray, PercpuHash};
    let Some(at) = In::of(call) else { return false };
    is_own_key(call)
        && at.spec(maps).is_some_and(|spec| match spec.map_type {
            Hash | LruHash | PercpuHash | LruPercpuHash => (1..=KEY_MAX).contains(&(spec.key_size as usize)),
            Array => call.key_const.is_none(),
            // How far a CPU's values lie apart in an inner map is not known.
            PercpuArray => call.key_const.is_none() && call.map.is_some(),
            LpmTrie => true,
            _ => false,
        })
}

/// A function that stands in a scout.
pub(super) struct Inside {
    fp: Value,
    slots: Vec<Variable>,
    /// r6 to r9 of the function that calls it.
    kept: [Value; 4],
}

impl Body<'_, '_> {
    /// ```text
    /// scout(env, frames, count, notes):
    ///     for each frame: ctx = *frame; …scout… exit: notes of the frame
    /// ```
    pub(super) fn scout(&mut self) {
        let entry = self.b.current_block().expect("the entry");
        let [_, frames, count, notes] = *self.b.block_params(entry) else { unreachable!("four parameters") };
        let count_of = self.unit.plan.scout.as_ref().map_or(0, |scout| scout::notes(&scout.targets));
        self.notes = (0..count_of).map(|_| self.b.declare_var(I64)).collect();
        let (head, done) = (self.b.create_block(), self.b.create_block());
        let frame = self.b.append_block_param(head, I64);
        let note = self.b.append_block_param(head, I64);
        let bytes = self.b.ins().ishl_imm_s(count, 3);
        let end = self.b.ins().iadd(frames, bytes);
        let some = self.b.ins().icmp_imm_s(IntCC::NotEqual, count, 0);
        self.b.ins().brif(some, head, &[BlockArg::Value(frames), BlockArg::Value(notes)], done, &[]);

        self.b.switch_to_block(head);
        let plain = self.flags(Some(Area::Frames));
        let ctx = self.b.ins().load(I64, plain, frame, 0);
        let zero = self.b.ins().iconst(I64, 0);
        for note in self.notes.clone() {
            self.b.def_var(note, zero);
        }
        self.inside = vec![Some(Inside { fp: self.fp, slots: self.slots.clone(), kept: [zero; 4] })];
        self.begin(&[ctx]);
        self.blocks();

        self.b.switch_to_block(self.exit);
        for (n, var) in self.notes.clone().into_iter().enumerate() {
            let value = self.b.use_var(var);
            self.b.ins().store(plain, value, note, (8 * FRAMES * n) as i32);
        }
        let frame = self.b.ins().iadd_imm_s(frame, 8);
        let note = self.b.ins().iadd_imm_s(note, 8);
        let more = self.b.ins().icmp(IntCC::NotEqual, frame, end);
        self.b.ins().brif(more, head, &[BlockArg::Value(frame), BlockArg::Value(note)], done, &[]);
        self.b.switch_to_block(done);
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
    }

    /// Before a block of a scout is lowered: its function's stack and stack bytes.
    pub(super) fn turn_to_function_of(&mut self, block: usize) {
        let scout = self.unit.plan.scout.as_ref().filter(|scout| self.shape.is_scout() && scout.frames.len() > 1);
        if let Some(scout) = scout {
            self.turn_to(scout.of[block]);
        }
    }

    /// What no way leads into has nothing in it.
    fn turn_to(&mut self, frame: usize) {
        let plan = self.unit.plan;
        if let (Some(Some(inside)), Some(scout)) = (self.inside.get(frame), &plan.scout) {
            (self.fp, self.slots) = (inside.fp, inside.slots.clone());
            self.groups = &plan.funcs[scout.frames[frame].func].slots;
        }
    }

    /// In place of a call: what the function has when it starts.
    pub(super) fn enter_frame(&mut self, frame: usize) {
        let unit = self.unit;
        let at = &unit.plan.scout.as_ref().expect("this is one").frames[frame];
        let func = &unit.plan.funcs[at.func];
        let kept = KEPT.map(|r| self.reg(r));
        let main = self.inside[0].as_ref().expect("the main function").fp;
        let fp = self.b.ins().iadd_imm_s(main, -i64::from(at.above));
        let slots = func.slots.groups.iter().map(|_| self.b.declare_var(I64)).collect();
        self.inside.resize_with(self.inside.len().max(frame + 1), || None);
        self.inside[frame] = Some(Inside { fp, slots, kept });
        self.turn_to(frame);
        let zero = self.b.ins().iconst(I64, 0);
        self.begin_stack(zero, func.zeroed);
    }

    /// Behind a call: registers that the caller has kept. The block at hand is the caller's.
    pub(super) fn leave_frame(&mut self, frame: usize) {
        let inside = self.inside[frame].as_ref().expect("it was entered before it is left");
        for (r, value) in KEPT.into_iter().zip(inside.kept) {
            self.set(r, value);
        }
    }

    /// Takes the notes of a target and gives the call's result as it is pretended.
    pub(super) fn fetch(&mut self, call: &Call, slot: usize, then: Then) {
        let note = match call.map.and_then(|m| self.unit.maps.get(m as usize)) {
            Some(map) => self.note(call, map, slot),
            None => {
                let map = self.reg(Reg::R1);
                self.b.def_var(self.notes[slot + 1], map);
                self.note_of_inner(call, map)
            }
        };
        self.b.def_var(self.notes[slot], note);
        let result = match then {
            Then::Value => self.b.ins().iconst(I64, self.around.zeros as i64),
            Then::Zero | Then::Stop => self.b.ins().iconst(I64, 0),
        };
        self.set(Reg::R0, result);
    }

    fn note(&mut self, call: &Call, map: &Map, slot: usize) -> Value {
        match map.layout() {
            MapLayout::Hash(table) => self.fetch_bucket(call, &Table::from(&table)),
            MapLayout::Lpm(_) if self.is_answered_by(call, slot) => self.key_words(call, Answer::KEY)[0],
            MapLayout::Lpm(_) => self.front(call, map.key_size()),
            MapLayout::Array(array) => {
                let base = self.b.ins().iconst(I64, array.base as i64);
                self.fetch_value(call, base, array.stride)
            }
            MapLayout::PercpuArray(array) => {
                let base = self.b.ins().iconst(I64, array.base as i64);
                let own = self.scaled_cpu(array.cpu_stride);
                let base = self.b.ins().iadd(base, own);
                self.fetch_value(call, base, array.stride)
            }
            _ => unreachable!("can_fetch"),
        }
    }

    /// `map` is the address of one that is like its template; were it not, a line is fetched that nobody needs.
    fn note_of_inner(&mut self, call: &Call, map: Value) -> Value {
        let spec = inner::template(call, self.unit.maps).expect("can_fetch");
        match spec.map_type {
            MapType::Array => {
                let base = self.inner_array(map);
                self.fetch_value(call, base, ArrayLayout::stride_of(spec.value_size))
            }
            MapType::LpmTrie => self.front(call, spec.key_size as usize),
            _ => {
                let table = self.inner_table(map, spec);
                self.fetch_bucket(call, &table)
            }
        }
    }

    fn fetch_bucket(&mut self, call: &Call, table: &Table) -> Value {
        let key = self.key_words(call, table.key_size);
        let hash = self.hash_of(table.seed, &key);
        let bucket = self.bucket(table, hash);
        self.fetch_line(bucket);
        hash
    }

    /// Whether it is this note that a look-up is answered by.
    fn is_answered_by(&self, call: &Call, slot: usize) -> bool {
        let asked = call.map.map(|map| (self.number, map));
        let scout = self.unit.plan.scout.as_ref().expect("this is one");
        let first = call.map.and_then(|map| scout.first_in(map));
        asked.is_some()
            && self.around.answers == asked
            && first.is_some_and(|n| scout::notes(&scout.targets[..n]) == slot)
    }

    /// Fetches the value of an array that the key names, if there is one. There is nothing more to find out about it.
    fn fetch_value(&mut self, call: &Call, base: Value, stride: usize) -> Value {
        let [index] = self.key_words(call, 4)[..] else { unreachable!("four bytes are one word") };
        let off = self.times(index, stride);
        let value = self.b.ins().iadd(base, off);
        self.fetch_line(value);
        self.b.ins().iconst(I64, 0)
    }

    /// Brings the cache line of an address near, which need not be one of memory.
    ///
    /// Cranelift has no instruction for that. A call with one address, in a convention that keeps all registers, is as long as what
    /// is wanted (five bytes on x86-64, four on aarch64): `link.rs` puts the machine's own instruction in its place.
    fn fetch_line(&mut self, address: Value) {
        let key = (space::FETCH, 0);
        let known = self.imports.iter().find(|(k, _)| *k == key).map(|(_, f)| *f);
        let f = known.unwrap_or_else(|| {
            let mut signature = Signature::new(CallConv::PreserveAll);
            signature.params = vec![AbiParam::new(I64)];
            let signature = self.b.import_signature(signature);
            let name = UserExternalName { namespace: key.0, index: key.1 };
            let name = ExternalName::user(self.b.func.declare_imported_user_function(name));
            let f = self.b.import_function(ExtFuncData { name, signature, colocated: true, patchable: false });
            self.imports.push((key, f));
            f
        });
        self.b.ins().call(f, &[address]);
    }

    /// The first 32 bits of an address as the high half of a word, or its first 64 bits; the last bit set.
    fn front(&mut self, call: &Call, key_size: usize) -> Value {
        let words = self.key_words(call, key_size.min(4 + ahead::LPM_FRONT));
        // The prefix length is in front of the address.
        let mut bits = self.b.ins().ushr_imm_u(words[0], 32);
        if let Some(second) = words.get(1) {
            let second = self.b.ins().ishl_imm_s(*second, 32);
            bits = self.b.ins().bor(bits, second);
        }
        let bits = self.b.ins().bswap(bits);
        self.b.ins().bor_imm_s(bits, 1)
    }
}
