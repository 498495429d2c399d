//! `unroll`: short loops of one block, or of a few with ways out of the middle, several times one behind the other.
//!
//! A processor takes one branch a cycle and passes by two that are not taken. A loop whose body is a load and an addition is
//! bound by that. Each copy keeps its own checks, so nothing needs to be known about the number of turns.
//!
//! A loop that counts from a constant to a constant in few turns stands there as often as it turns, in front of itself: then its
//! counter is a constant in each copy, the checks fold away, and the loop itself with them (`known-branches`). If the count were
//! wrong, the last copy would go on in the loop.
//!
//! One that counts so but turns more often is many turns long, with one check behind them: the number of turns is a multiple of
//! theirs, because those that are left over stand in front of the loop. Copies are one block, in which other passes see all their
//! accesses (`lanes` adds up the words of a checksum in vectors).

use xway_isa::{AluOp, Cond, MovExt, Operand, Reg, Width};

use super::targets::constant;
use super::{Block, End, Func, Kind, Plan};

/// Copies of a body, the first included.
const COPIES: usize = 4;
/// Turns of a loop that is taken apart altogether, and operations of all its turns.
const TURNS_MAX: u64 = 64;
const UNROLLED_MAX: usize = 640;
/// Turns up to which a loop's turns are counted, by going through them.
const TURNS_COUNTED_MAX: u64 = 8_192;
/// Operations of a counted loop's copies together: what a processor keeps decoded holds several of these.
const COUNTED_MAX: usize = 160;
/// Operations of a body that is worth it: a longer one hides the branch.
const OPS_MAX: usize = 12;
/// Blocks of a loop that has ways out of its middle.
const BLOCKS_MAX: usize = 4;
/// Operations that a program may grow by. Programs that people write have a handful of such loops; one that is nothing but short loops
/// would become forty times as long, which costs the back end seconds.
const GROWTH_MAX: usize = 10_000;

impl Plan {
    /// Unrolls the loops of all functions.
    pub fn unroll(&mut self) {
        let mut room = GROWTH_MAX;
        self.funcs.iter_mut().for_each(|func| unroll(func, &mut room));
    }
}

fn unroll(func: &mut Func, room: &mut usize) {
    // Ways into each of the blocks that are there now; into the first one from whoever calls the function, too.
    let mut entries = vec![0usize; func.blocks.len()];
    func.blocks.iter().flat_map(|b| b.end.successors()).chain([0]).for_each(|to| entries[to] += 1);
    for n in 0..entries.len() {
        let first = func.blocks.len();
        jumps_back(func, &mut entries, n);
        match func.blocks[n].end {
            End::Branch { taken, fall, .. } if (taken == n) != (fall == n) => short(func, n, room),
            _ if entries[n] > 1 => {
                let mut path = vec![n];
                if leads_back(func, &entries, &mut path) {
                    repeat(func, &path, room);
                }
            }
            _ => {}
        }
        for block in &func.blocks[first..] {
            for to in block.end.successors() {
                if let Some(ways) = entries.get_mut(to) {
                    *ways += 1;
                }
            }
        }
    }
}

/// clang often has the way out as the branch, and behind it a jump back: the branch leads back itself.
fn jumps_back(func: &mut Func, entries: &mut [usize], n: usize) {
    let blocks = &mut func.blocks;
    let End::Branch { taken, fall, .. } = blocks[n].end else { return };
    let back = |to: &usize| blocks[*to].ops.is_empty() && matches!(blocks[*to].end, End::Jump(at) if at == n);
    let Some(jump) = [taken, fall].into_iter().find(back) else { return };
    redirect(&mut blocks[n].end, jump, n);
    entries[jump] -= 1;
    entries[n] += 1;
    if entries[jump] == 0 {
        blocks[jump].end = End::Unreachable;
        func.insns -= 1;
        entries[n] -= 1;
    }
}

/// Whether a block may stand in a loop that is worth it.
fn is_plain(block: &Block) -> bool {
    let calls = |op: &super::Op| {
        matches!(op.kind, Kind::Helper(_) | Kind::Fetch { .. } | Kind::Kfunc { .. } | Kind::Local { .. })
    };
    block.ops.len() <= OPS_MAX && !block.ops.iter().any(calls)
}

