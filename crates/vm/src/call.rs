//! From registers to arguments: one marshalling step for all helpers, driven by the prototype table.
//!
//! A [`Plain`](Implementation::Plain) helper sees numbers, maps and slices; it does not know where they came from. Memory
//! arguments are copied in before and, where the prototype says so, out after the call: map values are shared with other
//! threads and must not be seen as slices. What cannot be marshalled is a fault, because no verified program gets there.

use xway_abi::{ArgKind, Errno, HelperProto, MemAccess, MemSize};
use xway_maps::{Guard, Map, ValueRef};
use xway_packet::Frame;

use crate::addr::{self, at, offset, region};
use crate::fault::{Access, FaultKind, Trap};
use crate::helpers::{Implementation, special};
use crate::host::Host;
use crate::machine::{Checked, Machine};
use crate::mem::{INNER_MAPS, Vm};
use crate::program::{HelperSite, Program};

/// A helper that takes numbers and slices and gives a number.
pub type PlainFn = fn(&mut Call<'_, '_>) -> Result<u64, Errno>;

/// A resolved argument.
#[derive(Debug)]
pub enum Arg<'c, 'e> {
    /// Beyond the prototype, or the length of the memory before it.
    None,
    /// A number; also an address that the helper does not look behind.
    Num(u64),
    /// A null pointer where one is allowed.
    Null,
    /// A map.
    Map(&'e Map),
    /// Memory.
    Bytes(&'c mut [u8]),
    /// A place in a map value (lock, timer, kptr).
    Place(ValueRef<'e>),
}

/// A call of a plain helper.
pub struct Call<'c, 'e> {
    /// The machine.
    pub host: &'c dyn Host,
    /// Keeps alive whatever is found.
    pub guard: &'e Guard,
    /// Number of the worker.
    pub cpu: u32,
    /// The packet; there whenever the prototype has a context argument.
    pub frame: Option<&'c mut Frame>,
    /// By the prototype.
    pub args: [Arg<'c, 'e>; 5],
}

impl<'e> Call<'_, 'e> {
    pub(crate) fn num(&self, n: usize) -> u64 {
        match self.args[n] {
            Arg::Num(v) => v,
            _ => 0,
        }
    }

    pub(crate) fn bytes(&self, n: usize) -> &[u8] {
        match &self.args[n] {
            Arg::Bytes(b) => b,
            _ => &[],
        }
    }

    pub(crate) fn bytes_mut(&mut self, n: usize) -> &mut [u8] {
        match &mut self.args[n] {
            Arg::Bytes(b) => b,
            _ => &mut [],
        }
    }

    pub(crate) fn map(&self, n: usize) -> Result<&'e Map, Errno> {
        match self.args[n] {
            Arg::Map(m) => Ok(m),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn frame(&mut self) -> Result<&mut Frame, Errno> {
        self.frame.as_deref_mut().ok_or(Errno::EINVAL)
    }
}

/// A memory argument: where it is and where its copy lies in the scratch memory.
#[derive(Clone, Copy)]
struct Span {
    arg: usize,
    addr: u64,
    len: usize,
    write: bool,
}

impl<'e> Vm<'_, 'e> {
    /// Calls a helper.
    #[inline(never)]
    pub(crate) fn helper(&mut self, program: &'e Program, site: &HelperSite, args: &[u64; 5]) -> Result<u64, Trap> {
        let ret = match site.run {
            Implementation::Special => special(site.proto.id, &mut Checked { vm: self, program }, site.proto, args),
            Implementation::Plain(run) => self.plain(program, site.proto, run, args),
        };
        self.packet_moved();
        ret
    }

    fn plain(
        &mut self,
        program: &'e Program,
        proto: &'static HelperProto,
        run: PlainFn,
        regs: &[u64; 5],
    ) -> Result<u64, Trap> {
        let mut args = [const { Arg::None }; 5];
        let mut spans = [Span { arg: 0, addr: 0, len: 0, write: false }; 5];
        let mut count = 0;
        let mut scratch = std::mem::take(&mut self.env.state.scratch);
        scratch.clear();
        let mut map = None;
        for (n, arg) in proto.args.iter().enumerate() {
            let reg = regs[n];
            if arg.nullable && reg == 0 {
                args[n] = Arg::Null;
                continue;
            }
            let (len, access) = match arg.kind {
                ArgKind::MapKey => (map.map_or(0, Map::key_size) as u64, MemAccess::Read),
                ArgKind::MapValue(access) => {
                    (map.map_or(0, Map::value_size) as u64, proto.value_access(access, map.map(Map::map_type)))
                }
                ArgKind::Mem(access, MemSize::Fixed(len) | MemSize::FixedAligned(len)) => (len.into(), access),
                ArgKind::Mem(access, MemSize::NextArg) => (size_arg(proto, n + 1, regs)?, access),
                ArgKind::ConstStr => {
                    let text = self.const_str(proto, n, reg)?;
                    spans[count] = Span { arg: n, addr: 0, len: text.len(), write: false };
                    count += 1;
                    scratch.extend_from_slice(&text);
                    continue;
                }
                _ => {
                    args[n] = self.simple_arg(program, proto, n, reg)?;
                    if let Arg::Map(m) = args[n] {
                        map = Some(m);
                    }
                    continue;
                }
            };
            let start = scratch.len();
            if len > 0 {
                if access != MemAccess::Read {
                    self.check(reg, len, Access::Write)?;
                }
                if access != MemAccess::Write {
                    self.check(reg, len, Access::Read)?;
                }
                // A helper that fails leaves what was there: it is copied in where the program itself may not read it, too.
                scratch.resize(start + len as usize, 0);
                self.fetch(reg, &mut scratch[start..]);
            }
            spans[count] = Span { arg: n, addr: reg, len: len as usize, write: access != MemAccess::Read };
            count += 1;
        }
        let mut rest = &mut scratch[..];
        for span in &spans[..count] {
            let (bytes, after) = rest.split_at_mut(span.len);
            args[span.arg] = Arg::Bytes(bytes);
            rest = after;
        }
        let mut call = Call {
            host: self.env.host,
            guard: self.env.guard,
            cpu: self.env.cpu,
            frame: self.frame.as_deref_mut(),
            args,
        };
        let ret = run(&mut call).unwrap_or_else(Errno::as_ret);
        let mut start = 0;
        for span in &spans[..count] {
            if span.write && span.len > 0 {
                self.write(span.addr, &scratch[start..start + span.len])?;
            }
            start += span.len;
        }
        self.env.state.scratch = scratch;
        Ok(ret)
    }

    /// An argument that needs no memory.
    fn simple_arg<'c>(
        &self,
        program: &'e Program,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
    ) -> Result<Arg<'c, 'e>, Trap> {
        Ok(match proto.args[n].kind {
            ArgKind::Anything | ArgKind::AllocSize | ArgKind::CallbackCtx => Arg::Num(reg),
            ArgKind::Size { .. } => Arg::None,
            ArgKind::Ctx => {
                self.ctx_arg(proto, n, reg)?;
                Arg::None
            }
            ArgKind::ConstMap => Arg::Map(self.map_arg(program, proto, n, reg)?),
            ArgKind::SpinLock => Arg::Place(self.place(reg, 4)?),
            ArgKind::Timer => Arg::Place(self.place(reg, 16)?),
            ArgKind::KptrDest => Arg::Place(self.place(reg, 8)?),
            ArgKind::BtfPtr(_) if region(reg) == addr::OPAQUE => Arg::Num(reg),
            ArgKind::Sock { .. } => {
                return Err(bad(proto, n, "is no socket: no look-up in user space ever finds one".into()));
            }
            _ => return Err(bad(proto, n, format!("is {}", self.describe(reg)))),
        })
    }

    /// The context argument.
    pub(crate) fn ctx_arg(&self, proto: &'static HelperProto, n: usize, reg: u64) -> Result<(), Trap> {
        if reg == at(addr::CTX, 0) && self.frame.is_some() {
            Ok(())
        } else {
            Err(bad(proto, n, format!("is {}, not the context", self.describe(reg))))
        }
    }

    /// A map argument.
    pub(crate) fn map_arg(
        &self,
        program: &'e Program,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
    ) -> Result<&'e Map, Trap> {
        if region(reg) == addr::MAP {
            let index = offset(reg);
            let found = if index >= INNER_MAPS {
                self.env.state.inner.get((index - INNER_MAPS) as usize).copied()
            } else {
                program.maps.get(index as usize).map(|m| &**m)
            };
            if let Some(map) = found {
                return Ok(map);
            }
        }
        Err(bad(proto, n, format!("is {}, not a map", self.describe(reg))))
    }

