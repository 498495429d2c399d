//! How an interface is opened.

use crate::error::OpenError;
use crate::ring::SLOT_OVERHEAD;

/// How an interface is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketConfig {
    /// Name of the interface.
    pub interface: String,
    /// Queues, 1 to [`PacketConfig::QUEUES_MAX`]: each is a socket with a ring of its own, and the kernel spreads packets over them.
    pub queues: u32,
    /// How it spreads them; nothing is asked of it for one queue.
    pub fanout: Fanout,
    /// How packets lie in a ring.
    pub layout: Layout,
    /// Packets of [`PacketConfig::packet_max`] bytes that the kernel may hold for a queue: a power of two from 64 to 65536.
    pub slots: u32,
    /// Longest packet to receive, in bytes; longer ones are counted. The pool's capacity is the right value.
    pub packet_max: u32,
    /// Receive also what is addressed to others. XDP does not ask for that, so it is off unless wanted.
    pub promiscuous: bool,
    /// Send past the interface's queueing discipline, as XDP does. Off, the discipline shapes and may drop what is sent.
    pub qdisc_bypass: bool,
}

impl PacketConfig {
    /// Most queues: the kernel's limit for members of a group that asks for no more.
    pub const QUEUES_MAX: u32 = 256;

    /// One queue of 4096 slots for packets of 3520 bytes (what a 4 KiB frame holds).
    pub fn new(interface: impl Into<String>) -> PacketConfig {
        PacketConfig {
            interface: interface.into(),
            queues: 1,
            fanout: Fanout::default(),
            layout: Layout::default(),
            slots: 4096,
            packet_max: 3520,
            promiscuous: false,
            qdisc_bypass: true,
        }
    }

    /// Number and size of the ring's slots.
    pub(crate) fn shape(&self) -> Result<(u32, u32), OpenError> {
        let refuse = |why| Err(OpenError::Ring { slots: self.slots, packet_max: self.packet_max, why });
        if !self.slots.is_power_of_two() || !(64..=65536).contains(&self.slots) {
            return refuse("the number of slots must be a power of two from 64 to 65536");
        }
        if !(64..=65536).contains(&self.packet_max) {
            return refuse("packets must be 64 to 65536 bytes long");
        }
        let slot_size = (self.packet_max + SLOT_OVERHEAD).next_power_of_two();
        if u64::from(self.slots) * u64::from(slot_size) > 1 << 30 {
            return refuse("that is more than 1 GiB");
        }
        Ok((self.slots, slot_size))
    }
}

/// How the kernel spreads packets over queues (`PACKET_FANOUT` of `packet(7)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fanout {
    /// By flow: addresses, protocol and ports, the same for both directions. A flow stays on its queue and in order.
    #[default]
    Hash,
    /// In turn. The packets of a flow go to all queues.
    Lb,
    /// By the CPU that received the packet.
    Cpu,
    /// To the first queue until its ring is full, then to the next.
    Rollover,
    /// At random.
    Rnd,
    /// By the queue of the card that received the packet.
    Qm,
}

impl Fanout {
    /// All of them, with their names in options: those of `packet(7)`.
    pub const ALL: [(&'static str, Fanout); 6] = [
        ("hash", Fanout::Hash),
        ("lb", Fanout::Lb),
        ("cpu", Fanout::Cpu),
        ("rollover", Fanout::Rollover),
        ("rnd", Fanout::Rnd),
        ("qm", Fanout::Qm),
    ];

    /// The kernel's number.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Fanout::Hash => libc::PACKET_FANOUT_HASH,
            Fanout::Lb => libc::PACKET_FANOUT_LB,
            Fanout::Cpu => libc::PACKET_FANOUT_CPU,
            Fanout::Rollover => libc::PACKET_FANOUT_ROLLOVER,
            Fanout::Rnd => libc::PACKET_FANOUT_RND,
            Fanout::Qm => libc::PACKET_FANOUT_QM,
        }
    }
}

/// How packets lie in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// One in each slot (`TPACKET_V2`): each packet is there at once.
    #[default]
    Slots,
    /// Many in a block (`TPACKET_V3`): they are there when their block is full or a millisecond old. Less CPU for each, and a short
    /// packet takes little room.
    Blocks,
}

impl Layout {
    /// Both, with their names in options.
    pub const ALL: [(&'static str, Layout); 2] = [("slots", Layout::Slots), ("blocks", Layout::Blocks)];
}
