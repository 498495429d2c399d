//! Several programs on one hook: each runs over what the one before it lets through.

use std::sync::Arc;
use std::time::Duration;

use xway_abi::Verdict;
use xway_maps::Guard;
use xway_packet::Frame;

use crate::exec::{Executor, ExecutorInfo, Results};
use crate::meters::{Count, Metered};

/// A set of verdicts, as the chain-on bits of the ecosystem's multi-program convention: bit `1 << verdict`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerdictSet(pub u32);

impl VerdictSet {
    /// PASS alone: the convention's default.
    pub const PASS: VerdictSet = VerdictSet(1 << Verdict::Pass as u32);

    /// Whether the verdict is one of them.
    pub const fn has(self, verdict: Verdict) -> bool {
        self.0 & 1 << verdict as u32 != 0
    }

    /// Whether r0 of a program is one of them; codes that are no verdicts never are.
    #[inline]
    pub(crate) fn has_ret(self, ret: u64) -> bool {
        Verdict::from_ret(ret).is_some_and(|verdict| self.has(verdict))
    }
}

/// What one program did on one queue, while it grows.
#[derive(Debug, Default)]
pub(crate) struct ProgramMeters {
    pub(crate) runs: Count,
    pub(crate) verdicts: [Count; 5],
    pub(crate) invalid: Count,
    pub(crate) faults: Count,
}

/// What one program did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramCounters {
    /// Frames that it ran over.
    pub runs: u64,
    /// Of these, by verdict, in the order of [`Verdict::ALL`].
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
            verdicts: <[u64; 5]>::read(&self.verdicts),
            invalid: self.invalid.get(),
            faults: self.faults.get(),
        }
    }

    fn add(&self, results: &Results, count: usize) {
        let (mut verdicts, mut invalid) = ([0; 5], 0);
        for ret in results.all_rets().take(count) {
            match Verdict::from_ret(ret) {
                Some(verdict) => verdicts[verdict as usize] += 1,
                None => invalid += 1,
            }
        }
        self.runs.add(count as u64);
        self.verdicts.iter().zip(verdicts).for_each(|(count, number)| count.add(number));
        self.invalid.add(invalid);
        self.faults.add(results.faults().len() as u64);
    }
}

impl ProgramCounters {
    /// Adds what it did on another queue.
    pub fn merge(&mut self, other: &ProgramCounters) {
        self.runs += other.runs;
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
        Chain { links, scratch: Results::default() }
    }
}

impl Executor for Chain {
    fn run(&mut self, frames: &mut [Frame], guard: &Guard, results: &mut Results) {
        let Some((first, rest)) = self.links.split_first_mut() else { return };
        first.executor.run(frames, guard, results);
        results.complete(frames.len());
        first.meters.add(results, frames.len());
        let mut chain_on = first.chain_on;
        for (position, link) in (1..).zip(rest) {
            let goes_on = |results: &Results, at: usize| {
                results.position(at) + 1 == usize::from(position) && chain_on.has_ret(results.rets()[at])
            };
            let mut at = 0;
            let mut any = false;
            while at < frames.len() {
                if !goes_on(results, at) {
                    at += 1;
                    continue;
                }
                let len = (at..frames.len()).take_while(|&at| goes_on(results, at)).count();
                any = true;
                self.scratch.clear();
                link.executor.run(&mut frames[at..at + len], guard, &mut self.scratch);
                link.meters.add(&self.scratch, len);
                results.overwrite(at, position, &mut self.scratch, len);
                at += len;
            }
            if !any {
                return;
            }
            chain_on = link.chain_on;
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
        assert_eq!([0, 1, 2, 3, 7].map(|at| results.position(at)), [2, 0, 1, 1, 2]);
        assert!(results.fault(2).is_some() && results.fault(3).is_none());
        let marks = |at: usize| burst.frames()[at].packet()[1..4].to_vec();
        assert_eq!([0, 1, 2, 3].map(marks), [vec![1, 2, 3], vec![1, 0, 0], vec![1, 2, 0], vec![1, 2, 0]]);
        let read: Vec<ProgramCounters> = meters.iter().map(|meters| meters.read()).collect();
        assert_eq!(read.iter().map(|counters| counters.runs).collect::<Vec<_>>(), [8, 6, 4]);
        assert_eq!((read[1].faults, read[1].verdicts, read[2].invalid), (1, [1, 0, 4, 1, 0], 1));
        assert_eq!(chain.names(), ["step1", "step2", "step3"]);
        pool.release_burst(&mut burst);
        pool.close().unwrap();
    }

    #[test]
    fn a_chain_goes_on_after_the_verdicts_it_was_told() {
        let set = VerdictSet(1 << 0 | 1 << 2);
        assert!(set.has(Verdict::Aborted) && set.has_ret(2) && !set.has(Verdict::Drop));
        assert!(!set.has_ret(32) && !VerdictSet(u32::MAX).has_ret(5), "codes that are no verdicts end a chain");
    }
}
