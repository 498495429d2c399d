//! What other people's tools make of our captures.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::xway;
use serde_json::Value;
use xway_testkit::{Needs, clang};

/// Runs the counting parser over the demonstration capture; the capture that it wrote, and the totals.
fn capture(extension: &str) -> (PathBuf, Value) {
    let object = clang::out_dir().join(format!("wireshark-{}-{extension}.o", std::process::id()));
    let output = object.with_extension(extension);
    let source = clang::repository().join("bpf/samples/count.bpf.c");
    std::fs::write(&object, clang::compile_file(&source, &[]).unwrap()).unwrap();
    let input = clang::repository().join("bpf/demo/mixed.pcapng");
    let [object_name, input, output_name] = [&object, &input, &output].map(|p| p.to_str().unwrap());
    let totals = xway(&["run", "-j", object_name, "-i", input, "-o", output_name]).exits(0).json();
    std::fs::remove_file(object).unwrap();
    (output, totals)
}

#[test]
fn wireshark_shows_each_verdict() {
    if !Needs::of("xway::wireshark::wireshark_shows_each_verdict").clang().command("tshark").met() {
        return;
    }
    let (path, totals) = capture("pcapng");
    let shown = Command::new("tshark").args(["-n", "-V", "-r"]).arg(&path).output().unwrap();
    std::fs::remove_file(path).unwrap();
    let text = String::from_utf8_lossy(&shown.stdout);
    for verdict in ["PASS", "DROP"] {
        let lines = text.lines().filter(|l| l.trim().starts_with(&format!("eBPF XDP: XDP_{verdict} "))).count();
        assert_eq!(totals["verdicts"][verdict], lines, "{verdict}");
    }
    let ids = text.lines().filter(|l| l.trim().starts_with("Packet id: ")).count();
    let queues = text.lines().filter(|l| l.trim().starts_with("Interface queue: 0")).count();
    assert_eq!((totals["packets"].as_u64(), ids), (Some(queues as u64), queues));
}

#[test]
fn tcpdump_reads_what_leaves() {
    if !Needs::of("xway::wireshark::tcpdump_reads_what_leaves").clang().command("tcpdump").met() {
        return;
    }
    let (path, totals) = capture("pcap");
    let counted = Command::new("tcpdump").args(["-n", "--count", "-r"]).arg(&path).output().unwrap();
    std::fs::remove_file(path).unwrap();
    let text = String::from_utf8_lossy(&counted.stdout);
    let number = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    assert_eq!(totals["verdicts"]["PASS"].as_u64(), number, "{text}");
}
