//! A capture through the engine: packets in, verdicts decided by a rule, a capture with verdicts out.

use std::path::PathBuf;

use xway_engine::{End, Executor, ExecutorInfo, Port, Results, Rx, Stop, Worker, WorkerConfig};
use xway_maps::Guard;
use xway_packet::{Burst, Frame, Pool, PoolConfig};
use xway_port_pcap::{CaptureReader, CaptureRecorder, CaptureWriter, PcapPort, PcapSink, Playback, Written};

/// Returns the packet's first byte as the program's verdict, and makes packets that are sent one byte shorter.
struct FirstByte;

impl Executor for FirstByte {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        for frame in frames {
            let verdict = u64::from(frame.packet()[0]);
            if verdict == 3 {
                frame.adjust_tail(-1).expect("long enough");
            }
            results.push(verdict, 1);
        }
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "first_byte".into(), engine: "test" }
    }
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("xway-pcap-port-{}-{name}", std::process::id()))
}

/// A capture of 200 packets whose first bytes are 0 to 5 in turn; every tenth was cut, packet 100 is too long for a frame.
fn input(path: &std::path::Path) {
    let mut writer = CaptureWriter::create(path, &["in0"]).expect("a file");
    for i in 0..200u32 {
        let len = if i == 99 { 4000 } else { 64 };
        let mut data = vec![0xee; len];
        data[0] = (i % 6) as u8;
        let original_len = if i % 10 == 0 { 1500 } else { len as u32 };
        let packet = Written {
            timestamp_ns: 1_000_000_000 + u64::from(i),
            data: &data,
            original_len,
            interface: 0,
            queue: 0,
            packet_id: 0,
            verdict: Some(0),
            comment: None,
            inbound: false,
        };
        writer.write(&packet).expect("written");
    }
    writer.finish().expect("complete");
}

fn run(from: &std::path::Path, to: &std::path::Path) -> xway_engine::Report {
    let port = PcapPort::open(from, 7).expect("a capture");
    let recorder = CaptureRecorder::create(to, port.name()).expect("a file");
    let pool = Pool::new(PoolConfig::new(256)).expect("a pool");
    let config = WorkerConfig { recorder: Some(Box::new(recorder)), ..WorkerConfig::new(Stop::new().expect("a stop")) };
    Worker::new(vec![Box::new(port)], Box::new(FirstByte), pool, config).run()
}

#[test]
fn every_packet_has_its_verdict_and_its_end() {
    let (from, to) = (scratch("in.pcapng"), scratch("out.pcapng"));
    input(&from);
    let report = run(&from, &to);
    assert!(matches!(report.end, End::Input), "{:?}", report.end);
    let c = &report.counters;
    assert_eq!((c.rx, c.verdicts, c.invalid), (199, [34, 34, 33, 32, 33], 33));
    let (_, stats) = &report.ports[0];
    assert_eq!((stats.rx, stats.oversize, stats.truncated), (199, 1, 20));
    assert!(report.leak.is_none() && report.record_error.is_none());
    c.balance().expect("in = out + losses");

    let mut reader = CaptureReader::open(&to).expect("our own file");
    let mut seen = 0;
    let check = |r: xway_port_pcap::Record<'_>| {
        let (len, original) = (r.data.len(), r.original_len);
        let (want_len, cut) =
            (if r.data[0] == 3 { 63 } else { 64 }, u32::from(r.timestamp.expect("a time").is_multiple_of(10)));
        assert_eq!((len, original), (want_len, want_len as u32 + cut * (1500 - 64)));
    };
    while reader.next_with(check).expect("whole").is_some() {
        seen += 1;
    }
    assert_eq!(seen, 199);

    // The plain form holds only what would leave.
    let plain = scratch("out.pcap");
    run(&from, &plain);
    let mut reader = CaptureReader::open(&plain).expect("our own file");
    let mut leaving = 0;
    while reader.next_with(|r| assert!(matches!(r.data[0], 2..=4))).expect("whole").is_some() {
        leaving += 1;
    }
    assert_eq!(leaving, 98);
    [from, to, plain].iter().for_each(|f| std::fs::remove_file(f).expect("scratch file"));
}

