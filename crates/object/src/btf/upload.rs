//! The types as the kernel takes them (`BPF_BTF_LOAD`).
//!
//! The kernel's checker knows no externs: a variable must be defined, a data section must have a size and hold variables
//! only, a function's parameters must have names. Objects that use `__kconfig` and `__ksym` break those rules by their
//! nature, so loaders write such declarations as definitions before the upload. Ids stay the same.

use std::borrow::Cow;

use super::types::num;
use super::{Btf, FuncLinkage, Kind, VarLinkage};

impl Btf {
    /// The bytes for `BPF_BTF_LOAD`. Borrowed when nothing had to change.
    pub fn for_kernel(&self) -> Cow<'_, [u8]> {
        let foreign = |t: &super::Type<'_>| {
            matches!(t.kind, Kind::Var(_, VarLinkage::Extern) | Kind::Func(_, FuncLinkage::Extern))
        };
        if !self.types().any(|(_, t)| foreign(&t)) {
            return Cow::Borrowed(&self.raw);
        }
        Cow::Owned(Upload::new(self).finish())
    }

    /// The same for a kernel that is older than some of the types: floats (5.13), tags (5.16, 5.17), enums of eight bytes and
    /// of signed values (6.0), functions that are verified alone (5.6). In the place of each stands what Linux 5.2 knows, of
    /// the same size. Ids stay the same.
    pub fn for_older_kernel(&self) -> Vec<u8> {
        let mut up = Upload::new(self);
        up.define();
        up.grow_old();
        up.bytes()
    }

    /// The bytes for `BPF_BTF_LOAD` with one type more, which is given: the function `id` as a `static` one, so that the
    /// kernel verifies it where it is called. `None` when `id` is no function.
    pub fn for_kernel_with_static(&self, id: u32) -> Option<(Vec<u8>, u32)> {
        let (up, id) = self.with_static(id)?;
        Some((up.finish(), id))
    }

    /// The same for a kernel that is older than some of the types, as [`Btf::for_older_kernel`] writes them.
    pub fn for_older_kernel_with_static(&self, id: u32) -> Option<(Vec<u8>, u32)> {
        let (mut up, id) = self.with_static(id)?;
        up.define();
        up.grow_old();
        Some((up.bytes(), id))
    }

    fn with_static(&self, id: u32) -> Option<(Upload<'_>, u32)> {
        let ty = self.ty(id).ok()?;
        let Kind::Func(prototype, _) = ty.kind else { return None };
        let mut up = Upload::new(self);
        let name = up.string(ty.name);
        up.append(&[name, num::FUNC << 24, prototype]);
        let id = up.stand_in + 1;
        Some((up, id))
    }
}

/// The sections being rewritten.
struct Upload<'a> {
    btf: &'a Btf,
    types: Vec<u8>,
    strings: Vec<u8>,
    /// A four-byte integer, and a variable of it that stands for functions in data sections.
    int: u32,
    stand_in: u32,
    stand_in_name: u32,
}

