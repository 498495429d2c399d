//! `xway prog run`: one packet through a program, as BPF_PROG_TEST_RUN does it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use xway_jit::RunEnv;
use xway_maps::Guard;
use xway_packet_text::{hex_rows, summary};
use xway_vm::{BUDGET_DEFAULT, Env, Fault, SystemHost, TestRun, TestRunResult, several, test_run_with};

use crate::args;
use crate::commands::kernel;
use crate::commands::kernel::prog_run::Job;
use crate::commands::kernel::programs::Subject;
use crate::events::{Delivered, Reader};
use crate::failure::Failure;
use crate::finding::{self, Code, Files, Finding};
use crate::print::{self, Paint, grouped};
use crate::session::Session;
use crate::unit::format::Expected;
use crate::{contents, ctx, output};

/// Runs the command.
pub fn run(args: &args::ProgRun, as_json: bool) -> Result<(), Failure> {
    let (subject, words) = Subject::take(&args.words, &args.part)?;
    let job = Job::read(args, &words)?;
    let select = match &subject {
        Subject::Object(select) if args.place.hook.is_none() => select,
        _ => return kernel::prog_run::run(args, &subject, &job, as_json),
    };
    let session = Session::open(select, &args.environment, false)?;

    let events = Reader::open(&session.instance)?;
    let host = SystemHost::new();
    let budget = args.environment.budget.unwrap_or(BUDGET_DEFAULT);
    let test = TestRun {
        ctx_in: job.ctx_in.as_deref(),
        repeat: job.repeat,
        // No packet comes from a device here, so it need not exist.
        any_device: true,
        ..TestRun::new(&job.data_in)
    };
    let result = test_run_with(&test, &host, &mut |frame, times| {
        let guard = Guard::pin();
        match session.code() {
            None => {
                let mut env = Env::new(&guard, &host, 0).with_budget(budget);
                several(times, || xway_vm::run(&session.program, frame, &mut env))
            }
            Some(code) => {
                let mut env = RunEnv::new(&guard, &host, 0);
                several(times, || code.outcome(frame, &mut env))
            }
        }
    });
    let result = result.map_err(|e| Failure::input(format!("test run: {e}")))?;

    if let Some(path) = &job.data_out {
        output::write(path, &result.data_out)?;
    }
    if let Some(path) = &job.ctx_out {
        output::write(path, &result.ctx_out)?;
    }
    let maps = if args.environment.dump_maps { contents::dump(&session.instance) } else { Vec::new() };
    let place = select.object.display().to_string();
    let outcome = Outcome { args, place, session: &session, job: &job, events: events.finish(), result };
    if as_json {
        print::json(&print::document("prog run", outcome.json(&maps)));
    } else {
        print::text(&outcome.text());
        if args.environment.dump_maps {
            print::text(&format!("\n{}", contents::text(&maps)));
        }
    }
    match &outcome.result.fault {
        Some(fault) if as_json => Err(Failure::no(fault).said()),
        Some(fault) => Err(Failure::no(fault)),
        None => Ok(()),
    }
}

struct Outcome<'a> {
    args: &'a args::ProgRun,
    place: String,
    session: &'a Session,
    job: &'a Job,
    events: Vec<Delivered>,
    result: TestRunResult,
}

impl Outcome<'_> {
    fn verdict(&self) -> &'static str {
        Expected::of(self.result.retval).name()
    }

    fn json(&self, maps: &[Value]) -> Value {
        let r = &self.result;
        let mut doc = json!({
            "program": self.session.program_json(),
            "retval": r.retval,
            "verdict": self.verdict(),
            "duration_ns": r.duration.as_nanos() as u64,
            "repeat": self.job.repeat,
            "insns": r.insns,
            "data_size_out": r.data_out.len(),
            "data_out": BASE64.encode(&r.data_out),
            "ctx_out": BASE64.encode(r.ctx_out),
            "ctx": ctx::fields(&r.ctx_out),
            "fault": r.fault.as_ref().map(|f| crate::fault::json(f)),
            "events": self.events.iter().map(Delivered::json).collect::<Vec<_>>(),
        });
        self.session.engine_json(&mut doc);
        if self.session.code().is_some() {
            doc["insns"] = Value::Null;
        }
        if self.args.environment.dump_maps {
            doc["maps"] = json!(maps);
        }
        doc
    }

    /// Where the program was stopped, in its source.
    fn stopped(&self, fault: &Fault) -> String {
        let object = self.session.instance.object();
        // After tail calls it may be another program than the one that was asked for.
        let Some(program) = object.programs.iter().find(|p| p.name == fault.program) else { return String::new() };
        let code = Code { place: &self.place, object, program };
        finding::render(&Finding::of_fault(fault), code, &mut Files::default(), Paint::stdout()) + "\n"
    }

    /// By what, where that is not the interpreter that counts instructions and was meant to run it.
    fn ran(&self) -> String {
        let counted = format!("{} instructions", grouped(self.result.insns));
        match (self.session.code(), self.session.reason()) {
            (Some(_), _) => self.session.how(),
            (None, Some(_)) => format!("{counted} ({})", self.session.how()),
            (None, None) => counted,
        }
    }

    fn text(&self) -> String {
        let r = &self.result;
        let mut out = format!("{}\n\n", self.session.title());
        out.push_str(&format!(
            "verdict {} (return value {}), {}, {}\n",
            self.verdict(),
            r.retval,
            time(r.duration, self.job.repeat),
            self.ran()
        ));
        out.push_str(&packet_text(&self.job.data_in, &r.data_out, ctx::word(&r.ctx_out, 0) as usize));
        if let Some(fault) = &r.fault {
            out.push_str(&self.stopped(fault));
        }
        self.events.iter().filter(|e| e.total + e.lost > 0).for_each(|e| out.push_str(&e.text()));
        out
    }
}

/// What became of the packet. Metadata, of `meta` bytes, stands before it when the program made some.
pub fn packet_text(before: &[u8], after: &[u8], meta: usize) -> String {
    let (meta, packet) = after.split_at(meta.min(after.len()));
    let mut out = match meta {
        [] => String::new(),
        meta => format!("metadata, {} bytes:\n{}", meta.len(), hex_rows(meta)),
    };
    match xway_packet_text::diff(before, packet) {
        None => out.push_str(&format!("packet unchanged, {} bytes: {}\n", packet.len(), summary(packet))),
        Some(difference) => out.push_str(&format!("packet changed:\n{}", difference.named("before", "after"))),
    }
    out
}

/// A time for people.
pub fn time(mean: Duration, repeat: u32) -> String {
    let mean = format!("{} ns", grouped(mean.as_nanos() as u64));
    if repeat > 1 { format!("{mean} a run over {} runs", grouped(repeat.into())) } else { mean }
}
