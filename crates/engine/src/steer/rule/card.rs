//! Rules as cards take them: `struct ethtool_rx_flow_spec` (`linux/ethtool.h`), native byte order but for what packets hold.
//!
//! ```text
//! 0          4                56           76               128          152            160
//! flow_type  values by type   values ext.  masks by type    masks ext.   ring_cookie    location
//! ```
//!
//! Bits of a mask that are set count here, as in [`Rule`]; `ethtool` says them the other way round on its command line.

use super::{Action, FIELDS, FLOW_TYPES, Field, Rule, RuleError, SCTP, TCP, Test, UDP};

/// Length of the structure.
pub const SPEC: usize = 168;

/// Where the values, their extension and the masks stand.
const VALUES: usize = 4;
const EXT: usize = 56;
const MASKS: usize = 76;
const COOKIE: usize = 152;
const LOCATION: usize = 160;
/// The extension is about VLAN tags; about the Ethernet destination.
const FLOW_EXT: u32 = 0x8000_0000;
const FLOW_MAC_EXT: u32 = 0x4000_0000;
/// `RX_CLS_FLOW_DISC`: dropped.
const DISCARD: u64 = u64::MAX;
/// `ETH_RX_NFC_IP4`, where the card is told which version of IP it is.
const IP_VERSION: (usize, u8) = (VALUES + 13, 1);

/// Numbers of the flow types (`TCP_V4_FLOW` …), in the order of [`FLOW_TYPES`].
const NUMBERS: [u32; 13] = [0x12, 0xd, 1, 2, 3, 9, 0xa, 0xe, 5, 6, 7, 0xb, 0xc];

/// Where a field stands, from the start of the structure, and its bytes; `None` for what the structure has no place for.
fn place(field: Field, ip: u8, protocol: u8) -> Option<(usize, usize)> {
    let (v4, ports) = (ip == 4, matches!(protocol, TCP | UDP | SCTP));
    // Addresses, then what follows them.
    let behind = if v4 { VALUES + 8 } else { VALUES + 32 };
    let address = if v4 { 4 } else { 16 };
    Some(match field {
        Field::MacDst if ip == 0 => (VALUES, 6),
        Field::MacSrc if ip == 0 => (VALUES + 6, 6),
        Field::MacSrc => return None,
        Field::EtherType => (VALUES + 12, 2),
        Field::Src => (VALUES, address),
        Field::Dst => (VALUES + address, address),
        Field::SrcPort if ports => (behind, 2),
        Field::DstPort if ports => (behind + 2, 2),
        Field::SrcPort | Field::DstPort => return None,
        Field::Spi | Field::L4Data => (behind, 4),
        Field::Tos => (behind + 4, 1),
        Field::Protocol if v4 => (VALUES + 14, 1),
        Field::Protocol => (behind + 5, 1),
        Field::MacDst => (EXT + 2, 6),
        Field::VlanProto => (EXT + 8, 2),
        Field::Vlan => (EXT + 10, 2),
    })
}

impl Rule {
    /// As a card takes it. Without a place of its own it names the one that is given.
    ///
    /// # Errors
    /// It compares something that the structure has no place for: the Ethernet source of IP packets.
    pub fn to_card(&self, location: u32) -> Result<[u8; SPEC], RuleError> {
        let mut spec = [0; SPEC];
        let at = FLOW_TYPES.iter().position(|known| *known == self.flow_type).unwrap_or_default();
        let mut number = NUMBERS[at];
        for test in &self.tests {
            let Some((at, len)) = place(test.field, self.flow_type.ip, self.flow_type.protocol) else {
                return Err(RuleError(format!("{}: cards have no place for it in their rules", test.word)));
            };
            number |= match at {
                EXT.. if test.field == Field::MacDst => FLOW_MAC_EXT,
                EXT.. => FLOW_EXT,
                _ => 0,
            };
            let bytes = |number: u128| number.to_be_bytes();
            spec[at..at + len].copy_from_slice(&bytes(test.value)[16 - len..]);
            spec[at + MASKS - VALUES..][..len].copy_from_slice(&bytes(test.mask)[16 - len..]);
        }
        if self.flow_type.ip == 4 && self.flow_type.protocol == 0 {
            spec[IP_VERSION.0] = IP_VERSION.1;
        }
        let cookie = match self.action {
            Action::Queue(queue) => u64::from(queue),
            Action::Drop => DISCARD,
        };
        spec[..4].copy_from_slice(&number.to_ne_bytes());
        spec[COOKIE..COOKIE + 8].copy_from_slice(&cookie.to_ne_bytes());
        spec[LOCATION..LOCATION + 4].copy_from_slice(&self.loc.unwrap_or(location).to_ne_bytes());
        Ok(spec)
    }

