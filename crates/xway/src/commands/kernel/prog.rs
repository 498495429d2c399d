//! `xway prog show`, `pin`: programs of the kernel, or of the service's engine.

use std::time::Duration;

use serde_json::{Value, json};
use xway_abi::Errno;
use xway_hook::{Hook, HookKind, Kernel, ObjectId, ProgramInfo};
use xway_kernel::{KernelProg, ObjectKind, ProgInfo};

use super::attach::Place;
use super::pinned::Pinned;
use super::which::{Which, none};
use super::{by_id, failure, pinning, programs, refused};
use crate::args_kernel::{HookRest, ShowRest};
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
pub fn show(args: &ShowRest, as_json: bool) -> Result<(), Failure> {
    let pinned = Pinned::of(ObjectKind::Program, args)?;
    let which = Which::only(&args.words)?;
    let mut place = Place::of(&args.place)?;
    let Place::Service(service) = &mut place else { return show_kernel(which.as_ref(), &pinned, as_json) };
    let found = match &which {
        Some(which @ (Which::Id(_) | Which::Pinned(_))) => {
            let id = programs::open(service, which)?;
            vec![service.program_info(id).map_err(failure)?]
        }
        _ => programs::all(service, which.as_ref())?,
    };
    if let (Some(which), true) = (&which, found.is_empty()) {
        return Err(none(which, "prog", HookKind::Service));
    }
    if as_json {
        let one = |info: &ProgramInfo| pinned.json(info.id.0, user_json(info));
        let doc = json!({ "programs": found.iter().map(one).collect::<Vec<_>>() });
        print::json(&print::document("prog show", doc));
    } else {
        let one = |info: &ProgramInfo| user_text(info) + &pinned.text(info.id.0);
        print::text(&found.iter().map(one).collect::<String>());
    }
    Ok(())
}

fn show_kernel(which: Option<&Which>, pinned: &Pinned, as_json: bool) -> Result<(), Failure> {
    let found = match which {
        Some(Which::Pinned(path)) => vec![KernelProg::pinned(path).and_then(|p| p.info()).map_err(refused)?],
        Some(Which::Id(id)) => vec![by_id("prog", *id, KernelProg::by_id(*id).and_then(|p| p.info()))?],
        _ => all(which)?,
    };
    if let (Some(which), true) = (which, found.is_empty()) {
        return Err(none(which, "prog", HookKind::Kernel));
    }
    if as_json {
        let doc = json!({ "programs": found.iter().map(|info| pinned.json(info.id, json(info))).collect::<Vec<_>>() });
        print::json(&print::document("prog show", doc));
    } else {
        print::text(&found.iter().map(|info| text(info) + &pinned.text(info.id)).collect::<String>());
    }
    Ok(())
}

/// `xway prog pin`
pub fn pin(args: &HookRest, as_json: bool) -> Result<(), Failure> {
    let (which, rest) = Which::needed(&args.words, "prog")?;
    let path = pinning::path("prog", &rest)?;
    let mut hook = Place::of(&args.place)?.boxed();
    if hook.kind() == HookKind::Kernel {
        pinning::in_bpffs(&path)?;
    }
    let id = programs::open(&mut *hook, &which)?;
    hook.pin(ObjectId::Program(id), &path).map_err(failure)?;
    if as_json {
        let doc = json!({ "id": id.0, "path": path.display().to_string() });
        print::json(&print::document("prog pin", doc));
    }
    Ok(())
}

/// The one program of the kernel that is meant.
pub fn open(which: &Which) -> Result<KernelProg, Failure> {
    match which {
        Which::Pinned(path) => KernelProg::pinned(path).map_err(refused),
        _ => KernelProg::by_id(programs::open(&mut Kernel::new(), which)?.0).map_err(refused),
    }
}

fn all(which: Option<&Which>) -> Result<Vec<ProgInfo>, Failure> {
    let mut found = Vec::new();
    for program in programs::all(&mut Kernel::new(), which)? {
        match KernelProg::by_id(program.id.0).and_then(|p| p.info()) {
            Ok(info) => found.push(info),
            // It went away meanwhile.
            Err(e) if e.errno() == Some(Errno::ENOENT) => {}
            Err(e) => return Err(refused(e)),
        }
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
        "loaded_at": loaded_at(info),
        "loaded_at_since_boot_ns": info.loaded_at.as_nanos() as u64,
        "orphaned": info.orphaned,
        "bytes_xlated": info.xlated_len,
        "jited": info.jited_len > 0,
        "bytes_jited": info.jited_len,
        "bytes_memlock": info.memory,
        "map_ids": info.map_ids,
        "btf_id": info.btf_id,
        "verified_insns": info.verified_insns,
        "run_time_ns": info.run_time.as_nanos() as u64,
        "run_cnt": info.run_count,
        "recursion_misses": info.recursion_misses,
        "engine": if info.jited_len > 0 { "kernel jit" } else { "kernel interpreter" },
    })
}

/// When a program was loaded, in seconds since 1970. The kernel has it since boot; null: it does not tell.
fn loaded_at(info: &ProgInfo) -> Option<u64> {
    use rustix::time::{ClockId, clock_gettime};
    let now = |clock| {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let boot = now(ClockId::Realtime).checked_sub(now(ClockId::Boottime))?;
    (!info.loaded_at.is_zero()).then(|| (boot + info.loaded_at).as_secs())
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

fn user_text(info: &ProgramInfo) -> String {
    let gpl = if info.gpl_compatible { "  gpl" } else { "" };
    let mut out = format!("{}: xdp  name {}  tag {}{gpl}\n  {}", info.id.0, info.name, tag(&info.tag), info.engine);
    info.reason.iter().for_each(|why| out.push_str(&format!(" ({why})")));
    if !info.maps.is_empty() {
        let ids: Vec<String> = info.maps.iter().map(|m| m.0.to_string()).collect();
        out.push_str(&format!("  map ids {}", ids.join(",")));
    }
    if let Some((runs, _)) = info.runs.filter(|(runs, _)| *runs > 0) {
        out.push_str(&format!("  run {runs} times"));
    }
    out.push('\n');
    out
}

fn text(info: &ProgInfo) -> String {
    let engine = if info.jited_len > 0 { format!("jited {} B", info.jited_len) } else { "not jited".into() };
    let gpl = if info.gpl_compatible { "  gpl" } else { "" };
    let mut out =
        format!("{}: {}  name {}  tag {}{gpl}\n", info.id, type_name(info.prog_type), info.name, tag(&info.tag));
    let memory = info.memory.map_or_else(String::new, |bytes| format!(", memlock {bytes} B"));
    out.push_str(&format!("  {} instruction bytes, {engine}{memory}, loaded by uid {}", info.xlated_len, info.uid));
    if info.orphaned {
        out.push_str("  its device has gone");
    }
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
