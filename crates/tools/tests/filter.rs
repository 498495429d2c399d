//! The filter's program, one packet for each way through it, and its lists: on the engine and on Linux.

use xway_hook::user::UserConfig;
use xway_hook::{Hook, Kernel, LoadRequest, MapId, ProgId, TestRequest, User};
use xway_testkit::Needs;
use xway_testkit::packets::{Packet, tcp_flags};
use xway_tools::filter::{Added, Count, Lists, Net, OUTCOMES, PROGRAM, Rule, Subject, Transport};
use xway_tools::{ToolError, objects};

const DROP: u32 = 1;
const PASS: u32 = 2;
const HERE: [u8; 4] = [198, 51, 100, 1];
const HERE6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn from(text: &str) -> Subject {
    Subject::From(Net::parse(text).unwrap())
}

fn dropped(subject: Subject) -> Rule {
    Rule { subject, pass: false }
}

fn rules() -> Vec<Rule> {
    let mut all: Vec<Rule> = ["192.0.2.0/24", "192.0.2.128/25", "203.0.113.9", "2001:db8::/32", "::ffff:0:0/96"]
        .map(from)
        .map(dropped)
        .to_vec();
    all.extend(
        [(Transport::Tcp, 23), (Transport::Udp, 53), (Transport::Udp, 65535)].map(|(t, p)| dropped(Subject::To(t, p))),
    );
    all.extend(["192.0.2.200", "2001:db8:1::/48"].map(|text| Rule { subject: from(text), pass: true }));
    all
}

fn v4(src: [u8; 4]) -> Packet {
    Packet::eth().ipv4(src, HERE)
}

fn v6(first: [u8; 6]) -> Packet {
    let mut src = [0; 16];
    src[..6].copy_from_slice(&first);
    src[15] = 7;
    Packet::eth().ipv6(src, HERE6)
}

/// An address that is on no list.
const OTHER: [u8; 4] = [10, 0, 0, 1];
const OTHER6: [u8; 6] = [0xfd, 0, 0, 0, 0, 1];