    /// What a card says that it does.
    ///
    /// # Errors
    /// A flow type that has no name here.
    pub fn from_card(spec: &[u8; SPEC]) -> Result<Rule, RuleError> {
        let word = |at: usize| spec[at..at + 4].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let number = word(0) & !(FLOW_EXT | FLOW_MAC_EXT);
        let at = NUMBERS.iter().position(|known| *known == number);
        let Some(flow_type) = at.map(|at| FLOW_TYPES[at]) else {
            return Err(RuleError(format!("flow type {number:#x} has no name")));
        };
        let mut tests: Vec<Test> = Vec::new();
        for &(word, field, ..) in FIELDS.iter().filter(|(.., has)| has(&flow_type)) {
            let Some((at, len)) = place(field, flow_type.ip, flow_type.protocol) else { continue };
            let read =
                |at: usize| spec[at..at + len].iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte));
            let (value, mask) = (read(at), read(at + MASKS - VALUES));
            if mask != 0 && tests.iter().all(|test| test.field != field) {
                tests.push(Test { word, field, value: value & mask, mask });
            }
        }
        let cookie = spec[COOKIE..COOKIE + 8].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let action = if cookie == DISCARD { Action::Drop } else { Action::Queue(cookie as u32) };
        Ok(Rule { flow_type, tests, action, loc: Some(word(LOCATION)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets of `linux/ethtool.h`, counted by hand.
    #[test]
    fn a_rule_lies_as_the_kernel_has_it() {
        let rule =
            Rule::parse("flow-type udp4 src-ip 10.1.2.3 dst-port 53 vlan 5 dst-mac 02:03:04:05:06:07 action 2 loc 9");
        let spec = rule.unwrap().to_card(0).unwrap();
        let mut want = [0u8; SPEC];
        want[..4].copy_from_slice(&0xc000_0002u32.to_ne_bytes());
        want[4..8].copy_from_slice(&[10, 1, 2, 3]);
        want[14..16].copy_from_slice(&[0, 53]);
        want[58..64].copy_from_slice(&[2, 3, 4, 5, 6, 7]);
        want[66..68].copy_from_slice(&[0, 5]);
        want[76..80].fill(255);
        want[86..88].fill(255);
        want[130..136].fill(255);
        want[138..140].fill(255);
        want[152..160].copy_from_slice(&2u64.to_ne_bytes());
        want[160..164].copy_from_slice(&9u32.to_ne_bytes());
        assert_eq!(spec, want);
        let any = Rule::parse("flow-type ip4 l4proto 1 action -1").unwrap().to_card(u32::MAX).unwrap();
        assert_eq!((any[17], any[18], any[90], any[89]), (1, 1, 255, 0));
        assert_eq!((any[152..160].to_vec(), any[160..164].to_vec()), (vec![255; 8], vec![255; 4]));
    }

    #[test]
    fn what_a_card_took_is_read_again() {
        for text in [
            "flow-type ether dst 02:00:00:00:00:01 proto 0x88cc action 2 loc 5",
            "flow-type tcp4 dst-port 22 m 255 action 2 loc 255",
            "flow-type udp4 src-ip 10.0.0.0 m 0.0.0.255 dst-port 4242 action -1 loc 1",
            "flow-type ip6 src-ip 2001:db8::1 l4proto 58 action 0 loc 0",
            "flow-type ip4 tos 16 l4data 0x50 vlan 5 m 61440 action 1 loc 7",
            "flow-type sctp6 dst-ip ::1 src-port 9 dst-mac 02:00:00:00:00:02 action 3 loc 2",
            "flow-type esp4 spi 0x10 action 3 loc 2",
            "flow-type ah6 spi 0x10 tclass 3 action 3 loc 2",
        ] {
            let rule = Rule::parse(text).unwrap();
            let back = Rule::from_card(&rule.to_card(0).unwrap()).unwrap();
            let sorted = |rule: &Rule| {
                let mut words: Vec<String> = rule.tests.iter().map(|test| format!("{test:?}")).collect();
                words.sort();
                (rule.flow_type, words, rule.action, rule.loc)
            };
            assert_eq!(sorted(&back), sorted(&rule), "{text}");
        }
        let error = Rule::parse("flow-type udp4 src-mac 02:00:00:00:00:01 action 1").unwrap().to_card(0).unwrap_err();
        assert!(error.to_string().starts_with("src-mac: cards have no place"), "{error}");
        assert!(Rule::from_card(&[0; SPEC]).is_err());
    }
}
