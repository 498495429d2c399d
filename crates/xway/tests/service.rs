//! The engine as a service, from the command line: up, apply, diff, down; what its ports and sockets say.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::service::{KINDS, Up};
use common::wire::{Bench, RIGHT, ready};
use common::{Dir, compiled, sample, xway};
use serde_json::{Value, json};
use xway_hook::{Hook, ObjectId};
use xway_testkit::{Needs, traffic};

#[test]
fn what_passes_on_an_afxdp_port_reaches_its_host() {
    const NAME: &str = "service::what_passes_on_an_afxdp_port_reaches_its_host";
    if !ready(NAME) || !Needs::of(&format!("xway::{NAME}")).kernel(6, 6).met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("srvback", false));
    let object = compiled(&dir, "sort", KINDS, &[]);
    let file = dir.file("xway.toml", "[[port]]\nname = \"afxdp:r0\"\n");
    let up = Up::new(&dir, Some(&file), Some(&bench.right));
    let to = ["--hook", "user", "--socket", &up.socket];
    let answered = || {
        let deadline = Instant::now() + Duration::from_secs(20);
        while bench.pings() == 0 {
            assert!(Instant::now() < deadline, "the host has not answered");
        }
    };
    // Without a program, and behind one: the host gets what passes, and its answers leave.
    answered();
    let done = bench.json(&[&["load", "afxdp:r0", &object], &to[..]].concat());
    assert!(!done["warnings"].to_string().contains("stack side"), "{done}");
    answered();
    let counted =
        bench.json(&[&["stats", "afxdp:r0", "--count", "1", "--interval", "0.05", "--all"], &to[..]].concat());
    let passed = &counted["samples"][0]["counters"]["passed"]["total"];
    assert!(passed.as_u64().is_some_and(|n| n >= 2), "{counted}");
}

/// One worker receives, another one does the work: what comes over is counted where it comes to.
#[test]
fn packets_go_to_another_worker_and_are_counted_there() {
    const NAME: &str = "service::packets_go_to_another_worker_and_are_counted_there";
    if !ready(NAME) || !Needs::of(&format!("xway::{NAME}")).kernel(6, 6).met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("spread", false));
    let object = sample(&dir, "spread");
    let file = dir.file("xway.toml", "[service]\nworkers = 2\n[[port]]\nname = \"afxdp:r0\"\nqueues = [[0, 1]]\n");
    let up = Up::new(&dir, Some(&file), Some(&bench.right));
    let to = ["--hook", "user", "--socket", &up.socket];
    let entry = ["map", "update", "name", "cpus", "key", "0", "value", "hex", "40", "0", "0", "0", "0", "0", "0", "0"];
    for (turn, program) in ["spread_fixed", "spread_touch", "spread_flow"].into_iter().enumerate() {
        bench.xway(&[&["load", "afxdp:r0", &object, "-n", program], &to[..]].concat()).exits(0);
        bench.xway(&[&entry[..], &to[..]].concat()).exits(0);
        let counted = |name: &str| {
            let words = ["stats", "afxdp:r0", "--count", "1", "--interval", "0.05", "--all"];
            let doc = bench.json(&[&words, &to[..]].concat());
            doc["samples"][0]["counters"][name]["total"].as_u64().unwrap_or(0)
        };
        let before = counted("cpumap.0");
        assert!(turn > 0 || before == 0);
        // The host behind the other worker answers.
        let deadline = Instant::now() + Duration::from_secs(30);
        while bench.pings() == 0 {
            assert!(Instant::now() < deadline, "{program}: the host has not answered");
        }
        assert!(counted("cpumap.0") > before, "{program}");
        assert!(counted("program.chosen.0.packets") > 0, "{program}");
        assert_eq!(counted("cpumap.1"), 0, "{program}");
        bench.xway(&[&["unload", "afxdp:r0", "-a"], &to[..]].concat()).exits(0);
    }
}

