//! Names: C has one space for tags and one for everything else, and BTF may hold several types of one name.

use std::collections::{HashMap, HashSet};

/// Words that are no names in C.
const KEYWORDS: [&str; 44] = [
    "asm",
    "auto",
    "break",
    "case",
    "char",
    "const",
    "continue",
    "default",
    "do",
    "double",
    "else",
    "enum",
    "extern",
    "float",
    "for",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "register",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "typedef",
    "typeof",
    "union",
    "unsigned",
    "void",
    "volatile",
    "while",
    "_Alignas",
    "_Alignof",
    "_Atomic",
    "_Bool",
    "_Complex",
    "_Generic",
    "_Noreturn",
    "_Static_assert",
];

/// Who has a tag.
struct Holder {
    keyword: &'static str,
    /// A definition has it, not only announcements.
    whole: bool,
}

/// Names that were given.
pub(super) struct Names {
    tags: HashMap<String, Holder>,
    words: HashSet<String>,
    /// Those of types, by id.
    given: HashMap<u32, String>,
    /// The last flavour of a tag that was taken: of many with one name each is found at once.
    tag_flavours: HashMap<String, u32>,
    /// The same of words.
    word_flavours: HashMap<String, u32>,
}

impl Names {
    pub(super) fn new() -> Names {
        Names {
            tags: HashMap::new(),
            words: HashSet::new(),
            given: HashMap::new(),
            tag_flavours: HashMap::new(),
            word_flavours: HashMap::new(),
        }
    }

    /// The tag of a struct, union or enum. `whole`: of one that is defined; an announcement shares the name of the definition.
    pub(super) fn tag_of(&mut self, id: u32, name: &str, keyword: &'static str, whole: bool) -> String {
        if let Some(given) = self.given.get(&id) {
            return given.clone();
        }
        let tags = &mut self.tags;
        let name = first_free(name, &mut self.tag_flavours, |name| match tags.get_mut(name) {
            None => {
                tags.insert(name.to_owned(), Holder { keyword, whole });
                true
            }
            Some(holder) if holder.keyword == keyword && !(holder.whole && whole) => {
                holder.whole |= whole;
                true
            }
            Some(_) => false,
        });
        self.given.insert(id, name.clone());
        name
    }

    /// The name of a typedef.
    pub(super) fn word_of(&mut self, id: u32, name: &str) -> String {
        if let Some(given) = self.given.get(&id) {
            return given.clone();
        }
        let name = self.word(name);
        self.given.insert(id, name.clone());
        name
    }

    /// A constant of an enum.
    pub(super) fn word(&mut self, name: &str) -> String {
        first_free(name, &mut self.word_flavours, |name| self.words.insert(name.to_owned()))
    }
}

/// The name, or its first flavour that is `free`.
fn first_free(name: &str, flavours: &mut HashMap<String, u32>, mut free: impl FnMut(&str) -> bool) -> String {
    let name = valid(name);
    if free(&name) {
        return name;
    }
    let last = flavours.entry(name.clone()).or_insert(1);
    loop {
        *last += 1;
        let flavour = format!("{name}___{last}");
        if free(&flavour) {
            return flavour;
        }
    }
}

/// A name as C permits it: what is no letter, digit or underscore becomes one.
pub(super) fn valid(name: &str) -> String {
    let part = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let mut out: String = name.chars().map(part).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) || KEYWORDS.contains(&out.as_str()) {
        out.insert(0, '_');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once_and_announcements_share_it() {
        let mut names = Names::new();
        assert_eq!(names.tag_of(1, "x", "struct", false), "x");
        assert_eq!(names.tag_of(2, "x", "struct", true), "x");
        assert_eq!(names.tag_of(3, "x", "struct", true), "x___2");
        assert_eq!(names.tag_of(4, "x", "union", false), "x___3");
        assert_eq!(names.tag_of(3, "x", "struct", true), "x___2", "and stays");
        // Typedefs and constants have a space of their own.
        assert_eq!((names.word_of(5, "x"), names.word("x")), ("x".into(), "x___2".into()));
    }

    #[test]
    fn what_c_does_not_permit_is_changed() {
        for (name, want) in [("a.b", "a_b"), ("Vec<u8>", "Vec_u8_"), ("3d", "_3d"), ("int", "_int"), ("é", "_")] {
            assert_eq!(valid(name), want);
        }
    }
}
