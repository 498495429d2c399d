//! Memory for machine code: written while it is not executable, executable when it is not writable.
#![allow(unsafe_code)] // mmap, mprotect, munmap

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::Refusal;

/// Executable code, unmapped at drop. Whoever runs it must keep it alive.
#[derive(Debug)]
pub(crate) struct CodeMemory {
    start: NonNull<u8>,
    len: usize,
    mapped: usize,
}

// SAFETY: an address range that nobody writes; it belongs to the process, not to a thread.
unsafe impl Send for CodeMemory {}
// SAFETY: as above, a shared reference gives out its address and its bytes only.
unsafe impl Sync for CodeMemory {}

impl CodeMemory {
    /// Maps memory, copies code into it and makes it executable; it is never writable and executable at once. `make` gets the address
    /// and gives at most `len` bytes. `None` when it gives nothing.
    pub fn placed(len: usize, make: impl FnOnce(u64) -> Option<Vec<u8>>) -> Result<Option<CodeMemory>, Refusal> {
        let failed = |e: rustix::io::Errno| Refusal::Memory(e.to_string());
        let mapped = len.max(1).next_multiple_of(rustix::param::page_size());
        let mut memory = CodeMemory::writable(mapped).map_err(failed)?;
        let start = memory.start;
        let Some(code) = make(start.as_ptr() as u64).filter(|code| code.len() <= mapped) else { return Ok(None) };
        memory.len = code.len();
        // SAFETY: the mapping is at least this long, writable, and known to nobody else yet.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), start.as_ptr(), code.len()) };
        coherent(memory.bytes());
        // SAFETY: exactly the mapping made above; no reference into it exists.
        unsafe { mprotect(start.as_ptr().cast(), mapped, MprotectFlags::READ | MprotectFlags::EXEC) }
            .map_err(failed)?;
        Ok(Some(memory))
    }

    /// Writable memory. Short pieces are pages of one mapping that was made for several: to map each by itself, and to touch it for the first
    /// time, takes more than twice as long.
    fn writable(mapped: usize) -> Result<CodeMemory, rustix::io::Errno> {
        /// What is left of the last such mapping. Pages that went to somebody are in it no more.
        static REST: Mutex<Option<CodeMemory>> = Mutex::new(None);
        if mapped > SHARED / 4 {
            return CodeMemory::near(mapped);
        }
        let mut rest = REST.lock().unwrap_or_else(PoisonError::into_inner);
        let mut from = match rest.take().filter(|rest| rest.mapped >= mapped) {
            Some(rest) => rest,
            None => CodeMemory::near(SHARED)?,
        };
        let piece = CodeMemory { start: from.start, len: 0, mapped };
        from.mapped -= mapped;
        // SAFETY: still inside of the mapping, or its end.
        from.start = unsafe { from.start.add(mapped) };
        if from.mapped > 0 {
            *rest = Some(from);
        } else {
            std::mem::forget(from); // All of it has gone.
        }
        Ok(piece)
    }

    /// Writable memory, near enough to this process's own functions for calls by distance if the kernel has some there.
    fn near(mapped: usize) -> Result<CodeMemory, rustix::io::Errno> {
        for nth in 0..TRIES {
            let wish = (nth + 1 < TRIES).then(|| wish(mapped));
            let memory = CodeMemory::map(wish.unwrap_or(0), mapped)?;
            if wish.is_none_or(|wish| memory.start.as_ptr() as usize == wish) {
                return Ok(memory);
            }
        }
        CodeMemory::map(0, mapped)
    }

