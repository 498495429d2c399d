//! Counting what came of the programs.

use std::collections::BTreeMap;

use super::classes::{class, explain};
use super::oracle::Answer;

/// Where a program came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// The grammar.
    Grammar,
    /// The grammar, then changed.
    Changed,
    /// A real program, changed.
    Mutant,
}

/// The class of refusals at instructions that are proved dead here.
const DEAD: &str = "(at an instruction that is dead)";

/// What came of programs of one origin.
#[derive(Default)]
pub struct Counts {
    /// All.
    pub programs: u64,
    /// Accepted by both.
    pub both_accept: u64,
    /// Refused by both.
    pub both_refuse: u64,
    /// Refused by us alone.
    pub only_we: u64,
    /// Refused by the kernel alone.
    pub only_kernel: u64,
    /// Too long for us, and not shown to the kernel.
    pub long: u64,
    /// Of those accepted by both, compared packet by packet.
    pub compared: u64,
}

impl Counts {
    /// Share of programs on which both agree, in percent.
    pub fn agreement(&self) -> f64 {
        (self.both_accept + self.both_refuse) as f64 * 100.0 / (self.programs - self.long).max(1) as f64
    }
}

/// What came of all.
#[derive(Default)]
pub struct Tally {
    /// By origin.
    pub by_origin: BTreeMap<Origin, Counts>,
    /// Our reasons where the kernel accepts.
    pub only_we: BTreeMap<(Origin, String), u64>,
    /// The kernel's where we accept.
    pub only_kernel: BTreeMap<(Origin, String), u64>,
    /// Our reasons where both refuse.
    pub refused: BTreeMap<&'static str, u64>,
    /// Faults and differing results, with their programs.
    pub wrong: Vec<String>,
    /// Packets that went through machine code.
    pub compiled_runs: u64,
    /// Wall time, both verifiers' time.
    pub seconds: [f64; 3],
}

impl Tally {
    /// Counts one answer. `listing` gives the program's text; differences of each class are printed up to `show` times.
    pub fn note(&mut self, origin: Origin, answer: Answer, show: u64, listing: impl Fn() -> String) {
        let c = self.by_origin.entry(origin).or_default();
        c.programs += 1;
        match answer {
            Answer::BothAccept(packets) => {
                c.both_accept += 1;
                c.compared += u64::from(packets > 0);
            }
            Answer::BothRefuse(kind) => {
                c.both_refuse += 1;
                *self.refused.entry(kind).or_default() += 1;
            }
            Answer::OnlyWeRefuse(why) => {
                c.only_we += 1;
                let n = self.only_we.entry((origin, class(&why))).or_default();
                *n += 1;
                if *n <= show {
                    println!("--- only we refuse: {why}\n{}", listing());
                }
            }
            Answer::OnlyKernelRefuses { why, dead } => {
                c.only_kernel += 1;
                let row = if dead { DEAD.to_owned() } else { class(&why) };
                let n = self.only_kernel.entry((origin, row.clone())).or_default();
                *n += 1;
                if *n <= show && explain(&row).is_none() {
                    println!("--- only the kernel refuses, unexplained: {why}\n{}", listing());
                }
            }
            Answer::Long => c.long += 1,
            Answer::Wrong(why) => {
                println!("--- WRONG: {why}\n{}", listing());
                self.wrong.push(format!("{why}\n{}", listing()));
            }
        }
    }

    /// Programs in all.
    pub fn programs(&self) -> u64 {
        self.by_origin.values().map(|c| c.programs).sum()
    }

    /// Accepted by both, of all origins.
    pub fn both_accept(&self) -> u64 {
        self.by_origin.values().map(|c| c.both_accept).sum()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [wall, ours, theirs] = self.seconds;
        writeln!(
            f,
            "{} programs in {wall:.1} s ({:.0} a second; our verifier {ours:.1} s, the kernel's loads {theirs:.1} s), \
             {} packets through machine code, wrong {}",
            self.programs(),
            self.programs() as f64 / wall.max(0.001),
            self.compiled_runs,
            self.wrong.len()
        )?;
        for (origin, c) in &self.by_origin {
            writeln!(
                f,
                "  {origin:?}: {} programs, both accept {} (compared {}), both refuse {}, only we refuse {}, \
                 only the kernel refuses {}, too long {}: agreement {:.2} %",
                c.programs,
                c.both_accept,
                c.compared,
                c.both_refuse,
                c.only_we,
                c.only_kernel,
                c.long,
                c.agreement()
            )?;
        }
        for (name, map) in [("only we refuse", &self.only_we), ("only the kernel refuses", &self.only_kernel)] {
            let mut rows: Vec<_> = map.iter().collect();
            rows.sort_by_key(|r| std::cmp::Reverse(r.1));
            for ((origin, reason), n) in rows.iter().take(60) {
                let why = if name == "only we refuse" { "" } else { explain(reason).unwrap_or("UNEXPLAINED") };
                writeln!(f, "  {name} ({origin:?}): {n} x {reason}  [{why}]")?;
            }
        }
        let mut rows: Vec<_> = self.refused.iter().collect();
        rows.sort_by_key(|r| std::cmp::Reverse(r.1));
        let rows: Vec<String> = rows.iter().map(|(k, n)| format!("{k} {n}")).collect();
        writeln!(f, "  both refuse, by our reason: {}", rows.join(", "))?;
        for w in self.wrong.iter().take(3) {
            writeln!(f, "WRONG: {w}")?;
        }
        Ok(())
    }
}
