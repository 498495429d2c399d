//! What takes two cores to measure: how long one packet is under way, and what a second worker adds.

mod latency;
mod workers;

use std::sync::Arc;

pub use latency::{LatencyOptions, LatencyReport, Percentiles, latency};
pub use workers::{WorkerFigures, WorkersOptions, WorkersReport, workers};
use xway_engine::{AttachFlags, Device, Engine, EngineConfig, EngineError, HookPoint, PortConfig};
use xway_port_sim::Traffic;

use crate::forward::{Action, ForwardError, Operation, linked};
use crate::measure::MeasureError;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum CoresError {
    /// A core cannot be had.
    #[error(transparent)]
    Pin(#[from] MeasureError),
    /// There is no program to run.
    #[error(transparent)]
    Program(#[from] ForwardError),
    /// The engine could not be set up.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Packets, memory or a port could not be had.
    #[error("{0}")]
    Setup(String),
    /// What arrived is not what was sent.
    #[error("{0}")]
    Wrong(String),
}

fn setup(error: impl std::fmt::Display) -> CoresError {
    CoresError::Setup(error.to_string())
}

/// An engine with this device and the built-in program for an action.
fn engine(
    config: EngineConfig,
    device: impl Device + 'static,
    port: PortConfig,
    (action, operation): (Action, Operation),
    traffic: &Traffic,
) -> Result<Engine, CoresError> {
    let program = linked(action, operation, traffic)?;
    let engine = Engine::start(config)?;
    let (ifindex, queues) = (device.ifindex(), device.rx_queues());
    // Programs first: no packet is to pass unseen.
    engine.open(Box::new(device), PortConfig { queues: Some(Vec::new()), ..port })?;
    engine.attach(HookPoint { ifindex, queue: None }, Arc::clone(&program) as _, AttachFlags::default())?;
    let workers = engine.workers();
    (0..queues).try_for_each(|queue| engine.add_queue(ifindex, queue, queue % workers))?;
    Ok(engine)
}

/// Stops the engine; every frame must have come home and have ended as this verdict says.
fn stop(engine: Engine, verdict: xway_abi::Verdict) -> Result<(), CoresError> {
    for queue in engine.stop().queues {
        if let Some(leak) = queue.leak {
            return Err(CoresError::Wrong(leak.to_string()));
        }
        if let Err((came, ended)) = queue.counters.balance() {
            return Err(CoresError::Wrong(format!("{came} frames came in, {ended} ended")));
        }
        let (came, of_it) = (queue.counters.rx, queue.counters.verdict(verdict));
        if of_it != came {
            return Err(CoresError::Wrong(format!("{of_it} of {came} packets have the verdict {verdict:?}")));
        }
    }
    Ok(())
}
