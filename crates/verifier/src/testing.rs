//! Small programs for tests, from text.

use xway_object::{MapDef, Program};

use crate::{Config, MapsView, Rejection, Verified};

/// A program without maps from assembler text; names of helpers are known.
pub(crate) fn program(text: &str) -> Program {
    let insns = xway_isa::assemble_with(text, &xway_object::HelperNames).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program { name: "test".into(), section: "xdp".into(), insns, ..Program::default() }
}

/// The verdict on a program with these maps.
pub(crate) fn check(text: &str, maps: &[MapDef]) -> Result<Verified, Rejection> {
    let view = MapsView { maps, btf: None, kernel: None, license: Some("GPL") };
    // A small budget: what these programs need is far below it.
    let config = Config { budget: 150_000, ..Config::default() };
    let verdict = crate::verify(&program(text), &view, &config);
    // Guesses change what an analysis costs, never its verdict.
    let guessed = crate::verify(&program(text), &view, &Config { apart: 0, ..config });
    assert_eq!(verdict.is_ok(), guessed.is_ok(), "{text}");
    verdict
}

/// What the log shows behind an instruction, on the first way that comes there.
pub(crate) fn behind(text: &str, at: usize) -> String {
    let log = log(text);
    let head = format!("{at}: (");
    let line = log.lines().find(|l| l.starts_with(&head)).unwrap_or_else(|| panic!("{at} is not reached:\n{log}"));
    line.split_once("; ").map_or("", |l| l.1).to_owned()
}

/// The log of states of a program without maps.
pub(crate) fn log(text: &str) -> String {
    let config = Config { log: true, ..Config::default() };
    match crate::verify(&program(text), &MapsView::empty(), &config) {
        Ok(proof) => proof.log().to_owned(),
        Err(refused) => refused.log,
    }
}

/// Chance. The test kit has it, too, and cannot be used here: it depends on this crate.
pub(crate) struct Rng(pub u64);

impl Rng {
    /// A number below `n`, which must not be 0 and has at most 31 bits.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One element of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// 64 bits.
    pub fn u64(&mut self) -> u64 {
        (0..3).fold(0, |bits, _| bits << 22 | self.below(1 << 22) as u64)
    }
}
