//! Several programs on one hook: each runs over what the one before it lets through.
//!
//! [`xway_vm::run_chain`] says what a chain is. Where every program of it has machine code it is compiled into one burst function
//! ([`CompiledChain`]); else [`Chain`] runs one executor after the other.

use std::sync::Arc;
use std::time::Duration;

use xway_abi::Verdict;
use xway_jit::{Compiled, Decided, RunEnv};
use xway_maps::Guard;
use xway_packet::{Burst, Frame};
use xway_vm::{CHAIN_END, CHAIN_ON_DEFAULT, Host, Program, SystemHost, Timers, chains_on};

use crate::exec::{Executor, ExecutorInfo, Results};
use crate::meters::{Count, Metered};

/// A set of verdicts, as the chain-on bits of the ecosystem's multi-program convention: bit `1 << verdict`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerdictSet(pub u32);

impl VerdictSet {
    /// PASS alone: the convention's default.
    pub const PASS: VerdictSet = VerdictSet(CHAIN_ON_DEFAULT);

    /// Whether the verdict is one of them.
    pub const fn has(self, verdict: Verdict) -> bool {
        self.0 & 1 << verdict as u32 != 0
    }
}

/// What one program did on one queue, while it grows.
#[derive(Debug, Default)]
pub(crate) struct ProgramMeters {
    pub(crate) runs: Count,
    pub(crate) verdicts: [Count; 5],
    pub(crate) invalid: Count,
    pub(crate) faults: Count,
    pub(crate) chained: Count,
}

/// What one program did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramCounters {
    /// Frames that it ran over.
    pub runs: u64,
    /// Of these, those that went on to the next program, or passed behind the last of several.
    pub chained: u64,
    /// Of these, those that it decided about, by verdict, in the order of [`Verdict::ALL`].
    pub verdicts: [u64; 5],
    /// Those for which it returned a code that is no verdict.
    pub invalid: u64,
    /// Those for which it was stopped.
    pub faults: u64,
}

impl ProgramMeters {
    pub(crate) fn read(&self) -> ProgramCounters {
        ProgramCounters {
            runs: self.runs.get(),
            chained: self.chained.get(),
            verdicts: <[u64; 5]>::read(&self.verdicts),
            invalid: self.invalid.get(),
            faults: self.faults.get(),
        }
    }

    fn add(&self, tally: &Tallied) {
        self.runs.add(tally.chained + tally.verdicts.iter().sum::<u64>() + tally.invalid);
        self.chained.add(tally.chained);
        self.verdicts.iter().zip(tally.verdicts).for_each(|(count, number)| count.add(number));
        self.invalid.add(tally.invalid);
        self.faults.add(tally.faults);
    }
}

/// What one program did with one burst.
#[derive(Clone, Copy, Default)]
struct Tallied {
    chained: u64,
    verdicts: [u64; 5],
    invalid: u64,
    faults: u64,
}

impl Tallied {
    #[inline]
    fn decided(&mut self, ret: u64) {
        match Verdict::from_ret(ret) {
            Some(verdict) => self.verdicts[verdict as usize] += 1,
            None => self.invalid += 1,
        }
    }
}

impl ProgramCounters {
    /// Adds what it did on another queue.
    pub fn merge(&mut self, other: &ProgramCounters) {
        self.runs += other.runs;
        self.chained += other.chained;
        self.verdicts.merge(&other.verdicts);
        self.invalid += other.invalid;
        self.faults += other.faults;
    }
}

/// One program of a chain.
pub(crate) struct Link {
    pub(crate) executor: Box<dyn Executor>,
    /// Verdicts after which the next one runs.
    pub(crate) chain_on: VerdictSet,
    pub(crate) meters: Arc<ProgramMeters>,
}

/// Runs programs one after the other. The frames keep their order: where only some of a burst go on, the next program runs over
/// each stretch of neighbours.
pub(crate) struct Chain {
    links: Vec<Link>,
    scratch: Results,
}

impl Chain {
    /// Most programs in a chain.
    pub(crate) const LINKS_MAX: usize = 128;

    pub(crate) fn new(links: Vec<Link>) -> Chain {
        Chain { links, scratch: Results::of_bursts() }
    }
}

/// Whether the frame goes on behind the program at `position`. A fault ends a chain.
#[inline]
fn goes_on(results: &Results, at: usize, position: usize, chain_on: VerdictSet) -> bool {
    results.position(at) == position && chains_on(chain_on.0, results.rets()[at]) && results.fault(at).is_none()
}

