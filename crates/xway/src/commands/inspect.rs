//! `xway prog inspect`: what is in an object.

use std::fmt::Write;

use serde_json::{Value, json};
use xway_object::{Initial, MapDef, MapKind, Object, Program, SlotRef};
use xway_verifier::{Config, Facts, MapsView, Rejection, Verified, verify};

use crate::args;
use crate::disasm::disassemble;
use crate::failure::Failure;
use crate::load;
use crate::needs::{Uses, helper_name};
use crate::print::{self, Paint};

/// Runs the command.
pub fn run(args: &args::Inspect, as_json: bool) -> Result<(), Failure> {
    let object = load::object(&args.select)?;
    let one;
    let chosen: Vec<&Program> = if args.select.part.name.is_some() || args.select.part.section.is_some() {
        one = load::choose(&object, &args.select)?;
        vec![&one]
    } else {
        object.programs.iter().collect()
    };
    if as_json {
        print::json(&print::document("prog inspect", document(&object, &chosen, args)));
    } else {
        print::text(&text(&object, &chosen, args));
    }
    Ok(())
}

fn document(object: &Object, chosen: &[&Program], args: &args::Inspect) -> Value {
    let programs: Vec<Value> = chosen.iter().map(|p| program_json(object, p, args)).collect();
    let rejected: Vec<Value> = object
        .rejected
        .iter()
        .map(|r| json!({ "name": r.name, "section": r.section, "type": r.kind.name(), "error": r.error.to_string() }))
        .collect();
    let sections: Vec<Value> = object
        .sections
        .iter()
        .map(|s| json!({ "index": s.index, "name": s.name, "size": s.size, "executable": s.executable, "alloc": s.alloc }))
        .collect();
    json!({
        "object": args.select.object.display().to_string(),
        "license": object.license,
        "version": object.version,
        "btf": object.btf.is_some(),
        "sections": sections,
        "programs": programs,
        "rejected": rejected,
        "maps": object.maps.iter().map(|m| map_json(object, m)).collect::<Vec<_>>(),
        "notes": object.notes,
    })
}

/// The verifier's answer; none for a program of another hook.
fn prove(object: &Object, program: &Program) -> Proof {
    let program = program.as_xdp().ok()?;
    Some(verify(&program, &MapsView::from(object), &Config::default()))
}

type Proof = Option<Result<Verified, Rejection>>;

fn facts(proof: &Proof) -> Option<&Facts> {
    proof.as_ref()?.as_ref().ok().map(Verified::facts)
}

fn verdict(proof: &Proof) -> Option<&'static str> {
    proof.as_ref().map(|p| if p.is_ok() { "accepted" } else { "rejected" })
}

fn program_json(object: &Object, program: &Program, args: &args::Inspect) -> Value {
    let uses = Uses::of(program);
    let proof = prove(object, program);
    let helpers: Vec<Value> =
        uses.helpers.iter().map(|(id, calls)| json!({ "id": id, "name": helper_name(*id), "calls": calls })).collect();
    let subprograms: Vec<Value> = program
        .subprogs
        .iter()
        .map(|s| json!({ "name": s.name, "start": s.start, "insns": s.len, "global": s.global }))
        .collect();
    let mut out = json!({
        "name": program.name,
        "section": program.section,
        "type": program.kind.name(),
        "frags": program.kind.frags(),
        "tag": load::tag(program),
        "insns": program.insns.len(),
        "subprograms": subprograms,
        "maps": uses.maps.iter().filter_map(|i| object.maps.get(*i)).map(|m| m.name.as_str()).collect::<Vec<_>>(),
        "helpers": helpers,
        "kfuncs": uses.kfuncs,
        "needs": uses.needs(object, program, facts(&proof)),
        "verdict": verdict(&proof),
    });
    if args.insns || args.source {
        out["disassembly"] = disassembly(object, program, args.source);
    }
    out
}

/// Instructions for JSON, with source lines where they begin.
pub fn disassembly(object: &Object, program: &Program, source: bool) -> Value {
    let lines: Vec<Value> = disassemble(object, program)
        .into_iter()
        .map(|line| {
            let mut entry = json!({ "insn": line.insn, "opcode": line.opcode, "text": line.text });
            let source = program.line_info.iter().find(|l| l.insn == line.insn).filter(|_| source);
            if let Some(l) = source {
                entry["source"] = json!({ "file": &*l.file, "line": l.line, "column": l.col, "text": l.text.trim() });
            }
            entry
        })
        .collect();
    json!(lines)
}

