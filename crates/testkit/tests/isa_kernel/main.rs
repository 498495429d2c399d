//! The instruction set, 64-bit register by 64-bit register: the running kernel, the interpreter and machine code over the same
//! random programs and numbers leave the same in every register and on the stack.
//!
//! `XWAY_PROGRAMS=1000000 cargo test --release -p xway-testkit --test isa_kernel -- --nocapture` does a million;
//! `XWAY_SEED` starts elsewhere, `XWAY_COMPILE=8` leaves machine code, which takes most of the time, to one program in eight.

mod body;
mod machines;
mod named;
mod table;

use std::time::Instant;

use body::{BODIES, STRIDE};
use machines::Machines;
use xway_abi::{MapSpec, MapType};
use xway_jit::Options;
use xway_object::MapDef;
use xway_testkit::{Needs, Rng};

/// Inputs for each program.
const INPUTS: usize = 3;

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

#[test]
fn random_programs_leave_the_same_everywhere() {
    let needs = Needs::of("testkit::isa_kernel::random_programs_leave_the_same_everywhere");
    // Load-acquire and store-release are of 6.15.
    if !needs.root().kernel(6, 15).met() {
        return;
    }
    let wanted = setting("XWAY_PROGRAMS", 16 * BODIES as u64);
    let first = setting("XWAY_SEED", 1);
    let compile = setting("XWAY_COMPILE", 1).max(1);
    let (started, mut done, mut runs, mut compiled) = (Instant::now(), 0, 0, 0);
    for seed in first.. {
        if done >= wanted {
            break;
        }
        let mut rng = Rng::new(seed);
        let made = body::program(&mut rng);
        let value = MapDef::new("value", MapSpec::new(MapType::Array, 4, (BODIES * STRIDE) as u32, 1));
        let listing = xway_isa::listing(&made.insns, &xway_isa::NoNames).expect("what was encoded can be decoded");
        // Each alone finds what the other hides: passes, and code without them.
        let options = match seed / compile % 2 {
            0 => ("machine code", Options { check: true, ..Options::default() }),
            _ => ("machine code without passes", Options { check: true, ..Options::plain() }),
        };
        let object = Machines::object(made.insns.clone(), vec![value]);
        let options = if seed % compile == 0 { vec![options] } else { Vec::new() };
        compiled += options.len() * BODIES;
        let mut machines =
            Machines::new(object, true, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{listing}"));
        for _ in 0..INPUTS {
            let input = body::input(&mut rng);
            let left = machines.run(&input).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{listing}"));
            let (_, want) = left.last().expect("the kernel's");
            for (who, have) in &left {
                if have == want {
                    continue;
                }
                let byte = have.value.iter().zip(&want.value).position(|(a, b)| a != b).unwrap_or(0);
                let body = byte / STRIDE;
                panic!(
                    "seed {seed}, body {body} from slot {}, byte {} of its part: {who} {:02x?}, the kernel {:02x?}\n{listing}",
                    made.starts[body],
                    byte % STRIDE,
                    &have.value[byte..(byte + 8).min(have.value.len())],
                    &want.value[byte..(byte + 8).min(want.value.len())],
                );
            }
            runs += BODIES;
        }
        done += BODIES as u64;
    }
    println!(
        "{done} programs from seed {first}, {compiled} of them compiled, {runs} runs in each of kernel and interpreter: \
         the same; {:.0} s",
        started.elapsed().as_secs_f64()
    );
}
