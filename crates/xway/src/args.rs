//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::args_bench::Bench;
use crate::args_data as data;
use crate::args_filter as filter;
use crate::args_kernel as kernel;
use crate::args_machine as machine;
use crate::args_service as service;
use crate::args_tools as tools;
use crate::args_watch as watch;

/// Run XDP programs, as clang compiles them for Linux, in user space.
#[derive(Parser, Debug)]
#[command(name = "xway", version, propagate_version = true, arg_required_else_help = true, after_help = MAIN_HELP)]
pub struct Cli {
    /// Print one JSON document (with a schema_version) instead of text
    #[arg(short = 'j', long, global = true)]
    pub json: bool,
    /// JSON, indented also in a pipe; before the verb, or anywhere behind prog, map, link and btf
    #[arg(short = 'p', long)]
    pub pretty: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const MAIN_HELP: &str = "\
Examples:
  xway run prog.o -i capture.pcapng           # verdicts over a capture
  xway run prog.o -i packet:eth0 --timeout 5  # verdicts over live traffic (on copies of it)
  xway prog run prog.o --data-in packet.bin   # one packet through the program
  xway prog inspect prog.o --insns --source   # what is in the object
  xway verify prog.o                          # is it safe, and if not, why
  xway test tests.toml                        # unit tests for a program
  xway load eth0 prog.o                       # the same program in the kernel
  xway lab up                                 # a network to try it on
  xway doctor                                 # what stands in the way on this machine

Exit codes: 0 done, 1 the answer is no, 2 usage, 3 input could not be read, 4 a privilege or device is missing.";

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program over the packets of a capture or an interface and count verdicts
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Run a program over one packet, or look into an object
    #[command(subcommand)]
    Prog(Prog),
    /// Prove that programs are safe to run, or say why they are not
    #[command(after_help = VERIFY_HELP)]
    Verify(Verify),
    /// Run unit tests for programs, written in TOML
    #[command(after_help = TEST_HELP)]
    Test(Test),
    /// Run the engine as a service, in the foreground
    #[command(after_help = service::UP_HELP)]
    Up(service::Up),
    /// End the service
    #[command(after_help = service::DOWN_HELP)]
    Down(service::Down),
    /// Put another executable in the place of the running service
    #[command(after_help = service::UPGRADE_HELP)]
    Upgrade(service::Upgrade),
    /// Make the service's engine what a configuration says
    #[command(after_help = service::APPLY_HELP)]
    Apply(service::Apply),
    /// Show what applying a configuration would do
    #[command(after_help = service::DIFF_HELP)]
    Diff(service::Diff),
    /// Attach a program to an interface, in the kernel or in the service's engine
    #[command(after_help = kernel::LOAD_HELP)]
    Load(kernel::Load),
    /// Take programs away from an interface
    #[command(after_help = kernel::UNLOAD_HELP)]
    Unload(kernel::Unload),
    /// Show which programs are attached to which interfaces
    #[command(after_help = kernel::STATUS_HELP)]
    Status(kernel::Status),
    /// Show what the driver of an interface can do
    #[command(after_help = kernel::FEATURES_HELP)]
    Features(kernel::Features),
    /// Show what a port counts in a second, and only what changes
    #[command(after_help = kernel::STATS_HELP)]
    Stats(kernel::Stats),
    /// Serve AF_XDP-style sockets to applications, and show them
    #[command(subcommand)]
    Sock(data::Sock),
    /// Choose which queue of a port packets go to: ethtool's rules, and the hash
    #[command(after_help = data::STEER_HELP)]
    Steer(data::Steer),
    /// Show packets of a port with what became of them, or write them to a capture
    #[command(after_help = watch::DUMP_HELP)]
    Dump(watch::Dump),
    /// Show what goes wrong with packets, and how much is counted in a second
    #[command(after_help = watch::MONITOR_HELP)]
    Monitor(watch::Monitor),
    /// Show ports, queues, programs, verdicts and losses on a terminal, as they change
    #[command(after_help = watch::TOP_HELP)]
    Top(watch::Top),
    /// Remove pins that are left behind: of attachments whose interface has gone, or in the service of what nobody uses
    #[command(after_help = kernel::CLEAN_HELP)]
    Clean(kernel::Clean),
    /// Show and change maps, in the kernel or in the service's engine
    #[command(subcommand)]
    Map(kernel::Map),
    /// Show, pin and detach links in the kernel
    #[command(subcommand)]
    Link(kernel::Link),
    /// Print type information of objects and of the kernel
    #[command(subcommand)]
    Btf(kernel::Btf),
    /// Let packets that the host would forward leave in the hook, by the host's own routes
    #[command(subcommand)]
    Forward(tools::Forward),
    /// Drop packets from listed senders and to listed ports
    #[command(subcommand)]
    Filter(filter::Filter),
    /// Send packets, and count what arrives
    #[command(after_help = tools::TRAFFICGEN_HELP)]
    Trafficgen(tools::Trafficgen),
    /// Measure programs, maps and this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Say what stands in the way of XDP on this machine, and the command that mends it
    #[command(after_help = machine::DOCTOR_HELP)]
    Doctor(machine::Doctor),
    /// Make and remove networks to try programs on
    #[command(subcommand)]
    Lab(machine::Lab),
    /// Print the completions of a shell
    #[command(after_help = machine::COMPLETIONS_HELP)]
    Completions(machine::Completions),
    /// Print the manual, or write a page for every verb
    #[command(after_help = machine::MAN_HELP)]
    Man(machine::Man),
    /// Run instructions from standard input: the plug-in protocol of the public BPF conformance runner
    #[command(after_help = CONFORMANCE_HELP)]
    Conformance(Conformance),
}

