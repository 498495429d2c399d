//! Reads of memory that a program was not given, and other looks into the kernel.
//!
//! In Linux these never crash: what cannot be read is zeroed and `EFAULT` or `ERANGE` comes back. In user space nothing but the
//! program's own memory can be read.

use xway_abi::{Errno, HelperProto};

use crate::call::{Call, size_arg};
use crate::fault::{Access, Trap};
use crate::machine::Machine;

/// `bpf_probe_read_user(dst, size, address)`
pub(crate) fn read_user(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let dst = call.bytes_mut(0);
    dst.fill(0);
    if dst.is_empty() { Ok(0) } else { Err(Errno::EFAULT) }
}

/// `bpf_probe_read_user_str(dst, size, address)`
pub(crate) fn read_user_str(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    read_user(call)
}

/// Linux refuses addresses below the kernel's half before it tries, and null is one of them.
fn unreadable<'e, M: Machine<'e>>(vm: &M, addr: u64) -> Errno {
    if vm.is_small(addr) { Errno::ERANGE } else { Errno::EFAULT }
}

/// `bpf_probe_read_kernel(dst, size, address)`
pub(crate) fn read_kernel<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let len = size_arg(proto, 1, r)?;
    if len == 0 {
        // The address is looked at first.
        return Ok(if vm.is_small(r[2]) { Errno::ERANGE.as_ret() } else { 0 });
    }
    vm.check(r[0], len, Access::Write)?;
    let mut bytes = vec![0; len as usize];
    let ret = if vm.probe(r[2], &mut bytes) { 0 } else { unreadable(vm, r[2]).as_ret() };
    vm.write(r[0], &bytes)?;
    Ok(ret)
}

/// `bpf_probe_read_kernel_str(dst, size, address)`: the length of the string with its zero.
pub(crate) fn read_kernel_str<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let len = size_arg(proto, 1, r)? as usize;
    if len == 0 {
        return Ok(0);
    }
    vm.check(r[0], len as u64, Access::Write)?;
    let mut bytes = vec![0; len];
    let mut n = 0;
    let ret = loop {
        if n + 1 == len {
            break len as u64;
        }
        let mut b = [0];
        if !vm.probe(r[2].wrapping_add(n as u64), &mut b) {
            bytes.fill(0);
            n = len - 1;
            break unreadable(vm, r[2]).as_ret();
        }
        bytes[n] = b[0];
        n += 1;
        if b[0] == 0 {
            break n as u64;
        }
    };
    // What lies behind the string's end stays as it was.
    let written = if ret == n as u64 { n } else { len };
    vm.write(r[0], &bytes[..written])?;
    Ok(ret)
}

/// `bpf_get_task_stack`: the worker's stack is not shown.
pub(crate) fn get_task_stack(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    call.bytes_mut(1).fill(0);
    Err(Errno::EOPNOTSUPP)
}

/// `bpf_copy_from_user`, `bpf_copy_from_user_task`: Linux refuses them in programs that may not sleep.
pub(crate) fn sleeps(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    call.bytes_mut(0).fill(0);
    Err(Errno::EFAULT)
}

/// `bpf_snprintf_btf`: kernel types are not kept here.
pub(crate) fn snprintf_btf(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    if let Some(first) = call.bytes_mut(0).first_mut() {
        *first = 0;
    }
    Err(Errno::EINVAL)
}

/// `bpf_per_cpu_ptr`, `bpf_this_cpu_ptr`: no kernel variable can be linked, so no argument can be right.
pub(crate) fn percpu_ptr(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(0)
}

/// `bpf_get_branch_snapshot`: as on a machine without branch records.
pub(crate) fn get_branch_snapshot(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Err(Errno::ENOENT)
}

/// `bpf_find_vma`: the worker's address space is not shown.
pub(crate) fn find_vma(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Err(Errno::ENOENT)
}
