//! Reading the `.BTF` section.
//!
//! ```text
//! 0        hdr_len                                hdr_len + type_off   …            + str_off
//! | header | ………………………………………………………………………………… | type records         | ………………… | strings, \0-separated |
//! ```
//!
//! One pass over the records checks that each lies inside the section and that its names lie inside the strings.
//! Memory: four bytes per type that is really there.

use std::sync::OnceLock;

use super::types::tail_len;
use super::{Btf, BtfError};

/// The largest section that is read: twice the largest kernel seen, and far below the 4 GiB that offsets can express.
const MAX_LEN: usize = 256 << 20;

impl Btf {
    /// Reads a `.BTF` section, or a file such as `/sys/kernel/btf/vmlinux`. Linear cost.
    pub fn parse(raw: Vec<u8>) -> Result<Btf, BtfError> {
        if raw.len() > MAX_LEN {
            return Err(BtfError::Header("the section is larger than 256 MiB"));
        }
        let header = Header::read(&raw)?;
        let types = header.area(&raw, "types", header.type_off, header.type_len)?;
        let strings = header.area(&raw, "strings", header.str_off, header.str_len)?;
        let text = &raw[strings.0..strings.0 + strings.1];
        if text.first() != Some(&0) || text.last() != Some(&0) {
            return Err(BtfError::Header("the strings do not start and end with a null byte"));
        }
        let offsets = scan(&raw[types.0..types.0 + types.1], text)?;
        Ok(Btf { types_at: types.0, strings, offsets, index: OnceLock::new(), ptr_size: 8, raw })
    }
}

impl Btf {
    /// Reads types that continue others, as a kernel module's continue those of the kernel (*split* BTF): their ids begin behind the
    /// last one of `base`, their names lie behind its strings. The result has both. Cost: a copy of `base`.
    ///
    /// ```
    /// # use xway_object::btf::{Btf, BtfBuilder, IntEncoding};
    /// let mut b = BtfBuilder::new();
    /// let int = b.int("int", 4, IntEncoding::Signed);
    /// let base = b.finish();
    /// // A header without types or names of its own.
    /// let more = Btf::parse_behind(&base, &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
    /// assert_eq!(more.find("int", |_| true), Some(int));
    /// # Ok::<(), xway_object::btf::BtfError>(())
    /// ```
    pub fn parse_behind(base: &Btf, split: &[u8]) -> Result<Btf, BtfError> {
        let areas = |raw: &[u8]| {
            let header = Header::read(raw)?;
            let types = header.area(raw, "types", header.type_off, header.type_len)?;
            Ok((types, header.area(raw, "strings", header.str_off, header.str_len)?))
        };
        let (below, above) = (areas(&base.raw)?, areas(split)?);
        // Together they are types as any others.
        let (types, strings) = (below.0.1 + above.0.1, below.1.1 + above.1.1);
        let word = |len: usize| u32::try_from(len).map_err(|_| BtfError::Header("the section is larger than 256 MiB"));
        let mut raw = Vec::with_capacity(24 + types + strings);
        raw.extend([0x9f, 0xeb, 1, 0]);
        for field in [24, 0, word(types)?, word(types)?, word(strings)?] {
            raw.extend(field.to_le_bytes());
        }
        for (bytes, (at, len)) in [(&base.raw[..], below.0), (split, above.0), (&base.raw, below.1), (split, above.1)] {
            raw.extend(&bytes[at..at + len]);
        }
        Btf::parse(raw)
    }
}

struct Header {
    hdr_len: u64,
    type_off: u64,
    type_len: u64,
    str_off: u64,
    str_len: u64,
}

impl Header {
    fn read(raw: &[u8]) -> Result<Header, BtfError> {
        let cut = |what| BtfError::Truncated { what, at: 0, need: 24, have: raw.len() as u64 };
        let h: &[u8; 24] = raw.first_chunk().ok_or(cut("the header"))?;
        match u16::from_le_bytes([h[0], h[1]]) {
            0xeb9f => {}
            0x9feb => return Err(BtfError::BigEndian),
            other => return Err(BtfError::Magic(other)),
        }
        if h[2] != 1 {
            return Err(BtfError::Header("a version other than 1"));
        }
        let word = |i: usize| u64::from(u32::from_le_bytes([h[i], h[i + 1], h[i + 2], h[i + 3]]));
        let hdr_len = word(4);
        if hdr_len < 24 {
            return Err(BtfError::Header("a length below 24 bytes"));
        }
        Ok(Header { hdr_len, type_off: word(8), type_len: word(12), str_off: word(16), str_len: word(20) })
    }

    /// Start and length of an area inside the section.
    fn area(&self, raw: &[u8], what: &'static str, off: u64, len: u64) -> Result<(usize, usize), BtfError> {
        let (at, have) = (self.hdr_len + off, raw.len() as u64);
        if at + len > have {
            return Err(BtfError::Truncated { what, at, need: len, have });
        }
        Ok((at as usize, len as usize))
    }
}

/// Offsets of the records, each checked.
fn scan(types: &[u8], text: &[u8]) -> Result<Vec<u32>, BtfError> {
    let mut offsets = Vec::new();
    let mut at = 0usize;
    while at < types.len() {
        let id = offsets.len() as u32 + 1;
        let cut = |need: usize| BtfError::Truncated {
            what: "a type record",
            at: at as u64,
            need: need as u64,
            have: types.len() as u64,
        };
        let head: &[u8; 12] = types[at..].first_chunk().ok_or(cut(12))?;
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let (name, info) = (word(0), word(4));
        let (kind, vlen) = (info >> 24 & 0x1f, info & 0xffff);
        let tail = tail_len(kind, vlen).ok_or(BtfError::UnknownKind { id, kind })?;
        let end = at + 12 + tail;
        let body = types.get(at + 12..end).ok_or(cut(12 + tail))?;
        check_string(name, text)?;
        if let Some(stride) = named_stride(kind) {
            for record in body.chunks_exact(stride) {
                check_string(u32::from_le_bytes([record[0], record[1], record[2], record[3]]), text)?;
            }
        }
        offsets.push(at as u32);
        at = end;
    }
    Ok(offsets)
}

/// Length of the tail records of a kind whose first word is a name.
fn named_stride(kind: u32) -> Option<usize> {
    use super::types::num::*;
    match kind {
        STRUCT | UNION | ENUM64 => Some(12),
        ENUM | FUNC_PROTO => Some(8),
        _ => None,
    }
}

fn check_string(off: u32, text: &[u8]) -> Result<(), BtfError> {
    if (off as usize) < text.len() { Ok(()) } else { Err(BtfError::BadString { off, len: text.len() as u32 }) }
}
