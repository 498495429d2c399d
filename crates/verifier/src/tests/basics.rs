//! Registers, arithmetic, stack, context, map values.

use xway_abi::{MapSpec, MapType, Verdict};
use xway_object::MapDef;

use crate::Kind;
use crate::testing::check;

fn array(value: u32, entries: u32) -> Vec<MapDef> {
    vec![MapDef::new("m", MapSpec::new(MapType::Array, 4, value, entries))]
}

fn hash(value: u32) -> Vec<MapDef> {
    vec![MapDef::new("m", MapSpec::new(MapType::Hash, 4, value, 16))]
}

#[track_caller]
fn refused(text: &str, maps: &[MapDef], kind: Kind) {
    match check(text, maps) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(r) => assert_eq!(r.errors[0].kind, kind, "{}\n{text}", r.errors[0].message),
    }
}

#[track_caller]
fn accepted(text: &str, maps: &[MapDef]) -> crate::Verified {
    check(text, maps).unwrap_or_else(|r| panic!("{:#?}\n{text}", r.errors))
}

/// Look-up of key 0 of a hash; r0 is the value or null.
const LOOKUP: &str = "*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n";

#[test]
fn registers_must_be_written_first() {
    refused("exit", &[], Kind::Uninitialised);
    refused("r0 = r3\nexit", &[], Kind::Uninitialised);
    refused("call bpf_ktime_get_ns\nr0 = r1\nexit", &[], Kind::Uninitialised);
    refused("r10 = 5\nr0 = 0\nexit", &[], Kind::FramePointer);
    accepted("r0 = r1\nexit", &[]);
}

#[test]
fn pointer_arithmetic() {
    refused("r0 = r10\nr0 *= 2\nexit", &[], Kind::PointerArithmetic);
    refused("r0 = r10\nr0 |= 2\nexit", &[], Kind::PointerArithmetic);
    refused("r0 = r10\nw0 += 2\nexit", &[], Kind::PointerArithmetic);
    refused("r0 = r10\nr0 += r1\nexit", &[], Kind::PointerArithmetic);
    accepted("r2 = *(u32 *)(r1 +4)\nr2 += 1\nr0 = 0\nexit", &[]);
    refused("r2 = *(u32 *)(r1 +4)\nr3 = *(u32 *)(r1 +12)\nr2 += r3\nr0 = 0\nexit", &[], Kind::PointerArithmetic);
    accepted("r0 = r10\nr0 -= r1\nexit", &[]);
}

#[test]
fn stack_accesses() {
    refused("r0 = *(u64 *)(r10 +0)\nexit", &[], Kind::StackBounds);
    refused("*(u64 *)(r10 -520) = 0\nr0 = 0\nexit", &[], Kind::StackBounds);
    refused("*(u64 *)(r10 -12) = 0\nr0 = 0\nexit", &[], Kind::Alignment);
    refused("*(u32 *)(r10 -8) = r1\nr0 = 0\nexit", &[], Kind::StackBounds);
    let v = accepted("*(u64 *)(r10 -8) = r1\nr1 = *(u64 *)(r10 -8)\nr0 = *(u32 *)(r1 +12)\nexit", &[]);
    assert_eq!(v.facts().stack, [8]);
    // Half of a spilled pointer is nothing.
    refused("*(u64 *)(r10 -8) = r1\nr1 = *(u32 *)(r10 -8)\nr0 = 0\nexit", &[], Kind::StackBounds);
    refused(
        "*(u64 *)(r10 -8) = r1\n*(u8 *)(r10 -5) = 1\nr1 = *(u64 *)(r10 -8)\nr0 = *(u32 *)(r1 +12)\nexit",
        &[],
        Kind::NotAPointer,
    );
}

#[test]
fn context_fields() {
    accepted("r0 = *(u32 *)(r1 +16)\nexit", &[]);
    refused("r0 = *(u32 *)(r1 +20)\nexit", &[], Kind::Context);
    refused("r0 = *(u64 *)(r1 +0)\nexit", &[], Kind::Context);
    refused("r0 = *(u32 *)(r1 +24)\nexit", &[], Kind::Context);
    refused("*(u32 *)(r1 +16) = 1\nr0 = 0\nexit", &[], Kind::Context);
    refused("r1 += 4\nr0 = *(u32 *)(r1 +0)\nexit", &[], Kind::Context);
}

