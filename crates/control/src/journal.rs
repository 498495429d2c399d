//! What outlives the process: one file, exchanged as a whole, and the object files that it names.
//!
//! ```text
//! STATE/state.json      what must be there again
//! STATE/objects/SHA256  object files, by what is in them
//! STATE/contents.json   contents of pinned maps, from a clean end
//! ```
//!
//! The state is written to a new file that takes the old one's name when it is whole and on the disk. So whenever the process
//! dies, the one or the other is there. Objects are written before the state names them, and removed after it no longer does.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use xway_door::FileError;
use xway_hook::{Blame, HookError};

use crate::config::Config;
use crate::message::{Attach, Bytes, Spec};

/// Version of the files.
const VERSION: u32 = 1;

/// What must be there again.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub version: u32,
    /// Digest of the file that the service was started with.
    pub file: String,
    /// The configuration as it was applied last, TOML.
    pub config: String,
    pub pins: Vec<Pin>,
    pub attachments: Vec<Attachment>,
}

/// A name and what it stands for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Pin {
    pub path: PathBuf,
    pub what: What,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Map {
        name: String,
        spec: Spec,
        /// The same for all names of one map; 0: not known.
        #[serde(default)]
        id: u32,
        /// The load that made it, and its name there.
        #[serde(default)]
        of: Option<(u64, String)>,
    },
    Program(Origin),
}

/// Where a program comes from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// SHA-256 of the object file.
    pub object: String,
    pub function: String,
    pub pins: Option<PathBuf>,
    /// Programs of one load share their maps.
    pub load: u64,
}

/// A program on a port, made by a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub origin: Origin,
    pub request: Attach,
}

/// Contents of a pinned map.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Contents {
    pub path: PathBuf,
    /// Of queues and stacks in the order in which they were pushed, with empty keys.
    pub entries: Vec<(Bytes, Bytes)>,
    #[serde(default)]
    pub frozen: bool,
}

/// The directory; without one nothing is kept.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: Option<PathBuf>,
    /// Locked: two services that write the same files would lose each other's. The system lets go of it with the process.
    _lock: Option<fs::File>,
}

/// Hexadecimal SHA-256.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Longest file of the directory that is read, bytes. It is the service's own, and maps that are kept may be large.
const KEPT_MAX: u64 = 64 << 30;

/// Why the directory cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum JournalError {
    /// The machine, or another service, is in the way.
    #[error("{0}")]
    Failed(String),
    /// What lies there is nothing that this program has written.
    #[error("{message}")]
    Damaged {
        /// Which file, and what is wrong with it.
        message: String,
        /// What somebody can do about it.
        hint: String,
    },
}

impl From<JournalError> for HookError {
    fn from(error: JournalError) -> HookError {
        match error {
            JournalError::Failed(message) => HookError::new(Blame::Machine, message),
            JournalError::Damaged { message, hint } => HookError::new(Blame::Input, message).hint(hint),
        }
    }
}

type Failed = JournalError;

fn failed(path: &Path, why: impl std::fmt::Display) -> Failed {
    JournalError::Failed(format!("{}: {why}", path.display()))
}

/// A file that cannot be used, and what goes with it when it is moved away. (Nothing is moved by the service itself: somebody may still
/// get more out of it.)
fn damaged(path: &Path, why: impl std::fmt::Display, goes: &str) -> Failed {
    let place = path.display();
    let hint = format!("mv {place} {place}.damaged: the service starts without {goes} then");
    JournalError::Damaged { message: format!("{place}: {why}"), hint }
}

/// What goes with each of the files.
const STATE: (&str, &str) = ("state.json", "pins, what was attached by hand and what was applied last");
const CONTENTS: (&str, &str) = ("contents.json", "the contents of pinned maps");

fn directory(dir: &Path) -> Result<(), Failed> {
    let other = fs::metadata(dir).is_ok_and(|what| !what.is_dir());
    let message = format!("{}: is no directory, and the state is one", dir.display());
    let hint = "name a directory by service.state, or --state; one that is not there is made".to_owned();
    if other { Err(JournalError::Damaged { message, hint }) } else { Ok(()) }
}