/// Verbs about one program.
#[derive(Subcommand, Debug)]
pub enum Prog {
    /// Run a program over one packet, as BPF_PROG_TEST_RUN does: OBJ, or one that is loaded on a hook
    #[command(after_help = PROG_RUN_HELP)]
    Run(ProgRun),
    /// Show sections, programs, maps, helpers, needs and disassembly of an object
    #[command(after_help = INSPECT_HELP)]
    Inspect(Inspect),
    /// Show a program as it runs: instructions, intermediate form, or machine code; from its object with source lines
    #[command(after_help = DUMP_HELP)]
    Dump(Dump),
    /// List programs of a hook, or show some of them: [id N | name NAME | tag TAG | pinned PATH]
    #[command(visible_alias = "list", after_help = kernel::PROG_SHOW_HELP)]
    Show(kernel::ShowRest),
    /// Pin a program, in the BPF file system or in the service: WHICH PATH
    #[command(after_help = kernel::PROG_PIN_HELP)]
    Pin(kernel::HookRest),
    /// Take a program's pin away: PATH
    #[command(after_help = kernel::PROG_UNPIN_HELP)]
    Unpin(kernel::HookRest),
    /// Count how often a program runs and how long a run takes: WHICH [duration SECS]
    #[command(after_help = kernel::PROG_PROFILE_HELP)]
    Profile(kernel::HookRest),
    /// Print the kernel's trace log, where bpf_printk writes: [count N] [timeout SECS]
    #[command(after_help = kernel::PROG_TRACELOG_HELP)]
    Tracelog(kernel::HookRest),
}

/// Which program of which object.
#[derive(Args, Debug, Clone)]
pub struct Select {
    /// Object file that clang made with `-target bpf`
    #[arg(value_name = "OBJ")]
    pub object: PathBuf,
    /// Which of its programs.
    #[command(flatten)]
    pub part: Part,
}

/// Which program of an object.
#[derive(Args, Debug, Clone, Default)]
pub struct Part {
    /// Program by the name of its function; needed when the object has several
    #[arg(short = 'n', long, value_name = "PROG")]
    pub name: Option<String>,
    /// Program by its section
    #[arg(short = 's', long, value_name = "SECTION")]
    pub section: Option<String>,
    /// Resolve CO-RE relocations against these types instead of /sys/kernel/btf/vmlinux; `none`: the object's own
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
}

