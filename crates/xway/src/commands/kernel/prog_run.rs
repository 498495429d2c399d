//! `xway prog run` on a hook: one packet through a program that is loaded there, or that is loaded for it.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use xway_abi::Errno;
use xway_hook::{HookError, LoadRequest, ObjectId, ProgId, TestAnswer, TestRequest};

use super::attach::Place;
use super::programs::{self, Subject};
use super::{failure, prog};
use crate::args::{Engine, ProgRun};
use crate::commands::prog_run;
use crate::failure::Failure;
use crate::unit::format::Expected;
use crate::{ctx, load, output, payload, print};

/// Bytes of an Ethernet header: the shortest packet.
const ETHERNET: usize = 14;

/// Bytes of `struct xdp_md`.
const CTX: usize = 24;

/// What to run it over, and where the results go: the options, and bpftool's words for the same.
#[derive(Clone, Debug)]
pub struct Job {
    /// The packet.
    pub data_in: Vec<u8>,
    /// The context.
    pub ctx_in: Option<Vec<u8>>,
    /// Where the packet goes.
    pub data_out: Option<PathBuf>,
    /// Where the context goes.
    pub ctx_out: Option<PathBuf>,
    /// How often.
    pub repeat: u32,
}

impl Job {
    /// Reads options and words.
    pub fn read(args: &ProgRun, words: &[String]) -> Result<Job, Failure> {
        let (mut data_in, mut ctx_in) = (args.data_in.clone(), args.ctx_in.clone());
        let (mut data_out, mut ctx_out, mut repeat) = (args.data_out.clone(), args.ctx_out.clone(), args.repeat);
        let mut rest = words;
        while let [word, more @ ..] = rest {
            let missing = || Failure::usage(format!("{word}: what stands behind it is missing"));
            let value = || more.first().ok_or_else(missing);
            match word.as_str() {
                "data_in" => data_in = Some(value()?.clone()),
                "ctx_in" => ctx_in = Some(value()?.clone()),
                "data_out" => data_out = Some(value()?.into()),
                "ctx_out" => ctx_out = Some(value()?.into()),
                // There is always room for the whole of it.
                "data_size_out" | "ctx_size_out" => drop(value()?),
                "repeat" => {
                    let number = value()?.parse().ok().filter(|n| *n > 0);
                    repeat = number.ok_or_else(|| Failure::usage(format!("repeat {}: not a number", more[0])))?;
                }
                other => {
                    let hint = "data_in FILE, data_out FILE, ctx_in FILE, ctx_out FILE, repeat N";
                    return Err(Failure::usage(format!("{other}: not expected here")).hint(hint));
                }
            }
            rest = &more[1..];
        }
        let given = data_in.ok_or_else(|| {
            Failure::usage("which packet?").hint("--data-in FILE, --data-in hex:ffff… or --data-in base64:…")
        })?;
        let data_in = payload::bytes("--data-in", &given)?;
        let ctx_in = ctx_in.as_deref().map(|x| ctx::read(x, data_in.len())).transpose()?;
        Ok(Job { data_in, ctx_in, data_out, ctx_out, repeat })
    }
}

/// Both hooks refuse a packet without an Ethernet header by a bare `EINVAL`.
fn short(error: HookError, test: &TestRequest<'_>) -> Failure {
    // What a context says of metadata lies in front of the packet.
    let front = test.ctx.map_or(0, |ctx| ctx.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b) as usize));
    let bytes = test.data.len().saturating_sub(front);
    let refused = error.errno == Some(Errno::EINVAL) && bytes < ETHERNET;
    let failure = failure(error);
    if !refused {
        return failure;
    }
    failure
        .hint(format!("--data-in: a packet has at least {ETHERNET} bytes, its Ethernet header; this one has {bytes}"))
}

