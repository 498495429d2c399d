//! `stage`: the part of a program that finds out which memory of large maps it is about to need.
//!
//! A *scout* is the main function cut down to the ways that lead to a look-up (update, delete) in a map that outgrows the
//! cache, and to what computes its key. It runs for all frames of a burst in front of the program itself; where the program
//! would look up, the scout notes the key's hash and the map fetches bucket and element. The program then runs unchanged and
//! finds them near. A scout that guesses wrong costs time and nothing else.
//!
//! # Why it is safe
//!
//! A scout changes nothing: stores to anything but its own stack are left out, and so are calls with an effect. And it reads
//! nothing that the verifier has not proved, because **a scout's run is the beginning of some run of the program**: one in which
//! other CPUs had changed maps and packets at the right moments. What was not stored reads as something else, which the proof
//! allows for all memory but the stack; a call that is left out returns a value that it might have returned (0 where it gives a
//! number, null or a value of zeros where it looks up). Where no such value exists, the scout ends.
//!
//! Functions of the program stand in it where they are called ([`super::through`]): a run goes through them. It goes round
//! loops in which nothing is fetched, [`TURNS_MAX`] times in all; one turn more, and any other jump backwards, goes to the next frame.

use std::fmt::Write as _;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use xway_abi::{ArgKind, Effect, HelperProto, MapSpec, MapType, MemAccess, Ret};
use xway_isa::{AtomicOp, Operand, Reg};
use xway_maps::Map;
use xway_verifier::{Place, Region};

use super::asked::{self, Answer, Check};
use super::through::{Flat, Frame};
use super::{Block, Call, End, Func, Kind, Op, Plan, unroll};

/// Notes of a frame, at most: a program with more of them is not staged.
pub(crate) const NOTES_MAX: usize = 8;
/// A scout of more operations costs more than it saves.
const OPS_MAX: usize = 400;
/// Ways back that a scout may go; of a program with more of them it goes none.
const LOOPS_MAX: usize = 16;
/// How often it goes back for a frame, in all loops together. What is walked in front of look-ups (options, extension headers, tags) has few
/// elements; behind a loop that turns more often nothing is fetched.
pub(crate) const TURNS_MAX: i64 = 32;
/// The longest value that a scout pretends to have found.
pub(crate) const VALUE_MAX: usize = 4096;

/// Where a call looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum In {
    /// In the map of this index.
    Map(u32),
    /// In one that the map of this index holds; in which, the run finds out.
    InnerOf(u32),
}

impl In {
    /// Where a call of one of the three looks; `None`: here in one map and there in another.
    pub fn of(call: &Call) -> Option<In> {
        match (call.map, call.args[0]) {
            (Some(map), _) => Some(In::Map(map)),
            (None, Some(Place { region: Region::InnerMap(outer), .. })) => Some(In::InnerOf(outer)),
            _ => None,
        }
    }

    /// The map that the program names.
    pub fn map(self) -> u32 {
        let (In::Map(map) | In::InnerOf(map)) = self;
        map
    }

    /// Notes that a target there takes: what it asks for, and in which map where that is not known before.
    pub fn notes(self) -> usize {
        match self {
            In::Map(_) => 1,
            In::InnerOf(_) => 2,
        }
    }

    /// What is known of the map, of an inner one by its template.
    pub fn spec(self, maps: &[Arc<Map>]) -> Option<&MapSpec> {
        let map = maps.get(self.map() as usize)?;
        match self {
            In::Map(_) => Some(map.spec()),
            In::InnerOf(_) => map.spec().inner.as_deref(),
        }
    }
}

/// From one block to another.
type Edges = FxHashSet<(usize, usize)>;

/// The scout of a program.
#[derive(Clone, Debug)]
pub(crate) struct Scout {
    pub func: Func,
    /// The functions that stand in it, the main one first.
    pub frames: Vec<Frame>,
    /// The frame of each block.
    pub of: Vec<usize>,
    /// The block that goes to the next frame.
    pub end: usize,
    /// Where each target looks, in the order of their notes.
    pub targets: Vec<In>,
    /// [`Scout::listing`], where it was asked for.
    pub text: String,
}

