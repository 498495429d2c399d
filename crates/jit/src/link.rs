//! Functions side by side: layout, relocations, and which machine instruction came from which instruction of the program.

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::entity::EntityRef;
use cranelift_codegen::ir::{ExternalName, SourceLoc, UserExternalName};
use cranelift_codegen::{CompiledCode, FinalizedRelocTarget};

use crate::Refusal;
use crate::calls::Entry;
use crate::lower::{Callee, Shape, space};

/// A function in the machine code.
#[derive(Clone, Debug)]
pub struct Placed {
    pub(crate) shape: Shape,
    /// Its name, with a suffix that says what it is compiled to.
    pub name: String,
    /// First byte.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
    /// Offset in the function from which on machine instructions belong to this instruction of a program; `None`: to none.
    pub lines: Vec<(u32, Option<Origin>)>,
}

/// An instruction that machine code came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The program: its place in the chain, 0 when it was compiled alone.
    pub unit: usize,
    /// Its instruction slot.
    pub insn: usize,
}

impl Origin {
    /// Bits of a source location that are the instruction's; the rest are the program's.
    const INSN_BITS: u32 = 24;

    /// As the code generator carries it, which knows one number and keeps the highest for "none".
    pub(crate) fn loc(self) -> SourceLoc {
        SourceLoc::new((self.unit as u32) << Self::INSN_BITS | self.insn as u32)
    }

    pub(crate) fn from_loc(loc: SourceLoc) -> Option<Origin> {
        let bits = loc.bits();
        let (unit, insn) = (bits >> Self::INSN_BITS, bits & ((1 << Self::INSN_BITS) - 1));
        (!loc.is_default()).then_some(Origin { unit: unit as usize, insn: insn as usize })
    }
}

/// A function's machine code with its instructions in new places.
#[derive(Debug)]
pub(crate) struct Laid {
    pub bytes: Vec<u8>,
    /// Instructions in order: where each was and where it is.
    pub moved: Vec<(u32, u32)>,
}

impl Laid {
    /// Where a byte of the code is now.
    pub fn place(&self, old: usize) -> usize {
        let next = self.moved.partition_point(|(was, _)| *was as usize <= old);
        let Some((was, is)) = next.checked_sub(1).map(|n| self.moved[n]) else { return old };
        is as usize + (old - was as usize)
    }
}

/// Machine code that is ready to be copied to any place, and can be made better for one.
#[derive(Debug)]
pub(crate) struct Linked {
    pub bytes: Vec<u8>,
    pub functions: Vec<Placed>,
    /// Calls out of the code, which go by way of stubs as long as nobody knows the distance.
    outward: Vec<Outward>,
}

/// A `call rel32` to a function of this process.
#[derive(Debug)]
struct Outward {
    /// Where its distance stands.
    at: usize,
    address: usize,
}

impl Linked {
    /// Where calls out of the code have their distances, and what they call.
    pub fn outward(&self) -> Vec<(usize, usize)> {
        self.outward.iter().map(|call| (call.at, call.address)).collect()
    }

    /// The code for this place: what is called from there and is no further than 2 GiB is called directly.
    pub fn at(mut self, place: u64) -> Vec<u8> {
        for call in &self.outward {
            // Counted from behind the instruction, which ends with the distance.
            let from = place.wrapping_add(call.at as u64 + 4);
            if let Ok(distance) = i32::try_from((call.address as u64).wrapping_sub(from) as i64) {
                self.bytes[call.at..call.at + 4].copy_from_slice(&distance.to_le_bytes());
            }
        }
        self.bytes
    }
}

/// `jmp [rip]`, in front of the address to go to: what leads to functions that are too far away.
const STUB: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];

#[derive(Clone, Copy, Debug)]
enum Target {
    Function(Shape),
    Address(usize),
    /// The instruction that fetches memory ahead.
    Fetch,
    /// The stub that reads the processor's counter.
    Counter,
    Unknown,
}

#[derive(Debug)]
struct Fixup {
    at: usize,
    kind: Reloc,
    addend: i64,
    target: Target,
}

/// Lays functions out.
#[derive(Debug, Default)]
pub(crate) struct Linker {
    bytes: Vec<u8>,
    functions: Vec<Placed>,
    fixups: Vec<Fixup>,
    outward: Vec<Outward>,
    /// Jumps are put where this processor keeps their lines decoded (`branches.rs`).
    aligns_branches: bool,
}

