//! The verbs that watch: packets with their verdicts, events, numbers, the picture on a terminal.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::wire::{Bench, RIGHT, ready};
use common::{Dir, compiled, sample, xway};
use serde_json::Value;
use xway_testkit::{Needs, clang};

/// Drops datagrams to port 9, gives up on those to port 10.
const SOURCE: &str = r#"
SEC("xdp") int judge(struct xdp_md *ctx)
{
    unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (p + 42 > end || p[12] != 8 || p[13] != 0 || p[23] != 17 || p[36] != 0)
        return XDP_PASS;
    return p[37] == 9 ? XDP_DROP : p[37] == 10 ? XDP_ABORTED : XDP_PASS;
}
char _license[] SEC("license") = "GPL";
"#;

/// A command of ours that runs beside the test, until this is dropped.
struct Beside(Child);

impl Beside {
    fn new(bench: &Bench, args: &[&str]) -> Beside {
        // `ip netns exec` would give it a /sys without tracefs.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", bench.right.name())).arg(env!("CARGO_BIN_EXE_xway"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Beside(command.spawn().unwrap())
    }

    /// Lines of its standard output, as they come.
    fn lines(&mut self) -> impl Iterator<Item = String> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map_while(Result::ok)
    }

    /// Waits for its end; what it said on standard error.
    fn end(&mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The service on `r0` with the program, in the right namespace.
fn service(bench: &Bench, dir: &Dir) -> (Beside, String) {
    let socket = dir.arg("control.sock");
    let object = compiled(dir, "judge", SOURCE, &[]);
    let config = format!(
        "[[port]]\nname = \"packet:r0\"\n[[program]]\nname = \"judge\"\nobject = \"{object}\"\nport = \"packet:r0\"\n"
    );
    let file = dir.file("xway.toml", config);
    let mut up = Beside::new(bench, &["up", "-c", &file, "--socket", &socket]);
    assert_eq!(up.lines().next(), Some(format!("listening at {socket}")));
    (up, socket)
}

/// Datagrams to a port, again and again while something else happens.
fn while_sending<T>(bench: &Bench, port: u16, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            let send = || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                while !over.load(Ordering::Relaxed) {
                    // The host may say that nobody listens: that is its answer, not a failure.
                    let _ = socket.send_to(b"watched", (RIGHT, port));
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            bench.left.enter(send).unwrap();
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn a_dump_of_the_service_is_read_by_tshark() {
    let name = "watch::a_dump_of_the_service_is_read_by_tshark";
    let libpcap = xway_filter_works();
    if !ready(name) || !Needs::of(name).clang().command("tshark").that(libpcap, "libpcap").met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("dumped", false));
    let (_up, socket) = service(&bench, &dir);
    let file = dir.arg("drops.pcapng");
    let args = ["dump", "r0", "--socket", &socket, "--verdict", "drop", "-c", "3", "-w", &file, "--timeout", "60"];
    let mut dump = Beside::new(&bench, &[&args[..], &["udp", "dst", "port", "9", "and", "len", "<", "100"]].concat());
    let said = while_sending(&bench, 9, || dump.end());
    assert!(said.contains("3 packets captured, 0 lost"), "{said}");
    let shown = Command::new("tshark").args(["-n", "-V", "-r", &file]).output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout);
    let count = |words: &str| text.lines().filter(|line| line.contains(words)).count();
    assert_eq!(count("eBPF XDP: XDP_DROP"), 3, "{text}");
    let comments = text.lines().filter(|line| *line == "    dropped: judge returned XDP_DROP").count();
    assert_eq!(comments, 3, "{text}");
    assert_eq!(count("Interface name: packet:r0"), 3, "{text}");
    assert_eq!(count("Interface queue: 0"), 3, "{text}");
    assert_eq!(count("Direction: Inbound"), 3, "{text}");
    assert_eq!(count("Destination Port: 9"), 3, "{text}");
}

/// Whether expressions can be compiled on this machine.
fn xway_filter_works() -> bool {
    !matches!(xway_filter::compile("udp"), Err(xway_filter::FilterError::Missing { .. }))
}

#[test]
fn a_line_a_packet_and_a_pipe() {
    let name = "watch::a_line_a_packet_and_a_pipe";
    if !ready(name) || !Needs::of(name).clang().met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("dumplines", false));
    let (_up, socket) = service(&bench, &dir);
    let to = ["--socket", &socket, "--timeout", "60"];
    let dump = |more: &[&str]| Beside::new(&bench, &[&["dump", "packet:r0"], &to[..], more].concat());

    let mut text = dump(&["--verdict", "aborted", "-c", "2"]);
    let lines: Vec<String> = while_sending(&bench, 10, || text.lines().collect());
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert!(line.contains("packet:r0 q0 ABORTED 49 bytes, "), "{line}");
        assert!(line.ends_with("(dropped: judge returned XDP_ABORTED)"), "{line}");
    }
    let mut json = dump(&["--prog", "judge", "--verdict", "drop", "-c", "1", "-s", "14", "-j"]);
    let lines: Vec<String> = while_sending(&bench, 9, || json.lines().collect());
    let [packet, end] = [0, 1].map(|at| serde_json::from_str::<Value>(&lines[at]).unwrap());
    assert_eq!((packet["verdict"].as_str(), packet["length"].as_u64()), (Some("DROP"), Some(49)), "{packet}");
    assert_eq!((packet["program"].as_str(), packet["schema_version"].as_u64()), (Some("judge"), Some(1)), "{packet}");
    assert_eq!((end["packets"].as_u64(), end["lost"].as_u64()), (Some(1), Some(0)));

    // pcapng on a pipe: packets are there before the end.
    let mut pipe = dump(&["--at", "entry", "-w", "-", "--sample", "1/2"]);
    let mut out = pipe.0.stdout.take().unwrap();
    let bytes = while_sending(&bench, 9, || {
        let mut bytes = vec![0; 300];
        out.read_exact(&mut bytes).unwrap();
        bytes
    });
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header");

    // Wrong words, unknown ports.
    xway(&["dump", "r9", "--socket", &socket]).exits(4).says("port r9");
    if xway_filter_works() {
        xway(&["dump", "r0", "tcp prot 80"]).exits(2).says("filter `tcp prot 80`").says("man pcap-filter");
        xway(&["dump", "r0", "inbound"]).exits(2).says("packet type");
    }
}