impl Scout {
    /// The first target in this map.
    pub fn first_in(&self, map: u32) -> Option<usize> {
        self.targets.iter().position(|at| *at == In::Map(map))
    }

    /// What is left of the program, in its own instructions: the slot of each, and what stands in place of calls.
    pub fn listing(&self, program: &xway_vm::Program) -> String {
        let mut text = String::new();
        let name = |call: &Call| match In::of(call) {
            Some(at) => {
                let name = program.maps().get(at.map() as usize).map_or("?", |m| m.name());
                if at == In::Map(at.map()) { name.to_owned() } else { format!("a map in {name}") }
            }
            None => "?".to_owned(),
        };
        for (n, block) in self.func.blocks.iter().enumerate() {
            if block.ops.is_empty() && matches!(block.end, End::Exit) {
                continue;
            }
            let _ = writeln!(text, "{n}:");
            for op in &block.ops {
                let insn = program.insns().get(op.at).and_then(Option::as_ref).map(ToString::to_string);
                let insn = insn.unwrap_or_default();
                let _ = match &op.kind {
                    Kind::Fetch { call, then, .. } => {
                        let (what, map) = (call.proto.name, name(call));
                        writeln!(text, "  {:4}  fetch for {what} in {map}, {}", op.at, then.words())
                    }
                    Kind::Enter { frame } => writeln!(text, "  {:4}  {} begins", op.at, self.frames[*frame].name),
                    Kind::Leave { frame } => writeln!(text, "  {:4}  {} has returned", op.at, self.frames[*frame].name),
                    Kind::Const { dst, value: 0 } if insn.starts_with("call") || insn.contains("= atomic") => {
                        writeln!(text, "  {:4}  r{} = 0 in place of {insn}", op.at, dst.index())
                    }
                    _ => writeln!(text, "  {:4}  {insn}", op.at),
                };
            }
            let next: Vec<String> = (block.end.successors())
                .map(|b| if b == self.end { "the next frame".to_owned() } else { b.to_string() })
                .collect();
            let next = if next.is_empty() { "the next frame".to_owned() } else { next.join(" or ") };
            let how = match block.end {
                End::Branch { .. } => {
                    let insn = program.insns().get(block.end_at).and_then(Option::as_ref).map(ToString::to_string);
                    format!("{}: ", insn.unwrap_or_default())
                }
                End::MayGoto { .. } => "once it has gone back often enough: ".to_owned(),
                _ => String::new(),
            };
            let _ = writeln!(text, "        {how}to {next}");
        }
        text
    }
}

/// What a scout does with an operation.
enum Does {
    /// The same as the program.
    Same,
    /// Nothing, because it changes what others see.
    Nothing,
    /// Sets this register to zero: what the operation might have given.
    Zero(Reg),
    /// Notes what memory the map will need.
    Fetch,
    /// Ends.
    Stop,
}

/// What a scout knows of the surroundings.
pub(crate) struct Around<'a> {
    pub maps: &'a [Arc<Map>],
    /// Maps that may outgrow the cache, or that may hold such maps.
    pub large: &'a [bool],
    /// Look-ups in arrays, hash tables, maps of these and maps in them are emitted inline.
    pub inline: &'a dyn Fn(&Call) -> bool,
    /// A fetch of this call can be emitted.
    pub fetch: &'a dyn Fn(&Call) -> bool,
    /// Where the program looks up: what it updates or deletes there was looked up before.
    pub looked_up: Vec<In>,
}

impl<'a> Around<'a> {
    pub fn new(
        maps: &'a [Arc<Map>],
        large: &'a [bool],
        inline: &'a dyn Fn(&Call) -> bool,
        fetch: &'a dyn Fn(&Call) -> bool,
    ) -> Around<'a> {
        Around { maps, large, inline, fetch, looked_up: vec![] }
    }

    /// Finds the maps in which a program looks up.
    fn look_through(&mut self, func: &Func) {
        self.looked_up.clear();
        let calls = func.blocks.iter().flat_map(|b| &b.ops).filter_map(|op| match &op.kind {
            Kind::Helper(call) if call.proto.id == LOOKUP && self.is_target(call) => In::of(call),
            _ => None,
        });
        self.looked_up = calls.collect();
    }

    fn is_target(&self, call: &Call) -> bool {
        In::of(call).is_some_and(|at| {
            self.large.get(at.map() as usize) == Some(&true)
                && (call.proto.id == LOOKUP || !self.looked_up.contains(&at))
                && (self.fetch)(call)
        })
    }
}

