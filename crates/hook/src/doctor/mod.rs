//! Is this machine ready for XDP? What is looked at, what was found, and the command that mends it.
//!
//! Nothing is changed, and nothing here fails: what cannot be read is a finding too. Each question is one function over what
//! the machine says, so tests can ask it about machines that do not exist.

mod interface;
pub(crate) mod machine;

pub use interface::{Interface, interface};
pub use machine::{Jit, Machine, machine};

/// How good or bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Works, with something that a person should know.
    Note,
    /// Something will not work.
    Bad,
}

impl Grade {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Bad => "problem",
        }
    }
}

/// One answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was looked at, in a stable word: `kernel`, `privileges`, `offloads`, …
    pub topic: &'static str,
    /// How it is.
    pub grade: Grade,
    /// What was found, one sentence.
    pub found: String,
    /// The command that mends it; always there unless the grade is good.
    pub mend: Option<String>,
}

impl Finding {
    fn good(topic: &'static str, found: impl Into<String>) -> Finding {
        Finding { topic, grade: Grade::Good, found: found.into(), mend: None }
    }

    fn note(topic: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { topic, grade: Grade::Note, found: found.into(), mend: Some(mend.into()) }
    }

    fn bad(topic: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { topic, grade: Grade::Bad, found: found.into(), mend: Some(mend.into()) }
    }
}
