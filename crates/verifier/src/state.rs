//! The abstract machine: frames with registers and stack, references, locks.

use std::rc::Rc;

use xway_isa::Reg;

use crate::domain::Scalar;
use crate::extent::Extent;
use crate::graph::{Def, Graph, NONE};
use crate::meter::{ALLOCATION, Meter};
use crate::value::{Base, Num, Ptr, Value};

/// Most frames in a chain of calls.
pub const FRAMES_MAX: usize = 8;
/// Most references that are held at the same time.
pub const REFS_MAX: usize = 256;
/// Bytes of stack for a frame, and for a chain.
pub const STACK_MAX: i64 = 512;

/// What one stack byte holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Byte {
    /// Never written.
    #[default]
    Uninit,
    /// Some data.
    Misc,
    /// Zero.
    Zero,
    /// Part of the slot's `spill`, which starts at the slot's first byte.
    Spill,
    /// Part of an iterator or a dynptr.
    Special,
}

/// Eight aligned bytes of stack; slot `i` lies at `fp - 8 * (i + 1)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slot {
    /// The bytes, by rising address.
    pub bytes: [Byte; 8],
    /// The spilled value, when `bytes` say so.
    pub spill: Value,
    /// Liveness node: marked when the slot is read.
    pub live: Def,
    /// Where its zeros come from: marked when something relied on a zero that was read here.
    pub zeros: Def,
    /// A dynptr's slice may be this very memory. It holds plain data until the function returns.
    pub shared: bool,
}

impl Default for Slot {
    fn default() -> Self {
        Slot { bytes: [Byte::Uninit; 8], spill: Value::Uninit, live: NONE, zeros: NONE, shared: false }
    }
}

impl Slot {
    /// Number of bytes that the spilled value covers, 0 without one.
    pub fn spill_len(&self) -> usize {
        self.bytes.iter().take_while(|b| **b == Byte::Spill).count()
    }

    /// The spilled pointer, if there is one.
    pub fn spilled_ptr(&self) -> Option<&Ptr> {
        if self.bytes[0] == Byte::Spill { self.spill.as_ptr() } else { None }
    }

    /// The slot read as a number of `len` bytes from its start.
    pub fn as_scalar(&self, len: usize) -> Scalar {
        match self.spill {
            Value::Num(n) if self.spill_len() >= len => n.s.truncate(len as u32 * 8),
            _ if self.bytes[..len].iter().all(|b| *b == Byte::Zero) => Scalar::constant(0),
            _ => Scalar::of_bits(len as u32 * 8),
        }
    }
}

/// Why a frame exists.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FrameKind {
    /// The program, or a global function that is analysed on its own.
    Entry,
    /// Called by an instruction.
    Call,
    /// Called by a helper, any number of times, until it returns something other than zero.
    Callback {
        /// Numbers that it may return are 0 to this one.
        ret_max: u64,
        /// It is shown keys of a map, each for as long as it runs.
        keyed: bool,
    },
    /// Called later by somebody else (a timer).
    Async,
}

/// One function activation. Counts itself in its analysis' meter.
#[derive(Debug)]
pub struct Frame {
    /// r0 to r10.
    pub regs: [Value; 11],
    /// Slots that have been touched, from the frame pointer downwards.
    pub stack: Vec<Slot>,
    /// Index of the function.
    pub func: usize,
    /// The call instruction in the caller.
    pub callsite: usize,
    /// Identity of this activation on its path.
    pub uid: u32,
    /// Why it exists.
    pub kind: FrameKind,
    /// Identity of the callback loop that this frame's current call instruction runs, 0 when it runs none.
    pub callback_loop: u32,
    /// Turns that the callback loop has made on this path; 0 while they are not counted.
    pub callback_turns: u32,
    /// How often a `may_goto` of this activation went on with its loop: each activation counts for itself when it runs.
    pub goto_turns: u32,
    meter: Meter,
}

