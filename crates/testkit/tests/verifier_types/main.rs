//! What types and kernel functions decide: each program before our verifier and the kernel's, with the verdict that both must give.

mod arena;
mod callbacks;
mod dead_code;
mod kernel_objects;
mod lies;
mod tail_calls;

use xway_kernel::{KernelObject, vmlinux};
use xway_object::{LoadOptions, Object};
use xway_testkit::{Needs, clang};
use xway_verifier::{Config, MapsView, verify};

const PRELUDE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#define TAG(t) __attribute__((btf_decl_tag(t)))
struct bpf_iter_bits { __u64 o[2]; } __attribute__((aligned(8)));
struct bpf_iter_num { __u64 o[1]; } __attribute__((aligned(8)));
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;
extern int bpf_iter_bits_new(struct bpf_iter_bits *it, const __u64 *words, __u32 count) __ksym;
extern int *bpf_iter_bits_next(struct bpf_iter_bits *it) __ksym;
extern void bpf_iter_bits_destroy(struct bpf_iter_bits *it) __ksym;
extern int bpf_dynptr_from_xdp(struct xdp_md *ctx, __u64 flags, struct bpf_dynptr *d) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *d, __u32 at, void *buffer, __u32 size) __ksym;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *d, __u32 at, void *buffer, __u32 size) __ksym;
extern int bpf_dynptr_clone(const struct bpf_dynptr *d, struct bpf_dynptr *clone) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern void bpf_preempt_disable(void) __ksym;
extern void bpf_preempt_enable(void) __ksym;
struct timed { struct bpf_timer timer; __u64 n; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct timed); } timers SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } ring SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_SOCKMAP); __uint(max_entries, 4); __type(key, __u32); __type(value, __u64); } sockets SEC(".maps");
char LICENSE[] SEC("license") = "GPL";
"#;

/// Compiles `code` behind the prelude; both verdicts on its program must be `accepted`.
#[track_caller]
fn both(accepted: bool, code: &str) {
    let text = format!("{PRELUDE}\n{code}\n");
    let bytes = clang::compile_text("verifier_types", &text, &[]).unwrap_or_else(|e| panic!("{e}"));
    let options = LoadOptions { target_btf: vmlinux(), ..LoadOptions::default() };
    let object = Object::parse(&bytes, &options).unwrap_or_else(|e| panic!("{e}\n{code}"));
    let program = &object.programs[0];
    let kernel = KernelObject::load(&object).unwrap_or_else(|e| panic!("{e}\n{code}"));
    let theirs = &kernel.programs[0];
    assert_eq!(theirs.is_ok(), accepted, "the kernel: {:?}\n{code}", theirs.as_ref().err().map(ToString::to_string));
    let ours = verify(program, &MapsView::from(&object), &Config::default());
    assert_eq!(ours.is_ok(), accepted, "ours: {:#?}\n{code}", ours.err().map(|r| r.errors));
}

fn ready(test: &str) -> bool {
    Needs::of(&format!("testkit::verifier_types::{test}")).root().kernel(6, 10).clang().met()
}

fn program(body: &str) -> String {
    format!("SEC(\"xdp\") int prog(struct xdp_md *ctx) {{\n{body}\n}}")
}