/// Takes a loop of one block apart.
fn short(func: &mut Func, n: usize, room: &mut usize) {
    // Copies that there is room for.
    let (len, most) = (func.blocks[n].ops.len() + 1, *room / (func.blocks[n].ops.len() + 1));
    if most + 1 < COPIES || !is_plain(&func.blocks[n]) {
        return;
    }
    let Some((from, turns)) = turns(func, n) else { return repeat(func, &[n], room) };
    let (body, first) = (func.blocks[n].clone(), func.blocks.len());
    let copies = copies_of(turns, (COUNTED_MAX.min(most) / len) as u64);
    let added = if turns <= TURNS_MAX && turns as usize * len <= UNROLLED_MAX && turns as usize <= most {
        for copy in 0..turns as usize {
            let next = if copy + 1 < turns as usize { first + copy + 1 } else { n };
            func.blocks.push(turned(&body, n, next));
        }
        redirect(&mut func.blocks[from].end, n, first);
        turns
    } else if copies >= COPIES as u64 {
        let over = turns % copies;
        if over > 0 {
            func.blocks.push(Block { end: End::Jump(n), ..repeated(&body, over) });
            redirect(&mut func.blocks[from].end, n, first);
        }
        func.blocks[n] = repeated(&body, copies);
        copies + over - 1
    } else {
        return repeat(func, &[n], room);
    };
    func.insns += added as usize * len;
    *room -= added as usize * len;
}

/// Goes on with a path until it is back where it began: along blocks to which nothing else leads, with ways out of any of them.
fn leads_back(func: &Func, entries: &[usize], path: &mut Vec<usize>) -> bool {
    let block = &func.blocks[path[path.len() - 1]];
    let ops: usize = path.iter().map(|n| func.blocks[*n].ops.len()).sum();
    if !matches!(block.end, End::Jump(_) | End::Branch { .. }) || ops > OPS_MAX || !is_plain(block) {
        return false;
    }
    if block.end.successors().any(|to| to == path[0]) {
        return true;
    }
    let follows = |to: &usize| entries.get(*to) == Some(&1) && !path.contains(to);
    let next: Vec<usize> = block.end.successors().filter(follows).collect();
    path.len() < BLOCKS_MAX
        && next.into_iter().any(|to| {
            path.push(to);
            leads_back(func, entries, path) || path.pop().is_none()
        })
}

/// Puts copies of a loop behind it, each with its own checks.
fn repeat(func: &mut Func, path: &[usize], room: &mut usize) {
    let len: usize = path.iter().map(|n| func.blocks[*n].ops.len() + 1).sum();
    if *room / len + 1 < COPIES {
        return;
    }
    let body: Vec<Block> = path.iter().map(|n| func.blocks[*n].clone()).collect();
    let (head, last) = (path[0], path[path.len() - 1]);
    let first = func.blocks.len();
    redirect(&mut func.blocks[last].end, head, first);
    for copy in 1..COPIES {
        for (block, from) in body.iter().zip(path.iter().skip(1).chain([&head])) {
            let next = if *from == head && copy + 1 == COPIES { head } else { func.blocks.len() + 1 };
            func.blocks.push(turned(block, *from, next));
        }
    }
    func.insns += (COPIES - 1) * len;
    *room -= (COPIES - 1) * len;
}

/// How many turns to put one behind the other, at most `most`: of the larger half of these numbers the one that leaves the fewest over.
fn copies_of(turns: u64, most: u64) -> u64 {
    let most = most.min(turns);
    (most / 2 + 1..=most).rev().min_by_key(|copies| turns % copies).unwrap_or(0)
}

/// As many turns one behind the other without a check between them.
fn repeated(body: &Block, turns: u64) -> Block {
    let mut all = body.clone();
    all.ops = (0..turns).flat_map(|_| body.ops.iter().cloned()).collect();
    all
}

