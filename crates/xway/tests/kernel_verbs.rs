//! Maps, programs, links and types of the kernel by their verbs, with `bpftool` as witness in both directions.

mod common;

use common::wire::{Bench, ready, uncounted};
use common::{Dir, compiled, sample};
use serde_json::{Value, json};
use xway_testkit::has_command;

/// What bpftool says, as JSON.
fn bpftool(bench: &Bench, args: &[&str]) -> Value {
    let ran = bench.run("bpftool", &[&["-j"], args].concat()).exits(0);
    serde_json::from_str(if ran.out.trim().is_empty() { "null" } else { &ran.out }).unwrap()
}

fn with_bpftool(name: &str) -> bool {
    if !ready(name) {
        return false;
    }
    if !has_command("bpftool") {
        xway_testkit::skip(&format!("xway::{name}"), "bpftool");
        return false;
    }
    true
}

#[test]
fn maps_that_either_creates_are_the_same_to_both() {
    if !with_bpftool("kernel_verbs::maps_that_either_creates_are_the_same_to_both") {
        return;
    }
    let bench = Bench::new("verbmaps", true);
    let shapes = [
        ("hash", "4", "8", "16"),
        ("array", "4", "16", "3"),
        ("lpm_trie", "8", "4", "32"),
        ("queue", "0", "4", "8"),
        ("stack", "0", "8", "8"),
        ("percpu_array", "4", "8", "2"),
        ("lru_hash", "16", "4", "64"),
        ("prog_array", "4", "4", "4"),
    ];
    for (kind, key, value, entries) in shapes {
        let flags = if kind == "lpm_trie" { "1" } else { "0" };
        let mut shown = Vec::new();
        for maker in ["xway", "bpftool"] {
            let path = format!("/sys/fs/bpf/{maker}-{kind}");
            let words =
                [&path, "type", kind, "key", key, "value", value, "entries", entries, "name", "both", "flags", flags];
            let args = [&["map", "create"], &words[..]].concat();
            match maker {
                "xway" => bench.xway(&args).exits(0),
                _ => bench.run("bpftool", &args).exits(0),
            };
            let ours = bench.json(&["map", "show", "pinned", &path])["maps"][0].clone();
            let theirs = bpftool(&bench, &["map", "show", "pinned", &path]);
            for field in ["id", "type", "name", "flags", "bytes_key", "bytes_value", "max_entries", "bytes_memlock"] {
                assert_eq!(ours[field], theirs[field], "{kind} of {maker}: {field}");
            }
            shown.push(ours);
        }
        for field in ["type", "flags", "bytes_key", "bytes_value", "max_entries"] {
            assert_eq!(shown[0][field], shown[1][field], "{kind}: {field}");
        }
    }
    // A queue filled by one is emptied by the other.
    let queue = ["pinned", "/sys/fs/bpf/bpftool-queue"];
    bench.xway(&[&["map", "push"], &queue[..], &["value", "7"]].concat()).exits(0);
    bench.run("bpftool", &[&["map", "enqueue"], &queue[..], &["value", "8", "0", "0", "0"]].concat()).exits(0);
    assert_eq!(
        bench.json(&[&["map", "peek"], &queue[..]].concat())["value"],
        bench.json(&[&["map", "peek"], &queue[..]].concat())["value"]
    );
    let first = bpftool(&bench, &[&["map", "dequeue"], &queue[..]].concat());
    assert_eq!(first["value"], json!(["0x07", "0x00", "0x00", "0x00"]), "{first}");
    assert_eq!(bench.xway(&[&["map", "pop"], &queue[..]].concat()).exits(0).out, "hex:08 00 00 00\n");
    bench.xway(&[&["map", "pop"], &queue[..]].concat()).exits(1).says("it is empty");
    // A map in a map, by name: one that no other test of this machine uses.
    let (outer_name, inner_name) = (format!("o{}", std::process::id()), format!("i{}", std::process::id()));
    bench
        .xway(&[
            "map",
            "create",
            "/sys/fs/bpf/inner",
            "type",
            "array",
            "key",
            "4",
            "value",
            "4",
            "entries",
            "1",
            "name",
            &inner_name,
        ])
        .exits(0);
    let outer = ["type", "array_of_maps", "key", "4", "value", "4", "entries", "2", "name", &outer_name, "inner_map"];
    bench.xway(&[&["map", "create", "/sys/fs/bpf/outer"], &outer[..], &["name", &inner_name]].concat()).exits(0);
    bench.xway(&["map", "update", "name", &outer_name, "key", "1", "value", "name", &inner_name]).exits(0);
    let inner = bench.json(&["map", "show", "name", &inner_name])["maps"][0]["id"].clone();
    assert_eq!(bench.json(&["map", "lookup", "name", &outer_name, "key", "1"])["value"]["map_id"], inner);
    bench.xway(&["map", "create", "/sys/fs/bpf/x", "type", "nonsense", "name", "x"]).exits(2).says("type nonsense");
}

