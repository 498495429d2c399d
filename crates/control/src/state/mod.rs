//! The engine with everything that the service knows of it: who holds what, what the configuration made, what must be there
//! again after a restart.

mod apply;
mod keep;
mod restore;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use xway_abi::{Errno, MapType};
use xway_engine::is_called;
use xway_hook::user::{Tester, UserConfig};
use xway_hook::{AttachRequest, Blame, Hook, HookError, Image, LoadRequest, MapId, ObjectId, Outcome, ProgId, User};
use xway_object::LoadOptions;

use crate::config::{Config, Port};
use crate::handover::{Handed, Keeps};
use crate::journal::{Journal, Origin, digest};
use crate::message::{self, Attach, Bytes, Request, Spec, load_request};
use crate::plan::{Digests, Step};
use crate::ports;
use apply::read_object;

/// One connection's holds.
pub(crate) type Holds = HashSet<ObjectId>;

pub(crate) struct State {
    /// Where sockets are served. First, so that applications go before the engine does.
    sockets: Vec<xway_xsk::Server>,
    hook: User,
    journal: Journal,
    options: LoadOptions,
    /// The configuration as it is now, and what its objects hold.
    config: Config,
    digests: Digests,
    /// Programs of the configuration, by their names in it.
    configured: BTreeMap<String, ProgId>,
    /// Digest of the file that the service was started with.
    file: String,
    /// How many connections hold an object.
    holds: HashMap<ObjectId, usize>,
    origins: HashMap<ProgId, Origin>,
    images: HashMap<String, Arc<[u8]>>,
    specs: HashMap<MapId, (String, Spec)>,
    /// Maps that loads have made: which one, and the name there.
    parts: HashMap<MapId, (u64, String)>,
    pins: BTreeMap<PathBuf, ObjectId>,
    attachments: Vec<(ProgId, Attach)>,
    loads: u64,
    /// Where ports do something else than they were asked for, as far as it has been told.
    told: Vec<(String, Outcome)>,
    /// Ports that are no interfaces get numbers of their own, above all that a machine gives.
    ifindex: u32,
    /// What is kept of open ports for another executable.
    keeps: BTreeMap<String, Keeps>,
    /// What this one was handed, until everything is in its place.
    handed: Handed,
    /// Ports that are open and wait until everything else is in its place.
    held: Vec<String>,
    /// The last configuration that stood whole: what a restart makes again.
    whole: String,
    /// The last file could not be applied to its end, and what is there is none that anybody asked for.
    half: bool,
    /// What became of the ports in the upgrade by which this process began, and of those that were handed over and did not fit.
    came: Vec<message::PortFate>,
    anew: Vec<message::PortFate>,
}

/// First number of ports that are no interfaces.
const IFINDEX_FIRST: u32 = 0x7000_0000;

fn failed(why: impl std::fmt::Display) -> HookError {
    HookError::new(Blame::Machine, why)
}

fn json(value: impl serde::Serialize) -> Result<Value, HookError> {
    serde_json::to_value(value).map_err(failed)
}

impl State {
    /// An engine without ports. `text` is the file that the service was started with.
    pub fn new(config: &Config, text: &str, options: LoadOptions, handed: Handed) -> Result<State, HookError> {
        let at = config.service.state.as_deref();
        Ok(State::over(Journal::open(at)?, config, text, options, handed))
    }

    /// Whether [`State::restore`] would come as far as the ports; nothing is opened or written, also where another service runs.
    pub fn check(given: &Config, text: &str, options: LoadOptions) -> Result<(), HookError> {
        let saved = Journal::look(given.service.state.as_deref());
        let mut state = State::over(saved, given, text, options, Handed::default());
        let config = state.wanted(&state.journal.load()?, given)?;
        config.service.check_cpus().map_err(|e| HookError::new(Blame::Input, e))?;
        config.ports.iter().try_for_each(|port| ports::parse(&port.name).map(drop).map_err(failed))?;
        config.sockets.iter().try_for_each(|socket| socket.access().map(drop).map_err(failed))?;
        for program in &config.programs {
            let named = |e: HookError| HookError { message: format!("program {}: {}", program.name, e.message), ..e };
            let bytes = read_object(&program.object).map_err(|e| named(HookError::new(Blame::Input, e)))?;
            state.load_configured(program, &bytes).map_err(named)?;
        }
        Ok(())
    }

