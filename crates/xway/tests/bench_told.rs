//! `xway bench`: what is said beside the figures. Where options, the compiler, a missing privilege or a file leave less than what was
//! asked for, the row, the message and the exit code say so.

mod common;

use common::{Dir, clang, compiled, output, rooted, xway};

/// Programs of one's own, each an object.
fn object(dir: &Dir, name: &str, body: &str) -> String {
    let text = format!("{body}\nchar _license[] SEC(\"license\") = \"GPL\";\n");
    compiled(dir, name, &text, &[])
}

/// What two runs need not have in common is not compared, by the same rule wherever something is measured.
#[test]
fn chance_and_clocks_are_not_compared() {
    if !clang("bench_told::chance_and_clocks_are_not_compared") {
        return;
    }
    let dir = Dir::new();
    let chance = "SEC(\"xdp\") int chance(struct xdp_md *ctx) { return bpf_get_prandom_u32() & 1 ? XDP_DROP : XDP_PASS; }\n\
                  __u64 last; SEC(\"xdp\") int stored(struct xdp_md *ctx) { last = bpf_ktime_get_ns(); return XDP_PASS; }\n\
                  SEC(\"xdp\") int plain(struct xdp_md *ctx) { return XDP_PASS; }";
    let object = object(&dir, "chance", chance);
    let args = ["bench", "prog", &object, "--rounds", "1"];
    let rows = xway(&[&args[..], &["-j"]].concat()).exits(0).json()["rows"].clone();
    let rows = rows.as_array().unwrap();
    let why: Vec<_> = rows.iter().map(|row| row["checked"]["not_compared"].as_str()).collect();
    assert_eq!(why, [Some("random numbers"), Some("clocks"), None]);
    let compared: Vec<_> = rows.iter().map(|row| row["checked"]["packets"].as_u64().unwrap() > 0).collect();
    assert_eq!(compared, [false, false, true]);
    let out = xway(&args).exits(0).out;
    assert!(
        out.contains("\n    not compared: random numbers\n") && out.contains("\n    not compared: clocks\n"),
        "{out}"
    );
    let args = ["bench", "compile", &object, "--rounds", "1"];
    let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
    for row in doc["rows"].as_array().unwrap() {
        let prog = rows.iter().find(|other| other["program"] == row["program"]).unwrap();
        assert_eq!(row["checked"]["not_compared"], prog["checked"]["not_compared"], "{row}");
        assert_eq!(row["checked"]["compared"], row["checked"]["not_compared"].is_null(), "{row}");
    }
    let out = xway(&args).exits(0).out;
    assert!(out.contains("not compared: clocks") && out.contains("not compared: random numbers"), "{out}");
}
