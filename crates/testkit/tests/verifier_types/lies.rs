//! Types that lie: about functions, lines, maps. Whatever they say, both verifiers give an answer, and no lie makes an unsafe
//! program safe.

use std::panic::{AssertUnwindSafe, catch_unwind};

use xway_kernel::{KernelObject, vmlinux};
use xway_object::{LoadOptions, Object};
use xway_testkit::clang;
use xway_verifier::{Config, MapsView, verify};

use crate::{PRELUDE, ready};

const CODE: &str = r#"
struct pair { int a, b; };
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __type(key, __u32); __type(value, struct timed); } seen SEC(".maps");
__noinline int number(int x) { return x + bpf_get_prandom_u32(); }
__noinline int pointer(struct pair *p) { return p ? p->b : 0; }
__noinline int both(struct xdp_md *c, int x) { return c->rx_queue_index + x; }
SEC("xdp") int prog(struct xdp_md *ctx) {
    struct pair p = { 1, bpf_get_prandom_u32() };
    __u32 key = 0;
    struct timed *v = bpf_map_lookup_elem(&seen, &key);
    if (v) v->n++;
    return number(p.b) + pointer(&p) + both(ctx, 3);
}
"#;

fn object() -> Object {
    let bytes = clang::compile_text("lies", &format!("{PRELUDE}\n{CODE}"), &[]).unwrap_or_else(|e| panic!("{e}"));
    let options = LoadOptions { target_btf: vmlinux(), ..LoadOptions::default() };
    Object::parse(&bytes, &options).unwrap()
}

/// Our verdict, without a panic.
fn ours(object: &Object, what: &str) -> bool {
    let run = || verify(&object.programs[0], &MapsView::from(object), &Config::default()).is_ok();
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| panic!("{what}: a panic"))
}

fn theirs(object: &Object) -> bool {
    KernelObject::load(object).is_ok_and(|k| k.programs[0].is_ok())
}

#[test]
fn functions_may_claim_to_be_any_type() {
    if !ready("functions_may_claim_to_be_any_type") {
        return;
    }
    let honest = object();
    assert!(ours(&honest, "honest") && theirs(&honest));
    let types = honest.btf.as_ref().unwrap().max_id();
    let mut wrong = Vec::new();
    for function in 1..honest.programs[0].subprogs.len() {
        for id in (0..=types).chain([u32::MAX, 1 << 31]) {
            let mut lying = honest.clone();
            lying.programs[0].subprogs[function].func_id = id;
            let what = format!("function {function} is of type {id}");
            // Linux refuses descriptions that do not fit the program before it looks at the program.
            if theirs(&lying) && !ours(&lying, &what) && id != 0 {
                wrong.push(what);
            } else {
                ours(&lying, &what);
            }
        }
    }
    assert!(wrong.is_empty(), "only we refuse: {wrong:#?}");
    // What takes a number and says that it takes memory: its body reads nothing, so both are right to take a number no more.
    let names: Vec<&str> = honest.programs[0].subprogs.iter().map(|s| &*s.name).collect();
    let at = |n: &str| names.iter().position(|x| *x == n).unwrap();
    let mut lying = honest.clone();
    lying.programs[0].subprogs[at("pointer")].func_id = honest.programs[0].subprogs[at("number")].func_id;
    assert!(!ours(&lying, "a pointer called a number") && !theirs(&lying));
}

#[test]
fn lines_and_maps_may_claim_anything() {
    if !ready("lines_and_maps_may_claim_anything") {
        return;
    }
    let honest = object();
    let types = honest.btf.as_ref().unwrap().max_id();
    for id in (0..=types).chain([u32::MAX]) {
        let mut lying = honest.clone();
        for map in &mut lying.maps {
            (map.key_type, map.value_type) = (id, id);
        }
        // What is special in a value was read when the object was; numbers that name no type change nothing.
        assert!(ours(&lying, &format!("maps of type {id}")));
    }
    for (n, insn) in [usize::MAX, 0, 1 << 40, 3].into_iter().enumerate() {
        let mut lying = honest.clone();
        for line in &mut lying.programs[0].line_info {
            (line.insn, line.line, line.col) = (insn, u32::MAX, u32::MAX);
        }
        assert!(ours(&lying, &format!("lines, {n}")));
        // An error must find its place all the same.
        let last = lying.programs[0].insns.len() - 1;
        lying.programs[0].insns[last].opcode = 0xff;
        assert!(!ours(&lying, &format!("wrong lines and a wrong instruction, {n}")));
    }
    let mut lying = honest.clone();
    for sub in &mut lying.programs[0].subprogs {
        (sub.start, sub.len) = (sub.start ^ 1, usize::MAX);
    }
    ours(&lying, "functions elsewhere");
}
