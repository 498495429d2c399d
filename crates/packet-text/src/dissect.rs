//! Names for the bytes of a packet: which header field lies where, and what it says.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::checksum::internet;

/// Deepest tunnel that is followed; the rest is payload.
const LAYERS_MAX: usize = 16;

/// One header, or the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// `eth`, `vlan`, `arp`, `ipv4`, `ipv6`, `udp`, `tcp`, `icmp`, `icmpv6`, `gre` or `payload`.
    pub name: &'static str,
    /// Bytes of the packet that belong to it.
    pub range: Range<usize>,
    /// Its fields in order.
    pub fields: Vec<Field>,
}

/// One header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name within the layer.
    pub name: &'static str,
    /// Bytes of the packet; fields of less than a byte share it.
    pub range: Range<usize>,
    /// The value as people write it.
    pub value: String,
}

/// Finds the headers of an Ethernet frame. Never fails: whatever is cut short or unknown becomes `payload`.
pub fn dissect(packet: &[u8]) -> Vec<Layer> {
    let mut d = Dissector { packet, at: 0, end: packet.len(), layers: Vec::new() };
    let mut next = Next::Ethernet;
    while d.layers.len() < LAYERS_MAX {
        next = match d.header(next) {
            Some(next) => next,
            None => break,
        };
    }
    if d.at < packet.len() {
        let (at, len) = (d.at, packet.len());
        d.layers.push(Layer { name: "payload", range: at..len, fields: Vec::new() });
    }
    d.layers
}

/// One line about a packet: `eth / ipv4 192.0.2.1 > 192.0.2.2 / udp 40000 > 80 / payload 18`.
pub fn summary(packet: &[u8]) -> String {
    let parts: Vec<String> = dissect(packet)
        .iter()
        .map(|layer| {
            let value = |name: &str| layer.fields.iter().find(|f| f.name == name).map_or("?", |f| &f.value);
            match layer.name {
                "vlan" => format!("vlan {}", value("id")),
                "arp" => format!("arp {} {} > {}", value("op"), value("spa"), value("tpa")),
                name @ ("ipv4" | "ipv6") => format!("{name} {} > {}", value("src"), value("dst")),
                name @ ("udp" | "tcp") => format!("{name} {} > {}", value("sport"), value("dport")),
                name @ ("icmp" | "icmpv6") => format!("{name} type {}", value("type")),
                "payload" => format!("payload {}", layer.range.len()),
                name => name.to_string(),
            }
        })
        .collect();
    if parts.is_empty() { "empty".into() } else { parts.join(" / ") }
}

/// What the previous header announced.
#[derive(Clone, Copy)]
enum Next {
    Ethernet,
    EtherType(u16),
    Ip(u8),
    Nothing,
}

/// Where the dissection stands: the next header starts at `at` and nothing that it announces reaches beyond `end`.
struct Dissector<'a> {
    packet: &'a [u8],
    at: usize,
    end: usize,
    layers: Vec<Layer>,
}

impl<'a> Dissector<'a> {
    fn header(&mut self, next: Next) -> Option<Next> {
        match next {
            Next::Ethernet => self.ethernet(),
            Next::EtherType(0x8100 | 0x88a8 | 0x9100) => self.vlan(),
            Next::EtherType(0x0806) => self.arp(),
            Next::EtherType(0x0800) | Next::Ip(4) => self.ipv4(),
            Next::EtherType(0x86dd) | Next::Ip(41) => self.ipv6(),
            Next::Ip(6) => self.tcp(),
            Next::Ip(17) => self.udp(),
            Next::Ip(1) => self.icmp("icmp"),
            Next::Ip(58) => self.icmp("icmpv6"),
            Next::Ip(143) => self.ethernet(),
            _ => None,
        }
    }

    fn ethernet(&mut self) -> Option<Next> {
        let mut l = self.layer("eth", 14)?;
        l.add("dst", 0, 6, mac);
        l.add("src", 6, 6, mac);
        let ether_type = l.number("type", 12, 2, hex);
        self.push(l);
        Some(Next::EtherType(ether_type as u16))
    }