/// Packets of Linux's hook, as they come in, while the program there goes on deciding.
#[test]
fn a_dump_of_the_kernels_hook() {
    const NAME: &str = "watch::a_dump_of_the_kernels_hook";
    if !ready(NAME) || !Needs::of(NAME).clang().met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("dumpkernel", true));
    let object = compiled(&dir, "judge", SOURCE, &[]);
    let dump =
        |more: &[&str]| Beside::new(&bench, &[&["dump", "r0", "--hook", "native", "--timeout", "60"], more].concat());
    // Without a program there, and in front of one.
    for attached in [false, true] {
        if attached {
            bench.xway(&["load", "r0", &object, "--hook", "native"]).exits(0);
        }
        let mut json = dump(&["-c", "2", "-s", "42", "-j"]);
        let lines: Vec<String> = while_sending(&bench, 9, || json.lines().collect());
        let [packet, _, end] = [0, 1, 2].map(|at| serde_json::from_str::<Value>(&lines[at]).unwrap());
        assert_eq!((packet["port"].as_str(), &packet["verdict"]), (Some("r0"), &Value::Null), "{packet}");
        assert_eq!(end["packets"].as_u64(), Some(2), "{end}");
        if xway_filter_works() {
            let file = dir.arg("entry.pcapng");
            let words = ["udp", "dst", "port", "9", "and", "len", "==", "49"];
            let mut text = dump(&[&["-c", "3", "-w", &file][..], &words].concat());
            let said = while_sending(&bench, 9, || text.end());
            assert!(said.contains("3 packets captured, 0 lost"), "{said}");
            assert_eq!(said.contains("in front of program"), attached, "{said}");
            assert!(std::fs::metadata(&file).unwrap().len() > 3 * 49);
            // What does not match is not shown.
            let mut none =
                Beside::new(&bench, &["dump", "r0", "--hook", "native", "--timeout", "1", "udp", "dst", "port", "11"]);
            let said = while_sending(&bench, 9, || none.end());
            assert!(said.contains("0 packets captured"), "{said}");
        }
        // The program, where there is one, has its place back.
        let there = bench.json(&["status", "r0", "--hook", "native"]);
        let names: Vec<&str> =
            there["attachments"].as_array().unwrap().iter().filter_map(|a| a["program"]["name"].as_str()).collect();
        assert_eq!(names, if attached { vec!["judge"] } else { vec![] }, "{there}");
    }
    for (words, what) in
        [(&["--at", "exit"][..], "--at exit"), (&["--verdict", "drop"], "--verdict"), (&["--prog", "x"], "--prog")]
    {
        let refused = bench.xway(&[&["dump", "r0", "--hook", "native"], words].concat()).exits(2);
        refused.says(what).says("before any program");
    }
    bench.xway(&["dump", "r9", "--hook", "native"]).exits(4).says("r9: no such interface");
}

