//! From a redirect target in plain numbers to ports.

use std::sync::Arc;

use xway_abi::Errno;
use xway_maps::{Guard, Map, ProgramObject, Target};
use xway_packet::{Frame, Redirect};

use crate::lane::Pass;

/// Who can be redirected to. Ports have numbers: first the worker's own, then those of others.
#[derive(Default)]
pub(crate) struct Targets {
    ports: Vec<Reach>,
    /// Maps that frames may name: those of the attached programs.
    maps: Vec<Arc<Map>>,
    /// Others, of programs that are reached by tail calls or stand in entries, and come from other objects.
    strangers: Vec<Arc<Map>>,
    /// Port for interfaces that are none of the ports.
    fallback: Option<Reach>,
}

/// A port that can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    pub(crate) ifindex: u32,
    /// Number of the port.
    pub(crate) number: usize,
    /// Whether frames can be redirected to it.
    pub(crate) takes: bool,
    /// The longest frame that it sends.
    pub(crate) frame_max: u32,
    /// Whether it takes frames of several buffers.
    pub(crate) parts: bool,
    /// Where PASS goes for frames that came in on it.
    pub(crate) pass: Pass,
}

/// One port that a frame goes to, with the program that runs on its way out.
#[derive(Clone, Copy)]
pub(crate) struct Exit<'g> {
    pub(crate) number: usize,
    pub(crate) ifindex: u32,
    pub(crate) program: Option<&'g Arc<dyn ProgramObject>>,
}

