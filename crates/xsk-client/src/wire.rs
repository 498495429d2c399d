//! What client and server say to each other, over a UNIX socket that keeps messages apart (`SOCK_SEQPACKET`).
//!
//! Requests have 64 bytes and answers 256, little-endian numbers at fixed places. Descriptors travel beside an answer
//! (`SCM_RIGHTS`). Both sides check lengths, operations and ranges; what does not decode ends the connection.
//!
//! ```text
//! request:  op u32 | interface 16 bytes | eleven numbers u32
//! answer:   errno i32 | reason length u32 | eight numbers u64 | reason, at most 184 bytes
//! ```

use xway_abi::Errno;

/// Version of this protocol. In version 1 both doorbells were event descriptors.
pub const VERSION: u32 = 2;
/// Bytes of a request.
pub const REQUEST: usize = 64;
/// Bytes of an answer.
pub const ANSWER: usize = 256;
/// The longest name of an interface or port, bytes.
pub const NAME_MAX: usize = 16;
const NUMBERS: usize = 11;
const REASON_MAX: usize = ANSWER - 72;

/// Beyond Linux's bind flags: everything that arrives on the queue comes to this socket, past all programs.
pub const BIND_DIRECT: u32 = 1 << 16;

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The first request: says the version.
    Hello {
        /// [`VERSION`] of the client.
        version: u32,
    },
    /// Packet memory for copies (`XDP_UMEM_REG`). Answer: its number; descriptor: the memory.
    Umem {
        /// Number of chunks.
        chunks: u32,
        /// Bytes of a chunk: 2048 or 4096.
        chunk_size: u32,
        /// Bytes in front of received packets, beyond the 256 that there always are.
        headroom: u32,
        /// Bytes in front of packets to send that hold what is asked for them (`tx_metadata_len`); 0 for nothing.
        tx_metadata_len: u32,
    },
    /// A socket on a queue (`bind`). Answer: its number, flags in effect, length and chunk size of the memory; descriptors: rings,
    /// doorbell of the server (an event descriptor, to be written), doorbell of the client (a stream socket, to be read: a byte for
    /// each ring, its end when the socket is closed) and, without copies, the memory.
    Bind(BindRequest),
    /// Counters of a socket (`XDP_STATISTICS`).
    Statistics {
        /// Number of the socket.
        socket: u32,
    },
    /// Closes a socket.
    Close {
        /// Number of the socket.
        socket: u32,
    },
}

/// What a bind asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BindRequest {
    /// Name of the interface or port.
    pub interface: String,
    /// Queue.
    pub queue: u32,
    /// `sxdp_flags`, and [`BIND_DIRECT`].
    pub flags: u32,
    /// Number of the memory, for copies.
    pub umem: u32,
    /// Entries of the FILL ring.
    pub fill: u32,
    /// Entries of the COMPLETION ring.
    pub completion: u32,
    /// Entries of the RX ring.
    pub rx: u32,
    /// Entries of the TX ring.
    pub tx: u32,
    /// Chunks wanted without copies.
    pub chunks: u32,
    /// Share of the queue's sending, in relation to others; 0 counts as 1.
    pub weight: u32,
}

