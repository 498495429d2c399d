//! Documents of `xway bench` beside what docs/json.md says of them.

mod common;
#[path = "examples/fields.rs"]
mod fields;

use common::{Dir, clang, compiled, rooted, xway};
use fields::Fields;
use serde_json::Value;
use xway_testkit::Needs;

const SMALL: &str = "--rounds 1 --count 2000";

/// Verbs, and their arguments in small: each a document.
const RUNS: &[(&str, &[&str])] = &[
    (
        "prog",
        &[
            "--list --filter hash",
            "--rounds 1 --filter MAC",
            "--rounds 1 --filter random --techniques",
            "--rounds 1 --filter MAC --counters",
            "--rounds 1 --filter MAC --vs kernel",
            "OBJ --rounds 1 --fill seen=flows --flows 10 --table seen=20",
        ],
    ),
    (
        "map",
        &[
            "--type hash --entries 100 --key 8 --rounds 1",
            "--type hash --entries 100 --key 8 --rounds 1 --vs kernel",
            "--type hash --entries 100 --key 8 --rounds 1 --threads 1",
            "--type hash --entries 100 --key 8 --memory",
            "--type hash --entries 100 --key 8 --memory --vs kernel",
        ],
    ),
    ("path", &[SMALL, "--rounds 1 --count 2000 --vs kernel"]),
    ("drop", &[SMALL, "--rounds 1 --count 2000 --breakdown --vs kernel", "--rounds 1 --count 2000 --sweep"]),
    ("pass", &[SMALL]),
    ("tx", &[SMALL]),
    ("redirect", &[SMALL]),
    ("redirect-map", &[SMALL]),
    ("redirect-cpu", &["--rounds 1 --count 2000 --techniques"]),
    ("redirect-multi", &[SMALL]),
    ("xsk-drop", &[SMALL, "--rounds 1 --count 2000 --vs kernel"]),
    ("xsk-push", &[SMALL]),
    ("xsk-fwd", &[SMALL]),
    ("latency", &["--rounds 1 --count 1000"]),
    ("workers", &["--rounds 1 --time 10"]),
    ("dispatch", &["--rounds 1 --count 10000"]),
    ("wire", &["--rounds 1 --time 20"]),
    ("levels", &[SMALL]),
    ("aborted", &[SMALL]),
    ("pool", &[SMALL]),
    ("ring", &[SMALL]),
    ("verify", &["OBJ --rounds 1", "OBJ --rounds 1 --vs kernel", "OBJ /none.o --rounds 1"]),
    ("compile", &["OBJ --rounds 1", "OBJ /none.o --rounds 1"]),
    ("machine", &[""]),
];

/// A program that is measured, and one that is not.
const OBJECT: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, __u32); } seen SEC(".maps");
SEC("xdp") int looks(struct xdp_md *ctx) { __u32 key = 1; return bpf_map_lookup_elem(&seen, &key) ? XDP_DROP : XDP_PASS; }
SEC("xdp") int unproved(struct xdp_md *ctx) { return *(char *)(long)ctx->data; }
char _license[] SEC("license") = "GPL";
"#;

#[test]
fn documents_are_as_the_page_says() {
    const NAME: &str = "bench_json::documents_are_as_the_page_says";
    if !clang(NAME) || !rooted(NAME) {
        return;
    }
    let two = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if !Needs::of(NAME).that(two, "two cores").met() {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "looks", OBJECT, &[]);
    let fields = Fields::read();
    let mut wrong = Vec::new();
    for (verb, runs) in RUNS {
        let command = format!("bench {verb}");
        for run in *runs {
            let words = run.split(' ').filter(|word| !word.is_empty());
            let words = words.map(|word| if word == "OBJ" { object.as_str() } else { word });
            let args: Vec<&str> = ["bench", verb].into_iter().chain(words).chain(["-j"]).collect();
            let ran = xway(&args);
            let document = ran.json();
            assert!(document.get("error").is_none(), "{args:?}: {ran:?}");
            let documents = match document.get("sweep").and_then(Value::as_array) {
                Some(all) => all
                    .iter()
                    .cloned()
                    .map(|mut one| {
                        one["schema_version"] = 1.into();
                        one["command"] = command.clone().into();
                        one
                    })
                    .collect(),
                None => vec![document],
            };
            let told = documents.iter().flat_map(|document| fields.complaints(&command, document));
            wrong.extend(told.map(|what| format!("{run}: {what}")));
        }
        wrong.extend(fields.never(&command).into_iter().map(|at| format!("docs/json.md, {at}: nothing prints it")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every verb that measures has a section, and its documents are looked at.
#[test]
fn every_verb_is_described() {
    let help = xway(&["bench", "--help"]).exits(0).out;
    let (_, below) = help.split_once("\nCommands:\n").unwrap();
    let names = below.lines().take_while(|l| !l.is_empty()).filter_map(|l| l.strip_prefix("  ")?.split(' ').next());
    let mut verbs: Vec<&str> = names.filter(|name| !["", "help"].contains(name)).collect();
    let fields = Fields::read();
    let mut described: Vec<&str> = fields.verbs().filter_map(|verb| verb.strip_prefix("bench-")).collect();
    let mut run: Vec<&str> = RUNS.iter().map(|(verb, _)| *verb).collect();
    [&mut verbs, &mut described, &mut run].into_iter().for_each(|all| all.sort_unstable());
    assert_eq!((&verbs, &verbs), (&described, &run));
}
