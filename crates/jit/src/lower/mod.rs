//! From a [`Plan`] to Cranelift's intermediate form.
//!
//! One function of a program becomes one function of Cranelift; the main one can also become the *burst function*, in which
//! its blocks stand inside a loop over frames and `exit` stores the verdict and goes on with the next frame. Registers are
//! SSA variables; the stack is one stack slot; addresses are real addresses.
//!
//! | file | what |
//! |---|---|
//! | `mod` | functions, the burst loop, blocks, jumps |
//! | `alu` | arithmetic |
//! | `memory` | loads, stores, atomics, the context |
//! | `pieces` | bytes in pieces of 8, 4, 2 and 1 |
//! | `area` | kinds of memory that never overlap |
//! | `lookup` | look-ups in maps without a call |
//! | `inner` | look-ups in maps of maps without a call |
//! | `trie`, `address` | look-ups in tries without a call |
//! | `answer` | look-ups that were made for the whole burst |
//! | `scout` | what runs over a burst in front of a program |
//! | `inline` | other helpers without a call: checksums, the clock, random numbers |
//! | `bounds` | where the packet begins and ends, behind what moves it |
//! | `room` | moves of the packet's start and end, and of its metadata |
//! | `bytes` | short copies between packet and stack |
//! | `redirect` | where a packet goes |
//! | `slots` | stack bytes that are values |
//! | `copied` | small functions of the program in the place of their calls |
//! | `turns` | `bpf_loop` as a loop, and walks over arrays |
//! | `call` | helpers, kernel functions, functions of the program, tail calls |

mod address;
mod alu;
mod answer;
mod area;
mod bounds;
mod bytes;
mod call;
mod copied;
mod inline;
mod inner;
mod lookup;
mod memory;
mod pieces;
mod redirect;
mod room;
mod scout;
mod slots;
mod trie;
mod turns;
mod update;

use std::sync::Arc;

use cranelift_codegen::ir::{
    self, AbiParam, BlockArg, Endianness, ExtFuncData, ExternalName, FuncRef, InstBuilder, MemFlagsData, Signature,
    StackSlotData, StackSlotKind, UserExternalName, UserFuncName, Value, condcodes::IntCC, types::I64,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use xway_isa::{Cond, Operand, Reg, Width};
use xway_maps::Map;
use xway_packet::descriptor;

use area::Area;
pub(crate) use area::region;
pub(crate) use inner::template;
pub(crate) use lookup::can_inline;
pub(crate) use scout::can_fetch;

use crate::Options;
use crate::calls::Entry;
use crate::env::offsets;
use crate::link;
use crate::plan::scout::TURNS_MAX;
use crate::plan::slots::Slots;
use crate::plan::{End, Func, Op, Plan};

/// Name spaces of symbols in generated code.
pub(crate) mod space {
    /// Functions of the program, by index.
    pub const LOCAL: u32 = 0;
    /// The main function in the form that tail calls jump to.
    pub const TAIL: u32 = 2;
    /// No function: a call of it becomes the machine's instruction that fetches memory ahead.
    pub const FETCH: u32 = 3;
    /// The stub that reads the processor's counter.
    pub const COUNTER: u32 = 4;
    /// Entries of helpers, by their place in [`super::Lowered::entries`].
    pub const ENTRY: u32 = 1;
}

/// What a function of the program is compiled to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// `fn(env, frames, count, verdicts)`: the main functions of all links over all frames of a burst.
    Burst,
    /// `fn(env, frames, count, notes)`: the scout of the program with this number over all frames of a burst; it fills a note
    /// for each frame and target.
    Scout(usize),
    /// `fn(env, ctx) -> r0`: the main function over one packet.
    Single,
    /// The same for jumps: with the calling convention in which a call in the last place leaves no frame behind. `Single` calls
    /// it.
    Tail,
    /// `fn(env, r1..r5) -> r0`: a function that is called from the program or by a helper.
    Function(Callee),
}

