//! `xway prog inspect`.

mod common;

use common::service::Up;
use common::{Dir, clang, compiled, sample, xway};

#[test]
fn an_object_is_described() {
    if !clang("inspect::an_object_is_described") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "chain");
    let doc = xway(&["prog", "inspect", &object, "-j"]).exits(0).json();
    assert_eq!(doc["license"], "Dual BSD/GPL");
    assert!(doc["sections"].as_array().unwrap().iter().any(|s| s["name"] == "xdp" && s["executable"] == true));
    let programs = doc["programs"].as_array().unwrap();
    assert_eq!(programs.len(), 5);
    let chain = programs.iter().find(|p| p["name"] == "chain").unwrap();
    assert_eq!((chain["type"].as_str(), chain["section"].as_str()), (Some("xdp"), Some("xdp")));
    assert_eq!(chain["tag"].as_str().unwrap().len(), 16);
    assert_eq!(chain["maps"], serde_json::json!(["stages", "steps"]));
    assert!(chain["helpers"].as_array().unwrap().iter().any(|h| h["name"] == "bpf_tail_call"));
    assert_eq!(
        (chain["needs"]["tail_calls"].as_bool(), chain["needs"]["moves_packet"].as_bool()),
        (Some(true), Some(true))
    );
    let stages = doc["maps"].as_array().unwrap().iter().find(|m| m["name"] == "stages").unwrap();
    assert_eq!(stages["type"], "prog_array");
    assert!(stages["initial"].as_str().unwrap().contains("0=stage_ipv4"));
    let text = xway(&["prog", "inspect", &object]).exits(0).out;
    let facts = &chain["needs"];
    assert_eq!((facts["proved"].as_bool(), chain["verdict"].as_str()), (Some(true), Some("accepted")));
    assert!(facts["packet_bytes"].as_u64().is_some() && facts["stack"].as_u64().is_some(), "{facts}");
    assert!(facts["maps"].as_array().unwrap().iter().any(|m| m["type"] == "prog_array"), "{facts}");
    for words in [
        "proved",
        "bytes of stack",
        "stages (prog_array)",
        "Sections",
        "Maps",
        "Program chain:",
        "tail calls",
        "bpf_xdp_adjust_meta",
        "license Dual BSD/GPL",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
}

const WITH_FUNCTION: &str = r#"
static __attribute__((noinline)) int twice(int x) { asm volatile(""); return x * 2; }
SEC("xdp") int p(struct xdp_md *ctx)
{
	return twice(ctx->rx_queue_index);
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;

#[test]
fn instructions_stand_between_their_source_lines() {
    if !clang("inspect::instructions_stand_between_their_source_lines") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "function", WITH_FUNCTION, &[]);
    let text = xway(&["prog", "inspect", &object, "--insns", "--source"]).exits(0).out;
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}:\n{text}"));
    assert!(at("; return twice(ctx->rx_queue_index);") < at("call pc+"), "{text}");
    assert!(at("(95) exit") < at("twice:\n"), "{text}");
    assert!(text.contains("functions    p (0..") && text.contains("; twice"), "{text}");
    let bare = xway(&["prog", "inspect", &object, "--insns"]).exits(0).out;
    assert!(bare.contains("(95) exit") && !bare.contains("; return"), "{bare}");
    let doc = xway(&["prog", "inspect", &object, "--source", "-j"]).exits(0).json();
    let program = &doc["programs"][0];
    assert_eq!(program["subprograms"].as_array().unwrap().len(), 2);
    let lines = program["disassembly"].as_array().unwrap();
    assert!(lines.iter().any(|l| l["source"]["text"].as_str().is_some_and(|t| t.contains("x * 2"))), "{doc}");
}

#[test]
fn objects_without_types_are_described_too() {
    if !clang("inspect::objects_without_types_are_described_too") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "plain", WITH_FUNCTION, &["-g0"]);
    let doc = xway(&["prog", "inspect", &object, "--insns", "--source", "-j"]).exits(0).json();
    assert_eq!(doc["btf"], false);
    assert!(doc["programs"][0]["insns"].as_u64().unwrap() > 3);
}