/// Programs count packets and bytes in one form, which is shown beside the port's counters on each hook.
/// More than may wait in a queue is dropped and counted, and `status` says so; what waits is a gauge beside the counters.
#[test]
fn a_queue_that_was_full_is_a_warning() {
    if !ready("service::a_queue_that_was_full_is_a_warning") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("fullqueue", false));
    let bounce = compiled(&dir, "bounce", "SEC(\"xdp\") int bounce(struct xdp_md *ctx) { return XDP_TX; }", &[]);
    let file = dir.file("xway.toml", "[[port]]\nname = \"afxdp:r0\"\ntx_limit = 1\n");
    let up = Up::new(&dir, Some(&file), Some(&bench.right));
    let to = ["--hook", "user", "--socket", &up.socket];
    bench.xway(&[&["load", "afxdp:r0", &bounce], &to[..]].concat()).exits(0);
    let status = || bench.json(&["status", "--socket", &up.socket]);
    assert_eq!(status()["warnings"], json!([]));
    let deadline = Instant::now() + Duration::from_secs(60);
    while status()["warnings"] == json!([]) {
        assert!(Instant::now() < deadline, "the queue was never full");
        let send = ["trafficgen", "packet:l0", "-n", "2000"];
        assert!(bench.left.command(env!("CARGO_BIN_EXE_xway")).args(send).output().unwrap().status.success());
    }
    let warnings = status()["warnings"].clone();
    let said = warnings[0].as_str().unwrap();
    assert!(said.starts_with("afxdp:r0: ") && said.contains("packets found a queue full"), "{warnings}");
    let stats = ["stats", "afxdp:r0", "--count", "1", "--interval", "0.05", "--all"];
    let counted = bench.json(&[&stats, &to[..]].concat());
    let counters = &counted["samples"][0]["counters"];
    assert_eq!(counters["tx_queue.frames"]["gauge"], true, "{counted}");
    assert!(counters["tx_queue.bytes"]["total"].is_u64() && counters["tx_queue.bytes"]["per_second"].is_null());
    assert!(counters["tx_limited"]["total"].as_u64().unwrap() > 0, "{counted}");
}

