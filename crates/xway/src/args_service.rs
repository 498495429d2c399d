//! The command line of the service.

use std::path::PathBuf;

use clap::Args;

use crate::args::MachineCode;

/// Where the service is asked.
#[derive(Args, Debug, Clone)]
pub struct Socket {
    /// The service's socket
    #[arg(long, value_name = "PATH", default_value = xway_control::SOCKET)]
    pub socket: PathBuf,
}

/// `xway up`
#[derive(Args, Debug)]
pub struct Up {
    /// Ports, programs and limits; without a file: no ports, the usual limits, nothing kept
    #[arg(short = 'c', long = "config", value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Listen here instead of where the file says
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How the service speaks on standard error instead of what the file says: off, text, json
    #[arg(long, value_name = "FORMAT", value_parser = log_format)]
    pub log: Option<xway_control::LogFormat>,
    /// Keep pins, attachments and objects in this directory instead of where the file says
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Print which kinds of ports go on when this executable takes another one's place, and end: what an upgrade asks
    #[arg(long, hide = true)]
    pub takes: bool,
    /// Say by the exit code whether it would start: what an upgrade asks. The configuration and what it names are read, verified and
    /// compiled, nothing is opened
    #[arg(long, hide = true)]
    pub check: bool,
    /// How machine code is made, and who is told.
    #[command(flatten)]
    pub code: MachineCode,
}

/// `xway down`
#[derive(Args, Debug)]
pub struct Down {
    /// Where it is asked.
    #[command(flatten)]
    pub socket: Socket,
}

/// `xway upgrade`
#[derive(Args, Debug)]
pub struct Upgrade {
    /// The executable that is to go on; without one that of this command
    #[arg(value_name = "EXECUTABLE")]
    pub executable: Option<PathBuf>,
    /// Only show what would be kept and lost
    #[arg(long)]
    pub dry_run: bool,
    /// Where it is asked.
    #[command(flatten)]
    pub socket: Socket,
}

/// `xway apply`
#[derive(Args, Debug)]
pub struct Apply {
    /// The configuration
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Where it is asked.
    #[command(flatten)]
    pub socket: Socket,
}

/// `xway diff`
#[derive(Args, Debug)]
pub struct Diff {
    /// The configuration
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// Where it is asked.
    #[command(flatten)]
    pub socket: Socket,
}

fn log_format(text: &str) -> Result<xway_control::LogFormat, String> {
    use xway_control::LogFormat::{Json, Off, Text};
    let known = [("off", Off), ("text", Text), ("json", Json)];
    let found = known.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
    found.ok_or_else(|| "off, text or json".to_owned())
}

pub const UPGRADE_HELP: &str = "\
Examples:
  xway upgrade --dry-run      # what is kept, what is made again, what is lost
  xway upgrade /usr/bin/xway  # the process, its socket, tap: and packet: go on";

pub const UP_HELP: &str = "\
Examples:
  xway up -c xway.toml             # until xway down, Ctrl-C or SIGTERM
  xway up --socket /tmp/xway.sock  # without a configuration; xway load … --hook user fills it

The file is described in docs/service.md.";

pub const DOWN_HELP: &str = "\
Examples:
  xway down
  xway down --socket /tmp/xway.sock";

pub const APPLY_HELP: &str = "\
Examples:
  xway apply xway.toml  # objects that changed are replaced, their maps stay
  xway apply xway.toml --dry-run";

pub const DIFF_HELP: &str = "\
Examples:
  xway diff xway.toml  # exit code 1 when something would be done";
