//! The packet that both sides start from, and how it is made anew between two runs.
//!
//! All packets of a case have one length and one template: Ethernet, IPv4, UDP. From packet to packet twelve bytes change:
//! addresses and ports. A program that writes or moves the packet gets the headers back before the next run.
//!
//! Both sides write fields at their natural width, never wider. In the kernel the program reads the packet right behind these
//! writes: a read that spans two of them would wait until both are in the cache, and that would be charged to the kernel.

/// UDP.
pub const PROTOCOL: u8 = 17;
/// Where the twelve bytes that change begin: the IPv4 source address.
pub const FIELDS_AT: usize = 26;
/// And how many there are.
pub const FIELDS_LEN: usize = 12;
/// Headers: Ethernet, IPv4, UDP.
pub const HEADERS: usize = 42;

/// Offset and width of each header field, but for the twelve bytes that change.
pub const HEADER_FIELDS: &[(usize, usize)] = &[
    (0, 4), // destination address, in the pieces in which compilers copy six bytes
    (4, 2),
    (6, 4), // source address
    (10, 2),
    (12, 2), // EtherType
    (14, 2), // version, header length; type of service
    (16, 2), // total length
    (18, 2), // identification
    (20, 2), // fragment offset
    (22, 2), // time to live, protocol
    (24, 2), // checksum
    (38, 2), // UDP length
    (40, 2), // UDP checksum
];

/// The packet of this length, at least 64 bytes.
pub fn template(len: u16) -> Vec<u8> {
    let len = usize::from(len.max(64));
    // The payload counts up, so that a checksum over it is not trivial.
    let mut packet: Vec<u8> = (0..len).map(|n| n as u8).collect();
    packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, PROTOCOL, 0, 0, 10, 0, 0, 1, 198, 18, 1, 1];
    packet[14..34].copy_from_slice(&ip);
    packet[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    packet[34..42].copy_from_slice(&[4, 0, 0, 80, 0, 0, 0, 0]);
    packet[38..40].copy_from_slice(&((len - 34) as u16).to_be_bytes());
    packet
}

/// How a packet is made anew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Renew {
    /// The twelve bytes.
    Fields,
    /// All headers.
    Headers,
    /// All headers, after the packet's start has been moved back to its place.
    Place,
    /// The same for the start of the metadata.
    Metadata,
    /// The same for the packet's end. What was cut off is not written again.
    End,
}

impl Renew {
    /// Whether something has to be moved back.
    pub fn moves(self) -> bool {
        matches!(self, Renew::Place | Renew::Metadata | Renew::End)
    }
}
