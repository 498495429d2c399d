//! What the checked interpreter costs a packet: `cargo bench -p xway-vm`.
//!
//! `count` is the counting parser of `bpf/samples` (Ethernet, VLAN, IPv4 or IPv6, TCP or UDP, then a row of a per-CPU array);
//! times are per packet. `alu` is a loop of register arithmetic, times are per instruction.

use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use xway_maps::{Guard, Map};
use xway_object::{LoadOptions, Object};
use xway_packet::{Pool, PoolConfig};
use xway_testkit::clang;
use xway_testkit::packets::Packet;
use xway_vm::{Env, FixedHost, Program};

fn main() {
    divan::main();
}

/// Packets a sample runs over, as one burst.
const BURST: usize = 64;

#[divan::bench(args = ["ipv4-udp", "ipv4-tcp", "vlan-ipv4-tcp", "ipv6-udp", "mixed"])]
fn count(bencher: Bencher, kind: &str) {
    let Some(program) = counting_parser() else { return };
    let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (c, d) = ([0x20; 16], [0x21; 16]);
    let kinds = [
        ("ipv4-udp", Packet::eth().ipv4(a, b).udp(1, 2).pattern(18).build()),
        ("ipv4-tcp", Packet::eth().ipv4(a, b).tcp(1, 2, 2).build()),
        ("vlan-ipv4-tcp", Packet::eth().vlan(5).ipv4(a, b).tcp(1, 2, 2).build()),
        ("ipv6-udp", Packet::eth().ipv6(c, d).udp(1, 2).pattern(18).build()),
    ];
    let wanted: Vec<&Vec<u8>> = kinds.iter().filter(|(k, _)| *k == kind || kind == "mixed").map(|(_, p)| p).collect();
    let host = FixedHost::new(1);
    let mut pool = Pool::new(PoolConfig::new(BURST as u32)).expect("pool");
    let mut frames: Vec<_> = (0..BURST).map(|_| pool.alloc().expect("frame")).collect();
    for (frame, packet) in frames.iter_mut().zip(wanted.into_iter().cycle()) {
        frame.fill(packet).expect("room");
    }
    bencher.counter(ItemsCount::new(BURST)).bench_local(|| {
        let guard = Guard::pin();
        let mut env = Env::new(&guard, &host, 0);
        for frame in &mut frames {
            let outcome = xway_vm::run(&program, frame, &mut env);
            assert_eq!(outcome.ret, 2, "{:?}", outcome.fault);
        }
    });
    for frame in frames {
        pool.release(frame);
    }
}

fn counting_parser() -> Option<Arc<Program>> {
    if clang::available().is_err() {
        eprintln!("not run: count needs clang");
        return None;
    }
    let source = clang::repository().join("bpf/samples/count.bpf.c");
    let bytes = clang::compile_file(&source, &[]).expect("the sample compiles");
    let object = Object::parse(&bytes, &LoadOptions::default()).expect("the sample loads");
    let env = xway_maps::Env::with_cpus(2);
    let maps: Vec<Arc<Map>> = object.maps.iter().map(|m| Map::create(&m.spec, &env).expect("map")).collect();
    Some(Program::link(&object.programs[0], &maps).expect("the sample links"))
}

/// The least program: what a run costs before its first instruction.
#[divan::bench]
fn pass(bencher: Bencher) {
    let insns = xway_isa::assemble("r0 = 2\nexit").expect("assembles");
    let program = Program::link(&xway_object::Program { insns, ..Default::default() }, &[]).expect("links");
    let host = FixedHost::new(1);
    let mut pool = Pool::new(PoolConfig::new(1)).expect("pool");
    let mut frame = pool.alloc().expect("frame");
    frame.fill(&[0; 64]).expect("room");
    bencher.counter(ItemsCount::new(BURST)).bench_local(|| {
        let guard = Guard::pin();
        let mut env = Env::new(&guard, &host, 0);
        for _ in 0..BURST {
            assert_eq!(xway_vm::run(&program, &mut frame, &mut env).ret, 2);
        }
    });
    pool.release(frame);
}

#[divan::bench]
fn alu(bencher: Bencher) {
    const ROUNDS: usize = 1000;
    let text = format!(
        "r0 = 0\nr1 = {ROUNDS}\nr0 += r1\nr0 ^= 5\nr2 = r0\nr2 <<= 3\nr2 += 1\nr1 -= 1\nif r1 != 0x0 goto pc-7\nexit\n"
    );
    let insns = xway_isa::assemble(&text).expect("assembles");
    let image = xway_object::Program { insns, kind: xway_object::ProgramKind::Raw, ..Default::default() };
    let program = Program::link(&image, &[]).expect("links");
    let host = FixedHost::new(1);
    bencher.counter(ItemsCount::new(7 * ROUNDS)).bench_local(|| {
        let guard = Guard::pin();
        let outcome = xway_vm::run_raw(&program, &mut [], &mut Env::new(&guard, &host, 0));
        assert!(outcome.fault.is_none());
        outcome.ret
    });
}
