//! What is collected while paths are walked.

use std::collections::BTreeSet;

use xway_abi::Verdict;

use crate::api::{AccessFact, ArgsFact, CallFact, Facts, Place, Region};
use crate::cfg::Cfg;
use crate::meter::push;
use crate::value::{Base, MemKind, Ptr, Value};

/// Facts in the making.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    /// Instructions that some path executes.
    pub reached: Vec<bool>,
    /// Global functions that some path calls.
    pub global_called: Vec<bool>,
    /// Which ways each branch was seen to go: 1 jumped, 2 fell through. A list, because guesses copy all facts.
    branches: Vec<u8>,
    calls: Sparse<CallFact>,
    accesses: Vec<Option<Place>>,
    args: Sparse<ArgsFact>,
    kfuncs: BTreeSet<String>,
    objects: BTreeSet<String>,
    maps: BTreeSet<u32>,
    packet_bytes: u64,
    packet_written: bool,
    packet_moved: bool,
    meta_used: bool,
    meta_written: bool,
    tail_calls: bool,
    addresses: bool,
    unwritten: bool,
    /// Stack of each function, bytes.
    pub stack: Vec<i64>,
    /// Stack of the deepest chain, bytes.
    pub stack_chain: u32,
}

impl Collector {
    pub fn new(insns: usize, funcs: usize) -> Collector {
        Collector {
            reached: vec![false; insns],
            global_called: vec![false; funcs],
            branches: vec![0; insns],
            calls: Sparse::new(insns),
            accesses: vec![None; insns],
            args: Sparse::new(insns),
            kfuncs: BTreeSet::new(),
            objects: BTreeSet::new(),
            maps: BTreeSet::new(),
            packet_bytes: 0,
            packet_written: false,
            packet_moved: false,
            meta_used: false,
            meta_written: false,
            tail_calls: false,
            addresses: false,
            unwritten: false,
            stack: vec![0; funcs],
            stack_chain: 0,
        }
    }

    /// Bytes that a copy has, about.
    pub fn bytes(&self) -> usize {
        let by_insn = self.reached.len() * (2 + size_of::<Option<Place>>() + 2 * size_of::<u32>());
        // A node of a tree costs more than what it holds.
        by_insn + self.call_bytes() + 64 * (self.kfuncs.len() + self.objects.len() + self.maps.len())
    }

    /// Bytes that grow with the calls that were seen.
    pub fn call_bytes(&self) -> usize {
        self.calls.bytes() + self.args.bytes()
    }

    /// A branch can go this way.
    pub fn branch(&mut self, insn: usize, taken: bool) {
        self.branches[insn] |= if taken { 1 } else { 2 };
    }

    /// A map is referred to.
    pub fn map_used(&mut self, index: u32) {
        self.maps.insert(index);
    }

    /// Direct packet access that ends at this byte.
    pub fn packet_access(&mut self, end: u64, write: bool) {
        self.packet_bytes = self.packet_bytes.max(end);
        self.packet_written |= write;
    }

    /// The metadata area is looked at.
    pub fn meta_used(&mut self) {
        self.meta_used = true;
    }

    /// The metadata area, which lies in the packet's memory too, is read or written.
    pub fn meta_access(&mut self, write: bool) {
        self.meta_used();
        self.meta_written |= write;
    }

    /// Packet data may move.
    pub fn packet_moved(&mut self) {
        self.packet_moved = true;
    }

    /// An address may become a number.
    pub fn address_seen(&mut self) {
        self.addresses = true;
    }

    /// Stack memory may be read that was not written.
    pub fn unwritten_read(&mut self) {
        self.unwritten = true;
    }

    /// A function uses this many bytes of stack.
    pub fn stack_use(&mut self, func: usize, bytes: i64) {
        self.stack[func] = self.stack[func].max(bytes);
    }

    /// A kernel function is called.
    pub fn kfunc(&mut self, name: &str) {
        self.kfuncs.insert(name.to_owned());
    }

    /// Something is had that only a kernel has.
    pub fn kernel_object(&mut self, name: &str) {
        self.objects.insert(name.to_owned());
    }

    /// Memory at `p + off` is accessed by the instruction at `pc`, in the frame at `depth`.
    pub fn access(&mut self, pc: usize, p: &Ptr, off: i64, depth: usize) {
        let new = place_of(p, off, depth);
        let slot = &mut self.accesses[pc];
        *slot = Some(slot.map_or(new, |old| merge(old, new)));
    }

