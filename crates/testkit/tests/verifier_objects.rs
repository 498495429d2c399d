//! Real objects before our verifier and the kernel's: the verdicts must agree.

use std::path::{Path, PathBuf};

use xway_kernel::{KernelObject, vmlinux};
use xway_object::{LoadOptions, Object, ProgramKind};
use xway_testkit::{Needs, clang};
use xway_verifier::{Config, MapsView, verify};

/// Programs that both refuse, as `object:program`. All others of an object that is expected to be accepted are.
const BOTH_REFUSE: [&str; 0] = [];

/// What is expected of an object.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    /// Both accept every program that is not listed above.
    Accepted,
    /// Both refuse every program.
    Refused,
}

fn files_in(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.to_string_lossy().ends_with(suffix));
    found.sort();
    found
}

/// The C sources below a folder.
fn sources_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = files_in(dir, ".bpf.c");
    for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
        found.extend(sources_below(&entry));
    }
    found.sort();
    found
}

/// Verdicts on every XDP program of the object; differences, from each other and from what is expected, go to `wrong`. Returns
/// how many were accepted by both.
fn compare(name: &str, bytes: &[u8], expected: Expected, wrong: &mut Vec<String>) -> usize {
    let options = LoadOptions { target_btf: vmlinux(), ..LoadOptions::default() };
    let object = Object::parse(bytes, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let kernel = KernelObject::load(&object).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut both = 0;
    for (program, theirs) in object.programs.iter().zip(&kernel.programs) {
        if matches!(program.kind, ProgramKind::Other(_)) {
            continue;
        }
        let ours = verify(program, &MapsView::from(&object), &Config::default());
        match (&ours, theirs) {
            (Ok(proof), Ok(_)) => {
                both += 1;
                let (stats, facts) = (proof.stats(), proof.facts());
                println!(
                    "{name}:{}: {} instructions, {} visited, {} states, {:?}; verdicts {:?}, {} packet bytes, stack {}",
                    program.name,
                    program.insns.len(),
                    stats.visited,
                    stats.states,
                    stats.time,
                    facts.verdicts,
                    facts.packet_bytes,
                    facts.stack_chain
                );
            }
            (Err(rejection), Ok(_)) => {
                wrong.push(format!("{name}:{}: only we refuse: {:#?}", program.name, rejection.errors))
            }
            (Ok(_), Err(error)) => wrong.push(format!("{name}:{}: only the kernel refuses: {error}", program.name)),
            (Err(rejection), Err(_)) => {
                let listed = BOTH_REFUSE.contains(&format!("{name}:{}", program.name).as_str());
                if expected == Expected::Accepted && !listed {
                    let why = rejection.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ");
                    wrong.push(format!("{name}:{}: both refuse what is to be accepted:\n  {why}", program.name));
                }
            }
        }
        if expected == Expected::Refused && (ours.is_ok() || theirs.is_ok()) {
            let (ours, theirs) = (ours.is_ok(), theirs.is_ok());
            wrong.push(format!("{name}:{}: to be refused; accepted here: {ours}, by Linux: {theirs}", program.name));
        }
    }
    both
}

#[test]
fn xdp_tools_are_accepted() {
    let dir = PathBuf::from(format!("/usr/lib/{}-linux-gnu/bpf", std::env::consts::ARCH));
    let objects = files_in(&dir, ".o");
    let needs = Needs::of("testkit::verifier_objects::xdp_tools_are_accepted").root().kernel(5, 14);
    if !needs.that(!objects.is_empty(), "xdp-tools").met() {
        return;
    }
    let mut wrong = Vec::new();
    let mut both = 0;
    for path in objects {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        both += compare(&name, &std::fs::read(&path).unwrap(), Expected::Accepted, &mut wrong);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(both >= 14, "{both}");
}

#[test]
fn samples_are_accepted() {
    if !Needs::of("testkit::verifier_objects::samples_are_accepted").root().kernel(5, 14).clang().met() {
        return;
    }
    let mut wrong = Vec::new();
    let mut both = 0;
    for source in sources_below(&clang::repository().join("bpf/samples")) {
        let name = source.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = clang::compile_file(&source, &[]).unwrap_or_else(|e| panic!("{e}"));
        both += compare(&name, &bytes, Expected::Accepted, &mut wrong);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(both >= 12, "{both}");
}

/// The common refusals are Linux's, too. (Safe programs that Linux refuses are the subject of `verifier_false_refusals`.)
#[test]
fn refused_samples_are_refused_by_both() {
    if !Needs::of("testkit::verifier_objects::refused_samples_are_refused_by_both").root().kernel(6, 18).clang().met() {
        return;
    }
    let mut wrong = Vec::new();
    let sources = sources_below(&clang::repository().join("bpf/verifier-cases/refused"));
    assert_eq!(sources.len(), 20);
    for source in sources {
        let name = source.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = clang::compile_file(&source, &[]).unwrap_or_else(|e| panic!("{e}"));
        compare(&name, &bytes, Expected::Refused, &mut wrong);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
