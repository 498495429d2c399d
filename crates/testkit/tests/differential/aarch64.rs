//! Machine code for another machine: that there is some for everything that is compiled here. Whether it does what it should is
//! tested under qemu (`make aarch64`).

use xway_jit::{Options, Refusal, compile, compile_for_aarch64};
use xway_testkit::Needs;
use xway_verifier::{Config, MapsView, verify};
use xway_vm::Instance;

use crate::compare::Subject;

#[test]
fn every_program_becomes_code_for_aarch64() {
    if !Needs::of("testkit::differential::every_program_becomes_code_for_aarch64").clang().met() {
        return;
    }
    let (mut programs, mut bytes, mut unaligned) = (0, 0, 0);
    for (folder, flags) in
        [("bpf/samples", &["-mcpu=v3"][..]), ("bpf/bench", &["-mcpu=v3"]), ("bpf/tests", &["-mcpu=v2"])]
    {
        for subject in crate::compiled(folder, flags) {
            let (count, len, refused) = code_of(&subject);
            programs += count;
            bytes += len;
            unaligned += refused;
        }
    }
    println!("{programs} programs, {bytes} bytes of code");
    assert_eq!(unaligned, 1, "a program that changes packet memory under another name");
    assert!(programs > 40 && bytes > 40 * 256, "{programs} programs, {bytes} bytes");
}

/// Programs of an object and bytes of code, and programs that are refused for accesses that may be unaligned.
fn code_of(subject: &Subject) -> (usize, usize, usize) {
    let instance = Instance::new(subject.object.clone(), 1).unwrap_or_else(|e| panic!("{}: {e}", subject.name));
    let (mut count, mut bytes, mut unaligned) = (0, 0, 0);
    for (n, image) in subject.object.programs.iter().enumerate() {
        let Ok(image) = image.as_xdp() else { continue };
        let name = format!("{}:{}", subject.name, image.name);
        let proof = verify(&image, &MapsView::from(&*subject.object), &Config::default());
        let proof = proof.unwrap_or_else(|refusal| panic!("{name}: {}", refusal.errors[0].message));
        let program = instance.program(n).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Scouts too, however small the maps are.
        let options = Options { stage_from: Some(0), check: true, ..Options::default() };
        let (code, functions) = match compile_for_aarch64(&program, &proof, &options) {
            // Packet memory under another name may lie anywhere; x86-64 does not mind.
            Err(Refusal::Alignment { .. }) => {
                assert_eq!((&*subject.name, &*image.name), ("names -mcpu=v2", "atomics"));
                compile(&program, &proof, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
                unaligned += 1;
                continue;
            }
            // What has no native form has none on any machine.
            Err(Refusal::NotYet { .. }) => {
                assert!(compile(&program, &proof, &options).is_err(), "{name}: compiles here");
                continue;
            }
            compiled => compiled.unwrap_or_else(|e| panic!("{name}: {e}")),
        };
        assert!(functions.iter().any(|f| f.name.ends_with("burst")), "{name}");
        // Instructions have four bytes.
        for f in &functions {
            assert!(f.len > 0 && f.len.is_multiple_of(4) && f.offset + f.len <= code.len(), "{name}: {}", f.name);
        }
        count += 1;
        bytes += code.len();
    }
    instance.maps().iter().for_each(|m| m.clear_programs());
    (count, bytes, unaligned)
}