const LOOKUP: u32 = 1;
const UPDATE: u32 = 2;
const DELETE: u32 = 3;

impl Around<'_> {
    fn does(&self, kind: &Kind) -> Does {
        match kind {
            Kind::Store { place, .. } | Kind::StoreRelease { place, .. } => match place.region {
                Region::Stack | Region::OuterStack => Does::Same,
                Region::Packet | Region::Meta | Region::MapValue(_) | Region::InnerMapValue(_) | Region::Record => {
                    Does::Nothing
                }
                _ => Does::Stop,
            },
            Kind::Atomic { op, src, place, .. } => match place.region {
                Region::Packet | Region::Meta | Region::MapValue(_) | Region::InnerMapValue(_) | Region::Record => {
                    match op {
                        AtomicOp::Add { fetch: false }
                        | AtomicOp::Or { fetch: false }
                        | AtomicOp::And { fetch: false }
                        | AtomicOp::Xor { fetch: false } => Does::Nothing,
                        AtomicOp::CmpXchg => Does::Zero(Reg::R0),
                        // The proof knows that the old value of four bytes has no upper half; what the register held before may have.
                        _ => Does::Zero(*src),
                    }
                }
                _ => Does::Stop,
            },
            Kind::Helper(call) => self.helper(call),
            Kind::Kfunc { .. } | Kind::Local { .. } | Kind::Fetch { .. } => Does::Stop,
            // Named one by one: what is new here must be thought about.
            Kind::Alu { .. }
            | Kind::Mov { .. }
            | Kind::Neg { .. }
            | Kind::Truncate { .. }
            | Kind::Swap { .. }
            | Kind::Const { .. }
            | Kind::Map { .. }
            | Kind::Value { .. }
            | Kind::Func { .. }
            | Kind::Ctx { .. }
            | Kind::Load { .. }
            | Kind::LoadAcquire { .. }
            | Kind::Enter { .. }
            | Kind::Leave { .. } => Does::Same,
        }
    }

    fn helper(&self, call: &Call) -> Does {
        let map = call.map.and_then(|m| self.maps.get(m as usize));
        match call.proto.id {
            LOOKUP | UPDATE | DELETE if self.is_target(call) => Does::Fetch,
            LOOKUP if (self.inline)(call) => Does::Same,
            // Where the key is a constant, on one way to the call perhaps and not on another, the proof may know that there is a
            // value, and the program does not ask.
            LOOKUP if map.is_none_or(|m| matches!(m.map_type(), MapType::Array | MapType::PercpuArray)) => Does::Stop,
            LOOKUP => Does::Zero(Reg::R0),
            _ if call.proto.ret == Ret::CpuNumber => Does::Same,
            _ if only_answers(call.proto) => Does::Zero(Reg::R0),
            _ => Does::Stop,
        }
    }
}

/// Whether the call gives a number, zero among others, and leaves alone what the program goes on with: its memory, the packet, what it
/// holds. What fails or succeeds, clocks, random numbers, checksums; an element that is not put into a map might have been taken
/// out again.
fn only_answers(proto: &HelperProto) -> bool {
    let read = |kind| {
        use ArgKind::{Anything, ConstMap, Ctx, MapKey, MapValue, Mem, Size};
        match kind {
            Anything | ConstMap | Ctx | MapKey | Size { .. } => true,
            MapValue(access) | Mem(access, _) => access == MemAccess::Read,
            _ => false,
        }
    };
    proto.ret == Ret::Integer
        && matches!(proto.effect, Effect::None | Effect::ChangesMap)
        && !proto.changes_packet
        && proto.args.iter().all(|arg| read(arg.kind))
}

