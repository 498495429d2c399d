//! `inline-lookups` in maps of maps: the outer look-up, and the one in the map that it found.
//!
//! An ARRAY_OF_MAPS is an array of pointers, a HASH_OF_MAPS a hash table whose elements have one; what programs hold of an inner map is its
//! address. Which map that is only the run
//! knows, so what is a constant of other maps is loaded here from the map itself ([`MAP_LAYOUT`]), behind a look whether it is of
//! the kind that the outer map's template says. Of arrays the template says all but the address.

use std::mem::offset_of;
use std::sync::Arc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, MemFlagsData, Value, types};
use xway_abi::{MapSpec, MapType, map_flags};
use xway_isa::Reg;
use xway_maps::Map;
use xway_maps::native::{
    ArrayLayout, HashLayout, InnerSlot, KIND_ARRAY, KIND_FIELDS, KIND_HASH, MAP_LAYOUT, MapLayout, SlotsLayout,
};
use xway_verifier::{Place, Region};

use super::lookup::{KEY_MAX, LOOKUP, Num, Table, Then, is_own_key};
use super::{Area, Body};
use crate::calls;
use crate::plan::Call;

/// Whether a call is a look-up in a map of maps or in an inner map that is emitted inline.
pub(crate) fn can_inline(call: &Call, maps: &[Arc<Map>]) -> bool {
    let outer = |m: u32| match maps.get(m as usize).map(|m| m.layout()) {
        Some(MapLayout::Maps(_)) => true,
        Some(MapLayout::MapsByKey(by_key)) => (1..=KEY_MAX).contains(&(by_key.table.key_size as usize)),
        _ => false,
    };
    let inner = || template(call, maps).is_some_and(|spec| kind(spec).is_some());
    call.proto.id == LOOKUP && is_own_key(call) && call.map.map_or_else(inner, outer)
}

/// What the inner maps of the outer one look like, when a call's map is an inner map.
pub(crate) fn template<'m>(call: &Call, maps: &'m [Arc<Map>]) -> Option<&'m MapSpec> {
    let Some(Place { region: Region::InnerMap(outer), .. }) = call.args[0] else { return None };
    maps.get(outer as usize)?.spec().inner.as_deref()
}

/// The kind of layout that inner maps of a template have, as far as look-ups in them are emitted. Values for each CPU are not:
/// how many CPUs an inner map has values for is not known before.
fn kind(spec: &MapSpec) -> Option<u32> {
    match spec.map_type {
        MapType::Array => Some(KIND_ARRAY),
        MapType::Hash | MapType::LruHash if (1..=KEY_MAX as u32).contains(&spec.key_size) => Some(KIND_HASH),
        _ => None,
    }
}

impl Body<'_, '_> {
    /// The outer look-up.
    pub(super) fn inner_map(&mut self, call: &Call, slots: &SlotsLayout, then: Then) {
        let (inside, none) = (self.b.create_block(), self.b.create_block());
        let at = match call.key_const {
            Some(key) if key >= slots.max_entries => return self.missed(then),
            Some(key) => self.b.ins().iconst(types::I64, (slots.base + 8 * key as usize) as i64),
            None => {
                let index = self.key_words(call, 4)[0];
                let max = self.b.ins().iconst(types::I64, i64::from(slots.max_entries));
                let within = self.b.ins().icmp(IntCC::UnsignedLessThan, index, max);
                self.b.ins().brif(within, inside, &[], none, &[]);
                self.open(inside);
                let off = self.b.ins().ishl_imm_s(index, 3);
                let base = self.b.ins().iconst(types::I64, slots.base as i64);
                self.b.ins().iadd(base, off)
            }
        };
        let slot = self.b.ins().atomic_load(types::I64, MemFlagsData::new().with_notrap(), at);
        self.map_in(slot, none, then);
        self.open(none);
        self.missed(then);
    }

    /// The map that a slot holds; to `none` when it holds nothing.
    pub(super) fn map_in(&mut self, slot: Value, none: Block, then: Then) {
        let found = self.b.create_block();
        self.b.ins().brif(slot, found, &[], none, &[]);
        self.open(found);
        // Written before the slot was, and never again.
        let flags = MemFlagsData::new().with_notrap();
        let map = self.b.ins().load(types::I64, flags, slot, offset_of!(InnerSlot, raw) as i32);
        self.found(map, then);
    }

    /// The look-up in the map that r1 stands for.
    pub(super) fn in_inner(&mut self, call: &Call, then: Then) {
        let spec = template(call, self.unit.maps).expect("can_inline");
        let kind = kind(spec).expect("can_inline");
        let map = self.reg(Reg::R1);
        if kind == KIND_ARRAY {
            // Inner maps have their template's type and value size, and as many entries where it does not say otherwise: who puts
            // one in is held to that (`maps::objects::Template`). So no kind has to be asked for, and two numbers are known.
            let base = self.inner_array(map);
            let stride = Num::Const(ArrayLayout::stride_of(spec.value_size) as u64);
            let max = match spec.flags & map_flags::INNER_MAP {
                0 => Num::Const(u64::from(spec.max_entries)),
                _ => Num::Loaded(self.narrow_of(map, offset_of!(ArrayLayout, max_entries))),
            };
            return self.element(call, base, stride, max, then);
        }
        let (as_told, other) = (self.b.create_block(), self.b.create_block());
        let flags = self.flags(Some(Area::Layouts));
        let has = self.b.ins().load(types::I32, flags, map, MAP_LAYOUT as i32);
        let same = self.b.ins().icmp_imm_s(IntCC::Equal, has, i64::from(kind));
        self.b.ins().brif(same, as_told, &[], other, &[]);

        let way = calls::map_lookup(call);
        self.left_to_map(other, call, then, way);

        self.open(as_told);
        let table = self.inner_table(map, spec);
        self.hash(call, &table, then, way);
    }

    /// The table of an inner map with values of its own, which is one.
    pub(super) fn inner_table(&mut self, map: Value, spec: &MapSpec) -> Table {
        let seed = [0, 8, 16].map(|n| Num::Loaded(self.of(map, offset_of!(HashLayout, seed) + n)));
        Table {
            lines: Num::Loaded(self.of(map, offset_of!(HashLayout, lines))),
            elements: Num::Loaded(self.of(map, offset_of!(HashLayout, elements))),
            seed,
            stride: Num::Loaded(self.of(map, offset_of!(HashLayout, stride))),
            value_at: Num::Loaded(self.of(map, offset_of!(HashLayout, value_at))),
            mask: Num::Loaded(self.narrow_of(map, offset_of!(HashLayout, mask))),
            key_size: spec.key_size as usize,
            mark_used: spec.map_type == MapType::LruHash,
            percpu: None,
            slots: None,
        }
    }

    /// The values of an inner array.
    pub(super) fn inner_array(&mut self, map: Value) -> Value {
        self.of(map, offset_of!(ArrayLayout, base))
    }

    /// A word of an inner map's layout.
    fn of(&mut self, map: Value, field: usize) -> Value {
        let flags = self.flags(Some(Area::Layouts));
        self.b.ins().load(types::I64, flags, map, (MAP_LAYOUT + KIND_FIELDS + field) as i32)
    }

    /// A number of 32 bits of it.
    fn narrow_of(&mut self, map: Value, field: usize) -> Value {
        let flags = self.flags(Some(Area::Layouts));
        self.b.ins().uload32(flags, map, (MAP_LAYOUT + KIND_FIELDS + field) as i32)
    }
}
