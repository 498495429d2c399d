//! Random graphs of blocks whose outcome is known by going through all of it: whether a run can use a number that is too large, and
//! whether one can go round for ever. A program that can is refused, whatever states end in whichever checkpoints.
//!
//! Two numbers hold one of three values each; ways are chosen by chance, by comparing a number, by `may_goto` and by two
//! open-coded iterators, which some blocks make anew and which in some graphs a function advances. Turns of the last two are counted,
//! everything else is not. Half of the graphs lead anywhere, the others are loops within loops, as people write them, with ways on and out
//! from inside.

use std::collections::{HashMap, HashSet};

use xway_abi::{MapSpec, MapType};
use xway_object::{KfuncRef, MapDef};

use crate::testing::{Rng, program};
use crate::{Config, MapsView, verify};

/// Too large an offset into a value of 64 bytes.
const BAD: u32 = 1000;

fn number(rng: &mut Rng) -> u32 {
    rng.pick(&[0, 8, BAD, BAD])
}

/// What a block ends in; targets are blocks.
#[derive(Clone, Copy, Debug)]
enum End {
    Goto(usize),
    Chance(usize, usize),
    /// A number is this one, or not.
    Is(usize, u32, usize, usize),
    /// No turns are left, or the body.
    MayGoto(usize, usize),
    /// This iterator has no more, or the body.
    Next(usize, usize, usize),
}

#[derive(Debug)]
struct Block {
    set: Option<(usize, u32)>,
    copy: bool,
    /// This iterator begins again.
    anew: Option<usize>,
    /// Enough instructions and jumps for a checkpoint.
    far: bool,
    uses: bool,
    end: End,
}

/// What counts that a way was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counts {
    Nothing,
    MayGoto,
    Iterator(usize),
}

impl End {
    /// Where it may go with these numbers and drained iterators: the block, drained ones, and what counts that.
    fn ways(self, numbers: [u32; 2], drained: [bool; 2]) -> Vec<(usize, [bool; 2], Counts)> {
        let plain = |to| (to, drained, Counts::Nothing);
        match self {
            End::Goto(to) => vec![plain(to)],
            End::Chance(a, b) => vec![plain(a), plain(b)],
            End::Is(which, n, a, b) => vec![plain(if numbers[which] == n { a } else { b })],
            End::MayGoto(out, body) => vec![plain(out), (body, drained, Counts::MayGoto)],
            End::Next(which, out, body) => {
                let mut over = drained;
                over[which] = true;
                let mut ways = vec![(out, over, Counts::Nothing)];
                ways.extend((!drained[which]).then_some((body, drained, Counts::Iterator(which))));
                ways
            }
        }
    }
}

/// Blocks; the number of them stands for the end of the program.
fn graph(rng: &mut Rng) -> Vec<Block> {
    let count = 8 + rng.below(9);
    let used = [1 + rng.below(count - 1), 1 + rng.below(count - 1), 1 + rng.below(count - 1)];
    let iterates = rng.one_in(2);
    let block = |n: usize, rng: &mut Rng| {
        let on = |rng: &mut Rng| if rng.one_in(30) { 1 + rng.below(count) } else { n + 1 + rng.below(count - n) };
        let any = |rng: &mut Rng| 1 + rng.below(count);
        let end = match rng.below(20) {
            0..6 => End::Goto(on(rng)),
            6..12 if iterates && rng.one_in(2) => End::Next(rng.below(2), on(rng), any(rng)),
            6..12 => End::MayGoto(on(rng), any(rng)),
            12..17 => End::Chance(on(rng), on(rng)),
            _ => End::Is(rng.below(2), number(rng), on(rng), on(rng)),
        };
        let set = (n > 0 && rng.one_in(3)).then(|| (rng.below(2), number(rng)));
        let anew = (n > 0 && iterates && rng.one_in(8)).then(|| rng.below(2));
        Block { set, copy: n > 0 && rng.one_in(15), anew, far: !rng.one_in(3), uses: used.contains(&n), end }
    };
    (0..count).map(|n| block(n, rng)).collect()
}

/// Loops within loops.
struct Nest<'a> {
    rng: &'a mut Rng,
    blocks: Vec<Block>,
    /// Of each loop that is open: where it begins, and the blocks that leave it.
    open: Vec<(usize, Vec<usize>)>,
}

