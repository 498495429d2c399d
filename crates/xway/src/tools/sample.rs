//! Figures once an interval, and their sum at the end: the lines of `xdp-bench`, `xdp-monitor` and `xdp-trafficgen`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use xway_tools::ToolError;
use xway_tools::measure::Snapshot;
use xway_tools::tally::{PerCpu, Tally};
use xway_tools::watch::{ACTIONS, Counts, ERRORS};

use crate::{interrupt, print};

/// Which figures make sense for what is being done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// A program of ours counts what it receives.
    pub received: bool,
    /// Successful redirects are counted.
    pub redirected: bool,
    /// Packets that are dropped are not lost: that is what was asked for.
    pub drops_wanted: bool,
    /// Devices and errors of redirects.
    pub redirects: bool,
    /// Transmissions, in native mode.
    pub transmitted: bool,
    /// Queues of CPUs.
    pub cpus: bool,
    /// Programs behind the queues of CPUs.
    pub behind: bool,
    /// All of the machine's transmissions together.
    pub devices: bool,
}

/// How the lines look.
#[derive(Clone, Debug)]
pub struct Style {
    /// What stands in front of the first line.
    pub title: String,
    /// Which figures.
    pub shown: Shown,
    /// All of them, by CPU, or one line.
    pub extended: bool,
}