#[test]
fn a_port_without_a_way_back_into_its_host_says_why() {
    const NAME: &str = "service::a_port_without_a_way_back_into_its_host_says_why";
    if !ready(NAME) || !Needs::of(&format!("xway::{NAME}")).kernel(6, 6).met() {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("srvnoback", false));
    let object = compiled(&dir, "sort", KINDS, &[]);
    // In generic mode what is put back would come in again; and where the TAP cannot be made there is no way at all.
    let links = bench.run("ip", &["-o", "link", "show", "dev", "r0"]).exits(0).out;
    let taken = format!("xway-in{}", links.split(':').next().unwrap().trim());
    for (port, reason) in [("afxdp:r0?mode=generic", "in generic mode"), ("afxdp:r0", taken.as_str())] {
        if reason == taken {
            bench.run("ip", &["link", "add", &taken, "type", "veth", "peer", "name", "spare"]).exits(0);
        }
        let file = dir.file("xway.toml", format!("[[port]]\nname = \"{port}\"\n"));
        let up = Up::new(&dir, Some(&file), Some(&bench.right));
        let to = ["--hook", "user", "--socket", &up.socket];
        // What the service before this one had is there again.
        let done = bench.json(&[&["load", "afxdp:r0", &object, "--force"], &to[..]].concat());
        let asked = bench.json(&[&["features", "afxdp:r0"], &to[..]].concat());
        for doc in [&done, &asked] {
            let all = doc["outcomes"].as_array().unwrap();
            let pass = all.iter().find(|o| o["what"] == "pass").unwrap_or_else(|| panic!("{doc}"));
            assert_eq!((&pass["requested"], &pass["effective"]), (&json!("host"), &json!("drop")), "{doc}");
            assert!(pass["reason"].as_str().unwrap().contains(reason), "{reason}: {doc}");
        }
        assert_eq!(asked["verdicts"]["PASS"], "none", "{asked}");
        let all = bench.json(&[&["features"], &to[..]].concat());
        assert_eq!(all["ports"][0]["interface"], "afxdp:r0", "{all}");
        let words = bench.xway(&[&["load", "afxdp:r0", &object, "--force"], &to[..]].concat()).exits(0).out;
        assert!(words.contains("asked for pass host, got drop: ") && words.contains(reason), "{words}");
        assert_eq!(bench.pings(), 0, "what passes does not reach the host");
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

/// What `apply` would refuse `diff` and `--dry-run` say before, and each ends with a code of its own.
#[test]
fn what_applying_would_come_to_is_foretold() {
    if !common::clang("service::what_applying_would_come_to_is_foretold") {
        return;
    }
    let dir = Dir::new();
    compiled(&dir, "sort", KINDS, &[]);
    let entry =
        "[[port]]\nname = \"sim:a?count=1\"\n[[program]]\nname = \"k\"\nport = \"sim:a\"\nobject = \"sort.o\"\n";
    let file = dir.file("xway.toml", entry);
    let up = Up::new(&dir, Some(&file), None);
    let run = |words: &[&str]| xway(&[words, &["--socket", &up.socket]].concat());
    let told = |file: &str, [diff, dry, apply]: [i32; 3], words: &str| {
        for (verb, code) in
            [(&["diff", file][..], diff), (&["apply", file, "--dry-run"], dry), (&["apply", file], apply)]
        {
            run(verb).exits(code).says(words);
            let doc = run(&[verb, &["-j"]].concat()).exits(code).json();
            assert_eq!(doc["error"]["exit"], code, "{verb:?}: {doc}");
            assert!(doc["error"]["message"].as_str().unwrap().contains(words), "{verb:?}: {doc}");
        }
        run(&["diff", &dir.arg("xway.toml")]).exits(0);
    };
    // A map of another shape than the one that is pinned.
    let kept = std::fs::read(dir.path("sort.o")).unwrap();
    let larger = KINDS.replace("max_entries, 4", "max_entries, 8");
    assert_ne!(larger, KINDS);
    let wants = dir.file("larger.toml", entry.replace("sort.o", "larger.o"));
    compiled(&dir, "larger", &larger, &[]);
    told(&wants, [3, 1, 1], "program k: map kinds: the one pinned at /config/k/kinds is another kind of map");
    run(&["diff", &wants])
        .exits(3)
        .says("try: xway map unpin /config/k/kinds --hook user when nothing uses it any more");
    // Two new programs of one file that do not agree about a map.
    let both = format!(
        "{entry}pins = \"/new\"\n[[program]]\nname = \"l\"\nport = \"sim:a\"\nobject = \"larger.o\"\npins = \"/new\"\n"
    );
    let both = dir.file("both.toml", both);
    told(&both, [3, 1, 1], "program l: map kinds: the one pinned at /new/kinds is another kind of map");
    assert!(up.connect().pins().unwrap().iter().all(|pin| !pin.path.starts_with("/new")), "nothing is left of it");
    // What the verifier refuses, and what cannot be read.
    let unsafe_one = "SEC(\"xdp\") int bad(struct xdp_md *c) { return *(int *)(long)c->data; } char _license[] SEC(\"license\") = \"GPL\";";
    compiled(&dir, "bad", unsafe_one, &[]);
    told(&dir.file("bad.toml", entry.replace("sort.o", "bad.o")), [3, 1, 1], "program k: ");
    dir.file("text.o", "no object");
    told(&dir.file("text.toml", entry.replace("sort.o", "text.o")), [3, 3, 3], "program k: ");
    let several = format!("{KINDS}\nSEC(\"xdp\") int other(struct xdp_md *c) {{ return 2; }}");
    compiled(&dir, "several", &several, &[]);
    told(&dir.file("several.toml", entry.replace("sort.o", "several.o")), [3, 3, 3], "name one: function");
    let nope = dir.file("nope.toml", format!("{entry}function = \"nope\"\n"));
    told(&nope, [3, 3, 3], "program k: its object has no function nope; it has sort");
    let alone = Dir::new();
    xway(&["up", "-c", &nope, "--socket", &alone.arg("s")]).exits(3).says("its object has no function nope");
    // What is no file is not waited for; what is no capture is not opened.
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path("fifo"), rustix::fs::Mode::RWXU).unwrap();
    let named = |port: &str| format!("{entry}[[port]]\nname = \"{port}\"\n");
    told(&dir.file("fifo.toml", entry.replace("sort.o", "fifo")), [3, 3, 3], "fifo: is a pipe, and a file is wanted");
    told(&dir.file("zero.toml", entry.replace("sort.o", "/dev/zero")), [3, 3, 3], "/dev/zero: is a device");
    told(&dir.file("played.toml", named(&format!("pcap:{}", dir.arg("fifo")))), [3, 3, 3], "fifo: is a pipe");
    told(&dir.file("nocap.toml", named(&format!("pcap:{}", dir.arg("text.o")))), [3, 3, 3], "text.o: not a capture");
    // Names that nothing can have.
    let long = "port tap:longer-than-fifteen: tap:longer-than-fifteen: no interface can have that name";
    told(&dir.file("long.toml", named("tap:longer-than-fifteen")), [3, 3, 3], long);
    told(
        &dir.file("rel.toml", named("pcap:rel/x.pcap")),
        [3, 3, 3],
        "rel/x.pcap: a service opens captures by a path that",
    );
    let pins = "program k: pins: rel/x: names in the service begin with /";
    told(&dir.file("pins.toml", format!("{entry}pins = \"rel/x\"\n")), [3, 3, 3], pins);
    let served = |path: &str| format!("{entry}[[socket]]\npath = \"{path}\"\n");
    let taken = "text.o: something else than a socket is there";
    told(&dir.file("taken.toml", served(&dir.arg("text.o"))), [3, 3, 3], taken);
    told(&dir.file("nodir.toml", served(&dir.arg("none/s"))), [3, 3, 3], "none/s: No such file or directory");
    // A queue that is not there, on a port that is there and on one that is opened for it.
    let queue = format!("{entry}queue = 17\n");
    told(&dir.file("queue.toml", &queue), [3, 3, 3], "program k: queue 17; the port sim:a has 1, counted from 0");
    told(&dir.file("anew.toml", queue.replace("sim:a", "sim:b")), [3, 3, 3], "queue 17; the port sim:b has 1");
    for (words, queue) in [("equal 4", 1), ("flow-type udp4 dst-port 53 action 9", 9)] {
        let steered = entry.replace("[[program]]", &format!("steer = [\"{words}\"]\n[[program]]"));
        let why = format!("port sim:a?count=1: steer: queue {queue}: the port has 1");
        told(&dir.file("steered.toml", steered), [3, 3, 3], &why);
    }
    let cpus = dir.file("cpus.toml", format!("{entry}[service]\ncpus = [999]\n"));
    told(&cpus, [3, 3, 3], "service.cpus: no worker can be bound to CPU 999");
    xway(&["up", "-c", &cpus, "--socket", &alone.arg("s")]).exits(3).says("CPU 999");
    told(&dir.file("typo.toml", "[[prot]]\n"), [3, 3, 3], "prot");
    told(&dir.arg("nosuch.toml"), [3, 3, 3], "no such file");
    // What is missing on this machine.
    let elsewhere = format!("{entry}[[port]]\nname = \"packet:nowhere0\"\n");
    told(&dir.file("elsewhere.toml", elsewhere), [4, 4, 4], "there is no interface nowhere0");
    let file_gone = format!("{entry}[[port]]\nname = \"pcap:/no/such.pcap\"\n");
    told(&dir.file("capture.toml", file_gone), [3, 3, 3], "/no/such.pcap: no such file");
    let alone = Dir::new().arg("none.sock");
    for verb in [&["diff", &file][..], &["apply", &file], &["apply", &file, "--dry-run"]] {
        xway(&[verb, &["--socket", &alone]].concat()).exits(4).says("no service answers");
    }
    // What the hint says mends it, and what becomes of the maps is said by name.
    let more = larger.replace(
        "SEC(\"xdp\")",
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1);
        __type(key, __u32); __type(value, __u32); } extra SEC(\".maps\");\nSEC(\"xdp\")",
    );
    run(&["map", "unpin", "/config/k/kinds", "--hook", "user"]).exits(0);
    let steps = "replace program k on sim:a by ";
    let says = |file: &str, verb: &[&str], code: i32| -> String {
        let out = run(&[verb, &[file]].concat()).exits(code).out;
        assert!(out.contains(steps) && out.lines().count() == 1, "{out}");
        out.trim_end().rsplit_once(".o").unwrap().1.to_owned()
    };
    for (verb, code) in [(&["diff"][..], 1), (&["apply", "--dry-run"], 0), (&["apply"], 0)] {
        assert_eq!(says(&wants, verb, code), ", with new maps: kinds");
    }
    compiled(&dir, "larger", &more, &[]);
    for (verb, code) in [(&["diff"][..], 1), (&["apply", "--dry-run"], 0), (&["apply"], 0)] {
        assert_eq!(says(&wants, verb, code), ", keeping its maps; new: extra");
    }
    compiled(&dir, "larger", &more.replace("p[37] == 81", "p[37] == 82"), &[]);
    for (verb, code) in [(&["diff"][..], 1), (&["apply", "--dry-run"], 0), (&["apply"], 0)] {
        assert_eq!(says(&wants, verb, code), ", keeping its maps");
    }
    run(&["diff", &wants]).exits(0);
    std::fs::write(dir.path("sort.o"), kept).unwrap();
}

