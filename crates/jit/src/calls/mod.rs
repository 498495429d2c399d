//! What generated code calls: for each helper and kernel function an entry with the C calling convention.
//!
//! The general entry of a helper takes the five registers and marshals them by the prototype, as the interpreter does; what
//! the helper does is written once, in `xway-vm`. Frequent helpers have shorter ways in, chosen when the program is compiled:
//! without memory arguments nothing has to be marshalled, and memory on the program's own stack needs no copy.

mod entries;
mod keep;
mod maps;

use std::sync::Arc;

use xway_abi::{ArgKind, HelperProto, MapType, map_flags};
use xway_isa::Reg;
use xway_maps::Map;
use xway_verifier::{Place, Region};
use xway_vm::machine::Kfunc;

pub(crate) use keep::keeping;

use crate::lower::template;
use crate::plan::Call;

/// `bpf_ktime_get_ns`
pub(crate) const KTIME: u32 = 5;
/// `bpf_ktime_get_boot_ns`
pub(crate) const BOOT: u32 = 125;
/// `bpf_jiffies64`
pub(crate) const JIFFIES: u32 = 118;
/// `bpf_ktime_get_coarse_ns`
pub(crate) const COARSE: u32 = 160;
/// Helpers that say of the worker what is the same for all packets of a burst: `bpf_get_current_pid_tgid`, `bpf_get_current_uid_gid`,
/// `bpf_get_numa_node_id`, `bpf_get_current_cgroup_id`.
pub(crate) const ONCE: [u32; 4] = [14, 15, 42, 80];

/// Where what a helper of [`ONCE`] says is kept.
pub(crate) fn once(id: u32) -> Option<usize> {
    ONCE.iter().position(|known| *known == id)
}

/// A function that generated code calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// For dumps.
    pub name: &'static str,
    pub address: usize,
}

const ARGS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

/// The entry that works for every use of a helper.
pub(crate) fn general(proto: &'static HelperProto) -> Entry {
    Entry { name: proto.name, address: entries::general(proto.id) }
}

/// The entry of a kernel function.
pub(crate) fn kfunc(which: Kfunc) -> Entry {
    Entry { name: "kfunc", address: entries::kfunc(which) }
}

/// `fn(env, map, index) -> code`: what a tail call goes to, 0 for nowhere.
pub(crate) fn tail_target() -> Entry {
    Entry { name: "tail_target", address: entries::tail_target as *const () as usize }
}

/// `fn(env) -> 0`: says that the worker has no values in the program's per-CPU maps.
pub(crate) fn wrong_cpu() -> Entry {
    Entry { name: "wrong_cpu", address: entries::wrong_cpu as *const () as usize }
}

/// The short way to look something up in a map that is no map of maps, by a key on the stack or in the packet.
pub(crate) fn map_lookup(call: &Call) -> (Entry, &'static [Reg]) {
    let address = match is_stack(&call.args[1]) {
        true => entries::map_lookup as *const (),
        false => entries::map_lookup_packet as *const (),
    };
    (Entry { name: "map_lookup", address: address as usize }, &ARGS[..2])
}

/// `bpf_map_lookup_elem` in a map of maps, by a key on the stack or in the packet.
pub(crate) fn inner_lookup(call: &Call) -> (Entry, &'static [Reg]) {
    let address = match is_stack(&call.args[1]) {
        true => entries::inner_lookup as *const (),
        false => entries::inner_lookup_packet as *const (),
    };
    (Entry { name: "inner_lookup", address: address as usize }, &ARGS[..2])
}

fn map_update() -> (Entry, &'static [Reg]) {
    (Entry { name: "map_update", address: entries::map_update as *const () as usize }, &ARGS[..4])
}

fn map_delete() -> (Entry, &'static [Reg]) {
    (Entry { name: "map_delete", address: entries::map_delete as *const () as usize }, &ARGS[..2])
}

/// The stack or the packet: bytes that no thread of this process writes meanwhile. A packet's may be another process's too, so that
/// helpers work on copies of them: short ones on the way of a look-up, and on the long way whatever is stored.
fn is_own(place: &Option<Place>) -> bool {
    matches!(place, Some(p) if matches!(p.region, Region::Stack | Region::OuterStack | Region::Packet | Region::Meta))
}

/// Memory of the program's stack.
fn is_stack(place: &Option<Place>) -> bool {
    matches!(place, Some(p) if matches!(p.region, Region::Stack | Region::OuterStack))
}

