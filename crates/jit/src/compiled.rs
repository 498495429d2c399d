//! From a proof to code that runs.
#![allow(unsafe_code)] // calls generated code
//!
//! The invariant that everything unsafe in this crate stands on: **code is made only from a program with its proof, and runs
//! only with maps that are like those of the proof.** `check_maps` compares every property that the proof relies on, the
//! contents of frozen maps included; the code keeps the maps alive.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use cranelift_codegen::CodegenError;
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use xway_abi::{MapSpec, MapType, map_flags};
use xway_maps::{Guard, Map};
use xway_object::MapDef;
use xway_packet::{Frame, Redirect};
use xway_verifier::Verified;
use xway_vm::Program;

use crate::calls::{BOOT, KTIME};
use crate::chain::Link;
use crate::code::CodeMemory;
use crate::env::RunEnv;
use crate::headers;
use crate::lanes;
use crate::link::{self, Placed};
use crate::lower::{self, Callee, Shape, Surroundings, Unit};
use crate::means;
use crate::native::Handle;
use crate::plan::scout::{In, NOTES_MAX};
use crate::plan::{self, Plan};
use crate::same::Own;
use crate::scratch::{self, Scratch};
use crate::stage::{self, Stage};
use crate::units::{Parts, Units};
use crate::{Options, Refusal, clock, trial};

/// A program as machine code. Immutable and shared by all workers.
#[derive(Debug)]
pub struct Compiled {
    /// Named for the debugger; forgotten before the code goes, because it stands in front of it.
    _gdb: crate::gdb::Known,
    name: String,
    code: CodeMemory,
    /// Offset of the burst function.
    burst: Option<usize>,
    /// Offset of the function for one packet.
    single: Option<usize>,
    /// Offset of the function that tail calls jump to.
    tail: Option<usize>,
    functions: Vec<Placed>,
    texts: Vec<String>,
    stats: Stats,
    /// CPUs that all per-CPU maps have values for.
    cpus: u32,
    options: Options,
    /// Some program looks at packets, and their first lines may be fetched ahead.
    headers: bool,
    /// Packets are taken for cold or not; `None`: it is measured.
    cold: Option<bool>,
    /// What runs in front of a burst when maps outgrow the cache.
    stages: Vec<Stage>,
    /// Some run reads the clock.
    clock: bool,
    /// Programs that tail calls reach and that stand in the burst function. Weak: what a PROG_ARRAY lets go must go; but its
    /// memory is not another program's as long as this lives, which the code relies on.
    targets: Vec<Weak<Program>>,
    /// Addresses in the code that another compilation has others for.
    own: Own,
    /// What the code refers to by address.
    _maps: Vec<Arc<Map>>,
    _handles: Vec<Box<[Handle]>>,
    _bases: Vec<Box<[u64]>>,
}

/// What compiling cost and gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Instructions of the program that became code.
    pub insns: usize,
    /// Length of the code, bytes.
    pub code_len: usize,
    /// Time taken.
    pub time: Duration,
    /// Time of it that the back end took, Cranelift.
    pub back_end: Duration,
}

