//! CO-RE against types made for the purpose. That the answers equal libbpf's for a real kernel is shown in `libbpf.rs`.

use std::sync::Arc;

use xway_isa::{CallTarget, Insn, Size, decode};
use xway_object::btf::{BtfBuilder, IntEncoding};
use xway_object::{Btf, LoadOptions, Object};
use xway_testkit::{Needs, clang};

const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
struct thing { unsigned long wide; int moved; int changed_sign; short shrunk; int missing; struct { int deep; }; int list[4];
    } __attribute__((preserve_access_index));
SEC("xdp") int moved(struct xdp_md *ctx) { return ((struct thing *)(void *)ctx)->moved; }
SEC("xdp") int narrowed(struct xdp_md *ctx) { return ((struct thing *)(void *)ctx)->wide; }
SEC("xdp") int missing(struct xdp_md *ctx) { return ((struct thing *)(void *)ctx)->missing; }
SEC("xdp") int resized(struct xdp_md *ctx) { return ((struct thing *)(void *)ctx)->shrunk; }
SEC("xdp") int placed(struct xdp_md *ctx) { return bpf_core_field_offset(((struct thing *)(void *)ctx)->shrunk); }
SEC("xdp") int nested(struct xdp_md *ctx) { return ((struct thing *)(void *)ctx)->deep; }
SEC("xdp") int element(struct xdp_md *ctx) { return ((struct thing *)(void *)ctx)->list[2]; }
SEC("xdp") int exists(struct xdp_md *ctx) { return bpf_core_field_exists(((struct thing *)(void *)ctx)->missing); }
SEC("xdp") int too_long(struct xdp_md *ctx) { return bpf_core_field_offset(((struct thing *)(void *)ctx)->moved); }
"#;

fn target(change: impl FnOnce(&mut BtfBuilder)) -> Arc<Btf> {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let unsigned = b.int("unsigned int", 4, IntEncoding::Unsigned);
    let long = b.int("long", 8, IntEncoding::Signed);
    let deep = b.structure("inner", 8, &[("pad", int, 0), ("deep", int, 32)]);
    let holder = b.union("", 8, &[("named", deep, 0), ("deep", int, 0)]);
    let list = b.array(int, int, 4);
    b.structure(
        "thing",
        100,
        &[
            ("moved", int, 8 * 40),
            ("wide", unsigned, 8 * 12),
            ("shrunk", long, 8 * 24),
            ("", holder, 8 * 48),
            ("list", list, 8 * 56),
        ],
    );
    change(&mut b);
    Arc::new(b.finish())
}

fn object(target: Option<Arc<Btf>>) -> Object {
    let bytes = clang::compile_text("core_relo", SOURCE, &[]).unwrap_or_else(|e| panic!("{e}"));
    Object::parse(&bytes, &LoadOptions { target_btf: target, ..LoadOptions::default() }).unwrap()
}

fn first_load(o: &Object, program: &str) -> (Size, i16) {
    let insns = decode(&o.program(program).unwrap().insns).unwrap();
    insns
        .into_iter()
        .flatten()
        .find_map(|i| match i {
            Insn::Load { size, off, .. } => Some((size, off)),
            _ => None,
        })
        .unwrap_or_else(|| panic!("{program}: no load"))
}

#[test]
fn loads_follow_the_target() {
    if !Needs::of("core_relo::loads_follow_the_target").clang().met() {
        return;
    }
    let o = object(Some(target(|_| {})));
    assert!(o.rejected.is_empty(), "{:?}", o.rejected);
    assert_eq!(first_load(&o, "moved"), (Size::W, 40));
    assert_eq!(first_load(&o, "narrowed"), (Size::W, 12), "an unsigned field may change its size");
    assert_eq!(first_load(&o, "nested"), (Size::W, 48), "found inside an anonymous union");
    assert_eq!(first_load(&o, "element"), (Size::W, 64));
    let placed = decode(&o.program("placed").unwrap().insns).unwrap();
    assert!(o.program("placed").unwrap().poisons.is_empty(), "where a field is can be said whatever its size");
    assert!(format!("{placed:?}").contains("Imm(24)"), "{placed:?}");
    let zero = decode(&o.program("exists").unwrap().insns).unwrap();
    assert!(format!("{zero:?}").contains("Imm(0)"), "{zero:?}");
}

#[test]
fn what_the_target_lacks_is_poisoned() {
    if !Needs::of("core_relo::what_the_target_lacks_is_poisoned").clang().met() {
        return;
    }
    let o = object(Some(target(|_| {})));
    for (name, reason) in
        [("missing", "struct thing.missing: the target has no such thing"), ("resized", "another size")]
    {
        let p = o.program(name).unwrap();
        assert_eq!(p.poisons.len(), 1, "{name}");
        assert!(p.poisons[0].reason.contains(reason), "{}", p.poisons[0].reason);
        let insn = decode(&p.insns).unwrap()[p.poisons[0].insn];
        assert_eq!(insn, Some(Insn::Call(CallTarget::Helper(0xbad2310))));
    }
}

#[test]
fn without_a_target_the_object_answers_itself() {
    if !Needs::of("core_relo::without_a_target_the_object_answers_itself").clang().met() {
        return;
    }
    let o = object(None);
    assert!(o.rejected.is_empty() && o.programs.iter().all(|p| p.poisons.is_empty()));
    assert_eq!(first_load(&o, "moved"), (Size::W, 8));
    let one = decode(&o.program("exists").unwrap().insns).unwrap();
    assert!(format!("{one:?}").contains("Imm(1)"), "{one:?}");
}

#[test]
fn two_types_that_answer_differently_are_ambiguous() {
    if !Needs::of("core_relo::two_types_that_answer_differently_are_ambiguous").clang().met() {
        return;
    }
    let o = object(Some(target(|b| {
        b.structure("thing___second", 8, &[("moved", 1, 32)]);
    })));
    let error = o.program("moved").unwrap_err().to_string();
    assert!(error.contains("ambiguous") && error.contains("struct thing.moved"), "{error}");
    assert!(o.program("element").is_ok(), "only one of them has this member");
}

#[test]
fn an_offset_that_does_not_fit_is_refused() {
    if !Needs::of("core_relo::an_offset_that_does_not_fit_is_refused").clang().met() {
        return;
    }
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    b.structure("thing", 50_000, &[("moved", int, 8 * 40_000)]);
    let o = object(Some(Arc::new(b.finish())));
    let error = o.program("moved").unwrap_err().to_string();
    assert!(error.contains("40000 does not fit"), "{error}");
    assert!(o.program("too_long").is_ok(), "as a number it fits");
}
