//! The command line of the verbs about the data path.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `xway steer`
#[derive(Args, Debug)]
pub struct Steer {
    /// Where the service is asked.
    #[command(flatten)]
    pub socket: crate::args_service::Socket,
    /// Port of the service, such as packet:eth0; an interface alone, such as eth0, means its card's own rules
    #[arg(value_name = "PORT")]
    pub port: String,
    /// What to change, in ethtool's words: flow-type …, delete LOC, equal N, weight W…, hkey KEY, off; nothing: only show
    #[arg(value_name = "WORDS", allow_negative_numbers = true)]
    pub words: Vec<String>,
}

/// `xway sock`
#[derive(Subcommand, Debug)]
pub enum Sock {
    /// Show the AF_XDP-style sockets that applications have, with their counters
    #[command(visible_alias = "list", after_help = SOCK_SHOW_HELP)]
    Show(SockShow),
    /// Serve AF_XDP-style sockets on the service's queues at a path
    #[command(after_help = SOCK_SERVE_HELP)]
    Serve(SockServe),
    /// Serve them there no more: applications that are connected are cut off
    #[command(after_help = SOCK_END_HELP)]
    End(SockEnd),
}

/// `xway sock show`
#[derive(Args, Debug)]
pub struct SockShow {
    /// Where the service is asked.
    #[command(flatten)]
    pub socket: crate::args_service::Socket,
}

/// `xway sock serve`
#[derive(Args, Debug)]
pub struct SockServe {
    /// Where the service is asked.
    #[command(flatten)]
    pub socket: crate::args_service::Socket,
    /// Where applications connect
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The group that may connect, beside the owner: mode 0660; without it the service's own
    #[arg(long)]
    pub group: Option<String>,
    /// Users whose applications may go without copies, by number; root's may
    #[arg(long = "trust", value_name = "UID", value_delimiter = ',')]
    pub trusted: Vec<u32>,
    /// Others may go without copies on a queue that is theirs alone: bound past all programs, with no program on it
    #[arg(long)]
    pub own_queue: bool,
    /// Others get so many first bytes of each packet, such as the headers only
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..=4096))]
    pub untrusted_bytes: Option<u32>,
}

/// `xway sock end`
#[derive(Args, Debug)]
pub struct SockEnd {
    /// Where the service is asked.
    #[command(flatten)]
    pub socket: crate::args_service::Socket,
    /// Where they are served
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

const SOCK_SHOW_HELP: &str = "\
Examples:
  xway sock show
  xway sock show -j";

const SOCK_SERVE_HELP: &str = "\
Examples:
  xway sock serve /run/xway/xsk.sock
  xway sock serve /run/xway/xsk.sock --group daemon
  xway sock serve /run/xway/xsk.sock --trust 1000 --own-queue

What applications find there, and whom the server trusts: docs/af-xdp.md. In a configuration: [[socket]] path = …";

const SOCK_END_HELP: &str = "\
Examples:
  xway sock end /run/xway/xsk.sock";

pub const STEER_HELP: &str = "\
Examples:
  xway steer tap:xw0
  xway steer tap:xw0 flow-type udp4 dst-port 53 action 1 loc 7
  xway steer tap:xw0 flow-type ip4 src-ip 192.0.2.0 m 0.0.0.255 action -1
  xway steer tap:xw0 delete 7
  xway steer tap:xw0 equal 4 hkey symmetric
  xway steer tap:xw0 weight 6 2
  xway steer tap:xw0 off

Rules are tried from the smallest place (loc) on; without loc the last free place is taken, and a rule for a place that is taken
takes it over. -1 drops. Bits of a mask (m) that are set do not count. What no rule is about goes where its hash says, or stays on
its queue. On a port of the service it happens in software, before programs run. With an interface's name alone (xway steer eth0 …) the
same words set the rules of its card, as ethtool -N, -U and -X do.";
