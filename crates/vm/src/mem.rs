//! Memory as a program sees it: which bytes an address reaches, and what is said when it reaches none.

use xway_maps::{Map, Rmw, ValueRef};
use xway_packet::Frame;

use crate::addr::{self, at, offset, region};
use crate::env::{Env, FRAMES, Grant, GrantKind, STACK_LEN, Stacks};
use crate::fault::{Access, FaultKind, Trap};
use crate::xdp_md;

/// A run in progress.
pub(crate) struct Vm<'v, 'e> {
    pub env: &'v mut Env<'e>,
    /// The packet; none for raw programs.
    pub frame: Option<&'v mut Frame>,
    /// What of the packet may be accessed.
    pub packet: Window,
    /// Stack of each active function.
    pub stack: Box<Stacks>,
    /// Memory of a raw program.
    pub raw: &'v mut [u8],
    /// Instructions that may still be executed.
    pub fuel: u64,
    /// Tail calls so far.
    pub tail_calls: u32,
    /// Active functions.
    pub depth: usize,
    /// Those of them that wait for a tail call of one that they have called.
    pub below: usize,
    /// Where a fault happened, innermost first: set once.
    pub stopped: Option<Box<crate::Fault>>,
}

/// The part of the packet's buffer that a program may access, metadata included.
#[derive(Clone, Copy, Default)]
pub(crate) struct Window {
    /// Address of its first byte.
    addr: u64,
    /// Where that is in the buffer.
    start: u32,
    len: u32,
}

impl Window {
    fn of(frame: &Frame) -> Window {
        let start = frame.data() - frame.meta_len();
        Window { addr: at(addr::PACKET, start.into()), start, len: frame.data_end() - start }
    }

    /// Where `N` bytes at this address lie in the buffer; `None` when they do not all lie in the window.
    #[inline(always)]
    fn find<const N: usize>(self, addr: u64) -> Option<usize> {
        let i = addr.wrapping_sub(self.addr);
        let ends = u64::from(self.len).saturating_sub(N as u64 - 1);
        (i < ends).then(|| self.start as usize + i as usize)
    }
}

impl<'v, 'e> Vm<'v, 'e> {
    pub(crate) fn new(env: &'v mut Env<'e>, frame: Option<&'v mut Frame>, raw: &'v mut [u8]) -> Vm<'v, 'e> {
        let fuel = env.budget;
        let stack = env.state.stack.take().unwrap_or_else(Stacks::new);
        let packet = frame.as_deref().map_or(Window::default(), Window::of);
        Vm { env, frame, packet, stack, raw, fuel, tail_calls: 0, depth: 0, below: 0, stopped: None }
    }

    /// To be called when the packet may have moved or changed its length.
    #[inline]
    pub(crate) fn packet_moved(&mut self) {
        self.packet = self.frame.as_deref().map_or(Window::default(), Window::of);
    }

    /// Makes a stack zero again: it is whenever a function begins.
    #[inline]
    pub(crate) fn clean_stack(&mut self, frame: usize) {
        // In steps of a cache line, whose number the processor predicts.
        const LINE: usize = 64;
        let low = std::mem::replace(&mut self.stack.low[frame % FRAMES], STACK_LEN as u32) as usize;
        for line in self.stack.bytes[frame % FRAMES].as_chunks_mut::<LINE>().0.iter_mut().skip(low / LINE) {
            *line = [0; LINE];
        }
    }

