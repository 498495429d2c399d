//! `xway completions` and `xway man`: both made from the definitions of the command line.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use serde_json::json;

use crate::args::Cli;
use crate::args_machine::{Completions, Man};
use crate::failure::Failure;
use crate::{output, print};

/// `xway completions`
pub fn completions(args: &Completions, as_json: bool) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "xway", &mut script);
    let script = String::from_utf8_lossy(&script);
    match as_json {
        true => {
            print::json(&print::document("completions", json!({ "shell": args.shell.to_string(), "script": script })))
        }
        false => print::text(&script),
    }
    Ok(())
}

/// `xway man`
pub fn man(args: &Man, as_json: bool) -> Result<(), Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    if let Some(verb) = find(&command, &args.words) {
        let page = page(verb)?;
        match as_json {
            true => print::json(&print::document("man", json!({ "page": page }))),
            false => print::text(&page),
        }
        return Ok(());
    }
    let dir = match args.words.as_slice() {
        [dir] if dir.contains('/') || Path::new(dir).is_dir() => Path::new(dir),
        words => {
            let words = words.join(" ");
            let failure = Failure::usage(format!("{words}: neither a verb nor a directory that is there"));
            return Err(failure.hint("xway man map show; or a directory by a path with a slash, ./man1, which is made"));
        }
    };
    std::fs::create_dir_all(dir).map_err(|e| Failure::file(dir.display(), &e).at("cannot create"))?;
    let mut written = Vec::new();
    pages(&command, dir, &mut written)?;
    let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    match as_json {
        true => print::json(&print::document("man", json!({ "pages": names }))),
        false => print::text(&(names.join("\n") + "\n")),
    }
    Ok(())
}

/// The command that these words lead to.
fn find<'c>(command: &'c Command, words: &[String]) -> Option<&'c Command> {
    words.iter().try_fold(command, |at, word| at.find_subcommand(word).filter(|verb| !verb.is_hide_set()))
}

/// Writes the page of a command and those of its verbs: `xway-map-show.1`.
fn pages(command: &Command, dir: &Path, written: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let path = dir.join(format!("{name}.1"));
    output::write(&path, page(command)?.as_bytes())?;
    written.push(path);
    command.get_subcommands().filter(|verb| !verb.is_hide_set()).try_for_each(|verb| pages(verb, dir, written))
}

fn page(command: &Command) -> Result<String, Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command.clone()).title(name).render(&mut page);
    rendered.map_err(|e| Failure::input(format!("man page: {e}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
