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
    // Another sum of the same numbers is another place.
    refused(
        &format!("{ihl}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr9 = r2\nr9 += r5\nr0 = *(u16 *)(r9 +2)"),
        Kind::PacketBounds,
    );
    // An offset without an upper bound proves nothing, and may not even be added when its sign is open.
    let wild = "r5 = *(u32 *)(r6 +12)\nr7 = r2\nr7 += r5\n";
    refused(&format!("{wild}r8 = r7\nr8 += 4\nif r8 > r3 goto out\nr0 = *(u16 *)(r7 +0)"), Kind::PacketBounds);
    refused("call bpf_ktime_get_ns\nr2 = *(u32 *)(r6 +0)\nr2 += r0", Kind::Unbounded);
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
    assert!(v.facts().meta_used);
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
