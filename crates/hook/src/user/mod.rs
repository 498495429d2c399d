//! The engine in this process: maps and programs as Linux has them, without Linux.
//!
//! Numbers count up through the life of the process, as Linux's do through that of the machine. Pins are names in a table
//! of this hook; whoever wants them to outlive the process keeps the process (the service does).
//!
//! | file | what |
//! |---|---|
//! | `handles` | numbers for objects that are stored in maps |
//! | `links` | numbers for attachments |
//! | `maps` | maps by id, in the words of the trait |
//! | `names` | pins, and what else keeps what they name |
//! | `ports` | ports, and the programs on them |
//! | `statistics`, `watch` | what they counted; events and captures |
//! | `programs` | an object file to verified, compiled programs; test runs |

pub mod dump;
mod handles;
mod links;
mod maps;
mod names;
mod ports;
mod programs;
mod statistics;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use xway_abi::{Errno, MapSpec, MapType};
use xway_engine::{Engine, Profile};
use xway_jit::Options;
use xway_maps::{Env, Guard, Map, Shape, Window};
use xway_object::Btf;
use xway_verifier::Config;
use xway_vm::Timers;

use crate::{
    AttachRequest, Attached, AttachmentInfo, CaptureRequest, CapturedPackets, Dump, Elements, Hook, HookError,
    HookEvent, HookKind, Image, LoadRequest, MapId, MapInfo, MapTypes, ObjectId, Objects, PortFeatures, ProgId,
    ProgramInfo, Statistics, TestAnswer, TestRequest, batch,
};
use handles::Handles;
use programs::Loaded;
pub use programs::{Foreseen, Planned, no_device};
pub use statistics::{POOL_NAMES, PORT_NAMES, QUEUE_NAMES, WORKER_NAMES, counted};
pub use watch::{Watch, Watched, filter, reason};

/// How programs are run.
#[derive(Clone, Debug)]
pub struct UserConfig {
    /// Workers: CPUs that per-CPU maps have values for.
    pub cpus: u32,
    /// CPUs of the machine that the workers are bound to, in their order.
    pub bind: Vec<usize>,
    /// Most frames that a worker receives at once, from 1 to 64.
    pub burst: u32,
    /// Frames that wait at most between two workers, for each queue and direction.
    pub ring_len: u32,
    /// Limits of the verifier.
    pub verifier: Config,
    /// The compiler's passes; `None`: programs run in the checked interpreter.
    pub compiler: Option<Options>,
}

impl Default for UserConfig {
    fn default() -> UserConfig {
        UserConfig {
            cpus: 1,
            bind: Vec::new(),
            burst: Profile::Standard.burst(),
            ring_len: Profile::Standard.ring_len(),
            verifier: Config::default(),
            compiler: Some(Options::default()),
        }
    }
}

/// The engine in this process behind [`Hook`].
pub struct User {
    config: UserConfig,
    handles: Arc<Handles>,
    maps: BTreeMap<u32, Arc<Map>>,
    programs: BTreeMap<u32, Arc<Loaded>>,
    pins: BTreeMap<PathBuf, Pinned>,
    /// Every map that was made here and can hold programs: what it holds goes when nobody can use it any more.
    holders: Vec<Weak<Map>>,
    /// Attachments by number.
    links: links::Links,
    /// Types of keys and values by map, from the object that made it.
    types: HashMap<u32, (Arc<Btf>, u32, u32)>,
    /// Workers and ports, from the first port on.
    engine: Option<Arc<Engine>>,
    /// What control did, for all who watch.
    events: watch::Events,
    /// This hook's own watch, which [`Hook::events`] reads.
    watch: Option<Watch>,
    capture: Option<Watched>,
}

/// A program of [`User`], held for test runs.
pub struct Tester(Arc<Loaded>);

impl Tester {
    /// As [`Hook::test_run`].
    pub fn run(&self, test: &TestRequest<'_>) -> Result<TestAnswer, HookError> {
        self.0.test_run(test)
    }
}

/// What a name stands for.
enum Pinned {
    Map(Arc<Map>),
    Program(Arc<Loaded>),
}