    fn vlan(&mut self) -> Option<Next> {
        let mut l = self.layer("vlan", 4)?;
        let tci = u16::from_be_bytes([l.bytes[0], l.bytes[1]]);
        l.put("pcp", 0..1, (tci >> 13).to_string());
        l.put("dei", 0..1, (tci >> 12 & 1).to_string());
        l.put("id", 0..2, (tci & 0xfff).to_string());
        let ether_type = l.number("type", 2, 2, hex);
        self.push(l);
        Some(Next::EtherType(ether_type as u16))
    }

    fn arp(&mut self) -> Option<Next> {
        let mut l = self.layer("arp", 28)?;
        if l.bytes[..6] != [0, 1, 8, 0, 6, 4] {
            return None;
        }
        l.number("hardware", 0, 2, dec);
        l.number("protocol", 2, 2, hex);
        l.number("sizes", 4, 2, hex);
        l.number("op", 6, 2, dec);
        l.add("sha", 8, 6, mac);
        l.add("spa", 14, 4, v4);
        l.add("tha", 18, 6, mac);
        l.add("tpa", 24, 4, v4);
        self.push(l);
        Some(Next::Nothing)
    }

    fn ipv4(&mut self) -> Option<Next> {
        let ihl = usize::from(*self.packet.get(self.at)? & 15) * 4;
        let mut l = self.layer("ipv4", ihl.max(20))?;
        if l.bytes[0] >> 4 != 4 {
            return None;
        }
        let frag = u16::from_be_bytes([l.bytes[6], l.bytes[7]]);
        l.put("version", 0..1, "4".into());
        l.put("ihl", 0..1, (ihl / 4).to_string());
        l.number("tos", 1, 1, hex);
        let len = l.number("len", 2, 2, dec) as usize;
        l.number("id", 4, 2, dec);
        l.put(
            "flags",
            6..7,
            format!("{}{}", if frag & 0x4000 != 0 { "DF" } else { "-" }, if frag & 0x2000 != 0 { " MF" } else { "" }),
        );
        l.put("frag", 6..8, (frag & 0x1fff).to_string());
        l.number("ttl", 8, 1, dec);
        let proto = l.number("proto", 9, 1, dec) as u8;
        let right = internet(&[l.bytes]) == 0;
        l.number("checksum", 10, 2, hex);
        l.note(right);
        l.add("src", 12, 4, v4);
        l.add("dst", 16, 4, v4);
        if ihl > 20 {
            l.add("options", 20, ihl - 20, plain);
        }
        let start = self.at;
        self.push(l);
        self.limit(start + len);
        Some(if frag & 0x1fff == 0 { Next::Ip(proto) } else { Next::Nothing })
    }

    fn ipv6(&mut self) -> Option<Next> {
        let mut l = self.layer("ipv6", 40)?;
        if l.bytes[0] >> 4 != 6 {
            return None;
        }
        let word = u32::from_be_bytes([l.bytes[0], l.bytes[1], l.bytes[2], l.bytes[3]]);
        l.put("version", 0..1, "6".into());
        l.put("traffic_class", 0..2, hex((word >> 20 & 0xff).into()));
        l.put("flow", 1..4, hex((word & 0xf_ffff).into()));
        let len = l.number("len", 4, 2, dec) as usize;
        let next = l.number("next_header", 6, 1, dec) as u8;
        l.number("hop_limit", 7, 1, dec);
        l.add("src", 8, 16, v6);
        l.add("dst", 24, 16, v6);
        let start = self.at;
        self.push(l);
        self.limit(start + 40 + len);
        Some(Next::Ip(next))
    }

    fn udp(&mut self) -> Option<Next> {
        let mut l = self.layer("udp", 8)?;
        l.number("sport", 0, 2, dec);
        l.number("dport", 2, 2, dec);
        l.number("len", 4, 2, dec);
        let sum = l.number("checksum", 6, 2, hex);
        if sum != 0 {
            l.note(self.transport_sum(17) == Some(0));
        }
        self.push(l);
        Some(Next::Nothing)
    }

