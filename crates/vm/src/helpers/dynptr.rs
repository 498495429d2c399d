//! Dynptrs: memory with a length that is known only at run time.
//!
//! `struct bpf_dynptr` is 16 opaque bytes on the program's stack. A program could forge them; so nothing in them is
//! trusted, and every use goes through the checks that an address gets.

use xway_abi::{Errno, HelperProto};

use super::packet::at;
use crate::call::{bad, size_arg};
use crate::fault::{Access, Trap};
use crate::machine::{Machine, load};

/// Longest dynptr.
pub(crate) const SIZE_MAX: u64 = (1 << 24) - 1;

/// What memory a dynptr stands for (the kernel's numbers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Local = 1,
    Ringbuf = 2,
    Xdp = 4,
}

/// The content of a `struct bpf_dynptr`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dynptr {
    pub kind: Kind,
    /// Address of the memory; for packets unused.
    pub data: u64,
    pub size: u32,
    pub offset: u32,
    pub read_only: bool,
}

const KIND_SHIFT: u32 = 28;
const READ_ONLY: u32 = 1 << 31;

impl Dynptr {
    /// Reads the dynptr at `addr`; `None` for a null one.
    pub(crate) fn load<'e, M: Machine<'e>>(vm: &M, addr: u64) -> Result<Option<Dynptr>, Trap> {
        let (data, word) = (load::<8, M>(vm, addr)?, load::<8, M>(vm, addr.wrapping_add(8))?);
        let (size, offset) = (word as u32, (word >> 32) as u32);
        let kind = match (size & !READ_ONLY) >> KIND_SHIFT {
            1 => Kind::Local,
            2 => Kind::Ringbuf,
            4 => Kind::Xdp,
            _ => return Ok(None),
        };
        if data == 0 {
            return Ok(None);
        }
        Ok(Some(Dynptr { kind, data, size: size & SIZE_MAX as u32, offset, read_only: size & READ_ONLY != 0 }))
    }

    /// Writes it to `addr`.
    pub(crate) fn store<'e, M: Machine<'e>>(&self, vm: &mut M, addr: u64) -> Result<(), Trap> {
        vm.write(addr, &self.to_bytes())
    }

    /// The 16 bytes that a program keeps.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let read_only = if self.read_only { READ_ONLY } else { 0 };
        let size = self.size | (self.kind as u32) << KIND_SHIFT | read_only;
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.data.to_ne_bytes());
        out[8..].copy_from_slice(&(u64::from(size) | u64::from(self.offset) << 32).to_ne_bytes());
        out
    }

    /// Makes the dynptr at `addr` null.
    pub(crate) fn clear<'e, M: Machine<'e>>(vm: &mut M, addr: u64) -> Result<(), Trap> {
        vm.write(addr, &[0; 16])
    }

    /// `E2BIG` when `len` bytes at `offset` do not all lie inside.
    pub(crate) fn inside(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let size = u64::from(self.size);
        if len > size || offset > size - len { Err(Errno::E2BIG) } else { Ok(()) }
    }

    /// The address of `len` bytes at `offset`, for kinds whose memory lies in one piece.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.data.wrapping_add(self.offset.into()).wrapping_add(offset)
    }

    /// A dynptr of the whole packet.
    pub(crate) fn packet<'e, M: Machine<'e>>(vm: &M, len: usize) -> Dynptr {
        Dynptr { kind: Kind::Xdp, data: vm.packet_at(0, 0), size: len as u32, offset: 0, read_only: false }
    }

    /// Copies packet bytes that do not all lie in the first buffer.
    pub(crate) fn packet_load<'e, M: Machine<'e>>(&self, vm: &M, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        let start = self.offset.wrapping_add(offset as u32);
        vm.frame().ok_or(Errno::EINVAL)?.load(at(start, out.len())?, out)
    }

    /// The address of packet bytes that all lie in one buffer.
    pub(crate) fn packet_address<'e, M: Machine<'e>>(&self, vm: &M, offset: u64, len: u64) -> Result<u64, Errno> {
        let start = at(self.offset.wrapping_add(offset as u32), len as usize)?;
        let piece = vm.frame().and_then(|frame| frame.piece(start, len as usize));
        let (part, position) = piece.ok_or(Errno::EINVAL)?;
        Ok(vm.packet_at(part, position))
    }

    /// Copies into the program's buffer what the packet has of these bytes.
    pub(crate) fn packet_copy<'e, M: Machine<'e>>(
        &self,
        vm: &mut M,
        offset: u64,
        len: u64,
        buffer: u64,
    ) -> Result<(), Trap> {
        let start = self.offset.wrapping_add(offset as u32);
        let mut bytes = vec![0; len as usize];
        let count = vm.frame().map_or(0, |frame| frame.load_some(start as usize, &mut bytes));
        if count > 0 { vm.write(buffer, &bytes[..count]) } else { Ok(()) }
    }
}

