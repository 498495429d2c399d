//! `afxdp:` ports of the service: what arrives there does not reach the host's stack, so what passes is put back into it.

use std::sync::Arc;

use xway_engine::{Capabilities, Device, Outcome, Port, PortError, PortErrorKind, Support};
use xway_packet::{Pool, PoolConfig};
use xway_port_afxdp::AfXdpDevice;
use xway_port_tap::{Injector, Stacked, TapDevice, Way};

/// An interface whose frames go back to its host when they pass, as packets of that interface.
pub(crate) struct Reinjecting {
    wire: AfXdpDevice,
    /// The way back, or why there is none: what passes is dropped then, and counted.
    back: Result<(TapDevice, Arc<Way>), String>,
}

/// In generic mode packets that are put back would come in again.
const GENERIC: &str = "the interface is in generic mode: what is put back into it would come to the programs again";

impl Reinjecting {
    /// Finds the way back (a TAP and a program behind it, Linux 6.6).
    pub fn new(wire: AfXdpDevice) -> Reinjecting {
        let injector = Injector::open(Device::ifindex(&wire), Device::rx_queues(&wire));
        let back = injector.map(Injector::split).map(|(tap, way)| (tap, Arc::new(way)));
        Reinjecting { wire, back: back.map_err(|e| format!("there is no way back into the host: {e}")) }
    }
}

impl Device for Reinjecting {
    fn name(&self) -> &str {
        self.wire.name()
    }

    fn ifindex(&self) -> u32 {
        Device::ifindex(&self.wire)
    }

    fn capabilities(&self) -> Capabilities {
        let wire = self.wire.capabilities();
        let pass = if self.back.is_ok() { Support::Full } else { wire.pass };
        Capabilities { pass, ..wire }
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let mut all = self.wire.outcomes();
        let pass =
            |reason: &String| Outcome { what: "pass", requested: "host", effective: "drop", reason: reason.clone() };
        all.extend(self.back.as_ref().err().map(pass));
        all
    }

    fn rx_queues(&self) -> u32 {
        Device::rx_queues(&self.wire)
    }

    fn tx_queues(&self) -> u32 {
        self.wire.tx_queues()
    }

    fn pool(&self, queue: u32) -> PoolConfig {
        Device::pool(&self.wire, queue)
    }

    fn numa_node(&self) -> Option<u32> {
        self.wire.numa_node()
    }

    fn open_queue(&mut self, queue: u32, pool: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        let port = self.wire.open_queue(queue, pool)?;
        if self.wire.effective().iter().any(|e| e.mode.is_some_and(|mode| mode.name() == "generic")) {
            self.back = Err(GENERIC.into());
        }
        let Ok((tap, way)) = &mut self.back else { return Ok(port) };
        match tap.take(queue) {
            Some(stack) => {
                let name = self.wire.name().to_owned();
                let failed = |e: std::io::Error| {
                    PortError::new(&name, PortErrorKind::Missing, format!("no file descriptor left: {e}"))
                };
                Ok(Box::new(Stacked::injecting(port, stack, way.clone()).map_err(failed)?))
            }
            // Opened for the second time: its end of the TAP went with the first.
            None => {
                self.back = Err(format!("queue {queue} was closed and opened again: close the port and open it anew"));
                Ok(port)
            }
        }
    }
}
