//! `inline-lookups` and `thread-nulls`: `bpf_map_lookup_elem` without a call.
//!
//! Where things lie in a map is fixed when it is created, so it is constants in the code; the steps of a hash look-up, with what a
//! reader must load in which order, are those of `xway_maps::native`. A key on the stack whose bytes are values never goes
//! through memory. The null check that nearly always follows is part of the look-up: a hit goes straight to where the
//! program goes with a value, a miss to where it goes without.

use std::sync::Arc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, AtomicRmwOp, BlockArg, InstBuilder, MemFlagsData, Value, types};
use xway_isa::{Reg, Width};
use xway_maps::Map;
use xway_maps::native::{self, ArrayLayout, HashLayout, MapLayout, PercpuArrayLayout};
use xway_verifier::{Place, Region};

use super::pieces::pieces;
use super::{Area, Body, inner, trie};
use crate::Options;
use crate::calls::{self, Entry};
use crate::env::offsets;
use crate::plan::asked::{self, Answer, Check};
use crate::plan::{Block, Call, Func, Kind, Op};

/// `bpf_map_lookup_elem`
pub(super) const LOOKUP: u32 = 1;
/// `bpf_map_lookup_percpu_elem`
pub(super) const LOOKUP_PERCPU: u32 = 195;
/// Keys above this length are compared by the map itself.
pub(super) const KEY_MAX: usize = 64;

/// Look-ups in tables and tries that stand in one function: more than a program that people write has, and as many as a scout may.
/// Some thousand of them took the back end seconds. Those behind are calls.
const TABLES_MAX: usize = 512;

/// Look-ups in an array from which on they share its address.
const SHARED_MIN: usize = 3;

/// Look-ups with keys that are not constant, by map.
pub(super) fn count(func: &Func, maps: usize) -> Vec<usize> {
    let mut all = vec![0; maps];
    for op in func.blocks.iter().flat_map(|b| &b.ops) {
        if let Kind::Helper(call) = &op.kind
            && call.proto.id == LOOKUP
            && call.key_const.is_none()
            && let Some(count) = call.map.and_then(|m| all.get_mut(m as usize))
        {
            *count += 1;
        }
    }
    all
}

/// A number of a map's layout.
#[derive(Clone, Copy)]
pub(super) enum Num {
    /// Of a map that the program names.
    Const(u64),
    /// Of one that the run meets.
    Loaded(Value),
}

impl From<usize> for Num {
    fn from(n: usize) -> Num {
        Num::Const(n as u64)
    }
}

/// A hash table as a look-up needs it: see [`HashLayout`].
pub(super) struct Table {
    pub lines: Num,
    pub elements: Num,
    pub seed: [Num; 3],
    pub stride: Num,
    pub value_at: Num,
    pub mask: Num,
    pub key_size: usize,
    pub mark_used: bool,
    pub percpu: Option<PercpuValues>,
    /// Elements have slots there and no values: of maps of maps.
    pub slots: Option<usize>,
}

/// Where the values of per-CPU tables lie.
pub(super) struct PercpuValues {
    values: usize,
    cpu_stride: usize,
    value_stride: usize,
}

impl From<&HashLayout> for Table {
    fn from(t: &HashLayout) -> Table {
        Table {
            lines: t.lines.into(),
            elements: t.elements.into(),
            seed: t.seed.map(Num::Const),
            stride: t.stride.into(),
            value_at: t.value_at.into(),
            mask: (t.mask as usize).into(),
            key_size: t.key_size as usize,
            mark_used: t.mark_used != 0,
            percpu: (t.percpu_values != 0).then_some(PercpuValues {
                values: t.percpu_values,
                cpu_stride: t.cpu_stride,
                value_stride: t.value_stride,
            }),
            slots: None,
        }
    }
}

/// Where a look-up goes on.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// Behind itself, with the result in r0.
    On(ir::Block),
    /// To one block with a value, to another without.
    Check { hit: ir::Block, miss: ir::Block },
}

