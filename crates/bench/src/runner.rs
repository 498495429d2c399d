//! The ways in which our side executes a program, without what a worker does around it.

use std::sync::Arc;

use xway_jit::{Compiled, Options, RunEnv, compile};
use xway_maps::Guard;
use xway_object::{Object, Program};
use xway_packet::Frame;
use xway_verifier::{Config, MapsView, Verified};
use xway_vm::{Env, Host, Instance, SystemHost};

use crate::user::UserSideError;

/// Which way to execute the program.
#[derive(Clone, PartialEq, Debug)]
pub enum Way {
    /// The checked interpreter.
    Interpreter,
    /// Machine code, every pass on.
    Compiled,
    /// The same, with memory fetched ahead for maps of any size.
    Staged,
    /// Machine code called for each packet, without the loop over a burst.
    Single,
    /// Machine code with this pass off.
    Without(&'static str),
    /// Machine code with every pass off.
    Plain,
}

impl Way {
    /// In tables and JSON.
    pub fn name(&self) -> String {
        match self {
            Way::Interpreter => "interp".into(),
            Way::Compiled => "jit".into(),
            Way::Staged => "jit, always staged".into(),
            Way::Single => "jit, packet by packet".into(),
            Way::Without(pass) => format!("jit without {pass}"),
            Way::Plain => "jit, every pass off".into(),
        }
    }

    /// Machine code as it is, without each pass in turn, without all of them, and the interpreter.
    pub fn all() -> Vec<Way> {
        let without = Options::PASSES.iter().map(|pass| Way::Without(pass));
        [Way::Compiled, Way::Staged, Way::Single]
            .into_iter()
            .chain(without)
            .chain([Way::Plain, Way::Interpreter])
            .collect()
    }

    /// The compiler's switches; `None` for the interpreter.
    fn options(&self) -> Option<Options> {
        // As an engine compiles what runs over bursts.
        let mut options = Options { check: false, single: false, ..Options::default() };
        let off: &[&str] = match self {
            Way::Interpreter => return None,
            Way::Compiled => &[],
            Way::Staged => {
                options.stage_from = Some(0);
                &[]
            }
            Way::Single => {
                (options.burst, options.single) = (false, true);
                &[]
            }
            Way::Without(pass) => &[pass],
            Way::Plain => &Options::PASSES,
        };
        for pass in off {
            options.set(pass, false);
        }
        Some(options)
    }
}

/// A program that can run over bursts.
pub(crate) struct Runner {
    program: Arc<xway_vm::Program>,
    code: Option<Arc<Compiled>>,
    host: SystemHost,
    /// The number that the program has for its CPU.
    cpu: u32,
}

impl Runner {
    /// Links the program anew and, unless it is interpreted, compiles it. Programs that the object's PROG_ARRAYs hold are
    /// compiled too, once for all ways: tail calls go to their code.
    pub(crate) fn new(
        instance: &Instance,
        image: &Program,
        proof: &Verified,
        way: &Way,
        cpu: u32,
    ) -> Result<Runner, UserSideError> {
        let program = instance.link(image)?;
        let code = match way.options() {
            None => None,
            Some(options) => {
                if proof.facts().tail_calls {
                    compile_others(instance, &options)?;
                }
                Some(compile(&program, proof, &options).map_err(UserSideError::Compile)?)
            }
        };
        // What programs print is made, as it is in the kernel, and read by nobody.
        let host = SystemHost::new().with_trace(|line| {
            std::hint::black_box(line);
        });
        Ok(Runner { program, code, host, cpu })
    }

    /// What compiling cost; `None` for the interpreter.
    pub(crate) fn compiled(&self) -> Option<xway_jit::Stats> {
        self.code.as_ref().map(|code| code.stats())
    }

    /// Whether both run the same machine code in the same way: what their times differ by is the machine's doing.
    pub(crate) fn same_as(&self, other: &Runner) -> bool {
        matches!((&self.code, &other.code), (Some(code), Some(other)) if code.same_as(other))
    }

    /// Runs over all frames and stores what the program returned for each; says why when a run was stopped.
    #[inline]
    pub(crate) fn run(&self, frames: &mut [Frame], guard: &Guard, rets: &mut [u64]) -> Option<String> {
        self.host.burst_begins();
        let Some(code) = &self.code else { return self.interpret(frames, guard, rets) };
        let mut env = RunEnv::new(guard, &self.host, self.cpu);
        if let Err(refusal) = code.run_burst(frames, &mut env, rets) {
            return Some(refusal.to_string());
        }
        let faults = env.take_faults();
        faults.first().map(|(_, fault)| fault.to_string())
    }

    fn interpret(&self, frames: &mut [Frame], guard: &Guard, rets: &mut [u64]) -> Option<String> {
        let mut env = Env::new(guard, &self.host, self.cpu);
        for (frame, ret) in frames.iter_mut().zip(rets) {
            let outcome = xway_vm::run(&self.program, frame, &mut env);
            if let Some(fault) = outcome.fault {
                return Some(fault.to_string());
            }
            *ret = outcome.ret;
        }
        None
    }
}

fn compile_others(instance: &Instance, options: &Options) -> Result<(), UserSideError> {
    let object: &Object = instance.object();
    for (index, image) in object.programs.iter().enumerate() {
        let Ok(image) = image.as_xdp() else { continue };
        let Ok(proof) = xway_verifier::verify(&image, &MapsView::from(object), &Config::default()) else { continue };
        let program = instance.program(index)?;
        let options = Options { burst: false, single: true, ..options.clone() };
        let code = compile(&program, &proof, &options).map_err(UserSideError::Compile)?;
        code.keep_with(&program);
    }
    Ok(())
}
