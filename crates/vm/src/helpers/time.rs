//! Clocks, randomness, CPU number.

use xway_abi::Errno;

use crate::call::Call;
use crate::host::Clock;

/// `bpf_ktime_get_ns()`
pub(crate) fn ktime_get_ns(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.clock_ns(Clock::Monotonic))
}

/// `bpf_ktime_get_boot_ns()`
pub(crate) fn ktime_get_boot_ns(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.clock_ns(Clock::Boot))
}

/// `bpf_ktime_get_coarse_ns()`
pub(crate) fn ktime_get_coarse_ns(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.clock_ns(Clock::Coarse))
}

/// `bpf_ktime_get_tai_ns()`
pub(crate) fn ktime_get_tai_ns(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.clock_ns(Clock::Tai))
}

/// `bpf_jiffies64()`
pub(crate) fn jiffies64(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.jiffies())
}

/// `bpf_get_prandom_u32()`
pub(crate) fn get_prandom_u32(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.random_u32().into())
}

/// `bpf_get_smp_processor_id()`: the worker's number.
pub(crate) fn get_smp_processor_id(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.cpu.into())
}

/// `bpf_get_numa_node_id()`
pub(crate) fn get_numa_node_id(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.host.numa_node() as i64 as u64)
}
