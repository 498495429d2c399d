//! Packets that generators send: UDP over IPv4 or IPv6.

use std::fmt;
use std::net::IpAddr;

use crate::ToolError;
use crate::traffic::Ports;

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// From six bytes in hexadecimal with colons between them.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(text: &str) -> Result<Mac, String> {
        let bytes: Option<Vec<u8>> =
            text.split(':').map(|b| u8::from_str_radix(b, 16).ok().filter(|_| b.len() <= 2)).collect();
        let bytes = bytes.and_then(|b| <[u8; 6]>::try_from(b).ok());
        bytes.map(Mac).ok_or_else(|| format!("{text}: not a hardware address such as 02:00:00:00:00:01"))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Who sends it.
    pub src_mac: Mac,
    /// Who gets it.
    pub dst_mac: Mac,
    /// Source address; the same family as the destination.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Routers that it may pass, and one more.
    pub hop_limit: u8,
    /// Length of the whole packet, bytes.
    pub len: usize,
}

const ETHERNET: usize = 14;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;

impl Udp {
    fn ip_len(&self) -> usize {
        if self.dst.is_ipv6() { 40 } else { 20 }
    }

    /// Destination ports in turn, for a generator: so many, from this one's on.
    pub fn ports(&self, count: u16) -> Ports {
        let at = (ETHERNET + self.ip_len()) as u32;
        Ports { first: self.dst_port, count, port_at: at + 2, checksum_at: at + 6 }
    }

    /// Its bytes, with checksums.
    ///
    /// # Errors
    /// Shorter than its headers, longer than a datagram can be, or addresses of two families.
    pub fn build(&self) -> Result<Vec<u8>, ToolError> {
        let headers = ETHERNET + self.ip_len() + UDP;
        if self.len < headers || self.len > 65_535 {
            let message = format!("a packet of {} bytes: its headers alone take {headers}", self.len);
            return Err(ToolError::Request(message));
        }
        let payload = self.len - headers;
        let length = (UDP + payload) as u16;
        let mut out = Vec::with_capacity(self.len);
        out.extend(self.dst_mac.0);
        out.extend(self.src_mac.0);
        // Of the pseudo header: addresses, length, protocol.
        let mut pseudo = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                out.extend([0x08, 0x00]);
                let start = out.len();
                out.extend([0x45, 0]);
                out.extend((20 + length).to_be_bytes());
                // Identification 0, not to be fragmented.
                out.extend([0, 0, 0x40, 0, self.hop_limit, PROTOCOL_UDP, 0, 0]);
                out.extend(src.octets());
                out.extend(dst.octets());
                let sum = checksum(&[&out[start..]]);
                out[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
                pseudo.extend(src.octets());
                pseudo.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                out.extend(length.to_be_bytes());
                out.extend([PROTOCOL_UDP, self.hop_limit]);
                out.extend(src.octets());
                out.extend(dst.octets());
                pseudo.extend(src.octets());
                pseudo.extend(dst.octets());
            }
            (src, dst) => return Err(ToolError::Request(format!("{src} and {dst} are of two families"))),
        }
        pseudo.extend([0, PROTOCOL_UDP]);
        pseudo.extend(length.to_be_bytes());
        let start = out.len();
        out.extend(self.src_port.to_be_bytes());
        out.extend(self.dst_port.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend([0, 0]);
        out.resize(self.len, 0);
        let sum = match checksum(&[&pseudo, &out[start..]]) {
            // 0 would say that there is none.
            0 => 0xffff,
            sum => sum,
        };
        out[start + 6..start + 8].copy_from_slice(&sum.to_be_bytes());
        Ok(out)
    }
}

/// The Internet checksum (RFC 1071) over pieces of even length but the last.
pub(crate) fn checksum(pieces: &[&[u8]]) -> u16 {
    let words =
        pieces.iter().flat_map(|p| p.chunks(2)).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b)));
    let mut sum = words.fold(0u64, |sum, word| sum + u64::from(word));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(v6: bool, len: usize) -> Udp {
        let [src, dst]: [IpAddr; 2] = match v6 {
            true => ["fe80::1".parse().unwrap(), "fe80::2".parse().unwrap()],
            false => ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        };
        let (src_mac, dst_mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        Udp { src_mac, dst_mac, src, dst, src_port: 1000, dst_port: 9, hop_limit: 1, len }
    }

    #[test]
    fn checksums_are_right() {
        for (v6, len) in [(true, 64), (true, 63), (false, 64), (false, 1500)] {
            let udp = datagram(v6, len);
            let bytes = udp.build().unwrap();
            assert_eq!(bytes.len(), len);
            let start = ETHERNET + udp.ip_len();
            // The sum over everything with its checksum in it is all ones.
            let addresses = if v6 { &bytes[ETHERNET + 8..start] } else { &bytes[ETHERNET + 12..start] };
            let length = ((len - start) as u16).to_be_bytes();
            assert_eq!(checksum(&[addresses, &[0, 17], &length, &bytes[start..]]), 0, "{v6} {len}");
            if !v6 {
                assert_eq!(checksum(&[&bytes[ETHERNET..start]]), 0);
            }
            let ports = udp.ports(4);
            assert_eq!(bytes[ports.port_at as usize..][..2], [0, 9]);
        }
        assert!(datagram(true, 61).build().is_err(), "no room for the headers");
        let mixed = Udp { src: "10.0.0.1".parse().unwrap(), ..datagram(true, 64) };
        assert!(mixed.build().is_err());
    }

    #[test]
    fn addresses_are_read_and_written() {
        let mac = Mac::parse("aa:bb:cc:0:1:2").unwrap();
        assert_eq!(mac.to_string(), "aa:bb:cc:00:01:02");
        assert!(["", "aa:bb", "aa:bb:cc:dd:ee:fg", "aa:bb:cc:dd:ee:ff:00"].iter().all(|t| Mac::parse(t).is_err()));
    }
}
