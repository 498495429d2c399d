//! `align-branches`: where jumps lie, on processors that mind.
//!
//! Intel's processors from Skylake to Cascade Lake and Comet Lake have an erratum of jumps that cross or end at a multiple of 32 bytes, and
//! their microcode keeps nothing decoded of such a line: all of it goes through the slow decoders each time ("Mitigations for Jump
//! Conditional Code Erratum", Intel, November 2019). A comparison that becomes one operation with the conditional jump behind it counts
//! as part of the jump. Three jumps in ten lie so by chance, and the loop over a burst is made of jumps.
//!
//! Machine code is taken apart here once more, as the code generator made it. Jumps within a function get their short form where they
//! reach that far, and in front of those that would still lie badly stands a nop. Nothing else of an instruction changes but
//! distances. What is not understood (a table of jumps, a form that the code generator does not use) leaves a function as it
//! was.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use crate::link::Laid;

/// Bytes that the decoded form is kept for together.
const LINE: usize = 32;

/// Rounds of laying out before all jumps are long.
const ROUNDS_MAX: usize = 16;

/// Whether this processor is one of them.
pub(crate) fn minded() -> bool {
    static MINDED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *MINDED.get_or_init(|| {
        let vendor = std::arch::x86_64::__cpuid(0);
        let intel = [vendor.ebx, vendor.edx, vendor.ecx] == [b"Genu", b"ineI", b"ntel"].map(|w| u32::from_le_bytes(*w));
        intel && is_affected(std::arch::x86_64::__cpuid(1).eax)
    })
}

/// Whether a processor of Intel's has the erratum, by its signature (CPUID 1, eax).
fn is_affected(signature: u32) -> bool {
    let (family, stepping) = (signature >> 8 & 0xf, signature & 0xf);
    let model = signature >> 4 & 0xf | signature >> 12 & 0xf0;
    // Of a model that was made on, later steppings are without: Cooper Lake is Skylake's server model.
    let last = match model {
        0x4e | 0x5e => 3,
        0x55 => 7,
        0x8e => 12,
        0x9e => 13,
        0xa5 | 0xa6 | 0xae => 15,
        _ => return false,
    };
    family == 6 && stepping <= last
}

/// An instruction of the code as it was.
#[derive(Clone, Copy, Debug)]
struct Insn {
    at: usize,
    len: usize,
    /// Where it ends, or begins with what it becomes one operation with, in the line.
    jumps: bool,
    /// A conditional jump behind it makes one operation with it.
    fuses: bool,
    distance: Distance,
}

/// A distance within the function.
#[derive(Clone, Copy, Debug)]
enum Distance {
    None,
    /// A jump to the instruction with this number, conditional or not, in its short form or not.
    Jump {
        to: usize,
        condition: Option<u8>,
        short: bool,
    },
    /// Memory of the function's, counted from the end of the instruction: where the four bytes stand in it, and what they lead to.
    Memory {
        at: usize,
        to: usize,
    },
}

impl Insn {
    fn len(&self) -> usize {
        match self.distance {
            Distance::Jump { short: true, .. } => 2,
            _ => self.len,
        }
    }
}

/// Puts the jumps of a function where their lines can be kept decoded. `relocs` are offsets of what is not known yet, in order; the code will
/// lie at a multiple of `align` bytes. `None`: it is left as it is.
pub(crate) fn align(code: &[u8], relocs: &[usize], align: usize) -> Option<Laid> {
    let (mut insns, end) = take_apart(code, relocs)?;
    let mut places = vec![0; insns.len()];
    // Jumps only ever become longer from here on, so that this ends; where it takes long, all do.
    let mut rounds = 0;
    let laid = loop {
        let laid = lay(&insns, &mut places);
        if !lengthen(&mut insns, &places, rounds == ROUNDS_MAX) {
            break laid;
        }
        rounds += 1;
    };
    // Constants behind the code are aligned as they were.
    let tail = if end == code.len() { laid } else { laid + (end % align + align - laid % align) % align };
    let mut bytes = Vec::with_capacity(tail + code.len() - end);
    for (insn, place) in insns.iter().zip(&places) {
        fill(&mut bytes, *place);
        emit(&mut bytes, insn, code, &places, |old| old - end + tail)?;
    }
    bytes.resize(tail, 0xcc);
    bytes.extend_from_slice(&code[end..]);
    let mut moved: Vec<(u32, u32)> = insns.iter().zip(&places).map(|(i, p)| (i.at as u32, *p as u32)).collect();
    moved.push((end as u32, tail as u32));
    Some(Laid { bytes, moved })
}

