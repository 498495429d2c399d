//! Batches of a map's elements in the words of the trait, over the batch commands that both worlds have.

use xway_abi::Errno;

use crate::{Elements, HookError, MapId};

/// How many elements were done, and what stopped it.
pub(crate) type Count = (u32, Result<(), Errno>);

/// What a look-up fills.
pub(crate) struct Room<'a> {
    pub token: &'a mut [u8],
    pub keys: &'a mut [u8],
    pub values: &'a mut [u8],
}

/// The batch commands of one map.
pub(crate) trait Batches {
    /// Bytes of a key, of a value as user space sees it, and of the token that says where to go on.
    fn sizes(&self) -> (usize, usize, usize);
    /// `BPF_MAP_LOOKUP_BATCH`
    fn read(&self, from: Option<&[u8]>, room: Room<'_>, count: u32) -> Count;
    /// `BPF_MAP_UPDATE_BATCH`
    fn write(&self, keys: &mut [u8], values: &mut [u8], count: u32, flags: u64) -> Count;
    /// `BPF_MAP_DELETE_BATCH`
    fn remove(&self, keys: &mut [u8], count: u32) -> Count;
}

/// Elements of one batch command; more are asked for with further ones.
const MAX: u32 = 1 << 16;

pub(crate) fn lookup(map: &impl Batches, id: MapId, from: Option<&[u8]>, count: u32) -> Result<Elements, HookError> {
    let count = count.clamp(1, MAX);
    let (key, value, token) = map.sizes();
    let mut token = vec![0; token];
    let (mut keys, mut values) = (vec![0; key * count as usize], vec![0; value * count as usize]);
    let room = Room { token: &mut token, keys: &mut keys, values: &mut values };
    let (done, result) = map.read(from, room, count);
    let next = match result {
        Ok(()) => Some(token),
        Err(Errno::ENOENT) => None,
        Err(e) => return Err(HookError::errno(format!("{id}: reading a batch"), e)),
    };
    let pairs = keys.chunks(key.max(1)).zip(values.chunks(value.max(1))).take(done as usize);
    Ok(Elements { entries: pairs.map(|(k, v)| (k.to_vec(), v.to_vec())).collect(), next })
}

pub(crate) fn update(
    map: &impl Batches,
    id: MapId,
    entries: &[(Vec<u8>, Vec<u8>)],
    flags: u64,
) -> Result<u32, HookError> {
    let mut keys: Vec<u8> = entries.iter().flat_map(|(k, _)| k.iter().copied()).collect();
    let mut values: Vec<u8> = entries.iter().flat_map(|(_, v)| v.iter().copied()).collect();
    let count = entries.len() as u32;
    done(id, "writing", map.write(&mut keys, &mut values, count, flags), count)
}

pub(crate) fn delete(map: &impl Batches, id: MapId, keys: &[Vec<u8>]) -> Result<u32, HookError> {
    let mut all: Vec<u8> = keys.iter().flatten().copied().collect();
    let count = keys.len() as u32;
    done(id, "removing", map.remove(&mut all, count), count)
}

/// How many elements were done before the first refusal; an error when it was the first of all.
fn done(id: MapId, what: &str, (done, result): Count, asked: u32) -> Result<u32, HookError> {
    match result {
        Ok(()) => Ok(done),
        Err(_) if done > 0 && done < asked => Ok(done),
        Err(e) => Err(HookError::errno(format!("{id}: {what} a batch"), e)),
    }
}
