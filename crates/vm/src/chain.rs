//! Several programs on one hook: each runs as long as the verdict of the one before chains on.
//!
//! The convention is libxdp's (its `protocol.org`): programs stand in the order of their priority, and each has a mask of
//! verdicts, bit n for verdict n, after which the next one runs. A verdict outside of the mask is final; behind the last
//! program the packet is passed. What one program does to the packet, its metadata and its redirect target the next one finds;
//! each has its own stack and its own 33 tail calls.

use xway_packet::Frame;

use crate::{Env, Outcome, Program, run, run_tail};

/// The mask that programs have that say nothing: on after `XDP_PASS`.
pub const CHAIN_ON_DEFAULT: u32 = 1 << 2;

/// The verdict of a chain whose last program chains on: `XDP_PASS`.
pub const CHAIN_END: u32 = 2;

/// Whether a program's return value is one of those after which the next one runs. The upper half of r0 is ignored.
pub const fn chains_on(mask: u32, ret: u64) -> bool {
    let verdict = ret as u32;
    verdict < 32 && mask >> verdict & 1 != 0
}

/// Runs a chain over a packet. The outcome is the last run's, with the instructions of all; the number is that of the program
/// that decided, and the number of programs when none did.
///
/// A fault ends the chain. Without programs the packet is passed.
pub fn run_chain<'e>(links: &[(&'e Program, u32)], frame: &mut Frame, env: &mut Env<'e>) -> (Outcome, usize) {
    let mut insns = 0;
    for (n, (program, chain_on)) in links.iter().enumerate() {
        // The target that an earlier program chose stays.
        let mut outcome = if n == 0 { run(program, frame, env) } else { run_tail(program, frame, env, &mut 0) };
        insns += outcome.insns;
        outcome.insns = insns;
        if outcome.fault.is_some() || !chains_on(*chain_on, outcome.ret) {
            return (outcome, n);
        }
    }
    (Outcome { ret: CHAIN_END.into(), fault: None, insns }, links.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FixedHost;
    use std::sync::Arc;
    use xway_packet::{Pool, PoolConfig};

    fn program(text: &str) -> Arc<Program> {
        let insns = xway_isa::assemble(text).expect("assembler");
        let image = xway_object::Program { insns, section: "xdp".into(), ..Default::default() };
        Program::link(&image, &[]).expect("links")
    }

    #[test]
    fn masks_name_verdicts() {
        assert!(chains_on(CHAIN_ON_DEFAULT, 2));
        assert!(chains_on(CHAIN_ON_DEFAULT, 7 << 32 | 2), "the upper half is ignored");
        assert!(!chains_on(CHAIN_ON_DEFAULT, 1));
        assert!(!chains_on(u32::MAX, 32), "beyond the mask");
        assert!(chains_on(1, 0));
    }

    #[test]
    fn the_first_verdict_outside_of_its_mask_decides() {
        let (pass, drop, tx) = (program("r0 = 2\nexit"), program("r0 = 1\nexit"), program("r0 = 3\nexit"));
        let mut pool = Pool::new(PoolConfig::new(1)).expect("packet memory");
        let mut frame = pool.alloc().expect("a frame");
        frame.fill(&[0; 64]).expect("room");
        let (guard, host) = (xway_maps::Guard::pin(), FixedHost::new(1));
        let mut run = |links: &[(&Program, u32)]| {
            let (outcome, by) = run_chain(links, &mut frame, &mut Env::new(&guard, &host, 0));
            (outcome.ret, by, outcome.insns)
        };
        assert_eq!(run(&[(&pass, 4), (&drop, 4), (&tx, 4)]), (1, 1, 4));
        assert_eq!(run(&[(&pass, 4), (&drop, 2), (&tx, 4)]), (3, 2, 6));
        assert_eq!(run(&[(&pass, 4), (&tx, 8)]), (2, 2, 4), "behind the last one packets are passed");
        assert_eq!(run(&[]), (2, 0, 0));
        pool.release(frame);
    }
}
