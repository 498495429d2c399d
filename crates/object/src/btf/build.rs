//! Making BTF by hand: for tests, for objects without types of their own, and for damaged input on purpose.

use super::types::num;
use super::{Btf, FuncLinkage, IntEncoding, VarLinkage};

/// Writes type records one after the other. The ids that it returns are those of the finished [`Btf`].
#[derive(Clone, Debug)]
pub struct BtfBuilder {
    types: Vec<u8>,
    strings: Vec<u8>,
    next: u32,
}

impl Default for BtfBuilder {
    fn default() -> Self {
        BtfBuilder::new()
    }
}

impl BtfBuilder {
    /// No types but `void`.
    pub fn new() -> BtfBuilder {
        BtfBuilder { types: Vec::new(), strings: vec![0], next: 1 }
    }

    /// The finished section.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, self.types.len() as u32, self.types.len() as u32, self.strings.len() as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(&self.types);
        out.extend(&self.strings);
        out
    }

    /// The finished types. What a builder wrote can always be read; should a limit be passed the result has no types.
    pub fn finish(&self) -> Btf {
        let empty = || Btf {
            raw: Vec::new(),
            types_at: 0,
            strings: (0, 0),
            offsets: Vec::new(),
            index: Default::default(),
            ptr_size: 8,
        };
        Btf::parse(self.to_bytes()).unwrap_or_else(|_| empty())
    }

    /// An integer of `size` bytes.
    pub fn int(&mut self, name: &str, size: u32, encoding: IntEncoding) -> u32 {
        let code = match encoding {
            IntEncoding::Unsigned => 0,
            IntEncoding::Signed => 1,
            IntEncoding::Char => 2,
            IntEncoding::Bool => 4,
        };
        self.record(name, num::INT, 0, false, size, &[(code << 24) | (size * 8)])
    }

    /// A pointer.
    pub fn ptr(&mut self, to: u32) -> u32 {
        self.record("", num::PTR, 0, false, to, &[])
    }

    /// An array.
    pub fn array(&mut self, element: u32, index: u32, len: u32) -> u32 {
        self.record("", num::ARRAY, 0, false, 0, &[element, index, len])
    }

    /// A struct of `size` bytes with members (name, type, offset in bits).
    pub fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(num::STRUCT, name, size, members)
    }

    /// A union.
    pub fn union(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(num::UNION, name, size, members)
    }

    /// A struct with bit fields: members are (name, type, offset in bits, width in bits or 0).
    pub fn bitfields(&mut self, name: &str, size: u32, members: &[(&str, u32, u32, u8)]) -> u32 {
        let words: Vec<u32> =
            members.iter().flat_map(|m| [self.string(m.0), m.1, m.2 | u32::from(m.3) << 24]).collect();
        self.record(name, num::STRUCT, members.len(), true, size, &words)
    }

    /// An enum of up to four bytes.
    pub fn enumeration(&mut self, name: &str, size: u32, signed: bool, values: &[(&str, i32)]) -> u32 {
        let words: Vec<u32> = values.iter().flat_map(|v| [self.string(v.0), v.1 as u32]).collect();
        self.record(name, num::ENUM, values.len(), signed, size, &words)
    }

    /// An enum of eight bytes.
    pub fn enumeration64(&mut self, name: &str, signed: bool, values: &[(&str, u64)]) -> u32 {
        let words: Vec<u32> = values.iter().flat_map(|v| [self.string(v.0), v.1 as u32, (v.1 >> 32) as u32]).collect();
        self.record(name, num::ENUM64, values.len(), signed, 8, &words)
    }

    /// A typedef.
    pub fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.record(name, num::TYPEDEF, 0, false, of, &[])
    }

    /// `const`
    pub fn constant(&mut self, of: u32) -> u32 {
        self.record("", num::CONST, 0, false, of, &[])
    }

    /// A floating-point number of `size` bytes.
    pub fn float(&mut self, name: &str, size: u32) -> u32 {
        self.record(name, num::FLOAT, 0, false, size, &[])
    }

    /// A type with a tag.
    pub fn type_tag(&mut self, name: &str, of: u32) -> u32 {
        self.record(name, num::TYPE_TAG, 0, false, of, &[])
    }

    /// A prototype with parameters (name, type).
    pub fn prototype(&mut self, ret: u32, params: &[(&str, u32)]) -> u32 {
        let words: Vec<u32> = params.iter().flat_map(|p| [self.string(p.0), p.1]).collect();
        self.record("", num::FUNC_PROTO, params.len(), false, ret, &words)
    }

    /// A function.
    pub fn func(&mut self, name: &str, prototype: u32, linkage: FuncLinkage) -> u32 {
        self.record(name, num::FUNC, linkage as usize, false, prototype, &[])
    }

    /// A variable.
    pub fn var(&mut self, name: &str, ty: u32, linkage: VarLinkage) -> u32 {
        self.record(name, num::VAR, 0, false, ty, &[linkage as u32])
    }

    /// A section of variables (type, offset, size).
    pub fn datasec(&mut self, name: &str, size: u32, vars: &[(u32, u32, u32)]) -> u32 {
        let words: Vec<u32> = vars.iter().flat_map(|v| [v.0, v.1, v.2]).collect();
        self.record(name, num::DATASEC, vars.len(), false, size, &words)
    }

    /// A declaration tag; component -1 tags the declaration itself.
    pub fn decl_tag(&mut self, name: &str, target: u32, component: i32) -> u32 {
        self.record(name, num::DECL_TAG, 0, false, target, &[component as u32])
    }

    fn composite(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let words: Vec<u32> = members.iter().flat_map(|m| [self.string(m.0), m.1, m.2]).collect();
        self.record(name, kind, members.len(), false, size, &words)
    }

    fn record(&mut self, name: &str, kind: u32, vlen: usize, flag: bool, arg: u32, words: &[u32]) -> u32 {
        let head = [self.string(name), kind << 24 | vlen as u32 & 0xffff | u32::from(flag) << 31, arg];
        for word in head.iter().chain(words) {
            self.types.extend(word.to_le_bytes());
        }
        self.next += 1;
        self.next - 1
    }

    fn string(&mut self, s: &str) -> u32 {
        if s.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(s.as_bytes());
        self.strings.push(0);
        at
    }
}