impl Journal {
    /// Opens the directory; makes it when it is not there. It is this service's alone from now on.
    pub fn open(dir: Option<&Path>) -> Result<Journal, Failed> {
        let Some(dir) = dir else { return Ok(Journal { dir: None, _lock: None }) };
        directory(dir)?;
        let objects = dir.join("objects");
        // Contents of maps are nobody else's business, whatever the umask is.
        let mut made = fs::DirBuilder::new();
        made.recursive(true).mode(0o700).create(&objects).map_err(|e| {
            failed(
                &objects,
                format!("{e}; name a directory that can be made and written to: service.state, or --state"),
            )
        })?;
        // What an earlier version has left there others could read.
        tighten(&objects).map_err(|e| failed(&objects, e))?;
        let lock = dir.join("lock");
        let file = fs::File::create(&lock).map_err(|e| failed(&lock, e))?;
        match file.try_lock() {
            Ok(()) => Ok(Journal { dir: Some(dir.to_owned()), _lock: Some(file) }),
            Err(fs::TryLockError::WouldBlock) => {
                Err(failed(dir, "another service keeps its state there; give this one a directory of its own"))
            }
            Err(fs::TryLockError::Error(e)) => Err(failed(&lock, e)),
        }
    }

    /// The same to look at what another service keeps there: nothing is made, nothing may be written.
    pub fn look(dir: Option<&Path>) -> Journal {
        Journal { dir: dir.map(Path::to_owned), _lock: None }
    }

    /// Whether anything is kept.
    pub fn keeps(&self) -> bool {
        self.dir.is_some()
    }

    /// What was saved last; nothing when there is no such file.
    pub fn load(&self) -> Result<Saved, Failed> {
        let saved: Option<Saved> = self.read(STATE)?;
        match saved {
            None => Ok(Saved::default()),
            Some(saved) if saved.version == VERSION => Ok(saved),
            Some(saved) => Err(self.unfit(format!("field version: {}; this program reads {VERSION}", saved.version))),
        }
    }

    /// The configuration that was applied last.
    pub fn config(&self, saved: &Saved) -> Result<Config, Failed> {
        Config::parse(&saved.config).map_err(|e| self.unfit(format!("field config: {e}")))
    }

    fn unfit(&self, why: String) -> Failed {
        damaged(&self.dir.clone().unwrap_or_default().join(STATE.0), why, STATE.1)
    }

