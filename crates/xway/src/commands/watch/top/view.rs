//! The picture: a model to characters. Knows no terminal, so that tests can look at it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use xway_hook::{ProgramStatistics, QueueStatistics};

use super::model::{BURSTS, Model, VERDICTS};
use crate::print;

/// Rows of what is always there beside the verdicts: the title, the heads of the ports and of the selected one, the keys.
const FIXED: usize = 4;
/// Rows of verdicts and bursts, with their heads; fewer where a port would have no row.
const BLOCK: usize = 8;
/// Columns of a half from which the queues are shown with what their pools have.
const WIDE: u16 = 56;
/// Columns of a half at least: on a screen that has no room for two, lists stand one below the other, and bursts are left out.
const HALF: u16 = 39;
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

/// How many rows each list gets. The height decides: a list that has more than its rows says so, or shows what counts first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rows {
    /// Verdicts and bursts, side by side.
    block: usize,
    ports: usize,
    /// Losses and queues, side by side, with their heads.
    lower: usize,
    programs: usize,
}

impl Rows {
    /// For a screen of so many rows, and lists that want so many.
    fn of(height: usize, want: Rows) -> Rows {
        let fixed = FIXED + usize::from(want.programs > 0);
        let block = want.block.min(height.saturating_sub(fixed + 1));
        let heads = fixed + block;
        let mut left = height.saturating_sub(heads);
        let mut rows = Rows { block, ports: 0, lower: 0, programs: 0 };
        // A port, two rows of losses and a program before anything else; then in turns, until all have what they want.
        for turn in 0.. {
            let before = left;
            for (has, wants, least) in [
                (&mut rows.ports, want.ports.max(1), 1),
                (&mut rows.lower, want.lower.max(2), 2),
                (&mut rows.programs, want.programs, 1),
            ] {
                let step = if turn == 0 { least } else { 1 };
                let more = step.min(wants - *has).min(left);
                (*has, left) = (*has + more, left - more);
            }
            if left == before {
                break;
            }
        }
        // What nobody wants stays below the losses, so that the programs stand at the end.
        Rows { lower: rows.lower + left, ..rows }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    let selected = model.selected().map(|(_, name)| name.to_owned());
    let of = |count: &dyn Fn(&str) -> usize| selected.as_deref().map_or(0, count);
    let narrow = area.width < 2 * HALF;
    let lower = |port: &str| {
        let (losses, queues) = (model.losses(port).len().max(1), model.queues(port).len().max(1));
        if narrow { losses + 1 + queues } else { losses.max(queues) }
    };
    let want = Rows {
        block: BLOCK,
        ports: model.names().count(),
        lower: 1 + of(&lower),
        programs: of(&|port| model.programs(port).len()),
    };
    let plan = Rows::of(area.height.into(), want);
    let length = |rows: usize| Constraint::Length(rows.try_into().unwrap_or(u16::MAX));
    let rows = Layout::vertical([
        Constraint::Length(1),
        length(1 + plan.ports),
        Constraint::Length(1),
        length(plan.block),
        length(plan.lower),
        length(if plan.programs > 0 { 1 + plan.programs } else { 0 }),
        Constraint::Length(1),
    ])
    .split(area);
    let put =
        |frame: &mut Frame<'_>, lines: Vec<Line<'static>>, at: Rect| frame.render_widget(Paragraph::new(lines), at);

    put(frame, vec![title(format!(" xway top · {}", model.title), area.width)], rows[0]);
    put(frame, ports(model, rows[1].width, plan.ports), rows[1]);
    let lost: Vec<&str> = model.names().filter(|name| model.lost(name).is_some()).collect();
    let keys = match &model.trouble {
        Some(trouble) => format!(" {trouble}"),
        None if lost.is_empty() => " q quit   ↑↓ another port".to_owned(),
        None => format!(" q quit   ↑↓ another port   ! lost: {}", lost.join(", ")),
    };
    put(frame, vec![title(keys, area.width)], rows[6]);
    let Some(port) = selected else {
        put(frame, vec![Line::from("no port is open, or none has a program")], rows[2]);
        return;
    };
    let why = model.lost(&port).map(|why| format!("{why} ")).unwrap_or_default();
    put(frame, vec![head(format!("─── {port} {why}{}", "─".repeat(usize::from(area.width))))], rows[2]);
    if narrow {
        let half = plan.lower.saturating_sub(1 + model.queues(&port).len()).max(plan.lower / 2);
        let lower = Layout::vertical([length(half), length(plan.lower - half)]).split(rows[4]);
        put(frame, verdicts(model, &port), rows[3]);
        put(frame, losses(model, &port, half), lower[0]);
        put(frame, queues(model, &port, (lower[1].width, plan.lower - half)), lower[1]);
    } else {
        let halves =
            |area: Rect| Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).split(area);
        let (upper, lower) = (halves(rows[3]), halves(rows[4]));
        put(frame, verdicts(model, &port), upper[0]);
        put(frame, bursts(model, &port, upper[1].width), upper[1]);
        put(frame, losses(model, &port, plan.lower), lower[0]);
        put(frame, queues(model, &port, (lower[1].width, plan.lower)), lower[1]);
    }
    put(frame, programs_of(model, &port, plan.programs, rows[5].width), rows[5]);
}

