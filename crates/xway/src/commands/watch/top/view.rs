//! The picture: a model to characters. Knows no terminal, so that tests can look at it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::model::{BURSTS, Model, VERDICTS};
use crate::print;

/// Ports that are listed at most; the selected one is always among them.
const PORTS_MAX: usize = 6;
/// Programs that are listed at most.
const PROGRAMS_MAX: usize = 4;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

fn head(text: String) -> Line<'static> {
    Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)))
}

fn title(text: String, width: u16) -> Line<'static> {
    let text = format!("{text:<width$}", width = usize::from(width));
    Line::from(Span::styled(text, Style::new().add_modifier(Modifier::REVERSED)))
}

fn short(value: f64) -> String {
    print::scaled(value).trim().to_owned()
}

/// A name that fits; the end tells more than the beginning.
fn fit(name: &str, width: usize) -> String {
    let len = name.chars().count();
    if len <= width {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(len + 1 - width).collect::<String>())
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    let listed = model.names().count().clamp(1, PORTS_MAX) as u16;
    let selected = model.selected().map(|(_, name)| name.to_owned());
    let programs = selected.as_ref().map_or(0, |port| model.programs(port).len().min(PROGRAMS_MAX)) as u16;
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1 + listed),
        Constraint::Length(1),
        Constraint::Length(8),
        Constraint::Min(2),
        Constraint::Length(if programs > 0 { 1 + programs } else { 0 }),
        Constraint::Length(1),
    ])
    .split(area);
    let put =
        |frame: &mut Frame<'_>, lines: Vec<Line<'static>>, at: Rect| frame.render_widget(Paragraph::new(lines), at);

    put(frame, vec![title(format!(" xway top · {}", model.title), area.width)], rows[0]);
    put(frame, ports(model, rows[1].width), rows[1]);
    let keys = match &model.trouble {
        Some(trouble) => format!(" {trouble}"),
        None => " q quit   ↑↓ another port".to_owned(),
    };
    put(frame, vec![title(keys, area.width)], rows[6]);
    let Some(port) = selected else {
        put(frame, vec![Line::from("no port is open, or none has a program")], rows[2]);
        return;
    };
    put(frame, vec![head(format!("─── {port} {}", "─".repeat(usize::from(area.width))))], rows[2]);
    let halves = |area: Rect| Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).split(area);
    let (upper, lower) = (halves(rows[3]), halves(rows[4]));
    put(frame, verdicts(model, &port), upper[0]);
    put(frame, bursts(model, &port, upper[1].width), upper[1]);
    put(frame, losses(model, &port), lower[0]);
    put(frame, queues(model, &port, lower[1].height), lower[1]);
    put(frame, programs_of(model, &port), rows[5]);
}

fn ports(model: &Model, width: u16) -> Vec<Line<'static>> {
    let mut lines = vec![head(format!(
        "  {:<16} {:>9} {:>9} {:>9} {:>9} {:>9}  packets in",
        "port", "rx/s", "tx/s", "drop/s", "redir/s", "lost/s"
    ))];
    let at = model.selected().map_or(0, |(at, _)| at);
    let first = (at + 1).saturating_sub(PORTS_MAX);
    for (number, name) in model.names().enumerate().skip(first).take(PORTS_MAX) {
        let rate = |counter: &str| short(model.rate(name, |s| s.get(counter)));
        let lost = short(model.rate(name, |s| s.losses().map(|(_, number)| number).sum()));
        let mark = if number == at { '▶' } else { ' ' };
        let numbers = [rate("rx_packets"), rate("tx_packets"), rate("verdicts.drop"), rate("redirected"), lost];
        let numbers: String = numbers.iter().map(|number| format!(" {number:>9}")).collect();
        let room = usize::from(width).saturating_sub(18 + 5 * 10 + 2);
        lines.push(Line::from(format!("{mark} {:<16}{numbers}  {}", fit(name, 16), spark(&model.history(name), room))));
    }
    lines
}

