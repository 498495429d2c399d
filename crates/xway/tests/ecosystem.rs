//! Objects that others have made, as they are, driven from user space by the words that their own tools use: pinned maps, values for
//! each CPU. The same on the kernel's hook and in the service's engine.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::Dir;
use common::service::Up;
use common::wire::{Bench, RIGHT, ready};
use serde_json::Value;
use xway_testkit::has_command;

/// Where Debian's packages put them.
const OBJECTS: &str = "/usr/lib/x86_64-linux-gnu/bpf";

fn there(test: &str, object: &str) -> Option<String> {
    if !ready(&format!("ecosystem::{test}")) {
        return None;
    }
    let path = format!("{OBJECTS}/{object}");
    if !std::path::Path::new(&path).exists() {
        xway_testkit::skip(&format!("xway::ecosystem::{test}"), &format!("{path} (package xdp-tools)"));
        return None;
    }
    Some(path)
}

/// Numbers in a value, added up over its CPUs.
fn sum(value: &Value, member: Option<&str>) -> u64 {
    match (value, member) {
        (Value::Array(all), _) => all.iter().map(|v| sum(v, member)).sum(),
        (Value::Object(all), Some(name)) if all.contains_key(name) => sum(&all[name], None),
        (Value::Object(all), _) => all.get("value").map_or(0, |v| sum(v, member)),
        (Value::Number(n), _) => n.as_u64().unwrap(),
        _ => 0,
    }
}

fn send(bench: &Bench, port: u16, count: u32) {
    let to = SocketAddr::from((RIGHT, port));
    bench
        .left
        .enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            // The host may say that nobody listens: that is its answer, not a failure.
            (0..count).for_each(|_| drop(socket.send_to(&[7; 20], to)));
        })
        .unwrap();
}

#[test]
fn a_filter_of_xdp_tools_is_filled_and_read_through_its_pins() {
    let Some(object) = there("a_filter_of_xdp_tools_is_filled_and_read_through_its_pins", "xdpfilt_alw_udp.o") else {
        return;
    };
    let (dir, bench) = (Dir::new(), Bench::new("ecofilter", true));
    let up = Up::new(&dir, None, Some(&bench.right));
    assert_eq!(bench.pings(), 1, "the hosts know each other");
    for hook in ["native", "user"] {
        let to = ["--hook", hook, "--socket", &up.socket];
        let run = |words: &[&str]| bench.json(&[words, &to[..]].concat());
        // Where the original keeps them.
        let pins = "/sys/fs/bpf/xdp-filter";
        run(&["load", "r0", &object, "-p", pins]);
        let (ports, stats) = (format!("{pins}/filter_ports"), format!("{pins}/xdp_stats_map"));
        // Port 9 as it stands in the packet; to it, UDP.
        run(&["map", "update", "pinned", &ports, "key", "2304", "value", "10"]);
        let dropped = || {
            let record = run(&["map", "lookup", "pinned", &stats, "key", "1"]);
            sum(record.get("values").unwrap_or(&record["value"]), Some("packets"))
        };
        assert_eq!(dropped(), 0, "{hook}");
        send(&bench, 9, 5);
        send(&bench, 10, 3);
        let deadline = Instant::now() + Duration::from_secs(30);
        while dropped() < 5 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(dropped(), 5, "{hook}");
        // The entry counts in its upper bits; six are flags.
        let entry = run(&["map", "lookup", "pinned", &ports, "key", "2304"]);
        let counted: u64 =
            entry["values"].as_array().expect("a value for each CPU").iter().map(|v| sum(v, None) >> 6).sum();
        assert_eq!(counted, 5, "{hook}: {entry}");
        if hook == "native" && has_command("bpftool") {
            let theirs =
                bench.run("bpftool", &["-j", "map", "lookup", "pinned", &stats, "key", "1", "0", "0", "0"]).exits(0);
            let theirs: Value = serde_json::from_str(&theirs.out).unwrap();
            let ours = run(&["map", "lookup", "pinned", &stats, "key", "1"]);
            assert_eq!(theirs["values"].as_array().unwrap().len(), ours["values"].as_array().unwrap().len());
        }
        // Taken away and put back, it goes on with its maps.
        bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
        let again = run(&["load", "r0", &object, "-p", pins]);
        assert_eq!(again["shared"].as_array().unwrap().len(), 2, "{hook}: {again}");
        assert_eq!(dropped(), 5, "{hook}");
        bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
        if hook == "native" {
            bench.run("rm", &["-r", pins]).exits(0);
        }
    }
}