/// Runs it on the hook that the options name.
pub fn run(args: &ProgRun, subject: &Subject, job: &Job, as_json: bool) -> Result<(), Failure> {
    let environment = &args.environment;
    let ours = "it is for runs in this process, of an object file and without --hook";
    for (option, given) in [
        ("--map", !environment.maps.is_empty()),
        ("--dump-maps", environment.dump_maps),
        ("--budget", environment.budget.is_some()),
        ("--engine", environment.engine != Engine::Auto),
        ("--checked", environment.checked),
        ("--perf-map", environment.code.perf_map),
        ("--jitdump", environment.code.jitdump.is_some()),
        ("--no-stage", environment.code.no_stage),
    ] {
        if given {
            let hint = "maps of a loaded program: xway map show, dump, update";
            return Err(Failure::usage(format!("{option}: {ours}")).hint(hint));
        }
    }
    let bytes = job.ctx_in.as_ref().map(|bytes| {
        let wrong = || Failure::input(format!("--ctx-in: {} bytes; struct xdp_md has {CTX}", bytes.len()));
        <[u8; CTX]>::try_from(bytes.as_slice()).map_err(|_| wrong())
    });
    let ctx = bytes.transpose()?;
    let mut place = Place::of(&args.place)?;
    let hook = place.hook();
    let (id, made) = match subject {
        Subject::Loaded(which) => (programs::open(hook, which)?, Vec::new()),
        Subject::Object(select) => {
            let image = load::image(select)?;
            let chosen = load::choose(&image.object, select)?;
            let request = LoadRequest { programs: vec![chosen.name.clone()], ..LoadRequest::default() };
            let objects = hook.load(&image, &request).map_err(failure)?;
            let id = objects.programs.first().map_or(ProgId(0), |(_, id)| *id);
            let maps = objects.maps.iter().map(|(_, id)| ObjectId::Map(*id));
            (id, maps.chain([ObjectId::Program(id)]).collect())
        }
    };
    let test = TestRequest { data: &job.data_in, ctx, repeat: job.repeat };
    let done = hook.test_run(id, &test).map_err(|e| short(e, &test));
    let info = hook.program_info(id).map_err(failure);
    for object in made {
        hook.release(object).map_err(failure)?;
    }
    let (done, info) = (done?, info?);
    if let Some(path) = &job.data_out {
        output::write(path, &done.data)?;
    }
    if let (Some(path), Some(ctx)) = (&job.ctx_out, &done.ctx) {
        output::write(path, ctx)?;
    }
    let TestAnswer { ret, data, ctx, duration } = &done;
    let verdict = Expected::of(*ret).name();
    if as_json {
        let doc = json!({
            "program": { "id": info.id.0, "name": info.name, "tag": prog::tag(&info.tag) },
            "hook": hook.kind().name(),
            "engine": info.engine,
            "engine_requested": environment.engine.name(),
            "engine_reason": info.reason,
            "retval": ret,
            "verdict": verdict,
            "duration_ns": duration.as_nanos() as u64,
            "repeat": job.repeat,
            "insns": null,
            "data_size_out": data.len(),
            "data_out": BASE64.encode(data),
            "ctx_out": ctx.map(|c| BASE64.encode(c)),
            "ctx": ctx.map(|c| ctx::fields(&c)),
            // What it was stopped by is counted on the port; its events go to whoever reads its maps.
            "fault": null,
            "events": null,
        });
        print::json(&print::document("prog run", doc));
        return Ok(());
    }
    let meta = ctx.map_or(0, |c| ctx::word(&c, 0) as usize);
    let mut out = format!("{} (id {}, tag {})\n\n", info.name, info.id.0, prog::tag(&info.tag));
    let time = prog_run::time(*duration, job.repeat);
    out.push_str(&format!("verdict {verdict} (return value {ret}), {time}, {}\n", info.engine));
    out.push_str(&prog_run::packet_text(&job.data_in, data, meta));
    print::text(&out);
    Ok(())
}