pub(crate) type BurstFn = unsafe extern "C" fn(*mut RunEnv<'_>, *mut Frame, u64, *mut u64);
type SingleFn = unsafe extern "C" fn(*mut RunEnv<'_>, u64) -> u64;

/// Compiles a linked program with its proof.
///
/// The program must be linked from what was verified, with maps like those that the verifier was told about; else it is
/// refused. Cost: some microseconds for each instruction.
pub fn compile(program: &Arc<Program>, proof: &Verified, options: &Options) -> Result<Arc<Compiled>, Refusal> {
    build(&[Link { program, proof, chain_on: 0 }], false, options)
}

/// Compiles one program, or a chain into one burst function.
pub(crate) fn build(links: &[Link<'_>], chained: bool, options: &Options) -> Result<Arc<Compiled>, Refusal> {
    let started = Instant::now();
    let isa = host_isa(options)?;
    let units = Units::gather(links, options.burst || chained, options)?;
    let lowered: Vec<Unit<'_>> = units.parts.iter().map(Parts::unit).collect();
    let around = surroundings(&units, &lowered, links.len(), chained, isa.as_ref(), options);
    let answers = around.answers;
    let Emitted { linked, texts, back_end } = scratch::with(units.insns(), |scratch| emit(&around, scratch))?;
    let (functions, len) = (linked.functions.clone(), linked.bytes.len());
    let mut own = Own::new(linked.outward());
    let code = CodeMemory::placed(len, |place| Some(linked.at(place)))?;
    let code = code.ok_or_else(|| Refusal::Memory("code without a place".into()))?;
    for (unit, parts) in units.parts.iter().enumerate() {
        for (func, handle) in parts.handles.iter().enumerate() {
            let shape = Shape::Function(Callee { unit, func });
            if let Some(f) = functions.iter().find(|f| f.shape == shape) {
                handle.code.store(code.at(f.offset) as usize, Ordering::Release);
            }
        }
    }
    let at = |shape| functions.iter().find(|f| f.shape == shape).map(|f| f.offset);
    let stage = |(n, unit): (usize, &Unit<'_>)| {
        let scout = unit.plan.scout.as_ref()?;
        let answered = answers.filter(|(of, _)| *of == n).map(|(_, map)| map);
        Some(Stage::new(at(Shape::Scout(n))?, scout, unit.maps, answered, options))
    };
    let stages = lowered.iter().enumerate().filter_map(stage).collect();
    let names: Vec<&str> = links.iter().map(|l| l.program.name()).collect();
    let name = names.join("+");
    let insns = units.insns();
    let uses_clock = units.parts.iter().any(|p| [KTIME, BOOT].iter().any(|id| p.plan.uses_helper(*id)));
    let headers = options.headers && units.parts.iter().any(|p| p.plan.looks_at_packets());
    let maps = units.parts.iter().flat_map(|p| p.program.maps()).cloned().collect();
    let targets = units.parts[links.len()..].iter().map(|p| Arc::downgrade(&p.program)).collect();
    let cpus = units.cpus;
    for parts in &units.parts {
        own.add(&parts.handles);
        own.add(&parts.bases);
    }
    let (handles, bases) = units.parts.into_iter().map(|p| (p.handles, p.bases)).unzip();
    let compiled = Compiled {
        _gdb: crate::gdb::Known::new(&name, code.at(0) as u64, code.bytes().len(), &functions),
        name,
        burst: at(Shape::Burst),
        single: at(Shape::Single),
        tail: at(Shape::Tail),
        functions,
        texts,
        stats: Stats { insns, code_len: code.bytes().len(), time: started.elapsed(), back_end },
        cpus,
        options: options.clone(),
        headers,
        cold: options.cold,
        stages,
        clock: uses_clock,
        own,
        _maps: maps,
        targets,
        _handles: handles,
        _bases: bases,
        code,
    };
    let programs: Vec<&Program> = links.iter().map(|l| &**l.program).collect();
    crate::profile::made(&compiled, &programs);
    Ok(Arc::new(compiled))
}

fn surroundings<'a>(
    units: &Units,
    lowered: &'a [Unit<'a>],
    links: usize,
    chained: bool,
    isa: &'a dyn TargetIsa,
    options: &'a Options,
) -> Surroundings<'a> {
    let answered = |(n, unit): (usize, &Unit<'_>)| {
        Some((n, stage::answered(unit.plan.scout.as_ref()?, unit.maps)?)).filter(|_| unit.inline)
    };
    Surroundings {
        units: lowered,
        links,
        count_in_variable: units.count_in_variable,
        chained,
        cpus: units.cpus,
        zeros: stage::zeros(),
        answers: lowered.iter().enumerate().find_map(answered),
        options,
        isa,
    }
}

