//! The examples that `--help` shows are not only commands: they do what they say, as they stand there, in a shell.

mod common;

use std::process::Command;

use common::{Dir, Ran, sample, xway};
use xway_testkit::Needs;

/// The commands under "Examples:" in a verb's help.
fn examples(verb: &[&str]) -> Vec<String> {
    let help = xway(&[verb, &["--help"]].concat()).exits(0).out;
    let (_, block) = help.split_once("Examples:\n").expect("examples");
    let lines: Vec<String> = block.lines().take_while(|l| l.starts_with("  ")).map(|l| l.trim().to_owned()).collect();
    assert!(!lines.is_empty(), "{verb:?}");
    lines
}

/// Runs a line in a folder, with the command in the path.
fn shell(dir: &Dir, line: &str) -> Ran {
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_xway")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    let done = command.args(["-c", line]).current_dir(dir.path(".")).env("PATH", path).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: done.status.code().unwrap(), out: text(done.stdout), err: text(done.stderr) }
}

#[test]
fn verify() {
    if !common::clang("help_examples::verify") {
        return;
    }
    let dir = Dir::new();
    sample(&dir, "count");
    let lines = examples(&["verify"]);
    assert!(lines.iter().any(|l| l.contains("--raw")) && lines.iter().any(|l| l.contains("-v")), "{lines:?}");
    for line in lines {
        let ran = shell(&dir, &line).exits(0);
        assert!(ran.out.contains("accepted"), "{line}: {}", ran.out);
    }
}

#[test]
fn conformance() {
    let dir = Dir::new();
    let lines = examples(&["conformance"]);
    assert!(lines.iter().any(|l| l.contains("--engine jit")), "{lines:?}");
    for line in lines {
        let (command, printed) = line.split_once("  # ").expect("what it prints");
        assert_eq!(shell(&dir, command).exits(0).out.trim(), printed, "{line}");
    }
}

/// One round instead of nine: what is measured is not looked at.
#[test]
fn bench_verify() {
    if !Needs::of("help_examples::bench_verify").root().kernel(6, 12).clang().met() {
        return;
    }
    let dir = Dir::new();
    for line in examples(&["bench", "verify"]) {
        if line.contains("--hard") {
            // A minute; `cargo test -p xway-bench --test hard` goes through the same inputs.
            continue;
        }
        if line.contains("/usr/lib") && !std::path::Path::new("/usr/lib/x86_64-linux-gnu/bpf").is_dir() {
            println!("not run: help_examples::bench_verify, {line} needs the objects of xdp-tools");
            continue;
        }
        let ran = shell(&dir, &format!("{line} --rounds 1")).exits(0);
        assert!(ran.out.contains("ratio"), "{line}: {}", ran.out);
    }
}
