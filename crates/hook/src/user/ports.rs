//! Ports of the engine in this process, and the programs on them.

use std::sync::Arc;

use xway_abi::{Errno, Verdict};
use xway_engine::steer::{Change, SteerError, Steering};
use xway_engine::{
    AttachFlags, Capabilities, Checked, Device, Engine, EngineConfig, EngineError, Executor, HookPoint, LoadedProgram,
    Native, Needs, Outcome, PassTo, PortConfig, PortState, QueueReport, QueueState, Support, VerdictSet, is_called,
};
use xway_maps::Map;

use super::programs::Loaded;
use super::{User, links};
use crate::{
    AttachRequest, Attached, AttachmentInfo, Blame, Choice, HookError, Mode, PortFeatures, PortMemory, ProgId,
    ProgramInfo, QueueMemory, Replace, Verdicts, Via,
};

impl LoadedProgram for Loaded {
    fn id(&self) -> u32 {
        self.program.id()
    }

    fn name(&self) -> &str {
        self.program.name()
    }

    fn maps(&self) -> &[Arc<Map>] {
        self.program.maps()
    }

    fn needs(&self) -> Needs {
        Needs::of_program(&self.program)
    }

    fn machine_code(&self) -> Option<(&Arc<xway_vm::Program>, &Arc<xway_jit::Compiled>)> {
        Some((&self.program, self.code.as_ref()?))
    }

    fn executor(&self, worker: u32) -> Box<dyn Executor> {
        match &self.code {
            Some(code) => Box::new(Native::new(self.program.clone(), code.clone(), worker)),
            None => Box::new(Checked::new(self.program.clone(), worker)),
        }
    }
}

fn refused(error: EngineError) -> HookError {
    let errno = match &error {
        EngineError::Attach { cause, .. } => Some(cause.errno),
        EngineError::NoPort { .. } => Some(Errno::ENODEV),
        EngineError::NoQueue { .. } | EngineError::NoWorker { .. } => Some(Errno::EINVAL),
        EngineError::PortTaken { .. } | EngineError::QueueTaken { .. } => Some(Errno::EBUSY),
        _ => None,
    };
    let blame = match &error {
        EngineError::System(_) | EngineError::Cpu { .. } | EngineError::Pool { .. } => Blame::Machine,
        EngineError::Port(_) => Blame::Machine,
        _ => errno.map_or(Blame::Request, Blame::of),
    };
    let hint = match &error {
        EngineError::PortTaken { other, .. } => {
            Some(format!("one of the two at a time; xway unload {other} -a --close --hook user closes that one"))
        }
        _ => None,
    };
    HookError { errno, hint, ..HookError::new(blame, error) }
}

/// Ports and their programs.
impl User {
    /// Opens a port: its queues start to receive unless it is held, and frames pass until a program is attached. The first port starts
    /// the workers.
    ///
    /// # Errors
    /// A port with its name or interface index is open; the device refuses; the system has no thread or memory left.
    pub fn open_port(&mut self, device: Box<dyn Device>, config: PortConfig) -> Result<(), HookError> {
        let name = device.name().to_owned();
        if self.port(&name).is_ok() {
            return Err(HookError::errno(format!("port {name}: opening it, which it is already,"), Errno::EEXIST));
        }
        if self.engine.is_none() {
            let workers = self.config.cpus;
            let (burst, ring_len) = (self.config.burst, self.config.ring_len);
            let cpus = self.config.bind.clone();
            let config = EngineConfig { workers, cpus, burst, ring_len, ..EngineConfig::default() };
            let engine = Arc::new(Engine::start(config).map_err(refused)?);
            self.handles.devices_of(&engine);
            self.engine = Some(engine);
        }
        let Some(engine) = &self.engine else { return Err(super::no_port(&name)) };
        engine.open(device, config).map_err(refused)?;
        self.events.tell("port", &name, "opened".into());
        Ok(())
    }