#[test]
fn map_values_need_a_null_check_and_bounds() {
    refused(&format!("{LOOKUP}r0 = *(u64 *)(r0 +0)\nexit"), &hash(8), Kind::Null);
    accepted(&format!("{LOOKUP}if r0 == 0 goto +1\nr0 = *(u64 *)(r0 +0)\nexit"), &hash(8));
    refused(&format!("{LOOKUP}if r0 == 0 goto +1\nr0 = *(u64 *)(r0 +1)\nexit"), &hash(8), Kind::MapBounds);
    refused(&format!("{LOOKUP}if r0 != 0 goto +1\nr0 = *(u64 *)(r0 +0)\nexit"), &hash(8), Kind::NotAPointer);
    // A copy shares the check.
    accepted(&format!("{LOOKUP}r6 = r0\nr0 = 0\nif r6 == 0 goto +1\nr0 = *(u64 *)(r6 +0)\nexit"), &hash(8));
    // A constant key of an array inside its bounds is never null.
    accepted(&format!("{LOOKUP}r0 = *(u64 *)(r0 +0)\nexit"), &array(8, 1));
}

#[test]
fn variable_offsets_into_values() {
    let body = |check: &str| {
        format!("r6 = *(u32 *)(r1 +12)\n{LOOKUP}if r0 == 0 goto out\n{check}r0 += r6\nr0 = *(u8 *)(r0 +0)\nout: exit")
    };
    refused(&body(""), &hash(64), Kind::MapBounds);
    accepted(&body("r6 &= 63\n"), &hash(64));
    refused(&body("r6 &= 64\n"), &hash(64), Kind::MapBounds);
    accepted(&body("if r6 > 63 goto out\n"), &hash(64));
    refused(&body("if r6 s> 63 goto out\nr6 -= 1\n"), &hash(64), Kind::MapBounds);
    accepted(&body("r6 %= 10\n"), &hash(10));
    accepted(&body("r7 = r6\nif r7 > 9 goto out\n"), &hash(10));
    accepted(&body("*(u64 *)(r10 -16) = r6\nif r6 > 9 goto out\nr6 = *(u64 *)(r10 -16)\n"), &hash(10));
}

#[test]
fn constants_of_frozen_maps_decide_branches() {
    let mut m = array(4, 1);
    m[0].spec.flags = xway_abi::map_flags::RDONLY_PROG;
    m[0].frozen = true;
    m[0].initial = xway_object::Initial::Data(vec![7, 0, 0, 0]);
    let v = accepted("r1 = map[idx:0][0]+0\nr1 = *(u32 *)(r1 +0)\nr0 = 2\nif r1 == 7 goto +1\nr0 = r9\nexit", &m);
    assert_eq!(v.facts().dead, [5]);
    refused("r1 = map[idx:0][0]+0\n*(u32 *)(r1 +0) = 1\nr0 = 0\nexit", &m, Kind::Permission);
}

#[test]
fn verdicts_are_collected() {
    let v = accepted("r6 = *(u32 *)(r1 +12)\nr0 = 1\nif r6 == 3 goto +1\nr0 = 2\nexit", &[]);
    assert_eq!(v.facts().verdicts, Some(vec![Verdict::Drop, Verdict::Pass]));
    let v = accepted("r0 = *(u32 *)(r1 +12)\nexit", &[]);
    assert_eq!(v.facts().verdicts, None);
}

#[test]
fn several_errors_are_reported_in_one_run() {
    let r = check("r6 = *(u32 *)(r1 +12)\nif r6 == 0 goto +2\nr0 = r7\nexit\nr0 = r8\nexit", &[]).unwrap_err();
    let mut at: Vec<usize> = r.errors.iter().map(|e| e.insn).collect();
    at.sort_unstable();
    assert_eq!(at, [2, 4]);
    assert_eq!(r.errors[0].path.len(), 1);
}

#[test]
fn atomics_need_aligned_addresses() {
    let body = |mask: i32| {
        format!(
            "r6 = *(u32 *)(r1 +12)\n{LOOKUP}if r0 == 0 goto out\nr1 = 1\nr6 &= {mask}\nr0 += r6\n\
             lock *(u32 *)(r0 +28) += r1\nout: r0 = 0\nexit"
        )
    };
    refused(&body(15), &hash(64), Kind::Alignment);
    accepted(&body(12), &hash(64));
    refused("r1 = 1\n*(u64 *)(r10 -8) = 0\nlock *(u32 *)(r10 -6) += r1\nr0 = 0\nexit", &[], Kind::Alignment);
}
