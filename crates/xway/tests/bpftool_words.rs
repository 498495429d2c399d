//! Words and fields of bpftool: types listed and as C, code with lines and bytes, where objects are pinned, what they take. The tool
//! itself, where it is there, is asked the same.

mod common;

use common::wire::{Bench, ready};
use common::{Dir, Ran, compiled};
use serde_json::Value;
use xway_object::btf::{BtfBuilder, IntEncoding};
use xway_testkit::{clang, has_command};

const SOURCE: &str = r#"
struct tight { char a; int b; } __attribute__((packed));
enum color { RED, GREEN = 5 };
typedef int (*callback_t)(struct tight *, const char *, ...);
struct words_value { long x; struct tight p; unsigned f : 3, g : 7; enum color c; callback_t cb; union { int u; char v[8]; };
    struct { int q; } inner; struct words_value *next; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, int); __type(value, struct words_value); }
words_map SEC(".maps");
static __attribute__((noinline)) int look(struct xdp_md *ctx, int k)
{
    struct words_value *v = bpf_map_lookup_elem(&words_map, &k);
    return v && v->f == k ? 1 : ctx->ingress_ifindex == 7;
}
SEC("xdp") int words(struct xdp_md *ctx)
{
    return look(ctx, ctx->rx_queue_index) ? XDP_DROP : XDP_PASS;
}
char _license[] SEC("license") = "GPL";
"#;

/// A host with the program and its pins, at paths that nobody else sees; the program's number.
fn loaded(dir: &Dir, label: &str) -> (Bench, String, String) {
    let bench = Bench::new(label, true);
    let object = compiled(dir, "words", SOURCE, &[]);
    let done = bench.json(&["load", "r0", &object, "-p", "/sys/fs/bpf/words"]);
    let id = done["attachment"]["program"]["id"].to_string();
    bench.xway(&["prog", "pin", "id", &id, "/sys/fs/bpf/words/program"]).exits(0);
    (bench, id, object)
}

/// What bpftool prints, where it is there.
fn theirs(bench: &Bench, args: &[&str]) -> Option<Ran> {
    if !has_command("bpftool") {
        xway_testkit::skip("xway::bpftool_words", "bpftool");
        return None;
    }
    Some(bench.run("bpftool", args).exits(0))
}

fn their_json(bench: &Bench, args: &[&str]) -> Option<Value> {
    theirs(bench, &[&["-j"], args].concat()).map(|ran| serde_json::from_str(&ran.out).unwrap())
}

#[test]
fn types_are_listed_with_who_has_them() {
    if !ready("bpftool_words::types_are_listed_with_who_has_them") {
        return;
    }
    let dir = Dir::new();
    let (bench, id, _) = loaded(&dir, "wordbtf");
    let prog = bench.json(&["prog", "show", "id", &id])["programs"][0].clone();
    let btf = prog["btf_id"].to_string();
    let all = bench.json(&["btf", "list"]);
    let own = all["btfs"].as_array().unwrap().iter().find(|b| b["id"] == prog["btf_id"]).unwrap().clone();
    assert_eq!((own["kernel"].as_bool(), own["prog_ids"][0].to_string()), (Some(false), id.clone()), "{own}");
    assert_eq!(own["map_ids"], prog["map_ids"], "{own}");
    assert_eq!(bench.json(&["btf", "show", "id", &btf])["btfs"][0], own);
    let text = bench.xway(&["btf", "show", "id", &btf]).exits(0).out;
    if let Some(theirs) = their_json(&bench, &["btf", "show", "id", &btf]) {
        for field in ["id", "size", "kernel", "prog_ids", "map_ids"] {
            assert_eq!(own[field], theirs[field], "{field}");
        }
        assert_eq!(text, self::theirs(&bench, &["btf", "show", "id", &btf]).unwrap().out);
    }
    // The kernel's own has a name.
    let vmlinux = |all: &Value| all.as_array().unwrap().iter().find(|b| b["name"] == "vmlinux").cloned();
    if let (Some(ours), Some(theirs)) = (vmlinux(&all["btfs"]), their_json(&bench, &["btf", "show"])) {
        let theirs = vmlinux(&theirs).unwrap();
        assert_eq!((&ours["id"], &ours["size"], &ours["kernel"]), (&theirs["id"], &theirs["size"], &theirs["kernel"]));
    }
    bench.xway(&["btf", "show", "id", "4000000000"]).exits(1).says("no btf with id 4000000000");
    bench.xway(&["btf", "show", "more", "words"]).exits(2).says("words: not expected here");
}

