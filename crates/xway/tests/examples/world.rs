//! A machine on which the examples of the help can run: interfaces, files and a service of these names, seen by nobody else.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xway_testkit::{Lab, Namespace};

use crate::common::wire::Mounts;
use crate::common::{Dir, Ran, capture, compiled, mixture, packet, sample};

/// A program, and a map of each kind that an example speaks of.
const FILTER: &str = r#"
struct count { __u64 packets; };
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, __u64); } blocked SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, struct count); } counts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_QUEUE); __uint(max_entries, 64); __type(value, __u32); } line SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); __uint(key_size, 4); __uint(value_size, 4); } samples SEC(".maps");

static int seen(struct xdp_md *ctx, __u32 who)
{
	__u32 value = who;
	struct count *c = bpf_map_lookup_elem(&counts, &who);
	if (c)
		__sync_fetch_and_add(&c->packets, 1);
	bpf_perf_event_output(ctx, &samples, 0xffffffffULL, &value, sizeof(value));
	bpf_printk("packet for %u", who);
	return bpf_map_lookup_elem(&blocked, &who) ? XDP_DROP : XDP_PASS;
}

SEC("xdp") int drop_udp(struct xdp_md *ctx) { return seen(ctx, 2); }
char _license[] SEC("license") = "GPL";
"#;

const TESTS: &str = r#"
object = "count.o"
[[test]]
name = "vlan"
packet = { vlan = 7, ipv4 = {}, udp = {} }
verdict = "PASS"
"#;

const CONFIG: &str = r#"
[[port]]
name = "packet:eth0"

[[port]]
name = "tap:xw0?queues=8"

[[program]]
name = "filter"
port = "packet:eth0"
object = "filter.o"
function = "drop_udp"
pins = "/config/filter"
"#;

/// Files that the examples name; `names` in them end in `own`.
pub fn files(names: &[&str], own: &str) -> Dir {
    let named =
        |text: &str| names.iter().fold(text.to_owned(), |text, name| text.replace(name, &format!("{name}{own}")));
    let dir = Dir::new();
    let object = sample(&dir, "count");
    std::fs::copy(&object, dir.path("prog.o")).unwrap();
    compiled(&dir, "filter", &named(FILTER), &[]);
    for name in ["capture.pcapng", "traffic.pcapng", "traffic.pcap"] {
        capture(&dir.path(name), &mixture());
    }
    assert!(Command::new("gzip").arg(dir.path("traffic.pcap")).status().unwrap().success());
    dir.file("packet.bin", packet(r#"{"ipv4":{},"udp":{},"payload":20}"#));
    dir.file("ctx.json", r#"{"ingress_ifindex": 1, "rx_queue_index": 0}"#);
    dir.file(&named("blocked.json"), r#"[{"key": 7, "value": 1}]"#);
    dir.file("tests.toml", TESTS);
    std::fs::create_dir(dir.path("tests")).unwrap();
    dir.file("tests/filter.toml", TESTS.replace("count.o", "../count.o"));
    dir.file("xway.toml", named(CONFIG));
    for name in [".zfunc", ".local/share/bash-completion/completions", ".local/share/man/man1"] {
        std::fs::create_dir_all(dir.path(name)).unwrap();
    }
    dir
}

/// Runs a line of the help as it stands there, in this folder, for `seconds` at most; then it gets what Ctrl-C sends.
pub fn shell(dir: &Dir, inside: Option<&World>, line: &str, seconds: u32) -> Ran {
    let bin = Path::new(env!("CARGO_BIN_EXE_xway")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = match inside {
        Some(world) => world.enter(),
        None => Command::new("env"),
    };
    command.args(["timeout", "-k", "30", "-s", "INT", &seconds.to_string()]);
    let there = format!("cd {} && {{ {line}\n}}", dir.path("").display());
    command.args(["sh", "-c", &there]).env("HOME", dir.path("")).env("PATH", path);
    let done = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code: done.status.code().unwrap_or(-1), out: text(done.stdout), err: text(done.stderr) }
}

/// Interfaces `eth0` and `eth1` with a neighbour each, that of `eth0` sending; `veth0` and `veth1` on one wire; file systems of
/// its own where the examples write.
pub struct World {
    _lab: Lab,
    right: Namespace,
    mounts: Mounts,
    service: Option<(Child, BufReader<ChildStdout>)>,
    end: Arc<AtomicBool>,
}

impl World {
    pub fn new(label: &str, dir: &Dir) -> World {
        let lab = Lab::new(label).unwrap();
        let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
        for n in 0..2 {
            let (theirs, ours) = (format!("l{n}"), format!("eth{n}"));
            lab.veth(&left, &theirs, &right, &ours).unwrap();
            left.address(&theirs, &format!("10.9.{n}.1/24")).unwrap();
            right.address(&ours, &format!("10.9.{n}.2/24")).unwrap();
        }
        lab.veth(&right, "veth0", &right, "veth1").unwrap();
        // What a driver's program sends arrives where another one takes it.
        for (space, interface) in [(&left, "l0"), (&left, "l1"), (&right, "veth1")] {
            let mut command = space.command(env!("CARGO_BIN_EXE_xway"));
            let done = command.args(["load", interface, &dir.arg("prog.o"), "-m", "native"]).output().unwrap();
            assert!(done.status.success(), "{interface}: {}", String::from_utf8_lossy(&done.stderr));
        }
        let mounts = Mounts::new(
            "mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs none /run && mount -t tmpfs none /var/lib && \
             { test -d /sys/kernel/tracing/events || mount -t tracefs nodev /sys/kernel/tracing; }",
        );
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        std::thread::spawn(move || left.enter(|| send(&ended)));
        World { _lab: lab, right, mounts, service: None, end }
    }

    /// A command that runs there.
    fn enter(&self) -> Command {
        self.mounts.enter(&self.right)
    }

    /// Starts the service where clients look for it, if it does not run.
    pub fn serve(&mut self, dir: &Dir) {
        if self.service.is_some() {
            return;
        }
        let mut command = self.enter();
        command.args([env!("CARGO_BIN_EXE_xway"), "up", "-c", &dir.arg("xway.toml")]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut line, mut out) = (String::new(), BufReader::new(child.stdout.take().unwrap()));
        out.read_line(&mut line).unwrap();
        if line != "listening at /run/xway/control.sock\n" {
            let _ = child.kill();
            let mut said = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut said);
            panic!("xway up: {line}{said}");
        }
        // Its standard output stays open, and what it logs is not read: it goes on all the same.
        self.service = Some((child, out));
    }

    /// Waits until a service that was told to end has.
    pub fn ended(&mut self) {
        if let Some((mut child, _)) = self.service.take() {
            child.wait().unwrap();
        }
    }
}

/// Datagrams for the host at `eth0`, some for port 80.
fn send(ended: &AtomicBool) {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    while !ended.load(Ordering::Relaxed) {
        for port in [9, 80] {
            // The host may say that nobody listens: that is its answer, not a failure.
            let _ = socket.send_to(&[1; 20], (Ipv4Addr::new(10, 9, 0, 2), port));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some((mut child, _)) = self.service.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
