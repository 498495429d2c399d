//! What a port can do, verdict by verdict and feature by feature.

use xway_abi::Verdict;

/// Whether a verdict works on a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    /// As on a Linux driver.
    Full,
    /// On the port's own copy of the packet only: another copy goes its way whatever the program says.
    CopyOnly,
    /// Not at all; the frame is dropped and counted.
    None,
}

/// Whose memory the frames are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryModel {
    /// Packets are copied into frames of the engine's pool.
    Copy,
    /// The device writes into the pool's memory.
    Shared,
}

/// What a port can do. A program's needs are compared with this before it is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// DROP and ABORTED.
    pub drop: Support,
    /// PASS.
    pub pass: Support,
    /// TX.
    pub tx: Support,
    /// REDIRECT of a frame that came in here.
    pub redirect_from: Support,
    /// REDIRECT of a frame of any port to this one.
    pub redirect_to: Support,
    /// Bytes in front of a received packet; `u32::MAX` for whatever the pool gives.
    pub headroom: u32,
    /// Bytes behind a received packet; `u32::MAX` for whatever the pool gives.
    pub tailroom: u32,
    /// Metadata area in front of the packet (`bpf_xdp_adjust_meta`).
    pub metadata: bool,
    /// Receive hash.
    pub rx_hash: bool,
    /// Receive time stamp.
    pub rx_timestamp: bool,
    /// VLAN tags that the device takes out are told.
    pub rx_vlan: bool,
    /// Frames of several buffers.
    pub multi_buffer: bool,
    /// Packets reach programs without a copy.
    pub zero_copy: bool,
    /// Whose memory the frames are.
    pub memory: MemoryModel,
}

impl Capabilities {
    /// A port that copies packets into pool frames and can do nothing with them but drop.
    pub const fn copying() -> Capabilities {
        Capabilities {
            drop: Support::Full,
            pass: Support::None,
            tx: Support::None,
            redirect_from: Support::Full,
            redirect_to: Support::None,
            headroom: u32::MAX,
            tailroom: u32::MAX,
            metadata: true,
            rx_hash: false,
            rx_timestamp: false,
            rx_vlan: false,
            multi_buffer: false,
            zero_copy: false,
            memory: MemoryModel::Copy,
        }
    }

    /// Whether a verdict works for frames that came in here.
    pub const fn verdict(&self, verdict: Verdict) -> Support {
        match verdict {
            Verdict::Aborted | Verdict::Drop => self.drop,
            Verdict::Pass => self.pass,
            Verdict::Tx => self.tx,
            Verdict::Redirect => self.redirect_from,
        }
    }
}
