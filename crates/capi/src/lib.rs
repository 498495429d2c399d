//! `libxway`: programs over packets in a C program's memory.
//!
//! Programs over packets (`xway_filter_…`, `xway_map_…`), and sockets of AF_XDP's kind that an engine serves (`xway_xsk_…`).
//!
//! Every function that can fail returns a negative errno (or a null pointer) and leaves the reason in words in
//! [`xway_error`]. Nothing here keeps a pointer beyond the call, except that a map must not be used after the last filter
//! over it is gone. The header `include/xway.h` is made from this file.
#![allow(unsafe_code)] // pointers from C
#![allow(non_camel_case_types)] // names of C

mod sockets;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use xway_abi::Errno;
use xway_embed as embed;
use xway_embed::{LoadError, Redirect};
use xway_object::LoadOptions;

pub use sockets::{XWAY_XSK_CHECKSUM, Xsk, XskOptions, XskPacket, XskStatistics};

/// A verified, compiled program with its maps. One thread uses it at a time.
pub struct Filter {
    inner: embed::Filter,
    name: CString,
    engine: CString,
    maps: Vec<(CString, Map)>,
    /// Empty between calls; kept for its memory.
    packets: Vec<embed::Packet<'static>>,
}

/// A map of a filter.
pub struct Map {
    inner: Arc<xway_maps::Map>,
}

/// Where a program wants a packet to go: `redirect_kind` of `xway_packet`.
pub const XWAY_REDIRECT_NONE: u32 = 0;
/// To the interface in `redirect_target`.
pub const XWAY_REDIRECT_IFINDEX: u32 = 1;
/// To the interface in `redirect_target`, which the device map with id `redirect_map` holds.
pub const XWAY_REDIRECT_DEVMAP: u32 = 2;
/// To every interface of the device map with id `redirect_map`; `redirect_target` is 1 when the packet's own is left out.
pub const XWAY_REDIRECT_BROADCAST: u32 = 3;
/// To the CPU in `redirect_target`, by the CPU map with id `redirect_map`.
pub const XWAY_REDIRECT_CPUMAP: u32 = 4;
/// To the socket at key `redirect_target` of the socket map with id `redirect_map`.
pub const XWAY_REDIRECT_XSKMAP: u32 = 5;

/// A packet in a buffer. Fields up to `rx_queue` are read and, where the program moved them, written; the others are written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The buffer. Buffers of the packets of one call must not overlap.
    pub buffer: *mut u8,
    /// Length of the buffer, bytes.
    pub size: u32,
    /// Where the packet starts in the buffer: at least 40, and 256 for what drivers give.
    pub data: u32,
    /// Where it ends.
    pub data_end: u32,
    /// Interface index that programs see.
    pub ingress_ifindex: u32,
    /// Receive queue that programs see.
    pub rx_queue: u32,
    /// Where the metadata in front of the packet starts; `data` when there is none.
    pub data_meta: u32,
    /// The verdict: XDP_ABORTED (0), XDP_DROP, XDP_PASS, XDP_TX or XDP_REDIRECT. Unknown codes are XDP_ABORTED.
    pub verdict: u32,
    /// What the program returned.
    pub code: u32,
    /// Where a redirect goes: XWAY_REDIRECT_…
    pub redirect_kind: u32,
    /// Interface, CPU or key, as the kind says.
    pub redirect_target: u32,
    /// Id of the map.
    pub redirect_map: u32,
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::new(CString::default());
}

fn text(message: &str) -> CString {
    CString::new(message.replace('\0', " ")).unwrap_or_default()
}

/// Keeps the reason and gives the number.
fn fail(errno: Errno, message: &str) -> c_int {
    ERROR.with(|error| *error.borrow_mut() = text(message));
    -errno.0
}

/// Runs `work`; a panic, which would be a bug, becomes `EIO` instead of passing through C.
fn guarded<T>(failed: impl FnOnce(c_int) -> T, work: impl FnOnce() -> Result<T, c_int>) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(number)) => failed(number),
        Err(_) => failed(fail(Errno::EIO, "a bug in libxway")),
    }
}

/// The words of the last failure in this thread; valid until the next call in it.
#[unsafe(no_mangle)]
pub extern "C" fn xway_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

/// Reads `size` bytes of an object file, verifies the program with this name (NULL: the only one that there is) and compiles
/// it. Per-CPU maps get values for `threads` threads (0 is 1). NULL on failure: see xway_error.
///
/// # Safety
/// `object` points to `size` bytes; `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_filter_load(
    object: *const c_void,
    size: usize,
    name: *const c_char,
    threads: u32,
) -> *mut Filter {
    guarded(
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller vouches for both.
            let (bytes, name) = unsafe { (bytes(object, size)?, string(name)?) };
            let options = LoadOptions::of_running_kernel();
            let filter = embed::Filter::load_for(bytes, name, threads, &options).map_err(refused)?;
            Ok(boxed(filter))
        },
    )
}

