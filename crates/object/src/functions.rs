//! The functions of the executable sections.

use crate::btf::{Btf, BtfExt, Kind};
use crate::elf::{Elf, SymKind, Symbol};

/// A function: a stretch of an executable section.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub name: String,
    pub section: usize,
    /// First byte in the section.
    pub start: u64,
    /// Length in bytes. What the symbol says; whether the section has that much is seen when the function is read.
    pub len: u64,
    /// Not `static`.
    pub global: bool,
    /// BTF id of its `FUNC`, 0 if unknown.
    pub func_id: u32,
}

/// All functions, by section and start.
pub(crate) struct Functions(Vec<Function>);

impl Functions {
    pub fn find(elf: &Elf<'_>, btf: Option<(&Btf, &BtfExt)>) -> Functions {
        let mut all = Vec::new();
        let mut by_section: Vec<Vec<&Symbol<'_>>> = vec![Vec::new(); elf.sections.len()];
        for s in &elf.symbols {
            if let crate::elf::Place::Section(n) = s.place
                && elf.sections[n].executable
            {
                by_section[n].push(s);
            }
        }
        for section in elf.sections.iter().filter(|s| s.executable && !s.data.is_empty()) {
            let records = func_records(section.name, btf);
            for (start, len, name, global) in starts(section.size, section.name, &by_section[section.index]) {
                let func_id = records
                    .binary_search_by_key(&start, |r| r.0)
                    .map(|i| records[i].1)
                    .ok()
                    .or_else(|| btf?.0.find(&name, |t| matches!(t.kind, Kind::Func(..))))
                    .unwrap_or(0);
                all.push(Function { name, section: section.index, start, len, global, func_id });
            }
        }
        Functions(all)
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Function)> {
        self.0.iter().enumerate()
    }

    pub fn get(&self, index: usize) -> &Function {
        &self.0[index]
    }

    /// The function that starts at this place.
    pub fn starting_at(&self, section: usize, offset: u64) -> Option<usize> {
        self.0.binary_search_by_key(&(section, offset), |f| (f.section, f.start)).ok()
    }
}

/// (start byte, BTF id) of a section's functions, sorted.
fn func_records(section: &str, btf: Option<(&Btf, &BtfExt)>) -> Vec<(u64, u32)> {
    let Some((btf, ext)) = btf else { return Vec::new() };
    let mut out: Vec<(u64, u32)> =
        BtfExt::in_section(&ext.funcs, btf, section).map(|r| (u64::from(r.offset), r.record.func_id)).collect();
    out.sort_unstable();
    out
}

/// (start, length, name, global) of the functions in a section, from its symbols.
fn starts(size: u64, section: &str, symbols: &[&Symbol<'_>]) -> Vec<(u64, u64, String, bool)> {
    let typed: Vec<&&Symbol<'_>> = symbols.iter().filter(|s| s.kind == SymKind::Func).collect();
    // Compilers before clang 8 gave functions no type; their local labels without a type are jump targets.
    let chosen: Vec<&&Symbol<'_>> = match typed.is_empty() {
        false => typed,
        true => symbols.iter().filter(|s| s.kind == SymKind::None && !s.local && !s.name.is_empty()).collect(),
    };
    let mut starts: Vec<&Symbol<'_>> = chosen.into_iter().copied().filter(|s| s.value < size).collect();
    // Of two names for one place the global one counts.
    starts.sort_by_key(|s| (s.value, s.local));
    starts.dedup_by_key(|s| s.value);
    if starts.is_empty() {
        return vec![(0, size, section.to_owned(), true)];
    }
    let ends = starts.iter().skip(1).map(|s| s.value).chain([size]);
    starts
        .iter()
        .zip(ends)
        // A symbol's size never reaches into the next function, so that all functions together are no longer than the section.
        .map(|(s, end)| {
            let room = end - s.value;
            (s.value, if s.size == 0 { room } else { s.size.min(room) }, s.name.to_owned(), !s.local)
        })
        .collect()
}