impl User {
    /// An engine without ports; [`User::open_port`] gives it some.
    pub fn new(config: UserConfig) -> User {
        let mut events = watch::Events::default();
        let watch = Watch::new(&mut events);
        User {
            config,
            handles: Arc::default(),
            maps: BTreeMap::new(),
            programs: BTreeMap::new(),
            pins: BTreeMap::new(),
            holders: Vec::new(),
            links: links::Links::default(),
            types: HashMap::new(),
            engine: None,
            events,
            watch: Some(watch),
            capture: None,
        }
    }

    /// Number of maps and programs that are alive, whoever holds them: zero when everything has been given up.
    pub fn alive(&self) -> (usize, usize) {
        self.handles.alive()
    }

    /// The workers and ports, from the first port on: for what is served beside programs, as sockets are.
    pub fn engine(&self) -> Option<Arc<Engine>> {
        self.engine.clone()
    }

    /// The maps of sockets that are alive, whoever holds them.
    pub fn socket_maps(&self) -> Vec<Arc<Map>> {
        self.handles.maps().into_iter().filter(|map| map.map_type() == MapType::Xskmap).collect()
    }

    /// The live map with this number: what the engine's own parts put objects into.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn live_map(&self, id: MapId) -> Result<Arc<Map>, HookError> {
        self.map(id)
    }

    /// A descriptor of the memory in which an array's values lie, for another process, and how they lie there.
    ///
    /// # Errors
    /// `ENOENT`, and those of [`Map::memory_fd`].
    pub fn map_memory(&self, id: MapId, write: bool) -> Result<(OwnedFd, Shape), HookError> {
        let map = self.map(id)?;
        let fd = map.memory_fd(write).map_err(|e| maps::not_mapped(id, e))?;
        Ok((fd, Shape::of(map.spec())))
    }

    /// Holds a map by its number, as [`Hook::pinned`] does by a name; [`Hook::release`] gives it up.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn keep_map(&mut self, id: MapId) -> Result<(), HookError> {
        let map = self.map(id)?;
        self.hold_map(&map);
        Ok(())
    }

    /// A program that can be run over packets while others use the hook.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn tester(&self, id: ProgId) -> Result<Tester, HookError> {
        self.program(id).map(Tester)
    }

    fn map(&self, id: MapId) -> Result<Arc<Map>, HookError> {
        self.handles.find_map(id.0).ok_or_else(|| HookError::unknown(id))
    }

    fn program(&self, id: ProgId) -> Result<Arc<Loaded>, HookError> {
        self.handles.find_program(id.0).ok_or_else(|| HookError::unknown(id))
    }

    fn hold_map(&mut self, map: &Arc<Map>) -> MapId {
        self.handles.add_map(map);
        if holds_programs(map) && !self.holders.iter().any(|holder| holder.as_ptr() == Arc::as_ptr(map)) {
            self.holders.push(Arc::downgrade(map));
        }
        self.maps.insert(map.id(), map.clone());
        MapId(map.id())
    }

    /// Takes the programs out of maps that neither this hook nor a program in use can reach, and ends the timers in such. A program keeps
    /// its maps alive and a PROG_ARRAY, DEVMAP or CPUMAP its programs, a timer its map and its callback's: a ring of these would stay
    /// for ever.
    fn collect(&mut self) {
        let handles = &self.handles;
        self.types.retain(|id, _| handles.find_map(*id).is_some());
        let timers = !Timers::shared().is_empty();
        if timers || self.holders.iter().any(|holder| holder.strong_count() > 0) {
            let used = self.reached(true).maps;
            self.holders.retain(|holder| {
                let Some(map) = holder.upgrade() else { return false };
                if !used.contains(&map.id()) {
                    map.clear_programs();
                }
                true
            });
            // Other hooks of the process have maps of their own.
            let ours = |map: &Map| handles.find_map(map.id()).is_some_and(|found| std::ptr::eq(&*found, map));
            Timers::shared().forget(|map| !used.contains(&map.id()) && ours(map));
        }
        Guard::collect();
    }
}

fn holds_programs(map: &Map) -> bool {
    matches!(map.map_type(), MapType::ProgArray | MapType::Devmap | MapType::DevmapHash | MapType::Cpumap)
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User")
            .field("maps", &self.maps)
            .field("programs", &self.programs.keys())
            .finish_non_exhaustive()
    }
}

fn no_port(port: &str) -> HookError {
    HookError::no_device(format!("there is no port {port} in this engine"))
}

impl Hook for User {
    fn kind(&self) -> HookKind {
        HookKind::User
    }