/// Name, packet, what becomes of it, the rule that says so.
fn rows() -> Vec<(&'static str, Packet, &'static str, &'static str)> {
    let bad = [192, 0, 2, 1];
    let vlan = |p: Packet| p.ipv4(bad, HERE).udp(1, 2);
    vec![
        ("nobody", v4(OTHER).udp(1, 2), "unlisted", ""),
        ("a sender", v4(bad).udp(1, 2), "dropped", "192.0.2.0/24"),
        ("whatever the protocol", v4(bad).icmp(8, 0, [0; 4]), "dropped", "192.0.2.0/24"),
        ("the longer prefix counts", v4([192, 0, 2, 129]).udp(1, 2), "dropped", "192.0.2.128/25"),
        ("an exception", v4([192, 0, 2, 200]).udp(1, 2), "allowed", "192.0.2.200"),
        ("an exception wins over ports", v4([192, 0, 2, 200]).udp(1, 53), "allowed", "192.0.2.200"),
        ("one address", v4([203, 0, 113, 9]).tcp(1, 2, tcp_flags::SYN), "dropped", "203.0.113.9"),
        ("the address beside it", v4([203, 0, 113, 8]).tcp(1, 2, tcp_flags::SYN), "unlisted", ""),
        ("its destination is not asked", Packet::eth().ipv4(OTHER, bad).udp(1, 2), "unlisted", ""),
        ("a TCP port", v4(OTHER).tcp(1, 23, tcp_flags::SYN), "dropped", "tcp:23"),
        ("as a source port it is no matter", v4(OTHER).tcp(23, 1, tcp_flags::SYN), "unlisted", ""),
        ("of UDP it is another port", v4(OTHER).udp(1, 23), "unlisted", ""),
        ("a UDP port", v4(OTHER).udp(1, 53), "dropped", "udp:53"),
        ("the last port", v4(OTHER).udp(1, 65535), "dropped", "udp:65535"),
        ("behind options", v4(OTHER).with_options(&[1; 8]).udp(1, 53), "dropped", "udp:53"),
        ("the first fragment", v4(OTHER).with_fragment(0, true).udp(1, 53), "dropped", "udp:53"),
        // Its bytes look like the port.
        (
            "a later fragment",
            v4(OTHER).with_fragment(8, false).with_protocol(17).payload(&[0, 1, 0, 53]),
            "unlisted",
            "",
        ),
        ("a later fragment of a sender", v4(bad).with_fragment(8, false).payload(&[0; 8]), "dropped", "192.0.2.0/24"),
        ("a tag", vlan(Packet::eth().vlan(7)), "dropped", "192.0.2.0/24"),
        ("two tags", vlan(Packet::eth().qinq(7).vlan(8)), "dropped", "192.0.2.0/24"),
        ("two tags and a port", Packet::eth().vlan(7).vlan(8).ipv4(OTHER, HERE).udp(1, 53), "dropped", "udp:53"),
        ("three tags", vlan(Packet::eth().qinq(7).vlan(8).vlan(9)), "tags", ""),
        ("IPv6", v6([0x20, 1, 0xd, 0xb8, 0, 0]).udp(1, 2), "dropped", "2001:db8::/32"),
        ("an IPv6 exception", v6([0x20, 1, 0xd, 0xb8, 0, 1]).udp(1, 53), "allowed", "2001:db8:1::/48"),
        ("two tags and IPv6", Packet::eth().qinq(1).vlan(2).ipv6([0; 16], HERE6).udp(1, 53), "dropped", "udp:53"),
        ("IPv6 to a port", v6(OTHER6).tcp(1, 23, tcp_flags::SYN), "dropped", "tcp:23"),
        ("behind extension headers", v6(OTHER6).ext6(0, &[0; 6]).ext6(60, &[0; 14]).udp(1, 53), "dropped", "udp:53"),
        ("six of them", deep(6).udp(1, 53), "dropped", "udp:53"),
        ("seven of them", deep(7).udp(1, 53), "headers", ""),
        ("an IPv6 first fragment", v6(OTHER6).fragment6(0, true, 1).udp(1, 53), "dropped", "udp:53"),
        ("an IPv6 later fragment", v6(OTHER6).fragment6(8, false, 1).payload(&[0, 1, 0, 53]), "unlisted", ""),
        ("ARP", Packet::eth().arp(1, OTHER, HERE), "not_ip", ""),
        ("no header to look at", v4(OTHER).udp(1, 53).cut(30), "malformed", ""),
        ("IPv4 that says it is 6", Packet::eth().with_ethertype(0x86dd).ipv4(OTHER, HERE).udp(1, 53), "malformed", ""),
        ("a header of 16 bytes", v4(OTHER).with_header_words(4).udp(1, 53), "malformed", ""),
        ("cut in front of the ports", v4(OTHER).udp(1, 53).cut(36), "malformed", ""),
        ("an extension header that ends behind the packet", v6(OTHER6).ext6(0, &[0; 6]).cut(58), "malformed", ""),
    ]
}

fn deep(headers: usize) -> Packet {
    (0..headers).fold(v6(OTHER6), |packet, _| packet.ext6(60, &[0; 6]))
}

fn run(hook: &mut dyn Hook, program: ProgId, packet: &[u8]) -> u32 {
    let answer = hook.test_run(program, &TestRequest { data: packet, ctx: None, repeat: 1 }).unwrap();
    assert_eq!(answer.data, packet, "nothing is changed");
    answer.ret
}

fn load(hook: &mut dyn Hook) -> (ProgId, Lists) {
    let request = LoadRequest { programs: vec![PROGRAM.into()], ..LoadRequest::default() };
    let made = hook.load(&objects::image("filter").unwrap(), &request).unwrap();
    let program = made.program(PROGRAM).unwrap();
    let maps: Vec<MapId> = made.maps.iter().map(|(_, id)| *id).collect();
    (program, Lists::of_program(hook, "test", program.0, &maps).unwrap())
}

