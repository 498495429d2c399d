//! The ecosystem's dispatcher: what we put there `xdp-loader` sees, adds to and takes from, and the other way round.
//!
//! Needs a kernel that takes extension programs (`make vm` has one).

mod common;

use common::wire::{Bench, ready};
use common::{Dir, compiled, sample};
use serde_json::Value;
use xway_testkit::Needs;

fn able(name: &str) -> bool {
    let takes = || xway_kernel::takes_extensions().is_ok();
    ready(name)
        && Needs::of(&format!("xway::{name}"))
            .command("xdp-loader")
            .command("bpftool")
            .that(takes(), "a kernel that takes extension programs")
            .met()
}

/// What they say is attached: name and id, in the order in which they run, the dispatcher first.
fn theirs(bench: &Bench) -> Vec<(String, u64)> {
    let out = bench.run("xdp-loader", &["status", "r0"]).exits(0).out;
    let rows = out.lines().skip_while(|l| !l.starts_with("r0")).take_while(|l| !l.trim().is_empty());
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().filter(|w| *w != "r0" && *w != "=>").collect();
        let name = words.iter().find(|w| w.parse::<u32>().is_err()).unwrap();
        // Behind the name, and behind the mode of the first row.
        let id = words.iter().skip_while(|w| w != &name).find_map(|w| w.parse().ok());
        ((*name).to_owned(), id.unwrap_or_else(|| panic!("{out}")))
    })
    .collect()
}

/// What we say: the same without the dispatcher.
fn ours(bench: &Bench) -> Vec<(String, u64)> {
    let status = bench.json(&["status", "r0"]);
    let all = status["attachments"].as_array().unwrap();
    all.iter().map(|a| (a["program"]["name"].as_str().unwrap().into(), a["program"]["id"].as_u64().unwrap())).collect()
}

#[track_caller]
fn agree(bench: &Bench, names: &[&str]) -> Vec<u64> {
    let (theirs, ours) = (theirs(bench), ours(bench));
    assert_eq!(theirs[0].0, "xdp_dispatcher", "{theirs:?}");
    assert_eq!(theirs[1..], ours[..], "both see the same");
    assert_eq!(ours.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
    ours.into_iter().map(|(_, id)| id).collect()
}

fn pass(dir: &Dir, name: &str) -> String {
    compiled(dir, name, &format!("SEC(\"xdp\") int {name}(struct xdp_md *ctx) {{ return 2; }}"), &[])
}

#[test]
fn each_tool_changes_what_the_other_made() {
    if !able("dispatcher::each_tool_changes_what_the_other_made") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("dispboth", true));
    let [a, b, c] = ["alpha", "beta", "gamma"].map(|name| pass(&dir, name));
    let said = bench.json(&["load", "r0", &a, "-P", "30"]);
    assert_eq!(said["chain"]["effective"], "dispatcher", "{said}");
    assert_eq!(said["held"]["requested"], said["held"]["effective"], "{said}");
    agree(&bench, &["alpha"]);

    // Theirs, before and behind ours.
    bench.run("xdp-loader", &["load", "r0", &b, "-P", "10"]).exits(0);
    bench.run("xdp-loader", &["load", "r0", &c, "-P", "40"]).exits(0);
    agree(&bench, &["beta", "alpha", "gamma"]);
    // And ours between them once more.
    bench.xway(&["load", "r0", &c, "-P", "20", "-A", "pass,drop"]).exits(0);
    let ids = agree(&bench, &["beta", "gamma", "alpha", "gamma"]);
    assert_eq!(bench.pings(), 1, "all of them pass");

    // We take one of theirs, they take one of ours.
    bench.xway(&["unload", "r0", "-i", &ids[0].to_string()]).exits(0);
    agree(&bench, &["gamma", "alpha", "gamma"]);
    bench.run("xdp-loader", &["unload", "r0", "-i", &ids[1].to_string()]).exits(0);
    let left = agree(&bench, &["alpha", "gamma"]);
    assert_eq!(left, ids[2..], "the others are the same programs");
    // One is replaced by another version.
    let said = bench.json(&["load", "r0", &a, "-P", "50", "--replace", "alpha"]);
    assert_eq!(said["replaced"].as_u64(), Some(ids[2]), "{said}");
    agree(&bench, &["gamma", "alpha"]);
    bench.xway(&["unload", "r0", "-a"]).exits(0);
    assert!(ours(&bench).is_empty());
    assert_eq!(bench.run("find", &["/sys/fs/bpf/xdp", "-type", "f"]).out, "", "no pins are left");

    // What they began, we end; and the other way round.
    bench.run("xdp-loader", &["load", "r0", &b]).exits(0);
    bench.xway(&["unload", "r0", "-i", &agree(&bench, &["beta"])[0].to_string()]).exits(0);
    bench.xway(&["load", "r0", &b, "-P", "5"]).exits(0);
    bench.run("xdp-loader", &["unload", "r0", "-a"]).exits(0);
    assert!(ours(&bench).is_empty());
    assert_eq!(bench.run("find", &["/sys/fs/bpf/xdp", "-type", "f"]).out, "", "no pins are left");
}

