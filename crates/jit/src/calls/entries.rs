//! The entries themselves.
#![allow(unsafe_code)] // takes the environment and proved addresses from generated code
//!
//! Each is called by generated code only, with the environment that `compiled.rs` passed in and with arguments as the verifier
//! has proved them (the invariant of `native.rs`). A panic in one ends the process: there is no way back through generated
//! code.

use xway_abi::{ArgKind, Errno, HelperProto, MemAccess, MemSize};
use xway_maps::Map;
use xway_vm::TAIL_CALLS_MAX;
use xway_vm::machine::{self, Arg, Call, FaultKind, Implementation, Kfunc, Machine, PlainFn, Trap};

use super::{COARSE, JIFFIES};
use crate::compiled::Compiled;
use crate::env::RunEnv;
use crate::native::Native;

// ---- any helper ----

extern "C" fn helper<const ID: u32>(env: *mut RunEnv<'_>, a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    match ID {
        51 => with_target(&mut native, |native| call::<ID>(native, [a, b, c, d, e])),
        _ => call::<ID>(&mut native, [a, b, c, d, e]),
    }
}

#[inline(always)]
fn call<const ID: u32>(native: &mut Native<'_, '_>, regs: [u64; 5]) -> u64 {
    let result = match const { (xway_abi::helper(ID), machine::implementation(ID)) } {
        (Some(proto), Some(Implementation::Special)) => machine::special(ID, native, proto, &regs),
        (Some(proto), Some(Implementation::Plain(run))) => plain(native, proto, run, &regs),
        _ => Err(Box::new(FaultKind::Call(format!("helper {ID} does not exist"))) as Trap),
    };
    result.unwrap_or_else(|trap| native.fault(*trap))
}

/// A memory argument: where it is and where its copy lies in the scratch memory.
#[derive(Clone, Copy)]
struct Span {
    arg: usize,
    addr: u64,
    len: usize,
    write: bool,
}

/// How many bytes a memory argument has, behind the map that it belongs to, if to one.
#[inline(always)]
fn len_of(native: &Native<'_, '_>, kind: ArgKind, map: Option<&Map>, addr: u64, next: Option<&u64>) -> Option<usize> {
    Some(match kind {
        ArgKind::MapKey => map.map_or(0, Map::key_size),
        ArgKind::MapValue(_) => map.map_or(0, Map::value_size),
        ArgKind::Mem(_, MemSize::Fixed(len) | MemSize::FixedAligned(len)) => len as usize,
        // Linux takes lengths as 32 bits and its verifier, as ours, proves that they are below 2^29.
        ArgKind::Mem(_, MemSize::NextArg) => next.map_or(0, |len| *len as usize & 0x1fff_ffff),
        // The bytes up to the zero, which the proof has seen.
        ArgKind::ConstStr => native.text(addr).len(),
        _ => return None,
    })
}