    fn over(journal: Journal, config: &Config, text: &str, options: LoadOptions, handed: Handed) -> State {
        let mut user = UserConfig {
            cpus: config.service.workers,
            bind: config.service.cpus.clone(),
            burst: config.service.burst(),
            ring_len: config.service.profile.ring_len(),
            ..UserConfig::default()
        };
        if let Some(compiler) = &mut user.compiler {
            compiler.stage = config.service.stage;
        }
        State {
            sockets: Vec::new(),
            hook: User::new(user),
            journal,
            options,
            config: Config { service: config.service.clone(), limits: config.limits, ..Config::default() },
            digests: Digests::new(),
            configured: BTreeMap::new(),
            file: digest(text.as_bytes()),
            holds: HashMap::new(),
            origins: HashMap::new(),
            images: HashMap::new(),
            specs: HashMap::new(),
            parts: HashMap::new(),
            pins: BTreeMap::new(),
            attachments: Vec::new(),
            loads: 0,
            told: Vec::new(),
            ifindex: IFINDEX_FIRST,
            keeps: BTreeMap::new(),
            handed,
            held: Vec::new(),
            whole: String::new(),
            half: false,
            came: Vec::new(),
            anew: Vec::new(),
        }
    }

    /// Loads an object and remembers where its parts come from.
    fn load(&mut self, bytes: &[u8], request: &LoadRequest) -> Result<xway_hook::Objects, HookError> {
        let image = Image::parse(bytes, &self.options).map_err(|e| HookError::new(Blame::Input, e))?;
        self.load_image(image, request)
    }

    fn load_image(&mut self, image: Image, request: &LoadRequest) -> Result<xway_hook::Objects, HookError> {
        let objects = self.hook.load(&image, request)?;
        let object = digest(&image.bytes);
        self.loads += 1;
        for (function, id) in &objects.programs {
            let (object, function, pins) = (object.clone(), function.clone(), request.pins.clone());
            self.origins.insert(*id, Origin { object, function, pins, load: self.loads });
        }
        for ((name, id), def) in objects.maps.iter().zip(&image.object.maps) {
            // One that was found by its pin is the load's that made it.
            if !self.specs.contains_key(id) {
                self.specs.insert(*id, (name.clone(), Spec::from(&def.spec)));
                self.parts.insert(*id, (self.loads, name.clone()));
            }
        }
        for path in objects.pinned.iter().chain(&objects.shared) {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if let Some(id) = objects.map(name) {
                self.pins.insert(path.clone(), ObjectId::Map(id));
            }
        }
        self.images.insert(object, image.bytes);
        Ok(objects)
    }

    fn pin(&mut self, object: ObjectId, path: &Path) -> Result<(), HookError> {
        self.hook.pin(object, path)?;
        self.pins.insert(path.to_owned(), object);
        Ok(())
    }

    fn unpin(&mut self, path: &Path) -> Result<(), HookError> {
        self.hook.unpin(path)?;
        self.pins.remove(path);
        Ok(())
    }

    /// Programs of the file that were taken off by hand are wanted no more.
    fn unconfigure(&mut self, gone: &[ProgId]) {
        self.configured.retain(|_, id| !gone.contains(id));
        let left: Vec<String> = self.configured.keys().cloned().collect();
        self.config.programs.retain(|p| left.contains(&p.name));
    }

    /// Attaches and remembers it.
    fn attach_kept(&mut self, request: &AttachRequest) -> Result<xway_hook::Attached, HookError> {
        let done = self.hook.attach(request)?;
        let kept = Attach::from(request);
        if let Some(old) = done.replaced {
            self.attachments.retain(|(id, a)| !(id.0 == old && a.port == kept.port && a.queue == kept.queue));
        }
        self.attachments.push((request.program, kept));
        Ok(done)
    }