#[test]
fn a_name_with_a_dot_is_what_is_wrong_about_a_pin() {
    if !ready("kernel_verbs::a_name_with_a_dot_is_what_is_wrong_about_a_pin") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("verbdots", true));
    let object = sample(&dir, "blacklist");
    let array = ["type", "array", "key", "4", "value", "4", "entries", "1", "name", "dots"];
    bench.xway(&[&["map", "create", "/sys/fs/bpf/m/plain"], &array[..]].concat()).exits(0);
    let done = bench.json(&["load", "r0", &object, "-p", "/sys/fs/bpf/lists"]);
    let (program, link) = (done["attachment"]["program"]["id"].to_string(), done["attachment"]["link_id"].to_string());
    let map = "/sys/fs/bpf/m/plain";
    for (args, name) in [
        (&[&["map", "create", "/sys/fs/bpf/m/x.y"], &array[..]].concat()[..], "x.y"),
        (&[&["map", "create", "/sys/fs/bpf/m.n/plain"], &array[..]].concat(), "m.n"),
        (&["load", "r0", &object, "--force", "-p", "/sys/fs/bpf/v1.2"], "v1.2"),
        (&["map", "pin", map, "/sys/fs/bpf/new/x.y"], "x.y"),
        (&["prog", "pin", "id", &program, "/sys/fs/bpf/p.q"], "p.q"),
        (&["link", "pin", "id", &link, "/sys/fs/bpf/l.m"], "l.m"),
        (&["map", "show", "/sys/fs/bpf/x.y"], "x.y"),
        (&["map", "unpin", "/sys/fs/bpf/x.y"], "x.y"),
    ] {
        let refused = bench.xway(args).exits(1);
        assert!(!refused.err.contains("root"), "{args:?}: {}", refused.err);
        refused.says(&format!("names in a BPF file system have no dots, and {name} has one"));
    }
    // Where the file system is mounted another one says how names are.
    let mounted = "mkdir -p \"$1/v1.2\" && mount -t bpf bpf \"$1/v1.2\"";
    let outside = dir.arg("outside");
    bench.run("sh", &["-c", mounted, "sh", &outside]).exits(0);
    let path = format!("{outside}/v1.2/plain");
    let create = [&["map", "create", &path], &array[..]].concat();
    bench.xway(&create).exits(0);
    bench.xway(&["map", "unpin", &path]).exits(0);
}

