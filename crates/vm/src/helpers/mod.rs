//! The helpers' implementations, by subject, and the table that finds them by number.
//!
//! What a helper takes and returns stands in `xway_abi`; here stands what it does, with Linux 6.18's results and errno.

mod checksum;
mod dynptr;
mod loops;
pub(crate) mod maps;
mod packet;
mod print;
mod probe;
mod ring;
mod route;
mod support;
mod sync;
mod syncookie;
mod task;
mod text;
mod time;
mod timer;

pub use checksum::{diff as csum_diff, diff_by as csum_diff_by, folded as csum_folded, partial as csum_partial};
pub use maps::redirect_through;
pub use packet::{load as load_bytes, mtu as check_mtu, store as store_bytes};
pub use ring::{perf_event, ring};
pub use route::lookup as fib_lookup;
pub use support::{Support, support};
pub use text::compare;
pub use timer::Timers;

pub(crate) use dynptr::{Dynptr, Kind as DynptrKind};

use Implementation::{Plain, Special};

use xway_abi::HelperProto;

use crate::call::PlainFn;
use crate::fault::{FaultKind, Trap};
use crate::machine::Machine;

/// How a helper is implemented.
#[derive(Clone, Copy, Debug)]
pub enum Implementation {
    /// Numbers and slices in, a number out.
    Plain(PlainFn),
    /// Needs the run itself: it grants memory, calls back, or looks where an address points. See [`special`].
    Special,
}

/// Number of `bpf_map_lookup_elem`, which has an instruction of its own too.
pub(crate) const LOOKUP: u32 = 1;

/// The implementation of a helper, `None` when there is none.
pub const fn implementation(id: u32) -> Option<Implementation> {
    Some(match id {
        LOOKUP => Special,
        2 => Special,
        3 => Special,
        5 => Plain(time::ktime_get_ns),
        6 => Special,
        7 => Plain(time::get_prandom_u32),
        8 => Plain(time::get_smp_processor_id),
        12 => Special,
        14 => Plain(task::get_current_pid_tgid),
        15 => Plain(task::get_current_uid_gid),
        16 => Plain(task::get_current_comm),
        17 => Plain(task::get_cgroup_classid),
        22 => Plain(ring::perf_event_read),
        23 => Plain(packet::redirect),
        25 => Plain(ring::perf_event_output),
        28 => Plain(checksum::csum_diff),
        35 | 158 => Special,
        37 => Plain(task::current_task_under_cgroup),
        42 => Plain(time::get_numa_node_id),
        44 => Plain(packet::adjust_head),
        51 => Plain(maps::redirect_map),
        54 => Plain(packet::adjust_meta),
        55 => Plain(ring::perf_event_read_value),
        65 => Plain(packet::adjust_tail),
        69 => Plain(route::fib_lookup),
        80 => Plain(task::get_current_cgroup_id),
        84 | 85 | 99 => Plain(route::no_socket),
        86 | 100 | 110 | 136..=140 | 178 | 196 => Plain(route::needs_socket),
        87 => Plain(maps::push),
        88 => Plain(maps::pop),
        89 => Plain(maps::peek),
        93 => Special,
        94 => Special,
        105 => Plain(text::strtol),
        106 => Plain(text::strtoul),
        109 | 117 => Plain(task::send_signal),
        112 => Plain(probe::read_user),
        113 => Special,
        114 => Plain(probe::read_user_str),
        115 => Special,
        118 => Plain(time::jiffies64),
        120 => Plain(task::get_ns_current_pid_tgid),
        123 => Plain(task::get_current_ancestor_cgroup_id),
        125 => Plain(time::ktime_get_boot_ns),
        130 => Plain(ring::output),
        131 => Special,
        132 => Special,
        133 => Special,
        134 => Plain(ring::query),
        141 => Plain(probe::get_task_stack),
        148 | 191 => Plain(probe::sleeps),
        149 => Plain(probe::snprintf_btf),
        153 | 154 => Plain(probe::percpu_ptr),
        156 | 210 => Plain(task::no_storage),
        157 | 211 => Plain(task::no_storage_to_delete),
        160 => Plain(time::ktime_get_coarse_ns),
        163 => Plain(packet::check_mtu),
        164 => Special,
        165 => Special,
        169 => Special,
        170 => Special,
        171 => Special,
        172 => Special,
        175 => Special,
        176 => Plain(probe::get_branch_snapshot),
        177 => Special,
        180 => Plain(probe::find_vma),
        181 => Special,
        182 => Plain(text::strncmp),
        188 => Plain(packet::get_buff_len),
        189 => Plain(packet::load_bytes),
        190 => Plain(packet::store_bytes),
        194 => Plain(sync::kptr_xchg),
        195 => Special,
        197 => Special,
        198 => Special,
        199 => Special,
        200 => Special,
        201 => Special,
        202 => Special,
        203 => Special,
        204 => Plain(syncookie::gen_ipv4),
        205 => Plain(syncookie::gen_ipv6),
        206 => Plain(syncookie::check_ipv4),
        207 => Plain(syncookie::check_ipv6),
        208 => Plain(time::ktime_get_tai_ns),
        209 => Special,
        _ => return None,
    })
}

/// Calls a helper that needs the run. What runs make of tail calls is their own business.
#[inline]
pub fn special<'e, M: Machine<'e>>(
    id: u32,
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    match id {
        LOOKUP => maps::lookup(vm, proto, r),
        2 => maps::update(vm, proto, r),
        3 => maps::delete(vm, proto, r),
        6 => print::trace_printk(vm, proto, r),
        35 | 158 => task::get_current_task(vm, proto, r),
        93 => sync::spin_lock(vm, proto, r),
        94 => sync::spin_unlock(vm, proto, r),
        113 => probe::read_kernel(vm, proto, r),
        115 => probe::read_kernel_str(vm, proto, r),
        131 => ring::reserve(vm, proto, r),
        132 => ring::submit(vm, proto, r),
        133 => ring::discard(vm, proto, r),
        164 => loops::for_each_map_elem(vm, proto, r),
        165 => print::snprintf(vm, proto, r),
        169 => timer::init(vm, proto, r),
        170 => timer::set_callback(vm, proto, r),
        171 => timer::start(vm, proto, r),
        172 => timer::cancel(vm, proto, r),
        175 => task::task_pt_regs(vm, proto, r),
        177 => print::trace_vprintk(vm, proto, r),
        181 => loops::bpf_loop(vm, proto, r),
        195 => maps::lookup_percpu(vm, proto, r),
        197 => dynptr::from_mem(vm, proto, r),
        198 => ring::reserve_dynptr(vm, proto, r),
        199 => ring::submit_dynptr(vm, proto, r),
        200 => ring::discard_dynptr(vm, proto, r),
        201 => dynptr::read(vm, proto, r),
        202 => dynptr::write(vm, proto, r),
        203 => dynptr::data(vm, proto, r),
        209 => loops::user_ringbuf_drain(vm, proto, r),
        _ => Err(Box::new(FaultKind::Call(format!("{} cannot be called like this", proto.name)))),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_helper_of_xdp_is_implemented_and_no_other() {
        for h in xway_abi::helpers() {
            assert_eq!(super::implementation(h.id).is_some(), h.xdp, "{} ({})", h.name, h.id);
        }
    }
}
