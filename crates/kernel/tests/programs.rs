//! Programs built by hand, loaded into the running kernel.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use xway_abi::{Errno, MapSpec, MapType};
use xway_isa::{AluOp, CallTarget, Cond, Imm64, Insn, Operand, Reg, Size, Slot, Width, encode};
use xway_kernel::{KernelMap, KernelObject, KernelProg, ProgSpec, TestInput, XdpMd, load_btf};
use xway_object::btf::{Btf, BtfBuilder, FuncLinkage, IntEncoding, Kind};
use xway_object::{MapDef, Object, Program};
use xway_testkit::Needs;

fn slots(insns: &[Insn]) -> Vec<Slot> {
    let mut out = Vec::new();
    insns.iter().for_each(|insn| encode(insn, &mut out));
    out
}

fn set(dst: Reg, value: i32) -> Insn {
    Insn::Mov { width: Width::W64, dst, src: Operand::Imm(value), ext: xway_isa::MovExt::None }
}

fn copy(dst: Reg, src: Reg) -> Insn {
    Insn::Mov { width: Width::W64, dst, src: Operand::Reg(src), ext: xway_isa::MovExt::None }
}

#[test]
fn a_verdict_comes_back() {
    if !Needs::of("kernel::programs::a_verdict_comes_back").root().kernel(6, 1).met() {
        return;
    }
    let insns = slots(&[set(Reg::R0, 2), Insn::Exit]);
    let prog = KernelProg::load(&ProgSpec::xdp("pass", &insns)).unwrap();
    let packet: Vec<u8> = (0..60).collect();
    let out = prog.test_run(&TestInput::packet(&packet)).unwrap();
    assert_eq!((out.ret, out.data), (2, packet));
    assert_eq!(prog.test_run(&TestInput::packet(&[0; 13])), Err(Errno::EINVAL));
    let info = prog.info().unwrap();
    assert_eq!((info.name.as_str(), info.verified_insns), ("pass", 2));
}

#[test]
fn a_refusal_carries_errno_and_log() {
    if !Needs::of("kernel::programs::a_refusal_carries_errno_and_log").root().met() {
        return;
    }
    let unset = slots(&[Insn::Exit]);
    let error = KernelProg::load(&ProgSpec::xdp("bad", &unset)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EACCES));
    assert!(error.log().contains("R0 !read_ok"), "{error}");
    // An index that `fd_array` does not have never reaches the kernel.
    let map = Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::MapIdx(3) };
    let stray = slots(&[map, set(Reg::R0, 2), Insn::Exit]);
    assert_eq!(KernelProg::load(&ProgSpec::xdp("stray", &stray)).unwrap_err().errno(), Some(Errno::EBADF));
}

#[test]
fn maps_are_named_by_index() {
    if !Needs::of("kernel::programs::maps_are_named_by_index").root().met() {
        return;
    }
    // r0 = *lookup(map 1, key 0): the second map's value is the verdict.
    let load = |size, dst, base, off| Insn::Load { size, signed: false, dst, base, off };
    let program = slots(&[
        Insn::Store { size: Size::W, base: Reg::FP, off: -4, src: Operand::Imm(0) },
        Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::MapIdx(1) },
        copy(Reg::R2, Reg::FP),
        Insn::Alu { width: Width::W64, op: AluOp::Add, dst: Reg::R2, src: Operand::Imm(-4) },
        Insn::Call(CallTarget::Helper(1)),
        Insn::Branch { width: Width::W64, cond: Cond::Eq, dst: Reg::R0, src: Operand::Imm(0), off: 1 },
        load(Size::W, Reg::R0, Reg::R0, 0),
        Insn::Exit,
    ]);
    let object = Object {
        programs: vec![Program { name: "look".into(), insns: program, ..Program::default() }],
        maps: ["a", "b"].map(|name| MapDef::new(name, MapSpec::new(MapType::Array, 4, 4, 1))).into(),
        license: Some("GPL".into()),
        ..Object::default()
    };
    let kernel = KernelObject::load(&object).unwrap();
    kernel.map(&object, "b").unwrap().update(&[0; 4], &3u32.to_ne_bytes(), 0).unwrap();
    let run = kernel.program(&object, "look").unwrap().test_run(&TestInput::packet(&[0; 64])).unwrap();
    assert_eq!(run.ret, 3);
}

#[test]
fn a_context_goes_in_and_out() {
    if !Needs::of("kernel::programs::a_context_goes_in_and_out").root().kernel(5, 15).met() {
        return;
    }
    // r0 = ctx->ingress_ifindex: 1 is the loopback interface.
    let insns = slots(&[Insn::Load { size: Size::W, signed: false, dst: Reg::R0, base: Reg::R1, off: 12 }, Insn::Exit]);
    let prog = KernelProg::load(&ProgSpec::xdp("ctx", &insns)).unwrap();
    let ctx = XdpMd { data: 8, data_end: 72, ingress_ifindex: 1, ..XdpMd::default() };
    let out = prog.test_run(&TestInput { ctx: Some(ctx), ..TestInput::packet(&[5; 72]) }).unwrap();
    assert_eq!((out.ret, out.data.len()), (1, 72));
    assert_eq!(out.ctx, Some(ctx));
}

#[test]
fn inner_maps_come_from_the_template() {
    if !Needs::of("kernel::programs::inner_maps_come_from_the_template").root().met() {
        return;
    }
    let inner = MapSpec::new(MapType::Array, 4, 4, 1);
    let outer = MapSpec { inner: Some(Box::new(inner.clone())), ..MapSpec::new(MapType::ArrayOfMaps, 4, 4, 2) };
    let outer = KernelMap::create("outer", &outer).unwrap();
    let inner = KernelMap::create("inner", &inner).unwrap();
    outer.update_fd(&[0; 4], inner.as_fd(), 0).unwrap();
    let id = outer.get(&[0; 4]).unwrap();
    assert_ne!(u32::from_ne_bytes(id.try_into().unwrap()), 0);
    assert!(inner.as_fd().as_raw_fd() > 0);
}

