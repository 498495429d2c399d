//! What came of it: counts, costs, differences.

use std::time::Duration;

use xway_kernel::{KernelError, KernelProg};
use xway_verifier::{Rejection, Verified};

/// Our verdict.
pub struct Ours {
    /// Why we refuse.
    pub refused: Option<String>,
    visited: u64,
    time: Duration,
}

impl Ours {
    /// Reads the outcome of an analysis.
    pub fn of(outcome: Result<Verified, Rejection>) -> Ours {
        match outcome {
            Ok(v) => Ours { refused: None, visited: v.stats().visited, time: v.stats().time },
            Err(r) => {
                let e = &r.errors[0];
                let at = if e.line > 0 { format!("line {}", e.line) } else { format!("instruction {}", e.insn) };
                let why = format!("[{}] {at}: {} | {}", e.kind.name(), e.message, e.source);
                Ours { refused: Some(why), visited: r.stats.visited, time: r.stats.time }
            }
        }
    }
}

/// The kernel's verdict.
pub enum Kernel {
    /// Accepted: instructions that its verifier looked at, time of the whole load.
    Accepts { visited: u32, time: Duration },
    /// Refused: the decisive line of its log.
    Refuses(String),
    /// It could not be asked: no map, no symbol.
    CannotAsk(String),
}

impl Kernel {
    /// Reads the outcome of a load that took so long.
    pub fn of(outcome: Result<KernelProg, KernelError>, time: Duration) -> Kernel {
        match outcome {
            Ok(prog) => Kernel::Accepts { visited: prog.info().map_or(0, |i| i.verified_insns), time },
            Err(KernelError::Program { errno, log, .. }) => Kernel::Refuses(format!("{errno}: {}", decisive(&log))),
            Err(other) => Kernel::CannotAsk(other.to_string()),
        }
    }
}

/// The last lines of the log that are not statistics.
fn decisive(log: &str) -> String {
    let noise = ["processed ", "verification time", "max_states", "stack depth", "mark_precise:", "arg#"];
    let mut lines: Vec<&str> = log.lines().map(str::trim).collect();
    lines.retain(|l| !l.is_empty() && !noise.iter().any(|n| l.starts_with(n)));
    lines[lines.len().saturating_sub(2)..].join(" / ")
}

struct Row {
    id: String,
    insns: usize,
    ours: Ours,
    kernel: Kernel,
}

/// All rows.
pub struct Report {
    only: Option<String>,
    rows: Vec<Row>,
    unreadable: Vec<String>,
}

impl Report {
    /// An empty one; `only` names the programs that count by a part of their name.
    pub fn new(only: Option<String>) -> Report {
        Report { only, rows: Vec::new(), unreadable: Vec::new() }
    }

    /// This program counts.
    pub fn wants(&self, id: &str) -> bool {
        self.only.as_ref().is_none_or(|o| id.contains(o.as_str()))
    }

    /// Something could not be read.
    pub fn unreadable(&mut self, id: &str, why: &str) {
        if self.wants(id) {
            self.unreadable.push(format!("{id}: {why}"));
        }
    }

    /// One program.
    pub fn note(&mut self, id: String, insns: usize, ours: Ours, kernel: Kernel) {
        self.rows.push(Row { id, insns, ours, kernel });
    }

    /// Differences first, then the table.
    pub fn print(&self, show: usize, slow: bool) {
        let mut shown = 0;
        for r in &self.rows {
            let text = match (&r.ours.refused, &r.kernel) {
                (Some(we), Kernel::Accepts { .. }) => format!("ONLY WE REFUSE {}\n    {we}", r.id),
                (None, Kernel::Refuses(why)) => format!("ONLY LINUX REFUSES {}\n    {why}", r.id),
                (we, Kernel::CannotAsk(why)) => {
                    format!("CANNOT ASK {}\n    {}\n    ours: {}", r.id, why, we.as_deref().unwrap_or("accepted"))
                }
                _ => continue,
            };
            shown += 1;
            if shown <= show {
                println!("{text}");
            }
        }
        for u in &self.unreadable {
            println!("UNREADABLE {u}");
        }
        if slow {
            self.print_slow();
        }
        self.print_table();
    }

    fn print_slow(&self) {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by_key(|r| std::cmp::Reverse(r.ours.time));
        println!("slowest here:");
        for r in rows.iter().take(20) {
            let kernel = match &r.kernel {
                Kernel::Accepts { visited, time } => format!("{visited} visited, {time:.1?}"),
                _ => "refused".into(),
            };
            println!(
                "  {}: {} instructions; ours {} visited, {:.1?}; Linux {kernel}",
                r.id, r.insns, r.ours.visited, r.ours.time
            );
        }
    }

    fn print_table(&self) {
        let count = |f: fn(&Row) -> bool| self.rows.iter().filter(|r| f(r)).count();
        let accepts = |r: &Row| matches!(r.kernel, Kernel::Accepts { .. });
        println!(
            "{} programs; Linux accepts {}; of these we accept {}; both refuse {}; only Linux refuses {}; Linux could not be asked {}; \
             unreadable {}",
            self.rows.len(),
            count(accepts),
            count(|r| matches!(r.kernel, Kernel::Accepts { .. }) && r.ours.refused.is_none()),
            count(|r| matches!(r.kernel, Kernel::Refuses(_)) && r.ours.refused.is_some()),
            count(|r| matches!(r.kernel, Kernel::Refuses(_)) && r.ours.refused.is_none()),
            count(|r| matches!(r.kernel, Kernel::CannotAsk(_))),
            self.unreadable.len()
        );
        let mut sizes: Vec<usize> = self.rows.iter().map(|r| r.insns).collect();
        sizes.sort_unstable();
        let mut ratios: Vec<f64> = Vec::new();
        for r in &self.rows {
            if let (Kernel::Accepts { time, .. }, None) = (&r.kernel, &r.ours.refused) {
                ratios.push(r.ours.time.as_secs_f64() / time.as_secs_f64());
            }
        }
        ratios.sort_by(f64::total_cmp);
        if let (Some(median), Some(size)) = (ratios.get(ratios.len() / 2), sizes.get(sizes.len() / 2)) {
            println!(
                "median size {size} slots, largest {}; our time over Linux's time to load: median {median:.2}, largest {:.2}",
                sizes.last().unwrap_or(&0),
                ratios.last().unwrap_or(&0.0)
            );
        }
    }
}
