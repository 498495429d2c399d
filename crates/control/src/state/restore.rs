//! The start: everything is made again that must be there.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use xway_hook::{AttachRequest, Hook, HookError, MapId, ObjectId, ProgId, Replace};

use super::{State, failed};
use crate::config::Config;
use crate::journal::{Origin, Saved, What};
use crate::message::{self, load_request};

/// What was loaded again.
#[derive(Default)]
struct Again {
    programs: BTreeMap<Origin, ProgId>,
    /// Numbers of loads, then and now.
    loads: HashMap<u64, u64>,
}

impl State {
    /// Makes everything that must be there: pins of the last time, the configuration, attachments of the last time. What
    /// cannot be made again is told and left out.
    pub fn restore(&mut self, given: &Config) -> Result<Vec<String>, HookError> {
        let saved = self.journal.load()?;
        let mut notes = Vec::new();
        let mut note = |what: String, e: HookError| notes.push(format!("{what} is not there again: {e}"));
        let mut again = Again::default();
        for pin in &saved.pins {
            let What::Program(origin) = &pin.what else { continue };
            let made = self.load_again(origin, &mut again).and_then(|id| self.pin(ObjectId::Program(id), &pin.path));
            made.unwrap_or_else(|e| note(format!("program pinned at {}", pin.path.display()), e));
        }
        let mut attach = Vec::new();
        for a in &saved.attachments {
            match self.load_again(&a.origin, &mut again) {
                Ok(id) => attach.push((id, a.request.clone())),
                Err(e) => note(format!("program {} on {}", a.origin.function, a.request.port), e),
            }
        }
        // Loads pin the maps that ask for it: also those whose names somebody took away since.
        let away = |path: &&PathBuf| !saved.pins.iter().any(|pin| pin.path == **path);
        let away: Vec<PathBuf> = self.pins.keys().filter(away).cloned().collect();
        for path in away {
            self.unpin(&path)?;
        }
        // Maps by the numbers that they had: those that the loads have found or made are known by their paths or as parts of a load.
        let mut known: HashMap<u32, MapId> = HashMap::new();
        let loaded: HashMap<(u64, String), MapId> = self.parts.iter().map(|(id, part)| (part.clone(), *id)).collect();
        for pin in &saved.pins {
            let What::Map { id, of, .. } = &pin.what else { continue };
            let by_path =
                self.pins.get(&pin.path).and_then(|o| if let ObjectId::Map(id) = o { Some(*id) } else { None });
            let by_load = || {
                let (load, name) = of.as_ref()?;
                loaded.get(&(*again.loads.get(load)?, name.clone())).copied()
            };
            if let Some(now) = by_path.or_else(by_load).filter(|_| *id != 0) {
                known.entry(*id).or_insert(now);
            }
        }
        // All others are made anew, each once.
        for pin in &saved.pins {
            let What::Map { name, spec, id, .. } = &pin.what else { continue };
            if self.pins.contains_key(&pin.path) {
                continue;
            }
            let made = match known.get(id) {
                Some(now) => self.pin(ObjectId::Map(*now), &pin.path),
                None => spec.read().and_then(|s| self.hook.map_create(name, &s)).and_then(|now| {
                    self.specs.insert(now, (name.clone(), spec.clone()));
                    let pinned = self.pin(ObjectId::Map(now), &pin.path);
                    self.hook.release(ObjectId::Map(now))?;
                    if *id != 0 {
                        known.insert(*id, now);
                    }
                    pinned
                }),
            };
            made.unwrap_or_else(|e| note(format!("map pinned at {}", pin.path.display()), e));
        }
        for contents in self.journal.contents()? {
            let Some(ObjectId::Map(id)) = self.pins.get(&contents.path).copied() else { continue };
            let put = contents.entries.iter().map(|(key, value)| self.hook.map_update(id, &key.0, &value.0, 0));
            let wrong: Vec<HookError> = put.filter_map(Result::err).collect();
            let (all, path) = (contents.entries.len(), contents.path.display());
            if let Some(first) = wrong.first() {
                note(format!("contents of {path}: {} of {all} entries", wrong.len()), first.clone());
            }
            if contents.frozen {
                self.hook.map_freeze(id).unwrap_or_else(|e| note(format!("{path}, frozen,"), e));
            }
        }
        // They are of that end: a later one that is not clean does not bring them back.
        self.journal.save_contents(&[])?;
        let config = self.wanted(&saved, given)?;
        // Also where it cannot be made today: it was meant, and is tried again at the next start.
        self.whole = toml::to_string(&config).map_err(failed)?;
        let done = self.apply(&config);
        for (id, request) in attach {
            let made = request.read().and_then(|r| {
                let replace = Replace::Never;
                self.attach_kept(&AttachRequest { program: id, replace, chain: true, ..r })
            });
            made.map(drop).unwrap_or_else(|e| note(format!("program {} on {}", id.0, request.port), e));
        }
        // What was loaded for this is held by pins and attachments now.
        for id in again.programs.into_values() {
            self.let_go(ObjectId::Program(id));
        }
        // From here on packets find their programs.
        let started = self.start_ports().and(self.unshut());
        let saved = self.save();
        done.and(started)?;
        saved?;
        self.handed.close();
        Ok(notes)
    }

    /// The file wins when somebody has changed it since; otherwise what was applied last.
    pub(super) fn wanted(&self, saved: &Saved, given: &Config) -> Result<Config, HookError> {
        let same = saved.file == self.file && !saved.config.is_empty();
        if same { Ok(self.journal.config(saved)?) } else { Ok(given.clone()) }
    }

    /// What became of the ports that were opened since the start.
    pub fn came(&self) -> &[message::PortFate] {
        &self.came
    }

    /// Those of them that were opened again though they were handed over.
    pub fn anew(&self) -> &[message::PortFate] {
        &self.anew
    }

    fn load_again(&mut self, origin: &Origin, again: &mut Again) -> Result<ProgId, HookError> {
        if let Some(id) = again.programs.get(origin) {
            return Ok(*id);
        }
        let bytes = self.journal.object(&origin.object)?;
        let request = load_request(vec![origin.function.clone()], origin.pins.clone());
        let objects = self.load(&bytes, &request)?;
        let id = objects.programs.first().map(|(_, id)| *id).ok_or_else(|| HookError::missing("program"))?;
        for (_, map) in &objects.maps {
            self.let_go(ObjectId::Map(*map));
        }
        again.programs.insert(origin.clone(), id);
        again.loads.entry(origin.load).or_insert(self.loads);
        Ok(id)
    }
}
