//! Loops, and pruning that must not go too far.

use crate::Kind;
use crate::testing::check;

#[track_caller]
fn refused(text: &str, kind: Kind) {
    match check(text, &[]) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(r) => assert_eq!(r.errors[0].kind, kind, "{}\n{text}", r.errors[0].message),
    }
}

#[track_caller]
fn accepted(text: &str) -> crate::Verified {
    check(text, &[]).unwrap_or_else(|r| panic!("{:#?}\n{text}", r.errors))
}

#[test]
fn bounded_loops_are_unrolled() {
    accepted("r0 = 0\nloop: r0 += 1\nif r0 < 100 goto loop\nexit");
    accepted(
        "r6 = *(u32 *)(r1 +12)\nr0 = 0\nif r6 > 50 goto out\nloop: if r6 == 0 goto out\nr6 -= 1\ngoto loop\nout: exit",
    );
}

#[test]
fn endless_loops_are_refused() {
    refused("r0 = 0\nloop: goto loop\nexit", Kind::Unreachable);
    refused("r6 = *(u32 *)(r1 +12)\nr0 = 0\nloop: if r6 != 7 goto loop\nexit", Kind::InfiniteLoop);
    refused("r6 = *(u32 *)(r1 +12)\nr0 = 0\nloop: r0 += 1\nif r6 != 7 goto loop\nexit", Kind::Budget);
}

#[test]
fn may_goto_ends_loops() {
    accepted("r0 = 0\nloop: may_goto +2\nr0 += 1\ngoto loop\nexit");
    // What the loop changes is not known behind it.
    refused(
        "r6 = 0\nloop: may_goto +2\nr6 += 1\ngoto loop\nr2 = r10\nr2 -= 0\nr0 = 0\nif r6 > 3 goto +1\nexit\nr0 = *(u8 *)(r6 +0)\nexit",
        Kind::PointerArithmetic,
    );
}

/// When it runs each call of a function has turns of its own: those that `f` makes bring the loop of its caller no nearer to its end.
#[test]
fn turns_of_a_may_goto_are_those_of_its_function() {
    let f = "\nf: r0 = 0\nmay_goto +1\nr0 = 1\nexit";
    refused(
        &format!("loop: may_goto out\ngoto loop\nout: call f\nif r0 == 1 goto loop\nr0 = 2\nexit{f}"),
        Kind::InfiniteLoop,
    );
    // The caller's own turns do.
    accepted(&format!("loop: may_goto out\ncall f\ngoto loop\nout: r0 = 2\nexit{f}"));
}

#[test]
fn pruning_keeps_numbers_apart_that_matter_later() {
    // r6 is 8 or 16 with the same r0: the second must not be pruned at the join.
    let text = |second: &str| {
        format!(
            "r7 = *(u32 *)(r1 +12)\nr8 = *(u32 *)(r1 +16)\nr6 = -8\nif r7 == 0 goto join\nr6 = {second}\n\
             join: r0 = 0\nif r8 == 1 goto +1\nr0 = 1\nr1 = r10\nr1 += r6\n*(u8 *)(r1 +0) = 1\nexit"
        )
    };
    accepted(&text("-16"));
    refused(&text("8"), Kind::StackBounds);
    refused(&text("-600"), Kind::StackBounds);
}

#[test]
fn pruning_keeps_spilled_numbers_apart_that_matter_later() {
    let text = |second: &str| {
        format!(
            "r7 = *(u32 *)(r1 +12)\nr8 = *(u32 *)(r1 +16)\n*(u64 *)(r10 -8) = -8\nif r7 == 0 goto join\n*(u64 *)(r10 -8) = {second}\n\
             join: r0 = 0\nif r8 == 1 goto +1\nr0 = 1\nr6 = *(u64 *)(r10 -8)\nr1 = r10\nr1 += r6\n*(u8 *)(r1 +0) = 1\nexit"
        )
    };
    accepted(&text("-16"));
    refused(&text("8"), Kind::StackBounds);
}

