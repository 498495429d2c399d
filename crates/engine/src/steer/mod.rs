//! Steering: which queue a packet goes to, before any program runs, on ports without hardware that does it.
//!
//! ```text
//! packet ── rules, the smallest place first ──> queue | dropped
//!        └─ no rule: hash ── indirection table ──> queue
//!                    └─ no hash: stays where it came in
//! ```
//!
//! Queues of one port may belong to different workers: a packet that is to go elsewhere travels through the ring of that queue's
//! owner, as frames do that are sent. Programs find the hash in the receive metadata, with its type.

mod change;
mod flow;
mod rule;
mod toeplitz;

use std::collections::BTreeMap;

use xway_packet::{Frame, RxMeta};

pub use change::{Change, SteerError};
pub use flow::Flow;
pub use rule::{Action, LOCATIONS, Rule, RuleError, SPEC};
pub use toeplitz::{KEY_LEN, KEY_PUBLISHED, KEY_SYMMETRIC, Toeplitz};

/// Type bits of a hash (`enum xdp_rss_hash_type`).
mod hash_type {
    pub(super) const L3_IPV4: u32 = 1;
    pub(super) const L3_IPV6: u32 = 2;
    pub(super) const L4: u32 = 8;
    pub(super) const L4_TCP: u32 = 16;
    pub(super) const L4_UDP: u32 = 32;
    pub(super) const L4_SCTP: u32 = 64;
}

/// Receive-side scaling: a hash and the table that it looks its queue up in.
#[derive(Clone)]
pub struct Rss {
    key: [u8; KEY_LEN],
    toeplitz: Toeplitz,
    /// Queues, by the low bits of the hash; a power of two of entries.
    indirection: Vec<u32>,
}

impl Rss {
    /// Entries of an indirection table, at most.
    pub const ENTRIES_MAX: usize = 4096;

    /// With this key and these queues by hash; the table's length is rounded up to a power of two by going through it again.
    /// An empty table means queue 0.
    pub fn new(key: &[u8; KEY_LEN], queues: &[u32]) -> Rss {
        let len = queues.len().clamp(1, Self::ENTRIES_MAX).next_power_of_two();
        let all = queues.iter().copied().cycle().chain(std::iter::repeat(0));
        Rss { key: *key, toeplitz: Toeplitz::new(key), indirection: all.take(len).collect() }
    }

    /// Spreads evenly over the first `queues` queues (`ethtool -X DEV equal N`), with 128 entries.
    pub fn equal(key: &[u8; KEY_LEN], queues: u32) -> Rss {
        let table: Vec<u32> = (0..128).map(|entry| entry % queues.max(1)).collect();
        Rss::new(key, &table)
    }

    /// The key.
    pub fn key(&self) -> &[u8; KEY_LEN] {
        &self.key
    }

    /// The table.
    pub fn indirection(&self) -> &[u32] {
        &self.indirection
    }

    /// Hash and its type; `None` for what is neither IPv4 nor IPv6.
    pub fn hash(&self, flow: &Flow) -> Option<(u32, u32)> {
        let mut input = [0; 36];
        let (addresses, mut kind) = match flow.ip {
            4 => {
                input[..4].copy_from_slice(&(flow.src as u32).to_be_bytes());
                input[4..8].copy_from_slice(&(flow.dst as u32).to_be_bytes());
                (8, hash_type::L3_IPV4)
            }
            6 => {
                input[..16].copy_from_slice(&flow.src.to_be_bytes());
                input[16..32].copy_from_slice(&flow.dst.to_be_bytes());
                (32, hash_type::L3_IPV6)
            }
            _ => return None,
        };
        let mut len = addresses;
        if let Some((source, destination)) = flow.ports {
            input[len..len + 2].copy_from_slice(&source.to_be_bytes());
            input[len + 2..len + 4].copy_from_slice(&destination.to_be_bytes());
            len += 4;
            kind |= hash_type::L4
                | match flow.protocol {
                    flow::TCP => hash_type::L4_TCP,
                    flow::UDP => hash_type::L4_UDP,
                    _ => hash_type::L4_SCTP,
                };
        }
        Some((self.toeplitz.hash(&input[..len]), kind))
    }
}

/// What steers the packets of a port. Built by control, read by workers, exchanged whole.
#[derive(Clone, Default)]
pub struct Steering {
    rules: BTreeMap<u32, Rule>,
    rss: Option<Rss>,
}

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It stays on the queue that it came in on.
    Stay,
    /// To this queue.
    Queue(u32),
    /// Nowhere.
    Drop,
}

impl Steering {
    /// Without rules and hash: packets stay.
    pub fn new() -> Steering {
        Steering::default()
    }

    /// With receive-side scaling.
    pub fn with_rss(mut self, rss: Rss) -> Steering {
        self.rss = Some(rss);
        self
    }

