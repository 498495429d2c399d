//! One function, taken out of its section with its relocations applied.

use xway_isa::{Slot, op, slots_from_bytes};

use crate::core_relo;
use crate::elf::{Place, Relocation, Symbol};
use crate::externs::Extern;
use crate::functions::Function;
use crate::load::Loader;
use crate::{KfuncRef, KsymRef, LineInfo, ObjectError};

/// A function, ready to be put into a program.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub insns: Vec<Slot>,
    /// References to other functions: slot and function, in order.
    pub calls: Vec<(usize, usize)>,
    /// References to kernel functions and variables; their immediates are set when the program is put together.
    pub kfuncs: Vec<(usize, KfuncRef)>,
    pub ksyms: Vec<(usize, KsymRef)>,
    /// Poisoned slots and why.
    pub poisons: Vec<(usize, String)>,
    /// Lines, with indices relative to the function.
    pub lines: Vec<LineInfo>,
}

/// Helper number of calls to weak kernel functions that do not exist (libbpf's base number).
const POISON_KFUNC: i32 = 2_002_000_000;

impl Unit {
    pub fn extract(loader: &Loader<'_>, function: &Function) -> Result<Unit, ObjectError> {
        let section = &loader.elf.sections[function.section];
        let wrong = |why: String| ObjectError::Program {
            program: function.name.clone(),
            section: section.name.to_owned(),
            why,
        };
        if !function.start.is_multiple_of(8) {
            return Err(wrong(format!("it starts at byte {}, not at an instruction", function.start)));
        }
        let end = function.start.saturating_add(function.len);
        let bytes = section.data.get(function.start as usize..end.min(usize::MAX as u64) as usize);
        let insns = bytes.and_then(slots_from_bytes).filter(|i| !i.is_empty()).ok_or_else(|| {
            wrong(format!("its {} bytes are not whole instructions inside the section", function.len))
        })?;
        let mut unit = Unit {
            insns,
            calls: Vec::new(),
            kfuncs: Vec::new(),
            ksyms: Vec::new(),
            poisons: Vec::new(),
            lines: loader.lines.of(function, section.name),
        };
        unit.resolve_types(loader, function, end)?;
        for r in loader.elf.relocations_in(function.section, function.start..end) {
            let relocated = unit.relocate(loader, function, r);
            relocated.map_err(|why| ObjectError::Relocation {
                section: section.name.to_owned(),
                insn: r.offset / 8,
                why: format!("in `{}`: {why}", function.name),
            })?;
        }
        unit.find_plain_calls(loader, function).map_err(wrong)?;
        Ok(unit)
    }

    fn resolve_types(&mut self, loader: &Loader<'_>, function: &Function, end: u64) -> Result<(), ObjectError> {
        let Some(patches) = loader.core.get(&function.section) else { return Ok(()) };
        let from = patches.partition_point(|p| u64::from(p.0) < function.start);
        for (offset, resolution) in patches[from..].iter().take_while(|p| u64::from(p.0) < end) {
            let section = loader.elf.sections[function.section].name;
            let fail = |why| core_relo::relocation_error(section, *offset, why);
            let resolution = resolution.as_ref().map_err(|why| fail(why.clone()))?;
            let at = (u64::from(*offset) - function.start) as usize / 8;
            if let Some(reason) = core_relo::apply(&mut self.insns, at, resolution).map_err(fail)? {
                self.poisons.push((at, reason));
            }
        }
        Ok(())
    }

    fn relocate(&mut self, loader: &Loader<'_>, function: &Function, r: &Relocation) -> Result<(), String> {
        let at = ((r.offset - function.start) / 8) as usize;
        if !r.offset.is_multiple_of(8) {
            return Err(format!("a relocation in the middle of the instruction (byte {})", r.offset));
        }
        if self.poisons.iter().any(|p| p.0 == at) {
            return Ok(());
        }
        let symbol = loader.elf.symbols.get(r.symbol).ok_or("a relocation without a symbol")?;
        let slot = self.insns[at];
        match slot.opcode {
            op::LD_IMM64 if at + 1 < self.insns.len() => self.relocate_load(loader, at, r, symbol),
            op::CALL => self.relocate_call(loader, at, r, symbol),
            other => Err(format!(
                "`{}` is referred to by an instruction that is no 64-bit load and no call (opcode {other:#04x})",
                symbol.name
            )),
        }
    }

