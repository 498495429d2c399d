//! Network interfaces as XDP sees them: what is attached, what the driver can do, attaching over netlink.
//!
//! An attachment made here belongs to the interface, not to a descriptor: it stays until it is taken away or the interface
//! goes. [`crate::XdpLink`] is the other way. Sources: `linux/if_link.h`, `linux/netdev.h`.

use std::os::fd::{AsRawFd, BorrowedFd};

use xway_abi::Errno;

use crate::netlink::{F_DUMP, NLA_F_NESTED, Protocol, Socket, attribute, attributes, word};
use crate::{KernelError, KernelProg, XdpMode};

const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
const IFLA_XDP_ATTACHED: u16 = 2;
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
const XDP_FLAGS_REPLACE: u32 = 1 << 4;
/// `struct ifinfomsg`, bytes.
const IFINFO: usize = 16;

/// What is attached to an interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Device {
    /// Number.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Driver's kind for virtual interfaces (`veth`, `bridge`), empty otherwise.
    pub kind: String,
    /// The interface that this one leads to (the other end of a veth), when it lies in the same namespace.
    pub peer: Option<u32>,
    /// Its number there, when it lies in another namespace.
    pub peer_elsewhere: Option<u32>,
    /// The number by which this namespace knows that other one ([`namespace_number`]).
    pub peer_space: Option<u32>,
    /// Hardware address, where it has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// Largest packet without its Ethernet header, bytes.
    pub mtu: u32,
    /// Receive queues.
    pub rx_queues: u32,
    /// Transmit queues.
    pub tx_queues: u32,
    /// Up, by its administrator.
    pub up: bool,
    /// Program in the driver.
    pub native: Option<u32>,
    /// Program behind the driver.
    pub generic: Option<u32>,
    /// Program in the device itself.
    pub offloaded: Option<u32>,
}

impl Device {
    /// Attached programs with their modes, first the one that sees packets first.
    pub fn attached(&self) -> impl Iterator<Item = (XdpMode, u32)> {
        let all =
            [(XdpMode::Offload, self.offloaded), (XdpMode::Native, self.native), (XdpMode::Generic, self.generic)];
        all.into_iter().filter_map(|(mode, id)| Some((mode, id?)))
    }
}

/// All interfaces of the calling thread's network namespace, by number.
pub fn devices() -> Result<Vec<Device>, KernelError> {
    let mut found = Vec::new();
    Socket::open(Protocol::Route)?.request(RTM_GETLINK, F_DUMP, &[0; IFINFO], "listing interfaces", |body| {
        found.extend(device(body));
    })?;
    found.sort_by_key(|d| d.ifindex);
    Ok(found)
}

/// The number by which the calling thread's network namespace knows another one, of which this is the file (`/run/netns/NAME`,
/// `/proc/PID/ns/net`); `None`: it does not know it.
pub fn namespace_number(space: BorrowedFd<'_>) -> Result<Option<u32>, KernelError> {
    const RTM_GETNSID: u16 = 90;
    const NETNSA_NSID: u16 = 1;
    const NETNSA_FD: u16 = 3;
    // `struct rtgenmsg`, padded.
    let mut body = vec![0; 4];
    attribute(&mut body, NETNSA_FD, &space.as_raw_fd().to_ne_bytes());
    let mut found = None;
    Socket::open(Protocol::Route)?.request(RTM_GETNSID, 0, &body, "asking for a namespace's number", |answer| {
        let number = attributes(answer.get(4..).unwrap_or_default()).find(|(kind, _)| *kind == NETNSA_NSID);
        found = number.and_then(|(_, value)| word(value, 0));
    })?;
    // NETNSA_NSID_NOT_ASSIGNED is -1.
    Ok(found.filter(|number| *number != u32::MAX))
}

