//! Routes as `bpf_fib_lookup` asks for them: a query, an answer, and tables that answer it.
//!
//! [`Tables`] is a plain copy of what a kernel knows: interfaces, rules, routes, neighbours. Filled over netlink it is the
//! machine's own; filled by hand it makes tests repeatable. Looking up follows what the helper does in Linux, in the same
//! order, so that the first thing that is wrong is the one that is reported.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use xway_abi::Errno;

use super::prefixes::{Keyed, Prefixes, number};

/// What a program asks (`struct bpf_fib_lookup`, input side). Numbers in host order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FibQuery {
    /// Interface that the packet came in on (with `output`: that it leaves by).
    pub ifindex: u32,
    /// Source address; the same family as `dst`.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Type of service.
    pub tos: u8,
    /// Protocol number of the next header.
    pub l4_proto: u8,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Length of the packet from the network header on; 0 asks for no check against the MTU.
    pub tot_len: u16,
    /// `BPF_FIB_LOOKUP_DIRECT`: one table, no rules.
    pub direct: bool,
    /// `BPF_FIB_LOOKUP_TBID`: that table.
    pub table: Option<u32>,
    /// `BPF_FIB_LOOKUP_OUTPUT`: as if the machine itself sent it.
    pub output: bool,
    /// `BPF_FIB_LOOKUP_SKIP_NEIGH`: no neighbour is wanted.
    pub skip_neigh: bool,
    /// `BPF_FIB_LOOKUP_SRC`: a source address is wanted.
    pub want_src: bool,
    /// `BPF_FIB_LOOKUP_MARK`: mark for the rules, else 0.
    pub mark: u32,
}

/// What the helper returns (`BPF_FIB_LKUP_RET_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum FibCode {
    /// Forward it.
    #[default]
    Success = 0,
    /// A blackhole route.
    Blackhole = 1,
    /// An unreachable route.
    Unreachable = 2,
    /// A prohibit route.
    Prohibit = 3,
    /// The packet is not forwarded: local, broadcast, or no route.
    NotForwarded = 4,
    /// Forwarding is off on the interface.
    ForwardingDisabled = 5,
    /// The route wants an encapsulation.
    UnsupportedLwt = 6,
    /// The neighbour's address is not known.
    NoNeighbour = 7,
    /// Too long for the route.
    FragNeeded = 8,
    /// No source address could be found.
    NoSourceAddress = 9,
}

/// What was found. Fields that are `None` leave the program's structure as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FibAnswer {
    /// Result of the helper.
    pub code: FibCode,
    /// MTU of the route.
    pub mtu: Option<u16>,
    /// Interface to send through.
    pub ifindex: Option<u32>,
    /// Metric of the route.
    pub metric: Option<u32>,
    /// Gateway, which takes the place of the destination; may be of the other family.
    pub gateway: Option<IpAddr>,
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination and source Ethernet address.
    pub macs: Option<([u8; 6], [u8; 6])>,
    /// The table's number in the program's structure has been used up: the field becomes zero.
    pub table_used: bool,
}

impl FibAnswer {
    /// The packet can be sent.
    pub fn forwards(&self) -> bool {
        self.code == FibCode::Success
    }
}

/// An interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Link {
    /// Index.
    pub ifindex: u32,
    /// MTU without the link header.
    pub mtu: u32,
    /// Length of the link header: 14 for Ethernet.
    pub header_len: u32,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Table of the VRF that it belongs to, 0 for none.
    pub vrf_table: u32,
    /// IPv4 is set up on it, and forwarding is on.
    pub forward_v4: bool,
    /// The same for IPv6.
    pub forward_v6: bool,
    /// Administratively up and with carrier.
    pub up: bool,
}

/// Kinds of route that the look-up tells apart (`RTN_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteType {
    /// Forward.
    Unicast,
    /// Drop silently.
    Blackhole,
    /// Answer "host unreachable".
    Unreachable,
    /// Answer "prohibited".
    Prohibit,
    /// Go on with the next rule.
    Throw,
    /// Local, broadcast, multicast, anycast.
    Other,
}