/// Proves the program with this name (NULL: the only one that there is) in `size` bytes of an object file, without making its
/// maps or code. 0 when it is accepted, -EACCES when it is refused, -EINVAL when the object cannot be read; xway_error says why,
/// with the source line, the check that is missing and where.
///
/// # Safety
/// `object` points to `size` bytes; `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_verify(object: *const c_void, size: usize, name: *const c_char) -> c_int {
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for both.
            let (bytes, name) = unsafe { (bytes(object, size)?, string(name)?) };
            embed::verify(bytes, name, &LoadOptions::of_running_kernel()).map_err(refused)?;
            Ok(0)
        },
    )
}

/// The same program over the same maps for another thread; `thread` counts from 1 and is below the `threads` of
/// xway_filter_load. NULL on failure.
///
/// # Safety
/// `filter` comes from this library and is not in use by another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_filter_another(filter: *const Filter, thread: u32) -> *mut Filter {
    guarded(
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller vouches for it.
            let filter = unsafe { filter.as_ref() }.ok_or_else(|| fail(Errno::EFAULT, "no filter"))?;
            filter.inner.another(thread).map(boxed).map_err(refused)
        },
    )
}

/// Ends a filter. NULL is allowed. Maps go with the last filter over them.
///
/// # Safety
/// `filter` comes from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_filter_free(filter: *mut Filter) {
    if !filter.is_null() {
        // SAFETY: made by `boxed`; the caller gives it up.
        drop(unsafe { Box::from_raw(filter) });
    }
}

/// Name of the program. Valid as long as the filter.
///
/// # Safety
/// `filter` comes from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_filter_name(filter: *const Filter) -> *const c_char {
    // SAFETY: the caller vouches for it.
    unsafe { filter.as_ref() }.map_or(std::ptr::null(), |filter| filter.name.as_ptr())
}

/// What runs the program: "jit", or "interp: " and why it is not machine code. Valid as long as the filter.
///
/// # Safety
/// `filter` comes from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_filter_engine(filter: *const Filter) -> *const c_char {
    // SAFETY: the caller vouches for it.
    unsafe { filter.as_ref() }.map_or(std::ptr::null(), |filter| filter.engine.as_ptr())
}

/// Runs the program over `count` packets, in order. 0, or a negative errno: then no packet was touched.
///
/// # Safety
/// `filter` comes from this library and is in use by this thread only; `packets` points to `count` packets, each with a
/// buffer of its own that nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_filter_run(filter: *mut Filter, packets: *mut Packet, count: usize) -> c_int {
    guarded(
        |number| number,
        || {
            // SAFETY: the caller vouches for both.
            let filter = unsafe { filter.as_mut() }.ok_or_else(|| fail(Errno::EFAULT, "no filter"))?;
            if count == 0 {
                return Ok(0);
            }
            if packets.is_null() {
                return Err(fail(Errno::EFAULT, "no packets"));
            }
            // SAFETY: as above.
            let packets = unsafe { std::slice::from_raw_parts_mut(packets, count) };
            filter.packets.clear();
            let described = packets.iter().enumerate().try_for_each(|(at, packet)| {
                // SAFETY: the caller vouches for the buffers; the loan ends with this call, where the list is cleared.
                filter.packets.push(unsafe { described(at, packet)? });
                Ok(())
            });
            if let Err(number) = described {
                filter.packets.clear();
                return Err(number);
            }
            for ((guest, verdict), packet) in filter.inner.run(&mut filter.packets).zip(packets.iter_mut()) {
                let range = guest.range();
                (packet.data, packet.data_end) = (range.start as u32, range.end as u32);
                packet.data_meta = packet.data - guest.meta().len() as u32;
                packet.verdict = verdict as u32;
                (packet.redirect_kind, packet.redirect_target, packet.redirect_map) = target(guest.redirect());
            }
            for (packet, code) in packets.iter_mut().zip(filter.inner.codes()) {
                packet.code = *code as u32;
            }
            filter.packets.clear();
            Ok(0)
        },
    )
}

