//! One program before both verifiers, and what was accepted on both machines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::MapType;
use xway_kernel::{KernelError, KernelMap, KernelObject, KernelProg, TestInput, XdpMd};
use xway_maps::{Guard, Map};
use xway_object::{Initial, Object, Program};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, Kind, MapsView, Verified, verify};
use xway_vm::{Env, FaultKind, FixedHost, Instance, Outcome};

use super::classes::Case;
use super::compiled::Compiled;
use super::corpus::Sent;
use super::evidence::{Followed, dead_end, near};
use super::repeatable::repeatable;
use super::seen::Seen;

/// Maps and types of programs, on both sides.
pub struct Place {
    /// What the programs name.
    pub object: Arc<Object>,
    kernel: KernelObject,
}

/// What the two made of a program.
pub enum Answer {
    /// Both accepted it, and it behaved the same as far as that can be told; over this many packets it was compared.
    BothAccept(usize),
    /// Both refused it: our kind of reason.
    BothRefuse(&'static str),
    /// Only we refuse: our reason.
    OnlyWeRefuse(String),
    /// Only the kernel refuses. It ran here without a fault.
    OnlyKernelRefuses(Case),
    /// Our analysis is long: the kernel, for which it would take seconds, was not asked.
    Long,
    /// What must not be.
    Wrong(String),
}

/// How much is asked.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Packets over which both machines run.
    pub compared: usize,
    /// Packets over which the interpreter runs what only we accept.
    pub alone: usize,
    /// Instructions that our verifier may visit.
    pub visits: u64,
    /// The compiled program runs too.
    pub compiled: bool,
    /// Decided branches are walked both ways from the start, not only where that pays.
    pub guess: bool,
}

/// Instructions after which a run is broken off, here and, because it is then not tried, in the kernel.
const LONG: u64 = 200_000;

impl Place {
    /// Makes the kernel's side. Ours is made for each program, so that runs start from the same contents.
    pub fn new(object: Arc<Object>) -> Result<Place, String> {
        let kernel = KernelObject::load_some(&object, |_| false).map_err(|e| e.to_string())?;
        Ok(Place { object, kernel })
    }

    /// These maps and those that they hold.
    fn with_inner(&self, used: &[u32]) -> Vec<u32> {
        let mut all = used.to_vec();
        for i in used {
            if let Initial::Slots(slots) = &self.object.maps[*i as usize].initial {
                all.extend(slots.iter().filter_map(|s| match s.1 {
                    xway_object::SlotRef::Map(i) => Some(i as u32),
                    xway_object::SlotRef::Program(_) => None,
                }));
            }
        }
        all
    }

    /// What the kernel's log says of a program that it refuses.
    fn log(&self, program: &Program) -> String {
        self.kernel.load_more(&self.object, program, 1).err().map(|e| e.log().to_owned()).unwrap_or_default()
    }

    /// Both logs of states.
    pub fn logs(&self, program: &Program) -> String {
        let config = Config { log: true, errors_max: 1, ..Config::default() };
        let ours = match verify(program, &MapsView::from(&*self.object), &config) {
            Ok(proof) => proof.log().to_owned(),
            Err(refused) => refused.log,
        };
        format!("\nhere:\n{ours}\nthe kernel:\n{}", self.log(program))
    }

    /// Puts the kernel's maps back to their first contents.
    fn reset(&self, used: &[u32]) {
        for i in &self.with_inner(used) {
            let (def, map) = (&self.object.maps[*i as usize], &self.kernel.maps[*i as usize]);
            match (map.spec().map_type, &def.initial) {
                (_, Initial::Data(bytes)) => {
                    let _ = map.update(&[0; 4], bytes, 0);
                }
                (MapType::Array | MapType::PercpuArray, Initial::None) => {
                    let zero = vec![0; map.user_value_size()];
                    for i in 0..map.spec().max_entries {
                        let _ = map.update(&i.to_ne_bytes(), &zero, 0);
                    }
                }
                (MapType::Hash | MapType::LpmTrie, _) => {
                    for key in map.keys().unwrap_or_default() {
                        let _ = map.delete(&key);
                    }
                    for (key, value) in first_contents(map.spec()) {
                        let _ = map.update(&key, &value, 0);
                    }
                }
                (MapType::PercpuHash, _) => {
                    for key in map.keys().unwrap_or_default() {
                        let _ = map.delete(&key);
                    }
                }
                (MapType::Queue | MapType::Stack, _) => {
                    let mut value = vec![0; map.spec().value_size as usize];
                    while map.lookup_and_delete(&[], &mut value, 0).is_ok() {}
                }
                _ => {}
            }
        }
    }
}