fn met(lists: &Lists, hook: &mut dyn Hook, subject: &str) -> Count {
    let all = lists.all(hook).unwrap();
    all.iter().find(|one| one.rule.subject.to_string() == subject).unwrap().count
}

/// Every packet has its verdict, and is counted once where its rule stands and once by what became of it.
fn packets(hook: &mut dyn Hook) {
    let (program, lists) = load(hook);
    assert_eq!(lists.add(hook, &rules()).unwrap(), vec![Added::New; rules().len()]);
    let outcome = |hook: &mut dyn Hook, name| {
        let at = OUTCOMES.iter().position(|o| *o == name).unwrap();
        lists.outcomes(hook).unwrap()[at]
    };
    for (name, packet, what, rule) in rows() {
        let bytes = packet.build();
        let more = |c: Count| Count { packets: c.packets + 1, bytes: c.bytes + bytes.len() as u64 };
        let all = |hook: &mut dyn Hook| lists.all(hook).unwrap().iter().map(|l| l.count.packets).sum::<u64>();
        let before = (outcome(hook, what), all(hook), (!rule.is_empty()).then(|| met(&lists, hook, rule)));
        let verdict = if what == "dropped" { DROP } else { PASS };
        assert_eq!(run(hook, program, &bytes), verdict, "{name}");
        assert_eq!(outcome(hook, what), more(before.0), "{name}: {what}");
        assert_eq!(all(hook), before.1 + u64::from(!rule.is_empty()), "{name}: rules that met it");
        if let Some(count) = before.2 {
            assert_eq!(met(&lists, hook, rule), more(count), "{name}: {rule}");
        }
    }
    let sum = |hook: &mut dyn Hook| lists.outcomes(hook).unwrap().iter().map(|c| c.packets).sum::<u64>();
    assert_eq!(sum(hook), rows().len() as u64, "each packet once");
}

/// Rules come and go whole, and what has met a rule goes with it.
fn changes(hook: &mut dyn Hook) {
    let (program, lists) = load(hook);
    let packet = v4([192, 0, 2, 1]).udp(1, 53).build();
    let (net, host, port) = (from("192.0.2.0/24"), from("192.0.2.1"), Subject::To(Transport::Udp, 53));
    assert_eq!(run(hook, program, &packet), PASS);
    assert_eq!(lists.add(hook, &[dropped(net), dropped(port)]).unwrap(), [Added::New, Added::New]);
    assert_eq!(run(hook, program, &packet), DROP);
    // A shorter prefix is another rule, and so is a longer one.
    assert_eq!(lists.add(hook, &[dropped(host), dropped(net)]).unwrap(), [Added::New, Added::Already]);
    assert_eq!(run(hook, program, &packet), DROP);
    let all: Vec<(String, u64)> =
        lists.all(hook).unwrap().iter().map(|l| (l.rule.subject.to_string(), l.count.packets)).collect();
    assert_eq!(all, [("192.0.2.0/24".into(), 1), ("192.0.2.1".into(), 1), ("udp:53".into(), 0)]);

    // All or none: what came first goes back when what follows is refused.
    let says = |error: ToolError, words: &str| assert!(error.to_string().contains(words), "{error}");
    let new = dropped(from("203.0.113.0/24"));
    says(
        lists.add(hook, &[new, Rule { subject: net, pass: true }]).unwrap_err(),
        "it is on the list with the action drop",
    );
    says(lists.remove(hook, &[net, new.subject]).unwrap_err(), "203.0.113.0/24: it is on no list");
    assert_eq!(lists.all(hook).unwrap().len(), 3);

    let gone = lists.remove(hook, &[host, host]).unwrap();
    assert_eq!(gone.iter().map(|l| l.count.packets).collect::<Vec<_>>(), [1]);
    assert_eq!(run(hook, program, &packet), DROP, "the shorter prefix holds it");
    lists.remove(hook, &[net]).unwrap();
    assert_eq!(run(hook, program, &packet), DROP, "the port is listed too");
    lists.remove(hook, &[port]).unwrap();
    assert_eq!(run(hook, program, &packet), PASS);
    // A rule that comes back begins at zero.
    lists.add(hook, &[dropped(net)]).unwrap();
    assert_eq!(met(&lists, hook, "192.0.2.0/24"), Count::default());
    // Everything, by one rule of no bits.
    lists.add(hook, &[dropped(from("0.0.0.0/0")), dropped(from("::/0"))]).unwrap();
    assert_eq!(run(hook, program, &v4(OTHER).udp(1, 2).build()), DROP);
    assert_eq!(run(hook, program, &v6(OTHER6).udp(1, 2).build()), DROP);
    assert_eq!(met(&lists, hook, "0.0.0.0/0").packets + met(&lists, hook, "::/0").packets, 2);
}

