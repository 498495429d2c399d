//! Pins: taken away by a verb on each hook, listed and cleaned in the service, and what comes back of them when it starts again.

mod common;

use common::service::{KINDS, Up};
use common::wire::{Bench, ready};
use common::{Dir, Ran, compiled, xway};
use serde_json::{Value, json};

/// Without privilege: the service alone.
struct Asked {
    dir: Dir,
    up: Up,
    file: Option<String>,
}

impl Asked {
    fn new(config: &str) -> Asked {
        let dir = Dir::new();
        let file = Some(dir.file("up.toml", config));
        let up = Up::new(&dir, file.as_deref(), None);
        Asked { dir, up, file }
    }

    fn run(&self, words: &str) -> Ran {
        let words: Vec<&str> = words.split(' ').collect();
        xway(&[&words[..], &["--hook", "user", "--socket", &self.up.socket]].concat())
    }

    /// Ends it, killed or when it was asked to, and starts it again.
    fn again(&mut self, killed: bool) {
        match killed {
            true => self.up.kill(),
            false => {
                xway(&["down", "--socket", &self.up.socket]).exits(0);
                self.up.child.wait().unwrap();
            }
        }
        self.up = Up::new(&self.dir, self.file.as_deref(), None);
    }

    /// Where maps and programs are pinned.
    fn pins(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.up.connect().pins().unwrap().iter().map(|p| p.path.display().to_string()).collect();
        all.sort();
        all
    }
}

#[test]
fn pins_are_taken_away_on_the_kernel() {
    if !ready("names::pins_are_taken_away_on_the_kernel") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("unpin", true));
    let object = compiled(&dir, "sort", KINDS, &[]);
    let there = |path: &str| bench.run("test", &["-e", path]).code == 0;
    bench.json(&["load", "r0", &object, "-p", "/sys/fs/bpf/own"]);
    bench.xway(&["prog", "pin", "name", "sort", "/sys/fs/bpf/program"]).exits(0);
    // What is there is another kind of object: nothing is removed.
    for (verb, path, words) in [
        ("map", "/sys/fs/bpf/program", "it is a program, not a map"),
        ("link", "/sys/fs/bpf/program", "it is a program, not a link"),
        ("prog", "/sys/fs/bpf/own/kinds", "it is a map, not a program"),
    ] {
        bench.xway(&[verb, "unpin", path]).exits(1).says(words);
        assert!(there(path), "{path}");
    }
    let doc = bench.json(&["map", "unpin", "/sys/fs/bpf/own/kinds"]);
    assert!(doc["id"].as_u64().is_some() && doc["path"] == "/sys/fs/bpf/own/kinds", "{doc}");
    assert!(!there("/sys/fs/bpf/own/kinds"));
    bench.xway(&["prog", "unpin", "pinned", "/sys/fs/bpf/program"]).exits(0);
    assert!(!there("/sys/fs/bpf/program"));
    // The program runs on, with its map.
    bench.xway(&["map", "lookup", "kinds", "key", "0"]).exits(0);
    // No pin: neither a file nor nothing.
    let file = dir.file("plain", "no pin");
    bench.xway(&["map", "unpin", &file]).exits(3).says("not in a BPF file system");
    assert!(std::path::Path::new(&file).exists());
    let nothing = "there is no pin at /sys/fs/bpf/own/kinds\n  try: xway map show";
    bench.xway(&["map", "unpin", "/sys/fs/bpf/own/kinds"]).exits(1).says(nothing);
    bench.xway(&["map", "show", "pinned", "/sys/fs/bpf/own/kinds"]).exits(1).says(nothing);
    bench.xway(&["map", "unpin", "/sys/fs/bpf/own"]).exits(3).says("a directory of pins");
    bench.xway(&["map", "unpin"]).exits(2).says("one path is expected");
    // A pin of another shape is in the way, and the message names the verb that takes it away.
    bench
        .xway(&[
            "map",
            "create",
            "/sys/fs/bpf/other/kinds",
            "type",
            "hash",
            "key",
            "4",
            "value",
            "4",
            "entries",
            "3",
            "name",
            "k",
        ])
        .exits(0);
    let refused = bench.xway(&["load", "r0", &object, "-p", "/sys/fs/bpf/other", "--force"]).exits(1);
    assert!(refused.err.contains("try: xway map unpin /sys/fs/bpf/other/kinds when"), "{}", refused.err);
    bench.xway(&["unload", "r0", "-a"]).exits(0);
}

