//! What a port's page says of its options is what is read, and what it says that the port can do is what the port says itself, with and
//! without the options that change it. `XWAY_BLESS=1` writes it anew.

use std::fmt::Write;

use xway_engine::{Capabilities, MemoryModel, Port, Support};
use xway_port_afxdp::AfXdpDevice;
use xway_port_packet::PacketPort;
use xway_port_pcap::{CaptureWriter, PcapPort};
use xway_port_sim::SimPort;
use xway_port_tap::TapPort;
use xway_ports::{OPTIONS, PortName};

/// Of a table in a page.
fn start(what: &str) -> String {
    format!("<!-- {what}: made by crates/ports/tests/pages.rs, XWAY_BLESS=1 -->\n")
}
const END: &str = "<!-- end -->\n";

/// A kind of port: what it can do when nothing is said, and when something is.
struct Kind {
    name: &'static str,
    plain: Capabilities,
    /// `with frags=yes`, and so on.
    others: Vec<(&'static str, Capabilities)>,
}

fn kinds() -> Vec<Kind> {
    const FRAGS: &str = "with `frags=yes`";
    let frags = |plain: Capabilities| vec![(FRAGS, Capabilities { multi_buffer: true, ..plain })];
    let path = std::env::temp_dir().join(format!("xway-page-{}.pcap", std::process::id()));
    CaptureWriter::create(&path, &["x"]).unwrap().finish().unwrap();
    let pcap = PcapPort::open(&path, 0).unwrap().capabilities();
    std::fs::remove_file(&path).unwrap();
    let afxdp = [("where the driver can", AfXdpDevice::offers(true, false)), (FRAGS, AfXdpDevice::offers(false, true))];
    let kind = |name, plain, others| Kind { name, plain, others };
    vec![
        kind("afxdp", AfXdpDevice::offers(false, false), afxdp.to_vec()),
        kind("packet", PacketPort::offers(), Vec::new()),
        kind("pcap", pcap, frags(pcap)),
        kind("sim", SimPort::offers(), frags(SimPort::offers())),
        kind("tap", TapPort::offers(), frags(TapPort::offers())),
    ]
}

/// Each thing that a port can or cannot do, in words.
fn rows(caps: &Capabilities) -> Vec<(&'static str, String)> {
    let support = |support: Support| match support {
        Support::Full => "yes",
        Support::CopyOnly => "on its own copy; another goes its way",
        Support::None => "no: dropped and counted",
    };
    let pass = match caps.pass {
        // What is chosen there is another port, or another layer around this one.
        Support::None => "it has no stack side of its own: where PASS goes is said below",
        other => support(other),
    };
    let yes = |on: bool| if on { "yes" } else { "no" };
    let room = |bytes: u32| if bytes == u32::MAX { "what the pool gives".to_owned() } else { format!("{bytes} bytes") };
    let memory = match caps.memory {
        MemoryModel::Copy => "packets are copied into frames",
        MemoryModel::Shared => "packets lie in the pool's frames from the start",
    };
    vec![
        ("DROP, ABORTED", support(caps.drop).to_owned()),
        ("PASS", pass.to_owned()),
        ("TX", support(caps.tx).to_owned()),
        ("REDIRECT from it", support(caps.redirect_from).to_owned()),
        ("REDIRECT to it", support(caps.redirect_to).to_owned()),
        ("room in front of a packet", room(caps.headroom)),
        ("room behind it", room(caps.tailroom)),
        ("metadata area (`bpf_xdp_adjust_meta`)", yes(caps.metadata).to_owned()),
        ("receive hash", yes(caps.rx_hash).to_owned()),
        ("receive timestamp", yes(caps.rx_timestamp).to_owned()),
        ("VLAN tag beside the packet", yes(caps.rx_vlan).to_owned()),
        ("packets of several buffers received", yes(caps.multi_buffer).to_owned()),
        ("packets of several buffers sent", yes(caps.multi_buffer_tx).to_owned()),
        ("without a copy between device and frames", yes(caps.zero_copy).to_owned()),
        ("memory", memory.to_owned()),
    ]
}

fn capabilities(kind: &Kind) -> String {
    let mut text = "| it can | |\n|---|---|\n".to_owned();
    let others: Vec<_> = kind.others.iter().map(|(when, caps)| (when, rows(caps))).collect();
    for (at, (what, mut says)) in rows(&kind.plain).into_iter().enumerate() {
        let differ: Vec<_> = others.iter().filter(|(_, rows)| rows[at].1 != says).collect();
        for (when, rows) in differ {
            write!(says, "; {} {when}", rows[at].1).unwrap();
        }
        writeln!(text, "| {what} | {says} |").unwrap();
    }
    text
}

fn options(kind: &str) -> String {
    let (_, options) = OPTIONS.iter().find(|(name, _)| *name == kind).unwrap();
    let mut text = "| option | values | default | meaning |\n|---|---|---|---|\n".to_owned();
    for option in *options {
        let values: Vec<_> = option.values.split(", ").map(|value| format!("`{value}`")).collect();
        let default = option.default.map(|word| format!("`{word}`")).unwrap_or_default();
        writeln!(text, "| `{}` | {} | {default} | {} |", option.key, values.join(", "), option.what).unwrap();
    }
    text
}

/// Whether the table stands in the page; puts it there when that is asked for.
fn check(kind: &str, what: &str, wanted: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ports").join(format!("{kind}.md"));
    let (text, start) = (std::fs::read_to_string(&path).unwrap(), start(what));
    let (before, rest) = text.split_once(&start).unwrap_or_else(|| panic!("{kind}.md: no line {start}"));
    let (there, after) = rest.split_once(END).unwrap_or_else(|| panic!("{kind}.md: no line {END}"));
    if there == wanted {
        return;
    }
    assert!(
        std::env::var_os("XWAY_BLESS").is_some(),
        "{kind}.md is not what the port says; write it anew with XWAY_BLESS=1"
    );
    std::fs::write(path, [before, &start, wanted, END, after].concat()).unwrap();
}

#[test]
fn pages_say_what_ports_say() {
    for kind in kinds() {
        check(kind.name, "options", &options(kind.name));
        check(kind.name, "what it can do", &capabilities(&kind));
    }
}

/// A name of each kind that takes options.
fn named(kind: &str) -> String {
    format!("{kind}:{}", if kind == "pcap" { "x.pcap" } else { "x" })
}

#[test]
fn the_listed_options_are_those_that_are_read() {
    for (kind, options) in OPTIONS {
        let refused = PortName::parse(&format!("{}?colour=red", named(kind))).unwrap_err();
        let hint = refused.hint.unwrap();
        let mut read: Vec<_> = hint.strip_prefix("options: ").unwrap().split(", ").collect();
        let mut listed: Vec<_> = options.iter().map(|option| option.key).collect();
        read.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, read, "{kind}");
    }
}

#[test]
fn a_default_that_is_said_changes_nothing_and_every_word_is_read() {
    for (kind, options) in OPTIONS {
        let name = named(kind);
        // Of captures only those that are played in another way than once have options.
        let plain = PortName::parse(&if kind == "pcap" { format!("{name}?loop=1") } else { name.clone() }).unwrap();
        for option in options {
            // What has a meaning among several only.
            let several = if option.key == "fanout" { "queues=2&" } else { "" };
            let parse = |value: &str| PortName::parse(&format!("{name}?{several}{}={value}", option.key));
            if let Some(default) = option.default {
                let plain = match several {
                    "" => plain.clone(),
                    _ => PortName::parse(&format!("{name}?queues=2")).unwrap(),
                };
                assert_eq!(parse(default).as_ref(), Ok(&plain), "{kind}: {}={default}", option.key);
            }
            for value in option.values.split(", ").filter(|value| value.chars().all(|c| c.is_ascii_lowercase())) {
                assert!(parse(value).is_ok(), "{kind}: {}={value}", option.key);
            }
        }
    }
}
