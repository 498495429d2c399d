//! Nanoseconds a packet: burst code, single-packet code and the interpreter side by side.
//!
//! `cargo bench -p xway-jit [-- NAME]`. Sides take turns, medians of rounds are shown; pin it with `taskset -c 1`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use xway_abi::{MapSpec, MapType};
use xway_jit::{Options, RunEnv, compile};
use xway_maps::{Guard, Map};
use xway_object::{MapDef, Program};
use xway_packet::{Burst, Pool, PoolConfig};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::{Env, FixedHost};

/// A case: its name, the program, its maps.
struct Case {
    name: &'static str,
    text: String,
    maps: Vec<MapDef>,
}

const PARSE: &str = "
    r6 = r1
    r2 = *(u32 *)(r1 +0)
    r3 = *(u32 *)(r1 +4)
    r4 = r2
    r4 += 34
    if r4 > r3 goto pass
    r5 = *(u16 *)(r2 +12)
    if r5 != 8 goto pass
    r5 = *(u8 *)(r2 +23)
";

fn cases() -> Vec<Case> {
    let case = |name, text: String, maps| Case { name, text, maps };
    let array = || MapDef::new("array", MapSpec::new(MapType::Array, 4, 8, 256));
    let percpu = || MapDef::new("counters", MapSpec::new(MapType::PercpuArray, 4, 8, 256));
    let mut ten = String::from("r6 = 0\n");
    for n in 0..10 {
        ten.push_str(&format!(
            "*(u32 *)(r10 -4) = {n}\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto out\n\
             r1 = *(u64 *)(r0 +0)\nr6 += r1\n"
        ));
    }
    ten.push_str("out: r0 = 2\nr0 += r6\nexit");
    vec![
        case("empty", "r0 = 2\nexit".into(), vec![]),
        case("drop after reading", format!("{PARSE}\nr0 = 1\nexit\npass: r0 = 2\nexit"), vec![]),
        case(
            "MAC swap",
            "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 14\nif r4 > r3 goto pass\n\
             r5 = *(u32 *)(r2 +0)\nr7 = *(u16 *)(r2 +4)\nr8 = *(u32 *)(r2 +6)\nr9 = *(u16 *)(r2 +10)\n\
             *(u32 *)(r2 +0) = r8\n*(u16 *)(r2 +4) = r9\n*(u32 *)(r2 +6) = r5\n*(u16 *)(r2 +10) = r7\n\
             r0 = 3\nexit\npass: r0 = 2\nexit"
                .into(),
            vec![],
        ),
        case(
            "parse + counter",
            format!(
                "{PARSE}\n*(u32 *)(r10 -4) = r5\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto pass\n\
                 r1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\npass: r0 = 2\nexit"
            ),
            vec![percpu()],
        ),
        case("10 array look-ups", ten, vec![array()]),
    ]
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    println!("{:<22}{:>12}{:>12}{:>12}{:>12}  ns a packet", "", "interpreter", "single", "burst", "plain burst");
    for case in cases().iter().filter(|c| only.is_empty() || only.iter().any(|o| c.name.contains(o))) {
        measure(case, false);
        measure(case, true);
    }
}

const FRAMES: usize = 64;
const ROUNDS: usize = 15;

fn measure(case: &Case, spread: bool) {
    let insns = xway_isa::assemble(&case.text).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let image = Program { name: "bench".into(), section: "xdp".into(), insns, ..Program::default() };
    let view = MapsView { maps: &case.maps, btf: None, kernel: None, license: Some("GPL") };
    let proof = verify(&image, &view, &Config::default()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let maps: Vec<Arc<Map>> =
        case.maps.iter().map(|d| Map::create(&d.spec, &xway_maps::Env::with_cpus(1)).expect("a map")).collect();
    let program = xway_vm::Program::link(&image, &maps).expect("links");
    let code = compile(&program, &proof, &Options::default()).expect("compiles");
    let plain = compile(&program, &proof, &Options::plain()).expect("compiles");
    if std::env::var_os("XWAY_DUMP").is_some() {
        let text = compile(&program, &proof, &Options { keep_text: true, ..Options::default() }).expect("compiles");
        text.texts().iter().take(2).for_each(|t| println!("{t}"));
    }
    let mut pool = Pool::new(PoolConfig::new(FRAMES as u32)).expect("packet memory");
    let mut burst = Burst::new();
    let mut packet = vec![0u8; 64];
    packet[12..14].copy_from_slice(&[8, 0]);
    packet[23] = 6;
    while let Ok(mut frame) = pool.alloc() {
        frame.fill(&packet).expect("room");
        if spread {
            // Packets at the same place of their pages share a few cache sets, and loads look like earlier stores.
            let (n, data) = (burst.len() as u32, frame.data());
            let at = data + n % 32 * 64;
            frame.place(at, at, at + packet.len() as u32).expect("room");
            frame.packet_mut().copy_from_slice(&packet);
        }
        burst.push(frame).expect("room");
    }
    let (guard, host) = (Guard::pin(), FixedHost::new(1));
    let mut env = RunEnv::new(&guard, &host, 0);
    let mut interpreter = Env::new(&guard, &host, 0);
    let mut rets = [0u64; FRAMES];
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let mut side = |n: usize, turns: usize, run: &mut dyn FnMut()| {
            let start = Instant::now();
            (0..turns).for_each(|_| run());
            times[n].push(start.elapsed().as_nanos() as f64 / (turns * FRAMES) as f64);
        };
        side(0, 200, &mut || {
            for frame in burst.frames_mut() {
                black_box(xway_vm::run(&program, frame, &mut interpreter).ret);
            }
        });
        side(1, 2000, &mut || {
            for frame in burst.frames_mut() {
                black_box(code.run_one(frame, &mut env).expect("CPU 0"));
            }
        });
        side(2, 4000, &mut || {
            code.run_burst(burst.frames_mut(), &mut env, &mut rets).expect("CPU 0");
            black_box(&rets);
        });
        side(3, 4000, &mut || {
            plain.run_burst(burst.frames_mut(), &mut env, &mut rets).expect("CPU 0");
            black_box(&rets);
        });
    }
    let median = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let [a, b, c, d] = times.each_mut().map(median);
    let stats = code.stats();
    println!(
        "{:<22}{a:>12.2}{b:>12.2}{c:>12.2}{d:>12.2}  {} instructions, {} bytes, compiled in {:.2} ms",
        if spread { "  spread over pages" } else { case.name },
        stats.insns,
        stats.code_len,
        stats.time.as_secs_f64() * 1e3
    );
    pool.release_burst(&mut burst);
}
