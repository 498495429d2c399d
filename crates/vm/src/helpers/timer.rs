//! Timers in map values.
//!
//! `struct bpf_timer` is 16 opaque bytes in a map value. Here the first eight hold a number, under which the rest stands in
//! a [`Timers`] table: map, key, callback, due time. A timer belongs to its element: when the element is gone or has been
//! given to another key, the number is no longer found in it and the timer dies when it is due. Callbacks run when a worker
//! asks for what is due, between bursts.
//!
//! Workers wait for each other at the table, and there may be a million timers: nobody goes over all of them while he has it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
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

#[derive(Debug)]
struct Table {
    next: u64,
    /// By number: in the order in which they were made.
    timers: BTreeMap<u64, Timer>,
    /// Those that are armed, by clock ([`CLOCKS`]): due time and number. Workers look at the first of each behind every burst.
    armed: [BTreeSet<(u64, u64)>; CLOCKS.len()],
    /// The maps that have timers, by their numbers, and how many.
    maps: BTreeMap<u32, (Arc<Map>, usize)>,
    /// The last one that was looked at whether its element is still there.
    looked: u64,
    /// Timers that there may be.
    max: usize,
}

impl Default for Table {
    fn default() -> Table {
        let (timers, armed, maps) = Default::default();
        Table { next: 0, timers, armed, maps, looked: 0, max: TIMERS_MAX }
    }
}

/// Clocks that timers go by.
const CLOCKS: [Clock; 3] = [Clock::Monotonic, Clock::Boot, Clock::Real];

/// Timers that are looked at for each new one: more than one, so that those whose elements are gone become no more than the others.
const LOOKS: usize = 2;
/// The same where there is no room.
const LOOKS_FULL: usize = 64;
/// Timers that are taken out at once.
const AT_ONCE: usize = 1024;
/// Callbacks that are run before packets have their turn.
const RUNS_MAX: usize = 256;

impl Table {
    /// Makes a timer, if there is room. Looks at some others, one after the other, and takes out those whose elements are gone: they are
    /// dropped without the lock, because a map that goes may take along what asks for timers.
    fn make(
        &mut self,
        map: Arc<Map>,
        key: Box<[u8]>,
        clock: Clock,
        guard: &xway_maps::Guard,
    ) -> (Option<u64>, Vec<Timer>) {
        // The fewer places are left, the more: all have been looked at before the last one is taken.
        let room = self.max.saturating_sub(self.timers.len());
        let looks =
            (2 * self.timers.len()).checked_div(room).map_or(LOOKS_FULL, |looks| looks.clamp(LOOKS, LOOKS_FULL));
        let mut gone = vec![];
        for _ in 0..looks {
            let next = self.timers.range((Bound::Excluded(self.looked), Bound::Unbounded)).next();
            let Some((&id, timer)) = next.or_else(|| self.timers.first_key_value()) else { break };
            self.looked = id;
            if !timer.map.value(0, &timer.key, guard).is_some_and(|value| holds(&value, id)) {
                gone.extend(self.remove(id));
            }
        }
        if self.timers.len() >= self.max {
            return (None, gone);
        }
        self.next += 1;
        self.maps.entry(map.id()).or_insert_with(|| (map.clone(), 0)).1 += 1;
        self.timers.insert(self.next, Timer { map, key, clock, callback: None, due: None });
        (Some(self.next), gone)
    }

    fn remove(&mut self, id: u64) -> Option<Timer> {
        self.arm(id, None);
        let timer = self.timers.remove(&id)?;
        if let Some((_, count)) = self.maps.get_mut(&timer.map.id()) {
            *count -= 1;
            if *count == 0 {
                self.maps.remove(&timer.map.id());
            }
        }
        Some(timer)
    }

