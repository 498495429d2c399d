//! Where numbers come from, and what has to be compared exactly because of it.
//!
//! Each number in a state names a *definition*: a node of this graph, whose edges lead to the numbers that it was made
//! from. At a checkpoint every number gets a fresh node that stands for "the number at this place of that checkpoint".
//! When the analysis relies on a number's bounds (a branch that they decide, an offset, a length), the node is marked
//! *precise* and the mark runs backwards along the edges. A later state may be pruned against a checkpoint when every
//! place that is marked there has bounds inside the checkpoint's; numbers on which nothing relied may differ freely.
//!
//! Linux finds the same marks by walking its instruction history backwards and undoing each instruction. Carrying the
//! definitions along with the values needs no such walk, and spills, calls and links need no special care.
//!
//! Stack slots have nodes of the same kind for *liveness*: a slot of a checkpoint that nobody read afterwards need not
//! be compared at all.

use crate::meter::push;

/// A node; 0 is "from nowhere", which never needs a mark.
pub type Def = u32;

/// No definition.
pub const NONE: Def = 0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Made from up to two others by an operation.
    Op,
    /// The same number as its first parent; bounds may come from the second, too.
    Copy,
    /// A constant of the program; the value's low half is in the first field.
    Const,
    /// A packet pointer that a call made worthless; the instruction is in the first field.
    Stale,
    /// Known to be one of the XDP actions (result of a redirect helper), as a set of bits in the first field.
    Verdicts,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parents: [u32; 2],
    /// First entry of [`Graph::late`] for this node, 0 for none.
    late: u32,
    kind: Kind,
    /// Why the number has to be compared exactly.
    relied: Cause,
}

/// Why bounds of a number are relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause(u16);

impl Cause {
    /// Nothing relied on them.
    const NONE: Cause = Cause(0);
    /// An access, an offset or a length: the program may be unsafe otherwise.
    pub const MUST: Cause = Cause(1);

    /// They decided the `n`-th branch of a list. Only as many branches are told apart as there are numbers.
    pub fn branch(n: usize) -> Cause {
        u16::try_from(n + 2).map_or(Cause::MUST, Cause)
    }

    /// The branch, when it was one.
    pub fn as_branch(self) -> Option<usize> {
        usize::from(self.0).checked_sub(2)
    }
}

/// The graph. Memory: 16 bytes for each operation on numbers that the analysis visits.
#[derive(Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Marks of the first also reach the second: from a checkpoint that is not finished to a state pruned against it.
    /// A list for each node: (to, next entry). Entry 0 is none.
    late: Vec<(Def, u32)>,
    /// Values that flow into a checkpoint's place from states pruned against it; only for [`Graph::verdicts`].
    flows: Vec<(Def, Def)>,
    work: Vec<Def>,
}

impl Default for Graph {
    fn default() -> Self {
        let root = Node { parents: [0, 0], late: 0, kind: Kind::Op, relied: Cause::MUST };
        Graph { nodes: vec![root], late: vec![(NONE, 0)], flows: Vec::new(), work: Vec::new() }
    }
}

impl Graph {
    fn push(&mut self, parents: [u32; 2], kind: Kind) -> Def {
        push(&mut self.nodes, Node { parents, late: 0, kind, relied: Cause::NONE });
        (self.nodes.len() - 1) as Def
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let lists = self.late.capacity() + self.flows.capacity();
        self.nodes.capacity() * size_of::<Node>() + lists * 8 + self.work.capacity() * 4
    }

    /// The result of an operation on two numbers.
    pub fn op(&mut self, a: Def, b: Def) -> Def {
        if a == NONE && b == NONE { NONE } else { self.push([a, b], Kind::Op) }
    }

    /// The same number, seen at a checkpoint.
    pub fn copy(&mut self, a: Def) -> Def {
        self.push([a, NONE], Kind::Copy)
    }

    /// The same number after a comparison with `other` has sharpened it.
    pub fn refined(&mut self, a: Def, other: Def) -> Def {
        self.push([a, other], Kind::Copy)
    }

    /// A constant of the program.
    pub fn constant(&mut self, x: u64) -> Def {
        self.push([x as u32, 0], Kind::Const)
    }

    /// A number that was a packet pointer until the call at `insn`.
    pub fn stale(&mut self, insn: usize) -> Def {
        self.push([insn as u32, 0], Kind::Stale)
    }

    /// The result of a helper that gives only these actions (bit n: action n).
    pub fn verdict_set(&mut self, bits: u32) -> Def {
        self.push([bits, 0], Kind::Verdicts)
    }

    /// True when bounds of this number were relied on.
    pub fn is_marked(&self, d: Def) -> bool {
        d != NONE && self.nodes[d as usize].relied != Cause::NONE
    }

    /// Why bounds of a number were relied on first.
    pub fn cause(&self, d: Def) -> Cause {
        if d == NONE { Cause::NONE } else { self.nodes[d as usize].relied }
    }

