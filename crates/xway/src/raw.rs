//! A raw program: instructions and the maps that they refer to, from one line of JSON.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use xway_abi::{MapSpec, MapType};
use xway_isa::slots_from_bytes;
use xway_maps::Guard;
use xway_object::{MapDef, Object, Program, ProgramKind};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, MapsView};
use xway_vm::{Env, Instance, SystemHost};

use crate::finding;

/// Instructions that a run may take: a fraction of a second.
const RUN_BUDGET: u64 = 1 << 27;
/// Memory that the maps of a program which is run may take, bytes.
const MAPS_MAX: u64 = 1 << 28;
/// Most maps of a program (Linux: `MAX_USED_MAPS`).
const MAPS_COUNT_MAX: usize = 64;
/// CPUs that per-CPU maps are made for.
const CPUS: u32 = 1;
/// Shortest packet (`ETH_HLEN`), as for `BPF_PROG_TEST_RUN`.
const PACKET_MIN: usize = 14;
/// The loopback's interface index, which a test run reports.
const LOOPBACK: u32 = 1;

/// The first slot of a 64-bit load.
const LD_IMM64: u8 = 0x18;
/// Sources of such a load: the address of a byte in a map's value, by descriptor; a map, and such an address, by index.
const FD_VALUE: u8 = 2;
const IDX: u8 = 5;
const IDX_VALUE: u8 = 6;

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default)]
    id: Value,
    #[serde(borrow)]
    insns: Cow<'a, str>,
    #[serde(default, borrow)]
    maps: Vec<LineMap<'a>>,
    #[serde(default, borrow)]
    data_in: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct LineMap<'a> {
    #[serde(rename = "type", borrow)]
    map_type: Cow<'a, str>,
    #[serde(default)]
    key_size: u32,
    #[serde(default)]
    value_size: u32,
    #[serde(default)]
    max_entries: u32,
    #[serde(default)]
    flags: u32,
    #[serde(default)]
    map_extra: u64,
    #[serde(default, borrow)]
    inner: Option<Box<LineMap<'a>>>,
    /// Slots whose 64-bit immediate is this map.
    #[serde(default)]
    at: Vec<usize>,
}

/// What became of a program.
#[derive(Default)]
pub struct Answer {
    /// The caller's name for it.
    pub id: Value,
    /// Why it is refused.
    pub error: Option<Value>,
    /// What it returned, when it ran.
    pub retval: Option<u32>,
    /// Why it did not run though there was a packet.
    pub not_run: Option<String>,
    /// It was accepted and then stopped, which must not happen.
    pub trap: Option<String>,
    /// Instructions that the analysis visited.
    pub visited: u64,
}

/// Runs accepted programs, one packet each.
pub struct Runner {
    pool: Pool,
    host: SystemHost,
}

/// A line that is no program: its id, if it has one, and what is wrong.
pub struct Broken(pub Value, pub String);

/// Verifies the program of a line, and runs it when there is a packet.
pub fn answer(line: &[u8], runner: &mut Runner, config: &Config) -> Result<Answer, Broken> {
    let line: Line<'_> = serde_json::from_slice(line).map_err(|e| {
        let why = e.to_string().replace(" at line 1 column ", " at column ");
        Broken(Value::Null, format!("not a program: {why}"))
    })?;
    let broken = |what: &str| Broken(line.id.clone(), format!("{what} is not hexadecimal"));
    let bytes = hex(&line.insns).ok_or_else(|| broken("insns"))?;
    let packet = line.data_in.as_deref().map(|d| hex(d).ok_or_else(|| broken("data_in"))).transpose()?;
    let mut answer = Answer { id: line.id, ..Answer::default() };
    let (program, object) = match build(&bytes, &line.maps) {
        Ok(made) => made,
        Err(error) => {
            answer.error = Some(error);
            return Ok(answer);
        }
    };
    // The verifier is held to never panic; a run over millions of programs shall not end where it does.
    let view = MapsView::from(&object);
    let Ok(verdict) = catch_unwind(AssertUnwindSafe(|| xway_verifier::verify(&program, &view, config))) else {
        answer.error =
            Some(refusal("internal", None, "the verifier panicked: this is a bug of xway, please report it"));
        return Ok(answer);
    };
    match verdict {
        Err(refused) => {
            answer.visited = refused.stats.visited;
            answer.error = refused.errors.first().map(finding::brief_json);
        }
        Ok(proof) => {
            answer.visited = proof.stats().visited;
            if let Some(packet) = packet {
                runner.run(&program, object, &packet, &mut answer);
            }
        }
    }
    Ok(answer)
}

fn refusal(kind: &str, insn: Option<usize>, message: impl Into<String>) -> Value {
    json!({
        "kind": kind, "insn": insn, "file": null, "line": 0, "source": "", "message": message.into(), "hint": null,
    })
}

