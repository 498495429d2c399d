//! The answer to a question about an access, in one set of types.

use super::{Question, spec::Spec, spec::Step};
use crate::btf::{Btf, IntEncoding, Kind};

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub value: u64,
    /// The compiler is known to have written the same number (for bit fields it has a choice).
    pub certain: bool,
    /// For offsets of whole fields: the field's size, which is the access size of a load or store.
    pub size: Option<u32>,
    /// The field is of a sort whose accesses may change their size.
    pub resizable: Option<Resizable>,
}

/// Sorts of fields whose accesses may change their size with the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resizable {
    Pointer,
    Unsigned,
}

pub(super) fn answer(btf: &Btf, spec: &Spec, question: Question) -> Result<Answer, String> {
    use Question::*;
    let plain = |value: u64| Ok(Answer { value, certain: true, size: None, resizable: None });
    match question {
        FieldExists | TypeExists | EnumValueExists | TypeMatches => plain(1),
        LocalTypeId | TargetTypeId => plain(u64::from(spec.root)),
        TypeSize => plain(u64::from(size(btf, spec.root)?)),
        EnumValue => match btf.resolve(spec.root).map(|t| t.1.kind) {
            Ok(Kind::Enum(e) | Kind::Enum64(e)) => plain(e.get(spec.enumerator).ok_or("no such enum value")?.1 as u64),
            _ => Err("not an enum".to_owned()),
        },
        ByteOffset | ByteSize | Signed | LShift | RShift => field(btf, spec, question),
    }
}

fn field(btf: &Btf, spec: &Spec, question: Question) -> Result<Answer, String> {
    let last = spec.steps.last().ok_or("an access without steps")?;
    if !last.is_member {
        let bytes = size(btf, last.ty)?;
        return match question {
            Question::ByteOffset => Ok(offset(btf, spec.bit_offset / 8, last.ty, Some(bytes))),
            Question::ByteSize => Ok(Answer { value: bytes.into(), certain: true, size: None, resizable: None }),
            _ => Err("this question needs a struct member".to_owned()),
        };
    }
    let place = Place::of(btf, last, spec.bit_offset)?;
    let bits_to_end = place.bit_offset + place.bit_size - place.byte_offset * 8;
    let value = match question {
        Question::ByteOffset if place.is_bitfield => {
            return Ok(Answer { value: place.byte_offset, certain: false, size: None, resizable: None });
        }
        Question::ByteOffset => return Ok(offset(btf, place.byte_offset, place.ty, Some(place.byte_size))),
        Question::ByteSize => u64::from(place.byte_size),
        Question::Signed => u64::from(is_signed(btf, place.ty)),
        Question::LShift => 64u64.checked_sub(bits_to_end).ok_or("a field of more than 64 bits")?,
        _ => 64u64.checked_sub(place.bit_size).ok_or("a field of more than 64 bits")?,
    };
    let certain = !place.is_bitfield || matches!(question, Question::Signed | Question::RShift);
    Ok(Answer { value, certain, size: None, resizable: None })
}

/// Where a member lies and which aligned word holds it.
struct Place {
    ty: u32,
    is_bitfield: bool,
    bit_offset: u64,
    bit_size: u64,
    byte_offset: u64,
    byte_size: u32,
}

impl Place {
    fn of(btf: &Btf, step: &Step, bit_offset: u64) -> Result<Place, String> {
        let (Kind::Struct(c) | Kind::Union(c)) = btf.ty(step.ty).map_err(|e| e.to_string())?.kind else {
            return Err("a member of something that has none".to_owned());
        };
        let m = c.member(step.index as usize).ok_or("no such member")?;
        let (ty, resolved) = btf.resolve(m.ty).map_err(|e| e.to_string())?;
        let mut byte_size = size(btf, ty)?;
        let bit_size = match (m.bit_size, resolved.kind) {
            (0, Kind::Int(i)) if u32::from(i.bits) < i.size.saturating_mul(8) => u64::from(i.bits),
            (bits, _) => u64::from(bits),
        };
        if bit_size == 0 {
            let byte_offset = bit_offset / 8;
            let bit_size = u64::from(byte_size) * 8;
            return Ok(Place { ty, is_bitfield: false, bit_offset, bit_size, byte_offset, byte_size });
        }
        // The smallest aligned word that holds all bits.
        loop {
            if byte_size == 0 || byte_size > 8 {
                return Err("a bit field that no word of eight bytes holds".to_owned());
            }
            let byte_offset = bit_offset / 8 / u64::from(byte_size) * u64::from(byte_size);
            if bit_offset + bit_size - byte_offset * 8 <= u64::from(byte_size) * 8 {
                return Ok(Place { ty, is_bitfield: true, bit_offset, bit_size, byte_offset, byte_size });
            }
            byte_size *= 2;
        }
    }
}

fn offset(btf: &Btf, value: u64, ty: u32, size: Option<u32>) -> Answer {
    let resizable = match btf.resolve(ty).map(|t| t.1.kind) {
        Ok(Kind::Ptr(_)) => Some(Resizable::Pointer),
        Ok(Kind::Int(i)) if i.encoding != IntEncoding::Signed => Some(Resizable::Unsigned),
        _ => None,
    };
    Answer { value, certain: true, size, resizable }
}

fn is_signed(btf: &Btf, ty: u32) -> bool {
    match btf.resolve(ty).map(|t| t.1.kind) {
        Ok(Kind::Int(i)) => i.encoding == IntEncoding::Signed,
        Ok(Kind::Enum(e) | Kind::Enum64(e)) => e.signed,
        _ => false,
    }
}

fn size(btf: &Btf, ty: u32) -> Result<u32, String> {
    btf.size_of(ty).map_err(|e| e.to_string())
}
