//! Kinds of ports, and what follows them.

use std::fmt;
use std::path::{Path, PathBuf};

use xway_engine::Profile;
use xway_kernel::XdpMode;
use xway_port_afxdp::{AfXdpConfig, Copying};
use xway_port_packet::{Fanout, Layout, PacketConfig};
use xway_port_tap::{Offload, TapConfig};

use crate::{NameError, Options, Played, Sim};

/// A port as it is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortName {
    /// A capture file; `-` is standard input.
    Capture(PathBuf),
    /// Capture files that are played in another way than once.
    Played(Played),
    /// Packets from memory.
    Sim(Sim),
    /// A network interface, through AF_PACKET.
    Packet(PacketConfig),
    /// A TAP device of this host.
    Tap(TapConfig),
    /// A network interface, through AF_XDP sockets.
    AfXdp(AfXdpConfig),
}

/// What others have, and who asks for it wants frames handed over without the host between: to a virtual machine, or a process.
const ELSEWHERE: [&str; 5] = ["vhost-user", "vhost", "memif", "dpdk", "netmap"];

/// Endings of capture files that may stand without `pcap:`.
const ENDINGS: [&str; 9] =
    [".pcap", ".pcapng", ".cap", ".pcap.gz", ".pcapng.gz", ".cap.gz", ".pcap.zst", ".pcapng.zst", ".cap.zst"];

impl PortName {
    /// Reads a port name.
    pub fn parse(text: &str) -> Result<PortName, NameError> {
        PortName::read(text, Path::exists)
    }

    /// The same by its words alone: no file is looked for, so that who asks does not learn which there are. A capture whose name has a
    /// comma or a `?` in it is taken for several, or for one with options.
    pub fn parse_words(text: &str) -> Result<PortName, NameError> {
        PortName::read(text, |_| false)
    }

    fn read(text: &str, there: impl Fn(&Path) -> bool) -> Result<PortName, NameError> {
        match text.split_once(':') {
            Some(("pcap", "")) => Err(NameError::new("pcap: names no file; pcap:- is standard input")),
            Some(("pcap", file)) => Ok(match Played::parse(text, file, there)? {
                Some(played) => PortName::Played(played),
                None => PortName::Capture(file.into()),
            }),
            Some(("sim", rest)) => Sim::parse(text, rest).map(PortName::Sim),
            Some(("packet", rest)) if rest.is_empty() || rest.starts_with('?') => {
                Err(NameError::new("packet: names no interface, as in packet:eth0"))
            }
            Some(("packet", rest)) => packet(text, rest).map(PortName::Packet),
            Some(("tap", "")) => Err(NameError::new("tap: names no interface, as in tap:xw0")),
            Some(("tap", rest)) => tap(text, rest).map(PortName::Tap),
            Some(("afxdp", "")) => Err(NameError::new("afxdp: names no interface, as in afxdp:eth0")),
            Some(("afxdp", rest)) => afxdp(text, rest).map(PortName::AfXdp),
            _ if text == "-" => Ok(PortName::Capture("-".into())),
            _ if ENDINGS.iter().any(|e| text.ends_with(e)) => Ok(PortName::Capture(text.into())),
            Some((kind, _)) if ELSEWHERE.contains(&kind) => Err(NameError::new(format!("there are no ports of the kind {kind}"))
                .hint("a virtual machine's own TAP is an interface of this host: afxdp:IFACE or packet:IFACE, which copy; another process \
                       gets frames without copies through sockets: xway run --xsk PATH, xway sock (docs/af-xdp.md)")),
            _ if text.split_once('?').is_some_and(|(file, _)| ENDINGS.iter().any(|e| file.ends_with(e))) => {
                Err(NameError::new(format!("{text:?} is no port: options are for names with a kind")).hint(format!("pcap:{text}")))
            }
            _ => Err(NameError::new(format!("{text:?} is no port"))
                .hint("pcap:FILE for a capture, afxdp:IFACE or packet:IFACE for an interface, tap:NAME for a TAP device, sim:NAME for \
                       packets from memory, pcap:- for standard input")),
        }
    }
}

impl PortName {
    /// The same port with no more memory for its rings than a profile has.
    pub fn within(self, profile: Profile) -> PortName {
        match self {
            PortName::AfXdp(config) => {
                let entries = config.entries.min(profile.ring_entries_max());
                PortName::AfXdp(AfXdpConfig { entries, ..config })
            }
            PortName::Packet(config) => {
                let slots = config.slots.min(profile.ring_entries_max());
                PortName::Packet(PacketConfig { slots, ..config })
            }
            other => other,
        }
    }
}