/// Slots by which a stack grows.
const SLOTS_STEP: usize = 8;
/// Bytes of a frame without its stack, the counters in front of it and the allocator's part included.
const FRAME_BYTES: usize = std::mem::size_of::<Frame>() + 16 + ALLOCATION;

impl Frame {
    /// A fresh activation at depth `index`, everything uninitialised but the frame pointer.
    pub fn new(func: usize, index: usize, callsite: usize, uid: u32, kind: FrameKind, meter: &Meter) -> Frame {
        let mut regs = [Value::Uninit; 11];
        regs[10] = Value::Ptr(Ptr::to(Base::Stack(index as u8)));
        meter.take(FRAME_BYTES);
        let (stack, meter) = (Vec::new(), meter.clone());
        Frame { regs, stack, func, callsite, uid, kind, callback_loop: 0, callback_turns: 0, goto_turns: 0, meter }
    }

    /// Registers and slots.
    pub fn values(&self) -> usize {
        self.regs.len() + self.stack.len()
    }

    fn stack_bytes(slots: usize) -> usize {
        if slots == 0 { 0 } else { slots * std::mem::size_of::<Slot>() + ALLOCATION }
    }

    /// The slot with this index, made when it was never touched.
    pub fn slot_mut(&mut self, i: usize) -> &mut Slot {
        if self.stack.len() <= i {
            let before = self.stack.capacity();
            if before <= i {
                // By steps instead of doubling: most stacks are small, and there are many of them.
                let want = (i + 1).next_multiple_of(SLOTS_STEP);
                self.stack.reserve_exact(want - self.stack.len());
                self.meter.take(Frame::stack_bytes(self.stack.capacity()) - Frame::stack_bytes(before));
            }
            self.stack.resize(i + 1, Slot::default());
        }
        &mut self.stack[i]
    }
}

impl Clone for Frame {
    fn clone(&self) -> Frame {
        let stack = self.stack.clone();
        self.meter.take(FRAME_BYTES + Frame::stack_bytes(stack.capacity()));
        self.meter.work(self.values());
        let Frame { regs, func, callsite, uid, kind, callback_loop, callback_turns, goto_turns, .. } = *self;
        let meter = self.meter.clone();
        Frame { regs, stack, func, callsite, uid, kind, callback_loop, callback_turns, goto_turns, meter }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.meter.give(FRAME_BYTES + Frame::stack_bytes(self.stack.capacity()));
    }
}

/// Equal in all but where they are counted.
impl PartialEq for Frame {
    fn eq(&self, o: &Frame) -> bool {
        self.regs == o.regs
            && (self.func, self.callsite, self.uid) == (o.func, o.callsite, o.uid)
            && (self.kind, self.callback_loop) == (o.kind, o.callback_loop)
            && (self.callback_turns, self.goto_turns) == (o.callback_turns, o.goto_turns)
            && self.stack == o.stack
    }
}

/// Something that must be released.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reference {
    /// Identity; pointers carry it.
    pub id: u32,
    /// The instruction that acquired it.
    pub insn: usize,
    /// In words.
    pub what: &'static str,
}

/// A spin lock that is held.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lock {
    /// The pointer to the element that holds it.
    pub ptr: Ptr,
    /// The instruction that took it.
    pub insn: usize,
}

/// The number with a link is another number divided by a constant, and perhaps multiplied by it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quotient {
    /// The link of the quotient.
    pub link: u32,
    /// Link and delta of the number that was divided.
    pub of: (u32, i64),
    /// The divisor.
    pub by: u64,
    /// It was multiplied by the divisor again.
    pub whole: bool,
}

/// What an error earlier on the way has left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Salvage {
    /// There was none.
    #[default]
    None,
    /// Some values are lost.
    Some,
    /// Nor is it known what is held.
    Loose,
}

