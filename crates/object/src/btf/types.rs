//! One type, decoded.

use super::{Btf, BtfError};

/// A type: its name (empty when it has none) and what it is.
#[derive(Clone, Copy, Debug)]
pub struct Type<'a> {
    /// Name; empty for anonymous types.
    pub name: &'a str,
    /// What it is.
    pub kind: Kind<'a>,
}

/// What a type is (`BTF_KIND_*`). Ids refer to the same [`Btf`]; 0 is `void`.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// `void`, the type with id 0.
    Void,
    /// Integer, character or boolean.
    Int(Int),
    /// Pointer to a type.
    Ptr(u32),
    /// Array.
    Array(Array),
    /// `struct`
    Struct(Composite<'a>),
    /// `union`
    Union(Composite<'a>),
    /// `enum` of up to 32 bits.
    Enum(Enumerators<'a>),
    /// `enum` of 64 bits.
    Enum64(Enumerators<'a>),
    /// Forward declaration.
    Fwd {
        /// Of a union, else of a struct.
        is_union: bool,
    },
    /// `typedef` of a type.
    Typedef(u32),
    /// `volatile`
    Volatile(u32),
    /// `const`
    Const(u32),
    /// `restrict`
    Restrict(u32),
    /// Function: id of its prototype, and linkage.
    Func(u32, FuncLinkage),
    /// Function prototype.
    FuncProto {
        /// Return type.
        ret: u32,
        /// Parameters.
        params: Params<'a>,
    },
    /// Variable: its type, and linkage.
    Var(u32, VarLinkage),
    /// Section of variables.
    Datasec {
        /// Size in bytes; 0 as compilers write it.
        size: u32,
        /// Its variables.
        vars: SecVars<'a>,
    },
    /// Floating-point number of this many bytes.
    Float(u32),
    /// Attribute of a declaration (`btf_decl_tag`).
    DeclTag {
        /// What it is attached to.
        target: u32,
        /// Member or parameter, -1: the declaration itself.
        component: i32,
    },
    /// Attribute of a pointee (`btf_type_tag`).
    TypeTag(u32),
}

/// An integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Int {
    /// Size in bytes.
    pub size: u32,
    /// Number of bits that count.
    pub bits: u8,
    /// Offset of the first bit, in old encodings of bit fields.
    pub bit_offset: u8,
    /// How it is to be read.
    pub encoding: IntEncoding,
}

/// How an integer is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntEncoding {
    /// Unsigned.
    Unsigned,
    /// Signed.
    Signed,
    /// Character.
    Char,
    /// Boolean.
    Bool,
}

/// An array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Array {
    /// Element type.
    pub element: u32,
    /// Index type.
    pub index: u32,
    /// Number of elements; 0 for a flexible array.
    pub len: u32,
}

/// Linkage of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuncLinkage {
    /// `static`
    Static,
    /// Visible outside.
    Global,
    /// Defined elsewhere.
    Extern,
}

/// Linkage of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VarLinkage {
    /// `static`
    Static,
    /// Visible outside.
    Global,
    /// Defined elsewhere.
    Extern,
}

/// A struct or union.
#[derive(Clone, Copy, Debug)]
pub struct Composite<'a> {
    /// Size in bytes.
    pub size: u32,
    bitfields: bool,
    btf: &'a Btf,
    records: &'a [[u8; 12]],
}

/// A member of a struct or union.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// Name; empty for anonymous members.
    pub name: &'a str,
    /// Type.
    pub ty: u32,
    /// Offset in bits.
    pub bit_offset: u32,
    /// Width of a bit field in bits, 0 when it is none.
    pub bit_size: u8,
}

impl<'a> Composite<'a> {
    /// Members in order of declaration.
    pub fn members(&self) -> impl ExactSizeIterator<Item = Member<'a>> + use<'a> {
        let (btf, bitfields) = (self.btf, self.bitfields);
        self.records.iter().map(move |r| member(btf, bitfields, r))
    }

