//! From a description to bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::checksum::internet;
use crate::describe::{Arp, Description, Ethernet, EthernetField, Icmp, Ipv4, Ipv6, Mac, Payload, Tcp, Udp, Vlans};
use crate::literal::{self, LiteralError};

/// Largest frame that can be described, bytes.
const FRAME_MAX: usize = 65_535 + 18;
/// Deepest nesting of tunnels.
const DEPTH_MAX: usize = 8;

const SRC_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const DST_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const SRC_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DST_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const SRC_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// Why a description makes no packet.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// Two headers of one layer.
    #[error("a packet cannot have both {0} and {1}; put the carried one into `inner`")]
    Both(&'static str, &'static str),
    /// A transport header without a network header.
    #[error("{0} needs an ipv4 or ipv6 header before it")]
    NoNetwork(&'static str),
    /// A field out of range.
    #[error("{field} is {value}; the largest possible is {max}")]
    Range {
        /// Field, as `vlan.pcp`.
        field: &'static str,
        /// What was given.
        value: u64,
        /// Largest allowed.
        max: u64,
    },
    /// A letter that is no TCP flag.
    #[error("tcp.flags has {0:?}; letters are S A F R P U E C")]
    TcpFlag(char),
    /// Options that could not be read.
    #[error("{0}: {1}")]
    Options(&'static str, LiteralError),
    /// Options too long.
    #[error("{0} takes at most 40 bytes")]
    OptionsTooLong(&'static str),
    /// Too long for a length field, or for a frame.
    #[error("the packet would have {0} bytes; the limit is {FRAME_MAX}")]
    TooLong(usize),
    /// Tunnels in tunnels.
    #[error("`inner` is nested more than {DEPTH_MAX} deep")]
    TooDeep,
}

impl Description {
    /// The packet's bytes.
    ///
    /// # Errors
    /// Headers that do not go together, fields out of range, more bytes than a frame can have.
    pub fn build(&self) -> Result<Vec<u8>, BuildError> {
        let frame = self.sized(self.link(true, 0)?)?;
        if frame.len() > FRAME_MAX { Err(BuildError::TooLong(frame.len())) } else { Ok(frame) }
    }

    /// The packet with the length that the description asks for.
    fn sized(&self, mut packet: Vec<u8>) -> Result<Vec<u8>, BuildError> {
        if let Some(pad) = self.pad.map(|p| p as usize) {
            if pad > FRAME_MAX {
                return Err(BuildError::TooLong(pad));
            }
            packet.resize(packet.len().max(pad), 0);
        }
        if let Some(cut) = self.truncate {
            packet.truncate(cut as usize);
        }
        Ok(packet)
    }

    /// Link header and everything in it. The innermost part is made first, because outer lengths and checksums need it.
    fn link(&self, outermost: bool, depth: usize) -> Result<Vec<u8>, BuildError> {
        let (mut next, body) = self.network(depth)?;
        let header = match &self.eth {
            Some(EthernetField::None) => None,
            Some(EthernetField::Header(h)) => Some(h.clone()),
            None if outermost || self.vlan.is_some() || self.arp.is_some() => Some(Ethernet::default()),
            None => None,
        };
        let Some(header) = header else { return Ok(body) };
        let tags = self.vlan.as_ref().map_or(&[][..], |Vlans(tags)| tags);
        let mut tag_bytes = Vec::new();
        for (at, tag) in tags.iter().enumerate().rev() {
            check("vlan.id", tag.id.into(), 4095)?;
            check("vlan.pcp", tag.pcp.into(), 7)?;
            let tci = tag.id | (u16::from(tag.dei) << 12) | (u16::from(tag.pcp) << 13);
            let mut bytes = tci.to_be_bytes().to_vec();
            bytes.extend(tag.ether_type.unwrap_or(next).to_be_bytes());
            bytes.append(&mut tag_bytes);
            tag_bytes = bytes;
            next = tag.tpid.unwrap_or(if at + 1 < tags.len() { 0x88a8 } else { 0x8100 });
        }
        let mut frame = header.dst.unwrap_or(DST_MAC).0.to_vec();
        frame.extend(header.src.unwrap_or(SRC_MAC).0);
        frame.extend(header.ether_type.unwrap_or(next).to_be_bytes());
        frame.extend(tag_bytes);
        frame.extend(body);
        Ok(frame)
    }

    /// Network header and what it carries, with the EtherType that announces it.
    fn network(&self, depth: usize) -> Result<(u16, Vec<u8>), BuildError> {
        let present = [(self.arp.is_some(), "arp"), (self.ipv4.is_some(), "ipv4"), (self.ipv6.is_some(), "ipv6")];
        one_of(&present)?;
        let addresses = match (&self.ipv4, &self.ipv6) {
            (Some(h), _) => Addresses::V4(h.src.unwrap_or(SRC_V4), h.dst.unwrap_or(DST_V4)),
            (_, Some(h)) => Addresses::V6(h.src.unwrap_or(SRC_V6), h.dst.unwrap_or(DST_V6)),
            _ => Addresses::None,
        };
        let (proto, body) = self.transport(&addresses, depth)?;
        if let Some(h) = &self.ipv4 {
            return Ok((0x0800, ipv4(h, &addresses, proto.unwrap_or(255), body)?));
        }
        if let Some(h) = &self.ipv6 {
            return Ok((0x86dd, ipv6(h, &addresses, proto.unwrap_or(59), body)?));
        }
        if let Some(h) = &self.arp {
            let mut bytes = arp(h);
            bytes.extend(body);
            return Ok((0x0806, bytes));
        }
        // No network header: the local experimental EtherType (IEEE 802, 0x88b5).
        Ok((0x88b5, body))
    }

    /// Transport header, payload and inner packet, with the protocol number that announces it.
    fn transport(&self, addresses: &Addresses, depth: usize) -> Result<(Option<u8>, Vec<u8>), BuildError> {
        let present = [
            (self.udp.is_some(), "udp"),
            (self.tcp.is_some(), "tcp"),
            (self.icmp.is_some(), "icmp"),
            (self.icmpv6.is_some(), "icmpv6"),
        ];
        let name = one_of(&present)?;
        if let (Some(name), Addresses::None) = (name, addresses) {
            return Err(BuildError::NoNetwork(name));
        }
        let mut body = match &self.payload {
            None => Vec::new(),
            Some(Payload::Counting(n)) => (0..*n).map(|i| i as u8).collect(),
            Some(Payload::Bytes(b)) => b.clone(),
        };
        let mut proto = None;
        if let Some(inner) = &self.inner {
            if depth >= DEPTH_MAX {
                return Err(BuildError::TooDeep);
            }
            proto = Some(match (&inner.eth, &inner.ipv4, &inner.ipv6) {
                (Some(EthernetField::Header(_)), _, _) => 143,
                (_, Some(_), _) => 4,
                (_, _, Some(_)) => 41,
                _ => 255,
            });
            body.extend(inner.sized(inner.link(false, depth + 1)?)?);
        }
        if body.len() > FRAME_MAX {
            return Err(BuildError::TooLong(body.len()));
        }
        if let Some(h) = &self.udp {
            return Ok((Some(17), udp(h, addresses, body)?));
        }
        if let Some(h) = &self.tcp {
            return Ok((Some(6), tcp(h, addresses, body)?));
        }
        if let Some(h) = &self.icmp {
            return Ok((Some(1), icmp(h, 8, &Addresses::None, body)));
        }
        if let Some(h) = &self.icmpv6 {
            return Ok((Some(58), icmp(h, 128, addresses, body)));
        }
        Ok((proto, body))
    }
}

/// The pair of addresses that the pseudo header of a transport checksum takes.
enum Addresses {
    None,
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    fn checksum(&self, proto: u8, segment: &[u8]) -> u16 {
        let len = segment.len() as u32;
        let pseudo = match self {
            Addresses::None => Vec::new(),
            Addresses::V4(src, dst) => {
                [&src.octets()[..], &dst.octets(), &[0, proto], &(len as u16).to_be_bytes()].concat()
            }
            Addresses::V6(src, dst) => {
                [&src.octets()[..], &dst.octets(), &len.to_be_bytes(), &[0, 0, 0, proto]].concat()
            }
        };
        internet(&[&pseudo, segment])
    }
}

fn arp(h: &Arp) -> Vec<u8> {
    let mut out = vec![0, 1, 8, 0, 6, 4];
    out.extend(h.op.unwrap_or(1).to_be_bytes());
    out.extend(h.sha.unwrap_or(SRC_MAC).0);
    out.extend(h.spa.unwrap_or(SRC_V4).octets());
    out.extend(h.tha.unwrap_or(Mac([0; 6])).0);
    out.extend(h.tpa.unwrap_or(DST_V4).octets());
    out
}

fn ipv4(h: &Ipv4, addresses: &Addresses, proto: u8, body: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let Addresses::V4(src, dst) = addresses else { return Ok(body) };
    let options = options("ipv4.options", h.options.as_deref())?;
    let header_len = 20 + options.len();
    let total = header_len + body.len();
    let frag = h.frag.unwrap_or(0);
    check("ipv4.frag", frag.into(), 0x1fff)?;
    let version = h.version.unwrap_or(4);
    let ihl = h.ihl.unwrap_or((header_len / 4) as u8);
    check("ipv4.version", version.into(), 15)?;
    check("ipv4.ihl", ihl.into(), 15)?;
    let len = match h.len {
        Some(len) => len,
        None => u16::try_from(total).map_err(|_| BuildError::TooLong(total))?,
    };
    let mut out = vec![version << 4 | ihl, h.tos.unwrap_or(0)];
    out.extend(len.to_be_bytes());
    out.extend(h.id.unwrap_or(0).to_be_bytes());
    out.extend((frag | u16::from(h.df) << 14 | u16::from(h.mf) << 13).to_be_bytes());
    out.extend([h.ttl.unwrap_or(64), h.proto.unwrap_or(proto), 0, 0]);
    out.extend(src.octets());
    out.extend(dst.octets());
    out.extend(options);
    let checksum = h.checksum.unwrap_or_else(|| internet(&[&out]));
    out[10..12].copy_from_slice(&checksum.to_be_bytes());
    out.extend(body);
    Ok(out)
}

fn ipv6(h: &Ipv6, addresses: &Addresses, next: u8, body: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let Addresses::V6(src, dst) = addresses else { return Ok(body) };
    let flow = h.flow.unwrap_or(0);
    check("ipv6.flow", flow.into(), 0xf_ffff)?;
    let len = match h.len {
        Some(len) => len,
        None => u16::try_from(body.len()).map_err(|_| BuildError::TooLong(body.len()))?,
    };
    let word = 6 << 28 | u32::from(h.traffic_class.unwrap_or(0)) << 20 | flow;
    let mut out = word.to_be_bytes().to_vec();
    out.extend(len.to_be_bytes());
    out.extend([h.next_header.unwrap_or(next), h.hop_limit.unwrap_or(64)]);
    out.extend(src.octets());
    out.extend(dst.octets());
    out.extend(body);
    Ok(out)
}

fn udp(h: &Udp, addresses: &Addresses, body: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let total = 8 + body.len();
    let len = match h.len {
        Some(len) => len,
        None => u16::try_from(total).map_err(|_| BuildError::TooLong(total))?,
    };
    let mut out = h.sport.unwrap_or(40000).to_be_bytes().to_vec();
    out.extend(h.dport.unwrap_or(80).to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend([0, 0]);
    out.extend(body);
    // RFC 768: a computed zero is sent as all ones, because zero says "no checksum".
    let checksum = h.checksum.unwrap_or_else(|| match addresses.checksum(17, &out) {
        0 => 0xffff,
        sum => sum,
    });
    out[6..8].copy_from_slice(&checksum.to_be_bytes());
    Ok(out)
}

fn tcp(h: &Tcp, addresses: &Addresses, body: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let options = options("tcp.options", h.options.as_deref())?;
    let mut flags = 0u8;
    for letter in h.flags.as_deref().unwrap_or("S").chars() {
        flags |= match letter.to_ascii_uppercase() {
            'F' => 0x01,
            'S' => 0x02,
            'R' => 0x04,
            'P' => 0x08,
            'A' | '.' => 0x10,
            'U' => 0x20,
            'E' => 0x40,
            'C' | 'W' => 0x80,
            ' ' | ',' => 0,
            other => return Err(BuildError::TcpFlag(other)),
        };
    }
    let mut out = h.sport.unwrap_or(40000).to_be_bytes().to_vec();
    out.extend(h.dport.unwrap_or(80).to_be_bytes());
    out.extend(h.seq.unwrap_or(0).to_be_bytes());
    out.extend(h.ack.unwrap_or(0).to_be_bytes());
    out.extend([(((20 + options.len()) / 4) as u8) << 4, flags]);
    out.extend(h.window.unwrap_or(65535).to_be_bytes());
    out.extend([0, 0]);
    out.extend(h.urgent.unwrap_or(0).to_be_bytes());
    out.extend(options);
    out.extend(body);
    let checksum = h.checksum.unwrap_or_else(|| addresses.checksum(6, &out));
    out[16..18].copy_from_slice(&checksum.to_be_bytes());
    Ok(out)
}

fn icmp(h: &Icmp, echo: u8, addresses: &Addresses, body: Vec<u8>) -> Vec<u8> {
    let mut out = vec![h.icmp_type.unwrap_or(echo), h.code.unwrap_or(0), 0, 0];
    out.extend(h.id.unwrap_or(0).to_be_bytes());
    out.extend(h.seq.unwrap_or(0).to_be_bytes());
    out.extend(body);
    let checksum = h.checksum.unwrap_or_else(|| addresses.checksum(58, &out));
    out[2..4].copy_from_slice(&checksum.to_be_bytes());
    out
}

fn options(field: &'static str, text: Option<&str>) -> Result<Vec<u8>, BuildError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let bytes = literal::parse(text).unwrap_or_else(|| literal::hex(text));
    let mut bytes = bytes.map_err(|e| BuildError::Options(field, e))?;
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    if bytes.len() > 40 { Err(BuildError::OptionsTooLong(field)) } else { Ok(bytes) }
}

fn check(field: &'static str, value: u64, max: u64) -> Result<(), BuildError> {
    if value > max { Err(BuildError::Range { field, value, max }) } else { Ok(()) }
}

/// At most one of the headers may be there; gives its name.
fn one_of(present: &[(bool, &'static str)]) -> Result<Option<&'static str>, BuildError> {
    let mut found = present.iter().filter(|(there, _)| *there).map(|(_, name)| *name);
    match (found.next(), found.next()) {
        (Some(a), Some(b)) => Err(BuildError::Both(a, b)),
        (first, _) => Ok(first),
    }
}