/// The block that leads to a loop, and how often the loop turns, when both are known.
pub(super) fn turns(func: &Func, n: usize) -> Option<(usize, u64)> {
    let leads = |(_, b): &(usize, &Block)| b.end.successors().any(|s| s == n);
    let mut outside = func.blocks.iter().enumerate().filter(|(b, _)| *b != n).filter(leads);
    let (from, entry) = outside.next()?;
    if outside.next().is_some() || n == 0 {
        return None;
    }
    let body = &func.blocks[n];
    let End::Branch { width, cond, dst, src: Operand::Imm(limit), taken, .. } = body.end else { return None };
    let mut regs: Numbers = std::array::from_fn(|r| constant(entry, entry.ops.len(), Reg::new(r as u8)?));
    for turn in 1..=TURNS_COUNTED_MAX {
        body.ops.iter().for_each(|op| step(&mut regs, &op.kind));
        let stays = holds(width, cond, regs.get(dst.index()).copied().flatten()?, limit)? == (taken == n);
        if !stays {
            return Some((from, turn));
        }
    }
    None
}

/// What is known of r0 to r9.
type Numbers = [Option<u64>; 10];

/// What an operation makes of known numbers; everything else that it sets is not known.
fn step(regs: &mut Numbers, kind: &Kind) {
    let of = |regs: &Numbers, src: Operand| match src {
        Operand::Imm(i) => Some(i as u64),
        Operand::Reg(r) => regs.get(r.index()).copied().flatten(),
    };
    let (dst, value) = match *kind {
        Kind::Const { dst, value } => (dst, Some(value)),
        Kind::Mov { width, dst, src, ext: MovExt::None } => (dst, of(regs, src).map(|v| low(width, v))),
        Kind::Alu { width, op, dst, src } => {
            let both = regs.get(dst.index()).copied().flatten().zip(of(regs, src));
            let value = both.map(|(a, b)| (low(width, a), low(width, b))).and_then(|(a, b)| match op {
                AluOp::Add => Some(a.wrapping_add(b)),
                AluOp::Sub => Some(a.wrapping_sub(b)),
                AluOp::And => Some(a & b),
                AluOp::Lsh => Some(a << (b & bits(width))),
                AluOp::Rsh => Some(a >> (b & bits(width))),
                _ => None,
            });
            (dst, value.map(|v| low(width, v)))
        }
        _ => {
            for (r, known) in regs.iter_mut().enumerate() {
                if Reg::new(r as u8).is_none_or(|r| kind.sets(r)) {
                    *known = None;
                }
            }
            return;
        }
    };
    if let Some(known) = regs.get_mut(dst.index()) {
        *known = value;
    }
}

/// The part of a number that an operation of this width works on; of its result, what is left.
fn low(width: Width, value: u64) -> u64 {
    if width == Width::W32 { value & u64::from(u32::MAX) } else { value }
}

/// What a shift of this width takes of its distance.
fn bits(width: Width) -> u64 {
    if width == Width::W32 { 31 } else { 63 }
}

/// A comparison of a small number that is not negative, in either width; `None` for others.
fn holds(width: Width, cond: Cond, value: u64, limit: i32) -> Option<bool> {
    let limit = u64::try_from(limit).ok()?;
    let value = low(width, value);
    if value > i32::MAX as u64 {
        return None;
    }
    Some(match cond {
        Cond::Eq => value == limit,
        Cond::Ne => value != limit,
        Cond::Lt | Cond::SLt => value < limit,
        Cond::Le | Cond::SLe => value <= limit,
        Cond::Gt | Cond::SGt => value > limit,
        Cond::Ge | Cond::SGe => value >= limit,
        Cond::Set => return None,
    })
}

fn redirect(end: &mut End, from: usize, to: usize) {
    match end {
        End::Jump(at) => {
            if *at == from {
                *at = to;
            }
        }
        End::Branch { taken, fall, .. } => {
            for at in [taken, fall] {
                if *at == from {
                    *at = to;
                }
            }
        }
        End::MayGoto { out, fall } => {
            for at in [out, fall] {
                if *at == from {
                    *at = to;
                }
            }
        }
        End::Exit | End::Unreachable => {}
    }
}

/// A copy of a loop's block that goes on in another block instead of itself.
fn turned(body: &Block, head: usize, next: usize) -> Block {
    let mut copy = body.clone();
    redirect(&mut copy.end, head, next);
    copy
}
