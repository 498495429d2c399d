//! An interface between two processes: its program stays where it is, and what finds no socket is dropped and counted instead of passing.
//!
//! ```text
//! old process                          program on the link                          new process
//! shut ── exchanges the program ──>    to a socket, else DROP, counted by queue
//! closes its sockets                   DROP: 1, 2, 3 …
//!   └── link, XSKMAP, counters ─────────────────────────────────────────────>       adopts them
//!                                      to a socket again                <──         opens its sockets, puts them into the XSKMAP
//!                                      to a socket, else PASS           <──         open: exchanges the program back
//! ```
//!
//! So nothing goes past the programs of the two to the host. Packets of queues that are not this port's pass, as always.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xway_abi::{Errno, MapSpec, MapType, Verdict};
use xway_isa::Slot;
use xway_kernel::{KernelError, KernelMap, KernelProg, ProgSpec, XdpLink, XdpMode, consts};

use crate::AfXdpConfig;
use crate::attach::Redirect;
use crate::error::OpenError;

/// The redirect program of an interface, once there is one.
pub(crate) type Shelf = Arc<Mutex<Option<Arc<Redirect>>>>;

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was lost between two processes, by queue.
#[derive(Default)]
pub(crate) struct Lost {
    /// What the gate counts; there is one while it is shut and afterwards.
    gap: Option<KernelMap>,
    /// What lay in rings that were given up: received, and to be sent.
    rings: BTreeMap<u32, (u64, u64)>,
    /// Another process has the link, too: it is not this one's to detach.
    pub(crate) handed_on: bool,
}

impl Lost {
    /// Packets of a queue: dropped while nobody received, and left in its rings, received and to be sent.
    pub(crate) fn of(&self, queue: u32) -> (u64, (u64, u64)) {
        let gap = self.gap.as_ref().and_then(|map| map.get(&queue.to_ne_bytes()).ok());
        let gap = gap.and_then(|bytes| Some(u64::from_ne_bytes(bytes[..].try_into().ok()?)));
        (gap.unwrap_or(0), self.rings.get(&queue).copied().unwrap_or_default())
    }

    /// So many packets lay in the rings of a queue that was given up.
    pub(crate) fn leave(&mut self, queue: u32, (unread, unsent): (u64, u64)) {
        // Without a gate the interface is given up as a whole.
        if self.gap.is_some() {
            let left = self.rings.entry(queue).or_default();
            *left = (left.0 + unread, left.1 + unsent);
        }
    }
}

/// Numbers that go along with the descriptors: of the first piece the queues and the mode, of the others what was left in the rings of a queue.
pub type Numbers = Vec<[u32; 5]>;

/// What another process can go on with: the interface stays closed to the host between the two.
pub struct Kept {
    shelf: Shelf,
    config: AfXdpConfig,
    /// First queue and number of queues, and all that the interface has.
    queues: (u32, u32),
    have: u32,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept")
            .field("interface", &self.config.interface)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}

impl Kept {
    pub(crate) fn new(shelf: &Shelf, config: &AfXdpConfig, queues: (u32, u32), have: u32) -> Kept {
        Kept { shelf: shelf.clone(), config: config.clone(), queues, have }
    }

    /// How many queues there are.
    pub fn queues(&self) -> u32 {
        self.queues.1
    }

    fn redirect(&self) -> Option<Arc<Redirect>> {
        locked(&self.shelf).clone()
    }

    /// What finds no socket on this port's queues is dropped from now on, and counted. To be said before the sockets are closed.
    ///
    /// # Errors
    /// [`OpenError`]: the program is not ours, or somebody took it away; the kernel refuses.
    pub fn shut(&self) -> Result<(), OpenError> {
        let redirect = self.redirect();
        let linked = redirect.as_deref().and_then(|redirect| Some((redirect, redirect.link.as_ref()?)));
        let attached = |link: &XdpLink| link.info().is_ok_and(|info| info.ifindex.is_some());
        let Some((redirect, link)) = linked.filter(|(_, link)| attached(link)) else {
            return Err(OpenError::NotOurs { interface: self.config.interface.clone() });
        };
        let counters = create("xway_gap", MapType::Array, 8, self.have)?;
        link.replace(&load(&self.config, &gate(redirect, &counters, self.queues))?)?;
        // What was lost before was of another upgrade.
        *locked(&redirect.lost) = Lost { gap: Some(counters), ..Lost::default() };
        Ok(())
    }

    /// The sockets are in their places: what finds none passes again, as on any other queue.
    ///
    /// # Errors
    /// [`OpenError`]: the kernel refuses. Then it is dropped and counted as before.
    pub fn open(&self) -> Result<(), OpenError> {
        let Some(redirect) = self.redirect() else { return Ok(()) };
        match &redirect.link {
            Some(link) if locked(&redirect.lost).gap.is_some() => {
                Ok(link.replace(&load(&self.config, &redirect.program())?)?)
            }
            _ => Ok(()),
        }
    }

