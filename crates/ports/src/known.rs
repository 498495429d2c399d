//! The options of each kind of port: what the pages in docs/ports say of them is made from these lists, and a test holds them against
//! what is read.

/// One option: what stands behind the `?` of a port's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortOption {
    /// Its name.
    pub key: &'static str,
    /// What may stand behind `=`: words, or in capitals what is to be put in.
    pub values: &'static str,
    /// What it is when nothing is said, as it could be said; `None` where that has no word.
    pub default: Option<&'static str>,
    /// What it does, and what nothing means where that has no word.
    pub what: &'static str,
}

const fn option(
    key: &'static str,
    values: &'static str,
    default: Option<&'static str>,
    what: &'static str,
) -> PortOption {
    PortOption { key, values, default, what }
}

/// Kinds of ports that have options, and which.
pub const OPTIONS: [(&str, &[PortOption]); 5] =
    [("afxdp", AFXDP), ("packet", PACKET), ("pcap", PCAP), ("sim", SIM), ("tap", TAP)];

const FRAGS: PortOption = option(
    "frags",
    "yes, no",
    Some("no"),
    "packets that are longer than a frame come in several buffers; the program must be made for that (`SEC(\"xdp.frags\")`). Without it \
     they are counted as `oversize`",
);

const AFXDP: &[PortOption] = &[
    option("queues", "N, A-B", None, "the first N queues, or these; all when nothing is said"),
    option(
        "mode",
        "auto, native, generic",
        Some("auto"),
        "where the redirect program runs; `auto` takes native where the driver can",
    ),
    option(
        "copy",
        "auto, no, yes",
        Some("auto"),
        "`auto` does without copies where the driver can; `no` refuses the queue where it cannot",
    ),
    option(
        "wakeup",
        "yes, no",
        Some("yes"),
        "whether the kernel says when it wants to be called (`XDP_USE_NEED_WAKEUP`)",
    ),
    option(
        "busy-poll",
        "N",
        None,
        "the driver's work is done in our calls, at most N packets in each; off when nothing is said",
    ),
    option("ring", "N", Some("2048"), "entries of each ring, 64 to 32768, a power of two"),
    option(
        "map",
        "PATH",
        None,
        "a pinned XSKMAP of somebody else's program: sockets are put in there and no program is loaded. When nothing is said the program is ours",
    ),
    option(
        "frags",
        "yes, no",
        Some("no"),
        "packets that are longer than a frame come and go in several buffers; the program must be made for that (`SEC(\"xdp.frags\")`)",
    ),
];

const PACKET: &[PortOption] = &[
    option(
        "queues",
        "N",
        Some("1"),
        "1 to 256 queues: each is a socket with a ring of its own. The kernel gives each packet to one of them (`PACKET_FANOUT`), so none is \
         lost for that and none comes twice",
    ),
    option(
        "fanout",
        "hash, lb, cpu, rollover, rnd, qm",
        Some("hash"),
        "how it chooses, where there are several: by flow, the same queue for both directions, and a flow stays in order (`hash`); in turn \
         (`lb`); by the CPU that received the packet (`cpu`); the first queue until its ring is full, then the next (`rollover`); at random \
         (`rnd`); by the queue of the card (`qm`)",
    ),
    option(
        "ring",
        "slots, blocks",
        Some("slots"),
        "one packet in each slot (`TPACKET_V2`), to be had at once; or many in a block (`TPACKET_V3`), to be had when it is full or a \
         millisecond old: less CPU for each packet, and each waits",
    ),
    option("promisc", "yes, no", Some("no"), "receive what is addressed to others, too"),
    option(
        "qdisc",
        "bypass, use",
        Some("bypass"),
        "what is sent goes past the interface's queueing discipline, as XDP does it, or through it",
    ),
];

const PCAP: &[PortOption] = &[
    option("loop", "N", Some("1"), "so many times, 0 without end; not for standard input"),
    option(
        "speed",
        "X",
        None,
        "packets come when their timestamps say, X times as fast (0.001 to 10⁹); as fast as they are taken when nothing is said",
    ),
    FRAGS,
];

const SIM: &[PortOption] = &[
    option(
        "flows",
        "N",
        Some("1"),
        "UDP flows, 1 to 4,194,304; flow n comes from 10.0.0.0 + n, port 1024 + n mod 32768, and goes to 192.168.0.1, port 9",
    ),
    option("size", "BYTES", Some("64"), "of a packet with its Ethernet header, 60 to 65,535"),
    option(
        "pattern",
        "scan, uniform, zipf",
        Some("scan"),
        "one flow after the other; at random; the n-th flow 1/n as often as the first",
    ),
    option("count", "N", None, "packets; without end when nothing is said"),
    option("queues", "N", Some("1"), "1 to 1,024 queues, each with the same traffic; more than one in a service only"),
    option(
        "frags",
        "yes, no",
        Some("no"),
        "what is longer than a frame comes in several buffers, up to 73,152 bytes; the program must be made for that \
         (`SEC(\"xdp.frags\")`). Without it such a packet is cut and counted",
    ),
];

const TAP: &[PortOption] = &[
    option("queues", "N", Some("1"), "1 to 256 queues of one interface; the host spreads its flows over them"),
    option(
        "offload",
        "none, csum, tso",
        Some("csum"),
        "what the host may leave to us: nothing, it computes checksums and cuts packets; checksums; also cutting TCP, which comes in pieces \
         of up to 64 KiB: fewer system calls for bulk traffic",
    ),
    FRAGS,
];
