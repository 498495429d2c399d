//! Measuring: the same program over the same packets, ours and the kernel's, in one run.
//!
//! # The method
//!
//! A [`Case`] is a program, what its maps hold, and which packets come. Both sides walk through the same [`Ring`](flows::Ring)
//! of packets, larger than the second-level cache, in the same order. Between two runs the packet is made anew from the ring:
//! by a loop in BPF around the program in the kernel ([`driver`]), by the burst loop on our side ([`user`]). Three things are
//! timed on each side: the loop alone, the loop with an empty program, the loop with the program; what a program costs is the
//! difference to the empty one.
//!
//! One core, pinned; the sides take turns (A B A B …) round after round, so that a change of the clock frequency or a noisy
//! neighbour meets both; medians over the rounds are reported, with quartiles.
//!
//! Before anything is timed, results are compared ([`check`]): single packets byte by byte, the histogram of verdicts over the
//! whole ring, and what the maps hold afterwards. That is the warm-up too.
//!
//! | module | what |
//! |---|---|
//! | [`suite`] | the built-in cases, from `bpf/bench`; those of single helpers are a suite of their own |
//! | [`flows`], [`packet`], [`fill`] | packets and map contents |
//! | [`given`] | what a user's maps are to hold |
//! | [`driver`], [`kernel`] | the kernel's side |
//! | [`user`], `runner` | our side |
//! | [`check`], [`settled`], [`measure`](mod@measure) | comparing, and what cannot be; timing |
//! | [`counters`] | what processor and kernel count meanwhile |
//! | [`maps`] | single operations on maps |
//! | [`dispatch`] | from a burst to its program |
//! | [`memory`] | pools and rings |
//! | [`forward`] | packets through the whole engine, beside the kernel moving frames by itself |
//! | [`wire`] | `afxdp:` on a veth pair, beside the kernel's native hook and AF_XDP used directly |
//! | [`sockets`] | AF_XDP-style sockets that the engine serves |
//! | [`compile_time`] | making machine code of proved programs |
//! | [`verify`], [`hard`] | proving programs, and programs that make it long |
//! | [`machine`] | what things cost on this machine |
//! | [`plot`] | the table as a picture |

pub mod aborted;
pub mod check;
pub mod compile_time;
pub mod cores;
pub mod counters;
pub mod dispatch;
pub mod driver;
pub mod fill;
pub mod flows;
pub mod forward;
pub mod given;
pub mod hard;
pub mod kernel;
pub mod machine;
pub mod maps;
pub mod measure;
pub mod memory;
pub mod packet;
pub mod plot;
pub mod ran;
mod runner;
pub mod settled;
pub mod sockets;
pub mod suite;
pub mod user;
pub mod verify;
pub mod wire;

use std::sync::Arc;

pub use measure::{Counted, Figures, Filled, MeasureError, Options, Row, Stat, measure, unchanged};
pub use runner::Way;
pub use suite::Case;

/// How often each verdict came: 0 to 6, and everything above.
pub type Histogram = [u64; 8];

/// What came of one packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The program's return value.
    pub ret: u32,
    /// The packet afterwards, behind its metadata.
    pub packet: Vec<u8>,
}

/// What both sides do alike.
#[derive(Clone, Debug)]
pub struct Shape<'a> {
    /// The packets.
    pub ring: Arc<flows::Ring>,
    /// What they start from.
    pub template: &'a [u8],
    /// How one is made anew.
    pub renew: packet::Renew,
    /// Frames on our side, see [`Case`].
    pub frames: u32,
    /// Runs in one test-run of the kernel.
    pub runs: u32,
}

/// The machine in words: processor, number of cores, kernel.
pub fn machine_name() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    // Not those of this thread: it may be pinned.
    let cores = xway_kernel::possible_cpus();
    format!("{model}, {cores} cores, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}