/// One interface. Error: `ENODEV`.
pub fn device_by_name(name: &str) -> Result<Device, KernelError> {
    let mut body = vec![0; IFINFO];
    let text = [name.as_bytes(), &[0]].concat();
    // Longer names than the kernel knows would be refused as malformed, not as unknown.
    if text.len() > 16 {
        return Err(KernelError::Call { step: "looking for the interface", errno: Errno::ENODEV });
    }
    attribute(&mut body, IFLA_IFNAME, &text);
    let mut found = None;
    Socket::open(Protocol::Route)?
        .request(RTM_GETLINK, 0, &body, "looking for the interface", |answer| found = device(answer))?;
    found.ok_or(KernelError::Call { step: "looking for the interface", errno: Errno::ENODEV })
}

fn device(body: &[u8]) -> Option<Device> {
    let text = |value: &[u8]| {
        let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
        String::from_utf8_lossy(&value[..end]).into_owned()
    };
    let number = |value: &[u8]| word(value, 0).unwrap_or(0);
    let mut device = Device { ifindex: word(body, 4)?, up: word(body, 8)? & 1 != 0, ..Device::default() };
    let mut elsewhere = false;
    for (kind, value) in attributes(body.get(IFINFO..)?) {
        match kind {
            IFLA_LINK => device.peer = word(value, 0),
            IFLA_LINK_NETNSID => {
                elsewhere = true;
                device.peer_space = word(value, 0);
            }
            IFLA_ADDRESS => device.mac = value.try_into().ok(),
            IFLA_IFNAME => device.name = text(value),
            IFLA_MTU => device.mtu = number(value),
            IFLA_NUM_RX_QUEUES => device.rx_queues = number(value),
            IFLA_NUM_TX_QUEUES => device.tx_queues = number(value),
            IFLA_LINKINFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                device.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
            }
            IFLA_XDP => programs(&mut device, value),
            _ => {}
        }
    }
    if elsewhere {
        device.peer_elsewhere = device.peer.take();
    }
    Some(device)
}

fn programs(device: &mut Device, nested: &[u8]) {
    let (mut mode, mut id) = (0, None);
    for (kind, value) in attributes(nested) {
        let number = word(value, 0).filter(|id| *id != 0);
        match kind {
            IFLA_XDP_ATTACHED => mode = value.first().copied().unwrap_or(0),
            IFLA_XDP_PROG_ID => id = number,
            IFLA_XDP_DRV_PROG_ID => device.native = number,
            IFLA_XDP_SKB_PROG_ID => device.generic = number,
            IFLA_XDP_HW_PROG_ID => device.offloaded = number,
            _ => {}
        }
    }
    // Kernels before 4.19 give one id and the mode.
    match mode {
        1 => device.native = device.native.or(id),
        2 => device.generic = device.generic.or(id),
        3 => device.offloaded = device.offloaded.or(id),
        _ => {}
    }
}

/// Names of the fields of `struct rtnl_link_stats64`, in its order.
const COUNTERS: [&str; 10] = [
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
];

/// What an interface has counted, by the names of `struct rtnl_link_stats64`. Error: `ENODEV`.
pub fn device_counters(ifindex: u32) -> Result<Vec<(String, u64)>, KernelError> {
    let mut body = vec![0; IFINFO];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let mut found = Vec::new();
    Socket::open(Protocol::Route)?.request(RTM_GETLINK, 0, &body, "reading an interface's counters", |answer| {
        let all = attributes(answer.get(IFINFO..).unwrap_or_default());
        for (_, value) in all.filter(|(kind, _)| *kind == IFLA_STATS64) {
            let numbers = value.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b));
            found = COUNTERS.iter().map(|n| (*n).to_owned()).zip(numbers).collect();
        }
    })?;
    Ok(found)
}

/// What must be there for an attachment to be changed.
#[derive(Clone, Copy, Debug)]
pub enum Expect<'a> {
    /// Whatever is there is replaced.
    Anything,
    /// Nothing may be attached in this mode (`XDP_FLAGS_UPDATE_IF_NOEXIST`): else `EBUSY`.
    Nothing,
    /// This program, and no other (`XDP_FLAGS_REPLACE`): else `EEXIST`.
    Program(&'a KernelProg),
}

