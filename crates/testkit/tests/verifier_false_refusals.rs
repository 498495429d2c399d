//! False refusals that annoy people: safe programs from public threads, the running kernel's answer beside ours.
//!
//! `docs/verifier-cases.md` is made from this test: `XWAY_BLESS=1 cargo test -p xway-testkit --test verifier_false_refusals`
//! (as root, because the kernel is asked).

use std::path::PathBuf;
use std::sync::Arc;

use xway_kernel::KernelObject;
use xway_object::{LoadOptions, Object};
use xway_testkit::{Needs, Rng, clang, packets};
use xway_trial::{ENGINES, Trial};
use xway_verifier::{Config, Rejection, Stats};
use xway_vm::{FixedHost, Instance, LinkError, TestRun};

struct Case {
    name: String,
    from: String,
    class: String,
    object: Arc<Object>,
    /// The same with the jumps and sums of 32 bits that ISA v3 has.
    half: Arc<Object>,
}

fn cases() -> Vec<Case> {
    let dir = clang::repository().join("bpf/verifier-cases/false-refusals");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.to_string_lossy().ends_with(".bpf.c"));
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        let field = |mark: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(mark));
            line.unwrap_or_else(|| panic!("{}: no `{mark}`", path.display())).trim().to_owned()
        };
        let object = |flags: &[&str]| {
            let bytes = clang::compile_file(path, flags).unwrap_or_else(|e| panic!("{e}"));
            Arc::new(Object::parse(&bytes, &LoadOptions::default()).unwrap())
        };
        let name = path.file_name().unwrap().to_string_lossy().replace(".bpf.c", "");
        Case {
            name,
            from: field("// from:"),
            class: field("// class:"),
            object: object(&[]),
            half: object(&["-mcpu=v3"]),
        }
    };
    paths.iter().map(read).collect()
}

/// A thousand packets: those of the mixed set, cut and changed, and random ones.
fn thousand() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(2026);
    let base: Vec<Vec<u8>> = packets::mixed_set().into_iter().map(|p| p.bytes).collect();
    (0..1000)
        .map(|i| {
            let mut p = base[i % base.len()].clone();
            if i >= base.len() {
                let len = 14 + rng.below(1400) as usize;
                p.resize(if rng.below(2) == 0 { p.len().max(14) } else { len }, rng.below(256) as u8);
                for _ in 0..rng.below(8) {
                    let at = rng.below(p.len() as u64) as usize;
                    p[at] = rng.below(256) as u8;
                }
            }
            p
        })
        .collect()
}

/// Verifies a program. One that is accepted must not fault, and gives the same in each engine.
fn verified(case: &Case, object: &Arc<Object>) -> Result<Stats, Box<Rejection>> {
    let instance = Instance::verified(object.clone(), 1, Config::default()).unwrap();
    let program = match instance.program(0) {
        Err(LinkError::Refused { rejection, .. }) => return Err(rejection),
        linked => linked.unwrap_or_else(|e| panic!("{}: {e}", case.name)),
    };
    let host = FixedHost::new(1);
    let [interpreted, compiled] = ENGINES.map(|engine| {
        let trial = Trial::new(program.clone(), engine);
        let run = |packet: Vec<u8>| Some(trial.test_run(&TestRun::new(&packet), &host).ok()?.retval);
        thousand().into_iter().map(run).collect::<Vec<_>>()
    });
    assert_eq!(interpreted, compiled, "{}", case.name);
    Ok(*program.proof().expect("it was accepted").stats())
}

#[test]
fn two_thirds_of_the_false_refusals_are_accepted() {
    if !Needs::of("testkit::verifier_false_refusals::two_thirds_of_the_false_refusals_are_accepted").clang().met() {
        return;
    }
    let kernel = Needs::of("testkit::verifier_false_refusals (the kernel's answers)").root().kernel(6, 1).met();
    let cases = cases();
    assert!(cases.len() >= 25, "{}", cases.len());
    let mut rows = String::new();
    let (mut accepted, mut linux) = (0, 0);
    for case in &cases {
        let us = match verified(case, &case.object) {
            Ok(stats) => {
                accepted += 1;
                if let Err(refused) = verified(case, &case.half) {
                    panic!("{}: accepted, but not for ISA v3: {refused}", case.name);
                }
                println!("{}: accepted, {stats:?}", case.name);
                "accepted".to_owned()
            }
            Err(r) => {
                let e = &r.errors[0];
                println!("{}: line {}: {} / {:?}", case.name, e.line, e.message, e.hint);
                format!("refused: {}", e.kind.name())
            }
        };
        if kernel {
            let loaded = KernelObject::load(&case.object).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let them = match &loaded.programs[0] {
                Ok(_) => {
                    linux += 1;
                    "accepts".to_owned()
                }
                Err(e) => format!("refuses: {}", reason(e.log())),
            };
            rows.push_str(&format!("| `{}` | {} | {} | {us} | {} |\n", case.name, case.class, them, case.from));
        }
    }
    println!("{accepted} of {} accepted here, {linux} by the kernel", cases.len());
    assert!(accepted * 3 >= cases.len() * 2, "{accepted} of {}", cases.len());
    if kernel {
        let page = clang::repository().join("docs/verifier-cases.md");
        let head = "# False refusals that annoy people\n\nSafe programs from public threads, written anew in \
                    `bpf/verifier-cases/false-refusals/`, before Linux 6.18 and before ours. Each that we accept also runs a \
                    thousand packets in the checked interpreter and as machine code. Made by `XWAY_BLESS=1 cargo test -p xway-testkit --test \
                    verifier_false_refusals`.\n\n";
        let summary = format!("Of {} programs Linux accepts {linux}, we accept {accepted}.\n\n", cases.len());
        let table = "| sample | what is hard | Linux 6.18 | here | from |\n|---|---|---|---|---|\n";
        let text = format!("{head}{summary}{table}{rows}");
        if std::env::var_os("XWAY_BLESS").is_some() {
            std::fs::write(&page, &text).unwrap();
        }
        let now = std::fs::read_to_string(&page).unwrap_or_default();
        if std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().starts_with("6.18") {
            assert_eq!(now, text, "docs/verifier-cases.md is old: run the test with XWAY_BLESS=1");
        }
    }
}

/// The decisive line of the kernel's log, shortened.
fn reason(log: &str) -> String {
    let dull = ["processed", "verification time", "max_states", "stack depth", "mark_precise"];
    let line = log.lines().map(str::trim).rfind(|l| !l.is_empty() && !dull.iter().any(|d| l.starts_with(d)));
    let line = line.unwrap_or("no log").replace('|', "\\|");
    line.chars().take(90).collect()
}
