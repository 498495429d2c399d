//! Pointers into map memory that are safe to hold, share and race on.
//!
//! A program gets a pointer to a value and reads and writes through it while other workers, and the system call side, do
//! the same. [`ValueRef`] is that pointer as a safe type: bounds are checked, the memory outlives the guard it was taken
//! under, and every access is atomic (relaxed, in the widest naturally aligned pieces), so that a race gives some mix of
//! the racing writes but never undefined behaviour.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::Guard;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::sum;

/// A value (or a part of one) in a map's memory.
///
/// Copies are cheap: an address and a length. The address is that of the memory itself and does not change for the life
/// of the element.
#[derive(Clone, Copy)]
pub struct ValueRef<'g> {
    base: NonNull<u8>,
    len: u32,
    guard: PhantomData<&'g Guard>,
}

/// Read-modify-write operations of the instruction set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rmw {
    /// `*p += v`
    Add,
    /// `*p |= v`
    Or,
    /// `*p &= v`
    And,
    /// `*p ^= v`
    Xor,
    /// swap
    Xchg,
}

/// Why an access through a [`ValueRef`] was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// The bytes asked for do not all lie inside the value.
    #[error("{len} bytes at offset {offset} leave the value of {size} bytes")]
    Bounds {
        /// First byte asked for.
        offset: usize,
        /// How many.
        len: usize,
        /// Length of the value.
        size: usize,
    },
    /// An atomic operation needs its natural alignment, and exists for 4 and 8 bytes (loads and stores: also 1 and 2).
    #[error("atomic operation of {len} bytes at offset {offset}")]
    Atomic {
        /// First byte asked for.
        offset: usize,
        /// How many.
        len: usize,
    },
}

impl<'g> ValueRef<'g> {
    /// A reference to `len` bytes at `base`.
    ///
    /// # Safety
    /// The bytes are initialised, stay allocated while any guard lives that was pinned when this was called, and are only
    /// ever accessed atomically.
    pub unsafe fn new(base: NonNull<u8>, len: u32, _: &'g Guard) -> ValueRef<'g> {
        ValueRef { base, len, guard: PhantomData }
    }

    /// The same for whoever borrows the memory's owner.
    ///
    /// # Safety
    /// The bytes are initialised, stay allocated for `'g`, and are only ever accessed atomically.
    pub(crate) unsafe fn borrowed(base: NonNull<u8>, len: u32) -> ValueRef<'g> {
        ValueRef { base, len, guard: PhantomData }
    }