    /// Lets a port receive that was opened as [held](PortConfig::held).
    ///
    /// # Errors
    /// No such port is open.
    pub fn start_port(&mut self, name: &str) -> Result<(), HookError> {
        let port = self.port(name)?;
        let engine = self.engine.as_deref().ok_or_else(|| super::no_port(name))?;
        engine.start_port(port.ifindex).map_err(refused)
    }

    /// Closes a port: what waits for it is sent, its frames come home.
    pub fn close_port(&mut self, name: &str) -> Result<Vec<QueueReport>, HookError> {
        let port = self.port(name)?;
        let engine = self.engine.as_deref().ok_or_else(|| super::no_port(name))?;
        let reports = engine.close(port.ifindex).map_err(refused)?;
        self.links.keep(&links::present(&self.states()));
        self.events.tell("port", name, "closed".into());
        self.collect();
        Ok(reports)
    }

    /// Where PASS goes for the frames of a port: to its stack side, or out of another port.
    pub fn set_pass(&mut self, name: &str, to: Option<&str>) -> Result<(), HookError> {
        let port = self.port(name)?;
        let pass = match to {
            None => PassTo::Stack,
            Some(other) => PassTo::Port(self.port(other)?.ifindex),
        };
        let engine = self.engine.as_deref().ok_or_else(|| super::no_port(name))?;
        engine.set_pass(port.ifindex, pass).map_err(refused)
    }

    /// Changes which queue a port's packets go to, in the words of [`Change`]; without words nothing changes. Gives what steers them
    /// now, `None` when nothing does.
    pub fn steer(&mut self, name: &str, words: &str) -> Result<Option<Arc<Steering>>, HookError> {
        let port = self.port(name)?;
        let engine = self.engine.as_deref().ok_or_else(|| super::no_port(name))?;
        let steering = engine.steering(port.ifindex).map_err(refused)?;
        if words.trim().is_empty() {
            return Ok(steering);
        }
        self.steer_from(&port, steering.as_deref().cloned().unwrap_or_default(), &[words.trim().to_owned()])
    }

    /// Steers a port's packets by these changes alone, in their order, whatever steered them before.
    pub fn steer_anew(&mut self, name: &str, changes: &[String]) -> Result<Option<Arc<Steering>>, HookError> {
        let port = self.port(name)?;
        self.steer_from(&port, Steering::default(), changes)
    }

    fn steer_from(
        &mut self,
        port: &PortState,
        mut next: Steering,
        changes: &[String],
    ) -> Result<Option<Arc<Steering>>, HookError> {
        let wrong = |e: SteerError| HookError {
            errno: Some(Errno::EINVAL),
            ..HookError::new(Blame::Request, format!("{}: {e}", port.name))
        };
        for words in changes {
            next = next.changed(Change::parse(words).map_err(wrong)?, port.queues).map_err(wrong)?.0;
        }
        let some = next.rss().is_some() || next.rules().next().is_some();
        let engine = self.engine.as_ref().ok_or_else(|| super::no_port(&port.name))?;
        engine.set_steering(port.ifindex, some.then_some(next)).map_err(refused)?;
        self.events.tell("steer", &port.name, changes.join("; "));
        engine.steering(port.ifindex).map_err(refused)
    }

    /// Names of the open ports.
    pub fn ports(&self) -> Vec<String> {
        self.states().into_iter().map(|port| port.name).collect()
    }

    fn states(&self) -> Vec<PortState> {
        self.engine.as_deref().map(Engine::ports).unwrap_or_default()
    }

    /// The port with this name; `packet:eth0` may be called `eth0`, and `sim:a?flows=9` `sim:a` or `a`.
    pub(super) fn port(&self, name: &str) -> Result<PortState, HookError> {
        self.states().into_iter().find(|port| is_called(&port.name, name)).ok_or_else(|| {
            let have = self.ports();
            let have = if have.is_empty() { "it has none".to_owned() } else { format!("it has {}", have.join(", ")) };
            super::no_port(name).hint(have)
        })
    }

