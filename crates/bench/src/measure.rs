//! One case, measured: load, fill, compare, then round after round in turns.

use std::sync::Arc;

use xway_object::{LoadOptions, Object, ObjectError, Program};
use xway_verifier::{Config, MapsView, Verified};

use crate::check::{Checked, Expected, Reference};
use crate::counters::{Counters, Reading, each};
use crate::driver::Callee;
use crate::fill::{Content, Maps};
use crate::flows::{Pattern, Ring};
use crate::kernel::{KernelSide, KernelSideError, renewal};
use crate::packet::template;
use crate::runner::Way;
use crate::settled::unsettled;
use crate::user::{BURST, Run, UserSide, UserSideError};
use crate::{Case, Shape};

/// What is asked for beyond the case.
#[derive(Clone, Debug)]
pub struct Options {
    /// Measure the kernel too.
    pub kernel: bool,
    /// Rounds; the median over them is reported.
    pub rounds: u32,
    /// How our side executes the program; the first is the one that ratios are about.
    pub ways: Vec<Way>,
    /// Core that everything runs on.
    pub cpu: u32,
    /// Read what the processor and the kernel count too, see [`crate::counters`].
    pub counters: bool,
    /// Instead of the case's number of flows.
    pub flows: Option<u32>,
    /// Instead of the case's table size.
    pub table: Option<u32>,
    /// Instead of the case's pattern.
    pub pattern: Option<Pattern>,
}

impl Options {
    /// Whether they make another case of what they are given.
    pub fn change(&self) -> bool {
        self.flows.is_some() || self.pattern.is_some() || self.table.is_some()
    }

    /// The case as it is measured with these options.
    pub fn adapted(&self, case: &Case) -> Case {
        let mut case = case.clone();
        case.flows = self.flows.unwrap_or(case.flows);
        case.pattern = self.pattern.unwrap_or(case.pattern);
        if let (Some((_, entries)), Some(table)) = (&mut case.table, self.table) {
            *entries = table;
        }
        if self.change() || !case.sizes.is_empty() {
            // Another case than the one that was meant.
            case.wanted = None;
        }
        case
    }
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The suite was not built.
    #[error("no built-in program {object}: {why}")]
    NotBuilt {
        /// Its name.
        object: String,
        /// What was missing.
        why: String,
    },
    /// The object does not load.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Our verifier refuses the program: nothing unproved is measured. The first reason; who shows it names the program, as with all of
    /// these.
    #[error("refused by the verifier: {0}")]
    Refused(String),
    /// The packet cannot be made anew for it.
    #[error("{0}")]
    Renewal(&'static str),
    /// Our side.
    #[error(transparent)]
    User(#[from] UserSideError),
    /// The kernel's side.
    #[error("kernel: {0}")]
    Kernel(#[from] KernelSideError),
    /// A map could not be filled.
    #[error("filling map {map}, {whose}, stops at element {at} of {count}: {errno} ({})", errno.text())]
    Fill {
        /// Its name.
        map: String,
        /// On which side.
        whose: &'static str,
        /// The element, from 1 on.
        at: usize,
        /// How many were to go in.
        count: u32,
        /// Why.
        errno: xway_abi::Errno,
    },
    /// No keys of a map can be made from flows.
    #[error("filling map {map} with flows: {why}")]
    Flows {
        /// Its name.
        map: String,
        /// In words.
        why: String,
    },
    /// What was timed did not do what it should.
    #[error("{0}")]
    Wrong(String),
    /// The thread could not be pinned.
    #[error("CPU {cpu} cannot be had: {error}")]
    Pin {
        /// CPU.
        cpu: u32,
        /// Why.
        error: std::io::Error,
    },
}

/// A median over rounds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stat {
    /// Median, ns for each packet.
    pub median: f64,
    /// First quartile.
    pub low: f64,
    /// Third quartile.
    pub high: f64,
}

impl Stat {
    /// Of samples, at least one.
    pub fn of(mut samples: Vec<f64>) -> Stat {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |quarter: usize| samples[(samples.len() - 1) * quarter / 4];
        Stat { median: at(2), low: at(1), high: at(3) }
    }
}

/// What one side took, ns for each packet.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figures {
    /// `kernel`, `interp`, `jit`, or the engine with the technique that is off.
    pub side: String,
    /// The loop that makes packets, alone.
    pub nothing: Stat,
    /// The loop with an empty program.
    pub empty: Stat,
    /// The loop with the program.
    pub program: Stat,
    /// What was counted for each packet in one more pass of each, where that was asked for.
    pub counted: Option<Counted>,
    /// Another way than the first one, but the same machine code that runs in the same way: what their figures differ by is the
    /// machine's doing.
    pub same_code: bool,
}

/// What was counted for each packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Counted {
    /// In the loop with an empty program.
    pub empty: Reading,
    /// In the loop with the program.
    pub program: Reading,
}

