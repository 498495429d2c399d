//! `xway bench`: what is said beside the figures. Where options, the compiler, a missing privilege or a file leave less than what was
//! asked for, the row, the message and the exit code say so.

mod common;

use common::{Dir, clang, compiled, output, rooted, xway};

/// Programs of one's own, each an object.
fn object(dir: &Dir, name: &str, body: &str) -> String {
    let text = format!("{body}\nchar _license[] SEC(\"license\") = \"GPL\";\n");
    compiled(dir, name, &text, &[])
}

#[test]
fn what_a_program_prints_is_no_part_of_the_output() {
    if !clang("bench_told::what_a_program_prints_is_no_part_of_the_output") {
        return;
    }
    let dir = Dir::new();
    let prints = "SEC(\"xdp\") int prints(struct xdp_md *ctx) { bpf_printk(\"I am read by %d\", 3); return XDP_PASS; }";
    let object = object(&dir, "prints", prints);
    for engine in ["jit", "interp"] {
        let ran = xway(&["bench", "prog", &object, "--rounds", "1", "--engine", engine]).exits(0);
        assert_eq!(ran.err, "", "{engine}");
    }
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

/// A function that is too long for the compiler, though no packet goes all its way, and one that is not.
const LONG: &str = "SEC(\"xdp\") int too_long(struct xdp_md *ctx) { if (ctx->rx_queue_index == 7) asm volatile(\".rept 20001\\n r1 = 1\\n .endr\" ::: \"r1\"); return XDP_PASS; }\n\
                    SEC(\"xdp\") int shorter(struct xdp_md *ctx) { return XDP_DROP; }";

#[test]
fn what_is_not_compiled_is_interpreted_and_says_so() {
    if !clang("bench_told::what_is_not_compiled_is_interpreted_and_says_so") {
        return;
    }
    let dir = Dir::new();
    let object = object(&dir, "long", LONG);
    let args = ["bench", "prog", &object, "--rounds", "1"];
    for engine in ["auto", "jit"] {
        let args = [&args[..], &["--engine", engine]].concat();
        let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
        let row = |program: &str| {
            doc["rows"]
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row["program"] == program)
                .unwrap_or_else(|| panic!("{doc}"))
        };
        let (long, short) = (row("too_long"), row("shorter"));
        assert_eq!([&long["engine_requested"], &short["engine_requested"]], [engine; 2]);
        assert_eq!((&long["engine"], &long["ours"][0]["side"]), (&"interp".into(), &"interp".into()), "{long}");
        assert!(long["engine_reason"].as_str().unwrap().starts_with("not compiled: function "), "{long}");
        assert!(long["compile"].is_null() && short["compile"].is_object(), "{doc}");
        assert_eq!((&short["engine"], &short["engine_reason"]), (&"jit".into(), &serde_json::Value::Null), "{short}");
        let out = xway(&args).exits(0).out;
        assert_eq!(out.matches("\n    interp: not compiled: function ").count(), 1, "{out}");
    }
    let out = xway(&[&args[..], &["--markdown"]].concat()).exits(0).out;
    assert_eq!(out.matches("\ninterpreted: long.o:too_long: not compiled: function ").count(), 1, "{out}");
    // Where the ways to compile are what is measured, nothing takes their place.
    let ran = xway(&[&args[..], &["--techniques"]].concat()).exits(3).says("long.o:too_long: not compiled");
    assert!(ran.err.contains("without --techniques") && ran.out.contains("long.o:shorter"), "{ran:?}");
}