#[test]
fn types_are_printed_raw_and_as_c() {
    if !ready("bpftool_words::types_are_printed_raw_and_as_c") {
        return;
    }
    let dir = Dir::new();
    let (bench, id, object) = loaded(&dir, "wordc");
    let map = "/sys/fs/bpf/words/words_map";
    for source in [
        &["file", object.as_str()][..],
        &["prog", "id", &id],
        &["map", "pinned", map],
        &["map", "pinned", map, "key"],
        &["map", "pinned", map, "value"],
        &["map", "pinned", map, "kv"],
        &["map", "pinned", map, "all"],
    ] {
        let dump = [&["btf", "dump"], source].concat();
        let ours = bench.json(&dump);
        if let Some(theirs) = their_json(&bench, &dump) {
            assert_eq!(ours["types"], theirs["types"], "{source:?}");
        }
        let as_c = [&dump[..], &["format", "c"]].concat();
        let ours = bench.xway(&as_c).exits(0).out;
        assert_eq!(bench.json(&as_c)["c"].as_str(), Some(ours.as_str()));
        if let Some(theirs) = theirs(&bench, &as_c) {
            assert_eq!(ours, theirs.out, "{source:?}");
        }
        // A program may include it.
        clang::compile_text("header", &ours, &["-Werror", "-Wno-pragma-clang-attribute"])
            .unwrap_or_else(|e| panic!("{source:?}: {e}"));
    }
    let raw = [&["btf", "dump", "prog", "id", &id], &["format", "raw"][..]].concat();
    assert_eq!(bench.xway(&raw).exits(0).out, bench.xway(&["btf", "dump", "prog", "id", &id]).exits(0).out);
    bench.xway(&["btf", "dump", "prog", "id", &id, "format", "d"]).exits(2).says("format d");
    bench.xway(&["btf", "dump", "prog", "id", &id, "format"]).exits(2).says("format: of which kind?");
    bench.xway(&["btf", "dump", "map", "pinned", map, "both"]).exits(2).says("both: not expected here");
}

/// Types that continue others: `all` without the first ones, which are `base`.
fn behind(base: &[u8], all: &[u8]) -> Vec<u8> {
    let word = |raw: &[u8], at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().unwrap()) as usize;
    let (own, more) = ((word(base, 12), word(base, 20)), (word(all, 12), word(all, 20)));
    let (types, strings) = (&all[24 + own.0..24 + more.0], &all[24 + more.0 + own.1..]);
    let mut split = vec![0x9f, 0xeb, 1, 0];
    for field in [24, 0, types.len(), types.len(), strings.len()] {
        split.extend((field as u32).to_le_bytes());
    }
    [&split[..], types, strings].concat()
}

/// As those of a kernel module continue the kernel's.
#[test]
fn types_that_continue_others_are_printed_with_them() {
    if !ready("bpftool_words::types_that_continue_others_are_printed_with_them") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("wordsplit", false));
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let head = b.structure("list_head", 4, &[("prev", int, 0)]);
    let base = b.to_bytes();
    let device = b.structure("my_device", 16, &[("list", head, 0), ("minor", int, 32), ("self", head + 2, 64)]);
    let pointer = b.ptr(device);
    b.typedef("my_device_t", pointer);
    let (kernel, module) = (dir.arg("kernel.btf"), dir.arg("module.btf"));
    std::fs::write(&kernel, &base).unwrap();
    std::fs::write(&module, behind(&base, &b.to_bytes())).unwrap();

    let dump = ["btf", "dump", "file", &module, "-B", &kernel];
    let raw = bench.xway(&dump).exits(0).out;
    assert!(
        raw.starts_with(&format!("[{device}] STRUCT 'my_device' size=16 vlen=3\n\t'list' type_id={head}")),
        "{raw}"
    );
    let their_dump = ["-B", &kernel, "btf", "dump", "file", &module];
    if let Some(theirs) = theirs(&bench, &their_dump) {
        assert_eq!(raw, theirs.out);
        let json: Value =
            serde_json::from_str(&bench.run("bpftool", &[&["-j"], &their_dump[..]].concat()).out).unwrap();
        assert_eq!(bench.json(&dump)["types"], json["types"]);
    }
    let header = bench.xway(&[&dump[..], &["format", "c"]].concat()).exits(0).out;
    for text in ["struct list_head {", "struct my_device {", "typedef struct my_device *my_device_t;"] {
        assert!(header.contains(text), "{header}");
    }
    clang::compile_text("header", &header, &["-Werror", "-Wno-pragma-clang-attribute"]).unwrap();
    // Alone they are not whole.
    bench.xway(&["btf", "dump", "file", &module]).exits(3).says("module.btf: ");
    // A module's are known by their name, and continue the kernel's without being asked.
    for name in std::fs::read_dir("/sys/kernel/btf").into_iter().flatten().flatten() {
        let path = name.path().display().to_string();
        if let Some(theirs) =
            (!path.ends_with("/vmlinux")).then(|| theirs(&bench, &["btf", "dump", "file", &path])).flatten()
        {
            assert_eq!(bench.xway(&["btf", "dump", "file", &path]).exits(0).out, theirs.out, "{path}");
        }
    }
}

