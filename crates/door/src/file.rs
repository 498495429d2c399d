//! Files that others name.
//!
//! Who opens a pipe waits for its other end, who reads a device may read for ever, and a lease on a file holds up whoever opens it. So a
//! file that somebody else has named is a regular one, is opened without waiting, and is read as far as was said.

use std::fmt;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Why a file is not read. The words have no name in them: they stand behind it.
#[derive(Debug)]
pub enum FileError {
    /// The system's answer.
    Io(io::Error),
    /// It is something else than a file: a directory, a pipe, a socket, a device.
    NoFile(&'static str),
    /// It is longer than so many bytes.
    TooLong(u64),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Io(e) if e.kind() == io::ErrorKind::NotFound => f.write_str("no such file"),
            FileError::Io(e) if e.kind() == io::ErrorKind::PermissionDenied => f.write_str("permission denied"),
            FileError::Io(e) => e.fmt(f),
            FileError::NoFile(what) => write!(f, "is {what}, and a file is wanted"),
            FileError::TooLong(max) => write!(f, "longer than {max} bytes"),
        }
    }
}

impl std::error::Error for FileError {}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        match error {
            FileError::Io(e) => e,
            other => io::Error::other(other),
        }
    }
}

/// Opens a regular file for reading. Nothing is waited for.
///
/// # Errors
/// It is not there, may not be read, or is no regular file.
pub fn open(path: &Path) -> Result<File, FileError> {
    // Before: opening a device can do something (a watchdog begins to run). Behind: it may be another one by then.
    regular(&std::fs::metadata(path).map_err(FileError::Io)?)?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(FileError::Io)?;
    regular(&file.metadata().map_err(FileError::Io)?)?;
    Ok(file)
}

/// Reads a whole regular file of at most `max` bytes. Nothing is waited for.
///
/// # Errors
/// As [`open`]; it is longer.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let file = open(path)?;
    if file.metadata().map_err(FileError::Io)?.len() > max {
        return Err(FileError::TooLong(max));
    }
    // One more, by which it is seen to be too long also when it has grown meanwhile, or does not know its length.
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(FileError::Io)?;
    if bytes.len() as u64 > max { Err(FileError::TooLong(max)) } else { Ok(bytes) }
}

fn regular(what: &Metadata) -> Result<(), FileError> {
    name(what.file_type()).map_or(Ok(()), |other| Err(FileError::NoFile(other)))
}

/// What it is when it is no regular file.
fn name(what: FileType) -> Option<&'static str> {
    match () {
        () if what.is_file() => None,
        () if what.is_dir() => Some("a directory"),
        () if what.is_fifo() => Some("a pipe"),
        () if what.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}