impl<'a> Upload<'a> {
    fn new(btf: &'a Btf) -> Upload<'a> {
        let end = btf.offsets.last().map_or(0, |last| *last as usize);
        // The last record's end is the end of the type area, which the parser has measured.
        let area = btf.raw.get(btf.types_at..).unwrap_or(&[]);
        let len = end + record_len(area, end);
        let mut up = Upload {
            btf,
            types: area.get(..len).unwrap_or(&[]).to_vec(),
            strings: btf.raw[btf.strings.0..btf.strings.0 + btf.strings.1].to_vec(),
            int: btf.max_id() + 1,
            stand_in: btf.max_id() + 2,
            stand_in_name: 0,
        };
        let int_name = up.string("int");
        up.stand_in_name = up.string("extern_function");
        up.append(&[int_name, num::INT << 24, 4, 1 << 24 | 32]);
        up.append(&[up.stand_in_name, num::VAR << 24, up.int, 1]);
        up
    }

    fn finish(mut self) -> Vec<u8> {
        self.define();
        self.bytes()
    }

    /// Writes declarations as definitions.
    fn define(&mut self) {
        for (id, ty) in self.btf.types() {
            match ty.kind {
                Kind::Var(_, VarLinkage::Extern) => self.set(id, 12, 1),
                Kind::Func(prototype, FuncLinkage::Extern) => {
                    self.set(id, 4, num::FUNC << 24 | 1);
                    self.name_parameters(prototype);
                }
                Kind::Datasec { vars, size } => {
                    let mut end = size;
                    for (i, v) in vars.iter().enumerate() {
                        let at = 12 + i * 12;
                        match self.btf.ty(v.ty).map(|t| t.kind) {
                            Ok(Kind::Func(..)) => {
                                self.set(id, at, self.stand_in);
                                end = self.place(id, at, end, 4);
                            }
                            // Variables of the kernel have no place in a section either; most have no size.
                            Ok(Kind::Var(_, VarLinkage::Extern)) if ty.name == ".ksyms" => {
                                self.set(v.ty, 8, self.int);
                                end = self.place(id, at, end, 4);
                            }
                            Ok(Kind::Var(t, VarLinkage::Extern)) if size == 0 => {
                                end = self.place(id, at, end, self.btf.size_of(t).unwrap_or(4));
                            }
                            _ => {}
                        }
                    }
                    self.set(id, 8, end);
                }
                _ => {}
            }
        }
    }

    /// Writes newer kinds of types as older ones.
    fn grow_old(&mut self) {
        const NAME: usize = 0;
        const INFO: usize = 4;
        const SIZE: usize = 8;
        const TAIL: usize = 12;
        for (id, ty) in self.btf.types() {
            match ty.kind {
                // No C compiler has a struct of that name, so it gets none.
                Kind::Float(_) => {
                    self.set(id, NAME, 0);
                    self.set(id, INFO, num::STRUCT << 24);
                }
                // An integer of a byte, to which nothing leads.
                Kind::DeclTag { .. } => {
                    self.set(id, NAME, 0);
                    self.set(id, INFO, num::INT << 24);
                    self.set(id, SIZE, 1);
                    self.set(id, TAIL, 8);
                }
                Kind::TypeTag(_) => {
                    self.set(id, NAME, 0);
                    self.set(id, INFO, num::CONST << 24);
                }
                // A union: its members have records as long as those of the values, and the names survive.
                Kind::Enum64(values) => {
                    let count = values.iter().count();
                    self.set(id, INFO, num::UNION << 24 | count as u32);
                    for at in (0..count).map(|n| TAIL + n * 12) {
                        self.set(id, at + 4, self.int);
                        self.set(id, at + 8, 0);
                    }
                }
                Kind::Enum(values) if values.signed => {
                    self.set(id, INFO, num::ENUM << 24 | values.iter().count() as u32);
                }
                Kind::Func(..) => self.set(id, INFO, num::FUNC << 24),
                _ => {}
            }
        }
    }

    fn bytes(self) -> Vec<u8> {
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, self.types.len() as u32, self.types.len() as u32, self.strings.len() as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.types);
        out.extend(self.strings);
        out
    }

    /// Gives a variable of a section the next place; returns the end of it.
    fn place(&mut self, section: u32, at: usize, offset: u32, size: u32) -> u32 {
        self.set(section, at + 4, offset);
        self.set(section, at + 8, size);
        offset.saturating_add(size)
    }

    fn name_parameters(&mut self, prototype: u32) {
        let Ok(Kind::FuncProto { params, .. }) = self.btf.ty(prototype).map(|t| t.kind) else { return };
        for (i, p) in params.iter().enumerate() {
            if p.name.is_empty() && p.ty != 0 {
                self.set(prototype, 12 + i * 8, self.stand_in_name);
            }
        }
    }

    /// Overwrites a word of a type's record.
    fn set(&mut self, id: u32, at: usize, value: u32) {
        let start = self.btf.offsets.get((id as usize).wrapping_sub(1)).map(|o| *o as usize + at);
        if let Some(word) = start.and_then(|s| self.types.get_mut(s..s + 4)) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn append(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    }

    fn string(&mut self, text: &str) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        at
    }
}

fn record_len(area: &[u8], at: usize) -> usize {
    let info = area.get(at + 4..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
    12 + super::types::tail_len(info >> 24 & 0x1f, info & 0xffff).unwrap_or(0)
}
