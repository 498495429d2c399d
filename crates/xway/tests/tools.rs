//! Other tools' names: `xdp-bench`, `xdp-monitor`, `xdp-trafficgen`; and `xway trafficgen`. On veth pairs in
//! namespaces, with packets that are counted where they arrive.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, Ran, compiled, packet};
use serde_json::Value;
use xway_testkit::{Lab, Namespace, Needs};

fn ready(name: &str) -> bool {
    Needs::of(&format!("xway::tools::{name}")).root().command("ip").clang().kernel(5, 18).met()
}

/// Packets of one run: fewer than a veth's queue has room for, so that none can be lost there, however slow the machine is.
const COUNT: u64 = 200;

/// One host with two wires to another: a0 — b0, a1 — b1. The far ends have a program that passes everything.
struct Wires {
    _lab: Lab,
    near: Namespace,
    far: Namespace,
    dir: Dir,
}

impl Wires {
    fn new(label: &str) -> Wires {
        let lab = Lab::new(label).unwrap();
        let (near, far) = (lab.namespace("near").unwrap(), lab.namespace("far").unwrap());
        lab.veth(&near, "a0", &far, "b0").unwrap();
        lab.veth(&near, "a1", &far, "b1").unwrap();
        let dir = Dir::new();
        let wires = Wires { _lab: lab, near, far, dir };
        let pass = compiled(&wires.dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
        for interface in ["b0", "b1"] {
            wires.run(&wires.far, env!("CARGO_BIN_EXE_xway"), &["load", interface, &pass, "-m", "native"]).exits(0);
        }
        wires
    }

    fn tool(&self, name: &str) -> PathBuf {
        let path = self.dir.path(name);
        if !path.exists() {
            symlink(env!("CARGO_BIN_EXE_xway"), &path).unwrap();
        }
        path
    }

    fn run(&self, space: &Namespace, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Ran {
        ran(space.command(program).args(args))
    }

    /// Sends [`COUNT`] packets from the far host, and waits until an interface has received them.
    fn send(&self, port: &str, (space, last): (&Namespace, &str)) {
        let before = space.packets(last).unwrap().0;
        let args = ["trafficgen", port, "-n", &COUNT.to_string(), "-j"];
        let doc = self.run(&self.far, env!("CARGO_BIN_EXE_xway"), &args).exits(0).json();
        assert_eq!((doc["made"].as_u64(), doc["sent"].as_u64()), (Some(COUNT), Some(COUNT)), "{doc}");
        let deadline = Instant::now() + Duration::from_secs(60);
        while space.packets(last).unwrap().0 < before + COUNT && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs a tool at the near host while packets come out of a port of the far one; gives what it said when it was told
    /// to end.
    fn while_packets_come(&self, name: &str, args: &[&str], port: &str, last: (&Namespace, &str)) -> String {
        let mut command = self.near.command(self.tool(name));
        let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        // It has said something, so its program is there.
        let mut said = String::new();
        out.read_line(&mut said).unwrap();
        self.send(port, last);
        end(&mut child);
        std::io::Read::read_to_string(&mut out, &mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        said
    }
}

/// The kernel's run ends at a signal, also where the process is stopped and goes on, and does not tell how far it came.
#[test]
fn as_many_packets_are_made_as_asked_for_however_often_it_is_stopped() {
    if !ready("as_many_packets_are_made_as_asked_for_however_often_it_is_stopped") {
        return;
    }
    use rustix::process::Signal;
    // A call makes at most 16,384.
    const MANY: u64 = 40_000;
    let wires = Wires::new("toolstops");
    let args = ["trafficgen", "a0", "-n", &MANY.to_string(), "-j"];
    let mut command = wires.near.command(env!("CARGO_BIN_EXE_xway"));
    let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        for (which, time) in [(Signal::STOP, 1), (Signal::CONT, 5)] {
            signal(&child, which);
            std::thread::sleep(Duration::from_millis(time));
        }
    }
    let mut out = Vec::new();
    std::io::Read::read_to_end(&mut child.stdout.take().unwrap(), &mut out).unwrap();
    let doc: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(doc["made"].as_u64(), Some(MANY), "{doc}");
    assert_eq!(doc["sent"].as_u64().unwrap() + doc["lost"].as_u64().unwrap(), MANY, "{doc}");
}

/// As Ctrl-C does it.
fn end(child: &mut Child) {
    signal(child, rustix::process::Signal::INT);
}

fn signal(child: &Child, which: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), which).unwrap();
}

fn ran(command: &mut Command) -> Ran {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: out.status.code().unwrap(), out: text(out.stdout), err: text(out.stderr) }
}