/// Who may only look is told the steps by the file's words; what costs more, or tells of other files, is done for those who may apply.
#[test]
fn who_may_only_look_is_told_that_nothing_was_proved() {
    let needs = Needs::of("xway::service::who_may_only_look_is_told_that_nothing_was_proved").root().clang();
    if !needs.command("setpriv").met() {
        return;
    }
    let dir = Dir::new();
    compiled(&dir, "sort", KINDS, &[]);
    let entry =
        "[[port]]\nname = \"sim:a?count=1\"\n[[program]]\nname = \"k\"\nport = \"sim:a\"\nobject = \"sort.o\"\n";
    let file = dir.file("xway.toml", entry);
    let shut = dir.file("shut.toml", "");
    let open = dir.file("open.toml", "[service]\nreadable = true\n");
    let as_nobody = |socket: &str, words: &[&str]| {
        let own = ["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_xway")];
        let done =
            std::process::Command::new("setpriv").args(own).args(words).args(["--socket", socket]).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    };
    {
        let up = Up::new(&dir, Some(&shut), None);
        for verb in [&["status"][..], &["diff", &file]] {
            let (_, _, err) = as_nobody(&up.socket, verb);
            assert!(err.contains("readable = true in [service] lets everybody look"), "{verb:?}: {err}");
        }
    }
    let up = Up::new(&dir, Some(&open), None);
    let (code, out, err) = as_nobody(&up.socket, &["diff", &file]);
    assert_eq!(code, 1, "{err}");
    let last = out.lines().last().unwrap();
    let unread =
        "would read the objects and captures, and prove the programs, which is not done ahead for who may only look";
    assert_eq!(last, unread, "{out}");
    let steps = xway(&["diff", &file, "--socket", &up.socket]).exits(1).out;
    assert_eq!(format!("{steps}{last}\n"), out);
    // Where the file's words are the same nobody has looked whether the object still is, and that is said too.
    xway(&["apply", &file, "--socket", &up.socket]).exits(0);
    assert_eq!(as_nobody(&up.socket, &["diff", &file]), (1, format!("{unread}\n"), String::new()));
    compiled(&dir, "sort", &KINDS.replace("p[37] == 81", "p[37] == 82"), &[]);
    assert_eq!(as_nobody(&up.socket, &["diff", &file]), (1, format!("{unread}\n"), String::new()));
    // A pipe that nobody writes into holds nobody up, and what a file begins with is not said.
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path("fifo"), rustix::fs::Mode::RWXU).unwrap();
    for other in ["fifo", "/etc/shadow", "/no/such"] {
        let named = dir.file("named.toml", entry.replace("sort.o", other));
        let (code, out, err) = as_nobody(&up.socket, &["diff", &named]);
        assert!(
            code == 1 && out.contains("would replace program k") && out.ends_with(&format!("{unread}\n")),
            "{out}{err}"
        );
    }
    let (code, _, err) = as_nobody(&up.socket, &["clean", "--hook", "user"]);
    assert!(code == 4 && err.contains("may look, but not change"), "{err}");
    assert_eq!(as_nobody(&up.socket, &["clean", "--hook", "user", "--dry-run"]).0, 0);
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
    // Options count wherever they stand; a number with a sign is a word.
    assert!(
        serde_json::from_str::<serde_json::Value>(&steer("flow-type udp4 dst-port 54 action -1 loc 9 -j").exits(0).out)
            .is_ok()
    );
    steer("delete 9").exits(0);
    assert!(steer("equal 1 hkey symmetric").exits(0).out.contains("hash over 128 entries, of queue 0: 128"));
    let doc: Value = serde_json::from_str(&xway(&["-j", "steer", "--socket", &up.socket, &port]).exits(0).out).unwrap();
    assert_eq!((doc["rules"][0].as_str(), doc["indirection"].as_array().map(Vec::len)), (Some(rule), Some(128)));
    assert!(doc["key"].as_str().is_some_and(|key| key.starts_with("6d:5a:6d:5a:")), "{doc}");
    // What it is now is what was asked for last, and a refusal changes nothing.
    steer("flow-type udp4 action 3").exits(1).says("queue 3: the port has 1, numbered from 0");
    steer("sideways").exits(2).says("a change begins with flow-type");
    steer("delete 7").exits(0);
    steer("off").exits(0);
    assert!(steer("").exits(0).out.contains("packets stay"));
    xway(&["steer", "--socket", &up.socket, "lo"]).exits(4).says("no steering rules");
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
    sock(&["serve", &path, "--group", "nosuch"]).exits(3).says("xsk.sock: group: there is no group nosuch");
    sock(&["serve", &path, "--own-queue"]).exits(0);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
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
    sock(&["end", &path]).exits(1).says("no sockets are served at");
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
    // Without a hook Linux's is shown, and that the other one is not.
    let status = xway(&["status", "--socket", &socket]).exits(0);
    assert!(
        status.err.contains("only Linux's hook was asked") && status.err.contains("no service answers"),
        "{}",
        status.err
    );
    xway(&["prog", "tracelog", "--hook", "user", "--socket", &socket]).exits(4).says("no service answers");
    xway(&["btf", "dump", "prog", "id", "1", "--hook", "user", "--socket", &socket])
        .exits(4)
        .says("no service answers");
    xway(&["btf", "dump", "id", "1", "--hook", "user"]).exits(1).says("xway btf dump file OBJ");
    let wrong = dir.file("wrong.toml", "[service]\nworkers = 0\n");
    xway(&["up", "-c", &wrong, "--socket", &socket]).exits(3).says("service.workers");
    let elsewhere = dir.file("group.toml", "[service]\ngroup = \"no-such-group-here\"\n");
    xway(&["up", "-c", &elsewhere, "--socket", &socket]).exits(3).says("no-such-group-here");
}

