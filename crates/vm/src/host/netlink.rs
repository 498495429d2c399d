//! A copy of the kernel's routing state, kept up to date over one rtnetlink socket pair.
//!
//! One socket asks for whole tables, the other is subscribed to changes. Before a look-up the second is asked, without
//! waiting, whether anything has changed; what has is asked for again. So a look-up costs one system call when nothing
//! changes, and sees every change that the kernel announced before it. Where packets come in bursts only the first look-up of
//! each burst asks.
//!
//! Messages come from the kernel, but are read as if they did not: every length is checked, and what does not parse is
//! passed over. Layouts: `linux/netlink.h`, `linux/rtnetlink.h`, `linux/if_link.h`, `linux/neighbour.h`, `linux/fib_rules.h`.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno as Io;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use xway_abi::Errno;
use xway_netlink::{F_DUMP, Protocol, Socket, attributes, half, word};

use super::route::{Link, NextHop, Route, RouteType, Rule, RuleAction, Tables};

const NEWLINK: u16 = 16;
const GETLINK: u16 = 18;
const NEWADDR: u16 = 20;
const GETADDR: u16 = 22;
const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;
const NEWNEIGH: u16 = 28;
const GETNEIGH: u16 = 30;
const NEWRULE: u16 = 32;
const GETRULE: u16 = 34;
const NEWNETCONF: u16 = 80;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Groups of announcements: links, neighbours, IPv4 and IPv6 addresses, routes, rules and forwarding.
const GROUPS: u32 = {
    const LINK: u32 = 1;
    const NEIGH: u32 = 3;
    const V4_ADDR: u32 = 5;
    const V4_ROUTE: u32 = 7;
    const V4_RULE: u32 = 8;
    const V6_ADDR: u32 = 9;
    const V6_ROUTE: u32 = 11;
    const V6_RULE: u32 = 19;
    const V4_NETCONF: u32 = 24;
    const V6_NETCONF: u32 = 25;
    let groups = [LINK, NEIGH, V4_ADDR, V4_ROUTE, V4_RULE, V6_ADDR, V6_ROUTE, V6_RULE, V4_NETCONF, V6_NETCONF];
    let mut mask = 0;
    let mut i = 0;
    while i < groups.len() {
        mask |= 1 << (groups[i] - 1);
        i += 1;
    }
    mask
};

/// What must be asked for again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stale {
    links: bool,
    addresses: bool,
    routes: bool,
    neighbours: bool,
    rules: bool,
}

impl Stale {
    const ALL: Stale = Stale { links: true, addresses: true, routes: true, neighbours: true, rules: true };
    const NONE: Stale = Stale { links: false, addresses: false, routes: false, neighbours: false, rules: false };
}

/// Both sockets and the copy.
pub(super) struct Netlink {
    ask: Socket,
    news: Socket,
    stale: Stale,
    tables: Tables,
    /// How often changes were asked for.
    #[cfg(test)]
    pub(super) looks: u64,
}

impl Netlink {
    /// Opens the sockets, in the network name space of the calling thread.
    #[inline(never)]
    pub(super) fn open() -> Result<Netlink, Errno> {
        // Subscribed before anything is asked for: no change can fall between.
        let news = Socket::open(Protocol::Route, GROUPS).map_err(|e| e.errno)?;
        let ask = Socket::open(Protocol::Route, 0).map_err(|e| e.errno)?;
        Ok(Netlink {
            ask,
            news,
            stale: Stale::ALL,
            tables: Tables::default(),
            #[cfg(test)]
            looks: 0,
        })
    }

    /// The copy.
    #[inline]
    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Makes the copy the kernel's, as of now if changes are to be asked for.
    #[inline]
    pub(super) fn renew(&mut self, look: bool) -> Result<(), Errno> {
        if look {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            self.read_news();
        }
        if self.stale == Stale::NONE { Ok(()) } else { self.refresh() }
    }

    #[inline(never)]
    fn read_news(&mut self) {
        let mut stale = self.stale;
        let read = self.news.announcements(|kind| match kind & !3 {
            // Forwarding and VRF membership are facts of the link; a link that goes takes routes with it.
            NEWLINK => (stale.links, stale.routes) = (true, true),
            NEWNETCONF => stale.links = true,
            NEWADDR => stale.addresses = true,
            NEWROUTE => stale.routes = true,
            NEWNEIGH => stale.neighbours = true,
            NEWRULE => stale.rules = true,
            _ => {}
        });
        self.stale = if read.is_ok() { stale } else { Stale::ALL };
    }

    /// Asks again for what is stale; for everything, the next time, where that fails.
    #[cold]
    fn refresh(&mut self) -> Result<(), Errno> {
        let stale = std::mem::replace(&mut self.stale, Stale::ALL);
        self.refresh_what(stale)?;
        self.stale = Stale::NONE;
        Ok(())
    }