    fn relocate_load(
        &mut self,
        loader: &Loader<'_>,
        at: usize,
        r: &Relocation,
        symbol: &Symbol<'_>,
    ) -> Result<(), String> {
        let addend = r.addend.filter(|a| *a != 0).unwrap_or(i64::from(self.insns[at].imm));
        let offset = symbol.value.wrapping_add_signed(addend);
        let section = match symbol.place {
            Place::Section(n) => n,
            Place::Undefined => return self.load_extern(loader, at, r.symbol, symbol.name),
            Place::Common => {
                return Err(format!(
                    "`{}` is a common symbol; compile with `-fno-common` or initialise it",
                    symbol.name
                ));
            }
            Place::Other => return Err(format!("`{}` lies in no section", symbol.name)),
        };
        let target = &loader.elf.sections[section];
        if target.executable {
            let Some(callee) = loader.functions.starting_at(section, offset) else {
                return Err(format!("no function starts at byte {offset} of section `{}`", target.name));
            };
            self.set_load(at, 4, 0, 0);
            self.calls.push((at, callee));
            return Ok(());
        }
        if let Some(map) = loader.maps.declared_at(section, offset) {
            self.set_load(at, 5, map, 0);
            return Ok(());
        }
        let Some(map) = loader.maps.of_section(section) else {
            return Err(format!("`{}` in section `{}` is neither map nor data", symbol.name, target.name));
        };
        if offset > target.size {
            return Err(format!(
                "offset {} lies outside of section `{}` ({} bytes)",
                offset as i64, target.name, target.size
            ));
        }
        self.set_load(at, 6, map, offset as u32);
        Ok(())
    }

    fn load_extern(&mut self, loader: &Loader<'_>, at: usize, symbol: usize, name: &str) -> Result<(), String> {
        match loader.externs.get(symbol) {
            Some(Extern::Kconfig { map, offset }) => self.set_load(at, 6, *map, *offset),
            Some(Extern::Absent) => self.set_load(at, 0, 0, 0),
            // The address of a kernel function is only good for the question whether it exists.
            Some(Extern::Function(_)) => self.set_load(at, 0, 1, 0),
            Some(Extern::Variable(ksym)) => {
                self.set_load(at, 3, 0, 0);
                self.ksyms.push((at, ksym.clone()));
            }
            Some(Extern::Failed(why)) => return Err(format!("extern `{name}`: {why}")),
            None => return Err(format!("`{name}` is not defined")),
        }
        Ok(())
    }

    fn relocate_call(
        &mut self,
        loader: &Loader<'_>,
        at: usize,
        r: &Relocation,
        symbol: &Symbol<'_>,
    ) -> Result<(), String> {
        match symbol.place {
            Place::Section(section) if loader.elf.sections[section].executable => {
                let offset = symbol.value.wrapping_add_signed((i64::from(self.insns[at].imm) + 1) * 8);
                let Some(callee) = loader.functions.starting_at(section, offset) else {
                    let name = loader.elf.sections[section].name;
                    return Err(format!("no function starts at byte {} of section `{name}`", offset as i64));
                };
                self.insns[at] = Slot { opcode: op::CALL, src: 1, ..Slot::default() };
                self.calls.push((at, callee));
                Ok(())
            }
            Place::Undefined => {
                let poison = Slot { opcode: op::CALL, imm: POISON_KFUNC, ..Slot::default() };
                match loader.externs.get(r.symbol) {
                    Some(Extern::Function(kfunc)) => {
                        self.insns[at] = Slot { opcode: op::CALL, src: 2, ..Slot::default() };
                        self.kfuncs.push((at, kfunc.clone()));
                        Ok(())
                    }
                    Some(Extern::Absent) => {
                        self.insns[at] = poison;
                        self.poisons.push((at, format!("there is no kernel function `{}`", symbol.name)));
                        Ok(())
                    }
                    Some(Extern::Failed(why)) => Err(format!("extern `{}`: {why}", symbol.name)),
                    _ => Err(format!("`{}` is not a function", symbol.name)),
                }
            }
            _ => Err(format!("a call of `{}`, which is not a function", symbol.name)),
        }
    }

    /// Calls inside a section that the compiler resolved itself: their immediates are relative and need no relocation.
    fn find_plain_calls(&mut self, loader: &Loader<'_>, function: &Function) -> Result<(), String> {
        let known: std::collections::HashSet<usize> = self.calls.iter().map(|c| c.0).collect();
        let mut at = 0;
        while at < self.insns.len() {
            let slot = self.insns[at];
            if slot.opcode == op::CALL && slot.src == 1 && !known.contains(&at) {
                let target = function.start.wrapping_add_signed((at as i64 + i64::from(slot.imm) + 1) * 8);
                let callee = loader.functions.starting_at(function.section, target).ok_or_else(|| {
                    format!("instruction {at} calls byte {} of the section, where no function starts", target as i64)
                })?;
                self.calls.push((at, callee));
            }
            at += 1 + usize::from(slot.is_wide());
        }
        self.calls.sort_unstable();
        Ok(())
    }

    /// Gives a 64-bit load the source field `src` and its two immediates.
    fn set_load(&mut self, at: usize, src: u8, imm: usize, second: u32) {
        let dst = self.insns[at].dst;
        self.insns[at] = Slot { opcode: op::LD_IMM64, dst, src, off: 0, imm: imm as i32 };
        self.insns[at + 1] = Slot { imm: second as i32, ..Slot::default() };
    }
}
