//! `xway verify`: is this program safe, and if not, why.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use xway_object::{Object, ObjectError, Program, ProgramKind};
use xway_verifier::{Config, Diagnostic, MapsView, Rejection, Stats, Verified};
use xway_witness::Effort;

use crate::args;
use crate::failure::Failure;
use crate::finding::{self, Code, Files, Finding};
use crate::load;
use crate::needs::Uses;
use crate::print::{self, Paint, grouped};

/// Runs the command.
pub fn run(args: &args::Verify, as_json: bool) -> Result<(), Failure> {
    let config = config(args);
    if let Some(path) = &args.raw {
        return super::verify_raw::run(path, &config);
    }
    let mut report = Report { as_json, verbose: args.verbose, paint: Paint::stdout(), ..Report::default() };
    for path in &args.objects {
        let done = load::read(path, args.btf.as_deref()).and_then(|object| {
            let object = Arc::new(object);
            let (chosen, skipped) = choose(&object, args).map_err(|f| f.at(path.display()))?;
            report.skipped(path, &skipped);
            report.unlinked(path, &object, args);
            report.maps(path, &object);
            chosen.iter().for_each(|p| report.program(path, &object, p, &config));
            Ok(())
        });
        if let Err(failure) = done {
            report.failed(path, failure);
        }
    }
    if let Some(path) = &args.write {
        report.write_packet(path)?;
    }
    report.finish()
}

/// Limits and strictness from the command line.
fn config(args: &args::Verify) -> Config {
    let default = Config::default();
    Config {
        budget: args.budget.unwrap_or(default.budget),
        strict_alignment: args.strict_alignment,
        log: args.verbose,
        ..default
    }
}

/// The programs to verify: the one that is asked for, or all that can be XDP; and those that cannot.
fn choose(object: &Object, args: &args::Verify) -> Result<(Vec<Program>, Vec<Skipped>), Failure> {
    if args.name.is_some() {
        if object.rejected.iter().any(|r| Some(&r.name) == args.name.as_ref()) {
            return Ok((Vec::new(), Vec::new()));
        }
        return load::choose_by(object, args.name.as_deref(), None).map(|p| (vec![p], Vec::new()));
    }
    let (mut chosen, mut skipped) = (Vec::new(), Vec::new());
    for program in &object.programs {
        match program.as_xdp() {
            Ok(p) => chosen.push(p),
            Err(_) => skipped.push(Skipped { name: program.name.clone(), hook: program.kind.name() }),
        }
    }
    if chosen.is_empty() && object.rejected.iter().all(|r| matches!(r.kind, ProgramKind::Other(_))) {
        // The words of the loader: what there is instead.
        load::choose_by(object, None, None)?;
    }
    Ok((chosen, skipped))
}

/// A program that is no XDP program.
struct Skipped {
    name: String,
    hook: &'static str,
}

/// What is said, collected for JSON or printed as it comes.
#[derive(Default)]
struct Report {
    as_json: bool,
    verbose: bool,
    paint: Paint,
    files: Files,
    programs: Vec<Value>,
    skipped: Vec<Value>,
    warnings: Vec<Value>,
    failures: Vec<Value>,
    accepted: usize,
    rejected: usize,
    /// The first packet that shows a refusal.
    packet: Option<Vec<u8>>,
    exit: Option<Failure>,
}

