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
//! | `lookup` | look-ups in maps without a call |
//! | `slots` | stack bytes that are values |
//! | `call` | helpers, kernel functions, functions of the program, tail calls |

mod alu;
mod call;
mod lookup;
mod memory;
mod slots;

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

use crate::Options;
use crate::calls::Entry;
use crate::env::offsets;
use crate::plan::{End, Func, Kind, Plan};

/// Name spaces of symbols in generated code.
pub(crate) mod space {
    /// Functions of the program, by index.
    pub const LOCAL: u32 = 0;
    /// The main function in the form that tail calls jump to.
    pub const TAIL: u32 = 2;
    /// Entries of helpers, by their place in [`super::Lowered::entries`].
    pub const ENTRY: u32 = 1;
}

/// What a function of the program is compiled to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// `fn(env, frames, count, verdicts)`: the main function over all frames of a burst.
    Burst,
    /// `fn(env, ctx) -> r0`: the main function over one packet.
    Single,
    /// The same for jumps: with the calling convention in which a call in the last place leaves no frame behind. `Single` calls
    /// it.
    Tail,
    /// `fn(env, r1..r5) -> r0`: a function that is called from the program or by a helper.
    Function(usize),
}

/// What lowering needs to know of the surroundings.
pub(crate) struct Surroundings<'a> {
    pub plan: &'a Plan,
    pub maps: &'a [Arc<Map>],
    /// Addresses of data sections' values, by map.
    pub values: &'a [Option<u64>],
    /// Addresses of what stands for the program's functions.
    pub handles: &'a [u64],
    /// CPUs that all per-CPU maps have values for.
    pub cpus: u32,
    pub options: &'a Options,
    pub isa: &'a dyn TargetIsa,
}

/// A function in Cranelift's form, with the entries that it calls.
pub(crate) struct Lowered {
    pub func: ir::Function,
    pub entries: Vec<Entry>,
}

/// Lowers one function.
pub(crate) fn lower(around: &Surroundings<'_>, shape: Shape, scratch: &mut FunctionBuilderContext) -> Lowered {
    let conv = if shape == Shape::Tail { CallConv::Tail } else { around.isa.default_call_conv() };
    let index = if let Shape::Function(i) = shape { i } else { 0 };
    let mut func = ir::Function::with_name_signature(
        UserFuncName::user(space::LOCAL, index as u32),
        signature(
            conv,
            if shape == Shape::Burst {
                4
            } else if matches!(shape, Shape::Single | Shape::Tail) {
                2
            } else {
                6
            },
            shape != Shape::Burst,
        ),
    );
    let plan = &around.plan.funcs[index];
    let mut body = Body::new(around, plan, shape, FunctionBuilder::new(&mut func, scratch));
    match shape {
        Shape::Burst => body.burst(),
        Shape::Single => body.single(),
        Shape::Tail | Shape::Function(_) => body.function(),
    }
    let Body { b, entries, .. } = body;
    b.finalize(around.isa.frontend_config());
    Lowered { func, entries }
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
    plan: &'a Func,
    shape: Shape,
    b: FunctionBuilder<'f>,
    /// r0 to r9.
    regs: [Variable; 10],
    /// Stack bytes that are values, by group.
    slots: Vec<Variable>,
    /// Turns of `may_goto` that are left.
    turns: Option<Variable>,
    /// The worker's environment.
    env: Value,
    /// The frame pointer, r10.
    fp: Value,
    /// Cranelift's blocks, by the plan's.
    blocks: Vec<ir::Block>,
    /// Where `exit` goes, with r0.
    exit: ir::Block,
    entries: Vec<Entry>,
    /// Imported functions: name space, number, reference.
    imports: Vec<((u32, u32), FuncRef)>,
}

/// Turns that `may_goto` grants to each call of a function (Linux: `BPF_MAX_LOOPS`).
const MAY_GOTO_MAX: i64 = 8 * 1024 * 1024;

