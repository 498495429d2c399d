//! Functions by chance, run before the pass and behind it.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, AliasRegion, AliasRegionData, BlockArg, Function, InstBuilder, MemFlagsData, Signature, types,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig, lookup_by_name};
use cranelift_codegen::settings;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use xway_testkit::Rng;

use super::*;

/// Bytes behind each of the two addresses that a function gets.
const AREA: u64 = 64;
const AREAS: [u64; 2] = [0x1_0000, 0x2_0000];
/// Bytes behind those of the second one that nothing is loaded from.
const OUT: u64 = 512;

/// What a function gives, and what it leaves in memory.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    gives: u64,
    memory: [[u8; (AREA + OUT) as usize]; 2],
}

/// Runs a function of what [`Maker`] makes.
fn outcome(func: &Function, args: [u64; 4]) -> Outcome {
    let mut values: FxHashMap<Value, u64> = FxHashMap::default();
    let mut memory = [[0; (AREA + OUT) as usize]; 2];
    for (n, byte) in memory.iter_mut().flatten().enumerate() {
        *byte = (n as u8).wrapping_mul(37) ^ 0x5a;
    }
    let place = |at: u64| (usize::from(at >= AREAS[1]), (at & 0xffff) as usize);
    let mut block = func.layout.entry_block().expect("an entry");
    let mut handed: Vec<u64> = args.to_vec();
    for _ in 0..10_000 {
        for (param, v) in func.dfg.block_params(block).iter().zip(&handed) {
            values.insert(*param, *v);
        }
        for inst in func.layout.block_insts(block) {
            let data = func.dfg.insts[inst];
            let of = |v: Value| *values.get(&v).unwrap_or_else(|| panic!("{v} is used where it is not\n{func}"));
            let goes = |call: ir::BlockCall| {
                let args = call.args(&func.dfg.value_lists).map(|arg| match arg {
                    BlockArg::Value(v) => of(v),
                    other => panic!("{other:?}"),
                });
                (call.block(&func.dfg.value_lists), args.collect::<Vec<u64>>())
            };
            let ty = func.dfg.inst_results(inst).first().map_or(types::I64, |v| func.dfg.value_type(*v));
            let v = match data {
                InstructionData::Jump { destination, .. } => {
                    (block, handed) = goes(destination);
                    break;
                }
                InstructionData::Brif { arg, blocks, .. } => {
                    (block, handed) = goes(blocks[usize::from(of(arg) == 0)]);
                    break;
                }
                InstructionData::MultiAry { opcode: Opcode::Return, .. } => {
                    return Outcome { gives: of(func.dfg.inst_args(inst)[0]), memory };
                }
                InstructionData::NullAry { opcode: Opcode::SequencePoint } => continue,
                InstructionData::Store { opcode, args: [v, base], offset, .. } => {
                    let (area, from) = place(of(base).wrapping_add_signed(i64::from(i32::from(offset))));
                    let len = match opcode {
                        Opcode::Istore8 => 1,
                        Opcode::Istore32 => 4,
                        _ => func.dfg.value_type(v).bytes() as usize,
                    };
                    memory[area][from..from + len].copy_from_slice(&of(v).to_le_bytes()[..len]);
                    continue;
                }
                InstructionData::Load { opcode, arg, offset, .. } => {
                    let (area, from) = place(of(arg).wrapping_add_signed(i64::from(i32::from(offset))));
                    let len = match opcode {
                        Opcode::Uload8 => 1,
                        Opcode::Uload32 => 4,
                        _ => ty.bytes() as usize,
                    };
                    let mut bytes = [0; 8];
                    bytes[..len].copy_from_slice(&memory[area][from..from + len]);
                    u64::from_le_bytes(bytes)
                }
                InstructionData::UnaryImm { imm, .. } => imm.bits() as u64,
                InstructionData::Unary { opcode, arg } => {
                    unary(opcode, of(arg), func.dfg.value_type(arg).bits(), ty.bits())
                }
                InstructionData::Binary { opcode, args: [a, b] } => binary(opcode, of(a), of(b), ty.bits()),
                InstructionData::IntCompare { cond, args: [a, b], .. } => {
                    u64::from(compare(cond, of(a), of(b), func.dfg.value_type(a).bits()))
                }
                InstructionData::Ternary { args: [by, yes, no], .. } => {
                    if of(by) != 0 {
                        of(yes)
                    } else {
                        of(no)
                    }
                }
                other => panic!("{other:?}"),
            };
            values.insert(func.dfg.first_result(inst), cut(v, ty.bits()));
        }
    }
    panic!("it does not end\n{func}");
}

