//! The intermediate form between instructions and Cranelift: a program as basic blocks of operations, each with what the proof
//! knows about it.
//!
//! It keeps the eleven registers; what it adds to the instructions is that every memory access says which memory, every call
//! says what it reaches and where its arguments point, every jump is an edge between blocks, and that instructions which no run
//! reaches are not there. A pass is a function that changes a [`Plan`]; `compiled.rs` runs them in order.

mod afford;
pub(crate) mod asked;
mod build;
mod detours;
mod frozen;
mod functions;
pub(crate) mod scout;
pub(crate) mod slots;
pub(crate) mod stack;
pub(crate) mod targets;
pub(crate) mod through;
mod unroll;
mod words;

pub(crate) use build::{FUNCTION_MAX, build};
pub(crate) use functions::EACH;

/// Whether a function has a jump that goes backwards.
pub(crate) fn goes_round(func: &Func) -> bool {
    !scout::walk(func).1.is_empty()
}

use xway_abi::{HelperProto, Ret};
use xway_isa::{AluOp, AtomicOp, Cond, MovExt, Operand, Reg, Size, Width};
use xway_verifier::{Place, Region};
use xway_vm::machine::Kfunc;

/// `bpf_xdp_adjust_head`, `bpf_xdp_adjust_meta`, `bpf_xdp_adjust_tail`.
pub(crate) const ROOM: [u32; 3] = [44, 54, 65];

/// Helpers that name the frame themselves where they are called after all: those, and what is code of packets of one buffer
/// (`bpf_xdp_get_buff_len`, `bpf_xdp_load_bytes`, `bpf_xdp_store_bytes`).
pub(crate) const NAMING: [u32; 6] = [44, 54, 65, 188, 189, 190];

/// A program: its functions, the main one first.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub funcs: Vec<Func>,
    /// Some run makes a tail call.
    pub tail_calls: bool,
    /// Some run may choose a redirect target or return `XDP_REDIRECT`: the frame's old target has to go first.
    pub redirects: bool,
    /// What runs over a burst in front of the program.
    pub scout: Option<scout::Scout>,
    /// No run chooses a target, so an old one matters only to a run that returns `XDP_REDIRECT` all the same.
    pub redirects_by_verdict: bool,
}

/// A function.
#[derive(Clone, Debug)]
pub(crate) struct Func {
    pub name: String,
    /// First slot.
    pub start: usize,
    /// Number of instructions that are left.
    pub insns: usize,
    /// The entry first.
    pub blocks: Vec<Block>,
    /// Bytes of stack below the frame pointer.
    pub stack: u32,
    /// Slots of eight bytes that are cleared at entry: bit n is the slot at `fp - 8 * (n + 1)`.
    pub zeroed: u64,
    /// Stack bytes that are values.
    pub slots: slots::Slots,
    /// Its address is taken: helpers call it.
    pub callback: bool,
    /// It counts the turns of `may_goto` loops.
    pub may_goto: bool,
}

/// A basic block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub ops: Vec<Op>,
    pub end: End,
    /// The slot of the instruction that ends it.
    pub end_at: usize,
}

/// One operation, with the slot of its instruction.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub at: usize,
    pub kind: Kind,
}

/// A field of the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CtxField {
    Data,
    DataEnd,
    DataMeta,
    IngressIfindex,
    RxQueue,
    EgressIfindex,
}

/// A byte of a word in a map's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Number of the word in its function.
    pub word: u32,
    /// The word's bytes.
    pub size: Size,
    /// Its distance from the load's base register.
    pub off: i16,
    /// Which byte of it this is, counted from the lowest.
    pub byte: u8,
    /// The word is loaded here.
    pub first: bool,
}

