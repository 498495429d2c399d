//! `xway bench prog --fill`, `--table`: a user's maps hold the same on both sides before anything is measured.

mod common;

use common::{Dir, clang, compiled, rooted, xway};
use serde_json::{Value, json};

/// A balancer: a service, its connections, its servers; what a CPU counts; the server that is sent to, a constant.
const BALANCER: &str = r#"
struct flow { __u32 saddr, daddr; __u16 sport, dport; __u8 proto; __u8 pad[3]; };
struct service { __u32 address; __u16 port; __u16 proto; };
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16); __type(key, struct service); __type(value, __u32); } services SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16); __type(key, struct flow); __type(value, __u32); } connections SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u64); } servers SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_HASH); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); } counted SEC(".maps");
volatile const __u32 only;
SEC("xdp") int balance(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + 42 > end) return XDP_ABORTED;
    struct service to = { *(__u32 *)(data + 30), *(__u16 *)(data + 36), *(__u8 *)(data + 23) };
    if (!bpf_map_lookup_elem(&services, &to)) return XDP_PASS;
    struct flow flow = { *(__u32 *)(data + 26), to.address, *(__u16 *)(data + 34), to.port, to.proto };
    __u32 *server = bpf_map_lookup_elem(&connections, &flow);
    if (!server) return XDP_DROP;
    __u64 *port = bpf_map_lookup_elem(&servers, server);
    if (!port || *port != only) return XDP_ABORTED;
    __u32 seven = 7, *count = bpf_map_lookup_elem(&counted, &seven);
    if (!count) return XDP_ABORTED;
    *count += 1;
    return XDP_TX;
}
char _license[] SEC("license") = "GPL";
"#;

fn filled(dir: &Dir) -> Vec<String> {
    let file = |name: &str, json: Value| dir.file(name, json.to_string());
    let entries = |entries: Value| json!({ "name": "x", "type": "array", "entries": entries });
    // As bpftool prints bytes, as `map dump -j` prints a map, as a data section is written.
    let servers = file("servers.json", json!([{ "key": ["0x01", "0x00", "0x00", "0x00"], "value": 5 }]));
    let counted = file("counted.json", entries(json!([{ "key": 7, "values": [5, 6] }])));
    let constants = file("constants.json", json!({ "only": 5 }));
    let fills = [
        format!("servers={servers}"),
        format!("counted={counted}"),
        format!(".rodata={constants}"),
        "services=flows".into(),
        "connections=flows:1".into(),
    ];
    fills.into_iter().flat_map(|fill| ["--fill".to_owned(), fill]).collect()
}

fn bench(object: &str, args: &[&str]) -> common::Ran {
    xway(&[&["bench", "prog", object, "--rounds", "1", "--flows", "1000"], args].concat())
}

#[test]
fn both_sides_are_filled_alike() {
    if !rooted("bench_fill::both_sides_are_filled_alike") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "own", BALANCER, &[]);
    let fills = filled(&dir);
    let fills: Vec<&str> = fills.iter().map(String::as_str).collect();
    let all = [&fills[..], &["--table", "connections=2000", "--vs", "kernel", "-j"]].concat();
    let row = &bench(&object, &all).exits(0).json()["rows"][0];
    assert_eq!(row["checked"]["verdicts_ours"][3], row["ring_packets"], "{row}");
    assert_eq!(row["checked"]["verdicts_kernel"], row["checked"]["verdicts_ours"], "{row}");
    let elements = row["checked"]["map_elements"].as_u64();
    assert!(elements > Some(1000), "{row}");
    assert_eq!(row["sizes"], json!([{ "map": "connections", "entries": 2000 }]));
    let want = [("servers", 1), ("counted", 1), ("services", 1), ("connections", 1000)];
    let want: Vec<_> = want.iter().map(|(map, elements)| json!({ "map": map, "elements": elements })).collect();
    assert_eq!(row["filled"], json!(want));
}

