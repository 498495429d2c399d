//! Programs of this process: verified, linked, compiled, run over one packet.

use std::path::PathBuf;
use std::sync::Arc;

use xway_abi::Errno;
use xway_engine::Choice;
use xway_isa::Slot;
use xway_jit::{Compiled, RunEnv};
use xway_maps::{Guard, Map};
use xway_object::{MapDef, Object};
use xway_vm::{
    Env, Instance, InstanceError, LinkError, Outcome, Program, Surroundings, SystemHost, TestRun, test_run,
    test_run_with,
};

use super::{Pinned, User};
use crate::{
    Blame, Dump, HookError, Image, LoadRequest, MapId, Mode, Objects, ProgId, ProgramInfo, TestAnswer, TestRequest,
    pins,
};

/// A program that was loaded, with what belongs to it.
pub(super) struct Loaded {
    pub program: Arc<Program>,
    /// Maps and programs that it may reach by tail calls.
    _instance: Arc<Instance>,
    pub code: Option<Arc<Compiled>>,
    reason: Option<String>,
    insns: Vec<Slot>,
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
        let guard = Guard::pin();
        let run = TestRun {
            data_in: test.data,
            ctx_in: test.ctx.as_ref().map(<[u8; 24]>::as_slice),
            repeat: test.repeat,
            queues: 1,
            any_device: false,
        };
        let ran = match &self.code {
            None => test_run(&self.program, &run, &mut Env::new(&guard, &host, 0)),
            Some(code) => {
                let mut env = RunEnv::new(&guard, &host, 0);
                test_run_with(&run, &host, &mut |frame| Outcome {
                    // What the code can refuse is a CPU number, and there is one CPU.
                    ret: code.run_one(frame, &mut env).unwrap_or(0),
                    fault: None,
                    insns: 0,
                })
            }
        };
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

    pub fn dump(&self) -> Dump {
        let jited = self.code.as_ref().map(|c| c.code().to_vec()).unwrap_or_default();
        let line = |l: &xway_object::LineInfo| crate::SourceLine {
            insn: l.insn,
            function: self.program.function(l.insn).to_owned(),
            file: l.file.to_string(),
            line: l.line,
            col: l.col,
            text: l.text.trim().to_owned(),
        };
        let lines = self.program.lines().iter().map(line).collect();
        Dump { xlated: self.insns.clone(), jited, lines }
    }
}

/// A name as Linux keeps it: 15 of the characters that it allows.
fn kernel_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')).take(15).collect()
}

impl User {
    pub(super) fn load_object(&mut self, image: &Image, request: &LoadRequest) -> Result<Objects, HookError> {
        let object = &image.object;
        if let Some(device) = &request.device {
            return Err(no_device(device));
        }
        let mut done = Objects::default();
        if let Some(name) = request.programs.iter().find(|n| object.programs.iter().all(|p| p.name != **n)) {
            let have: Vec<&str> = object.programs.iter().map(|p| p.name.as_str()).collect();
            return Err(HookError::missing(format!("program {name} in the object; there are {}", have.join(", "))));
        }
        let (dir, all) = match &request.pins {
            Some(dir) => (dir.clone(), true),
            None => (PathBuf::from(pins::BPFFS), false),
        };
        let mut shared = Vec::new();
        for def in &object.maps {
            let path = dir.join(&def.name);
            let there = if pins::wanted(def, all) { self.shared(&path, def)? } else { None };
            done.shared.extend(there.is_some().then_some(path));
            shared.push(there);
        }
        let surroundings = Surroundings {
            cpus: self.config.cpus,
            gate: Some(self.config.verifier.clone()),
            handles: self.handles.clone(),
            shared,
            map_memory: true,
        };
        let instance = Arc::new(Instance::within(object.clone(), surroundings).map_err(|e| refused(&e))?);
        let mut loaded = Vec::new();
        for (index, image) in object.programs.iter().enumerate() {
            if request.programs.is_empty() && image.as_xdp().is_err() {
                continue;
            }
            if request.programs.is_empty() || request.programs.contains(&image.name) {
                let program = instance.program(index).map_err(|e| refused(&InstanceError::Link(e)))?;
                loaded.push((image.name.clone(), self.prepare(&instance, program, object, index)));
            }
        }
        // Nothing is refused from here on: what is held and pinned now is the whole of it.
        for (def, map) in object.maps.iter().zip(instance.maps()) {
            done.maps.push((def.name.clone(), self.hold_map(map)));
            if let Some(btf) = object.btf.as_ref().filter(|_| def.key_type | def.value_type != 0) {
                self.types.entry(map.id()).or_insert_with(|| (btf.clone(), def.key_type, def.value_type));
            }
            let path = dir.join(&def.name);
            if pins::wanted(def, all) && !self.pins.contains_key(&path) {
                self.pins.insert(path.clone(), Pinned::Map(map.clone()));
                done.pinned.push(path);
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
            insns: object.programs[index].insns.clone(),
            gpl: object.license.as_deref().is_some_and(|l| GPL.contains(&l)),
        })
    }

    /// The map with this name, which must be what the object declares.
    fn shared(&self, path: &std::path::Path, def: &MapDef) -> Result<Option<Arc<Map>>, HookError> {
        match self.pins.get(path) {
            None => Ok(None),
            Some(Pinned::Program(_)) => {
                let message = format!("map {}: what is pinned at {} is a program", def.name, path.display());
                Err(HookError { errno: Some(Errno::EINVAL), ..HookError::new(Blame::Request, message) })
            }
            Some(Pinned::Map(map)) => {
                pins::same(path, def, map.spec())?;
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
