//! One program on each hook, with one flag changed: what it counts, how it is named, run, shown and dumped, and who refuses it.

mod common;

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use common::service::{KINDS, Up};
use common::wire::{Bench, RIGHT, ready};
use common::{Dir, compiled, sample};
use serde_json::{Value, json};
use xway_testkit::{Needs, traffic};

/// Three echo requests, five datagrams to port 9 and one to port 10 behind them, four connections that nobody answers. Tells
/// whether one to port 9 has arrived at the other host, which is waited for where `copies` says that it will.
fn send(bench: &Bench, copies: bool) -> bool {
    let receivers = bench.right.enter(|| [9u16, 10].map(|port| UdpSocket::bind((RIGHT, port)).unwrap())).unwrap();
    let at = |port: u16| SocketAddr::from((RIGHT, port));
    bench
        .left
        .enter(|| {
            assert_eq!(traffic::ping_within(RIGHT, 3, Duration::from_secs(30)).unwrap(), 3);
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for n in 0..5u8 {
                socket.send_to(&[n; 20], at(9)).unwrap();
            }
            socket.send_to(&[10; 20], at(10)).unwrap();
            for _ in 0..4 {
                assert!(TcpStream::connect_timeout(&at(81), Duration::from_secs(5)).is_err());
            }
        })
        .unwrap();
    // One queue, in order: when the last one is there, those before it have had their fate.
    let [dropped, passed] = receivers;
    let mut bytes = [0; 64];
    passed.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    traffic::patient(|| passed.recv(&mut bytes)).expect("the datagram that passes");
    dropped.set_nonblocking(!copies).unwrap();
    dropped.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    traffic::patient(|| dropped.recv(&mut bytes)).is_ok()
}

#[test]
fn one_program_on_three_hooks_with_one_flag_changed() {
    if !ready("hooks::one_program_on_three_hooks_with_one_flag_changed") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("threehooks", true));
    let object = compiled(&dir, "sort", KINDS, &[]);
    let up = Up::new(&dir, None, Some(&bench.right));
    let expected = [3u64, 5, 4];
    // What passes on a port that takes frames away goes back to the host from Linux 6.6 on.
    let back = Needs::of("xway::hooks::one_program_on_three_hooks (afxdp)").kernel(6, 6).command("ethtool").met();
    let places = [("native", "r0"), ("generic", "r0"), ("user", "r0"), ("user", "afxdp:r0")];
    for (hook, port) in places.into_iter().take(if back { 4 } else { 3 }) {
        let to = ["--hook", hook, "--socket", &up.socket];
        if port.starts_with("afxdp:") {
            // A sender on the same machine leaves checksums to its device, and what takes frames away sees them unfinished.
            let done = bench.left.command("ethtool").args(["-K", "l0", "tx", "off"]).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        let done = bench.json(&[&["load", port, &object], &to[..]].concat());
        // On copies a verdict is one about the copy, and that is said with what to do about it.
        let copies = (hook, port) == ("user", "r0");
        assert_eq!(
            done["mode"],
            json!({ "requested": hook.replace("user", "auto"), "effective": hook, "reason": null })
        );
        if copies {
            let said = &done["outcomes"][0];
            let words = ["what", "requested", "effective"].map(|member| said[member].as_str().unwrap());
            assert_eq!(words, ["drop", "drop", "copies only"], "{done}");
            let mends = "taken away from the host by: xway load afxdp:r0 OBJ --hook user";
            assert!(said["reason"].as_str().unwrap().ends_with(mends), "{done}");
        } else {
            assert!(done["outcomes"].as_array().unwrap().iter().all(|o| o["what"] != "drop"), "{done}");
        }
        let attached = &done["attachment"];
        assert_eq!(attached["program"]["name"], "sort", "{hook}: {done}");
        let engine = if hook == "user" { "jit" } else { "kernel" };
        assert_eq!(attached["engine"], engine, "{hook}: {done}");
        // The same words on both sides, and the same types.
        let counted = || -> Vec<u64> {
            let one = |k: u32| {
                let words = ["map", "lookup", "pinned", "/sys/fs/bpf/kinds", "key", &k.to_string()];
                bench.json(&[&words[..], &to[..]].concat())
            };
            (0..3).map(|k| one(k)["value"].as_u64().unwrap()).collect()
        };
        // A map that is pinned goes on counting where the one before ended.
        let before = counted();
        assert_eq!(send(&bench, copies), copies, "{hook} {port}: what is dropped arrives where there are copies alone");
        let expected: Vec<u64> = expected.iter().zip(&before).map(|(more, had)| more + had).collect();
        // The last packet may still be on its way to a process.
        let deadline = Instant::now() + Duration::from_secs(20);
        while counted() != expected && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(counted(), expected, "{hook}");
        // Counters of the port, on both sides: one look, all of them.
        let counted = bench.json(&[&["stats", port, "--count", "1", "--interval", "0.05", "--all"], &to[..]].concat());
        let seen = &counted["samples"][0]["counters"]["rx_packets"]["total"];
        assert!(seen.as_u64().is_some_and(|n| n >= 12), "{hook}: {counted}");
        // (An afxdp: port has a program of its own in the driver.)
        let ours = || -> Vec<Value> {
            let status = bench.json(&["status", "--socket", &up.socket]);
            let all = status["attachments"].as_array().unwrap().iter();
            all.filter(|a| a["program"]["name"] == "sort").cloned().collect()
        };
        let there = ours();
        assert_eq!(there.len(), 1, "{hook}: {there:?}");
        assert_eq!(there[0]["program"]["tag"], attached["program"]["tag"]);
        assert_eq!(there[0]["mode"], hook, "{there:?}");
        bench.xway(&[&["unload", port, "-a"], &to[..]].concat()).exits(0);
        assert_eq!(ours(), [Value::Null; 0], "{hook}");
        if copies {
            // The interface has one port at a time.
            up.connect().close_port("packet:r0").unwrap();
        }
        if hook != "user" {
            bench.run("rm", &["/sys/fs/bpf/kinds"]).exits(0);
        }
    }
}