#[test]
fn pins_of_the_service_are_taken_away_and_stay_away() {
    if !common::clang("names::pins_of_the_service_are_taken_away_and_stay_away") {
        return;
    }
    let mut asked = Asked::new("");
    let object = compiled(&asked.dir, "sort", KINDS, &[]);
    for name in ["one", "two", "three"] {
        asked.run(&format!("map create /m/{name} type hash key 4 value 4 entries 8 name {name}")).exits(0);
    }
    asked.run(&format!("load sim:a?count=1 {object} -p /own")).exits(0);
    asked.run("prog pin name sort /p/sort").exits(0);
    asked.run("map pin name two /m/again").exits(0);
    // Listed with what they name.
    let shown = asked.run("map show -f -j").exits(0).json();
    let of = |name: &str| -> Value {
        shown["maps"].as_array().unwrap().iter().find(|m| m["name"] == name).expect(name)["pinned"].clone()
    };
    assert_eq!((of("two"), of("kinds")), (json!(["/m/again", "/m/two"]), json!(["/own/kinds"])));
    assert!(asked.run("prog show -f").exits(0).out.contains("  pinned /p/sort\n"));

    asked.run("map unpin /p/sort").exits(1).says("/p/sort: it is a program, not a map\n  try: xway prog unpin /p/sort");
    asked.run("prog unpin /m/one").exits(1).says("it is a map, not a program");
    asked.run("map unpin /nowhere").exits(1).says("there is no pin at /nowhere\n  try: xway map show -f --hook user");
    asked.run("map pin name one /m/two").exits(1).says("xway map unpin /m/two --hook user");
    for words in ["map pin name one relative", &format!("load sim:a {object} -p relative/dir --force")] {
        asked.run(words).exits(1).says("names in the service begin with /\n  try: /relative");
    }
    asked.run("link unpin /m/one").exits(1).says("an attachment of the engine");
    asked.run("map unpin /m/one").exits(0);
    assert_eq!(asked.run("map unpin pinned /m/again -j").exits(0).json()["path"], "/m/again");
    asked.run("prog unpin /p/sort").exits(0);
    asked.run("map unpin /own/kinds").exits(0);
    assert_eq!(asked.pins(), ["/m/three", "/m/two"]);
    // What it named goes with its last name, or stays with whoever else uses it.
    asked.run("map show name one").exits(1).says("no map with name one\n  try: xway map show --hook user");
    asked.run("map lookup name kinds key 0").exits(0);
    for killed in [true, false] {
        asked.again(killed);
        assert_eq!(asked.pins(), ["/m/three", "/m/two"], "killed: {killed}");
        assert_eq!(asked.up.connect().attachments_len(), 1);
    }
}

trait Counted {
    fn attachments_len(&mut self) -> usize;
}

impl Counted for xway_control::Service {
    fn attachments_len(&mut self) -> usize {
        xway_hook::Hook::attachments(self, None).unwrap().len()
    }
}

