//! What helpers ask of the run that calls them: the seam between what a helper does and how programs are run.
//!
//! Two kinds of run implement [`Machine`]. In the checked interpreter an address is a region and an offset, and every use is
//! checked. In generated code an address is an address, and the verifier has proved every use. Helpers and kernel functions
//! are written once over this trait.

use std::sync::Arc;

use xway_abi::{Errno, HelperProto};
use xway_maps::{Guard, Map, RingRecord, ValueRef};
use xway_packet::Frame;

use crate::addr::{self, POISON, at, offset, region};
use crate::call::bad;
use crate::env::{Grant, GrantKind};
use crate::mem::Vm;
use crate::{Host, Program, Timers};

pub use crate::call::{Arg, Call, PlainFn};
pub use crate::fault::{Access, FaultKind, Trap};
pub use crate::helpers::{
    Implementation, check_mtu, compare, csum_diff, csum_diff_by, csum_folded, csum_partial, fib_lookup, implementation,
    load_bytes, perf_event, redirect_through, ring, special, store_bytes,
};
pub use crate::kfuncs::{Kfunc, kfunc};

/// A run, as its helpers see it. Addresses are whatever the run's registers hold.
///
/// Errors are faults: what no verified program can do. What a program may do wrong and is told about by errno is decided by
/// the helpers and never comes here.
pub trait Machine<'e> {
    /// Keeps alive whatever the run is granted.
    fn guard(&self) -> &'e Guard;
    /// The machine's clocks, randomness, routes.
    fn host(&self) -> &'e dyn Host;
    /// Number of the worker.
    fn cpu(&self) -> u32;
    /// The table of timers.
    fn timers(&self) -> &'e Timers;
    /// The packet.
    fn frame(&self) -> Option<&Frame>;
    /// Address of a byte of one of the packet's buffers (0 is the first), by its position in the buffer's chunk.
    fn packet_at(&self, part: usize, position: usize) -> u64;
    /// Copies bytes into the packet, whichever of its buffers they belong to.
    fn packet_store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Errno>;

    /// `len` bytes at `addr` may be used in this way.
    fn check(&self, addr: u64, len: u64, access: Access) -> Result<(), Trap>;
    /// Copies bytes out of the program's memory.
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Trap>;
    /// Copies bytes into the program's memory.
    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Trap>;
    /// Copies bytes from an address that nobody has proved anything about; `false` when the program may not read them.
    fn probe(&self, addr: u64, out: &mut [u8]) -> bool;
    /// The address is null or a small number.
    fn is_small(&self, addr: u64) -> bool;
    /// Bytes as they lie in memory that nobody else writes, where that is cheap to know.
    #[inline(always)]
    fn direct(&self, _addr: u64, _len: usize) -> Option<&[u8]> {
        None
    }
    /// The place of `len` bytes inside a map value.
    fn place(&self, addr: u64, len: usize) -> Result<ValueRef<'e>, Trap>;
    /// A map argument.
    fn map_arg(&self, proto: &'static HelperProto, n: usize, reg: u64) -> Result<&'e Map, Trap>;
    /// What `with` makes of a constant string: of the bytes up to the zero.
    fn const_str<T>(
        &self,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Trap>;

    /// The address of a value that the program is granted.
    fn grant_value(&mut self, value: ValueRef<'e>, readable: bool, writable: bool) -> Result<u64, Trap>;
    /// What stands for a map that was found in a map.
    fn grant_map(&mut self, map: &'e Map) -> u64;
    /// The address of a ring record that the program is granted.
    fn grant_record(&mut self, record: RingRecord<'e>) -> Result<u64, Trap>;
    /// Takes a record back; its address then reaches nothing.
    fn take_record(&mut self, proto: &'static HelperProto, addr: u64) -> Result<RingRecord<'e>, Trap>;
    /// A handle on an object that cannot be looked into.
    fn opaque(&self, number: u64) -> u64;

    /// A callback argument.
    fn func_arg(&self, proto: &'static HelperProto, n: usize, reg: u64) -> Result<u64, Trap>;
    /// A callback argument for later: the program that holds it and its first instruction.
    fn owned_callback(
        &self,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
    ) -> Result<Option<(Arc<Program>, usize)>, Trap>;
    /// Calls a callback that [`Machine::func_arg`] gave, with at most five arguments.
    fn call_back(&mut self, func: u64, args: &[u64]) -> Result<u64, Trap>;
    /// Copies bytes to where the callback that is called next can read them.
    fn copy_region(&mut self, bytes: &[u8]) -> u64;
    /// Puts a dynptr where the callback that `with` calls can use it.
    fn with_handle<T>(&mut self, dynptr: [u8; 16], with: impl FnOnce(&mut Self, u64) -> T) -> T
    where
        Self: Sized;

    /// Address of the lock that is held, 0 for none.
    fn lock(&mut self) -> &mut u64;
    /// An address in words.
    fn describe(&self, value: u64) -> String;
}

/// Reads a number of `N` bytes.
pub(crate) fn load<'e, const N: usize, M: Machine<'e>>(vm: &M, addr: u64) -> Result<u64, Trap> {
    let mut bytes = [0; 8];
    let from = if cfg!(target_endian = "big") { 8 - N } else { 0 };
    vm.read(addr, &mut bytes[from..from + N])?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Writes a number of `N` bytes.
pub(crate) fn store<'e, const N: usize, M: Machine<'e>>(vm: &mut M, addr: u64, value: u64) -> Result<(), Trap> {
    let from = if cfg!(target_endian = "big") { 8 - N } else { 0 };
    vm.write(addr, &value.to_ne_bytes()[from..from + N])
}

/// The checked interpreter's run, with the program whose instruction calls.
pub(crate) struct Checked<'m, 'v, 'e> {
    pub vm: &'m mut Vm<'v, 'e>,
    pub program: &'e Program,
}

impl<'e> Machine<'e> for Checked<'_, '_, 'e> {
    #[inline(always)]
    fn guard(&self) -> &'e Guard {
        self.vm.env.guard
    }

    fn host(&self) -> &'e dyn Host {
        self.vm.env.host
    }

    #[inline(always)]
    fn cpu(&self) -> u32 {
        self.vm.env.cpu
    }

    fn timers(&self) -> &'e Timers {
        self.vm.env.timers
    }

    fn frame(&self) -> Option<&Frame> {
        self.vm.frame.as_deref()
    }

    fn packet_at(&self, part: usize, position: usize) -> u64 {
        at(addr::PACKET, (part as u64) << addr::PART_SHIFT | position as u64)
    }

    fn packet_store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.vm.frame.as_deref_mut().ok_or(Errno::EINVAL)?.store(offset, bytes)
    }

    fn check(&self, addr: u64, len: u64, access: Access) -> Result<(), Trap> {
        self.vm.check(addr, len, access)
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Trap> {
        self.vm.read(addr, out)
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Trap> {
        self.vm.write(addr, bytes)
    }

    fn probe(&self, addr: u64, out: &mut [u8]) -> bool {
        self.vm.read(addr, out).is_ok()
    }

    fn is_small(&self, addr: u64) -> bool {
        region(addr) == addr::NULL
    }

    #[inline(always)]
    fn direct(&self, addr: u64, len: usize) -> Option<&[u8]> {
        self.vm.stack_bytes(addr, len)
    }

    fn place(&self, addr: u64, len: usize) -> Result<ValueRef<'e>, Trap> {
        self.vm.place(addr, len)
    }

    #[inline(always)]
    fn map_arg(&self, proto: &'static HelperProto, n: usize, reg: u64) -> Result<&'e Map, Trap> {
        self.vm.map_arg(self.program, proto, n, reg)
    }

    fn const_str<T>(
        &self,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Trap> {
        self.vm.const_str(proto, n, reg).map(|text| with(&text))
    }

    #[inline(always)]
    fn grant_value(&mut self, value: ValueRef<'e>, readable: bool, writable: bool) -> Result<u64, Trap> {
        self.vm.grant_value(value, readable, writable)
    }

    fn grant_map(&mut self, map: &'e Map) -> u64 {
        self.vm.grant_map(map)
    }

    fn grant_record(&mut self, record: RingRecord<'e>) -> Result<u64, Trap> {
        let value = record.value();
        self.vm.add_grant(Grant { value, kind: GrantKind::Record(Box::new(record)), readable: true, writable: true })
    }

    fn take_record(&mut self, proto: &'static HelperProto, addr: u64) -> Result<RingRecord<'e>, Trap> {
        let index = region(addr).wrapping_sub(addr::GRANT) as usize;
        let state = &mut self.vm.env.state;
        if let Some(grant) = state.grants.get_mut(index).filter(|_| offset(addr) == 0)
            && matches!(grant.kind, GrantKind::Record(_))
            && let GrantKind::Record(record) = std::mem::replace(&mut grant.kind, GrantKind::Returned)
        {
            (grant.readable, grant.writable) = (false, false);
            state.free.push_back(index as u32);
            return Ok(*record);
        }
        Err(bad(proto, 0, format!("is {}, not a reserved record", self.vm.describe(addr))))
    }

    fn opaque(&self, number: u64) -> u64 {
        at(addr::OPAQUE, number)
    }

    fn func_arg(&self, proto: &'static HelperProto, n: usize, reg: u64) -> Result<u64, Trap> {
        self.vm.func_arg(self.program, proto, n, reg).map(|entry| entry as u64)
    }

    fn owned_callback(
        &self,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
    ) -> Result<Option<(Arc<Program>, usize)>, Trap> {
        let entry = self.vm.func_arg(self.program, proto, n, reg)?;
        Ok(self.program.arc().map(|owner| (owner, entry)))
    }

    fn call_back(&mut self, func: u64, args: &[u64]) -> Result<u64, Trap> {
        let mut regs = [POISON; 5];
        for (to, from) in regs.iter_mut().zip(args) {
            *to = *from;
        }
        // What stopped the callback is recorded already; this carries it out.
        let stopped = |_| Box::new(FaultKind::Call("the callback was stopped".into()));
        self.vm.call(self.program, func as usize, regs).map_err(stopped)
    }

    fn copy_region(&mut self, bytes: &[u8]) -> u64 {
        self.vm.copy_region(bytes)
    }

    fn with_handle<T>(&mut self, dynptr: [u8; 16], with: impl FnOnce(&mut Self, u64) -> T) -> T {
        let (depth, handle) = self.vm.put_handle(dynptr);
        let ret = with(self, handle);
        self.vm.env.state.handles[depth] = [0; 16];
        ret
    }

    fn lock(&mut self) -> &mut u64 {
        &mut self.vm.env.state.lock
    }

    fn describe(&self, value: u64) -> String {
        self.vm.describe(value)
    }
}