/// One abstract machine state.
#[derive(Debug)]
pub struct State {
    /// Frames, the program's first.
    pub frames: Vec<Rc<Frame>>,
    /// References that are held.
    pub refs: Vec<Reference>,
    /// Spin lock that is held.
    pub lock: Option<Lock>,
    /// What is known of the packet's length.
    pub extent: Extent,
    /// A number that was shifted left by 32 bits, for the shift back that may follow: register, the number before, the
    /// instruction that must come next.
    pub shifted: Option<(Reg, Num, usize)>,
    /// A quotient that a remainder may be made of. Forgotten where states are compared.
    pub quotient: Option<Quotient>,
    /// Next instruction.
    pub pc: usize,
    /// The checkpoint that this path comes from, `u32::MAX` for none.
    pub parent: u32,
    /// Last branch of the path, for messages.
    pub path: u32,
    /// Instructions since the last checkpoint.
    pub insns_since: u32,
    /// Jumps since the last checkpoint.
    pub jumps_since: u32,
    /// What an error on this path has left.
    pub salvage: Salvage,
}

impl Clone for State {
    fn clone(&self) -> State {
        if let Some(frame) = self.frames.last() {
            // Eight references or so are copied while one value of a frame is.
            frame.meter.work(self.refs.len() / 8 + self.extent.bytes() / 256);
        }
        let State { shifted, quotient, pc, parent, path, insns_since, jumps_since, .. } = *self;
        State {
            frames: self.frames.clone(),
            refs: self.refs.clone(),
            lock: self.lock,
            extent: self.extent.clone(),
            salvage: self.salvage,
            shifted,
            quotient,
            pc,
            parent,
            path,
            insns_since,
            jumps_since,
        }
    }
}

impl State {
    /// The running frame.
    pub fn frame(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }

