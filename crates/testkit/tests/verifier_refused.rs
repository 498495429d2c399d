//! The refusals that people meet most often: each sample says itself what must be said about it.

use std::path::{Path, PathBuf};

use xway_object::{LoadOptions, Object};
use xway_testkit::{Needs, clang};
use xway_verifier::{Config, Diagnostic, MapsView, verify};

/// What a sample expects.
#[derive(Debug)]
struct Expected {
    kind: String,
    line: u32,
    hints: Vec<String>,
}

impl Expected {
    fn read(path: &Path) -> Expected {
        let text = std::fs::read_to_string(path).unwrap();
        let marked = |mark: &'static str| {
            (1u32..)
                .zip(text.lines())
                .filter_map(move |(n, l)| Some((n, l.trim().strip_prefix(mark)?.trim().to_owned())))
        };
        let (line, kind) = marked("// refused:").next().unwrap_or_else(|| panic!("{}: no `refused:`", path.display()));
        Expected { kind, line: line + 1, hints: marked("// hint:").map(|(_, h)| h).collect() }
    }
}

fn samples() -> Vec<PathBuf> {
    let dir = clang::repository().join("bpf/verifier-cases/refused");
    let mut found: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.to_string_lossy().ends_with(".bpf.c"));
    found.sort();
    found
}

fn refusal(path: &Path) -> Diagnostic {
    let bytes = clang::compile_file(path, &[]).unwrap_or_else(|e| panic!("{e}"));
    let object = Object::parse(&bytes, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rejection = match verify(&object.programs[0], &MapsView::from(&object), &Config::default()) {
        Ok(_) => panic!("{}: accepted", path.display()),
        Err(r) => r,
    };
    rejection.errors.into_iter().next().expect("a rejection has a reason")
}

#[test]
fn the_twenty_most_common_refusals_say_what_to_do() {
    if !Needs::of("testkit::verifier_refused::the_twenty_most_common_refusals_say_what_to_do").clang().met() {
        return;
    }
    let samples = samples();
    assert_eq!(samples.len(), 20);
    let mut wrong = Vec::new();
    for path in samples {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let (expected, error) = (Expected::read(&path), refusal(&path));
        let hint = error.hint.clone().unwrap_or_default();
        let said = format!("{name}: {}:{}: {}\n    {hint}", error.kind.name(), error.line, error.message);
        println!("{said}\n    {:?}\n    {:?}\n    {:?}", error.values, error.notes, error.path);
        if (error.kind.name(), error.line) != (expected.kind.as_str(), expected.line) {
            wrong.push(format!("{said}\n  expected {} at line {}", expected.kind, expected.line));
        }
        for words in expected.hints.iter().filter(|h| !hint.contains(h.as_str())) {
            wrong.push(format!("{said}\n  expected in the hint: {words}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