    /// Writable memory, at this address if nothing is there.
    fn map(wish: usize, mapped: usize) -> Result<CodeMemory, rustix::io::Errno> {
        let wish = std::ptr::without_provenance_mut(wish);
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new private mapping; the kernel takes the address for a wish and never puts it over something that exists.
        let start = unsafe { mmap_anonymous(wish, mapped, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        // The kernel maps nothing at address zero on its own.
        let start = NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(CodeMemory { start, len: 0, mapped })
    }

    /// The address of a byte of the code.
    pub fn at(&self, offset: usize) -> *const u8 {
        debug_assert!(offset <= self.len);
        self.start.as_ptr().wrapping_add(offset)
    }

    /// The code.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped readable for the life of `self` and written by nobody.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// Bytes of a mapping that several short pieces of code share.
const SHARED: usize = 64 << 10;

/// Addresses that are tried before any will do.
const TRIES: usize = 4;
/// How far below this process's own code its programs begin, and the room that they have: all of it is within the 2 GiB that a call
/// by distance reaches.
const BELOW: usize = 64 << 20;
const ROOM: usize = 1 << 30;

/// An address below this process's own code that was not wished for lately.
fn wish(mapped: usize) -> usize {
    static USED: AtomicUsize = AtomicUsize::new(0);
    let own = (wish as *const () as usize) & !0xfff;
    // It starts anew when the room is used up; by then much of what was there has gone.
    let used = USED.fetch_add(mapped, Ordering::Relaxed) % ROOM;
    own.saturating_sub(BELOW + used + mapped)
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the pages that are this one's. Whoever runs the code holds the `Compiled` that owns this.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

/// Lets the processor fetch instructions from where data was just written. x86-64 does so by itself; on aarch64 the lines have to be
/// written back and forgotten first (Arm Architecture Reference Manual, B2.4.4). The code is at an address where nothing has run
/// since it was mapped, so other cores have nothing old of it.
fn coherent(code: &[u8]) {
    #[cfg(target_arch = "aarch64")]
    {
        const LINE: usize = 16; // the least that a line may be
        let lines = || (code.as_ptr() as usize & !(LINE - 1)..code.as_ptr() as usize + code.len()).step_by(LINE);
        // SAFETY: maintenance of lines of readable memory changes nothing that a program sees but when it sees it.
        unsafe {
            lines().for_each(|at| std::arch::asm!("dc cvau, {}", in(reg) at));
            std::arch::asm!("dsb ish");
            lines().for_each(|at| std::arch::asm!("ic ivau, {}", in(reg) at));
            std::arch::asm!("dsb ish", "isb");
        }
    }
    #[cfg(not(target_arch = "aarch64"))]
    let _ = code;
}

/// Maps the first page of a file executable for as long as the process lives: `perf record` notes files that are mapped so.
/// Nothing runs from there.
pub(crate) fn mark(file: &std::fs::File) -> std::io::Result<()> {
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists, and nobody uses it.
    unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE, file, 0) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code that returns.
    fn code(len: usize) -> CodeMemory {
        CodeMemory::placed(len, |_| Some(vec![0xc3; len])).expect("memory").expect("code")
    }

    /// What is called by distance can be: many pieces, all within reach of this crate's own functions.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn code_lies_near_what_it_calls() {
        let all: Vec<CodeMemory> = (0..64).map(|_| code(5000)).collect();
        let own = wish as *const () as i64;
        let far = all.iter().filter(|code| i32::try_from(code.at(0) as i64 - own).is_err()).count();
        assert_eq!(far, 0, "of {} pieces", all.len());
    }

    #[test]
    fn code_is_executable_and_not_writable() {
        let code = code(5);
        assert_eq!(code.bytes(), [0xc3; 5]);
        let line = mapping(&code).expect("the mapping");
        assert!(line.contains(" r-xp "), "{line}");
    }

    /// The line of the system about the memory of some code; what lies side by side and may be used alike is one.
    fn mapping(code: &CodeMemory) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let number = |digits: &str| usize::from_str_radix(digits, 16).expect("an address");
        let has = |line: &&str| {
            let (start, end) = line.split_whitespace().next().and_then(|range| range.split_once('-')).expect("a range");
            (number(start)..number(end)).contains(&(code.at(0) as usize))
        };
        maps.lines().find(has).map(str::to_owned)
    }

    /// Pieces that share a mapping have pages of their own, and go one by one.
    #[test]
    fn a_piece_goes_and_its_neighbours_stay() {
        let all: Vec<CodeMemory> = (1..=40).map(|n| code(n * 400)).collect();
        let mut places: Vec<_> = all.iter().map(|c| c.at(0) as usize..c.at(0) as usize + c.mapped).collect();
        places.sort_by_key(|place| place.start);
        assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start), "{places:x?}");
        // What others map meanwhile may lie where a piece was: it is not code.
        for (n, code) in all.into_iter().enumerate() {
            if n % 2 == 0 {
                drop(code);
            } else {
                assert!(code.bytes().iter().all(|b| *b == 0xc3));
                assert!(mapping(&code).is_some_and(|line| line.contains(" r-xp ")));
            }
        }
    }
}
