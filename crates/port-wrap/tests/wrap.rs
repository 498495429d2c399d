//! Wrappers: what they say they did is what they did, and nothing disappears.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use xway_abi::Errno;
use xway_engine::{Executor, ExecutorInfo, Port, Results, Rx, Sent, Stop, Worker, WorkerConfig};
use xway_maps::Guard;
use xway_packet::{Burst, Frame, Pool, PoolConfig};
use xway_port_pcap::CaptureReader;
use xway_port_sim::{PairConfig, Pattern, SimPort, Sink, Traffic, pair};
use xway_port_wrap::{Cable, Fault, FaultConfig, Rate, RateConfig, Tee, Trace};

const COUNT: u64 = 10_000;

fn source(count: u64) -> (Box<dyn Port>, Sink) {
    let traffic = Traffic::udp(10, 80, Pattern::Scan, 1).unwrap();
    let (port, sink) = SimPort::generated("s", 1, traffic, Some(count));
    (Box::new(port), sink)
}

fn pool() -> Pool {
    Pool::new(PoolConfig::new(512)).unwrap()
}

/// Packet ids in the order in which they come out of a port.
fn ids(port: &mut dyn Port) -> Vec<u64> {
    let (mut pool, mut burst) = (pool(), Burst::new());
    let mut ids = Vec::new();
    loop {
        let state = port.rx(0, &mut pool, &mut burst, 64).unwrap();
        ids.extend(burst.frames().iter().map(Frame::packet_id));
        pool.release_burst(&mut burst);
        if state == Rx::End {
            pool.close().unwrap();
            return ids;
        }
    }
}

fn other(port: &mut dyn Port, name: &str) -> u64 {
    port.stats().other.iter().find(|(known, _)| *known == name).map_or(0, |&(_, count)| count)
}

#[test]
fn a_good_wire_changes_nothing() {
    let mut port = Fault::new(source(COUNT).0, FaultConfig::default()).unwrap();
    assert_eq!(ids(&mut port), (1..=COUNT).collect::<Vec<_>>());
    assert_eq!(port.stats().other, []);
}

/// What a wrapper holds back goes home when its port closes, and the port hears of that: a device has frames of its own to give back.
#[test]
fn closing_goes_through_every_wrapper() {
    let frames = PairConfig { queue_len: 64, ..PairConfig::default() };
    let (near, far) = pair("p", frames).unwrap();
    let (mut pool, mut burst) = (pool(), Burst::new());
    let late = FaultConfig { reorder: 1.0, seed: 3, ..FaultConfig::default() };
    let port = Rate::new(Box::new(Fault::new(Box::new(near), late).unwrap()), RateConfig::default());
    let mut port: Box<dyn Port> = Box::new(Trace::new(Box::new(port), std::io::sink()));
    assert_eq!(port.frame_max(), u32::MAX);
    burst.push(pool.alloc().unwrap()).unwrap();
    port.tx(0, &mut pool, &mut burst);
    assert_eq!((other(&mut *port, "fault: held on send"), pool.counters().outstanding), (1, 1));
    port.close(&mut pool);
    assert_eq!(
        (other(&mut *port, "fault: held on send"), pool.counters().outstanding),
        (1, 0),
        "it comes no more, and stays counted"
    );
    drop((port, far));
    pool.close().unwrap();
}

#[test]
fn every_fault_is_counted_and_the_counts_add_up() {
    let bad = FaultConfig { loss: 0.1, duplicate: 0.1, corrupt: 0.1, reorder: 0.1, no_frame: 0.1, seed: 3 };
    let mut port = Fault::new(source(COUNT).0, bad).unwrap();
    let got = ids(&mut port);
    let [lost, doubled, damaged, reordered] =
        ["lost", "doubled", "damaged", "reordered"].map(|what| other(&mut port, &format!("fault: {what} on receive")));
    assert_eq!(got.len() as u64, COUNT - lost + doubled);
    for (what, count) in [("lost", lost), ("doubled", doubled), ("damaged", damaged)] {
        assert!((800..1200).contains(&count), "{what}: {count}");
    }
    assert!(reordered > 500 && port.stats().no_frame > 10, "{reordered}");
    let mut distinct = got.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len() as u64, COUNT - lost);
    let mut again = Fault::new(source(COUNT).0, bad).unwrap();
    assert_eq!(ids(&mut again), got, "the same seed does the same");
    let mut different = Fault::new(source(COUNT).0, FaultConfig { seed: 4, ..bad }).unwrap();
    assert_ne!(ids(&mut different), got);
}

#[test]
fn a_packet_that_waited_comes_at_the_end() {
    let mut port = Fault::new(source(1).0, FaultConfig { reorder: 1.0, ..FaultConfig::default() }).unwrap();
    assert_eq!(ids(&mut port), [1]);
    let mut port = Fault::new(source(4).0, FaultConfig { reorder: 1.0, ..FaultConfig::default() }).unwrap();
    assert_eq!(ids(&mut port), [2, 1, 4, 3]);
}

#[test]
fn probabilities_are_checked() {
    for loss in [-0.1, 1.1, f64::NAN] {
        let error = Fault::new(source(1).0, FaultConfig { loss, ..FaultConfig::default() }).err().unwrap();
        assert_eq!(error.what, "loss");
    }
}

