//! Packet pointers and their bounds checks.

use crate::Kind;
use crate::testing::check;

/// r2 = data, r3 = data_end, then the body; `out` is the exit with r0 = 1 set before.
fn program(body: &str) -> String {
    format!("r6 = r1\nr0 = 1\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\n{body}\nout: r0 = 1\nexit")
}

#[track_caller]
fn refused(body: &str, kind: Kind) {
    match check(&program(body), &[]) {
        Ok(_) => panic!("accepted:\n{body}"),
        Err(r) => assert_eq!(r.errors[0].kind, kind, "{}\n{body}", r.errors[0].message),
    }
}

#[track_caller]
fn accepted(body: &str) -> crate::Verified {
    check(&program(body), &[]).unwrap_or_else(|r| panic!("{:#?}\n{body}", r.errors))
}

/// A number that was put on the stack before ways met: what is learnt of what is read back holds for what is read back next.
#[test]
fn a_check_of_a_number_from_the_stack_holds_for_the_stack() {
    for (size, w) in [("u32", 'w'), ("u64", 'r')] {
        accepted(&format!(
            "call bpf_get_prandom_u32\nr1 = r0\nr3 = 0\n*({size} *)(r10 -8) = r3\nif r1 > 16 goto met\n\
             r1 += 27\nr1 &= 255\n*({size} *)(r10 -8) = r1\nmet: r1 = *({size} *)(r10 -8)\nif {w}1 < 24 goto out\n\
             r4 = *({size} *)(r10 -8)\nr1 = r6\nr2 = 0\nr3 = r10\nr3 += -80\ncall bpf_xdp_load_bytes"
        ));
    }
}

#[test]
fn a_check_in_either_direction_proves_what_lies_below() {
    refused("r0 = *(u8 *)(r2 +0)", Kind::PacketBounds);
    for check in ["if r4 > r3 goto out", "if r3 < r4 goto out"] {
        accepted(&format!("r4 = r2\nr4 += 14\n{check}\nr0 = *(u8 *)(r2 +13)"));
        refused(&format!("r4 = r2\nr4 += 14\n{check}\nr0 = *(u8 *)(r2 +14)"), Kind::PacketBounds);
        refused(&format!("r4 = r2\nr4 += 14\n{check}\nr0 = *(u16 *)(r2 +13)"), Kind::PacketBounds);
        refused(&format!("r4 = r2\nr4 += 14\n{check}\nr0 = *(u8 *)(r2 -1)"), Kind::PacketBounds);
    }
    for check in ["if r4 >= r3 goto out", "if r3 <= r4 goto out"] {
        accepted(&format!("r4 = r2\nr4 += 14\n{check}\nr0 = *(u8 *)(r2 +14)"));
        refused(&format!("r4 = r2\nr4 += 14\n{check}\nr0 = *(u8 *)(r2 +15)"), Kind::PacketBounds);
    }
    accepted("r4 = r2\nr4 += 14\nif r4 <= r3 goto ok\ngoto out\nok: r0 = *(u8 *)(r2 +13)");
    // The wrong branch proves nothing.
    refused("r4 = r2\nr4 += 14\nif r4 <= r3 goto out\nr0 = *(u8 *)(r2 +13)", Kind::PacketBounds);
    refused("if r3 > r2 goto out\nr0 = *(u8 *)(r2 +0)", Kind::PacketBounds);
}

#[test]
fn the_last_byte_before_the_end() {
    accepted("r4 = r2\nif r4 >= r3 goto out\nr0 = *(u8 *)(r4 +0)");
    accepted("r4 = r2\nr4 += 1\nif r4 > r3 goto out\nr0 = *(u8 *)(r4 -1)");
}

