//! What a refusal says.

use std::fmt;

use xway_object::{LineInfo, Program};

/// Kinds of refusals. [`Kind::name`] is what JSON calls them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A slot is no instruction, or one that XDP cannot use.
    BadInstruction,
    /// A jump leaves its function or lands inside an instruction.
    BadJump,
    /// Code that no jump reaches.
    Unreachable,
    /// A function does not end with a jump or an exit.
    NoExit,
    /// A call of something that does not exist or must not be called.
    BadCall,
    /// A reference to a map, function or type that does not exist.
    BadReference,
    /// A register is read that was never written.
    Uninitialised,
    /// The frame pointer is written.
    FramePointer,
    /// Arithmetic that makes no sense on this pointer.
    PointerArithmetic,
    /// A pointer that may be null is used.
    Null,
    /// A number is used as an address.
    NotAPointer,
    /// An address that an earlier call made worthless.
    Stale,
    /// Packet access that is not proved to lie inside the packet.
    PacketBounds,
    /// Access outside a map value.
    MapBounds,
    /// Access outside other memory.
    MemoryBounds,
    /// Access outside the stack.
    StackBounds,
    /// Context access that does not exist.
    Context,
    /// Write to something read-only, or read of something write-only.
    Permission,
    /// Access at an address that is not a multiple of what it must be.
    Alignment,
    /// A number without the bounds that its use needs.
    Unbounded,
    /// An argument of the wrong kind.
    Argument,
    /// A map of the wrong type for the call.
    MapType,
    /// A reference that is not released.
    Leak,
    /// A spin lock used in a wrong way.
    Lock,
    /// Too many frames, or too much stack in a chain of calls.
    StackDepth,
    /// A loop that does not end.
    InfiniteLoop,
    /// The analysis needs more work or memory than it may use.
    Budget,
    /// A return value outside what is allowed.
    ReturnValue,
    /// A part of Linux that this verifier does not know.
    Unsupported,
}

impl Kind {
    /// The machine-readable name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::BadInstruction => "bad-instruction",
            Kind::BadJump => "bad-jump",
            Kind::Unreachable => "unreachable",
            Kind::NoExit => "no-exit",
            Kind::BadCall => "bad-call",
            Kind::BadReference => "bad-reference",
            Kind::Uninitialised => "uninitialised",
            Kind::FramePointer => "frame-pointer",
            Kind::PointerArithmetic => "pointer-arithmetic",
            Kind::Null => "null-pointer",
            Kind::NotAPointer => "not-a-pointer",
            Kind::Stale => "stale-packet-pointer",
            Kind::PacketBounds => "packet-bounds",
            Kind::MapBounds => "map-value-bounds",
            Kind::MemoryBounds => "memory-bounds",
            Kind::StackBounds => "stack-bounds",
            Kind::Context => "context-access",
            Kind::Permission => "permission",
            Kind::Alignment => "alignment",
            Kind::Unbounded => "unbounded",
            Kind::Argument => "argument",
            Kind::MapType => "map-type",
            Kind::Leak => "unreleased-reference",
            Kind::Lock => "spin-lock",
            Kind::StackDepth => "stack-depth",
            Kind::InfiniteLoop => "infinite-loop",
            Kind::Budget => "budget",
            Kind::ReturnValue => "return-value",
            Kind::Unsupported => "unsupported",
        }
    }
}

/// One reason for a refusal, with everything a person needs to act on it.
#[derive(Clone, PartialEq, Debug)]
pub struct Diagnostic {
    /// Kind.
    pub kind: Kind,
    /// Instruction at which it shows.
    pub insn: usize,
    /// C file, when known.
    pub file: Option<String>,
    /// Line, 0 when unknown.
    pub line: u32,
    /// The line's text; the disassembled instruction when unknown.
    pub source: String,
    /// What is wrong.
    pub message: String,
    /// What would make it acceptable.
    pub hint: Option<String>,
    /// Branches taken on the way, in order: the shortest way that was found.
    pub path: Vec<PathStep>,
    /// What was known about the values involved: (register, description).
    pub values: Vec<(String, String)>,
    /// Other places that belong to the story, in the order in which they are passed: where the pointer was checked,
    /// where it was invalidated.
    pub notes: Vec<Note>,
    /// Every instruction of that way, the refused one last; empty when the way is not known in full. For tools.
    pub trace: Vec<u32>,
    /// A packet with which the refused access really goes wrong. The verifier leaves it empty; `xway-witness` finds it.
    pub counterexample: Option<Counterexample>,
}

/// One line: where, what is wrong, and what would mend it.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) if self.line != 0 => write!(f, "{file}:{}: {}", self.line, self.message)?,
            _ => write!(f, "instruction {} ({}): {}", self.insn, self.source, self.message)?,
        }
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

/// Another place that belongs to the story of an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The instruction.
    pub insn: usize,
    /// C file, when known.
    pub file: Option<String>,
    /// Line, 0 when unknown.
    pub line: u32,
    /// The line's text; the disassembled instruction when unknown.
    pub source: String,
    /// What happens there.
    pub text: String,
}