impl Linker {
    pub fn new(aligns_branches: bool) -> Linker {
        Linker { aligns_branches, ..Linker::default() }
    }

    /// Adds a function.
    pub fn add(
        &mut self,
        shape: Shape,
        name: &str,
        code: &CompiledCode,
        names: &[UserExternalName],
        entries: &[Entry],
    ) {
        let align = (code.buffer.alignment as usize).max(32);
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0xcc);
        let offset = self.bytes.len();
        let laid = self.laid(code, align);
        let place = |old: usize| laid.as_ref().map_or(old, |laid| laid.place(old));
        self.bytes.extend_from_slice(laid.as_ref().map_or(code.code_buffer(), |laid| &laid.bytes));
        for reloc in code.buffer.relocs() {
            let target = match &reloc.target {
                FinalizedRelocTarget::ExternalName(ExternalName::User(name)) => match names.get(name.index()) {
                    Some(n) if n.namespace == space::LOCAL => {
                        Target::Function(Shape::Function(Callee::from_symbol(n.index)))
                    }
                    Some(n) if n.namespace == space::FETCH => Target::Fetch,
                    Some(n) if n.namespace == space::TAIL => Target::Function(Shape::Tail),
                    Some(n) if n.namespace == space::COUNTER => Target::Counter,
                    Some(n) => entries.get(n.index as usize).map_or(Target::Unknown, |e| Target::Address(e.address)),
                    None => Target::Unknown,
                },
                // Places within the function itself: nothing that is compiled here has any.
                _ => Target::Unknown,
            };
            let at = offset + place(reloc.offset as usize);
            self.fixups.push(Fixup { at, kind: reloc.kind, addend: reloc.addend, target });
        }
        let locs = code.buffer.get_srclocs_sorted().iter();
        let lines = locs.map(|l| (place(l.start as usize) as u32, Origin::from_loc(l.loc))).collect();
        let suffix = match shape {
            Shape::Burst => "burst",
            Shape::Scout(_) => "scout",
            Shape::Single => "single",
            Shape::Tail => "tail",
            Shape::Function(_) => "function",
        };
        let len = self.bytes.len() - offset;
        self.functions.push(Placed { shape, name: format!("{name}.{suffix}"), offset, len, lines });
    }

    /// A function with its jumps where they should be, if that matters.
    #[cfg(target_arch = "x86_64")]
    fn laid(&self, code: &CompiledCode, align: usize) -> Option<Laid> {
        if !self.aligns_branches {
            return None;
        }
        let relocs: Vec<usize> = code.buffer.relocs().iter().map(|r| r.offset as usize).collect();
        let laid = crate::branches::align(code.code_buffer(), &relocs, align);
        // It is right as it is, but slower; who changes what code is made of is told by every test.
        debug_assert!(laid.is_some(), "code that the pass does not understand: {:02x?}", code.code_buffer());
        laid
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn laid(&self, _: &CompiledCode, _: usize) -> Option<Laid> {
        debug_assert!(!self.aligns_branches, "no such processor");
        None
    }

    /// Applies the relocations.
    pub fn finish(mut self) -> Result<Linked, Refusal> {
        let fixups = std::mem::take(&mut self.fixups);
        let stub = self.bytes.len().next_multiple_of(32);
        if fixups.iter().any(|f| matches!(f.target, Target::Counter)) {
            self.bytes.resize(stub, 0xcc);
            self.bytes.extend_from_slice(&crate::clock::STUB);
        }
        for fixup in fixups {
            self.apply(&fixup, stub)?;
        }
        self.stubs();
        Ok(Linked { bytes: self.bytes, functions: self.functions, outward: self.outward })
    }

    /// Behind all functions a stub for each function outside that is called, and every call goes there.
    fn stubs(&mut self) {
        let mut known: Vec<(usize, usize)> = Vec::new();
        for call in &self.outward {
            let stub = match known.iter().find(|(address, _)| *address == call.address) {
                Some((_, stub)) => *stub,
                None => {
                    self.bytes.resize(self.bytes.len().next_multiple_of(16), 0xcc);
                    let stub = self.bytes.len();
                    self.bytes.extend_from_slice(&STUB);
                    self.bytes.extend_from_slice(&(call.address as u64).to_le_bytes());
                    known.push((call.address, stub));
                    stub
                }
            };
            // Behind the call: code of a program is far below 2 GiB.
            let distance = (stub - (call.at + 4)) as i32;
            self.bytes[call.at..call.at + 4].copy_from_slice(&distance.to_le_bytes());
        }
    }

    fn apply(&mut self, fixup: &Fixup, stub: usize) -> Result<(), Refusal> {
        let failed = |why: String| Refusal::BackEnd { name: "relocation".into(), why };
        let local = |functions: &[Placed]| match fixup.target {
            Target::Function(shape) => functions.iter().find(|f| f.shape == shape).map(|f| f.offset),
            Target::Counter => Some(stub),
            _ => None,
        };
        match (fixup.kind, fixup.target) {
            (Reloc::Abs8, Target::Address(address)) => {
                let value = (address as i64).wrapping_add(fixup.addend);
                self.bytes[fixup.at..fixup.at + 8].copy_from_slice(&value.to_le_bytes());
                Ok(())
            }
            (Reloc::X86CallPCRel4, Target::Address(address)) if fixup.addend == -4 => {
                self.outward.push(Outward { at: fixup.at, address });
                Ok(())
            }
            (Reloc::X86CallPCRel4 | Reloc::X86PCRel4, Target::Function(_) | Target::Counter) => {
                let to = local(&self.functions).ok_or_else(|| failed("a function that was not compiled".into()))?;
                let distance = (to as i64 + fixup.addend) - fixup.at as i64;
                let distance = i32::try_from(distance).map_err(|_| failed("code of more than 2 GiB".into()))?;
                self.bytes[fixup.at..fixup.at + 4].copy_from_slice(&distance.to_le_bytes());
                Ok(())
            }
            (Reloc::Arm64Call, Target::Function(_)) => {
                let to = local(&self.functions).ok_or_else(|| failed("a function that was not compiled".into()))?;
                let words = (to as i64 + fixup.addend - fixup.at as i64) >> 2;
                let place = &mut self.bytes[fixup.at..fixup.at + 4];
                let insn = u32::from_le_bytes([place[0], place[1], place[2], place[3]]);
                let insn = insn & 0xfc00_0000 | words as u32 & 0x03ff_ffff;
                place.copy_from_slice(&insn.to_le_bytes());
                Ok(())
            }
            // `call rel32` with the address in rdi becomes `prefetcht0 [rdi]` and a nop of two bytes.
            (Reloc::X86CallPCRel4, Target::Fetch) if self.bytes[fixup.at - 1] == 0xe8 => {
                self.bytes[fixup.at - 1..fixup.at + 4].copy_from_slice(&[0x0f, 0x18, 0x0f, 0x66, 0x90]);
                Ok(())
            }
            // `bl` with the address in x0 becomes `prfm pldl1keep, [x0]`.
            (Reloc::Arm64Call, Target::Fetch) => {
                self.bytes[fixup.at..fixup.at + 4].copy_from_slice(&0xf980_0000u32.to_le_bytes());
                Ok(())
            }
            (kind, target) => Err(failed(format!("{kind:?} to {target:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call by distance where that is possible, by way of a stub where it is not, whatever the place.
    #[test]
    fn calls_outward_find_their_way() {
        let linked = |address: usize| {
            let mut linker = Linker { bytes: vec![0xe8, 0, 0, 0, 0, 0xc3], ..Linker::default() };
            linker.outward = vec![Outward { at: 1, address }, Outward { at: 1, address }];
            linker.stubs();
            Linked { bytes: linker.bytes, functions: vec![], outward: linker.outward }
        };
        let place = 0x5555_0000_0000u64;
        let distance = |code: &[u8]| i32::from_le_bytes([code[1], code[2], code[3], code[4]]) as i64;
        for near in [place - 0x7fff_fff0, place + 0x7fff_fff0, place] {
            let code = linked(near as usize).at(place);
            assert_eq!(place as i64 + 5 + distance(&code), near as i64);
        }
        for far in [place - 0x8000_0000, place + 0x8000_0010, 8, u64::MAX] {
            let code = linked(far as usize).at(place);
            let stub = (5 + distance(&code)) as usize;
            assert_eq!((stub, code.len()), (16, 16 + STUB.len() + 8), "one stub for one address");
            assert_eq!(code[stub..stub + STUB.len()], STUB);
            assert_eq!(code[stub + STUB.len()..], far.to_le_bytes());
        }
    }
}