/// Marshals by the prototype. Memory is copied in before and, where the prototype says so, out after the call, because map
/// values are shared with other threads and must not be seen as slices.
fn plain(native: &mut Native<'_, '_>, proto: &'static HelperProto, run: PlainFn, regs: &[u64; 5]) -> Result<u64, Trap> {
    let mut made = made(native);
    let args = &mut made.args;
    let mut spans = [Span { arg: 0, addr: 0, len: 0, write: false }; 5];
    let (mut count, mut total) = (0, 0);
    let mut map: Option<&Map> = None;
    for (n, arg) in proto.args.iter().enumerate() {
        let reg = regs[n];
        if arg.nullable && reg == 0 {
            args[n] = Arg::Null;
            continue;
        }
        let len = match (len_of(native, arg.kind, map, reg, regs.get(n + 1)), arg.kind) {
            (Some(len), _) => len,
            (_, ArgKind::ConstMap) => {
                let m = native.map_arg(proto, n, reg)?;
                map = Some(m);
                args[n] = Arg::Map(m);
                continue;
            }
            (_, ArgKind::SpinLock) => {
                args[n] = Arg::Place(native.place(reg, 4)?);
                continue;
            }
            (_, ArgKind::Timer) => {
                args[n] = Arg::Place(native.place(reg, 16)?);
                continue;
            }
            (_, ArgKind::KptrDest) => {
                args[n] = Arg::Place(native.place(reg, 8)?);
                continue;
            }
            (_, ArgKind::Size { .. } | ArgKind::Ctx) => continue,
            (_, ArgKind::Anything | ArgKind::AllocSize | ArgKind::CallbackCtx | ArgKind::BtfPtr(_)) => {
                args[n] = Arg::Num(reg);
                continue;
            }
            _ => {
                let why = format!("call of {}: argument {} has no native form", proto.name, n + 1);
                return Err(Box::new(FaultKind::Call(why)));
            }
        };
        let access = match arg.kind {
            ArgKind::MapValue(access) => proto.value_access(access, map.map(Map::map_type)),
            ArgKind::Mem(access, _) => access,
            _ => MemAccess::Read,
        };
        spans[count] = Span { arg: n, addr: reg, len, write: access != MemAccess::Read };
        count += 1;
        total += len;
    }
    const SMALL: usize = 256;
    let mut small = [0u8; SMALL];
    let mut large = vec![];
    let scratch = if total <= SMALL {
        &mut small[..total]
    } else {
        large.resize(total, 0);
        &mut large[..]
    };
    let mut start = 0;
    for span in &spans[..count] {
        native.read(span.addr, &mut scratch[start..start + span.len])?;
        start += span.len;
    }
    let mut rest = &mut *scratch;
    for span in &spans[..count] {
        let (bytes, after) = rest.split_at_mut(span.len);
        args[span.arg] = Arg::Bytes(bytes);
        rest = after;
    }
    let ret = run(&mut made).unwrap_or_else(Errno::as_ret);
    let mut start = 0;
    for span in &spans[..count] {
        if span.write && span.len > 0 {
            native.write(span.addr, &scratch[start..start + span.len])?;
        }
        start += span.len;
    }
    Ok(ret)
}

// ---- shorter ways ----

/// What a helper takes and what it does, as constants where its entry is compiled: no table is read on the way in.
struct Known<const ID: u32>;

impl<const ID: u32> Known<ID> {
    const ARGS: [Option<xway_abi::Arg>; 5] = {
        let (mut args, mut n) = ([None; 5], 0);
        if let Some(proto) = xway_abi::helper(ID) {
            while n < proto.args.len() {
                args[n] = Some(proto.args[n]);
                n += 1;
            }
        }
        args
    };
    const RUN: Option<PlainFn> = match machine::implementation(ID) {
        Some(Implementation::Plain(run)) => Some(run),
        _ => None,
    };
}

/// A helper whose memory lies on the stack, all of it: it works there, without a copy.
extern "C" fn borrowed<const ID: u32>(env: *mut RunEnv<'_>, a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    let regs = [a, b, c, d, e];
    let mut made = made(&mut native);
    let mut lent = Lent { last: 0..0 };
    // One by one, so that each knows what it is.
    let apart = lent.lend::<ID, 0>(&native, &regs, &mut made)
        && lent.lend::<ID, 1>(&native, &regs, &mut made)
        && lent.lend::<ID, 2>(&native, &regs, &mut made)
        && lent.lend::<ID, 3>(&native, &regs, &mut made)
        && lent.lend::<ID, 4>(&native, &regs, &mut made);
    if apart { run_plain::<ID>(&mut made) } else { call::<ID>(&mut native, regs) }
}

/// What arguments in front of one have been.
struct Lent {
    /// The memory that was lent last.
    last: std::ops::Range<u64>,
}

