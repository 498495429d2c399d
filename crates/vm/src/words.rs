//! Memory in words: what a fault says of an address, and why an access was refused.

use crate::addr::{self, offset, region};
use crate::env::{GrantKind, STACK_LEN};
use crate::fault::{Access, FaultKind, Trap};
use crate::mem::{Vm, stack_frame};

impl Vm<'_, '_> {
    /// Says why an access was refused.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse(&self, addr: u64, len: u64, access: Access) -> Trap {
        let (reg, off) = (region(addr), offset(addr) as i64);
        let name = self.region_name(addr);
        let denied = |why| Box::new(FaultKind::Denied { access, len, off, region: name.clone(), why });
        let bounds = |low, high| Box::new(FaultKind::Bounds { access, len, off, region: name.clone(), low, high });
        match reg {
            addr::NULL => Box::new(FaultKind::Null { access, len, addr }),
            addr::CTX if access == Access::Read => {
                denied("the fields of struct xdp_md are read as aligned 4 bytes at offsets 0 to 20")
            }
            addr::CTX => denied("an XDP program may not write its context"),
            addr::PACKET if access == Access::Atomic => {
                denied("atomic operations are only for the stack and for map values")
            }
            addr::PACKET => {
                let (low, high) = self.packet_bounds();
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
                    let end = (off as u64).checked_add(len);
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

    /// The region that an address lies in, in words.
    pub(crate) fn region_name(&self, addr: u64) -> String {
        match region(addr) {
            addr::NULL => "no region".into(),
            addr::CTX => "the context".into(),
            addr::PACKET => match &self.frame {
                Some(f) => format!(
                    "the packet buffer (data_meta {}, data {}, data_end {})",
                    f.data_meta(),
                    f.data(),
                    f.data_end()
                ),
                None => "a packet that is not there".into(),
            },
            addr::RAW => "the program's memory".into(),
            addr::MAP => "a map pointer".into(),
            addr::CODE => "the program's code".into(),
            addr::CLOBBERED => "an unset register".into(),
            addr::OPAQUE => "a kernel object".into(),
            r if (addr::COPY..addr::HANDLE).contains(&r) => "a key or record handed to a callback".into(),
            r if (addr::HANDLE..addr::GRANT).contains(&r) => "a dynptr handed to a callback".into(),
            r if stack_frame(r).is_some() => {
                format!("the stack of call frame {}", r - addr::STACK)
            }
            r => match self.grant(r) {
                None => "no region".into(),
                Some(g) => match g.kind {
                    GrantKind::Value => format!("a map value of {} bytes", g.value.len()),
                    GrantKind::Record(_) => format!("a ring buffer record of {} bytes", g.value.len()),
                    GrantKind::Returned => "a returned ring buffer record".into(),
                },
            },
        }
    }

    /// A register's content in words.
    pub(crate) fn describe(&self, value: u64) -> String {
        match region(value) {
            addr::NULL if value < 10 => format!("{value}"),
            addr::NULL => format!("{value:#x}"),
            addr::CTX => "the context".into(),
            r if r >= addr::GRANT && self.grant(r).is_none() => format!("{value:#x}"),
            _ => format!("{} {:+}", self.region_name(value), offset(value) as i64),
        }
    }
}
