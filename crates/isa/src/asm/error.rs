//! What can be wrong with a program's text.

/// An error in program text, with its place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {col}: {kind}")]
pub struct AsmError {
    /// Line, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub col: usize,
    /// The reason.
    pub kind: AsmErrorKind,
}

/// Reasons why text is no program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AsmErrorKind {
    /// Something else should stand here.
    #[error("expected {wanted}, found {found}")]
    Expected {
        /// What the grammar allows here.
        wanted: &'static str,
        /// What the text has.
        found: String,
    },
    /// A character that no instruction contains.
    #[error("unexpected character {0:?}")]
    BadCharacter(char),
    /// The line holds more than one instruction.
    #[error("nothing may follow the instruction, found {0}")]
    Trailing(String),
    /// A number that its field cannot hold.
    #[error("{value} does not fit: {limit}")]
    OutOfRange {
        /// The number as written.
        value: String,
        /// What the field can hold.
        limit: &'static str,
    },
    /// An operation that exists, but not in this form.
    #[error("{0}")]
    BadForm(&'static str),
    /// A name that is not known.
    #[error("unknown {what} `{name}`")]
    UnknownName {
        /// What kind of name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A label stands twice.
    #[error("label `{name}` is defined twice, first on line {first}")]
    DuplicateLabel {
        /// The label.
        name: String,
        /// Line of the first definition.
        first: usize,
    },
    /// The opcode written in parentheses is not that of the instruction.
    #[error("the opcode in parentheses is {written:#04x}, but the instruction's is {actual:#04x}")]
    OpcodeMismatch {
        /// As written.
        written: u8,
        /// Of the instruction that follows.
        actual: u8,
    },
}
