//! Why we accept what Linux refuses: what was found out about the program ([`super::evidence`]), else the kernel's words.
//!
//! Programs of every class were read. What is in no class is *unexplained*: it is counted with its seeds, and the run shows
//! the program.

use super::evidence::{Decided, Followed};

/// What is known about a program that only the kernel refuses.
#[derive(Default, Debug)]
pub struct Case {
    /// The decisive line of the kernel's log.
    pub words: String,
    /// Without this knowledge it is refused here too.
    pub by: Option<Followed>,
    /// The way on which the kernel complains is none here: what decides that.
    pub dead: Option<Decided>,
    /// A negative number is added to a pointer, and the constant behind it makes up for that.
    pub near: bool,
}

impl Case {
    /// The reason was found out about the program, not told by the kernel's words alone.
    pub fn is_proved(&self) -> bool {
        self.by.is_some() || self.near || self.dead.is_some_and(|d| d != Decided::Unknown)
    }
}

/// Part of the kernel's line, and why the program is safe all the same.
const KNOWN: &[(&str, &str)] = &[
    ("pointer arithmetic on pkt_end", "distances to the end of the packet are followed here"),
    ("'pkt_end'", "the same"),
    (
        "is outside of the packet",
        "what is proved of the packet: an offset above 65,535, the same sum, a bounded number behind the check, its length",
    ),
    ("_or_null", "a look-up that cannot fail, or a comparison with a register that holds zero"),
    ("type=rdonly_mem", "a call may read a slice that cannot be written"),
    ("type=mem expected", "a key or a value may lie in a slice"),
    ("size=0", "a call that touches no byte of a map's value needs no right to"),
    ("helper access to the packet", "a call that touches no byte of the packet needs no right to"),
    ("more than one arg with ref_obj_id", "a call that gives nothing back may be given one record twice"),
    ("invalid size of register fill", "a part of a spilled pointer is an unknown number"),
    ("off=0 size=0", "a call that reads no byte reads none at the frame pointer either"),
    ("cannot return stack pointer", "a pointer to the stack of a caller, which lives on, may be returned"),
    ("cannot spill pointers to stack into stack frame of the caller", "the same, kept there"),
    ("program is too large", "Linux visits more than a million instructions; here states are included sooner"),
    ("jumps is too complex", "Linux keeps at most 8192 branches open"),
    ("infinite loop detected", "the loop counts down: by may_goto, or by a number that Linux does not compare there"),
    ("old state:", "the same"),
    ("verifier bug: No program to jit", "the kernel stumbles over a callback that is only named in dead code"),
    ("verifier bug: backtracking misuse", "the kernel stumbles over its own history"),
];

/// Why we accept, if that is known.
pub fn explain(case: &Case) -> Option<&'static str> {
    let followed = case.by.map(|by| match by {
        Followed::Results => "bounds of a quotient, a remainder, a byte-swapped number or a shift in 32 bits",
        Followed::Signs => "bounds of a number that is extended by its sign, or negated",
        Followed::Parts => "a part of a number on the stack is known",
        Followed::Links => {
            "a copy of a sum, a sum of a sum, or what was shifted there and back stays linked with the number"
        }
        Followed::Distances => {
            "the distance between a place in the packet and its end has bounds, and one of 32 bits no more bits"
        }
        Followed::Several => {
            "several of: quotients, remainders, byte swaps, signs, parts of numbers on the stack, distances, links"
        }
    });
    let decided = || match case.dead? {
        Decided::Same => Some("dead: a register is compared with itself"),
        Decided::Packet => Some("dead: an earlier comparison of a packet pointer decides, or it is never null"),
        Decided::Null => Some("dead: a constant key inside an array is never null"),
        Decided::Pointer => Some("dead: the pointers that are compared are known"),
        Decided::Number => Some("dead: more is known of the numbers that are compared"),
        Decided::Unknown => None,
    };
    let words = || KNOWN.iter().find(|k| case.words.contains(k.0)).map(|k| k.1);
    let near = || case.near.then_some("a negative number is added to a pointer, and a larger constant to the sum");
    followed.or_else(decided).or_else(near).or_else(words)
}

/// The line without its numbers, so that equal reasons are counted together.
pub fn class(line: &str) -> String {
    let mut out = String::new();
    for part in line.split(|c: char| c.is_ascii_digit()).filter(|p| !p.is_empty()) {
        out.push_str(part);
        out.push('#');
    }
    out.truncate(out.len().saturating_sub(usize::from(!line.ends_with(|c: char| c.is_ascii_digit()))));
    out
}