/// How ways are called that leave one pass out.
const WITHOUT: &str = "jit without ";

impl Figures {
    /// What the way is about: the pass that is left out, or what else is not as it is.
    pub fn technique(&self) -> &str {
        self.side.trim_start_matches(WITHOUT).trim_start_matches("jit, ")
    }

    /// What the program costs beyond an empty one.
    pub fn net(&self) -> f64 {
        (self.program.median - self.empty.median).max(0.0)
    }

    /// What running the program costs, the call included: all but the making of packets.
    pub fn run(&self) -> f64 {
        (self.program.median - self.nothing.median).max(0.0)
    }
}

/// What was put into one map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Its name.
    pub map: String,
    /// How many elements.
    pub elements: u32,
    /// Whether there are flows whose keys had no room.
    pub cut: bool,
}

/// A measured case.
#[derive(Clone, Debug)]
pub struct Row {
    /// The case, as it was measured.
    pub case: Case,
    /// Instructions of the program.
    pub insns: usize,
    /// What the first of our engines took to compile it, for bursts and for one packet; `None` for the interpreter.
    pub compiled: Option<xway_jit::Stats>,
    /// Why the interpreter took over, where machine code was asked for and nothing else.
    pub not_compiled: Option<String>,
    /// Packets in the ring.
    pub ring: usize,
    /// The kernel.
    pub kernel: Option<Figures>,
    /// Our engines; the first is the one that `ratio` is about.
    pub ours: Vec<Figures>,
    /// The comparison.
    pub checked: Checked,
    /// What was put into maps because a user wanted it.
    pub filled: Vec<Filled>,
}

/// Nets below this are noise, and ratios of noise are none; ns.
const LEAST: f64 = 0.3;

impl Row {
    /// A figure of the first way's code: the median over all ways that have the same code, because one of them may have met something.
    pub fn as_it_is(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        let same = self.ours.iter().enumerate().filter(|(n, f)| *n == 0 || f.same_code);
        let mut all: Vec<f64> = same.map(|(_, f)| figure(f)).collect();
        all.sort_unstable_by(f64::total_cmp);
        all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    }

    /// Kernel over ours, both less their empty program; `None` where ours is too small to be told from nothing.
    pub fn ratio(&self) -> Option<f64> {
        let (kernel, ours) = (self.kernel.as_ref()?, self.ours.first()?);
        (ours.net() >= LEAST).then(|| kernel.net() / ours.net())
    }

    /// Kernel over ours, the call included.
    pub fn run_ratio(&self) -> Option<f64> {
        let (kernel, ours) = (self.kernel.as_ref()?, self.ours.first()?);
        (ours.run() >= LEAST / 3.0).then(|| kernel.run() / ours.run())
    }
}

/// Ways in which no row has other code than in the first.
pub fn unchanged(rows: &[Row]) -> Vec<&str> {
    let Some(first) = rows.first() else { return vec![] };
    let everywhere = |way: &usize| rows.iter().all(|row| row.ours.get(*way).is_some_and(|f| f.same_code));
    (1..first.ours.len()).filter(everywhere).map(|way| first.ours[way].technique()).collect()
}

/// Time that a pass aims at, ns.
const PASS_NS: f64 = 8e6;
/// Time that looking for a pass's length may take, ns.
const PROBE_NS: f64 = 1e9;

/// Measures one case, of the suite or of a user's object.
pub fn measure(case: &Case, object: Option<&Object>, options: &Options) -> Result<Row, MeasureError> {
    measure_spoilt(case, object, options, &|_, _| ())
}