impl Executor for Chain {
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        let Some(first) = self.links.first_mut() else { return results.pass_all(frames.len()) };
        first.executor.run(frames, guard, results);
        results.complete(frames.len());
        if self.links.len() == 1 && self.links[0].chain_on == VerdictSet::PASS {
            // The usual case: what chains on is PASS, and stays PASS.
            let mut tally = Tallied { faults: results.faults().len() as u64, ..Tallied::default() };
            results.rets().iter().for_each(|&ret| tally.decided(ret));
            return self.links[0].meters.add(&tally);
        }
        for position in 0..self.links.len() {
            let (chain_on, last) = (self.links[position].chain_on, position + 1 == self.links.len());
            let mut tally = Tallied { faults: results.faults().len() as u64, ..Tallied::default() };
            if position > 0 {
                tally.faults =
                    results.faults().iter().filter(|(at, _)| results.position(*at) == position).count() as u64;
            }
            let mut at = 0;
            while at < frames.len() {
                if !goes_on(results, at, position, chain_on) {
                    if results.position(at) == position {
                        tally.decided(results.rets()[at]);
                    }
                    at += 1;
                    continue;
                }
                let more = (at..frames.len()).take_while(|&at| goes_on(results, at, position, chain_on));
                let len = more.count();
                tally.chained += len as u64;
                self.scratch.clear();
                match self.links.get_mut(position + 1) {
                    Some(next) => next.executor.run_on(&mut frames[at..at + len], guard, &mut self.scratch),
                    None => (0..len).for_each(|_| self.scratch.push(CHAIN_END.into(), 0)),
                }
                results.overwrite(at, position as u8 + 1, &mut self.scratch, len);
                at += len;
            }
            self.links[position].meters.add(&tally);
            if last || tally.chained == 0 {
                return;
            }
        }
    }

    fn tick(&mut self) -> Option<Duration> {
        self.links.iter_mut().filter_map(|link| link.executor.tick()).min()
    }

    fn info(&self) -> ExecutorInfo {
        let infos: Vec<ExecutorInfo> = self.links.iter().map(|link| link.executor.info()).collect();
        match &infos[..] {
            [one] => one.clone(),
            several => ExecutorInfo {
                program: several.iter().map(|info| info.program.as_str()).collect::<Vec<_>>().join("+"),
                engine: "chain",
            },
        }
    }

    fn names(&self) -> Vec<String> {
        self.links.iter().map(|link| link.executor.info().program).collect()
    }
}

/// A program of a compiled chain.
pub(crate) struct CompiledLink {
    pub(crate) program: Arc<Program>,
    pub(crate) meters: Arc<ProgramMeters>,
}

/// A chain as one burst function.
pub(crate) struct CompiledChain {
    code: Arc<Compiled>,
    links: Vec<CompiledLink>,
    host: Box<dyn Host + Send>,
    cpu: u32,
    rets: Vec<u64>,
    tallies: Vec<Tallied>,
}

impl CompiledChain {
    /// `code` was made of these programs, in this order.
    pub(crate) fn new(code: Arc<Compiled>, links: Vec<CompiledLink>, cpu: u32) -> CompiledChain {
        let tallies = vec![Tallied::default(); links.len()];
        CompiledChain {
            code,
            links,
            host: Box::new(SystemHost::new()),
            cpu,
            rets: Vec::with_capacity(Burst::MAX),
            tallies,
        }
    }
}