    /// Carries out a request of a connection that holds `holds`.
    pub fn handle(&mut self, request: Request, holds: &mut Holds) -> Result<Value, HookError> {
        let limit = self.config.limits.objects;
        if holds.len() >= limit
            && matches!(request, Request::MapCreate { .. } | Request::Load { .. } | Request::Pinned { .. })
        {
            let message = format!("this connection holds {} maps and programs; {limit} are the most", holds.len());
            let refused = HookError { errno: Some(Errno::ENOSPC), ..HookError::new(Blame::Request, message) };
            return Err(refused.hint("release some, or raise limits.objects"));
        }
        // What others must find again after a restart.
        let keeps = match &request {
            Request::Pin { .. } | Request::Unpin { .. } | Request::Attach { .. } | Request::Detach { .. } => true,
            Request::LinkDetach { .. } => true,
            Request::OpenPort { .. } | Request::ClosePort { .. } | Request::Steer { .. } => true,
            Request::Serve { .. } | Request::Unserve { .. } => true,
            Request::Apply { dry_run, .. } | Request::Clean { dry_run } => !dry_run,
            _ => false,
        };
        let pins = self.pins.len();
        let answer = self.carry_out(request, holds);
        // Maps may ask for pins in their own source, so that a load makes some.
        if keeps || self.pins.len() != pins { self.written(answer) } else { answer }
    }

