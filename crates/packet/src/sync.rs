//! Atomics: loom's where all interleavings are tried, the standard library's everywhere else.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

/// A value that has its cache line, and the one that the CPU fetches along with it, for itself.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Alone<T>(pub(crate) T);
