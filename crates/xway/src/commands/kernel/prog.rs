//! `xway prog show`: programs in the kernel.

use serde_json::{Value, json};
use xway_abi::Errno;
use xway_hook::ProgramInfo;
use xway_kernel::{KernelProg, ObjectKind, ProgInfo, ids};

use super::which::{self, Which};
use super::{pinning, refused};
use crate::args_kernel::Rest;
use crate::failure::Failure;
use crate::print;

/// Names of `enum bpf_prog_type`, by number, as bpftool prints them.
const TYPES: [&str; 33] = [
    "unspec",
    "socket_filter",
    "kprobe",
    "sched_cls",
    "sched_act",
    "tracepoint",
    "xdp",
    "perf_event",
    "cgroup_skb",
    "cgroup_sock",
    "lwt_in",
    "lwt_out",
    "lwt_xmit",
    "sock_ops",
    "sk_skb",
    "cgroup_device",
    "sk_msg",
    "raw_tracepoint",
    "cgroup_sock_addr",
    "lwt_seg6local",
    "lirc_mode2",
    "sk_reuseport",
    "flow_dissector",
    "cgroup_sysctl",
    "raw_tracepoint_writable",
    "cgroup_sockopt",
    "tracing",
    "struct_ops",
    "ext",
    "lsm",
    "sk_lookup",
    "syscall",
    "netfilter",
];

/// A tag in hexadecimal.
pub fn tag(tag: &[u8; 8]) -> String {
    tag.iter().map(|b| format!("{b:02x}")).collect()
}

/// Runs the command.
pub fn show(args: &Rest, as_json: bool) -> Result<(), Failure> {
    let which = Which::only(&args.words)?;
    let found = match &which {
        Some(Which::Pinned(path)) => vec![KernelProg::pinned(path).and_then(|p| p.info()).map_err(refused)?],
        Some(Which::Id(id)) => vec![KernelProg::by_id(*id).and_then(|p| p.info()).map_err(refused)?],
        _ => all(which.as_ref())?,
    };
    if let (Some(which), true) = (&which, found.is_empty()) {
        return Err(Failure::no(format!("no program with {which} in the kernel")).hint("xway prog show"));
    }
    if as_json {
        let doc = json!({ "programs": found.iter().map(json).collect::<Vec<_>>() });
        print::json(&print::document("prog show", doc));
    } else {
        print::text(&found.iter().map(text).collect::<String>());
    }
    Ok(())
}

/// `xway prog pin`
pub fn pin(args: &Rest, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&args.words, "prog")?;
    let path = pinning::path("prog", &rest)?;
    let program = open(&which)?;
    let info = program.info().map_err(refused)?;
    pinning::pin("prog", std::os::fd::AsFd::as_fd(&program), info.id, &path, as_json)
}

/// The one program that is meant.
pub fn open(which: &Which) -> Result<KernelProg, Failure> {
    match which {
        Which::Id(id) => KernelProg::by_id(*id).map_err(refused),
        Which::Pinned(path) => KernelProg::pinned(path).map_err(refused),
        Which::Name(_) | Which::Tag(_) => {
            let found = all(Some(which))?.into_iter().map(|info| (info.id, info.id)).collect();
            KernelProg::by_id(which::one(found, which, "prog")?).map_err(refused)
        }
    }
}

fn all(which: Option<&Which>) -> Result<Vec<ProgInfo>, Failure> {
    let mut found = Vec::new();
    for id in ids(ObjectKind::Program).map_err(refused)? {
        let info = match KernelProg::by_id(id).and_then(|p| p.info()) {
            Ok(info) => info,
            // It went away meanwhile.
            Err(e) if e.errno() == Some(Errno::ENOENT) => continue,
            Err(e) => return Err(refused(e)),
        };
        let wanted = match which {
            // The kernel keeps 15 characters of a name.
            Some(Which::Name(name)) => info.name == name.chars().take(15).collect::<String>(),
            Some(Which::Tag(text)) => tag(&info.tag) == *text,
            _ => true,
        };
        found.extend(wanted.then_some(info));
    }
    Ok(found)
}

/// One program of the document; field names are bpftool's.
pub fn json(info: &ProgInfo) -> Value {
    json!({
        "id": info.id,
        "type": type_name(info.prog_type),
        "name": info.name,
        "tag": tag(&info.tag),
        "gpl_compatible": info.gpl_compatible,
        "uid": info.uid,
        "loaded_at_since_boot_ns": info.loaded_at.as_nanos() as u64,
        "bytes_xlated": info.xlated_len,
        "jited": info.jited_len > 0,
        "bytes_jited": info.jited_len,
        "map_ids": info.map_ids,
        "btf_id": info.btf_id,
        "verified_insns": info.verified_insns,
        "run_time_ns": info.run_time.as_nanos() as u64,
        "run_cnt": info.run_count,
        "engine": if info.jited_len > 0 { "kernel jit" } else { "kernel interpreter" },
    })
}

/// A program of the engine, by the same names as far as they mean something there.
pub fn user_json(info: &ProgramInfo) -> Value {
    json!({
        "id": info.id.0,
        "type": "xdp",
        "name": info.name,
        "tag": tag(&info.tag),
        "gpl_compatible": info.gpl_compatible,
        "jited": info.engine == "jit",
        "map_ids": info.maps.iter().map(|m| m.0).collect::<Vec<_>>(),
        "run_cnt": info.runs.map_or(0, |(count, _)| count),
        "engine": info.engine,
        "engine_reason": info.reason,
    })
}

fn text(info: &ProgInfo) -> String {
    let engine = if info.jited_len > 0 { format!("jited {} B", info.jited_len) } else { "not jited".into() };
    let gpl = if info.gpl_compatible { "  gpl" } else { "" };
    let mut out =
        format!("{}: {}  name {}  tag {}{gpl}\n", info.id, type_name(info.prog_type), info.name, tag(&info.tag));
    out.push_str(&format!("  {} instruction bytes, {engine}, loaded by uid {}", info.xlated_len, info.uid));
    if !info.map_ids.is_empty() {
        let ids: Vec<String> = info.map_ids.iter().map(u32::to_string).collect();
        out.push_str(&format!("  map ids {}", ids.join(",")));
    }
    if info.run_count > 0 {
        out.push_str(&format!("  run {} times, {} ns", info.run_count, info.run_time.as_nanos()));
    }
    out.push('\n');
    out
}

fn type_name(number: u32) -> String {
    TYPES.get(number as usize).map_or_else(|| format!("type {number}"), |n| (*n).to_owned())
}
