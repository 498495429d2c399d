//! `xway bench`: what it prints, and what it refuses. Figures are looked at for their shape only.

mod common;

use common::{Dir, clang, compiled, rooted, xway};
use xway_testkit::clang::repository;

#[test]
fn the_suite_passes_its_vectors() {
    if !clang("bench::the_suite_passes_its_vectors") {
        return;
    }
    let entries = std::fs::read_dir(repository().join("bpf/bench")).unwrap();
    let paths: Vec<_> = entries.map(|e| e.unwrap().path().to_str().unwrap().to_owned()).collect();
    let with = |end: &str| paths.iter().filter(|p| p.ends_with(end)).map(String::as_str).collect::<Vec<_>>();
    assert_eq!(with(".toml").len(), with(".bpf.c").len());
    for engine in ["interp", "jit"] {
        let doc = xway(&[&["test", "-j", "--engine", engine][..], &with(".toml")].concat()).exits(0).json();
        assert_eq!(doc["failed"], 0);
        assert!(doc["passed"].as_u64().unwrap() >= 49, "{doc}");
        let cases = doc["files"].as_array().unwrap().iter().flat_map(|file| file["tests"].as_array().unwrap());
        cases.for_each(|case| assert_eq!(case["engine"], engine, "{case}"));
    }
}

