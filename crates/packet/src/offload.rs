//! What a sender leaves to its hardware, done in software: checksums, and cutting long TCP and UDP packets.
//!
//! A stack on the same machine hands over packets that no wire ever carries: with a checksum that covers only the pseudo
//! header, or 64 KiB long with a note of where to cut. The note is `struct virtio_net_hdr` (`linux/virtio_net.h`, ten bytes,
//! native byte order); packet sockets, TAP devices and virtual machines use the same one.
//!
//! ```
//! use xway_packet::offload::{VnetHeader, complete_checksum};
//! let header = VnetHeader::parse(&[1, 0, 0, 0, 0, 0, 34, 0, 6, 0]);
//! let mut packet = [0u8; 60];
//! if header.needs_checksum() {
//!     complete_checksum(&mut packet, header.csum_start.into(), header.csum_offset.into());
//! }
//! ```

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VnetHeader {
    /// `VIRTIO_NET_HDR_F_*`.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`, with the bit for explicit congestion notification.
    pub gso_type: u8,
    /// Length of all headers, a hint only.
    pub hdr_len: u16,
    /// Payload of each packet after cutting, bytes.
    pub gso_size: u16,
    /// Where the bytes start that the checksum covers.
    pub csum_start: u16,
    /// Where the checksum stands, counted from there.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Its length on the way, bytes.
    pub const LEN: usize = 10;
    /// Flag: the checksum is to be completed.
    pub const NEEDS_CSUM: u8 = 1;

    /// Reads one.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> VnetHeader {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = *bytes;
        VnetHeader {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// Whether the sender left the checksum to us.
    pub const fn needs_checksum(&self) -> bool {
        self.flags & Self::NEEDS_CSUM != 0
    }

    /// Whether the packet is to be cut.
    pub const fn is_long(&self) -> bool {
        self.gso_type & !GSO_ECN != GSO_NONE
    }
}

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Completes an Internet checksum that covers everything from `start` on and whose field, `offset` behind `start`, holds the
/// sum of the pseudo header so far (RFC 1071). Out of range, nothing is changed. Cost: one pass over the covered bytes.
pub fn complete_checksum(packet: &mut [u8], start: usize, offset: usize) {
    let Some(covered) = packet.get_mut(start..) else { return };
    let Some(field) = offset.checked_add(2).filter(|&end| end <= covered.len()) else { return };
    let sum = finish(sum(covered));
    covered[offset..field].copy_from_slice(&sum.to_be_bytes());
}

/// Sum of 16-bit words in network order; an odd byte at the end counts as the upper half of a word.
fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

/// The checksum for a sum. Zero means "no checksum" in UDP; the other representation of zero is as good everywhere.
fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}

/// A long packet and how to cut it: TCP over IPv4 and IPv6, and UDP whose datagrams have one size.
///
/// The cuts carry correct lengths, identifications, sequence numbers, flags and checksums, as RFC 9293 and the segmentation of
/// Linux have it: FIN and PSH on the last one only, CWR on the first one only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segments {
    /// Where the IP header starts.
    ip: usize,
    v6: bool,
    /// Where the TCP or UDP header starts.
    transport: usize,
    udp: bool,
    /// Where the payload starts, and where it ends.
    payload: usize,
    end: usize,
    size: usize,
}

/// Header of a packet, in front of its payload.
const IPV4_MIN: usize = 20;
const IPV6: usize = 40;
const TCP_MIN: usize = 20;
const UDP: usize = 8;

impl Segments {
    /// How to cut `packet`; `None` when the header asks for something else (fragments of UDP, tunnels) or does not fit the
    /// packet.
    pub fn of(header: &VnetHeader, packet: &[u8]) -> Option<Segments> {
        let (v6, udp) = match header.gso_type & !GSO_ECN {
            GSO_TCPV4 => (false, false),
            GSO_TCPV6 => (true, false),
            // Both versions: the packet says which.
            GSO_UDP_L4 => (false, true),
            _ => return None,
        };
        if !header.needs_checksum() || header.gso_size == 0 {
            return None;
        }
        let half = |at: usize| packet.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        let (mut ip, mut ethertype) = (14, half(12)?);
        while matches!(ethertype, 0x8100 | 0x88a8) {
            ethertype = half(ip + 2)?;
            ip += 4;
        }
        let is_v6 = match ethertype {
            0x0800 => false,
            0x86dd => true,
            _ => return None,
        };
        let transport = usize::from(header.csum_start);
        let ip_len = transport.checked_sub(ip)?;
        let fits = if is_v6 { ip_len >= IPV6 } else { ip_len >= IPV4_MIN };
        if !fits || (!udp && v6 != is_v6) {
            return None;
        }
        let transport_len = match udp {
            true => UDP,
            false => usize::from(packet.get(transport + 12)? >> 4) * 4,
        };
        let payload = transport + transport_len;
        let shortest = if udp { UDP } else { TCP_MIN };
        if transport_len < shortest || payload >= packet.len() {
            return None;
        }
        let (end, size) = (packet.len(), usize::from(header.gso_size));
        Some(Segments { ip, v6: is_v6, transport, udp, payload, end, size })
    }