impl Report {
    fn program(&mut self, path: &Path, object: &Arc<Object>, program: &Program, config: &Config) {
        let place = path.display().to_string();
        let mut result = xway_verifier::verify(program, &MapsView::from(&**object), config);
        if let Err(refusal) = &mut result {
            xway_witness::complete(object, program, refusal, &Effort::default());
            let found = refusal.errors.iter().find_map(|e| e.counterexample.as_ref());
            self.packet = self.packet.take().or_else(|| found.map(|c| c.packet.clone()));
        }
        match &result {
            Ok(_) => self.accepted += 1,
            Err(_) => self.rejected += 1,
        }
        if self.as_json {
            let mut doc = program_json(&place, object, program, &result);
            if self.verbose {
                doc["log"] = json!(result.as_ref().map_or_else(|r| r.log.as_str(), Verified::log));
            }
            self.programs.push(doc);
            return;
        }
        let code = Code { place: &place, object, program };
        let mut out = String::new();
        if self.verbose {
            out.push_str(result.as_ref().map_or_else(|r| r.log.as_str(), Verified::log));
        }
        match &result {
            Ok(proof) => out.push_str(&self.line(code, proof.stats(), &accepted(proof))),
            Err(refusal) => {
                out.push_str(&refused(refusal, code, &mut self.files, self.paint));
                out.push_str(&self.line(code, &refusal.stats, &rejected(refusal)));
            }
        }
        print::text(&out);
    }

    /// The last line about a program.
    fn line(&self, code: Code<'_>, stats: &Stats, verdict: &(bool, String)) -> String {
        let word = if verdict.0 { self.paint.good("accepted") } else { self.paint.bad("refused") };
        format!(
            "{word}  {} (section {}) of {}: {} instructions, {} visited, {} states (at most {} at once), {:.3} ms, {}\n",
            code.program.name,
            code.program.section,
            code.place,
            grouped(code.program.insns.len() as u64),
            grouped(stats.visited),
            grouped(stats.states),
            grouped(stats.peak_states),
            stats.time.as_secs_f64() * 1e3,
            verdict.1
        )
    }

    /// Programs that could not be linked are refused, with the loader's reason.
    fn unlinked(&mut self, path: &Path, object: &Object, args: &args::Verify) {
        for r in &object.rejected {
            let asked = args.name.as_ref().map_or(!matches!(r.kind, ProgramKind::Other(_)), |n| *n == r.name);
            if !asked {
                continue;
            }
            self.rejected += 1;
            if self.as_json {
                self.programs.push(unlinked_json(path, &r.name, &r.section, &r.error));
            } else {
                let word = self.paint.bad("refused");
                let place = path.display();
                print::text(&format!("{word}  {} (section {}) of {place}: {}\n", r.name, r.section, r.error));
            }
        }
    }

    fn skipped(&mut self, path: &Path, skipped: &[Skipped]) {
        for Skipped { name, hook } in skipped {
            let place = path.display();
            self.skipped.push(json!({ "object": place.to_string(), "name": name, "type": hook }));
            if !self.as_json {
                print::text(&format!("skipped  {name} of {place}: it is for the hook {hook}, not for XDP\n"));
            }
        }
    }

    /// A verdict is about programs. That a map of theirs cannot be created, so that no hook loads them, is said beside it.
    fn maps(&mut self, path: &Path, object: &Object) {
        let env = xway_maps::Env::default();
        for def in &object.maps {
            let inner = def.spec.inner.as_deref().map(|spec| (format!("inner map of {}", def.name), spec));
            for (name, spec) in [Some((def.name.clone(), &def.spec)), inner].into_iter().flatten() {
                let Err(why) = xway_maps::check(&xway_maps::completed(spec, &env), &env) else { continue };
                let place = path.display();
                self.warnings.push(json!({ "object": place.to_string(), "map": name, "message": why.to_string() }));
                if !self.as_json {
                    let word = self.paint.notable("warning");
                    print::text(&format!(
                        "{word}  map {name} of {place}: {why}; no program of the object can be loaded\n"
                    ));
                }
            }
        }
    }

    /// An object that cannot be read does not keep the others from being verified.
    fn failed(&mut self, path: &Path, failure: Failure) {
        self.failures.push(json!({ "object": path.display().to_string(), "error": print::failure_json(&failure) }));
        // All but the last are said at once, the last one when the command ends.
        if let Some(earlier) = self.exit.replace(failure) {
            print::failure("verify", &earlier, false);
        }
    }