/// The instructions of a function, and where they end.
fn take_apart(code: &[u8], relocs: &[usize]) -> Option<(Vec<Insn>, usize)> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut insns: Vec<Insn> = Vec::with_capacity(code.len() / 4);
    let mut targets: Vec<u64> = vec![];
    let mut furthest = 0;
    let mut relocs = relocs.iter().copied().peekable();
    let mut raw = Instruction::default();
    loop {
        if !decoder.can_decode() {
            return None;
        }
        decoder.decode_out(&mut raw);
        let (at, len) = (raw.ip() as usize, raw.len());
        let open = relocs.next_if(|r| *r < at + len);
        if raw.is_invalid() || open.is_some_and(|r| r < at) || relocs.peek().is_some_and(|r| *r < at + len) {
            return None;
        }
        let flow = raw.flow_control();
        let distance = match flow {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch if open.is_none() => {
                let condition = match code[at..at + len] {
                    [0x0f, second @ 0x80..=0x8f, _, _, _, _] => Some(second & 0xf),
                    [0xe9, _, _, _, _] => None,
                    _ => return None,
                };
                let to = raw.near_branch64();
                furthest = furthest.max(to);
                targets.push(to);
                // Which instruction it is, is not known yet.
                Distance::Jump { to: targets.len() - 1, condition, short: true }
            }
            FlowControl::XbeginXabortXend => return None,
            FlowControl::Call if open.is_none() => return None,
            // Whoever jumps by way of a table of the function's own has to get its address.
            _ if raw.is_ip_rel_memory_operand() && raw.mnemonic() == Mnemonic::Lea => return None,
            _ if raw.is_ip_rel_memory_operand() && open.is_none() => {
                let bytes = decoder.get_constant_offsets(&raw);
                if bytes.displacement_size() != 4 {
                    return None;
                }
                let to = usize::try_from(raw.ip_rel_memory_address()).ok().filter(|to| *to <= code.len())?;
                Distance::Memory { at: bytes.displacement_offset(), to }
            }
            _ => Distance::None,
        };
        let jumps = !matches!(flow, FlowControl::Next | FlowControl::Exception | FlowControl::Interrupt);
        insns.push(Insn { at, len, jumps, fuses: fuses(raw.code()), distance });
        let end = at + len;
        // Jumps through registers are tail calls.
        let goes_on = !matches!(
            flow,
            FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Exception
        );
        // What nothing has led to so far, nothing leads to: those are constants.
        if !goes_on && furthest < end as u64 {
            for n in 0..insns.len() {
                let resolved = match insns[n].distance {
                    Distance::Jump { to, condition, short } => {
                        let to = insns.binary_search_by_key(&targets[to], |i| i.at as u64).ok()?;
                        Distance::Jump { to, condition, short }
                    }
                    // Tables and the like within the code are not for here.
                    Distance::Memory { to, .. } if to < end => return None,
                    other => other,
                };
                insns[n].distance = resolved;
            }
            // An unknown address in the constants.
            return relocs.peek().is_none().then_some((insns, end));
        }
    }
}

/// Instructions that become one operation with a conditional jump behind them, as the optimisation manual of these processors lists them (section
/// 3.4.2.2), taken widely: one too many costs a nop.
fn fuses(code: Code) -> bool {
    use Mnemonic::{Add, And, Cmp, Dec, Inc, Sub, Test};
    matches!(code.mnemonic(), Add | And | Cmp | Dec | Inc | Sub | Test)
}

/// Gives every instruction its place, jumps where none lies badly; gives the length of all.
fn lay(insns: &[Insn], places: &mut [usize]) -> usize {
    let mut at = 0;
    let mut n = 0;
    while n < insns.len() {
        let conditional = |i: &Insn| matches!(i.distance, Distance::Jump { condition: Some(_), .. });
        let pair = insns[n].fuses && insns.get(n + 1).is_some_and(conditional);
        let together = &insns[n..n + 1 + usize::from(pair)];
        let len: usize = together.iter().map(Insn::len).sum();
        let jumps = together.last().is_some_and(|i| i.jumps);
        // The byte behind the last one lies in another line: it crosses, or ends there.
        if jumps && at / LINE != (at + len) / LINE && len < LINE {
            at = at.next_multiple_of(LINE);
        }
        for (insn, place) in together.iter().zip(&mut places[n..]) {
            *place = at;
            at += insn.len();
        }
        n += together.len();
    }
    at
}

