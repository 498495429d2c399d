//! CPUMAP: frames that go on on another worker.
//!
//! Each entry of a map has a ring of its own, made when the first frame goes there, with the entry's `qsize` as its limit. The
//! worker that the entry names runs the entry's program over what comes out, in bursts, and passes the frames to the stack side
//! of the port that they came in on, or wherever that program sends them.

use std::sync::Arc;

use parking_lot::Mutex;
use xway_abi::Errno;
use xway_maps::{Guard, ProgramObject, Target};
use xway_packet::ring::frames::{FrameReceiver, FrameSender, ring};
use xway_packet::{Burst, Frame};

use super::{Core, Site};
use crate::crew::Mailbox;

/// What the workers of an engine know of each other.
#[derive(Default)]
pub(crate) struct Crew {
    /// Mailboxes by number; empty for a worker that is alone.
    mails: Mutex<Vec<Arc<Mailbox>>>,
    /// The ring of each entry: map, CPU, its room, the end to put frames into.
    rings: Mutex<Vec<(u32, u32, u32, FrameSender)>>,
}

impl Crew {
    pub(crate) fn join(&self, mail: Arc<Mailbox>) {
        self.mails.lock().push(mail);
    }

    /// Whether frames ever went through one of these maps.
    pub(crate) fn has_rings(&self, maps: &[u32]) -> bool {
        self.rings.lock().iter().any(|(map_id, ..)| maps.contains(map_id))
    }

    /// Forgets the rings of maps that are not among these.
    pub(crate) fn keep_maps(&self, known: &dyn Fn(u32) -> bool) {
        self.rings.lock().retain(|(map_id, ..)| known(*map_id));
    }
}

/// The near end of one entry's ring.
pub(crate) struct CpuOut {
    map_id: u32,
    cpu: u32,
    qsize: u32,
    sender: FrameSender,
    mail: Option<Arc<Mailbox>>,
    pub(crate) burst: Burst,
    /// Frames that this worker put into the map's rings for this CPU so far.
    handed: u64,
}

/// The far end.
pub(crate) struct CpuInlet {
    map_id: u32,
    cpu: u32,
    receiver: FrameReceiver,
    /// The entry's program when it was last looked at. In Linux a queue outlives its entry until what waits in it has met the program.
    program: Option<Arc<dyn ProgramObject>>,
}

impl CpuInlet {
    pub(crate) fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }
}

impl Core {
    /// Puts a frame into the burst for an entry, and says which of `cpu_outs` that is.
    ///
    /// # Errors
    /// `ENODEV` when the engine has no such worker; `ENOMEM` when the entry can have no ring; `ENOENT` when it has gone and never had
    /// one. The frame is given back.
    pub(super) fn hand_to_cpu(
        &mut self,
        map_id: u32,
        cpu: u32,
        qsize: Option<u32>,
        frame: Frame,
    ) -> Result<usize, (Frame, Errno)> {
        // Of an entry that has gone: the youngest.
        let same =
            |out: &CpuOut| (out.map_id, out.cpu) == (map_id, cpu) && qsize.is_none_or(|qsize| out.qsize == qsize);
        let at = match self.cpu_outs.iter().rposition(same) {
            Some(at) => at,
            None => match self.open_ring(map_id, cpu, qsize) {
                Ok(at) => at,
                Err(errno) => return Err((frame, errno)),
            },
        };
        self.cpu_outs[at].burst.push(frame).map_err(|frame| (frame, Errno::ENOSPC))?;
        Ok(at)
    }

    /// Finds the ring of an entry or makes it, once for all workers. Off the packets' way: once for each worker and entry.
    #[cold]
    fn open_ring(&mut self, map_id: u32, cpu: u32, qsize: Option<u32>) -> Result<usize, Errno> {
        let crew = self.crew.clone();
        let mails = crew.mails.lock();
        let alone = mails.is_empty();
        if cpu as usize >= mails.len().max(1) {
            return Err(Errno::ENODEV);
        }
        let mail = mails.get(cpu as usize).cloned();
        drop(mails);
        let mut rings = crew.rings.lock();
        let known =
            rings.iter().rfind(|ring| (ring.0, ring.1) == (map_id, cpu) && qsize.is_none_or(|qsize| ring.2 == qsize));
        let (qsize, sender) = match (known, qsize) {
            (Some((.., qsize, sender)), _) => (*qsize, sender.clone()),
            (None, None) => return Err(Errno::ENOENT),
            (None, Some(qsize)) => {
                let (sender, receiver) = ring(qsize.max(2).next_power_of_two()).map_err(|_| Errno::ENOMEM)?;
                let guard = Guard::pin();
                let program = match self.targets.map(map_id).map(|map| map.target(cpu, &guard)) {
                    None => None,
                    Some(Some(Target::Cpu { program, .. })) => program.cloned(),
                    Some(_) => return Err(Errno::ENOENT),
                };
                let inlet = CpuInlet { map_id, cpu, receiver, program };
                if alone || cpu == self.number {
                    self.cpu_inlets.push(inlet);
                } else if let Some(mail) = &mail {
                    mail.post(Box::new(move |core| core.cpu_inlets.push(inlet)));
                }
                rings.push((map_id, cpu, qsize, sender.clone()));
                (qsize, sender)
            }
        };
        // An entry with another queue size has another ring from now on.
        let same = |out: &&CpuOut| (out.map_id, out.cpu) == (map_id, cpu);
        let handed = self.cpu_outs.iter().filter(same).map(|out| out.handed).sum();
        self.cpu_outs.retain(|out| !same(&out) || !out.burst.is_empty());
        self.cpu_outs.push(CpuOut { map_id, cpu, qsize, sender, mail, burst: Burst::new(), handed });
        Ok(self.cpu_outs.len() - 1)
    }