#[test]
fn variable_offsets_prove_for_their_own_place_only() {
    let ihl = "r4 = r2\nr4 += 34\nif r4 > r3 goto out\nr5 = *(u8 *)(r2 +14)\nr5 &= 15\nr5 <<= 2\nr7 = r2\nr7 += 14\nr7 += r5\n";
    refused(&format!("{ihl}r0 = *(u16 *)(r7 +0)"), Kind::PacketBounds);
    accepted(&format!("{ihl}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr0 = *(u16 *)(r7 +2)"));
    refused(&format!("{ihl}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr0 = *(u16 *)(r7 +3)"), Kind::PacketBounds);
    // Another sum of the same numbers is the same place; 18 bytes of it are proved.
    let again = format!("{ihl}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr9 = r2\nr9 += r5\n");
    accepted(&format!("{again}r0 = *(u16 *)(r9 +16)"));
    refused(&format!("{again}r0 = *(u16 *)(r9 +17)"), Kind::PacketBounds);
    refused(&format!("{again}r9 += 1\nr0 = *(u16 *)(r9 +16)"), Kind::PacketBounds);
    // The same register with another number is another place.
    refused(
        &format!(
            "{ihl}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr5 = *(u8 *)(r2 +15)\nr5 &= 31\nr9 = r2\nr9 += r5\nr0 = *(u16 *)(r9 +2)"
        ),
        Kind::PacketBounds,
    );
    // An offset of 32 bits may be anything and is compared all the same; one without bounds may not even be added.
    let wild = "r5 = *(u32 *)(r6 +12)\nr7 = r2\nr7 += r5\n";
    accepted(&format!("{wild}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr0 = *(u16 *)(r7 +0)"));
    refused(&format!("{wild}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr0 = *(u16 *)(r7 +3)"), Kind::PacketBounds);
    refused("call bpf_ktime_get_ns\nr2 = *(u32 *)(r6 +0)\nr2 += r0", Kind::Unbounded);
}

#[test]
fn a_sum_keeps_what_was_proved_less_the_largest_offset() {
    let of = |then: &str| format!("r4 = r2\nr4 += 34\nif r4 > r3 goto out\nr5 = *(u8 *)(r2 +14)\n{then}");
    // 34 less 15 are 19, in either order of the sum.
    for sum in ["r5 &= 15\nr7 = r2\nr7 += r5\n", "r5 &= 15\nr7 = r5\nr7 += r2\n"] {
        accepted(&of(&format!("{sum}r0 = *(u8 *)(r7 +18)")));
        refused(&of(&format!("{sum}r0 = *(u8 *)(r7 +19)")), Kind::PacketBounds);
    }
    // The same place by another sum of which the pointer is 4 further: as much is proved, and no more.
    let twice = "r5 &= 15\nr7 = r2\nr7 += r5\nr8 = r2\nr5 += 4\nr8 += r5\n";
    accepted(&of(&format!("{twice}r0 = *(u8 *)(r8 +14)")));
    refused(&of(&format!("{twice}r0 = *(u8 *)(r8 +15)")), Kind::PacketBounds);
    let less = "r5 &= 15\nr5 += 4\nr7 = r2\nr7 += r5\nr8 = r2\nr5 -= 4\nr8 += r5\n";
    accepted(&of(&format!("{less}r0 = *(u8 *)(r8 +18)")));
    refused(&of(&format!("{less}r0 = *(u8 *)(r8 +19)")), Kind::PacketBounds);
    // What may be negative, or larger than what is proved, keeps nothing; no more does what is subtracted.
    refused(&of("r5 &= 15\nr5 -= 1\nr7 = r2\nr7 += r5\nr0 = *(u8 *)(r7 +2)"), Kind::PacketBounds);
    refused(&of("r5 &= 63\nr7 = r2\nr7 += r5\nr0 = *(u8 *)(r7 +0)"), Kind::PacketBounds);
    refused(&of("r5 &= 15\nr7 = r2\nr7 += 16\nr7 -= r5\nr0 = *(u8 *)(r7 +0)"), Kind::PacketBounds);
    // A way on which the number may be larger is not taken for the one on which it is small.
    let joined = "r6 = *(u8 *)(r2 +15)\nr7 = r5\nr7 &= 255\nif r6 == 3 goto join\nr7 &= 15\n\
                  join: r0 = 0\nr8 = r2\nr8 += r7\nr0 = *(u8 *)(r8 +3)";
    refused(&of(joined), Kind::PacketBounds);
}

#[test]
fn helpers_that_move_the_packet_invalidate_pointers() {
    let moved = "r4 = r2\nr4 += 14\nif r4 > r3 goto out\nr7 = r2\nr1 = r6\nr2 = 4\ncall bpf_xdp_adjust_head\n";
    let r = check(&program(&format!("{moved}r0 = *(u8 *)(r7 +0)")), &[]).unwrap_err();
    assert_eq!(r.errors[0].kind, Kind::Stale);
    assert!(r.errors[0].message.contains("bpf_xdp_adjust_head"), "{}", r.errors[0].message);
    let again =
        "r2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\nr4 = r2\nr4 += 1\nif r4 > r3 goto out\nr0 = *(u8 *)(r2 +0)";
    let v = accepted(&format!("{moved}{again}"));
    assert!(v.facts().packet_moved);
    // Spilled pointers die, too.
    refused(
        "*(u64 *)(r10 -8) = r2\nr1 = r6\nr2 = 4\ncall bpf_xdp_adjust_head\nr2 = *(u64 *)(r10 -8)\nr0 = *(u8 *)(r2 +0)",
        Kind::Stale,
    );
}

