//! `xdp-loader`: load, unload, status, clean, help; the words, the table and the exit codes of the tool of that name.
//!
//! Programs are always put beside others, as the tool does it: into its dispatcher where the kernel has what that needs, else
//! into a chain of ours (docs/kernel-hook.md).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use xway_abi::{Errno, Verdict};
use xway_hook::{
    AttachRequest, AttachmentInfo, Hook, Image, Kernel, LoadRequest, Mode as HookMode, PRIORITY, ProgId, Verdicts,
    kernel,
};
use xway_kernel::{KernelProg, XdpMode, devices, driver_features};

use super::{Common, WRONG, parsed, refused, wrong};
use crate::args::{Part, Select};
use crate::commands::kernel::attach;
use crate::{load, print};

/// An XDP loader.
#[derive(Parser, Debug)]
#[command(name = "xdp-loader", disable_version_flag = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Load an XDP program on an interface
    Load(Load),
    /// Unload an XDP program from an interface
    Unload(Unload),
    /// Show the XDP programs of interfaces
    Status {
        /// Show only this interface
        ifname: Option<String>,
    },
    /// Show what the driver of an interface can do with XDP
    Features {
        /// Which one
        ifname: String,
    },
    /// Remove what detached programs have left in the BPF file system
    Clean {
        /// Taken for the sake of scripts: all interfaces are cleaned
        ifname: Option<String>,
    },
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
    /// Load on this device
    ifname: String,
    /// Load programs from these files
    #[arg(required = true)]
    filenames: Vec<PathBuf>,
    /// Where it runs
    #[arg(short, long, value_enum, default_value_t = Mode::Native)]
    mode: Mode,
    /// Path to pin maps under (must be in bpffs)
    #[arg(short, long)]
    pin_path: Option<PathBuf>,
    /// ELF section of the program (default: first in file)
    #[arg(short, long)]
    section: Option<String>,
    /// Name of the program (default: first in file)
    #[arg(short = 'n', long, conflicts_with = "section")]
    prog_name: Option<String>,
    /// Run priority of the program
    #[arg(short = 'P', long)]
    prio: Option<u32>,
    /// Chain call actions, as XDP_PASS,XDP_DROP
    #[arg(short = 'A', long, value_parser = Verdicts::parse)]
    actions: Option<Verdicts>,
}

#[derive(Args, Debug)]
struct Unload {
    /// Unload from this device
    ifname: String,
    /// Unload the program with this id
    #[arg(short, long)]
    id: Option<u32>,
    /// Unload all programs
    #[arg(short, long)]
    all: bool,
}

/// Runs the tool.
pub fn run(arguments: &[OsString]) -> ExitCode {
    const COMMANDS: [&str; 6] = ["load", "unload", "status", "clean", "features", "help"];
    let cli: Cli = match parsed("xdp-loader", &COMMANDS, arguments) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match &cli.command {
        Command::Load(args) => {
            return load_all(args, cli.common.verbose > 0).map_or_else(Wrong::told, |()| ExitCode::SUCCESS);
        }
        Command::Unload(args) => unload(args),
        Command::Status { ifname } => status(ifname.as_deref()),
        Command::Features { ifname } => features(ifname),
        Command::Clean { ifname } => {
            let known = ifname.as_deref().map_or(Ok(()), present);
            known.and_then(|()| kernel::clean(false).map(drop).map_err(|e| e.to_string()))
        }
    };
    done.map_or_else(|words| wrong(&words), |()| ExitCode::SUCCESS)
}

fn present(ifname: &str) -> Result<(), String> {
    kernel::device(ifname).map(drop).map_err(|_| format!("Couldn't find network interface '{ifname}'."))
}

/// Why nothing was loaded. The tool's exit code is the error number, below zero.
struct Wrong {
    words: String,
    errno: Option<Errno>,
}

impl Wrong {
    fn told(self) -> ExitCode {
        eprintln!("{}", self.words);
        ExitCode::from(self.errno.map_or(WRONG, |errno| (-errno.0) as u8))
    }
}

impl From<String> for Wrong {
    fn from(words: String) -> Wrong {
        Wrong { words, errno: None }
    }
}

