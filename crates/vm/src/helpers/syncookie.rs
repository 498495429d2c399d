//! SYN cookies without a socket: `bpf_tcp_raw_gen_syncookie_*`, `bpf_tcp_raw_check_syncookie_*`.
//!
//! A cookie is a TCP sequence number that carries, under a keyed hash, the minute of its making and one of four segment
//! sizes (D. J. Bernstein, "SYN cookies"; RFC 4987 section 3.6). The layout is the kernel's; the key is the engine's, so
//! the two do not accept each other's cookies.

use xway_abi::Errno;

use crate::call::Call;
use crate::host::{Clock, Host};

const MINUTE_NS: u64 = 60_000_000_000;
/// Minutes that a cookie is good for.
const AGE_MAX: u32 = 2;
const COUNT_SHIFT: u32 = 24;
const DATA_MASK: u32 = (1 << COUNT_SHIFT) - 1;
/// Segment sizes that a cookie can name, rising.
const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS_V6: [u16; 4] = [1220, 1420, 1440, 8940];
/// Segment size of a SYN without the option (RFC 9293 section 3.7.1).
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;

/// The part of a connection's identity that is hashed.
struct Flow<'a> {
    src: &'a [u8],
    dst: &'a [u8],
    ports: &'a [u8],
    seq: u32,
}

impl<'a> Flow<'a> {
    fn new(ip: &'a [u8], tcp: &'a [u8]) -> Option<Flow<'a>> {
        let (src, dst) = match ip.len() {
            20 => (ip.get(12..16)?, ip.get(16..20)?),
            _ => (ip.get(8..24)?, ip.get(24..40)?),
        };
        let seq = u32::from_be_bytes(*tcp.get(4..8)?.first_chunk()?);
        Some(Flow { src, dst, ports: tcp.get(..4)?, seq })
    }

    fn hash(&self, key: [u64; 2], count: u32, round: u8) -> u32 {
        let mut bytes = [0u8; 48];
        let mut n = 0;
        for part in [self.src, self.dst, self.ports, &count.to_ne_bytes(), &[round]] {
            bytes[n..n + part.len()].copy_from_slice(part);
            n += part.len();
        }
        siphash(key, &bytes[..n]) as u32
    }

    fn cookie(&self, key: [u64; 2], minute: u32, data: u32) -> u32 {
        let first = self.hash(key, 0, 0);
        let second = self.hash(key, minute, 1).wrapping_add(data) & DATA_MASK;
        first.wrapping_add(self.seq).wrapping_add(minute << COUNT_SHIFT).wrapping_add(second)
    }

    /// The data in a cookie, `None` when it is too old or not ours.
    fn open(&self, key: [u64; 2], cookie: u32, minute: u32) -> Option<u32> {
        let rest = cookie.wrapping_sub(self.hash(key, 0, 0)).wrapping_sub(self.seq);
        let age = minute.wrapping_sub(rest >> COUNT_SHIFT) & (u32::MAX >> COUNT_SHIFT);
        if age >= AGE_MAX {
            return None;
        }
        Some(rest.wrapping_sub(self.hash(key, minute.wrapping_sub(age), 1)) & DATA_MASK)
    }
}

fn minute(host: &dyn Host) -> u32 {
    (host.clock_ns(Clock::Monotonic) / MINUTE_NS) as u32
}

fn generate(call: &Call<'_, '_>, table: &[u16; 4], default: u16) -> Result<u64, Errno> {
    let (ip, tcp) = (call.bytes(0), call.bytes(1));
    if tcp.len() < 20 || tcp.len() != usize::from(tcp[12] >> 4) * 4 {
        return Err(Errno::EINVAL);
    }
    let mss = mss_option(&tcp[20..]).unwrap_or(default);
    let index = table.iter().rposition(|m| *m <= mss).unwrap_or(0);
    let flow = Flow::new(ip, tcp).ok_or(Errno::EINVAL)?;
    let cookie = flow.cookie(call.host.syncookie_secret(), minute(call.host), index as u32);
    Ok(u64::from(cookie) | u64::from(table[index]) << 32)
}

