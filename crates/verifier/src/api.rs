//! What goes in and what comes out.

use std::time::Duration;

use xway_abi::Verdict;
use xway_isa::Slot;
use xway_object::{Btf, MapDef, Object};

use crate::diag::Diagnostic;

/// The surroundings of a program: its maps (in the order of the program's map indices), its types, its licence.
#[derive(Clone, Copy, Debug)]
pub struct MapsView<'a> {
    /// Map descriptions, special value fields and constant contents included.
    pub maps: &'a [MapDef],
    /// Types of the object, for the signatures of global functions.
    pub btf: Option<&'a Btf>,
    /// Types of the kernel that the program is for: its functions and the objects that they hand out.
    pub kernel: Option<&'a Btf>,
    /// Licence; helpers that are reserved for GPL programs need a compatible one.
    pub license: Option<&'a str>,
}

impl<'a> From<&'a Object> for MapsView<'a> {
    fn from(o: &'a Object) -> Self {
        MapsView { maps: &o.maps, btf: o.btf.as_deref(), kernel: o.target.as_deref(), license: o.license.as_deref() }
    }
}

impl MapsView<'_> {
    /// No maps, no types, GPL.
    pub const fn empty() -> MapsView<'static> {
        MapsView { maps: &[], btf: None, kernel: None, license: Some("GPL") }
    }

    /// True when helpers reserved for the GPL may be called (the list of `license_is_gpl_compatible`).
    pub fn gpl(&self) -> bool {
        matches!(
            self.license.map(|l| l.trim_end_matches('\0')),
            Some("GPL" | "GPL v2" | "GPL and additional rights" | "Dual BSD/GPL" | "Dual MIT/GPL" | "Dual MPL/GPL")
        )
    }
}

/// Limits and strictness.
#[derive(Clone, Debug)]
pub struct Config {
    /// Instructions that the analysis may visit. Linux: one million. [`Stats::work`] may be 16 times as much.
    pub budget: u64,
    /// Bytes that states and history may take.
    pub memory: usize,
    /// Memory accesses must be aligned even where x86-64 would not mind (`BPF_F_STRICT_ALIGNMENT`).
    pub strict_alignment: bool,
    /// Keep a log of states in the format of Linux's verifier, of at most [`Config::log_max`] bytes.
    pub log: bool,
    /// Longest log, bytes.
    pub log_max: usize,
    /// Instructions that may be visited for each error to find the shortest way to it; 0 leaves errors unexplained, which
    /// is what fuzzers want.
    pub explain: u64,
    /// Independent errors after which the analysis stops.
    pub errors_max: usize,
    /// A branch that what is known decides is walked both ways when that knowledge kept states apart this often. Costs no
    /// proof, and makes facts about such branches weaker. 0: from the start.
    pub apart: u32,
    /// Length of a raw program's input memory (r1 = address, r2 = length), bytes.
    pub raw_input: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            budget: 8_000_000,
            memory: 768 << 20,
            strict_alignment: false,
            log: false,
            log_max: 16 << 20,
            explain: 20_000,
            errors_max: 10,
            apart: 32,
            raw_input: 0,
        }
    }
}

/// A program with its proof. Only [`crate::verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified {
    pub(crate) insns: Vec<Slot>,
    pub(crate) maps: Vec<MapDef>,
    pub(crate) facts: Facts,
    pub(crate) stats: Stats,
    pub(crate) log: String,
}

impl Verified {
    /// The program that was proved: as it was given, except that dead instructions with wrong fields are jumps to
    /// themselves, which is what Linux makes of them.
    pub fn insns(&self) -> &[Slot] {
        &self.insns
    }

    /// The maps that the proof is about, constant contents included: running the program needs maps that are like them.
    pub fn maps(&self) -> &[MapDef] {
        &self.maps
    }

    /// What the proof found out.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What the proof cost.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The state log, empty unless it was asked for.
    pub fn log(&self) -> &str {
        &self.log
    }
}

/// What holds on every run of a verified program.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Facts {
    /// Helper calls, by instruction.
    pub calls: Vec<CallFact>,
    /// Memory instructions that some run reaches, by instruction.
    pub accesses: Vec<AccessFact>,
    /// Pointer arguments of calls: helpers, kernel functions and functions of the program, by instruction.
    pub args: Vec<ArgsFact>,
    /// Instructions that no run reaches. Second slots of 64-bit immediates are not listed.
    pub dead: Vec<usize>,
    /// Conditional jumps that always go the same way: (instruction, taken).
    pub decided: Vec<(usize, bool)>,
    /// Actions that the program can return; `None` when it can return anything.
    pub verdicts: Option<Vec<Verdict>>,
    /// Numbers of the helpers that are called on some run.
    pub helpers: Vec<u32>,
    /// Names of the kernel functions that are called on some run.
    pub kfuncs: Vec<String>,
    /// What some run needs of a kernel's objects, by the names of the functions, helpers and structures that give them;
    /// nothing but a kernel can run a program for which this is not empty.
    pub kernel_objects: Vec<String>,
    /// Maps that some run touches, by index.
    pub maps: Vec<u32>,
    /// The byte after the last one that direct packet access reads or writes, from `data`.
    pub packet_bytes: u32,
    /// Some run writes the packet directly, or through a slice of it.
    pub packet_written: bool,
    /// Some run may move or replace packet data.
    pub packet_moved: bool,
    /// Some run reads the metadata area.
    pub meta_used: bool,
    /// Some run writes it. It lies in front of the packet, in the same memory.
    pub meta_written: bool,
    /// Some run may leave by a tail call.
    pub tail_calls: bool,
    /// First instruction of each function; the first is the program.
    pub functions: Vec<usize>,
    /// Some run may turn an address into a number: store it, return it, compute or compare with it. What the program
    /// then does depends on where memory lies. Without this two machines that see the same agree.
    pub addresses: bool,
    /// Some run may read stack memory that it has not written, as Linux permits to the privileged; there it finds what
    /// was left by others. Where a store or a call writes some bytes of an area, which of them is not known, this is so when the area
    /// had not been written whole before. What a call fills counts as written even when it fails.
    pub unwritten_stack: bool,
    /// Stack of each function, bytes.
    pub stack: Vec<u32>,
    /// Stack of the deepest chain of calls, as Linux counts it, bytes.
    pub stack_chain: u32,
}

