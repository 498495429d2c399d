//! Code of programs as it is shown: each by itself, and the chains that run as one function.

use std::sync::Arc;

use xway_engine::{ChainState, Engine};
use xway_jit::{Compiled, Origin, Placed};
use xway_vm::Program;

use super::programs::Loaded;
use crate::{ChainCode, ChainPart, CodeFunction, Dump, SourceLine};

/// A program's code, and that of the chains that it is a part of.
pub(super) fn of(loaded: &Loaded, engine: Option<&Engine>) -> Dump {
    let mut dump = by_itself(&loaded.program, loaded.code.as_deref());
    dump.xlated = loaded.insns.clone();
    let mut seen: Vec<(Vec<u32>, Arc<Compiled>, usize)> = Vec::new();
    for chain in engine.map(Engine::chains).unwrap_or_default() {
        let ids: Vec<u32> = chain.programs.iter().map(|a| a.program.id()).collect();
        if !ids.contains(&loaded.program.id()) {
            continue;
        }
        let point = (chain.port.clone(), chain.queue);
        match seen.iter().find(|(known, code, _)| *known == ids && code.same_as(&chain.code)) {
            Some((.., at)) => dump.chains[*at].points.push(point),
            None => {
                seen.push((ids, chain.code.clone(), dump.chains.len()));
                dump.chains.push(ChainCode { points: vec![point], ..code_of(&chain) });
            }
        }
    }
    dump
}

/// The machine code of a program, with its source lines, and without its instructions.
pub fn by_itself(program: &Program, code: Option<&Compiled>) -> Dump {
    Dump {
        jited: code.map(|c| c.code().to_vec()).unwrap_or_default(),
        lines: lines(program, 0).collect(),
        // Programs that its tail calls go to stand in the same code.
        functions: code.map(|c| functions(c, &[0])).unwrap_or_default(),
        ..Dump::default()
    }
}

fn code_of(chain: &ChainState) -> ChainCode {
    let mut code = ChainCode { jited: chain.code.code().to_vec(), ..ChainCode::default() };
    let mut first = 0;
    for attached in &chain.programs {
        let (id, name) = (attached.program.id(), attached.program.name().to_owned());
        code.programs.push(ChainPart { id, name, first });
        if let Some((program, _)) = attached.program.machine_code() {
            code.lines.extend(lines(program, first));
            first += program.insns().len();
        }
    }
    let firsts: Vec<usize> = code.programs.iter().map(|part| part.first).collect();
    code.functions = functions(&chain.code, &firsts);
    code
}

/// Source lines of a program whose slots are counted from `first` on.
fn lines(program: &Program, first: usize) -> impl Iterator<Item = SourceLine> + '_ {
    program.lines().iter().map(move |l| SourceLine {
        insn: first + l.insn,
        function: program.function(l.insn).to_owned(),
        file: l.file.to_string(),
        line: l.line,
        col: l.col,
        text: l.text.trim().to_owned(),
    })
}

/// The functions of machine code; `firsts` are the first slots of the programs that it was made of.
fn functions(code: &Compiled, firsts: &[usize]) -> Vec<CodeFunction> {
    let slot = |from: Option<Origin>| from.and_then(|from| Some(firsts.get(from.unit)? + from.insn));
    let function = |f: &Placed| CodeFunction {
        name: f.name.clone(),
        offset: f.offset,
        len: f.len,
        insns: f.lines.iter().map(|(at, from)| (*at, slot(*from))).collect(),
    };
    let mut all: Vec<_> = code.functions().iter().map(function).collect();
    all.sort_by_key(|f| f.offset);
    all
}
