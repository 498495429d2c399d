//! Why a program is not compiled.

/// A program that this compiler does not take. It runs in the interpreter instead, and whoever asked for compiled code is told
/// why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The proof is about another program.
    #[error("the proof is about other instructions than the program has")]
    OtherProgram,
    /// A live map is not like the one that the proof is about.
    #[error("map {map} is not like the one that was verified: {why}")]
    OtherMap {
        /// Its name.
        map: String,
        /// What differs.
        why: &'static str,
    },
    /// Something that there is no native code for yet.
    #[error("instruction {insn}: {what} is not compiled yet")]
    NotYet {
        /// The instruction.
        insn: usize,
        /// What it does.
        what: String,
    },
    /// A load from the context whose field is not the same on every path.
    #[error("instruction {insn} reads one field of the context on one path and another on another")]
    MixedContext {
        /// The instruction.
        insn: usize,
    },
    /// Atomic access in memory of which the proof does not know how it is aligned, for a machine that asks for alignment.
    #[error("instruction {insn}: atomic access to memory that may be unaligned, which this machine does not have")]
    Alignment {
        /// The instruction.
        insn: usize,
    },
    /// A function that Cranelift would take too long for.
    #[error("function {name} has {insns} instructions; at most {max} are compiled")]
    TooLong {
        /// Its name.
        name: String,
        /// Its length, instructions.
        insns: usize,
        /// The limit.
        max: usize,
    },
    /// A chain of no programs, or of too many.
    #[error("a chain has 1 to {max} programs, not {links}")]
    Chain {
        /// Its programs.
        links: usize,
        /// The limit.
        max: usize,
    },
    /// The worker's number is beyond what the program's per-CPU maps have values for.
    #[error("worker {cpu}: the program's maps have values for {cpus} CPUs")]
    Cpu {
        /// Number of the worker.
        cpu: u32,
        /// CPUs that all maps have values for.
        cpus: u32,
    },
    /// No code can be made for this machine.
    #[error("no native code on this machine: {0}")]
    Machine(String),
    /// The back end failed: a defect of this compiler.
    #[error("function {name}: {why}")]
    BackEnd {
        /// The function.
        name: String,
        /// In the back end's words.
        why: String,
    },
    /// No memory for the code.
    #[error("no memory for code: {0}")]
    Memory(String),
}