    /// Where ports do something else than they were asked for, as it is now: what their devices say, and those of which a device failed,
    /// with what opens them again.
    pub fn outcomes(&self) -> Vec<(String, Outcome)> {
        let Some(engine) = &self.engine else { return Vec::new() };
        // A worker that is gone says nothing; what devices say is told all the same.
        let reports = engine.port_stats().unwrap_or_default();
        let mut all = Vec::new();
        for port in engine.ports() {
            let failed = reports.iter().find_map(|r| (r.ifindex == port.ifindex).then_some(r.error.as_ref()).flatten());
            let dead = failed.map(|why| Outcome::lost(Outcome::DEAD, format!("{why}: it receives no more")));
            // Of an interface that is gone its program is gone too, which is no second thing.
            let rest = port.outcomes.into_iter().filter(|o| dead.is_none() || o.what != Outcome::PORT);
            for mut outcome in rest.chain(dead.clone()) {
                if outcome.what == Outcome::PORT {
                    let name = &port.name;
                    outcome.reason +=
                        &format!("; xway apply FILE, or xway load {name} OBJ --hook user, opens it again");
                }
                all.push((port.name.clone(), outcome));
            }
        }
        all
    }

    /// Says to all who watch what became of a port.
    pub fn announce(&mut self, port: &str, text: String) {
        self.events.tell("port", port, text);
    }

    /// Programs that run on ports.
    pub(super) fn attached(&self) -> Vec<Arc<Loaded>> {
        let ports = self.states();
        let queues = ports.iter().flat_map(|port| port.queue_programs.iter().flat_map(|(_, all)| all));
        let all = ports.iter().flat_map(|port| &port.programs).chain(queues);
        all.filter_map(|attached| self.handles.find_program(attached.program.id())).collect()
    }

    pub(super) fn attach_to_port(&mut self, request: &AttachRequest) -> Result<Attached, HookError> {
        let program = self.program(request.program)?;
        let port = self.port(&request.port)?;
        if !matches!(request.mode, Mode::Auto | Mode::User) {
            let message = format!("{}: mode {} is one of Linux's hook", port.name, request.mode.name());
            return Err(HookError::unsupported(message).hint("leave -m out: a port of the engine has one place only"));
        }
        let warnings = fits(&port.name, &port.capabilities, &program)?;
        let outcomes = [port.outcomes, Vec::from_iter(copies(&port.name, &port.capabilities, &program))].concat();
        let point = HookPoint { ifindex: port.ifindex, queue: request.queue };
        let there = match request.queue {
            None => port.programs.clone(),
            Some(queue) => {
                let own = port.queue_programs.iter().find(|(number, _)| *number == queue);
                own.map(|(_, all)| all.clone()).unwrap_or_default()
            }
        };
        let old = match &request.replace {
            Replace::Never => None,
            Replace::Any if request.chain => there.last().map(|a| a.program.id()),
            Replace::Any => there.first().map(|a| a.program.id()),
            Replace::Id(id) => Some(*id),
            Replace::Name(name) => {
                let found = there.iter().find(|a| a.program.name() == name);
                Some(found.map(|a| a.program.id()).ok_or_else(|| no_such(&port.name, name))?)
            }
        };
        if let Some(old) = old.filter(|old| there.iter().all(|a| a.program.id() != *old)) {
            return Err(no_such(&port.name, &old.to_string()));
        }
        let engine = self.engine.as_deref().ok_or_else(|| super::no_port(&port.name))?;
        let entry = xway_engine::Attached {
            priority: i32::try_from(request.priority).unwrap_or(i32::MAX),
            chain_on: VerdictSet(request.chain_on.0),
            ..xway_engine::Attached::new(program.clone())
        };
        let done = match (request.chain, &request.replace, old) {
            // All of them go, at once.
            (false, Replace::Any, _) => engine.attach(point, program.clone(), AttachFlags::default()),
            (_, _, Some(old)) => engine.exchange(point, old, program.clone()),
            (true, _, None) => engine.chain(point, entry),
            (false, _, None) => {
                let only = AttachFlags { if_noexist: true, replace: None };
                engine.attach(point, program.clone(), only)
            }
        };
        done.map_err(|e| {
            let busy = refused(e);
            let hint = format!("replace it: --replace ID; run together: -P N; or: xway unload {} -a", port.name);
            if busy.errno == Some(Errno::EBUSY) { busy.hint(hint) } else { busy }
        })?;
        let alone = !request.chain && request.replace == Replace::Any;
        // All that was there has gone, and the new one has the place of the first.
        self.links.came(point, request.program.0, old);
        if alone || old.is_some() {
            self.links.keep(&links::present(&self.states()));
        }
        let text = format!("program {} ({})", request.program.0, program.program.name());
        self.events.tell("attach", &port.name, text);
        self.collect();
        Ok(Attached {
            mode: Choice { requested: request.mode.name(), effective: Mode::User.name(), reason: None },
            held: Choice::met("engine"),
            via: Via::Engine,
            replaced: old,
            chain: request.chain.then(|| Choice::met("chain")),
            program: request.program,
            outcomes,
            warnings,
        })
    }

