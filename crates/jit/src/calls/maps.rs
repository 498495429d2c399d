//! Entries of helpers about maps that hold no values by key, and of look-ups for other CPUs: straight to the map.
#![allow(unsafe_code)] // takes the environment and proved addresses from generated code
//!
//! As those of `entries.rs`, which says who calls them and with what.

use xway_abi::Errno;
use xway_vm::machine::{self, Machine};

use crate::env::RunEnv;
use crate::native::{Native, no_record};

fn errno(result: Result<(), Errno>) -> u64 {
    result.map_or_else(Errno::as_ret, |()| 0)
}

/// `bpf_map_push_elem` of a value on the stack.
pub(super) extern "C" fn push(env: *mut RunEnv<'_>, map: u64, value: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    // SAFETY: `calls::typed`: the value is proved to lie on the stack, which nothing writes meanwhile.
    let value = unsafe { native.bytes(value, map.value_size()) };
    errno(map.push(value, flags))
}

/// `bpf_map_pop_elem` to the stack.
pub(super) extern "C" fn pop(env: *mut RunEnv<'_>, map: u64, value: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    // SAFETY: `calls::typed`: the place is proved to lie on the stack, of which there is no other slice.
    let value = unsafe { native.stack(value, map.value_size()) };
    errno(map.pop(value))
}

/// `bpf_map_peek_elem` with a place on the stack.
pub(super) extern "C" fn peek(env: *mut RunEnv<'_>, map: u64, value: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    // SAFETY: as in `pop`.
    let value = unsafe { native.stack(value, map.value_size()) };
    errno(map.peek(value))
}

/// `bpf_map_lookup_percpu_elem` in a map with values for each CPU, by a key on the stack.
pub(super) extern "C" fn lookup_percpu(env: *mut RunEnv<'_>, map: u64, key: u64, cpu: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let (map, cpu) = (native.map(map), cpu as u32);
    if cpu >= map.cpus() {
        return 0;
    }
    // SAFETY: as in `push`.
    let key = unsafe { native.bytes(key, map.key_size()) };
    map.value(cpu, key, native.guard()).map_or(0, |v| v.as_ptr() as u64)
}

/// `bpf_ringbuf_output` of a record on the stack.
pub(super) extern "C" fn ring_output(env: *mut RunEnv<'_>, map: u64, data: u64, size: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let Some(ring) = machine::ring(native.map(map)) else { return Errno::EINVAL.as_ret() };
    // SAFETY: as in `push`; the length is proved.
    let data = unsafe { native.bytes(data, size as usize & 0x1fff_ffff) };
    errno(ring.output(data, flags))
}

/// `bpf_ringbuf_query`
pub(super) extern "C" fn ring_query(env: *mut RunEnv<'_>, map: u64, what: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    machine::ring(native.map(map)).map_or(Errno::EINVAL.as_ret(), |ring| ring.query(what))
}

/// `bpf_ringbuf_reserve`: the record's address, or 0.
pub(super) extern "C" fn ring_reserve(env: *mut RunEnv<'_>, map: u64, size: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    match machine::ring(native.map(map)).map(|ring| ring.reserve(size, flags)) {
        Some(Ok(record)) => native.hand_out(record),
        _ => 0,
    }
}

/// `bpf_ringbuf_submit`
pub(super) extern "C" fn ring_submit(env: *mut RunEnv<'_>, record: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    match native.take_back(record) {
        Some(record) => record.submit(flags),
        None => return native.fault(*no_record("bpf_ringbuf_submit")),
    }
    0
}

/// `bpf_ringbuf_discard`
pub(super) extern "C" fn ring_discard(env: *mut RunEnv<'_>, record: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    match native.take_back(record) {
        Some(record) => record.discard(flags),
        None => return native.fault(*no_record("bpf_ringbuf_discard")),
    }
    0
}

/// `bpf_perf_event_output` of data on the stack.
pub(super) extern "C" fn perf_output(env: *mut RunEnv<'_>, _: u64, map: u64, flags: u64, data: u64, size: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    // SAFETY: as in `ring_output`.
    let data = unsafe { native.bytes(data, size as usize & 0x1fff_ffff) };
    let on = (native.cpu(), native.guard());
    errno(machine::perf_event(native.map(map), flags, data, native.frame(), on))
}
