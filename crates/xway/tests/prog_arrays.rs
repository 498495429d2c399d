//! Program arrays in Linux, which empties them when nobody but programs holds them any more.

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::wire::{Bench, ready};
use common::{Dir, compiled};
use serde_json::{Value, json};
use xway_kernel::{ObjectKind, ids};

/// Jumps to a program that drops; passes where the jump falls through.
fn jumper(dir: &Dir) -> String {
    let text = "SEC(\"xdp\") int drops(struct xdp_md *ctx) { return 1; }
        struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 8); __uint(key_size, 4);
            __array(values, int (struct xdp_md *)); } jumps SEC(\".maps\") = { .values = { [1] = drops } };
        SEC(\"xdp\") int jumper(struct xdp_md *ctx) { bpf_tail_call(ctx, &jumps, 1); return 2; }
        char _license[] SEC(\"license\") = \"GPL\";";
    compiled(dir, "jumper", text, &[])
}

fn map_ids(done: &Value) -> Vec<u32> {
    let ids = done["attachment"]["program"]["map_ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn looking_at_an_array_does_not_keep_it_in_the_kernel() {
    if !ready("prog_arrays::looking_at_an_array_does_not_keep_it_in_the_kernel") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("arraylook", true));
    let object = jumper(&dir);
    let mut made = BTreeSet::new();
    for mode in ["native", "generic"] {
        for _ in 0..3 {
            let done = bench.json(&["load", "r0", &object, "-n", "jumper", "-m", mode]);
            let maps = map_ids(&done);
            assert_eq!(maps.len(), 1, "{done}");
            let id = maps[0].to_string();
            made.extend(maps);
            // A command may do with the array what it likes, and the next one follows at once.
            for args in [
                &["map", "show"][..],
                &["map", "show", "id", &id],
                &["map", "show", "-f", "id", &id],
                &["map", "dump", "id", &id],
                &["map", "getnext", "id", &id],
                &["btf", "show"],
            ] {
                bench.xway(args).exits(0);
            }
            // By its name all maps of the machine are looked at; of this name there may be another test's.
            bench.xway(&["map", "show", "name", "jumps"]).exits(0);
            bench.xway(&["map", "lookup", "id", &id, "key", "1"]).exits(1);
            bench.xway(&["unload", "r0", "-a"]).exits(0);
        }
    }
    // Numbers are never given twice, and asking for the next one opens nothing.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let there: BTreeSet<u32> = ids(ObjectKind::Map).unwrap().into_iter().collect();
        let left: Vec<&u32> = made.intersection(&there).collect();
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "maps {left:?} of {made:?} are still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_filled_array_that_nothing_pins_is_told_of() {
    if !ready("prog_arrays::a_filled_array_that_nothing_pins_is_told_of") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("arrayfill", true));
    let object = jumper(&dir);
    assert_eq!(bench.pings(), 1, "and the hosts know each other before anything is dropped");
    for mode in ["native", "generic"] {
        let load = ["load", "r0", &object, "-n", "jumper", "-m", mode];
        // Pinned it keeps what the object put in.
        let done = bench.json(&[&load[..], &["-p", "/sys/fs/bpf/jumps"]].concat());
        assert_eq!(done["outcomes"], json!([]), "{done}");
        assert_eq!(bench.pings(), 0, "{mode}: the jump leads to the program that drops");
        let again = bench.json(&[&load[..], &["-p", "/sys/fs/bpf/jumps", "--force"]].concat());
        assert_eq!((again["shared"].as_array().map(Vec::len), &again["outcomes"]), (Some(1), &json!([])), "{again}");
        bench.xway(&["unload", "r0", "-a"]).exits(0);
        bench.xway(&["map", "unpin", "/sys/fs/bpf/jumps/jumps"]).exits(0);
        // Otherwise it is empty from then on, and the jump falls through. What a chain pins of its own changes nothing about that.
        for chained in [&[][..], &["-P", "10"]] {
            let args = [&load[..], chained].concat();
            let done = bench.json(&args);
            let told = &done["outcomes"][0];
            let words = ["what", "requested", "effective"].map(|field| told[field].as_str().unwrap_or_default());
            assert_eq!(words, ["program arrays", "filled", "empty"], "{done}");
            let reason = told["reason"].as_str().unwrap();
            assert!(reason.contains("nothing pins jumps: ") && reason.ends_with("pin it: -p DIR"), "{reason}");
            assert!((0..5).any(|_| bench.pings() == 1), "{mode}: the array was emptied");
            bench.xway(&["unload", "r0", "-a"]).exits(0);
            let text = bench.xway(&args).exits(0).out;
            assert!(text.contains("  asked for program arrays filled, got empty: Linux empties"), "{text}");
            bench.xway(&["unload", "r0", "-a"]).exits(0);
        }
    }
    // By the other tool's name too.
    let loader = dir.arg("xdp-loader");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_xway"), &loader).unwrap();
    let told = bench.run(&loader, &["load", "r0", &object, "-n", "jumper"]).exits(0).err;
    assert!(told.contains("r0: asked for program arrays filled, got empty: Linux empties"), "{told}");
    bench.run(&loader, &["unload", "r0", "-a"]).exits(0);
}