    /// A constant string: the bytes up to the zero.
    pub(crate) fn const_str(&self, proto: &'static HelperProto, n: usize, reg: u64) -> Result<Vec<u8>, Trap> {
        let grant = self.grant(region(reg)).filter(|g| !g.writable);
        if let Some(grant) = grant {
            let bytes = grant.value.to_vec();
            if let Some(tail) = usize::try_from(offset(reg)).ok().and_then(|o| bytes.get(o..)) {
                return match tail.iter().position(|b| *b == 0) {
                    Some(end) => Ok(tail[..end].to_vec()),
                    None => Err(bad(proto, n, "is a string without a terminating zero".into())),
                };
            }
        }
        Err(bad(proto, n, format!("is {}, not a string in a read-only map", self.describe(reg))))
    }

    /// The entry of a callback.
    pub(crate) fn func_arg(
        &self,
        program: &Program,
        proto: &'static HelperProto,
        n: usize,
        reg: u64,
    ) -> Result<usize, Trap> {
        let entry = offset(reg) as usize;
        if region(reg) == addr::CODE && entry < program.ops.len() {
            Ok(entry)
        } else {
            Err(bad(proto, n, format!("is {}, not a function", self.describe(reg))))
        }
    }
}

/// An argument that its prototype does not allow.
#[cold]
pub(crate) fn bad(proto: &'static HelperProto, n: usize, why: String) -> Trap {
    Box::new(FaultKind::Argument { helper: proto.name, arg: n as u8 + 1, why })
}