/// The map with this name; NULL when there is none. It belongs to the filter and must not be freed.
///
/// # Safety
/// `filter` comes from this library; `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_filter_map(filter: *const Filter, name: *const c_char) -> *const Map {
    guarded(
        |_| std::ptr::null(),
        || {
            // SAFETY: the caller vouches for both.
            let (filter, name) = unsafe { (filter.as_ref(), string(name)?) };
            let filter = filter.ok_or_else(|| fail(Errno::EFAULT, "no filter"))?;
            let found = filter.maps.iter().find(|(own, _)| Some(own.to_bytes()) == name.map(str::as_bytes));
            let missing = || fail(Errno::ENOENT, &format!("no map {:?}", name.unwrap_or_default()));
            found.map(|(_, map)| std::ptr::from_ref(map)).ok_or_else(missing)
        },
    )
}

/// Bytes of a key; 0 for maps without keys.
///
/// # Safety
/// `map` comes from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_map_key_size(map: *const Map) -> usize {
    // SAFETY: the caller vouches for it.
    unsafe { map.as_ref() }.map_or(0, |map| map.inner.spec().key_size as usize)
}

/// Bytes of a value as user space reads and writes it: of per-CPU maps all values, each padded to 8 bytes.
///
/// # Safety
/// `map` comes from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_map_value_size(map: *const Map) -> usize {
    // SAFETY: the caller vouches for it.
    unsafe { map.as_ref() }.map_or(0, |map| map.inner.user_value_size())
}

/// Reads the value at a key. 0 or a negative errno, as BPF_MAP_LOOKUP_ELEM has them.
///
/// # Safety
/// `map` comes from this library; `key` and `value` have the sizes of the map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_map_lookup(map: *const Map, key: *const c_void, value: *mut c_void) -> c_int {
    // SAFETY: the caller vouches for the sizes.
    let work = |map: &Map| unsafe {
        let value = bytes_mut(value, map.inner.user_value_size())?;
        errno(map.inner.lookup(bytes(key, map.inner.spec().key_size as usize)?, value, 0), "look-up")
    };
    // SAFETY: the caller vouches for the map.
    unsafe { with(map, work) }
}

/// Writes the value at a key; `flags` is BPF_ANY, BPF_NOEXIST or BPF_EXIST. 0 or a negative errno.
///
/// # Safety
/// `map` comes from this library; `key` and `value` have the sizes of the map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_map_update(
    map: *const Map,
    key: *const c_void,
    value: *const c_void,
    flags: u64,
) -> c_int {
    // SAFETY: the caller vouches for the sizes.
    let work = |map: &Map| unsafe {
        let value = bytes(value, map.inner.user_value_size())?;
        errno(map.inner.update(bytes(key, map.inner.spec().key_size as usize)?, value, flags), "update")
    };
    // SAFETY: the caller vouches for the map.
    unsafe { with(map, work) }
}

/// Removes the entry at a key. 0 or a negative errno.
///
/// # Safety
/// `map` comes from this library; `key` has the size of the map's keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_map_delete(map: *const Map, key: *const c_void) -> c_int {
    // SAFETY: the caller vouches for the sizes.
    let work =
        |map: &Map| unsafe { errno(map.inner.delete(bytes(key, map.inner.spec().key_size as usize)?), "delete") };
    // SAFETY: the caller vouches for the map.
    unsafe { with(map, work) }
}

/// The key behind `key`, or the first one when it is NULL. 0, or a negative errno: ENOENT behind the last one.
///
/// # Safety
/// `map` comes from this library; `key` (unless NULL) and `next` have the size of its keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_map_next_key(map: *const Map, key: *const c_void, next: *mut c_void) -> c_int {
    // SAFETY: the caller vouches for the sizes.
    let work = |map: &Map| unsafe {
        let size = map.inner.spec().key_size as usize;
        let key = if key.is_null() { None } else { Some(bytes(key, size)?) };
        errno(map.inner.next_key(key, bytes_mut(next, size)?), "next key")
    };
    // SAFETY: the caller vouches for the map.
    unsafe { with(map, work) }
}

/// A descriptor of the memory in which the values of an array lie that was made with BPF_F_MMAPABLE, as `.data`, `.bss` and `.rodata` are:
/// for mmap(2) with MAP_SHARED, here or in a process to which it is sent. Value `i` lies at `i * stride`; `bytes` is what there is to map,
/// whole pages (NULL: not asked for). `writable` 0 opens it for reading alone. The caller closes it; the memory stays as long as somebody
/// has it open or mapped. Negative errno, as mmap(2) on a map's descriptor has them: EINVAL, ENOTSUPP (524) where values cannot be
/// mapped, EACCES where only programs write, EPERM when it is frozen; ENODEV when it lies in memory of this process alone.
///
/// # Safety
/// `map` comes from this library; `bytes` and `stride` are NULL or point to a size each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xway_map_memory(
    map: *const Map,
    writable: c_int,
    bytes: *mut usize,
    stride: *mut usize,
) -> c_int {
    let work = |map: &Map| {
        let shape = xway_maps::Shape::of(map.inner.spec());
        let refused = |errno: Errno| fail(errno, &format!("mapping: {errno} ({})", errno.text()));
        let fd = map.inner.memory_fd(writable != 0).map_err(refused)?;
        // SAFETY: the caller vouches for both.
        if let Some(bytes) = unsafe { bytes.as_mut() } {
            *bytes = shape.bytes().unwrap_or(0);
        }
        // SAFETY: as above.
        if let Some(stride) = unsafe { stride.as_mut() } {
            *stride = shape.stride();
        }
        Ok(fd.into_raw_fd())
    };
    // SAFETY: the caller vouches for the map.
    unsafe { with(map, work) }
}