/// Names of columns and how wide they are, those that are left out last first; what they are shown in is the order of their numbers.
type Columns<const N: usize> = [(usize, &'static str, usize); N];

/// As many of the columns as fit, in the order in which they are shown.
fn fitting<const N: usize>(columns: &Columns<N>, room: usize) -> Vec<(usize, &'static str, usize)> {
    let mut left = room;
    let fits = |column: &&(usize, &str, usize)| {
        let fits = column.2 < left;
        left = if fits { left - column.2 - 1 } else { 0 };
        fits
    };
    let mut shown: Vec<_> = columns.iter().take_while(fits).copied().collect();
    shown.sort_by_key(|(place, ..)| *place);
    shown
}

const PORTS: Columns<5> = [(0, "rx/s", 9), (4, "lost/s", 9), (2, "drop/s", 9), (1, "tx/s", 9), (3, "redir/s", 9)];

fn ports(model: &Model, width: u16, listed: usize) -> Vec<Line<'static>> {
    let shown = fitting(&PORTS, usize::from(width).saturating_sub(18));
    let heads: String = shown.iter().map(|(_, name, wide)| format!(" {name:>wide$}")).collect();
    let mut lines = vec![head(format!("  {:<16}{heads}  packets in", "port"))];
    let at = model.selected().map_or(0, |(at, _)| at);
    // The selected one is always among them.
    let first = (at + 1).saturating_sub(listed);
    for (number, name) in model.names().enumerate().skip(first).take(listed) {
        let rate = |counter: &str| short(model.rate(name, |s| s.get(counter)));
        let lost = short(model.rate(name, |s| s.losses().map(|(_, number)| number).sum()));
        let mark = if number == at { '▶' } else { ' ' };
        let numbers = [rate("rx_packets"), rate("tx_packets"), rate("verdicts.drop"), rate("redirected"), lost];
        let numbers: String = shown.iter().map(|(at, _, wide)| format!(" {:>wide$}", numbers[*at])).collect();
        let room = usize::from(width).saturating_sub(18 + 10 * shown.len() + 2);
        let sign = if model.lost(name).is_some() { '!' } else { ' ' };
        let past = spark(&model.history(name), room);
        lines.push(Line::from(format!("{mark}{sign}{:<16}{numbers}  {past}", fit(name, 16))));
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

/// A list in so many rows: when it does not fit, the last row says how many there are besides.
fn listed<T>(all: Vec<T>, room: usize, line: impl FnMut(T) -> String) -> Vec<Line<'static>> {
    let hidden = if all.len() > room { all.len() + 1 - room.max(1) } else { 0 };
    let shown = all.len() - hidden;
    let mut lines: Vec<_> = all.into_iter().take(shown).map(line).map(Line::from).collect();
    if hidden > 0 {
        lines.push(Line::from(format!("  and {hidden} more")));
    }
    lines
}

fn losses(model: &Model, port: &str, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![head(format!("{:<18} {:>8} {:>9}", "lost, by reason", "a second", "total"))];
    let all = model.losses(port);
    if all.is_empty() {
        lines.push(Line::from("nothing"));
    }
    let line = |(name, total, rate): (&str, u64, f64)| {
        // Exact as far as the column goes.
        let total = if total < 10_000_000 { print::grouped(total) } else { short(total as f64) };
        format!("{:<18} {:>8} {total:>9}", fit(name, 18), short(rate))
    };
    lines.extend(listed(all, height.saturating_sub(1), line));
    lines
}

/// Queues with what their pools have: where there is room also how near each is to its limit, from where on it refuses.
fn queues(model: &Model, port: &str, (width, height): (u16, usize)) -> Vec<Line<'static>> {
    let all = model.queues(port);
    if all.is_empty() {
        return vec![head("queues are not counted one by one here".into())];
    }
    let wide = width >= WIDE;
    // Where there is no room for both, how near the limit is says more than how many are away.
    let away = if wide { "frames" } else { "pool" };
    let mut first = format!("{:>5} {:>6} {:>9} {away:>8} {:>7}", "queue", "worker", "rx/s", "refused");
    if wide {
        first += "  pool in use";
    }
    let bar = usize::from(width.saturating_sub(39 + 2 + 6)).min(32);
    let line = |(queue, rate): (&QueueStatistics, f64)| {
        let [out, limit, refused] = ["outstanding", "limit", "refused"].map(|name| queue.get(&format!("pool.{name}")));
        let (number, worker, rate, refused) = (queue.queue, queue.worker, short(rate), short(refused as f64));
        let share = out as f64 / limit.max(1) as f64;
        let away = if wide || limit == 0 { out.to_string() } else { format!("{:.0} %", share * 100.0) };
        let mut text = format!("{number:>5} {worker:>6} {rate:>9} {away:>8} {refused:>7}");
        if wide && limit > 0 {
            let used = "█".repeat((share * bar as f64).ceil() as usize);
            text += &format!("  {:>3.0} % {used}", share * 100.0);
        }
        text
    };
    let mut lines = vec![head(first)];
    lines.extend(listed(all, height.saturating_sub(1), line));
    lines
}

const PROGRAMS: Columns<5> = [(0, "id", 6), (1, "runs/s", 10), (2, "runs", 13), (4, "stopped", 9), (3, "decided", 13)];

fn programs_of(model: &Model, port: &str, height: usize, width: u16) -> Vec<Line<'static>> {
    let shown = fitting(&PROGRAMS, usize::from(width).saturating_sub(18));
    let heads: String = shown.iter().map(|(_, name, wide)| format!(" {name:>wide$}")).collect();
    let mut lines = vec![head(format!("{:<18}{heads}", "program"))];
    let counted = counts_verdicts(model, port);
    let known = |number: u64| if counted { print::grouped(number) } else { "-".into() };
    let line = |(program, rate): (&ProgramStatistics, f64)| {
        let decided: u64 = program.verdicts.iter().sum::<u64>() + program.invalid;
        let (runs, id) = (print::grouped(program.runs), program.id.to_string());
        let numbers = [id, short(rate), runs, known(decided), known(program.faults)];
        let numbers: String = shown.iter().map(|(at, _, wide)| format!(" {:>wide$}", numbers[*at])).collect();
        format!("{:<18}{numbers}", fit(&program.name, 18))
    };
    lines.extend(listed(model.programs(port), height, line));
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use xway_hook::Statistics;

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
                ("pool.limit", 1024),
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
            model.take(Look { secs: turn as f64, ports, ..Look::default() });
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

    /// A machine with more of everything than a small terminal has rows for.
    fn busy() -> Model {
        let mut model = Model::new("service /run/xway/control.sock".into());
        for turn in 1..=20 {
            let mut first = statistics(turn);
            first.programs = (0..9)
                .map(|n| ProgramStatistics { id: 20 + n, name: format!("stage_{n}"), ..first.programs[0].clone() })
                .collect();
            let quiet = |rx| Statistics { counters: vec![("rx_packets".into(), rx)], ..Statistics::default() };
            let mut ports = vec![("packet:eth0".to_owned(), first)];
            ports.extend((1..12).map(|n| (format!("tap:vm{n}"), quiet(turn * n))));
            model.take(Look { secs: turn as f64, ports, ..Look::default() });
        }
        model
    }

    #[test]
    fn a_narrow_terminal_has_one_list_below_the_other_and_nothing_cut_off() {
        golden("40x40.txt", &picture(40, 40, &model()));
        for width in 40..2 * HALF {
            let text = picture(width, 40, &model());
            // What a column would show is there whole or not at all.
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(width), "{text}");
            }
            for whole in ["rx/s", "lost/s", "DROP", "lost, by reason", "refused", "runs/s", "count_packets"] {
                assert!(text.contains(whole), "{whole} at {width}:\n{text}");
            }
        }
    }

    #[test]
    fn a_port_that_is_lost_is_marked_and_says_why() {
        let mut model = model();
        let ports = vec![("packet:eth0".into(), statistics(21)), ("afxdp:e1".into(), statistics(21))];
        let lost = [("afxdp:e1".to_owned(), "detached: somebody took the program".to_owned())].into();
        model.take(Look { secs: 21.0, ports, lost });
        let text = picture(80, 24, &model);
        assert!(
            text.contains(" !afxdp:e1") && text.contains("! lost: afxdp:e1") && !text.contains("!packet"),
            "{text}"
        );
        model.go(1);
        let text = picture(80, 24, &model);
        assert!(text.contains("─── afxdp:e1 detached: somebody took the program ─"), "{text}");
    }

    #[test]
    fn the_height_decides_how_much_is_listed() {
        let pictures = [(80, 24), (132, 40), (132, 60)].map(|(width, height)| picture(width, height, &busy()));
        golden("132x40-busy.txt", &pictures[1]);
        let count = |text: &str, what: &str| text.lines().filter(|line| line.contains(what)).count();
        for text in &pictures {
            assert!(count(text, "packet:eth0 ") == 2 && count(text, "q quit") == 1, "{text}");
        }
        let listed = pictures.each_ref().map(|text| (count(text, "  tap:vm"), count(text, "stage_")));
        assert!(listed[0].0 < listed[1].0 && listed[0].1 < listed[1].1, "{listed:?}");
        assert_eq!(listed[2], (11, 9), "all of them where there is room");
        assert!(pictures[0].contains(" more") && !pictures[2].contains(" more"), "{}", pictures[2]);
        // The selected port is among those that are listed.
        let mut model = busy();
        model.go(11);
        assert!(picture(80, 24, &model).contains("▶ tap:vm11"));
        assert!(picture(80, 24, &busy()).lines().all(|line| !line.contains("pool in use")));
        assert!(pictures[1].contains(" 19 % █"), "{}", pictures[1]);
    }

    #[test]
    fn rows_add_up_on_every_screen() {
        for height in 0..80 {
            for (ports, lower, programs) in [(0, 2, 0), (1, 2, 1), (3, 7, 2), (40, 40, 40), (2, 2, 30)] {
                let rows = Rows::of(height, Rows { block: BLOCK, ports, lower, programs });
                let heads = FIXED + rows.block + usize::from(programs > 0);
                assert!(rows.ports > 0 || height <= FIXED + usize::from(programs > 0), "{height} {rows:?}");
                assert_eq!(rows.ports + rows.lower + rows.programs, height.saturating_sub(heads), "{height} {rows:?}");
            }
        }
    }

    #[test]
    fn nothing_to_show_is_said() {
        let mut model = Model::new("kernel".into());
        assert!(picture(80, 24, &model).contains("no port is open"));
        model.trouble = Some("the service has gone: it is asked again".into());
        assert!(picture(80, 24, &model).contains("the service has gone"));
        // What there is of a port comes before how much there was of it.
        let small = picture(40, 10, &self::model());
        assert_eq!(small.matches("packet:eth0").count(), 2, "its row and its head: {small}");
        // Terminals too small for anything must not end the program.
        for (width, height) in [(1, 1), (10, 3), (300, 2), (3, 60)] {
            picture(width, height, &self::model());
        }
    }
}
