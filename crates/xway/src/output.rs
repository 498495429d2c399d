//! Output files that are there whole or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A file that gets its name only when it is finished. Dropped before, it leaves nothing behind.
///
/// Devices and pipes (`/dev/stdout`, a FIFO) are written directly: they have no half state that somebody could find later.
#[derive(Debug)]
pub struct Whole {
    file: File,
    path: PathBuf,
    /// The name until it is finished; `None` when it is written in place or has been finished.
    temporary: Option<PathBuf>,
}

impl Whole {
    /// Starts a file.
    pub fn create(path: &Path) -> Result<Whole, Failure> {
        let failure = |e: &io::Error| not_written(path, e.kind(), &e.to_string());
        let special = std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
        if special {
            let file = File::options().write(true).open(path).map_err(|e| failure(&e))?;
            return Ok(Whole { file, path: path.into(), temporary: None });
        }
        if path.is_dir() {
            return Err(Failure::input(format!("{}: is a directory", path.display())));
        }
        let Some(name) = path.file_name() else {
            return Err(Failure::usage(format!("{}: not a file name", path.display())));
        };
        let mut part = name.to_os_string();
        part.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(part);
        let file = File::create(&temporary).map_err(|e| failure(&e))?;
        Ok(Whole { file, path: path.into(), temporary: Some(temporary) })
    }

    /// Writes all of it at once, and gives the file its name.
    pub fn fill(mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.write_all(bytes).map_err(|e| Failure::file(self.path.display(), &e).at("cannot write"))?;
        self.finish()
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        let path = self.path.clone();
        let done = self.file.flush().and_then(|()| match self.temporary.take() {
            Some(temporary) => std::fs::rename(&temporary, &path).inspect_err(|_| {
                let _ = std::fs::remove_file(&temporary);
            }),
            None => Ok(()),
        });
        done.map_err(|e| Failure::file(path.display(), &e).at("cannot write"))
    }
}

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Why a file cannot be created, and what to try: a directory that is missing or closed is the usual reason.
pub fn not_written(path: &Path, kind: io::ErrorKind, why: &str) -> Failure {
    let (place, dir) = (path.display(), path.parent().filter(|dir| !dir.as_os_str().is_empty()));
    let dir = dir.map_or_else(|| ".".to_owned(), |dir| dir.display().to_string());
    match kind {
        io::ErrorKind::NotFound => Failure::input(format!("{place}: cannot be created: no such directory"))
            .hint(format!("mkdir -p {dir}, or name a directory that is there")),
        io::ErrorKind::PermissionDenied => Failure::needs(format!("{place}: cannot be created: permission denied"))
            .hint(format!("a directory in which you may write, or another user's permissions for {dir}")),
        io::ErrorKind::NotADirectory => Failure::input(format!("{place}: cannot be created: {dir} is no directory"))
            .hint("name a directory that is there"),
        _ => Failure::input(format!("{place}: cannot be written: {why}")),
    }
}

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    Whole::create(path)?.fill(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("xway-output-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("out");
        let mut half = Whole::create(&path).unwrap();
        half.write_all(b"half").unwrap();
        drop(half);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        write(&path, b"whole").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert!(write(&dir.join("none/out"), b"").unwrap_err().message.contains("no such directory"));
        assert!(write(&dir, b"").unwrap_err().message.contains("is a directory"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
