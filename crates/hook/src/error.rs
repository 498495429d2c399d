//! Refusals, with what to try.

use std::fmt;

use xway_abi::Errno;

/// Who can mend it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// The one who asked: something else is attached, there is no such number.
    Request,
    /// The object or the program.
    Input,
    /// The machine: a privilege, a device, a driver, a file system is missing.
    Machine,
}

impl Blame {
    /// Who can mend what Linux refuses with this number. Every hook says it by this, so that commands end the same way on all of
    /// them.
    pub fn of(errno: Errno) -> Blame {
        match errno {
            Errno::EPERM | Errno::ENODEV | Errno::ENXIO | Errno::ENETDOWN => Blame::Machine,
            _ => Blame::Request,
        }
    }
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
        let message = format!("{what} failed with {errno} ({})", errno.text());
        HookError { errno: Some(errno), ..HookError::new(Blame::of(errno), message) }
    }

    /// Something that this hook cannot do at all (`EOPNOTSUPP`).
    pub fn unsupported(message: impl fmt::Display) -> HookError {
        HookError { errno: Some(Errno::EOPNOTSUPP), ..HookError::new(Blame::Request, message) }
    }

    /// A port, or an interface, that is not there (`ENODEV`).
    pub fn no_device(message: impl fmt::Display) -> HookError {
        HookError { errno: Some(Errno::ENODEV), ..HookError::new(Blame::of(Errno::ENODEV), message) }
    }

    /// Something that is not there (`ENOENT`).
    pub fn missing(what: impl fmt::Display) -> HookError {
        HookError { errno: Some(Errno::ENOENT), ..HookError::new(Blame::Request, format!("there is no {what}")) }
    }

    /// A number that no object has (`ENOENT`). Every hook and command says it so.
    pub fn no_object(kind: &str, id: u32) -> HookError {
        HookError { errno: Some(Errno::ENOENT), ..HookError::new(Blame::Request, format!("no {kind} with id {id}")) }
    }

    /// The same of a map or a program.
    pub fn unknown(object: impl Into<crate::ObjectId>) -> HookError {
        let object = object.into();
        HookError::no_object(object.kind(), object.number())
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
