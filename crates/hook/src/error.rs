//! Refusals, with what to try.

use std::fmt;

use xway_abi::Errno;

/// Who can mend it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// The one who asked: no such interface, something else is attached.
    Request,
    /// The object or the program.
    Input,
    /// The machine: a privilege, a driver, a file system is missing.
    Machine,
}

/// Why a hook did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HookError {
    /// Who can mend it.
    pub blame: Blame,
    /// What and where, in one line, with the kernel's own words if it had any.
    pub message: String,
    /// What to try.
    pub hint: Option<String>,
    /// The kernel's answer, if it came from there.
    pub errno: Option<Errno>,
    /// The kernel verifier's log, empty when it is not about a program.
    pub log: String,
}

impl HookError {
    /// An error without errno and hint.
    pub fn new(blame: Blame, message: impl fmt::Display) -> HookError {
        HookError { blame, message: message.to_string(), hint: None, errno: None, log: String::new() }
    }

    /// A refusal by errno: `what` could not be done.
    pub fn errno(what: impl fmt::Display, errno: Errno) -> HookError {
        let blame = if errno == Errno::EPERM { Blame::Machine } else { Blame::Request };
        let message = format!("{what} failed with {errno} ({})", errno.text());
        HookError { errno: Some(errno), ..HookError::new(blame, message) }
    }

    /// Something that this hook cannot do at all (`EOPNOTSUPP`).
    pub fn unsupported(message: impl fmt::Display) -> HookError {
        HookError { errno: Some(Errno::EOPNOTSUPP), ..HookError::new(Blame::Request, message) }
    }

    /// Something that is not there (`ENOENT`).
    pub fn missing(what: impl fmt::Display) -> HookError {
        HookError { errno: Some(Errno::ENOENT), ..HookError::new(Blame::Request, format!("there is no {what}")) }
    }

    /// Adds what to try.
    pub fn hint(mut self, hint: impl fmt::Display) -> HookError {
        self.hint = Some(hint.to_string());
        self
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; try: {hint}"))
    }
}

impl std::error::Error for HookError {}
