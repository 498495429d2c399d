//! Both directions against types built by hand.

use serde_json::{Value, json};
use xway_object::btf::{Btf, BtfBuilder, IntEncoding};

use super::{Shape, decode, encode};

fn check(btf: &Btf, ty: u32, value: Value, bytes: &[u8]) {
    let shape = Shape::new(Some(btf), ty, bytes.len());
    assert_eq!(encode(shape, &value, &[]).as_deref(), Ok(bytes), "{value}");
}

fn both(btf: &Btf, ty: u32, value: Value, bytes: &[u8]) {
    check(btf, ty, value.clone(), bytes);
    assert_eq!(decode(Shape::new(Some(btf), ty, bytes.len()), bytes), value);
}

#[test]
fn bytes_without_a_type_are_literals() {
    let shape = Shape { typed: None, size: 4 };
    assert_eq!(decode(shape, &[1, 2, 3, 255]), json!("hex:01 02 03 ff"));
    for value in [
        json!("hex:01 02 03 ff"),
        json!("010203ff"),
        json!([1, 2, 3, 255]),
        json!(["0x01", "0x2", "0x03", "0xff"]),
        json!(["be16:0x0102", "u16:0xff03"]),
        json!(0xff030201u32),
        json!("ip:1.2.3.255"),
    ] {
        assert_eq!(encode(shape, &value, &[]), Ok(vec![1, 2, 3, 255]), "{value}");
    }
    assert_eq!(encode(shape, &json!(-2), &[]), Ok(vec![0xfe, 0xff, 0xff, 0xff]));
    for (value, words) in [
        (json!("hex:01"), "1 bytes given, 4 wanted"),
        (json!([1, 2]), "2 bytes given"),
        (json!([1, 2, 3, 256]), "256"),
        (json!(1u64 << 32), "does not fit"),
        (json!({"a": 1}), "needs type information"),
        (json!(1.5), "no integer"),
        (json!(null), "needs type information"),
    ] {
        let error = encode(shape, &value, &[]).unwrap_err();
        assert!(error.contains(words), "{value}: {error}");
    }
}

#[test]
fn scalars_enums_and_text() {
    let mut b = BtfBuilder::new();
    let u32_id = b.int("__u32", 4, IntEncoding::Unsigned);
    let s16 = b.int("short", 2, IntEncoding::Signed);
    let flag = b.int("_Bool", 1, IntEncoding::Bool);
    let ch = b.int("char", 1, IntEncoding::Char);
    let name = b.array(ch, u32_id, 4);
    let byte = b.int("__u8", 1, IntEncoding::Unsigned);
    let mac = b.array(byte, u32_id, 6);
    let color = b.enumeration("color", 4, true, &[("RED", -1), ("BLUE", 7)]);
    let alias = b.typedef("be32", u32_id);
    let pointer = b.ptr(u32_id);
    let btf = b.finish();
    both(&btf, u32_id, json!(513), &[1, 2, 0, 0]);
    both(&btf, s16, json!(-2), &[0xfe, 0xff]);
    both(&btf, flag, json!(true), &[1]);
    both(&btf, name, json!("eth"), b"eth\0");
    both(&btf, name, json!("hex:01 02 03 04"), &[1, 2, 3, 4]);
    both(&btf, color, json!("RED"), &[0xff; 4]);
    both(&btf, color, json!(9), &[9, 0, 0, 0]);
    both(&btf, pointer, json!(1), &[1, 0, 0, 0, 0, 0, 0, 0]);
    check(&btf, alias, json!("ip:10.0.0.1"), &[10, 0, 0, 1]);
    check(&btf, alias, json!("0x10"), &[16, 0, 0, 0]);
    for (ty, value, words) in [
        (u32_id, json!(1u64 << 32), "does not fit __u32"),
        (u32_id, json!("ip:::1"), "16 bytes given, 4 wanted"),
        (s16, json!(40000), "does not fit"),
        (color, json!("GREEN"), "there are RED, BLUE"),
        (name, json!("too long"), "8 bytes of text"),
        (u32_id, json!([1]), "wants a number, not [1]"),
        // An address as packets of test files have it.
        (u32_id, json!("192.0.2.1"), "__u32 wants a number or \"ip:192.0.2.1\", not \"192.0.2.1\""),
        (u32_id, json!("2001:db8::1"), "wants a number, not"),
        (mac, json!("02:00:00:00:00:01"), "wants a list or \"mac:02:00:00:00:00:01\", not"),
    ] {
        let shape = Shape::new(Some(&btf), ty, btf.size_of(ty).unwrap() as usize);
        let error = encode(shape, &value, &[]).unwrap_err();
        assert!(error.contains(words), "{value}: {error}");
    }
}

