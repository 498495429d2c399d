//! The kernel's side runs a program many times inside one test-run.
//!
//! `BPF_PROG_TEST_RUN` costs some 20 ns for each run and gives every run the same packet. So the program under test becomes a
//! subprogram, unchanged, of a *driver*: a loop that makes the next packet of a ring in the test-run's packet and calls the
//! program. A call and a return is what the kernel's drivers pay for an attached program too. What the loop costs is measured
//! with an empty program in the same place.
//!
//! The driver is made by rewriting the object, so that our loader's way into the kernel takes it as any program: two maps are
//! added (the ring; the cursors and the histogram of verdicts), and programs whose first function is the loop. The program's
//! function must be global and have type information: then the verifier proves it once, for itself, and not once for each
//! turn of the loop.

use xway_abi::{MapSpec, MapType};
use xway_isa::{Slot, assemble};
use xway_object::{Initial, MapDef, Object, Program, Subprog};

use crate::flows::ENTRY;
use crate::packet::{FIELDS_AT, HEADER_FIELDS, Renew};

/// What a driver calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// Nothing: the loop alone.
    Nothing,
    /// A function that returns DROP.
    Empty,
    /// The program under test.
    Program,
    /// The program under test, and its verdicts are counted.
    Counted,
}

impl Callee {
    /// All of them; each has a cursor of its own at this index.
    pub const ALL: [Callee; 4] = [Callee::Nothing, Callee::Empty, Callee::Program, Callee::Counted];

    /// Name of the driver's program.
    pub const fn driver_name(self) -> &'static str {
        ["bench_nothing", "bench_empty", "bench_program", "bench_counted"][self as usize]
    }
}

/// Bytes of the state map: four cursors, then eight counters of verdicts.
pub const STATE_LEN: usize = 32 + 64;
/// Where the counters begin.
pub const HISTOGRAM_AT: usize = 32;

/// Names of the two maps.
pub const RING_MAP: &str = "bench_ring";
/// See [`STATE_LEN`].
pub const STATE_MAP: &str = "bench_state";

/// How the loop is made.
#[derive(Clone, Copy, Debug)]
pub struct Loop<'a> {
    /// Runs in one test-run.
    pub runs: u32,
    /// Packets in the ring, a power of two.
    pub ring_len: usize,
    /// How the packet is made anew.
    pub renew: Renew,
    /// The packet.
    pub template: &'a [u8],
}

/// Why a program cannot be driven.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DriverError {
    /// The function is static, or has no type information.
    #[error(
        "{0} cannot be called as a function: it must not be static, and the object must be compiled with -g, so that the \
         kernel can prove it on its own"
    )]
    NotGlobal(String),
}

/// The object with the two maps and the four drivers of a program.
pub fn driven(object: &Object, program: &Program, how: Loop<'_>) -> Result<Object, DriverError> {
    let main = program.subprogs.first().filter(|main| main.global && main.func_id != 0);
    let main = main.ok_or_else(|| DriverError::NotGlobal(program.name.clone()))?;
    let mut object = object.clone();
    let ring = object.maps.len();
    let array = |name: &str, bytes: usize| MapDef {
        initial: Initial::None,
        ..MapDef::new(name, MapSpec::new(MapType::Array, 4, bytes as u32, 1))
    };
    object.maps.push(array(RING_MAP, how.ring_len * ENTRY));
    object.maps.push(array(STATE_MAP, STATE_LEN));
    for callee in Callee::ALL {
        let empty = empty(main.func_id);
        let target = match callee {
            Callee::Program | Callee::Counted => program,
            Callee::Empty | Callee::Nothing => &empty,
        };
        object.programs.push(link(callee, target, main.func_id, &how, ring));
    }
    Ok(object)
}

fn empty(func_id: u32) -> Program {
    let insns = assemble("r0 = 1\nexit").expect("two instructions");
    let only = Subprog { name: "empty".into(), start: 0, len: insns.len(), global: true, func_id };
    Program { insns, subprogs: vec![only], ..Program::default() }
}

/// Driver and program in one.
fn link(callee: Callee, target: &Program, func_id: u32, how: &Loop<'_>, ring: usize) -> Program {
    let mut insns = main_loop(callee, how, ring);
    let len = insns.len();
    let driver = Subprog { name: callee.driver_name().into(), start: 0, len, global: false, func_id };
    let mut subprogs = vec![driver];
    if callee != Callee::Nothing {
        insns.extend_from_slice(&target.insns);
        subprogs.extend(target.subprogs.iter().map(|s| Subprog { start: s.start + len, ..s.clone() }));
    }
    Program {
        name: callee.driver_name().into(),
        section: "xdp".into(),
        insns,
        subprogs,
        // Lines are for messages about the program under test, which has been accepted by itself.
        line_info: Vec::new(),
        kfuncs: target.kfuncs.clone(),
        ksyms: target.ksyms.clone(),
        ..Program::default()
    }
}

