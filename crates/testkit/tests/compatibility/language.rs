//! Instructions, section names and the context.

use xway_abi::{CtxValue, XDP_MD};
use xway_isa::{assemble, decode};
use xway_object::ProgramKind;

use crate::Table;

/// Groups of instructions with one of each that must decode, and what becomes of it.
const GROUPS: &[(&str, &str, &str, &str)] = &[
    ("64-bit arithmetic, moves, shifts", "v1", "r1 += r2", "yes"),
    ("loads and stores of 1, 2, 4, 8 bytes", "v1", "r1 = *(u32 *)(r1 +0)", "yes"),
    ("64-bit immediates; maps, map values, subprograms as immediates", "v1", "r1 = map[idx:0]", "yes"),
    (
        "kernel variables as immediates (typed ksyms)",
        "v1",
        "r1 = btf[fd:0][id:1]",
        "no: there is no kernel behind them",
    ),
    ("jumps, calls of helpers, exit", "v1", "if r1 > r2 goto pc+0", "yes"),
    ("calls of subprograms", "v1", "call pc+0", "yes"),
    ("byte order: le, be", "v1", "r1 = be16 r1", "yes"),
    ("legacy packet access", "v1", "r0 = *(u8 *)skb[0]", "refused, as by Linux for XDP"),
    ("more comparisons: < <= s< s<=", "v2", "if r1 s< r2 goto pc+0", "yes"),
    ("32-bit arithmetic and comparisons", "v3", "if w1 == w2 goto pc+0", "yes"),
    (
        "atomics: add, or, and, xor, with and without fetch; exchange, compare and exchange",
        "v3",
        "r1 = atomic64_xchg((u64 *)(r2 +0), r1)",
        "yes",
    ),
    (
        "signed division and remainder, sign-extending moves and loads, unconditional swap, long jump",
        "v4",
        "r1 s%= r2",
        "yes",
    ),
    ("load-acquire, store-release", "v4", "r1 = load_acquire((u64 *)(r2 +0))", "yes"),
    ("bounded jump `may_goto`", "Linux", "may_goto pc+0", "yes"),
    ("calls of kernel functions", "Linux", "call kfunc #1", "see the table of kernel functions"),
    (
        "address space casts (arenas)",
        "Linux",
        "r1 = addr_space_cast(r2, 0, 1)",
        "refused, as by Linux without an arena",
    ),
];

pub fn instructions() -> String {
    let mut table = Table::new(&["instructions (RFC 9669)", "since", "here"]);
    for (what, since, example, here) in GROUPS {
        let slots = assemble(example).unwrap_or_else(|e| panic!("{example}: {e}"));
        decode(&slots).unwrap_or_else(|e| panic!("{example}: {e}"));
        table.row(&[what, since, here]);
    }
    format!("## Instructions\n\n{table}")
}

/// Section names as they are found in the field.
const SECTIONS: &[&str] = &[
    "xdp",
    "xdp/NAME",
    "xdp_NAME",
    "xdpNAME",
    "?xdp",
    "xdp.frags",
    "xdp.frags/NAME",
    "xdp/devmap",
    "xdp_devmap/NAME",
    "xdp.frags/devmap",
    "xdp/cpumap",
    "xdp_cpumap/NAME",
    "xdp.frags/cpumap",
    "prog",
    "NAME",
    "tc",
    "classifier",
    "socket",
    "kprobe/NAME",
    "fentry/NAME",
    "struct_ops/NAME",
];

pub fn sections() -> String {
    let mut table = Table::new(&["section", "programs in it are", "here"]);
    for name in SECTIONS {
        let (kind, autoload) = ProgramKind::of_section(name);
        let frags = |frags| if frags { ", packets of several buffers" } else { "" };
        let (what, here) = match kind {
            ProgramKind::Xdp { frags: f } => (format!("XDP on a device{}", frags(f)), "yes"),
            ProgramKind::XdpDevmap { frags: f } => (format!("XDP behind a devmap entry{}", frags(f)), "yes"),
            ProgramKind::XdpCpumap { frags: f } => (format!("XDP behind a cpumap entry{}", frags(f)), "yes"),
            ProgramKind::Unknown => ("of no known kind".to_owned(), "as XDP when asked for by name"),
            ProgramKind::Other(hook) => (format!("for another hook: {hook}"), "no"),
            ProgramKind::Raw => ("raw".to_owned(), "no"),
        };
        let when = if autoload { "" } else { ", only when asked for" };
        table.row(&[&format!("`{name}`"), &format!("{what}{when}"), here]);
    }
    format!(
        "## Section names\n\n{table}\niproute2's numbered sections (`ID/KEY`) fill the program array with that number. Maps come in \
         three forms: BTF-defined (`.maps`), `struct bpf_map_def` (`maps`) of any length, iproute2's `struct bpf_elf_map`.\n"
    )
}

pub fn context() -> String {
    let mut table = Table::new(&["field of `struct xdp_md`", "offset", "gives", "readable in"]);
    for field in &XDP_MD {
        let gives = match field.value {
            CtxValue::PacketStart => "address of the packet",
            CtxValue::PacketEnd => "address behind the packet's first buffer",
            CtxValue::MetaStart => "address of the metadata",
            CtxValue::Scalar => "number",
        };
        let place = if field.only_for.is_some() { "devmap programs" } else { "every program" };
        table.row(&[&format!("`{}`", field.name), &field.offset.to_string(), gives, place]);
    }
    format!("## Context\n\nFields are read whole, four bytes; none can be written.\n\n{table}")
}
