//! Rules in ethtool's grammar: `flow-type udp4 dst-port 4242 action 16 loc 5`.
//!
//! | word | flow types | value |
//! |---|---|---|
//! | `src`, `dst` | `ether` | address |
//! | `proto` | `ether` | Ethernet type |
//! | `src-ip`, `dst-ip` | all others | address |
//! | `tos`, `tclass` | all but `ether` | 0 to 255 |
//! | `l4proto` | `ip4`, `ip6` | IP protocol |
//! | `l4data` | `ip4`, `ip6` | first four bytes behind IP |
//! | `src-port`, `dst-port` | `tcp`, `udp`, `sctp` | 0 to 65535 |
//! | `spi` | `ah`, `esp` | 32 bits |
//! | `vlan-etype`, `vlan`, `dst-mac` | all | outer tag's protocol, its 16 bits, Ethernet destination |
//! | `action` | all | queue; -1 drops |
//! | `loc` | all | place in the table; without one the last free place is taken |
//!
//! Behind each value may stand `m` and a mask, whose bits that are set do not count. A field that a packet does not have (a tag, ports
//! that are cut off, what lies behind the IP header of a fragment) has no value, not 0, unless no bit of it counts. Numbers are decimal, or hexadecimal after
//! `0x`.

mod card;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::flow::{AH, ESP, Flow, SCTP, TCP, UDP};

/// What a rule does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// To this queue.
    Queue(u32),
    /// Dropped (`action -1`).
    Drop,
}

/// Which packets a rule is about (`flow-type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowType {
    name: &'static str,
    /// IP version, 0 for all packets.
    ip: u8,
    /// Protocol behind IP, 0 for any.
    protocol: u8,
}

const FLOW_TYPES: [FlowType; 13] = [
    FlowType { name: "ether", ip: 0, protocol: 0 },
    FlowType { name: "ip4", ip: 4, protocol: 0 },
    FlowType { name: "tcp4", ip: 4, protocol: TCP },
    FlowType { name: "udp4", ip: 4, protocol: UDP },
    FlowType { name: "sctp4", ip: 4, protocol: SCTP },
    FlowType { name: "ah4", ip: 4, protocol: AH },
    FlowType { name: "esp4", ip: 4, protocol: ESP },
    FlowType { name: "ip6", ip: 6, protocol: 0 },
    FlowType { name: "tcp6", ip: 6, protocol: TCP },
    FlowType { name: "udp6", ip: 6, protocol: UDP },
    FlowType { name: "sctp6", ip: 6, protocol: SCTP },
    FlowType { name: "ah6", ip: 6, protocol: AH },
    FlowType { name: "esp6", ip: 6, protocol: ESP },
];

/// A field that a rule compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    MacSrc,
    MacDst,
    EtherType,
    Src,
    Dst,
    Tos,
    Protocol,
    L4Data,
    SrcPort,
    DstPort,
    Spi,
    VlanProto,
    Vlan,
}

/// Its word, how many bits it has, and which flow types have it.
type FieldRow = (&'static str, Field, u32, fn(&FlowType) -> bool);

const FIELDS: [FieldRow; 16] = [
    ("src", Field::MacSrc, 48, |t| t.ip == 0),
    ("dst", Field::MacDst, 48, |t| t.ip == 0),
    ("proto", Field::EtherType, 16, |t| t.ip == 0),
    ("src-ip", Field::Src, 128, |t| t.ip != 0),
    ("dst-ip", Field::Dst, 128, |t| t.ip != 0),
    ("tos", Field::Tos, 8, |t| t.ip == 4),
    ("tclass", Field::Tos, 8, |t| t.ip == 6),
    ("l4proto", Field::Protocol, 8, |t| t.ip != 0 && t.protocol == 0),
    ("l4data", Field::L4Data, 32, |t| t.ip != 0 && t.protocol == 0),
    ("src-port", Field::SrcPort, 16, |t| matches!(t.protocol, TCP | UDP | SCTP)),
    ("dst-port", Field::DstPort, 16, |t| matches!(t.protocol, TCP | UDP | SCTP)),
    ("spi", Field::Spi, 32, |t| matches!(t.protocol, AH | ESP)),
    ("vlan-etype", Field::VlanProto, 16, |_| true),
    ("vlan", Field::Vlan, 16, |_| true),
    ("dst-mac", Field::MacDst, 48, |_| true),
    ("src-mac", Field::MacSrc, 48, |t| t.ip != 0),
];

/// One comparison: bits of `mask` that are set count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Test {
    word: &'static str,
    field: Field,
    value: u128,
    mask: u128,
}

