//! Can two runs of a program over the same packets be held against each other?

use xway_object::Object;
use xway_verifier::{Config, Facts, MapsView, Verified, verify};

/// What helpers tell that is another thing in another run, and the numbers of those helpers.
const CHANGING: [(&str, &[u32]); 3] =
    [("random numbers", &[7]), ("clocks", &[5, 118, 125, 160, 208]), ("SYN cookies", &[110, 204, 205])];

/// Why what two runs come to need not be the same, in words: the program, or one that its tail calls may reach, goes by chance, clocks,
/// addresses or what lies in unwritten stack. `None` where verdicts, bytes and maps must agree.
pub fn unsettled(object: &Object, proof: &Verified) -> Option<String> {
    let mut words = Vec::new();
    of(proof.facts(), &mut words);
    if proof.facts().tail_calls {
        for other in object.programs.iter().filter_map(|program| program.as_xdp().ok()) {
            // One that is refused is never reached.
            if let Ok(proof) = verify(&other, &MapsView::from(object), &Config { explain: 0, ..Config::default() }) {
                of(proof.facts(), &mut words);
            }
        }
    }
    words.sort_unstable();
    words.dedup();
    (!words.is_empty()).then(|| words.join(", "))
}

fn of(facts: &Facts, words: &mut Vec<&'static str>) {
    let called = CHANGING.iter().filter(|(_, helpers)| facts.helpers.iter().any(|h| helpers.contains(h)));
    words.extend(called.map(|(word, _)| *word));
    words.extend(facts.addresses.then_some("addresses"));
    words.extend(facts.unwritten_stack.then_some("unwritten stack"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_object::Program;

    #[test]
    fn what_changes_is_named() {
        let of = |text: &str| {
            let insns = xway_isa::assemble(text).expect("assembler");
            let program = Program { insns, section: "xdp".into(), ..Program::default() };
            let object = Object::default();
            let proof = verify(&program, &MapsView::from(&object), &Config::default()).expect("a proof");
            unsettled(&object, &proof)
        };
        assert_eq!(of("r0 = 2\nexit\n"), None);
        assert_eq!(of("call 7\nexit\n").as_deref(), Some("random numbers"));
        assert_eq!(of("call 7\ncall 5\ncall 118\nr0 = 2\nexit\n").as_deref(), Some("clocks, random numbers"));
        assert_eq!(of("r0 = *(u64 *)(r10 - 8)\nr0 &= 1\nexit\n").as_deref(), Some("unwritten stack"));
    }
}