impl Lent {
    /// Puts one argument into its place; false where its memory overlaps with that of another: what a helper writes of one it must not
    /// see in the other.
    #[inline(always)]
    fn lend<const ID: u32, const N: usize>(
        &mut self,
        native: &Native<'_, '_>,
        regs: &[u64; 5],
        made: &mut Call<'_, '_>,
    ) -> bool {
        let (Some(arg), reg) = (const { Known::<ID>::ARGS[N] }, regs[N]) else { return true };
        made.args[N] = match arg.kind {
            _ if arg.nullable && reg == 0 => Arg::Null,
            ArgKind::Size { .. } | ArgKind::Ctx => return true,
            kind => match len_of(native, kind, None, reg, regs.get(N + 1)) {
                Some(len) if reg < self.last.end && self.last.start < reg + len as u64 => return false,
                Some(len) => {
                    self.last = reg..reg + len as u64;
                    // SAFETY: `calls::borrows`: memory arguments are proved to lie on the stack, which is not the frame; there are two at
                    // most, which do not overlap.
                    Arg::Bytes(unsafe { native.stack(reg, len) })
                }
                None => Arg::Num(reg),
            },
        };
        true
    }
}

/// A helper whose arguments are numbers and the context.
extern "C" fn numbers_entry<const ID: u32>(env: *mut RunEnv<'_>, a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    let mut made = made(&mut native);
    for (n, reg) in [a, b, c, d, e].into_iter().enumerate() {
        made.args[n] = Arg::Num(reg);
    }
    let ret = run_plain::<ID>(&mut made);
    if matches!(ID, JIFFIES | COARSE) && native.host().ticks().is_some() {
        native.env_mut().ticks_left = TICK_READINGS;
    }
    if let Some(n) = super::once(ID) {
        native.env_mut().told[n] = ret.wrapping_add(1);
    }
    ret
}

/// A call whose arguments are put into their places: moved there they would be read by wider loads than they were stored by, for which
/// processors wait.
#[inline(always)]
fn made<'c, 'e: 'c>(native: &mut Native<'_, 'e>) -> Call<'c, 'e> {
    let frame = native.frame_mut();
    let (host, guard, cpu) = (native.host(), native.guard(), native.cpu());
    Call { host, guard, cpu, frame, args: [const { Arg::None }; 5] }
}

#[inline(always)]
fn run_plain<const ID: u32>(call: &mut Call<'_, '_>) -> u64 {
    let Some(run) = Known::<ID>::RUN else { return Errno::EINVAL.as_ret() };
    run(call).unwrap_or_else(Errno::as_ret)
}

/// Readings of the clocks of ticks, in one burst, from one that asks the system to the next one.
const TICK_READINGS: u32 = 63;

/// `bpf_map_lookup_elem` with a key on the stack.
pub(super) extern "C" fn map_lookup(env: *mut RunEnv<'_>, map: u64, key: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    // SAFETY: `calls::typed`: the key is proved to lie on the stack, which nothing writes meanwhile.
    found(&native, map, unsafe { native.bytes(key, map.key_size()) })
}

/// The same with a key in the packet, which another process may write.
pub(super) extern "C" fn map_lookup_packet(env: *mut RunEnv<'_>, map: u64, key: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    native.with_copy(key, map.key_size(), |key| found(&native, map, key))
}

fn found(native: &Native<'_, '_>, map: &Map, key: &[u8]) -> u64 {
    map.value(native.cpu(), key, native.guard()).map_or(0, |v| v.as_ptr() as u64)
}

/// The same in a map of maps: the inner map's address, or 0. The key lies on the stack.
pub(super) extern "C" fn inner_lookup(env: *mut RunEnv<'_>, map: u64, key: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    // SAFETY: as in `map_lookup`.
    inner(&native, map, unsafe { native.bytes(key, map.key_size()) })
}

/// The same with a key in the packet.
pub(super) extern "C" fn inner_lookup_packet(env: *mut RunEnv<'_>, map: u64, key: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    native.with_copy(key, map.key_size(), |key| inner(&native, map, key))
}

fn inner(native: &Native<'_, '_>, map: &Map, key: &[u8]) -> u64 {
    map.inner(key, native.guard()).map_or(0, |inner| std::sync::Arc::as_ptr(inner) as u64)
}

