//! `xway test`: the documentation's example, the samples' tests, and what a failure looks like.

mod common;

use serde_json::{Value, json};

use common::{Dir, clang, compiled, xway};
use xway_testkit::clang::repository;

fn documentation() -> String {
    std::fs::read_to_string(repository().join("docs/testing.md")).unwrap()
}

/// The code block after a mark.
fn block(text: &str, mark: &str) -> String {
    let (_, rest) = text.split_once(mark).unwrap_or_else(|| panic!("no {mark:?} in docs/testing.md"));
    let (_, rest) = rest.split_once("```").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    rest.split("```").next().unwrap().to_owned()
}

#[test]
fn the_documented_example_is_the_one_that_runs() {
    let shown = block(&documentation(), "<!-- the first part of bpf/samples/blacklist.toml -->");
    let file = std::fs::read_to_string(repository().join("bpf/samples/blacklist.toml")).unwrap();
    assert!(file.starts_with(&shown), "docs/testing.md shows\n{shown}\nbut the file is\n{file}");
}

#[test]
fn the_samples_pass_their_tests() {
    if !clang("unit_files::the_samples_pass_their_tests") {
        return;
    }
    let mut files: Vec<String> = std::fs::read_dir(repository().join("bpf/samples"))
        .unwrap()
        .map(|e| e.unwrap().path().to_str().unwrap().to_owned())
        .filter(|p| p.ends_with(".toml"))
        .collect();
    files.sort();
    // Each sample has its file.
    for entry in std::fs::read_dir(repository().join("bpf/samples")).unwrap() {
        let path = entry.unwrap().path().to_str().unwrap().to_owned();
        if let Some(stem) = path.strip_suffix(".bpf.c") {
            assert!(files.contains(&format!("{stem}.toml")), "{path} has no vectors");
        }
    }
    let mut args = vec!["test", "-j"];
    args.extend(files.iter().map(String::as_str));
    for (asked, runs) in [("auto", "interp"), ("interp", "interp"), ("jit", "jit")] {
        let doc = xway(&[&args[..], &["--engine", asked]].concat()).exits(0).json();
        assert_eq!(doc["failed"], 0);
        assert!(doc["passed"].as_u64().unwrap() >= 55, "{doc}");
        assert_eq!(doc["files"].as_array().unwrap().len(), files.len());
        for case in doc["files"].as_array().unwrap().iter().flat_map(|file| file["tests"].as_array().unwrap()) {
            let got = [&case["engine"], &case["engine_requested"], &case["engine_reason"]];
            assert_eq!(got, [&json!(runs), &json!(asked), &Value::Null], "{case}");
        }
    }
}

#[test]
fn what_machine_code_cannot_run_says_so() {
    if !clang("unit_files::what_machine_code_cannot_run_says_so") {
        return;
    }
    let (_dir, file) = with("[[test]]\nname = \"x\"\npacket = { payload = 46 }\nverdict = \"PASS\"\n");
    for (more, words) in [(&["--checked"][..], "not verified"), (&["--budget", "100"], "--budget counts")] {
        let args = [&["test", &file, "--engine", "jit"][..], more].concat();
        let ran = xway(&args).exits(0);
        assert!(ran.out.contains("in the interpreter: ") && ran.out.contains(words), "{}", ran.out);
        let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
        let case = &doc["files"][0]["tests"][0];
        assert_eq!(case["engine"], "interp");
        assert!(case["engine_reason"].as_str().unwrap().contains(words), "{case}");
    }
    // What a case expects of machine code can fail, too.
    let (_dir, file) = with(
        "[[test]]\nname = \"x\"\npacket = { payload = 46 }\nverdict = \"DROP\"\n[[test.expect_map]]\nname = \"hits\"\n\
         entries = [{ key = 0, value = 7 }]\n",
    );
    let ran = xway(&["test", &file, "--engine", "jit"]).exits(1);
    assert!(ran.out.contains("expected DROP, got PASS") && ran.out.contains("got      1"), "{}", ran.out);
}

