//! An object brought to life: its maps created and filled, its programs linked to them.

use std::sync::{Arc, OnceLock, Weak};

use xway_abi::{Errno, MapType};
use xway_maps::{CreateError, Env, Guard, Handles, Map, NoHandles, ProgramObject, SocketObject};
use xway_object::{Initial, MapDef, Object, SlotRef};
use xway_verifier::{Config, MapsView};

use crate::{LinkError, Program};

/// The maps of an object, alive and holding what the object says they hold before the first packet, and its programs.
///
/// User space writes maps and programs into maps by descriptor. An instance has descriptors of its own for that:
/// [`Instance::map_fd`] and [`Instance::program_fd`].
pub struct Instance {
    object: Arc<Object>,
    /// Programs are verified before they are linked, within these limits.
    gate: Option<Config>,
    maps: Vec<Arc<Map>>,
    /// What programs are verified against: the object's descriptions, and of maps that were there already what those are.
    described: Vec<MapDef>,
    programs: Vec<OnceLock<Arc<Program>>>,
    table: Arc<Table>,
}

/// Why an object could not be brought to life.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// A map could not be created.
    #[error("map {map}: {error}")]
    Create {
        /// Its name.
        map: String,
        /// The reason.
        error: CreateError,
    },
    /// The object's own first content was refused by its map.
    #[error("map {map}: initial value at key {key}: {errno} ({})", errno.text())]
    Initial {
        /// Its name.
        map: String,
        /// Key.
        key: u32,
        /// Why.
        errno: Errno,
    },
    /// An initial value refers to something that the object does not have.
    #[error("map {map}: initial value at key {key} refers to {what} {index}, which does not exist")]
    Dangling {
        /// Its name.
        map: String,
        /// Key.
        key: u32,
        /// `map` or `program`.
        what: &'static str,
        /// Index in the object.
        index: usize,
    },
    /// A program could not be linked.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// First descriptor of a map; programs follow far above, so that one is never taken for the other.
const MAP_FD: i32 = 1 << 10;
const PROGRAM_FD: i32 = 1 << 20;

/// What an instance is made with.
pub struct Surroundings {
    /// CPUs that per-CPU maps have values for.
    pub cpus: u32,
    /// Programs are verified before they are linked, within these limits; `None`: they run in the checked interpreter only.
    pub gate: Option<Config>,
    /// Descriptors that are not the instance's own ([`Instance::map_fd`] and [`Instance::program_fd`] stay below
    /// [`Surroundings::FD_FIRST`]), devices, sockets.
    pub handles: Arc<dyn Handles>,
    /// Maps that are there already, by index in [`Object::maps`]: used as they are, nothing is written into them. Shorter
    /// lists end with `None`.
    pub shared: Vec<Option<Arc<Map>>>,
    /// Values of maps that can be mapped are to lie where others can have them ([`xway_maps::Env::map_memory`]).
    pub map_memory: bool,
}

impl Surroundings {
    /// Descriptors from here on are those of [`Surroundings::handles`].
    pub const FD_FIRST: i32 = 1 << 24;

    /// No descriptors but the instance's own, no maps from elsewhere, no verifier.
    pub fn new(cpus: u32) -> Surroundings {
        Surroundings { cpus, gate: None, handles: Arc::new(NoHandles), shared: Vec::new(), map_memory: false }
    }
}

/// What descriptors stand for. Filled while the instance is made, read by the maps. It holds nothing: maps hold it, and would
/// otherwise hold themselves.
struct Table {
    maps: OnceLock<Vec<Weak<Map>>>,
    programs: Vec<OnceLock<Weak<Program>>>,
    others: Arc<dyn Handles>,
}

impl Handles for Table {
    fn map(&self, fd: i32) -> Result<Arc<Map>, Errno> {
        if fd >= Surroundings::FD_FIRST {
            return self.others.map(fd);
        }
        let index = usize::try_from(fd - MAP_FD).map_err(|_| Errno::EBADF)?;
        self.maps.get().and_then(|m| m.get(index)).and_then(Weak::upgrade).ok_or(Errno::EBADF)
    }

    fn program(&self, fd: i32) -> Result<Arc<dyn ProgramObject>, Errno> {
        if fd >= Surroundings::FD_FIRST {
            return self.others.program(fd);
        }
        let index = usize::try_from(fd - PROGRAM_FD).map_err(|_| Errno::EBADF)?;
        let program = self.programs.get(index).and_then(OnceLock::get).and_then(Weak::upgrade).ok_or(Errno::EBADF)?;
        Ok(program)
    }

