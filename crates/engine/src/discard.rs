//! The port that throws away.

use xway_packet::{Burst, Pool};

use crate::{Capabilities, Port, PortError, PortStats, Rx, Sent, Support};

/// Takes every frame and gives it back to its pool, counted as sent: for PASS on ports where nothing is to go on.
#[derive(Debug, Default)]
pub struct Discard {
    stats: PortStats,
}

impl Port for Discard {
    fn name(&self) -> &str {
        "drop"
    }

    fn ifindex(&self) -> u32 {
        u32::MAX
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pass: Support::Full,
            redirect_to: Support::Full,
            multi_buffer_tx: true,
            ..Capabilities::copying()
        }
    }

    fn rx(&mut self, _: u32, _: &mut Pool, _: &mut Burst, _: usize) -> Result<Rx, PortError> {
        Ok(Rx::End)
    }

    fn tx(&mut self, _: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let count = burst.len();
        self.stats.tx += count as u64;
        self.stats.tx_bytes += burst.frames().iter().map(|frame| frame.total_len() as u64).sum::<u64>();
        pool.release_burst(burst);
        Sent::all(count)
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.tx(queue, pool, burst)
    }

    fn stats(&mut self) -> PortStats {
        self.stats.clone()
    }
}