/// Whether a call is a look-up that is emitted inline.
pub(crate) fn can_inline(call: &Call, maps: &[Arc<Map>], options: &Options) -> bool {
    let layout = call.map.and_then(|m| maps.get(m as usize)).map(|m| m.layout());
    let plain = || match layout {
        Some(MapLayout::Array(_) | MapLayout::PercpuArray(_)) => true,
        Some(MapLayout::Hash(h)) => (1..=KEY_MAX).contains(&(h.key_size as usize)),
        Some(MapLayout::Lpm(trie)) => trie::can_inline(&trie),
        _ => false,
    };
    call.proto.id == LOOKUP && options.inline_lookups && is_own_key(call) && (plain() || inner::can_inline(call, maps))
}

/// Whether the key lies on the stack or in the packet.
pub(super) fn is_own_key(call: &Call) -> bool {
    matches!(&call.args[1], Some(Place { region, .. }) if
        matches!(region, Region::Stack | Region::OuterStack | Region::Packet | Region::Meta))
}

impl<'a> Body<'a, '_> {
    /// When a block ends with a look-up that is emitted inline and the check of its result.
    pub(super) fn checked_lookup(&self, block: &'a Block) -> Option<(&'a Call, Check<'a>)> {
        let is_lookup = |op: &Op| matches!(&op.kind, Kind::Helper(call) if call.proto.id == LOOKUP);
        let check = asked::check(block, is_lookup, Answer::Pointer)?;
        let Kind::Helper(call) = &block.ops[check.at].kind else { return None };
        (self.around.options.thread_nulls && self.can_inline(call)).then_some((call, check))
    }

    /// Emits it, with what stands between it and the check.
    pub(super) fn inline_checked_lookup(&mut self, call: &Call, check: &Check<'a>) {
        let (hit, miss) = (self.blocks[check.other], self.blocks[check.zero]);
        if check.between.is_empty() {
            return self.inline_lookup(call, Some(Then::Check { hit, miss }));
        }
        let ways = [(self.b.create_block(), hit), (self.b.create_block(), miss)];
        self.inline_lookup(call, Some(Then::Check { hit: ways[0].0, miss: ways[1].0 }));
        for (way, to) in ways {
            self.open(way);
            self.ops(check.between);
            self.b.ins().jump(to, &[]);
        }
    }

    /// Whether this use of the helper is emitted inline.
    pub(super) fn can_inline(&self, call: &Call) -> bool {
        (self.tables < TABLES_MAX || !self.is_table(call))
            && can_inline(call, self.unit.maps, self.around.options)
            && !self.is_answered(call)
    }

    /// Whether there is more to a look-up than an element's place.
    fn is_table(&self, call: &Call) -> bool {
        let layout = call.map.and_then(|m| self.unit.maps.get(m as usize)).map(|map| map.layout());
        !matches!(layout, Some(MapLayout::Array(_) | MapLayout::PercpuArray(_) | MapLayout::Maps(_)))
    }

    /// Emits a look-up for which [`Body::can_inline`] holds.
    pub(super) fn inline_lookup(&mut self, call: &Call, then: Option<Then>) {
        self.tables += usize::from(self.is_table(call));
        let map = call.map.and_then(|m| self.unit.maps.get(m as usize));
        let join = self.b.create_block();
        let then = then.unwrap_or(Then::On(join));
        match map.map(|map| map.layout()) {
            None => self.in_inner(call, then),
            Some(MapLayout::Array(array)) => self.array(call, &array, then),
            Some(MapLayout::PercpuArray(array)) => self.percpu_array(call, &array, then),
            Some(MapLayout::Hash(table)) => {
                let table = Table::from(&table);
                self.hash(call, &table, then, calls::typed(call, self.unit.maps).expect("a key of its own"));
            }
            Some(MapLayout::Lpm(trie)) => {
                let slow = calls::typed(call, self.unit.maps).expect("a key of its own");
                self.trie(call, &trie, then, slow);
            }
            Some(MapLayout::Maps(slots)) => self.inner_map(call, &slots, then),
            Some(MapLayout::MapsByKey(by_key)) => {
                let table = Table { slots: Some(by_key.slots), ..Table::from(&by_key.table) };
                self.hash(call, &table, then, calls::inner_lookup(call));
            }
            _ => unreachable!("can_inline"),
        }
        if let Then::On(join) = then {
            self.open(join);
        }
    }

    pub(super) fn found(&mut self, value: Value, then: Then) {
        self.set(Reg::R0, value);
        let (Then::On(to) | Then::Check { hit: to, .. }) = then;
        self.b.ins().jump(to, &[]);
    }

    pub(super) fn missed(&mut self, then: Then) {
        let zero = self.b.ins().iconst(types::I64, 0);
        self.set(Reg::R0, zero);
        let (Then::On(to) | Then::Check { miss: to, .. }) = then;
        self.b.ins().jump(to, &[]);
    }

    /// A result of which only the run knows whether it is null.
    pub(super) fn either(&mut self, value: Value, then: Then) {
        self.set(Reg::R0, value);
        match then {
            Then::On(to) => self.b.ins().jump(to, &[]),
            Then::Check { hit, miss } => self.b.ins().brif(value, hit, &[], miss, &[]),
        };
    }

    // ---- arrays ----

    fn array(&mut self, call: &Call, array: &ArrayLayout, then: Then) {
        let map = call.map.map_or(0, |m| m as usize);
        // Cranelift makes a constant anew for each use, ten bytes long. What is loaded in front of the loop stays in a register.
        let base = if call.key_const.is_none() && self.lookups[map] >= SHARED_MIN {
            let at = self.b.ins().iconst(types::I64, std::ptr::from_ref(&self.unit.bases[map]) as i64);
            let flags = self.flags(Some(Area::Bases)).with_readonly().with_can_move();
            self.b.ins().load(types::I64, flags, at, 0)
        } else {
            self.b.ins().iconst(types::I64, array.base as i64)
        };
        self.element(call, base, Num::from(array.stride), Num::from(array.max_entries as usize), then);
    }

    fn percpu_array(&mut self, call: &Call, array: &PercpuArrayLayout, then: Then) {
        let base = self.b.ins().iconst(types::I64, array.base as i64);
        let own = self.scaled_cpu(array.cpu_stride);
        let base = self.b.ins().iadd(base, own);
        self.element(call, base, Num::from(array.stride), Num::from(array.max_entries as usize), then);
    }

    /// `bpf_map_lookup_percpu_elem` in an array, by a key on the stack or in the packet; false for others.
    pub(super) fn element_of_cpu(&mut self, call: &Call) -> bool {
        let layout = call.map.and_then(|m| self.unit.maps.get(m as usize)).map(|m| m.layout());
        let Some(MapLayout::PercpuArray(array)) = layout.filter(|_| is_own_key(call)) else { return false };
        let index = match call.key_const {
            Some(key) => self.b.ins().iconst(types::I64, i64::from(key)),
            None => self.key_words(call, 4)[0],
        };
        // The number is 32 bits wide, whatever stands above.
        let cpu = self.narrow(Reg::R3, Width::W32);
        let (there, join) = (self.b.create_block(), self.b.create_block());
        self.b.append_block_param(join, types::I64);
        let (max, cpus) = (i64::from(array.max_entries), i64::from(array.cpus));
        let is_element = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, index, max);
        let is_cpu = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, cpu, cpus);
        let both = self.b.ins().band(is_element, is_cpu);
        let zero = self.b.ins().iconst(types::I64, 0);
        self.b.ins().brif(both, there, &[], join, &[BlockArg::Value(zero)]);
        self.open(there);
        let base = self.b.ins().iconst(types::I64, array.base as i64);
        let cpu = self.b.ins().uextend(types::I64, cpu);
        let (row, column) = (self.times(cpu, array.cpu_stride), self.times(index, array.stride));
        let value = self.b.ins().iadd(base, row);
        let value = self.b.ins().iadd(value, column);
        self.b.ins().jump(join, &[BlockArg::Value(value)]);
        self.open(join);
        let value = self.b.block_params(join)[0];
        self.set(Reg::R0, value);
        true
    }

    /// The worker's number, times a stride. It never changes during a burst, so it stands in front of the loop.
    pub(super) fn scaled_cpu(&mut self, stride: usize) -> Value {
        let cpu = self.cpu_number();
        self.times(cpu, stride)
    }

    /// The worker's number. Only a plain load moves out of the loop, not one that extends.
    pub(super) fn cpu_number(&mut self) -> Value {
        let flags = self.flags(Some(Area::Cpu)).with_readonly().with_can_move();
        let cpu = self.b.ins().load(types::I32, flags, self.env, offsets::CPU);
        self.b.ins().uextend(types::I64, cpu)
    }

    /// The value with the key's number in an array; null when there are not so many.
    pub(super) fn element(&mut self, call: &Call, base: Value, stride: Num, max: Num, then: Then) {
        if let (Some(key), Num::Const(stride), Num::Const(max)) = (call.key_const, stride, max) {
            if u64::from(key) >= max {
                return self.missed(then);
            }
            let off = self.b.ins().iconst(types::I64, key as i64 * stride as i64);
            let value = self.b.ins().iadd(base, off);
            return self.found(value, then);
        }
        let index = match call.key_const {
            Some(key) => self.b.ins().iconst(types::I64, i64::from(key)),
            None => self.key_words(call, 4)[0],
        };
        if let Num::Const(max) = max
            && crate::lanes::upper_bound(self.b.func, index) < max
        {
            let off = self.scaled(index, stride);
            let value = self.b.ins().iadd(base, off);
            return self.found(value, then);
        }
        let limit = self.num(max);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, index, limit);
        let (hit, miss) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(inside, hit, &[], miss, &[]);
        self.open(hit);
        let off = self.scaled(index, stride);
        let value = self.b.ins().iadd(base, off);
        self.found(value, then);
        self.open(miss);
        self.missed(then);
    }

    // ---- hash tables ----

    /// `slow` is what is called where one look at the bucket does not tell: see [`calls::typed`].
    pub(super) fn hash(&mut self, call: &Call, table: &Table, then: Then, slow_way: (Entry, &'static [Reg])) {
        let key = self.key_words(call, table.key_size);
        let hash = self.hash_of(table.seed, &key);
        let top = self.b.ins().ushr_imm_u(hash, 56);
        let line = self.bucket(table, hash);

        // All tags with one load, compared at once. Where sixteen bytes may be two loads, in any order, the head is looked at first, as in
        // `Line::look`: an element that goes in between has its tag no more, or makes the count another one.
        self.ordered();
        let shared = MemFlagsData::new().with_notrap();
        let head_at = self.b.ins().iadd_imm_s(line, native::LINE_HEAD as i64);
        let one_load = self.around.isa.name().starts_with("x64");
        let first = (!one_load).then(|| self.b.ins().atomic_load(types::I64, shared, head_at));
        let both = self.b.ins().load(types::I8X16, shared, line, native::LINE_TAGS as i32);
        let byte = self.b.ins().ireduce(types::I8, top);
        let wanted = self.b.ins().splat(types::I8X16, byte);
        // No tag is zero: all are raised at once, which is one instruction. The number's own would be three.
        let ones = self.b.func.dfg.constants.insert(ir::ConstantData::from(&[1u8; 16][..]));
        let ones = self.b.ins().vconst(types::I8X16, ones);
        let wanted = self.b.ins().umax(wanted, ones);
        let equal = self.b.ins().icmp(IntCC::Equal, both, wanted);
        let bits = self.b.ins().vhigh_bits(types::I64, equal);
        let candidates = self.b.ins().band_imm_u(bits, (1 << native::LINE_SLOT_COUNT) - 1);
        let head = first.unwrap_or_else(|| {
            let vector = MemFlagsData::new().with_endianness(ir::Endianness::Little);
            let halves = self.b.ins().bitcast(types::I64X2, vector, both);
            self.b.ins().extractlane(halves, 1)
        });

        let (each, look, matched, next, hit) = (
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
        );
        let (none, slow, gone) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let left = self.b.append_block_param(each, types::I64);
        self.b.ins().jump(each, &[BlockArg::Value(candidates)]);

        self.b.switch_to_block(each);
        self.b.ins().brif(left, look, &[], none, &[]);

        self.open(look);
        let slot = self.b.ins().ctz(left);
        let at = self.times(slot, 4);
        let at = self.b.ins().iadd(line, at);
        let at = self.b.ins().iadd_imm_s(at, native::LINE_SLOTS as i64);
        let word = self.b.ins().atomic_load(types::I32, shared, at);
        let number_bits = self.b.ins().iconst(types::I32, i64::from(native::SLOT_NUMBER));
        let number = self.b.ins().band(word, number_bits);
        let number = self.b.ins().uextend(types::I64, number);
        let element = self.scaled(number, table.stride);
        let elements = self.num(table.elements);
        let element = self.b.ins().iadd(elements, element);
        let mut unequal = None;
        for (n, word) in key.iter().enumerate() {
            let there = self.b.ins().load(types::I64, shared, element, 8 * n as i32);
            let differs = self.b.ins().bxor(there, *word);
            unequal = Some(unequal.map_or(differs, |u| self.b.ins().bor(u, differs)));
        }
        let unequal = unequal.expect("keys have bytes");
        self.b.ins().brif(unequal, next, &[], matched, &[]);

        self.open(next);
        let less = self.b.ins().iadd_imm_s(left, -1);
        let rest = self.b.ins().band(left, less);
        // A stranger in the slot may be what has become of the key's old element: the call looks again.
        self.b.ins().brif(rest, each, &[BlockArg::Value(rest)], slow, &[]);
        self.b.seal_block(each);

        // The element may have been another's when its key was read: the count of removals tells.
        self.open(matched);
        let slot = table.slots.map(|slots| {
            let off = self.times(number, 8);
            let slots = self.b.ins().iconst(types::I64, slots as i64);
            let at = self.b.ins().iadd(slots, off);
            self.b.ins().atomic_load(types::I64, shared, at)
        });
        self.ordered();
        let again = self.b.ins().atomic_load(types::I64, shared, head_at);
        let changed = self.b.ins().bxor(head, again);
        let changed = self.b.ins().ushr_imm_u(changed, i64::from(native::HEAD_REMOVALS_SHIFT));
        self.b.ins().brif(changed, slow, &[], hit, &[]);

        self.open(hit);
        if table.mark_used && !self.shape.is_scout() {
            let (mark, marked) = (self.b.create_block(), self.b.create_block());
            let bit = self.b.ins().iconst(types::I32, i64::from(native::SLOT_USED));
            let used = self.b.ins().band(word, bit);
            self.b.ins().brif(used, marked, &[], mark, &[]);
            self.open(mark);
            self.b.ins().atomic_rmw(types::I32, shared, AtomicRmwOp::Or, at, bit);
            self.b.ins().jump(marked, &[]);
            self.open(marked);
        }
        if let Some(slot) = slot {
            self.map_in(slot, gone, then);
        } else {
            let value = self.value_of(table, element, number);
            self.found(value, then);
        }

        // More may stand behind a full bucket.
        self.open(none);
        let one = self.b.ins().iconst(types::I64, 1);
        let tag = self.b.ins().umax(top, one);
        let low = self.b.ins().band_imm_u(tag, 7);
        let filter = self.b.ins().ushr_imm_u(head, i64::from(native::HEAD_FILTER_SHIFT));
        let behind = self.b.ins().ushr(filter, low);
        let behind = self.b.ins().band(behind, one);
        self.b.ins().brif(behind, slow, &[], gone, &[]);

        self.open(gone);
        self.missed(then);
        self.left_to_map(slow, call, then, slow_way);
    }

    /// Where the value of an element lies.
    fn value_of(&mut self, table: &Table, element: Value, number: Value) -> Value {
        match table.percpu {
            None => {
                let off = self.num(table.value_at);
                self.b.ins().iadd(element, off)
            }
            Some(PercpuValues { values, cpu_stride, value_stride }) => {
                let values = self.b.ins().iconst(types::I64, values as i64);
                let own = self.scaled_cpu(cpu_stride);
                let off = self.times(number, value_stride);
                let own = self.b.ins().iadd(values, own);
                self.b.ins().iadd(own, off)
            }
        }
    }

    /// The cold block where a look-up is left to the map itself. A scout answers a miss there: it is seldom, and a guess is
    /// enough.
    pub(super) fn left_to_map(&mut self, slow: ir::Block, call: &Call, then: Then, way: (Entry, &'static [Reg])) {
        self.seldom(slow);
        if self.shape.is_scout() {
            self.seldom = false;
            return self.missed(then);
        }
        // Only reads the key.
        self.lend(call);
        self.enter(way.0, way.1);
        self.seldom = false;
        let value = self.reg(Reg::R0);
        self.either(value, then);
    }

    /// The address of a hash's bucket.
    pub(super) fn bucket(&mut self, table: &Table, hash: Value) -> Value {
        let mask = self.num(table.mask);
        let bucket = self.b.ins().band(hash, mask);
        let bucket = self.times(bucket, native::LINE_BYTES);
        let lines = self.num(table.lines);
        self.b.ins().iadd(lines, bucket)
    }

    /// The hash of a key, as `xway_maps::native` defines it.
    pub(super) fn hash_of(&mut self, seed: [Num; 3], key: &[Value]) -> Value {
        let seeds = seed.map(|s| self.num(s));
        let mut state = seeds[0];
        for pair in key.chunks(2) {
            let a = self.b.ins().bxor(state, pair[0]);
            let b = match pair.get(1) {
                Some(second) => self.b.ins().bxor(seeds[1], *second),
                None => seeds[1],
            };
            state = self.fold(a, b);
        }
        self.fold(state, seeds[2])
    }

    fn fold(&mut self, a: Value, b: Value) -> Value {
        // One multiplication gives both halves, where they are halves of one product.
        let (a, b) = (self.b.ins().uextend(types::I128, a), self.b.ins().uextend(types::I128, b));
        let product = self.b.ins().imul(a, b);
        let (low, high) = self.b.ins().isplit(product);
        self.b.ins().bxor(low, high)
    }

    // ---- keys ----

    /// The key in words of eight bytes, the last one filled up with zeros.
    pub(super) fn key_words(&mut self, call: &Call, len: usize) -> Vec<Value> {
        let place = call.args[1].expect("can_inline");
        (0..len).step_by(8).map(|at| self.bytes_at(Reg::R2, &place, at, 8.min(len - at))).collect()
    }

    /// Up to eight bytes of an argument, zero-extended: from values where they are some, else from memory.
    pub(super) fn bytes_at(&mut self, pointer: Reg, place: &Place, at: usize, len: usize) -> Value {
        let here = Place { off: place.off.map(|off| off + at as i32), ..*place };
        if let Some(v) = self.slot_bytes(&here, len) {
            return v;
        }
        // Groups that are values are not in memory, and it may be half of each.
        if let Some(bytes) = crate::plan::slots::range(&here, len) {
            self.write_out(bytes);
        }
        self.shared(place);
        let p = self.reg(pointer);
        let flags = self.flags(super::memory::area(place));
        let mut all = None;
        for (done, size) in pieces(len as i32) {
            let part = self.load_piece(flags, p, at as i32 + done, size);
            let part = if done == 0 { part } else { self.b.ins().ishl_imm_s(part, 8 * i64::from(done)) };
            all = Some(all.map_or(part, |all| self.b.ins().bor(all, part)));
        }
        all.expect("arguments have bytes")
    }

    /// A number as a value.
    pub(super) fn num(&mut self, n: Num) -> Value {
        match n {
            Num::Const(n) => self.b.ins().iconst(types::I64, n as i64),
            Num::Loaded(v) => v,
        }
    }

    /// A product with a number.
    fn scaled(&mut self, v: Value, factor: Num) -> Value {
        match factor {
            Num::Const(factor) => self.times(v, factor as usize),
            Num::Loaded(factor) => self.b.ins().imul(v, factor),
        }
    }

    /// A product with a constant, as a shift where it is one.
    pub(super) fn times(&mut self, v: Value, factor: usize) -> Value {
        if factor.is_power_of_two() {
            return self.b.ins().ishl_imm_s(v, i64::from(factor.trailing_zeros()));
        }
        let factor = self.b.ins().iconst(types::I64, factor as i64);
        self.b.ins().imul(v, factor)
    }

    /// Loads behind this are not answered by loads in front of it. x86-64 needs no instruction for that.
    pub(super) fn ordered(&mut self) {
        if !self.around.isa.name().starts_with("x64") {
            self.b.ins().fence();
        }
        self.b.ins().sequence_point();
    }
}
