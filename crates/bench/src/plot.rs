//! The table as a picture: one pair of bars for each case, on a logarithmic axis.
//!
//! Bars, lines and text are all that is needed: [`bars`] says where they are, [`Picture::svg`] writes them as text and
//! [`Picture::png`] draws them, with fonts that are part of the library and not of the machine.

use std::fmt::Write as _;

use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle, ascii};
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::prelude::Drawable;
use embedded_graphics::primitives::{Primitive, PrimitiveStyle, Rectangle};
use embedded_graphics::text::{Alignment, Text};

use crate::{Figures, Row};

/// Room for what is written in front of bars: a technique and a case.
const LEFT: f64 = 330.0;
const WIDTH: f64 = 560.0;
const ROW: f64 = 30.0;
const TOP: f64 = 50.0;
/// Ends of the axis, ns.
const FROM: f64 = 0.1;
/// Pixels of a raster picture for each of the units above.
const SCALE: f64 = 2.0;

const KERNEL: u32 = 0xb0_62_3a;
const OURS: u32 = 0x2f_6f_9f;
const GRID: u32 = 0xdd_dd_dd;
const AXIS: u32 = 0x55_55_55;
const BLACK: u32 = 0;

/// Shapes on white.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Picture {
    width: f64,
    height: f64,
    shapes: Vec<Shape>,
}

/// What a picture is made of. Positions are distances from the upper left corner, colours 0xRRGGBB.
#[derive(Clone, PartialEq, Debug)]
enum Shape {
    Bar {
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        colour: u32,
    },
    /// On a line of writing; `x` is its start, middle or end.
    Text {
        x: f64,
        y: f64,
        align: Align,
        large: bool,
        colour: u32,
        text: String,
    },
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Align {
    Start,
    Middle,
    End,
}

/// A pair of bars and what is written in front of them; `None` is not drawn.
struct Pair {
    label: String,
    ns: [Option<f64>; 2],
}

/// Bars of what a run costs on each side (the making of packets left out), case by case. Where our side was measured in several ways:
/// what each costs without one technique and with it, in the case in which that is worth most.
pub fn bars(rows: &[Row]) -> Picture {
    if rows.iter().any(|row| row.ours.len() > 1) {
        let title = "ns per packet (logarithmic), making the packet left out";
        return pairs(title, ["without", "as it is"], &techniques(rows));
    }
    let run = |side: Option<&Figures>| side.map(Figures::run);
    let pair = |row: &Row| Pair { label: row.case.name.clone(), ns: [run(row.kernel.as_ref()), run(row.ours.first())] };
    let title = "ns per packet (logarithmic), making the packet left out";
    pairs(title, ["kernel", "Expressway"], &rows.iter().map(pair).collect::<Vec<_>>())
}

/// For each way but the first the case that is slowed down most, of those whose code is another one then, and by what. A way that changes
/// none is not there: its bars would show how long the machine took for the same code.
fn techniques(rows: &[Row]) -> Vec<Pair> {
    let ways = rows.iter().map(|row| row.ours.len()).max().unwrap_or(0);
    let as_it_is = |row: &Row| row.as_it_is(Figures::run);
    let pair = |way: usize| {
        let ratio = |row: &&Row| row.ours[way].run() / as_it_is(row).max(FROM);
        let changed = rows.iter().filter(|row| row.ours.get(way).is_some_and(|f| !f.same_code));
        let most = changed.max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
        let ns = [Some(most.ours[way].run()), Some(as_it_is(most))];
        Some(Pair { label: format!("{}: {}", most.ours[way].technique(), most.case.name), ns })
    };
    (1..ways).filter_map(pair).collect()
}

fn pairs(title: &str, names: [&str; 2], rows: &[Pair]) -> Picture {
    let most = rows.iter().flat_map(|r| r.ns).flatten().fold(10.0, f64::max);
    let to = 10f64.powf(most.log10().ceil());
    let x = |ns: f64| LEFT + WIDTH * (ns.max(FROM) / FROM).log10() / (to / FROM).log10();
    let height = TOP + ROW * rows.len() as f64 + 30.0;
    let mut picture = Picture { width: LEFT + WIDTH + 60.0, height, shapes: Vec::new() };
    picture.title(title);
    for (n, (name, colour)) in names.into_iter().zip([KERNEL, OURS]).enumerate() {
        let at = LEFT + 350.0 + 90.0 * n as f64;
        picture.bar(at, 9.0, 10.0, 10.0, colour);
        picture.text(at + 14.0, 18.0, Align::Start, BLACK, name);
    }
    let mut tick = FROM;
    while tick <= to * 1.001 {
        picture.bar(x(tick) - 0.5, TOP, 1.0, height - 20.0 - TOP, GRID);
        picture.text(x(tick), TOP - 6.0, Align::Middle, AXIS, &tick.to_string());
        tick = (tick * 10.0 * 1000.0).round() / 1000.0;
    }
    for (n, row) in rows.iter().enumerate() {
        let y = TOP + ROW * n as f64 + 4.0;
        picture.text(LEFT - 8.0, y + 14.0, Align::End, BLACK, &row.label);
        for (place, (ns, colour)) in row.ns.into_iter().zip([KERNEL, OURS]).enumerate() {
            let Some(ns) = ns else { continue };
            let (end, y) = (x(ns), y + 11.0 * place as f64);
            picture.bar(LEFT, y, (end - LEFT).max(1.0), 10.0, colour);
            picture.text(end + 4.0, y + 9.0, Align::Start, BLACK, &figure(ns));
        }
    }
    picture
}

impl Picture {
    fn title(&mut self, text: &str) {
        let text = text.to_owned();
        self.shapes.push(Shape::Text { x: LEFT, y: 18.0, align: Align::Start, large: true, colour: BLACK, text });
    }

    fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, colour: u32) {
        self.shapes.push(Shape::Bar { x, y, width, height, colour });
    }

    fn text(&mut self, x: f64, y: f64, align: Align, colour: u32, text: &str) {
        self.shapes.push(Shape::Text { x, y, align, large: false, colour, text: text.to_owned() });
    }

    /// As an SVG document.
    pub fn svg(&self) -> String {
        let (width, height) = (self.width, self.height);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for shape in &self.shapes {
            let _ = match shape {
                Shape::Bar { x, y, width, height, colour } => writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"#{colour:06x}\"/>"
                ),
                Shape::Text { x, y, align, large, colour, text } => writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"#{colour:06x}\">{}</text>",
                    if *large { 13 } else { 11 },
                    align.anchor(),
                    escaped(text)
                ),
            };
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// As a PNG file, twice as many pixels as the SVG has units.
    pub fn png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut raster = Raster::new((self.width * SCALE) as u32, (self.height * SCALE) as u32);
        for shape in &self.shapes {
            raster.draw(shape);
        }
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, raster.width, raster.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header()?.write_image_data(&raster.pixels)?;
        Ok(file)
    }
}

impl Align {
    /// In SVG.
    fn anchor(self) -> &'static str {
        match self {
            Align::Start => "start",
            Align::Middle => "middle",
            Align::End => "end",
        }
    }
}

/// Pixels, three bytes each, row by row.
struct Raster {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Raster {
    fn new(width: u32, height: u32) -> Raster {
        Raster { width, height, pixels: vec![0xff; 3 * width as usize * height as usize] }
    }

    fn draw(&mut self, shape: &Shape) {
        let at = |x: f64, y: f64| Point::new((x * SCALE).round() as i32, (y * SCALE).round() as i32);
        // What lies outside is left out, and nothing else can go wrong.
        let Ok(()) = match shape {
            Shape::Bar { x, y, width, height, colour } => {
                let corner = at(x + width, y + height);
                Rectangle::with_corners(at(*x, *y), Point::new(corner.x - 1, corner.y - 1))
                    .into_styled(PrimitiveStyle::with_fill(rgb(*colour)))
                    .draw(self)
            }
            Shape::Text { x, y, align, large, colour, text } => {
                let font: &MonoFont<'_> = if *large { &ascii::FONT_10X20 } else { &ascii::FONT_9X18 };
                let align = match align {
                    Align::Start => Alignment::Left,
                    Align::Middle => Alignment::Center,
                    Align::End => Alignment::Right,
                };
                Text::with_alignment(text, at(*x, *y), MonoTextStyle::new(font, rgb(*colour)), align)
                    .draw(self)
                    .map(drop)
            }
        };
    }
}

impl DrawTarget for Raster {
    type Color = Rgb888;
    type Error = std::convert::Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Self::Error> {
        for Pixel(at, colour) in pixels {
            let (Ok(x), Ok(y)) = (u32::try_from(at.x), u32::try_from(at.y)) else { continue };
            if x < self.width && y < self.height {
                let first = 3 * (y as usize * self.width as usize + x as usize);
                self.pixels[first..first + 3].copy_from_slice(&[colour.r(), colour.g(), colour.b()]);
            }
        }
        Ok(())
    }
}

impl OriginDimensions for Raster {
    fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }
}

