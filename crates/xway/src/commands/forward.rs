//! `xway forward`: the host's routes in the hook.

use serde_json::{Value, json};
use xway_hook::AttachmentInfo;
use xway_tools::forward::{self, Fib, OUTCOMES, Options};

use super::attached;
use super::kernel::attach::{Opened, Place, mode_of};
use super::kernel::tool_failure;
use crate::args_tools as args;
use crate::failure::Failure;
use crate::print;

/// Runs the verb.
pub fn run(args: &args::Forward, as_json: bool) -> Result<(), Failure> {
    match args {
        args::Forward::Load(args) => load(args, as_json),
        args::Forward::Unload(args) => unload(args, as_json),
        args::Forward::Status(args) => status(args, as_json),
    }
}

fn load(args: &args::ForwardLoad, as_json: bool) -> Result<(), Failure> {
    let mut place = Place::of(&args.place)?;
    let mut opened = Vec::new();
    for port in &args.ports {
        match place.open(port) {
            Ok(one) => opened.extend(one),
            Err(refused) => return Err(place.give_up(&opened, refused)),
        }
    }
    let mode = mode_of(&args.place, args.mode);
    let fib = match args.fib_mode {
        args::Fib::Full => Fib::Full,
        args::Fib::Direct => Fib::Direct,
    };
    let options = Options { fib, mode, priority: args.priority };
    let done = match forward::load(place.hook(), &args.ports, &options) {
        Ok(done) => done,
        Err(e) => return Err(place.give_up(&opened, tool_failure(e))),
    };
    let notes: Vec<String> = opened.iter().map(Opened::note).collect();
    if as_json {
        let ports: Vec<Value> =
            done.iter().map(|one| attached::json(&one.port, &one.attached, &one.warnings)).collect();
        print::json(&print::document(
            "forward load",
            json!({ "program": fib.program(), "ports": ports, "notes": notes }),
        ));
        return Ok(());
    }
    let mut out = String::new();
    for one in &done {
        out.push_str(&attached::text(&one.port, fib.program(), &one.attached, &one.warnings));
    }
    notes.iter().for_each(|note| out.push_str(&format!("note: {note}\n")));
    print::text(&out);
    Ok(())
}

fn unload(args: &args::ForwardUnload, as_json: bool) -> Result<(), Failure> {
    let mut place = Place::of(&args.place)?;
    let (mut gone, mut none) = (Vec::new(), Vec::new());
    for port in &args.ports {
        let ids = forward::unload(place.hook(), port).map_err(tool_failure)?;
        if ids.is_empty() {
            none.push(port.clone());
        }
        gone.extend(ids.into_iter().map(|id| (port.clone(), id.0)));
    }
    if as_json {
        let all: Vec<Value> = gone.iter().map(|(port, id)| json!({ "port": port, "program": id })).collect();
        print::json(&print::document("forward unload", json!({ "detached": all, "without": none })));
    } else {
        print::text(&gone.iter().map(|(port, id)| format!("{port}: program {id} is detached\n")).collect::<String>());
    }
    match none.first() {
        None => Ok(()),
        Some(port) => {
            let failure = Failure::no(format!("{port}: no forwarding program is attached"));
            let failure = failure.hint(format!("xway status {port}"));
            Err(if as_json { failure.said() } else { failure })
        }
    }
}

fn status(args: &args::ForwardStatus, as_json: bool) -> Result<(), Failure> {
    let mut place = Place::of(&args.place)?;
    let hook = place.hook();
    let all = forward::attached(hook, args.port.as_deref()).map_err(tool_failure)?;
    let counts = all.iter().map(|a| forward::counts(hook, a).map_err(tool_failure)).collect::<Result<Vec<_>, _>>()?;
    let named = |counts: &[u64]| OUTCOMES.into_iter().zip(counts.iter().copied()).collect::<Vec<_>>();
    if as_json {
        let one = |(a, counts): (&AttachmentInfo, &[u64; OUTCOMES.len()])| {
            let packets: serde_json::Map<String, Value> =
                named(counts).into_iter().map(|(name, n)| (name.to_owned(), json!(n))).collect();
            json!({
                "port": a.port,
                "program": { "id": a.program.id.0, "name": a.program.name },
                "mode": a.mode.name(),
                "packets": packets,
            })
        };
        let ports: Vec<Value> = all.iter().zip(&counts).map(one).collect();
        print::json(&print::document("forward status", json!({ "ports": ports })));
        return Ok(());
    }
    if all.is_empty() {
        print::text("no interface has a forwarding program\n");
        return Ok(());
    }
    let mut out = String::new();
    for (a, counts) in all.iter().zip(&counts) {
        out.push_str(&format!("{}: {} (id {})\n", a.port, a.program.name, a.program.id.0));
        let rows = named(counts).into_iter().filter(|(name, n)| *n > 0 || *name == "forwarded");
        let rows: Vec<Vec<String>> = rows.map(|(name, n)| vec![name.to_owned(), print::grouped(n)]).collect();
        out.push_str(&print::table(&rows));
    }
    print::text(&out);
    Ok(())
}