    fn map_create(&mut self, name: &str, spec: &MapSpec) -> Result<MapId, HookError> {
        let env = Env { handles: self.handles.clone(), map_memory: true, ..Env::with_cpus(self.config.cpus) };
        let map = Map::create_named(name, spec, &env).map_err(|e| HookError {
            errno: Some(e.errno),
            ..HookError::new(crate::Blame::Request, format!("map {name}: {e}"))
        })?;
        Ok(self.hold_map(&map))
    }

    fn maps(&mut self) -> Result<Vec<MapInfo>, HookError> {
        Ok(self.handles.maps().iter().map(|m| maps::info(m)).collect())
    }

    fn map_info(&mut self, id: MapId) -> Result<MapInfo, HookError> {
        Ok(maps::info(&*self.map(id)?))
    }

    fn map_types(&mut self, id: MapId) -> Result<Option<MapTypes>, HookError> {
        self.map(id)?;
        let types = self.types.get(&id.0);
        Ok(types.map(|(btf, key, value)| MapTypes { btf: btf.to_bytes().to_vec(), key: *key, value: *value }))
    }

    fn map_lookup(&mut self, id: MapId, key: &[u8], flags: u64) -> Result<Vec<u8>, HookError> {
        let map = self.map(id)?;
        let mut out = vec![0; map.user_value_size()];
        map.lookup(key, &mut out, flags).map_err(|e| HookError::errno(format!("{id}: the look-up"), e))?;
        Ok(out)
    }

    fn map_update(&mut self, id: MapId, key: &[u8], value: &[u8], flags: u64) -> Result<(), HookError> {
        self.map(id)?.update(key, value, flags).map_err(|e| HookError::errno(format!("{id}: the update"), e))
    }

    fn map_store(&mut self, id: MapId, key: &[u8], object: ObjectId, flags: u64) -> Result<(), HookError> {
        let number = match object {
            ObjectId::Map(inner) => self.map(inner)?.id(),
            ObjectId::Program(program) => self.program(program)?.program.id(),
        };
        let value = handles::descriptor(number).to_ne_bytes();
        self.map(id)?.update(key, &value, flags).map_err(|e| HookError::errno(format!("{id}: storing {object}"), e))?;
        self.collect();
        Ok(())
    }

    fn map_delete(&mut self, id: MapId, key: &[u8]) -> Result<(), HookError> {
        self.map(id)?.delete(key).map_err(|e| HookError::errno(format!("{id}: the removal"), e))
    }

    fn map_take(&mut self, id: MapId, key: &[u8]) -> Result<Vec<u8>, HookError> {
        let map = self.map(id)?;
        let mut out = vec![0; map.user_value_size()];
        map.lookup_and_delete(key, &mut out, 0).map_err(|e| HookError::errno(format!("{id}: taking an element"), e))?;
        Ok(out)
    }