    pub(super) fn detach_from_port(&mut self, name: &str, program: Option<ProgId>) -> Result<Vec<ProgId>, HookError> {
        let port = self.port(name)?;
        let whole = port.programs.iter().map(|a| (None, a.program.id()));
        let single = port.queue_programs.iter().flat_map(|(q, all)| all.iter().map(|a| (Some(*q), a.program.id())));
        let chosen: Vec<_> =
            whole.chain(single).filter(|(_, id)| program.is_none_or(|wanted| wanted.0 == *id)).collect();
        if chosen.is_empty() {
            return Err(match program {
                Some(id) => no_such(&port.name, &id.0.to_string()),
                None => HookError::new(Blame::Request, format!("{}: nothing is attached", port.name)),
            });
        }
        let engine = self.engine.as_deref().ok_or_else(|| super::no_port(name))?;
        let mut gone = Vec::new();
        for (queue, id) in chosen {
            engine.unchain(HookPoint { ifindex: port.ifindex, queue }, id).map_err(refused)?;
            if !gone.contains(&ProgId(id)) {
                gone.push(ProgId(id));
            }
        }
        self.links.keep(&links::present(&self.states()));
        for id in &gone {
            self.events.tell("detach", &port.name, format!("program {}", id.0));
        }
        self.collect();
        Ok(gone)
    }

    pub(super) fn detach_link(&mut self, link: u32) -> Result<(), HookError> {
        self.links.keep(&links::present(&self.states()));
        let (point, program) = self.links.find(link).ok_or_else(|| HookError::no_object("link", link))?;
        let engine = self.engine.as_deref().ok_or_else(|| HookError::no_object("link", link))?;
        engine.unchain(point, program).map_err(refused)?;
        let states = self.states();
        self.links.keep(&links::present(&states));
        let name = states.iter().find(|port| port.ifindex == point.ifindex).map_or("", |port| &port.name);
        self.events.tell("detach", name, format!("program {program} (link {link})"));
        self.collect();
        Ok(())
    }

    pub(super) fn attachments_of(&self, name: Option<&str>) -> Result<Vec<AttachmentInfo>, HookError> {
        let ports = match name {
            Some(name) => vec![self.port(name)?],
            None => self.states(),
        };
        let mut found = Vec::new();
        for port in ports {
            let whole = port.programs.iter().map(|a| (None, port.programs.len(), a));
            let single = port.queue_programs.iter().flat_map(|(q, all)| all.iter().map(|a| (Some(*q), all.len(), a)));
            for (queue, count, a) in whole.chain(single) {
                let Some(loaded) = self.handles.find_program(a.program.id()) else { continue };
                let mut program = loaded.info();
                program.runs = self.runs(a.program.id());
                let plain = count == 1 && a.priority == crate::PRIORITY as i32;
                found.push(AttachmentInfo {
                    port: port.name.clone(),
                    queue,
                    mode: Mode::User,
                    program,
                    via: Via::Engine,
                    link: self.links.number(HookPoint { ifindex: port.ifindex, queue }, a.program.id()),
                    priority: (!plain).then_some(a.priority.max(0) as u32),
                    chain_on: (!plain).then_some(Verdicts(a.chain_on.0)),
                });
            }
        }
        Ok(found)
    }