#[test]
fn a_damaged_capture_delivers_what_is_whole_and_then_fails() {
    let (from, to) = (scratch("cut.pcapng"), scratch("cut-out.pcapng"));
    input(&from);
    let bytes = std::fs::read(&from).expect("scratch file");
    std::fs::write(&from, &bytes[..bytes.len() - 5]).expect("scratch file");
    let report = run(&from, &to);
    assert_eq!(report.counters.rx, 198);
    let End::Failed(error) = &report.end else { panic!("{:?}", report.end) };
    assert!(error.to_string().contains("cut"), "{error}");
    assert!(report.leak.is_none());
    [from, to].iter().for_each(|f| std::fs::remove_file(f).expect("the record of what was whole is kept"));
}

#[test]
fn a_packet_waits_in_the_file_while_the_pool_is_empty() {
    let from = scratch("wait.pcapng");
    input(&from);
    let mut port = PcapPort::open(&from, 0).expect("a capture");
    assert_eq!(port.ifindex(), xway_port_pcap::DEFAULT_IFINDEX);
    let mut pool = Pool::new(PoolConfig::new(1)).expect("a pool");
    let mut burst = Burst::new();
    let mut ids = Vec::new();
    while port.rx(0, &mut pool, &mut burst, 64).expect("whole") != Rx::End {
        ids.extend(burst.drain().map(|f| f.packet_id()));
    }
    assert_eq!(ids.len(), 199);
    assert!(ids.is_sorted() && port.stats().no_frame > 0);
    let (read, all) = port.progress().expect("a file");
    assert_eq!(read, all);
    std::fs::remove_file(from).expect("scratch file");
}

/// A capture of packets with one byte each and a second between them.
fn numbers(path: &std::path::Path, numbers: std::ops::Range<u8>) {
    let mut writer = CaptureWriter::create(path, &["in0"]).expect("a file");
    for number in numbers {
        let packet = Written {
            timestamp_ns: (1_000 + u64::from(number)) * 1_000_000_000,
            data: &[number; 20],
            original_len: 20,
            interface: 0,
            queue: 0,
            packet_id: 0,
            verdict: Some(0),
            comment: None,
            inbound: false,
        };
        writer.write(&packet).expect("written");
    }
    writer.finish().expect("complete");
}

/// Takes what there is, at most so many, and says how the last call ended.
fn take(port: &mut PcapPort, most: usize) -> (Vec<u8>, Rx) {
    let mut pool = Pool::new(PoolConfig::new(8)).expect("a pool");
    let (mut burst, mut seen) = (Burst::new(), Vec::new());
    loop {
        let state = port.rx(0, &mut pool, &mut burst, 4).expect("packets");
        seen.extend(burst.frames().iter().map(|frame| frame.packet()[0]));
        pool.release_burst(&mut burst);
        if state != Rx::More || seen.len() >= most {
            return (seen, state);
        }
    }
}

#[test]
fn captures_are_played_one_after_the_other_and_again() {
    let (a, b) = (scratch("a.pcap"), scratch("b.pcapng"));
    numbers(&a, 0..3);
    numbers(&b, 3..5);
    let paths = [a.clone(), b.clone()];
    let mut port =
        PcapPort::play(&paths, Playback { loops: 3, speed: None, ..Playback::default() }, 0).expect("captures");
    let (seen, end) = take(&mut port, 100);
    assert_eq!((seen, end), ([0, 1, 2, 3, 4].repeat(3), Rx::End));
    assert_eq!((port.stats().rx, port.progress()), (15, None));
    let mut endless =
        PcapPort::play(&paths, Playback { loops: 0, speed: None, ..Playback::default() }, 0).expect("captures");
    assert_eq!(take(&mut endless, 1000).1, Rx::More);
    std::fs::remove_file(&b).expect("there");
    let mut port = PcapPort::play(&paths, Playback::default(), 0).expect("the first is there");
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(8)).expect("a pool"), Burst::new());
    let error = port.rx(0, &mut pool, &mut burst, 8).expect_err("the second is not").to_string();
    assert!(error.contains("b.pcapng"), "{error}");
    assert_eq!(burst.len(), 3, "packets before that are there");
    std::fs::remove_file(&a).expect("there");
}

