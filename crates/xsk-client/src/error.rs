//! What can go wrong.

use std::io;

use xway_abi::Errno;

/// Why the server, or the system, did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server refused, with Linux's errno and its reason.
    #[error("{what}: {errno} ({reason})")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Linux's errno for it.
        errno: Errno,
        /// The server's words.
        reason: String,
    },
    /// The server said something that makes no sense, or went away.
    #[error("{what}: {why}; is the server of the same version?")]
    Protocol {
        /// What was asked.
        what: &'static str,
        /// What is wrong with the answer.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {cause}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl ClientError {
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ClientError {
        move |cause| ClientError::System { what, cause: cause.into() }
    }

    pub(crate) fn protocol(what: &'static str, why: impl ToString) -> ClientError {
        ClientError::Protocol { what, why: why.to_string() }
    }
}