/// Thousands of rules, more than one batch, among them numbers that begin alike.
fn many(hook: &mut dyn Hook) {
    let (program, lists) = load(hook);
    let subjects: Vec<Subject> =
        (0..5000u32).map(|n| from(&std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).to_string())).collect();
    let rules: Vec<Rule> = subjects.iter().map(|s| dropped(*s)).collect();
    lists.add(hook, &rules).unwrap();
    for n in [0u32, 1, 4095, 4096, 4999] {
        let [a, b, c, d] = (0x0a00_0000 + n).to_be_bytes();
        assert_eq!(run(hook, program, &v4([a, b, c, d]).udp(1, 2).build()), DROP, "{n}");
    }
    let all = lists.all(hook).unwrap();
    assert_eq!(all.iter().map(|l| l.rule).collect::<Vec<_>>(), rules);
    let numbers: std::collections::BTreeSet<u32> = all.iter().map(|l| l.number).collect();
    assert_eq!((numbers.len(), all.iter().map(|l| l.count.packets).sum::<u64>()), (5000, 5));
    assert_eq!(lists.remove(hook, &subjects).unwrap().len(), 5000);
    assert_eq!(lists.all(hook).unwrap(), []);
}

/// Several commands at the same time: each rule is put there by one of them, and no number is left without a rule.
#[test]
fn by_several_at_once() {
    if !Needs::of("tools::filter::by_several_at_once").root().clang().met() {
        return;
    }
    let mut hook = Kernel::new();
    let (program, lists) = load(&mut hook);
    let rules: Vec<Rule> =
        (0..200u32).map(|n| dropped(from(&std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).to_string()))).collect();
    let news: usize = std::thread::scope(|scope| {
        let add = || {
            let done = rules.iter().flat_map(|rule| lists.add(&mut Kernel::new(), &[*rule]).unwrap());
            done.filter(|added| *added == Added::New).count()
        };
        let all: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(news, rules.len());
    let all = lists.all(&mut hook).unwrap();
    assert_eq!(all.iter().map(|l| l.rule).collect::<Vec<_>>(), rules);
    let used = hook.program_info(program).unwrap().maps;
    let named = |id: &MapId, hook: &mut Kernel| hook.map_info(*id).unwrap().name == "filter_rules";
    let numbers = used.into_iter().find(|id| named(id, &mut hook)).unwrap();
    let there = hook.map_lookup_batch(numbers, None, 1000).unwrap();
    assert_eq!((there.entries.len(), there.next), (rules.len(), None));
}

#[test]
fn in_the_engine() {
    if Needs::of("tools::filter::in_the_engine").clang().met() {
        for body in [packets, changes, many] {
            body(&mut User::new(UserConfig::default()));
        }
    }
}

#[test]
fn in_linux() {
    if Needs::of("tools::filter::in_linux").root().clang().met() {
        for body in [packets, changes, many] {
            body(&mut Kernel::new());
        }
    }
}