    /// The descriptors and numbers for [`crate::AfXdpDevice::adopt`], when the gate is shut and the ports are closed.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn parts(&self) -> std::io::Result<Option<(Vec<OwnedFd>, Numbers)>> {
        let Some(redirect) = self.redirect() else { return Ok(None) };
        let mut lost = locked(&redirect.lost);
        let (Some(link), Some(gap)) = (&redirect.link, &lost.gap) else { return Ok(None) };
        let fds = [link.as_fd(), redirect.map.as_fd(), gap.as_fd()].into_iter().map(|fd| fd.try_clone_to_owned());
        let generic = u32::from(redirect.mode == Some(XdpMode::Generic));
        let halves = |number: u64| (number as u32, (number >> 32) as u32);
        let rings = lost.rings.iter().map(|(queue, (unread, unsent))| {
            let ((a, b), (c, d)) = (halves(*unread), halves(*unsent));
            [*queue, a, b, c, d]
        });
        let numbers = std::iter::once([self.queues.0, self.queues.1, generic, 0, 0]).chain(rings).collect();
        let fds = fds.collect::<Result<_, _>>()?;
        lost.handed_on = true;
        Ok(Some((fds, numbers)))
    }
}

/// The program that another process has left on the interface with this number.
pub(crate) fn adopt(
    config: &AfXdpConfig,
    ifindex: u32,
    queues: (u32, u32),
    (fds, numbers): (Vec<OwnedFd>, Numbers),
) -> Result<Redirect, OpenError> {
    let other = || OpenError::Other { interface: config.interface.clone() };
    let [link, map, gap]: [OwnedFd; 3] = fds.try_into().map_err(|_| other())?;
    let (link, map, gap) = (XdpLink::adopt(link)?, KernelMap::adopt(map)?, KernelMap::adopt(gap)?);
    let Some((&[first, count, generic, ..], rings)) = numbers.split_first() else { return Err(other()) };
    let mode = if generic != 0 { XdpMode::Generic } else { XdpMode::Native };
    let wanted = config.mode == XdpMode::Any || config.mode == mode;
    let here = link.info()?.ifindex == Some(ifindex);
    let kinds = (map.spec().map_type, gap.spec().map_type) == (MapType::Xskmap, MapType::Array);
    if !here || !wanted || !kinds || (first, count) != queues {
        return Err(other());
    }
    // An executable from before says nothing of what was to be sent: zeros.
    let whole = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let rings = rings.iter().map(|&[queue, a, b, c, d]| (queue, (whole(a, b), whole(c, d)))).collect();
    let reason =
        (mode == XdpMode::Generic && config.mode == XdpMode::Any).then(|| "the driver has no native hook".to_owned());
    let lost = Mutex::new(Lost { gap: Some(gap), rings, handed_on: false });
    Ok(Redirect { map, mode: Some(mode), reason, link: Some(link), lost })
}

pub(crate) fn create(name: &str, map_type: MapType, value_size: u32, entries: u32) -> Result<KernelMap, KernelError> {
    let failed = |errno: Errno| KernelError::Map { name: name.into(), step: "creating it", errno };
    KernelMap::create(name, &MapSpec::new(map_type, 4, value_size, entries)).map_err(failed)
}

pub(crate) fn load(config: &AfXdpConfig, insns: &[Slot]) -> Result<KernelProg, KernelError> {
    let flags = if config.frags { consts::F_XDP_HAS_FRAGS } else { 0 };
    KernelProg::load(&ProgSpec { flags, ..ProgSpec::xdp(xway_abi::xsk::AFXDP_PROGRAM, insns) })
}

const BPF_PSEUDO_MAP_FD: u8 = 1;

/// To the socket of the queue; where there is none: one more in the queue's counter, and DROP. Queues outside `first .. first + count` pass.
fn gate(redirect: &Redirect, counters: &KernelMap, (first, count): (u32, u32)) -> [Slot; 22] {
    const RX_QUEUE_INDEX: i16 = 16;
    const LOOKUP: i32 = 1;
    const REDIRECT_MAP: i32 = 51;
    let slot = |opcode, dst, src, off, imm| Slot { opcode, dst, src, off, imm };
    let fd = |map: &KernelMap| map.as_fd().as_raw_fd();
    let (drop, pass, redirected) = (Verdict::Drop as i32, Verdict::Pass as i32, Verdict::Redirect as i32);
    [
        slot(0x61, 6, 1, RX_QUEUE_INDEX, 0),
        slot(0xbf, 2, 6, 0, 0),
        slot(0x18, 1, BPF_PSEUDO_MAP_FD, 0, fd(&redirect.map)),
        slot(0, 0, 0, 0, 0),
        slot(0xb7, 3, 0, 0, drop),
        slot(0x85, 0, 0, 0, REDIRECT_MAP),
        slot(0x15, 0, 0, 14, redirected),             // to the last exit
        slot(0xa5, 6, 0, 12, first as i32),           // to `pass`
        slot(0x35, 6, 0, 11, (first + count) as i32), // to `pass`
        slot(0x63, 10, 6, -4, 0),
        slot(0xbf, 2, 10, 0, 0),
        slot(0x07, 2, 0, 0, -4),
        slot(0x18, 1, BPF_PSEUDO_MAP_FD, 0, fd(counters)),
        slot(0, 0, 0, 0, 0),
        slot(0x85, 0, 0, 0, LOOKUP),
        slot(0x15, 0, 0, 2, 0), // to `drop`
        slot(0xb7, 1, 0, 0, 1),
        slot(0xdb, 0, 1, 0, 0), // an atomic addition of eight bytes
        slot(0xb7, 0, 0, 0, drop),
        slot(0x95, 0, 0, 0, 0),
        slot(0xb7, 0, 0, 0, pass),
        slot(0x95, 0, 0, 0, 0),
    ]
}
