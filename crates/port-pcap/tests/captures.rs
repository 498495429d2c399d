//! Captures in, captures out: formats, clocks, damage, and the field's own tools as judges.

use std::io::{Cursor, Read, Write};
use std::path::PathBuf;
use std::process::Command;

use xway_port_pcap::{CaptureError, CaptureReader, CaptureWriter, Written};

/// A packet as a test sees it.
type Seen = (Vec<u8>, u32, Option<u64>, u64);

fn read_all(bytes: &[u8]) -> (Vec<Seen>, Option<CaptureError>) {
    read_from(Box::new(Cursor::new(bytes.to_vec())))
}

fn read_from(source: Box<dyn Read + Send>) -> (Vec<Seen>, Option<CaptureError>) {
    let mut seen = Vec::new();
    let mut reader = match CaptureReader::new("test".into(), source) {
        Ok(r) => r,
        Err(e) => return (seen, Some(e)),
    };
    loop {
        match reader.next_with(|r| (r.data.to_vec(), r.original_len, r.timestamp, r.number)) {
            Ok(Some(p)) => seen.push(p),
            Ok(None) => return (seen, None),
            Err(e) => return (seen, Some(e)),
        }
    }
}

/// A pcap by hand, in either byte order and either resolution.
fn pcap(big: bool, nano: bool, link: u32, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let u32b = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let u16b = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut out = Vec::new();
    out.extend(u32b(if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }));
    out.extend(u16b(2));
    out.extend(u16b(4));
    [0, 0, 65535, link].into_iter().for_each(|v| out.extend(u32b(v)));
    for (sec, frac, data) in packets {
        [*sec, *frac, data.len() as u32, data.len() as u32 + 7].into_iter().for_each(|v| out.extend(u32b(v)));
        out.extend_from_slice(data);
    }
    out
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let u32b = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut out = u32b(kind).to_vec();
    out.extend(u32b(12 + body.len() as u32));
    out.extend_from_slice(body);
    out.extend(u32b(12 + body.len() as u32));
    out
}

/// A pcapng of one section with one interface whose clock counts 2^-10 seconds from ten seconds after 1970.
fn pcapng(big: bool) -> Vec<u8> {
    let u32b = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let u16b = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut section = u32b(0x1a2b_3c4d).to_vec();
    section.extend(u16b(1));
    section.extend(u16b(0));
    section.extend([0xff; 8]);
    let mut interface = [u16b(1), u16b(0)].concat();
    interface.extend(u32b(0));
    interface.extend([u16b(9), u16b(1)].concat());
    interface.extend([0x8a, 0, 0, 0]);
    interface.extend([u16b(14), u16b(8)].concat());
    interface.extend(if big { 10i64.to_be_bytes() } else { 10i64.to_le_bytes() });
    interface.extend([0; 4]);
    let mut packet: Vec<u8> = [0, 0, 2048, 3, 100].into_iter().flat_map(u32b).collect();
    packet.extend([1, 2, 3, 0]);
    let mut obsolete = [u16b(0), u16b(7)].concat();
    obsolete.extend([0, 3072, 2, 60].into_iter().flat_map(u32b));
    obsolete.extend([5, 6, 0, 0]);
    let mut simple = u32b(2).to_vec();
    simple.extend([9, 8, 0, 0]);
    [
        block(big, 0x0a0d_0d0a, &section),
        block(big, 1, &interface),
        block(big, 6, &packet),
        block(big, 0x0bad, b"what nobody knows is skipped"),
        block(big, 3, &simple),
        block(big, 2, &obsolete),
    ]
    .concat()
}

#[test]
fn pcap_in_every_byte_order_and_resolution() {
    for big in [false, true] {
        for (nano, ns) in [(false, 1_000_000_005_000), (true, 1_000_000_000_005)] {
            let (seen, error) = read_all(&pcap(big, nano, 1, &[(1000, 5, b"first"), (1000, 5, b"")]));
            assert!(error.is_none(), "{error:?}");
            assert_eq!(seen[0], (b"first".to_vec(), 12, Some(ns), 1), "big endian {big}, nanoseconds {nano}");
            assert_eq!(seen[1], (vec![], 7, Some(ns), 2));
        }
    }
}

#[test]
fn pcapng_with_a_binary_clock_an_offset_and_blocks_of_every_kind() {
    for big in [false, true] {
        let (seen, error) = read_all(&pcapng(big));
        assert!(error.is_none(), "{error:?}");
        assert_eq!(seen[0], (vec![1, 2, 3], 100, Some(12_000_000_000), 1), "big endian {big}");
        assert_eq!(seen[1], (vec![9, 8], 2, None, 2));
        assert_eq!(seen[2], (vec![5, 6], 60, Some(13_000_000_000), 3));
    }
}

