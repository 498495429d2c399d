//! Stack bytes as values: see `plan/slots.rs`.
//!
//! Each group is a variable of 64 bits whose upper bits are zero. All are zero at entry, as the stack of the interpreter is.

use std::ops::Range;

use cranelift_codegen::ir::{InstBuilder, Value, types};
use xway_isa::{Operand, Size, Width};
use xway_verifier::Place;

use super::{Area, Body};
use crate::plan::Call;
use crate::plan::slots::{self, Reach, STACK};

/// What is read back behind a call.
pub(super) struct Borrowed(Vec<Range<usize>>);

impl Body<'_, '_> {
    /// Every group starts as zero.
    pub(super) fn begin_slots(&mut self, zero: Value) {
        for var in self.slots.clone() {
            self.b.def_var(var, zero);
        }
    }

    /// The bytes of a load, when they are values; zero-extended.
    pub(super) fn slot_load(&mut self, place: &Place, size: Size, signed: bool) -> Option<Value> {
        let v = self.slot_bytes(place, size.bytes() as usize)?;
        if !signed || size == Size::DW {
            return Some(v);
        }
        let narrow = self.b.ins().ireduce(super::memory::int(size), v);
        Some(self.b.ins().sextend(types::I64, narrow))
    }

    /// Up to eight bytes of the stack as a number, when they are values.
    pub(super) fn slot_bytes(&mut self, place: &Place, len: usize) -> Option<Value> {
        let bytes = slots::range(place, len)?;
        let groups = self.groups.exact(bytes.clone())?;
        Some(self.combine(groups, bytes.start))
    }

    /// Groups that follow each other, as one number.
    fn combine(&mut self, groups: Range<usize>, start: usize) -> Value {
        let mut all = None;
        for n in groups {
            let shift = 8 * (self.groups.groups[n].at - start);
            let mut v = self.b.use_var(self.slots[n]);
            if shift > 0 {
                v = self.b.ins().ishl_imm_s(v, shift as i64);
            }
            all = Some(all.map_or(v, |all| self.b.ins().bor(all, v)));
        }
        all.expect("an access has bytes")
    }

    /// Takes a store into values, when its bytes are values.
    pub(super) fn slot_store(&mut self, place: &Place, size: Size, src: Operand) -> bool {
        let len = size.bytes() as usize;
        let Some(bytes) = slots::range(place, len) else { return false };
        let Some(groups) = self.groups.exact(bytes.clone()) else { return false };
        if let Operand::Imm(imm) = src {
            for n in groups {
                let group = self.groups.groups[n];
                let part = i64::from(imm) >> (8 * (group.at - bytes.start)).min(63);
                let mask = if group.len == 8 { -1 } else { (1 << (8 * group.len)) - 1 };
                let v = self.b.ins().iconst(types::I64, part & mask);
                self.b.def_var(self.slots[n], v);
            }
            return true;
        }
        let v = self.operand(src, Width::W64);
        for n in groups {
            let group = self.groups.groups[n];
            let shift = 8 * (group.at - bytes.start);
            let mut part = v;
            if shift > 0 {
                part = self.b.ins().ushr_imm_u(part, shift as i64);
            }
            // The top group of eight bytes has nothing above it.
            if shift + 8 * group.len < 64 {
                part = self.low(part, group.len);
            }
            self.b.def_var(self.slots[n], part);
        }
        true
    }

    fn low(&mut self, v: Value, len: usize) -> Value {
        let ty = match len {
            1 => types::I8,
            2 => types::I16,
            4 => types::I32,
            _ => return v,
        };
        let v = self.b.ins().ireduce(ty, v);
        self.b.ins().uextend(types::I64, v)
    }

    /// Before a helper is called: what it may look at on the stack is written out. The result is for [`Body::give_back`].
    pub(super) fn lend(&mut self, call: &Call) -> Borrowed {
        let Reach::Bytes(all) = slots::reach(call, self.unit.maps) else { return Borrowed(vec![]) };
        let mut written = vec![];
        for (bytes, write) in all {
            self.write_out(bytes.clone());
            if write {
                written.push(bytes);
            }
        }
        Borrowed(written)
    }

    /// Behind the call: what the helper may have written becomes values again.
    pub(super) fn give_back(&mut self, borrowed: Borrowed) {
        let flags = self.flags(Some(Area::Stack));
        for n in borrowed.0.into_iter().flat_map(|bytes| self.groups.overlapping(bytes)) {
            let group = self.groups.groups[n];
            let off = group.at as i32 - STACK as i32;
            let v = self.load_piece(flags, self.fp, off, group.len as i32);
            self.b.def_var(self.slots[n], v);
        }
    }

    /// Stores the groups that share a byte with these, eight bytes at a time where all eight are values: what is stored in
    /// pieces and read as a word waits for the store.
    pub(super) fn write_out(&mut self, bytes: Range<usize>) {
        let flags = self.flags(Some(Area::Stack));
        let mut found = self.groups.overlapping(bytes);
        while let Some(n) = found.next() {
            let group = self.groups.groups[n];
            let word = group.at & !7;
            if group.at == word
                && group.len < 8
                && let Some(all) = self.groups.exact(word..word + 8)
            {
                let v = self.combine(all.clone(), word);
                self.b.ins().store(flags, v, self.fp, word as i32 - STACK as i32);
                found.start = found.start.max(all.end.min(found.end));
                continue;
            }
            let v = self.b.use_var(self.slots[n]);
            let off = group.at as i32 - STACK as i32;
            self.store_piece(flags, v, self.fp, off, group.len as i32);
        }
    }
}