    /// Marks a number, everything that it was made from, and what flows into those places.
    pub fn mark(&mut self, d: Def) {
        self.mark_for(d, Cause::MUST);
    }

    /// The same, and why.
    pub fn mark_for(&mut self, d: Def, cause: Cause) {
        self.work.push(d);
        while let Some(d) = self.work.pop() {
            let node = &mut self.nodes[d as usize];
            if node.relied != Cause::NONE {
                continue;
            }
            node.relied = cause;
            if matches!(node.kind, Kind::Op | Kind::Copy) {
                let [a, b] = node.parents;
                self.work.push(a);
                self.work.push(b);
            }
            let mut entry = node.late;
            while entry != 0 {
                let (to, next) = self.late[entry as usize];
                self.work.push(to);
                entry = next;
            }
        }
    }

    /// From now on a mark of `from` also marks `to`; at once when `from` is marked already.
    pub fn link_late(&mut self, from: Def, to: Def) {
        if from == NONE || to == NONE {
            return;
        }
        if self.is_marked(from) {
            self.mark_for(to, self.cause(from));
        } else {
            let first = &mut self.nodes[from as usize].late;
            push(&mut self.late, (to, *first));
            *first = (self.late.len() - 1) as u32;
        }
    }

    /// Notes that a number flows into a checkpoint's place.
    pub fn flow(&mut self, place: Def, value: Def) {
        if place != value {
            push(&mut self.flows, (place, value));
        }
    }

    /// The instruction whose call turned this number from a packet pointer into nothing, if that is its story.
    pub fn stale_since(&self, mut d: Def) -> Option<usize> {
        for _ in 0..1000 {
            let n = &self.nodes[d as usize];
            match n.kind {
                Kind::Stale => return Some(n.parents[0] as usize),
                Kind::Copy => d = n.parents[0],
                Kind::Op if n.parents[1] == NONE && n.parents[0] != NONE => d = n.parents[0],
                _ => return None,
            }
        }
        None
    }

    /// The actions that the numbers `ends` can be, as a set of bits, when every one of them is a constant of the program
    /// or a redirect helper's result by copies alone. `None` when one is computed.
    pub fn verdicts(&self, ends: &[Def]) -> Option<u32> {
        // By place, as lists: sorting them would take longer than the rest of many an analysis does. Entry n + 1 is the n-th flow.
        let (mut first, mut next) = (vec![0u32; self.nodes.len()], vec![0u32; self.flows.len()]);
        for (n, (place, _)) in self.flows.iter().enumerate() {
            next[n] = std::mem::replace(&mut first[*place as usize], n as u32 + 1);
        }
        let mut seen = vec![false; self.nodes.len()];
        let mut work = ends.to_vec();
        let mut bits = 0;
        while let Some(d) = work.pop() {
            if std::mem::replace(&mut seen[d as usize], true) {
                continue;
            }
            let node = self.nodes[d as usize];
            match node.kind {
                _ if d == NONE => return None,
                Kind::Const if node.parents[0] < 32 => bits |= 1 << node.parents[0],
                Kind::Verdicts => bits |= node.parents[0],
                Kind::Copy => work.push(node.parents[0]),
                Kind::Const | Kind::Op | Kind::Stale => return None,
            }
            let mut entry = first[d as usize];
            while let Some(n) = entry.checked_sub(1) {
                work.push(self.flows[n as usize].1);
                entry = next[n as usize];
            }
        }
        Some(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_run_backwards_and_late_links_catch_up() {
        let mut g = Graph::default();
        let a = g.constant(1);
        let b = g.constant(2);
        let place = g.copy(a);
        let sum = g.op(place, b);
        let other = g.copy(b);
        g.link_late(place, other);
        assert!(!g.is_marked(place));
        g.mark(sum);
        for d in [a, b, place, sum, other] {
            assert!(g.is_marked(d));
        }
        let late = g.constant(3);
        g.link_late(place, late);
        assert!(g.is_marked(late));
        assert!(!g.is_marked(NONE));
    }

    #[test]
    fn verdicts_follow_copies_and_flows_and_stop_at_arithmetic() {
        let mut g = Graph::default();
        let drop = g.constant(1);
        let pass = g.constant(2);
        let place = g.copy(drop);
        g.flow(place, pass);
        let redirect = g.verdict_set(0b10001);
        assert_eq!(g.verdicts(&[place]), Some(0b110));
        assert_eq!(g.verdicts(&[place, redirect]), Some(0b10111));
        let sum = g.op(place, pass);
        assert_eq!(g.verdicts(&[sum]), None);
        assert_eq!(g.verdicts(&[NONE]), None);
    }

    #[test]
    fn stale_pointers_are_recognised_through_copies() {
        let mut g = Graph::default();
        let s = g.stale(27);
        let c = g.copy(s);
        assert_eq!(g.stale_since(c), Some(27));
        let k = g.constant(27);
        assert_eq!(g.stale_since(k), None);
    }
}
