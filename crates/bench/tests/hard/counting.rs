//! An allocator that counts, for tests that hold what a part of the program says of its memory against what it takes.
#![allow(unsafe_code)]
#![allow(dead_code)] // each test uses its part

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, counted.
pub struct Counting {
    now: AtomicUsize,
    start: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// Nothing counted yet.
    pub const fn new() -> Counting {
        Counting { now: AtomicUsize::new(0), start: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// From now on [`Counting::peak`] speaks of what is taken beyond what is held now.
    pub fn begin(&self) {
        let now = self.now.load(Relaxed);
        self.start.store(now, Relaxed);
        self.peak.store(now, Relaxed);
    }

    /// Most bytes held at the same time since [`Counting::begin`], less those held then. All threads count.
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed) - self.start.load(Relaxed)
    }

    /// Bytes that are held now.
    pub fn now(&self) -> usize {
        self.now.load(Relaxed)
    }

    fn took(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(now, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory that is handed out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.took(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.took(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.now.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from `alloc` above and so from the system's allocator, with this layout; the caller says so.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() {
            self.took(size - layout.size());
        } else {
            self.now.fetch_sub(layout.size() - size, Relaxed);
        }
        // SAFETY: as in `dealloc`; the new size is the caller's business as it is the system's.
        unsafe { System.realloc(at, layout, size) }
    }
}
