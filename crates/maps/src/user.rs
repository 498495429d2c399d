//! The system call side: what `bpf(2)` offers to user space, with its permissions and errno values.
//!
//! An empty slice stands for a null pointer. A buffer that is too short is `EFAULT`, as memory is that ends too early; of
//! one that is too long the first bytes are used.

use parking_lot::RwLockReadGuard;
use xway_abi::{Errno, MapType, map_flags};

use crate::Map;
use crate::ops::Walk;

impl Map {
    /// `BPF_MAP_LOOKUP_ELEM`: copies the value of `key` to `out` ([`Map::user_value_size`] bytes).
    ///
    /// `flags` is 0 or `BPF_F_LOCK`. Errors: `ENOENT` no such element; `EPERM` the map is write-only; `EINVAL` flags or
    /// key; `ENOTSUPP` or `EOPNOTSUPP` where the type has no such command. Maps of maps and program arrays give the id of
    /// the object. A bloom filter takes the value in `out`.
    pub fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        check_lock_flag(flags)?;
        self.need_read()?;
        self.need_lock_field(flags)?;
        let key = self.key(key)?;
        let out = out.get_mut(..self.user_value_size()).ok_or(Errno::EFAULT)?;
        self.ops().lookup(key, out, flags & map_flags::LOCK != 0)
    }

    /// `BPF_MAP_UPDATE_ELEM`: creates or overwrites.
    ///
    /// `flags`: `BPF_ANY`, `BPF_NOEXIST` (`EEXIST` when it is there) or `BPF_EXIST` (`ENOENT` when it is not), with
    /// `BPF_F_LOCK` where values have a spin lock. Errors: `EPERM` the map is read-only or frozen; `E2BIG` full or index
    /// too high; `EINVAL` flags; and what the kind of object that descriptors name brings with it (`EBADF`, …).
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        let _writing = self.need_write()?;
        self.need_lock_field(flags)?;
        let key = self.key(key)?;
        let value = value.get(..self.user_value_size()).ok_or(Errno::EFAULT)?;
        self.ops().update(key, value, flags)
    }

    /// `BPF_MAP_DELETE_ELEM`. Errors: `ENOENT` no such element; `EPERM`; `EINVAL` where elements cannot be deleted.
    pub fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        let _writing = self.need_write()?;
        let key = self.key(key)?;
        self.ops().delete(key)
    }

    /// `BPF_MAP_GET_NEXT_KEY`: the key after `key`, or the first one if `key` is `None` or not in the map.
    ///
    /// While nobody writes, a walk from `None` to `ENOENT` sees each key once. Orders that can be relied on: indexed types
    /// go up; an LPM trie gives longer prefixes before those that contain them. Hash tables have no order.
    pub fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        self.need_read()?;
        let key = match key {
            Some(key) => Some(self.key(key)?),
            None => None,
        };
        let out = out.get_mut(..self.key_size()).ok_or(Errno::EFAULT)?;
        self.ops().next_key(key, out)
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`: takes an element out; one of two callers at a time gets it.
    pub fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), Errno> {
        check_lock_flag(flags)?;
        self.need_read()?;
        let _writing = self.need_write()?;
        if flags != 0 && matches!(self.map_type(), MapType::Queue | MapType::Stack) {
            return Err(Errno::EINVAL);
        }
        self.need_lock_field(flags)?;
        let key = self.key(key)?;
        let out = out.get_mut(..self.user_value_size()).ok_or(Errno::EFAULT)?;
        self.ops().lookup_and_delete(key, out, flags & map_flags::LOCK != 0)
    }

    /// `BPF_MAP_FREEZE`: from now on the system call side cannot write; programs still can. `EBUSY` when it is frozen
    /// already or somebody else has its values mapped for writing, `EPERM` when the map is read-only, `ENOTSUPP` when values have special
    /// fields.
    pub fn freeze(&self) -> Result<(), Errno> {
        if !self.spec().special.is_empty() {
            return Err(Errno::ENOTSUPP);
        }
        // Whoever began to write into it has done so by now.
        let _alone = self.writers.write();
        self.may_write()?;
        if !self.is_written_by_others() && self.set_frozen() { Ok(()) } else { Err(Errno::EBUSY) }
    }

    /// Every key, in the order of [`Map::next_key`]. Elements that come or go meanwhile may be missed; the walk ends after
    /// at most `max_entries` keys and some, whatever others do.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let limit = (self.spec().max_entries as usize).saturating_add(64);
        let mut next = vec![0; self.key_size()];
        loop {
            match self.next_key(keys.last().map(Vec::as_slice), &mut next) {
                Ok(()) if keys.len() < limit => keys.push(next.clone()),
                Ok(()) | Err(Errno::ENOENT) => return Ok(keys),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn key<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Errno> {
        if self.key_size() == 0 {
            return if key.is_empty() { Ok(key) } else { Err(Errno::EINVAL) };
        }
        key.get(..self.key_size()).ok_or(Errno::EFAULT)
    }

    fn need_read(&self) -> Result<(), Errno> {
        if self.spec().flags & map_flags::WRONLY != 0 { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// What it gives is held until the writing is done: behind the freezing of a map that programs only read, nothing changes any more.
    fn need_write(&self) -> Result<Option<RwLockReadGuard<'_, ()>>, Errno> {
        let constant = self.spec().flags & map_flags::RDONLY_PROG != 0;
        let writing = constant.then(|| self.writers.read_recursive());
        self.may_write().map(|()| writing)
    }

    fn may_write(&self) -> Result<(), Errno> {
        if self.spec().flags & map_flags::RDONLY != 0 || self.is_frozen() { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn need_lock_field(&self, flags: u64) -> Result<(), Errno> {
        let has = self.spec().special.iter().any(|field| field.kind == xway_abi::SpecialKind::SpinLock);
        if flags & map_flags::LOCK != 0 && !has { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// Arguments of the batch commands that read: `BPF_MAP_LOOKUP_BATCH` and `BPF_MAP_LOOKUP_AND_DELETE_BATCH`.
#[derive(Debug)]
pub struct BatchRead<'a> {
    /// What the call before put into `out_batch`; `None` begins at the beginning.
    pub in_batch: Option<&'a [u8]>,
    /// Filled with where to go on. At least [`Map::batch_token_size`] bytes.
    pub out_batch: &'a mut [u8],
    /// Room for `count` keys.
    pub keys: &'a mut [u8],
    /// Room for `count` values of [`Map::user_value_size`] bytes.
    pub values: &'a mut [u8],
    /// How many elements at most.
    pub count: u32,
    /// 0 or `BPF_F_LOCK`.
    pub elem_flags: u64,
    /// 0.
    pub flags: u64,
}

/// How a batch command ended: `count` is what the kernel leaves in the attribute's `count`, also beside an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchDone {
    /// Elements done. Where the command was refused before it began: the count that was asked for.
    pub count: u32,
    /// `ENOENT` from a read is the end of the map; `ENOSPC` means that not even one bucket of the table fits in `count`.
    pub result: Result<(), Errno>,
}

/// Batch commands.
impl Map {
    /// Bytes of a position token: a bucket number for hash tables, a key for others.
    pub fn batch_token_size(&self) -> usize {
        self.key_size().max(4)
    }

    /// `BPF_MAP_LOOKUP_BATCH`: copies up to `count` elements and says where to go on. `ENOENT` (with a count) at the end.
    pub fn lookup_batch(&self, batch: BatchRead<'_>) -> BatchDone {
        self.read_batch(batch, false)
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_BATCH`: as [`Map::lookup_batch`], and takes the elements out.
    pub fn lookup_and_delete_batch(&self, batch: BatchRead<'_>) -> BatchDone {
        self.read_batch(batch, true)
    }

    /// `BPF_MAP_UPDATE_BATCH`: updates in order until one fails; `count` says how many were done.
    /// Linux does not look at the command's own flags here, nor in [`Map::delete_batch`].
    pub fn update_batch(&self, keys: &[u8], values: &[u8], count: u32, elem_flags: u64, _flags: u64) -> BatchDone {
        let refuse = |errno| BatchDone { count, result: Err(errno) };
        let _writing = match self.need_write() {
            Ok(writing) => writing,
            Err(errno) => return refuse(errno),
        };
        if !self.ops().batches().update {
            return refuse(Errno::ENOTSUPP);
        }
        if let Err(errno) = self.batch_flags(elem_flags) {
            return refuse(errno);
        }
        let (key_size, value_size) = (self.key_size(), self.user_value_size());
        for done in 0..count {
            let at = done as usize;
            let (key, value) = (keys.get(at * key_size..), values.get(at * value_size..));
            let result = match (key, value) {
                (Some(key), Some(value)) if key.len() >= key_size && value.len() >= value_size => {
                    self.ops().update(&key[..key_size], &value[..value_size], elem_flags)
                }
                _ => Err(Errno::EFAULT),
            };
            if result.is_err() {
                return BatchDone { count: done, result };
            }
        }
        BatchDone { count, result: Ok(()) }
    }

    /// `BPF_MAP_DELETE_BATCH`: deletes in order until one fails; `count` says how many were done.
    pub fn delete_batch(&self, keys: &[u8], count: u32, elem_flags: u64, _flags: u64) -> BatchDone {
        let refuse = |errno| BatchDone { count, result: Err(errno) };
        let _writing = match self.need_write() {
            Ok(writing) => writing,
            Err(errno) => return refuse(errno),
        };
        if !self.ops().batches().delete {
            return refuse(Errno::ENOTSUPP);
        }
        if let Err(errno) = self.batch_flags(elem_flags) {
            return refuse(errno);
        }
        let key_size = self.key_size();
        for done in 0..count {
            let result = match keys.get(done as usize * key_size..).filter(|key| key.len() >= key_size) {
                Some(key) => self.ops().delete(&key[..key_size]),
                None => Err(Errno::EFAULT),
            };
            if result.is_err() {
                return BatchDone { count: done, result };
            }
        }
        BatchDone { count, result: Ok(()) }
    }

    fn read_batch(&self, batch: BatchRead<'_>, delete: bool) -> BatchDone {
        let refuse = |errno| BatchDone { count: batch.count, result: Err(errno) };
        let batches = self.ops().batches();
        if let Err(errno) = self.need_read() {
            return refuse(errno);
        }
        let _writing = match delete.then(|| self.need_write()).transpose() {
            Ok(writing) => writing,
            Err(errno) => return refuse(errno),
        };
        if if delete { !batches.lookup_and_delete } else { !batches.lookup } {
            return refuse(Errno::ENOTSUPP);
        }
        if let Err(errno) = self.batch_flags(batch.elem_flags) {
            return refuse(errno);
        }
        if batches.checks_flags && batch.flags != 0 {
            return refuse(Errno::EINVAL);
        }
        if batch.count == 0 {
            return BatchDone { count: 0, result: Ok(()) };
        }
        let max = batch.count as usize;
        let (key_size, value_size) = (self.key_size(), self.user_value_size());
        let short = batch.keys.len() / key_size.max(1) < max
            || batch.values.len() / value_size.max(1) < max
            || batch.out_batch.len() < self.batch_token_size()
            || batch.in_batch.is_some_and(|token| token.len() < self.batch_token_size());
        if short {
            return BatchDone { count: 0, result: Err(Errno::EFAULT) };
        }
        let mut walk = Walk {
            from: batch.in_batch,
            token: batch.out_batch,
            keys: batch.keys,
            values: batch.values,
            max,
            locked: batch.elem_flags & map_flags::LOCK != 0,
            delete,
        };
        let (count, result) = self.ops().walk(&mut walk).unwrap_or_else(|| self.walk_keys(&mut walk));
        BatchDone { count, result }
    }

    /// The walk of types without one of their own: key after key; the token is the last key.
    fn walk_keys(&self, walk: &mut Walk<'_>) -> (u32, Result<(), Errno>) {
        let (key_size, value_size) = (self.key_size(), self.user_value_size());
        let mut last = walk.from.map(|key| key[..key_size].to_vec());
        let mut key = vec![0; key_size];
        let mut done = 0;
        let mut result = Ok(());
        while done < walk.max {
            result = self.ops().next_key(last.as_deref(), &mut key);
            if result.is_err() {
                break;
            }
            let value = &mut walk.values[done * value_size..][..value_size];
            match self.ops().lookup(&key, value, walk.locked) {
                Ok(()) => {
                    walk.keys[done * key_size..][..key_size].copy_from_slice(&key);
                    done += 1;
                }
                Err(Errno::ENOENT) => {}
                Err(errno) => return (0, Err(errno)),
            }
            last = Some(key.clone());
        }
        if let (Some(last), true) = (last, done > 0) {
            walk.token[..key_size].copy_from_slice(&last);
        }
        (done as u32, result)
    }

    fn batch_flags(&self, elem_flags: u64) -> Result<(), Errno> {
        check_lock_flag(elem_flags)?;
        self.need_lock_field(elem_flags)
    }
}

/// 0 or `BPF_F_LOCK`.
fn check_lock_flag(flags: u64) -> Result<(), Errno> {
    if flags & !map_flags::LOCK != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}
