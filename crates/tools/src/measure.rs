//! What the kernel's hook carries: a program that drops, passes, sends back or redirects, and what it and the
//! kernel counted.
//!
//! Everything here goes when [`Measure`] is dropped, also when its process is killed: programs are held by links
//! without pins.

use std::os::fd::AsFd;

use xway_abi::Verdict;
use xway_kernel::{Device, KernelError, KernelObject, XdpLink, XdpMode};
use xway_object::Object;

use crate::tally::PerCpu;
use crate::watch::{Counts, Scope, Watch};
use crate::{ToolError, objects};

/// What happens to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Dropped.
    Drop,
    /// Handed to the stack.
    Pass,
    /// Sent back.
    Tx,
    /// Redirected to an interface by its number.
    Redirect,
    /// Redirected through a DEVMAP.
    RedirectMap,
    /// Sent to all interfaces of a DEVMAP but the one it came from.
    RedirectMulti,
    /// Redirected to another CPU through a CPUMAP.
    RedirectCpu(ByCpu),
}

/// How the CPU is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // The names say it; bpf/tools/measure.bpf.c has the details.
pub enum ByCpu {
    NoTouch,
    Touch,
    RoundRobin,
    Protocol,
    ProtocolFiltered,
    Hash,
    SourcePort,
    DestinationPort,
}

/// What is done to a packet before its verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // The names say it.
pub enum Touch {
    #[default]
    NoTouch,
    ReadData,
    ParseIp,
    SwapMacs,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What happens to a packet.
    pub action: Action,
    /// What is done to it before.
    pub touch: Touch,
    /// With helpers that copy, instead of in place.
    pub load_bytes: bool,
    /// Count for each receive queue too.
    pub by_queue: bool,
    /// Count successful redirects.
    pub successes: bool,
    /// Native or generic.
    pub mode: XdpMode,
    /// Where packets come in.
    pub input: Device,
    /// Where they leave, for the three redirects by interface and for a program behind a CPU that redirects.
    pub outputs: Vec<Device>,
    /// CPUs that packets are sent to.
    pub cpus: Vec<u32>,
    /// Length of each CPU's queue, packets.
    pub queue_len: u32,
    /// Verdict of a program behind the map: PASS or DROP behind a device, also REDIRECT behind a CPU.
    pub behind: Option<Verdict>,
}

impl Setup {
    /// An action with nothing special about it.
    pub fn new(action: Action, input: Device) -> Setup {
        Setup {
            action,
            touch: Touch::NoTouch,
            load_bytes: false,
            by_queue: false,
            successes: false,
            mode: XdpMode::Native,
            input,
            outputs: Vec::new(),
            cpus: Vec::new(),
            queue_len: 2048,
            behind: None,
        }
    }

    fn program(&self) -> String {
        let action = match self.action {
            Action::Drop => "drop",
            Action::Pass => "pass",
            Action::Tx => "tx",
            Action::Redirect => "redirect",
            Action::RedirectMap => "redirect_map",
            Action::RedirectMulti => "redirect_multi",
            Action::RedirectCpu(by) => return format!("cpu_{}", by.name()),
        };
        let touch = match self.touch {
            Touch::NoTouch => return format!("{action}_no_touch"),
            Touch::ReadData => "read_data",
            Touch::ParseIp => "parse_ip",
            Touch::SwapMacs => "swap_macs",
        };
        format!("{action}_{touch}{}", if self.load_bytes { "_load_bytes" } else { "" })
    }
}

impl ByCpu {
    const fn name(self) -> &'static str {
        match self {
            ByCpu::NoTouch => "no_touch",
            ByCpu::Touch => "touch",
            ByCpu::RoundRobin => "round_robin",
            ByCpu::Protocol => "l4_proto",
            ByCpu::ProtocolFiltered => "l4_filter",
            ByCpu::Hash => "l4_hash",
            ByCpu::SourcePort => "l4_sport",
            ByCpu::DestinationPort => "l4_dport",
        }
    }
}

/// What was counted since the measurement began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// What the program saw (`issue`: what it could not look at as asked).
    pub received: PerCpu,
    /// The same by receive queue, where that was asked for.
    pub queues: Vec<PerCpu>,
    /// What the kernel's tracepoints counted.
    pub counts: Counts,
}

impl Snapshot {
    /// What was counted since `before`.
    pub fn since(&self, before: &Snapshot) -> Snapshot {
        let none = PerCpu::default();
        let old = |i: usize| before.queues.get(i).unwrap_or(&none);
        Snapshot {
            received: self.received.since(&before.received),
            queues: self.queues.iter().enumerate().map(|(i, q)| q.since(old(i))).collect(),
            counts: self.counts.since(&before.counts),
        }
    }
}

/// Most receive queues that are counted one by one, most interfaces and CPUs that packets go to.
const QUEUES: u32 = 64;
const DEVICES: usize = 32;
const CPUS: u32 = 64;

/// A measurement that runs until this is dropped.
#[derive(Debug)]
pub struct Measure {
    setup: Setup,
    object: Object,
    kernel: KernelObject,
    watch: Watch,
    _links: Vec<XdpLink>,
}

