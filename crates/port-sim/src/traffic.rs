//! Packets that lie ready in memory, and the order in which they come.

/// Order of the flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// One after the other, again and again.
    #[default]
    Scan,
    /// Drawn at random, all alike.
    Uniform,
    /// Drawn at random; the n-th flow comes 1/n as often as the first.
    Zipf,
}

/// Packets to play.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// All packets, each from a multiple of 64 bytes on, so that short ones lie in one cache line.
    bytes: Vec<u8>,
    /// Where each packet lies: offset in units of [`STEP`], and length.
    places: Vec<(u32, u32)>,
    /// Indices of packets, played round and round; its length is a power of two.
    order: Vec<u32>,
    longest: usize,
}

/// [`Traffic`] as where its parts lie, which no store into a packet can change.
#[derive(Clone, Copy)]
pub(crate) struct Packets<'t> {
    bytes: &'t [u8],
    places: &'t [(u32, u32)],
    order: &'t [u32],
}

impl<'t> Packets<'t> {
    /// Number of packets after which the order repeats.
    #[inline]
    pub(crate) fn period(self) -> usize {
        self.order.len()
    }

    /// The packet at this place of the order, which is less than the period, with as much of the memory behind it as makes whole
    /// cache lines; and its length.
    #[inline]
    pub(crate) fn at(self, turn: usize) -> (&'t [u8], usize) {
        let (step, len) = self.places[self.order[turn] as usize];
        let from = step as usize * STEP;
        (&self.bytes[from..from + (len as usize).next_multiple_of(STEP)], len as usize)
    }
}

const STEP: usize = 64;
/// Draws before a random order repeats.
const DRAWS: usize = 1 << 16;
/// The most bytes of packets.
const BYTES_MAX: usize = 1 << 32;

/// Why traffic cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// No flow, or more than addresses and memory suffice for.
    #[error("{0} flows: from 1 to {max}", max = Traffic::FLOWS_MAX)]
    Flows(u32),
    /// A size that a UDP packet cannot have.
    #[error("packets of {0} bytes: from 60 to 65535, the Ethernet header included, the checksum of the frame not")]
    Size(usize),
    /// Nothing to play.
    #[error("no packets to play")]
    Empty,
    /// More than 4 GiB of packets.
    #[error("more than 4 GiB of packets")]
    TooMuch,
}

impl Traffic {
    /// The most flows of [`Traffic::udp`].
    pub const FLOWS_MAX: u32 = 1 << 22;

    /// UDP packets of `size` bytes (without the frame's checksum, as programs see them) in `flows` flows: Ethernet, IPv4, UDP,
    /// with correct checksums. Flow `n` comes from 10.0.0.0 + n, port 1024 + n mod 32768, and goes to 192.168.0.1, port 9. The same seed
    /// gives the same order.
    ///
    /// # Errors
    /// [`TrafficError::Flows`], [`TrafficError::Size`], [`TrafficError::TooMuch`].
    pub fn udp(flows: u32, size: usize, pattern: Pattern, seed: u64) -> Result<Traffic, TrafficError> {
        if flows == 0 || flows > Traffic::FLOWS_MAX {
            return Err(TrafficError::Flows(flows));
        }
        if !(60..=65_535).contains(&size) {
            return Err(TrafficError::Size(size));
        }
        let mut traffic = Traffic::packed((0..flows).map(|flow| udp_packet(flow, size)))?;
        traffic.order = order(flows, pattern, seed);
        Ok(traffic)
    }

    /// These packets, in this order, round and round.
    ///
    /// # Errors
    /// [`TrafficError::Empty`], [`TrafficError::TooMuch`].
    pub fn replay<P: AsRef<[u8]>>(packets: impl IntoIterator<Item = P>) -> Result<Traffic, TrafficError> {
        Traffic::packed(packets)
    }

    /// These packets; `order` names them by index, and indices beyond the last one start again from the first.
    ///
    /// # Errors
    /// [`TrafficError::Empty`], [`TrafficError::TooMuch`].
    pub fn ordered<P: AsRef<[u8]>>(
        packets: impl IntoIterator<Item = P>,
        order: impl IntoIterator<Item = u32>,
    ) -> Result<Traffic, TrafficError> {
        let mut traffic = Traffic::packed(packets)?;
        let count = traffic.places.len() as u32;
        traffic.order = order.into_iter().map(|index| index % count).collect();
        if traffic.order.is_empty() { Err(TrafficError::Empty) } else { Ok(traffic) }
    }

    fn packed<P: AsRef<[u8]>>(packets: impl IntoIterator<Item = P>) -> Result<Traffic, TrafficError> {
        let mut traffic = Traffic { bytes: Vec::new(), places: Vec::new(), order: Vec::new(), longest: 0 };
        for packet in packets {
            let packet = packet.as_ref();
            let at = traffic.bytes.len();
            let end = (at + packet.len()).next_multiple_of(STEP);
            if end > BYTES_MAX {
                return Err(TrafficError::TooMuch);
            }
            traffic.places.push(((at / STEP) as u32, packet.len() as u32));
            traffic.bytes.extend_from_slice(packet);
            traffic.bytes.resize(end, 0);
            traffic.longest = traffic.longest.max(packet.len());
        }
        if traffic.places.is_empty() {
            return Err(TrafficError::Empty);
        }
        traffic.order = (0..traffic.places.len() as u32).collect();
        Ok(traffic)
    }

