//! What compiled programs do that single instructions do not show: calls back, tail calls, locks, limits, refusals.

use std::fmt::Write as _;
use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_jit::{Compiled, Options, Refusal, RunEnv, compile, dump};
use xway_maps::{Guard, Map};
use xway_object::{MapDef, Program};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, MapsView, Verified, verify};
use xway_vm::FixedHost;

/// A verified and linked program with its maps.
struct Ready {
    program: Arc<xway_vm::Program>,
    proof: Verified,
    maps: Vec<Arc<Map>>,
}

fn defs(specs: &[MapSpec]) -> Vec<MapDef> {
    specs.iter().enumerate().map(|(n, spec)| MapDef::new(&format!("map{n}"), spec.clone())).collect()
}

fn live(specs: &[MapSpec]) -> Vec<Arc<Map>> {
    specs.iter().map(|s| Map::create(s, &xway_maps::Env::with_cpus(2)).unwrap()).collect()
}

fn ready_with(text: &str, specs: &[MapSpec], maps: Vec<Arc<Map>>) -> Ready {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = Program { name: "test".into(), section: "xdp".into(), insns, ..Program::default() };
    let defs = defs(specs);
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let proof = verify(&image, &view, &Config::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Ready { program: xway_vm::Program::link(&image, &maps).unwrap(), proof, maps }
}

fn ready(text: &str, specs: &[MapSpec]) -> Ready {
    ready_with(text, specs, live(specs))
}

impl Ready {
    fn compile(&self) -> Arc<Compiled> {
        compile(&self.program, &self.proof, &Options::default()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// r0 over 64 zero bytes, from the burst function.
    fn run(&self) -> u64 {
        with_frame(|frame, env| {
            let mut ret = [0];
            self.compile().run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
            assert!(env.take_faults().is_empty());
            ret[0]
        })
    }
}

fn with_frame<T>(run: impl FnOnce(&mut Frame, &mut RunEnv<'_>) -> T) -> T {
    let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(&[0; 64]).unwrap();
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let result = run(&mut frame, &mut RunEnv::new(&guard, &host, 1));
    pool.release(frame);
    result
}

fn array() -> MapSpec {
    MapSpec::new(MapType::Array, 4, 8, 4)
}

fn prog_array() -> MapSpec {
    MapSpec::new(MapType::ProgArray, 4, 4, 4)
}

const LOOK_UP: &str = "*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\n";

/// All loops of a function share its turns: behind one that used them up the next makes none, and does not begin with as many as a
/// number can count.
#[test]
fn turns_of_may_goto_that_are_used_up_stay_so() {
    let text = "r0 = 0\nfirst: may_goto next\ngoto first\nnext: may_goto out\nr0 += 1\nif r0 > 5 goto out\ngoto next\nout: exit";
    assert_eq!(ready(text, &[]).run(), 0);
    // Enough for both.
    let few =
        text.replace("r0 = 0\nfirst:", "r0 = 0\nr1 = 0\nfirst:").replace("goto first", "r1 += 1\nif r1 < 9 goto first");
    assert_eq!(ready(&few, &[]).run(), 6);
}

#[test]
fn stack_that_was_never_written_reads_as_zero() {
    // Every run leaves something else behind, and none may see it.
    let text = "r0 = *(u64 *)(r10 -16)\nr1 = -1\n*(u64 *)(r10 -16) = r1\nif r0 == 0 goto out\nr0 = 7\nout: exit";
    let code = ready(text, &[]).compile();
    for options in [Options::default(), Options::plain()] {
        let r = ready(text, &[]);
        let code = compile(&r.program, &r.proof, &options).unwrap();
        let mut pool = Pool::new(PoolConfig::new(8)).unwrap();
        let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.alloc().ok()).collect();
        let (guard, host) = (Guard::pin(), FixedHost::new(1));
        let mut rets = [9; 8];
        code.run_burst(&mut frames, &mut RunEnv::new(&guard, &host, 0), &mut rets).unwrap();
        assert_eq!(rets, [0; 8]);
        frames.into_iter().for_each(|f| pool.release(f));
    }
    assert!(code.stats().code_len > 0);
}

/// Bytes of a map's value, copied one by one to the packet, are loaded as words; what the program writes between two reads is seen.
#[test]
fn bytes_of_a_value_are_read_together_and_as_they_are_at_the_time() {
    let bytes = |regs: &[u8], from: i16| -> String {
        regs.iter().zip(from..).map(|(r, off)| format!("r{r} = *(u8 *)(r6 +{off})\n")).collect()
    };
    let stores: String =
        [1, 2, 3, 4, 5, 8].iter().zip(0..).map(|(r, off)| format!("*(u8 *)(r7 +{off}) = r{r}\n")).collect();
    let (first, second) = (bytes(&[1, 2, 3, 4, 5, 8], 1), bytes(&[1, 2, 3, 4], 0));
    let text = format!(
        "r7 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r7\nr4 += 16\nr0 = 1\nif r4 > r3 goto out\n{LOOK_UP}\
         if r0 == 0 goto none\nr6 = r0\n{first}{stores}*(u8 *)(r6 +2) = 200\n{second}r0 = r3\nr0 <<= 8\nr0 |= r1\nr2 <<= 16\n\
         r0 |= r2\nr4 <<= 24\nr0 |= r4\nexit\nnone: r0 = 1\nout: exit"
    );
    for options in [Options::default(), Options { value_words: false, ..Options::default() }, Options::plain()] {
        let r = ready(&text, &[array()]);
        r.maps[0].update(&1u32.to_ne_bytes(), &[10, 11, 12, 13, 14, 15, 16, 17], 0).unwrap();
        let code = compile(&r.program, &r.proof, &options).unwrap();
        let (ret, packet) = with_frame(|frame, env| {
            let mut ret = [0];
            code.run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
            (ret[0], frame.packet()[..8].to_vec())
        });
        assert_eq!((ret, packet), (13 << 24 | 11 << 16 | 200 << 8 | 10, vec![11, 12, 13, 14, 15, 16, 0, 0]));
    }
}

/// `branches` stores, each behind a branch on a byte of the packet, to 180 bytes of the stack in turn; then a look-up by eight of
/// them, and the sum of all.
fn many_stores(branches: usize) -> String {
    let mut text = String::from("r7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r7\nr2 += 64\n");
    text += "r0 = 0\nif r2 > r8 goto out\nr6 = 0\n";
    text.extend((0..180).map(|n| format!("*(u8 *)(r10 {}) = {}\n", n - 200, n % 7)));
    text.extend((0..branches).map(|n| {
        let (byte, value, at) = (n % 64, n % 5, n * 7 % 180);
        format!("r1 = *(u8 *)(r7 +{byte})\nif r1 == {value} goto +1\n*(u8 *)(r10 {}) = {}\n", at as i32 - 200, n % 250)
    }));
    text += "r2 = r10\nr2 += -104\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\nr6 += 1\nnone:\n";
    text.extend((0..180).map(|n| format!("r6 *= 3\nr1 = *(u8 *)(r10 {})\nr6 += r1\n", n - 200)));
    text + "r0 = r6\nout: exit"
}

/// A long function with many bytes that live through all of it: the compiler's work would be the product.
#[test]
fn what_costs_more_than_it_gains_stays_in_memory() {
    let keys = [MapSpec::new(MapType::Hash, 8, 8, 4)];
    for branches in [5, 800, 2000] {
        let ready = ready(&many_stores(branches), &keys);
        let with = |options: Options| {
            let code = compile(&ready.program, &ready.proof, &options).unwrap();
            let ret = with_frame(|frame, env| {
                let mut ret = [0];
                code.run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
                ret[0]
            });
            (ret, code)
        };
        let texts = |slots| Options { slots, keep_text: true, single: false, ..Options::default() };
        let ((ret, code), (expected, _)) = (with(texts(true)), with(texts(false)));
        assert_eq!(ret, expected, "{branches}");
        let text = &code.texts()[0];
        assert_eq!(text.contains("stay in memory"), branches > 5, "{branches}: {}", &text[..200]);
        // Of stores behind branches, values make a parameter each where the ways meet.
        let parameters: usize =
            text.lines().filter(|l| l.trim_start().starts_with("block")).map(|l| l.matches(": i64").count()).sum();
        assert!(
            parameters > branches / 50 && (branches == 5 || parameters < branches / 2 + 100),
            "{branches}: {parameters}"
        );
    }
}

/// `asked` fields of the packet that are asked for again and again, so many behind each of some branches. What is loaded twice would be
/// loaded once and live in between.
fn fields_again(branches: usize, behind_each: usize, asked: usize) -> String {
    let mut text = String::from("r7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r7\nr2 += 64\n");
    text += "r0 = 0\nif r2 > r8 goto out\nr3 = *(u8 *)(r7 +0)\nr7 += r3\nr2 = r7\nr2 += 1400\nr0 = 9\nif r2 > r8 goto out\nr6 = 0\n";
    for n in 0..branches * behind_each {
        let _ = write!(text, "r5 = *(u16 *)(r7 +{})\nr6 += r5\n", n % asked);
        if n % behind_each == 0 {
            let _ = writeln!(text, "if r5 == {n} goto out");
        }
    }
    text + "r0 = r6\nout: exit"
}

#[test]
fn a_function_whose_values_all_live_through_it_is_made_as_it_stands() {
    let cases = [(4000, 1, 1300, true), (4000, 1, 20, false), (400, 1, 300, false), (240, 25, 1300, true)];
    for (branches, behind_each, asked, plain) in cases {
        let ready = ready(&fields_again(branches, behind_each, asked), &[]);
        let options = Options { keep_text: true, single: false, ..Options::default() };
        let code = compile(&ready.program, &ready.proof, &options).unwrap();
        let made = |how: &str| code.texts().iter().any(|text| text.lines().next().is_some_and(|l| l.contains(how)));
        assert_eq!(made("without a mid-end"), plain, "{branches} of {asked}");
        assert_eq!(made("behind value numbering"), !plain, "{branches} of {asked}");
        // A packet of zeros is too short; one that is long enough has no field that is asked for, and is added up.
        let mut pool = Pool::new(PoolConfig::new(1)).unwrap();
        let mut frame = pool.alloc().unwrap();
        let (guard, host) = (Guard::pin(), FixedHost::new(1));
        for (packet, expected) in [(vec![0; 64], 9), (vec![0xee; 1700], (branches * behind_each) as u64 * 0xeeee)] {
            frame.fill(&packet).unwrap();
            let mut ret = [0];
            code.run_burst(std::slice::from_mut(&mut frame), &mut RunEnv::new(&guard, &host, 1), &mut ret).unwrap();
            assert_eq!(ret[0], expected, "{branches} of {asked}, {} bytes", packet.len());
        }
        pool.release(frame);
    }
}

#[test]
fn a_sum_of_any_length_is_followed_without_the_stack() {
    // What a register is by now is asked for at a branch, behind as many additions as a function may have.
    let mut text = String::from("r2 = *(u32 *)(r1 +16)\nr3 = 0\n");
    text.push_str(&"r3 += 1\n".repeat(19_900));
    text.push_str("r0 = 5\nif r3 > r2 goto out\nr0 = 6\nout: exit");
    assert_eq!(ready(&text, &[]).run(), 5);
}

#[test]
fn loops_are_taken_apart_as_long_as_there_is_room() {
    let mut text = String::from("r0 = 0\n");
    for n in 0..400 {
        text.push_str(&format!("r3 = 0\nl{n}: r3 += 1\nr0 += r3\nif r3 < 64 goto l{n}\n"));
    }
    text.push_str("exit");
    let r = ready(&text, &[]);
    assert_eq!(r.run(), 400 * 64 * 65 / 2);
    let insns = r.compile().stats().insns;
    assert!((5_000..12_000).contains(&insns), "{insns}");
}

/// The turns are counted as the program counts them: at 32 bits, from numbers with a sign, and where they are no multiple of anything.
#[test]
fn loops_turn_as_often_as_they_say() {
    for (text, sum) in [
        ("w3 = -1\nagain: r0 += 1\nr3 += 1\nif r3 < 70 goto again", 1),
        ("r3 = -1\nagain: r0 += 1\nr3 += 1\nif r3 < 71 goto again", 72),
        ("w3 = -1\nagain: r0 += 1\nw3 += 1\nif w3 < 83 goto again", 84),
        ("r3 = 0\nagain: r0 += r3\nr3 += 3\nif r3 != 3039 goto again", 1013 * 1012 * 3 / 2),
        ("r3 = 700\nagain: r0 += r3\nr3 += -1\nif r3 != 0 goto again", 701 * 350),
        ("r3 = 1\nagain: r0 += 1\nw3 <<= 1\nif w3 != 0 goto again", 32),
        ("r3 = 0\nagain: r0 += 1\nw3 += 1\nif w3 s< 8192 goto again", 8192),
        ("r3 = 0\nagain: r0 += 1\nw3 += 1\nif w3 s< 8193 goto again", 8193),
        ("r3 = 9\nagain: r0 += 1\nr3 += 1\nif r3 > 5000 goto out\ngoto again\nout: r0 += r3", 4992 + 5001),
    ] {
        assert_eq!(ready(&format!("r0 = 0\n{text}\nexit"), &[]).run(), sum, "{text}");
    }
}

/// As clang has them: the branch leads out, and behind it is a jump back.
#[test]
fn loops_that_jump_back_are_taken_apart_too() {
    let length = |back: &str| {
        let text = format!("r0 = 0\nr3 = 0\nagain: r0 += r3\nr3 += 3\n{back}\nexit");
        let ready = ready(&text, &[]);
        assert_eq!(ready.run(), 1013 * 1012 * 3 / 2, "{text}");
        ready.compile().stats().insns
    };
    let wanted = length("if r3 != 3039 goto again");
    assert!(wanted > 80, "{wanted}");
    assert_eq!(length("if r3 == 3039 goto +1\ngoto again"), wanted);
}

/// Where nothing leads to the jump any more but whoever calls the function, it is where the function begins.
#[test]
fn loops_that_jump_back_to_the_beginning_of_a_function_are_left_in_it() {
    for (text, ret) in [
        ("r1 = 5000\ncall f\nexit\nf: goto again\nagain: r1 += -1\nif r1 != 0 goto f\nr0 = 7\nexit", 7),
        ("r1 = 50\ncall f\nexit\nf: goto again\nagain: r1 += -1\nif r1 == 0 goto +1\ngoto f\nr0 = 8\nexit", 8),
        ("f: goto again\nagain: r0 = *(u64 *)(r10 -8)\nr0 += 1\n*(u64 *)(r10 -8) = r0\nif r0 < 70 goto f\nexit", 70),
    ] {
        assert_eq!(ready(text, &[]).run(), ret, "{text}");
    }
}

/// A loop of several blocks with ways out of its middle, left in each turn at each place.
#[test]
fn loops_with_ways_out_of_the_middle_are_taken_apart() {
    let text = |turn: usize, at: usize| {
        let out = |n: usize| {
            if n == at { format!("if r3 == {turn} goto out{n}\n") } else { format!("if r3 > 90 goto out{n}\n") }
        };
        format!(
            "r0 = 0\nr3 = *(u32 *)(r1 +16)\nr3 &= 3\nr3 = 0\nagain: r0 += 1\n{}r0 += 100\n{}r3 += 1\nr4 = *(u32 *)(r1 +16)\n\
             r4 += 80\nif r3 < r4 goto again\nexit\nout0: r0 += 10000\nexit\nout1: r0 += 20000\nexit",
            out(0),
            out(1)
        )
    };
    let sum = |turn: u64, at: u64| 101 * turn + if at == 0 { 10_001 } else { 20_101 };
    for (turn, at) in (0..11).flat_map(|turn| [(turn, 0), (turn, 1)]) {
        let text = text(turn, at);
        assert_eq!(ready(&text, &[]).run(), sum(turn as u64, at as u64), "{text}");
    }
    let ready = ready(&text(200, 0), &[]);
    assert_eq!(ready.run(), 101 * 80);
    let without = compile(&ready.program, &ready.proof, &{
        let mut options = Options::default();
        assert!(options.set("unroll", false));
        options
    });
    assert_eq!(ready.compile().stats().insns, without.unwrap().stats().insns + 3 * 8);
}

#[test]
fn numbers_of_the_context_have_a_sign_where_it_is_asked_for() {
    for (load, expected) in [("s32", 0xffff_ffff_8000_0001u64), ("u32", 0x8000_0001)] {
        let r = ready(&format!("r0 = *({load} *)(r1 +12)\nexit"), &[]);
        let ran = with_frame(|frame, env| {
            frame.set_ingress(0x8000_0001, 0);
            let mut ret = [0];
            r.compile().run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
            ret[0]
        });
        assert_eq!(ran, expected, "{load}");
    }
}

#[test]
fn look_ups_without_number_are_calls_in_the_end() {
    let run = |count: usize| {
        let mut text = String::from("*(u64 *)(r10 -8) = 5\nr6 = 0\n");
        for n in 0..count {
            text.push_str(&format!(
                "r2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto l{n}\nr1 = *(u64 *)(r0 +0)\nr6 += r1\nl{n}: r0 = 0\n"
            ));
        }
        text.push_str("r0 = r6\nexit");
        let r = ready(&text, &[MapSpec::new(MapType::Hash, 8, 8, 4)]);
        r.maps[0].update(&5u64.to_ne_bytes(), &3u64.to_ne_bytes(), 0).unwrap();
        assert_eq!(r.run(), 3 * count as u64);
        r.compile().code().len()
    };
    let (few, many) = (run(500), run(1_500));
    assert!(many < 2 * few, "{few} and {many} bytes");
}

#[test]
fn a_key_with_padding_is_looked_up_with_zeros() {
    let spec = MapSpec::new(MapType::Hash, 8, 8, 4);
    let text = "*(u32 *)(r10 -8) = 5\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto none\n\
                r0 = *(u64 *)(r0 +0)\nexit\nnone: r0 = 99\nexit";
    let r = ready(text, &[spec]);
    r.maps[0].update(&5u64.to_ne_bytes(), &77u64.to_ne_bytes(), 0).unwrap();
    assert_eq!(r.run(), 77);
}

#[test]
fn the_least_number_is_no_distance() {
    // Found by random programs: its absolute value does not exist.
    let text = "r2 = *(u64 *)(r10 -8)\nr3 = *(u64 *)(r10 -16)\nr4 = *(u32 *)(r1 +16)\nr4 <<= 40\nr2 ^= r4\nr3 ^= r4\n\
                r4 = 0x8000000000000000 ll\nr2 += r4\nr0 = 5\nif r2 <= r3 goto out\nr0 = 6\nout: exit";
    assert_eq!(ready(text, &[]).run(), 6);
}

#[test]
fn functions_get_their_arguments_and_their_callers_stack() {
    let text = "*(u64 *)(r10 -8) = 40\nr1 = r10\nr1 += -8\nr2 = 2\ncall add\nr0 = *(u64 *)(r10 -8)\nexit\n\
                add: r3 = *(u64 *)(r1 +0)\nr3 += r2\n*(u64 *)(r1 +0) = r3\nr0 = 0\nexit";
    assert_eq!(ready(text, &[]).run(), 42);
}

#[test]
fn bpf_loop_calls_back_and_stops() {
    // The callback adds its index to the caller's stack and stops after index 4.
    let text = "*(u64 *)(r10 -8) = 0\nr1 = 100\nr2 = subprog[body]\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
                r6 = *(u64 *)(r10 -8)\nr0 *= 1000\nr0 += r6\nexit\n\
                body: r3 = *(u64 *)(r2 +0)\nr3 += r1\n*(u64 *)(r2 +0) = r3\nr0 = 0\nif r1 < 4 goto out\nr0 = 1\nout: exit";
    assert_eq!(ready(text, &[]).run(), 5010);
}

#[test]
fn a_spin_lock_is_taken_and_given_back() {
    let mut spec = MapSpec::new(MapType::Array, 4, 16, 4);
    spec.special = vec![xway_abi::SpecialField { kind: xway_abi::SpecialKind::SpinLock, offset: 0 }];
    let text = format!(
        "{LOOK_UP}if r0 == 0 goto out\nr6 = r0\nr1 = r6\ncall 93\nr7 = *(u64 *)(r6 +8)\nr7 += 1\n\
         *(u64 *)(r6 +8) = r7\nr1 = r6\ncall 94\nr0 = r7\nexit\nout: r0 = 0\nexit"
    );
    let r = ready(&text, &[spec]);
    assert_eq!((r.run(), r.run()), (1, 2));
}

#[test]
fn ring_records_are_reserved_and_submitted() {
    let spec = MapSpec::new(MapType::Ringbuf, 0, 0, 4096);
    let text = "r1 = map[idx:0]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\n*(u64 *)(r0 +0) = 1234\nr1 = r0\n\
                r2 = 0\ncall 132\nout: r0 = 2\nexit";
    let r = ready(text, &[spec]);
    assert_eq!((r.run(), r.run()), (2, 2));
    let mut seen = vec![];
    r.maps[0].ringbuf().unwrap().consume(9, &mut |b| seen.push(b.to_vec())).unwrap();
    assert_eq!(seen, vec![1234u64.to_ne_bytes().to_vec(); 2]);
}

#[test]
fn atomics_with_and_without_results() {
    let text = format!(
        "{LOOK_UP}if r0 == 0 goto out\nr6 = r0\nr1 = 5\nlock *(u64 *)(r6 +0) += r1\nr2 = 3\n\
         r2 = atomic64_fetch_add((u64 *)(r6 +0), r2)\nr3 = 100\nr0 = 8\nr0 = atomic64_cmpxchg((u64 *)(r6 +0), r0, r3)\n\
         r4 = 7\nr4 = atomic64_xchg((u64 *)(r6 +0), r4)\nr0 = r2\nr0 *= 1000\nr0 += r4\nexit\nout: r0 = 0\nexit"
    );
    assert_eq!(ready(&text, &[array()]).run(), 5100);
}

const TAIL: &str = "r6 = r1\nr2 = map[idx:0]\nr3 = 1\ncall 12\nr0 = 3\nexit";

fn other(maps: &[Arc<Map>]) -> Ready {
    ready_with("r0 = *(u32 *)(r1 +4)\nr0 = 42\nexit", &[prog_array()], maps.to_vec())
}

#[test]
fn tail_calls_go_to_code_or_to_the_interpreter() {
    let r = ready(TAIL, &[prog_array()]);
    assert_eq!(r.run(), 3, "an empty slot falls through");
    let to = other(&r.maps);
    r.maps[0].set_program(1, Some(to.program.clone())).unwrap();
    assert_eq!(r.run(), 42, "interpreted");
    to.compile().keep_with(&to.program);
    assert_eq!(r.run(), 42, "compiled");
    r.maps[0].clear_programs();
}

#[test]
fn at_most_33_tail_calls() {
    // Each run of the program counts itself and calls itself again.
    let specs = [prog_array(), array()];
    let text = "r6 = r1\n*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:1]\ncall 1\nif r0 == 0 goto out\n\
                r1 = 1\nlock *(u64 *)(r0 +0) += r1\nr1 = r6\nr2 = map[idx:0]\nr3 = 1\ncall 12\nout: r0 = 5\nexit";
    let r = ready(text, &specs);
    r.maps[0].set_program(1, Some(r.program.clone())).unwrap();
    r.compile().keep_with(&r.program);
    let count = |r: &Ready| {
        let mut value = [0; 8];
        r.maps[1].lookup(&0u32.to_ne_bytes(), &mut value, 0).unwrap();
        u64::from_ne_bytes(value)
    };
    assert_eq!((r.run(), count(&r)), (5, 34));
    assert_eq!((r.run(), count(&r)), (5, 68), "each packet has its own 33");
    r.maps[0].clear_programs();
}

/// A function that leaves comes back to its caller, which has only what the other program has left of the 33, be that code or not.
#[test]
fn tail_calls_out_of_functions_are_counted_for_their_callers() {
    // The other program calls itself as often as it can: how often is its value, which it leaves in a map.
    let specs = [prog_array(), array()];
    let counted = |then: &str| {
        format!(
            "r6 = r1\n*(u32 *)(r10 -4) = 0\nr2 = r10\nr2 += -4\nr1 = map[idx:1]\ncall 1\nif r0 == 0 goto out\n\
             r7 = *(u64 *)(r0 +0)\nr1 = 1\nlock *(u64 *)(r0 +0) += r1\n{then}"
        )
    };
    let again = "r1 = r6\nr2 = map[idx:0]\nr3 = 1\ncall 12\n";
    let other = counted(&format!("if r7 > 40 goto out\nif r7 == 20 goto out\n{again}out: r0 = 5\nexit"));
    let text = format!(
        "r6 = r1\ncall leave\nr1 = r6\ncall leave\nr1 = r6\nr2 = map[idx:0]\nr3 = 2\ncall 12\nr0 = 9\nexit\n\
         leave: r6 = r1\n{again}r0 = 3\nexit"
    );
    let left = |compiled: bool| {
        let r = ready(&text, &specs);
        let (to, last) =
            (ready_with(&other, &specs, r.maps.clone()), ready_with("r0 = 42\nexit", &specs, r.maps.clone()));
        r.maps[0].set_program(1, Some(to.program.clone())).unwrap();
        r.maps[0].set_program(2, Some(last.program.clone())).unwrap();
        if compiled {
            to.compile().keep_with(&to.program);
            last.compile().keep_with(&last.program);
        }
        let ret = r.run();
        let mut value = [0; 8];
        r.maps[1].lookup(&0u32.to_ne_bytes(), &mut value, 0).unwrap();
        r.maps[0].clear_programs();
        (ret, u64::from_ne_bytes(value))
    };
    // 21 calls for the first function, and 12 for the second.
    assert_eq!(left(true), (9, 33), "compiled");
    assert_eq!(left(false), (9, 33), "interpreted");
}

#[test]
fn another_program_or_other_maps_are_refused() {
    let r = ready(&format!("{LOOK_UP}r0 = 2\nexit"), &[array()]);
    let changed = ready("r0 = 1\nexit", &[array()]);
    assert_eq!(compile(&changed.program, &r.proof, &Options::default()).unwrap_err(), Refusal::OtherProgram);
    for (spec, why) in [
        (MapSpec::new(MapType::Array, 4, 4, 4), "other lengths of key or value"),
        (MapSpec::new(MapType::Hash, 4, 8, 4), "another type"),
        (MapSpec::new(MapType::Array, 4, 8, 1), "fewer entries"),
    ] {
        let insns = r.proof.insns().to_vec();
        let image = Program { name: "test".into(), insns, ..Program::default() };
        let program = xway_vm::Program::link(&image, &live(&[spec])).unwrap();
        let refusal = compile(&program, &r.proof, &Options::default()).unwrap_err();
        assert_eq!(refusal, Refusal::OtherMap { map: "map0".into(), why });
    }
}

#[test]
fn a_worker_beyond_the_maps_is_refused() {
    let spec = MapSpec::new(MapType::PercpuArray, 4, 8, 4);
    let r = ready(&format!("{LOOK_UP}if r0 == 0 goto out\nr0 = *(u64 *)(r0 +0)\nout: exit"), &[spec]);
    let code = r.compile();
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let refusal = code.run_burst(&mut [], &mut RunEnv::new(&guard, &host, 2), &mut []).unwrap_err();
    assert_eq!(refusal, Refusal::Cpu { cpu: 2, cpus: 2 });
}

#[test]
fn dumps_say_where_code_came_from() {
    let r = ready("call 5\nr0 &= 1\nexit", &[]);
    let code = r.compile();
    let text = dump::jited(&code, &[&r.program]);
    assert!(text.contains("test.burst") && text.contains("call") && text.contains("r0 &= 1"), "{text}");
}

#[test]
fn tail_calls_to_known_programs_are_jumps_that_look_first() {
    let r = ready(TAIL, &[prog_array()]);
    let to = other(&r.maps);
    r.maps[0].set_program(1, Some(to.program.clone())).unwrap();
    // Without its proof a program is not compiled, so it is no known target.
    assert!(r.compile().targets().is_empty());
    let image = |text: &str| {
        let insns = xway_isa::assemble(text).unwrap();
        Program { name: "verified".into(), section: "xdp".into(), insns, ..Program::default() }
    };
    let defs = defs(&[prog_array()]);
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let link = |text: &str| xway_vm::Program::verify(&image(text), &r.maps, &view, &Config::default()).unwrap();
    let (seven, eight) = (link("r0 = 7\nexit"), link("r0 = 8\nexit"));
    r.maps[0].set_program(1, Some(seven.clone())).unwrap();
    let code = r.compile();
    assert_eq!(code.targets().len(), 1);
    let run = |code: &Arc<Compiled>| {
        with_frame(|frame, env| {
            let mut ret = [0];
            code.run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
            ret[0]
        })
    };
    assert_eq!(run(&code), 7);
    r.maps[0].set_program(1, Some(eight)).unwrap();
    assert_eq!(run(&code), 8, "another program stands there now");
    r.maps[0].set_program(1, None).unwrap();
    assert_eq!(run(&code), 3, "none");
    r.maps[0].set_program(1, Some(seven)).unwrap();
    assert_eq!(run(&code), 7, "the known one again");
    // What tail calls enter goes through the slots, so that no other program need be planned for it.
    let entered = Options { burst: false, ..Options::default() };
    assert!(compile(&r.program, &r.proof, &entered).unwrap().targets().is_empty());
    r.maps[0].clear_programs();
}

/// Targets of the direct jumps that are taken where an address is the one that was compared.
#[cfg(target_arch = "x86_64")]
fn direct_jumps(code: &[u8], address: u64) -> Vec<u64> {
    let decoder = iced_x86::Decoder::with_ip(64, code, address, iced_x86::DecoderOptions::NONE);
    let equal = decoder.into_iter().filter(|i| i.mnemonic() == iced_x86::Mnemonic::Je);
    equal.map(|i| i.near_branch_target()).collect()
}

#[cfg(target_arch = "aarch64")]
fn direct_jumps(code: &[u8], address: u64) -> Vec<u64> {
    let words = code.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
    let places = (address..).step_by(4).zip(words).filter(|(_, word)| word >> 26 == 5);
    places.map(|(at, word)| at.wrapping_add_signed(i64::from((word << 6) as i32 >> 4))).collect()
}

#[test]
fn a_dispatcher_reaches_its_targets_by_direct_jumps_and_others_all_the_same() {
    use xway_jit::dispatch::{Dispatcher, TARGETS_MAX};
    let all: Vec<Arc<Compiled>> =
        (0..TARGETS_MAX + 2).map(|n| ready(&format!("r0 = {n}\nexit"), &[]).compile()).collect();
    let dispatcher = Dispatcher::new();
    let run = |code: &Arc<Compiled>| {
        with_frame(|frame, env| {
            let mut ret = [u64::MAX];
            let mut route = dispatcher.tree().route(code);
            route.run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
            ret[0]
        })
    };
    assert_eq!(run(&all[5]), 5, "without targets");
    for (n, code) in all.iter().enumerate() {
        assert_eq!(dispatcher.add(code).unwrap(), n < TARGETS_MAX, "{n}");
    }
    for (n, code) in all.iter().enumerate() {
        assert_eq!(run(code), n as u64);
    }
    let (bursts, indirect) = dispatcher.tree().bursts();
    assert_eq!((bursts.len(), indirect), (TARGETS_MAX, 2));
    assert!(bursts.iter().all(|b| b.1 == 1));
    // What a route counts is seen while there is one and afterwards, beside what others count.
    let tree = dispatcher.tree();
    let mut routes = [tree.route(&all[7]), tree.route(&all[7]), tree.route(&all[TARGETS_MAX])];
    let mut rets = [u64::MAX; 3];
    with_frame(|frame, env| {
        for (route, ret) in routes.iter_mut().zip(rets.chunks_mut(1)) {
            route.run_burst(std::slice::from_mut(frame), env, ret).unwrap();
        }
    });
    assert_eq!(rets, [7, 7, TARGETS_MAX as u64]);
    let counted = || {
        let (bursts, indirect) = tree.bursts();
        (bursts.iter().find(|b| Arc::ptr_eq(&b.0, &all[7])).map(|b| b.1), indirect)
    };
    assert_eq!(counted(), (Some(3), 3));
    drop(routes);
    assert_eq!(counted(), (Some(3), 3), "routes that are gone");
    // One comparison for each target, every jump to a target is a direct one to a function's aligned start.
    let (bytes, address) = tree.code();
    let mut direct = direct_jumps(bytes, address);
    direct.sort_unstable();
    let mut starts: Vec<u64> = all[..TARGETS_MAX].iter().map(|c| c.address()).collect();
    starts.sort_unstable();
    assert_eq!(direct, starts);
    assert!(starts.iter().all(|a| a % 16 == 0));
    // Users are counted; an old tree goes on running what it knew.
    dispatcher.add(&all[3]).unwrap();
    assert!(dispatcher.remove(&all[3]).unwrap() && Arc::ptr_eq(&tree, &dispatcher.tree()));
    assert!(dispatcher.remove(&all[3]).unwrap() && !dispatcher.remove(&all[3]).unwrap());
    assert_eq!(run(&all[3]), 3);
    assert_eq!(dispatcher.tree().bursts().1, 1);
}

/// What is read through a pointer that may be another kind of memory's is read where the program reads it: stores side by side in
/// front of it are one, and what is stored there afterwards does not make that one superfluous.
#[test]
fn stores_are_there_before_memory_of_any_kind_is_read() {
    let text = "r2 = *(u32 *)(r1 +16)\nr3 = r10\nr3 += -8\nif r2 == 77 goto other\n\
                read: *(u32 *)(r10 -8) = 1\n*(u32 *)(r10 -4) = 2\nr0 = *(u64 *)(r3 +0)\n\
                *(u32 *)(r10 -8) = 3\n*(u32 *)(r10 -4) = 4\nr5 = *(u64 *)(r10 -8)\nr5 <<= 4\nr0 += r5\nexit\n\
                other: r3 = map[idx:0][0]+0\ngoto read";
    let specs = [MapSpec::new(MapType::Array, 4, 8, 1)];
    for options in [Options::default(), Options { lanes: false, ..Options::default() }, Options::plain()] {
        let r = ready(text, &specs);
        let code = compile(&r.program, &r.proof, &options).unwrap();
        let ret = with_frame(|frame, env| {
            let mut ret = [0];
            code.run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
            ret[0]
        });
        assert_eq!(ret, (2 << 32 | 1) + ((4 << 32 | 3) << 4), "{ret:#x}");
    }
}

/// Tests in whose middle stands one that was made for tests in front of them.
#[test]
fn tests_of_one_number_are_exchanged_where_others_were_before() {
    let mut text = String::from("r6 = *(u32 *)(r1 +16)\nr8 = *(u32 *)(r1 +12)\ncall 7\nr9 = r0\nr0 = 0\ngoto x\n");
    text += "n: if r6 == 1 goto a\nj: if r6 == 2 goto b\nk: if r6 == 3 goto c\nl: if r6 == 4 goto back\ngoto out\n";
    text += "b: r0 += 1\ngoto k\nc: r0 += 2\ngoto l\n";
    // A way back that is too long to be followed from everywhere.
    text += "back: r6 = 0\ngoto p1\n";
    for n in 1..8 {
        let _ = write!(text, "p{n}: r0 += 3\ngoto p{}\n", n + 1);
    }
    text += "p8: goto y1\na: if r9 == 100 goto l\n";
    for n in 1..8 {
        let _ = writeln!(text, "y{n}: if r8 == {n} goto d{n}");
    }
    text += "y8: if r8 == 8 goto j\ngoto out\n";
    for n in 1..8 {
        let _ = write!(text, "d{n}: r0 += {n}\ngoto y8\n");
    }
    text += "x: if r6 != 9 goto n\nr0 += 4\ngoto y1\nout: exit";
    let r = ready(&text, &[]);
    let plain = compile(&r.program, &r.proof, &Options::plain()).unwrap();
    let code = r.compile();
    let run = |code: &Compiled| {
        with_frame(|frame, env| {
            let mut ret = [0];
            code.run_burst(std::slice::from_mut(frame), env, &mut ret).unwrap();
            ret[0]
        })
    };
    assert_eq!(run(&code), run(&plain));
}

/// A program of nothing but calls: what is code in their place is many instructions for one. Those behind are calls, and do the same.
#[test]
fn helpers_are_code_as_long_as_there_is_room() {
    let text = "call 7\n".repeat(3000) + "exit";
    let len = ready(&text, &[]).compile().stats().code_len;
    // The same takes more bytes there.
    let most = if cfg!(target_arch = "aarch64") { 240_000 } else { 120_000 };
    assert!(len < most, "{len}");
    let mut text = String::from("r6 = r1\n");
    for n in 0..600 {
        let _ = write!(text, "r1 = r6\nr2 = {}\ncall 44\nif r0 != 0 goto out\n", [-4, 2][n % 2]);
    }
    text += "r2 = *(u32 *)(r6 +0)\nr0 = *(u32 *)(r6 +4)\nr0 -= r2\nexit\nout: r0 = 1\nexit";
    let r = ready(&text, &[]);
    let mut lengths = vec![];
    for options in [Options::default(), Options { thread_nulls: false, ..Options::default() }, Options::plain()] {
        let code = compile(&r.program, &r.proof, &options).unwrap();
        let mut config = PoolConfig::new(3);
        config.headroom = 1024;
        let mut pool = Pool::new(config).unwrap();
        let mut frames: Vec<Frame> = std::iter::from_fn(|| pool.alloc().ok()).collect();
        for (n, frame) in frames.iter_mut().enumerate() {
            frame.fill(&vec![0; 60 + n]).unwrap();
        }
        let (guard, host) = (Guard::pin(), FixedHost::new(1));
        let mut rets = [9; 3];
        code.run_burst(&mut frames, &mut RunEnv::new(&guard, &host, 0), &mut rets).unwrap();
        lengths.push((rets, frames.iter().map(|f| f.packet().len() as u64).collect::<Vec<_>>()));
        frames.into_iter().for_each(|f| pool.release(f));
    }
    assert_eq!(lengths[0], ([660, 661, 662], vec![660, 661, 662]));
    assert!(lengths.iter().all(|l| *l == lengths[0]), "{lengths:?}");
}

/// More tail calls than are code, and to a program that has no room beside the one that calls it.
#[test]
fn tail_calls_are_made_without_room_for_them() {
    let call = |slot: u32| format!("r1 = r6\nr2 = map[idx:0]\nr3 = {slot}\ncall 12\n");
    let text = format!("r6 = r1\n{}{}r0 = 3\nexit", call(2).repeat(600), call(1));
    let r = ready(&text, &[prog_array()]);
    assert_eq!(r.run(), 3, "nothing is there");
    let defs = defs(&[prog_array()]);
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let link = |text: &str| {
        let insns = xway_isa::assemble(text).unwrap();
        let image = Program { name: "verified".into(), section: "xdp".into(), insns, ..Program::default() };
        xway_vm::Program::verify(&image, &r.maps, &view, &Config::default()).unwrap()
    };
    let (short, long) = (link("r0 = 7\nexit"), link(&format!("r0 = 7\n{}exit", "r0 ^= 5\n".repeat(19_000))));
    for (program, known) in [(short, 1), (long, 0)] {
        r.maps[0].set_program(1, Some(program.clone())).unwrap();
        let code = r.compile();
        assert_eq!(code.targets().len(), known);
        assert_eq!(r.run(), 7);
    }
    r.maps[0].clear_programs();
}

/// A program whose code has addresses of its own memory (where a CPU's values lie, a function that a helper calls) and calls out of it:
/// compiled anew with the same maps it is the same, without a pass only where that pass does nothing for it.
#[test]
fn the_same_code_is_known_to_be_the_same() {
    let text = "r1 = 3\nr2 = subprog[turn]\nr3 = 0\nr4 = 0\ncall 181\n*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\n\
                if r0 == 0 goto none\nr1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\nnone: call 5\nr0 = 2\nexit\n\
                turn: r0 = 0\nexit";
    let r = ready(text, &[MapSpec::new(MapType::PercpuArray, 4, 8, 4)]);
    let without = |passes: &[&str]| {
        let mut options = Options::default();
        passes.iter().for_each(|pass| assert!(options.set(pass, false)));
        compile(&r.program, &r.proof, &options).unwrap()
    };
    // Kept, so that each compilation's memory is another one's.
    let code = [without(&[]), without(&[]), without(&["unroll"]), without(&["interleave"])];
    // There calls are counted from where the code lies, numbers change in memory, and the code reads the clock; on aarch64 calls and numbers
    // take registers, and the clock is the system's.
    let x86 = cfg!(target_arch = "x86_64");
    assert!(!x86 || code.iter().any(|c| c.code() != code[0].code()), "addresses differ");
    assert!(code.iter().all(|c| c.same_as(&code[0]) && code[0].same_as(c)));
    for (pass, matters) in [("inline-lookups", true), ("in-place", x86), ("inline-helpers", x86), ("optimize", true)] {
        assert_eq!(without(&[pass]).same_as(&code[0]), !matters, "{pass}");
    }
    // Nothing is fetched ahead of a program that looks at no packet.
    assert!(without(&["headers"]).same_as(&code[0]));
    let looks = ready(
        "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr0 = 1\nr2 += 14\nif r2 > r3 goto out\nr0 = *(u8 *)(r2 -1)\nout: exit",
        &[],
    );
    let ahead = |headers| compile(&looks.program, &looks.proof, &Options { headers, ..Options::default() }).unwrap();
    assert!(ahead(true).same_as(&ahead(true)) && !ahead(true).same_as(&ahead(false)));
}
