//! One program in every engine: the interpreter, single-packet code, burst code, with all passes and with none.

use std::collections::BTreeMap;
use std::sync::Arc;

use xway_abi::MapType;
use xway_jit::{Compiled, Decided, Link, Options, RunEnv, chain, compile};
use xway_maps::{Guard, Map};
use xway_object::{Object, Program};
use xway_packet::{Frame, Pool, PoolConfig, Redirect};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::{Env, FaultKind, FixedHost, Instance, Timers};

/// What one packet came back as.
#[derive(PartialEq, Eq, Debug, Clone)]
pub struct Ran {
    pub ret: u64,
    pub bytes: Vec<u8>,
    /// Lengths of its buffers.
    pub parts: Vec<usize>,
    pub meta: usize,
    pub redirect: Redirect,
    pub fault: Option<String>,
    /// The link of a chain that decided.
    pub link: usize,
}

/// What a map holds, by key, in a form that can be compared.
pub type Contents = Vec<Option<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// What an engine made of all packets.
#[derive(PartialEq, Eq, Debug)]
pub struct Result {
    pub runs: Vec<Ran>,
    pub maps: Contents,
    /// Callbacks of timers that ran, and those that are left.
    pub timers: (usize, usize),
}

/// How a program is run.
#[derive(Clone, Debug)]
pub enum Engine {
    Interpreter,
    Single(Options),
    Burst(Options),
    /// The program three times behind itself, or in front of the object's others, interpreted and compiled.
    InterpretedChain,
    Chain(Options),
}

/// Verdicts after which the links of that chain go on: all, PASS and ABORTED, odd ones.
const MASKS: [u32; 3] = [u32::MAX, 0b101, 0xaaaa_aaaa];

/// What became of a program.
pub enum Outcome {
    /// Every engine agreed.
    Same,
    /// The verifier refused it.
    Unverified,
    /// Results are not compared: what it does depends on more than packet and maps, or it runs for long.
    Apart,
    /// The compiler refused it, and says why.
    NotCompiled(String),
    /// Engines differ.
    Differs(String),
}

/// Things to do with an instance before the first packet.
pub type Prepare<'a> = &'a dyn Fn(&Instance);

/// What goes through a program.
#[derive(Clone, Copy)]
pub struct Traffic<'a> {
    pub packets: &'a [Vec<u8>],
    /// For each packet where its further buffers begin, if it has any.
    pub cuts: &'a [Vec<usize>],
    /// For each packet the bytes of metadata that it comes with, if any; [`NO_METADATA`] on a port that cannot have them.
    pub metas: &'a [usize],
    /// Packets of one burst; all of them when 0.
    pub burst: usize,
    /// What happens to the instance between two bursts, of which this is the number.
    pub between: &'a dyn Fn(&Instance, usize),
}

/// A packet of a port that has no metadata.
pub const NO_METADATA: usize = usize::MAX;

impl<'a> Traffic<'a> {
    /// One burst, each packet in one buffer.
    pub fn of(packets: &'a [Vec<u8>]) -> Traffic<'a> {
        Traffic { packets, cuts: &[], metas: &[], burst: 0, between: &|_, _| {} }
    }

    /// A frame for the packet with this number, and the pool that it is from.
    fn frame(&self, [with, without]: &mut [Pool; 2], number: usize) -> (Frame, usize) {
        let packet = &self.packets[number];
        let meta = self.metas.get(number).copied().unwrap_or_default();
        let from = usize::from(meta == NO_METADATA);
        let pool = if from == 1 { without } else { with };
        let mut cuts = self.cuts.get(number).cloned().unwrap_or_default();
        cuts.retain(|at| *at < packet.len());
        cuts.push(packet.len());
        let mut frame = pool.alloc().expect("a frame");
        frame.chunk_mut().fill(0);
        frame.fill(&packet[..cuts[0]]).expect("room for a packet");
        for ends in cuts.windows(2) {
            let mut part = pool.alloc().expect("a frame");
            part.chunk_mut().fill(0);
            part.fill_part(&packet[ends[0]..ends[1]]).expect("room for a part");
            frame.push_part(part).expect("few parts");
        }
        if meta != 0 && from == 0 {
            frame.adjust_meta(-(meta as i32)).expect("room for metadata");
            frame.meta_mut().iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 31 + number * 7) as u8);
        }
        frame.set_ingress(1, 0);
        // Where another program sent it before: nobody's business.
        if number.is_multiple_of(3) {
            frame.set_redirect(Redirect::Ifindex(1000 + number as u32));
        }
        (frame, from)
    }

    /// Buffers that it takes.
    fn buffers(&self) -> usize {
        self.packets.len() + self.cuts.iter().map(Vec::len).sum::<usize>()
    }
}

