//! The command line of the verbs about Linux's own hook.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::args::Select;

/// Where the program runs.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Native where the driver can, otherwise generic; says which and why
    Auto,
    /// In the driver
    Native,
    /// Behind the driver (also: skb)
    #[value(alias = "skb")]
    Generic,
    /// In the device (also: hw)
    #[value(alias = "hw")]
    Offload,
}

/// Whose hook.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The kernel's, native where the driver can, otherwise generic
    Auto,
    /// The kernel's, in the driver
    Native,
    /// The kernel's, behind the driver
    Generic,
    /// The engine's, in the service (xway up)
    User,
}

/// Whose hook, and where the service is asked.
#[derive(Args, Debug, Clone)]
pub struct Hook {
    /// Whose hook: the kernel's, or that of the engine in the service
    #[arg(long, value_enum)]
    pub hook: Option<Place>,
    /// Where the service is asked.
    #[command(flatten)]
    pub socket: crate::args_service::Socket,
}

/// `xway load`
#[derive(Args, Debug)]
pub struct Load {
    /// Interface, or a port of the service
    #[arg(value_name = "PORT")]
    pub interface: String,
    /// Which program.
    #[command(flatten)]
    pub select: Select,
    /// Where it runs
    #[arg(short = 'm', long, value_enum, default_value_t = Mode::Auto, conflicts_with = "hook")]
    pub mode: Mode,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
    /// Only for this receive queue, whose program wins over the port's (the engine's hook)
    #[arg(short = 'q', long, value_name = "QUEUE")]
    pub queue: Option<u32>,
    /// Share maps by name with what was loaded from this directory of the BPF file system before, and pin new ones there
    #[arg(short = 'p', long = "pin-path", value_name = "DIR")]
    pub pins: Option<PathBuf>,
    /// Replace the attached program if it has this id or name, in one step
    #[arg(long, value_name = "ID|NAME", conflicts_with = "force")]
    pub replace: Option<String>,
    /// Replace whatever is attached, a whole chain too, in whichever mode it is
    #[arg(long, conflicts_with_all = ["priority", "chain_on"])]
    pub force: bool,
    /// Run together with other programs of the interface, in this order: smaller numbers first (50 when only -A is given)
    #[arg(short = 'P', long = "priority", visible_alias = "prio", value_name = "N")]
    pub priority: Option<u32>,
    /// Verdicts behind which the next program runs, separated by commas (pass when only -P is given)
    #[arg(short = 'A', long, value_name = "VERDICTS", value_parser = xway_hook::Verdicts::parse)]
    pub chain_on: Option<xway_hook::Verdicts>,
}