/// One way on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextHop {
    /// Interface.
    pub ifindex: u32,
    /// Gateway; none when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Weight among several, from 1.
    pub weight: u32,
    /// Wants an encapsulation.
    pub lwt: bool,
    /// Cannot be used: link down or marked dead.
    pub dead: bool,
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Table.
    pub table: u32,
    /// Prefix.
    pub prefix: IpAddr,
    /// Prefix length.
    pub prefix_len: u8,
    /// Type of service that it is for, 0 for any (IPv4).
    pub tos: u8,
    /// Metric; smaller is preferred.
    pub metric: u32,
    /// Kind.
    pub kind: RouteType,
    /// MTU set on the route that counts when forwarding, 0 for none.
    pub mtu: u32,
    /// Preferred source address.
    pub prefsrc: Option<IpAddr>,
    /// Ways on; empty unless unicast.
    pub hops: Vec<NextHop>,
}

/// What a policy rule does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleAction {
    /// Look into this table.
    Table(u32),
    /// Go on with the rule of this priority.
    Goto(u32),
    /// Nothing.
    Nop,
    /// End with this kind.
    End(RouteType),
}

/// A policy rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Rules are tried by rising priority.
    pub priority: u32,
    /// For IPv6.
    pub v6: bool,
    /// Source prefix.
    pub src: Option<(IpAddr, u8)>,
    /// Destination prefix.
    pub dst: Option<(IpAddr, u8)>,
    /// Type of service, 0 for any.
    pub tos: u8,
    /// Mark and mask.
    pub mark: (u32, u32),
    /// Incoming interface, 0 for any.
    pub iif: u32,
    /// Outgoing interface, 0 for any.
    pub oif: u32,
    /// Protocol, 0 for any.
    pub l4_proto: u8,
    /// Source ports.
    pub sport: Option<(u16, u16)>,
    /// Destination ports.
    pub dport: Option<(u16, u16)>,
    /// Matches what does not match.
    pub invert: bool,
    /// Of a VRF: the table is that of the interface.
    pub l3mdev: bool,
    /// What it does.
    pub action: RuleAction,
    /// Routes with prefixes up to this length are passed over (`suppress_prefixlength`), -1 for none.
    pub suppress_prefix_len: i32,
}

/// Interfaces, rules, routes and neighbours.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// By rising index.
    links: Vec<Link>,
    /// Of IPv4 and of IPv6, each with whether it matches everything.
    rules: [Vec<(bool, Rule)>; 2],
    /// By rising key.
    routes: Vec<Prefixes>,
    neighbours: HashMap<Neighbour, [u8; 6], Keyed>,
    addresses: Vec<(u32, IpAddr)>,
}

/// Interface, whether it is IPv6, address.
type Neighbour = (u32, u32, u128);

fn neighbour(ifindex: u32, addr: IpAddr) -> Neighbour {
    (ifindex, addr.is_ipv6().into(), number(addr))
}

/// The loopback interface's index in every name space.
const LOOPBACK: u32 = 1;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
const TABLE_DEFAULT: u32 = 253;

impl Tables {
    /// Adds or replaces an interface.
    pub fn set_link(&mut self, link: Link) {
        match self.links.binary_search_by_key(&link.ifindex, |l| l.ifindex) {
            Ok(at) => self.links[at] = link,
            Err(at) => self.links.insert(at, link),
        }
    }

