//! Which object of the kernel is meant: bpftool's words, and short forms of them.

use std::path::PathBuf;

use xway_hook::HookKind;

use crate::failure::Failure;

/// A choice among objects of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Which {
    /// By number.
    Id(u32),
    /// By name; there may be several.
    Name(String),
    /// By tag (programs); there may be several.
    Tag(String),
    /// By the file that pins it.
    Pinned(PathBuf),
}

impl Which {
    /// Takes the choice from the front of the words; gives what is left. No words: no choice.
    pub fn take(words: &[String]) -> Result<(Option<Which>, &[String]), Failure> {
        let Some((first, rest)) = words.split_first() else { return Ok((None, words)) };
        let value = |what: &str| {
            let missing =
                || Failure::usage(format!("{first}: {what} is missing")).hint("id N, name NAME or pinned PATH");
            rest.split_first().ok_or_else(missing)
        };
        Ok(match first.as_str() {
            "id" => {
                let (id, rest) = value("a number")?;
                let id =
                    id.parse().map_err(|_| Failure::usage(format!("id {id}: no number from 0 to {}", u32::MAX)))?;
                (Some(Which::Id(id)), rest)
            }
            "name" => {
                let (name, rest) = value("a name")?;
                (Some(Which::Name(name.clone())), rest)
            }
            "tag" => {
                let (tag, rest) = value("a tag of 16 hexadecimal digits")?;
                (Some(Which::Tag(tag.to_lowercase())), rest)
            }
            "pinned" => {
                let (path, rest) = value("a path")?;
                (Some(Which::Pinned(path.into())), rest)
            }
            text if text.parse::<u32>().is_ok() => (text.parse().ok().map(Which::Id), rest),
            text if text.starts_with('/') => (Some(Which::Pinned(text.into())), rest),
            text => (Some(Which::Name(text.to_owned())), rest),
        })
    }

    /// The choice alone; further words are a mistake.
    pub fn only(words: &[String]) -> Result<Option<Which>, Failure> {
        match Which::take(words)? {
            (which, []) => Ok(which),
            (_, [extra, ..]) => Err(Failure::usage(format!("{extra}: not expected here"))),
        }
    }

    /// The choice, which must be there.
    pub fn needed(words: &[String], what: &str) -> Result<(Which, Vec<String>), Failure> {
        let (which, rest) = Which::take(words)?;
        let missing = || {
            let hint = match what {
                "link" => "id N or pinned PATH",
                "prog" => "id N, name NAME, tag TAG or pinned PATH",
                _ => "id N, name NAME or pinned PATH",
            };
            Failure::usage(format!("which {}?", super::called(what))).hint(hint)
        };
        Ok((which.ok_or_else(missing)?, rest.to_vec()))
    }
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Id(id) => write!(f, "id {id}"),
            Which::Name(name) => write!(f, "name {name}"),
            Which::Tag(tag) => write!(f, "tag {tag}"),
            Which::Pinned(path) => write!(f, "pinned {}", path.display()),
        }
    }
}

/// The one of several candidates, or what to say instead.
pub fn one<T>(mut found: Vec<(u32, T)>, which: &Which, what: &str, on: HookKind) -> Result<T, Failure> {
    match found.len() {
        0 => Err(none(which, what, on)),
        1 => Ok(found.remove(0).1),
        _ => {
            let ids: Vec<String> = found.iter().map(|(id, _)| id.to_string()).collect();
            Err(Failure::usage(format!("{which}: {} of them, with ids {}", found.len(), ids.join(", ")))
                .hint(format!("choose one: id {}", ids[0])))
        }
    }
}

/// Nothing is meant by these words.
pub fn none(which: &Which, what: &str, on: HookKind) -> Failure {
    Failure::no(format!("no {} with {which}", super::called(what))).hint(super::show(what, on))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_choose() {
        for (text, want) in [
            ("id 7", Which::Id(7)),
            ("7", Which::Id(7)),
            ("name x", Which::Name("x".into())),
            ("x", Which::Name("x".into())),
            ("tag AB", Which::Tag("ab".into())),
            ("pinned /p", Which::Pinned("/p".into())),
            ("/p", Which::Pinned("/p".into())),
        ] {
            assert_eq!(Which::only(&words(text)).unwrap(), Some(want), "{text}");
        }
        assert_eq!(Which::only(&[]).unwrap(), None);
        for wrong in ["id", "id x", "name", "7 8"] {
            assert!(Which::only(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