/// What an operation does. Offsets of memory are in the instruction; `place` is what the proof says about the first byte.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Alu {
        width: Width,
        op: AluOp,
        dst: Reg,
        src: Operand,
    },
    Mov {
        width: Width,
        dst: Reg,
        src: Operand,
        ext: MovExt,
    },
    Neg {
        width: Width,
        dst: Reg,
    },
    /// Keeps the low bits.
    Truncate {
        dst: Reg,
        bits: u8,
    },
    /// Reverses the bytes of the low bits and clears the others.
    Swap {
        dst: Reg,
        bits: u8,
    },
    Const {
        dst: Reg,
        value: u64,
    },
    /// The address of a map.
    Map {
        dst: Reg,
        map: u32,
    },
    /// The address of a byte of a data section's value.
    Value {
        dst: Reg,
        map: u32,
        off: u32,
    },
    /// What stands for a function of the program, by its index.
    Func {
        dst: Reg,
        func: usize,
    },
    Ctx {
        dst: Reg,
        base: Reg,
        field: CtxField,
        /// The upper half is the number's sign.
        signed: bool,
    },
    Load {
        size: Size,
        signed: bool,
        dst: Reg,
        base: Reg,
        off: i16,
        place: Place,
        /// It is a byte of a word that is loaded once.
        part: Option<Part>,
    },
    Store {
        size: Size,
        base: Reg,
        off: i16,
        src: Operand,
        place: Place,
    },
    Atomic {
        size: Size,
        op: AtomicOp,
        base: Reg,
        off: i16,
        src: Reg,
        place: Place,
    },
    LoadAcquire {
        size: Size,
        dst: Reg,
        base: Reg,
        off: i16,
        place: Place,
    },
    StoreRelease {
        size: Size,
        base: Reg,
        off: i16,
        src: Reg,
        place: Place,
    },
    Helper(Call),
    /// In a scout, in place of a call: notes which memory the map will need, in the note of this number.
    Fetch {
        call: Call,
        slot: usize,
        then: scout::Then,
    },
    /// In a scout, in place of a call: the function of this frame begins. What follows is its first block.
    Enter {
        frame: usize,
    },
    /// In a scout: that function has returned.
    Leave {
        frame: usize,
    },
    Kfunc {
        which: Kfunc,
        args: [Option<Place>; 5],
    },
    /// A function of the program, by its index.
    Local {
        func: usize,
        args: [Option<Place>; 5],
        /// Its blocks stand in the place of the call.
        inline: bool,
    },
}

/// A helper call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub proto: &'static HelperProto,
    /// The map argument, when it is the same on every run.
    pub map: Option<u32>,
    /// The key as a number, when it is one constant.
    pub key_const: Option<u32>,
    /// Bounds of each argument that is a length.
    pub sizes: [Option<(u64, u64)>; 5],
    pub args: [Option<Place>; 5],
    /// It is a loop of this code, over a function that is known.
    pub turns: Option<Turns>,
}

/// A callback that a loop runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// A function of the program, by its index.
    pub func: usize,
    /// Its blocks stand in the loop.
    pub inline: bool,
}

impl Call {
    /// The most bytes that the memory argument `n` has whose length is the argument behind it.
    pub fn length_of(&self, n: usize) -> Option<u64> {
        self.sizes.get(n + 1)?.map(|(_, most)| most)
    }
}

/// How a block ends.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Jump(usize),
    Branch {
        width: Width,
        cond: Cond,
        dst: Reg,
        src: Operand,
        taken: usize,
        fall: usize,
    },
    /// Goes to `out` once the turns are used up.
    MayGoto {
        out: usize,
        fall: usize,
    },
    Exit,
    /// No run comes here.
    Unreachable,
}

impl End {
    /// Blocks that may follow.
    pub fn successors(&self) -> impl Iterator<Item = usize> {
        let (a, b) = match *self {
            End::Jump(to) => (Some(to), None),
            End::Branch { taken, fall, .. } => (Some(taken), Some(fall)),
            End::MayGoto { out, fall } => (Some(out), Some(fall)),
            End::Exit | End::Unreachable => (None, None),
        };
        a.into_iter().chain(b)
    }
}

impl Func {
    /// Puts its blocks in this order, of their numbers as they are.
    fn put_in_order(&mut self, order: &[usize]) {
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, n)| place[*n] = at);
        let mut blocks: Vec<Option<Block>> = self.blocks.drain(..).map(Some).collect();
        self.blocks = order.iter().filter_map(|n| blocks[*n].take()).collect();
        for end in self.blocks.iter_mut().map(|b| &mut b.end) {
            match end {
                End::Jump(to) => *to = place[*to],
                End::Branch { taken, fall, .. } => (*taken, *fall) = (place[*taken], place[*fall]),
                End::MayGoto { out, fall } => (*out, *fall) = (place[*out], place[*fall]),
                End::Exit | End::Unreachable => {}
            }
        }
    }
}

