//! The processor's time-stamp counter.
#![allow(unsafe_code)] // The instruction is an intrinsic that the standard library calls unsafe.

/// Whether there is one that this crate can read.
pub(super) const fn available() -> bool {
    cfg!(target_arch = "x86_64")
}

/// The counter; 0 where there is none.
#[inline]
pub(super) fn read() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the instruction reads a register and touches no memory; every x86-64 processor has it, and Linux does not
        // forbid it to processes unless they ask for that themselves (PR_SET_TSC), which nothing here does.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        0
    }
}
