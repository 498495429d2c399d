//! Names in assembler text and in listings.

use std::borrow::Cow;

/// Linux's helpers by their names, both ways; maps and kernel functions are numbers. For code that comes without its object.
#[derive(Clone, Copy, Default, Debug)]
pub struct HelperNames;

impl xway_isa::Names for HelperNames {
    fn helper(&self, id: u32) -> Option<Cow<'_, str>> {
        xway_abi::helper(id).map(|helper| helper.name.into())
    }

    fn helper_id(&self, name: &str) -> Option<u32> {
        xway_abi::helper_by_name(name).map(|helper| helper.id)
    }
}