/// Machine code for aarch64, on whatever machine this is: to see that there is some, and what it is.
///
/// The code refers to this process's maps and helpers by address, so it is not to be run elsewhere. The result is the code and
/// the functions in it.
///
/// # Errors
/// As [`compile`].
pub fn compile_for_aarch64(
    program: &Arc<Program>,
    proof: &Verified,
    options: &Options,
) -> Result<(Vec<u8>, Vec<Placed>), Refusal> {
    let machine = |why: String| Refusal::Machine(why);
    let builder = cranelift_codegen::isa::lookup_by_name("aarch64").map_err(|e| machine(e.to_string()))?;
    let isa = builder.finish(flags(options)).map_err(|e| machine(e.to_string()))?;
    let units = Units::gather(&[Link { program, proof, chain_on: 0 }], options.burst, options)?;
    let lowered: Vec<Unit<'_>> = units.parts.iter().map(Parts::unit).collect();
    let around = surroundings(&units, &lowered, 1, false, isa.as_ref(), options);
    let Emitted { linked, .. } = scratch::with(units.insns(), |scratch| emit(&around, scratch))?;
    Ok((linked.bytes, linked.functions))
}

/// Checks that proof and program belong together and makes the plan.
pub(crate) fn plan(program: &Program, proof: &Verified, options: &Options) -> Result<Plan, Refusal> {
    if xway_isa::decode(proof.insns()).ok().as_deref() != Some(program.insns()) {
        return Err(Refusal::OtherProgram);
    }
    check_maps(proof.maps(), program.maps())?;
    let facts = proof.facts();
    let mut plan = plan::build(program, proof)?;
    if options.decided {
        plan.decide(&facts.decided);
    }
    if options.frozen {
        plan.fold_frozen(proof.maps());
    }
    if !options.constant_keys {
        plan.forget_constant_keys();
    }
    if options.detours {
        plan.straighten();
    }
    if options.unroll {
        plan.unroll();
    }
    if options.inline_functions {
        plan.inline_functions(program.maps());
    }
    if options.value_words {
        plan.value_words();
    }
    Ok(plan)
}

/// Code, laid out but not yet where it runs.
struct Emitted {
    linked: link::Linked,
    texts: Vec<String>,
    /// Time that Cranelift took.
    back_end: Duration,
}

