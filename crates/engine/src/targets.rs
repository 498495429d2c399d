//! From a redirect target in plain numbers to ports.

use std::sync::Arc;

use xway_abi::Errno;
use xway_maps::Map;
use xway_packet::Redirect;

/// Who can be redirected to. Ports have numbers: first the worker's own, then those of others.
#[derive(Default)]
pub(crate) struct Targets {
    /// Interface index of each port that can be reached, and its number.
    ports: Vec<(u32, usize)>,
    /// Maps that broadcasts may name.
    maps: Vec<Arc<Map>>,
    /// Port for interfaces that are none of the ports.
    fallback: Option<usize>,
}

/// Where a redirected frame goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To the port with this number.
    Port(usize),
    /// To all of these ports.
    Ports(Vec<usize>),
    /// To the stack side of the port it came from, as the end of a CPUMAP's queue does it.
    Stack,
}

impl Targets {
    pub(crate) fn new(ports: Vec<(u32, usize)>, maps: Vec<Arc<Map>>, fallback: Option<usize>) -> Targets {
        Targets { ports, maps, fallback }
    }

    /// Other ports than before.
    pub(crate) fn set_ports(&mut self, ports: Vec<(u32, usize)>) {
        self.ports = ports;
    }

    /// Other maps than before; gives back the old ones.
    pub(crate) fn set_maps(&mut self, maps: Vec<Arc<Map>>) -> Vec<Arc<Map>> {
        std::mem::replace(&mut self.maps, maps)
    }

    /// Resolves a target.
    ///
    /// # Errors
    /// `EINVAL` when no helper chose one or `bpf_redirect` named an interface that is no port (as Linux says for one that
    /// does not exist), `ENODEV` when a device map's entry names an interface that is no port, `ENOENT` when the map of a
    /// broadcast is not known or names no port, `EOPNOTSUPP` for what the engine does not serve.
    pub(crate) fn resolve(&self, redirect: Redirect, ingress: u32) -> Result<Target, Errno> {
        match redirect {
            Redirect::None => Err(Errno::EINVAL),
            Redirect::Ifindex(ifindex) => self.port(ifindex).map(Target::Port).ok_or(Errno::EINVAL),
            Redirect::Device { ifindex, .. } => self.port(ifindex).map(Target::Port).ok_or(Errno::ENODEV),
            Redirect::Broadcast { map_id, exclude_ingress } => {
                self.broadcast(map_id, exclude_ingress.then_some(ingress))
            }
            Redirect::Cpu { .. } => Ok(Target::Stack),
            Redirect::Socket { .. } => Err(Errno::EOPNOTSUPP),
        }
    }

    fn broadcast(&self, map_id: u32, except: Option<u32>) -> Result<Target, Errno> {
        let map = self.maps.iter().find(|map| map.id() == map_id).ok_or(Errno::ENOENT)?;
        let mut value = vec![0; map.user_value_size()];
        let mut ports = Vec::new();
        for key in map.keys()? {
            // An entry may go between the walk and the look-up.
            if map.lookup(&key, &mut value, 0).is_err() {
                continue;
            }
            let Some(ifindex) = value.first_chunk().copied().map(u32::from_ne_bytes) else { continue };
            if ifindex != 0 && Some(ifindex) != except {
                ports.extend(self.port(ifindex));
            }
        }
        if ports.is_empty() { Err(Errno::ENOENT) } else { Ok(Target::Ports(ports)) }
    }

    /// Number of the port with this interface index.
    #[inline]
    pub(crate) fn port(&self, ifindex: u32) -> Option<usize> {
        // No interface has number 0, so no fallback stands in for it.
        let fallback = self.fallback.filter(|_| ifindex != 0);
        self.ports.iter().find(|(known, _)| *known == ifindex).map(|&(_, number)| number).or(fallback)
    }
}
