//! Descriptors that nobody wants.
#![allow(unsafe_code)] // One socket option that rustix does not have.

use std::os::fd::{AsFd, AsRawFd};

/// `SO_PASSRIGHTS` of Linux 6.16 and later (`asm-generic/socket.h`).
const PASSRIGHTS: libc::c_int = 83;

/// Nobody can send descriptors to this socket any more, nor, if it listens, to those that come from it: who tries gets `EPERM`. What
/// was sent before stays. False: this kernel (before 6.16) cannot be told so.
pub fn refuse_rights(socket: impl AsFd) -> bool {
    let off: libc::c_int = 0;
    // SAFETY: the option takes an int, whose address and length are given; a kernel that does not know it refuses, which is told.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    done == 0
}
