//! Keys and values of maps as JSON, both ways, typed where the object says what they are.
//!
//! Without a type, bytes are a literal (`"hex:0a 0b"`). What [`decode()`] prints, [`encode()`] reads back.

mod decode;
mod encode;

pub use decode::decode;
pub use encode::encode;

use xway_object::Btf;

/// What is known about a key or a value.
#[derive(Clone, Copy)]
pub struct Shape<'a> {
    /// Types, and the type's id in them.
    pub typed: Option<(&'a Btf, u32)>,
    /// Length in bytes.
    pub size: usize,
}

impl<'a> Shape<'a> {
    /// A shape; the type is dropped when there is none or when it is longer than the bytes that there are.
    pub fn new(btf: Option<&'a Btf>, type_id: u32, size: usize) -> Shape<'a> {
        let fits = |btf: &&Btf| type_id != 0 && btf.size_of(type_id).is_ok_and(|s| s as usize <= size);
        Shape { typed: btf.filter(fits).map(|b| (b, type_id)), size }
    }
}

/// Nesting that is followed; deeper types are bytes.
const DEPTH_MAX: usize = 32;

#[cfg(test)]
mod tests;
