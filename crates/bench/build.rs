//! Compiles `bpf/bench` and `bpf/forward` into objects that the crate embeds.

mod compile;

fn main() {
    compile::embed(&["bpf/bench", "bpf/forward"], "xway bench");
}
