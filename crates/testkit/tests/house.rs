//! The house rules that a machine can check. Each failure names file, line and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use xway_testkit::clang::repository;

/// Floors of the house: a crate may depend on crates of lower floors only (ARCHITECTURE.md, "The house").
const FLOORS: &[(&str, u32)] = &[
    ("isa", 0),
    ("abi", 0),
    ("packet-text", 0),
    ("netlink", 1),
    ("numa", 0),
    ("door", 0),
    ("filter", 1),
    ("object", 1),
    ("verifier", 2),
    ("maps", 2),
    ("packet", 2),
    ("kernel", 2),
    ("hook", 6),
    ("lab", 6),
    ("embed", 6),
    ("capi", 7),
    ("vm", 3),
    ("jit", 4),
    ("witness", 4),
    ("engine", 5),
    ("bench", 7),
    ("tools", 7),
    ("port-pcap", 6),
    ("port-packet", 6),
    ("port-tap", 6),
    ("port-afxdp", 6),
    ("xsk-client", 3),
    ("xsk", 6),
    ("port-sim", 6),
    ("port-wrap", 7),
    ("ports", 7),
    ("control", 8),
    ("xway", 9),
];

/// Crates whose root forbids `unsafe`, so that no file below can allow it.
const FORBIDDEN: &[&str] = &[
    "isa",
    "abi",
    "packet-text",
    "object",
    "verifier",
    "engine",
    "witness",
    "hook",
    "lab",
    "embed",
    "tools",
    "port-sim",
    "port-wrap",
    "ports",
    "control",
    "xway",
    "testkit",
    "trial",
    "fuzz",
];

