//! The configuration of a dispatcher: a structure in its `.rodata` that every tool of the ecosystem reads and carries on.

use xway_isa::Slot;
use xway_isa::op;

/// Programs that one dispatcher can hold.
pub const SLOTS: usize = 10;
/// `XDP_DISPATCHER_MAGIC`.
const MAGIC: u8 = 236;
/// What a slot returns that nobody has filled: the next one runs.
pub(super) const EMPTY: u32 = 31;
/// `BPF_F_XDP_HAS_FRAGS`, as the configuration notes it.
const FRAGS: u32 = 1 << 5;
/// Where the three arrays of ten words begin.
const CHAIN_ON: usize = 4;
const PRIORITIES: usize = CHAIN_ON + 4 * SLOTS;
const FLAGS: usize = PRIORITIES + 4 * SLOTS;
/// Bytes of version 2.
const BYTES: usize = FLAGS + 4 * SLOTS;

/// One program of a dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DispatcherSlot {
    /// Smaller numbers run first.
    pub priority: u32,
    /// Verdicts (bit n for the verdict n) behind which the next one runs.
    pub chain_on: u32,
    /// It was made for packets of several buffers.
    pub frags: bool,
}

/// What a dispatcher runs, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DispatcherConfig {
    /// Version of the protocol: 2, or 3, which adds a mark for programs that are bound to a device.
    pub version: u8,
    /// It takes packets of several buffers.
    pub frags: bool,
    /// It is bound to a device (version 3).
    pub device_bound: bool,
    /// Its programs, at most [`SLOTS`].
    pub slots: Vec<DispatcherSlot>,
}

impl DispatcherConfig {
    /// A configuration of these programs. It takes packets of several buffers when all of them do.
    pub fn new(version: u8, slots: Vec<DispatcherSlot>) -> DispatcherConfig {
        let frags = !slots.is_empty() && slots.iter().all(|s| s.frags);
        DispatcherConfig { version, frags, device_bound: false, slots }
    }

    /// Bytes of the structure in a version.
    pub const fn bytes(version: u8) -> usize {
        // A byte more, and what aligns it.
        if version >= 3 { BYTES + 4 } else { BYTES }
    }

    /// The structure.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; DispatcherConfig::bytes(self.version)];
        out[..4].copy_from_slice(&[MAGIC, self.version, self.slots.len() as u8, self.frags.into()]);
        let mut put = |at: usize, word: u32| out[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        for (i, slot) in self.slots.iter().take(SLOTS).enumerate() {
            put(CHAIN_ON + 4 * i, slot.chain_on | 1 << EMPTY);
            put(PRIORITIES + 4 * i, slot.priority);
            put(FLAGS + 4 * i, if slot.frags { FRAGS } else { 0 });
        }
        if let Some(bound) = out.get_mut(BYTES) {
            *bound = self.device_bound.into();
        }
        out
    }

    /// From a dispatcher's `.rodata`.
    ///
    /// # Errors
    /// What is not as the protocol has it, versions other than 2 and 3 included.
    pub fn parse(bytes: &[u8]) -> Result<DispatcherConfig, String> {
        let [magic, version, count, frags, ..] = *bytes else {
            return Err(format!("its configuration has {} bytes", bytes.len()));
        };
        if magic != MAGIC {
            return Err(format!(
                "its configuration begins with {magic} instead of {MAGIC}: it is older than version 2"
            ));
        }
        if !matches!(version, 2 | 3) {
            return Err(format!("its protocol has version {version}; 2 and 3 are known"));
        }
        if bytes.len() != DispatcherConfig::bytes(version) || usize::from(count) > SLOTS {
            return Err(format!("its configuration has {} bytes and {count} programs", bytes.len()));
        }
        let word = |at: usize| bytes[at..at + 4].first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
        let slot = |i: usize| DispatcherSlot {
            priority: word(PRIORITIES + 4 * i),
            chain_on: word(CHAIN_ON + 4 * i) & !(1 << EMPTY),
            frags: word(FLAGS + 4 * i) & FRAGS != 0,
        };
        Ok(DispatcherConfig {
            version,
            frags: frags != 0,
            device_bound: bytes.get(BYTES).is_some_and(|b| *b != 0),
            slots: (0..count.into()).map(slot).collect(),
        })
    }
}

const fn slot(opcode: u8, dst: u8, src: u8, off: i16, imm: i32) -> Slot {
    Slot { opcode, dst, src, off, imm }
}

