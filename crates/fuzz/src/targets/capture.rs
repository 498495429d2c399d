//! Bytes as a capture.

use std::io::Cursor;

use xway_port_pcap::CaptureReader;

/// More packets than any input here can hold: a reader that hands out more makes them up.
const PACKETS_MAX: usize = 1 << 20;

pub fn run(data: &[u8]) {
    let bytes = Box::new(Cursor::new(data.to_vec()));
    let Ok(mut reader) = CaptureReader::new("input".to_owned(), bytes) else { return };
    let mut packets = 0;
    while let Ok(Some(())) = reader.next_with(|_| ()) {
        packets += 1;
        assert!(packets < PACKETS_MAX, "{packets} packets out of {} bytes", data.len());
    }
    assert!(reader.offset() <= data.len() as u64, "read beyond the end");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut out = vec![pcap(0xa1b2_c3d4, false), pcap(0xa1b2_3c4d, true)];
    if let Ok(demo) = std::fs::read(xway_testkit::clang::repository().join("bpf/demo/mixed.pcapng")) {
        // The first blocks show the reader everything that it meets later.
        out.push(demo[..demo.len().min(8192)].to_vec());
    }
    out
}

/// A pcap of three packets in either byte order.
fn pcap(magic: u32, big: bool) -> Vec<u8> {
    let word = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let mut out = word(magic).to_vec();
    let version = if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
    out.extend(version);
    for field in [0, 0, 65535, 1] {
        out.extend(word(field));
    }
    for (n, len) in [60u32, 0, 64].into_iter().enumerate() {
        for field in [1000 + n as u32, 5, len, len] {
            out.extend(word(field));
        }
        out.extend(vec![n as u8; len as usize]);
    }
    out
}
