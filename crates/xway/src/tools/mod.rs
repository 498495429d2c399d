//! Called by another tool's name (a symbolic link): behave as that tool, so that scripts that know it go on.
//!
//! Commands, options, output and exit codes are those that the tools' manuals describe and that they show when they
//! run; the words of help and of errors are ours.

mod bench;
mod dump;
mod forward;
pub mod guard;
mod loader;
mod monitor;
mod sample;
mod trafficgen;
mod xsk;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser};
use xway_engine::Stop;
use xway_kernel::Device;

use crate::interrupt;

/// Runs as the tool whose name this process was called by; `None` when it is our own.
pub fn by_name(arguments: &[OsString]) -> Option<ExitCode> {
    let called = Path::new(arguments.first()?).file_name()?.to_str()?;
    let rest = &arguments[1..];
    match called {
        "xdp-loader" => Some(loader::run(rest)),
        "xdp-bench" => Some(bench::run(rest)),
        "xdp-forward" => Some(forward::run(rest)),
        "xdp-monitor" => Some(monitor::run(rest)),
        "xdpdump" => Some(dump::run(rest)),
        "xdp-trafficgen" => Some(trafficgen::run(rest)),
        _ => None,
    }
}

/// What goes wrong has one exit code in most of the tools.
const WRONG: u8 = 1;
/// No command at all.
const NOTHING: u8 = u8::MAX;

/// A command line that makes no sense.
fn usage_code(tool: &str) -> u8 {
    if tool == "xdp-monitor" { 2 } else { WRONG }
}

/// Options of every tool.
#[derive(Args, Debug)]
struct Common {
    /// More words; twice for still more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(long)]
    version: bool,
}

/// The command line of a tool; or what was answered to it already, with the exit code.
fn parsed<T: Parser>(tool: &'static str, commands: &[&str], arguments: &[OsString]) -> Result<T, ExitCode> {
    let first = arguments.first().and_then(|a| a.to_str());
    if !commands.is_empty() {
        match first {
            None => {
                let _ = T::command().print_help();
                return Err(ExitCode::from(NOTHING));
            }
            Some(known) if commands.contains(&known) => {}
            Some(other) => return Err(wrong(&format!("Command '{other}' is unknown, try '{tool} help'."))),
        }
    }
    if arguments.iter().any(|a| a == "--version") {
        crate::print::text(&format!("{tool} of xway {}\n", env!("CARGO_PKG_VERSION")));
        return Err(ExitCode::SUCCESS);
    }
    let all = std::iter::once(OsString::from(tool)).chain(arguments.iter().cloned());
    T::try_parse_from(all).map_err(|e| {
        let _ = e.print();
        ExitCode::from(if e.use_stderr() { usage_code(tool) } else { 0 })
    })
}

fn wrong(words: &str) -> ExitCode {
    eprintln!("{words}");
    ExitCode::from(WRONG)
}

/// An interface by its name.
fn device(name: &str) -> Result<Device, String> {
    xway_hook::kernel::device(name).map_err(|e| match e.errno {
        Some(xway_abi::Errno::ENODEV) => format!("Couldn't find network interface '{name}'."),
        _ => e.to_string(),
    })
}

/// Why a hook refused, in the words of the tool: its modes have other names, and it replaces nothing.
fn refused(tool: &str, error: &xway_hook::HookError) -> String {
    let hint = error
        .hint
        .as_ref()
        .map(|hint| hint.replace("-m generic", "-m skb").replace("xway unload", &format!("{tool} unload")));
    match hint.filter(|hint| !["xway ", "--replace", "--hook"].iter().any(|ours| hint.contains(ours))) {
        Some(hint) => format!("{}; try: {hint}", error.message),
        None => error.message.clone(),
    }
}

/// The same of a tool.
fn failed(tool: &str, error: &xway_tools::ToolError) -> String {
    match error {
        xway_tools::ToolError::Hook(error) => refused(tool, error),
        error => error.to_string(),
    }
}

/// Ctrl-C ends the tool with its sums.
fn stopped() -> Result<Stop, String> {
    let stop = Stop::new().map_err(|e| format!("no file descriptor left: {e}"))?;
    interrupt::catch(&stop).map_err(|e| e.message)?;
    Ok(stop)
}
