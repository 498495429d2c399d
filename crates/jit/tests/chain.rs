//! Chains: what is special about several programs in one burst function. That they compute what the interpreter does with the
//! same chain is compared in `tests/differential`.

use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_jit::{Decided, LINKS_MAX, Link, Options, Refusal, RunEnv, chain, dump};
use xway_maps::{Guard, Map};
use xway_object::{MapDef, Program};
use xway_packet::{Frame, Pool, PoolConfig, Redirect};
use xway_verifier::{Config, MapsView, Verified, verify};
use xway_vm::{Env, FixedHost, run_chain};

struct Ready {
    program: Arc<xway_vm::Program>,
    proof: Verified,
}

fn ready_with(text: &str, specs: &[MapSpec], maps: &[Arc<Map>]) -> Ready {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = Program { name: "link".into(), section: "xdp".into(), insns, ..Program::default() };
    let defs: Vec<MapDef> = specs.iter().map(|s| MapDef::new("map", s.clone())).collect();
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let proof = verify(&image, &view, &Config { budget: 10_000_000, ..Config::default() });
    let proof = proof.unwrap_or_else(|e| panic!("{e}\n{text}"));
    Ready { program: xway_vm::Program::link(&image, maps).unwrap(), proof }
}

fn ready(text: &str) -> Ready {
    ready_with(text, &[], &[])
}