#[test]
fn a_capture_cut_anywhere_delivers_what_is_whole_and_says_so() {
    for whole in [pcap(false, false, 1, &[(1, 1, b"abcd"), (2, 2, b"efghij")]), pcapng(false), pcapng(true)] {
        let (all, _) = read_all(&whole);
        for len in 0..whole.len() {
            let (seen, error) = read_all(&whole[..len]);
            assert_eq!(seen[..], all[..seen.len()], "cut at {len}");
            match error {
                None | Some(CaptureError::NoHeader { .. }) => {}
                Some(CaptureError::NotACapture { .. }) => assert!(len < 4),
                Some(CaptureError::Cut { packets, .. }) => assert_eq!(packets as usize, seen.len()),
                Some(other) => panic!("cut at {len}: {other}"),
            }
        }
    }
}

#[test]
fn hostile_lengths_are_refused_in_bounded_memory() {
    let mut huge = pcap(false, false, 1, &[(1, 1, b"fine")]);
    huge.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    // An input without end, so that only the limit can stop the reader.
    let endless = Box::new(Cursor::new(huge).chain(std::io::repeat(0)));
    let (seen, error) = read_from(endless);
    assert_eq!(seen.len(), 1);
    assert!(matches!(error, Some(CaptureError::TooLong { packets: 1, offset: 44, .. })), "{error:?}");

    let mut lying = pcapng(false);
    let packet = lying.windows(4).position(|w| w == [6, 0, 0, 0]).expect("the packet block");
    lying[packet + 20] = 200;
    let (_, error) = read_all(&lying);
    assert!(matches!(error, Some(CaptureError::Malformed { packets: 0, .. })), "{error:?}");
}

/// The parser beneath subtracts the length of a block's frame before it has looked at the block's own length.
#[test]
fn a_block_shorter_than_its_frame_is_malformed() {
    for (big, len) in [false, true].into_iter().flat_map(|big| [0u32, 4, 8, 11].map(|len| (big, len))) {
        for kind in [0x8000_0001u32, 6, 3, 1, 0x0bad, 0x4242] {
            let mut bytes = pcapng(big);
            for word in [kind, len, len, 0, 0, 0] {
                bytes.extend(if big { word.to_be_bytes() } else { word.to_le_bytes() });
            }
            let (_, error) = read_all(&bytes);
            assert!(matches!(error, Some(CaptureError::Malformed { .. })), "{kind:#x} {len}: {error:?}");
        }
    }
}

#[test]
fn an_interface_that_was_never_described_is_an_error() {
    let mut bytes = pcapng(false);
    let packet = bytes.windows(4).position(|w| w == [6, 0, 0, 0]).expect("the packet block");
    bytes[packet + 8] = 1;
    let (_, error) = read_all(&bytes);
    assert!(error.expect("refused").to_string().contains("interface 1 of 1"));
}

#[test]
fn another_link_type_is_named() {
    let (_, error) = read_all(&pcap(false, false, 113, &[(0, 0, b"cooked")]));
    let text = error.expect("refused").to_string();
    assert!(text.contains("113 (Linux cooked)") && text.contains("Ethernet"), "{text}");
}

#[test]
fn what_is_no_capture_is_named() {
    let (_, error) = read_all(b"#!/bin/sh\necho no\n");
    assert!(matches!(error, Some(CaptureError::NotACapture { .. })));
    let (_, error) = read_all(b"");
    assert!(matches!(error, Some(CaptureError::NoHeader { .. })));
    assert!(matches!(CaptureReader::open("/nonexistent.pcap".as_ref()), Err(CaptureError::Open { .. })));
    assert!(matches!(CaptureReader::open("/".as_ref()), Err(CaptureError::Open { .. })));
}

#[test]
fn random_damage_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let good = [pcap(true, true, 1, &[(1, 1, b"abcd"), (2, 2, b"efghij")]), pcapng(false), pcapng(true)];
    for round in 0..30_000 {
        let mut bytes = good[round % good.len()].clone();
        for _ in 0..=random() % 4 {
            let at = random() as usize % bytes.len();
            bytes[at] = random() as u8;
        }
        let (seen, _) = read_all(&bytes);
        assert!(seen.len() < 10);
    }
}

/// A reader that delivers one byte at a time, as a slow pipe does.
struct Drip(Cursor<Vec<u8>>);

impl Read for Drip {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min(1);
        self.0.read(&mut out[..n])
    }
}

