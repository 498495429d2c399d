//! What a program asks of the port that it is attached to, and what a port lacks of it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use xway_abi::Verdict;
use xway_engine::Needs;
use xway_object::Program;

use crate::failure::Failure;
use crate::load;
use crate::session::{self, Trust};

/// A program.
pub struct Asked {
    program: String,
    needs: Vec<&'static str>,
    /// What it asks for and can do without.
    asks: Vec<&'static str>,
}

impl Asked {
    /// Proves the program of an object that has this name, or the only one.
    pub fn of(path: &Path, name: Option<&str>) -> Result<Vec<Asked>, Failure> {
        Asked::chosen(path, |object| {
            load::choose_by(object, name, None).map(|image| vec![image]).map_err(|f| f.at(path.display()))
        })
    }

    /// All XDP programs of an object.
    pub fn all(path: &Path) -> Result<Vec<Asked>, Failure> {
        let xdp = |object: &xway_object::Object| -> Vec<Program> {
            object.programs.iter().filter_map(|program| program.as_xdp().ok()).collect()
        };
        Asked::chosen(path, |object| match xdp(object) {
            none if none.is_empty() => Err(Failure::input("there is no XDP program in it").at(path.display())),
            some => Ok(some),
        })
    }

    fn chosen(
        path: &Path,
        choose: impl FnOnce(&xway_object::Object) -> Result<Vec<Program>, Failure>,
    ) -> Result<Vec<Asked>, Failure> {
        let object = load::read(path, None)?;
        let images = choose(&object)?;
        let place = path.display().to_string();
        let instance = session::instance(object, Trust::Verified, &place)?;
        images.iter().map(|image| Asked::linked(image, &session::link(&instance, image, &place)?)).collect()
    }

    fn linked(image: &Program, program: &Arc<xway_vm::Program>) -> Result<Asked, Failure> {
        let proof = program.proof().ok_or_else(|| Failure::no(format!("{}: it has no proof", image.name)))?;
        let found = Needs::of(proof.facts());
        // Verdicts that only a map or the packet decides are nobody's need.
        let returns = |verdict| found.verdicts.contains(&verdict);
        let needs = [
            ("drop", returns(Verdict::Drop)),
            ("tx", returns(Verdict::Tx)),
            ("redirect", returns(Verdict::Redirect)),
            ("metadata", found.metadata),
            ("write-access", Needs::of_program(program).writes.is_some()),
        ];
        let asks = [
            // A program with frags also takes packets in one piece.
            ("frags", image.kind.frags()),
            ("hash", found.rx_hash),
            ("timestamp", found.rx_timestamp),
            ("vlan-tag", found.rx_vlan),
        ];
        let names = |all: &[(&'static str, bool)]| all.iter().filter(|(_, is)| *is).map(|(n, _)| *n).collect();
        Ok(Asked { program: image.name.clone(), needs: names(&needs), asks: names(&asks) })
    }

    /// For scripts.
    pub fn json(&self) -> Value {
        json!({ "name": self.program, "needs": self.needs, "asks_for": self.asks })
    }

    /// For people.
    pub fn text(&self) -> String {
        let Asked { program, needs, asks } = self;
        format!("program {program}\n  needs:       {}\n  asks for:    {}\n", list(needs), list(asks))
    }
}

/// A program and a port.
pub struct Pair {
    asked: Asked,
    missing: Vec<&'static str>,
    absent: Vec<&'static str>,
}

impl Pair {
    /// Asks of each thing that the program needs whether it is there.
    pub fn of(asked: Asked, has: &dyn Fn(&str) -> bool) -> Pair {
        let lacks = |all: &[&'static str]| all.iter().copied().filter(|need| !has(need)).collect();
        let (missing, absent) = (lacks(&asked.needs), lacks(&asked.asks));
        Pair { asked, missing, absent }
    }

    /// For scripts.
    pub fn json(&self) -> Value {
        let mut doc = self.asked.json();
        (doc["missing"], doc["absent"]) = (json!(self.missing), json!(self.absent));
        doc
    }

    /// For people.
    pub fn text(&self) -> String {
        let Pair { asked, missing, absent } = self;
        format!("{}  missing:     {}\n  absent:      {}\n", asked.text(), list(missing), list(absent))
    }

    /// The answer is no when something is missing.
    pub fn verdict(&self, port: &str) -> Result<(), Failure> {
        if self.missing.is_empty() {
            return Ok(());
        }
        Err(Failure::no(format!("{port} lacks what {} needs: {}", self.asked.program, self.missing.join(", "))))
    }
}

fn list(all: &[&str]) -> String {
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}
