//! `slots`: stack bytes that only plain loads and stores touch become values.
//!
//! A key that is stored in pieces and read as words is the usual thing on a program's stack, and the worst: no processor
//! forwards several stores to one load. Where the proof says which bytes every access touches, the bytes need no memory at all.
//! The analysis groups a function's stack bytes so that every access covers whole groups; lowering keeps each group in an SSA
//! variable. Calls that look at the stack get the bytes written out in front of them, and what they may have changed is read
//! back behind them.
//!
//! Left in memory: bytes whose values would cost the compiler too much (`afford.rs`), bytes of atomic operations, and the whole
//! stack of a function in which some access has no constant offset or some call may reach it in a way that the prototype does
//! not bound (callbacks, functions of the program, dynptrs).

use std::ops::Range;
use std::sync::Arc;

use xway_abi::{ArgKind, MemAccess, MemSize};
use xway_maps::Map;
use xway_verifier::{Place, Region};

use super::{Call, Func, Kind, Plan};
use crate::lower::template;

/// Bytes of a function's stack.
pub(crate) const STACK: usize = 512;

/// Bytes that are one value: 1, 2, 4 or 8, aligned to their length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    /// Distance of the first byte from the start of the stack (frame pointer - 512).
    pub at: usize,
    pub len: usize,
}

/// The groups of a function, by rising position.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slots {
    pub groups: Vec<Group>,
    /// Others that might be values and stay in memory, because they cost more than they gain.
    pub left: usize,
}

impl Slots {
    /// The groups that make up exactly these bytes; `None` when some of them are in memory.
    pub fn exact(&self, bytes: Range<usize>) -> Option<Range<usize>> {
        let found = self.overlapping(bytes.clone());
        let groups = &self.groups[found.clone()];
        let mut at = bytes.start;
        for group in groups {
            if group.at != at {
                return None;
            }
            at += group.len;
        }
        (at == bytes.end && !bytes.is_empty()).then_some(found)
    }

    /// The groups that share a byte with these.
    pub fn overlapping(&self, bytes: Range<usize>) -> Range<usize> {
        let from = self.groups.partition_point(|g| g.at + g.len <= bytes.start);
        let to = self.groups.partition_point(|g| g.at < bytes.end);
        from..to.max(from)
    }
}

/// Where a place of this length lies from the start of the stack; `None` when it is elsewhere or not one constant.
pub(crate) fn range(place: &Place, len: usize) -> Option<Range<usize>> {
    let (Region::Stack, Some(off)) = (place.region, place.off) else { return None };
    let at = usize::try_from(i64::from(off) + STACK as i64).ok()?;
    let end = at.checked_add(len)?;
    (end <= STACK).then_some(at..end)
}

/// The bytes of the function's own stack that a load or store touches, where they are always the same.
pub(super) fn touched(kind: &Kind) -> Option<Range<usize>> {
    match kind {
        Kind::Load { size, place, .. } | Kind::Store { size, place, .. } => range(place, size.bytes() as usize),
        _ => None,
    }
}

/// What a call does with the stack of the function that it stands in.
pub(crate) enum Reach {
    /// These bytes, read or also written.
    Bytes(Vec<(Range<usize>, bool)>),
    /// Something that is not bounded.
    Anything,
}

/// Whether a place may be on this function's stack.
fn may_be_stack(place: &Place) -> bool {
    matches!(place.region, Region::Stack | Region::Mixed)
}

