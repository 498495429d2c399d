//! Programs of this process: verified, linked, compiled, run over one packet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use xway_abi::Errno;
use xway_engine::Choice;
use xway_isa::Slot;
use xway_jit::{Compiled, RunEnv};
use xway_maps::{Guard, Map};
use xway_object::{Btf, MapDef, Object};
use xway_vm::{
    Env, Instance, InstanceError, LinkError, Program, Surroundings, SystemHost, TestRun, run, several, test_run_with,
};

use super::{Pinned, User};
use crate::{
    Blame, HookError, Image, LoadRequest, MapId, Mode, Objects, ProgId, ProgramInfo, TestAnswer, TestRequest, pins,
};

/// A program that was loaded, with what belongs to it.
pub(super) struct Loaded {
    pub program: Arc<Program>,
    /// Maps and programs that it may reach by tail calls.
    _instance: Arc<Instance>,
    pub code: Option<Arc<Compiled>>,
    reason: Option<String>,
    btf: Option<Arc<Btf>>,
    pub insns: Vec<Slot>,
    gpl: bool,
}

/// Licences that permit every helper, as `license_is_gpl_compatible` of `linux/license.h` has them.
const GPL: [&str; 6] = ["GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"];

impl Loaded {
    pub fn info(&self) -> ProgramInfo {
        ProgramInfo {
            id: ProgId(self.program.id()),
            name: kernel_name(self.program.name()),
            tag: self.program.tag(),
            maps: self.used(),
            engine: if self.code.is_some() { "jit" } else { "interp" },
            reason: self.reason.clone(),
            gpl_compatible: self.gpl,
            runs: None,
        }
    }

    pub fn types(&self) -> Option<Vec<u8>> {
        self.btf.as_ref().map(|btf| btf.to_bytes().to_vec())
    }

    /// Maps that its instructions name, each once, in the order of the object.
    fn used(&self) -> Vec<MapId> {
        let mut named = vec![false; self.program.maps().len()];
        for slot in self.insns.iter().filter(|s| s.is_wide() && matches!(s.src, 5 | 6)) {
            if let Some(place) = named.get_mut(slot.imm as usize) {
                *place = true;
            }
        }
        let maps = self.program.maps().iter().zip(named);
        maps.filter(|(_, named)| *named).map(|(m, _)| MapId(m.id())).collect()
    }

    pub fn test_run(&self, test: &TestRequest<'_>) -> Result<TestAnswer, HookError> {
        let host = SystemHost::new();
        let wanted = TestRun {
            data_in: test.data,
            ctx_in: test.ctx.as_ref().map(<[u8; 24]>::as_slice),
            repeat: test.repeat,
            queues: 1,
            any_device: false,
        };
        let ran = test_run_with(&wanted, &host, &mut |frame, times| {
            let guard = Guard::pin();
            match &self.code {
                None => {
                    let mut env = Env::new(&guard, &host, 0);
                    several(times, || run(&self.program, frame, &mut env))
                }
                Some(code) => {
                    let mut env = RunEnv::new(&guard, &host, 0);
                    several(times, || code.outcome(frame, &mut env))
                }
            }
        });
        let ran = ran.map_err(|e| HookError {
            errno: Some(e.errno),
            ..HookError::new(Blame::Request, format!("program {}: the test run: {e}", self.program.name()))
        })?;
        if let Some(fault) = ran.fault {
            let message = format!("program {}: the test run was stopped: {fault}", self.program.name());
            return Err(HookError::new(Blame::Input, message));
        }
        Ok(TestAnswer {
            ret: ran.retval,
            data: ran.data_out,
            ctx: test.ctx.map(|_| ran.ctx_out),
            duration: ran.duration,
        })
    }
}

/// A name as Linux keeps it: 15 of the characters that it allows.
fn kernel_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')).take(15).collect()
}

/// Maps that loads which are only looked at would pin: later ones of the same look meet them.
#[derive(Debug, Default)]
pub struct Planned(BTreeMap<PathBuf, Arc<Map>>);

