//! The engine as a service, from the command line: up, apply, diff, down; one program on both hooks; killed and back again.

mod common;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::wire::{Bench, RIGHT, ready};
use common::{Dir, compiled, xway};
use serde_json::{Value, json};
use xway_abi::{MapSpec, MapType};
use xway_control::Service;
use xway_hook::{Hook, ObjectId};
use xway_testkit::{Namespace, traffic};

/// `xway up`, until it is dropped.
struct Up {
    child: Child,
    socket: String,
}

impl Up {
    /// Starts it, in a namespace if one is given, and waits until it listens.
    fn new(dir: &Dir, config: Option<&str>, inside: Option<&Namespace>) -> Up {
        let (socket, state) = (dir.arg("control.sock"), dir.arg("state"));
        let mut command = match inside {
            Some(space) => space.command(env!("CARGO_BIN_EXE_xway")),
            None => Command::new(env!("CARGO_BIN_EXE_xway")),
        };
        command.args(["up", "--socket", &socket, "--state", &state]).args(config.iter().flat_map(|c| ["-c", *c]));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening at {socket}\n"));
        Up { child, socket }
    }

    fn connect(&self) -> Service {
        Service::connect(Path::new(&self.socket)).unwrap()
    }

    /// As the machine would: without a word.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts what it sees by kind, and drops datagrams to port 9.
const KINDS: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u64);
    __uint(pinning, LIBBPF_PIN_BY_NAME); } kinds SEC(".maps");
static __attribute__((always_inline)) int count(__u32 kind, int verdict)
{
    __u64 *n = bpf_map_lookup_elem(&kinds, &kind);
    if (n)
        __sync_fetch_and_add(n, 1);
    return verdict;
}
SEC("xdp") int sort(struct xdp_md *ctx)
{
    unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (p + 48 > end || p[12] != 8 || p[13] != 0 || (p[14] & 15) != 5)
        return p + 42 <= end && p[12] == 8 && p[13] == 0 && p[23] == 17 && p[37] == 9 ? count(1, XDP_DROP) : XDP_PASS;
    if (p[23] == 1 && p[34] == 8)
        return count(0, XDP_PASS);
    if (p[23] == 17 && p[36] == 0 && p[37] == 9)
        return count(1, XDP_DROP);
    if (p[23] == 6 && p[37] == 81 && p[47] == 2)
        return count(2, XDP_PASS);
    return XDP_PASS;
}
char _license[] SEC("license") = "GPL";
"#;

/// Three echo requests, five datagrams to port 9, four connections that nobody answers.
fn send(bench: &Bench) {
    let at = |port: u16| SocketAddr::from((RIGHT, port));
    bench
        .left
        .enter(|| {
            assert_eq!(traffic::ping(RIGHT, 3).unwrap(), 3);
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for n in 0..5u8 {
                // The host may say that nobody listens: that is its answer, not a failure.
                let _ = socket.send_to(&[n; 20], at(9));
            }
            for _ in 0..4 {
                assert!(TcpStream::connect_timeout(&at(81), Duration::from_secs(5)).is_err());
            }
        })
        .unwrap();
}

#[test]
fn one_program_on_three_hooks_with_one_flag_changed() {
    if !ready("service::one_program_on_three_hooks_with_one_flag_changed") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("threehooks", true));
    let object = compiled(&dir, "sort", KINDS, &[]);
    let up = Up::new(&dir, None, Some(&bench.right));
    let expected = [3u64, 5, 4];
    for hook in ["native", "generic", "user"] {
        let to = ["--hook", hook, "--socket", &up.socket];
        let done = bench.json(&[&["load", "r0", &object], &to[..]].concat());
        let attached = &done["attachment"];
        assert_eq!(attached["program"]["name"], "sort", "{hook}: {done}");
        let engine = if hook == "user" { "jit" } else { "kernel" };
        assert_eq!(attached["engine"], engine, "{hook}: {done}");
        send(&bench);
        // The same words on both sides, and the same types.
        let counted = || -> Vec<u64> {
            let one = |k: u32| {
                let words = ["map", "lookup", "pinned", "/sys/fs/bpf/kinds", "key", &k.to_string()];
                bench.json(&[&words[..], &to[..]].concat())
            };
            (0..3).map(|k| one(k)["value"].as_u64().unwrap()).collect()
        };
        // The last packet may still be on its way to a process.
        let deadline = Instant::now() + Duration::from_secs(20);
        while counted() != expected && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(counted(), expected, "{hook}");
        // Counters of the port, on both sides: one look, all of them.
        let counted = bench.json(&[&["stats", "r0", "--count", "1", "--interval", "0.05", "--all"], &to[..]].concat());
        let seen = &counted["samples"][0]["counters"]["rx_packets"]["total"];
        assert!(seen.as_u64().is_some_and(|n| n >= 12), "{hook}: {counted}");
        let status = bench.json(&["status", "--socket", &up.socket]);
        assert_eq!(status["attachments"].as_array().unwrap().len(), 1, "{hook}: {status}");
        assert_eq!(status["attachments"][0]["program"]["tag"], attached["program"]["tag"]);
        bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
        assert_eq!(bench.json(&["status", "--socket", &up.socket])["attachments"], json!([]), "{hook}");
        if hook != "user" {
            bench.run("rm", &["/sys/fs/bpf/kinds"]).exits(0);
        }
    }
}

