//! What it costs to come from a port's burst to its program: called directly, through the dispatcher's tree of jumps with more and more
//! targets, past its last place; and several programs as one chain.
//!
//! Neighbours answer with different numbers, and the sum of all answers is checked. Calls go to the targets
//! in turns whose length no branch predictor knows by heart.

use std::sync::Arc;
use std::time::Instant;

use xway_jit::dispatch::{Dispatcher, TARGETS_MAX};
use xway_jit::{Compiled, Link, Options, RunEnv, chain, compile};
use xway_maps::Guard;
use xway_object::{Object, Program as Image};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, MapsView, Verified, verify};
use xway_vm::{Instance, Program, SystemHost};

use crate::flows::Rng;
use crate::measure::{MeasureError, Stat, pin};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct DispatchOptions {
    /// Bursts in a round.
    pub bursts: u32,
    /// Rounds.
    pub rounds: u32,
    /// Core to run on.
    pub cpu: u32,
}

/// One case.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// How programs are reached.
    pub name: String,
    /// Nanoseconds a packet in bursts of 64, and in bursts of one.
    pub ns: [Stat; 2],
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The core cannot be had.
    #[error(transparent)]
    Pin(#[from] MeasureError),
    /// A program of the measurement itself is refused.
    #[error("the measurement's own program: {0}")]
    Program(String),
    /// A call reached another program than it should.
    #[error("{case}: a call of program {wanted} gave what program {got} gives")]
    Wrong {
        /// The case.
        case: String,
        /// What should have run.
        wanted: u64,
        /// What ran.
        got: u64,
    },
}

/// Lengths of bursts.
const BURSTS: [usize; 2] = [64, 1];
/// Targets of trees that are measured.
const TREES: [usize; 8] = [1, 2, 4, 8, 16, 32, 48, TARGETS_MAX];
/// Programs of chains that are measured.
const CHAINS: [usize; 5] = [1, 2, 8, 16, 48];

/// What programs return is below: the verdicts that a chain can go on with.
const NUMBERS: u64 = 32;

/// A program with its proof.
type Ready = (Arc<Program>, Arc<Verified>);

/// Measures every case.
///
/// # Errors
/// [`DispatchError`].
pub fn dispatch(options: &DispatchOptions) -> Result<Vec<Line>, DispatchError> {
    pin(options.cpu)?;
    let programs = programs(TARGETS_MAX + 1)?;
    let failed = |e: xway_jit::Refusal| DispatchError::Program(e.to_string());
    let plain = Options { single: false, check: false, ..Options::default() };
    let code = programs.iter().map(|(program, proof)| compile(program, proof, &plain)).collect::<Result<Vec<_>, _>>();
    let code = code.map_err(failed)?;
    let mut cases = vec![Case { name: "called directly".into(), way: Way::Direct, code: code[..1].to_vec() }];
    for count in TREES {
        let name = if count == 1 { "tree of 1 target".into() } else { format!("tree of {count} targets") };
        let dispatcher = tree(&code[..count])?;
        cases.push(Case { name, way: Way::Tree(dispatcher), code: code[..count].to_vec() });
    }
    cases.push(Case {
        name: format!("not among the tree's {TARGETS_MAX}"),
        way: Way::Tree(tree(&code[..TARGETS_MAX])?),
        code: code[TARGETS_MAX..].to_vec(),
    });
    for count in CHAINS {
        // All go on but the last, which every chain ends with.
        let link = |(program, proof): &'_ Ready| (program.clone(), proof.clone());
        let links: Vec<Ready> = programs[TARGETS_MAX + 1 - count..].iter().map(link).collect();
        let links: Vec<Link<'_>> =
            links.iter().map(|(program, proof)| Link { program, proof, chain_on: u32::MAX }).collect();
        let name = if count == 1 { "chain of 1 program".into() } else { format!("chain of {count} programs") };
        cases.push(Case { name, way: Way::Chain, code: vec![chain(&links, &plain).map_err(failed)?] });
    }
    let mut pool = Pool::new(PoolConfig::new(BURSTS[0] as u32)).map_err(|e| DispatchError::Program(e.to_string()))?;
    let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.alloc().ok()).collect();
    for frame in &mut frames {
        frame.fill(&[0; 64]).map_err(|e| DispatchError::Program(e.to_string()))?;
    }
    let mut samples = vec![[const { Vec::new() }; BURSTS.len()]; cases.len()];
    for _ in 0..options.rounds.max(1) {
        for (case, samples) in cases.iter().zip(&mut samples) {
            for (len, samples) in BURSTS.into_iter().zip(samples) {
                samples.push(case.round(options.bursts, &mut frames[..len])?);
            }
        }
    }
    frames.into_iter().for_each(|frame| pool.release(frame));
    let line = |(case, samples): (Case, [Vec<f64>; 2])| Line { name: case.name, ns: samples.map(Stat::of) };
    Ok(cases.into_iter().zip(samples).map(line).collect())
}