/// Where the functions of [`program`] begin: the main one, then the slots.
pub(super) fn functions() -> [usize; SLOTS + 1] {
    std::array::from_fn(|i| if i == 0 { 0 } else { MAIN + (i - 1) * STUB.len() })
}

/// Slots of each step of the main function, and of all of it.
const STEP: usize = 8;
const HEAD: usize = 3;
const MAIN: usize = HEAD + STEP * SLOTS + 2;
const EXIT: Slot = slot(op::EXIT, 0, 0, 0, 0);
/// A function that nobody has replaced.
const STUB: [Slot; 2] = [slot(0xb4, 0, 0, 0, EMPTY as i32), EXIT];

/// The dispatcher itself; `map` is the descriptor of its configuration.
///
/// The configuration is constant and known to the kernel's verifier, so what lies behind the last program is removed from
/// the code, and so are the comparisons with their number.
pub(super) fn program(map: i32) -> Vec<Slot> {
    // Context to r6, configuration to r7.
    let mut out = vec![slot(0xbf, 6, 1, 0, 0), slot(op::LD_IMM64, 7, 2, 0, map), slot(0, 0, 0, 0, 0)];
    let starts = functions();
    for i in 0..SLOTS {
        let left = (SLOTS - i) * STEP;
        let call = out.len() + 3;
        out.extend([
            // if (config->count <= i) goto pass;
            slot(0x71, 1, 7, 2, 0),
            slot(0xb5, 1, 0, left as i16 - 2, i as i32),
            // verdict = slot(context);
            slot(0xbf, 1, 6, 0, 0),
            slot(op::CALL, 0, 1, 0, (starts[i + 1] - call - 1) as i32),
            // if (!(config->chain_on[i] >> verdict & 1)) return verdict;
            slot(0x61, 2, 7, (CHAIN_ON + 4 * i) as i16, 0),
            slot(0x7c, 2, 0, 0, 0),
            slot(0x46, 2, 0, 1, 1),
            EXIT,
        ]);
    }
    // pass: return XDP_PASS;
    out.extend([slot(0xb4, 0, 0, 0, 2), EXIT]);
    out.extend([STUB; SLOTS].concat());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_as_it_was_written() {
        let slot = |priority, frags| DispatcherSlot { priority, chain_on: 0b110, frags };
        for version in [2, 3] {
            let config = DispatcherConfig::new(version, vec![slot(10, true), slot(50, false)]);
            let bytes = config.to_bytes();
            assert_eq!(bytes.len(), if version == 2 { 124 } else { 128 });
            assert_eq!(bytes[..4], [236, version, 2, 0]);
            // The bit of empty slots stands in the structure, not in what is read.
            assert_eq!(bytes[4..8], (1 << 31 | 0b110u32).to_ne_bytes());
            assert_eq!(bytes[84..88], 32u32.to_ne_bytes());
            assert_eq!(DispatcherConfig::parse(&bytes), Ok(config));
        }
        assert!(DispatcherConfig::new(2, vec![slot(1, true)]).frags);
    }

    #[test]
    fn what_is_not_the_protocol_is_refused_with_the_reason() {
        let refused = |bytes: &[u8]| DispatcherConfig::parse(bytes).unwrap_err();
        let good = DispatcherConfig::new(2, Vec::new()).to_bytes();
        let with = |at: usize, byte: u8| [&good[..at], &[byte], &good[at + 1..]].concat();
        assert!(refused(&[]).contains("0 bytes"));
        assert!(refused(&with(0, 3)).contains("older than version 2"));
        assert!(refused(&with(1, 4)).contains("version 4"));
        assert!(refused(&with(2, 11)).contains("11 programs"));
        assert!(refused(&good[..100]).contains("100 bytes"));
    }

    #[test]
    fn each_step_calls_its_slot_and_leaves_where_it_should() {
        let insns = program(7);
        let starts = functions();
        assert_eq!(insns.len(), starts[SLOTS] + 2);
        for (i, start) in starts.iter().skip(1).enumerate() {
            let at = HEAD + i * STEP;
            let out = at + 2 + insns[at + 1].off as usize;
            assert_eq!(out, MAIN - 2, "step {i} leaves for the end when there is no program");
            assert_eq!((at + 4) as i32 + insns[at + 3].imm, *start as i32, "step {i} calls its slot");
        }
        assert_eq!(xway_isa::decode(&insns).map(|d| d.len()), Ok(insns.len()));
    }
}