impl Executor for CompiledChain {
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        self.host.burst_begins();
        let mut env = RunEnv::new(guard, &*self.host, self.cpu);
        self.rets.clear();
        self.rets.resize(frames.len(), 0);
        if let Err(refusal) = self.code.run_burst(frames, &mut env, &mut self.rets) {
            frames.iter().for_each(|_| results.push_fault(Box::new(refusal.clone()), 0));
            return;
        }
        let faults = env.take_faults();
        self.tallies.fill(Tallied::default());
        let mut passed = 0;
        for (frame, &stored) in frames.iter().zip(&self.rets) {
            let Decided { verdict, link } = Decided::of(stored);
            match self.tallies.get_mut(link) {
                Some(tally) => tally.decided(verdict.into()),
                None => passed += 1,
            }
            // A defect of the verifier, so it is shown with the frame that it happened to.
            let address = std::ptr::from_ref(frame) as usize;
            match faults.iter().find(|fault| fault.0 == address) {
                Some((_, kind)) => results.push_fault(Box::new(kind.clone()), 0),
                None => results.push_decided(verdict.into(), link.min(self.links.len()) as u8),
            }
        }
        // Whoever is decided about by a program went through all before it.
        for (link, tally) in self.links.iter().zip(&mut self.tallies).rev() {
            tally.chained = passed;
            link.meters.add(tally);
            passed += tally.verdicts.iter().sum::<u64>() + tally.invalid;
        }
    }

    fn tick(&mut self) -> Option<Duration> {
        let timers = Timers::shared();
        if timers.next_due(&*self.host)? == 0 {
            timers.run_due(&*self.host, self.cpu);
        }
        timers.next_due(&*self.host).map(Duration::from_nanos)
    }

    fn info(&self) -> ExecutorInfo {
        ExecutorInfo { program: self.names().join("+"), engine: "jit" }
    }

    fn names(&self) -> Vec<String> {
        self.links.iter().map(|link| link.program.name().to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use xway_packet::{Burst, Pool, PoolConfig};

    use super::*;

    /// Returns a verdict that depends on the packet's first byte and writes its own mark behind it.
    struct Step(u8, fn(u8) -> Option<u64>);

    impl Executor for Step {
        fn run(&mut self, frames: &mut [Frame], _: &Guard, results: &mut Results) {
            for frame in frames {
                let packet = frame.packet_mut();
                let first = packet[0];
                packet[usize::from(self.0)] = self.0;
                match self.1(first) {
                    Some(ret) => results.push(ret, 1),
                    None => results.push_fault("stopped".into(), 1),
                }
            }
        }
        fn info(&self) -> ExecutorInfo {
            ExecutorInfo { program: format!("step{}", self.0), engine: "rust" }
        }
    }

    #[test]
    fn each_program_runs_over_what_the_one_before_lets_through() {
        let mut pool = Pool::new(PoolConfig::new(16)).unwrap();
        let mut burst = Burst::new();
        for number in 0..8u8 {
            let mut frame = pool.alloc().unwrap();
            frame.fill(&[number; 32]).unwrap();
            frame.packet_mut()[1..].fill(0);
            burst.push(frame).unwrap();
        }
        let steps: [fn(u8) -> Option<u64>; 3] = [
            |first| Some(if first % 4 == 1 { 1 } else { 2 }),
            |first| if first == 2 { None } else { Some(2 + u64::from(first == 3)) },
            |first| Some(if first == 7 { 99 } else { 2 }),
        ];
        let meters: Vec<Arc<ProgramMeters>> = (0..3).map(|_| Arc::default()).collect();
        let links = (1..).zip(steps).zip(&meters).map(|((mark, step), meters)| Link {
            executor: Box::new(Step(mark, step)),
            chain_on: VerdictSet::PASS,
            meters: meters.clone(),
        });
        let mut chain = Chain::new(links.collect());
        let mut results = Results::default();
        chain.run(burst.frames_mut(), &Guard::pin(), &mut results);
        assert_eq!(results.rets(), [2, 1, 0, 3, 2, 1, 2, 99]);
        // Position 3 is the end of the chain.
        assert_eq!([0, 1, 2, 3, 7].map(|at| results.position(at)), [3, 0, 1, 1, 2]);
        assert!(results.fault(2).is_some() && results.fault(3).is_none());
        let marks = |at: usize| burst.frames()[at].packet()[1..4].to_vec();
        assert_eq!([0, 1, 2, 3].map(marks), [vec![1, 2, 3], vec![1, 0, 0], vec![1, 2, 0], vec![1, 2, 0]]);
        let read: Vec<ProgramCounters> = meters.iter().map(|meters| meters.read()).collect();
        assert_eq!(read.iter().map(|counters| counters.runs).collect::<Vec<_>>(), [8, 6, 4]);
        assert_eq!(read.iter().map(|counters| counters.chained).collect::<Vec<_>>(), [6, 4, 3]);
        assert_eq!((read[1].faults, read[1].verdicts, read[2].invalid), (1, [1, 0, 0, 1, 0], 1));
        assert_eq!(chain.names(), ["step1", "step2", "step3"]);
        pool.release_burst(&mut burst);
        pool.close().unwrap();
    }
}