fn packet(text: &str, rest: &str) -> Result<PacketConfig, NameError> {
    let (name, mut options) = Options::split(text, rest);
    let mut config = PacketConfig::new(name);
    config.queues = options.number("queues", 1..=PacketConfig::QUEUES_MAX)?.unwrap_or(config.queues);
    let fanout = options.choice("fanout", &Fanout::ALL)?;
    if fanout.is_some() && config.queues == 1 {
        let hint = format!("{text}&queues=2");
        return Err(NameError::new(format!("{text}: fanout spreads packets over queues, and there is one")).hint(hint));
    }
    config.fanout = fanout.unwrap_or(config.fanout);
    config.layout = options.choice("ring", &Layout::ALL)?.unwrap_or(config.layout);
    config.promiscuous = options.yes("promisc")?;
    let bypass = options.choice("qdisc", &[("bypass", true), ("use", false)])?;
    config.qdisc_bypass = bypass.unwrap_or(config.qdisc_bypass);
    options.end()?;
    Ok(config)
}

fn tap(text: &str, rest: &str) -> Result<TapConfig, NameError> {
    let (name, mut options) = Options::split(text, rest);
    if let Some(why) = no_interface_name(name) {
        return Err(NameError::new(format!("{text}: no interface can have that name: {why}")));
    }
    let mut config = TapConfig::new(name);
    config.queues = options.number("queues", 1..=TapConfig::QUEUES_MAX)?.unwrap_or(config.queues);
    let words = [("none", Offload::None), ("csum", Offload::Checksum), ("tso", Offload::Segmentation)];
    config.offload = options.choice("offload", &words)?.unwrap_or(config.offload);
    config.frags = options.yes("frags")?;
    options.end()?;
    Ok(config)
}

/// Why Linux has no interface of this name (`dev_valid_name` in net/core/dev.c).
fn no_interface_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("it is empty"),
        "." | ".." => Some("it is a directory's"),
        _ if name.len() > 15 => Some("it has more than 15 bytes"),
        _ if name.contains(|c: char| c == '/' || c == ':' || c.is_ascii_whitespace() || c == '\x0b') => {
            Some("it has a slash, a colon or white space")
        }
        _ => None,
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortName::Capture(path) => write!(f, "pcap:{}", path.display()),
            PortName::Played(played) => played.fmt(f),
            PortName::Sim(sim) => sim.fmt(f),
            PortName::Packet(config) => write!(f, "packet:{}", config.interface),
            PortName::Tap(config) => write!(f, "tap:{}", config.name),
            PortName::AfXdp(config) => write!(f, "afxdp:{}", config.interface),
        }
    }
}

