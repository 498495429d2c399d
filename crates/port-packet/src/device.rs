//! An interface with its queues.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, Weak};

use xway_engine::{Capabilities, Device, Port, PortError, PortErrorKind};
use xway_packet::Pool;

use crate::config::PacketConfig;
use crate::error::OpenError;
use crate::port::{Gate, PacketPort, Receiver, find_interface};
use crate::ring::{End, Place};

/// An interface through packet sockets, one for each queue. The kernel gives each packet to one of them (`PACKET_FANOUT`).
///
/// A queue that nobody serves fills up and loses what comes for it, as one of a card does. One that is closed leaves its share to the
/// others; opened again it takes it back, and what arrives for it in that moment is not received but counted (`joining`). What lies in a ring
/// that is closed is counted too (`unread`).
pub struct PacketDevice {
    name: String,
    config: PacketConfig,
    ifindex: u32,
    /// The kernel's number for the group; `None` with one queue.
    group: Option<u16>,
    queues: Vec<Queue>,
}

/// What another process needs to go on with an interface's queues: while it is there the kernel fills their rings, whoever reads them.
#[derive(Debug)]
pub struct Kept(Vec<(OwnedFd, End)>);

impl Kept {
    /// Queue by queue, the socket and where its ring goes on: true once the ports are closed.
    pub fn queues(&self) -> impl Iterator<Item = (&OwnedFd, Place)> {
        self.0.iter().map(|(socket, end)| (socket, *end.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

enum Queue {
    /// Receives, and waits for somebody to take it.
    Waiting(Box<PacketPort>),
    /// Somebody has it, as long as this is held.
    Taken(Weak<()>),
}

impl PacketDevice {
    /// Opens an interface of the network namespace that the calling thread is in, with all its queues.
    ///
    /// # Errors
    /// [`OpenError`]: the interface is missing, down or of another kind, the process may not, or the number of queues makes no sense.
    pub fn open(config: &PacketConfig) -> Result<PacketDevice, OpenError> {
        if !(1..=PacketConfig::QUEUES_MAX).contains(&config.queues) {
            return Err(OpenError::Queues { queues: config.queues, max: PacketConfig::QUEUES_MAX });
        }
        config.shape()?;
        let ifindex = find_interface(&config.interface)?;
        let member = config.queues > 1;
        let gate = if member { Gate::Shut } else { Gate::Open };
        let open = |_| Receiver::open(config, ifindex, gate);
        let receivers = (0..config.queues).map(open).collect::<Result<Vec<_>, _>>()?;
        let mut group = None;
        if member {
            // All are members before the first one receives, so that no packet comes twice.
            for receiver in &receivers {
                group = Some(receiver.join(config, group)?);
            }
            receivers.iter().try_for_each(Receiver::begin)?;
        }
        let port = |receiver| PacketPort::new(config, ifindex, Some(receiver)).map(Box::new).map(Queue::Waiting);
        let queues = receivers.into_iter().map(port).collect::<Result<Vec<_>, _>>()?;
        let name = format!("packet:{}", config.interface);
        Ok(PacketDevice { name, config: config.clone(), ifindex, group, queues })
    }

    /// Goes on with the queues that another process had ([`PacketDevice::keep`]): what came meanwhile lies in their rings, and is
    /// received.
    ///
    /// # Errors
    /// [`OpenError`]: as [`PacketDevice::open`], or the sockets are another interface's, or their rings have another shape than `config`
    /// says.
    pub fn adopt(config: &PacketConfig, queues: Vec<(OwnedFd, Place)>) -> Result<PacketDevice, OpenError> {
        if queues.len() != config.queues as usize {
            return Err(OpenError::Queues { queues: queues.len() as u32, max: config.queues });
        }
        let ifindex = find_interface(&config.interface)?;
        let adopt = |queue| Receiver::adopt(config, ifindex, queue);
        let receivers = queues.into_iter().map(adopt).collect::<Result<Vec<_>, _>>()?;
        let group = receivers.first().filter(|_| config.queues > 1).map(Receiver::group).transpose()?;
        let port = |receiver| PacketPort::new(config, ifindex, Some(receiver)).map(Box::new).map(Queue::Waiting);
        let queues = receivers.into_iter().map(port).collect::<Result<Vec<_>, _>>()?;
        let name = format!("packet:{}", config.interface);
        Ok(PacketDevice { name, config: config.clone(), ifindex, group, queues })
    }

    /// What another process can go on with when this one has closed the ports; `None` when somebody has one already.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn keep(&self) -> std::io::Result<Option<Kept>> {
        let kept = self.queues.iter().map(|queue| match queue {
            Queue::Waiting(port) => port.keep(),
            Queue::Taken(_) => Ok(None),
        });
        Ok(kept.collect::<std::io::Result<Option<Vec<_>>>>()?.map(Kept))
    }

    /// A queue as a port; `None` when there is no such queue or somebody has it.
    ///
    /// # Errors
    /// [`OpenError`], when a queue that was closed cannot be opened again.
    pub fn take(&mut self, queue: u32) -> Result<Option<PacketPort>, OpenError> {
        let waits = match self.queues.get(queue as usize) {
            Some(Queue::Taken(holder)) if holder.strong_count() == 0 => false,
            Some(Queue::Waiting(_)) => true,
            _ => return Ok(None),
        };
        let again = if waits { None } else { Some(self.again()?) };
        let holder = Arc::new(());
        let taken = std::mem::replace(&mut self.queues[queue as usize], Queue::Taken(Arc::downgrade(&holder)));
        let port = match taken {
            Queue::Waiting(port) => Some(*port),
            Queue::Taken(_) => again,
        };
        Ok(port.map(|port| port.of_device(queue, holder)))
    }

    /// All queues as ports that nobody has.
    ///
    /// # Errors
    /// As [`PacketDevice::take`].
    pub fn take_all(&mut self) -> Result<Vec<PacketPort>, OpenError> {
        let taken = (0..self.queues.len() as u32).map(|queue| self.take(queue)).collect::<Result<Vec<_>, _>>()?;
        Ok(taken.into_iter().flatten().collect())
    }

    /// Another socket for a queue that was closed.
    fn again(&mut self) -> Result<PacketPort, OpenError> {
        let gate = if self.group.is_some() { Gate::Marks } else { Gate::Open };
        let mut receiver = Receiver::open(&self.config, self.ifindex, gate)?;
        if let Some(group) = self.group {
            // The group is gone when its last member is; whoever is first makes another one.
            let there = self.queues.iter().any(|queue| match queue {
                Queue::Waiting(_) => true,
                Queue::Taken(holder) => holder.strong_count() > 0,
            });
            self.group = Some(receiver.join_in_traffic(&self.config, there.then_some(group))?);
            receiver.begin()?;
        }
        PacketPort::new(&self.config, self.ifindex, Some(receiver))
    }
}

impl Device for PacketDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn capabilities(&self) -> Capabilities {
        PacketPort::offers()
    }

    fn rx_queues(&self) -> u32 {
        self.queues.len() as u32
    }

    fn open_queue(&mut self, queue: u32, _: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        let count = self.queues.len();
        match self.take(queue) {
            Ok(Some(port)) => Ok(Box::new(port)),
            Ok(None) => {
                let why = format!("queue {queue} of {count} is open, or there is none");
                Err(PortError::new(&*self.name, PortErrorKind::Input, why))
            }
            Err(error) => Err(error.into_port_error(&self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use xway_packet::{Burst, PoolConfig};
    use xway_testkit::{Lab, Needs};

    use super::*;
    use crate::config::{Fanout, Layout};

    /// Sends packets out of the other end of the cable.
    fn send(sender: &mut PacketPort, pool: &mut Pool, count: usize) {
        let mut burst = Burst::new();
        for _ in 0..count {
            let mut frame = pool.alloc().unwrap();
            frame.fill(&[0x88; 60]).unwrap();
            burst.push(frame).unwrap();
        }
        assert_eq!(sender.tx(0, pool, &mut burst).sent as usize, count);
    }

    /// Receives until the port has had so many packets: with them everything that was sent before has come.
    fn receive(port: &mut PacketPort, pool: &mut Pool, rx: u64) {
        let (mut burst, until) = (Burst::new(), Instant::now() + Duration::from_secs(30));
        while port.stats().rx < rx {
            assert!(Instant::now() < until, "{:?}", port.stats());
            let wanted = (rx - port.stats().rx) as usize;
            port.rx(0, pool, &mut burst, wanted).unwrap();
            pool.release_burst(&mut burst);
        }
    }

    fn other(port: &mut PacketPort, name: &str) -> u64 {
        port.stats().other.iter().find(|(known, _)| *known == name).map_or(0, |&(_, count)| count)
    }

    /// Each step by itself: what comes between the two calls of a queue that is opened again, and what lies in a ring that is closed.
    #[test]
    fn what_is_lost_when_a_queue_comes_or_goes_is_counted() {
        if !Needs::of("port-packet::what_is_lost_when_a_queue_comes_or_goes").root().command("ip").met() {
            return;
        }
        let lab = Lab::new("comes").unwrap();
        let [left, right] = ["left", "right"].map(|name| lab.namespace(name).unwrap());
        lab.veth(&left, "l0", &right, "r0").unwrap();
        let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
        let mut sender = left.enter(|| PacketPort::open_sender(&PacketConfig::new("l0"))).unwrap().unwrap();
        for layout in [Layout::Slots, Layout::Blocks] {
            let config = PacketConfig { queues: 2, layout, fanout: Fanout::Lb, ..PacketConfig::new("r0") };
            let (device, mut first, second) = right
                .enter(|| {
                    let mut device = PacketDevice::open(&config).unwrap();
                    let mut ports = device.take_all().unwrap().into_iter();
                    (device, ports.next().unwrap(), ports.next().unwrap())
                })
                .unwrap();
            drop(second);
            let open = || Receiver::open(&config, device.ifindex, Gate::Marks);
            let mut receiver = right.enter(open).unwrap().unwrap();
            // All for the first queue; the second socket's copies are no loss.
            send(&mut sender, &mut pool, 10);
            receive(&mut first, &mut pool, 10);
            receiver.join_in_traffic(&config, device.group).unwrap();
            // In turn, and the second has not begun.
            send(&mut sender, &mut pool, 10);
            receive(&mut first, &mut pool, 15);
            receiver.begin().unwrap();
            send(&mut sender, &mut pool, 10);
            let mut again = PacketPort::new(&config, device.ifindex, Some(receiver)).unwrap();
            receive(&mut first, &mut pool, 20);
            receive(&mut again, &mut pool, 5);
            assert_eq!((first.stats().rx, again.stats().rx, other(&mut again, "joining")), (20, 5, 5), "{layout:?}");
            assert_eq!((first.stats().other, again.stats().dropped), (vec![], 0), "{layout:?}");
            // Two are read, the others of its half not.
            send(&mut sender, &mut pool, 20);
            receive(&mut again, &mut pool, 7);
            receive(&mut first, &mut pool, 30);
            again.close(&mut pool);
            assert_eq!((again.stats().rx, other(&mut again, "unread")), (7, 8), "{layout:?}");
            // One that somebody goes on with is not lost.
            send(&mut sender, &mut pool, 3);
            let kept = first.keep().unwrap();
            first.close(&mut pool);
            assert_eq!((kept.is_some(), other(&mut first, "unread")), (true, 0), "{layout:?}");
        }
        drop(sender);
        pool.close().unwrap();
    }
}
