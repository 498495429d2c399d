//! What stands behind the `?` of a port's name: `tap:xw0?queues=2&offload=tso`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Why a name is no port's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct NameError {
    /// What is wrong with it.
    pub message: String,
    /// What to try, if something can be said.
    pub hint: Option<String>,
}

impl NameError {
    /// Without a hint.
    pub(crate) fn new(message: impl Into<String>) -> NameError {
        NameError { message: message.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> NameError {
        NameError { hint: Some(hint.into()), ..self }
    }
}

/// The options of one port, taken out one by one; what is left over at the end is a mistake.
pub struct Options<'a> {
    port: &'a str,
    left: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Options<'a> {
    /// Splits what follows the port's kind into the device's name and its options.
    pub fn split(port: &'a str, rest: &'a str) -> (&'a str, Options<'a>) {
        let (name, options) = rest.split_once('?').unwrap_or((rest, ""));
        let left = options.split('&').filter(|o| !o.is_empty()).map(|o| o.split_once('=').unwrap_or((o, ""))).collect();
        (name, Options { port, left, known: Vec::new() })
    }

    /// The value of an option, if it is there.
    pub fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let at = self.left.iter().position(|(k, _)| *k == key)?;
        Some(self.left.remove(at).1)
    }

    /// A number within bounds.
    pub fn number<T>(&mut self, key: &'static str, bounds: RangeInclusive<T>) -> Result<Option<T>, NameError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.take(key) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.map(Some).ok_or_else(|| {
            let (first, last) = (bounds.start(), bounds.end());
            NameError::new(format!("{}: {key}={text} is no number from {first} to {last}", self.port))
        })
    }

    /// One of several words.
    pub fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Result<Option<T>, NameError> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            NameError::new(format!("{}: {key}={text} is not one of {}", self.port, words.join(", ")))
        })
    }

    /// Yes or no; no when nothing is said.
    pub fn yes(&mut self, key: &'static str) -> Result<bool, NameError> {
        Ok(self.choice(key, &[("yes", true), ("no", false)])?.unwrap_or(false))
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), NameError> {
        let Some((key, _)) = self.left.first() else { return Ok(()) };
        if self.known.contains(key) {
            return Err(NameError::new(format!("{}: {key} stands twice", self.port)));
        }
        let known = if self.known.is_empty() { "none".into() } else { self.known.join(", ") };
        Err(NameError::new(format!("{}: there is no option {key:?}", self.port)).hint(format!("options: {known}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_and_the_rest_is_a_mistake() {
        let (name, mut options) = Options::split("tap:x?queues=2&offload=tso", "x?queues=2&offload=tso");
        assert_eq!(name, "x");
        assert_eq!(options.number("queues", 1..=8u32), Ok(Some(2)));
        assert_eq!(options.choice("offload", &[("none", 0), ("tso", 1)]), Ok(Some(1)));
        assert_eq!(options.take("more"), None);
        assert_eq!(options.end(), Ok(()));
        let split = |text: &'static str| Options::split(text, text).1;
        assert!(split("x?queues=9").number("queues", 1..=8u32).unwrap_err().message.contains("from 1 to 8"));
        assert!(split("x?queues").number("queues", 1..=8u32).is_err());
        assert!(split("x?offload=all").choice("offload", &[("none", 0)]).unwrap_err().message.contains("none"));
        let mut options = split("x?speed=9");
        options.take("queues");
        assert_eq!(options.end().unwrap_err().hint.as_deref(), Some("options: queues"));
        let mut options = split("x?queues=1&queues=1");
        assert_eq!(options.take("queues"), Some("1"));
        assert_eq!(options.end().unwrap_err(), NameError::new("x?queues=1&queues=1: queues stands twice"));
    }
}