/// `bpf_map_update_elem` with key and value on the stack.
pub(super) extern "C" fn map_update(env: *mut RunEnv<'_>, map: u64, key: u64, value: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    // SAFETY: as in `map_lookup`. Key and value may overlap: both are only read.
    let (key, value) = unsafe { (native.bytes(key, map.key_size()), native.bytes(value, map.value_size())) };
    map.prog_update(native.cpu(), key, value, flags).map_or_else(Errno::as_ret, |()| 0)
}

/// `bpf_map_delete_elem` with a key on the stack.
pub(super) extern "C" fn map_delete(env: *mut RunEnv<'_>, map: u64, key: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let map = native.map(map);
    // SAFETY: as in `map_lookup`.
    let key = unsafe { native.bytes(key, map.key_size()) };
    map.prog_delete(native.cpu(), key).map_or_else(Errno::as_ret, |()| 0)
}

/// `bpf_redirect_map`
pub(super) extern "C" fn redirect_map(env: *mut RunEnv<'_>, map: u64, key: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    with_target(&mut native, |native| {
        let (map, frame, guard) = (native.map(map), native.frame_mut(), native.guard());
        machine::redirect_through(map, key as u32, flags, frame, guard)
    })
}

/// What may ask for the frame's target and change it, of a program in a chain whose frame has forgotten it.
fn with_target<'n, 'e>(native: &mut Native<'n, 'e>, run: impl FnOnce(&mut Native<'n, 'e>) -> u64) -> u64 {
    if let Some(frame) = native.frame_mut() {
        native.env().recall_target(frame);
    }
    let ret = run(native);
    if let Some(frame) = native.frame_mut() {
        native.env_mut().note_target(frame);
    }
    ret
}

/// `bpf_csum_diff`, over bytes that others may write: each is read once. A few at odd addresses are copied, and added up there.
pub(super) extern "C" fn csum_diff(
    env: *mut RunEnv<'_>,
    from: u64,
    from_len: u64,
    to: u64,
    to_len: u64,
    seed: u64,
) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    let memory = |at: u64, len: u64| ((at, len as u32 as usize), len as u32 == 0);
    machine::csum_diff_by(memory(from, from_len), memory(to, to_len), seed as u32, |(mut at, mut left), mut sum| {
        if let Some(words) = native.memory(at, left).and_then(|memory| memory.sum_of_words()) {
            return machine::csum_folded(words + u64::from(sum));
        }
        // A multiple of a word, so that the sum of the next piece goes on from this one's.
        let mut piece = [0; 256];
        while left > 0 {
            let part = &mut piece[..left.min(256)];
            native.copy(at, part);
            sum = machine::csum_partial(part, sum);
            (at, left) = (at + part.len() as u64, left - part.len());
        }
        sum
    })
}

/// `bpf_strncmp`, over bytes that others may write.
pub(super) extern "C" fn strncmp(env: *mut RunEnv<'_>, text: u64, len: u64, other: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    // SAFETY: so many bytes are proved to lie there; of the constant text none behind its zero is asked for.
    unsafe { machine::compare(len as u32 as usize, |n| native.byte(text, n), |n| native.byte(other, n)) }
}

/// `bpf_xdp_load_bytes` to the stack.
pub(super) extern "C" fn load_bytes(env: *mut RunEnv<'_>, _: u64, offset: u64, buf: u64, len: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    // SAFETY: `calls::typed`: the buffer is proved to lie on the stack, which is not the frame.
    let buf = unsafe { native.stack(buf, len as usize) };
    let done = native.frame_mut().ok_or(Errno::EINVAL).and_then(|f| machine::load_bytes(f, offset as u32, buf));
    done.map_or_else(Errno::as_ret, |()| 0)
}