/// A steering rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    flow_type: FlowType,
    tests: Vec<Test>,
    /// What it does.
    pub action: Action,
    /// Its place, when it names one.
    pub loc: Option<u32>,
}

/// Places in a table: 0 to this minus one.
pub const LOCATIONS: u32 = 1024;

pub use card::SPEC;

/// A rule that is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RuleError(String);

impl Rule {
    /// Reads a rule; `flow-type` stands first, as for ethtool.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Rule, RuleError> {
        let wrong = |why: String| Err(RuleError(why));
        let mut words = text.split_whitespace().peekable();
        if words.next() != Some("flow-type") {
            return wrong("a rule starts with flow-type, as in: flow-type udp4 dst-port 53 action 2".into());
        }
        let name = words.next().unwrap_or_default();
        let Some(&flow_type) = FLOW_TYPES.iter().find(|t| t.name == name) else {
            let names: Vec<&str> = FLOW_TYPES.iter().map(|t| t.name).collect();
            return wrong(format!("flow-type {name}: there are {}", names.join(", ")));
        };
        let mut rule = Rule { flow_type, tests: Vec::new(), action: Action::Queue(0), loc: None };
        while let Some(word) = words.next() {
            let Some(value) = words.next() else { return wrong(format!("{word}: its value is missing")) };
            match word {
                "action" if value == "-1" => rule.action = Action::Drop,
                "action" => rule.action = Action::Queue(read_number(word, value, 31)? as u32),
                "loc" => {
                    let loc = read_number(word, value, 32)? as u32;
                    if loc >= LOCATIONS {
                        return wrong(format!("loc {loc}: the table has the places 0 to {}", LOCATIONS - 1));
                    }
                    rule.loc = Some(loc);
                }
                _ => {
                    let Some(&(word, field, bits, has)) = FIELDS.iter().find(|(known, ..)| *known == word) else {
                        return wrong(format!("{word}: no word of rules"));
                    };
                    if !has(&flow_type) {
                        return wrong(format!("{word}: packets of flow-type {name} are not told apart by it"));
                    }
                    let bits = if bits == 128 && flow_type.ip == 4 { 32 } else { bits };
                    let read = |text: &str| read_value(word, text, bits);
                    let all = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
                    let value = read(value)?;
                    // Bits of a written mask are those that do not count.
                    let mask = match words.next_if_eq(&"m") {
                        Some(_) => all & !read(words.next().unwrap_or_default())?,
                        None => all,
                    };
                    if rule.tests.iter().any(|test| test.field == field) {
                        return wrong(format!("{word} stands twice"));
                    }
                    rule.tests.push(Test { word, field, value: value & mask, mask });
                }
            }
        }
        Ok(rule)
    }

    /// Whether the rule is about this packet.
    #[inline]
    pub fn matches(&self, flow: &Flow) -> bool {
        let kind = &self.flow_type;
        let of_kind = (kind.ip == 0 || kind.ip == flow.ip) && (kind.protocol == 0 || kind.protocol == flow.protocol);
        // A piece of a packet has no ports, so it is of no type that has some.
        let whole = kind.protocol == 0 || !flow.fragment;
        // What a packet does not have is not 0: it is what no value is about, as a key of the kernel's flow dissector that is not there.
        let meets =
            |test: &Test| test.mask == 0 || value(flow, test.field).is_some_and(|is| is & test.mask == test.value);
        of_kind && whole && self.tests.iter().all(meets)
    }
}

