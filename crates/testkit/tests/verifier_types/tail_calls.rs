//! Tail calls in functions: how much stack may lie above them.

use super::{both, program, ready};

/// A program with `above` bytes of stack, which calls a function with `between` bytes, which calls one with `own` bytes that
/// tail-calls. Without `between` it calls the last one itself.
fn chain(above: u32, between: Option<u32>, own: u32) -> String {
    let fill = |n: u32| format!("volatile __u64 b[{}]; for (int i = 0; i < {}; i++) b[i] = i;", n / 8, n / 8);
    let leaf = format!(
        "struct {{ __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); }} \
         programs SEC(\".maps\");\n\
         static __noinline int leaf(struct xdp_md *ctx) {{ {} bpf_tail_call(ctx, &programs, 1); return b[0]; }}\n",
        fill(own)
    );
    let middle = between.map_or(String::new(), |n| {
        format!("static __noinline int middle(struct xdp_md *ctx) {{ {} return leaf(ctx) + b[0]; }}\n", fill(n))
    });
    let callee = if between.is_some() { "middle" } else { "leaf" };
    format!("{leaf}{middle}{}", program(&format!("{} return {callee}(ctx) + b[0];", fill(above))))
}

/// The frames above the tail call have less than 256 bytes, each rounded up to 16; its own does not count.
#[test]
fn stack_above_a_tail_call_is_limited() {
    if !ready("stack_above_a_tail_call_is_limited") {
        return;
    }
    for (above, between, own, accepted) in [
        (8, None, 8, true),
        (240, None, 8, true),
        (240, None, 272, true),
        (248, None, 8, false),
        (256, None, 8, false),
        (120, Some(112), 8, true),
        (120, Some(120), 8, false),
        (128, Some(128), 8, false),
        (16, Some(224), 256, true),
        (16, Some(240), 8, false),
    ] {
        both(accepted, &chain(above, between, own));
    }
}