#[test]
fn a_run_captures_beside_itself() {
    let name = "xway::watch::a_run_captures_beside_itself";
    if !Needs::of(name).clang().command("tshark").met() {
        return;
    }
    let dir = Dir::new();
    let (object, file) = (sample(&dir, "count"), dir.arg("drops.pcapng"));
    let input = clang::repository().join("bpf/demo/mixed.pcapng");
    let run = |more: &[&str]| {
        let args = ["run", &object, "-i", input.to_str().unwrap(), "--dump", &file, "-j"];
        xway(&[&args[..], more].concat()).exits(0).json()
    };
    let shown = |wanted: &str| {
        let shown = Command::new("tshark").args(["-n", "-V", "-r", &file]).output().unwrap();
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        (text.matches("eBPF XDP: XDP_").count(), text.matches(wanted).count())
    };
    // The run does not wait: what is not captured is counted.
    let written = |doc: &Value| doc["dump"]["packets"].as_u64().unwrap();
    let matched = |doc: &Value| written(doc) + doc["dump"]["lost"].as_u64().unwrap();
    let all = run(&[]);
    assert_eq!(Some(matched(&all)), all["packets"].as_u64(), "{all}");
    assert_eq!(shown("").0 as u64, written(&all));
    let some = run(&["--dump-verdict", "drop"]);
    assert_eq!(Some(matched(&some)), all["verdicts"]["DROP"].as_u64(), "{some}");
    let (packets, drops) = shown("eBPF XDP: XDP_DROP");
    assert_eq!((packets as u64, drops), (written(&some), packets));
    assert_eq!(some["verdicts"], all["verdicts"], "the run is the same");
    if xway_filter_works() {
        let tcp = run(&["--dump-filter", "tcp"]);
        let (packets, frames) = shown("TCP (6)");
        assert!(packets > 0 && written(&tcp) == packets as u64, "{tcp}");
        assert!(frames >= packets);
    }
}

#[test]
fn the_kernels_exceptions_are_events() {
    let name = "watch::the_kernels_exceptions_are_events";
    let traced = std::path::Path::new("/sys/kernel/tracing/events/xdp/xdp_exception").exists();
    if !ready(name) || !Needs::of(name).clang().that(traced, "tracefs at /sys/kernel/tracing").met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("kmonitor", true));
    let object = compiled(&dir, "judge", SOURCE, &[]);
    let loaded = bench.json(&["load", "r0", &object]);
    let id = loaded["attachment"]["program"]["id"].as_u64().unwrap();
    let mut monitor = Beside::new(&bench, &["monitor", "-e", "-j", "--timeout", "60"]);
    // Other tests on this machine abort packets too: ours are told by the program.
    let ours = while_sending(&bench, 10, || {
        let lines = monitor.lines().map(|line| serde_json::from_str::<Value>(&line).unwrap());
        lines.into_iter().find(|event| event["program"] == format!("program {id}"))
    });
    let event = ours.expect("an event of our program");
    assert_eq!((event["event"].as_str(), event["port"].as_str()), (Some("exception"), Some("r0")), "{event}");
    assert_eq!(event["text"], format!("program {id} returned XDP_ABORTED"));
}

#[test]
fn events_and_rates_of_the_service() {
    let name = "watch::events_and_rates_of_the_service";
    if !ready(name) || !Needs::of(name).clang().met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("monitored", false));
    let (_up, socket) = service(&bench, &dir);
    let to = ["--hook", "user", "--socket", &socket];
    let mut monitor = Beside::new(&bench, &[&["monitor", "-e", "-c", "1", "--timeout", "60", "r0"], &to[..]].concat());
    let lines: Vec<String> = while_sending(&bench, 10, || monitor.lines().collect());
    assert!(lines[0].contains("exception") && lines[0].contains("judge returned XDP_ABORTED"), "{lines:?}");

    let args = ["monitor", "-s", "-i", "0.05", "--timeout", "60", "-j"];
    let mut rates = Beside::new(&bench, &[&args[..], &to[..]].concat());
    let found = while_sending(&bench, 9, || {
        let lines = rates.lines().map(|line| serde_json::from_str::<Value>(&line).unwrap());
        lines.into_iter().any(|doc| doc["rates"]["packet:r0"]["verdicts.drop"]["per_second"].as_f64() > Some(0.0))
    });
    assert!(found);

    // Where only rates are shown they are what is counted.
    let args = ["monitor", "-s", "-i", "0.05", "-c", "2", "--timeout", "60", "-j"];
    let said = bench.run(env!("CARGO_BIN_EXE_xway"), &[&args[..], &to[..]].concat()).exits(0);
    assert_eq!(said.out.lines().count(), 2, "{}", said.out);

    // A document a line, only what changes; by the names of docs/counters.md.
    let args = ["stats", "r0", "-i", "0.05", "--count", "2", "--ndjson", "--all"];
    let said = bench.run(env!("CARGO_BIN_EXE_xway"), &[&args[..], &to[..]].concat()).exits(0);
    let docs: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(docs.len(), 2);
    for doc in docs {
        assert_eq!((doc["command"].as_str(), doc["port"].as_str()), (Some("stats"), Some("r0")), "{doc}");
        assert!(doc["counters"]["burst_sizes.64"]["total"].is_u64() && doc["counters"]["pool.fast"]["total"].is_u64());
    }
}