/// Programs that return 0, 1, 2, … below [`NUMBERS`].
fn programs(count: usize) -> Result<Vec<Ready>, DispatchError> {
    let failed = |why: String| DispatchError::Program(why);
    let image = |n: usize| {
        let insns =
            xway_isa::assemble(&format!("r0 = {}\nexit", n as u64 % NUMBERS)).map_err(|e| failed(e.to_string()))?;
        Ok(Image { name: format!("program_{n}"), section: "xdp".into(), insns, ..Image::default() })
    };
    let images = (0..count).map(image).collect::<Result<Vec<_>, DispatchError>>()?;
    let object = Arc::new(Object { programs: images, license: Some("GPL".into()), ..Object::default() });
    let instance = Instance::new(object.clone(), 1).map_err(|e| failed(e.to_string()))?;
    let ready = |image: &Image| {
        let image = image.as_xdp().map_err(|e| failed(e.to_string()))?;
        let proof = verify(&image, &MapsView::from(&*object), &Config::default()).map_err(|e| failed(e.to_string()))?;
        Ok((instance.link(&image).map_err(|e| failed(e.to_string()))?, Arc::new(proof)))
    };
    object.programs.iter().map(ready).collect()
}

fn tree(targets: &[Arc<Compiled>]) -> Result<Dispatcher, DispatchError> {
    let dispatcher = Dispatcher::new();
    for code in targets {
        dispatcher.add(code).map_err(|e| DispatchError::Program(e.to_string()))?;
    }
    Ok(dispatcher)
}

enum Way {
    Direct,
    Tree(Dispatcher),
    Chain,
}

struct Case {
    name: String,
    way: Way,
    /// What is called, in turns.
    code: Vec<Arc<Compiled>>,
}

impl Case {
    /// Nanoseconds a packet.
    fn round(&self, bursts: u32, frames: &mut [Frame]) -> Result<f64, DispatchError> {
        let (guard, host) = (Guard::pin(), SystemHost::new());
        let mut env = RunEnv::new(&guard, &host, 0);
        let mut verdicts = [0; BURSTS[0]];
        let mut rng = Rng(1);
        let turns: Vec<usize> = (0..1 << 12).map(|_| rng.below(self.code.len() as u32) as usize).collect();
        let tree = match &self.way {
            Way::Tree(dispatcher) => Some(dispatcher.tree()),
            _ => None,
        };
        let mut sum = 0u64;
        let started = Instant::now();
        for n in 0..bursts as usize {
            let code = &self.code[turns[n % turns.len()]];
            let ran = match &tree {
                Some(tree) => tree.run_burst(code, frames, &mut env, &mut verdicts),
                None => code.run_burst(frames, &mut env, &mut verdicts),
            };
            ran.map_err(|e| DispatchError::Program(e.to_string()))?;
            sum = sum.wrapping_add(verdicts[0] & u64::from(u32::MAX));
        }
        let ns = started.elapsed().as_nanos() as f64 / f64::from(bursts) / frames.len() as f64;
        let wanted: u64 = match self.way {
            // Of a chain that everybody lets go on nobody decides.
            Way::Chain => u64::from(bursts) * u64::from(xway_vm::CHAIN_END),
            _ => (0..bursts as usize).map(|n| self.number(turns[n % turns.len()])).sum(),
        };
        if sum != wanted {
            return Err(DispatchError::Wrong { case: self.name.clone(), wanted, got: sum });
        }
        Ok(ns)
    }

    /// What the code with this place returns.
    fn number(&self, at: usize) -> u64 {
        self.code[at].name().rsplit('_').next().and_then(|n| n.parse().ok()).map_or(u64::MAX, |n: u64| n % NUMBERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_reaches_the_right_program() {
        let lines = dispatch(&DispatchOptions { bursts: 500, rounds: 1, cpu: 0 }).unwrap();
        assert_eq!(lines.len(), 2 + TREES.len() + CHAINS.len());
        assert!(lines.iter().all(|l| l.ns.iter().all(|ns| ns.median > 0.0)));
    }
}
