//! `gdb` knows machine code by name, as it stands and goes.
#![allow(unsafe_code)] // two symbols that gdb looks for by name, and a list that it walks
//!
//! The interface is that of gdb's manual, "JIT Compilation Interface", version 1: a list of object files in memory, and a function
//! that is called whenever the list has changed, where gdb has a breakpoint of its own. The object file of a program has one section
//! without contents, which lies where the code is, and a symbol for each function (`xway:PROGRAM:FUNCTION`), so that
//! `backtrace`, `break` and `disassemble` name them. Without a debugger it costs a list entry for each program.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::link::Placed;

/// An object file in the list.
#[repr(C)]
struct Entry {
    next: *mut Entry,
    prev: *mut Entry,
    file: *const u8,
    len: u64,
}

/// Where gdb looks.
#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

const NOTHING: u32 = 0;
const REGISTER: u32 = 1;
const UNREGISTER: u32 = 2;

// SAFETY: the name is gdb's. A process with a second compiler in it may define it too, in an object of its own; gdb looks at each.
#[unsafe(no_mangle)]
static mut __jit_debug_descriptor: Descriptor =
    Descriptor { version: 1, action: NOTHING, relevant: std::ptr::null_mut(), first: std::ptr::null_mut() };

/// gdb stops here and looks at the descriptor. The list must be seen as it is, so the call must not go.
// SAFETY: as above; it takes and gives nothing.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __jit_debug_register_code() {
    std::hint::black_box(&raw const __jit_debug_descriptor);
}

/// Whoever changes the list or an entry holds this.
fn list() -> MutexGuard<'static, ()> {
    static LIST: Mutex<()> = Mutex::new(());
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Code that gdb knows; it forgets it at drop.
#[derive(Debug)]
pub(crate) struct Known {
    entry: *mut Entry,
    /// What the entry points to.
    _file: Vec<u8>,
}

// SAFETY: the entry is touched under the lock only.
unsafe impl Send for Known {}
// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl Sync for Known {}

impl Known {
    /// Tells gdb of the functions of code at an address.
    pub fn new(program: &str, address: u64, len: usize, functions: &[Placed]) -> Known {
        let file = object(program, address, len, functions);
        let entry = Box::into_raw(Box::new(Entry {
            next: std::ptr::null_mut(),
            prev: std::ptr::null_mut(),
            file: file.as_ptr(),
            len: file.len() as u64,
        }));
        let _list = list();
        // SAFETY: entries are boxes that stay until `drop` takes them out; the lock is held, so nobody else is in the list.
        unsafe {
            let first = __jit_debug_descriptor.first;
            (*entry).next = first;
            if let Some(first) = first.as_mut() {
                first.prev = entry;
            }
            __jit_debug_descriptor.first = entry;
            tell(REGISTER, entry);
        }
        Known { entry, _file: file }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let _list = list();
        // SAFETY: as in `new`; the entry is in the list, and its neighbours are entries that are there.
        unsafe {
            let (next, prev) = ((*self.entry).next, (*self.entry).prev);
            if let Some(next) = next.as_mut() {
                next.prev = prev;
            }
            match prev.as_mut() {
                Some(prev) => prev.next = next,
                None => __jit_debug_descriptor.first = next,
            }
            tell(UNREGISTER, self.entry);
            drop(Box::from_raw(self.entry));
        }
    }
}

/// Lets gdb see what has become of an entry.
///
/// # Safety
/// The lock is held.
unsafe fn tell(action: u32, entry: *mut Entry) {
    // SAFETY: the caller holds the lock; gdb reads while this thread stands still.
    unsafe {
        (__jit_debug_descriptor.action, __jit_debug_descriptor.relevant) = (action, entry);
        __jit_debug_register_code();
        (__jit_debug_descriptor.action, __jit_debug_descriptor.relevant) = (NOTHING, std::ptr::null_mut());
    }
}

const HEADER_LEN: usize = 64;
const SECTION_LEN: usize = 64;
const SECTIONS: u16 = 5;
const TEXT: u16 = 1;
const STRINGS: u32 = 3;
/// `.text`, `.symtab`, `.strtab`, `.shstrtab`, each behind a zero.
const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";

/// A relocatable object file (System V ABI, chapter 4) with symbols and nothing else.
fn object(program: &str, address: u64, len: usize, functions: &[Placed]) -> Vec<u8> {
    let mut names = vec![0];
    let mut symbols = vec![0; 24];
    for f in functions {
        symbols.extend((names.len() as u32).to_ne_bytes());
        // A global function, visible, in the only section with an address.
        symbols.extend([1 << 4 | 2, 0]);
        symbols.extend(TEXT.to_ne_bytes());
        symbols.extend((f.offset as u64).to_ne_bytes());
        symbols.extend((f.len as u64).to_ne_bytes());
        // What stands behind a dot gdb takes for a compiler's suffix.
        names.extend(format!("xway:{program}:{}\0", f.name.replace('.', ":")).bytes());
    }
    let symbols_at = HEADER_LEN + SECTION_LEN * usize::from(SECTIONS);
    let names_at = symbols_at + symbols.len();
    let section_names_at = names_at + names.len();

    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    out.extend([1u16, machine].into_iter().flat_map(u16::to_ne_bytes));
    out.extend(1u32.to_ne_bytes());
    out.extend([0u64, 0, HEADER_LEN as u64].into_iter().flat_map(u64::to_ne_bytes));
    out.extend(0u32.to_ne_bytes());
    let lens = [HEADER_LEN as u16, 0, 0, SECTION_LEN as u16, SECTIONS, SECTIONS - 1];
    out.extend(lens.into_iter().flat_map(u16::to_ne_bytes));

    let name = |wanted: &[u8]| SECTION_NAMES.windows(wanted.len()).position(|w| w == wanted).unwrap_or(0) as u32;
    // Name, type, flags, address, offset, length, link, first global symbol, alignment, length of an entry.
    let mut section = |n: &[u8], kind: u32, flags: u64, place: [u64; 3], link: u32, info: u32, entry: u64| {
        out.extend([name(n), kind].into_iter().flat_map(u32::to_ne_bytes));
        out.extend([flags, place[0], place[1], place[2]].into_iter().flat_map(u64::to_ne_bytes));
        out.extend([link, info].into_iter().flat_map(u32::to_ne_bytes));
        out.extend([8, entry].into_iter().flat_map(u64::to_ne_bytes));
    };
    let (symtab, strtab, nobits) = (2, 3, 8);
    section(b"\0", 0, 0, [0; 3], 0, 0, 0);
    section(b".text\0", nobits, 2 | 4, [address, 0, len as u64], 0, 0, 0);
    section(b".symtab\0", symtab, 0, [0, symbols_at as u64, symbols.len() as u64], STRINGS, 1, 24);
    section(b".strtab\0", strtab, 0, [0, names_at as u64, names.len() as u64], 0, 0, 0);
    section(b".shstrtab\0", strtab, 0, [0, section_names_at as u64, SECTION_NAMES.len() as u64], 0, 0, 0);
    out.extend(symbols);
    out.extend(names);
    out.extend_from_slice(SECTION_NAMES);
    out
}