    fn tcp(&mut self) -> Option<Next> {
        let header_len = usize::from(*self.packet.get(self.at + 12)? >> 4) * 4;
        let mut l = self.layer("tcp", header_len.max(20))?;
        let flags = l.bytes[13];
        l.number("sport", 0, 2, dec);
        l.number("dport", 2, 2, dec);
        l.number("seq", 4, 4, dec);
        l.number("ack", 8, 4, dec);
        l.put("header_len", 12..13, header_len.to_string());
        let letters: String =
            "FSRPAUEC".chars().enumerate().filter(|(i, _)| flags >> i & 1 != 0).map(|(_, c)| c).collect();
        l.put("flags", 13..14, if letters.is_empty() { "-".into() } else { letters });
        l.number("window", 14, 2, dec);
        l.number("checksum", 16, 2, hex);
        l.note(self.transport_sum(6) == Some(0));
        l.number("urgent", 18, 2, dec);
        if header_len > 20 {
            l.add("options", 20, header_len - 20, plain);
        }
        self.push(l);
        Some(Next::Nothing)
    }

    fn icmp(&mut self, name: &'static str) -> Option<Next> {
        let mut l = self.layer(name, 8)?;
        l.number("type", 0, 1, dec);
        l.number("code", 1, 1, dec);
        l.number("checksum", 2, 2, hex);
        let right = match name {
            "icmp" => internet(&[&self.packet[self.at..self.end]]) == 0,
            _ => self.transport_sum(58) == Some(0),
        };
        l.note(right);
        l.number("id", 4, 2, dec);
        l.number("seq", 6, 2, dec);
        self.push(l);
        Some(Next::Nothing)
    }

    /// Checksum over the segment that starts here and its pseudo header; zero when it is right.
    fn transport_sum(&self, proto: u8) -> Option<u16> {
        let segment = &self.packet[self.at..self.end];
        let network = self.layers.last()?;
        let addresses = match network.name {
            "ipv4" => network.range.start + 12..network.range.start + 20,
            "ipv6" => network.range.start + 8..network.range.start + 40,
            _ => return None,
        };
        let len = (segment.len() as u32).to_be_bytes();
        Some(internet(&[&self.packet[addresses], &len, &[0, proto], segment]))
    }

    /// What follows ends here at the latest: the length field of the header says so.
    fn limit(&mut self, end: usize) {
        if end >= self.at {
            self.end = self.end.min(end);
        }
    }

    fn layer(&self, name: &'static str, len: usize) -> Option<Build<'a>> {
        let packet: &'a [u8] = self.packet;
        let bytes = packet.get(self.at..self.at + len).filter(|_| self.at + len <= self.end)?;
        Some(Build { at: self.at, bytes, layer: Layer { name, range: self.at..self.at + len, fields: Vec::new() } })
    }

    fn push(&mut self, layer: impl Into<Layer>) {
        let layer = layer.into();
        self.at = layer.range.end;
        self.layers.push(layer);
    }
}

/// A layer under construction; offsets are within the header.
struct Build<'a> {
    at: usize,
    bytes: &'a [u8],
    layer: Layer,
}

impl From<Build<'_>> for Layer {
    fn from(b: Build<'_>) -> Layer {
        b.layer
    }
}

impl Build<'_> {
    fn put(&mut self, name: &'static str, range: Range<usize>, value: String) {
        self.layer.fields.push(Field { name, range: self.at + range.start..self.at + range.end, value });
    }

    fn add(&mut self, name: &'static str, at: usize, len: usize, show: fn(&[u8]) -> String) {
        let value = show(&self.bytes[at..at + len]);
        self.put(name, at..at + len, value);
    }

    fn number(&mut self, name: &'static str, at: usize, len: usize, show: fn(u64) -> String) -> u64 {
        let value = self.bytes[at..at + len].iter().fold(0, |v, b| v << 8 | u64::from(*b));
        self.put(name, at..at + len, show(value));
        value
    }

    /// Says beside the field that was put last whether the checksum is right.
    fn note(&mut self, right: bool) {
        if let (false, Some(last)) = (right, self.layer.fields.last_mut()) {
            last.value.push_str(" (wrong)");
        }
    }
}

fn dec(v: u64) -> String {
    v.to_string()
}

fn hex(v: u64) -> String {
    format!("{v:#x}")
}

fn plain(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect()
}

fn mac(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

fn v4(b: &[u8]) -> String {
    <[u8; 4]>::try_from(b).map_or_else(|_| plain(b), |a| Ipv4Addr::from(a).to_string())
}

fn v6(b: &[u8]) -> String {
    <[u8; 16]>::try_from(b).map_or_else(|_| plain(b), |a| Ipv6Addr::from(a).to_string())
}
