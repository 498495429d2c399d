//! Before a figure is worth anything: do both sides compute the same?

use xway_abi::MapType;
use xway_object::{MapKind, Object};

use crate::fill::{Content, Maps};
use crate::flows::{ENTRY, Ring};
use crate::kernel::KernelSide;
use crate::packet::{FIELDS_AT, FIELDS_LEN};
use crate::user::UserSide;
use crate::{Histogram, MeasureError};

/// What was compared, and what differed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Packets whose verdict and bytes were compared one by one.
    pub packets: u64,
    /// Verdicts over the ring, ours (of the last engine).
    pub ours: Histogram,
    /// The kernel's.
    pub kernel: Option<Histogram>,
    /// Whether verdicts, packets and contents had to agree exactly.
    pub exact: bool,
    /// Map elements that were compared.
    pub elements: u64,
    /// In words; empty when everything agrees.
    pub differences: Vec<String>,
}

/// Packets that are compared one by one.
const SINGLES: usize = 256;
/// Maps with more elements are compared by a sample of the keys that they were filled with.
const WHOLE: u32 = 1 << 13;
/// Differences that are kept.
const SHOWN: usize = 8;
/// Where a table evicts, each verdict's share of the ring may differ by so many hundredths.
const NEARLY: u64 = 3;

/// What both sides have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// Verdicts, packets and map contents agree exactly. Not where an LRU map evicts (see [`crate::Case::evicts`]): shares of
    /// verdicts agree nearly, and maps hold what was put in.
    pub exact: bool,
    /// The program is one of the suite: nothing is aborted, and what it writes into packets does not depend on what a table
    /// still holds.
    pub suite: bool,
}

impl Checked {
    fn differs(&mut self, what: String) {
        if self.differences.len() < SHOWN {
            self.differences.push(what);
        }
    }

    /// Single packets, then the whole ring, through every engine. The kernel goes the same way as often, so that maps which
    /// programs write stay comparable.
    pub fn runs(
        &mut self,
        user: &mut UserSide,
        kernel: Option<&KernelSide>,
        ring: &Ring,
        template: &[u8],
        expected: Expected,
    ) -> Result<(), MeasureError> {
        self.exact = expected.exact;
        for engine in 0..user.engines.len() {
            let name = user.engines[engine].name.clone();
            for at in 0..SINGLES.min(ring.len()) {
                // Spread over the ring.
                let entry = ring.entry(at * (ring.len() / SINGLES).max(1));
                let packet = with_fields(template, entry);
                let ours = user.one(engine, &packet)?;
                let Some(kernel) = kernel else { continue };
                let theirs = kernel.one(&packet)?;
                self.packets += 1;
                if expected.exact && ours.ret != theirs.ret {
                    self.differs(format!("packet {at}: {name} returns {}, the kernel {}", ours.ret, theirs.ret));
                } else if (expected.exact || expected.suite) && ours.packet != theirs.packet {
                    let byte = ours.packet.iter().zip(&theirs.packet).take_while(|(a, b)| a == b).count();
                    let lengths = (ours.packet.len(), theirs.packet.len());
                    self.differs(format!(
                        "packet {at}: {name} and the kernel differ from byte {byte} on, lengths {lengths:?}"
                    ));
                }
            }
            self.ours = user.histogram(engine)?;
            if expected.suite && self.ours[0] > 0 {
                self.differs(format!("{name}: {} of {} packets ABORTED", self.ours[0], ring.len()));
            }
            if let Some(kernel) = kernel {
                let theirs = kernel.histogram(ring)?;
                if !agree(&self.ours, &theirs, expected) {
                    self.differs(format!("verdicts: {name} {:?}, the kernel {theirs:?}", self.ours));
                }
                self.kernel = Some(theirs);
            }
        }
        Ok(())
    }

    /// What maps hold, after both sides have done the same. Where runs need not agree exactly, only what was put in.
    pub fn maps(&mut self, object: &Object, user: &UserSide, kernel: &KernelSide, contents: &[Content]) {
        for (index, map) in object.maps.iter().enumerate() {
            // What holds objects has no contents to compare; what evicts keeps what it likes.
            if !comparable(map.spec.map_type, self.exact) || matches!(map.kind, MapKind::Rodata | MapKind::Kconfig) {
                continue;
            }
            if !self.exact && !contents.iter().any(|c| c.map == map.name) {
                continue;
            }
            let keys: Vec<Vec<u8>> = if map.spec.max_entries <= WHOLE {
                let (ours, theirs) = (user.all(index), kernel.all(index));
                ours.into_keys().chain(theirs.into_keys()).collect()
            } else {
                let size = map.spec.key_size as usize;
                let content = contents.iter().find(|c| c.map == map.name);
                let keys = content.map_or(&[][..], |c| &c.keys);
                keys.chunks(size).step_by(keys.len() / size / 1000 + 1).map(<[u8]>::to_vec).collect()
            };
            for key in keys {
                self.elements += 1;
                let (ours, theirs) = (user.get(index, &key), kernel.get(index, &key));
                if ours != theirs {
                    self.differs(format!(
                        "map {}, key {key:02x?}: ours {ours:02x?}, the kernel's {theirs:02x?}",
                        map.name
                    ));
                }
            }
        }
    }
}

fn comparable(map_type: MapType, exact: bool) -> bool {
    use MapType::{Array, Hash, LpmTrie, LruHash, LruPercpuHash, PercpuArray, PercpuHash};
    let plain = matches!(map_type, Array | Hash | LpmTrie | PercpuArray | PercpuHash);
    plain || exact && matches!(map_type, LruHash | LruPercpuHash)
}

/// Whether two sides that went through the same ring came to the same verdicts.
fn agree(ours: &Histogram, theirs: &Histogram, expected: Expected) -> bool {
    let leeway = if expected.exact { 0 } else { ours.iter().sum::<u64>() * NEARLY / 100 };
    // Eviction is no reason to give up.
    ours[0] <= theirs[0] && ours.iter().zip(theirs).all(|(a, b)| a.abs_diff(*b) <= leeway)
}

/// The packet of a ring's entry.
fn with_fields(template: &[u8], entry: &[u8]) -> Vec<u8> {
    debug_assert_eq!(entry.len(), ENTRY);
    let mut packet = template.to_vec();
    packet[FIELDS_AT..FIELDS_AT + FIELDS_LEN].copy_from_slice(&entry[..FIELDS_LEN]);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_agree_exactly_or_nearly() {
        let (exact, nearly) = (Expected { exact: true, suite: true }, Expected { exact: false, suite: true });
        let passed = |aborted, passed| [aborted, 0, passed, 1000 - passed - aborted, 0, 0, 0, 0];
        assert!(agree(&passed(0, 40), &passed(0, 40), exact) && !agree(&passed(0, 40), &passed(0, 41), exact));
        assert!(agree(&passed(0, 40), &passed(0, 70), nearly) && !agree(&passed(0, 40), &passed(0, 71), nearly));
        assert!(!agree(&passed(1, 40), &passed(0, 40), nearly), "aborted");
    }
}
