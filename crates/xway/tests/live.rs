//! `xway run` on live traffic, in namespaces of its own.

mod common;

use std::io::Read;
use std::net::Ipv4Addr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, compiled, sample};
use serde_json::Value;
use xway_testkit::{Lab, Namespace};
use xway_testkit::{Needs, traffic};

const LEFT: &str = "10.9.0.1/24";
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

fn ready(test: &str) -> bool {
    Needs::of(test).root().command("ip").clang().met()
}

/// Starts the command in a namespace and waits until its packet socket is there.
fn start(space: &Namespace, args: &[&str]) -> Child {
    let child = space
        .command(env!("CARGO_BIN_EXE_xway"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("xway cannot be started");
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // One line of heading; a socket per line after it.
        let sockets = std::fs::read_to_string(format!("/proc/{}/net/packet", child.id())).unwrap_or_default();
        if sockets.lines().count() > 1 || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(50));
    child
}

/// Ctrl-C, and the document with the totals.
fn interrupt(mut child: Child) -> Value {
    // What the kernel has queued is still to be counted.
    std::thread::sleep(Duration::from_millis(200));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(status.code(), Some(0), "{err}");
    let doc: Value = serde_json::from_str(&out).expect("one document");
    assert_eq!(doc["end"], "stopped");
    doc
}

fn counter(doc: &Value, map: &str, key: u64) -> u64 {
    let map = doc["maps"].as_array().unwrap().iter().find(|m| m["name"] == map).unwrap();
    let entry = map["entries"].as_array().unwrap().iter().find(|e| e["key"] == key).unwrap();
    entry["values"][0]["packets"].as_u64().unwrap()
}

#[test]
fn real_pings_connections_and_datagrams_are_counted_until_ctrl_c() {
    if !ready("live::real_pings_connections_and_datagrams_are_counted_until_ctrl_c") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "count");
    let lab = Lab::new("xway").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", LEFT).unwrap();
    right.address("r0", "10.9.0.2/24").unwrap();
    let child = start(&right, &["run", &object, "-i", "packet:r0", "-j", "--dump-maps"]);
    let tcp = right.enter(|| traffic::tcp_echo_server((RIGHT, 7).into(), 1)).unwrap().unwrap();
    let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 5)).unwrap().unwrap();
    left.enter(|| {
        // PASS leaves the packet to the host: everything is answered.
        assert_eq!(traffic::ping(RIGHT, 4).unwrap(), 4);
        assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 5).unwrap(), 5);
        traffic::tcp_echo_client((RIGHT, 7).into(), 3000).unwrap();
    })
    .unwrap();
    let doc = interrupt(child);
    tcp.join().unwrap().unwrap();
    udp.join().unwrap().unwrap();
    // Kinds of the sample: 0 total, 6 TCP, 7 UDP, 8 ICMP, 10 malformed.
    assert_eq!((counter(&doc, "counters", 8), counter(&doc, "counters", 7)), (4, 5), "{doc}");
    assert!(counter(&doc, "counters", 6) >= 5, "handshake, data, end: {doc}");
    assert_eq!(counter(&doc, "counters", 10), 0);
    assert_eq!(doc["packets"].as_u64().unwrap(), counter(&doc, "counters", 0));
    assert_eq!(doc["verdicts"]["PASS"], doc["packets"]);
    assert_eq!(doc["errors"], serde_json::json!([]));
}

#[test]
fn between_two_interfaces_verdicts_rule() {
    if !ready("live::between_two_interfaces_verdicts_rule") {
        return;
    }
    let dir = Dir::new();
    // ARP and ICMP pass; nothing else does.
    let text = r#"
SEC("xdp") int p(struct xdp_md *ctx)
{
	unsigned char *d = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (d + 34 > end) return XDP_DROP;
	if (d[12] == 8 && d[13] == 6) return XDP_PASS;
	return d[23] == 1 ? XDP_PASS : XDP_DROP;
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;
    let object = compiled(&dir, "gate", text, &[]);
    let lab = Lab::new("xwaybump").unwrap();
    let [left, middle, right] = ["left", "middle", "right"].map(|name| lab.namespace(name).unwrap());
    lab.veth(&left, "l0", &middle, "m0").unwrap();
    lab.veth(&right, "r0", &middle, "m1").unwrap();
    left.address("l0", LEFT).unwrap();
    right.address("r0", "10.9.0.2/24").unwrap();
    let there = start(&middle, &["run", &object, "-i", "packet:m0", "--pass-to", "packet:m1", "-j"]);
    let back = start(&middle, &["run", &object, "-i", "packet:m1", "--pass-to", "packet:m0", "-j"]);
    // Nothing shows when the second one is ready: its socket joins those of the first.
    std::thread::sleep(Duration::from_millis(500));
    let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 1)).unwrap().unwrap();
    left.enter(|| {
        assert_eq!(traffic::ping(RIGHT, 3).unwrap(), 3, "pings go through");
        assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 1).unwrap_or(0), 0, "datagrams do not");
    })
    .unwrap();
    let (there, back) = (interrupt(there), interrupt(back));
    let _ = udp.join();
    assert!(there["verdicts"]["PASS"].as_u64().unwrap() >= 3 && back["verdicts"]["PASS"].as_u64().unwrap() >= 3);
    assert_eq!(there["verdicts"]["DROP"], 1, "{there}");
    assert_eq!(there["errors"], serde_json::json!([]));
}

#[test]
fn a_time_limit_ends_a_silent_interface() {
    if !ready("live::a_time_limit_ends_a_silent_interface") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "count");
    let lab = Lab::new("xwaytime").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    let output = right
        .command(env!("CARGO_BIN_EXE_xway"))
        .args(["run", &object, "-i", "packet:r0", "--timeout", "0.2", "-j"])
        .output()
        .unwrap();
    let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((doc["end"].as_str(), doc["packets"].as_u64()), (Some("timeout"), Some(0)));
    assert_eq!((doc["ns_per_packet"].as_f64(), doc["pps"].as_f64()), (Some(0.0), Some(0.0)));
}
