//! What docs/json.md says of the documents, and real documents beside it.
//!
//! A section of the page is a verb (`xway status`) or a shape that several verbs share; its rows are the members of an object:
//!
//! ```text
//! | `name` | what |                 there in every such object, and never null
//! | `name` | what; null: … |        there in every such object; the word `null` says that it may be that
//! | `name`? | what |                may be absent; some example of the verb prints it
//! | `list[]`, `by_key{}` | … |      a list, an object whose members have names of their own
//! | `a.b` | what |                  member of a member
//! | `name…` | what |                anything
//! | `name` | … [shape](#shape) |    an object of that shape, or a list of them
//! ```
//!
//! A title may name several verbs: `` ### `xway bench pool`, `ring` ``.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What is said of one member, or of an object.
#[derive(Default, Debug)]
struct Node {
    members: BTreeMap<String, Node>,
    list: bool,
    keyed: bool,
    optional: bool,
    nullable: bool,
    anything: bool,
    shape: Option<String>,
}

/// The page, and which of its rows some document had.
pub struct Fields(BTreeMap<String, Node>, RefCell<BTreeSet<*const Node>>);

/// Members of every document.
const COMMON: [&str; 2] = ["schema_version", "command"];

impl Fields {
    pub fn read() -> Fields {
        let path = xway_testkit::clang::repository().join("docs/json.md");
        Fields::parse(&std::fs::read_to_string(path).unwrap())
    }

    fn parse(text: &str) -> Fields {
        let mut sections: BTreeMap<String, Node> = BTreeMap::new();
        let mut at = Vec::new();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("### ") {
                at = anchors(title);
                for name in &at {
                    assert!(sections.insert(name.clone(), Node::default()).is_none(), "{title} stands there twice");
                }
            } else if line.starts_with('#') {
                at.clear();
            }
            let (Some(section), Some(row)) = (at.first(), line.strip_prefix("| `")) else { continue };
            let (names, what) = row.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
            let what = what.trim_end_matches(" |");
            assert!(!what.is_empty(), "{section}: {line}");
            let shape = what.split_once("](#").and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| name);
            for name in format!("`{names}").split(", ") {
                let optional = name.ends_with('?');
                let name = name.trim_end_matches('?').trim_matches('`');
                let nullable = what.split(|c: char| !c.is_alphanumeric()).any(|word| word == "null");
                at.iter().for_each(|at| sections.get_mut(at).unwrap().put(name, optional, nullable, shape));
            }
        }
        Fields(sections, RefCell::default())
    }

    /// Sections of verbs, with `-` between words.
    pub fn verbs(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|title| title.strip_prefix("xway-"))
    }

    /// What is wrong with a document of a verb.
    pub fn complaints(&self, verb: &str, document: &Value) -> Vec<String> {
        let mut out = Vec::new();
        let title = format!("xway {verb}");
        // A command that failed has said so, in a document that is the same for all.
        let failed = document.get("error").is_some_and(Value::is_object);
        let section = if failed { "failed".to_owned() } else { anchor(&title) };
        match self.0.get(&section) {
            Some(node) => {
                let mut document = document.clone();
                if document["command"] != verb {
                    out.push(format!("{title}: its command is {}", document["command"]));
                }
                for common in COMMON {
                    if document.as_object_mut().is_none_or(|all| all.remove(common).is_none()) {
                        out.push(format!("{title}: {common} is missing"));
                    }
                }
                self.look(node, &document, &title, &mut out);
            }
            None => out.push(format!("docs/json.md has no section ### {title}")),
        }
        out.sort();
        out.dedup();
        out
    }

    /// Rows of a verb with `?` that no document had which was looked at.
    pub fn never(&self, verb: &str) -> Vec<String> {
        fn walk(node: &Node, at: &str, seen: &BTreeSet<*const Node>, out: &mut Vec<String>) {
            for (name, member) in &node.members {
                let at = format!("{at}.{name}");
                if !seen.contains(&std::ptr::from_ref(member)) && member.optional {
                    out.push(at);
                } else {
                    walk(member, &at, seen, out);
                }
            }
        }
        let mut out = Vec::new();
        if let Some(section) = self.0.get(&anchor(&format!("xway {verb}"))) {
            walk(section, verb, &self.1.borrow(), &mut out);
        }
        out
    }

    fn look(&self, node: &Node, value: &Value, at: &str, out: &mut Vec<String>) {
        self.1.borrow_mut().insert(node);
        match value {
            Value::Null if node.nullable => {}
            Value::Null => out.push(format!("{at}: null, which the page does not say")),
            _ if node.anything => {}
            Value::Array(all) if node.list => {
                all.iter().for_each(|one| self.inside(node, one, at, out));
            }
            Value::Object(all) if node.keyed => {
                all.values().for_each(|one| self.inside(node, one, at, out));
            }
            _ if node.list || node.keyed => out.push(format!("{at}: described as a list or by names, and is {value}")),
            value => self.inside(node, value, at, out),
        }
    }

    fn inside(&self, node: &Node, value: &Value, at: &str, out: &mut Vec<String>) {
        let described = match &node.shape {
            Some(shape) => match self.0.get(shape) {
                Some(section) => section,
                None => return out.push(format!("{at}: there is no shape {shape}")),
            },
            None => node,
        };
        match value {
            Value::Object(all) => {
                for (name, value) in all {
                    match described.members.get(name) {
                        Some(member) => self.look(member, value, &format!("{at}.{name}"), out),
                        None => out.push(format!("{at}.{name}: not described")),
                    }
                }
                for (name, member) in &described.members {
                    if !member.optional && !all.contains_key(name) {
                        out.push(format!("{at}.{name}: described and not there"));
                    }
                }
            }
            Value::Null => out.push(format!("{at}: null among others, which the page does not say")),
            Value::Array(_) => out.push(format!("{at}: a list that is not described as one")),
            _ if !described.members.is_empty() => out.push(format!("{at}: described as an object, and is {value}")),
            _ => {}
        }
    }
}