/// The number behind a name in the sums at the end.
fn sum(said: &str, name: &str) -> u64 {
    let line = said.lines().find_map(|l| l.trim().strip_prefix(name)?.trim().strip_prefix(':'));
    line.map_or(0, |n| n.trim().parse().unwrap())
}

#[test]
fn xdp_bench_counts_every_packet() {
    if !ready("xdp_bench_counts_every_packet") {
        return;
    }
    let wires = Wires::new("toolbench");
    let (here, there) = ((&wires.near, "a0"), (&wires.far, "b1"));
    let said = wires.while_packets_come("xdp-bench", &["drop", "a0", "-i", "1", "-e", "-r"], "b0", here);
    assert!(said.starts_with("Dropping packets on a0 (ifindex "), "{said}");
    assert_eq!((sum(&said, "Packets received"), sum(&said, "Rx dropped")), (COUNT, COUNT), "{said}");
    let said = wires.while_packets_come(
        "xdp-bench",
        &["pass", "a0", "-m", "skb", "-p", "parse-ip", "-l", "load-bytes"],
        "packet:b0",
        here,
    );
    assert_eq!((sum(&said, "Packets received"), sum(&said, "Rx errors")), (COUNT, COUNT), "IPv6 is not parsed: {said}");
    for command in ["redirect", "redirect-map"] {
        let before = wires.far.packets("b1").unwrap().0;
        let said = wires.while_packets_come("xdp-bench", &[command, "a0", "a1", "-s", "-e"], "b0", there);
        let figures = ["Packets received", "Packets redirected", "Packets transmitted"].map(|name| sum(&said, name));
        assert_eq!(figures, [COUNT; 3], "{command}: {said}");
        assert!(said.contains("a0->a1") && said.contains("  xmit a0->a1"), "{said}");
        assert_eq!(wires.far.packets("b1").unwrap().0 - before, COUNT, "{command}: all of them came out");
    }
    // A program behind the map drops them before they leave.
    let before = wires.far.packets("b1").unwrap().0;
    let said = wires.while_packets_come("xdp-bench", &["redirect-map", "a0", "a1", "-X", "-A", "drop"], "b0", here);
    assert_eq!(sum(&said, "Packets received"), COUNT, "{said}");
    assert_eq!(wires.far.packets("b1").unwrap().0, before);
}