/// Without the kernel, in words: what is filled, what comes of it, and which tables nobody filled.
#[test]
fn what_is_filled_is_said() {
    if !clang("bench_fill::what_is_filled_is_said") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "own", BALANCER, &[]);
    let empty = bench(&object, &[]).exits(0).out;
    assert!(empty.contains("    verdicts: PASS 100.0 %\n") && !empty.contains("filled"), "{empty}");
    assert!(
        empty.contains("\nempty at the start: own.o:connections, own.o:counted, own.o:services (--fill"),
        "{empty}"
    );
    let fills = filled(&dir);
    let fills: Vec<&str> = fills.iter().map(String::as_str).collect();
    let out = bench(&object, &[&fills[..], &["--table", "connections=2000"]].concat()).exits(0).out;
    assert!(out.contains("    filled: servers 1, counted 1, services 1, connections 1,000\n"), "{out}");
    assert!(out.contains("    verdicts: TX 100.0 %\n") && !out.contains("empty at the start"), "{out}");
    // As many as fit: the others are misses.
    let some = bench(&object, &fills).exits(0).out;
    let filled =
        "    filled: servers 1, counted 1, services 1, connections 16 of 1,000 flows (--table connections=1000)\n";
    assert!(some.contains(filled) && some.contains("verdicts: DROP 98."), "{some}");
    let list = xway(&["bench", "prog", &object, "--list", "--table", "connections=2000", "--table", "servers=8"]);
    assert!(list.exits(0).out.contains("connections 2,000, servers 8"));
    let table = bench(&object, &[&fills[..], &["--markdown"]].concat()).exits(0).out;
    assert!(table.contains("\nfilled for own.o:balance: servers 1, counted 1,"), "{table}");
}

/// Queues without keys, programs, maps in maps: both sides hold their own objects.
#[test]
fn what_holds_objects_is_filled_by_names() {
    if !rooted("bench_fill::what_holds_objects_is_filled_by_names") {
        return;
    }
    let dir = Dir::new();
    let text = r#"
struct inner { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u32); };
struct inner five SEC(".maps"), six SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS); __uint(max_entries, 4); __type(key, __u32); __array(values, struct inner); } outer SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_QUEUE); __uint(max_entries, 4); __type(value, __u32); } queue SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u32); } next SEC(".maps");
SEC("xdp") int last(struct xdp_md *ctx) {
    __u32 nine = 9, one = 1, head = 0, *value;
    void *map = bpf_map_lookup_elem(&outer, &nine);
    if (!map || !(value = bpf_map_lookup_elem(map, &one)) || bpf_map_peek_elem(&queue, &head)) return XDP_ABORTED;
    return *value == 6 && head == 33 ? XDP_TX : XDP_DROP;
}
SEC("xdp") int first(struct xdp_md *ctx) { bpf_tail_call(ctx, &next, 1); return XDP_PASS; }
char _license[] SEC("license") = "GPL";
"#;
    let object = compiled(&dir, "holds", text, &[]);
    let contents = [
        ("outer", json!([{ "key": 9, "value": "six" }])),
        ("six", json!([{ "key": 1, "value": 6 }])),
        ("queue", json!([{ "value": 33 }, { "value": 34 }])),
        ("next", json!([{ "key": 1, "value": "last" }])),
    ];
    let file = |(map, json): &(&str, Value)| format!("{map}={}", dir.file(&format!("{map}.json"), json.to_string()));
    let fills: Vec<String> = contents.iter().flat_map(|content| ["--fill".to_owned(), file(content)]).collect();
    let fills: Vec<&str> = fills.iter().map(String::as_str).collect();
    let doc = bench(&object, &[&fills[..], &["--vs", "kernel", "-j"]].concat()).exits(0).json();
    assert_eq!(doc["rows"].as_array().unwrap().len(), 2, "{doc}");
    for row in doc["rows"].as_array().unwrap() {
        assert_eq!(row["checked"]["verdicts_ours"][3], row["ring_packets"], "{row}");
        assert_eq!(row["checked"]["differences"], json!([]), "{row}");
    }
}

/// What a run leaves in its maps is what the next measurement begins with.
#[test]
fn what_a_run_prints_is_read() {
    if !clang("bench_fill::what_a_run_prints_is_read") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "own", BALANCER, &[]);
    let services = json!([{ "key": { "address": "ip:198.18.1.1", "port": "be16:80", "proto": 17 }, "value": 1 }]);
    let services = dir.file("services.json", services.to_string());
    let map = format!("services={services}");
    let zeros = common::hex(&[0; 64]);
    let packet = ["prog", "run", &object, "--data-in", &zeros, "--map", &map, "--dump-maps", "-j"];
    let ran = xway(&packet).exits(0).json();
    let dumped = ran["maps"].as_array().unwrap().iter().find(|map| map["name"] == "services").unwrap().to_string();
    let again = format!("services={}", dir.file("again.json", dumped));
    // The option is called as it is elsewhere, too.
    for option in ["--fill", "--map"] {
        let row = &bench(&object, &[option, &again, "-j"]).exits(0).json()["rows"][0];
        assert_eq!(row["checked"]["verdicts_ours"][1], row["ring_packets"], "{row}");
    }
}

