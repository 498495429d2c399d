//! Scouts go through functions of the program, those that the program copies and those that it calls.

use std::sync::Arc;

use xway_abi::MapType;
use xway_jit::{Options, compile};
use xway_object::Object;
use xway_testkit::Rng;
use xway_verifier::{Config, MapsView, verify};
use xway_vm::Instance;

use crate::engines::compare;
use crate::world::{Role, World};
use crate::{HEAD, assert_same, fill, look_up, maps, object, packets};

/// Fills the flow's key, by a pointer that it is given, and says whether there is one.
const PARSE: &str = "parse: r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr1 = r6\nr1 += 34\nr0 = 1\nif r1 > r7 goto none\n\
                     *(u64 *)(r10 -8) = r7\nr1 = *(u32 *)(r6 +26)\n*(u32 *)(r2 +0) = r1\nr1 = *(u32 *)(r6 +30)\n\
                     *(u32 *)(r2 +4) = r1\nr0 = 0\nnone: exit\n";

/// What the program does with a flow's value: counts it, takes it out, enters it.
fn found(call: &str) -> String {
    format!(
        "{call}if r0 == 0 goto miss\nr1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\nr0 = 2\nif r1 < 4 goto out\n\
         r2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 3\nr0 = 4\ngoto out\n\
         miss: *(u64 *)(r10 -16) = 1\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\nr4 = 0\nr1 = map[idx:0]\ncall 2\n\
         if r0 != 0 goto full\nr0 = 3\ngoto out\nfull: r0 = 1\nout: exit\n"
    )
}

const FILLS: &str = "r9 = r1\nr2 = r10\nr2 += -8\ncall parse\nif r0 != 0 goto out\n";

/// A function in front of the look-up fills the key.
fn parsed() -> String {
    format!("{FILLS}{}{PARSE}", found(&look_up(0)))
}

/// The look-up stands in a function, which gives the value.
fn finds() -> String {
    let find = "find: r2 = r1\nr1 = map[idx:0]\ncall 1\nexit\n";
    let key = "r1 = *(u64 *)(r6 +26)\n*(u64 *)(r10 -8) = r1\n";
    format!("{HEAD}{key}{}{find}", found("r1 = r10\nr1 += -8\ncall find\n"))
}

/// Both, and the second calls a third one that makes the key from one on its own stack, which is as large as that of the others. What
/// it keeps in r6 to r9 is not what its callers keep there.
fn both() -> String {
    let find = "find: r6 = r1\nr7 = *(u64 *)(r1 +0)\n*(u64 *)(r10 -8) = r7\nr9 = 5\nr1 = r10\nr1 += -8\nr2 = r10\nr2 += -16\n\
                call turn\nr8 = *(u64 *)(r10 -16)\nif r8 != r7 goto other\nr2 = r6\ngoto look\nother: r2 = r10\nr2 += -16\n\
                look: r1 = map[idx:0]\ncall 1\nif r9 != 5 goto wrong\nexit\nwrong: r0 = 0\nexit\n";
    let turn = "turn: r6 = r2\nr7 = *(u64 *)(r1 +0)\n*(u64 *)(r10 -8) = 77\n*(u64 *)(r10 -16) = 78\nr8 = r7\nr8 &= 0xff00\n\
                r9 = r7\nr9 &= -65281\nr9 |= r8\n*(u64 *)(r6 +0) = r9\nexit\n";
    format!("{FILLS}r8 = 7\n{}{PARSE}{find}{turn}", found("r1 = r10\nr1 += -8\ncall find\n"))
}

