//! Memory of which each access is seen, and in which a byte is another one as soon as it has been read.
//!
//! What another process may write at any time has to be read once: who checks a value and reads it again uses what nobody has checked.
//! Two threads show that by chance. Here it is shown each time: the memory may not be touched, each instruction that touches it traps, is
//! let through alone (`TF` of the flags), and behind it the byte at its address is changed through another mapping of the same file.
//!
//! x86-64 only. One thread at a time; others of the process must leave the memory alone meanwhile.
#![allow(dead_code)] // each test file uses its part
#![allow(unsafe_code)] // signal handlers, and protection of memory

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;

/// One access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Access {
    /// Which of the memories, by its place in the list.
    pub memory: usize,
    /// Where in it, in bytes; of a wide access its first.
    pub at: usize,
    /// It writes.
    pub write: bool,
}

/// Memory of this process, whole pages.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Where it is used.
    pub start: NonNull<u8>,
    /// Where the same bytes lie once more.
    pub alias: NonNull<u8>,
    /// Bytes.
    pub len: usize,
}

const MEMORIES: usize = 2;
const ACCESSES: usize = 1 << 16;

struct State {
    memories: [Option<Memory>; MEMORIES],
    /// What is changed about a byte that was read.
    change: u8,
    log: [MaybeUninit<Access>; ACCESSES],
    logged: usize,
    last: Option<Access>,
}

struct Shared(UnsafeCell<State>);

// SAFETY: used by the thread that has the lock of `watched`, and by its signal handlers while it is in there.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(State {
    memories: [None; MEMORIES],
    change: 0,
    log: [MaybeUninit::uninit(); ACCESSES],
    logged: 0,
    last: None,
}));
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `f` and tells each access to the memories meanwhile, in order. Of a byte that was read the bits of `change` are others at once,
/// while `f` still runs.
pub fn watched<T>(memories: &[Memory], change: u8, f: impl FnOnce() -> T) -> (T, Vec<Access>) {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let state = STATE.0.get();
    let mut all = [None; MEMORIES];
    all.iter_mut().zip(memories).for_each(|(place, memory)| *place = Some(*memory));
    // SAFETY: the lock is held, and no handler runs before the protection below.
    unsafe { ((*state).memories, (*state).change, (*state).logged, (*state).last) = (all, change, 0, None) };
    let before = [(libc::SIGSEGV, touched as *const () as usize), (libc::SIGTRAP, stepped as *const () as usize)]
        .map(|(signal, handler)| (signal, install(signal, handler)));
    protect(&all, libc::PROT_NONE);
    let result = f();
    protect(&all, libc::PROT_READ | libc::PROT_WRITE);
    for (signal, action) in before {
        // SAFETY: what was there before.
        unsafe { libc::sigaction(signal, &raw const action, null_mut()) };
    }
    // SAFETY: nothing is protected any more, so no handler runs; the first `logged` entries are written.
    let log = unsafe { (&(*state).log)[..(*state).logged].iter().map(|access| access.assume_init()).collect() };
    (result, log)
}

fn install(signal: c_int, handler: usize) -> libc::sigaction {
    // SAFETY: zeros are an action; the handler has the type that SA_SIGINFO asks for.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = (zeroed(), zeroed());
        (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_SIGINFO | libc::SA_NODEFER);
        assert_eq!(libc::sigaction(signal, &raw const action, &raw mut before), 0);
        before
    }
}

fn protect(memories: &[Option<Memory>; MEMORIES], how: c_int) {
    for memory in memories.iter().flatten() {
        // SAFETY: a mapping of the caller's, who does not unmap it meanwhile; nothing of Rust's lies in it but atomics and bytes.
        if unsafe { libc::mprotect(memory.start.as_ptr().cast(), memory.len, how) } != 0 {
            std::process::abort();
        }
    }
}

/// Reads a byte, once.
pub fn read(at: NonNull<u8>) -> u8 {
    // SAFETY: only the test of this module asks, for a byte of a mapping that it holds.
    unsafe { at.as_ptr().read_volatile() }
}

/// Single step of the x86 flags.
const TF: i64 = 1 << 8;
/// Of the page fault's error code.
const WRITES: i64 = 1 << 1;

extern "C" fn touched(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over both; the state is this thread's (see `Shared`).
    unsafe {
        let state = &mut *STATE.0.get();
        let address = (*info).si_addr() as usize;
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let inside = |memory: &Memory| {
            (memory.start.as_ptr() as usize..).contains(&address)
                && address < memory.start.as_ptr() as usize + memory.len
        };
        let Some(number) = state.memories.iter().position(|memory| memory.as_ref().is_some_and(inside)) else {
            // Another fault: the instruction is run again, and this time ends the process as it should.
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            return;
        };
        let at = address - state.memories[number].map_or(0, |memory| memory.start.as_ptr() as usize);
        let access = Access { memory: number, at, write: registers[libc::REG_ERR as usize] & WRITES != 0 };
        if state.logged == ACCESSES {
            std::process::abort();
        }
        state.log[state.logged].write(access);
        state.logged += 1;
        state.last = Some(access);
        protect(&state.memories, libc::PROT_READ | libc::PROT_WRITE);
        registers[libc::REG_EFL as usize] |= TF;
    }
}

extern "C" fn stepped(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: as in `touched`; the alias is as long as the memory.
    unsafe {
        let state = &mut *STATE.0.get();
        (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize] &= !TF;
        protect(&state.memories, libc::PROT_NONE);
        if let Some(Access { memory, at, write: false }) = state.last.take()
            && let Some(memory) = state.memories[memory]
        {
            let byte = memory.alias.as_ptr().add(at);
            byte.write_volatile(byte.read_volatile() ^ state.change);
        }
    }
}

/// Where the file behind this descriptor is mapped in this process; the first of several.
pub fn mapping_of(fd: std::os::fd::BorrowedFd<'_>) -> (NonNull<u8>, usize) {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words.first()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
        (words.get(4)?.parse() == Ok(file.ino()) && words.get(5)?.contains("memfd")).then_some((start, end - start))
    });
    let (start, len) = found.expect("the file is mapped");
    (NonNull::new(std::ptr::with_exposed_provenance_mut(start)).unwrap(), len)
}

/// Places that were read more than once.
pub fn read_again(log: &[Access]) -> Vec<Access> {
    let mut reads: Vec<Access> = log.iter().copied().filter(|access| !access.write).collect();
    reads.sort_unstable();
    let again = reads.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    let mut again: Vec<Access> = again.collect();
    again.dedup();
    again
}
