//! The configuration: what is done so that the engine is what a file says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xway_engine::is_called;
use xway_engine::steer::{Change, SteerError, Steering};
use xway_hook::user::{Foreseen, Planned, Tester};
use xway_hook::{AttachRequest, Blame, Hook, HookError, Image, LoadRequest, ObjectId, ProgId, Replace};
use xway_object::LoadOptions;
use xway_ports::PortName;

use super::{State, failed};
use crate::config::{Config, Program};
use crate::journal::digest;
use crate::message::{Attach, PortFate};
use crate::plan::{Digests, Step, kept, steps};
use crate::ports::{self, shape};

/// Longest object file that a configuration names, bytes.
const OBJECT_MAX: u64 = 256 << 20;

/// What is left to be done where somebody asks who may only look. Words about a file, that it is there or what it begins with, are
/// words of one that he may not read himself.
const UNREAD: &str =
    "read the objects and captures, and prove the programs, which is not done ahead for who may only look";

impl State {
    /// Lets the ports receive that were opened since the last time: their programs and rules are in place.
    pub(super) fn start_ports(&mut self) -> Result<(), HookError> {
        let held = std::mem::take(&mut self.held);
        // One that is closed again has nothing to wait for.
        let there = held.iter().filter(|name| self.config.ports.iter().any(|port| port.name == **name));
        there.map(|name| self.hook.start_port(name)).fold(Ok(()), Result::and)
    }

    /// What applying a configuration would do, for who may only look: by its words alone. No file that it names is looked at, and so no
    /// program is proved.
    pub fn foretell(&self, config: &str) -> Result<Value, HookError> {
        let want = Config::parse_words(config).map_err(|e| HookError::new(Blame::Input, e))?;
        let Plan { steps, mut words, .. } = self.plan(&want, Looks::Words)?;
        words.extend(kept(&self.config, &want));
        let plays = |step: &Step| match step {
            Step::Open(port) => ports::parse_words(&port.name).is_ok_and(|name| !ports::captures(&name).is_empty()),
            _ => false,
        };
        if !want.programs.is_empty() || steps.iter().any(plays) {
            words.push(UNREAD.into());
        }
        super::json(words)
    }

    /// What [`State::apply`] would do and say, as far as that can be known without touching a device.
    pub(super) fn foretold(&self, config: &str) -> Result<Vec<String>, HookError> {
        let want = Config::parse(config).map_err(|e| HookError::new(Blame::Input, e))?;
        let Plan { steps, mut words, objects, .. } = self.plan(&want, Looks::Files)?;
        let mut planned = Planned::default();
        for (step, word) in steps.iter().zip(&mut words) {
            let (Step::Attach(p) | Step::Replace(p)) = step else { continue };
            let named = |e: HookError| HookError { message: format!("program {}: {}", p.name, e.message), ..e };
            let image = parse(p, &objects[&p.name], &self.options).map_err(named)?;
            has_function(&image, p).map_err(named)?;
            let found = self.hook.foresee(&image, &request(p), &mut planned, true).map_err(named)?;
            only(&found.programs).map_err(named)?;
            word.push_str(&maps_of(step, &found.shared, &found.pinned));
        }
        words.extend(kept(&self.config, &want));
        Ok(words)
    }

    fn plan(&self, want: &Config, looks: Looks) -> Result<Plan, HookError> {
        if want.service.cpus != self.config.service.cpus {
            want.service.check_cpus().map_err(|e| HookError::new(Blame::Input, e))?;
        }
        let mut digests = Digests::new();
        let mut objects: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for program in &want.programs {
            if looks == Looks::Words {
                // The same name of a file is taken for the same object.
                let same = |old: &&Program| old.name == program.name && old.object == program.object;
                let same = self.config.programs.iter().find(same).and_then(|old| self.digests.get(&old.name));
                digests.insert(program.name.clone(), same.cloned().unwrap_or_default());
                continue;
            }
            let bytes = read_object(&program.object)
                .map_err(|e| HookError::new(Blame::Input, format!("program {}: {e}", program.name)))?;
            digests.insert(program.name.clone(), digest(&bytes));
            objects.insert(program.name.clone(), bytes);
        }
        let lost = self.lost();
        let steps = steps(&self.config, &self.digests, want, &digests, &lost);
        let words: Vec<String> = steps.iter().map(Step::to_string).collect();
        // A port that could not be opened would cost the one that is there.
        for step in &steps {
            if let Step::Serve(socket) = step {
                socket.access().map_err(|e| HookError::new(Blame::Input, e))?;
                if looks == Looks::Files {
                    let no = |e| HookError::new(Blame::Input, format!("socket {}: {e}", socket.path.display()));
                    xway_door::look(&socket.path).map_err(no)?;
                }
            }
            if let Step::Open(port) = step {
                let name = looks.name(&port.name).map_err(|e| HookError::new(Blame::Input, e))?;
                if looks == Looks::Files {
                    ports::look_at_captures(&name)
                        .map_err(|e| HookError::new(Blame::Input, format!("port {}: {e}", port.name)))?;
                }
                let made = |of: &str| want.ports.iter().any(|p| is_called(&p.name, &format!("tap:{of}")));
                if let Some(of) = ports::interface(&name).filter(|of| !made(of) && !ports::is_there(of)) {
                    let message = format!("there is no interface {of}, which port {} is on", port.name);
                    return Err(HookError::no_device(message).hint("ip link show has those that there are"));
                }
                let down = |of: &&str| xway_hook::kernel::device(of).is_ok_and(|device| !device.up);
                if let Some(of) = ports::interface(&name).filter(down).filter(|_| lost.contains(&port.name)) {
                    let message = format!("interface {of}, which port {} is on, is down", port.name);
                    return Err(HookError::new(Blame::Machine, message).hint(format!("ip link set {of} up")));
                }
            }
        }
        self.check_queues(want, &steps, looks).map_err(|e| HookError::new(Blame::Input, e))?;
        Ok(Plan { steps, words, objects, digests })
    }

