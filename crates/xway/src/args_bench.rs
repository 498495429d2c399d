//! Arguments of `xway bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::Engine;

/// Verbs that measure.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Measure programs, ours and the kernel's side by side
    #[command(after_help = BENCH_PROG_HELP)]
    Prog(BenchProg),
    /// Measure single operations on maps: look-up, update, insert, delete, insert with eviction
    #[command(after_help = BENCH_MAP_HELP)]
    Map(BenchMap),
    /// Packets through the whole engine, every verdict in turn: one table, beside the kernel moving frames by itself
    #[command(after_help = BENCH_PATH_HELP)]
    Path(BenchPath),
    /// Drop packets at the hook: packets a second, beside the kernel moving frames by itself
    #[command(after_help = BENCH_DROP_HELP)]
    Drop(BenchForward),
    /// Pass packets to the stack side
    #[command(after_help = BENCH_PASS_HELP)]
    Pass(BenchForward),
    /// Send packets back out of the port that they came in on
    #[command(after_help = BENCH_TX_HELP)]
    Tx(BenchForward),
    /// Redirect packets to another port by its interface index
    #[command(after_help = BENCH_REDIRECT_HELP)]
    Redirect(BenchForward),
    /// Redirect packets to another port through a DEVMAP
    #[command(after_help = BENCH_REDIRECT_MAP_HELP)]
    RedirectMap(BenchForward),
    /// Redirect packets to CPU 0, and to worker 0, through a CPUMAP
    #[command(after_help = BENCH_REDIRECT_CPU_HELP)]
    RedirectCpu(BenchForward),
    /// Redirect packets to every other port of a DEVMAP
    #[command(after_help = BENCH_REDIRECT_MULTI_HELP)]
    RedirectMulti(BenchForward),
    /// Sockets that the engine serves: an application on another core drops every packet that comes
    #[command(after_help = BENCH_XSK_DROP_HELP)]
    XskDrop(BenchSockets),
    /// The same: the application sends packets that it makes
    #[command(after_help = BENCH_XSK_PUSH_HELP)]
    XskPush(BenchSockets),
    /// The same: the application sends back every packet that comes, with its addresses exchanged
    #[command(after_help = BENCH_XSK_FWD_HELP)]
    XskFwd(BenchSockets),
    /// One packet in flight, through the engine and back: median and percentiles, beside the bare rings
    #[command(after_help = BENCH_LATENCY_HELP)]
    Latency(BenchLatency),
    /// The same load on one worker and on one for each core: what a second worker adds
    #[command(after_help = BENCH_WORKERS_HELP)]
    Workers(BenchWorkers),
    /// Measure how a port's burst comes to its program: directly, through the dispatcher's tree, in a chain
    #[command(after_help = BENCH_DISPATCH_HELP)]
    Dispatch(BenchDispatch),
    /// `afxdp:` on a veth pair: drop, or send back, beside the kernel's native hook and AF_XDP used directly
    #[command(after_help = BENCH_WIRE_HELP)]
    Wire(BenchWire),
    /// The same packets dropped, or sent on, at each level of the machine: here, driver, tc, netfilter, routes, socket
    #[command(after_help = BENCH_LEVELS_HELP)]
    Levels(BenchLevels),
    /// Measure what programs that abort every packet can cost, and what listening and capturing cost
    #[command(after_help = BENCH_ABORTED_HELP)]
    Aborted(BenchMemory),
    /// Measure packet memory: fast, ring and slow path, returns from other cores, beside malloc
    #[command(after_help = BENCH_POOL_HELP)]
    Pool(BenchMemory),
    /// Measure rings: single and bulk, one core and two, one producer and many
    #[command(after_help = BENCH_RING_HELP)]
    Ring(BenchMemory),
    /// Measure how long it takes until a program is proved, ours and the kernel's load side by side
    #[command(after_help = BENCH_VERIFY_HELP)]
    Verify(BenchVerify),
    /// Measure how long it takes until a proved program is machine code, by size of programs
    #[command(after_help = BENCH_COMPILE_HELP)]
    Compile(BenchCompile),
    /// Measure what things cost on this machine: caches, atomics, calls, clocks, system calls, copies
    #[command(after_help = BENCH_MACHINE_HELP)]
    Machine(BenchMachine),
}

/// The value of `--cpus` where two cores work together.
fn two_cores(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "two numbers of cores, as in 0,1".to_owned();
    let (one, other) = text.split_once(',').ok_or_else(wrong)?;
    let core = |text: &str| text.trim().parse().map_err(|_| wrong());
    Ok((core(one)?, core(other)?))
}