    pub fn save(&self, saved: &Saved) -> Result<(), Failed> {
        self.write(STATE.0, &Saved { version: VERSION, ..saved.clone() })?;
        let Some(dir) = &self.dir else { return Ok(()) };
        let programs = saved.pins.iter().filter_map(|p| match &p.what {
            What::Program(origin) => Some(origin),
            What::Map { .. } => None,
        });
        let named: HashSet<&str> =
            programs.chain(saved.attachments.iter().map(|a| &a.origin)).map(|o| o.object.as_str()).collect();
        for entry in fs::read_dir(dir.join("objects")).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_none_or(|name| !named.contains(name)) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// Keeps an object file; it goes with the next save that does not name it.
    pub fn keep_object(&self, bytes: &[u8]) -> Result<String, Failed> {
        let name = digest(bytes);
        if let Some(dir) = &self.dir {
            let path = dir.join("objects").join(&name);
            if !path.exists() {
                exchange(&path, bytes)?;
            }
        }
        Ok(name)
    }

    pub fn object(&self, name: &str) -> Result<Vec<u8>, Failed> {
        let dir = self.dir.as_ref().ok_or_else(|| JournalError::Failed("no state directory".into()))?;
        let path = dir.join("objects").join(name);
        let bytes = xway_door::read(&path, KEPT_MAX).map_err(|e| failed(&path, e))?;
        match digest(&bytes) == name {
            true => Ok(bytes),
            false => Err(failed(&path, "it is damaged")),
        }
    }

    pub fn contents(&self) -> Result<Vec<Contents>, Failed> {
        Ok(self.read(CONTENTS)?.unwrap_or_default())
    }

    pub fn save_contents(&self, all: &[Contents]) -> Result<(), Failed> {
        self.write(CONTENTS.0, &all)
    }

    fn read<T: serde::de::DeserializeOwned>(&self, (name, goes): (&str, &str)) -> Result<Option<T>, Failed> {
        let Some(dir) = &self.dir else { return Ok(None) };
        directory(dir)?;
        let path = dir.join(name);
        let bytes = match xway_door::read(&path, KEPT_MAX) {
            Ok(bytes) => bytes,
            Err(FileError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(FileError::Io(e)) => return Err(failed(&path, e)),
            Err(e) => return Err(damaged(&path, e, goes)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|e| damaged(&path, e, goes))
    }

    fn write(&self, name: &str, what: &impl Serialize) -> Result<(), Failed> {
        let Some(path) = self.dir.as_ref().map(|dir| dir.join(name)) else { return Ok(()) };
        let bytes = serde_json::to_vec_pretty(what).map_err(|e| failed(&path, e))?;
        exchange(&path, &bytes)
    }
}

/// The service's own files beside `objects`, those in it, and it itself are nobody else's. The directory that was named may be anybody's:
/// it is left as it is.
fn tighten(objects: &Path) -> std::io::Result<()> {
    fs::set_permissions(objects, fs::Permissions::from_mode(0o700))?;
    let beside = [STATE.0, CONTENTS.0, "lock"].map(|name| objects.with_file_name(name));
    let inside = fs::read_dir(objects)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    // Not what a link leads to.
    let own = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|what| what.is_file());
    let mut own = beside.into_iter().chain(inside).filter(own);
    own.try_for_each(|path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)))
}

/// Puts a whole new file in the place of an old one.
fn exchange(path: &Path, bytes: &[u8]) -> Result<(), Failed> {
    let failed = |e: std::io::Error| failed(path, e);
    let new = path.with_extension("new");
    // What an interrupted write has left may be readable by others; the new one never was.
    let _ = fs::remove_file(&new);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)?;
    // The name is on the disk when its directory is.
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_back_and_objects_go_when_nobody_names_them() {
        let dir = std::env::temp_dir().join(format!("xway-journal-{}", std::process::id()));
        let journal = Journal::open(Some(&dir)).unwrap();
        assert_eq!(journal.load(), Ok(Saved::default()));
        let object = journal.keep_object(b"an object").unwrap();
        let origin = Origin { object: object.clone(), function: "f".into(), pins: None, load: 1 };
        let pin = Pin { path: "/p".into(), what: What::Program(origin) };
        let saved = Saved { version: VERSION, pins: vec![pin], ..Saved::default() };
        journal.save(&saved).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join("objects"))), (0o700, 0o700));
        assert_eq!((mode(&dir.join("state.json")), mode(&dir.join("objects").join(&object))), (0o600, 0o600));
        assert_eq!(journal.load(), Ok(saved.clone()));
        // What an earlier version has left open is so no longer.
        for name in ["state.json", "objects", "lock"].map(|name| dir.join(name)) {
            fs::set_permissions(name, fs::Permissions::from_mode(0o777)).unwrap();
        }
        drop(journal);
        let journal = Journal::open(Some(&dir)).unwrap();
        let modes = ["state.json", "objects", "lock"].map(|name| mode(&dir.join(name)));
        assert_eq!((modes, journal.load()), ([0o600, 0o700, 0o600], Ok(saved)));
        assert_eq!(journal.object(&object), Ok(b"an object".to_vec()));
        fs::write(dir.join("objects").join(&object), b"another").unwrap();
        assert!(journal.object(&object).unwrap_err().to_string().contains("damaged"));
        // A write that was interrupted leaves a file that nobody reads.
        fs::write(dir.join("state.new"), b"{").unwrap();
        assert!(journal.load().is_ok());
        journal.save(&Saved::default()).unwrap();
        assert!(journal.object(&object).is_err());
        fs::remove_dir_all(dir).unwrap();
    }
}
