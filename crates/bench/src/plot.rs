//! The table as a picture: one pair of bars for each case, on a logarithmic axis. SVG written by hand: bars, lines and text
//! are all that is needed.

use std::fmt::Write as _;

use crate::{Figures, Row};

const LEFT: f64 = 240.0;
const WIDTH: f64 = 560.0;
const ROW: f64 = 30.0;
const TOP: f64 = 50.0;
/// Ends of the axis, ns.
const FROM: f64 = 0.1;

/// Bars of what a run costs on each side (the making of packets left out), case by case.
pub fn bars(rows: &[Row]) -> String {
    let all = || rows.iter().flat_map(|r| r.kernel.iter().chain(r.ours.first()));
    let most = all().map(Figures::run).fold(10.0, f64::max);
    let to = 10f64.powf(most.log10().ceil());
    let x = |ns: f64| LEFT + WIDTH * (ns.max(FROM) / FROM).log10() / (to / FROM).log10();
    let height = TOP + ROW * rows.len() as f64 + 30.0;
    let total = LEFT + WIDTH + 60.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total} {height}\" width=\"{total}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"13\">ns per packet (logarithmic), making the packet left out</text>\n"
    );
    let mut add = |text: String| svg.push_str(&text);
    for (n, (name, colour)) in [("kernel", KERNEL), ("Expressway", OURS)].into_iter().enumerate() {
        let at = LEFT + 350.0 + 90.0 * n as f64;
        add(format!("<rect x=\"{at}\" y=\"9\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"));
        add(format!("<text x=\"{}\" y=\"18\">{name}</text>\n", at + 14.0));
    }
    let mut tick = FROM;
    while tick <= to * 1.001 {
        let at = x(tick);
        let bottom = height - 20.0;
        add(format!("<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>"));
        add(format!("<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{tick}</text>\n", TOP - 6.0));
        tick = (tick * 10.0 * 1000.0).round() / 1000.0;
    }
    for (n, row) in rows.iter().enumerate() {
        let y = TOP + ROW * n as f64 + 4.0;
        let name = escaped(&row.case.name);
        add(format!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\n", LEFT - 8.0, y + 14.0));
        let sides = [(row.kernel.as_ref(), KERNEL), (row.ours.first(), OURS)];
        for (place, (side, colour)) in sides.into_iter().enumerate() {
            let Some(side) = side else { continue };
            let (end, y) = (x(side.run()), y + 11.0 * place as f64);
            let width = (end - LEFT).max(1.0);
            add(format!("<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"10\" fill=\"{colour}\"/>"));
            add(format!("<text x=\"{:.1}\" y=\"{}\">{}</text>\n", end + 4.0, y + 9.0, figure(side.run())));
        }
    }
    let _ = writeln!(svg, "</svg>");
    svg
}

const KERNEL: &str = "#b0623a";
const OURS: &str = "#2f6f9f";

fn figure(ns: f64) -> String {
    if ns >= 10.0 { format!("{ns:.0}") } else { format!("{ns:.1}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Checked;
    use crate::{Case, Stat};

    #[test]
    fn longer_times_have_longer_bars() {
        let stat = |median| Stat { median, low: median, high: median };
        let side = |ns| Figures { program: stat(ns), ..Figures::default() };
        let row = |name: &str, kernel, ours| Row {
            compiled: None,
            case: Case::new(name, "simple", "empty"),
            insns: 2,
            ring: 64,
            kernel: Some(side(kernel)),
            ours: vec![side(ours)],
            checked: Checked::default(),
        };
        let svg = bars(&[row("a <b>", 100.0, 1.0), row("c", 10.0, 0.1)]);
        let widths: Vec<f64> = svg
            .split("height=\"10\" fill=\"#")
            .filter_map(|part| part.rsplit_once("width=\"")?.1.split('"').next()?.parse().ok())
            .collect();
        // Two squares of the legend, then kernel and ours of each case; the last piece is what follows.
        let bars = &widths[2..6];
        assert!(bars[0] > bars[2] && bars[2] > bars[1] && bars[1] > bars[3], "{widths:?}");
        assert!(svg.contains("a &lt;b>") && svg.trim_end().ends_with("</svg>"));
    }
}
