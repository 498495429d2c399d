//! Objects of the kernel by their BTF types: acquired, released, looked at, passed on.

use crate::{both, program, ready};

const KERNEL: &str = r#"
struct task_struct { int pid; struct task_struct *group_leader; } __attribute__((preserve_access_index));
struct nf_conn { unsigned int mark; unsigned int timeout; } __attribute__((preserve_access_index));
struct cgroup;
struct bpf_verifier_env { int x; };
struct options { int netns_id; int error; __u8 proto; __u8 dir; __u8 reserved[2]; };
extern struct task_struct *bpf_task_from_pid(int pid) __ksym;
extern struct task_struct *bpf_task_acquire(struct task_struct *p) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
extern struct cgroup *bpf_cgroup_from_id(__u64 id) __ksym;
extern void bpf_cgroup_release(struct cgroup *c) __ksym;
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
extern void *bpf_rdonly_cast(const void *p, __u32 type) __ksym;
extern void bpf_throw(__u64 cookie) __ksym;
struct net_device { int ifindex; } __attribute__((preserve_access_index));
struct xdp_rxq_info { struct net_device *dev; } __attribute__((preserve_access_index));
struct xdp_buff { void *data; struct xdp_rxq_info *rxq; unsigned int frame_sz; } __attribute__((preserve_access_index));
struct bpf_map { __u32 max_entries; } __attribute__((preserve_access_index));
struct bpf_array { struct bpf_map map; } __attribute__((preserve_access_index));
"#;

#[track_caller]
fn kernel(accepted: bool, body: &str) {
    both(accepted, &format!("{KERNEL}\n{}", program(body)));
}

#[test]
fn references_of_the_kernel_are_released_once() {
    if !ready("references_of_the_kernel_are_released_once") {
        return;
    }
    let task = |rest: &str| format!("struct task_struct *t = bpf_task_from_pid(1); {rest}");
    kernel(true, &task("if (!t) return 1; bpf_task_release(t); return 2;"));
    kernel(false, &task("if (!t) return 1; return 2;"));
    kernel(false, &task("bpf_task_release(t); return 2;"));
    kernel(false, &task("if (!t) return 1; bpf_task_release(t); bpf_task_release(t); return 2;"));
    kernel(false, &task("if (!t) return 1; bpf_task_release(t); return t->pid;"));
    kernel(true, &task("if (!t) return 1; int pid = t->pid; bpf_task_release(t); return pid & 1;"));
    // Another kind of object than the function takes.
    kernel(false, &task("if (!t) return 1; bpf_cgroup_release((void *)t); return 2;"));
    kernel(true, "struct cgroup *c = bpf_cgroup_from_id(1); if (!c) return 1; bpf_cgroup_release(c); return 2;");
    // What is not a reference cannot be released.
    kernel(false, "bpf_task_release((void *)bpf_get_current_task_btf()); return 2;");
    kernel(false, "struct task_struct t = {}; bpf_task_release(&t); return 2;");
}

#[test]
fn fields_are_worth_what_they_are_read_from() {
    if !ready("fields_are_worth_what_they_are_read_from") {
        return;
    }
    let current = |rest: &str| format!("struct task_struct *t = (void *)bpf_get_current_task_btf(); {rest}");
    kernel(true, &current("return t->pid & 1;"));
    kernel(false, &current("t->pid = 1; return 2;"));
    kernel(false, &current("return *(int *)((char *)t + (1 << 20));"));
    // A field that RCU protects may be acquired; the result may be null.
    let leader = "struct task_struct *l = t->group_leader, *r = bpf_task_acquire(l);";
    kernel(true, &current(&format!("{leader} if (r) bpf_task_release(r); return 2;")));
    kernel(false, &current(&format!("{leader} bpf_task_release(r); return 2;")));
    // Half of a pointer.
    kernel(false, &current("return *(int *)((char *)&t->group_leader + 4);"));
    // An offset that is not a constant.
    kernel(false, &current("return *(int *)((char *)t + (bpf_get_prandom_u32() & 8));"));
}

