//! `xway verify`.

mod common;

use common::{Dir, clang, compiled, golden, sample, xway};
use xway_testkit::clang::repository;

/// Compiles one of `tests/refused`; the object's path.
fn refused(dir: &Dir, name: &str, flags: &[&str]) -> String {
    let source = repository().join(format!("crates/xway/tests/refused/{name}.bpf.c"));
    let bytes = xway_testkit::clang::compile_file(&source, flags).unwrap();
    dir.file(&format!("{name}.o"), bytes)
}

/// Output without what differs from machine to machine and from run to run: directories and times.
fn settled(out: &str, dir: &Dir) -> String {
    let out = out.replace(&dir.arg(""), "").replace(&format!("{}/", repository().display()), "");
    let mut text = String::new();
    for line in out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let times: Vec<usize> =
            (1..words.len()).filter(|i| words[*i].trim_end_matches(',') == "ms").map(|i| i - 1).collect();
        let shown: Vec<&str> =
            words.iter().enumerate().map(|(i, w)| if times.contains(&i) { "TIME" } else { *w }).collect();
        text.push_str(&shown.join(" "));
        text.push('\n');
    }
    text
}

#[test]
fn refusals_are_shown_in_the_source() {
    if !clang("verify::refusals_are_shown_in_the_source") {
        return;
    }
    let dir = Dir::new();
    for name in ["bounds", "null", "several", "moved"] {
        let object = refused(&dir, name, &[]);
        golden(&format!("{name}.txt"), &settled(&xway(&["verify", &object]).exits(1).out, &dir));
    }
}

#[test]
fn maps_that_cannot_be_created_are_named() {
    if !clang("verify::maps_that_cannot_be_created_are_named") {
        return;
    }
    let dir = Dir::new();
    let text = |flags: &str| {
        format!(
            "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n\
             struct {{ __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 4); __uint(key_size, 8); \
             __uint(value_size, 4); {flags} }} routes SEC(\".maps\");\n\
             SEC(\"xdp\") int lookup(struct xdp_md *ctx) {{ __u64 key = 1; return bpf_map_lookup_elem(&routes, &key) ? 1 : 2; }}\n"
        )
    };
    let object = |name: &str, flags: &str| {
        dir.file(name, xway_testkit::clang::compile_text("routes", &text(flags), &[]).unwrap())
    };
    let (wrong, right) = (object("wrong.o", ""), object("right.o", "__uint(map_flags, BPF_F_NO_PREALLOC);"));
    let words = "warning  map routes of";
    let said = xway(&["verify", &wrong]).exits(0).out;
    assert!(said.contains(words) && said.contains("BPF_F_NO_PREALLOC (EINVAL"), "{said}");
    assert!(!xway(&["verify", &right]).exits(0).out.contains(words));
    let doc: serde_json::Value = serde_json::from_str(&xway(&["verify", "-j", &wrong]).exits(0).out).unwrap();
    assert_eq!(doc["warnings"][0]["map"], "routes", "{doc}");
    assert_eq!(doc["accepted"], 1, "the program is safe all the same");
}

#[test]
fn without_line_information_instructions_are_shown() {
    if !clang("verify::without_line_information_instructions_are_shown") {
        return;
    }
    let dir = Dir::new();
    let object = refused(&dir, "bounds", &["-g0"]);
    golden("bounds.g0.txt", &settled(&xway(&["verify", &object]).exits(1).out, &dir));
}

#[test]
fn without_the_source_file_the_object_tells_its_lines() {
    if !clang("verify::without_the_source_file_the_object_tells_its_lines") {
        return;
    }
    let dir = Dir::new();
    let text = std::fs::read_to_string(repository().join("crates/xway/tests/refused/bounds.bpf.c")).unwrap();
    let source = dir.path("gone.bpf.c");
    std::fs::write(&source, &text).unwrap();
    let object = dir.file("gone.o", xway_testkit::clang::compile_file(&source, &[]).unwrap());
    let there = xway(&["verify", &object]).exits(1).out;
    assert!(there.contains("19 |         return XDP_PASS;"), "{there}");
    // A file that has changed since would show wrong lines.
    std::fs::write(&source, text.replace("ip->protocol == 17", "ip->ttl == 1")).unwrap();
    let changed = xway(&["verify", &object]).exits(1).out;
    std::fs::remove_file(&source).unwrap();
    let gone = xway(&["verify", &object]).exits(1).out;
    assert!(!gone.contains("19 |         return XDP_PASS;") && gone.contains("ip->protocol == 17"), "{gone}");
    assert_eq!(settled(&changed, &dir), settled(&gone, &dir));
    golden("gone.txt", &settled(&gone, &dir));
}