/// Our maps with their first contents.
fn instance(place: &Place) -> Result<Instance, String> {
    let instance = Instance::new(place.object.clone(), 2).map_err(|e| format!("our maps: {e}"))?;
    for map in instance.maps() {
        for (key, value) in first_contents(map.spec()) {
            map.update(&key, &value, 0).map_err(|e| format!("our maps: {e}"))?;
        }
    }
    Ok(instance)
}

/// What hash maps of eight-byte keys and tries hold before each program.
pub fn first_contents(spec: &xway_abi::MapSpec) -> Vec<(Vec<u8>, Vec<u8>)> {
    if spec.map_type == MapType::LpmTrie {
        return super::world::first_prefixes(spec);
    }
    let keys = if spec.map_type == MapType::Hash && spec.key_size == 8 && spec.max_entries >= 4 { 4 } else { 0 };
    let value = |k: u64| (0..spec.value_size).map(|i| (i as u8).wrapping_mul(7).wrapping_add(k as u8)).collect();
    (0..keys).map(|k: u64| (k.to_ne_bytes().to_vec(), value(k))).collect()
}

/// Both machines and what they need.
pub struct Oracle {
    pool: Pool,
    host: FixedHost,
    /// Time that our verifier took, and the kernel's loads.
    pub ours: Duration,
    /// The same of the kernel, refusals included.
    pub theirs: Duration,
    /// Packets that went through machine code.
    pub compiled_runs: u64,
}

impl Default for Oracle {
    /// Memory for one packet of as many buffers as there can be, laid out as the kernel's test run lays it out.
    fn default() -> Oracle {
        let config = PoolConfig {
            chunk_size: 4096,
            headroom: 256,
            tailroom: 320,
            ..PoolConfig::new(1 + Frame::FRAGS_MAX as u32)
        };
        let pool = Pool::new(config).expect("memory for a packet");
        Oracle { pool, host: FixedHost::new(1), ours: Duration::ZERO, theirs: Duration::ZERO, compiled_runs: 0 }
    }
}

impl Oracle {
    /// Puts one program before both, and runs it over packets that `packet` makes.
    pub fn ask(
        &mut self,
        program: &Program,
        place: &Place,
        effort: Effort,
        packet: &mut dyn FnMut() -> Sent,
    ) -> Answer {
        let apart = if effort.guess { 0 } else { Config::default().apart };
        let config = Config { budget: effort.visits, errors_max: 1, explain: 0, apart, ..Config::default() };
        let start = Instant::now();
        let ours = verify(program, &MapsView::from(&*place.object), &config);
        let middle = Instant::now();
        if matches!(&ours, Err(r) if r.errors[0].kind == Kind::Budget) {
            return Answer::Long;
        }
        // Level 4: the reason without the log of states, at the price of one load.
        let theirs = place.kernel.load_more(&place.object, program, 4);
        self.ours += middle - start;
        self.theirs += middle.elapsed();
        let (proof, theirs) = match (ours, theirs) {
            (Err(r), Err(_)) => return Answer::BothRefuse(r.errors[0].kind.name()),
            (Err(r), Ok(_)) => {
                let e = &r.errors[0];
                return Answer::OnlyWeRefuse(format!("{}: {}", e.kind.name(), e.message));
            }
            (Ok(proof), theirs) => (proof, theirs),
        };
        // Proved, and nothing here can run it: linking refuses it by name.
        if !proof.facts().kernel_objects.is_empty() {
            return match theirs {
                Ok(_) => Answer::BothAccept(0),
                Err(e) => Answer::OnlyKernelRefuses(Case { words: reason(&e), ..Case::default() }),
            };
        }
        match &theirs {
            Ok(kernel) => {
                let compared = if repeatable(&proof, &place.object) { effort.compared } else { 0 };
                let packets: Vec<_> = (0..effort.compared.max(4)).map(|_| packet()).collect();
                let compile = effort.compiled;
                let mut outcome = self.run(program, &proof, place, &packets, (compared > 0).then_some(kernel), compile);
                if outcome.is_err() {
                    // Once more: what another CPU's value or an unlucky interrupt changed does not repeat.
                    outcome = self.run(program, &proof, place, &packets, (compared > 0).then_some(kernel), compile);
                }
                match outcome {
                    Ok(()) => Answer::BothAccept(compared),
                    Err(wrong) => Answer::Wrong(wrong),
                }
            }
            Err(e) => {
                let packets: Vec<_> = (0..effort.alone).map(|_| packet()).collect();
                if let Err(wrong) = self.run(program, &proof, place, &packets, None, effort.compiled) {
                    return Answer::Wrong(wrong);
                }
                let case = case(program, place, &config, reason(e));
                if case.is_proved() {
                    return Answer::OnlyKernelRefuses(case);
                }
                // Only words say why: a thousand packets more, of every length around the checks.
                let packets = (0..1000).map(|n| {
                    let mut p = packet();
                    p.bytes.resize(p.meta + 14 + n % 120, n as u8);
                    p
                });
                match self.run(program, &proof, place, &packets.collect::<Vec<_>>(), None, false) {
                    Ok(()) => Answer::OnlyKernelRefuses(case),
                    Err(wrong) => Answer::Wrong(wrong),
                }
            }
        }
    }