impl Nest<'_> {
    fn of(rng: &mut Rng) -> Vec<Block> {
        let mut nest = Nest { rng, blocks: Vec::new(), open: Vec::new() };
        nest.push(End::Goto(1));
        nest.some();
        nest.blocks
    }

    /// A block that goes on to the next one where its end is not known yet.
    fn push(&mut self, end: End) -> usize {
        let (n, rng) = (self.blocks.len(), &mut *self.rng);
        let set = (n > 0 && rng.one_in(3)).then(|| (rng.below(2), number(rng)));
        let (copy, far, uses) = (n > 0 && rng.one_in(8), !rng.one_in(3), rng.one_in(8));
        let anew = (n > 0 && rng.one_in(8)).then(|| rng.below(2));
        self.blocks.push(Block { set, copy, anew, far, uses, end });
        n
    }

    fn some(&mut self) {
        for _ in 0..1 + self.rng.below(3) {
            let next = self.blocks.len() + 1;
            match self.rng.below(10) {
                0..4 if self.open.len() < 4 && next < 20 => self.around(),
                4..6 => self.aside(),
                // Out of a loop, or to its next turn.
                6..8 if !self.open.is_empty() => {
                    let which = self.rng.below(self.open.len());
                    let n = self.push(End::Chance(self.open[which].0, next));
                    if !self.rng.one_in(3) {
                        self.open[which].1.push(n);
                    }
                }
                _ => _ = self.push(End::Goto(next)),
            }
        }
    }

    /// A loop.
    fn around(&mut self) {
        let head = self.push(End::Goto(0));
        self.open.push((head, Vec::new()));
        self.some();
        self.push(End::Goto(head));
        let out = self.blocks.len();
        self.blocks[head].end = match self.rng.below(4) {
            0 | 1 => End::MayGoto(out, head + 1),
            which => End::Next(which - 2, out, head + 1),
        };
        for n in self.open.pop().map_or(Vec::new(), |(_, leave)| leave) {
            self.blocks[n].end = End::Chance(out, n + 1);
        }
    }

    /// What some runs do.
    fn aside(&mut self) {
        let head = self.push(End::Goto(0));
        self.some();
        let (then, join) = (head + 1, self.blocks.len());
        self.blocks[head].end = match self.rng.below(2) {
            0 => End::Chance(join, then),
            _ => End::Is(self.rng.below(2), number(self.rng), then, join),
        };
    }
}

/// Blocks that some way leads to, renumbered: code that cannot be reached is refused for that.
fn reached(blocks: Vec<Block>) -> Vec<Block> {
    let targets = |end: &End| match *end {
        End::Goto(a) => vec![a],
        End::Chance(a, b) | End::Is(_, _, a, b) | End::MayGoto(a, b) | End::Next(_, a, b) => vec![a, b],
    };
    let (mut seen, mut work) = (HashSet::from([0]), vec![0]);
    while let Some(n) = work.pop() {
        let next = targets(&blocks[n].end).into_iter().filter(|t| *t < blocks.len());
        work.extend(next.filter(|t| seen.insert(*t)).collect::<Vec<_>>());
    }
    let all = blocks.len();
    let kept = seen.len();
    let mut order: Vec<usize> = seen.into_iter().collect();
    order.sort_unstable();
    let to = |t: usize| if t == all { kept } else { order.binary_search(&t).unwrap_or(kept) };
    let moved = |end: End| match end {
        End::Goto(a) => End::Goto(to(a)),
        End::Chance(a, b) => End::Chance(to(a), to(b)),
        End::Is(r, n, a, b) => End::Is(r, n, to(a), to(b)),
        End::MayGoto(a, b) => End::MayGoto(to(a), to(b)),
        End::Next(i, a, b) => End::Next(i, to(a), to(b)),
    };
    let in_it = |n: &usize| order.binary_search(n).is_ok();
    let blocks = blocks.into_iter().enumerate().filter(|(n, _)| in_it(n));
    blocks.map(|(_, b)| Block { end: moved(b.end), ..b }).collect()
}