fn is_memory(kind: ArgKind) -> bool {
    matches!(kind, ArgKind::MapKey | ArgKind::MapValue(_) | ArgKind::Mem(..) | ArgKind::ConstStr)
}

/// Whether all memory that it is given lies on the stack, and there is an entry that works there.
fn borrows(call: &Call) -> bool {
    let mut memory = call.proto.args.iter().zip(&call.args).filter(|(arg, _)| is_memory(arg.kind));
    entries::on_stack(call.proto.id).is_some() && memory.all(|(_, place)| is_stack(place))
}

/// The ways of helpers about maps that hold no values by key, and of look-ups for other CPUs: whichever map it is, the run says.
fn of_map(call: &Call) -> Option<(Entry, &'static [Reg])> {
    let (address, params) = match call.proto.id {
        25 if is_stack(&call.args[3]) => (maps::perf_output as *const (), 5),
        87 if is_stack(&call.args[1]) => (maps::push as *const (), 3),
        88 if is_stack(&call.args[1]) => (maps::pop as *const (), 2),
        89 if is_stack(&call.args[1]) => (maps::peek as *const (), 2),
        130 if is_stack(&call.args[1]) => (maps::ring_output as *const (), 4),
        131 => (maps::ring_reserve as *const (), 3),
        132 => (maps::ring_submit as *const (), 2),
        133 => (maps::ring_discard as *const (), 2),
        134 => (maps::ring_query as *const (), 2),
        195 if is_stack(&call.args[1]) => (maps::lookup_percpu as *const (), 3),
        _ => return None,
    };
    Some((Entry { name: call.proto.name, address: address as usize }, &ARGS[..params]))
}

/// A shorter way in for this use of a helper, with the registers that it takes.
pub(crate) fn typed(call: &Call, maps: &[Arc<Map>]) -> Option<(Entry, &'static [Reg])> {
    if let Some(way) = of_map(call) {
        return Some(way);
    }
    let (id, args) = (call.proto.id, &call.args);
    let entry = |name, address: *const ()| Entry { name, address: address as usize };
    let map = call.map.and_then(|m| maps.get(m as usize));
    let inner = template(call, maps);
    let writable = inner.is_some_and(|spec| spec.flags & map_flags::RDONLY_PROG == 0);
    match (id, map) {
        (1, None) if inner.is_some() && is_own(&args[1]) => Some(map_lookup(call)),
        (2, None) if writable && is_stack(&args[1]) && is_stack(&args[2]) => Some(map_update()),
        (3, None) if writable && is_stack(&args[1]) => Some(map_delete()),
        (1, Some(map)) if is_own(&args[1]) => match map.map_type() {
            MapType::ArrayOfMaps | MapType::HashOfMaps => Some(inner_lookup(call)),
            _ => Some(map_lookup(call)),
        },
        (2, Some(map)) if is_stack(&args[1]) && is_stack(&args[2]) && map.prog_writable() => Some(map_update()),
        (3, Some(map)) if is_stack(&args[1]) && map.prog_writable() => Some(map_delete()),
        (51, Some(_)) => Some((entry("redirect_map", entries::redirect_map as *const ()), &ARGS[..3])),
        // Lengths are proved. Whose memory it is does not matter: each byte is read once, as others may write it.
        (28, _) => Some((entry(call.proto.name, entries::csum_diff as *const ()), &ARGS)),
        (182, _) => Some((entry(call.proto.name, entries::strncmp as *const ()), &ARGS[..3])),
        (189 | 190, _) if is_stack(&args[2]) => {
            let address = if id == 189 { entries::load_bytes as *const () } else { entries::store_bytes as *const () };
            Some((entry(call.proto.name, address), &ARGS[..4]))
        }
        (69, _) if is_stack(&args[1]) => Some((entry(call.proto.name, entries::fib_lookup as *const ()), &ARGS[..4])),
        (163, _) if is_stack(&args[2]) => Some((entry(call.proto.name, entries::check_mtu as *const ()), &ARGS)),
        _ if borrows(call) => Some((
            Entry { name: call.proto.name, address: entries::on_stack(id)? },
            &ARGS[..call.proto.args.len().min(5)],
        )),
        _ => {
            // Nothing to look behind: no marshalling.
            let plain = (call.proto.args.iter()).all(|a| matches!(a.kind, ArgKind::Anything | ArgKind::Ctx));
            let address = entries::numbers(id).filter(|_| plain)?;
            Some((Entry { name: call.proto.name, address }, &ARGS[..call.proto.args.len().min(5)]))
        }
    }
}
