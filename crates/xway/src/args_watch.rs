//! The command line of the verbs that watch.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use xway_hook::{CapturePoint, Verdicts};

use crate::args::seconds;
use crate::args_kernel::Hook;

/// Where packets are looked at.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// As they came in, before any program
    Entry,
    /// As the programs left them, with the verdict
    Exit,
}

impl From<At> for CapturePoint {
    fn from(at: At) -> CapturePoint {
        match at {
            At::Entry => CapturePoint::Entry,
            At::Exit => CapturePoint::Exit,
        }
    }
}

/// `xway dump`
#[derive(Args, Debug)]
pub struct Dump {
    /// Port of the service, or the interface behind it; with `--hook native` or `generic` an interface
    #[arg(value_name = "PORT")]
    pub port: String,
    /// Only packets that match: the language of tcpdump (man pcap-filter)
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// Before the programs, or behind them; without it behind them in the engine, and before them in the kernel, where nothing else is seen
    #[arg(long, value_enum)]
    pub at: Option<At>,
    /// Only packets with these verdicts, separated by commas
    #[arg(long, value_name = "VERDICTS", value_parser = Verdicts::parse)]
    pub verdict: Option<Verdicts>,
    /// Only packets that this program decided about, by name or id
    #[arg(long, value_name = "NAME|ID")]
    pub prog: Option<String>,
    /// Only this receive queue
    #[arg(short = 'q', long, value_name = "QUEUE")]
    pub queue: Option<u32>,
    /// Write pcapng with port, queue, verdict and reason to this file instead of a line for each packet; `-`: standard output
    #[arg(short = 'w', long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// One of so many packets that match, as 1/100
    #[arg(long, value_name = "1/N", default_value = "1/1", value_parser = sample)]
    pub sample: u32,
    /// End after this many packets
    #[arg(short = 'c', long, value_name = "N")]
    pub count: Option<u64>,
    /// End after this many seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Bytes of each packet at most
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..))]
    pub snaplen: u32,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway monitor`
#[derive(Args, Debug)]
pub struct Monitor {
    /// Only this interface, or port of the service
    #[arg(value_name = "PORT")]
    pub port: Option<String>,
    /// Events: what went wrong with packets, and what was attached; without -e and -s both are shown
    #[arg(short = 'e', long)]
    pub events: bool,
    /// Rates: what is counted in a second, and only what changes
    #[arg(short = 's', long)]
    pub stats: bool,
    /// Seconds between two looks at the counters
    #[arg(short = 'i', long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// End after this many events; with rates alone, after this many looks at the counters
    #[arg(short = 'c', long, value_name = "N")]
    pub count: Option<u64>,
    /// End after this many seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway top`
#[derive(Args, Debug)]
pub struct Top {
    /// Seconds between two looks
    #[arg(short = 'i', long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Look so often, then end; until q or Ctrl-C without it
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// A capture beside a run.
#[derive(Args, Debug, Clone)]
pub struct Beside {
    /// Write packets to this pcapng file as `xway dump -w` does, beside the run, which does not wait
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// Only packets that match: the language of tcpdump (man pcap-filter)
    #[arg(long, value_name = "FILTER", requires = "dump")]
    pub dump_filter: Option<String>,
    /// Only packets with these verdicts, separated by commas
    #[arg(long, value_name = "VERDICTS", value_parser = Verdicts::parse, requires = "dump")]
    pub dump_verdict: Option<Verdicts>,
    /// One of so many packets that match, as 1/100
    #[arg(long, value_name = "1/N", default_value = "1/1", value_parser = sample, requires = "dump")]
    pub dump_sample: u32,
}

/// A part of all packets: `1/N`.
pub fn sample(text: &str) -> Result<u32, String> {
    let wrong = || "expected 1/N, as 1/100".to_owned();
    let every = text.strip_prefix("1/").ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
    if every == 0 { Err(wrong()) } else { Ok(every) }
}

pub const DUMP_HELP: &str = "\
Examples:
  xway dump packet:eth0 --verdict drop,aborted tcp port 80  # what the programs drop, and why
  xway dump packet:eth0 -w - vlan and ip | tshark -r -
  xway dump eth0 -w sample.pcapng --sample 1/100 -c 1000 'tcp[13] & 2 != 0'
  xway dump eth0 --at entry -s 96 -j

Packets wait in a queue of bounded length; what finds no room there is lost, counted, and told at the end. Forwarding does not wait.";

pub const MONITOR_HELP: &str = "\
Examples:
  xway monitor                 # exceptions, failed redirects and rates in the kernel
  xway monitor -e eth0 -j      # a JSON document a line for each event
  xway monitor -e --hook user  # what goes wrong in the service's engine
  xway monitor -s --hook user packet:eth0 -i 5

Nothing is told at more than a bounded rate: what was left out is counted and said.";

pub const TOP_HELP: &str = "\
Examples:
  xway top                # the service's ports, queues and programs, until q
  xway top -i 0.2 --socket /tmp/xway.sock
  xway top --hook native  # interfaces that have a program in the kernel";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_one_of_so_many() {
        assert_eq!(sample("1/100"), Ok(100));
        assert!(["2/3", "1/0", "1/", "100", "1/x"].iter().all(|text| sample(text).is_err()));
    }
}
