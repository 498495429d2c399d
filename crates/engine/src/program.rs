//! Programs as the engine attaches them.

use std::any::Any;
use std::sync::Arc;

use xway_jit::{Compiled, Options};
use xway_maps::{Map, ProgramObject, ProgramUse};
use xway_packet::Frame;
use xway_vm::{Owner, Program};

use crate::exec::{Executor, ExecutorInfo, Results};
use crate::{Checked, Choice, Native, Needs};

/// A loaded program: something with an id that makes what runs it, once for each queue that it is attached to.
pub trait LoadedProgram: Send + Sync {
    /// Its id, never 0.
    fn id(&self) -> u32;

    /// Name of its function.
    fn name(&self) -> &str;

    /// Maps that it uses: broadcasts and hand-overs look them up by id.
    fn maps(&self) -> &[Arc<Map>] {
        &[]
    }

    /// Makes what runs it on the worker with this number.
    fn executor(&self, worker: u32) -> Box<dyn Executor>;

    /// The program behind it and its code, when it is verified and runs as machine code: chains of these become one function.
    fn machine_code(&self) -> Option<(&Arc<Program>, &Arc<Compiled>)> {
        None
    }

    /// What it needs of a port; nothing, when nobody knows.
    fn needs(&self) -> Needs {
        Needs::default()
    }
}

/// A linked program with the engine that was chosen for it.
pub struct Linked {
    program: Arc<Program>,
    choice: Choice,
    /// Behind the program: what it empties is reached through the program.
    owner: Option<Arc<Owner>>,
}

impl Linked {
    /// With machine code where the program has a proof and compiles, else in the checked interpreter; [`Linked::choice`] says
    /// which, and why.
    pub fn new(program: Arc<Program>) -> Linked {
        let choice = Choice::compiled(&program, &Options::default());
        Linked { program, choice, owner: None }
    }

    /// With an engine that was chosen before.
    pub fn with_choice(program: Arc<Program>, choice: Choice) -> Linked {
        Linked { program, choice, owner: None }
    }

    /// Keeps the instance that the program comes from for as long as the program is attached somewhere. When that is over, programs in
    /// the instance's own maps go with it, which would keep each other otherwise.
    pub fn owned_by(self, owner: Arc<Owner>) -> Linked {
        Linked { owner: Some(owner), ..self }
    }

    /// The instance, where it was given.
    pub fn owner(&self) -> Option<&Arc<Owner>> {
        self.owner.as_ref()
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Which engine runs it, and why.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }
}

impl LoadedProgram for Linked {
    fn machine_code(&self) -> Option<(&Arc<Program>, &Arc<Compiled>)> {
        Some((&self.program, self.choice.code.as_ref()?))
    }

    fn needs(&self) -> Needs {
        Needs::of_program(&self.program)
    }

    fn id(&self) -> u32 {
        self.program.id()
    }

    fn name(&self) -> &str {
        self.program.name()
    }

    fn maps(&self) -> &[Arc<Map>] {
        self.program.maps()
    }

    fn executor(&self, worker: u32) -> Box<dyn Executor> {
        match &self.choice.code {
            Some(code) => Box::new(Native::new(self.program.clone(), code.clone(), worker)),
            None => Box::new(Checked::new(self.program.clone(), worker)),
        }
    }
}

/// A loaded program as an entry of a DEVMAP or CPUMAP has it. Programs of [`xway_vm::Program`] may stand there as they are;
/// this brings the engine that was chosen for them, or any other program.
pub struct MapProgram {
    program: Arc<dyn LoadedProgram>,
    program_use: ProgramUse,
}

impl MapProgram {
    /// For whoever resolves descriptors for maps.
    pub fn new(program: Arc<dyn LoadedProgram>, program_use: ProgramUse) -> Arc<MapProgram> {
        Arc::new(MapProgram { program, program_use })
    }

    /// The program.
    pub fn loaded(&self) -> &Arc<dyn LoadedProgram> {
        &self.program
    }
}

impl ProgramObject for MapProgram {
    fn id(&self) -> u32 {
        self.program.id()
    }

    fn program_use(&self) -> ProgramUse {
        self.program_use
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A hook without a program: everything passes, as on an interface without one.
pub(crate) struct Nothing;

impl Executor for Nothing {
    fn run(&mut self, frames: &mut [Frame], _: &xway_maps::Guard, results: &mut Results) {
        results.pass_all(frames.len());
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: String::new(), engine: "none" }
    }
}
