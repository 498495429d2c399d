//! Programs that make an analysis work: many paths, many states, deep loops, wide joins, a million instructions.
//!
//! Each is small text that is unrolled here. Some are safe and some are not; what matters is that an answer comes within
//! the limits on work and memory. `tests/hard.rs` holds every one to them, and `xway bench verify` shows how long each
//! takes, beside the running kernel.

use std::fmt::Write;
use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding};
use xway_object::{KfuncRef, MapDef, Object, Program, ProgramKind, Subprog};

/// A program with its maps.
#[derive(Clone, Debug)]
pub struct Hard {
    /// In tables.
    pub name: &'static str,
    /// What is hard about it.
    pub why: &'static str,
    /// The object that holds it alone.
    pub object: Object,
}

/// Loads data and data_end into r7 and r8; 64 bytes are there.
const PACKET: &str = "r6 = r1\nr7 = *(u32 *)(r6 +0)\nr8 = *(u32 *)(r6 +4)\nr2 = r7\nr2 += 64\n\
                      if r2 <= r8 goto +1\ngotol out\n";
const OUT: &str = "out: r0 = 2\nexit\n";

/// All of them. Takes a second: some have a million instructions.
pub fn inputs() -> Vec<Hard> {
    vec![
        hard("straight line", "a million instructions in a row", straight()),
        hard("straight stores", "half a million stores over the whole stack", stores()),
        hard(
            "diamonds",
            "40 open branches that each add another bit to one number, which is then an index",
            diamonds(false),
        ),
        hard("diamonds, spilled", "the same with the number on the stack, and all of the stack in use", diamonds(true)),
        hard(
            "independent bits",
            "30 registers' worth of flags in 30 stack slots, all of them read at the end",
            flags(),
        ),
        hard("wide join", "4,000 ways into a tail of 2,000 instructions, each with another constant", wide_join()),
        hard("switch in a loop", "256 cases in each of 256 turns", switch_loop()),
        hard("long loop", "a loop of a million turns", format!("r1 = 0\nl: r1 += 1\nif r1 < 1000000 goto l\n{OUT}")),
        hard("nested loops", "six loops of ten turns in each other with sums that differ", nested(6, 10)),
        hard("nested loops of a hundred", "three loops of a hundred turns in each other", nested(3, 100)),
        hard("loops in a row", "64 loops over the packet, one after the other", loops_in_a_row()),
        hard("calls of calls", "ten calls of a function that makes ten calls, six deep", calls(6, 10)),
        hard("callbacks of callbacks", "bpf_loop in bpf_loop, six deep, each with branches on the stack", callbacks(6)),
        hard("callback with many branches", "a callback that keeps 12 flags on its caller's stack", callback_flags(12)),
        hard("callbacks in a row", "100 calls of bpf_loop with the same callback", callback_row(100)),
        hard("map walk", "for_each_map_elem with flags on the caller's stack", map_walk(10)),
        hard("iterators", "four iterators in each other, each with branches on the stack", iterators(4)),
        hard("may_goto", "five loops of may_goto in each other", may_gotos(5)),
        hard("linked copies", "copies of one number in every slot, compared 5,000 times", linked()),
        hard("linked copies, 8 deep", "the same with the stacks of eight functions", linked_deep()),
        hard("packet sums", "2,000 sums of packet pointer and number, each checked", sums()),
        hard("open references", "20,000 records that are reserved and never released", references()),
        hard("jump ladder", "200,000 jumps that each go back over one instruction", ladder()),
        hard("many look-ups", "3,000 look-ups, each null or not", lookups()),
        hard("many open branches", "100,000 branches of which the other way is still to come", open_branches()),
        hard("deep frames kept open", "200 open branches under eight functions with full stacks", deep_frames()),
        hard("layers of calls", "six layers of fifty functions, each of which calls all of the next", layers(6, 50)),
        hard(
            "turns under deep frames",
            "a loop of two instructions under eight functions with full stacks",
            deep_turns(),
        ),
        hard("turns with records held", "the same loop while 250 records are held", held_turns()),
        hard("guesses among many calls", "a thousand guesses in a program that calls 10,000 times", guesses(10_000)),
    ]
}

