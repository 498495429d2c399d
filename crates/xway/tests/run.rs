//! `xway run` over captures.

mod common;
#[path = "examples/fields.rs"]
#[allow(dead_code)] // Another test asks for the sections.
mod fields;

use common::{Dir, capture, clang, compiled, mixture, packet, sample, xway, xway_with};
use xway_port_pcap::CaptureReader;

/// Drops UDP to port 53, reflects other UDP, passes TCP, aborts what is cut, returns 77 for the rest.
const ALL_VERDICTS: &str = r#"
SEC("xdp") int judge(struct xdp_md *ctx)
{
	unsigned char *d = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (d + 34 > end) return XDP_ABORTED;
	if (d[12] != 8 || d[13] != 0) return 77;
	if (d[23] == 6) return XDP_PASS;
	if (d[23] != 17 || d + 38 > end) return XDP_ABORTED;
	if (d[36] == 0 && d[37] == 53) return XDP_DROP;
	d[0] = 0xee;
	return XDP_TX;
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;

#[test]
fn verdicts_are_counted_and_every_packet_has_one() {
    if !clang("run::verdicts_are_counted_and_every_packet_has_one") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "judge", ALL_VERDICTS, &[]);
    capture(&dir.path("in.pcapng"), &mixture());
    let doc = xway(&["run", &object, "-i", &dir.arg("in.pcapng"), "-j"]).exits(0).json();
    let bytes: usize = mixture().iter().map(Vec::len).sum();
    assert_eq!(doc["command"], "run");
    assert_eq!((doc["packets"].as_u64(), doc["bytes"].as_u64()), (Some(7), Some(bytes as u64)));
    // VLAN, ARP and IPv6 are the rest.
    for (name, count) in [("ABORTED", 1), ("DROP", 1), ("PASS", 1), ("TX", 1), ("REDIRECT", 0), ("INVALID", 3)] {
        assert_eq!(doc["verdicts"][name], count, "{name}: {doc}");
    }
    assert_eq!(doc["verdicts"].as_object().unwrap().len(), 6);
    assert_eq!((doc["program"]["name"].as_str(), doc["program"]["section"].as_str()), (Some("judge"), Some("xdp")));
    assert_eq!(doc["program"]["tag"].as_str().unwrap().len(), 16);
    assert!(doc["program"]["insns"].as_u64().unwrap() > 10);
    assert_eq!((&doc["engine"], &doc["engine_requested"]), (&"jit".into(), &"auto".into()));
    assert!(doc["ns_per_packet"].as_f64().unwrap() > 0.0 && doc["pps"].as_f64().unwrap() > 0.0);
    let errors = doc["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{doc}");
    assert_eq!((errors[0]["kind"].as_str(), errors[0]["count"].as_u64()), (Some("invalid_action"), Some(3)));
    assert_eq!(doc["losses"]["invalid_codes"]["77"], 3);
    assert_eq!(fields::Fields::read().complaints("run", &doc), [""; 0]);
}

#[test]
fn the_text_has_the_same_numbers_and_no_colours() {
    if !clang("run::the_text_has_the_same_numbers_and_no_colours") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "judge", ALL_VERDICTS, &[]);
    capture(&dir.path("in.pcap"), &mixture());
    let ran = xway(&["run", &object, "-i", &format!("pcap:{}", dir.arg("in.pcap"))]).exits(0);
    for line in ["verdict", "ABORTED", "DROP", "PASS", "TX", "REDIRECT", "INVALID", "total"] {
        assert!(ran.out.lines().any(|l| l.trim_start().starts_with(line)), "{line}:\n{}", ran.out);
    }
    assert!(ran.out.contains("7 packets in"), "{}", ran.out);
    assert!(!ran.out.contains('\x1b') && !ran.err.contains('\x1b'));
    assert!(ran.err.contains("the program returned 77"), "{}", ran.err);
}