#[test]
fn one_program_of_several() {
    if !clang("inspect::one_program_of_several") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "chain");
    let doc = xway(&["prog", "inspect", &object, "-n", "stage_udp", "-j"]).exits(0).json();
    assert_eq!(doc["programs"].as_array().unwrap().len(), 1);
    xway(&["prog", "inspect", &object, "-n", "nothing"]).exits(2).says("stage_udp");
}

#[test]
fn what_only_a_kernel_has_is_named_and_not_run() {
    let needs = xway_testkit::Needs::of("inspect::what_only_a_kernel_has_is_named_and_not_run");
    if !needs.clang().kernel(6, 18).file("/sys/kernel/btf/vmlinux").met() {
        return;
    }
    let dir = Dir::new();
    let code = r#"
        #include <linux/bpf.h>
        #include <bpf/bpf_helpers.h>
        struct task_struct { int pid; } __attribute__((preserve_access_index));
        extern struct task_struct *bpf_task_from_pid(int pid) __ksym;
        extern void bpf_task_release(struct task_struct *p) __ksym;
        char LICENSE[] SEC("license") = "GPL";
        SEC("xdp") int looks(struct xdp_md *ctx) {
            struct task_struct *t = bpf_task_from_pid(1);
            if (!t) return XDP_ABORTED;
            int pid = t->pid;
            bpf_task_release(t);
            return pid == 1 ? XDP_PASS : XDP_DROP;
        }"#;
    let bytes = xway_testkit::clang::compile_text("kernel_objects", code, &[]).unwrap();
    let object = dir.file("looks.o", bytes);
    let doc = xway(&["prog", "inspect", &object, "-j"]).exits(0).json();
    let looks = &doc["programs"][0];
    assert_eq!(looks["verdict"], "accepted");
    let both = serde_json::json!(["bpf_task_from_pid", "bpf_task_release"]);
    assert_eq!(looks["needs"]["kernel_objects"], both);
    let names = "kernel objects: bpf_task_from_pid, bpf_task_release";
    for args in [["prog", "inspect", &object].as_slice(), &["verify", &object]] {
        let text = xway(args).exits(0).out;
        assert!(text.contains(names), "{text}");
    }
    let refused = xway(&["prog", "run", &object, "--data-in", "hex:0000000000000000000000000000"]).err;
    assert!(refused.contains("is proved, but needs") && refused.contains(names), "{refused}");
}

