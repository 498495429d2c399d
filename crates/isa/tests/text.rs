//! The text of single instructions, and what the assembler says about wrong text.

use std::borrow::Cow;

use xway_isa::{AsmErrorKind, Names, NoNames, Slot, assemble, assemble_with, listing, slots_from_bytes};

/// Bytes of the instruction and its text as Linux 6.18 prints it in the verifier log (`bpf_prog_load` with log level 2).
#[test]
fn text_is_what_linux_prints() {
    let rows: &[(&[u8], &str)] = &[
        (&[0xb7, 0, 0, 0, 2, 0, 0, 0], "(b7) r0 = 2"),
        (&[0xb4, 1, 0, 0, 0xff, 0xff, 0xff, 0xff], "(b4) w1 = -1"),
        (&[0x0c, 0x21, 0, 0, 0, 0, 0, 0], "(0c) w1 += w2"),
        (&[0xbf, 0x21, 8, 0, 0, 0, 0, 0], "(bf) r1 = (s8)r2"),
        (&[0x3f, 0x21, 1, 0, 0, 0, 0, 0], "(3f) r1 s/= r2"),
        (&[0xc7, 1, 0, 0, 3, 0, 0, 0], "(c7) r1 s>>= 3"),
        (&[0x87, 1, 0, 0, 0, 0, 0, 0], "(87) r1 = -r1"),
        (&[0xdc, 1, 0, 0, 16, 0, 0, 0], "(dc) r1 = be16 r1"),
        (&[0xd4, 1, 0, 0, 64, 0, 0, 0], "(d4) r1 = le64 r1"),
        (&[0xd7, 1, 0, 0, 32, 0, 0, 0], "(d7) r1 = bswap32 r1"),
        (&[0x61, 0x12, 4, 0, 0, 0, 0, 0], "(61) r2 = *(u32 *)(r1 +4)"),
        (&[0x91, 0x12, 0xf8, 0xff, 0, 0, 0, 0], "(91) r2 = *(s8 *)(r1 -8)"),
        (&[0x7a, 10, 0xf8, 0xff, 7, 0, 0, 0], "(7a) *(u64 *)(r10 -8) = 7"),
        (&[0x63, 0x2a, 0xfc, 0xff, 0, 0, 0, 0], "(63) *(u32 *)(r10 -4) = r2"),
        (&[0xc3, 0x21, 0, 0, 0, 0, 0, 0], "(c3) lock *(u32 *)(r1 +0) += r2"),
        (&[0xdb, 0x21, 0, 0, 1, 0, 0, 0], "(db) r2 = atomic64_fetch_add((u64 *)(r1 +0), r2)"),
        (&[0xc3, 0x21, 0, 0, 0xe1, 0, 0, 0], "(c3) r2 = atomic_xchg((u32 *)(r1 +0), r2)"),
        (&[0xdb, 0x21, 0, 0, 0xf1, 0, 0, 0], "(db) r0 = atomic64_cmpxchg((u64 *)(r1 +0), r0, r2)"),
        (&[0xdb, 0x12, 8, 0, 0, 1, 0, 0], "(db) r2 = load_acquire((u64 *)(r1 +8))"),
        (&[0xd3, 0x21, 8, 0, 0x10, 1, 0, 0], "(d3) store_release((u8 *)(r1 +8), r2)"),
        (&[0x05, 0, 5, 0, 0, 0, 0, 0], "(05) goto pc+5"),
        (&[0x06, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], "(06) gotol pc-1"),
        (&[0xe5, 0, 1, 0, 0, 0, 0, 0], "(e5) may_goto pc+1"),
        (&[0x2d, 0x32, 5, 0, 0, 0, 0, 0], "(2d) if r2 > r3 goto pc+5"),
        (&[0xc6, 2, 5, 0, 0xf6, 0xff, 0xff, 0xff], "(c6) if w2 s< 0xfffffff6 goto pc+5"),
        (&[0x85, 0, 0, 0, 5, 0, 0, 0], "(85) call helper#5"),
        (&[0x85, 0x10, 0, 0, 5, 0, 0, 0], "(85) call pc+5"),
        (&[0x95, 0, 0, 0, 0, 0, 0, 0], "(95) exit"),
        (&[0x18, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0], "(18) r1 = 0x200000001"),
        (&[0x30, 0, 0, 0, 12, 0, 0, 0], "(30) r0 = *(u8 *)skb[12]"),
        (&[0x48, 0x60, 0, 0, 2, 0, 0, 0], "(48) r0 = *(u16 *)skb[r6 + 2]"),
    ];
    for (bytes, text) in rows {
        let slots = slots_from_bytes(bytes).unwrap();
        assert_eq!(listing(&slots, &NoNames).unwrap(), format!("   0: {text}\n"));
        assert_eq!(assemble(text).unwrap(), slots, "{text}");
    }
}

struct Linux;

impl Names for Linux {
    fn helper(&self, id: u32) -> Option<Cow<'_, str>> {
        (id == 1).then_some("bpf_map_lookup_elem".into())
    }
    fn kfunc(&self, id: i32, _: i16) -> Option<Cow<'_, str>> {
        (id == 3).then_some("bpf_dynptr_size".into())
    }
    fn map(&self, idx: i32) -> Option<Cow<'_, str>> {
        (idx == 0).then_some(".rodata".into())
    }
    fn helper_id(&self, name: &str) -> Option<u32> {
        (name == "bpf_map_lookup_elem").then_some(1)
    }
    fn kfunc_id(&self, name: &str) -> Option<(i32, i16)> {
        (name == "bpf_dynptr_size").then_some((3, 2))
    }
    fn map_idx(&self, name: &str) -> Option<i32> {
        (name == ".rodata").then_some(0)
    }
}