#[test]
fn a_loaded_program_is_run_shown_and_dumped_on_each_hook() {
    if !ready("hooks::a_loaded_program_is_run_shown_and_dumped_on_each_hook") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("progrun", true));
    // What comes back shows that it was written to, and how often it ran.
    let text = "SEC(\"xdp\") int marker(struct xdp_md *ctx) {
        unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
        if (p + 14 > end) return XDP_ABORTED;
        p[0]++;
        return XDP_TX; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let object = compiled(&dir, "marker", text, &[]);
    let up = Up::new(&dir, None, Some(&bench.right));
    let data = dir.file("in.bin", [0u8; 64]);
    let mut sources = Vec::new();
    let mut tags = Vec::new();
    for hook in ["native", "generic", "auto", "user"] {
        let to = ["--hook", hook, "--socket", &up.socket];
        let done = bench.json(&[&["load", "r0", &object], &to[..]].concat());
        let program = &done["attachment"]["program"];
        let (id, tag) = (program["id"].to_string(), program["tag"].as_str().unwrap().to_owned());
        let pin = format!("/sys/fs/bpf/marker-{hook}");
        bench.xway(&[&["prog", "pin", "id", &id, &pin], &to[..]].concat()).exits(0);
        // By number, pin and tag; in bpftool's words and in options.
        for which in [&["id", id.as_str()][..], &[&id], &["pinned", &pin], &["tag", &tag], &["name", "marker"]] {
            let shown = bench.json(&[&["prog", "show"], which, &to[..]].concat());
            let seen = &shown["programs"][0];
            assert_eq!((&seen["name"], &seen["tag"]), (&json!("marker"), &json!(tag)), "{hook} {which:?}: {shown}");
        }
        for words in [
            &["id", id.as_str(), "--data-in", &data, "--repeat", "3"][..],
            &["pinned", &pin, "data_in", &data, "repeat", "3"],
        ] {
            let ran = bench.json(&[&["prog", "run"], words, &to[..]].concat());
            assert_eq!(
                (&ran["retval"], &ran["verdict"], &ran["repeat"]),
                (&json!(3), &json!("TX"), &json!(3)),
                "{ran}"
            );
            assert_eq!(
                ran["data_out"].as_str().unwrap()[..4],
                *"AwAA",
                "{hook}: three runs, each over the last: {ran}"
            );
            assert_eq!(ran["hook"], if hook == "user" { "service" } else { "kernel" });
        }
        // An object goes there for the run, and leaves nothing behind.
        let ran = bench.json(&[&["prog", "run", &object, "--data-in", &data], &to[..]].concat());
        assert_eq!(ran["retval"], 3, "{hook}: {ran}");
        bench.xway(&[&["prog", "show", "id", &ran["program"]["id"].to_string()], &to[..]].concat()).exits(1);
        let code = bench.json(&[&["prog", "dump", "xlated", "id", &id], &to[..]].concat());
        assert!(code.to_string().contains("exit"), "{hook}: {code}");
        let code = bench.json(&[&["prog", "dump", "xlated", "id", &id, "linum"], &to[..]].concat());
        let of = |insn: &serde_json::Value| {
            let [file, line, col] = ["file", "line_num", "line_col"].map(|field| insn[field].clone());
            Some((insn["src"].as_str()?.to_owned(), file, line, col))
        };
        let lines: Vec<_> = code["disassembly"].as_array().unwrap().iter().filter_map(of).collect();
        assert!(
            !lines.is_empty() && code["disassembly"][0]["proto"].as_str().unwrap().contains("marker"),
            "{hook}: {code}"
        );
        sources.push(lines);
        let text = bench.xway(&[&["prog", "dump", "xlated", "id", &id, "linum"], &to[..]].concat()).exits(0).out;
        assert!(text.contains(" line_num:") && text.contains("[file:"), "{hook}: {text}");
        // Machine code, too, between the lines that it came from; behind functions stand constants, which are no code.
        if hook == "user" {
            let code = bench.json(&[&["prog", "dump", "jited", "id", &id, "linum"], &to[..]].concat());
            let functions = code["functions"].as_array().unwrap();
            let rows = functions.iter().flat_map(|f| f["disassembly"].as_array().unwrap());
            let named: Vec<_> = rows.filter_map(of).collect();
            let known = sources.last().unwrap();
            assert!(!named.is_empty() && named.iter().all(|line| known.contains(line)), "{code}");
            assert!(functions.iter().all(|f| f["name"].as_str().unwrap().contains("marker")), "{code}");
            let text = bench.xway(&[&["prog", "dump", "jited", "id", &id, "linum"], &to[..]].concat()).exits(0).out;
            assert!(text.contains(" line_num:") && !text.contains("(bad)"), "{text}");
        }
        let raw = dir.arg(&format!("{hook}.bin"));
        bench.xway(&[&["prog", "dump", "jited", "id", &id, "file", &raw], &to[..]].concat()).exits(0);
        assert!(std::fs::metadata(&raw).unwrap().len() > 16);
        let profile = bench.json(&[&["prog", "profile", "id", &id, "duration", "0.02"], &to[..]].concat());
        assert!(profile["runs"].is_u64(), "{profile}");
        tags.push(tag);
        bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
        bench.xway(&[&["prog", "run", "id", "4000000000", "--data-in", &data], &to[..]].concat()).exits(1);
        let short = bench.xway(&[&["prog", "run", &object, "--data-in", "hex:00"], &to[..]].concat()).exits(1);
        short.says("a packet has at least 14 bytes, its Ethernet header; this one has 1");
        // A map that nobody writes to any more, asked by who may do everything: nobody is told to become root.
        let (name, kind) = (format!("/sys/fs/bpf/still-{hook}"), ["type", "array", "key", "4", "value", "4"]);
        let make = [&["map", "create", &name], &kind[..], &["entries", "1", "name", "still"], &to[..]].concat();
        bench.xway(&make).exits(0);
        bench.xway(&[&["map", "freeze", "pinned", &name], &to[..]].concat()).exits(0);
        let words = ["map", "update", "pinned", &name, "key", "0", "0", "0", "0", "value", "1", "0", "0", "0"];
        let refused = bench.xway(&[&words, &to[..]].concat()).exits(1).says("the map is frozen");
        assert!(!refused.err.contains("root"), "{hook}: {}", refused.err);
        bench
            .xway(&[&["prog", "run", &id, "--data-in", &data, "--map", "x=y"], &to[..]].concat())
            .exits(2)
            .says("--map");
    }
    assert!(tags.iter().all(|tag| *tag == tags[0]), "{tags:?}");
    assert!(sources.iter().all(|lines| *lines == sources[0]), "{sources:#?}");
}

