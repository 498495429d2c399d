//! So many packets a second.

use std::time::Instant;

use xway_engine::{Port, PortError, PortStats, Rx, Sent};
use xway_packet::{Burst, Pool};

use crate::as_inner;

/// Limits of [`Rate`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RateConfig {
    /// Packets a second that come in; the others wait where they are. `None`: no limit.
    pub rx_pps: Option<f64>,
    /// Packets a second that go out; the others are dropped as by a full queue. `None`: no limit.
    pub tx_pps: Option<f64>,
}

/// A token bucket on each side of a port, one burst deep.
pub struct Rate {
    inner: Box<dyn Port>,
    rx: Option<Bucket>,
    tx: Option<Bucket>,
    limited: u64,
}

impl Rate {
    /// Wraps a port. A rate that is no positive number lets nothing through.
    pub fn new(inner: Box<dyn Port>, config: RateConfig) -> Rate {
        let bucket = |pps: Option<f64>| pps.map(|pps| Bucket::new(pps, Instant::now()));
        Rate { inner, rx: bucket(config.rx_pps), tx: bucket(config.tx_pps), limited: 0 }
    }
}

struct Bucket {
    per_ns: f64,
    tokens: f64,
    last: Instant,
}

impl Bucket {
    fn new(pps: f64, now: Instant) -> Bucket {
        let per_ns = if pps > 0.0 { pps / 1e9 } else { 0.0 };
        Bucket { per_ns, tokens: 1.0, last: now }
    }

    /// Whole tokens, at most a burst.
    fn look(&mut self, now: Instant) -> usize {
        let passed = now.duration_since(self.last).as_nanos() as f64;
        self.last = now;
        self.tokens = (self.tokens + passed * self.per_ns).min(Burst::MAX as f64);
        self.tokens as usize
    }

    fn take(&mut self, count: usize) {
        self.tokens -= count as f64;
    }
}

impl Port for Rate {
    as_inner!();

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        let Some(bucket) = &mut self.rx else { return self.inner.rx(queue, pool, burst, budget) };
        let allowed = bucket.look(Instant::now()).min(budget);
        if allowed == 0 {
            return Ok(Rx::More); // not idle: the next packet may come before a sleep would end
        }
        let before = burst.len();
        let state = self.inner.rx(queue, pool, burst, allowed)?;
        bucket.take(burst.len() - before);
        Ok(state)
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let Some(bucket) = &mut self.tx else { return self.inner.tx(queue, pool, burst) };
        let allowed = bucket.look(Instant::now()).min(burst.len());
        bucket.take(allowed);
        let mut excess = 0;
        while burst.len() > allowed {
            if let Some(frame) = burst.pop() {
                pool.release(frame);
                excess += 1;
            }
        }
        self.limited += u64::from(excess);
        let mut sent = if burst.is_empty() { Sent::default() } else { self.inner.tx(queue, pool, burst) };
        sent.full += excess;
        sent
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.inner.pass(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()
    }

    fn stats(&mut self) -> PortStats {
        let mut stats = self.inner.stats();
        if self.limited > 0 {
            stats.other.push(("rate: over the limit, dropped on send", self.limited));
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_fills_with_time_and_holds_one_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1000.0, start);
        assert_eq!(bucket.look(start), 1);
        bucket.take(1);
        assert_eq!(bucket.look(start + Duration::from_micros(500)), 0);
        assert_eq!(bucket.look(start + Duration::from_millis(10)), 10);
        assert_eq!(bucket.look(start + Duration::from_secs(100)), 64);
        let mut closed = Bucket::new(f64::NAN, start);
        closed.take(1);
        assert_eq!(closed.look(start + Duration::from_secs(100)), 0);
    }
}
