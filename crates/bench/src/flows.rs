//! Which packets come, in which order.
//!
//! A *flow* is a number. [`Space`] makes the fields of a packet from it, [`Pattern`] the order in which flows come, [`Ring`]
//! the list of packets that both sides walk through.

/// The order in which flows come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Always flow 0.
    Single,
    /// Each packet of a flow drawn at random.
    Uniform,
    /// Flow n with a probability near 1/(n+1): few flows carry most packets.
    Zipf,
    /// Flow 0, 1, 2, … and again from the start.
    Scan,
    /// As [`Pattern::Scan`]; the lowest bit of the destination port is 0 for so many packets, then 1 for as many; with 0
    /// it is random.
    Runs(u32),
}

impl Pattern {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Pattern::Single => "single",
            Pattern::Uniform => "uniform",
            Pattern::Zipf => "zipf",
            Pattern::Scan => "scan",
            Pattern::Runs(_) => "runs",
        }
    }
}

/// How a flow's number becomes addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Space {
    /// A source address of its own, all over IPv4; one service (198.18.1.1, port 80).
    #[default]
    Sources,
    /// A destination inside the prefix of the same number, see [`prefix`].
    Prefixes,
}

/// The fields of a packet that differ from flow to flow, in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields {
    /// IPv4 source.
    pub source: [u8; 4],
    /// IPv4 destination.
    pub destination: [u8; 4],
    /// Source port, destination port.
    pub ports: [u8; 4],
}

/// The service that flows go to.
pub const SERVICE: [u8; 4] = [198, 18, 1, 1];
/// Its port.
pub const SERVICE_PORT: u16 = 80;

impl Fields {
    /// Of a flow.
    pub fn of(flow: u32, space: Space) -> Fields {
        // Two rounds of multiply and fold with odd factors: every flow has an address of its own, in no order.
        let spread = mix32(flow ^ 0x5bd1_e995);
        let source_port = 1024 + (mix32(flow.wrapping_add(0x9e37_79b9)) % 60000) as u16;
        let mut ports = [0; 4];
        ports[..2].copy_from_slice(&source_port.to_be_bytes());
        ports[2..].copy_from_slice(&SERVICE_PORT.to_be_bytes());
        match space {
            Space::Sources => Fields { source: spread.to_be_bytes(), destination: SERVICE, ports },
            Space::Prefixes => {
                let (length, address) = prefix(flow);
                let host = mix32(flow ^ 0x2545_f491) & !mask(length);
                let destination = u32::from_be_bytes(address) | host;
                Fields { source: spread.to_be_bytes(), destination: destination.to_be_bytes(), ports }
            }
        }
    }

    /// The 16 bytes of a flow's key in the programs' tables (`struct flow` of `bpf/bench/flow.h`).
    pub fn tuple(&self, protocol: u8) -> [u8; 16] {
        let mut key = [0; 16];
        key[..4].copy_from_slice(&self.source);
        key[4..8].copy_from_slice(&self.destination);
        key[8..12].copy_from_slice(&self.ports);
        key[12..].copy_from_slice(&u32::from(protocol).to_ne_bytes());
        key
    }
}

