//! The XDP objects that Debian's `xdp-tools` ships: real programs that nobody here wrote.

mod common;

use std::path::{Path, PathBuf};

use common::Loaded;
use xway_object::{LoadOptions, Object, ProgramKind};
use xway_testkit::Needs;

const DIR: &str = "/usr/lib/x86_64-linux-gnu/bpf";

fn objects() -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = std::fs::read_dir(DIR)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect();
    list.sort();
    list
}

fn load(path: &Path) -> Object {
    Object::parse(&std::fs::read(path).unwrap(), &LoadOptions::default())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_program_links() {
    if !Needs::of("packaged::every_program_links").file(DIR).met() {
        return;
    }
    let (mut xdp, mut other) = (0, 0);
    for path in objects() {
        let object = load(&path);
        assert!(object.rejected.is_empty(), "{}: {:?}", path.display(), object.rejected);
        for p in &object.programs {
            match p.kind {
                ProgramKind::Xdp { .. } => xdp += 1,
                _ => other += 1,
            }
            assert!(!p.line_info.is_empty(), "{} {}: no line info", path.display(), p.name);
            assert!(p.line_info.iter().all(|l| l.insn < p.insns.len() && !l.file.is_empty()));
        }
        assert!(object.btf.is_some() && object.license.is_some(), "{}", path.display());
    }
    assert!(xdp >= 14, "{xdp} XDP programs, {other} others");
}

/// bpftool loads through libbpf; the kernel's tag covers every instruction after linking.
#[test]
fn tags_agree_with_a_load_through_libbpf() {
    if !Needs::of("packaged::tags_agree_with_a_load_through_libbpf").file(DIR).root().command("bpftool").met() {
        return;
    }
    let mut compared = 0;
    for path in objects() {
        let object = load(&path);
        let Ok(loaded) = Loaded::file(&path) else {
            // fentry programs need a target, which bpftool cannot give.
            assert!(object.programs.iter().any(|p| !p.kind.is_xdp()), "bpftool refuses {}", path.display());
            continue;
        };
        for p in &object.programs {
            loaded.program(p);
            compared += 1;
        }
    }
    assert!(compared >= 13, "only {compared} programs were compared");
}
