//! Pins of this hook, and what else keeps what they name.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use xway_maps::{Guard, Map, ProgramObject};
use xway_vm::Program;

use super::{Pinned, User, holds_programs};
use crate::{MapId, ObjectId, PinInfo, ProgId};

/// Maps and programs by number.
#[derive(Default)]
pub(super) struct Reached {
    pub maps: HashSet<u32>,
    pub programs: HashSet<u32>,
}

impl User {
    /// What can be used: from what the hook holds and what is attached on, and from the pins too where they count.
    pub(super) fn reached(&self, pins: bool) -> Reached {
        let mut open: Vec<Arc<Program>> = self.programs.values().map(|p| p.program.clone()).collect();
        open.extend(self.attached().into_iter().map(|p| p.program.clone()));
        // Not before the engine has answered, which may be in the middle of a change: what maps let go waits for guards.
        let guard = Guard::pin();
        let mut maps: Vec<Arc<Map>> = self.maps.values().cloned().collect();
        for pin in self.pins.values().filter(|_| pins) {
            match pin {
                Pinned::Map(map) => maps.push(map.clone()),
                Pinned::Program(program) => open.push(program.program.clone()),
            }
        }
        let mut found = Reached::default();
        loop {
            while let Some(map) = maps.pop() {
                if found.maps.insert(map.id()) {
                    if holds_programs(&map) {
                        let program = |held: &Arc<dyn ProgramObject>| held.as_any().downcast_ref::<Program>()?.arc();
                        map.each_program(&guard, &mut |held| open.extend(program(held)));
                    }
                    map.each_inner(&guard, &mut |inner| maps.push(inner.clone()));
                }
            }
            let Some(program) = open.pop() else { return found };
            if found.programs.insert(program.id()) {
                maps.extend(program.maps().iter().cloned());
            }
        }
    }

    /// All pins by their paths, each with whether anything but pins keeps its object.
    pub fn pins(&self) -> Vec<PinInfo> {
        let used = self.reached(false);
        let one = |(path, pin): (&PathBuf, &Pinned)| {
            let (object, used) = match pin {
                Pinned::Map(map) => (ObjectId::Map(MapId(map.id())), used.maps.contains(&map.id())),
                Pinned::Program(p) => {
                    (ObjectId::Program(ProgId(p.program.id())), used.programs.contains(&p.program.id()))
                }
            };
            PinInfo { path: path.clone(), object, used }
        };
        self.pins.iter().map(one).collect()
    }
}