/// Programs that are long for a compiler, and of which each part is seldom alone: see `xway bench compile`.
pub fn large() -> Vec<Hard> {
    let (values, many) = ("180 stack bytes that live through a thousand branches", "the same with three thousand");
    vec![
        hard("stack values", values, stack_values(1000)),
        hard("stack values, three times", many, stack_values(3000)),
        hard("look-ups", "200 look-ups in a hash table, each null or not", hash_lookups(200)),
        hard("look-ups, four times", "800 of them", hash_lookups(800)),
        hard("sums", "6,000 additions and shifts", format!("r0 = 1\n{}exit\n", "r0 += 7\nr0 <<= 1\n".repeat(3000))),
    ]
}

/// So many stores, each behind a branch, to 180 bytes of the stack in turn, whose sum is the verdict.
fn stack_values(branches: usize) -> String {
    let mut text = format!("r9 = *(u32 *)(r1 +12)\n{PACKET}r0 = 0\n");
    (0..180).for_each(|n| writeln!(text, "*(u8 *)(r10 {}) = 0", n - 200).expect("a string"));
    for n in 0..branches {
        let (byte, value, at) = (n % 64, n % 251, (n * 7 % 180) as i32 - 200);
        writeln!(text, "r1 = *(u8 *)(r7 +{byte})\nif r1 != {value} goto +2\nr9 += {n}\n*(u8 *)(r10 {at}) = r9")
            .expect("a string");
    }
    (0..180).for_each(|n| writeln!(text, "r1 = *(u8 *)(r10 {})\nr0 += r1", n - 200).expect("a string"));
    text + "r0 &= 3\nexit\n" + OUT
}

/// So many look-ups with keys from the packet.
fn hash_lookups(count: usize) -> String {
    let mut text = String::from(PACKET);
    for n in 0..count {
        let key = format!("r1 = *(u32 *)(r7 +{})\n*(u64 *)(r10 -8) = r1\nr2 = r10\nr2 += -8\n", n % 60);
        writeln!(
            text,
            "{key}r1 = map[idx:1]\ncall 1\nif r0 == 0 goto +3\nr1 = *(u64 *)(r0 +0)\nr1 += {n}\n*(u64 *)(r0 +0) = r1"
        )
        .expect("a string");
    }
    text + OUT
}

