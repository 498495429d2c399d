//! `xway run` on live traffic: real pings, connections and datagrams in namespaces of the tests' own.

mod common;

use std::net::Ipv4Addr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, compiled, sample};
use serde_json::{Value, json};
use xway_testkit::{Lab, Namespace, Needs, traffic};

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

fn ready(name: &str) -> bool {
    Needs::of(&format!("xway::live::{name}")).root().command("ip").clang().met()
}

/// Two hosts on one wire that know each other.
struct Hosts {
    _lab: Lab,
    left: Namespace,
    right: Namespace,
}

fn hosts(label: &str) -> Hosts {
    let lab = Lab::new(label).unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", &format!("{LEFT}/24")).unwrap();
    right.address("r0", &format!("{RIGHT}/24")).unwrap();
    // Neighbours know each other before anything is counted.
    assert_eq!(left.enter(|| traffic::ping(RIGHT, 1)).unwrap().unwrap(), 1);
    Hosts { _lab: lab, left, right }
}

/// `xway run` in a namespace, listening on one interface.
struct Run(Child);

impl Run {
    /// `args` are what comes after the object and `-i packet:IFACE`.
    fn start(space: &Namespace, object: &str, interface: &str, args: &[&str]) -> Run {
        let sockets = || space.enter(|| std::fs::read_to_string("/proc/thread-self/net/packet")).unwrap().unwrap();
        // Columns: address, references, type, protocol, interface, running, …
        let running = |text: String| text.lines().skip(1).filter(|l| l.split_whitespace().nth(5) == Some("1")).count();
        let before = running(sockets());
        let child = space
            .command(env!("CARGO_BIN_EXE_xway"))
            .args(["run", object, "-j", "--dump-maps", "--timeout", "30", "-i", &format!("packet:{interface}")])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("xway cannot be started");
        let deadline = Instant::now() + Duration::from_secs(10);
        while running(sockets()) == before {
            assert!(Instant::now() < deadline, "no packet socket after ten seconds");
            std::thread::sleep(Duration::from_millis(5));
        }
        Run(child)
    }

    /// As `timeout -s INT` and Ctrl-C do: ends cleanly with the totals, also when it is told twice at once.
    fn end(self) -> Value {
        // What the kernel has queued is still to be read.
        std::thread::sleep(Duration::from_millis(100));
        let pid = rustix::process::Pid::from_child(&self.0);
        for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
            rustix::process::kill_process(pid, signal).unwrap();
        }
        let output = self.0.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        let doc: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {errors}"));
        assert_eq!(doc["end"], "stopped");
        assert_eq!(doc["errors"], json!([]));
        doc
    }
}

/// Packets in some rows of the counting parser's map.
fn counted(document: &Value, rows: &[u64]) -> u64 {
    let entries = document["maps"][0]["entries"].as_array().unwrap();
    let wanted = entries.iter().filter(|e| rows.contains(&e["key"].as_u64().unwrap()));
    wanted.flat_map(|e| e["values"].as_array().unwrap()).map(|v| v["packets"].as_u64().unwrap()).sum()
}

const MALFORMED: &[u64] = &[0];
const ICMP: &[u64] = &[4];
const TCP: &[u64] = &[5];
const UDP: &[u64] = &[6];
const ALL: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

#[test]
fn real_traffic_is_counted_and_passes() {
    if !ready("real_traffic_is_counted_and_passes") {
        return;
    }
    let dir = Dir::new();
    let Hosts { left, right, .. } = &hosts("count");
    let run = Run::start(right, &sample(&dir, "count"), "r0", &[]);
    let before = right.packets("r0").unwrap().0;

    // Everything is answered: the host gets what passes.
    assert_eq!(left.enter(|| traffic::ping(RIGHT, 5)).unwrap().unwrap(), 5);
    let at = (RIGHT, 7).into();
    let tcp = right.enter(|| traffic::tcp_echo_server(at, 3)).unwrap().unwrap();
    for _ in 0..3 {
        left.enter(|| traffic::tcp_echo_client(at, 5000)).unwrap().unwrap();
    }
    assert_eq!(tcp.join().unwrap().unwrap(), 3);
    let udp = right.enter(|| traffic::udp_echo_server(at, 4)).unwrap().unwrap();
    assert_eq!(left.enter(|| traffic::udp_echo_client(at, 4)).unwrap().unwrap(), 4);
    assert_eq!(udp.join().unwrap().unwrap(), 4);

    std::thread::sleep(Duration::from_millis(100));
    let arrived = right.packets("r0").unwrap().0 - before;
    let document = run.end();
    assert_eq!(counted(&document, ICMP), 5, "{document}");
    assert_eq!(counted(&document, UDP), 4);
    // Each connection has at least hand-shake, five requests and farewell in this direction.
    assert!(counted(&document, TCP) >= 3 * 8, "{document}");
    assert_eq!(counted(&document, MALFORMED), 0);
    assert_eq!(document["packets"], counted(&document, ALL), "each packet is in one row");
    // Nothing that the interface received was missed, nothing that it sent was taken for received.
    assert_eq!(document["packets"], arrived, "{document}");
    assert_eq!(document["verdicts"]["PASS"], arrived);
}

