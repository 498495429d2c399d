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

pub use support::{Support, support};
pub use timer::Timers;

pub(crate) use crate::call::Implementation;
pub(crate) use dynptr::{Dynptr, Kind as DynptrKind};

use Implementation::{Plain, Special};

/// Number of `bpf_tail_call`, which is an instruction of its own here.
pub(crate) const TAIL_CALL: u32 = 12;

/// Number of `bpf_map_lookup_elem`, which has an instruction of its own too.
pub(crate) const LOOKUP: u32 = 1;

/// The implementation of a helper, `None` when there is none.
pub(crate) fn implementation(id: u32) -> Option<Implementation> {
    Some(match id {
        LOOKUP => Special(maps::lookup),
        2 => Special(maps::update),
        3 => Special(maps::delete),
        5 => Plain(time::ktime_get_ns),
        6 => Special(print::trace_printk),
        7 => Plain(time::get_prandom_u32),
        8 => Plain(time::get_smp_processor_id),
        TAIL_CALL => Special(maps::never),
        14 => Plain(task::get_current_pid_tgid),
        15 => Plain(task::get_current_uid_gid),
        16 => Plain(task::get_current_comm),
        17 => Plain(task::get_cgroup_classid),
        22 => Plain(ring::perf_event_read),
        23 => Plain(packet::redirect),
        25 => Plain(ring::perf_event_output),
        28 => Plain(checksum::csum_diff),
        35 | 158 => Special(task::get_current_task),
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
        93 => Special(sync::spin_lock),
        94 => Special(sync::spin_unlock),
        105 => Plain(text::strtol),
        106 => Plain(text::strtoul),
        109 | 117 => Plain(task::send_signal),
        112 => Plain(probe::read_user),
        113 => Special(probe::read_kernel),
        114 => Plain(probe::read_user_str),
        115 => Special(probe::read_kernel_str),
        118 => Plain(time::jiffies64),
        120 => Plain(task::get_ns_current_pid_tgid),
        123 => Plain(task::get_current_ancestor_cgroup_id),
        125 => Plain(time::ktime_get_boot_ns),
        130 => Plain(ring::output),
        131 => Special(ring::reserve),
        132 => Special(ring::submit),
        133 => Special(ring::discard),
        134 => Plain(ring::query),
        141 => Plain(probe::get_task_stack),
        148 | 191 => Plain(probe::sleeps),
        149 => Plain(probe::snprintf_btf),
        153 | 154 => Plain(probe::percpu_ptr),
        156 | 210 => Plain(task::no_storage),
        157 | 211 => Plain(task::no_storage_to_delete),
        160 => Plain(time::ktime_get_coarse_ns),
        163 => Plain(packet::check_mtu),
        164 => Special(loops::for_each_map_elem),
        165 => Special(print::snprintf),
        169 => Special(timer::init),
        170 => Special(timer::set_callback),
        171 => Special(timer::start),
        172 => Special(timer::cancel),
        175 => Special(task::task_pt_regs),
        176 => Plain(probe::get_branch_snapshot),
        177 => Special(print::trace_vprintk),
        180 => Plain(probe::find_vma),
        181 => Special(loops::bpf_loop),
        182 => Plain(text::strncmp),
        188 => Plain(packet::get_buff_len),
        189 => Plain(packet::load_bytes),
        190 => Plain(packet::store_bytes),
        194 => Plain(sync::kptr_xchg),
        195 => Special(maps::lookup_percpu),
        197 => Special(dynptr::from_mem),
        198 => Special(ring::reserve_dynptr),
        199 => Special(ring::submit_dynptr),
        200 => Special(ring::discard_dynptr),
        201 => Special(dynptr::read),
        202 => Special(dynptr::write),
        203 => Special(dynptr::data),
        204 => Plain(syncookie::gen_ipv4),
        205 => Plain(syncookie::gen_ipv6),
        206 => Plain(syncookie::check_ipv4),
        207 => Plain(syncookie::check_ipv6),
        208 => Plain(time::ktime_get_tai_ns),
        209 => Special(loops::user_ringbuf_drain),
        _ => return None,
    })
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
