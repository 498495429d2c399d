//! What our loader makes of real objects, put before the kernel's verifier.

use std::path::{Path, PathBuf};

use xway_kernel::{KernelObject, vmlinux};
use xway_object::{LoadOptions, Object, ProgramKind};
use xway_testkit::{Needs, clang};

fn objects_in(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.to_string_lossy().ends_with(suffix));
    found.sort();
    found
}

/// Every program of the object: loaded by the kernel, with our tag. Programs for other hooks are counted, not loaded.
fn check(name: &str, bytes: &[u8], wrong: &mut Vec<String>) -> (usize, usize) {
    let options = LoadOptions { target_btf: vmlinux(), ..LoadOptions::default() };
    let object = match Object::parse(bytes, &options) {
        Ok(object) => object,
        Err(error) => {
            wrong.push(format!("{name}: {error}"));
            return (0, 0);
        }
    };
    wrong.extend(object.rejected.iter().map(|r| format!("{name}:{}: {}", r.name, r.error)));
    let kernel = match KernelObject::load(&object) {
        Ok(kernel) => kernel,
        Err(error) => {
            wrong.push(format!("{name}: {error}"));
            return (0, 0);
        }
    };
    if object.btf.is_some() && kernel.btf.is_none() {
        wrong.push(format!("{name}: the kernel does not take its types"));
    }
    let (mut loaded, mut other) = (0, 0);
    for (program, result) in object.programs.iter().zip(&kernel.programs) {
        match result {
            Ok(prog) => {
                loaded += 1;
                let info = prog.info().unwrap();
                // A call of a kernel function names a type by its number in the running kernel, which the tag goes over.
                if program.kfuncs.is_empty() && info.tag != program.tag() {
                    wrong.push(format!(
                        "{name}:{}: tag {:02x?}, the kernel's {:02x?}",
                        program.name,
                        program.tag(),
                        info.tag
                    ));
                }
            }
            Err(_) if matches!(program.kind, ProgramKind::Other(_)) => other += 1,
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    (loaded, other)
}

#[test]
fn xdp_tools_load() {
    let dir = PathBuf::from(format!("/usr/lib/{}-linux-gnu/bpf", std::env::consts::ARCH));
    let needs = Needs::of("testkit::kernel_objects::xdp_tools_load").root().kernel(5, 14);
    let objects = objects_in(&dir, ".o");
    if !needs.that(!objects.is_empty(), "xdp-tools").met() {
        return;
    }
    let mut wrong = Vec::new();
    let (mut loaded, mut other) = (0, 0);
    for path in objects {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let (a, b) = check(&name, &std::fs::read(&path).unwrap(), &mut wrong);
        (loaded, other) = (loaded + a, other + b);
    }
    println!("{loaded} programs loaded, {other} for other hooks");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(loaded >= 14, "{loaded}");
}

#[test]
fn our_own_load() {
    if !Needs::of("testkit::kernel_objects::our_own_load").root().kernel(5, 17).clang().met() {
        return;
    }
    let mut wrong = Vec::new();
    let mut loaded = 0;
    for folder in ["bpf/samples", "bpf/tests"] {
        for path in objects_in(&clang::repository().join(folder), ".bpf.c") {
            for flags in [&["-mcpu=v2"][..], &["-mcpu=v3"], &["-mcpu=v3", "-g0"]] {
                let name = format!("{} {}", path.file_name().unwrap().to_string_lossy(), flags.join(" "));
                let bytes = clang::compile_file(&path, flags).unwrap();
                // Maps of the new convention stand in the types, so without these there are none.
                if flags.contains(&"-g0")
                    && !["old_libbpf", "before_libbpf", "iproute2"].iter().any(|n| name.starts_with(n))
                {
                    continue;
                }
                loaded += check(&name, &bytes, &mut wrong).0;
            }
        }
    }
    println!("{loaded} programs loaded");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
