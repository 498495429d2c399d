//! Types: how they are written, measured, walked, and how values are read and written through them.

use xway_object::Btf;
use xway_object::btf::value::Value;
use xway_object::btf::{BtfBuilder, IntEncoding, Kind, essential_name};
use xway_testkit::{Needs, clang};

const SOURCE: &str = r#"
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
enum color { RED = 1, GREEN = 2, NEGATIVE = -5 };
enum big { LARGE = 0x1234567 };
struct mac { u8 addr[6]; };
struct flow {
    struct mac from;
    u16 port;
    union { u32 v4; u32 words[4]; };
    enum color color;
    char name[8];
    unsigned a : 3, b : 7; int c : 5;
    const volatile char *const text;
    int (*callback)(void *, u32);
    u8 (*grid)[2][3];
    _Bool flag;
    double ratio;
    struct { long long inner; } named;
    enum big big;
};
struct flow flow; enum color color; int (*table[4])(struct flow *, ...);
"#;

fn types() -> Btf {
    let bytes = clang::compile_text("types", SOURCE, &[]).unwrap_or_else(|e| panic!("{e}"));
    let object = xway_object::Object::parse(&bytes, &Default::default()).unwrap();
    std::sync::Arc::into_inner(object.btf.unwrap()).unwrap()
}

#[test]
fn declarations_read_as_in_c() {
    if !Needs::of("btf::declarations_read_as_in_c").clang().met() {
        return;
    }
    let btf = types();
    let flow = btf.find_struct("flow").unwrap();
    let Kind::Struct(c) = btf.ty(flow).unwrap().kind else { panic!() };
    let declared: Vec<String> = c.members().map(|m| btf.declaration(m.ty, m.name)).collect();
    for expected in [
        "struct mac from",
        "u16 port",
        "union (anonymous)",
        "char name[8]",
        "const volatile char *const text",
        "int (*callback)(void *, u32)",
        "u8 (*grid)[2][3]",
        "_Bool flag",
        "enum big big",
    ] {
        assert!(declared.iter().any(|d| d == expected), "{expected} in {declared:#?}");
    }
    let table = btf.find("table", |t| matches!(t.kind, Kind::Var(..))).unwrap();
    assert_eq!(btf.type_name(table), "int (*table[4])(struct flow *, ...)");
    assert_eq!(btf.type_name(flow), "struct flow");
    assert!(btf.type_name(999_999).contains('?'));
}

#[test]
fn members_are_found_by_path() {
    if !Needs::of("btf::members_are_found_by_path").clang().met() {
        return;
    }
    let btf = types();
    let flow = btf.find_struct("flow").unwrap();
    let at = |path| btf.member_at(flow, path).map(|m| m.bit_offset);
    assert_eq!(at("port"), Ok(48));
    assert_eq!(at("v4"), Ok(64), "through the anonymous union");
    assert_eq!(at("words[2]"), Ok(64 + 64));
    assert_eq!(at("from.addr[5]"), Ok(40));
    assert_eq!(at("from.addr[6]"), Err("addr[6]"));
    assert_eq!(at("from.nothing"), Err("nothing"));
    assert_eq!(btf.member_at(flow, "b").unwrap().bit_size, 7);
    assert_eq!(btf.size_of(flow), Ok(96));
}

#[test]
fn values_go_there_and_back() {
    if !Needs::of("btf::values_go_there_and_back").clang().met() {
        return;
    }
    let btf = types();
    let flow = btf.find_struct("flow").unwrap();
    let text = |s: &str| Value::Text(s.to_owned());
    let tree = Value::Struct(vec![
        ("from".into(), Value::Struct(vec![("addr".into(), text("02:00:5e:10:00:01"))])),
        ("port".into(), text("0x1f90")),
        ("v4".into(), Value::Int(0x7f000001)),
        ("color".into(), text("NEGATIVE")),
        ("name".into(), text("eth0")),
        ("a".into(), Value::Int(5)),
        ("b".into(), Value::Int(100)),
        ("c".into(), Value::Int(-3)),
        ("flag".into(), Value::Bool(true)),
        ("ratio".into(), Value::Float(0.25)),
        ("named".into(), Value::Struct(vec![("inner".into(), Value::Int(-1))])),
        ("big".into(), text("LARGE")),
    ]);
    let bytes = btf.encode_value(flow, &tree).unwrap();
    assert_eq!(bytes.len(), 96);
    assert_eq!(&bytes[..8], &[2, 0, 0x5e, 0x10, 0, 1, 0x90, 0x1f]);
    let back = btf.decode_value(flow, &bytes).unwrap();
    let int = |name: &str| back.get(name).and_then(Value::as_int);
    assert_eq!(int("port"), Some(8080));
    assert_eq!(int("v4"), Some(0x7f000001));
    assert_eq!(back.get("words"), Some(&Value::List([0x7f000001, 0, 0, 0].map(Value::Int).to_vec())));
    // Compilers before clang 15 do not say that an enum is signed; the name is right either way.
    assert!(
        matches!(back.get("color"), Some(Value::Enum { name, value }) if name == "NEGATIVE" && *value as i32 == -5)
    );
    assert_eq!(back.get("name"), Some(&text("eth0")));
    assert_eq!((int("a"), int("b"), int("c")), (Some(5), Some(100), Some(-3)));
    assert_eq!(back.get("flag"), Some(&Value::Bool(true)));
    assert_eq!(back.get("ratio"), Some(&Value::Float(0.25)));
    assert_eq!(back.get("named").and_then(|n| n.get("inner")), Some(&Value::Int(-1)));
    assert_eq!(int("big"), Some(0x0123_4567));
    // What was read is what is written.
    assert_eq!(btf.encode_value(flow, &back).unwrap(), bytes);
}

