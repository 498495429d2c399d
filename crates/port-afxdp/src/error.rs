//! Why an interface could not be opened or is lost.

use std::io;

use xway_abi::Errno;
use xway_engine::{PortError, PortErrorKind};
use xway_kernel::KernelError;

/// Why an interface, or one of its queues, cannot be used as a port.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such interface in this network namespace.
    #[error("there is no interface {interface} here; `ip link` lists those that are")]
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// The interface is administratively down.
    #[error("interface {interface} is down; `ip link set {interface} up` brings it up")]
    Down {
        /// Its name.
        interface: String,
    },
    /// The process may not.
    #[error("AF_XDP needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: run as root")]
    Privilege,
    /// No such queue.
    #[error("interface {interface} has {have} receive queue(s), so there is no queue {queue}")]
    NoQueue {
        /// The interface.
        interface: String,
        /// Queue asked for.
        queue: u32,
        /// Queues that there are.
        have: u32,
    },
    /// Another socket has the queue.
    #[error("queue {queue} of {interface} has an AF_XDP socket already; `ss --xdp -p` says whose it is")]
    QueueTaken {
        /// The interface.
        interface: String,
        /// Queue asked for.
        queue: u32,
    },
    /// There is a program on the interface.
    #[error(
        "interface {interface} has an XDP program already; `xway unload {interface}` takes it away, or it redirects to a pinned XSKMAP \
         that map=PATH names"
    )]
    ProgramThere {
        /// The interface.
        interface: String,
    },
    /// The program on the interface is not this port's to exchange.
    #[error("interface {interface}: the program that brings packets here is not this port's, or was taken away")]
    NotOurs {
        /// The interface.
        interface: String,
    },
    /// What was handed over is of another interface, other queues or another mode.
    #[error(
        "interface {interface}: the program that was handed over is another interface's, for other queues or in another mode"
    )]
    Other {
        /// The interface.
        interface: String,
    },
    /// Zero-copy was demanded and cannot be had.
    #[error("queue {queue} of {interface}: no zero-copy: {why}; copy=auto takes it where it can be had")]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Why not.
        why: String,
    },
    /// Packets of several buffers were asked for.
    #[error(
        "interface {interface}: no packets of several buffers: AF_XDP has them from Linux 6.6 on; leave frags=yes out"
    )]
    NoFrags {
        /// The interface.
        interface: String,
    },
    /// The pool's memory cannot be a UMEM.
    #[error("packet memory cannot be shared with the kernel: {why}")]
    Memory {
        /// What is wrong with it.
        why: &'static str,
    },
    /// The rings' length makes no sense.
    #[error("rings of {entries} entries: a power of two from 64 to 32768")]
    Entries {
        /// Entries asked for.
        entries: u32,
    },
    /// Program or map.
    #[error("{0}")]
    Kernel(KernelError),
    /// Another system call failed.
    #[error("{what}: {cause}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl From<KernelError> for OpenError {
    fn from(error: KernelError) -> OpenError {
        match error.errno() {
            Some(Errno::EPERM | Errno::EACCES) if error.log().is_empty() => OpenError::Privilege,
            _ => OpenError::Kernel(error),
        }
    }
}

impl OpenError {
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> OpenError {
        move |cause| {
            let cause: io::Error = cause.into();
            match cause.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => OpenError::Privilege,
                _ => OpenError::System { what, cause },
            }
        }
    }

    /// As an error of the port with this name.
    pub fn into_port_error(self, port: &str) -> PortError {
        PortError::new(port, PortErrorKind::Missing, self)
    }
}
