//! Scouts go round loops that stand in front of look-ups, a few times, where nothing is looked ahead for in them.
//!
//! That notes of the frames are those of the keys that loops come to, and how many turns a frame has, is in `src/stage.rs`.

use std::sync::Arc;

use xway_abi::MapType;
use xway_jit::Options;
use xway_object::Object;
use xway_testkit::Rng;

use crate::engines::compare;
use crate::functions::scout;
use crate::{HEAD, assert_same, fill, look_up, maps, object, packets};

const ROUND: &str = "once it has gone back often enough";

/// Options of several lengths from r6 to r7, until the one whose type is 7. r0 is the byte behind it and one, or 0. r8 is what is read,
/// r5 counts.
const WALK: &str = "r8 = r6\nr8 += 14\nr5 = 0\nr0 = 0\nnext: r2 = r8\nr2 += 2\nif r2 > r7 goto end\nr3 = *(u8 *)(r8 +0)\n\
                    if r3 == 7 goto here\nr3 &= 3\nr3 += 1\nr8 += r3\nr5 += 1\nif r5 < 12 goto next\ngoto end\n\
                    here: r0 = *(u8 *)(r8 +1)\nr0 += 1\n";
const PACKET: &str = "r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\n";

/// Counts a flow, or enters it. The key is r0.
fn count() -> String {
    format!(
        "if r0 == 0 goto out\n*(u64 *)(r10 -8) = r0\n{}if r0 == 0 goto miss\nr1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\nr0 = 2\n\
         goto out\nmiss: *(u64 *)(r10 -16) = 1\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\nr1 = map[idx:0]\ncall 2\nr0 = 3\nout: exit\n",
        look_up(0)
    )
}

/// The options are walked in the main function.
pub(crate) fn options() -> String {
    format!("{PACKET}{WALK}end: {}", count())
}

/// Or in one that is called, twice: what the second one finds is the key. What its caller keeps in r9 is the caller's.
fn called() -> String {
    format!(
        "r9 = r1\ncall walk\nr8 = r0\nr1 = r9\ncall walk\nr0 ^= r8\nr0 += 1\n{}walk: {PACKET}{WALK}end: exit\n",
        count()
    )
}

/// A function in the loop's turn: what both keep in the same registers is not the same.
fn in_turns() -> String {
    format!(
        "{HEAD}r8 = 0\nr7 = 0\nturn: r1 = r8\nr2 = *(u8 *)(r6 +29)\ncall mix\nr7 += r0\nr8 += 1\nr1 = *(u8 *)(r6 +28)\nr1 &= 7\n\
         if r8 < r1 goto turn\nr0 = r7\nr0 &= 15\n{}mix: r8 = r1\nr7 = r2\nr0 = r8\nr0 *= 3\nr0 ^= r7\nexit\n",
        count()
    )
}

/// Bytes of two rows, one loop in the other; the inner one has two ways back.
fn nested() -> String {
    format!(
        "{HEAD}r8 = 0\nr4 = 0\nouter: r3 = 0\ninner: r2 = *(u8 *)(r6 +27)\nr8 += r2\nr8 *= 5\nr3 += 1\nif r3 > 3 goto on\nif r8 & 1 goto inner\n\
         r8 += 3\ngoto inner\non: r8 ^= r4\nr4 += 1\nr1 = *(u8 *)(r6 +29)\nr1 &= 3\nif r4 < r1 goto outer\nr0 = r8\nr0 &= 15\n{}",
        count()
    )
}

/// The program has a count of turns for loops, and a way out of them where it is used up.
fn counts() -> String {
    format!(
        "{HEAD}r0 = *(u8 *)(r6 +29)\nr4 = 0\nturn: may_goto over\nr0 *= 3\nr0 += r4\nr0 &= 255\nr4 += 1\nr1 = *(u8 *)(r6 +28)\n\
         if r4 < r1 goto turn\nover: r4 = 0\nagain: may_goto done\nr0 += 7\nr4 += 1\nif r4 > 2 goto done\ngoto again\ndone: r0 &= 15\n{}",
        count()
    )
}

/// A loop of this many turns, whose result is the key, with a way out of its middle.
fn long(turns: u32) -> String {
    format!(
        "{HEAD}r3 = *(u8 *)(r6 +26)\nr4 = 0\nnext: r3 *= 3\nr3 ^= r4\nr5 = *(u8 *)(r6 +27)\nif r5 == 9 goto out\nr4 += 1\n\
         if r4 < {turns} goto next\nr3 &= 15\n*(u64 *)(r10 -8) = r3\n{}if r0 == 0 goto out\nr0 = 2\nout: exit\n",
        look_up(0)
    )
}

/// Maps are asked and changed in each turn, the packet and the stack written: a small one, because the look-up is no target.
fn effects() -> String {
    format!(
        "{HEAD}r8 = 0\nr7 = *(u8 *)(r6 +26)\nturn: r7 += 1\n*(u8 *)(r6 +30) = r7\n*(u64 *)(r10 -8) = r7\nr1 = *(u8 *)(r6 +30)\nr7 ^= r1\n\
         r7 &= 15\n*(u64 *)(r10 -16) = r8\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\nr1 = map[idx:3]\ncall 2\nr8 += 1\n\
         if r8 < 3 goto turn\n{}if r0 == 0 goto out\nr0 = 2\nout: exit\n",
        look_up(0)
    )
}