    fn refresh_what(&mut self, stale: Stale) -> Result<(), Errno> {
        if stale.links {
            let mut links = vec![];
            self.dump(GETLINK, 0, |body| links.extend(link(body)))?;
            self.tables.clear_links();
            // Members of a VRF take its table.
            let tables: Vec<(u32, u32)> = links.iter().map(|(l, _)| (l.ifindex, l.vrf_table)).collect();
            for (mut l, master) in links {
                let of = tables.iter().find(|(i, t)| *i == master && *t != 0).map_or(0, |(_, t)| *t);
                l.vrf_table = if l.vrf_table != 0 { l.vrf_table } else { of };
                self.tables.set_link(l);
            }
        }
        if stale.addresses {
            let mut all = vec![];
            self.dump(GETADDR, 0, |body| all.extend(address(body)))?;
            self.tables.clear_addresses();
            all.into_iter().for_each(|(ifindex, addr)| self.tables.add_address(ifindex, addr));
        }
        if stale.routes {
            let mut all = vec![];
            for family in [AF_INET, AF_INET6] {
                self.dump(GETROUTE, family, |body| all.extend(route(body)))?;
            }
            self.tables.clear_routes();
            all.into_iter().for_each(|r| self.tables.add_route(r));
        }
        if stale.neighbours {
            let mut all = vec![];
            self.dump(GETNEIGH, 0, |body| all.extend(neighbour(body)))?;
            self.tables.clear_neighbours();
            all.into_iter().for_each(|(i, a, mac)| self.tables.set_neighbour(i, a, mac));
        }
        if stale.rules {
            let mut all = vec![];
            for family in [AF_INET, AF_INET6] {
                self.dump(GETRULE, family, |body| all.extend(rule(body)))?;
            }
            self.tables.set_rules(all);
        }
        Ok(())
    }

    /// Asks for a whole table and hands each message's body to `each`.
    fn dump(&mut self, kind: u16, family: u8, each: impl FnMut(&[u8])) -> Result<(), Errno> {
        /// Longest of the headers that requests carry (`struct ifinfomsg`), zero but for the family.
        const BODY: usize = 16;
        let mut body = [0u8; BODY];
        body[0] = family;
        self.ask.request(kind, F_DUMP, &body, each).map_err(|e| e.errno)
    }
}