#[test]
fn what_cannot_be_filled_is_said() {
    if !clang("bench_fill::what_cannot_be_filled_is_said") {
        return;
    }
    let dir = Dir::new();
    let text = BALANCER.replace("daddr;", "zone;");
    let (object, zoned) = (compiled(&dir, "own", BALANCER, &[]), compiled(&dir, "zoned", &text, &[]));
    let refused = |object: &str, args: &[&str], code: i32, words: &[&str]| {
        let ran = bench(object, args).exits(code);
        words.iter().for_each(|words| assert!(ran.err.contains(words), "{words:?} is not in:\n{}", ran.err));
        assert_eq!(ran.out, "", "before anything is measured");
    };
    refused(&object, &["--fill", "flows"], 2, &["--fill flows: expected NAME=FILE.json or NAME=flows"]);
    refused(&object, &["--fill", "none=flows"], 2, &["--fill none: no map of this name", "own.o has ", "connections"]);
    refused(&object, &["--table", "none=5"], 2, &["--table none: no map of this name", "connections"]);
    refused(&object, &["--table", "5"], 2, &["several: ", "--table services=N"]);
    refused(&object, &["--table", "services=0"], 2, &["a number of entries"]);
    refused(&object, &["--table", ".rodata=2"], 2, &["data section"]);
    refused(&object, &["--fill", "servers=flows"], 2, &["array has no keys that could be flows", "servers=FILE.json"]);
    let many = &["--fill connections=flows: ", "many", "try: a value as in --fill 'connections=flows:0'"];
    refused(&object, &["--fill", "connections=flows:many"], 2, many);
    let tables = BALANCER.replace(
        "__type(key, struct flow); __type(value, __u32)",
        "__type(key, struct flow); __type(value, struct service)",
    );
    let tables = compiled(&dir, "tables", &tables.replace("*server =", "*server = (void *)"), &[]);
    let members = r#"try: a value as in --fill 'connections=flows:{"address":0,"port":0,"proto":0}'"#;
    refused(&tables, &["--fill", "connections=flows:1"], 2, &["struct service wants a table of its members", members]);
    refused(&object, &["--fill", "connections=flow"], 3, &["flow: no such file", "try: a file as ", "flows for a key"]);
    refused(&zoned, &["--fill", "connections=flows"], 2, &["a member \"zone\"", "saddr, daddr", "FILE.json"]);
    refused(&object, &["--fill", "servers=/none/x.json"], 3, &["--fill servers", "/none/x.json"]);
    let wrong = dir.file("wrong.json", r#"[{"key": 1, "value": {"a": 1}}]"#);
    refused(
        &object,
        &["--fill", &format!("servers={wrong}")],
        3,
        &["wrong.json: map servers: value", "wants a number"],
    );
    // A size that an array has from the command line is its size.
    let far = format!("servers={}", dir.file("far.json", r#"[{"key": 77, "value": 1}, {"key": 5, "value": 1}]"#));
    let above =
        &["far.json: map servers: the index 77 is not below 4, the size of this array", "try: --table servers=78"];
    refused(&object, &["--fill", &far], 3, above);
    refused(&object, &["--fill", &far, "--table", "servers=77"], 3, &["not below 77"]);
    bench(&object, &["--fill", &far, "--table", "servers=78"]).exits(0);
    // What a map does not take is found when it is filled: on which side, at which element, and what to try.
    let many = json!((0..20).map(|n| json!({ "key": n, "value": n })).collect::<Vec<_>>());
    let many = format!("counted={}", dir.file("many.json", many.to_string()));
    let ran =
        bench(&object, &["--fill", &many]).exits(3).says("filling map counted, ours, stops at element 5 of 20: E2BIG");
    assert!(ran.err.contains("--table counted=20"), "{}", ran.err);
    let room = bench(&object, &["--fill", &many, "--table", "counted=20", "-j"]).exits(0).json();
    assert_eq!(room["rows"][0]["filled"], json!([{ "map": "counted", "elements": 20 }]));
    // Larger than any map is.
    let ran = bench(&object, &["--table", "connections=4294967295"]).exits(3).says("map connections: ");
    assert!(ran.err.contains("try: a smaller --table"), "{}", ran.err);
    // The suite fills its maps by itself.
    xway(&["bench", "prog", "--filter", "MAC swap", "--fill", "x=flows"]).exits(2).says("by themselves");
    xway(&["bench", "prog", "--filter", "MAC swap", "--table", "x=5"]).exits(2).says("objects of one's own");
}