#[test]
fn pins_that_nobody_uses_are_cleaned() {
    if !common::clang("names::pins_that_nobody_uses_are_cleaned") {
        return;
    }
    let mut asked = Asked::new("");
    let object = compiled(&asked.dir, "sort", KINDS, &[]);
    asked.run("map create /inner type hash key 4 value 4 entries 8 name inner").exits(0);
    asked
        .run("map create /outer type array_of_maps key 4 value 4 entries 2 name outer inner_map pinned /inner")
        .exits(0);
    asked.run("map update pinned /outer key 1 value pinned /inner").exits(0);
    asked.run("map create /jumps type prog_array key 4 value 4 entries 2 name jumps").exits(0);
    asked.run(&format!("load sim:a?count=1 {object} -p /own")).exits(0);
    asked.run("prog pin name sort /sort").exits(0);
    asked.run("map update pinned /jumps key 0 value name sort").exits(0);
    // A map of maps that nobody uses is no use of those that it holds; a program that is attached is one of its maps.
    let would = asked.run("clean --dry-run").exits(0).out;
    assert_eq!(would, "would remove /inner\nwould remove /jumps\nwould remove /outer\n");
    assert_eq!(asked.pins().len(), 5);
    // Who holds one uses it, and what it holds.
    let mut holds = asked.up.connect();
    xway_hook::Hook::pinned(&mut holds, std::path::Path::new("/outer")).unwrap();
    assert_eq!(asked.run("clean --dry-run -j").exits(0).json()["removed"], json!(["/jumps"]));
    drop(holds);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while asked.run("clean --dry-run -j").exits(0).json()["removed"] != json!(["/inner", "/jumps", "/outer"]) {
        assert!(std::time::Instant::now() < deadline, "a connection that has ended holds nothing");
    }
    assert_eq!(asked.run("clean -j").exits(0).json()["removed"], json!(["/inner", "/jumps", "/outer"]));
    assert_eq!(asked.pins(), ["/own/kinds", "/sort"]);
    for killed in [true, false] {
        asked.again(killed);
        assert_eq!(asked.pins(), ["/own/kinds", "/sort"], "killed: {killed}");
    }
    asked.run("unload sim:a -a").exits(0);
    assert_eq!(asked.run("clean").exits(0).out, "removed /own/kinds\nremoved /sort\n");
    assert_eq!(asked.run("map show").exits(0).out, "");
    assert_eq!(asked.run("clean").exits(0).out, "");
}

/// What is made for each type of map: the words of `map create` behind the type.
const TYPES: [(&str, &str); 20] = [
    ("hash", "key 4 value 4"),
    ("array", "key 4 value 4"),
    ("percpu_hash", "key 4 value 4"),
    ("percpu_array", "key 4 value 4"),
    ("lru_hash", "key 4 value 4"),
    ("lru_percpu_hash", "key 4 value 4"),
    ("lpm_trie", "key 8 value 4 flags 1"),
    ("queue", "key 0 value 4"),
    ("stack", "key 0 value 4"),
    ("bloom_filter", "key 0 value 4"),
    ("devmap", "key 4 value 4"),
    ("devmap_hash", "key 4 value 8"),
    ("cpumap", "key 4 value 4"),
    ("xskmap", "key 4 value 4"),
    ("prog_array", "key 4 value 4"),
    ("perf_event_array", "key 4 value 4"),
    ("ringbuf", "key 0 value 0"),
    ("user_ringbuf", "key 0 value 0"),
    ("array_of_maps", "key 4 value 4 inner_map pinned /m/hash"),
    ("hash_of_maps", "key 4 value 4 inner_map pinned /m/hash"),
];

