//! Spin locks and exchanged pointers in map values.

use xway_abi::{Errno, HelperProto};
use xway_maps::Rmw;

use crate::call::{Arg, Call, bad};
use crate::fault::Trap;
use crate::machine::Machine;

/// `bpf_spin_lock(lock)`: waits for the lock. A program holds one lock at a time, so a second one is a fault; waiting for a
/// lock that this very run holds would be for ever.
pub(crate) fn spin_lock<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let place = vm.place(r[0], 4)?;
    if *vm.lock() != 0 {
        return Err(bad(proto, 0, "is taken while another lock is held".into()));
    }
    if !place.spin_lock(0) {
        return Err(bad(proto, 0, "is not aligned as a lock must be".into()));
    }
    *vm.lock() = r[0];
    Ok(0)
}

/// `bpf_spin_unlock(lock)`
pub(crate) fn spin_unlock<'e, M: Machine<'e>>(
    vm: &mut M,
    proto: &'static HelperProto,
    r: &[u64; 5],
) -> Result<u64, Trap> {
    let place = vm.place(r[0], 4)?;
    if *vm.lock() != r[0] {
        return Err(bad(proto, 0, "is a lock that is not held".into()));
    }
    place.spin_unlock(0);
    *vm.lock() = 0;
    Ok(0)
}

/// `bpf_kptr_xchg(place, new)`: puts a pointer in and takes the old one out.
pub(crate) fn kptr_xchg(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let new = call.num(1);
    match &call.args[0] {
        Arg::Place(place) => place.rmw(0, 8, Rmw::Xchg, new).map_err(|_| Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}