#[test]
fn pcapng_gets_everything_with_verdicts_and_pcap_what_leaves() {
    if !clang("run::pcapng_gets_everything_with_verdicts_and_pcap_what_leaves") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "judge", ALL_VERDICTS, &[]);
    capture(&dir.path("in.pcapng"), &mixture());
    let input = dir.arg("in.pcapng");
    xway(&["run", &object, "-i", &input, "-o", &dir.arg("out.pcapng")]).exits(0);
    xway(&["run", &object, "-i", &input, "-o", &dir.arg("out.pcap")]).exits(0);

    let all = read(&dir, "out.pcapng");
    assert_eq!(all.len(), 7);
    assert_eq!(all[0], mixture()[0]);
    assert_eq!(all[1][0], 0xee, "the packet after the program");
    let raw = std::fs::read(dir.path("out.pcapng")).unwrap();
    // epb_verdict (7), nine bytes: type 2 (Linux XDP) and the return value.
    for verdict in [0u64, 1, 2, 3, 77] {
        let option = [&[7, 0, 9, 0, 2][..], &verdict.to_le_bytes()].concat();
        assert!(raw.windows(option.len()).any(|w| w == option), "verdict {verdict}");
    }
    let leaving = read(&dir, "out.pcap");
    assert_eq!(leaving.len(), 2, "one TX, one PASS");
    assert_eq!(leaving[0][0], 0xee);
    assert_eq!(dir.names(), ["in.pcapng", "judge.o", "out.pcap", "out.pcapng"], "nothing half-written is left");
}

fn read(dir: &Dir, name: &str) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(&dir.path(name)).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_with(|r| r.data.to_vec()).unwrap() {
        packets.push(packet);
    }
    packets
}

