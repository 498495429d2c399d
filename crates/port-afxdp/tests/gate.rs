//! A port that goes from one process to the next under a flood. (Both are this one: what the second gets are descriptors and numbers.)

#[path = "../../port-packet/tests/harness/mod.rs"]
mod harness;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::cable;
use xway_engine::{Port, PortStats};
use xway_packet::{Backing, Burst, Pool, PoolConfig};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice, AfXdpPort};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_testkit::{Namespace, Needs, packets::Packet};

const ROUNDS: usize = 20;

fn flood(from: &Namespace, over: &AtomicBool) {
    let mut port = from.enter(|| PacketPort::open_sender(&PacketConfig::new("l0"))).unwrap().unwrap();
    let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
    let packet = Packet::eth().ipv4([10, 9, 0, 1], [10, 9, 0, 2]).udp(1, 9).pattern(20).build();
    // Also when the test fails it ends.
    let until = Instant::now() + Duration::from_secs(60);
    while !over.load(Ordering::Relaxed) && Instant::now() < until {
        let mut burst = Burst::new();
        for _ in 0..Burst::MAX {
            let mut frame = pool.alloc().unwrap();
            frame.fill(&packet).unwrap();
            burst.push(frame).unwrap();
        }
        port.tx(0, &mut pool, &mut burst);
    }
}

fn device(namespace: &Namespace) -> AfXdpDevice {
    let config = AfXdpConfig { entries: 256, ..AfXdpConfig::new("r0") };
    namespace.enter(|| AfXdpDevice::open(&config)).unwrap().unwrap()
}

fn memory() -> Pool {
    Pool::new(PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(1024) }).unwrap()
}

/// Takes what is there.
fn take(port: &mut AfXdpPort, pool: &mut Pool) {
    let mut burst = Burst::new();
    port.rx(0, pool, &mut burst, Burst::MAX).unwrap();
    pool.release_burst(&mut burst);
}

fn other(stats: &PortStats, name: &str) -> u64 {
    stats.other.iter().find(|(known, _)| *known == name).map_or(0, |&(_, count)| count)
}

/// Whatever the driver is in the middle of when a port is closed: each packet that the interface has taken is received, or counted.
#[test]
fn a_port_that_is_handed_on_under_a_flood_counts_each_packet() {
    let needs = Needs::of("afxdp::a_port_that_is_handed_on_under_a_flood_counts_each_packet");
    if !needs.root().command("ip").kernel(5, 10).met() {
        return;
    }
    let (_lab, left, right) = cable("gate");
    // Nobody else says anything.
    [&left, &right].into_iter().for_each(|space| space.ipv6(false).unwrap());
    let taken = || right.packets("r0").unwrap().0;
    let (before, over) = (taken(), AtomicBool::new(false));
    let (named, all) = std::thread::scope(|scope| {
        let (mut device_now, mut pool, mut named) = (device(&right), memory(), 0);
        let mut port = right.enter(|| device_now.open_port(0, &mut pool)).unwrap().unwrap();
        let sender = scope.spawn(|| flood(&left, &over));
        for _ in 0..ROUNDS {
            let from = port.stats().rx;
            while port.stats().rx < from + 500 {
                take(&mut port, &mut pool);
            }
            let kept = device_now.keep().unwrap();
            // What found no socket before this one was there: its gate is open, so that is all.
            named += other(&port.stats(), "upgrade-gap");
            kept.shut().unwrap();
            port.close(&mut pool);
            let stats = port.stats();
            named += stats.rx + stats.dropped + stats.oversize + other(&stats, "unread");
            let parts = kept.parts().unwrap().expect("the program is ours");
            drop((kept, port));
            pool.close().unwrap();
            (device_now, pool) = (device(&right), memory());
            device_now.adopt(parts).unwrap();
            port = right.enter(|| device_now.open_port(0, &mut pool)).unwrap().unwrap();
            device_now.keep().unwrap().open().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        let of_this_one = |stats: PortStats| stats.rx + stats.dropped + stats.oversize + other(&stats, "upgrade-gap");
        let deadline = Instant::now() + Duration::from_secs(30);
        while named + of_this_one(port.stats()) != taken() - before && Instant::now() < deadline {
            take(&mut port, &mut pool);
        }
        named += of_this_one(port.stats());
        let all = taken() - before;
        port.close(&mut pool);
        pool.close().unwrap();
        (named, all)
    });
    assert_eq!(named, all, "packets that the interface has taken");
}
