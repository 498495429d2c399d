//! Slots for shared objects (programs, inner maps, sockets) that readers reach without a lock.
#![allow(unsafe_code)]
// Why unsafe: a slot is one pointer to a boxed object, swapped atomically; what was swapped out is
// freed when no guard can see it any more.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use xway_abi::Errno;

use crate::Guard;
use crate::storage::Block;

/// An array of optional `T`s. Reading costs one load; the array costs memory only where slots were written.
pub(crate) struct Slots<T: Send + Sync + 'static> {
    /// One pointer for each slot: null, or a `Box<T>` that the slot owns.
    pointers: Block,
    len: u32,
    /// One more than the highest slot ever set.
    used: AtomicU32,
    owns: PhantomData<T>,
}

impl<T: Send + Sync + 'static> Slots<T> {
    pub(crate) fn new(len: u32) -> Result<Slots<T>, Errno> {
        Slots::on(len, Block::new)
    }

    /// The same for slots that are used from the front on: what nobody came to takes no memory.
    pub(crate) fn growing(len: u32) -> Result<Slots<T>, Errno> {
        Slots::on(len, Block::growing)
    }

    fn on(len: u32, block: impl FnOnce(usize) -> Result<Block, Errno>) -> Result<Slots<T>, Errno> {
        let bytes = (len as usize).checked_mul(size_of::<*mut T>()).ok_or(Errno::ENOMEM)?;
        Ok(Slots { pointers: block(bytes)?, len, used: AtomicU32::new(0), owns: PhantomData })
    }

    /// What is in the slot; valid as long as the guard, even when it is replaced meanwhile.
    #[inline]
    pub(crate) fn get<'g>(&self, index: usize, _: &'g Guard) -> Option<&'g T> {
        let ptr = self.pointers.pointers::<T>().get(index)?.load(Ordering::Acquire);
        // SAFETY: a pointer that is not null is that of a live box: `set` put it there (release), and whoever swaps it
        // out defers its drop until all guards pinned by then, ours among them, are gone.
        unsafe { ptr.as_ref() }
    }

    /// The pointers' memory.
    pub(crate) fn block(&self) -> &Block {
        &self.pointers
    }

    /// Bytes of pointers, and of an object for each slot up to the highest ever set.
    pub(crate) fn memory(&self) -> usize {
        self.pointers.memory() + self.used() as usize * size_of::<T>()
    }

    /// One more than the highest slot ever set.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Puts `object` (or nothing) into the slot. Returns whether there was an object before. Panics when the index lies
    /// outside: callers check.
    pub(crate) fn set(&self, index: usize, object: Option<T>) -> bool {
        self.replace(index, object).is_some()
    }

    /// The same for who holds a lock: what was there is retired when the result is dropped, which may take as long as it takes to free
    /// what others have removed.
    pub(crate) fn replace(&self, index: usize, object: Option<T>) -> Option<Retired<T>> {
        let new = object.map_or(std::ptr::null_mut(), |object| {
            self.used.fetch_max(index as u32 + 1, Ordering::Relaxed);
            Box::into_raw(Box::new(object))
        });
        let old = self.pointers.pointers::<T>()[index].swap(new, Ordering::AcqRel);
        Self::retired(old)
    }

    /// Puts `object` into the slot if it is empty; gives it back otherwise.
    pub(crate) fn set_if_empty(&self, index: usize, object: T) -> Result<(), T> {
        self.used.fetch_max(index as u32 + 1, Ordering::Relaxed);
        let raw = Box::into_raw(Box::new(object));
        let slot = &self.pointers.pointers::<T>()[index];
        match slot.compare_exchange(std::ptr::null_mut(), raw, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            // SAFETY: the exchange failed, so nobody else has seen the box that was made above.
            Err(_) => Err(*unsafe { Box::from_raw(raw) }),
        }
    }

    fn retired(ptr: *mut T) -> Option<Retired<T>> {
        // SAFETY: a pointer that is not null was swapped out of its slot, so this is the only owner of the box made in `replace`.
        (!ptr.is_null()).then(|| Retired(Some(unsafe { Box::from_raw(ptr) })))
    }
}

/// What was in a slot. Goes behind the guards that may still see it.
pub(crate) struct Retired<T: Send + Sync + 'static>(Option<Box<T>>);

impl<T: Send + Sync + 'static> Drop for Retired<T> {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            crate::guard::retire(object);
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Slots<T> {
    fn drop(&mut self) {
        for slot in &self.pointers.pointers::<T>()[..self.used.load(Ordering::Relaxed) as usize] {
            drop(Self::retired(slot.swap(std::ptr::null_mut(), Ordering::AcqRel)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn set_get_replace() {
        let slots: Slots<Arc<u32>> = Slots::new(4).unwrap();
        let first = Arc::new(1);
        let guard = Guard::pin();
        assert!(slots.get(0, &guard).is_none() && slots.get(4, &guard).is_none());
        assert!(!slots.set(3, Some(first.clone())));
        let seen = slots.get(3, &guard).unwrap();
        assert!(slots.set(3, Some(Arc::new(2))));
        assert_eq!((**seen, **slots.get(3, &guard).unwrap()), (1, 2));
        assert!(slots.set_if_empty(3, Arc::new(3)).is_err());
        assert!(slots.set(3, None));
        assert!(slots.set_if_empty(3, Arc::new(3)).is_ok());
        drop(slots);
        assert_eq!(**seen, 1);
    }

    #[test]
    fn readers_race_with_a_writer() {
        let slots: Slots<Arc<u64>> = Slots::new(1).unwrap();
        let rounds = if cfg!(miri) { 20 } else { 2000 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    for _ in 0..rounds {
                        let guard = Guard::pin();
                        if let Some(value) = slots.get(0, &guard) {
                            assert!(**value >= last);
                            last = **value;
                        }
                    }
                });
            }
            for round in 1..=rounds {
                slots.set(0, Some(Arc::new(round)));
            }
        });
    }
}
