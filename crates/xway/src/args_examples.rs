//! The examples that `--help` shows are commands that the parser takes.

use clap::{Command, CommandFactory, Parser};

use crate::args::Cli;

/// Examples of a command and of its subcommands, with the name under which they stand.
fn examples(command: &Command, name: &str, out: &mut Vec<(String, String)>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for line in help.lines().filter(|l| l.starts_with("  xway ")) {
        // What is explained stands behind a gap; what follows goes to the shell.
        let line = line.trim().split("  ").next().unwrap_or_default();
        let line = line.split(" | ").next().and_then(|l| l.split(" > ").next()).unwrap_or_default();
        out.push((name.to_owned(), line.to_owned()));
    }
    for sub in command.get_subcommands() {
        examples(sub, &format!("{name} {}", sub.get_name()), out);
    }
}

/// Words as a shell would split them; only single quotes are known.
fn words(line: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => out.push(String::new()),
            c => out.last_mut().expect("there is a word").push(c),
        }
    }
    out.retain(|w| !w.is_empty());
    out
}

#[test]
fn every_example_of_the_help_is_a_command() {
    let mut all = Vec::new();
    examples(&Cli::command(), "xway", &mut all);
    assert!(all.len() > 60, "{} examples", all.len());
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|(verb, line)| {
            let e = Cli::try_parse_from(words(line)).err()?;
            Some(format!("{verb} --help shows `{line}`: {}", e.to_string().lines().next().unwrap_or("")))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
