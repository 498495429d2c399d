//! Loads, stores and atomics on real addresses, and the context.

use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, Value, types};
use xway_isa::{AtomicOp, Operand, Reg, Size, Width};
use xway_packet::descriptor;
use xway_verifier::{Place, Region};

use super::bounds::Bound;
use super::{Area, Body};
use crate::plan::{CtxField, Part};

/// The kind of memory that the proof found. What differs from path to path may overlap with other memory that the function touches: it
/// has none, and each access stands behind a `shared`, because Cranelift takes a load without a kind for one of memory that
/// stores with a kind never touch.
///
/// The values of all maps are one kind: programs of a chain, definitions of one program, and maps of maps may have the same map
/// under different numbers.
///
/// The stacks of all functions are one kind: a function that was copied into its caller reads through a pointer what the
/// caller wrote to its own.
pub(super) fn area(place: &Place) -> Option<Area> {
    match place.region {
        Region::Packet | Region::Meta => Some(Area::Packet),
        Region::Stack | Region::OuterStack => Some(Area::Stack),
        Region::MapValue(_) | Region::InnerMapValue(_) => Some(Area::Values),
        Region::Record => Some(Area::Record),
        _ => None,
    }
}

impl Body<'_, '_> {
    /// A field of the context is a field of the frame's descriptor; pointers are made from the start of the chunk. Numbers may be asked
    /// for with their sign, pointers not.
    pub(super) fn context(&mut self, dst: Reg, base: Reg, field: CtxField, signed: bool) {
        if let Some(known) = self.bound(field) {
            return self.set(dst, known);
        }
        let desc = self.reg(base);
        let flags = self.flags(Some(Area::Descriptor));
        let (off, pointer) = match field {
            CtxField::Data => (descriptor::DATA, true),
            CtxField::DataEnd => (descriptor::DATA_END, true),
            CtxField::DataMeta => (descriptor::DATA_META, true),
            CtxField::IngressIfindex => (descriptor::INGRESS_IFINDEX, false),
            CtxField::RxQueue => (descriptor::RX_QUEUE, false),
            CtxField::EgressIfindex => (descriptor::EGRESS_IFINDEX, false),
        };
        if signed && !pointer {
            let v = self.b.ins().sload32(flags, desc, off);
            return self.set(dst, v);
        }
        let number = self.b.ins().uload32(flags, desc, off);
        if !pointer {
            return self.set(dst, number);
        }
        let pointer = self.pointer(desc, number);
        self.learn_bound(field, Bound { pointer, field: number });
        self.set(dst, pointer);
    }

    pub(super) fn load(&mut self, size: Size, signed: bool, dst: Reg, base: Reg, off: i16, place: &Place) {
        if let Some(v) = self.slot_load(place, size, signed) {
            return self.set(dst, v);
        }
        self.shared(place);
        let p = self.reg(base);
        let flags = self.flags(area(place));
        let off = i32::from(off);
        let v = match (size, signed) {
            (Size::B, true) => self.b.ins().sload8(types::I64, flags, p, off),
            (Size::H, true) => self.b.ins().sload16(types::I64, flags, p, off),
            (Size::W, true) => self.b.ins().sload32(flags, p, off),
            _ => self.load_piece(flags, p, off, size.bytes() as i32),
        };
        self.set(dst, v);
    }

    /// A byte of a word of a map's value, which the first of its bytes loads; false where that first one is not here (a scout has only
    /// what it needs).
    pub(super) fn load_part(&mut self, dst: Reg, base: Reg, place: &Place, part: Part) -> bool {
        if part.first {
            self.shared(place);
            let p = self.reg(base);
            let flags = self.flags(area(place));
            let word = self.load_piece(flags, p, part.off.into(), part.size.bytes() as i32);
            self.words.push((part.word, word));
        }
        let Some((_, mut v)) = self.words.iter().rfind(|(number, _)| *number == part.word).copied() else {
            return false;
        };
        if part.byte > 0 {
            v = self.b.ins().ushr_imm_u(v, 8 * i64::from(part.byte));
        }
        let byte = self.b.ins().ireduce(types::I8, v);
        let v = self.b.ins().uextend(types::I64, byte);
        self.set(dst, v);
        true
    }

    pub(super) fn store(&mut self, size: Size, base: Reg, off: i16, src: Operand, place: &Place) {
        if self.slot_store(place, size, src) {
            return;
        }
        let v = self.operand(src, Width::W64);
        let p = self.reg(base);
        self.shared(place);
        let flags = self.flags(area(place));
        self.store_piece(flags, v, p, off.into(), size.bytes() as i32);
    }

    pub(super) fn atomic(&mut self, size: Size, op: AtomicOp, base: Reg, off: i16, src: Reg, place: &Place) {
        let (width, ty) = if size == Size::DW { (Width::W64, types::I64) } else { (Width::W32, types::I32) };
        let p = self.address(base, off);
        let flags = self.flags(area(place));
        let v = self.narrow(src, width);
        let (rmw, fetch) = match op {
            AtomicOp::Add { fetch } => (AtomicRmwOp::Add, fetch),
            AtomicOp::Or { fetch } => (AtomicRmwOp::Or, fetch),
            AtomicOp::And { fetch } => (AtomicRmwOp::And, fetch),
            AtomicOp::Xor { fetch } => (AtomicRmwOp::Xor, fetch),
            AtomicOp::Xchg => (AtomicRmwOp::Xchg, true),
            AtomicOp::CmpXchg => {
                let expected = self.narrow(Reg::R0, width);
                let old = self.b.ins().atomic_cas(flags, p, expected, v);
                return self.set_wide(Reg::R0, width, old);
            }
        };
        let old = self.b.ins().atomic_rmw(ty, flags, rmw, p, v);
        if fetch {
            self.set_wide(src, width, old);
        }
    }

    pub(super) fn load_acquire(&mut self, size: Size, dst: Reg, base: Reg, off: i16, place: &Place) {
        let p = self.address(base, off);
        let flags = self.flags(area(place));
        let mut v = self.b.ins().atomic_load(int(size), flags, p);
        if size != Size::DW {
            v = self.b.ins().uextend(types::I64, v);
        }
        self.set(dst, v);
    }

    pub(super) fn store_release(&mut self, size: Size, base: Reg, off: i16, src: Reg, place: &Place) {
        let mut v = self.reg(src);
        if size != Size::DW {
            v = self.b.ins().ireduce(int(size), v);
        }
        let p = self.address(base, off);
        let flags = self.flags(area(place));
        self.b.ins().atomic_store(flags, v, p);
    }

    fn address(&mut self, base: Reg, off: i16) -> Value {
        let p = self.reg(base);
        if off == 0 { p } else { self.b.ins().iadd_imm_s(p, i64::from(off)) }
    }

    /// Before an access to memory that others read and write at the same time, or that has no kind: a load must not be answered from
    /// an earlier one, and stores in front of it must be made, in their order: a flag in one map may tell who reads another
    /// that it is being written. Costs no instruction.
    pub(super) fn shared(&mut self, place: &Place) {
        let own = matches!(area(place), Some(Area::Packet | Area::Stack | Area::Record));
        if !own && self.around.options.optimize {
            self.b.ins().sequence_point();
        }
    }
}

pub(super) fn int(size: Size) -> types::Type {
    match size {
        Size::B => types::I8,
        Size::H => types::I16,
        Size::W => types::I32,
        Size::DW => types::I64,
    }
}
