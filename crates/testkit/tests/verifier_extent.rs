//! Lengths, distances to the end and sums of pointers, and packet pointers that meet: random programs around them, and what is accepted
//! never faults, and does the same as machine code. `XWAY_PROGRAMS` sets their number.

// The fuzzer against the kernel has the generators.
#[path = "../examples/fuzz-kernel/generate/extent.rs"]
mod extent;
#[path = "../examples/fuzz-kernel/generate/places.rs"]
mod places;

use std::sync::Arc;

use xway_maps::Guard;
use xway_object::Program;
use xway_packet::{Pool, PoolConfig};
use xway_testkit::Rng;
use xway_trial::{Engine, Trial};
use xway_verifier::{Config, MapsView, PACKET_LEN_MAX, verify};
use xway_vm::{Env, FixedHost};

#[test]
fn packet_memory_holds_no_longer_packet_than_the_verifier_assumes() {
    assert!(i64::from(xway_packet::layout::CHUNK_MAX) <= PACKET_LEN_MAX);
}

#[test]
fn what_is_accepted_never_faults() {
    run(extent::text, 20_261, 30);
}

#[test]
fn pointers_that_meet_never_leave_the_packet() {
    run(places::text, 20_263, 60);
}

/// One in so many accepted programs is compiled.
const COMPILED: u32 = 8;

/// Random programs; one in `share` must be accepted.
fn run(text: fn(&mut Rng) -> String, seed: u64, share: u32) {
    let mut rng = Rng::new(seed);
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut pool = Pool::new(PoolConfig::new(4)).unwrap();
    let (mut accepted, mut bytes) = (0, Rng::new(1));
    let packets: Vec<Vec<u8>> = (14..60u8)
        .chain([61, 62, 63, 64, 80, 99, 100, 101, 255])
        .flat_map(|n| {
            let small = [0u8, 4, 8, 20, 33, 60, n.saturating_sub(14), n, 255].map(|first| {
                let mut p = vec![n; usize::from(n)];
                p[0] = first;
                p
            });
            // Numbers at which something wraps.
            let far = [u64::MAX, 1 << 63, i64::MAX as u64 - 999, u64::MAX - 1998, 1 << 62, 0xffff_ffff_8000_0000];
            let far = far.map(|first| {
                let mut p = vec![n; usize::from(n)];
                p[..8].copy_from_slice(&first.to_le_bytes());
                p
            });
            small.into_iter().chain(far)
        })
        .chain([14usize, 16, 20, 24, 36, 64].into_iter().cycle().take(60).map(|len| bytes.bytes(len)))
        .collect();
    let programs: u32 = std::env::var("XWAY_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(60_000);
    for n in 0..programs {
        let text = text(&mut rng);
        let insns = xway_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let program = Program { name: "lengths".into(), section: "xdp".into(), insns, ..Program::default() };
        let config = Config { budget: 50_000, errors_max: 1, explain: 0, ..Config::default() };
        if verify(&program, &MapsView::empty(), &config).is_err() {
            continue;
        }
        accepted += 1;
        let linked: Arc<_> = xway_vm::Program::link(&program, &[]).unwrap();
        // One in so many is compiled, too, and does the same.
        let compiled = (accepted % COMPILED == 0).then(|| Trial::link(&program, &[], Engine::MachineCode).unwrap());
        let mut env = Env::new(&guard, &host, 0);
        for packet in &packets {
            let mut frame = pool.alloc().unwrap();
            frame.fill(packet).unwrap();
            let out = xway_vm::run(&linked, &mut frame, &mut env);
            let what = || format!("program {n}, {} bytes, first {}", packet.len(), packet[0]);
            if let Some(fault) = out.fault {
                panic!("{}: {fault}\n{text}", what());
            }
            if let Some(trial) = &compiled {
                let (ret, bytes) = (out.ret as u32, frame.packet().to_vec());
                frame.fill(packet).unwrap();
                assert_eq!(trial.run(&mut frame, &host, 0).ret as u32, ret, "{}\n{text}", what());
                assert_eq!(frame.packet(), bytes, "{}\n{text}", what());
            }
            pool.release(frame);
        }
    }
    println!("{accepted} of {programs} accepted");
    assert!(accepted > programs / share, "{accepted}");
}