#[test]
fn programs_links_and_types_that_either_made() {
    if !with_bpftool("kernel_verbs::programs_links_and_types_that_either_made") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("verbprogs", true));
    let text = "struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2); __type(key, int); __type(value, int); }
            jumps SEC(\".maps\");
        SEC(\"xdp\") int jumper(struct xdp_md *ctx) { bpf_printk(\"xway was here\"); bpf_tail_call(ctx, &jumps, 1); return 2; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let object = compiled(&dir, "jumper", text, &[]);
    let drop = compiled(&dir, "dropper", "SEC(\"xdp\") int dropper(struct xdp_md *ctx) { return 1; }", &[]);
    assert_eq!(bench.pings(), 1, "and the hosts know each other before anything is dropped");
    // Theirs: loaded and pinned by bpftool, attached by it.
    bench.run("bpftool", &["prog", "load", &drop, "/sys/fs/bpf/dropper"]).exits(0);
    let theirs = bpftool(&bench, &["prog", "show", "pinned", "/sys/fs/bpf/dropper"]);
    let tag = theirs["tag"].as_str().unwrap();
    for which in [
        &["pinned", "/sys/fs/bpf/dropper"][..],
        &["tag", tag],
        &["name", "dropper"],
        &["id", &theirs["id"].to_string()],
    ] {
        let ours = bench.json(&[&["prog", "show"], which].concat());
        for field in ["id", "type", "name", "tag", "uid", "bytes_xlated", "jited"] {
            assert_eq!(ours["programs"][0][field], theirs[field], "{which:?}: {field}");
        }
    }
    bench.run("bpftool", &["net", "attach", "xdpgeneric", "pinned", "/sys/fs/bpf/dropper", "dev", "r0"]).exits(0);
    let seen = bench.json(&["status", "r0"]);
    assert_eq!(
        (&seen["attachments"][0]["mode"], &seen["attachments"][0]["program"]["id"]),
        (&json!("generic"), &theirs["id"])
    );
    assert_eq!(bench.pings(), 0);
    bench.xway(&["unload", "r0", "-i", &theirs["id"].to_string()]).exits(0);
    assert_eq!(bench.pings(), 1);

    // Ours: what bpftool says of program and link.
    let done = bench.json(&["load", "r0", &object]);
    let (id, link) = (done["attachment"]["program"]["id"].to_string(), done["attachment"]["link_id"].to_string());
    let net = bpftool(&bench, &["net", "show", "dev", "r0"]);
    assert_eq!(net[0]["xdp"][0]["id"].to_string(), id, "{net}");
    let shown = bpftool(&bench, &["link", "show", "id", &link]);
    let ours = &bench.json(&["link", "show", "id", &link])["links"][0];
    for field in ["id", "type", "prog_id"] {
        assert_eq!(ours[field], shown[field], "{field}: {shown}");
    }
    bench.xway(&["link", "pin", "id", &link, "/sys/fs/bpf/held"]).exits(0);
    assert_eq!(bench.json(&["link", "show", "pinned", "/sys/fs/bpf/held"])["links"][0]["id"].to_string(), link);
    bench.xway(&["prog", "pin", "id", &id, "/sys/fs/bpf/jumper"]).exits(0);
    assert_eq!(bpftool(&bench, &["prog", "show", "pinned", "/sys/fs/bpf/jumper"])["id"].to_string(), id);

    // A program behind an index, by its pin; the trace log; how often it runs.
    let jumps = bench.map_of(&done["attachment"], "jumps");
    // Without a pin Linux empties the array when the command that wrote into it ends.
    bench.xway(&["map", "pin", "id", &jumps, "/sys/fs/bpf/jumps"]).exits(0);
    bench.xway(&["map", "update", "id", &jumps, "key", "1", "value", "pinned", "/sys/fs/bpf/dropper"]).exits(0);
    assert_eq!(bench.pings(), 0);
    let entry = bench.json(&["map", "lookup", "id", &jumps, "key", "1"]);
    assert_eq!(entry["value"]["prog_id"], theirs["id"], "{entry}");
    bench.xway(&["map", "delete", "id", &jumps, "key", "1"]).exits(0);
    assert_eq!(bench.pings(), 1);
    let profile = bench.json(&["prog", "profile", "id", &id, "duration", "0.05"]);
    assert!(profile["runs"].is_u64(), "{profile}");
    assert_eq!(profile["program"]["id"].to_string(), id);

    // Types, word for word.
    for source in [&["file", object.as_str()][..], &["prog", "id", &id]] {
        let ours = bench.xway(&[&["btf", "dump"], source].concat()).exits(0).out;
        let theirs = bench.run("bpftool", &[&["btf", "dump"], source].concat()).exits(0).out;
        assert!(ours == theirs, "{source:?}:\n{}", first_difference(&ours, &theirs));
    }
    bench.xway(&["unload", "r0", "-a"]).exits(0);
}

fn first_difference(ours: &str, theirs: &str) -> String {
    let mut lines = ours.lines().zip(theirs.lines()).enumerate();
    match lines.find(|(_, (a, b))| a != b) {
        Some((at, (a, b))) => format!("line {}:\n  ours   {a}\n  theirs {b}", at + 1),
        None => format!("{} and {} lines", ours.lines().count(), theirs.lines().count()),
    }
}

#[test]
fn events_come_out_of_both_kinds_of_ring() {
    if !ready("kernel_verbs::events_come_out_of_both_kinds_of_ring") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("verbevents", true));
    let text = "struct { __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); __type(key, int); __type(value, int); } perf SEC(\".maps\");
        struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } ring SEC(\".maps\");
        SEC(\"xdp\") int teller(struct xdp_md *ctx) {
            long word = 0x1122334455667788;
            bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, &word, sizeof(word));
            bpf_ringbuf_output(&ring, &word, sizeof(word), 0);
            return 2; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let object = compiled(&dir, "teller", text, &[]);
    let done = bench.json(&["load", "r0", &object]);
    for (map, size) in [("ring", 8), ("perf", 12)] {
        let id = bench.map_of(&done["attachment"], map);
        // The reader is there before the packets; it ends with the first event.
        let events = std::thread::scope(|scope| {
            let reader = scope.spawn(|| bench.json(&["map", "event_pipe", "id", &id, "count", "1", "timeout", "20"]));
            while !reader.is_finished() {
                bench.pings();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            reader.join().unwrap()
        });
        let event = &events["events"][0];
        assert_eq!(event["size"], size, "{map}: {events}");
        assert!(event["data"].as_str().unwrap().starts_with("88 77 66 55 44 33 22 11"), "{map}: {event}");
    }
    let blacklist = sample(&dir, "blacklist");
    let other = bench.json(&["load", "r0", &blacklist, "--force"]);
    let id = bench.map_of(&other["attachment"], "verdicts");
    bench.xway(&["map", "event_pipe", "id", &id]).exits(2).says("events are not read from a map of type");
}

#[test]
fn a_program_in_the_kernel_shows_its_code() {
    if !ready("kernel_verbs::a_program_in_the_kernel_shows_its_code") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("verbdump", false));
    let object = sample(&dir, "blacklist");
    let id = bench.json(&["load", "r0", &object])["attachment"]["program"]["id"].to_string();
    let xlated = bench.json(&["prog", "dump", "xlated", "id", &id]);
    let info = &bench.json(&["prog", "show", "id", &id])["programs"][0];
    let bytes = info["bytes_xlated"].as_u64().unwrap();
    assert_eq!(xlated["insns"].as_u64(), Some(bytes / 8), "{info}");
    assert_eq!(uncounted(&xlated["program"]), uncounted(info));
    let text = bench.xway(&["prog", "dump", "xlated", "id", &id]).exits(0).out;
    assert!(text.contains("\n   0: (") && text.contains(") exit"), "{text}");
    if has_command("bpftool") {
        // The same number of instructions, and the same functions of the kernel are called.
        let theirs = bench.run("bpftool", &["prog", "dump", "xlated", "id", &id]).exits(0).out;
        let called = theirs.lines().find_map(|l| Some(l.split_once("call bpf_")?.1.split('#').next()?.to_owned()));
        if let Some(name) = called {
            assert!(text.contains(&format!("bpf_{}", name.trim())), "bpf_{name} is not in:\n{text}");
        }
    }
    if info["jited"] == true {
        let jited = bench.json(&["prog", "dump", "jited", "id", &id]);
        assert_eq!(jited["bytes"], info["bytes_jited"], "{jited}");
    }
    bench.xway(&["prog", "dump", "ir", "id", &id]).exits(2).says("no intermediate form");
    bench.xway(&["prog", "dump", "xlated", &object, "more"]).exits(2).says("more: not expected here");
}