    /// Frames that a program ran over, on all queues that are open now. The time is counted for whole queues only.
    pub(super) fn runs(&self, id: u32) -> Option<(u64, std::time::Duration)> {
        ran(&self.engine.as_ref()?.queues(), id)
    }

    /// All programs, with how often they ran.
    pub(super) fn described(&self) -> Vec<ProgramInfo> {
        let queues = self.engine.as_ref().map(|engine| engine.queues()).unwrap_or_default();
        let all = self.handles.programs();
        all.iter().map(|p| ProgramInfo { runs: ran(&queues, p.program.id()), ..p.info() }).collect()
    }

    pub(super) fn features_of(&self, name: &str) -> Result<PortFeatures, HookError> {
        let port = self.port(name)?;
        let c = &port.capabilities;
        let full = |s: Support| s != Support::None;
        let xdp = [
            ("basic", full(c.drop) && full(c.pass) && full(c.tx)),
            ("redirect", full(c.redirect_from)),
            ("ndo-xmit", full(c.redirect_to)),
            ("xsk-zerocopy", c.zero_copy),
            ("rx-sg", c.multi_buffer),
            ("ndo-xmit-sg", c.multi_buffer_tx),
        ];
        let meta = [("timestamp", c.rx_timestamp), ("hash", c.rx_hash), ("vlan-tag", c.rx_vlan)];
        let names = |all: &[(&str, bool)]| all.iter().filter(|(_, has)| *has).map(|(n, _)| (*n).to_owned()).collect();
        let open = self.engine.as_ref().map(|engine| engine.queues()).unwrap_or_default();
        let queues = open.iter().filter(|queue| queue.ifindex == port.ifindex).map(queue_memory).collect();
        let verdicts = Verdict::ALL.iter().map(|v| (v.name().to_owned(), support(c.verdict(*v)).to_owned())).collect();
        Ok(PortFeatures {
            kind: port.name.split_once(':').map_or_else(String::new, |(kind, _)| kind.to_owned()),
            ifindex: port.ifindex,
            rx_queues: port.queues,
            tx_queues: port.queues,
            xdp: names(&xdp),
            rx_metadata: names(&meta),
            verdicts,
            memory: Some(memory(c, queues)),
            outcomes: self.outcomes().into_iter().filter(|(of, _)| *of == port.name).map(|(_, o)| o).collect(),
            port: port.name,
        })
    }
}

fn memory(can: &Capabilities, queues: Vec<QueueMemory>) -> PortMemory {
    let room = |bytes: u32| (bytes != u32::MAX).then_some(bytes);
    PortMemory {
        model: can.memory.name().to_owned(),
        packets_a_chunk: 1,
        frags: can.multi_buffer,
        zero_copy: can.zero_copy,
        writable: can.writable,
        headroom: room(can.headroom),
        tailroom: room(can.tailroom),
        queues,
    }
}

fn queue_memory(queue: &QueueState) -> QueueMemory {
    let memory = &queue.memory;
    QueueMemory {
        queue: queue.queue,
        bytes: memory.bytes as u64,
        pages_requested: memory.requested.name().to_owned(),
        pages_effective: memory.effective.name().to_owned(),
        pages_reason: memory.reason.clone(),
        node: memory.placement.to_string(),
    }
}