/// Names of a section that is about several verbs, which differ in their last words: `` `xway bench pool`, `ring` ``.
fn anchors(title: &str) -> Vec<String> {
    let mut names = title.split(", ");
    let first = names.next().unwrap_or_default().trim_matches('`');
    let above = first.rsplit_once(' ').map_or("", |(above, _)| above);
    let others = names.map(|name| anchor(&format!("{above} {}", name.trim_matches('`'))));
    [anchor(first)].into_iter().chain(others).collect()
}

/// A section's name in a link.
fn anchor(title: &str) -> String {
    title.trim_matches('`').replace(' ', "-")
}

impl Node {
    fn put(&mut self, path: &str, optional: bool, nullable: bool, shape: Option<&str>) {
        let (first, rest) = match path.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (path, None),
        };
        let plain = first.trim_end_matches(['[', ']', '{', '}', '…']);
        let node = self.members.entry(plain.to_owned()).or_default();
        node.list |= first.ends_with("[]");
        node.keyed |= first.ends_with("{}");
        node.anything |= first.ends_with('…');
        match rest {
            Some(rest) => node.put(rest, optional, nullable, shape),
            None => {
                node.optional = optional;
                node.nullable = nullable;
                node.shape = shape.map(str::to_owned);
            }
        }
    }
}

#[test]
fn a_document_is_compared_with_the_page() {
    let page = "## Shapes\n### program\n| `id` | its number |\n| `name`? | its name, or null |\n## Verbs\n### `xway show`\n\
                | `programs[]` | each a [program](#program) |\n| `mode.asked`, `mode.got` | how |\n| `by_map{}` | numbers |\n\
                | `raw…` | what came |\n| `rare`? | seldom |\n### `xway a b-c`, `d-e`\n| `id` | a number |\n### failed\n| `error.kind` | what |\n";
    let fields = Fields::parse(page);
    let said = |mut document: Value| {
        document["schema_version"] = 1.into();
        document["command"] = "show".into();
        fields.complaints("show", &document)
    };
    let good = serde_json::json!({ "programs": [{ "id": 1 }, { "id": 2, "name": null }], "mode": { "asked": "a", "got": "b" },
        "by_map": { "m": 1 }, "raw": [{ "x": 1 }] });
    assert_eq!(said(good.clone()), [""; 0]);
    assert_eq!(fields.never("show"), ["show.rare"]);
    assert_eq!(said(serde_json::json!({ "error": { "kind": "no" } })), [""; 0]);
    assert_eq!(said(serde_json::json!({ "error": {} })), ["xway show.error.kind: described and not there"]);
    for (pointer, value, complaint) in [
        ("/programs/0/new", Value::Null, "programs.new: not described"),
        ("/programs", Value::from(7), "programs: described as a list"),
        ("/mode", serde_json::json!({ "asked": "a" }), "mode.got: described and not there"),
        ("/programs/0/id", Value::Null, "programs.id: null"),
        ("/programs/0", Value::Null, "programs: null among"),
        ("/by_map", Value::Null, "by_map: null"),
        ("/raw", Value::Null, "raw: null"),
        ("/mode/got", serde_json::json!([1]), "mode.got: a list"),
        ("/mode/got", serde_json::json!({ "x": 1 }), "mode.got.x: not described"),
    ] {
        let mut bad = good.clone();
        match bad.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => bad["programs"][0]["new"] = value,
        }
        let told = said(bad);
        assert!(told.iter().any(|line| line.contains(complaint)), "{complaint}: {told:?}");
    }
    assert!(fields.complaints("other", &good)[0].contains("no section"));
    for verb in ["a b-c", "a d-e"] {
        let document = serde_json::json!({ "schema_version": 1, "command": verb, "id": null });
        assert_eq!(fields.complaints(verb, &document), [format!("xway {verb}.id: null, which the page does not say")]);
    }
    let named = serde_json::json!({ "schema_version": 1, "command": "map", "error": { "kind": "no" } });
    assert_eq!(fields.complaints("show", &named), ["xway show: its command is \"map\""]);
}