    // ---- loads and stores of 1, 2, 4 and 8 bytes ----

    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, addr: u64) -> Result<u64, Trap> {
        if let Some(i) = self.packet.find::<N>(addr)
            && let Some(frame) = &self.frame
            && let Some(bytes) = frame.chunk().get(i..).and_then(|b| b.first_chunk::<N>())
        {
            return Ok(from_ne(bytes));
        }
        self.load_other::<N>(addr)
    }

    #[inline(always)]
    pub(crate) fn store<const N: usize>(&mut self, addr: u64, value: u64) -> Result<(), Trap> {
        if let Some(i) = self.packet.find::<N>(addr)
            && let Some(frame) = &mut self.frame
            && let Some(bytes) = frame.chunk_mut().get_mut(i..).and_then(|b| b.first_chunk_mut::<N>())
        {
            *bytes = to_ne(value);
            return Ok(());
        }
        self.store_other::<N>(addr, value)
    }

    /// Load at a fixed place of the running function's stack.
    #[inline(always)]
    pub(crate) fn load_stack<const N: usize>(&self, off: i32) -> u64 {
        let stack = &self.stack.bytes[(self.depth - 1) % FRAMES];
        stack.get(off as usize..).and_then(|b| b.first_chunk::<N>()).map_or(0, from_ne)
    }

    /// Store at a fixed place of the running function's stack.
    #[inline(always)]
    pub(crate) fn store_stack<const N: usize>(&mut self, off: i32, value: u64) {
        let frame = (self.depth - 1) % FRAMES;
        if let Some(bytes) = self.stack.bytes[frame].get_mut(off as usize..).and_then(|b| b.first_chunk_mut::<N>()) {
            *bytes = to_ne(value);
            self.stack.low[frame] = self.stack.low[frame].min(off as u32);
        }
    }

    /// `bpf_map_lookup_elem` with a key at a fixed place of the running function's stack. The linker has checked that the
    /// key lies there.
    #[inline(never)]
    pub(crate) fn lookup_on_stack(&mut self, map: &Map, off: usize) -> Result<u64, Trap> {
        let stack = &self.stack.bytes[(self.depth - 1) % FRAMES];
        let key = stack.get(off..off + map.key_size()).unwrap_or(&[]);
        match map.value(self.env.cpu, key, self.env.guard) {
            Some(value) => self.grant_value(value, map.prog_readable(), map.prog_writable()),
            None => Ok(0),
        }
    }

    /// Adds to a number in a map value by a load and a store, and returns the sum; `None` when the address is something else
    /// or the access is not allowed.
    #[inline(always)]
    pub(crate) fn add_in_value<const N: usize>(&mut self, addr: u64, delta: u64) -> Option<u64> {
        let grant = self.grant(region(addr)).filter(|g| g.readable && g.writable)?;
        let off = offset(addr) as usize;
        let sum = grant.value.load(off, N).ok()?.wrapping_add(delta);
        grant.value.store(off, N, sum).ok()?;
        Some(sum)
    }

    #[inline(never)]
    fn load_other<const N: usize>(&self, addr: u64) -> Result<u64, Trap> {
        let (reg, off, len) = (region(addr), offset(addr), N);
        if let Some(frame) = stack_frame(reg) {
            if let Some(bytes) = tail(&self.stack.bytes[frame], off).and_then(|b| b.first_chunk::<N>()) {
                return Ok(from_ne(bytes));
            }
        } else if reg >= addr::GRANT {
            if let Some(grant) = self.grant(reg)
                && grant.readable
                && let Ok(value) = grant.value.load(off as usize, len)
            {
                return Ok(value);
            }
        } else if reg == addr::CTX {
            if let Some(frame) = &self.frame
                && let Some(value) = xdp_md::load(frame, off, len)
            {
                return Ok(value);
            }
        } else if reg == addr::OPAQUE {
            // As in Linux, where a load through a kernel pointer that goes wrong gives zero.
            return Ok(0);
        } else if reg == addr::PACKET {
            if let Some(bytes) = self.part(off).and_then(|(part, at)| tail(part.packet(), at)?.first_chunk::<N>()) {
                return Ok(from_ne(bytes));
            }
        } else if (addr::COPY..addr::GRANT).contains(&reg) {
            let end = off.checked_add(len as u64);
            if let (Some(copy), Some(end)) = (self.copy(reg), end)
                && end <= copy.len() as u64
            {
                return Ok(from_ne_slice(&copy[off as usize..end as usize]));
            }
        } else if reg == addr::RAW {
            let end = off.checked_add(len as u64).filter(|e| *e <= self.raw.len() as u64);
            if end.is_some() {
                return Ok(from_ne_slice(&self.raw[off as usize..off as usize + len]));
            }
        }
        Err(self.refuse(addr, len as u64, Access::Read))
    }

    #[inline(never)]
    fn store_other<const N: usize>(&mut self, addr: u64, value: u64) -> Result<(), Trap> {
        let (reg, off, len) = (region(addr), offset(addr), N);
        if let Some(frame) = stack_frame(reg) {
            let bytes = usize::try_from(off).ok().and_then(|o| self.stack.bytes[frame].get_mut(o..));
            if let Some(bytes) = bytes.and_then(|b| b.first_chunk_mut::<N>()) {
                *bytes = to_ne(value);
                self.stack.low[frame] = self.stack.low[frame].min(off as u32);
                return Ok(());
            }
        } else if reg >= addr::GRANT {
            if let Some(grant) = self.grant(reg)
                && grant.writable
                && grant.value.store(off as usize, len, value).is_ok()
            {
                return Ok(());
            }
        } else if reg == addr::PACKET {
            if let Some((_, at)) = self.part(off)
                && let Some(part) =
                    self.frame.as_deref_mut().and_then(|f| f.part_mut((off >> addr::PART_SHIFT) as usize))
                && let Some(bytes) = part.packet_mut().get_mut(at as usize..).and_then(|b| b.first_chunk_mut::<N>())
            {
                *bytes = to_ne(value);
                return Ok(());
            }
        } else if reg == addr::RAW && off.checked_add(len as u64).is_some_and(|e| e <= self.raw.len() as u64) {
            let from = if cfg!(target_endian = "big") { 8 - len } else { 0 };
            self.raw[off as usize..off as usize + len].copy_from_slice(&value.to_ne_bytes()[from..from + len]);
            return Ok(());
        }
        Err(self.refuse(addr, len as u64, Access::Write))
    }

    // ---- atomics ----

    /// Read-modify-write of 4 or 8 bytes; returns the old number. `expect` makes it a compare-and-exchange.
    pub(crate) fn rmw(&mut self, addr: u64, len: usize, op: Rmw, value: u64, expect: Option<u64>) -> Result<u64, Trap> {
        let (reg, off) = (region(addr), offset(addr));
        if reg >= addr::GRANT {
            if let Some(grant) = self.grant(reg)
                && grant.readable
                && grant.writable
            {
                let old = match expect {
                    None => grant.value.rmw(off as usize, len, op, value),
                    Some(e) => grant.value.cmpxchg(off as usize, len, e, value),
                };
                match old {
                    Ok(old) => return Ok(old),
                    // x86-64 does not ask for alignment. Such an access cannot be made atomic in safe code; what is left
                    // is that it works.
                    Err(_) if off.checked_add(len as u64).is_some_and(|e| e <= grant.value.len() as u64) => {}
                    Err(_) => return Err(self.refuse(addr, len as u64, Access::Atomic)),
                }
            } else {
                return Err(self.refuse(addr, len as u64, Access::Atomic));
            }
        } else if reg != addr::RAW && reg != addr::PACKET && stack_frame(reg).is_none() {
            // A verifier refuses them on packets, too, but not where packet memory has another name: a global function's
            // argument, a slice of a dynptr. Linux lets those run.
            return Err(self.refuse(addr, len as u64, Access::Atomic));
        }
        let load = |vm: &Self| if len == 4 { vm.load::<4>(addr) } else { vm.load::<8>(addr) };
        let old = load(self)?;
        let new = match (expect, op) {
            (Some(e), _) if e != old => return Ok(old),
            (Some(_), _) | (None, Rmw::Xchg) => value,
            (None, Rmw::Add) => old.wrapping_add(value),
            (None, Rmw::Or) => old | value,
            (None, Rmw::And) => old & value,
            (None, Rmw::Xor) => old ^ value,
        };
        if len == 4 {
            self.store::<4>(addr, new)?
        } else {
            self.store::<8>(addr, new)?
        }
        Ok(old)
    }

    /// Load with acquire ordering.
    pub(crate) fn load_acquire<const N: usize>(&self, addr: u64) -> Result<u64, Trap> {
        self.ordered(addr, N, Access::Read)?;
        let value = self.load::<N>(addr)?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        Ok(value)
    }

    /// Store with release ordering.
    pub(crate) fn store_release<const N: usize>(&mut self, addr: u64, value: u64) -> Result<(), Trap> {
        self.ordered(addr, N, Access::Write)?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.store::<N>(addr, value)
    }

    /// Linux refuses ordered access to the context and to packets.
    fn ordered(&self, addr: u64, len: usize, access: Access) -> Result<(), Trap> {
        match region(addr) {
            addr::CTX => {
                let (region, off) = self.locate(addr);
                let why = "ordered and atomic access is not for the context";
                Err(Box::new(FaultKind::Denied { access, len: len as u64, off, region, why }))
            }
            _ => Ok(()),
        }
    }

    // ---- ranges of bytes, for helpers ----

    /// Checks that `len` bytes at `addr` may be accessed.
    pub(crate) fn check(&self, addr: u64, len: u64, access: Access) -> Result<(), Trap> {
        let (reg, off) = (region(addr), offset(addr));
        let inside = |low: u64, high: u64| off >= low && off.checked_add(len).is_some_and(|end| end <= high);
        let ok = match reg {
            addr::PACKET => {
                let (low, high) = self.packet_bounds(off);
                self.frame.is_some() && inside(low, high)
            }
            r if (addr::COPY..addr::GRANT).contains(&r) => {
                access == Access::Read && self.copy(r).is_some_and(|c| inside(0, c.len() as u64))
            }
            addr::RAW => inside(0, self.raw.len() as u64),
            r if stack_frame(r).is_some() => inside(0, STACK_LEN as u64),
            r => self.grant(r).is_some_and(|g| {
                inside(0, g.value.len() as u64)
                    && (g.readable || access == Access::Write)
                    && (g.writable || access == Access::Read)
            }),
        };
        if ok { Ok(()) } else { Err(self.refuse(addr, len, access)) }
    }

    /// Copies bytes out of the program's memory.
    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Trap> {
        self.check(addr, out.len() as u64, Access::Read)?;
        self.fetch(addr, out);
        Ok(())
    }

    /// Copies bytes out of memory that was checked for some access; reading may be forbidden there.
    pub(crate) fn fetch(&self, addr: u64, out: &mut [u8]) {
        let (reg, off) = (region(addr), offset(addr) as usize);
        let off = if reg == addr::PACKET { off - self.packet_bounds(off as u64).0 as usize } else { off };
        let from = match reg {
            addr::PACKET => match self.part(offset(addr)) {
                Some((part, _)) => part.packet(),
                None => self.frame.as_ref().map_or(&[][..], |f| f.accessible()),
            },
            r if (addr::COPY..addr::GRANT).contains(&r) => self.copy(r).unwrap_or(&[]),
            addr::RAW => self.raw,
            r if stack_frame(r).is_some() => &self.stack.bytes[stack_frame(r).unwrap_or(0)],
            r => {
                if let Some(grant) = self.grant(r) {
                    let _ = grant.value.read_bytes(off, out); // The caller has checked.
                }
                return;
            }
        };
        out.copy_from_slice(&from[off..off + out.len()]);
    }

    /// Copies bytes into the program's memory.
    pub(crate) fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Trap> {
        self.check(addr, bytes.len() as u64, Access::Write)?;
        let (reg, off) = (region(addr), offset(addr) as usize);
        let off = if reg == addr::PACKET { off - self.packet_bounds(off as u64).0 as usize } else { off };
        let number = (offset(addr) >> addr::PART_SHIFT) as usize;
        let to = match reg {
            addr::PACKET if number > 0 => {
                let part = self.frame.as_mut().and_then(|f| f.part_mut(number));
                part.map_or(&mut [][..], |part| part.packet_mut())
            }
            addr::PACKET => self.frame.as_mut().map_or(&mut [][..], |f| f.accessible_mut()),
            addr::RAW => &mut *self.raw,
            r if stack_frame(r).is_some() => {
                let frame = stack_frame(r).unwrap_or(0);
                self.stack.low[frame] = self.stack.low[frame].min(off as u32);
                &mut self.stack.bytes[frame]
            }
            r => {
                if let Some(grant) = self.grant(r) {
                    let _ = grant.value.write_bytes(off, bytes); // Checked above.
                }
                return Ok(());
            }
        };
        to[off..off + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Bytes of the stack, as they lie there.
    #[inline]
    pub(crate) fn stack_bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        tail(&self.stack.bytes[stack_frame(region(addr))?], offset(addr))?.get(..len)
    }

    /// The place of `len` bytes inside a map value.
    pub(crate) fn place(&self, addr: u64, len: usize) -> Result<ValueRef<'e>, Trap> {
        if let Some(grant) = self.grant(region(addr))
            && grant.writable
            && let Ok(part) = grant.value.slice(offset(addr) as usize, len)
        {
            return Ok(part);
        }
        Err(self.refuse(addr, len as u64, Access::Atomic))
    }

    // ---- what callbacks are handed ----

    /// Copies bytes to where the callback that is called next can read them.
    pub(crate) fn copy_region(&mut self, bytes: &[u8]) -> u64 {
        let depth = self.depth.min(FRAMES - 1);
        let copies = &mut self.env.state.copies;
        if copies.len() <= depth {
            copies.resize_with(depth + 1, Vec::new);
        }
        let copy = &mut copies[depth];
        copy.clear();
        copy.extend_from_slice(bytes);
        at(addr::COPY + depth as u64, 0)
    }

    /// Puts a dynptr where the callback that is called next can use it: its slot and its address.
    pub(crate) fn put_handle(&mut self, dynptr: [u8; 16]) -> (usize, u64) {
        let depth = self.depth.min(FRAMES - 1);
        let handles = &mut self.env.state.handles;
        if handles.len() <= depth {
            handles.resize(depth + 1, [0; 16]);
        }
        handles[depth] = dynptr;
        (depth, at(addr::HANDLE + depth as u64, 0))
    }

    pub(crate) fn copy(&self, region: u64) -> Option<&[u8]> {
        let state = &self.env.state;
        if region < addr::HANDLE {
            state.copies.get((region - addr::COPY) as usize).map(|c| &c[..])
        } else {
            state.handles.get((region - addr::HANDLE) as usize).map(|h| &h[..])
        }
    }

    /// The offsets that a program may access in the packet's buffer that this one names.
    pub(crate) fn packet_bounds(&self, off: u64) -> (u64, u64) {
        let start = match self.part(off) {
            Some((_, at)) => off.wrapping_sub(at),
            None => u64::from(self.packet.start),
        };
        let len = self.part(off).map_or(self.packet.len, |(part, _)| part.len() as u32);
        (start, start + u64::from(len))
    }

    /// The further buffer of the packet that an offset names, and where in the buffer's part of the packet that is; `None` for the first.
    /// What lies before the part gets a number that no part is as long as.
    pub(crate) fn part(&self, off: u64) -> Option<(&Frame, u64)> {
        let number = usize::try_from(off >> addr::PART_SHIFT).ok().filter(|n| (1..=Frame::FRAGS_MAX).contains(n))?;
        let part = self.frame.as_deref()?.part(number)?;
        Some((part, (off & ((1 << addr::PART_SHIFT) - 1)).wrapping_sub(part.data().into())))
    }

    /// Where in the whole packet an offset of its region is.
    pub(crate) fn packet_offset(&self, off: u64) -> i64 {
        let Some(frame) = self.frame.as_deref() else { return off as i64 };
        match self.part(off) {
            None => off as i64 - i64::from(frame.data()),
            Some((_, at)) => {
                let before = frame.parts().take((off >> addr::PART_SHIFT) as usize).map(|part| part.len() as i64);
                before.sum::<i64>() + at as i64
            }
        }
    }

    // ---- grants ----

    #[inline(always)]
    pub(crate) fn grant(&self, region: u64) -> Option<&Grant<'e>> {
        self.env.state.grants.get(region.wrapping_sub(addr::GRANT) as usize)
    }

    /// Grants a value to the program and gives its address; the same value has the same address for the whole run.
    #[inline]
    pub(crate) fn grant_value(&mut self, value: ValueRef<'e>, readable: bool, writable: bool) -> Result<u64, Trap> {
        const SCANNED: usize = 16;
        let grants = &mut self.env.state.grants;
        let key = (value.addr(), value.len() as u32);
        let same = |g: &Grant<'_>| (g.value.addr(), g.value.len() as u32) == key && matches!(g.kind, GrantKind::Value);
        let count = grants.len();
        if count <= SCANNED {
            if let Some(i) = grants.iter().position(same) {
                return Ok(at(addr::GRANT + i as u64, 0));
            }
            if count < SCANNED {
                grants.push(Grant { value, kind: GrantKind::Value, readable, writable });
                return Ok(at(addr::GRANT + count as u64, 0));
            }
        }
        self.grant_among_many(value, readable, writable)
    }

    /// The same with a table to find values by address.
    #[inline(never)]
    fn grant_among_many(&mut self, value: ValueRef<'e>, readable: bool, writable: bool) -> Result<u64, Trap> {
        let state = &mut self.env.state;
        let key = (value.addr(), value.len() as u32);
        if state.index.is_empty() {
            let values = state.grants.iter().enumerate().filter(|(_, g)| matches!(g.kind, GrantKind::Value));
            state.index = values.map(|(i, g)| ((g.value.addr(), g.value.len() as u32), i as u32)).collect();
        }
        if let Some(i) = state.index.get(&key) {
            return Ok(at(addr::GRANT + u64::from(*i), 0));
        }
        let granted = self.add_grant(Grant { value, kind: GrantKind::Value, readable, writable })?;
        self.env.state.index.insert(key, (region(granted) - addr::GRANT) as u32);
        Ok(granted)
    }

    pub(crate) fn add_grant(&mut self, grant: Grant<'e>) -> Result<u64, Trap> {
        let grants = &mut self.env.state.grants;
        // A slot whose record went back is used again, but late, so that a stale pointer is caught.
        const REUSE_FROM: usize = 1 << 16;
        if grants.len() >= REUSE_FROM
            && let Some(i) = self.env.state.free.pop_front()
            && let Some(slot) = grants.get_mut(i as usize)
        {
            *slot = grant;
            return Ok(at(addr::GRANT + u64::from(i), 0));
        }
        if grants.len() >= addr::GRANTS_MAX {
            return Err(Box::new(FaultKind::Grants(addr::GRANTS_MAX)));
        }
        grants.push(grant);
        Ok(at(addr::GRANT + grants.len() as u64 - 1, 0))
    }

    /// The address that stands for a map which was found in a map.
    pub(crate) fn grant_map(&mut self, map: &'e Map) -> u64 {
        let inner = &mut self.env.state.inner;
        let i = inner.iter().position(|m| std::ptr::eq(*m, map)).unwrap_or_else(|| {
            inner.push(map);
            inner.len() - 1
        });
        at(addr::MAP, INNER_MAPS + i as u64)
    }
}

