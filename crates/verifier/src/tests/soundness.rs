//! Programs that an earlier version accepted and that were not safe, each the smallest of its kind.

use xway_abi::{MapSpec, MapType};
use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding};
use xway_object::{MapDef, Subprog};

use crate::testing::{check, program};
use crate::{Config, Kind, MapsView, verify};

fn maps() -> Vec<MapDef> {
    vec![
        MapDef::new("hash", MapSpec::new(MapType::Hash, 4, 16, 16)),
        MapDef::new("programs", MapSpec::new(MapType::ProgArray, 4, 4, 2)),
    ]
}

#[track_caller]
fn refused(text: &str, kind: Kind) {
    match check(text, &maps()) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(r) => assert_eq!(r.errors[0].kind, kind, "{}\n{text}", r.errors[0].message),
    }
}

/// A comparison with a register that holds zero is a null check only where it holds zero: a path on which it holds
/// something else must not be cut off against one on which it does not.
#[test]
fn null_checks_against_a_register_rely_on_its_value() {
    let with = |other: &str| {
        format!(
            "r7 = *(u32 *)(r1 +12)\n*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n\
             r8 = r0\nr9 = 0\nif r7 == 5 goto x\ngoto l\nx: r9 = {other}\nl: r0 = 0\nif r8 == r9 goto out\n\
             r0 = *(u64 *)(r8 +0)\nout: exit"
        )
    };
    refused(&with("7"), Kind::Null);
    assert!(check(&with("0"), &maps()).is_ok());
}

/// A function that tail-calls returns to its caller when the other program ends, whatever that program did.
#[test]
fn a_tail_call_in_a_function_returns_anything_and_moves_the_packet() {
    let function = "f: r2 = map[idx:1]\nr3 = 0\ncall bpf_tail_call\nr0 = 1\nexit";
    let head = "r6 = r1\nr7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r7\nr2 += 14\nif r2 > r8 goto out\ncall f\n";
    refused(&format!("{head}r0 = *(u8 *)(r7 +0)\nout: r0 = 2\nexit\n{function}"), Kind::Stale);
    let index = "*(u64 *)(r10 -8) = 0\ncall f\nr1 = r10\nr1 += -8\nr0 -= 1\nr1 += r0\nr0 = *(u8 *)(r1 +0)\nexit\n";
    refused(&format!("{index}{function}"), Kind::Unbounded);
    assert!(check(&format!("call f\nr0 &= 3\nexit\n{function}"), &maps()).is_ok());
}

/// Global functions are analysed on their own: also one that only a function behind it calls.
#[test]
fn global_functions_are_all_analysed_whatever_their_order() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let none = b.prototype(int, &[]);
    let func_id = b.func("g", none, FuncLinkage::Global);
    let btf = b.finish();
    let global = |name: &str, start, len| Subprog { name: name.into(), start, len, global: true, func_id };
    let image = |bad: &str| {
        let mut p =
            program(&format!("call second\nr0 = 0\nexit\nfirst: {bad}\nexit\nsecond: call first\nr0 = 0\nexit"));
        let main = Subprog { name: "main".into(), start: 0, len: 3, global: true, func_id: 0 };
        p.subprogs = vec![main, global("first", 3, 2), global("second", 5, 3)];
        p
    };
    let view = MapsView { maps: &[], btf: Some(&btf), kernel: None, license: Some("GPL") };
    assert!(verify(&image("r0 = 1"), &view, &Config::default()).is_ok());
    let refusal = verify(&image("r0 = r9"), &view, &Config::default()).unwrap_err();
    assert_eq!((refusal.errors[0].kind, refusal.errors[0].insn), (Kind::Uninitialised, 3));
}

/// `x - x / n * n` is a remainder only when the product is not cut to 32 bits.
#[test]
fn a_product_that_is_cut_off_leaves_no_remainder() {
    let index = |product: &str| {
        format!(
            "*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\n\
             r6 = *(u64 *)(r0 +0)\nr6 <<= 24\nr6 >>= 24\nr7 = r6\nr7 /= 1024\n{product} *= 1024\nr6 -= r7\nr6 >>= 7\nr0 += r6\n\
             r0 = *(u8 *)(r0 +0)\nout: r0 = 0\nexit"
        )
    };
    assert!(check(&index("r7"), &maps()).is_ok());
    refused(&index("w7"), Kind::MapBounds);
}