/// What a helper reaches, by its prototype.
pub(crate) fn reach(call: &Call, maps: &[Arc<Map>]) -> Reach {
    // An inner map is like its outer map's template.
    let map = call.map.and_then(|m| maps.get(m as usize)).map(|m| m.spec()).or_else(|| template(call, maps));
    let mut found = Vec::new();
    for (n, place) in call.args.iter().enumerate() {
        let Some(place) = place.as_ref().filter(|p| may_be_stack(p)) else { continue };
        let (len, access) = match call.proto.args.get(n).map(|a| a.kind) {
            // Registers that the helper does not take.
            None => continue,
            Some(ArgKind::MapKey) => (map.map(|m| m.key_size as usize), MemAccess::Read),
            Some(ArgKind::MapValue(access)) => {
                (map.map(|m| m.value_size as usize), call.proto.value_access(access, map.map(|m| m.map_type)))
            }
            Some(ArgKind::Mem(access, MemSize::Fixed(n) | MemSize::FixedAligned(n))) => (Some(n as usize), access),
            Some(ArgKind::Mem(access, MemSize::NextArg)) => {
                (call.length_of(n).and_then(|n| usize::try_from(n).ok()), access)
            }
            Some(_) => return Reach::Anything,
        };
        let Some(bytes) = len.and_then(|len| range(place, len)) else { return Reach::Anything };
        found.push((bytes, access != MemAccess::Read));
    }
    Reach::Bytes(found)
}

impl Plan {
    /// Finds the groups of every function. With `on` false: none.
    pub fn promote(&mut self, on: bool, maps: &[Arc<Map>]) {
        for func in &mut self.funcs {
            func.slots = if on { groups(func, maps).unwrap_or_default() } else { Slots::default() };
        }
    }
}

/// The groups of a function; `None` when its stack stays in memory.
pub(super) fn groups(func: &Func, maps: &[Arc<Map>]) -> Option<Slots> {
    let mut plain: Vec<Range<usize>> = Vec::new();
    let mut in_memory = [false; STACK];
    for op in func.blocks.iter().flat_map(|b| &b.ops) {
        match &op.kind {
            Kind::Load { place, .. } | Kind::Store { place, .. } if may_be_stack(place) => {
                plain.push(touched(&op.kind)?);
            }
            Kind::Atomic { size, place, .. }
            | Kind::LoadAcquire { size, place, .. }
            | Kind::StoreRelease { size, place, .. }
                if may_be_stack(place) =>
            {
                in_memory[range(place, size.bytes() as usize)?].fill(true);
            }
            Kind::Helper(call) => {
                if let Reach::Anything = reach(call, maps) {
                    return None;
                }
            }
            Kind::Local { args, .. } | Kind::Kfunc { args, .. } if args.iter().flatten().any(may_be_stack) => {
                return None;
            }
            _ => {}
        }
    }
    // An access with one byte in memory is in memory as a whole, and so are the others that it meets.
    loop {
        let before = plain.len();
        plain.retain(|bytes| {
            let met = in_memory[bytes.clone()].contains(&true);
            if met {
                in_memory[bytes.clone()].fill(true);
            }
            !met
        });
        if plain.len() == before {
            break;
        }
    }
    let mut touched = [false; STACK];
    let mut cut = [false; STACK + 1];
    for bytes in plain {
        (cut[bytes.start], cut[bytes.end]) = (true, true);
        touched[bytes].fill(true);
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < STACK {
        if !touched[at] {
            at += 1;
            continue;
        }
        // As long as nothing ends in between; powers of two, aligned to their length.
        let fits = |len: usize| {
            at.is_multiple_of(len) && (at..at + len).all(|i| touched[i]) && !(at + 1..at + len).any(|i| cut[i])
        };
        let len = [8, 4, 2].into_iter().find(|len| fits(*len)).unwrap_or(1);
        found.push(Group { at, len });
        at += len;
    }
    Some(Slots { groups: found, left: 0 }.within_means(func, maps))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(groups: &[(usize, usize)]) -> Slots {
        Slots { groups: groups.iter().map(|&(at, len)| Group { at, len }).collect(), left: 0 }
    }

    #[test]
    fn accesses_are_made_of_whole_groups() {
        let slots = slots(&[(496, 4), (500, 2), (502, 2), (508, 4)]);
        assert_eq!(slots.exact(496..504), Some(0..3));
        assert_eq!(slots.exact(500..502), Some(1..2));
        assert_eq!(slots.exact(496..502), Some(0..2));
        assert_eq!(slots.exact(502..508), None, "a gap");
        assert_eq!(slots.exact(497..500), None, "half a group");
        assert_eq!(slots.exact(504..508), None, "nothing there");
        assert_eq!(slots.overlapping(501..509), 1..4);
        assert_eq!(slots.overlapping(504..508), 3..3);
    }
}
