//! How a command ends when it does not end well: an exit code, one message, a hint.

use std::fmt;

/// Exit codes, the same for every command. 0 is "done".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The answer is no: a test failed, a program was rejected or faulted, two things differ.
    No = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// An input could not be read, or an output not be written.
    Input = 3,
    /// A privilege or a device is missing.
    Needs = 4,
}

impl Exit {
    /// The word for it in JSON.
    pub const fn kind(self) -> &'static str {
        match self {
            Exit::No => "no",
            Exit::Usage => "usage",
            Exit::Input => "input",
            Exit::Needs => "needs",
        }
    }
}

/// Why a command could not do what was asked. The message says what and where, the hint what to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// One or a few lines.
    pub message: String,
    /// What to try, if something can be said.
    pub hint: Option<String>,
    /// The JSON document has it already.
    pub said: bool,
    /// The refused program, when that is the reason.
    pub refusal: Option<Box<Refusal>>,
}

/// A refused program, in both forms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// All errors, shown in the source.
    pub text: String,
    /// The program as `xway verify -j` shows it.
    pub json: serde_json::Value,
}

impl From<xway_ports::NameError> for Failure {
    fn from(error: xway_ports::NameError) -> Failure {
        Failure { hint: error.hint, ..Failure::usage(error.message) }
    }
}

impl Failure {
    /// The command line makes no sense.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Usage, message: message.to_string(), hint: None, said: false, refusal: None }
    }

    /// An input could not be read.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Input, message: message.to_string(), hint: None, said: false, refusal: None }
    }

    /// A privilege or device is missing.
    pub fn needs(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Needs, message: message.to_string(), hint: None, said: false, refusal: None }
    }

    /// The answer is no.
    pub fn no(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::No, message: message.to_string(), hint: None, said: false, refusal: None }
    }

    /// The answer is no, and the output has already said why.
    pub fn silent() -> Failure {
        Failure { exit: Exit::No, message: String::new(), hint: None, said: false, refusal: None }
    }

    /// The answer is no, because the verifier refused the program.
    pub fn refused(message: impl fmt::Display, refusal: Refusal) -> Failure {
        Failure { refusal: Some(Box::new(refusal)), ..Failure::no(message) }
    }

    /// The same, when the JSON document has it already: only standard error is left to tell.
    pub fn said(mut self) -> Failure {
        self.said = true;
        self
    }

    /// True when there is nothing left to say.
    pub fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// Adds what to try.
    pub fn hint(mut self, hint: impl fmt::Display) -> Failure {
        self.hint = Some(hint.to_string());
        self
    }

    /// Puts the place in front of the message.
    pub fn at(mut self, place: impl fmt::Display) -> Failure {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// An operating system error about a file: permission problems are [`Exit::Needs`], everything else is the input.
    pub fn file(path: impl fmt::Display, error: &std::io::Error) -> Failure {
        let failure = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Failure::needs(format!("{path}: permission denied")),
            std::io::ErrorKind::NotFound => Failure::input(format!("{path}: no such file")),
            _ => Failure::input(format!("{path}: {error}")),
        };
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                failure.hint("check the file's permissions, or run as a user who may read it")
            }
            _ => failure,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xway: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  try: {hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_where_and_what_to_try() {
        let f = Failure::input("ends early").at("x.pcap").hint("record it again");
        assert_eq!(f.to_string(), "xway: x.pcap: ends early\n  try: record it again");
        assert_eq!((f.exit as i32, f.exit.kind()), (3, "input"));
    }

    #[test]
    fn missing_permission_is_not_bad_input() {
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(Failure::file("x", &denied).exit, Exit::Needs);
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(Failure::file("x", &missing).exit, Exit::Input);
    }
}
