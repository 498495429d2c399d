//! How well LRU maps keep what is used: the share of look-ups that hit, ours beside the kernel's, on the same traces. Ours three
//! times: through the map's own calls, and by machine code, which marks what it finds itself, without stages and with them.
//!
//! `cargo test -p xway-testkit --test maps lru_hit -- --nocapture` prints the table. In the kernel a program does it, because
//! look-ups from user space leave no mark there.

use std::os::fd::{AsFd, AsRawFd};

use xway_abi::{MapSpec, MapType};
use xway_isa::assemble;
use xway_jit::{Options, RunEnv, compile};
use xway_kernel::{KernelMap, KernelProg, ProgSpec, TestInput};
use xway_maps::{Env, Guard, Map};
use xway_object::{MapDef, Program};
use xway_packet::{Pool, PoolConfig};
use xway_testkit::Rng;
use xway_verifier::{Config, MapsView};
use xway_vm::SystemHost;

use crate::subject::kernel_maps;

/// Keys that one run of the kernel's program takes.
const KEYS: usize = 128;

/// Looks each key of the packet up and puts it in if it is not there; returns the hits.
fn program(map: &KernelMap) -> KernelProg {
    let fd = map.as_fd().as_raw_fd();
    let text = format!(
        "r6 = *(u32 *)(r1 +0)\n r9 = *(u32 *)(r1 +4)\n r7 = 0\n r8 = 0\n \
         again:\n r1 = r6\n r1 += 4\n if r1 > r9 goto out\n \
         r1 = map[fd:{fd}]\n r2 = r6\n call 1\n if r0 == 0 goto miss\n r7 += 1\n goto next\n \
         miss:\n r1 = 0\n *(u64 *)(r10 -8) = r1\n r1 = map[fd:{fd}]\n r2 = r6\n r3 = r10\n r3 += -8\n r4 = 0\n call 2\n \
         next:\n r6 += 4\n r8 += 1\n if r8 < {KEYS} goto again\n \
         out:\n r0 = r7\n exit\n"
    );
    let insns = assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    KernelProg::load(&ProgSpec::xdp("lru", &insns)).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn kernel_hits(spec: &MapSpec, trace: &[u32]) -> usize {
    let map = KernelMap::create("lru", spec).unwrap();
    let program = program(&map);
    let run = |keys: &[u32]| {
        let packet: Vec<u8> = keys.iter().flat_map(|key| key.to_ne_bytes()).collect();
        program.test_run(&TestInput::packet(&packet)).unwrap().ret as usize
    };
    trace.chunks_exact(KEYS).map(run).sum()
}

fn our_hits(spec: &MapSpec, trace: &[u32]) -> usize {
    let map = Map::create(spec, &Env::with_cpus(2)).unwrap();
    let guard = Guard::pin();
    let hit = |key: &&u32| {
        let found = map.value(0, &key.to_ne_bytes(), &guard).is_some();
        if !found {
            map.prog_update(0, &key.to_ne_bytes(), &[0; 8], 0).unwrap();
        }
        found
    };
    trace[..trace.len() / KEYS * KEYS].iter().filter(hit).count()
}

/// As [`program`] for one key: 2 for a hit, 1 for a miss.
const ONE_KEY: &str = "r6 = *(u32 *)(r1 +0)\nr9 = *(u32 *)(r1 +4)\nr0 = 0\nr1 = r6\nr1 += 4\nif r1 > r9 goto out\n\
    r1 = *(u32 *)(r6 +0)\n*(u32 *)(r10 -4) = r1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto miss\n\
    r0 = 2\nexit\nmiss: r1 = 0\n*(u64 *)(r10 -16) = r1\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -16\n\
    r4 = 0\ncall 2\nr0 = 1\nout: exit";

/// A key in each frame, bursts of 64 through machine code.
fn compiled_hits(spec: &MapSpec, trace: &[u32], options: &Options) -> usize {
    const BURST: usize = 64;
    let map = Map::create(spec, &Env::with_cpus(2)).unwrap();
    let defs = [MapDef::new("lru", spec.clone())];
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let insns = assemble(ONE_KEY).unwrap_or_else(|error| panic!("{error}"));
    let image = Program { name: "lru".into(), section: "xdp".into(), insns, ..Program::default() };
    let program = xway_vm::Program::verify(&image, &[map], &view, &Config::default()).unwrap();
    let code = compile(&program, program.proof().unwrap(), options).unwrap();
    let mut pool = Pool::new(PoolConfig::new(BURST as u32)).unwrap();
    let mut frames: Vec<_> = (0..BURST).map(|_| pool.alloc().unwrap()).collect();
    let host = SystemHost::new();
    let mut hits = 0;
    for keys in trace[..trace.len() / KEYS * KEYS].chunks_exact(BURST) {
        frames.iter_mut().zip(keys).for_each(|(frame, key)| frame.fill(&key.to_ne_bytes()).unwrap());
        let (guard, mut rets) = (Guard::pin(), [0; BURST]);
        let mut env = RunEnv::new(&guard, &host, 0);
        code.run_burst(&mut frames, &mut env, &mut rets).unwrap();
        assert!(rets.iter().all(|ret| matches!(ret, 1 | 2)), "{rets:?}");
        hits += rets.iter().filter(|ret| **ret == 2).count();
    }
    frames.drain(..).for_each(|frame| pool.release(frame));
    hits
}

/// Keys of which the n-th comes with a weight of `1 / n^skew`, numbered at random.
fn zipf(rng: &mut Rng, keys: usize, skew: f64, len: usize) -> Vec<u32> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys)
        .map(|n| {
            sum += (n as f64).powf(-skew);
            sum
        })
        .collect();
    let draw = |rng: &mut Rng| {
        let at = rng.below(1 << 53) as f64 / (1u64 << 53) as f64 * sum;
        (sums.partition_point(|limit| *limit < at) as u32).wrapping_mul(2_654_435_761)
    };
    (0..len).map(|_| draw(rng)).collect()
}