/// Map handles from here on are indices into [`crate::env::State::inner`]; below they are indices into the program's maps.
pub(crate) const INNER_MAPS: u64 = 1 << 24;

/// The call frame whose stack a region is.
#[inline(always)]
pub(crate) fn stack_frame(region: u64) -> Option<usize> {
    let frame = region.wrapping_sub(addr::STACK);
    (frame < FRAMES as u64).then_some(frame as usize)
}

#[inline(always)]
fn tail(bytes: &[u8], from: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(from).ok()?..)
}

#[inline(always)]
fn from_ne<const N: usize>(bytes: &[u8; N]) -> u64 {
    let mut out = [0; 8];
    if cfg!(target_endian = "big") {
        out[8 - N..].copy_from_slice(bytes);
    } else {
        out[..N].copy_from_slice(bytes);
    }
    u64::from_ne_bytes(out)
}

fn from_ne_slice(bytes: &[u8]) -> u64 {
    match bytes.len() {
        1 => bytes[0].into(),
        2 => u16::from_ne_bytes([bytes[0], bytes[1]]).into(),
        4 => u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        _ => bytes.first_chunk::<8>().map_or(0, |b| u64::from_ne_bytes(*b)),
    }
}

#[inline(always)]
fn to_ne<const N: usize>(value: u64) -> [u8; N] {
    let bytes = value.to_ne_bytes();
    let mut out = [0; N];
    if cfg!(target_endian = "big") {
        out.copy_from_slice(&bytes[8 - N..]);
    } else {
        out.copy_from_slice(&bytes[..N]);
    }
    out
}
