//! Objects that others have made, as they are, driven from user space by the words that their own tools use: pinned maps, values for
//! each CPU, maps of the time before libbpf, perf rings. The same on the kernel's hook and in the service's engine.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::service::Up;
use common::wire::{Bench, RIGHT, ready};
use common::{Dir, compiled};
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

#[test]
fn a_capture_program_of_xdp_tools_is_read_through_its_perf_ring() {
    let Some(object) = there("a_capture_program_of_xdp_tools_is_read_through_its_perf_ring", "xdpdump_xdp.o") else {
        return;
    };
    let (dir, bench) = (Dir::new(), Bench::new("ecodump", true));
    let up = Up::new(&dir, None, Some(&bench.right));
    assert_eq!(bench.pings(), 1);
    for hook in ["native", "user"] {
        let to = ["--hook", hook, "--socket", &up.socket];
        let done = bench.json(&[&["load", "r0", &object], &to[..]].concat());
        let ids = done["attachment"]["program"]["map_ids"].as_array().unwrap();
        let typed = |wanted: &str| {
            let is = |id: &&Value| {
                let shown = bench.json(&[&["map", "show", "id", &id.to_string()], &to[..]].concat());
                // Linux does not say where a map lies; the engine does, through the socket too.
                let placed = shown["maps"][0]["placement"].as_str();
                assert_eq!(placed.is_some_and(|words| words.contains("NUMA node")), hook == "user", "{shown}");
                shown["maps"][0]["type"] == wanted
            };
            ids.iter().find(is).unwrap_or_else(|| panic!("{wanted}")).to_string()
        };
        let (ring, settings) = (typed("perf_event_array"), typed("array"));
        // What its own user space writes into its data: the interface, how much of a packet, which of several programs.
        let ifindex = done["attachment"]["ifindex"].as_u64().unwrap() as u32;
        let bytes: Vec<String> =
            [ifindex, 64, 0].iter().flat_map(|n| n.to_le_bytes()).map(|b| format!("{b:02x}")).collect();
        let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
        let update = [&["map", "update", "id", &settings, "key", "0", "value", "hex"], &bytes[..], &to[..]].concat();
        bench.xway(&update).exits(0);
        let words = [&["map", "event_pipe", "id", &ring, "count", "2", "timeout", "30"], &to[..]].concat();
        let said = std::thread::scope(|scope| {
            let reader = scope.spawn(|| bench.xway(&[&["-j"], &words[..]].concat()).exits(0).out);
            while !reader.is_finished() {
                send(&bench, 9, 1);
                std::thread::sleep(Duration::from_millis(20));
            }
            reader.join().unwrap()
        });
        // A line for those that came together.
        let docs = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let all: Vec<Value> = docs.flat_map(|doc| doc["events"].as_array().unwrap().clone()).collect();
        assert_eq!(all.len(), 2, "{hook}: {said}");
        assert!(all.iter().all(|e| e["size"].as_u64().is_some_and(|n| n >= 24)), "{hook}: {said}");
        bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
    }
}

#[test]
fn maps_of_the_time_before_libbpf_are_filled_and_read() {
    if !ready("ecosystem::maps_of_the_time_before_libbpf_are_filled_and_read") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("ecolegacy", true));
    let up = Up::new(&dir, None, Some(&bench.right));
    let text = "struct old_map_def { unsigned type, key_size, value_size, max_entries, flags; };
        struct old_map_def SEC(\"maps\") verdicts = { .type = BPF_MAP_TYPE_HASH, .key_size = 2, .value_size = 4, .max_entries = 8 };
        struct old_map_def SEC(\"maps\") seen = { .type = BPF_MAP_TYPE_PERCPU_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1 };
        SEC(\"old\") int verdict_of(struct xdp_md *ctx) {
            unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
            if (p + 42 > end || p[12] != 8 || p[13] || p[23] != 17) return XDP_PASS;
            __u32 zero = 0; __u16 port = *(__u16 *)(p + 36);
            __u32 *verdict = bpf_map_lookup_elem(&verdicts, &port); long *n = bpf_map_lookup_elem(&seen, &zero);
            if (n && verdict) (*n)++;
            return verdict ? *verdict : XDP_PASS; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let object = compiled(&dir, "old", text, &[]);
    assert_eq!(bench.pings(), 1);
    for hook in ["generic", "user"] {
        let to = ["--hook", hook, "--socket", &up.socket];
        let done = bench.json(&[&["load", "r0", &object], &to[..]].concat());
        let ids: Vec<String> =
            done["attachment"]["program"]["map_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
        let named = |name: &str| {
            let is =
                |id: &&String| bench.json(&[&["map", "show", "id", id], &to[..]].concat())["maps"][0]["name"] == name;
            ids.iter().find(is).unwrap().clone()
        };
        // Without types: bytes, as bpftool takes them.
        let verdicts = named("verdicts");
        let update =
            ["map", "update", "id", &verdicts, "key", "hex", "00", "09", "value", "hex", "01", "00", "00", "00"];
        bench.xway(&[&update[..], &to[..]].concat()).exits(0);
        send(&bench, 9, 4);
        send(&bench, 11, 2);
        let seen = named("seen");
        let counted = || {
            let entry = bench.json(&[&["map", "lookup", "id", &seen, "key", "0"], &to[..]].concat());
            entry["values"].as_array().expect("a value for each CPU").iter().map(first_byte).sum::<u64>()
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while counted() < 4 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(counted(), 4, "{hook}");
        bench.xway(&[&["unload", "r0", "-a"], &to[..]].concat()).exits(0);
    }
}

/// A small number that is shown as a number or, without types, as bytes.
fn first_byte(value: &Value) -> u64 {
    match value {
        Value::Number(n) => n.as_u64().unwrap(),
        Value::String(s) => {
            let byte = s.trim_start_matches("hex:").trim().split(' ').next().unwrap();
            u64::from_str_radix(byte, 16).unwrap()
        }
        Value::Object(all) => all.get("value").map_or(0, first_byte),
        other => panic!("{other}"),
    }
}