    /// One member.
    pub fn member(&self, index: usize) -> Option<Member<'a>> {
        self.records.get(index).map(|r| member(self.btf, self.bitfields, r))
    }
}

fn member<'a>(btf: &'a Btf, bitfields: bool, r: &[u8; 12]) -> Member<'a> {
    let off = word(r, 2);
    let (bit_offset, bit_size) = if bitfields { (off & 0xff_ffff, (off >> 24) as u8) } else { (off, 0) };
    Member { name: btf.name_at(word(r, 0)), ty: word(r, 1), bit_offset, bit_size }
}

/// The values of an enum.
#[derive(Clone, Copy, Debug)]
pub struct Enumerators<'a> {
    /// Size in bytes: 1, 2, 4 or 8.
    pub size: u32,
    /// Negative values are meant.
    pub signed: bool,
    btf: &'a Btf,
    /// Words of the records; two per value, three in 64-bit enums.
    words: &'a [[u8; 4]],
    stride: usize,
}

impl<'a> Enumerators<'a> {
    /// Names and values in order of declaration.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, i128)> + use<'a> {
        let this = *self;
        (0..this.words.len() / this.stride).map(move |i| this.at(i))
    }

    /// One name and value.
    pub fn get(&self, index: usize) -> Option<(&'a str, i128)> {
        (index < self.words.len() / self.stride).then(|| self.at(index))
    }

    fn at(&self, i: usize) -> (&'a str, i128) {
        let w = |k: usize| u32::from_le_bytes(self.words[i * self.stride + k]);
        let value = match (self.stride, self.signed) {
            (2, true) => i128::from(w(1) as i32),
            (2, false) => i128::from(w(1)),
            (_, signed) => {
                let v = u64::from(w(1)) | u64::from(w(2)) << 32;
                if signed { i128::from(v as i64) } else { i128::from(v) }
            }
        };
        (self.btf.name_at(w(0)), value)
    }
}

/// Parameters of a prototype.
#[derive(Clone, Copy, Debug)]
pub struct Params<'a> {
    btf: &'a Btf,
    records: &'a [[u8; 8]],
}

/// One parameter. The last one of a variadic function has no name and type 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param<'a> {
    /// Name; empty where the prototype gives none.
    pub name: &'a str,
    /// Type.
    pub ty: u32,
}

impl<'a> Params<'a> {
    /// In order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Param<'a>> + use<'a> {
        let btf = self.btf;
        self.records.iter().map(move |r| Param { name: btf.name_at(word(r, 0)), ty: word(r, 1) })
    }
}

/// Variables of a section.
#[derive(Clone, Copy, Debug)]
pub struct SecVars<'a> {
    records: &'a [[u8; 12]],
}

/// Place of one variable in its section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecVar {
    /// Id of the `VAR` (or `FUNC`, in `.ksyms`).
    pub ty: u32,
    /// Offset in bytes; 0 as compilers write it for variables that the linker places.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

impl<'a> SecVars<'a> {
    /// In order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SecVar> + use<'a> {
        self.records.iter().map(|r| SecVar { ty: word(r, 0), offset: word(r, 1), size: word(r, 2) })
    }
}

fn word(bytes: &[u8], i: usize) -> u32 {
    bytes[i * 4..].first_chunk().map_or(0, |c| u32::from_le_bytes(*c))
}

