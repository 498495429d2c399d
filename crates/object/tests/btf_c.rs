//! Types as a C header: the compiler puts everything where BTF says that it is, and `bpftool`, where it is there, has the same
//! types.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use xway_object::Btf;
use xway_object::btf::{BtfBuilder, BtfError, IntEncoding, Kind, Type, essential_name};
use xway_testkit::{Needs, clang, has_command};

/// What is hard about it: packing that shows and packing that does not, gaps, bit fields of several types, alignments that BTF
/// does not have, types without names, names that occur twice, enums of every size, declarators of every kind.
const SOURCE: &str = r#"
typedef _Bool bool; typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long u64;
struct packed { u8 a; u32 b; u64 c[2]; } __attribute__((packed));
struct quietly_packed { u32 a, b; } __attribute__((packed));
struct holds_packed { u8 a; struct quietly_packed p; u8 b; struct packed q; u32 tail; };
struct packed_bits { u8 a : 3; u32 b : 30; u16 c : 9; u64 d; } __attribute__((packed));
struct bits { u32 a : 3, : 7, b : 20; u64 c : 40, d : 30; u8 e : 2, f : 7; bool g : 1; int h : 31; u32 : 0; u8 i : 1; };
struct gaps { u8 a; u64 b __attribute__((aligned(32))); u8 c; u16 d __attribute__((aligned(8))); u8 e; }
    __attribute__((aligned(64)));
struct holds_gaps { u32 n; struct gaps g; u8 end; };
struct opaque_timer { u64 : 64; u64 : 64; } __attribute__((aligned(8)));
struct holds_timer { u32 a; struct opaque_timer t; u32 b; };
union wide { u32 a; u8 b[5]; } __attribute__((aligned(32)));
union tight { u64 a; u8 b[9]; } __attribute__((packed));
struct unions { u8 x; union wide w; union tight t; union { u32 v4; u32 v6[4]; }; struct { u8 p, q; } inner[3]; };
enum small { SMALL_A, SMALL_B } __attribute__((packed));
enum signs { MINUS = -7, PLUS = 7 };
enum huge { HUGE = 0x123456789abcdefULL, HUGEST = ~0ULL };
enum deep { DEEPEST = -0x7fffffffffffffffLL - 1, DEEP = -5 };
enum word { WORD = 1 } __attribute__((mode(word)));
struct enums { enum small s; enum signs t; enum huge h; enum deep d; enum word w; enum { INNER_A = 3, INNER_B } i, j; };
struct later;
typedef struct later later_t;
typedef int (*callback_t)(struct later *, const char *, ...);
typedef void function_t(later_t *restrict, u8 (*)[4]);
struct list { struct list *next; struct later *later; later_t **const volatile more; callback_t call; function_t *run;
    int (*(*table[3])(void))[5]; const char *const name; const u8 bytes[7]; struct never *never; u8 flexible[]; };
struct later { struct list first; struct { later_t *back; } node; __int128 number; double ratio; };
struct has_time { long at; };
typedef struct { struct has_time t; u16 port; } anonymous_t;
struct uses { anonymous_t a; anonymous_t *b; bool flag; signed char s; long long l; unsigned __int128 w; };
struct empty {};
struct empties { u32 a; struct empty e; u32 b; u8 none[0]; };
struct packed packed; struct holds_packed holds_packed; struct packed_bits packed_bits; struct bits bits; struct holds_gaps holds_gaps;
struct holds_timer holds_timer; struct unions unions; struct enums enums; struct list list; struct later later; struct uses uses;
struct empties empties; callback_t callback;
"#;

/// A type with what C decides about it: size, and place and width of each member; constants of enums. Names without flavours.
type Layout = (String, u32, Vec<(String, i128, u32)>);

fn layouts(btf: &Btf) -> BTreeSet<Layout> {
    let mut found = BTreeSet::new();
    for (_, ty) in btf.types().filter(|(_, ty)| !ty.name.is_empty()) {
        let mut parts = Vec::new();
        let (word, size) = match ty.kind {
            Kind::Struct(c) | Kind::Union(c) => {
                for m in c.members().filter(|m| !m.name.is_empty()) {
                    parts.push((m.name.to_owned(), i128::from(m.bit_offset), u32::from(m.bit_size)));
                }
                // Of members without a name, those that they hold.
                for m in c.members().filter(|m| m.name.is_empty()) {
                    parts.push((btf.size_of(m.ty).map_or("?".into(), |n| n.to_string()), i128::from(m.bit_offset), 0));
                }
                (if matches!(ty.kind, Kind::Struct(_)) { "struct" } else { "union" }, c.size)
            }
            Kind::Enum(e) | Kind::Enum64(e) => {
                // Signs of numbers are the compiler's choice where none is negative.
                let bits = |v: i128| v & ((1 << (e.size * 8)) - 1);
                parts.extend(e.iter().map(|(name, value)| (essential_name(name).to_owned(), bits(value), 0)));
                if parts.is_empty() {
                    continue;
                }
                ("enum", e.size)
            }
            _ => continue,
        };
        found.insert((format!("{word} {}", essential_name(ty.name)), size, parts));
    }
    found
}

