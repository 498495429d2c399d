//! Small XDP programs that call one helper, with one argument at a time off its usual value.

use std::fmt::Write;
use std::os::fd::RawFd;

use xway_abi::{ArgKind, DynptrKind, FuncAccess, HelperProto, MapType, MemAccess, MemSize, Ret};

use crate::maps::Maps;

/// What is unusual about a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vary {
    /// Nothing: every argument as the prototype wants it.
    Nothing,
    /// Argument `.0` points into the packet.
    Packet(usize),
    /// Argument `.0` points to stack that nobody has written. Linux minds only where the loader lacks CAP_PERFMON.
    Uninit(usize),
    /// Argument `.0` points to a map value that programs may only read.
    ReadOnly(usize),
    /// Argument `.0` is null, with a length of 0 behind it.
    Null(usize),
    /// Argument `.0`, a length, is 0.
    Zero(usize),
    /// Argument `.0` has an address that is no multiple of its size.
    Unaligned(usize),
    /// A packet pointer from before the call is used after it.
    PacketAfter,
}

/// The program's text; `None` when an argument needs something that this test does not build.
pub fn program(h: &HelperProto, vary: Vary, maps: &Maps) -> Option<String> {
    build(h, vary, maps, None)
}

/// The program with another map than the helper's usual one.
pub fn program_with_map(h: &HelperProto, map: RawFd, maps: &Maps) -> Option<String> {
    build(h, Vary::Nothing, maps, Some(map))
}

fn build(h: &HelperProto, vary: Vary, maps: &Maps, map: Option<RawFd>) -> Option<String> {
    let mut p = String::from(PROLOGUE);
    p = p.replace("VALUES", &maps.of(MapType::Array).to_string());
    let mut cleanup = String::new();
    for a in h.args {
        prepare(&mut p, &mut cleanup, h.id, a.kind, maps);
    }
    for (n, a) in h.args.iter().enumerate() {
        let value = match (a.kind, map) {
            (ArgKind::ConstMap, Some(fd)) => format!("ARG = map[fd:{fd}]"),
            _ => argument(h, n, a.kind, vary, maps)?,
        };
        writeln!(p, "{}", value.replace("ARG", &format!("r{}", n + 1))).ok()?;
    }
    writeln!(p, "call #{}", h.id).ok()?;
    if vary == Vary::PacketAfter {
        p += "r1 = *(u8 *)(r7 +0)\n";
    }
    match h.ret {
        Ret::SockOrNull { acquire: true, .. } => cleanup += "if r0 == 0 goto skip\nr1 = r0\ncall #86\nskip:\n",
        Ret::AllocMemOrNull => cleanup += "if r0 == 0 goto skip\nr1 = r0\nr2 = 0\ncall #133\nskip:\n",
        _ => {}
    }
    p += &cleanup;
    p += "out:\nr0 = 2\nexit\n";
    p += callbacks(h);
    Some(p)
}

/// r6 = context, r7 = 64 bytes of packet, r9 = a map value of 64 bytes; the stack from -64 up is initialised.
const PROLOGUE: &str = "
    r6 = r1
    r7 = *(u32 *)(r6 +0)
    r2 = *(u32 *)(r6 +4)
    r1 = r7
    r1 += 64
    if r1 > r2 goto out
    r1 = 0
    *(u64 *)(r10 -8) = r1
    *(u64 *)(r10 -16) = r1
    *(u64 *)(r10 -24) = r1
    *(u64 *)(r10 -32) = r1
    *(u64 *)(r10 -40) = r1
    *(u64 *)(r10 -48) = r1
    *(u64 *)(r10 -56) = r1
    *(u64 *)(r10 -64) = r1
    r2 = r10
    r2 += -64
    r1 = map[fd:VALUES]
    call #1
    if r0 == 0 goto out
    r9 = r0
";

/// Objects that an argument of this kind must exist beforehand, and how they are given back.
fn prepare(p: &mut String, cleanup: &mut String, id: u32, kind: ArgKind, maps: &Maps) {
    match kind {
        ArgKind::SpinLock => {
            let _ = writeln!(p, "r8 = map[fd:{}][0]+16", maps.timer());
            if id == 94 {
                *p += "r1 = r8\ncall #93\n";
            } else {
                *cleanup += "r1 = r8\ncall #94\n";
            }
        }
        ArgKind::AllocMem { .. } => {
            let _ = write!(
                p,
                "r1 = map[fd:{}]\nr2 = 16\nr3 = 0\ncall #131\nif r0 == 0 goto out\nr8 = r0\n",
                maps.of(MapType::Ringbuf)
            );
        }
        ArgKind::Sock { release, .. } => {
            *p += "r1 = r6\nr2 = r10\nr2 += -64\nr3 = 12\nr4 = 0\nr5 = 0\ncall #99\nif r0 == 0 goto out\nr8 = r0\n";
            if !release {
                *cleanup += "r1 = r8\ncall #86\n";
            }
        }
        ArgKind::BtfPtr("task_struct") => *p += "call #158\nr8 = r0\n",
        ArgKind::Dynptr(_, FuncAccess::Use) => {
            *p += "r1 = r9\nr2 = 32\nr3 = 0\nr4 = r10\nr4 += -96\ncall #197\n";
        }
        ArgKind::Dynptr(DynptrKind::Ringbuf, FuncAccess::Release) => *p += &reserve_dynptr(maps),
        ArgKind::Dynptr(DynptrKind::Ringbuf, FuncAccess::Init) => {
            *cleanup += "r1 = r10\nr1 += -96\nr2 = 0\ncall #200\n";
        }
        _ => {}
    }
}