#[cfg(test)]
mod tests {
    use xway_isa::{AluOp, Size, Width};
    use xway_verifier::{Place, Region};

    use super::*;

    /// Wherever they stand.
    #[test]
    fn what_nobody_reads_goes_through_blocks_in_any_order() {
        let add = |dst, src| Kind::Alu { width: Width::W64, op: AluOp::Add, dst, src: Operand::Reg(src) };
        let place = Place { region: Region::Stack, off: Some(-8) };
        let store = Kind::Store { size: Size::DW, base: Reg::FP, off: -8, src: Operand::Reg(Reg::R1), place };
        let row = [
            (vec![Kind::Const { dst: Reg::R1, value: 1 }, Kind::Const { dst: Reg::R4, value: 4 }], End::Jump(3)),
            (vec![store], End::Exit),
            (vec![add(Reg::R1, Reg::R2), add(Reg::R3, Reg::R1)], End::Jump(1)),
            (vec![Kind::Const { dst: Reg::R2, value: 2 }, Kind::Const { dst: Reg::R3, value: 3 }], End::Jump(2)),
        ];
        let block = |(kinds, end): (Vec<Kind>, End)| {
            let ops = kinds.into_iter().map(|kind| Op { at: 0, kind }).collect();
            Block { ops, end, end_at: 0 }
        };
        let mut blocks: Vec<Block> = row.into_iter().map(block).collect();
        sweep(&mut blocks, &[0, 3, 2, 1], 1);
        assert_eq!(blocks.iter().map(|b| b.ops.len()).collect::<Vec<_>>(), [1, 1, 1, 1]);
        assert!(matches!(blocks[2].ops[0].kind, Kind::Alu { dst: Reg::R1, .. }));
    }

    #[test]
    fn what_a_scout_leaves_out_is_read_off_the_prototypes() {
        let answers = |name: &str| only_answers(xway_abi::helper_by_name(name).unwrap_or_else(|| panic!("{name}")));
        for name in ["map_update_elem", "map_delete_elem", "ktime_get_ns", "trace_printk", "get_prandom_u32"] {
            assert!(answers(&format!("bpf_{name}")), "{name}");
        }
        for name in ["perf_event_output", "csum_diff", "ktime_get_boot_ns", "ktime_get_coarse_ns", "ktime_get_tai_ns"] {
            assert!(answers(&format!("bpf_{name}")), "{name}");
        }
        // They move the packet, write to the program's memory, call its functions, give it something to keep, or leave it.
        for name in ["xdp_adjust_head", "xdp_load_bytes", "strtol", "loop", "for_each_map_elem", "ringbuf_reserve"] {
            assert!(!answers(&format!("bpf_{name}")), "{name}");
        }
        for name in ["tail_call", "spin_lock", "fib_lookup", "map_pop_elem", "map_lookup_elem", "redirect_map"] {
            assert!(!answers(&format!("bpf_{name}")), "{name}");
        }
    }
}

/// How a scout goes on behind a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// It does not: nothing else is to be found.
    Stop,
    /// As if there were no such key, or as if the call had succeeded.
    Zero,
    /// As if there were a value, all of zeros.
    Value,
}

impl Then {
    fn words(self) -> &'static str {
        match self {
            Then::Stop => "then the next frame",
            Then::Zero => "then as if it gave zero",
            Then::Value => "then as if there were a value of zeros",
        }
    }
}

/// Makes the scout of a program; `None` when there is nothing to fetch. Where it would be too long with the functions that are called,
/// it ends at them; and at loops first.
pub(crate) fn scout(plan: &Plan, around: &mut Around<'_>) -> Option<Scout> {
    let whole = Flat::whole(plan);
    let alone = (whole.frames.len() > 1).then(|| Flat::main(plan));
    cut_down(whole, around).or_else(|| cut_down(alone?, around))
}

