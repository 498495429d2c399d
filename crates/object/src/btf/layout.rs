//! Sizes, modifiers and members, with bounds on depth.

use super::{Btf, BtfError, Composite, Kind, Type};

/// How many types a walk may pass on its way down. Real types need fewer than thirty.
pub const MAX_DEPTH: usize = 64;

/// How many types a walk may look at in all, because a few nested types that name each other often unfold without end.
pub(super) const MAX_VISITS: u32 = 200_000;

/// A member found by name, perhaps inside anonymous structs and unions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberAt {
    /// Type.
    pub ty: u32,
    /// Offset from the start of the outermost type, bits.
    pub bit_offset: u32,
    /// Width of a bit field, 0 when it is none.
    pub bit_size: u8,
}

impl Btf {
    /// The type behind typedefs, `const`, `volatile`, `restrict` and type tags.
    pub fn resolve(&self, id: u32) -> Result<(u32, Type<'_>), BtfError> {
        self.strip(id, true)
    }

    /// The type behind `const`, `volatile`, `restrict` and type tags, but not behind typedefs.
    pub fn strip_modifiers(&self, id: u32) -> Result<(u32, Type<'_>), BtfError> {
        self.strip(id, false)
    }

    fn strip(&self, id: u32, typedefs: bool) -> Result<(u32, Type<'_>), BtfError> {
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            let ty = self.ty(at)?;
            at = match ty.kind {
                Kind::Const(t) | Kind::Volatile(t) | Kind::Restrict(t) | Kind::TypeTag(t) => t,
                Kind::Typedef(t) if typedefs => t,
                _ => return Ok((at, ty)),
            };
        }
        Err(BtfError::Cycle(id))
    }

    /// Size in bytes. Types without a size (`void`, functions, forward declarations) are an error.
    pub fn size_of(&self, id: u32) -> Result<u32, BtfError> {
        let mut count: u64 = 1;
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            let (resolved, ty) = self.resolve(at)?;
            let size = match ty.kind {
                Kind::Int(i) => i.size,
                Kind::Ptr(_) => self.ptr_size(),
                Kind::Struct(c) | Kind::Union(c) => c.size,
                Kind::Enum(e) | Kind::Enum64(e) => e.size,
                Kind::Float(size) => size,
                Kind::Datasec { size, .. } => size,
                Kind::Var(ty, _) => {
                    at = ty;
                    continue;
                }
                Kind::Array(a) => {
                    count = count.saturating_mul(u64::from(a.len));
                    at = a.element;
                    continue;
                }
                _ => return Err(BtfError::NoSize { id: resolved, name: self.type_name(resolved) }),
            };
            return u32::try_from(count.saturating_mul(u64::from(size))).map_err(|_| BtfError::TooLarge(id));
        }
        Err(BtfError::Cycle(id))
    }

    /// Natural alignment in bytes, at least 1.
    pub fn align_of(&self, id: u32) -> Result<u32, BtfError> {
        self.align_within(id, MAX_DEPTH, &mut { MAX_VISITS })
    }

    fn align_within(&self, id: u32, depth: usize, fuel: &mut u32) -> Result<u32, BtfError> {
        *fuel = fuel.checked_sub(1).ok_or(BtfError::Cycle(id))?;
        let depth = depth.checked_sub(1).ok_or(BtfError::Cycle(id))?;
        let (_, ty) = self.resolve(id)?;
        Ok(match ty.kind {
            Kind::Int(i) => i.size.clamp(1, self.ptr_size()),
            Kind::Enum(e) | Kind::Enum64(e) => e.size.clamp(1, self.ptr_size()),
            Kind::Float(size) => size.clamp(1, self.ptr_size()),
            Kind::Ptr(_) => self.ptr_size(),
            Kind::Array(a) => self.align_within(a.element, depth, fuel)?,
            Kind::Var(ty, _) => self.align_within(ty, depth, fuel)?,
            // A struct's members bound its alignment; a packed one shows in members at odd offsets.
            Kind::Struct(c) | Kind::Union(c) => self.align_of_members(c, depth, fuel)?,
            _ => 1,
        })
    }

    fn align_of_members(&self, c: Composite<'_>, depth: usize, fuel: &mut u32) -> Result<u32, BtfError> {
        let mut align = 1;
        for m in c.members() {
            let own = self.align_within(m.ty, depth, fuel)?;
            if m.bit_size == 0 && !m.bit_offset.is_multiple_of(own * 8) {
                return Ok(1);
            }
            align = align.max(own);
        }
        Ok(if c.size.is_multiple_of(align) { align } else { 1 })
    }

    /// A member by its path: `"ip.saddr"`, `"data[3].len"`. Anonymous structs and unions are looked into. The error is the
    /// part of the path that could not be followed.
    pub fn member_at<'p>(&self, id: u32, path: &'p str) -> Result<MemberAt, &'p str> {
        let mut here = MemberAt { ty: id, bit_offset: 0, bit_size: 0 };
        for part in path.split('.') {
            let (name, mut indices) = part.split_at(part.find('[').unwrap_or(part.len()));
            if !name.is_empty() {
                let (_, ty) = self.resolve(here.ty).map_err(|_| part)?;
                let (Kind::Struct(c) | Kind::Union(c)) = ty.kind else { return Err(part) };
                let found = self.member_in(c, name, MAX_DEPTH, &mut { MAX_VISITS }).ok_or(part)?;
                here = MemberAt { bit_offset: here.bit_offset.checked_add(found.bit_offset).ok_or(part)?, ..found };
            }
            while let Some(rest) = indices.strip_prefix('[') {
                let (number, after) = rest.split_once(']').ok_or(part)?;
                let index: u32 = number.parse().map_err(|_| part)?;
                let (_, ty) = self.resolve(here.ty).map_err(|_| part)?;
                let Kind::Array(a) = ty.kind else { return Err(part) };
                if index >= a.len {
                    return Err(part);
                }
                let step =
                    self.size_of(a.element).ok().and_then(|s| s.checked_mul(index)?.checked_mul(8)).ok_or(part)?;
                here.bit_offset = here.bit_offset.checked_add(step).ok_or(part)?;
                (here.ty, here.bit_size) = (a.element, 0);
                indices = after;
            }
            if !indices.is_empty() {
                return Err(part);
            }
        }
        Ok(here)
    }

    fn member_in(&self, c: Composite<'_>, name: &str, depth: usize, fuel: &mut u32) -> Option<MemberAt> {
        for m in c.members() {
            *fuel = fuel.checked_sub(1)?;
            if m.name == name {
                return Some(MemberAt { ty: m.ty, bit_offset: m.bit_offset, bit_size: m.bit_size });
            }
            if m.name.is_empty() && depth > 0 {
                let (_, ty) = self.resolve(m.ty).ok()?;
                let (Kind::Struct(inner) | Kind::Union(inner)) = ty.kind else { continue };
                if let Some(found) = self.member_in(inner, name, depth - 1, fuel) {
                    return Some(MemberAt { bit_offset: m.bit_offset.checked_add(found.bit_offset)?, ..found });
                }
            }
        }
        None
    }
}
