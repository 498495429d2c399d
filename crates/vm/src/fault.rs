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
    /// The registers that the instruction read, with what they held.
    pub known: Vec<String>,
}

/// What a program was stopped for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultKind {
    /// A null pointer, or a small number used as a pointer.
    #[error(
        "{access} of {len} bytes at {addr:#x}: that is a null pointer plus an offset; check the pointer before using it"
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
    #[error("{access} of {len} bytes at {addr:#x}: that is a number, not the address of anything that was granted")]
    Wild {
        /// What was tried.
        access: Access,
        /// Bytes.
        len: u64,
        /// The address.
        addr: u64,
    },
    /// Outside the bounds of its region.
    #[error("{access} of {len} bytes at offset {off} of {region}: only {low}..{high} may be accessed")]
    Bounds {
        /// What was tried.
        access: Access,
        /// Bytes.
        len: u64,
        /// Signed offset in the region.
        off: i64,
        /// The region in words.
        region: String,
        /// First accessible offset.
        low: u64,
        /// End of the accessible offsets.
        high: u64,
    },
    /// The region does not allow this access.
    #[error("{access} of {len} bytes at offset {off} of {region}: {why}")]
    Denied {
        /// What was tried.
        access: Access,
        /// Bytes.
        len: u64,
        /// Signed offset in the region.
        off: i64,
        /// The region in words.
        region: String,
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

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: instruction {}", self.program, self.insn)?;
        if self.function != self.program && !self.function.is_empty() {
            write!(f, " in {}", self.function)?;
        }
        if !self.text.is_empty() {
            write!(f, " ({})", self.text)?;
        }
        write!(f, ": {}", self.kind)?;
        if let Some(line) = &self.line {
            write!(f, "; {}:{}", line.file, line.line)?;
            if !line.text.trim().is_empty() {
                write!(f, ": {}", line.text.trim())?;
            }
        }
        if !self.known.is_empty() {
            write!(f, " [{}]", self.known.join(", "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// Shorthand inside the crate: faults are rare, so they travel boxed.
pub type Trap = Box<FaultKind>;