/// Everybody who listens hears what programs print, as lines of the kernel's trace log.
#[test]
fn what_programs_print_is_heard_while_they_run() {
    if !ready("service::what_programs_print_is_heard_while_they_run") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("printed", false));
    let up = Up::new(&dir, None, Some(&bench.right));
    let to = ["--hook", "user", "--socket", &up.socket];
    let says = "SEC(\"xdp\") int says(struct xdp_md *ctx)
        { bpf_printk(\"%d bytes\", (int)(ctx->data_end - ctx->data)); return 2; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let says = compiled(&dir, "says", says, &[]);
    bench.xway(&[&["load", "r0", &says], &to[..]].concat()).exits(0);
    let heard = |words: &[&str]| {
        let words = [&["prog", "tracelog", "count", "3", "timeout", "60"], words, &to[..]].concat();
        std::thread::scope(|scope| {
            let listens = scope.spawn(|| bench.xway(&words).exits(0).out);
            while !listens.is_finished() {
                bench.pings();
            }
            listens.join().unwrap()
        })
    };
    let text = heard(&[]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.len() == 3 && lines.iter().all(|l| l.contains("] ..... ") && l.contains(": bpf_trace_printk: ")),
        "{text}"
    );
    assert!(lines.iter().all(|l| l.ends_with(" bytes")), "{text}");
    let doc: serde_json::Value = serde_json::from_str(&heard(&["-j"])).unwrap();
    assert_eq!((doc["lines"].as_array().unwrap().len(), &doc["lost"]), (3, &json!(0)), "{doc}");
}