#[test]
fn a_case_is_a_row_with_all_figures() {
    if !clang("bench::a_case_is_a_row_with_all_figures") {
        return;
    }
    let dir = Dir::new();
    let (plot, path) = (dir.arg("x.svg"), dir.path("x.svg"));
    let doc = xway(&["bench", "prog", "--filter", "MAC swap", "--rounds", "1", "-j", "--plot", &plot]).exits(0).json();
    assert_eq!((doc["command"].as_str(), doc["unit"].as_str()), (Some("bench prog"), Some("ns per packet")));
    let row = &doc["rows"][0];
    assert_eq!((row["name"].as_str(), row["packet_bytes"].as_u64()), (Some("MAC swap"), Some(64)));
    assert_eq!(row["checked"]["verdicts_ours"][3], row["ring_packets"]);
    for figure in ["loop", "empty", "program"] {
        assert!(row["ours"][0][figure]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(row["kernel"].is_null());
    assert!(std::fs::read_to_string(path).unwrap().contains("MAC swap"));
}

/// Whatever this machine can count: there is a figure or a reason for each event, and what the machine's own costs are.
#[test]
fn counters_are_figures_or_reasons() {
    if !clang("bench::counters_are_figures_or_reasons") {
        return;
    }
    let args = ["bench", "prog", "--filter", "MAC swap", "--rounds", "1", "--counters"];
    let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
    let counted = doc["rows"][0]["ours"][0]["counters"].as_object().unwrap();
    let missing: Vec<_> = doc["not_counted"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    let events = ["instructions", "cycles", "L1-icache-misses", "LLC-misses", "page-faults", "context-switches"];
    for event in events {
        assert_ne!(counted.contains_key(event), missing.contains(&event), "{event}: {doc}");
    }
    assert!(doc["not_counted"].as_array().unwrap().iter().all(|e| !e["reason"].as_str().unwrap().is_empty()), "{doc}");
    let costs: Vec<_> = doc["machine_costs"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert!(costs.contains(&"load L1") && costs.contains(&"system call"), "{doc}");
    let out = xway(&args).exits(0).out;
    assert!(out.contains("counted for a packet") && out.contains("this machine, ns: load L1 "), "{out}");
    assert_eq!(out.matches("not available: ").count(), missing.len(), "{out}");
}

#[test]
fn tables_are_markdown_and_pictures_pixels_when_asked_for() {
    if !clang("bench::tables_are_markdown_and_pictures_pixels_when_asked_for") {
        return;
    }
    let dir = Dir::new();
    let (plot, path) = (dir.arg("x.png"), dir.path("x.png"));
    let args = ["bench", "prog", "--filter", "MAC swap", "--filter", "random", "--rounds", "1", "--markdown"];
    let out = xway(&[&args[..], &["--plot", &plot]].concat()).exits(0).out;
    assert!(out.contains("| case | ours ns | Mpps |") && out.contains("\n| MAC swap | "), "{out}");
    assert!(out.contains("\n| random number | "), "{out}");
    assert!(std::fs::read(path).unwrap().starts_with(b"\x89PNG"));
    let map = ["bench", "map", "--type", "array", "--entries", "100", "--rounds", "1", "--cpu", "0", "--markdown"];
    let out = xway(&map).exits(0).out;
    assert!(out.contains("\n| map | operation | ours, program | ours, user |\n|---|---|---|---|\n| array"), "{out}");
}

#[test]
fn every_verdict_is_a_row_of_the_path() {
    if !clang("bench::every_verdict_is_a_row_of_the_path") {
        return;
    }
    let args = ["bench", "path", "--count", "2000", "--rounds", "1", "--cpu", "0"];
    let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
    let rows = doc["rows"].as_array().unwrap();
    let actions: Vec<_> = rows.iter().map(|row| row["action"].as_str().unwrap()).collect();
    let verdicts = ["drop", "drop", "drop", "tx", "redirect", "redirect-map", "redirect-multi", "pass"];
    assert_eq!(actions, verdicts);
    for row in rows {
        let twice = if row["action"] == "redirect-multi" { 2 } else { 1 };
        assert_eq!(row["ours"]["arrived"].as_u64(), row["ours"]["packets"].as_u64().map(|n| n * twice), "{row}");
        assert!(row["compared"].as_u64() > Some(0) && row["kernel"].is_null(), "{row}");
    }
    let out = xway(&[&args[..], &["--markdown"]].concat()).exits(0).out;
    assert!(out.contains("\n|  | ours ns | low | high | Mpps |\n|---|---|---|---|---|\n| drop, no touch | "), "{out}");
}

#[test]
fn ways_to_a_program_are_rows() {
    let doc = xway(&["bench", "dispatch", "--count", "10000", "--rounds", "1", "--cpu", "0", "-j"]).exits(0).json();
    let rows = doc["rows"].as_array().unwrap();
    let named = |name: &str| rows.iter().any(|row| row["name"] == name);
    assert!(
        named("indirect, 8 random targets") && named("tree, 48 random targets") && named("chain of 48 programs"),
        "{doc}"
    );
    assert!(rows.iter().all(|row| row["burst_64"]["median"].as_f64() > Some(0.0)), "{doc}");
    // As docs/performance.md has it.
    let out =
        xway(&["bench", "dispatch", "--count", "10000", "--rounds", "1", "--cpu", "0", "--markdown"]).exits(0).out;
    let targets = "\n| targets, in random order | bursts of 64: indirect | tree | packets alone: indirect | tree |\n|---|---|---|---|---|\n| 1 | ";
    let chains = "\n| programs in a chain | 1 | 2 | 8 | 16 | 48 |\n|---|---|---|---|---|---|\n| bursts of 64 | ";
    assert!(out.contains(targets) && out.contains("\n| 64 | ") && out.contains(chains), "{out}");
    assert!(out.contains("\n| one that is not among the tree's 64 | "), "{out}");
}

#[test]
fn an_object_of_ones_own_can_be_measured() {
    if !clang("bench::an_object_of_ones_own_can_be_measured") {
        return;
    }
    let dir = Dir::new();
    let text = "SEC(\"xdp\") int pass_all(struct xdp_md *ctx) { return XDP_PASS; }\n\
                char _license[] SEC(\"license\") = \"GPL\";\n";
    let object = compiled(&dir, "own", text, &[]);
    let out = xway(&["bench", "prog", &object, "--rounds", "1", "--flows", "10", "--pattern", "zipf"]).exits(0).out;
    assert!(out.contains("own.o:pass_all") && out.contains("Mpps"), "{out}");
    xway(&["bench", "prog", &object, "--table", "5"]).exits(2).says("own.o has no hash table and no trie");
    // The size of its only table is the user's to say, on both sides.
    let map = |name: &str| {
        format!(
            "struct {{ __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, __u32); }} \
             {name} SEC(\".maps\");\n"
        )
    };
    let fills = "SEC(\"xdp\") int fills(struct xdp_md *ctx) { void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;\n\
                 if (data + 34 > end) return XDP_ABORTED; __u32 key = *(__u32 *)(data + 26);\n\
                 return bpf_map_update_elem(&seen, &key, &key, 0) ? XDP_DROP : XDP_PASS; }\n\
                 char _license[] SEC(\"license\") = \"GPL\";\n";
    let object = compiled(&dir, "fills", &format!("{}{fills}", map("seen")), &[]);
    let doc =
        xway(&["bench", "prog", &object, "--rounds", "1", "--table", "5", "--pattern", "scan", "-j"]).exits(0).json();
    let row = &doc["rows"][0];
    assert_eq!((row["table"]["map"].as_str(), row["table"]["entries"].as_u64()), (Some("seen"), Some(5)));
    // Five flows find room, however often the ring goes round.
    let rounds = row["ring_packets"].as_u64().unwrap() / row["flows"].as_u64().unwrap();
    assert_eq!(row["checked"]["verdicts_ours"][2].as_u64(), Some(5 * rounds), "{row}");
    let object = compiled(&dir, "two", &format!("{}{}{fills}", map("seen"), map("others")), &[]);
    xway(&["bench", "prog", &object, "--table", "5"]).exits(2).says("several: seen, others");
}

/// Noise is not shown as what a technique is worth: where a pass leaves the program's code as it is, there is no figure.
#[test]
fn a_technique_without_other_code_has_no_figure() {
    if !clang("bench::a_technique_without_other_code_has_no_figure") {
        return;
    }
    let dir = Dir::new();
    let (plot, path) = (dir.arg("x.svg"), dir.path("x.svg"));
    let args = ["bench", "prog", "--techniques", "--filter", "random number", "--rounds", "1"];
    let doc = xway(&[&args[..], &["-j", "--plot", &plot]].concat()).exits(0).json();
    let ours = doc["rows"][0]["ours"].as_array().unwrap();
    let same = |side: &str| ours.iter().find(|f| f["side"] == side).unwrap()["same_code"].as_bool().unwrap();
    assert!(same("jit without frozen") && same("jit without unroll") && !same("jit"), "{doc}");
    let other = ["jit without inline-helpers", "jit, packet by packet", "jit, every pass off", "interp"];
    assert!(!other.into_iter().any(same), "{doc}");
    let unchanged: Vec<_> = doc["unchanged"].as_array().unwrap().iter().map(|way| way.as_str().unwrap()).collect();
    assert!(unchanged.contains(&"frozen") && !unchanged.contains(&"inline-helpers"), "{doc}");
    let picture = std::fs::read_to_string(path).unwrap();
    assert!(picture.contains(">inline-helpers: random number<") && !picture.contains(">frozen: "), "{picture}");
    let out = xway(&[&args[..], &["--markdown"]].concat()).exits(0).out;
    assert!(
        out.contains("\n| jit without frozen | = |\n") && out.contains("\n`=`: the same machine code as `jit`"),
        "{out}"
    );
    let none = out.lines().find(|line| line.contains("The code of no case here is changed by")).unwrap();
    assert!(none.contains("`frozen`") && !none.contains("`inline-helpers`"), "{out}");
    assert!(!out.contains("\n| jit without inline-helpers | = |") && !out.contains("\n| jit | = |"), "{out}");
    // Where each program is measured in one way there is nothing to say of it.
    let one = xway(&["bench", "prog", "--filter", "random number", "--rounds", "1"]).exits(0).out;
    assert!(!one.contains("same machine code"), "{one}");
}

/// Which CPU it is, and which of a map's values is its own, is the same on both sides.
#[test]
fn both_sides_run_on_the_same_cpu() {
    if !rooted("bench::both_sides_run_on_the_same_cpu") {
        return;
    }
    let dir = Dir::new();
    let map = |map_type: &str, name: &str| {
        format!(
            "struct {{ __uint(type, BPF_MAP_TYPE_{map_type}); __uint(max_entries, 8); __type(key, __u32); __type(value, __u32); }} \
             {name} SEC(\".maps\");\n"
        )
    };
    let text = "SEC(\"xdp\") int where(struct xdp_md *ctx) { __u32 cpu = bpf_get_smp_processor_id(), key = 1, one = 1;\n\
                __u32 *n = bpf_map_lookup_elem(&seen, &key); if (!n) return XDP_ABORTED; *n += 1;\n\
                __u32 *same = bpf_map_lookup_percpu_elem(&seen, &key, cpu); if (!same || *same != *n) return XDP_ABORTED;\n\
                n = bpf_map_lookup_elem(&kept, &cpu); if (n) *n += 2; else bpf_map_update_elem(&kept, &cpu, &one, 0);\n\
                return cpu ? XDP_PASS : XDP_DROP; }\n\
                char _license[] SEC(\"license\") = \"GPL\";\n";
    let text = format!("{}{}{text}", map("PERCPU_ARRAY", "seen"), map("PERCPU_HASH", "kept"));
    let object = compiled(&dir, "where", &text, &[]);
    let last = std::thread::available_parallelism().map_or(1, |n| n.get()) - 1;
    for (cpu, args) in [(last, vec![]), (0, vec!["--cpu", "0"])] {
        let all = [&["bench", "prog", &object, "--vs", "kernel", "--rounds", "1", "-j"][..], &args].concat();
        let row = &xway(&all).exits(0).json()["rows"][0];
        let verdict = if cpu == 0 { 1 } else { 2 };
        assert_eq!(row["checked"]["verdicts_ours"][verdict], row["ring_packets"], "{row}");
        assert_eq!(row["checked"]["verdicts_kernel"], row["checked"]["verdicts_ours"], "{row}");
        assert!(row["checked"]["map_elements"].as_u64() >= Some(9), "{row}");
    }
    // Without the kernel the interpreter is on that CPU too.
    xway(&["bench", "prog", &object, "--rounds", "1"]).exits(0);
}

#[test]
fn what_cannot_be_measured_is_said() {
    if !clang("bench::what_cannot_be_measured_is_said") {
        return;
    }
    xway(&["bench", "prog", "--filter", "nothing of this name"]).exits(2).says("no case of this name");
    xway(&["bench", "prog", "--filter", "MAC swap", "--cpu", "5000"]).exits(2).says("CPU 5000");
    xway(&["bench", "prog", "/none/x.o"]).exits(3).says("/none/x.o");
    // Before anything is measured.
    let nowhere =
        xway(&["bench", "prog", "--filter", "MAC swap", "--plot", "/none/x.svg"]).exits(3).says("/none/x.svg");
    assert_eq!(nowhere.out, "");
    let dir = Dir::new();
    xway(&["bench", "prog", "--filter", "MAC swap", "--plot", &dir.arg("x.gif")]).exits(2).says(".svg or .png");
    assert!(!dir.path("x.gif").exists(), "nothing is left of it");
    xway(&["bench", "prog", "--filter", "MAC swap", "--table", "5"]).exits(2).says("no chosen case has a table");
    // Where nothing at all was measured there is no table, and the answer is no success.
    let reads =
        |name: &str| format!("SEC(\"xdp\") int {name}(struct xdp_md *ctx) {{ return *(char *)(long)ctx->data; }}\n");
    let text = format!("{}{}char _license[] SEC(\"license\") = \"GPL\";\n", reads("one"), reads("other"));
    let object = compiled(&dir, "unproved", &text, &[]);
    let none = xway(&["bench", "prog", &object, "--rounds", "1"]).exits(1).says("one: refused by the verifier");
    assert!(
        none.out.contains("unproved.o:other  not measured: refused by the verifier")
            && !none.out.contains("this machine"),
        "{}",
        none.out
    );
    assert!(none.err.starts_with("xway: unproved.o:one: refused by the verifier: "), "once: {}", none.err);
    let list = xway(&["bench", "prog", "--list", "-j"]).exits(0).json();
    assert!(list["cases"].as_array().unwrap().len() > 30, "{list}");
}

/// Helpers are cases of their own, where they are asked for.
#[test]
fn a_suite_is_chosen() {
    if !clang("bench::a_suite_is_chosen") {
        return;
    }
    let names = |args: &[&str]| {
        let doc = xway(&[&["bench", "prog", "--list", "-j"][..], args].concat()).exits(0).json();
        let cases = doc["cases"].as_array().unwrap().iter();
        cases.map(|case| case["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (programs, helpers) = (names(&[]), names(&["--suite", "helpers"]));
    assert_eq!(programs, names(&["--suite", "programs"]));
    assert!(helpers.len() > 30 && helpers.iter().all(|name| !programs.contains(name)), "{helpers:?}");
    let strncmp = ["bpf_strncmp, 5 bytes", "bpf_strncmp, 23 bytes"];
    assert_eq!(names(&["--suite", "helpers", "--filter", "strncmp"]), strncmp);
    let mac = ["bench", "prog", "--suite", "helpers", "--filter", "MAC swap"];
    xway(&mac).exits(2).says("no case of this name").says("--suite helpers --list");
    let both = xway(&["bench", "prog", "--suite", "helpers", "/none/x.o"]).exits(2);
    assert!(both.err.contains("cannot be used with"), "{}", both.err);
    let one = ["bench", "prog", "--suite", "helpers", "--filter", strncmp[0], "--rounds", "1", "-j"];
    let row = &xway(&one).exits(0).json()["rows"][0];
    assert_eq!((row["object"].as_str(), row["program"].as_str()), (Some("helpers"), Some("strncmp_5")));
    assert_eq!((row["checked"]["exact"].as_bool(), row["wanted_ratio_net"].is_null()), (Some(true), true), "{row}");
}

#[test]
fn a_map_can_be_worked_on_by_several_cores() {
    let args =
        ["bench", "map", "--type", "lru_hash", "--entries", "200", "--key", "16", "--rounds", "1", "--threads", "1"];
    let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
    let rows = doc["rows"].as_array().unwrap();
    let operations: Vec<_> = rows.iter().map(|row| row["operation"].as_str().unwrap()).collect();
    assert_eq!(operations, ["update", "look-up", "insert + evict"]);
    assert!(rows.iter().all(|row| row["threads"] == 1 && row["ours_program"]["median"].as_f64() > Some(0.0)), "{doc}");
    let out = xway(&[&args[..], &["--markdown"]].concat()).exits(0).out;
    assert!(out.contains("\n| map | operation | threads | ours, program |\n"), "{out}");
    xway(&["bench", "map", "--type", "hash", "--entries", "100", "--threads", "256"]).exits(2).says("cores");
}

#[test]
fn map_operations_are_rows() {
    let args = [
        "bench",
        "map",
        "--type",
        "hash,lpm_trie",
        "--entries",
        "100",
        "--key",
        "8",
        "--rounds",
        "1",
        "--cpu",
        "0",
        "-j",
    ];
    let doc = xway(&args).exits(0).json();
    let rows = doc["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|r| r["ours_program"]["median"].as_f64().unwrap() > 0.0), "{doc}");
    assert!(rows.iter().all(|r| r["kernel_user"].is_null()), "{doc}");
    xway(&["bench", "map", "--entries", "1"]).exits(2);
    // Tries have the keys that are asked for, where an address is left in them.
    let trie = |key: &str| {
        xway(&["bench", "map", "--type", "lpm_trie", "--entries", "100", "--key", key, "--rounds", "1", "-j"])
    };
    let doc = trie("8,20").exits(0).json();
    let sizes: Vec<_> = doc["rows"].as_array().unwrap().iter().map(|row| row["key_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 8, 8, 8, 20, 20, 20, 20]);
    trie("4").exits(2).says("an address of 2 to 256");
    trie("264").exits(2).says("an address of 2 to 256");
}

#[test]
fn what_maps_take_is_bytes_for_each_element() {
    let args = ["bench", "map", "--memory", "--type", "hash,array", "--entries", "1000", "--key", "16", "--value", "8"];
    let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
    let rows = doc["rows"].as_array().unwrap();
    let growing: Vec<_> = rows.iter().map(|row| row["growing"].as_bool().unwrap()).collect();
    assert_eq!((doc["unit"].as_str(), &growing[..]), (Some("bytes"), &[false, true, false][..]), "{doc}");
    for row in rows {
        let least = if row["type"] == "array" { 8000 } else { 24_000 };
        assert!(row["ours_bytes"].as_u64() > Some(least) && row["elements"] == 1000, "{row}");
        assert!(row["kernel_bytes"].is_null() && row["ratio"].is_null(), "{row}");
    }
    let out = xway(&[&args[..], &["--markdown"]].concat()).exits(0).out;
    assert!(out.contains("\n| map | value | elements | ours, MiB | bytes each |\n"), "{out}");
    xway(&[&args[..], &["--threads", "1"]].concat()).exits(2);
}

#[test]
fn the_machine_has_costs() {
    let doc = xway(&["bench", "machine", "--cpu", "0", "-j"]).exits(0).json();
    assert_eq!(doc["unit"], "ns");
    assert!(doc["rows"].as_array().unwrap().iter().any(|r| r["group"] == "cache" && r["ns"].is_f64()), "{doc}");
    xway(&["bench", "machine", "--cpu", "4000"]).exits(2).says("CPU 4000");
}

#[test]
fn forwarding_is_measured_with_what_arrived() {
    if !clang("bench::forwarding_is_measured_with_what_arrived") {
        return;
    }
    let doc = xway(&["bench", "tx", "--rounds", "1", "--count", "5000", "-j", "--breakdown"]).exits(0).json();
    assert_eq!((doc["command"].as_str(), doc["program"].as_str()), (Some("bench tx"), Some("tx_swap_macs")));
    assert_eq!((doc["ours"]["arrived"].as_u64(), doc["engine"].as_str()), (Some(5000), Some("jit")));
    assert!(doc["ours"]["pps"].as_f64().unwrap() > 0.0 && doc["kernel"].is_null() && doc["ratio"].is_null(), "{doc}");
    assert!(doc["breakdown"].as_array().unwrap().len() >= 4, "{doc}");
    assert_eq!(doc["pool"]["refused"], 0);
    let args = ["-p", "parse-ip", "-l", "load-bytes", "-e", "-r", "--flows", "50", "--pattern", "zipf"];
    let out = xway(&[&["bench", "drop", "--rounds", "1", "--count", "5000"][..], &args].concat()).exits(0).out;
    for part in ["drop_parse_ip_load_bytes", "50 flows of 64 bytes", "recycled", "queue 0", "Mpps"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let args = ["bench", "redirect-cpu", "--rounds", "1", "--count", "20000", "--techniques", "--breakdown", "-j"];
    let doc = xway(&args).exits(0).json();
    assert_eq!(doc["techniques"][0]["name"], "each packet's goal looked up");
    assert!(doc["techniques"][0]["ns"]["median"].as_f64() > Some(0.0), "{doc}");
    let stages = doc["breakdown"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["name"].as_str().unwrap().contains("ring between workers")), "{doc}");
    xway(&["bench", "drop", "--techniques"]).exits(2).says("redirect-cpu --techniques");
    xway(&["bench", "drop", "--size", "59"]).exits(2);
    xway(&["bench", "drop", "--pcap", "/none/x.pcap"]).exits(3).says("/none/x.pcap");
}

#[test]
fn packet_memory_and_rings_are_tables() {
    for verb in ["pool", "ring"] {
        let doc = xway(&["bench", verb, "--rounds", "1", "--count", "2000", "-j"]).exits(0).json();
        let rows = doc["rows"].as_array().unwrap();
        assert!(rows.len() > 10 && rows.iter().all(|row| row["name"].is_string() && row["bulk"].is_u64()), "{doc}");
    }
}
