//! The raw `bpf(2)` system call: an attribute block built field by field, and the call itself.
//!
//! The attribute block is `union bpf_attr` of `linux/bpf.h` as bytes: callers name fields by their offset (each command's
//! module keeps its offsets as constants beside the call). The block borrows every buffer whose address it holds, so that
//! no buffer can be dropped or moved before the call. What the block cannot know is how many bytes the kernel takes behind
//! an address: that is each command's rule, and the reason why [`bpf`] is `unsafe`.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};

use xway_abi::Errno;

/// Commands of `bpf(2)` (`enum bpf_cmd`) that this crate uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // The variants are the header's names.
pub enum Cmd {
    MapCreate = 0,
    MapLookupElem = 1,
    MapUpdateElem = 2,
    MapDeleteElem = 3,
    MapGetNextKey = 4,
    ProgLoad = 5,
    ObjPin = 6,
    ObjGet = 7,
    ProgAttach = 8,
    ProgDetach = 9,
    ProgTestRun = 10,
    ProgGetNextId = 11,
    MapGetNextId = 12,
    ProgGetFdById = 13,
    MapGetFdById = 14,
    ObjGetInfoByFd = 15,
    ProgQuery = 16,
    RawTracepointOpen = 17,
    BtfLoad = 18,
    BtfGetFdById = 19,
    MapLookupAndDeleteElem = 21,
    MapFreeze = 22,
    BtfGetNextId = 23,
    MapLookupBatch = 24,
    MapLookupAndDeleteBatch = 25,
    MapUpdateBatch = 26,
    MapDeleteBatch = 27,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkGetFdById = 30,
    LinkGetNextId = 31,
    EnableStats = 32,
    LinkDetach = 34,
    ProgBindMap = 35,
}

/// Bytes in an attribute block. Larger than any command's struct on Linux 6.18; unused bytes stay zero and are not sent.
const ATTR_BYTES: usize = 256;

/// `union bpf_attr`, zeroed, filled field by field.
///
/// `'a` is the life of the buffers whose addresses it holds. The block's length is the end of the last field set (or
/// [`Attr::min_len`]): the kernel refuses longer blocks than it knows only when the excess is not zero, so this works
/// on older kernels too.
pub struct Attr<'a> {
    words: [u64; ATTR_BYTES / 8],
    len: usize,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Attr<'a> {
    /// An empty block.
    pub fn new() -> Attr<'a> {
        Attr { words: [0; ATTR_BYTES / 8], len: 0, buffers: PhantomData }
    }

    /// Makes the block at least this many bytes long (for commands whose output fields lie behind the inputs).
    pub fn min_len(&mut self, len: usize) -> &mut Self {
        assert!(len <= ATTR_BYTES, "attribute block of {len} bytes");
        self.len = self.len.max(len);
        self
    }

    /// Sets a 32-bit field. `offset` must be a multiple of 4 inside the block.
    pub fn u32(&mut self, offset: usize, value: u32) -> &mut Self {
        self.bytes(offset, &value.to_ne_bytes())
    }

    /// Sets a 64-bit field.
    pub fn u64(&mut self, offset: usize, value: u64) -> &mut Self {
        self.bytes(offset, &value.to_ne_bytes())
    }

    /// Copies `bytes` into the block itself.
    pub fn bytes(&mut self, offset: usize, bytes: &[u8]) -> &mut Self {
        let end = offset + bytes.len();
        self.min_len(end);
        for (i, byte) in bytes.iter().enumerate() {
            let at = offset + i;
            let mut word = self.words[at / 8].to_ne_bytes();
            word[at % 8] = *byte;
            self.words[at / 8] = u64::from_ne_bytes(word);
        }
        self
    }

    /// Sets an object name (`BPF_OBJ_NAME_LEN` = 16 with the final zero): letters, digits, `_` and `.` of `name`, cut to 15.
    pub fn name(&mut self, offset: usize, name: &str) -> &mut Self {
        let mut field = [0u8; 16];
        let allowed = name.bytes().filter(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'));
        for (slot, byte) in field[..15].iter_mut().zip(allowed) {
            *slot = byte;
        }
        self.bytes(offset, &field)
    }

    /// Sets a pointer field to a buffer that the kernel only reads. An empty buffer gives a null pointer.
    pub fn input(&mut self, offset: usize, buffer: &'a [u8]) -> &mut Self {
        self.u64(offset, if buffer.is_empty() { 0 } else { buffer.as_ptr() as u64 })
    }

    /// Sets a pointer field to a buffer that the kernel may write. An empty buffer gives a null pointer.
    pub fn output(&mut self, offset: usize, buffer: &'a mut [u8]) -> &mut Self {
        self.u64(offset, if buffer.is_empty() { 0 } else { buffer.as_mut_ptr() as u64 })
    }

    /// Reads a 32-bit field, after a call: what the kernel wrote into the block.
    pub fn get_u32(&self, offset: usize) -> u32 {
        let word = self.words[offset / 8].to_ne_bytes();
        let at = offset % 8;
        u32::from_ne_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
    }

    /// Reads a 64-bit field that lies on a multiple of 8.
    pub fn get_u64(&self, offset: usize) -> u64 {
        self.words[offset / 8]
    }
}

impl Default for Attr<'_> {
    fn default() -> Self {
        Attr::new()
    }
}

/// `bpf(cmd, attr)`: the call's non-negative result, or the errno.
///
/// `EINTR` is returned like any other error; `EAGAIN` from program load (a signal came during verification) too.
///
/// # Safety
/// Every pointer field of `attr` must have been set with [`Attr::input`] or [`Attr::output`] to a buffer that holds at
/// least as many bytes as `cmd` reads or writes there (with lengths that the block states itself: those lengths), and
/// fields that the kernel writes through must have been set with [`Attr::output`].
pub unsafe fn bpf(cmd: Cmd, attr: &mut Attr<'_>) -> Result<u32, Errno> {
    // SAFETY: the block is `attr.len` initialised, 8-aligned bytes that we hold exclusively; the caller vouches for the
    // buffers behind its pointer fields, and `attr` keeps them borrowed during the call.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, cmd as libc::c_long, attr.words.as_mut_ptr(), attr.len) };
    if ret < 0 {
        let os = std::io::Error::last_os_error();
        return Err(Errno(os.raw_os_error().unwrap_or(libc::EIO)));
    }
    Ok(ret as u32)
}

/// As [`bpf`], for commands that return a new file descriptor; it is close-on-exec, as the kernel makes all of these.
///
/// # Safety
/// As [`bpf`]; and `cmd` must be one that returns a new descriptor.
pub unsafe fn bpf_fd(cmd: Cmd, attr: &mut Attr<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's promise is ours.
    let fd = unsafe { bpf(cmd, attr) }?;
    // SAFETY: by the caller's promise the number is a descriptor that this call has just opened, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_land_where_they_are_put() {
        let mut attr = Attr::new();
        attr.u32(4, 0x1122_3344).u64(8, 0x5566_7788_99aa_bbcc).name(28, "a-name/with.dots_and_more");
        assert_eq!(attr.get_u32(0), 0);
        assert_eq!(attr.get_u32(4), 0x1122_3344);
        assert_eq!(attr.get_u64(8), 0x5566_7788_99aa_bbcc);
        assert_eq!(attr.len, 44);
        let bytes: Vec<u8> = attr.words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(&bytes[28..44], b"anamewith.dots_\0");
    }
}
