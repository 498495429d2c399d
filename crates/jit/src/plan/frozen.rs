//! `frozen`: loads from maps that nobody can change are constants.
//!
//! A program's constants lie in its `.rodata`: limits and switches that whoever loads it may set before. From then on the map is
//! frozen to user space and read-only to programs, and the proof is about its very content, which `check_maps` compares with the map
//! that the code is for.

use xway_isa::Size;
use xway_object::MapDef;
use xway_verifier::{Place, Region};

use super::{Kind, Plan};

impl Plan {
    /// Makes constants of what is loaded from these maps, where the place is one constant.
    pub fn fold_frozen(&mut self, maps: &[MapDef]) {
        for op in self.funcs.iter_mut().flat_map(|f| &mut f.blocks).flat_map(|b| &mut b.ops) {
            if let Kind::Load {
                size, signed, dst, place: Place { region: Region::MapValue(map), off: Some(off) }, ..
            } = op.kind
                && let Some(value) = maps.get(map as usize).and_then(|def| number(def, off, size, signed))
            {
                op.kind = Kind::Const { dst, value };
            }
        }
    }
}

/// The number at a place of the only value of a map that nobody can change.
fn number(def: &MapDef, off: i32, size: Size, signed: bool) -> Option<u64> {
    let (bytes, at) = (def.constant()?, usize::try_from(off).ok()?);
    let len = size.bytes() as usize;
    let mut word = [0; 8];
    word[..len].copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
    let (value, unused) = (u64::from_le_bytes(word), 64 - 8 * len as u32);
    Some(if signed { ((value << unused) as i64 >> unused) as u64 } else { value })
}
