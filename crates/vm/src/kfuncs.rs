//! Kernel functions that programs may call by name.

use xway_abi::{Errno, KfuncClass};

use crate::fault::{FaultKind, Trap};
use crate::helpers::Dynptr;
use crate::machine::{Machine, load, store};

/// A kernel function that is implemented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kfunc {
    /// `bpf_xdp_metadata_rx_timestamp`
    RxTimestamp,
    /// `bpf_xdp_metadata_rx_hash`
    RxHash,
    /// `bpf_xdp_metadata_rx_vlan_tag`
    RxVlanTag,
    /// `bpf_dynptr_from_xdp`
    DynptrFromXdp,
    /// `bpf_dynptr_slice`, `bpf_dynptr_slice_rdwr`
    DynptrSlice {
        /// The slice may be written.
        writable: bool,
    },
    /// `bpf_dynptr_adjust`
    DynptrAdjust,
    /// `bpf_dynptr_is_null`
    DynptrIsNull,
    /// `bpf_dynptr_is_rdonly`
    DynptrIsRdonly,
    /// `bpf_dynptr_size`
    DynptrSize,
    /// `bpf_dynptr_clone`
    DynptrClone,
    /// `bpf_iter_num_new`
    IterNumNew,
    /// `bpf_iter_num_next`
    IterNumNext,
    /// `bpf_iter_num_destroy`
    IterNumDestroy,
    /// RCU and preemption: a worker runs one program at a time and its guard outlives the run.
    Region,
    /// `xway_pool_pressure`: how close the pool of the frame is to its limit.
    PoolPressure,
}

/// The function with this name, or why there is none.
pub(crate) fn resolve(name: &str) -> Result<Kfunc, &'static str> {
    use Kfunc::*;
    Ok(match name {
        "bpf_xdp_metadata_rx_timestamp" => RxTimestamp,
        "bpf_xdp_metadata_rx_hash" => RxHash,
        "bpf_xdp_metadata_rx_vlan_tag" => RxVlanTag,
        "bpf_dynptr_from_xdp" => DynptrFromXdp,
        "bpf_dynptr_slice" => DynptrSlice { writable: false },
        "bpf_dynptr_slice_rdwr" => DynptrSlice { writable: true },
        "bpf_dynptr_adjust" => DynptrAdjust,
        "bpf_dynptr_is_null" => DynptrIsNull,
        "bpf_dynptr_is_rdonly" => DynptrIsRdonly,
        "bpf_dynptr_size" => DynptrSize,
        "bpf_dynptr_clone" => DynptrClone,
        "bpf_iter_num_new" => IterNumNew,
        "bpf_iter_num_next" => IterNumNext,
        "bpf_iter_num_destroy" => IterNumDestroy,
        "bpf_rcu_read_lock" | "bpf_rcu_read_unlock" | "bpf_preempt_disable" | "bpf_preempt_enable" => Region,
        "xway_pool_pressure" => PoolPressure,
        _ => return Err(why_not(name)),
    })
}

fn why_not(name: &str) -> &'static str {
    match xway_abi::kfunc(name).map(|k| k.class) {
        None => "Linux 6.18 knows no kernel function of this name",
        Some(KfuncClass::Kernel) => "it works on objects of the kernel, which a user-space engine does not have",
        Some(KfuncClass::Sleepable) => "it may sleep, which no XDP program may",
        Some(KfuncClass::Foreign) => "it is not for XDP programs",
        Some(_) => "not implemented in user space",
    }
}

/// Whether a program may call this kernel function here: `Err` says why not.
pub fn kfunc_support(name: &str) -> Result<(), &'static str> {
    resolve(name).map(|_| ())
}

/// Linux: no data of this kind for this packet.
const ENODATA: Errno = Errno(61);
/// Longest run of a numbers iterator.
const LOOPS_MAX: i64 = xway_abi::prog::MAX_LOOPS as i64;

/// An error as a function of the kernel returns it that has the type `int`: helpers return 64 bits, these 32, and the upper half of the
/// register is zero.
fn int(errno: Errno) -> u64 {
    u64::from(errno.as_ret() as u32)
}

/// Calls a kernel function.
pub fn kfunc<'e, M: Machine<'e>>(vm: &mut M, which: Kfunc, r: &[u64; 5]) -> Result<u64, Trap> {
    let ret = match which {
        Kfunc::RxTimestamp | Kfunc::RxHash | Kfunc::RxVlanTag => rx_metadata(vm, which, r)?,
        Kfunc::IterNumNew => iter_num_new(vm, r)?,
        Kfunc::IterNumNext => return iter_num_next(vm, r[0]),
        Kfunc::IterNumDestroy => Ok(store::<8, M>(vm, r[0], 0)?).map(|()| 0),
        Kfunc::Region => Ok(0),
        Kfunc::PoolPressure => match vm.frame() {
            Some(frame) => Ok(u64::from(frame.pool_pressure() as u32)),
            None => return Err(Box::new(FaultKind::Call("the pressure of a pool without a packet".into()))),
        },
        _ => return dynptr_kfunc(vm, which, r),
    };
    Ok(ret.unwrap_or_else(int))
}

