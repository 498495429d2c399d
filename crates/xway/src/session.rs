//! An object ready to run: chosen, filled, linked.

use std::sync::Arc;

use serde_json::{Value, json};
use xway_vm::Instance;

use crate::args::Select;
use crate::contents::{self, Filling};
use crate::executor::Interpreter;
use crate::failure::Failure;
use crate::{load, print};

/// Workers that the engine runs: per-CPU maps have so many values.
const CPUS: u32 = 1;

/// A program with its live maps.
pub struct Session {
    /// The maps.
    pub instance: Instance,
    /// The chosen program as the object holds it.
    pub image: xway_object::Program,
    /// The same, linked to the maps.
    pub program: Arc<xway_vm::Program>,
}

impl Session {
    /// Reads the object, chooses the program, creates and fills its maps.
    pub fn open(select: &Select, maps: &[String]) -> Result<Session, Failure> {
        let place = select.object.display();
        let mut object = load::object(select)?;
        let image = load::choose(&object, select)?;
        let fillings = maps.iter().map(|m| Filling::argument(m)).collect::<Result<Vec<_>, _>>()?;
        let rest = contents::fill_sections(&mut object, &fillings)?;
        let instance = Instance::new(Arc::new(object), CPUS).map_err(|e| Failure::input(e).at(&place))?;
        contents::fill(&instance, &rest)?;
        let program = instance.link(&image).map_err(|e| Failure::input(e).at(&place))?;
        Ok(Session { instance, image, program })
    }

    /// What runs it.
    pub fn executor(&self, budget: Option<u64>) -> Interpreter {
        Interpreter::new(self.program.clone(), budget)
    }

    /// The program in JSON documents.
    pub fn program_json(&self) -> Value {
        json!({
            "name": self.image.name,
            "section": self.image.section,
            "tag": load::tag(&self.image),
            "insns": self.image.insns.len(),
        })
    }

    /// The program in words.
    pub fn title(&self) -> String {
        format!(
            "{} (section {}, {} instructions, tag {})",
            self.image.name,
            self.image.section,
            print::grouped(self.image.insns.len() as u64),
            load::tag(&self.image)
        )
    }
}