#[test]
fn xdp_bench_sets_up_whatever_it_is_asked_for() {
    if !ready("xdp_bench_sets_up_whatever_it_is_asked_for") {
        return;
    }
    let wires = Wires::new("toolsetup");
    let tool = wires.tool("xdp-bench");
    let at_once = |args: &[&str]| ran(wires.near.command(&tool).args(args).env("XDP_SAMPLE_IMMEDIATE_EXIT", "1"));
    for action in ["drop", "pass", "tx"] {
        for operation in ["no-touch", "read-data", "parse-ip", "swap-macs"] {
            for way in ["dpa", "load-bytes"] {
                let ran = at_once(&[action, "a0", "-p", operation, "-l", way]).exits(0);
                assert!(ran.out.contains("Duration"), "{}", ran.out);
            }
        }
    }
    at_once(&["redirect-multi", "a0", "a1", "-X"]).exits(0);
    at_once(&["redirect-multi", "a0", "a1", "-m", "skb", "-s", "-e", "-vv"]).exits(0);
    for by in ["no-touch", "touch", "round-robin", "l4-proto", "l4-filter", "l4-hash", "l4-sport", "l4-dport"] {
        at_once(&["redirect-cpu", "a0", "-c", "0", "-p", by]).exits(0);
    }
    assert!(at_once(&["redirect-cpu", "a0", "-c", "0", "-r", "redirect"]).exits(1).err.contains("-D IFNAME"));
    assert_eq!(at_once(&["drop", "nosuch0"]).exits(1).err, "Couldn't find network interface 'nosuch0'.\n");
    assert_eq!(at_once(&["jump"]).exits(1).err, "Command 'jump' is unknown, try 'xdp-bench help'.\n");
    assert_eq!(at_once(&[]).code, 255);
    // Nothing stays behind.
    let status = wires.run(&wires.near, env!("CARGO_BIN_EXE_xway"), &["status", "-j"]).exits(0).json();
    assert_eq!(status["attachments"], serde_json::json!([]), "{status}");
}

#[test]
fn cpus_take_turns() {
    if !ready("cpus_take_turns") {
        return;
    }
    let wires = Wires::new("toolcpu");
    let args = ["redirect-cpu", "a0", "-c", "0", "-r", "drop", "-e", "-x", "-i", "1"];
    let tool = wires.tool("xdp-bench");
    let mut child = wires.near.command(&tool).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // This command says nothing before its first interval is over.
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    wires.send("b0", (&wires.near, "a0"));
    // What goes into the queue comes out of it: the thread counts when it has run, so the line that has it is
    // waited for.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !said.contains("kthread total") && Instant::now() < deadline {
        out.read_line(&mut said).unwrap();
    }
    end(&mut child);
    std::io::Read::read_to_string(&mut out, &mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(sum(&said, "Packets received"), COUNT, "{said}");
    assert!(said.contains("enqueue to cpu 0") && said.contains("xdp_stats total"), "{said}");
}

#[test]
fn xdp_monitor_sees_what_others_do() {
    if !ready("xdp_monitor_sees_what_others_do") {
        return;
    }
    let wires = Wires::new("toolmon");
    let tool = wires.tool("xdp-monitor");
    let ran = ran(wires.near.command(&tool).args(["-e", "-vv"]).env("XDP_SAMPLE_IMMEDIATE_EXIT", "1")).exits(0);
    assert!(ran.out.contains("successful redirects are not counted"), "{}", ran.out);
    let pass = wires.dir.arg("pass.o");
    wires.run(&wires.near, env!("CARGO_BIN_EXE_xway"), &["load", "a0", &pass, "-m", "native"]).exits(0);
    let said = wires.while_packets_come("xdp-monitor", &["-i", "1", "-e"], "b0", (&wires.near, "a0"));
    // The whole machine's: others may send meanwhile.
    assert!(sum(&said, "Packets transmitted") >= COUNT, "{said}");
}

