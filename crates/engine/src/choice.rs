//! Which engine runs a program, and why that one.

use std::sync::Arc;

use xway_abi::MapType;
use xway_jit::{Compiled, Options, compile};
use xway_maps::Guard;
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

    /// Machine code where the program has a proof and compiles. The programs that its PROG_ARRAYs hold now are compiled too, as
    /// far as they can be; into the others, and into those that come later, tail calls go by way of the interpreter.
    pub fn compiled(program: &Arc<Program>, options: &Options) -> Choice {
        let without = |reason: String| Choice { code: None, reason: Some(reason) };
        let Some(proof) = program.proof() else { return without("the program is not verified".into()) };
        match compile(program, proof, options) {
            Ok(code) => {
                code.keep_with(program);
                compile_targets(program, options);
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

/// Compiles what tail calls of this program reach.
fn compile_targets(program: &Program, options: &Options) {
    let guard = Guard::pin();
    let mut work: Vec<Arc<Program>> = targets(program, &guard);
    while let Some(next) = work.pop() {
        if next.native().is_some() {
            continue;
        }
        let Some(proof) = next.proof() else { continue };
        // Nobody asks for a burst of it.
        if let Ok(code) = compile(&next, proof, &Options { burst: false, ..options.clone() }) {
            code.keep_with(&next);
            work.extend(targets(&next, &guard));
        }
    }
}

fn targets(program: &Program, guard: &Guard) -> Vec<Arc<Program>> {
    let arrays = program.maps().iter().filter(|m| m.map_type() == MapType::ProgArray);
    let held = arrays.flat_map(|m| (0..m.spec().max_entries).filter_map(move |i| m.program(i, guard)));
    held.filter_map(|p| p.as_any().downcast_ref::<Program>()?.arc()).collect()
}