/// Sends everything back.
struct Reflect;

impl Executor for Reflect {
    fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
        frames.iter().for_each(|_| results.push(3, 0));
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: "reflect".into(), engine: "interp" }
    }
}

#[test]
fn a_worker_behind_a_bad_wire_keeps_its_books() {
    let bad = FaultConfig { loss: 0.1, duplicate: 0.1, corrupt: 0.1, reorder: 0.1, no_frame: 0.1, seed: 9 };
    let (port, sink) = source(COUNT);
    let port = Fault::new(port, bad).unwrap();
    let config = WorkerConfig::new(Stop::new().unwrap());
    let report = Worker::new(vec![Box::new(port)], Box::new(Reflect), pool(), config).run();
    report.counters.balance().unwrap();
    assert_eq!(report.leak, None);
    let of = |name: &str| report.ports[0].1.other.iter().find(|(known, _)| *known == name).map_or(0, |&(_, n)| n);
    assert_eq!(report.counters.rx, COUNT - of("fault: lost on receive") + of("fault: doubled on receive"));
    let arrived =
        report.counters.tx - of("fault: lost on send") + of("fault: doubled on send") - of("fault: held on send");
    assert_eq!(sink.sent().frames, arrived);
}

#[test]
fn a_rate_is_kept() {
    let mut port = Rate::new(source(COUNT).0, RateConfig { rx_pps: Some(0.0), tx_pps: None });
    let (mut pool, mut burst) = (pool(), Burst::new());
    assert_eq!(port.rx(0, &mut pool, &mut burst, 64).unwrap(), Rx::More);
    assert_eq!(burst.len(), 1, "the first is free");
    for _ in 0..100 {
        assert_eq!(port.rx(0, &mut pool, &mut burst, 64).unwrap(), Rx::More);
    }
    assert_eq!(burst.len(), 1);
    let (inner, sink) = source(COUNT);
    let mut port = Rate::new(inner, RateConfig { rx_pps: None, tx_pps: Some(0.0) });
    port.rx(0, &mut pool, &mut burst, 9).unwrap();
    let sent = port.tx(0, &mut pool, &mut burst);
    assert_eq!((sent.sent, sent.full, sink.sent().frames), (1, 9, 1));
    assert_eq!(other(&mut port, "rate: over the limit, dropped on send"), 9);
    pool.close().unwrap();
}

#[test]
fn a_cut_cable_loses_nothing_unseen() {
    let (port, sink) = source(64);
    let cut = Arc::new(AtomicBool::new(false));
    let mut port = Cable::new(port, cut.clone());
    let (mut pool, mut burst) = (pool(), Burst::new());
    port.rx(0, &mut pool, &mut burst, 10).unwrap();
    cut.store(true, Ordering::Relaxed);
    let error = port.rx(0, &mut pool, &mut Burst::new(), 64).unwrap_err();
    assert!(error.to_string().contains("the cable is cut"), "{error}");
    assert_eq!(port.tx(0, &mut pool, &mut burst), Sent::none(10, Errno::ENETDOWN));
    cut.store(false, Ordering::Relaxed);
    port.rx(0, &mut pool, &mut burst, 64).unwrap();
    assert_eq!(port.tx(0, &mut pool, &mut burst), Sent::all(54), "what waited is still there");
    assert_eq!(sink.sent().frames, 54);
    pool.close().unwrap();
}

/// A writer that keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_trace_has_a_line_for_each_packet() {
    let kept = Kept::default();
    let mut port = Trace::new(source(2).0, kept.clone());
    let (mut pool, mut burst) = (pool(), Burst::new());
    port.rx(0, &mut pool, &mut burst, 64).unwrap();
    port.tx(0, &mut pool, &mut burst);
    port.flush().unwrap();
    let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("rx sim:s queue 0 #1 80 bytes: "), "{text}");
    assert!(lines[3].starts_with("tx sim:s queue 0 #2 80 bytes: ") && lines[3].contains("192.168.0.1"), "{text}");
}

#[test]
fn a_tee_holds_what_went_by() {
    let path = std::env::temp_dir().join(format!("xway-tee-{}.pcapng", std::process::id()));
    let mut port = Tee::new(source(3).0, &path).unwrap();
    let (mut pool, mut burst) = (pool(), Burst::new());
    port.rx(0, &mut pool, &mut burst, 64).unwrap();
    let packets: Vec<Vec<u8>> = burst.frames().iter().map(|f| f.packet().to_vec()).collect();
    let last = burst.pop().unwrap();
    port.tx(0, &mut pool, &mut burst);
    burst.push(last).unwrap();
    port.pass(0, &mut pool, &mut burst);
    assert!(!path.exists(), "it appears when it is complete");
    drop(port);
    let mut reader = CaptureReader::open(&path).unwrap();
    let mut read = Vec::new();
    while let Some(packet) = reader.next_with(|record| record.data.to_vec()).unwrap() {
        read.push(packet);
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read, [&packets[..], &packets[..2], &packets[2..]].concat());
}