    /// Whether the ports have the queues that are spoken of, where not their names say how many there are but the device. A program for
    /// one that is not there would cost the one before it.
    fn check_queues(&self, want: &Config, steps: &[Step], looks: Looks) -> Result<(), String> {
        let open = self.hook.engine().map(|engine| engine.ports()).unwrap_or_default();
        for port in &want.ports {
            let anew = steps.iter().any(|step| matches!(step, Step::Open(opened) if opened.name == port.name));
            let count = match anew {
                true => ports::queues_now(&looks.name(&port.name)?),
                false => open.iter().find(|state| is_called(&port.name, &state.name)).map(|state| state.queues),
            };
            let Some(count) = count else { continue };
            want.check_programs(port, count).map_err(|e| e.to_string())?;
            let beyond = port.queues.iter().flatten().map(|(queue, _)| *queue).find(|queue| *queue >= count);
            if let Some(queue) = beyond {
                return Err(format!("port {}: queues: queue {queue}; the port has {count}, counted from 0", port.name));
            }
            // From nothing, as the step will.
            let steered = |before: Steering, words: &String| -> Result<Steering, SteerError> {
                Ok(before.changed(Change::parse(words)?, count)?.0)
            };
            let all = port.steer.iter().try_fold(Steering::default(), steered);
            all.map_err(|e| format!("port {}: steer: {e}", port.name))?;
        }
        Ok(())
    }

    /// Makes the engine what a configuration says; what was done. Ports that it opens wait for [`State::start_ports`].
    pub(super) fn apply(&mut self, want: &Config) -> Result<Vec<String>, HookError> {
        let Plan { steps, mut words, objects, digests } = self.plan(want, Looks::Files)?;
        let stays = kept(&self.config, want);
        // What a wrong object would refuse is refused before anything is touched.
        let mut loaded: BTreeMap<String, ProgId> = BTreeMap::new();
        let mut pinned: Vec<PathBuf> = Vec::new();
        for (step, word) in steps.iter().zip(&mut words) {
            if let Step::Attach(p) | Step::Replace(p) = step {
                match self.load_configured(p, &objects[&p.name]) {
                    Ok((id, maps)) => {
                        word.push_str(&maps_of(step, &maps.shared, &maps.pinned));
                        pinned.extend(maps.pinned);
                        loaded.insert(p.name.clone(), id);
                    }
                    Err(e) => {
                        loaded.values().for_each(|id| self.let_go(ObjectId::Program(*id)));
                        // Those of the programs before it, which nobody has asked for now.
                        pinned.iter().try_for_each(|path| self.unpin(path))?;
                        return Err(HookError { message: format!("program {}: {}", p.name, e.message), ..e });
                    }
                }
            }
        }
        let by_hand = self.by_hand(&steps);
        let mut outcome = Ok(());
        for (step, word) in steps.iter().zip(&words) {
            if let Err(e) = self.step(step, &loaded, &digests) {
                outcome =
                    Err(HookError { message: format!("{word}: {}; the steps before it are done", e.message), ..e });
                break;
            }
        }
        for (id, request, _held) in by_hand {
            let again = request.read().and_then(|request| {
                self.attach_kept(&AttachRequest { program: id, replace: Replace::Never, chain: true, ..request })
            });
            let told = |e: HookError| HookError {
                message: format!("program {} on {}, attached by hand: {}", id.0, request.port, e.message),
                ..e
            };
            outcome = outcome.and(again.map(drop).map_err(told));
        }
        // Attached programs are held by their ports.
        loaded.values().for_each(|id| self.let_go(ObjectId::Program(*id)));
        self.half = outcome.is_err();
        words.extend(stays);
        outcome.map(|()| words)
    }

