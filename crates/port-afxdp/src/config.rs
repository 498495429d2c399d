//! How an interface is opened.

use std::path::PathBuf;

use xway_kernel::XdpMode;

/// Whether packets may be copied between the driver's memory and ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copying {
    /// Not where the driver can do without.
    #[default]
    Auto,
    /// Always.
    Copy,
    /// Never: the queue is refused where the driver cannot do without.
    ZeroCopy,
}

impl Copying {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Copying::Auto => "auto",
            Copying::Copy => "copy",
            Copying::ZeroCopy => "zero-copy",
        }
    }
}

/// How an interface is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AfXdpConfig {
    /// Name of the interface.
    pub interface: String,
    /// First queue, and how many; `None` for all.
    pub queues: Option<(u32, u32)>,
    /// Where the redirect program runs. [`XdpMode::Any`]: native where the driver can, generic where not.
    pub mode: XdpMode,
    /// Whether packets may be copied.
    pub copying: Copying,
    /// Let the kernel say when it wants to be called (`XDP_USE_NEED_WAKEUP`).
    pub need_wakeup: bool,
    /// Work of the driver is done in our calls, at most so many packets in each (`SO_PREFER_BUSY_POLL`,
    /// `SO_BUSY_POLL_BUDGET`); `None` leaves it to interrupts.
    pub busy_poll: Option<u16>,
    /// Entries of each ring: a power of two from 64 to 32768.
    pub entries: u32,
    /// Packets that are longer than a chunk come and go in several buffers (`XDP_USE_SG`, Linux 6.6): the redirect program is one for
    /// such packets, which the interface's driver must know, and programs here must be made for them.
    pub frags: bool,
    /// Also on an interface that is down, where nothing comes or goes until it is up.
    pub even_down: bool,
    /// A pinned XSKMAP that somebody else's program redirects to: sockets are put in there, and no program is loaded.
    pub map: Option<PathBuf>,
}

impl AfXdpConfig {
    /// Bounds of [`AfXdpConfig::entries`].
    pub const ENTRIES: std::ops::RangeInclusive<u32> = 64..=32768;

    /// All queues, native and without copies where that can be had, rings of 2048.
    pub fn new(interface: impl Into<String>) -> AfXdpConfig {
        AfXdpConfig {
            interface: interface.into(),
            queues: None,
            mode: XdpMode::Any,
            copying: Copying::Auto,
            need_wakeup: true,
            busy_poll: None,
            entries: 2048,
            frags: false,
            even_down: false,
            map: None,
        }
    }
}