/// The program and its maps, or the error for which it is refused before it is verified.
fn build(bytes: &[u8], maps: &[LineMap<'_>]) -> Result<(Program, Object), Value> {
    let Some(mut insns) = slots_from_bytes(bytes) else {
        return Err(refusal("bad-instruction", None, format!("{} bytes are no whole instructions of 8", bytes.len())));
    };
    if maps.len() > MAPS_COUNT_MAX {
        return Err(refusal("map", None, format!("{} maps; a program has at most {MAPS_COUNT_MAX}", maps.len())));
    }
    let env = xway_maps::Env::with_cpus(CPUS);
    let mut object = Object { license: Some("GPL".into()), target: xway_kernel::vmlinux(), ..Object::default() };
    for (index, map) in maps.iter().enumerate() {
        let wrong = |why: String| refusal("map", None, format!("map {index}: {why}"));
        let spec = spec(map).map_err(wrong)?;
        xway_maps::check(&spec, &env).map_err(|e| wrong(e.to_string()))?;
        object.maps.push(MapDef::new(&format!("map{index}"), spec));
        for at in &map.at {
            let Some(slot) = insns.get_mut(*at).filter(|s| s.opcode == LD_IMM64) else {
                let why = format!("map {index} stands at slot {at}, which begins no 64-bit load");
                return Err(refusal("bad-reference", Some(*at), why));
            };
            slot.src = if matches!(slot.src, FD_VALUE | IDX_VALUE) { IDX_VALUE } else { IDX };
            slot.imm = index as i32;
        }
    }
    let kind = ProgramKind::Xdp { frags: false };
    Ok((Program { name: "raw".into(), section: "xdp".into(), kind, insns, ..Program::default() }, object))
}

fn spec(map: &LineMap<'_>) -> Result<MapSpec, String> {
    let map_type =
        MapType::from_name(&map.map_type).ok_or_else(|| format!("there is no map type {:?}", map.map_type))?;
    let mut spec = MapSpec::new(map_type, map.key_size, map.value_size, map.max_entries).with_flags(map.flags);
    spec.map_extra = map.map_extra;
    if let Some(inner) = &map.inner {
        if inner.inner.is_some() {
            return Err("maps of maps are not nested deeper".into());
        }
        spec.inner = Some(Box::new(self::spec(inner)?));
    }
    Ok(spec)
}

impl Runner {
    /// A runner with one frame.
    pub fn new() -> Result<Runner, xway_packet::PoolError> {
        // The rooms that a test run of the kernel has.
        let config = PoolConfig { chunk_size: 4096, headroom: 256, tailroom: 320, ..PoolConfig::new(1) };
        Ok(Runner { pool: Pool::new(config)?, host: SystemHost::new() })
    }

    fn run(&mut self, image: &Program, object: Object, packet: &[u8], answer: &mut Answer) {
        let cost = |s: &MapSpec| u64::from(s.max_entries) * (u64::from(s.key_size) + u64::from(s.value_size) + 16);
        if object.maps.iter().map(|m| cost(&m.spec)).sum::<u64>() > MAPS_MAX {
            answer.not_run = Some(format!("its maps take more than {} MiB", MAPS_MAX >> 20));
            return;
        }
        let linked = Instance::new(Arc::new(object), CPUS)
            .map_err(|e| e.to_string())
            .and_then(|instance| instance.link(image).map_err(|e| e.to_string()));
        let program = match linked {
            Ok(program) => program,
            Err(why) => return answer.not_run = Some(why),
        };
        if packet.len() < PACKET_MIN {
            return answer.not_run = Some(format!("a packet has at least {PACKET_MIN} bytes"));
        }
        let Ok(mut frame) = self.pool.alloc() else { return answer.not_run = Some("no memory for a packet".into()) };
        match frame.fill(packet) {
            Ok(()) => self.over(&program, &mut frame, answer),
            Err(full) => answer.not_run = Some(full.to_string()),
        }
        self.pool.release(frame);
    }

    fn over(&self, program: &xway_vm::Program, frame: &mut Frame, answer: &mut Answer) {
        frame.set_ingress(LOOPBACK, 0);
        let guard = Guard::pin();
        let mut env = Env::new(&guard, &self.host, 0).with_budget(RUN_BUDGET);
        let outcome = xway_vm::run(program, frame, &mut env);
        match outcome.fault {
            None => answer.retval = Some(outcome.ret as u32),
            Some(fault) if matches!(fault.kind, xway_vm::FaultKind::Budget(_)) => {
                answer.not_run = Some(fault.kind.to_string());
            }
            Some(fault) => answer.trap = Some(fault.to_string()),
        }
    }
}

/// Bytes from hexadecimal digits; white space between them is skipped.
fn hex(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 2);
    let mut high = None;
    for c in text.bytes().filter(|c| !c.is_ascii_whitespace()) {
        let digit = (c as char).to_digit(16)? as u8;
        match high.take() {
            None => high = Some(digit),
            Some(h) => out.push(h << 4 | digit),
        }
    }
    high.is_none().then_some(out)
}