#[test]
fn arrows_go_down() {
    let floor = |name: &str| FLOORS.iter().find(|(n, _)| *n == name).map(|(_, f)| *f);
    let mut wrong = Vec::new();
    for manifest in crates().map(|dir| dir.join("Cargo.toml")) {
        let name = manifest.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        // What only tests are made of may look at everything.
        if ["testkit", "trial", "fuzz"].contains(&name.as_str()) {
            continue;
        }
        let Some(own) = floor(&name) else {
            wrong.push(format!("crates/{name}: not in FLOORS of this test and in ARCHITECTURE.md"));
            continue;
        };
        for (line, dependency) in dependencies(&read(&manifest)) {
            let problem = match floor(&dependency) {
                _ if ["testkit", "trial"].contains(&dependency.as_str()) => {
                    format!("{dependency} may only be a dev-dependency")
                }
                None => format!("{dependency} has no floor"),
                Some(f) if f >= own => format!("{dependency} (floor {f}) is not below {name} (floor {own})"),
                Some(_) => continue,
            };
            wrong.push(format!("crates/{name}/Cargo.toml:{line}: {problem}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Crates of the house under `[dependencies]` (not `dev-` or `build-`), with their line.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut section = "";
    let mut found = Vec::new();
    for (number, line) in (1..).zip(manifest.lines()) {
        if line.starts_with('[') {
            section = line.trim();
        }
        if section == "[dependencies]"
            && let Some(rest) = line.strip_prefix("xway-")
        {
            let name = rest.split(['.', ' ', '=']).next().unwrap_or_default();
            found.push((number, name.to_owned()));
        }
    }
    found
}

#[test]
fn unsafe_code_is_where_the_architecture_says() {
    let page = read(&repository().join("ARCHITECTURE.md"));
    let (_, section) = page.split_once("## Where unsafe code is").expect("the section of ARCHITECTURE.md");
    let section = section.split("\n## ").next().unwrap_or_default();
    // Rows of the table: `| `path` | reason |`.
    let named: Vec<&str> = section.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
    let allowing: Vec<String> = sources("rs")
        .filter(|(path, text)| text.contains("#![allow(unsafe_code)]") && !path.ends_with("tests/house.rs"))
        .map(|(path, _)| path)
        .collect();
    let mut wrong: Vec<String> = allowing
        .iter()
        .filter(|path| !named.contains(&path.as_str()))
        .map(|path| format!("{path}: add it to \"Where unsafe code is\" in ARCHITECTURE.md, with the reason"))
        .collect();
    let stale = named.iter().filter(|path| !allowing.iter().any(|a| a == *path));
    wrong.extend(stale.map(|path| format!("ARCHITECTURE.md names {path}, which has no unsafe code")));
    for name in FORBIDDEN {
        let root = ["lib.rs", "main.rs"].map(|f| repository().join("crates").join(name).join("src").join(f));
        let text: String = root.iter().filter(|f| f.exists()).map(|f| read(f)).collect();
        if !text.contains("#![forbid(unsafe_code)]") {
            wrong.push(format!("crates/{name}: its root needs #![forbid(unsafe_code)]"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// What runs a program in the checked interpreter, by itself or as one link of something.
const INTERPRETER: &[&str] = &["run", "run_raw", "run_tail", "run_chain", "test_run"];

/// Tests run programs by `xway_trial`, in each engine. Those that call the interpreter are named with their reasons.
#[test]
fn tests_run_programs_in_each_engine() {
    let page = read(&repository().join("docs/testing.md"));
    let (_, section) = page.split_once("## In both engines").expect("the section of docs/testing.md");
    let section = section.split("\n## ").next().unwrap_or_default();
    let named: Vec<&str> = section.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
    let calling: Vec<String> = sources("rs")
        .filter(|(path, _)| ["/tests/", "/examples/", "crates/fuzz/"].iter().any(|part| path.contains(part)))
        .filter(|(path, text)| !path.ends_with("tests/house.rs") && calls_the_interpreter(text))
        .map(|(path, _)| path)
        .collect();
    let mut wrong: Vec<String> = calling
        .iter()
        .filter(|path| !named.contains(&path.as_str()))
        .map(|path| {
            format!("{path}: run the program by xway_trial, or add the file to \"In both engines\" in docs/testing.md")
        })
        .collect();
    let stale = named.iter().filter(|path| !calling.iter().any(|c| c == *path));
    wrong.extend(stale.map(|path| format!("docs/testing.md names {path}, which does not call the interpreter")));
    assert!(wrong.is_empty() && calling.len() > 5, "\n{}", wrong.join("\n"));
}

fn calls_the_interpreter(text: &str) -> bool {
    // By path, by a name that was imported, or as an executor of the engine.
    let imported = text.split("use xway_vm::").skip(1).filter_map(|behind| behind.split(';').next());
    let names =
        |list: &str| list.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| INTERPRETER.contains(&word));
    imported.into_iter().any(names)
        || INTERPRETER.iter().any(|name| text.contains(&format!("xway_vm::{name}(")))
        || ["Checked::new(", "Choice::interpreter()"].iter().any(|made| text.contains(made))
}

/// The walk of one packet names files and functions. Each function stands in the file named before it; a file without a folder lies where
/// the one before it lies.
#[test]
fn a_packet_walks_as_the_architecture_says() {
    let page = read(&repository().join("ARCHITECTURE.md"));
    let (_, section) = page.split_once("## One packet's walk").expect("the section of ARCHITECTURE.md");
    let section = section.split("\n## ").next().unwrap_or_default();
    let (mut folder, mut file, mut text, mut checked) = (String::new(), String::new(), String::new(), 0);
    let mut wrong = Vec::new();
    // Code stands between back-quotes: every second piece.
    for word in section.split('`').skip(1).step_by(2) {
        if word.ends_with(".rs") {
            if let Some((before, _)) = word.rsplit_once('/') {
                folder = before.to_owned();
            }
            file = format!("crates/{folder}/{}", word.rsplit('/').next().unwrap_or(word));
            let path = repository().join(&file);
            text = if path.exists() { read(&path) } else { String::new() };
            if text.is_empty() {
                wrong.push(format!("ARCHITECTURE.md, the walk: there is no {file}"));
            }
        } else if !file.is_empty()
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            && !CRATES_NAMED.contains(&word)
        {
            checked += 1;
            if !text.contains(&format!("fn {word}(")) && !text.contains(&format!("fn {word}<")) {
                wrong.push(format!("ARCHITECTURE.md, the walk: {file} has no function {word}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(checked > 30, "only {checked} functions were found");
}

/// Crates that the walk names between its functions.
const CRATES_NAMED: &[&str] = &["object", "maps"];

#[test]
fn nothing_is_left_open() {
    // Put together here, so that this file does not accuse itself.
    let marks =
        [["to", "do!("], ["unimple", "mented!("], ["db", "g!("], ["FIX", "ME"], ["XX", "X:"]].map(|m| m.concat());
    let mut wrong = Vec::new();
    for (path, text) in sources("rs").chain(sources("c")).chain(sources("h")) {
        for (number, line) in (1..).zip(text.lines()) {
            for mark in marks.iter().filter(|m| line.contains(m.as_str())) {
                wrong.push(format!("{path}:{number}: {mark} is unfinished work"));
            }
            // Rows of tables cannot be broken; lines of test data need not be.
            if line.chars().count() > 160 && !line.trim_start().starts_with("//! |") && !path.contains("/tests/") {
                wrong.push(format!("{path}:{number}: longer than 160 columns"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_stay_small() {
    // The interpreter's loop is one match over all operations; everything else stays far below.
    const LINES_MAX: usize = 800;
    let long = sources("rs").filter(|(path, text)| !path.contains("/tests/") && text.lines().count() > LINES_MAX);
    let wrong: Vec<String> =
        long.map(|(path, text)| format!("{path}: {} lines, split it", text.lines().count())).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn bpf_sources_say_their_licence() {
    let wrong: Vec<String> = sources("c")
        .chain(sources("h"))
        // What is below crates/ runs in user space: it has the licence of the crates.
        .filter(|(path, text)| {
            let wanted =
                if path.starts_with("crates/capi/") { "MIT OR Apache-2.0" } else { "(GPL-2.0-only OR BSD-2-Clause)" };
            !text.lines().next().unwrap_or("").contains(wanted)
        })
        .map(|(path, _)| format!("{path}:1: SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)"))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// What shows a row of the mission or a promise is there: the files that it names, and tests and functions by their names.
#[test]
fn what_shows_a_row_or_a_promise_is_there() {
    let all: String = sources("rs").chain(sources("c")).chain(sources("h")).map(|(_, text)| text).collect();
    let words: BTreeSet<&str> = all.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let (mut wrong, mut rows) = (Vec::new(), 0);
    for page in ["docs/mission.md", "SPECIFICATION.md"] {
        let text = read(&repository().join(page));
        for line in text.lines().filter(|line| line.starts_with("| ")) {
            let number = line[2..].split(" |").next().unwrap_or_default();
            if !number.contains(|c: char| c.is_ascii_digit()) {
                continue;
            }
            rows += 1;
            let shown = line.split('`').skip(1).step_by(2);
            if line.contains("| done |") && shown.clone().count() == 0 && !line.contains("docs/") {
                wrong.push(format!("{page}: {number} is done, and nothing shows it"));
            }
            for name in shown {
                let file = name.split([' ', ':']).next().unwrap_or_default();
                let of_ours = ["crates/", "bpf/", "docs/", "scripts/", "fuzz/"].iter().any(|top| file.starts_with(top));
                // A module may be named as what it is called in Rust.
                let there =
                    |file: &str| repository().join(file).exists() || repository().join(format!("{file}.rs")).exists();
                if of_ours && !file.contains('*') && !there(file) {
                    wrong.push(format!("{page}: {number}: there is no {file}"));
                }
                let is_name = name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
                if is_name && name.matches('_').count() >= 2 && !words.contains(name) {
                    wrong.push(format!("{page}: {number}: nothing is called {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(rows > 200, "only {rows} rows were found");
}

/// What commands in scripts and documents build or run is there: tests, examples and programs by their names.
#[test]
fn what_commands_name_is_there() {
    let root = repository();
    let mut open: Vec<PathBuf> = ["scripts", "docs", ".ci"].map(|dir| root.join(dir)).into();
    let pages = ["Makefile", "README.md", "CONTRIBUTING.md", "SPECIFICATION.md", "ARCHITECTURE.md"];
    let mut files: Vec<PathBuf> = pages.iter().map(|page| root.join(page)).collect();
    while let Some(dir) = open.pop() {
        let (dirs, others): (Vec<_>, Vec<_>) =
            std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).partition(|path| path.is_dir());
        open.extend(dirs);
        files.extend(others);
    }
    let (mut wrong, mut named) = (Vec::new(), 0);
    for file in files {
        // Some of what lies there is no text.
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for (option, dir) in [("--test ", "tests"), ("--example ", "examples"), ("--bin ", "src/bin")] {
            for behind in text.split(option).skip(1) {
                let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
                let name = &behind[..end.unwrap_or(behind.len())];
                let there =
                    |dir: &Path| dir.join(format!("{name}.rs")).exists() || dir.join(name).join("main.rs").exists();
                named += usize::from(!name.is_empty());
                if !name.is_empty() && !crates().any(|one| there(&one.join(dir))) {
                    wrong.push(format!("{}: there is no {option}{name}", file.strip_prefix(&root).unwrap().display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(named > 50, "only {named} were found");
}

#[test]
fn promises_have_numbers_of_their_own() {
    let page = read(&repository().join("SPECIFICATION.md"));
    let numbers = page.lines().filter_map(|line| line.strip_prefix("| S-")?.split_once(" |"));
    let mut seen = BTreeSet::new();
    let twice: Vec<&str> = numbers.map(|(number, _)| number).filter(|number| !seen.insert(*number)).collect();
    assert!(twice.is_empty() && seen.len() > 50, "SPECIFICATION.md: {} promises, twice: S-{twice:?}", seen.len());
}

#[test]
fn dependencies_are_named_once_and_explained() {
    let page = read(&repository().join("ARCHITECTURE.md"));
    let root = read(&repository().join("Cargo.toml"));
    let (_, table) = root.split_once("[workspace.dependencies]").expect("the table of external crates");
    let table = table.split("\n[").next().unwrap_or_default();
    let wrong: Vec<String> = table
        .lines()
        .filter_map(|l| l.split_once('=').map(|(name, _)| name.trim()))
        .filter(|name| !name.starts_with("xway-") && !name.starts_with('#'))
        .filter(|name| !page.contains(&format!("`{name}`")))
        .map(|name| format!("Cargo.toml: ARCHITECTURE.md does not say what `{name}` is for"))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn crates() -> impl Iterator<Item = PathBuf> {
    let mut dirs: Vec<_> = std::fs::read_dir(repository().join("crates")).unwrap().map(|e| e.unwrap().path()).collect();
    dirs.sort();
    dirs.into_iter().filter(|dir| dir.join("Cargo.toml").exists())
}

/// Sources with this extension below `crates`, `bpf` and `fuzz`: path from the repository's root, and text.
fn sources(extension: &str) -> impl Iterator<Item = (String, String)> {
    let root = repository();
    let mut found = BTreeMap::new();
    let mut open: Vec<PathBuf> = ["crates", "bpf", "fuzz"].map(|d| root.join(d)).into();
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && path.file_name().is_some_and(|n| n != "target") {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                found.insert(name, read(&path));
            }
        }
    }
    found.into_iter()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