fn boxed(inner: embed::Filter) -> *mut Filter {
    let maps = inner.maps().map(|(name, map)| (text(name), Map { inner: map.clone() })).collect();
    let engine = match inner.engine() {
        (name, None) => name.to_owned(),
        (name, Some(reason)) => format!("{name}: {reason}"),
    };
    let (name, engine) = (text(inner.name()), text(&engine));
    Box::into_raw(Box::new(Filter { inner, name, engine, maps, packets: Vec::new() }))
}

fn refused(error: LoadError) -> c_int {
    let errno = match &error {
        LoadError::Object(_) | LoadError::Maps(_) | LoadError::Threads(_) | LoadError::Many(_) => Errno::EINVAL,
        LoadError::Program(_) | LoadError::Refused { .. } => Errno::EACCES,
        LoadError::Memory(_) => Errno::ENOMEM,
    };
    fail(errno, &error.to_string())
}

fn errno(result: Result<(), Errno>, what: &str) -> Result<c_int, c_int> {
    result.map(|()| 0).map_err(|errno| fail(errno, &format!("{what}: {errno} ({})", errno.text())))
}

/// # Safety
/// `map` is null or comes from this library.
unsafe fn with(map: *const Map, work: impl FnOnce(&Map) -> Result<c_int, c_int>) -> c_int {
    // SAFETY: the caller vouches for it.
    let map = unsafe { map.as_ref() };
    guarded(|number| number, || work(map.ok_or_else(|| fail(Errno::EFAULT, "no map"))?))
}

/// # Safety
/// Unless it is null, `start` points to `len` initialised bytes that nobody writes while the slice is in use.
unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8], c_int> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(fail(Errno::EFAULT, "a null pointer")),
        // SAFETY: the caller vouches for it.
        _ => Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) }),
    }
}

/// # Safety
/// Unless it is null, `start` points to `len` initialised bytes that nobody else uses while the slice is in use.
unsafe fn bytes_mut<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8], c_int> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(fail(Errno::EFAULT, "a null pointer")),
        // SAFETY: the caller vouches for it.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }),
    }
}

/// # Safety
/// `start` is null or points to a string that lives as long as the result is used.
unsafe fn string<'a>(start: *const c_char) -> Result<Option<&'a str>, c_int> {
    if start.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(start) }.to_str();
    text.map(Some).map_err(|_| fail(Errno::EINVAL, "a name that is not UTF-8"))
}

/// # Safety
/// The packet's buffer has the length that it says and is nobody else's until the result is dropped.
unsafe fn described(at: usize, packet: &Packet) -> Result<embed::Packet<'static>, c_int> {
    // SAFETY: the caller vouches for it.
    let buffer = unsafe { bytes_mut(packet.buffer.cast(), packet.size as usize)? };
    let guest = embed::Packet::new(buffer, packet.data as usize..packet.data_end as usize);
    let guest = guest.map_err(|error| fail(Errno::EINVAL, &format!("packet {at}: {error}")))?;
    Ok(guest.with_ingress(packet.ingress_ifindex, packet.rx_queue))
}

const fn target(redirect: Redirect) -> (u32, u32, u32) {
    match redirect {
        Redirect::None => (XWAY_REDIRECT_NONE, 0, 0),
        Redirect::Ifindex(ifindex) => (XWAY_REDIRECT_IFINDEX, ifindex, 0),
        Redirect::Device { map_id, ifindex, .. } => (XWAY_REDIRECT_DEVMAP, ifindex, map_id),
        Redirect::Broadcast { map_id, exclude_ingress } => (XWAY_REDIRECT_BROADCAST, exclude_ingress as u32, map_id),
        Redirect::Cpu { map_id, cpu } => (XWAY_REDIRECT_CPUMAP, cpu, map_id),
        Redirect::Socket { map_id, key } => (XWAY_REDIRECT_XSKMAP, key, map_id),
    }
}