/// What a program runs with.
#[derive(Args, Debug, Clone)]
pub struct Environment {
    /// Fill a map before the run from a JSON file of [{"key": …, "value": …}, …], as --dump-maps prints it
    #[arg(long = "map", value_name = "NAME=FILE.json")]
    pub maps: Vec<String>,
    /// Print what the maps hold after the run
    #[arg(long)]
    pub dump_maps: bool,
    /// Instructions that one packet may take before the program is stopped
    #[arg(long, value_name = "INSNS")]
    pub budget: Option<u64>,
    /// How the program is executed
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,
    /// How machine code is made, and who is told.
    #[command(flatten)]
    pub code: MachineCode,
    /// Do not verify the program: the checked interpreter runs it and stops it at the first wrong access
    #[arg(long)]
    pub checked: bool,
}

/// How machine code is made, and who is told.
#[derive(Args, Debug, Clone)]
pub struct MachineCode {
    /// Tell `perf` the names of the machine code's functions, in /tmp/perf-PID.map
    #[arg(long)]
    pub perf_map: bool,
    /// Machine code fetches nothing ahead for maps that outgrow the cache
    #[arg(long)]
    pub no_stage: bool,
    /// Write machine code with its source lines to DIR/jit-PID.dump, for `perf record -k 1` and `perf inject --jit`
    #[arg(long, value_name = "DIR")]
    pub jitdump: Option<PathBuf>,
}

/// Ways to execute a program.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Machine code for `run` where the program compiles, else the checked interpreter
    Auto,
    /// The checked interpreter
    Interp,
    /// Machine code; the interpreter runs what cannot be compiled, and the reason is said
    Jit,
}

impl Engine {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Auto => "auto",
            Engine::Interp => "interp",
            Engine::Jit => "jit",
        }
    }
}

/// How much memory is taken.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// For throughput
    Standard,
    /// For devices with little memory
    Small,
}

impl Run {
    /// How much memory packets take.
    pub fn memory(&self) -> crate::ports::Memory {
        let profile = match self.profile {
            Profile::Standard => xway_engine::Profile::Standard,
            Profile::Small => xway_engine::Profile::Small,
        };
        let chunk_size = self.chunk.as_deref().and_then(|bytes| bytes.parse().ok());
        crate::ports::Memory { profile, chunk_size, shared: self.xsk.is_some() }
    }
}

