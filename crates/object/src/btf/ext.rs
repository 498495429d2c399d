//! Reading the `.BTF.ext` section: which function starts where, which line an instruction comes from, and the CO-RE
//! relocations. Records are grouped by section; offsets count bytes of that section.

use super::{Btf, BtfError};

/// The decoded section.
#[derive(Clone, Debug, Default)]
pub struct BtfExt {
    /// Function starts.
    pub funcs: Vec<ExtRecord<FuncRecord>>,
    /// Source lines.
    pub lines: Vec<ExtRecord<LineRecord>>,
    /// CO-RE relocations.
    pub core: Vec<ExtRecord<CoreRelo>>,
}

/// A record and the place that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtRecord<T> {
    /// Offset of the section's name in the BTF strings.
    pub section: u32,
    /// Offset in that section, bytes.
    pub offset: u32,
    /// The record.
    pub record: T,
}

/// A function start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuncRecord {
    /// BTF id of the `FUNC`.
    pub func_id: u32,
}

/// A source line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineRecord {
    /// File name, offset in the strings.
    pub file: u32,
    /// Text, offset in the strings.
    pub text: u32,
    /// Line number.
    pub line: u32,
    /// Column number.
    pub col: u32,
}

/// A CO-RE relocation as it stands in the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreRelo {
    /// Root type.
    pub ty: u32,
    /// Access string (`0:1:2`), offset in the strings.
    pub access: u32,
    /// Kind (`enum bpf_core_relo_kind`).
    pub kind: u32,
}

impl BtfExt {
    /// Reads the section. Linear cost; memory proportional to its bytes.
    pub fn parse(raw: &[u8]) -> Result<BtfExt, BtfError> {
        let header: &[u8; 24] = raw.first_chunk().ok_or(cut("the header", 0, 24, raw))?;
        match u16::from_le_bytes([header[0], header[1]]) {
            0xeb9f => {}
            0x9feb => return Err(BtfError::BigEndian),
            other => return Err(BtfError::Magic(other)),
        }
        if header[2] != 1 {
            return Err(BtfError::Header("a version other than 1"));
        }
        let hdr_len = word(header, 1);
        let area =
            |i: usize| Area { raw, at: u64::from(hdr_len) + u64::from(word(header, i)), len: word(header, i + 1) };
        let mut ext = BtfExt {
            funcs: area(2).records("function records", 8, |r| FuncRecord { func_id: word(r, 1) })?,
            lines: area(4).records("line records", 16, |r| LineRecord {
                file: word(r, 1),
                text: word(r, 2),
                line: word(r, 3) >> 10,
                col: word(r, 3) & 0x3ff,
            })?,
            core: Vec::new(),
        };
        // Headers before CO-RE end here.
        if let (true, Some(tail)) = (hdr_len >= 32, raw.get(24..32)) {
            let area = Area { raw, at: u64::from(hdr_len) + u64::from(word(tail, 0)), len: word(tail, 1) };
            ext.core = area.records("CO-RE records", 16, |r| CoreRelo {
                ty: word(r, 1),
                access: word(r, 2),
                kind: word(r, 3),
            })?;
        }
        Ok(ext)
    }

    /// The records of one section, by its name.
    pub fn in_section<'a, T: Copy>(
        records: &'a [ExtRecord<T>],
        btf: &'a Btf,
        section: &'a str,
    ) -> impl Iterator<Item = ExtRecord<T>> + 'a {
        records.iter().filter(move |r| btf.string(r.section) == Some(section)).copied()
    }
}

struct Area<'a> {
    raw: &'a [u8],
    at: u64,
    len: u32,
}

impl Area<'_> {
    /// `record size`, then for each section `name, count, records…`. Records may be longer than we know.
    fn records<T>(
        self,
        what: &'static str,
        min: usize,
        read: impl Fn(&[u8]) -> T,
    ) -> Result<Vec<ExtRecord<T>>, BtfError> {
        let end = self.at + u64::from(self.len);
        if end > self.raw.len() as u64 {
            return Err(cut(what, self.at, u64::from(self.len), self.raw));
        }
        let bytes = &self.raw[self.at as usize..end as usize];
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let size =
            bytes.first_chunk::<4>().map(|b| u32::from_le_bytes(*b) as usize).ok_or(cut(what, self.at, 4, bytes))?;
        if size < min || size % 4 != 0 {
            return Err(BtfError::Header("a .BTF.ext record size that cannot be"));
        }
        let (mut out, mut rest) = (Vec::new(), &bytes[4..]);
        while !rest.is_empty() {
            let head = rest.get(..8).ok_or(cut(what, self.at, 8, rest))?;
            let (section, count) = (word(head, 0), word(head, 1));
            let need = u64::from(count) * size as u64;
            if need > rest.len() as u64 - 8 {
                return Err(cut(what, self.at, need, rest));
            }
            let (records, after) = rest[8..].split_at(need as usize);
            out.extend(records.chunks_exact(size).map(|r| ExtRecord { section, offset: word(r, 0), record: read(r) }));
            rest = after;
        }
        Ok(out)
    }
}

fn cut(what: &'static str, at: u64, need: u64, have: &[u8]) -> BtfError {
    BtfError::Truncated { what, at, need, have: have.len() as u64 }
}

fn word(bytes: &[u8], i: usize) -> u32 {
    bytes[i * 4..].first_chunk().map_or(0, |c| u32::from_le_bytes(*c))
}