    /// Runs the program over the packets here, and there too when it is to be compared.
    fn run(
        &mut self,
        program: &Program,
        proof: &Verified,
        place: &Place,
        packets: &[Sent],
        kernel: Option<&KernelProg>,
        compile: bool,
    ) -> Result<(), String> {
        let instance = instance(place)?;
        // What was proved: dead slots that are no instruction are replaced in it.
        let program = &Program { insns: proof.insns().to_vec(), ..program.clone() };
        let linked = instance.link(program).map_err(|e| format!("accepted, but it cannot be linked: {e}"))?;
        if kernel.is_some() {
            place.reset(&proof.facts().maps);
        }
        let mut compiled = match compile {
            true => Compiled::new(self::instance(place)?, program, proof)?,
            false => None,
        };
        let guard = Guard::pin();
        let timers = xway_vm::Timers::default();
        let mut env = Env::new(&guard, &self.host, 0).with_budget(LONG).with_timers(&timers);
        for packet in packets {
            let mut frame = frame_of(&mut self.pool, packet);
            let out = xway_vm::run(&linked, &mut frame, &mut env);
            let (data, meta) = (bytes_of(&frame), frame.meta_len());
            self.pool.release(frame);
            match out.fault.as_ref().map(|f| &f.kind) {
                // Long loops are no crime, but the kernel is not made to go through them.
                Some(FaultKind::Budget(_)) => return Ok(()),
                Some(_) => return Err(trap(&packet.bytes, &out)),
                None => check_facts(proof, &out, packet, &data)?,
            }
            self.compiled_runs += u64::from(compiled.is_some());
            if let Some(compiled) = &mut compiled {
                compiled.run(&mut self.pool, packet, &out, (&data, meta))?;
            }
            let Some(kernel) = kernel else { continue };
            let theirs = kernel.test_run(&input_of(packet)).map_err(|e| format!("kernel run: {e}"))?;
            let their_meta = theirs.ctx.map_or(0, |ctx| ctx.data);
            if theirs.ret != out.ret as u32 || theirs.data != data || their_meta != meta {
                return Err(format!(
                    "over {} with {} bytes of metadata the kernel returns {:#x} and {} with {their_meta}, we {:#x} and {} with {meta}",
                    hex(&packet.bytes),
                    packet.meta,
                    theirs.ret,
                    hex(&theirs.data),
                    out.ret as u32,
                    hex(&data)
                ));
            }
        }
        if let Some(compiled) = compiled {
            compiled.same_maps(&instance)?;
        }
        match kernel {
            Some(_) => place.with_inner(&proof.facts().maps).iter().try_for_each(|i| {
                let i = *i as usize;
                same_contents(&place.object.maps[i].name, &instance.maps()[i], &place.kernel.maps[i])
            }),
            None => Ok(()),
        }
    }
}

/// A test run over a packet, that says how much of what comes back is metadata.
fn input_of(sent: &Sent) -> TestInput<'_> {
    let ctx = XdpMd { data: sent.meta as u32, data_end: sent.bytes.len() as u32, ..XdpMd::default() };
    TestInput { ctx: Some(ctx), ..TestInput::packet(&sent.bytes) }
}

/// A packet as the kernel's test run lays it out, in as many buffers as that takes.
pub fn frame_of(pool: &mut Pool, sent: &Sent) -> Frame {
    let mut frame = pool.alloc().expect("one packet at a time");
    frame.chunk_mut().fill(0);
    let (meta, packet) = sent.bytes.split_at(sent.meta);
    let (first, rest) = packet.split_at(packet.len().min(frame.capacity()));
    frame.fill(first).expect("as long as there is room");
    pool.append(&mut frame, rest).expect("packets have few buffers");
    if !meta.is_empty() {
        frame.adjust_meta(-(meta.len() as i32)).expect("room for metadata");
        frame.meta_mut().copy_from_slice(meta);
    }
    frame.set_ingress(1, 0);
    frame
}

