//! Arenas: proved as Linux proves them, and refused where they would have to run.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_kernel::KernelObject;
use xway_object::{MapDef, Object, Program};
use xway_testkit::Needs;
use xway_verifier::{Config, MapsView, verify};
use xway_vm::Instance;

/// An arena of two pages at an address of user space of its own, and an array.
fn object(text: &str) -> Object {
    let arena = MapSpec { flags: map_flags::MMAPABLE, map_extra: 1 << 44, ..MapSpec::new(MapType::Arena, 0, 0, 2) };
    let maps = vec![MapDef::new("arena", arena), MapDef::new("array", MapSpec::new(MapType::Array, 4, 8, 1))];
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let program = Program { name: "arena".into(), section: "xdp".into(), insns, ..Program::default() };
    Object { programs: vec![program], maps, license: Some("GPL".to_owned()), ..Object::default() }
}

/// r1 = an address of the arena, made of a number.
const POINTER: &str = "r6 = map[idx:0]\nr1 = 8\nr1 = addr_space_cast(r1, 0, 1)\n";

#[test]
fn both_verdicts() {
    // 6.12: atomic operations on arenas.
    let asked =
        Needs::of("testkit::verifier_types::arena::both_verdicts, the kernel's side").root().kernel(6, 12).met();
    let cases = [
        ("an address is read", true, "r0 = *(u64 *)(r1 +0)\nr0 = 0\nexit"),
        ("and written", true, "*(u32 *)(r1 +4) = 7\nr0 = 0\nexit"),
        ("and added to", true, "r2 = 1\nlock *(u64 *)(r1 +0) += r2\nr0 = 0\nexit"),
        ("any offset will do", true, "r2 = *(u32 *)(r1 +0)\nr1 += r2\nr0 = *(u8 *)(r1 +0)\nr0 = 0\nexit"),
        ("what is read there is a number", false, "r2 = *(u64 *)(r1 +0)\nr0 = *(u64 *)(r2 +0)\nexit"),
        (
            "which can be cast again",
            true,
            "r2 = *(u64 *)(r1 +0)\nr2 = addr_space_cast(r2, 0, 1)\nr0 = *(u64 *)(r2 +0)\nr0 = 0\nexit",
        ),
        ("and back", true, "r2 = addr_space_cast(r1, 1, 0)\nr0 = 0\nexit"),
        ("an address of user space is a number", false, "r2 = addr_space_cast(r1, 1, 0)\nr0 = *(u64 *)(r2 +0)\nexit"),
        ("no other spaces", false, "r2 = addr_space_cast(r1, 2, 1)\nr0 = 0\nexit"),
        ("no key for a look-up", false, "r2 = r1\nr1 = map[idx:1]\ncall 1\nr0 = 0\nexit"),
    ];
    let mut wrong = Vec::new();
    for (name, accepted, text) in cases {
        judge(name, accepted, &format!("{POINTER}{text}"), asked, &mut wrong);
    }
    let without = "r1 = 8\nr1 = addr_space_cast(r1, 0, 1)\nr0 = *(u64 *)(r1 +0)\nr0 = 0\nexit";
    judge("a cast without an arena", false, without, asked, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn judge(name: &str, accepted: bool, text: &str, asked: bool, wrong: &mut Vec<String>) {
    let object = object(text);
    let ours = verify(&object.programs[0], &MapsView::from(&object), &Config::default());
    if ours.is_ok() != accepted {
        wrong.push(format!("{name}: ours: {:?}", ours.as_ref().err().map(|r| &r.errors[0].message)));
    }
    if let Ok(proof) = &ours {
        assert_eq!(proof.facts().kernel_objects, ["arena"], "{name}");
    }
    if asked {
        let kernel = KernelObject::load(&object).unwrap_or_else(|e| panic!("{name}: {e}"));
        if kernel.programs[0].is_ok() != accepted {
            wrong.push(format!("{name}: the kernel: {:?}", kernel.programs[0].as_ref().err().map(ToString::to_string)));
        }
    }
}

#[test]
fn the_engine_refuses_what_needs_one_by_name() {
    let mut object = object(&format!("{POINTER}r0 = *(u64 *)(r1 +0)\nr0 = 0\nexit"));
    // The map itself cannot be made in user space; the proof says so before that is tried.
    let proof = verify(&object.programs[0], &MapsView::from(&object), &Config::default()).expect("proved");
    assert_eq!(proof.facts().kernel_objects, ["arena"]);
    let refused = Instance::verified(Arc::new(object.clone()), 1, Config::default());
    let why = refused.err().map(|e| e.to_string()).expect("no arena here");
    assert!(why.contains("arena"), "{why}");
    // A program of the same object that does not use it is not harmed by it.
    object.programs[0].insns = xway_isa::assemble("r0 = 2\nexit").expect("a text of ours");
    let proof = verify(&object.programs[0], &MapsView::from(&object), &Config::default()).expect("proved");
    assert!(proof.facts().kernel_objects.is_empty());
}
