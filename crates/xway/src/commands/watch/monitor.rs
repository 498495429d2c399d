//! `xway monitor`: what goes wrong, and how much of what happens in a second.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use xway_hook::{Hook, HookEvent, HookKind};
use xway_kernel::KernelTally;

use super::{Until, clock, is_port};
use crate::args_watch::Monitor;
use crate::commands::kernel::attach::Place;
use crate::commands::kernel::failure;
use crate::commands::stats;
use crate::failure::Failure;
use crate::print;

/// Longest wait for an event.
const LOOK: Duration = Duration::from_millis(200);
/// Tracepoints of success that the kernel only counts.
const TALLIES: [&str; 3] = ["xdp_redirect", "xdp_devmap_xmit", "xdp_cpumap_kthread"];

/// Runs the command.
pub fn run(args: &Monitor, as_json: bool) -> Result<(), Failure> {
    let (events, rates) = if args.events == args.stats { (true, true) } else { (args.events, args.stats) };
    let until = Until::new(args.timeout)?;
    let mut hook = Place::of(&args.place)?.boxed();
    if let Some(port) = &args.port {
        // Nothing would ever be told of one that is not there.
        hook.statistics(port).map_err(failure)?;
    }
    let mut rates = if rates { Some(Rates::open(hook.as_mut(), args, as_json)?) } else { None };
    let mut left = args.count.unwrap_or(u64::MAX);
    if events {
        // From here on events are listened to.
        show(hook.events(Duration::ZERO).map_err(failure)?, args, &mut left, as_json);
    }
    while let Some(wait) = until.left(LOOK).filter(|_| left > 0) {
        let wait = rates.as_ref().map_or(wait, |rates| rates.due().min(wait));
        match events {
            true => show(hook.events(wait).map_err(failure)?, args, &mut left, as_json),
            false => std::thread::sleep(wait),
        }
        if let Some(rates) = &mut rates
            && rates.due().is_zero()
        {
            rates.show(hook.as_mut())?;
            left -= u64::from(!events);
        }
    }
    Ok(())
}

fn show(all: Vec<HookEvent>, args: &Monitor, left: &mut u64, as_json: bool) {
    let of_port = |event: &HookEvent| match (&args.port, &event.port) {
        (Some(wanted), Some(port)) => is_port(port, wanted),
        _ => true,
    };
    for event in all.iter().filter(|event| of_port(event)) {
        if *left == 0 {
            return;
        }
        *left -= 1;
        match as_json {
            true => print::text(&format!("{}\n", print::document("monitor", json(event)))),
            false => print::text(&line(event)),
        }
    }
}

fn line(event: &HookEvent) -> String {
    let port = event.port.as_ref().map_or_else(String::new, |port| format!(" {port}"));
    let queue = event.queue.map_or_else(String::new, |queue| format!(" q{queue}"));
    let more = match event.suppressed {
        0 => String::new(),
        n => format!(" (and {} more before it)", print::grouped(n)),
    };
    format!("{} {:<14}{port}{queue}: {}{more}\n", clock(event.time_ns), event.kind, event.text)
}

fn json(event: &HookEvent) -> Value {
    json!({
        "event": event.kind,
        "time_ns": event.time_ns,
        "port": event.port,
        "queue": event.queue,
        "program": event.program,
        "packets": event.packets,
        "suppressed": event.suppressed,
        "text": event.text,
    })
}

/// Numbers of ports by name.
type Numbers = Vec<(String, Vec<(String, u64)>)>;

/// Counters from one look to the next.
struct Rates {
    port: Option<String>,
    interval: Duration,
    since: Instant,
    before: Numbers,
    tallies: Vec<(&'static str, KernelTally)>,
    as_json: bool,
}

impl Rates {
    fn open(hook: &mut dyn Hook, args: &Monitor, as_json: bool) -> Result<Rates, Failure> {
        let mut tallies = Vec::new();
        if hook.kind() == HookKind::Kernel {
            for name in TALLIES {
                let tally = KernelTally::open("xdp", name);
                let hint = "as root: mount -t tracefs nodev /sys/kernel/tracing";
                let tally = tally.map_err(|e| Failure::needs(e).hint(hint))?;
                tallies.push((name, tally));
            }
        }
        let (port, interval) = (args.port.clone(), args.interval.max(Duration::from_millis(10)));
        let mut rates = Rates { port, interval, since: Instant::now(), before: Vec::new(), tallies, as_json };
        rates.before = rates.read(hook)?;
        Ok(rates)
    }

    /// Time until the next look.
    fn due(&self) -> Duration {
        self.interval.saturating_sub(self.since.elapsed())
    }

    fn read(&self, hook: &mut dyn Hook) -> Result<Numbers, Failure> {
        let names = match &self.port {
            Some(port) => vec![port.clone()],
            None => hook.port_names().map_err(failure)?,
        };
        let mut all = Vec::new();
        for name in names {
            match hook.statistics(&name) {
                Ok(statistics) => all.push((name, statistics.counters)),
                // It may have been closed since it was named.
                Err(error) if self.port.is_some() => return Err(failure(error)),
                Err(_) => {}
            }
        }
        if !self.tallies.is_empty() {
            let counted = self.tallies.iter().map(|(name, tally)| ((*name).to_owned(), tally.count())).collect();
            all.push(("tracepoints".into(), counted));
        }
        Ok(all)
    }

    fn show(&mut self, hook: &mut dyn Hook) -> Result<(), Failure> {
        let now = self.read(hook)?;
        let secs = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        let mut ports = Map::new();
        for (name, numbers) in &now {
            let old = self.before.iter().find(|(known, _)| known == name).map_or(&[][..], |(_, old)| old);
            let rows = stats::grown(old, numbers, secs, false);
            match self.as_json {
                true => drop(ports.insert(name.clone(), stats::rates_json(&rows))),
                false if rows.is_empty() => {}
                false => print::text(&stats::text(name, secs, &rows)),
            }
        }
        if self.as_json {
            print::text(&format!("{}\n", print::document("monitor", json!({ "seconds": secs, "rates": ports }))));
        }
        self.before = now;
        Ok(())
    }
}