    /// Writes the packet that shows a refusal as a capture, for `xway run --checked`.
    fn write_packet(&self, path: &Path) -> Result<(), Failure> {
        let place = path.display();
        let Some(packet) = &self.packet else {
            if !self.as_json {
                print::text(&format!("{place}: not written, because no packet was found that shows a refusal\n"));
            }
            return Ok(());
        };
        // Classic pcap, little-endian, microseconds, Ethernet; one packet at time zero.
        let len = packet.len() as u32;
        let head = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1, 0, 0, len, len].map(u32::to_le_bytes).concat();
        crate::output::write(path, &[&head[..], packet].concat())?;
        if !self.as_json {
            print::text(&format!("{place}: one packet that shows a refusal\n"));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        let total = self.accepted + self.rejected;
        if self.as_json {
            let fields = json!({
                "accepted": self.accepted,
                "rejected": self.rejected,
                "programs": std::mem::take(&mut self.programs),
                "skipped": self.skipped,
                "warnings": self.warnings,
                "failures": self.failures,
            });
            // When the only object cannot be read, the document is that of any failed command.
            if total > 0 || self.failures.len() != 1 {
                print::json(&print::document("verify", fields));
                self.exit = self.exit.map(Failure::said);
            }
        } else if total > 1 {
            let (accepted, refused) = (grouped(self.accepted as u64), grouped(self.rejected as u64));
            print::text(&format!("{} programs: {accepted} accepted, {refused} refused\n", grouped(total as u64)));
        }
        self.exit.map_or(Ok(()), Err)?;
        if self.rejected > 0 { Err(Failure::silent()) } else { Ok(()) }
    }
}

fn accepted(proof: &Verified) -> (bool, String) {
    let facts = proof.facts();
    let mut words = format!("stack {} bytes", facts.stack_chain);
    if !facts.kernel_objects.is_empty() {
        words.push_str(&format!(", needs kernel objects: {}", facts.kernel_objects.join(", ")));
    }
    (true, words)
}

fn rejected(refusal: &Rejection) -> (bool, String) {
    let n = refusal.errors.len();
    (false, format!("{n} error{}", if n == 1 { "" } else { "s" }))
}

/// All errors of a refusal as text.
pub fn refused(refusal: &Rejection, code: Code<'_>, files: &mut Files, paint: Paint) -> String {
    let render = |d: &Diagnostic| finding::render(&Finding::of(d), code, files, paint) + "\n";
    refusal.errors.iter().map(render).collect()
}

/// One program of the document.
pub fn program_json(place: &str, object: &Object, program: &Program, result: &Result<Verified, Rejection>) -> Value {
    let (stats, facts, errors) = match result {
        Ok(proof) => (proof.stats(), Some(proof.facts()), [].as_slice()),
        Err(refusal) => (&refusal.stats, None, refusal.errors.as_slice()),
    };
    json!({
        "object": place,
        "name": program.name,
        "section": program.section,
        "verdict": if result.is_ok() { "accepted" } else { "rejected" },
        "insns": program.insns.len(),
        "visited": stats.visited,
        "states": stats.states,
        "peak_states": stats.peak_states,
        "time_us": stats.time.as_micros() as u64,
        "stack": facts.map(|f| f.stack_chain),
        "needs": Uses::of(program).needs(object, program, facts),
        "error": errors.first().map(finding::json),
        "errors": errors.iter().skip(1).map(finding::json).collect::<Vec<_>>(),
    })
}

fn unlinked_json(path: &Path, name: &str, section: &str, error: &ObjectError) -> Value {
    let error = json!({
        "kind": "load", "insn": null, "file": null, "line": 0, "source": "", "message": error.to_string(), "hint": null,
        "known": [], "notes": [], "path": [], "counterexample": null,
    });
    json!({
        "object": path.display().to_string(),
        "name": name,
        "section": section,
        "verdict": "rejected",
        "insns": 0, "visited": 0, "states": 0, "peak_states": 0, "time_us": 0, "stack": null, "needs": null,
        "error": error,
        "errors": [],
    })
}