/// Linux creates no map with a lock in its values where the type cannot hold one, or where programs may only read; libbpf creates it
/// without types then, and the lock is four bytes like others.
#[test]
fn fields_are_special_where_the_map_can_hold_them() {
    if !ready("fields_are_special_where_the_map_can_hold_them") {
        return;
    }
    let with = |map_type: &str, flags: &str, body: &str| {
        let map = format!(
            "struct locked {{ __u64 n; struct bpf_spin_lock lock; __u32 m; }};\n\
             struct {{ __uint(type, BPF_MAP_TYPE_{map_type}); __uint(max_entries, 4); {flags} __type(key, __u32); \
             __type(value, struct locked); }} values SEC(\".maps\");\n"
        );
        let look = "__u32 key = 1; struct locked *v = bpf_map_lookup_elem(&values, &key); if (!v) return 1;";
        format!("{map}{}", program(&format!("{look}\n{body}\nreturn 2;")))
    };
    let locks = "bpf_spin_lock(&v->lock); v->n++; bpf_spin_unlock(&v->lock);";
    let reads = "return *(volatile __u32 *)&v->lock;";
    for map_type in ["ARRAY", "HASH"] {
        both(true, &with(map_type, "", locks));
        both(false, &with(map_type, "", reads));
    }
    for map_type in ["LRU_HASH", "PERCPU_ARRAY", "PERCPU_HASH", "LRU_PERCPU_HASH"] {
        both(false, &with(map_type, "", locks));
        both(true, &with(map_type, "", reads));
    }
    let read_only = "__uint(map_flags, BPF_F_RDONLY_PROG);";
    both(false, &with("ARRAY", read_only, locks));
    both(true, &with("ARRAY", read_only, reads));
}

#[test]
fn global_functions_are_proved_for_their_types() {
    if !ready("global_functions_are_proved_for_their_types") {
        return;
    }
    let reads = "__noinline int f(int *p) { return *p; }\n";
    let checks = "__noinline int f(int *p) { return p ? *p : 0; }\n";
    let tagged = "__noinline int f(int *p TAG(\"arg:nonnull\")) { return *p; }\n";
    let call = program("int x = bpf_get_prandom_u32(); return f(&x);");
    let null = program("return f(0);");
    both(false, &format!("{reads}{call}"));
    both(true, &format!("{checks}{call}"));
    both(true, &format!("{checks}{null}"));
    both(true, &format!("{tagged}{call}"));
    // Less memory than the type has.
    both(false, &format!("{checks}{}", program("char x = 1; return f((int *)(&x + 1));")));
    // Of memory of no known size nothing can be proved, whatever is given and read; pointers have a size.
    for (kind, accepted) in [("void", false), ("struct only_declared", false), ("int *", true)] {
        let looks = format!(
            "struct only_declared;\n__noinline int f({kind} *p) {{ return p ? bpf_get_prandom_u32() & 1 : 0; }}\n"
        );
        both(accepted, &format!("{looks}{null}"));
    }
    // The result is any number.
    let index = "int table[4];\n__noinline int f(int x) { return x & 3; }\n";
    both(false, &format!("{index}{}", program("return table[f(bpf_get_prandom_u32())];")));
    both(true, &format!("{index}{}", program("return table[f(bpf_get_prandom_u32()) & 3];")));
}

#[test]
fn global_functions_take_the_context_and_packets() {
    if !ready("global_functions_take_the_context_and_packets") {
        return;
    }
    let queue = "__noinline int f(struct xdp_md *c) { return c->rx_queue_index; }\n";
    both(true, &format!("{queue}{}", program("return f(ctx);")));
    let tagged = "__noinline int f(void *c TAG(\"arg:ctx\")) { return ((struct xdp_md *)c)->rx_queue_index; }\n";
    both(true, &format!("{tagged}{}", program("return f(ctx);")));
    let checked = "__noinline int f(int *p) { return p ? *p : 0; }\n";
    let bounds = "int *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;";
    both(false, &format!("{checked}{}", program(&format!("{bounds} return f(data);"))));
    both(true, &format!("{checked}{}", program(&format!("{bounds} if (data + 1 > end) return 1; return f(data);"))));
    // What moves the packet in there moves it here.
    let moves = "__noinline int f(struct xdp_md *c) { return bpf_xdp_adjust_head(c, 0); }\n";
    both(
        false,
        &format!("{moves}{}", program(&format!("{bounds} if (data + 1 > end) return 1; f(ctx); return *data;"))),
    );
}

/// Our verdict alone: Linux does not look at this.
#[track_caller]
fn ours(accepted: bool, code: &str) {
    let bytes =
        clang::compile_text("verifier_types", &format!("{PRELUDE}\n{code}\n"), &[]).unwrap_or_else(|e| panic!("{e}"));
    let object = Object::parse(&bytes, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}\n{code}"));
    let verdict = verify(&object.programs[0], &MapsView::from(&object), &Config::default());
    assert_eq!(verdict.is_ok(), accepted, "{:#?}\n{code}", verdict.err().map(|r| r.errors));
}