    /// Number of different packets.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Never: there is at least one packet.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Length of the longest packet.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Number of packets after which the order repeats.
    pub fn period(&self) -> usize {
        self.order.len()
    }

    /// All packets, to walk through.
    #[inline]
    pub(crate) fn packets(&self) -> Packets<'_> {
        Packets { bytes: &self.bytes, places: &self.places, order: &self.order }
    }

    /// The packet at this place of the order, round and round.
    pub fn packet(&self, turn: usize) -> &[u8] {
        let (bytes, len) = self.packets().at(turn % self.order.len());
        &bytes[..len]
    }
}

fn order(flows: u32, pattern: Pattern, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    match pattern {
        Pattern::Scan => (0..flows).collect(),
        Pattern::Uniform => {
            let draws = DRAWS.max(flows as usize * 2);
            (0..draws).map(|_| (random.next() % u64::from(flows)) as u32).collect()
        }
        Pattern::Zipf => {
            let mut sums = Vec::with_capacity(flows as usize);
            let mut sum = 0.0;
            for flow in 1..=flows {
                sum += 1.0 / f64::from(flow);
                sums.push(sum);
            }
            let draw = |random: &mut Random| {
                let at = (random.next() >> 11) as f64 / (1u64 << 53) as f64 * sum;
                sums.partition_point(|&s| s <= at).min(flows as usize - 1) as u32
            };
            (0..DRAWS.max(flows as usize * 2)).map(|_| draw(&mut random)).collect()
        }
    }
}

/// SplitMix64: small, and good enough to draw flows.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn udp_packet(flow: u32, size: usize) -> Vec<u8> {
    let mut packet = vec![0; size];
    packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip_len = (size - 14) as u16;
    let ip = &mut packet[14..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
    (ip[8], ip[9]) = (64, 17);
    ip[12..16].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
    ip[16..20].copy_from_slice(&[192, 168, 0, 1]);
    let sum = !folded(0, &ip[..20]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let port = 1024 + (flow % 32_768) as u16;
    ip[20..22].copy_from_slice(&port.to_be_bytes());
    ip[22..24].copy_from_slice(&9u16.to_be_bytes());
    ip[24..26].copy_from_slice(&(ip_len - 20).to_be_bytes());
    // RFC 768: over the addresses, the protocol, the length and the datagram; a sum of 0 is sent as ones.
    let pseudo = 17 + u32::from(ip_len - 20);
    let sum = match !folded(pseudo, &ip[12..]) {
        0 => 0xffff,
        sum => sum,
    };
    ip[26..28].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The Internet checksum's sum (RFC 1071), not inverted.
fn folded(start: u32, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)])));
    let mut sum = start + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_correct_checksums() {
        for (flow, size) in [(0, 60), (77, 64), (40_000, 1514)] {
            let packet = udp_packet(flow, size);
            assert_eq!(folded(0, &packet[14..34]), 0xffff);
            assert_eq!(folded(17 + (size as u32 - 34), &packet[26..]), 0xffff);
        }
    }

    #[test]
    fn orders_are_what_they_say() {
        let traffic = |pattern| Traffic::udp(100, 64, pattern, 7).unwrap();
        assert_eq!(traffic(Pattern::Scan).order, (0..100).collect::<Vec<_>>());
        let counts = |pattern| {
            let mut counts = [0u32; 100];
            traffic(pattern).order.iter().for_each(|&flow| counts[flow as usize] += 1);
            counts
        };
        assert!(counts(Pattern::Uniform).iter().all(|&n| (500..800).contains(&n)));
        let zipf = counts(Pattern::Zipf);
        assert!(zipf[0] > zipf[1] && zipf[1] > zipf[9] && zipf[9] > zipf[99] && zipf[99] > 0, "{zipf:?}");
        assert_eq!(traffic(Pattern::Zipf).order, traffic(Pattern::Zipf).order, "a seed repeats a run");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Traffic::udp(0, 64, Pattern::Scan, 1).unwrap_err(), TrafficError::Flows(0));
        assert_eq!(Traffic::udp(1, 59, Pattern::Scan, 1).unwrap_err(), TrafficError::Size(59));
        assert_eq!(Traffic::replay(Vec::<Vec<u8>>::new()).unwrap_err(), TrafficError::Empty);
        let traffic = Traffic::ordered([b"one".as_slice(), b"three"], [1, 0, 3]).unwrap();
        assert_eq!(
            (traffic.packet(0), traffic.packet(1), traffic.packet(2)),
            (&b"three"[..], &b"one"[..], &b"three"[..])
        );
    }
}