/// What a packet has there, if it has it at all.
fn value(flow: &Flow, field: Field) -> Option<u128> {
    let tagged = flow.vlan_proto != 0;
    match field {
        Field::MacSrc => Some(flow.mac_src.into()),
        Field::MacDst => Some(flow.mac_dst.into()),
        Field::EtherType => Some(flow.ether_type.into()),
        Field::Src => Some(flow.src),
        Field::Dst => Some(flow.dst),
        Field::Tos => Some(flow.tos.into()),
        Field::Protocol => Some(flow.protocol.into()),
        Field::L4Data => flow.l4_data.map(Into::into),
        Field::SrcPort => flow.ports.map(|ports| ports.0.into()),
        Field::DstPort => flow.ports.map(|ports| ports.1.into()),
        Field::Spi if flow.protocol == AH => flow.ah_spi.map(Into::into),
        Field::Spi => flow.l4_data.map(Into::into),
        Field::VlanProto => tagged.then(|| flow.vlan_proto.into()),
        Field::Vlan => tagged.then(|| flow.vlan_tci.into()),
    }
}

fn read_number(word: &str, text: &str, bits: u32) -> Result<u128, RuleError> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16),
        None => text.parse(),
    };
    let fits = |number: &u128| bits >= 128 || number >> bits == 0;
    number.ok().filter(fits).ok_or_else(|| RuleError(format!("{word} {text}: no number of {bits} bits")))
}

fn read_value(word: &str, text: &str, bits: u32) -> Result<u128, RuleError> {
    let wrong = |what: &str| RuleError(format!("{word} {text}: no {what}"));
    match (word, bits) {
        ("src-ip" | "dst-ip", 32) => {
            text.parse::<Ipv4Addr>().map(|a| u32::from(a).into()).map_err(|_| wrong("IPv4 address"))
        }
        ("src-ip" | "dst-ip", _) => text.parse::<Ipv6Addr>().map(u128::from).map_err(|_| wrong("IPv6 address")),
        (_, 48) => {
            let parts: Vec<Option<u64>> = text.split(':').map(|part| u64::from_str_radix(part, 16).ok()).collect();
            let whole = parts.len() == 6 && parts.iter().all(|part| part.is_some_and(|byte| byte < 256));
            let address = parts.into_iter().flatten().fold(0, |address, byte| address << 8 | byte);
            if whole { Ok(address.into()) } else { Err(wrong("MAC address, as in 02:00:00:00:00:01")) }
        }
        _ => read_number(word, text, bits),
    }
}