#[test]
fn the_program_of_a_queue_stands_beside_that_of_its_port() {
    if !ready("hooks::the_program_of_a_queue_stands_beside_that_of_its_port") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("queues", false));
    let up = Up::new(&dir, None, Some(&bench.right));
    let to = ["--hook", "user", "--socket", &up.socket];
    let plain = |name: &str, ret: u32| {
        compiled(&dir, name, &format!("SEC(\"xdp\") int {name}(struct xdp_md *ctx) {{ return {ret}; }}"), &[])
    };
    let (whole, own) = (plain("whole", 2), plain("own", 1));
    bench.xway(&[&["load", "r0", &whole], &to[..]].concat()).exits(0);
    bench.xway(&[&["load", "r0", &own, "-q", "0"], &to[..]].concat()).exits(0);
    let names = |words: &[&str]| -> Vec<(String, serde_json::Value)> {
        let doc = bench.json(&[&["status", "packet:r0"], words, &to[..]].concat());
        let all = doc["attachments"].as_array().unwrap().iter();
        all.map(|a| {
            assert!(a["packets_per_second"].is_number(), "{a}");
            (a["program"]["name"].as_str().unwrap().to_owned(), a["queue"].clone())
        })
        .collect()
    };
    assert_eq!(names(&[]), [("whole".into(), json!(null)), ("own".into(), json!(0))]);
    assert_eq!(names(&["-q", "0"]), [("own".into(), json!(0))]);
    assert_eq!(names(&["-q", "1"]), [("whole".into(), json!(null))]);
    let text = bench.xway(&[&["status", "packet:r0", "--measure", "0"], &to[..]].concat()).exits(0).out;
    for word in ["interface", "queue", "priority", "name", "id", "tag", "mode", "engine", "chain on", "packets/s"] {
        assert!(text.lines().next().unwrap().contains(word), "{word}:\n{text}");
    }
    // The queue's own program decides; without it the port's does.
    let program = |name: &str| {
        let doc = bench.json(&[&["prog", "show", "name", name], &to[..]].concat());
        (doc["programs"][0]["id"].to_string(), doc["programs"][0]["run_cnt"].as_u64().unwrap())
    };
    assert_eq!(bench.pings(), 1, "copies: the host answers whatever the program says");
    let deadline = Instant::now() + Duration::from_secs(20);
    while program("own").1 == 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = program("whole").1;
    bench.xway(&[&["unload", "r0", "-i", &program("own").0], &to[..]].concat()).exits(0);
    assert_eq!(names(&["-q", "0"]), [("whole".into(), json!(null))]);
    assert_eq!(bench.pings(), 1);
    while program("whole").1 == before {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }

    // By number, as Linux's links are: one program, twice attached.
    let id = program("whole").0;
    bench.xway(&[&["load", "r0", &own, "-q", "0"], &to[..]].concat()).exits(0);
    let links = |words: &[&str]| bench.json(&[&["link", "show"], words, &to[..]].concat())["links"].clone();
    let all = links(&[]);
    let [first, second] = &all.as_array().unwrap()[..] else { panic!("{all}") };
    assert_eq!(
        (first["prog_id"].to_string(), &first["queue"], &first["type"]),
        (id.clone(), &json!(null), &json!("xdp"))
    );
    assert_eq!((&first["devname"], &second["queue"]), (&json!("packet:r0"), &json!(0)));
    let number = second["id"].to_string();
    assert_eq!(links(&["id", &number]), json!([second]));
    let status = bench.json(&[&["status", "r0"], &to[..]].concat());
    assert_eq!(status["attachments"][1]["link_id"], second["id"]);
    let text = bench.xway(&[&["link", "show"], &to[..]].concat()).exits(0).out;
    assert!(text.contains(&format!(": xdp  prog {id}  packet:r0 (number ")) && text.contains("  queue 0\n"), "{text}");
    let said = bench.xway(&[&["link", "detach", "id", &number], &to[..]].concat()).exits(0).out;
    assert_eq!(said, format!("link {number} is detached\n"));
    assert_eq!(links(&[]), json!([first]));
    for words in [&["link", "detach", "id", &number][..], &["link", "show", "id", &number]] {
        let refused = bench.xway(&[words, &to[..]].concat()).exits(1).err;
        assert!(refused.contains(&format!("no link with id {number}")), "{refused}");
    }
    let pin = bench.xway(&[&["link", "pin", "id", "1", "/kept"], &to[..]].concat()).exits(1).err;
    assert!(pin.contains("outlives whoever made it"), "{pin}");

    // An interface has one port at a time, and what a load has opened is closed by hand.
    let taken = bench.xway(&[&["load", "afxdp:r0", &own], &to[..]].concat()).exits(1).err;
    assert!(taken.contains("  try: one of the two at a time; xway unload packet:r0 -a --close --hook user"), "{taken}");
    let close = [&["unload", "r0", "-a", "--close"], &to[..]].concat();
    let said = bench.xway(&close).exits(0).out;
    assert_eq!(said, format!("r0: program {id} is detached\npacket:r0 is closed\n"));
    assert!(bench.xway(&close).exits(4).err.contains("there is no port r0 in this engine"));
    bench.xway(&[&["load", "r0", &own], &to[..]].concat()).exits(0);
    bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
    assert_eq!(bench.json(&close)["closed"], true, "also where no program is on it");
    assert!(bench.xway(&close[..4]).exits(2).err.contains("--hook user closes one of the service"));

    // What a refused load had opened is closed again.
    bench.xway(&[&["load", "r0", &own, "-q", "9"], &to[..]].concat()).exits(1).says("no queue 9");
    assert_eq!(bench.json(&[&["features"], &to[..]].concat())["ports"], json!([]));
}

