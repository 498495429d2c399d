//! Maps of this process in the words of the trait.

use xway_abi::Errno;
use xway_maps::{BatchDone, BatchRead, Map};

use crate::batch::{Batches, Count, Room};
use crate::{HookError, MapId, MapInfo};

pub(super) fn info(map: &Map) -> MapInfo {
    let spec = map.spec();
    MapInfo {
        id: MapId(map.id()),
        name: map.name().to_owned(),
        map_type: spec.map_type,
        key_size: spec.key_size,
        value_size: spec.value_size,
        user_value_size: map.user_value_size() as u32,
        max_entries: spec.max_entries,
        flags: spec.flags,
        frozen: map.is_frozen(),
        memory: Some(map.memory().bytes),
        placement: Some(map.placement().to_string()),
    }
}

/// Why values are not mapped, and what would help.
pub(super) fn not_mapped(id: MapId, errno: Errno) -> HookError {
    let error = HookError::errno(format!("{id}: mapping its values"), errno);
    match errno {
        Errno::EINVAL => {
            error.hint("arrays are mapped that were made with BPF_F_MMAPABLE (xway map create … flags 0x400)")
        }
        Errno::ENODEV => error.hint(
            "its memory is this process's alone: when it was made there was no descriptor left, or /proc is missing",
        ),
        Errno::EACCES => error.hint("only for reading"),
        _ => error,
    }
}

impl Batches for Map {
    fn sizes(&self) -> (usize, usize, usize) {
        (self.key_size(), self.user_value_size(), self.batch_token_size())
    }

    fn read(&self, in_batch: Option<&[u8]>, room: Room<'_>, count: u32) -> Count {
        let Room { token: out_batch, keys, values } = room;
        counted(self.lookup_batch(BatchRead { in_batch, out_batch, keys, values, count, elem_flags: 0, flags: 0 }))
    }

    fn write(&self, keys: &mut [u8], values: &mut [u8], count: u32, flags: u64) -> Count {
        counted(self.update_batch(keys, values, count, flags, 0))
    }

    fn remove(&self, keys: &mut [u8], count: u32) -> Count {
        counted(self.delete_batch(keys, count, 0, 0))
    }
}

fn counted(done: BatchDone) -> Count {
    (done.count, done.result)
}