#[test]
fn names_work_both_ways() {
    let text = "   0: (18) r1 = map[.rodata][0]+16\n   2: (85) call bpf_map_lookup_elem#1\n   3: (18) r1 = map[idx:1]\n   \
                5: (85) call kfunc bpf_dynptr_size#3 btf 2\n";
    let slots = assemble_with(text, &Linux).unwrap();
    assert_eq!(listing(&slots, &Linux).unwrap(), text);
    let bare = "r1 = map[.rodata][0]+16\ncall bpf_map_lookup_elem\nr1 = map[idx:1]\ncall kfunc bpf_dynptr_size";
    assert_eq!(assemble_with(bare, &Linux).unwrap(), slots);
}

#[test]
fn labels_reach_back_and_forth() {
    let by_label = "
        start: r1 = 0x1122334455667788   ; two slots
               if w1 == 5 goto done
               r2 = subprog[callee]
               call callee
               may_goto start
               gotol done                // the long form
               goto start
        done:
               exit
        callee:
               r0 = 0
               exit";
    let by_distance = "
        r1 = 0x1122334455667788
        if w1 == 5 goto pc+6
        r2 = subprog[+6]
        call pc+4
        may_goto pc-7
        gotol pc+1
        goto pc-9
        exit
        r0 = 0
        exit";
    assert_eq!(assemble(by_label).unwrap(), assemble(by_distance).unwrap());
}

#[test]
fn constants_keep_the_value_that_was_written() {
    let slots = |text: &str| assemble(text).unwrap();
    assert_eq!(slots("r1 = 5"), [Slot { opcode: 0xb7, dst: 1, imm: 5, ..Slot::default() }]);
    assert_eq!(slots("r1 = -5"), [Slot { opcode: 0xb7, dst: 1, imm: -5, ..Slot::default() }]);
    assert_eq!(slots("r1 = 4294967295"), slots("r1 = 0xffffffff"));
    assert_eq!(slots("r1 = 5 ll"), slots("r1 = 0x5"));
    assert_eq!(slots("w1 = 0xffffffff"), slots("w1 = -1"));
    assert_eq!(slots("w1 += 0x80000000"), slots("w1 += -2147483648"));
    assert_eq!(slots("*(u32 *)(r1) = 0xffffffff"), slots("*(u32 *)(r1 +0) = -1"));
    assert_eq!(slots("if r1 == 0xffffffff goto +1"), slots("if r1 == -1 goto pc+1"));
}

#[test]
fn errors_say_where_and_what() {
    let rows = [
        ("r0 = 1\nr1 += 0xffffffff", 2, 7, "4294967295 does not fit: a signed 32-bit immediate"),
        ("  foo r1", 1, 3, "unknown instruction or register `foo`"),
        ("r0 = r11", 1, 6, "unknown value `r11`"),
        ("r0 = 1 r1", 1, 8, "nothing may follow the instruction, found `r1`"),
        ("r0 = w1", 1, 6, "both operands must have the same width"),
        ("r1 = be16 r2", 1, 11, "byte order changes in place"),
        ("r1 = -r2", 1, 7, "negation works in place"),
        ("w1 = (s32)w2", 1, 7, "(s32) needs 64-bit registers"),
        ("goto nowhere", 1, 6, "unknown label `nowhere`"),
        ("call bpf_nothing", 1, 6, "unknown helper or label `bpf_nothing`"),
        ("a: exit\na: exit", 2, 1, "label `a` is defined twice, first on line 1"),
        ("goto pc+40000", 1, 8, "40000 does not fit: this jump reaches -32768 to +32767 slots"),
        ("lock *(u8 *)(r1 +0) += r2", 1, 7, "atomic operations work on u32 and u64"),
        ("r2 = atomic_xchg((u64 *)(r1 +0), r2)", 1, 18, "atomic64_"),
        ("r1 = *(u32 *)(r1 +0", 1, 20, "expected `)`, found the end of the line"),
        ("(b7) r0 += 1", 1, 1, "the opcode in parentheses is 0xb7, but the instruction's is 0x07"),
        ("r0 = 1 € ", 1, 8, "unexpected character '€'"),
        ("r1 = 99999999999999999999", 1, 6, "at most 64 bits"),
        ("r1 = 0xzz", 1, 6, "expected a number, found `0xzz`"),
        ("r1 = map[nope]", 1, 10, "unknown map `nope`"),
        ("r1 = map[idx:0][1]+4", 1, 17, "only the address of a map's first value"),
        ("r3 = *(u8 *)skb[0]", 1, 7, "packet access loads u8, u16 or u32 into r0"),
    ];
    for (text, line, col, message) in rows {
        let e = assemble(text).expect_err(text);
        assert_eq!((e.line, e.col), (line, col), "{text}: {e}");
        assert!(e.to_string().contains(message), "{text}: {e}");
    }
}

#[test]
fn a_label_too_far_away_is_an_error_and_gotol_reaches_it() {
    let far = |jump: &str| format!("{jump} end\n{}end: exit", "r0 = 0\n".repeat(40_000));
    let e = assemble(&far("goto")).unwrap_err();
    assert_eq!((e.line, e.col), (1, 6));
    assert!(matches!(e.kind, AsmErrorKind::OutOfRange { .. }));
    assert_eq!(assemble(&far("gotol")).unwrap()[0].imm, 40_000);
}
