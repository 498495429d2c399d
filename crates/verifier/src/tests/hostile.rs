//! Programs that are made to break one argument each on which the analysis rests. The safe one of each pair is accepted, so
//! that the refusal of the other shows what it should.

use xway_abi::{MapSpec, MapType};
use xway_object::MapDef;

use crate::Kind;
use crate::testing::check;

fn maps() -> Vec<MapDef> {
    vec![
        MapDef::new("hash", MapSpec::new(MapType::Hash, 4, 16, 16)),
        MapDef::new("ring", MapSpec::new(MapType::Ringbuf, 0, 0, 4096)),
    ]
}

#[track_caller]
fn refused(text: &str, kind: Kind) {
    match check(text, &maps()) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(r) => assert_eq!(r.errors[0].kind, kind, "{}\n{text}", r.errors[0].message),
    }
}

/// An index that may be anything is refused where it is added, or where the sum is used.
#[track_caller]
fn too_far(text: &str) {
    match check(text, &maps()) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(r) => {
            assert!(matches!(r.errors[0].kind, Kind::MapBounds | Kind::Unbounded), "{}\n{text}", r.errors[0].message)
        }
    }
}

#[track_caller]
fn accepted(text: &str) {
    if let Err(r) = check(text, &maps()) {
        panic!("{}\n{text}", r.errors[0].message);
    }
}

/// r0 is a value of 16 bytes, r6 64 bits from it.
const VALUE: &str = "r9 = r1\n*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n\
                     if r0 == 0 goto out\nr6 = *(u64 *)(r0 +0)\n";
/// r6 is the context, r7 data, r8 data_end.
const PACKET: &str = "r6 = r1\nr7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\n";
const OUT: &str = "\nout: r0 = 1\nexit";

/// A copy that lost bits is no copy.
#[test]
fn links_end_where_bits_are_lost() {
    let index = |copy: &str| format!("{VALUE}{copy}if r7 > 7 goto out\nr0 += r6\nr0 = *(u8 *)(r0 +0){OUT}");
    accepted(&index("r7 = r6\n"));
    too_far(&index("w7 = w6\n"));
    too_far(&index("*(u32 *)(r10 -16) = r6\nr7 = *(u32 *)(r10 -16)\n"));
    too_far(&index("*(u8 *)(r10 -16) = r6\nr7 = *(u8 *)(r10 -16)\n"));
    accepted(&index("*(u64 *)(r10 -16) = r6\nr7 = *(u64 *)(r10 -16)\n"));
    too_far(&index("*(u64 *)(r10 -16) = r6\nr7 = *(u32 *)(r10 -16)\n"));
    too_far(&index("r7 = r6\nr7 <<= 32\nr7 >>= 32\n"));
    too_far(&index("r7 = r6\nr6 += 1\nr6 *= 2\n"));
    accepted(&index("w6 = w6\nr7 = r6\nr7 <<= 32\nr7 >>= 32\n"));
    // The first shift may be jumped over.
    too_far(&index("w6 = w6\nr7 = r6\nr1 = *(u32 *)(r9 +12)\nif r1 == 0 goto +1\nr7 <<= 32\nr7 >>= 32\n"));
}

/// What is computed between the steps of `x - x / n * n` makes another number of it.
#[test]
fn a_remainder_needs_all_its_steps_on_the_same_number() {
    let index = |steps: &str| format!("{VALUE}{steps}r0 += r6\nr0 = *(u8 *)(r0 +0){OUT}");
    accepted(&index("r7 = r6\nr7 /= 10\nr7 *= 10\nr6 -= r7\n"));
    for steps in [
        "r7 = r6\nr7 /= 10\nr7 *= 10\nr6 += 1\nr6 -= r7\n",
        "r7 = r6\nr7 /= 10\nr7 *= 11\nr6 -= r7\n",
        "r7 = r6\nr7 /= 10\nr7 += 1\nr7 *= 10\nr6 -= r7\n",
        "r7 = r6\nr7 s/= 10\nr7 *= 10\nr6 -= r7\n",
        "r7 = r6\nr7 /= 10\nr1 = *(u32 *)(r9 +12)\nif r1 == 0 goto +1\nr7 *= 10\nr6 -= r7\n",
        "r7 = r6\nw7 /= 10\nr7 *= 10\nr6 -= r7\n",
        "r7 = r6\nr7 /= 10\nr7 *= 10\nw6 -= w7\nr6 += 1\nr6 *= 2\n",
    ] {
        too_far(&index(steps));
    }
}

/// What one path knows of the packet's length says nothing on another.
#[test]
fn lengths_are_not_carried_over_a_join() {
    let last = |check: &str| {
        format!(
            "{PACKET}r9 = *(u32 *)(r6 +12)\nif r9 == 0 goto join\n{check}\njoin: r2 = 0\nr3 = 0\nr4 = 0\nr5 = 0\nr1 = 0\n\
             if r9 == 1 goto +1\nr2 = 1\nr8 += -8\nr0 = *(u64 *)(r8 +0){OUT}"
        )
    };
    let checked = "r2 = r7\nr2 += 8\nif r2 > r8 goto out";
    refused(&last(checked), Kind::PacketBounds);
    let both = last(checked).replace("if r9 == 0 goto join", &format!("{checked}\nif r9 == 0 goto join"));
    accepted(&both);
    // A sum that was checked on one path only.
    let sum = |before: &str| {
        format!(
            "{PACKET}r2 = r7\nr2 += 1\nif r2 > r8 goto out\nr4 = *(u8 *)(r7 +0)\nr9 = *(u32 *)(r6 +12)\n{before}\
             if r9 == 0 goto join\nr2 = r7\nr2 += r4\nr3 = r2\nr3 += 4\nif r3 > r8 goto out\n\
             join: r2 = 0\nr3 = 0\nr5 = 0\nif r9 == 7 goto +1\nr3 = 1\nr2 = r7\nr2 += r4\nr0 = *(u32 *)(r2 +0){OUT}"
        )
    };
    refused(&sum(""), Kind::PacketBounds);
    accepted(&sum("r2 = r7\nr2 += r4\nr3 = r2\nr3 += 4\nif r3 > r8 goto out\n"));
}