/// The lines of a listing that the other tool spells the same: functions, source lines and bytes.
fn comparable(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let spelled = line.trim();
        let place = spelled.split_once(": (").map(|(place, rest)| format!("{place}: {}", &rest[..2]));
        place.unwrap_or_else(|| spelled.replace(" * ", " *"))
    };
    text.lines().map(line).collect()
}

#[test]
fn code_is_shown_with_its_functions_lines_and_bytes() {
    if !ready("bpftool_words::code_is_shown_with_its_functions_lines_and_bytes") {
        return;
    }
    let dir = Dir::new();
    let (bench, id, _) = loaded(&dir, "wordcode");
    let dump = ["prog", "dump", "xlated", "id", &id];
    let plain = bench.xway(&dump).exits(0).out;
    assert!(plain.starts_with("int words(struct xdp_md *ctx):\n; "), "{plain}");
    assert!(plain.contains("\nint look(struct xdp_md *ctx, int k):\n"), "{plain}");
    for extra in [&[][..], &["opcodes"], &["linum"]] {
        let args = [&dump[..], extra].concat();
        let ours = bench.xway(&args).exits(0).out;
        if let Some(theirs) = theirs(&bench, &args) {
            assert_eq!(comparable(&ours), comparable(&theirs.out), "{extra:?}");
        }
    }
    let both = bench.json(&[&dump[..], &["linum", "opcodes"]].concat());
    let first = &both["disassembly"][0];
    assert_eq!(first["proto"], "int words(struct xdp_md *ctx)", "{first}");
    assert!(first["file"].as_str().unwrap().contains("words") && first["line_num"].as_u64() > Some(0), "{first}");
    assert_eq!(first["opcodes"].as_str().map(|o| o.split(' ').count()), Some(8), "{first}");
    // Machine code: functions by the names that the kernel lists them with, which show up in its own list.
    if bench.json(&["prog", "show", "id", &id])["programs"][0]["jited"] == true {
        let jited = bench.json(&["prog", "dump", "jited", "id", &id, "linum", "opcodes"]);
        let functions = jited["functions"].as_array().unwrap();
        assert_eq!(functions.len(), 2, "{jited}");
        let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut bytes = 0;
        for function in functions {
            let name = function["name"].as_str().unwrap();
            assert!(name.starts_with("bpf_prog_") && symbols.contains(name), "{name}");
            assert_eq!(function["offset"].as_u64(), Some(bytes), "{name}");
            bytes += function["bytes"].as_u64().unwrap();
            let listed = function["disassembly"].as_array().unwrap();
            assert!(listed[0]["proto"].is_string() && listed.iter().any(|row| row["src"].is_string()), "{name}");
            let all = listed.iter().map(|row| row["opcodes"].as_str().unwrap()).collect::<Vec<_>>().join(" ");
            assert_eq!(
                all.split(' ').count() as u64,
                function["bytes"].as_u64().unwrap(),
                "{name}: no byte is left out"
            );
        }
        assert_eq!(Some(bytes), jited["bytes"].as_u64());
        let text = bench.xway(&["prog", "dump", "jited", "id", &id, "linum"]).exits(0).out;
        assert!(text.starts_with("int words(struct xdp_md *ctx):\nbpf_prog_") && text.contains("line_num:"), "{text}");
    }
    let file = dir.arg("code.bin");
    bench.xway(&[&dump[..], &["file", &file]].concat()).exits(0);
    assert_eq!(std::fs::metadata(&file).unwrap().len() % 8, 0);
}

