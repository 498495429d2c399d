//! A device whose queues are wrapped as they open.

use xway_engine::{Capabilities, Device, Outcome, Port, PortError};
use xway_packet::{Pool, PoolConfig};

/// Puts something around each queue of a device when it is opened.
pub struct WrappedDevice<F> {
    inner: Box<dyn Device>,
    wrap: F,
}

impl<F> WrappedDevice<F>
where
    F: FnMut(Box<dyn Port>, u32) -> Result<Box<dyn Port>, PortError> + Send,
{
    /// `wrap` gets each opened queue with its number.
    pub fn new(inner: Box<dyn Device>, wrap: F) -> WrappedDevice<F> {
        WrappedDevice { inner, wrap }
    }
}

impl<F> Device for WrappedDevice<F>
where
    F: FnMut(Box<dyn Port>, u32) -> Result<Box<dyn Port>, PortError> + Send,
{
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn ifindex(&self) -> u32 {
        self.inner.ifindex()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn rx_queues(&self) -> u32 {
        self.inner.rx_queues()
    }

    fn tx_queues(&self) -> u32 {
        self.inner.tx_queues()
    }

    fn pool(&self, queue: u32) -> PoolConfig {
        self.inner.pool(queue)
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.inner.outcomes()
    }

    fn numa_node(&self) -> Option<u32> {
        self.inner.numa_node()
    }

    fn open_queue(&mut self, queue: u32, pool: &mut Pool) -> Result<Box<dyn Port>, PortError> {
        let port = self.inner.open_queue(queue, pool)?;
        (self.wrap)(port, queue)
    }
}
