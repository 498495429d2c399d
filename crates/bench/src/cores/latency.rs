//! One packet in flight: sent into one end of a pair in memory, sent back by a program with its addresses exchanged, received again.
//!
//! The clock is read before the packet goes and after it came, on the core of who sends. Beside it stands the same without an
//! engine: a thread that polls the other end and sends back what comes, so the difference is what the engine adds to two hand-overs
//! between cores, which cost what cache lines cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use xway_engine::{EngineConfig, Port, PortConfig};
use xway_packet::{Burst, Pool, PoolConfig};
use xway_port_sim::{PairConfig, Pattern, SimDevice, Traffic, pair};

use super::{CoresError, engine, setup, stop};
use crate::forward::{Action, Operation};
use crate::measure::pin;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct LatencyOptions {
    /// Cores of the engine, and of who sends and receives.
    pub cpus: (u32, u32),
    /// Bytes of a packet.
    pub size: u32,
    /// Packets in a round, one after the other.
    pub count: u64,
    /// Rounds.
    pub rounds: u32,
    /// The worker sleeps when it has nothing to do, and is woken for each packet, instead of polling.
    pub sleep: bool,
}

/// Nanoseconds from sending to receiving.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Percentiles {
    /// The shortest.
    pub min: f64,
    /// Half of the packets took no longer.
    pub median: f64,
    /// 99 in 100.
    pub p99: f64,
    /// 999 in 1,000.
    pub p999: f64,
    /// The longest: whoever took the core away meanwhile is in it.
    pub max: f64,
}

impl Percentiles {
    fn of(mut samples: Vec<u32>) -> Percentiles {
        samples.sort_unstable();
        let at = |share: f64| {
            let last = samples.len().saturating_sub(1);
            samples.get((last as f64 * share).round() as usize).copied().unwrap_or_default().into()
        };
        Percentiles { min: at(0.0), median: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct LatencyReport {
    /// Through the engine, over all rounds.
    pub engine: Percentiles,
    /// Through the same two rings, without an engine.
    pub rings: Percentiles,
    /// Packets in all rounds; each was compared with what was sent.
    pub packets: u64,
}

/// Measures.
///
/// # Errors
/// Something could not be set up, or a packet did not come back as it should.
pub fn latency(options: &LatencyOptions) -> Result<LatencyReport, CoresError> {
    // A thread of its own, because it is pinned.
    std::thread::scope(|scope| match scope.spawn(|| measured(options)).join() {
        Ok(report) => report,
        Err(_) => Err(setup("the measuring thread ended early")),
    })
}

const IFINDEXES: [u32; 2] = [10, 12];
/// A packet that takes longer than this does not come.
const PATIENCE: Duration = Duration::from_secs(10);

fn measured(options: &LatencyOptions) -> Result<LatencyReport, CoresError> {
    pin(options.cpus.1)?;
    let (mut engine, mut rings) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.max(1) {
        through_engine(options, &mut engine)?;
        through_rings(options, &mut rings)?;
    }
    let packets = engine.len() as u64;
    Ok(LatencyReport { engine: Percentiles::of(engine), rings: Percentiles::of(rings), packets })
}

fn config() -> PairConfig {
    PairConfig { queue_len: 64, ifindexes: IFINDEXES, ..PairConfig::default() }
}

fn through_engine(options: &LatencyOptions, samples: &mut Vec<u32>) -> Result<(), CoresError> {
    let traffic = Traffic::udp(1, options.size as usize, Pattern::Scan, 1).map_err(setup)?;
    let (near, mut far) = SimDevice::pair("latency", config()).map_err(setup)?;
    let idle_polls = if options.sleep { 0 } else { u32::MAX };
    let workers = EngineConfig { cpus: vec![options.cpus.0 as usize], idle_polls, ..EngineConfig::default() };
    let engine = engine(workers, near, PortConfig::default(), (Action::Tx, Operation::SwapMacs), &traffic)?;
    let mut pool = Pool::new(PoolConfig::new(64)).map_err(setup)?;
    let mut port = xway_engine::Device::open_queue(&mut far, 0, &mut pool).map_err(setup)?;
    let packet = traffic.packet(0);
    let mut back = packet.to_vec();
    back[..6].copy_from_slice(&packet[6..12]);
    back[6..12].copy_from_slice(&packet[..6]);
    round(&mut *port, &mut pool, packet, &back, options.count, samples)?;
    port.close(&mut pool);
    drop(port);
    stop(engine, xway_abi::Verdict::Tx)?;
    pool.close().map_err(setup)
}

fn through_rings(options: &LatencyOptions, samples: &mut Vec<u32>) -> Result<(), CoresError> {
    let (mut near, mut far) = pair("latency", config()).map_err(setup)?;
    let traffic = Traffic::udp(1, options.size as usize, Pattern::Scan, 1).map_err(setup)?;
    let over = Arc::new(AtomicBool::new(false));
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let echo = {
        let (over, cpu) = (over.clone(), options.cpus.0);
        std::thread::spawn(move || -> Result<(), CoresError> {
            let pinned = pin(cpu);
            let ok = pinned.is_ok();
            let _ = ready.send(());
            pinned?;
            let (mut pool, mut burst) = (Pool::new(PoolConfig::new(8)).map_err(setup)?, Burst::new());
            while ok && !over.load(Ordering::Relaxed) {
                near.rx(0, &mut pool, &mut burst, Burst::MAX).map_err(setup)?;
                if !burst.is_empty() {
                    near.tx(0, &mut pool, &mut burst);
                    near.flush().map_err(setup)?;
                }
            }
            Ok(())
        })
    };
    let _ = started.recv();
    let mut pool = Pool::new(PoolConfig::new(64)).map_err(setup)?;
    let packet = traffic.packet(0);
    let done = round(&mut far, &mut pool, packet, packet, options.count, samples);
    over.store(true, Ordering::Relaxed);
    echo.join().map_err(|_| setup("the echoing thread ended early"))??;
    done?;
    drop(far);
    pool.close().map_err(setup)
}

/// Sends a packet, waits for it, and so on.
fn round(
    port: &mut dyn Port,
    pool: &mut Pool,
    packet: &[u8],
    back: &[u8],
    count: u64,
    samples: &mut Vec<u32>,
) -> Result<(), CoresError> {
    // The first ones find nothing in the caches and are not counted.
    let warm = count / 10;
    let (mut out, mut came) = (Burst::new(), Burst::new());
    for number in 0..count + warm {
        let mut frame = pool.alloc().map_err(setup)?;
        frame.fill(packet).map_err(setup)?;
        let _ = out.push(frame);
        let start = Instant::now();
        port.tx(0, pool, &mut out);
        port.flush().map_err(setup)?;
        let mut spins = 0u32;
        while came.is_empty() {
            port.rx(0, pool, &mut came, 1).map_err(setup)?;
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 16) && start.elapsed() > PATIENCE {
                return Err(CoresError::Wrong(format!("packet {number} did not come back in {PATIENCE:?}")));
            }
        }
        let took = start.elapsed();
        let same = came.frames()[0].packet() == back;
        pool.release_burst(&mut came);
        if !same {
            return Err(CoresError::Wrong(format!("packet {number} came back as another one")));
        }
        if number >= warm {
            samples.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let of = Percentiles::of((1..=1001).rev().collect());
        assert_eq!((of.min, of.median, of.p99, of.p999, of.max), (1.0, 501.0, 991.0, 1000.0, 1001.0));
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}