/// One figure with its unit.
enum Cell {
    Whole(f64, &'static str),
    Mean(f64, &'static str),
}

/// A name and its figures, in columns that do not move.
fn row(name: &str, cells: &[Cell]) -> String {
    let mut out = format!("{name:<23}");
    for cell in cells {
        match cell {
            Cell::Whole(value, unit) => out.push_str(&format!("{value:>10.0} {unit:<13}")),
            Cell::Mean(value, unit) => out.push_str(&format!("{value:>10.2} {unit:<13}")),
        }
    }
    out.push('\n');
    out
}

/// Losses that nobody asked for.
fn lost(s: &Snapshot, shown: Shown) -> u64 {
    let received = s.received.sum();
    let dropped = if shown.drops_wanted { 0 } else { received.dropped };
    let enqueue: u64 = s.counts.enqueue.values().map(|one| one.sum().dropped).sum();
    let (kthread, xmit) = (s.counts.kthread.sum(), s.counts.xmit.sum());
    let xmit = if shown.transmitted { xmit.dropped + xmit.drop } else { 0 };
    received.issue + dropped + s.counts.errors() + s.counts.exceptions() + enqueue + kthread.dropped + xmit
}

impl Style {
    /// The lines of one interval.
    fn lines(&self, s: &Snapshot, took: Duration, name: &dyn Fn(u32) -> String) -> String {
        let seconds = took.as_secs_f64().max(1e-9);
        let rate = |n: u64, unit| Cell::Whole(n as f64 / seconds, unit);
        let shown = self.shown;
        let mut first = Vec::new();
        if shown.received {
            first.push(rate(s.received.sum().processed, "rx/s"));
        }
        if shown.redirected {
            first.push(rate(s.counts.redirect.sum().processed, "redir/s"));
        }
        let losses = if shown.drops_wanted { "err/s" } else { "err,drop/s" };
        first.push(rate(lost(s, shown), losses));
        if shown.transmitted {
            first.push(rate(s.counts.xmit.sum().processed, "xmit/s"));
        }
        let mut out = row(&self.title, &first);
        if self.extended {
            self.details(&mut out, s, seconds, name);
            out.push('\n');
        }
        out
    }

    fn details(&self, out: &mut String, s: &Snapshot, seconds: f64, name: &dyn Fn(u32) -> String) {
        let shown = self.shown;
        let rate = move |n: u64, unit| Cell::Whole(n as f64 / seconds, unit);
        if shown.received {
            let cells =
                move |t: &Tally| vec![rate(t.processed, "pkt/s"), rate(t.dropped, "drop/s"), rate(t.issue, "error/s")];
            block(out, "receive", &s.received, &cells);
            for (at, queue) in s.queues.iter().enumerate().filter(|(_, q)| !q.sum().is_zero()) {
                out.push_str(&row(&format!("    rxq:{at}"), &cells(&queue.sum())));
            }
        }
        if shown.cpus {
            self.cpu_queues(out, &s.counts, seconds);
        }
        if shown.redirected {
            block(out, "redirect", &s.counts.redirect, &move |t| vec![rate(t.processed, "redir/s")]);
        }
        if shown.redirects {
            causes(out, "redirect_err", &s.counts.errors, &ERRORS, &move |t| vec![rate(t.dropped, "error/s")]);
        }
        causes(out, "xdp_exception", &s.counts.exceptions, &ACTIONS, &move |t| vec![rate(t.dropped, "hit/s")]);
        if shown.transmitted {
            let cells = move |t: &Tally| {
                let mean = if t.issue > 0 { (t.processed + t.dropped) as f64 / t.issue as f64 } else { 0.0 };
                vec![
                    rate(t.processed, "xmit/s"),
                    rate(t.dropped, "drop/s"),
                    rate(t.drop, "drv_err/s"),
                    Cell::Mean(mean, "bulk-avg"),
                ]
            };
            if shown.devices {
                block(out, "devmap_xmit", &s.counts.xmit, &cells);
            }
            for ((from, to), one) in s.counts.links.iter().filter(|(_, one)| !one.sum().is_zero()) {
                out.push_str(&row(&format!("  xmit {}->{}", name(*from), name(*to)), &cells(&one.sum())));
                cpus(out, one, "", &cells);
            }
        }
    }

    /// Queues of CPUs, and what the programs behind them said.
    fn cpu_queues(&self, out: &mut String, counts: &Counts, seconds: f64) {
        let rate = move |n: u64, unit| Cell::Whole(n as f64 / seconds, unit);
        for (to, one) in &counts.enqueue {
            let cells = move |t: &Tally| {
                let mean = if t.issue > 0 { t.processed as f64 / t.issue as f64 } else { 0.0 };
                vec![rate(t.processed, "pkt/s"), rate(t.dropped, "drop/s"), Cell::Mean(mean, "bulk-avg")]
            };
            if one.sum().is_zero() {
                continue;
            }
            out.push_str(&row(&format!("  enqueue to cpu {to}"), &cells(&one.sum())));
            cpus(out, one, &format!("->{to}"), &cells);
        }
        let cells =
            move |t: &Tally| vec![rate(t.processed, "pkt/s"), rate(t.dropped, "drop/s"), rate(t.issue, "sched")];
        block(out, "kthread", &counts.kthread, &cells);
        if self.shown.behind {
            let cells =
                move |t: &Tally| vec![rate(t.pass, "pass/s"), rate(t.drop, "drop/s"), rate(t.redirect, "redir/s")];
            block(out, "xdp_stats", &counts.kthread, &cells);
        }
    }
}

/// A sum and what makes it up, CPU by CPU; one line when there is nothing.
fn block(out: &mut String, name: &str, one: &PerCpu, cells: &dyn Fn(&Tally) -> Vec<Cell>) {
    let sum = one.sum();
    if sum.is_zero() {
        out.push_str(&row(&format!("  {name}"), &cells(&sum)));
        return;
    }
    out.push_str(&row(&format!("  {name} total"), &cells(&sum)));
    cpus(out, one, "", cells);
}

fn cpus(out: &mut String, one: &PerCpu, behind: &str, cells: &dyn Fn(&Tally) -> Vec<Cell>) {
    for (cpu, tally) in one.busy() {
        out.push_str(&row(&format!("    cpu:{cpu}{behind}"), &cells(tally)));
    }
}

/// Causes by name, each with its CPUs.
fn causes(out: &mut String, name: &str, all: &[PerCpu], names: &[&str], cells: &dyn Fn(&Tally) -> Vec<Cell>) {
    let mut sum = Tally::default();
    all.iter().for_each(|one| sum += one.sum());
    out.push_str(&row(&format!("  {name}{}", if sum.is_zero() { "" } else { " total" }), &cells(&sum)));
    for (one, cause) in all.iter().zip(names).filter(|(one, _)| !one.sum().is_zero()) {
        out.push_str(&row(&format!("    {cause}"), &cells(&one.sum())));
        cpus(out, one, "", cells);
    }
}

/// What is read once an interval.
pub trait Source {
    /// What was counted until now.
    fn read(&mut self) -> Result<Snapshot, ToolError>;

    /// It has ended by itself.
    fn ended(&self) -> bool {
        false
    }

    /// Behind each interval's lines.
    fn between(&mut self) -> Result<(), ToolError> {
        Ok(())
    }
}

/// When it ends, and how often it says something; `None`: only at the end.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Between two lines.
    pub interval: Option<Duration>,
    /// Ends at once, when everything has been set up: `XDP_SAMPLE_IMMEDIATE_EXIT` in the environment, which scripts
    /// use.
    pub at_once: bool,
}

impl Times {
    /// With this interval, and what the environment says.
    pub fn every(interval: Option<Duration>) -> Times {
        Times { interval, at_once: std::env::var_os("XDP_SAMPLE_IMMEDIATE_EXIT").is_some() }
    }
}

/// Prints a line for each interval until it is stopped, then a last one for what is left, and the sums. To be called once.
pub fn run(source: &mut dyn Source, style: &Style, times: Times, stop: &dyn Fn() -> bool) -> Result<(), ToolError> {
    let names = xway_kernel::devices().unwrap_or_default();
    let name = |ifindex: u32| {
        names.iter().find(|d| d.ifindex == ifindex).map_or_else(|| format!("if{ifindex}"), |d| d.name.clone())
    };
    let (start, first) = (Instant::now(), source.read()?);
    let (mut before, mut since) = (first.clone(), start);
    // Ctrl-\ while it runs: from one line to all figures, and back.
    let quit = interrupt::on_quit().map_err(|f| ToolError::Request(f.message))?;
    let mut style = style.clone();
    while !stop() && !source.ended() && !times.at_once {
        style.extended ^= quit.swap(false, Ordering::Relaxed);
        let due = times.interval.map(|interval| since + interval);
        let now = Instant::now();
        if let Some(due) = due.filter(|due| *due > now) {
            std::thread::sleep((due - now).min(Duration::from_millis(50)));
            continue;
        }
        if due.is_none() {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        let (read, at) = (source.read()?, Instant::now());
        print::text(&style.lines(&read.since(&before), at - since, &name));
        source.between()?;
        (before, since) = (read, at);
    }
    let (last, end) = (source.read()?, Instant::now());
    if !times.at_once {
        print::text(&format!("\n{}", style.lines(&last.since(&before), end - since, &name)));
    }
    print::text(&sums(&last.since(&first), end - start, style.shown));
    Ok(())
}

/// What it came to.
fn sums(s: &Snapshot, took: Duration, shown: Shown) -> String {
    let seconds = took.as_secs_f64();
    let mut out = String::new();
    let mut line = |name: &str, value: String| out.push_str(&format!("  {name:<20}: {value:<10}\n"));
    line("Duration", format!("{seconds:.1}s"));
    let mut rate = |name: &str, mean: &str, n: u64| {
        if n > 0 {
            line(name, n.to_string());
            line(mean, format!("{:.0}", n as f64 / seconds.max(1e-9)));
        }
    };
    rate("Packets received", "Average packets/s", s.received.sum().processed);
    rate("Packets redirected", "Average redir/s", s.counts.redirect.sum().processed);
    rate("Packets transmitted", "Average transmit/s", s.counts.xmit.sum().processed);
    let received = s.received.sum();
    let rest = [
        ("Rx dropped", received.dropped),
        ("Rx errors", received.issue),
        ("Redirect errors", s.counts.errors()),
        ("Exceptions", s.counts.exceptions()),
        ("Tx dropped", if shown.transmitted { s.counts.xmit.sum().dropped } else { 0 }),
        ("Tx driver errors", if shown.transmitted { s.counts.xmit.sum().drop } else { 0 }),
    ];
    rest.iter().filter(|(_, n)| *n > 0).for_each(|(name, n)| line(name, n.to_string()));
    out.lines().map(|l| format!("{}\n", l.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(processed: u64, dropped: u64) -> Tally {
        Tally { processed, dropped, ..Tally::default() }
    }

    #[test]
    fn lines_have_their_columns() {
        let received = PerCpu(vec![tally(0, 0), tally(188, 188)]);
        let s = Snapshot { received, ..Snapshot::default() };
        let shown = Shown { received: true, drops_wanted: true, ..Shown::default() };
        let style = Style { title: "Summary".into(), shown, extended: false };
        let name = |n: u32| n.to_string();
        let took = Duration::from_secs(2);
        let line = style.lines(&s, took, &name);
        assert_eq!(line, "Summary                        94 rx/s                  0 err/s        \n");
        let all = Style { extended: true, ..style }.lines(&s, took, &name);
        let rows: Vec<&str> = all.lines().map(str::trim_end).collect();
        assert_eq!(
            rows[1],
            "  receive total                94 pkt/s                94 drop/s                0 error/s"
        );
        assert_eq!(
            rows[2],
            "    cpu:1                      94 pkt/s                94 drop/s                0 error/s"
        );
        assert_eq!(rows[3], "  xdp_exception                 0 hit/s");
        assert_eq!(rows.len(), 5, "and an empty line: {all}");
        let sums = sums(&s, took, shown);
        assert!(sums.starts_with("  Duration            : 2.0s\n  Packets received    : 188\n"), "{sums}");
        assert!(sums.ends_with("  Rx dropped          : 188\n"), "{sums}");
    }

    #[test]
    fn causes_are_named() {
        let mut errors = vec![PerCpu::default(); ERRORS.len()];
        errors[4] = PerCpu(vec![tally(3, 3)]);
        let s = Snapshot { counts: Counts { errors, ..Counts::default() }, ..Snapshot::default() };
        let shown = Shown { redirects: true, ..Shown::default() };
        let style = Style { title: "a->b".into(), shown, extended: true };
        let text = style.lines(&s, Duration::from_secs(1), &|n| n.to_string());
        let rows: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(rows[0], "a->b                            3 err,drop/s");
        assert_eq!(rows[2], "    EOPNOTSUPP                  3 error/s");
        assert_eq!(rows[3], "    cpu:0                       3 error/s");
    }
}