fn cut_down(mut flat: Flat, around: &mut Around<'_>) -> Option<Scout> {
    // No scout turns so often that the program's own count of turns would end a loop.
    for block in &mut flat.func.blocks {
        if let End::MayGoto { fall, .. } = block.end {
            block.end = End::Jump(fall);
        }
    }
    around.look_through(&flat.func);
    let ways = Ways::of(&flat.func, around);
    let onwards = Ways { rounds: Edges::default(), ..ways.clone() };
    let round = (!ways.rounds.is_empty()).then(|| cut_at(&flat, &ways, around)).flatten();
    round.or_else(|| cut_at(&flat, &onwards, around))
}

/// The ways through a program.
#[derive(Clone)]
struct Ways {
    /// The blocks that can be reached, each before those behind it, ways back apart.
    reached: Vec<usize>,
    /// Those that lead back.
    backward: Edges,
    /// Those of them that a scout goes.
    rounds: Edges,
}

impl Ways {
    fn of(main: &Func, around: &Around<'_>) -> Ways {
        let (reached, backward) = walk(main);
        let rounds = rounds(main, &backward, around);
        Ways { reached, backward, rounds }
    }

    fn is_gone(&self, way: (usize, usize)) -> bool {
        !self.backward.contains(&way) || self.rounds.contains(&way)
    }
}

/// The ways back that a scout goes: those of loops in which nothing is fetched, because there is one note for each place and frame.
fn rounds(main: &Func, backward: &Edges, around: &Around<'_>) -> Edges {
    if backward.is_empty() || backward.len() > LOOPS_MAX {
        return Edges::default();
    }
    let mut before = vec![vec![]; main.blocks.len()];
    for (from, block) in main.blocks.iter().enumerate() {
        block.end.successors().for_each(|to| before[to].push(from));
    }
    let fetches = |b: usize| main.blocks[b].ops.iter().any(|op| matches!(around.does(&op.kind), Does::Fetch));
    let goes = |&(from, head): &(usize, usize)| {
        // All blocks from which the way back is come to without passing the loop's head: that is the loop, or more.
        let (mut seen, mut open) = (vec![false; main.blocks.len()], vec![from]);
        seen[head] = true;
        while let Some(b) = open.pop() {
            if !std::mem::replace(&mut seen[b], true) {
                open.extend(&before[b]);
            }
        }
        // What lies behind a loop that is known to turn more often is never come to.
        let ends = || from != head || unroll::turns(main, head).is_none_or(|(_, turns)| turns <= TURNS_MAX as u64 + 1);
        !(0..seen.len()).any(|b| seen[b] && fetches(b)) && ends()
    };
    backward.iter().copied().filter(goes).collect()
}

/// What is left of each block of a program.
struct Cut {
    ops: Vec<Vec<Op>>,
    /// It leads to a target.
    useful: Vec<bool>,
    /// So does what follows it.
    goes_on: Vec<bool>,
    /// Where each target looks.
    targets: Vec<In>,
}

impl Cut {
    fn of(main: &Func, ways: &Ways, around: &Around<'_>) -> Cut {
        let mut cut = Cut::make(main, ways, around, &vec![false; main.blocks.len()]);
        // What a way back leads to is known when its loop has been looked at: once for each loop that stands in another one.
        while !ways.rounds.is_empty() {
            let again = Cut::make(main, ways, around, &cut.useful);
            if std::mem::replace(&mut cut, again).useful == cut.useful {
                break;
            }
        }
        cut
    }