/// The newest numbers as bars, the highest of them full.
fn spark(past: &[u64], width: usize) -> String {
    let shown = &past[past.len().saturating_sub(width)..];
    let top = shown.iter().copied().max().unwrap_or(0).max(1);
    let bar = |number: &u64| match *number {
        0 => ' ',
        number => BARS[((number - 1) * 8 / top).min(7) as usize],
    };
    shown.iter().map(bar).collect()
}

/// Whether this hook counts verdicts: Linux does not.
fn counts_verdicts(model: &Model, port: &str) -> bool {
    model.counts(port, &format!("verdicts.{}", VERDICTS[0]))
}

fn verdicts(model: &Model, port: &str) -> Vec<Line<'static>> {
    if !counts_verdicts(model, port) {
        return vec![head("verdicts are not counted here".into())];
    }
    let mut lines = vec![head(format!("{:<12} {:>10} {:>13}", "verdict", "a second", "total"))];
    let mut row = |name: &str, counter: &str| {
        let (rate, total) = (model.rate(port, |s| s.get(counter)), model.total(port, |s| s.get(counter)));
        lines.push(Line::from(format!("{name:<12} {:>10} {:>13}", short(rate), print::grouped(total))));
    };
    for verdict in VERDICTS {
        row(&verdict.to_uppercase(), &format!("verdicts.{verdict}"));
    }
    row("invalid", "invalid");
    lines
}

fn bursts(model: &Model, port: &str, width: u16) -> Vec<Line<'static>> {
    if !model.counts(port, &format!("burst_sizes.{}", BURSTS[0])) {
        return vec![head("bursts are not counted here".into())];
    }
    let counts = BURSTS.map(|size| model.rate(port, |s| s.get(&format!("burst_sizes.{size}"))));
    let all: f64 = counts.iter().sum();
    let mut lines = vec![head("packets in a burst, now".into())];
    let room = f64::from(width.saturating_sub(12));
    for (size, count) in BURSTS.iter().zip(counts) {
        let share = if all > 0.0 { count / all } else { 0.0 };
        let bar = "█".repeat((share * room).round() as usize);
        lines.push(Line::from(format!("≤{size:<3}{:>4.0} % {bar}", share * 100.0)));
    }
    lines
}

fn losses(model: &Model, port: &str) -> Vec<Line<'static>> {
    let mut lines = vec![head(format!("{:<18} {:>8} {:>9}", "lost, by reason", "a second", "total"))];
    let all = model.losses(port);
    if all.is_empty() {
        lines.push(Line::from("nothing"));
    }
    for (name, total, rate) in all {
        lines.push(Line::from(format!("{:<18} {:>8} {:>9}", fit(name, 18), short(rate), short(total as f64))));
    }
    lines
}

fn queues(model: &Model, port: &str, height: u16) -> Vec<Line<'static>> {
    let all = model.queues(port);
    if all.is_empty() {
        return vec![head("queues are not counted one by one here".into())];
    }
    let mut lines =
        vec![head(format!("{:>5} {:>6} {:>9} {:>8} {:>7}", "queue", "worker", "rx/s", "frames", "refused"))];
    let room = usize::from(height).saturating_sub(1).max(1);
    let hidden = if all.len() > room { all.len() - (room - 1) } else { 0 };
    for (queue, rate) in all.iter().take(all.len() - hidden) {
        let (out, refused) = (queue.get("pool.outstanding"), queue.get("pool.refused"));
        let (number, worker, rate) = (queue.queue, queue.worker, short(*rate));
        let refused = short(refused as f64);
        lines.push(Line::from(format!("{number:>5} {worker:>6} {rate:>9} {out:>8} {refused:>7}")));
    }
    if hidden > 0 {
        lines.push(Line::from(format!("  and {hidden} more")));
    }
    lines
}