    /// A call is made with these registers.
    pub fn arguments(&mut self, pc: usize, regs: &[Value; 11], depth: usize) {
        let new: [Option<Place>; 5] = std::array::from_fn(|i| regs[i + 1].as_ptr().map(|p| place_of(p, 0, depth)));
        // A pointer on some runs and something else on others: it may be that pointer.
        let both = |a: Option<Place>, b: Option<Place>| match (a, b) {
            (Some(a), Some(b)) => Some(merge(a, b)),
            (None, None) => None,
            _ => Some(Place { region: Region::Mixed, off: None }),
        };
        if let Some(old) = self.args.get_or_put(pc, ArgsFact { insn: pc, args: new }) {
            old.args = std::array::from_fn(|i| both(old.args[i], new[i]));
        }
    }

    /// A helper is called; facts of several paths are merged to what holds on all of them.
    pub fn call(&mut self, new: CallFact, tail: bool) {
        self.tail_calls |= tail;
        let (insn, map, key, key_const, sizes) = (new.insn, new.map, new.key, new.key_const, new.sizes);
        let Some(old) = self.calls.get_or_put(insn, new) else { return };
        let same = |a: Option<u32>, b: Option<u32>| if a == b { a } else { None };
        old.map = same(old.map, map);
        old.key_const = same(old.key_const, key_const);
        old.key = if old.key == key { old.key } else { None };
        for (old, new) in old.sizes.iter_mut().zip(sizes) {
            *old = old.zip(new).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1)));
        }
    }

    /// The finished facts. `verdicts` has bit n set for action n.
    pub fn finish(self, cfg: &Cfg, verdicts: Option<u32>) -> Facts {
        let dead = (0..cfg.insns.len()).filter(|i| cfg.insns[*i].is_some() && !self.reached[*i]).collect();
        let decided = self
            .branches
            .iter()
            .enumerate()
            .filter_map(|(insn, ways)| match ways {
                1 => Some((insn, true)),
                2 => Some((insn, false)),
                _ => None,
            })
            .collect();
        let verdicts = verdicts
            .filter(|bits| *bits < 1 << Verdict::ALL.len())
            .map(|bits| Verdict::ALL.into_iter().filter(|v| bits >> *v as u32 & 1 != 0).collect());
        let (calls, args) = (self.calls.in_order(|c| c.insn), self.args.in_order(|a| a.insn));
        let helpers: BTreeSet<u32> = calls.iter().map(|c| c.helper).collect();
        Facts {
            calls,
            accesses: (self.accesses.iter().enumerate())
                .filter_map(|(insn, place)| place.map(|place| AccessFact { insn, place }))
                .collect(),
            args,
            dead,
            decided,
            verdicts,
            helpers: helpers.into_iter().collect(),
            kfuncs: self.kfuncs.into_iter().collect(),
            kernel_objects: self.objects.into_iter().collect(),
            maps: self.maps.into_iter().collect(),
            packet_bytes: u32::try_from(self.packet_bytes).unwrap_or(u32::MAX),
            packet_written: self.packet_written,
            packet_moved: self.packet_moved,
            meta_used: self.meta_used,
            meta_written: self.meta_written,
            tail_calls: self.tail_calls,
            functions: cfg.funcs.iter().map(|f| f.start).collect(),
            addresses: self.addresses,
            unwritten_stack: self.unwritten,
            stack: self.stack.iter().map(|s| *s as u32).collect(),
            stack_chain: self.stack_chain,
        }
    }
}

/// Something for a few of many instructions: found at once, copied at once, and no larger than it says.
#[derive(Clone, Debug)]
struct Sparse<T> {
    /// By instruction: its place in `list` plus one.
    at: Vec<u32>,
    list: Vec<T>,
}

impl<T> Sparse<T> {
    fn new(insns: usize) -> Sparse<T> {
        Sparse { at: vec![0; insns], list: Vec::new() }
    }

    /// What the instruction has; nothing, when it has had nothing and has `new` from now on.
    fn get_or_put(&mut self, insn: usize, new: T) -> Option<&mut T> {
        if let Some(n) = self.at[insn].checked_sub(1) {
            return Some(&mut self.list[n as usize]);
        }
        push(&mut self.list, new);
        self.at[insn] = self.list.len() as u32;
        None
    }

    fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<T>()
    }

    fn in_order(mut self, insn: impl Fn(&T) -> usize) -> Vec<T> {
        self.list.sort_unstable_by_key(insn);
        self.list
    }
}

