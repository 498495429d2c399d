//! An object ready to run: chosen, filled, verified, linked.
//!
//! The one place where an object becomes something that runs. Programs are verified before they are linked, the targets of
//! tail calls included; a refused one does not run. `--checked` leaves the proof out, and then only the checked interpreter
//! may run the program.

use std::sync::Arc;

use serde_json::{Value, json};
use xway_engine::{Checked, Choice, Executor, Native};
use xway_jit::{Compiled, Options};
use xway_object::Object;
use xway_verifier::{Config, Rejection};
use xway_vm::{Instance, InstanceError, LinkError, Owner};

use crate::args::{Engine, Environment, Select};
use crate::commands::verify;
use crate::contents::{self, Filling};
use crate::failure::{Failure, Refusal};
use crate::finding::{Code, Files};
use crate::print::Paint;
use crate::{load, print};

/// Workers that the engine runs: per-CPU maps have so many values.
const CPUS: u32 = 1;

/// What is believed of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// What the verifier has proved.
    Verified,
    /// Nothing: the checked interpreter watches each access.
    Checked,
}

impl Trust {
    /// From the flag `--checked`.
    pub const fn of(checked: bool) -> Trust {
        if checked { Trust::Checked } else { Trust::Verified }
    }
}

/// Creates the maps of an object and links its programs as they are asked for, behind the verifier or not. `place` is what
/// messages call the object.
pub fn instance(object: Object, trust: Trust, place: &str) -> Result<Instance, Failure> {
    let object = Arc::new(object);
    let made = match trust {
        Trust::Verified => Instance::verified(object.clone(), CPUS, Config::default()),
        Trust::Checked => Instance::new(object.clone(), CPUS),
    };
    made.map_err(|e| match e {
        InstanceError::Link(error) => not_linked(error, &object, None, place),
        other => Failure::input(other).at(place),
    })
}

/// Links a program to an instance.
pub fn link(instance: &Instance, image: &xway_object::Program, place: &str) -> Result<Arc<xway_vm::Program>, Failure> {
    instance.link(image).map_err(|e| not_linked(e, instance.object(), Some(image), place))
}

fn not_linked(error: LinkError, object: &Arc<Object>, image: Option<&xway_object::Program>, place: &str) -> Failure {
    let (name, rejection) = match error {
        LinkError::Refused { program, rejection } => (program, *rejection),
        other => return Failure::input(other).at(place),
    };
    let found = image.cloned().or_else(|| object.programs.iter().find(|p| p.name == name)?.as_xdp().ok());
    match found {
        Some(image) => refused(object, &image, rejection, place),
        None => Failure::no(format!("{place}: {name} is refused: {rejection}")),
    }
}

fn refused(object: &Arc<Object>, image: &xway_object::Program, mut rejection: Rejection, place: &str) -> Failure {
    xway_witness::complete(object, image, &mut rejection, &xway_witness::Effort::default());
    let message = format!("{place}: {} is refused, so it does not run: {rejection}", image.name);
    let code = Code { place, object, program: image };
    let text = verify::refused(&rejection, code, &mut Files::default(), Paint::stderr());
    let json = verify::program_json(place, object, image, &Err(rejection));
    let hint =
        "--checked runs it without a proof, in the checked interpreter, which stops it at the first wrong access";
    Failure::refused(message, Refusal { text, json }).hint(hint)
}

/// Machine code where it is asked for or, over many packets, where nothing else is asked for.
pub fn choose(
    program: &Arc<xway_vm::Program>,
    engine: Engine,
    budget: Option<u64>,
    options: &Options,
    packets: bool,
) -> Choice {
    match engine {
        Engine::Interp => Choice::interpreter(),
        Engine::Auto if !packets => Choice::interpreter(),
        Engine::Auto | Engine::Jit if budget.is_some() => {
            let reason = "--budget counts instructions, which machine code does not";
            Choice { code: None, reason: Some(reason.into()) }
        }
        Engine::Auto | Engine::Jit => Choice::compiled(program, options),
    }
}

/// A program with its live maps.
pub struct Session {
    /// The maps.
    pub instance: Owner,
    /// The chosen program as the object holds it.
    pub image: xway_object::Program,
    /// The same, linked to the maps.
    pub program: Arc<xway_vm::Program>,
    budget: Option<u64>,
    /// What was asked for.
    requested: Engine,
    /// What runs it.
    choice: Choice,
}

impl Session {
    /// Reads the object, chooses the program, creates and fills its maps, verifies and links it.
    /// `packets` says that many packets are to come, for which machine code is made unless it is asked not to.
    pub fn open(select: &Select, environment: &Environment, packets: bool) -> Result<Session, Failure> {
        let place = select.object.display().to_string();
        let mut object = load::object(select)?;
        let image = load::choose(&object, select)?;
        let fillings = environment.maps.iter().map(|m| Filling::argument(m)).collect::<Result<Vec<_>, _>>()?;
        let rest = contents::fill_sections(&mut object, &fillings)?;
        let instance = Owner::new(instance(object, Trust::of(environment.checked), &place)?);
        contents::fill(&instance, &rest)?;
        let program = link(&instance, &image, &place)?;
        let requested = environment.engine;
        environment.code.publish()?;
        let options = environment.code.options();
        let choice = choose(&program, requested, environment.budget, &options, packets);
        environment.code.published()?;
        Ok(Session { instance, image, program, budget: environment.budget, requested, choice })
    }

    /// What runs it over the frames of a worker.
    pub fn executor(&self) -> Box<dyn Executor> {
        match &self.choice.code {
            Some(code) => Box::new(Native::new(self.program.clone(), code.clone(), 0)),
            None => {
                let budget = self.budget.unwrap_or(xway_vm::BUDGET_DEFAULT);
                Box::new(Checked::new(self.program.clone(), 0).with_budget(budget))
            }
        }
    }

    /// The machine code that runs it, if there is any.
    pub fn code(&self) -> Option<&Arc<Compiled>> {
        self.choice.code.as_ref()
    }

    /// The engine in JSON documents: what runs, what was asked for, and why it is another one.
    pub fn engine_json(&self, doc: &mut Value) {
        doc["engine"] = json!(self.choice.name());
        doc["engine_requested"] = json!(self.requested.name());
        doc["engine_reason"] = json!(self.choice.reason);
    }

    /// Why there is no machine code, when it was asked for.
    pub fn reason(&self) -> Option<&str> {
        self.choice.reason.as_deref()
    }

    /// How it is run, in words: the engine, and what is missing.
    pub fn how(&self) -> String {
        let proof = if self.program.proof().is_some() { "" } else { ", not verified" };
        let reason = match &self.choice.reason {
            Some(reason) if self.program.proof().is_some() || self.requested == Engine::Jit => format!(": {reason}"),
            _ => String::new(),
        };
        format!("{}{proof}{reason}", self.choice.name())
    }

    /// The program in JSON documents.
    pub fn program_json(&self) -> Value {
        json!({
            "name": self.image.name,
            "section": self.image.section,
            "tag": load::tag(&self.image),
            "insns": self.image.insns.len(),
            "verified": self.program.proof().is_some(),
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
