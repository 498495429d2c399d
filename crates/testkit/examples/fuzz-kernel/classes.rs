//! Why we accept what Linux refuses: the kernel's words, and our reason, for the classes that were looked at.
//!
//! A class is one line of the kernel's log with its numbers left out. What is in no class is counted as *unexplained*, and
//! the run shows the program.

use super::evidence::Decided;

/// The reason that is tested program by program.
const RESULTS: &str = "bounds of a quotient, a remainder or a byte-swapped number";

/// Part of the kernel's line, and why the program is safe all the same.
const KNOWN: &[(&str, &str)] = &[
    (
        "with unbounded min value is not allowed",
        "bounds of a quotient, a remainder, a byte swap or a product are known here",
    ),
    ("math between", "bounds of a quotient, a remainder, a byte swap or a product are known here"),
    ("unbounded memory access", "the same, of a length or an offset"),
    ("unbounded variable-offset", "the same, of an offset into the stack"),
    ("invalid variable-offset", "the same, of an offset into the stack"),
    ("variable offset", "the same, of an offset"),
    ("is outside of the allowed memory range", "the same bounds, of an offset into a value"),
    ("is outside of the packet", "the same bounds, of an offset into the packet"),
    ("invalid access to map value", "the same bounds, of an offset into a value"),
    ("min value is negative", "the same bounds: the number cannot be negative"),
    ("map_value_or_null", "a constant key inside an array, written to the stack in eight bytes, is recognised"),
    ("invalid size of register fill", "reading a part of a spilled pointer gives an unknown number"),
    (
        "(at an instruction that is dead)",
        "bounds, a constant key or a comparison of a register with itself decide the branch before it",
    ),
    ("invalid read from stack", "bounds of a quotient or remainder, of a length"),
    ("would lead to reference leak", "the path on which it leaks is dead: a constant key inside an array is found"),
    ("program is too large", "Linux visits more than a million instructions; here states are included sooner"),
    ("verifier bug: No program to jit", "the kernel stumbles over a callback that is only named in dead code"),
    ("infinite loop detected", "the loop counts down: by may_goto, or by a number that Linux does not compare there"),
    ("old state:", "the same"),
    (
        "number of funcs in func_info",
        "the changed call gives the program another set of functions than its records name",
    ),
    ("pointer arithmetic on pkt_end", "distances to the end of the packet are followed here"),
    ("invalid mem access 'pkt_end'", "the same"),
    ("expected=map_ptr", "code that bounds show to be dead"),
    ("jumps is too complex", "Linux keeps at most 8192 branches open"),
    ("verifier bug: backtracking misuse", "the kernel stumbles over its own history"),
    (
        "inside bpf_spin_lock-ed region",
        "the path on which the lock is held is dead: a constant key inside an array is found",
    ),
    ("invalid zero-sized read", "bounds of a quotient, a remainder or a mask exclude zero"),
    (
        "cannot spill pointers to stack into stack frame of the caller",
        "a pointer to the caller's stack may be kept there",
    ),
    (
        "!read_ok",
        "the path is dead: an earlier comparison, bounds or a null check of a packet pointer decide the branch",
    ),
    ("type=scalar expected=", "the same"),
    ("helper access to the packet is not allowed", "the same"),
    ("cannot return stack pointer", "a pointer to the stack of a caller, which lives on, may be returned"),
    ("invalid mem access 'scalar'", "code that bounds or a null check of a packet pointer show to be dead"),
];

/// What is known about a program that only the kernel refuses.
#[derive(Default, Debug)]
pub struct Case {
    /// The decisive line of the kernel's log.
    pub words: String,
    /// It is refused here too once the results that Linux does not follow are unknown (`evidence.rs`).
    pub by_results: bool,
    /// The way on which the kernel complains is none here: what decides that.
    pub dead: Option<Decided>,
}

/// Why we accept, if that is known.
pub fn explain(case: &Case) -> Option<&'static str> {
    if case.by_results {
        return Some(RESULTS);
    }
    match case.dead {
        Some(Decided::Same) => return Some("a register compared with itself: the branch has one outcome"),
        Some(Decided::Packet) => {
            return Some("a packet pointer compared: an earlier comparison decides, or it is never null");
        }
        Some(Decided::Null) => return Some("a constant key inside an array is never null"),
        Some(Decided::Pointer) => return Some("pointers compared: the outcome is known here"),
        Some(Decided::Number) => return Some("a number compared of which more is known here"),
        Some(Decided::Unknown) | None => {}
    }
    KNOWN.iter().find(|k| case.words.contains(k.0)).map(|k| k.1)
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