/// Lowers and compiles every function that is needed, and lays them out.
fn emit(around: &Surroundings<'_>, scratch: &mut Scratch) -> Result<Emitted, Refusal> {
    // x86-64 does not ask for alignment; Linux's verifier, like ours, asks for that of the offset alone.
    let asks = around.isa.name().starts_with("aarch64");
    if let Some(insn) = around.units.iter().filter(|_| asks).find_map(|unit| unit.plan.atomic_of_any_alignment()) {
        return Err(Refusal::Alignment { insn });
    }
    let Scratch { builder, context, control, registers } = scratch;
    let mut linker = link::Linker::new(aligns_branches(around));
    let mut texts = vec![];
    let mut back_end = Duration::ZERO;
    // A chain is run over bursts only, which may be of one frame.
    let wanted = |shape: &Shape| match shape {
        Shape::Burst => around.options.burst || around.chained,
        // One of the two there must be.
        _ => (around.options.single || !around.options.burst) && !around.chained,
    };
    let mut shapes: Vec<Shape> = [Shape::Burst, Shape::Single, Shape::Tail].into_iter().filter(wanted).collect();
    let scouts = (0..around.units.len()).filter(|n| around.units[*n].plan.scout.is_some());
    shapes.extend(scouts.map(Shape::Scout));
    for (unit, u) in around.units.iter().enumerate() {
        // The main function as a callee or a callback: only where somebody calls it.
        let first = usize::from(u.inline && !u.plan.calls_main());
        // Nor others of which every call is a copy.
        let needed = (first..u.plan.funcs.len()).filter(|func| *func == 0 || u.plan.is_called(*func));
        shapes.extend(needed.map(|func| Shape::Function(Callee { unit, func })));
    }
    for shape in shapes {
        let which = shape.callee();
        let func = &around.units[which.unit].plan.funcs[which.func];
        if func.insns == 0 {
            continue; // No run comes here.
        }
        context.clear();
        let lowered = lower::lower(around, shape, &mut context.func, builder);
        lanes::run(&mut context.func, lowered.exit, around.options);
        if around.options.keep_text {
            if let (Shape::Scout(unit), Some(scout)) = (shape, &around.units[which.unit].plan.scout) {
                texts.push(format!("; {} as a scout, program {unit}\n{}", func.name, scout.text));
            }
            let names: Vec<&str> = lowered.entries.iter().map(|e| e.name).collect();
            let left = match func.slots.left {
                0 => String::new(),
                n => format!("; {n} parts of its stack stay in memory, values would cost more than they gain\n"),
            };
            texts.push(format!("; {} as {shape:?}, u1:n are {names:?}\n{left}{}", func.name, context.func.display()));
        }
        let failed = |why: String| Refusal::BackEnd { name: func.name.clone(), why };
        let names: Vec<_> = context.func.params.user_named_funcs().values().cloned().collect();
        let started = Instant::now();
        let (isa, disasm) = (around.isa, around.options.keep_text);
        let mut back_end_of = || {
            let optimized = means::optimize(around, context, control)?;
            let done = isa.compile_function(&context.func, &context.domtree, registers, disasm, control)?;
            Ok((optimized, done.apply_params(&context.func.params)))
        };
        let (optimized, done) = back_end_of().map_err(|e: CodegenError| failed(format!("{e:?}")))?;
        back_end += started.elapsed();
        texts.extend(done.vcode.clone());
        // What all links of a chain stand in has the names of all.
        let mains = || around.units[..around.links].iter().map(|u| u.plan.funcs[0].name.as_str()).collect::<Vec<_>>();
        let name = if shape == Shape::Burst { mains().join("+") } else { func.name.clone() };
        linker.add(shape, &name, &done, &names, &lowered.entries);
        if around.options.keep_text && around.options.optimize {
            let passes = match optimized {
                means::Optimized::Numbered => "behind value numbering",
                means::Optimized::ByCranelift => "behind Cranelift's own passes",
                means::Optimized::No => "without a mid-end, too much would live too long",
            };
            let what = format!("; {} as {shape:?}, {passes}", func.name);
            texts.push(format!("{what}\n{}", context.func.display()));
        }
    }
    Ok(Emitted { linked: linker.finish()?, texts, back_end })
}

/// Whether code for this machine has its jumps put in places of their own.
fn aligns_branches(around: &Surroundings<'_>) -> bool {
    #[cfg(target_arch = "x86_64")]
    let minded = around.isa.name() == "x64" && around.options.jcc_erratum.unwrap_or_else(crate::branches::minded);
    #[cfg(not(target_arch = "x86_64"))]
    let minded = false;
    around.options.align_branches && minded
}

impl Plan {
    /// Whether the main function is also called as a function.
    fn calls_main(&self) -> bool {
        self.funcs
            .iter()
            .flat_map(|f| &f.blocks)
            .flat_map(|b| &b.ops)
            .any(|op| matches!(op.kind, plan::Kind::Local { func: 0, .. } | plan::Kind::Func { func: 0, .. }))
    }
}

/// The machine that we run on.
fn host_isa(options: &Options) -> Result<OwnedTargetIsa, Refusal> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(Refusal::Machine(format!("code for {} is not run yet", std::env::consts::ARCH)));
    }
    // Making one costs as much as compiling a small function.
    static ISAS: [OnceLock<Result<OwnedTargetIsa, String>>; 4] = [const { OnceLock::new() }; 4];
    let slot = &ISAS[usize::from(options.optimize) * 2 + usize::from(options.check)];
    let make = || {
        let builder = cranelift_native::builder().map_err(str::to_owned)?;
        builder.finish(flags(options)).map_err(|e| e.to_string())
    };
    slot.get_or_init(make).clone().map_err(Refusal::Machine)
}

/// Cranelift's settings.
pub(crate) fn flags(options: &Options) -> settings::Flags {
    let mut builder = settings::builder();
    let mut set = |name: &str, value: &str| builder.set(name, value).expect("a setting of this version");
    set("opt_level", if options.optimize { "speed" } else { "none" });
    set("enable_verifier", if options.check { "true" } else { "false" });
    // Calls in the last place need them, and profilers walk them.
    set("preserve_frame_pointers", "true");
    set("is_pic", "false");
    set("enable_probestack", "false");
    set("unwind_info", "false");
    settings::Flags::new(builder)
}

