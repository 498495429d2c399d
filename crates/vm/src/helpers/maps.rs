//! Maps: look-up, change, redirect targets.

use xway_abi::{Errno, HelperProto, MapType};
use xway_maps::{Guard, Map, Target, ValueRef};
use xway_packet::{Frame, Redirect};

use super::packet::XDP_REDIRECT;
use crate::call::{Call, bad, with_bytes};
use crate::fault::Trap;
use crate::machine::Machine;

/// `bpf_map_lookup_elem(map, key)`
pub(crate) fn lookup<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let map = vm.map_arg(proto, 0, r[0])?;
    // The usual case, without a copy: the key lies on the stack.
    if let Some(key) = vm.direct(r[1], map.key_size())
        && let Some(value) = map.value(vm.cpu(), key, vm.guard())
    {
        return vm.grant_value(value, map.prog_readable(), map.prog_writable());
    }
    with_bytes(vm, r[1], map.key_size(), |vm, key| {
        if matches!(map.map_type(), MapType::ArrayOfMaps | MapType::HashOfMaps) {
            return Ok(map.inner(key, vm.guard()).map_or(0, |inner| vm.grant_map(inner)));
        }
        let value = map.value(vm.cpu(), key, vm.guard());
        grant(vm, map, value)
    })
}

/// `bpf_map_lookup_percpu_elem(map, key, cpu)`
pub(crate) fn lookup_percpu<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let map = vm.map_arg(proto, 0, r[0])?;
    if !matches!(map.map_type(), MapType::PercpuArray | MapType::PercpuHash | MapType::LruPercpuHash) {
        return Err(bad(proto, 0, format!("is a map of type {}, which is not per CPU", map.map_type().name())));
    }
    let cpu = r[2] as u32;
    with_bytes(vm, r[1], map.key_size(), |vm, key| {
        if cpu >= map.cpus() {
            return Ok(0);
        }
        let value = map.value(cpu, key, vm.guard());
        grant(vm, map, value)
    })
}

fn grant<'e, M: Machine<'e>>(vm: &mut M, map: &Map, value: Option<ValueRef<'e>>) -> Result<u64, Trap> {
    match value {
        Some(value) => vm.grant_value(value, map.prog_readable(), map.prog_writable()),
        None => Ok(0),
    }
}

/// `bpf_map_update_elem(map, key, value, flags)`
pub(crate) fn update<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let map = vm.map_arg(proto, 0, r[0])?;
    writable(proto, map)?;
    with_bytes(vm, r[1], map.key_size(), |vm, key| {
        with_bytes(vm, r[2], map.value_size(), |vm, value| Ok(errno(map.prog_update(vm.cpu(), key, value, r[3]))))
    })
}

/// `bpf_map_delete_elem(map, key)`
pub(crate) fn delete<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let map = vm.map_arg(proto, 0, r[0])?;
    writable(proto, map)?;
    with_bytes(vm, r[1], map.key_size(), |vm, key| Ok(errno(map.prog_delete(vm.cpu(), key))))
}

fn errno(result: Result<(), Errno>) -> u64 {
    result.map_or_else(Errno::as_ret, |()| 0)
}

/// Linux's verifier refuses these calls on maps that are read-only for programs.
fn writable(proto: &'static HelperProto, map: &Map) -> Result<(), Trap> {
    if map.prog_writable() { Ok(()) } else { Err(bad(proto, 0, "is a map that programs may only read".into())) }
}

/// `bpf_map_push_elem(map, value, flags)`
pub(crate) fn push(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    call.map(0)?.push(call.bytes(1), call.num(2)).map(|()| 0)
}

/// `bpf_map_pop_elem(map, value)`
pub(crate) fn pop(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    call.map(0)?.pop(call.bytes_mut(1)).map(|()| 0)
}

/// `bpf_map_peek_elem(map, value)`
pub(crate) fn peek(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    call.map(0)?.peek(call.bytes_mut(1)).map(|()| 0)
}

/// `bpf_redirect_map(map, key, flags)`: the low bits of `flags` are what it returns when nothing is found.
pub(crate) fn redirect_map(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let (map, key, flags) = (call.map(0)?, call.num(1) as u32, call.num(2));
    Ok(redirect_through(map, key, flags, call.frame.as_deref_mut(), call.guard))
}

/// The same with arguments that are at hand.
#[inline]
pub fn redirect_through(map: &Map, key: u32, flags: u64, frame: Option<&mut Frame>, guard: &Guard) -> u64 {
    const ACTION_MASK: u64 = 3;
    const BROADCAST: u64 = 1 << 3;
    const EXCLUDE_INGRESS: u64 = 1 << 4;
    let devmap = matches!(map.map_type(), MapType::Devmap | MapType::DevmapHash);
    let allowed = ACTION_MASK | if devmap { BROADCAST | EXCLUDE_INGRESS } else { 0 };
    if flags & !allowed != 0 {
        return 0;
    }
    let map_id = map.id();
    let target = if flags & BROADCAST != 0 {
        Some(Redirect::Broadcast { map_id, exclude_ingress: flags & EXCLUDE_INGRESS != 0 })
    } else {
        map.target(key, guard).map(|t| match t {
            Target::Device { ifindex, .. } => Redirect::Device { map_id, key, ifindex },
            Target::Cpu { cpu, .. } => Redirect::Cpu { map_id, cpu },
            Target::Socket(_) => Redirect::Socket { map_id, key },
        })
    };
    if let Some(frame) = frame {
        frame.set_redirect(target.unwrap_or(Redirect::None));
    }
    if target.is_some() { XDP_REDIRECT } else { flags & ACTION_MASK }
}