fn load_all(args: &Load, verbose: bool) -> Result<(), Wrong> {
    present(&args.ifname)?;
    args.filenames.iter().try_for_each(|file| load_one(args, file, verbose))
}

fn load_one(args: &Load, file: &Path, verbose: bool) -> Result<(), Wrong> {
    let (name, section) = (args.prog_name.clone(), args.section.clone());
    let part = Part { name, section, btf: None };
    let select = Select { object: file.to_owned(), part };
    let missing = |words: String| Wrong { words, errno: Some(Errno::ENOENT) };
    let image: Image = load::image(&select).map_err(|f| missing(f.message))?;
    let chosen = match (&select.part.name, &select.part.section) {
        (None, None) => {
            // The first in the file, where our own command wants to be told.
            let first = image.object.programs.iter().find_map(|p| p.as_xdp().ok());
            first.ok_or_else(|| missing(format!("{}: no XDP program", file.display())))?
        }
        _ => load::choose(&image.object, &select).map_err(|f| missing(f.message))?,
    };
    let mut hook = Kernel::new();
    let mode = match args.mode {
        Mode::Native => HookMode::Native,
        Mode::Skb => HookMode::Generic,
        Mode::Hw => HookMode::Offload,
        Mode::Unspecified => HookMode::Auto,
    };
    let device = (mode == HookMode::Offload).then(|| args.ifname.clone());
    let request = LoadRequest { programs: vec![chosen.name.clone()], pins: args.pin_path.clone(), device };
    let failed = |e: xway_hook::HookError| {
        let words = format!("Couldn't attach XDP program on iface '{}': {}", args.ifname, refused("xdp-loader", &e));
        Wrong { words, errno: e.errno }
    };
    let objects = hook.load(&image, &request).map_err(failed)?;
    // What scripts set who want the program alone.
    let alone = std::env::var_os("LIBXDP_SKIP_DISPATCHER").is_some_and(|v| v != "0");
    let config = image.object.run_config(&chosen.name);
    let there = hook.attachments(Some(&args.ifname)).map_err(failed)?;
    if let Some(single) = there.iter().find(|a| a.priority.is_none()).filter(|_| !alone) {
        let (id, name) = (single.program.id.0, &single.program.name);
        let why = "it was loaded alone, and this tool puts none beside it";
        let words =
            format!("Couldn't attach XDP program on iface '{}': program {id} ({name}) is there: {why}", args.ifname);
        return Err(Wrong { words, errno: Some(Errno::EBUSY) });
    }
    let request = AttachRequest {
        mode,
        priority: args.prio.or(config.priority).unwrap_or(PRIORITY),
        chain_on: args.actions.or(config.chain_on.map(Verdicts)).unwrap_or(Verdicts::PASS),
        // A device runs one program alone.
        chain: !alone && mode != HookMode::Offload,
        ..AttachRequest::new(&args.ifname, objects.programs[0].1)
    };
    let done = hook.attach(&request).map_err(failed)?;
    if let Some(lost) = attach::emptied(&image.object, &objects) {
        eprintln!(
            "{}: asked for {} {}, got {}: {}",
            args.ifname, lost.what, lost.requested, lost.effective, lost.reason
        );
    }
    if verbose {
        let (id, mode) = (done.program.0, done.mode.effective);
        eprintln!("{}: program {} (id {id}) in mode {mode}, by {}", args.ifname, chosen.name, done.held.effective);
    }
    Ok(())
}

fn unload(args: &Unload) -> Result<(), String> {
    present(&args.ifname)?;
    if args.id.is_none() && !args.all {
        return Err("Need prog ID or --all".into());
    }
    let mut hook = Kernel::new();
    if hook.attachments(Some(&args.ifname)).map_err(|e| e.to_string())?.is_empty() {
        return Err(format!("No XDP program loaded on {}", args.ifname));
    }
    hook.detach(&args.ifname, args.id.map(ProgId)).map(drop).map_err(|e| refused("xdp-loader", &e))
}

fn status(ifname: Option<&str>) -> Result<(), String> {
    if let Some(name) = ifname {
        present(name)?;
    }
    print::text(&format!("CURRENT XDP PROGRAM STATUS:\n\n{}\n", table(ifname)?));
    Ok(())
}

