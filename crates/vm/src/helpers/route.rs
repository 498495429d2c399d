//! Routes and sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use xway_abi::Errno;

use crate::call::Call;
use crate::host::Host;
use crate::host::route::{FibAnswer, FibQuery};

/// `struct bpf_fib_lookup` (`linux/bpf.h`): offsets of its fields.
mod at {
    pub const FAMILY: usize = 0;
    pub const L4_PROTO: usize = 1;
    pub const SPORT: usize = 2;
    pub const DPORT: usize = 4;
    /// In: `tot_len`; out: `mtu_result`.
    pub const LEN: usize = 6;
    pub const IFINDEX: usize = 8;
    /// In: `tos` or `flowinfo`; out: `rt_metric`.
    pub const TOS: usize = 12;
    pub const SRC: usize = 16;
    pub const DST: usize = 32;
    /// In: `tbid`; out: VLAN protocol and tag.
    pub const VLAN: usize = 48;
    /// In: `mark`; out: source address.
    pub const SMAC: usize = 52;
    pub const DMAC: usize = 58;
    pub const SIZE: usize = 64;
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const DIRECT: u32 = 1;
const OUTPUT: u32 = 2;
const SKIP_NEIGH: u32 = 4;
const TBID: u32 = 8;
const SRC: u32 = 16;
const MARK: u32 = 32;

/// `bpf_fib_lookup(ctx, params, plen, flags)`
pub(crate) fn fib_lookup(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    let (flags, host) = (call.num(3) as u32, call.host);
    lookup(host, call.bytes_mut(1), flags)
}

/// The helper over parameters that are seen as a slice.
#[inline]
pub fn lookup(host: &dyn Host, params: &mut [u8], flags: u32) -> Result<u64, Errno> {
    let params: &mut [u8; at::SIZE] = params.first_chunk_mut().ok_or(Errno::EINVAL)?;
    if flags & !(DIRECT | OUTPUT | SKIP_NEIGH | TBID | SRC | MARK) != 0 {
        return Err(Errno::EINVAL);
    }
    let four = |p: &[u8; at::SIZE], o: usize| IpAddr::V4(Ipv4Addr::new(p[o], p[o + 1], p[o + 2], p[o + 3]));
    let six = |p: &[u8; at::SIZE], o: usize| {
        IpAddr::V6(Ipv6Addr::from(p[o..].first_chunk::<16>().copied().unwrap_or_default()))
    };
    // Each family by itself, and what is asked and answered where it is: moved it would be read by wider loads than it was stored by, for
    // which processors wait.
    match params[at::FAMILY] {
        AF_INET => ask(host, &query(params, flags, four), params),
        AF_INET6 => ask(host, &query(params, flags, six), params),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

#[inline(always)]
fn ask(host: &dyn Host, query: &FibQuery, params: &mut [u8; at::SIZE]) -> Result<u64, Errno> {
    match &host.fib_lookup(query) {
        Ok(answer) => {
            store(params, answer);
            Ok(answer.code as u64)
        }
        Err(errno) => Err(*errno),
    }
}

#[inline(always)]
fn query(p: &[u8; at::SIZE], flags: u32, addr: impl Fn(&[u8; at::SIZE], usize) -> IpAddr) -> FibQuery {
    let u16_at = |o: usize| u16::from_ne_bytes([p[o], p[o + 1]]);
    let u32_at = |o: usize| u32::from_ne_bytes([p[o], p[o + 1], p[o + 2], p[o + 3]]);
    FibQuery {
        ifindex: u32_at(at::IFINDEX),
        src: addr(p, at::SRC),
        dst: addr(p, at::DST),
        tos: p[at::TOS],
        l4_proto: p[at::L4_PROTO],
        sport: u16::from_be(u16_at(at::SPORT)),
        dport: u16::from_be(u16_at(at::DPORT)),
        tot_len: u16_at(at::LEN),
        direct: flags & DIRECT != 0,
        table: (flags & (DIRECT | TBID) == DIRECT | TBID).then(|| u32_at(at::VLAN)),
        output: flags & OUTPUT != 0,
        skip_neigh: flags & SKIP_NEIGH != 0,
        want_src: flags & SRC != 0,
        mark: if flags & MARK != 0 { u32_at(at::SMAC) } else { 0 },
    }
}

fn store(p: &mut [u8; at::SIZE], answer: &FibAnswer) {
    let mut put = |o: usize, bytes: &[u8]| p[o..o + bytes.len()].copy_from_slice(bytes);
    let mut put_addr = |o: usize, addr: IpAddr| match addr {
        IpAddr::V4(a) => put(o, &a.octets()),
        IpAddr::V6(a) => put(o, &a.octets()),
    };
    if let Some(gateway) = answer.gateway {
        put_addr(at::DST, gateway);
    }
    if let Some(src) = answer.src {
        put_addr(at::SRC, src);
    }
    if let Some(mtu) = answer.mtu {
        put(at::LEN, &mtu.to_ne_bytes());
    }
    if let Some(ifindex) = answer.ifindex {
        put(at::IFINDEX, &ifindex.to_ne_bytes());
    }
    if let Some(metric) = answer.metric {
        put(at::TOS, &metric.to_ne_bytes());
    }
    if let Some((dmac, smac)) = answer.macs {
        put(at::SMAC, &smac);
        put(at::DMAC, &dmac);
    }
    if answer.forwards() || answer.table_used {
        put(at::VLAN, &[0; 4]);
    }
    if let Some(IpAddr::V6(_)) = answer.gateway
        && p[at::FAMILY] == AF_INET
    {
        p[at::FAMILY] = AF_INET6;
    }
}

/// `bpf_sk_lookup_tcp`, `bpf_sk_lookup_udp`, `bpf_skc_lookup_tcp`: nothing is found. Kernel sockets are out of reach.
pub(crate) fn no_socket(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Ok(0)
}

/// Helpers that take a socket: their arguments can never be marshalled, because no look-up finds one.
pub(crate) fn needs_socket(_: &mut Call<'_, '_>) -> Result<u64, Errno> {
    Err(Errno::EINVAL)
}