impl<'a, 'f> Body<'a, 'f> {
    fn new(around: &'a Surroundings<'a>, plan: &'a Func, shape: Shape, mut b: FunctionBuilder<'f>) -> Self {
        let regs = std::array::from_fn(|_| b.declare_var(I64));
        let slots = plan.slots.groups.iter().map(|_| b.declare_var(I64)).collect();
        let turns = plan.may_goto.then(|| b.declare_var(I64));
        let size = plan.stack.max(8);
        let slot = b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, size, 4));
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let env = b.block_params(entry)[0];
        let fp = b.ins().stack_addr(I64, slot, size as i32);
        let blocks = plan.blocks.iter().map(|_| b.create_block()).collect();
        let exit = b.create_block();
        b.append_block_param(exit, I64);
        Body { around, plan, shape, b, regs, slots, turns, env, fp, blocks, exit, entries: vec![], imports: vec![] }
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

    /// The main function in a loop over frames.
    ///
    /// ```text
    /// burst(env, frames, count, verdicts):
    ///     for each frame: ctx = *frame; …program… exit: *verdict = r0
    /// ```
    fn burst(&mut self) {
        let entry = self.b.current_block().expect("the entry");
        let [_, frames, count, verdicts] = *self.b.block_params(entry) else { unreachable!("four parameters") };
        let (head, done) = (self.b.create_block(), self.b.create_block());
        let frame = self.b.append_block_param(head, I64);
        let verdict = self.b.append_block_param(head, I64);
        let bytes = self.b.ins().ishl_imm_s(count, 3);
        let end = self.b.ins().iadd(frames, bytes);
        let some = self.b.ins().icmp_imm_s(IntCC::NotEqual, count, 0);
        self.b.ins().brif(some, head, &[BlockArg::Value(frames), BlockArg::Value(verdicts)], done, &[]);

        self.b.switch_to_block(head);
        let plain = self.flags(Some(Area::Frames));
        let ctx = self.b.ins().load(I64, plain, frame, 0);
        let in_env = self.flags(Some(Area::Env));
        if self.around.plan.needs_frame() {
            self.b.ins().store(in_env, frame, self.env, offsets::FRAME);
        }
        if self.around.plan.tail_calls {
            let zero = self.b.ins().iconst(ir::types::I32, 0);
            self.b.ins().store(in_env, zero, self.env, offsets::TAIL_CALLS);
        }
        if self.around.plan.redirects {
            let zero = self.b.ins().iconst(ir::types::I32, 0);
            let desc = self.flags(Some(Area::Descriptor));
            self.b.ins().store(desc, zero, ctx, descriptor::REDIRECT);
        }
        self.begin(&[ctx]);
        self.blocks();

        self.b.switch_to_block(self.exit);
        let r0 = self.b.block_params(self.exit)[0];
        self.b.ins().store(plain, r0, verdict, 0);
        let frame = self.b.ins().iadd_imm_s(frame, 8);
        let verdict = self.b.ins().iadd_imm_s(verdict, 8);
        let more = self.b.ins().icmp(IntCC::NotEqual, frame, end);
        self.b.ins().brif(more, head, &[BlockArg::Value(frame), BlockArg::Value(verdict)], done, &[]);
        self.b.switch_to_block(done);
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
    }

    /// Sets registers and stack as they are when the function starts, and goes to its first block.
    fn begin(&mut self, args: &[Value]) {
        // What no verified program reads: a definition keeps it from being carried around the loop.
        let zero = self.b.ins().iconst(I64, 0);
        for (n, var) in self.regs.iter().enumerate() {
            let value = if (1..=5).contains(&n) { args.get(n - 1).copied().unwrap_or(zero) } else { zero };
            self.b.def_var(*var, value);
        }
        self.begin_slots(zero);
        if let Some(turns) = self.turns {
            let all = self.b.ins().iconst(I64, MAY_GOTO_MAX);
            self.b.def_var(turns, all);
        }
        let stack = self.flags(Some(Area::Stack));
        for n in (0..64).filter(|n| self.plan.zeroed >> n & 1 != 0) {
            self.b.ins().store(stack, zero, self.fp, -8 * (n + 1));
        }
        self.b.ins().jump(self.blocks[0], &[]);
    }

    fn blocks(&mut self) {
        let plan = self.plan;
        for (n, block) in plan.blocks.iter().enumerate() {
            self.b.switch_to_block(self.blocks[n]);
            let checked = self.checked_lookup(block);
            let (last, ops) = match (checked, block.ops.split_last()) {
                (Some(then), Some((last, ops))) => (Some((then, last)), ops),
                _ => (None, &block.ops[..]),
            };
            for op in ops {
                self.b.set_srcloc(ir::SourceLoc::new(op.at as u32 + 1));
                self.op(&op.kind);
            }
            if let Some((then, op)) = last
                && let Kind::Helper(call) = &op.kind
            {
                self.b.set_srcloc(ir::SourceLoc::new(op.at as u32 + 1));
                self.inline_lookup(call, Some(then));
                continue;
            }
            self.b.set_srcloc(ir::SourceLoc::new(block.end_at as u32 + 1));
            self.end(&block.end);
        }
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
                let less = self.b.ins().iadd_imm_s(left, -1);
                self.b.def_var(turns, less);
                self.b.ins().brif(left, self.blocks[fall], &[], self.blocks[out], &[]);
            }
            End::Exit => {
                let r0 = self.reg(Reg::R0);
                self.b.ins().jump(self.exit, &[BlockArg::Value(r0)]);
            }
            End::Unreachable => {
                // The proof says that no run comes here. ABORTED is what it gets if one does.
                let zero = self.b.ins().iconst(I64, 0);
                self.b.ins().jump(self.exit, &[BlockArg::Value(zero)]);
            }
        }
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
        let signature = self.b.import_signature(signature(conv, params, true));
        let name = self.b.func.declare_imported_user_function(UserExternalName { namespace: key.0, index: key.1 });
        let f = self.b.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: key.0 != space::ENTRY,
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

/// Kinds of memory that never overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Area {
    /// The burst's array of frames and of verdicts.
    Frames,
    Env,
    /// The worker's number in the environment, which never changes.
    Cpu,
    Descriptor,
    /// Packet and metadata.
    Packet,
    /// The stack of this function.
    Stack,
    Record,
    /// Values of the map with this index.
    Values(u32),
}

impl Area {
    fn region(self) -> ir::AliasRegionData {
        let (user_id, description) = match self {
            Area::Frames => (1, "frames".into()),
            Area::Env => (2, "env".into()),
            Area::Descriptor => (3, "descriptor".into()),
            Area::Packet => (4, "packet".into()),
            Area::Stack => (5, "stack".into()),
            Area::Cpu => (7, "cpu".into()),
            Area::Record => (6, "record".into()),
            Area::Values(map) => (16 + map, format!("values of map {map}").into()),
        };
        ir::AliasRegionData { user_id, description }
    }
}
