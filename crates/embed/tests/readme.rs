//! The README shows the examples as they are compiled, and they do what it says.

use std::io::Write;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use xway_testkit::{Lab, Needs, clang};

/// The built example. `cargo test` of this crate builds it beside this test; a run of this test alone does not.
fn example(test: &str, name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let built = own.ancestors().nth(2).unwrap().join("examples").join(name);
    if !built.exists() {
        xway_testkit::skip(test, &format!("{}: cargo test -p xway-embed builds it", built.display()));
        return None;
    }
    Some(built)
}

/// Counts what it passes, and drops datagrams to port 9.
const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); }
    passed SEC(".maps");
SEC("xdp") int sieve(struct xdp_md *ctx)
{
    unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u32 zero = 0;
    __u64 *n = bpf_map_lookup_elem(&passed, &zero);
    if (p + 38 <= end && p[12] == 8 && p[13] == 0 && p[23] == 17 && p[36] == 0 && p[37] == 9)
        return XDP_DROP;
    if (n)
        __sync_fetch_and_add(n, 1);
    return XDP_PASS;
}
char _license[] SEC("license") = "GPL";
"#;

/// A file that goes with the test.
struct Object(PathBuf);

impl Object {
    fn new(label: &str) -> Object {
        let path = std::env::temp_dir().join(format!("xway-readme-{label}-{}.o", std::process::id()));
        std::fs::write(&path, clang::compile_text("sieve", SOURCE, &["-g"]).unwrap()).unwrap();
        Object(path)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn examples_stand_in_the_readme() {
    let root = clang::repository();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for name in ["buffers", "engine"] {
        let path = root.join(format!("crates/embed/examples/{name}.rs"));
        let text = std::fs::read_to_string(&path).unwrap();
        let (_, code) = text.split_once("\n\n").expect("a heading, then the code");
        let block = format!("```rust\n{}\n```\n", code.trim_end());
        assert!(readme.contains(&block), "README.md does not show {} as it is:\n{block}", path.display());
    }
}

#[test]
fn the_example_over_buffers_runs() {
    const NAME: &str = "embed::readme::the_example_over_buffers_runs";
    let Some(built) = example(NAME, "buffers").filter(|_| Needs::of(NAME).clang().met()) else { return };
    let object = Object::new("buffers");
    let ran = Command::new(&built).arg(&object.0).arg("sieve").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{err}");
    let (first, rest) = out.split_once('\n').unwrap();
    assert!(first.starts_with("sieve (") && first.ends_with("): 1000 of 1000 pass"), "{out}");
    assert_eq!(rest, "map passed: 8 bytes a value\n");
    // What is missing is said, not a panic.
    let ran = Command::new(&built).arg(&object.0).arg("nobody").output().unwrap();
    assert!(!ran.status.success() && !String::from_utf8_lossy(&ran.stderr).contains("panicked"));
}

#[test]
fn the_example_with_two_ports_runs() {
    const NAME: &str = "embed::readme::the_example_with_two_ports_runs";
    let needs = Needs::of(NAME).root().command("ip").clang();
    let Some(built) = example(NAME, "engine").filter(|_| needs.met()) else { return };
    let lab = Lab::new("readmeports").unwrap();
    let [left, between, right] = ["left", "between", "right"].map(|name| lab.namespace(name).unwrap());
    lab.veth(&left, "l0", &between, "b0").unwrap();
    lab.veth(&between, "b1", &right, "r0").unwrap();
    left.address("l0", "10.9.9.1/24").unwrap();
    right.address("r0", "10.9.9.2/24").unwrap();
    let mac = right.ip(&["-br", "link", "show", "dev", "r0"]).unwrap();
    let mac = mac.split_whitespace().nth(2).unwrap();
    left.ip(&["neigh", "replace", "10.9.9.2", "lladdr", mac, "dev", "l0"]).unwrap();
    let bound = |port: u16| right.enter(|| UdpSocket::bind(("10.9.9.2", port)).unwrap()).unwrap();
    let (dropped, passed) = (bound(9), bound(10));
    let object = Object::new("engine");
    let mut child = between
        .command(&built)
        .arg(&object.0)
        .args(["b0", "b1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let from = left.enter(|| UdpSocket::bind("10.9.9.1:0").unwrap()).unwrap();
    dropped.set_nonblocking(true).unwrap();
    // What comes between opening the port and attaching passes without a program. From the first one on that it drops, it drops all.
    passed.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let (mut bytes, deadline, mut without) = ([0; 64], Instant::now() + Duration::from_secs(60), 0);
    for round in 0u32.. {
        from.send_to(&[9; 20], "10.9.9.2:9").unwrap();
        from.send_to(&round.to_ne_bytes(), "10.9.9.2:10").unwrap();
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "nothing comes through");
        // When the second one of this round has come, the first one has had its fate; before the engine runs neither comes.
        let came = |bytes: &mut [u8]| match passed.recv(bytes) {
            Ok(len) => Some(bytes[..len] == round.to_ne_bytes()),
            Err(_) => None,
        };
        let mine = loop {
            match came(&mut bytes) {
                Some(false) => {}
                Some(true) => break true,
                None => break false,
            }
        };
        match (mine, dropped.recv(&mut bytes).is_ok()) {
            (true, false) => without += 1,
            (_, true) => assert_eq!(without, 0, "what the program drops does not come through"),
            (false, false) => {}
        }
        if without == 5 {
            break;
        }
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let ran = child.wait_with_output().unwrap();
    let out = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let line = out.lines().find(|line| line.starts_with("packet:b0 queue 0: ")).unwrap_or_else(|| panic!("{out}"));
    let numbers: Vec<u64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] >= 10 && numbers[1] >= 5, "{out}");
}