/// Runs of a program on these queues; `None` when it is on none of them. The time is counted for whole queues only.
fn ran(queues: &[QueueState], id: u32) -> Option<(u64, std::time::Duration)> {
    let all = queues.iter().flat_map(|q| &q.programs).filter(|(program, ..)| *program == id);
    let runs = all.map(|(.., counters)| counters.runs).reduce(|a, b| a + b)?;
    Some((runs, std::time::Duration::ZERO))
}

fn no_such(port: &str, what: &str) -> HookError {
    let message = format!("{port}: program {what} is not attached");
    HookError { errno: Some(Errno::ENOENT), ..HookError::new(Blame::Request, message) }
        .hint(format!("xway status {port}"))
}

const fn support(support: Support) -> &'static str {
    match support {
        Support::Full => "full",
        Support::CopyOnly => "copy only",
        Support::None => "none",
    }
}

/// Compares what a program needs with what a port can do: what is missing is refused by name, what is less than on a driver is
/// said.
fn fits(port: &str, can: &Capabilities, program: &Loaded) -> Result<Vec<String>, HookError> {
    let needs = Needs::of_program(&program.program);
    if let Some(how) = needs.writes.filter(|_| !can.writable) {
        let name = program.program.name();
        let message = format!("{port}: packets are read-only there, and program {name} needs {how}");
        return Err(
            HookError::unsupported(message).hint("a program that only reads; or open the port without read_only")
        );
    }
    let lacking = needs.lacking(can);
    if !lacking.is_empty() {
        let lacking = lacking.join(", ");
        let message = format!(
            "{port}: packets of several buffers come in there, and program {} lacks: {lacking}",
            program.program.name()
        );
        return Err(HookError::unsupported(message).hint("SEC(\"xdp.frags\"); or open the port without frags=yes"));
    }
    let Some(proof) = program.program.proof() else { return Ok(Vec::new()) };
    let facts = proof.facts();
    let all = Verdict::ALL.to_vec();
    let verdicts = facts.verdicts.as_ref().unwrap_or(&all);
    let mut missing = Vec::new();
    // What cannot be proved may be anything: only what is known to be returned is a need.
    if facts.verdicts.is_some() {
        for verdict in [Verdict::Tx, Verdict::Redirect] {
            if verdicts.contains(&verdict) && can.verdict(verdict) == Support::None {
                missing.push(verdict.name().to_owned());
            }
        }
    }
    const ADJUST_META: u32 = 54;
    if facts.helpers.contains(&ADJUST_META) && !can.metadata {
        missing.push("metadata (bpf_xdp_adjust_meta)".into());
    }
    if !missing.is_empty() {
        let message =
            format!("{port}: program {} needs what the port cannot do: {}", program.program.name(), missing.join(", "));
        return Err(
            HookError::unsupported(message).hint(format!("xway features {port}; another port, or another program"))
        );
    }
    let mut warnings = Vec::new();
    if verdicts.contains(&Verdict::Pass) && can.pass == Support::None {
        warnings
            .push(format!("{port} has no stack side: frames that pass are dropped and counted; pass_to sends them on"));
    }
    Ok(warnings)
}

/// A program that takes frames away, on a port where that takes away a copy: the command that does it is said.
fn copies(port: &str, can: &Capabilities, program: &Loaded) -> Option<Outcome> {
    let verdicts = program.program.proof().and_then(|proof| proof.facts().verdicts.as_ref());
    // What is not known may be anything.
    let only_passes = verdicts.is_some_and(|all| all.iter().all(|v| *v == Verdict::Pass));
    if can.drop != Support::CopyOnly || only_passes {
        return None;
    }
    let name = port.split('?').next().unwrap_or(port);
    let mends = match name.strip_prefix("packet:") {
        Some(interface) => {
            format!("frames are taken away from the host by: xway load afxdp:{interface} OBJ --hook user")
        }
        None => "ports that take frames away: docs/ports".to_owned(),
    };
    let reason =
        format!("{name} gives copies, and the host keeps its own of every frame, whatever the program says; {mends}");
    Some(Outcome { what: "drop", requested: "drop", effective: "copies only", reason })
}
