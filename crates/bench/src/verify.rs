//! How long it takes until a program is proved: our verifier and the kernel's load, in turns.
//!
//! Ours is the whole of [`xway_verifier::verify`], from instructions to facts. The kernel's is the `BPF_PROG_LOAD` call, which
//! verifies and compiles; what its verifier alone took is shown beside it, as its log says it. Maps are made and filled
//! before, relocations are done, and both get the same instructions. The two take turns; medians are reported.

use std::time::{Duration, Instant};

use xway_kernel::KernelObject;
use xway_object::{Object, Program, ProgramKind};
use xway_verifier::{Config, MapsView, verify};

use crate::measure::{MeasureError, Stat, pin};

/// What came of one side.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The program was accepted; else the reason in a line.
    pub refused: Option<String>,
    /// Instructions visited.
    pub visited: u64,
    /// Microseconds. For the kernel those of the system call.
    pub micros: Stat,
}

/// One program, measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The object, or the built-in input.
    pub object: String,
    /// Function.
    pub program: String,
    /// Its slots.
    pub insns: usize,
    /// Our side.
    pub ours: Answer,
    /// Work units of our side: the same on every machine.
    pub work: u64,
    /// Bytes that our side held at the same time, at most.
    pub peak_bytes: u64,
    /// The kernel's side; `None` when it was not asked.
    pub kernel: Option<Answer>,
    /// What the kernel's verifier alone took, microseconds, as it says itself.
    pub kernel_verifier: Option<f64>,
}