fn programs_of(model: &Model, port: &str) -> Vec<Line<'static>> {
    let mut lines = vec![head(format!(
        "{:<18} {:>6} {:>10} {:>13} {:>13} {:>9}",
        "program", "id", "runs/s", "runs", "decided", "stopped"
    ))];
    let counted = counts_verdicts(model, port);
    let known = |number: u64| if counted { print::grouped(number) } else { "-".into() };
    for (program, rate) in model.programs(port).into_iter().take(PROGRAMS_MAX) {
        let decided: u64 = program.verdicts.iter().sum::<u64>() + program.invalid;
        lines.push(Line::from(format!(
            "{:<18} {:>6} {:>10} {:>13} {:>13} {:>9}",
            fit(&program.name, 18),
            program.id,
            short(rate),
            print::grouped(program.runs),
            known(decided),
            known(program.faults)
        )));
    }
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use xway_hook::{ProgramStatistics, QueueStatistics, Statistics};

    use super::super::model::Look;
    use super::*;

    fn statistics(turn: u64) -> Statistics {
        let numbers = |rx: u64| -> Vec<(String, u64)> {
            let all = [
                ("rx_packets", rx),
                ("tx_packets", rx / 4),
                ("verdicts.drop", rx / 2),
                ("verdicts.pass", rx / 8),
                ("verdicts.tx", rx / 4),
                ("verdicts.aborted", rx / 1000),
                ("invalid", 3),
                ("exceptions", 7),
                ("tx_full", rx / 100),
                ("redirect_err.ENETDOWN", 12),
                ("burst_sizes.1", rx / 1000),
                ("burst_sizes.8", rx / 500),
                ("burst_sizes.64", rx / 100),
                ("pool.outstanding", 192),
                ("pool.refused", 0),
            ];
            all.map(|(name, number)| (name.to_owned(), number)).to_vec()
        };
        let rx = turn * 1_500_000;
        let queue = |queue| QueueStatistics { queue, worker: queue % 2, counters: numbers(rx / 6) };
        let program = |id, name: &str| ProgramStatistics {
            id,
            name: name.into(),
            runs: rx,
            verdicts: [rx / 1000, rx / 2, rx / 8, rx / 4, 0],
            chained: 0,
            invalid: 3,
            faults: 7,
        };
        Statistics {
            counters: numbers(rx),
            queues: (0..6).map(queue).collect(),
            programs: vec![program(12, "count_packets"), program(14, "a_name_that_is_too_long")],
        }
    }

    fn model() -> Model {
        let mut model = Model::new("service /run/xway/control.sock".into());
        for turn in 1..=20 {
            let quiet = Statistics { counters: vec![("rx_packets".into(), turn * turn)], ..Statistics::default() };
            let ports = vec![("packet:eth0".into(), statistics(turn)), ("afxdp:a-long-interface-name".into(), quiet)];
            model.take(Look { secs: turn as f64, ports });
        }
        model
    }

    fn picture(width: u16, height: u16, model: &Model) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(width.into()).map(|row| row.concat().trim_end().to_owned() + "\n").collect()
    }

    #[track_caller]
    fn golden(name: &str, text: &str) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/top/").to_owned() + name;
        if std::env::var_os("XWAY_BLESS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        let remedy = "if the new picture is better: XWAY_BLESS=1 cargo test -p xway";
        assert!(expected == text, "{path}: {remedy}\n--- expected\n{expected}\n--- got\n{text}");
    }

    #[test]
    fn a_terminal_of_80_by_24_shows_everything() {
        golden("80x24.txt", &picture(80, 24, &model()));
    }

    #[test]
    fn a_wide_terminal_shows_more_of_the_past() {
        let mut model = model();
        model.go(1);
        golden("132x40.txt", &picture(132, 40, &model));
    }

    #[test]
    fn nothing_to_show_is_said() {
        let mut model = Model::new("kernel".into());
        assert!(picture(80, 24, &model).contains("no port is open"));
        model.trouble = Some("the service has gone: it is asked again".into());
        assert!(picture(80, 24, &model).contains("the service has gone"));
        // Terminals too small for anything must not end the program.
        for (width, height) in [(1, 1), (10, 3), (300, 2), (3, 60)] {
            picture(width, height, &self::model());
        }
    }
}
