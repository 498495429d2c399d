//! The packet: room, copies, length, and where it goes.

use xway_abi::Errno;
use xway_packet::{Frame, Redirect};

use crate::call::Call;
use crate::host::route::Link;

/// `bpf_xdp_adjust_head(ctx, delta)`
pub(crate) fn adjust_head(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let delta = call.num(1) as i32;
    call.frame()?.adjust_head(delta).map(|()| 0)
}

/// `bpf_xdp_adjust_meta(ctx, delta)`
pub(crate) fn adjust_meta(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let delta = call.num(1) as i32;
    call.frame()?.adjust_meta(delta).map(|()| 0)
}

/// `bpf_xdp_adjust_tail(ctx, delta)`
pub(crate) fn adjust_tail(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let delta = call.num(1) as i32;
    call.frame()?.adjust_tail(delta).map(|()| 0)
}

/// `bpf_xdp_get_buff_len(ctx)`
pub(crate) fn get_buff_len(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(call.frame()?.total_len() as u64)
}

/// Offsets and lengths that `bpf_xdp_load_bytes` and `bpf_xdp_store_bytes` look at.
const POINTER_MAX: u32 = 0xffff;

/// Where the bytes are, if Linux looks at all.
pub(crate) fn at(offset: u32, len: usize) -> Result<usize, Errno> {
    if offset > POINTER_MAX || len > POINTER_MAX as usize { Err(Errno::EFAULT) } else { Ok(offset as usize) }
}

/// `bpf_xdp_load_bytes(ctx, offset, buf, len)`
pub(crate) fn load_bytes(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let offset = call.num(1) as u32;
    let frame = call.frame.take().ok_or(Errno::EINVAL)?;
    load(frame, offset, call.bytes_mut(2)).map(|()| 0)
}

/// The helper over a frame and bytes that are seen as slices.
pub fn load(frame: &Frame, offset: u32, buf: &mut [u8]) -> Result<(), Errno> {
    frame.load(at(offset, buf.len())?, buf)
}

/// `bpf_xdp_store_bytes(ctx, offset, buf, len)`
pub(crate) fn store_bytes(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let offset = call.num(1) as u32;
    let frame = call.frame.take().ok_or(Errno::EINVAL)?;
    store(frame, offset, call.bytes(2)).map(|()| 0)
}

/// The helper over a frame and bytes that are seen as slices.
pub fn store(frame: &mut Frame, offset: u32, buf: &[u8]) -> Result<(), Errno> {
    frame.store(at(offset, buf.len())?, buf)
}

/// What `bpf_redirect` and `bpf_redirect_map` return when the redirect is on: `XDP_REDIRECT`.
pub(crate) const XDP_REDIRECT: u64 = 4;

/// `bpf_redirect(ifindex, flags)`: any flag gives `XDP_ABORTED`.
pub(crate) fn redirect(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let (ifindex, flags) = (call.num(0) as u32, call.num(1));
    if flags != 0 {
        return Ok(0);
    }
    if let Some(frame) = call.frame.as_deref_mut() {
        frame.set_redirect(Redirect::Ifindex(ifindex));
    }
    Ok(XDP_REDIRECT)
}

/// `bpf_check_mtu(ctx, ifindex, mtu_len, len_diff, flags)`
pub(crate) fn check_mtu(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let (ifindex, diff, flags, host) = (call.num(1) as u32, call.num(3) as i32, call.num(4), call.host);
    let frame = call.frame.take().ok_or(Errno::EINVAL)?;
    mtu(frame, ifindex, call.bytes_mut(2), diff, flags, |ifindex| host.device(ifindex))
}

/// The helper over a frame and bytes that are seen as a slice.
#[inline]
pub fn mtu(
    frame: &Frame,
    ifindex: u32,
    given: &mut [u8],
    diff: i32,
    flags: u64,
    device: impl FnOnce(u32) -> Result<Link, Errno>,
) -> Result<u64, Errno> {
    /// `BPF_MTU_CHK_RET_FRAG_NEEDED`
    const FRAG_NEEDED: u64 = 1;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let ifindex = if ifindex == 0 { frame.ingress_ifindex() } else { ifindex };
    // The first buffer of several is what Linux measures.
    let len = frame.len() as i32;
    let device = device(ifindex)?;
    let given = given.first_chunk_mut::<4>().ok_or(Errno::EINVAL)?;
    let l3 = u32::from_ne_bytes(*given);
    // In 32 bits: lengths that no packet has wrap there as they do here.
    let header = device.header_len;
    let len = if l3 != 0 { l3.wrapping_add(header) as i32 } else { len }.wrapping_add(diff);
    *given = device.mtu.to_ne_bytes();
    Ok(if len > device.mtu.wrapping_add(header) as i32 { FRAG_NEEDED } else { 0 })
}
