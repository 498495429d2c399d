//! The Toeplitz hash, as network cards compute it for receive-side scaling.
//!
//! Source: Microsoft's "RSS hashing functions", with its test vectors. A bit of the input that is set adds 32 bits of the key,
//! taken from that bit's position on.

/// Longest input: two IPv6 addresses and two ports.
const INPUT_MAX: usize = 36;

/// Bytes of a key.
pub const KEY_LEN: usize = INPUT_MAX + 4;

/// The key of the published test vectors.
pub const KEY_PUBLISHED: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// A key under which a flow and its opposite direction have the same hash: 16 bits repeated, so that source and destination may
/// change places.
pub const KEY_SYMMETRIC: [u8; KEY_LEN] = {
    let mut key = [0x6d; KEY_LEN];
    let mut at = 1;
    while at < KEY_LEN {
        key[at] = 0x5a;
        at += 2;
    }
    key
};

/// A key, worked out for half bytes: 4.5 KiB that stay in the first-level cache.
#[derive(Clone)]
pub struct Toeplitz {
    table: Box<[[u32; 16]; INPUT_MAX * 2]>,
}

impl Toeplitz {
    /// For this key.
    pub fn new(key: &[u8; KEY_LEN]) -> Toeplitz {
        let window = |bit: usize| {
            let bits = (0..32).map(|n| u32::from(key[(bit + n) / 8] >> (7 - (bit + n) % 8) & 1) << (31 - n));
            bits.fold(0, |word, bit| word | bit)
        };
        let mut table = Box::new([[0u32; 16]; INPUT_MAX * 2]);
        for (at, row) in table.iter_mut().enumerate() {
            for (half, hash) in row.iter_mut().enumerate() {
                let set = (0..4).filter(|bit| half >> (3 - bit) & 1 != 0);
                *hash = set.fold(0, |hash, bit| hash ^ window(at * 4 + bit));
            }
        }
        Toeplitz { table }
    }

    /// The hash of these bytes; those beyond 36 do not count.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let halves = input.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        self.table.iter().zip(halves).fold(0, |hash, (row, half)| hash ^ row[usize::from(half)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source address and port, destination address and port, hash over addresses, hash over addresses and ports.
    const VECTORS: [(&str, u16, &str, u16, u32, u32); 8] = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x4b61_e985, 0x02d1_feef),
    ];

    fn bytes(address: &str) -> Vec<u8> {
        match address.parse().unwrap() {
            std::net::IpAddr::V4(address) => address.octets().to_vec(),
            std::net::IpAddr::V6(address) => address.octets().to_vec(),
        }
    }

    #[test]
    fn the_published_vectors() {
        let toeplitz = Toeplitz::new(&KEY_PUBLISHED);
        for (source, sport, destination, dport, addresses, ports) in VECTORS {
            let mut input = [bytes(source), bytes(destination)].concat();
            assert_eq!(toeplitz.hash(&input), addresses, "{source}");
            input.extend([sport.to_be_bytes(), dport.to_be_bytes()].concat());
            assert_eq!(toeplitz.hash(&input), ports, "{source}:{sport}");
        }
    }

    #[test]
    fn under_the_symmetric_key_both_directions_are_one() {
        let toeplitz = Toeplitz::new(&KEY_SYMMETRIC);
        for (source, sport, destination, dport, ..) in VECTORS {
            let there =
                [bytes(source), bytes(destination), sport.to_be_bytes().into(), dport.to_be_bytes().into()].concat();
            let back =
                [bytes(destination), bytes(source), dport.to_be_bytes().into(), sport.to_be_bytes().into()].concat();
            assert_eq!(toeplitz.hash(&there), toeplitz.hash(&back));
        }
    }
}