#[test]
fn verdicts_decide_who_runs_next_and_packets_never_miss_a_member() {
    if !able("dispatcher::verdicts_decide_who_runs_next_and_packets_never_miss_a_member") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("dispverd", true));
    let blacklist = sample(&dir, "blacklist");
    // The author's words: first of all, and the next one runs behind a drop.
    let config =
        "struct { int (*priority)[7]; int (*XDP_DROP)[1]; } _dropper __attribute__((section(\".xdp_run_config\")));
        SEC(\"xdp\") int dropper(struct xdp_md *ctx) { return 1; }";
    let dropper = compiled(&dir, "dropper", config, &[]);
    bench.xway(&["load", "r0", &blacklist, "-P", "20"]).exits(0);
    assert_eq!(bench.pings(), 1, "nothing is listed");
    let first = bench.json(&["load", "r0", &dropper, "-A", "drop"]);
    assert_eq!(first["attachment"]["priority"], 7, "{first}");
    assert_eq!(bench.pings(), 1, "the verdict of the last one that ran rules");
    let map = bench.map_of(&bench.json(&["status", "r0"])["attachments"][1], "prefixes");
    let key = r#"{"length": 32, "address": "ip:10.9.1.1"}"#;
    bench.xway(&["map", "update", "id", &map, "key", key, "value", "0"]).exits(0);
    assert_eq!(bench.pings(), 0, "the second one drops");
    bench.xway(&["map", "delete", "id", &map, "key", key]).exits(0);
    // Chained on nothing that it returns: it has the last word.
    let id = first["attachment"]["program"]["id"].to_string();
    bench.xway(&["load", "r0", &dropper, "-A", "pass", "--replace", &id]).exits(0);
    assert_eq!(bench.pings(), 0);
    let status = bench.json(&["status", "r0"]);
    assert_eq!(status["attachments"][0]["chain_on"], serde_json::json!(["PASS"]), "{status}");
    bench.xway(&["unload", "r0", "-a"]).exits(0);
    assert_eq!(bench.pings(), 1);
}

#[test]
fn ten_fit_and_the_eleventh_is_refused() {
    if !able("dispatcher::ten_fit_and_the_eleventh_is_refused") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("dispten", true));
    let object = pass(&dir, "same");
    for i in 0..10 {
        bench.xway(&["load", "r0", &object, "-P", &i.to_string()]).exits(0);
    }
    bench.xway(&["load", "r0", &object, "-P", "3"]).exits(1).says("its dispatcher has 10 programs");
    let ids = agree(&bench, &["same"; 10]);
    assert_eq!(bench.pings(), 1);
    // The one in the middle is left out of the next dispatcher; its place is replaced by what comes behind.
    bench.xway(&["unload", "r0", "-i", &ids[4].to_string()]).exits(0);
    assert_eq!(agree(&bench, &["same"; 9]), [&ids[..4], &ids[5..]].concat());
    // bpftool knows each of them, and the dispatcher, as we do.
    for id in &ids[5..] {
        let said = bench.run("bpftool", &["-j", "prog", "show", "id", &id.to_string()]).exits(0).out;
        let said: Value = serde_json::from_str(&said).unwrap();
        let own = &bench.json(&["prog", "show", "id", &id.to_string()])["programs"][0];
        for field in ["type", "name", "tag", "bytes_xlated", "btf_id"] {
            assert_eq!(own[field], said[field], "{field}");
        }
    }
    // Pins of a dispatcher that runs nowhere are cleaned, those of one that runs are not.
    bench.run("mkdir", &["-p", "/sys/fs/bpf/xdp/dispatch-1-4294967"]).exits(0);
    let cleaned = bench.json(&["clean"]);
    assert_eq!(cleaned["removed"], Value::from(vec!["/sys/fs/bpf/xdp/dispatch-1-4294967"]));
    agree(&bench, &["same"; 9]);
}

#[test]
fn a_program_that_is_alone_keeps_its_place_in_a_chain_of_ours() {
    if !able("dispatcher::a_program_that_is_alone_keeps_its_place_in_a_chain_of_ours") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("dispalone", true));
    let object = pass(&dir, "alone");
    bench.xway(&["load", "r0", &object]).exits(0);
    let said = bench.json(&["load", "r0", &object, "-P", "10"]);
    assert_eq!(said["chain"]["effective"], "tail calls", "{said}");
    assert!(said["chain"]["reason"].as_str().unwrap().contains("cannot go into a dispatcher"), "{said}");
    assert_eq!(ours(&bench).len(), 2);
    assert_eq!(bench.pings(), 1);
}