#[test]
fn by_the_name_of_xdp_loader_it_is_that_tool() {
    if !ready("kernel_verbs::by_the_name_of_xdp_loader_it_is_that_tool") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("verbloader", true));
    let loader = dir.arg("xdp-loader");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_xway"), &loader).unwrap();
    let pass = compiled(&dir, "one", "SEC(\"xdp\") int one(struct xdp_md *ctx) { return 2; }", &[]);
    let drop = compiled(&dir, "two", "SEC(\"xdp\") int two(struct xdp_md *ctx) { return 1; }", &[]);
    let run = |args: &[&str]| bench.run(&loader, args);
    let lines = |args: &[&str]| -> Vec<String> { run(args).exits(0).out.lines().map(str::to_owned).collect() };

    // Where nothing is loaded the original says the same, letter by letter.
    let theirs = |args: &[&str]| has_command("xdp-loader").then(|| bench.run("xdp-loader", args));
    let ours = run(&["status", "r0"]).exits(0).out;
    if let Some(theirs) = theirs(&["status", "r0"]) {
        assert_eq!(ours.trim(), theirs.out.trim());
    }
    for args in [&["nonsense"][..], &["unload", "r0"], &["unload", "r0", "-a"], &["load", "nowhere", &pass]] {
        let ran = run(args).exits(1);
        if let Some(theirs) = theirs(args) {
            assert_eq!((ran.code, ran.err.trim()), (theirs.code, theirs.err.trim()), "{args:?}");
        }
    }

    // What goes wrong when something is loaded has its error number, below zero.
    let missing = dir.arg("missing.o");
    for args in
        [&[][..], &["load", "r0", &missing], &["load", "r0", &drop, "-n", "three"], &["load", "-m", "hw", "r0", &drop]]
    {
        let ran = run(args);
        if let Some(theirs) = theirs(args) {
            assert_eq!(ran.code, theirs.code, "{args:?}: {}", ran.err);
        }
    }
    // The modes have their names there.
    let refused = run(&["load", "-m", "hw", "r0", &drop]).err;
    assert!(refused.contains("-m skb") && !refused.contains("-m generic"), "{refused}");

    run(&["load", "-m", "skb", "-P", "60", "r0", &drop]).exits(0);
    run(&["load", "-m", "skb", "-P", "20", "-A", "XDP_PASS,XDP_TX", "r0", &pass]).exits(0);
    let shown = lines(&["status", "r0"]);
    // Under this name scripts look for what others hang on, be it the ecosystem's or ours.
    assert!(shown[4].starts_with("r0                     xdp_dispatcher    skb"), "{shown:?}");
    assert!(shown[5].starts_with(" =>              20    one  "), "{shown:?}");
    assert!(shown[5].ends_with("XDP_PASS,XDP_TX"), "{shown:?}");
    assert!(shown[6].starts_with(" =>              60    two  "), "{shown:?}");
    assert_eq!(bench.pings(), 0, "the second one drops what the first one passed on");
    let id = shown[6].split_whitespace().nth(3).unwrap().to_owned();
    run(&["unload", "r0", "-i", &id]).exits(0);
    assert_eq!(lines(&["status", "r0"]).len(), shown.len() - 1);
    run(&["unload", "r0", "--all"]).exits(0);
    assert_eq!(run(&["status", "r0"]).exits(0).out, ours);
    if !xway_testkit::kernel_at_least(6, 3) {
        let refused = run(&["features", "r0"]).exits(1);
        assert!(refused.err.contains("cannot be asked"), "{}", refused.err);
        return;
    }
    let features = lines(&["features", "r0"]);
    assert!(features.iter().any(|l| l.starts_with("NETDEV_XDP_ACT_BASIC:") && l.ends_with("yes")), "{features:?}");
    run(&["clean"]).exits(0);
}
