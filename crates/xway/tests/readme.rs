//! The README's walk: its files are written, its commands run, and what they print compared with what it shows.

mod common;

use std::path::Path;
use std::process::Command;

use common::Dir;
use xway_testkit::{Needs, clang};

/// A fenced block: its language and its text.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("```") {
        let (language, after) = after.split_once('\n').expect("a fence ends its line");
        let (body, after) = after.split_once("```").expect("a fence is closed");
        out.push((language, body));
        rest = after;
    }
    out
}

/// The commands of a console block, each with the lines shown under it.
fn commands(block: &str) -> Vec<(&str, String)> {
    let mut out: Vec<(&str, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), out.last_mut()) {
            (Some(command), _) => out.push((command, String::new())),
            (None, Some((_, shown))) => *shown += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    out
}

/// Text without what differs from run to run and from directory to directory: rates, times, the place of sources.
fn stable(text: &str, dir: &Path) -> String {
    let text = text.replace(&format!("{}/", dir.display().to_string().trim_end_matches('/')), "");
    let mut out = String::new();
    for line in text.lines() {
        let line = match (line.split_once(" packets in "), line.rsplit_once("  (")) {
            (Some((packets, _)), _) => format!("{packets} packets in …"),
            (None, Some((name, time))) if time.ends_with(" ms)") => name.to_owned(),
            _ => line.to_owned(),
        };
        out += &line;
        out.push('\n');
    }
    out
}

/// Whether a block makes a network and loads programs: that is tried in a world of its own.
fn is_lab(block: &str) -> bool {
    block.contains("$ xway lab up")
}

/// Lines without what differs from machine to machine: the width of columns, ids, rates, tags.
fn without_numbers(text: &str) -> Vec<String> {
    let is_number = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    let is_tag = |word: &str| word.len() == 16 && word.chars().all(|c| c.is_ascii_hexdigit());
    let word = |word: &str| match word.trim_matches([',', ')']) {
        bare if is_number(bare) || is_tag(bare) => "N".to_owned(),
        _ => word.to_owned(),
    };
    text.lines().map(|line| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_lab_of_the_readme_works_as_printed() {
    let needs = Needs::of("the_lab_of_the_readme_works_as_printed").root().clang();
    if !needs.command("ip").command("ping").command("unshare").met() {
        return;
    }
    let readme = std::fs::read_to_string(clang::repository().join("README.md")).expect("the README");
    let dir = Dir::new();
    let blocks = blocks(&readme);
    let source = blocks.iter().find(|(language, _)| *language == "c").expect("a program").1;
    let object = clang::compile_text("drop_dns", source, &[]).expect("it compiles");
    std::fs::write(dir.path("drop_dns.o"), object).expect("a file");
    let lab = blocks.iter().find(|(_, body)| is_lab(body)).expect("a lab").1;
    let mut script =
        "mount -t tmpfs none /run && mount -t bpf bpf /sys/fs/bpf && ip link set lo up || exit 9\n".to_owned();
    for (command, _) in commands(lab) {
        script += &format!("echo '$' \"{command}\"\n{command} 2>&1\n");
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_xway")).parent().expect("in a directory");
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", &script])
        .current_dir(dir.path(""))
        .env("PATH", format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default()))
        .output()
        .expect("a shell");
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(without_numbers(&printed), without_numbers(lab), "{printed}{errors}");
}

#[test]
fn the_walk_through_the_readme_works_as_printed() {
    // Tags, instruction numbers and registers in the text are those of one compiler.
    let version =
        Command::new("clang").arg("--version").output().map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    if !version.is_ok_and(|v| v.contains("version 14.")) {
        return xway_testkit::skip("the_walk_through_the_readme_works_as_printed", "clang 14");
    }
    let readme = std::fs::read_to_string(clang::repository().join("README.md")).expect("the README");
    let dir = Dir::new();
    std::fs::create_dir_all(dir.path("bpf")).expect("a directory");
    std::os::unix::fs::symlink(clang::repository().join("bpf/demo"), dir.path("bpf/demo")).expect("a link");
    let binary = Path::new(env!("CARGO_BIN_EXE_xway")).parent().expect("in a directory");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut ran = 0;
    for (language, body) in blocks(&readme) {
        match language {
            "c" => drop(dir.file("drop_dns.c", body)),
            "toml" => drop(dir.file("drop_dns.toml", body)),
            _ => {}
        }
        for (command, shown) in commands(body) {
            if command.starts_with("make ") || is_lab(body) {
                continue;
            }
            let output = Command::new("sh")
                .args(["-c", &format!("{command} 2>&1")])
                .current_dir(dir.path(""))
                .env("PATH", &path)
                .output()
                .expect("a shell");
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(stable(&printed, &dir.path("")), stable(&shown, &dir.path("")), "$ {command}");
            ran += 1;
        }
    }
    assert!(ran >= 5, "the README shows its commands");
}