/// `xway run`
#[derive(Args, Debug)]
pub struct Run {
    /// Which program.
    #[command(flatten)]
    pub select: Select,
    /// Where packets come from: a capture (FILE.pcap, FILE.pcapng, also .gz and .zst, pcap:FILE, pcap:- for standard
    /// input; pcap:A,B?loop=3&speed=1 plays two in turn, three times, at the pace of their timestamps), an interface
    /// (afxdp:IFACE?queues=N takes its packets, packet:IFACE copies them), a TAP device (tap:NAME) or memory
    /// (sim:NAME?flows=N&size=BYTES&pattern=scan|uniform|zipf&count=N). With frags=yes packets that are longer than a frame
    /// come in several buffers, for programs of SEC("xdp.frags"); not on packet:
    #[arg(short = 'i', long, value_name = "PORT")]
    pub input: String,
    /// Puts something around the input, the first innermost: fault?loss=P&duplicate=P&corrupt=P&reorder=P&no-frame=P&seed=N (P
    /// from 0 to 1), rate?rx=PPS&tx=PPS, trace (a line for each packet on standard error), tee:FILE (a capture)
    #[arg(long, value_name = "WRAPPER")]
    pub wrap: Vec<String>,
    /// Where packets go: FILE.pcapng gets all of them with verdict, queue and packet id; FILE.pcap gets those that
    /// leave (PASS, TX, REDIRECT)
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where packets go that PASS: packet:IFACE (out of this interface: the program then stands between the two and its
    /// verdicts rule, in this direction), tap:NAME (into this host's stack, whose answers leave by the input port),
    /// pcap:FILE, or drop. Without it they go to the port's own stack side
    #[arg(long, alias = "pass-to", value_name = "PORT")]
    pub pass: Option<String>,
    /// A capture beside the run.
    #[command(flatten)]
    pub beside: watch::Beside,
    /// Show on the terminal what is counted while it runs
    #[arg(long)]
    pub top: bool,
    /// While a port's queue is busy sending, up to so many packets wait for one doorbell; without it each burst has one
    #[arg(long, value_name = "PACKETS", default_value_t = 0)]
    pub tx_batch: u32,
    /// At most so many bytes wait in a port's queue to be sent; what is beyond is dropped and counted
    #[arg(long, value_name = "BYTES")]
    pub tx_limit: Option<u64>,
    /// Receive at most so many packets at once: fewer fit a small cache, more share what a burst costs; without it what the
    /// profile says
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub burst: Option<u32>,
    /// How much memory packets and rings take: small is for devices with little of it (bursts of 16, 256 chunks of 2 KiB)
    #[arg(long, value_enum, default_value_t = Profile::Standard)]
    pub profile: Profile,
    /// Bytes of a chunk of packet memory: 4096, one packet a page, or 2048, two; without it what the profile says
    #[arg(long, value_name = "BYTES", value_parser = ["2048", "4096"])]
    pub chunk: Option<String>,
    /// Packets stay as they came: a program that is not proved to leave them alone is refused, with the reason
    #[arg(long)]
    pub read_only: bool,
    /// Serve AF_XDP-style sockets at this path while it runs: applications bind to the input's queues, and the program finds
    /// them in its XSKMAPs, each at the number of its queue
    #[arg(long, value_name = "PATH")]
    pub xsk: Option<PathBuf>,
    /// The group that may connect there, beside the owner: mode 0660; without it the process's own
    #[arg(long, value_name = "GROUP", requires = "xsk")]
    pub xsk_group: Option<String>,
    /// Stop after this many packets
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub timeout: Option<std::time::Duration>,
    /// What the program runs with.
    #[command(flatten)]
    pub environment: Environment,
}

/// `xway prog run`
#[derive(Args, Debug)]
pub struct ProgRun {
    /// Object file, or a program on a hook: N, id N, name NAME, tag TAG, pinned PATH. bpftool's words may follow: data_in FILE,
    /// data_out FILE, ctx_in FILE, ctx_out FILE, repeat N
    #[arg(value_name = "OBJ|WHICH", required = true)]
    pub words: Vec<String>,
    /// Which program of the object.
    #[command(flatten)]
    pub part: Part,
    /// Whose hook: an object is loaded there for the run; a program that is loaded is the kernel's without it
    #[command(flatten)]
    pub place: kernel::Hook,
    /// The packet: a file with its bytes, `hex:…` or `base64:…`
    #[arg(long, value_name = "X")]
    pub data_in: Option<String>,
    /// Write the packet after the run to this file
    #[arg(long, value_name = "FILE")]
    pub data_out: Option<PathBuf>,
    /// The context (struct xdp_md): a file with its bytes, `hex:…`, `base64:…`, or a .json file with its fields
    #[arg(long, value_name = "X")]
    pub ctx_in: Option<String>,
    /// Write the context after the run to this file
    #[arg(long, value_name = "FILE")]
    pub ctx_out: Option<PathBuf>,
    /// How often to run; the duration is the mean, every run gets the packet of the one before, as Linux does it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// What the program runs with.
    #[command(flatten)]
    pub environment: Environment,
}

/// `xway prog inspect`
#[derive(Args, Debug)]
pub struct Inspect {
    /// Which program; all of them when none is chosen.
    #[command(flatten)]
    pub select: Select,
    /// Show instructions
    #[arg(long)]
    pub insns: bool,
    /// Show the C source lines between the instructions (the object must have been compiled with -g)
    #[arg(long)]
    pub source: bool,
}

/// `xway prog dump`
#[derive(Args, Debug)]
pub struct Dump {
    /// What to show
    #[arg(value_name = "FORM")]
    pub form: DumpForm,
    /// Object file, or a program on a hook: N, id N, name NAME, tag TAG, pinned PATH; behind it
    /// opcodes (the bytes of each instruction), linum (file and line of each source line), visual (the ways through instructions as
    /// a graph), or file PATH (the bytes alone)
    #[arg(value_name = "OBJ|WHICH", required = true)]
    pub words: Vec<String>,
    /// Which program of the object.
    #[command(flatten)]
    pub part: Part,
    /// Whose hook.
    #[command(flatten)]
    pub place: kernel::Hook,
    /// ir and jited of an object file: compile without this pass (may be given more than once); docs/design-notes/jit.md has the
    /// names
    #[arg(long, value_name = "PASS")]
    pub without: Vec<String>,
}

/// The forms of a program.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpForm {
    /// Instructions after relocation, as the interpreter runs them
    Xlated,
    /// Cranelift's intermediate form, before it is optimised, and the assembly made from it
    Ir,
    /// Machine code as assembly; of a program in a chain of the engine first the function that the whole chain is
    Jited,
}

