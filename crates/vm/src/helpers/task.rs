//! Who runs: the worker's thread stands for Linux's current task.

use xway_abi::{Errno, HelperProto};

use crate::call::Call;
use crate::fault::Trap;
use crate::machine::Machine;

/// `bpf_get_current_pid_tgid()`
pub(crate) fn get_current_pid_tgid(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let task = call.host.task();
    Ok(u64::from(task.tgid) << 32 | u64::from(task.pid))
}

/// `bpf_get_current_uid_gid()`
pub(crate) fn get_current_uid_gid(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let task = call.host.task();
    Ok(u64::from(task.gid) << 32 | u64::from(task.uid))
}

/// `bpf_get_current_comm(buf, size)`
#[inline]
pub(crate) fn get_current_comm(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let comm = call.host.task().comm;
    let buf = call.bytes_mut(0);
    let len = buf.len().min(comm.len());
    buf.fill(0);
    buf[..len].copy_from_slice(&comm[..len]);
    if let Some(last) = buf.last_mut() {
        *last = 0;
    }
    Ok(0)
}

/// `bpf_get_cgroup_classid()`: 0 is what tasks outside any net_cls group have.
pub(crate) fn get_cgroup_classid(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(0)
}

/// `bpf_get_current_cgroup_id()`
pub(crate) fn get_current_cgroup_id(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.task().cgroup_ids.last().copied().unwrap_or(0))
}

/// `bpf_get_current_ancestor_cgroup_id(level)`: 0 where there is no such level.
pub(crate) fn get_current_ancestor_cgroup_id(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let level = call.num(0) as i32;
    Ok(usize::try_from(level).ok().and_then(|l| call.host.task().cgroup_ids.get(l).copied()).unwrap_or(0))
}

/// `bpf_current_task_under_cgroup(map, index)`
pub(crate) fn current_task_under_cgroup(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let index = call.num(1) as u32;
    if index >= call.map(0)?.spec().max_entries {
        return Err(Errno::E2BIG);
    }
    Err(Errno::EAGAIN)
}

/// `bpf_get_ns_current_pid_tgid(dev, ino, out, size)`: `out` is `{ pid, tgid }`, 4 bytes each.
pub(crate) fn get_ns_current_pid_tgid(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let task = call.host.task();
    let asked = (call.num(0), call.num(1));
    let out = call.bytes_mut(2);
    out.fill(0);
    let out = match <&mut [u8; 8]>::try_from(out) {
        Ok(out) if asked == task.pid_ns => out,
        _ => return Err(Errno::EINVAL),
    };
    out[..4].copy_from_slice(&task.pid.to_ne_bytes());
    out[4..].copy_from_slice(&task.tgid.to_ne_bytes());
    Ok(0)
}

/// `bpf_get_current_task()`, `bpf_get_current_task_btf()`: a handle.
pub(crate) fn get_current_task<'e, M: Machine<'e>>(
    vm: &mut M,
    _: &'static HelperProto,
    _: &[u64; 5],
) -> Result<u64, Trap> {
    Ok(vm.opaque(0))
}

/// `bpf_task_pt_regs(task)`: a handle.
pub(crate) fn task_pt_regs<'e, M: Machine<'e>>(vm: &mut M, _: &'static HelperProto, _: &[u64; 5]) -> Result<u64, Trap> {
    Ok(vm.opaque(1 << 20))
}

/// `bpf_send_signal`, `bpf_send_signal_thread`: programs get no handle on the process that runs them.
pub(crate) fn send_signal(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Err(Errno::EPERM)
}

/// `bpf_task_storage_get`, `bpf_cgrp_storage_get`: null, as when there is no storage.
pub(crate) fn no_storage(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(0)
}

/// `bpf_task_storage_delete`, `bpf_cgrp_storage_delete`
pub(crate) fn no_storage_to_delete(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Err(Errno::ENOENT)
}
