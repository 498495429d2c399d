//! A dispatcher: from the address of a program's burst function to the function, by comparisons and direct jumps.
//!
//! Where a call goes is known only at run time when ports have programs of their own that change. An indirect call costs little
//! while the processor guesses right and much where guesses are not allowed (retpolines). As Linux's BPF dispatcher does, this one
//! keeps the targets in a search tree of compared constants; its leaves are jumps with fixed distances. It is made anew when a
//! target comes or goes, beside the traffic: a worker holds the tree that it has and takes the new one at a burst of its
//! choice ([`Dispatcher::tree`]), so no call is ever torn.
//!
//! A worker asks the tree once for each of its ports ([`Tree::route`]): what is to be found and what counts is settled then, and a
//! burst is comparisons, a jump and one addition that no other core takes part in.
//!
//! A chain on one hook needs none of this: see [`crate::chain()`]. The engine uses chains alone; what each is worth, and when,
//! says `docs/design-notes/dispatch.md`.
#![allow(unsafe_code)] // calls generated code

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xway_packet::Frame;

use crate::code::CodeMemory;
use crate::compiled::BurstFn;
use crate::env::RunEnv;
use crate::{Compiled, Refusal};

/// Targets that a tree has room for; further ones are called indirectly.
pub const TARGETS_MAX: usize = 64;

/// Keeps the targets and makes trees of them.
#[derive(Debug, Default)]
pub struct Dispatcher {
    /// The targets and the tree of them.
    state: Mutex<(Users, Arc<Tree>)>,
}

/// Targets, each with how often it was added.
type Users = Vec<(Arc<Compiled>, usize)>;

impl Dispatcher {
    /// Without targets: everything is called indirectly.
    pub fn new() -> Dispatcher {
        Dispatcher::default()
    }

    /// Adds a target, or a further user of one that is there. False: there is no room, and calls of it are indirect.
    ///
    /// # Errors
    /// [`Refusal::Memory`] without memory for the tree; nothing is changed then.
    pub fn add(&self, code: &Arc<Compiled>) -> Result<bool, Refusal> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = state.0.iter_mut().find(|t| Arc::ptr_eq(&t.0, code)) {
            target.1 += 1;
            return Ok(true);
        }
        if state.0.len() == TARGETS_MAX || code.burst_entry().is_none() {
            return Ok(false);
        }
        let mut targets = state.0.clone();
        targets.push((code.clone(), 1));
        let tree = Arc::new(Tree::new(&targets)?);
        *state = (targets, tree);
        Ok(true)
    }

    /// Takes a user of a target away, and the target with its last one. False: it is not there.
    ///
    /// # Errors
    /// As [`Dispatcher::add`].
    pub fn remove(&self, code: &Arc<Compiled>) -> Result<bool, Refusal> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = state.0.iter().position(|t| Arc::ptr_eq(&t.0, code)) else { return Ok(false) };
        let mut targets = state.0.clone();
        targets[at].1 -= 1;
        if targets[at].1 > 0 {
            state.0 = targets;
            return Ok(true);
        }
        targets.remove(at);
        let tree = Arc::new(Tree::new(&targets)?);
        *state = (targets, tree);
        Ok(true)
    }

    /// The tree as it is now. A worker asks between bursts and keeps it for as many as it likes.
    pub fn tree(&self) -> Arc<Tree> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

/// A search tree in machine code, with the targets that it keeps alive.
#[derive(Debug, Default)]
pub struct Tree {
    code: Option<CodeMemory>,
    /// By rising address of the burst function.
    targets: Vec<(u64, Arc<Compiled>)>,
    counts: Mutex<Counts>,
}

/// Bursts by target; the last number is of those that go to none.
#[derive(Debug, Default)]
struct Counts {
    /// Of routes that are gone; empty before the first one went.
    gone: Vec<u64>,
    /// Where the routes that there are go, and what they count.
    routes: Vec<(usize, Arc<AtomicU64>)>,
}

