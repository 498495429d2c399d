//! `xdp-forward`: the host's routes in the kernel's hook; the commands, options and exit codes of the tool of that
//! name.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use xway_hook::{Kernel, Mode as HookMode};
use xway_tools::forward::{self, Fib, Options};

use super::{Common, device, failed, parsed};
use crate::print;

/// Forward packets by the host's routes.
#[derive(Parser, Debug)]
#[command(name = "xdp-forward", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Forward between these interfaces
    Load(Load),
    /// Leave forwarding to the host again
    Unload(Unload),
}

const COMMANDS: [&str; 3] = ["load", "unload", "help"];

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq)]
enum FwdMode {
    /// By the routing tables
    Fib,
    /// By netfilter's flow table
    Flowtable,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum FibMode {
    /// Rules first, then the tables that they name
    Full,
    /// One table, no rules
    Direct,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Mode {
    Native,
    Skb,
    Hw,
    Unspecified,
}

#[derive(Args, Debug)]
struct Load {
    /// Interfaces
    #[arg(required = true)]
    ifnames: Vec<String>,
    /// What decides where a packet goes
    #[arg(short, long, value_enum, default_value_t = FwdMode::Fib)]
    fwd_mode: FwdMode,
    /// How routes are looked up
    #[arg(short = 'F', long, value_enum, default_value_t = FibMode::Full)]
    fib_mode: FibMode,
    /// Where the program runs
    #[arg(short, long = "xdp-mode", visible_alias = "mode", value_enum, default_value_t = Mode::Native)]
    mode: Mode,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct Unload {
    /// Interfaces
    #[arg(required = true)]
    ifnames: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Runs the tool.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let cli: Cli = match parsed("xdp-forward", &COMMANDS, arguments) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match &cli.command {
        Command::Load(args) => load(args),
        Command::Unload(args) => unload(args),
    };
    done.map_or_else(|words| super::wrong(&words), |()| ExitCode::SUCCESS)
}

fn load(args: &Load) -> Result<(), String> {
    args.ifnames.iter().try_for_each(|name| device(name).map(drop))?;
    if args.fwd_mode == FwdMode::Flowtable {
        return Err(flowtable());
    }
    let mut hook = Kernel::new();
    let mut left = Vec::new();
    for name in &args.ifnames {
        if forward::attached(&mut hook, Some(name)).map_err(|e| failed("xdp-forward", &e))?.is_empty() {
            left.push(name.clone());
        } else {
            print::text(&format!("Already attached to {name}, not reattaching\n"));
        }
    }
    let options = Options {
        fib: match args.fib_mode {
            FibMode::Full => Fib::Full,
            FibMode::Direct => Fib::Direct,
        },
        mode: match args.mode {
            Mode::Native => HookMode::Native,
            Mode::Skb => HookMode::Generic,
            Mode::Hw => HookMode::Offload,
            Mode::Unspecified => HookMode::Auto,
        },
        priority: None,
    };
    if left.is_empty() {
        return Ok(());
    }
    for one in forward::load(&mut hook, &left, &options).map_err(|e| failed("xdp-forward", &e))? {
        print::text(&format!("Loaded on interface {}\n", one.port));
        let all = one.attached.warnings.iter().chain(&one.warnings);
        all.filter(|_| args.common.verbose > 0).for_each(|w| eprintln!("{w}"));
    }
    Ok(())
}

/// Why the flow table cannot decide.
fn flowtable() -> String {
    const LOOKUP: &str = "bpf_xdp_flow_lookup";
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    match symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(LOOKUP)) {
        false => format!("The kernel does not support the {LOOKUP}() kfunc, which mode flowtable needs: -f fib"),
        true => format!("Mode flowtable is not supported: no program of ours calls {LOOKUP}(): -f fib"),
    }
}

fn unload(args: &Unload) -> Result<(), String> {
    let mut hook = Kernel::new();
    let mut missing = None;
    for name in &args.ifnames {
        device(name)?;
        if forward::unload(&mut hook, name).map_err(|e| failed("xdp-forward", &e))?.is_empty() {
            missing = Some(name);
            eprintln!("Couldn't find program on interface {name}");
        } else {
            print::text(&format!("Unloaded from interface {name}\n"));
        }
    }
    let failed = missing.filter(|_| args.ifnames.len() == 1);
    failed.map_or(Ok(()), |name| Err(format!("{name}: nothing to unload")))
}
