//! What our verifier's log of states shows of the registers behind each instruction.

use std::collections::HashMap;

/// By instruction: once for each time that it was walked.
pub struct Seen<'a>(HashMap<usize, Vec<&'a str>>);

impl<'a> Seen<'a> {
    /// Reads a log.
    pub fn of(log: &'a str) -> Seen<'a> {
        let mut all: HashMap<usize, Vec<&str>> = HashMap::new();
        for (head, rest) in log.lines().filter_map(|l| l.split_once(": (")) {
            if let (Ok(at), Some((_, state))) = (head.parse(), rest.split_once("; ")) {
                all.entry(at).or_default().push(state);
            }
        }
        Seen(all)
    }

    /// The instruction was walked, and each time this holds for what is shown of the register.
    pub fn always(&self, at: usize, reg: u8, holds: impl Fn(&str) -> bool) -> bool {
        let name = format!("R{reg}=");
        let shown = |state: &&str| state.split(' ').find_map(|word| word.strip_prefix(&name[..])).is_some_and(&holds);
        self.0.get(&at).is_some_and(|states| states.iter().all(shown))
    }

    /// It held a number each time.
    pub fn number(&self, at: usize, reg: u8) -> bool {
        self.always(at, reg, is_number)
    }
}

/// A number, in the words of the log.
pub fn is_number(shown: &str) -> bool {
    shown.starts_with("scalar") || shown.starts_with(|c: char| c == '-' || c.is_ascii_digit())
}
