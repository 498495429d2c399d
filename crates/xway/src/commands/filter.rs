//! `xway filter`: packets from listed senders and to listed ports are dropped in the hook.

use std::path::PathBuf;

use serde_json::{Value, json};
use xway_hook::Hook;
use xway_tools::filter::{self, Added, Count, Listed, Lists, OUTCOMES, Options, PROGRAM, Rule, Subject};

use super::kernel::attach::{Opened, Place, mode_of};
use super::kernel::tool_failure;
use super::{attached, stats};
use crate::args_filter as args;
use crate::failure::Failure;
use crate::print;

/// Runs the verb.
pub fn run(args: &args::Filter, as_json: bool) -> Result<(), Failure> {
    match args {
        args::Filter::Load(args) => load(args, as_json),
        args::Filter::Unload(args) => unload(args, as_json),
        args::Filter::Add(args) => add(args, as_json),
        args::Filter::Del(args) => del(args, as_json),
        args::Filter::List(args) => list(args, as_json),
        args::Filter::Stats(args) => watch(args, as_json),
    }
}

/// What was done: as a document, as text, or not at all.
fn say(quiet: args::Quiet, as_json: bool, command: &str, doc: Value, text: &str) {
    match as_json {
        true => print::json(&print::document(command, doc)),
        false if quiet.quiet => {}
        false => print::text(text),
    }
}

fn paths(all: &[PathBuf]) -> Vec<String> {
    all.iter().map(|p| p.display().to_string()).collect()
}

fn load(args: &args::Load, as_json: bool) -> Result<(), Failure> {
    let mut place = Place::of(&args.place)?;
    let mut opened = Vec::new();
    for port in &args.ports {
        match place.open(port) {
            Ok(one) => opened.extend(one),
            Err(refused) => return Err(place.give_up(&opened, refused)),
        }
    }
    let options = Options {
        mode: mode_of(&args.place, args.mode),
        priority: args.priority,
        pins: args.pins.clone(),
        owner: args.owner.clone(),
    };
    let done = match filter::load(place.hook(), &args.ports, &options) {
        Ok(done) => done,
        Err(e) => return Err(place.give_up(&opened, tool_failure(e))),
    };
    let mut notes: Vec<String> = opened.iter().map(Opened::note).collect();
    notes.extend(done.warnings);
    let mut text: String = done.ports.iter().map(|(port, a)| attached::text(port, PROGRAM, a, &[])).collect();
    for (word, all) in [("uses", paths(&done.shared)), ("pinned", paths(&done.pinned))] {
        all.iter().for_each(|path| text.push_str(&format!("  {word} {path}\n")));
    }
    notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    let ports: Vec<Value> = done.ports.iter().map(|(port, a)| attached::json(port, a, &[])).collect();
    let doc = json!({
        "program": PROGRAM,
        "ports": ports,
        "shared": paths(&done.shared),
        "pinned": paths(&done.pinned),
        "notes": notes,
    });
    say(args.quiet, as_json, "filter load", doc, &text);
    Ok(())
}

fn unload(args: &args::Unload, as_json: bool) -> Result<(), Failure> {
    let mut place = Place::of(&args.place)?;
    let gone = filter::unload(place.hook(), &args.ports, args.pins.as_deref()).map_err(tool_failure)?;
    let mut text = String::new();
    gone.programs.iter().for_each(|(port, id)| text.push_str(&format!("{port}: program {} is detached\n", id.0)));
    paths(&gone.pins).iter().for_each(|path| text.push_str(&format!("  removed {path}\n")));
    let programs: Vec<Value> =
        gone.programs.iter().map(|(port, id)| json!({ "port": port, "program": id.0 })).collect();
    say(args.quiet, as_json, "filter unload", json!({ "detached": programs, "removed": paths(&gone.pins) }), &text);
    Ok(())
}

/// The lists that were asked for, on their hook.
fn lists(which: &args::Which) -> Result<(Box<dyn Hook>, Lists), Failure> {
    let mut hook = Place::of(&which.place)?.boxed();
    let lists = match &which.pins {
        Some(dir) => filter::lists_pinned(&mut *hook, dir),
        None => filter::lists_at(&mut *hook, which.port.as_deref()),
    };
    Ok((hook, lists.map_err(tool_failure)?))
}

/// `"ip": "192.0.2.0/24"` or `"tcp_dport": 23`, with the action.
fn rule_json(rule: Rule) -> Value {
    let mut out = json!({ "action": rule.action() });
    match rule.subject {
        Subject::From(net) => out["ip"] = json!(net.to_string()),
        Subject::To(transport, port) => out[format!("{}_dport", transport.name())] = json!(port),
    }
    out
}

fn listed_json(one: &Listed) -> Value {
    let mut out = rule_json(one.rule);
    out["rule"] = json!(one.number);
    out["packets"] = json!(one.count.packets);
    out["bytes"] = json!(one.count.bytes);
    out
}