fn cut(v: u64, bits: u32) -> u64 {
    if bits >= 64 { v } else { v % (1 << bits) }
}

/// With the highest bit of so many in all above it.
fn extended(v: u64, bits: u32) -> i64 {
    if bits < 64 && v >= 1 << (bits - 1) { v.wrapping_sub(1 << bits) as i64 } else { v as i64 }
}

fn unary(opcode: Opcode, v: u64, from: u32, to: u32) -> u64 {
    match opcode {
        Opcode::Uextend | Opcode::Ireduce => v,
        Opcode::Sextend => extended(v, from) as u64,
        Opcode::Ineg => 0u64.wrapping_sub(v),
        Opcode::Bnot => u64::MAX - v,
        Opcode::Bswap => (0..to / 8).fold(0, |all, n| all << 8 | v >> (8 * n) & 0xff),
        other => panic!("{other}"),
    }
}

fn binary(opcode: Opcode, a: u64, b: u64, bits: u32) -> u64 {
    let by = b % u64::from(bits);
    let times = |v: u64, n: u64| (0..n).fold(v, |v, _| v.wrapping_add(v));
    match opcode {
        Opcode::Iadd => a.wrapping_add(b),
        Opcode::Isub => a.wrapping_add(b.wrapping_neg()),
        Opcode::Imul => (u128::from(a) * u128::from(b)) as u64,
        Opcode::Band => a & b,
        Opcode::Bor => a | b,
        Opcode::Bxor => a ^ b,
        Opcode::Ishl => times(a, by),
        Opcode::Ushr => (0..by).fold(a, |v, _| v / 2),
        Opcode::Sshr => (0..by).fold(extended(a, bits), |v, _| v.div_euclid(2)) as u64,
        Opcode::Rotl => (0..by).fold(a, |v, _| cut(v.wrapping_add(v), bits) + v / (1 << (bits - 1))),
        other => panic!("{other}"),
    }
}

fn compare(cond: IntCC, a: u64, b: u64, bits: u32) -> bool {
    let (x, y) = (extended(a, bits), extended(b, bits));
    match cond {
        IntCC::Equal => a == b,
        IntCC::NotEqual => a != b,
        IntCC::UnsignedLessThan => a < b,
        IntCC::UnsignedLessThanOrEqual => a <= b,
        IntCC::UnsignedGreaterThan => a > b,
        IntCC::UnsignedGreaterThanOrEqual => a >= b,
        IntCC::SignedLessThan => x < y,
        IntCC::SignedLessThanOrEqual => x <= y,
        IntCC::SignedGreaterThan => x > y,
        IntCC::SignedGreaterThanOrEqual => x >= y,
    }
}

/// Makes functions of what programs are made of.
struct Maker<'a, 'b> {
    b: FunctionBuilder<'a>,
    rng: &'b mut Rng,
    /// The kinds of memory of both areas, and of what nothing is loaded from.
    regions: [AliasRegion; 3],
    bases: [Value; 2],
    /// Numbers of 64 bits that are there.
    values: Vec<Value>,
    /// Operands of the last operation, if they are there.
    last: Option<(Type, Value, Value)>,
    loads: u64,
    /// Which accesses say what kind of memory they are to: all, some, or those that write.
    says: u64,
}

impl Maker<'_, '_> {
    fn value(&mut self) -> Value {
        // The last ones are what is worth asking for.
        let last = self.values.len();
        let from = if self.rng.one_in(3) { 0 } else { last.saturating_sub(6) };
        self.values[from + self.rng.below((last - from) as u64) as usize]
    }

    /// Where only so many numbers are there.
    fn leave(&mut self, count: usize) {
        self.values.truncate(count);
        self.last = None;
    }

    fn number(&mut self, ty: Type) -> Value {
        const NUMBERS: [i64; 14] = [0, 0, 1, 2, 3, 5, 8, 16, 32, 48, 0xff, 0xffff, -1, i64::MIN];
        let n = NUMBERS[self.rng.below(14) as usize];
        self.b.ins().iconst(ty, if ty == types::I64 { n } else { n & ((1 << ty.bits()) - 1) })
    }

