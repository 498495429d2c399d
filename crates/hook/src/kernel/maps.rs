//! Maps of the kernel in the words of the trait.

use std::os::fd::{AsFd, AsRawFd};

use xway_kernel::{Batch, KernelMap};

use super::{Kernel, by_id};
use crate::batch::{Batches, Count, Room};
use crate::{HookError, MapId, MapInfo};

impl Kernel {
    /// Does something with a map, held or not.
    pub(super) fn map<T>(
        &self,
        id: MapId,
        then: impl FnOnce(&KernelMap) -> Result<T, HookError>,
    ) -> Result<T, HookError> {
        match self.maps.get(&id.0) {
            Some(map) => then(map),
            None => then(&KernelMap::by_id(id.0).map_err(|e| by_id(id, &e))?),
        }
    }
}

pub(super) fn info(map: &KernelMap) -> Result<MapInfo, HookError> {
    let info = map.info().map_err(|e| HookError::errno("asking about a map", e))?;
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    let fdinfo = std::fs::read_to_string(path).unwrap_or_default();
    let field = |name: &str| fdinfo.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    Ok(MapInfo {
        id: MapId(info.id),
        name: info.name,
        map_type: map.spec().map_type,
        key_size: info.key_size,
        value_size: info.value_size,
        user_value_size: map.user_value_size() as u32,
        max_entries: info.max_entries,
        flags: info.flags,
        frozen: field("frozen:") == Some("1"),
        memory: field("memlock:").and_then(|v| v.parse().ok()),
        placement: None,
    })
}

pub(super) fn lookup(map: &KernelMap, id: MapId, key: &[u8], flags: u64) -> Result<Vec<u8>, HookError> {
    let mut out = vec![0; map.user_value_size()];
    map.lookup(key, &mut out, flags).map_err(|e| HookError::errno(format!("{id}: the look-up"), e))?;
    Ok(out)
}

impl Batches for KernelMap {
    fn sizes(&self) -> (usize, usize, usize) {
        (self.spec().key_size as usize, self.user_value_size(), self.batch_token_size())
    }

    fn read(&self, in_batch: Option<&[u8]>, room: Room<'_>, count: u32) -> Count {
        let Room { token: out_batch, keys, values } = room;
        self.lookup_batch(Batch { in_batch, out_batch, keys, values, count, elem_flags: 0, flags: 0 })
    }

    fn write(&self, keys: &mut [u8], values: &mut [u8], count: u32, elem_flags: u64) -> Count {
        self.update_batch(Batch { in_batch: None, out_batch: &mut [], keys, values, count, elem_flags, flags: 0 })
    }

    fn remove(&self, keys: &mut [u8], count: u32) -> Count {
        let whole = Batch { in_batch: None, out_batch: &mut [], keys, values: &mut [], count, elem_flags: 0, flags: 0 };
        self.delete_batch(whole)
    }
}
