//! Burst code beside a thread that changes its maps: what nobody takes out is found by every packet, and what is found is good memory.
//!
//! The model checker runs the maps' own readers (`crates/maps/tests/loom.rs`); what generated code does by itself with a map's memory
//! (`lower/lookup.rs`, `trie.rs`, `inner.rs`, `answer.rs`) meets a writer here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xway_abi::{MapSpec, MapType, map_flags};
use xway_jit::{Compiled, Options, RunEnv, compile};
use xway_maps::{Guard, Map};
use xway_object::{MapDef, Program};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, MapsView};
use xway_vm::FixedHost;

/// Changes that the writer makes at least.
const ROUNDS: u32 = 20_000;
/// Packets of a burst, and keys that stay.
const KEYS: u32 = 32;

/// The packet's key, of four bytes from byte 30 on, in r7; what is called with it comes behind.
const HEAD: &str = "r6 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 34\nr0 = 1\nif r2 > r8 goto out\n\
                    r7 = *(u32 *)(r6 +30)\n";
/// The value's first four bytes, or 0.
const TAIL: &str = "if r0 == 0 goto out\nr0 = *(u32 *)(r0 +0)\nout: exit";

fn create(spec: &MapSpec) -> Arc<Map> {
    Map::create(spec, &xway_maps::Env::with_cpus(2)).unwrap()
}

fn code(text: &str, spec: &MapSpec, map: &Arc<Map>, options: Options) -> Arc<Compiled> {
    let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let image = Program { name: "reader".into(), section: "xdp".into(), insns, ..Program::default() };
    let defs = [MapDef::new("changed", spec.clone())];
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let program = xway_vm::Program::verify(&image, std::slice::from_ref(map), &view, &Config::default()).unwrap();
    compile(&program, program.proof().unwrap(), &options).unwrap()
}

/// Runs bursts of a packet for each key while `change` is called with numbers from 0 on; `right` says of a key whether what came of it is
/// right.
fn beside(code: &Compiled, keys: &[[u8; 4]], right: impl Fn(usize, u64) -> bool + Sync, change: impl Fn(u32)) {
    let (done, right) = (AtomicBool::new(false), &right);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut pool = Pool::new(PoolConfig::new(keys.len() as u32)).unwrap();
            let mut frames: Vec<Frame> = keys.iter().map(|_| pool.alloc().unwrap()).collect();
            for (frame, key) in frames.iter_mut().zip(keys) {
                frame.fill(&[[0; 30].as_slice(), key, &[0; 30]].concat()).unwrap();
            }
            let host = FixedHost::new(1);
            let mut bursts = 0u64;
            let mut wrong = None;
            while (!done.load(Ordering::Relaxed) || bursts < 100) && wrong.is_none() {
                let guard = Guard::pin();
                let mut results = vec![0; keys.len()];
                code.run_burst(&mut frames, &mut RunEnv::new(&guard, &host, 1), &mut results).unwrap();
                wrong = results.iter().enumerate().find(|(n, result)| !right(*n, **result)).map(|(n, r)| (n, *r));
                bursts += 1;
            }
            frames.into_iter().for_each(|frame| pool.release(frame));
            wrong
        });
        let mut round = 0;
        while !reader.is_finished() && round < ROUNDS {
            change(round);
            round += 1;
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(reader.join().unwrap(), None, "key and result, about change {round}");
    });
}

fn keys() -> Vec<[u8; 4]> {
    (0..KEYS).map(|n| [10, n as u8, n as u8 & 3, 1]).collect()
}

fn ways() -> [Options; 3] {
    let all = Options { check: true, ..Options::default() };
    [Options { stage_from: Some(0), ..all.clone() }, all.clone(), Options { inline_lookups: false, ..all }]
}

/// Keys that are only given other values, while their neighbours come and go: in buckets with room, in full ones with lines behind them,
/// and in tables that never evict and in those that could.
#[test]
fn keys_that_are_only_replaced_are_always_found() {
    let text = format!("{HEAD}*(u32 *)(r10 -4) = r7\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\n{TAIL}");
    for (map_type, room) in
        [(MapType::Hash, 40), (MapType::Hash, 400), (MapType::LruHash, 4096), (MapType::PercpuHash, 48)]
    {
        for options in ways() {
            let spec = MapSpec::new(map_type, 4, 8, room);
            let map = create(&spec);
            let value = vec![2; map.user_value_size()];
            keys().iter().for_each(|key| map.update(key, &value, 0).unwrap());
            let code = code(&text, &spec, &map, options);
            beside(
                &code,
                &keys(),
                |_, found| found == 0x0202_0202,
                |round| {
                    let key = keys()[round as usize % keys().len()];
                    map.update(&key, &value, map_flags::EXIST).unwrap();
                    let other = [11, round as u8 % 29, (round / 7) as u8 % 5, 0];
                    match round % 3 {
                        0 => drop(map.delete(&other)),
                        _ => drop(map.update(&other, &value, 0)),
                    }
                },
            );
        }
    }
}

