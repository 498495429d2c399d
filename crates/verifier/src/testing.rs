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
    let config = Config { budget: 100_000, ..Config::default() };
    let verdict = crate::verify(&program(text), &view, &config);
    // Guesses change what an analysis costs, never its verdict.
    let guessed = crate::verify(&program(text), &view, &Config { apart: 0, ..config });
    assert_eq!(verdict.is_ok(), guessed.is_ok(), "{text}");
    verdict
}
