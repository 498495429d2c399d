//! Before a figure is worth anything: do both sides compute the same? And do they still, when everything has been timed?

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::MapType;
use xway_object::{MapKind, Object};

use crate::fill::{Content, Maps};
use crate::flows::{ENTRY, Ring};
use crate::kernel::KernelSide;
use crate::packet::{FIELDS_AT, FIELDS_LEN};
use crate::user::{BURST, UserSide};
use crate::{Histogram, MeasureError, Outcome};

/// What was compared, and what differed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Packets whose verdict and bytes were compared one by one.
    pub packets: u64,
    /// Packets of the ring that slow programs go through; `None` where it is all of it.
    pub part: Option<usize>,
    /// Verdicts over the ring, ours.
    pub ours: Histogram,
    /// The kernel's.
    pub kernel: Option<Histogram>,
    /// Whether verdicts, packets and contents had to agree exactly.
    pub exact: bool,
    /// Map elements that were compared.
    pub elements: u64,
    /// Why nothing had to agree, in words; of programs of others, see [`unsettled`](crate::settled::unsettled).
    pub not_compared: Option<String>,
    /// In words; empty when everything agrees.
    pub differences: Vec<String>,
}

/// Packets of the ring that the interpreter goes through, where it is what the others are compared with.
const INTERPRETED: usize = 1 << 12;
/// Packets that are compared one by one.
const SINGLES: usize = 256;
/// As many of them are compared whatever they take.
const SINGLES_MIN: usize = 16;
/// Time after which enough packets were compared one by one, and for which a ring of slow ones is gone through.
const ENOUGH: Duration = Duration::from_secs(2);
/// A program whose quickest single run takes longer, on both sides together, is a slow one: of the ring it goes through a part.
const SLOW: Duration = Duration::from_micros(100);
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

/// What our engines are compared with: the kernel, or the checked interpreter with maps of its own.
pub enum Reference {
    /// The kernel.
    Kernel(Box<KernelSide>),
    /// Our side with the interpreter as its only engine.
    Interpreter(Box<UserSide>),
}

impl Reference {
    fn name(&self) -> &'static str {
        if self.is_kernel() { "the kernel" } else { "the interpreter" }
    }

    fn is_kernel(&self) -> bool {
        matches!(self, Reference::Kernel(_))
    }

    fn one(&mut self, packet: &[u8]) -> Result<Outcome, MeasureError> {
        match self {
            Reference::Kernel(kernel) => Ok(kernel.one(packet)?),
            Reference::Interpreter(side) => Ok(side.one(0, packet)?),
        }
    }

    /// Verdicts over the ring's first packets.
    fn histogram(&mut self, packets: usize) -> Result<Histogram, MeasureError> {
        match self {
            Reference::Kernel(kernel) => Ok(kernel.histogram(packets as u32)?),
            Reference::Interpreter(side) => {
                side.rewind();
                Ok(side.histogram(0, packets)?)
            }
        }
    }

    /// The kernel's side, where that is it.
    pub fn kernel(&self) -> Option<&KernelSide> {
        match self {
            Reference::Kernel(kernel) => Some(kernel),
            Reference::Interpreter(_) => None,
        }
    }

    /// Its maps.
    pub fn maps(&self) -> &dyn Maps {
        match self {
            Reference::Kernel(kernel) => &**kernel,
            Reference::Interpreter(side) => &**side,
        }
    }
}

impl Checked {
    fn differs(&mut self, what: String) {
        if self.not_compared.is_none() && self.differences.len() < SHOWN {
            self.differences.push(what);
        }
    }

    /// Single packets, then the ring, through every engine. The other side goes the same way as often, so that maps which
    /// programs write stay comparable.
    pub fn runs(
        &mut self,
        user: &mut UserSide,
        other: &mut Reference,
        ring: &Ring,
        template: &[u8],
        expected: Expected,
    ) -> Result<(), MeasureError> {
        let compared = self.not_compared.is_none();
        self.exact = expected.exact && compared;
        let whose = other.name();
        for engine in 0..user.engines.len() {
            let name = user.engines[engine].name.clone();
            let (started, mut least) = (Instant::now(), Duration::MAX);
            for at in 0..SINGLES.min(ring.len()) {
                if at >= SINGLES_MIN && started.elapsed() > ENOUGH {
                    break;
                }
                // Spread over the ring.
                let entry = ring.entry(at * (ring.len() / SINGLES).max(1));
                let packet = with_fields(template, entry);
                let before = started.elapsed();
                let ours = user.one(engine, &packet)?;
                let theirs = other.one(&packet)?;
                least = least.min(started.elapsed() - before);
                self.packets += u64::from(compared);
                if expected.exact && ours.ret != theirs.ret {
                    self.differs(format!("packet {at}: {name} returns {}, {whose} {}", ours.ret, theirs.ret));
                } else if (expected.exact || expected.suite) && ours.packet != theirs.packet {
                    let byte = ours.packet.iter().zip(&theirs.packet).take_while(|(a, b)| a == b).count();
                    let lengths = (ours.packet.len(), theirs.packet.len());
                    self.differs(format!(
                        "packet {at}: {name} and {whose} differ from byte {byte} on, lengths {lengths:?}"
                    ));
                }
            }
            self.part = part(least, ring.len()).into_iter().chain(self.part).min();
            let (ours, theirs) = self.verdicts(user, engine, other, ring, expected)?;
            (self.ours, self.kernel) = (ours, other.is_kernel().then_some(theirs));
        }
        Ok(())
    }