#[test]
fn metadata_lies_before_the_packet() {
    let meta = "r7 = *(u32 *)(r6 +8)\nr4 = r7\nr4 += 4\nif r4 > r2 goto out\n";
    let v = accepted(&format!("{meta}r0 = *(u32 *)(r7 +0)"));
    assert!(v.facts().meta_used && !v.facts().meta_written);
    // It is no part of the packet, but of its memory.
    let v = accepted(&format!("{meta}*(u32 *)(r7 +0) = 1\nr0 = 2"));
    assert!(v.facts().meta_written && !v.facts().packet_written);
    refused(&format!("{meta}r0 = *(u32 *)(r7 +4)"), Kind::PacketBounds);
    refused(&format!("{meta}r0 = *(u8 *)(r2 +0)"), Kind::PacketBounds);
    // data_end is no bound for metadata.
    refused("r7 = *(u32 *)(r6 +8)\nr4 = r7\nr4 += 4\nif r4 > r3 goto out\nr0 = *(u32 *)(r7 +0)", Kind::PacketBounds);
}

#[test]
fn facts_about_the_packet() {
    let v = accepted("r4 = r2\nr4 += 14\nif r4 > r3 goto out\n*(u16 *)(r2 +12) = 8\nr0 = *(u8 *)(r2 +0)");
    let f = v.facts();
    assert_eq!((f.packet_bytes, f.packet_written, f.packet_moved), (14, true, false));
}

#[test]
fn distances_to_the_end_are_lengths() {
    let len = "r4 = r3\nr4 -= r2\n";
    accepted(&format!("{len}if r4 < 14 goto out\nr0 = *(u8 *)(r2 +13)"));
    refused(&format!("{len}if r4 < 14 goto out\nr0 = *(u8 *)(r2 +14)"), Kind::PacketBounds);
    refused(&format!("{len}if r4 > 14 goto out\nr0 = *(u8 *)(r2 +0)"), Kind::PacketBounds);
    // Counted from a later place, and moved by a constant.
    let rest = "r5 = r2\nr5 += 10\nr4 = r3\nr4 -= r5\nr4 += 3\n";
    accepted(&format!("{rest}if r4 s< 7 goto out\nr0 = *(u8 *)(r5 +3)"));
    refused(&format!("{rest}if r4 s< 7 goto out\nr0 = *(u8 *)(r5 +4)"), Kind::PacketBounds);
    // A copy that was checked; the other way round it says nothing.
    accepted(&format!("{len}r5 = r4\nif r5 < 14 goto out\nr0 = *(u8 *)(r2 +13)"));
    accepted(&format!("{len}r4 <<= 32\nr4 >>= 32\nif r4 < 14 goto out\nr0 = *(u8 *)(r2 +13)"));
    refused("r4 = r2\nr4 -= r3\nif r4 < 14 goto out\nr0 = *(u8 *)(r2 +0)", Kind::PacketBounds);
    // The packet moves: the number stays what it was and proves nothing any more.
    let moved =
        "r7 = r3\nr7 -= r2\nr1 = r6\nr2 = 4\ncall bpf_xdp_adjust_head\nr2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\n";
    refused(&format!("{moved}if r7 < 14 goto out\nr0 = *(u8 *)(r2 +0)"), Kind::PacketBounds);
}

