//! What a port's page says that it can do is what it says itself. `XWAY_BLESS=1` writes it anew.

use std::fmt::Write;

use xway_engine::{Capabilities, MemoryModel, Port, Support};
use xway_port_afxdp::AfXdpDevice;
use xway_port_packet::PacketPort;
use xway_port_pcap::{CaptureWriter, PcapPort};
use xway_port_sim::SimPort;
use xway_port_tap::TapPort;

const START: &str = "<!-- made by crates/port-wrap/tests/pages.rs: XWAY_BLESS=1 -->\n";
const END: &str = "<!-- end -->\n";

fn table(caps: &Capabilities) -> String {
    let support = |support: Support| match support {
        Support::Full => "yes",
        Support::CopyOnly => "on its own copy; another goes its way",
        Support::None => "no: dropped and counted",
    };
    let yes = |on: bool| if on { "yes" } else { "no" };
    let room = |bytes: u32| if bytes == u32::MAX { "what the pool gives".to_owned() } else { format!("{bytes} bytes") };
    let memory = match caps.memory {
        MemoryModel::Copy => "packets are copied into frames",
        MemoryModel::Shared => "packets lie in the pool's frames from the start",
    };
    let rows = [
        ("DROP, ABORTED", support(caps.drop).to_owned()),
        ("PASS", support(caps.pass).to_owned()),
        ("TX", support(caps.tx).to_owned()),
        ("REDIRECT from it", support(caps.redirect_from).to_owned()),
        ("REDIRECT to it", support(caps.redirect_to).to_owned()),
        ("room in front of a packet", room(caps.headroom)),
        ("room behind it", room(caps.tailroom)),
        ("metadata area (`bpf_xdp_adjust_meta`)", yes(caps.metadata).to_owned()),
        ("receive hash", yes(caps.rx_hash).to_owned()),
        ("receive timestamp", yes(caps.rx_timestamp).to_owned()),
        ("VLAN tag beside the packet", yes(caps.rx_vlan).to_owned()),
        ("packets of several buffers received, without being told to", yes(caps.multi_buffer).to_owned()),
        ("packets of several buffers sent", yes(caps.multi_buffer_tx).to_owned()),
        ("without a copy", yes(caps.zero_copy).to_owned()),
        ("memory", memory.to_owned()),
    ];
    let mut text = "| it can | |\n|---|---|\n".to_owned();
    for (what, says) in rows {
        writeln!(text, "| {what} | {says} |").unwrap();
    }
    text
}

fn check(page: &str, caps: &Capabilities) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ports").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(START).unwrap_or_else(|| panic!("{page}: no line {START}"));
    let (there, after) = rest.split_once(END).unwrap_or_else(|| panic!("{page}: no line {END}"));
    let wanted = table(caps);
    if there == wanted {
        return;
    }
    assert!(
        std::env::var_os("XWAY_BLESS").is_some(),
        "{page} is not what the port says; write it anew with XWAY_BLESS=1"
    );
    std::fs::write(path, [before, START, &wanted, END, after].concat()).unwrap();
}

#[test]
fn pages_say_what_ports_say() {
    check("sim.md", &SimPort::offers());
    check("packet.md", &PacketPort::offers());
    check("tap.md", &TapPort::offers());
    check("afxdp.md", &AfXdpDevice::offers(false));
    let path = std::env::temp_dir().join(format!("xway-page-{}.pcap", std::process::id()));
    CaptureWriter::create(&path, &["x"]).unwrap().finish().unwrap();
    let port = PcapPort::open(&path, 0);
    std::fs::remove_file(&path).unwrap();
    check("pcap.md", &port.unwrap().capabilities());
}
