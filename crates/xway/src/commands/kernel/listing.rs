//! Instructions of a program that is loaded, with its functions and source lines between them.

use serde_json::{Value, json};

use crate::args::DumpForm;
use crate::failure::Failure;

/// What is shown beside instructions, and where to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// The bytes alone, into this file.
    pub file: Option<String>,
    /// The bytes of each instruction.
    pub opcodes: bool,
    /// File, line and column of each source line.
    pub linum: bool,
    /// The ways through it as a graph, instead of a list.
    pub visual: bool,
}

impl Wish {
    /// From bpftool's words, of which there may be several.
    pub fn parse(words: &[String]) -> Result<Wish, Failure> {
        const HINT: &str = "file PATH, visual, opcodes, linum";
        let (mut wish, mut words) = (Wish::default(), words.iter());
        while let Some(word) = words.next() {
            match word.as_str() {
                "opcodes" => wish.opcodes = true,
                "linum" => wish.linum = true,
                "file" => {
                    let missing = || Failure::usage("file: a path is missing").hint("file PATH");
                    wish.file = Some(words.next().ok_or_else(missing)?.clone());
                }
                "visual" => wish.visual = true,
                other => return Err(Failure::usage(format!("{other}: not expected here")).hint(HINT)),
            }
        }
        let beside = wish.beside();
        match &wish.file {
            Some(_) if beside || wish.visual => Err(Failure::usage("file: it gets the bytes and nothing beside them")
                .hint("leave visual, opcodes and linum out")),
            None if beside && wish.visual => Err(Failure::usage("visual: a graph has nothing beside its instructions")
                .hint("leave opcodes and linum out")),
            _ => Ok(wish),
        }
    }

    /// Whether this form has what is wished for.
    pub fn fits(&self, form: DumpForm) -> Result<(), Failure> {
        if form == DumpForm::Ir && *self != Wish::default() {
            let message =
                "ir: the intermediate form is a text; it has neither bytes nor a graph, and source lines anyway";
            return Err(Failure::usage(message).hint("leave file, visual, opcodes and linum out"));
        }
        if self.visual && form != DumpForm::Xlated {
            let message = format!("visual: the ways through {} code are not drawn", form.name());
            return Err(Failure::usage(message).hint("xway prog dump xlated OBJ|WHICH visual"));
        }
        Ok(())
    }

    /// Whether something is wished for beside the instructions.
    pub fn beside(&self) -> bool {
        self.opcodes || self.linum
    }
}

/// A source line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    pub text: String,
    pub file: String,
    pub line: u32,
    pub col: u32,
}

/// One instruction, with what stands in front of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Number of its slot, or its offset in the machine code.
    pub at: usize,
    pub text: String,
    pub bytes: Vec<u8>,
    /// The function that begins with it, as C writes it.
    pub proto: Option<String>,
    /// The program of a chain that it came from, where the one before came from another.
    pub program: Option<String>,
    /// The line that begins with it.
    pub source: Option<Source>,
}

/// For people, in bpftool's form; `hex`: places are offsets.
pub fn text(rows: &[Row], wish: &Wish, hex: bool) -> String {
    let mut out = String::new();
    for row in rows {
        row.proto.iter().for_each(|proto| out.push_str(&format!("{proto}:\n")));
        row.program.iter().for_each(|program| out.push_str(&format!("; of {program}:\n")));
        if let Some(Source { text, file, line, col }) = &row.source {
            let place =
                if wish.linum { format!(" [file:{file} line_num:{line} line_col:{col}]") } else { String::new() };
            out.push_str(&format!("; {text}{place}\n"));
        }
        let place = if hex { format!("{:>4x}", row.at) } else { format!("{:>4}", row.at) };
        out.push_str(&format!("{place}: {}\n", row.text));
        if wish.opcodes {
            out.push_str(&format!("       {}\n", bytes(&row.bytes)));
        }
    }
    out
}

/// For scripts; names of fields are bpftool's where it has them.
pub fn json(rows: &[Row], wish: &Wish, place: &str) -> Vec<Value> {
    let one = |row: &Row| {
        let mut out = json!({ place: row.at, "text": row.text });
        if let Some(proto) = &row.proto {
            out["proto"] = json!(proto);
        }
        if let Some(program) = &row.program {
            out["of"] = json!(program);
        }
        if let Some(source) = &row.source {
            out["src"] = json!(source.text);
            if wish.linum {
                (out["file"], out["line_num"], out["line_col"]) =
                    (json!(source.file), json!(source.line), json!(source.col));
            }
        }
        if wish.opcodes {
            out["opcodes"] = json!(bytes(&row.bytes));
        }
        out
    };
    rows.iter().map(one).collect()
}

/// Bytes in hexadecimal.
pub fn bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_any_order() {
        let parse = |text: &str| Wish::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("").unwrap(), Wish::default());
        let both = Wish { opcodes: true, linum: true, ..Wish::default() };
        assert_eq!((parse("linum opcodes").unwrap(), parse("opcodes linum").unwrap()), (both.clone(), both));
        assert_eq!(parse("file x").unwrap().file.as_deref(), Some("x"));
        assert!(parse("visual").unwrap().visual);
        for wrong in ["file", "more", "file x linum", "file x visual", "visual opcodes"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
