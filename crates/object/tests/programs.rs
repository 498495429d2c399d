//! Programs: where they are found, how they are linked, in every instruction set version and age.

use xway_isa::{CallTarget, Imm64, Insn, decode};
use xway_object::{LoadOptions, Object, ObjectError, Program, ProgramKind, Select};
use xway_testkit::{Needs, clang};

fn load(name: &str, text: &str, flags: &[&str]) -> Object {
    let bytes = clang::compile_text(name, text, flags).unwrap_or_else(|e| panic!("{e}"));
    Object::parse(&bytes, &LoadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Every function of a linked program starts where the list says and every reference leads to a start.
fn check_links(p: &Program) {
    let insns = decode(&p.insns).unwrap_or_else(|e| panic!("{}: {e}", p.name));
    let starts: Vec<usize> = p.subprogs.iter().map(|s| s.start).collect();
    assert_eq!(starts[0], 0);
    assert_eq!(p.subprogs.iter().map(|s| s.len).sum::<usize>(), p.insns.len());
    for (at, insn) in insns.iter().enumerate() {
        let off = match insn {
            Some(Insn::Call(CallTarget::Local(off))) => *off,
            Some(Insn::LoadImm64 { imm: Imm64::Func(off), .. }) => *off,
            _ => continue,
        };
        let target = (at as i64 + 1 + i64::from(off)) as usize;
        assert!(starts.contains(&target), "{}: instruction {at} leads to {target}, not in {starts:?}", p.name);
    }
    assert!(p.line_info.iter().all(|l| l.insn < p.insns.len()));
    assert!(p.line_info.is_sorted_by_key(|l| l.insn));
}

const LINKED: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
static __attribute__((noinline)) int leaf(int x) { return x * 3 + bpf_get_smp_processor_id(); }
__attribute__((noinline)) int shared(int x) { return leaf(x) + leaf(x + 1); }
static __attribute__((noinline)) int each(__u32 i, void *ctx) { *(int *)ctx += leaf(i); return 0; }
SEC("xdp") int one(struct xdp_md *ctx) { return shared(ctx->ingress_ifindex) & 3; }
SEC("xdp") int two(struct xdp_md *ctx) { int n = 0; bpf_loop(5, each, &n, 0); return (n + leaf(ctx->rx_queue_index)) & 3; }
SEC("xdp.frags/named") int three(struct xdp_md *ctx) { return XDP_PASS; }
SEC("xdp/devmap") int four(struct xdp_md *ctx) { return XDP_PASS; }
SEC("xdp_cpumap/x") int five(struct xdp_md *ctx) { return XDP_PASS; }
SEC("?xdp") int six(struct xdp_md *ctx) { return XDP_PASS; }
SEC("odd") int seven(struct xdp_md *ctx) { return XDP_PASS; }
SEC("tc") int eight(struct __sk_buff *ctx) { return 0; }
SEC("odd_too") int nine(struct __sk_buff *ctx) { return 0; }
char _license[] SEC("license") = "GPL";
"#;

#[test]
fn subprograms_are_linked_into_each_program_that_needs_them() {
    if !Needs::of("programs::subprograms_are_linked_into_each_program_that_needs_them").clang().met() {
        return;
    }
    for cpu in ["-mcpu=v1", "-mcpu=v2", "-mcpu=v3"] {
        for debug in ["-g", "-g0"] {
            let o = load("linked", LINKED, &[cpu, debug]);
            let names = |p: &str| o.program(p).unwrap().subprogs.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
            assert_eq!(names("one"), ["one", "shared", "leaf"]);
            assert_eq!(names("two"), ["two", "each", "leaf"]);
            assert_eq!(names("three"), ["three"]);
            let global = |p: &str, s: &str| o.program(p).unwrap().subprogs.iter().find(|x| x.name == s).unwrap().global;
            assert!(global("one", "shared") && !global("one", "leaf"));
            o.programs.iter().for_each(check_links);
            assert_eq!(o.programs.iter().all(|p| !p.line_info.is_empty()), debug == "-g");
            let kind = |p: &str| o.program(p).unwrap().kind;
            assert_eq!(kind("three"), ProgramKind::Xdp { frags: true });
            assert_eq!(kind("four"), ProgramKind::XdpDevmap { frags: false });
            assert_eq!(kind("five"), ProgramKind::XdpCpumap { frags: false });
            assert_eq!(kind("eight"), ProgramKind::Other("tc"));
            assert!(!o.program("six").unwrap().autoload);
            // Only types tell what a section without a known name is for.
            let by_type = debug == "-g";
            assert_eq!(kind("seven"), if by_type { ProgramKind::Xdp { frags: false } } else { ProgramKind::Unknown });
            assert_eq!(kind("nine"), if by_type { ProgramKind::Other("tc") } else { ProgramKind::Unknown });
            assert_eq!(o.program("nine").unwrap().as_xdp().is_err(), by_type);
            assert!(o.program("seven").unwrap().as_xdp().unwrap().kind.is_xdp());
        }
    }
}

#[test]
fn lines_stay_with_their_instructions() {
    if !Needs::of("programs::lines_stay_with_their_instructions").clang().met() {
        return;
    }
    let o = load("linked", LINKED, &[]);
    let p = o.program("one").unwrap();
    for s in &p.subprogs {
        let first = p.line_info.iter().find(|l| l.insn == s.start).unwrap_or_else(|| panic!("{}: no line", s.name));
        let text = LINKED.lines().nth(first.line as usize - 1).unwrap();
        assert!(text.contains(&format!("{}(", s.name)), "{}: line {} is {text}", s.name, first.line);
        assert_eq!(&*first.text, text);
        assert!(first.file.contains("linked"), "{}", first.file);
    }
    assert!(p.line_info.iter().any(|l| l.col > 0));
}

#[test]
fn selection_names_what_there_is() {
    if !Needs::of("programs::selection_names_what_there_is").clang().met() {
        return;
    }
    let o = load("linked", LINKED, &[]);
    let text = |s: Select| o.select(&s).map(|p| p.name.clone()).map_err(|e| e.to_string());
    assert_eq!(text(Select::Name("four".into())), Ok("four".into()));
    assert_eq!(text(Select::Section("xdp.frags/named".into())), Ok("three".into()));
    assert_eq!(text(Select::Section("xdp".into())), Err("2 programs fit; name one of: one, two".into()));
    let missing = text(Select::Name("ten".into())).unwrap_err();
    assert!(missing.starts_with("no program `ten`; this object has: one, two, three"), "{missing}");
    assert!(text(Select::Section("nowhere".into())).unwrap_err().contains("xdp, xdp.frags/named"));
    assert!(matches!(o.select(&Select::Only), Err(ObjectError::Ambiguous { count: 4, .. })));
    let only_tc = load("only_tc", "__attribute__((section(\"tc\"), used)) int p(void *c) { return 0; }", &["-g0"]);
    let error = only_tc.select(&Select::Only).unwrap_err().to_string();
    assert_eq!(error, "no XDP program in this object; it has programs for other hooks: p (tc)");
}

/// Objects of compilers before clang 8: symbols without a type, here made by llvm's assembler.
#[test]
fn symbols_without_a_type_are_functions() {
    if !Needs::of("programs::symbols_without_a_type_are_functions").clang().met() {
        return;
    }
    let text = r#"
__asm__(".section socket1, \"ax\", @progbits\n.globl first\nfirst:\n r0 = 1\n if r1 == 0 goto +1\nlocal_label:\n r0 = 2\n exit\n"
        ".globl second\nsecond:\n r0 = 3\n exit\n.section bare, \"ax\", @progbits\n r0 = 0\n exit\n");
"#;
    let o = load("untyped", text, &["-g0"]);
    let found: Vec<(&str, usize)> = o.programs.iter().map(|p| (&*p.name, p.insns.len())).collect();
    assert_eq!(found, [("first", 4), ("second", 2), ("bare", 2)]);
}

#[test]
fn a_program_without_a_section_is_found() {
    if !Needs::of("programs::a_program_without_a_section_is_found").clang().met() {
        return;
    }
    let text = "struct xdp_md; static __attribute__((noinline)) int help(void *c) { return c != 0;
    }\nint lonely(struct xdp_md *c) { return help(c); }\n";
    let o = load("no_section", text, &[]);
    let p = o.select(&Select::Only).unwrap();
    assert_eq!((&*p.name, p.subprogs.len(), p.kind), ("lonely", 2, ProgramKind::Xdp { frags: false }));
}

#[test]
fn one_bad_program_does_not_spoil_the_others() {
    if !Needs::of("programs::one_bad_program_does_not_spoil_the_others").clang().met() {
        return;
    }
    let text = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
int nowhere(int);
extern int gone;
SEC("xdp") int good(struct xdp_md *ctx) { return XDP_PASS; }
SEC("xdp") int bad(struct xdp_md *ctx) { return nowhere(1); }
SEC("xdp") int worse(struct xdp_md *ctx) { return gone; }
"#;
    for debug in ["-g", "-g0"] {
        let o = load("half_bad", text, &[debug]);
        assert_eq!(o.select(&Select::Only).unwrap().name, "good");
        assert_eq!(o.rejected.len(), 2);
        let error = o.program("bad").unwrap_err().to_string();
        assert!(error.contains("`nowhere`") && error.contains("section `xdp`"), "{error}");
        assert!(o.program("worse").unwrap_err().to_string().contains("`gone`"));
    }
}

/// Version 4 needs a newer compiler than version 1 to 3.
#[test]
fn version_four_of_the_instruction_set() {
    let name = "programs::version_four_of_the_instruction_set";
    let newer = (18..40).rev().map(|n| format!("clang-{n}")).find(|c| xway_testkit::has_command(c));
    let mut needs = Needs::of(name);
    if newer.is_none() {
        needs = needs.command("clang-18 or newer");
    }
    if !needs.met() {
        return;
    }
    let dir = clang::out_dir();
    std::fs::create_dir_all(&dir).unwrap();
    let (source, object) =
        (dir.join(format!("v4-{}.c", std::process::id())), dir.join(format!("v4-{}.o", std::process::id())));
    let text = r#"
__attribute__((noinline)) static int sub(int a, int b) { return a / b + a % b; }
__attribute__((section("xdp"), used)) int v4(int *c) {
    signed char *p = (void *)c;
    return sub(p[1], c[1]) + __builtin_bswap32(c[2]);
}
"#;
    std::fs::write(&source, text).unwrap();
    let run = std::process::Command::new(newer.unwrap())
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v4", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let o = Object::parse(&std::fs::read(&object).unwrap(), &LoadOptions::default()).unwrap();
    let _ = (std::fs::remove_file(source), std::fs::remove_file(object));
    let p = o.program("v4").unwrap();
    check_links(p);
    let insns: Vec<Insn> = decode(&p.insns).unwrap().into_iter().flatten().collect();
    assert!(insns.iter().any(|i| matches!(i, Insn::Load { signed: true, .. })), "a sign-extending load");
    assert!(insns.iter().any(|i| matches!(i, Insn::Alu { op: xway_isa::AluOp::SDiv, .. })), "a signed division");
}
