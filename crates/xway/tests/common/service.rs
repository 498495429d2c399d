//! `xway up` for tests, and a program to run in it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use xway_control::Service;
use xway_testkit::Namespace;

use super::Dir;

/// `xway up`, until it is dropped.
pub struct Up {
    pub child: Child,
    pub socket: String,
}

impl Up {
    /// Starts it, in a namespace if one is given, and waits until it listens.
    pub fn new(dir: &Dir, config: Option<&str>, inside: Option<&Namespace>) -> Up {
        let mut up = Up::starting(dir, config, inside);
        let mut line = String::new();
        BufReader::new(up.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening at {}\n", up.socket));
        up
    }

    /// The same without waiting.
    pub fn starting(dir: &Dir, config: Option<&str>, inside: Option<&Namespace>) -> Up {
        let (socket, state) = (dir.arg("control.sock"), dir.arg("state"));
        let mut command = match inside {
            Some(space) => space.command(env!("CARGO_BIN_EXE_xway")),
            None => Command::new(env!("CARGO_BIN_EXE_xway")),
        };
        command.args(["up", "--socket", &socket, "--state", &state]).args(config.iter().flat_map(|c| ["-c", *c]));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        Up { child, socket }
    }

    pub fn connect(&self) -> Service {
        Service::connect(Path::new(&self.socket)).unwrap()
    }

    /// As the machine would: without a word.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts what it sees by kind, and drops datagrams to port 9.
pub const KINDS: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u64);
    __uint(pinning, LIBBPF_PIN_BY_NAME); } kinds SEC(".maps");
static __attribute__((always_inline)) int count(__u32 kind, int verdict)
{
    __u64 *n = bpf_map_lookup_elem(&kinds, &kind);
    if (n)
        __sync_fetch_and_add(n, 1);
    return verdict;
}
SEC("xdp") int sort(struct xdp_md *ctx)
{
    unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (p + 48 > end || p[12] != 8 || p[13] != 0 || (p[14] & 15) != 5)
        return p + 42 <= end && p[12] == 8 && p[13] == 0 && p[23] == 17 && p[37] == 9 ? count(1, XDP_DROP) : XDP_PASS;
    if (p[23] == 1 && p[34] == 8)
        return count(0, XDP_PASS);
    if (p[23] == 17 && p[36] == 0 && p[37] == 9)
        return count(1, XDP_DROP);
    if (p[23] == 6 && p[37] == 81 && p[47] == 2)
        return count(2, XDP_PASS);
    return XDP_PASS;
}
char _license[] SEC("license") = "GPL";
"#;