/// Who refuses a program is who says so, with the same diagnostics.
#[test]
fn an_unsafe_program_is_refused_on_each_hook_by_its_own_verifier() {
    if !ready("hooks::an_unsafe_program_is_refused_on_each_hook_by_its_own_verifier") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("unsafe", false));
    let text = "SEC(\"xdp\") int unchecked(struct xdp_md *ctx) { return *(char *)(long)ctx->data; }";
    let object = compiled(&dir, "unchecked", text, &[]);
    let up = Up::new(&dir, None, Some(&bench.right));
    for (hook, who) in
        [("native", "the kernel's verifier refused program unchecked"), ("user", "program unchecked is refused")]
    {
        let said = bench.xway(&["load", "r0", &object, "--hook", hook, "--socket", &up.socket]).exits(1).err;
        assert!(said.starts_with(&format!("xway: r0: {who}")), "{hook}: {said}");
        assert!(said.contains("error[packet-bounds]") && said.contains("= help: "), "{hook}: {said}");
        assert_eq!(said.contains("kernel says"), hook == "native", "{said}");
    }
    // No port was opened for what was never to run there.
    let doc = bench.json(&["features", "--hook", "user", "--socket", &up.socket]);
    assert_eq!(doc["ports"], json!([]), "{doc}");
}