/// Runs a command in a terminal of 80 by 24 characters, with this typed in; what the terminal was sent.
fn in_terminal(command: &str, keys: &str) -> String {
    // Whatever goes wrong, it ends.
    let quoted = format!("stty cols 80 rows 24; timeout --foreground 60 {command}");
    let mut script = Command::new("script");
    script.args(["-qec", &quoted, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut seen, mut part, until) = (Vec::new(), [0; 4096], Instant::now() + Duration::from_secs(60));
    let mut typed = false;
    while Instant::now() < until {
        match out.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(len) => seen.extend_from_slice(&part[..len]),
        }
        // Typed once the picture is there.
        if !typed && seen.windows(4).any(|w| w == b"quit") {
            typed = true;
            std::io::Write::write_all(&mut input, keys.as_bytes()).unwrap();
        }
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&seen).into_owned()
}

/// Sent to a terminal on the way in and on the way out: the alternate screen.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn the_picture_in_a_real_terminal() {
    let name = "watch::the_picture_in_a_real_terminal";
    if !ready(name) || !Needs::of(name).clang().command("script").command("stty").met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("top", false));
    let (_up, socket) = service(&bench, &dir);
    let command = format!("{} top -i 0.1 --socket {socket}", env!("CARGO_BIN_EXE_xway"));
    // q, Escape, Ctrl-C: each ends it, and the terminal is as it was.
    for keys in ["q", "\x1b", "jk\x03"] {
        let sent = in_terminal(&command, keys);
        for words in [ENTER, "packet:r0", "judge", "verdict", LEAVE] {
            assert!(sent.contains(words), "{words:?} is not in {sent:?}");
        }
        assert!(sent.find(ENTER) < sent.rfind(LEAVE));
    }
    // The picture of a run, which ends with the input.
    let (object, input) = (sample(&dir, "count"), clang::repository().join("bpf/demo/mixed.pcapng"));
    let sent = in_terminal(&format!("{} run {object} -i {} --top", env!("CARGO_BIN_EXE_xway"), input.display()), "");
    let (_, report) = sent.rsplit_once(LEAVE).expect("the terminal is given back");
    assert!(report.contains("PASS"), "the report follows: {report}");
}

#[test]
fn the_picture_shows_the_kernels_hook_too() {
    const NAME: &str = "watch::the_picture_shows_the_kernels_hook_too";
    if !ready(NAME) || !Needs::of(&format!("xway::{NAME}")).command("script").command("stty").met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("topkernel", true));
    let object = compiled(&dir, "judge", SOURCE, &[]);
    bench.xway(&["load", "r0", &object, "-m", "native"]).exits(0);
    let space = format!("ip netns exec {}", bench.right.name());
    let command = format!("{space} {} top -i 0.2 --count 10 --hook native", env!("CARGO_BIN_EXE_xway"));
    let sent = while_sending(&bench, 9, || in_terminal(&command, ""));
    for words in [ENTER, "r0", "judge", "runs/s", "verdicts are not counted here", "the kernel's hook", LEAVE] {
        assert!(sent.contains(words), "{words:?} is not in {sent:?}");
    }
}

#[test]
fn without_a_service_or_a_terminal_the_picture_says_what_to_do() {
    xway(&["top"]).exits(2).says("top needs a terminal").says("--ndjson");
    xway(&["top", "-j"]).exits(2).says("top is a picture");
    if Needs::of("xway::watch::without_a_service_or_a_terminal_the_picture_says_what_to_do").command("script").met() {
        let sent = in_terminal(&format!("{} top --socket /none/here.sock", env!("CARGO_BIN_EXE_xway")), "");
        assert!(sent.contains("no service answers") && sent.contains("xway up -c FILE.toml"), "{sent}");
        assert!(sent.contains("--hook native") && !sent.contains(ENTER), "{sent}");
    }
}
