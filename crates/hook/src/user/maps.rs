//! Maps of this process in the words of the trait.

use xway_abi::Errno;
use xway_maps::{BatchDone, BatchRead, Map};

use crate::{Elements, HookError, MapId, MapInfo};

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
    }
}

/// Elements of one batch command; more are asked for with further ones.
const BATCH_MAX: u32 = 1 << 16;

pub(super) fn lookup_batch(map: &Map, id: MapId, from: Option<&[u8]>, count: u32) -> Result<Elements, HookError> {
    let count = count.clamp(1, BATCH_MAX);
    let (key, value) = (map.key_size(), map.user_value_size());
    let mut token = vec![0; map.batch_token_size()];
    let (mut keys, mut values) = (vec![0; key * count as usize], vec![0; value * count as usize]);
    let BatchDone { count: done, result } = map.lookup_batch(BatchRead {
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

pub(super) fn update_batch(map: &Map, id: MapId, entries: &[(Vec<u8>, Vec<u8>)], flags: u64) -> Result<u32, HookError> {
    let keys: Vec<u8> = entries.iter().flat_map(|(k, _)| k.iter().copied()).collect();
    let values: Vec<u8> = entries.iter().flat_map(|(_, v)| v.iter().copied()).collect();
    let count = entries.len() as u32;
    done(id, "writing", map.update_batch(&keys, &values, count, flags, 0), count)
}

pub(super) fn delete_batch(map: &Map, id: MapId, keys: &[Vec<u8>]) -> Result<u32, HookError> {
    let all: Vec<u8> = keys.iter().flatten().copied().collect();
    done(id, "removing", map.delete_batch(&all, keys.len() as u32, 0, 0), keys.len() as u32)
}

/// How many elements were done before the first refusal; an error when it was the first of all.
fn done(id: MapId, what: &str, done: BatchDone, asked: u32) -> Result<u32, HookError> {
    match done.result {
        Ok(()) => Ok(done.count),
        Err(_) if done.count > 0 && done.count < asked => Ok(done.count),
        Err(e) => Err(HookError::errno(format!("{id}: {what} a batch"), e)),
    }
}
