//! Running the binary, and things to run it on.
#![allow(dead_code)] // Each test file uses its part.

pub mod service;
pub mod wire;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use xway_packet_text::Description;
use xway_port_pcap::{CaptureWriter, Written};

/// What a run of `xway` gave.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Standard output as the one JSON document that it must be.
    pub fn json(&self) -> Value {
        let mut documents = serde_json::Deserializer::from_str(&self.out).into_iter::<Value>();
        let first = documents.next().expect("no JSON document").expect("not JSON");
        assert!(documents.next().is_none(), "more than one document: {}", self.out);
        assert_eq!(first["schema_version"], 1, "{first}");
        first
    }

    /// What two runs that do the same have in common: neither which engine it was, nor how long it took.
    fn settled(&self) -> (i32, String, &str) {
        if let Ok(mut document) = serde_json::from_str(&self.out) {
            settle(&mut document);
            return (self.code, document.to_string(), &self.err);
        }
        let mut out = String::new();
        for line in self.out.lines() {
            match line.trim_start().strip_prefix("in the interpreter: ") {
                Some(reason) => known(reason),
                // Times, and what ran, stand at the end of a line, behind what came of it.
                None => {
                    out.extend([line.split("  (").next().and_then(|l| l.split("), ").next()).unwrap_or(line), "\n"])
                }
            }
        }
        (self.code, out, &self.err)
    }

    /// Checks the exit code and that nothing panicked.
    #[track_caller]
    pub fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "standard output:\n{}\nstandard error:\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }

    /// Checks that standard error has one message that contains `words`.
    #[track_caller]
    pub fn says(self, words: &str) -> Ran {
        assert!(self.err.contains(words), "{words:?} is not in:\n{}", self.err);
        assert_eq!(self.err.matches("xway: ").count(), 1, "not one message:\n{}", self.err);
        self
    }
}

/// Takes away from a JSON document what the engine decides.
fn settle(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.get("engine_reason").and_then(Value::as_str).into_iter().for_each(known);
            let of_the_engine =
                |name: &str| name.starts_with("engine") || ["insns", "duration_ns", "time_us"].contains(&name);
            fields.retain(|name, _| !of_the_engine(name));
            fields.values_mut().for_each(settle);
        }
        Value::Array(values) => values.iter_mut().for_each(settle),
        _ => {}
    }
}

/// Why the interpreter ran what machine code was asked for: there are two reasons.
fn known(reason: &str) {
    assert!(["the program is not verified", "--budget counts"].iter().any(|r| reason.starts_with(r)), "{reason}");
}

/// The command, with an environment that does not depend on who runs the tests.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xway"));
    command.args(args).env_remove("NO_COLOR").env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

pub fn xway(args: &[&str]) -> Ran {
    in_each_engine(args, |args| ran(command(args).output().expect("xway cannot be started")))
}

/// Commands that run single packets do it in the checked interpreter unless they are told otherwise. What a test asks of one of them
/// it asks of machine code, too: a test that names no engine gets the interpreter's answer, once machine code has given the same.
#[track_caller]
fn in_each_engine(args: &[&str], run: impl Fn(&[&str]) -> Ran) -> Ran {
    let runs_packets = match args {
        ["test", ..] => true,
        ["prog", "run", object, ..] => object.ends_with(".o"),
        _ => false,
    };
    if !runs_packets || args.contains(&"--engine") || args.contains(&"--hook") {
        return run(args);
    }
    let compiled = run(&[args, &["--engine", "jit"]].concat());
    let ran = run(args);
    if ran.code == 2 {
        // Usage, which says what was asked for.
        return ran;
    }
    assert_eq!(compiled.settled(), ran.settled(), "machine code and interpreter, {args:?}");
    ran
}

/// Runs a command that ends as `xway`.
pub fn output(command: &mut Command) -> Ran {
    ran(command.stdin(Stdio::null()).output().expect("it cannot be started"))
}

/// Runs in a directory.
pub fn ran_in(dir: &Dir, args: &[&str]) -> Ran {
    ran(command(args).current_dir(dir.path(".")).output().expect("xway cannot be started"))
}