pub(crate) fn is_per_cpu(map: &Map) -> bool {
    matches!(map.map_type(), MapType::PercpuArray | MapType::PercpuHash | MapType::LruPercpuHash)
}

/// The address of the value of each map that has one value whose address may be taken.
pub(crate) fn data_values(maps: &[Arc<Map>]) -> Vec<Option<u64>> {
    let guard = Guard::pin();
    let data = |m: &Arc<Map>| m.map_type() == MapType::Array && m.spec().max_entries == 1;
    maps.iter().map(|m| if data(m) { m.value(0, &[0; 4], &guard).map(|v| v.addr() as u64) } else { None }).collect()
}

pub(crate) fn check_values(plan: &Plan, maps: &[Arc<Map>], values: &[Option<u64>]) -> Result<(), Refusal> {
    for op in plan.funcs.iter().flat_map(|f| &f.blocks).flat_map(|b| &b.ops) {
        if let plan::Kind::Value { map, .. } = op.kind
            && values.get(map as usize).copied().flatten().is_none()
        {
            let map = maps.get(map as usize).map_or(String::new(), |m| m.name().to_owned());
            return Err(Refusal::OtherMap { map, why: "it has no value whose address could be taken" });
        }
    }
    Ok(())
}

/// Live maps are like the ones that the proof is about, in everything that it relies on.
fn check_maps(proved: &[MapDef], live: &[Arc<Map>]) -> Result<(), Refusal> {
    if proved.len() != live.len() {
        return Err(Refusal::OtherProgram);
    }
    for (def, map) in proved.iter().zip(live) {
        let refuse = |why| Err(Refusal::OtherMap { map: def.name.clone(), why });
        let (want, have) = (&def.spec, map.spec());
        if want.map_type != have.map_type {
            return refuse("another type");
        }
        if (want.key_size, want.value_size) != (have.key_size, have.value_size) {
            return refuse("other lengths of key or value");
        }
        let array = matches!(want.map_type, MapType::Array | MapType::PercpuArray);
        if array && have.max_entries < want.max_entries {
            return refuse("fewer entries");
        }
        const ACCESS: u32 = map_flags::RDONLY_PROG | map_flags::WRONLY_PROG;
        if have.flags & ACCESS & !want.flags != 0 && !want.map_type.is_read_only_to_programs() {
            return refuse("programs may do less with it");
        }
        if want.special != have.special {
            return refuse("other fields that belong to the runtime");
        }
        let inner = |spec: &MapSpec| spec.inner.clone();
        match (inner(want), inner(have)) {
            (None, None) => {}
            (Some(want), Some(have)) if xway_maps::stands_for(&want, &have) => {}
            _ => return refuse("another template for its inner maps"),
        }
        if let Some(bytes) = def.constant() {
            let guard = Guard::pin();
            let same = map.value(0, &[0; 4], &guard).is_some_and(|v| v.to_vec() == *bytes);
            if !same || !map.is_frozen() {
                return refuse("its constant content differs or can still be changed");
            }
        }
    }
    Ok(())
}

/// Fetches for notes of inner maps, whose addresses stand beside them. Frames that follow one another mostly look in the same one.
///
/// # Safety
/// `maps` are 0 or addresses of maps that were found in a map of maps under a guard that is still held.
unsafe fn fetch_inner(cpu: u32, notes: &[u64], maps: &[u64]) {
    let mut at = 0;
    while let Some(&map) = maps.get(at) {
        // A frame without a note is in nobody's way.
        let run = maps[at..].iter().take_while(|other| **other == map || **other == 0).count();
        if map != 0 {
            // SAFETY: what programs have for an inner map is its address, and what was taken out lives on under the guard.
            let map = unsafe { &*std::ptr::with_exposed_provenance::<Map>(map as usize) };
            map.fetch_ahead(cpu, &notes[at..][..run]);
        }
        at += run;
    }
}

