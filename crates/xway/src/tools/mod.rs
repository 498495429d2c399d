//! Called by another tool's name (a symbolic link): behave as that tool, so that scripts that know it go on.

mod loader;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Runs as the tool whose name this process was called by; `None` when it is our own.
pub fn by_name(arguments: &[OsString]) -> Option<ExitCode> {
    let called = Path::new(arguments.first()?).file_name()?.to_str()?;
    match called {
        "xdp-loader" => Some(loader::run(&arguments[1..])),
        _ => None,
    }
}
