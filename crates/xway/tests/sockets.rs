//! `xway run --xsk`: AF_XDP-style sockets without a service.

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Dir, clang, command, compiled, xway};
use serde_json::{Value, json};
use xway_xsk_client::{Bind, Connection, Socket};

/// Every packet goes to the socket of its queue; while there is none, the low bits of the flags say that it is dropped.
const PROGRAM: &str = r#"
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp") int to_socket(struct xdp_md *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;

/// Receives so many packets, and sends every one of them back.
fn echo(socket: &mut Socket, count: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    let mut came = 0;
    while came < count {
        assert!(Instant::now() < until, "{came} of {count} packets");
        socket.fill(64);
        socket.wait(Some(Duration::from_millis(100))).unwrap();
        while came < count
            && let Some(mut packet) = socket.receive()
        {
            assert_eq!(packet.bytes().len(), 64);
            packet.bytes_mut()[..6].fill(2);
            came += u64::from(socket.send(packet).is_ok());
        }
        socket.flush();
    }
    while socket.sending() > 0 {
        assert!(Instant::now() < until, "{} packets do not come back", socket.sending());
        socket.wait(Some(Duration::from_millis(10))).unwrap();
    }
}

#[test]
fn a_run_serves_sockets() {
    if !clang("xway::sockets::a_run_serves_sockets") {
        return;
    }
    let dir = Dir::new();
    let (object, path) = (compiled(&dir, "to_socket", PROGRAM, &[]), dir.arg("xsk.sock"));
    let words = ["run", &object, "-i", "sim:a", "--wrap", "rate?rx=50000", "--xsk", &path, "-j"];
    xway(&[&words[..], &["--xsk-group", "nosuch"]].concat()).exits(2).says("--xsk-group: there is no group nosuch");
    let mut run = command(&words);
    let run = run.args(["--timeout", "100"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let mut connection = loop {
        match Connection::open(&path) {
            Ok(connection) => break connection,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let umem = connection.umem(256, 2048, 0).unwrap();
    let refused = |bind: &Bind, connection: &mut Connection| connection.bind(&umem, bind).err().unwrap().to_string();
    assert!(refused(&Bind::new("b", 0), &mut connection).contains("no port b; there are: sim:a"));
    assert!(refused(&Bind::new("a", 1), &mut connection).contains("no queue 1"));
    // What the program redirects, with copies; then everything past it, in the run's own memory.
    let zero_copy = xway_abi::xsk::bind::ZEROCOPY;
    for (count, bind) in [(300, Bind::new("a", 0)), (200, Bind { direct: true, flags: zero_copy, ..Bind::new("a", 0) })]
    {
        let mut socket = connection.bind(&umem, &bind).unwrap();
        assert_eq!(socket.zero_copy(), bind.direct, "{}", socket.reason());
        echo(&mut socket, count);
        connection.close(socket).unwrap();
    }
    // One that is still there when the run ends.
    let mut last = connection.bind(&umem, &Bind { flags: zero_copy, ..Bind::new("a", 0) }).unwrap();
    echo(&mut last, 10);
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&doc["end"], &doc["losses"]["socket_lost"]), (&json!("stopped"), &json!({})), "{doc}");
    assert!(doc["port"][0].as_str().unwrap().contains("AF_XDP-style sockets at"), "{doc}");
    let verdicts = &doc["verdicts"];
    assert!(verdicts["REDIRECT"].as_u64().unwrap() >= 300, "{verdicts}");
    assert!(connection.statistics(&last).is_err(), "the server went with the run");
    assert!(!dir.path("xsk.sock").exists());
}

#[test]
fn a_path_that_cannot_be_served_is_told() {
    if !clang("xway::sockets::a_path_that_cannot_be_served_is_told") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "to_socket", PROGRAM, &[]);
    let nowhere = dir.arg("no/such/folder/xsk.sock");
    xway(&["run", &object, "-i", "sim:a?count=10", "--xsk", &nowhere]).exits(4).says("serving AF_XDP sockets at");
}
