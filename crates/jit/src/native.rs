//! Helpers in compiled runs: addresses are addresses, and the verifier has proved every one that a helper is given.
#![allow(unsafe_code)] // looks behind addresses that the verifier has proved
//!
//! The invariant of this file, kept by `compiled.rs`, which compiles verified programs only and runs them with the maps that
//! were verified: **an argument of a helper is what the helper's prototype says.** A memory argument is readable, or writable
//! where the prototype says so, for its length, and lives until the call returns; a map argument is the address of a map that
//! the program or the guard keeps alive; a callback is a [`Handle`] of the running program.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use xway_abi::{Errno, HelperProto};
use xway_maps::{Guard, Map, RingRecord, ValueRef};
use xway_packet::Frame;
use xway_vm::host::route::Link;
use xway_vm::machine::{Access, FaultKind, Machine, Trap};
use xway_vm::{Host, Program, Timers};

use crate::env::RunEnv;

/// What a register holds that stands for a function of the program.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Address of its code, set when the code is there.
    pub code: AtomicUsize,
    /// Its first instruction, for the interpreter, which runs timers.
    pub insn: usize,
    /// The program that holds it.
    pub program: Weak<Program>,
}

/// Keys up to this length are copied without an allocation.
const SHORT: usize = 64;

type Function<'e> = extern "C" fn(*mut RunEnv<'e>, u64, u64, u64, u64, u64) -> u64;

/// A compiled run, as helpers see it.
pub(crate) struct Native<'n, 'e> {
    /// Raw, because a callback makes another `Native` from the same pointer while this one waits.
    env: *mut RunEnv<'e>,
    run: PhantomData<&'n mut RunEnv<'e>>,
}