impl Request {
    /// As bytes.
    pub fn encode(&self) -> [u8; REQUEST] {
        let (op, name, numbers): (u32, &str, [u32; NUMBERS]) = match self {
            Request::Hello { version } => (1, "", pad(&[*version])),
            Request::Umem { chunks, chunk_size, headroom, tx_metadata_len } => {
                (2, "", pad(&[*chunks, *chunk_size, *headroom, *tx_metadata_len]))
            }
            Request::Bind(b) => {
                let numbers = [b.queue, b.flags, b.umem, b.fill, b.completion, b.rx, b.tx, b.chunks, b.weight];
                (3, &b.interface, pad(&numbers))
            }
            Request::Statistics { socket } => (4, "", pad(&[*socket])),
            Request::Close { socket } => (5, "", pad(&[*socket])),
        };
        let mut out = [0; REQUEST];
        out[..4].copy_from_slice(&op.to_le_bytes());
        let len = name.len().min(NAME_MAX);
        out[4..4 + len].copy_from_slice(&name.as_bytes()[..len]);
        for (at, number) in out[20..].chunks_exact_mut(4).zip(numbers) {
            at.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// From bytes; `None` for what is no request.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 4].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let n = |at: usize| word(20 + at * 4);
        let name = bytes[4..20].split(|&b| b == 0).next().unwrap_or_default();
        Some(match word(0) {
            1 => Request::Hello { version: n(0) },
            2 => Request::Umem { chunks: n(0), chunk_size: n(1), headroom: n(2), tx_metadata_len: n(3) },
            3 => Request::Bind(BindRequest {
                interface: std::str::from_utf8(name).ok()?.to_owned(),
                queue: n(0),
                flags: n(1),
                umem: n(2),
                fill: n(3),
                completion: n(4),
                rx: n(5),
                tx: n(6),
                chunks: n(7),
                weight: n(8),
            }),
            4 => Request::Statistics { socket: n(0) },
            5 => Request::Close { socket: n(0) },
            _ => return None,
        })
    }
}

fn pad(numbers: &[u32]) -> [u32; NUMBERS] {
    let mut out = [0; NUMBERS];
    out[..numbers.len()].copy_from_slice(numbers);
    out
}

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// Why not; `None` when it is done.
    pub errno: Option<Errno>,
    /// The server's words: why not, or what it chose and why.
    pub reason: String,
    /// What was asked for.
    pub numbers: [u64; 8],
}

impl Answer {
    /// Done, with these numbers.
    pub fn done(numbers: &[u64]) -> Answer {
        let mut out = [0; 8];
        let len = numbers.len().min(8);
        out[..len].copy_from_slice(&numbers[..len]);
        Answer { errno: None, reason: String::new(), numbers: out }
    }

    /// Not done, and why.
    pub fn refused(errno: Errno, reason: impl ToString) -> Answer {
        Answer { errno: Some(errno), reason: reason.to_string(), numbers: [0; 8] }
    }

    /// As bytes. A reason that is too long is cut.
    pub fn encode(&self) -> [u8; ANSWER] {
        let mut out = [0; ANSWER];
        out[..4].copy_from_slice(&self.errno.map_or(0, |e| e.0).to_le_bytes());
        let mut len = self.reason.len().min(REASON_MAX);
        while !self.reason.is_char_boundary(len) {
            len -= 1;
        }
        out[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        for (at, number) in out[8..72].chunks_exact_mut(8).zip(self.numbers) {
            at.copy_from_slice(&number.to_le_bytes());
        }
        out[72..72 + len].copy_from_slice(&self.reason.as_bytes()[..len]);
        out
    }

    /// From bytes; `None` for what is no answer.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let bytes: &[u8; ANSWER] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 4].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let mut numbers = [0; 8];
        for (number, at) in numbers.iter_mut().zip(bytes[8..72].chunks_exact(8)) {
            *number = at.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        }
        let reason = bytes[72..].get(..word(4) as usize)?;
        let errno = word(0) as i32;
        let reason = std::str::from_utf8(reason).ok()?.to_owned();
        Some(Answer { errno: (errno != 0).then_some(Errno(errno)), reason, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let bind =
            BindRequest { interface: "eth0".into(), queue: 3, flags: 4, umem: 1, fill: 64, ..BindRequest::default() };
        for request in [
            Request::Hello { version: VERSION },
            Request::Umem { chunks: 1, chunk_size: 2, headroom: 3, tx_metadata_len: 4 },
            Request::Bind(bind),
            Request::Statistics { socket: 9 },
            Request::Close { socket: 10 },
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for answer in [Answer::done(&[1, 2, 3]), Answer::refused(Errno::EBUSY, "the queue has a socket")] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        let long = Answer::refused(Errno::EPERM, "ä".repeat(200));
        assert_eq!(Answer::decode(&long.encode()).unwrap().reason, "ä".repeat(92));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(Request::decode(&[0; REQUEST]), None);
        assert_eq!(Request::decode(&[1; REQUEST - 1]), None);
        let mut bytes = Request::Bind(BindRequest::default()).encode();
        bytes[4] = 0xff;
        assert_eq!(Request::decode(&bytes), None);
        let mut bytes = Answer::done(&[]).encode();
        bytes[4..8].copy_from_slice(&185u32.to_le_bytes());
        assert_eq!(Answer::decode(&bytes), None);
    }
}