fn map_json(object: &Object, map: &MapDef) -> Value {
    json!({
        "name": map.name,
        "type": map.spec.map_type.name(),
        "key_size": map.spec.key_size,
        "value_size": map.spec.value_size,
        "max_entries": map.spec.max_entries,
        "flags": map.spec.flags,
        "kind": kind_name(map.kind),
        "key_type": type_name(object, map.key_type),
        "value_type": type_name(object, map.value_type),
        "inner": map.spec.inner.as_ref().map(|i| json!({
            "type": i.map_type.name(), "key_size": i.key_size, "value_size": i.value_size, "max_entries": i.max_entries,
        })),
        "initial": initial(object, map),
        "frozen": map.frozen,
    })
}

fn kind_name(kind: MapKind) -> &'static str {
    match kind {
        MapKind::User => "map",
        MapKind::Rodata => "rodata",
        MapKind::Data => "data",
        MapKind::Bss => "bss",
        MapKind::Kconfig => "kconfig",
    }
}

fn type_name(object: &Object, id: u32) -> Option<String> {
    object.btf.as_ref().filter(|_| id != 0).map(|b| b.type_name(id))
}

fn initial(object: &Object, map: &MapDef) -> Option<String> {
    match &map.initial {
        Initial::None => None,
        Initial::Data(bytes) => Some(format!("{} bytes", bytes.len())),
        Initial::Slots(slots) => {
            let name = |r: &SlotRef| match *r {
                SlotRef::Map(i) => object.maps.get(i).map_or("?", |m| &m.name),
                SlotRef::Program(i) => object.programs.get(i).map_or("?", |p| &p.name),
            };
            Some(slots.iter().map(|(k, r)| format!("{k}={}", name(r))).collect::<Vec<_>>().join(" "))
        }
    }
}

fn text(object: &Object, chosen: &[&Program], args: &args::Inspect) -> String {
    let mut out = String::new();
    let license = object.license.as_deref().map_or("no license".into(), |l| format!("license {l}"));
    let btf = if object.btf.is_some() { "with type information" } else { "without type information (compile with -g)" };
    let _ = writeln!(out, "{}: {license}, {btf}", args.select.object.display());
    for note in &object.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.push_str("\nSections\n");
    let rows: Vec<Vec<String>> = object
        .sections
        .iter()
        .filter(|s| s.size > 0 && (s.alloc || s.executable))
        .map(|s| {
            vec![
                s.name.clone(),
                format!("{} bytes", print::grouped(s.size)),
                if s.executable { "code" } else { "data" }.into(),
            ]
        })
        .collect();
    out.push_str(&print::table(&rows));
    if !object.maps.is_empty() {
        out.push_str("\nMaps\n");
        let mut rows = vec![["name", "type", "key", "value", "entries", "flags", "holds"].map(String::from).to_vec()];
        rows.extend(object.maps.iter().map(|m| map_row(object, m)));
        out.push_str(&print::table(&rows));
    }
    let paint = Paint::stdout();
    for program in chosen {
        out.push('\n');
        out.push_str(&program_text(object, program));
        if args.insns || args.source {
            out.push('\n');
            out.push_str(&listing(object, program, args.source, paint));
        }
    }
    for r in &object.rejected {
        let _ = writeln!(out, "\nProgram {} (section {}) cannot be loaded: {}", r.name, r.section, r.error);
    }
    out
}

fn map_row(object: &Object, m: &MapDef) -> Vec<String> {
    let sized = |id: u32, size: u32| match type_name(object, id).filter(|_| m.kind == MapKind::User) {
        Some(name) => format!("{size} ({name})"),
        None => size.to_string(),
    };
    vec![
        m.name.clone(),
        m.spec.map_type.name().into(),
        sized(m.key_type, m.spec.key_size),
        sized(m.value_type, m.spec.value_size),
        m.spec.max_entries.to_string(),
        format!("{:#x}", m.spec.flags),
        initial(object, m).unwrap_or_else(|| "-".into()),
    ]
}