/// Kind numbers (`BTF_KIND_*`).
pub(super) mod num {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// Bytes that follow the twelve of the record's head; `None` for an unknown kind.
pub(super) fn tail_len(kind: u32, vlen: u32) -> Option<usize> {
    let vlen = vlen as usize;
    Some(match kind {
        num::INT | num::VAR | num::DECL_TAG => 4,
        num::ARRAY => 12,
        num::STRUCT | num::UNION | num::DATASEC | num::ENUM64 => vlen * 12,
        num::ENUM | num::FUNC_PROTO => vlen * 8,
        num::PTR | num::FWD | num::TYPEDEF | num::VOLATILE | num::CONST | num::RESTRICT => 0,
        num::FUNC | num::FLOAT | num::TYPE_TAG => 0,
        _ => return None,
    })
}

impl Btf {
    /// The type with this id. Constant cost.
    pub fn ty(&self, id: u32) -> Result<Type<'_>, BtfError> {
        if id == 0 {
            return Ok(Type { name: "", kind: Kind::Void });
        }
        let off = *self.offsets.get(id as usize - 1).ok_or(BtfError::NoType(id))? as usize;
        let rec = self.raw.get(self.types_at + off..).ok_or(BtfError::NoType(id))?;
        let (info, arg) = (word(rec, 1), word(rec, 2));
        let (kind, vlen, flag) = (info >> 24 & 0x1f, info & 0xffff, info >> 31 != 0);
        let tail_len = tail_len(kind, vlen).ok_or(BtfError::UnknownKind { id, kind })?;
        // The parser has checked that every record lies inside the section.
        let tail = rec.get(12..12 + tail_len).ok_or(BtfError::NoType(id))?;
        let composite = || Composite { size: arg, bitfields: flag, btf: self, records: tail.as_chunks().0 };
        let enumerators =
            |stride| Enumerators { size: arg, signed: flag, btf: self, words: tail.as_chunks().0, stride };
        let kind = match kind {
            num::INT => Kind::Int(int(arg, word(tail, 0))),
            num::PTR => Kind::Ptr(arg),
            num::ARRAY => Kind::Array(Array { element: word(tail, 0), index: word(tail, 1), len: word(tail, 2) }),
            num::STRUCT => Kind::Struct(composite()),
            num::UNION => Kind::Union(composite()),
            num::ENUM => Kind::Enum(enumerators(2)),
            num::FWD => Kind::Fwd { is_union: flag },
            num::TYPEDEF => Kind::Typedef(arg),
            num::VOLATILE => Kind::Volatile(arg),
            num::CONST => Kind::Const(arg),
            num::RESTRICT => Kind::Restrict(arg),
            num::FUNC => Kind::Func(arg, func_linkage(vlen)),
            num::FUNC_PROTO => Kind::FuncProto { ret: arg, params: Params { btf: self, records: tail.as_chunks().0 } },
            num::VAR => Kind::Var(arg, var_linkage(word(tail, 0))),
            num::DATASEC => Kind::Datasec { size: arg, vars: SecVars { records: tail.as_chunks().0 } },
            num::FLOAT => Kind::Float(arg),
            num::DECL_TAG => Kind::DeclTag { target: arg, component: word(tail, 0) as i32 },
            num::TYPE_TAG => Kind::TypeTag(arg),
            _ => Kind::Enum64(enumerators(3)),
        };
        Ok(Type { name: self.name_at(word(rec, 0)), kind })
    }

    /// A name that the parser has checked; empty if it is not printable text.
    fn name_at(&self, off: u32) -> &str {
        self.string(off).unwrap_or("")
    }
}

fn int(size: u32, data: u32) -> Int {
    let encoding = match data >> 24 & 0x0f {
        1 => IntEncoding::Signed,
        2 => IntEncoding::Char,
        4 => IntEncoding::Bool,
        _ => IntEncoding::Unsigned,
    };
    Int { size, bits: data as u8, bit_offset: (data >> 16) as u8, encoding }
}

fn func_linkage(n: u32) -> FuncLinkage {
    match n {
        0 => FuncLinkage::Static,
        1 => FuncLinkage::Global,
        _ => FuncLinkage::Extern,
    }
}

fn var_linkage(n: u32) -> VarLinkage {
    match n {
        0 => VarLinkage::Static,
        1 => VarLinkage::Global,
        _ => VarLinkage::Extern,
    }
}