#[test]
fn pruning_saves_work_where_nothing_matters() {
    let mut text = String::from("r6 = *(u32 *)(r1 +12)\nr0 = 0\n");
    for bit in 0..20 {
        text.push_str(&format!(
            "r7 = r6\nr7 >>= {bit}\nr7 &= 1\nif r7 == 0 goto l{bit}\nr0 += {bit}\nr0 ^= 3\nl{bit}: r8 = 1\n"
        ));
    }
    text.push_str("exit");
    let v = accepted(&text);
    assert!(v.stats().visited < 5000, "{:?}", v.stats());
}

/// A loop inside an iterator's that goes round for ever is seen to, as any other: the iterator does not go on.
#[test]
fn an_iterator_that_stands_still_ends_no_loop() {
    let text = |inner: &str| {
        format!(
            "r6 = r1\nr1 = r10\nr1 += -8\nr2 = 0\nr3 = 9\ncall kfunc #0\nnext: r1 = r10\nr1 += -8\ncall kfunc #1\n\
             if r0 == 0 goto end\nr7 = *(u32 *)(r6 +12)\n{inner}\ngoto next\nend: r1 = r10\nr1 += -8\ncall kfunc #2\nr0 = 0\nexit"
        )
    };
    let of = |text: &str| {
        let kfunc = |name: &str| xway_object::KfuncRef { name: name.into(), func_id: 0, weak: false };
        let kfuncs = ["bpf_iter_num_new", "bpf_iter_num_next", "bpf_iter_num_destroy"].map(kfunc).to_vec();
        let program = xway_object::Program { kfuncs, ..crate::testing::program(text) };
        let view = crate::MapsView { maps: &[], btf: None, kernel: None, license: Some("GPL") };
        crate::verify(&program, &view, &crate::Config { budget: 100_000, ..Default::default() })
    };
    let verdict = |inner: &str| of(&text(inner));
    assert!(verdict("r7 += 1").is_ok());
    let refusal = verdict("if r7 != 42 goto next\nwait: r8 = 1\nif r7 == 42 goto wait").unwrap_err();
    assert_eq!(refusal.errors[0].kind, Kind::InfiniteLoop, "{}", refusal.errors[0].message);
    assert!(refusal.stats.visited < 1_000, "{}", refusal.stats.visited);
    // Around it, where each turn makes it anew: its turns are no turns of the outer loop, which Linux 6.18 takes them for.
    let again = text("r7 += 1")
        .replace("r6 = r1\n", "r6 = r1\nagain: r8 = 0\n")
        .replace("r0 = 0\nexit", "r0 = 0\nif r8 < 2 goto again\nexit");
    let refusal = of(&again).unwrap_err();
    assert_eq!(refusal.errors[0].kind, Kind::InfiniteLoop, "{}", refusal.errors[0].message);
}

/// An iterator counts wherever it is advanced: also in a function, of which each turn calls another activation.
#[test]
fn a_function_may_advance_the_iterator_of_its_caller() {
    let of = |again: &str, f: &str| {
        let kfunc = |name: &str| xway_object::KfuncRef { name: name.into(), func_id: 0, weak: false };
        let kfuncs = ["bpf_iter_num_new", "bpf_iter_num_next", "bpf_iter_num_destroy"].map(kfunc).to_vec();
        let text = format!(
            "r6 = 0\nr1 = r10\nr1 += -8\nr2 = 0\nr3 = 1000000\ncall kfunc #0\nnext: r1 = r10\nr1 += -8\ncall f\nr6 += 1\n\
             {again}\nr1 = r10\nr1 += -8\ncall kfunc #2\nr0 = r6\nexit\nf: {f}\nexit"
        );
        let program = xway_object::Program { kfuncs, ..crate::testing::program(&text) };
        let view = crate::MapsView { maps: &[], btf: None, kernel: None, license: Some("GPL") };
        crate::verify(&program, &view, &crate::Config { budget: 20_000, ..Default::default() })
    };
    let advances = "call kfunc #1\nif r0 == 0 goto +1\nr0 = 1";
    let proof = of("if r0 != 0 goto next", advances).unwrap_or_else(|r| panic!("{:?}", r.errors));
    assert!(proof.stats().visited < 500, "{}", proof.stats().visited);
    assert!(of("if r0 != 0 goto next", "call kfunc #1").is_ok(), "the number itself may be handed back");
    // Behind the last number the function comes back at once: as often as it is called.
    let endless = of("if r0 == 0 goto next", advances).unwrap_err();
    assert!(matches!(endless.errors[0].kind, Kind::InfiniteLoop | Kind::Budget), "{}", endless.errors[0].message);
    // An iterator of the function's own counts the turns of that activation alone.
    let own = "r1 = r10\nr1 += -8\nr2 = 0\nr3 = 9\ncall kfunc #0\nmore: r1 = r10\nr1 += -8\ncall kfunc #1\nif r0 != 0 goto more\n\
               r1 = r10\nr1 += -8\ncall kfunc #2\nr0 = 1";
    assert!(of("if r0 == 1 goto next", own).is_err());
}