/// Labels are for the suite's own packets and tables. With others the row says what it was, and what came of it.
#[test]
fn rows_say_what_options_made_of_them() {
    if !clang("bench_told::rows_say_what_options_made_of_them") {
        return;
    }
    let args = ["bench", "prog", "--rounds", "1", "--filter", "hash hit, 10 k", "--filter", "1 drop, 1 pass"];
    let plain = xway(&args).exits(0).out;
    assert!(!plain.contains("verdicts:"), "{plain}");
    let changed = [&args[..], &["--flows", "20000", "--pattern", "uniform"]].concat();
    let out = xway(&changed).exits(0).out;
    let packets = out.lines().filter(|line| *line == "    with 20,000 flows, uniform, sources of 10,000").count();
    assert_eq!(packets, 1, "{out}");
    assert_eq!(out.matches("\n    with 20,000 flows, uniform").count(), 4, "{out}");
    // Half of the flows are in no table of 10,000, and ports are all the same.
    assert!(out.matches("PASS 5").count() + out.matches("PASS 4").count() >= 3, "{out}");
    assert!(out.contains("\n    verdicts: DROP 100.0 %\n"), "{out}");
    let markdown = xway(&[&changed[..], &["--markdown"]].concat()).exits(0).out;
    assert!(markdown.contains("\n1 drop, 1 pass: with 20,000 flows, uniform; DROP 100.0 %\n"), "{markdown}");
    // Longer keys have tables of their own, whose size is as much the user's to say.
    let table = [&args[..], &["--table", "5000", "-j"]].concat();
    let doc = xway(&table).exits(0).json();
    let rows = doc["rows"].as_array().unwrap();
    for (bytes, map) in [(20, "sources_20"), (40, "sources_40")] {
        let name = format!("hash hit, 10 k, key of {bytes} bytes");
        let row = rows.iter().find(|row| row["name"] == *name).unwrap();
        assert_eq!(row["table"], serde_json::json!({ "map": map, "entries": 5000 }), "{row}");
        assert!(row["checked"]["verdicts_ours"][2].as_u64() > Some(0), "what has no room is not found: {row}");
    }
    let out = xway(&[&args[..], &["--table", "5000"]].concat()).exits(0).out;
    assert_eq!(out.matches(", no table whose size --table could say\n").count(), 1, "{out}");
    let list = xway(&["bench", "prog", "--list", "--filter", "hash hit, 10 k", "--flows", "7", "--table", "9", "-j"]);
    for case in list.exits(0).json()["cases"].as_array().unwrap() {
        assert_eq!((&case["flows"], &case["table"]["entries"]), (&7.into(), &9.into()), "{case}");
    }
}

/// A ring has no more packets, so more flows would not come.
#[test]
fn more_flows_than_a_ring_has_packets_are_refused() {
    let most = ["bench", "prog", "--filter", "MAC swap", "--flows"];
    let more = xway(&[&most[..], &["4194305"]].concat()).exits(2);
    assert!(more.err.contains("4194305 is not in 1..=4194304"), "{}", more.err);
    if clang("bench_told::more_flows_than_a_ring_has_packets_are_refused") {
        let doc = xway(&[&most[..], &["4194304", "--rounds", "1", "--pattern", "scan", "-j"]].concat()).exits(0).json();
        assert_eq!((&doc["rows"][0]["ring_packets"], &doc["rows"][0]["flows"]), (&(1 << 22).into(), &(1 << 22).into()));
    }
}

/// As text and as Markdown the same ways have the same names and the same figures, in columns.
#[test]
fn techniques_stand_in_columns() {
    if !clang("bench_told::techniques_stand_in_columns") {
        return;
    }
    let args = ["bench", "prog", "--techniques", "--filter", "random number", "--rounds", "1"];
    let out = xway(&args).exits(0).out;
    let lines: Vec<&str> = out.lines().collect();
    let head = lines.iter().position(|line| line.starts_with("  case ")).unwrap();
    let ends = lines[head].find(" ours ns").unwrap() + " ours ns".len();
    let rows: Vec<&str> = lines[head + 1..].iter().take_while(|line| line.starts_with("  ")).copied().collect();
    assert!(rows.len() > 10, "{out}");
    for row in &rows {
        let (before, behind) = row.split_at(ends);
        assert!(before.ends_with(|c: char| c.is_ascii_digit()) && behind.starts_with(' '), "{row}\n{out}");
    }
    let single = rows.iter().find(|row| row.contains("packet by packet")).unwrap();
    assert!(single.starts_with("    jit, packet by packet, calls included "), "{single}");
    // The calls are in its net as they are in its run.
    let figures: Vec<&str> = single.split("included").nth(1).unwrap().split_whitespace().collect();
    assert_eq!(figures[2], figures[3], "{single}");
    assert!(out.contains("packet by packet with what its calls cost"), "{out}");
}