#[test]
fn a_drop_loses_the_copy_and_not_the_packet() {
    if !ready("a_drop_loses_the_copy_and_not_the_packet") {
        return;
    }
    let dir = Dir::new();
    let Hosts { left, right, .. } = &hosts("drop");
    let all = "SEC(\"xdp\") int all(struct xdp_md *ctx) { return XDP_DROP; }\n";
    let run = Run::start(right, &compiled(&dir, "drop", all, &[]), "r0", &[]);
    assert_eq!(left.enter(|| traffic::ping(RIGHT, 3)).unwrap().unwrap(), 3, "as the port's documentation says");
    let document = run.end();
    assert!(document["verdicts"]["DROP"].as_u64().unwrap() >= 3, "{document}");
    assert_eq!(document["verdicts"]["PASS"], 0);
}

#[test]
fn what_is_mirrored_comes_back() {
    if !ready("what_is_mirrored_comes_back") {
        return;
    }
    let dir = Dir::new();
    let Hosts { left, right, .. } = &hosts("mirror");
    let run = Run::start(right, &sample(&dir, "swap"), "r0", &[]);
    let before = left.packets("l0").unwrap().0;
    assert_eq!(left.enter(|| traffic::ping(RIGHT, 4)).unwrap().unwrap(), 4);
    let document = run.end();
    let mirrored = document["verdicts"]["TX"].as_u64().unwrap();
    assert!(mirrored >= 4, "{document}");
    // The answers of the host and what the program sent back.
    let came = left.packets("l0").unwrap().0 - before;
    assert!(came >= 4 + mirrored, "{came} packets came back; {document}");
}

#[test]
fn between_two_interfaces_verdicts_rule() {
    if !ready("between_two_interfaces_verdicts_rule") {
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
    let lab = Lab::new("bump").unwrap();
    let [left, middle, right] = ["left", "middle", "right"].map(|name| lab.namespace(name).unwrap());
    lab.veth(&left, "l0", &middle, "m0").unwrap();
    lab.veth(&right, "r0", &middle, "m1").unwrap();
    left.address("l0", &format!("{LEFT}/24")).unwrap();
    right.address("r0", &format!("{RIGHT}/24")).unwrap();
    let there = Run::start(&middle, &object, "m0", &["--pass", "packet:m1"]);
    let back = Run::start(&middle, &object, "m1", &["--pass-to", "packet:m0"]);
    let udp = right.enter(|| traffic::udp_echo_server((RIGHT, 7).into(), 1)).unwrap().unwrap();
    left.enter(|| {
        assert_eq!(traffic::ping(RIGHT, 3).unwrap(), 3, "pings go through");
        assert_eq!(traffic::udp_echo_client((RIGHT, 7).into(), 1).unwrap_or(0), 0, "datagrams do not");
    })
    .unwrap();
    let (there, back) = (there.end(), back.end());
    let _ = udp.join();
    assert!(there["verdicts"]["PASS"].as_u64().unwrap() >= 3 && back["verdicts"]["PASS"].as_u64().unwrap() >= 3);
    assert_eq!(there["verdicts"]["DROP"], 1, "{there}");
}

#[test]
fn a_time_limit_ends_a_silent_interface() {
    if !ready("a_time_limit_ends_a_silent_interface") {
        return;
    }
    let dir = Dir::new();
    let lab = Lab::new("time").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    let output = right
        .command(env!("CARGO_BIN_EXE_xway"))
        .args(["run", &sample(&dir, "count"), "-i", "packet:r0", "--timeout", "0.2", "-j"])
        .output()
        .unwrap();
    let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((doc["end"].as_str(), doc["packets"].as_u64()), (Some("timeout"), Some(0)));
    assert_eq!((doc["ns_per_packet"].as_f64(), doc["pps"].as_f64()), (Some(0.0), Some(0.0)));
}
