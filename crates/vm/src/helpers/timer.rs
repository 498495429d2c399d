//! Timers in map values.
//!
//! `struct bpf_timer` is 16 opaque bytes in a map value. Here the first eight hold a number, under which the rest stands in
//! a [`Timers`] table: map, key, callback, due time. A timer belongs to its element: when the element is gone or has been
//! given to another key, the number is no longer found in it and the timer dies when it is due. Callbacks run when a worker
//! asks for what is due, between bursts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use xway_abi::{Errno, HelperProto};
use xway_maps::{Map, ValueRef};

use crate::Fault;
use crate::addr;
use crate::env::Env;
use crate::fault::Trap;
use crate::host::Clock;
use crate::machine::Machine;
use crate::mem::Vm;
use crate::program::Program;

/// The timers that programs have made.
#[derive(Debug, Default)]
pub struct Timers {
    table: Mutex<Table>,
    /// A timer was ever made. Workers ask for what is due after every burst, and without timers that must be one load: a lock of all
    /// workers would keep them from running side by side.
    used: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    timers: HashMap<u64, Timer>,
    /// How many the last sweep left.
    kept: usize,
}

impl Table {
    /// Forgets the timers whose elements are gone, now and then: its cost is shared by the timers that were made since.
    fn sweep(&mut self, guard: &xway_maps::Guard) {
        const FEW: usize = 1024;
        if self.timers.len() < FEW.max(2 * self.kept) {
            return;
        }
        self.timers.retain(|id, timer| timer.map.value(0, &timer.key, guard).is_some_and(|v| holds(&v, *id)));
        self.kept = self.timers.len();
    }
}

#[derive(Debug, Clone)]
struct Timer {
    map: Arc<Map>,
    key: Box<[u8]>,
    clock: Clock,
    callback: Option<(Arc<Program>, usize)>,
    due: Option<u64>,
}

/// Timers that may exist at once; a program that wants more gets `ENOMEM`.
const TIMERS_MAX: usize = 1 << 20;

static SHARED: LazyLock<Timers> = LazyLock::new(Timers::default);

impl Timers {
    /// The table that all workers of the process share unless they are given another.
    pub fn shared() -> &'static Timers {
        &SHARED
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds until the next timer is due, by the host's clocks; 0 when one is due now. `None`: no timer is armed.
    pub fn next_due(&self, host: &dyn crate::Host) -> Option<u64> {
        if !self.used.load(Ordering::Acquire) {
            return None;
        }
        let table = self.lock();
        if table.timers.is_empty() {
            return None;
        }
        table.timers.values().filter_map(|t| t.due.map(|due| due.saturating_sub(host.clock_ns(t.clock)))).min()
    }

    /// Number of timers that exist, armed or not.
    pub fn len(&self) -> usize {
        self.lock().timers.len()
    }

    /// True when no timer exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the timers in maps that are `gone`: that nobody can reach any more but through them. A timer keeps its map, and its callback
    /// the program with all of its maps. Linux ends timers when the last one in user space lets go of the map.
    pub fn forget(&self, gone: impl Fn(&Map) -> bool) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        let ended: Vec<_> = self.lock().timers.extract_if(|_, timer| gone(&timer.map)).collect();
        // What goes with them goes without the lock.
        drop(ended);
    }

    /// Disarms and returns what is due.
    fn take_due(&self, host: &dyn crate::Host) -> Vec<(u64, Timer)> {
        let mut table = self.lock();
        let mut due: Vec<(u64, Timer)> = vec![];
        for (id, timer) in &mut table.timers {
            if timer.due.is_some_and(|t| t <= host.clock_ns(timer.clock)) {
                due.push((*id, timer.clone()));
                timer.due = None;
            }
        }
        due.sort_by_key(|(id, t)| (t.due, *id));
        due
    }

    /// Runs the callbacks of all timers that are due, and returns how many ran and which of them faulted. To be called with a
    /// fresh guard, between bursts.
    pub fn run_due(&self, host: &dyn crate::Host, cpu: u32) -> (usize, Vec<Fault>) {
        let (mut ran, mut faults) = (0, vec![]);
        for (id, timer) in self.take_due(host) {
            let Some((program, entry)) = &timer.callback else { continue };
            let guard = xway_maps::Guard::pin();
            let mut env = Env::new(&guard, host, cpu).with_timers(self);
            let value = timer.map.value(cpu, &timer.key, &guard).filter(|v| holds(v, id));
            let Some(value) = value else {
                self.lock().timers.remove(&id);
                continue;
            };
            ran += 1;
            let mut vm = Vm::new(&mut env, None, &mut []);
            if vm.timer_callback(program, *entry, &timer, value).is_err()
                && let Some(fault) = vm.stopped.take()
            {
                faults.push(*fault);
            }
        }
        (ran, faults)
    }
}