/// `xway bench xsk-drop`, `xsk-push`, `xsk-fwd`
#[derive(Args, Debug)]
pub struct BenchSockets {
    /// Bytes of a packet, without the frame's checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=1500))]
    pub size: u32,
    /// Copy packets to and from the application's memory, as applications that are not trusted have it
    #[arg(long)]
    pub copy: bool,
    /// A program sends packets to the socket, through an XSKMAP; without it the queue is the socket's own
    #[arg(long)]
    pub program: bool,
    /// Packets in a round
    #[arg(long, value_name = "N", default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub count: u64,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Measure the kernel dropping live frames too, in turns
    #[arg(long, value_enum, value_name = "WHAT")]
    pub vs: Option<Versus>,
    /// Cores of the engine and of the application; the first and the last by default
    #[arg(long, value_name = "CPU,CPU", value_parser = two_cores)]
    pub cpus: Option<(u32, u32)>,
}

/// `xway bench latency`
#[derive(Args, Debug)]
pub struct BenchLatency {
    /// Bytes of the packet, without the frame's checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=1500))]
    pub size: u32,
    /// The worker sleeps between packets and is woken, instead of polling
    #[arg(long)]
    pub sleep: bool,
    /// Packets in a round, one after the other
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pub count: u64,
    /// Rounds; all packets count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Cores of the engine, and of who sends and receives; the first and the last by default
    #[arg(long, value_name = "CPU,CPU", value_parser = two_cores)]
    pub cpus: Option<(u32, u32)>,
}

/// `xway bench workers`
#[derive(Args, Debug)]
pub struct BenchWorkers {
    /// Bytes of a packet, without the frame's checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=3520))]
    pub size: u32,
    /// Milliseconds of a round
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub time: u64,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Cores, one for each worker; all by default
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pub cpus: Vec<u32>,
}

/// `xway bench map`
#[derive(Args, Debug)]
pub struct BenchMap {
    /// Types of maps
    #[arg(long = "type", value_enum, value_name = "TYPE", value_delimiter = ',',
          default_values_t = [BenchedMap::Array, BenchedMap::Hash, BenchedMap::LruHash, BenchedMap::LpmTrie])]
    pub types: Vec<BenchedMap>,
    /// Entries
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [10_000, 1_000_000],
          value_parser = clap::value_parser!(u32).range(16..=16_000_000))]
    pub entries: Vec<u32>,
    /// Bytes of a key, of types that leave a choice; 4 and 16 by default, of tries 8: four of the prefix length, the others the address
    #[arg(long = "key", value_name = "BYTES", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(4..=512))]
    pub keys: Vec<u32>,
    /// Measure the kernel too, from programs and through the system call
    #[arg(long, value_enum, value_name = "WHAT")]
    pub vs: Option<Versus>,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Instead: so many threads at the same time on one map, each on a core of its own, as programs use it
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with = "cpu",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Vec<u32>,
    /// Instead: what maps take in memory, for each element
    #[arg(long, conflicts_with_all = ["cpu", "threads"])]
    pub memory: bool,
    /// With --memory: bytes of a value
    #[arg(long = "value", value_name = "BYTES", value_delimiter = ',', default_values_t = [8, 64], requires = "memory",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub values: Vec<u32>,
    /// Print the table as Markdown, when all is measured
    #[arg(long)]
    pub markdown: bool,
}

/// Types of maps that are measured.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub enum BenchedMap {
    /// Array
    Array,
    /// Hash table
    Hash,
    /// Hash table that evicts what has not been used for long
    LruHash,
    /// Longest prefix match
    LpmTrie,
    /// Array with a value for each CPU
    PercpuArray,
    /// Hash table with a value for each CPU
    PercpuHash,
    /// The same, evicting what has not been used for long
    LruPercpuHash,
}

