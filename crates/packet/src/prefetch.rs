//! Asking for cache lines before they are needed.
#![allow(unsafe_code)] // instructions that the language has no word for
//!
//! The invariant of this file: **nothing but hints.** They read nothing into the program, write nothing and never fault, whatever
//! the address, so that whoever calls them promises nothing. Where it is not known how, nothing happens.

/// A line that will be read.
#[inline]
pub fn to_read(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: a hint, see the top.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
    // SAFETY: a hint, see the top.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(loom))))]
    let _ = at;
}

/// A line that will be written: it is taken from whichever core has it.
#[inline]
pub fn to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: a hint, see the top. The compiler's own function for it is a plain prefetch without a target feature.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
    // SAFETY: a hint, see the top.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(loom))))]
    let _ = at;
}