impl Shape {
    pub fn is_scout(self) -> bool {
        matches!(self, Shape::Scout(_))
    }

    /// The function of a program that it is made from, or is the first of.
    pub fn callee(self) -> Callee {
        match self {
            Shape::Function(f) => f,
            Shape::Scout(unit) => Callee { unit, func: 0 },
            Shape::Burst | Shape::Single | Shape::Tail => Callee { unit: 0, func: 0 },
        }
    }
}

/// A function of one of the programs that are compiled together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Callee {
    pub unit: usize,
    pub func: usize,
}

impl Callee {
    /// Its number in [`space::LOCAL`].
    fn symbol(self) -> u32 {
        (self.unit as u32) << 16 | self.func as u32
    }

    pub fn from_symbol(symbol: u32) -> Callee {
        Callee { unit: (symbol >> 16) as usize, func: (symbol & 0xffff) as usize }
    }
}

/// A program among those that are compiled together.
pub(crate) struct Unit<'a> {
    pub plan: &'a Plan,
    pub maps: &'a [Arc<Map>],
    /// Addresses of data sections' values, by map.
    pub values: &'a [Option<u64>],
    /// Addresses of arrays' values, by map; they lie where they are as long as the code.
    pub bases: &'a [u64],
    /// Addresses of what stands for the program's functions.
    pub handles: &'a [u64],
    /// The verdicts after which the next program runs: bit n for verdict n.
    pub chain_on: u32,
    /// Its main function stands in the burst function; else it is called.
    pub inline: bool,
    /// The link from which tail calls come here; its own number for a link.
    pub link: usize,
    /// Tail calls of its main function to programs that stand in the burst function too.
    pub jumps: &'a [Jump],
}

/// A tail call to a program that was in the PROG_ARRAY when the code was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Jump {
    /// The call.
    pub insn: usize,
    /// The index that it names, below the array's length.
    pub index: u32,
    /// The program among the units.
    pub unit: usize,
    /// The address by which the slot names this very program ([`xway_maps::ProgramObject::entry`]).
    pub cell: usize,
}

/// What lowering needs to know of the surroundings.
pub(crate) struct Surroundings<'a> {
    /// One program or the links of a chain, and behind them what their tail calls go to.
    pub units: &'a [Unit<'a>],
    /// How many of them are links.
    pub links: usize,
    /// Tail calls are counted in a variable: no function below a main one makes any.
    pub count_in_variable: bool,
    /// They are links of a chain, which may be one.
    pub chained: bool,
    /// CPUs that all per-CPU maps have values for.
    pub cpus: u32,
    /// Address of [`VALUE_MAX`](crate::plan::scout::VALUE_MAX) zeros.
    pub zeros: u64,
    /// The program and its map whose look-ups are made for the whole burst.
    pub answers: Option<(usize, u32)>,
    pub options: &'a Options,
    pub isa: &'a dyn TargetIsa,
}

/// What there is to know of a function in Cranelift's form.
pub(crate) struct Lowered {
    /// What it calls.
    pub entries: Vec<Entry>,
    /// In a burst function: the block that stores the verdict and goes on with the next frame.
    pub exit: Option<ir::Block>,
}

/// Lowers one function, into one that is empty.
pub(crate) fn lower(
    around: &Surroundings<'_>,
    shape: Shape,
    func: &mut ir::Function,
    scratch: &mut FunctionBuilderContext,
) -> Lowered {
    let conv = if shape == Shape::Tail { CallConv::Tail } else { around.isa.default_call_conv() };
    let which = shape.callee();
    let params = match shape {
        Shape::Burst | Shape::Scout(_) => 4,
        Shape::Single | Shape::Tail => 2,
        Shape::Function(_) => 6,
    };
    func.name = UserFuncName::user(space::LOCAL, which.symbol());
    func.signature = signature(conv, params, shape != Shape::Burst && !shape.is_scout());
    let mut body = Body::new(around, which, shape, FunctionBuilder::new(func, scratch));
    match shape {
        Shape::Burst => body.burst(),
        Shape::Scout(_) => body.scout(),
        Shape::Single => body.single(),
        Shape::Tail | Shape::Function(_) => body.function(),
    }
    let Body { b, entries, exit, .. } = body;
    b.finalize(around.isa.frontend_config());
    Lowered { entries, exit: (shape == Shape::Burst).then_some(exit) }
}

