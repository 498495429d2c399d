//! `xway prog run`: one packet, as BPF_PROG_TEST_RUN.

mod common;

use base64::Engine as _;
use common::{Dir, clang, compiled, hex, packet, sample, xway};

fn bytes(text: &serde_json::Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap()
}

#[test]
fn a_packet_goes_in_and_comes_out() {
    if !clang("prog_run::a_packet_goes_in_and_comes_out") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "swap");
    let there = packet(r#"{"eth":{"src":"02:00:00:00:00:0a","dst":"02:00:00:00:00:0b"},"payload":46}"#);
    let back = packet(r#"{"eth":{"src":"02:00:00:00:00:0b","dst":"02:00:00:00:00:0a"},"payload":46}"#);
    let file = dir.file("in.bin", &there);
    let base64 = format!("base64:{}", base64::engine::general_purpose::STANDARD.encode(&there));
    for data_in in [file, hex(&there), base64] {
        let out = dir.arg("out.bin");
        let ran = xway(&["prog", "run", &object, "--data-in", &data_in, "--data-out", &out, "-j"]).exits(0);
        let doc = ran.json();
        assert_eq!((doc["retval"].as_u64(), doc["verdict"].as_str()), (Some(3), Some("TX")));
        assert_eq!(bytes(&doc["data_out"]), back);
        assert_eq!(std::fs::read(dir.path("out.bin")).unwrap(), back);
        assert!(doc["duration_ns"].is_u64() && doc["fault"].is_null());
        assert_eq!(bytes(&doc["ctx_out"]).len(), 24);
        assert_eq!(doc["ctx"]["data_end"], 60);
    }
    let text = xway(&["prog", "run", &object, "--data-in", &hex(&there)]).exits(0).out;
    assert!(text.contains("verdict TX (return value 3)") && text.contains("eth.dst"), "{text}");
}

#[test]
fn the_context_goes_in_and_comes_out() {
    if !clang("prog_run::the_context_goes_in_and_comes_out") {
        return;
    }
    let dir = Dir::new();
    // Returns what the metadata says; makes eight bytes of its own.
    let text = r#"
SEC("xdp") int p(struct xdp_md *ctx)
{
	__u32 *meta = (void *)(long)ctx->data_meta;
	int seen = (void *)(meta + 1) > (void *)(long)ctx->data ? 0 : *meta;
	bpf_xdp_adjust_meta(ctx, -4);
	return seen + ctx->ingress_ifindex;
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;
    let object = compiled(&dir, "meta", text, &[]);
    let data = [&7u32.to_le_bytes()[..], &packet(r#"{"payload":46}"#)].concat();
    let ctx = dir.file("ctx.json", r#"{"data": 4, "ingress_ifindex": 1}"#);
    let doc = xway(&["prog", "run", &object, "--data-in", &hex(&data), "--ctx-in", &ctx, "-j"]).exits(0).json();
    assert_eq!((doc["retval"].as_u64(), doc["verdict"].as_str()), (Some(8), Some("INVALID")));
    assert_eq!((doc["ctx"]["data"].as_u64(), doc["ctx"]["data_end"].as_u64()), (Some(8), Some(68)));
    let raw: Vec<u8> = [4u32, 64, 0, 1, 0, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    let out = dir.arg("ctx.out");
    let ran =
        xway(&["prog", "run", &object, "--data-in", &hex(&data), "--ctx-in", &hex(&raw), "--ctx-out", &out, "-j"]);
    assert_eq!(ran.exits(0).json()["retval"], 8);
    assert_eq!(std::fs::read(out).unwrap()[..4], 8u32.to_le_bytes());
}

#[test]
fn maps_and_repetition() {
    if !clang("prog_run::maps_and_repetition") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "blacklist");
    let ports = dir.file("ports.json", r#"[{"key":{"port":"be16:53","protocol":17},"value":40}]"#);
    let query = hex(&packet(r#"{"ipv4":{},"udp":{"dport":53}}"#));
    let argument = format!("ports={ports}");
    let args =
        ["prog", "run", &object, "--data-in", &query, "--map", &argument, "--repeat", "100", "--dump-maps", "-j"];
    let doc = xway(&args).exits(0).json();
    assert_eq!(doc["verdict"], "DROP");
    let map = doc["maps"].as_array().unwrap().iter().find(|m| m["name"] == "ports").unwrap();
    assert_eq!(map["entries"][0]["value"], 140);
    assert_eq!(map["entries"][0]["key"]["protocol"], 17);
}

#[test]
fn a_repeated_run_goes_on_with_the_packet_of_the_one_before() {
    if !clang("prog_run::a_repeated_run_goes_on_with_the_packet_of_the_one_before") {
        return;
    }
    let dir = Dir::new();
    let text = r#"
SEC("xdp") int grow(struct xdp_md *ctx)
{
	bpf_xdp_adjust_head(ctx, -4);
	return ctx->data_end - ctx->data;
}
char _license[] SEC("license") = "GPL";
"#;
    let object = compiled(&dir, "grow", text, &[]);
    let args = ["prog", "run", &object, "--data-in", &hex(&[7; 16]), "--repeat", "3", "-j"];
    // Linux 6.18 (bpftool prog run … repeat 3) says the same.
    assert_eq!(xway(&args).exits(0).json()["retval"], 28);
}

#[test]
fn what_a_program_sends_is_delivered() {
    if !clang("prog_run::what_a_program_sends_is_delivered") {
        return;
    }
    let dir = Dir::new();
    let text = r#"
struct { __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); __uint(key_size, 4); __uint(value_size, 4); } perf SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } ring SEC(".maps");
SEC("xdp") int p(struct xdp_md *ctx)
{
	__u32 n = 0x01020304;
	if (bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, &n, sizeof(n))) return XDP_ABORTED;
	return bpf_ringbuf_output(&ring, &n, sizeof(n), 0) ? XDP_ABORTED : XDP_PASS;
}
char _license[] SEC("license") = "GPL";
"#;
    let object = compiled(&dir, "events", text, &[]);
    let doc = xway(&["prog", "run", &object, "--data-in", &hex(&packet(r#"{"payload":46}"#)), "-j"]).exits(0).json();
    assert_eq!(doc["verdict"], "PASS", "{doc}");
    for events in doc["events"].as_array().unwrap() {
        assert_eq!(events["total"], 1, "{doc}");
        assert!(events["records"][0].as_str().unwrap().starts_with("hex:04 03 02 01"), "{doc}");
    }
    assert_eq!(doc["events"].as_array().unwrap().len(), 2);
}

#[test]
fn a_fault_is_said_with_its_source_line() {
    if !clang("prog_run::a_fault_is_said_with_its_source_line") {
        return;
    }
    let dir = Dir::new();
    let text = "SEC(\"xdp\") int p(struct xdp_md *ctx) { return *(char *)(long)ctx->data_end; }\n";
    let object = compiled(&dir, "fault", text, &[]);
    let data = hex(&packet(r#"{"payload":46}"#));
    let ran = xway(&["prog", "run", &object, "--data-in", &data, "--checked"]).exits(1).says("ctx->data_end");
    assert!(ran.out.contains("ABORTED"), "{}", ran.out);
    // In the way that refusals are shown: kind, line, what was known.
    for words in ["error[", "return *(char *)(long)ctx->data_end", "known: ", "xway verify shows"] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
    let doc = xway(&["prog", "run", &object, "--data-in", &data, "--checked", "-j"]).exits(1).json();
    let (fault, at) = (&doc["fault"], &doc["fault"]["at"]);
    assert!(fault["insn"].is_u64() && at["source"].as_str().unwrap().contains("ctx->data_end"), "{doc}");
}

#[test]
fn packets_and_contexts_that_do_not_fit() {
    if !clang("prog_run::packets_and_contexts_that_do_not_fit") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "swap");
    let good = hex(&packet(r#"{"payload":46}"#));
    let jumbo = dir.file("jumbo.bin", vec![0; 80_000]);
    let unknown = dir.file("unknown.json", r#"{"mark": 1}"#);
    for (args, code, words) in [
        (&["--data-in", "hex:00"][..], 3, "14 bytes"),
        (&["--data-in", &jumbo], 3, "at most 17 buffers"),
        (&["--data-in", "hex:0"], 2, "hexadecimal"),
        (&["--data-in", "base64:*"], 2, "base64"),
        (&["--data-in", "missing.bin"], 3, "no such file"),
        (&["--data-in", &good, "--ctx-in", "hex:ff000000"], 3, "context"),
        (&["--data-in", &good, "--ctx-in", &unknown], 3, "\"mark\""),
    ] {
        xway(&[&["prog", "run", &object], args].concat()).exits(code).says(words);
    }
    // What is asked for, what runs, and why it is another one.
    for (args, engine, reason) in [
        (&["--engine", "jit"][..], "jit", None),
        (&["--engine", "interp"], "interp", None),
        (&["--engine", "jit", "--budget", "1000"], "interp", Some("--budget")),
        (&["--engine", "jit", "--checked"], "interp", Some("not verified")),
    ] {
        let all = [&["prog", "run", &object, "--data-in", &good, "-j"], args].concat();
        let doc = xway(&all).exits(0).json();
        assert_eq!((&doc["engine"], &doc["engine_requested"]), (&engine.into(), &args[1].into()), "{doc}");
        let said = doc["engine_reason"].as_str();
        assert!(said.is_some() == reason.is_some() && said.unwrap_or("").contains(reason.unwrap_or("")), "{doc}");
        // The same in words, at the end of the summary.
        let text =
            xway(&all[..all.len() - args.len() - 1].iter().chain(args).copied().collect::<Vec<_>>()).exits(0).out;
        let summary = text.lines().find(|l| l.starts_with("verdict ")).unwrap();
        match (engine, said) {
            (_, Some(why)) => assert!(summary.contains(" instructions (interp") && summary.contains(why), "{text}"),
            ("jit", None) => assert!(summary.ends_with(", jit"), "{text}"),
            _ => assert!(summary.ends_with(" instructions"), "{text}"),
        }
    }
}