#[test]
fn values_that_do_not_fit_name_their_place() {
    if !Needs::of("btf::values_that_do_not_fit_name_their_place").clang().met() {
        return;
    }
    let btf = types();
    let flow = btf.find_struct("flow").unwrap();
    let refused = |name: &str, value: Value| {
        btf.encode_value(flow, &Value::Struct(vec![(name.into(), value)])).unwrap_err().to_string()
    };
    let text = |s: &str| Value::Text(s.to_owned());
    assert_eq!(refused("port", Value::Int(65536)), "port: 65536 does not fit into 16 bits");
    assert_eq!(refused("a", Value::Int(8)), "a: 8 does not fit into 3 bits");
    assert!(refused("wrong", Value::Int(1)).starts_with("wrong: no such member; there are: from, port"));
    assert_eq!(refused("color", text("BLUE")), "color: the enum has no value `BLUE`");
    assert_eq!(
        refused("from", Value::Struct(vec![("addr".into(), text("02:00"))])),
        "from.addr: 2 bytes, the array has 6"
    );
    assert_eq!(refused("words", Value::List(vec![Value::Int(0); 5])), "words: 5 elements, the array has 4");
    assert_eq!(refused("words", Value::List(vec![text("x")])), "words[0]: `x` is not a number");
    assert_eq!(refused("named", Value::Int(3)), "named: an object of members is wanted, not a number");
    assert!(btf.decode_value(flow, &[0; 10]).unwrap_err().to_string().contains("96 bytes"));
}

#[test]
fn enums_of_64_bits_and_tags() {
    let mut b = BtfBuilder::new();
    let big = b.enumeration64("big", true, &[("HUGE", 0x0123_4567_89ab_cdef), ("MINUS", u64::MAX)]);
    let unsigned = b.enumeration64("unsigned", false, &[("ALL", u64::MAX)]);
    let tag = b.decl_tag("note", big, -1);
    let btf = b.finish();
    for (id, bytes, name, value) in [
        (big, 0x0123_4567_89ab_cdefu64, "HUGE", 0x0123_4567_89ab_cdef_i128),
        (big, u64::MAX, "MINUS", -1),
        (unsigned, u64::MAX, "ALL", i128::from(u64::MAX)),
    ] {
        let read = btf.decode_value(id, &bytes.to_le_bytes()).unwrap();
        assert_eq!(read, Value::Enum { name: name.into(), value });
        assert_eq!(btf.encode_value(id, &Value::Text(name.into())).unwrap(), bytes.to_le_bytes());
    }
    assert!(matches!(btf.ty(tag).unwrap().kind, Kind::DeclTag { target, component: -1 } if target == big));
}

#[test]
fn names_have_an_essential_part() {
    for (name, essential) in [
        ("plain", "plain"),
        ("task_struct___old", "task_struct"),
        ("a___b___c", "a___b"),
        ("___leading", "___leading"),
        ("trailing___", "trailing___"),
        ("x____y", "x____y"),
        ("", ""),
        ("ünïcode___flavour", "ünïcode"),
    ] {
        assert_eq!(essential_name(name), essential, "{name}");
    }
}

#[test]
fn names_are_found_with_and_without_flavour() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let plain = b.structure("thing", 4, &[("a", int, 0)]);
    let old = b.structure("thing___old", 4, &[("a", int, 0)]);
    let typedef = b.typedef("thing", plain);
    let btf = b.finish();
    assert_eq!(btf.with_essential_name("thing").collect::<Vec<_>>(), [plain, old, typedef]);
    assert_eq!(btf.find_struct("thing___old"), Some(old));
    assert_eq!(btf.find("thing", |t| matches!(t.kind, Kind::Typedef(_))), Some(typedef));
}

#[test]
fn the_running_kernels_types_are_read() {
    if !Needs::of("btf::the_running_kernels_types_are_read").file("/sys/kernel/btf/vmlinux").met() {
        return;
    }
    let btf = Btf::parse(std::fs::read("/sys/kernel/btf/vmlinux").unwrap()).unwrap();
    assert!(btf.max_id() > 10_000);
    assert_eq!(btf.size_of(btf.find_struct("xdp_md").unwrap()), Ok(24));
    assert_eq!(btf.size_of(btf.find_struct("ethhdr").unwrap()), Ok(14));
    // Every type can be written and, where it has one, measured.
    for (id, ty) in btf.types() {
        assert!(!btf.type_name(id).contains('?'), "type {id}");
        if matches!(ty.kind, Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Int(_)) {
            assert!(btf.size_of(id).is_ok() && btf.align_of(id).is_ok(), "type {id}");
        }
    }
}
