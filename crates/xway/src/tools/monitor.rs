//! `xdp-monitor`: the kernel's tracepoints about XDP once an interval; the options, lines and exit codes of the
//! tool of that name.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use xway_tools::ToolError;
use xway_tools::measure::Snapshot;
use xway_tools::watch::{Scope, Watch};

use super::sample::{self, Shown, Source, Style, Times};
use super::{Common, parsed};
use crate::print;

/// Monitor XDP through the kernel's tracepoints.
#[derive(Parser, Debug)]
#[command(name = "xdp-monitor", disable_version_flag = true)]
struct Cli {
    /// Seconds between two lines
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
    /// Count successful redirects too, which costs something for every packet
    #[arg(short, long)]
    stats: bool,
    /// All figures, by CPU
    #[arg(short, long)]
    extended: bool,
    #[command(flatten)]
    common: Common,
}

/// The kernel refuses a program.
const NO_BPF: u8 = 4;

/// Runs the tool.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let cli: Cli = match parsed("xdp-monitor", &[], arguments) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match monitor(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            eprintln!("{words}");
            ExitCode::from(NO_BPF)
        }
    }
}

fn monitor(cli: &Cli) -> Result<(), String> {
    let stop = super::stopped()?;
    let watch = Watch::open(&Scope { successes: cli.stats, ..Scope::default() }).map_err(|e| e.to_string())?;
    for name in watch.missing() {
        eprintln!("This kernel has no tracepoint {name}: what it would tell stays zero");
    }
    if !cli.stats {
        print::text("NOTICE: successful redirects are not counted; -s counts them, at some cost for every packet\n");
    }
    let shown = Shown {
        redirected: cli.stats,
        redirects: true,
        transmitted: true,
        cpus: true,
        behind: true,
        devices: true,
        ..Shown::default()
    };
    let style = Style { title: "Summary".into(), shown, extended: cli.extended };
    let times = Times::every(Some(Duration::from_secs(cli.interval.into())));
    sample::run(&mut Everything(watch), &style, times, &|| stop.asked()).map_err(|e| e.to_string())
}

/// The whole machine as something to read from.
struct Everything(Watch);

impl Source for Everything {
    fn read(&mut self) -> Result<Snapshot, ToolError> {
        Ok(Snapshot { counts: self.0.read()?, ..Snapshot::default() })
    }
}
