//! Several queues of one interface: what comes in is shared out among them, and nothing is lost or comes twice.

mod harness;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use harness::{LEFT, RIGHT, cable};
use xway_engine::{Device, Engine, EngineConfig, Port, PortConfig};
use xway_packet::{Burst, Pool, PoolConfig};
use xway_port_packet::{Fanout, Layout, OpenError, PacketConfig, PacketDevice, PacketPort};
use xway_testkit::{Lab, Namespace, Needs, stay_on_cpu_0};

const FLOWS: u16 = 64;
const PACKETS: u32 = 20;
const ALL: usize = FLOWS as usize * PACKETS as usize;
/// Source port of the first flow.
const FIRST: u16 = 20_000;

/// Two hosts that know each other, so that nothing but the test's packets crosses the wire.
fn hosts(label: &str) -> (Lab, Namespace, Namespace) {
    let (lab, left, right) = cable(label);
    right.address("r0", &format!("{RIGHT}/24")).unwrap();
    let mac = |namespace: &Namespace, interface| {
        let line = namespace.ip(&["-br", "link", "show", "dev", interface]).unwrap();
        line.split_whitespace().nth(2).unwrap().to_owned()
    };
    let (of_left, of_right) = (mac(&left, "l0"), mac(&right, "r0"));
    left.ip(&["neigh", "add", &RIGHT.to_string(), "lladdr", &of_right, "dev", "l0"]).unwrap();
    right.ip(&["neigh", "add", &LEFT.to_string(), "lladdr", &of_left, "dev", "r0"]).unwrap();
    (lab, left, right)
}

/// Sends numbered datagrams of all flows, one of each in turn.
fn send(left: &Namespace) {
    // The other end of a veth queues packets for the CPU that sends: on one CPU they stay in order.
    stay_on_cpu_0();
    left.enter(|| {
        let flows: Vec<_> = (0..FLOWS).map(|flow| UdpSocket::bind((LEFT, FIRST + flow)).unwrap()).collect();
        for number in 0..PACKETS {
            for flow in &flows {
                // The other host has nobody there and says so; that is not what is sent here.
                while flow.send_to(&number.to_be_bytes(), (RIGHT, 9)).is_err() {}
            }
        }
    })
    .unwrap();
}

/// What a queue received: flow and number of each packet, in order.
type Received = Vec<(u16, u32)>;

/// Receives from all queues until so many packets of the test have come.
fn receive(ports: &mut [PacketPort], want: usize) -> Vec<Received> {
    let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
    let mut burst = Burst::new();
    let mut received = vec![Vec::new(); ports.len()];
    let deadline = Instant::now() + Duration::from_secs(60);
    while received.iter().map(Vec::len).sum::<usize>() < want {
        assert!(Instant::now() < deadline, "{:?} of {want}", received.iter().map(Vec::len).collect::<Vec<_>>());
        receive_once(ports, &mut pool, &mut burst, &mut received);
    }
    // Nothing more waits anywhere.
    receive_once(ports, &mut pool, &mut burst, &mut received);
    received
}

fn receive_once(ports: &mut [PacketPort], pool: &mut Pool, burst: &mut Burst, received: &mut [Received]) {
    for (at, port) in ports.iter_mut().enumerate() {
        port.rx(0, pool, burst, Burst::MAX).unwrap();
        for frame in burst.frames() {
            let packet = frame.packet();
            assert_ne!(packet[26..30], RIGHT.octets(), "the host's own packets do not come in");
            if packet[23] != 17 {
                continue;
            }
            let flow = u16::from_be_bytes([packet[34], packet[35]]) - FIRST;
            received[at].push((flow, u32::from_be_bytes(packet[42..46].try_into().unwrap())));
            assert_eq!(usize::try_from(frame.rx_queue()).unwrap(), at);
        }
        pool.release_burst(burst);
    }
}

/// Each packet once.
fn nothing_is_lost_or_doubled(received: &[Received]) {
    let mut all: Vec<_> = received.iter().flatten().copied().collect();
    all.sort_unstable();
    let sent: Vec<_> = (0..FLOWS).flat_map(|flow| (0..PACKETS).map(move |number| (flow, number))).collect();
    assert_eq!(all, sent);
}

/// Each flow on one queue, in order.
fn flows_stay_together(received: &[Received]) {
    let mut next = BTreeMap::new();
    for (queue, packets) in received.iter().enumerate() {
        for &(flow, number) in packets {
            let (at, expected) = next.entry(flow).or_insert((queue, 0));
            assert_eq!((*at, *expected), (queue, number), "flow {flow}");
            *expected += 1;
        }
    }
}

fn open(right: &Namespace, config: &PacketConfig) -> (PacketDevice, Vec<PacketPort>) {
    right
        .enter(|| {
            let mut device = PacketDevice::open(config).unwrap();
            let ports = device.take_all().unwrap();
            (device, ports)
        })
        .unwrap()
}

#[test]
fn flows_are_spread_over_queues_and_nothing_is_lost_or_doubled() {
    if !Needs::of("port-packet::flows_are_spread_over_queues").root().command("ip").met() {
        return;
    }
    let (_lab, left, right) = hosts("spread");
    for (queues, layout) in [(2, Layout::Slots), (2, Layout::Blocks), (1, Layout::Blocks), (5, Layout::Slots)] {
        let config = PacketConfig { queues, layout, ..PacketConfig::new("r0") };
        let (device, mut ports) = open(&right, &config);
        assert_eq!((device.rx_queues(), ports.len()), (queues, queues as usize));
        send(&left);
        let received = receive(&mut ports, ALL);
        nothing_is_lost_or_doubled(&received);
        flows_stay_together(&received);
        assert!(received.iter().all(|packets| !packets.is_empty()), "64 flows leave none of {queues} queues empty");
        for port in &mut ports {
            let stats = port.stats();
            assert_eq!((stats.dropped, stats.oversize), (0, 0));
        }
    }
}