    /// From the last block to the first: which lead to a target, and how to go on behind each target. `known`: those that are found
    /// to lead to one already.
    fn make(main: &Func, ways: &Ways, around: &Around<'_>, known: &[bool]) -> Cut {
        let mut useful = known.to_vec();
        let mut cut: Vec<Vec<Op>> = vec![vec![]; main.blocks.len()];
        let mut goes_on = vec![false; main.blocks.len()];
        let mut targets = Vec::new();
        for &b in ways.reached.iter().rev() {
            let block = &main.blocks[b];
            let leads = |to: usize| ways.is_gone((b, to)) && useful[to];
            let behind = block.end.successors().any(leads);
            let mut ops: Vec<Op> = vec![];
            let mut open = true;
            for (n, op) in block.ops.iter().enumerate() {
                match around.does(&op.kind) {
                    Does::Same => ops.push(op.clone()),
                    Does::Nothing => {}
                    Does::Zero(dst) => ops.push(Op { at: op.at, kind: Kind::Const { dst, value: 0 } }),
                    Does::Stop => open = false,
                    Does::Fetch => {
                        let Kind::Helper(call) = &op.kind else { unreachable!("only calls are targets") };
                        let rest = || block.ops[n + 1..].iter().map(|op| around.does(&op.kind));
                        let ends = rest().any(|does| matches!(does, Does::Stop));
                        let more = behind && !ends
                            || rest()
                                .take_while(|does| !matches!(does, Does::Stop))
                                .any(|does| matches!(does, Does::Fetch));
                        let then = if more { then(call, block, &leads, around) } else { Then::Stop };
                        let slot = targets.len();
                        targets.push(In::of(call).expect("a target"));
                        ops.push(Op { at: op.at, kind: Kind::Fetch { call: call.clone(), slot, then } });
                        open = then != Then::Stop;
                    }
                }
                if !open {
                    break;
                }
            }
            goes_on[b] = open && behind;
            if !goes_on[b] {
                // What comes behind the last target is for nothing.
                let last = ops.iter().rposition(|op| matches!(op.kind, Kind::Fetch { .. }));
                ops.truncate(last.map_or(0, |last| last + 1));
            }
            useful[b] = goes_on[b] || !ops.is_empty();
            cut[b] = ops;
        }
        Cut { ops: cut, useful, goes_on, targets }
    }
}

fn cut_at(flat: &Flat, ways: &Ways, around: &Around<'_>) -> Option<Scout> {
    let (main, mut of) = (&flat.func, flat.of.clone());
    let Cut { ops, useful, goes_on, targets } = Cut::of(main, ways, around);
    if !useful[0] {
        return None;
    }
    let end = main.blocks.len();
    let mut blocks: Vec<Block> = Vec::with_capacity(end + 1);
    // Behind the end: what counts the turns on a way back.
    let mut counts: Vec<Block> = vec![];
    of.push(0);
    for (b, ops) in ops.into_iter().enumerate() {
        let old = &main.blocks[b];
        let mut to = |to: usize| {
            if !useful[to] || !ways.is_gone((b, to)) {
                return end;
            }
            if !ways.rounds.contains(&(b, to)) {
                return to;
            }
            counts.push(Block { ops: vec![], end: End::MayGoto { out: end, fall: to }, end_at: old.end_at });
            of.push(of[b]);
            end + counts.len()
        };
        let end = match old.end {
            _ if !goes_on[b] => End::Exit,
            End::Jump(next) => End::Jump(to(next)),
            End::Branch { width, cond, dst, src, taken, fall } => {
                End::Branch { width, cond, dst, src, taken: to(taken), fall: to(fall) }
            }
            End::MayGoto { .. } | End::Exit | End::Unreachable => End::Exit,
        };
        let ops = if useful[b] { ops } else { vec![] };
        blocks.push(Block { ops, end, end_at: old.end_at });
    }
    blocks.push(Block { ops: vec![], end: End::Exit, end_at: main.start });
    let may_goto = !counts.is_empty();
    blocks.extend(counts);
    clear_unreached(&mut blocks);
    let targets = number(&mut blocks, &targets);
    if targets.is_empty() || notes(&targets) > NOTES_MAX {
        return None;
    }
    let order: Vec<usize> = ways.reached.iter().copied().chain(end..blocks.len()).collect();
    sweep(&mut blocks, &order, flat.frames.len());
    if blocks.iter().map(|b| b.ops.len()).sum::<usize>() > OPS_MAX {
        return None;
    }
    let func = Func { blocks, may_goto, ..main.clone() };
    Some(Scout { func, frames: flat.frames.clone(), of, end, targets, text: String::new() })
}

/// Empties the blocks that only led on from where the scout has ended.
fn clear_unreached(blocks: &mut [Block]) {
    let mut reached = vec![false; blocks.len()];
    let mut open = vec![0];
    while let Some(block) = open.pop() {
        if !std::mem::replace(&mut reached[block], true) {
            open.extend(blocks[block].end.successors());
        }
    }
    for (block, _) in blocks.iter_mut().zip(reached).filter(|(_, reached)| !reached) {
        (block.ops, block.end) = (vec![], End::Exit);
    }
}