#[test]
fn a_slow_pipe_gives_the_same_packets() {
    for bytes in [pcapng(true), pcap(false, false, 1, &[(1, 1, b"abcd"), (2, 2, b"efghij")])] {
        let (slow, error) = read_from(Box::new(Drip(Cursor::new(bytes.clone()))));
        assert!(error.is_none(), "{error:?}");
        assert_eq!(slow, read_all(&bytes).0);
    }
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("xway-pcap-{}-{name}", std::process::id()))
}

#[test]
fn packed_files_are_recognised_by_their_content() {
    let plain = pcap(false, false, 1, &[(1, 1, b"abcd"), (2, 2, b"efghij")]);
    let path = scratch("packed");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).expect("in memory");
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    let (first, rest) = plain.split_at(50);
    let two = [first, rest].map(|p| ruzstd::encoding::compress_to_vec(p, ruzstd::encoding::CompressionLevel::Fastest));
    for packed in [gzip.finish().expect("in memory"), zstd, two.concat()] {
        std::fs::write(&path, packed).expect("scratch file");
        let mut reader = CaptureReader::open(&path).expect("a capture");
        let mut n = 0;
        while reader.next_with(|_| n += 1).expect("whole").is_some() {}
        assert_eq!(n, 2);
    }
    std::fs::remove_file(&path).expect("scratch file");
}

fn write_two(path: &std::path::Path) {
    let mut writer = CaptureWriter::create(path, &["eth0", "eth1"]).expect("a file");
    for (i, verdict) in [(0u32, 1u32), (1, 2)] {
        let data = [i as u8 + 1; 61];
        let packet = Written {
            timestamp_ns: 1_700_000_000_123_456_789,
            data: &data,
            original_len: 99,
            interface: i,
            queue: 3,
            packet_id: u64::from(i) + 41,
            verdict: Some(verdict),
            comment: (i == 0).then_some("dropped: rule 7"),
            inbound: false,
        };
        writer.write(&packet).expect("written");
    }
    assert_eq!(writer.written(), 2);
    assert!(!path.exists(), "nothing stands under the name before it is complete");
    writer.finish().expect("complete");
}

#[test]
fn what_is_written_is_read_again() {
    for name in ["out.pcapng", "out.pcap"] {
        let path = scratch(name);
        write_two(&path);
        let mut reader = CaptureReader::open(&path).expect("our own file");
        let first = reader.next_with(|r| (r.data.to_vec(), r.original_len, r.timestamp)).expect("whole");
        assert_eq!(first, Some((vec![1; 61], 99, Some(1_700_000_000_123_456_789))), "{name}");
        std::fs::remove_file(&path).expect("scratch file");
    }
}

#[test]
fn an_unfinished_file_leaves_nothing_behind() {
    let path = scratch("unfinished.pcapng");
    drop(CaptureWriter::create(&path, &["eth0"]).expect("a file"));
    let mut part = path.clone().into_os_string();
    part.push(".part");
    assert!(!path.exists() && !PathBuf::from(part).exists());
}

#[test]
fn a_device_is_written_to_and_not_replaced() {
    let path = scratch("device.pcapng");
    let _ = std::fs::remove_file(&path);
    std::os::unix::fs::symlink("/dev/null", &path).expect("scratch link");
    CaptureWriter::create(&path, &["eth0"]).expect("a device").finish().expect("complete");
    assert!(std::fs::symlink_metadata(&path).expect("still there").is_symlink());
    std::fs::remove_file(&path).expect("scratch link");
}

#[test]
fn the_fields_own_tools_read_what_we_write() {
    let path = scratch("judged.pcapng");
    write_two(&path);
    let run = |tool: &str, args: &[&str]| {
        let out = Command::new(tool).args(args).arg(&path).output().ok()?;
        assert!(out.status.success(), "{tool}: {}", String::from_utf8_lossy(&out.stderr));
        Some(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let fields =
        ["-T", "fields", "-e", "frame.verdict.ebpf_xdp", "-e", "frame.packet_id", "-e", "frame.interface_queue"];
    match run("tshark", &[&fields[..], &["-e", "frame.interface_name", "-e", "frame.comment", "-r"]].concat()) {
        Some(text) => assert_eq!(text, "1\t41\t3\teth0\tdropped: rule 7\n2\t42\t3\teth1\t\n"),
        None => xway_testkit::skip("the_fields_own_tools_read_what_we_write/tshark", "tshark"),
    }
    match run("tcpdump", &["-n", "-tt", "-r"]) {
        Some(text) => assert_eq!(text.matches("1700000000.123456").count(), 2, "{text}"),
        None => xway_testkit::skip("the_fields_own_tools_read_what_we_write/tcpdump", "tcpdump"),
    }
    std::fs::remove_file(&path).expect("scratch file");
}