/// A file that was named and cannot be read is an error, when the rest has been measured; once in each message.
#[test]
fn a_file_that_cannot_be_read_is_no_success() {
    if !clang("bench_told::a_file_that_cannot_be_read_is_no_success") {
        return;
    }
    let dir = Dir::new();
    let good = object(&dir, "good", "SEC(\"xdp\") int good(struct xdp_md *ctx) { return XDP_DROP; }");
    let missing = dir.arg("nosuch.o");
    for verb in ["prog", "compile", "verify"] {
        for objects in [[&good, &missing], [&missing, &good]] {
            let args = ["bench", verb, objects[0], objects[1], "--rounds", "1"];
            let ran = xway(&args).exits(3).says("nosuch.o: no such file");
            assert!(ran.out.contains("good.o:good"), "{ran:?}");
            let line = ran.out.lines().find(|line| line.contains("nosuch.o")).unwrap_or_else(|| panic!("{ran:?}"));
            assert!(!line.contains("xway: ") && line.matches("nosuch.o").count() == 1, "{line}");
            let doc = xway(&[&args[..], &["-j"]].concat()).exits(3).json();
            let left = if verb == "prog" { &doc["not_measured"] } else { &doc["left_out"] };
            assert_eq!((doc["rows"].as_array().unwrap().len(), left.as_array().unwrap().len()), (1, 1), "{doc}");
        }
    }
}

/// A program that has no figure beside others that have is not done, and the code says which kind of failure it was.
#[test]
fn what_was_not_measured_is_in_the_exit_code() {
    if !clang("bench_told::what_was_not_measured_is_in_the_exit_code") {
        return;
    }
    let dir = Dir::new();
    let both = "SEC(\"xdp\") int good(struct xdp_md *ctx) { return XDP_DROP; }\n\
                SEC(\"xdp\") int unproved(struct xdp_md *ctx) { return *(char *)(long)ctx->data; }";
    let object = object(&dir, "both", both);
    let ran =
        xway(&["bench", "prog", &object, "--rounds", "1"]).exits(1).says("both.o:unproved: refused by the verifier");
    assert!(ran.out.contains("both.o:good") && ran.out.contains("both.o:unproved  not measured: "), "{}", ran.out);
    let ran = xway(&["bench", "compile", &object, "--rounds", "1"]).exits(1).says("1 of 2 programs not compiled");
    assert!(ran.out.contains("both.o:good"), "{}", ran.out);
    // How long it takes until a program is refused is what was asked.
    xway(&["bench", "verify", &object, "--rounds", "1"]).exits(0);
}

/// Which privilege is missing is said before the kernel says something else of a program.
#[test]
fn a_missing_privilege_is_named() {
    if !rooted("bench_told::a_missing_privilege_is_named") {
        return;
    }
    let without = |bounds: &str, args: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--bounding-set", bounds, env!("CARGO_BIN_EXE_xway")]).args(args);
        output(command.env("RUST_BACKTRACE", "0"))
    };
    let verbs: [&[&str]; 3] =
        [&["prog", "--filter", "MAC swap"], &["map", "--type", "array", "--entries", "100"], &["verify"]];
    for verb in verbs {
        let args = [&["bench"], verb, &["--vs", "kernel", "--rounds", "1"]].concat();
        let ran = without("-perfmon,-sys_admin", &args).exits(4).says("--vs kernel: CAP_PERFMON missing");
        assert!(ran.out.is_empty() && ran.err.contains("CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"), "{ran:?}");
        let ran = without("-all", &args).exits(4).says("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN missing");
        assert!(ran.err.contains("or leave out --vs kernel"), "{ran:?}");
        let help = xway(&["bench", verb[0], "--help"]).exits(0).out;
        assert!(help.contains("CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"), "{help}");
    }
}
