//! What each pass of the middle layer does to a program that shows it: Cranelift's form of the burst function, in front of
//! its own mid-end, without the pass and with it.
//!
//! `XWAY_BLESS=1 cargo test -p xway-jit --test golden` writes the files anew. Addresses are left out; the rest is the same in
//! every run.

use std::path::PathBuf;
use std::sync::Arc;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_jit::{Options, compile};
use xway_maps::Map;
use xway_object::{Initial, MapDef, Program};
use xway_verifier::{Config, MapsView};

/// The packet's first bytes in r2, checked; the rest of the program follows.
const PACKET: &str = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 16\nr0 = 1\nif r4 > r3 goto out\n";
const LOOK_UP: &str = "*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\n\
                       r0 = *(u32 *)(r0 +0)\nexit\nnone: r0 = 1\nexit";
const HASH: &str = "r2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\nr0 = 2\nexit\nnone: r0 = 1";
const TAIL: &str = "r2 = map[idx:0]\nr3 = 1\ncall 12\nr0 = 2\nexit";

/// In the first line of a form that a mid-end has been over.
const BEHIND: [&str; 2] = ["behind Cranelift's own passes", "behind value numbering"];

fn is_behind(text: &str) -> bool {
    BEHIND.iter().any(|behind| text.contains(behind))
}