/// Whether the element still holds this timer, at any of its aligned places.
fn holds(value: &ValueRef<'_>, id: u64) -> bool {
    (0..value.len().saturating_sub(15)).step_by(8).any(|o| value.load(o, 8) == Ok(id))
}

impl<'e> Vm<'_, 'e> {
    fn timer_callback(
        &mut self,
        program: &'e Program,
        entry: usize,
        timer: &'e Timer,
        value: ValueRef<'e>,
    ) -> Result<(), ()> {
        let map = self.grant_map(&timer.map);
        let key = self.copy_region(&timer.key);
        let value = self.grant_value(value, timer.map.prog_readable(), timer.map.prog_writable()).map_err(|_| ())?;
        self.call(program, entry, [map, key, value, addr::POISON, addr::POISON]).map_err(|_| ())?;
        Ok(())
    }
}

/// The timer whose structure is at `addr`, locked in its table.
fn with_timer<'e, M: Machine<'e>, T>(vm: &M, addr: u64, with: impl FnOnce(Option<&mut Timer>) -> T) -> Result<T, Trap> {
    let place = vm.place(addr, 16)?;
    let id = place.load(0, 8).unwrap_or(0);
    Ok(with(vm.timers().lock().timers.get_mut(&id)))
}

const CLOCK_REALTIME: u64 = 0;
const CLOCK_MONOTONIC: u64 = 1;
const CLOCK_BOOTTIME: u64 = 7;

/// `bpf_timer_init(timer, map, clock)`
pub(crate) fn init<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let place = vm.place(r[0], 16)?;
    let map = vm.map_arg(proto, 1, r[1])?;
    let clock = match r[2] {
        CLOCK_MONOTONIC => Clock::Monotonic,
        CLOCK_BOOTTIME => Clock::Boot,
        CLOCK_REALTIME => Clock::Real,
        _ => return Ok(Errno::EINVAL.as_ret()),
    };
    // As Linux answers where nobody holds the map any more.
    let Some(map) = map.arc() else { return Ok(Errno::EPERM.as_ret()) };
    // The element's key is needed later, and only the timer's address is known: find it.
    let wanted = place.addr();
    let mut key = None;
    let _ = map.for_each(vm.cpu(), vm.guard(), &mut |k, v| {
        if (v.addr()..v.addr() + v.len()).contains(&wanted) {
            key = Some(k.into());
        }
        key.is_none()
    });
    // The element may have been deleted meanwhile, by this program or by another: then the timer is made, as in Linux, and
    // belongs to nobody. No element has an empty key.
    let key = key.unwrap_or_default();
    let mut table = vm.timers().lock();
    let id = place.load(0, 8).unwrap_or(0);
    if table.timers.contains_key(&id) {
        return Ok(Errno::EBUSY.as_ret());
    }
    table.sweep(vm.guard());
    if table.timers.len() >= TIMERS_MAX {
        return Ok(Errno::ENOMEM.as_ret());
    }
    table.next += 1;
    let id = table.next;
    vm.timers().used.store(true, Ordering::Release);
    table.timers.insert(id, Timer { map, key, clock, callback: None, due: None });
    let _ = place.store(0, 8, id);
    Ok(0)
}

/// `bpf_timer_set_callback(timer, callback)`
pub(crate) fn set_callback<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let callback = vm.owned_callback(proto, 1, r[1])?;
    with_timer(vm, r[0], |timer| match (timer, callback) {
        (Some(timer), Some(callback)) => {
            timer.callback = Some(callback);
            0
        }
        _ => Errno::EINVAL.as_ret(),
    })
}

/// `bpf_timer_start(timer, nanoseconds, flags)`
pub(crate) fn start<'e, M: Machine<'e>>(vm: &mut M, _: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    const ABSOLUTE: u64 = 1;
    const CPU_PIN: u64 = 2;
    let host = vm.host();
    if r[2] & !(ABSOLUTE | CPU_PIN) != 0 {
        return Ok(Errno::EINVAL.as_ret());
    }
    with_timer(vm, r[0], |timer| match timer {
        Some(timer) if timer.callback.is_some() => {
            let from = if r[2] & ABSOLUTE != 0 { 0 } else { host.clock_ns(timer.clock) };
            timer.due = Some(from.saturating_add(r[1]));
            0
        }
        _ => Errno::EINVAL.as_ret(),
    })
}

/// `bpf_timer_cancel(timer)`: 1 when it was armed.
pub(crate) fn cancel<'e, M: Machine<'e>>(vm: &mut M, _: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    with_timer(vm, r[0], |timer| match timer {
        Some(timer) => {
            timer.callback = None;
            u64::from(timer.due.take().is_some())
        }
        None => Errno::EINVAL.as_ret(),
    })
}
