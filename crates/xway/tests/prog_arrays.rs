//! Program arrays in Linux, which empties them when nobody but programs holds them any more.

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::wire::{Bench, ready};
use common::{Dir, compiled};
use serde_json::Value;
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
            // A command may do with the array what it likes; between two of them the kernel's worker has its time.
            for args in [
                &["map", "show"][..],
                &["map", "show", "id", &id],
                &["map", "show", "-f", "id", &id],
                &["map", "dump", "id", &id],
                &["map", "getnext", "id", &id],
                &["btf", "show"],
            ] {
                bench.xway(args).exits(0);
                std::thread::sleep(Duration::from_millis(50));
            }
            // By its name all maps of the machine are looked at; of this name there may be another test's.
            bench.xway(&["map", "show", "name", "jumps"]).exits(0);
            std::thread::sleep(Duration::from_millis(50));
            bench.xway(&["map", "lookup", "id", &id, "key", "1"]).exits(1);
            std::thread::sleep(Duration::from_millis(50));
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
