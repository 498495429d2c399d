//! One case: set up, run, compare.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use xway_jit::Options;
use xway_object::Object;
use xway_packet_text::{diff, hex_rows, literal};
use xway_vm::Instance;

use super::format::{Case, ExpectMap, Expected, File, MapEntries, PacketOut, PacketSource};
use super::report::{Outcome, Ran, Suite};
use crate::contents::{self, Filling, Typed};
use crate::events::{Delivered, Reader};
use crate::failure::Failure;
use crate::session::{self, Trust};
use crate::single::{self, Single};
use crate::{capture, load};

/// Runs all cases of a file whose name contains `filter`.
pub fn run_file(path: &Path, args: &crate::args::Test) -> Result<Suite, Failure> {
    let file = File::read(path)?;
    let trust = Trust::of(args.checked || file.checked);
    let dir = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let object = read_object(&file, &dir).map_err(|f| f.at(path.display()))?;
    let mut runner = Runner { file: &file, dir, object, args, trust, kept: None };
    let mut outcomes = Vec::new();
    for case in &file.tests {
        if args.filter.as_ref().is_some_and(|f| !case.name.contains(f)) {
            continue;
        }
        let start = Instant::now();
        // What stops a case from being set up is a mistake in the file, not a result of the program.
        let (problems, engine) =
            runner.run(case).map_err(|f| f.at(format!("{}: test {:?}", path.display(), case.name)))?;
        outcomes.push(Outcome { name: case.name.clone(), problems, engine, took: start.elapsed() });
    }
    Ok(Suite { file: path.display().to_string(), outcomes })
}

fn read_object(file: &File, dir: &Path) -> Result<Object, Failure> {
    let path = dir.join(&file.object);
    let bytes = if path.extension().is_some_and(|e| e == "c") {
        super::compile::compile(&path, dir, &file.cflags)?
    } else {
        crate::payload::file(&path, load::OBJECT_MAX)?
    };
    load::parse(&bytes, None).map_err(|f| f.at(path.display()))
}

struct Runner<'a> {
    file: &'a File,
    dir: PathBuf,
    object: Object,
    args: &'a crate::args::Test,
    trust: Trust,
    /// The maps of all cases, with `keep_maps`.
    kept: Option<Instance>,
}

impl Runner<'_> {
    /// What differs from what the case expects; nothing when it passes. And what ran it.
    fn run(&mut self, case: &Case) -> Result<(Vec<String>, Ran), Failure> {
        if case.fault.is_some() && self.trust == Trust::Verified {
            return Err(Failure::input("a verified program cannot be stopped, so `fault` never comes true")
                .hint("`checked = true` at the top of the file, or --checked"));
        }
        let packet = self.packet(&case.packet)?;
        let name = case.program.as_deref().or(self.file.program.as_deref());
        let section = if case.program.is_some() { None } else { self.file.section.as_deref() };
        let chosen = load::choose_by(&self.object, name, section)?;
        let fresh;
        let instance = if self.file.keep_maps {
            if self.kept.is_none() {
                self.kept = Some(self.instantiate(&self.file.maps)?);
            }
            let kept = self.kept.as_ref().expect("made just now");
            contents::fill(kept, &fillings(&case.maps))?;
            kept
        } else {
            let maps: Vec<MapEntries> = self.file.maps.iter().chain(&case.maps).cloned().collect();
            fresh = self.instantiate(&maps)?;
            &fresh
        };
        let program = session::link(instance, &chosen, &self.file.object.display().to_string())?;
        let requested = self.args.engine;
        let choice = session::choose(&program, requested, self.args.budget, &Options::default(), false);
        let engine = Ran { effective: choice.name(), requested, reason: choice.reason.clone() };
        let mut single = Single::new(program, choice.code, self.args.budget)?;
        let events = Reader::open(instance)?;
        let mut last = None;
        for _ in 0..case.repeat {
            let run = single.run(&packet, case.ctx.ingress_ifindex, case.ctx.rx_queue_index)?;
            let stop = run.fault.is_some();
            last = Some(run);
            if stop {
                break;
            }
        }
        let Some(run) = last else { return Ok((vec![], engine)) };
        let mut problems = Vec::new();
        self.compare_run(case, &packet, &run, &mut problems)?;
        let delivered = events.finish();
        for expected in &case.expect_maps {
            compare_map(instance, expected, &mut problems)?;
            compare_records(&delivered, expected, &mut problems)?;
        }
        Ok((problems, engine))
    }

    /// Fresh maps with this content. The verifier looks at constants, so every case asks it anew.
    fn instantiate(&self, maps: &[MapEntries]) -> Result<Instance, Failure> {
        let mut object = self.object.clone();
        let rest = contents::fill_sections(&mut object, &fillings(maps))?;
        let instance = session::instance(object, self.trust, &self.file.object.display().to_string())?;
        contents::fill(&instance, &rest)?;
        Ok(instance)
    }

    fn packet(&self, source: &PacketSource) -> Result<Vec<u8>, Failure> {
        match source {
            PacketSource::Bytes(bytes) => Ok(bytes.clone()),
            PacketSource::Described(description) => description.build().map_err(Failure::input),
            PacketSource::Capture { pcap, index } => capture::packet(&self.dir.join(pcap), *index),
        }
    }

    fn compare_run(
        &self,
        case: &Case,
        packet: &[u8],
        run: &single::Ran,
        problems: &mut Vec<String>,
    ) -> Result<(), Failure> {
        match (&case.fault, &run.fault) {
            (None, None) => {}
            (Some(words), Some(fault)) if fault.contains(words.as_str()) => {}
            (Some(words), Some(fault)) => problems.push(format!("the fault does not contain {words:?}:\n{fault}")),
            (Some(words), None) => problems.push(format!("no fault; expected one that contains {words:?}")),
            (None, Some(fault)) => problems.push(format!("the program was stopped:\n{fault}")),
        }
        let verdict = Expected::of(run.retval);
        if let Some(expected) = case.verdict
            && expected != verdict
        {
            let value = if verdict == Expected::Invalid { format!(" ({})", run.retval) } else { String::new() };
            problems.push(format!("verdict: expected {}, got {}{value}", expected.name(), verdict.name()));
        }
        if let Some(expected) = case.retval
            && expected != run.retval
        {
            problems.push(format!("return value: expected {expected}, got {}", run.retval));
        }
        let expected = match &case.packet_out {
            None => return Ok(()),
            Some(PacketOut::Unchanged) => packet.to_vec(),
            Some(PacketOut::Packet(source)) => self.packet(source)?,
        };
        if let Some(difference) = diff(&expected, &run.packet) {
            problems.push(format!("packet out differs\n{difference}"));
        }
        Ok(())
    }
}