    fn carry_out(&mut self, request: Request, holds: &mut Holds) -> Result<Value, HookError> {
        let hook = &mut self.hook;
        match request {
            Request::MapCreate { name, spec } => {
                let id = hook.map_create(&name, &spec.read()?)?;
                self.specs.insert(id, (name, spec));
                self.hold(ObjectId::Map(id), holds);
                json(id)
            }
            Request::Maps => json(hook.maps()?.into_iter().map(message::Map::from).collect::<Vec<_>>()),
            Request::MapInfo { id } => json(message::Map::from(hook.map_info(MapId(id))?)),
            Request::MapTypes { id } => json(hook.map_types(MapId(id))?.map(|t| (Bytes(t.btf), t.key, t.value))),
            Request::MapLookup { id, key, flags } => json(Bytes(hook.map_lookup(MapId(id), &key.0, flags)?)),
            Request::MapUpdate { id, key, value, flags } => {
                json(hook.map_update(MapId(id), &key.0, &value.0, flags)?)
            }
            Request::MapStore { id, key, object, flags } => json(hook.map_store(MapId(id), &key.0, object, flags)?),
            Request::MapDelete { id, key } => json(hook.map_delete(MapId(id), &key.0)?),
            Request::MapTake { id, key } => json(Bytes(hook.map_take(MapId(id), &key.0)?)),
            Request::MapNextKey { id, key } => {
                let key = key.map(|k| k.0);
                json(hook.map_next_key(MapId(id), key.as_deref())?.map(Bytes))
            }
            Request::MapLookupBatch { id, from, count } => {
                let from = from.map(|f| f.0);
                json(message::Part::from(hook.map_lookup_batch(MapId(id), from.as_deref(), count)?))
            }
            Request::MapUpdateBatch { id, entries, flags } => {
                let entries: Vec<_> = entries.into_iter().map(|(k, v)| (k.0, v.0)).collect();
                json(hook.map_update_batch(MapId(id), &entries, flags)?)
            }
            Request::MapDeleteBatch { id, keys } => {
                let keys: Vec<_> = keys.into_iter().map(|k| k.0).collect();
                json(hook.map_delete_batch(MapId(id), &keys)?)
            }
            Request::MapFreeze { id } => json(hook.map_freeze(MapId(id))?),
            Request::Load { object, programs, pins } => {
                if let Some(pins) = &pins {
                    rooted(pins)?;
                }
                let objects = self.load(&object.0, &load_request(programs, pins))?;
                objects.programs.iter().for_each(|(_, id)| self.hold(ObjectId::Program(*id), holds));
                objects.maps.iter().for_each(|(_, id)| self.hold(ObjectId::Map(*id), holds));
                json(objects)
            }
            Request::Programs => json(hook.programs()?),
            Request::ProgramInfo { id } => json(hook.program_info(ProgId(id))?),
            Request::ProgramTypes { id } => json(hook.program_types(ProgId(id))?.map(Bytes)),
            Request::Dump { id } => json(message::Code::from(hook.dump(ProgId(id))?)),
            Request::Pin { object, path } => {
                rooted(&path)?;
                json(self.pin(object, &path)?)
            }
            Request::Pinned { path } => {
                let object = hook.pinned(&path)?;
                self.hold(object, holds);
                json(object)
            }
            Request::Unpin { path } => json(self.unpin(&path)?),
            Request::Pins => json(hook.pins()),
            Request::Clean { dry_run } => {
                let unused = hook.pins().into_iter().filter(|pin| !pin.used).map(|pin| pin.path);
                let unused: Vec<PathBuf> = unused.collect();
                for path in unused.iter().filter(|_| !dry_run) {
                    self.unpin(path)?;
                }
                json(unused)
            }
            Request::Release { object } => match holds.remove(&object) {
                true => {
                    self.unhold(object);
                    json(())
                }
                false => Err(HookError::unknown(object)),
            },
            Request::Attach { request } => {
                let request = request.read()?;
                let attached = self.attach_kept(&request)?;
                self.fill_socket_maps();
                json(attached)
            }
            Request::Detach { port, program } => {
                let gone = hook.detach(&port, program.map(ProgId))?;
                let same = |a: &str| is_called(a, &port) || is_called(&port, a);
                self.attachments.retain(|(id, a)| !(same(&a.port) && gone.contains(id)));
                self.unconfigure(&gone);
                json(gone)
            }
            Request::LinkDetach { link } => {
                let all = hook.attachments(None)?;
                let one = all.into_iter().find(|a| a.link == Some(link));
                hook.link_detach(link)?;
                if let Some(one) = one {
                    let gone = one.program.id;
                    let same = |a: &Attach| is_called(&one.port, &a.port) && a.queue == one.queue;
                    self.attachments.retain(|(id, a)| !(*id == gone && same(a)));
                    self.unconfigure(&[gone]);
                }
                json(())
            }
            Request::Attachments { port } => json(hook.attachments(port.as_deref())?),
            Request::Features { port } => json(hook.features(&port)?),
            Request::Statistics { port } => json(hook.statistics(&port)?),
            Request::Ports => json(hook.ports()),
            Request::Serve { socket } => {
                let step = Step::Serve(socket);
                json(self.step(&step, &BTreeMap::new(), &Digests::new())?)
            }
            Request::Unserve { path } => {
                let known = self.config.sockets.iter().find(|socket| socket.path == path).cloned();
                let missing = || HookError {
                    message: format!("no sockets are served at {}", path.display()),
                    ..HookError::missing(path.display())
                };
                json(self.step(&Step::Unserve(known.ok_or_else(missing)?), &BTreeMap::new(), &Digests::new())?)
            }
            Request::Sockets => json(self.served()),
            Request::Steer { port, words } => {
                let steering = hook.steer(&port, &words)?;
                if !words.trim().is_empty() {
                    let kept = self.config.ports.iter_mut().filter(|p| is_called(&p.name, &port));
                    kept.for_each(|p| p.steer = crate::ports::said(&p.steer, &words, steering.as_deref()));
                }
                json(steering.as_deref().map(message::Steered::from).unwrap_or_default())
            }
            Request::OpenPort { port } if self.lost().iter().any(|lost| is_called(lost, &port)) => {
                // It is there and receives no more: opened again, with all that is on it.
                let config = self.config.clone();
                let done = self.apply(&config).map(drop);
                let started = self.start_ports();
                json(done.and(started)?)
            }
            Request::OpenPort { port } => {
                self.step(&Step::Open(Port::named(&port)), &BTreeMap::new(), &Digests::new())?;
                json(self.start_ports()?)
            }
            Request::ClosePort { port } => {
                let known = self.config.ports.iter().find(|p| is_called(&p.name, &port)).cloned();
                let port = known.ok_or_else(|| HookError::missing(format!("port {port} in this engine")))?;
                self.configured.retain(|name, _| {
                    !self.config.programs.iter().any(|p| p.name == *name && is_called(&port.name, &p.port))
                });
                self.config.programs.retain(|p| !is_called(&port.name, &p.port));
                let closed = self.step(&Step::Close(port), &BTreeMap::new(), &Digests::new());
                if self.config.ports.is_empty() {
                    // There is no queue left that anybody could bind to.
                    self.sockets.clear();
                    self.config.sockets.clear();
                }
                json(closed?)
            }
            Request::Apply { config, dry_run: true } => json(self.foretold(&config)?),
            Request::Apply { config, dry_run: false } => {
                let config = Config::parse(&config).map_err(|e| HookError::new(Blame::Input, e))?;
                let done = self.apply(&config);
                // Also where a step failed: what is there then is told, and nothing waits without a word.
                let started = self.start_ports();
                json(done.and_then(|said| started.map(|()| said))?)
            }
            // The server's own.
            Request::Down
            | Request::About
            | Request::Events { .. }
            | Request::Capture { .. }
            | Request::Captured { .. }
            | Request::TestRun { .. }
            | Request::MapEvents { .. }
            | Request::Share { .. }
            | Request::MapMemory { .. }
            | Request::TraceLog { .. }
            | Request::Upgrade { .. } => json(()),
        }
    }

