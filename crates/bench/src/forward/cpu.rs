//! To another worker: an engine of two, the packets come in on worker 1 and go on on worker 0.

use std::time::{Duration, Instant};

use xway_abi::Errno;
use xway_engine::{AttachFlags, Engine, EngineConfig, HookPoint, PassTo, PortConfig};
use xway_packet::PoolConfig;
use xway_port_sim::SimDevice;

use super::ours::{ForwardError, Ours};
use super::{INGRESS, Round};

/// How long a round may take.
const ROUND_MAX: Duration = Duration::from_secs(60);

impl Ours {
    /// One round: every packet that came in went over or was counted as lost. `looks_up_runs`: as the engine does it, packets in a row
    /// that go to one worker are looked up once.
    pub(super) fn round_to_cpu(
        &self,
        count: u64,
        cpu: u32,
        looks_up_runs: bool,
    ) -> Result<(Round, xway_packet::Counters), ForwardError> {
        let failed = |e: xway_engine::EngineError| ForwardError::Program(e.to_string());
        self.drop_over_there()?;
        // Both poll until the round is over.
        let cpus = vec![0, cpu as usize];
        let config = EngineConfig { workers: 2, cpus, idle_polls: u32::MAX, looks_up_runs, ..EngineConfig::default() };
        let engine = Engine::start(config).map_err(failed)?;
        let (device, _) = SimDevice::generated("in", INGRESS, (*self.traffic).clone(), Some(count), 1);
        let pool = Some(PoolConfig::new(8192));
        let port = PortConfig { queues: Some(Vec::new()), pool, pass: PassTo::Drop, ..PortConfig::default() };
        engine.open(Box::new(device.in_bursts_of(self.burst)), port).map_err(failed)?;
        let point = HookPoint { ifindex: INGRESS, queue: None };
        engine.attach(point, self.linked.clone(), AttachFlags::default()).map_err(failed)?;
        let started = Instant::now();
        engine.add_queue(INGRESS, 0, 1).map_err(failed)?;
        loop {
            let queues = engine.queues();
            let went = queues.first().map_or((0, 0), |queue| (queue.counters.rx, queue.counters.redirected));
            let came = engine.cpu_counters().iter().map(|cpu| cpu.cpu_in).sum::<u64>();
            if went.0 == count && came == went.1 {
                break;
            }
            if started.elapsed() > ROUND_MAX {
                return Err(ForwardError::Wrong { what: "packets within a minute", expected: count, got: came });
            }
            // Seldom: this thread has the core of one of the two.
            std::thread::sleep(Duration::from_micros(500));
        }
        let elapsed = started.elapsed();
        let stopped = engine.stop();
        let arrived: u64 = stopped.cpus.iter().map(|cpu| cpu.cpu_in).sum();
        let Some(report) = stopped.queues.into_iter().next() else {
            return Err(ForwardError::Wrong { what: "queues", expected: 1, got: 0 });
        };
        if let Some(leak) = report.leak {
            return Err(ForwardError::Wrong { what: "frames away", expected: 0, got: leak.outstanding.into() });
        }
        let lost = report.counters.redirect_err.get(Errno::ENOSPC);
        if arrived + lost != count {
            return Err(ForwardError::Wrong { what: "packets", expected: count, got: arrived + lost });
        }
        let ns = elapsed.as_nanos() as f64 / arrived.max(1) as f64;
        Ok((Round { ns, packets: count, arrived, lost: vec![("queue full".to_owned(), lost)] }, report.pool))
    }
}