/// A function's number decides whether, and in which map, is looked up; it asks a map itself, and counts there.
fn decides() -> String {
    let which = "which: r6 = *(u8 *)(r1 +29)\n*(u32 *)(r10 -4) = r6\nr2 = r10\nr2 += -4\nr1 = map[idx:1]\ncall 1\n\
                 if r0 == 0 goto small\nr1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\n\
                 small: r0 = r6\nr0 &= 3\nif r0 != 3 goto done\nr0 = -1\ndone: exit\n";
    format!(
        "{HEAD}r1 = *(u64 *)(r6 +26)\n*(u64 *)(r10 -8) = r1\nr1 = r6\ncall which\nif r0 s< 0 goto out\nif r0 == 0 goto own\n\
         {}if r0 == 0 goto own\nr1 = 1\nlock *(u64 *)(r0 +0) += r1\nr0 = 2\ngoto out\n\
         own: {}if r0 != 0 goto there\n*(u64 *)(r10 -40) = 7\n*(u64 *)(r10 -48) = 9\nr2 = r10\nr2 += -8\nr3 = r10\nr3 += -48\nr4 = 0\n\
         r1 = map[idx:3]\ncall 2\nr0 = 3\ngoto out\nthere: r1 = *(u64 *)(r0 +8)\nr1 += 1\n*(u64 *)(r0 +8) = r1\nr0 = 4\nout: exit\n{which}",
        look_up(0),
        look_up(3)
    )
}

/// The text of the scout, or nothing where there is none.
pub(crate) fn scout(object: &Arc<Object>, options: Options) -> Option<String> {
    let instance = Instance::new(object.clone(), 2).expect("an instance");
    let proof = verify(&object.programs[0], &MapsView::from(&**object), &Config::default());
    let proof = proof.unwrap_or_else(|refusal| panic!("{refusal}"));
    let program = instance.link(&object.programs[0]).expect("links");
    let code = compile(&program, &proof, &Options { stage_from: Some(0), keep_text: true, check: true, ..options });
    code.expect("compiles").texts().iter().find(|t| t.contains("as a scout")).cloned()
}

#[test]
fn look_ups_behind_and_in_functions_are_looked_ahead_for() {
    let mut rng = Rng::new(17);
    for (name, text) in [("parsed", parsed()), ("finds", finds()), ("both", both()), ("decides", decides())] {
        for (kind, room) in [(MapType::Hash, 8), (MapType::LruHash, 64)] {
            let object = object(&text, maps(kind, room));
            for inline_functions in [true, false] {
                let text = scout(&object, Options { inline_functions, ..Options::default() });
                let text = text.unwrap_or_else(|| panic!("{name} has no scout"));
                assert!(text.contains("in flows, "), "{text}");
                assert!(text.contains(" begins"), "{text}");
            }
            for count in [1, 4, 7, 31, 63, 64] {
                let outcome = compare(&object, 0, &packets(&mut rng, count), &fill);
                assert_same(outcome, &format!("{name} {kind:?} {room}, {count} packets"), &text);
            }
        }
    }
}

