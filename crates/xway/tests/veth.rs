//! The command on live traffic: a veth pair between two namespaces, real pings, connections and datagrams.

mod common;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use xway_testkit::{Lab, Namespace, Needs, clang, traffic};

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

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

/// A sample, compiled, under a name of this test's own.
fn sample(name: &str) -> PathBuf {
    let source = clang::repository().join(format!("bpf/samples/{name}.bpf.c"));
    let bytes = clang::compile_file(&source, &[]).unwrap();
    let path = clang::out_dir().join(format!("veth-{}-{name}.o", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

/// `xway run` in a namespace, listening.
struct Run(Child, PathBuf);

impl Run {
    fn start(namespace: &Namespace, object: PathBuf, input: &str) -> Run {
        let sockets = || namespace.enter(|| std::fs::read_to_string("/proc/thread-self/net/packet")).unwrap().unwrap();
        let child = namespace
            .command(env!("CARGO_BIN_EXE_xway"))
            .args(["run", "-j", "--dump-maps", "--timeout", "30", "-i", input])
            .arg(&object)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Its packet socket is bound and runs. Columns: address, references, type, protocol, interface, running, …
        let runs = |line: &str| line.split_whitespace().nth(5) == Some("1");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !sockets().lines().skip(1).any(runs) {
            assert!(Instant::now() < deadline, "no packet socket after ten seconds");
            std::thread::sleep(Duration::from_millis(5));
        }
        Run(child, object)
    }

    /// As Ctrl-C does: ends cleanly with the totals.
    fn end(self) -> Value {
        // What the kernel has queued is still to be read.
        std::thread::sleep(Duration::from_millis(100));
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = self.0.wait_with_output().unwrap();
        let _ = std::fs::remove_file(&self.1);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {errors}"))
    }
}

fn ready(name: &str) -> bool {
    Needs::of(&format!("xway::veth::{name}")).root().command("ip").clang().met()
}

/// Packets in one row of the counting parser's map.
fn counted(document: &Value, row: u64) -> u64 {
    let entries = document["maps"][0]["entries"].as_array().unwrap();
    let entry = entries.iter().find(|e| e["key"] == row).unwrap();
    entry["values"].as_array().unwrap().iter().map(|v| v["packets"].as_u64().unwrap()).sum()
}

const TOTAL: u64 = 0;
const ARP: u64 = 2;
const TCP: u64 = 6;
const UDP: u64 = 7;
const ICMP: u64 = 8;
const MALFORMED: u64 = 10;

#[test]
fn real_traffic_is_counted_and_passes() {
    if !ready("real_traffic_is_counted_and_passes") {
        return;
    }
    let Hosts { left, right, .. } = &hosts("count");
    let run = Run::start(right, sample("count"), "packet:r0");
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
    let kinds = [ARP, TCP, UDP, ICMP].map(|row| counted(&document, row));
    assert_eq!(counted(&document, TOTAL), kinds.iter().sum::<u64>());
    // Nothing that the interface received was missed, nothing that it sent was taken for received.
    assert_eq!(document["packets"], arrived, "{document}");
    assert_eq!(document["verdicts"]["PASS"], arrived);
}

#[test]
fn a_drop_loses_the_copy_and_not_the_packet() {
    if !ready("a_drop_loses_the_copy_and_not_the_packet") {
        return;
    }
    let Hosts { left, right, .. } = &hosts("drop");
    let source = "__attribute__((section(\"xdp\"))) int all(void *ctx) { return 1; }\n";
    let object = clang::out_dir().join(format!("veth-{}-drop.o", std::process::id()));
    std::fs::write(&object, clang::compile_text("drop", source, &[]).unwrap()).unwrap();
    let run = Run::start(right, object, "packet:r0");
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
    let Hosts { left, right, .. } = &hosts("mirror");
    let run = Run::start(right, sample("swap"), "packet:r0");
    let before = left.packets("l0").unwrap().0;
    assert_eq!(left.enter(|| traffic::ping(RIGHT, 4)).unwrap().unwrap(), 4);
    let document = run.end();
    let mirrored = document["verdicts"]["TX"].as_u64().unwrap();
    assert!(mirrored >= 4, "{document}");
    // The answers of the host and what the program sent back.
    let came = left.packets("l0").unwrap().0 - before;
    assert!(came >= 4 + mirrored, "{came} packets came back; {document}");
}