/// A signature of `params` words and, with `ret`, one word back.
fn signature(conv: CallConv, params: usize, ret: bool) -> Signature {
    let mut sig = Signature::new(conv);
    sig.params = vec![AbiParam::new(I64); params];
    if ret {
        sig.returns = vec![AbiParam::new(I64)];
    }
    sig
}

/// A function in the making.
struct Body<'a, 'f> {
    around: &'a Surroundings<'a>,
    /// The program that is being lowered, with its place among the units.
    unit: &'a Unit<'a>,
    number: usize,
    /// The function of it.
    plan: &'a Func,
    shape: Shape,
    b: FunctionBuilder<'f>,
    /// r0 to r9.
    regs: [Variable; 10],
    /// Stack bytes that are values, and the value of each group.
    groups: &'a Slots,
    slots: Vec<Variable>,
    /// In a burst function: where the frames begin, and the one whose turn it is.
    frame: Option<(Value, Value)>,
    /// Look-ups in each map with a key that is not constant.
    lookups: Vec<usize>,
    /// Look-ups in tables that stand in the code so far.
    tables: usize,
    /// Other helpers, and tail calls, that do.
    in_place: usize,
    /// A scout's notes of this frame.
    notes: Vec<Variable>,
    /// The functions that stand in a scout, as far as they have been entered.
    inside: Vec<Option<scout::Inside>>,
    /// Words of maps' values that the block at hand has loaded, by their numbers.
    words: Vec<(u32, Value)>,
    /// Turns of `may_goto` that are left.
    turns: Option<Variable>,
    /// Tail calls so far, in the burst function.
    tails: Option<Variable>,
    /// The frame's descriptor, in the burst function.
    ctx: Option<Value>,
    /// Behind a call that moves the packet's start or end: what follows when its result is asked for at once.
    after_room: Option<room::Asked<'a>>,
    /// The packet's bounds at this place.
    bounds: bounds::Bounds,
    flow: bounds::Flow,
    /// Where tail calls enter, by unit, in the burst function.
    targets: Vec<Option<ir::Block>>,
    /// The worker's environment.
    env: Value,
    /// The frame pointer, r10.
    fp: Value,
    /// All stacks: this function's at its end, those of functions that stand in it at its start.
    stack: ir::StackSlot,
    /// The blocks of a function stand in the place of its call.
    is_copy: bool,
    /// What is lowered stands beside the way that nearly every packet takes.
    seldom: bool,
    /// Cranelift's blocks, by the plan's.
    blocks: Vec<ir::Block>,
    /// Where `exit` goes, with r0.
    exit: ir::Block,
    entries: Vec<Entry>,
    /// Imported functions: name space, number, reference.
    imports: Vec<((u32, u32), FuncRef)>,
}

/// Turns that `may_goto` grants to each call of a function.
const MAY_GOTO_MAX: i64 = xway_abi::prog::MAX_LOOPS as i64;