impl<'e> Native<'_, 'e> {
    /// # Safety
    /// `env` is what `compiled.rs` passed to generated code, and the run that it is about lasts.
    pub unsafe fn new<'n>(env: *mut RunEnv<'e>) -> Native<'n, 'e> {
        Native { env, run: PhantomData }
    }

    pub fn env(&self) -> &RunEnv<'e> {
        // SAFETY: `new`'s promise; references from here end before anything else of the run goes on, callbacks included.
        unsafe { &*self.env }
    }

    pub fn env_mut(&mut self) -> &mut RunEnv<'e> {
        // SAFETY: as in `env`; a run is on one thread and does one thing at a time.
        unsafe { &mut *self.env }
    }

    /// The frame that is being run, not tied to `self`: a helper uses it beside its arguments, which are copies or lie outside
    /// of it.
    pub fn frame_mut<'f>(&mut self) -> Option<&'f mut Frame> {
        let frame = self.env().frame;
        // SAFETY: null, or the frame of the burst that is being run, which the caller of `Compiled` lent mutably; one helper
        // runs at a time and ends before the next one asks.
        unsafe { frame.as_mut() }
    }

    /// The map behind an argument.
    pub fn map(&self, reg: u64) -> &'e Map {
        // SAFETY: the invariant of this file: the address of a map that lives as long as the guard.
        unsafe { &*(reg as *const Map) }
    }

    /// An interface, as of a moment of this burst: the one that was asked for last is kept.
    #[inline]
    pub fn device(&mut self, ifindex: u32) -> Result<Link, Errno> {
        let env = self.env_mut();
        match env.link {
            Some((known, link)) if known == ifindex => Ok(link),
            _ => env.host.device(ifindex).inspect(|link| env.link = Some((ifindex, *link))),
        }
    }

    /// Memory that others may write at the same time, as its argument's prototype describes it.
    pub fn memory(&self, addr: u64, len: usize) -> Option<ValueRef<'e>> {
        let base = NonNull::new(addr as *mut u8)?;
        // SAFETY: the invariant of this file. It may be shared (a map value, with threads; a packet, with another process) or not
        // (the stack); atomic access is right for all.
        Some(unsafe { ValueRef::new(base, len as u32, self.env().guard) })
    }

    /// Memory that only this run uses, to be read: the stack.
    ///
    /// # Safety
    /// The argument is proved to be of `len` bytes on the program's stack, and nothing writes it while the slice is used.
    pub unsafe fn bytes<'s>(&self, addr: u64, len: usize) -> &'s [u8] {
        // SAFETY: the caller's promise; as in `stack`, the bytes are initialised.
        unsafe { std::slice::from_raw_parts(addr as *const u8, len) }
    }

    /// What `with` makes of a copy of memory that another process may write meanwhile: a packet's. Each byte is read once.
    pub fn with_copy<T>(&self, addr: u64, len: usize, with: impl FnOnce(&[u8]) -> T) -> T {
        if len > SHORT {
            return self.with_long_copy(addr, len, with);
        }
        let mut copy = [0; SHORT];
        self.copy(addr, &mut copy[..len]);
        with(&copy[..len])
    }

    #[cold]
    fn with_long_copy<T>(&self, addr: u64, len: usize, with: impl FnOnce(&[u8]) -> T) -> T {
        let mut copy = vec![0; len];
        self.copy(addr, &mut copy);
        with(&copy)
    }

    /// Copies memory that others may write meanwhile.
    pub fn copy(&self, addr: u64, out: &mut [u8]) {
        if let Some(memory) = self.memory(addr, out.len()) {
            let _ = memory.read_bytes(0, out); // The reference is exactly as long.
        }
    }

    /// Memory that only this run uses and that is not the packet: the stack.
    ///
    /// # Safety
    /// The argument is proved to be of `len` bytes on the program's stack, and no other slice of it exists.
    pub unsafe fn stack<'s>(&self, addr: u64, len: usize) -> &'s mut [u8] {
        // SAFETY: the caller's promise. Stack that the program never wrote was cleared at entry (`plan/stack.rs`) or, where it is
        // written only, holds bytes of earlier use, which are initialised.
        unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, len) }
    }

    /// The bytes of a constant text, up to the zero that the proof has seen in front of its value's end.
    pub fn text<'s>(&self, addr: u64) -> &'s [u8] {
        // SAFETY: the invariant of this file: the bytes up to the zero lie in the value of a map that is frozen and read-only to programs,
        // which nobody writes and which lives as long as the guard.
        unsafe { CStr::from_ptr(addr as *const c_char) }.to_bytes()
    }

    /// A byte of an argument's memory, which others may write at the same time.
    ///
    /// # Safety
    /// It is one of the argument's, by its prototype and the lengths that it is given with.
    #[inline(always)]
    pub unsafe fn byte(&self, addr: u64, n: usize) -> u8 {
        // SAFETY: the caller's promise; as in `memory`, atomic access is right for all.
        unsafe { AtomicU8::from_ptr((addr as *mut u8).add(n)) }.load(Ordering::Relaxed)
    }

    /// Notes a fault and gives the value that the program goes on with.
    #[cold]
    pub fn fault(&mut self, kind: FaultKind) -> u64 {
        let env = self.env_mut();
        let frame = env.frame as usize;
        env.faults.push((frame, kind));
        0
    }

    /// Gives the program a ring record; its address.
    #[inline(always)]
    pub fn hand_out(&mut self, record: RingRecord<'e>) -> u64 {
        self.env_mut().records.put(record)
    }

    /// Takes a ring record back that the program was given.
    #[inline(always)]
    pub fn take_back(&mut self, addr: u64) -> Option<RingRecord<'e>> {
        self.env_mut().records.take(addr)
    }

    fn handle(&self, reg: u64) -> &'e Handle {
        // SAFETY: the invariant of this file: a handle of the running program, whose code is being run and kept alive.
        unsafe { &*(reg as *const Handle) }
    }
}

#[cold]
fn wrong(proto: &'static HelperProto, n: usize, why: &str) -> Trap {
    Box::new(FaultKind::Argument { helper: proto.name, arg: n as u8 + 1, why: why.to_owned() })
}

/// An address that no ring record has, given to a helper that takes one back.
#[cold]
pub(crate) fn no_record(helper: &'static str) -> Trap {
    Box::new(FaultKind::Argument { helper, arg: 1, why: "is not a reserved record".to_owned() })
}

