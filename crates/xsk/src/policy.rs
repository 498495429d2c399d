//! What applications may have.

/// Limits and trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Users whose applications may map the engine's own memory and so go without copies.
    pub trusted_uids: Vec<u32>,
    /// Others may go without copies on a queue that is theirs alone: bound past all programs, with nothing attached.
    pub own_queue_zero_copy: bool,
    /// Others get so many first bytes of each packet: the headers, and not what people say to each other. `None`: whole packets. A
    /// queue of their own without copies is not for them then.
    pub untrusted_bytes: Option<u32>,
    /// Bytes of packet memory for one application.
    pub memory_max: u64,
    /// Sockets of one application.
    pub sockets_max: usize,
    /// Applications at the same time.
    pub connections_max: usize,
}

impl Default for Policy {
    /// Root is trusted; 256 MiB, 64 sockets, 64 applications.
    fn default() -> Policy {
        Policy {
            trusted_uids: vec![0],
            own_queue_zero_copy: false,
            untrusted_bytes: None,
            memory_max: 256 << 20,
            sockets_max: 64,
            connections_max: 64,
        }
    }
}
