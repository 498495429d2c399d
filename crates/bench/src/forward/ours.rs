//! Our side: a worker over ports in memory.

use std::sync::Arc;

use xway_engine::{Choice, Executor, Limits, Linked, LoadedProgram, Stop, Worker, WorkerConfig};
use xway_maps::Guard;
use xway_object::Object;
use xway_packet::{Pool, PoolConfig};
use xway_port_sim::{Seen, SimPort, Sink, Traffic};
use xway_verifier::Config;
use xway_vm::{Env, Instance, SystemHost, TestRun, test_run};

use super::{Action, ForwardOptions, INGRESS, Round, TARGET};
use crate::Outcome;
use crate::measure::MeasureError;

/// Why our side cannot be measured, or must not be believed.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The core cannot be had.
    #[error(transparent)]
    Pin(#[from] MeasureError),
    /// There are no built-in programs, or one cannot be brought to life.
    #[error("{0}")]
    Program(String),
    /// No memory.
    #[error(transparent)]
    Pool(#[from] xway_packet::PoolError),
    /// No descriptor.
    #[error("starting a worker: {0}")]
    System(#[from] std::io::Error),
    /// What arrived is not what was sent.
    #[error("{what}: expected {expected}, got {got}")]
    Wrong {
        /// Of what.
        what: &'static str,
        /// What should have come.
        expected: u64,
        /// What came.
        got: u64,
    },
}

/// Everything that a round needs.
pub(super) struct Ours {
    pub(super) program: String,
    pub(super) action: Action,
    pub(super) burst: usize,
    pub(super) traffic: Arc<Traffic>,
    pub(super) linked: Arc<Linked>,
    /// The program behind the CPUMAP.
    far: &'static str,
    instance: Instance,
}

/// A second port of the broadcast.
const SECOND: u32 = 14;

impl Ours {
    pub(super) fn new(options: &ForwardOptions, traffic: &Traffic) -> Result<Ours, ForwardError> {
        let failed = |why: String| ForwardError::Program(why);
        let bytes = super::object().ok_or_else(|| failed(crate::suite::missing().unwrap_or("not built").into()))?;
        let object = Object::parse(bytes, &Default::default()).map_err(|e| failed(e.to_string()))?;
        let program = options.program();
        let image = object.select(&xway_object::Select::Name(program.clone())).and_then(xway_object::Program::as_xdp);
        let image = image.map_err(|e| failed(e.to_string()))?;
        let instance = Instance::verified(Arc::new(object), 2, Config::default()).map_err(|e| failed(e.to_string()))?;
        if let Some(ports) = instance.map("ports") {
            let targets: &[u32] = if options.action == Action::RedirectMulti { &[TARGET, SECOND] } else { &[TARGET] };
            for (key, ifindex) in (0u32..).zip(targets) {
                let value = [ifindex.to_ne_bytes(), [0xff; 4]].concat();
                let put = ports.update(&key.to_ne_bytes(), &value, 0);
                put.map_err(|errno| failed(format!("map ports: {errno}")))?;
            }
        }
        for key in options.denied() {
            let put = instance.map("denied").map_or(Ok(()), |denied| denied.update(&key, &[1, 0, 0, 0], 0));
            put.map_err(|errno| failed(format!("map denied: {errno}")))?;
        }
        let ours = Ours::cpu_entry(&instance, None);
        ours.map_err(|errno| failed(format!("map cpus: {errno}")))?;
        let linked = Linked::new(instance.link(&image).map_err(|e| failed(e.to_string()))?);
        Ok(Ours {
            program,
            action: options.action,
            burst: options.burst as usize,
            traffic: Arc::new(traffic.clone()),
            linked: Arc::new(linked),
            far: options.far_program(),
            instance,
        })
    }

    /// Fills the CPUMAP's entry, with a program that drops on the far side or without one.
    fn cpu_entry(instance: &Instance, program: Option<i32>) -> Result<(), xway_abi::Errno> {
        let value = [2048u32.to_ne_bytes(), program.unwrap_or(0).to_ne_bytes()].concat();
        instance.map("cpus").map_or(Ok(()), |cpus| cpus.update(&[0; 4], &value, 0))
    }

    /// From now on packets that come over the CPUMAP are dropped by a program there.
    pub(super) fn drop_over_there(&self) -> Result<(), ForwardError> {
        let at = self.instance.object().programs.iter().position(|p| p.name == self.far);
        let at = at.ok_or_else(|| ForwardError::Program(format!("no program {}", self.far)))?;
        let failed = |e: xway_vm::LinkError| ForwardError::Program(e.to_string());
        // Compiled beforehand, as the service does it: on its way a packet compiles nothing.
        let program = self.instance.program(at).map_err(failed)?;
        if let Some(reason) = Choice::compiled(&program, &xway_jit::Options::default()).reason {
            return Err(ForwardError::Program(format!("{}: {reason}", self.far)));
        }
        let fd = self.instance.program_fd(at).map_err(failed)?;
        Ours::cpu_entry(&self.instance, Some(fd)).map_err(|e| ForwardError::Program(format!("map cpus: {e}")))
    }

    pub(super) fn engine(&self) -> String {
        match &self.linked.choice().reason {
            None => self.linked.choice().name().to_owned(),
            Some(reason) => format!("{} ({reason})", self.linked.choice().name()),
        }
    }

    pub(super) fn executor(&self) -> Box<dyn Executor> {
        self.linked.executor(0)
    }

    pub(super) fn port(&self, count: u64, sink: Sink) -> SimPort {
        SimPort::generated_queues("in", INGRESS, self.traffic.clone(), Some(count), 1, sink).in_bursts_of(self.burst)
    }

    pub(super) fn pool() -> Result<Pool, ForwardError> {
        Ok(Pool::new(PoolConfig::new(1024))?)
    }

    /// Sends packets through, looks at each that arrives and compares them with what the checked interpreter makes of them.
    pub(super) fn compare(&self) -> Result<u64, ForwardError> {
        const COUNT: u64 = 20_000;
        let (host, guard) = (SystemHost::new(), Guard::pin());
        let mut expected = 0u64;
        // What each turn of the order becomes; longer orders than the run are not reached beyond it.
        let mut of = vec![None; self.traffic.period().min(COUNT as usize)];
        for turn in 0..COUNT as usize {
            let known = of.len();
            let digest = match of[turn % known] {
                Some(digest) => digest,
                None => self.digest_after(turn, &host, &guard)?,
            };
            of[turn % known] = Some(digest);
            expected = expected.wrapping_add(digest);
        }
        let arrivals = self.arrivals();
        let sinks = self.run(COUNT, true)?.2;
        let got = self.digest(&sinks);
        let expected = if arrivals == 0 { 0 } else { expected.wrapping_mul(arrivals) };
        if got == expected { Ok(COUNT) } else { Err(ForwardError::Wrong { what: "contents", expected, got }) }
    }

    /// Digest of a packet as the checked interpreter leaves it.
    fn digest_after(&self, turn: usize, host: &SystemHost, guard: &Guard) -> Result<u64, ForwardError> {
        let run = TestRun::new(self.traffic.packet(turn));
        let result = test_run(self.linked.program(), &run, &mut Env::new(guard, host, 0));
        result.map(|r| Seen::digest_of(&r.data_out)).map_err(|e| ForwardError::Program(e.to_string()))
    }

    /// What the checked interpreter makes of the first packet: its verdict, and the packet afterwards.
    pub(super) fn expected(&self) -> Result<Outcome, ForwardError> {
        let (host, guard) = (SystemHost::new(), Guard::pin());
        let run = TestRun::new(self.traffic.packet(0));
        let result = test_run(self.linked.program(), &run, &mut Env::new(&guard, &host, 0));
        let result = result.map_err(|e| ForwardError::Program(e.to_string()))?;
        Ok(Outcome { ret: result.retval, packet: result.data_out })
    }

    /// Packets that arrive for each that the kernel makes; what is dropped arrives there.
    pub(super) fn copies(&self) -> u64 {
        self.arrivals().max(1)
    }

    /// How many times each packet arrives.
    fn arrivals(&self) -> u64 {
        match self.action {
            Action::Drop => 0,
            Action::RedirectMulti => 2,
            _ => 1,
        }
    }

    fn digest(&self, sinks: &[Sink; 3]) -> u64 {
        sinks.iter().fold(0, |sum, sink| sum.wrapping_add(sink.sent().digest).wrapping_add(sink.passed().digest))
    }

    /// One round: everything that came in must have gone where it should.
    pub(super) fn round(&self, count: u64, cpu: u32) -> Result<(Round, xway_packet::Counters), ForwardError> {
        if self.action == Action::RedirectCpu {
            return self.round_to_cpu(count, cpu, true);
        }
        let (ns, pool, sinks) = self.run(count, false)?;
        let arrived = match self.action {
            Action::Drop => count,
            Action::Pass | Action::RedirectCpu => sinks[0].passed().frames,
            Action::Tx => sinks[0].sent().frames,
            Action::Redirect | Action::RedirectMap => sinks[1].sent().frames,
            Action::RedirectMulti => sinks[1].sent().frames + sinks[2].sent().frames,
        };
        let expected = count * self.arrivals().max(1);
        if arrived != expected {
            return Err(ForwardError::Wrong { what: "packets that arrived", expected, got: arrived });
        }
        Ok((Round { ns, packets: count, arrived, lost: Vec::new() }, pool))
    }

    fn run(&self, count: u64, inspect: bool) -> Result<(f64, xway_packet::Counters, [Sink; 3]), ForwardError> {
        let sinks = [Sink::default(), Sink::default(), Sink::default()];
        sinks.iter().for_each(|sink| sink.inspect(inspect));
        let out = |name, ifindex, sink: &Sink| {
            SimPort::generated_queues(name, ifindex, self.traffic.clone(), Some(0), 1, sink.clone())
        };
        let mut config = WorkerConfig::new(Stop::new()?);
        config.limits = Limits { count: Some(count), timeout: None };
        config.maps = self.linked.maps().to_vec();
        config.timed = false;
        let mut ports: Vec<Box<dyn xway_engine::Port>> = vec![Box::new(self.port(count, sinks[0].clone()))];
        if !matches!(self.action, Action::Drop | Action::Pass | Action::Tx) {
            ports.push(Box::new(out("out", TARGET, &sinks[1])));
            ports.push(Box::new(out("second", SECOND, &sinks[2])));
        }
        let report = Worker::new(ports, self.executor(), Ours::pool()?, config).run();
        if let Some(leak) = report.leak {
            return Err(ForwardError::Wrong { what: "frames away", expected: 0, got: leak.outstanding.into() });
        }
        if let Err((rx, ended)) = report.counters.balance() {
            return Err(ForwardError::Wrong { what: "frames that ended", expected: rx, got: ended });
        }
        let dropped = report.counters.verdicts[xway_abi::Verdict::Drop as usize];
        if self.action == Action::Drop && dropped != count {
            return Err(ForwardError::Wrong { what: "packets dropped by the program", expected: count, got: dropped });
        }
        Ok((report.elapsed.as_nanos() as f64 / count.max(1) as f64, report.pool, sinks))
    }
}