impl Row {
    /// Ours over the kernel's, when both accept.
    pub fn ratio(&self) -> Option<f64> {
        let kernel = self.kernel.as_ref().filter(|k| k.refused.is_none() && k.micros.median > 0.0)?;
        self.ours.refused.is_none().then(|| self.ours.micros.median / kernel.micros.median)
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Ask the kernel too.
    pub kernel: bool,
    /// Rounds at most; fewer where one takes long.
    pub rounds: u32,
    /// Core that everything runs on.
    pub cpu: u32,
}

/// A program's rounds end when they have taken this long.
const ENOUGH: Duration = Duration::from_millis(1500);

/// Measures every XDP program of an object.
///
/// # Errors
/// [`MeasureError::Pin`]; [`MeasureError::Wrong`] when a side does not give the same answer each time. What is refused, and an object that
/// the kernel has no maps for, is no error: the row says it.
pub fn measure(name: &str, object: &Object, effort: Effort) -> Result<Vec<Row>, MeasureError> {
    pin(effort.cpu)?;
    let kernel = effort.kernel.then(|| KernelObject::load_some(object, |_| false));
    let programs = object.programs.iter().filter(|p| !matches!(p.kind, ProgramKind::Other(_)));
    programs.filter_map(|p| p.as_xdp().ok()).map(|p| row(name, object, &p, kernel.as_ref(), effort)).collect()
}

fn row(
    name: &str,
    object: &Object,
    program: &Program,
    kernel: Option<&Result<KernelObject, xway_kernel::KernelError>>,
    effort: Effort,
) -> Result<Row, MeasureError> {
    let (view, config) = (MapsView::from(object), Config { explain: 0, ..Config::default() });
    let once = || {
        let start = Instant::now();
        let answer = verify(program, &view, &config);
        (start.elapsed(), answer)
    };
    // The first time of each warms up and gives everything but time.
    let (first, answer) = once();
    let (stats, refused) = match &answer {
        Ok(proof) => (*proof.stats(), None),
        Err(refusal) => (refusal.stats, Some(refusal.to_string())),
    };
    drop(answer);
    let (mut theirs, mut kernel_verifier, mut loaded) = (None, None, None);
    match kernel {
        None => {}
        Some(Err(e)) => theirs = Some(Answer { refused: Some(e.to_string()), visited: 0, micros: Stat::default() }),
        Some(Ok(kernel)) => match kernel.load_more(object, program, 4) {
            Ok(prog) => {
                let visited = prog.info().map_or(0, |i| i.verified_insns.into());
                kernel_verifier = said(prog.log(), "verification time ");
                theirs = Some(Answer { refused: None, visited, micros: Stat::default() });
                loaded = Some(kernel);
            }
            Err(e) => {
                let visited = said(e.log(), "processed ").unwrap_or(0.0) as u64;
                let micros = said(e.log(), "verification time ").unwrap_or(0.0);
                let why = e.log().lines().rev().find(|l| !figures(l)).unwrap_or("").to_owned();
                let why = if why.is_empty() { e.to_string() } else { why };
                let micros = Stat { median: micros, low: micros, high: micros };
                theirs = Some(Answer { refused: Some(why), visited, micros });
            }
        },
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let started = Instant::now();
    for _ in 0..effort.rounds.max(1) {
        let (took, again) = once();
        a.push(took.as_secs_f64() * 1e6);
        if again.is_ok() != refused.is_none() {
            return Err(MeasureError::Wrong(format!("{name}, {}: another answer each time", program.name)));
        }
        if let Some(kernel) = loaded {
            // Accepted once, it is accepted again.
            let prog = kernel.load_more(object, program, 0).map_err(|e| MeasureError::Wrong(format!("{name}: {e}")))?;
            b.push(prog.load_time().as_secs_f64() * 1e6);
        }
        if started.elapsed() + first > ENOUGH {
            break;
        }
    }
    if let Some(answer) = theirs.as_mut().filter(|_| !b.is_empty()) {
        answer.micros = Stat::of(b);
    }
    Ok(Row {
        object: name.to_owned(),
        program: program.name.clone(),
        insns: program.insns.len(),
        ours: Answer { refused, visited: stats.visited, micros: Stat::of(a) },
        work: stats.work,
        peak_bytes: stats.peak_bytes,
        kernel: theirs,
        kernel_verifier,
    })
}

/// The figure behind these words in the kernel's log.
fn said(log: &str, words: &str) -> Option<f64> {
    let rest = log.split(words).nth(1)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Lines of the log that are figures.
fn figures(line: &str) -> bool {
    ["processed", "verification time", "stack depth", "mark_precise", "max_states"]
        .iter()
        .any(|w| line.trim_start().starts_with(w))
        || line.trim().is_empty()
}

/// What all rows say together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Summary {
    /// Programs.
    pub programs: usize,
    /// Accepted by both and timed on both sides.
    pub compared: usize,
    /// Median of the ratios ours over kernel.
    pub ratio_median: Option<f64>,
    /// Share of the compared programs whose ratio is at most one half.
    pub half_share: f64,
    /// Largest ratio.
    pub ratio_worst: f64,
    /// Our longest time, microseconds.
    pub ours_worst: f64,
    /// Our largest memory, bytes.
    pub peak_bytes: u64,
}

/// Sums up.
pub fn summary(rows: &[Row]) -> Summary {
    let mut ratios: Vec<f64> = rows.iter().filter_map(Row::ratio).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let at_most_half = ratios.iter().filter(|r| **r <= 0.5).count();
    Summary {
        programs: rows.len(),
        compared: ratios.len(),
        ratio_median: ratios.get(ratios.len().saturating_sub(1) / 2).copied(),
        half_share: at_most_half as f64 / ratios.len().max(1) as f64,
        ratio_worst: ratios.last().copied().unwrap_or(0.0),
        ours_worst: rows.iter().map(|r| r.ours.micros.median).fold(0.0, f64::max),
        peak_bytes: rows.iter().map(|r| r.peak_bytes).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: f64, kernel: f64, refused: Option<&str>) -> Row {
        let stat = |median| Stat { median, low: median, high: median };
        let answer = |us| Answer { refused: None, visited: 1, micros: stat(us) };
        Row {
            object: "x.o".into(),
            program: "x".into(),
            insns: 2,
            ours: Answer { refused: refused.map(str::to_owned), ..answer(ours) },
            work: 1,
            peak_bytes: 100,
            kernel: Some(answer(kernel)),
            kernel_verifier: None,
        }
    }

    #[test]
    fn ratios_are_of_programs_that_both_accept() {
        let rows = [row(1.0, 4.0, None), row(3.0, 4.0, None), row(2.0, 4.0, None), row(9.0, 1.0, Some("no"))];
        let all = summary(&rows);
        assert_eq!((all.programs, all.compared, all.ratio_median), (4, 3, Some(0.5)));
        assert_eq!((all.ratio_worst, all.ours_worst), (0.75, 9.0));
        assert!((all.half_share - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(summary(&[]).ratio_median, None);
    }

    #[test]
    fn figures_are_read_from_the_kernel_s_log() {
        let log = "R0 !read_ok\nverification time 98 usec\nstack depth 8\nprocessed 12 insns (limit 1000000) x\n";
        assert_eq!((said(log, "verification time "), said(log, "processed ")), (Some(98.0), Some(12.0)));
        assert!(figures("processed 12 insns") && !figures("R0 !read_ok"));
    }
}