/// `xway bench drop` and its siblings: the options of `xdp-bench`
#[derive(Args, Debug)]
pub struct BenchForward {
    /// What the program does with a packet first; by default swap-macs for what is sent, no-touch for the rest
    #[arg(short = 'p', long = "packet-operation", value_enum, value_name = "ACTION")]
    pub operation: Option<PacketOperation>,
    /// How the program reaches the packet: in place (dpa) or by helpers
    #[arg(short = 'l', long = "load-mode", value_enum, value_name = "MODE", default_value_t = LoadMode::Dpa)]
    pub load: LoadMode,
    /// Show what each queue received
    #[arg(short = 'r', long = "rxq-stats")]
    pub rxq_stats: bool,
    /// Show losses by cause and what the pool did
    #[arg(short = 'e', long = "extended")]
    pub extended: bool,
    /// Show where our side's time goes
    #[arg(long)]
    pub breakdown: bool,
    /// redirect-cpu: measure our side also with each packet's goal looked up, not that of packets in a row once, in turns
    #[arg(long)]
    pub techniques: bool,
    /// Packets that our port receives at a time, at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub burst: u32,
    /// Bursts of 1, 2, 4, 8, 16, 32 and 64 packets, in one table
    #[arg(long, conflicts_with_all = ["burst", "breakdown", "extended", "rxq_stats"])]
    pub sweep: bool,
    /// Print the table of --sweep as Markdown
    #[arg(long, requires = "sweep")]
    pub markdown: bool,
    /// A filter looks its sender up in a table of 50,000 addresses: drop, where the packet comes in; redirect-cpu, on the other worker
    #[arg(long)]
    pub filter: bool,
    /// Flows that the packets belong to
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub flows: u32,
    /// Bytes of a packet, without the frame's checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=3520))]
    pub size: u32,
    /// Order of the flows
    #[arg(long, value_enum, default_value_t = FlowPattern::Scan)]
    pub pattern: FlowPattern,
    /// Play the packets of this capture instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["flows", "size", "pattern"])]
    pub pcap: Option<PathBuf>,
    /// Packets in a round
    #[arg(long, value_name = "N", default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub count: u64,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Measure the kernel too, in turns
    #[arg(long, value_enum, value_name = "WHAT")]
    pub vs: Option<Versus>,
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
}

/// `xway bench path`
#[derive(Args, Debug)]
pub struct BenchPath {
    /// Bytes of a packet, without the frame's checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=3520))]
    pub size: u32,
    /// Packets in a round
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub count: u64,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Measure the kernel too, in turns
    #[arg(long, value_enum, value_name = "WHAT")]
    pub vs: Option<Versus>,
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Print the table as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// What a program does with a packet.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketOperation {
    /// Nothing
    NoTouch,
    /// Reads its EtherType
    ReadData,
    /// Looks at its IP header
    ParseIp,
    /// Lets its addresses change places
    SwapMacs,
}

/// How a program reaches the packet.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadMode {
    /// In place
    Dpa,
    /// With bpf_xdp_load_bytes and bpf_xdp_store_bytes
    LoadBytes,
}

/// `xway bench pool`, `xway bench ring`
#[derive(Args, Debug)]
pub struct BenchMemory {
    /// Packets, frames or entries in a round
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    pub count: u64,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Core of the owner; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
}

/// `xway bench dispatch`
#[derive(Args, Debug)]
pub struct BenchDispatch {
    #[command(flatten)]
    pub size: BenchMemory,
    /// Print the tables as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// `xway bench wire`
#[derive(Args, Debug)]
pub struct BenchWire {
    /// What is done with packets
    #[arg(value_enum, value_name = "TASK", default_value_t = WireWork::Drop)]
    pub task: WireWork,
    /// Bytes of a packet, without the frame's checksum
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(60..=1500))]
    pub size: u32,
    /// Milliseconds of each side's turn
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub time: u32,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Cores of the sender and of the worker; the first and the last by default
    #[arg(long, value_name = "CPU,CPU", value_parser = two_cores)]
    pub cpus: Option<(u32, u32)>,
    /// Print the table as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// What `xway bench wire` does with packets.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireWork {
    /// They are dropped where they come in
    Drop,
    /// They go back with their addresses exchanged
    Forward,
}

/// `xway bench levels`
#[derive(Args, Debug)]
pub struct BenchLevels {
    /// What becomes of the packets
    #[arg(value_enum, value_name = "TASK", default_value_t = LevelTask::Drop)]
    pub task: LevelTask,
    /// Packets in a round
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub count: u64,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Print the table as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// What becomes of packets at each level.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LevelTask {
    /// They are dropped
    Drop,
    /// They leave by another interface
    Redirect,
}

/// `xway bench verify`
#[derive(Args, Debug)]
pub struct BenchVerify {
    /// Object files; without any, the built-in suite
    #[arg(value_name = "OBJ")]
    pub objects: Vec<PathBuf>,
    /// Programs that make an analysis work: many paths, deep loops, wide joins, a million instructions
    #[arg(long)]
    pub hard: bool,
    /// Measure the kernel's load too, in turns
    #[arg(long, value_enum, value_name = "WHAT")]
    pub vs: Option<Versus>,
    /// Rounds at most; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Lines that are printed, those that took longest
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub top: usize,
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
}

