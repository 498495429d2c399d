//! Without copies: two cards on one wire, whose driver can do it. `XWAY_WIRE=eth0,eth1` names them; they are taken from the host while the
//! tests run, so nobody's network may depend on them. `make zerocopy KERNEL=folder` has two of virtio in a virtual machine (Linux 6.13).

use std::sync::Mutex;
use std::time::{Duration, Instant};

use xway_engine::{Device, Port, Rx};
use xway_packet::{Backing, Burst, Pool, PoolConfig};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice, AfXdpPort, Copying};
use xway_port_packet::{PacketConfig, PacketPort};
use xway_testkit::{Needs, packets::Packet};

/// The two cards.
fn wire(test: &str) -> Option<(String, String)> {
    let named = std::env::var("XWAY_WIRE").ok();
    let wire = named.as_deref().and_then(|names| names.split_once(','));
    let met = Needs::of(test).root().that(wire.is_some(), "XWAY_WIRE=CARD,CARD: two that can do without copies").met();
    wire.filter(|_| met).map(|(one, other)| (one.to_owned(), other.to_owned()))
}

fn memory() -> PoolConfig {
    PoolConfig { backing: Backing::Memfd, ..PoolConfig::new(1024) }
}

fn open(interface: &str, copying: Copying, pool: &mut Pool) -> (AfXdpDevice, AfXdpPort) {
    let mut device = AfXdpDevice::open(&AfXdpConfig { copying, entries: 256, ..AfXdpConfig::new(interface) }).unwrap();
    let port = device.open_port(0, pool).unwrap();
    (device, port)
}

fn datagram(number: u16) -> Vec<u8> {
    // To everybody: no card leaves it out.
    let packet = Packet::eth_from([2, 0, 0, 0, 0, 1], [0xff; 6]).ipv4([10, 9, 0, 1], [10, 9, 0, 2]).udp(1, 9);
    packet.payload(&[&number.to_be_bytes()[..], &[0x5a; 60]].concat()).build()
}

fn is_ours(packet: &[u8]) -> bool {
    packet.get(12..14) == Some(&[8, 0]) && packet.get(23) == Some(&17) && packet.get(36..38) == Some(&[0, 9])
}

/// Sent until something comes, and not looked at any more.
const FIRST: u16 = u16::MAX;

/// Both tests have the same cards.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn send(port: &mut dyn Port, pool: &mut Pool, packets: &[Vec<u8>]) {
    let mut burst = Burst::new();
    for packet in packets {
        let mut frame = pool.alloc().unwrap();
        frame.fill(packet).unwrap();
        burst.push(frame).unwrap();
    }
    assert_eq!(port.tx(0, pool, &mut burst).sent as usize, packets.len());
    port.flush().unwrap();
}

/// Ours among what comes, until so many came.
fn receive(port: &mut dyn Port, pool: &mut Pool, count: usize) -> Vec<Vec<u8>> {
    let (deadline, mut out) = (Instant::now() + Duration::from_secs(30), Vec::new());
    while out.len() < count && Instant::now() < deadline {
        let mut burst = Burst::new();
        if port.rx(0, pool, &mut burst, Burst::MAX).unwrap() == Rx::Idle {
            std::thread::sleep(Duration::from_millis(1));
        }
        let packets = burst.frames().iter().map(|frame| frame.packet().to_vec());
        out.extend(packets.filter(|packet| is_ours(packet) && *packet != datagram(FIRST)));
        pool.release_burst(&mut burst);
    }
    out
}

/// Received, sent, and closed again, each time with everything home; what was asked for, what came of it, and no reason where none is due.
#[test]
fn packets_come_and_go_without_a_copy() {
    let Some((near, far)) = wire("port-afxdp::packets_come_and_go_without_a_copy") else { return };
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    for asked in [Copying::Auto, Copying::ZeroCopy] {
        let (mut pool, mut theirs) = (Pool::new(memory()).unwrap(), Pool::new(PoolConfig::new(256)).unwrap());
        let mut other = PacketPort::open(&PacketConfig::new(&far)).unwrap();
        let (device, mut port) = open(&near, asked, &mut pool);
        let effective = device.effective()[0].clone();
        assert_eq!((effective.zero_copy, effective.copying_reason.as_deref()), (true, None), "{effective}");
        assert!(port.capabilities().zero_copy && device.capabilities().zero_copy);
        println!("{}: {effective}", device.name());
        // A driver that takes its first buffers a moment later loses what comes before.
        let ready = |port: &mut AfXdpPort, pool: &mut Pool, other: &mut PacketPort, theirs: &mut Pool| {
            (0..100).any(|_| {
                send(other, theirs, &[datagram(FIRST)]);
                std::thread::sleep(Duration::from_millis(50));
                let mut burst = Burst::new();
                port.rx(0, pool, &mut burst, Burst::MAX).unwrap();
                let came = burst.frames().iter().any(|frame| is_ours(frame.packet()));
                pool.release_burst(&mut burst);
                came
            })
        };
        assert!(ready(&mut port, &mut pool, &mut other, &mut theirs), "{asked:?}: nothing comes");
        // Several times around the rings.
        let numbers: Vec<u16> = (0..2000).collect();
        for part in numbers.chunks(50) {
            let part: Vec<_> = part.iter().map(|number| datagram(*number)).collect();
            send(&mut other, &mut theirs, &part);
            assert!(
                receive(&mut port, &mut pool, part.len()) == part,
                "{asked:?}: not what was sent, or not in its order"
            );
        }
        for part in numbers.chunks(50) {
            let part: Vec<_> = part.iter().map(|number| datagram(*number)).collect();
            send(&mut port, &mut pool, &part);
            assert!(receive(&mut other, &mut theirs, part.len()) == part, "{asked:?}: what was sent did not arrive so");
            // What was sent comes home.
            receive(&mut port, &mut pool, 0);
        }
        let stats = port.stats();
        assert!(stats.rx > 2000 && stats.tx == 2000 && stats.oversize == 0, "{stats:?}");
        port.close(&mut pool);
        drop((port, device, other));
        pool.close().unwrap();
        theirs.close().unwrap();
    }
}

/// A queue is closed with everything under way, and opened again.
#[test]
fn frames_that_the_driver_has_come_home() {
    let Some((near, far)) = wire("port-afxdp::frames_that_the_driver_has_come_home") else { return };
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let mut pool = Pool::new(memory()).unwrap();
    let mut theirs = Pool::new(PoolConfig::new(256)).unwrap();
    let mut other = PacketPort::open_sender(&PacketConfig::new(&far)).unwrap();
    for _ in 0..3 {
        let (device, mut port) = open(&near, Copying::ZeroCopy, &mut pool);
        send(&mut other, &mut theirs, &vec![datagram(1); 60]);
        send(&mut port, &mut pool, &vec![datagram(2); 60]);
        port.close(&mut pool);
        assert_eq!(pool.counters().outstanding, 0);
        drop((port, device));
    }
    pool.close().unwrap();
    theirs.close().unwrap();
}
