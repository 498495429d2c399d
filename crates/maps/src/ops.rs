//! What every kind of map can be asked, with the answer Linux gives where the kind has none.

use xway_abi::Errno;

use crate::storage::Block;
use crate::{Guard, ValueRef};

/// Which batch commands a kind has; the others give `ENOTSUPP`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Batches {
    pub(crate) lookup: bool,
    pub(crate) update: bool,
    pub(crate) delete: bool,
    pub(crate) lookup_and_delete: bool,
    /// Reading batches refuse flags of the command itself; elsewhere Linux does not look at them.
    pub(crate) checks_flags: bool,
}

/// Arguments of a batch command that walks the map.
pub(crate) struct Walk<'a> {
    /// Where to go on; `None` is the beginning.
    pub(crate) from: Option<&'a [u8]>,
    /// Where the next call goes on.
    pub(crate) token: &'a mut [u8],
    pub(crate) keys: &'a mut [u8],
    pub(crate) values: &'a mut [u8],
    /// Elements that fit.
    pub(crate) max: usize,
    pub(crate) locked: bool,
    pub(crate) delete: bool,
}

/// One kind of map. Lengths of keys and values have been checked by the caller; flags and permissions that are the same for
/// all kinds too.
pub(crate) trait Ops: Send + Sync {
    /// System call side: copies the value (all CPUs' for per-CPU kinds).
    fn lookup(&self, key: &[u8], out: &mut [u8], locked: bool) -> Result<(), Errno>;

    /// System call side.
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno>;

    /// System call side.
    fn delete(&self, key: &[u8]) -> Result<(), Errno>;

    /// System call side; `None` asks for the first key.
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno>;

    /// System call side.
    fn lookup_and_delete(&self, _key: &[u8], _out: &mut [u8], _locked: bool) -> Result<(), Errno> {
        Err(Errno::ENOTSUPP)
    }

    /// System call side: the batch commands of this kind.
    fn batches(&self) -> Batches {
        Batches::default()
    }

    /// A walk of the kind's own (hash tables go by bucket); `None`: by keys.
    fn walk(&self, _walk: &mut Walk<'_>) -> Option<(u32, Result<(), Errno>)> {
        None
    }

    /// The large pieces of memory that the map consists of.
    fn blocks(&self) -> Vec<&Block> {
        Vec::new()
    }

    /// Bytes of memory taken.
    fn memory(&self) -> usize {
        self.blocks().iter().map(|block| block.memory()).sum()
    }

    /// Program side: a pointer to the value.
    fn value<'g>(&self, _cpu: u32, _key: &[u8], _guard: &'g Guard) -> Option<ValueRef<'g>> {
        None
    }

    /// Program side.
    fn prog_update(&self, _cpu: u32, _key: &[u8], _value: &[u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Program side.
    fn prog_delete(&self, _cpu: u32, _key: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Program side: appends.
    fn push(&self, _value: &[u8], _flags: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Program side: takes the next value out.
    fn pop(&self, _out: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Program side: copies the next value (bloom filter: asks whether `value` was pushed).
    fn peek(&self, _value: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Program side: calls `visit` for each element until it returns `false`; the number of calls. `EINVAL` where the
    /// kind cannot be walked by programs.
    fn for_each<'g>(
        &self,
        _cpu: u32,
        _guard: &'g Guard,
        _visit: &mut dyn FnMut(&[u8], ValueRef<'g>) -> bool,
    ) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }
}

/// `BPF_ANY`, `BPF_NOEXIST` and `BPF_EXIST` with or without `BPF_F_LOCK`; anything else is `EINVAL`.
pub(crate) fn check_update_flags(flags: u64) -> Result<(), Errno> {
    use xway_abi::map_flags::{EXIST, LOCK};
    if flags & !LOCK > EXIST { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The same without `BPF_F_LOCK`.
pub(crate) fn check_plain_flags(flags: u64) -> Result<(), Errno> {
    if flags > xway_abi::map_flags::EXIST { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The index that a 4-byte key is.
#[inline]
pub(crate) fn index_of(key: &[u8]) -> u32 {
    match key {
        [a, b, c, d, ..] => u32::from_ne_bytes([*a, *b, *c, *d]),
        _ => u32::MAX,
    }
}

/// `get_next_key` of everything that is indexed: the first index after a key that is none, then one up.
pub(crate) fn next_index(key: Option<&[u8]>, len: u32, out: &mut [u8]) -> Result<(), Errno> {
    let index = key.map_or(u32::MAX, index_of);
    let next = if index >= len {
        0
    } else if index == len - 1 {
        return Err(Errno::ENOENT);
    } else {
        index + 1
    };
    out[..4].copy_from_slice(&next.to_ne_bytes());
    Ok(())
}
