//! Compiles `bpf/tools` into objects that the crate embeds.

#[path = "../bench/compile.rs"]
mod compile;

fn main() {
    compile::embed(&["bpf/tools"], "xway forward");
}
