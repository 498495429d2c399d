//! Frames that several look at.
#![allow(unsafe_code)] // several handles for one chunk, none of which writes
//!
//! The invariant of this file: **a shared frame's chunk has as many handles as its count says, all of them inside
//! [`SharedFrame`]s, which give out shared references only.** `Desc::shared` is 0 for a frame with one owner.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::arena::Handle;
use crate::frame::Frame;
use crate::sync::{Ordering, fence};

/// A frame that several hold and all only read: a sample in a capture ring, a packet for many targets. Made by
/// [`Frame::share`]; a clone costs one atomic operation; the last one to go sends the frame home.
pub struct SharedFrame {
    frame: ManuallyDrop<Frame>,
}

impl Frame {
    /// Gives up writing, so that others may look on. Until here a frame has no count, so frames that nobody shares do not pay.
    pub fn share(self) -> SharedFrame {
        // Nobody else has the frame yet.
        self.handle().desc().shared.store(1, Ordering::Relaxed);
        SharedFrame { frame: ManuallyDrop::new(self) }
    }
}

impl SharedFrame {
    /// The frame, to be written again, if nobody else holds it.
    ///
    /// # Errors
    /// Gives itself back while others look.
    pub fn try_unshare(self) -> Result<Frame, SharedFrame> {
        // Acquire: what the others read comes before what the owner writes from now on.
        if self.handle().desc().shared.load(Ordering::Acquire) != 1 {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        this.handle().desc().shared.store(0, Ordering::Relaxed);
        // SAFETY: taken once; the count says that this was the only holder, and `this` is never dropped.
        Ok(unsafe { ManuallyDrop::take(&mut this.frame) })
    }

    /// How many hold the frame. A gauge: others may change it at any time.
    pub fn holders(&self) -> u32 {
        self.handle().desc().shared.load(Ordering::Relaxed)
    }
}

impl Clone for SharedFrame {
    fn clone(&self) -> Self {
        self.handle().desc().shared.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the count was raised for this handle, and it goes into a `SharedFrame` (the invariant of this file).
        let handle = unsafe { self.handle().again() };
        SharedFrame { frame: ManuallyDrop::new(Frame::new(handle)) }
    }
}

impl Deref for SharedFrame {
    type Target = Frame;

    fn deref(&self) -> &Frame {
        &self.frame
    }
}

impl Drop for SharedFrame {
    fn drop(&mut self) {
        // Release: what this holder read comes before whatever the next owner writes.
        if self.handle().desc().shared.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: this was the last handle, and it is taken once, here.
            drop(unsafe { ManuallyDrop::take(&mut self.frame) });
        }
    }
}

impl std::fmt::Debug for SharedFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedFrame").field("holders", &self.holders()).field("frame", &**self).finish()
    }
}

/// Only here: see [`SharedFrame`].
impl Handle {
    /// A second handle.
    ///
    /// # Safety
    /// Both are only ever read through, and only one of them is dropped.
    unsafe fn again(&self) -> Handle {
        // SAFETY: the caller keeps what `from_raw` asks for by counting.
        unsafe { Handle::from_raw(self.raw()) }
    }
}
