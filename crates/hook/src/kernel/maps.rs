//! Maps of the kernel in the words of the trait.

use std::os::fd::{AsFd, AsRawFd};

use xway_abi::Errno;
use xway_kernel::{Batch, KernelMap};

use super::{Kernel, by_id};
use crate::{Elements, HookError, MapId, MapInfo};

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
    })
}

pub(super) fn lookup(map: &KernelMap, id: MapId, key: &[u8], flags: u64) -> Result<Vec<u8>, HookError> {
    let mut out = vec![0; map.user_value_size()];
    map.lookup(key, &mut out, flags).map_err(|e| HookError::errno(format!("{id}: the look-up"), e))?;
    Ok(out)
}

/// Elements of one batch command; more are asked for with further ones.
pub(super) const BATCH_MAX: u32 = 1 << 16;

pub(super) fn lookup_batch(map: &KernelMap, id: MapId, from: Option<&[u8]>, count: u32) -> Result<Elements, HookError> {
    let count = count.clamp(1, BATCH_MAX);
    let (key, value) = (map.spec().key_size as usize, map.user_value_size());
    let mut token = vec![0; map.batch_token_size()];
    let (mut keys, mut values) = (vec![0; key * count as usize], vec![0; value * count as usize]);
    let (done, result) = map.lookup_batch(Batch {
        in_batch: from,
        out_batch: &mut token,
        keys: &mut keys,
        values: &mut values,
        count,
        elem_flags: 0,
        flags: 0,
    });
    let next = match result {
        Ok(()) => Some(token),
        Err(Errno::ENOENT) => None,
        Err(e) => return Err(HookError::errno(format!("{id}: reading a batch"), e)),
    };
    let pairs = keys.chunks(key.max(1)).zip(values.chunks(value.max(1))).take(done as usize);
    Ok(Elements { entries: pairs.map(|(k, v)| (k.to_vec(), v.to_vec())).collect(), next })
}

pub(super) fn update_batch(
    map: &KernelMap,
    id: MapId,
    entries: &[(Vec<u8>, Vec<u8>)],
    flags: u64,
) -> Result<u32, HookError> {
    let mut keys: Vec<u8> = entries.iter().flat_map(|(k, _)| k.iter().copied()).collect();
    let mut values: Vec<u8> = entries.iter().flat_map(|(_, v)| v.iter().copied()).collect();
    let count = entries.len() as u32;
    batch(id, "writing", map.update_batch(whole(&mut keys, &mut values, count, flags)), count)
}

pub(super) fn delete_batch(map: &KernelMap, id: MapId, keys: &[Vec<u8>]) -> Result<u32, HookError> {
    let mut all: Vec<u8> = keys.iter().flatten().copied().collect();
    let count = keys.len() as u32;
    batch(id, "removing", map.delete_batch(whole(&mut all, &mut [], count, 0)), count)
}

fn whole<'a>(keys: &'a mut [u8], values: &'a mut [u8], count: u32, elem_flags: u64) -> Batch<'a> {
    Batch { in_batch: None, out_batch: &mut [], keys, values, count, elem_flags, flags: 0 }
}

/// How many elements were done before the first refusal; an error when it was the first of all.
fn batch(id: MapId, what: &str, (done, result): (u32, Result<(), Errno>), count: u32) -> Result<u32, HookError> {
    match result {
        Ok(()) => Ok(done),
        Err(_) if done > 0 && done < count => Ok(done),
        Err(e) => Err(HookError::errno(format!("{id}: {what} a batch"), e)),
    }
}
