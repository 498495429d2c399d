//! What can be said about a packet. Every field has a default; what is not said is filled in when the packet is built.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Deserializer, de};

use crate::literal;

/// A packet, outermost header first. Headers appear in the order of the fields, whatever the order in which they are given.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Ethernet header. The outermost packet gets one even when nothing is said; `"none"` leaves it away.
    pub eth: Option<EthernetField>,
    /// VLAN tags, outermost first: numbers or tables.
    pub vlan: Option<Vlans>,
    /// ARP for IPv4 over Ethernet.
    pub arp: Option<Arp>,
    /// IPv4 header.
    pub ipv4: Option<Ipv4>,
    /// IPv6 header.
    pub ipv6: Option<Ipv6>,
    /// UDP header.
    pub udp: Option<Udp>,
    /// TCP header.
    pub tcp: Option<Tcp>,
    /// ICMP header.
    pub icmp: Option<Icmp>,
    /// ICMPv6 header.
    pub icmpv6: Option<Icmp>,
    /// Bytes after the last header.
    pub payload: Option<Payload>,
    /// A whole packet after the payload: what a tunnel carries. It has no Ethernet header unless it says so.
    pub inner: Option<Box<Description>>,
    /// Zero bytes are added at the end, outside every length field, until the frame has this many bytes.
    pub pad: Option<u32>,
    /// The frame is cut after this many bytes.
    pub truncate: Option<u32>,
}

/// An Ethernet address, written `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        literal::mac(&text).map(Mac).map_err(de::Error::custom)
    }
}

/// An Ethernet header, or the wish to have none.
#[derive(Clone, Debug, PartialEq)]
pub enum EthernetField {
    /// The packet starts with its network header.
    None,
    /// A header.
    Header(Ethernet),
}

impl<'de> Deserialize<'de> for EthernetField {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = EthernetField;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a table with src, dst and type, or \"none\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text == "none" {
                    Ok(EthernetField::None)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(text), &self))
                }
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Ethernet::deserialize(de::value::MapAccessDeserializer::new(map)).map(EthernetField::Header)
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// Ethernet II.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ethernet {
    /// Source, default `02:00:00:00:00:01`.
    pub src: Option<Mac>,
    /// Destination, default `02:00:00:00:00:02`.
    pub dst: Option<Mac>,
    /// EtherType, default by what follows.
    #[serde(rename = "type")]
    pub ether_type: Option<u16>,
}

/// VLAN tags, outermost first. Written as one tag or a list of tags, a tag being its id or a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Vlans(pub Vec<Vlan>);

