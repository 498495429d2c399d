//! What the view shows: the last two looks at the counters, and how much came in over time.

use std::collections::{BTreeMap, VecDeque};

use xway_hook::{ProgramStatistics, QueueStatistics, Statistics};

/// Looks that a sparkline remembers.
const HISTORY: usize = 240;
/// Steps of a burst's size, as `docs/counters.md` has them.
pub const BURSTS: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];
/// Verdicts in their order.
pub const VERDICTS: [&str; 5] = ["aborted", "drop", "pass", "tx", "redirect"];

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Seconds since the first one.
    pub secs: f64,
    /// Ports with what they counted.
    pub ports: Vec<(String, Statistics)>,
    /// Ports that receive no more though they are open, and why.
    pub lost: BTreeMap<String, String>,
}

impl Look {
    fn port(&self, name: &str) -> Option<&Statistics> {
        self.ports.iter().find(|(known, _)| known == name).map(|(_, statistics)| statistics)
    }
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub struct Model {
    /// Whose ports these are.
    pub title: String,
    /// What a person should know.
    pub trouble: Option<String>,
    selected: usize,
    before: Look,
    now: Look,
    history: BTreeMap<String, VecDeque<u64>>,
}

impl Model {
    /// Nothing seen yet.
    pub fn new(title: String) -> Model {
        Model { title, ..Model::default() }
    }

    /// Takes a look.
    pub fn take(&mut self, look: Look) {
        self.before = std::mem::replace(&mut self.now, look);
        self.trouble = None;
        let names: Vec<String> = self.names().map(str::to_owned).collect();
        self.history.retain(|name, _| names.contains(name));
        for name in names {
            let rate = self.rate(&name, |s| s.get("rx_packets"));
            let past = self.history.entry(name).or_default();
            past.push_back(rate as u64);
            if past.len() > HISTORY {
                past.pop_front();
            }
        }
        self.selected = self.selected.min(self.now.ports.len().saturating_sub(1));
    }

    /// Another port is shown in full: so many further on, or back.
    pub fn go(&mut self, by: isize) {
        let last = self.now.ports.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// Names of the ports.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.now.ports.iter().map(|(name, _)| name.as_str())
    }

    /// Which port is shown in full.
    pub fn selected(&self) -> Option<(usize, &str)> {
        self.now.ports.get(self.selected).map(|(name, _)| (self.selected, name.as_str()))
    }

    /// Why a port receives no more, if that is so.
    pub fn lost(&self, port: &str) -> Option<&str> {
        self.now.lost.get(port).map(String::as_str)
    }

    /// How much of something a port had in a second; 0 before the second look.
    pub fn rate(&self, port: &str, of: impl Fn(&Statistics) -> u64) -> f64 {
        let (Some(before), Some(now)) = (self.before.port(port), self.now.port(port)) else { return 0.0 };
        self.per_second(of(before), of(now))
    }

    fn per_second(&self, before: u64, now: u64) -> f64 {
        let secs = self.now.secs - self.before.secs;
        // Counters of a port that was opened again begin anew.
        if secs > 0.0 { now.saturating_sub(before) as f64 / secs } else { 0.0 }
    }

    /// Whether the hook counts something on a port at all.
    pub fn counts(&self, port: &str, name: &str) -> bool {
        self.now.port(port).is_some_and(|s| s.counters.iter().any(|(known, _)| known == name))
    }

    /// How much of something a port has had.
    pub fn total(&self, port: &str, of: impl Fn(&Statistics) -> u64) -> u64 {
        self.now.port(port).map_or(0, of)
    }

    /// What came in, look by look, the newest last.
    pub fn history(&self, port: &str) -> Vec<u64> {
        self.history.get(port).map(|past| past.iter().copied().collect()).unwrap_or_default()
    }

    /// Losses that a port has had: name, total, in a second. Those that grow come first.
    pub fn losses(&self, port: &str) -> Vec<(&str, u64, f64)> {
        let Some(now) = self.now.port(port) else { return Vec::new() };
        let mut all: Vec<_> = now
            .losses()
            .map(|(name, total)| (name, total, self.rate(port, |s| s.get(name))))
            .filter(|(_, total, _)| *total > 0)
            .collect();
        all.sort_by(|a, b| b.2.total_cmp(&a.2).then(b.1.cmp(&a.1)));
        all
    }

    /// Queues of a port, with what each received in a second.
    pub fn queues(&self, port: &str) -> Vec<(&QueueStatistics, f64)> {
        let Some(now) = self.now.port(port) else { return Vec::new() };
        let before = |queue: u32| self.before.port(port)?.queues.iter().find(|q| q.queue == queue);
        let rate = |queue: &QueueStatistics| {
            let old = before(queue.queue).map_or(0, |old| old.get("rx_packets"));
            self.per_second(old, queue.get("rx_packets"))
        };
        now.queues.iter().map(|queue| (queue, rate(queue))).collect()
    }

    /// Programs of a port, with the packets that each ran over in a second.
    pub fn programs(&self, port: &str) -> Vec<(&ProgramStatistics, f64)> {
        let Some(now) = self.now.port(port) else { return Vec::new() };
        let before = |id: u32| self.before.port(port)?.programs.iter().find(|p| p.id == id);
        let rate = |p: &ProgramStatistics| self.per_second(before(p.id).map_or(0, |old| old.runs), p.runs);
        now.programs.iter().map(|program| (program, rate(program))).collect()
    }
}
