//! What steering sees of a packet.

/// The fields of a packet that rules and hashes look at. What a packet does not have is 0 or `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// Ethernet destination, 48 bits.
    pub mac_dst: u64,
    /// Ethernet source.
    pub mac_src: u64,
    /// Protocol behind Ethernet and up to two VLAN tags.
    pub ether_type: u16,
    /// Outer VLAN tag's protocol, 0 without one.
    pub vlan_proto: u16,
    /// Its priority and id.
    pub vlan_tci: u16,
    /// IP version, 0 for other packets.
    pub ip: u8,
    /// Addresses; IPv4 in the low 32 bits.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Protocol behind IP and its extension headers.
    pub protocol: u8,
    /// Whether it is a piece of a fragmented packet: only the addresses of such tell the flow.
    pub fragment: bool,
    /// Ports, of TCP, UDP and SCTP.
    pub ports: Option<(u16, u16)>,
    /// First four bytes behind IP: ports, or the SPI of ESP.
    pub l4_data: Option<u32>,
    /// SPI of AH (behind its first four bytes).
    pub ah_spi: Option<u32>,
}

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ESP: u8 = 50;
pub(super) const AH: u8 = 51;
pub(super) const SCTP: u8 = 132;

/// Extension headers that are looked behind, at most.
const EXTENSIONS_MAX: usize = 8;

impl Flow {
    /// Reads a packet. What is cut off is as if it were not there. No allocation, bounded work.
    pub fn of(packet: &[u8]) -> Flow {
        let mut flow = Flow::default();
        let Some(header) = packet.first_chunk::<14>() else { return flow };
        flow.mac_dst = number(&header[..6]) as u64;
        flow.mac_src = number(&header[6..12]) as u64;
        let mut kind = u16::from_be_bytes([header[12], header[13]]);
        let mut at = 14;
        for tag in 0..2 {
            let (0x8100 | 0x88a8, Some(next)) = (kind, packet.get(at..at + 4)) else { break };
            if tag == 0 {
                (flow.vlan_proto, flow.vlan_tci) = (kind, u16::from_be_bytes([next[0], next[1]]));
            }
            kind = u16::from_be_bytes([next[2], next[3]]);
            at += 4;
        }
        flow.ether_type = kind;
        let rest = packet.get(at..).unwrap_or_default();
        match kind {
            0x0800 => flow.ipv4(rest),
            0x86dd => flow.ipv6(rest),
            _ => {}
        }
        flow
    }

    fn ipv4(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<20>() else { return };
        let len = usize::from(header[0] & 15) * 4;
        if header[0] >> 4 != 4 || len < 20 {
            return;
        }
        (self.ip, self.tos, self.protocol) = (4, header[1], header[9]);
        (self.src, self.dst) = (number(&header[12..16]), number(&header[16..20]));
        // More pieces follow, or pieces came before.
        self.fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        self.transport(packet.get(len..).unwrap_or_default());
    }

    fn ipv6(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<40>() else { return };
        if header[0] >> 4 != 6 {
            return;
        }
        (self.ip, self.tos) = (6, header[0] << 4 | header[1] >> 4);
        (self.src, self.dst) = (number(&header[8..24]), number(&header[24..40]));
        let (mut next, mut at) = (header[6], 40);
        for _ in 0..EXTENSIONS_MAX {
            let Some(extension) = packet.get(at..at + 8) else { break };
            match next {
                0 | 43 | 60 => at += (usize::from(extension[1]) + 1) * 8,
                44 => {
                    self.fragment |= u16::from_be_bytes([extension[2], extension[3]]) & 0xfff9 != 0;
                    at += 8;
                }
                _ => break,
            }
            next = extension[0];
        }
        self.protocol = next;
        self.transport(packet.get(at..).unwrap_or_default());
    }

    fn transport(&mut self, rest: &[u8]) {
        if self.fragment {
            return;
        }
        let Some(first) = rest.first_chunk::<4>() else { return };
        let data = u32::from_be_bytes(*first);
        self.l4_data = Some(data);
        if matches!(self.protocol, TCP | UDP | SCTP) {
            self.ports = Some(((data >> 16) as u16, data as u16));
        }
        if self.protocol == AH {
            self.ah_spi = rest.get(4..8).map(|spi| number(spi) as u32);
        }
    }
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv6 packet with a destination-options header and, perhaps, a fragment header before UDP.
    fn ipv6(fragment: Option<u16>) -> Vec<u8> {
        let mut packet = vec![2; 12];
        packet.extend([0x86, 0xdd, 0x6a, 0xb0, 0, 0, 0, 40, 60, 64]);
        packet.extend([0x20; 16]);
        packet.extend([0x30; 16]);
        packet.extend([if fragment.is_some() { 44 } else { 17 }, 0, 0, 0, 0, 0, 0, 0]);
        if let Some(offset) = fragment {
            packet.extend([17, 0, (offset >> 8) as u8, offset as u8, 0, 0, 0, 9]);
        }
        packet.extend([0x12, 0x34, 0, 53, 0, 8, 0, 0]);
        packet
    }

    #[test]
    fn ports_are_found_behind_extension_headers_but_not_in_fragments() {
        let whole = Flow::of(&ipv6(None));
        assert_eq!((whole.ip, whole.tos, whole.protocol, whole.ports), (6, 0xab, 17, Some((0x1234, 53))));
        assert_eq!((whole.src, whole.dst), (u128::from_be_bytes([0x20; 16]), u128::from_be_bytes([0x30; 16])));
        assert_eq!((Flow::of(&ipv6(Some(0x0100))).ports, Flow::of(&ipv6(Some(0x0001))).ports), (None, None));
        assert_eq!(Flow::of(&ipv6(Some(0))).ports, Some((0x1234, 53)), "a packet in one piece");
    }

    #[test]
    fn tags_are_looked_behind_and_cut_packets_do_no_harm() {
        let mut packet = vec![1; 12];
        packet.extend([0x88, 0xa8, 0x60, 0x05, 0x81, 0, 0, 7, 8, 0, 0x45, 0x10, 0, 28, 0, 0, 0, 0, 64, 6, 0, 0]);
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 1, 187]);
        let flow = Flow::of(&packet);
        assert_eq!((flow.vlan_proto, flow.vlan_tci, flow.ether_type), (0x88a8, 0x6005, 0x800));
        assert_eq!((flow.ip, flow.tos, flow.src, flow.ports), (4, 0x10, 0x0a00_0001, Some((80, 443))));
        for len in 0..packet.len() {
            assert!(Flow::of(&packet[..len]).ports.is_none());
        }
    }
}