#[test]
fn a_file_says_what_the_engine_is() {
    if !ready("service::a_file_says_what_the_engine_is") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("srvfile", false));
    compiled(&dir, "sort", KINDS, &[]);
    let text = |object: &str| {
        format!(
            "[[port]]\nname = \"packet:r0\"\n[[program]]\nname = \"kinds\"\nport = \"packet:r0\"\nobject = \"{object}\"\n"
        )
    };
    let file = dir.file("xway.toml", text("sort.o"));
    let mut up = Up::new(&dir, Some(&file), Some(&bench.right));
    let at = ["--socket".to_owned(), up.socket.clone()];
    let at = [at[0].as_str(), at[1].as_str()];
    let run = |words: &[&str]| bench.xway(&[words, &at[..]].concat());
    assert_eq!(run(&["diff", &file]).exits(0).out, "nothing to do: the engine is what the file says\n");
    let kinds = |up: &Up| -> (u32, u64) {
        let mut service = up.connect();
        let ObjectId::Map(map) = service.pinned(Path::new("/config/kinds/kinds")).unwrap() else { panic!() };
        let value = service.map_lookup(map, &0u32.to_ne_bytes(), 0).unwrap();
        (map.0, u64::from_ne_bytes(value.try_into().unwrap()))
    };
    let until = |up: &Up, wanted: u64| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while kinds(up).1 != wanted {
            assert!(Instant::now() < deadline, "{:?}", kinds(up));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    assert_eq!(bench.pings(), 1);
    until(&up, 1);

    // A new version of the object takes the old one's place under traffic; the map stays, and no request goes uncounted.
    let changed = KINDS.replace("p[37] == 81", "p[37] == 82");
    assert_ne!(changed, KINDS);
    let before = kinds(&up).0;
    compiled(&dir, "sort", &changed, &[]);
    let steps = run(&["diff", &file]).exits(1).out;
    assert!(steps.starts_with("would replace program kinds on packet:r0"), "{steps}");
    assert_eq!(run(&["apply", &file, "--dry-run"]).exits(0).out, steps);
    let sent = std::thread::scope(|scope| {
        let pings = scope.spawn(|| bench.left.enter(|| traffic::ping(RIGHT, 200)).unwrap().unwrap());
        run(&["apply", &file]).exits(0);
        pings.join().unwrap()
    });
    assert_eq!(sent, 200);
    until(&up, 201);
    assert_eq!(kinds(&up).0, before, "the same map");
    assert_eq!(run(&["apply", &file]).exits(0).out, "nothing to do: the engine is what the file says\n");

    // What is refused changes nothing.
    let broken = dir.file("broken.toml", text("nowhere.o"));
    run(&["apply", &broken]).exits(3).says("nowhere.o");
    let typo = dir.file("typo.toml", "[[prot]]\nname = \"packet:r0\"\n");
    run(&["apply", &typo]).exits(3).says("prot");
    assert_eq!(bench.pings(), 1);
    until(&up, 202);

    // Killed, and back as it was; the file is the same, so what was applied last is what is there.
    let empty = dir.file("empty.toml", "");
    let told = run(&["apply", &empty]).exits(0).out;
    assert!(told.contains("detach program kinds") && told.contains("close port packet:r0"), "{told}");
    up.kill();
    drop(up);
    up = Up::new(&dir, Some(&file), Some(&bench.right));
    assert_eq!(up.connect().ports().unwrap(), [""; 0]);
    run(&["apply", &file]).exits(0);
    up.kill();
    drop(up);
    up = Up::new(&dir, Some(&file), Some(&bench.right));
    assert_eq!(up.connect().attachments(None).unwrap().len(), 1);
    assert_eq!(bench.pings(), 1);
    until(&up, 1);
    run(&["down"]).exits(0);
    run(&["down"]).exits(4).says("no service answers");
}

