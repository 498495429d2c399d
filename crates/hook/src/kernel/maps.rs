//! Maps of the kernel in the words of the trait.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::MapType;
use xway_kernel::{Batch, KernelMap};

use super::{Kernel, by_id};
use crate::batch::{Batches, Count, Room};
use crate::{HookError, MapId, MapInfo};

/// Descriptors of PROG_ARRAYs that were asked about by their numbers: one each, for all questions that follow one another.
///
/// When the last user's reference of a PROG_ARRAY goes, Linux takes a reference of its own until a worker has emptied the array. If
/// the last one goes a second time before that worker has run, it is queued once and holds two: the map stays until the machine
/// restarts. So nobody here opens one, closes it and opens it again at once, and none goes sooner than [`Self::HELD`] behind its
/// opening: commands that follow one another meet each other's clearing work otherwise.
#[derive(Debug, Default)]
pub(super) struct Asked(RefCell<Vec<One>>);

#[derive(Debug)]
struct One {
    id: u32,
    opened: Instant,
    last: Instant,
    map: Arc<KernelMap>,
}

impl Asked {
    /// Behind this nobody asks any more, and a worker of the kernel has long run: a process that lives longer holds no map of others.
    const IDLE: Duration = Duration::from_secs(1);
    /// The worker of the one who asked before has run by then, and ours finds nothing queued.
    const HELD: Duration = Duration::from_millis(100);
    /// Most descriptors; the one that waits for longest is closed.
    const MAX: usize = 512;

    fn find(&self, id: u32) -> Option<Arc<KernelMap>> {
        let mut all = self.0.borrow_mut();
        let now = Instant::now();
        all.retain(|one| one.id == id || now.duration_since(one.last) < Self::IDLE);
        let at = all.iter().position(|one| one.id == id)?;
        let mut found = all.remove(at);
        found.last = now;
        let map = found.map.clone();
        all.push(found);
        Some(map)
    }

    fn keep(&self, id: u32, map: Arc<KernelMap>) {
        let mut all = self.0.borrow_mut();
        if all.len() >= Self::MAX {
            all.remove(0);
        }
        let now = Instant::now();
        all.push(One { id, opened: now, last: now, map });
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let youngest = self.0.get_mut().iter().map(|one| one.opened).max();
        if let Some(rest) = youngest.and_then(|opened| Self::HELD.checked_sub(opened.elapsed())) {
            std::thread::sleep(rest);
        }
    }
}

impl Kernel {
    /// Number of a map's types; `None`: it has gone. Zero: it has none.
    pub fn map_btf_id(&self, id: MapId) -> Option<u32> {
        self.map(id, |map| Ok(map.info().map_err(|e| HookError::errno("asking about a map", e))?.btf_id)).ok()
    }

    /// Does something with a map, held or not.
    pub(super) fn map<T>(
        &self,
        id: MapId,
        then: impl FnOnce(&KernelMap) -> Result<T, HookError>,
    ) -> Result<T, HookError> {
        if let Some(held) = self.maps.get(&id.0) {
            return then(held);
        }
        if let Some(asked) = self.asked.find(id.0) {
            return then(&asked);
        }
        let map = Arc::new(KernelMap::by_id(id.0).map_err(|e| by_id(id, &e))?);
        if map.spec().map_type == MapType::ProgArray {
            self.asked.keep(id.0, map.clone());
        }
        then(&map)
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