/// `bpf_xdp_store_bytes` from the stack.
pub(super) extern "C" fn store_bytes(env: *mut RunEnv<'_>, _: u64, offset: u64, buf: u64, len: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    // SAFETY: as in `load_bytes`.
    let buf = unsafe { native.stack(buf, len as usize) };
    let done = native.frame_mut().ok_or(Errno::EINVAL).and_then(|f| machine::store_bytes(f, offset as u32, buf));
    done.map_or_else(Errno::as_ret, |()| 0)
}

/// `bpf_check_mtu` with the length on the stack.
pub(super) extern "C" fn check_mtu(env: *mut RunEnv<'_>, _: u64, ifindex: u64, len: u64, diff: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    // SAFETY: as in `load_bytes`.
    let len = unsafe { native.stack(len, 4) };
    let done = native.frame_mut().ok_or(Errno::EINVAL).and_then(|frame| {
        machine::check_mtu(frame, ifindex as u32, len, diff as i32, flags, |ifindex| native.device(ifindex))
    });
    done.unwrap_or_else(Errno::as_ret)
}

/// `bpf_fib_lookup` with the parameters on the stack.
pub(super) extern "C" fn fib_lookup(env: *mut RunEnv<'_>, _: u64, params: u64, len: u64, flags: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let native = unsafe { Native::new(env) };
    // SAFETY: as in `load_bytes`.
    let params = unsafe { native.stack(params, len as u32 as usize) };
    machine::fib_lookup(native.host(), params, flags as u32).unwrap_or_else(Errno::as_ret)
}

// ---- tail calls ----

/// Where `bpf_tail_call` goes, with the call counted: code of [`crate::lower::Shape::Single`], or 0 when the program goes on.
pub(super) extern "C" fn tail_target(env: *mut RunEnv<'_>, map: u64, index: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    let map = native.map(map);
    // The index is 32 bits wide, whatever stands above.
    let Some(next) = map.program(index as u32, native.guard()) else { return 0 };
    let Some(next) = next.as_any().downcast_ref::<xway_vm::Program>() else { return 0 };
    let cpu = native.cpu();
    let env = native.env_mut();
    if env.tail_calls >= TAIL_CALLS_MAX {
        return 0;
    }
    env.tail_calls += 1;
    let code = next.tail().and_then(|code| code.downcast_ref::<Compiled>()).and_then(|c| c.tail_entry(cpu));
    code.unwrap_or_else(|| {
        env.next = Some(next);
        interpret as *const () as u64
    })
}

/// A program was jumped to whose per-CPU maps have no values for this worker.
pub(super) extern "C" fn wrong_cpu(env: *mut RunEnv<'_>) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    let cpu = native.cpu();
    native.fault(FaultKind::Call(format!("a tail call to a program whose per-CPU maps have no values for CPU {cpu}")))
}

/// Stands in for the code of a program that has none: the interpreter goes on with it.
extern "C" fn interpret(env: *mut RunEnv<'_>, _: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    let (guard, host, timers, cpu) = (native.guard(), native.host(), native.timers(), native.cpu());
    let (next, mut tail_calls) = (native.env_mut().next.take(), native.env().tail_calls);
    with_target(&mut native, |native| {
        let Some((next, frame)) = next.zip(native.frame_mut()) else { return 0 };
        let mut env = xway_vm::Env::new(guard, host, cpu).with_timers(timers);
        let outcome = xway_vm::run_tail(next, frame, &mut env, &mut tail_calls);
        native.env_mut().tail_calls = tail_calls;
        if let Some(fault) = outcome.fault {
            native.fault(fault.kind);
        }
        outcome.ret
    })
}

// ---- kernel functions ----

extern "C" fn kfunc_entry<const N: usize>(env: *mut RunEnv<'_>, a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    // SAFETY: called by generated code with the run's environment.
    let mut native = unsafe { Native::new(env) };
    machine::kfunc(&mut native, KFUNCS[N], &[a, b, c, d, e]).unwrap_or_else(|trap| native.fault(*trap))
}