    /// The running frame, to change.
    pub fn frame_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        Rc::make_mut(&mut self.frames[last])
    }

    /// A frame by its depth, to change.
    pub fn frame_at(&mut self, i: usize) -> &mut Frame {
        Rc::make_mut(&mut self.frames[i])
    }

    /// A register of the running frame.
    pub fn reg(&self, r: Reg) -> &Value {
        &self.frame().regs[r.index()]
    }

    /// Sets a register of the running frame.
    pub fn set(&mut self, r: Reg, v: Value) {
        self.frame_mut().regs[r.index()] = v;
    }

    /// Shows every register and every spilled value of every frame to `f`, which says what becomes of those that change. Frames in which
    /// none does stay shared.
    pub fn replace(&mut self, mut f: impl FnMut(&Value) -> Option<Value>) {
        for frame in &mut self.frames {
            frame.meter.work(frame.values());
            for i in 0..frame.regs.len() {
                if let Some(new) = f(&frame.regs[i]) {
                    Rc::make_mut(frame).regs[i] = new;
                }
            }
            for i in 0..frame.stack.len() {
                if frame.stack[i].bytes[0] == Byte::Spill
                    && let Some(new) = f(&frame.stack[i].spill)
                {
                    Rc::make_mut(frame).stack[i].spill = new;
                }
            }
        }
    }

    /// Gives every number linked with `n` what is now known about `n`.
    pub fn sync_links(&mut self, n: &Num, graph: &mut Graph) {
        if n.link == 0 {
            return;
        }
        self.replace(|v| match v {
            Value::Num(o) if o.link == n.link && *o != *n => {
                let shifted = n.s.add_const(o.delta.wrapping_sub(n.delta));
                // Both descriptions hold; an empty meet cannot happen on a path that can be reached.
                let s = o.s.meet(&shifted).unwrap_or(shifted);
                Some(Value::Num(Num { s, def: graph.op(o.def, n.def), ..*o }))
            }
            _ => None,
        });
    }

    /// Bytes that the state holds beside its frames, which count themselves.
    pub fn bytes(&self) -> usize {
        let lists = self.frames.capacity() * std::mem::size_of::<Rc<Frame>>()
            + self.refs.capacity() * std::mem::size_of::<Reference>();
        lists + 2 * ALLOCATION + self.extent.bytes()
    }

    /// Registers and slots of all frames.
    pub fn values(&self) -> usize {
        self.frames.iter().map(|f| f.values()).sum()
    }

    /// Index of the running frame.
    pub fn depth(&self) -> usize {
        self.frames.len() - 1
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn state(meter: &Meter) -> State {
        let frame = Frame::new(0, 0, 0, 0, FrameKind::Entry, meter);
        State {
            frames: vec![Rc::new(frame)],
            refs: Vec::new(),
            lock: None,
            extent: Extent::default(),
            shifted: None,
            quotient: None,
            pc: 0,
            parent: u32::MAX,
            path: NONE,
            insns_since: 0,
            jumps_since: 0,
            salvage: Salvage::None,
        }
    }

    #[test]
    fn a_slot_reads_as_what_it_holds() {
        let of = |bytes| Slot { bytes, ..Slot::default() };
        assert_eq!(of([Byte::Zero; 8]).as_scalar(8), Scalar::constant(0));
        assert_eq!(of([Byte::Misc; 8]).as_scalar(2), Scalar::of_bits(16));
        let mut four = of([Byte::Misc; 8]);
        four.bytes[..4].fill(Byte::Spill);
        four.spill = Value::num(Scalar::constant(0x1234_5678), NONE);
        assert_eq!((four.spill_len(), four.as_scalar(4).as_const()), (4, Some(0x1234_5678)));
        assert_eq!(four.as_scalar(2).as_const(), Some(0x5678), "the part at the lower address");
        assert_eq!(four.as_scalar(8), Scalar::of_bits(64), "the upper half is unknown");
        assert!(four.spilled_ptr().is_none());
        let pointer = Slot { bytes: [Byte::Spill; 8], spill: Value::Ptr(Ptr::to(Base::Ctx)), ..Slot::default() };
        assert_eq!(pointer.spilled_ptr().map(|p| p.base), Some(Base::Ctx));
    }

    #[test]
    fn what_is_learnt_of_a_number_reaches_all_that_are_linked_with_it() {
        let (meter, mut graph) = (Meter::default(), Graph::default());
        let mut state = state(&meter);
        let linked = |s, delta| Num { link: 3, delta, ..Num::new(s, NONE) };
        let any = Scalar::between(0, 1000);
        state.set(Reg::R6, Value::Num(linked(any, 0)));
        state.set(Reg::R7, Value::Num(linked(Scalar::between(10, 1010), 10)));
        state.set(Reg::R8, Value::num(any, NONE));
        let slot = Slot { bytes: [Byte::Spill; 8], spill: Value::Num(linked(any, 0)), ..Slot::default() };
        *state.frame_mut().slot_mut(2) = slot;
        state.sync_links(&linked(Scalar::between(5, 7), 0), &mut graph);
        let bounds = |v: &Value| v.as_num().map(|n| (n.s.umin(), n.s.umax())).unwrap();
        assert_eq!(bounds(state.reg(Reg::R6)), (5, 7));
        assert_eq!(bounds(state.reg(Reg::R7)), (15, 17), "ten more");
        assert_eq!(bounds(state.reg(Reg::R8)), (0, 1000), "not linked");
        assert_eq!(bounds(&state.frame().stack[2].spill), (5, 7), "a spilled copy too");
    }

    #[test]
    fn frames_are_shared_until_one_is_changed() {
        let meter = Meter::default();
        let mut one = state(&meter);
        let before = meter.bytes();
        let two = one.clone();
        assert_eq!(meter.bytes(), before, "a copy of a state shares its frames");
        one.set(Reg::R1, Value::Ptr(Ptr::to(Base::Ctx)));
        assert!(meter.bytes() > before, "and pays when it changes one");
        assert_eq!(two.reg(Reg::R1), &Value::Uninit);
        // A change that changes nothing leaves them shared.
        let three = two.clone();
        let mut two = two;
        two.replace(|_| None);
        assert!(Rc::ptr_eq(&two.frames[0], &three.frames[0]));
        drop((one, two, three));
        assert_eq!(meter.bytes(), 0, "everything is given back");
    }
}
