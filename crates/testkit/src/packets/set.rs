//! The mixed set: what a network carries, and what it should not.

use super::{Packet, tcp_flags as flag};

/// A frame with a name for messages.
#[derive(Clone, Debug)]
pub struct Named {
    /// Unique in its set.
    pub name: &'static str,
    /// From the link layer on.
    pub bytes: Vec<u8>,
}

const A: [u8; 4] = [10, 1, 0, 1];
const B: [u8; 4] = [10, 1, 0, 2];
/// Addresses that the samples' test tables list (blacklist, tunnel).
const LISTED: [u8; 4] = [192, 0, 2, 66];
const A6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const B6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// Some sixty frames: every protocol that the builders know, tunnels, fragments, options, and frames that are cut, lie
/// about their lengths or have nothing behind their headers. All have at least 14 bytes (the kernel's test run refuses
/// shorter ones) and at most 1514.
pub fn mixed_set() -> Vec<Named> {
    let mut set = Vec::new();
    let mut add = |name, packet: Packet| set.push(Named { name, bytes: packet.build() });
    plain(&mut add);
    tagged(&mut add);
    ipv4_oddities(&mut add);
    ipv6(&mut add);
    tunnels(&mut add);
    broken(&mut add);
    set
}

fn v4() -> Packet {
    Packet::eth().ipv4(A, B)
}

fn v6() -> Packet {
    Packet::eth().ipv6(A6, B6)
}