#[test]
fn count_and_standard_input() {
    if !clang("run::count_and_standard_input") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "count");
    let many: Vec<Vec<u8>> = (0..1000).map(|_| packet(r#"{"ipv4":{},"udp":{}}"#)).collect();
    capture(&dir.path("in.pcapng"), &many);
    for (count, expected) in [("0", 0), ("1", 1), ("64", 64), ("65", 65), ("5000", 1000)] {
        let doc = xway(&["run", &object, "-i", &dir.arg("in.pcapng"), "--count", count, "-j"]).exits(0).json();
        assert_eq!(doc["packets"], expected, "--count {count}");
        assert_eq!(doc["end"], if expected == 1000 { "input" } else { "count" });
    }
    let bytes = std::fs::read(dir.path("in.pcapng")).unwrap();
    for input in ["-", "pcap:-"] {
        let doc = xway_with(&["run", &object, "-i", input, "-j"], &bytes).exits(0).json();
        assert_eq!(doc["verdicts"]["PASS"], 1000);
    }
}

#[test]
fn maps_are_filled_before_and_printed_after() {
    if !clang("run::maps_are_filled_before_and_printed_after") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "blacklist");
    capture(&dir.path("in.pcap"), &mixture());
    let prefixes = dir.file("prefixes.json", r#"[{"key":{"length":31,"address":"ip:192.0.2.2"},"value":0}]"#);
    let argument = format!("prefixes={prefixes}");
    let args = ["run", &object, "-i", &dir.arg("in.pcap"), "--map", &argument, "--dump-maps"];
    let doc = xway(&[&args[..], &["-j"]].concat()).exits(0).json();
    let map = |name: &str| doc["maps"].as_array().unwrap().iter().find(|m| m["name"] == name).unwrap().clone();
    assert_eq!(map("prefixes")["entries"][0]["value"], 2, "{doc}");
    let verdicts = map("verdicts");
    assert_eq!(verdicts["type"], "percpu_array");
    let drop = verdicts["entries"].as_array().unwrap().iter().find(|e| e["key"] == 1).unwrap().clone();
    assert_eq!(drop["values"][0]["packets"], doc["verdicts"]["DROP"]);
    let text = xway(&args).exits(0).out;
    assert!(text.contains("map prefixes (lpm_trie): 1 entry"), "{text}");
    // What was printed can be given back.
    let again = dir.file("again.json", map("prefixes").to_string());
    let argument = format!("prefixes={again}");
    let doc =
        xway(&["run", &object, "-i", &dir.arg("in.pcap"), "--map", &argument, "--dump-maps", "-j"]).exits(0).json();
    let map = |name: &str| doc["maps"].as_array().unwrap().iter().find(|m| m["name"] == name).unwrap().clone();
    assert_eq!(map("prefixes")["entries"][0]["value"], 4);
}

#[test]
fn a_constant_can_be_set_before_the_run() {
    if !clang("run::a_constant_can_be_set_before_the_run") {
        return;
    }
    let dir = Dir::new();
    let text = r#"
const volatile int verdict = XDP_PASS;
const volatile int untouched = 5;
int seen;
SEC("xdp") int p(struct xdp_md *ctx) { seen += untouched; return verdict; }
char _license[] SEC("license") = "Dual BSD/GPL";
"#;
    let object = compiled(&dir, "constant", text, &[]);
    capture(&dir.path("in.pcap"), &mixture());
    let constants = dir.file("constants.json", r#"{"verdict": 1}"#);
    let argument = format!(".rodata={constants}");
    let doc =
        xway(&["run", &object, "-i", &dir.arg("in.pcap"), "--map", &argument, "--dump-maps", "-j"]).exits(0).json();
    assert_eq!(doc["verdicts"]["DROP"], 7);
    let bss = doc["maps"].as_array().unwrap().iter().find(|m| m["name"] == ".bss").unwrap();
    assert_eq!(bss["entries"][0]["value"]["seen"], 35);
}

#[test]
fn a_choice_is_only_asked_for_when_there_is_one() {
    if !clang("run::a_choice_is_only_asked_for_when_there_is_one") {
        return;
    }
    let dir = Dir::new();
    let text = r#"
SEC("xdp/one") int first(struct xdp_md *ctx) { return XDP_DROP; }
SEC("xdp/two") int second(struct xdp_md *ctx) { return XDP_TX; }
char _license[] SEC("license") = "Dual BSD/GPL";
"#;
    let object = compiled(&dir, "two", text, &[]);
    capture(&dir.path("in.pcap"), &mixture());
    let input = dir.arg("in.pcap");
    let ran = xway(&["run", &object, "-i", &input]).exits(2).says("-n NAME");
    assert!(ran.err.contains("first") && ran.err.contains("second"), "{}", ran.err);
    let by_name = xway(&["run", &object, "-i", &input, "-n", "second", "-j"]).exits(0).json();
    assert_eq!(by_name["verdicts"]["TX"], 7);
    let by_section = xway(&["run", &object, "-i", &input, "-s", "xdp/one", "-j"]).exits(0).json();
    assert_eq!(by_section["verdicts"]["DROP"], 7);
    xway(&["run", &object, "-i", &input, "-n", "third"]).exits(2).says("third");
    xway(&["run", &object, "-i", &input, "-s", "xdp/three"]).exits(2).says("xdp/three");
}

/// Reads one byte behind the packet's end.
const FAULTY: &str = r#"
SEC("xdp") int faulty(struct xdp_md *ctx)
{
	unsigned char *end = (void *)(long)ctx->data_end;
	return end[0] == 1 ? XDP_PASS : XDP_DROP;
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;

#[test]
fn a_program_that_faults_is_stopped_and_said_to_be_wrong() {
    if !clang("run::a_program_that_faults_is_stopped_and_said_to_be_wrong") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "faulty", FAULTY, &[]);
    capture(&dir.path("in.pcap"), &mixture());
    let doc = xway(&["run", &object, "-i", &dir.arg("in.pcap"), "--checked", "-j"]).exits(1).json();
    assert_eq!(doc["program"]["verified"], false);
    assert_eq!((doc["verdicts"]["ABORTED"].as_u64(), doc["losses"]["faults"].as_u64()), (Some(7), Some(7)));
    let error = &doc["errors"][0];
    assert_eq!((error["kind"].as_str(), error["count"].as_u64()), (Some("fault"), Some(7)));
    let message = error["message"].as_str().unwrap();
    // What, where (instruction and source line), and why.
    for words in ["faulty", "instruction", "end[0] == 1", "packet"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let text = xway(&["run", &object, "-i", &dir.arg("in.pcap"), "--checked"]).exits(1);
    assert!(text.err.contains("end[0] == 1") && text.out.contains("ABORTED"), "{}", text.err);
    assert!(text.out.contains("(interp, not verified)"), "{}", text.out);
}

#[test]
fn a_refused_program_does_not_run() {
    if !clang("run::a_refused_program_does_not_run") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "faulty", FAULTY, &[]);
    capture(&dir.path("in.pcap"), &mixture());
    let (input, output) = (dir.arg("in.pcap"), dir.arg("out.pcapng"));
    for args in [vec!["run", &object, "-i", &input, "-o", &output], vec!["prog", "run", &object, "--data-in", "hex:00"]]
    {
        let ran = xway(&args).exits(1).says("faulty is refused, so it does not run");
        assert!(ran.err.contains("error[packet-") && ran.err.contains("end[0] == 1"), "{}", ran.err);
        assert!(ran.err.contains("--checked") && ran.out.is_empty(), "{}{}", ran.err, ran.out);
        let doc = xway(&[args.as_slice(), &["-j"]].concat()).exits(1).json();
        assert_eq!((doc["error"]["exit"].as_u64(), doc["refused"]["verdict"].as_str()), (Some(1), Some("rejected")));
        assert!(doc["refused"]["error"]["kind"].is_string(), "{doc}");
    }
    assert!(!dir.path("out.pcapng").exists());
    // The target of a tail call stands behind the same gate.
    let tails = r#"
struct xdp_md;
SEC("xdp/target") int target(struct xdp_md *ctx) { return *(char *)(long)ctx->data_end; }
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 1); __uint(key_size, 4);
	__array(values, int (struct xdp_md *));
} jumps SEC(".maps") = { .values = { (void *)&target } };
SEC("xdp") int entry(struct xdp_md *ctx) { bpf_tail_call(ctx, &jumps, 0); return XDP_PASS; }
char _license[] SEC("license") = "Dual BSD/GPL";
"#;
    let tails = compiled(&dir, "tails", tails, &[]);
    xway(&["run", &tails, "-n", "entry", "-i", &input]).exits(1).says("target is refused");
    xway(&["run", &tails, "-n", "entry", "-i", &input, "--checked"]).exits(1);
}