/// Addresses of which each has a prefix of its own, while prefixes above, beside and below come and go, so that tables and lists are made
/// anew.
#[test]
fn the_longest_prefix_is_found_while_others_come_and_go() {
    let text = format!(
        "{HEAD}*(u32 *)(r10 -8) = 32\n*(u32 *)(r10 -4) = r7\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 1\n{TAIL}"
    );
    let prefix = |len: u32, address: [u8; 4]| [len.to_ne_bytes(), address].concat();
    for options in ways() {
        let spec = MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 8, 8, 4000) };
        let map = create(&spec);
        for (n, key) in keys().into_iter().enumerate() {
            map.update(&prefix(32, key), &(n as u64 + 2).to_ne_bytes(), 0).unwrap();
        }
        let code = code(&text, &spec, &map, options);
        beside(
            &code,
            &keys(),
            |n, found| found == n as u64 + 2,
            |round| {
                let [a, b, c, _] = keys()[round as usize % 31];
                let address = [a, b, c, (round.wrapping_mul(0x9e37_79b9) >> 24) as u8 | 2];
                let len = [0, 8, 13, 16, 23, 24, 28, 31, 32][round as usize % 9];
                match round / 64 % 3 {
                    0 => drop(map.delete(&prefix(len, address))),
                    _ => map.update(&prefix(len, address), &1000u64.to_ne_bytes(), 0).unwrap(),
                }
            },
        );
    }
}

/// A slot that is given one inner map after the other, each of which has the keys: what is found is one of theirs, and the map that was
/// taken out is good memory until the burst is over.
#[test]
fn inner_maps_are_exchanged_under_their_readers() {
    let text = format!(
        "{HEAD}*(u32 *)(r10 -4) = 1\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto out\n\
         *(u32 *)(r10 -8) = r7\nr2 = r10\nr2 += -8\nr1 = r0\ncall 1\n{TAIL}"
    );
    let kinds = [MapType::Hash, MapType::LruHash, MapType::Array];
    for (outer, inner) in kinds.into_iter().flat_map(|k| [(MapType::ArrayOfMaps, k), (MapType::HashOfMaps, k)]) {
        let template = MapSpec::new(inner, 4, 8, 64);
        let spec = MapSpec { inner: Some(Box::new(template.clone())), ..MapSpec::new(outer, 4, 4, 4) };
        let map = create(&spec);
        let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_ne_bytes).collect();
        let put = |round: u32| {
            let one = create(&template);
            for key in &keys {
                let value = u64::from(u32::from_ne_bytes(*key) << 8 | (round % 100 + 2));
                one.update(key, &value.to_ne_bytes(), 0).unwrap();
            }
            map.set_inner(&1u32.to_ne_bytes(), one).unwrap();
        };
        put(0);
        let code = code(&text, &spec, &map, Options { check: true, ..Options::default() });
        beside(
            &code,
            &keys,
            |n, found| found >> 8 == n as u64 && (2..102).contains(&(found & 0xff)),
            |round| {
                if round < ROUNDS / 20 {
                    put(round);
                }
            },
        );
    }
}

/// Slots of a PROG_ARRAY that are exchanged and emptied while bursts call through them: each packet has the verdict of one of the programs,
/// or goes on behind the call.
#[test]
fn programs_are_exchanged_under_their_callers() {
    let slot = "r2 = map[idx:0]\nr3 = r7\nr3 &= 1\ncall 12\n";
    let text = format!("{HEAD}{slot}r0 = 2\nout: exit");
    // The second goes on to another slot.
    let targets = ["r0 = 3\nexit", "r2 = map[idx:0]\nr3 = 2\ncall 12\nr0 = 4\nexit", "r0 = 5\nexit"];
    let spec = MapSpec::new(MapType::ProgArray, 4, 4, 4);
    let defs = [MapDef::new("changed", spec.clone())];
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    for (options, kept) in ways().into_iter().zip([true, false, true]) {
        let map = create(&spec);
        let programs = targets.map(|text| {
            let image = Program {
                name: "target".into(),
                section: "xdp".into(),
                insns: xway_isa::assemble(text).unwrap(),
                ..Program::default()
            };
            let program =
                xway_vm::Program::verify(&image, std::slice::from_ref(&map), &view, &Config::default()).unwrap();
            // Targets run as machine code, or are interpreted.
            if kept {
                let code = compile(&program, program.proof().unwrap(), &options).unwrap();
                code.keep_with(&program);
            }
            program
        });
        // What stands there when the code is made may become part of it.
        for (slot, program) in [0, 2, 2].into_iter().enumerate() {
            map.set_program(slot as u32, Some(programs[program].clone())).unwrap();
        }
        let code = code(&text, &spec, &map, options);
        let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_ne_bytes).collect();
        beside(
            &code,
            &keys,
            // The first slot has the first program or the second, the second slot the third or none.
            |n, verdict| if n.is_multiple_of(2) { [3, 5, 2].contains(&verdict) } else { [5, 2].contains(&verdict) },
            |round| {
                let first = match round % 5 {
                    0 | 3 => Some(programs[0].clone()),
                    1 | 4 => Some(programs[1].clone()),
                    _ => None,
                };
                map.set_program(0, first.map(|p| p as _)).unwrap();
                map.set_program(1, (!round.is_multiple_of(3)).then(|| programs[2].clone() as _)).unwrap();
            },
        );
        map.clear_programs();
    }
}