fn plain(add: &mut dyn FnMut(&'static str, Packet)) {
    add("arp request", Packet::eth_from([2, 0, 0, 0, 0, 1], [0xff; 6]).arp(1, A, B).pad_to(60));
    add("arp reply", Packet::eth().arp(2, B, A).pad_to(60));
    add("icmp echo request", v4().icmp(8, 0, [0x12, 0x34, 0, 1]).pattern(56));
    add("icmp echo reply", Packet::eth().ipv4(B, A).icmp(0, 0, [0x12, 0x34, 0, 1]).pattern(56));
    let quoted = Packet::bare().ipv4(B, A).udp(53, 4000).pattern(8).build();
    add("icmp fragmentation needed", v4().icmp(3, 4, [0, 0, 0x05, 0xdc]).payload(&quoted));
    add("icmp time exceeded", v4().icmp(11, 0, [0; 4]).payload(&quoted));
    add("tcp syn", v4().with_df().tcp(40000, 80, flag::SYN).with_tcp_options(&[2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 7]));
    add("tcp syn ack", Packet::eth().ipv4(B, A).tcp(80, 40000, flag::SYN | flag::ACK));
    add("tcp ack", v4().tcp(40000, 80, flag::ACK).pad_to(60));
    add("tcp data", v4().tcp(40000, 80, flag::PSH | flag::ACK).payload(b"GET / HTTP/1.0\r\n\r\n"));
    add("tcp fin", v4().tcp(40000, 443, flag::FIN | flag::ACK));
    add("tcp rst", v4().tcp(40000, 22, flag::RST));
    add("tcp full size", v4().tcp(40000, 443, flag::ACK).pattern(1460));
    add("udp dns", v4().udp(5353, 53).pattern(31));
    add("udp ntp", v4().udp(123, 123).pattern(48));
    add("udp empty", v4().udp(1, 9));
    add("udp without checksum", v4().udp(4000, 4000).with_checksum(0).pattern(20));
    add("udp full size", v4().udp(4000, 9).pattern(1472));
    add("udp from a listed source", Packet::eth().ipv4(LISTED, B).udp(7, 7).pattern(18));
    add("tcp from a listed source", Packet::eth().ipv4(LISTED, B).tcp(7, 80, flag::SYN));
    add("udp to a listed destination", Packet::eth().ipv4(A, LISTED).udp(4000, 80).pattern(64));
    add("multicast", Packet::eth_from([2, 0, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]).ipv4(A, [224, 0, 0, 1]).udp(1, 2));
    add("broadcast", Packet::eth_from([2, 0, 0, 0, 0, 1], [0xff; 6]).ipv4(A, [255; 4]).udp(68, 67).pattern(300));
    add("unknown ethertype", Packet::eth().pattern(46));
    add("llc length field", Packet::eth().with_ethertype(38).pattern(38).pad_to(60));
    add("lldp", Packet::eth_from([2, 0, 0, 0, 0, 1], [1, 0x80, 0xc2, 0, 0, 14]).with_ethertype(0x88cc).pattern(46));
}

fn tagged(add: &mut dyn FnMut(&'static str, Packet)) {
    add("vlan udp", Packet::eth().vlan(42).ipv4(A, B).udp(1000, 53).pattern(20));
    add("vlan priority tcp", Packet::eth().vlan(0x6000 | 42).ipv4(A, B).tcp(1000, 80, flag::SYN));
    add("vlan ipv6 udp", Packet::eth().vlan(7).ipv6(A6, B6).udp(1000, 53).pattern(20));
    add("qinq udp", Packet::eth().qinq(100).vlan(42).ipv4(A, B).udp(1000, 53).pattern(20));
    add("two 802.1q tags", Packet::eth().vlan(100).vlan(42).ipv4(A, B).icmp(8, 0, [0; 4]));
    add("three tags", Packet::eth().qinq(1).qinq(2).vlan(3).ipv4(A, B).udp(1, 2).pattern(8));
    add("vlan arp", Packet::eth().vlan(42).arp(1, A, B).pad_to(64));
    add("vlan with nothing behind", Packet::eth().vlan(42).with_ethertype(0x0800));
    add("vlan cut in the tag", Packet::eth().vlan(42).ipv4(A, B).cut(16));
}

fn ipv4_oddities(add: &mut dyn FnMut(&'static str, Packet)) {
    add("ip options router alert", v4().with_options(&[0x94, 4, 0, 0]).udp(1, 53).pattern(8));
    add("ip options full", v4().with_options(&[1; 40]).tcp(1, 80, flag::SYN));
    add("first fragment", v4().with_fragment(0, true).udp(1, 53).pattern(64));
    add("middle fragment", v4().with_protocol(17).with_fragment(9, true).pattern(72));
    add("last fragment", v4().with_protocol(6).with_fragment(18, false).pattern(20));
    add("ttl one", v4().with_ttl(1).udp(1, 33434).pattern(12));
    add("ttl zero", v4().with_ttl(0).udp(1, 33434).pattern(12));
    add("dscp and ecn", v4().with_tos(0xbb).udp(1, 5060).pattern(12));
    add("sctp number", v4().with_protocol(132).pattern(32));
    add("bad header checksum", v4().with_checksum(0xdead).udp(1, 53).pattern(12));
    add("udp bad checksum", v4().udp(1, 53).with_checksum(0x1234).pattern(12));
}

fn ipv6(add: &mut dyn FnMut(&'static str, Packet)) {
    add("ipv6 tcp syn", v6().tcp(40000, 443, flag::SYN));
    add("ipv6 tcp data", v6().tcp(40000, 22, flag::PSH | flag::ACK).pattern(100));
    add("ipv6 udp", v6().udp(5353, 53).pattern(40));
    add("icmpv6 echo", v6().icmp6(128, 0, [0, 1, 0, 1]).pattern(56));
    add("icmpv6 neighbour solicitation", v6().with_ttl(255).icmp6(135, 0, [0; 4]).payload(&B6));
    add("icmpv6 packet too big", v6().icmp6(2, 0, [0, 0, 0x05, 0]).pattern(48));
    add("ipv6 hop by hop", v6().ext6(0, &[5, 2, 0, 0, 1, 0]).icmp6(143, 0, [0; 4]));
    add("ipv6 destination options", v6().ext6(60, &[1, 4, 0, 0, 0, 0]).udp(1, 53).pattern(8));
    add("ipv6 routing then tcp", v6().ext6(43, &[4, 0, 0, 0, 0, 0]).tcp(1, 80, flag::SYN));
    add("ipv6 first fragment", v6().fragment6(0, true, 7).udp(1, 53).pattern(64));
    add("ipv6 later fragment", v6().fragment6(9, false, 7).with_protocol(17).pattern(40));
    add("ipv6 no next header", v6());
    add("ipv6 hop limit one", v6().with_ttl(1).udp(1, 33434).pattern(8));
}

fn tunnels(add: &mut dyn FnMut(&'static str, Packet)) {
    add("ipip", v4().ipv4([172, 16, 0, 1], [172, 16, 0, 2]).tcp(1, 80, flag::SYN));
    add("6in4", v4().ipv6(A6, B6).udp(1, 53).pattern(8));
    add("4in6", v6().ipv4(A, B).udp(1, 53).pattern(8));
    add("6in6", v6().ipv6(B6, A6).tcp(1, 80, flag::SYN));
    add("gre ipv4", v4().gre(None).ipv4([172, 16, 0, 1], [172, 16, 0, 2]).udp(1, 53).pattern(8));
    add("gre with key", v4().gre(Some(99)).ipv6(A6, B6).icmp6(128, 0, [0; 4]));
    let inner = Packet::eth().ipv4([172, 16, 0, 1], [172, 16, 0, 2]).udp(1, 2).pattern(4).build();
    add("vxlan", v4().udp(50000, 4789).payload(&[8, 0, 0, 0, 0, 0, 5, 0]).payload(&inner));
}

fn broken(add: &mut dyn FnMut(&'static str, Packet)) {
    add("ethernet alone", Packet::eth().with_ethertype(0x0800));
    add("ipv4 one byte", v4().udp(1, 2).cut(15));
    add("ipv4 header cut", v4().udp(1, 2).cut(33));
    add("ipv4 header alone", v4().udp(1, 2).cut(34));
    add("udp header cut", v4().udp(1, 53).pattern(8).cut(41));
    add("tcp header cut", v4().tcp(1, 80, flag::SYN).cut(53));
    add("tcp ports only", v4().tcp(1, 80, flag::SYN).cut(38));
    add("icmp header cut", v4().icmp(8, 0, [0; 4]).cut(38));
    add("arp cut", Packet::eth().arp(1, A, B).cut(30));
    add("ipv6 header cut", v6().udp(1, 2).cut(53));
    add("ipv6 header alone", v6().udp(1, 2).cut(54));
    add("ipv6 extension cut", v6().ext6(60, &[1, 4, 0, 0, 0, 0]).udp(1, 53).cut(57));
    add("ihl too small", v4().with_header_words(4).udp(1, 53).pattern(8));
    add("ihl zero", v4().with_header_words(0).udp(1, 53).pattern(8));
    add("ihl past the end", v4().with_header_words(15).udp(1, 53));
    add("total length too big", v4().with_length(1500).udp(1, 53).pattern(8));
    add("total length zero", v4().with_length(0).udp(1, 53).pattern(8));
    add("udp length too small", v4().udp(1, 53).with_length(4).pattern(8));
    add("udp length too big", v4().udp(1, 53).with_length(9000).pattern(8));
    add("tcp data offset past the end", v4().tcp(1, 80, flag::SYN).with_header_words(15));
    add("ipv6 length too big", v6().with_length(1400).udp(1, 53).pattern(8));
    add("version five", Packet::eth().with_ethertype(0x0800).payload(&[0x55; 28]));
    add("all zero", Packet::eth_from([0; 6], [0; 6]).with_ethertype(0).payload(&[0; 46]));
    add("all ones", Packet::eth_from([0xff; 6], [0xff; 6]).with_ethertype(0xffff).payload(&[0xff; 46]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sizes_are_as_promised() {
        let set = mixed_set();
        let mut names: Vec<_> = set.iter().map(|p| p.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), set.len());
        assert!(set.len() >= 60, "{}", set.len());
        for packet in &set {
            assert!((14..=1514).contains(&packet.bytes.len()), "{}: {}", packet.name, packet.bytes.len());
        }
    }
}
