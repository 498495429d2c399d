//! Ports that somebody took something away from while they were open: what is said of them, where, and what opens them again.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::service::{KINDS, Up};
use common::{Dir, Ran, compiled};
use serde_json::{Value, json};
use xway_hook::{AttachRequest, Hook, Image, LoadRequest, ObjectId};
use xway_testkit::{Lab, Namespace, Needs};

const AFXDP: &str = "afxdp:r0";
const PACKET: &str = "packet:s0";

struct Service<'a> {
    space: &'a Namespace,
    dir: &'a Dir,
    up: Up,
    file: String,
}

impl<'a> Service<'a> {
    fn start(space: &'a Namespace, dir: &'a Dir) -> Service<'a> {
        let object = compiled(dir, "sort", KINDS, &[]);
        let text = format!(
            "[service]\nmetrics = \"127.0.0.1:9464\"\n[[port]]\nname = \"{AFXDP}\"\n[[port]]\nname = \"{PACKET}\"\n[[program]]\nname = \
             \"sort\"\nport = \"{AFXDP}\"\nobject = \"{object}\"\n"
        );
        let (file, socket) = (dir.file("xway.toml", text), dir.arg("control.sock"));
        let child = space
            .command(env!("CARGO_BIN_EXE_xway"))
            .args(["up", "-c", &file, "--socket", &socket, "--state", &dir.arg("state"), "--log", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.path("log")).unwrap())
            .spawn()
            .unwrap();
        let up = Up { child, socket };
        let answers = || xway_control::Service::connect(std::path::Path::new(&up.socket)).and_then(|mut s| s.ports());
        until("it answers", || answers().is_ok_and(|ports| ports.len() == 2));
        Service { space, dir, up, file }
    }

    /// The command in the service's namespace.
    fn xway(&self, args: &[&str]) -> Ran {
        let mut command = self.space.command(env!("CARGO_BIN_EXE_xway"));
        let output = command.args(args).args(["--socket", &self.up.socket]).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Ports that are said to be lost, and how.
    fn lost(&self) -> Vec<(String, String)> {
        let doc = self.xway(&["status", "-j"]).exits(0).json();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        doc["lost"].as_array().unwrap().iter().map(|one| (word(&one["port"]), word(&one["state"]))).collect()
    }

    fn metric(&self, series: &str) -> Option<u64> {
        let mut socket = self.space.enter(|| TcpStream::connect("127.0.0.1:9464").unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    fn receives(&self, port: &str) -> Option<u64> {
        self.metric(&format!("xway_port_up{{port=\"{port}\"}}"))
    }

    /// What the log says of ports that were lost, in order.
    fn told(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(self.dir.path("log")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let ports = lines.filter(|line| line["event"] == "not as asked" && line["what"] == "port");
        ports.map(|line| (word(&line["port"]), word(&line["effective"]))).collect()
    }

    /// Datagrams that the program has counted.
    fn counted(&self) -> u64 {
        let mut service = self.up.connect();
        let Ok(ObjectId::Map(map)) = service.pinned(std::path::Path::new("/config/sort/kinds")) else { return 0 };
        u64::from_ne_bytes(service.map_lookup(map, &1u32.to_ne_bytes(), 0).unwrap().try_into().unwrap())
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A wire between two namespaces, whose left end knows the right one.
fn wire(lab: &Lab, left: &Namespace, right: &Namespace) {
    lab.veth(left, "l0", right, "r0").unwrap();
    left.address("l0", "10.9.8.1/24").unwrap();
    right.address("r0", "10.9.8.2/24").unwrap();
    let mac = right.ip(&["-br", "link", "show", "dev", "r0"]).unwrap();
    let mac = mac.split_whitespace().nth(2).unwrap();
    left.ip(&["neigh", "replace", "10.9.8.2", "lladdr", mac, "dev", "l0"]).unwrap();
}

fn pair(port: &str, state: &str) -> (String, String) {
    (port.to_owned(), state.to_owned())
}

#[test]
fn a_port_that_is_lost_is_told_everywhere_and_opened_again() {
    const NAME: &str = "xway::lost::a_port_that_is_lost_is_told_everywhere_and_opened_again";
    if !Needs::of(NAME).root().command("ip").clang().kernel(6, 6).met() {
        return;
    }
    let lab = Lab::new("lost").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    right.ip(&["link", "set", "lo", "up"]).unwrap();
    wire(&lab, &left, &right);
    lab.veth(&left, "m0", &right, "s0").unwrap();
    let dir = Dir::new();
    let service = Service::start(&right, &dir);
    let sender = left.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    // Each time another packet is counted that is sent now, and none that was counted before is forgotten.
    let counts = |when: &str| {
        let before = service.counted();
        until(when, || {
            sender.send_to(&[9; 20], ("10.9.8.2", 9)).unwrap();
            service.counted() > before
        });
    };
    counts("a packet is counted");
    // A second program beside the file's.
    let image = Image::parse(&std::fs::read(dir.path("sort.o")).unwrap(), &Default::default()).unwrap();
    let mut by_hand = service.up.connect();
    let program = by_hand.load(&image, &LoadRequest::default()).unwrap().programs[0].1;
    by_hand.attach(&AttachRequest { chain: true, priority: 90, ..AttachRequest::new(AFXDP, program) }).unwrap();
    drop(by_hand);
    let attached = || service.up.connect().attachments(Some(AFXDP)).unwrap().len();
    assert_eq!((service.lost(), attached()), (Vec::new(), 2));
    assert_eq!((service.receives(AFXDP), service.receives(PACKET)), (Some(1), Some(1)));
    // Nothing waits to be sent, which is a number too.
    for metric in ["xway_tx_queue_packets", "xway_tx_queue_bytes"] {
        assert_eq!(service.metric(&format!("{metric}{{port=\"{AFXDP}\"}}")), Some(0), "{metric}");
        assert_eq!(service.metric(&format!("{metric}{{port=\"{PACKET}\"}}")), None, "{metric}");
    }
    let mut watching = service.up.connect();
    let _ = watching.events(Duration::ZERO).unwrap();

    // Somebody takes the program away, as one does with any other program.
    service.xway(&["unload", "r0", "-a"]).exits(0);
    until("it is told", || !service.told().is_empty());
    assert_eq!(service.lost(), [pair(AFXDP, "detached")]);
    assert_eq!((service.receives(AFXDP), service.receives(PACKET)), (Some(0), Some(1)));
    let text = service.xway(&["status"]).exits(0).err;
    assert!(
        text.contains("afxdp:r0 is detached: somebody took the program") && text.contains("xway apply FILE"),
        "{text}"
    );
    let features = service.xway(&["features", AFXDP, "--hook", "user", "-j"]).exits(0).json();
    assert!(features["outcomes"].as_array().unwrap().iter().any(|o| o["effective"] == "detached"), "{features}");
    let heard = watching.events(Duration::from_secs(20)).unwrap();
    assert!(heard.iter().any(|e| e.kind == "port" && e.text.starts_with("detached: ")), "{heard:?}");
    // The file says what it said, and still something is to be done.
    let diff = service.xway(&["diff", &service.file]).exits(1).out;
    assert!(diff.contains("would close port afxdp:r0") && diff.contains("would open port afxdp:r0"), "{diff}");
    service.xway(&["apply", &service.file]).exits(0);
    assert_eq!((service.lost(), service.receives(AFXDP), attached()), (Vec::new(), Some(1), 2));
    counts("a packet is counted behind the program's return");
    assert_eq!(service.xway(&["apply", &service.file, "--dry-run", "-j"]).exits(0).json()["steps"], json!([]));

    // An interface that is down.
    right.ip(&["link", "set", "s0", "down"]).unwrap();
    until("it is told", || service.told().len() == 2);
    assert_eq!((service.lost(), service.receives(PACKET)), (vec![pair(PACKET, "dead")], Some(0)));
    let refused = service.xway(&["apply", &service.file]);
    assert!(refused.code != 0 && refused.err.contains("ip link set s0 up"), "{}", refused.err);
    right.ip(&["link", "set", "s0", "up"]).unwrap();
    service.xway(&["apply", &service.file]).exits(0);
    assert_eq!((service.lost(), service.receives(PACKET)), (Vec::new(), Some(1)));

    // An interface that is gone, and one with its name afterwards: loading a program opens the port again.
    left.ip(&["link", "del", "l0"]).unwrap();
    until("it is told", || service.told().len() >= 3);
    assert_eq!(service.lost().iter().map(|(port, _)| port.as_str()).collect::<Vec<_>>(), [AFXDP]);
    assert!(service.xway(&["apply", &service.file]).err.contains("interface r0"));
    wire(&lab, &left, &right);
    let loaded = service.xway(&["load", AFXDP, &dir.arg("sort.o"), "--hook", "user", "-P", "95"]).exits(0).out;
    assert!(loaded.contains("and is opened again"), "{loaded}");
    assert_eq!((service.lost(), service.receives(AFXDP), attached()), (Vec::new(), Some(1), 3));
    counts("a packet is counted on the new interface");
    let told = service.told();
    assert_eq!(told[..2], [pair(AFXDP, "detached"), pair(PACKET, "dead")]);
    assert!(told[2..].iter().all(|(port, _)| port == AFXDP), "{told:?}");
}