    fn socket(&self, fd: i32) -> Result<Arc<dyn SocketObject>, Errno> {
        self.others.socket(fd)
    }

    fn cgroup(&self, fd: i32) -> Result<(), Errno> {
        self.others.cgroup(fd)
    }

    fn device(&self, ifindex: u32) -> bool {
        self.others.device(ifindex)
    }
}

impl Instance {
    /// Creates the maps of an object, fills and freezes them. Per-CPU maps get values for `cpus` CPUs.
    ///
    /// Programs that a PROG_ARRAY holds from the start are linked here; others when they are asked for. None of them is
    /// verified: they run in the checked interpreter. [`Instance::verified`] is the way to everything else.
    pub fn new(object: Arc<Object>, cpus: u32) -> Result<Instance, InstanceError> {
        Instance::within(object, Surroundings::new(cpus))
    }

    /// The same behind the verifier: every program that this instance links, the targets of tail calls included, has a proof
    /// ([`Program::proof`]).
    ///
    /// # Errors
    /// [`LinkError::Refused`] in [`InstanceError::Link`] when a program that a PROG_ARRAY holds from the start is refused.
    pub fn verified(object: Arc<Object>, cpus: u32, config: Config) -> Result<Instance, InstanceError> {
        Instance::within(object, Surroundings { gate: Some(config), ..Surroundings::new(cpus) })
    }

    /// The same with everything said: limits of the verifier, descriptors of others, maps that are there already.
    ///
    /// # Errors
    /// Those of [`Instance::new`] and [`Instance::verified`].
    pub fn within(object: Arc<Object>, surroundings: Surroundings) -> Result<Instance, InstanceError> {
        let Surroundings { cpus, gate, handles, shared, map_memory } = surroundings;
        let table = Arc::new(Table {
            maps: OnceLock::new(),
            programs: object.programs.iter().map(|_| OnceLock::new()).collect(),
            others: handles,
        });
        let env = Env { handles: table.clone(), map_memory, ..Env::with_cpus(cpus) };
        let there = |index: usize| shared.get(index).cloned().flatten();
        let create = |(index, def): (usize, &MapDef)| {
            if let Some(map) = there(index) {
                return Ok(map);
            }
            Map::create_named(&def.name, &xway_maps::completed(&def.spec, &env), &env)
                .map_err(|error| InstanceError::Create { map: def.name.clone(), error })
        };
        let maps: Vec<Arc<Map>> = object.maps.iter().enumerate().map(create).collect::<Result<_, _>>()?;
        let _ = table.maps.set(maps.iter().map(Arc::downgrade).collect());
        let programs = object.programs.iter().map(|_| OnceLock::new()).collect();
        let describe = |(index, (def, map)): (usize, (&MapDef, &Arc<Map>))| match there(index) {
            Some(_) => living(def, map),
            None => def.clone(),
        };
        let described = object.maps.iter().zip(&maps).enumerate().map(describe).collect();
        let instance = Instance { object, gate, maps, described, programs, table };
        for (index, (def, map)) in instance.object.maps.iter().zip(&instance.maps).enumerate() {
            if there(index).is_none() {
                instance.fill(def, map)?;
            }
        }
        Ok(instance)
    }

    fn fill(&self, def: &MapDef, map: &Map) -> Result<(), InstanceError> {
        let put =
            |key: u32, value: &[u8]| {
                map.update(&key.to_ne_bytes(), value, xway_abi::map_flags::ANY)
                    .map_err(|errno| InstanceError::Initial { map: def.name.clone(), key, errno })
            };
        match &def.initial {
            Initial::None => {}
            Initial::Data(bytes) => put(0, bytes)?,
            Initial::Slots(slots) => {
                for (key, slot) in slots {
                    let dangling =
                        |what, index| InstanceError::Dangling { map: def.name.clone(), key: *key, what, index };
                    let fd = match *slot {
                        SlotRef::Map(i) => self.map_fd(i).ok_or_else(|| dangling("map", i))?,
                        SlotRef::Program(i) if i < self.object.programs.len() => self.program_fd(i)?,
                        SlotRef::Program(i) => return Err(dangling("program", i)),
                    };
                    put(*key, &fd.to_ne_bytes())?;
                }
            }
        }
        if def.frozen {
            map.freeze().map_err(|errno| InstanceError::Initial { map: def.name.clone(), key: 0, errno })?;
        }
        Ok(())
    }

