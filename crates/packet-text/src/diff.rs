//! Two packets side by side: which bytes differ, and which header fields they belong to.

use std::fmt;

use crate::dissect::{Layer, dissect, summary};

/// Rows of sixteen bytes that are shown at most.
const ROWS_MAX: usize = 32;
/// Fields that are listed at most.
const FIELDS_MAX: usize = 40;

/// How two packets differ. Its `Display` is the readable form, several lines without colours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    expected: Vec<u8>,
    got: Vec<u8>,
    names: [&'static str; 2],
    /// Places of bytes that differ, or that only one packet has.
    pub offsets: Vec<usize>,
}

/// Compares two packets; `None` when they are equal.
pub fn diff(expected: &[u8], got: &[u8]) -> Option<Difference> {
    if expected == got {
        return None;
    }
    let offsets = (0..expected.len().max(got.len())).filter(|&i| expected.get(i) != got.get(i)).collect();
    Some(Difference { expected: expected.to_vec(), got: got.to_vec(), names: ["expected", "got"], offsets })
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (e, g) = (&self.expected, &self.got);
        let [first, second] = self.names;
        let width = first.len().max(second.len());
        writeln!(f, "{first:>width$} {} bytes: {}", e.len(), summary(e))?;
        writeln!(f, "{second:>width$} {} bytes: {}", g.len(), summary(g))?;
        writeln!(f, "{} differ:", plural(self.offsets.len(), "byte"))?;
        self.fields(f)?;
        self.rows(f)
    }
}

impl Difference {
    /// The same with other words for the first and the second packet, which are "expected" and "got".
    pub fn named(mut self, first: &'static str, second: &'static str) -> Difference {
        self.names = [first, second];
        self
    }

    /// The fields that differ, with both values. Only meaningful where both packets have the same headers.
    fn fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = (dissect(&self.expected), dissect(&self.got));
        let mut lines = Vec::new();
        for (expected, got) in a.iter().zip(&b) {
            if !same_shape(expected, got) {
                break;
            }
            for (x, y) in expected.fields.iter().zip(&got.fields) {
                if x.value != y.value {
                    let name = format!("{}.{}", expected.name, x.name);
                    lines.push(format!("  {:#06x}  {name:<22} {:<28} {}", x.range.start, x.value, y.value));
                }
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        let [first, second] = self.names;
        writeln!(f, "  {:<6}  {:<22} {first:<28} {second}", "offset", "field")?;
        for line in lines.iter().take(FIELDS_MAX) {
            writeln!(f, "{line}")?;
        }
        if lines.len() > FIELDS_MAX {
            writeln!(f, "  … and {} more fields", lines.len() - FIELDS_MAX)?;
        }
        Ok(())
    }

    /// Rows of sixteen bytes that differ: `-` of the first packet, `+` of the second, and a line of carets under the bytes.
    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<usize> = self.offsets.iter().map(|o| o / 16).collect();
        rows.dedup();
        for row in rows.iter().take(ROWS_MAX) {
            let at = row * 16;
            for (mark, packet) in [('-', &self.expected), ('+', &self.got)] {
                writeln!(f, "{}", format!("{mark} {at:04x}: {}", hex_row(packet, at)).trim_end())?;
            }
            let marks: String =
                (at..at + 16).map(|i| if self.offsets.binary_search(&i).is_ok() { "^^ " } else { "   " }).collect();
            writeln!(f, "        {}", marks.trim_end())?;
        }
        if rows.len() > ROWS_MAX {
            writeln!(f, "  … and {} more rows of 16 bytes", rows.len() - ROWS_MAX)?;
        }
        Ok(())
    }
}

/// A packet as rows of sixteen bytes with their offsets.
pub fn hex_rows(packet: &[u8]) -> String {
    (0..packet.len()).step_by(16).map(|at| format!("{at:04x}: {}\n", hex_row(packet, at))).collect()
}

fn hex_row(packet: &[u8], at: usize) -> String {
    let row = packet.get(at..(at + 16).min(packet.len())).unwrap_or(&[]);
    row.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

fn same_shape(a: &Layer, b: &Layer) -> bool {
    a.name == b.name && a.range.start == b.range.start
}

fn plural(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