/// Compiles a header; the types that the compiler has made of all that have tags.
#[track_caller]
fn compiled(name: &str, header: &str) -> Btf {
    let mut text = header.to_owned();
    for line in header.lines() {
        let mut words = line.split(' ');
        let (Some(kind @ ("struct" | "union" | "enum")), Some(tag), Some("{")) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        text.push_str(&format!("{kind} {tag} the_{kind}_{tag};\n"));
    }
    let object = clang::compile_text(name, &text, &["-Werror", "-Wno-visibility"]).unwrap_or_else(|e| panic!("{e}"));
    Btf::of_object(&object).unwrap().unwrap()
}

fn bpftool(btf: &str) -> Option<String> {
    if !has_command("bpftool") {
        xway_testkit::skip("object::btf_c", "bpftool");
        return None;
    }
    let out = Command::new("bpftool").args(["btf", "dump", "file", btf, "format", "c"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8(out.stdout).unwrap())
}

#[track_caller]
fn same(what: &str, ours: &BTreeSet<Layout>, theirs: &BTreeSet<Layout>) {
    let missing: Vec<_> = theirs.difference(ours).take(3).collect();
    let wrong: Vec<_> = ours.difference(theirs).take(3).collect();
    assert!(missing.is_empty() && wrong.is_empty(), "{what}: not there {missing:#?}\nthere instead {wrong:#?}");
}

#[test]
fn the_compiler_puts_members_where_they_are() {
    if !Needs::of("object::btf_c::the_compiler_puts_members_where_they_are").clang().met() {
        return;
    }
    let object = clang::compile_text("c_types", SOURCE, &[]).unwrap_or_else(|e| panic!("{e}"));
    let btf = Btf::of_object(&object).unwrap().unwrap();
    let header = btf.c_header(None).unwrap();
    same("ours", &layouts(&compiled("c_ours", &header)), &layouts(&btf));
    // Qualifiers and declarators of every kind.
    for line in [
        "typedef int (*callback_t)(struct later *, const char *, ...);",
        "typedef void function_t(later_t *restrict, u8 (*)[4]);",
        "\tint (*(*table[3])(void))[5];",
        "\tlater_t **const volatile more;",
        "\tconst char *const name;",
        "\tconst u8 bytes[7];",
    ] {
        assert!(header.contains(&format!("{line}\n")), "{line} is not in:\n{header}");
    }
    // Types are compared with bpftool's on the kernel's; this one has some that it gets wrong (`union wide`).
}

/// What C must say of all structs and unions that have a name for themselves: their size, and where each member is that is no bit
/// field. `wanted`: which of them are asked about.
fn asserts(btf: &Btf, wanted: impl Fn(u32) -> bool) -> String {
    let mut names: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (id, ty) in btf.types().filter(|(_, ty)| !ty.name.is_empty()) {
        if matches!(ty.kind, Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Enum64(_) | Kind::Fwd { .. }) {
            names.entry(ty.name).or_default().push(id);
        }
    }
    let mut out = String::new();
    for (name, ids) in names.iter().filter(|(_, ids)| ids.len() == 1 && wanted(ids[0])) {
        let (word, c) = match btf.ty(ids[0]).unwrap().kind {
            Kind::Struct(c) => ("struct", c),
            Kind::Union(c) => ("union", c),
            _ => continue,
        };
        out.push_str(&format!("_Static_assert(sizeof({word} {name}) == {}, \"{name}\");\n", c.size));
        members(btf, ids[0], 0, &mut |member, at| {
            let offset = format!("__builtin_offsetof({word} {name}, {member})");
            out.push_str(&format!("_Static_assert({offset} == {at}, \"{name}.{member}\");\n"));
        });
    }
    out
}

/// Members by name, those of members without a name too, with their offsets in bytes.
fn members(btf: &Btf, id: u32, base: u32, told: &mut dyn FnMut(&str, u32)) {
    let Ok((_, Type { kind: Kind::Struct(c) | Kind::Union(c), .. })) = btf.resolve(id) else { return };
    for m in c.members().filter(|m| m.bit_size == 0) {
        match m.name {
            "" => members(btf, m.ty, base + m.bit_offset / 8, told),
            name => told(name, base + m.bit_offset / 8),
        }
    }
}

#[test]
fn the_running_kernels_types_are_where_they_are_by_our_header_and_by_bpftools() {
    const NAME: &str = "object::btf_c::the_running_kernels_types_are_where_they_are_by_our_header_and_by_bpftools";
    const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
    if !Needs::of(NAME).clang().met() {
        return;
    }
    let Ok(bytes) = std::fs::read(VMLINUX) else { return xway_testkit::skip(NAME, VMLINUX) };
    let btf = Btf::parse(bytes).unwrap();
    let all = asserts(&btf, |_| true);
    assert!(all.lines().count() > 20_000, "{} lines", all.lines().count());
    let compiles = |name: &str, header: &str, asserts: &str| {
        let done = clang::compile_text(name, &format!("{header}\n{asserts}"), &["-Werror", "-Wno-visibility"]);
        done.unwrap_or_else(|e| panic!("{e}"));
    };
    compiles("vmlinux_ours", &btf.c_header(None).unwrap(), &all);
    // Older ones take every enum for one of four bytes (7.1 has `struct bio` wrong by it), and `va_list` is the target's.
    if let Some(theirs) = bpftool(VMLINUX) {
        compiles("vmlinux_theirs", &theirs, &asserts(&btf, |id| !holds_odd(&btf, id, 16)));
    }
}

/// Whether an enum of another size than four bytes lies in it, or a list of arguments.
fn holds_odd(btf: &Btf, id: u32, depth: u32) -> bool {
    let Ok((_, ty)) = btf.resolve(id) else { return false };
    let deeper = |id: u32| depth > 0 && holds_odd(btf, id, depth - 1);
    match ty.kind {
        Kind::Enum(e) | Kind::Enum64(e) => e.size != 4,
        Kind::Struct(_) if ty.name == "__va_list_tag" => true,
        Kind::Array(a) => deeper(a.element),
        Kind::Struct(c) | Kind::Union(c) => c.members().any(|m| deeper(m.ty)),
        _ => false,
    }
}

#[test]
fn only_what_the_roots_need_is_written() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let inner = b.structure("inner", 4, &[("n", int, 0)]);
    let pointed = b.structure("pointed", 4, &[("n", int, 0)]);
    let to = b.ptr(pointed);
    let root = b.structure("root", 16, &[("inner", inner, 0), ("to", to, 64)]);
    b.structure("other", 4, &[("n", int, 0)]);
    b.structure("inner", 8, &[("n", int, 32)]);
    let btf = b.finish();
    let header = btf.c_header(Some(&[int, root])).unwrap();
    let body: Vec<&str> = header.lines().skip(7).take_while(|l| !l.starts_with('#')).collect();
    let want =
        "struct inner {|\tint n;|};||struct pointed;||struct root {|\tstruct inner inner;|\tstruct pointed *to;|};|";
    assert_eq!(body.join("|"), want, "{header}");
    // All of them: the second of a name gets a flavour.
    let all = btf.c_header(None).unwrap();
    assert!(all.contains("struct other {") && all.contains("struct inner___2 {\n\tint: 32;\n\tint n;\n}"), "{all}");
}