/// As [`measure`], after something was done to our side's maps: for a test that looks whether anybody notices.
fn measure_spoilt(
    case: &Case,
    object: Option<&Object>,
    options: &Options,
    spoil: &dyn Fn(&Object, &UserSide),
) -> Result<Row, MeasureError> {
    pin(options.cpu)?;
    let case = options.adapted(case);
    let suite = object.is_none();
    let mut object = match object {
        Some(object) => object.clone(),
        None => built_in(&case.object)?,
    };
    for (map, entries) in case.table.iter().chain(&case.sizes) {
        if let Some(map) = object.maps.iter_mut().find(|m| m.name == *map) {
            map.spec.max_entries = *entries;
        }
    }
    let program = object.program(&case.program)?.as_xdp()?;
    let proof = xway_verifier::verify(&program, &MapsView::from(&object), &Config::default())
        .map_err(|r| MeasureError::Refused(r.to_string()))?;
    let renew = renewal(proof.facts()).map_err(MeasureError::Renewal)?;
    let ring = Arc::new(Ring::new(case.flows, case.space, case.pattern, 1));
    let template = template(case.packet_len);
    let runs = if proof.facts().tail_calls && case.runs == 64 { 1 } else { case.runs };
    let shape = Shape { ring: ring.clone(), template: &template, renew, frames: case.frames, runs };
    measure_loaded(case, &Loaded { object: &object, program: &program, proof: &proof, suite }, &shape, options, spoil)
}

/// An object of the suite.
fn built_in(name: &str) -> Result<Object, MeasureError> {
    let bytes = crate::suite::object(name).ok_or_else(|| MeasureError::NotBuilt {
        object: name.to_owned(),
        why: crate::suite::missing().unwrap_or("there is none of this name").to_owned(),
    })?;
    let load = LoadOptions { target_btf: xway_kernel::vmlinux(), ..LoadOptions::default() };
    Ok(Object::parse(bytes, &load)?)
}

/// What is measured, ready to run.
struct Loaded<'a> {
    object: &'a Object,
    program: &'a Program,
    proof: &'a Verified,
    /// It is one of ours.
    suite: bool,
}

fn measure_loaded(
    case: Case,
    loaded: &Loaded<'_>,
    shape: &Shape<'_>,
    options: &Options,
    spoil: &dyn Fn(&Object, &UserSide),
) -> Result<Row, MeasureError> {
    let Loaded { object, program, proof, suite } = *loaded;
    let side = |ways: &[Way]| UserSide::new(object, program, proof, shape, ways, options.cpu);
    // As everywhere: the interpreter takes over what is not compiled, unless that is beside other ways to compile it.
    let (mut user, not_compiled) = match side(&options.ways) {
        Err(UserSideError::Compile(refusal)) if options.ways == [Way::Compiled] => {
            (side(&[Way::Interpreter])?, Some(refusal.to_string()))
        }
        user => (user?, None),
    };
    let kernel = (options.kernel && case.frames as usize <= BURST)
        .then(|| KernelSide::load(object, program, shape, options.cpu))
        .transpose()?;
    // Without a kernel, what the others are held against is the interpreter, with maps of its own.
    let mut other = match kernel {
        Some(kernel) => Reference::Kernel(Box::new(kernel)),
        None => {
            // In a few warm frames, also where the others have many cold ones.
            let shape = Shape { frames: 0, ..shape.clone() };
            let side = UserSide::new(object, program, proof, &shape, &[Way::Interpreter], options.cpu)?;
            Reference::Interpreter(Box::new(side))
        }
    };
    let mut contents: Vec<Arc<Content>> = case.fill.contents(object).into_iter().map(Arc::new).collect();
    let mut filled = Vec::new();
    for given in &case.given {
        let failed = |why| MeasureError::Flows { map: given.map().to_owned(), why };
        let content = given.content(object, case.flows, case.space).map_err(failed)?;
        filled.push(Filled { map: content.map.clone(), elements: content.count, cut: content.cut });
        contents.push(content);
    }
    for content in &contents {
        let index = object.map_index(&content.map).expect("a map of the object");
        for side in [&user as &dyn Maps, other.maps()] {
            side.put(index, content).map_err(|untaken| MeasureError::Fill {
                map: content.map.clone(),
                whose: side.whose(),
                at: untaken.at + 1,
                count: content.count,
                errno: untaken.errno,
            })?;
        }
    }
    // The suite's programs do not decide by what a clock says.
    let not_compared = if suite { None } else { unsettled(object, proof) };
    let mut checked = Checked { not_compared, ..Checked::default() };
    let expected = Expected { exact: !case.evicts(object), suite };
    spoil(object, &user);
    checked.runs(&mut user, &mut other, &shape.ring, shape.template, expected)?;
    checked.maps(object, &user, &other, &contents);
    checked.whole(&mut user, &other, &shape.ring)?;
    let (mut kernel, mut ours) = rounds(&mut user, other.kernel(), options.rounds.max(1))?;
    if options.counters {
        count(&mut user, other.kernel(), &mut kernel, &mut ours)?;
    }
    checked.again(&mut user, &mut other, &shape.ring, expected)?;
    let compiled = user.engines.first().and_then(crate::user::Engine::compiled);
    let (insns, ring) = (program.insns.len(), shape.ring.len());
    Ok(Row { insns, compiled, not_compiled, ring, case, kernel, ours, checked, filled })
}