/// `bpf_dynptr_from_mem(data, size, flags, ptr)`
pub(crate) fn from_mem<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let size = size_arg(proto, 1, r)?;
    if size > 0 {
        vm.check(r[0], size, Access::Write)?;
    }
    let error = if size > SIZE_MAX {
        Errno::E2BIG
    } else if r[2] != 0 {
        Errno::EINVAL
    } else {
        let d = Dynptr { kind: Kind::Local, data: r[0], size: size as u32, offset: 0, read_only: false };
        return d.store(vm, r[3]).map(|()| 0);
    };
    Dynptr::clear(vm, r[3])?;
    Ok(error.as_ret())
}

/// `bpf_dynptr_read(dst, len, src, offset, flags)`
pub(crate) fn read<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    // An offset has 32 bits.
    let (len, offset) = (size_arg(proto, 1, r)?, u64::from(r[3] as u32));
    if len > 0 {
        vm.check(r[0], len, Access::Write)?;
    }
    let dynptr = Dynptr::load(vm, r[2])?;
    if let Some(d) = dynptr.filter(|d| r[4] == 0 && in_parts(vm, d) && d.inside(offset, len).is_ok()) {
        let mut bytes = vec![0; len as usize];
        if let Err(errno) = d.packet_load(vm, offset, &mut bytes) {
            return Ok(errno.as_ret());
        }
        return vm.write(r[0], &bytes).map(|()| 0);
    }
    let found = match dynptr {
        Some(d) if r[4] == 0 => d.inside(offset, len).and_then(|()| source(vm, &d, offset, len)),
        _ => Err(Errno::EINVAL),
    };
    match found {
        Ok(addr) => {
            let mut bytes = vec![0; len as usize];
            if len > 0 {
                vm.read(addr, &mut bytes)?;
                vm.write(r[0], &bytes)?;
            }
            Ok(0)
        }
        Err(errno) => Ok(errno.as_ret()),
    }
}

/// Whether the memory lies in more than one piece.
fn in_parts<'e, M: Machine<'e>>(vm: &M, d: &Dynptr) -> bool {
    d.kind == Kind::Xdp && vm.frame().is_some_and(xway_packet::Frame::has_frags)
}

fn source<'e, M: Machine<'e>>(vm: &M, d: &Dynptr, offset: u64, len: u64) -> Result<u64, Errno> {
    if d.kind == Kind::Xdp { d.packet_address(vm, offset, len) } else { Ok(d.address(offset)) }
}

/// `bpf_dynptr_write(dst, offset, src, len, flags)`
pub(crate) fn write<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let (len, offset) = (size_arg(proto, 3, r)?, u64::from(r[1] as u32));
    let mut bytes = vec![0; len as usize];
    if len > 0 {
        vm.read(r[2], &mut bytes)?;
    }
    let dynptr = Dynptr::load(vm, r[0])?;
    if let Some(d) = dynptr.filter(|d| !d.read_only && r[4] == 0 && in_parts(vm, d) && d.inside(offset, len).is_ok()) {
        let start = d.offset.wrapping_add(r[1] as u32);
        let stored = at(start, bytes.len()).and_then(|start| vm.packet_store(start, &bytes));
        return Ok(stored.map_or_else(Errno::as_ret, |()| 0));
    }
    let found = match dynptr {
        Some(d) if !d.read_only => d
            .inside(offset, len)
            .and_then(|()| if r[4] == 0 { source(vm, &d, offset, len) } else { Err(Errno::EINVAL) }),
        _ => Err(Errno::EINVAL),
    };
    match found {
        Ok(addr) => {
            if len > 0 {
                vm.write(addr, &bytes)?;
            }
            Ok(0)
        }
        Err(errno) => Ok(errno.as_ret()),
    }
}

/// `bpf_dynptr_data(ptr, offset, len)`: an address, or null where a copy would be needed.
pub(crate) fn data<'e, M: Machine<'e>>(vm: &mut M, proto: &'static HelperProto, r: &[u64; 5]) -> Result<u64, Trap> {
    let (offset, len) = (u64::from(r[1] as u32), u64::from(r[2] as u32));
    let Some(d) = Dynptr::load(vm, r[0])? else { return Ok(0) };
    if d.read_only || d.kind == Kind::Xdp || d.inside(offset, len).is_err() {
        return Ok(0);
    }
    let addr = d.address(offset);
    if vm.check(addr, len, Access::Write).is_err() {
        return Err(bad(proto, 0, "is a dynptr of memory that is gone".into()));
    }
    Ok(addr)
}
