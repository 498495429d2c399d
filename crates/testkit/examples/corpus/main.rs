//! Foreign programs before our verifier and the running kernel's: agreement, cost, and every difference with both reasons.
//!
//! `cargo run --release -p xway-testkit --example corpus -- [--retarget] [--show N] [--slow] PATH…`
//!
//! A path is an object file, a file of raw programs (`.jsonl`, one program a line as `xway verify --raw` reads them), or a
//! folder that is searched for both. Nothing that is read here belongs to this repository; `docs/verifier-differences.md` says
//! what was measured with it. `--retarget` loads programs of every kind as XDP: small verifier cases mostly do not care.
//! `--slow` lists the programs that took longest, `--only TEXT` takes programs with this in their name.

mod objects;
mod raw;
mod report;

use std::path::{Path, PathBuf};

use report::Report;

/// What to do with each program.
#[derive(Default)]
struct Options {
    retarget: bool,
    slow: bool,
    show: usize,
    only: Option<String>,
    paths: Vec<PathBuf>,
}

fn main() {
    let mut options = Options { show: usize::MAX, ..Options::default() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--retarget" => options.retarget = true,
            "--slow" => options.slow = true,
            "--show" => options.show = args.next().and_then(|a| a.parse().ok()).expect("a number behind --show"),
            "--only" => options.only = args.next(),
            path => options.paths.push(path.into()),
        }
    }
    let mut files = Vec::new();
    for path in &options.paths {
        find(path, &mut files);
    }
    let mut report = Report::new(options.only.clone());
    for file in &files {
        if file.extension().is_some_and(|e| e == "jsonl") {
            raw::run(file, &mut report);
        } else {
            objects::run(file, options.retarget, &mut report);
        }
    }
    report.print(options.show, options.slow);
}

/// Files below `path` that can be read here, by name.
fn find(path: &Path, out: &mut Vec<PathBuf>) {
    if !path.is_dir() {
        out.push(path.to_owned());
        return;
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for entry in entries {
        let known = entry.extension().is_some_and(|e| e == "o" || e == "jsonl" || e == "elf");
        if entry.is_dir() || known {
            find(&entry, out);
        }
    }
}
