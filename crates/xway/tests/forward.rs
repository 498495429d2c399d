//! Forwarding by the host's routes, with real packets between two hosts behind a router: every mode, what is left
//! to the host's stack, the tool's other name.

mod common;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, Ran, compiled};
use serde_json::Value;
use xway_testkit::{Lab, Namespace, Needs, traffic};

const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 2, 2);

fn ready(name: &str) -> bool {
    Needs::of(&format!("xway::forward::{name}")).root().command("ip").clang().met()
}

/// left (l0) — (r0) router (r1) — (f0) far.
struct Net {
    _lab: Lab,
    left: Namespace,
    router: Namespace,
    far: Namespace,
}

impl Net {
    /// The hosts' ends have a native program that passes everything, without which a veth takes no redirected frames.
    fn new(label: &str, dir: &Dir) -> Net {
        let lab = Lab::new(label).unwrap();
        let [left, router, far] = ["left", "router", "far"].map(|name| lab.namespace(name).unwrap());
        lab.veth(&left, "l0", &router, "r0").unwrap();
        lab.veth(&far, "f0", &router, "r1").unwrap();
        for (space, interface, address) in
            [(&left, "l0", "10.9.1.2/24"), (&router, "r0", "10.9.1.1/24"), (&router, "r1", "10.9.2.1/24")]
        {
            space.address(interface, address).unwrap();
        }
        far.address("f0", &format!("{FAR}/24")).unwrap();
        left.ip(&["route", "add", "default", "via", "10.9.1.1"]).unwrap();
        far.ip(&["route", "add", "default", "via", "10.9.2.1"]).unwrap();
        router.enter(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
        let net = Net { _lab: lab, left, router, far };
        let pass = compiled(dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
        net.at(&net.left, &["load", "l0", &pass, "-m", "native"]).exits(0);
        net.at(&net.far, &["load", "f0", &pass, "-m", "native"]).exits(0);
        net
    }

    fn at(&self, space: &Namespace, args: &[&str]) -> Ran {
        ran(space.command(env!("CARGO_BIN_EXE_xway")).args(args))
    }

    fn router(&self, args: &[&str]) -> Ran {
        self.at(&self.router, args)
    }

    fn pings(&self, count: u16) -> u16 {
        self.left.enter(|| traffic::ping(FAR, count)).unwrap().unwrap()
    }

    /// What became of packets on r0.
    fn packets(&self) -> Value {
        let doc = self.router(&["forward", "status", "r0", "-j"]).exits(0).json();
        doc["ports"][0]["packets"].clone()
    }
}

fn ran(command: &mut Command) -> Ran {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: out.status.code().unwrap(), out: text(out.stdout), err: text(out.stderr) }
}

#[test]
fn what_the_host_would_forward_leaves_in_the_hook() {
    if !ready("what_the_host_would_forward_leaves_in_the_hook") {
        return;
    }
    let dir = Dir::new();
    let net = Net::new("fwd", &dir);
    // The host itself, which learns who the neighbours are.
    assert_eq!(net.pings(1), 1);
    for (mode, fib) in [("native", "full"), ("native", "direct"), ("generic", "full")] {
        let done = net.router(&["forward", "load", "r0", "r1", "-m", mode, "-F", fib, "-j"]).exits(0).json();
        assert_eq!(done["program"], format!("forward_{fib}"), "{done}");
        assert_eq!(done["ports"][1]["mode"]["effective"], mode, "{done}");
        assert_eq!(net.pings(3), 3, "{mode} {fib}");
        let packets = net.packets();
        assert_eq!(packets["forwarded"], 6, "both ways: {packets}");
        net.router(&["forward", "load", "r0", "r1"]).exits(1).says("is attached");
        net.router(&["forward", "unload", "r0", "r1"]).exits(0);
        assert_eq!(net.pings(1), 1, "the host forwards again");
    }
    // Checksums that a sender leaves to the device are finished behind the driver only, where generic mode runs.
    net.router(&["forward", "load", "r0", "r1", "-m", "generic"]).exits(0);
    let to = SocketAddr::from((FAR, 7));
    let server = net.far.enter(|| traffic::tcp_echo_server(to, 1)).unwrap().unwrap();
    net.left.enter(|| traffic::tcp_echo_client(to, 100_000)).unwrap().unwrap();
    assert_eq!(server.join().unwrap().unwrap(), 1);
    assert!(net.packets()["forwarded"].as_u64().unwrap() > 100, "{}", net.packets());
    net.router(&["forward", "unload", "r0"]).exits(0);
    net.router(&["forward", "unload", "r0"]).exits(1).says("no forwarding program is attached");
}

#[test]
fn what_is_not_sure_is_left_to_the_host() {
    if !ready("what_is_not_sure_is_left_to_the_host") {
        return;
    }
    let dir = Dir::new();
    let net = Net::new("fwdrest", &dir);
    // The other interface is not in the set.
    net.router(&["forward", "load", "r0", "-m", "native"]).exits(0);
    assert_eq!(net.pings(2), 2);
    let packets = net.packets();
    assert!(packets["other_port"].as_u64().unwrap() >= 1 && packets["forwarded"] == 0, "{packets}");
    net.router(&["forward", "unload", "r0"]).exits(0);

    // A neighbour that is not known: the host asks for it, and forwards.
    net.router.ip(&["neigh", "flush", "all"]).unwrap();
    net.router(&["forward", "load", "r0", "r1", "-m", "native"]).exits(0);
    assert_eq!(net.pings(1), 1);
    let packets = net.packets();
    assert!(packets["no_neighbour"].as_u64().unwrap() >= 1, "{packets}");

    // Too long for the next link: the host says so, the sender fragments, and fragments are the host's too.
    net.router.ip(&["link", "set", "r1", "mtu", "600"]).unwrap();
    let at = SocketAddr::from((FAR, 9));
    let server = net.far.enter(|| UdpSocket::bind(at)).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let client = net.left.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let (deadline, mut buffer) = (Instant::now() + Duration::from_secs(30), [0; 2000]);
    let got = loop {
        // The message that it is too long comes back as an error of the socket.
        let _ = client.send_to(&[7; 1000], at);
        match server.recv(&mut buffer) {
            Ok(len) => break len,
            Err(_) => assert!(Instant::now() < deadline, "{}", net.packets()),
        }
    };
    assert_eq!(got, 1000);
    let packets = net.packets();
    for reason in ["too_long", "fragment"] {
        assert!(packets[reason].as_u64().unwrap() >= 1, "{reason}: {packets}");
    }
    // The last hop: the host must say that the packet's time is over.
    client.set_ttl(1).unwrap();
    client.send_to(&[7; 10], at).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while net.packets()["hop_limit"] == 0 {
        assert!(Instant::now() < deadline, "{}", net.packets());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn by_the_name_of_the_tool() {
    if !ready("by_the_name_of_the_tool") {
        return;
    }
    let dir = Dir::new();
    let net = Net::new("fwdname", &dir);
    let tool = dir.path("xdp-forward");
    symlink(env!("CARGO_BIN_EXE_xway"), &tool).unwrap();
    let run = |args: &[&str]| ran(net.router.command(&tool).args(args));
    assert_eq!(net.pings(1), 1);
    let loaded = run(&["load", "r0", "r1"]).exits(0);
    assert_eq!(loaded.out, "Loaded on interface r0\nLoaded on interface r1\n");
    assert_eq!(net.pings(2), 2);
    assert_eq!(net.packets()["forwarded"], 4);
    assert_eq!(run(&["load", "r0"]).exits(0).out, "Already attached to r0, not reattaching\n");
    assert_eq!(run(&["unload", "r0", "r1"]).exits(0).out, "Unloaded from interface r0\nUnloaded from interface r1\n");
    assert!(run(&["unload", "r0"]).exits(1).err.starts_with("Couldn't find program on interface r0\n"));
    assert_eq!(run(&["load", "-F", "direct", "-m", "skb", "r0", "r1"]).exits(0).out.lines().count(), 2);
    run(&["unload", "r0", "r1"]).exits(0);
    assert_eq!(run(&["load", "nosuch0"]).exits(1).err, "Couldn't find network interface 'nosuch0'.\n");
    let refused = run(&["load", "-f", "flowtable", "r0"]).exits(1).err;
    assert!(refused.contains("flowtable") && refused.contains("bpf_xdp_flow_lookup()"), "{refused}");
    assert!(run(&["jump"]).exits(1).err.contains("Command 'jump' is unknown, try 'xdp-forward help'."));
}

/// Hardware address of an interface.
fn mac(space: &Namespace, interface: &str) -> String {
    let text = space.ip(&["-o", "link", "show", "dev", interface]).unwrap();
    text.split_whitespace().skip_while(|w| *w != "link/ether").nth(1).unwrap().to_owned()
}

#[test]
fn the_engine_forwards_by_the_same_routes() {
    if !ready("the_engine_forwards_by_the_same_routes") {
        return;
    }
    let dir = Dir::new();
    let net = Net::new("fwdengine", &dir);
    // Everybody knows everybody: what the engine's ports take away from the host are also its neighbours' questions.
    for (space, interface, address, of, at) in [
        (&net.left, "l0", "10.9.1.1", &net.router, "r0"),
        (&net.router, "r0", "10.9.1.2", &net.left, "l0"),
        (&net.router, "r1", "10.9.2.2", &net.far, "f0"),
        (&net.far, "f0", "10.9.2.1", &net.router, "r1"),
    ] {
        let mac = mac(of, at);
        space.ip(&["neigh", "replace", address, "lladdr", &mac, "dev", interface, "nud", "permanent"]).unwrap();
    }
    let (socket, state) = (dir.arg("control.sock"), dir.arg("state"));
    let mut command = net.router.command(env!("CARGO_BIN_EXE_xway"));
    command.args(["up", "--socket", &socket, "--state", &state]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut up = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(up.stdout.take().unwrap()), &mut line).unwrap();
    let user = ["--hook", "user", "--socket", &socket];
    let run = |args: &[&str]| net.router(&[args, &user].concat());
    let loaded = run(&["forward", "load", "afxdp:r0", "afxdp:r1", "-j"]);
    let pings = net.pings(3);
    let status = run(&["forward", "status", "afxdp:r0", "-j"]);
    let gone = run(&["forward", "unload", "afxdp:r0", "afxdp:r1"]);
    let _ = up.kill();
    let _ = up.wait();
    let doc = loaded.exits(0).json();
    assert_eq!(doc["ports"][0]["held"]["effective"], "engine", "{doc}");
    assert_eq!(pings, 3);
    let doc = status.exits(0).json();
    assert_eq!(doc["ports"][0]["packets"]["forwarded"], 6, "both ways: {doc}");
    gone.exits(0);
}
