//! Counterexamples: packets that show why a program is refused. Each is run; how many are found is measured.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use xway_isa::{Insn, encode};
use xway_maps::Guard;
use xway_object::{LoadOptions, Object, Program, ProgramKind};
use xway_testkit::{Needs, clang, skip};
use xway_verifier::{Config, Counterexample, Diagnostic, Kind, MapsView, verify};
use xway_vm::{Env, FixedHost, Instance};
use xway_witness::{Effort, find};

fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.to_string_lossy().ends_with(suffix));
    found.sort();
    found
}

fn load(bytes: &[u8]) -> Option<Arc<Object>> {
    let options = LoadOptions { target_btf: xway_kernel::vmlinux(), ..LoadOptions::default() };
    Object::parse(bytes, &options).ok().map(Arc::new)
}

fn first_error(object: &Object, program: &Program) -> Option<Diagnostic> {
    let config = Config { budget: 200_000, errors_max: 1, ..Config::default() };
    verify(program, &MapsView::from(object), &config).err()?.errors.into_iter().next()
}

/// The packet faults at the refused instruction: run by hand, with fresh maps.
fn check(object: &Arc<Object>, program: &Program, error: &Diagnostic, c: &Counterexample) {
    let instance = Instance::new(object.clone(), 1).unwrap();
    let linked = instance.link(program).unwrap();
    let mut pool = xway_packet::Pool::new(xway_packet::PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(&c.packet).unwrap();
    frame.set_ingress(1, 0);
    let (guard, host) = (Guard::pin(), FixedHost::new(77));
    let out = xway_vm::run(&linked, &mut frame, &mut Env::new(&guard, &host, 0));
    pool.release(frame);
    let fault = out.fault.unwrap_or_else(|| panic!("{}: no fault with {} bytes", program.name, c.packet.len()));
    assert_eq!(fault.insn, error.insn, "{}: {fault}", program.name);
}

#[test]
fn refused_samples_have_packets() {
    if !Needs::of("testkit::verifier_witness::refused_samples_have_packets").clang().met() {
        return;
    }
    let mut wrong = Vec::new();
    for path in files(&clang::repository().join("bpf/verifier-cases/refused"), ".bpf.c") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let object = load(&clang::compile_file(&path, &[]).unwrap_or_else(|e| panic!("{e}"))).unwrap();
        let error = first_error(&object, &object.programs[0]).unwrap();
        let wanted = std::fs::read_to_string(&path).unwrap().lines().any(|l| l.trim() == "// packet:");
        match find(&object, &object.programs[0], &error, &Effort::default()) {
            Some(c) => {
                check(&object, &object.programs[0], &error, &c);
                println!("{name}: {} bytes, {:?}: {}", c.packet.len(), c.decisive, c.fault);
            }
            None if wanted => wrong.push(name),
            None => println!("{name}: none"),
        }
    }
    assert!(wrong.is_empty(), "no packet was found for {wrong:?}");
}

/// Copies of a program in which one conditional jump goes one way always: a check that was forgotten or turned round.
fn without_one_check(program: &Program) -> impl Iterator<Item = Program> + use<'_> {
    let insns = xway_isa::decode(&program.insns).unwrap();
    (0..insns.len()).flat_map(move |pc| {
        let off = match insns[pc] {
            Some(Insn::Branch { off, .. }) => off,
            _ => return Vec::new(),
        };
        let always = |off: i32| {
            let mut p = program.clone();
            let mut jump = Vec::new();
            encode(&Insn::Jump { off, long: false }, &mut jump);
            p.insns[pc] = jump[0];
            p
        };
        vec![always(0), always(off.into())]
    })
}

#[test]
fn most_refused_packet_accesses_have_a_packet() {
    let dir = PathBuf::from(format!("/usr/lib/{}-linux-gnu/bpf", std::env::consts::ARCH));
    let mut sources: Vec<Vec<u8>> = files(&dir, ".o").iter().map(|p| std::fs::read(p).unwrap()).collect();
    if sources.is_empty() {
        skip("testkit::verifier_witness::most_refused_packet_accesses_have_a_packet (real objects)", "xdp-tools");
    }
    if clang::available().is_ok() {
        for dir in ["bpf/samples", "bpf/verifier-cases/refused"] {
            let compiled = files(&clang::repository().join(dir), ".bpf.c");
            sources.extend(compiled.iter().map(|p| clang::compile_file(p, &[]).unwrap_or_else(|e| panic!("{e}"))));
        }
    }
    let (mut refused, mut shown) = (0, 0);
    for object in sources.iter().filter_map(|b| load(b)) {
        let (mut mine, mut found) = (0, 0);
        for program in object.programs.iter().filter(|p| !matches!(p.kind, ProgramKind::Other(_))) {
            for mutant in std::iter::once(program.clone()).chain(without_one_check(program)) {
                let Some(error) = first_error(&object, &mutant) else { continue };
                if error.kind != Kind::PacketBounds {
                    continue;
                }
                mine += 1;
                if let Some(c) = find(&object, &mutant, &error, &Effort::default()) {
                    check(&object, &mutant, &error, &c);
                    found += 1;
                } else if std::env::var_os("XWAY_VERBOSE").is_some() {
                    println!(
                        "none for {}: {} {:?} way of {}",
                        program.name,
                        error.insn,
                        error.message,
                        error.trace.len()
                    );
                }
            }
        }
        if mine > 0 {
            println!("{}: {found} of {mine}", object.programs[0].name);
        }
        refused += mine;
        shown += found;
    }
    println!("packets for {shown} of {refused} refused packet accesses ({} %)", shown * 100 / refused.max(1));
    assert!(shown * 2 >= refused, "packets for {shown} of {refused}");
}
