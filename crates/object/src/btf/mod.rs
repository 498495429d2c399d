//! BTF: the types of an object or of a kernel (`linux/btf.h`, Documentation/bpf/btf).
//!
//! A [`Btf`] keeps the raw bytes and one offset per type. A type is decoded when it is looked at, as a [`Type`] that
//! borrows from the bytes, so that the hundred thousand types of a kernel cost a few megabytes and nothing is allocated
//! by looking. Everything that a reader relies on (each record lies inside the section, each name inside the strings) is
//! checked once, when the bytes are read; type ids are checked when they are followed, because cycles and dangling ids
//! can only be seen then. Every walk has a depth bound, [`MAX_DEPTH`].

mod build;
mod c;
mod ext;
mod layout;
mod parse;
mod print;
mod types;
mod upload;
pub mod value;

pub use build::BtfBuilder;
pub use ext::{BtfExt, CoreRelo, ExtRecord, FuncRecord, LineRecord};
pub use layout::{MAX_DEPTH, MemberAt};
pub use types::{
    Array, Composite, Enumerators, FuncLinkage, Int, IntEncoding, Kind, Member, Param, SecVar, Type, VarLinkage,
};

use std::sync::OnceLock;

/// What is wrong with type information.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BtfError {
    /// The section is shorter than what stands in it claims.
    #[error("cut off: {what} needs {need} bytes at offset {at}, the section has {have}")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where.
        at: u64,
        /// How much it needs.
        need: u64,
        /// Length of the section.
        have: u64,
    },
    /// The magic number is missing.
    #[error("no BTF: magic number {0:#06x} instead of 0xeb9f")]
    Magic(u16),
    /// Big-endian BTF.
    #[error("big-endian BTF; only little-endian objects are supported")]
    BigEndian,
    /// A header field has an impossible value.
    #[error("impossible header: {0}")]
    Header(&'static str),
    /// A type's kind is not known.
    #[error("type {id}: unknown kind {kind}")]
    UnknownKind {
        /// Type.
        id: u32,
        /// Kind number.
        kind: u32,
    },
    /// A name lies outside of the strings.
    #[error("string offset {off} lies outside of the {len} bytes of strings")]
    BadString {
        /// Offset.
        off: u32,
        /// Length of the string section.
        len: u32,
    },
    /// A type id that does not exist.
    #[error("no type {0}")]
    NoType(u32),
    /// Following types does not end.
    #[error("type {0}: nested too deeply, or a cycle")]
    Cycle(u32),
    /// A size does not fit.
    #[error("type {0}: its size overflows")]
    TooLarge(u32),
    /// Written out, the types would fill too much room.
    #[error("type {0}: written out, it takes more than 256 MiB")]
    TooMuchText(u32),
    /// The type has no size (`void`, functions, forward declarations).
    #[error("type {id} ({name}) has no size")]
    NoSize {
        /// Type.
        id: u32,
        /// How it is written.
        name: String,
    },
}

/// Type information: a table of types, numbered from 1; 0 is `void`.
pub struct Btf {
    /// The whole section, as read.
    raw: Vec<u8>,
    /// Start of the type records in `raw`.
    types_at: usize,
    /// Start and length of the strings in `raw`.
    strings: (usize, usize),
    /// Offset of each type's record relative to `types_at`; type 1 is the first.
    offsets: Vec<u32>,
    /// Ids by essential name, made at the first look-up.
    index: OnceLock<Vec<u32>>,
    /// Pointer size in bytes: 8, as BPF's and that of every kernel that runs it with BTF here.
    ptr_size: u32,
}

impl std::fmt::Debug for Btf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Btf({} types, {} bytes)", self.offsets.len(), self.raw.len())
    }
}

impl Btf {
    /// The bytes that it was read from: what `BPF_BTF_LOAD` takes (but see [`Btf::for_kernel`]).
    pub fn to_bytes(&self) -> &[u8] {
        &self.raw
    }

    /// Largest type id. Ids 1 to this one exist; 0 is `void`.
    pub fn max_id(&self) -> u32 {
        self.offsets.len() as u32
    }

    /// Size of a pointer, bytes.
    pub fn ptr_size(&self) -> u32 {
        self.ptr_size
    }

