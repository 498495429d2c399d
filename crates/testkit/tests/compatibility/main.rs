//! COMPATIBILITY.md is made from the tables that the code itself works by, and kept up to date by this test.
//!
//! `XWAY_BLESS=1 cargo test -p xway-testkit --test compatibility` writes it anew.

mod helpers;
mod kfuncs;
mod language;
mod maps;
mod proofs;

use std::fmt::Write;

use xway_testkit::clang::repository;

/// A table in Markdown: heads, then rows of as many cells.
struct Table(String);

impl Table {
    fn new(heads: &[&str]) -> Table {
        let mut table = Table(String::new());
        table.row(heads);
        table.row(&vec!["---"; heads.len()]);
        table
    }

    fn row<S: AsRef<str>>(&mut self, cells: &[S]) {
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        let _ = writeln!(self.0, "| {} |", cells.join(" | "));
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

const INTRODUCTION: &str = "# Compatibility with Linux 6.18

What an XDP program meets here, beside what it meets in Linux: **yes** is the same, **differs** says how, **no** is not there.
A program that needs what is not there is refused with the name of what it needs, unless a row says otherwise.

This page is made from the tables that loader, verifier and engine work by (`make test` fails when it is not up to date):
`XWAY_BLESS=1 cargo test -p xway-testkit --test compatibility` writes it anew. The tables themselves are held against the
running kernel by the tests in `crates/kernel/tests`.
";

fn page() -> String {
    let sections = [
        language::instructions(),
        language::sections(),
        language::context(),
        helpers::helpers(),
        helpers::kfuncs(),
        maps::types(),
        maps::flags(),
        maps::helpers_by_map(),
    ];
    let mut page = INTRODUCTION.to_owned();
    for section in sections {
        page.push('\n');
        page += &section;
    }
    page
}

#[test]
fn the_page_is_up_to_date() {
    let path = repository().join("COMPATIBILITY.md");
    let page = page();
    if std::env::var_os("XWAY_BLESS").is_some() {
        std::fs::write(&path, &page).expect("COMPATIBILITY.md can be written");
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(page.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or(committed.lines().count().min(page.lines().count())) + 1;
    assert!(
        committed == page,
        "COMPATIBILITY.md:{line} is out of date: run XWAY_BLESS=1 cargo test -p xway-testkit --test compatibility"
    );
}