/// The same in a function that a helper calls: the turns of the helper's loop are no turns of this one.
#[test]
fn a_callback_that_stands_still_is_seen_at_once() {
    let text = "r1 = 100\nr2 = subprog[cb]\nr3 = r10\nr4 = 0\ncall bpf_loop\nr0 = 2\nexit\ncb: r6 = 0\nwait: r0 = 1\ngoto wait\nexit";
    let refusal = check(&text.replace("goto wait\nexit", "if r0 == 1 goto wait\nexit"), &[]).unwrap_err();
    assert_eq!(refusal.errors[0].kind, Kind::InfiniteLoop, "{}", refusal.errors[0].message);
    assert!(refusal.stats.visited < 1_000, "{}", refusal.stats.visited);
}

/// Behind the first error the search for others has a part of the budget only.
#[test]
fn what_comes_after_the_first_error_is_bounded() {
    let text = "r6 = *(u32 *)(r1 +12)\nr7 = *(u32 *)(r1 +16)\nif r7 == 5 goto long\nr0 = *(u8 *)(r6 +0)\nexit\n\
                long: r0 = 0\nloop: r0 += 1\nif r6 != 7 goto loop\nexit";
    let refusal = check(text, &[]).unwrap_err();
    assert_eq!(refusal.errors[0].kind, Kind::NotAPointer, "{}", refusal.errors[0].message);
    assert!(refusal.stats.visited < 30_000, "{}", refusal.stats.visited);
}

/// A loop of many turns whose ways differ in what they remember and in how far they go: the number of ways between two checkpoints
/// must not multiply, and the turns of one way must leave the checkpoints of others alone.
#[test]
fn a_loop_that_branches_in_each_turn_is_walked_in_bounded_time() {
    let text = |turns: u32| {
        format!(
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = 0\nr5 = 0\nr6 = 0\nr7 = 0\nr0 = 1\n\
             loop: if r4 > {turns} goto out\nr8 = r2\nr8 += r4\nr9 = r8\nr9 += 4\nif r9 > r3 goto out\nr9 = *(u8 *)(r8 +0)\n\
             if r5 != 0 goto inside\nif r9 != 115 goto next\nr9 = *(u8 *)(r8 +1)\nif r9 != 101 goto next\nr5 = 1\nr4 += 3\ngoto next\n\
             inside: if r6 != 0 goto key\nif r9 == 32 goto next\nif r9 != 13 goto begins\nr5 = 0\ngoto next\n\
             begins: r7 = 77\nr7 ^= r9\nr7 *= 16777619\nr6 = 1\ngoto next\n\
             key: if r9 != 32 goto more\nif r7 == 5 goto out\nr5 = 0\nr6 = 0\ngoto next\nmore: r7 ^= r9\nr7 *= 16777619\n\
             next: r4 += 1\ngoto loop\nout: r0 = r5\nr0 += 1\nexit"
        )
    };
    let visited =
        |turns| crate::testing::check(&text(turns), &[]).unwrap_or_else(|e| panic!("{:?}", e.errors)).stats().visited;
    let (few, many) = (visited(40), visited(160));
    assert!(many < 12 * few, "{few} for 40 turns, {many} for 160");
}
