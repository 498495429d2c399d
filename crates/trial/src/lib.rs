//! Programs for tests, run by whichever engine runs programs.
//!
//! What a test shows of the checked interpreter it has to show of machine code, too. So a test of what programs do does not call an
//! engine: it makes a [`Trial`] for each of [`ENGINES`], each with maps of its own, or is listed in [`in_each_engine!`]. The same
//! program then goes through the verifier and runs in both; what the verifier or the compiler refuses fails the test.
//!
//! Programs that no verifier would accept are for the checked interpreter alone. Tests of those call it by its name, and stand in the
//! table of `docs/testing.md` with the reason. What the compiler refuses by name is asked for it: [`Trial::is_not_compiled`].
#![forbid(unsafe_code)]

use std::sync::Arc;

use xway_jit::{Compiled, Options, RunEnv, compile};
use xway_maps::{Guard, Map};
use xway_object::MapDef;
use xway_packet::Frame;
use xway_verifier::{Config, MapsView};
use xway_vm::{Env, Host, Instance, LinkError, Outcome, Program, TestRun, TestRunError, TestRunResult, Timers};

/// What runs a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// The checked interpreter.
    Interpreter,
    /// Machine code over a burst of one packet, as a worker runs it.
    MachineCode,
}

/// All of them.
pub const ENGINES: [Engine; 2] = [Engine::Interpreter, Engine::MachineCode];

/// Functions that take an [`Engine`] as tests, one for each: `interpreter::NAME` and `machine_code::NAME`.
#[macro_export]
macro_rules! in_each_engine {
    ($($name:ident),* $(,)?) => {
        mod interpreter {
            $(#[test] fn $name() { super::$name($crate::Engine::Interpreter) })*
        }
        mod machine_code {
            $(#[test] fn $name() { super::$name($crate::Engine::MachineCode) })*
        }
    };
}

/// A program that the verifier has accepted, in one engine.
#[derive(Clone, Debug)]
pub struct Trial {
    program: Arc<Program>,
    code: Option<Arc<Compiled>>,
}

impl Trial {
    /// A program that was linked behind the verifier.
    ///
    /// # Panics
    /// When it has no proof, or is not compiled.
    #[track_caller]
    pub fn new(program: Arc<Program>, engine: Engine) -> Trial {
        let proof = program.proof().unwrap_or_else(|| panic!("{}: no proof", program.name()));
        let code = (engine == Engine::MachineCode).then(|| {
            let code = compile(&program, proof, &Options { check: true, ..Options::default() });
            let code = code.unwrap_or_else(|refusal| panic!("{}: no machine code: {refusal}", program.name()));
            // Tail calls find it.
            code.keep_with(&program);
            code
        });
        Trial { program, code }
    }

    /// The program with this index in an instance that was made behind the verifier.
    ///
    /// # Panics
    /// As [`Trial::new`], and when it is refused.
    #[track_caller]
    pub fn of(instance: &Instance, index: usize, engine: Engine) -> Trial {
        Trial::new(instance.program(index).unwrap_or_else(|error| panic!("{error}")), engine)
    }

    /// A program by itself, with these maps.
    ///
    /// # Errors
    /// What the verifier or the linker says of it.
    ///
    /// # Panics
    /// When it is not compiled.
    #[track_caller]
    pub fn link(image: &xway_object::Program, maps: &[Arc<Map>], engine: Engine) -> Result<Trial, LinkError> {
        let described: Vec<MapDef> = maps.iter().map(|map| MapDef::new(map.name(), map.spec().clone())).collect();
        let view = MapsView { maps: &described, license: Some("GPL"), ..MapsView::empty() };
        Ok(Trial::new(Program::verify(image, maps, &view, &Config::default())?, engine))
    }

    /// The compiler refuses the program, in these words: there is the interpreter and nothing else to run it.
    ///
    /// # Panics
    /// When it is compiled, or refused for another reason.
    #[track_caller]
    pub fn is_not_compiled(&self, why: &str) {
        let compiled = self.program.proof().map(|proof| compile(&self.program, proof, &Options::default()));
        match compiled {
            Some(Err(refusal)) if refusal.to_string().contains(why) => {}
            other => panic!("{}: no refusal with {why:?}, but {other:?}", self.program.name()),
        }
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Runs it over a packet, on this worker.
    ///
    /// # Panics
    /// When machine code does what no program with a proof does.
    #[track_caller]
    pub fn run(&self, frame: &mut Frame, host: &dyn Host, cpu: u32) -> Outcome {
        self.run_with(frame, host, cpu, Timers::shared())
    }

    /// The same with timers of the caller's.
    ///
    /// # Panics
    /// As [`Trial::run`].
    #[track_caller]
    pub fn run_with(&self, frame: &mut Frame, host: &dyn Host, cpu: u32, timers: &Timers) -> Outcome {
        let guard = Guard::pin();
        let Some(code) = &self.code else {
            return xway_vm::run(&self.program, frame, &mut Env::new(&guard, host, cpu).with_timers(timers));
        };
        let (mut env, mut ret) = (RunEnv::new(&guard, host, cpu).with_timers(timers), [0]);
        let ran = code.run_burst(std::slice::from_mut(frame), &mut env, &mut ret);
        ran.unwrap_or_else(|refusal| panic!("{}: {refusal}", self.program.name()));
        if let Some((_, fault)) = env.take_faults().first() {
            panic!("{}: machine code stops: {fault}", self.program.name());
        }
        Outcome { ret: ret[0], fault: None, insns: 0 }
    }

    /// Runs it over one packet as `BPF_PROG_TEST_RUN` does, on worker 0.
    ///
    /// # Errors
    /// What Linux has against the packet and its context.
    ///
    /// # Panics
    /// When the program is stopped: one with a proof never is.
    #[track_caller]
    pub fn test_run(&self, test: &TestRun<'_>, host: &dyn Host) -> Result<TestRunResult, TestRunError> {
        let ran = xway_vm::test_run_with(test, host, &mut |frame, times| {
            xway_vm::several(times, || self.run(frame, host, 0))
        })?;
        if let Some(fault) = &ran.fault {
            panic!("accepted, and stopped: {fault}");
        }
        Ok(ran)
    }
}