/// `xway bench compile`
#[derive(Args, Debug)]
pub struct BenchCompile {
    /// Object files; without any, the built-in suite
    #[arg(value_name = "OBJ")]
    pub objects: Vec<PathBuf>,
    /// Rounds at most; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Print the sums by size as a Markdown table
    #[arg(long)]
    pub markdown: bool,
}

/// `xway bench machine`
#[derive(Args, Debug)]
pub struct BenchMachine {
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// Print the table as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// `xway bench prog`
#[derive(Args, Debug)]
pub struct BenchProg {
    /// Object files, whose maps begin as their objects describe them, and with what --fill puts into them; without any, a built-in suite
    #[arg(value_name = "OBJ")]
    pub objects: Vec<PathBuf>,
    /// Which of the built-in suites
    #[arg(long, value_enum, default_value_t = Suite::Programs, conflicts_with = "objects")]
    pub suite: Suite,
    /// Only cases of the suite whose name contains this (of objects: programs); may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub filter: Vec<String>,
    /// Only list the cases
    #[arg(long)]
    pub list: bool,
    /// Measure the kernel too, in turns, on the same bytecode and the same packets
    #[arg(long, value_enum, value_name = "WHAT")]
    pub vs: Option<Versus>,
    /// Flows that the packets belong to; each comes in a ring of at most 4,194,304 packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub flows: Option<u32>,
    /// Entries of the case's table; of an object, of its only hash table or trie, or of the map NAME; may be given more than once
    #[arg(long, value_name = "[NAME=]N", value_parser = table_size)]
    pub table: Vec<TableSize>,
    /// Fill a map of the objects, on both sides, before they are measured: from a JSON file as `map dump -j` prints it, or with a key for
    /// each flow of the packets (`flows`, `flows:VALUE`); may be given more than once
    #[arg(long, visible_alias = "map", value_name = "NAME=FILE.json|flows")]
    pub fill: Vec<String>,
    /// Order of the flows
    #[arg(long, value_enum)]
    pub pattern: Option<FlowPattern>,
    /// Rounds; medians over them are shown
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=9_999))]
    pub rounds: u32,
    /// Core to run on; the last one by default
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
    /// How our side executes the program
    #[arg(long, value_enum, default_value_t = Engine::Jit)]
    pub engine: Engine,
    /// Measure also with each pass of the compiler off in turn, with all of them off, and interpreted
    #[arg(long, conflicts_with = "engine")]
    pub techniques: bool,
    /// Read counters too: instructions, cycles, cache misses where the processor has them, page faults and switches of threads
    #[arg(long)]
    pub counters: bool,
    /// Draw the table as a picture: SVG, or PNG where the name ends so
    #[arg(long, value_name = "FILE.svg|png")]
    pub plot: Option<PathBuf>,
    /// Print the table as Markdown, when all is measured
    #[arg(long)]
    pub markdown: bool,
}

/// What is built in.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// What programs do: parsing, tables, checksums, balancing
    Programs,
    /// Helpers that none of these calls, each in a program that does little else
    Helpers,
}

/// An argument of `--table`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSize {
    /// Map; none: the only one that it can be about.
    pub map: Option<String>,
    /// Entries.
    pub entries: u32,
}

fn table_size(text: &str) -> Result<TableSize, String> {
    let (map, number) = match text.rsplit_once('=') {
        Some(("", _)) => return Err("expected N or NAME=N".into()),
        Some((map, number)) => (Some(map.to_owned()), number),
        None => (None, text),
    };
    let entries = number.parse().ok().filter(|n| *n > 0);
    let entries = entries.ok_or_else(|| format!("{number}: expected a number of entries from 1 to {}", u32::MAX))?;
    Ok(TableSize { map, entries })
}

/// Whom we are compared with.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versus {
    /// The running kernel (needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root)
    Kernel,
}

/// Orders of flows.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowPattern {
    /// Always the same
    Single,
    /// Drawn at random
    Uniform,
    /// Few carry most packets
    Zipf,
    /// One after the other, again and again
    Scan,
}

const BENCH_PATH_HELP: &str = "\
Examples:
  xway bench path --vs kernel
  xway bench path --size 1500 --markdown

One verdict with all options: xway bench drop, pass, tx, redirect and their siblings.";