#[test]
fn casts_give_views_that_can_be_read() {
    if !ready("casts_give_views_that_can_be_read") {
        return;
    }
    let view = "struct xdp_buff *x = bpf_cast_to_kern_ctx(ctx);";
    kernel(true, &format!("{view} return x->frame_sz > 100;"));
    kernel(true, &format!("{view} return x->rxq->dev->ifindex > 100;"));
    kernel(false, &format!("{view} x->frame_sz = 1; return 2;"));
    kernel(false, "struct xdp_buff *x = bpf_cast_to_kern_ctx((void *)(long)ctx->data); return x->frame_sz;");
    let cast =
        "struct task_struct *t = bpf_rdonly_cast((void *)77, __builtin_btf_type_id(*(struct task_struct *)0, 1));";
    kernel(true, &format!("{cast} return t->pid;"));
    kernel(true, &format!("{cast} return t->group_leader->pid;"));
    kernel(
        false,
        &format!("{cast} struct task_struct *r = bpf_task_acquire(t); if (r) bpf_task_release(r); return 2;"),
    );
    kernel(false, &format!("{cast} t->pid = 3; return 2;"));
}

#[test]
fn maps_have_fields_that_can_be_read() {
    if !ready("maps_have_fields_that_can_be_read") {
        return;
    }
    kernel(true, "struct bpf_map *m = (void *)&timers; return m->max_entries & 1;");
    kernel(true, "struct bpf_array *a = (void *)&timers; return a->map.max_entries & 1;");
    kernel(false, "struct bpf_map *m = (void *)&timers; m->max_entries = 5; return 2;");
    kernel(false, "return *(int *)((char *)&timers + (1 << 20));");
}

#[test]
fn arguments_of_global_functions_may_be_objects() {
    if !ready("arguments_of_global_functions_may_be_objects") {
        return;
    }
    let with =
        |accepted, function: &str, body: &str| both(accepted, &format!("{KERNEL}\n{function}\n{}", program(body)));
    let trusted = "__noinline int f(struct task_struct *t TAG(\"arg:trusted\")) { return t->pid; }";
    let nullable =
        "__noinline int f(struct task_struct *t TAG(\"arg:trusted\") TAG(\"arg:nullable\")) { return t ? t->pid : 0; }";
    let careless =
        "__noinline int f(struct task_struct *t TAG(\"arg:trusted\") TAG(\"arg:nullable\")) { return t->pid; }";
    let untrusted = "__noinline int f(struct task_struct *t TAG(\"arg:untrusted\")) { return t->pid; }";
    let bytes = "__noinline int f(void *p TAG(\"arg:untrusted\")) { return *(int *)p; }";
    let writes = "__noinline int f(void *p TAG(\"arg:untrusted\")) { *(int *)p = 1; return 1; }";
    let current = "return f((void *)bpf_get_current_task_btf());";
    with(true, trusted, current);
    with(false, trusted, "return f(0);");
    with(false, trusted, "struct task_struct t = {}; return f(&t);");
    with(true, nullable, "return f(0);");
    with(true, nullable, current);
    with(false, careless, current);
    with(true, untrusted, current);
    with(true, untrusted, "return f((void *)77);");
    with(true, bytes, "return f(ctx);");
    with(false, writes, current);
    // A context of another kind of program is none.
    with(
        false,
        "struct bpf_iter__task { int x; };\n__noinline int f(struct bpf_iter__task *c TAG(\"arg:ctx\")) { return bpf_get_prandom_u32(); }",
        "return f((void *)ctx);",
    );
}

#[test]
fn a_throw_ends_the_program_with_nothing_held() {
    if !ready("a_throw_ends_the_program_with_nothing_held") {
        return;
    }
    kernel(true, "if (ctx->rx_queue_index) bpf_throw(1); return 2;");
    kernel(
        false,
        "struct task_struct *t = bpf_task_from_pid(1); if (!t) return 1; if (ctx->rx_queue_index) bpf_throw(1); bpf_task_release(t); return 2;",
    );
    let inner = "static __noinline int f(struct xdp_md *c) { if (c->rx_queue_index) bpf_throw(3); return 2; }";
    both(true, &format!("{KERNEL}\n{inner}\n{}", program("return f(ctx);")));
    let caller = "struct task_struct *t = bpf_task_from_pid(1); if (!t) return 1; int x = f(ctx); bpf_task_release(t); return x;";
    both(false, &format!("{KERNEL}\n{inner}\n{}", program(caller)));
}

