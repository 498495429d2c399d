//! The command line of filters.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use xway_tools::filter::{Net, Owner, Subject, Transport};

use crate::args_kernel::{Every, Hook, Mode};

/// `xway filter`
#[derive(Subcommand, Debug)]
pub enum Filter {
    /// Put a filter on ports; they share its lists
    #[command(after_help = LOAD_HELP)]
    Load(Load),
    /// Take filters away from ports
    #[command(after_help = UNLOAD_HELP)]
    Unload(Unload),
    /// Put senders and ports on the lists, all of them or none
    #[command(after_help = ADD_HELP)]
    Add(Add),
    /// Take them off the lists, all of them or none
    #[command(after_help = DEL_HELP)]
    Del(Del),
    /// Show the lists, and what each rule met
    #[command(after_help = LIST_HELP)]
    List(List),
    /// Show what is dropped in a second, and by which rule
    #[command(after_help = STATS_HELP)]
    Stats(Stats),
}

/// `xway filter load`
#[derive(Args, Debug)]
pub struct Load {
    /// Interfaces, or ports of the service
    #[arg(value_name = "PORT", required = true)]
    pub ports: Vec<String>,
    /// Where it runs
    #[arg(short = 'm', long, value_enum, default_value_t = Mode::Auto, conflicts_with = "hook")]
    pub mode: Mode,
    /// Run together with other programs of the interfaces, in this order: smaller numbers first
    #[arg(short = 'P', long = "priority", visible_alias = "prio", value_name = "N")]
    pub priority: Option<u32>,
    /// Use the lists that are pinned in this directory of the BPF file system, or pin new ones there
    #[arg(short = 'p', long = "pin-path", value_name = "DIR")]
    pub pins: Option<PathBuf>,
    /// Who else may change the lists, by their pins: needs --pin-path
    #[arg(long, value_name = "USER[:GROUP]", value_parser = Owner::parse, requires = "pins")]
    pub owner: Option<Owner>,
    /// Whether it is said what was done.
    #[command(flatten)]
    pub quiet: Quiet,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// Whether it is said what was done.
#[derive(Args, Debug, Clone, Copy)]
pub struct Quiet {
    /// Say nothing when all is well
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

/// `xway filter unload`
#[derive(Args, Debug)]
pub struct Unload {
    /// Interfaces, or ports of the service
    #[arg(value_name = "PORT", required = true)]
    pub ports: Vec<String>,
    /// Remove the lists that are pinned in this directory too
    #[arg(short = 'p', long = "pin-path", value_name = "DIR")]
    pub pins: Option<PathBuf>,
    /// Whether it is said what was done.
    #[command(flatten)]
    pub quiet: Quiet,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// Which lists.
#[derive(Args, Debug, Clone)]
pub struct Which {
    /// Interface, or port of the service; not needed where there is one filter only
    #[arg(value_name = "PORT", conflicts_with = "pins")]
    pub port: Option<String>,
    /// The lists that are pinned in this directory, for which the pins' owner needs no privileges
    #[arg(short = 'p', long = "pin-path", value_name = "DIR")]
    pub pins: Option<PathBuf>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// What rules are about.
#[derive(Args, Debug, Clone)]
#[group(required = true, multiple = true)]
pub struct Subjects {
    /// Packets from an address or from a prefix of them, IPv4 or IPv6
    #[arg(long, value_name = "ADDR[/LEN]", value_parser = Net::parse)]
    pub ip: Vec<Net>,
    /// Packets to a TCP port
    #[arg(long, value_name = "N")]
    pub tcp_dport: Vec<u16>,
    /// Packets to a UDP port
    #[arg(long, value_name = "N")]
    pub udp_dport: Vec<u16>,
}

impl Subjects {
    /// All of them.
    pub fn all(&self) -> Vec<Subject> {
        let to = |transport| move |port: &u16| Subject::To(transport, *port);
        let from = self.ip.iter().map(|net| Subject::From(*net));
        from.chain(self.tcp_dport.iter().map(to(Transport::Tcp)))
            .chain(self.udp_dport.iter().map(to(Transport::Udp)))
            .collect()
    }
}

/// `xway filter add`
#[derive(Args, Debug)]
pub struct Add {
    /// Which lists.
    #[command(flatten)]
    pub which: Which,
    /// What rules are about.
    #[command(flatten)]
    pub subjects: Subjects,
    /// Let them pass, whatever the other lists say: an exception from a longer prefix or a port
    #[arg(long)]
    pub pass: bool,
    /// Whether it is said what was done.
    #[command(flatten)]
    pub quiet: Quiet,
}

/// `xway filter del`
#[derive(Args, Debug)]
pub struct Del {
    /// Which lists.
    #[command(flatten)]
    pub which: Which,
    /// What rules are about.
    #[command(flatten)]
    pub subjects: Subjects,
    /// Whether it is said what was done.
    #[command(flatten)]
    pub quiet: Quiet,
}

/// `xway filter list`
#[derive(Args, Debug)]
pub struct List {
    /// Which lists.
    #[command(flatten)]
    pub which: Which,
}

/// `xway filter stats`
#[derive(Args, Debug)]
pub struct Stats {
    /// Which lists.
    #[command(flatten)]
    pub which: Which,
    /// How often, and how it is shown.
    #[command(flatten)]
    pub every: Every,
}

const LOAD_HELP: &str = "\
Examples:
  xway filter load eth0                    # native where the driver can; the output says
  xway filter load eth0 eth1 -m generic    # one set of lists for both
  xway filter load eth0 -P 10              # before other programs of the interface
  xway filter load eth0 -p /sys/fs/bpf/filter --owner nobody
  xway filter load eth0 --hook user        # in the service's engine (xway up), on copies";

const UNLOAD_HELP: &str = "\
Examples:
  xway filter unload eth0
  xway filter unload eth0 -p /sys/fs/bpf/filter  # and its pinned lists";

const ADD_HELP: &str = "\
Examples:
  xway filter add eth0 --ip 192.0.2.0/24 --ip 2001:db8::/32
  xway filter add eth0 --ip 192.0.2.7 --pass  # but not this one
  xway filter add eth0 --tcp-dport 23 --udp-dport 11211 --quiet

Of several prefixes the longest counts. Addresses are looked up before ports.";

const DEL_HELP: &str = "\
Examples:
  xway filter del eth0 --ip 192.0.2.0/24 --tcp-dport 23";

const LIST_HELP: &str = "\
Examples:
  xway filter list
  xway filter list eth0 -j";

const STATS_HELP: &str = "\
Examples:
  xway filter stats eth0
  xway filter stats eth0 -i 5 --ndjson
  xway filter stats eth0 --count 1 --all -j";