fn text(object: &Arc<Object>, options: Options) -> String {
    scout(object, options).unwrap_or_default()
}

#[test]
fn look_ups_behind_loops_are_looked_ahead_for() {
    let mut rng = Rng::new(29);
    let programs = [
        ("options", options()),
        ("called", called()),
        ("in turns", in_turns()),
        ("nested", nested()),
        ("counts", counts()),
        ("long", long(20)),
        ("longer", long(3000)),
    ];
    for (name, program) in programs {
        let object = object(&program, maps(MapType::Hash, 64));
        for (unroll, inline_functions) in [(true, true), (false, false)] {
            let text = text(&object, Options { unroll, inline_functions, ..Options::default() });
            assert!(text.contains("in flows, ") && text.contains(ROUND), "{name}:\n{text}");
        }
        for count in [1, 4, 33, 64] {
            let outcome = compare(&object, 0, &packets(&mut rng, count), &fill);
            assert_same(outcome, &format!("{name}, {count} packets"), &program);
        }
    }
}

/// What a loop does besides is left out in each turn, as it is elsewhere.
#[test]
fn what_loops_do_to_packets_and_maps_is_left_out() {
    let mut rng = Rng::new(31);
    let program = effects();
    // The map that is changed has no look-up, and so is a target itself, in the loop. One that does not outgrow the cache is none.
    let small = |program: &str| object(program, maps(MapType::Hash, 64));
    let text = text(&small(&program), Options::default());
    assert!(text.contains("in own, ") && !text.contains(ROUND), "{text}");
    // An update without a note: its map is looked up in, too.
    let both =
        program.replace("if r0 == 0 goto out\nr0 = 2", &format!("if r0 == 0 goto out\nr8 = r0\n{}r0 = 2", look_up(3)));
    let text = self::text(&small(&both), Options::default());
    assert!(text.contains("in flows, ") && text.contains(ROUND) && !text.contains("(r6 +30) = r7"), "{text}");
    for program in [program, both] {
        for count in [3, 64] {
            assert_same(compare(&small(&program), 0, &packets(&mut rng, count), &fill), "effects", &program);
        }
    }
}

/// Helpers that make turns, and iterators, have effects on what the program holds: scouts end in front of them.
#[test]
fn scouts_end_where_helpers_make_the_turns() {
    let by_helper = format!(
        "{HEAD}*(u64 *)(r10 -16) = 0\nr1 = 4\nr2 = subprog[more]\nr3 = r10\nr3 += -16\nr4 = 0\ncall 181\nr1 = *(u64 *)(r10 -16)\n\
         *(u64 *)(r10 -8) = r1\n{}r0 = 2\nout: exit\nmore: r3 = *(u64 *)(r2 +0)\nr3 += r1\n*(u64 *)(r2 +0) = r3\nr0 = 0\nexit\n",
        look_up(0)
    );
    assert_eq!(scout(&object(&by_helper, maps(MapType::Hash, 64)), Options::default()), None);
}

/// Nobody comes behind a loop of one block that is known to turn more often than a scout does.
#[test]
fn scouts_do_not_set_out_on_loops_that_are_too_long() {
    let turns = |turns: u32| {
        let program = format!(
            "{HEAD}r3 = *(u8 *)(r6 +26)\nr4 = 0\nnext: r3 *= 3\nr3 ^= r4\nr4 += 1\nif r4 < {turns} goto next\nr3 &= 15\n\
             *(u64 *)(r10 -8) = r3\n{}r0 = 2\nout: exit\n",
            look_up(0)
        );
        scout(&object(&program, maps(MapType::Hash, 64)), Options { unroll: false, ..Options::default() })
    };
    // As many ways back as there may be, and one more.
    for (turned, round) in [(33, true), (34, false)] {
        assert!(turns(turned).is_some_and(|text| text.contains(ROUND) == round), "{turned} turns");
    }
}

/// Where a scout that goes round would be too long it is what it would be without loops.
#[test]
fn scouts_that_would_be_too_long_end_at_loops() {
    let turns = |body: usize| {
        let program = format!(
            "{HEAD}r8 = *(u8 *)(r6 +28)\nr0 = 0\nnext: if r8 > 7 goto done\n{}r8 += 1\ngoto next\ndone: r0 &= 15\n\
             *(u64 *)(r10 -8) = r0\n{}r0 = 2\nout: exit\n",
            "r0 *= 3\nr0 += r8\n".repeat(body),
            look_up(0)
        );
        text(&object(&program, maps(MapType::Hash, 64)), Options::default())
    };
    for (body, round) in [(10, true), (250, false)] {
        let text = turns(body);
        assert!(text.contains("in flows, ") && text.contains(ROUND) == round, "{text}");
    }
}
