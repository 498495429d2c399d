//! Hook slots: which programs are attached where, and the rules for changing that.

use std::sync::Arc;

use xway_abi::Errno;

use xway_jit::Compiled;

use crate::chain::{Chain, CompiledChain, CompiledLink, Link, ProgramMeters, VerdictSet};
use crate::exec::Executor;
use crate::program::{LoadedProgram, Nothing};

/// How a program is attached (`XDP_FLAGS_*` of `linux/if_link.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttachFlags {
    /// Only where nothing is attached (`XDP_FLAGS_UPDATE_IF_NOEXIST`).
    pub if_noexist: bool,
    /// Only in place of the program with this id (`XDP_FLAGS_REPLACE`); 0: only where nothing is attached.
    pub replace: Option<u32>,
}

/// An attachment that the rules forbid; the errno is Linux's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why} ({errno})")]
pub struct AttachError {
    /// What Linux says in this case.
    pub errno: Errno,
    /// What is wrong, and what to do.
    pub why: String,
}

impl AttachError {
    fn new(errno: Errno, why: impl Into<String>) -> AttachError {
        AttachError { errno, why: why.into() }
    }
}

/// One program on a hook.
#[derive(Clone)]
pub struct Attached {
    /// The program.
    pub program: Arc<dyn LoadedProgram>,
    /// Its place: smaller numbers run first, equal ones in the order of attaching.
    pub priority: i32,
    /// Verdicts after which the next program runs.
    pub chain_on: VerdictSet,
}

impl Attached {
    /// With the convention's defaults: priority 50, the next one runs after PASS.
    pub fn new(program: Arc<dyn LoadedProgram>) -> Attached {
        Attached { program, priority: 50, chain_on: VerdictSet::PASS }
    }
}

/// The programs of one hook, in the order in which they run.
#[derive(Clone, Default)]
pub(crate) struct Slot {
    entries: Vec<Attached>,
    /// All of them as one function, where each has machine code.
    code: Option<Arc<Compiled>>,
}

impl Slot {
    /// Compiles what can be compiled: once for all queues and workers, before any of them hears of it.
    fn new(entries: Vec<Attached>) -> Slot {
        let code = if entries.len() > 1 { compile(&entries) } else { None };
        Slot { entries, code }
    }

    /// What runs the programs: `jit` for one function, `chain` for one after the other.
    pub(crate) fn engine(&self) -> &'static str {
        match (&self.code, self.entries.len()) {
            (_, 0) => "none",
            (Some(_), _) => "jit",
            (None, 1) => self.entries[0].program.machine_code().map_or("interp", |_| "jit"),
            (None, _) => "chain",
        }
    }

    /// The one function that all of them run as, where there is one.
    pub(crate) fn code(&self) -> Option<&Arc<Compiled>> {
        self.code.as_ref()
    }

    pub(crate) fn entries(&self) -> &[Attached] {
        &self.entries
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The slot with this program alone.
    ///
    /// # Errors
    /// `EINVAL` for flags that exclude each other, `EBUSY` where something is attached and nothing should be, `EEXIST` where
    /// another program than the expected one is attached (`dev_xdp_attach` of Linux).
    pub(crate) fn attach(&self, attached: Attached, flags: AttachFlags) -> Result<Slot, AttachError> {
        let now = self.id();
        match flags {
            AttachFlags { if_noexist: true, replace: Some(_) } => {
                let why = "if-noexist and replace exclude each other";
                return Err(AttachError::new(Errno::EINVAL, why));
            }
            AttachFlags { replace: Some(expected), .. } => self.expect(expected)?,
            AttachFlags { if_noexist: true, .. } if now != 0 => {
                return Err(AttachError::new(
                    Errno::EBUSY,
                    format!("program {now} is attached; detach it first, or replace it"),
                ));
            }
            _ => {}
        }
        Ok(Slot::new(vec![attached]))
    }

    /// The slot with one more program in its chain.
    ///
    /// # Errors
    /// `EEXIST` when the program is in the chain, `E2BIG` when the chain is full.
    pub(crate) fn add(&self, attached: Attached) -> Result<Slot, AttachError> {
        let id = attached.program.id();
        if self.entries.iter().any(|entry| entry.program.id() == id) {
            return Err(AttachError::new(Errno::EEXIST, format!("program {id} is in the chain")));
        }
        if self.entries.len() >= Chain::LINKS_MAX {
            let why = format!("a chain has at most {} programs", Chain::LINKS_MAX);
            return Err(AttachError::new(Errno::E2BIG, why));
        }
        let mut entries = self.entries.clone();
        let at = entries.partition_point(|entry| entry.priority <= attached.priority);
        entries.insert(at, attached);
        Ok(Slot::new(entries))
    }

    /// The slot with another program in the place of one in its chain; place and verdicts are those of the old one.
    ///
    /// # Errors
    /// `ENOENT` when the program is not in the chain.
    pub(crate) fn exchange(&self, old: u32, program: Arc<dyn LoadedProgram>) -> Result<Slot, AttachError> {
        let mut entries = self.entries.clone();
        let entry = entries.iter_mut().find(|entry| entry.program.id() == old).ok_or_else(|| missing(old))?;
        entry.program = program;
        Ok(Slot::new(entries))
    }

    /// The slot without this program.
    ///
    /// # Errors
    /// `ENOENT` when it is not in the chain.
    pub(crate) fn remove(&self, id: u32) -> Result<Slot, AttachError> {
        let mut entries = self.entries.clone();
        entries.retain(|entry| entry.program.id() != id);
        if entries.len() == self.entries.len() { Err(missing(id)) } else { Ok(Slot::new(entries)) }
    }

    /// The empty slot.
    ///
    /// # Errors
    /// `EEXIST` when another program than the expected one is attached.
    pub(crate) fn detach(&self, expected: Option<u32>) -> Result<Slot, AttachError> {
        expected.map_or(Ok(()), |expected| self.expect(expected))?;
        Ok(Slot::default())
    }

    /// Id of the program that Linux would name: the first one's, 0 without one.
    fn id(&self) -> u32 {
        self.entries.first().map_or(0, |entry| entry.program.id())
    }

    fn expect(&self, expected: u32) -> Result<(), AttachError> {
        let now = self.id();
        if now == expected {
            return Ok(());
        }
        let what = if now == 0 { "nothing is attached".to_owned() } else { format!("program {now} is attached") };
        Err(AttachError::new(Errno::EEXIST, format!("{what}, program {expected} was expected")))
    }

    /// What runs it on a worker. `meters` finds the counters of a program by its id.
    pub(crate) fn executor(
        &self,
        worker: u32,
        meters: &mut dyn FnMut(&Attached) -> Arc<ProgramMeters>,
    ) -> Box<dyn Executor> {
        if self.entries.is_empty() {
            return Box::new(Nothing);
        }
        if let Some(code) = &self.code {
            let links = self.entries.iter().filter_map(|entry| {
                let (program, _) = entry.program.machine_code()?;
                let program = program.clone();
                Some(CompiledLink { program, meters: meters(entry) })
            });
            return Box::new(CompiledChain::new(code.clone(), links.collect(), worker));
        }
        let links = self.entries.iter().map(|entry| Link {
            executor: entry.program.executor(worker),
            chain_on: entry.chain_on,
            meters: meters(entry),
        });
        Box::new(Chain::new(links.collect()))
    }
}