impl DumpForm {
    /// As in arguments.
    pub const fn name(self) -> &'static str {
        match self {
            DumpForm::Xlated => "xlated",
            DumpForm::Ir => "ir",
            DumpForm::Jited => "jited",
        }
    }
}

/// `xway verify`
#[derive(Args, Debug)]
pub struct Verify {
    /// Object files that clang made with `-target bpf`
    #[arg(value_name = "OBJ", required_unless_present = "raw", conflicts_with = "raw")]
    pub objects: Vec<PathBuf>,
    /// Verify instructions instead of objects: a JSON object on each line of this file (`-`: standard input), a JSON object on
    /// each line of the output
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["name", "verbose", "btf"])]
    pub raw: Option<PathBuf>,
    /// Verify only the program with this function name
    #[arg(short = 'n', long, value_name = "PROG")]
    pub name: Option<String>,
    /// Print the log of states in the format of Linux's verifier
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Write the first packet that shows a refusal to this capture; `xway run OBJ --checked -i pcap:FILE` replays it
    #[arg(short = 'w', long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Instructions that the analysis of one program may visit
    #[arg(long, value_name = "N")]
    pub budget: Option<u64>,
    /// Refuse memory accesses that are not aligned, as machines that cannot do them would have it
    #[arg(long)]
    pub strict_alignment: bool,
    /// Resolve CO-RE relocations against these types instead of /sys/kernel/btf/vmlinux; `none`: the object's own
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
}

/// `xway test`
#[derive(Args, Debug)]
pub struct Test {
    /// Test files
    #[arg(value_name = "FILE.toml", required = true)]
    pub files: Vec<PathBuf>,
    /// Run only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Print results as TAP (Test Anything Protocol, version 14)
    #[arg(long)]
    pub tap: bool,
    /// Write results as JUnit XML to this file
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Do not verify the programs: the checked interpreter runs them and stops them at the first wrong access
    #[arg(long)]
    pub checked: bool,
    /// Instructions that one packet may take before the program is stopped
    #[arg(long, value_name = "INSNS")]
    pub budget: Option<u64>,
    /// How the programs are executed
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,
}

/// `xway conformance`
#[derive(Args, Debug)]
pub struct Conformance {
    /// Memory that r1 points to, as hexadecimal bytes separated by spaces; absent or empty: none
    #[arg(value_name = "MEMORY", allow_hyphen_values = false)]
    pub memory: Option<String>,
    /// How to execute: in the checked interpreter, or verified and as machine code
    #[arg(long, value_enum, default_value_t = Engine::Interp)]
    pub engine: Engine,
    /// Instructions as hexadecimal bytes, instead of standard input
    #[arg(long, value_name = "HEX")]
    pub program: Option<String>,
    /// Standard input holds an ELF object, as hexadecimal bytes
    #[arg(long)]
    pub elf: bool,
    /// Say on standard error what was read
    #[arg(long)]
    pub debug: bool,
    /// Instructions that may be executed
    #[arg(long, value_name = "INSNS")]
    pub budget: Option<u64>,
    /// Further arguments: the runner passes an empty one when it has no options to pass
    #[arg(hide = true)]
    pub rest: Vec<String>,
}

