//! Linux's own hook from the command line: attach, look, change, take away; with real packets, and `bpftool` as witness.

mod common;

use std::time::{Duration, Instant};

use common::wire::{Bench, ready, uncounted};
use common::{Dir, compiled, sample};
use serde_json::{Value, json};
use xway_kernel::ObjectKind;
use xway_testkit::has_command;

#[test]
fn one_program_in_both_modes_over_netlink() {
    if !ready("kernel_hook::one_program_in_both_modes_over_netlink") {
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
        assert_eq!(uncounted(&status["attachments"][0]["program"]), uncounted(&attached["program"]), "{status}");
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
    if !ready("kernel_hook::links_and_shared_maps_outlive_the_command") {
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
    if !ready("kernel_hook::a_refusal_says_why_and_what_to_try") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookno", false));
    let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
    let bad = "SEC(\"xdp\") int peek(struct xdp_md *ctx) { char *data = (void *)(long)ctx->data;\n return data[0]; }";
    let bad = compiled(&dir, "bad", bad, &[]);
    bench.xway(&["load", "nowhere", &pass]).exits(4).says("nowhere: no such interface");
    bench.xway(&["unload", "r0", "-a"]).exits(1).says("nothing is attached");
    bench.xway(&["load", "r0", &pass, "--replace", "7"]).exits(1).says("nothing is attached");
    // The kernel refuses what is to be loaded for this device (`prog_ifindex`) where it is loaded: a program that was loaded for no
    // device would come as far as the interface, and be refused there.
    let offload = bench.xway(&["load", "r0", &pass, "-m", "offload"]).exits(4);
    assert!(offload.err.contains("(program pass: the kernel refused it with EINVAL"), "{}", offload.err);
    offload.says("its driver (veth) has no hw-offload; the kernel lists for it: basic, ");
    // Nor does it make the device's map (`map_ifindex`).
    let offload = bench.xway(&["load", "r0", &sample(&dir, "blacklist"), "-m", "offload"]).exits(4);
    assert!(offload.err.contains("creating it failed with EINVAL"), "{}", offload.err);
    bench.xway(&["load", "r0", &pass, "-m", "offload", "-P", "5"]).exits(4);
    assert_eq!(bench.json(&["status", "r0"])["attachments"], json!([]));
    // The kernel's verdict, with the line in the source first.
    let refused = bench.xway(&["load", "r0", &bad]).exits(1);
    assert!(
        refused.err.contains("return data[0]") && refused.err.contains("invalid access to packet"),
        "{}",
        refused.err
    );
    // One mode excludes the other, and auto follows the one that is there.
    bench.xway(&["load", "r0", &pass, "-m", "generic"]).exits(0);
    bench.xway(&["load", "r0", &pass, "-m", "native"]).exits(1).says("replace it in whichever mode: --force");
    bench
        .xway(&["load", "r0", &pass, "-m", "native", "--replace", "pass"])
        .exits(1)
        .says("nothing is attached in mode");
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
    let known = match xway_testkit::kernel_at_least(6, 3) {
        true => "native XDP:  basic",
        false => "the running kernel cannot be asked",
    };
    assert!(text.contains("veth") && text.contains(known), "{text}");
    // A port and a program: nothing is missing on a veth.
    let pair = bench.json(&["features", "r0", &pass]);
    assert_eq!(pair["program"]["missing"], json!([]), "{pair}");
    // Each side by itself: a program without a port, every interface without a name.
    let alone = bench.json(&["features", &pass]);
    assert_eq!(alone["programs"][0]["needs"], pair["program"]["needs"], "{alone}");
    assert!(alone["programs"][0].get("missing").is_none(), "{alone}");
    let text = bench.xway(&["features", &pass]).exits(0).out;
    assert!(text.contains("needs:") && !text.contains("missing:"), "{text}");
    let all = bench.json(&["features"]);
    let names: Vec<&str> = all["ports"].as_array().unwrap().iter().filter_map(|p| p["interface"].as_str()).collect();
    assert!(names.contains(&"lo") && names.contains(&"r0"), "{names:?}");
    bench.xway(&["features", "r0", "-n", "pass"]).exits(2).says("there is none");
}

#[test]
fn force_replaces_whatever_is_there() {
    if !ready("kernel_hook::force_replaces_whatever_is_there") {
        return;
    }
    for bpffs in [true, false] {
        let (dir, bench) = (Dir::new(), Bench::new("hookforce", bpffs));
        let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
        let drop = compiled(&dir, "drop", "SEC(\"xdp\") int drops(struct xdp_md *ctx) { return 1; }", &[]);
        assert_eq!(bench.pings(), 1, "and the hosts know each other before anything is dropped");
        let mut last = bench.json(&["load", "r0", &pass, "-m", "native"]);
        // The same mode, the other one, and back: what is there goes, and the new one runs.
        for (object, mode, replies) in
            [(&drop, "native", 0), (&pass, "generic", 1), (&drop, "native", 0), (&pass, "generic", 1)]
        {
            let done = bench.json(&["load", "r0", object, "-m", mode, "--force"]);
            assert_eq!(done["replaced"], last["attachment"]["program"]["id"], "{done}");
            assert_eq!(done["mode"]["effective"], mode, "{done}");
            assert_eq!(done["attachment"]["via"], if bpffs { "link" } else { "netlink" }, "{done}");
            assert_eq!(bench.pings(), replies, "{mode}");
            let here = bench.json(&["status", "r0", "--measure", "0"])["attachments"].clone();
            assert_eq!(here.as_array().map(Vec::len), Some(1), "{here}");
            // Linux has no step for both: it is said.
            let said = done["warnings"].to_string().contains("Linux has one mode at a time");
            assert_eq!(said, last["mode"]["effective"] != mode, "{done}");
            last = done;
        }
        // One of several has a priority, and is replaced by its name.
        bench.xway(&["load", "r0", &pass, "--force", "-P", "5"]).exits(2);
        // Where the new one is refused the old one runs again: the other end sends packets that are too long for native mode.
        bench.left.ip(&["link", "set", "l0", "mtu", "9000"]).unwrap();
        let refused = bench.xway(&["load", "r0", &drop, "-m", "native", "--force"]).exits(4);
        refused.says("was taken away for it and runs again in mode generic");
        assert_eq!(bench.pings(), 1);
        let here = bench.json(&["status", "r0", "--measure", "0"])["attachments"].clone();
        assert_eq!(here[0]["program"]["id"], last["attachment"]["program"]["id"], "{here}");
        bench.xway(&["unload", "r0", "-a"]).exits(0);
        assert_eq!(bench.json(&["clean"])["removed"], json!([]), "no pin is left");
    }
}

#[test]
fn a_chain_is_replaced_too() {
    if !ready("kernel_hook::a_chain_is_replaced_too") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookforced", true));
    let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
    for priority in ["10", "20"] {
        bench.xway(&["load", "r0", &pass, "-m", "native", "-P", priority]).exits(0);
    }
    let done = bench.json(&["load", "r0", &pass, "-m", "generic", "--force"]);
    assert_eq!(done["attachment"]["priority"], Value::Null, "{done}");
    assert_eq!(bench.json(&["status", "r0", "--measure", "0"])["attachments"].as_array().map(Vec::len), Some(1));
    assert_eq!(bench.json(&["clean"])["removed"], json!([]), "the chain left nothing");
}

#[test]
fn a_chain_that_is_replaced_is_taken_apart() {
    if !ready("kernel_hook::a_chain_that_is_replaced_is_taken_apart") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookapart", true));
    let text =
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, int); }
        apart SEC(\".maps\");
        SEC(\"xdp\") int pass(struct xdp_md *ctx) { int k = 0; return bpf_map_lookup_elem(&apart, &k) ? 2 : 1; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let pass = compiled(&dir, "pass", text, &[]);
    let find = "find /sys/fs/bpf/xway/chains /sys/fs/bpf/xdp -mindepth 1 2>/dev/null || true";
    let pins = || bench.run("sh", &["-c", find]).exits(0).out;
    let (mut programs, mut maps) = (Vec::new(), Vec::new());
    for mode in ["native", "generic", "native"] {
        for chained in [&["-P", "3"][..], &["-P", "4"], &["--force"]] {
            let done = bench.json(&[&["load", "r0", &pass, "-m", mode], chained].concat());
            let program = &done["attachment"]["program"];
            programs.extend(program["id"].as_u64());
            maps.extend(program["map_ids"].as_array().unwrap().iter().filter_map(Value::as_u64));
            let root = bench.run("ls", &["/sys/fs/bpf/xway/chains"]).out;
            programs.extend(root.lines().filter_map(|id| id.parse::<u64>().ok()));
            assert_eq!(pins().is_empty(), chained == ["--force"], "{mode}: {}", pins());
        }
        assert_eq!(bench.pings(), 1, "{mode}");
        bench.xway(&["unload", "r0", "-a"]).exits(0);
        assert_eq!(pins(), "", "{mode}");
    }
    // The kernel frees what nobody holds a little later. Asking for the next number opens nothing.
    let deadline = Instant::now() + Duration::from_secs(10);
    let left = |kind, made: &[u64]| -> Vec<u64> {
        let there = xway_kernel::ids(kind).unwrap();
        made.iter().copied().filter(|id| there.iter().any(|other| u64::from(*other) == *id)).collect()
    };
    loop {
        let left = (left(ObjectKind::Program, &programs), left(ObjectKind::Map, &maps));
        if left.0.is_empty() && left.1.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "programs and maps {left:?} are still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_clean_takes_what_a_chain_left_whose_interface_has_gone() {
    if !ready("kernel_hook::one_clean_takes_what_a_chain_left_whose_interface_has_gone") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookgone", true));
    let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
    bench.xway(&["load", "r0", &pass, "-P", "10"]).exits(0);
    bench.run("ip", &["link", "del", "r0"]).exits(0);
    let told = bench.json(&["clean", "--dry-run"])["removed"].clone();
    assert_eq!(bench.json(&["clean"])["removed"], told);
    let find = "find /sys/fs/bpf/xway/links /sys/fs/bpf/xway/chains /sys/fs/bpf/xdp -mindepth 1 -name '[0-9d]*' 2>/dev/null || true";
    assert_eq!(bench.run("sh", &["-c", find]).exits(0).out, "", "{told}");
    assert_eq!(bench.json(&["clean"])["removed"], json!([]));
}

#[test]
fn an_mtu_that_is_too_large_is_named_with_its_limit_and_the_command() {
    if !ready("kernel_hook::an_mtu_that_is_too_large_is_named_with_its_limit_and_the_command") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookmtu", false));
    let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
    // It is the other end's that counts: what it sends comes in here.
    bench.left.ip(&["link", "set", "l0", "mtu", "9000"]).unwrap();
    let auto = bench.json(&["load", "r0", &pass]);
    let choice = ["requested", "effective"].map(|field| auto["mode"][field].as_str().unwrap());
    assert_eq!(choice, ["auto", "generic"], "{auto}");
    let reason = auto["mode"]["reason"].as_str().unwrap();
    let command = format!("nsenter --net=/run/netns/{} ip link set l0 mtu 3506", bench.left.name());
    for part in ["ERANGE", "MTU 9000 of l0, the other end,", "the limit is 3506", &command, "xdp.frags"] {
        assert!(reason.contains(part), "{part} is not in: {reason}");
    }
    bench.xway(&["unload", "r0", "-a"]).exits(0);
    bench.xway(&["load", "r0", &pass, "-m", "native"]).exits(4).says(&command);
    let doctor = bench.xway(&["doctor", "r0"]).out;
    assert!(doctor.contains("9000 of l0, the other end") && doctor.contains(&command), "{doctor}");
    // The limit is the kernel's: one more is refused, and the command mends it.
    bench.left.ip(&["link", "set", "l0", "mtu", "3507"]).unwrap();
    bench.xway(&["load", "r0", &pass, "-m", "native"]).exits(4).says("MTU 3507 of l0");
    assert!(bench.run("sh", &["-c", &command]).exits(0).err.is_empty());
    bench.xway(&["load", "r0", &pass, "-m", "native"]).exits(0);
}

#[test]
fn a_directory_that_nothing_is_pinned_in_is_told_of() {
    if !ready("kernel_hook::a_directory_that_nothing_is_pinned_in_is_told_of") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookpins", true));
    let pass = compiled(&dir, "pass", "SEC(\"xdp\") int pass(struct xdp_md *ctx) { return 2; }", &[]);
    let pins = ["-p", "/sys/fs/bpf/none"];
    let told = "nothing is pinned in /sys/fs/bpf/none: the object declares no maps";
    let text = bench.xway(&[&["load", "r0", &pass], &pins[..]].concat()).exits(0).out;
    assert!(text.contains(&format!("  note: {told}\n")), "{text}");
    let done = bench.json(&[&["load", "r0", &pass, "--force"], &pins[..]].concat());
    assert_eq!((&done["pinned"], &done["warnings"]), (&json!([]), &json!([told])), "{done}");
    // As with xdp-loader, no empty directory is left.
    bench.run("test", &["-e", "/sys/fs/bpf/none"]).exits(1);
    // Where there is something to pin, that is what is said.
    let lists = bench.json(&[&["load", "r0", &sample(&dir, "blacklist"), "--force"], &pins[..]].concat());
    assert_eq!((lists["pinned"].as_array().map(Vec::len), &lists["warnings"]), (Some(3), &json!([])), "{lists}");
}

#[test]
fn a_hundred_replacements_leak_nothing() {
    if !ready("kernel_hook::a_hundred_replacements_leak_nothing") {
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

/// Counts under its own number in a shared map, and returns what stands there for it.
fn counter(dir: &Dir, name: &str, verdict: u32) -> String {
    let text = format!(
        "struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, long);
            __uint(pinning, LIBBPF_PIN_BY_NAME); }} {name}_seen SEC(\".maps\");
        static __attribute__((noinline)) int add(struct xdp_md *ctx, long by) {{
            int k = 0; long *n = bpf_map_lookup_elem(&{name}_seen, &k);
            if (n) __sync_fetch_and_add(n, by);
            return ctx->data < ctx->data_end ? {verdict} : 0; }}
        SEC(\"xdp\") int {name}(struct xdp_md *ctx) {{ return add(ctx, 1); }}
        char _license[] SEC(\"license\") = \"GPL\";"
    );
    compiled(dir, name, &text, &[])
}

#[test]
fn several_programs_run_behind_one_another() {
    if !ready("kernel_hook::several_programs_run_behind_one_another") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hookchain", true));
    let (early, late) = (counter(&dir, "early", 2), counter(&dir, "late", 2));
    let (drops, alone) = (counter(&dir, "drops", 1), counter(&dir, "alone", 2));
    let seen = |name: &str| -> u64 {
        let map = format!("/sys/fs/bpf/{name}_seen");
        bench.json(&["map", "lookup", "pinned", &map, "key", "0"])["value"].as_u64().unwrap()
    };
    // How often each one ran for one echo request that was let through, or not.
    let run = |names: &[&str], through: u16| -> Vec<bool> {
        let before: Vec<u64> = names.iter().map(|n| seen(n)).collect();
        assert_eq!(bench.pings(), through);
        names.iter().zip(before).map(|(n, before)| seen(n) > before).collect()
    };
    let id = |done: &Value| done["attachment"]["program"]["id"].to_string();

    let second = bench.json(&["load", "r0", &late, "-P", "60"]);
    // Never silently: what other tools would do, what was done, and why.
    assert_eq!(second["chain"]["requested"], "dispatcher", "{second}");
    match xway_kernel::takes_extensions() {
        Ok(()) => assert_eq!(second["chain"]["effective"], "dispatcher", "{second}"),
        Err(_) => {
            assert_eq!(second["chain"]["effective"], "tail calls", "{second}");
            assert!(second["chain"]["reason"].as_str().unwrap().contains("extension programs"), "{second}");
        }
    }
    let first = bench.json(&["load", "r0", &early, "-P", "10", "-A", "pass,tx"]);
    assert_eq!(run(&["early", "late"], 1), [true, true]);
    let status = bench.json(&["status", "r0"]);
    let order: Vec<_> =
        status["attachments"].as_array().unwrap().iter().map(|a| a["program"]["name"].clone()).collect();
    assert_eq!(order, ["early", "late"], "{status}");
    assert_eq!(status["attachments"][0]["priority"], 10);
    assert_eq!(status["attachments"][0]["chain_on"], serde_json::json!(["PASS", "TX"]), "{status}");

    // A verdict that is not chained on ends it.
    let third = bench.json(&["load", "r0", &drops, "-P", "30"]);
    assert_eq!(run(&["early", "drops", "late"], 0), [true, true, false]);
    bench.xway(&["unload", "r0", "-i", &id(&third)]).exits(0);
    assert_eq!(run(&["early", "late"], 1), [true, true]);
    // One that is chained on does not, but the last verdict rules.
    let again = bench.json(&["load", "r0", &drops, "-P", "30", "-A", "drop"]);
    assert_eq!(run(&["early", "drops", "late"], 1), [true, true, true]);
    // Replacing one member, by name.
    let replaced = bench.json(&["load", "r0", &drops, "-P", "30", "--replace", "drops"]);
    assert_eq!(replaced["replaced"].to_string(), id(&again), "{replaced}");
    assert_eq!(run(&["early", "drops", "late"], 0), [true, true, false]);
    for gone in [&replaced, &first, &second] {
        bench.xway(&["unload", "r0", "-i", &id(gone)]).exits(0);
    }
    assert_eq!(bench.json(&["status"])["attachments"], json!([]), "the chain goes with its last member");
    assert_eq!(bench.json(&["clean"])["removed"], json!([]));

    // A program that was loaded alone can be the last one.
    bench.xway(&["load", "r0", &alone]).exits(0);
    bench.xway(&["load", "r0", &early, "-P", "70"]).exits(1).says("was loaded alone, so nothing can run behind it");
    assert_eq!(run(&["alone"], 1), [true], "the refusal changed nothing");
    bench.xway(&["load", "r0", &early, "-P", "10"]).exits(0);
    assert_eq!(run(&["early", "alone"], 1), [true, true]);
    bench.xway(&["unload", "r0", "-a"]).exits(0);
    assert_eq!(bench.json(&["status"])["attachments"], json!([]));
}
