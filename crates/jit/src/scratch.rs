//! What Cranelift works in, kept from one program to the next.
//!
//! Its tables are vectors by the hundred, the register allocator's alone a set for each of 192 registers. To make them and to let them
//! go takes as long as to compile a program of a few instructions.

use std::cell::Cell;

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_frontend::FunctionBuilderContext;

/// Instructions of the longest programs behind which the tables are kept: they never shrink, and what a long one needed is nothing to hold
/// on to.
const KEPT_MAX: usize = 1024;

/// Tables for one function at a time.
pub(crate) struct Scratch {
    pub builder: FunctionBuilderContext,
    pub context: Context,
    pub control: ControlPlane,
    pub registers: regalloc2::Ctx,
}

thread_local! {
    /// Those that this thread used last.
    static KEPT: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Compiles a program of so many instructions. What fails leaves no tables behind.
pub(crate) fn with<T, E>(insns: usize, compile: impl FnOnce(&mut Scratch) -> Result<T, E>) -> Result<T, E> {
    // A thread that ends has none and keeps none.
    let kept = KEPT.try_with(Cell::take).ok().flatten();
    let mut scratch = kept.unwrap_or_else(|| {
        Box::new(Scratch {
            builder: FunctionBuilderContext::new(),
            context: Context::new(),
            control: ControlPlane::default(),
            registers: regalloc2::Ctx::default(),
        })
    });
    let made = compile(&mut scratch)?;
    if insns <= KEPT_MAX {
        let _ = KEPT.try_with(|kept| kept.set(Some(scratch)));
    }
    Ok(made)
}
