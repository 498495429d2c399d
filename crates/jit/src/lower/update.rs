//! `inline-helpers`: `bpf_map_update_elem` of an array without a call.
//!
//! All elements of an array are there, so an update is a check of the index and stores. As in `xway_maps`, aligned pieces of up to
//! eight bytes are stored at once, and others may see some of them old and some new.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, types};
use xway_abi::{Errno, map_flags};
use xway_isa::Reg;
use xway_maps::native::{ArrayLayout, MapLayout, PercpuArrayLayout};
use xway_verifier::{Place, Region};

use super::lookup::is_own_key;
use super::pieces::pieces;
use super::{Area, Body};
use crate::plan::Call;

/// `bpf_map_update_elem`
pub(super) const UPDATE: u32 = 2;
/// Bytes of a value that are stored without a call.
const VALUE_MAX: usize = 64;

impl Body<'_, '_> {
    /// Emits the update where the map is an array of plain values, the value lies on the stack and the flags are constants that are
    /// allowed; false where it is left to the call.
    pub(super) fn array_update(&mut self, call: &Call) -> bool {
        let Some(map) = call.map.and_then(|m| self.unit.maps.get(m as usize)) else { return false };
        let (size, writable) = (map.value_size(), map.prog_writable() && map.spec().special.is_empty());
        let (base, cpu_stride, stride, max) = match map.layout() {
            MapLayout::Array(ArrayLayout { base, stride, max_entries, .. }) => (base, None, stride, max_entries),
            MapLayout::PercpuArray(PercpuArrayLayout { base, cpu_stride, stride, max_entries, .. }) => {
                (base, Some(cpu_stride), stride, max_entries)
            }
            _ => return false,
        };
        let place = call.args[2].filter(|place| matches!(place.region, Region::Stack | Region::OuterStack));
        let Some(place) = place.filter(|_| writable && size <= VALUE_MAX && is_own_key(call)) else { return false };
        if !matches!(self.constant_of(Reg::R4), Some(map_flags::ANY | map_flags::EXIST)) {
            return false;
        }

        let index = match call.key_const {
            Some(key) => self.b.ins().iconst(types::I64, i64::from(key)),
            None => self.key_words(call, 4)[0],
        };
        let words: Vec<_> =
            (0..size).step_by(8).map(|at| (at, self.bytes_at(Reg::R3, &place, at, 8.min(size - at)))).collect();
        let beyond = (crate::lanes::upper_bound(self.b.func, index) >= u64::from(max)).then(|| {
            let (inside, outside) = (self.b.create_block(), self.b.create_block());
            let limit = self.b.ins().iconst(types::I64, i64::from(max));
            let fits = self.b.ins().icmp(IntCC::UnsignedLessThan, index, limit);
            self.b.ins().brif(fits, inside, &[], outside, &[]);
            self.open(inside);
            outside
        });
        let mut value = self.b.ins().iconst(types::I64, base as i64);
        if let Some(cpu_stride) = cpu_stride {
            let own = self.scaled_cpu(cpu_stride);
            value = self.b.ins().iadd(value, own);
        }
        let off = self.times(index, stride);
        let value = self.b.ins().iadd(value, off);
        let there = Place { region: Region::MapValue(call.map.unwrap_or(0)), off: None };
        for (at, word) in words {
            for (done, len) in pieces(8.min(size - at) as i32) {
                self.shared(&there);
                let flags = self.flags(Some(Area::Values));
                let part = if done == 0 { word } else { self.b.ins().ushr_imm_u(word, 8 * i64::from(done)) };
                self.store_piece(flags, part, value, at as i32 + done, len);
            }
        }
        let zero = self.b.ins().iconst(types::I64, 0);
        self.set(Reg::R0, zero);
        if let Some(outside) = beyond {
            let done = self.b.create_block();
            self.b.ins().jump(done, &[]);
            self.open(outside);
            let failed = self.b.ins().iconst(types::I64, Errno::E2BIG.as_ret() as i64);
            self.set(Reg::R0, failed);
            self.b.ins().jump(done, &[]);
            self.open(done);
        }
        true
    }
}
