//! What the kernel refused, with its own words.

use xway_abi::Errno;

/// A request to the kernel that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KernelError {
    /// A map could not be created or filled.
    #[error("map {name}: {step} failed with {errno} ({})", errno.text())]
    Map {
        /// Its name in the object.
        name: String,
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A program was refused.
    #[error("program {name}: the kernel refused it with {errno} ({}){}", errno.text(), tail(log))]
    Program {
        /// Its name in the object.
        name: String,
        /// The kernel's answer.
        errno: Errno,
        /// The verifier's log; empty when it said nothing.
        log: String,
    },
    /// Type information was refused.
    #[error("BTF: the kernel refused it with {errno} ({}){}", errno.text(), tail(log))]
    Btf {
        /// The kernel's answer.
        errno: Errno,
        /// The kernel's log.
        log: String,
    },
    /// A program refers to something that the running kernel does not have.
    #[error("program {program}: the running kernel has no {what} {name}")]
    NoSymbol {
        /// Program.
        program: String,
        /// `kernel function` or `kernel variable`.
        what: &'static str,
        /// The missing name.
        name: String,
    },
    /// A program or map is referred to by an index that the object does not have, or has a kind that XDP cannot load.
    #[error("{what} {name}: {why}")]
    Object {
        /// `map` or `program`.
        what: &'static str,
        /// Which one.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file in the BPF file system.
    #[error("{step} {path} failed with {errno} ({})", errno.text())]
    Path {
        /// What was being done.
        step: &'static str,
        /// Which file.
        path: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A request about a network interface failed; `said` is the kernel's or the driver's own explanation.
    #[error("{step} failed with {errno} ({}){}", errno.text(), if said.is_empty() { String::new() } else { format!(": {said}") })]
    Netlink {
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
        /// Extended acknowledgement, empty when there is none.
        said: String,
    },
    /// Another command failed.
    #[error("{step} failed with {errno} ({})", errno.text())]
    Call {
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl KernelError {
    /// The error number behind it, where the kernel gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            KernelError::Map { errno, .. }
            | KernelError::Program { errno, .. }
            | KernelError::Btf { errno, .. }
            | KernelError::Path { errno, .. }
            | KernelError::Netlink { errno, .. }
            | KernelError::Call { errno, .. } => Some(*errno),
            KernelError::NoSymbol { .. } | KernelError::Object { .. } => None,
        }
    }

    /// The kernel's log, empty where there is none.
    pub fn log(&self) -> &str {
        match self {
            KernelError::Program { log, .. } | KernelError::Btf { log, .. } => log,
            _ => "",
        }
    }
}

/// The end of a log, where its reason stands.
fn tail(log: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<_> = log.lines().collect();
    if lines.is_empty() {
        String::new()
    } else {
        format!(":\n{}", lines[lines.len().saturating_sub(LINES)..].join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_the_number_and_the_end_of_the_log() {
        let log: String = (0..30).map(|i| format!("line {i}\n")).collect();
        let text = KernelError::Program { name: "p".into(), errno: Errno::EACCES, log }.to_string();
        assert!(text.starts_with("program p: the kernel refused it with EACCES (permission denied):\n"), "{text}");
        assert!(text.ends_with("line 29") && !text.contains("line 3\n"), "{text}");
    }
}
