//! Why a TAP device could not be opened.

use std::io;

use xway_engine::{PortError, PortErrorKind};

/// Why an interface cannot be used as a TAP port.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The name is none that an interface can have.
    #[error("{name:?} is no name for an interface: 1 to 15 characters without '/', '%', ':' and blanks")]
    Name {
        /// The name.
        name: String,
    },
    /// The number of queues makes no sense.
    #[error("a TAP device has 1 to {max} queues, not {queues}")]
    Queues {
        /// Queues asked for.
        queues: u32,
        /// The most that the kernel takes.
        max: u32,
    },
    /// The process may not.
    #[error(
        "making a TAP device needs CAP_NET_ADMIN and access to /dev/net/tun: run as root, or `ip tuntap add {name} mode tap user NAME`"
    )]
    Privilege {
        /// The interface.
        name: String,
    },
    /// There is no driver.
    #[error("/dev/net/tun: {cause}; `modprobe tun` loads the driver")]
    NoDriver {
        /// What the kernel said.
        cause: io::Error,
    },
    /// Another process has it.
    #[error("interface {name} is in use by another process")]
    Busy {
        /// The interface.
        name: String,
    },
    /// There is one of this name that does not fit.
    #[error(
        "interface {name} exists and is no TAP device with {queues} queue(s); `ip tuntap add {name} mode tap multi_queue vnet_hdr` makes one that is"
    )]
    Mismatch {
        /// The interface.
        name: String,
        /// Queues asked for.
        queues: u32,
    },
    /// The way from the TAP into the host.
    #[error("{0}")]
    Kernel(xway_kernel::KernelError),
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
        move |cause| OpenError::System { what, cause }
    }

    /// As an error of the port with this name.
    pub fn into_port_error(self, port: &str) -> PortError {
        PortError::new(port, PortErrorKind::Missing, self)
    }
}
