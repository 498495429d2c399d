//! Kernel functions, variables and configuration: there, not there, weak or not.

use std::sync::Arc;

use xway_isa::op;
use xway_object::{Initial, LoadOptions, MapKind, Object};
use xway_testkit::{Needs, clang};

const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
extern int strong_function(struct xdp_md *ctx, __u32 *) __ksym;
extern int weak_function(struct xdp_md *ctx) __ksym __weak;
extern const int kernel_variable __ksym;
extern const int weak_variable __ksym __weak;
extern int CONFIG_NUMBER __kconfig;
extern int CONFIG_WEAK __kconfig __weak;
extern unsigned LINUX_KERNEL_VERSION __kconfig;
SEC("xdp") int functions(struct xdp_md *ctx) {
    __u32 n = 0;
    if (weak_function)
        return weak_function(ctx);
    return strong_function(ctx, &n) + strong_function(ctx, &n);
}
SEC("xdp") int variables(struct xdp_md *ctx) { return (long)&kernel_variable ^ (long)&weak_variable; }
SEC("xdp") int config(struct xdp_md *ctx) { return CONFIG_NUMBER + CONFIG_WEAK + LINUX_KERNEL_VERSION; }
char _license[] SEC("license") = "GPL";
"#;

fn object(opts: &LoadOptions) -> Object {
    let bytes = clang::compile_text("externs", SOURCE, &[]).unwrap_or_else(|e| panic!("{e}"));
    Object::parse(&bytes, opts).unwrap()
}

fn with_functions(names: &'static [&'static str]) -> LoadOptions {
    LoadOptions { kfuncs: Some(Arc::new(move |n| names.contains(&n))), ..LoadOptions::default() }
}

#[test]
fn kernel_functions() {
    if !Needs::of("externs::kernel_functions").clang().met() {
        return;
    }
    let o = object(&with_functions(&["strong_function", "weak_function"]));
    let p = o.program("functions").unwrap();
    assert_eq!(
        p.kfuncs.iter().map(|k| (&*k.name, k.weak)).collect::<Vec<_>>(),
        [("weak_function", true), ("strong_function", false)]
    );
    let calls: Vec<i32> = p.insns.iter().filter(|s| s.opcode == op::CALL && s.src == 2).map(|s| s.imm).collect();
    assert_eq!(calls.iter().filter(|i| **i == 0).count(), 1);
    assert_eq!(calls.iter().filter(|i| **i == 1).count(), 2);
    assert!(p.poisons.is_empty());

    let o = object(&with_functions(&["strong_function"]));
    let p = o.program("functions").unwrap();
    assert_eq!(p.kfuncs.len(), 1);
    assert_eq!(p.poisons.len(), 1);
    assert!(p.poisons[0].reason.contains("weak_function"), "{}", p.poisons[0].reason);
    let poisoned = p.insns[p.poisons[0].insn];
    assert_eq!((poisoned.opcode, poisoned.src, poisoned.imm), (op::CALL, 0, 2_002_000_000));

    let o = object(&with_functions(&[]));
    let error = o.program("functions").unwrap_err().to_string();
    assert!(error.contains("extern `strong_function`") && error.contains("__weak"), "{error}");
    assert!(o.program("config").is_err(), "no configuration was given");
}

#[test]
fn kernel_variables() {
    if !Needs::of("externs::kernel_variables").clang().met() {
        return;
    }
    let o = object(&LoadOptions::default());
    let p = o.program("variables").unwrap();
    assert_eq!(p.ksyms.iter().map(|k| &*k.name).collect::<Vec<_>>(), ["kernel_variable"]);
    let loads: Vec<(u8, i32)> = p.insns.iter().filter(|s| s.is_wide()).map(|s| (s.src, s.imm)).collect();
    assert!(loads.contains(&(3, 0)) && loads.contains(&(0, 0)), "{loads:?}");
}

#[test]
fn configuration() {
    if !Needs::of("externs::configuration").clang().met() {
        return;
    }
    let config = "# a comment\nCONFIG_NUMBER=250\nCONFIG_OTHER=y\n";
    let o =
        object(&LoadOptions { kconfig: Some(config.into()), kernel_version: Some(0x060c01), ..LoadOptions::default() });
    assert!(o.program("config").is_ok());
    let map = o.maps.iter().find(|m| m.kind == MapKind::Kconfig).unwrap();
    assert!(map.frozen);
    let Initial::Data(bytes) = &map.initial else { panic!("{:?}", map.initial) };
    let values = o.btf.as_ref().unwrap().decode_value(map.value_type, bytes).unwrap();
    let get = |name: &str| values.get(name).and_then(|v| v.as_int());
    assert_eq!(
        (get("CONFIG_NUMBER"), get("CONFIG_WEAK"), get("LINUX_KERNEL_VERSION")),
        (Some(250), Some(0), Some(0x060c01))
    );

    let o = object(&LoadOptions { kconfig: Some("CONFIG_NUMBER=\"text\"\n".into()), ..LoadOptions::default() });
    let error = o.program("config").unwrap_err().to_string();
    assert!(error.contains("CONFIG_NUMBER") && error.contains("\"text\""), "{error}");
    let o = object(&LoadOptions { kconfig: Some("".into()), ..LoadOptions::default() });
    assert!(o.program("config").unwrap_err().to_string().contains("does not set it"));
}

#[test]
fn types_for_the_kernel_have_no_externs() {
    if !Needs::of("externs::types_for_the_kernel_have_no_externs").clang().met() {
        return;
    }
    use xway_object::btf::{Btf, FuncLinkage, Kind, VarLinkage};
    let o = object(&LoadOptions { kconfig: Some("CONFIG_NUMBER=1\n".into()), ..LoadOptions::default() });
    let own = o.btf.as_ref().unwrap();
    let upload = Btf::parse(own.for_kernel().into_owned()).unwrap();
    assert_eq!(upload.max_id(), own.max_id() + 2);
    for (id, ty) in upload.types() {
        assert!(!matches!(ty.kind, Kind::Var(_, VarLinkage::Extern) | Kind::Func(_, FuncLinkage::Extern)), "type {id}");
        if let Kind::Datasec { size, vars } = ty.kind {
            let mut end = 0;
            for v in vars.iter() {
                assert!(v.offset >= end && matches!(upload.ty(v.ty).unwrap().kind, Kind::Var(..)), "{}", ty.name);
                end = v.offset + v.size;
            }
            assert!(size >= end && size > 0, "{}: {size} < {end}", ty.name);
        }
    }
}