/// The chain as one function, compiled as its programs were; `None` when a program of it has no machine code, or there are too
/// many. It fetches ahead when all of them do.
fn compile(entries: &[Attached]) -> Option<Arc<Compiled>> {
    let mut options = entries.first()?.program.machine_code()?.1.options().clone();
    let links: Option<Vec<xway_jit::Link<'_>>> = entries
        .iter()
        .map(|entry| {
            let (program, code) = entry.program.machine_code()?;
            options.stage &= code.options().stage;
            Some(xway_jit::Link { program, proof: program.proof()?, chain_on: entry.chain_on.0 })
        })
        .collect();
    xway_jit::chain(&links?, &options).ok()
}

fn missing(id: u32) -> AttachError {
    AttachError::new(Errno::ENOENT, format!("program {id} is not attached here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(u32);

    impl LoadedProgram for Number {
        fn id(&self) -> u32 {
            self.0
        }
        fn name(&self) -> &str {
            "number"
        }
        fn executor(&self, _: u32) -> Box<dyn Executor> {
            Box::new(Nothing)
        }
    }

    fn number(id: u32) -> Attached {
        Attached::new(Arc::new(Number(id)))
    }

    fn ids(slot: &Slot) -> Vec<u32> {
        slot.entries().iter().map(|entry| entry.program.id()).collect()
    }

    #[test]
    fn flags_and_their_errnos() {
        let (empty, one) = (Slot::default(), Slot::default().attach(number(1), AttachFlags::default()).unwrap());
        let noexist = AttachFlags { if_noexist: true, replace: None };
        let replace = |id| AttachFlags { if_noexist: false, replace: Some(id) };
        let both = AttachFlags { if_noexist: true, replace: Some(1) };
        let errno = |slot: &Slot, flags| slot.attach(number(2), flags).map(|slot| ids(&slot)).map_err(|e| e.errno);
        assert_eq!(errno(&empty, noexist), Ok(vec![2]));
        assert_eq!(errno(&one, noexist), Err(Errno::EBUSY));
        assert_eq!(errno(&one, AttachFlags::default()), Ok(vec![2]), "force");
        assert_eq!(errno(&one, replace(1)), Ok(vec![2]));
        assert_eq!(errno(&one, replace(9)), Err(Errno::EEXIST));
        assert_eq!(errno(&empty, replace(1)), Err(Errno::EEXIST));
        assert_eq!(errno(&empty, replace(0)), Ok(vec![2]));
        assert_eq!(errno(&one, both), Err(Errno::EINVAL));
        assert_eq!(one.detach(Some(2)).err().map(|e| e.errno), Some(Errno::EEXIST));
        assert!(one.detach(Some(1)).unwrap().is_empty() && one.detach(None).unwrap().is_empty());
        assert!(empty.detach(None).unwrap().is_empty(), "as on Linux, where nothing is attached nothing is done");
    }

    #[test]
    fn a_chain_is_in_order_of_priority_and_then_of_attaching() {
        let with = |id, priority| Attached { priority, ..number(id) };
        let mut slot = Slot::default();
        for attached in [with(1, 50), with(2, 10), with(3, 50), with(4, -1)] {
            slot = slot.add(attached).unwrap();
        }
        assert_eq!(ids(&slot), [4, 2, 1, 3]);
        assert_eq!(slot.add(with(3, 1)).err().unwrap().errno, Errno::EEXIST);
        assert_eq!(ids(&slot.exchange(2, Arc::new(Number(9))).unwrap()), [4, 9, 1, 3]);
        assert_eq!(ids(&slot.remove(1).unwrap()), [4, 2, 3]);
        assert_eq!(slot.remove(7).err().unwrap().to_string(), "program 7 is not attached here (ENOENT)");
        for id in 100..100 + Chain::LINKS_MAX as u32 - 4 {
            slot = slot.add(number(id)).unwrap();
        }
        assert_eq!(slot.add(number(999)).err().unwrap().errno, Errno::E2BIG);
    }
}
