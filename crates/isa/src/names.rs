//! Names that an instruction's numbers stand for. The instruction set itself knows none of them.

use std::borrow::Cow;

/// Translates between numbers in instructions and names in text, both ways.
///
/// Every method may answer `None`; the text then shows the bare number, and the assembler refuses the bare name.
pub trait Names {
    /// Name of a helper function, for example `bpf_map_lookup_elem` for 1.
    fn helper(&self, _id: u32) -> Option<Cow<'_, str>> {
        None
    }

    /// Name of a kernel function by its BTF id (or its place in the loader's list) and BTF object.
    fn kfunc(&self, _id: i32, _off: i16) -> Option<Cow<'_, str>> {
        None
    }

    /// Name of a map by its index in the loader's table. Only `[A-Za-z0-9_.$]` can be read back by the assembler.
    fn map(&self, _idx: i32) -> Option<Cow<'_, str>> {
        None
    }

    /// Number of a helper function.
    fn helper_id(&self, _name: &str) -> Option<u32> {
        None
    }

    /// BTF id (or place in the loader's list) and BTF object of a kernel function.
    fn kfunc_id(&self, _name: &str) -> Option<(i32, i16)> {
        None
    }

    /// Index of a map.
    fn map_idx(&self, _name: &str) -> Option<i32> {
        None
    }
}

/// No names at all: helpers appear as `helper#1`, maps as `map[idx:0]`.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoNames;

impl Names for NoNames {}
