//! Functions that helpers call: what they may leave behind, and whose stack they use.

use super::{both, ours, program, ready};

const FILL: &str = "struct found { __u64 *record; };\n\
    static long fill(__u32 i, struct found *f) {\n\
        if (f->record) return 1;\n\
        f->record = bpf_ringbuf_reserve(&ring, 8, 0);\n\
        return 0;\n}\n";

/// A record that a callback reserves belongs to its caller when the caller has the pointer.
#[test]
fn a_callback_may_leave_a_record_to_its_caller() {
    if !ready("a_callback_may_leave_a_record_to_its_caller") {
        return;
    }
    let ends = "if (f.record) { *f.record = 7; bpf_ringbuf_submit(f.record, 0); }\nreturn XDP_PASS;";
    let turns = |n: &str, end: &str| {
        format!("{FILL}{}", program(&format!("struct found f = {{}}; bpf_loop({n}, fill, &f, 0);\n{end}")))
    };
    for n in ["1", "4", "ctx->rx_queue_index"] {
        both(true, &turns(n, ends));
        both(false, &turns(n, "return XDP_PASS;"));
        both(false, &turns(n, "if (f.record) *f.record = 7; return XDP_PASS;"));
    }
    // The pointer is lost with the function.
    let lost = FILL.replace("f->record = bpf", "__u64 *r = bpf").replace("return 0", "if (r) *r = 1; return 0");
    both(false, &format!("{lost}{}", program("struct found f = {}; bpf_loop(1, fill, &f, 0); return XDP_PASS;")));
    // The next turn overwrites it; of one turn there is none.
    let again = FILL.replace("if (f->record) return 1;", "");
    let call = |n: u32| program(&format!("struct found f = {{}}; bpf_loop({n}, fill, &f, 0);\n{ends}"));
    both(true, &format!("{again}{}", call(1)));
    both(false, &format!("{again}{}", call(2)));
}

#[test]
fn a_callback_may_release_the_record_of_its_caller() {
    if !ready("a_callback_may_release_the_record_of_its_caller") {
        return;
    }
    let drop = "struct found { __u64 *record; };\n\
        static long drop(__u32 i, struct found *f) {\n\
            if (f->record) { bpf_ringbuf_discard(f->record, 0); f->record = 0; }\n\
            return 1;\n}\n";
    let body = |end: &str| {
        let code = format!(
            "struct found f = {{}}; f.record = bpf_ringbuf_reserve(&ring, 8, 0);\nbpf_loop(1, drop, &f, 0);\n{end}"
        );
        format!("{drop}{}", program(&code))
    };
    both(true, &body("if (f.record) bpf_ringbuf_submit(f.record, 0);\nreturn XDP_PASS;"));
    // The loop may make no turn as far as anyone knows.
    both(false, &body("return XDP_PASS;"));
}

/// A timer's function runs later, on a stack of its own; called at once it is a function like any other.
#[test]
fn a_timer_has_a_stack_of_its_own() {
    if !ready("a_timer_has_a_stack_of_its_own") {
        return;
    }
    let fill = "for (int i = 0; i < sizeof(b) / 8; i++) b[i] = i;";
    let later = format!(
        "static __noinline int later(void *map, int *key, struct timed *t) {{ volatile __u64 b[40]; {fill} return 0; }}\n"
    );
    let start = |more: &str| {
        program(&format!(
            "volatile __u64 b[40]; {fill}\n__u32 zero = 0; struct timed *t = bpf_map_lookup_elem(&timers, &zero);\n\
             if (!t) return 1;\nbpf_timer_init(&t->timer, &timers, 1); bpf_timer_set_callback(&t->timer, later); {more}\n\
             return XDP_PASS;"
        ))
    };
    both(true, &format!("{later}{}", start("")));
    both(false, &format!("{later}{}", start("later(0, 0, 0);")));
}

/// The key that a callback is shown is its own: afterwards it is another's, or nobody's. Linux lets a program read on.
#[test]
fn a_key_ends_with_the_callback_that_is_shown_it() {
    if !ready("a_key_ends_with_the_callback_that_is_shown_it") {
        return;
    }
    let keep = |inside: &str, end: &str| {
        format!(
            "struct kept {{ __u32 *key; __u32 sum; }};\n\
             struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u32); }} two SEC(\".maps\");\n\
             static long inner(void *map, __u32 *key, __u32 *value, struct kept *k) {{ k->sum += *key; return 0; }}\n\
             static long outer(void *map, __u32 *key, __u32 *value, struct kept *k) {{ {inside} return 0; }}\n{}",
            program(&format!("struct kept k = {{}}; bpf_for_each_map_elem(&two, outer, &k, 0);\n{end}"))
        )
    };
    both(true, &keep("k->sum += *key;", "return k.sum & 1;"));
    // What it calls back in turn leaves it its key.
    both(true, &keep("bpf_for_each_map_elem(map, inner, k, 0); k->sum += *key;", "return k.sum & 1;"));
    both(true, &keep("k->key = key; k->sum += *k->key;", "return k.sum & 1;"));
    ours(false, &keep("k->key = key;", "return k.key ? *k.key & 1 : 0;"));
    ours(false, &keep("if (k->key) k->sum += *k->key; k->key = key;", "return k.sum & 1;"));
}

/// A global function is called by its types: an argument that its code never looks at has to be there, and is.
#[test]
fn a_global_function_may_have_arguments_that_it_does_not_use() {
    if !ready("a_global_function_may_have_arguments_that_it_does_not_use") {
        return;
    }
    let two_calls = |function: &str, argument: &str| {
        format!(
            "__attribute__((weak)) int f{function}\n{}",
            program(&format!(
                "int v, x = 7; if (ctx->rx_queue_index > 3) v = f({argument}, ctx->ingress_ifindex == 7 ? 3 : 4); else v = f({argument}, 0);\n\
                 return v + (x & 0);"
            ))
        )
    };
    both(true, &two_calls("(struct xdp_md *ctx, int code) { return code ? 2 : 1; }", "ctx"));
    both(true, &two_calls("(int *p, int code) { return code ? 2 : 1; }", "&x"));
}