    /// Programs that somebody has attached to ports which are closed and opened again; held meanwhile.
    fn by_hand(&self, steps: &[Step]) -> Vec<(ProgId, Attach, Tester)> {
        let closed = |port: &str| steps.iter().any(|step| matches!(step, Step::Close(p) if is_called(&p.name, port)));
        let opened = |port: &str| steps.iter().any(|step| matches!(step, Step::Open(p) if is_called(&p.name, port)));
        let again = self.attachments.iter().filter(|(_, a)| closed(&a.port) && opened(&a.port));
        again.filter_map(|(id, a)| Some((*id, a.clone(), self.hook.tester(*id).ok()?))).collect()
    }

    /// Loads the one program of a configuration that is meant; with it what became of its maps.
    pub(super) fn load_configured(&mut self, program: &Program, bytes: &[u8]) -> Result<(ProgId, Foreseen), HookError> {
        let image = parse(program, bytes, &self.options)?;
        has_function(&image, program)?;
        let objects = self.load_image(image, &request(program))?;
        objects.maps.iter().for_each(|(_, id)| self.let_go(ObjectId::Map(*id)));
        let programs: Vec<String> = objects.programs.iter().map(|(name, _)| name.clone()).collect();
        if let Err(e) = only(&programs) {
            objects.programs.iter().for_each(|(_, id)| self.let_go(ObjectId::Program(*id)));
            objects.pinned.iter().try_for_each(|path| self.unpin(path))?;
            return Err(e);
        }
        Ok((objects.programs[0].1, Foreseen { programs, shared: objects.shared, pinned: objects.pinned }))
    }

    pub(super) fn step(
        &mut self,
        step: &Step,
        loaded: &BTreeMap<String, ProgId>,
        digests: &Digests,
    ) -> Result<(), HookError> {
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
                let called = name.to_string();
                let again = |why: &str| PortFate::new(&called, PortFate::OPENED_AGAIN, why);
                self.anew.extend(opened.anew.as_deref().map(again));
                self.came.retain(|fate| fate.port != called);
                self.came.push(match opened.adopted {
                    Some(fate) => PortFate::new(&called, fate, ""),
                    None => again(opened.anew.as_deref().unwrap_or("it was not handed over")),
                });
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
}

/// Reads the object of a program; what is wrong with it is told with its path.
fn parse(program: &Program, bytes: &[u8], options: &LoadOptions) -> Result<Image, HookError> {
    Image::parse(bytes, options).map_err(|e| HookError::new(Blame::Input, format!("{}: {e}", program.object.display())))
}

/// What is looked at before anything is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// Objects and captures too.
    Files,
    /// What stands in the configuration, and the interfaces.
    Words,
}

impl Looks {
    fn name(self, text: &str) -> Result<PortName, String> {
        match self {
            Looks::Files => ports::parse(text),
            Looks::Words => ports::parse_words(text),
        }
    }
}

/// What is to be done for a configuration.
struct Plan {
    steps: Vec<Step>,
    words: Vec<String>,
    /// What stands in the objects, by the names of programs.
    objects: BTreeMap<String, Vec<u8>>,
    digests: Digests,
}

fn request(program: &Program) -> LoadRequest {
    let programs = program.function.iter().cloned().collect();
    LoadRequest { programs, pins: Some(program.pins()), device: None }
}

/// The function that a file names is in its object: if not, the file is wrong, as it is where it names none of several.
fn has_function(image: &Image, program: &Program) -> Result<(), HookError> {
    let have: Vec<&str> = image.object.programs.iter().map(|p| p.name.as_str()).collect();
    match program.function.as_deref().filter(|name| !have.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!("its object has no function {name}; it has {}", have.join(", "));
            Err(HookError::new(Blame::Input, message))
        }
    }
}

/// A program of a file is one function.
fn only(programs: &[String]) -> Result<(), HookError> {
    match programs {
        [_] => Ok(()),
        [] => Err(HookError::new(Blame::Input, "there is no XDP program in its object")),
        _ => {
            let message = format!("its object has the functions {}; name one: function = …", programs.join(", "));
            Err(HookError::new(Blame::Input, message))
        }
    }
}

/// What becomes of the maps of a program that is replaced.
fn maps_of(step: &Step, shared: &[PathBuf], pinned: &[PathBuf]) -> String {
    let names: Vec<_> = pinned.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
    match (step, shared, pinned) {
        (Step::Replace(_), [], []) | (Step::Attach(_), ..) => String::new(),
        (_, [_, ..], []) => ", keeping its maps".into(),
        (_, [_, ..], _) => format!(", keeping its maps; new: {}", names.join(", ")),
        (_, [], _) => format!(", with new maps: {}", names.join(", ")),
    }
}

pub(super) fn read_object(path: &Path) -> Result<Vec<u8>, String> {
    xway_door::read(path, OBJECT_MAX).map_err(|e| format!("{}: {e}", path.display()))
}
