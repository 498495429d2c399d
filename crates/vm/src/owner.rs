//! Who owns an instance whole: the end of a ring that reference counts alone would keep for ever.

use std::ops::Deref;

use xway_abi::MapType;
use xway_maps::Guard;

use crate::Instance;

/// An [`Instance`] whose maps belong to it alone.
///
/// A program keeps its maps alive, and a PROG_ARRAY the programs in it: once an array holds a program that uses it, neither would
/// ever go. Linux empties an array when nobody in user space refers to it any more; here that is the end of this owner, which stands
/// above both. Programs that somebody still runs then stay, and their tail calls miss, as in Linux.
pub struct Owner(Instance);

impl Owner {
    /// Takes an instance over. Its maps must be shared with no other instance: their arrays would be emptied too.
    pub fn new(instance: Instance) -> Owner {
        Owner(instance)
    }
}

impl Deref for Owner {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let arrays = self.0.maps().iter().filter(|map| map.map_type() == MapType::ProgArray);
        arrays.for_each(|array| array.clear_programs());
        Guard::collect();
    }
}