impl<'e> Machine<'e> for Native<'_, 'e> {
    fn guard(&self) -> &'e Guard {
        self.env().guard
    }

    fn host(&self) -> &'e dyn Host {
        self.env().host
    }

    fn cpu(&self) -> u32 {
        self.env().cpu
    }

    fn timers(&self) -> &'e Timers {
        self.env().timers
    }

    fn frame(&self) -> Option<&Frame> {
        // SAFETY: as in `frame_mut`.
        unsafe { self.env().frame.as_ref() }
    }

    fn packet_at(&self, part: usize, position: usize) -> u64 {
        self.frame().and_then(|f| f.part(part)).map_or(0, |f| f.chunk().as_ptr() as u64 + position as u64)
    }

    fn packet_store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.frame_mut().ok_or(Errno::EINVAL)?.store(offset, bytes)
    }

    fn check(&self, _: u64, _: u64, _: Access) -> Result<(), Trap> {
        Ok(()) // Proved.
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Trap> {
        self.copy(addr, out);
        Ok(())
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Trap> {
        if let Some(memory) = self.memory(addr, bytes.len()) {
            let _ = memory.write_bytes(0, bytes);
        }
        Ok(())
    }

    /// Nothing is proved about the address, so nothing is read: programs that could get here are not compiled.
    fn probe(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn is_small(&self, addr: u64) -> bool {
        addr < 1 << 40
    }

    fn place(&self, addr: u64, len: usize) -> Result<ValueRef<'e>, Trap> {
        self.memory(addr, len)
            .ok_or_else(|| Box::new(FaultKind::Null { access: Access::Atomic, len: len as u64, addr }))
    }

    fn map_arg(&self, proto: &'static HelperProto, n: usize, reg: u64) -> Result<&'e Map, Trap> {
        if reg == 0 { Err(wrong(proto, n, "is null, not a map")) } else { Ok(self.map(reg)) }
    }

    fn const_str<T>(
        &self,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Trap> {
        if reg == 0 { Err(wrong(proto, n, "is null, not a string")) } else { Ok(with(self.text(reg))) }
    }

    fn grant_value(&mut self, value: ValueRef<'e>, _: bool, _: bool) -> Result<u64, Trap> {
        Ok(value.as_ptr() as u64)
    }

    fn grant_map(&mut self, map: &'e Map) -> u64 {
        std::ptr::from_ref(map) as u64
    }

    fn grant_record(&mut self, record: RingRecord<'e>) -> Result<u64, Trap> {
        Ok(self.hand_out(record))
    }

    fn take_record(&mut self, proto: &'static HelperProto, addr: u64) -> Result<RingRecord<'e>, Trap> {
        self.take_back(addr).ok_or_else(|| no_record(proto.name))
    }

    /// Nobody looks behind it: the verifier lets programs pass it on and nothing else.
    fn opaque(&self, number: u64) -> u64 {
        1 + number
    }

    fn func_arg(&self, _: &'static HelperProto, _: usize, reg: u64) -> Result<u64, Trap> {
        Ok(reg)
    }

    fn owned_callback(
        &self,
        _: &'static HelperProto,
        _: usize,
        reg: u64,
    ) -> Result<Option<(Arc<Program>, usize)>, Trap> {
        let handle = self.handle(reg);
        Ok(handle.program.upgrade().map(|program| (program, handle.insn)))
    }

    fn call_back(&mut self, func: u64, args: &[u64]) -> Result<u64, Trap> {
        let code = self.handle(func).code.load(Ordering::Acquire);
        // SAFETY: the code of a function of the running program, compiled with exactly this signature
        // (`Shape::Function`), kept alive by whoever runs the program.
        let code = unsafe { std::mem::transmute::<usize, Function<'e>>(code) };
        let arg = |n: usize| args.get(n).copied().unwrap_or(0);
        self.env_mut().depth += 1;
        let ret = code(self.env, arg(0), arg(1), arg(2), arg(3), arg(4));
        self.env_mut().depth -= 1;
        Ok(ret)
    }

    fn copy_region(&mut self, bytes: &[u8]) -> u64 {
        let env = self.env_mut();
        if env.copies.len() <= env.depth {
            env.copies.resize_with(env.depth + 1, Vec::new);
        }
        let copy = &mut env.copies[env.depth];
        copy.clear();
        copy.extend_from_slice(bytes);
        copy.as_ptr() as u64
    }

    fn with_handle<T>(&mut self, mut dynptr: [u8; 16], with: impl FnOnce(&mut Self, u64) -> T) -> T {
        let at = dynptr.as_mut_ptr() as u64;
        with(self, at)
    }

    fn lock(&mut self) -> &mut u64 {
        &mut self.env_mut().lock
    }

    fn describe(&self, value: u64) -> String {
        format!("{value:#x}")
    }
}
