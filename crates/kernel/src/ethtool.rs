//! Offloads and channels of an interface, over ethtool's netlink family (Linux 5.6 and later).
//!
//! Sources: `linux/ethtool_netlink_generated.h`, `Documentation/networking/ethtool-netlink.rst`.

use xway_abi::Errno;

use crate::KernelError;
use crate::netlink::{NLA_F_NESTED, Protocol, Socket, attribute, attributes, word};

const FEATURES_GET: u8 = 11;
const CHANNELS_GET: u8 = 17;
/// The header is attribute 1 of every request, the interface's number attribute 1 of the header.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BIT_NAME: u16 = 2;

/// Queues of an interface, as `ethtool -l` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Channels {
    /// Queue pairs that can be had.
    pub combined_max: u32,
    /// Queue pairs in use.
    pub combined: u32,
    /// Further receive queues in use.
    pub rx: u32,
    /// Further transmit queues in use.
    pub tx: u32,
}

/// The names of the offloads that are on (`rx-gro`, `rx-lro`, `rx-vlan-hw-parse`, …), as `ethtool -k` has them in its own
/// words. `None`: the kernel or the interface does not say.
///
/// # Errors
/// The socket cannot be opened, or the kernel refuses for another reason than not knowing the question.
pub fn offloads(ifindex: u32) -> Result<Option<Vec<String>>, KernelError> {
    let mut names = Vec::new();
    let answered = ask(ifindex, FEATURES_GET, "asking for the offloads", |body| {
        let active = attributes(body).find(|(kind, _)| *kind == FEATURES_ACTIVE);
        let bits = active.and_then(|(_, set)| attributes(set).find(|(kind, _)| *kind == BITSET_BITS));
        for (_, bit) in bits.into_iter().flat_map(|(_, bits)| attributes(bits)) {
            let name = attributes(bit).find(|(kind, _)| *kind == BIT_NAME).map(|(_, name)| name);
            let text = name.map(|name| name.strip_suffix(&[0]).unwrap_or(name));
            names.extend(text.map(|text| String::from_utf8_lossy(text).into_owned()));
        }
    })?;
    Ok(answered.then_some(names))
}

/// The queues of an interface; `None` where the driver has no such numbers.
///
/// # Errors
/// As [`offloads`].
pub fn channels(ifindex: u32) -> Result<Option<Channels>, KernelError> {
    let mut channels = Channels::default();
    let answered = ask(ifindex, CHANNELS_GET, "asking for the channels", |body| {
        for (kind, value) in attributes(body) {
            let number = word(value, 0).unwrap_or(0);
            match kind {
                5 => channels.combined_max = number,
                6 => channels.rx = number,
                7 => channels.tx = number,
                9 => channels.combined = number,
                _ => {}
            }
        }
    })?;
    Ok(answered.then_some(channels))
}

/// One request about one interface; false when the kernel or the driver does not know it.
fn ask(ifindex: u32, command: u8, step: &'static str, mut visit: impl FnMut(&[u8])) -> Result<bool, KernelError> {
    let mut socket = Socket::open(Protocol::Generic)?;
    let Some(family) = socket.family("ethtool", step)? else { return Ok(false) };
    let mut header = Vec::new();
    attribute(&mut header, HEADER_DEV_INDEX, &ifindex.to_ne_bytes());
    let mut body = vec![command, 1, 0, 0];
    attribute(&mut body, HEADER | NLA_F_NESTED, &header);
    let asked = socket.request(family, 0, &body, step, |answer| visit(answer.get(4..).unwrap_or_default()));
    match asked {
        Err(error) if matches!(error.errno(), Some(Errno::EOPNOTSUPP | Errno::ENOENT)) => Ok(false),
        other => other.map(|()| true),
    }
}
