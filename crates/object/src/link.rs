//! Putting programs together: the main function, then every function that it reaches.

use std::collections::HashMap;

use crate::functions::Functions;
use crate::unit::Unit;
use crate::{ObjectError, Poison, Program, Subprog};

/// The longest program, slots: what Linux's verifier is willing to walk.
const MAX_INSNS: usize = 1_000_000;

/// All functions of an object, cut out and relocated, or the reason why not.
pub(crate) struct Units<'a> {
    pub functions: &'a Functions,
    pub units: Vec<Result<Unit, ObjectError>>,
    /// Slots that programs may still take, all together: linking repeats functions, and must not do so without bound.
    pub budget: usize,
}

impl Units<'_> {
    /// Links the program that starts with function `main`. Functions follow in the order in which a walk along the calls
    /// first meets them, which is libbpf's order, so that tags agree.
    pub fn link(&mut self, main: usize, section: &str) -> Result<Program, ObjectError> {
        let name = &self.functions.get(main).name;
        let too_long = || ObjectError::Program {
            program: name.clone(),
            section: section.to_owned(),
            why: "with its subprograms it is longer than a million instructions, or the object's programs together are"
                .to_owned(),
        };
        let mut starts: HashMap<usize, usize> = HashMap::new();
        let mut order: Vec<usize> = Vec::new();
        let mut total = 0;
        let mut walk: Vec<(usize, usize)> = Vec::new();
        let mut next = Some(main);
        loop {
            if let Some(f) = next.take() {
                let unit = self.units[f].as_ref().map_err(Clone::clone)?;
                starts.insert(f, total);
                order.push(f);
                total += unit.insns.len();
                if total > MAX_INSNS || total > self.budget {
                    return Err(too_long());
                }
                walk.push((f, 0));
            }
            let Some((f, at)) = walk.last_mut() else { break };
            let calls = self.units[*f].as_ref().map_or(&[][..], |u| &u.calls);
            match calls.get(*at) {
                None => drop(walk.pop()),
                Some((_, callee)) => {
                    *at += 1;
                    next = Some(*callee).filter(|c| !starts.contains_key(c));
                }
            }
        }
        self.budget -= total;
        let mut program = Program { name: name.clone(), section: section.to_owned(), ..Program::default() };
        program.insns.reserve_exact(total);
        for f in order {
            self.append(f, &starts, &mut program);
        }
        Ok(program)
    }

    fn append(&self, index: usize, starts: &HashMap<usize, usize>, program: &mut Program) {
        let Ok(unit) = &self.units[index] else { return };
        let function = self.functions.get(index);
        let base = program.insns.len();
        program.insns.extend(&unit.insns);
        for (at, callee) in &unit.calls {
            let here = base + at;
            let target = starts.get(callee).copied().unwrap_or(base);
            program.insns[here].imm = (target as i64 - here as i64 - 1) as i32;
        }
        for (at, kfunc) in &unit.kfuncs {
            program.insns[base + at].imm = position_or_push(&mut program.kfuncs, kfunc) as i32;
        }
        for (at, ksym) in &unit.ksyms {
            program.insns[base + at].imm = position_or_push(&mut program.ksyms, ksym) as i32;
        }
        program.poisons.extend(unit.poisons.iter().map(|(at, why)| Poison { insn: base + at, reason: why.clone() }));
        program.line_info.extend(unit.lines.iter().cloned().map(|mut l| {
            l.insn += base;
            l
        }));
        program.subprogs.push(Subprog {
            name: function.name.clone(),
            start: base,
            len: unit.insns.len(),
            global: function.global,
            func_id: function.func_id,
        });
    }
}

fn position_or_push<T: PartialEq + Clone>(list: &mut Vec<T>, item: &T) -> usize {
    list.iter().position(|x| x == item).unwrap_or_else(|| {
        list.push(item.clone());
        list.len() - 1
    })
}