    /// An operation that is made of numbers of one width, as one of 64 bits.
    fn operation(&mut self) {
        let ty = [types::I64, types::I64, types::I64, types::I32, types::I16, types::I8][self.rng.below(6) as usize];
        let operand = |me: &mut Self| {
            if me.rng.one_in(3) {
                return me.number(ty);
            }
            let v = me.value();
            if ty == types::I64 { v } else { me.b.ins().ireduce(ty, v) }
        };
        let (x, y) = (operand(self), operand(self));
        // Often the same once more, or the other way around.
        let (ty, x, y) = match self.last {
            Some((ty, x, y)) if self.rng.one_in(4) => (ty, y, x),
            Some((ty, x, y)) if self.rng.one_in(4) => (ty, x, y),
            _ => (ty, x, y),
        };
        self.last = Some((ty, x, y));
        let v = match self.rng.below(17) {
            0 | 16 => self.b.ins().isub(x, y),
            1 => self.b.ins().imul(x, y),
            2 => self.b.ins().band(x, y),
            3 => self.b.ins().bor(x, y),
            4 => self.b.ins().bxor(x, y),
            5 => self.b.ins().ishl(x, y),
            6 => self.b.ins().ushr(x, y),
            7 => self.b.ins().sshr(x, y),
            8 => self.b.ins().rotl(x, y),
            9 => self.b.ins().bnot(x),
            10 => self.b.ins().ineg(x),
            11 if ty != types::I8 => self.b.ins().bswap(x),
            12 => {
                let by = self.condition();
                self.b.ins().select(by, x, y)
            }
            13 => {
                let up = self.b.ins().ishl(x, y);
                if self.rng.one_in(2) { self.b.ins().ushr(up, y) } else { self.b.ins().sshr(up, y) }
            }
            14 => {
                let (m, n) = (self.number(ty), self.number(ty));
                let op = |me: &mut Self, op, x, n| match op {
                    0 => me.b.ins().ishl(x, n),
                    1 => me.b.ins().ushr(x, n),
                    2 => me.b.ins().iadd(x, n),
                    3 => me.b.ins().band(x, n),
                    4 => me.b.ins().bor(x, n),
                    5 => me.b.ins().bxor(n, x),
                    _ => me.b.ins().isub(x, n),
                };
                let one = self.rng.below(7);
                let two = if self.rng.one_in(3) { self.rng.below(7) } else { one };
                let v = op(self, one, x, m);
                op(self, two, v, n)
            }
            _ => self.b.ins().iadd(x, y),
        };
        let v = match (ty == types::I64, self.rng.one_in(2)) {
            (true, _) => v,
            (_, true) => self.b.ins().uextend(types::I64, v),
            _ => self.b.ins().sextend(types::I64, v),
        };
        self.values.push(v);
    }

    fn condition(&mut self) -> Value {
        let cond = IntCC::all()[self.rng.below(10) as usize];
        let (a, b) = (self.value(), if self.rng.one_in(2) { self.number(types::I64) } else { self.value() });
        let v = self.b.ins().icmp(cond, a, b);
        if !self.rng.one_in(6) {
            return v;
        }
        let cond = if self.rng.one_in(2) { IntCC::Equal } else { IntCC::NotEqual };
        let zero = self.b.ins().iconst(types::I8, 0);
        self.b.ins().icmp(cond, v, zero)
    }

    fn access(&mut self) {
        let area = self.rng.below(2) as usize;
        let writes = self.rng.one_in(3);
        // Some say nothing about themselves.
        let says = match self.says {
            0 => true,
            1 => self.rng.one_in(2),
            _ => writes,
        };
        let flags = MemFlagsData::trusted().with_alias_region(says.then_some(self.regions[area]));
        let (mut base, off) = (self.bases[area], 4 * self.rng.below(2) as i32);
        if self.rng.one_in(5) {
            let by = self.b.ins().iconst(types::I64, 4 * self.rng.below(3) as i64);
            base = self.b.ins().iadd(base, by);
        }
        if writes {
            let v = self.value();
            match self.rng.below(3) {
                0 => self.b.ins().istore8(flags, v, base, off),
                1 => self.b.ins().istore32(flags, v, base, off),
                _ => self.b.ins().store(flags, v, base, off),
            };
            return;
        }
        let v = match self.rng.below(3) {
            0 => self.b.ins().uload8(types::I64, flags, base, off),
            1 => self.b.ins().uload32(flags, base, off),
            _ => self.b.ins().load(types::I64, flags, base, off),
        };
        self.values.push(v);
        self.loads += 1;
        // What was loaded is seen.
        if self.loads < OUT / 8 {
            let flags = MemFlagsData::trusted().with_alias_region(Some(self.regions[2]));
            self.b.ins().store(flags, v, self.bases[1], AREA as i32 + 8 * self.loads as i32);
        }
    }