/// A length of the packet as it was says nothing about the packet as it is.
#[test]
fn lengths_end_with_the_packet() {
    let text = |call: &str| {
        format!(
            "{PACKET}r9 = r8\nr9 -= r7\n{call}r7 = *(u32 *)(r6 +0)\nr8 = *(u32 *)(r6 +4)\n\
             if r9 < 34 goto out\nr0 = *(u8 *)(r7 +33){OUT}"
        )
    };
    refused(&text("r1 = r6\nr2 = 20\ncall bpf_xdp_adjust_head\n"), Kind::PacketBounds);
    // The same pointers, loaded twice.
    accepted(&text(""));
}

/// A callback may move the packet, change a pointer that its caller keeps, or release what its caller holds.
#[test]
fn callbacks_change_what_their_caller_knows() {
    let walk = |body: &str, after: &str| {
        format!(
            "{PACKET}r2 = r7\nr2 += 8\nif r2 > r8 goto out\n*(u64 *)(r10 -8) = r7\n*(u64 *)(r10 -16) = r6\nr1 = 5\n\
             r2 = subprog[cb]\nr3 = r10\nr3 += -16\nr4 = 0\ncall bpf_loop\n{after}{OUT}\ncb: {body}\nr0 = 0\nexit"
        )
    };
    let use_kept = "r7 = *(u64 *)(r10 -8)\nr0 = *(u64 *)(r7 +0)";
    accepted(&walk("r3 = 1", use_kept));
    refused(&walk("r1 = *(u64 *)(r2 +0)\nr2 = 4\ncall bpf_xdp_adjust_head", use_kept), Kind::Stale);
    refused(&walk("r3 = *(u64 *)(r2 +8)\nr3 += 1\n*(u64 *)(r2 +8) = r3", use_kept), Kind::PacketBounds);
    refused(&walk("*(u64 *)(r2 +8) = 0", use_kept), Kind::NotAPointer);
    // The pointer moves in every turn and is compared in every turn: that is enough, and only then.
    let moving = |check: &str| {
        walk(
            &format!(
                "r3 = *(u64 *)(r2 +8)\nr4 = r3\nr4 += 4\n{check}\nr5 = *(u32 *)(r3 +0)\nr3 += 4\n*(u64 *)(r2 +8) = r3\nq: r3 = 0"
            ),
            "r0 = 0",
        )
    };
    let fresh = "r5 = *(u64 *)(r2 +0)\nr5 = *(u32 *)(r5 +4)\n";
    accepted(&moving(&format!("{fresh}if r4 > r5 goto q")));
    refused(&moving(&format!("{fresh}if r3 > r5 goto q")), Kind::PacketBounds);
    refused(&moving(""), Kind::PacketBounds);
}

/// An element found twice may be two elements.
#[test]
fn references_and_records_do_not_survive_their_release() {
    let record = "r1 = map[idx:1]\nr2 = 16\nr3 = 0\ncall bpf_ringbuf_reserve\nif r0 == 0 goto out\nr6 = r0\n*(u64 *)(r10 -8) = r0\n";
    let submit = "r1 = r6\nr2 = 0\ncall bpf_ringbuf_submit\n";
    accepted(&format!("{record}*(u64 *)(r6 +8) = 1\n{submit}r0 = 0{OUT}"));
    refused(&format!("{record}{submit}r1 = *(u64 *)(r10 -8)\nr0 = *(u64 *)(r1 +0){OUT}"), Kind::NotAPointer);
    // Released in a callback, which may run twice.
    let callback = |turns: u32| {
        format!(
            "{record}r1 = {turns}\nr2 = subprog[cb]\nr3 = r10\nr3 += -8\nr4 = 0\ncall bpf_loop\n{OUT}\n\
             cb: r1 = *(u64 *)(r2 +0)\nr2 = 0\ncall bpf_ringbuf_submit\nr0 = 0\nexit"
        )
    };
    assert!(check(&callback(2), &maps()).is_err());
}

/// A number that is compared in one turn is another one in the next.
#[test]
fn loops_do_not_carry_bounds_from_turn_to_turn() {
    let text = |step: &str| {
        format!(
            "{PACKET}r9 = 0\n*(u64 *)(r10 -16) = 0\nloop: may_goto behind\nif r9 > 7 goto behind\nr1 = r10\nr1 += -16\nr1 += r9\n\
             *(u8 *)(r1 +0) = 1\n{step}\ngoto loop\nbehind: r0 = 0\nexit"
        )
    };
    accepted(&text("r9 += 1"));
    let late =
        text("r9 += 1").replace("if r9 > 7 goto behind\n", "").replace("r9 += 1", "r9 += 1\nif r9 > 16 goto behind");
    refused(&late, Kind::StackBounds);
}
