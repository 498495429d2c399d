//! Another executable takes over while packets come: what goes on loses none of them, what cannot go on says what is lost.

mod common;

use std::fs::File;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::service::{KINDS, Up};
use common::{Dir, compiled, xway};
use serde_json::{Value, json};
use xway_control::Service;
use xway_hook::{Hook, ObjectId};
use xway_testkit::{Lab, Namespace, Needs};

/// Most datagrams of one test: fewer than the queues and rings here have room for, so that none is lost for want of it.
const SENT_MAX: u64 = 15_000;
/// Executables that follow the first one.
const ROUNDS: usize = 5;
/// Sockets that send in turn, so that every queue has some.
const FLOWS: usize = 8;

/// Sends datagrams to port 9 until it is dropped.
struct Sender {
    done: AtomicBool,
    sent: AtomicU64,
}

impl Sender {
    const fn new() -> Sender {
        Sender { done: AtomicBool::new(false), sent: AtomicU64::new(0) }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    fn run(&self, from: &Namespace, to: &str) {
        let sockets: Vec<UdpSocket> =
            from.enter(|| (0..FLOWS).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect()).unwrap();
        while !self.done.load(Ordering::SeqCst) && self.sent() < SENT_MAX {
            sockets[self.sent() as usize % FLOWS].send_to(&[9; 20], (to, 9)).unwrap();
            self.sent.fetch_add(1, Ordering::SeqCst);
            // A pace, so that an upgrade lies among them.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The sender ends with the test, however that ends.
struct Over<'a>(&'a Sender);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::SeqCst);
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A service in a namespace that writes down what it says.
fn start(dir: &Dir, space: &Namespace, port: &str) -> Up {
    let object = compiled(dir, "sort", KINDS, &[]);
    let program = format!("[[program]]\nname = \"sort\"\nport = \"{port}\"\nobject = \"{object}\"\n");
    let text = format!("[service]\nmetrics = \"127.0.0.1:9464\"\n[[port]]\nname = \"{port}\"\n{program}");
    let (config, socket) = (dir.file("xway.toml", text), dir.arg("control.sock"));
    let child = space
        .command(env!("CARGO_BIN_EXE_xway"))
        .args(["up", "-c", &config, "--socket", &socket, "--state", &dir.arg("state"), "--log", "json"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(File::create(dir.path("log")).unwrap())
        .spawn()
        .unwrap();
    let up = Up { child, socket };
    // It listens before its ports are open, and answers when they are.
    let answers = || Service::connect(std::path::Path::new(&up.socket)).and_then(|mut service| service.ports());
    until("it answers", || answers().is_ok_and(|ports| ports.len() == 1));
    up
}

/// Datagrams that the program has counted, over all executables.
fn counted(up: &Up) -> u64 {
    let mut service = up.connect();
    let Ok(ObjectId::Map(map)) = service.pinned(std::path::Path::new("/config/sort/kinds")) else { return 0 };
    u64::from_ne_bytes(service.map_lookup(map, &1u32.to_ne_bytes(), 0).unwrap().try_into().unwrap())
}

fn upgrade(up: &Up, more: &[&str]) -> Value {
    let words = ["upgrade", env!("CARGO_BIN_EXE_xway"), "--socket", &up.socket, "-j"];
    xway(&[&words[..], more].concat()).exits(0).json()
}

/// What the log says of a port's handover, executable by executable.
fn told(dir: &Dir, port: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(dir.path("log")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ours = lines.filter(|line| line["what"] == "handover" && line["port"] == port);
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    ours.map(|line| {
        assert_eq!(line["requested"], "handed over");
        assert!(!word(&line["reason"]).is_empty(), "{line}");
        (word(&line["event"]), word(&line["effective"]))
    })
    .collect()
}

/// Several executables follow each other while datagrams are sent to `to`: every one of them is counted, once.
fn goes_on(dir: &Dir, up: &Up, (from, to): (&Namespace, &str), port: &str, queues: &str) {
    let open = || std::fs::read_dir(format!("/proc/{}/fd", up.child.id())).unwrap().count();
    let sender = Sender::new();
    let mut descriptors = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.run(from, to));
        let _over = Over(&sender);
        for _ in 0..ROUNDS {
            let before = sender.sent();
            until("packets are counted", || counted(up) > before);
            let doc = upgrade(up, &[]);
            let told = &doc["ports"][0];
            // What was expected, and what came of it, which the new executable says.
            let words = ["port", "expected", "effective"].map(|member| &told[member]);
            assert_eq!(words, [&json!(port), &json!("handed over"), &json!("handed over")], "{doc}");
            assert!(told["reason"].as_str().unwrap().starts_with(queues), "{doc}");
            assert!(doc["expected"]["kept"].to_string().contains(&format!("port {port}")), "{doc}");
            descriptors.push(open());
        }
        let before = sender.sent();
        until("packets are counted by the last one", || counted(up) > before || sender.sent() == SENT_MAX);
    });
    assert!(sender.sent() < SENT_MAX, "the machine is too slow for this test: {} packets", sender.sent());
    until("every packet is counted", || counted(up) >= sender.sent());
    assert_eq!(counted(up), sender.sent(), "packets over all executables");
    // (One more may be a connection that is still being closed.)
    until("descriptors do not pile up", || open() <= descriptors[0] + 1);
    assert_eq!(told(dir, port), vec![("as asked".to_owned(), "handed over".to_owned()); ROUNDS]);
}

#[test]
fn a_tap_goes_on_and_no_packet_is_lost() {
    let needs = Needs::of("xway::handover::a_tap_goes_on_and_no_packet_is_lost").root().command("ip").clang();
    if !needs.met() {
        return;
    }
    let lab = Lab::new("handtap").unwrap();
    let near = lab.namespace("near").unwrap();
    near.ip(&["link", "set", "lo", "up"]).unwrap();
    let dir = Dir::new();
    let up = start(&dir, &near, "tap:xwgo?queues=2");
    // Room for everything that is sent while nobody reads.
    near.ip(&["link", "set", "xwgo", "txqueuelen", "20000"]).unwrap();
    near.address("xwgo", "10.9.8.1/24").unwrap();
    near.ip(&["neigh", "replace", "10.9.8.2", "lladdr", "02:00:00:00:00:02", "dev", "xwgo"]).unwrap();
    let ifindex = near.ifindex("xwgo").unwrap();
    goes_on(&dir, &up, (&near, "10.9.8.2"), "tap:xwgo", "its 2 queues ");
    // The interface never went, nor what somebody has set on it.
    assert_eq!(near.ifindex("xwgo").unwrap(), ifindex);
    assert!(near.ip(&["link", "show", "xwgo"]).unwrap().contains("qlen 20000"));
    // It goes with its port, whoever held it meanwhile.
    up.connect().close_port("tap:xwgo").unwrap();
    assert!(near.ifindex("xwgo").is_err(), "the interface goes with its port");
}

/// Two hosts on a wire; the right one knows the left one, which sends without asking.
fn wire(lab: &Lab) -> (Namespace, Namespace) {
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", "10.9.8.1/24").unwrap();
    right.address("r0", "10.9.8.2/24").unwrap();
    right.ip(&["link", "set", "lo", "up"]).unwrap();
    let mac = right.ip(&["-br", "link", "show", "dev", "r0"]).unwrap();
    let mac = mac.split_whitespace().nth(2).unwrap();
    left.ip(&["neigh", "replace", "10.9.8.2", "lladdr", mac, "dev", "l0"]).unwrap();
    (left, right)
}

#[test]
fn a_packet_port_goes_on_and_no_packet_is_lost() {
    let needs = Needs::of("xway::handover::a_packet_port_goes_on_and_no_packet_is_lost").root().command("ip").clang();
    if !needs.met() {
        return;
    }
    for (port, queues) in [("packet:r0", "its queue "), ("packet:r0?queues=2&ring=blocks", "its 2 queues ")] {
        let lab = Lab::new("handpack").unwrap();
        let (left, right) = wire(&lab);
        let dir = Dir::new();
        let up = start(&dir, &right, port);
        goes_on(&dir, &up, (&left, "10.9.8.2"), "packet:r0", queues);
    }
}

/// An AF_XDP port in an upgrade to an executable, under datagrams that its program drops: what was expected of it, what came, and how
/// many were sent, counted by the program, and for the host.
struct Afxdp {
    expected: String,
    effective: String,
    reason: String,
    sent: u64,
    counted: u64,
    host: u64,
    /// Dropped while nobody received, and left in rings.
    gap: u64,
    rings: u64,
    /// What the upgrades told of rings that were closed.
    unread: u64,
}

fn afxdp(name: &str, executable: impl Fn(&Dir) -> String) -> Afxdp {
    let port = "afxdp:r0";
    let lab = Lab::new(name).unwrap();
    let (left, right) = wire(&lab);
    // What goes past the programs comes here.
    let host = right.enter(|| UdpSocket::bind("10.9.8.2:9").unwrap()).unwrap();
    host.set_nonblocking(true).unwrap();
    let dir = Dir::new();
    let up = start(&dir, &right, port);
    let executable = executable(&dir);
    let ask = |more: &[&str]| {
        let words = ["upgrade", &executable, "--socket", &up.socket, "-j"];
        xway(&[&words[..], more].concat()).exits(0).json()
    };
    let dry = ask(&["--dry-run"]);
    let sender = Sender::new();
    // Dropped while nobody received, and left in rings, behind the last upgrade: each counts for itself.
    let lost = || {
        let statistics = up.connect().statistics(port).unwrap();
        ["gap", "rings"].map(|what| statistics.get(&format!("port.other.upgrade-{what}")))
    };
    // Read while they come: a socket holds a few hundred, which is less than comes between two processes on a busy machine.
    let host_has = AtomicU64::new(0);
    let arrived = || {
        while host.recv(&mut [0; 64]).is_ok() {
            host_has.fetch_add(1, Ordering::SeqCst);
        }
    };
    // What an upgrade told that it lost.
    let told_of = |doc: &Value, counter: &str| {
        let of = |loss: &&Value| (loss["port"].as_str(), loss["counter"].as_str()) == (Some(port), Some(counter));
        doc["packets_lost"].as_array().unwrap().iter().find(of).map_or(0, |loss| loss["packets"].as_u64().unwrap())
    };
    let (mut doc, mut earlier, mut unread) = (Value::Null, [0; 2], 0);
    std::thread::scope(|scope| {
        scope.spawn(|| sender.run(&left, "10.9.8.2"));
        scope.spawn(|| {
            while !sender.done.load(Ordering::SeqCst) && sender.sent() < SENT_MAX {
                arrived();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let _over = Over(&sender);
        until("packets are counted", || counted(&up) > 0);
        for _ in 0..2 {
            earlier = [earlier[0] + lost()[0], earlier[1] + lost()[1]];
            doc = ask(&[]);
            unread += told_of(&doc, "port.other.unread");
            let before = counted(&up);
            until("packets are counted again", || counted(&up) > before + 10 || sender.sent() == SENT_MAX);
        }
    });
    assert!(sender.sent() < SENT_MAX, "packets find their program again");
    let sent = sender.sent();
    let all = || {
        arrived();
        let [gap, rings] = lost();
        (counted(&up), host_has.load(Ordering::SeqCst), earlier[0] + gap, earlier[1] + rings)
    };
    // What is on its way gets there; what is missing then stays missing.
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline && all().0 + all().1 + all().2 + all().3 != sent {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (counted, host, gap, rings) = all();
    if counted + host + gap + rings != sent {
        // Whoever else may have lost it.
        let all = up.connect().statistics(port).unwrap();
        println!("losses: {:?}", all.losses().filter(|(_, packets)| *packets > 0).collect::<Vec<_>>());
        for (space, wire) in [(&left, "l0"), (&right, "r0")] {
            println!("{}", space.ip(&["-s", "-s", "link", "show", "dev", wire]).unwrap());
        }
    }
    let word = |doc: &Value, member: &str| doc["ports"][0][member].as_str().unwrap().to_owned();
    assert_eq!((word(&dry, "port"), word(&dry, "requested")), (port.into(), "handed over".into()), "{dry}");
    assert_eq!((word(&dry, "expected"), word(&dry, "reason")), (word(&doc, "expected"), word(&doc, "reason")));
    // Nothing has come before it is there.
    assert_eq!(dry["ports"][0]["effective"], Value::Null);
    assert!(doc["expected"]["made_again"].to_string().contains(port), "{doc}");
    let [expected, effective, reason] = ["expected", "effective", "reason"].map(|member| word(&doc, member));
    assert_eq!(told(&dir, port), vec![("not as asked".to_owned(), expected.clone()); 2]);
    // The last upgrade has told what it lost, by the counters that have it: of the process before, and of the one that goes on.
    let [in_the_gap, in_rings] = lost();
    assert_eq!(told_of(&doc, "port.other.upgrade-gap"), in_the_gap, "{doc}");
    if in_rings > 0 {
        assert_eq!(told_of(&doc, "port.other.unread"), in_rings, "{doc}");
    }
    println!(
        "{port}: {sent} sent, {counted} counted, {host} for the host, {gap} in the gap, {rings} left in rings, {unread} unread"
    );
    Afxdp { expected, effective, reason, sent, counted, host, gap, rings, unread }
}

#[test]
fn an_afxdp_port_lets_nothing_past_its_programs_meanwhile_and_counts_what_it_drops() {
    const NAME: &str =
        "xway::handover::an_afxdp_port_lets_nothing_past_its_programs_meanwhile_and_counts_what_it_drops";
    if !Needs::of(NAME).root().command("ip").clang().kernel(6, 6).met() {
        return;
    }
    let it = afxdp("handheld", |_| env!("CARGO_BIN_EXE_xway").to_owned());
    assert_eq!((it.expected.as_str(), it.effective.as_str()), ("held", "held"));
    assert!(it.reason.contains("port.other.upgrade-gap"), "{}", it.reason);
    assert_eq!(it.host, 0, "the program drops them all");
    assert!(it.gap > 0, "the upgrade lies among them");
    assert_eq!(it.counted + it.gap + it.rings, it.sent, "{} counted, {} and {} lost", it.counted, it.gap, it.rings);
}

/// The same with an executable that does not know how.
#[test]
fn what_cannot_go_on_says_what_is_lost() {
    const NAME: &str = "xway::handover::what_cannot_go_on_says_what_is_lost";
    if !Needs::of(NAME).root().command("ip").clang().kernel(6, 6).met() {
        return;
    }
    let ours = env!("CARGO_BIN_EXE_xway");
    let older =
        |dir: &Dir| script(dir, "older", &format!("'up --takes') echo tap packet metrics;;\n*) exec {ours} \"$@\";;"));
    let it = afxdp("handloss", older);
    assert_eq!((it.expected.as_str(), it.effective.as_str()), ("opened again", "opened again"));
    assert!(it.reason.contains("the host's stack gets them"), "{}", it.reason);
    assert!(it.host > 0, "what comes between the two goes to the host");
    // Each packet at most once; lost is what lay in the rings that closed, which is told, but for what the kernel had in hand then.
    let here = it.counted + it.host + it.unread;
    let Afxdp { sent, counted, host, unread, .. } = it;
    assert!(here <= sent && sent - here <= 5, "{counted} counted, {host} for the host and {unread} unread, of {sent}");
    assert_eq!((it.gap, it.rings), (0, 0));
}

/// An executable that is a script. (Another process writes it: a child that this one makes meanwhile would hold it open for writing,
/// and so it could not be run.)
fn script(dir: &Dir, name: &str, cases: &str) -> String {
    let text = format!("#!/bin/sh\ncase \"$*\" in\n--version) echo xway 9.9.9;;\n{cases}\n*) exit 7;;\nesac\n");
    let (from, to) = (dir.file(&format!("{name}.txt"), text), dir.arg(name));
    let made = Command::new("sh").args(["-c", "cat \"$0\" >\"$1\" && chmod +x \"$1\"", &from, &to]).status().unwrap();
    assert!(made.success());
    to
}

/// Sockets and TAP devices among the descriptors of a process.
fn descriptors(process: &str) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    // (One may be closed meanwhile.)
    let links = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let names = links.map(|link| link.display().to_string());
    names.filter(|name| name.starts_with("socket:") || name.contains("/net/tun")).collect()
}

#[test]
fn an_executable_that_would_not_start_is_refused_and_the_service_goes_on() {
    const NAME: &str = "xway::handover::an_executable_that_would_not_start_is_refused_and_the_service_goes_on";
    if !Needs::of(NAME).root().command("ip").clang().met() {
        return;
    }
    let lab = Lab::new("handno").unwrap();
    let near = lab.namespace("near").unwrap();
    near.ip(&["link", "set", "lo", "up"]).unwrap();
    let dir = Dir::new();
    let mut up = start(&dir, &near, "tap:xwno");
    near.address("xwno", "10.9.8.1/24").unwrap();
    near.ip(&["neigh", "replace", "10.9.8.2", "lladdr", "02:00:00:00:00:02", "dev", "xwno"]).unwrap();
    let ifindex = near.ifindex("xwno").unwrap();
    let socket = near.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let mut sent = 0;
    let mut goes_on = |up: &mut Up, when: &str| {
        assert!(up.child.try_wait().unwrap().is_none(), "{when}: the process is there");
        assert_eq!(near.ifindex("xwno").unwrap(), ifindex, "{when}: the interface stays");
        socket.send_to(&[9; 20], ("10.9.8.2", 9)).unwrap();
        sent += 1;
        until(when, || counted(up) == sent);
    };
    let socket_path = up.socket.clone();
    let refused = |executable: &str, words: &str| {
        for more in [&["--dry-run"][..], &[]] {
            let said = xway(&[&["upgrade", executable, "--socket", &socket_path], more].concat()).exits(1).err;
            assert!(said.contains("would not start") && said.contains(words), "{words}: {said}");
        }
    };
    goes_on(&mut up, "at the beginning");

    // What the other executable itself says.
    let takes = "'up --takes') echo tap packet metrics;;";
    refused(&script(&dir, "refuses", takes), "exit status: 7");
    goes_on(&mut up, "behind one that refuses");
    let explains = script(&dir, "explains", "*--check) echo error: not today >&2; exit 2;;");
    refused(&explains, "error: not today (exit status: 2)");

    // The file has been damaged since, or what it names has gone.
    let ours = env!("CARGO_BIN_EXE_xway");
    let text = std::fs::read_to_string(dir.path("xway.toml")).unwrap();
    std::fs::write(dir.path("xway.toml"), format!("{text}[[port\n")).unwrap();
    refused(ours, "xway.toml");
    std::fs::write(dir.path("xway.toml"), &text).unwrap();
    let object = text.lines().find_map(|line| line.strip_prefix("object = ")).unwrap().trim_matches('"').to_owned();
    let away = dir.path("away.o");
    std::fs::rename(&object, &away).unwrap();
    refused(ours, "program sort");
    std::fs::rename(&away, &object).unwrap();
    goes_on(&mut up, "behind a damaged file");

    // One that has gone between its answer and its turn: the old one goes on with what it had handed over, and the command says so.
    let goes = script(&dir, "goes", "*--check) ;;\n'up --takes') echo tap packet metrics; rm -- \"$0\";;");
    let said = xway(&["upgrade", &goes, "--socket", &up.socket]).exits(1).err;
    assert!(said.contains("goes: it could not be executed: ") && said.contains("the old executable goes on"), "{said}");
    assert!(!dir.path("goes").exists());
    goes_on(&mut up, "behind one that is gone");
    let said = std::fs::read_to_string(dir.path("log")).unwrap();
    let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told: Vec<Value> = lines.filter(|line| line["what"] == "upgrade").collect();
    assert_eq!((told.len(), &told[0]["event"]), (1, &json!("not as asked")), "{said}");
    assert_eq!(told[0]["requested"], json!(dir.path("goes")));
    upgrade(&up, &[]);
    goes_on(&mut up, "behind one that takes over");

    // Nothing of the service's is open in a child, also of an executable that was handed it all.
    let list = dir.arg("descriptors");
    refused(&script(&dir, "looks", &format!("*--check) ls -l /proc/self/fd >{list}; exit 7;;")), "exit status: 7");
    let (child, service) = (std::fs::read_to_string(list).unwrap(), descriptors(&up.child.id().to_string()));
    assert!(child.contains("/dev/null") && service.len() >= 3, "{child}{service:?}");
    // (What this test was started with has gone down to all of them.)
    let before = descriptors("self");
    let leaked: Vec<_> =
        service.iter().filter(|name| child.contains(name.as_str()) && !before.contains(name)).collect();
    assert!(leaked.is_empty(), "{leaked:?}\n{child}");
    goes_on(&mut up, "at the end");
}

/// An executable that says that it would start, and ends when it has taken over: nothing can bring the process back, so what must not be
/// lost lies in the state directory, and the command says what happened.
#[test]
fn an_executable_that_takes_over_and_ends_is_told_and_a_new_start_goes_on() {
    if !common::clang("xway::handover::an_executable_that_takes_over_and_ends_is_told_and_a_new_start_goes_on") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "sort", KINDS, &[]);
    let program = format!("[[program]]\nname = \"sort\"\nport = \"sim:h\"\nobject = \"{object}\"\n");
    let text = format!("[service]\nkeep_contents = true\n[[port]]\nname = \"sim:h?count=7\"\n{program}");
    let file = dir.file("port.toml", text);
    let packets = "*--check) ;;\n'up --takes') echo tap packet metrics;;";
    let mut sent = 0;
    for (name, lives) in [("at_once", "0"), ("soon", "0.4")] {
        let dies = script(&dir, name, &format!("{packets}\nup*) sleep {lives}; echo it dies >&2; exit 9;;"));
        let mut up = Up::new(&dir, Some(&file), None);
        sent += 7;
        until("the packets of the first start are counted", || counted(&up) == sent);
        let said = xway(&["upgrade", &dies, "--socket", &up.socket]).exits(1).err;
        assert!(said.contains(&format!("{name}: it took over and ended: nobody listens at")), "{said}");
        assert!(said.contains("xway up goes on with it"), "{said}");
        assert_eq!(up.child.wait().unwrap().code(), Some(9), "{name}");
        drop(up);
        // Contents of pinned maps were written for the one that did not read them.
        let up = Up::new(&dir, Some(&file), None);
        sent += 7;
        until("the packets of this start are counted, too", || counted(&up) == sent);
        assert_eq!(up.connect().attachments(None).unwrap().len(), 1);
        xway(&["down", "--socket", &up.socket]).exits(0);
    }
}