type TreeFn = unsafe extern "C" fn(*mut RunEnv<'_>, *mut Frame, u64, *mut u64, u64);

impl Tree {
    fn new(targets: &[(Arc<Compiled>, usize)]) -> Result<Tree, Refusal> {
        let mut sorted: Vec<(u64, Arc<Compiled>)> =
            targets.iter().filter_map(|(code, _)| Some((code.burst_entry()? as u64, code.clone()))).collect();
        sorted.sort_by_key(|t| t.0);
        let addresses: Vec<u64> = sorted.iter().map(|t| t.0).collect();
        let code = match &addresses[..] {
            [] => None,
            _ if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) => None,
            all => CodeMemory::placed(tree_len(all.len()), |at| tree(all, at))?,
        };
        Ok(Tree { code, targets: sorted, counts: Mutex::default() })
    }

    /// The way to this code for one worker, which asks once and keeps it. What is not among the targets is reached too, by an
    /// indirect jump.
    pub fn route(self: &Arc<Tree>, code: &Arc<Compiled>) -> Route {
        let found = code.burst_entry().and_then(|e| self.targets.binary_search_by_key(&(e as u64), |t| t.0).ok());
        let bursts = Arc::new(AtomicU64::new(0));
        let place = found.unwrap_or(self.targets.len());
        self.counts().routes.push((place, bursts.clone()));
        Route { tree: self.clone(), code: code.clone(), bursts }
    }

    /// Bursts that went to each target, in the order of their addresses, and those that went to none of them. Costs a lock,
    /// which no burst takes.
    pub fn bursts(&self) -> (Vec<(Arc<Compiled>, u64)>, u64) {
        let counts = self.counts();
        let mut sums = counts.gone.clone();
        sums.resize(self.targets.len() + 1, 0);
        for (place, bursts) in &counts.routes {
            sums[*place] += bursts.load(Ordering::Relaxed);
        }
        (self.targets.iter().map(|t| t.1.clone()).zip(sums.iter().copied()).collect(), sums[self.targets.len()])
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine code and where it lies; empty without targets.
    pub fn code(&self) -> (&[u8], u64) {
        self.code.as_ref().map_or((&[], 0), |c| (c.bytes(), c.at(0) as u64))
    }
}

/// One worker's way through a tree to one program: both are kept alive by it.
#[derive(Debug)]
pub struct Route {
    tree: Arc<Tree>,
    code: Arc<Compiled>,
    /// Written by the one that holds the route, read by whoever asks the tree.
    bursts: Arc<AtomicU64>,
}

impl Route {
    /// As [`Compiled::run_burst`] of the route's code, by way of the tree. Nothing is fetched ahead.
    ///
    /// # Errors
    /// As [`Compiled::run_burst`].
    #[inline]
    pub fn run_burst(
        &mut self,
        frames: &mut [Frame],
        env: &mut RunEnv<'_>,
        verdicts: &mut [u64],
    ) -> Result<(), Refusal> {
        // One writer: no locked addition.
        self.bursts.store(self.bursts.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let Some(tree) = &self.tree.code else { return self.code.run_burst(frames, env, verdicts) };
        self.code.run_burst_by(frames, env, verdicts, |entry: BurstFn, env, frames, count, verdicts| {
            // SAFETY: the tree passes its first four arguments on, untouched, to the function whose address is the fifth: one of
            // its targets or, by an indirect jump, other code; the route keeps both alive.
            unsafe {
                let tree = std::mem::transmute::<*const u8, TreeFn>(tree.at(0));
                tree(env, frames, count, verdicts, entry as usize as u64);
            }
        })
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        let places = self.tree.targets.len() + 1;
        let mut counts = self.tree.counts();
        if let Some(at) = counts.routes.iter().position(|route| Arc::ptr_eq(&route.1, &self.bursts)) {
            let (place, bursts) = counts.routes.swap_remove(at);
            counts.gone.resize(places, 0);
            counts.gone[place] += bursts.load(Ordering::Relaxed);
        }
    }
}

/// Bytes of a node: a constant, a comparison, two conditional jumps.
const NODE: usize = if cfg!(target_arch = "aarch64") { 8 * 4 } else { 10 + 3 + 6 + 6 };
/// Bytes of the jump for what is not in the tree.
const OTHER: usize = if cfg!(target_arch = "aarch64") { 4 } else { 3 };

const fn tree_len(targets: usize) -> usize {
    // Each node has its own way out to the left; each leaf may have one to the right.
    targets * (NODE + 2 * OTHER)
}

/// The tree over addresses that rise, as it has to stand at an address. `None` when a target is too far away.
fn tree(targets: &[u64], at: u64) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(tree_len(targets.len()));
    if cfg!(target_arch = "aarch64") {
        node_aarch64(targets, at, &mut out)?
    } else {
        node_x86(targets, at, &mut out)?
    }
    Some(out)
}

/// ```text
/// mov r10, ADDRESS; cmp r8, r10; je ADDRESS; ja right; …left… right: …      jmp r8 where nothing is left to compare
/// ```
fn node_x86(targets: &[u64], at: u64, out: &mut Vec<u8>) -> Option<()> {
    let Some(&target) = targets.get(targets.len() / 2) else {
        out.extend([0x41, 0xff, 0xe0]); // jmp r8
        return Some(());
    };
    let (left, right) = (&targets[..targets.len() / 2], &targets[targets.len() / 2 + 1..]);
    out.extend([0x49, 0xba]); // mov r10, imm64
    out.extend(target.to_le_bytes());
    out.extend([0x4d, 0x39, 0xd0]); // cmp r8, r10
    out.extend([0x0f, 0x84]); // je rel32
    let next = at + out.len() as u64 + 4;
    out.extend(i32::try_from(target.wrapping_sub(next) as i64).ok()?.to_le_bytes());
    out.extend([0x0f, 0x87]); // ja rel32
    let hole = out.len();
    out.extend([0; 4]);
    node_x86(left, at, out)?;
    let distance = (out.len() - hole - 4) as i32;
    out[hole..hole + 4].copy_from_slice(&distance.to_le_bytes());
    node_x86(right, at, out)
}

/// A conditional jump reaches a megabyte and the other one 128: so the target has the latter.
///
/// ```text
/// mov x16, ADDRESS; cmp x4, x16; b.ne +8; b ADDRESS; b.hi right; …left… right: …      br x4 where nothing is left to compare
/// ```
fn node_aarch64(targets: &[u64], at: u64, out: &mut Vec<u8>) -> Option<()> {
    let mut word = |word: u32| out.extend(word.to_le_bytes());
    let Some(&target) = targets.get(targets.len() / 2) else {
        word(0xd61f_0080); // br x4
        return Some(());
    };
    let (left, right) = (&targets[..targets.len() / 2], &targets[targets.len() / 2 + 1..]);
    for (n, part) in (0u32..).zip(target.to_le_bytes().chunks_exact(2)) {
        let part = u32::from(part[0]) | u32::from(part[1]) << 8;
        // movz x16, then movk x16 into the next 16 bits.
        word((if n == 0 { 0xd280_0000 } else { 0xf280_0000 }) | n << 21 | part << 5 | 16);
    }
    word(0xeb10_009f); // cmp x4, x16
    word(0x5400_0041); // b.ne over the next one
    let here = at + out.len() as u64;
    let distance = target.wrapping_sub(here) as i64 / 4;
    if !(-(1 << 25)..1 << 25).contains(&distance) {
        return None;
    }
    out.extend((0x1400_0000 | distance as u32 & 0x03ff_ffff).to_le_bytes()); // b
    let hole = out.len();
    out.extend([0; 4]);
    node_aarch64(left, at, out)?;
    let distance = ((out.len() - hole) / 4) as u32;
    out[hole..hole + 4].copy_from_slice(&(0x5400_0008 | distance << 5).to_le_bytes()); // b.hi
    node_aarch64(right, at, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a tree for aarch64 that stands at `at` goes with this number in x4; `None`: by the indirect jump.
    fn walk(code: &[u8], at: u64, x4: u64) -> Option<u64> {
        let word = |pc: u64| {
            let from = (pc - at) as usize;
            u32::from_le_bytes(code[from..from + 4].try_into().expect("four bytes"))
        };
        let (mut pc, mut x16) = (at, 0u64);
        loop {
            let w = word(pc);
            let (shift, imm16, imm19) = (16 * (w >> 21 & 3), u64::from(w >> 5 & 0xffff), u64::from(w >> 5 & 0x7_ffff));
            match w >> 23 {
                0x1a5 => x16 = imm16 << shift,
                0x1e5 => x16 = x16 & !(0xffff << shift) | imm16 << shift,
                _ if w == 0xeb10_009f => {}
                _ if w == 0xd61f_0080 => return None,
                _ if w >> 26 == 5 => return Some(pc.wrapping_add_signed(i64::from((w << 6) as i32 >> 4))),
                _ if w & 0xff00_001f == 0x5400_0001 && x4 != x16 => pc += 4 * imm19 - 4,
                _ if w & 0xff00_001f == 0x5400_0008 && x4 > x16 => pc += 4 * imm19 - 4,
                _ => assert_eq!(w >> 24, 0x54, "{w:#x}"),
            }
            pc += 4;
        }
    }

    #[test]
    fn trees_for_aarch64_go_where_they_should() {
        let at = 0x7f12_3456_0000u64;
        for count in [1usize, 2, 3, 7, 64] {
            let targets: Vec<u64> = (0..count as u64).map(|n| at - 0x40_0000 + n * 0x1_0010).collect();
            let mut code = vec![];
            node_aarch64(&targets, at, &mut code).expect("near enough");
            assert!(code.len() <= count * (8 * 4 + 2 * 4));
            for target in &targets {
                assert_eq!(walk(&code, at, *target), Some(*target));
                assert_eq!(walk(&code, at, target + 4), None);
            }
            assert_eq!((walk(&code, at, 0), walk(&code, at, u64::MAX)), (None, None));
        }
        assert_eq!(node_aarch64(&[at + (1 << 28)], at, &mut vec![]), None, "too far");
    }
}
