//! What a section name says about the programs in it.

use crate::ProgramKind;
use crate::btf::{Btf, Kind};

/// Section prefixes of other hooks (libbpf's and iproute2's names). A name counts when it is the prefix or goes on with
/// `/` or `.`.
const OTHER: &[&str] = &[
    "action",
    "cgroup",
    "cgroup_skb",
    "classifier",
    "fentry",
    "fexit",
    "flow_dissector",
    "fmod_ret",
    "freplace",
    "fsession",
    "iter",
    "kprobe",
    "kretprobe",
    "ksyscall",
    "kretsyscall",
    "lirc_mode2",
    "lsm",
    "lsm_cgroup",
    "lwt_in",
    "lwt_out",
    "lwt_seg6local",
    "lwt_xmit",
    "netfilter",
    "netkit",
    "perf_event",
    "raw_tp",
    "raw_tracepoint",
    "sk_lookup",
    "sk_msg",
    "sk_reuseport",
    "sk_skb",
    "sockops",
    "socket",
    "struct_ops",
    "syscall",
    "tc",
    "tcx",
    "tp",
    "tp_btf",
    "tracepoint",
    "uprobe",
    "uretprobe",
    "usdt",
];

/// The kind of the programs in a section, and whether they are to be loaded without being asked for (`?xdp` is not).
pub(crate) fn kind_of_section(name: &str) -> (ProgramKind, bool) {
    let (name, autoload) = match name.strip_prefix('?') {
        Some(rest) => (rest, false),
        None => (name, true),
    };
    let is = |prefix: &str| name == prefix || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    let kind = match name {
        _ if is("xdp.frags/devmap") => ProgramKind::XdpDevmap { frags: true },
        _ if is("xdp/devmap") || is("xdp_devmap") => ProgramKind::XdpDevmap { frags: false },
        _ if is("xdp.frags/cpumap") => ProgramKind::XdpCpumap { frags: true },
        _ if is("xdp/cpumap") || is("xdp_cpumap") => ProgramKind::XdpCpumap { frags: false },
        _ if is("xdp.frags") => ProgramKind::Xdp { frags: true },
        // Loaders before libbpf 1.0 took any name that starts so: xdp1, xdp_prog, xdp-drop.
        _ if name.starts_with("xdp") => ProgramKind::Xdp { frags: false },
        "prog" => ProgramKind::Xdp { frags: false },
        _ => match OTHER.iter().find(|p| is(p) || name.strip_prefix(**p).is_some_and(|r| r.starts_with('.'))) {
            Some(prefix) => ProgramKind::Other(prefix),
            None => ProgramKind::Unknown,
        },
    };
    (kind, autoload)
}

/// iproute2's name for the target of a tail call: `ID/KEY`, the number of a PROG_ARRAY and the slot in it.
pub(crate) fn tail_call_slot(section: &str) -> Option<(u32, u32)> {
    let (id, key) = section.split_once('/')?;
    Some((number(id)?, number(key)?))
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The kind that a function's signature tells, for names that tell nothing: its first parameter points to the hook's
/// context.
pub(crate) fn kind_of_signature(btf: &Btf, func_id: u32) -> Option<ProgramKind> {
    let Kind::Func(proto, _) = btf.ty(func_id).ok()?.kind else { return None };
    let Kind::FuncProto { params, .. } = btf.ty(proto).ok()?.kind else { return None };
    let mut params = params.iter();
    let (first, rest) = (params.next()?, params.len());
    let Kind::Ptr(to) = btf.resolve(first.ty).ok()?.1.kind else { return None };
    match (btf.resolve(to).ok()?.1.name, rest) {
        ("xdp_md", 0) => Some(ProgramKind::Xdp { frags: false }),
        ("__sk_buff", 0) => Some(ProgramKind::Other("tc")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_names_say_what_a_program_is_for() {
        let (single, multi) = (ProgramKind::Xdp { frags: false }, ProgramKind::Xdp { frags: true });
        for (name, kind) in [
            ("xdp", single),
            ("xdp/filter", single),
            ("xdp_pass", single),
            ("xdp1", single),
            ("prog", single),
            ("xdp.frags", multi),
            ("xdp.frags/filter", multi),
            ("xdp/devmap", ProgramKind::XdpDevmap { frags: false }),
            ("xdp_devmap/egress", ProgramKind::XdpDevmap { frags: false }),
            ("xdp.frags/devmap", ProgramKind::XdpDevmap { frags: true }),
            ("xdp/cpumap", ProgramKind::XdpCpumap { frags: false }),
            ("xdp_cpumap/spread", ProgramKind::XdpCpumap { frags: false }),
            ("xdp.frags/cpumap", ProgramKind::XdpCpumap { frags: true }),
            ("fentry/func", ProgramKind::Other("fentry")),
            ("tc", ProgramKind::Other("tc")),
            ("kprobe.multi/x", ProgramKind::Other("kprobe")),
            ("tcpdrop", ProgramKind::Unknown),
            ("mysection", ProgramKind::Unknown),
            ("1/0", ProgramKind::Unknown),
        ] {
            assert_eq!(kind_of_section(name), (kind, true), "{name}");
        }
        assert_eq!(kind_of_section("?xdp"), (single, false));
    }

    #[test]
    fn numbered_sections_are_slots() {
        assert_eq!(tail_call_slot("1/0"), Some((1, 0)));
        assert_eq!(tail_call_slot("0x10/3"), Some((16, 3)));
        assert_eq!(tail_call_slot("xdp/3"), None);
        assert_eq!(tail_call_slot("1"), None);
    }
}