/// Types of every kind that came after Linux 5.2, as an older kernel gets them: this one takes them too, and the program and
/// the map that are described by them.
#[test]
fn types_are_written_for_older_kernels() {
    if !Needs::of("kernel::programs::types_are_written_for_older_kernels").root().clang().met() {
        return;
    }
    const SOURCE: &str = r#"
        #include <linux/bpf.h>
        #include <bpf/bpf_helpers.h>
        enum sign { MINUS = -1, PLUS = 1 };
        struct value { double ratio; enum sign sign; __u64 count; } __attribute__((btf_decl_tag("label")));
        struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __type(key, __u32); __type(value, struct value); }
            values SEC(".maps");
        __attribute__((noinline)) int look(__u32 key)
        {
            struct value *v = bpf_map_lookup_elem(&values, &key);
            return v && v->sign == MINUS ? XDP_DROP : XDP_PASS;
        }
        SEC("xdp") int entry(struct xdp_md *ctx) { return look(ctx->rx_queue_index); }
        char _license[] SEC("license") = "GPL";
    "#;
    let bytes = xway_testkit::clang::compile_text("older", SOURCE, &["-g"]).unwrap();
    let mut object = Object::parse(&bytes, &xway_object::LoadOptions::default()).unwrap();
    let types = object.btf.take().unwrap();
    let older = Btf::parse(types.for_older_kernel()).unwrap();
    let mut changed = [0; 3];
    for (id, ty) in types.types() {
        let there = older.ty(id).unwrap();
        match (ty.kind, there.kind) {
            (Kind::Float(_), kind) => {
                assert!(matches!(kind, Kind::Struct(_)));
                assert_eq!(types.size_of(id).ok(), older.size_of(id).ok());
                changed[0] += 1;
            }
            (Kind::DeclTag { .. }, kind) => {
                assert!(matches!(kind, Kind::Int(_)));
                changed[1] += 1;
            }
            (Kind::Enum(new), Kind::Enum(old)) => {
                assert!(!old.signed && new.size == old.size);
                changed[2] += usize::from(new.signed);
            }
            (Kind::Func(..), Kind::Func(_, linkage)) => assert_eq!(linkage, FuncLinkage::Static),
            (new, old) => assert_eq!(std::mem::discriminant(&new), std::mem::discriminant(&old), "type {id}"),
        }
    }
    assert!(changed[0] > 0 && changed[1] > 0, "{changed:?}");
    object.btf = Some(Arc::new(older));
    let loaded = KernelObject::load(&object).unwrap();
    let map = loaded.map(&object, "values").unwrap();
    let info = map.info().unwrap();
    assert!(info.btf_id != 0 && info.value_type != 0, "the map has its types");
    let program = loaded.program(&object, "entry").unwrap();
    assert_eq!(program.test_run(&TestInput::packet(&[0; 60])).unwrap().ret, 2);

    // What this machine's compiler does not write.
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let wide = b.enumeration64("wide", false, &[("LARGE", 1 << 40), ("SMALL", 1)]);
    let minus = b.enumeration("minus", 1, true, &[("LESS", -1)]);
    let tagged = b.type_tag("user", int);
    let pointer = b.ptr(tagged);
    b.structure("all", 24, &[("wide", wide, 0), ("minus", minus, 64), ("pointer", pointer, 128)]);
    let types = Btf::parse(b.to_bytes()).unwrap();
    let bytes = types.for_older_kernel();
    let older = Btf::parse(bytes.clone()).unwrap();
    for (id, ty) in older.types() {
        let newer = matches!(ty.kind, Kind::Float(_) | Kind::DeclTag { .. } | Kind::TypeTag(_) | Kind::Enum64(_));
        assert!(!newer, "type {id}");
    }
    for id in [wide, minus, pointer] {
        assert_eq!(types.size_of(id).ok(), older.size_of(id).ok());
    }
    load_btf(&bytes).unwrap();
}

/// The same with the one type more that a member of a chain needs.
#[test]
fn a_static_function_is_written_for_older_kernels() {
    if !Needs::of("kernel::programs::a_static_function_is_written_for_older_kernels").root().met() {
        return;
    }
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let context = b.ptr(int);
    let prototype = b.prototype(int, &[("ctx", context)]);
    let main = b.func("main", prototype, FuncLinkage::Global);
    let ratio = b.float("double", 8);
    b.structure("value", 8, &[("ratio", ratio, 0)]);
    let types = Btf::parse(b.to_bytes()).unwrap();
    assert_eq!(types.for_older_kernel_with_static(int), None, "it is no function");
    let newest = types.for_kernel_with_static(main).unwrap();
    let older = types.for_older_kernel_with_static(main).unwrap();
    assert_eq!(newest.1, older.1);
    for (bytes, floats) in [(&newest.0, 1), (&older.0, 0)] {
        let written = Btf::parse(bytes.clone()).unwrap();
        assert_eq!(written.types().filter(|(_, t)| matches!(t.kind, Kind::Float(_))).count(), floats);
        let ty = written.ty(older.1).unwrap();
        assert!(ty.name == "main" && matches!(ty.kind, Kind::Func(p, FuncLinkage::Static) if p == prototype), "{ty:?}");
        load_btf(bytes).unwrap();
    }
}