/// Metadata and packet.
pub fn bytes_of(frame: &Frame) -> Vec<u8> {
    frame.parts().skip(1).fold(frame.accessible().to_vec(), |all, part| [all, part.to_vec()].concat())
}

fn trap(packet: &[u8], out: &Outcome) -> String {
    let fault = out.fault.as_ref().map(ToString::to_string).unwrap_or_default();
    format!("accepted, but over {}: {fault}", hex(packet))
}

/// Why it is accepted here.
fn case(program: &Program, place: &Place, config: &Config, words: String) -> Case {
    let view = MapsView::from(&*place.object);
    // No guesses: branches that are decided shall be known as such. More than was needed may have to be walked.
    let config = Config { budget: config.budget.max(50_000), apart: u32::MAX, ..config.clone() };
    let Ok(proof) = verify(program, &view, &Config { log: true, ..config.clone() }) else {
        return Case { words, ..Case::default() };
    };
    let seen = Seen::of(proof.log());
    // What must not be taken away from what is known, or the program is refused here too.
    let by = Followed::ALL.into_iter().find(|f| {
        let Some(weaker) = f.taken_away(program, &seen) else { return false };
        let answer = verify(&weaker, &view, &config);
        answer.is_err_and(|r| !matches!(r.errors[0].kind, Kind::StackDepth | Kind::Budget))
    });
    let theirs = place.log(program);
    let dead = dead_end(&theirs, proof.facts(), &program.insns);
    Case { near: near(&theirs, &words), words, by, dead }
}

/// What the proof says of every run must hold for this one.
fn check_facts(proof: &Verified, out: &Outcome, sent: &Sent, after: &[u8]) -> Result<(), String> {
    let (facts, before) = (proof.facts(), &sent.bytes);
    if let Some(verdicts) = &facts.verdicts
        && !facts.tail_calls
        && !verdicts.iter().any(|v| *v as u64 == u64::from(out.ret as u32))
    {
        return Err(format!("returns {:#x} over {}; the facts say {verdicts:?}", out.ret, hex(before)));
    }
    if !facts.packet_moved && before.len() != after.len() {
        return Err("the packet was moved; the facts say that it is not".to_owned());
    }
    // Bytes are counted from the packet's start.
    let mut behind = before.iter().zip(after).skip(sent.meta);
    let changed = behind.rposition(|(a, b)| a != b).map_or(0, |i| i + 1);
    // `bpf_xdp_store_bytes` and checksum helpers are calls, not direct access.
    let direct = !facts.helpers.contains(&190) && facts.kfuncs.is_empty();
    if direct && !facts.packet_moved && changed > 0 && (!facts.packet_written || changed > facts.packet_bytes as usize)
    {
        return Err(format!("byte {changed} of the packet was written; the facts say {}", facts.packet_bytes));
    }
    Ok(())
}

fn same_contents(name: &str, ours: &Map, theirs: &KernelMap) -> Result<(), String> {
    let spec = theirs.spec();
    let keys: Vec<Vec<u8>> = match spec.map_type {
        MapType::Array if spec.max_entries <= 64 => (0..spec.max_entries).map(|i| i.to_ne_bytes().to_vec()).collect(),
        MapType::Hash | MapType::LpmTrie => theirs.keys().unwrap_or_default(),
        _ => return Ok(()),
    };
    let here = ours.keys().map_or(0, |k| k.len());
    if here != keys.len() {
        return Err(format!("map {name}: the kernel has {} keys, we {here}", keys.len()));
    }
    for key in keys {
        let mut here = vec![0; theirs.user_value_size()];
        let found = ours.lookup(&key, &mut here, 0).is_ok();
        let there = theirs.get(&key).map_err(|e| format!("kernel map {name}: {e}"))?;
        if !found || here != there {
            return Err(format!("map {name}, key {}: the kernel has {}, we {}", hex(&key), hex(&there), hex(&here)));
        }
    }
    Ok(())
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The decisive line of the kernel's log.
fn reason(e: &KernelError) -> String {
    let figures = ["processed", "verification time", "max_states", "stack depth", "mark_precise", "insns_processed"];
    let decisive = |l: &&str| !l.trim().is_empty() && !figures.iter().any(|f| l.trim().starts_with(f));
    e.log().lines().rev().find(decisive).map_or_else(|| e.to_string(), str::to_owned)
}