/// What is known about a pointer plus a constant. Pointers are compared exactly wherever a path ends because it shows nothing
/// new, constant and variable offset included, so what is collected here holds on the paths that were cut off too.
fn place_of(p: &Ptr, off: i64, depth: usize) -> Place {
    let region = match p.base {
        Base::Ctx => Region::Context,
        Base::Packet | Base::End => Region::Packet,
        Base::Meta => Region::Meta,
        Base::Stack(frame) if usize::from(frame) == depth => Region::Stack,
        Base::Stack(_) => Region::OuterStack,
        Base::MapValue(m) if m.inner => Region::InnerMapValue(m.index),
        Base::MapValue(m) => Region::MapValue(m.index),
        Base::Map(m) if m.inner => Region::InnerMap(m.index),
        Base::Map(m) => Region::Map(m.index),
        Base::Mem { kind: MemKind::Record, .. } => Region::Record,
        Base::Mem { .. } | Base::Sock(_) | Base::Object(_) | Base::Arena => Region::Other,
        Base::Func(start) => Region::Func(start),
    };
    let constant = p.is_fixed() && p.base != Base::End;
    Place { region, off: if constant { i32::try_from(i64::from(p.off) + off).ok() } else { None } }
}

fn merge(a: Place, b: Place) -> Place {
    Place {
        region: if a.region == b.region { a.region } else { Region::Mixed },
        off: if a.region == b.region && a.off == b.off { a.off } else { None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::KeyPlace;
    use crate::value::MapRef;

    fn place(region: Region, off: Option<i32>) -> Place {
        Place { region, off }
    }

    #[test]
    fn what_differs_between_ways_is_no_fact() {
        let (a, b) = (place(Region::Stack, Some(-8)), place(Region::Stack, Some(-16)));
        assert_eq!(merge(a, a), a);
        assert_eq!(merge(a, b), place(Region::Stack, None));
        assert_eq!(merge(a, place(Region::Packet, Some(-8))), place(Region::Mixed, None));
        assert_eq!(merge(place(Region::Stack, None), a), place(Region::Stack, None));
    }

    #[test]
    fn places_are_named_from_where_the_program_stands() {
        let stack = Ptr { off: -8, ..Ptr::to(Base::Stack(1)) };
        assert_eq!(place_of(&stack, 4, 1), place(Region::Stack, Some(-4)));
        assert_eq!(place_of(&stack, 4, 2), place(Region::OuterStack, Some(-4)));
        let inner = |inner| Base::MapValue(MapRef { index: 3, inner, uid: 0 });
        assert_eq!(place_of(&Ptr::to(inner(false)), 0, 0), place(Region::MapValue(3), Some(0)));
        assert_eq!(place_of(&Ptr::to(inner(true)), 0, 0), place(Region::InnerMapValue(3), Some(0)));
        // Where the end is nobody knows, nor what a variable adds.
        assert_eq!(place_of(&Ptr::to(Base::End), -4, 0), place(Region::Packet, None));
        let var = crate::domain::Scalar::between(0, 3);
        assert_eq!(place_of(&Ptr { var, ..Ptr::to(Base::Packet) }, 2, 0), place(Region::Packet, None));
    }

    #[test]
    fn calls_of_several_ways_keep_what_they_share() {
        let mut facts = Collector::new(4, 1);
        let fact = |map, key_const, size| CallFact {
            insn: 2,
            helper: 1,
            map,
            key: Some(KeyPlace::Stack(-8)),
            key_const,
            sizes: [None, size, None, Some((7, 7)), None],
        };
        facts.call(fact(Some(0), Some(1), Some((4, 8))), false);
        facts.call(fact(Some(0), Some(2), Some((2, 6))), true);
        let call = facts.calls.list[0].clone();
        assert_eq!(call, fact(Some(0), None, Some((2, 8))));
        assert!(facts.tail_calls, "one way is enough");
        facts.call(CallFact { key: Some(KeyPlace::Packet), ..fact(Some(1), None, None) }, false);
        let call = &facts.calls.list[0];
        assert_eq!((call.map, call.key, call.sizes[1]), (None, None, None));
    }

    #[test]
    fn an_argument_that_is_a_pointer_on_one_way_only_is_mixed() {
        let mut facts = Collector::new(1, 1);
        let mut regs = [Value::Uninit; 11];
        regs[1] = Value::Ptr(Ptr::to(Base::Ctx));
        facts.arguments(0, &regs, 0);
        regs[2] = regs[1];
        facts.arguments(0, &regs, 0);
        assert_eq!(facts.args.list[0].args[0], Some(place(Region::Context, Some(0))));
        assert_eq!(facts.args.list[0].args[1], Some(place(Region::Mixed, None)));
        assert_eq!(facts.args.list[0].args[2], None);
    }
}