fn program_text(object: &Object, program: &Program) -> String {
    let uses = Uses::of(program);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "Program {}: section {}, type {}{}, {} instructions, tag {}",
        program.name,
        program.section,
        program.kind.name(),
        if program.kind.frags() { " (frags)" } else { "" },
        program.insns.len(),
        load::tag(program)
    );
    let mut line = |what: &str, list: &[String]| {
        if !list.is_empty() {
            let _ = writeln!(out, "  {what:<12} {}", list.join(", "));
        }
    };
    if program.subprogs.len() > 1 {
        let list: Vec<String> = program
            .subprogs
            .iter()
            .map(|s| format!("{} ({}..{}{})", s.name, s.start, s.start + s.len, if s.global { ", global" } else { "" }))
            .collect();
        line("functions", &list);
    }
    let typed = |m: &MapDef| format!("{} ({})", m.name, m.spec.map_type.name());
    let maps: Vec<String> = uses.maps.iter().filter_map(|i| object.maps.get(*i)).map(typed).collect();
    line("maps", &maps);
    line("helpers", &uses.helper_names());
    line("kfuncs", &uses.kfuncs);
    let proof = prove(object, program);
    let needs = uses.needs(object, program, facts(&proof));
    let mut words: Vec<String> = Vec::new();
    for (key, word) in [
        ("frags", "packets of several buffers"),
        ("moves_packet", "room to move the packet's ends"),
        ("redirect", "redirect targets"),
        ("tail_calls", "tail calls"),
        ("routes", "a routing table"),
        ("loops", "loops"),
    ] {
        if needs[key] == true {
            words.push(word.into());
        }
    }
    if needs["gpl_helpers"].as_array().is_some_and(|a| !a.is_empty()) {
        words.push("a GPL-compatible licence".into());
    }
    if let Some(facts) = facts(&proof).filter(|f| !f.kernel_objects.is_empty()) {
        words.push(format!("kernel objects: {}", facts.kernel_objects.join(", ")));
    }
    line("needs", &words);
    match &proof {
        Some(Ok(proof)) => line("proved", &proved(proof.facts())),
        Some(Err(refusal)) => line("refused", &[format!("{refusal} (xway verify shows it)")]),
        None => {}
    }
    let refused: Vec<String> = needs["refused_helpers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str().map(String::from))
        .collect();
    line("not in XDP", &refused);
    out
}

/// What a proof found out, in words.
fn proved(facts: &Facts) -> Vec<String> {
    let names = |v: &Vec<xway_abi::Verdict>| v.iter().map(|v| v.name()).collect::<Vec<_>>().join(" or ");
    let mut words = vec![match &facts.verdicts {
        Some(verdicts) => format!("returns {}", names(verdicts)),
        None => "can return anything".into(),
    }];
    words.push(match facts.packet_bytes {
        0 => "does not look into the packet directly".into(),
        n => format!("touches the packet up to byte {}", print::grouped(n.into())),
    });
    let flags = [
        (facts.packet_written, "writes the packet"),
        (facts.packet_moved, "moves the packet's ends"),
        (facts.meta_used, if facts.meta_written { "uses metadata, writes it" } else { "uses metadata" }),
        (facts.tail_calls, "makes tail calls"),
    ];
    words.extend(flags.iter().filter(|f| f.0).map(|f| f.1.to_owned()));
    words.push(format!("{} bytes of stack", facts.stack_chain));
    if !facts.dead.is_empty() {
        words.push(format!("{} instructions that never run", facts.dead.len()));
    }
    words
}

/// Instructions, and before each the source line that it was made from.
pub fn listing(object: &Object, program: &Program, source: bool, paint: Paint) -> String {
    let mut out = String::new();
    for line in disassemble(object, program) {
        if let Some(s) = program.subprogs.iter().find(|s| s.start == line.insn)
            && program.subprogs.len() > 1
        {
            let _ = writeln!(out, "{}:", s.name);
        }
        let info = program.line_info.iter().find(|l| l.insn == line.insn).filter(|_| source);
        if let Some(l) = info {
            let shown = match l.text.trim() {
                "" => format!("; {}:{}", l.file, l.line),
                text => format!("; {text}  [{}:{}]", base(&l.file), l.line),
            };
            let _ = writeln!(out, "{}", paint.dim(&shown));
        }
        let _ = writeln!(out, "{:4}: ({:02x}) {}", line.insn, line.opcode, line.text);
    }
    out
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
