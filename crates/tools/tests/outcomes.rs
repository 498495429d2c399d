//! What the forwarding program leaves to the host, one packet for each reason: on the engine in this process, and on Linux.

use xway_hook::user::UserConfig;
use xway_hook::{Hook, Kernel, LoadRequest, TestRequest, User};
use xway_testkit::Needs;
use xway_tools::forward::{Fib, OUTCOMES};
use xway_tools::objects;
use xway_tools::packets::{Mac, Udp};

/// A packet that would be routed, with some bytes of it changed.
fn packet(v6: bool, changes: &[(usize, u8)]) -> Vec<u8> {
    let [src, dst] = if v6 { ["2001:db8::1", "2001:db8:1::1"] } else { ["192.0.2.1", "198.51.100.1"] };
    let udp = Udp {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        src_port: 1,
        dst_port: 2,
        hop_limit: 64,
        len: 100,
    };
    let mut bytes = udp.build().unwrap();
    changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
    bytes
}

/// Name, packet, reason.
fn rows() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let row = |name, v6, changes: &[(usize, u8)], reason| (name, packet(v6, changes), reason);
    vec![
        row("ARP", false, &[(12, 8), (13, 6)], "not_ip"),
        row("802.1Q", false, &[(12, 0x81), (13, 0)], "tagged"),
        row("802.1ad", true, &[(12, 0x88), (13, 0xa8)], "tagged"),
        row("broadcast", false, &[(0, 0xff)], "group"),
        row("multicast", true, &[(0, 0x33)], "group"),
        row("IPv4 that says it is 6", false, &[(14, 0x65)], "malformed"),
        row("IPv4 header of 16 bytes", false, &[(14, 0x44)], "malformed"),
        row("IPv4 longer than the frame", false, &[(16, 1)], "malformed"),
        row("IPv6 longer than the frame", true, &[(18, 1)], "malformed"),
        row("IPv4 options", false, &[(14, 0x46)], "options"),
        row("hop-by-hop header", true, &[(20, 0)], "options"),
        row("routing header", true, &[(20, 43)], "options"),
        row("first fragment", false, &[(20, 0x20)], "fragment"),
        row("later fragment", false, &[(21, 1)], "fragment"),
        row("IPv6 fragment", true, &[(20, 44)], "fragment"),
        row("TTL 1", false, &[(22, 1)], "hop_limit"),
        row("hop limit 0", true, &[(21, 0)], "hop_limit"),
        row("from loopback", false, &[(26, 127)], "address"),
        row("to loopback", false, &[(30, 127)], "address"),
        row("from a group", false, &[(26, 224)], "address"),
        row("from a link-local address", true, &[(22, 0xfe), (23, 0x80)], "address"),
        row("to a link-local address", true, &[(38, 0xfe), (39, 0xbf)], "address"),
        ("a frame without a network header", packet(false, &[])[..20].to_vec(), "malformed"),
    ]
}

fn check(hook: &mut dyn Hook) {
    let image = objects::image("route").unwrap();
    for fib in [Fib::Full, Fib::Direct] {
        let request = LoadRequest { programs: vec![fib.program().into()], ..LoadRequest::default() };
        let made = hook.load(&image, &request).unwrap();
        let (program, map) = (made.program(fib.program()).unwrap(), made.map("forward_counts").unwrap());
        let count = |hook: &mut dyn Hook, reason: &str| {
            let key = OUTCOMES.iter().position(|o| *o == reason).unwrap() as u32;
            let values = hook.map_lookup(map, &key.to_ne_bytes(), 0).unwrap();
            values.as_chunks::<8>().0.iter().map(|v| u64::from_ne_bytes(*v)).sum::<u64>()
        };
        for (name, packet, reason) in rows() {
            let before = count(hook, reason);
            let test = TestRequest { data: &packet, ctx: None, repeat: 1 };
            let answer = hook.test_run(program, &test).unwrap();
            assert_eq!(answer.ret, 2, "{name}: XDP_PASS");
            assert_eq!(answer.data, packet, "{name}: untouched");
            assert_eq!(count(hook, reason) - before, 1, "{name}: counted as {reason}");
        }
    }
}

#[test]
fn what_is_left_to_the_host_in_the_engine() {
    if Needs::of("tools::what_is_left_to_the_host_in_the_engine").clang().met() {
        check(&mut User::new(UserConfig::default()));
    }
}

#[test]
fn what_is_left_to_the_host_in_linux() {
    if Needs::of("tools::what_is_left_to_the_host_in_linux").root().clang().met() {
        check(&mut Kernel::new());
    }
}
