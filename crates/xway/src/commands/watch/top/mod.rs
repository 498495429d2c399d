//! `xway top`: ports, queues, programs, verdicts and losses on a terminal, as they change.

mod model;
mod view;

use std::io::IsTerminal;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use xway_engine::{Stop, Watched};
use xway_hook::{Hook, HookKind, ProgramStatistics, QueueStatistics, Statistics};

use super::{Until, service_first};
use crate::args_watch::Top;
use crate::commands::kernel::attach::Place;
use crate::commands::kernel::failure;
use crate::failure::Failure;
use model::{Look, Model};

/// Longest time without a look at the keys.
const KEYS: Duration = Duration::from_millis(100);

/// Where numbers come from; an error in words is shown and asked again.
type Source<'a> = dyn FnMut() -> Result<Look, String> + 'a;

/// Runs the command.
pub fn run(args: &Top, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return Err(Failure::usage("top is a picture").hint("xway stats PORT --ndjson prints the same numbers"));
    }
    terminal()?;
    let place = service_first(&args.place);
    let mut hook = Place::of(&place)
        .map_err(|e| match args.place.hook {
            Some(_) => e,
            None => e.hint("xway up -c FILE.toml starts the service; xway top --hook native watches the kernel's hook"),
        })?
        .boxed();
    // Linux counts the runs of programs while somebody asks for it; without the right to ask they stand still.
    let _counted = (hook.kind() == HookKind::Kernel).then(xway_kernel::run_statistics);
    let title = match hook.kind() {
        HookKind::Kernel => "the kernel's hook".to_owned(),
        _ => format!("service {}", place.socket.socket.display()),
    };
    // What cannot be asked at all is said on a terminal that is as it was.
    look(hook.as_mut()).map_err(failure)?;
    let until = Until::new(None)?;
    let mut source = || look(hook.as_mut()).map_err(|e| e.to_string());
    show(title, args.interval, args.count, &until, &mut source)
}

/// A picture needs somebody who looks at it.
fn terminal() -> Result<(), Failure> {
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage("top needs a terminal").hint("xway stats PORT --ndjson prints the same numbers"))
}

fn look(hook: &mut dyn Hook) -> Result<Look, xway_hook::HookError> {
    let mut all = Look::default();
    for name in hook.port_names()? {
        // It may have been closed since it was named.
        let Ok(mut statistics) = hook.statistics(&name) else { continue };
        if statistics.programs.is_empty() {
            let there = hook.attachments(Some(&name)).unwrap_or_default();
            statistics.programs.extend(there.into_iter().map(|a| ProgramStatistics {
                id: a.program.id.0,
                name: a.program.name,
                runs: a.program.runs.map_or(0, |(count, _)| count),
                ..ProgramStatistics::default()
            }));
        }
        // (Linux's interfaces are there or not.)
        let features = (hook.kind() != HookKind::Kernel).then(|| hook.features(&name).ok()).flatten();
        if let Some(lost) = features.as_ref().and_then(|features| features.lost()) {
            all.lost.insert(name.clone(), format!("{}: {}", lost.effective, lost.reason));
        }
        all.ports.push((name, statistics));
    }
    Ok(all)
}

/// Shows until somebody has seen enough. The terminal is as it was afterwards, whatever happens.
fn show(
    title: String,
    interval: Duration,
    count: Option<u64>,
    until: &Until,
    source: &mut Source<'_>,
) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::needs(format!("the terminal: {e}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let restored = Restore;
    let (mut model, started, mut left) = (Model::new(title), Instant::now(), count.unwrap_or(u64::MAX));
    let mut due = started;
    let outcome = loop {
        if Instant::now() >= due {
            if left == 0 {
                break Ok(());
            }
            left -= 1;
            match source() {
                Ok(look) => model.take(Look { secs: started.elapsed().as_secs_f64(), ..look }),
                Err(trouble) => model.trouble = Some(trouble),
            }
            due = Instant::now() + interval;
        }
        if let Err(e) = terminal.draw(|frame| view::draw(frame, &model)) {
            break Err(failed(e));
        }
        let Some(wait) = until.left(KEYS) else { break Ok(()) };
        match key(wait.min(due.saturating_duration_since(Instant::now()))) {
            Ok(Some(Key::Quit)) => break Ok(()),
            Ok(Some(Key::Go(by))) => model.go(by),
            Ok(None) => {}
            Err(e) => break Err(failed(e)),
        }
    };
    drop(terminal);
    drop(restored);
    outcome
}

/// Gives the terminal back.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

enum Key {
    Quit,
    Go(isize),
}

fn key(wait: Duration) -> std::io::Result<Option<Key>> {
    if !event::poll(wait)? {
        return Ok(None);
    }
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event::read()? else {
        return Ok(None);
    };
    Ok(match code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Go(1)),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Go(-1)),
        _ => None,
    })
}

/// The picture of a run in this process.
pub struct OfRun {
    thread: JoinHandle<Result<(), Failure>>,
    stop: Stop,
}

/// Shows what a worker counts, until it has ended; `q` ends the worker too.
pub fn of_run(port: String, program: String, watched: Watched, stop: Stop) -> Result<OfRun, Failure> {
    terminal()?;
    let until = Until::of(stop.clone());
    let (title, over) = (format!("xway run {program}"), stop.clone());
    let mut source = move || -> Result<Look, String> {
        let counters = watched.counters();
        let queue = QueueStatistics { queue: 0, worker: 0, counters: counters.flat() };
        let own = ProgramStatistics {
            name: program.clone(),
            runs: counters.verdicts.iter().sum::<u64>() + counters.invalid,
            verdicts: counters.verdicts,
            invalid: counters.invalid,
            faults: counters.exceptions,
            ..ProgramStatistics::default()
        };
        let statistics = Statistics { counters: counters.flat(), queues: vec![queue], programs: vec![own] };
        Ok(Look { ports: vec![(port.clone(), statistics)], ..Look::default() })
    };
    let thread = std::thread::Builder::new().name("xway-top".into()).spawn(move || {
        let outcome = show(title, Duration::from_millis(500), None, &until, &mut source);
        stop.ask();
        outcome
    });
    thread.map(|thread| OfRun { thread, stop: over }).map_err(|e| Failure::needs(format!("no thread: {e}")))
}

impl OfRun {
    /// The run is over: waits until the terminal is as it was.
    pub fn finish(self) -> Result<(), Failure> {
        self.stop.ask();
        self.thread.join().unwrap_or_else(|_| Err(Failure::no("the picture failed")))
    }
}