/// Name and keys of each trace for a map of this size.
fn traces(entries: usize) -> Vec<(&'static str, Vec<u32>)> {
    let mut rng = Rng::new(entries as u64);
    let len = (entries * 30).max(300_000);
    // New keys that never come again.
    let fresh = |n: usize| 0x8000_0000 + n as u32;
    let mixed = |skewed: &[u32], share: usize| -> Vec<u32> {
        skewed.iter().enumerate().map(|(n, key)| if n % 10 < share { fresh(n) } else { *key }).collect()
    };
    let one = zipf(&mut rng, entries * 10, 1.0, len);
    vec![
        ("skewed 0.8, 10 times the keys", zipf(&mut rng, entries * 10, 0.8, len)),
        ("skewed 1.0, 10 times the keys", one.clone()),
        ("skewed 1.2, 10 times the keys", zipf(&mut rng, entries * 10, 1.2, len)),
        ("even, 2 times the keys", (0..len).map(|_| rng.below(entries as u64 * 2) as u32).collect()),
        ("even, as many keys as fit", (0..len).map(|_| rng.below(entries as u64) as u32).collect()),
        ("round and round, 1.1 times the keys", (0..len).map(|n| (n % (entries * 11 / 10)) as u32).collect()),
        ("skewed 1.0 and 3 in 10 of a scan", mixed(&one, 3)),
        ("skewed 1.0 under a flood, 8 in 10", mixed(&one, 8)),
    ]
}

#[test]
fn lru_hit_rates_are_not_below_the_kernels() {
    if !kernel_maps("lru_hit_rates_are_not_below_the_kernels") {
        return;
    }
    let plain = Options { stage: false, single: false, ..Options::default() };
    let staged = Options { stage_from: Some(0), single: false, ..Options::default() };
    println!("| trace | entries | ours, % hits | machine code | staged | Linux, % hits |\n|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    for entries in [1000usize, 10_000] {
        let spec = MapSpec::new(MapType::LruHash, 4, 8, entries as u32);
        for (name, trace) in traces(entries) {
            let percent = |hits: usize| 100.0 * hits as f64 / trace.len() as f64;
            let theirs = percent(kernel_hits(&spec, &trace));
            let ours = [
                ("the map's own calls", our_hits(&spec, &trace)),
                ("machine code", compiled_hits(&spec, &trace, &plain)),
                ("staged machine code", compiled_hits(&spec, &trace, &staged)),
            ]
            .map(|(way, hits)| (way, percent(hits)));
            println!("| {name} | {entries} | {:.1} | {:.1} | {:.1} | {theirs:.1} |", ours[0].1, ours[1].1, ours[2].1);
            // Which keys go is a matter of chance on both sides; a lasting difference is not.
            for (way, ours) in ours.into_iter().filter(|(_, ours)| *ours < theirs - 2.0) {
                wrong.push(format!("{name}, {entries}, {way}: ours {ours:.1}, the kernel's {theirs:.1}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