#[test]
fn the_document_has_what_the_text_has() {
    if !clang("verify::the_document_has_what_the_text_has") {
        return;
    }
    let dir = Dir::new();
    let several = refused(&dir, "several", &[]);
    let null = refused(&dir, "null", &[]);
    let mut doc = xway(&["verify", &several, &null, "-j"]).exits(1).json();
    assert_eq!((doc["accepted"].as_u64(), doc["rejected"].as_u64()), (Some(1), Some(2)));
    for program in doc["programs"].as_array_mut().unwrap() {
        assert!(program["time_us"].is_u64());
        program["time_us"] = 0.into();
    }
    golden("document.json", &settled(&format!("{doc:#}"), &dir));
}

#[test]
fn good_programs_are_accepted() {
    if !clang("verify::good_programs_are_accepted") {
        return;
    }
    let dir = Dir::new();
    let objects = ["chain", "count", "swap"].map(|name| sample(&dir, name));
    let args: Vec<&str> = std::iter::once("verify").chain(objects.iter().map(String::as_str)).collect();
    let ran = xway(&args).exits(0);
    assert!(ran.out.ends_with("7 programs: 7 accepted, 0 refused\n"), "{}", ran.out);
    let doc = xway(&["verify", &objects[1], "-j"]).exits(0).json();
    let program = &doc["programs"][0];
    let keys: Vec<&String> = program.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "object",
            "name",
            "section",
            "verdict",
            "insns",
            "visited",
            "states",
            "peak_states",
            "time_us",
            "stack",
            "needs",
            "error",
            "errors"
        ]
    );
    assert_eq!((program["verdict"].as_str(), program["error"].is_null()), (Some("accepted"), true));
    assert_eq!(program["needs"]["verdicts"], serde_json::json!(["DROP", "PASS"]));
    assert_eq!(program["needs"]["maps"][0]["type"], "percpu_array");
    let one = xway(&["verify", &objects[0], "-n", "stage_udp", "-v"]).exits(0).out;
    assert!(one.contains("0: (") && one.contains("R1=ctx() R10=fp0") && !one.contains("stage_tcp"), "{one}");
    let log = xway(&["verify", &objects[0], "-n", "stage_udp", "-vj"]).exits(0).json();
    assert!(log["programs"][0]["log"].as_str().unwrap().contains("R1=ctx()"));
}

#[test]
fn a_counterexample_can_be_replayed() {
    if !clang("verify::a_counterexample_can_be_replayed") {
        return;
    }
    let dir = Dir::new();
    for (name, program) in [("bounds", "bounds"), ("moved", "moved"), ("null", "forgotten")] {
        let object = refused(&dir, name, &[]);
        let doc = xway(&["verify", &object, "-n", program, "-j"]).exits(1).json();
        let error = &doc["programs"][0]["error"];
        let packet = error["counterexample"]["packet"].as_str().unwrap_or_else(|| panic!("{error}"));
        let packet = format!("hex:{packet}");
        let run = ["prog", "run", &object, "-n", program, "--checked", "--data-in", &packet, "-j"];
        let replay = xway(&run).exits(1).json();
        assert_eq!(replay["fault"]["insn"], error["insn"], "{replay}");
    }
}

#[test]
fn colours_are_for_terminals_only() {
    let needs = xway_testkit::Needs::of("verify::colours_are_for_terminals_only").clang().command("script");
    if !needs.met() {
        return;
    }
    let dir = Dir::new();
    let object = refused(&dir, "bounds", &[]);
    // script(1) gives the command a terminal.
    let on_terminal = |environment: &str| {
        let line = format!("{environment} {} verify {object}", env!("CARGO_BIN_EXE_xway"));
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
        String::from_utf8(script.output().unwrap().stdout).unwrap().replace('\r', "")
    };
    let coloured = on_terminal("");
    assert!(coloured.contains("\x1b["), "{coloured}");
    let piped = xway(&["verify", &object]).exits(1).out;
    assert_eq!(settled(&on_terminal("NO_COLOR=1"), &dir), settled(&piped, &dir));
    assert!(!on_terminal("TERM=dumb").contains('\x1b') && !piped.contains('\x1b'));
    // The words are the same; only the colours differ.
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once("\x1b") {
        plain.push_str(before);
        let link = after.starts_with(']');
        let end = if link { after.find("\x1b\\").map(|i| i + 2) } else { after.find('m').map(|i| i + 1) };
        rest = &after[end.unwrap_or(after.len())..];
    }
    plain.push_str(rest);
    assert_eq!(settled(&plain, &dir), settled(&piped, &dir));
}