#[test]
fn a_loop_without_an_end_is_stopped_by_the_budget() {
    if !clang("run::a_loop_without_an_end_is_stopped_by_the_budget") {
        return;
    }
    let dir = Dir::new();
    let text = "volatile int stop;\nSEC(\"xdp\") int p(struct xdp_md *c) { while (!stop); return 2; }\n";
    let object = compiled(&dir, "endless", text, &[]);
    capture(&dir.path("in.pcap"), &mixture());
    let ran = xway(&["run", &object, "-i", &dir.arg("in.pcap"), "--budget", "10000", "--checked"]).exits(1);
    assert!(ran.err.contains("budget of 10000 instructions"), "{}", ran.err);
}

#[test]
fn packets_come_from_memory_and_captures_come_again() {
    if !clang("run::packets_come_from_memory_and_captures_come_again") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "judge", ALL_VERDICTS, &[]);
    let run = |input: &str, more: &[&str]| xway(&[&["run", &object, "-i", input, "-j"][..], more].concat());
    let doc = run("sim:a?flows=10&size=100&count=1000", &[]).exits(0).json();
    assert_eq!((doc["packets"].as_u64(), doc["bytes"].as_u64()), (Some(1000), Some(100_000)));
    assert_eq!((doc["verdicts"]["TX"].as_u64(), doc["input"].as_str()), (Some(1000), Some("sim:a")));
    capture(&dir.path("in.pcapng"), &mixture());
    let again = format!("pcap:{}?loop=3", dir.arg("in.pcapng"));
    assert_eq!(run(&again, &[]).exits(0).json()["packets"], 21);
    let (tee, path) = (format!("tee:{}", dir.arg("seen.pcapng")), dir.path("seen.pcapng"));
    let doc = run(&again, &["--wrap", "fault?loss=1", "--wrap", &tee]).exits(0).json();
    assert_eq!(doc["packets"], 0, "a wire that loses everything");
    let mut reader = CaptureReader::open(&path).unwrap();
    assert!(reader.next_with(|_| ()).unwrap().is_none(), "the capture is outside of it");
    let doc = run("sim:a?count=50", &["--wrap", "fault?duplicate=1"]).exits(0).json();
    assert_eq!(doc["packets"], 100);
    run("sim:a?count=1", &["--wrap", "nonsense"]).exits(2).says("no such wrapper");
    run("sim:a?colour=red", &[]).exits(2).says("colour");
}