    /// The interface with this index.
    #[inline]
    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        // Where none has gone the indexes are 1, 2, 3 and so on.
        let likely = self.links.get((ifindex as usize).wrapping_sub(1)).filter(|l| l.ifindex == ifindex);
        likely.or_else(|| self.links.binary_search_by_key(&ifindex, |l| l.ifindex).ok().map(|at| &self.links[at]))
    }

    /// Removes all interfaces.
    pub fn clear_links(&mut self) {
        self.links.clear();
    }

    /// Removes all routes.
    pub fn clear_routes(&mut self) {
        self.routes.clear();
    }

    /// Removes all neighbours.
    pub fn clear_neighbours(&mut self) {
        self.neighbours.clear();
    }

    /// Removes all interface addresses.
    pub fn clear_addresses(&mut self) {
        self.addresses.clear();
    }

    /// Replaces the rules. Without any, the tables `local`, `main` and `default` are asked in this order.
    pub fn set_rules(&mut self, mut rules: Vec<Rule>) {
        rules.sort_by_key(|r| r.priority);
        self.rules = Default::default();
        for rule in rules {
            self.rules[usize::from(rule.v6)].push((rule.matches_all(), rule));
        }
    }

    /// Adds a route.
    pub fn add_route(&mut self, mut route: Route) {
        let v6 = route.prefix.is_ipv6();
        route.prefix_len = route.prefix_len.min(if v6 { 128 } else { 32 });
        route.prefix = mask(route.prefix, route.prefix_len);
        let key = (route.table, v6);
        let table = self.routes.binary_search_by_key(&key, |p| p.key).unwrap_or_else(|at| {
            self.routes.insert(at, Prefixes::new(key));
            at
        });
        let same = self.routes[table].routes_mut(route.prefix, route.prefix_len);
        // A specific type of service before the general, then the smaller metric.
        let at = same
            .partition_point(|r| (std::cmp::Reverse(r.tos), r.metric) <= (std::cmp::Reverse(route.tos), route.metric));
        // IPv6 sends each way of a multipath route on its own.
        if v6
            && let Some(first) = same.iter_mut().find(|r| r.metric == route.metric && r.kind == RouteType::Unicast)
            && route.kind == RouteType::Unicast
        {
            first.hops.append(&mut route.hops);
            return;
        }
        same.insert(at, route);
    }

    /// Adds a neighbour whose address is valid.
    pub fn set_neighbour(&mut self, ifindex: u32, addr: IpAddr, mac: [u8; 6]) {
        self.neighbours.insert(neighbour(ifindex, addr), mac);
    }

    /// Adds an address of an interface.
    pub fn add_address(&mut self, ifindex: u32, addr: IpAddr) {
        self.addresses.push((ifindex, addr));
    }

    /// Answers a query as `bpf_fib_lookup` does. `ENODEV` when the interface does not exist.
    pub fn lookup(&self, q: &FibQuery) -> Result<FibAnswer, Errno> {
        let code = |code| Ok(FibAnswer { code, ..FibAnswer::default() });
        // IPv6 addresses that mean something on one link only are never forwarded.
        if local_to_link(q.dst) || local_to_link(q.src) {
            return code(FibCode::NotForwarded);
        }
        let link = self.link(q.ifindex).ok_or(Errno::ENODEV)?;
        let v6 = q.dst.is_ipv6();
        if !(if v6 { link.forward_v6 } else { link.forward_v4 }) {
            return code(FibCode::ForwardingDisabled);
        }
        let found = if q.direct {
            let vrf = if link.vrf_table != 0 { link.vrf_table } else { TABLE_MAIN };
            let table = q.table.map_or(vrf, |t| if t == 0 { TABLE_MAIN } else { t });
            self.in_table(table, q, -1)
        } else {
            self.by_rules(q, link)
        };
        let code = |code| Ok(FibAnswer { code, table_used: q.direct && q.table.is_some(), ..FibAnswer::default() });
        let Some(found) = found else { return code(FibCode::NotForwarded) };
        let route = match found {
            Found::Route(route) => route,
            Found::End(kind) => return code(end_code(kind)),
        };
        if route.kind != RouteType::Unicast {
            return code(end_code(route.kind));
        }
        let Some(hop) = choose(route, q) else { return code(FibCode::NotForwarded) };
        let out = self.link(hop.ifindex);
        let mtu = match route.mtu {
            0 => out.map_or(1500, |l| l.mtu),
            set => set,
        };
        // The field for the length in carries the MTU out, cut to 16 bits.
        if u32::from(q.tot_len) > mtu {
            return code(FibCode::FragNeeded).map(|answer| FibAnswer { mtu: Some(mtu as u16), ..answer });
        }
        if hop.lwt {
            return code(FibCode::UnsupportedLwt);
        }
        let mut answer = code(FibCode::Success)?;
        (answer.ifindex, answer.metric, answer.gateway) = (Some(hop.ifindex), Some(route.metric), hop.gateway);
        if q.want_src {
            answer.src = route.prefsrc.or_else(|| self.source_for(hop.ifindex, hop.gateway.unwrap_or(q.dst), v6));
            if answer.src.is_none() {
                answer.code = FibCode::NoSourceAddress;
                return Ok(answer);
            }
        }
        if !q.skip_neigh {
            let next = hop.gateway.unwrap_or(q.dst);
            match self.neighbours.get(&neighbour(hop.ifindex, next)) {
                Some(mac) => answer.macs = Some((*mac, out.map_or([0; 6], |l| l.mac))),
                None => {
                    answer.code = FibCode::NoNeighbour;
                    return Ok(answer);
                }
            }
        }
        answer.mtu = Some(mtu as u16);
        Ok(answer)
    }

    fn by_rules(&self, q: &FibQuery, link: &Link) -> Option<Found<'_>> {
        if self.rules.iter().all(Vec::is_empty) {
            let vrf = Some(link.vrf_table).filter(|t| *t != 0);
            let tables = vrf.into_iter().chain([TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT]);
            return tables.into_iter().find_map(|t| self.in_table(t, q, -1)).filter(|f| !f.is_throw());
        }
        let mut from = 0;
        for (all, rule) in &self.rules[usize::from(q.dst.is_ipv6())] {
            if rule.priority < from || !(*all || rule.matches(q, link)) {
                continue;
            }
            match rule.action {
                RuleAction::Nop => {}
                RuleAction::Goto(priority) => from = priority,
                RuleAction::End(kind) => return Some(Found::End(kind)),
                RuleAction::Table(table) => {
                    let table = if rule.l3mdev { link.vrf_table } else { table };
                    match self.in_table(table, q, rule.suppress_prefix_len) {
                        Some(f) if !f.is_throw() => return Some(f),
                        _ => {}
                    }
                }
            }
        }
        None
    }

    /// The longest prefix in one table that has a usable way on.
    fn in_table(&self, table: u32, q: &FibQuery, suppress: i32) -> Option<Found<'_>> {
        /// Tables that are gone through sooner than they are searched.
        const FEW: usize = 12;
        let key = (table, q.dst.is_ipv6());
        let table = match self.routes.len() {
            ..=FEW => self.routes.iter().find(|p| p.key == key)?,
            _ => &self.routes[self.routes.binary_search_by_key(&key, |p| p.key).ok()?],
        };
        let dst = number(q.dst);
        for n in 0..table.count() {
            let Some((len, routes)) = table.nth(n, dst) else { continue };
            for route in routes {
                let tos_fits = route.tos == 0 || route.tos == q.tos & 0xfc;
                let alive = route.kind != RouteType::Unicast || route.hops.iter().any(|h| usable(h, q));
                if tos_fits && alive {
                    if i32::from(len) <= suppress {
                        return None;
                    }
                    return Some(Found::Route(route));
                }
            }
        }
        None
    }

    /// An address of the interface, or of any other, that can stand as source.
    fn source_for(&self, ifindex: u32, next: IpAddr, v6: bool) -> Option<IpAddr> {
        let common = |a: &IpAddr| match (a, next) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(*a) ^ u32::from(b)).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(*a) ^ u128::from(b)).leading_zeros(),
            _ => 0,
        };
        let mine = self.addresses.iter().filter(|(i, a)| *i == ifindex && a.is_ipv6() == v6);
        // Among equals the first that was configured.
        let best = mine.rev().max_by_key(|(_, a)| common(a));
        best.or_else(|| self.addresses.iter().find(|(i, a)| *i != LOOPBACK && a.is_ipv6() == v6)).map(|(_, a)| *a)
    }
}

