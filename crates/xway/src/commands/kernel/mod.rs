//! The verbs about Linux's own hook: attach, list, and the objects behind.

mod asked;
pub mod attach;
pub mod btf;
mod btf_raw;
pub mod dump;
mod entries;
mod event_pipe;
pub mod features;
pub mod graph;
pub mod link;
pub mod listing;
pub mod map;
mod map_create;
mod pinned;
pub mod pinning;
pub mod profile;
pub mod prog;
pub mod prog_dump;
pub mod prog_run;
pub mod programs;
pub mod tracelog;
mod watch;
mod which;

use xway_abi::Errno;
use xway_hook::{Blame, HookError, HookKind};
use xway_kernel::KernelError;

use xway_tools::ToolError;

use crate::failure::{Exit, Failure};

/// A hook's refusal as the command's.
pub fn failure(error: HookError) -> Failure {
    let exit = match error.blame {
        // A verifier said no, and why.
        _ if !error.log.is_empty() => Exit::No,
        Blame::Request => Exit::No,
        Blame::Input => Exit::Input,
        Blame::Machine => Exit::Needs,
    };
    let failure = Failure { exit, message: error.message, hint: None, said: false, refusal: None };
    match error.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The same about one object of a kind, `prog`, `map`, `link` or `btf`: who names one that is not there is told where they are listed.
pub(super) fn failure_of(kind: &str, on: HookKind, error: HookError) -> Failure {
    let missing = error.errno == Some(Errno::ENOENT) && error.hint.is_none();
    let failure = failure(error);
    if missing { failure.hint(show(kind, on)) } else { failure }
}

/// The command that lists the objects of a kind.
pub(super) fn show(kind: &str, on: HookKind) -> String {
    let place = if on == HookKind::Kernel { "" } else { " --hook user" };
    format!("xway {kind} show{place}")
}

/// A kind of object in messages, which bpftool's word for the verb shortens.
pub(super) fn called(kind: &str) -> &str {
    if kind == "prog" { "program" } else { kind }
}

/// The object of this kind with a number, or what to say instead.
pub(super) fn by_id<T>(kind: &str, id: u32, opened: Result<T, KernelError>) -> Result<T, Failure> {
    opened.map_err(|error| match error.errno() {
        Some(Errno::ENOENT) => failure_of(kind, HookKind::Kernel, HookError::no_object(called(kind), id)),
        _ => refused(error),
    })
}

/// A refusal of the kernel that is not about an interface.
pub(super) fn refused(error: KernelError) -> Failure {
    failure(xway_hook::explain::plain(&error))
}

/// A tool's refusal as the command's.
pub fn tool_failure(error: ToolError) -> Failure {
    match error {
        ToolError::Hook(error) => failure(error),
        ToolError::Kernel(error) => refused(error),
        ToolError::NotBuilt(_) => {
            Failure::needs(error).hint("build it where clang is: scripts/setup says what is missing")
        }
        ToolError::Object { .. } => Failure::no(error),
        ToolError::Request(message) => Failure::no(message),
    }
}