/// What holds at one helper call on every run that reaches it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallFact {
    /// The call instruction.
    pub insn: usize,
    /// Number of the helper.
    pub helper: u32,
    /// The map argument, when it is the same on every run.
    pub map: Option<u32>,
    /// Where the key lies, when it is the same kind of place on every run.
    pub key: Option<KeyPlace>,
    /// The key as a number, when it is one constant (keys of four bytes).
    pub key_const: Option<u32>,
    /// Bounds of each argument that is a length: `bpf_csum_diff` has two.
    pub sizes: [Option<(u64, u64)>; 5],
}

/// What holds at one memory instruction (load, store, atomic) on every run that reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessFact {
    /// The instruction.
    pub insn: usize,
    /// Where its first byte lies.
    pub place: Place,
}

/// What holds for the arguments r1 to r5 of one call on every run that reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArgsFact {
    /// The call instruction.
    pub insn: usize,
    /// Where each argument points, `None` when it is no pointer on any run; [`Region::Mixed`] when it is one on some runs only.
    /// It may still be null.
    pub args: [Option<Place>; 5],
}

/// A place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The memory.
    pub region: Region,
    /// Distance from its start (stack: from the frame pointer of the function that owns it) when that is one constant.
    pub off: Option<i32>,
}

/// Kinds of memory that a pointer can point into. They never overlap, `Other` and `Mixed` excepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// The context.
    Context,
    /// The packet; offsets count from `data`.
    Packet,
    /// The metadata in front of it.
    Meta,
    /// The stack of the running function.
    Stack,
    /// The stack of one of its callers.
    OuterStack,
    /// A value of the map with this index.
    MapValue(u32),
    /// A value of an inner map of the map with this index.
    InnerMapValue(u32),
    /// The map with this index itself.
    Map(u32),
    /// An inner map of it.
    InnerMap(u32),
    /// A ring buffer record.
    Record,
    /// A function of the program, by its first instruction.
    Func(u32),
    /// Sized memory of another kind, which may be part of any of these: arguments of global functions, keys handed to
    /// callbacks, slices of dynptrs.
    Other,
    /// Different on different runs.
    Mixed,
}

/// Where a key argument lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyPlace {
    /// On the running function's stack, at this offset from its frame pointer.
    Stack(i32),
    /// On a caller's stack.
    OuterStack,
    /// In the packet.
    Packet,
    /// In a map value.
    MapValue,
    /// In other memory.
    Other,
}

/// What a proof cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Instructions visited.
    pub visited: u64,
    /// Checkpoints made.
    pub states: u64,
    /// Checkpoints kept at the same time, at most.
    pub peak_states: u64,
    /// Values that were compared and copied, instructions (11 each) and memory (one for each 6 bytes): the time follows it, some
    /// ten nanoseconds each, and it is the same on every machine.
    pub work: u64,
    /// Bytes held at the same time, at most. The program and its decoded form are estimated, the rest is exact.
    pub peak_bytes: u64,
    /// Time taken.
    pub time: Duration,
}

impl Stats {
    /// Those of an analysis that was followed by another one.
    pub(crate) fn and(&self, next: &Stats) -> Stats {
        Stats {
            visited: self.visited + next.visited,
            states: self.states + next.states,
            peak_states: self.peak_states.max(next.peak_states),
            work: self.work + next.work,
            peak_bytes: self.peak_bytes.max(next.peak_bytes),
            time: self.time + next.time,
        }
    }
}

/// A program that was not accepted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .errors.first().map_or_else(|| "refused".to_owned(), Diagnostic::to_string))]
pub struct Rejection {
    /// What is wrong; never empty. The first one is what an analysis that stops at the first error would say.
    pub errors: Vec<Diagnostic>,
    /// What the analysis cost until then.
    pub stats: Stats,
    /// The state log, empty unless it was asked for.
    pub log: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licences_of_the_gpl_are_those_that_linux_names() {
        let gpl = |license| MapsView { license, ..MapsView::empty() }.gpl();
        for name in
            ["GPL", "GPL\0", "GPL v2", "Dual MIT/GPL", "Dual BSD/GPL", "Dual MPL/GPL", "GPL and additional rights"]
        {
            assert!(gpl(Some(name)), "{name}");
        }
        for name in ["", "gpl", "MIT", "GPL v3", "Apache-2.0", "GPL-2.0-only OR BSD-2-Clause"] {
            assert!(!gpl(Some(name)), "{name}");
        }
        assert!(!gpl(None));
    }

    #[test]
    fn two_analyses_cost_the_sum_and_need_the_larger_of_both() {
        let one =
            Stats { visited: 3, states: 2, peak_states: 9, work: 5, peak_bytes: 100, time: Duration::from_millis(1) };
        let two =
            Stats { visited: 4, states: 1, peak_states: 7, work: 6, peak_bytes: 300, time: Duration::from_millis(2) };
        let both = one.and(&two);
        assert_eq!((both.visited, both.states, both.work), (7, 3, 11));
        assert_eq!((both.peak_states, both.peak_bytes, both.time), (9, 300, Duration::from_millis(3)));
    }
}
