//! Values of `extern … __kconfig` variables, from the text of a kernel configuration.

use std::collections::HashMap;

use crate::btf::{Btf, IntEncoding, Kind};

/// The `CONFIG_` lines that are wanted, by name. Linear cost in the text; nothing else of it is kept.
pub(crate) fn pick<'t>(text: &'t str, wanted: impl Iterator<Item = &'t str>) -> HashMap<&'t str, &'t str> {
    let mut out: HashMap<&str, &str> = wanted.map(|name| (name, "")).collect();
    for line in text.lines() {
        if let Some((name, value)) = line.trim().split_once('=')
            && let Some(slot) = out.get_mut(name)
        {
            *slot = value;
        }
    }
    out.retain(|_, value| !value.is_empty());
    out
}

/// How a variable holds its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Char,
    Bool,
    /// `enum libbpf_tristate`: no, yes, module.
    Tristate,
    Int {
        signed: bool,
    },
    Text,
}

/// Writes a configuration value (`y`, `n`, `m`, a number, a quoted text) as the variable of type `ty` holds it.
pub(crate) fn encode(btf: &Btf, ty: u32, value: &str, out: &mut [u8]) -> Result<(), String> {
    let shape =
        shape(btf, ty).ok_or_else(|| format!("its type `{}` cannot hold a configuration value", btf.type_name(ty)))?;
    let misfit = || format!("the value {value} does not fit its type `{}`", btf.type_name(ty));
    if let Some(text) = value.strip_prefix('"') {
        let text = text.strip_suffix('"').ok_or_else(misfit)?;
        if shape != Shape::Text {
            return Err(misfit());
        }
        // As libbpf does: cut to what fits, always terminated.
        let len = text.len().min(out.len().saturating_sub(1));
        out[..len].copy_from_slice(&text.as_bytes()[..len]);
        return Ok(());
    }
    let number: i128 = match (shape, value) {
        (Shape::Char, "y" | "n" | "m") => i128::from(value.as_bytes()[0]),
        (Shape::Bool | Shape::Tristate, "n") => 0,
        (Shape::Bool | Shape::Tristate, "y") => 1,
        (Shape::Tristate, "m") => 2,
        (Shape::Bool, "0" | "1") | (Shape::Int { .. } | Shape::Char, _) => parse(value).ok_or_else(misfit)?,
        _ => return Err(misfit()),
    };
    let bits = out.len() as u32 * 8;
    let fits = match shape {
        Shape::Int { signed: true } => number >= -(1 << (bits - 1)) && number < 1 << (bits - 1),
        _ => number >= 0 && number < 1 << bits,
    };
    if !fits {
        return Err(misfit());
    }
    out.copy_from_slice(&number.to_le_bytes()[..out.len()]);
    Ok(())
}

fn parse(value: &str) -> Option<i128> {
    let (negative, digits) = value.strip_prefix('-').map_or((false, value), |rest| (true, rest));
    let number = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { -i128::from(number) } else { i128::from(number) })
}

fn shape(btf: &Btf, ty: u32) -> Option<Shape> {
    let (_, ty) = btf.resolve(ty).ok()?;
    match ty.kind {
        Kind::Int(i) => match (i.encoding, i.size) {
            (IntEncoding::Bool, 1) => Some(Shape::Bool),
            (IntEncoding::Bool, _) => None,
            (_, 1) => Some(Shape::Char),
            (encoding, 2 | 4 | 8) => Some(Shape::Int { signed: encoding == IntEncoding::Signed }),
            _ => None,
        },
        Kind::Enum(e) if e.size == 4 && ty.name == "libbpf_tristate" => Some(Shape::Tristate),
        Kind::Array(a) if a.len != 0 && btf.size_of(a.element) == Ok(1) => {
            (shape(btf, a.element)? == Shape::Char).then_some(Shape::Text)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::BtfBuilder;

    #[test]
    fn values_take_the_shape_of_their_variable() {
        let mut b = BtfBuilder::new();
        let int = b.int("int", 4, IntEncoding::Signed);
        let short = b.int("unsigned short", 2, IntEncoding::Unsigned);
        let boolean = b.int("_Bool", 1, IntEncoding::Bool);
        let chr = b.int("char", 1, IntEncoding::Signed);
        let text = b.array(chr, int, 6);
        let tri = b.enumeration("libbpf_tristate", 4, false, &[("TRI_NO", 0), ("TRI_YES", 1), ("TRI_MODULE", 2)]);
        let btf = b.finish();
        let get = |ty, value: &str| {
            let mut out = vec![0; btf.size_of(ty).unwrap() as usize];
            encode(&btf, ty, value, &mut out).map(|()| out)
        };
        assert_eq!(get(int, "-3").unwrap(), (-3i32).to_le_bytes());
        assert_eq!(get(int, "0x10").unwrap(), 16i32.to_le_bytes());
        assert_eq!(get(boolean, "y").unwrap(), [1]);
        assert_eq!(get(tri, "m").unwrap(), 2u32.to_le_bytes());
        assert_eq!(get(chr, "m").unwrap(), [b'm']);
        assert_eq!(get(text, "\"abcdefgh\"").unwrap(), *b"abcde\0");
        assert!(get(boolean, "m").is_err());
        assert!(get(int, "y").is_err());
        assert!(get(short, "65536").is_err());
        assert!(get(short, "-1").is_err());
        assert!(get(text, "5").is_err());
        assert!(get(int, "\"open").is_err());
    }

    #[test]
    fn only_wanted_lines_are_kept() {
        let text = "# CONFIG_A is not set\nCONFIG_B=y\nCONFIG_C=\"x=y\"\n";
        let picked = pick(text, ["CONFIG_A", "CONFIG_C"].into_iter());
        assert_eq!(picked.get("CONFIG_C"), Some(&"\"x=y\""));
        assert_eq!(picked.len(), 1);
    }
}