fn links<'a>(of: &'a [(&'a Ready, u32)]) -> Vec<Link<'a>> {
    of.iter().map(|(r, chain_on)| Link { program: &r.program, proof: &r.proof, chain_on: *chain_on }).collect()
}

/// Runs a chain over frames whose first byte is their number, in both engines, and gives verdict and link of each.
fn run(of: &[(&Ready, u32)], frames: usize) -> Vec<(u32, usize)> {
    let code = chain(&links(of), &Options::default()).unwrap();
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut pool = Pool::new(PoolConfig::new(frames as u32)).unwrap();
    let make = |pool: &mut Pool| -> Vec<Frame> {
        let one = |n| {
            let mut frame = pool.alloc().unwrap();
            frame.fill(&[n as u8; 64]).unwrap();
            frame
        };
        (0..frames).map(one).collect()
    };
    let mut all = make(&mut pool);
    let mut rets = vec![0; frames];
    let mut env = RunEnv::new(&guard, &host, 0);
    code.run_burst(&mut all, &mut env, &mut rets).unwrap();
    assert!(env.take_faults().is_empty());
    let got: Vec<(u32, usize, Redirect)> =
        (rets.iter().map(|r| Decided::of(*r)).zip(&all)).map(|(d, f)| (d.verdict, d.link, f.redirect())).collect();
    all.into_iter().for_each(|f| pool.release(f));
    let mut all = make(&mut pool);
    let programs: Vec<_> = of.iter().map(|(r, mask)| (&*r.program, *mask)).collect();
    let mut env = Env::new(&guard, &host, 0);
    for (frame, got) in all.iter_mut().zip(&got) {
        let (outcome, link) = run_chain(&programs, frame, &mut env);
        assert_eq!(*got, (outcome.ret as u32, link, frame.redirect()));
    }
    all.into_iter().for_each(|f| pool.release(f));
    got.into_iter().map(|g| (g.0, g.1)).collect()
}

/// Returns the first byte of the packet.
const FIRST_BYTE: &str = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 1\nr0 = 0\nif r4 > r3 goto out\n\
                          r0 = *(u8 *)(r2 +0)\nout: exit";

#[test]
fn each_frame_ends_at_its_own_link() {
    let (first, drop) = (ready(FIRST_BYTE), ready("r0 = 1\nexit"));
    let got = run(&[(&first, 0b10100), (&drop, 0)], 6);
    assert_eq!(got, [(0, 0), (1, 0), (1, 1), (3, 0), (1, 1), (5, 0)]);
}

#[test]
fn a_chain_that_nobody_ends_passes() {
    let first = ready(FIRST_BYTE);
    assert_eq!(run(&[(&first, 0b1000)], 4), [(0, 0), (1, 0), (2, 0), (2, 1)]);
}

#[test]
fn stacks_are_not_shared_and_packets_and_targets_are() {
    // The first link leaves something on its stack and chooses a target, the second reads a stack that it never wrote.
    let leaves = ready("*(u64 *)(r10 -8) = 3\nr1 = 7\nr2 = 0\ncall 23\nr0 = 2\nexit");
    let reads = ready("r0 = *(u64 *)(r10 -8)\nr0 += 4\nexit");
    assert_eq!(run(&[(&leaves, 4), (&reads, 0)], 2), [(4, 1), (4, 1)]);
}

/// Keys that lie in the packet: looked up, stored and deleted by, in a table of each kind that has a short way in.
#[test]
fn keys_may_lie_in_the_packet() {
    let head = "r6 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r6\nr4 += 64\nr0 = 0\nif r4 > r3 goto out\n";
    let call = |id: u32, rest: &str| format!("r2 = r6\nr2 += 16\n{rest}r1 = map[idx:0]\ncall {id}\n");
    let value = "r3 = r6\nr3 += 8\nr4 = 0\n";
    for (map_type, key, flags) in
        [(MapType::Hash, 16, 0), (MapType::LruHash, 16, 0), (MapType::PercpuHash, 8, 0), (MapType::LpmTrie, 8, 1)]
    {
        let spec = MapSpec { flags, ..MapSpec::new(map_type, key, 8, 64) };
        let maps = [Map::create(&spec, &xway_maps::Env::with_cpus(1)).unwrap()];
        // A prefix length of 16 bits in front of a trie's key.
        let text = format!(
            "{head}*(u32 *)(r6 +16) = 16\n{}r7 = r0\n{}if r0 == 0 goto gone\nr7 += 1\ngone: {}r0 = r7\nr0 &= 7\nr0 += 1\nout: exit",
            call(2, value),
            call(1, ""),
            call(3, "")
        );
        let ready = ready_with(&text, std::slice::from_ref(&spec), &maps);
        assert_eq!(run(&[(&ready, 0)], 5), [(2, 0); 5], "{map_type:?}");
    }
}

/// Programs that share a map may have it under different numbers: what the second stores is stored behind the first's and in front of
/// the third's.
#[test]
fn one_map_under_two_numbers_is_one_memory() {
    let spec = MapSpec::new(MapType::Array, 4, 8, 1);
    let map = || Map::create(&spec, &xway_maps::Env::with_cpus(1)).unwrap();
    let (shared, other) = (map(), map());
    let specs = [spec.clone(), spec.clone()];
    let store =
        |index: u32, n: u32| format!("r1 = map[idx:{index}][0]+0\nr2 = {n}\n*(u64 *)(r1 +0) = r2\nr0 = 2\nexit");
    let odd = |n| ready_with(&store(0, n), &specs[..1], std::slice::from_ref(&shared));
    let even = ready_with(&store(1, 2), &specs, &[other, shared.clone()]);
    let (first, third) = (odd(1), odd(1));
    assert_eq!(run(&[(&first, 4), (&even, 4), (&third, 0)], 3), [(2, 2); 3]);
    let mut value = [0; 8];
    shared.lookup(&[0; 4], &mut value, 0).unwrap();
    assert_eq!(u64::from_ne_bytes(value), 1, "the third's");
}

#[test]
fn tail_calls_come_back_into_the_chain_and_each_link_has_its_own() {
    let spec = MapSpec::new(MapType::ProgArray, 4, 4, 4);
    let maps = [Map::create(&spec, &xway_maps::Env::with_cpus(1)).unwrap()];
    // Calls itself until no tail call is left.
    let text = "r2 = map[idx:0]\nr3 = 1\ncall 12\nr0 = 2\nexit";
    let again = ready_with(text, std::slice::from_ref(&spec), &maps);
    maps[0].set_program(1, Some(again.program.clone())).unwrap();
    let code = xway_jit::compile(&again.program, &again.proof, &Options::default()).unwrap();
    code.keep_with(&again.program);
    let last = ready("r0 = 3\nexit");
    assert_eq!(run(&[(&again, 4), (&again, 4), (&last, 0)], 3), [(3, 2); 3]);
    maps[0].clear_programs();
}

#[test]
fn what_does_not_fit_into_one_function_is_called() {
    // Programs of 8,000 instructions each: two fit.
    let mut long = String::from("r0 = 0\n");
    for n in 0..7_998 {
        long.push_str(&format!("r0 += {}\n", n % 2));
    }
    let long = ready(&format!("{long}r0 &= 2\nexit"));
    let (first, three) = (ready(FIRST_BYTE), ready("r0 = 3\nexit"));
    let of = [(&first, 0b100), (&long, 0xff), (&long, 0xff), (&long, 0xff), (&three, 0)];
    assert_eq!(run(&of, 3), [(0, 0), (1, 0), (3, 4)]);
    let code = chain(&links(&of), &Options::default()).unwrap();
    let names: Vec<&str> = code.functions().iter().map(|f| f.name.as_str()).collect();
    // The loop is that of all programs, whether they stand in it or are called there.
    assert_eq!(names, ["link+link+link+link+link.burst", "link.function"]);
}

#[test]
fn sixty_four_links_run_and_no_more() {
    let first = ready(FIRST_BYTE);
    let of = [(&first, 0b100); LINKS_MAX];
    assert_eq!(run(&of, 3), [(0, 0), (1, 0), (2, LINKS_MAX)]);
    let more = [(&first, 0b100); LINKS_MAX + 1];
    for (wrong, links) in [(chain(&links(&more), &Options::default()), 65), (chain(&[], &Options::default()), 0)] {
        assert_eq!(wrong.unwrap_err(), Refusal::Chain { links, max: LINKS_MAX });
    }
}

#[test]
fn a_dump_names_the_link_that_code_came_from() {
    let (a, b) = (ready("r0 = 2\nexit"), ready("call 5\nexit"));
    let code = chain(&links(&[(&a, 4), (&b, 0)]), &Options::default()).unwrap();
    let text = dump::jited(&code, &[&a.program, &b.program]);
    assert!(text.contains("0: call helper#5"), "{text}");
    let units: Vec<usize> = code.functions()[0].lines.iter().filter_map(|l| l.1).map(|o| o.unit).collect();
    assert!(units.contains(&1), "{units:?}");
}