#[test]
fn limits_and_strictness() {
    if !clang("verify::limits_and_strictness") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "count");
    let doc = xway(&["verify", &object, "--budget", "50", "-j"]).exits(1).json();
    assert_eq!(doc["programs"][0]["error"]["kind"], "budget");
    let text = "SEC(\"xdp\") int p(struct xdp_md *ctx) {\n void *d = (void *)(long)ctx->data, *e = (void *)(long)ctx->data_end;\n\
                if (d + 8 > e) return 0;\n return *(volatile __u32 *)(d + 1); }\n";
    let unaligned = compiled(&dir, "unaligned", text, &[]);
    xway(&["verify", &unaligned]).exits(0);
    let doc = xway(&["verify", &unaligned, "--strict-alignment", "-j"]).exits(1).json();
    assert_eq!(doc["programs"][0]["error"]["kind"], "alignment");
}

#[test]
fn what_cannot_be_verified() {
    let dir = Dir::new();
    xway(&["verify"]).exits(2);
    xway(&["verify", &dir.arg("none.o")]).exits(3).says("no such file");
    let broken = dir.file("broken.o", b"\x7fELF and no more");
    let ran = xway(&["verify", &broken, "-j"]).exits(3).says("broken.o");
    assert_eq!(ran.json()["error"]["exit"], 3);
    if !clang("verify::what_cannot_be_verified") {
        return;
    }
    let good = sample(&dir, "swap");
    xway(&["verify", &good, "-n", "nothing"]).exits(2).says("swap_macs");
    // One that cannot be read does not hide the others.
    let ran = xway(&["verify", &broken, &good, "-j"]).exits(3);
    let doc = ran.json();
    assert_eq!(doc["programs"][0]["verdict"], "accepted");
    assert!(doc["failures"][0]["object"].as_str().unwrap().ends_with("broken.o"));
    let other = compiled(&dir, "tc", "SEC(\"tc\") int p(void *c) { return 0; }", &[]);
    xway(&["verify", &other]).exits(3).says("tc");
    let both = "SEC(\"tc\") int a(void *c) { return 0; }\nSEC(\"xdp\") int b(void *c) { return 2; }";
    let both = compiled(&dir, "both", both, &[]);
    let doc = xway(&["verify", &both, "-j"]).exits(0).json();
    assert_eq!(doc["skipped"][0]["name"], "a");
    assert!(xway(&["verify", &both]).exits(0).out.starts_with("skipped  a of "));
}

#[test]
fn a_packet_that_shows_the_refusal_faults_again_when_it_is_replayed() {
    if !clang("verify::a_packet_that_shows_the_refusal_faults_again_when_it_is_replayed") {
        return;
    }
    let dir = Dir::new();
    for name in ["02_packet_check_too_short", "04_packet_variable_header", "08_map_index_unbounded"] {
        let source = repository().join(format!("bpf/verifier-cases/refused/{name}.bpf.c"));
        let bytes = xway_testkit::clang::compile_file(&source, &[]).unwrap_or_else(|e| panic!("{e}"));
        let (object, capture) = (dir.file(&format!("{name}.o"), bytes), dir.arg(&format!("{name}.pcap")));
        let doc = xway(&["verify", &object, "-w", &capture, "-j"]).exits(1).json();
        let error = &doc["programs"][0]["error"];
        let found = &error["counterexample"];
        assert!(found["length"].as_u64().is_some_and(|n| n >= 14), "{name}: {error}");
        let text = xway(&["verify", &object]).exits(1).out;
        assert!(text.contains("makes it go wrong"), "{text}");
        // Without the gate before it: the program is refused, that is the point.
        let input = format!("pcap:{capture}");
        let mut args = vec!["run", &object, "-i", &input, "-j"];
        if xway(&["run", "--help"]).out.contains("--checked") {
            args.push("--checked");
        }
        let replay = xway(&args).out.replace([' ', '\n'], "");
        assert!(replay.contains(&format!("\"insn\":{},", error["insn"])), "{name}: {error}\n{replay}");
    }
}