    /// The first `len` bytes of a word.
    pub(crate) fn of_word(word: &'g AtomicU64, len: usize) -> ValueRef<'g> {
        assert!(len <= size_of::<AtomicU64>());
        // SAFETY: an initialised word, borrowed for `'g`, and only ever accessed atomically.
        unsafe { ValueRef::borrowed(NonNull::from(word).cast(), len as u32) }
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // A value is never empty.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The address of the first byte, as a number: an identity for the value.
    pub fn addr(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// The first byte, for generated code. Using it needs `unsafe` and the promises of this type: inside `len`, under the
    /// guard, atomically.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The part of `len` bytes at `offset`.
    pub fn slice(&self, offset: usize, len: usize) -> Result<ValueRef<'g>, AccessError> {
        let base = self.check(offset, len)?;
        Ok(ValueRef { base, len: len as u32, guard: PhantomData })
    }

    /// Loads `size` (1, 2, 4 or 8) bytes as a native-endian number. Aligned loads are not torn.
    #[inline]
    pub fn load(&self, offset: usize, size: usize) -> Result<u64, AccessError> {
        let ptr = self.check_sized(offset, size)?.as_ptr();
        if !(ptr as usize).is_multiple_of(size) {
            let mut bytes = [0u8; 8];
            self.read_bytes(offset, &mut bytes[..size])?;
            return Ok(from_ne(&bytes, size));
        }
        // SAFETY: `check` found the bytes inside the value, which is live and only accessed atomically (promise of
        // `new`), and the address is a multiple of the size.
        unsafe {
            match size {
                1 => Ok(u64::from(AtomicU8::from_ptr(ptr).load(Ordering::Relaxed))),
                2 => Ok(u64::from(AtomicU16::from_ptr(ptr.cast()).load(Ordering::Relaxed))),
                4 => Ok(u64::from(AtomicU32::from_ptr(ptr.cast()).load(Ordering::Relaxed))),
                _ => Ok(AtomicU64::from_ptr(ptr.cast()).load(Ordering::Relaxed)),
            }
        }
    }

    /// Stores the low `size` (1, 2, 4 or 8) bytes of a number. Aligned stores are not torn.
    #[inline]
    pub fn store(&self, offset: usize, size: usize, value: u64) -> Result<(), AccessError> {
        let ptr = self.check_sized(offset, size)?.as_ptr();
        if !(ptr as usize).is_multiple_of(size) {
            return self.write_bytes(offset, &to_ne(value, size)[..size]);
        }
        // SAFETY: as in `load`.
        unsafe {
            match size {
                1 => AtomicU8::from_ptr(ptr).store(value as u8, Ordering::Relaxed),
                2 => AtomicU16::from_ptr(ptr.cast()).store(value as u16, Ordering::Relaxed),
                4 => AtomicU32::from_ptr(ptr.cast()).store(value as u32, Ordering::Relaxed),
                _ => AtomicU64::from_ptr(ptr.cast()).store(value, Ordering::Relaxed),
            }
        }
        Ok(())
    }

    /// Load with acquire ordering; `size` 1, 2, 4 or 8, naturally aligned.
    pub fn load_acquire(&self, offset: usize, size: usize) -> Result<u64, AccessError> {
        self.check_aligned(offset, size, &[1, 2, 4, 8])?;
        let value = self.load(offset, size)?;
        std::sync::atomic::fence(Ordering::Acquire);
        Ok(value)
    }

    /// Store with release ordering; `size` 1, 2, 4 or 8, naturally aligned.
    pub fn store_release(&self, offset: usize, size: usize, value: u64) -> Result<(), AccessError> {
        self.check_aligned(offset, size, &[1, 2, 4, 8])?;
        std::sync::atomic::fence(Ordering::Release);
        self.store(offset, size, value)
    }

    /// Atomic read-modify-write of 4 or 8 naturally aligned bytes, sequentially consistent; returns the old number.
    #[inline]
    pub fn rmw(&self, offset: usize, size: usize, op: Rmw, value: u64) -> Result<u64, AccessError> {
        let ptr = self.check_aligned(offset, size, &[4, 8])?.as_ptr();
        const ORDER: Ordering = Ordering::SeqCst;
        // SAFETY: as in `load`; the alignment was checked.
        unsafe {
            if size == 4 {
                let (cell, v) = (AtomicU32::from_ptr(ptr.cast()), value as u32);
                Ok(u64::from(match op {
                    Rmw::Add => cell.fetch_add(v, ORDER),
                    Rmw::Or => cell.fetch_or(v, ORDER),
                    Rmw::And => cell.fetch_and(v, ORDER),
                    Rmw::Xor => cell.fetch_xor(v, ORDER),
                    Rmw::Xchg => cell.swap(v, ORDER),
                }))
            } else {
                let (cell, v) = (AtomicU64::from_ptr(ptr.cast()), value);
                Ok(match op {
                    Rmw::Add => cell.fetch_add(v, ORDER),
                    Rmw::Or => cell.fetch_or(v, ORDER),
                    Rmw::And => cell.fetch_and(v, ORDER),
                    Rmw::Xor => cell.fetch_xor(v, ORDER),
                    Rmw::Xchg => cell.swap(v, ORDER),
                })
            }
        }
    }

    /// Atomic compare-and-exchange of 4 or 8 naturally aligned bytes; returns the number that was there.
    #[inline]
    pub fn cmpxchg(&self, offset: usize, size: usize, old: u64, new: u64) -> Result<u64, AccessError> {
        let ptr = self.check_aligned(offset, size, &[4, 8])?.as_ptr();
        const ORDER: Ordering = Ordering::SeqCst;
        // SAFETY: as in `rmw`.
        unsafe {
            if size == 4 {
                let cell = AtomicU32::from_ptr(ptr.cast());
                let was = match cell.compare_exchange(old as u32, new as u32, ORDER, ORDER) {
                    Ok(was) | Err(was) => was,
                };
                Ok(u64::from(was))
            } else {
                let cell = AtomicU64::from_ptr(ptr.cast());
                match cell.compare_exchange(old, new, ORDER, ORDER) {
                    Ok(was) | Err(was) => Ok(was),
                }
            }
        }
    }

    /// Copies bytes out, in the widest aligned pieces: no aligned 2, 4 or 8 bytes that others write at once are torn.
    pub fn read_bytes(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        let base = self.check(offset, out.len())?.as_ptr();
        let mut at = 0;
        while at < out.len() {
            if (base as usize + at).is_multiple_of(8) && out.len() - at >= 8 {
                for chunk in out[at..].as_chunks_mut::<8>().0 {
                    // SAFETY: as below; the address is a multiple of 8 and 8 bytes are left.
                    *chunk = unsafe { AtomicU64::from_ptr(base.add(at).cast()).load(Ordering::Relaxed) }.to_ne_bytes();
                    at += 8;
                }
                continue;
            }
            // SAFETY: `at + piece <= out.len()`, which `check` found inside the value; `piece` divides the address; the
            // memory is live and only accessed atomically.
            let (piece, value) = unsafe {
                let ptr = base.add(at);
                match widest(ptr as usize, out.len() - at) {
                    4.. => (4, u64::from(AtomicU32::from_ptr(ptr.cast()).load(Ordering::Relaxed))),
                    2 => (2, u64::from(AtomicU16::from_ptr(ptr.cast()).load(Ordering::Relaxed))),
                    _ => (1, u64::from(AtomicU8::from_ptr(ptr).load(Ordering::Relaxed))),
                }
            };
            out[at..at + piece].copy_from_slice(&to_ne(value, piece)[..piece]);
            at += piece;
        }
        Ok(())
    }

    /// The sum of all words of four bytes in the machine's order, the last one filled up with zeros: some number with the same remainder
    /// by 2^32 - 1, and zero only where all bytes are. Each byte is read once. `None` where it cannot be told without a copy: of some
    /// bytes at odd addresses.
    pub fn sum_of_words(&self) -> Option<u64> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if self.len() >= sum::BLOCK {
            // SAFETY: the value's bytes, which are live while `self` is.
            return Some(unsafe { sum::of_bytes(self.base.as_ptr(), self.len()) });
        }
        self.sum_of_aligned()
    }

    /// The same in the widest aligned pieces; `None` at odd addresses.
    fn sum_of_aligned(&self) -> Option<u64> {
        let (base, len) = (self.base.as_ptr(), self.len());
        if cfg!(target_endian = "big") || !(base as usize).is_multiple_of(2) {
            return None;
        }
        // What of it begins in the middle of a word has its halves the other way round: a turn by 16 bits, which multiplies by 2^16.
        let turned = !(base as usize).is_multiple_of(4);
        let turn = |word: u32| u64::from(if turned { word.rotate_left(16) } else { word });
        let (mut at, mut sum) = (0, 0u64);
        // SAFETY: each access is of as many bytes as are left from `at` on, which lie inside the value; its address is a multiple of its
        // width, as the steps say; the memory is live and only accessed atomically (promise of `new`).
        unsafe {
            let half = |at: usize| u64::from(AtomicU16::from_ptr(base.add(at).cast()).load(Ordering::Relaxed));
            let word = |at: usize| AtomicU32::from_ptr(base.add(at).cast()).load(Ordering::Relaxed);
            let both = |at: usize| AtomicU64::from_ptr(base.add(at).cast()).load(Ordering::Relaxed);
            if turned && len >= 2 {
                (sum, at) = (half(0), 2);
            }
            // A multiple of four, unless a single byte is all there is.
            if (base as usize + at) % 8 == 4 && len - at >= 4 {
                sum += turn(word(at));
                at += 4;
            }
            // A multiple of eight now, or fewer than four bytes are left.
            let mut sums = [0u64; 2];
            let add = |sum: &mut u64, more: u64| {
                let (low, carry) = sum.overflowing_add(more);
                *sum = low + u64::from(carry);
            };
            while len - at >= 16 {
                add(&mut sums[0], both(at));
                add(&mut sums[1], both(at + 8));
                at += 16;
            }
            if len - at >= 8 {
                add(&mut sums[0], both(at));
                at += 8;
            }
            for all in sums {
                let all = (all & 0xffff_ffff) + (all >> 32);
                sum += turn(((all & 0xffff_ffff) + (all >> 32)) as u32);
            }
            if len - at >= 4 {
                sum += turn(word(at));
                at += 4;
            }
            if len - at >= 2 {
                sum += half(at) << (8 * (at % 4));
                at += 2;
            }
            if len > at {
                sum += u64::from(AtomicU8::from_ptr(base.add(at)).load(Ordering::Relaxed)) << (8 * (at % 4));
            }
        }
        Some(sum)
    }

    /// Copies bytes in, in the widest aligned pieces.
    #[inline]
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let base = self.check(offset, bytes.len())?.as_ptr();
        let mut at = 0;
        if (base as usize).is_multiple_of(8) {
            // The usual case: whole values.
            for chunk in bytes.as_chunks::<8>().0 {
                // SAFETY: as in `read_bytes`; the address is a multiple of 8 and 8 bytes are left.
                unsafe {
                    AtomicU64::from_ptr(base.add(at).cast()).store(u64::from_ne_bytes(*chunk), Ordering::Relaxed)
                };
                at += 8;
            }
        }
        while at < bytes.len() {
            // SAFETY: as in `read_bytes`.
            unsafe {
                let ptr = base.add(at);
                let piece = widest(ptr as usize, bytes.len() - at);
                let value = from_ne(&bytes[at..], piece);
                match piece {
                    8 => AtomicU64::from_ptr(ptr.cast()).store(value, Ordering::Relaxed),
                    4 => AtomicU32::from_ptr(ptr.cast()).store(value as u32, Ordering::Relaxed),
                    2 => AtomicU16::from_ptr(ptr.cast()).store(value as u16, Ordering::Relaxed),
                    _ => AtomicU8::from_ptr(ptr).store(value as u8, Ordering::Relaxed),
                }
                at += piece;
            }
        }
        Ok(())
    }