fn addr(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

/// `struct ifinfomsg`; with the link its master.
fn link(body: &[u8]) -> Option<(Link, u32)> {
    const ETHER: u16 = 1;
    const LOOPBACK: u16 = 772;
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_MTU: u16 = 4;
    const IFLA_MASTER: u16 = 10;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_AF_SPEC: u16 = 26;
    const IFF_UP: u32 = 1;
    let (hardware, ifindex, flags) = (half(body, 2)?, word(body, 4)?, word(body, 8)?);
    let header_len = if matches!(hardware, ETHER | LOOPBACK) { 14 } else { 0 };
    let mut link = Link { ifindex, header_len, up: flags & IFF_UP != 0, ..Link::default() };
    let mut master = 0;
    for (kind, content) in attributes(body.get(16..)?) {
        match kind {
            IFLA_ADDRESS => link.mac = content.first_chunk().copied().unwrap_or_default(),
            IFLA_MTU => link.mtu = word(content, 0)?,
            IFLA_MASTER => master = word(content, 0)?,
            IFLA_LINKINFO => link.vrf_table = vrf_table(content).unwrap_or(0),
            IFLA_AF_SPEC => {
                for (family, content) in attributes(content) {
                    match family as u8 {
                        // IFLA_INET_CONF: an array of words; forwarding is the first (IPV4_DEVCONF_FORWARDING is 1).
                        AF_INET => link.forward_v4 = conf(content, 1) == Some(1),
                        // IFLA_INET6_CONF: forwarding is the first of the array.
                        AF_INET6 => link.forward_v6 = conf(content, 2) == Some(1),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some((link, master))
}

/// The first word of the array in attribute `which`.
fn conf(content: &[u8], which: u16) -> Option<u32> {
    attributes(content).find(|(kind, _)| *kind == which).and_then(|(_, c)| word(c, 0))
}

fn vrf_table(info: &[u8]) -> Option<u32> {
    const KIND: u16 = 1;
    const DATA: u16 = 2;
    const VRF_TABLE: u16 = 1;
    let is_vrf = attributes(info).any(|(k, c)| k == KIND && c.starts_with(b"vrf"));
    let data = attributes(info).find(|(k, _)| *k == DATA).filter(|_| is_vrf)?.1;
    attributes(data).find(|(k, _)| *k == VRF_TABLE).and_then(|(_, c)| word(c, 0))
}

/// `struct ifaddrmsg`: interface and address.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    let ifindex = word(body, 4)?;
    let find = |want| attributes(body.get(8..)?).find(|(k, _)| *k == want).and_then(|(_, c)| addr(c));
    Some((ifindex, find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?))
}

/// `struct ndmsg`: interface, address, hardware address; only where the latter is valid.
fn neighbour(body: &[u8]) -> Option<(u32, IpAddr, [u8; 6])> {
    const NDA_DST: u16 = 1;
    const NDA_LLADDR: u16 = 2;
    /// Permanent, no ARP, reachable, probe, stale, delay.
    const NUD_VALID: u16 = 0x80 | 0x40 | 0x02 | 0x10 | 0x04 | 0x08;
    let (family, ifindex, state) = (*body.first()?, word(body, 4)?, half(body, 8)?);
    if state & NUD_VALID == 0 || !matches!(family, AF_INET | AF_INET6) {
        return None;
    }
    let (mut dst, mut mac) = (None, [0; 6]);
    for (kind, content) in attributes(body.get(12..)?) {
        match kind {
            NDA_DST => dst = addr(content),
            NDA_LLADDR => mac = content.first_chunk().copied().unwrap_or_default(),
            _ => {}
        }
    }
    Some((ifindex, dst?, mac))
}

fn route_type(n: u8) -> RouteType {
    match n {
        1 => RouteType::Unicast,
        6 => RouteType::Blackhole,
        7 => RouteType::Unreachable,
        8 => RouteType::Prohibit,
        9 => RouteType::Throw,
        _ => RouteType::Other,
    }
}

/// `struct rtmsg` of a route.
fn route(body: &[u8]) -> Option<Route> {
    const DST: u16 = 1;
    const OIF: u16 = 4;
    const GATEWAY: u16 = 5;
    const PRIORITY: u16 = 6;
    const PREFSRC: u16 = 7;
    const METRICS: u16 = 8;
    const MULTIPATH: u16 = 9;
    const TABLE: u16 = 15;
    const VIA: u16 = 18;
    const ENCAP_TYPE: u16 = 21;
    const METRIC_LOCK: u16 = 1;
    const METRIC_MTU: u16 = 2;
    const RTM_F_CLONED: u32 = 0x200;
    let (family, prefix_len, tos, table, kind) =
        (*body.first()?, *body.get(1)?, *body.get(3)?, *body.get(4)?, *body.get(7)?);
    let flags = word(body, 8)?;
    if flags & RTM_F_CLONED != 0 {
        return None; // An entry of a cache, not of a table.
    }
    let any = if family == AF_INET6 { IpAddr::from([0u8; 16]) } else { IpAddr::from([0u8; 4]) };
    let kind = route_type(kind);
    let mut route = Route {
        table: table.into(),
        prefix: any,
        prefix_len,
        tos,
        metric: 0,
        kind,
        mtu: 0,
        prefsrc: None,
        hops: vec![],
    };
    let mut hop = NextHop { ifindex: 0, gateway: None, weight: 1, lwt: false, dead: dead(flags) };
    for (kind, content) in attributes(body.get(12..)?) {
        match kind {
            DST => route.prefix = addr(content)?,
            OIF => hop.ifindex = word(content, 0)?,
            GATEWAY => hop.gateway = addr(content),
            VIA => hop.gateway = addr(content.get(2..)?),
            ENCAP_TYPE => hop.lwt = half(content, 0) != Some(0),
            PRIORITY => route.metric = word(content, 0)?,
            PREFSRC => route.prefsrc = addr(content),
            TABLE => route.table = word(content, 0)?,
            METRICS => {
                let metric =
                    |which| attributes(content).find(|(k, _)| *k == which).and_then(|(_, c)| word(c, 0)).unwrap_or(0);
                // Forwarding looks at the MTU of a route only if it is locked.
                let locked = metric(METRIC_LOCK) & (1 << METRIC_MTU) != 0;
                route.mtu = if locked { metric(METRIC_MTU) } else { 0 };
            }
            MULTIPATH => hops(content, &mut route.hops),
            _ => {}
        }
    }
    if route.hops.is_empty() && hop.ifindex != 0 {
        route.hops.push(hop);
    }
    if route.kind != RouteType::Unicast {
        route.hops.clear();
    }
    Some(route)
}

fn dead(flags: u32) -> bool {
    const RTNH_F_DEAD: u32 = 1;
    const RTNH_F_LINKDOWN: u32 = 16;
    flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) != 0
}

/// `struct rtnexthop`, several.
fn hops(mut bytes: &[u8], out: &mut Vec<NextHop>) {
    const GATEWAY: u16 = 5;
    const VIA: u16 = 18;
    const ENCAP_TYPE: u16 = 21;
    while let (Some(len), Some(flags), Some(weight), Some(ifindex)) =
        (half(bytes, 0), bytes.get(2), bytes.get(3), word(bytes, 4))
    {
        let len = usize::from(len);
        let Some(rest) = bytes.get(8..len) else { return };
        let weight = u32::from(*weight) + 1;
        let mut hop = NextHop { ifindex, gateway: None, weight, lwt: false, dead: dead((*flags).into()) };
        for (kind, content) in attributes(rest) {
            match kind {
                GATEWAY => hop.gateway = addr(content),
                VIA => hop.gateway = content.get(2..).and_then(addr),
                ENCAP_TYPE => hop.lwt = half(content, 0) != Some(0),
                _ => {}
            }
        }
        out.push(hop);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

/// `struct fib_rule_hdr`. Rules that look at what a query does not have (users, flow labels) are left out.
fn rule(body: &[u8]) -> Option<Rule> {
    const INVERT: u32 = 2;
    let (family, dst_len, src_len, tos) = (*body.first()?, *body.get(1)?, *body.get(2)?, *body.get(3)?);
    let (table, action, flags) = (*body.get(4)?, *body.get(7)?, word(body, 8)?);
    let (mut table, mut goto) = (u32::from(table), 0);
    let mut rule = Rule {
        priority: 0,
        v6: family == AF_INET6,
        src: None,
        dst: None,
        tos,
        mark: (0, 0),
        iif: 0,
        oif: 0,
        l4_proto: 0,
        sport: None,
        dport: None,
        invert: flags & INVERT != 0,
        l3mdev: false,
        action: RuleAction::Nop,
        suppress_prefix_len: -1,
    };
    let device = |name: &[u8]| {
        let name = std::str::from_utf8(name.split(|b| *b == 0).next()?).ok()?;
        rustix::net::netdevice::name_to_index(name_socket().ok()?, name).ok()
    };
    let ports = |c: &[u8]| Some((half(c, 0)?, half(c, 2)?));
    let mut mask_given = false;
    for (kind, content) in attributes(body.get(12..)?) {
        match kind {
            1 => rule.dst = addr(content).map(|a| (a, dst_len)),
            2 => rule.src = addr(content).map(|a| (a, src_len)),
            // A rule for an interface that is not there matches nothing.
            3 => rule.iif = device(content).unwrap_or(u32::MAX),
            4 => goto = word(content, 0)?,
            6 => rule.priority = word(content, 0)?,
            10 => rule.mark.0 = word(content, 0)?,
            14 => rule.suppress_prefix_len = word(content, 0)? as i32,
            15 => table = word(content, 0)?,
            16 => (rule.mark.1, mask_given) = (word(content, 0)?, true),
            17 => rule.oif = device(content).unwrap_or(u32::MAX),
            19 => rule.l3mdev = content.first() == Some(&1),
            20 => return None,
            22 => rule.l4_proto = *content.first()?,
            23 => rule.sport = ports(content),
            24 => rule.dport = ports(content),
            _ => {}
        }
    }
    if !mask_given && rule.mark.0 != 0 {
        rule.mark.1 = u32::MAX;
    }
    rule.action = match action {
        1 => RuleAction::Table(table),
        2 => RuleAction::Goto(goto),
        3 => RuleAction::Nop,
        6 => RuleAction::End(RouteType::Blackhole),
        7 => RuleAction::End(RouteType::Unreachable),
        8 => RuleAction::End(RouteType::Prohibit),
        _ => return None,
    };
    Some(rule)
}

/// A socket to ask for names with; any kind will do.
fn name_socket() -> Result<OwnedFd, Io> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_bytes_parsing_ends() {
        let mut state = 7u64;
        for round in 0..20_000 {
            let len = round % 120;
            let mut bytes: Vec<u8> = (0..len).map(|_| super::super::random::splitmix(&mut state) as u8).collect();
            // Small numbers make plausible lengths.
            for b in &mut bytes {
                if *b > 40 {
                    *b = 0;
                }
            }
            let _ = (link(&bytes), address(&bytes), neighbour(&bytes), route(&bytes));
            hops(&bytes, &mut vec![]);
        }
    }

    #[test]
    fn the_loopback_is_known() {
        let Ok(mut netlink) = Netlink::open() else {
            println!("not run: vm::netlink needs a netlink socket");
            return;
        };
        netlink.renew(true).unwrap();
        let tables = netlink.tables();
        let lo = tables.link(1).unwrap();
        assert!(lo.mtu >= 1500 && lo.header_len == 14, "{lo:?}");
    }
}