/// Interfaces and what is attached to them; behind the program that a chain hangs on its members, in their order.
pub(super) fn table(ifname: Option<&str>) -> Result<String, String> {
    let mut hook = Kernel::new();
    let row = |cells: [&str; 7]| {
        let [interface, priority, name, mode, id, tag, actions] = cells;
        let line = format!("{interface:<16} {priority:<5} {name:<17} {mode:<8} {id:<4} {tag:<17} {actions}");
        format!("{}\n", line.trim_end())
    };
    let mut out = row(["Interface", "Prio", "Program name", "Mode", "ID", "Tag", "Chain actions"]);
    out.push_str(&format!("{}\n", "-".repeat(86)));
    let hex = |tag: &[u8]| tag.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let all = devices().map_err(|e| e.to_string())?;
    for device in all.iter().filter(|d| ifname.is_none_or(|name| name == d.name)) {
        let attached = hook.attachments(Some(&device.name)).map_err(|e| e.to_string())?;
        let roots: Vec<(XdpMode, u32)> = device.attached().collect();
        if roots.is_empty() {
            out.push_str(&row([&device.name, "", "<No XDP program loaded!>", "", "", "", ""]));
        }
        for (mode, id) in roots {
            let mode = if mode == XdpMode::Generic { "skb" } else { mode.name() };
            // It may have gone since it was listed.
            let Ok(root) = KernelProg::by_id(id).and_then(|p| p.info()) else { continue };
            let name = shown(&root.name);
            out.push_str(&row([&device.name, "", name, mode, &id.to_string(), &hex(&root.tag), ""]));
        }
        for AttachmentInfo { program, priority, chain_on, .. } in &attached {
            let Some(priority) = priority else { continue };
            let (priority, id, tag) = (priority.to_string(), program.id.0.to_string(), hex(&program.tag));
            let actions = chain_on.map_or_else(String::new, actions);
            out.push_str(&row([" =>", &priority, &program.name, "", &id, &tag, &actions]));
        }
    }
    Ok(out)
}

/// The name of what is attached. What our chain hangs on has the name here of what does the same for this tool: scripts look for it.
fn shown(name: &str) -> &str {
    if name == xway_kernel::CHAIN_ROOT { "xdp_dispatcher" } else { name }
}

/// Numbers and names of the programs on an interface, those of a chain behind the one that it hangs on.
pub(super) fn programs(ifname: &str) -> Result<Vec<(u32, String)>, String> {
    let device = super::device(ifname)?;
    let mut found = Vec::new();
    for (_, id) in device.attached() {
        let info = KernelProg::by_id(id).and_then(|p| p.info()).map_err(|e| e.to_string())?;
        found.push((id, shown(&info.name).to_owned()));
    }
    let attached = Kernel::new().attachments(Some(ifname)).map_err(|e| e.to_string())?;
    let members = attached.into_iter().filter(|a| a.priority.is_some());
    found.extend(members.map(|a| (a.program.id.0, a.program.name)));
    Ok(found)
}

/// What the kernel says of the driver, by the names of its header.
fn features(ifname: &str) -> Result<(), String> {
    present(ifname)?;
    let device = super::device(ifname)?;
    if driver_features(device.ifindex).map_err(|e| e.to_string())?.is_none() {
        return Err("the running kernel cannot be asked what drivers can do: Linux 6.3 and later can".into());
    }
    let found = Kernel::new().features(ifname).map_err(|e| e.to_string())?;
    let mut out = String::new();
    for name in xway_kernel::XDP_FEATURES {
        let has = if found.xdp.iter().any(|f| f == name) { "yes" } else { "no" };
        let name = format!("NETDEV_XDP_ACT_{}:", name.to_uppercase().replace('-', "_"));
        out.push_str(&format!("{name:<32}{has}\n"));
    }
    print::text(&out);
    Ok(())
}

fn actions(set: Verdicts) -> String {
    let names = Verdict::ALL.iter().filter(|v| set.has(**v as u32));
    names.map(|v| format!("XDP_{}", v.name())).collect::<Vec<_>>().join(",")
}