/// Pass, with what of it is shown behind a dot; program; and the type of its only map.
fn cases() -> Vec<(&'static str, String, Option<MapType>)> {
    let packet = |rest: &str| format!("{PACKET}{rest}\nout: exit");
    vec![
        (
            "decided",
            "r0 = *(u32 *)(r1 +12)\nr0 &= 1\nif r0 > 5 goto never\nr0 = 2\nexit\nnever: r0 = 1\nexit".into(),
            None,
        ),
        ("frozen", "r1 = map[idx:0][0]+4\nr0 = *(u16 *)(r1 +0)\nr0 &= 3\nexit".into(), Some(MapType::Array)),
        (
            "detours",
            packet(
                "r5 = *(u16 *)(r2 +12)\nif r5 == 0xa888 goto tag\nif r5 != 0x81 goto last\ntag: r5 = *(u16 *)(r2 +14)\n\
                 last: if r5 != 8 goto out\nr0 = 2",
            ),
            None,
        ),
        (
            "detours.two",
            packet(
                "r5 = *(u16 *)(r2 +12)\nif r5 == 0xa888 goto tag\nif r5 != 0x81 goto again\ntag: r5 = *(u16 *)(r2 +13)\n\
                 again: r4 = r5\nr4 &= 65535\nif r4 == 0xa888 goto second\nif r4 != 0x81 goto last\nsecond: r5 = *(u16 *)(r2 +14)\n\
                 last: r0 = 2\nr5 &= 65535\nif r5 != 8 goto out\nr0 = 3",
            ),
            None,
        ),
        (
            "unroll",
            packet("r0 = 0\nr5 = 0\nagain: r1 = *(u8 *)(r2 +0)\nr0 += r1\nr2 += 1\nr5 += 1\nif r5 < 16 goto again"),
            None,
        ),
        (
            "unroll.words",
            packet("r0 = 0\nr5 = 0\nagain: r1 = *(u8 *)(r2 +0)\nw0 += w1\nr2 += 1\nw5 += 1\nif w5 != 5 goto again"),
            None,
        ),
        (
            "unroll.counted",
            packet(
                "r4 = r2\nr4 += 308\nif r4 > r3 goto out\nr0 = 0\nr5 = 0\nagain: r1 = r2\nr1 += r5\nr1 = *(u32 *)(r1 +0)\n\
                 r0 += r1\nr5 += 4\nif r5 != 308 goto again",
            ),
            None,
        ),
        (
            "unroll.exits",
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr0 = 0\nr5 = 0\nagain: r4 = r2\nr4 += 2\nif r4 > r3 goto out\n\
             r1 = *(u16 *)(r2 +0)\nr0 += r1\nr2 = r4\nr5 += 1\nif r5 < 700 goto again\nout: exit"
                .into(),
            None,
        ),
        (
            "unroll.halves",
            packet(
                "r4 = r2\nr4 += 216\nif r4 > r3 goto out\nr0 = 0\nr5 = 0\nagain: r1 = r2\nr1 += r5\nr1 = *(u16 *)(r1 +0)\n\
                 r0 += r1\nr5 += 2\nif r5 != 216 goto again",
            ),
            None,
        ),
        (
            "inline-functions",
            "r6 = *(u32 *)(r1 +12)\nr1 = 5\ncall more\nr0 += r6\nexit\nmore: r6 = r1\nr0 = r6\nr0 += 1\nexit".into(),
            None,
        ),
        (
            "inline-functions.turns",
            "*(u64 *)(r10 -8) = 0\nr6 = *(u32 *)(r1 +12)\nr1 = r6\nr1 &= 15\nr2 = subprog[more]\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
             r0 = *(u64 *)(r10 -8)\nr0 += r6\nexit\nmore: r3 = *(u64 *)(r2 +0)\nr3 += r1\n*(u64 *)(r2 +0) = r3\nr0 = 0\nexit"
                .into(),
            None,
        ),
        (
            "inline-functions.each",
            "*(u64 *)(r10 -8) = 0\nr1 = map[idx:0]\nr2 = subprog[more]\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\nr0 = *(u64 *)(r10 -8)\nexit\n\
             more: r1 = *(u32 *)(r2 +0)\nr3 = *(u32 *)(r3 +0)\nr1 += r3\n*(u64 *)(r4 +0) = r1\nr0 = 0\nexit"
                .into(),
            Some(MapType::Array),
        ),
        ("inline-tail-targets", TAIL.into(), Some(MapType::ProgArray)),
        (
            "slots",
            "r2 = *(u32 *)(r1 +12)\n*(u32 *)(r10 -8) = r2\n*(u32 *)(r10 -4) = 2\nr0 = *(u64 *)(r10 -8)\nexit".into(),
            None,
        ),
        (
            "zero-stack",
            "r2 = 1\n*(u64 *)(r10 -16) = 1\nlock *(u64 *)(r10 -16) += r2\nr0 = *(u64 *)(r10 -16)\nexit".into(),
            None,
        ),
        (
            "constant-keys",
            LOOK_UP.replace("r10 -4", "r10 -8").replace("r2 += -4", "r2 += -8"),
            Some(MapType::Array),
        ),
        ("inline-lookups", LOOK_UP.into(), Some(MapType::Array)),
        (
            "thread-nulls",
            LOOK_UP.replace("*(u32 *)(r10 -4) = 1", "r3 = *(u32 *)(r1 +12)\n*(u32 *)(r10 -4) = r3"),
            Some(MapType::Array),
        ),
        (
            "thread-nulls.between",
            "r3 = *(u32 *)(r1 +12)\n*(u32 *)(r10 -4) = r3\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nr1 = r0\nr0 = 1\n\
             if r1 == 0 goto none\nr0 = *(u32 *)(r1 +0)\nnone: exit"
                .into(),
            Some(MapType::Array),
        ),
        (
            "thread-nulls.room",
            "r2 = -20\ncall 44\nif r0 != 0 goto full\nr0 = 3\nexit\nfull: r0 = 1\nexit".into(),
            None,
        ),
        (
            "thread-nulls.moved",
            "r2 = -20\ncall 44\nr1 = r0\nr0 = 1\nif r1 != 0 goto full\nr0 = 3\nfull: exit".into(),
            None,
        ),
        ("inline-tail-calls", TAIL.into(), Some(MapType::ProgArray)),
        ("inline-helpers", packet("r1 = 0\nr3 = r2\nr2 = 0\nr4 = 16\nr5 = 0\ncall 28"), None),
        ("inline-helpers.random", "call 7\nr0 &= 1\nexit".into(), None),
        ("inline-helpers.adjust-head", "r2 = 4\ncall 44\nexit".into(), None),
        ("inline-helpers.adjust-meta", "r2 = -8\ncall 54\nexit".into(), None),
        ("inline-helpers.adjust-tail", "r2 = -8\ncall 65\nexit".into(), None),
        ("inline-helpers.adjust-tail-longer", "r2 = 7\ncall 65\nexit".into(), None),
        ("inline-helpers.ticks", "call 118\nexit".into(), None),
        (
            "inline-helpers.load-bytes",
            "r2 = *(u32 *)(r1 +12)\nr3 = r10\nr3 += -8\nr4 = 6\ncall 189\nr0 = *(u16 *)(r10 -4)\nexit".into(),
            None,
        ),
        (
            "inline-helpers.store-bytes",
            "r2 = *(u32 *)(r1 +12)\n*(u64 *)(r10 -8) = 7\nr2 &= 255\nr3 = r10\nr3 += -8\nr4 = 8\ncall 190\nexit".into(),
            None,
        ),
        ("inline-helpers.buff-len", "call 188\nexit".into(), None),
        ("inline-helpers.redirect", "r1 = 3\nr2 = 0\ncall 23\nexit".into(), None),
        (
            "inline-helpers.redirect-map",
            "r2 = *(u32 *)(r1 +16)\nr1 = map[idx:0]\nr3 = 2\ncall 51\nexit".into(),
            Some(MapType::Devmap),
        ),
        (
            "inline-helpers.update",
            "r2 = *(u32 *)(r1 +12)\n*(u32 *)(r10 -4) = r2\n*(u64 *)(r10 -16) = r2\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -16\n\
             r1 = map[idx:0]\nr4 = 0\ncall 2\nexit"
                .into(),
            Some(MapType::Array),
        ),
        (
            "inline-lookups.inner",
            "r6 = *(u32 *)(r1 +16)\n*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\n\
             if r0 == 0 goto none\n*(u32 *)(r10 -8) = r6\nr2 = r10\nr2 += -8\nr1 = r0\ncall 1\n\
             if r0 == 0 goto none\nr0 = *(u32 *)(r0 +0)\nexit\nnone: r0 = 1\nexit"
                .into(),
            Some(MapType::ArrayOfMaps),
        ),
        (
            "inline-lookups.by-key",
            "r6 = *(u32 *)(r1 +16)\n*(u32 *)(r10 -4) = r6\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\n\
             if r0 == 0 goto none\nr0 = 2\nexit\nnone: r0 = 1\nexit"
                .into(),
            Some(MapType::HashOfMaps),
        ),
        (
            "inline-lookups.lru",
            format!("r3 = *(u32 *)(r1 +12)\n*(u32 *)(r10 -4) = r3\n{HASH}\nexit"),
            Some(MapType::LruHash),
        ),
        (
            "inline-lookups.trie",
            "r6 = *(u32 *)(r1 +16)\n*(u32 *)(r10 -8) = 32\n*(u32 *)(r10 -4) = r6\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 1\n\
             if r0 == 0 goto none\nr0 = 2\nexit\nnone: r0 = 1\nexit"
                .into(),
            Some(MapType::LpmTrie),
        ),
        (
            "value-words",
            "*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\nr1 = *(u8 *)(r0 +0)\n\
             r2 = *(u8 *)(r0 +1)\nr3 = *(u8 *)(r0 +2)\nr4 = *(u8 *)(r0 +3)\nr1 ^= r2\nr3 ^= r4\nr0 = r1\nr0 ^= r3\nr0 &= 3\nexit\n\
             none: r0 = 1\nexit"
                .into(),
            Some(MapType::Array),
        ),
        ("typed-calls", "call 8\nexit".into(), None),
        ("keep-registers", "r2 = 4\ncall 44\nexit".into(), None),
        (
            "packet-bounds",
            "r6 = r1\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 34\nr0 = 2\nif r4 > r3 goto out\n\
             r2 = -20\ncall 44\nr1 = r0\nr0 = 1\nif r1 != 0 goto out\nr2 = *(u32 *)(r6 +0)\nr3 = *(u32 *)(r6 +4)\n\
             r4 = r2\nr4 += 34\nif r4 > r3 goto out\n*(u8 *)(r2 +0) = 1\nr0 = 3\nout: exit"
                .into(),
            None,
        ),
        ("alias", packet("*(u8 *)(r2 +0) = 1\nr0 = *(u32 *)(r1 +12)"), None),
        ("known-branches", packet("if r2 == 0 goto out\nr0 = 2"), None),
        (
            "wide-numbers",
            packet(
                "r1 = *(u8 *)(r2 +13)\nw1 <<= 8\nr5 = *(u8 *)(r2 +12)\nw5 |= w1\nw0 = 1\nif w5 != 8 goto out\n\
                 r5 = *(u8 *)(r2 +0)\nw5 &= 15\nif w5 s> 5 goto out\nw0 = 2",
            ),
            None,
        ),
        // Parts of two values are added: of shifts and `bor` Cranelift would make one that takes longer.
        (
            "lanes.two",
            packet(
                "r4 = *(u8 *)(r2 +4)\nr5 = *(u8 *)(r2 +5)\nr6 = *(u8 *)(r2 +8)\nr7 = *(u8 *)(r2 +9)\n*(u8 *)(r2 +12) = r4\n\
                 *(u8 *)(r2 +13) = r5\n*(u8 *)(r2 +14) = r6\n*(u8 *)(r2 +15) = r7",
            ),
            None,
        ),
        // The sum has less than 32 bits, and of its fold no more than 16 are stored.
        (
            "lanes.fold",
            packet(
                "r1 = *(u32 *)(r2 +0)\nr4 = *(u16 *)(r2 +4)\nr5 = r1\nr5 &= 0xffff\nr5 += r4\nr1 >>= 16\nr5 += r1\nr1 = r5\n\
                 r1 >>= 16\nr5 &= 0xffff\nr5 += r1\nr1 = r5\nr1 >>= 16\nr1 += r5\nr1 ^= -1\n*(u16 *)(r2 +10) = r1",
            ),
            None,
        ),
        (
            "lanes",
            packet(
                "r1 = *(u8 *)(r2 +13)\nr1 <<= 8\nr0 = *(u8 *)(r2 +12)\nr0 |= r1\nr1 = *(u8 *)(r2 +0)\n\
                 *(u8 *)(r2 +4) = r1\nr1 = *(u8 *)(r2 +1)\n*(u8 *)(r2 +5) = r1",
            ),
            None,
        ),
        (
            "checks",
            packet(
                "r5 = *(u16 *)(r2 +12)\nif r5 != 8 goto out\nr4 = r2\nr4 += 34\nif r4 > r3 goto out\n\
                    r5 = *(u8 *)(r2 +14)\nr5 &= 15\nif r5 != 5 goto out\nr0 = *(u8 *)(r2 +23)",
            ),
            None,
        ),
        // One way out sets the answer in a block of its own, the other one has it already.
        (
            "checks.through",
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nif r4 > r3 goto none\nr5 = *(u16 *)(r2 +12)\nif r5 == 8 goto on\n\
             none: r0 = 2\nout: exit\non: r0 = 2\nr4 = r2\nr4 += 34\nif r4 > r3 goto out\nr0 = *(u8 *)(r2 +23)\nexit"
                .into(),
            None,
        ),
        // Of what is used once more each byte is read once: no word is loaded.
        (
            "checks.used",
            packet("r5 = *(u16 *)(r2 +12)\nif r5 != 8 goto out\nr5 = *(u8 *)(r2 +14)\nif r5 != 0x45 goto out\nr0 = r5"),
            None,
        ),
        (
            "interleave",
            packet("r0 = *(u64 *)(r2 +0)\nr5 = 0\nagain: r0 *= 7\nr0 ^= r5\nr5 += 1\nif r5 < 24 goto again\nr0 &= 3"),
            None,
        ),
        (
            "in-place",
            "*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\nr1 = *(u32 *)(r0 +0)\n\
             r1 += 1\n*(u32 *)(r0 +0) = r1\nr1 = 7\n*(u16 *)(r0 +2) = r1\nr0 = 2\nexit\nnone: r0 = 1\nexit"
                .into(),
            Some(MapType::Array),
        ),
        ("dead-loads", packet("r1 = *(u8 *)(r2 +3)\nr0 = 2"), None),
        ("stage", packet(&format!("r1 = *(u32 *)(r2 +12)\n*(u32 *)(r10 -4) = r1\n{HASH}")), Some(MapType::Hash)),
        (
            "value-numbering",
            packet(
                "r3 = *(u16 *)(r2 +12)\nr4 = r3\nr4 *= 8\nr4 += 5\nr5 = r3\nr5 *= 8\nr5 += 9\nr0 = 2\nif r3 == 7 goto out\n\
                 r4 ^= r5\nr4 += r3\nr0 = r4\nr0 &= 3",
            ),
            None,
        ),
        ("optimize", "r0 = 3\nr0 *= 4\nr1 = 7\nr0 += r1\nr0 &= 3\nr0 ^= 0\nexit".into(), None),
    ]
}