#[test]
fn bytes_before_the_end_need_a_packet_that_long() {
    let long = "r4 = r2\nr4 += 14\nif r4 > r3 goto out\n";
    refused("r0 = *(u8 *)(r3 -1)", Kind::PacketBounds);
    accepted(&format!("{long}r0 = *(u8 *)(r3 -14)"));
    refused(&format!("{long}r0 = *(u8 *)(r3 -15)"), Kind::PacketBounds);
    refused(&format!("{long}r0 = *(u16 *)(r3 -1)"), Kind::PacketBounds);
    refused(&format!("{long}r0 = *(u8 *)(r3 +0)"), Kind::PacketBounds);
    accepted("r3 += -4\nif r2 > r3 goto out\nr0 = *(u32 *)(r3 +0)");
    accepted("r3 += -4\nif r2 > r3 goto out\nr0 = *(u32 *)(r2 +0)");
    refused("r3 += -4\nif r2 > r3 goto out\nr0 = *(u32 *)(r2 +1)", Kind::PacketBounds);
    refused("r3 += 4\nif r2 > r3 goto out\nr0 = *(u32 *)(r2 +0)", Kind::PacketBounds);
    // Not for helpers, and not after the packet moved.
    refused(
        &format!("{long}r1 = r6\nr2 = 4\ncall bpf_xdp_adjust_head\nr3 = *(u32 *)(r6 +4)\nr0 = *(u8 *)(r3 -1)"),
        Kind::PacketBounds,
    );
}

#[test]
fn a_length_that_fits_by_its_making_needs_no_constant_bound() {
    let csum = "r1 = 0\nr2 = 0\nr5 = 0\ncall bpf_csum_diff\nr0 = 1\nexit";
    let rest =
        |n: i32| format!("r4 = r3\nr4 -= r2\nr4 += {n}\nif r4 s< 0 goto out\nif r4 > 2000 goto out\nr3 = r2\n{csum}");
    accepted(&rest(0));
    accepted(&rest(-4));
    refused(&rest(4), Kind::PacketBounds);
    // data + n + 20 lies inside: n bytes from data + 20 do, from data + 21 they do not.
    let sum = |k: i32| {
        format!(
            "r4 = *(u32 *)(r6 +12)\nif r4 > 2000 goto out\nr5 = r2\nr5 += r4\nr5 += 20\nif r5 > r3 goto out\nr3 = r2\nr3 += {k}\n{csum}"
        )
    };
    accepted(&sum(20));
    refused(&sum(21), Kind::PacketBounds);
    // A sum that was made and never checked proves nothing, not even for no bytes behind it.
    refused(
        &format!("r4 = *(u32 *)(r6 +12)\nif r4 > 2000 goto out\nr5 = r2\nr5 += r4\nr3 = r2\n{csum}"),
        Kind::PacketBounds,
    );
}

#[test]
fn no_packet_is_longer_than_packet_memory() {
    let v = accepted("r4 = r2\nr4 += 131073\nif r4 > r3 goto out\nr0 = *(u8 *)(r9 +0)");
    assert!(!v.facts().dead.is_empty());
    refused("r4 = r2\nr4 += 131072\nif r4 > r3 goto out\nr0 = *(u8 *)(r9 +0)", Kind::Uninitialised);
    // A loop that the end alone bounds.
    let v = accepted("loop: r4 = r2\nr4 += 64\nif r4 > r3 goto out\nr0 = *(u8 *)(r2 +0)\nr2 += 64\ngoto loop");
    assert!(v.stats().visited < 20_000);
}

/// Two ways to one place of the program, with packet pointers that count from different places: what was proved on the way that
/// was walked first holds for the second as far as that one has proved as much, and the distances are the same.
#[test]
fn places_of_two_ways_are_compared_by_what_they_prove() {
    let join = |first: &str, second: &str, behind: &str| {
        format!(
            "r4 = r2\nr4 += 16\nif r4 > r3 goto out\nr5 = *(u8 *)(r2 +14)\nr5 &= 15\nr0 = *(u8 *)(r2 +0)\nr7 = r2\nr7 += r5\n\
             if r0 == 7 goto other\n{first}\ngoto join\nother: r7 += 3\n{second}\njoin: r0 = 0\n{behind}"
        )
    };
    let check = |n: i32| format!("r8 = r7\nr8 += {n}\nif r8 > r3 goto out");
    let last = "r0 = *(u8 *)(r7 +7)";
    accepted(&join(&check(8), &check(8), last));
    accepted(&join(&check(8), &check(9), last));
    refused(&join(&check(8), &check(7), last), Kind::PacketBounds);
    refused(&join(&check(8), "r0 = 0", last), Kind::PacketBounds);
    // A second pointer, checked behind the join: the first one may be no further away than on the way before.
    let both = format!("r8 = r9\nr8 += 8\nif r8 > r3 goto out\n{last}");
    accepted(&join("r9 = r7", "r9 = r7", &both));
    refused(&join("r9 = r7", "r9 = r7\nr7 += 1", &both), Kind::PacketBounds);
}
