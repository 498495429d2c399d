//! What a rule is about, in words and as the program's maps have it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A protocol with ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Its number in IP headers.
    const fn number(self) -> u8 {
        match self {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        }
    }
}

/// Addresses that begin alike; the bits behind the prefix are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Net {
    address: IpAddr,
    length: u8,
}

impl Net {
    /// From an address, alone or with the length of a prefix behind a slash.
    ///
    /// # Errors
    /// What is wrong, and what may have been meant.
    pub fn parse(text: &str) -> Result<Net, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{text}: not an address such as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            Some(digits) => {
                let number = digits.parse().ok().filter(|n| *n <= most && digits.bytes().all(|b| b.is_ascii_digit()));
                number.ok_or_else(|| format!("{text}: a prefix of this family has 0 to {most} bits"))?
            }
        };
        let net = Net { address, length }.masked();
        match net.address == address {
            true => Ok(net),
            // One of two things was meant, and they differ by many addresses.
            false => {
                Err(format!("{text}: there are bits behind the prefix; it is {net}, or the one address {address}"))
            }
        }
    }

    fn masked(self) -> Net {
        let address = match self.address {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
        };
        Net { address, ..self }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        if self.length < whole { write!(f, "/{}", self.length) } else { Ok(()) }
    }
}

/// What a rule is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subject {
    /// Packets from these addresses.
    From(Net),
    /// Packets to this port.
    To(Transport, u16),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::From(net) => net.fmt(f),
            Subject::To(transport, port) => write!(f, "{}:{port}", transport.name()),
        }
    }
}

/// Which of the program's maps leads to a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Index {
    Net4,
    Net6,
    Ports,
}

impl Index {
    pub const ALL: [Index; 3] = [Index::Net4, Index::Net6, Index::Ports];
}

impl Subject {
    pub(super) const fn index(self) -> Index {
        match self {
            Subject::From(Net { address: IpAddr::V4(_), .. }) => Index::Net4,
            Subject::From(_) => Index::Net6,
            Subject::To(..) => Index::Ports,
        }
    }

    /// The key in that map: `struct filter_net4`, `filter_net6` or `filter_port`.
    pub(super) fn key(self) -> Vec<u8> {
        match self {
            Subject::From(Net { address, length }) => {
                let length = u32::from(length).to_ne_bytes();
                match address {
                    IpAddr::V4(a) => [&length[..], &a.octets()].concat(),
                    IpAddr::V6(a) => [&length[..], &a.octets()].concat(),
                }
            }
            Subject::To(transport, port) => [&port.to_be_bytes()[..], &[transport.number(), 0]].concat(),
        }
    }

    /// The subject of a key; `None`: nothing of ours has written it.
    pub(super) fn of_key(index: Index, key: &[u8]) -> Option<Subject> {
        if let Index::Ports = index {
            let [high, low, protocol, 0] = *key else { return None };
            let transport = [Transport::Tcp, Transport::Udp].into_iter().find(|t| t.number() == protocol)?;
            return Some(Subject::To(transport, u16::from_be_bytes([high, low])));
        }
        let (length, address) = key.split_first_chunk()?;
        let length = u8::try_from(u32::from_ne_bytes(*length)).ok()?;
        let address = match index {
            Index::Net4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        };
        Some(Subject::From(Net { address, length }))
    }

    /// Bits of the prefix; 0 for what has none.
    pub(super) const fn length(self) -> u8 {
        match self {
            Subject::From(net) => net.length,
            Subject::To(..) => 0,
        }
    }
}

/// `struct filter_entry`: where a key of an index leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Number of the rule.
    pub rule: u32,
    pub pass: bool,
    /// Bits of the prefix that led here.
    pub length: u8,
}

impl Entry {
    pub fn to_bytes(self) -> [u8; 8] {
        let [a, b, c, d] = self.rule.to_ne_bytes();
        [a, b, c, d, u8::from(self.pass), self.length, 0, 0]
    }

    pub fn of_bytes(bytes: &[u8]) -> Option<Entry> {
        let (rule, rest) = bytes.split_first_chunk()?;
        let [pass, length, ..] = *rest else { return None };
        Some(Entry { rule: u32::from_ne_bytes(*rule), pass: pass != 0, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_and_written() {
        for text in ["192.0.2.1", "192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32", "::1", "::/0", "128.0.0.0/1"] {
            assert_eq!(Net::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Net::parse("192.0.2.1/32").unwrap().to_string(), "192.0.2.1");
        assert_eq!(Net::parse("::1/128").unwrap(), Net::parse("::1").unwrap());
        for wrong in ["", "192.0.2", "192.0.2.1/", "192.0.2.0/33", "::/129", "192.0.2.0/+24", "192.0.2.0/-1", "host"] {
            assert!(Net::parse(wrong).is_err(), "{wrong}");
        }
        let said = Net::parse("192.0.2.77/24").unwrap_err();
        assert!(said.contains("it is 192.0.2.0/24, or the one address 192.0.2.77"), "{said}");
    }

    #[test]
    fn keys_lead_back_to_subjects() {
        let all = [
            Subject::From(Net::parse("192.0.2.0/24").unwrap()),
            Subject::From(Net::parse("0.0.0.0/0").unwrap()),
            Subject::From(Net::parse("2001:db8::/32").unwrap()),
            Subject::To(Transport::Tcp, 23),
            Subject::To(Transport::Udp, 65535),
        ];
        for subject in all {
            assert_eq!(Subject::of_key(subject.index(), &subject.key()), Some(subject), "{subject}");
        }
        assert_eq!(Subject::of_key(Index::Ports, &[0, 1, 1, 0]), None, "ICMP has no ports");
        assert_eq!(Subject::of_key(Index::Net4, &[32, 0, 0]), None);
        let entry = Entry { rule: 0x0102_0304, pass: true, length: 24 };
        assert_eq!(Entry::of_bytes(&entry.to_bytes()), Some(entry));
    }
}
