//! `xway conformance`: the plug-in protocol of the public BPF conformance runner.
//!
//! Instructions come on standard input as hexadecimal bytes with white space between them, the memory as the first argument
//! in the same form. r1 is its address and r2 its length. r0 is printed in hexadecimal without a prefix. An exit code other
//! than 0 says that the program was refused or stopped. The runner also passes an empty argument where it has no options.
//!
//! `--engine jit` verifies the program and runs it as machine code: the same suite judges the compiler.

use std::io::Read;
use std::sync::Arc;

use serde_json::json;
use xway_isa::slots_from_bytes;
use xway_object::{Object, Program, ProgramKind};
use xway_packet_text::literal;
use xway_verifier::Config;
use xway_vm::Instance;

use crate::args::{self, Engine};
use crate::failure::Failure;
use crate::{conformance_jit, load, print, single};

/// Longest program text, bytes.
const TEXT_MAX: u64 = 64 << 20;

/// Runs the command.
pub fn run(args: &args::Conformance, as_json: bool) -> Result<(), Failure> {
    if let Some(extra) = args.rest.iter().find(|a| !a.trim().is_empty()) {
        return Err(Failure::usage(format!("unexpected argument {extra:?}")));
    }
    let mut memory =
        literal::hex(args.memory.as_deref().unwrap_or("")).map_err(|e| Failure::usage(format!("MEMORY: {e}")))?;
    let bytes = program_bytes(args)?;
    let image = if args.elf { from_elf(&bytes)? } else { (from_instructions(&bytes)?, Object::default()) };
    if args.debug {
        eprintln!("{} instruction slots, {} bytes of memory", image.0.insns.len(), memory.len());
    }
    let (program, object) = image;
    let (engine, ret, insns) = match args.engine {
        Engine::Jit => {
            let instance = Instance::verified(Arc::new(object), 1, Config::default()).map_err(Failure::no)?;
            // Machine code does not count.
            ("jit", conformance_jit::run(&instance, &program, &memory)?, None)
        }
        Engine::Auto | Engine::Interp => {
            let instance = Instance::new(Arc::new(object), 1).map_err(Failure::no)?;
            let linked = instance.link(&program).map_err(Failure::no)?;
            let outcome = single::run_raw(&linked, &mut memory, args.budget)?;
            ("interp", outcome.ret, Some(outcome.insns))
        }
    };
    let printed = format!("{ret:x}");
    if as_json {
        let fields = json!({ "engine": engine, "r0": printed, "insns": insns });
        print::json(&print::document("conformance", fields));
    } else {
        print::text(&(printed + "\n"));
    }
    Ok(())
}

fn program_bytes(args: &args::Conformance) -> Result<Vec<u8>, Failure> {
    if let Some(text) = &args.program {
        return literal::hex(text).map_err(|e| Failure::usage(format!("--program: {e}")));
    }
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(TEXT_MAX)
        .read_to_string(&mut text)
        .map_err(|e| Failure::file("standard input", &e))?;
    literal::hex(&text).map_err(|e| Failure::input(format!("standard input: {e}")))
}

/// A program of instructions alone: no maps, the type `raw`.
fn from_instructions(bytes: &[u8]) -> Result<Program, Failure> {
    let Some(insns) = slots_from_bytes(bytes).filter(|i| !i.is_empty()) else {
        return Err(Failure::input(format!("{} bytes of instructions; they come in groups of 8", bytes.len()))
            .hint("echo 'b7 00 00 00 2a 00 00 00 95 00 00 00 00 00 00 00' | xway conformance"));
    };
    Ok(Program { name: "raw".into(), kind: ProgramKind::Raw, insns, ..Program::default() })
}

fn from_elf(bytes: &[u8]) -> Result<(Program, Object), Failure> {
    let object = load::parse(bytes, None)?;
    let mut program = load::choose_by(&object, None, None)?;
    program.kind = ProgramKind::Raw;
    Ok((program, object))
}
