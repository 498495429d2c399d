//! Lists of senders and ports with real packets between two hosts: every hook, tags, pins that somebody else owns.

mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use common::service::Up;
use common::wire::{Bench, RIGHT, ready};
use common::{Dir, Ran, capture, compiled, packet, xway};
use serde_json::{Value, json};
use xway_testkit::{Needs, traffic};

const LISTED: u16 = 4100;
const OPEN: u16 = 4101;

/// A datagram of `20 + n` bytes from the left host. A socket on this machine leaves checksums to the device, which
/// a veth has not.
fn datagram(port: u16, n: usize) -> Vec<u8> {
    let payload = 20 + n;
    packet(&format!(
        r#"{{"eth":{{"dst":"ff:ff:ff:ff:ff:ff"}},"ipv4":{{"src":"10.9.1.1","dst":"{RIGHT}"}},
            "udp":{{"sport":5000,"dport":{port}}},"payload":{payload}}}"#
    ))
}

/// Frames on the wire, in order.
fn send(bench: &Bench, dir: &Dir, frames: Vec<Vec<u8>>) {
    capture(&dir.path("frames.pcap"), &frames);
    let send = ["trafficgen", "packet:l0", "--pcap", &dir.arg("frames.pcap"), "-n", &frames.len().to_string()];
    let sent = bench.left.command(env!("CARGO_BIN_EXE_xway")).args(send).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
}

