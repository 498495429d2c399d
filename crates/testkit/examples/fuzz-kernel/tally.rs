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

/// Seeds that are kept of each class, to look at its programs.
const SEEDS: usize = 4;

/// Programs on which the two differ for the same reason.
#[derive(Default)]
pub struct Class {
    /// How many.
    pub programs: u64,
    /// Seeds of the first ones: `--seed N --count 1 --read ""` prints one again.
    pub seeds: Vec<u64>,
}

impl Class {
    fn add(&mut self, seed: u64) {
        self.programs += 1;
        if self.seeds.len() < SEEDS {
            self.seeds.push(seed);
        }
    }
}

/// Which differences are printed in full.
pub struct Show<'a> {
    /// So many of each class that nothing explains.
    pub each: u64,
    /// And of those whose words hold this.
    pub read: Option<&'a str>,
}

impl Show<'_> {
    fn wants(&self, row: &Class, open: bool, words: &str) -> bool {
        row.programs <= self.each && (open || self.read.is_some_and(|text| words.contains(text)))
    }
}

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
    /// Our words where the kernel accepts.
    pub only_we: BTreeMap<(Origin, String), Class>,
    /// The kernel's words where we accept, and why we do.
    pub only_kernel: BTreeMap<(Origin, String, Option<&'static str>), Class>,
    /// Seeds of the programs that the kernel alone refuses and that no reason of `classes.rs` explains.
    pub unexplained: Vec<u64>,
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
    /// Counts one answer to the program that `seed` makes. `listing` gives its text.
    pub fn note(&mut self, origin: Origin, seed: u64, answer: Answer, show: &Show<'_>, listing: impl Fn() -> String) {
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
                let row = self.only_we.entry((origin, class(&why))).or_default();
                row.add(seed);
                if show.wants(row, true, &why) {
                    println!("--- only we refuse: {why}\n{}", listing());
                }
            }
            Answer::OnlyKernelRefuses(case) => {
                c.only_kernel += 1;
                let reason = explain(&case);
                let row = self.only_kernel.entry((origin, class(&case.words), reason)).or_default();
                row.add(seed);
                if show.wants(row, reason.is_none(), &case.words) {
                    let reason = reason.unwrap_or("unexplained");
                    println!("--- only the kernel refuses: {case:?}: {reason}\n{}", listing());
                }
                if reason.is_none() {
                    self.unexplained.push(seed);
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
        type Row<'a> = (&'a Origin, &'a str, &'a str, &'a Class);
        let ours: Vec<Row<'_>> =
            self.only_we.iter().map(|((origin, words), c)| (origin, words.as_str(), "", c)).collect();
        let theirs: Vec<Row<'_>> = self
            .only_kernel
            .iter()
            .map(|((origin, words, reason), c)| (origin, words.as_str(), reason.unwrap_or("UNEXPLAINED"), c))
            .collect();
        for (name, mut rows) in [("only we refuse", ours), ("only the kernel refuses", theirs)] {
            rows.sort_by_key(|(.., c)| std::cmp::Reverse(c.programs));
            for (origin, words, reason, c) in rows {
                writeln!(f, "  {name} ({origin:?}): {} x {words}  [{reason}]  seeds {:?}", c.programs, c.seeds)?;
            }
        }
        writeln!(f, "  unexplained: {} {:?}", self.unexplained.len(), self.unexplained)?;
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
