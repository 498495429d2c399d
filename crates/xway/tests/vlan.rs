//! VLAN tags on a real wire: taken off, changed and dropped by before the host's stack sees them.

mod common;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use common::wire::{Bench, RIGHT, ready};
use common::{Dir, capture, packet, sample};

const PORT: u16 = 4011;

/// A datagram to the right host, in these VLANs; the stack there takes only what has no tag.
fn datagram(vlans: &str, text: &str) -> Vec<u8> {
    packet(&format!(
        r#"{{"eth":{{"dst":"ff:ff:ff:ff:ff:ff"}},{vlans}"ipv4":{{"src":"10.9.1.1","dst":"{RIGHT}"}},
            "udp":{{"sport":5000,"dport":{PORT}}},"payload":"{text}"}}"#
    ))
}

#[test]
fn tags_are_gone_before_the_stack_sees_a_packet() {
    if !ready("vlan::tags_are_gone_before_the_stack_sees_a_packet") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("vlan", true));
    let object = sample(&dir, "vlan");
    // The last one has no tag and always arrives, so what came before it has arrived or never will.
    let packets =
        [datagram(r#""vlan":4011,"#, "one tag"), datagram(r#""vlan":[4011,7],"#, "two tags"), datagram("", "no tag")];
    capture(&dir.path("tagged.pcap"), &packets);
    let server =
        bench.right.enter(|| UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)))).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let arrive = || -> Vec<String> {
        let send = ["trafficgen", "packet:l0", "--pcap", &dir.arg("tagged.pcap"), "-n", "3"];
        let sent = bench.left.command(env!("CARGO_BIN_EXE_xway")).args(send).output().unwrap();
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
        let (mut all, mut buffer) = (Vec::new(), [0; 2000]);
        while all.last().is_none_or(|text| text != "no tag") {
            let len = xway_testkit::traffic::patient(|| server.recv(&mut buffer)).unwrap();
            all.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
        }
        all
    };
    assert_eq!(arrive(), ["no tag"], "the host has no such VLAN");
    for mode in ["native", "generic"] {
        for (program, expected) in [
            ("vlan_pop_copy", &["one tag", "no tag"][..]),
            ("vlan_pop_words", &["one tag", "no tag"]),
            ("vlan_drop", &["no tag"]),
            ("vlan_change", &["no tag"]),
        ] {
            bench.xway(&["load", "r0", &object, "-n", program, "-m", mode]).exits(0);
            assert_eq!(arrive(), expected, "{program}, {mode}");
            bench.xway(&["unload", "r0", "-a"]).exits(0);
        }
    }
    // Two programs in a chain: each takes one tag.
    for (priority, program) in [("10", "vlan_pop_copy"), ("20", "vlan_pop_words")] {
        bench.xway(&["load", "r0", &object, "-n", program, "-m", "native", "-P", priority]).exits(0);
    }
    assert_eq!(arrive(), ["one tag", "two tags", "no tag"]);
    bench.xway(&["unload", "r0", "-a"]).exits(0);
}
