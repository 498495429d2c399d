//! Object files: each XDP program in both verifiers.

use std::path::Path;
use std::time::Instant;

use xway_kernel::{KernelObject, vmlinux};
use xway_object::{LoadOptions, Object, ProgramKind};
use xway_verifier::{Config, MapsView, verify};

use crate::report::{Kernel, Ours, Report};

/// Every program of the object. `retarget` turns programs of other hooks into XDP programs.
pub fn run(path: &Path, retarget: bool, report: &mut Report) {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) => return report.unreadable(&name, &e.to_string()),
    };
    let options = LoadOptions { target_btf: vmlinux(), ..LoadOptions::default() };
    let mut object = match Object::parse(&bytes, &options) {
        Ok(object) => object,
        Err(e) => return report.unreadable(&name, &e.to_string()),
    };
    for rejected in &object.rejected {
        if retarget || rejected.kind.is_xdp() {
            report.unreadable(&format!("{name}:{}", rejected.name), &rejected.error.to_string());
        }
    }
    if retarget {
        for program in &mut object.programs {
            if matches!(program.kind, ProgramKind::Other(_) | ProgramKind::Unknown) {
                program.kind = ProgramKind::Xdp { frags: false };
            }
        }
    }
    for program in &object.programs {
        let id = format!("{name}:{}", program.name);
        if !program.kind.is_xdp() || !report.wants(&id) {
            continue;
        }
        let ours = Ours::of(verify(program, &MapsView::from(&object), &Config::default()));
        let started = Instant::now();
        // One at a time: what one program does to the kernel's caches is no part of the next one's time.
        let kernel = match KernelObject::load_some(&object, |p| std::ptr::eq(p, program)) {
            Ok(loaded) => {
                let at = object.programs.iter().position(|p| std::ptr::eq(p, program)).expect("it is one of them");
                Kernel::of(loaded.programs.into_iter().nth(at).expect("one answer a program"), started.elapsed())
            }
            Err(e) => Kernel::CannotAsk(e.to_string()),
        };
        report.note(id, program.insns.len(), ours, kernel);
    }
}