fn rgb(colour: u32) -> Rgb888 {
    let [_, r, g, b] = colour.to_be_bytes();
    Rgb888::new(r, g, b)
}

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

    fn picture() -> Picture {
        let stat = |median| Stat { median, low: median, high: median };
        let side = |ns| Figures { program: stat(ns), ..Figures::default() };
        let row = |name: &str, kernel, ours| Row {
            compiled: None,
            not_compiled: None,
            case: Case::new(name, "simple", "empty"),
            insns: 2,
            ring: 64,
            kernel: Some(side(kernel)),
            ours: vec![side(ours)],
            checked: Checked::default(),
            filled: Vec::new(),
        };
        bars(&[row("a <b>", 100.0, 1.0), row("c", 10.0, 0.1)])
    }

    #[test]
    fn longer_times_have_longer_bars() {
        let bar = |shape: &Shape| match shape {
            Shape::Bar { width, height: 10.0, .. } => Some(*width),
            _ => None,
        };
        // Two squares of the legend, then kernel and ours of each case.
        let widths: Vec<f64> = picture().shapes.iter().filter_map(bar).skip(2).collect();
        let [a, b, c, d] = widths[..] else { panic!("{widths:?}") };
        assert!(a > c && c > b && b > d, "{widths:?}");
    }

    /// A case that was measured in these ways.
    fn timed<const N: usize>(name: &str, ways: [&str; N], ns: [f64; N]) -> Row {
        let stat = |median| Stat { median, low: median, high: median };
        // A way whose name ends so has the first one's code.
        let side = |(way, ns): (&str, f64)| {
            let (side, same_code) = way.strip_suffix(" =").map_or((way, false), |side| (side, true));
            Figures { side: side.to_owned(), program: stat(ns), same_code, ..Figures::default() }
        };
        Row {
            compiled: None,
            not_compiled: None,
            case: Case::new(name, "simple", "empty"),
            insns: 2,
            ring: 64,
            kernel: None,
            ours: ways.into_iter().zip(ns).map(side).collect(),
            checked: Checked::default(),
            filled: Vec::new(),
        }
    }

    #[test]
    fn each_technique_is_shown_where_it_is_worth_most() {
        let row = |name, ns| timed(name, ["jit", "jit without slots", "jit, every pass off"], ns);
        let svg = bars(&[row("first", [2.0, 3.0, 4.0]), row("second", [10.0, 11.0, 60.0])]).svg();
        let shown: Vec<&str> = svg.lines().filter(|l| l.contains(": ") && l.contains("end")).collect();
        assert!(shown[0].contains(">slots: first<") && shown[1].contains(">every pass off: second<"), "{shown:?}");
        assert!(svg.contains(">without<") && svg.contains(">60<"), "{svg}");
    }

    /// A run with all passes that went astray, beside ways of the same code: `a` is worth something elsewhere, `b` changes the code of
    /// one case and `c` of none.
    #[test]
    fn what_the_machine_does_is_nobodys_gain() {
        let other = ["jit", "jit without a =", "jit without b", "jit without c =", "jit without d ="];
        let odd = timed("odd", other, [1.0, 9.0, 5.1, 5.0, 5.0]);
        let even = ["jit", "jit without a", "jit without b =", "jit without c =", "jit without d"];
        let svg = bars(&[odd, timed("even", even, [4.0, 8.0, 40.0, 4.0, 3.9])]).svg();
        assert!(svg.contains(">a: even<") && svg.contains(">b: odd<") && svg.contains(">d: even<"), "{svg}");
        assert!(!svg.contains(">c: ") && !svg.contains(">1.0<") && !svg.contains(">9.0<"), "{svg}");
    }

    #[test]
    fn svg_is_text_with_names_escaped() {
        let svg = picture().svg();
        assert!(svg.contains("a &lt;b>") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<rect").count(), picture().shapes.len() + 1 - svg.matches("<text").count());
    }

    #[test]
    fn png_has_the_same_shapes_in_pixels() {
        let (picture, file) = (picture(), picture().png().unwrap());
        let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), ((picture.width * SCALE) as u32, (picture.height * SCALE) as u32));
        let count = |colour: u32| pixels.chunks(3).filter(|p| **p == colour.to_be_bytes()[1..]).count();
        // Every pixel of the kernel's bars: the legend's square and 100 ns of four decades from 0.1 on, 10 ns of the same.
        let area = |shape: &Shape| match shape {
            Shape::Bar { width, height, colour: KERNEL, .. } => width * height * SCALE * SCALE,
            _ => 0.0,
        };
        let want: f64 = picture.shapes.iter().map(area).sum();
        assert!((count(KERNEL) as f64 / want - 1.0).abs() < 0.02, "{} of {want}", count(KERNEL));
        // Letters are black, and most is white.
        assert!(count(BLACK) > 500 && count(0xff_ff_ff) > pixels.len() / 3 / 2);
    }
}
