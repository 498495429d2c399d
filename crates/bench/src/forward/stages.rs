//! Where our side's time goes: each part alone, in the same burst of 64.

use std::hint::black_box;

use xway_engine::{Port, Results};
use xway_maps::Guard;
use xway_packet::{Burst, Pool};
use xway_port_sim::Sink;

use super::ours::{ForwardError, Ours};
use super::{Action, timed};
use crate::measure::Stat;

/// One part.
#[derive(Clone, PartialEq, Debug)]
pub struct Stage {
    /// What it is.
    pub name: &'static str,
    /// Nanoseconds for each packet.
    pub ns: f64,
}

const TURNS: u64 = 20_000;
const SAMPLES: usize = 7;

/// The parts of a packet's way, and what is left of `whole`.
pub(super) fn stages(ours: &Ours, whole: f64) -> Result<Vec<Stage>, ForwardError> {
    let mut pool = Ours::pool()?;
    let mut burst = Burst::new();
    let count = TURNS * Burst::MAX as u64;
    let mut got = 0;
    let memory = median(|| {
        timed(count, || {
            for _ in 0..TURNS {
                got += pool.alloc_burst(&mut burst, Burst::MAX);
                pool.release_burst(black_box(&mut burst));
            }
        })
        .0
    });
    all("frames from the pool", got)?;
    let sink = Sink::default();
    let mut port = ours.port(u64::MAX, sink.clone());
    let (mut failed, mut got) = (None, 0);
    let receive = median(|| {
        timed(count, || {
            for _ in 0..TURNS {
                if let Err(error) = port.rx(0, &mut pool, &mut burst, Burst::MAX) {
                    failed = Some(error);
                }
                got += burst.len();
                pool.release_burst(black_box(&mut burst));
            }
        })
        .0
    });
    if let Some(error) = failed {
        return Err(ForwardError::Program(error.to_string()));
    }
    all("packets from the port", got)?;
    let mut executor = ours.executor();
    let mut results = Results::default();
    pool.alloc_burst(&mut burst, 0);
    let _ = port.rx(0, &mut pool, &mut burst, Burst::MAX);
    let mut got = 0;
    let program = median(|| {
        timed(count, || {
            for _ in 0..TURNS {
                let guard = Guard::pin();
                results.clear();
                executor.run(black_box(burst.frames_mut()), &guard, &mut results);
                got += results.rets().len() - results.faults().len();
            }
        })
        .0
    });
    all("runs of the program", got)?;
    let verdict = ours.action.verdict();
    let other = results.rets().iter().find(|ret| **ret as u32 != verdict as u32);
    if let Some(other) = other {
        return Err(ForwardError::Wrong { what: "verdict", expected: verdict as u64, got: *other });
    }
    pool.release_burst(&mut burst);
    let before = sink.sent().frames;
    let send = median(|| {
        timed(count, || {
            for _ in 0..TURNS {
                pool.alloc_burst(&mut burst, Burst::MAX);
                port.tx(0, &mut pool, black_box(&mut burst));
            }
        })
        .0
    });
    all("packets that were sent", (sink.sent().frames - before) as usize)?;
    let mut stages = Vec::new();
    if ours.action == Action::RedirectCpu {
        stages.push(Stage { name: "(a ring between workers, in and out, on one core)", ns: ring(&mut pool)? });
    }
    let generate = (receive - memory).max(0.0);
    let rest = (whole - receive - program).max(0.0);
    let parts = [
        Stage { name: "pool: 64 frames out and back", ns: memory },
        Stage { name: "port: packets into frames", ns: generate },
        Stage { name: "program over the burst", ns: program },
        Stage { name: "verdicts, counters, targets", ns: rest },
        Stage { name: "(sending to a sink, alone, without the pool)", ns: (send - memory).max(0.0) },
    ];
    Ok(parts.into_iter().chain(stages).collect())
}

/// Nanoseconds for each of 64 frames that go through the ring of a CPUMAP's entry and come out again.
fn ring(pool: &mut Pool) -> Result<f64, ForwardError> {
    let ring = xway_packet::ring::frames::ring(2048);
    let (mut sender, mut receiver) = ring.map_err(|e| ForwardError::Program(e.to_string()))?;
    let mut burst = Burst::new();
    pool.alloc_burst(&mut burst, Burst::MAX);
    let mut got = 0;
    let ns = median(|| {
        timed(TURNS * Burst::MAX as u64, || {
            for _ in 0..TURNS {
                sender.send_first(black_box(&mut burst), Burst::MAX);
                got += receiver.receive(&mut burst, Burst::MAX);
            }
        })
        .0
    });
    all("frames through the ring", got)?;
    pool.release_burst(&mut burst);
    Ok(ns)
}

/// Every turn of every sample had a whole burst.
fn all(what: &'static str, got: usize) -> Result<(), ForwardError> {
    let expected = SAMPLES as u64 * TURNS * Burst::MAX as u64;
    if got as u64 == expected { Ok(()) } else { Err(ForwardError::Wrong { what, expected, got: got as u64 }) }
}

fn median(mut sample: impl FnMut() -> f64) -> f64 {
    Stat::of((0..SAMPLES).map(|_| sample()).collect()).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_that_is_not_whole_is_noticed() {
        let whole = SAMPLES * TURNS as usize * Burst::MAX;
        assert!(all("frames", whole).is_ok());
        assert!(matches!(all("frames", whole - 1), Err(ForwardError::Wrong { what: "frames", .. })));
    }
}
