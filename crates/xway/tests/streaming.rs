//! A capture of any length streams in constant memory.

mod common;

use std::io::Write;
use std::process::Stdio;

use common::{Dir, clang, command, packet, sample};

/// Bytes that are sent through the pipe. `XWAY_STREAM_GB` asks for more.
const STREAM: u64 = 1 << 30;
/// Most that may be resident, KiB.
const RESIDENT_MAX: u64 = 150 << 10;

#[test]
fn a_long_capture_takes_no_more_memory_than_a_short_one() {
    if !clang("streaming::a_long_capture_takes_no_more_memory_than_a_short_one") {
        return;
    }
    let dir = Dir::new();
    let object = sample(&dir, "count");
    let output = dir.arg("out.pcapng");
    let mut args = vec!["run", &object, "-i", "pcap:-", "-j"];
    let wanted = std::env::var("XWAY_STREAM_GB").ok().and_then(|n| n.parse::<u64>().ok()).map_or(STREAM, |n| n << 30);
    if std::env::var_os("XWAY_STREAM_OUT").is_some() {
        args.extend(["-o", &output]);
    }
    let mut child = command(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("xway cannot be started");
    let mut pipe = child.stdin.take().expect("piped");
    pipe.write_all(&header()).unwrap();
    let chunk = records(256);
    let mut sent = 0u64;
    while sent < wanted {
        pipe.write_all(&chunk).expect("xway ended early");
        sent += chunk.len() as u64;
    }
    // Everything has been sent and the pipe is still open, so the process is there to be looked at.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    drop(pipe);
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let doc: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(doc["packets"].as_u64().unwrap(), sent / chunk.len() as u64 * 256);
    let Ok(status) = status else {
        xway_testkit::skip("streaming::peak memory", "/proc");
        return;
    };
    let peak: u64 = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
        .expect("VmHWM");
    println!("{} MiB of capture, {} packets, peak {} MiB resident", sent >> 20, doc["packets"], peak >> 10);
    assert!(peak < RESIDENT_MAX, "{peak} KiB resident");
}

/// Header of a pcap with microseconds, Ethernet.
fn header() -> Vec<u8> {
    let mut out = 0xa1b2_c3d4u32.to_le_bytes().to_vec();
    out.extend([2, 0, 4, 0]);
    out.extend([0; 8]);
    out.extend(65535u32.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out
}

/// So many records of a packet of 1000 bytes.
fn records(count: usize) -> Vec<u8> {
    let packet = packet(r#"{"ipv4":{},"udp":{},"payload":958}"#);
    let mut one = vec![0; 8];
    one.extend((packet.len() as u32).to_le_bytes());
    one.extend((packet.len() as u32).to_le_bytes());
    one.extend(&packet);
    one.repeat(count)
}