#[test]
fn memory_ends_with_what_it_belongs_to() {
    if !Needs::of("testkit::verifier_types::memory_ends_with_what_it_belongs_to").clang().met() {
        return;
    }
    // The slice may be the record.
    let slice = |end: &str| {
        program(&format!(
            "struct bpf_dynptr d; __u8 *p, x = 0; void *record = bpf_ringbuf_reserve(&ring, 16, 0); if (!record) return 1;\n\
             if (!bpf_dynptr_from_xdp(ctx, 0, &d)) {{ p = bpf_dynptr_slice(&d, 0, record, 16); {end} }} else bpf_ringbuf_discard(record, 0);\n\
             return x;"
        ))
    };
    ours(true, &slice("if (p) x = p[0]; bpf_ringbuf_discard(record, 0);"));
    ours(false, &slice("bpf_ringbuf_discard(record, 0); if (p) x = p[0];"));
    // A function that moves the packet is not given a part of it.
    let moves = |then: &str| {
        format!(
            "__noinline int f(struct xdp_md *c, int *p) {{ if (!p) return 1; bpf_xdp_adjust_head(c, 8); return {then}; }}"
        )
    };
    let bounds =
        "int *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end; if (data + 1 > end) return 1;";
    ours(false, &format!("{}\n{}", moves("*p"), program(&format!("{bounds} return f(ctx, data);"))));
    ours(true, &format!("{}\n{}", moves("*p"), program("int x = bpf_get_prandom_u32(); return f(ctx, &x);")));
}

#[test]
fn timers_live_in_map_values() {
    if !ready("timers_live_in_map_values") {
        return;
    }
    let code = |ret: i32, at: &str| {
        format!(
            "static int fire(void *map, __u32 *key, struct timed *v) {{ v->n++; return {ret}; }}\n{}",
            program(&format!(
                "__u32 k = 0; struct timed *v = bpf_map_lookup_elem(&timers, &k); if (!v) return 1;\n\
                 bpf_timer_init({at}, &timers, 1); bpf_timer_set_callback({at}, fire); bpf_timer_start({at}, 1000, 0); return 2;"
            ))
        )
    };
    both(true, &code(0, "&v->timer"));
    both(false, &code(1, "&v->timer"));
    both(false, &code(0, "(struct bpf_timer *)&v->n"));
}

#[test]
fn iterators_are_created_once_and_destroyed() {
    if !ready("iterators_are_created_once_and_destroyed") {
        return;
    }
    for (kind, item, new) in [("num", "num", "&it, 0, 10"), ("bits", "bits", "&it, &words, 1")] {
        let code = |loops: &str, end: &str| {
            program(&format!(
                "struct bpf_iter_{kind} it; __u64 words = 5; int *n, sum = 0; bpf_iter_{item}_new({new}); {loops} {end} return sum;"
            ))
        };
        let turn = format!("while ((n = bpf_iter_{item}_next(&it))) sum += *n;");
        let destroy = format!("bpf_iter_{item}_destroy(&it);");
        both(true, &code(&turn, &destroy));
        both(false, &code(&turn, ""));
        both(false, &code(&turn, &format!("{destroy}{destroy}")));
        both(false, &code("n = 0; sum = *(int *)&it;", &destroy));
        both(false, &code(&format!("n = bpf_iter_{item}_next(&it); sum = *n;"), &destroy));
    }
}