fn fillings(maps: &[MapEntries]) -> Vec<Filling> {
    let filling =
        |m: &MapEntries| Filling { origin: "[[map]]".into(), map: m.name.clone(), entries: m.entries.clone() };
    maps.iter().map(filling).collect()
}

fn compare_map(instance: &Instance, expected: &ExpectMap, problems: &mut Vec<String>) -> Result<(), Failure> {
    let name = &expected.name;
    let Some(map) = Typed::named(instance, name) else {
        let have: Vec<&str> = instance.object().maps.iter().map(|m| m.name.as_str()).collect();
        return Err(Failure::input(format!("expect_map: no map {name:?}; there are {}", have.join(", "))));
    };
    let wrong = |what: String| Failure::input(format!("expect_map {name}: {what}"));
    for entry in &expected.entries {
        let (Some(key), Some(value)) = (entry.get("key"), entry.get("value")) else {
            return Err(wrong(format!("an entry needs key and value: {entry}")));
        };
        let bytes = map.key(key).map_err(wrong)?;
        match map.bytes(&bytes) {
            Err(xway_abi::Errno::ENOENT) => problems.push(format!("map {name}: no entry {}", show(key))),
            Err(errno) => problems.push(format!("map {name}: entry {} cannot be read: {errno}", show(key))),
            Ok(present) => {
                let want = map.normal(value, &present).map_err(wrong)?;
                let got = map.first(&present);
                if want != got {
                    problems.push(format!(
                        "map {name}, entry {}:\n  expected {}\n  got      {}",
                        show(key),
                        show(&want),
                        show(&got)
                    ));
                }
            }
        }
    }
    for key in &expected.absent {
        if map.bytes(&map.key(key).map_err(wrong)?).is_ok() {
            problems.push(format!("map {name}: entry {} is there and should not be", show(key)));
        }
    }
    if let Some(count) = expected.count {
        match map.count() {
            None => return Err(wrong("entries of this type cannot be counted".into())),
            Some(have) if have != count => problems.push(format!("map {name}: expected {count} entries, got {have}")),
            Some(_) => {}
        }
    }
    Ok(())
}

fn compare_records(delivered: &[Delivered], expected: &ExpectMap, problems: &mut Vec<String>) -> Result<(), Failure> {
    let (name, Some(records)) = (&expected.name, &expected.records) else { return Ok(()) };
    let wrong = |what: String| Failure::input(format!("expect_map {name}: {what}"));
    let Some(got) = delivered.iter().find(|d| d.map == *name) else {
        return Err(wrong("records come from ring buffers and perf event arrays".into()));
    };
    if got.total != records.len() as u64 {
        problems.push(format!("map {name}: expected {} records, got {}", records.len(), got.total));
    }
    for (at, (text, record)) in records.iter().zip(&got.records).enumerate() {
        let want = literal::parse(text).unwrap_or_else(|| literal::hex(text)).map_err(|e| wrong(e.to_string()))?;
        if want != *record {
            problems.push(format!(
                "map {name}, record {at}:\n  expected {} bytes\n{}  got {} bytes\n{}",
                want.len(),
                hex_rows(&want),
                record.len(),
                hex_rows(record)
            ));
        }
    }
    Ok(())
}

fn show(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}
