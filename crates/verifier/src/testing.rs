//! Small programs for tests, from text.

use xway_object::{MapDef, Program};

use crate::{Config, MapsView, Rejection, Verified};

/// A program without maps from assembler text; names of helpers are known.
pub(crate) fn program(text: &str) -> Program {
    struct Helpers;
    impl xway_isa::Names for Helpers {
        fn helper_id(&self, name: &str) -> Option<u32> {
            xway_abi::helper_by_name(name).map(|h| h.id)
        }
    }
    let insns = xway_isa::assemble_with(text, &Helpers).unwrap_or_else(|e| panic!("{e}\n{text}"));
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