#[test]
fn dynptrs_are_initialised_used_and_released() {
    if !ready("dynptrs_are_initialised_used_and_released") {
        return;
    }
    let slice = |size: u32, after: &str| {
        program(&format!(
            "struct bpf_dynptr d; char buffer[16]; __u8 *p; if (bpf_dynptr_from_xdp(ctx, 0, &d)) return 1;\n\
             p = bpf_dynptr_slice(&d, 14, buffer, {size}); if (!p) return 1; {after} return p[8];"
        ))
    };
    both(true, &slice(16, ""));
    both(false, &slice(17, ""));
    both(false, &slice(8, ""));
    both(false, &slice(16, "bpf_xdp_adjust_head(ctx, 0);"));
    both(false, &slice(16, "p[0] = 1;"));
    let written = "struct bpf_dynptr d; char buffer[16] = {}; __u8 *p; if (bpf_dynptr_from_xdp(ctx, 0, &d)) return 1;\n\
                   p = bpf_dynptr_slice_rdwr(&d, 14, buffer, 16); if (!p) return 1; p[3] = 7; return buffer[3];";
    both(true, &program(written));
    let record = |end: &str| {
        program(&format!(
            "struct bpf_dynptr d; bpf_ringbuf_reserve_dynptr(&ring, 64, 0, &d); int *p = bpf_dynptr_data(&d, 0, 4);\n\
             if (p) *p = 1; {end} return 2;"
        ))
    };
    both(true, &record("bpf_ringbuf_submit_dynptr(&d, 0);"));
    both(false, &record(""));
    both(false, &record("bpf_ringbuf_submit_dynptr(&d, 0); if (p) *p = 2;"));
}

#[test]
fn copies_of_a_dynptr_end_with_the_record_that_they_stand_for() {
    if !ready("copies_of_a_dynptr_end_with_the_record_that_they_stand_for") {
        return;
    }
    let copied = |end: &str| {
        program(&format!(
            "struct bpf_dynptr d, e; __u8 *p; bpf_ringbuf_reserve_dynptr(&ring, 64, 0, &d); bpf_dynptr_clone(&d, &e);\n\
             p = bpf_dynptr_data(&e, 8, 4); if (p) p[3] = 1; {end} return 2;"
        ))
    };
    let submit = |which: &str| format!("bpf_ringbuf_submit_dynptr(&{which}, 0);");
    both(true, &copied(&submit("d")));
    both(true, &copied(&submit("e")));
    both(false, &copied(""));
    both(false, &copied(&(submit("d") + &submit("e"))));
    both(false, &copied(&(submit("e") + &submit("d"))));
    both(false, &copied(&(submit("d") + "if (p) p[3] = 2;")));
    both(false, &copied(&(submit("d") + "bpf_dynptr_write(&e, 0, p, 0, 0);")));
    both(false, &copied(&("*(volatile char *)&e = 0;".to_owned() + &submit("d"))));
}

#[test]
fn regions_are_left_as_they_were_entered() {
    if !ready("regions_are_left_as_they_were_entered") {
        return;
    }
    let (lock, unlock) = ("bpf_rcu_read_lock();", "bpf_rcu_read_unlock();");
    let (off, on) = ("bpf_preempt_disable();", "bpf_preempt_enable();");
    for (accepted, body) in [
        (true, format!("{lock}{unlock}")),
        (false, lock.to_owned()),
        (false, unlock.to_owned()),
        (true, format!("{off}{off}{on}{on}")),
        (false, format!("{off}{off}{on}")),
        (false, on.to_owned()),
        (true, format!("{lock}{off}{unlock}{on}")),
    ] {
        both(accepted, &program(&format!("{body} return 2;")));
    }
}

#[test]
fn sockets_of_a_map_are_references() {
    if !ready("sockets_of_a_map_are_references") {
        return;
    }
    let code = |end: &str| {
        program(&format!(
            "__u32 k = 0; struct bpf_sock *s = bpf_map_lookup_elem(&sockets, &k); if (!s) return 1; __u32 n = s->type; {end} return n;"
        ))
    };
    both(true, &code("bpf_sk_release(s);"));
    both(false, &code(""));
    both(true, &code("bpf_map_update_elem(&sockets, &k, s, 0); bpf_sk_release(s);"));
    both(false, &code("bpf_sk_release(s); n = s->family;"));
    both(false, &code("n = *(__u32 *)((char *)s + 80); bpf_sk_release(s);"));
}
