//! The command line of the service.

use std::path::PathBuf;

use clap::Args;

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
    /// Keep pins, attachments and objects in this directory instead of where the file says
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// `xway down`
#[derive(Args, Debug)]
pub struct Down {
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

pub const UP_HELP: &str = "\
Examples:
  xway up -c xway.toml                       until xway down, Ctrl-C or SIGTERM
  xway up --socket /tmp/xway.sock            without a configuration; xway load … --hook user fills it

The file is described in docs/service.md.";

pub const DOWN_HELP: &str = "\
Examples:
  xway down
  xway down --socket /tmp/xway.sock";

pub const APPLY_HELP: &str = "\
Examples:
  xway apply xway.toml                       objects that changed are replaced, their maps stay
  xway apply xway.toml --dry-run";

pub const DIFF_HELP: &str = "\
Examples:
  xway diff xway.toml                        exit code 1 when something would be done";
