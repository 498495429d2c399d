//! Rules where Linux's answer is known from its own cases and where ours must be the same.

use xway_abi::{MapSpec, MapType};
use xway_object::MapDef;

use crate::Kind;
use crate::testing::check;

#[track_caller]
fn refused(text: &str, maps: &[MapDef], kind: Kind) {
    match check(text, maps) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(r) => assert_eq!(r.errors[0].kind, kind, "{}\n{text}", r.errors[0].message),
    }
}

#[track_caller]
fn accepted(text: &str, maps: &[MapDef]) {
    check(text, maps).unwrap_or_else(|r| panic!("{:#?}\n{text}", r.errors));
}

#[test]
fn comparing_the_context_the_packet_or_the_stack_with_zero_decides_nothing() {
    for pointer in ["r2 = r1", "r2 = r10", "r2 = *(u32 *)(r1 +0)"] {
        let dead = format!("{pointer}\nr0 = 0\nif r2 != 0 goto out\nr0 = *(u64 *)(r0 +0)\nout: exit");
        refused(&dead, &[], Kind::NotAPointer);
    }
    // A loop that only such a comparison would leave does not end.
    refused("again: r0 = r1\nif r0 == 0 goto again\nr0 = 0\nexit", &[], Kind::InfiniteLoop);
}

#[test]
fn one_instruction_reaches_one_kind_of_memory() {
    let text = "r2 = *(u32 *)(r1 +12)\n*(u64 *)(r10 -8) = 0\nr3 = r10\nr3 += -8\nif r2 == 0 goto load\nr3 = r1\n\
                load: r0 = *(u32 *)(r3 +0)\nr0 = 0\nexit";
    refused(text, &[], Kind::Argument);
}

#[test]
fn what_an_atomic_fetches_is_what_was_there() {
    // A pointer included.
    let exchange =
        "*(u64 *)(r10 -8) = r1\nr2 = 0\nr2 = atomic64_xchg((u64 *)(r10 -8), r2)\nr0 = *(u32 *)(r2 +12)\nexit";
    accepted(exchange, &[]);
    let behind = "*(u64 *)(r10 -8) = r1\nr2 = 0\nr2 = atomic64_xchg((u64 *)(r10 -8), r2)\nr2 = *(u64 *)(r10 -8)\n\
                  r0 = *(u32 *)(r2 +12)\nexit";
    refused(behind, &[], Kind::NotAPointer);
    let half = "*(u64 *)(r10 -8) = r1\nr2 = 0\nr2 = atomic_xchg((u32 *)(r10 -8), r2)\nr0 = 0\nexit";
    refused(half, &[], Kind::StackBounds);
}

#[test]
fn shifts_by_more_than_there_are_bits_give_anything() {
    let array = [MapDef::new("m", MapSpec::new(MapType::Array, 4, 8, 1))];
    let text = "*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n\
                if r0 == 0 goto out\nr2 = AMOUNT\nr3 = 1\nw3 <<= w2\nr3 &= 0xffff\nr0 += r3\n*(u8 *)(r0 +0) = 0\nout: r0 = 0\nexit";
    accepted(&text.replace("AMOUNT", "2"), &array);
    refused(&text.replace("AMOUNT", "34"), &array, Kind::MapBounds);
}

#[test]
fn keys_are_constants_when_written_in_four_bytes() {
    let array = [MapDef::new("m", MapSpec::new(MapType::Array, 4, 8, 4))];
    let text =
        "SPILL\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\nr0 = *(u64 *)(r0 +0)\nr0 = 0\nexit";
    accepted(&text.replace("SPILL", "*(u32 *)(r10 -8) = 3"), &array);
    refused(&text.replace("SPILL", "*(u64 *)(r10 -8) = 3"), &array, Kind::Null);
    refused(&text.replace("SPILL", "*(u32 *)(r10 -8) = 4"), &array, Kind::Null);
}

#[test]
fn numbers_spilled_in_part_stay_the_same_number() {
    let text = "call bpf_get_prandom_u32\nw0 &= 0x80000000\n*(u32 *)(r10 -8) = r0\nr1 = *(u32 *)(r10 -8)\n\
                if r1 != 0 goto out\nif r0 == 0 goto out\nr0 = *(u64 *)(r9 +0)\nout: r0 = 0\nexit";
    accepted(text, &[]);
    accepted(&text.replace("*(u32 *)(r10 -8) = r0", "*(u64 *)(r10 -8) = r0"), &[]);
}

#[test]
fn no_metadata_is_longer_than_an_offset_can_say() {
    let text = "r2 = *(u32 *)(r1 +8)\nr3 = *(u32 *)(r1 +0)\nr4 = r2\nr4 += OFF\nif r4 > r3 goto out\nr0 = *(u8 *)(r2 +0)\n\
                out: r0 = 0\nexit";
    accepted(&text.replace("OFF", "4"), &[]);
    refused(&text.replace("OFF", "0x10000"), &[], Kind::PacketBounds);
}

#[test]
fn functions_may_return_nothing() {
    accepted("call f\nr0 = 2\nexit\nf: r6 = 1\nexit", &[]);
    refused("call f\nexit\nf: r6 = 1\nexit", &[], Kind::Uninitialised);
}

#[test]
fn callback_loops_turn_as_often_as_they_are_told() {
    let text = "*(u64 *)(r10 -8) = 0\nr1 = TURNS\nr2 = subprog[f]\nr3 = r10\nr3 += -8\nr4 = 0\ncall bpf_loop\n\
                r1 = *(u64 *)(r10 -8)\nr2 = r10\nr2 += -16\nr2 += r1\n*(u8 *)(r2 +14) = 0\nr0 = 0\nexit\n\
                f: r3 = *(u64 *)(r2 +0)\nr3 += 1\n*(u64 *)(r2 +0) = r3\nr0 = 0\nexit";
    accepted(&text.replace("TURNS", "1"), &[]);
    refused(&text.replace("TURNS", "2"), &[], Kind::StackBounds);
}

#[test]
fn may_goto_counts_down_on_the_way_in_only() {
    refused("r0 = 0\nagain: may_goto again\nr0 = 0\nexit", &[], Kind::InfiniteLoop);
    accepted("r0 = 0\nagain: may_goto out\nr0 += 1\ngoto again\nout: r0 = 0\nexit", &[]);
}