/// By how much the program has moved it, nothing included, as the helper that moves it back wants it in r2.
fn moved(renew: Renew, len: usize) -> String {
    // data_meta, data, data_end are at 8, 0, 4.
    let (from, to) = if renew == Renew::Metadata { (8, 0) } else { (0, 4) };
    let distance = format!("r2 = *(u32 *)(r6 + {to})\nr3 = *(u32 *)(r6 + {from})\nr2 -= r3\n");
    match renew {
        // The packet has grown at its start.
        Renew::Place => format!("{distance}r2 -= {len}\n"),
        // It has lost at its end.
        Renew::End => format!("{distance}r1 = {len}\nr1 -= r2\nr2 = r1\n"),
        _ => distance,
    }
}

/// Markers that [`patch`] puts maps and the call into.
const RING_MARK: i64 = 0x7ffe_0001;
const STATE_MARK: i64 = 0x7ffe_0002;

fn main_loop(callee: Callee, how: &Loop<'_>, ring: usize) -> Vec<Slot> {
    let mask = (how.ring_len - 1) * ENTRY;
    let len = how.template.len();
    let cursor = callee as usize * 8;
    let mut text = format!(
        "r6 = r1
         r9 = {STATE_MARK} ll
         r7 = *(u64 *)(r9 + {cursor})
         r8 = 0
     again:
         r2 = {RING_MARK} ll
         r7 &= {mask}
         r2 += r7
         r3 = *(u32 *)(r6 + 0)
         r4 = *(u32 *)(r6 + 4)
         r5 = r3
         r5 += 42
         if r5 > r4 goto out\n"
    );
    if how.renew != Renew::Fields {
        for &(at, width) in HEADER_FIELDS {
            let bytes = &how.template[at..at + width];
            let value = bytes.iter().rev().fold(0u32, |n, b| n << 8 | u32::from(*b));
            text += &format!("*(u{} *)(r3 + {at}) = {}\n", width * 8, value as i32);
        }
    }
    for piece in 0..3 {
        text += &format!("r0 = *(u32 *)(r2 + {})\n*(u32 *)(r3 + {}) = r0\n", piece * 4, FIELDS_AT + piece * 4);
    }
    text += &format!("r7 += {ENTRY}\n");
    if callee != Callee::Nothing {
        text += "r1 = r6\ncall pc+0\n";
    }
    if callee == Callee::Counted {
        text += &format!(
            "w1 = w0
             if r1 < 7 goto known
             r1 = 7
         known:
             r1 <<= 3
             r2 = r9
             r2 += r1
             r1 = *(u64 *)(r2 + {HISTOGRAM_AT})
             r1 += 1
             *(u64 *)(r2 + {HISTOGRAM_AT}) = r1\n"
        );
    }
    if how.renew.moves() {
        text += &format!("{}r1 = r6\n", moved(how.renew, len));
        text += match how.renew {
            Renew::Place => "call 44\n",    // bpf_xdp_adjust_head
            Renew::Metadata => "call 54\n", // bpf_xdp_adjust_meta
            _ => "call 65\n",               // bpf_xdp_adjust_tail
        };
    }
    text += &format!(
        "r8 += 1
         if r8 < {} goto again
         *(u64 *)(r9 + {cursor}) = r7
     out:
         r0 = 2
         exit",
        how.runs
    );
    patch(assemble(&text).expect("the driver's text is assembler"), ring)
}

fn patch(mut insns: Vec<Slot>, ring: usize) -> Vec<Slot> {
    let len = insns.len();
    let mut at = 0;
    while at < len {
        let wide = insns[at].is_wide();
        let map = match i64::from(insns[at].imm) {
            RING_MARK if wide => Some(ring),
            STATE_MARK if wide => Some(ring + 1),
            _ => None,
        };
        if let Some(map) = map {
            // BPF_PSEUDO_MAP_IDX_VALUE: the address of the array's only value.
            insns[at].src = 6;
            insns[at].imm = map as i32;
            insns[at + 1].imm = 0;
        } else if insns[at].opcode == xway_isa::op::CALL && insns[at].src == 1 {
            insns[at].imm = (len - at - 1) as i32;
        }
        at += if wide { 2 } else { 1 };
    }
    insns
}