fn hard(name: &'static str, why: &'static str, text: String) -> Hard {
    let insns = xway_isa::assemble(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (btf, main, callback, element) = types();
    let decoded = xway_isa::decode(&insns).unwrap_or_default();
    let mut starts = vec![(0, main)];
    for (pc, insn) in decoded.iter().enumerate() {
        use xway_isa::{CallTarget, Imm64, Insn};
        let at = |rel: i32| (pc as i64 + 1 + i64::from(rel)) as usize;
        match insn {
            Some(Insn::Call(CallTarget::Local(rel))) => starts.push((at(*rel), callback)),
            Some(Insn::LoadImm64 { imm: Imm64::Func(rel), .. }) => {
                starts.push((at(*rel), if name == "map walk" { element } else { callback }));
            }
            _ => {}
        }
    }
    starts.sort_unstable();
    starts.dedup_by_key(|s| s.0);
    let ends = starts.iter().skip(1).map(|s| s.0).chain([insns.len()]);
    let function = |((start, func_id), end): (&(usize, u32), usize)| Subprog {
        name: format!("f{start}"),
        start: *start,
        len: end - start,
        global: *start == 0,
        func_id: *func_id,
    };
    let subprogs = if starts.len() > 1 { starts.iter().zip(ends).map(function).collect() } else { Vec::new() };
    let kfunc = |name: &str| KfuncRef { name: name.to_owned(), func_id: 0, weak: false };
    let program = Program {
        name: "hard".into(),
        section: "xdp".into(),
        kind: ProgramKind::Xdp { frags: false },
        insns,
        subprogs,
        kfuncs: ["bpf_iter_num_new", "bpf_iter_num_next", "bpf_iter_num_destroy"].map(kfunc).to_vec(),
        ..Program::default()
    };
    let map = |name: &str, t, key, value, n| MapDef::new(name, MapSpec::new(t, key, value, n));
    let maps = vec![
        map("array", MapType::Array, 4, 64, 16),
        map("hash", MapType::Hash, 8, 64, 16),
        map("ring", MapType::Ringbuf, 0, 0, 4096),
    ];
    let object = Object {
        programs: vec![program],
        maps,
        btf: Some(Arc::new(btf)),
        license: Some("GPL".into()),
        ..Object::default()
    };
    Hard { name, why, object }
}

/// Types: the program's, those of functions and callbacks of `bpf_loop`, those of `bpf_for_each_map_elem`.
fn types() -> (xway_object::Btf, u32, u32, u32) {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let long = b.int("long", 8, IntEncoding::Signed);
    let number = b.int("unsigned long", 8, IntEncoding::Unsigned);
    let void = b.ptr(0);
    let md = b.structure("xdp_md", 24, &[]);
    let ctx = b.ptr(md);
    let mut func = |name: &str, ret, params: &[(&str, u32)], linkage| {
        let proto = b.prototype(ret, params);
        b.func(name, proto, linkage)
    };
    let main = func("hard", int, &[("ctx", ctx)], FuncLinkage::Global);
    let turn = func("turn", long, &[("i", number), ("ctx", void)], FuncLinkage::Static);
    let element = [("map", void), ("key", void), ("value", void), ("ctx", void)];
    let element = func("element", long, &element, FuncLinkage::Static);
    (b.finish(), main, turn, element)
}

fn straight() -> String {
    format!("r0 = 0\n{}exit\n", "r0 += 3\n".repeat(999_998))
}

fn stores() -> String {
    let mut t = String::from("r0 = 2\nr6 = *(u32 *)(r1 +12)\n");
    for i in 0..499_990 {
        let _ = writeln!(t, "*(u64 *)(r10 -{}) = r6\nr6 += 1", 8 * (i % 64 + 1));
    }
    t + "exit\n"
}

/// Every branch leaves both ways open; the number that they make is an index, so no two states are alike.
fn diamonds(spilled: bool) -> String {
    let mut t = format!("{PACKET}r9 = 0\n");
    if spilled {
        t += &fill(2, 64);
        t += "*(u64 *)(r10 -8) = 0\n";
    }
    for i in 0..40 {
        let _ = writeln!(t, "r1 = *(u8 *)(r7 +{i})\nif r1 == 7 goto d{i}");
        t += if spilled {
            "r9 = *(u64 *)(r10 -8)\nr9 += 3\nr9 *= 2\n*(u64 *)(r10 -8) = r9\n"
        } else {
            "r9 += 3\nr9 *= 2\n"
        };
        let _ = writeln!(t, "d{i}: r0 = 0\nr0 = 1\nr0 = 2\nr0 = 3");
    }
    if spilled {
        t += "r9 = *(u64 *)(r10 -8)\n";
    }
    t + "r9 &= 63\nr7 += r9\nr0 = *(u8 *)(r7 +0)\n" + OUT
}

/// Numbers into the slots `from..=to`, which the checkpoints must then keep.
fn fill(from: usize, to: usize) -> String {
    let mut t = String::from("r1 = *(u32 *)(r6 +12)\n");
    (from..=to).for_each(|i| _ = writeln!(t, "*(u64 *)(r10 -{}) = r1", 8 * i));
    t
}

fn flags() -> String {
    let mut t = String::from(PACKET);
    for i in 0..30 {
        let slot = 8 * (i + 1);
        let _ = writeln!(t, "*(u64 *)(r10 -{slot}) = 0\nr1 = *(u8 *)(r7 +{i})\nif r1 == 7 goto d{i}");
        let _ = writeln!(t, "*(u64 *)(r10 -{slot}) = 1\nd{i}: r0 = 0\nr0 = 1\nr0 = 2\nr0 = 3\nr0 = 4");
    }
    for i in 0..30 {
        let _ = writeln!(t, "r1 = *(u64 *)(r10 -{})\nr2 = r7\nr2 += r1\nr0 = *(u8 *)(r2 +0)", 8 * (i + 1));
    }
    t + OUT
}

fn wide_join() -> String {
    let mut t = format!("{PACKET}r1 = *(u16 *)(r7 +0)\n");
    for i in 0..4000 {
        let _ = writeln!(t, "if r1 != {i} goto n{i}\nr9 = {}\ngoto join\nn{i}: r0 = 0", i % 64);
    }
    t += "r9 = 5\njoin: r0 = 0\n";
    for i in 0..500 {
        let _ = writeln!(t, "r2 = r7\nr2 += r9\nr3 = *(u8 *)(r2 +0)\nif r3 == {i} goto out");
    }
    t + OUT
}

fn switch_loop() -> String {
    let mut t = format!("{PACKET}r9 = 0\nr3 = 0\nloop: r1 = r7\nr1 += r3\nr1 = *(u8 *)(r7 +0)\n");
    for i in 0..256 {
        let _ = writeln!(t, "if r1 != {i} goto n{i}\nr9 += {}\ngoto next\nn{i}: r0 = 0", i * 7 + 1);
    }
    t += "next: r3 += 1\nif r3 < 256 goto loop\nr9 &= 63\nr7 += r9\nr0 = *(u8 *)(r7 +0)\n";
    t + OUT
}

fn nested(depth: usize, turns: u32) -> String {
    let mut t = format!("{PACKET}r9 = 0\n");
    for d in 0..depth {
        let _ = writeln!(t, "*(u64 *)(r10 -{}) = 0\nl{d}: r0 = 0", 8 * (d + 1));
    }
    t += "r1 = *(u8 *)(r7 +3)\nif r1 == 3 goto skip\nr9 += r1\nskip: r9 += 1\n";
    for d in (0..depth).rev() {
        let slot = 8 * (d + 1);
        let _ =
            writeln!(t, "r1 = *(u64 *)(r10 -{slot})\nr1 += 1\n*(u64 *)(r10 -{slot}) = r1\nif r1 < {turns} goto l{d}");
    }
    t + "r9 &= 31\nr7 += r9\nr0 = *(u8 *)(r7 +0)\n" + OUT
}

fn loops_in_a_row() -> String {
    let mut t = String::from(PACKET);
    for i in 0..64 {
        let _ = writeln!(t, "r3 = r7\nr4 = 0\nl{i}: r5 = r3\nr5 += 1\nif r5 > r8 goto e{i}\nr5 = *(u8 *)(r3 +0)");
        let _ = writeln!(t, "if r5 == 0 goto e{i}\nr3 += 1\nr4 += 1\nif r4 < 100 goto l{i}\ne{i}: r0 = 0");
    }
    t + OUT
}

fn calls(depth: usize, times: usize) -> String {
    let mut t = format!("{PACKET}r1 = *(u32 *)(r6 +12)\ncall f0\n{OUT}");
    for d in 0..depth {
        let _ = writeln!(t, "f{d}: r6 = r1\nr7 = 1");
        for i in 0..times {
            let _ = writeln!(t, "r1 = r6\nr1 += {i}");
            if d + 1 < depth {
                let _ = writeln!(t, "call f{}\nr7 += r0", d + 1);
            } else {
                let _ = writeln!(t, "r1 &= 7\nr7 += r1\nif r7 == {i} goto x");
            }
        }
        t += if d + 1 < depth { "r0 = r7\nexit\n" } else { "x: r0 = r7\nexit\n" };
    }
    t
}

/// `bpf_loop` in `bpf_loop`; each body leaves flags on its own stack and hands it on.
fn callbacks(depth: usize) -> String {
    let start = |d: usize| format!("r2 = subprog[cb{d}]\nr1 = 1000\nr3 = r10\nr3 += -32\nr4 = 0\ncall 181\n");
    let frame = "*(u64 *)(r10 -8) = 0\n*(u64 *)(r10 -16) = 0\n*(u64 *)(r10 -24) = 0\n*(u64 *)(r10 -32) = 0\n";
    let mut t = format!("{frame}{}r1 = *(u64 *)(r10 -32)\nr0 = 2\nexit\n", start(0));
    for d in 0..depth {
        let _ = write!(t, "cb{d}: r6 = r1\nr7 = r2\n");
        for i in 0..3 {
            let _ = writeln!(t, "r1 = *(u64 *)(r7 +{})\nif r1 == {} goto c{d}x{i}\nr1 += 1", 8 * i, i + d);
            let _ = writeln!(t, "*(u64 *)(r7 +{}) = r1\nc{d}x{i}: r0 = 0", 8 * i);
        }
        if d + 1 < depth {
            t += frame;
            t += &start(d + 1);
        }
        t += "r0 = 0\nexit\n";
    }
    t
}

fn callback_flags(flags: usize) -> String {
    let mut t = String::new();
    (0..flags).for_each(|i| _ = writeln!(t, "*(u64 *)(r10 -{}) = 0", 8 * (i + 1)));
    let _ = write!(t, "r1 = 100\nr2 = subprog[cb]\nr3 = r10\nr3 += -{}\nr4 = 0\ncall 181\n", 8 * flags);
    // Every flag is relied on behind the loop.
    for i in 0..flags {
        let _ = writeln!(t, "r1 = *(u64 *)(r10 -{})\nif r1 > 1 goto out\nr2 = r10\nr2 += -8\nr2 += r1", 8 * (i + 1));
        t += "r1 = *(u8 *)(r2 +0)\n";
    }
    t += "out: r0 = 2\nexit\ncb: r6 = r1\nr7 = r2\n";
    for i in 0..flags {
        let _ = writeln!(t, "if r6 & {} goto c{i}\n*(u64 *)(r7 +{}) = 1\nc{i}: r0 = 0", 1 << (i % 30), 8 * i);
    }
    t + "r0 = 0\nexit\n"
}

fn callback_row(times: usize) -> String {
    let mut t = String::from("*(u64 *)(r10 -8) = 0\n*(u64 *)(r10 -16) = 0\n");
    for _ in 0..times {
        t += "r1 = 100\nr2 = subprog[cb]\nr3 = r10\nr3 += -16\nr4 = 0\ncall 181\n";
    }
    t += "r0 = 2\nexit\ncb: r3 = *(u64 *)(r2 +0)\nif r3 == 5 goto c\nr3 += r1\n*(u64 *)(r2 +0) = r3\nc: r0 = 0\nexit\n";
    t
}

fn map_walk(flags: usize) -> String {
    let mut t = String::new();
    (0..flags).for_each(|i| _ = writeln!(t, "*(u64 *)(r10 -{}) = 0", 8 * (i + 1)));
    let _ = write!(t, "r1 = map[idx:1]\nr2 = subprog[cb]\nr3 = r10\nr3 += -{}\nr4 = 0\ncall 164\n", 8 * flags);
    t += "r0 = 2\nexit\ncb: r6 = *(u64 *)(r3 +0)\nr7 = r4\n";
    for i in 0..flags {
        let _ = writeln!(t, "if r6 & {} goto c{i}\nr1 = *(u64 *)(r7 +{})\nr1 += 1", 1 << i, 8 * i);
        let _ = writeln!(t, "*(u64 *)(r7 +{}) = r1\nc{i}: r0 = 0", 8 * i);
    }
    t + "r0 = 0\nexit\n"
}

fn iterators(depth: usize) -> String {
    let mut t = format!("{PACKET}r9 = 0\n");
    for d in 0..depth {
        let at = 8 * (d + 1);
        let _ = writeln!(t, "r1 = r10\nr1 += -{at}\nr2 = 0\nr3 = 100\ncall kfunc #0\nn{d}: r1 = r10\nr1 += -{at}");
        let _ = writeln!(t, "call kfunc #1\nif r0 == 0 goto e{d}\nr1 = *(u32 *)(r0 +0)\nif r1 & {} goto s{d}", 1 << d);
        let _ = writeln!(t, "r9 += 1\ns{d}: r9 &= 63");
    }
    t += "r1 = r7\nr1 += r9\nr1 = *(u8 *)(r1 +0)\n";
    for d in (0..depth).rev() {
        let _ = writeln!(t, "goto n{d}\ne{d}: r1 = r10\nr1 += -{}\ncall kfunc #2", 8 * (d + 1));
    }
    t + OUT
}

fn may_gotos(depth: usize) -> String {
    let mut t = format!("{PACKET}r9 = 0\n");
    for d in 0..depth {
        let _ =
            writeln!(t, "l{d}: may_goto e{d}\nr1 = *(u8 *)(r7 +{d})\nif r1 == {d} goto s{d}\nr9 += 1\ns{d}: r9 &= 63");
    }
    t += "r1 = r7\nr1 += r9\nr1 = *(u8 *)(r1 +0)\n";
    for d in (0..depth).rev() {
        let _ = writeln!(t, "goto l{d}\ne{d}: r0 = 0");
    }
    t + OUT
}

fn linked() -> String {
    let mut t = format!("{PACKET}r9 = *(u32 *)(r7 +0)\n");
    (1..=64).for_each(|i| _ = writeln!(t, "*(u64 *)(r10 -{}) = r9", 8 * i));
    for i in 0..5000 {
        let _ = writeln!(t, "if r9 > {} goto out", 1_000_000 - i);
    }
    t + OUT
}

fn linked_deep() -> String {
    let mut t = format!("{PACKET}r1 = *(u32 *)(r7 +0)\ncall f0\n{OUT}");
    for d in 0..7 {
        let _ = writeln!(t, "f{d}: r9 = r1");
        (1..=64).for_each(|i| _ = writeln!(t, "*(u64 *)(r10 -{}) = r9", 8 * i));
        if d < 6 {
            let _ = writeln!(t, "r1 = r9\ncall f{}\nr0 = 0\nexit", d + 1);
        } else {
            (0..5000).for_each(|i| _ = writeln!(t, "if r9 > {} goto x", 1_000_000 - i));
            t += "x: r0 = 0\nexit\n";
        }
    }
    t
}

fn sums() -> String {
    let mut t = String::from(PACKET);
    for i in 0..2000 {
        let _ = writeln!(t, "r1 = *(u8 *)(r7 +{})\nr2 = r7\nr2 += r1\nr3 = r2\nr3 += {}", i % 64, i % 30 + 1);
        let _ = writeln!(t, "if r3 > r8 goto s{i}\nr0 = *(u8 *)(r2 +0)\ns{i}: r0 = 0");
    }
    t + OUT
}

fn references() -> String {
    let mut t = String::from("r6 = r1\n");
    for i in 0..20_000 {
        let _ = writeln!(t, "r1 = map[idx:2]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto n{i}\nn{i}: r9 = 0");
    }
    t + OUT
}

fn ladder() -> String {
    let n = 200_000;
    let mut t = String::from("r6 = 0\ngotol start\n");
    for i in (0..n).rev() {
        let _ =
            writeln!(t, "b{i}: r6 += 1\ngotol {}", if i == n - 1 { "out".to_owned() } else { format!("b{}", i + 1) });
    }
    t + "start: gotol b0\n" + OUT
}

fn lookups() -> String {
    let mut t = String::from("*(u64 *)(r10 -8) = 0\n");
    for i in 0..3000 {
        let _ = writeln!(t, "r2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto n{i}");
        let _ = writeln!(t, "r1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\nn{i}: r0 = 0");
    }
    t + OUT
}

fn open_branches() -> String {
    let mut t = format!("{PACKET}r9 = *(u32 *)(r7 +0)\n");
    for i in 0..100_000 {
        let _ = writeln!(t, "if r9 == {i} goto +1\nr0 = {i}");
    }
    t + OUT
}

/// Every open branch keeps stacks of its own: the deepest function writes into all of them between two branches.
fn deep_frames() -> String {
    let mut t = String::from(PACKET) + &fill(1, 64) + "r1 = r10\nr1 += -512\nr2 = *(u32 *)(r7 +0)\ncall f0\n" + OUT;
    for d in 0..7 {
        let _ = writeln!(t, "f{d}: r9 = r2\nr6 = r1");
        (9..=64).for_each(|i| _ = writeln!(t, "*(u64 *)(r10 -{}) = r9", 8 * i));
        if d < 6 {
            let _ = writeln!(t, "*(u64 *)(r10 -8) = r6\nr1 = r10\nr1 += -512\nr2 = r9\ncall f{}\nr0 = 0\nexit", d + 1);
        } else {
            for i in 0..200 {
                let _ = writeln!(t, "if r9 == {i} goto x\n*(u64 *)(r6 +0) = r9\n*(u64 *)(r10 -16) = {i}");
            }
            t += "x: r0 = 0\nexit\n";
        }
    }
    t
}

/// No call is ever made: what counts is which there are.
fn layers(depth: usize, width: usize) -> String {
    let mut t = String::from("r0 = 0\nif r0 == 0 goto +1\ncall f0_0\nr0 = 2\nexit\n");
    for d in 0..depth {
        for w in 0..if d == 0 { 1 } else { width } {
            let _ = writeln!(t, "f{d}_{w}: r0 = 0");
            if d + 1 < depth {
                (0..width).for_each(|next| _ = writeln!(t, "call f{}_{next}", d + 1));
            }
            t += "r0 = 0\nexit\n";
        }
    }
    t
}

/// A loop whose sum decides a branch in a function that it calls at its end, and then a loop that calls this function again and again.
fn guesses(calls: usize) -> String {
    let mut t = String::from("r9 = r1\n") + &"call 7\n".repeat(calls + 1);
    t += "if r0 == 1 goto second\nr6 = 0\nr7 = 0\nfirst: call 7\nif r0 == 1 goto +1\nr6 += 3\n";
    t += &"r0 = 0\n".repeat(12);
    t += "r7 += 1\nif r7 < 40 goto first\nr1 = r6\ncall f\nr0 = 2\nexit\n";
    t += "second: r7 = 0\nagain: r1 = 0\ncall f\nif r0 == 2 goto +1\nr7 += 1\nif r7 < 1000 goto again\nr0 = 2\nexit\n";
    t + "f: r0 = 0\nif r1 > 7 goto +1\nexit\nr0 = 1\nexit\n"
}

const TURNS: &str = "r6 = 0\nturn: r6 += 1\nif r6 != 100000000 goto turn\nr0 = 0\nexit\n";

/// What lies above the loop is the same in every turn, and a turn must not look at it again.
fn deep_turns() -> String {
    let mut t = String::from("call f0\nr0 = 2\nexit\n");
    for d in 0..7 {
        let _ = writeln!(t, "f{d}: call 7");
        (1..=64).for_each(|i| _ = writeln!(t, "*(u64 *)(r10 -{}) = r0", 8 * i));
        t += &if d < 6 { format!("call f{}\nr0 = 0\nexit\n", d + 1) } else { TURNS.to_owned() };
    }
    t
}

fn held_turns() -> String {
    let record = "r1 = map[idx:2]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\n";
    record.repeat(250) + TURNS + "out: r0 = 0\nexit\n"
}