#[test]
fn structs_unions_arrays_and_bit_fields() {
    let mut b = BtfBuilder::new();
    let u8_id = b.int("__u8", 1, IntEncoding::Unsigned);
    let u16_id = b.int("__u16", 2, IntEncoding::Unsigned);
    let u32_id = b.int("__u32", 4, IntEncoding::Unsigned);
    let pair = b.array(u16_id, u32_id, 2);
    let either = b.union("", 4, &[("word", u32_id, 0), ("halves", pair, 0)]);
    let flags = b.bitfields("flags", 1, &[("low", u8_id, 0, 3), ("high", u8_id, 3, 5)]);
    let outer = b.structure("outer", 12, &[("a", u32_id, 0), ("", either, 32), ("f", flags, 64)]);
    let btf = b.finish();
    let bytes = [1, 0, 0, 0, 2, 0, 3, 0, 0x45, 0, 0, 0];
    let value = json!({"a": 1, "halves": [2, 3], "f": {"low": 5, "high": 8}});
    check(&btf, outer, value, &bytes);
    let shown = decode(Shape::new(Some(&btf), outer, 12), &bytes);
    assert_eq!(shown, json!({"a": 1, "word": 0x0003_0002, "halves": [2, 3], "f": {"low": 5, "high": 8}}));
    // Everything that is shown can be given back.
    assert_eq!(encode(Shape::new(Some(&btf), outer, 12), &shown, &[]).unwrap(), bytes);
    // What is left out keeps its bytes.
    let shape = Shape::new(Some(&btf), outer, 12);
    assert_eq!(encode(shape, &json!({"a": 9}), &bytes).unwrap()[..5], [9, 0, 0, 0, 2]);
    for (value, words) in [
        (json!({"b": 1}), "struct outer has no member \"b\"; there are a, f"),
        (json!({"f": {"low": 8}}), "f.low: 8 does not fit 3 bits"),
        (json!({"halves": [1, 2, 3]}), "halves: 3 elements"),
        (json!({"halves": [1, 70000]}), "halves[1]: 70000 does not fit"),
        (json!(7), "wants a table"),
    ] {
        let error = encode(shape, &value, &[]).unwrap_err();
        assert!(error.contains(words), "{value}: {error}");
    }
}

#[test]
fn sections_are_tables_of_variables() {
    let mut b = BtfBuilder::new();
    let u32_id = b.int("int", 4, IntEncoding::Signed);
    let limit = b.var("limit", u32_id, xway_object::btf::VarLinkage::Global);
    let other = b.var("other", u32_id, xway_object::btf::VarLinkage::Global);
    let section = b.datasec(".data", 8, &[(limit, 0, 4), (other, 4, 4)]);
    let btf = b.finish();
    both(&btf, section, json!({"limit": 3, "other": -1}), &[3, 0, 0, 0, 255, 255, 255, 255]);
    let shape = Shape::new(Some(&btf), section, 8);
    assert_eq!(encode(shape, &json!({"other": 2}), &[1; 8]).unwrap(), [1, 1, 1, 1, 2, 0, 0, 0]);
    assert!(encode(shape, &json!({"none": 2}), &[]).unwrap_err().contains("there are limit, other"));
}

#[test]
fn types_that_lie_do_no_harm() {
    let mut b = BtfBuilder::new();
    let u32_id = b.int("int", 4, IntEncoding::Unsigned);
    let itself = b.typedef("loop", 3);
    let back = b.typedef("back", itself);
    let outside = b.structure("outside", 4, &[("far", u32_id, 4096)]);
    let huge = b.array(u32_id, u32_id, u32::MAX);
    let btf = b.finish();
    for ty in [itself, back, outside, huge, 999] {
        let shape = Shape { typed: Some((&btf, ty)), size: 4 };
        let _ = decode(shape, &[1, 2, 3, 4]);
        let _ = encode(shape, &json!({"far": 1}), &[]);
        let _ = encode(shape, &json!([1, 2, 3]), &[]);
    }
    assert!(Shape::new(Some(&btf), huge, 4).typed.is_none());
}