#[test]
fn packets_wait_for_their_time() {
    let path = scratch("paced.pcap");
    numbers(&path, 0..5);
    let paths = [path.clone()];
    let mut slow = PcapPort::play(&paths, Playback { speed: Some(1e-3), ..Playback::default() }, 0).expect("a capture");
    assert_eq!(take(&mut slow, 100), (vec![0], Rx::Idle), "the next is due in a quarter of an hour");
    assert_eq!(take(&mut slow, 100), (vec![], Rx::Idle));
    let mut fast =
        PcapPort::play(&paths, Playback { loops: 2, speed: Some(1e12), ..Playback::default() }, 0).expect("a capture");
    let mut seen = Vec::new();
    while seen.len() < 10 {
        seen.extend(take(&mut fast, 100).0);
    }
    assert_eq!(seen, [0, 1, 2, 3, 4].repeat(2));
    std::fs::remove_file(&path).expect("there");
}

/// Packets that are longer than a frame come in several buffers, where the port was told to, and are whole in the captures that are
/// written on the way; without that they are counted.
#[test]
fn long_packets_come_in_several_buffers() {
    struct Pass;
    impl Executor for Pass {
        fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
            frames.iter().for_each(|_| results.push(2, 0));
        }

        fn info(&self) -> ExecutorInfo {
            ExecutorInfo { program: "pass".into(), engine: "test" }
        }
    }
    let (from, to, passed) = (scratch("long.pcapng"), scratch("record.pcapng"), scratch("passed.pcap"));
    // The last one is too long for any number of buffers.
    let lens = [60usize, 3520, 3521, 9000, 65_535, 73_152, 73_153];
    let packets: Vec<Vec<u8>> = lens.iter().map(|&len| (0..len).map(|n| (n * 31 / 7) as u8).collect()).collect();
    let mut writer = CaptureWriter::create(&from, &["in0"]).unwrap();
    for data in &packets {
        let original_len = data.len() as u32;
        let (interface, queue, packet_id, verdict, comment, inbound) = (0, 0, 0, None, None, false);
        let timestamp_ns = 1;
        writer
            .write(&Written {
                timestamp_ns,
                data,
                original_len,
                interface,
                queue,
                packet_id,
                verdict,
                comment,
                inbound,
            })
            .unwrap();
    }
    writer.finish().unwrap();
    for frags in [true, false] {
        let port = PcapPort::play(std::slice::from_ref(&from), Playback { frags, ..Playback::default() }, 7).unwrap();
        let recorder = CaptureRecorder::create(&to, port.name()).unwrap();
        let config = WorkerConfig {
            recorder: Some(Box::new(recorder)),
            pass_to: vec![(0, 1)],
            ..WorkerConfig::new(Stop::new().unwrap())
        };
        let sink = PcapSink::create(&passed, 9).unwrap();
        let pool = Pool::new(PoolConfig::new(256)).unwrap();
        let report = Worker::new(vec![Box::new(port), Box::new(sink)], Box::new(Pass), pool, config).run();
        assert_eq!((report.leak, report.counters.balance()), (None, Ok(())));
        let whole = if frags { &packets[..6] } else { &packets[..2] };
        let stats = &report.ports[0].1;
        assert_eq!((stats.rx, stats.oversize, stats.no_frame), (whole.len() as u64, 7 - whole.len() as u64, 0));
        assert_eq!(report.counters.rx_bytes, whole.iter().map(|p| p.len() as u64).sum::<u64>());
        for file in [&to, &passed] {
            let mut reader = CaptureReader::open(file).unwrap();
            for packet in whole {
                assert!(reader.next_with(|r| r.data == &packet[..]).unwrap().unwrap(), "{}", packet.len());
            }
            assert!(reader.next_with(|_| ()).unwrap().is_none());
        }
    }
    [from, to, passed].iter().for_each(|file| std::fs::remove_file(file).unwrap());
}