/// `xway unload`
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["id", "all"])))]
pub struct Unload {
    /// Interface, or port of the service
    #[arg(value_name = "PORT")]
    pub interface: String,
    /// The program with this id
    #[arg(short = 'i', long, value_name = "ID")]
    pub id: Option<u32>,
    /// Every program
    #[arg(short = 'a', long)]
    pub all: bool,
    /// With --hook user: close the port too, also where no program is on it
    #[arg(long, requires = "all")]
    pub close: bool,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway status`
#[derive(Args, Debug)]
pub struct Status {
    /// Interface, or port of the service; all that have a program when none is named
    #[arg(value_name = "PORT")]
    pub interface: Option<String>,
    /// Only what concerns this receive queue: its own programs, or the port's where it has none
    #[arg(short = 'q', long, value_name = "QUEUE")]
    pub queue: Option<u32>,
    /// Measure for this long how often the programs run, and for how long; 0: not at all
    #[arg(long, value_name = "SECS", default_value = "0.25", value_parser = crate::args::seconds)]
    pub measure: std::time::Duration,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway clean`
#[derive(Args, Debug)]
pub struct Clean {
    /// Only say what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway features`
#[derive(Args, Debug)]
pub struct Features {
    /// Interface or port of the service, or an object: a path with a slash, or a name that ends in .o. All ports without it
    #[arg(value_name = "PORT|OBJ")]
    pub first: Option<String>,
    /// A program of this object: what it needs, and what the port lacks of that
    #[arg(value_name = "OBJ")]
    pub object: Option<PathBuf>,
    /// Program by the name of its function; needed when the object has several and there is a port
    #[arg(short = 'n', long, value_name = "PROG")]
    pub name: Option<String>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

impl Features {
    /// The port and the object that are asked about.
    pub fn sides(&self) -> (Option<&str>, Option<&Path>) {
        // Names of ports have a colon; those of interfaces have no slash.
        let is_object = |word: &str| !word.contains(':') && (word.contains('/') || word.ends_with(".o"));
        match (self.first.as_deref(), self.object.as_deref()) {
            (Some(word), None) if is_object(word) => (None, Some(Path::new(word))),
            sides => sides,
        }
    }
}

/// `xway stats`
#[derive(Args, Debug)]
pub struct Stats {
    /// Interface, or a port of the service
    #[arg(value_name = "PORT")]
    pub interface: String,
    /// How often, and how it is shown.
    #[command(flatten)]
    pub every: Every,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// How often counters are looked at, and how they are shown.
#[derive(Args, Debug, Clone)]
pub struct Every {
    /// Seconds between two looks
    #[arg(short = 'i', long, visible_alias = "sec", value_name = "SECS", default_value = "1",
        value_parser = crate::args::seconds)]
    pub interval: std::time::Duration,
    /// Look so often, then end; until Ctrl-C without it
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Also counters that did not change
    #[arg(long)]
    pub all: bool,
    /// A JSON document on a line of its own for every look, at once
    #[arg(long)]
    pub ndjson: bool,
}

/// Verbs about maps, in the kernel or in the service's engine. WHICH is an id, a name, or `id N`, `name NAME`, `pinned PATH`.
#[derive(Subcommand, Debug)]
pub enum Map {
    /// List maps, or show some of them
    #[command(visible_alias = "list", after_help = MAP_SHOW_HELP)]
    Show(ShowRest),
    /// Show all entries of a map
    #[command(after_help = MAP_DUMP_HELP)]
    Dump(HookRest),
    /// Show the entry at a key: WHICH key KEY
    #[command(after_help = MAP_LOOKUP_HELP)]
    Lookup(HookRest),
    /// Write an entry: WHICH [key KEY] value VALUE [any|exist|noexist]
    #[command(after_help = MAP_UPDATE_HELP)]
    Update(HookRest),
    /// Remove an entry: WHICH key KEY
    #[command(after_help = MAP_DELETE_HELP)]
    Delete(HookRest),
    /// Show the key behind a key, or the first: WHICH [key KEY]
    #[command(after_help = MAP_GETNEXT_HELP)]
    Getnext(HookRest),
    /// Pin a map in the BPF file system: WHICH PATH
    #[command(after_help = MAP_PIN_HELP)]
    Pin(HookRest),
    /// Take a map's pin away: PATH
    #[command(after_help = MAP_UNPIN_HELP)]
    Unpin(HookRest),
    /// Forbid writing from user space for ever: WHICH
    #[command(after_help = MAP_FREEZE_HELP)]
    Freeze(HookRest),
    /// Create a map and pin it: PATH type TYPE key BYTES value BYTES entries N name NAME [flags N] [inner_map WHICH]
    #[command(after_help = MAP_CREATE_HELP)]
    Create(HookRest),
    /// Put a value into a queue, a stack or a bloom filter: WHICH value VALUE
    #[command(visible_alias = "enqueue", after_help = MAP_PUSH_HELP)]
    Push(HookRest),
    /// Take the next value out of a queue or a stack: WHICH
    #[command(visible_alias = "dequeue", after_help = MAP_POP_HELP)]
    Pop(HookRest),
    /// Show the next value of a queue or a stack: WHICH
    #[command(after_help = MAP_PEEK_HELP)]
    Peek(HookRest),
    /// Print what programs write into a perf event array or a ring buffer: WHICH [count N] [timeout SECS]
    #[command(name = "event_pipe", after_help = MAP_EVENTS_HELP)]
    EventPipe(HookRest),
}

/// Words in bpftool's order.
#[derive(Args, Debug)]
pub struct Rest {
    /// WHICH, then what the verb takes
    #[arg(value_name = "WORDS", allow_negative_numbers = true)]
    pub words: Vec<String>,
}

/// The same, on any hook.
#[derive(Args, Debug)]
pub struct HookRest {
    /// WHICH, then what the verb takes
    #[arg(value_name = "WORDS", allow_negative_numbers = true)]
    pub words: Vec<String>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// `xway btf dump`
#[derive(Args, Debug)]
pub struct BtfDump {
    /// Whose types, then the form
    #[arg(value_name = "WORDS")]
    pub words: Vec<String>,
    /// The types in this file are continued by those that are printed (of a kernel module: the kernel's, found by themselves)
    #[arg(short = 'B', long, value_name = "FILE")]
    pub base_btf: Option<PathBuf>,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// Which objects are shown.
#[derive(Args, Debug)]
pub struct ShowRest {
    /// WHICH; all of them without it
    #[arg(value_name = "WORDS", allow_negative_numbers = true)]
    pub words: Vec<String>,
    /// Also where they are pinned: in any BPF file system that is mounted, or by which names in the service
    #[arg(short = 'f', long)]
    pub bpffs: bool,
    /// Whose hook.
    #[command(flatten)]
    pub place: Hook,
}

/// Verbs about attachments.
#[derive(Subcommand, Debug)]
pub enum Link {
    /// List links, or show some of them
    #[command(visible_alias = "list", after_help = LINK_SHOW_HELP)]
    Show(ShowRest),
    /// Detach, whoever else holds the link: WHICH
    #[command(after_help = LINK_DETACH_HELP)]
    Detach(LinkDetach),
    /// Pin a link in the BPF file system, so that it outlives whoever made it: WHICH PATH
    #[command(after_help = LINK_PIN_HELP)]
    Pin(HookRest),
    /// Take a link's pin away, which ends the attachment when nobody else holds the link: PATH
    #[command(after_help = LINK_UNPIN_HELP)]
    Unpin(HookRest),
}

/// `xway link detach`
#[derive(Args, Debug)]
pub struct LinkDetach {
    /// Words and hook.
    #[command(flatten)]
    pub rest: HookRest,
    /// Also where its interface is in another network namespace
    #[arg(long)]
    pub force: bool,
}

/// Verbs about type information.
#[derive(Subcommand, Debug)]
pub enum Btf {
    /// List type information in the kernel, with the programs and maps that have it: [id N]
    #[command(visible_alias = "list", after_help = BTF_SHOW_HELP)]
    Show(HookRest),
    /// Print types: id N | file PATH | prog WHICH | map WHICH [key | value | kv | all]; behind it format raw | c
    #[command(after_help = BTF_DUMP_HELP)]
    Dump(BtfDump),
}

pub const LOAD_HELP: &str = "\
Examples:
  xway load eth0 filter.o                    # native where the driver can; the output says
  xway load eth0 filter.o -n drop_udp -m generic
  xway load eth0 filter.o -p /sys/fs/bpf/filter --replace drop_udp
  xway load eth0 count.o -P 10 -A pass,drop  # before others, which run behind PASS and DROP
  xway load eth0 filter.o --hook user        # in the service's engine (xway up), on copies";

pub const UNLOAD_HELP: &str = "\
Examples:
  xway unload eth0 -a
  xway unload eth0 -i 42
  xway unload eth0 -a --hook user";

pub const STATUS_HELP: &str = "\
Examples:
  xway status
  xway status eth0 --measure 1              # packets per second over a second
  xway status packet:eth0 -q 1 --hook user  # what runs on queue 1";

pub const FEATURES_HELP: &str = "\
Examples:
  xway features eth0
  xway features eth0 -j
  xway features packet:eth0 --hook user
  xway features  # every interface
  xway features filter.o  # what its programs need of a port
  xway features eth0 filter.o  # what it needs and the driver lacks: exit code 1

What is missing makes attaching fail. What is absent the program can do without: it gets an error where it asks for it.";

pub const STATS_HELP: &str = "\
Examples:
  xway stats eth0  # what the interface counts in a second, and only what changes
  xway stats packet:eth0 --hook user --count 1 -j
  xway stats packet:eth0 --hook user -i 5 --ndjson

docs/counters.md says what each name means.";

pub const CLEAN_HELP: &str = "\
Examples:
  xway clean  # remove pins of attachments whose interface has gone
  xway clean --hook user --dry-run  # names in the service of what nobody uses
  xway clean --hook user  # take these away

In the service a map or program is used by an attachment, by a program or map that is used itself, or by who is connected and holds it.";

pub const PROG_SHOW_HELP: &str = "\
Examples:
  xway prog show              # every program in the kernel
  xway prog show id 42
  xway prog show name drop_udp -j
  xway prog show -f           # and where they are pinned
  xway prog show --hook user  # programs in the service's engine";

const MAP_SHOW_HELP: &str = "\
Examples:
  xway map show
  xway map show name blocked
  xway map show -f  # and where they are pinned
  xway map show -f --hook user";

const MAP_DUMP_HELP: &str = "\
Examples:
  xway map dump blocked
  xway map dump id 7 -j
  xway map dump pinned /config/filter/counts --hook user";

const MAP_LOOKUP_HELP: &str = "\
Examples:
  xway map lookup blocked key ip:10.0.0.1       # by a literal
  xway map lookup id 7 key 0x0a 0x00 0x00 0x01  # by bytes, as bpftool takes them
  xway map lookup id 7 key hex 0a 00 00 01";

const MAP_UPDATE_HELP: &str = "\
Examples:
  xway map update blocked key ip:10.0.0.1 value 1
  xway map update id 7 key hex 0a 00 00 01 value '{\"packets\": 0}' noexist";

const MAP_DELETE_HELP: &str = "\
Examples:
  xway map delete blocked key ip:10.0.0.1";

const MAP_GETNEXT_HELP: &str = "\
Examples:
  xway map getnext id 7
  xway map getnext id 7 key hex 0a 00 00 01";

const MAP_PIN_HELP: &str = "\
Examples:
  xway map pin blocked /sys/fs/bpf/blocked";

const MAP_UNPIN_HELP: &str = "\
Examples:
  xway map unpin /sys/fs/bpf/blocked
  xway map unpin /config/filter/old --hook user";

const MAP_FREEZE_HELP: &str = "\
Examples:
  xway map freeze id 7";

const MAP_CREATE_HELP: &str = "\
Examples:
  xway map create /sys/fs/bpf/blocked type hash key 4 value 8 entries 1024 name blocked
  xway map create /sys/fs/bpf/t type array_of_maps key 4 value 4 entries 8 name t inner_map id 7";

const MAP_PUSH_HELP: &str = "\
Examples:
  xway map push id 7 value 42";

const MAP_POP_HELP: &str = "\
Examples:
  xway map pop id 7";

const MAP_PEEK_HELP: &str = "\
Examples:
  xway map peek id 7";

const MAP_EVENTS_HELP: &str = "\
Examples:
  xway map event_pipe samples
  xway map event_pipe id 7 count 10 timeout 5";

pub const PROG_PIN_HELP: &str = "\
Examples:
  xway prog pin id 42 /sys/fs/bpf/filter
  xway prog pin name drop_udp /filter --hook user";

pub const PROG_UNPIN_HELP: &str = "\
Examples:
  xway prog unpin /sys/fs/bpf/filter
  xway prog unpin /filter --hook user";

pub const PROG_PROFILE_HELP: &str = "\
Examples:
  xway prog profile id 42  # runs and nanoseconds per run, over one second
  xway prog profile name drop_udp duration 5";

pub const PROG_TRACELOG_HELP: &str = "\
Examples:
  xway prog tracelog  # what programs print with bpf_printk, until Ctrl-C
  xway prog tracelog count 10 timeout 5
  xway prog tracelog --hook user  # what programs of the service print";

const LINK_PIN_HELP: &str = "\
Examples:
  xway link pin id 3 /sys/fs/bpf/link";

const LINK_UNPIN_HELP: &str = "\
Examples:
  xway link unpin /sys/fs/bpf/link";

const BTF_SHOW_HELP: &str = "\
Examples:
  xway btf show
  xway btf show id 1 -j";

const BTF_DUMP_HELP: &str = "\
Examples:
  xway btf dump file filter.o
  xway btf dump id 1
  xway btf dump map name blocked
  xway btf dump map name blocked value
  xway btf dump file /sys/kernel/btf/vmlinux format c > vmlinux.h  # a C header
  xway btf dump prog name drop_udp format c
  xway btf dump prog name drop_udp --hook user
  xway btf dump map pinned /config/filter/counts --hook user";

const LINK_SHOW_HELP: &str = "\
Examples:
  xway link show
  xway link show id 3 -f
  xway link show --hook user  # what is attached in the service, by number";

const LINK_DETACH_HELP: &str = "\
Examples:
  xway link detach id 3";
