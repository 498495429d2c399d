//! Netlink requests of this crate: the framing is [`xway_netlink`]'s, the step that failed is ours.

use xway_abi::Errno;
use xway_netlink::NetlinkError;
pub(crate) use xway_netlink::{F_DUMP, NLA_F_NESTED, Protocol, attribute, attributes, half, word};

use crate::KernelError;

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket(xway_netlink::Socket);

impl Socket {
    pub(crate) fn open(protocol: Protocol) -> Result<Socket, KernelError> {
        let refused = |e: NetlinkError| KernelError::Call { step: "opening a netlink socket", errno: e.errno };
        xway_netlink::Socket::open(protocol, 0).map(Socket).map_err(refused)
    }

    /// The number of a generic family; `None`: the running kernel has no such family.
    pub(crate) fn family(&mut self, name: &str, step: &'static str) -> Result<Option<u16>, KernelError> {
        const CTRL: u16 = 0x10;
        let mut body = vec![3, 1, 0, 0]; // CTRL_CMD_GETFAMILY, version 1.
        attribute(&mut body, 2, &[name.as_bytes(), &[0]].concat());
        let mut family = None;
        let asked = self.request(CTRL, 0, &body, step, |answer| {
            let id = attributes(answer.get(4..).unwrap_or_default()).find(|(kind, _)| *kind == 1);
            family = id.and_then(|(_, value)| half(value, 0));
        });
        match asked {
            Err(e) if e.errno() == Some(Errno::ENOENT) => Ok(None),
            Err(e) => Err(e),
            Ok(()) => Ok(family),
        }
    }

    /// Sends a request and hands every answer's body to `visit`. `flags` is 0 or [`F_DUMP`].
    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        step: &'static str,
        visit: impl FnMut(&[u8]),
    ) -> Result<(), KernelError> {
        let refused = |NetlinkError { errno, said }| KernelError::Netlink { step, errno, said };
        self.0.request(kind, flags, body, visit).map_err(refused)
    }
}