#[test]
fn passes_do_what_the_files_show() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (pass, text, map) in cases() {
        let (shown, pass) = (pass, pass.split('.').next().unwrap_or(pass));
        let (off, on) = (form(pass, &text, map, false), form(pass, &text, map, true));
        assert_ne!(off, on, "{shown}: the case does not show it");
        let got = format!("{text}\n\n---- without {pass}\n{off}\n---- with {pass}\n{on}");
        let path = dir.join(format!("{shown}.clif"));
        if std::env::var_os("XWAY_BLESS").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&path, &got).unwrap();
        }
        let want = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = want.lines().zip(got.lines()).position(|(a, b)| a != b);
        assert_eq!(
            want,
            got,
            "{} (line {differs:?}): XWAY_BLESS=1 cargo test -p xway-jit --test golden writes it anew",
            path.display()
        );
    }
    // Behind them: each map has a number of its own in the forms.
    stores_to_maps_are_all_made();
}

/// Others look at a map meanwhile: a flag that is set, and set back when the work is done, is set in between, and what is stored once
/// more may have been changed by them.
fn stores_to_maps_are_all_made() {
    let stores = |text: &str| {
        let form = form("optimize", text, Some(MapType::Array), true);
        assert!(is_behind(&form), "{form}");
        form.lines().filter(|l| l.contains(" store") || l.contains(" istore")).count()
    };
    let text = |body: &str| {
        let key = "*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\n";
        format!("{key}{body}r0 = 2\nexit\nnone: r0 = 1\nexit")
    };
    let none = stores(&text(""));
    let flag = "*(u32 *)(r0 +0) = 1\n*(u32 *)(r0 +0) = 0\n*(u32 *)(r0 +0) = 0\n";
    assert_eq!(stores(&text(flag)) - none, 3);
    // What is counted where it lies is stored each time, and nothing in front of it is left out.
    let counted = "*(u32 *)(r0 +0) = 1\nr1 = *(u32 *)(r0 +0)\nr1 += 1\n*(u32 *)(r0 +0) = r1\nr1 = *(u32 *)(r0 +0)\nr1 += 1\n*(u32 *)(r0 +0) = r1\n";
    assert_eq!(stores(&text(counted)) - none, 3);
    // The program's own stack is looked at by nobody.
    assert_eq!(stores(&text(&flag.replace("r0 +0", "r10 -8"))), none);
}