enum Found<'t> {
    Route(&'t Route),
    End(RouteType),
}

impl Found<'_> {
    fn is_throw(&self) -> bool {
        matches!(self, Found::Route(Route { kind: RouteType::Throw, .. }) | Found::End(RouteType::Throw))
    }
}

fn end_code(kind: RouteType) -> FibCode {
    match kind {
        RouteType::Blackhole => FibCode::Blackhole,
        RouteType::Unreachable => FibCode::Unreachable,
        RouteType::Prohibit => FibCode::Prohibit,
        RouteType::Unicast | RouteType::Throw | RouteType::Other => FibCode::NotForwarded,
    }
}

fn usable(hop: &NextHop, q: &FibQuery) -> bool {
    // IPv6 takes the outgoing interface as a wish, IPv4 as a condition.
    !hop.dead && (!q.output || q.dst.is_ipv6() || hop.ifindex == q.ifindex)
}

/// One way on out of several: the same for all packets between the same addresses, in proportion to the weights.
fn choose<'r>(route: &'r Route, q: &FibQuery) -> Option<&'r NextHop> {
    let wished = q.output && route.hops.iter().any(|h| usable(h, q) && h.ifindex == q.ifindex);
    let hops = || route.hops.iter().filter(|h| usable(h, q) && (!wished || h.ifindex == q.ifindex));
    if let [only] = &route.hops[..] {
        return Some(only).filter(|h| usable(h, q));
    }
    let total: u64 = hops().map(|h| u64::from(h.weight.max(1))).sum();
    if total == 0 {
        return None;
    }
    let mut seed = match (q.src, q.dst) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u64::from(u32::from(a)) << 32 | u64::from(u32::from(b)),
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let x = u128::from(a) ^ u128::from(b).rotate_left(1);
            (x >> 64) as u64 ^ x as u64
        }
        _ => 0,
    };
    let mut point = super::random::splitmix(&mut seed) % total;
    hops().find(|h| {
        let weight = u64::from(h.weight.max(1));
        let here = point < weight;
        point = point.wrapping_sub(weight);
        here
    })
}

