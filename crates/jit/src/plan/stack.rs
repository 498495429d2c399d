//! `zero-stack`: which stack slots have to be cleared at entry.
//!
//! A program may read stack that it never wrote (Linux allows it to privileged programs, and padding of keys is the usual
//! case). In the interpreter it reads zero. Native stack holds whatever was there before, addresses of the process included,
//! so what may be read before it is written is cleared at entry. A forward analysis finds the bytes that are written on every
//! path to each read.

use std::collections::VecDeque;

use xway_abi::{ArgKind, MemAccess, MemSize};
use xway_maps::Map;
use xway_verifier::{Place, Region};

use super::afford::backwards;
use super::{Block, Func, Kind, Plan};

/// Bytes of stack, bit n is the byte at `fp - 512 + n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bytes([u64; 8]);

impl Bytes {
    pub const NONE: Bytes = Bytes([0; 8]);
    pub const ALL: Bytes = Bytes([u64::MAX; 8]);

    /// `len` bytes from `fp + off`; cut to the stack.
    pub fn range(off: i32, len: u64) -> Bytes {
        let from = (i64::from(off) + 512).clamp(0, 512);
        let to = (i64::from(off) + 512).saturating_add_unsigned(len).clamp(0, 512);
        let mut bytes = Bytes::NONE;
        for i in from..to {
            bytes.0[i as usize / 64] |= 1 << (i % 64);
        }
        bytes
    }

    pub fn or(self, o: Bytes) -> Bytes {
        Bytes(std::array::from_fn(|i| self.0[i] | o.0[i]))
    }

    pub fn and(self, o: Bytes) -> Bytes {
        Bytes(std::array::from_fn(|i| self.0[i] & o.0[i]))
    }

    pub fn without(self, o: Bytes) -> Bytes {
        Bytes(std::array::from_fn(|i| self.0[i] & !o.0[i]))
    }

    /// The slots of eight bytes that hold any of them, counted downwards from the frame pointer.
    fn slots(self) -> u64 {
        (0..64).filter(|n| self.0[(63 - n) / 8] >> ((63 - n) % 8 * 8) & 0xff != 0).fold(0, |all, n| all | 1 << n)
    }
}

/// What an operation reads and surely writes of its own stack.
pub(super) fn effect(kind: &Kind, maps: &[std::sync::Arc<Map>]) -> (Bytes, Bytes) {
    let of = |place: &Place, len: u64| match (place.region, place.off) {
        (Region::Stack, Some(off)) => Bytes::range(off, len),
        (Region::Stack | Region::Mixed, _) => Bytes::ALL,
        _ => Bytes::NONE,
    };
    let fixed = |place: &Place, len: u64| match (place.region, place.off) {
        (Region::Stack, Some(off)) => Bytes::range(off, len),
        _ => Bytes::NONE,
    };
    let all = |args: &[Option<Place>; 5]| {
        args.iter().flatten().fold(Bytes::NONE, |b, p| match p.region {
            Region::Stack | Region::Mixed => Bytes::ALL,
            _ => b,
        })
    };
    match kind {
        Kind::Load { size, place, .. } | Kind::LoadAcquire { size, place, .. } => {
            (of(place, size.bytes().into()), Bytes::NONE)
        }
        Kind::Store { size, place, .. } | Kind::StoreRelease { size, place, .. } => {
            (Bytes::NONE, fixed(place, size.bytes().into()))
        }
        Kind::Atomic { size, place, .. } => {
            let len = size.bytes().into();
            (of(place, len), fixed(place, len))
        }
        Kind::Local { args, .. } | Kind::Kfunc { args, .. } => (all(args), Bytes::NONE),
        Kind::Helper(call) => {
            let map = call.map.and_then(|m| maps.get(m as usize));
            let mut reads = Bytes::NONE;
            for (n, (arg, place)) in call.proto.args.iter().zip(&call.args).enumerate() {
                let Some(place) = place else { continue };
                let (len, access) = match arg.kind {
                    ArgKind::MapKey => (map.map(|m| m.key_size() as u64), MemAccess::Read),
                    ArgKind::MapValue(access) => {
                        let access = call.proto.value_access(access, map.map(|m| m.map_type()));
                        (map.map(|m| m.value_size() as u64), access)
                    }
                    ArgKind::Mem(access, MemSize::Fixed(n) | MemSize::FixedAligned(n)) => (Some(n.into()), access),
                    ArgKind::Mem(access, MemSize::NextArg) => (call.length_of(n), access),
                    ArgKind::Ctx | ArgKind::ConstMap => continue,
                    // Callbacks, dynptrs: whatever lies there.
                    _ => (None, MemAccess::ReadWrite),
                };
                if access == MemAccess::Write {
                    continue;
                }
                reads = reads.or(match len {
                    Some(len) => of(place, len),
                    None if matches!(place.region, Region::Stack | Region::Mixed) => Bytes::ALL,
                    None => Bytes::NONE,
                });
            }
            (reads, Bytes::NONE)
        }
        _ => (Bytes::NONE, Bytes::NONE),
    }
}