    /// Number of packets, at least 1.
    pub fn count(&self) -> usize {
        (self.end - self.payload).div_ceil(self.size)
    }

    /// Length of packet number `index`, which is below the count.
    pub fn len_of(&self, index: usize) -> usize {
        self.payload + self.size.min(self.end - self.payload - index * self.size)
    }

    /// Writes packet number `index` (below the count) of the long `packet` into `to`, which has its length.
    pub fn write(&self, packet: &[u8], index: usize, to: &mut [u8]) {
        let (skip, len) = (index * self.size, to.len());
        to[..self.payload].copy_from_slice(&packet[..self.payload]);
        to[self.payload..].copy_from_slice(&packet[self.payload + skip..][..len - self.payload]);
        let (ip, transport) = (self.ip, self.transport);
        let transport_len = len - transport;
        // A total length of an IP packet fits 16 bits, as the cuts of a sane size do; a larger one is nobody's to deliver.
        let protocol: u8 = if self.udp { 17 } else { 6 };
        let pseudo = if self.v6 {
            to[ip + 4..ip + 6].copy_from_slice(&((len - ip - IPV6) as u16).to_be_bytes());
            sum(&to[ip + 8..ip + 40])
        } else {
            to[ip + 2..ip + 4].copy_from_slice(&((len - ip) as u16).to_be_bytes());
            let id = u16::from_be_bytes([to[ip + 4], to[ip + 5]]).wrapping_add(index as u16);
            to[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
            to[ip + 10..ip + 12].fill(0);
            let sum_ip = finish(sum(&to[ip..transport]));
            to[ip + 10..ip + 12].copy_from_slice(&sum_ip.to_be_bytes());
            sum(&to[ip + 12..ip + 20])
        };
        let check = if self.udp {
            to[transport + 4..transport + 6].copy_from_slice(&(transport_len as u16).to_be_bytes());
            transport + 6
        } else {
            let first = packet[transport + 4..transport + 8].first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
            to[transport + 4..transport + 8].copy_from_slice(&first.wrapping_add(skip as u32).to_be_bytes());
            const FIN_PSH: u8 = 0x09;
            const CWR: u8 = 0x80;
            if index + 1 < self.count() {
                to[transport + 13] &= !FIN_PSH;
            }
            if index > 0 {
                to[transport + 13] &= !CWR;
            }
            transport + 16
        };
        to[check..check + 2].fill(0);
        let total = pseudo + u64::from(protocol) + transport_len as u64 + sum(&to[transport..]);
        to[check..check + 2].copy_from_slice(&finish(total).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet from 10.0.0.1 to 10.0.0.2 with a transport header of zeros but for its length, and a pattern as payload.
    fn packet(protocol: u8, header: &[u8], payload: usize) -> Vec<u8> {
        let mut out = vec![0; 14];
        out[12] = 8;
        let len = (20 + header.len() + payload) as u16;
        out.extend([0x45, 0, (len >> 8) as u8, len as u8, 0, 9, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let check = finish(sum(&out[14..34]));
        out[24..26].copy_from_slice(&check.to_be_bytes());
        out.extend(header);
        out.extend((0..payload).map(|i| (i * 7) as u8));
        out
    }

    fn udp(payload: usize) -> Vec<u8> {
        let len = (8 + payload) as u16;
        packet(17, &[0, 7, 0, 8, (len >> 8) as u8, len as u8, 0, 0], payload)
    }

    fn tcp(payload: usize) -> Vec<u8> {
        let mut header = [0; 20];
        header[12] = 0x50;
        packet(6, &header, payload)
    }

    /// What a sender leaves in the field: the folded sum of the pseudo header.
    fn partial(
        mut packet: Vec<u8>,
        addresses: std::ops::Range<usize>,
        protocol: u8,
        transport: usize,
        at: usize,
    ) -> Vec<u8> {
        let mut total = sum(&packet[addresses]) + u64::from(protocol) + (packet.len() - transport) as u64;
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        packet[at..at + 2].copy_from_slice(&(total as u16).to_be_bytes());
        packet
    }

    #[test]
    fn a_checksum_left_to_hardware_is_completed() {
        let whole = {
            let mut packet = udp(33);
            let total = sum(&packet[26..34]) + 17 + 41 + sum(&packet[34..]);
            packet[40..42].copy_from_slice(&finish(total).to_be_bytes());
            packet
        };
        let mut packet = partial(whole.clone(), 26..34, 17, 34, 40);
        assert_ne!(packet, whole);
        complete_checksum(&mut packet, 34, 6);
        assert_eq!(packet, whole);
    }

    #[test]
    fn positions_out_of_range_change_nothing() {
        let packet = [7u8; 20];
        for (start, offset) in [(21, 0), (20, 0), (0, 19), (65535, 65535), (19, 0)] {
            let mut copy = packet;
            complete_checksum(&mut copy, start, offset);
            assert_eq!(copy, packet, "start {start} offset {offset}");
        }
    }

    #[test]
    fn datagrams_of_one_size_are_cut_into_whole_ones() {
        let long = udp(2500);
        let header =
            VnetHeader { flags: 1, gso_type: GSO_UDP_L4, gso_size: 1000, csum_start: 34, csum_offset: 6, hdr_len: 0 };
        let cut = Segments::of(&header, &long).unwrap();
        assert_eq!(cut.count(), 3);
        for index in 0..3 {
            let mut out = vec![0; cut.len_of(index)];
            cut.write(&long, index, &mut out);
            let payload = &long[42 + index * 1000..(42 + index * 1000 + 1000).min(long.len())];
            assert_eq!(out[42..], *payload);
            assert_eq!(finish(sum(&out[14..34])), 0xffff, "IP checksum of {index}");
            let total = sum(&out[26..34]) + 17 + (out.len() - 34) as u64 + sum(&out[34..]);
            assert_eq!(finish(total), 0xffff, "UDP checksum of {index}");
            assert_eq!(usize::from(u16::from_be_bytes([out[38], out[39]])), out.len() - 34);
        }
    }

    #[test]
    fn a_long_tcp_packet_is_cut_with_sequence_numbers_and_flags() {
        let mut long = tcp(2100);
        let seq = 0xffff_fff0u32;
        long[38..42].copy_from_slice(&seq.to_be_bytes());
        long[47] = 0x99; // CWR, ACK, PSH, FIN
        let header = VnetHeader {
            flags: 1,
            gso_type: GSO_TCPV4 | GSO_ECN,
            gso_size: 700,
            csum_start: 34,
            csum_offset: 16,
            hdr_len: 0,
        };
        let cut = Segments::of(&header, &long).unwrap();
        let mut whole = Vec::new();
        for index in 0..cut.count() {
            let mut out = vec![0; cut.len_of(index)];
            cut.write(&long, index, &mut out);
            let got = u32::from_be_bytes([out[38], out[39], out[40], out[41]]);
            assert_eq!(got, seq.wrapping_add(700 * index as u32));
            assert_eq!(out[47], [0x90, 0x10, 0x19][index], "flags of {index}");
            let total = sum(&out[26..34]) + 6 + (out.len() - 34) as u64 + sum(&out[34..]);
            assert_eq!(finish(total), 0xffff, "TCP checksum of {index}");
            whole.extend_from_slice(&out[54..]);
        }
        assert_eq!(whole, long[54..]);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let long = tcp(2100);
        let good =
            VnetHeader { flags: 1, gso_type: GSO_TCPV4, gso_size: 700, csum_start: 34, csum_offset: 16, hdr_len: 0 };
        assert!(Segments::of(&good, &long).is_some());
        for bad in [
            VnetHeader { gso_type: 3, ..good },
            VnetHeader { gso_type: GSO_TCPV6, ..good },
            VnetHeader { gso_size: 0, ..good },
            VnetHeader { flags: 0, ..good },
            VnetHeader { csum_start: 33, ..good },
            VnetHeader { csum_start: 2150, ..good },
            VnetHeader { csum_start: u16::MAX, ..good },
        ] {
            assert_eq!(Segments::of(&bad, &long), None, "{bad:?}");
        }
        for len in 0..55 {
            assert_eq!(Segments::of(&good, &long[..len]), None, "{len} bytes");
        }
    }
}