    /// Lets applications have sockets on the engine's queues.
    fn serve(&mut self, socket: &crate::config::Socket) -> Result<(), HookError> {
        let path = &socket.path;
        if self.sockets.iter().any(|server| server.path() == path) {
            return Err(HookError::errno(
                format!("serving sockets at {}, as is done already,", path.display()),
                Errno::EEXIST,
            ));
        }
        let no_queue = || HookError::new(Blame::Request, "no port is open, so there is no queue to bind to");
        let engine = self.hook.engine().ok_or_else(no_queue)?;
        let trusted_uids = std::iter::once(0).chain(socket.trusted_uids.iter().copied()).collect();
        let crate::config::Socket { own_queue_zero_copy, untrusted_bytes, .. } = *socket;
        let rest = xway_xsk::Policy::default();
        let access = socket.access().map_err(|e| HookError::new(Blame::Input, e))?;
        let policy = xway_xsk::Policy { access, trusted_uids, own_queue_zero_copy, untrusted_bytes, ..rest };
        let queues = Arc::new(xway_xsk::EngineQueues(engine));
        let server = xway_xsk::Server::listen(path, queues, policy).map_err(failed)?;
        self.sockets.push(server);
        self.config.sockets.push(socket.clone());
        self.fill_socket_maps();
        Ok(())
    }

    /// Programs find sockets in their XSKMAPs.
    fn fill_socket_maps(&self) {
        let maps = if self.sockets.is_empty() { Vec::new() } else { self.hook.socket_maps() };
        self.sockets.iter().for_each(|server| maps.iter().for_each(|map| server.fill_map(map.clone())));
    }

    fn served(&self) -> Vec<message::ServedPath> {
        let ports = self.hook.engine().map(|engine| engine.ports()).unwrap_or_default();
        let port = |ifindex| ports.iter().find(|port| port.ifindex == ifindex).map(|port| port.name.clone());
        let one = |info: &xway_xsk::SocketInfo| message::ServedSocket::of(info, port(info.bound.0).unwrap_or_default());
        let path = |server: &xway_xsk::Server| message::ServedPath {
            path: server.path().to_owned(),
            sockets: server.sockets().iter().map(one).collect(),
        };
        self.sockets.iter().map(path).collect()
    }