impl Compiled {
    /// Runs the program over all frames, in order, and stores r0 of each. `verdicts` is as long as `frames`, else the shorter of
    /// the two counts.
    ///
    /// # Errors
    /// [`Refusal::Cpu`] when the worker's number is beyond the program's per-CPU maps; nothing was run then.
    pub fn run_burst(&self, frames: &mut [Frame], env: &mut RunEnv<'_>, verdicts: &mut [u64]) -> Result<(), Refusal> {
        self.admit(env.cpu)?;
        let Some(burst) = self.burst else {
            for (frame, verdict) in frames.iter_mut().zip(verdicts) {
                *verdict = self.run_one(frame, env)?;
            }
            return Ok(());
        };
        let count = frames.len().min(verdicts.len());
        self.set_clock(env);
        let staged = self.stages.iter().any(|stage| stage.pays(count));
        if staged && self.options.stage_from.is_none() && cfg!(target_arch = "x86_64") {
            self.try_staged(burst, &mut frames[..count], env, verdicts);
        } else {
            self.run_parts(burst, staged, &mut frames[..count], env, verdicts);
        }
        env.frame = std::ptr::null_mut();
        Ok(())
    }

    /// Looks ahead or not, as it pays.
    fn try_staged(&self, burst: usize, frames: &mut [Frame], env: &mut RunEnv<'_>, verdicts: &mut [u64]) {
        let program = std::ptr::from_ref(self) as usize;
        let turn = trial::turn(program);
        let start = if turn.timed { clock::counter() } else { 0 };
        self.run_parts(burst, turn.ahead, frames, env, verdicts);
        if turn.timed {
            trial::took(program, turn, clock::counter().wrapping_sub(start), frames.len());
        }
    }

    #[inline]
    fn run_parts(&self, burst: usize, staged: bool, frames: &mut [Frame], env: &mut RunEnv<'_>, verdicts: &mut [u64]) {
        if staged {
            let parts = frames.chunks_mut(stage::FRAMES).zip(verdicts.chunks_mut(stage::FRAMES));
            for (frames, verdicts) in parts {
                self.run_staged(burst, frames, env, verdicts);
            }
        } else {
            let cold = self.are_cold(frames);
            headers::in_parts(frames, cold, |at, part| self.call_burst(burst, part, env, &mut verdicts[at..]));
        }
    }

    /// Whether first lines are to be fetched for these frames.
    #[inline]
    fn are_cold(&self, frames: &[Frame]) -> bool {
        self.headers && frames.len() > 1 && self.cold.unwrap_or_else(|| headers::are_cold(frames))
    }

    /// Looks ahead for these frames, at most [`stage::FRAMES`], and runs over them. The answers take much of the stack, which a burst
    /// without them does without.
    #[inline(never)]
    fn run_staged(&self, burst: usize, frames: &mut [Frame], env: &mut RunEnv<'_>, verdicts: &mut [u64]) {
        let mut answers: stage::Answers = [const { MaybeUninit::uninit() }; stage::FRAMES];
        let count = frames.len();
        for stage in self.stages.iter().filter(|stage| stage.pays(count)) {
            if let Some(at) = self.look_ahead(stage, frames, env, &mut answers) {
                (env.answers, env.answered_at) = (answers.as_ptr().cast(), at);
            }
        }
        self.call_burst(burst, frames, env, verdicts);
        env.answers = std::ptr::null();
    }

    /// Runs the burst function over all these frames; there are as many verdicts or more.
    #[inline]
    fn call_burst(&self, burst: usize, frames: &mut [Frame], env: &mut RunEnv<'_>, verdicts: &mut [u64]) {
        debug_assert!(frames.len() <= verdicts.len());
        // SAFETY: code that was compiled with exactly this signature (`Shape::Burst`) from a verified program, and mapped as
        // long as `self`. It is lent the environment, the frames and the verdicts for the call.
        unsafe {
            let code = std::mem::transmute::<*const u8, BurstFn>(self.code.at(burst));
            code(env, frames.as_mut_ptr(), frames.len() as u64, verdicts.as_mut_ptr());
        }
    }

