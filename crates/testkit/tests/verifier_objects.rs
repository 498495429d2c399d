//! Real objects before our verifier and the kernel's: the verdicts must agree.

use std::path::{Path, PathBuf};

use xway_kernel::{KernelObject, vmlinux};
use xway_object::{LoadOptions, Object, ProgramKind};
use xway_testkit::{Needs, clang};
use xway_verifier::{Config, MapsView, verify};

fn files_in(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.to_string_lossy().ends_with(suffix));
    found.sort();
    found
}

/// Verdicts on every XDP program of the object; differences go to `wrong`. Returns how many were accepted by both.
fn compare(name: &str, bytes: &[u8], wrong: &mut Vec<String>) -> usize {
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
            (Err(_), Err(_)) => {}
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
        both += compare(&name, &std::fs::read(&path).unwrap(), &mut wrong);
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
    for dir in ["bpf/samples", "bpf/verifier-cases"] {
        for source in files_in(&clang::repository().join(dir), ".bpf.c") {
            let name = source.file_name().unwrap().to_string_lossy().into_owned();
            let bytes = clang::compile_file(&source, &[]).unwrap_or_else(|e| panic!("{e}"));
            both += compare(&name, &bytes, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(both >= 7, "{both}");
}