#[test]
fn a_program_is_dumped_in_three_forms_with_its_source() {
    if !clang("inspect::a_program_is_dumped_in_three_forms_with_its_source") {
        return;
    }
    let dir = Dir::new();
    // A small function that calls nothing would be copied into its caller: this one stays a function.
    let code = r#"
static __attribute__((noinline)) int twice(int x) { asm volatile(""); return x * 2; }
static __attribute__((noinline)) int more(int x) { return twice(x) + twice(x + 1); }
SEC("xdp") int p(struct xdp_md *ctx)
{
	return more(ctx->rx_queue_index);
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;
    let object = compiled(&dir, "dumped", code, &["-g"]);
    let dump = |form: &str| xway(&["prog", "dump", form, &object]).exits(0).out;
    let xlated = dump("xlated");
    assert!(xlated.contains("return more(") && xlated.contains("exit"), "{xlated}");
    if cfg!(target_arch = "x86_64") {
        let jited = dump("jited");
        for words in ["p.burst:", "return more(", "more.function:", "; clock: ", "ret"] {
            assert!(jited.contains(words), "{words}:\n{jited}");
        }
        let ir = dump("ir");
        for words in ["function u0:0", "brif", "return more(", "return twice("] {
            assert!(ir.contains(words), "{words}:\n{ir}");
        }
        let doc = xway(&["prog", "dump", "jited", &object, "-j"]).exits(0).json();
        assert_eq!((doc["form"].as_str(), doc["program"].as_str()), (Some("jited"), Some("p")));
        assert!(doc["functions"].as_array().unwrap().len() > 1 && doc["bytes"].as_u64() > Some(0), "{doc}");
    }
    let wrong = xway(&["prog", "dump", "jited", &object, "--without", "nonsense"]).exits(2);
    assert!(wrong.err.contains("passes: decided"), "{}", wrong.err);
}

/// Two programs on one port are one function, and that is what is shown of either.
#[test]
fn a_program_in_a_chain_is_shown_as_it_runs() {
    if !clang("inspect::a_program_in_a_chain_is_shown_as_it_runs") || !cfg!(target_arch = "x86_64") {
        return;
    }
    let dir = Dir::new();
    let of = |name: &str, mark: &str| {
        let text = format!(
            "SEC(\"xdp\") int {name}(struct xdp_md *ctx)\n{{\n\
             char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;\n\
             if (p + 14 > end)\nreturn XDP_ABORTED;\nreturn p[6] == {mark} ? XDP_DROP : XDP_PASS;\n}}\n\
             char _license[] SEC(\"license\") = \"GPL\";\n"
        );
        compiled(&dir, name, &text, &[])
    };
    let (front, back) = (of("front", "7"), of("behind", "9"));
    let up = Up::new(&dir, None, None);
    up.connect().open_port("sim:dumped?count=1").unwrap();
    let run = |args: &[&str]| xway(&[args, &["--hook", "user", "--socket", &up.socket]].concat());
    run(&["load", "sim:dumped", &back, "-P", "50"]).exits(0);
    let alone = run(&["prog", "dump", "jited", "name", "behind"]).exits(0).out;
    assert!(alone.starts_with("; program behind (id ") && !alone.contains("by itself"), "{alone}");
    run(&["load", "sim:dumped", &front, "-P", "10"]).exits(0);
    for name in ["front", "behind"] {
        let text = run(&["prog", "dump", "jited", "name", name]).exits(0).out;
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(
            first.starts_with("; runs on sim:dumped: one function of 2 programs, in this order: front (id "),
            "{first}"
        );
        assert!(first.contains("), behind (id "), "{first}");
        assert!(rest.starts_with("front+behind.burst:\n"), "{rest}");
        let (chain, own) = rest.split_once(&format!("; program {name} (id ")).unwrap();
        // Code of both stands in it, and is said to be whose.
        for words in ["p[6] == 7", "p[6] == 9", "; of front (id ", "; of behind (id "] {
            assert!(chain.contains(words), "{words}: {chain}");
        }
        assert!(own.lines().next().unwrap().contains("by itself: code for test runs"), "{own}");
        let doc = run(&["prog", "dump", "jited", "name", name, "opcodes", "-j"]).exits(0).json();
        let chain = &doc["chains"][0];
        assert_eq!(chain["points"], serde_json::json!([{ "port": "sim:dumped", "queue": null }]), "{chain}");
        assert_eq!(chain["programs"][0]["name"], "front", "{chain}");
        assert_eq!(chain["functions"][0]["name"], "front+behind.burst", "{chain}");
        assert_eq!(doc["functions"][0]["name"], format!("{name}.burst"), "{doc}");
        let raw = dir.arg("chain.bin");
        run(&["prog", "dump", "jited", "name", name, "file", &raw]).exits(0);
        assert_eq!(Some(std::fs::metadata(&raw).unwrap().len()), chain["bytes"].as_u64());
    }
    run(&["prog", "dump", "xlated", "name", "front"]).exits(0);
}

/// Constants stand behind a function's code, and are shown as what they are.
#[test]
fn constants_are_shown_as_bytes() {
    if !clang("inspect::constants_are_shown_as_bytes") || !cfg!(target_arch = "x86_64") {
        return;
    }
    let dir = Dir::new();
    let up = Up::new(&dir, None, None);
    for (name, program) in [("shed", "shed_load"), ("vlan", "vlan_push"), ("ttl", "ttl"), ("chain", "stage_udp")] {
        let object = sample(&dir, name);
        let check = |text: &str| {
            assert!(!text.contains("(bad)") && text.contains(" .byte "), "{program}:\n{text}");
            // Behind the first of them no instruction comes before the next function does.
            for function in text.split("\n\n") {
                let mut rows = function.lines().skip_while(|line| !line.contains(" .byte "));
                assert!(rows.all(|line| line.contains(" .byte ")), "{program}:\n{function}");
            }
        };
        check(&xway(&["prog", "dump", "jited", &object, "-n", program]).exits(0).out);
        let doc = xway(&["prog", "dump", "jited", &object, "-n", program, "-j"]).exits(0).json();
        check(doc["text"].as_str().unwrap());
        let on = ["--hook", "user", "--socket", &up.socket];
        xway(&[&["load", "sim:constants", &object, "-n", program, "-P", "50"], &on[..]].concat()).exits(0);
        let doc = xway(&[&["prog", "dump", "jited", "name", program, "-j"], &on[..]].concat()).exits(0).json();
        let functions = doc["functions"].as_array().unwrap();
        let texts = |f: &serde_json::Value| -> Vec<String> {
            let rows = f["disassembly"].as_array().unwrap().iter();
            rows.map(|row| row["text"].as_str().unwrap().to_owned()).collect()
        };
        for rows in functions.iter().map(texts) {
            let code = rows.iter().take_while(|text| !text.starts_with(".byte ")).count();
            assert!(code > 0 && rows[code..].iter().all(|text| text.starts_with(".byte ")), "{rows:?}");
        }
        xway(&[&["unload", "sim:constants", "-a", "--close"], &on[..]].concat()).exits(0);
    }
}

/// bpftool's words behind an object file mean what they mean behind a loaded program.
#[test]
fn words_behind_an_object_file() {
    if !clang("inspect::words_behind_an_object_file") || !cfg!(target_arch = "x86_64") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "ttl");
    let dump = |form: &str, words: &[&str]| xway(&[&["prog", "dump", form, &object], words].concat());
    let text = dump("xlated", &["opcodes", "linum"]).exits(0).out;
    assert!(text.contains("[file:") && text.contains(" line_num:") && text.contains("\n       95 00 00 00"), "{text}");
    let doc = dump("xlated", &["opcodes", "linum", "-j"]).exits(0).json();
    let rows = doc["disassembly"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["opcodes"].is_string()), "{doc}");
    assert!(rows.iter().any(|row| row["line_num"].as_u64() > Some(0)), "{doc}");
    assert!(dump("xlated", &["visual"]).exits(0).out.starts_with("digraph "));
    let text = dump("jited", &["opcodes", "linum"]).exits(0).out;
    assert!(text.contains("ttl.burst:\n") && text.contains(" line_num:") && text.contains(" .byte "), "{text}");
    let doc = dump("jited", &["opcodes", "-j"]).exits(0).json();
    assert!(doc["functions"][0]["disassembly"][0]["opcodes"].is_string(), "{doc}");
    let raw = dir.arg("raw");
    for form in ["xlated", "jited"] {
        assert_eq!(dump(form, &["file", &raw]).exits(0).out, "");
        let (len, doc) = (std::fs::metadata(&raw).unwrap().len(), dump(form, &["-j"]).exits(0).json());
        assert!(len > 100 && (form == "xlated" || doc["bytes"].as_u64() == Some(len)), "{form}: {len}, {doc}");
    }
    for (form, words, said) in [
        ("xlated", &["nonsense"][..], "file PATH, visual, opcodes, linum"),
        ("jited", &["visual"], "xway prog dump xlated"),
        ("ir", &["opcodes"], "leave file, visual, opcodes and linum out"),
        ("xlated", &["--without", "decided"], "xway prog dump ir OBJ --without PASS, or jited"),
    ] {
        let refused = dump(form, words).exits(2);
        assert!(refused.err.contains("\n  try: ") && refused.err.contains(said), "{}", refused.err);
    }
}