fn check(call: &Call<'_, '_>, table: &[u16; 4]) -> Result<u64, Errno> {
    let (ip, tcp) = (call.bytes(0), call.bytes(1));
    // The acknowledgement of our sequence number, for the segment after the client's SYN.
    let mut flow = Flow::new(ip, tcp).ok_or(Errno::EINVAL)?;
    flow.seq = flow.seq.wrapping_sub(1);
    let ack = tcp.get(8..12).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    let data = flow.open(call.host.syncookie_secret(), ack.wrapping_sub(1), minute(call.host));
    match data {
        Some(index) if (index as usize) < table.len() => Ok(0),
        _ => Err(Errno::EACCES),
    }
}

/// The MSS option of a SYN (RFC 9293 section 3.2).
fn mss_option(mut options: &[u8]) -> Option<u16> {
    loop {
        match *options {
            [1, ref rest @ ..] => options = rest,
            [2, 4, a, b, ..] => return Some(u16::from_be_bytes([a, b])).filter(|m| *m != 0),
            [0, ..] | [] => return None,
            [_, len, ..] if len >= 2 && usize::from(len) <= options.len() => options = &options[usize::from(len)..],
            _ => return None,
        }
    }
}

/// `bpf_tcp_raw_gen_syncookie_ipv4(iph, th, th_len)`: the cookie, and the segment size in the upper half.
pub(crate) fn gen_ipv4(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    generate(call, &MSS_V4, MSS_DEFAULT_V4)
}

/// `bpf_tcp_raw_gen_syncookie_ipv6(iph, th, th_len)`
pub(crate) fn gen_ipv6(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    generate(call, &MSS_V6, MSS_DEFAULT_V6)
}

/// `bpf_tcp_raw_check_syncookie_ipv4(iph, th)`: 0 for a good acknowledgement, else `EACCES`.
pub(crate) fn check_ipv4(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    check(call, &MSS_V4)
}

/// `bpf_tcp_raw_check_syncookie_ipv6(iph, th)`
pub(crate) fn check_ipv6(call: &mut Call<'_, '_>) -> Result<u64, Errno> {
    check(call, &MSS_V6)
}

/// SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012).
fn siphash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let round = |v: &mut [u64; 4]| {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    for word in words.iter().chain([&last]) {
        let m = u64::from_le_bytes(*word);
        v[3] ^= m;
        round(&mut v);
        round(&mut v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_of_the_paper() {
        let bytes: Vec<u8> = (0..15).collect();
        assert_eq!(siphash([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908], &bytes), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn a_cookie_opens_for_two_minutes_and_for_its_flow_only() {
        let ip: Vec<u8> = (0..20).collect();
        let mut tcp = [0u8; 24];
        tcp[..8].copy_from_slice(&[0x12, 0x34, 0, 80, 1, 2, 3, 4]);
        let key = [1, 2];
        let flow = Flow::new(&ip, &tcp).unwrap();
        let cookie = flow.cookie(key, 700, 3);
        assert_eq!(flow.open(key, cookie, 700), Some(3));
        assert_eq!(flow.open(key, cookie, 701), Some(3));
        assert_eq!(flow.open(key, cookie, 702), None);
        let mut other = tcp;
        other[0] = 0x13;
        assert_ne!(Flow::new(&ip, &other).unwrap().open(key, cookie, 700), Some(3));
    }

    #[test]
    fn segment_size_options() {
        assert_eq!(mss_option(&[1, 1, 2, 4, 0x05, 0xb4]), Some(1460));
        assert_eq!(mss_option(&[3, 3, 7, 2, 4, 0x05, 0xb4]), Some(1460));
        assert_eq!(mss_option(&[3, 0, 2, 4]), None);
        assert_eq!(mss_option(&[0, 2, 4, 5, 5]), None);
        assert_eq!(mss_option(&[8]), None);
    }
}