#[test]
fn lines_grow_and_shrink_on_ctrl_backslash_and_the_end_is_told_with_sums() {
    if !ready("lines_grow_and_shrink_on_ctrl_backslash_and_the_end_is_told_with_sums") {
        return;
    }
    let wires = Wires::new("toolquit");
    for last in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let mut command = wires.near.command(wires.tool("xdp-bench"));
        command.args(["drop", "a0", "-i", "1"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let until = |lines: &mut dyn Iterator<Item = String>, words: &str| {
            while !lines.next().unwrap_or_else(|| panic!("{words:?} never came")).contains(words) {}
        };
        until(&mut lines, " rx/s");
        signal(&child, rustix::process::Signal::QUIT);
        until(&mut lines, "  xdp_exception");
        signal(&child, rustix::process::Signal::QUIT);
        // Short lines again: two of them with nothing between.
        let mut last_line = String::new();
        loop {
            let line = lines.next().expect("it goes on");
            if line.contains(" rx/s") && last_line.contains(" rx/s") {
                break;
            }
            last_line = line;
        }
        signal(&child, last);
        until(&mut lines, "Duration ");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn traffic_is_made_and_arrives() {
    if !ready("traffic_is_made_and_arrives") {
        return;
    }
    let wires = Wires::new("tooltraffic");
    let tool = wires.tool("xdp-trafficgen");
    assert!(wires.run(&wires.near, &tool, &["probe"]).exits(0).out.starts_with("Kernel supports"));
    let before = wires.far.packets("b0").unwrap().0;
    let ran = wires.run(&wires.near, &tool, &["udp", "a0", "-n", "200", "-d", "7", "-t", "2"]).exits(0);
    assert!(ran.out.starts_with("Transmitting on a0 (ifindex "), "{}", ran.out);
    assert_eq!(sum(&ran.out, "Packets transmitted"), COUNT, "{}", ran.out);
    let deadline = Instant::now() + Duration::from_secs(60);
    while wires.far.packets("b0").unwrap().0 - before < COUNT && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(wires.far.packets("b0").unwrap().0 - before, COUNT);

    // The far end of this one has neither a program nor anything else that takes frames.
    wires.near.ip(&["link", "add", "z0", "type", "veth", "peer", "name", "z1"]).unwrap();
    let refused = wires.run(&wires.near, &tool, &["udp", "z0", "-n", "1"]).exits(1);
    assert_eq!(refused.err, "Interface z0 does not support sending packets via XDP.\n");
    wires
        .run(&wires.near, env!("CARGO_BIN_EXE_xway"), &["trafficgen", "z0", "-n", "1"])
        .exits(4)
        .says("takes no frames");
}

/// How many connections were refused to those who opened them in a namespace.
fn attempts_refused(wires: &Wires, space: &Namespace) -> u64 {
    let text = wires.run(space, "cat", &["/proc/net/snmp"]).exits(0).out;
    let mut lines = text.lines().filter(|l| l.starts_with("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "AttemptFails").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn a_stream_fills_the_window_of_a_real_receiver() {
    if !ready("a_stream_fills_the_window_of_a_real_receiver") {
        return;
    }
    let wires = Wires::new("toolstream");
    for (space, interface, address) in [(&wires.near, "a0", "fd00:9::1/64"), (&wires.far, "b0", "fd00:9::2/64")] {
        space.ipv6(true).unwrap();
        space.address(interface, address).unwrap();
    }
    let tool = wires.tool("xdp-trafficgen");
    let args = ["tcp", "-i", "a0", "fd00:9::2", "-p", "7777", "-n", "100000", "-t", "30"];
    let (ran, bytes) = std::thread::scope(|scope| {
        let ran = scope.spawn(|| wires.run(&wires.near, &tool, &args));
        // Nobody listens until the first attempt was refused.
        let deadline = Instant::now() + Duration::from_secs(25);
        while attempts_refused(&wires, &wires.near) == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let listener = wires.far.enter(|| std::net::TcpListener::bind("[fd00:9::2]:7777")).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if !ran.is_finished() => std::thread::sleep(Duration::from_millis(5)),
                Err(e) => panic!("nobody connects: {e}: {:?}", ran.join().unwrap().err),
            }
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
        // Exactly what was sent arrives, in order, through an ordinary TCP.
        while bytes < 700_000 {
            match std::io::Read::read(&mut stream, &mut buffer) {
                Ok(0) => break,
                Ok(n) => bytes += n,
                Err(e) => panic!("{bytes} bytes, then {e}"),
            }
        }
        drop(stream);
        (ran.join().unwrap().exits(0), bytes)
    });
    assert!(attempts_refused(&wires, &wires.near) > 0, "the receiver listened too early");
    assert!(ran.out.starts_with("Connected to fd00:9::2 port 7777 from fd00:9::1 port "), "{}", ran.out);
    assert!(sum(&ran.out, "Packets transmitted") >= 500, "{}", ran.out);
    assert!(bytes >= 700_000);
    let none = wires.run(&wires.near, &tool, &["tcp", "-i", "a0", "fd00:9::2", "-p", "1", "-n", "1"]);
    assert!(none.exits(1).err.contains("Connect to fd00:9::2 port 1 failed"));
}

#[test]
fn our_own_verb_checks_what_arrives() {
    if !ready("our_own_verb_checks_what_arrives") {
        return;
    }
    let wires = Wires::new("toolgen");
    let xway = env!("CARGO_BIN_EXE_xway");
    // Both ends in one namespace: what arrives can be counted there.
    wires.near.ip(&["link", "add", "c0", "type", "veth", "peer", "name", "c1"]).unwrap();
    for interface in ["c0", "c1"] {
        wires.near.ip(&["link", "set", interface, "up"]).unwrap();
    }
    let pass = wires.dir.arg("pass.o");
    wires.run(&wires.near, xway, &["load", "c1", &pass, "-m", "native"]).exits(0);
    let run = |args: &[&str]| -> Value {
        let all = [&["trafficgen"], args, &["--check", "c1", "-j"]].concat();
        wires.run(&wires.near, xway, &all).exits(0).json()
    };
    let doc = run(&["c0", "-n", "200", "-d", "100", "-s", "200", "--src", "10.0.0.1", "--dst", "10.0.0.2"]);
    for field in ["asked", "made", "sent", "arrived"] {
        assert_eq!(doc[field], COUNT, "{field}: {doc}");
    }
    assert_eq!(doc["hook"], "kernel");
    let doc = run(&["packet:c0", "-n", "200", "-d", "3", "--src", "10.0.0.1", "--dst", "10.0.0.2"]);
    assert_eq!(
        (doc["sent"].as_u64(), doc["arrived"].as_u64(), doc["hook"].as_str()),
        (Some(COUNT), Some(COUNT), Some("user")),
        "{doc}"
    );

    let path = wires.dir.path("two.pcapng");
    let one = |port: u16| {
        packet(&format!(r#"{{"ipv4": {{"src": "10.0.0.1", "dst": "10.0.0.2"}}, "udp": {{"dport": {port}}}}}"#))
    };
    common::capture(&path, &[one(1), one(2)]);
    let path = path.to_str().unwrap();
    for port in ["c0", "packet:c0"] {
        let doc = run(&[port, "--pcap", path, "-n", "11", "--rate", "10000"]);
        assert_eq!((doc["sent"].as_u64(), doc["arrived"].as_u64()), (Some(11), Some(11)), "{doc}");
    }
    let too_long = wires.run(&wires.near, xway, &["trafficgen", "c0", "-s", "20000"]);
    too_long.exits(1).says("a packet of 20000 bytes");
}

/// Runs `xdpdump` until it has shown a packet; what it said on both outputs.
fn dumped(wires: &Wires, args: &[&str]) -> (String, String) {
    let mut command = wires.near.command(wires.tool("xdpdump"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut out, mut err) =
        (BufReader::new(child.stdout.take().unwrap()), BufReader::new(child.stderr.take().unwrap()));
    let mut said = String::new();
    while !said.contains("listening on") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    wires.send("packet:b0", (&wires.near, "a0"));
    let mut shown = String::new();
    out.read_line(&mut shown).unwrap();
    end(&mut child);
    std::io::Read::read_to_string(&mut out, &mut shown).unwrap();
    std::io::Read::read_to_string(&mut err, &mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    (shown, said)
}

#[test]
fn xdpdump_stands_in_front_of_what_is_there() {
    if !ready("xdpdump_stands_in_front_of_what_is_there") {
        return;
    }
    let wires = Wires::new("tooldump");
    let xway = env!("CARGO_BIN_EXE_xway");
    // A socket, where nothing is attached and nothing is asked for.
    let (shown, said) = dumped(&wires, &["-i", "a0"]);
    assert!(said.contains("capturing in legacy mode!"), "{said}");
    assert!(shown.contains("packet size 64 bytes on if_name \"a0\""), "{shown}");
    // A program of its own.
    let (shown, said) = dumped(&wires, &["-i", "a0", "--load-xdp-program", "-x"]);
    assert!(said.contains(" func xdpdump, capture mode entry"), "{said}");
    assert!(shown.contains("xdpdump()@entry: packet size 64 bytes, captured 64 bytes on if_index "), "{shown}");
    assert!(shown.contains("  0x0000:  00 00 00 00 00 00 "), "{shown}");

    // In front of one that counts and drops, which goes on doing so.
    let count =
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); }
        seen SEC(\".maps\");
        SEC(\"xdp\") int count_all(struct xdp_md *ctx) { __u32 k = 0; __u64 *n = bpf_map_lookup_elem(&seen, &k);
        if (n) __sync_fetch_and_add(n, 1); return 1; }";
    let count = compiled(&wires.dir, "count", count, &[]);
    let loaded = wires.run(&wires.near, xway, &["load", "a0", &count, "-m", "native", "-j"]).exits(0).json();
    let id = loaded["attachment"]["program"]["id"].to_string();
    let status = || wires.run(&wires.near, xway, &["status", "a0", "-j"]).exits(0).json()["attachments"].clone();
    let before = status();
    let (shown, said) = dumped(&wires, &["-i", "a0", "-p", "count_all"]);
    assert!(said.contains("has a program of xdpdump in front of it"), "{said}");
    assert!(shown.contains("count_all()@entry: packet size 64 bytes on if_index "), "{shown}");
    assert!(said.contains(&format!("{COUNT} packets captured\n0 packets dropped by perf ring")), "{said}");
    assert_eq!(status(), before, "it has its place back");
    let map = loaded["attachment"]["program"]["map_ids"][0].to_string();
    let seen = |map: &str| wires.run(&wires.near, xway, &["map", "dump", "id", map, "-j"]).exits(0).json();
    let doc = seen(&map);
    assert_eq!(doc["entries"][0]["value"], COUNT, "it saw every packet meanwhile: {doc}");
    // Also when xdpdump is killed without a word.
    let mut command = wires.near.command(wires.tool("xdpdump"));
    command.args(["-i", "a0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("listening on") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    assert_eq!(status()[0]["program"]["name"], "xdpdump");
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while status()[0]["program"]["id"] != loaded["attachment"]["program"]["id"] {
        assert!(std::time::Instant::now() < deadline, "it has not got its place back: {}", status());
    }
    let refused = ran(wires.near.command(wires.tool("xdpdump")).args(["-i", "a0", "--rx-capture", "exit"])).exits(1);
    assert!(refused.err.contains("--rx-capture entry"), "{}", refused.err);
    let unknown = ran(wires.near.command(wires.tool("xdpdump")).args(["-i", "a0", "-p", "hallo"])).exits(1);
    assert_eq!(unknown.err, "ERROR: Can't find function 'hallo' on interface!\n");
    wires.run(&wires.near, xway, &["unload", "a0", "-i", &id]).exits(0);
    // As a capture, which our own tools read.
    let path = wires.dir.arg("out.pcapng");
    let mut command = wires.near.command(wires.tool("xdpdump"));
    command.args(["-i", "a0", "--load-xdp-program", "-w", &path]).stderr(Stdio::piped()).stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("listening on") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    wires.send("packet:b0", (&wires.near, "a0"));
    end(&mut child);
    assert!(child.wait().unwrap().success());
    let mut reader = xway_port_pcap::CaptureReader::open(std::path::Path::new(&path)).unwrap();
    let mut packets = 0;
    while reader.next_with(|r| assert_eq!(r.data.len(), 64)).unwrap().is_some() {
        packets += 1;
    }
    assert_eq!(packets, COUNT);
    let listed = ran(wires.near.command(wires.tool("xdpdump")).args(["-D"])).exits(0).out;
    assert!(listed.contains("a0                     <No XDP program loaded!>"), "{listed}");
}
