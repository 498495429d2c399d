//! Events to user space: ring buffers and perf event arrays.

use xway_abi::{Errno, HelperProto, MapType};
use xway_maps::{Guard, Map, PERF_CURRENT_CPU, PERF_INDEX_MASK, RingBuf};
use xway_packet::Frame;

use super::dynptr::{Dynptr, Kind, SIZE_MAX};
use crate::call::{Call, bad};
use crate::fault::Trap;
use crate::machine::Machine;

/// The ring of a RINGBUF map.
pub fn ring(map: &Map) -> Option<&RingBuf> {
    map.ringbuf().filter(|_| map.map_type() == MapType::Ringbuf)
}

/// `bpf_ringbuf_output(map, data, size, flags)`
pub(crate) fn output(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let ring = ring(call.map(0)?).ok_or(Errno::EINVAL)?;
    ring.output(call.bytes(1), call.num(3)).map(|()| 0)
}

/// `bpf_ringbuf_query(map, what)`
pub(crate) fn query(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(ring(call.map(0)?).ok_or(Errno::EINVAL)?.query(call.num(1)))
}

/// `bpf_ringbuf_reserve(map, size, flags)`: a record of exactly `size` bytes, or null.
pub(crate) fn reserve<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    reserve_record(vm, proto, [r[0], r[1], r[2]]).map(|found| found.unwrap_or(0))
}

fn reserve_record<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    [map, size, flags]: [u64; 3],
) -> Result<Option<u64>, Trap> {
    let map = vm.map_arg(proto, 0, map)?;
    let ring = ring(map).ok_or_else(|| bad(proto, 0, format!("is a map of type {}", map.map_type().name())))?;
    match ring.reserve(size, flags) {
        Ok(record) => vm.grant_record(record).map(Some),
        Err(_) => Ok(None),
    }
}

/// Takes a record back from the program; its address then reaches nothing.
fn finish<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    addr: u64,
    flags: u64,
    submit: bool,
) -> Result<u64, Trap> {
    let record = vm.take_record(proto, addr)?;
    if submit {
        record.submit(flags)
    } else {
        record.discard(flags)
    }
    Ok(0)
}

/// `bpf_ringbuf_submit(record, flags)`
pub(crate) fn submit<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    finish(vm, proto, r[0], r[1], true)
}

/// `bpf_ringbuf_discard(record, flags)`
pub(crate) fn discard<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    finish(vm, proto, r[0], r[1], false)
}

/// `bpf_ringbuf_reserve_dynptr(map, size, flags, ptr)`
pub(crate) fn reserve_dynptr<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let size = u64::from(r[1] as u32);
    let error = if r[2] != 0 {
        Errno::EINVAL
    } else if size > SIZE_MAX {
        Errno::E2BIG
    } else if let Some(data) = reserve_record(vm, proto, [r[0], size, 0])? {
        let d = Dynptr { kind: Kind::Ringbuf, data, size: size as u32, offset: 0, read_only: false };
        return d.store(vm, r[3]).map(|()| 0);
    } else {
        Errno::EINVAL
    };
    Dynptr::clear(vm, r[3])?;
    Ok(error.as_ret())
}

fn finish_dynptr<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
    submit: bool,
) -> Result<u64, Trap> {
    if let Some(d) = Dynptr::load(vm, r[0])? {
        // `data` is the record's start, whatever part of it the dynptr stands for.
        finish(vm, proto, d.data, r[1], submit)?;
    }
    Dynptr::clear(vm, r[0])?;
    Ok(0)
}

/// `bpf_ringbuf_submit_dynptr(ptr, flags)`
pub(crate) fn submit_dynptr<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    finish_dynptr(vm, proto, r, true)
}

/// `bpf_ringbuf_discard_dynptr(ptr, flags)`
pub(crate) fn discard_dynptr<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    finish_dynptr(vm, proto, r, false)
}

/// `bpf_perf_event_output(ctx, map, flags, data, size)`: the event is `data` and as much of the packet as the upper half of
/// `flags` says.
pub(crate) fn perf_event_output(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    perf_event(call.map(1)?, call.num(2), call.bytes(3), call.frame.as_deref(), (call.cpu, call.guard)).map(|()| 0)
}

/// The same with arguments that are at hand, on a CPU under a guard.
#[inline]
pub fn perf_event(
    map: &Map,
    flags: u64,
    data: &[u8],
    frame: Option<&Frame>,
    (cpu, guard): (u32, &Guard),
) -> Result<(), Errno> {
    const PACKET_SHIFT: u32 = 32;
    const PACKET_MASK: u64 = 0xf_ffff << PACKET_SHIFT;
    if flags & !(PACKET_MASK | PERF_INDEX_MASK) != 0 {
        return Err(Errno::EINVAL);
    }
    let wanted = ((flags & PACKET_MASK) >> PACKET_SHIFT) as usize;
    let packet = if wanted > 0 { frame.map_or(&[][..], |f| f.packet()) } else { &[] };
    let packet = packet.get(..wanted).ok_or(Errno::EFAULT)?;
    let perf = map.perf().ok_or(Errno::EINVAL)?;
    perf.output(cpu, flags & PERF_INDEX_MASK, &[data, packet], guard)
}

/// Where a counter would be: `E2BIG` past the array, `ENOENT` because rings are no counters.
fn counter(call: &Call<'_, '_>, map: usize, flags: u64) -> Errno {
    let Ok(map) = call.map(map) else { return Errno::EINVAL };
    if flags & !PERF_INDEX_MASK != 0 {
        return Errno::EINVAL;
    }
    let index = if flags == PERF_CURRENT_CPU { call.cpu.into() } else { flags };
    if index >= u64::from(map.spec().max_entries) { Errno::E2BIG } else { Errno::ENOENT }
}

/// `bpf_perf_event_read(map, flags)`
pub(crate) fn perf_event_read(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Err(counter(call, 0, call.num(1)))
}

/// `bpf_perf_event_read_value(map, flags, buf, size)`
pub(crate) fn perf_event_read_value(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    /// `sizeof(struct bpf_perf_event_value)`
    const SIZE: usize = 24;
    let errno = if call.bytes(2).len() == SIZE { counter(call, 0, call.num(1)) } else { Errno::EINVAL };
    call.bytes_mut(2).fill(0);
    Err(errno)
}