/// The way by `b` comes to where the counted way left a checkpoint, and goes round without counting.
#[test]
fn a_way_round_that_nothing_counts_does_not_end_where_a_counted_one_did() {
    let body = "r2 = 0\nr3 = 0\nr2 = 1\nr3 = 1\nr2 = 1\nr3 = 1\n";
    let around = |b: &str| {
        format!(
            "r7 = r1\nloop: may_goto x\ngoto t\nx: r1 = *(u32 *)(r7 +16)\nif r1 == 0 goto b\nmay_goto done\n{body}goto c\n\
             c: r2 = 0\ngoto t\nb: {b}r2 = 0\ngoto t\nt: r2 = 0\nr3 = 0\ngoto loop\ndone: r0 = 2\nexit"
        )
    };
    refused(&around(""), Kind::InfiniteLoop);
    assert!(check(&around("may_goto done\n"), &maps()).is_ok());
}

/// `p` leads to the open loop at `round` through the loop at `inner`, which is closed and tied to it: what is relied on behind `p` is
/// not known before the outer loop is finished.
#[test]
fn what_leads_into_a_tied_loop_is_tied_with_it() {
    let pad = "r2 = 0\nr3 = 0\nr2 = 1\nr3 = 1\nr2 = 1\nr3 = 1\nr3 = 1\n";
    let with = |index: u32| {
        let way = |n: u32| format!("r1 = *(u32 *)(r7 +16)\nif r1 == {n} goto l{n}\n");
        format!(
            "r7 = r1\n*(u64 *)(r10 -8) = 1\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\n\
             if r0 == 0 goto out\nr8 = r0\nr6 = 0\nround: may_goto out\n{}{}{}inner: may_goto back\n{pad}goto c\n\
             c: r2 = 0\ngoto t\nt: r2 = 0\nr3 = 0\ngoto inner\nback: goto round\nl2: {pad}goto p\nl3: r6 = {index}\n\
             goto p\np: r2 = 0\nr3 = 0\ngoto t\nl4: r1 = r8\nr1 += r6\nr0 = *(u8 *)(r1 +0)\ngoto out\n\
             out: r0 = 2\nexit",
            way(4),
            way(3),
            way(2)
        )
    };
    refused(&with(1000), Kind::Unbounded);
    assert!(check(&with(0), &maps()).is_ok());
}

/// A global function is walked as if it stood alone; callbacks below it count in the chain of whoever calls it.
#[test]
fn callbacks_below_a_global_function_count_in_its_callers_chain() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let none = b.prototype(int, &[]);
    let func_id = b.func("g", none, FuncLinkage::Global);
    let btf = b.finish();
    let chain = |callbacks: usize| {
        let next = |n: usize| format!("r1 = 1\nr2 = subprog[c{n}]\nr3 = 0\nr4 = 0\ncall bpf_loop\nr0 = 0\nexit\n");
        let mut text = String::from("call g\nr0 = 2\nexit\ng: ") + &next(1);
        (1..callbacks).for_each(|n| text += &format!("c{n}: {}", next(n + 1)));
        let mut p = program(&(text + &format!("c{callbacks}: r0 = 0\nexit")));
        let main = Subprog { name: "main".into(), start: 0, len: 3, global: true, func_id: 0 };
        p.subprogs = vec![main, Subprog { name: "g".into(), start: 3, len: 8, global: true, func_id }];
        p.subprogs.extend((1..=callbacks).map(|n| Subprog {
            name: format!("c{n}"),
            start: 3 + 8 * n,
            len: if n < callbacks { 8 } else { 2 },
            global: false,
            func_id: 0,
        }));
        let view = MapsView { maps: &[], btf: Some(&btf), kernel: None, license: Some("GPL") };
        verify(&p, &view, &Config::default()).map(drop).map_err(|r| r.errors[0].kind)
    };
    assert_eq!((chain(6), chain(7)), (Ok(()), Err(Kind::StackDepth)));
}

/// A slot that was written longer than it is read holds what the shorter read relied on: its number must not be let go of.
#[test]
fn a_part_of_a_longer_number_is_relied_on() {
    let far = "r2 = 1\n".repeat(8) + &"call bpf_get_prandom_u32\n".repeat(2);
    let with = |other: &str| {
        format!(
            "r7 = *(u32 *)(r1 +12)\nr8 = *(u32 *)(r1 +16)\n*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\n\
             call bpf_map_lookup_elem\nif r0 == 0 goto out\nr6 = r0\n{far}if r7 == 1 goto b\n\
             call bpf_get_prandom_u32\nr0 &= 7\n*(u32 *)(r10 -16) = r0\ngoto p\nb: if r8 == 1 goto c\n*(u64 *)(r10 -16) = 5\ngoto q\n\
             c: *(u64 *)(r10 -16) = {other}\nq: {far}p: r1 = *(u32 *)(r10 -16)\nr6 += r1\nr0 = *(u8 *)(r6 +0)\nout: r0 = 0\nexit"
        )
    };
    refused(&with("1000"), Kind::MapBounds);
    assert!(check(&with("7"), &maps()).is_ok());
}

