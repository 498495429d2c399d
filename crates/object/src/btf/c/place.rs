//! Where a C compiler puts members, by the rules of the System V ABI, which BPF's is one of: each member at the next place that
//! its alignment permits, a bit field at the next bit unless it would cross a unit of its type.

use super::Writer;
use crate::btf::{Btf, BtfError, Composite, Kind, Member};

/// Bits of gaps in a struct that are filled; real ones have some hundred.
const GAPS_MAX: u64 = 1 << 20;

/// How a struct or union is written so that its members get where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Alignment of what is written, bytes.
    pub(super) align: u32,
    /// Without the gaps that the compiler would leave.
    pub(super) packed: bool,
    /// An alignment that must be asked for, because nothing inside has it: unions have no gaps that could be filled.
    pub(super) aligned: Option<u32>,
    /// No C type has members there: they overlap, or lie outside.
    pub(super) opaque: bool,
}

/// A member that has its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// Bits from the start.
    pub(super) at: u64,
    /// Width in bits when it is a bit field.
    pub(super) bits: Option<u64>,
    /// Bits of its type.
    pub(super) unit: u64,
    /// Alignment of its type, bits.
    pub(super) align: u64,
}

impl Placed {
    pub(super) fn end(&self) -> u64 {
        self.at + self.bits.unwrap_or(self.unit)
    }

    /// Where the compiler puts it behind bit `cursor`.
    pub(super) fn natural(&self, cursor: u64, packed: bool) -> u64 {
        match (self.bits, packed) {
            (Some(_), true) => cursor,
            (None, true) => cursor.next_multiple_of(8),
            (Some(bits), false) if cursor % self.unit + bits <= self.unit => cursor,
            (Some(_), false) => cursor.next_multiple_of(self.unit),
            (None, false) => cursor.next_multiple_of(self.align),
        }
    }
}

impl Writer<'_> {
    /// How a struct or union is written.
    pub(super) fn shape(&mut self, id: u32, depth: usize) -> Result<Shape, BtfError> {
        if let Some(shape) = self.shapes.get(&id) {
            return Ok(*shape);
        }
        let shape = match self.btf.ty(id)?.kind {
            Kind::Struct(c) => self.shape_of(c, false, depth)?,
            Kind::Union(c) => self.shape_of(c, true, depth)?,
            _ => Shape { align: 1, packed: false, aligned: None, opaque: false },
        };
        self.shapes.insert(id, shape);
        Ok(shape)
    }

    fn shape_of(&mut self, c: Composite<'_>, is_union: bool, depth: usize) -> Result<Shape, BtfError> {
        let size = u64::from(c.size) * 8;
        let mut shape = Shape { align: 1, packed: false, aligned: None, opaque: false };
        let (mut cursor, mut longest, mut gaps) = (0, 0, 0);
        for member in c.members() {
            let Some(placed) = self.placed(&member, depth)? else { return Ok(opaque()) };
            if placed.end() > size || (is_union && placed.at != 0) || (!is_union && placed.at < cursor) {
                return Ok(opaque());
            }
            // Where gaps are filled up to it, it stays there.
            shape.packed |= placed.natural(placed.at, false) != placed.at;
            shape.align = shape.align.max((placed.align / 8) as u32);
            gaps += if is_union { 0 } else { placed.at - cursor };
            cursor = placed.end();
            longest = longest.max(placed.end());
        }
        if gaps + size.saturating_sub(longest) > GAPS_MAX {
            return Ok(opaque());
        }
        shape.packed |= !c.size.is_multiple_of(shape.align);
        if shape.packed {
            shape.align = 1;
            if c.members().any(|m| bitfield(self.btf, &m).1.is_none() && !bitfield(self.btf, &m).0.is_multiple_of(8)) {
                return Ok(opaque());
            }
        }
        let natural = longest.div_ceil(8).next_multiple_of(u64::from(shape.align));
        if is_union && natural < u64::from(c.size) {
            let fits = |align: &u32| longest.div_ceil(8).next_multiple_of(u64::from(*align)) == u64::from(c.size);
            shape.aligned = (0..31).map(|bit| 1 << bit).find(fits);
            match shape.aligned {
                Some(align) => shape.align = align,
                None => return Ok(opaque()),
            }
        }
        Ok(shape)
    }

    /// Where a member is; `None`: its type cannot lie in anything.
    pub(super) fn placed(&mut self, member: &Member<'_>, depth: usize) -> Result<Option<Placed>, BtfError> {
        let (at, bits) = bitfield(self.btf, member);
        let Ok(size) = self.btf.size_of(member.ty) else { return Ok(None) };
        let (unit, align) = (u64::from(size) * 8, u64::from(self.align(member.ty, depth)?) * 8);
        if bits.is_some_and(|bits| bits > unit) {
            return Ok(None);
        }
        Ok(Some(Placed { at, bits, unit, align }))
    }

    /// Alignment of a type as it is written, bytes.
    fn align(&mut self, id: u32, depth: usize) -> Result<u32, BtfError> {
        let depth = depth.checked_sub(1).ok_or(BtfError::Cycle(id))?;
        let (id, ty) = self.btf.resolve(id)?;
        let scalar = |size: u32| if size.is_power_of_two() { size.min(16) } else { 1 };
        Ok(match ty.kind {
            Kind::Int(int) => scalar(int.size),
            Kind::Float(size) => scalar(size),
            Kind::Enum(e) | Kind::Enum64(e) => scalar(e.size),
            Kind::Ptr(_) => self.btf.ptr_size(),
            Kind::Array(a) => self.align(a.element, depth)?,
            Kind::Struct(_) | Kind::Union(_) => self.shape(id, depth)?.align,
            _ => 1,
        })
    }

    /// Lines without names that take the bits from `at` to `to`.
    pub(super) fn gap(mut at: u64, to: u64, shape: Shape, size: u32) -> Vec<String> {
        const UNITS: [(u64, &str); 4] = [(64, "long"), (32, "int"), (16, "short"), (8, "char")];
        let mut lines = Vec::new();
        while at < to {
            // A larger unit than the struct's own might align it otherwise on some machines, unless its size says that it may.
            let fits = |unit: u64| shape.packed || unit <= u64::from(shape.align) * 8;
            let harmless =
                |unit: u64| at.is_multiple_of(unit) && to - at >= unit && (u64::from(size) * 8).is_multiple_of(unit);
            let (unit, name) =
                UNITS.into_iter().find(|(unit, _)| fits(*unit) || harmless(*unit)).unwrap_or((8, "char"));
            let crosses = if shape.packed { unit } else { unit - at % unit };
            let bits = crosses.min(to - at);
            lines.push(format!("{name}: {bits};"));
            at += bits;
        }
        lines
    }
}

const fn opaque() -> Shape {
    Shape { align: 1, packed: false, aligned: None, opaque: true }
}

/// Bits from the start, and the width of a bit field. Old encodings have both in the integer.
pub(super) fn bitfield(btf: &Btf, member: &Member<'_>) -> (u64, Option<u64>) {
    let at = u64::from(member.bit_offset);
    if member.bit_size > 0 {
        return (at, Some(member.bit_size.into()));
    }
    match btf.resolve(member.ty).map(|(_, ty)| ty.kind) {
        Ok(Kind::Int(int)) if u64::from(int.bits) < u64::from(int.size) * 8 && int.bits > 0 => {
            (at + u64::from(int.bit_offset), Some(int.bits.into()))
        }
        _ => (at, None),
    }
}