#[test]
fn what_a_program_counts_stands_beside_what_its_port_counts() {
    if !ready("hooks::what_a_program_counts_stands_beside_what_its_port_counts") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("counted", false));
    let object = sample(&dir, "ttl");
    let up = Up::new(&dir, None, Some(&bench.right));
    for hook in ["native", "user"] {
        let to = ["--hook", hook, "--socket", &up.socket];
        bench.xway(&[&["load", "r0", &object], &to[..]].concat()).exits(0);
        let counted =
            || bench.json(&[&["stats", "r0", "--count", "1", "--interval", "0.05", "--all"], &to[..]].concat());
        let number = |doc: &Value, name: &str| doc["samples"][0]["counters"][name]["total"].as_u64().unwrap_or(0);
        assert_eq!(number(&counted(), "program.ttl_v4.64.packets"), 0, "{hook}");
        assert!(send(&bench, true), "{hook}: it drops nothing");
        // Twelve packets of the other host, which all start with 64; of what else they say to each other nothing is known.
        let deadline = Instant::now() + Duration::from_secs(20);
        while number(&counted(), "program.ttl_v4.64.packets") < 12 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let doc = counted();
        let (packets, bytes) = (number(&doc, "program.ttl_v4.64.packets"), number(&doc, "program.ttl_v4.64.bytes"));
        assert!(packets >= 12 && bytes >= packets * 42, "{hook}: {doc}");
        assert!(number(&doc, "rx_packets") >= 12, "{hook}: {doc}");
        let names = doc["samples"][0]["counters"].as_object().unwrap().keys();
        assert!(!names.clone().any(|name| name.starts_with("program.sources")), "it is no counter: {doc}");
        bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
    }
}