    /// The string at an offset of the string section.
    pub fn string(&self, off: u32) -> Option<&str> {
        let (at, len) = self.strings;
        let bytes = self.raw.get(at..at + len)?.get(off as usize..)?;
        let end = bytes.iter().position(|b| *b == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }

    /// The first type with this exact name for which `want` holds. Cost: logarithmic, after a first call that sorts.
    ///
    /// ```
    /// # use xway_object::btf::{Btf, BtfBuilder, IntEncoding, Kind};
    /// let mut b = BtfBuilder::new();
    /// let u32_id = b.int("__u32", 4, IntEncoding::Unsigned);
    /// let btf = b.finish();
    /// assert_eq!(btf.find("__u32", |t| matches!(t.kind, Kind::Int(_))), Some(u32_id));
    /// assert_eq!(btf.find("nothing", |_| true), None);
    /// ```
    pub fn find(&self, name: &str, want: impl Fn(&Type<'_>) -> bool) -> Option<u32> {
        self.with_essential_name(essential_name(name)).find(|id| self.ty(*id).is_ok_and(|t| t.name == name && want(&t)))
    }

    /// The struct with this name.
    pub fn find_struct(&self, name: &str) -> Option<u32> {
        self.find(name, |t| matches!(t.kind, Kind::Struct(_)))
    }

    /// Ids of all types whose name without its `___flavour` suffix is `name`, in rising order. Cost: as [`Btf::find`].
    pub fn with_essential_name<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u32> + 'a {
        let index = self.index.get_or_init(|| self.build_index());
        let key = |id: &u32| essential_name(self.name_of(*id));
        let first = index.partition_point(|id| key(id) < name);
        index[first..].iter().take_while(move |id| essential_name(self.name_of(**id)) == name).copied()
    }

    /// Ids and types, from 1.
    pub fn types(&self) -> impl Iterator<Item = (u32, Type<'_>)> {
        (1..=self.max_id()).filter_map(|id| Some((id, self.ty(id).ok()?)))
    }

    /// Sets the size of a data section and the offsets of some of its variables, and sorts them by offset.
    pub(crate) fn place_datasec(&mut self, id: u32, size: u32, offsets: &[(usize, u32)]) {
        let Ok(Type { kind: Kind::Datasec { vars, .. }, .. }) = self.ty(id) else { return };
        let mut list: Vec<SecVar> = vars.iter().collect();
        for &(i, offset) in offsets {
            if let Some(var) = list.get_mut(i) {
                var.offset = offset;
            }
        }
        list.sort_by_key(|v| v.offset);
        // The record of a data section: name, info, size, then (type, offset, size) for each variable.
        let at = self.types_at + self.offsets[id as usize - 1] as usize;
        self.raw[at + 8..at + 12].copy_from_slice(&size.to_le_bytes());
        for (i, v) in list.iter().enumerate() {
            let record = &mut self.raw[at + 12 + i * 12..at + 24 + i * 12];
            record[..4].copy_from_slice(&v.ty.to_le_bytes());
            record[4..8].copy_from_slice(&v.offset.to_le_bytes());
            record[8..].copy_from_slice(&v.size.to_le_bytes());
        }
    }

    fn name_of(&self, id: u32) -> &str {
        self.ty(id).map_or("", |t| t.name)
    }

    fn build_index(&self) -> Vec<u32> {
        let mut named: Vec<(&str, u32)> =
            self.types().filter(|(_, t)| !t.name.is_empty()).map(|(id, t)| (essential_name(t.name), id)).collect();
        named.sort_unstable();
        named.into_iter().map(|(_, id)| id).collect()
    }
}

/// A name without its flavour: `task_struct___old` is the type `task_struct` as an older kernel had it. The last `___`
/// that has something before it and something other than `_` on both sides separates the two (libbpf's convention).
pub fn essential_name(name: &str) -> &str {
    let b = name.as_bytes();
    let is_split = |i: usize| b[i] != b'_' && &b[i + 1..i + 4] == b"___" && b[i + 4] != b'_';
    match (0..b.len().saturating_sub(4)).rev().find(|i| is_split(*i)) {
        Some(i) => &name[..=i],
        None => name,
    }
}
