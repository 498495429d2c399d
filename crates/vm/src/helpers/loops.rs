//! Helpers that call the program back.

use xway_abi::prog::{MAX_LOOPS, TOO_MANY_TURNS};
use xway_abi::{Errno, HelperProto, MapType};

use super::dynptr::{Dynptr, Kind as DynptrKind};

use crate::call::bad;
use crate::fault::Trap;
use crate::machine::Machine;

/// `bpf_loop(count, callback, ctx, flags)`: callback(index, ctx); returns the number of calls.
///
/// As Linux does where it takes the call apart, which it does nearly always: the count is the whole register, and a number of 32 bits says
/// that it is too large.
pub(crate) fn bpf_loop<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let count = r[0];
    if r[3] != 0 {
        return Ok(Errno::EINVAL.as_ret());
    }
    if count > MAX_LOOPS.into() {
        return Ok(TOO_MANY_TURNS);
    }
    let entry = vm.func_arg(proto, 1, r[1])?;
    for i in 0..count {
        if vm.call_back(entry, &[i, r[2]])? != 0 {
            return Ok(i + 1);
        }
    }
    Ok(count)
}

/// `bpf_for_each_map_elem(map, callback, ctx, flags)`: callback(map, key, value, ctx); returns the number of calls.
pub(crate) fn for_each_map_elem<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let map = vm.map_arg(proto, 0, r[0])?;
    let entry = vm.func_arg(proto, 1, r[1])?;
    if r[3] != 0 {
        return Ok(Errno::EINVAL.as_ret());
    }
    let (cpu, guard) = (vm.cpu(), vm.guard());
    let mut failed = None;
    let visited = map.for_each(cpu, guard, &mut |key, value| {
        let mut step = || {
            let key = vm.copy_region(key);
            let value = vm.grant_value(value, map.prog_readable(), map.prog_writable())?;
            vm.call_back(entry, &[r[0], key, value, r[2]])
        };
        match step() {
            Ok(more) => more == 0,
            Err(trap) => {
                failed = Some(trap);
                false
            }
        }
    });
    match (failed, visited) {
        (Some(trap), _) => Err(trap),
        (None, Ok(n)) => Ok(n),
        (None, Err(_)) => {
            Err(bad(proto, 0, format!("is a map of type {}, which cannot be walked", map.map_type().name())))
        }
    }
}

/// `bpf_user_ringbuf_drain(map, callback, ctx, flags)`: callback(dynptr, ctx); returns the number of records.
pub(crate) fn user_ringbuf_drain<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let map = vm.map_arg(proto, 0, r[0])?;
    let entry = vm.func_arg(proto, 1, r[1])?;
    let Some(ring) = map.ringbuf().filter(|_| map.map_type() == MapType::UserRingbuf) else {
        return Err(bad(proto, 0, format!("is a map of type {}, not a user ring buffer", map.map_type().name())));
    };
    // BPF_RB_NO_WAKEUP and BPF_RB_FORCE_WAKEUP; waking is the consumer's business, and there is none to wake.
    if r[3] & !3 != 0 {
        return Ok(Errno::EINVAL.as_ret());
    }
    let mut failed = None;
    let drained = ring.drain(&mut |record| {
        let copy = vm.copy_region(&record.to_vec());
        let size = record.len() as u32;
        let dynptr = Dynptr { kind: DynptrKind::Local, data: copy, size, offset: 0, read_only: true };
        let step = vm.with_handle(dynptr.to_bytes(), |vm, handle| vm.call_back(entry, &[handle, r[2]]));
        match step {
            Ok(more) => more == 0,
            Err(trap) => {
                failed = Some(trap);
                false
            }
        }
    });
    match (failed, drained) {
        (Some(trap), _) => Err(trap),
        (None, result) => Ok(result.unwrap_or_else(Errno::as_ret)),
    }
}
