//! Faults: what a program did that no verified program can do, said so that a person can act on it.

use xway_object::LineInfo;

/// A program was stopped. Its verdict is `XDP_ABORTED`.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Name of the program that ran (after tail calls: the last one).
    pub program: String,
    /// Function in it.
    pub function: String,
    /// Index of the instruction's first slot.
    pub insn: usize,
    /// The instruction in words of the assembler.
    pub text: String,
    /// Source line, where the object holds line information.
    pub line: Option<LineInfo>,
    /// What was wrong.
    pub kind: FaultKind,
    /// The registers that the instruction read: name, and what it held in words.
    pub known: Vec<(String, String)>,
    /// The calls that led there, innermost first; empty in the program's main function.
    pub callers: Vec<Caller>,
}

/// A call that was active when a program was stopped.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The function that called.
    pub function: String,
    /// The call instruction.
    pub insn: usize,
    /// Its source line, where the object holds line information.
    pub line: Option<LineInfo>,
}

/// What an address means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Which kind of memory.
    pub kind: RegionKind,
    /// In words, with what is known about it: `the packet (60 bytes)`.
    pub words: String,
}

/// Kinds of memory, and of what is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// No region: null, or a number.
    Nothing,
    /// The context. Offsets count from its start.
    Context,
    /// The packet with its metadata. Offsets count from `data`; metadata has negative ones.
    Packet,
    /// The stack of a function. Offsets count from r10, so all of them are negative.
    Stack,
    /// A map value.
    MapValue,
    /// A ring buffer record.
    Record,
    /// The memory of a raw program.
    Memory,
    /// What a callback was handed.
    Lent,
    /// A register that was never set, or that a call clobbered.
    Unset,
    /// A handle: of a map, of a function, of a kernel object.
    Handle,
}

/// What a program was stopped for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultKind {
    /// A null pointer, or a small number used as a pointer.
    #[error(
        "{access} of {} at {addr:#x}: that is a null pointer plus an offset; check the pointer before using it",
        bytes(*.len)
    )]
    Null {
        /// What was tried.
        access: Access,
        /// Bytes.
        len: u64,
        /// The address.
        addr: u64,
    },
    /// An address that is in no region.
    #[error(
        "{access} of {} at {addr:#x}: that is a number, not the address of anything that was granted",
        bytes(*.len)
    )]
    Wild {
        /// What was tried.
        access: Access,
        /// Bytes.
        len: u64,
        /// The address.
        addr: u64,
    },
    /// Outside the bounds of its region.
    #[error("{access} of {} at offset {off} of {}: only {low}..{high} may be accessed", bytes(*.len), .region.words)]
    Bounds {
        /// What was tried.
        access: Access,
        /// Bytes.
        len: u64,
        /// Offset in the region, as [`RegionKind`] counts it.
        off: i64,
        /// The region.
        region: Region,
        /// First accessible offset.
        low: i64,
        /// End of the accessible offsets.
        high: i64,
    },
    /// The region does not allow this access.
    #[error("{access} of {} at offset {off} of {}: {why}", bytes(*.len), .region.words)]
    Denied {
        /// What was tried.
        access: Access,
        /// Bytes.
        len: u64,
        /// Offset in the region, as [`RegionKind`] counts it.
        off: i64,
        /// The region.
        region: Region,
        /// The rule.
        why: &'static str,
    },
    /// A helper was called with something that its prototype does not allow.
    #[error("call of {helper}: argument {arg} {why}")]
    Argument {
        /// Name of the helper.
        helper: &'static str,
        /// Argument, from 1.
        arg: u8,
        /// What is wrong with it.
        why: String,
    },
    /// A call that cannot be made.
    #[error("{0}")]
    Call(String),
    /// More instructions than the budget allows.
    #[error("the budget of {0} instructions is used up")]
    Budget(u64),
    /// Calls nested too deep.
    #[error("more than 8 nested function calls")]
    Depth,
    /// Execution left the program.
    #[error("execution reached slot {0}, which is no instruction")]
    Pc(i64),
    /// A run was granted more regions than it may be.
    #[error("more than {0} different values and records in one run")]
    Grants(usize),
}

/// What was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Load, or a helper's reading argument.
    Read,
    /// Store, or a helper's writing argument.
    Write,
    /// Atomic read-modify-write.
    Atomic,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic operation",
        })
    }
}

impl FaultKind {
    /// The machine-readable name; the verifier uses the same for what it refuses.
    pub const fn name(&self) -> &'static str {
        match self {
            FaultKind::Null { .. } => "null-pointer",
            FaultKind::Wild { .. } => "not-a-pointer",
            FaultKind::Bounds { region, .. } => match region.kind {
                RegionKind::Packet => "packet-bounds",
                RegionKind::Stack => "stack-bounds",
                RegionKind::MapValue => "map-value-bounds",
                _ => "memory-bounds",
            },
            FaultKind::Denied { region, .. } => match region.kind {
                RegionKind::Context => "context-access",
                RegionKind::Unset => "uninitialised",
                _ => "permission",
            },
            FaultKind::Argument { .. } => "argument",
            FaultKind::Call(_) => "bad-call",
            FaultKind::Budget(_) => "budget",
            FaultKind::Depth => "stack-depth",
            FaultKind::Pc(_) => "bad-jump",
            FaultKind::Grants(_) => "grants",
        }
    }

    /// The region that was meant, where the fault is about one.
    pub const fn region(&self) -> Option<&Region> {
        match self {
            FaultKind::Bounds { region, .. } | FaultKind::Denied { region, .. } => Some(region),
            _ => None,
        }
    }
}

/// Several lines: the source line, what was wrong with it, the instruction and the way there, what its registers held.
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(line) = &self.line {
            writeln!(f, "{}", place(line))?;
            write!(f, "  ")?;
        }
        writeln!(f, "{}", self.kind)?;
        write!(f, "  in {}, instruction {}", self.program, self.insn)?;
        if self.function != self.program && !self.function.is_empty() {
            write!(f, " ({})", self.function)?;
        }
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        for caller in &self.callers {
            write!(f, "\n  called from {}, instruction {}", caller.function, caller.insn)?;
            if let Some(line) = &caller.line {
                write!(f, ": {}", place(line))?;
            }
        }
        for (name, words) in &self.known {
            write!(f, "\n  {name} = {words}")?;
        }
        Ok(())
    }
}

/// A source line with its text.
fn place(line: &LineInfo) -> String {
    let text = line.text.trim();
    format!("{}:{}{}{text}", line.file, line.line, if text.is_empty() { "" } else { ": " })
}

/// A number of bytes in words.
fn bytes(len: u64) -> String {
    if len == 1 { "1 byte".into() } else { format!("{len} bytes") }
}

impl std::error::Error for Fault {}

/// Shorthand inside the crate: faults are rare, so they travel boxed.
pub type Trap = Box<FaultKind>;