pub fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let secs: f64 = text.parse().map_err(|_| "expected a number of seconds, as 5 or 0.5".to_string())?;
    std::time::Duration::try_from_secs_f64(secs).map_err(|_| "expected a number of seconds that is not negative".into())
}

const RUN_HELP: &str = "\
Examples:
  xway run count.o -i traffic.pcapng
  xway run count.o -n count_kinds -i traffic.pcap.gz -o verdicts.pcapng -j
  tcpdump -w - | xway run count.o -i pcap:-
  xway run filter.o -i packet:eth0 --count 1000 --map blocked=blocked.json --dump-maps
  xway run filter.o -i packet:eth0 --pass packet:eth1
  xway run filter.o -i packet:eth0 --dump d.pcapng --dump-verdict drop --dump-filter 'tcp port 80'
  xway run filter.o -i sim:load --top";

const PROG_RUN_HELP: &str = "\
Examples:
  xway prog run count.o --data-in packet.bin --data-out changed.bin
  xway prog run count.o --data-in hex:ffffffffffff0200000000010800 --dump-maps -j
  xway prog run count.o --data-in base64:////////AgAAAAABCAA= --ctx-in ctx.json --repeat 1000000
  xway prog run id 42 --data-in packet.bin --repeat 1000    # what the kernel has loaded
  xway prog run count.o --hook native --data-in packet.bin  # the same object in the kernel
  xway prog run name count_kinds --hook user data_in packet.bin repeat 10";

const INSPECT_HELP: &str = "\
Examples:
  xway prog inspect count.o
  xway prog inspect count.o -n count_kinds --insns --source";

const DUMP_HELP: &str = "\
Examples:
  xway prog dump jited count.o  # machine code between its source lines
  xway prog dump jited count.o --without lanes
  xway prog dump ir count.o -n count_kinds
  xway prog dump xlated count.o
  xway prog dump xlated id 42   # a program in the kernel, as its verifier has rewritten it
  xway prog dump xlated id 42 linum opcodes
  xway prog dump xlated id 42 visual  # a graph, for dot -Tsvg
  xway prog dump jited name drop_udp
  xway prog dump xlated name drop_udp --hook user
  xway prog dump jited name drop_udp --hook user  # in a chain first what the chain runs as
  xway prog dump jited id 42 file code.bin";

const VERIFY_HELP: &str = r#"Examples:
  xway verify count.o
  xway verify *.o -j
  xway verify count.o -n count_kinds -v
  echo '{"id": 1, "insns": "b700000002000000 9500000000000000"}' | xway verify --raw -"#;

const TEST_HELP: &str = "\
Examples:
  xway test tests/*.toml
  xway test tests/filter.toml --filter vlan --junit results.xml

The file format is described in docs/testing.md.";

const CONFORMANCE_HELP: &str = "\
Examples:
  echo 'b7 00 00 00 2a 00 00 00 95 00 00 00 00 00 00 00' | xway conformance                  # 2a
  echo '71 10 01 00 00 00 00 00 95 00 00 00 00 00 00 00' | xway conformance 'aa bb'          # bb
  xway conformance --engine jit --program 'b7 00 00 00 2a 00 00 00 95 00 00 00 00 00 00 00'  # 2a

The runner starts one executable: give it a script with the line  exec xway conformance \"$@\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn seconds_may_have_a_fraction() {
        assert_eq!(seconds("0.5"), Ok(std::time::Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("x").is_err() && seconds("inf").is_err());
    }
}
