//! Programs that the documentation shows as accepted or refused are, by `xway verify` and by the running kernel.

mod common;

use common::{Dir, clang, compiled, xway};
use xway_testkit::Needs;
use xway_testkit::clang::repository;

/// Code blocks of a page under a mark: what the mark says, and the code.
fn marked(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(repository().join(page)).unwrap();
    let blocks = text.split("<!-- ").skip(1).filter_map(|part| {
        let (mark, rest) = part.split_once(" -->\n```c\n")?;
        Some((mark.to_owned(), rest.split("```").next()?.to_owned()))
    });
    blocks.collect()
}

#[test]
fn what_maps_md_shows_as_accepted_and_refused() {
    if !clang("documentation::what_maps_md_shows_as_accepted_and_refused") {
        return;
    }
    let kernel = Needs::of("documentation: the kernel's verdict").root().kernel(5, 14).met();
    let blocks = marked("docs/maps.md");
    assert_eq!(blocks.len(), 3);
    for (n, (mark, code)) in blocks.iter().enumerate() {
        let dir = Dir::new();
        let text = format!("{code}\nchar _license[] SEC(\"license\") = \"Dual BSD/GPL\";\n");
        let object = compiled(&dir, &format!("block{n}"), &text, &[]);
        let refused = mark.strip_prefix("refused: ");
        assert!(refused.is_some() || mark == "accepted", "{mark}");
        let doc = xway(&["verify", &object, "-j"]).exits(i32::from(refused.is_some())).json();
        if let Some(kind) = refused {
            assert!(doc.to_string().contains(&format!("\"kind\":\"{kind}\"")), "{mark}: {doc}");
        }
        if kernel {
            let bytes = std::fs::read(&object).unwrap();
            let object = xway_object::Object::parse(&bytes, &xway_object::LoadOptions::default()).unwrap();
            let loaded = xway_kernel::KernelObject::load(&object).unwrap();
            assert_eq!(loaded.programs[0].is_err(), refused.is_some(), "{mark}: the kernel disagrees");
        }
    }
}

/// `docs/verifier.md`, "Each kind once": every program is accepted, and refused as its comments say without the lines that they mark.
#[test]
fn what_verifier_md_says_of_each_kind_of_register() {
    if !clang("documentation::what_verifier_md_says_of_each_kind_of_register") {
        return;
    }
    let dir = Dir::new();
    let verdict = |name: &str, code: &str| {
        let text = format!("{code}\nchar _license[] SEC(\"license\") = \"Dual BSD/GPL\";\n");
        let object = compiled(&dir, name, &text, &[]);
        xway(&["verify", &object, "-j"])
    };
    let worked: Vec<_> = marked("docs/verifier.md").into_iter().filter(|(mark, _)| mark == "worked").collect();
    assert_eq!(worked.len(), 12);
    let mut needed = 0;
    for (n, (_, code)) in worked.iter().enumerate() {
        verdict(&format!("kind{n}"), code).exits(0);
        let lines: Vec<&str> = code.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some((_, other)) = line.split_once("// else ") else { continue };
            let (kind, instead) = other.split_once(": ").unwrap_or((other, ""));
            let mut lines = lines.clone();
            lines[at] = instead;
            let doc = verdict(&format!("kind{n}_{at}"), &lines.join("\n")).exits(1).json();
            assert!(doc.to_string().contains(&format!("\"kind\":\"{kind}\"")), "{line}: {doc}");
            needed += 1;
        }
    }
    assert!(needed > 12, "{needed}");
}

/// The verbs of a table's first cell: what stands in its code spans. One that does not begin with the command, or with a word of the
/// one before, stands for that one with another last word.
fn verbs(cell: &str) -> Vec<String> {
    let mut out: Vec<Vec<&str>> = Vec::new();
    for span in cell.split('`').skip(1).step_by(2) {
        let is_verb = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c == '_');
        let words: Vec<&str> = span.split_whitespace().take_while(is_verb).collect();
        let verb = match (words.first(), out.last()) {
            (Some(&"xway"), _) => words[1..].to_vec(),
            (Some(first), Some(before)) if before[0] != *first => [&before[..before.len() - 1], &words].concat(),
            _ => words,
        };
        out.push(verb);
    }
    out.iter().map(|words| words.join("-")).collect()
}

#[test]
fn the_table_of_xway_md_has_every_verb() {
    let dir = Dir::new();
    xway(&["man", dir.path("man").to_str().unwrap()]).exits(0);
    let files = std::fs::read_dir(dir.path("man")).unwrap();
    let pages: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let pages: Vec<&str> = pages.iter().filter_map(|page| page.strip_prefix("xway-")?.strip_suffix(".1")).collect();
    let is_group =
        |verb: &&&str| pages.iter().any(|page| page.strip_prefix(**verb).is_some_and(|rest| rest.starts_with('-')));
    // `redirect` is a verb, and the beginning of others.
    let mut there: Vec<&str> =
        pages.iter().filter(|verb| **verb == "bench-redirect" || !is_group(verb)).copied().collect();
    there.sort_unstable();
    let text = std::fs::read_to_string(repository().join("docs/xway.md")).unwrap();
    let table =
        text.lines().skip_while(|line| !line.starts_with("| verb")).skip(2).take_while(|line| line.starts_with('|'));
    let mut told: Vec<String> = table.flat_map(|row| verbs(row.split(" | ").next().unwrap())).collect();
    told.sort_unstable();
    assert_eq!(told, there);
}