const PASS_ALL: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u64); } hits SEC(".maps");
SEC("xdp") int p(struct xdp_md *ctx)
{
	__u32 key = 0;
	__u64 *n = bpf_map_lookup_elem(&hits, &key);
	if (n) *n += 1;
	return XDP_PASS;
}
SEC("xdp/bad") int bad(struct xdp_md *ctx) { return *(char *)(long)ctx->data_end; }
char _license[] SEC("license") = "Dual BSD/GPL";
"#;

/// The directory with the object `pass.o`, and a test file.
fn with(tests: &str) -> (Dir, String) {
    let dir = Dir::new();
    compiled(&dir, "pass", PASS_ALL, &[]);
    let file = dir.file("t.toml", format!("object = \"pass.o\"\nprogram = \"p\"\n{tests}"));
    (dir, file)
}

#[test]
fn a_failure_shows_fields_and_bytes() {
    if !clang("unit_files::a_failure_shows_fields_and_bytes") {
        return;
    }
    let (_dir, file) = with(
        r#"
        [[test]]
        name = "the time to live is decremented"
        packet = { ipv4 = { ttl = 64 }, udp = {}, payload = 4 }
        packet_out = { ipv4 = { ttl = 63 }, udp = {}, payload = 4 }
        "#,
    );
    let ran = xway(&["test", &file]).exits(1);
    // The documentation shows this very output.
    let shown = block(&documentation(), "header fields and by its bytes:");
    for line in shown.lines().skip(1) {
        assert!(ran.out.lines().any(|l| l == line), "the documentation shows\n{line}\nbut the output is\n{}", ran.out);
    }
    assert_eq!(ran.err, "");
}

#[test]
fn every_kind_of_expectation_can_fail() {
    if !clang("unit_files::every_kind_of_expectation_can_fail") {
        return;
    }
    for (case, words) in [
        ("verdict = \"DROP\"", "verdict: expected DROP, got PASS"),
        ("retval = 7", "return value: expected 7, got 2"),
        ("fault = \"bounds\"", "no fault"),
        ("packet_out = \"hex:00\"", "packet out differs"),
        ("program = \"bad\"\nverdict = \"ABORTED\"", "the program was stopped"),
        ("program = \"bad\"\nfault = \"sunshine\"", "does not contain \"sunshine\""),
        ("[[test.expect_map]]\nname = \"hits\"\nentries = [{key = 0, value = 5}]", "expected 5"),
        ("[[test.expect_map]]\nname = \"hits\"\nentries = [{key = 9, value = 5}]", "no entry 9"),
        ("[[test.expect_map]]\nname = \"hits\"\nabsent = [0]", "should not be"),
        ("[[test.expect_map]]\nname = \"hits\"\ncount = 3", "expected 3 entries, got 2"),
    ] {
        let (_dir, file) =
            with(&format!("checked = true\n[[test]]\nname = \"x\"\npacket = {{ payload = 46 }}\n{case}\n"));
        let doc = xway(&["test", &file, "-j"]).exits(1).json();
        assert_eq!(doc["failed"], 1);
        let problem = doc["files"][0]["tests"][0]["problems"][0].as_str().unwrap();
        assert!(problem.contains(words), "{case}: {problem}");
    }
    let (_dir, file) =
        with("[[test]]\nname = \"x\"\nprogram = \"bad\"\npacket = { payload = 46 }\nfault = \"packet\"\n");
    xway(&["test", &file, "--checked"]).exits(0);
    // A program with a proof cannot be stopped.
    xway(&["test", &file]).exits(3).says("checked = true");
}

#[test]
fn programs_are_verified_before_they_are_tested() {
    if !clang("unit_files::programs_are_verified_before_they_are_tested") {
        return;
    }
    let (_dir, file) =
        with("[[test]]\nname = \"x\"\nprogram = \"bad\"\npacket = { payload = 46 }\nverdict = \"PASS\"\n");
    let ran = xway(&["test", &file]).exits(1).says("bad is refused");
    assert!(ran.err.contains("error[") && ran.err.contains("--checked"), "{}", ran.err);
}