fn rx_metadata<'e, M: Machine<'e>>(vm: &mut M, which: Kfunc, r: &[u64; 5]) -> Result<Result<u64, Errno>, Trap> {
    let Some(frame) = vm.frame() else {
        return Err(Box::new(FaultKind::Call("packet metadata without a packet".into())));
    };
    let rx = frame.rx_meta();
    match which {
        Kfunc::RxTimestamp => match rx.timestamp {
            Some(t) => store::<8, M>(vm, r[1], t)?,
            None => return Ok(Err(ENODATA)),
        },
        Kfunc::RxHash => match rx.hash {
            Some((hash, kind)) => {
                store::<4, M>(vm, r[1], hash.into())?;
                store::<4, M>(vm, r[2], kind.into())?;
            }
            None => return Ok(Err(ENODATA)),
        },
        _ => match rx.vlan {
            Some(vlan) => {
                // The protocol is handed out in network order, the tag in host order.
                store::<2, M>(vm, r[1], vlan.proto.to_be().into())?;
                store::<2, M>(vm, r[2], vlan.tci.into())?;
            }
            None => return Ok(Err(ENODATA)),
        },
    }
    Ok(Ok(0))
}

/// `struct bpf_iter_num` is two numbers: the current one and the end.
fn iter_num_new<'e, M: Machine<'e>>(vm: &mut M, r: &[u64; 5]) -> Result<Result<u64, Errno>, Trap> {
    let (start, end) = (r[1] as i32, r[2] as i32);
    let error = if start > end {
        Errno::EINVAL
    } else if i64::from(end) - i64::from(start) > LOOPS_MAX {
        Errno::E2BIG
    } else {
        store::<4, M>(vm, r[0], start.wrapping_sub(1) as u32 as u64)?;
        store::<4, M>(vm, r[0].wrapping_add(4), end as u32 as u64)?;
        return Ok(Ok(0));
    };
    store::<8, M>(vm, r[0], 0)?;
    Ok(Err(error))
}

fn iter_num_next<'e, M: Machine<'e>>(vm: &mut M, iter: u64) -> Result<u64, Trap> {
    let (cur, end) = (load::<4, M>(vm, iter)? as i32, load::<4, M>(vm, iter.wrapping_add(4))? as i32);
    // In 32 bits, as Linux adds: an iterator that begins with the least number stands at the largest one before its first turn.
    let next = cur.wrapping_add(1);
    if next >= end {
        store::<8, M>(vm, iter, 0)?;
        return Ok(0);
    }
    store::<4, M>(vm, iter, next as u32 as u64)?;
    Ok(iter)
}

fn dynptr_kfunc<'e, M: Machine<'e>>(vm: &mut M, which: Kfunc, r: &[u64; 5]) -> Result<u64, Trap> {
    if which == Kfunc::DynptrFromXdp {
        if r[1] != 0 {
            Dynptr::clear(vm, r[2])?;
            return Ok(int(Errno::EINVAL));
        }
        let len = vm.frame().map_or(0, |f| f.total_len());
        Dynptr::packet(vm, len).store(vm, r[2])?;
        return Ok(0);
    }
    let dynptr = Dynptr::load(vm, r[0])?;
    let Some(mut d) = dynptr else {
        return match which {
            Kfunc::DynptrIsNull => Ok(1),
            Kfunc::DynptrIsRdonly | Kfunc::DynptrSlice { .. } => Ok(0),
            Kfunc::DynptrClone => {
                Dynptr::clear(vm, r[1])?;
                Ok(int(Errno::EINVAL))
            }
            _ => Ok(int(Errno::EINVAL)),
        };
    };
    match which {
        Kfunc::DynptrIsNull => Ok(0),
        Kfunc::DynptrIsRdonly => Ok(d.read_only.into()),
        Kfunc::DynptrSize => Ok(d.size.into()),
        Kfunc::DynptrClone => d.store(vm, r[1]).map(|()| 0),
        Kfunc::DynptrAdjust => {
            let (start, end) = (r[1] as u32, r[2] as u32);
            if start > end {
                return Ok(int(Errno::EINVAL));
            }
            if end > d.size {
                return Ok(int(Errno::ERANGE));
            }
            d.offset = d.offset.wrapping_add(start);
            d.size = end - start;
            d.store(vm, r[0]).map(|()| 0)
        }
        Kfunc::DynptrSlice { writable } => {
            let (offset, len) = (u64::from(r[1] as u32), u64::from(r[3] as u32));
            if d.inside(offset, len).is_err() || (writable && d.read_only) {
                return Ok(0);
            }
            if d.kind != crate::helpers::DynptrKind::Xdp {
                return Ok(d.address(offset));
            }
            if let Ok(address) = d.packet_address(vm, offset, len) {
                return Ok(address);
            }
            // Bytes of several buffers are copied into the program's own, if it gave one; it writes them back by itself. As in Linux it is
            // the answer even where the packet has fewer bytes by now than the dynptr says, and holds those that there are.
            if r[2] != 0 {
                d.packet_copy(vm, offset, len, r[2])?;
            }
            Ok(r[2])
        }
        _ => Ok(0),
    }
}