    /// A program for test runs, which need not wait for this lock.
    pub fn tester(&self, id: u32) -> Result<Tester, HookError> {
        self.hook.tester(ProgId(id))
    }

    /// The live map.
    pub fn live_map(&self, id: u32) -> Result<Arc<xway_maps::Map>, HookError> {
        self.hook.live_map(MapId(id))
    }

    /// The memory of an array, for others.
    pub fn map_memory(&self, id: u32, write: bool) -> Result<(OwnedFd, xway_maps::Shape), HookError> {
        self.hook.map_memory(MapId(id), write)
    }

    /// Whether there is such a map; the connection holds it from now on.
    pub fn hold_map(&mut self, id: u32, holds: &mut Holds) -> Result<(), HookError> {
        self.hook.map_info(MapId(id))?;
        self.hook.keep_map(MapId(id))?;
        self.hold(ObjectId::Map(MapId(id)), holds);
        Ok(())
    }

    /// Where ports do something else than they were asked for, as far as nobody was told yet. Who watches hears of ports that were lost.
    pub fn untold(&mut self) -> Vec<(String, Outcome)> {
        let all = self.hook.outcomes();
        let new: Vec<_> = all.iter().filter(|one| !self.told.contains(one)).cloned().collect();
        for (port, outcome) in new.iter().filter(|(_, outcome)| outcome.what == Outcome::PORT) {
            self.hook.announce(port, format!("{}: {}", outcome.effective, outcome.reason));
        }
        self.told = all;
        new
    }

    /// Ports of the configuration that were lost, by their names there.
    fn lost(&self) -> Vec<String> {
        let lost: Vec<String> = self
            .hook
            .outcomes()
            .into_iter()
            .filter_map(|(port, o)| (o.what == Outcome::PORT).then_some(port))
            .collect();
        let ports = self.config.ports.iter().filter(|port| lost.iter().any(|name| is_called(&port.name, name)));
        ports.map(|port| port.name.clone()).collect()
    }

    /// Counters for Prometheus.
    pub fn metrics(&mut self) -> String {
        crate::metrics::page(&mut self.hook)
    }

    /// The engine, to be watched.
    pub fn engine(&mut self) -> &mut User {
        &mut self.hook
    }

    fn hold(&mut self, object: ObjectId, holds: &mut Holds) {
        if holds.insert(object) {
            *self.holds.entry(object).or_default() += 1;
        }
    }

    /// One connection holds an object no longer.
    pub fn unhold(&mut self, object: ObjectId) {
        let count = self.holds.entry(object).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.holds.remove(&object);
            // It may have gone with its last user already.
            let _ = self.hook.release(object);
        }
    }

    /// The hook's own hold on an object is given up, unless a connection has one.
    fn let_go(&mut self, object: ObjectId) {
        if !self.holds.contains_key(&object) {
            let _ = self.hook.release(object);
        }
    }
}

/// Names are the same from every directory that somebody asks in.
fn rooted(path: &Path) -> Result<(), HookError> {
    if path.has_root() {
        return Ok(());
    }
    let message = format!("{}: names in the service begin with /", path.display());
    let refused = HookError { errno: Some(Errno::EINVAL), ..HookError::new(Blame::Request, message) };
    Err(refused.hint(format!("/{}", path.display())))
}

/// Why what a map of this type holds is not there again.
pub(crate) fn volatile(kind: MapType) -> Option<&'static str> {
    use MapType::{ArrayOfMaps, BloomFilter, HashOfMaps, PerfEventArray, ProgArray, Ringbuf, UserRingbuf, Xskmap};
    match kind {
        ProgArray | ArrayOfMaps | HashOfMaps | Xskmap | PerfEventArray => Some("numbers of objects of this process"),
        Ringbuf | UserRingbuf => Some("records that nobody has read by then"),
        BloomFilter => Some("a Bloom filter does not tell what it holds"),
        _ => None,
    }
}
