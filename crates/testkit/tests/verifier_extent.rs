//! Lengths, distances to the end and sums of pointers: random programs around them, and what is accepted never faults.
//! `XWAY_PROGRAMS` sets their number.

use std::sync::Arc;

use xway_maps::Guard;
use xway_object::Program;
use xway_packet::{Pool, PoolConfig};
use xway_testkit::Rng;
use xway_verifier::{Config, MapsView, PACKET_LEN_MAX, verify};
use xway_vm::{Env, FixedHost};

#[test]
fn packet_memory_holds_no_longer_packet_than_the_verifier_assumes() {
    assert!(i64::from(xway_packet::layout::CHUNK_MAX) <= PACKET_LEN_MAX);
}

struct Helpers;

impl xway_isa::Names for Helpers {
    fn helper_id(&self, name: &str) -> Option<u32> {
        xway_abi::helper_by_name(name).map(|h| h.id)
    }
}

/// r6 context, r7 data, r8 data_end, r9 a number from the packet; r2 to r5 are worked on, r0 is accessed through.
fn program(rng: &mut Rng) -> String {
    let mut text = String::from(
        "r6 = r1\nr7 = *(u32 *)(r6 +0)\nr8 = *(u32 *)(r6 +4)\nr2 = r7\nr2 += 2\nif r2 > r8 goto out\nr9 = *(u8 *)(r7 +0)\n\
         r2 = r7\nr3 = r8\nr4 = r9\nr5 = 0\n",
    );
    let mut label = 0;
    for _ in 0..3 + rng.below(12) {
        let r = |rng: &mut Rng| 2 + rng.below(4);
        let (a, b) = (r(rng), r(rng));
        let source = [7, 8, 9, a, b][rng.index(5)];
        let k = [-40i64, -20, -8, -4, -1, 0, 1, 2, 4, 8, 14, 20, 34, 60][rng.index(14)];
        match rng.below(14) {
            0 | 1 => text.push_str(&format!("r{a} = r{source}\n")),
            2 | 3 => text.push_str(&format!("r{a} -= r{source}\n")),
            4 | 5 => text.push_str(&format!("r{a} += r{source}\n")),
            6 | 7 => text.push_str(&format!("r{a} += {k}\n")),
            8 => text.push_str(&format!("r{a} <<= 32\nr{a} >>= 32\n")),
            9 => text.push_str(&format!("r{a} &= {}\n", [3, 60, 63, 0xff, 0x7fc][rng.index(5)])),
            10 => text.push_str(&format!("*(u64 *)(r10 -8) = r{a}\nr{b} = *(u64 *)(r10 -8)\n")),
            n => {
                let cond = ["<", "<=", ">", ">=", "s<", "s>", "==", "!="][rng.index(8)];
                let right = if n == 11 { format!("{}", k.abs()) } else { format!("r{source}") };
                let target = if rng.below(4) == 0 {
                    label += 1;
                    format!("l{label}")
                } else {
                    "out".to_owned()
                };
                text.push_str(&format!("if r{a} {cond} {right} goto {target}\n"));
                if target != "out" {
                    text.push_str(&format!("r{b} += {}\n{target}: r0 = 0\n", k.abs()));
                }
            }
        }
    }
    for _ in 0..1 + rng.below(3) {
        let a = [2, 3, 4, 5, 7, 8][rng.index(6)];
        let off = [-14i64, -4, -1, 0, 1, 4, 13, 20, 33][rng.index(9)];
        let size = ["u8", "u16", "u32"][rng.index(3)];
        if rng.below(4) == 0 {
            text.push_str("r1 = 0\nr2 = 0\nr5 = 0\ncall bpf_csum_diff\n");
            break;
        }
        text.push_str(&format!("r0 = *({size} *)(r{a} {off:+})\n"));
    }
    text.push_str("out: r0 = 2\nexit");
    text
}

#[test]
fn what_is_accepted_never_faults() {
    let mut rng = Rng::new(20_261);
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut pool = Pool::new(PoolConfig::new(4)).unwrap();
    let mut accepted = 0;
    let packets: Vec<Vec<u8>> = (14..60u8)
        .chain([61, 62, 63, 64, 80, 100, 255])
        .flat_map(|n| {
            [0u8, 4, 8, 20, 33, 60, n.saturating_sub(14), n, 255].map(|first| {
                let mut p = vec![n; usize::from(n)];
                p[0] = first;
                p
            })
        })
        .collect();
    let programs: u32 = std::env::var("XWAY_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(60_000);
    for n in 0..programs {
        let text = program(&mut rng);
        let insns = xway_isa::assemble_with(&text, &Helpers).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let program = Program { name: "lengths".into(), section: "xdp".into(), insns, ..Program::default() };
        let config = Config { budget: 50_000, errors_max: 1, explain: 0, ..Config::default() };
        if verify(&program, &MapsView::empty(), &config).is_err() {
            continue;
        }
        accepted += 1;
        let linked: Arc<_> = xway_vm::Program::link(&program, &[]).unwrap();
        let mut env = Env::new(&guard, &host, 0);
        for packet in &packets {
            let mut frame = pool.alloc().unwrap();
            frame.fill(packet).unwrap();
            let out = xway_vm::run(&linked, &mut frame, &mut env);
            pool.release(frame);
            if let Some(fault) = out.fault {
                panic!("program {n}, {} bytes, first {}: {fault}\n{text}", packet.len(), packet[0]);
            }
        }
    }
    println!("{accepted} of {programs} accepted");
    assert!(accepted > programs / 30, "{accepted}");
}