/// Where a redirected frame goes.
pub(crate) enum Goal<'g> {
    /// To a port.
    Port(Exit<'g>),
    /// To all ports of a device map.
    Ports { map: &'g Map, except: u32 },
    /// To the worker with this number, whose queue for this entry holds so many frames; `None`: the entry has gone since the program ran.
    Cpu { map_id: u32, cpu: u32, qsize: Option<u32> },
    /// To a socket.
    Socket(&'g Arc<dyn xway_maps::SocketObject>),
}

impl Targets {
    pub(crate) fn new(ports: Vec<Reach>, maps: Vec<Arc<Map>>, fallback: Option<Reach>) -> Targets {
        Targets { ports, maps, strangers: Vec::new(), fallback }
    }

    /// Other ports than before.
    pub(crate) fn set_ports(&mut self, ports: Vec<Reach>) {
        self.ports = ports;
    }

    /// Other maps than before; gives back the old ones.
    pub(crate) fn set_maps(&mut self, maps: Vec<Arc<Map>>) -> Vec<Arc<Map>> {
        let mut old = std::mem::replace(&mut self.maps, maps);
        old.append(&mut self.strangers);
        old
    }

    /// Gets to know the map that this target names, if nobody told of it. Off the packets' way: once for each map.
    #[inline]
    pub(crate) fn meet(&mut self, target: Redirect) {
        let (Redirect::Device { map_id, .. }
        | Redirect::Broadcast { map_id, .. }
        | Redirect::Cpu { map_id, .. }
        | Redirect::Socket { map_id, .. }) = target
        else {
            return;
        };
        if self.map(map_id).is_none() {
            self.strangers.extend(Map::find(map_id));
        }
    }

    /// All maps.
    pub(crate) fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// The map with this id.
    pub(crate) fn map(&self, id: u32) -> Option<&Arc<Map>> {
        self.maps.iter().chain(&self.strangers).find(|map| map.id() == id)
    }

    /// Resolves a target.
    ///
    /// # Errors
    /// Linux's, where it has one: `EBADRQC` when no helper chose a target, `EINVAL` when `bpf_redirect` named an interface that
    /// does not exist, `EOPNOTSUPP` for a port that nothing can be redirected to or that takes no frames of several buffers,
    /// `EMSGSIZE` for a frame that is too long for it. `ENODEV` when an entry of a map names a port that is not there, `ENOENT`
    /// when the entry or the map has gone since the program ran.
    pub(crate) fn resolve<'g>(&'g self, frame: &Frame, guard: &'g Guard) -> Result<Goal<'g>, Errno> {
        let entry = |map_id, key| self.map(map_id).and_then(|map| map.target(key, guard)).ok_or(Errno::ENOENT);
        match frame.redirect() {
            Redirect::None => Err(Errno::EBADRQC),
            Redirect::Ifindex(ifindex) => {
                let reach = self.reach(ifindex).ok_or(Errno::EINVAL)?;
                admit(reach, frame)?;
                Ok(Goal::Port(Exit { number: reach.number, ifindex, program: None }))
            }
            Redirect::Device { map_id, key, ifindex } => {
                let reach = self.reach(ifindex).ok_or(Errno::ENODEV)?;
                // A worker that was told of no maps runs no programs of them.
                if self.map(map_id).is_none() {
                    admit(reach, frame)?;
                    return Ok(Goal::Port(Exit { number: reach.number, ifindex, program: None }));
                }
                // Linux goes by the entry that the program met. Device and program are one entry's here too: where that has been exchanged
                // since, or taken out, no frame leaves past a program that looks at what goes there.
                let Target::Device { ifindex, program } = entry(map_id, key)? else { return Err(Errno::ENOENT) };
                let reach = self.reach(ifindex).ok_or(Errno::ENODEV)?;
                admit(reach, frame)?;
                Ok(Goal::Port(Exit { number: reach.number, ifindex, program }))
            }
            Redirect::Broadcast { map_id, exclude_ingress } => {
                let map = self.map(map_id).ok_or(Errno::ENOENT)?;
                Ok(Goal::Ports { map, except: if exclude_ingress { frame.ingress_ifindex() } else { 0 } })
            }
            Redirect::Cpu { map_id, cpu } => {
                let qsize = match entry(map_id, cpu) {
                    Ok(Target::Cpu { qsize, .. }) => Some(qsize),
                    _ => self.map(map_id).is_none().then_some(QSIZE_DEFAULT),
                };
                Ok(Goal::Cpu { map_id, cpu, qsize })
            }
            Redirect::Socket { map_id, key } => match entry(map_id, key)? {
                Target::Socket(socket) => Ok(Goal::Socket(socket)),
                _ => Err(Errno::ENOENT),
            },
        }
    }

    /// Tells each port that a broadcast of this frame reaches.
    pub(crate) fn each_port<'g>(
        &'g self,
        map: &'g Map,
        except: u32,
        frame: &Frame,
        guard: &'g Guard,
        tell: &mut dyn FnMut(Exit<'g>),
    ) {
        map.each_device(guard, &mut |target| {
            let Target::Device { ifindex, program } = target else { return };
            if ifindex == 0 || ifindex == except {
                return;
            }
            // As on Linux, a broadcast leaves out who cannot take the frame.
            if let Some(reach) = self.reach(ifindex).filter(|reach| admit(reach, frame).is_ok()) {
                tell(Exit { number: reach.number, ifindex, program });
            }
        });
    }

    /// Whether the port with this number takes frames of several buffers.
    pub(crate) fn takes_parts(&self, number: usize) -> bool {
        self.ports.iter().find(|reach| reach.number == number).is_some_and(|reach| reach.parts)
    }

    /// The port with this interface index.
    #[inline]
    pub(crate) fn reach(&self, ifindex: u32) -> Option<&Reach> {
        // No interface has number 0, so no fallback stands in for it.
        let fallback = self.fallback.as_ref().filter(|_| ifindex != 0);
        self.ports.iter().find(|reach| reach.ifindex == ifindex).or(fallback)
    }
}

/// Room of a CPUMAP's queue where nobody told of the map.
const QSIZE_DEFAULT: u32 = 2048;

fn admit(reach: &Reach, frame: &Frame) -> Result<(), Errno> {
    if !reach.takes || (frame.has_frags() && !reach.parts) {
        return Err(Errno::EOPNOTSUPP);
    }
    if frame.total_len() > reach.frame_max as usize { Err(Errno::EMSGSIZE) } else { Ok(()) }
}
