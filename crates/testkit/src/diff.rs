//! Byte strings side by side.

use std::fmt::Write;

/// Lower-case hex without separators.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A table of the rows of sixteen bytes that differ, `None` when the strings are equal.
///
/// `left` and `right` name the two sides. Cost: linear in the longer one.
pub fn diff_bytes(left: &str, a: &[u8], right: &str, b: &[u8]) -> Option<String> {
    if a == b {
        return None;
    }
    let mut text = String::new();
    if a.len() != b.len() {
        let _ = writeln!(text, "length: {left} {}, {right} {}", a.len(), b.len());
    }
    let width = left.len().max(right.len());
    for at in (0..a.len().max(b.len())).step_by(16) {
        let (row_a, row_b) = (row(a, at), row(b, at));
        if row_a != row_b {
            let _ = writeln!(text, "{at:#06x} {left:>width$}: {}", spaced(row_a));
            let _ = writeln!(text, "       {right:>width$}: {}", spaced(row_b));
        }
    }
    Some(text)
}

fn row(bytes: &[u8], at: usize) -> &[u8] {
    &bytes[at.min(bytes.len())..(at + 16).min(bytes.len())]
}

fn spaced(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_differ_are_shown() {
        let a: Vec<u8> = (0..40).collect();
        let mut b = a.clone();
        assert_eq!(diff_bytes("ours", &a, "kernel", &b), None);
        b[20] = 0xff;
        b.pop();
        let text = diff_bytes("ours", &a, "kernel", &b).unwrap();
        assert!(text.contains("length: ours 40, kernel 39"));
        assert!(text.contains("0x0010   ours: 10 11 12 13 14 15"));
        assert!(!text.contains("0x0000"));
    }
}