#[test]
fn packets_are_spread_in_other_ways_too() {
    if !Needs::of("port-packet::packets_are_spread_in_other_ways_too").root().command("ip").met() {
        return;
    }
    let (_lab, left, right) = hosts("ways");
    for (name, fanout) in Fanout::ALL {
        let config = PacketConfig { queues: 2, fanout, ..PacketConfig::new("r0") };
        let (_device, mut ports) = open(&right, &config);
        send(&left);
        let received = receive(&mut ports, ALL);
        nothing_is_lost_or_doubled(&received);
        let counts = received.iter().map(Vec::len).collect::<Vec<_>>();
        match fanout {
            Fanout::Hash => flows_stay_together(&received),
            // In turn: every other one, but for what the hosts may have to say to each other.
            Fanout::Lb => assert!(counts.iter().all(|count| count.abs_diff(ALL / 2) < 10), "{name}: {counts:?}"),
            Fanout::Rnd => assert!(counts.iter().all(|count| *count > 0), "{name}: {counts:?}"),
            // Nothing is full; the veth has one queue.
            Fanout::Rollover | Fanout::Qm => assert_eq!(counts, [ALL, 0], "{name}"),
            // Which CPUs receive is the machine's business.
            Fanout::Cpu => {}
        }
    }
}

#[test]
fn a_queue_that_is_closed_leaves_its_share_to_the_others_and_can_be_opened_again() {
    if !Needs::of("port-packet::a_queue_that_is_closed").root().command("ip").met() {
        return;
    }
    let (_lab, left, right) = hosts("close");
    let (mut device, mut ports) = open(&right, &PacketConfig { queues: 2, ..PacketConfig::new("r0") });
    assert!(device.take(0).unwrap().is_none() && device.take(2).unwrap().is_none());
    let first = ports.remove(0);
    drop(first);
    let second = ports.pop().unwrap();
    let again = |device: &mut PacketDevice, queue| right.enter(|| device.take(queue)).unwrap().unwrap().unwrap();
    send(&left);
    let mut second_alone = OneLeft(second);
    let all = second_alone.receive(ALL);
    assert_eq!(all.len(), ALL);
    let mut ports = vec![again(&mut device, 0), second_alone.0];
    send(&left);
    let received = receive(&mut ports, ALL);
    nothing_is_lost_or_doubled(&received);
    flows_stay_together(&received);
    assert!(received.iter().all(|packets| !packets.is_empty()));
    // The group goes with its last member; the next one makes another.
    drop(ports);
    let mut ports = vec![again(&mut device, 0), again(&mut device, 1)];
    send(&left);
    nothing_is_lost_or_doubled(&receive(&mut ports, ALL));
}

/// Queue 1 without queue 0.
struct OneLeft(PacketPort);

impl OneLeft {
    fn receive(&mut self, want: usize) -> Received {
        let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
        let mut received = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while received.len() < want {
            assert!(Instant::now() < deadline, "{} of {want}", received.len());
            self.0.rx(0, &mut pool, &mut burst, Burst::MAX).unwrap();
            for frame in burst.frames() {
                assert_eq!(frame.rx_queue(), 1);
                let packet = frame.packet();
                if packet[23] == 17 {
                    let flow = u16::from_be_bytes([packet[34], packet[35]]) - FIRST;
                    received.push((flow, u32::from_be_bytes(packet[42..46].try_into().unwrap())));
                }
            }
            pool.release_burst(&mut burst);
        }
        received
    }
}

#[test]
fn each_queue_has_a_worker_of_its_own() {
    if !Needs::of("port-packet::each_queue_has_a_worker_of_its_own").root().command("ip").met() {
        return;
    }
    let (_lab, left, right) = hosts("crew");
    let device = right.enter(|| PacketDevice::open(&PacketConfig { queues: 2, ..PacketConfig::new("r0") })).unwrap();
    let engine = Engine::start(EngineConfig { workers: 2, ..EngineConfig::default() }).unwrap();
    let queues = Some(vec![(0, 0), (1, 1)]);
    engine.open(Box::new(device.unwrap()), PortConfig { queues, ..PortConfig::default() }).unwrap();
    send(&left);
    let passed = || engine.queues().iter().map(|queue| queue.counters.passed).sum::<u64>();
    let deadline = Instant::now() + Duration::from_secs(60);
    while passed() < ALL as u64 {
        assert!(Instant::now() < deadline, "{} of {ALL}", passed());
        std::thread::yield_now();
    }
    let stopped = engine.stop();
    for queue in &stopped.queues {
        assert!(queue.counters.rx > 0, "queue {}", queue.queue);
        assert_eq!((queue.counters.balance(), queue.leak), (Ok(()), None));
    }
    assert!(stopped.queues.iter().map(|queue| queue.counters.rx).sum::<u64>() >= ALL as u64);
}

#[test]
fn numbers_of_queues_that_make_no_sense_are_refused() {
    for queues in [0, 257] {
        let config = PacketConfig { queues, ..PacketConfig::new("lo") };
        let refused = PacketDevice::open(&config).err().unwrap();
        assert!(matches!(refused, OpenError::Queues { .. }));
        assert_eq!(refused.to_string(), format!("{queues} queues: a packet socket's group has 1 to 256 members"));
    }
}