impl Rule {
    fn matches_all(&self) -> bool {
        let (any, ports) = (self.src.is_none() && self.dst.is_none(), self.sport.is_none() && self.dport.is_none());
        let zero = self.tos == 0 && self.mark.1 == 0 && self.iif == 0 && self.oif == 0 && self.l4_proto == 0;
        any && ports && zero && !self.l3mdev && !self.invert
    }

    fn matches(&self, q: &FibQuery, link: &Link) -> bool {
        let within = |net: &Option<(IpAddr, u8)>, addr| net.is_none_or(|(p, len)| mask(addr, len) == mask(p, len));
        let (iif, oif) = if q.output { (LOOPBACK, q.ifindex) } else { (q.ifindex, 0) };
        let port = |range: Option<(u16, u16)>, p| range.is_none_or(|(a, b)| (a..=b).contains(&p));
        let all = within(&self.src, q.src)
            && within(&self.dst, q.dst)
            && (self.tos == 0 || self.tos == q.tos & 0xfc)
            && (q.mark ^ self.mark.0) & self.mark.1 == 0
            && (self.iif == 0 || self.iif == iif)
            && (self.oif == 0 || self.oif == oif)
            && (self.l4_proto == 0 || self.l4_proto == q.l4_proto)
            && port(self.sport, q.sport)
            && port(self.dport, q.dport)
            && (!self.l3mdev || link.vrf_table != 0);
        all != self.invert
    }
}

fn local_to_link(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => a.is_multicast() || a.is_unicast_link_local() || a.is_loopback(),
    }
}

/// The network part of an address.
fn mask(addr: IpAddr, len: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => {
            let m = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(a) & m))
        }
        IpAddr::V6(a) => {
            let m = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(a) & m))
        }
    }
}