impl Plan {
    /// Finds the slots to clear. With `exact` false: all of them.
    pub fn zero_stack(&mut self, exact: bool, maps: &[std::sync::Arc<Map>]) {
        for func in &mut self.funcs {
            let used = Bytes::range(-(func.stack as i32), func.stack.into());
            let read = if exact { unwritten(func, maps) } else { Bytes::ALL };
            // Values are zero by themselves, and what is written out for a helper is written before it looks.
            let values = (func.slots.groups.iter())
                .fold(Bytes::NONE, |b, g| b.or(Bytes::range(g.at as i32 - 512, g.len as u64)));
            func.zeroed = read.and(used).without(values).slots();
        }
    }
}

/// The bytes that a block reads before it writes them, and those that it writes.
pub(super) fn effect_of_block(block: &Block, maps: &[std::sync::Arc<Map>]) -> (Bytes, Bytes) {
    block.ops.iter().fold((Bytes::NONE, Bytes::NONE), |(read, written), op| {
        let (reads, writes) = effect(&op.kind, maps);
        (read.or(reads.without(written)), written.or(writes))
    })
}

/// The bytes that some path may read before it writes them.
fn unwritten(func: &Func, maps: &[std::sync::Arc<Map>]) -> Bytes {
    let mut at_start = vec![Bytes::ALL; func.blocks.len()];
    let Some(first) = at_start.first_mut() else { return Bytes::NONE };
    *first = Bytes::NONE;
    let own: Vec<(Bytes, Bytes)> = func.blocks.iter().map(|block| effect_of_block(block, maps)).collect();
    let reached = backwards(func);
    let mut work: VecDeque<usize> = reached.iter().rev().copied().collect();
    let mut waits = vec![true; func.blocks.len()];
    while let Some(b) = work.pop_front() {
        waits[b] = false;
        let written = at_start[b].or(own[b].1);
        for next in func.blocks[b].end.successors() {
            let met = at_start[next].and(written);
            if met != std::mem::replace(&mut at_start[next], met) && !std::mem::replace(&mut waits[next], true) {
                work.push_back(next);
            }
        }
    }
    reached.into_iter().fold(Bytes::NONE, |missing, b| missing.or(own[b].0.without(at_start[b])))
}

#[cfg(test)]
mod tests {
    use xway_abi::MapType;

    use super::super::Call;
    use super::*;

    #[test]
    fn bytes_name_slots_from_the_frame_pointer_down() {
        assert_eq!(Bytes::range(-8, 8).slots(), 1);
        assert_eq!(Bytes::range(-1, 1).slots(), 1);
        assert_eq!(Bytes::range(-16, 9).slots(), 0b11);
        assert_eq!(Bytes::range(-512, 1).slots(), 1 << 63);
        assert_eq!(Bytes::ALL.slots(), u64::MAX);
        assert_eq!(Bytes::NONE.slots(), 0);
    }

    #[test]
    fn a_call_reads_as_much_as_the_length_behind_each_argument() {
        let at = |off| Some(Place { region: Region::Stack, off: Some(off) });
        let call = Call {
            proto: xway_abi::helper(28).expect("bpf_csum_diff"),
            map: None,
            key_const: None,
            sizes: [None, Some((64, 64)), None, Some((0, 4)), None],
            args: [at(-64), None, at(-72), None, None],
            turns: None,
        };
        let (reads, writes) = effect(&Kind::Helper(call), &[]);
        assert_eq!((reads.slots(), writes.slots()), (0b1_1111_1111, 0));
    }

    #[test]
    fn a_filter_is_asked_for_what_lies_on_the_stack() {
        let peek = |map: MapType, index| {
            let spec = xway_abi::MapSpec::new(map, 0, 8, 16);
            let maps = [Map::create(&spec, &xway_maps::Env::with_cpus(1)).expect("a map")];
            let args = [None, Some(Place { region: Region::Stack, off: Some(-8) }), None, None, None];
            let proto = xway_abi::helper(89).expect("bpf_map_peek_elem");
            effect(
                &Kind::Helper(Call { proto, map: index, key_const: None, sizes: [None; 5], args, turns: None }),
                &maps,
            )
            .0
            .slots()
        };
        assert_eq!((peek(MapType::BloomFilter, Some(0)), peek(MapType::Queue, Some(0))), (1, 0));
        assert_eq!(peek(MapType::Queue, None), u64::MAX, "it may be a filter");
    }
}