/// What a load would come to.
#[derive(Debug, Default)]
pub struct Foreseen {
    /// Programs by name.
    pub programs: Vec<String>,
    /// Maps that are there by their pins.
    pub shared: Vec<PathBuf>,
    /// Maps that would be new and pinned.
    pub pinned: Vec<PathBuf>,
}

/// A load that nothing refuses any more.
struct Proposal {
    instance: Arc<Instance>,
    /// Name, place in the object, program.
    programs: Vec<(String, usize, Arc<Program>)>,
}

/// What commands say of this hook.
const USER: &str = " --hook user";

/// Where an object's maps are looked for and pinned, and whether all of those that its author declared.
fn pins_of(request: &LoadRequest) -> (PathBuf, bool) {
    match &request.pins {
        Some(dir) => (dir.clone(), true),
        None => (PathBuf::from(pins::BPFFS), false),
    }
}

/// Places of the programs that a request is about.
fn asked(object: &Object, request: &LoadRequest) -> Result<Vec<usize>, HookError> {
    if let Some(name) = request.programs.iter().find(|n| object.programs.iter().all(|p| p.name != **n)) {
        let have: Vec<&str> = object.programs.iter().map(|p| p.name.as_str()).collect();
        return Err(HookError::missing(format!("program {name} in the object; there are {}", have.join(", "))));
    }
    let wanted = |image: &xway_object::Program| match request.programs.is_empty() {
        true => image.as_xdp().is_ok(),
        false => request.programs.contains(&image.name),
    };
    Ok((0..object.programs.len()).filter(|index| wanted(&object.programs[*index])).collect())
}

impl User {
    /// What [`crate::Hook::load`] would come to, without doing it: maps are compared with the pins, and programs are proved where `prove`
    /// says so. Costs what the proofs cost.
    ///
    /// # Errors
    /// Those of the load.
    pub fn foresee(
        &self,
        image: &Image,
        request: &LoadRequest,
        planned: &mut Planned,
        prove: bool,
    ) -> Result<Foreseen, HookError> {
        let object = &image.object;
        let (dir, all) = pins_of(request);
        let mut found = Foreseen::default();
        found.programs.extend(asked(object, request)?.into_iter().map(|index| object.programs[index].name.clone()));
        for def in object.maps.iter().filter(|def| pins::wanted(def, all)) {
            let path = dir.join(&def.name);
            match self.shared(&path, def, planned)? {
                Some(_) => found.shared.push(path),
                None => found.pinned.push(path),
            }
        }
        if prove {
            let proposal = self.propose(image, request, planned)?;
            for (def, map) in object.maps.iter().zip(proposal.instance.maps()) {
                if pins::wanted(def, all) {
                    planned.0.entry(dir.join(&def.name)).or_insert_with(|| map.clone());
                }
            }
        }
        Ok(found)
    }

    /// Maps and proved programs, as far as anything can be refused.
    fn propose(&self, image: &Image, request: &LoadRequest, planned: &Planned) -> Result<Proposal, HookError> {
        let object = &image.object;
        let places = asked(object, request)?;
        let (dir, all) = pins_of(request);
        let mut shared = Vec::new();
        for def in &object.maps {
            let path = dir.join(&def.name);
            shared.push(if pins::wanted(def, all) { self.shared(&path, def, planned)? } else { None });
        }
        let surroundings = Surroundings {
            cpus: self.config.cpus,
            gate: Some(self.config.verifier.clone()),
            handles: self.handles.clone(),
            shared,
            map_memory: true,
        };
        let instance = Arc::new(Instance::within(object.clone(), surroundings).map_err(|e| refused(&e))?);
        let mut programs = Vec::new();
        for index in places {
            let program = instance.program(index).map_err(|e| refused(&InstanceError::Link(e)))?;
            programs.push((object.programs[index].name.clone(), index, program));
        }
        Ok(Proposal { instance, programs })
    }