/// A function that is verified by itself knows of its key as some memory; here it is the stack of whoever calls it, which a scout has
/// too. Where it may be others' memory, a scout stores nothing there and ends.
#[test]
fn functions_that_are_verified_by_themselves_are_gone_through() {
    let world = World::default();
    let head = "r6 = r1\nr7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r7\nr2 += 34\nr0 = 0\nif r2 > r8 goto out\n\
                *(u64 *)(r10 -16) = 0\n*(u64 *)(r10 -8) = 0\n";
    let key = "r2 = *(u8 *)(r7 +29)\n";
    let rest = |at: &str| {
        format!(
            "{at}r1 = map[idx:1]\ncall 1\nif r0 == 0 goto miss\nr1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\nr0 = 2\n\
             exit\nmiss: r0 = 1\nout: exit\n"
        )
    };
    // Fills the key, which it is given with a number; and one that looks up by what it is given.
    let fills = "memory: r0 = 1\nif r1 == 0 goto none\nr2 &= 3\n*(u64 *)(r1 +0) = r2\nr0 = 0\nnone: exit\n";
    let own = rest("r1 = r10\nr1 += -16\ncall memory\nr2 = r10\nr2 += -16\n");
    let filled = format!("{head}{key}r3 = 0\nr4 = 0\nr5 = 0\n{own}{fills}");
    let looks = "memory: r0 = 0\nif r1 == 0 goto none\nr2 &= 3\n*(u64 *)(r10 -8) = r2\n*(u64 *)(r1 +8) = r2\nr2 = r1\nr2 += 8\n\
                 r1 = map[idx:1]\ncall 1\nif r0 == 0 goto none\nr0 = *(u32 *)(r0 +8)\nnone: exit\n";
    let looked =
        format!("{head}{key}r3 = 0\nr4 = 0\nr5 = 0\nr1 = r10\nr1 += -16\ncall memory\nr0 &= 3\nout: exit\n{looks}");
    // The packet's bytes are others' memory.
    let others = format!(
        "{head}{key}r1 = r7\nr3 = 0\nr4 = 0\nr5 = 0\n{}{fills}",
        rest("call memory\nr1 = *(u64 *)(r7 +0)\n*(u64 *)(r10 -16) = r1\nr2 = r10\nr2 += -16\n")
    );
    let put = |instance: &Instance| {
        for k in 0..4u64 {
            instance.maps()[1].update(&k.to_ne_bytes(), &[k as u8; 48], 0).expect("room");
        }
    };
    let mut rng = Rng::new(23);
    // To a null that nobody hands over leads a way without stores.
    let cases = [(filled, "*(u64 *)(r1 +0) = r2", true), (looked, "*(u64 *)(r1 +8) = r2", true)];
    for (text, store, own) in cases.into_iter().chain([(others, "*(u64 *)(r1 +0) = r2", false)]) {
        let program = world.program(&text, &[Role::Memory]);
        let object = Arc::new(Object { programs: vec![program], ..(*world.object).clone() });
        for inline_functions in [true, false] {
            let text = scout(&object, Options { inline_functions, ..Options::default() }).unwrap_or_default();
            assert!(text.contains("in hash, "), "{text}");
            assert_eq!(text.contains(store), own, "{text}");
        }
        for count in [3, 32, 64] {
            assert_same(compare(&object, 0, &packets(&mut rng, count), &put), "a function verified by itself", &text);
        }
    }
}

/// What a function returns the proof knows, and a scout that passed over the call would not have it: it goes through, or it ends.
#[test]
fn scouts_pass_over_no_function() {
    let call = |body: &str| {
        let text = format!(
            "{HEAD}r1 = 3\ncall few\n*(u64 *)(r10 -8) = r0\n{}r0 = 2\nout: exit\nfew: r0 = r1\n{body}r0 &= 7\nexit",
            look_up(0)
        );
        scout(&object(&text, maps(MapType::Hash, 64)), Options::default())
    };
    assert!(call("").is_some_and(|text| text.contains("r0 &= 7")));
    let takes_room = "r1 = r10\nr1 += -8\n*(u64 *)(r10 -8) = 0\nr2 = 8\nr3 = 0\nr4 = r10\nr4 += -16\ncall 105\n";
    assert_eq!(call(takes_room), None, "a helper that writes the program's memory");
    // Longer than there is room for.
    let long = "r0 += 1\n".repeat(2_500);
    assert_eq!(call(&long), None, "a function that is too long");
    let much = "r0 *= 3\nr0 += r1\n".repeat(300);
    assert_eq!(call(&much), None, "a scout that is too long");
}

/// Where a scout through the functions would be too long it is what it would be without them.
#[test]
fn a_scout_that_would_be_too_long_ends_at_functions() {
    let much = "r0 *= 3\nr0 += r1\n".repeat(300);
    let text = format!(
        "{HEAD}r1 = *(u64 *)(r6 +26)\n*(u64 *)(r10 -8) = r1\n{}r1 = *(u32 *)(r6 +26)\ncall few\n*(u64 *)(r10 -8) = r0\n{}r0 = 2\n\
         out: exit\nfew: r0 = r1\n{much}exit",
        look_up(0),
        look_up(3)
    );
    let text = scout(&object(&text, maps(MapType::Hash, 64)), Options::default()).expect("a scout");
    assert!(text.contains("in flows, then the next frame") && !text.contains("in own"), "{text}");
}