impl Measure {
    /// Attaches the program and begins to count.
    ///
    /// # Errors
    /// Built without clang; what the kernel refuses: `EBUSY` where a program is attached, `EOPNOTSUPP` where the
    /// driver has no native hook, `E2BIG` or `EOVERFLOW` for a CPU that is not there or a queue that is too long,
    /// `EPERM`.
    pub fn open(setup: Setup) -> Result<Measure, ToolError> {
        if setup.outputs.len() > DEVICES || setup.cpus.iter().any(|cpu| *cpu >= CPUS) {
            return Err(ToolError::Request(format!("at most {DEVICES} interfaces, and CPUs below {CPUS}")));
        }
        let settings = [
            u32::from(setup.by_queue),
            setup.outputs.first().map_or(0, |d| d.ifindex),
            setup.cpus.len() as u32,
            setup.behind.map_or(0, |v| v as u32),
        ];
        let object = objects::object("measure", &settings)?;
        let name = setup.program();
        let behind = match (setup.behind, setup.action) {
            (None, _) => None,
            (Some(_), Action::RedirectCpu(_)) => Some("behind_cpu"),
            (Some(_), _) => Some("behind_device"),
        };
        let idle = "idle";
        let kernel =
            KernelObject::load_some(&object, |p| p.name == name || Some(p.name.as_str()) == behind || p.name == idle)?;
        fill(&setup, &object, &kernel, behind)?;
        let maps = match setup.action {
            Action::RedirectCpu(_) => {
                let info = objects::map(&kernel, &object, "cpus")?.info();
                info.map(|i| vec![i.id]).map_err(|errno| KernelError::Call { step: "asking about a map", errno })?
            }
            _ => Vec::new(),
        };
        let scope = Scope { devices: vec![setup.input.ifindex], maps, successes: setup.successes };
        let watch = Watch::open(&scope)?;
        let program = objects::program(&kernel, &object, &name)?;
        let mut links = vec![XdpLink::attach(program, setup.input.ifindex, setup.mode)?];
        for device in setup.outputs.iter().filter(|d| d.ifindex != setup.input.ifindex) {
            // Some drivers send redirected frames only while they have a program themselves. Whoever is there stays.
            if setup.mode == XdpMode::Native && device.attached().next().is_none() {
                links.extend(
                    XdpLink::attach(objects::program(&kernel, &object, idle)?, device.ifindex, setup.mode).ok(),
                );
            }
        }
        Ok(Measure { setup, object, kernel, watch, _links: links })
    }

    /// What was asked for.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// What was counted until now.
    ///
    /// # Errors
    /// As [`Watch::read`].
    pub fn read(&self) -> Result<Snapshot, ToolError> {
        let map = |name| objects::map(&self.kernel, &self.object, name);
        let queues = match self.setup.by_queue {
            true => {
                let queues = map("received_by_queue")?;
                (0..QUEUES.min(self.setup.input.rx_queues.max(1))).map(|i| PerCpu::at(queues, i)).collect()
            }
            false => Vec::new(),
        };
        Ok(Snapshot { received: PerCpu::at(map("received")?, 0), queues, counts: self.watch.read()? })
    }

    /// Takes every CPU's queue away and makes it anew, while packets come: what `xdp-bench redirect-cpu -x` does to
    /// the kernel.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn stress(&self) -> Result<(), ToolError> {
        if !matches!(self.setup.action, Action::RedirectCpu(_)) {
            return Ok(());
        }
        let cpus = objects::map(&self.kernel, &self.object, "cpus")?;
        for cpu in &self.setup.cpus {
            // Somebody else may have taken it away already.
            let _ = cpus.delete(&cpu.to_ne_bytes());
        }
        let behind = self.setup.behind.map(|_| "behind_cpu");
        fill(&self.setup, &self.object, &self.kernel, behind)
    }
}

fn fill(setup: &Setup, object: &Object, kernel: &KernelObject, behind: Option<&str>) -> Result<(), ToolError> {
    let refused = |name: &str, step| {
        let name = name.to_owned();
        move |errno| KernelError::Map { name, step, errno }
    };
    let fd = |on: bool| -> Result<u32, ToolError> {
        use std::os::fd::AsRawFd;
        let Some(name) = behind.filter(|_| on) else { return Ok(0) };
        Ok(objects::program(kernel, object, name)?.as_fd().as_raw_fd() as u32)
    };
    let by_cpu = matches!(setup.action, Action::RedirectCpu(_));
    let (devices, addresses) = (objects::map(kernel, object, "devices")?, objects::map(kernel, object, "addresses")?);
    for (at, device) in (0u32..).zip(&setup.outputs) {
        let value = [device.ifindex.to_ne_bytes(), fd(!by_cpu)?.to_ne_bytes()].concat();
        devices.update(&at.to_ne_bytes(), &value, 0).map_err(refused("devices", "putting in an interface"))?;
        let mut mac = [0; 8];
        mac[..6].copy_from_slice(&device.mac.unwrap_or_default());
        addresses.update(&device.ifindex.to_ne_bytes(), &mac, 0).map_err(refused("addresses", "writing an address"))?;
    }
    let (cpus, chosen) = (objects::map(kernel, object, "cpus")?, objects::map(kernel, object, "chosen")?);
    for (at, cpu) in (0u32..).zip(&setup.cpus) {
        let value = [setup.queue_len.to_ne_bytes(), fd(by_cpu)?.to_ne_bytes()].concat();
        cpus.update(&cpu.to_ne_bytes(), &value, 0).map_err(refused("cpus", "making the queue of a CPU"))?;
        chosen.update(&at.to_ne_bytes(), &cpu.to_ne_bytes(), 0).map_err(refused("chosen", "choosing a CPU"))?;
    }
    Ok(())
}