fn add(args: &args::Add, as_json: bool) -> Result<(), Failure> {
    let (mut hook, lists) = lists(&args.which)?;
    let rules: Vec<Rule> = args.subjects.all().into_iter().map(|subject| Rule { subject, pass: args.pass }).collect();
    let done = lists.add(&mut *hook, &rules).map_err(tool_failure)?;
    let word = |added| if added == Added::New { "on the list" } else { "on the list already" };
    let both = || rules.iter().zip(&done);
    let line = |(rule, added): (&Rule, &Added)| format!("{}: {} ({})\n", rule.subject, word(*added), rule.action());
    let one = |(rule, added): (&Rule, &Added)| {
        let mut doc = rule_json(*rule);
        doc["new"] = json!(*added == Added::New);
        doc
    };
    let doc = json!({ "rules": both().map(one).collect::<Vec<_>>() });
    say(args.quiet, as_json, "filter add", doc, &both().map(line).collect::<String>());
    Ok(())
}

fn del(args: &args::Del, as_json: bool) -> Result<(), Failure> {
    let (mut hook, lists) = lists(&args.which)?;
    let gone = lists.remove(&mut *hook, &args.subjects.all()).map_err(tool_failure)?;
    let line = |one: &Listed| {
        let packets = print::grouped(one.count.packets);
        format!("{}: off the list; it had met {packets} packets\n", one.rule.subject)
    };
    let doc = json!({ "rules": gone.iter().map(listed_json).collect::<Vec<_>>() });
    say(args.quiet, as_json, "filter del", doc, &gone.iter().map(line).collect::<String>());
    Ok(())
}

/// Filters with the ports that share them.
fn all(hook: &mut dyn Hook, which: &args::Which) -> Result<Vec<(Vec<String>, Lists)>, Failure> {
    if let Some(dir) = &which.pins {
        return Ok(vec![(Vec::new(), filter::lists_pinned(hook, dir).map_err(tool_failure)?)]);
    }
    let mut found: Vec<(Vec<String>, Lists)> = Vec::new();
    for one in filter::attached(hook, which.port.as_deref()).map_err(tool_failure)? {
        let lists = Lists::of(hook, &one).map_err(tool_failure)?;
        match found.iter_mut().find(|(_, other)| *other == lists) {
            Some((ports, _)) => ports.push(one.port),
            None => found.push((vec![one.port], lists)),
        }
    }
    if let (true, Some(port)) = (found.is_empty(), &which.port) {
        return Err(Failure::no(format!("{port}: no filter is attached")).hint(format!("xway filter load {port}")));
    }
    Ok(found)
}

fn list(args: &args::List, as_json: bool) -> Result<(), Failure> {
    let mut hook = Place::of(&args.which.place)?.boxed();
    let filters = all(&mut *hook, &args.which)?;
    let (mut text, mut docs) = (String::new(), Vec::new());
    for (ports, lists) in &filters {
        let rules = lists.all(&mut *hook).map_err(tool_failure)?;
        let outcomes = lists.outcomes(&mut *hook).map_err(tool_failure)?;
        let named = || OUTCOMES.into_iter().zip(outcomes);
        let title = match &args.which.pins {
            Some(dir) => dir.display().to_string(),
            None => ports.join(", "),
        };
        text.push_str(&format!("{title}: {} rules\n", print::grouped(rules.len() as u64)));
        let mut rows = vec![["", "action", "packets", "bytes"].map(str::to_owned).to_vec()];
        let cells = |name: String, action: &str, c: Count| {
            vec![name, action.to_owned(), print::grouped(c.packets), print::grouped(c.bytes)]
        };
        rows.extend(rules.iter().map(|one| cells(one.rule.subject.to_string(), one.rule.action(), one.count)));
        rows.extend(named().filter(|(_, c)| c.packets > 0).map(|(name, c)| cells(name.to_owned(), "-", c)));
        text.push_str(&print::table(&rows));
        let count = |c: Count| json!({ "packets": c.packets, "bytes": c.bytes });
        docs.push(json!({
            "ports": ports,
            "rules": rules.iter().map(listed_json).collect::<Vec<_>>(),
            "outcomes": named().map(|(name, c)| (name.to_owned(), count(c))).collect::<serde_json::Map<_, _>>(),
        }));
    }
    match as_json {
        true => print::json(&print::document("filter list", json!({ "filters": docs }))),
        false if filters.is_empty() => print::text("no port has a filter\n"),
        false => print::text(&text),
    }
    Ok(())
}

fn watch(args: &args::Stats, as_json: bool) -> Result<(), Failure> {
    let (mut hook, lists) = lists(&args.which)?;
    let title = match (&args.which.pins, &args.which.port) {
        (Some(dir), _) => dir.display().to_string(),
        (None, Some(port)) => port.clone(),
        (None, None) => PROGRAM.to_owned(),
    };
    let read = || -> Result<Vec<(String, u64)>, Failure> {
        let outcomes = lists.outcomes(&mut *hook).map_err(tool_failure)?;
        let mut all: Vec<(String, Count)> = OUTCOMES.into_iter().map(str::to_owned).zip(outcomes).collect();
        let rules = lists.all(&mut *hook).map_err(tool_failure)?;
        all.extend(rules.iter().map(|one| (one.rule.subject.to_string(), one.count)));
        let both =
            |(name, c): (String, Count)| [(format!("{name}.packets"), c.packets), (format!("{name}.bytes"), c.bytes)];
        Ok(all.into_iter().flat_map(both).collect())
    };
    stats::watch("filter stats", &title, &args.every, as_json, read)
}