/// The worker that all runs are on; maps have values for two.
const CPU: u32 = 1;

/// Instructions after which a run in the interpreter is broken off.
const LONG: u64 = 200_000;

/// The engines that are compared with the interpreter, by name.
pub type Variants = Vec<(&'static str, Engine)>;

/// All of them.
pub fn variants() -> Variants {
    let (all, none) = (Options { check: true, ..Options::default() }, Options { check: true, ..Options::plain() });
    // On each machine one with its jumps moved and one as the code generator made it.
    let moved = Options { jcc_erratum: Some(true), ..all.clone() };
    vec![
        ("single-packet code", Engine::Single(moved.clone())),
        ("staged burst code", Engine::Burst(Options { stage_from: Some(0), cold: Some(true), ..moved })),
        ("burst code", Engine::Burst(Options { cold: Some(true), jcc_erratum: Some(false), ..all })),
        ("single-packet code without passes", Engine::Single(none.clone())),
        ("burst code without passes", Engine::Burst(none)),
        chained(),
    ]
}

/// A chain of the program.
fn chained() -> (&'static str, Engine) {
    let options = Options { check: true, stage_from: Some(0), cold: Some(true), ..Options::default() };
    ("a chain", Engine::Chain(options))
}

/// Runs the program with this index of an object over the packets in every engine, each with maps of its own.
/// Whoever wrote the program knows that its results do not depend on the engine.
pub fn compare(object: &Arc<Object>, index: usize, packets: &[Vec<u8>], prepare: Prepare<'_>) -> Outcome {
    compare_with(object, index, packets, prepare, variants())
}

/// The same with engines of the caller's choice.
pub fn compare_with(
    object: &Arc<Object>,
    index: usize,
    packets: &[Vec<u8>],
    prepare: Prepare<'_>,
    variants: Variants,
) -> Outcome {
    compare_if(object, index, Traffic::of(packets), prepare, variants, true)
}

/// The same for a program of which nobody knows that: results are compared where its proof says so.
pub fn compare_random(object: &Arc<Object>, index: usize, packets: &[Vec<u8>], prepare: Prepare<'_>) -> Outcome {
    compare_random_with(object, index, Traffic::of(packets), prepare, variants())
}

/// The same with engines of the caller's choice. A chain is one of all programs from this one on, or of this one thrice.
pub fn compare_random_with(
    object: &Arc<Object>,
    index: usize,
    traffic: Traffic<'_>,
    prepare: Prepare<'_>,
    variants: Variants,
) -> Outcome {
    let mut exact = true;
    for index in index..object.programs.len() {
        let image = image(object, index);
        let Ok(proof) = verify(&image, &MapsView::from(&**object), &config()) else { return Outcome::Unverified };
        exact &= crate::repeatable::settled(&proof, object);
    }
    compare_if(object, index, traffic, prepare, variants, exact)
}

fn compare_if(
    object: &Arc<Object>,
    index: usize,
    traffic: Traffic<'_>,
    prepare: Prepare<'_>,
    variants: Variants,
    exact: bool,
) -> Outcome {
    let run = |engine: &Engine| run(object, index, traffic, prepare, engine);
    let expected = match run(&Engine::Interpreter) {
        Ok(result) => result,
        Err(outcome) => return outcome,
    };
    for (name, engine) in variants {
        let of_chain = match &engine {
            // Those that are not compared run for their faults elsewhere.
            Engine::Chain(_) if !exact => continue,
            Engine::Chain(_) => match run(&Engine::InterpretedChain) {
                Ok(result) => Some(result),
                Err(outcome) => return outcome,
            },
            _ => None,
        };
        let got = match run(&engine) {
            Ok(result) => result,
            Err(outcome) => return outcome,
        };
        if let Some((n, fault)) = got.runs.iter().enumerate().find_map(|(n, r)| Some((n, r.fault.as_ref()?))) {
            return Outcome::Differs(format!("{name}: stops over packet {n}: {fault}"));
        }
        let expected = of_chain.as_ref().unwrap_or(&expected);
        if exact && let Some(difference) = difference(expected, &got, traffic.packets, object) {
            return Outcome::Differs(format!("{name}: {difference}"));
        }
    }
    if exact { Outcome::Same } else { Outcome::Apart }
}

fn image(object: &Object, index: usize) -> Program {
    object.programs[index].as_xdp().unwrap_or_else(|_| object.programs[index].clone())
}

fn config() -> Config {
    Config { budget: 200_000, errors_max: 1, ..Config::default() }
}

/// A program of a chain.
struct Ready {
    program: Arc<xway_vm::Program>,
    proof: xway_verifier::Verified,
}

/// What an engine runs a burst with.
enum Code {
    Interpreted,
    InterpretedChain,
    Single(Arc<Compiled>),
    Burst(Arc<Compiled>),
    Chain(Arc<Compiled>),
}

fn run(
    object: &Arc<Object>,
    index: usize,
    traffic: Traffic<'_>,
    prepare: Prepare<'_>,
    engine: &Engine,
) -> std::result::Result<Result, Outcome> {
    let instance = Instance::new(object.clone(), 2).map_err(|_| Outcome::Unverified)?;
    let ready = |index| {
        let image = image(object, index);
        let proof = verify(&image, &MapsView::from(&**object), &config()).map_err(|_| Outcome::Unverified)?;
        let program = instance.link(&image).map_err(|_| Outcome::Unverified)?;
        Ok(Ready { program, proof })
    };
    let chained = matches!(engine, Engine::Chain(_) | Engine::InterpretedChain);
    let links = match object.programs.len() - index {
        1 if chained => vec![index; MASKS.len()],
        _ if chained => (index..object.programs.len()).collect(),
        _ => vec![index],
    };
    let programs = links.into_iter().map(ready).collect::<std::result::Result<Vec<_>, Outcome>>()?;
    let Ready { program, proof } = &programs[0];
    prepare(&instance);
    let made = |made: std::result::Result<_, xway_jit::Refusal>| made.map_err(|e| Outcome::NotCompiled(e.to_string()));
    let code = match engine {
        Engine::Interpreter => Code::Interpreted,
        Engine::InterpretedChain => Code::InterpretedChain,
        Engine::Single(options) => Code::Single(made(compile(program, proof, options))?),
        Engine::Burst(options) => Code::Burst(made(compile(program, proof, options))?),
        Engine::Chain(options) => {
            let links: Vec<Link<'_>> = programs
                .iter()
                .zip(MASKS.into_iter().cycle())
                .map(|(r, chain_on)| Link { program: &r.program, proof: &r.proof, chain_on })
                .collect();
            Code::Chain(made(chain(&links, options))?)
        }
    };
    let pool = |metadata| {
        Pool::new(PoolConfig { metadata, ..PoolConfig::new(traffic.buffers().max(64) as u32) }).expect("packet memory")
    };
    let mut pools = [pool(true), pool(false)];
    let (mut burst, from): (Vec<Frame>, Vec<usize>) =
        (0..traffic.packets.len()).map(|n| traffic.frame(&mut pools, n)).unzip();
    let of = if traffic.burst == 0 { burst.len().max(1) } else { traffic.burst };
    let (mut runs, mut long) = (vec![], false);
    let (timers, mut ran, last) = (Timers::default(), 0, burst.len().div_ceil(of));
    for (number, frames) in burst.chunks_mut(of).enumerate() {
        if number > 0 {
            (traffic.between)(&instance, number);
        }
        runs.extend(run_burst(&code, &programs, frames, &timers, &mut long));
        // Some that have been started are due, or all.
        let now = if number + 1 == last { 1 << 62 } else { [0, 3 << 39, 5 << 39, 1 << 61][number % 4] };
        let (now_ran, faults) = timers.run_due(&FixedHost::new(1).with_clock(now, 1000), CPU);
        if let Some(fault) = faults.first() {
            return Err(Outcome::Differs(format!("a timer's callback stops: {fault}")));
        }
        ran += now_ran;
    }
    burst.into_iter().zip(from).for_each(|(frame, from)| pools[from].release(frame));
    if long {
        return Err(Outcome::Apart);
    }
    let maps = instance.maps().iter().map(|m| contents(m)).collect();
    for map in instance.maps() {
        map.clear_programs();
    }
    Ok(Result { runs, maps, timers: (ran, timers.len()) })
}

/// Runs one burst; `long` when a run was broken off.
fn run_burst(code: &Code, programs: &[Ready], burst: &mut [Frame], timers: &Timers, long: &mut bool) -> Vec<Ran> {
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut fault = |outcome: xway_vm::Outcome| {
        *long |= outcome.fault.as_ref().is_some_and(|f| matches!(f.kind, FaultKind::Budget(_)));
        outcome.fault.map(|f| f.to_string())
    };
    let mut rets = vec![0; burst.len()];
    let mut env = RunEnv::new(&guard, &host, CPU).with_timers(timers);
    match code {
        Code::Interpreted => {
            let mut env = Env::new(&guard, &host, CPU).with_timers(timers).with_budget(LONG);
            let one = |frame: &mut Frame| {
                let outcome = xway_vm::run(&programs[0].program, frame, &mut env);
                ran(frame, outcome.ret, 0, fault(outcome))
            };
            return burst.iter_mut().map(one).collect();
        }
        Code::InterpretedChain => {
            let mut env = Env::new(&guard, &host, CPU).with_timers(timers).with_budget(2 * LONG);
            let links: Vec<_> = programs.iter().map(|r| &*r.program).zip(MASKS.into_iter().cycle()).collect();
            let one = |frame: &mut Frame| {
                let (outcome, link) = xway_vm::run_chain(&links, frame, &mut env);
                ran(frame, outcome.ret, link, fault(outcome))
            };
            return burst.iter_mut().map(one).collect();
        }
        Code::Single(code) => {
            for (frame, ret) in burst.iter_mut().zip(&mut rets) {
                *ret = code.run_one(frame, &mut env).expect("two CPUs");
            }
        }
        Code::Burst(code) | Code::Chain(code) => code.run_burst(burst, &mut env, &mut rets).expect("two CPUs"),
    }
    let fault = env.take_faults().first().map(|f| f.1.to_string());
    let one = |(frame, ret): (&Frame, u64)| {
        let (ret, link) = match code {
            Code::Chain(_) => (Decided::of(ret).verdict.into(), Decided::of(ret).link),
            _ => (ret, 0),
        };
        ran(frame, ret, link, fault.clone())
    };
    burst.iter().zip(rets).map(one).collect()
}

fn ran(frame: &Frame, ret: u64, link: usize, fault: Option<String>) -> Ran {
    let mut redirect = frame.redirect();
    // Ids of maps differ from instance to instance.
    match &mut redirect {
        Redirect::Device { map_id, .. }
        | Redirect::Broadcast { map_id, .. }
        | Redirect::Cpu { map_id, .. }
        | Redirect::Socket { map_id, .. } => *map_id = 0,
        _ => {}
    }
    // A target is for whoever asked for one.
    if ret as u32 != xway_abi::Verdict::Redirect as u32 {
        redirect = Redirect::None;
    }
    // A pointer or a number: what a verdict is counted by has 32 bits.
    Ran {
        ret: u64::from(ret as u32),
        bytes: [frame.accessible(), frame.parts().skip(1).collect::<Vec<_>>().concat().as_slice()].concat(),
        parts: frame.parts().map(<[u8]>::len).collect(),
        meta: frame.meta_len() as usize,
        redirect,
        fault,
        link,
    }
}

fn contents(map: &Map) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    use MapType::{
        Array, ArrayOfMaps, BloomFilter, Hash, HashOfMaps, LpmTrie, LruHash, LruPercpuHash, PercpuArray, PercpuHash,
        Queue, Ringbuf, Stack,
    };
    let number = |values: Vec<Vec<u8>>| {
        values.into_iter().enumerate().map(|(n, v)| (n.to_be_bytes().to_vec(), v)).collect::<BTreeMap<_, _>>()
    };
    match map.map_type() {
        Array | Hash | LruHash | LpmTrie | PercpuArray | PercpuHash | LruPercpuHash => {
            let mut all = BTreeMap::new();
            for key in map.keys().unwrap_or_default() {
                let mut value = vec![0; map.user_value_size()];
                if map.lookup(&key, &mut value, 0).is_ok() {
                    all.insert(key, value);
                }
            }
            Some(all)
        }
        Queue | Stack => {
            let mut values = vec![];
            let mut value = vec![0; map.user_value_size()];
            while map.lookup_and_delete(&[], &mut value, 0).is_ok() {
                values.push(value.clone());
            }
            Some(number(values))
        }
        Ringbuf => {
            let mut records = vec![];
            map.ringbuf()?.consume(usize::MAX, &mut |r| records.push(r.to_vec())).ok()?;
            Some(number(records))
        }
        BloomFilter => {
            // What it says that it holds, of numbers that are pushed often.
            let held = |n: &u64| map.lookup(&[], &mut n.to_ne_bytes()[..map.user_value_size()], 0).is_ok();
            Some((0..64).filter(held).map(|n| (n.to_ne_bytes().to_vec(), vec![])).collect())
        }
        ArrayOfMaps | HashOfMaps => {
            let guard = Guard::pin();
            let slots = (0..map.spec().max_entries).map(u32::to_ne_bytes);
            let inner = slots.filter_map(|slot| Some((slot, contents(map.inner(&slot, &guard)?)?)));
            let all = inner
                .flat_map(|(slot, held)| held.into_iter().map(move |(key, value)| ([&slot[..], &key].concat(), value)));
            Some(all.collect())
        }
        _ => None,
    }
}

/// The first difference in words.
fn difference(expected: &Result, got: &Result, packets: &[Vec<u8>], object: &Object) -> Option<String> {
    for (n, (want, have)) in expected.runs.iter().zip(&got.runs).enumerate() {
        if want != have {
            let len = packets[n].len();
            let what = |r: &Ran| {
                let Ran { ret, meta, redirect, fault, link, bytes, parts } = r;
                format!(
                    "r0 {ret:#x} of link {link}, meta {meta}, {redirect:?}, fault {fault:?}, {parts:?}, {bytes:02x?}"
                )
            };
            return Some(format!(
                "packet {n} of {len} bytes:\n  interpreter {}\n  compiled    {}",
                what(want),
                what(have)
            ));
        }
    }
    for (n, (want, have)) in expected.maps.iter().zip(&got.maps).enumerate() {
        if want != have {
            return Some(format!("map {}:\n  interpreter {want:02x?}\n  compiled    {have:02x?}", object.maps[n].name));
        }
    }
    let (want, have) = (expected.timers, got.timers);
    (want != have).then(|| format!("callbacks of timers that ran, and timers: {want:?} interpreted, {have:?} compiled"))
}
