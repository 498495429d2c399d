//! Python's binding: its own tests, over objects that are compiled here and a queue that is served here.

mod common;
#[path = "common/queue.rs"]
mod queue;

use std::path::Path;
use std::process::Command;

use common::library;
use queue::Queue;
use xway_testkit::{Needs, clang};

/// Reads where it has not looked.
const UNSAFE: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
    SEC(\"xdp\") int unchecked(struct xdp_md *ctx) { return *(char *)(long)ctx->data; }
    char _license[] SEC(\"license\") = \"GPL\";";

/// Grows at both ends, leaves four bytes of metadata and goes to the interface ingress + queue.
const MOVES: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
    SEC(\"xdp\") int moves(struct xdp_md *ctx) {
        if (bpf_xdp_adjust_head(ctx, -4) || bpf_xdp_adjust_tail(ctx, 8) || bpf_xdp_adjust_meta(ctx, -4)) return XDP_ABORTED;
        char *meta = (void *)(long)ctx->data_meta, *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
        if (meta + 4 > data || data + 4 > end) return XDP_ABORTED;
        __builtin_memcpy(meta, \"mark\", 4);
        __builtin_memcpy(data, \"HEAD\", 4);
        return bpf_redirect(ctx->ingress_ifindex + ctx->rx_queue_index, 0);
    }
    char _license[] SEC(\"license\") = \"GPL\";";

/// Global variables of all three kinds.
const WEIGH: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
    __u64 seen; volatile __u64 limit = 100; const volatile __u32 otherwise = 2;
    SEC(\"xdp\") int weigh(struct xdp_md *ctx)
    {
        __u64 len = ctx->data_end - ctx->data;
        __sync_fetch_and_add(&seen, len);
        return len < limit ? otherwise : XDP_DROP;
    }
    char _license[] SEC(\"license\") = \"GPL\";";

#[test]
fn the_binding_for_python_keeps_its_promises() {
    if !Needs::of("xway-capi::python").clang().command("python3").met() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("xway-python-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for sample in ["blacklist", "swap"] {
        let source = clang::repository().join(format!("bpf/samples/{sample}.bpf.c"));
        std::fs::write(dir.join(format!("{sample}.o")), clang::compile_file(&source, &[]).unwrap()).unwrap();
    }
    for (name, text) in [("unsafe", UNSAFE), ("moves", MOVES), ("weigh", WEIGH)] {
        let bytes = clang::compile_text(name, text, &["-Wno-everything"]).unwrap();
        std::fs::write(dir.join(format!("{name}.o")), bytes).unwrap();
    }

    let socket = dir.join("socket");
    let queue = Queue::new("p", &socket);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let done = Command::new("python3")
        .args(["-B", "-W", "error", "-m", "unittest", "-v", "test_xway"])
        .current_dir(&here)
        .env("XWAY_LIBRARY", library().join("libxway.so"))
        .env("XWAY_OBJECTS", &dir)
        .env("XWAY_SOCKET", &socket)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}{err}");

    // Exactly what Python says it sent has left, and nothing else.
    let echoed: u64 = out.lines().find_map(|l| l.strip_prefix("echoed ")).expect("its sum").parse().unwrap();
    let back: Vec<u8> = Queue::packet().into_iter().rev().collect();
    queue.ends(echoed, &back);
    std::fs::remove_dir_all(&dir).unwrap();
}