    /// Some of everything, with branches and loops in it.
    fn some(&mut self, depth: u32) {
        for _ in 0..3 + self.rng.below(8) {
            match self.rng.below(24) {
                0 | 1 if depth > 0 => self.branch(depth - 1),
                2 | 3 if depth > 0 => self.turns(depth - 1),
                4 => {
                    self.b.ins().sequence_point();
                }
                5..12 => self.access(),
                _ => self.operation(),
            }
        }
    }

    fn branch(&mut self, depth: u32) {
        let condition = self.condition();
        let (yes, no, on) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.append_block_param(on, types::I64);
        self.b.ins().brif(condition, yes, &[], no, &[]);
        let here = self.values.len();
        for way in [yes, no] {
            self.b.switch_to_block(way);
            if !self.rng.one_in(3) {
                self.some(depth);
            }
            let v = if self.rng.one_in(3) { self.number(types::I64) } else { self.value() };
            self.b.ins().jump(on, &[v.into()]);
            self.leave(here);
        }
        self.b.switch_to_block(on);
        let v = self.b.block_params(on)[0];
        self.values.push(v);
    }

    fn turns(&mut self, depth: u32) {
        let (head, on) = (self.b.create_block(), self.b.create_block());
        let [count, carried] = [0, 1].map(|_| self.b.append_block_param(head, types::I64));
        let zero = self.b.ins().iconst(types::I64, 0);
        let v = self.value();
        self.b.ins().jump(head, &[zero.into(), v.into()]);
        self.b.switch_to_block(head);
        let here = self.values.len();
        self.values.extend([count, carried]);
        self.some(depth);
        let next = self.b.ins().iadd_imm_s(count, 1);
        let last = 1 + self.rng.below(3) as i64;
        let again = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, next, last);
        let v = self.value();
        self.b.ins().brif(again, head, &[next.into(), v.into()], on, &[]);
        self.b.switch_to_block(on);
        // What the last turn has made is there.
        let keep = here + self.rng.below((self.values.len() - here) as u64 + 1) as usize;
        self.leave(keep);
    }
}

fn made(rng: &mut Rng, config: TargetFrontendConfig) -> Function {
    let mut sig = Signature::new(CallConv::SystemV);
    sig.params.extend([AbiParam::new(types::I64); 4]);
    sig.returns.push(AbiParam::new(types::I64));
    let mut func = Function::with_name_signature(ir::UserFuncName::default(), sig);
    let mut builder = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut func, &mut builder);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let regions = [4, 5, 6]
        .map(|user_id| b.func.dfg.alias_regions.insert(AliasRegionData { user_id, description: "an area".into() }));
    let params = b.block_params(entry).to_vec();
    let says = rng.below(3);
    let mut maker = Maker {
        b,
        rng,
        regions,
        bases: [params[0], params[1]],
        values: params[2..].to_vec(),
        last: None,
        loads: 0,
        says,
    };
    // A loop right behind the first block, as burst functions have it, or none.
    if maker.rng.one_in(2) {
        maker.turns(2);
    } else {
        maker.some(3);
    }
    let mut all = maker.value();
    for _ in 0..4 {
        let v = maker.value();
        let turned = maker.b.ins().rotl_imm_u(all, 7);
        all = maker.b.ins().bxor(turned, v);
    }
    maker.b.ins().return_(&[all]);
    maker.b.seal_all_blocks();
    maker.b.finalize(config);
    func
}