    /// Runs a scout over these frames, at most [`stage::FRAMES`], and fetches what it notes. What was answered is in `answers`
    /// for every frame, if there is a result: the count of changes of the map that was asked.
    fn look_ahead(
        &self,
        stage: &Stage,
        frames: &mut [Frame],
        env: &mut RunEnv<'_>,
        answers: &mut stage::Answers,
    ) -> Option<u64> {
        let mut answered = None;
        self.each_notes(stage, frames, env, |cpu, target, notes, inner| match inner {
            // SAFETY: the scout noted them in this burst, under the guard of its environment.
            Some(maps) => unsafe { fetch_inner(cpu, notes, maps) },
            None if stage.answered == Some(target) => answered = stage.answer(target, notes, answers),
            None => stage.fetch(cpu, target, notes),
        });
        answered
    }

    /// Runs a scout over these frames and hands on the worker's number, each target and what was noted of it for each frame; of a target
    /// in inner maps also their addresses.
    pub(crate) fn each_notes(
        &self,
        stage: &Stage,
        frames: &mut [Frame],
        env: &mut RunEnv<'_>,
        mut each: impl FnMut(u32, usize, &[u64], Option<&[u64]>),
    ) {
        let mut notes: stage::Notes = [const { MaybeUninit::uninit() }; stage::FRAMES * NOTES_MAX];
        let cold = self.are_cold(frames);
        headers::in_parts(frames, cold, |at, part| {
            // SAFETY: code that was compiled with exactly this signature (`Shape::Scout`) from a verified program, and mapped as
            // long as `self`. It is lent the environment and the frames for the call, and the room for notes from that of the
            // first of these frames on.
            unsafe {
                let code = std::mem::transmute::<*const u8, BurstFn>(self.code.at(stage.offset));
                code(env, part.as_mut_ptr(), part.len() as u64, notes[at..].as_mut_ptr().cast());
            }
        });
        // SAFETY: a scout writes all notes of each target for each of the frames.
        let noted = |n: usize| unsafe { notes[n * stage::FRAMES..][..frames.len()].assume_init_ref() };
        for (n, target) in stage.targets.iter().enumerate() {
            let inner = matches!(target.at, In::InnerOf(_)).then(|| noted(target.note + 1));
            each(env.cpu, n, noted(target.note), inner);
        }
    }