    /// Takes those of these maps out among the next timers behind a number, and says up to which it looked; `None`: there are no more.
    fn end_some(&mut self, behind: u64, gone: &BTreeSet<u32>) -> (Vec<Timer>, Option<u64>) {
        let next = self.timers.range((Bound::Excluded(behind), Bound::Unbounded)).take(AT_ONCE);
        let next: Vec<(u64, bool)> = next.map(|(id, timer)| (*id, gone.contains(&timer.map.id()))).collect();
        let ended = next.iter().filter(|(_, gone)| *gone).filter_map(|(id, _)| self.remove(*id)).collect();
        (ended, next.last().map(|(id, _)| *id))
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

    /// Disarms the first that is due by these times of the clocks, and gives it with its number.
    fn take_due(&mut self, times: &[u64; CLOCKS.len()]) -> Option<(u64, Timer)> {
        let due = self.armed.iter().zip(times).filter_map(|(armed, now)| armed.first().filter(|(at, _)| at <= now));
        let (_, id) = *due.min()?;
        self.arm(id, None);
        let timer = self.timers.get(&id)?.clone();
        Some((id, timer))
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
    ///
    /// Each map is asked about once, and workers have their turns in between.
    pub fn forget(&self, gone: impl Fn(&Map) -> bool) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        let maps: Vec<Arc<Map>> = self.lock().maps.values().map(|(map, _)| map.clone()).collect();
        let gone: BTreeSet<u32> = maps.iter().filter(|map| gone(map)).map(|map| map.id()).collect();
        let mut from = (!gone.is_empty()).then_some(0);
        while let Some(last) = from {
            // What goes with them goes without the lock.
            let ended;
            (ended, from) = self.lock().end_some(last, &gone);
            drop(ended);
            std::thread::yield_now();
        }
    }

    /// Runs the callbacks of timers that are due, one after the other, and returns how many ran and which of them faulted. What one of them
    /// ends or puts off does not run; of very many that are due some are left for the next call. To be called without a guard, between
    /// bursts.
    pub fn run_due(&self, host: &dyn crate::Host, cpu: u32) -> (usize, Vec<Fault>) {
        let (mut ran, mut faults) = (0, vec![]);
        let times = CLOCKS.map(|clock| host.clock_ns(clock));
        for _ in 0..RUNS_MAX {
            let Some((id, timer)) = self.lock().take_due(&times) else { break };
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
            let ended = vm.timer_callback(program, *entry, &timer, value);
            let fault = vm.stopped.take();
            vm.clean_up();
            if ended.is_err() {
                faults.extend(fault.map(|fault| *fault));
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
    let made;
    let mut table = vm.timers().lock();
    let id = place.load(0, 8).unwrap_or(0);
    if table.timers.contains_key(&id) {
        return Ok(Errno::EBUSY.as_ret());
    }
    (made, _gone) = table.make(map, key, clock, vm.guard());
    let Some(id) = made else { return Ok(Errno::ENOMEM.as_ret()) };
    vm.timers().used.store(true, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use xway_abi::{MapSpec, MapType};
    use xway_maps::Guard;

    use super::*;

    fn map(entries: u32) -> Arc<Map> {
        Map::create(&MapSpec::new(MapType::Hash, 4, 16, entries), &xway_maps::Env::with_cpus(1)).unwrap()
    }

    /// A new element with a timer; `None`: there is no room.
    fn make(table: &mut Table, map: &Arc<Map>, key: u32) -> Option<u64> {
        let (key, guard) = (key.to_ne_bytes(), Guard::pin());
        let id = table.make(map.clone(), key.into(), Clock::Monotonic, &guard).0?;
        map.update(&key, &[id.to_ne_bytes(), [0; 8]].concat(), 0).unwrap();
        Some(id)
    }

    /// However many live, those whose elements have gone make room for others.
    #[test]
    fn timers_of_nobody_are_in_nobodys_way() {
        const MAX: u32 = 1 << 12;
        for living in [10, MAX / 4, 3 * MAX / 4, 7 * MAX / 8] {
            let (map, mut table) = (map(MAX), Table { max: MAX as usize, ..Table::default() });
            assert!((0..living).all(|key| make(&mut table, &map, key).is_some()));
            for turn in 0..4 * MAX {
                let key = living + turn % 16;
                assert!(make(&mut table, &map, key).is_some(), "{living} live, {turn} went");
                map.delete(&key.to_ne_bytes()).unwrap();
            }
            assert!(table.timers.len() <= 2 * living as usize + 16, "{} for {living}", table.timers.len());
            assert_eq!(table.maps[&map.id()].1, table.timers.len());
        }
    }

    /// The timers of maps that go are ended, whatever their number, and no others.
    #[test]
    fn maps_that_go_take_their_timers_along() {
        let (timers, maps) = (Timers::default(), [map(8192), map(8192)]);
        timers.used.store(true, Ordering::Release);
        for key in 0..3 * AT_ONCE as u32 {
            let id = make(&mut timers.lock(), &maps[key as usize % 2], key).unwrap();
            timers.lock().arm(id, Some(u64::from(key)));
        }
        let mut asked = Mutex::new(0);
        timers.forget(|map| {
            *asked.lock().unwrap() += 1;
            map.id() == maps[0].id()
        });
        assert_eq!((*asked.get_mut().unwrap(), timers.len()), (2, 3 * AT_ONCE / 2));
        let table = timers.lock();
        assert!(table.timers.values().all(|timer| timer.map.id() == maps[1].id()));
        assert_eq!((table.armed[0].len(), table.maps.len()), (table.timers.len(), 1));
        assert_eq!((Arc::strong_count(&maps[0]), timers.table.try_lock().is_err()), (1, true));
    }
}
