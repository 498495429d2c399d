//! The program side: helpers on the kernel's maps, called by small programs through test runs, beside the same calls on ours.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_isa::assemble;
use xway_kernel::{KernelMap, KernelProg, ProgSpec, TestInput};
use xway_maps::{Guard, Map};
use xway_testkit::Rng;
use xway_trial::{ENGINES, Trial};

use crate::create::valid;
use crate::subject::{Kernels, MapUnderTest, Ours, World, kernel_maps};

/// What a helper returned, as the 64 bits that the program sees.
type Ret = u64;

/// Where things lie in the packet that carries a call into the kernel and its result out.
const RET: usize = 0;
const CPU: usize = 8;
const FLAGS: usize = 16;
const KEY: usize = 24;

/// The kernel's map with one program for each helper.
struct KernelSide {
    map: KernelMap,
    programs: Vec<(&'static str, KernelProg)>,
}

impl KernelSide {
    fn new(spec: &MapSpec, helpers: &[&'static str]) -> KernelSide {
        let map = KernelMap::create("driver", spec).unwrap();
        let programs = helpers.iter().map(|helper| (*helper, program(&map, spec, helper))).collect();
        KernelSide { map, programs }
    }

    /// Runs the program of a helper: its result, the CPU it ran on, and the value it left.
    fn call(&self, helper: &str, key: &[u8], value: &[u8], flags: u64) -> (Ret, u32, Vec<u8>) {
        let (_, program) = self.programs.iter().find(|(name, _)| *name == helper).unwrap();
        let mut packet = vec![0; KEY];
        packet[FLAGS..KEY].copy_from_slice(&flags.to_ne_bytes());
        packet.extend(key);
        packet.resize(KEY + key.len().next_multiple_of(8), 0);
        packet.extend(value);
        packet.resize(packet.len().max(64), 0);
        let output = program.test_run(&TestInput::packet(&packet)).unwrap();
        assert_eq!(output.ret, 2, "the driver ran to its end");
        let word = |at: usize| u64::from_ne_bytes(output.data[at..at + 8].try_into().unwrap());
        let value_at = KEY + key.len().next_multiple_of(8);
        (word(RET), word(CPU) as u32, output.data[value_at..value_at + value.len()].to_vec())
    }
}

/// A program that calls one helper with what the packet holds.
fn program(map: &KernelMap, spec: &MapSpec, helper: &str) -> KernelProg {
    let fd = map.as_fd().as_raw_fd();
    let source = KernelMap::create("source", &MapSpec::new(MapType::Array, 4, 4096, 1)).unwrap();
    let value_at = KEY + (spec.key_size as usize).next_multiple_of(8);
    let len = (value_at + spec.value_size as usize).max(64);
    let words = (spec.value_size as usize).div_ceil(8);
    let down = words * 8;
    // Values that a helper fills go through the stack.
    let to_packet: String = (0..spec.value_size as usize)
        .map(|at| {
            let from = at as i64 - down as i64;
            format!("r1 = *(u8 *)(r10 {from:+})\n *(u8 *)(r7 +{}) = r1\n", value_at + at)
        })
        .collect();
    let to_stack: String =
        (0..words).map(|n| format!("r1 = 0\n *(u64 *)(r10 {:+}) = r1\n", n as i64 * 8 - down as i64)).collect();
    let arguments = format!("r1 = map[fd:{fd}]\n r2 = r7\n r2 += {KEY}\n");
    let body = match helper {
        "lookup" => {
            // What is found is copied out, and its first byte counted up in place.
            let copy: String = (0..spec.value_size as usize)
                .map(|at| format!("r1 = *(u8 *)(r0 +{at})\n *(u8 *)(r7 +{}) = r1\n", value_at + at))
                .collect();
            format!(
                "{arguments} call 1\n r8 = 0\n if r0 == 0 goto done\n r8 = 1\n {copy} r1 = *(u8 *)(r0 +0)\n r1 += 1\n \
                 *(u8 *)(r0 +0) = r1\n done:\n r0 = r8\n"
            )
        }
        "update" => format!("{arguments} r3 = r7\n r3 += {value_at}\n r4 = *(u64 *)(r7 +{FLAGS})\n call 2\n"),
        "delete" => format!("{arguments} call 3\n"),
        "push" => format!("r1 = map[fd:{fd}]\n r2 = r7\n r2 += {value_at}\n r3 = *(u64 *)(r7 +{FLAGS})\n call 87\n"),
        "pop" | "peek" => {
            let id = if helper == "pop" { 88 } else { 89 };
            format!(
                "{to_stack} r1 = map[fd:{fd}]\n r2 = r10\n r2 += -{down}\n call {id}\n r8 = r0\n {to_packet} r0 = r8\n"
            )
        }
        // The helper takes no packet memory: the record comes from a value of another map.
        "output" => {
            let data = source.as_fd().as_raw_fd();
            format!(
                "r1 = 0\n *(u32 *)(r10 -4) = r1\n r1 = map[fd:{data}]\n r2 = r10\n r2 += -4\n call 1\n if r0 == 0 goto out\n \
                 r2 = r0\n r1 = map[fd:{fd}]\n r3 = *(u64 *)(r7 +{KEY})\n r3 &= 0xfff\n r4 = *(u64 *)(r7 +{FLAGS})\n \
                 call 130\n"
            )
        }
        "query" => format!("r1 = map[fd:{fd}]\n r2 = *(u64 *)(r7 +{FLAGS})\n call 134\n"),
        _ => unreachable!("{helper}"),
    };
    let text = format!(
        "r6 = r1\n r7 = *(u32 *)(r1 +0)\n r2 = *(u32 *)(r1 +4)\n r3 = r7\n r3 += {len}\n if r3 > r2 goto out\n call 8\n \
         *(u64 *)(r7 +{CPU}) = r0\n {body} *(u64 *)(r7 +{RET}) = r0\n r0 = 2\n exit\n out:\n r0 = 1\n exit\n"
    );
    let insns = assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    KernelProg::load(&ProgSpec::xdp("driver", &insns)).unwrap_or_else(|error| panic!("{helper}: {error}\n{text}"))
}

fn ret(result: Result<(), Errno>) -> Ret {
    result.map_or_else(|errno| errno.as_ret(), |()| 0)
}

/// The same call on our map, on the same CPU.
fn ours(map: &Map, cpu: u32, helper: &str, key: &[u8], value: &[u8], flags: u64) -> (Ret, Vec<u8>) {
    let mut value = value.to_vec();
    let result = match helper {
        "lookup" => {
            let guard = Guard::pin();
            map.value(cpu, key, &guard).map_or(0, |found| {
                value = found.to_vec();
                found.store(0, 1, u64::from(value[0]) + 1).unwrap();
                1
            })
        }
        "update" => ret(map.prog_update(cpu, key, &value, flags)),
        "delete" => ret(map.prog_delete(cpu, key)),
        "push" => ret(map.push(&value, flags)),
        "pop" => {
            value.fill(0);
            ret(map.pop(&mut value))
        }
        "peek" => {
            value.fill(0);
            ret(map.peek(&mut value))
        }
        _ => unreachable!("{helper}"),
    };
    (result, value)
}

fn create(world: &Ours, spec: &MapSpec) -> Arc<Map> {
    Map::create(spec, &world.env).unwrap()
}

#[test]
fn helpers_on_keyed_maps() {
    if !kernel_maps("helpers_on_keyed_maps") {
        return;
    }
    let world = Ours::new();
    use MapType::*;
    let mut specs: Vec<MapSpec> = [Hash, PercpuHash, LruHash, LruPercpuHash, Array, PercpuArray].map(valid).to_vec();
    specs.push(valid(Hash).with_flags(map_flags::NO_PREALLOC));
    specs.push(valid(PercpuHash).with_flags(map_flags::NO_PREALLOC));
    specs.push(valid(LpmTrie));
    specs.push(MapSpec { key_size: 13, value_size: 21, ..valid(Hash) });
    specs.push(MapSpec { value_size: 3, max_entries: 7, ..valid(PercpuArray) });
    for (n, spec) in specs.iter().enumerate() {
        let lru = matches!(spec.map_type, LruHash | LruPercpuHash);
        let spec = MapSpec { max_entries: if lru { 4096 } else { spec.max_entries }, ..spec.clone() };
        let array = matches!(spec.map_type, Array | PercpuArray);
        let helpers = if array { &["lookup", "update"][..] } else { &["lookup", "update", "delete"] };
        let kernel = KernelSide::new(&spec, helpers);
        let map = create(&world, &spec);
        let mut rng = Rng::new(n as u64);
        for step in 0..800 {
            let helper = *rng.pick(helpers);
            let mut key = vec![0; spec.key_size as usize];
            key[0] = rng.below(7) as u8;
            if spec.map_type == LpmTrie {
                key[0] = *rng.pick(&[0, 1, 8, 9, 31, 32, 33]);
                key[4] = *rng.pick(&[0, 0x80, 0xff]);
            }
            let value = rng.bytes(spec.value_size as usize);
            let flags = *rng.pick(&[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1 << 32, u64::MAX]);
            let (kernel_ret, cpu, kernel_value) = kernel.call(helper, &key, &value, flags);
            let (our_ret, our_value) = ours(&map, cpu, helper, &key, &value, flags);
            let what = format!("{} step {step}: {helper} {key:?} {flags:#x}", spec.map_type.name());
            assert_eq!(errno_of(our_ret), errno_of(kernel_ret), "{what}");
            assert_eq!(our_value, kernel_value, "{what}");
            if step % 40 == 0 {
                assert_eq!(contents(&map), kernel.map.contents().unwrap(), "{what}");
            }
        }
    }
}

/// Key and value of each element.
fn contents(map: &Arc<Map>) -> Vec<crate::subject::Pair> {
    let mut all: Vec<_> = map
        .keys()
        .unwrap()
        .into_iter()
        .map(|key| {
            let mut value = vec![0; map.user_value_size()];
            map.lookup(&key, &mut value, 0).unwrap();
            (key, value)
        })
        .collect();
    all.sort();
    all
}

/// A result as an errno where it is one; helpers with an `int` behind them leave 32 or 64 bits of it.
fn errno_of(ret: Ret) -> i64 {
    i64::from(ret as i32)
}

#[test]
fn helpers_on_queues_and_stacks() {
    if !kernel_maps("helpers_on_queues_and_stacks") {
        return;
    }
    let world = Ours::new();
    for map_type in [MapType::Queue, MapType::Stack] {
        for (value_size, max_entries) in [(4, 1), (8, 4), (13, 3), (24, 17)] {
            let spec = MapSpec { value_size, max_entries, ..valid(map_type) };
            let kernel = KernelSide::new(&spec, &["push", "pop", "peek"]);
            let map = create(&world, &spec);
            let mut rng = Rng::new(u64::from(value_size));
            for step in 0..500 {
                let helper = *rng.pick(&["push", "push", "pop", "peek"]);
                let value = rng.bytes(value_size as usize);
                let flags = *rng.pick(&[0, 0, 0, 1, 2, 2, 3, 4, 1 << 33]);
                let (kernel_ret, _, kernel_value) = kernel.call(helper, &[], &value, flags);
                let (our_ret, our_value) = ours(&map, 0, helper, &[], &value, flags);
                let what = format!("{} step {step}: {helper} {flags:#x}", map_type.name());
                assert_eq!(errno_of(our_ret), errno_of(kernel_ret), "{what}");
                assert_eq!(our_value, kernel_value, "{what}");
            }
        }
    }
}

#[test]
fn ring_buffers_fill_to_the_same_byte() {
    if !kernel_maps("ring_buffers_fill_to_the_same_byte") {
        return;
    }
    let world = Ours::new();
    for max_entries in [4096, 16384] {
        for seed in 0..8 {
            let spec = MapSpec { max_entries, ..valid(MapType::Ringbuf) };
            let kernel = KernelSide::new(&spec, &["output", "query"]);
            let map = create(&world, &spec);
            let ring = map.ringbuf().unwrap();
            let mut rng = Rng::new(seed);
            let mut full = 0;
            while full < 12 {
                let size = if full > 6 { rng.below(24) } else { rng.below(1 << (seed + 5)) };
                let flags = *rng.pick(&[0, 0, 0, 1, 2, 3, 4, 1 << 40]);
                let (kernel_ret, ..) = kernel.call("output", &size.to_ne_bytes(), &[], flags);
                let our_ret = ret(ring.output(&vec![0; size as usize], flags));
                assert_eq!(errno_of(our_ret), errno_of(kernel_ret), "{size} bytes, flags {flags:#x}");
                full += u32::from(our_ret == Errno::EAGAIN.as_ret());
                for what in 0..5 {
                    let (kernel_ret, ..) = kernel.call("query", &[], &[], what);
                    // 4 is the kernel's own business: where an overwriting ring has got to.
                    if what < 4 {
                        assert_eq!(ring.query(what), kernel_ret, "query {what}");
                    }
                }
            }
        }
    }
}

/// `bpf_redirect_map` to a socket that is there, that was taken out, and that never was.
#[test]
fn redirects_to_sockets() {
    if !kernel_maps("redirects_to_sockets") {
        return;
    }
    let ours = Ours::new();
    let kernels = Kernels::default();
    let spec = MapSpec::new(MapType::Xskmap, 4, 4, 4);
    let theirs = KernelMap::create("sockets", &spec).unwrap();
    let map = create(&ours, &spec);
    // Word 0 of the packet is the key, word 1 the flags; the verdict is what the helper returned.
    let text = |map: &str, lookup: bool| {
        let call = if lookup {
            format!(
                "*(u32 *)(r10 -4) = r3\n r1 = {map}\n r2 = r10\n r2 += -4\n call 1\n if r0 == 0 goto out\n r0 = 3\n exit\n"
            )
        } else {
            format!("r4 = *(u32 *)(r2 +4)\n r1 = {map}\n r2 = r3\n r3 = r4\n call 51\n exit\n")
        };
        let text = format!(
            "r2 = *(u32 *)(r1 +0)\n r3 = *(u32 *)(r1 +4)\n r4 = r2\n r4 += 14\n if r4 > r3 goto out\n \
             r3 = *(u32 *)(r2 +0)\n {call} out:\n r0 = 0\n exit\n"
        );
        assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    };
    for lookup in [false, true] {
        let fd = format!("map[fd:{}]", theirs.as_fd().as_raw_fd());
        let program = KernelProg::load(&ProgSpec::xdp("sockets", &text(&fd, lookup))).unwrap();
        let image = xway_object::Program { insns: text("map[idx:0]", lookup), ..Default::default() };
        let trials = ENGINES.map(|engine| Trial::link(&image, std::slice::from_ref(&map), engine).unwrap());
        let host = xway_vm::SystemHost::new();
        for filled in [&[][..], &[0, 2], &[2], &[]] {
            for key in 0..4u32 {
                let _ = (map.delete(&key.to_ne_bytes()), theirs.delete(&key.to_ne_bytes()));
                if filled.contains(&key) {
                    map.update(&key.to_ne_bytes(), &ours.socket().to_ne_bytes(), 0).unwrap();
                    theirs.update(&key.to_ne_bytes(), &kernels.socket().to_ne_bytes(), 0).unwrap();
                }
            }
            for key in [0u32, 1, 2, 3, 4, u32::MAX] {
                for flags in [0u32, 1, 2, 3, 4, 8, 16, 24] {
                    let packet = [&key.to_ne_bytes()[..], &flags.to_ne_bytes(), &[0; 56]].concat();
                    let theirs = program.test_run(&TestInput::packet(&packet)).unwrap().ret;
                    for (trial, engine) in trials.iter().zip(ENGINES) {
                        let ours = trial.test_run(&xway_vm::TestRun::new(&packet), &host).unwrap().retval;
                        let what = format!("key {key} flags {flags} filled {filled:?} look-up {lookup}");
                        assert_eq!(ours, theirs, "{engine:?}: {what}");
                    }
                }
            }
        }
    }
}