/// A bijection of 32-bit numbers without visible order.
pub fn mix32(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// The prefix of this number: length and address. Lengths are distributed about as in the Internet's routing table: six in
/// ten are /24, most others /16 to /23, few shorter. Two numbers can give the same prefix.
pub fn prefix(number: u32) -> (u32, [u8; 4]) {
    let length = match mix32(number ^ 0x1b87_3593) % 100 {
        0..60 => 24,
        share @ 60..97 => 16 + share % 8,
        share => 8 + share % 8,
    };
    (length, (mix32(number) & mask(length)).to_be_bytes())
}

fn mask(length: u32) -> u32 {
    u32::MAX << (32 - length)
}

/// Small, seeded and the same everywhere (SplitMix64).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// From 0 up to 1.
    fn unit(&mut self) -> f64 {
        (self.u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Bytes of one packet in the ring: source, destination, ports and four bytes that nobody reads.
pub const ENTRY: usize = 16;

/// The packets that both sides walk through, again and again. A power of two of them.
#[derive(Clone, Debug)]
pub struct Ring {
    /// [`ENTRY`] bytes each.
    pub bytes: Vec<u8>,
    /// The flow of each.
    pub flows: Vec<u32>,
}

/// Most packets in a ring: 64 MiB of entries.
pub const RING_MAX: u32 = 1 << 22;

impl Ring {
    /// A ring of packets of `flows` flows. Its length is the least power of two that holds every flow once and is larger
    /// than twice the second-level cache, but at most [`RING_MAX`].
    pub fn new(flows: u32, space: Space, pattern: Pattern, seed: u64) -> Ring {
        let flows = flows.max(1);
        let least = (2 * l2_bytes() / ENTRY) as u32;
        // As 64 bits: behind the largest numbers of flows there is no power of two, and no number more, in 32.
        let len = u64::from(flows.max(least)).next_power_of_two().min(RING_MAX.into()) as u32;
        let mut rng = Rng(seed);
        let scale = (f64::from(flows) + 1.0).ln();
        let mut bytes = Vec::with_capacity(len as usize * ENTRY);
        let mut order = Vec::with_capacity(len as usize);
        for n in 0..len {
            let flow = match pattern {
                Pattern::Single => 0,
                Pattern::Uniform => rng.below(flows),
                // The inverse of the continuous distribution with density 1/x.
                Pattern::Zipf => ((rng.unit() * scale).exp() as u32).clamp(1, flows) - 1,
                Pattern::Scan | Pattern::Runs(_) => n % flows,
            };
            let mut fields = Fields::of(flow, space);
            if let Pattern::Runs(run) = pattern {
                let odd = n.checked_div(run).unwrap_or_else(|| rng.u64() as u32) & 1;
                fields.ports[3] = SERVICE_PORT as u8 | odd as u8;
            }
            bytes.extend_from_slice(&fields.source);
            bytes.extend_from_slice(&fields.destination);
            bytes.extend_from_slice(&fields.ports);
            bytes.extend_from_slice(&[0; 4]);
            order.push(flow);
        }
        Ring { bytes, flows: order }
    }

    /// Packets.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The fields of packet `at`.
    pub fn entry(&self, at: usize) -> &[u8] {
        &self.bytes[at * ENTRY..(at + 1) * ENTRY]
    }
}

/// Bytes of the second-level cache of CPU 0; 1 MiB where the machine does not say.
pub fn l2_bytes() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
    let text = text.trim();
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let factor = match unit {
        "M" => 1 << 20,
        _ => 1 << 10,
    };
    number.parse::<usize>().map_or(1 << 20, |n| n * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_has_a_source_of_its_own() {
        let mut seen: Vec<_> = (0..50_000).map(|f| Fields::of(f, Space::Sources).source).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 50_000);
    }

    #[test]
    fn destinations_lie_in_their_prefix() {
        for flow in 0..1000 {
            let (length, address) = prefix(flow);
            let inside = u32::from_be_bytes(Fields::of(flow, Space::Prefixes).destination) & mask(length);
            assert_eq!(inside.to_be_bytes(), address);
        }
    }

    #[test]
    fn patterns_are_what_they_say() {
        let ring = |pattern| Ring::new(1000, Space::Sources, pattern, 1);
        assert!(ring(Pattern::Single).flows.iter().all(|f| *f == 0));
        assert_eq!(ring(Pattern::Scan).flows[..3], [0, 1, 2]);
        let count = |pattern, flow| ring(pattern).flows.iter().filter(|f| **f == flow).count();
        assert!(count(Pattern::Zipf, 0) > 20 * count(Pattern::Zipf, 500).max(1));
        let uniform = ring(Pattern::Uniform);
        assert!(count(Pattern::Uniform, 7) < uniform.len() / 300 && uniform.flows.iter().all(|f| *f < 1000));
        let runs = ring(Pattern::Runs(8));
        let odd: Vec<u8> = (0..16).map(|n| runs.entry(n)[11] & 1).collect();
        assert_eq!(odd, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert!(uniform.len().is_power_of_two() && uniform.bytes.len() > l2_bytes());
    }

    #[test]
    fn there_may_be_more_flows_than_a_ring_has_packets() {
        for pattern in [Pattern::Zipf, Pattern::Scan] {
            let ring = Ring::new(u32::MAX, Space::Sources, pattern, 1);
            assert_eq!(ring.len(), RING_MAX as usize, "{pattern:?}");
            assert!(ring.flows.iter().all(|flow| *flow < u32::MAX), "{pattern:?}");
        }
    }
}