#[test]
fn types_that_no_compiler_made_end_in_an_error_or_in_bytes() {
    // Structs that overlap, and members outside.
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    b.structure("overlaps", 8, &[("a", int, 0), ("b", int, 16)]);
    b.structure("outside", 4, &[("a", int, 32)]);
    b.structure("gap", u32::MAX, &[("a", int, 0)]);
    let header = b.finish().c_header(None).unwrap();
    assert_eq!(header.matches("unsigned char opaque[").count(), 3, "{header}");
    assert!(header.len() < 4096);

    // One that holds itself: by way of a type without a name, and directly.
    let mut b = BtfBuilder::new();
    b.structure("itself", 8, &[("a", 1, 0)]);
    assert!(matches!(b.finish().c_header(None), Err(BtfError::Cycle(1))));
    let mut b = BtfBuilder::new();
    b.structure("", 8, &[("a", 1, 0)]);
    b.typedef("t", 1);
    assert!(matches!(b.finish().c_header(None), Err(BtfError::Cycle(_))));
    let mut b = BtfBuilder::new();
    b.typedef("t", 1);
    assert!(matches!(b.finish().c_header(None), Err(BtfError::Cycle(1))));

    // A few that unfold without end: structs without names, and prototypes.
    let mut b = BtfBuilder::new();
    let mut at = b.int("int", 4, IntEncoding::Signed);
    for _ in 0..40 {
        at = b.structure("", 4, &[("a", at, 0), ("b", at, 0)]);
    }
    b.typedef("unfolds", at);
    let unfolded = b.finish().c_header(None);
    assert!(unfolded.is_ok_and(|h| h.contains("opaque[4]")), "they overlap, so their bytes are shown");
    let mut b = BtfBuilder::new();
    let mut at = b.int("int", 4, IntEncoding::Signed);
    for _ in 0..40 {
        at = b.prototype(at, &[("a", at), ("b", at)]);
    }
    b.typedef("unfolds", at);
    assert!(matches!(b.finish().c_header(None), Err(BtfError::TooMuchText(_))));
    // Ids that do not exist, names that are none.
    let mut b = BtfBuilder::new();
    b.structure("x", 8, &[("a", 77, 0)]);
    assert!(matches!(b.finish().c_header(None), Err(BtfError::NoType(77))));
    let mut b = BtfBuilder::new();
    let odd = b.int("int; int evil", 4, IntEncoding::Signed);
    b.structure("x } evil {", 4, &[("a b", odd, 0)]);
    let header = b.finish().c_header(None).unwrap();
    assert!(header.contains("struct x___evil__ {\n\tint a_b;\n}"), "{header}");
}
