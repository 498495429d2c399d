//! Decided branches that are walked both ways.

use xway_abi::{MapSpec, MapType};
use xway_object::MapDef;

use crate::testing::{check, program};
use crate::{Config, Kind, MapsView, Rejection, Verified, verify};

fn with(text: &str, apart: u32) -> Result<Verified, Rejection> {
    let config = Config { budget: 300_000, apart, ..Config::default() };
    verify(&program(text), &MapsView::empty(), &config)
}

/// Turns of a loop, each of which may add to r7, and what happens behind it.
fn sums(turns: u32, behind: &str) -> String {
    let step = |n: u32, add: u32| format!("r2 = *(u32 *)(r6 +12)\nif r2 != {n} goto +1\nr7 += {add}\n");
    let body: String = (0..6).map(|n| step(n, 3 * n + 1)).collect();
    format!("r6 = r1\nr7 = 0\nr8 = 0\nloop: {body}r8 += 1\nif r8 < {turns} goto loop\nr0 = 2\n{behind}exit")
}

/// What the loop sums up decides the last branch on the first way through, and nothing depends on it.
#[test]
fn sums_that_decide_nothing_of_weight_do_not_multiply_states() {
    let text = sums(40, "if r7 > 7 goto +1\nr0 = 1\n");
    let cheap = with(&text, 32).expect("safe").stats().visited;
    assert!(cheap < 20_000, "{cheap}");
    match with(&text, u32::MAX) {
        Ok(proof) => assert!(proof.stats().visited > 4 * cheap, "{} and {cheap}", proof.stats().visited),
        Err(refusal) => assert_eq!(refusal.errors[0].kind, Kind::Budget),
    }
}

/// The way that cannot be taken would be wrong: the branch stays decided, and what decides it is compared.
#[test]
fn a_guess_that_goes_wrong_leaves_nothing_behind() {
    for apart in [0, 32, u32::MAX] {
        // At most 6 * 16 a turn, so never above 400.
        let text = sums(2, "if r7 < 400 goto +1\nr0 = *(u8 *)(r7 +0)\n");
        assert!(with(&text, apart).is_ok(), "{apart}");
        let text = sums(2, "if r7 < 90 goto +1\nr0 = *(u8 *)(r7 +0)\n");
        assert_eq!(with(&text, apart).unwrap_err().errors[0].kind, Kind::NotAPointer, "{apart}");
        // Right for the first sum, and wrong for a later one.
        let text = sums(2, "r7 &= 127\nr1 = r10\nr1 += -64\nr1 += r7\n*(u8 *)(r1 +0) = 1\n");
        assert_eq!(with(&text, apart).unwrap_err().errors[0].kind, Kind::StackBounds, "{apart}");
    }
}

/// A branch that ends a loop is not guessed for ever.
#[test]
fn loops_still_end() {
    for apart in [0, 32] {
        assert!(with("r0 = 0\nloop: r0 += 1\nif r0 != 100 goto loop\nexit", apart).is_ok());
        let forever = "r6 = *(u32 *)(r1 +12)\nr0 = 1\nloop: if r0 == 1 goto loop\nr0 = 0\nexit";
        assert_eq!(with(forever, apart).unwrap_err().errors[0].kind, Kind::InfiniteLoop);
        let inner = "r6 = r1\nr8 = 0\nouter: r9 = 0\ninner: r9 += 1\nif r9 < 9 goto inner\nr8 += 1\nif r8 < 9 goto outer\n\
                     r0 = 0\nexit";
        assert!(with(inner, apart).is_ok());
    }
}

/// An instruction that a wrong guess reached first may reach other memory on the real way.
#[test]
fn what_a_guess_accessed_is_forgotten() {
    let maps = [MapDef::new("hash", MapSpec::new(MapType::Hash, 4, 16, 16))];
    // r8 is 1 on every way; with any other the context would be read where the stack is, and then r9 as an address.
    let text = "r6 = r1\nr8 = 1\nr9 = 5\nr2 = r10\n*(u64 *)(r10 -8) = 7\nr2 += -8\nif r8 == 1 goto +1\nr2 = r6\n\
                r0 = *(u32 *)(r2 +0)\nif r8 == 1 goto +1\nr0 = *(u8 *)(r9 +0)\nr0 = 0\nexit";
    assert!(check(text, &maps).is_ok());
}