/// Attaches a program to an interface, or takes one away (`None`), over netlink.
///
/// Errors carry the kernel's own words where it has any: `EOPNOTSUPP` without a native hook, `EBUSY` and `EEXIST` as
/// [`Expect`] says, `EINVAL` or `ERANGE` when MTU or offloads are in the way, `EPERM`.
pub fn set_xdp(
    ifindex: u32,
    program: Option<&KernelProg>,
    mode: XdpMode,
    expect: Expect<'_>,
) -> Result<(), KernelError> {
    let mut flags = mode.flags();
    let descriptor = |p: &KernelProg| -> i32 {
        let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(p);
        fd.as_raw_fd()
    };
    let mut nested = Vec::new();
    attribute(&mut nested, IFLA_XDP_FD, &program.map_or(-1, descriptor).to_ne_bytes());
    match expect {
        Expect::Anything => {}
        Expect::Nothing => flags |= XDP_FLAGS_UPDATE_IF_NOEXIST,
        Expect::Program(old) => {
            flags |= XDP_FLAGS_REPLACE;
            attribute(&mut nested, IFLA_XDP_EXPECTED_FD, &descriptor(old).to_ne_bytes());
        }
    }
    attribute(&mut nested, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
    let mut body = vec![0; IFINFO];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    attribute(&mut body, IFLA_XDP | NLA_F_NESTED, &nested);
    let step = if program.is_some() { "attaching to the interface" } else { "detaching from the interface" };
    Socket::open(Protocol::Route)?.request(RTM_SETLINK, 0, &body, step, |_| {})
}

/// What an interface's driver can do, as it says itself (`netdev` family, Linux 6.3 and later).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverFeatures {
    /// Bits of `enum netdev_xdp_act`.
    pub xdp: u64,
    /// Buffers that one frame may have in zero-copy mode.
    pub zero_copy_segments: u32,
    /// Bits of `enum netdev_xdp_rx_metadata`.
    pub rx_metadata: u64,
    /// Bits of `enum netdev_xsk_flags`.
    pub xsk: u64,
}

/// Names of the bits of `enum netdev_xdp_act`, in their order.
pub const XDP_FEATURES: [&str; 7] =
    ["basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg"];
/// Names of the bits of `enum netdev_xdp_rx_metadata`, in their order.
pub const RX_METADATA: [&str; 3] = ["timestamp", "hash", "vlan-tag"];
/// Names of the bits of `enum netdev_xsk_flags`, in their order.
pub const XSK_FEATURES: [&str; 3] = ["tx-timestamp", "tx-checksum", "tx-launch-time-fifo"];

/// Asks the driver of an interface. `None`: the running kernel has no such query.
pub fn driver_features(ifindex: u32) -> Result<Option<DriverFeatures>, KernelError> {
    const STEP: &str = "asking the driver for its features";
    let mut socket = Socket::open(Protocol::Generic)?;
    let Some(family) = socket.family("netdev", STEP)? else { return Ok(None) };
    let mut body = vec![1, 1, 0, 0]; // NETDEV_CMD_DEV_GET, version 1.
    attribute(&mut body, 1, &ifindex.to_ne_bytes());
    let mut features = DriverFeatures::default();
    socket.request(family, 0, &body, STEP, |answer| {
        for (kind, value) in attributes(answer.get(4..).unwrap_or_default()) {
            let number = match value.len() {
                8.. => value.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b)),
                _ => word(value, 0).unwrap_or(0).into(),
            };
            match kind {
                3 => features.xdp = number,
                4 => features.zero_copy_segments = number as u32,
                5 => features.rx_metadata = number,
                6 => features.xsk = number,
                _ => {}
            }
        }
    })?;
    Ok(Some(features))
}

/// The names of the bits that are set; a bit without a name is its number.
pub fn bit_names(bits: u64, names: &[&str]) -> Vec<String> {
    let name = |bit: usize| names.get(bit).map_or_else(|| format!("bit-{bit}"), |n| (*n).to_owned());
    (0..64).filter(|bit| bits >> bit & 1 != 0).map(name).collect()
}