const BENCH_DROP_HELP: &str = "\
Examples:
  xway bench drop --vs kernel
  xway bench drop -p parse-ip -l load-bytes --flows 100000 --pattern zipf --breakdown
  xway bench drop --pcap capture.pcapng -r

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_PASS_HELP: &str = "\
Examples:
  xway bench pass
  xway bench pass -p parse-ip --vs kernel

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_TX_HELP: &str = "\
Examples:
  xway bench tx --vs kernel
  xway bench tx -p swap-macs -e --vs kernel -j

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_REDIRECT_HELP: &str = "\
Examples:
  xway bench redirect --vs kernel
  xway bench redirect -p no-touch --size 1500 -e

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_REDIRECT_MAP_HELP: &str = "\
Examples:
  xway bench redirect-map --vs kernel
  xway bench redirect-map --breakdown -j

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_REDIRECT_CPU_HELP: &str = "\
Examples:
  xway bench redirect-cpu
  xway bench redirect-cpu --burst 16 -e
  xway bench redirect-cpu --techniques --breakdown
  xway bench redirect-cpu --filter --sweep --vs kernel  # a filter on the other worker

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_REDIRECT_MULTI_HELP: &str = "\
Examples:
  xway bench redirect-multi --vs kernel
  xway bench redirect-multi --size 512 -e

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_XSK_DROP_HELP: &str = "\
Examples:
  xway bench xsk-drop --vs kernel
  xway bench xsk-drop --size 1500 --copy  # as an application that is not trusted has it
  xway bench xsk-drop --program           # through a program and its XSKMAP

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_XSK_PUSH_HELP: &str = "\
Examples:
  xway bench xsk-push --vs kernel
  xway bench xsk-push --cpus 0,1 -j

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_XSK_FWD_HELP: &str = "\
Examples:
  xway bench xsk-fwd --vs kernel
  xway bench xsk-fwd --size 1500 --rounds 9

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_LATENCY_HELP: &str = "\
Examples:
  xway bench latency
  xway bench latency --sleep  # what waking a worker costs

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_WORKERS_HELP: &str = "\
Examples:
  xway bench workers
  xway bench workers --cpus 0,1 --time 1000 -j

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_POOL_HELP: &str = "\
Examples:
  xway bench pool
  xway bench pool --count 100000 --rounds 1 -j

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_RING_HELP: &str = "\
Examples:
  xway bench ring
  xway bench ring --count 100000 --rounds 1 -j

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_DISPATCH_HELP: &str = "\
Examples:
  xway bench dispatch
  xway bench dispatch --rounds 9 -j
  xway bench dispatch --rounds 9 --markdown";

const BENCH_MACHINE_HELP: &str = "\
Examples:
  xway bench machine
  xway bench machine --cpu 0 -j

How it is measured, and what the columns mean: docs/performance.md.";

const BENCH_MAP_HELP: &str = "\
Examples:
  xway bench map --vs kernel
  xway bench map --type hash,lru_hash --entries 4000000 --key 16,40 --vs kernel -j
  xway bench map --memory --vs kernel -j";

const BENCH_ABORTED_HELP: &str = "\
Examples:
  xway bench aborted --rounds 9
  xway bench aborted --count 100000 --rounds 1 -j

What the rows mean: docs/performance.md.";

const BENCH_WIRE_HELP: &str = "\
Examples:
  xway bench wire
  xway bench wire forward --rounds 9 -j

Needs root; how it is measured: docs/performance.md.";

const BENCH_LEVELS_HELP: &str = "\
Examples:
  xway bench levels  # drop: this engine, XDP native and generic, tc, netfilter, routes, a socket
  xway bench levels redirect --rounds 9 -j

The kernel's levels need root; what the rows mean: docs/performance.md.";

const BENCH_VERIFY_HELP: &str = "\
Examples:
  xway bench verify --vs kernel
  xway bench verify --vs kernel /usr/lib/x86_64-linux-gnu/bpf/*.o -j
  xway bench verify --hard --vs kernel

What the columns mean: docs/verifier.md.";

const BENCH_COMPILE_HELP: &str = "\
Examples:
  xway bench compile
  xway bench compile filter.o --rounds 99 -j

What the columns mean: docs/performance.md.";

const BENCH_PROG_HELP: &str = "\
Examples:
  xway bench prog --list
  xway bench prog --vs kernel
  xway bench prog --vs kernel --filter hash --plot hash.svg
  xway bench prog --suite helpers --filter bpf_strncmp
  xway bench prog filter.o --vs kernel --flows 100000 --pattern zipf -j
  xway bench prog filter.o --vs kernel --fill blocked=blocked.json  # on both sides
  xway bench prog filter.o --vs kernel --flows 100000 --table blocked=200000 --fill blocked=flows

How it is measured, and what the columns mean: docs/performance.md.";