/// One request of each kind that changes something, again and again, until the connection breaks.
fn hammer(kind: &str, up: &Up, object: &[u8]) -> impl FnOnce() + Send + 'static {
    let (kind, mut service, bytes) = (kind.to_owned(), up.connect(), object.to_vec());
    move || {
        let image = xway_hook::Image::parse(&bytes, &Default::default()).unwrap();
        let spec = MapSpec::new(MapType::Array, 4, 4, 1);
        for n in 0.. {
            let path = format!("/hammer/{kind}/{n}");
            let path = Path::new(&path);
            let request = xway_hook::LoadRequest { programs: Vec::new(), pins: Some(path.to_owned()) };
            let done = (|| match kind.as_str() {
                "pin" => {
                    let id = ObjectId::Map(service.map_create("m", &spec)?);
                    service.pin(id, path)?;
                    service.release(id)
                }
                "unpin" => {
                    let id = ObjectId::Map(service.map_create("m", &spec)?);
                    service.pin(id, path)?;
                    service.unpin(path)?;
                    service.release(id)
                }
                "load" => {
                    let objects = service.load(&image, &request)?;
                    objects.programs.iter().try_for_each(|(_, id)| service.release(ObjectId::Program(*id)))
                }
                "program" => {
                    let objects = service.load(&image, &request)?;
                    service.pin(ObjectId::Program(objects.programs[0].1), &path.join("program"))
                }
                "attach" => {
                    let objects = service.load(&image, &xway_hook::LoadRequest::default())?;
                    let program = objects.programs[0].1;
                    let port = service.ports()?.remove(0);
                    let request =
                        xway_hook::AttachRequest { chain: true, ..xway_hook::AttachRequest::new(&port, program) };
                    service.attach(&request)?;
                    if n % 3 != 0 {
                        service.detach(&port, Some(program))?;
                    }
                    objects.maps.iter().try_for_each(|(_, id)| service.release(ObjectId::Map(*id)))?;
                    service.release(ObjectId::Program(program))
                }
                _ => service.apply(&format!("[limits]\nconnections = {}\n", 32 + n % 8), false).map(drop),
            })();
            if done.is_err() {
                return;
            }
        }
    }
}

#[test]
fn killed_in_the_middle_it_comes_back_whole() {
    if !common::clang("xway::service::killed_in_the_middle_it_comes_back_whole") {
        return;
    }
    let dir = Dir::new();
    let object = std::fs::read(compiled(&dir, "sort", KINDS, &[])).unwrap();
    // A port that needs no privilege, for attachments.
    common::capture(&dir.path("in.pcap"), &common::mixture());
    let text = format!("[[port]]\nname = \"pcap:{}\"\n", dir.arg("in.pcap"));
    let file = dir.file("port.toml", &text);
    let kinds = ["pin", "unpin", "load", "program", "apply", "attach"];
    for (round, kind) in kinds.iter().cycle().take(12).enumerate() {
        let config = (*kind == "attach").then_some(file.as_str());
        let mut up = Up::new(&dir, config, None);
        let hammer = std::thread::spawn(hammer(kind, &up, &object));
        std::thread::sleep(Duration::from_millis(40 + 7 * round as u64));
        up.kill();
        hammer.join().unwrap();
        drop(up);
        // It starts without a complaint, everything that it names is there, and it takes new requests.
        let up = Up::new(&dir, config, None);
        let state: Value = serde_json::from_slice(&std::fs::read(dir.path("state/state.json")).unwrap()).unwrap();
        let mut service = up.connect();
        let attached = service.attachments(None).unwrap();
        assert_eq!(attached.len(), state["attachments"].as_array().unwrap().len(), "{kind}: {state}");
        for a in attached {
            service.detach(&a.port, Some(a.program.id)).unwrap();
        }
        for pin in state["pins"].as_array().unwrap() {
            let path = Path::new(pin["path"].as_str().unwrap());
            let found = service.pinned(path).unwrap_or_else(|e| panic!("{kind}: {e}"));
            match found {
                ObjectId::Map(id) => drop(service.map_info(id).unwrap()),
                ObjectId::Program(id) => drop(service.program_info(id).unwrap()),
            }
            service.unpin(path).unwrap_or_else(|e| panic!("{kind}: {e}"));
            service.release(found).unwrap();
        }
        let now = if config.is_some() { text.as_str() } else { "" };
        assert_eq!(service.apply(now, true).unwrap(), [""; 0], "{kind}");
        drop(service);
        // Objects that nobody names any more have gone.
        let left = std::fs::read_dir(dir.path("state/objects")).unwrap().count();
        assert_eq!(left, 0, "{kind}: object files");
    }
}