/// The lines of a graph that the other tool spells the same: nodes, places with their opcodes, edges. It calls functions by number.
fn drawn(text: &str) -> Vec<String> {
    let line = |line: &str| match line.split_once(": (") {
        Some((place, rest)) => format!("{place}: {}", &rest[..2]),
        None if line.contains("label=\"") && line.contains(" ()\"") => "a function".to_owned(),
        None => line.to_owned(),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_ways_through_a_program_are_drawn() {
    if !ready("bpftool_words::the_ways_through_a_program_are_drawn") {
        return;
    }
    let dir = Dir::new();
    let (bench, id, object) = loaded(&dir, "wordgraph");
    let dump = ["prog", "dump", "xlated", "id", &id, "visual"];
    let ours = bench.xway(&dump).exits(0).out;
    for function in ["words", "look"] {
        assert!(ours.contains(&format!("label=\"{function} ()\"")), "{ours}");
    }
    assert_eq!(bench.json(&dump)["graph"], ours.as_str());
    if let Some(theirs) = theirs(&bench, &dump) {
        assert_eq!(drawn(&ours), drawn(&theirs.out));
    }
    bench.xway(&[&dump[..], &["opcodes"]].concat()).exits(2).says("leave opcodes and linum out");
    bench.xway(&["prog", "dump", "jited", "id", &id, "visual"]).exits(2).says("visual: the ways through jited code");
    // Of an object file the instructions are those of the file.
    let drawn = bench.xway(&["prog", "dump", "xlated", &object, "visual"]).exits(0).out;
    assert!(drawn.starts_with("digraph") && drawn.contains("label=\"words ()\""), "{drawn}");
}

#[test]
fn objects_say_where_they_are_pinned_and_what_they_take() {
    if !ready("bpftool_words::objects_say_where_they_are_pinned_and_what_they_take") {
        return;
    }
    let dir = Dir::new();
    let (bench, id, _) = loaded(&dir, "wordpins");
    let ours = bench.json(&["prog", "show", "id", &id, "-f"])["programs"][0].clone();
    assert_eq!(ours["pinned"], serde_json::json!(["/sys/fs/bpf/words/program"]), "{ours}");
    assert!(bench.json(&["prog", "show", "id", &id])["programs"][0].get("pinned").is_none(), "only when asked");
    let text = bench.xway(&["prog", "show", "id", &id, "--bpffs"]).exits(0).out;
    assert!(text.ends_with("\n  pinned /sys/fs/bpf/words/program\n"), "{text}");
    // As bpftool has it, in front.
    assert_eq!(bench.xway(&["-f", "prog", "show", "id", &id]).exits(0).out, text);
    let map = bench.json(&["map", "show", "pinned", "/sys/fs/bpf/words/words_map", "-f"])["maps"][0].clone();
    assert_eq!(map["pinned"], serde_json::json!(["/sys/fs/bpf/words/words_map"]), "{map}");
    assert_eq!(map["bytes_per_entry"].as_u64(), map["bytes_memlock"].as_u64().map(|bytes| bytes.div_ceil(4)), "{map}");
    let link = bench.json(&["link", "show", "-f"])["links"]
        .as_array()
        .unwrap()
        .iter()
        .find(|l| l["prog_id"].as_u64().is_some_and(|held| held.to_string() == id))
        .cloned();
    let link = link.expect("the program is held by a link");
    assert_eq!(link["pinned"], serde_json::json!([format!("/sys/fs/bpf/xway/links/{}", link["id"])]), "{link}");
    if let Some(theirs) = their_json(&bench, &["-f", "prog", "show", "id", &id]) {
        for field in theirs.as_object().unwrap().keys() {
            // Somebody may have runs counted meanwhile.
            if !["run_cnt", "run_time_ns", "pids", "pinned"].contains(&field.as_str()) {
                assert_eq!(ours[field], theirs[field], "{field}");
            }
        }
        let theirs = their_json(&bench, &["-f", "map", "show", "pinned", "/sys/fs/bpf/words/words_map"]).unwrap();
        for field in ["id", "bytes_memlock", "btf_id"] {
            assert_eq!(map[field], theirs[field], "{field}");
        }
        // It tells a path once for each time that something is mounted there.
        assert_eq!(map["pinned"][0], theirs["pinned"][0]);
    }
    assert_eq!(ours["orphaned"], false);
    bench.xway(&["link", "show", "-f", "--hook", "user", "--socket", "/nowhere"]).exits(2).says("have no pins");
}

#[test]
fn what_leads_nowhere_is_told_where_things_are_listed() {
    if !ready("bpftool_words::what_leads_nowhere_is_told_where_things_are_listed") {
        return;
    }
    let dir = Dir::new();
    let (bench, _, object) = loaded(&dir, "wordnone");
    for (verb, kind) in [("prog show", "prog"), ("map show", "map"), ("link show", "link"), ("link detach", "link")] {
        let words: Vec<&str> = verb.split(' ').chain(["id", "4000000000"]).collect();
        bench.xway(&words).exits(1).says(&format!("try: xway {kind} show"));
    }
    bench.xway(&["map", "show", "tag", "abc"]).exits(2).says("maps have no tags");
    let path = "/sys/fs/bpf/words/words_map";
    let pin = ["map", "pin", "pinned", path, path];
    bench.xway(&pin).exits(1).says("take that pin away: xway map unpin /sys/fs/bpf/words/words_map");
    // Root is told what is wrong with the path, not to become root.
    for kind in ["prog", "map", "link"] {
        let file = bench.xway(&[kind, "show", "pinned", &object]).exits(3);
        assert!(!file.err.contains("run as root"), "{}", file.err);
        file.says("not in a BPF file system, so no object is pinned there");
        bench.xway(&[kind, "show", "pinned", "/tmp"]).exits(3).says("not in a BPF file system");
        bench.xway(&[kind, "show", "pinned", "/sys/fs/bpf/words"]).exits(3).says("a directory of pins, not a pin");
    }
}