/// Notes of each frame.
pub(crate) fn notes(targets: &[In]) -> usize {
    targets.iter().map(|at| at.notes()).sum()
}

/// Numbers the notes of the targets that are left, in the order in which they were found, and gives these.
fn number(blocks: &mut [Block], found: &[In]) -> Vec<In> {
    let mut left = vec![];
    let mut slots: Vec<&mut usize> = (blocks.iter_mut().flat_map(|b| &mut b.ops))
        .filter_map(|op| if let Kind::Fetch { slot, .. } = &mut op.kind { Some(slot) } else { None })
        .collect();
    slots.sort_by_key(|slot| **slot);
    for slot in slots {
        let first = notes(&left);
        left.push(found[*slot]);
        *slot = first;
    }
    left
}

/// How to go on behind a target that is not the last one.
fn then(call: &Call, block: &Block, leads: &dyn Fn(usize) -> bool, around: &Around<'_>) -> Then {
    if call.proto.id != LOOKUP {
        return Then::Zero;
    }
    let at = In::of(call).expect("a target");
    let spec = at.spec(around.maps).expect("a target is in a map");
    // A value that nobody can change is not taken for any other.
    let frozen = at == In::Map(at.map()) && around.maps[at.map() as usize].is_frozen();
    let pretend = !frozen && spec.value_size as usize <= VALUE_MAX;
    // Where the key is a constant on some way to the call, the proof knows there that an array has a value.
    let array = matches!(spec.map_type, MapType::Array | MapType::PercpuArray);
    let this = |op: &Op| matches!(&op.kind, Kind::Helper(c) if std::ptr::eq(c, call));
    if let Some(Check { zero: miss, other: hit, .. }) = asked::check(block, this, Answer::Pointer) {
        // Behind a miss in a table that evicts there is a new key: seldom enough.
        return match (leads(hit) && pretend, leads(miss) && !array && !is_lru(spec)) {
            (true, _) => Then::Value,
            (false, true) => Then::Zero,
            (false, false) => Then::Stop,
        };
    }
    match (pretend, array) {
        (true, _) => Then::Value,
        (false, true) => Then::Stop,
        (false, false) => Then::Zero,
    }
}

fn is_lru(spec: &MapSpec) -> bool {
    matches!(spec.map_type, MapType::LruHash | MapType::LruPercpuHash)
}

/// The blocks that can be reached, each before those behind it, and the jumps that go backwards.
pub(super) fn walk(main: &Func) -> (Vec<usize>, Edges) {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Open,
        Done,
    }
    let mut seen = vec![Seen::No; main.blocks.len()];
    let (mut order, mut backward) = (vec![], Edges::default());
    let mut stack: Vec<(usize, Vec<usize>)> = vec![];
    if !main.blocks.is_empty() {
        seen[0] = Seen::Open;
        stack.push((0, main.blocks[0].end.successors().collect()));
    }
    while let Some((block, left)) = stack.last_mut() {
        let block = *block;
        match left.pop() {
            Some(next) if seen[next] == Seen::No => {
                seen[next] = Seen::Open;
                stack.push((next, main.blocks[next].end.successors().collect()));
            }
            Some(next) if seen[next] == Seen::Open => {
                backward.insert((block, next));
            }
            Some(_) => {}
            None => {
                seen[block] = Seen::Done;
                order.push(block);
                stack.pop();
            }
        }
    }
    order.reverse();
    (order, backward)
}

/// Takes out what computes registers that nobody reads. Cranelift does that for arithmetic, but not for loads. `order`: each block before
/// those behind it, ways back apart.
fn sweep(blocks: &mut [Block], order: &[usize], frames: usize) {
    let mut live = Live { at: vec![0; blocks.len()], kept: vec![0; frames] };
    // What the next turn of a loop reads is found by another look.
    loop {
        let before = live.clone();
        order.iter().rev().for_each(|&b| live.look(blocks, b, |_| {}));
        if live == before {
            break;
        }
    }
    for &b in order {
        let mut needed = vec![];
        live.look(blocks, b, |op| needed.push(op));
        let mut needed = needed.into_iter().rev();
        blocks[b].ops.retain(|_| needed.next().expect("each was looked at"));
    }
}