impl<'a, 'f> Body<'a, 'f> {
    fn new(around: &'a Surroundings<'a>, which: Callee, shape: Shape, mut b: FunctionBuilder<'f>) -> Self {
        let unit = &around.units[which.unit];
        let plan = match &unit.plan.scout {
            Some(scout) if shape.is_scout() => &scout.func,
            _ => &unit.plan.funcs[which.func],
        };
        let regs = std::array::from_fn(|_| b.declare_var(I64));
        // The links of a chain run one after the other, so that their stacks may lie in the same place.
        let whole = |u: &Unit<'_>, func: &Func| func.stack + u.plan.inlined_stack(func);
        let inlined = around.units.iter().filter(|u| shape == Shape::Burst && u.inline);
        let inlined = inlined.map(|u| whole(u, &u.plan.funcs[0]));
        let size = inlined.chain([whole(unit, plan)]).max().unwrap_or(0);
        let slot = b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, size, 4));
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let env = b.block_params(entry)[0];
        let fp = b.ins().stack_addr(I64, slot, size as i32);
        let exit = b.create_block();
        b.append_block_param(exit, I64);
        let mut body = Body {
            around,
            unit,
            number: which.unit,
            plan,
            shape,
            b,
            regs,
            groups: &plan.slots,
            slots: vec![],
            frame: None,
            lookups: vec![],
            tables: 0,
            in_place: 0,
            notes: vec![],
            inside: vec![],
            words: vec![],
            turns: None,
            tails: None,
            ctx: None,
            after_room: None,
            bounds: bounds::Bounds::default(),
            flow: bounds::Flow::default(),
            targets: vec![],
            env,
            fp,
            stack: slot,
            is_copy: false,
            seldom: false,
            blocks: vec![],
            exit,
            entries: vec![],
            imports: vec![],
        };
        body.enter_function(plan);
        body
    }

    /// Turns to another function: its blocks and variables.
    fn enter_function(&mut self, plan: &'a Func) {
        self.plan = plan;
        self.lookups = lookup::count(plan, self.unit.maps.len());
        self.groups = &plan.slots;
        self.slots = plan.slots.groups.iter().map(|_| self.b.declare_var(I64)).collect();
        self.turns = plan.may_goto.then(|| self.b.declare_var(I64));
        self.blocks = plan.blocks.iter().map(|_| self.b.create_block()).collect();
        self.flow = bounds::Flow::of(&plan.blocks);
    }

    /// The way in from outside.
    fn single(&mut self) {
        let entry = self.b.current_block().expect("the entry");
        let args = self.b.block_params(entry).to_vec();
        let f = self.import_as((space::TAIL, 0), 2, CallConv::Tail);
        let inst = self.b.ins().call(f, &args);
        let r0 = self.b.inst_results(inst)[0];
        self.b.ins().return_(&[r0]);
        self.b.seal_all_blocks();
    }

    /// A function that runs once and returns r0.
    fn function(&mut self) {
        let entry = self.b.current_block().expect("the entry");
        let args: Vec<Value> = self.b.block_params(entry)[1..].to_vec();
        if self.shape == Shape::Tail {
            self.check_cpu();
        }
        self.begin(&args);
        self.blocks();
        self.b.switch_to_block(self.exit);
        let r0 = self.b.block_params(self.exit)[0];
        self.b.ins().return_(&[r0]);
        self.b.seal_all_blocks();
    }

    /// The main function, or those of a chain, in a loop over frames.
    ///
    /// ```text
    /// burst(env, frames, count, verdicts):
    ///     for each frame: ctx = *frame; ...program... exit: *verdict = r0
    /// ```
    fn burst(&mut self) {
        let entry = self.b.current_block().expect("the entry");
        let [_, frames, count, verdicts] = *self.b.block_params(entry) else { unreachable!("four parameters") };
        let (head, done) = (self.b.create_block(), self.b.create_block());
        // One number counts up to zero: the distance from the ends of both arrays.
        let left = self.b.append_block_param(head, I64);
        let bytes = self.b.ins().ishl_imm_s(count, 3);
        let frames_end = self.b.ins().iadd(frames, bytes);
        let verdicts_end = self.b.ins().iadd(verdicts, bytes);
        let start = self.b.ins().ineg(bytes);
        self.b.ins().brif(count, head, &[BlockArg::Value(start)], done, &[]);

        self.b.switch_to_block(head);
        let plain = self.flags(Some(Area::Frames));
        let frame = self.b.ins().iadd(frames_end, left);
        let ctx = self.b.ins().load(I64, plain, frame, 0);
        self.frame = Some((frames, frame));
        self.ctx = Some(ctx);
        let units = self.around.units;
        let named = |u: &Unit<'_>| u.inline && self.around.options.inline_helpers;
        if units.iter().any(|u| u.plan.needs_frame(named(u))) {
            let in_env = self.flags(Some(Area::Env));
            self.b.ins().store(in_env, frame, self.env, offsets::FRAME);
        }
        // One program that chooses no target has it forgotten where it returns REDIRECT.
        if units.iter().any(|u| u.plan.redirects) && !self.forgets_at_exit() {
            let zero = self.b.ins().iconst(ir::types::I32, 0);
            let desc = self.flags(Some(Area::Descriptor));
            self.b.ins().store(desc, zero, ctx, descriptor::REDIRECT);
        }
        if self.around.count_in_variable {
            self.tails = Some(self.b.declare_var(ir::types::I32));
        }
        self.targets = (0..units.len()).map(|n| (n >= self.around.links).then(|| self.b.create_block())).collect();
        if self.around.chained {
            self.chain(ctx);
        } else {
            self.link(ctx, self.exit);
        }

        self.b.switch_to_block(self.exit);
        self.b.set_srcloc(ir::SourceLoc::default());
        let r0 = self.b.block_params(self.exit)[0];
        let verdict = self.b.ins().iadd(verdicts_end, left);
        self.b.ins().store(plain, r0, verdict, 0);
        let left = self.b.ins().iadd_imm_s(left, 8);
        self.b.ins().brif(left, head, &[BlockArg::Value(left)], done, &[]);
        self.b.switch_to_block(done);
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
    }

    /// The current unit's main function, from here to a block that takes r0.
    fn link(&mut self, ctx: Value, exit: ir::Block) {
        if self.unit.plan.tail_calls {
            let zero = self.b.ins().iconst(ir::types::I32, 0);
            match self.tails {
                Some(var) if self.unit.inline => self.b.def_var(var, zero),
                _ => {
                    let in_env = self.flags(Some(Area::Env));
                    self.b.ins().store(in_env, zero, self.env, offsets::TAIL_CALLS);
                }
            }
        }
        let outer = std::mem::replace(&mut self.exit, exit);
        if self.unit.inline {
            self.begin(&[ctx]);
            self.blocks();
        } else {
            let zero = self.b.ins().iconst(I64, 0);
            let f = self.import((space::LOCAL, Callee { unit: self.number, func: 0 }.symbol()), 6);
            let inst = self.b.ins().call(f, &[self.env, ctx, zero, zero, zero, zero]);
            let r0 = self.b.inst_results(inst)[0];
            self.b.ins().jump(exit, &[BlockArg::Value(r0)]);
        }
        let (unit, number) = (self.unit, self.number);
        for (n, target) in self.around.units.iter().enumerate().skip(self.around.links) {
            if target.link == number {
                (self.unit, self.number) = (target, n);
                self.enter_function(&target.plan.funcs[0]);
                self.b.switch_to_block(self.targets[n].expect("made above"));
                self.begin(&[ctx]);
                self.blocks();
            }
        }
        (self.unit, self.number) = (unit, number);
        self.exit = outer;
    }

    /// All units one after the other, each as long as the verdict of the one before chains on. What is stored says which
    /// link decided: see [`crate::Decided`].
    fn chain(&mut self, ctx: Value) {
        let units = &self.around.units[..self.around.links];
        for (n, unit) in units.iter().enumerate() {
            if n > 0 {
                (self.unit, self.number) = (unit, n);
                self.enter_function(&unit.plan.funcs[0]);
            }
            let decided = self.b.create_block();
            self.b.append_block_param(decided, I64);
            self.link(ctx, decided);
            self.b.switch_to_block(decided);
            self.b.set_srcloc(ir::SourceLoc::default());
            let r0 = self.b.block_params(decided)[0];
            let verdict = self.b.ins().ireduce(ir::types::I32, r0);
            let (stop, on) = (self.b.create_block(), self.b.create_block());
            let goes_on = self.chains_on(verdict, unit.chain_on);
            self.b.ins().brif(goes_on, on, &[], stop, &[]);
            self.b.switch_to_block(stop);
            let low = self.b.ins().uextend(I64, verdict);
            let link = self.b.ins().iconst(I64, (n as i64) << 32);
            let told = self.b.ins().bor(low, link);
            self.b.ins().jump(self.exit, &[BlockArg::Value(told)]);
            self.b.switch_to_block(on);
        }
        let end = self.b.ins().iconst(I64, (units.len() as i64) << 32 | i64::from(xway_vm::CHAIN_END));
        self.b.ins().jump(self.exit, &[BlockArg::Value(end)]);
    }

    /// Whether a verdict is one of a mask.
    fn chains_on(&mut self, verdict: Value, mask: u32) -> Value {
        // Nearly always it is one verdict.
        if mask.is_power_of_two() {
            return self.b.ins().icmp_imm_s(IntCC::Equal, verdict, i64::from(mask.trailing_zeros()));
        }
        let known = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, verdict, 32);
        let bits = self.b.ins().iconst(ir::types::I32, i64::from(mask));
        let shifted = self.b.ins().ushr(bits, verdict);
        let one = self.b.ins().iconst(ir::types::I32, 1);
        let set = self.b.ins().band(shifted, one);
        let set = self.b.ins().ireduce(ir::types::I8, set);
        self.b.ins().band(known, set)
    }

    /// Sets registers and stack as they are when the function starts, and goes to its first block.
    fn begin(&mut self, args: &[Value]) {
        // What no verified program reads: a definition keeps it from being carried around the loop.
        let zero = self.b.ins().iconst(I64, 0);
        for (n, var) in self.regs.iter().enumerate() {
            let value = if (1..=5).contains(&n) { args.get(n - 1).copied().unwrap_or(zero) } else { zero };
            self.b.def_var(*var, value);
        }
        if let Some(turns) = self.turns {
            let all = if self.shape.is_scout() { TURNS_MAX } else { MAY_GOTO_MAX };
            let all = self.b.ins().iconst(I64, all);
            self.b.def_var(turns, all);
        }
        self.begin_stack(zero, self.plan.zeroed);
        self.b.ins().jump(self.blocks[0], &[]);
    }

    /// The stack as it is when a function starts.
    fn begin_stack(&mut self, zero: Value, zeroed: u64) {
        self.begin_slots(zero);
        let stack = self.flags(Some(Area::Stack));
        for n in (0..64).filter(|n| zeroed >> n & 1 != 0) {
            self.b.ins().store(stack, zero, self.fp, -8 * (n + 1));
        }
    }

    /// Turns to a block to which all ways have been made: what a variable is there is found at once, and needs no parameter.
    fn open(&mut self, block: ir::Block) {
        self.b.switch_to_block(block);
        self.b.seal_block(block);
    }

    fn blocks(&mut self) {
        let plan = self.plan;
        let mut gone_back_to = vec![false; plan.blocks.len()];
        for (from, block) in plan.blocks.iter().enumerate() {
            block.end.successors().filter(|to| *to <= from).for_each(|to| gone_back_to[to] = true);
        }
        for (n, block) in plan.blocks.iter().enumerate() {
            match gone_back_to[n] {
                true => self.b.switch_to_block(self.blocks[n]),
                false => self.open(self.blocks[n]),
            }
            self.words.clear();
            self.turn_to_function_of(n);
            self.enter_bounds(n);
            let checked = self.checked_lookup(block);
            let room = self.checked_room(n);
            // What stands between a call and the check goes with each of its ways.
            let ops = match (&checked, room) {
                (Some((_, check)), _) => &block.ops[..check.at],
                (None, Some(asked)) => &block.ops[..block.ops.len() - asked.between.len()],
                (None, None) => &block.ops[..],
            };
            for (n, op) in ops.iter().enumerate() {
                self.origin(op.at);
                self.after_room = room.filter(|_| n + 1 == ops.len());
                self.op(&op.kind, op.at);
                self.forget_bounds(&op.kind);
            }
            if self.after_room.take().is_some() {
                continue;
            }
            self.leave_bounds(n);
            if let Some((call, check)) = checked {
                self.origin(block.ops[check.at].at);
                self.inline_checked_lookup(call, &check);
                continue;
            }
            self.origin(block.end_at);
            self.end(&block.end);
        }
    }

    /// Operations that stand where they are and end no block.
    fn ops(&mut self, ops: &'a [Op]) {
        for op in ops {
            self.origin(op.at);
            self.op(&op.kind, op.at);
        }
    }

    /// What follows comes from this instruction.
    fn origin(&mut self, insn: usize) {
        self.b.set_srcloc(link::Origin { unit: self.number, insn }.loc());
    }

    fn end(&mut self, end: &End) {
        match *end {
            End::Jump(to) => {
                self.b.ins().jump(self.blocks[to], &[]);
            }
            End::Branch { width, cond, dst, src, taken, fall } => {
                let yes = self.condition(width, cond, dst, src);
                self.b.ins().brif(yes, self.blocks[taken], &[], self.blocks[fall], &[]);
            }
            End::MayGoto { out, fall } => {
                let turns = self.turns.expect("declared for functions with may_goto");
                let left = self.b.use_var(turns);
                let on = self.b.create_block();
                self.b.ins().brif(left, on, &[], self.blocks[out], &[]);
                // Where none are left none are taken: the next loop has none either.
                self.open(on);
                let less = self.b.ins().iadd_imm_s(left, -1);
                self.b.def_var(turns, less);
                self.b.ins().jump(self.blocks[fall], &[]);
            }
            End::Exit => {
                let r0 = self.reg(Reg::R0);
                if self.shape == Shape::Burst && !self.is_copy && self.forgets_at_exit() {
                    self.forget_target(r0);
                }
                self.b.ins().jump(self.exit, &[BlockArg::Value(r0)]);
            }
            End::Unreachable => {
                // The proof says that no run comes here. ABORTED is what it gets if one does.
                let zero = self.b.ins().iconst(I64, 0);
                self.b.ins().jump(self.exit, &[BlockArg::Value(zero)]);
            }
        }
    }

    /// Whether the burst function forgets a frame's old redirect target at the end of the program instead of in front of it.
    fn forgets_at_exit(&self) -> bool {
        matches!(self.around.units, [only] if only.plan.redirects_by_verdict && !self.around.chained)
    }

    /// Forgets the frame's redirect target when the verdict is REDIRECT.
    fn forget_target(&mut self, r0: Value) {
        const REDIRECT: i64 = 4;
        let Some(ctx) = self.ctx else { return };
        let verdict = self.b.ins().ireduce(ir::types::I32, r0);
        if crate::lanes::upper_bound(self.b.func, verdict) < REDIRECT as u64 {
            return;
        }
        let (forget, on) = (self.b.create_block(), self.b.create_block());
        let is = self.b.ins().icmp_imm_s(IntCC::Equal, verdict, REDIRECT);
        self.b.ins().brif(is, forget, &[], on, &[]);
        self.b.set_cold_block(forget);
        self.b.switch_to_block(forget);
        let zero = self.b.ins().iconst(ir::types::I32, 0);
        let desc = self.flags(Some(Area::Descriptor));
        self.b.ins().store(desc, zero, ctx, descriptor::REDIRECT);
        self.b.ins().jump(on, &[]);
        self.b.switch_to_block(on);
    }

    fn condition(&mut self, width: Width, cond: Cond, dst: Reg, src: Operand) -> Value {
        let a = self.narrow(dst, width);
        let b = self.operand(src, width);
        let cc = match cond {
            Cond::Set => {
                let both = self.b.ins().band(a, b);
                return self.b.ins().icmp_imm_s(IntCC::NotEqual, both, 0);
            }
            Cond::Eq => IntCC::Equal,
            Cond::Ne => IntCC::NotEqual,
            Cond::Gt => IntCC::UnsignedGreaterThan,
            Cond::Ge => IntCC::UnsignedGreaterThanOrEqual,
            Cond::Lt => IntCC::UnsignedLessThan,
            Cond::Le => IntCC::UnsignedLessThanOrEqual,
            Cond::SGt => IntCC::SignedGreaterThan,
            Cond::SGe => IntCC::SignedGreaterThanOrEqual,
            Cond::SLt => IntCC::SignedLessThan,
            Cond::SLe => IntCC::SignedLessThanOrEqual,
        };
        self.b.ins().icmp(cc, a, b)
    }

    // ---- registers ----

    fn reg(&mut self, r: Reg) -> Value {
        match self.regs.get(r.index()) {
            Some(var) => self.b.use_var(*var),
            None => self.fp,
        }
    }

    fn set(&mut self, r: Reg, value: Value) {
        if let Some(var) = self.regs.get(r.index()) {
            self.b.def_var(*var, value);
        }
    }

    /// A register at an operation's width.
    fn narrow(&mut self, r: Reg, width: Width) -> Value {
        let v = self.reg(r);
        if width == Width::W32 { self.b.ins().ireduce(ir::types::I32, v) } else { v }
    }

    /// Sets a register from a value of an operation's width.
    fn set_wide(&mut self, r: Reg, width: Width, v: Value) {
        let v = if width == Width::W32 { self.b.ins().uextend(I64, v) } else { v };
        self.set(r, v);
    }

    fn operand(&mut self, src: Operand, width: Width) -> Value {
        match src {
            Operand::Reg(r) => self.narrow(r, width),
            Operand::Imm(i) => self.constant(i, width),
        }
    }

    fn constant(&mut self, i: i32, width: Width) -> Value {
        if width == Width::W32 {
            // Constants of a type must not have bits above it.
            self.b.ins().iconst(ir::types::I32, i64::from(i as u32))
        } else {
            self.b.ins().iconst(I64, i64::from(i))
        }
    }

    /// The reference to a function of this name space.
    fn import(&mut self, key: (u32, u32), params: usize) -> FuncRef {
        self.import_as(key, params, self.around.isa.default_call_conv())
    }

    fn import_as(&mut self, key: (u32, u32), params: usize, conv: CallConv) -> FuncRef {
        if let Some((_, f)) = self.imports.iter().find(|(k, _)| *k == key) {
            return *f;
        }
        // The convention that leaves all registers alone has none for a result.
        let signature = self.b.import_signature(signature(conv, params, conv != CallConv::PreserveAll));
        let name = self.b.func.declare_imported_user_function(UserExternalName { namespace: key.0, index: key.1 });
        let f = self.b.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            // On x86-64 helpers too are called by their distance, which `link.rs` makes sure of.
            colocated: key.0 != space::ENTRY || self.around.isa.name() == "x64",
            patchable: false,
        });
        self.imports.push((key, f));
        f
    }

    /// Flags of an access that cannot fault, to this kind of memory.
    fn flags(&mut self, area: Option<Area>) -> MemFlagsData {
        let flags = MemFlagsData::new().with_notrap().with_endianness(Endianness::Little);
        let Some(area) = area.filter(|_| self.around.options.alias) else { return flags };
        let region = self.b.func.dfg.alias_regions.insert(area.region());
        flags.with_alias_region(Some(region))
    }
}