#[test]
fn every_type_of_map_comes_back_with_what_it_held() {
    let mut asked = Asked::new("[service]\nkeep_contents = true\n");
    for (kind, sizes) in TYPES {
        let entries = if kind.ends_with("ringbuf") { 4096 } else { 8 };
        asked.run(&format!("map create /m/{kind} type {kind} entries {entries} name {kind} {sizes}")).exits(0);
    }
    let shown = |asked: &Asked| -> Vec<Value> {
        let all = asked.run("map show -f -j").exits(0).json();
        let mut all: Vec<Value> = all["maps"].as_array().unwrap().clone();
        all.iter_mut().for_each(|map| map["id"] = Value::Null);
        all.sort_by_key(|map| map["pinned"][0].as_str().unwrap().to_owned());
        all
    };
    let before = shown(&asked);
    assert_eq!(before.len(), TYPES.len());
    asked.again(true);
    assert_eq!(shown(&asked), before, "killed");

    // Contents, over an end that was asked for.
    let hashes = ["hash", "lru_hash", "percpu_hash", "lru_percpu_hash", "array", "percpu_array"];
    for kind in hashes {
        asked.run(&format!("map update pinned /m/{kind} key 1 value 5")).exits(0);
    }
    asked.run("map update pinned /m/lpm_trie key hex 08 00 00 00 0a 00 00 00 value 5").exits(0);
    asked.run("map update pinned /m/cpumap key 0 value 192").exits(0);
    for kind in ["queue", "stack"] {
        (1..4).for_each(|n| drop(asked.run(&format!("map push pinned /m/{kind} value {n}")).exits(0)));
    }
    asked.run("map freeze pinned /m/array").exits(0);
    // What another executable would find is said so too.
    let outlook = xway(&["upgrade", "--dry-run", "--socket", &asked.up.socket]).exits(0).out;
    for (kind, _) in TYPES {
        // (Names have 15 characters.)
        let name = kind.get(..15).unwrap_or(kind);
        let line = outlook.lines().find(|line| line.contains(&format!("map {name} (number"))).expect(kind);
        let why = match kind {
            "bloom_filter" => "what it holds: a Bloom filter does not tell what it holds",
            "ringbuf" | "user_ringbuf" => "what it holds: records that nobody has read by then",
            "prog_array" | "perf_event_array" | "xskmap" | "array_of_maps" | "hash_of_maps" => {
                "what it holds: numbers of objects of this process"
            }
            _ => "its contents, read at the end and written again",
        };
        assert!(line.ends_with(why), "{line}");
    }
    asked.again(false);
    for kind in hashes {
        let entry = asked.run(&format!("map lookup pinned /m/{kind} key 1 -j")).exits(0).json();
        let value = entry.get("value").or_else(|| entry["values"].get(0));
        assert_eq!(value, Some(&json!("hex:05 00 00 00")), "{kind}");
    }
    asked.run("map lookup pinned /m/lpm_trie key hex 20 00 00 00 0a 01 02 03").exits(0);
    asked.run("map lookup pinned /m/cpumap key 0").exits(0);
    let popped = |kind: &str| -> Vec<String> {
        (0..3).map(|_| asked.run(&format!("map pop pinned /m/{kind}")).exits(0).out[..6].to_owned()).collect()
    };
    assert_eq!(popped("queue"), ["hex:01", "hex:02", "hex:03"], "as a queue gives them out");
    assert_eq!(popped("stack"), ["hex:03", "hex:02", "hex:01"], "as a stack does");
    asked.run("map pop pinned /m/queue").exits(1).says("it is empty");
    asked.run("map update pinned /m/array key 1 value 9").exits(1).says("the map is frozen");
}

/// A map has one identity behind all its names, also those that somebody gave it beside the program that uses it.
#[test]
fn names_of_one_map_lead_to_one_map_again() {
    if !common::clang("names::names_of_one_map_lead_to_one_map_again") {
        return;
    }
    let mut asked = Asked::new("[service]\nkeep_contents = true\n");
    let text = KINDS.replace("__uint(pinning, LIBBPF_PIN_BY_NAME);", "");
    assert_ne!(text, KINDS);
    let object = compiled(&asked.dir, "sort", &text, &[]);
    asked.run("map create /m/one type queue key 0 value 4 entries 8 name one").exits(0);
    asked.run("map pin name one /m/two").exits(0);
    asked.run(&format!("load sim:a?count=1 {object}")).exits(0);
    asked.run("map pin name kinds /k/first").exits(0);
    asked.run("map pin name kinds /k/second").exits(0);
    for killed in [true, false] {
        asked.again(killed);
        let maps = asked.run("map show -f -j").exits(0).json();
        let of = |name: &str| -> Vec<Value> {
            maps["maps"].as_array().unwrap().iter().filter(|m| m["name"] == name).cloned().collect()
        };
        let (one, kinds) = (of("one"), of("kinds"));
        assert_eq!((one.len(), &one[0]["pinned"]), (1, &json!(["/m/one", "/m/two"])), "killed: {killed}");
        assert_eq!((kinds.len(), &kinds[0]["pinned"]), (1, &json!(["/k/first", "/k/second"])), "killed: {killed}");
        let programs = asked.run("prog show name sort -j").exits(0).json();
        assert_eq!(programs["programs"][0]["map_ids"], json!([kinds[0]["id"]]), "the one that its program uses");
        if killed {
            asked.run("map push pinned /m/one value 7").exits(0);
        }
    }
    assert!(asked.run("map pop pinned /m/two").exits(0).out.starts_with("hex:07"), "once, whatever it is called");
    asked.run("map pop pinned /m/one").exits(1).says("it is empty");
}