/// Registers that are read before they are written.
#[derive(Clone, PartialEq, Eq)]
struct Live {
    /// Where each block begins.
    at: Vec<u16>,
    /// By frame: of those that callers of the function have in front of the call and read behind it.
    kept: Vec<u16>,
}

impl Live {
    /// Looks at a block and tells of each operation, the last one first, whether it is needed.
    fn look(&mut self, blocks: &[Block], block: usize, mut tell: impl FnMut(bool)) {
        const ARGS: u16 = 0b11_1110;
        const KEPT: u16 = 0b11_1100_0000;
        let mut live = live_out(&blocks[block], &self.at);
        for op in blocks[block].ops.iter().rev() {
            match op.kind {
                Kind::Leave { frame } => {
                    self.kept[frame] = live & KEPT;
                    live &= bit(Reg::R0);
                    tell(true);
                }
                Kind::Enter { frame } => {
                    live = live & ARGS | self.kept[frame];
                    tell(true);
                }
                _ => {
                    let (reads, writes, needed) = effect(&op.kind);
                    let needed = needed || live & writes != 0;
                    if needed {
                        live = live & !writes | reads;
                    }
                    tell(needed);
                }
            }
        }
        self.at[block] = live;
    }
}

/// Registers that are read behind a block's operations.
fn live_out(block: &Block, live_in: &[u16]) -> u16 {
    let behind = block.end.successors().fold(0, |all, next| all | live_in[next]);
    match block.end {
        End::Branch { dst, src, .. } => behind | bit(dst) | operand(src),
        _ => behind,
    }
}

fn bit(r: Reg) -> u16 {
    1 << r.index()
}

fn operand(src: Operand) -> u16 {
    match src {
        Operand::Reg(r) => bit(r),
        Operand::Imm(_) => 0,
    }
}

/// Registers that an operation reads and writes, and whether it is needed whoever reads them.
fn effect(kind: &Kind) -> (u16, u16, bool) {
    const ARGS: u16 = 0b11_1110;
    match *kind {
        Kind::Alu { dst, src, .. } => (bit(dst) | operand(src), bit(dst), false),
        Kind::Mov { dst, src, .. } => (operand(src), bit(dst), false),
        Kind::Neg { dst, .. } | Kind::Truncate { dst, .. } | Kind::Swap { dst, .. } => (bit(dst), bit(dst), false),
        Kind::Const { dst, .. } | Kind::Map { dst, .. } | Kind::Value { dst, .. } | Kind::Func { dst, .. } => {
            (0, bit(dst), false)
        }
        Kind::Ctx { dst, base, .. } | Kind::Load { dst, base, .. } | Kind::LoadAcquire { dst, base, .. } => {
            (bit(base), bit(dst), false)
        }
        Kind::Store { base, src, .. } => (bit(base) | operand(src), 0, true),
        Kind::StoreRelease { base, src, .. } => (bit(base) | bit(src), 0, true),
        Kind::Helper(ref call) if call.proto.id == LOOKUP => (0b110, bit(Reg::R0), false),
        // The key in r2 is all that is looked at, and an inner map in r1.
        Kind::Fetch { ref call, .. } if call.map.is_none() => (0b110, bit(Reg::R0), true),
        Kind::Fetch { .. } => (0b100, bit(Reg::R0), true),
        Kind::Helper(_) => (ARGS, bit(Reg::R0), false),
        Kind::Atomic { base, src, .. } => (bit(base) | bit(src) | bit(Reg::R0), 0, true),
        Kind::Kfunc { .. } | Kind::Local { .. } => (ARGS, bit(Reg::R0), true),
        Kind::Enter { .. } | Kind::Leave { .. } => unreachable!("they are looked at by themselves"),
    }
}