/// Who adds a pass shows what it does.
#[test]
fn every_pass_has_a_file_and_every_file_a_pass() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = std::fs::read_dir(&dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let files: Vec<String> = files.collect();
    let pass = |file: &String| file.split('.').next().unwrap_or_default().to_owned();
    let shown: Vec<String> = files.iter().map(pass).collect();
    let missing: Vec<_> = Options::PASSES.iter().filter(|p| !shown.iter().any(|s| s == *p)).collect();
    assert!(missing.is_empty(), "no file in {} shows {missing:?}", dir.display());
    // The page has a row for each.
    let page = dir.join("../../../../docs/design-notes/jit.md");
    let page = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let untold: Vec<_> = Options::PASSES.iter().filter(|pass| !page.contains(&format!("\n| `{pass}` "))).collect();
    assert!(untold.is_empty(), "docs/design-notes/jit.md has no row for {untold:?}");
    // A file that nobody compares shows nothing.
    let cases = cases();
    // Those that are not about a form are compared where the pass is.
    let elsewhere = ["headers.txt", "align-branches.txt"];
    let compared =
        |file: &&String| elsewhere.contains(&file.as_str()) || cases.iter().any(|c| **file == format!("{}.clif", c.0));
    let left: Vec<_> = files.iter().filter(|f| !compared(f)).collect();
    assert!(left.is_empty(), "no case makes {left:?}");
}

