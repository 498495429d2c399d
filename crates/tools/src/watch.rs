//! The kernel's tracepoints about XDP, counted in the kernel: redirects and why they failed, exceptions, what maps
//! and devices took.
//!
//! `bpf/tools/watch.bpf.c` counts where the events arise, so nothing is copied and nothing is lost, at any rate. A
//! successful redirect is counted only when it is asked for: that is the one event that every packet would raise.

use std::collections::BTreeMap;

use xway_abi::Errno;
use xway_kernel::{KernelError, KernelObject, RawTracepoint};
use xway_object::Object;

use crate::tally::PerCpu;
use crate::{ToolError, objects};

/// Errors of redirects, by their place in the program's counters.
pub const ERRORS: [&str; 7] = ["Unknown", "EINVAL", "ENETDOWN", "EMSGSIZE", "EOPNOTSUPP", "ENOSPC", "EAGAIN"];

/// Verdicts that raised exceptions, likewise; the last one stands for everything that is no verdict.
pub const ACTIONS: [&str; 6] = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT", "XDP_UNKNOWN"];

/// CPUs that a CPUMAP can lead to, as far as they are counted.
const CPUS: u32 = 256;

/// Whose events count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scope {
    /// Interfaces of the calling thread's network namespace by number; empty: all of the machine, in every namespace.
    pub devices: Vec<u32>,
    /// CPUMAPs by id; empty: all.
    pub maps: Vec<u32>,
    /// Count successful redirects too, which costs something for every packet.
    pub successes: bool,
}

/// What was counted since the watch began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Redirects that worked (`processed`); empty unless they were asked for.
    pub redirect: PerCpu,
    /// Redirects that did not, by [`ERRORS`] (`dropped`).
    pub errors: Vec<PerCpu>,
    /// Exceptions by [`ACTIONS`] (`dropped`).
    pub exceptions: Vec<PerCpu>,
    /// Packets put into the queue of a CPU, by its number; the CPUs are those that put them there (`issue`: batches).
    pub enqueue: BTreeMap<u32, PerCpu>,
    /// Packets taken out of such queues (`issue`: how often the thread gave its CPU up), and what the map's program
    /// said.
    pub kthread: PerCpu,
    /// Frames that devices took from redirects (`issue`: batches; `drop`: failures of the driver).
    pub xmit: PerCpu,
    /// The same by where they came from and where they went, interfaces by number.
    pub links: BTreeMap<(u32, u32), PerCpu>,
}

impl Counts {
    /// What was counted since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        let none = PerCpu::default();
        let lists = |now: &[PerCpu], old: &[PerCpu]| -> Vec<PerCpu> {
            now.iter().enumerate().map(|(i, one)| one.since(old.get(i).unwrap_or(&none))).collect()
        };
        Counts {
            redirect: self.redirect.since(&before.redirect),
            errors: lists(&self.errors, &before.errors),
            exceptions: lists(&self.exceptions, &before.exceptions),
            enqueue: self.enqueue.iter().map(|(k, v)| (*k, v.since(before.enqueue.get(k).unwrap_or(&none)))).collect(),
            kthread: self.kthread.since(&before.kthread),
            xmit: self.xmit.since(&before.xmit),
            links: self.links.iter().map(|(k, v)| (*k, v.since(before.links.get(k).unwrap_or(&none)))).collect(),
        }
    }

    /// Redirects that failed.
    pub fn errors(&self) -> u64 {
        self.errors.iter().map(|one| one.sum().dropped).sum()
    }

    /// Exceptions.
    pub fn exceptions(&self) -> u64 {
        self.exceptions.iter().map(|one| one.sum().dropped).sum()
    }
}

/// Number of the calling thread's network namespace.
fn namespace() -> Result<u32, ToolError> {
    use std::os::unix::fs::MetadataExt;
    const PATH: &str = "/proc/thread-self/ns/net";
    let about = std::fs::metadata(PATH).map_err(|e| ToolError::Request(format!("{PATH}: {e}")))?;
    Ok(about.ino() as u32)
}

/// Tracepoints that are counted until this is dropped.
#[derive(Debug)]
pub struct Watch {
    object: Object,
    kernel: KernelObject,
    successes: bool,
    missing: Vec<String>,
    _tracepoints: Vec<RawTracepoint>,
}

impl Watch {
    /// Begins to count.
    ///
    /// # Errors
    /// Built without clang; `EPERM` without `CAP_BPF` and `CAP_PERFMON`; a kernel whose verifier refuses the programs.
    pub fn open(scope: &Scope) -> Result<Watch, ToolError> {
        let object = objects::object("watch", &[])?;
        let wanted = |name: &str| name != "on_redirect" || scope.successes;
        let kernel = KernelObject::load_some(&object, |p| wanted(&p.name))?;
        for (name, keys, value) in [("watched", &scope.devices, namespace()?), ("watched_maps", &scope.maps, 0)] {
            let map = objects::map(&kernel, &object, name)?;
            let all = if keys.is_empty() { &[0][..] } else { keys };
            for key in all {
                map.update(&key.to_ne_bytes(), &value.to_ne_bytes(), 0).map_err(|errno| KernelError::Map {
                    name: name.into(),
                    step: "choosing what counts",
                    errno,
                })?;
            }
        }
        let (mut tracepoints, mut missing) = (Vec::new(), Vec::new());
        for (program, loaded) in object.programs.iter().zip(&kernel.programs) {
            if !wanted(&program.name) {
                continue;
            }
            let loaded = loaded.as_ref().map_err(Clone::clone)?;
            let name = program.section.split_once('/').map_or("", |(_, name)| name);
            match RawTracepoint::attach(loaded, name) {
                Ok(tracepoint) => tracepoints.push(tracepoint),
                // Kernels gain and lose some of them.
                Err(e) if e.errno() == Some(Errno::ENOENT) => missing.push(name.to_owned()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Watch { object, kernel, successes: scope.successes, missing, _tracepoints: tracepoints })
    }

    /// Tracepoints that this kernel does not have: their counters stay zero.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Successful redirects are counted.
    pub fn successes(&self) -> bool {
        self.successes
    }

    /// What was counted until now.
    ///
    /// # Errors
    /// None but a map that is not there, which a test excludes.
    pub fn read(&self) -> Result<Counts, ToolError> {
        let map = |name| objects::map(&self.kernel, &self.object, name);
        let list = |name, len: usize| -> Result<Vec<PerCpu>, ToolError> {
            let map = map(name)?;
            Ok((0..len as u32).map(|i| PerCpu::at(map, i)).collect())
        };
        let enqueues = map("enqueues")?;
        let enqueue = (0..CPUS).map(|cpu| (cpu, PerCpu::at(enqueues, cpu))).filter(|(_, t)| !t.sum().is_zero());
        let all = map("links")?;
        let word =
            |key: &[u8], at: usize| key.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b));
        let keys = all.keys().unwrap_or_default();
        Ok(Counts {
            redirect: PerCpu::at(map("redirects")?, 0),
            errors: list("redirect_errors", ERRORS.len())?,
            exceptions: list("exceptions", ACTIONS.len())?,
            enqueue: enqueue.collect(),
            kthread: PerCpu::at(map("kthreads")?, 0),
            xmit: PerCpu::at(map("xmits")?, 0),
            links: keys.iter().map(|key| ((word(key, 0), word(key, 4)), PerCpu::read(all, key))).collect(),
        })
    }
}