/// Runs with bytes on standard input.
pub fn xway_with(args: &[&str], input: &[u8]) -> Ran {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("xway cannot be started");
    let mut to = child.stdin.take().expect("piped");
    // Beside the reading: it may answer before it has read everything, or end.
    std::thread::scope(|scope| {
        scope.spawn(move || to.write_all(input));
        ran(child.wait_with_output().expect("xway cannot be waited for"))
    })
}

fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().expect("killed by a signal"),
        out: String::from_utf8(output.stdout).expect("output is text"),
        err: String::from_utf8(output.stderr).expect("messages are text"),
    }
}

/// A directory that is gone when this is.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Dir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("xway-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path as an argument.
    pub fn arg(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.arg(name)
    }

    /// Names in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a test that measures beside the kernel can run.
pub fn rooted(name: &'static str) -> bool {
    xway_testkit::Needs::of(name).root().kernel(6, 0).clang().met()
}

/// Compiles one of the samples; the object's path.
pub fn sample(dir: &Dir, name: &str) -> String {
    let source = xway_testkit::clang::repository().join(format!("bpf/samples/{name}.bpf.c"));
    let bytes = xway_testkit::clang::compile_file(&source, &[]).unwrap();
    dir.file(&format!("{name}.o"), bytes)
}

/// Compiles C text; the object's path.
pub fn compiled(dir: &Dir, name: &str, text: &str, flags: &[&str]) -> String {
    let head = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n";
    let bytes = xway_testkit::clang::compile_text(name, &format!("{head}{text}"), flags).unwrap();
    dir.file(&format!("{name}.o"), bytes)
}

/// A packet from its description in JSON.
pub fn packet(json: &str) -> Vec<u8> {
    serde_json::from_str::<Description>(json).unwrap().build().unwrap()
}

pub fn hex(bytes: &[u8]) -> String {
    format!("hex:{}", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>())
}

/// Writes a capture with these packets, pcap or pcapng by its name.
pub fn capture(path: &Path, packets: &[Vec<u8>]) {
    let mut writer = CaptureWriter::create(path, &["test"]).unwrap();
    for (number, data) in packets.iter().enumerate() {
        let written = Written {
            timestamp_ns: 1_700_000_000_000_000_000 + number as u64 * 1000,
            data,
            original_len: data.len() as u32,
            interface: 0,
            queue: 0,
            packet_id: number as u64 + 1,
            verdict: Some(2),
            comment: None,
            inbound: false,
        };
        writer.write(&written).unwrap();
    }
    writer.finish().unwrap();
}

/// A small mixture: three UDP, two TCP (one IPv6), one ARP, one that is cut inside its IP header.
pub fn mixture() -> Vec<Vec<u8>> {
    [
        r#"{"ipv4":{"src":"192.0.2.1"},"udp":{"dport":53},"payload":20}"#,
        r#"{"ipv4":{"src":"192.0.2.2"},"udp":{"dport":80},"payload":20}"#,
        r#"{"vlan":7,"ipv4":{"src":"192.0.2.3"},"udp":{"dport":80},"payload":20}"#,
        r#"{"ipv4":{},"tcp":{"dport":443}}"#,
        r#"{"ipv6":{},"tcp":{"dport":443}}"#,
        r#"{"arp":{}}"#,
        r#"{"ipv4":{},"udp":{},"truncate":20}"#,
    ]
    .map(packet)
    .to_vec()
}

/// Whether clang is here; says so when it is not.
pub fn clang(test: &str) -> bool {
    xway_testkit::Needs::of(test).clang().met()
}

/// Compares with `tests/refused/NAME`, or writes it with XWAY_BLESS=1.
#[track_caller]
pub fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/refused").join(name);
    if std::env::var_os("XWAY_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == text,
        "{} is different; if the new text is better: XWAY_BLESS=1 cargo test -p xway\n\
         --- expected\n{expected}\n--- got\n{text}",
        path.display()
    );
}