/// The burst function's form, every other pass on.
fn form(pass: &str, text: &str, map: Option<MapType>, on: bool) -> String {
    let of_maps = matches!(map, Some(MapType::ArrayOfMaps | MapType::HashOfMaps));
    let inner = of_maps.then(|| Box::new(MapSpec::new(MapType::Array, 4, 8, 4)));
    let frozen = (pass == "frozen").then_some([7, 0, 0, 0, 0x12, 0x34, 0, 0]);
    let spec = |t| match t {
        MapType::LpmTrie => MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(t, 8, 8, 4) },
        _ if frozen.is_some() => MapSpec { flags: map_flags::RDONLY_PROG, ..MapSpec::new(t, 4, 8, 1) },
        _ => MapSpec { inner: inner.clone(), ..MapSpec::new(t, 4, 4, 4) },
    };
    let specs: Vec<MapSpec> = map.map(spec).into_iter().collect();
    let initial = frozen.map_or(Initial::None, |bytes| Initial::Data(bytes.to_vec()));
    let def =
        |s: &MapSpec| MapDef { initial: initial.clone(), frozen: frozen.is_some(), ..MapDef::new("map", s.clone()) };
    let defs: Vec<MapDef> = specs.iter().map(def).collect();
    let maps: Vec<Arc<Map>> = specs.iter().map(|s| Map::create(s, &xway_maps::Env::with_cpus(1)).unwrap()).collect();
    if let Some(bytes) = frozen {
        maps[0].update(&[0; 4], &bytes, 0).unwrap();
        maps[0].freeze().unwrap();
    }
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let link = |text: &str| {
        let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{pass}: {e}"));
        let image = Program { name: "shown".into(), section: "xdp".into(), insns, ..Program::default() };
        xway_vm::Program::verify(&image, &maps, &view, &Config::default()).unwrap_or_else(|e| panic!("{pass}: {e}"))
    };
    if map == Some(MapType::ProgArray) {
        maps[0].set_program(1, Some(link("r0 = 3\nexit"))).unwrap();
    }
    let program = link(text);
    // One form on every machine: no vectors are in it before the back end.
    let stage_from = (pass == "stage").then_some(0);
    let mut options = Options { keep_text: true, check: true, single: false, stage_from, ..Options::default() };
    assert!(options.set(pass, on));
    options.value_numbering &= pass != "optimize";
    let code = compile(&program, program.proof().unwrap(), &options).unwrap_or_else(|e| panic!("{pass}: {e}"));
    maps.iter().for_each(|m| m.clear_programs());
    // Assembly, which is another one on each machine, stands between the forms.
    let forms: Vec<&str> = code.texts().iter().map(String::as_str).filter(|text| text.starts_with("; ")).collect();
    let shown = match pass {
        "stage" => forms.iter().filter(|text| !is_behind(text)).copied().collect::<Vec<_>>().join("\n"),
        "optimize" | "value-numbering" if on => {
            forms.iter().find(|text| is_behind(text)).expect("the form behind it").to_string()
        }
        _ => forms[0].to_owned(),
    };
    without_addresses(&shown)
}

/// The text with every constant of more than 32 bits left out: addresses, and the secrets of hash tables.
fn without_addresses(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    // A number is a word of its own: the form separates them by blanks, commas and line ends.
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() || c == '_' || c == '-' && word.is_empty() {
            word.push(c);
            continue;
        }
        out.push_str(if is_long(&word) { "ADDRESS" } else { &word });
        out.push(c);
        word.clear();
    }
    out.pop();
    out
}

/// Whether a word is a number of more than 32 bits.
fn is_long(word: &str) -> bool {
    let bare = word.trim_start_matches('-').replace('_', "");
    let digits = |digits: &str, most: usize| digits.trim_start_matches('0').len() > most;
    match bare.strip_prefix("0x") {
        Some(hex) => digits(hex, 8),
        None => bare.chars().all(|c| c.is_ascii_digit()) && digits(&bare, 10),
    }
}