impl fmt::Display for Rule {
    /// As it can be read again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow-type {}", self.flow_type.name)?;
        for test in &self.tests {
            let ip4 = self.flow_type.ip == 4;
            let bits = FIELDS.iter().find(|(word, ..)| *word == test.word).map_or(128, |field| field.2);
            let bits = if bits == 128 && ip4 { 32 } else { bits };
            let all = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
            let show = |value: u128| match (test.word, bits) {
                ("src-ip" | "dst-ip", 32) => Ipv4Addr::from(value as u32).to_string(),
                ("src-ip" | "dst-ip", _) => Ipv6Addr::from(value).to_string(),
                (_, 48) => {
                    let bytes = &(value as u64).to_be_bytes()[2..];
                    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
                }
                ("proto" | "vlan-etype" | "l4data" | "spi", _) => format!("{value:#x}"),
                _ => value.to_string(),
            };
            write!(f, " {} {}", test.word, show(test.value))?;
            if test.mask != all {
                write!(f, " m {}", show(all & !test.mask))?;
            }
        }
        match self.action {
            Action::Queue(queue) => write!(f, " action {queue}")?,
            Action::Drop => write!(f, " action -1")?,
        }
        self.loc.map_or(Ok(()), |loc| write!(f, " loc {loc}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_and_write_ethtools_grammar() {
        let same = [
            "flow-type ether dst 02:00:00:00:00:01 action 2 loc 5",
            "flow-type tcp4 dst-port 22 action 2 loc 255",
            "flow-type udp4 src-ip 10.0.0.0 m 0.0.0.255 dst-port 4242 action -1",
            "flow-type ip6 src-ip 2001:db8::1 l4proto 58 action 0 loc 0",
            "flow-type ether proto 0x88cc vlan 5 m 61440 action 1",
            "flow-type esp4 spi 0x10 dst-mac 02:00:00:00:00:02 action 3",
        ];
        for text in same {
            assert_eq!(Rule::parse(text).unwrap().to_string(), text);
        }
        let wrong = [
            ("dst-port 5", "a rule starts with flow-type, as in: flow-type udp4 dst-port 53 action 2"),
            ("flow-type ether dst-port 5", "dst-port: packets of flow-type ether are not told apart by it"),
            ("flow-type udp4 dst-port 65536", "dst-port 65536: no number of 16 bits"),
            ("flow-type udp4 dst-port", "dst-port: its value is missing"),
            ("flow-type udp4 src-ip ::1", "src-ip ::1: no IPv4 address"),
            ("flow-type ether dst 1:2:3", "dst 1:2:3: no MAC address, as in 02:00:00:00:00:01"),
            ("flow-type udp4 loc 1024", "loc 1024: the table has the places 0 to 1023"),
            ("flow-type udp4 dst-port 1 dst-port 2", "dst-port stands twice"),
            ("flow-type udp4 colour 1", "colour: no word of rules"),
        ];
        for (text, message) in wrong {
            assert_eq!(Rule::parse(text).unwrap_err().to_string(), message);
        }
        assert!(
            Rule::parse("flow-type arp").unwrap_err().to_string().starts_with("flow-type arp: there are ether, ip4")
        );
    }

    #[test]
    fn masked_bits_do_not_count() {
        let rule = Rule::parse("flow-type udp4 src-ip 10.0.0.77 m 0.0.0.255 action 1").unwrap();
        let flow = |src| Flow { ip: 4, protocol: 17, src, ..Flow::default() };
        assert!(rule.matches(&flow(0x0a00_0001)) && rule.matches(&flow(0x0a00_00ff)));
        assert!(!rule.matches(&flow(0x0a00_0101)));
        assert!(!rule.matches(&Flow { protocol: 6, ..flow(0x0a00_0001) }), "TCP is not UDP");
        assert!(!rule.matches(&Flow { fragment: true, ..flow(0x0a00_0001) }), "nor is a fragment");
    }

    #[test]
    fn what_a_packet_does_not_have_is_not_zero() {
        let rule = |text: &str| Rule::parse(text).unwrap();
        let (plain, tagged) = (Flow { ip: 4, ..Flow::default() }, Flow { vlan_proto: 0x8100, ..Flow::default() });
        for text in
            ["flow-type ether vlan 0", "flow-type ether vlan 0 m 0xe000", "flow-type ether vlan-etype 0 m 0xff00"]
        {
            assert!(!rule(text).matches(&plain), "{text}");
        }
        assert!(rule("flow-type ether vlan 0").matches(&tagged), "a tag with priority and id 0");
        assert!(rule("flow-type ether vlan 0 m 0xffff").matches(&plain), "no bit counts");
        // Cut off behind the IP header; a fragment; whole.
        let cut = Flow { ip: 4, protocol: UDP, ..Flow::default() };
        let piece = Flow { fragment: true, ..cut };
        let whole = Flow { ports: Some((0, 0)), l4_data: Some(0), ..cut };
        for (text, of) in [("udp4 dst-port 0", [false, false, true]), ("ip4 l4data 0", [false, false, true])] {
            let rule = rule(&format!("flow-type {text}"));
            assert_eq!([cut, piece, whole].map(|flow| rule.matches(&flow)), of, "{text}");
        }
        let spi = rule("flow-type ah4 spi 0");
        let ah = Flow { protocol: AH, l4_data: Some(0), ..cut };
        assert!(!spi.matches(&ah) && spi.matches(&Flow { ah_spi: Some(0), ..ah }));
    }
}