/// Packets of a pass that is counted.
const COUNTED: u32 = 1 << 18;

/// One more pass of each side over an empty program and over the program, between readings of the counters.
fn count(
    user: &mut UserSide,
    kernel: Option<&KernelSide>,
    theirs: &mut Option<Figures>,
    ours: &mut [Figures],
) -> Result<(), MeasureError> {
    let counters = Counters::open();
    let pass = |run: &mut dyn FnMut() -> Result<u32, MeasureError>| {
        let before = counters.read();
        let packets = run()?;
        Ok::<_, MeasureError>(each(&before, &counters.read(), packets))
    };
    if let (Some(kernel), Some(figures)) = (kernel, theirs.as_mut()) {
        let of = |callee| pass(&mut || Ok(kernel.pass(callee, COUNTED)?.1));
        figures.counted = Some(Counted { empty: of(Callee::Empty)?, program: of(Callee::Program)? });
    }
    for (n, figures) in ours.iter_mut().enumerate() {
        let mut of = |run| pass(&mut || Ok(user.pass(run, COUNTED)?.1));
        figures.counted = Some(Counted { empty: of(Run::Empty(n))?, program: of(Run::Program(n))? });
    }
    Ok(())
}

/// Samples of one side: loop, empty program, program.
type Samples = [Vec<f64>; 3];

fn rounds(
    user: &mut UserSide,
    kernel: Option<&KernelSide>,
    rounds: u32,
) -> Result<(Option<Figures>, Vec<Figures>), MeasureError> {
    const CALLEES: [Callee; 3] = [Callee::Nothing, Callee::Empty, Callee::Program];
    let engines = user.engines.len();
    let kinds = |engine: usize| [Run::Nothing, Run::Empty(engine), Run::Program(engine)];
    // How many packets make a pass of the right length, for each thing that is timed. Programs of which so many take too long show that in
    // one burst.
    const PROBE: u32 = 1 << 14;
    let packets = |pass: &mut dyn FnMut(u32) -> Result<f64, MeasureError>| {
        let mut ns = pass(BURST as u32)?;
        if ns * f64::from(PROBE) < PROBE_NS {
            ns = pass(PROBE)?;
        }
        Ok::<u32, MeasureError>((PASS_NS / ns.max(0.05)).clamp(BURST as f64, 4e6) as u32)
    };
    let mut theirs_len = [0; 3];
    if let Some(kernel) = kernel {
        for (len, callee) in theirs_len.iter_mut().zip(CALLEES) {
            *len = packets(&mut |probe| Ok(kernel.pass(callee, probe)?.0))?;
        }
    }
    let mut ours_len = vec![[0; 3]; engines];
    for (engine, lens) in ours_len.iter_mut().enumerate() {
        for (len, run) in lens.iter_mut().zip(kinds(engine)) {
            *len = packets(&mut |probe| Ok(user.pass(run, probe)?.0))?;
        }
    }
    let mut theirs = Samples::default();
    let mut ours = vec![Samples::default(); engines];
    for _ in 0..rounds {
        for thing in 0..3 {
            if let Some(kernel) = kernel {
                theirs[thing].push(kernel.pass(CALLEES[thing], theirs_len[thing])?.0);
            }
            for engine in 0..engines {
                ours[engine][thing].push(user.pass(kinds(engine)[thing], ours_len[engine][thing])?.0);
            }
        }
    }
    let figures = |side: &str, samples: Samples| {
        let [nothing, empty, program] = samples.map(Stat::of);
        Figures { side: side.to_owned(), nothing, empty, program, counted: None, same_code: false }
    };
    let kernel = kernel.map(|_| figures("kernel", theirs));
    let ours = ours.into_iter().zip(&user.engines).enumerate().map(|(n, (samples, engine))| {
        let same_code = n > 0 && engine.same_as(&user.engines[0]);
        Figures { same_code, ..figures(&engine.name, samples) }
    });
    let ours = ours.collect();
    Ok((kernel, ours))
}