    /// The object.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// The maps, in the order of [`Object::maps`].
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// The map with this name in the object.
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.get(self.object.map_index(name)?)
    }

    /// Links a program to the maps, behind the verifier if the instance was made so: one of the object's, or one that was
    /// made from it.
    pub fn link(&self, program: &xway_object::Program) -> Result<Arc<Program>, LinkError> {
        match &self.gate {
            Some(config) => {
                let view = MapsView { maps: &self.described, ..MapsView::from(&*self.object) };
                Program::verify(program, &self.maps, &view, config)
            }
            None => Program::link(program, &self.maps),
        }
    }

    /// The linked program with this index in [`Object::programs`]. Linked once.
    ///
    /// # Errors
    /// [`LinkError`]; an index beyond the object's programs is [`LinkError::Empty`].
    pub fn program(&self, index: usize) -> Result<Arc<Program>, LinkError> {
        let (Some(image), Some(slot)) = (self.object.programs.get(index), self.programs.get(index)) else {
            return Err(LinkError::Empty { program: format!("number {index}") });
        };
        if let Some(done) = slot.get() {
            return Ok(done.clone());
        }
        // A program without a telling section that others tail-call is one of theirs.
        let image = image.as_xdp().unwrap_or_else(|_| image.clone());
        let linked = self.link(&image)?;
        let program = slot.get_or_init(|| linked).clone();
        let _ = self.table.programs[index].set(Arc::downgrade(&program));
        Ok(program)
    }

    /// Descriptor of a map by its index in [`Object::maps`], for values of maps of maps.
    pub fn map_fd(&self, index: usize) -> Option<i32> {
        (index < self.maps.len()).then(|| MAP_FD + index as i32)
    }

    /// Descriptor of a program by its index in [`Object::programs`], for values of PROG_ARRAYs, DEVMAPs and CPUMAPs.
    /// Links it.
    pub fn program_fd(&self, index: usize) -> Result<i32, LinkError> {
        self.program(index)?;
        Ok(PROGRAM_FD + index as i32)
    }

    /// Name of the map with this id ([`Map::id`]), which is what user space reads back from a map of maps.
    pub fn map_name(&self, id: u32) -> Option<&str> {
        let index = self.maps.iter().position(|m| m.id() == id)?;
        Some(&self.object.maps[index].name)
    }

    /// Name of the program with this id ([`Program::id`]), which is what user space reads back from a PROG_ARRAY.
    pub fn program_name(&self, id: u32) -> Option<&str> {
        let is = |slot: &OnceLock<Arc<Program>>| slot.get().is_some_and(|p| p.id() == id);
        let index = self.programs.iter().position(is)?;
        Some(&self.object.programs[index].name)
    }
}

/// The description of a map that was there before the object: what it is, whatever the object says. Its template, its flags and the
/// fields that belong to the runtime are its creator's, and only what nobody can change any more is constant.
fn living(def: &MapDef, map: &Map) -> MapDef {
    let spec = map.spec().clone();
    let frozen = spec.map_type == MapType::Array && map.is_frozen();
    // Of several elements this is the first: `MapDef::constant` does not take it for all.
    let bytes = frozen.then(|| map.value(0, &[0; 4], &Guard::pin()).map(|value| value.to_vec())).flatten();
    MapDef { spec, initial: bytes.map_or(Initial::None, Initial::Data), frozen, ..def.clone() }
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("maps", &self.maps).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use xway_abi::{MapSpec, MapType};
    use xway_object::{MapDef, Program as Image};

    use super::*;

    #[test]
    fn an_instance_that_is_given_up_leaves_nothing() {
        let slot = |opcode, imm| xway_isa::Slot { opcode, dst: 0, src: 0, off: 0, imm };
        let map = MapDef::new("jumps", MapSpec::new(MapType::ProgArray, 4, 4, 1));
        let program = Image { name: "p".into(), insns: vec![slot(0xb7, 2), slot(0x95, 0)], ..Image::default() };
        let object = Object { maps: vec![map], programs: vec![program], ..Object::default() };
        let instance = Instance::new(Arc::new(object), 1).unwrap();
        let (map, program) = (Arc::downgrade(&instance.maps()[0]), Arc::downgrade(&instance.program(0).unwrap()));
        drop(instance);
        assert!(map.upgrade().is_none() && program.upgrade().is_none());
    }
}