    /// Hands each entry's burst over, and rings its worker's bell once. What has no room is dropped and counted.
    pub(super) fn send_to_cpus(&mut self, site: Site) {
        for at in 0..self.cpu_outs.len() {
            let out = &mut self.cpu_outs[at];
            if out.burst.is_empty() {
                continue;
            }
            let room = (out.qsize as usize).saturating_sub(out.sender.len());
            let sent = out.sender.send_first(&mut out.burst, room);
            if let Some(mail) = &out.mail {
                mail.wake.ring();
            }
            let lost = out.burst.len();
            let pool = &mut self.pools[self.source.pool];
            pool.release_burst(&mut out.burst);
            self.source.meters.redirected.add(sent as u64);
            self.handed += sent as u64;
            out.handed += sent as u64;
            if lost > 0 {
                let target = xway_packet::Redirect::Cpu { map_id: out.map_id, cpu: out.cpu };
                self.redirect_lost(site, target, Errno::ENOSPC, lost);
            }
        }
    }

    /// Runs what came over CPUMAPs. Says whether there was anything.
    pub(super) fn serve_cpus(&mut self, burst: &mut Burst) -> bool {
        let mut busy = false;
        for at in 0..self.cpu_inlets.len() {
            let inlet = &mut self.cpu_inlets[at];
            if inlet.receiver.receive(burst, Burst::MAX) == 0 {
                continue;
            }
            busy = true;
            let (map_id, cpu) = (inlet.map_id, inlet.cpu);
            let guard = Guard::pin();
            if let Some(Target::Cpu { program, .. }) = self.targets.map(map_id).and_then(|map| map.target(cpu, &guard))
            {
                let id = |program: &Arc<dyn ProgramObject>| program.id();
                if program.map(id) != inlet.program.as_ref().map(id) {
                    inlet.program = program.cloned();
                }
            }
            let program = inlet.program.as_ref().and_then(|program| self.extras.position(program, self.number));
            drop(guard);
            for frame in burst.frames_mut() {
                // Linux forgets the receive queue here. Written only where it must be: the descriptor's line is the sender's.
                if frame.rx_queue() != 0 {
                    frame.set_ingress(frame.ingress_ifindex(), 0);
                }
            }
            self.cpu_meters.cpu_in.add(burst.len() as u64);
            self.process(Site::Cpu { program }, burst);
        }
        busy
    }

    /// Between two bursts, when the maps have changed: the rings of maps that are no more go, and are given back. Nothing is in them: see
    /// `retired` of the engine.
    pub(super) fn prune_cpus(&mut self) -> (Vec<CpuOut>, Vec<CpuInlet>) {
        let targets = &self.targets;
        let unknown = |map_id| targets.map(map_id).is_none();
        let outs = self.cpu_outs.extract_if(.., |out| unknown(out.map_id)).collect();
        let inlets = self.cpu_inlets.extract_if(.., |inlet| unknown(inlet.map_id) && inlet.is_empty()).collect();
        (outs, inlets)
    }

    /// Between two bursts: how many frames the worker has put into the rings of these maps so far; `None` while some of theirs wait
    /// for it.
    pub(crate) fn handed_through(&self, maps: &[u32]) -> Option<u64> {
        let waiting = self.cpu_inlets.iter().any(|inlet| maps.contains(&inlet.map_id) && !inlet.is_empty());
        let handed = self.cpu_outs.iter().filter(|out| maps.contains(&out.map_id)).map(|out| out.handed).sum();
        (!waiting).then_some(handed)
    }

    /// Between two bursts: how many frames the worker has handed to others so far, in any way; `None` while some wait for it.
    pub(crate) fn handed(&self) -> Option<u64> {
        let waiting = self.cpu_inlets.iter().any(|inlet| !inlet.is_empty())
            || self.lanes.iter().any(|lane| lane.inlet.as_ref().is_some_and(|inlet| !inlet.is_empty()));
        (!waiting).then_some(self.handed)
    }

    /// The end is near: what comes over CPUMAPs is not processed any more.
    pub(crate) fn park_cpus(&mut self) {
        self.cpu_parked.append(&mut self.cpu_inlets);
    }

    /// Gives up what came over CPUMAPs and was not processed, once nobody hands on anything: counted.
    pub(crate) fn give_up_cpus(&mut self) {
        self.park_cpus();
        let mut burst = Burst::new();
        for mut inlet in std::mem::take(&mut self.cpu_parked) {
            while inlet.receiver.receive(&mut burst, Burst::MAX) > 0 {
                self.cpu_meters.cpu_lost.add(burst.len() as u64);
                self.pools[0].release_burst(&mut burst);
            }
        }
    }
}
