//! The command line of forwarding and of traffic.

use clap::{Args, Subcommand, ValueEnum};

use crate::args_kernel::{Hook, Mode};

/// `xway forward`
#[derive(Subcommand, Debug)]
pub enum Forward {
    /// Forward between these interfaces
    #[command(after_help = FORWARD_LOAD_HELP)]
    Load(ForwardLoad),
    /// Leave forwarding to the host again
    #[command(after_help = FORWARD_UNLOAD_HELP)]
    Unload(ForwardUnload),
    /// Show what was forwarded, and why the rest was not
    #[command(after_help = FORWARD_STATUS_HELP)]
    Status(ForwardStatus),
}

/// How routes are looked up.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fib {
    /// Rules first, then the tables that they name
    Full,
    /// One table, no rules
    Direct,
}

/// `xway forward load`
#[derive(Args, Debug)]
pub struct ForwardLoad {
    /// Interfaces, or ports of the service
    #[arg(value_name = "PORT", required = true)]
    pub ports: Vec<String>,
    /// How routes are looked up
    #[arg(short = 'F', long, value_enum, default_value_t = Fib::Full)]
    pub fib_mode: Fib,
    /// Where it runs
    #[arg(short = 'm', long, value_enum, default_value_t = Mode::Auto, conflicts_with = "hook")]
    pub mode: Mode,
    /// Run together with other programs of the interfaces, in this order: smaller numbers first
    #[arg(short = 'P', long = "priority", visible_alias = "prio", value_name = "N")]
    pub priority: Option<u32>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway forward unload`
#[derive(Args, Debug)]
pub struct ForwardUnload {
    /// Interfaces, or ports of the service
    #[arg(value_name = "PORT", required = true)]
    pub ports: Vec<String>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway forward status`
#[derive(Args, Debug)]
pub struct ForwardStatus {
    /// Interface, or port of the service; all that forward when none is named
    #[arg(value_name = "PORT")]
    pub port: Option<String>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

const FORWARD_LOAD_HELP: &str = "\
Examples:
  xway forward load eth0 eth1                          # what the host routes stays in the driver
  xway forward load eth0 eth1 -F direct                # without policy rules, which is faster
  xway forward load eth0 eth1 -P 90                    # behind other programs: a filter, a counter
  xway forward load afxdp:eth0 afxdp:eth1 --hook user  # in the service's engine (xway up)";

const FORWARD_UNLOAD_HELP: &str = "\
Examples:
  xway forward unload eth0 eth1";

const FORWARD_STATUS_HELP: &str = "\
Examples:
  xway forward status
  xway forward status eth0 -j";

/// `xway trafficgen`
#[derive(Args, Debug)]
pub struct Trafficgen {
    /// Where packets go: an interface (the kernel makes them, and the driver takes them from XDP), or a port of ours that sends
    /// (packet:IFACE, afxdp:IFACE, tap:NAME)
    #[arg(value_name = "PORT")]
    pub port: String,
    /// Source address
    #[arg(short = 'A', long = "src", value_name = "ADDR", default_value = "fe80::1")]
    pub src: std::net::IpAddr,
    /// Destination address, of the same family
    #[arg(short = 'a', long = "dst", value_name = "ADDR", default_value = "fe80::2")]
    pub dst: std::net::IpAddr,
    /// Source hardware address (the interface's own)
    #[arg(short = 'M', long, value_name = "MAC", value_parser = xway_tools::packets::Mac::parse)]
    pub src_mac: Option<xway_tools::packets::Mac>,
    /// Destination hardware address
    #[arg(short = 'm', long, value_name = "MAC", value_parser = xway_tools::packets::Mac::parse)]
    pub dst_mac: Option<xway_tools::packets::Mac>,
    /// Source port
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1)]
    pub src_port: u16,
    /// Destination port, the first one of several flows
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1)]
    pub dst_port: u16,
    /// Flows: so many destination ports in turn
    #[arg(short = 'd', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub flows: u16,
    /// Length of a packet, bytes
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 64)]
    pub size: usize,
    /// Hop limit
    #[arg(short = 'l', long, value_name = "N", default_value_t = 64)]
    pub hop_limit: u8,
    /// Packets of a capture instead, in their order, again and again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["src", "dst", "flows", "size"])]
    pub pcap: Option<std::path::PathBuf>,
    /// Stop after so many packets
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
    /// Stop after so many seconds (10 without -n)
    #[arg(long, value_name = "SECS", value_parser = crate::args::seconds)]
    pub timeout: Option<std::time::Duration>,
    /// At most so many packets a second
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Interface where they arrive: what it has received is compared with what was sent
    #[arg(long, value_name = "IFACE")]
    pub check: Option<String>,
}

pub const TRAFFICGEN_HELP: &str = "\
Examples:
  xway trafficgen eth0 -n 1000000              # a million packets, made in the kernel
  xway trafficgen eth0 --dst 10.0.0.2 --src 10.0.0.1 -m 02:00:00:00:00:02 -d 1000 --rate 100000
  xway trafficgen packet:eth0 --pcap capture.pcapng -n 500
  xway trafficgen veth0 -n 1000 --check veth1  # did all of them arrive?";
