//! Why an interface could not be opened or is lost.

use std::io;

use xway_engine::{PortError, PortErrorKind};

/// Why an interface cannot be used as a port.
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
    /// The interface carries something else than Ethernet frames.
    #[error(
        "interface {interface} carries no Ethernet frames (ARP hardware type {hardware}); XDP programs expect them"
    )]
    NotEthernet {
        /// Its name.
        interface: String,
        /// `ARPHRD_*` number.
        hardware: u16,
    },
    /// Packet sockets are a privilege.
    #[error("a packet socket needs CAP_NET_RAW: run as root, or give the program `setcap cap_net_raw+ep`")]
    Privilege,
    /// The ring's size makes no sense.
    #[error("a ring of {slots} slots for packets of {packet_max} bytes cannot be made: {why}")]
    Ring {
        /// Slots asked for.
        slots: u32,
        /// Longest packet asked for.
        packet_max: u32,
        /// What is allowed.
        why: &'static str,
    },
    /// The number of queues makes no sense.
    #[error("{queues} queues: a packet socket's group has 1 to {max} members")]
    Queues {
        /// Asked for.
        queues: u32,
        /// The most.
        max: u32,
    },
    /// Another system call failed.
    #[error("{what}: {cause}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl OpenError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        move |cause| match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::Privilege,
            _ => OpenError::System { what, cause },
        }
    }

    /// As an error of the port with this name.
    pub fn into_port_error(self, port: &str) -> PortError {
        PortError::new(port, PortErrorKind::Missing, self)
    }
}