/// With `called` a function advances the iterators.
fn text(blocks: &[Block], called: bool) -> String {
    let iterator = |n: usize, call: u32| format!("r1 = r10\nr1 += -{}\ncall kfunc #{call}\n", 16 + 8 * n);
    let mut t = String::from("*(u64 *)(r10 -8) = 1\n");
    let make = |n| format!("r2 = 0\nr3 = 1000\n{}", iterator(n, 0));
    let next = |n| if called { iterator(n, 1).replace("kfunc #1", "next") } else { iterator(n, 1) };
    (0..2).for_each(|n| t += &make(n));
    t += "r2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\nr8 = r0\nr6 = 0\nr7 = 0\ngoto b0\n";
    let label = |to: usize| if to == blocks.len() { "out".to_owned() } else { format!("b{to}") };
    for (n, b) in blocks.iter().enumerate() {
        t += &format!("b{n}: r1 = 0\n");
        if let Some((which, value)) = b.set {
            t += &format!("r{} = {value}\n", 6 + which);
        }
        if b.copy {
            t += "r6 = r7\n";
        }
        if let Some(n) = b.anew {
            t += &(iterator(n, 2) + &make(n));
        }
        if b.far {
            t += &"r2 = 0\n".repeat(8);
            t += &format!("goto p{n}\np{n}: goto q{n}\nq{n}: r2 = 0\n");
        }
        if b.uses {
            t += "r1 = r8\nr1 += r6\n*(u8 *)(r1 +0) = 1\n";
        }
        t += &match b.end {
            End::Goto(a) => format!("goto {}\n", label(a)),
            End::Chance(a, b) => {
                format!("call bpf_get_prandom_u32\nif r0 == 0 goto {}\ngoto {}\n", label(a), label(b))
            }
            End::Is(r, value, a, b) => format!("if r{} == {value} goto {}\ngoto {}\n", 6 + r, label(a), label(b)),
            End::MayGoto(a, b) => format!("may_goto {}\ngoto {}\n", label(a), label(b)),
            End::Next(i, a, b) => format!("{}if r0 == 0 goto {}\ngoto {}\n", next(i), label(a), label(b)),
        };
    }
    t += &format!("out: r0 = 0\n{}{}r0 = 2\nexit", iterator(0, 2), iterator(1, 2));
    if t.contains("call next") { t + "\nnext: call kfunc #1\nexit" } else { t }
}

type Run = (usize, [u32; 2], [bool; 2]);

/// Where a run may go from each point, and what counts it.
type Edges = HashMap<Run, Vec<(Run, Counts)>>;

/// Whether some run uses a number that is too large, and whether one goes round without an end.
fn truth(blocks: &[Block]) -> (bool, bool) {
    let start: Run = (0, [0; 2], [false; 2]);
    let (mut edges, mut work, mut wild) = (Edges::new(), vec![start], false);
    let mut seen = HashSet::from([start]);
    while let Some((n, mut numbers, mut drained)) = work.pop() {
        let (block, here) = (&blocks[n], (n, numbers, drained));
        if let Some((which, value)) = block.set {
            numbers[which] = value;
        }
        if block.copy {
            numbers[0] = numbers[1];
        }
        if let Some(which) = block.anew {
            drained[which] = false;
        }
        wild |= block.uses && numbers[0] == BAD;
        let ways = block.end.ways(numbers, drained).into_iter().filter(|(to, ..)| *to < blocks.len());
        let ways: Vec<(Run, Counts)> = ways.map(|(to, drained, counts)| ((to, numbers, drained), counts)).collect();
        work.extend(ways.iter().map(|(run, _)| *run).filter(|run| seen.insert(*run)));
        edges.insert(here, ways);
    }
    (wild, goes_round(blocks, &edges))
}

/// Whether some run goes round without anything that counts it, or with iterators alone that begin again on the way round.
fn goes_round(blocks: &[Block], edges: &Edges) -> bool {
    [[false, false], [true, false], [false, true], [true, true]].into_iter().any(|renewed| {
        let free = |counts| match counts {
            Counts::Nothing => true,
            Counts::MayGoto => false,
            Counts::Iterator(which) => renewed[which],
        };
        let all = edges.iter().flat_map(|(from, ways)| ways.iter().map(|(to, counts)| (*from, *to, *counts)));
        let (mut on, mut back) = (HashMap::<Run, Vec<Run>>::new(), HashMap::<Run, Vec<Run>>::new());
        for (from, to, _) in all.filter(|e| free(e.2)) {
            on.entry(from).or_default().push(to);
            back.entry(to).or_default().push(from);
        }
        let first = renewed.iter().position(|r| *r);
        // A round passes where the iterator begins again; where none does, anywhere.
        let starts = on.keys().filter(|run| first.is_none_or(|which| blocks[run.0].anew == Some(which)));
        let mut known = HashSet::new();
        starts.copied().collect::<Vec<Run>>().into_iter().any(|start| {
            if known.contains(&start) {
                return false;
            }
            let (ahead, behind) = (reaches(&on, start), reaches(&back, start));
            let round: Vec<Run> = ahead.intersection(&behind).copied().collect();
            known.extend(round.iter().copied());
            let renews = |which: usize| round.iter().any(|run| blocks[run.0].anew == Some(which));
            !round.is_empty() && (0..2).all(|which| !renewed[which] || renews(which))
        })
    })
}