    /// What runs in front of a burst.
    #[cfg(test)]
    pub(crate) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// As [`Compiled::run_burst`], with the call made by somebody else, who gets the function and its arguments. Nothing is
    /// fetched ahead.
    pub(crate) fn run_burst_by(
        &self,
        frames: &mut [Frame],
        env: &mut RunEnv<'_>,
        verdicts: &mut [u64],
        call: impl FnOnce(BurstFn, *mut RunEnv<'_>, *mut Frame, u64, *mut u64),
    ) -> Result<(), Refusal> {
        let Some(burst) = self.burst_entry() else { return self.run_burst(frames, env, verdicts) };
        self.admit(env.cpu)?;
        let count = frames.len().min(verdicts.len());
        self.set_clock(env);
        // SAFETY: as in `run_burst`; whoever calls it does so with the arguments that go with it.
        let burst = unsafe { std::mem::transmute::<*const u8, BurstFn>(burst) };
        call(burst, std::ptr::from_mut(env).cast(), frames.as_mut_ptr(), count as u64, verdicts.as_mut_ptr());
        env.frame = std::ptr::null_mut();
        Ok(())
    }

    /// The burst function.
    pub(crate) fn burst_entry(&self) -> Option<*const u8> {
        self.burst.map(|burst| self.code.at(burst))
    }

    /// Runs the program over one packet and gives r0.
    ///
    /// # Errors
    /// As [`Compiled::run_burst`].
    pub fn run_one(&self, frame: &mut Frame, env: &mut RunEnv<'_>) -> Result<u64, Refusal> {
        frame.set_redirect(Redirect::None);
        self.run_on(frame, env)
    }

    /// As [`Compiled::run_one`], behind another program of a chain: the target that one chose stays until this one chooses another.
    ///
    /// # Errors
    /// As [`Compiled::run_burst`].
    pub fn run_on(&self, frame: &mut Frame, env: &mut RunEnv<'_>) -> Result<u64, Refusal> {
        let Some(single) = self.single else {
            // The burst function begins with forgetting the target.
            let mut verdict = [0];
            (env.chosen, env.missed) = (frame.redirect(), 0);
            let ran = self.run_burst(std::slice::from_mut(frame), env, &mut verdict);
            env.recall_target(frame);
            env.chosen = Redirect::None;
            ran?;
            return Ok(verdict[0]);
        };
        self.admit(env.cpu)?;
        env.frame = frame;
        env.tail_calls = 0;
        self.set_clock(env);
        // SAFETY: as in `run_burst`, for `Shape::Single`. A frame is a pointer to its descriptor (`xway_packet::descriptor`), and
        // a word is what the program has for its context.
        let ret = unsafe {
            let ctx = std::ptr::from_mut(frame).cast::<u64>().read();
            let code = std::mem::transmute::<*const u8, SingleFn>(self.code.at(single));
            code(env, ctx)
        };
        env.frame = std::ptr::null_mut();
        Ok(ret)
    }

    /// Keeps the code with its program: what runs over bursts, and what tail calls enter, as far as it has them. The first code of
    /// a program stays.
    pub fn keep_with(self: &Arc<Compiled>, program: &Program) {
        if self.burst.is_some() {
            program.set_native(self.clone());
        }
        if let Some(tail) = self.tail {
            program.set_tail(self.clone(), self.code.at(tail) as usize);
        }
    }

    /// Programs that stand in the burst function because tail calls reach them, as far as they still live.
    pub fn targets(&self) -> Vec<Arc<Program>> {
        self.targets.iter().filter_map(Weak::upgrade).collect()
    }

    fn set_clock(&self, env: &mut RunEnv<'_>) {
        env.ticks_left = 0;
        if self.clock {
            env.clock = crate::clock::scale(env.host);
        }
    }

    fn admit(&self, cpu: u32) -> Result<(), Refusal> {
        if cpu < self.cpus { Ok(()) } else { Err(Refusal::Cpu { cpu, cpus: self.cpus }) }
    }

    /// Where tail calls enter, unless this worker may not run it.
    pub(crate) fn tail_entry(&self, cpu: u32) -> Option<u64> {
        self.admit(cpu).ok()?;
        self.single.map(|single| self.code.at(single) as u64)
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The switches that it was compiled with.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// What compiling cost and gave.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Whether the other one, compiled with the same maps, does the same with a burst: its code is the same but for addresses that each
    /// has of its own, and the same is fetched in front of it under the same conditions. Where this says so there is nothing to measure.
    pub fn same_as(&self, other: &Compiled) -> bool {
        let laid_out = |c: &Compiled| c.functions.iter().map(|f| (f.shape, f.offset, f.len)).collect::<Vec<_>>();
        let ahead = |c: &Compiled| (c.headers, c.cold, c.clock, c.cpus, c.stages.len());
        laid_out(self) == laid_out(other)
            && ahead(self) == ahead(other)
            && self.stages.iter().zip(&other.stages).all(|(a, b)| a.same_as(b))
            && self.own.same(self.code(), &other.own, other.code())
    }

    /// Texts of the intermediate form and of the back end's assembly, when [`Options::keep_text`] asked for them.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The maps whose memory is fetched for a whole burst once they outgrow the cache, or whose inner maps' is, one for each place in the
    /// programs; by index among the maps of their program.
    pub fn staged(&self) -> impl Iterator<Item = u32> + '_ {
        self.stages.iter().flat_map(|stage| &stage.targets).map(|target| target.at.map())
    }

    /// The machine code.
    pub fn code(&self) -> &[u8] {
        self.code.bytes()
    }

    /// Address of the machine code's first byte.
    pub fn address(&self) -> u64 {
        self.code.at(0) as u64
    }

    /// The functions in it, by rising offset.
    pub fn functions(&self) -> &[Placed] {
        &self.functions
    }
}