impl Plan {
    /// The proof's numbers of array elements are not used: what is left is the key on the stack.
    pub fn forget_constant_keys(&mut self) {
        for op in self.funcs.iter_mut().flat_map(|f| &mut f.blocks).flat_map(|b| &mut b.ops) {
            if let Kind::Helper(call) = &mut op.kind {
                call.key_const = None;
            }
        }
    }

    /// An instruction with atomic access to memory that may lie anywhere: the packet under another name, of a slice or an argument.
    /// What is now one kind of memory and now another may be that where a program has such memory at all.
    pub fn atomic_of_any_alignment(&self) -> Option<usize> {
        let ops = || self.funcs.iter().flat_map(|f| &f.blocks).flat_map(|b| &b.ops);
        let gets = |kind: &Kind| match kind {
            Kind::Kfunc { .. } => true,
            Kind::Helper(call) => call.proto.ret == Ret::DynptrDataOrNull,
            _ => false,
        };
        let has_such = self.funcs.len() > 1 || ops().any(|op| gets(&op.kind));
        let anywhere = |kind: &Kind| match kind {
            Kind::Atomic { place, .. } | Kind::LoadAcquire { place, .. } | Kind::StoreRelease { place, .. } => {
                match place.region {
                    Region::Packet | Region::Meta | Region::Other => true,
                    Region::Mixed => has_such,
                    _ => false,
                }
            }
            _ => false,
        };
        ops().find(|op| anywhere(&op.kind)).map(|op| op.at)
    }

    /// `decided`: what always goes one way becomes a jump.
    pub fn decide(&mut self, decided: &[(usize, bool)]) {
        for block in self.funcs.iter_mut().flat_map(|f| &mut f.blocks) {
            if let End::Branch { taken, fall, .. } = block.end
                && let Ok(i) = decided.binary_search_by_key(&block.end_at, |d| d.0)
            {
                block.end = End::Jump(if decided[i].1 { taken } else { fall });
            }
        }
    }

    /// Whether some run may look at the packet.
    pub fn looks_at_packets(&self) -> bool {
        let data = |op: &Op| matches!(op.kind, Kind::Ctx { field: CtxField::Data, .. });
        self.funcs.iter().flat_map(|f| &f.blocks).flat_map(|b| &b.ops).any(data)
    }

    /// Whether a function below the main one makes tail calls.
    pub fn tail_calls_below(&self) -> bool {
        let calls = |op: &Op| matches!(&op.kind, Kind::Helper(call) if call.proto.is_tail_call());
        self.funcs.iter().skip(1).flat_map(|f| &f.blocks).flat_map(|b| &b.ops).any(calls)
    }

    /// Whether some operation is a call of the helper with this number.
    pub fn uses_helper(&self, id: u32) -> bool {
        let calls = |op: &Op| matches!(&op.kind, Kind::Helper(call) if call.proto.id == id);
        self.funcs.iter().flat_map(|f| &f.blocks).flat_map(|b| &b.ops).any(calls)
    }

    /// Whether some operation needs the frame of the packet in the environment. `named`: what moves the packet's start and end in
    /// the main function puts it there itself, where it calls at all.
    pub fn needs_frame(&self, named: bool) -> bool {
        self.funcs.iter().enumerate().any(|(n, func)| {
            func.blocks.iter().flat_map(|b| &b.ops).any(|op| match &op.kind {
                Kind::Helper(call) if named && n == 0 && NAMING.contains(&call.proto.id) => false,
                // Clocks, randomness, the worker, maps, text: nothing of the packet.
                Kind::Helper(call) => !matches!(
                    call.proto.id,
                    1..=3 | 5 | 7 | 8 | 14..=17 | 28 | 42 | 80 | 105 | 106 | 118 | 123 | 125 | 160 | 182 | 195 | 208
                ),
                Kind::Kfunc { .. } => true,
                _ => false,
            })
        })
    }
}
