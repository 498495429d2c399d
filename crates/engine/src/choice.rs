//! Which engine runs a program, and why that one.

use std::sync::Arc;

use xway_abi::MapType;
use xway_jit::{Compiled, Options, compile};
use xway_maps::{Guard, ProgramObject};
use xway_vm::Program;

/// The outcome: code, or the reason why there is none.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Machine code; without it the checked interpreter runs the program.
    pub code: Option<Arc<Compiled>>,
    /// Why there is no code, when it was asked for.
    pub reason: Option<String>,
}

impl Choice {
    /// The checked interpreter, because it was asked for.
    pub const fn interpreter() -> Choice {
        Choice { code: None, reason: None }
    }

    /// Machine code for bursts where the program has a proof and compiles. What tail calls enter is made of the programs that its
    /// PROG_ARRAYs hold now, as far as they can be compiled, and of this one when it comes into a PROG_ARRAY; into others tail
    /// calls go by way of the interpreter.
    pub fn compiled(program: &Arc<Program>, options: &Options) -> Choice {
        let without = |reason: String| Choice { code: None, reason: Some(reason) };
        let Some(proof) = program.proof() else { return without("the program is not verified".into()) };
        match compile(program, proof, &Options { single: !options.burst, ..options.clone() }) {
            Ok(code) => {
                code.keep_with(program);
                compile_targets(program, options);
                let options = options.clone();
                program.make_tail_with(move |program| {
                    if compile_tail(program, &options) {
                        compile_targets(program, &options);
                    }
                });
                Choice { code: Some(code), reason: None }
            }
            Err(refusal) => without(refusal.to_string()),
        }
    }

    /// Name of the engine.
    pub const fn name(&self) -> &'static str {
        if self.code.is_some() { "jit" } else { "interp" }
    }
}

/// Compiles what tail calls of this program reach, and the programs of the map entries that it redirects to.
fn compile_targets(program: &Program, options: &Options) {
    // Not for as long as code is made, which takes milliseconds for each: what maps let go waits for guards.
    let reached = |program: &Program| {
        let guard = Guard::pin();
        let tails = tail_called(program, &guard).into_iter().map(|program| (program, true));
        tails.chain(behind_entries(program, &guard).into_iter().map(|program| (program, false))).collect::<Vec<_>>()
    };
    let mut work = reached(program);
    while let Some((next, is_tail)) = work.pop() {
        let made = if is_tail { compile_tail(&next, options) } else { compile_burst(&next, options) };
        if made {
            work.extend(reached(&next));
        }
    }
}

/// Makes what tail calls enter; false when it is there or cannot be.
fn compile_tail(program: &Arc<Program>, options: &Options) -> bool {
    program.tail().is_none() && keep(program, &Options { burst: false, single: true, ..options.clone() })
}

/// Makes what runs over bursts; false when it is there or cannot be.
fn compile_burst(program: &Arc<Program>, options: &Options) -> bool {
    program.native().is_none() && keep(program, &Options { burst: true, single: false, ..options.clone() })
}

fn keep(program: &Arc<Program>, options: &Options) -> bool {
    let code = program.proof().and_then(|proof| compile(program, proof, options).ok());
    code.inspect(|code| code.keep_with(program)).is_some()
}

fn tail_called(program: &Program, guard: &Guard) -> Vec<Arc<Program>> {
    held_by(program, guard, |kind| kind == MapType::ProgArray)
}

/// Programs that run over frames on their way out of a port, or on another worker.
fn behind_entries(program: &Program, guard: &Guard) -> Vec<Arc<Program>> {
    held_by(program, guard, |kind| kind != MapType::ProgArray)
}

fn held_by(program: &Program, guard: &Guard, of: fn(MapType) -> bool) -> Vec<Arc<Program>> {
    let mut found = Vec::new();
    for map in program.maps().iter().filter(|map| of(map.map_type())) {
        let linked = |held: &Arc<dyn ProgramObject>| held.as_any().downcast_ref::<Program>()?.arc();
        map.each_program(guard, &mut |held| found.extend(linked(held)));
    }
    found
}