    /// The whole value as a vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        self.read_bytes(0, &mut out).expect("the value's own length");
        out
    }

    /// Takes the spin lock (`struct bpf_spin_lock`, 4 bytes) at `offset`, waiting for it; `false` when `offset` is not a
    /// place for one.
    pub fn spin_lock(&self, offset: usize) -> bool {
        let mut tries = 0u32;
        loop {
            match self.cmpxchg(offset, 4, 0, 1) {
                Ok(0) => return true,
                Ok(_) => {
                    tries += 1;
                    if tries.is_multiple_of(64) { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
                Err(_) => return false,
            }
        }
    }

    /// Releases the spin lock at `offset`.
    pub fn spin_unlock(&self, offset: usize) -> bool {
        let Ok(base) = self.check_aligned(offset, 4, &[4]) else { return false };
        // SAFETY: `check_aligned` found an aligned word inside the value, which is live and only accessed atomically.
        unsafe { AtomicU32::from_ptr(base.as_ptr().cast()) }.store(0, Ordering::Release);
        true
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<NonNull<u8>, AccessError> {
        match offset.checked_add(len) {
            // SAFETY: `offset` lies inside the value or one past its end, so inside (or at the end of) one allocation.
            Some(end) if end <= self.len() => Ok(unsafe { self.base.add(offset) }),
            _ => Err(AccessError::Bounds { offset, len, size: self.len() }),
        }
    }

    /// As `check`, for 1, 2, 4 or 8 bytes.
    #[inline]
    fn check_sized(&self, offset: usize, size: usize) -> Result<NonNull<u8>, AccessError> {
        if matches!(size, 1 | 2 | 4 | 8) {
            self.check(offset, size)
        } else {
            Err(AccessError::Atomic { offset, len: size })
        }
    }

    #[inline]
    fn check_aligned(&self, offset: usize, size: usize, sizes: &[usize]) -> Result<NonNull<u8>, AccessError> {
        let base = self.check(offset, size)?;
        if sizes.contains(&size) && (base.as_ptr() as usize).is_multiple_of(size) {
            Ok(base)
        } else {
            Err(AccessError::Atomic { offset, len: size })
        }
    }
}

impl std::fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueRef({:#x}, {} bytes)", self.addr(), self.len)
    }
}

/// The largest of 8, 4, 2, 1 that divides the address and is not more than `left`.
#[inline]
fn widest(addr: usize, left: usize) -> usize {
    [8, 4, 2].into_iter().find(|&n| left >= n && addr.is_multiple_of(n)).unwrap_or(1)
}

#[inline]
fn from_ne(bytes: &[u8], size: usize) -> u64 {
    match size {
        1 => u64::from(bytes[0]),
        2 => u64::from(u16::from_ne_bytes([bytes[0], bytes[1]])),
        4 => u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        _ => u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes")),
    }
}

#[inline]
fn to_ne(value: u64, size: usize) -> [u8; 8] {
    let mut out = [0; 8];
    match size {
        1 => out[0] = value as u8,
        2 => out[..2].copy_from_slice(&(value as u16).to_ne_bytes()),
        4 => out[..4].copy_from_slice(&(value as u32).to_ne_bytes()),
        _ => out = value.to_ne_bytes(),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Block;

    #[test]
    fn every_size_and_offset_reads_back() {
        let block = Block::new(64).unwrap();
        let guard = Guard::pin();
        let value = block.value(0, 40, &guard);
        for size in [1, 2, 4, 8] {
            for offset in 0..=40 - size {
                value.write_bytes(0, &[0xee; 40]).unwrap();
                value.store(offset, size, 0x1122_3344_5566_7788).unwrap();
                let mask = if size == 8 { u64::MAX } else { (1 << (8 * size)) - 1 };
                assert_eq!(value.load(offset, size).unwrap(), 0x1122_3344_5566_7788 & mask);
                let bytes = value.to_vec();
                assert!(bytes.iter().enumerate().all(|(i, b)| (offset..offset + size).contains(&i) || *b == 0xee));
            }
            assert!(value.load(41 - size, size).is_err());
            assert!(value.store(41 - size, size, 0).is_err());
        }
        assert!(value.load(usize::MAX, 8).is_err());
        assert!(value.load(0, 3).is_err());
    }

    #[test]
    fn bulk_copies_at_every_offset_and_length() {
        let block = Block::new(64).unwrap();
        let guard = Guard::pin();
        let value = block.value(0, 33, &guard);
        let pattern: Vec<u8> = (1..=33).collect();
        for offset in if cfg!(miri) { 0..9 } else { 0..33 } {
            for len in 0..=33 - offset {
                value.write_bytes(0, &[0; 33]).unwrap();
                value.write_bytes(offset, &pattern[..len]).unwrap();
                let mut back = vec![0; len];
                value.read_bytes(offset, &mut back).unwrap();
                assert_eq!(back, pattern[..len]);
                assert_eq!(value.to_vec().iter().filter(|b| **b != 0).count(), len);
            }
        }
        assert!(value.slice(30, 4).is_err());
        assert_eq!(value.slice(30, 3).unwrap().len(), 3);
    }

    #[test]
    fn sums_of_words_are_those_of_a_copy() {
        let block = Block::new(2048).unwrap();
        let guard = Guard::pin();
        let all = block.value(0, 2048, &guard);
        let canonical = |sum: u64| if sum == 0 { 0 } else { (sum - 1) % 0xffff_ffff + 1 };
        let patterns: [fn(usize) -> u8; 4] = [|n| (n * 37 + n / 7) as u8, |_| 0xff, |_| 0, |n| u8::from(n % 4 == 2)];
        for pattern in patterns {
            all.write_bytes(0, &(0..2048).map(pattern).collect::<Vec<u8>>()).unwrap();
            let lengths = (1..if cfg!(miri) { 12 } else { 80 }).chain([255, 256, 1400, 1403]);
            for (offset, len) in lengths.flat_map(|len| (0..17).map(move |offset| (offset, len))) {
                let part = all.slice(offset, len).unwrap();
                let mut copy = part.to_vec();
                copy.resize(len.next_multiple_of(4), 0);
                let words = copy.as_chunks::<4>().0.iter().map(|w| u64::from(u32::from_ne_bytes(*w)));
                let all_at_once = len >= 64 && cfg!(all(target_arch = "x86_64", not(miri)));
                match part.sum_of_words() {
                    Some(sum) => assert_eq!(canonical(sum), canonical(words.sum()), "{len} bytes at {offset}"),
                    None => assert!(offset % 2 == 1 && !all_at_once || cfg!(target_endian = "big")),
                }
            }
        }
    }

    #[test]
    fn read_modify_write() {
        let block = Block::new(64).unwrap();
        let guard = Guard::pin();
        let value = block.value(0, 16, &guard);
        assert_eq!(value.rmw(8, 8, Rmw::Add, 5).unwrap(), 0);
        assert_eq!(value.rmw(8, 8, Rmw::Or, 8).unwrap(), 5);
        assert_eq!(value.rmw(8, 8, Rmw::And, 12).unwrap(), 13);
        assert_eq!(value.rmw(8, 8, Rmw::Xor, 1).unwrap(), 12);
        assert_eq!(value.rmw(8, 8, Rmw::Xchg, 1 << 40).unwrap(), 13);
        assert_eq!(value.cmpxchg(8, 8, 1, 2).unwrap(), 1 << 40);
        assert_eq!(value.cmpxchg(8, 8, 1 << 40, 2).unwrap(), 1 << 40);
        assert_eq!(value.load(8, 8).unwrap(), 2);
        assert_eq!(value.rmw(4, 4, Rmw::Add, u64::MAX).unwrap(), 0);
        assert_eq!(value.load(4, 4).unwrap(), u64::from(u32::MAX));
        assert_eq!(value.load(8, 8).unwrap(), 2);
        assert!(value.rmw(4, 8, Rmw::Add, 1).is_err());
        assert!(value.rmw(2, 4, Rmw::Add, 1).is_err());
        assert!(value.rmw(0, 2, Rmw::Add, 1).is_err());
        assert!(value.spin_lock(0) && value.load(0, 4).unwrap() == 1 && value.spin_unlock(0));
    }
}