/// The same of a key, by which a look-up in an array was known to find something.
#[test]
fn a_key_in_part_of_a_longer_number_is_relied_on() {
    let far = "r2 = 1\n".repeat(8) + &"call bpf_get_prandom_u32\n".repeat(2);
    let with = |other: u32| {
        format!(
            "r7 = *(u32 *)(r1 +12)\nr8 = *(u32 *)(r1 +16)\n{far}if r7 == 1 goto b\nr1 = 0\n*(u32 *)(r10 -16) = r1\ngoto p\n\
             b: if r8 == 1 goto c\nr1 = 0\n*(u64 *)(r10 -16) = r1\ngoto q\nc: r1 = {other}\n*(u64 *)(r10 -16) = r1\nq: {far}\
             p: r2 = r10\nr2 += -16\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\nr0 = *(u64 *)(r0 +0)\nr0 = 0\nexit"
        )
    };
    let array = [MapDef::new("array", MapSpec::new(MapType::Array, 4, 16, 1))];
    assert!(check(&with(0), &array).is_ok());
    let refused = check(&with(5), &array).expect_err("element 5 of 1");
    assert_eq!(refused.errors[0].kind, Kind::Null, "{}", refused.errors[0].message);
}

/// Bytes in front of a place are inside of the packet where the place is: one of which nothing is proved may lie behind the end.
#[test]
fn nothing_is_proved_in_front_of_a_place_that_may_lie_behind_the_end() {
    let with = |check: &str| {
        format!(
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr6 = *(u32 *)(r1 +12)\nr7 = *(u32 *)(r1 +16)\nr7 &= 63\nr8 = 1\nr8 += 1\nr8 += 1\n\
             if r6 == 7 goto b\nr4 = r2\nr4 += r7\nr4 += 8\nif r4 > r3 goto out\ngoto p\nb: r7 += 8\nr4 = r2\nr4 += r7\n{check}\n\
             p: *(u64 *)(r4 -8) = 7\nout: r0 = 2\nexit"
        )
    };
    refused(&with("r8 += 1"), Kind::PacketBounds);
    // The same of one way alone: two places of one number, the second in front of the first.
    let sums = |check: &str, back: i32| {
        format!(
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr7 = *(u32 *)(r1 +16)\nr7 &= 63\nr8 = r7\nr8 += 36\nr4 = r2\nr4 += r8\n{check}\n\
             r8 = r7\nr8 += {back}\nr4 = r2\nr4 += r8\n*(u16 *)(r4 +0) = 7\nout: r0 = 2\nexit"
        )
    };
    assert!(check(&sums("r5 = r4\nr5 += 4\nif r5 > r3 goto out", 13), &maps()).is_ok());
    assert!(check(&sums("r5 = r4\nr5 += 4\nif r5 > r3 goto out", 38), &maps()).is_ok());
    refused(&sums("r5 = r4\nr5 += 4\nif r5 > r3 goto out", 39), Kind::PacketBounds);
    refused(&sums("r5 = r4\nr5 += 4\nif r5 > r3 goto out", -1), Kind::PacketBounds);
    refused(&sums("r5 = r4", 13), Kind::PacketBounds);
    // What helps is the place's own check, and not that a number is no negative one.
    let unproved = check(&sums("r5 = r4", 13), &maps()).expect_err("nothing is proved");
    let said = (&unproved.errors[0].message, unproved.errors[0].hint.as_deref().unwrap_or_default());
    assert!(said.0.contains("0 are proved") && said.1.contains("> data_end"), "{said:?}");
    refused(&with("r4 += -8\nif r4 > r3 goto out\nr4 += 8"), Kind::PacketBounds);
    assert!(check(&with("r5 = r4\nr5 += 1\nif r5 > r3 goto out"), &maps()).is_ok());
}

/// What a look-up in an XSKMAP gives is a socket of the kernel's: one number of it can be read, whole.
#[test]
fn of_a_socket_the_queue_number_is_read_whole() {
    let sockets = [MapDef::new("sockets", MapSpec::new(MapType::Xskmap, 4, 4, 4))];
    let with = |use_of: &str| {
        format!(
            "*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\n\
             {use_of}\nout: r0 = 0\nexit"
        )
    };
    assert!(check(&with("r1 = *(u32 *)(r0 +0)"), &sockets).is_ok());
    let sums = "r1 = 0\nr2 = 0\nr3 = r0\nr4 = 4\nr5 = 0\ncall bpf_csum_diff";
    for parts in ["r1 = *(u8 *)(r0 +1)", "r1 = *(u16 *)(r0 +0)", sums] {
        let refused = check(&with(parts), &sockets).expect_err(parts);
        assert_eq!(refused.errors[0].kind, Kind::Argument, "{parts}: {}", refused.errors[0].message);
    }
}