/// A packet that makes the program do what it was refused for; it was run in the checked interpreter and faulted there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counterexample {
    /// The whole packet.
    pub packet: Vec<u8>,
    /// The parts of it that matter, by offset; all other bytes may be anything that keeps the way.
    pub decisive: Vec<Decisive>,
    /// What the interpreter said.
    pub fault: String,
}

/// Bytes of a packet that matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decisive {
    /// First byte.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// One branch on the way to an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathStep {
    /// The branch instruction.
    pub insn: usize,
    /// Jumped, or fell through.
    pub taken: bool,
    /// Line, 0 when unknown.
    pub line: u32,
    /// Text of the line; the disassembled instruction when unknown.
    pub source: String,
    /// Line where the way goes on, 0 when unknown. A compiler may turn a condition round: this tells the outcome in C.
    pub to_line: u32,
}

impl Diagnostic {
    /// A refusal at a place, without a way that leads there.
    pub(crate) fn new(program: &Program, insn: usize, fail: Fail) -> Diagnostic {
        let (file, line, source) = place(program, insn);
        Diagnostic {
            kind: fail.kind,
            insn,
            file,
            line,
            source,
            message: fail.message,
            hint: fail.hint,
            path: Vec::new(),
            values: Vec::new(),
            notes: Vec::new(),
            trace: Vec::new(),
            counterexample: None,
        }
    }
}

/// A refusal as the transfer functions raise it; the exploration adds place and path.
#[derive(Clone, Debug)]
pub struct Fail {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Registers whose knowledge belongs into the message.
    pub(crate) regs: Vec<usize>,
    /// The place, when it is not the current instruction.
    pub(crate) at: Option<usize>,
    /// It follows from an error that was told before.
    pub(crate) consequence: bool,
}

impl Fail {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Fail {
        Fail { kind, message: message.into(), hint: None, regs: Vec::new(), at: None, consequence: false }
    }

    /// Something is read that an earlier error has made worthless.
    pub(crate) fn consequence() -> Fail {
        Fail { consequence: true, ..Fail::new(Kind::Uninitialised, "") }
    }

    pub(crate) fn reg(mut self, r: usize) -> Fail {
        self.regs.push(r);
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Fail {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn at(mut self, insn: usize) -> Fail {
        self.at = Some(insn);
        self
    }
}

/// `Err(Fail::new(kind, format!(…)))`
macro_rules! fail {
    ($kind:ident, $($text:tt)*) => {
        Err($crate::diag::Fail::new($crate::diag::Kind::$kind, format!($($text)*)))
    };
}
pub(crate) use fail;

/// What the object says of an instruction's place in the source.
pub(crate) fn line_of(program: &Program, insn: usize) -> Option<&LineInfo> {
    let i = program.line_info.partition_point(|l| l.insn <= insn);
    i.checked_sub(1).map(|i| &program.line_info[i]).filter(|l| !l.file.is_empty())
}

/// File, line and text of an instruction.
pub(crate) fn place(program: &Program, insn: usize) -> (Option<String>, u32, String) {
    if let Some(l) = line_of(program, insn) {
        return (Some(l.file.to_string()), l.line, l.text.trim().to_owned());
    }
    let text = if insn < program.insns.len() {
        xway_isa::decode_at(&program.insns, insn).map_or_else(|e| e.to_string(), |i| i.to_string())
    } else {
        String::new()
    };
    (None, 0, text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::program;

    fn line(insn: usize, file: &str, line: u32, text: &str) -> LineInfo {
        let (file, text): (Arc<str>, Arc<str>) = (file.into(), text.into());
        LineInfo { insn, file, line, col: 1, text, file_off: 0, text_off: 0 }
    }

    #[test]
    fn a_place_is_the_last_line_before_it_or_else_the_instruction() {
        let mut program = program("r0 = 1\nr0 = 2\nr0 = 3\nexit");
        assert_eq!(place(&program, 1), (None, 0, "r0 = 2".to_owned()));
        program.line_info = vec![line(1, "a.c", 7, "\tint x = 2;"), line(3, "", 0, "")];
        assert_eq!(place(&program, 0), (None, 0, "r0 = 1".to_owned()), "before the first line");
        assert_eq!(place(&program, 2), (Some("a.c".to_owned()), 7, "int x = 2;".to_owned()));
        assert_eq!(place(&program, 3), (None, 0, "exit".to_owned()), "a line without a file is none");
        assert_eq!(place(&program, 4), (None, 0, String::new()), "behind the end");
    }

    #[test]
    fn a_refusal_in_one_line_says_where_what_and_what_would_mend_it() {
        let mut program = program("r0 = 1\nexit");
        let fail = || Fail::new(Kind::Null, "r1 may be null here").hint("check it");
        let said = Diagnostic::new(&program, 1, fail()).to_string();
        assert_eq!(said, "instruction 1 (exit): r1 may be null here (check it)");
        program.line_info = vec![line(0, "a.c", 3, "return 1;")];
        let plain = Fail { hint: None, ..fail() };
        assert_eq!(Diagnostic::new(&program, 1, plain).to_string(), "a.c:3: r1 may be null here");
    }

    #[test]
    fn what_follows_from_an_error_says_nothing_of_its_own() {
        let fail = Fail::consequence();
        assert!(fail.consequence && fail.message.is_empty());
        assert!(!Fail::new(Kind::Leak, "x").reg(3).at(9).consequence);
    }
}
