//! QUEUE and STACK: values without keys, first or last in first out.
//!
//! Programs and user space get copies; each push, pop and peek is atomic.

use parking_lot::Mutex;
use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec, MapType};

use crate::ValueRef;
use crate::ops::Ops;
use crate::storage::Block;

pub(crate) struct Queue {
    stack: bool,
    /// Bytes of a value.
    size: u32,
    len: usize,
    values: Block,
    state: Mutex<State>,
}

/// Which values are there.
struct State {
    /// Place of the oldest.
    tail: usize,
    count: usize,
}

/// Bytes from one value to the next.
fn stride_of(size: u32) -> usize {
    (size as usize).next_multiple_of(8)
}

impl Queue {
    pub(crate) fn new(spec: &MapSpec) -> Result<Queue, Errno> {
        let (size, len) = (spec.value_size, spec.max_entries as usize);
        let values = Block::new(stride_of(size).checked_mul(len).ok_or(Errno::ENOMEM)?)?;
        let state = Mutex::new(State { tail: 0, count: 0 });
        Ok(Queue { stack: spec.map_type == MapType::Stack, size, len, values, state })
    }

    /// A position below twice the length as one of the ring's. No remainder: a division costs more than the rest of a push.
    #[inline]
    fn folded(&self, position: usize) -> usize {
        if position >= self.len { position - self.len } else { position }
    }

    #[inline]
    fn place(&self, position: usize) -> ValueRef<'_> {
        self.values.place(self.folded(position) * stride_of(self.size), self.size as usize)
    }

    fn take(&self, out: &mut [u8], remove: bool) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.count == 0 {
            out.fill(0);
            return Err(Errno::ENOENT);
        }
        let position = if self.stack { state.tail + state.count - 1 } else { state.tail };
        let _ = self.place(position).read_bytes(0, &mut out[..self.size as usize]);
        if remove {
            state.count -= 1;
            if !self.stack {
                state.tail = self.folded(state.tail + 1);
            }
        }
        Ok(())
    }
}

impl Ops for Queue {
    fn blocks(&self) -> Vec<&Block> {
        vec![&self.values]
    }

    fn lookup(&self, _: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        self.take(out, false)
    }

    fn update(&self, _: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.push(value, flags)
    }

    fn delete(&self, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, _: Option<&[u8]>, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn lookup_and_delete(&self, _: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        self.take(out, true)
    }

    fn push(&self, value: &[u8], flags: u64) -> Result<(), Errno> {
        if flags & f::NOEXIST != 0 || flags > f::EXIST {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        if state.count == self.len {
            if flags & f::EXIST == 0 {
                return Err(Errno::E2BIG);
            }
            // The oldest makes room.
            state.tail = self.folded(state.tail + 1);
            state.count -= 1;
        }
        let _ = self.place(state.tail + state.count).write_bytes(0, value);
        state.count += 1;
        Ok(())
    }

    fn pop(&self, out: &mut [u8]) -> Result<(), Errno> {
        self.take(out, true)
    }

    fn peek(&self, value: &mut [u8]) -> Result<(), Errno> {
        self.take(value, false)
    }
}
