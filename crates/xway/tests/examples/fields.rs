//! What docs/json.md says of the documents, and real documents beside it.
//!
//! A section of the page is a verb (`xway status`) or a shape that several verbs share; its rows are the members of an object:
//!
//! ```text
//! | `name` | what |                 there in every such object; null where there is nothing to say
//! | `name`? | what |                may be absent
//! | `list[]`, `by_key{}` | … |      a list, an object whose members have names of their own
//! | `a.b` | what |                  member of a member
//! | `name…` | what |                anything
//! | `name` | … [shape](#shape) |    an object of that shape, or a list of them
//! ```

use std::collections::BTreeMap;

use serde_json::Value;

/// What is said of one member, or of an object.
#[derive(Default, Debug)]
struct Node {
    members: BTreeMap<String, Node>,
    list: bool,
    keyed: bool,
    optional: bool,
    anything: bool,
    shape: Option<String>,
}

/// The page.
pub struct Fields(BTreeMap<String, Node>);

impl Fields {
    pub fn read() -> Fields {
        let path = xway_testkit::clang::repository().join("docs/json.md");
        Fields::parse(&std::fs::read_to_string(path).unwrap())
    }

    fn parse(text: &str) -> Fields {
        let mut sections: BTreeMap<String, Node> = BTreeMap::new();
        let mut at = None;
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("### ") {
                at = Some(anchor(title));
                assert!(sections.insert(at.clone().unwrap(), Node::default()).is_none(), "{title} stands there twice");
            } else if line.starts_with('#') {
                at = None;
            }
            let (Some(section), Some(row)) = (&at, line.strip_prefix("| `")) else { continue };
            let (names, what) = row.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
            let what = what.trim_end_matches(" |");
            assert!(!what.is_empty(), "{section}: {line}");
            let shape = what.split_once("](#").and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| name);
            for name in format!("`{names}").split(", ") {
                let optional = name.ends_with('?');
                let name = name.trim_end_matches('?').trim_matches('`');
                sections.get_mut(section).unwrap().put(name, optional, shape);
            }
        }
        Fields(sections)
    }

    /// Sections of verbs, with `-` between words.
    pub fn verbs(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|title| title.strip_prefix("xway-"))
    }

    /// What is wrong with a document of a verb.
    pub fn complaints(&self, verb: &str, document: &Value) -> Vec<String> {
        let mut out = Vec::new();
        let title = format!("xway {verb}");
        match self.0.get(&anchor(&title)) {
            Some(node) => {
                let mut document = document.clone();
                for common in ["schema_version", "command"] {
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

    fn look(&self, node: &Node, value: &Value, at: &str, out: &mut Vec<String>) {
        match value {
            _ if node.anything => {}
            Value::Null => {}
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
            Value::Array(_) => out.push(format!("{at}: a list that is not described as one")),
            _ if !described.members.is_empty() => out.push(format!("{at}: described as an object, and is {value}")),
            _ => {}
        }
    }
}

/// A section's name in a link.
fn anchor(title: &str) -> String {
    title.trim_matches('`').replace(' ', "-")
}

impl Node {
    fn put(&mut self, path: &str, optional: bool, shape: Option<&str>) {
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
            Some(rest) => node.put(rest, optional, shape),
            None => {
                node.optional = optional;
                node.shape = shape.map(str::to_owned);
            }
        }
    }
}

#[test]
fn a_document_is_compared_with_the_page() {
    let page = "## Shapes\n### program\n| `id` | its number |\n| `name`? | its name |\n## Verbs\n### `xway show`\n\
                | `programs[]` | each a [program](#program) |\n| `mode.asked`, `mode.got` | how |\n| `by_map{}` | numbers |\n\
                | `raw…` | what came |\n";
    let fields = Fields::parse(page);
    let said = |mut document: Value| {
        document["schema_version"] = 1.into();
        document["command"] = "show".into();
        fields.complaints("show", &document)
    };
    let good = serde_json::json!({ "programs": [{ "id": 1 }, { "id": 2, "name": null }], "mode": { "asked": "a", "got": "b" },
        "by_map": { "m": 1 }, "raw": [{ "x": 1 }] });
    assert_eq!(said(good.clone()), [""; 0]);
    for (pointer, value, complaint) in [
        ("/programs/0/new", Value::Null, "programs.new: not described"),
        ("/programs", Value::from(7), "programs: described as a list"),
        ("/mode", serde_json::json!({ "asked": "a" }), "mode.got: described and not there"),
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
}
