//! Linux's own hook from the command line: attach, look, change, take away; with real packets, and `bpftool` as witness.

mod common;

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Dir, Ran, compiled, sample};
use serde_json::{Value, json};
use xway_testkit::{Lab, Namespace, Needs, has_command, traffic};

const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 2);

fn ready(name: &str) -> bool {
    let needs = Needs::of(&format!("xway::kernel_hook::{name}")).root().command("ip").command("unshare");
    needs.command("nsenter").clang().met()
}

/// Two hosts on one wire; the commands run at the right one, in a mount namespace of their own, with or without a BPF file
/// system that nobody else sees.
struct Bench {
    _lab: Lab,
    left: Namespace,
    right: Namespace,
    mounts: Child,
}

impl Bench {
    fn new(label: &str, bpffs: bool) -> Bench {
        let lab = Lab::new(label).unwrap();
        let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
        lab.veth(&left, "l0", &right, "r0").unwrap();
        left.address("l0", "10.9.1.1/24").unwrap();
        right.address("r0", &format!("{RIGHT}/24")).unwrap();
        let mount = if bpffs { "mount -t bpf bpf /sys/fs/bpf" } else { "mount -t tmpfs none /sys/fs/bpf" };
        // Lives until its standard input closes.
        let mut mounts = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &format!("{mount} && echo ready && exec cat")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(mounts.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Bench { _lab: lab, left, right, mounts }
    }

    /// A command at the right host.
    fn run(&self, program: &str, args: &[&str]) -> Ran {
        let out = Command::new("nsenter")
            .arg(format!("--mount=/proc/{}/ns/mnt", self.mounts.id()))
            .arg(format!("--net=/run/netns/{}", self.right.name()))
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Ran {
            code: out.status.code().unwrap(),
            out: String::from_utf8(out.stdout).unwrap(),
            err: String::from_utf8(out.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn xway(&self, args: &[&str]) -> Ran {
        self.run(env!("CARGO_BIN_EXE_xway"), args)
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        self.xway(&[args, &["-j"]].concat()).exits(0).json()
    }

    /// Id of the map with this name that an attached program uses.
    fn map_of(&self, attached: &Value, name: &str) -> String {
        let ids = attached["program"]["map_ids"].as_array().unwrap();
        let named = |id: &String| self.json(&["map", "show", "id", id])["maps"][0]["name"] == name;
        ids.iter().map(Value::to_string).find(named).unwrap()
    }

    /// Echo replies to one request.
    fn pings(&self) -> u16 {
        self.left.enter(|| traffic::ping(RIGHT, 1)).unwrap().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(self.mounts.stdin.take());
        let _ = self.mounts.wait();
    }
}

#[test]
fn one_program_in_both_modes_over_netlink() {
    if !ready("one_program_in_both_modes_over_netlink") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookmode", false));
    let object = sample(&dir, "blacklist");
    for mode in ["native", "generic"] {
        let done = bench.json(&["load", "r0", &object, "-m", mode]);
        let attached = &done["attachment"];
        assert_eq!((attached["mode"].as_str(), attached["via"].as_str()), (Some(mode), Some("netlink")), "{done}");
        assert_eq!(bench.pings(), 1, "{mode}: nothing is listed yet");
        let map = bench.map_of(attached, "prefixes");
        // A person's words and bpftool's bytes.
        let key = r#"{"length": 32, "address": "ip:10.9.1.1"}"#;
        bench.xway(&["map", "update", "id", &map, "key", key, "value", "0"]).exits(0);
        assert_eq!(bench.pings(), 0, "{mode}: the rule drops");
        let drops = bench.json(&["map", "lookup", "id", &map, "key", "hex", "20", "0", "0", "0", "0a", "9", "1", "1"]);
        assert_eq!(drops["value"], 1, "{drops}");
        let status = bench.json(&["status", "r0", "--measure", "0.01"]);
        assert_eq!(status["attachments"][0]["program"], attached["program"], "{status}");
        assert!(status["attachments"][0]["packets_per_second"].is_number());
        bench.xway(&["map", "delete", "id", &map, "key", key]).exits(0);
        assert_eq!(bench.pings(), 1, "{mode}: the rule is gone");
        agrees_with_bpftool(&bench, attached);
        bench.xway(&["unload", "r0", "-a"]).exits(0);
        assert_eq!(bench.json(&["status"])["attachments"], json!([]));
    }
}

/// What we say about program and maps, bpftool says too.
fn agrees_with_bpftool(bench: &Bench, attached: &Value) {
    if !has_command("bpftool") {
        return;
    }
    let id = attached["program"]["id"].to_string();
    let said = bench.run("bpftool", &["-j", "prog", "show", "id", &id]).exits(0);
    let theirs: Value = serde_json::from_str(&said.out).unwrap();
    let ours = &bench.json(&["prog", "show", "id", &id])["programs"][0];
    for field in ["id", "type", "name", "tag", "gpl_compatible", "uid", "bytes_xlated", "jited", "map_ids", "btf_id"] {
        assert_eq!(ours[field], theirs[field], "{field}");
    }
    for id in ours["map_ids"].as_array().unwrap().iter().map(Value::to_string) {
        let theirs: Value =
            serde_json::from_str(&bench.run("bpftool", &["-j", "map", "show", "id", &id]).exits(0).out).unwrap();
        let ours = &bench.json(&["map", "show", "id", &id])["maps"][0];
        for field in ["id", "type", "name", "flags", "bytes_key", "bytes_value", "max_entries", "bytes_memlock"] {
            assert_eq!(ours[field], theirs[field], "map {id}: {field}");
        }
        let entries = |doc: &Value| doc.as_array().map_or(0, Vec::len);
        let dump: Value = serde_json::from_str(&bench.run("bpftool", &["-j", "map", "dump", "id", &id]).out).unwrap();
        assert_eq!(entries(&bench.json(&["map", "dump", "id", &id])["entries"]), entries(&dump), "map {id}");
    }
}

#[test]
fn links_and_shared_maps_outlive_the_command() {
    if !ready("links_and_shared_maps_outlive_the_command") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hooklink", true));
    let object = sample(&dir, "blacklist");
    let pins = ["-p", "/sys/fs/bpf/lists"];
    let first = bench.json(&[&["load", "r0", &object], &pins[..]].concat());
    assert_eq!(first["attachment"]["via"], "link", "{first}");
    assert_eq!(first["pinned"].as_array().unwrap().len(), 3, "{first}");
    let key = r#"{"length": 24, "address": "ip:10.9.1.0"}"#;
    bench.xway(&["map", "update", "pinned", "/sys/fs/bpf/lists/prefixes", "key", key, "value", "0"]).exits(0);
    assert_eq!(bench.pings(), 0);

    // Somebody is there: refused, unless that is the one who is expected.
    let id = first["attachment"]["program"]["id"].to_string();
    bench.xway(&["load", "r0", &object]).exits(1).says("is attached");
    bench.xway(&["load", "r0", &object, "--replace", "1"]).exits(1).says("is attached");
    let second = bench.json(&[&["load", "r0", &object, "--replace", &id], &pins[..]].concat());
    assert_eq!(second["replaced"].to_string(), id);
    assert_eq!(second["shared"].as_array().unwrap().len(), 3, "{second}");
    assert_eq!(second["attachment"]["link_id"], first["attachment"]["link_id"], "replaced in the link");
    assert_eq!(bench.pings(), 0, "the rule is in the shared map");
    let third = bench.json(&[&["load", "r0", &object, "--replace", "blacklist"], &pins[..]].concat());

    let link = third["attachment"]["link_id"].to_string();
    let shown = &bench.json(&["link", "show", "id", &link])["links"][0];
    assert_eq!((shown["type"].as_str(), shown["devname"].as_str()), (Some("xdp"), Some("r0")), "{shown}");
    bench.xway(&["link", "detach", "id", &link]).exits(0);
    assert_eq!(bench.pings(), 1, "detached");
    let cleaned = bench.json(&["clean"]);
    assert_eq!(cleaned["removed"], json!([format!("/sys/fs/bpf/xway/links/{link}")]));

    // A map of another shape under the same name is not shared.
    let other =
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, int); }
        prefixes SEC(\".maps\");
        SEC(\"xdp\") int other(struct xdp_md *ctx) { int k = 0; return bpf_map_lookup_elem(&prefixes, &k) ? 2 : 1; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let other = compiled(&dir, "other", other, &[]);
    let refused = bench.xway(&[&["load", "r0", &other], &pins[..]].concat()).exits(1);
    refused.says("the one pinned at /sys/fs/bpf/lists/prefixes is another kind of map");
}

#[test]
fn a_refusal_says_why_and_what_to_try() {
    if !ready("a_refusal_says_why_and_what_to_try") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookno", false));
    let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
    let bad = "SEC(\"xdp\") int peek(struct xdp_md *ctx) { char *data = (void *)(long)ctx->data;\n return data[0]; }";
    let bad = compiled(&dir, "bad", bad, &[]);
    bench.xway(&["load", "nowhere", &pass]).exits(1).says("nowhere: no such interface");
    bench.xway(&["unload", "r0", "-a"]).exits(1).says("nothing is attached");
    bench.xway(&["load", "r0", &pass, "--replace", "7"]).exits(1).says("nothing is attached");
    bench
        .xway(&["load", "r0", &pass, "-m", "offload"])
        .exits(4)
        .says("running programs in the device itself is not supported");
    // The kernel's verdict, with the line in the source first.
    let refused = bench.xway(&["load", "r0", &bad]).exits(1);
    assert!(
        refused.err.contains("return data[0]") && refused.err.contains("invalid access to packet"),
        "{}",
        refused.err
    );
    // One mode excludes the other, and auto follows the one that is there.
    bench.xway(&["load", "r0", &pass, "-m", "generic"]).exits(0);
    bench.xway(&["load", "r0", &pass, "-m", "native"]).exits(1).says("take it away first");
    let auto = bench.json(&["load", "r0", &pass, "--force"]);
    assert_eq!(auto["mode"]["effective"], "generic", "{auto}");
    assert!(auto["mode"]["reason"].as_str().is_some_and(|r| r.contains("exclude each other")), "{auto}");
    // The loopback device has no native hook: auto says what it did instead.
    let auto = bench.json(&["load", "lo", &pass]);
    assert_eq!(
        (auto["mode"]["requested"].as_str(), auto["mode"]["effective"].as_str()),
        (Some("auto"), Some("generic"))
    );
    assert_eq!(auto["mode"]["reason"], "the driver has no native XDP", "{auto}");
    bench.xway(&["unload", "lo", "-a"]).exits(0);
    bench.xway(&["map", "lookup", "no_such_map", "key", "1"]).exits(1).says("no map with name no_such_map");
    let text = bench.xway(&["features", "r0"]).exits(0).out;
    assert!(text.contains("veth") && text.contains("native XDP:  basic"), "{text}");
}

#[test]
fn a_hundred_replacements_leak_nothing() {
    if !ready("a_hundred_replacements_leak_nothing") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookleak", true));
    let pass =
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, int); }
        leaky SEC(\".maps\");
        SEC(\"xdp\") int leakless(struct xdp_md *ctx) { int k = 0; return bpf_map_lookup_elem(&leaky, &k) ? 2 : 1; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let pass = compiled(&dir, "leak", pass, &[]);
    let mut last = String::new();
    for _ in 0..100 {
        let done = bench.json(&["load", "r0", &pass, "--force"]);
        last = done["attachment"]["program"]["id"].to_string();
    }
    assert_eq!(bench.pings(), 1);
    // The kernel frees what nobody holds a little later.
    let left = |kind: &str, name: &str| -> Vec<String> {
        let ran = bench.xway(&[kind, "show", "name", name, "-j"]);
        let list = if kind == "prog" { "programs" } else { "maps" };
        ran.json()[list].as_array().into_iter().flatten().map(|o| o["id"].to_string()).collect()
    };
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}: {:?} {:?}", left("prog", "leakless"), left("map", "leaky"));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until("only the last one is left", &|| {
        left("prog", "leakless") == [last.as_str()] && left("map", "leaky").len() == 1
    });
    bench.xway(&["unload", "r0", "-a"]).exits(0);
    until("nothing is left", &|| left("prog", "leakless").is_empty() && left("map", "leaky").is_empty());
}