const KFUNCS: [Kfunc; 16] = [
    Kfunc::RxTimestamp,
    Kfunc::RxHash,
    Kfunc::RxVlanTag,
    Kfunc::DynptrFromXdp,
    Kfunc::DynptrSlice { writable: false },
    Kfunc::DynptrSlice { writable: true },
    Kfunc::DynptrAdjust,
    Kfunc::DynptrIsNull,
    Kfunc::DynptrIsRdonly,
    Kfunc::DynptrSize,
    Kfunc::DynptrClone,
    Kfunc::IterNumNew,
    Kfunc::IterNumNext,
    Kfunc::IterNumDestroy,
    Kfunc::Region,
    Kfunc::PoolPressure,
];

/// The entry of a kernel function.
pub(super) fn kfunc(which: Kfunc) -> usize {
    macro_rules! table {
        ($($n:literal)*) => { [$(kfunc_entry::<$n> as *const () as usize),*] };
    }
    let entries = table!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    KFUNCS.iter().position(|k| *k == which).map_or(entries[14], |n| entries[n])
}

// ---- tables ----

macro_rules! entries {
    ($id:ident, $entry:ident, $($n:literal)*) => {
        match $id {
            $($n => Some($entry::<$n> as *const () as usize),)*
            _ => None,
        }
    };
}

/// The general entry of the helper with this number; one that always faults when there is none.
pub(super) fn general(id: u32) -> usize {
    let found = entries!(id, helper,
        1 2 3 5 6 7 8 14 15 16 17 22 23 25 28 35 37 42 44 51 54 55 65 69 80 84 85 86 87 88 89 93 94 99 100 105 106 109 110
        112 113 114 115 117 118 120 123 125 130 131 132 133 134 136 137 138 139 140 141 148 149 153 154 156 157 158 160 163
        164 165 169 170 171 172 175 176 177 178 180 181 182 188 189 190 191 194 195 196 197 198 199 200 201 202 203 204 205
        206 207 208 209 210 211);
    found.unwrap_or(helper::<0> as *const () as usize)
}

/// The short entry of a helper that takes numbers and the context only.
pub(super) fn numbers(id: u32) -> Option<usize> {
    entries!(id, numbers_entry, 5 7 8 14 15 17 23 42 44 54 65 80 118 123 125 160 188 208)
}

/// The entry of a helper that works on the stack; only plain ones have some.
pub(super) fn on_stack(id: u32) -> Option<usize> {
    entries!(id, borrowed, 16 105 106 120)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_helper_has_its_own_entry() {
        let none = helper::<0> as *const () as usize;
        let mut seen = std::collections::BTreeSet::new();
        for h in xway_abi::helpers().iter().filter(|h| !h.is_tail_call()) {
            let entry = general(h.id);
            assert_eq!(entry != none, machine::implementation(h.id).is_some(), "{} ({})", h.name, h.id);
            assert!(entry == none || seen.insert(entry), "{} shares its entry", h.name);
        }
    }

    #[test]
    fn who_works_on_the_stack_has_two_arguments_there_at_most() {
        let with_entry: Vec<_> = xway_abi::helpers().iter().filter(|h| on_stack(h.id).is_some()).collect();
        assert_eq!(with_entry.len(), 4);
        for h in with_entry {
            let memory = |arg: &&xway_abi::Arg| super::super::is_memory(arg.kind);
            assert!((1..=2).contains(&h.args.iter().filter(memory).count()), "{}", h.name);
            assert!(h.args.iter().all(|arg| arg.kind != ArgKind::ConstStr), "{}", h.name);
            assert!(h.args.iter().all(|arg| arg.kind != ArgKind::ConstMap), "{}", h.name);
            assert!(matches!(machine::implementation(h.id), Some(Implementation::Plain(_))), "{}", h.name);
        }
    }

    #[test]
    fn every_kernel_function_has_its_own_entry() {
        let entries: std::collections::BTreeSet<usize> = KFUNCS.iter().map(|k| kfunc(*k)).collect();
        assert_eq!(entries.len(), KFUNCS.len());
    }
}
