//! Where objects are pinned, for the verbs that show them.

use std::path::PathBuf;

use serde_json::{Value, json};
use xway_hook::{ObjectId, PinInfo, pins};
use xway_kernel::ObjectKind;

use super::failure;
use crate::args_kernel::{Place, ShowRest};
use crate::commands::service;
use crate::failure::Failure;

/// The pins of one kind of object; `None`: nobody asked.
pub struct Pinned(Option<Vec<(u32, PathBuf)>>);

impl Pinned {
    /// Looks for them when `-f` is given.
    pub fn of(kind: ObjectKind, args: &ShowRest) -> Result<Pinned, Failure> {
        if !args.bpffs {
            return Ok(Pinned(None));
        }
        if args.place.hook == Some(Place::User) && kind == ObjectKind::Link {
            return Err(Failure::usage("-f: attachments of the engine have no pins").hint("leave -f out"));
        }
        if args.place.hook == Some(Place::User) {
            let all = service::connect(&args.place.socket)?.pins().map_err(failure)?;
            let of = |pin: PinInfo| match (pin.object, kind) {
                (ObjectId::Map(id), ObjectKind::Map) => Some((id.0, pin.path)),
                (ObjectId::Program(id), ObjectKind::Program) => Some((id.0, pin.path)),
                _ => None,
            };
            return Ok(Pinned(Some(all.into_iter().filter_map(of).collect())));
        }
        let all = pins::everywhere().into_iter().filter(|(of, ..)| *of == kind);
        Ok(Pinned(Some(all.map(|(_, id, path)| (id, path)).collect())))
    }

    fn paths(&self, id: u32) -> impl Iterator<Item = String> {
        let own = self.0.iter().flatten().filter(move |(of, _)| *of == id);
        own.map(|(_, path)| path.display().to_string())
    }

    /// Adds them to an object's document.
    pub fn json(&self, id: u32, mut doc: Value) -> Value {
        if self.0.is_some() {
            doc["pinned"] = json!(self.paths(id).collect::<Vec<_>>());
        }
        doc
    }

    /// Lines below an object.
    pub fn text(&self, id: u32) -> String {
        self.paths(id).map(|path| format!("  pinned {path}\n")).collect()
    }
}