#[test]
fn ports_are_steered_by_ethtools_words() {
    let dir = Dir::new();
    let capture = dir.arg("in.pcap");
    // A header and no packet: the port is there, and its input is over.
    let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1];
    std::fs::write(&capture, header.map(u32::to_le_bytes).concat()).unwrap();
    let (up, port) = (Up::new(&dir, None, None), format!("pcap:{capture}"));
    up.connect().open_port(&port).unwrap();
    let steer = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        xway(&[&["steer", "--socket", &up.socket, &port][..], &words].concat())
    };
    assert!(steer("").exits(0).out.contains("packets stay on the queue that they come in on"));
    let rule = "flow-type udp4 src-ip 192.0.2.0 m 0.0.0.255 dst-port 53 action -1 loc 7";
    assert_eq!(steer(rule).exits(0).out, format!("{port}: {rule}\n"));
    assert!(steer("equal 1 hkey symmetric").exits(0).out.contains("hash over 128 entries, of queue 0: 128"));
    let doc: Value = serde_json::from_str(&xway(&["-j", "steer", "--socket", &up.socket, &port]).exits(0).out).unwrap();
    assert_eq!((doc["rules"][0].as_str(), doc["indirection"].as_array().map(Vec::len)), (Some(rule), Some(128)));
    assert!(doc["key"].as_str().is_some_and(|key| key.starts_with("6d:5a:6d:5a:")), "{doc}");
    // What it is now is what was asked for last, and a refusal changes nothing.
    steer("flow-type udp4 action 3").exits(1).says("queue 3: the port has 1, numbered from 0");
    steer("sideways").exits(1).says("a change begins with flow-type");
    steer("delete 7").exits(0);
    steer("off").exits(0);
    assert!(steer("").exits(0).out.contains("packets stay"));
    xway(&["steer", "--socket", &up.socket, "eth0"]).exits(2).says("ethtool -N");
}

#[test]
fn sockets_are_served_and_shown() {
    let dir = Dir::new();
    // The name of a port in a bind has 16 bytes at most, as that of an interface.
    let capture = format!("/tmp/xs{}", std::process::id());
    let header = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1];
    std::fs::write(&capture, header.map(u32::to_le_bytes).concat()).unwrap();
    let (up, path) = (Up::new(&dir, None, None), dir.arg("xsk.sock"));
    let sock = |words: &[&str]| xway(&[&["sock", words[0], "--socket", &up.socket][..], &words[1..]].concat());
    sock(&["serve", &path]).exits(1).says("no port is open");
    up.connect().open_port(&format!("pcap:{capture}")).unwrap();
    std::fs::remove_file(&capture).unwrap();
    assert!(sock(&["show"]).exits(0).out.contains("no sockets are served"));
    sock(&["serve", &path, "--own-queue"]).exits(0);
    sock(&["serve", &path]).exits(1).says("EEXIST");
    let mut connection = xway_xsk_client::Connection::open(Path::new(&path)).unwrap();
    let umem = connection.umem(16, 2048, 0).unwrap();
    let socket = connection.bind(&umem, &xway_xsk_client::Bind::new(capture, 0)).unwrap();
    assert!(!socket.zero_copy());
    let doc: Value = serde_json::from_str(&sock(&["show", "-j"]).exits(0).out).unwrap();
    let shown = &doc["served"][0]["sockets"][0];
    let words = (shown["pid"].as_u64(), shown["queue"].as_u64(), shown["mode"].as_str());
    assert_eq!(words, (Some(std::process::id().into()), Some(0), Some("copy")), "{doc}");
    assert!(shown["counters"]["rx_dropped"].is_u64(), "{doc}");
    sock(&["end", &path]).exits(0);
    sock(&["end", &path]).exits(1).says("sockets served at");
    assert!(connection.statistics(&socket).is_err(), "the server has gone");
    assert!(sock(&["show"]).exits(0).out.contains("no sockets are served"));
}

#[test]
fn a_service_that_is_not_there_is_told() {
    let dir = Dir::new();
    let socket = dir.arg("nobody.sock");
    for words in [&["down"][..], &["status", "--hook", "user"], &["unload", "p", "-a", "--hook", "user"]] {
        xway(&[words, &["--socket", &socket]].concat()).exits(4).says("no service answers");
    }
    let wrong = dir.file("wrong.toml", "[service]\nworkers = 0\n");
    xway(&["up", "-c", &wrong, "--socket", &socket]).exits(3).says("service.workers");
    let elsewhere = dir.file("group.toml", "[service]\ngroup = \"no-such-group-here\"\n");
    xway(&["up", "-c", &elsewhere, "--socket", &socket]).exits(3).says("no-such-group-here");
}

#[test]
fn the_unit_of_systemd_starts_what_there_is() {
    let path = xway_testkit::clang::repository().join("packaging/systemd/xway.service");
    let unit = std::fs::read_to_string(path).unwrap();
    let line = unit.lines().find_map(|l| l.strip_prefix("ExecStart=/usr/bin/xway ")).expect("what is started");
    let help = xway(&["up", "--help"]).exits(0).out;
    assert!(line.starts_with("up "), "{line}");
    for flag in line.split_whitespace().filter(|w| w.starts_with('-')) {
        assert!(help.contains(flag), "{flag} is no option of xway up");
    }
    assert!(unit.contains("Type=notify"));
}
