//! Source lines, kept per section until functions are cut out of it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::LineInfo;
use crate::btf::{Btf, BtfExt, LineRecord};
use crate::functions::Function;

/// All line records of an object.
#[derive(Default)]
pub(crate) struct Lines {
    /// By section name: offset and record, sorted.
    by_section: HashMap<String, Vec<(u32, LineRecord)>>,
    /// Texts by their offset in the BTF strings; each is held once.
    texts: HashMap<u32, Arc<str>>,
}

impl Lines {
    pub fn new(btf: &Btf, ext: &BtfExt) -> Lines {
        let mut lines = Lines::default();
        let mut text = |off: u32| {
            lines.texts.entry(off).or_insert_with(|| btf.string(off).unwrap_or("").into());
        };
        for r in &ext.lines {
            text(r.record.file);
            text(r.record.text);
        }
        for r in &ext.lines {
            if let Some(name) = btf.string(r.section) {
                match lines.by_section.get_mut(name) {
                    Some(list) => list.push((r.offset, r.record)),
                    None => drop(lines.by_section.insert(name.to_owned(), vec![(r.offset, r.record)])),
                }
            }
        }
        lines.by_section.values_mut().for_each(|list| {
            list.sort_by_key(|l| l.0);
            list.dedup_by_key(|l| l.0);
        });
        lines
    }

    /// The lines of one function, with indices relative to it.
    pub fn of(&self, function: &Function, section: &str) -> Vec<LineInfo> {
        let Some(all) = self.by_section.get(section) else { return Vec::new() };
        let from = all.partition_point(|l| u64::from(l.0) < function.start);
        let to = all.partition_point(|l| u64::from(l.0) < function.start.saturating_add(function.len));
        let text = |off| self.texts.get(&off).cloned().unwrap_or_else(|| "".into());
        all.get(from..to)
            .unwrap_or(&[])
            .iter()
            .map(|(offset, r)| LineInfo {
                insn: ((u64::from(*offset) - function.start) / 8) as usize,
                file: text(r.file),
                line: r.line,
                col: r.col,
                text: text(r.text),
                file_off: r.file,
                text_off: r.text,
            })
            .collect()
    }
}