    fn map_next_key(&mut self, id: MapId, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, HookError> {
        let map = self.map(id)?;
        let mut out = vec![0; map.key_size()];
        match map.next_key(key, &mut out) {
            Ok(()) => Ok(Some(out)),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(HookError::errno(format!("{id}: asking for a key"), e)),
        }
    }

    fn map_lookup_batch(&mut self, id: MapId, from: Option<&[u8]>, count: u32) -> Result<Elements, HookError> {
        batch::lookup(&*self.map(id)?, id, from, count)
    }

    fn map_update_batch(&mut self, id: MapId, entries: &[(Vec<u8>, Vec<u8>)], flags: u64) -> Result<u32, HookError> {
        batch::update(&*self.map(id)?, id, entries, flags)
    }

    fn map_delete_batch(&mut self, id: MapId, keys: &[Vec<u8>]) -> Result<u32, HookError> {
        batch::delete(&*self.map(id)?, id, keys)
    }

    fn map_freeze(&mut self, id: MapId) -> Result<(), HookError> {
        self.map(id)?.freeze().map_err(|e| HookError::errno(format!("{id}: freezing"), e))
    }

    fn map_window(&mut self, id: MapId, write: bool) -> Result<Window, HookError> {
        let (fd, shape) = self.map_memory(id, write)?;
        Window::of_memory(fd.as_fd(), shape, write).map_err(|e| maps::not_mapped(id, e))
    }

    fn load(&mut self, image: &Image, request: &LoadRequest) -> Result<Objects, HookError> {
        self.load_object(image, request)
    }

    fn programs(&mut self) -> Result<Vec<ProgramInfo>, HookError> {
        Ok(self.described())
    }

    fn program_info(&mut self, id: ProgId) -> Result<ProgramInfo, HookError> {
        let info = self.program(id)?.info();
        Ok(ProgramInfo { runs: self.runs(id.0), ..info })
    }

    fn program_types(&mut self, id: ProgId) -> Result<Option<Vec<u8>>, HookError> {
        Ok(self.program(id)?.types())
    }

    fn test_run(&mut self, id: ProgId, test: &TestRequest<'_>) -> Result<TestAnswer, HookError> {
        self.program(id)?.test_run(test)
    }

    fn dump(&mut self, id: ProgId) -> Result<Dump, HookError> {
        let program = self.program(id)?;
        Ok(dump::of(&program, self.engine.as_deref()))
    }

    fn pin(&mut self, object: ObjectId, path: &Path) -> Result<(), HookError> {
        let pinned = match object {
            ObjectId::Map(id) => Pinned::Map(self.map(id)?),
            ObjectId::Program(id) => Pinned::Program(self.program(id)?),
        };
        if let Some(there) = self.pins.get(path) {
            let word = if matches!(there, Pinned::Map(_)) { "map" } else { "prog" };
            let hint = format!("another path, or take that pin away: xway {word} unpin {} --hook user", path.display());
            return Err(HookError::errno(format!("pinning at {}", path.display()), Errno::EEXIST).hint(hint));
        }
        self.pins.insert(path.to_owned(), pinned);
        Ok(())
    }

    fn pinned(&mut self, path: &Path) -> Result<ObjectId, HookError> {
        match self.pins.get(path) {
            None => Err(HookError::missing(format!("pin at {}", path.display()))),
            Some(Pinned::Map(map)) => {
                let map = map.clone();
                Ok(ObjectId::Map(self.hold_map(&map)))
            }
            Some(Pinned::Program(program)) => {
                let id = program.program.id();
                self.programs.insert(id, program.clone());
                Ok(ObjectId::Program(ProgId(id)))
            }
        }
    }

    fn unpin(&mut self, path: &Path) -> Result<(), HookError> {
        let gone = self.pins.remove(path);
        self.collect();
        gone.map(drop).ok_or_else(|| HookError::missing(format!("pin at {}", path.display())))
    }

    fn release(&mut self, object: ObjectId) -> Result<(), HookError> {
        let held = match object {
            ObjectId::Map(id) => self.maps.remove(&id.0).is_some(),
            ObjectId::Program(id) => self.programs.remove(&id.0).is_some(),
        };
        self.collect();
        if held { Ok(()) } else { Err(HookError::unknown(object)) }
    }

    fn attach(&mut self, request: &AttachRequest) -> Result<Attached, HookError> {
        self.attach_to_port(request)
    }

    fn detach(&mut self, port: &str, program: Option<ProgId>) -> Result<Vec<ProgId>, HookError> {
        self.detach_from_port(port, program)
    }

    fn link_detach(&mut self, link: u32) -> Result<(), HookError> {
        self.detach_link(link)
    }

    fn attachments(&mut self, port: Option<&str>) -> Result<Vec<AttachmentInfo>, HookError> {
        self.attachments_of(port)
    }

    fn features(&mut self, port: &str) -> Result<PortFeatures, HookError> {
        self.features_of(port)
    }

    fn statistics(&mut self, port: &str) -> Result<Statistics, HookError> {
        self.statistics_of(port)
    }

    fn port_names(&mut self) -> Result<Vec<String>, HookError> {
        Ok(self.ports())
    }

    /// What control did is kept from the start, what happens to packets from the first call on.
    fn events(&mut self, wait: Duration) -> Result<Vec<HookEvent>, HookError> {
        let mut watch = self.watch.take().unwrap_or_else(|| self.watch());
        self.attend(&mut watch);
        let all = watch.next(wait);
        self.watch = Some(watch);
        Ok(all)
    }

    fn capture(&mut self, request: &CaptureRequest) -> Result<(), HookError> {
        self.capture = None;
        self.capture = Some(self.start_capture(request)?);
        Ok(())
    }

    fn captured(&mut self, wait: Duration) -> Result<CapturedPackets, HookError> {
        let capture = self.capture.as_mut().ok_or_else(|| HookError::missing("capture"))?;
        Ok(capture.next(wait))
    }
}
