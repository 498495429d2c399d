//! Memory in words: what a fault says of an address, and why an access was refused.

use crate::addr::{self, offset, region};
use crate::env::{GrantKind, STACK_LEN};
use crate::fault::{Access, FaultKind, Region, RegionKind, Trap};
use crate::mem::{Vm, stack_frame};

impl Vm<'_, '_> {
    /// Says why an access was refused.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse(&self, addr: u64, len: u64, access: Access) -> Trap {
        let reg = region(addr);
        let (region, off) = self.locate(addr);
        let (named, from) = (region.clone(), off - offset(addr) as i64);
        let denied = |why| Box::new(FaultKind::Denied { access, len, off, region: named.clone(), why });
        let bounds = |low: u64, high: u64| {
            let (low, high) = (low as i64 + from, high as i64 + from);
            Box::new(FaultKind::Bounds { access, len, off, region: region.clone(), low, high })
        };
        match reg {
            addr::NULL => Box::new(FaultKind::Null { access, len, addr }),
            addr::CTX if access == Access::Read => {
                denied("the fields of struct xdp_md are read as aligned 4 bytes at offsets 0 to 20")
            }
            addr::CTX => denied("an XDP program may not write its context"),
            addr::PACKET => {
                let (low, high) = self.packet_bounds(offset(addr));
                bounds(low, high)
            }
            r if (addr::COPY..addr::GRANT).contains(&r) => match (self.copy(r), access) {
                (Some(copy), Access::Read) => bounds(0, copy.len() as u64),
                _ => denied("what a callback is handed by address here may only be read"),
            },
            addr::RAW => bounds(0, self.raw.len() as u64),
            addr::MAP => denied("a map is reached through helpers, not through its address"),
            addr::CODE => denied("code is not data"),
            addr::CLOBBERED => denied("the register holds nothing: it was never set, or a call clobbered it"),
            addr::OPAQUE => denied("the object cannot be looked into from user space"),
            r if stack_frame(r).is_some() => bounds(0, STACK_LEN as u64),
            r => match self.grant(r) {
                None => Box::new(FaultKind::Wild { access, len, addr }),
                Some(g) if matches!(g.kind, GrantKind::Returned) => {
                    denied("the record was submitted or discarded before")
                }
                Some(g) => {
                    let end = offset(addr).checked_add(len);
                    if end.is_none_or(|e| e > g.value.len() as u64) {
                        bounds(0, g.value.len() as u64)
                    } else if !g.writable {
                        denied("the map is read-only for programs")
                    } else {
                        denied("the map is write-only for programs")
                    }
                }
            },
        }
    }

    /// The region that an address means, and the offset in it.
    pub(crate) fn locate(&self, addr: u64) -> (Region, i64) {
        use RegionKind::*;
        let off = offset(addr) as i64;
        let of = |kind, words: &str| (Region { kind, words: words.into() }, off);
        match region(addr) {
            addr::NULL => of(Nothing, "no region"),
            addr::CTX => of(Context, "the context"),
            addr::PACKET => match &self.frame {
                Some(f) => {
                    let meta =
                        if f.meta_len() > 0 { format!(", {} of metadata before", f.meta_len()) } else { "".into() };
                    let words = format!("the packet ({} bytes{meta})", f.len());
                    (Region { kind: Packet, words }, self.packet_offset(offset(addr)))
                }
                None => of(Nothing, "a packet that is not there"),
            },
            addr::RAW => of(Memory, "the program's memory"),
            addr::MAP => of(Handle, "a map pointer"),
            addr::CODE => of(Handle, "the program's code"),
            addr::CLOBBERED => of(Unset, "an unset register"),
            addr::OPAQUE => of(Handle, "a kernel object"),
            r if (addr::COPY..addr::HANDLE).contains(&r) => of(Lent, "a key or record handed to a callback"),
            r if (addr::HANDLE..addr::GRANT).contains(&r) => of(Lent, "a dynptr handed to a callback"),
            r => match (stack_frame(r), self.grant(r)) {
                (Some(frame), _) => {
                    let whose = if frame == 0 { String::new() } else { format!(" of call frame {frame}") };
                    (Region { kind: Stack, words: format!("the stack{whose}") }, off - STACK_LEN as i64)
                }
                (None, None) => of(Nothing, "no region"),
                (None, Some(g)) => match g.kind {
                    GrantKind::Value => of(MapValue, &format!("a map value of {} bytes", g.value.len())),
                    GrantKind::Record(_) => of(Record, &format!("a ring buffer record of {} bytes", g.value.len())),
                    GrantKind::Returned => of(Record, "a returned ring buffer record"),
                },
            },
        }
    }

    /// A register's content in words.
    pub(crate) fn describe(&self, value: u64) -> String {
        match region(value) {
            addr::NULL if value < 10 => format!("{value}"),
            addr::NULL => format!("{value:#x}"),
            addr::CLOBBERED => "unset".into(),
            r if r >= addr::GRANT && self.grant(r).is_none() => format!("{value:#x}"),
            _ => match self.locate(value) {
                (region, 0) => region.words,
                (region, off) => format!("{} {} {}", region.words, if off < 0 { '-' } else { '+' }, off.unsigned_abs()),
            },
        }
    }
}