#[test]
fn objects_of_own_types_are_dropped_once() {
    if !ready("objects_of_own_types_are_dropped_once") {
        return;
    }
    let with = |accepted, body: &str| {
        let types = "struct bpf_refcount { __u32 o[1]; } __attribute__((aligned(4)));\n\
                     struct node { long value; struct bpf_refcount count; }; struct plain { long value; };\n\
                     extern void *bpf_obj_new_impl(__u64 type, void *meta) __ksym;\n\
                     extern void bpf_obj_drop_impl(void *p, void *meta) __ksym;\n\
                     extern void *bpf_refcount_acquire_impl(void *p, void *meta) __ksym;\n\
                     #define NEW(t) bpf_obj_new_impl(__builtin_btf_type_id(*(struct t *)0, 0), 0)\n";
        both(accepted, &format!("{types}{}", program(body)));
    };
    let node = "struct node *n = NEW(node); if (!n) return 1;";
    with(true, &format!("{node} n->value = 3; long v = n->value; bpf_obj_drop_impl(n, 0); return v & 1;"));
    with(false, &format!("{node} return 2;"));
    with(false, "struct node *n = NEW(node); n->value = 3; if (n) bpf_obj_drop_impl(n, 0); return 2;");
    with(false, &format!("{node} bpf_obj_drop_impl(n, 0); return n->value;"));
    with(false, &format!("{node} bpf_obj_drop_impl(n, 0); bpf_obj_drop_impl(n, 0); return 2;"));
    with(false, &format!("{node} bpf_obj_drop_impl(&n->count, 0); return 2;"));
    // The count is not the program's to write, and what lies behind the object is not its own.
    with(false, &format!("{node} *(int *)&n->count = 3; bpf_obj_drop_impl(n, 0); return 2;"));
    with(false, &format!("{node} ((long *)n)[2] = 3; bpf_obj_drop_impl(n, 0); return 2;"));
    let shared = format!("{node} struct node *m = bpf_refcount_acquire_impl(n, 0); bpf_obj_drop_impl(n, 0);");
    with(true, &format!("{shared} m->value = 1; bpf_obj_drop_impl(m, 0); return 2;"));
    with(false, &format!("{shared} return 2;"));
    let uncounted =
        "struct plain *n = NEW(plain); if (!n) return 1; struct plain *m = bpf_refcount_acquire_impl(n, 0);";
    with(false, &format!("{uncounted} bpf_obj_drop_impl(n, 0); bpf_obj_drop_impl(m, 0); return 2;"));
}

#[test]
fn a_dynptr_without_a_reference_may_be_overwritten() {
    if !ready("a_dynptr_without_a_reference_may_be_overwritten") {
        return;
    }
    let code = |rest: &str| {
        program(&format!(
            "struct bpf_dynptr d; char buffer[16]; __u8 *p; if (bpf_dynptr_from_xdp(ctx, 0, &d)) return 1;\n\
             p = bpf_dynptr_slice(&d, 14, buffer, 16); if (!p) return 1; {rest}"
        ))
    };
    both(true, &code("*(volatile char *)&d = 0; return 2;"));
    both(true, &code("bpf_dynptr_from_xdp(ctx, 0, &d); return 2;"));
    // What was seen through it is still the packet.
    both(true, &code("*(volatile char *)&d = 0; return p[0];"));
    both(false, &code("*(volatile char *)&d = 0; p = bpf_dynptr_slice(&d, 14, buffer, 16); return 2;"));
    // Local memory that could be written is gone with it.
    let local = |rest: &str| {
        program(&format!(
            "__u32 k = 0; struct timed *v = bpf_map_lookup_elem(&timers, &k); if (!v) return 1; struct bpf_dynptr d; __u8 *p;\n\
             bpf_dynptr_from_mem(&v->n, 8, 0, &d); p = bpf_dynptr_data(&d, 0, 8); if (!p) return 1; {rest}"
        ))
    };
    both(true, &local("return p[0];"));
    both(false, &local("*(volatile char *)&d = 0; return p[0];"));
    both(false, &local("bpf_dynptr_from_mem(&v->n, 8, 0, &d); return p[0];"));
    let record = "struct bpf_dynptr d; bpf_ringbuf_reserve_dynptr(&ring, 64, 0, &d); *(volatile char *)&d = 0; bpf_ringbuf_submit_dynptr(&d, 0); return 2;";
    both(false, &program(record));
}