/// What edges lead to from here.
fn reaches(edges: &HashMap<Run, Vec<Run>>, from: Run) -> HashSet<Run> {
    let (mut seen, mut work) = (HashSet::new(), vec![from]);
    while let Some(run) = work.pop() {
        let next = edges.get(&run).into_iter().flatten().copied();
        work.extend(next.filter(|to| seen.insert(*to)).collect::<Vec<_>>());
    }
    seen
}

/// How many graphs were accepted, use too large a number, go round, and are refused for nothing.
fn outcomes(seeds: impl Iterator<Item = u64>) -> [u64; 4] {
    let maps = [MapDef::new("values", MapSpec::new(MapType::Array, 4, 64, 4))];
    let view = MapsView { maps: &maps, btf: None, kernel: None, license: Some("GPL") };
    let kfunc = |name: &str| KfuncRef { name: name.to_owned(), func_id: 0, weak: false };
    let kfuncs: Vec<KfuncRef> = ["new", "next", "destroy"].map(|n| kfunc(&format!("bpf_iter_num_{n}"))).into();
    let (mut accepted, mut wild, mut round, mut refused) = (0, 0, 0, 0);
    for seed in seeds {
        let rng = &mut Rng(seed.wrapping_mul(7919).wrapping_add(1));
        let blocks = reached(if seed % 4 < 2 { graph(rng) } else { Nest::of(rng) });
        let (uses, turns) = truth(&blocks);
        let (text, apart) = (text(&blocks, seed % 8 > 4), [0, Config::default().apart][seed as usize % 2]);
        let program = xway_object::Program { kfuncs: kfuncs.clone(), ..program(&text) };
        let config = Config { budget: 20_000, explain: 0, errors_max: 1, apart, ..Config::default() };
        let is_accepted = verify(&program, &view, &config).is_ok();
        assert!(!(is_accepted && uses), "graph {seed}: too large a number is used\n{text}");
        assert!(!(is_accepted && turns), "graph {seed}: it can go round for ever\n{text}");
        accepted += u64::from(is_accepted);
        wild += u64::from(uses);
        round += u64::from(turns);
        // States with another iterator are others as long as a loop is open: what begins again in one is walked turn by turn.
        let renews = blocks.iter().any(|b| b.anew.is_some());
        refused += u64::from(!is_accepted && !uses && !turns && !renews);
    }
    [accepted, wild, round, refused]
}

#[test]
fn what_can_go_wrong_is_refused() {
    // Others than always: `XWAY_FUZZ_SEED=N`.
    let first = std::env::var("XWAY_FUZZ_SEED").map_or(0, |n| n.parse().expect("a number"));
    let half = |from: u64| move || outcomes(first + from..first + from + GRAPHS / 2);
    // This is most of what the crate's tests take.
    let halves = std::thread::scope(|scope| {
        let halves = [0, GRAPHS / 2].map(|from| scope.spawn(half(from)));
        halves.map(|half| half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let [accepted, wild, round, refused] = [0, 1, 2, 3].map(|n| halves[0][n] + halves[1][n]);
    println!(
        "{GRAPHS} graphs: {accepted} accepted, {wild} use too large a number, {round} go round; {refused} refused for nothing"
    );
    assert!(accepted * 8 > GRAPHS && wild * 10 > GRAPHS && round * 60 > GRAPHS, "{accepted} {wild} {round}");
    assert!(refused * 50 < GRAPHS, "{refused}");
}

/// Progress of `may_goto` that is forgotten where a way ends shows in one of some 25,000.
const GRAPHS: u64 = 40_000;