/// Binds this thread to a core.
pub fn pin(cpu: u32) -> Result<(), MeasureError> {
    let mut cpus = rustix::thread::CpuSet::new();
    if cpu < rustix::thread::CpuSet::MAX_CPU as u32 {
        cpus.set(cpu as usize);
    }
    rustix::thread::sched_setaffinity(None, &cpus).map_err(|error| MeasureError::Pin { cpu, error: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A balancer that sends connections to a wrong server: verdicts are the same, and the comparison says that something is wrong.
    #[test]
    fn a_wrong_server_is_noticed() {
        let needs = xway_testkit::Needs::of("bench::measure::a_wrong_server_is_noticed").root().kernel(6, 0);
        if !needs.that(crate::suite::missing().is_none(), "clang when it was built").met() {
            return;
        }
        let options = Options {
            kernel: true,
            rounds: 1,
            ways: vec![crate::Way::Compiled],
            cpu: std::thread::available_parallelism().map_or(1, |n| n.get() as u32) - 1,
            counters: false,
            flows: Some(500),
            table: None,
            pattern: None,
        };
        let case = crate::suite::cases().into_iter().find(|c| c.name == "load balancer, 1 k flows").expect("a case");
        let differences = |spoil: &dyn Fn(&Object, &UserSide)| {
            let row = measure_spoilt(&case, None, &options, spoil).expect("it is measured");
            assert!(row.checked.exact);
            row.checked.differences
        };
        assert_eq!(differences(&|_, _| ()), [""; 0]);
        let moved = differences(&|object, user| {
            let mut content = case.fill.contents(object).into_iter().find(|c| c.map == "servers").expect("servers");
            // The tunnel of each server leads to its neighbour.
            content.values.rotate_left(12);
            user.put(object.map_index("servers").expect("the map"), &content).expect("they fit");
        });
        assert!(moved[0].starts_with("packet 0: jit and the kernel differ from byte "), "{moved:#?}");
    }

    #[test]
    fn quartiles_enclose_the_median() {
        let stat = Stat::of(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((stat.low, stat.median, stat.high), (2.0, 3.0, 4.0));
        assert_eq!(Stat::of(vec![7.0]).median, 7.0);
    }

    /// A run of the first way that met something else, and two ways of which each has other code in one row.
    #[test]
    fn what_has_the_same_code_is_one_figure() {
        let stat = |median| Stat { median, low: median, high: median };
        let row = |ways: [(&str, f64, bool); 4]| Row {
            case: Case::new("x", "simple", "empty"),
            insns: 2,
            compiled: None,
            not_compiled: None,
            ring: 64,
            kernel: None,
            ours: ways
                .map(|(side, ns, same_code)| Figures {
                    side: side.into(),
                    program: stat(ns),
                    same_code,
                    ..Figures::default()
                })
                .to_vec(),
            checked: Checked::default(),
            filled: Vec::new(),
        };
        let one = [
            ("jit", 9.0, false),
            ("jit without a", 3.0, true),
            ("jit without b", 8.0, false),
            ("jit without c", 4.0, true),
        ];
        let two = [
            ("jit", 2.0, false),
            ("jit without a", 3.0, true),
            ("jit without b", 1.0, true),
            ("jit without c", 4.0, false),
        ];
        let rows = [row(one), row(two)];
        assert_eq!(rows.each_ref().map(|row| row.as_it_is(|f| f.program.median)), [4.0, 2.0]);
        assert_eq!((unchanged(&rows), unchanged(&rows[1..]), unchanged(&[])), (vec!["a"], vec!["a", "b"], vec![]));
    }

    #[test]
    fn ratios_are_net_of_the_empty_program() {
        let stat = |median| Stat { median, low: median, high: median };
        let side = |nothing, empty, program| Figures {
            side: String::new(),
            nothing: stat(nothing),
            empty: stat(empty),
            program: stat(program),
            counted: None,
            same_code: false,
        };
        let mut row = Row {
            case: Case::new("x", "simple", "empty"),
            insns: 2,
            compiled: None,
            not_compiled: None,
            ring: 64,
            kernel: Some(side(5.0, 12.0, 32.0)),
            ours: vec![side(2.0, 3.0, 8.0)],
            checked: Checked::default(),
            filled: Vec::new(),
        };
        assert_eq!((row.ratio(), row.run_ratio()), (Some(4.0), Some(4.5)));
        // What cannot be told from nothing has no ratio.
        row.ours = vec![side(2.0, 3.0, 3.1)];
        assert_eq!(row.ratio(), None);
    }
}