fn afxdp(text: &str, rest: &str) -> Result<AfXdpConfig, NameError> {
    let (name, mut options) = Options::split(text, rest);
    let mut config = AfXdpConfig::new(name);
    if let Some(value) = options.take("queues") {
        // `queues=4`: the first four. `queues=2-3`: these.
        let (first, last) = value.split_once('-').unwrap_or(("0", value));
        let range = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
        let range = range.map(|(first, last)| (first, if value.contains('-') { last.wrapping_add(1) } else { last }));
        let range = range.filter(|(first, end)| first < end).map(|(first, end)| (first, end - first));
        let wrong =
            || NameError::new(format!("{text}: queues={value} is neither a number of queues nor a range like 2-3"));
        config.queues = Some(range.ok_or_else(wrong)?);
    }
    let modes = [("auto", XdpMode::Any), ("native", XdpMode::Native), ("generic", XdpMode::Generic)];
    config.mode = options.choice("mode", &modes)?.unwrap_or(config.mode);
    let copying = [("auto", Copying::Auto), ("yes", Copying::Copy), ("no", Copying::ZeroCopy)];
    config.copying = options.choice("copy", &copying)?.unwrap_or(config.copying);
    config.need_wakeup = options.choice("wakeup", &[("yes", true), ("no", false)])?.unwrap_or(config.need_wakeup);
    config.busy_poll = options.number("busy-poll", 1..=u16::MAX)?;
    config.entries = options.number("ring", AfXdpConfig::ENTRIES)?.unwrap_or(config.entries);
    config.map = options.take("map").map(PathBuf::from);
    config.frags = options.yes("frags")?;
    options.end()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_mistakes() {
        let capture = |p: &str| PortName::Capture(p.into());
        assert_eq!(PortName::parse("pcap:x y"), Ok(capture("x y")));
        assert_eq!(PortName::parse("dir/x.pcapng.zst"), Ok(capture("dir/x.pcapng.zst")));
        assert_eq!(PortName::parse("-"), Ok(capture("-")));
        let bare = PortName::parse("dir/f.pcap?frags=yes").unwrap_err();
        assert!(bare.message.starts_with("\"dir/f.pcap?frags=yes\" is no port"), "{bare:?}");
        assert_eq!(bare.hint.as_deref(), Some("pcap:dir/f.pcap?frags=yes"));
        let elsewhere = PortName::parse("vhost-user:/tmp/vm.sock").unwrap_err();
        assert_eq!(elsewhere.message, "there are no ports of the kind vhost-user");
        assert!(elsewhere.hint.is_some_and(|hint| hint.contains("without copies") && hint.contains("--xsk")));
        assert_eq!(PortName::parse("packet:eth0"), Ok(PortName::Packet(PacketConfig::new("eth0"))));
        let packet = PacketConfig {
            queues: 2,
            fanout: Fanout::Cpu,
            layout: Layout::Blocks,
            promiscuous: true,
            qdisc_bypass: false,
            ..PacketConfig::new("eth0")
        };
        let text = "packet:eth0?queues=2&fanout=cpu&ring=blocks&promisc=yes&qdisc=use";
        assert_eq!(PortName::parse(text), Ok(PortName::Packet(packet)));
        assert_eq!(PortName::parse(text).map(|p| p.to_string()), Ok("packet:eth0".into()));
        let wrong = PortName::parse("packet:eth0?queues=2&fanout=all").unwrap_err();
        assert_eq!(
            wrong.message,
            "packet:eth0?queues=2&fanout=all: fanout=all is not one of hash, lb, cpu, rollover, rnd, qm"
        );
        let wrong = PortName::parse("packet:eth0?colour=red").unwrap_err();
        assert_eq!(wrong.hint.as_deref(), Some("options: queues, fanout, ring, promisc, qdisc"));
        assert_eq!(PortName::parse("pcap:-").map(|p| p.to_string()), Ok("pcap:-".into()));
        let tap = TapConfig { queues: 2, offload: Offload::Segmentation, ..TapConfig::new("xw0") };
        assert_eq!(PortName::parse("tap:xw0?queues=2&offload=tso"), Ok(PortName::Tap(tap)));
        let queues = |text| match PortName::parse(text) {
            Ok(PortName::AfXdp(config)) => config.queues,
            other => panic!("{other:?}"),
        };
        assert_eq!(queues("afxdp:eth0"), None);
        assert_eq!(queues("afxdp:eth0?queues=4&mode=native&copy=no&busy-poll=64"), Some((0, 4)));
        assert_eq!(queues("afxdp:eth0?queues=2-3"), Some((2, 2)));
        let played =
            Played { paths: vec!["a.pcap".into(), "b.pcap".into()], loops: 3, speed: Some(1500), frags: false };
        assert_eq!(PortName::parse("pcap:a.pcap,b.pcap?loop=3&speed=1.5"), Ok(PortName::Played(played)));
        assert_eq!(PortName::parse("sim:a?flows=9&pattern=zipf").map(|p| p.to_string()), Ok("sim:a".into()));
        for wrong in [
            "eth0",
            "pcap:",
            "packet:",
            "packet:?queues=2",
            "packet:e?queues=0",
            "packet:e?queues=257",
            "packet:e?fanout=lb",
            "packet:e?ring=round",
            "",
            "tap:",
            "tap:x?queues=0",
            "tap:x?color=red",
            "tap:x?offload=all",
            "afxdp:",
            "afxdp:e?queues=3-1",
            "afxdp:e?ring=9",
            "pcap:x?loop=a",
            "pcap:x?speed=0",
            "pcap:-?loop=2",
            "pcap:a,",
            "sim:",
            "sim:a?size=59",
            "sim:a?pattern=odd",
        ] {
            assert!(PortName::parse(wrong).is_err(), "{wrong}");
        }
    }
}
