//! Numbers for objects: what is written into maps of maps and programs, and what ids lead to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use xway_abi::Errno;
use xway_engine::Engine;
use xway_maps::{Map, ProgramObject};
use xway_vm::Surroundings;

use super::programs::Loaded;

/// The number that stands for the object with this id in a map's value.
pub(super) fn descriptor(id: u32) -> i32 {
    Surroundings::FD_FIRST.saturating_add(i32::try_from(id).unwrap_or(i32::MAX))
}

fn id(descriptor: i32) -> Option<u32> {
    u32::try_from(descriptor.checked_sub(Surroundings::FD_FIRST)?).ok()
}

/// Everything that is alive, by number. Holds nothing.
#[derive(Default)]
pub(super) struct Handles {
    maps: Mutex<BTreeMap<u32, Weak<Map>>>,
    programs: Mutex<BTreeMap<u32, Weak<Loaded>>>,
    /// Whose ports are the devices; before the first one is open any number may become one.
    engine: OnceLock<Weak<Engine>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one call on the table: it is whole even if its thread died behind it.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handles {
    pub fn add_map(&self, map: &Arc<Map>) {
        lock(&self.maps).insert(map.id(), Arc::downgrade(map));
    }

    pub fn add_program(&self, program: &Arc<Loaded>) {
        lock(&self.programs).insert(program.program.id(), Arc::downgrade(program));
    }

    /// From here on the devices are this engine's ports.
    pub fn devices_of(&self, engine: &Arc<Engine>) {
        let first = self.engine.set(Arc::downgrade(engine));
        debug_assert!(first.is_ok(), "a hook starts one engine");
    }

    pub fn find_map(&self, id: u32) -> Option<Arc<Map>> {
        lock(&self.maps).get(&id)?.upgrade()
    }

    pub fn find_program(&self, id: u32) -> Option<Arc<Loaded>> {
        lock(&self.programs).get(&id)?.upgrade()
    }

    pub fn maps(&self) -> Vec<Arc<Map>> {
        let mut all = lock(&self.maps);
        all.retain(|_, map| map.strong_count() > 0);
        all.values().filter_map(Weak::upgrade).collect()
    }

    pub fn programs(&self) -> Vec<Arc<Loaded>> {
        let mut all = lock(&self.programs);
        all.retain(|_, program| program.strong_count() > 0);
        all.values().filter_map(Weak::upgrade).collect()
    }

    pub fn alive(&self) -> (usize, usize) {
        (self.maps().len(), self.programs().len())
    }
}

impl xway_maps::Handles for Handles {
    fn map(&self, fd: i32) -> Result<Arc<Map>, Errno> {
        id(fd).and_then(|id| self.find_map(id)).ok_or(Errno::EBADF)
    }

    fn program(&self, fd: i32) -> Result<Arc<dyn ProgramObject>, Errno> {
        let found = id(fd).and_then(|id| self.find_program(id)).ok_or(Errno::EBADF)?;
        Ok(found.program.clone())
    }

    fn device(&self, ifindex: u32) -> bool {
        let engine = self.engine.get().and_then(Weak::upgrade);
        engine.is_none_or(|engine| engine.ports().iter().any(|port| port.ifindex == ifindex))
    }
}