    pub(super) fn load_object(&mut self, image: &Image, request: &LoadRequest) -> Result<Objects, HookError> {
        let object = &image.object;
        if let Some(device) = &request.device {
            return Err(no_device(device));
        }
        let mut done = Objects::default();
        let Proposal { instance, programs } = self.propose(image, request, &Planned::default())?;
        let (dir, all) = pins_of(request);
        let prepared = |(name, index, program)| (name, self.prepare(&instance, program, object, index));
        let loaded: Vec<_> = programs.into_iter().map(prepared).collect();
        // Nothing is refused from here on: what is held and pinned now is the whole of it.
        for (def, map) in object.maps.iter().zip(instance.maps()) {
            done.maps.push((def.name.clone(), self.hold_map(map)));
            if let Some(btf) = object.btf.as_ref().filter(|_| def.key_type | def.value_type != 0) {
                self.types.entry(map.id()).or_insert_with(|| (btf.clone(), def.key_type, def.value_type));
            }
            let path = dir.join(&def.name);
            match pins::wanted(def, all).then(|| self.pins.contains_key(&path)) {
                None => {}
                Some(true) => done.shared.push(path),
                Some(false) => {
                    self.pins.insert(path.clone(), Pinned::Map(map.clone()));
                    done.pinned.push(path);
                }
            }
        }
        for (name, program) in loaded {
            let id = program.program.id();
            self.handles.add_program(&program);
            self.programs.insert(id, program);
            done.programs.push((name, ProgId(id)));
        }
        Ok(done)
    }

    fn prepare(&self, instance: &Arc<Instance>, program: Arc<Program>, object: &Object, index: usize) -> Arc<Loaded> {
        let choice = match &self.config.compiler {
            Some(options) => Choice::compiled(&program, options),
            None => Choice { reason: Some("the compiler is switched off".into()), ..Choice::interpreter() },
        };
        Arc::new(Loaded {
            program,
            _instance: instance.clone(),
            code: choice.code,
            reason: choice.reason,
            btf: object.btf.clone(),
            insns: object.programs[index].insns.clone(),
            gpl: object.license.as_deref().is_some_and(|l| GPL.contains(&l)),
        })
    }

    /// The map with this name, which must be what the object declares.
    fn shared(&self, path: &std::path::Path, def: &MapDef, planned: &Planned) -> Result<Option<Arc<Map>>, HookError> {
        match self.pins.get(path) {
            None => match planned.0.get(path) {
                None => Ok(None),
                Some(map) => pins::same(path, def, map.spec(), USER).map(|()| Some(map.clone())),
            },
            Some(Pinned::Program(_)) => {
                let message = format!("map {}: what is pinned at {} is a program", def.name, path.display());
                Err(HookError { errno: Some(Errno::EINVAL), ..HookError::new(Blame::Request, message) })
            }
            Some(Pinned::Map(map)) => {
                pins::same(path, def, map.spec(), USER)?;
                Ok(Some(map.clone()))
            }
        }
    }
}

fn refused(error: &InstanceError) -> HookError {
    let plain = |errno| HookError { errno, ..HookError::new(Blame::Input, error) };
    match error {
        InstanceError::Create { error, .. } => plain(Some(error.errno)),
        InstanceError::Initial { errno, .. } => plain(Some(*errno)),
        InstanceError::Link(LinkError::Refused { rejection, .. }) => {
            HookError { log: rejection.to_string(), ..plain(Some(Errno::EACCES)) }
        }
        InstanceError::Dangling { .. } | InstanceError::Link(_) => plain(Some(Errno::EINVAL)),
    }
}

/// The engine's programs run on CPUs.
pub fn no_device(port: &str) -> HookError {
    let message = format!("{port}: mode {} is one of Linux's hook", Mode::Offload.name());
    HookError::unsupported(message).hint("leave -m out: a port of the engine has one place only")
}