    /// Beside the interpreter, which has seen a part only: all of the ring, through the first engine.
    pub fn whole(&mut self, user: &mut UserSide, other: &Reference, ring: &Ring) -> Result<(), MeasureError> {
        if !other.is_kernel() && !user.engines.is_empty() {
            user.rewind();
            self.ours = user.histogram(0, self.part.unwrap_or(ring.len()))?;
        }
        Ok(())
    }

    /// The ring through one engine and the other side. The interpreter takes too long for all of a ring.
    fn verdicts(
        &mut self,
        user: &mut UserSide,
        engine: usize,
        other: &mut Reference,
        ring: &Ring,
        expected: Expected,
    ) -> Result<(Histogram, Histogram), MeasureError> {
        let name = user.engines[engine].name.clone();
        let packets = self.part.unwrap_or(ring.len());
        let packets = if other.is_kernel() { packets } else { packets.min(INTERPRETED) };
        user.rewind();
        let ours = user.histogram(engine, packets)?;
        if expected.suite && ours[0] > 0 {
            self.differs(format!("{name}: {} of {packets} packets ABORTED", ours[0]));
        }
        let theirs = other.histogram(packets)?;
        if !agree(&ours, &theirs, expected) {
            self.differs(format!("verdicts: {name} {ours:?}, {} {theirs:?}", other.name()));
        }
        Ok((ours, theirs))
    }

    /// When everything has been timed: do both sides still come to the same verdicts? Programs of others may count what they see, and the
    /// sides have not seen the same number of packets; those of the suite do not decide by it. Where a table evicts, which flows it
    /// knows is each side's own affair by now (of a ring that comes round and round Linux's LRU table knows none, ours one in twenty).
    pub fn again(
        &mut self,
        user: &mut UserSide,
        other: &mut Reference,
        ring: &Ring,
        expected: Expected,
    ) -> Result<(), MeasureError> {
        if expected.suite && expected.exact {
            for engine in 0..user.engines.len() {
                self.verdicts(user, engine, other, ring, expected)?;
            }
        }
        Ok(())
    }

    /// What maps hold, after both sides have done the same. Where runs need not agree exactly, only what was put in.
    pub fn maps(&mut self, object: &Object, user: &UserSide, other: &Reference, contents: &[Arc<Content>]) {
        if self.not_compared.is_some() {
            return;
        }
        let (whose, other) = (other.name(), other.maps());
        for (index, map) in object.maps.iter().enumerate() {
            // What holds objects has no contents to compare; what evicts keeps what it likes.
            if !comparable(map.spec.map_type, self.exact) || matches!(map.kind, MapKind::Rodata | MapKind::Kconfig) {
                continue;
            }
            if !self.exact && !contents.iter().any(|c| c.map == map.name) {
                continue;
            }
            let keys: Vec<Vec<u8>> = if map.spec.max_entries <= WHOLE {
                let (ours, theirs) = (user.all(index), other.all(index));
                ours.into_keys().chain(theirs.into_keys()).collect()
            } else {
                let size = map.spec.key_size as usize;
                let of_map = || contents.iter().filter(|c| c.map == map.name);
                let count: usize = of_map().map(|c| c.count as usize).sum();
                let keys = of_map().flat_map(|c| c.keys.chunks(size));
                keys.step_by(count / 1000 + 1).map(<[u8]>::to_vec).collect()
            };
            for key in keys {
                self.elements += 1;
                let (ours, theirs) = (user.get(index, &key), other.get(index, &key));
                if ours != theirs {
                    self.differs(format!(
                        "map {}, key {key:02x?}: ours {ours:02x?}, in {whose} {theirs:02x?}",
                        map.name
                    ));
                }
            }
        }
    }
}

/// How many packets of a ring a program goes through that takes so long on both sides together; `None`: all.
fn part(each: Duration, ring: usize) -> Option<usize> {
    let packets = (ENOUGH.as_nanos() / each.as_nanos().max(1)) as usize / BURST * BURST;
    (each > SLOW).then_some(packets.max(BURST)).filter(|packets| *packets < ring)
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
    fn of_slow_programs_a_part_is_enough() {
        let part = |micros, ring| part(Duration::from_micros(micros), ring);
        assert_eq!([part(3, 1 << 22), part(100, 1 << 22)], [None, None], "quick ones, and a large ring");
        assert_eq!([part(1_000, 1 << 16), part(1_000_000, 1 << 16)], [Some(1984), Some(64)], "whole bursts");
        assert_eq!(part(110, 1 << 14), None, "all of it takes no longer");
    }

    #[test]
    fn verdicts_agree_exactly_or_nearly() {
        let (exact, nearly) = (Expected { exact: true, suite: true }, Expected { exact: false, suite: true });
        let passed = |aborted, passed| [aborted, 0, passed, 1000 - passed - aborted, 0, 0, 0, 0];
        assert!(agree(&passed(0, 40), &passed(0, 40), exact) && !agree(&passed(0, 40), &passed(0, 41), exact));
        assert!(agree(&passed(0, 40), &passed(0, 70), nearly) && !agree(&passed(0, 40), &passed(0, 71), nearly));
        assert!(!agree(&passed(1, 40), &passed(0, 40), nearly), "aborted");
    }
}