/// `XWAY_SEED` for others.
#[test]
fn functions_give_the_same_behind_it() {
    let seed = std::env::var("XWAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let (mut rng, mut fewer) = (Rng::new(seed), 0);
    let flags = settings::Flags::new(settings::builder());
    // No code is made for it.
    let isa = lookup_by_name("aarch64").map(|builder| builder.finish(flags.clone())).expect("known").expect("settings");
    for n in 0..6_000 {
        let func = made(&mut rng, isa.frontend_config());
        let mut context = Context::for_function(func.clone());
        context.flowgraph();
        context.func.dfg.resolve_all_aliases();
        let edges = run(&mut context).expect("nothing that is Cranelift's");
        if edges == Edges::Gone {
            context.flowgraph();
        }
        cranelift_codegen::verify_function(&context.func, &flags)
            .unwrap_or_else(|e| panic!("seed {seed}, {n}: {e}\n{func}\n{}", context.func));
        for _ in 0..6 {
            let args = [AREAS[0], AREAS[1], rng.u64() >> (rng.below(64) as u32), rng.below(4)];
            let (before, behind) = (outcome(&func, args), outcome(&context.func, args));
            assert_eq!(before, behind, "seed {seed}, {n}: {args:x?}\n{func}\n{}", context.func);
        }
        let insts = |func: &Function| func.layout.blocks().flat_map(|b| func.layout.block_insts(b)).count();
        fewer += usize::from(insts(&context.func) < insts(&func));
    }
    assert!(fewer > 4_000, "{fewer} have become shorter");
}

/// What is made in front of a loop stays there, and what each turn makes alike goes there.
#[test]
fn no_turn_of_a_loop_makes_what_stays_the_same() {
    let mut func = Function::new();
    let [entry, head, on] = [0; 3].map(|_| func.dfg.make_block());
    let [a, b] = [0; 2].map(|_| func.dfg.append_block_param(entry, types::I64));
    let count = func.dfg.append_block_param(head, types::I64);
    let mut at = FuncCursor::new(&mut func);
    at.insert_block(entry);
    let (in_front, first) = (at.ins().umulhi(a, b), at.ins().imul(a, b));
    at.ins().jump(head, &[first.into()]);
    at.insert_block(head);
    let alike = at.ins().isub(a, b);
    let sum = at.ins().bxor(alike, in_front);
    let next = at.ins().isub(count, sum);
    at.ins().brif(next, head, &[next.into()], on, &[]);
    at.insert_block(on);
    at.ins().return_(&[]);
    let mut context = Context::for_function(func);
    context.flowgraph();
    assert_eq!(run(&mut context), Some(Edges::AsTheyWere));
    let block = |v: Value| context.func.layout.inst_block(context.func.dfg.value_def(v).unwrap_inst());
    assert_eq!([in_front, alike, sum, next].map(block), [entry, entry, entry, head].map(Some), "{}", context.func);
}

/// Others may write meanwhile: what was checked of a second load is not true of the first.
#[test]
fn a_load_that_is_made_again_is_another_number() {
    let mut func = Function::new();
    let [entry, one, both, two] = [0; 4].map(|_| func.dfg.make_block());
    let base = func.dfg.append_block_param(entry, types::I64);
    let mut at = FuncCursor::new(&mut func);
    let load = |at: &mut FuncCursor<'_>, block: Block| {
        at.insert_block(block);
        at.ins().load(types::I64, MemFlagsData::trusted(), base, 0)
    };
    at.insert_block(entry);
    at.ins().brif(base, one, &[], both, &[]);
    let first = load(&mut at, one);
    let of_first = at.ins().bswap(first);
    at.ins().brif(of_first, two, &[], both, &[]);
    // Not behind the first one, and looked at before what is.
    load(&mut at, both);
    at.ins().return_(&[]);
    let second = load(&mut at, two);
    let of_second = at.ins().bswap(second);
    let (sum, both) = (at.ins().iadd(of_first, of_second), at.ins().return_(&[]));
    at = at.at_inst(both);
    at.ins().store(MemFlagsData::trusted(), sum, base, 8);
    let mut context = Context::for_function(func);
    context.flowgraph();
    let order: Vec<Block> = context.domtree.cfg_rpo().copied().collect();
    assert_eq!(order.last(), Some(&two), "else the first is not forgotten");
    assert_eq!(run(&mut context), Some(Edges::AsTheyWere));
    let made = |v: Value| context.func.layout.inst_block(context.func.dfg.value_def(v).unwrap_inst());
    assert_eq!([first, of_first, second, of_second].map(made), [one, one, two, two].map(Some), "{}", context.func);
}