#[test]
fn memory_is_as_large_as_its_profile_says() {
    if !clang("run::memory_is_as_large_as_its_profile_says") {
        return;
    }
    let dir = Dir::new();
    let object = compiled(&dir, "judge", ALL_VERDICTS, &[]);
    let run = |more: &[&str]| xway(&[&["run", &object, "-i", "sim:a?size=1500&count=5000", "-j"][..], more].concat());
    for (more, burst, chunks, chunk) in [
        (&[][..], 64, 1024, 4096),
        (&["--profile", "small"], 16, 256, 2048),
        (&["--profile", "small", "--burst", "8", "--chunk", "4096"], 8, 256, 4096),
        (&["--chunk", "2048"], 64, 1024, 2048),
    ] {
        let doc = run(more).exits(0).json();
        let memory = &doc["memory"];
        assert_eq!((&memory["burst"], &memory["chunks"]), (&burst.into(), &chunks.into()), "{more:?}: {doc}");
        assert_eq!(memory["chunk_bytes"], chunk, "{more:?}: {doc}");
        // Nothing is different but the memory.
        assert_eq!((doc["packets"].as_u64(), doc["verdicts"]["TX"].as_u64()), (Some(5000), Some(5000)), "{more:?}");
        assert!(memory["bytes"].as_u64() >= Some(chunks * chunk), "{doc}");
    }
    // What does not fit the smaller chunk is cut, and counted.
    let long = &["run", &object, "-i", "sim:a?size=1900&count=100", "--chunk", "2048", "-j"];
    let doc = xway(long).exits(0).json();
    let cut = &doc["losses"]["ports"][0]["truncated"];
    assert_eq!((&doc["packets"], cut, doc["bytes"].as_u64()), (&100.into(), &100.into(), Some(100 * 1792)), "{doc}");
    run(&["--chunk", "1024"]).exits(2);
}

#[test]
fn read_only_packets_take_programs_that_only_read() {
    if !clang("run::read_only_packets_take_programs_that_only_read") {
        return;
    }
    let dir = Dir::new();
    capture(&dir.path("in.pcapng"), &mixture());
    let input = dir.arg("in.pcapng");
    let run = |object: &str, more: &[&str]| xway(&[&["run", object, "-i", &input, "--read-only"], more].concat());
    // It writes one byte of some packets.
    let judge = compiled(&dir, "judge", ALL_VERDICTS, &[]);
    run(&judge, &[]).exits(1).says("program judge needs write access (it stores into packets)");
    run(&judge, &["--checked"]).exits(1).says("program judge needs write access (it has no proof)");
    run(&sample(&dir, "ttl"), &[]).exits(0);
    xway(&["run", &judge, "-i", &input]).exits(0);
}