/// Makes jumps long that do not reach their targets, or `all`; whether there were any.
fn lengthen(insns: &mut [Insn], places: &[usize], all: bool) -> bool {
    let mut any = false;
    for (insn, place) in insns.iter_mut().zip(places) {
        if let Distance::Jump { to, short: short @ true, .. } = &mut insn.distance
            && (all || i8::try_from(places[*to] as i64 - (*place as i64 + 2)).is_err())
        {
            (*short, any) = (false, true);
        }
    }
    any
}

/// Nops up to this length.
fn fill(bytes: &mut Vec<u8>, len: usize) {
    /// The forms that Intel's manual recommends (volume 2, NOP), by length.
    const NOPS: [&[u8]; 9] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0x00],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
        &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    ];
    while let Some(missing) = len.checked_sub(bytes.len()).filter(|m| *m > 0) {
        bytes.extend_from_slice(NOPS[missing.min(NOPS.len()) - 1]);
    }
}

/// An instruction at its place, where `bytes` end. `constants` gives the new place of what stands behind the code.
fn emit(
    bytes: &mut Vec<u8>,
    insn: &Insn,
    code: &[u8],
    places: &[usize],
    constants: impl Fn(usize) -> usize,
) -> Option<()> {
    let start = bytes.len();
    let end = start + insn.len();
    let far = |to: usize| Some(i32::try_from(to as i64 - end as i64).ok()?.to_le_bytes());
    match insn.distance {
        Distance::None => bytes.extend_from_slice(&code[insn.at..insn.at + insn.len]),
        Distance::Jump { to, condition, short: true } => {
            let near = i8::try_from(places[to] as i64 - end as i64).ok()?;
            bytes.extend_from_slice(&[condition.map_or(0xeb, |c| 0x70 | c), near as u8]);
        }
        Distance::Jump { to, condition, short: false } => {
            match condition {
                Some(c) => bytes.extend_from_slice(&[0x0f, 0x80 | c]),
                None => bytes.push(0xe9),
            }
            bytes.extend_from_slice(&far(places[to])?);
        }
        Distance::Memory { at, to } => {
            bytes.extend_from_slice(&code[insn.at..insn.at + insn.len]);
            bytes[start + at..start + at + 4].copy_from_slice(&far(constants(to))?);
        }
    }
    debug_assert_eq!(bytes.len(), end);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(code: &[u8]) -> Vec<Instruction> {
        let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode())).collect()
    }

    /// Jumps, with what they are one operation with, that cross or end at a multiple of a line.
    fn bad(code: &[u8]) -> usize {
        let insns = decoded(code);
        let is_bad = |n: &usize| {
            let insn = &insns[*n];
            let conditional = insn.flow_control() == FlowControl::ConditionalBranch;
            let first = n.checked_sub(1).map(|p| &insns[p]).filter(|p| conditional && fuses(p.code()));
            let start = first.unwrap_or(insn).ip() as usize;
            // What fills up is `int3`.
            let jumps = !matches!(insn.flow_control(), FlowControl::Next | FlowControl::Interrupt);
            jumps && start / LINE != insn.next_ip() as usize / LINE
        };
        (0..insns.len()).filter(is_bad).count()
    }

    /// `cmp eax, 1; jne +n; cdq; …; add eax, 1` again and again, with a loop around it all and a constant behind it.
    fn sample(filler: usize) -> Vec<u8> {
        let mut code = vec![];
        for n in 0..40u8 {
            code.extend_from_slice(&[0x83, 0xf8, n]);
            let over = (filler + 3) as i32;
            code.extend_from_slice(&[0x0f, 0x85]);
            code.extend_from_slice(&over.to_le_bytes());
            code.extend(std::iter::repeat_n(0x99, filler));
            code.extend_from_slice(&[0x83, 0xc0, n]);
        }
        // mov rcx, [rip + x]
        code.extend_from_slice(&[0x48, 0x8b, 0x0d, 0, 0, 0, 0]);
        let loads = code.len();
        let back = -(code.len() as i32 + 5);
        code.push(0xe9);
        code.extend_from_slice(&back.to_le_bytes());
        code.resize(code.len().next_multiple_of(16), 0);
        let distance = (code.len() - loads) as i32;
        code[loads - 4..loads].copy_from_slice(&distance.to_le_bytes());
        code.extend_from_slice(b"constant");
        code
    }

    /// The instructions are the same but for nops, jumps lead to the same ones, and none lies badly. Short loops have short jumps, long ones
    /// long ones.
    #[test]
    fn instructions_stay_and_jumps_lie_well() {
        for filler in [0, 1, 2, 3, 5, 60, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 200] {
            let code = sample(filler);
            let laid = align(&code, &[], 32).expect("understood");
            let end = laid.bytes.len() - 8;
            assert_eq!(&laid.bytes[end..], b"constant");
            assert_eq!(end % 32, (code.len() - 8) % 32, "constants stay aligned");
            let last = *laid.moved.last().expect("the constants");
            assert_eq!(last.1 as usize, laid.place(last.0 as usize));
            assert_eq!(bad(&laid.bytes[..end]), 0, "{filler}");
            assert!(bad(&code[..code.len() - 16]) > 2, "{filler}: nothing to do");
            let old: Vec<Instruction> = decoded(&code[..last.0 as usize]);
            let new = decoded(&laid.bytes[..end]);
            for old in &old {
                let place = laid.place(old.ip() as usize) as u64;
                let new = new.iter().find(|new| new.ip() == place).expect("an instruction begins there");
                assert_eq!(old.mnemonic(), new.mnemonic());
                let target = |i: &Instruction| match i.flow_control() {
                    FlowControl::Next => None,
                    _ => Some(i.near_branch64()),
                };
                assert_eq!(target(old).map(|t| laid.place(t as usize) as u64), target(new), "{filler}");
                if old.is_ip_rel_memory_operand() {
                    assert_eq!(new.ip_rel_memory_address(), end as u64);
                }
            }
        }
    }

    /// What is not known to be safe to move stays: tables of jumps, calls within the function, bytes that are no
    /// instruction, an address that is filled in among the constants.
    #[test]
    fn what_is_not_understood_stays() {
        // lea rax, [rip + 2]; jmp rax
        let table: &[u8] = &[0x48, 0x8d, 0x05, 0x02, 0x00, 0x00, 0x00, 0xff, 0xe0, 0x00, 0x00];
        // mov rax, [rip - 7]
        let own: &[u8] = &[0x48, 0x8b, 0x05, 0xf9, 0xff, 0xff, 0xff, 0xc3];
        let call: &[u8] = &[0xe8, 0xfb, 0xff, 0xff, 0xff, 0xc3];
        let short: &[u8] = &[0xeb, 0x00, 0xc3];
        let none: &[u8] = &[0x06, 0xc3];
        let without_end: &[u8] = &[0x90];
        for code in [table, own, call, short, none, without_end] {
            assert!(align(code, &[], 32).is_none(), "{code:x?}");
        }
        assert!(align(&[0xc3, 0, 0, 0, 0, 0, 0, 0, 0], &[1], 32).is_none());
        // A call whose distance is filled in later is understood.
        let laid = align(&[0xe8, 0, 0, 0, 0, 0xc3], &[1], 32).expect("understood");
        assert_eq!(laid.bytes, [0xe8, 0, 0, 0, 0, 0xc3]);
        // A tail call through a register too.
        assert_eq!(align(&[0xff, 0xe0], &[], 32).expect("understood").bytes, [0xff, 0xe0]);
    }

    /// Cascade Lake, which has it; Cooper Lake and Sapphire Rapids, which do not; a client of each kind.
    #[test]
    fn processors_by_signature() {
        assert!(is_affected(0x50657) && is_affected(0x50654) && is_affected(0x806ec) && is_affected(0x906ed));
        assert!(!is_affected(0x5065b) && !is_affected(0x806f8) && !is_affected(0x306f2) && !is_affected(0x106a5));
    }

    /// What the pass does, for people: the instructions of a small loop before and behind it, with a bar at each multiple of a line.
    #[test]
    fn a_loop_before_and_behind() {
        let code = &sample(5)[..];
        let laid = align(code, &[], 32).expect("understood");
        let mut got = String::new();
        for (title, code) in [("without", code), ("with", &laid.bytes)] {
            got += &format!("---- {title} align-branches\n");
            let mut line = 0;
            crate::asm::each(&code[..LINE * 4], 0, |at, text| {
                let own = at as usize / LINE;
                got += if own == line { "" } else { "--\n" };
                line = own;
                got += &format!("{at:4x}  {text}\n");
            });
        }
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/align-branches.txt");
        if std::env::var_os("XWAY_BLESS").is_some() {
            std::fs::write(&path, &got).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(golden, got, "{}: XWAY_BLESS=1 writes it anew", path.display());
    }
}