impl<'de> Deserialize<'de> for Vlans {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Vlans;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a VLAN id from 0 to 4095, a table with id, pcp, dei, tpid and type, or a list of these")
            }
            fn visit_i64<E: de::Error>(self, id: i64) -> Result<Vlans, E> {
                match u16::try_from(id) {
                    Ok(id) if id < 4096 => Ok(Vlans(vec![Vlan { id, ..Vlan::default() }])),
                    _ => Err(E::invalid_value(de::Unexpected::Signed(id), &self)),
                }
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Vlans, E> {
                self.visit_i64(i64::try_from(id).unwrap_or(-1))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Vlans, A::Error> {
                Vlan::deserialize(de::value::MapAccessDeserializer::new(map)).map(|tag| Vlans(vec![tag]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Vlans, A::Error> {
                let mut tags = Vec::new();
                while let Some(Vlans(more)) = list.next_element()? {
                    tags.extend(more);
                }
                Ok(Vlans(tags))
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// IEEE 802.1Q tag.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vlan {
    /// VLAN id, 0 to 4095.
    pub id: u16,
    /// Priority, 0 to 7.
    #[serde(default)]
    pub pcp: u8,
    /// Drop eligible.
    #[serde(default)]
    pub dei: bool,
    /// Tag protocol: 0x8100 unless it is the outer one of two (0x88a8).
    pub tpid: Option<u16>,
    /// EtherType after the tag, default by what follows.
    #[serde(rename = "type")]
    pub ether_type: Option<u16>,
}

/// ARP for IPv4 over Ethernet (RFC 826).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arp {
    /// Operation: 1 request (default), 2 reply.
    pub op: Option<u16>,
    /// Sender's Ethernet address.
    pub sha: Option<Mac>,
    /// Sender's IPv4 address.
    pub spa: Option<Ipv4Addr>,
    /// Target's Ethernet address, default zeros.
    pub tha: Option<Mac>,
    /// Target's IPv4 address.
    pub tpa: Option<Ipv4Addr>,
}

/// IPv4 (RFC 791).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipv4 {
    /// Source, default 192.0.2.1.
    pub src: Option<Ipv4Addr>,
    /// Destination, default 192.0.2.2.
    pub dst: Option<Ipv4Addr>,
    /// Time to live, default 64.
    pub ttl: Option<u8>,
    /// Type of service byte, default 0.
    pub tos: Option<u8>,
    /// Identification, default 0.
    pub id: Option<u16>,
    /// Do not fragment.
    #[serde(default)]
    pub df: bool,
    /// More fragments.
    #[serde(default)]
    pub mf: bool,
    /// Fragment offset in units of eight bytes.
    pub frag: Option<u16>,
    /// Protocol, default by what follows.
    pub proto: Option<u8>,
    /// Options as a byte literal; padded to a multiple of four.
    pub options: Option<String>,
    /// Version, default 4.
    pub version: Option<u8>,
    /// Header length in words of four bytes, default what it is.
    pub ihl: Option<u8>,
    /// Total length, default what it is.
    pub len: Option<u16>,
    /// Header checksum, default the right one.
    pub checksum: Option<u16>,
}

/// IPv6 (RFC 8200).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipv6 {
    /// Source, default 2001:db8::1.
    pub src: Option<Ipv6Addr>,
    /// Destination, default 2001:db8::2.
    pub dst: Option<Ipv6Addr>,
    /// Hop limit, default 64.
    pub hop_limit: Option<u8>,
    /// Traffic class, default 0.
    pub traffic_class: Option<u8>,
    /// Flow label, default 0.
    pub flow: Option<u32>,
    /// Next header, default by what follows.
    pub next_header: Option<u8>,
    /// Payload length, default what it is.
    pub len: Option<u16>,
}

/// UDP (RFC 768).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Udp {
    /// Source port, default 40000.
    pub sport: Option<u16>,
    /// Destination port, default 80.
    pub dport: Option<u16>,
    /// Length, default what it is.
    pub len: Option<u16>,
    /// Checksum, default the right one.
    pub checksum: Option<u16>,
}

/// TCP (RFC 9293).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcp {
    /// Source port, default 40000.
    pub sport: Option<u16>,
    /// Destination port, default 80.
    pub dport: Option<u16>,
    /// Sequence number, default 0.
    pub seq: Option<u32>,
    /// Acknowledgement number, default 0.
    pub ack: Option<u32>,
    /// Flags as letters: S(YN) A(CK, also `.`) F(IN) R(ST) P(SH) U(RG) E(CE) C(WR). Default `S`.
    pub flags: Option<String>,
    /// Window, default 65535.
    pub window: Option<u16>,
    /// Urgent pointer, default 0.
    pub urgent: Option<u16>,
    /// Options as a byte literal; padded to a multiple of four.
    pub options: Option<String>,
    /// Checksum, default the right one.
    pub checksum: Option<u16>,
}

/// ICMP (RFC 792) or ICMPv6 (RFC 4443).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Icmp {
    /// Type, default echo request (8, or 128 for ICMPv6).
    #[serde(rename = "type")]
    pub icmp_type: Option<u8>,
    /// Code, default 0.
    pub code: Option<u8>,
    /// Identifier of an echo, default 0: the first half of the word after the checksum.
    pub id: Option<u16>,
    /// Sequence number of an echo, default 0: the second half (the MTU of a "too big").
    pub seq: Option<u16>,
    /// Checksum, default the right one.
    pub checksum: Option<u16>,
}

/// Bytes after the last header.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// That many bytes, counting up from zero.
    Counting(u32),
    /// Given bytes.
    Bytes(Vec<u8>),
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Payload;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of bytes up to 65535, a byte literal (hex:, base64:, be16: …) or plain text")
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Payload, E> {
                match u32::try_from(n) {
                    Ok(n) if n <= 65535 => Ok(Payload::Counting(n)),
                    _ => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
                }
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Payload, E> {
                self.visit_i64(i64::try_from(n).unwrap_or(-1))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Payload, E> {
                match literal::parse(text) {
                    Some(bytes) => bytes.map(Payload::Bytes).map_err(E::custom),
                    None => Ok(Payload::Bytes(text.as_bytes().to_vec())),
                }
            }
        }
        d.deserialize_any(Visitor)
    }
}