/// Frames that are to be dropped: tags, addresses, prefixes, ports.
fn frames() -> Vec<Vec<u8>> {
    let frame = |vlans: &str, ip: &str, rest: &str| {
        packet(&format!(r#"{{"eth":{{"dst":"ff:ff:ff:ff:ff:ff"}},{vlans}{ip},{rest},"payload":20}}"#))
    };
    let v4 = |src: &str| format!(r#""ipv4":{{"src":"{src}","dst":"{RIGHT}"}}"#);
    let v6 = |src: &str| format!(r#""ipv6":{{"src":"{src}","dst":"2001:db8:9::2"}}"#);
    let udp = format!(r#""udp":{{"sport":5000,"dport":{LISTED}}}"#);
    let other = r#""udp":{"sport":5000,"dport":9}"#;
    vec![
        frame(r#""vlan":7,"#, &v4("10.9.1.1"), &udp),
        frame(r#""vlan":[7,8],"#, &v4("10.9.1.1"), &udp),
        frame(r#""vlan":[7,8],"#, &v6("2001:db8:1::1"), &udp),
        frame("", &v4("198.51.100.77"), other),
        frame(r#""vlan":[7,8],"#, &v4("198.51.100.78"), other),
        frame(r#""vlan":7,"#, &v4("198.51.100.7"), other),
        frame("", &v6("2001:db8:bad::1"), other),
        frame("", &v4("10.9.1.1"), r#""tcp":{"sport":5000,"dport":4200}"#),
    ]
}

/// Packets by rule, as they are listed.
fn listed(doc: &Value) -> Vec<(String, u64)> {
    let name = |rule: &Value| match (&rule["ip"], &rule["tcp_dport"], &rule["udp_dport"]) {
        (Value::String(ip), _, _) => ip.clone(),
        (_, Value::Number(port), _) => format!("tcp:{port}"),
        (_, _, port) => format!("udp:{port}"),
    };
    let rules = doc["filters"][0]["rules"].as_array().unwrap();
    rules.iter().map(|rule| (name(rule), rule["packets"].as_u64().unwrap())).collect()
}

/// Whoever is on no list is answered.
fn answered(bench: &Bench) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.pings() == 0 {
        assert!(Instant::now() < deadline, "the host has not answered");
    }
}

/// What stands on the lists drops, what does not arrives, and every packet is counted where its rule stands.
fn works(bench: &Bench, dir: &Dir, port: &str, to: &[&str]) {
    let run = |args: &[&str]| bench.xway(&[&["filter"], args, to].concat());
    run(&["load", port, "-q"]).exits(0);
    let words = ["add", port, "--udp-dport", "4100", "--tcp-dport", "4200", "--ip", "198.51.100.0/24"];
    let added =
        run(&[&words[..], &["--ip", "198.51.100.7", "--ip", "2001:db8:bad::/48", "-j"]].concat()).exits(0).json();
    assert_eq!(added["rules"].as_array().unwrap().len(), 5, "{added}");
    assert!(added["rules"].as_array().unwrap().iter().all(|rule| rule["new"] == true), "{added}");

    let server = bench.right.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, OPEN))).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let shut = bench.right.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, LISTED))).unwrap().unwrap();
    // What was sent before has come through the hook when the open ones arrive.
    let datagrams = |count, port| (0..count).map(move |n| datagram(port, n));
    send(bench, dir, datagrams(6, LISTED).chain(frames()).chain(datagrams(3, OPEN)).collect());
    let mut buffer = [0; 200];
    let mut open = [0; 3].map(|_: u8| traffic::patient(|| server.recv(&mut buffer)).unwrap());
    open.sort_unstable();
    assert_eq!(open, [20, 21, 22], "{port} {to:?}");
    answered(bench);
    let expected =
        [("198.51.100.0/24", 2), ("198.51.100.7", 1), ("2001:db8:bad::/48", 1), ("tcp:4200", 1), ("udp:4100", 6 + 3)]
            .map(|(name, packets)| (name.to_owned(), packets));
    let list = || run(&["list", port, "-j"]).exits(0).json();
    // Another queue or processor may be a moment behind.
    let deadline = Instant::now() + Duration::from_secs(30);
    while listed(&list()) != expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let doc = list();
    assert_eq!(listed(&doc), expected, "{port} {to:?}: {doc}");
    let dropped: u64 = expected.iter().map(|(_, n)| n).sum();
    assert_eq!(doc["filters"][0]["outcomes"]["dropped"]["packets"], dropped, "{doc}");
    assert!(doc["filters"][0]["outcomes"]["unlisted"]["packets"].as_u64().unwrap() >= 3, "{doc}");
    shut.set_nonblocking(true).unwrap();
    assert!(shut.recv(&mut buffer).is_err(), "{port} {to:?}: what is on the list does not arrive");
    let text = run(&["list", port]).exits(0).out;
    assert!(text.contains("5 rules") && text.contains("198.51.100.0/24"), "{text}");
    let watched = run(&["stats", port, "--sec", "0.05", "--count", "1", "--all", "-j"]).exits(0).json();
    let counters = &watched["samples"][0]["counters"];
    assert_eq!(counters["dropped.packets"]["total"], dropped, "{watched}");
    assert_eq!(counters["udp:4100.packets"]["total"], 9, "{watched}");

    // Off the list it arrives; the exception stands beside the prefix.
    let gone = run(&["del", port, "--udp-dport", "4100"]).exits(0).out;
    assert_eq!(gone, "udp:4100: off the list; it had met 9 packets\n");
    run(&["add", port, "--ip", "10.9.1.0/24"]).exits(0);
    assert_eq!(bench.pings(), 0, "{port} {to:?}");
    run(&["add", port, "--ip", "10.9.1.1", "--pass"]).exits(0);
    answered(bench);
    send(bench, dir, vec![datagram(LISTED, 30)]);
    shut.set_nonblocking(false).unwrap();
    shut.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(traffic::patient(|| shut.recv(&mut buffer)).unwrap(), 50);
    run(&["unload", port]).exits(0);
    run(&["unload", port]).exits(1).says("no filter is attached");
}

#[test]
fn lists_hold_on_the_kernels_hook() {
    if !ready("filter::lists_hold_on_the_kernels_hook") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("filterkernel", true));
    for hook in ["native", "generic", "auto"] {
        works(&bench, &dir, "r0", &["--hook", hook]);
    }
}

#[test]
fn lists_hold_on_the_engines_hook() {
    const NAME: &str = "filter::lists_hold_on_the_engines_hook";
    if !ready(NAME) || !Needs::of(&format!("xway::{NAME}")).kernel(6, 6).met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("filterengine", false));
    let up = Up::new(&dir, None, Some(&bench.right));
    let to = ["--hook", "user", "--socket", &up.socket];
    works(&bench, &dir, "afxdp:r0", &to);
    let refused = bench.xway(&[&["filter", "load", "afxdp:r0", "-p", "/lists", "--owner", "0"], &to[..]].concat());
    refused.exits(1).says("only pins of the kernel's hook have an owner");
    // Lists outlive their filter by pins, here as there.
    let run = |args: &[&str]| bench.xway(&[&["filter"], args, &to].concat());
    run(&["load", "afxdp:r0", "-p", "/lists"]).exits(0);
    run(&["add", "-p", "/lists", "--tcp-dport", "23", "-q"]).exits(0);
    run(&["unload", "afxdp:r0"]).exits(0);
    assert!(run(&["load", "afxdp:r0", "-p", "/lists"]).exits(0).out.contains("uses /lists/filter_ports"));
    assert_eq!(listed(&run(&["list", "-p", "/lists", "-j"]).exits(0).json()), [("tcp:23".to_owned(), 0)]);
    let gone = run(&["unload", "afxdp:r0", "-p", "/lists", "-j"]).exits(0).json();
    assert_eq!(gone["removed"].as_array().unwrap().len(), 5, "{gone}");
    run(&["list", "-p", "/lists"]).exits(1);
}

/// The command where anybody may run it.
fn for_anybody(dir: &Dir) -> String {
    let (own, copy) = (env!("CARGO_BIN_EXE_xway"), dir.path("xway"));
    if std::fs::hard_link(own, &copy).is_err() {
        std::fs::copy(own, &copy).unwrap();
    }
    dir.arg("xway")
}

#[test]
fn somebody_without_privileges_changes_lists_by_their_pins() {
    const NAME: &str = "filter::somebody_without_privileges_changes_lists_by_their_pins";
    let needs = Needs::of(&format!("xway::{NAME}")).kernel(6, 1).command("setpriv");
    if !ready(NAME) || !needs.met() {
        return;
    }
    const PINS: &str = "/sys/fs/bpf/filter";
    let (dir, bench) = (Dir::new(), Bench::new("filterpins", true));
    let anybody = for_anybody(&dir);
    let as_user = |uid: &str, args: &[&str]| -> Ran {
        let who = [&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", &anybody, "filter"];
        bench.run("setpriv", &[&who[..], args].concat())
    };
    let loaded = bench.json(&["filter", "load", "r0", "-p", PINS, "--owner", "4242"]);
    assert_eq!((loaded["pinned"].as_array().unwrap().len(), &loaded["notes"]), (5, &json!([])), "{loaded}");
    let add = |uid| as_user(uid, &["add", "-p", PINS, "--ip", "192.0.2.0/24", "--udp-dport", "53"]);
    let refused = add("4243").exits(4);
    assert!(refused.err.contains("/sys/fs/bpf/filter/filter_net4") && refused.err.contains("try: "), "{}", refused.err);
    assert_eq!(add("4242").exits(0).out, "192.0.2.0/24: on the list (drop)\nudp:53: on the list (drop)\n");
    assert_eq!(add("4242").exits(0).out.matches("on the list already").count(), 2);
    let by_pin = as_user("4242", &["list", "-p", PINS, "-j"]).exits(0).json();
    assert_eq!(listed(&by_pin), listed(&bench.json(&["filter", "list", "r0"])));
    assert_eq!(as_user("4242", &["del", "-p", PINS, "--udp-dport", "53", "-q"]).exits(0).out, "");

    // The lists stay when the filter goes, and are found again.
    bench.xway(&["filter", "unload", "r0"]).exits(0);
    let again = bench.json(&["filter", "load", "r0", "-p", PINS]);
    assert_eq!((again["shared"].as_array().unwrap().len(), again["pinned"].as_array().unwrap().len()), (5, 0));
    assert_eq!(listed(&bench.json(&["filter", "list", "r0"])), [("192.0.2.0/24".to_owned(), 0)]);
    let gone = bench.json(&["filter", "unload", "r0", "-p", PINS]);
    assert_eq!(gone["removed"].as_array().unwrap().len(), 5, "{gone}");
    assert_eq!(bench.run("ls", &[PINS]).exits(0).out, "");

    // A way that is shut is said with the command that opens it.
    bench.run("chmod", &["0700", "/sys/fs/bpf"]).exits(0);
    let shut = bench.json(&["filter", "load", "r0", "-p", PINS, "--owner", "4242"]);
    assert_eq!(shut["notes"], json!(["4242 may not enter /sys/fs/bpf: chmod o+x /sys/fs/bpf"]));
    bench.xway(&["filter", "unload", "r0", "-p", PINS]).exits(0);
}

#[test]
fn nothing_is_done_by_halves() {
    if !ready("filter::nothing_is_done_by_halves") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("filterhalves", true));
    let none = |what: &str| {
        assert_eq!(bench.json(&["status"])["attachments"], json!([]), "{what}");
    };
    let pins = ["-p", "/sys/fs/bpf/filter"];
    bench.xway(&[&["filter", "load", "r0", "nosuch0"], &pins[..]].concat()).exits(4).says("nosuch0");
    none("the other port is not there");
    assert_eq!(bench.run("ls", &["/sys/fs/bpf/filter"]).exits(0).out, "");
    bench.xway(&["filter", "add", "--tcp-dport", "23"]).exits(1).says("no port has a filter");
    assert_eq!(bench.xway(&["filter", "list"]).exits(0).out, "no port has a filter\n");

    // Two filters with lists of their own: one must be named.
    bench.xway(&["filter", "load", "r0"]).exits(0);
    bench.xway(&["filter", "load", "lo", "-m", "generic"]).exits(0);
    bench.xway(&["filter", "load", "r0"]).exits(1).says("r0");
    bench.xway(&["filter", "add", "--tcp-dport", "23"]).exits(1).says("there are several filters, on ");
    bench.xway(&["filter", "add", "r0", "--tcp-dport", "23", "-q"]).exits(0);
    assert_eq!(bench.json(&["filter", "list"])["filters"].as_array().unwrap().len(), 2);
    bench
        .xway(&["filter", "add", "r0", "--tcp-dport", "24", "--tcp-dport", "23", "--pass"])
        .exits(1)
        .says("tcp:23: it is");
    bench
        .xway(&["filter", "del", "r0", "--tcp-dport", "23", "--udp-dport", "1"])
        .exits(1)
        .says("udp:1: it is on no list");
    assert_eq!(listed(&bench.json(&["filter", "list", "r0"])), [("tcp:23".to_owned(), 0)]);
    bench.xway(&["filter", "unload", "r0", "nosuch0"]).exits(4);
    assert_eq!(listed(&bench.json(&["filter", "list", "r0"])).len(), 1, "it is still there");
    bench.xway(&["filter", "unload", "r0", "lo"]).exits(0);
    none("both are gone");

    // One set of lists for two ports.
    bench.xway(&["filter", "load", "r0", "lo", "-m", "generic"]).exits(0);
    bench.xway(&["filter", "add", "--ip", "192.0.2.1"]).exits(0);
    assert_eq!(bench.json(&["filter", "list"])["filters"][0]["ports"].as_array().unwrap().len(), 2);
    bench.xway(&["filter", "unload", "lo", "r0"]).exits(0);

    // Beside other programs: in front of them, and found by the same words.
    let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
    bench.xway(&["load", "r0", &pass, "-P", "50"]).exits(0);
    bench.xway(&["filter", "load", "r0", "-P", "10"]).exits(0);
    answered(&bench);
    bench.xway(&["filter", "add", "r0", "--ip", "10.9.1.1"]).exits(0);
    assert_eq!(bench.pings(), 0);
    assert_eq!(bench.json(&["filter", "list", "r0"])["filters"][0]["rules"][0]["action"], "drop");
    bench.xway(&["filter", "unload", "r0"]).exits(0);
    assert_eq!(bench.json(&["status", "r0"])["attachments"][0]["program"]["name"], "pass");
    bench.xway(&["unload", "r0", "-a"]).exits(0);
}

#[test]
fn mistakes_are_told_before_anything_is_done() {
    for (args, words) in [
        (&["add", "eth0"][..], "--ip"),
        (&["add", "eth0", "--ip", "192.0.2.77/24"], "it is 192.0.2.0/24, or the one address 192.0.2.77"),
        (&["add", "eth0", "--ip", "host"], "not an address"),
        (&["add", "eth0", "--tcp-dport", "65536"], "65536"),
        (&["del", "eth0", "-p", "/sys/fs/bpf/filter", "--tcp-dport", "1"], "cannot be used with"),
        (&["load", "eth0", "--owner", "root"], "--pin-path"),
        (&["load", "eth0", "-p", "/sys/fs/bpf/filter", "--owner", "no such user"], "there is no such user"),
        (&["load"], "PORT"),
    ] {
        let ran = xway(&[&["filter"], args].concat()).exits(2);
        assert!(ran.err.contains(words) && ran.out.is_empty(), "{args:?}: {}", ran.err);
    }
}