fn reserve_dynptr(maps: &Maps) -> String {
    format!("r1 = map[fd:{}]\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -96\ncall #198\n", maps.of(MapType::Ringbuf))
}

fn argument(h: &HelperProto, n: usize, kind: ArgKind, vary: Vary, maps: &Maps) -> Option<String> {
    if let Some(odd) = odd_argument(n, kind, vary, maps) {
        return Some(odd);
    }
    let usual = match kind {
        ArgKind::Anything => "ARG = 0".to_owned(),
        ArgKind::Ctx => "ARG = r6".to_owned(),
        ArgKind::ConstMap => format!("ARG = map[fd:{}]", maps.for_helper(h.id)),
        // A dynptr's bytes must lie in a map value.
        ArgKind::Mem(..) if h.id == 197 => "ARG = r9".to_owned(),
        ArgKind::MapKey | ArgKind::MapValue(_) | ArgKind::Mem(..) => "ARG = r10\nARG += -64".to_owned(),
        ArgKind::Size { .. } | ArgKind::AllocSize => format!("ARG = {}", length(h)),
        ArgKind::AllocMem { .. } | ArgKind::Sock { .. } | ArgKind::SpinLock => "ARG = r8".to_owned(),
        ArgKind::BtfPtr("task_struct") => "ARG = r8".to_owned(),
        ArgKind::BtfPtr("cgroup") => "ARG = 0".to_owned(),
        ArgKind::Func(_) => "ARG = subprog[callback]".to_owned(),
        ArgKind::CallbackCtx => "ARG = 0".to_owned(),
        ArgKind::ConstStr => format!("ARG = map[fd:{}][0]+0", maps.frozen()),
        ArgKind::Dynptr(..) => "ARG = r10\nARG += -96".to_owned(),
        ArgKind::Timer => format!("ARG = map[fd:{}][0]+0", maps.timer()),
        _ => return None,
    };
    Some(usual)
}

/// A length that the helpers take: socket tuples of 12 bytes, TCP headers of 20, else 16 bytes.
fn length(h: &HelperProto) -> u32 {
    match h.id {
        84 | 85 | 99 => 12,
        100 | 110 | 204 | 205 => 20,
        _ => 16,
    }
}

fn odd_argument(n: usize, kind: ArgKind, vary: Vary, maps: &Maps) -> Option<String> {
    match vary {
        Vary::Packet(i) if i == n => Some("ARG = r7".to_owned()),
        Vary::Uninit(i) if i == n => Some("ARG = r10\nARG += -256".to_owned()),
        Vary::ReadOnly(i) if i == n => Some(format!("ARG = map[fd:{}][0]+0", maps.frozen())),
        Vary::Null(i) | Vary::Zero(i) if i == n => Some("ARG = 0".to_owned()),
        Vary::Null(i) if i + 1 == n && matches!(kind, ArgKind::Size { .. }) => Some("ARG = 0".to_owned()),
        Vary::Unaligned(i) if i == n => Some("ARG = r10\nARG += -61".to_owned()),
        _ => None,
    }
}

fn callbacks(h: &HelperProto) -> &'static str {
    let calls_back = h.args.iter().any(|a| matches!(a.kind, ArgKind::Func(_)));
    if calls_back { "callback:\nr0 = 0\nexit\n" } else { "" }
}

/// Programs for `h` and whether the prototype says that Linux accepts them.
pub fn expectations(h: &HelperProto) -> Vec<(Vary, bool)> {
    let mut out = vec![(Vary::Nothing, true), (Vary::PacketAfter, !h.changes_packet)];
    for (n, a) in h.args.iter().enumerate() {
        match a.kind {
            ArgKind::Mem(access, size) => {
                // The bytes of a dynptr are a special case: map values only.
                if h.id == 197 {
                    continue;
                }
                out.push((Vary::Packet(n), h.pkt_access));
                out.push((Vary::Uninit(n), access == MemAccess::Write));
                out.push((Vary::ReadOnly(n), access == MemAccess::Read));
                out.push((Vary::Null(n), a.nullable));
                if let MemSize::FixedAligned(_) | MemSize::Fixed(_) = size {
                    out.push((Vary::Unaligned(n), matches!(size, MemSize::Fixed(_))));
                }
            }
            ArgKind::MapValue(access) => {
                out.push((Vary::Packet(n), h.pkt_access));
                out.push((Vary::Uninit(n), access == MemAccess::Write));
                out.push((Vary::Null(n), a.nullable));
            }
            ArgKind::MapKey => {
                out.push((Vary::Packet(n), h.pkt_access));
                out.push((Vary::Uninit(n), false));
                out.push((Vary::Null(n), a.nullable));
            }
            ArgKind::Size { zero_ok } => out.push((Vary::Zero(n), zero_ok)),
            _ => {}
        }
    }
    out
}
