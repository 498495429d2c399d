//! How long it takes until a proved program is machine code.
//!
//! What is timed is [`xway_jit::compile`] as an engine calls it: the burst function and what looks ahead for it, from the
//! instructions and their proof to code that can run. Proofs and maps are made before. Each program is compiled once, right behind
//! its proof, with the compiler's code and tables not in the caches: that is *cold*. Then it is compiled in several rounds, whose medians
//! are *warm*. When all is timed the last code goes over packets and is held against the interpreter ([`mod@crate::ran`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_jit::{Options, Stats, compile};
use xway_object::{Object, Program, ProgramKind};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::Instance;

use crate::measure::{MeasureError, Stat, pin};
use crate::ran::{self, Ran};

/// One program, measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The object.
    pub object: String,
    /// Function.
    pub program: String,
    /// Its slots.
    pub insns: usize,
    /// It was generated to be long: see [`hard::large`](crate::hard::large).
    pub generated: bool,
    /// What came of it; else why it was not compiled, in a line.
    pub made: Result<Made, String>,
}

/// What compiling took and gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Made {
    /// Microseconds of the first compilation in this process.
    pub cold: f64,
    /// Microseconds of the later ones, all in all.
    pub micros: Stat,
    /// Microseconds of them that the back end took: Cranelift.
    pub back_end: Stat,
    /// Bytes of machine code.
    pub code_len: usize,
    /// Some map of it may outgrow the cache, so that it has code that looks ahead.
    pub staged: bool,
    /// What the code did.
    pub ran: Ran,
}

/// A program's rounds end when they have taken this long.
const ENOUGH: Duration = Duration::from_millis(1500);

/// Measures every XDP program of an object, on one core.
///
/// # Errors
/// [`MeasureError::Pin`]. What is refused is no error: the row says it.
pub fn measure(name: &str, object: &Arc<Object>, rounds: u32, cpu: u32) -> Result<Vec<Row>, MeasureError> {
    pin(cpu)?;
    let programs = object.programs.iter().filter(|p| !matches!(p.kind, ProgramKind::Other(_)));
    let row = |image: Program| Row {
        object: name.to_owned(),
        program: image.name.clone(),
        insns: image.insns.len(),
        generated: false,
        made: made(object, &image, rounds),
    };
    Ok(programs.filter_map(|p| p.as_xdp().ok()).map(row).collect())
}

fn made(object: &Arc<Object>, image: &Program, rounds: u32) -> Result<Made, String> {
    let config = Config { explain: 0, ..Config::default() };
    let proof = verify(image, &MapsView::from(&**object), &config).map_err(|e| e.to_string())?;
    let instance = Instance::new(object.clone(), 1).map_err(|e| e.to_string())?;
    let program = instance.link(image).map_err(|e| e.to_string())?;
    // As an engine compiles what runs over bursts.
    let options = Options { check: false, single: false, ..Options::default() };
    let once = || compile(&program, &proof, &options);
    let mut code = once().map_err(|e| e.to_string())?;
    let cold = code.stats().time.as_secs_f64() * 1e6;
    let (mut all, mut back_end) = (Vec::new(), Vec::new());
    let started = Instant::now();
    for _ in 0..rounds.max(1) {
        code = once().map_err(|e| e.to_string())?;
        let Stats { time, back_end: of_it, .. } = code.stats();
        all.push(time.as_secs_f64() * 1e6);
        back_end.push(of_it.as_secs_f64() * 1e6);
        if started.elapsed() > ENOUGH {
            break;
        }
    }
    Ok(Made {
        cold,
        micros: Stat::of(all),
        back_end: Stat::of(back_end),
        code_len: code.stats().code_len,
        staged: code.staged().count() > 0,
        ran: ran::run(object, image, &proof, &code, &instance),
    })
}

/// Programs of like size, together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Class {
    /// From so many instructions on; the next class begins where this one ends.
    pub from: usize,
    /// Programs.
    pub programs: usize,
    /// Their instructions.
    pub insns: usize,
    /// Microseconds for all of them, cold.
    pub cold: f64,
    /// Microseconds for all of them, warm.
    pub micros: f64,
    /// Microseconds of them that the back end took.
    pub back_end: f64,
}

impl Class {
    /// Milliseconds for 1,000 instructions, warm.
    pub fn ms_per_1000(&self) -> f64 {
        self.micros / self.insns.max(1) as f64
    }

    /// The same, cold.
    pub fn cold_ms_per_1000(&self) -> f64 {
        self.cold / self.insns.max(1) as f64
    }

    fn add(&mut self, insns: usize, made: &Made) {
        self.programs += 1;
        self.insns += insns;
        self.cold += made.cold;
        self.micros += made.micros.median;
        self.back_end += made.back_end.median;
    }
}

/// Where classes begin, instructions.
const CLASSES: [usize; 6] = [0, 16, 64, 256, 1024, 4096];

/// All programs that were compiled by size, and those together that were not generated.
pub fn summary(rows: &[Row]) -> (Vec<Class>, Class) {
    let mut classes: Vec<Class> = CLASSES.iter().map(|from| Class { from: *from, ..Class::default() }).collect();
    let mut all = Class::default();
    for (row, made) in rows.iter().filter_map(|r| Some((r, r.made.as_ref().ok()?))) {
        let insns = row.insns;
        let class = CLASSES.iter().rposition(|from| *from <= insns).unwrap_or(0);
        classes[class].add(insns, made);
        if !row.generated {
            all.add(insns, made);
        }
    }
    classes.retain(|class| class.programs > 0);
    (classes, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_summed_by_size() {
        let stat = |median| Stat { median, low: median, high: median };
        let row = |insns, us| Row {
            object: "x.o".into(),
            program: "x".into(),
            insns,
            generated: false,
            made: Ok(Made {
                cold: 2.0 * us,
                micros: stat(us),
                back_end: stat(us / 2.0),
                code_len: 100,
                staged: false,
                ran: Ran { packets: 1, not_compared: None, differs: None },
            }),
        };
        let refused = Row { made: Err("no".into()), ..row(5000, 1.0) };
        let generated = Row { generated: true, ..row(4096, 9.0) };
        let (classes, all) = summary(&[row(10, 100.0), row(15, 200.0), row(64, 320.0), refused, generated]);
        let of = |c: &Class| (c.from, c.programs, c.insns, c.micros, c.back_end);
        assert_eq!(
            classes.iter().map(of).collect::<Vec<_>>(),
            [(0, 2, 25, 300.0, 150.0), (64, 1, 64, 320.0, 160.0), (4096, 1, 4096, 9.0, 4.5)]
        );
        assert_eq!((all.programs, all.insns), (3, 89));
        assert_eq!((classes[0].ms_per_1000(), classes[0].cold_ms_per_1000()), (12.0, 24.0));
    }
}