/// The length that stands in argument `n`.
#[inline]
pub(crate) fn size_arg(proto: &'static HelperProto, n: usize, regs: &[u64; 5]) -> Result<u64, Trap> {
    // Linux takes lengths as 32 bits and its verifier proves that they are below 2^29.
    let len = regs[n];
    let zero_ok = matches!(proto.args.get(n).map(|a| a.kind), Some(ArgKind::Size { zero_ok: true }));
    if len >= 1 << 29 {
        return Err(bad(proto, n, format!("is a length of {}", len as i64)));
    }
    if len == 0 && !zero_ok {
        return Err(bad(proto, n, "is a length of 0".into()));
    }
    Ok(len)
}

/// Copies a key or value argument into scratch memory and hands it to `with`.
pub(crate) fn with_bytes<'e, M: Machine<'e>, T>(
    vm: &mut M,
    addr: u64,
    len: usize,
    with: impl FnOnce(&mut M, &[u8]) -> Result<T, Trap>,
) -> Result<T, Trap> {
    const SMALL: usize = 64;
    const MIDDLE: usize = 512;
    if len <= SMALL {
        let mut small = [0; SMALL];
        vm.read(addr, &mut small[..len])?;
        with(vm, &small[..len])
    } else if len <= MIDDLE {
        let mut middle = [0; MIDDLE];
        vm.read(addr, &mut middle[..len])?;
        with(vm, &middle[..len])
    } else {
        // Before there is memory for what a wrong program says is its length.
        vm.check(addr, len as u64, Access::Read)?;
        let mut large = vec![0; len];
        vm.read(addr, &mut large)?;
        with(vm, &large)
    }
}
