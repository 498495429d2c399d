//! The engine with everything that the service knows of it: who holds what, what the configuration made, what must be there
//! again after a restart.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use xway_abi::{Errno, MapType};
use xway_engine::is_called;
use xway_hook::user::{Tester, UserConfig};
use xway_hook::{
    AttachRequest, Blame, Hook, HookError, Image, LoadRequest, MapId, ObjectId, Outcome, ProgId, Replace, User,
};
use xway_object::LoadOptions;

use crate::config::{Config, Port, Program};
use crate::handover::{Handed, Keeps, Parcel};
use crate::journal::{Attachment, Contents, Journal, Origin, Pin, Saved, What, digest};
use crate::message::{self, Attach, Bytes, Request, Spec, load_request};
use crate::plan::{Digests, Step, kept, steps};
use crate::ports::{self, shape};
use crate::upgrade;

/// Longest object file that a configuration names, bytes.
const OBJECT_MAX: u64 = 256 << 20;

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
    /// Ports that were opened again though they were handed over, and why.
    anew: Vec<(String, String)>,
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
        Ok(State::over(Journal::open(at).map_err(failed)?, config, text, options, handed))
    }

    /// Whether [`State::restore`] would come as far as the ports; nothing is opened or written, also where another service runs.
    pub fn check(given: &Config, text: &str, options: LoadOptions) -> Result<(), HookError> {
        let saved = Journal::look(given.service.state.as_deref());
        let mut state = State::over(saved, given, text, options, Handed::default());
        let config = state.wanted(&state.journal.load().map_err(failed)?, given)?;
        config.ports.iter().try_for_each(|port| ports::parse(&port.name).map(drop).map_err(failed))?;
        for program in &config.programs {
            let named = |e: HookError| HookError { message: format!("program {}: {}", program.name, e.message), ..e };
            let bytes = read_object(&program.object).map_err(|e| named(failed(e)))?;
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
            anew: Vec::new(),
        }
    }

    /// Makes everything that must be there: pins of the last time, the configuration, attachments of the last time. What
    /// cannot be made again is told and left out.
    pub fn restore(&mut self, given: &Config) -> Result<Vec<String>, HookError> {
        let saved = self.journal.load().map_err(failed)?;
        let mut notes = Vec::new();
        let mut note = |what: String, e: HookError| notes.push(format!("{what} is not there again: {e}"));
        let mut programs: BTreeMap<Origin, ProgId> = BTreeMap::new();
        for pin in &saved.pins {
            let What::Program(origin) = &pin.what else { continue };
            let made = self.load_again(origin, &mut programs).and_then(|id| self.pin(ObjectId::Program(id), &pin.path));
            made.unwrap_or_else(|e| note(format!("program pinned at {}", pin.path.display()), e));
        }
        let mut attach = Vec::new();
        for a in &saved.attachments {
            match self.load_again(&a.origin, &mut programs) {
                Ok(id) => attach.push((id, a.request.clone())),
                Err(e) => note(format!("program {} on {}", a.origin.function, a.request.port), e),
            }
        }
        // Maps that no load has made: their own.
        for pin in &saved.pins {
            let What::Map { name, spec } = &pin.what else { continue };
            if self.pins.contains_key(&pin.path) {
                continue;
            }
            let made = spec.read().and_then(|s| self.hook.map_create(name, &s)).and_then(|id| {
                self.specs.insert(id, (name.clone(), spec.clone()));
                let pinned = self.pin(ObjectId::Map(id), &pin.path);
                self.hook.release(ObjectId::Map(id))?;
                pinned
            });
            made.unwrap_or_else(|e| note(format!("map pinned at {}", pin.path.display()), e));
        }
        for contents in self.journal.contents().map_err(failed)? {
            let Some(ObjectId::Map(id)) = self.pins.get(&contents.path).copied() else { continue };
            let entries: Vec<_> = contents.entries.into_iter().map(|(k, v)| (k.0, v.0)).collect();
            let put = entries.iter().try_for_each(|(k, v)| self.hook.map_update(id, k, v, 0));
            put.unwrap_or_else(|e| note(format!("contents of {}", contents.path.display()), e));
        }
        // They are of that end: a later one that is not clean does not bring them back.
        self.journal.save_contents(&[]).map_err(failed)?;
        let config = self.wanted(&saved, given)?;
        // Also where it cannot be made today: it was meant, and is tried again at the next start.
        self.whole = toml::to_string(&config).map_err(failed)?;
        let done = self.apply(&config, false);
        for (id, request) in attach {
            let made = request.read().and_then(|r| {
                let replace = Replace::Never;
                self.attach_kept(&AttachRequest { program: id, replace, chain: true, ..r })
            });
            made.map(drop).unwrap_or_else(|e| note(format!("program {} on {}", id.0, request.port), e));
        }
        // What was loaded for this is held by pins and attachments now.
        for id in programs.into_values() {
            self.let_go(ObjectId::Program(id));
        }
        // From here on packets find their programs.
        let started = self.start_ports();
        let saved = self.save();
        done.and(started)?;
        saved?;
        self.handed.close();
        Ok(notes)
    }

    /// The file wins when somebody has changed it since; otherwise what was applied last.
    fn wanted(&self, saved: &Saved, given: &Config) -> Result<Config, HookError> {
        let same = saved.file == self.file && !saved.config.is_empty();
        if same { Config::parse(&saved.config).map_err(failed) } else { Ok(given.clone()) }
    }

    /// Ports that were opened again though they were handed over, and why.
    pub fn anew(&self) -> &[(String, String)] {
        &self.anew
    }

    fn load_again(&mut self, origin: &Origin, known: &mut BTreeMap<Origin, ProgId>) -> Result<ProgId, HookError> {
        if let Some(id) = known.get(origin) {
            return Ok(*id);
        }
        let bytes = self.journal.object(&origin.object).map_err(failed)?;
        let request = load_request(vec![origin.function.clone()], origin.pins.clone());
        let objects = self.load(&bytes, &request)?;
        let id = objects.programs.first().map(|(_, id)| *id).ok_or_else(|| HookError::missing("program"))?;
        for (_, map) in &objects.maps {
            self.let_go(ObjectId::Map(*map));
        }
        known.insert(origin.clone(), id);
        Ok(id)
    }

    /// Loads an object and remembers where its parts come from.
    fn load(&mut self, bytes: &[u8], request: &LoadRequest) -> Result<xway_hook::Objects, HookError> {
        let image = Image::parse(bytes, &self.options).map_err(|e| HookError::new(Blame::Input, e))?;
        let objects = self.hook.load(&image, request)?;
        let object = digest(bytes);
        self.loads += 1;
        for (function, id) in &objects.programs {
            let (object, function, pins) = (object.clone(), function.clone(), request.pins.clone());
            self.origins.insert(*id, Origin { object, function, pins, load: self.loads });
        }
        for ((name, id), def) in objects.maps.iter().zip(&image.object.maps) {
            self.specs.entry(*id).or_insert_with(|| (name.clone(), Spec::from(&def.spec)));
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
            Request::OpenPort { .. } | Request::ClosePort { .. } | Request::Steer { .. } => true,
            Request::Serve { .. } | Request::Unserve { .. } => true,
            // Maps may ask for pins in their own source.
            Request::Load { .. } => true,
            Request::Apply { dry_run, .. } => !dry_run,
            _ => false,
        };
        let answer = self.carry_out(request, holds);
        if keeps {
            // Also behind a refusal: part of it may have been done.
            self.save()?;
        }
        answer
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
                let objects = self.load(&object.0, &load_request(programs, pins))?;
                objects.programs.iter().for_each(|(_, id)| self.hold(ObjectId::Program(*id), holds));
                objects.maps.iter().for_each(|(_, id)| self.hold(ObjectId::Map(*id), holds));
                json(objects)
            }
            Request::Programs => json(hook.programs()?),
            Request::ProgramInfo { id } => json(hook.program_info(ProgId(id))?),
            Request::Dump { id } => json(message::Code::from(hook.dump(ProgId(id))?)),
            Request::Pin { object, path } => json(self.pin(object, &path)?),
            Request::Pinned { path } => {
                let object = hook.pinned(&path)?;
                self.hold(object, holds);
                json(object)
            }
            Request::Unpin { path } => {
                hook.unpin(&path)?;
                self.pins.remove(&path);
                json(())
            }
            Request::Release { object } => match holds.remove(&object) {
                true => {
                    self.unhold(object);
                    json(())
                }
                false => Err(HookError::missing(object)),
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
                self.configured.retain(|_, id| !gone.contains(id));
                let left: Vec<String> = self.configured.keys().cloned().collect();
                self.config.programs.retain(|p| left.contains(&p.name));
                json(gone)
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
                let missing = || HookError::missing(format!("sockets served at {}", path.display()));
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
            Request::Apply { config, dry_run } => {
                let config = Config::parse(&config).map_err(|e| HookError::new(Blame::Input, e))?;
                let done = self.apply(&config, dry_run);
                // Also where a step failed: what is there then is told, and nothing waits without a word.
                let started = self.start_ports();
                json(done.and_then(|said| started.map(|()| said))?)
            }
            // The server's own.
            Request::Down
            | Request::Events { .. }
            | Request::Capture { .. }
            | Request::Captured { .. }
            | Request::TestRun { .. }
            | Request::MapEvents { .. }
            | Request::Share { .. }
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
        let policy = xway_xsk::Policy { trusted_uids, own_queue_zero_copy, untrusted_bytes, ..rest };
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

    /// Whether there is such a map; the connection holds it from now on.
    pub fn hold_map(&mut self, id: u32, holds: &mut Holds) -> Result<(), HookError> {
        self.hook.map_info(MapId(id))?;
        self.hook.keep_map(MapId(id))?;
        self.hold(ObjectId::Map(MapId(id)), holds);
        Ok(())
    }

    /// Where ports do something else than they were asked for, as far as nobody was told yet.
    pub fn untold(&mut self) -> Vec<(String, Outcome)> {
        let ports = self.hook.engine().map(|engine| engine.ports()).unwrap_or_default();
        let all: Vec<_> = ports
            .into_iter()
            .flat_map(|port| port.outcomes.into_iter().map(move |outcome| (port.name.clone(), outcome)))
            .collect();
        let new = all.iter().filter(|one| !self.told.contains(one)).cloned().collect();
        self.told = all;
        new
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

    /// Lets the ports receive that were opened since the last time: their programs and rules are in place.
    fn start_ports(&mut self) -> Result<(), HookError> {
        let held = std::mem::take(&mut self.held);
        // One that is closed again has nothing to wait for.
        let there = held.iter().filter(|name| self.config.ports.iter().any(|port| port.name == **name));
        there.map(|name| self.hook.start_port(name)).fold(Ok(()), Result::and)
    }

    /// Makes the engine what a configuration says, or tells what would be done. Ports that it opens wait for
    /// [`State::start_ports`].
    fn apply(&mut self, want: &Config, dry_run: bool) -> Result<Vec<String>, HookError> {
        let mut digests = Digests::new();
        let mut objects: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for program in &want.programs {
            let bytes = read_object(&program.object)
                .map_err(|e| HookError::new(Blame::Input, format!("program {}: {e}", program.name)))?;
            digests.insert(program.name.clone(), digest(&bytes));
            objects.insert(program.name.clone(), bytes);
        }
        let steps = steps(&self.config, &self.digests, want, &digests);
        let words: Vec<String> = steps.iter().map(Step::to_string).collect();
        let said = [&words[..], &kept(&self.config, want)].concat();
        // A port that could not be opened would cost the one that is there.
        for step in &steps {
            if let Step::Open(port) = step {
                let name = ports::parse(&port.name).map_err(|e| HookError::new(Blame::Input, e))?;
                let made = |of: &str| want.ports.iter().any(|p| is_called(&p.name, &format!("tap:{of}")));
                if let Some(of) = ports::interface(&name).filter(|of| !made(of) && !ports::is_there(of)) {
                    let what = format!("interface {of}, which port {} is on", port.name);
                    return Err(HookError::missing(what));
                }
            }
        }
        if dry_run {
            return Ok(said);
        }
        // What a wrong object would refuse is refused before anything is touched.
        let mut loaded: BTreeMap<String, ProgId> = BTreeMap::new();
        for step in &steps {
            if let Step::Attach(p) | Step::Replace(p) = step {
                match self.load_configured(p, &objects[&p.name]) {
                    Ok(id) => drop(loaded.insert(p.name.clone(), id)),
                    Err(e) => {
                        loaded.values().for_each(|id| self.let_go(ObjectId::Program(*id)));
                        return Err(HookError { message: format!("program {}: {}", p.name, e.message), ..e });
                    }
                }
            }
        }
        let mut outcome = Ok(());
        for (step, word) in steps.iter().zip(&words) {
            if let Err(e) = self.step(step, &loaded, &digests) {
                outcome =
                    Err(HookError { message: format!("{word}: {}; the steps before it are done", e.message), ..e });
                break;
            }
        }
        // Attached programs are held by their ports.
        loaded.values().for_each(|id| self.let_go(ObjectId::Program(*id)));
        self.half = outcome.is_err();
        outcome.map(|()| said)
    }

    fn load_configured(&mut self, program: &Program, bytes: &[u8]) -> Result<ProgId, HookError> {
        let names = program.function.iter().cloned().collect();
        let request = LoadRequest { programs: names, pins: Some(program.pins()), device: None };
        let objects = self.load(bytes, &request)?;
        objects.maps.iter().for_each(|(_, id)| self.let_go(ObjectId::Map(*id)));
        match objects.programs[..] {
            [(_, id)] => Ok(id),
            _ => {
                let names: Vec<&str> = objects.programs.iter().map(|(name, _)| name.as_str()).collect();
                objects.programs.iter().for_each(|(_, id)| self.let_go(ObjectId::Program(*id)));
                let message = format!("its object has the functions {}; name one: function = …", names.join(", "));
                Err(HookError::new(Blame::Input, message))
            }
        }
    }

    fn step(&mut self, step: &Step, loaded: &BTreeMap<String, ProgId>, digests: &Digests) -> Result<(), HookError> {
        match step {
            Step::Detach(p) => {
                if let Some(id) = self.configured.remove(&p.name) {
                    self.hook.detach(&p.port, Some(id))?;
                }
                self.config.programs.retain(|old| old.name != p.name);
            }
            Step::Close(p) => {
                let reports = self.hook.close_port(&p.name)?;
                self.keeps.retain(|name, _| !is_called(&p.name, name));
                self.attachments.retain(|(_, a)| !is_called(&p.name, &a.port));
                self.config.ports.retain(|old| old.name != p.name);
                // The pool's proof that every frame came home.
                if let Some((queue, leak)) = reports.iter().find_map(|r| Some((r.queue, r.leak.as_ref()?))) {
                    return Err(failed(format!("port {} is closed, but queue {queue} lost frames: {leak}", p.name)));
                }
            }
            Step::Open(p) => {
                let profile = self.config.service.profile;
                let name = ports::parse(&p.name).map_err(|e| HookError::new(Blame::Input, e))?.within(profile);
                let number = self.ifindex;
                let opened = ports::open(&name, number, p.pass_to.is_none(), &mut self.handed)?;
                self.hook.open_port(opened.device, shape(p, profile))?;
                self.keeps.extend(opened.keeps.map(|keeps| (name.to_string(), keeps)));
                self.anew.extend(opened.anew.map(|why| (name.to_string(), why)));
                self.ifindex += 1;
                self.held.push(p.name.clone());
                self.config.ports.push(p.as_opened());
            }
            Step::Serve(socket) => self.serve(socket)?,
            Step::Unserve(socket) => {
                self.sockets.retain(|server| server.path() != socket.path);
                self.config.sockets.retain(|old| old.path != socket.path);
            }
            Step::Pass(p) => {
                self.hook.set_pass(&p.name, p.pass_to.as_deref())?;
                let kept = self.config.ports.iter_mut().filter(|old| old.name == p.name);
                kept.for_each(|old| old.pass_to.clone_from(&p.pass_to));
            }
            Step::Steer(p) => {
                self.hook.steer_anew(&p.name, &p.steer)?;
                let kept = self.config.ports.iter_mut().filter(|old| old.name == p.name);
                kept.for_each(|old| old.steer.clone_from(&p.steer));
            }
            Step::Attach(p) | Step::Replace(p) => {
                let id = loaded[&p.name];
                let old = self.configured.get(&p.name).filter(|_| matches!(step, Step::Replace(_)));
                let request = AttachRequest {
                    queue: p.queue,
                    priority: p.priority,
                    chain_on: p.verdicts().map_err(|e| HookError::new(Blame::Input, e))?,
                    replace: old.map_or(Replace::Never, |old| Replace::Id(old.0)),
                    chain: true,
                    ..AttachRequest::new(&p.port, id)
                };
                self.hook.attach(&request)?;
                self.fill_socket_maps();
                self.configured.insert(p.name.clone(), id);
                self.digests.insert(p.name.clone(), digests[&p.name].clone());
                self.config.programs.retain(|old| old.name != p.name);
                self.config.programs.push(p.clone());
            }
        }
        Ok(())
    }

    /// Writes down what must be there again.
    pub fn save(&mut self) -> Result<(), HookError> {
        let alive: HashSet<ProgId> = self.hook.programs()?.into_iter().map(|p| p.id).collect();
        self.origins.retain(|id, _| alive.contains(id));
        let maps: HashSet<MapId> = self.hook.maps()?.into_iter().map(|m| m.id).collect();
        self.specs.retain(|id, _| maps.contains(id));
        let used: HashSet<&String> = self.origins.values().map(|o| &o.object).collect();
        self.images.retain(|name, _| used.contains(name));
        let mut saved = Saved { file: self.file.clone(), ..Saved::default() };
        if !self.half {
            self.whole = toml::to_string(&self.config).map_err(failed)?;
        }
        saved.config.clone_from(&self.whole);
        for (path, object) in &self.pins {
            let what = match object {
                ObjectId::Map(id) => {
                    self.specs.get(id).map(|(name, spec)| What::Map { name: name.clone(), spec: spec.clone() })
                }
                ObjectId::Program(id) => self.origins.get(id).cloned().map(What::Program),
            };
            saved.pins.extend(what.map(|what| Pin { path: path.clone(), what }));
        }
        for (id, request) in &self.attachments {
            let origin = self.origins.get(id).cloned();
            saved.attachments.extend(origin.map(|origin| Attachment { origin, request: request.clone() }));
        }
        let programs = saved.pins.iter().filter_map(|p| match &p.what {
            What::Program(origin) => Some(origin),
            What::Map { .. } => None,
        });
        for origin in programs.chain(saved.attachments.iter().map(|a| &a.origin)) {
            if let Some(bytes) = self.images.get(&origin.object) {
                self.journal.keep_object(bytes).map_err(failed)?;
            }
        }
        let told = |e| failed(format!("it was done, but a restart will not know of it: {e}"));
        self.journal.save(&saved).map_err(told)
    }

    /// What becomes of the ports when an executable goes on that takes these kinds of them.
    pub fn fates(&self, takes: &[String]) -> Vec<message::PortFate> {
        self.hook.ports().iter().map(|port| upgrade::fate(port, self.keeps.get(port), takes)).collect()
    }

    /// What an upgrade would keep and lose; `others` is how many connections there are besides the one that asks.
    pub fn outlook(&mut self, takes: &[String], others: usize) -> message::Handover {
        let fates = self.fates(takes);
        let maps = self.pins.values().filter_map(|o| if let ObjectId::Map(id) = o { Some(*id) } else { None });
        let pinned = maps.collect();
        let sockets = self.served().iter().map(|path| path.sockets.len()).sum();
        upgrade::outlook(&mut self.hook, fates, &pinned, sockets, others, self.journal.keeps())
    }

    /// The end of the service: ports are closed, and contents of pinned maps are kept when they are to be.
    pub fn finish(&mut self, upgrade: bool) -> Result<(), HookError> {
        self.save()?;
        self.sockets.clear();
        for port in self.hook.ports() {
            // What is lost there has been counted, and there is nobody left to tell.
            let _ = self.hook.close_port(&port);
        }
        let mut all = Vec::new();
        if upgrade || self.config.service.keep_contents {
            for (path, object) in &self.pins {
                let ObjectId::Map(id) = object else { continue };
                if volatile(self.hook.map_info(*id)?.map_type) {
                    continue;
                }
                let mut entries = Vec::new();
                let mut key = self.hook.map_next_key(*id, None).unwrap_or(None);
                while let Some(at) = key {
                    if let Ok(value) = self.hook.map_lookup(*id, &at, 0) {
                        entries.push((Bytes(at.clone()), Bytes(value)));
                    }
                    key = self.hook.map_next_key(*id, Some(&at)).unwrap_or(None);
                }
                all.push(Contents { path: path.clone(), entries });
            }
        }
        self.journal.save_contents(&all).map_err(failed)
    }

    /// Puts what is kept of these ports into a parcel, when they are closed; one that finds no room there is opened again, and that is
    /// said in its fate.
    pub fn pack(&mut self, parcel: &mut Parcel, fates: &mut [message::PortFate]) {
        for fate in fates.iter_mut().filter(|fate| fate.goes_on()) {
            let packed = self.keeps.get(&fate.port).map(|keeps| parcel.port(&fate.port, keeps));
            if let Some(Err(e)) = packed {
                let reason = format!("its descriptors could not be handed over: {e}; what waits there is lost");
                *fate = message::PortFate::new(&fate.port, message::PortFate::OPENED_AGAIN, reason);
            }
        }
        self.keeps.clear();
    }
}

/// Whether what a map of this type holds means nothing to another process: numbers of programs, maps, sockets.
pub(crate) fn volatile(kind: MapType) -> bool {
    use MapType::{ArrayOfMaps, HashOfMaps, PerfEventArray, ProgArray, Ringbuf, UserRingbuf, Xskmap};
    matches!(kind, ProgArray | ArrayOfMaps | HashOfMaps | Xskmap | PerfEventArray | Ringbuf | UserRingbuf)
}

fn read_object(path: &Path) -> Result<Vec<u8>, String> {
    let told = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => format!("{}: no such file", path.display()),
        _ => format!("{}: {e}", path.display()),
    };
    let len = std::fs::metadata(path).map_err(told)?.len();
    if len > OBJECT_MAX {
        return Err(format!("{}: {len} bytes; at most {OBJECT_MAX} are read", path.display()));
    }
    std::fs::read(path).map_err(told)
}
