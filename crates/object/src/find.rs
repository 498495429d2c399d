//! Finding a program by what a person calls it.

use std::collections::HashSet;

use crate::kinds::tail_call_slot;
use crate::{Initial, MapDef, Object, ObjectError, Program, ProgramKind, SlotRef};

/// Which program of an object is meant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Select {
    /// The only XDP program, or the only one at all.
    #[default]
    Only,
    /// By function name.
    Name(String),
    /// By section name.
    Section(String),
}

impl Object {
    /// The program that is meant. A program of a kind that says nothing ([`ProgramKind::Unknown`]) is taken for XDP when it
    /// is asked for, or when there is nothing else; see [`Program::as_xdp`].
    pub fn select(&self, which: &Select) -> Result<&Program, ObjectError> {
        match which {
            Select::Name(name) => self.program(name),
            Select::Section(section) => self.program_in(section),
            Select::Only => self.only_program(),
        }
    }

    /// The program with this function name. The error lists the names that there are, or is the reason why the program of
    /// this name could not be linked.
    pub fn program(&self, name: &str) -> Result<&Program, ObjectError> {
        if let Some(p) = self.programs.iter().find(|p| p.name == name) {
            return Ok(p);
        }
        match self.rejected.iter().find(|p| p.name == name) {
            Some(rejected) => Err(rejected.error.clone()),
            None => Err(ObjectError::NotFound {
                what: "program",
                wanted: name.to_owned(),
                have: list(self.programs.iter().map(|p| &*p.name)),
            }),
        }
    }

    /// The program in this section, which must have exactly one.
    pub fn program_in(&self, section: &str) -> Result<&Program, ObjectError> {
        let fitting: Vec<&Program> = self.programs.iter().filter(|p| p.section == section).collect();
        match (fitting.as_slice(), self.rejected.iter().find(|p| p.section == section)) {
            ([one], _) => Ok(one),
            ([], Some(rejected)) => Err(rejected.error.clone()),
            ([], None) => {
                let mut have: Vec<&str> = self.programs.iter().map(|p| &*p.section).collect();
                have.dedup();
                Err(ObjectError::NotFound { what: "section", wanted: section.to_owned(), have: list(have.into_iter()) })
            }
            (many, _) => Err(ambiguous(many)),
        }
    }

    fn only_program(&self) -> Result<&Program, ObjectError> {
        // Programs that devices cannot run by themselves, those marked `?` and the targets of tail calls do not make a choice
        // ambiguous.
        let targets: HashSet<usize> = self.maps.iter().flat_map(initial_programs).collect();
        let ranks: [fn(&Program) -> bool; 5] = [
            |p| matches!(p.kind, ProgramKind::Xdp { .. }) && p.autoload && tail_call_slot(&p.section).is_none(),
            |p| p.kind.is_xdp() && p.autoload,
            |p| p.kind.is_xdp(),
            |p| p.kind == ProgramKind::Raw,
            |p| p.kind == ProgramKind::Unknown,
        ];
        for (rank, fits) in ranks.iter().enumerate() {
            let all = self.programs.iter().enumerate().filter(|(i, p)| fits(p) && (rank > 0 || !targets.contains(i)));
            let fitting: Vec<&Program> = all.map(|(_, p)| p).collect();
            match fitting.as_slice() {
                [] => {}
                [one] => return Ok(one),
                many => return Err(ambiguous(many)),
            }
        }
        if let Some(rejected) = self.rejected.first() {
            return Err(rejected.error.clone());
        }
        let hint = match self.programs.as_slice() {
            [] => String::new(),
            others => {
                let kinds = others.iter().map(|p| format!("{} ({})", p.name, p.kind.name())).collect::<Vec<_>>();
                format!("; it has programs for other hooks: {}", kinds.join(", "))
            }
        };
        Err(ObjectError::NoProgram { hint })
    }

    /// Index of the map with this name.
    pub fn map_index(&self, name: &str) -> Option<usize> {
        self.maps.iter().position(|m| m.name == name)
    }
}

impl Program {
    /// This program as an XDP program: one of unknown kind becomes XDP, one for another hook is refused.
    pub fn as_xdp(&self) -> Result<Program, ObjectError> {
        let mut program = self.clone();
        match self.kind {
            ProgramKind::Unknown => program.kind = ProgramKind::Xdp { frags: false },
            ProgramKind::Other(hook) => {
                return Err(ObjectError::Program {
                    program: self.name.clone(),
                    section: self.section.clone(),
                    why: format!("it is for the hook `{hook}`, not for XDP"),
                });
            }
            _ => {}
        }
        Ok(program)
    }
}

/// The programs that a PROG_ARRAY starts with.
fn initial_programs(map: &MapDef) -> impl Iterator<Item = usize> + '_ {
    let slots = match &map.initial {
        Initial::Slots(slots) => slots.as_slice(),
        _ => &[],
    };
    slots.iter().filter_map(|(_, target)| match target {
        SlotRef::Program(index) => Some(*index),
        SlotRef::Map(_) => None,
    })
}

fn ambiguous(programs: &[&Program]) -> ObjectError {
    ObjectError::Ambiguous { count: programs.len(), have: list(programs.iter().map(|p| &*p.name)) }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
