//! The verbs about Linux's own hook: attach, list, and the objects behind.

mod asked;
pub mod attach;
pub mod btf;
pub mod dump;
mod entries;
mod event_pipe;
pub mod features;
pub mod link;
pub mod map;
mod map_create;
mod pinning;
pub mod profile;
pub mod prog;
pub mod prog_dump;
pub mod prog_run;
pub mod programs;
pub mod tracelog;
mod watch;
mod which;

use xway_hook::{Blame, HookError};
use xway_kernel::KernelError;

use xway_tools::ToolError;

use crate::failure::{Exit, Failure};

/// A hook's refusal as the command's.
pub fn failure(error: HookError) -> Failure {
    let exit = match error.blame {
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
