//! What it costs to come from a port's burst to its program: by an indirect call, as engines call it, and through the dispatcher's tree of
//! jumps, with more and more targets; past the tree's last place; and several programs as one chain.
//!
//! Each program looks at a byte of the packet that is its own and decides on it, so that none can be folded away. Neighbours
//! answer with different numbers, and the sum of all answers is checked. Calls go to the targets at random, in turns that are too
//! long for a branch predictor to know by heart.

use std::sync::Arc;
use std::time::Instant;

use xway_jit::dispatch::{Dispatcher, Route, TARGETS_MAX};
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

/// How programs are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    /// By indirect calls of so many targets in random order.
    Indirect(usize),
    /// Through a tree of so many.
    Tree(usize),
    /// Through a full tree that it is not in.
    Beyond,
    /// So many programs as one function.
    Chain(usize),
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (way, count) = match self {
            Reached::Indirect(count) => ("indirect", count),
            Reached::Tree(count) => ("tree", count),
            Reached::Beyond => return write!(f, "not among the tree's {TARGETS_MAX}"),
            Reached::Chain(1) => return f.write_str("chain of 1 program"),
            Reached::Chain(count) => return write!(f, "chain of {count} programs"),
        };
        match count {
            1 => write!(f, "{way}, 1 target"),
            _ => write!(f, "{way}, {count} random targets"),
        }
    }
}

/// One case.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// How programs are reached.
    pub reached: Reached,
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
/// Targets, between which calls change at random.
const TARGETS: [usize; 8] = [1, 2, 4, 8, 16, 32, 48, TARGETS_MAX];
/// Programs of chains that are measured.
const CHAINS: [usize; 5] = [1, 2, 8, 16, 48];

/// Bytes of a packet.
const PACKET: usize = 64;
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
    // The tree fetches nothing ahead, so the indirect call does not either: what differs is the way to the program.
    let plain = Options { single: false, check: false, headers: false, ..Options::default() };
    let code = programs.iter().map(|(program, proof)| compile(program, proof, &plain)).collect::<Result<Vec<_>, _>>();
    let code = code.map_err(failed)?;
    let mut cases = Vec::new();
    for count in TARGETS {
        let code = code[..count].to_vec();
        let tree = Way::Tree(tree(&code)?);
        cases.push(Case { reached: Reached::Indirect(count), way: Way::Indirect, code: code.clone() });
        cases.push(Case { reached: Reached::Tree(count), way: tree, code });
    }
    cases.push(Case {
        reached: Reached::Beyond,
        way: Way::Tree(tree(&code[..TARGETS_MAX])?),
        code: code[TARGETS_MAX..].to_vec(),
    });
    for count in CHAINS {
        // All go on but the last, which every chain ends with.
        let link = |(program, proof): &'_ Ready| (program.clone(), proof.clone());
        let links: Vec<Ready> = programs[TARGETS_MAX + 1 - count..].iter().map(link).collect();
        let links: Vec<Link<'_>> =
            links.iter().map(|(program, proof)| Link { program, proof, chain_on: u32::MAX }).collect();
        let code = vec![chain(&links, &plain).map_err(failed)?];
        cases.push(Case { reached: Reached::Chain(count), way: Way::Chain, code });
    }
    let mut pool = Pool::new(PoolConfig::new(BURSTS[0] as u32)).map_err(|e| DispatchError::Program(e.to_string()))?;
    let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.alloc().ok()).collect();
    for frame in &mut frames {
        frame.fill(&[0; PACKET]).map_err(|e| DispatchError::Program(e.to_string()))?;
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
    let line = |(case, samples): (Case, [Vec<f64>; 2])| Line { reached: case.reached, ns: samples.map(Stat::of) };
    Ok(cases.into_iter().zip(samples).map(line).collect())
}

/// Programs that return 0, 1, 2, … below [`NUMBERS`] where a byte of the packet is 0, another one for each program, and the next
/// number where it is not.
fn programs(count: usize) -> Result<Vec<Ready>, DispatchError> {
    let failed = |why: String| DispatchError::Program(why);
    let image = |n: usize| {
        let insns = xway_isa::assemble(&decides(n % PACKET, n as u64 % NUMBERS)).map_err(|e| failed(e.to_string()))?;
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

/// The text of a program that answers with a number if the byte at this place of the packet is 0.
fn decides(at: usize, number: u64) -> String {
    let other = (number + 1) % NUMBERS;
    format!(
        "r2 = *(u32 *)(r1 + 0)
         r3 = *(u32 *)(r1 + 4)
         r4 = r2
         r4 += {end}
         r0 = {other}
         if r4 > r3 goto out
         r2 = *(u8 *)(r2 + {at})
         if r2 != 0 goto out
         r0 = {number}
         out:
         exit",
        end = at + 1
    )
}

fn tree(targets: &[Arc<Compiled>]) -> Result<Dispatcher, DispatchError> {
    let dispatcher = Dispatcher::new();
    for code in targets {
        dispatcher.add(code).map_err(|e| DispatchError::Program(e.to_string()))?;
    }
    Ok(dispatcher)
}

enum Way {
    Indirect,
    Tree(Dispatcher),
    Chain,
}

struct Case {
    reached: Reached,
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
        let turns: Vec<usize> = (0..1 << 16).map(|_| rng.below(self.code.len() as u32) as usize).collect();
        let mut routes: Vec<Route> = match &self.way {
            Way::Tree(dispatcher) => {
                let tree = dispatcher.tree();
                self.code.iter().map(|code| tree.route(code)).collect()
            }
            _ => vec![],
        };
        let mut sum = 0u64;
        let started = Instant::now();
        for n in 0..bursts as usize {
            let turn = turns[n % turns.len()];
            let ran = match routes.get_mut(turn) {
                Some(route) => route.run_burst(frames, &mut env, &mut verdicts),
                None => self.code[turn].run_burst(frames, &mut env, &mut verdicts),
            };
            ran.map_err(|e| DispatchError::Program(e.to_string()))?;
            // Of the first packet and of the last one, which is the same in a burst of one.
            let [first, last] = [verdicts[0], verdicts[frames.len() - 1]].map(|verdict| verdict & u64::from(u32::MAX));
            sum = sum.wrapping_add(first + last);
        }
        let ns = started.elapsed().as_nanos() as f64 / f64::from(bursts) / frames.len() as f64;
        let wanted: u64 = match self.way {
            // Of a chain that everybody lets go on nobody decides.
            Way::Chain => 2 * u64::from(bursts) * u64::from(xway_vm::CHAIN_END),
            _ => (0..bursts as usize).map(|n| 2 * self.number(turns[n % turns.len()])).sum(),
        };
        if sum != wanted {
            return Err(DispatchError::Wrong { case: self.reached.to_string(), wanted, got: sum });
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
        assert_eq!(lines.len(), 1 + 2 * TARGETS.len() + CHAINS.len());
        assert!(lines.iter().all(|l| l.ns.iter().all(|ns| ns.median > 0.0)));
    }
}