    /// Adds a rule, in place of the one that is at its place. One that names no place gets the last one that is free.
    ///
    /// # Errors
    /// The rule that found no place.
    pub fn insert(&mut self, mut rule: Rule) -> Result<u32, Rule> {
        let free = || (0..LOCATIONS).rev().find(|loc| !self.rules.contains_key(loc));
        let Some(loc) = rule.loc.or_else(free) else { return Err(rule) };
        rule.loc = Some(loc);
        self.rules.insert(loc, rule);
        Ok(loc)
    }

    /// Takes away the rule at a place, and says whether there was one.
    pub fn remove(&mut self, loc: u32) -> bool {
        self.rules.remove(&loc).is_some()
    }

    /// The rules in the order in which they are tried.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.values()
    }

    /// Receive-side scaling, where it is on.
    pub fn rss(&self) -> Option<&Rss> {
        self.rss.as_ref()
    }

    /// Decides about a packet. Cost: reading its headers, one comparison for each field of each rule, the hash.
    pub fn decide(&self, frame: &mut Frame) -> Decision {
        let flow = Flow::of(frame.packet());
        let meta = frame.rx_meta();
        let hash = match meta.hash {
            // What the device computed counts.
            Some(hash) => Some(hash),
            None => {
                let hash = self.rss.as_ref().and_then(|rss| rss.hash(&flow));
                if hash.is_some() {
                    frame.set_rx_meta(RxMeta { hash, ..meta });
                }
                hash
            }
        };
        match self.rules.values().find(|rule| rule.matches(&flow)).map(|rule| rule.action) {
            Some(Action::Queue(queue)) => Decision::Queue(queue),
            Some(Action::Drop) => Decision::Drop,
            None => match (&self.rss, hash) {
                (Some(rss), Some((hash, _))) => {
                    Decision::Queue(rss.indirection[hash as usize & (rss.indirection.len() - 1)])
                }
                _ => Decision::Stay,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use xway_packet::{Pool, PoolConfig};

    use super::*;

    fn udp(sport: u16, dport: u16) -> Vec<u8> {
        let mut packet = vec![2; 12];
        packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([sport.to_be_bytes(), dport.to_be_bytes()].concat());
        packet.extend([0, 8, 0, 0]);
        packet
    }

    #[test]
    fn rules_come_first_in_the_order_of_their_places_then_the_hash() {
        let mut steering = Steering::new().with_rss(Rss::equal(&KEY_PUBLISHED, 4));
        let rule = |text: &str| Rule::parse(text).unwrap();
        assert_eq!(steering.insert(rule("flow-type udp4 dst-port 53 action 9 loc 7")), Ok(7));
        assert_eq!(steering.insert(rule("flow-type udp4 src-port 99 action -1 loc 3")), Ok(3));
        assert_eq!(steering.insert(rule("flow-type ip4 dst-ip 9.9.9.9 action 1")), Ok(1023));
        let mut pool = Pool::new(PoolConfig::new(4)).unwrap();
        let mut frame = pool.alloc().unwrap();
        let mut decide = |steering: &Steering, packet: &[u8]| {
            frame.reset();
            frame.fill(packet).unwrap();
            (steering.decide(&mut frame), frame.rx_meta().hash)
        };
        assert_eq!(decide(&steering, &udp(1, 53)).0, Decision::Queue(9));
        assert_eq!(decide(&steering, &udp(99, 53)).0, Decision::Drop);
        let (decision, hash) = decide(&steering, &udp(1, 2));
        let (hash, kind) = hash.unwrap();
        assert_eq!(decision, Decision::Queue(hash % 128 % 4));
        assert_eq!(kind, 1 | 8 | 32, "IPv4, with the ports of UDP");
        // The same place again: the rule is another one.
        steering.insert(rule("flow-type udp4 dst-port 53 action 8 loc 7")).unwrap();
        assert_eq!(decide(&steering, &udp(1, 53)).0, Decision::Queue(8));
        assert!(steering.remove(7) && !steering.remove(7));
        assert_eq!(decide(&steering, &[0; 60]), (Decision::Stay, None), "no IP, no hash");
        pool.release(frame);
    }

    #[test]
    fn a_table_without_room_says_so() {
        let mut steering = Steering::new();
        let rule = Rule::parse("flow-type ether action 0").unwrap();
        (0..LOCATIONS).for_each(|_| assert!(steering.insert(rule.clone()).is_ok()));
        assert!(steering.insert(rule.clone()).is_err());
        let mut named = rule;
        named.loc = Some(5);
        assert_eq!(steering.insert(named), Ok(5));
        assert_eq!(steering.rules().count() as u32, LOCATIONS);
    }

    #[test]
    fn flows_spread_over_the_queues_of_the_table() {
        let rss = Rss::equal(&KEY_PUBLISHED, 3);
        let mut counts = [0; 3];
        for port in 0..3000 {
            let (hash, _) = rss.hash(&Flow::of(&udp(port, 80))).unwrap();
            counts[rss.indirection()[hash as usize % 128] as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_eq!(Rss::new(&KEY_PUBLISHED, &[5, 6, 7]).indirection(), [5, 6, 7, 5]);
    }
}