#[test]
fn maps_are_new_for_each_case_unless_they_are_kept() {
    if !clang("unit_files::maps_are_new_for_each_case_unless_they_are_kept") {
        return;
    }
    let two = |counts: [u64; 2]| {
        let case = |name: &str, count: u64| {
            format!(
                "[[test]]\nname = \"{name}\"\npacket = {{ payload = 46 }}\n[[test.expect_map]]\nname = \"hits\"\n\
                 entries = [{{ key = 0, value = {count} }}]\n"
            )
        };
        case("first", counts[0]) + &case("second", counts[1])
    };
    let filled = "[[map]]\nname = \"hits\"\nentries = [{ key = 0, value = 10 }]\n";
    for (head, counts) in [("", [1, 1]), ("keep_maps = true\n", [1, 2])] {
        let (_dir, file) = with(&format!("{head}{}", two(counts)));
        xway(&["test", &file]).exits(0);
    }
    for (head, counts) in [("", [11, 11]), ("keep_maps = true\n", [11, 12])] {
        let (_dir, file) = with(&format!("{head}{filled}{}", two(counts)));
        xway(&["test", &file]).exits(0);
    }
}

#[test]
fn results_for_machines() {
    if !clang("unit_files::results_for_machines") {
        return;
    }
    let (dir, file) = with(
        "[[test]]\nname = \"good\"\npacket = { payload = 46 }\nverdict = \"PASS\"\n\
         [[test]]\nname = \"bad # <1>\"\npacket = { payload = 46 }\nverdict = \"TX\"\n",
    );
    let junit = dir.arg("out.xml");
    let tap = xway(&["test", &file, "--tap", "--junit", &junit]).exits(1).out;
    assert!(tap.starts_with("TAP version 14\n1..2\nok 1 - good\nnot ok 2 - bad \\# <1>\n"), "{tap}");
    let xml = std::fs::read_to_string(&junit).unwrap();
    assert!(xml.contains("tests=\"2\" failures=\"1\"") && xml.contains("bad # &lt;1&gt;"), "{xml}");
    xway(&["test", &file, "--filter", "good"]).exits(0);
    xway(&["test", &file, "--filter", "nothing"]).exits(2);
}

#[test]
fn files_that_cannot_be_used() {
    if !clang("unit_files::files_that_cannot_be_used") {
        return;
    }
    let dir = Dir::new();
    compiled(&dir, "pass", PASS_ALL, &[]);
    dir.file("broken.c", "int p( {");
    let case = "[[test]]\nname='a'\npacket={payload=46}\n";
    for (text, words) in [
        ("object = 'pass.o'\n".to_owned(), "no [[test]]"),
        (format!("object = 'none.o'\n{case}retval=2\n"), "no such file"),
        (format!("object = 'broken.c'\n{case}retval=2\n"), "does not compile"),
        (format!("object = 't.toml'\n{case}retval=2\n"), "not an ELF"),
        (format!("object = 'pass.o'\n{case}retval=2\n"), "2 programs fit"),
        (format!("object = 'pass.o'\nprogram='q'\n{case}retval=2\n"), "`q`"),
        (format!("object = 'pass.o'\nprogram='p'\n{case}retval=2\n[[test.expect_map]]\nname='no'\n"), "no map \"no\""),
        (format!("object = 'pass.o'\nprogram='p'\n{case}retval=2\n[[test.map]]\nname='no'\n"), "no map \"no\""),
        ("object = 'pass.o'\nprogram='p'\n[[test]]\nname='a'\nretval=2\npacket={pcap='no.pcap'}\n".into(), "no.pcap"),
        (
            "object = 'pass.o'\nprogram='p'\n[[test]]\nname='a'\nretval=2\npacket={ipv4={},payload=60000}\n".into(),
            "packet",
        ),
    ] {
        let file = dir.file("t.toml", &text);
        let ran = xway(&["test", &file]);
        assert!([2, 3].contains(&ran.code), "{text}: exit {}", ran.code);
        let code = ran.code;
        let ran = ran.exits(code).says(words);
        assert!(ran.err.contains("t.toml"), "{}", ran.err);
    }
    xway(&["test", "/no/such.toml"]).exits(3).says("no such file");
    // The object itself instead of the file that names it.
    let ran = xway(&["test", dir.path("pass.o").to_str().unwrap()]).exits(3).says("pass.o: it is no text");
    assert!(ran.err.contains("\n  try: a test file, which names its object"), "{}", ran.err);
}
