//! Timers in map values.
//!
//! `struct bpf_timer` is 16 opaque bytes in a map value. Here the first eight hold a number, under which the rest stands in
//! a [`Timers`] table: map, key, callback, due time. A timer belongs to its element: when the element is gone or has been
//! given to another key, the number is no longer found in it and the timer dies when it is due. Callbacks run when a worker
//! asks for what is due, between bursts.

use std::collections::{BTreeSet, HashMap};
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
    /// Those that are armed, by clock ([`CLOCKS`]): due time and number. Workers look at the first of each behind every burst.
    armed: [BTreeSet<(u64, u64)>; CLOCKS.len()],
    /// How many the last sweep left.
    kept: usize,
}

/// Clocks that timers go by.
const CLOCKS: [Clock; 3] = [Clock::Monotonic, Clock::Boot, Clock::Real];

impl Table {
    /// Forgets the timers whose elements are gone, now and then: its cost is shared by the timers that were made since. What it gives
    /// is dropped without the lock: a map that goes may take along what asks for timers.
    #[must_use]
    fn sweep(&mut self, guard: &xway_maps::Guard) -> Vec<Timer> {
        const FEW: usize = 1024;
        if self.timers.len() < FEW.max(2 * self.kept) {
            return vec![];
        }
        let gone = self.take_out(|id, timer| !timer.map.value(0, &timer.key, guard).is_some_and(|v| holds(&v, id)));
        self.kept = self.timers.len();
        gone
    }

    /// Takes timers out.
    fn take_out(&mut self, gone: impl Fn(u64, &Timer) -> bool) -> Vec<Timer> {
        let ids: Vec<u64> = self.timers.iter().filter(|(id, timer)| gone(**id, timer)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    fn remove(&mut self, id: u64) -> Option<Timer> {
        self.arm(id, None);
        self.timers.remove(&id)
    }

    /// Says when a timer is due, or that it is not armed; gives what was said before.
    fn arm(&mut self, id: u64, due: Option<u64>) -> Option<u64> {
        let timer = self.timers.get_mut(&id)?;
        let before = std::mem::replace(&mut timer.due, due);
        if let Some(armed) = CLOCKS.iter().position(|clock| *clock == timer.clock).map(|n| &mut self.armed[n]) {
            before.map(|due| armed.remove(&(due, id)));
            due.map(|due| armed.insert((due, id)));
        }
        before
    }

    /// Of each clock with an armed timer: the clock, and when the first is due.
    fn firsts(&self) -> impl Iterator<Item = (Clock, u64)> + '_ {
        CLOCKS.iter().zip(&self.armed).filter_map(|(clock, armed)| Some((*clock, armed.first()?.0)))
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
        table.firsts().map(|(clock, due)| due.saturating_sub(host.clock_ns(clock))).min()
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
        let ended = self.lock().take_out(|_, timer| gone(&timer.map));
        // What goes with them goes without the lock.
        drop(ended);
    }

    /// Disarms and returns what is due.
    fn take_due(&self, host: &dyn crate::Host) -> Vec<(u64, Timer)> {
        let mut table = self.lock();
        let mut due: Vec<(u64, Timer)> = vec![];
        for (clock, n) in CLOCKS.into_iter().zip(0..) {
            if table.armed[n].is_empty() {
                continue;
            }
            let now = host.clock_ns(clock);
            while let Some((at, id)) = table.armed[n].first().copied().filter(|(at, _)| *at <= now) {
                due.extend(table.timers.get(&id).map(|timer| (id, timer.clone())));
                if table.arm(id, None).is_none() {
                    table.armed[n].remove(&(at, id));
                }
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
                let gone = self.lock().remove(id);
                drop(gone);
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

/// The table with the number of the timer whose structure is at `addr`, if there is such a timer.
fn with_timer<'e, M: Machine<'e>, T>(
    vm: &M,
    addr: u64,
    with: impl FnOnce(&mut Table, Option<u64>) -> T,
) -> Result<T, Trap> {
    let place = vm.place(addr, 16)?;
    let id = place.load(0, 8).unwrap_or(0);
    let mut table = vm.timers().lock();
    let id = table.timers.contains_key(&id).then_some(id);
    Ok(with(&mut table, id))
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
    // The element's key is needed later. It may have been deleted meanwhile, by this program or by another: then the timer is made, as in
    // Linux, and belongs to nobody. No element has an empty key.
    let key = map.key_at(place.addr()).unwrap_or_default().into();
    // Behind the lock.
    let _gone;
    let mut table = vm.timers().lock();
    let id = place.load(0, 8).unwrap_or(0);
    if table.timers.contains_key(&id) {
        return Ok(Errno::EBUSY.as_ret());
    }
    _gone = table.sweep(vm.guard());
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
    // The old one goes behind the lock, with its program perhaps.
    let (ret, _old) =
        with_timer(vm, r[0], |table, id| match (id.and_then(|id| table.timers.get_mut(&id)), callback) {
            (Some(timer), Some(callback)) => (0, timer.callback.replace(callback)),
            (_, callback) => (Errno::EINVAL.as_ret(), callback),
        })?;
    Ok(ret)
}

/// `bpf_timer_start(timer, nanoseconds, flags)`
pub(crate) fn start<'e, M: Machine<'e>>(vm: &mut M, _: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    const ABSOLUTE: u64 = 1;
    const CPU_PIN: u64 = 2;
    let host = vm.host();
    if r[2] & !(ABSOLUTE | CPU_PIN) != 0 {
        return Ok(Errno::EINVAL.as_ret());
    }
    with_timer(vm, r[0], |table, id| {
        let ready = |id: &u64| table.timers.get(id).filter(|timer| timer.callback.is_some()).map(|timer| timer.clock);
        match id.and_then(|id| Some((id, ready(&id)?))) {
            Some((id, clock)) => {
                let from = if r[2] & ABSOLUTE != 0 { 0 } else { host.clock_ns(clock) };
                table.arm(id, Some(from.saturating_add(r[1])));
                0
            }
            None => Errno::EINVAL.as_ret(),
        }
    })
}

/// `bpf_timer_cancel(timer)`: 1 when it was armed.
pub(crate) fn cancel<'e, M: Machine<'e>>(vm: &mut M, _: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let (ret, _old) = with_timer(vm, r[0], |table, id| match id {
        Some(id) => {
            let armed = table.arm(id, None).is_some();
            (u64::from(armed), table.timers.get_mut(&id).and_then(|timer| timer.callback.take()))
        }
        None => (Errno::EINVAL.as_ret(), None),
    })?;
    Ok(ret)
}
