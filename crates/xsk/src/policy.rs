//! What applications may have.

use xway_door::Access;

/// Limits and trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Who may connect at all.
    pub access: Access,
    /// Users whose applications may map the engine's own memory and so go without copies. Of what all applications have together each
    /// other user may have half.
    pub trusted_uids: Vec<u32>,
    /// Others may go without copies on a queue that is theirs alone: bound past all programs, with nothing attached.
    pub own_queue_zero_copy: bool,
    /// Others get so many first bytes of each packet: the headers, and not what people say to each other. `None`: whole packets. A
    /// queue of their own without copies is not for them then.
    pub untrusted_bytes: Option<u32>,
    /// Bytes of packet memory for one application.
    pub memory_max: u64,
    /// Packet memories of one application.
    pub umems_max: usize,
    /// Sockets of one application.
    pub sockets_max: usize,
    /// Applications at the same time. Each takes two descriptors of this process.
    pub connections_max: usize,
    /// Of these, for each user who is not trusted: without a socket.
    pub idle_max: usize,
    /// Sockets of all applications together. Each takes two descriptors of this process.
    pub sockets_total: usize,
    /// Bytes of packet memory and rings of all applications together.
    pub memory_total: u64,
}

impl Default for Policy {
    /// The owner and the process's group connect, and root is trusted; for one application 256 MiB in at most 64 memories, and 64
    /// sockets; together 64 applications, 8 of a user without a socket, 192 sockets and 1 GiB: with 512 descriptors half of what a
    /// process usually may have.
    fn default() -> Policy {
        Policy {
            access: Access::default(),
            trusted_uids: vec![0],
            own_queue_zero_copy: false,
            untrusted_bytes: None,
            memory_max: 256 << 20,
            umems_max: 64,
            sockets_max: 64,
            connections_max: 64,
            idle_max: 8,
            sockets_total: 192,
            memory_total: 1 << 30,
        }
    }
}
