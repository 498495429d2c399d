//! Programs on any hook: which one is meant, and whether it is one that is loaded or one in an object.

use std::path::{Path, PathBuf};

use xway_hook::{Hook, ObjectId, ProgId, ProgramInfo, pins};

use super::prog::tag;
use super::which::{self, Which};
use super::{failure, failure_of};
use crate::args::{Part, Select};
use crate::failure::Failure;

/// A program that a command is about.
#[derive(Clone, Debug)]
pub enum Subject {
    /// One in an object file.
    Object(Select),
    /// One that is loaded on a hook.
    Loaded(Which),
}

impl Subject {
    /// Takes it from the front of the words; gives what is left. A word that is neither a number nor bpftool's nor a pin is an
    /// object file.
    pub fn take(words: &[String], part: &Part) -> Result<(Subject, Vec<String>), Failure> {
        let first = words.first().map_or("", String::as_str);
        let loaded = matches!(first, "id" | "name" | "tag" | "pinned") && words.len() > 1
            || first.parse::<u32>().is_ok()
            || first.starts_with('/') && pins::is_bpffs(Path::new(first));
        if !loaded {
            let object = PathBuf::from(first);
            // A bare word is rather a program's name than a file's.
            if !first.is_empty() && !first.contains(['/', '.']) && !object.exists() {
                let hint = format!("a program that is loaded: name {first}, id N, tag TAG or pinned PATH");
                return Err(Failure::input(format!("{first}: no such file")).hint(hint));
            }
            let rest = words.get(1..).unwrap_or_default().to_vec();
            return Ok((Subject::Object(Select { object, part: part.clone() }), rest));
        }
        let (which, rest) = Which::needed(words, "prog")?;
        for (option, given) in
            [("-n", part.name.is_some()), ("-s", part.section.is_some()), ("--btf", part.btf.is_some())]
        {
            if given {
                let message = format!("{option}: it chooses in an object file, and {which} is loaded already");
                return Err(Failure::usage(message));
            }
        }
        Ok((Subject::Loaded(which), rest))
    }
}

/// The one program that is meant.
pub fn open(hook: &mut dyn Hook, which: &Which) -> Result<ProgId, Failure> {
    let on = hook.kind();
    match which {
        Which::Id(id) => Ok(hook.program_info(ProgId(*id)).map_err(|e| failure_of("prog", on, e))?.id),
        Which::Pinned(path) => match hook.pinned(path).map_err(|e| failure_of("prog", on, e))? {
            ObjectId::Program(id) => Ok(id),
            ObjectId::Map(_) => Err(Failure::no(format!("{which}: it is a map"))),
        },
        Which::Name(_) | Which::Tag(_) => {
            let found = all(hook, Some(which))?;
            which::one(found.into_iter().map(|p| (p.id.0, p.id)).collect(), which, "prog", on)
        }
    }
}

/// All programs, or those with a name or a tag.
pub fn all(hook: &mut dyn Hook, which: Option<&Which>) -> Result<Vec<ProgramInfo>, Failure> {
    let wanted = |p: &ProgramInfo| match which {
        // Linux keeps 15 characters of a name.
        Some(Which::Name(name)) => p.name == name.chars().take(15).collect::<String>(),
        Some(Which::Tag(text)) => tag(&p.tag) == *text,
        _ => true,
    };
    Ok(hook.programs().map_err(failure)?.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_and_a_program_are_told_apart() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let take = |text: &str| Subject::take(&words(text), &Part::default()).unwrap();
        for (text, which) in [
            ("42", Which::Id(42)),
            ("id 42", Which::Id(42)),
            ("name drop", Which::Name("drop".into())),
            ("tag 00FF00ff00ff00ff", Which::Tag("00ff00ff00ff00ff".into())),
            ("pinned /config/x", Which::Pinned("/config/x".into())),
        ] {
            let (subject, rest) = take(&format!("{text} repeat 3"));
            assert!(matches!(&subject, Subject::Loaded(w) if *w == which), "{text}: {subject:?}");
            assert_eq!(rest, words("repeat 3"));
        }
        for text in ["filter.o", "./42", "/tmp/filter.o"] {
            assert!(matches!(take(text).0, Subject::Object(s) if s.object == Path::new(text)), "{text}");
        }
        let bare = Subject::take(&words("filter"), &Part::default()).unwrap_err();
        assert!(bare.hint.is_some_and(|hint| hint.contains("name filter, id N")), "{}", bare.message);
        let part = Part { name: Some("f".into()), ..Part::default() };
        assert!(Subject::take(&words("id 3"), &part).unwrap_err().message.starts_with("-n"));
    }
}
