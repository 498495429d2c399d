//! `align-branches` on every program of ours: with it and without it machine code is walked along together, from where a function
//! begins and as a processor might go, and is the same but for nops and the forms of jumps. (The pass itself reads from front to back.)
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use xway_jit::{Compiled, Options, Placed, compile};
use xway_object::{LoadOptions, Object};
use xway_testkit::{Needs, clang};
use xway_verifier::{Config, MapsView, verify};
use xway_vm::Instance;

/// Bytes that these processors keep decoded together.
const LINE: u64 = 32;

/// A function's machine code where it lies.
#[derive(Clone, Copy)]
struct Code<'a> {
    all: &'a Compiled,
    function: &'a Placed,
}

/// Where an instruction leads apart from the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leads {
    Nowhere,
    /// To a place in the function.
    Here(u64),
    /// To the start of a function.
    Function(usize),
    /// To a place so far behind all functions.
    Behind(u64),
    Out(u64),
}

impl<'a> Code<'a> {
    fn address(self) -> u64 {
        self.all.address() + self.function.offset as u64
    }

    fn end(self) -> u64 {
        self.address() + self.function.len as u64
    }

    /// What lies in the whole code from here on.
    fn bytes(self, from: u64) -> &'a [u8] {
        &self.all.code()[(from - self.all.address()) as usize..]
    }

    /// The first instruction from here on that does something.
    fn next(self, from: u64) -> Instruction {
        let own = &self.bytes(from)[..(self.end() - from) as usize];
        let mut decoder = Decoder::with_ip(64, own, from, DecoderOptions::NONE);
        loop {
            let insn = decoder.decode();
            assert!(!insn.is_invalid(), "{}: no instruction at {:#x}", self.function.name, from - self.address());
            if insn.mnemonic() != Mnemonic::Nop {
                return insn;
            }
        }
    }

    fn leads(self, insn: &Instruction) -> Leads {
        if insn.op_count() == 0 || insn.op0_kind() != OpKind::NearBranch64 {
            return Leads::Nowhere;
        }
        let to = insn.near_branch64();
        let calls = insn.flow_control() == FlowControl::Call;
        if !calls && (self.address()..self.end()).contains(&to) {
            return Leads::Here(to);
        }
        let (place, functions) = (to.wrapping_sub(self.all.address()) as usize, self.all.functions());
        if place >= self.all.code().len() {
            return Leads::Out(to);
        }
        let end =
            functions.iter().map(|f| f.offset + f.len).max().expect("there is one").next_multiple_of(LINE as usize);
        match self.bytes(to) {
            _ if place < end => {
                let function = functions.iter().position(|f| f.offset == place);
                Leads::Function(function.unwrap_or_else(|| panic!("{insn} leads into the middle of a function")))
            }
            // By way of a stub, where the distance is too long: jmp [rip + 0], and the address.
            [0xff, 0x25, 0, 0, 0, 0, address @ ..] => {
                Leads::Out(u64::from_le_bytes(address[..8].try_into().expect("eight bytes")))
            }
            _ => Leads::Behind((place - end) as u64),
        }
    }

    /// The constant that an instruction takes from memory of the function's, and how that memory is aligned.
    fn constant(self, insn: &Instruction) -> Option<(&'a [u8], u64)> {
        let to = insn.is_ip_rel_memory_operand().then(|| insn.ip_rel_memory_address())?;
        let size = insn.memory_size().size();
        assert!(size > 0 && (self.address()..=self.end() - size as u64).contains(&to), "{insn}");
        Some((&self.bytes(to)[..size], to % LINE))
    }

    /// Whether a jump crosses or ends at the end of a line, with what it is one operation with: the instruction `before` it, if
    /// that is one that sets flags.
    fn lies_badly(self, insn: &Instruction, before: Option<&Instruction>) -> bool {
        use Mnemonic::{Add, And, Cmp, Dec, Inc, Sub, Test};
        let sets = |m| matches!(m, Add | And | Cmp | Dec | Inc | Sub | Test);
        let conditional = insn.flow_control() == FlowControl::ConditionalBranch;
        let first = before.filter(|b| conditional && b.next_ip() == insn.ip() && sets(b.mnemonic())).unwrap_or(insn);
        let jumps = !matches!(insn.flow_control(), FlowControl::Next | FlowControl::Exception | FlowControl::Interrupt);
        jumps && first.ip() / LINE != insn.next_ip() / LINE
    }
}

/// What was walked along.
#[derive(Default, Debug)]
struct Walked {
    functions: usize,
    insns: usize,
    constants: usize,
    /// Jumps that lie badly, without and with the pass.
    bad: [usize; 2],
    /// Long numbers, without and with it: each has names of the program's functions of its own, which are addresses.
    addresses: BTreeMap<u64, u64>,
}

impl Walked {
    /// Walks along both; gives where each instruction that is come to lies in either.
    fn function(&mut self, old: Code<'_>, new: Code<'_>) -> BTreeMap<u64, u64> {
        let mut places = BTreeMap::new();
        let mut open = vec![(old.address(), new.address())];
        self.functions += 1;
        while let Some((mut here, mut there)) = open.pop() {
            let mut before: [Option<Instruction>; 2] = [None, None];
            loop {
                let (a, b) = (old.next(here), new.next(there));
                let at = format!("{}: {a} at {:#x}", old.function.name, a.ip() - old.address());
                self.bad[0] += usize::from(old.lies_badly(&a, before[0].as_ref()) && !places.contains_key(&a.ip()));
                self.bad[1] += usize::from(new.lies_badly(&b, before[1].as_ref()) && !places.contains_key(&a.ip()));
                if let Some(known) = places.insert(a.ip(), b.ip()) {
                    assert_eq!(known, b.ip(), "{at} is in two places");
                    break;
                }
                self.insns += 1;
                match (old.leads(&a), new.leads(&b)) {
                    (Leads::Here(x), Leads::Here(y)) => {
                        assert_eq!(
                            (a.mnemonic(), a.code().condition_code()),
                            (b.mnemonic(), b.code().condition_code())
                        );
                        open.push((x, y));
                    }
                    (x, y) if x != Leads::Nowhere => assert_eq!((a.code(), x), (b.code(), y), "{at}"),
                    (_, y) => {
                        assert_eq!(y, Leads::Nowhere, "{at}");
                        let (mut x, mut y) =
                            (old.bytes(a.ip())[..a.len()].to_vec(), new.bytes(b.ip())[..b.len()].to_vec());
                        assert_eq!(old.constant(&a), new.constant(&b), "{at}");
                        if a.op_count() == 2
                            && (a.op1_kind(), b.op1_kind()) == (OpKind::Immediate64, OpKind::Immediate64)
                        {
                            let (own, other) = (a.immediate64(), b.immediate64());
                            assert_eq!(*self.addresses.entry(own).or_insert(other), other, "{at}");
                            x[2..].fill(0);
                            y[2..].fill(0);
                        }
                        if a.is_ip_rel_memory_operand() {
                            self.constants += 1;
                            let mut decoder = Decoder::with_ip(64, &x, a.ip(), DecoderOptions::NONE);
                            let insn = decoder.decode();
                            let distance = decoder.get_constant_offsets(&insn).displacement_offset();
                            x[distance..distance + 4].fill(0);
                            y[distance..distance + 4].fill(0);
                        }
                        assert_eq!(x, y, "{at}");
                    }
                }
                use FlowControl::{Exception, IndirectBranch, Return, UnconditionalBranch};
                if matches!(a.flow_control(), UnconditionalBranch | IndirectBranch | Return | Exception) {
                    break;
                }
                (here, there) = (a.next_ip(), b.next_ip());
                before = [Some(a), Some(b)];
            }
        }
        places
    }

    fn both(&mut self, old: &Compiled, new: &Compiled) {
        assert_eq!(new.address() % LINE, 0);
        self.addresses.clear();
        assert_eq!(old.functions().len(), new.functions().len());
        for (f, g) in old.functions().iter().zip(new.functions()) {
            assert_eq!(f.name, g.name);
            let (old, new) = (Code { all: old, function: f }, Code { all: new, function: g });
            let places = self.function(old, new);
            // Instructions come from the same ones of the program.
            assert_eq!(f.lines.len(), g.lines.len());
            for ((x, of), (y, also)) in f.lines.iter().zip(&g.lines) {
                assert_eq!(of, also, "{}", f.name);
                let (x, y) = (old.address() + u64::from(*x), new.address() + u64::from(*y));
                if places.contains_key(&x) {
                    assert_eq!(places[&x], new.next(y).ip(), "{}: line at {:#x}", f.name, x - old.address());
                }
            }
        }
    }
}

#[test]
fn moved_code_is_the_same_code() {
    if !Needs::of("jit::branches::moved_code_is_the_same_code").clang().met() {
        return;
    }
    let mut walked = Walked::default();
    for folder in ["bpf/samples", "bpf/bench", "bpf/forward", "bpf/tests", "bpf/tools"] {
        let mut sources: Vec<PathBuf> =
            std::fs::read_dir(clang::repository().join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
        sources.retain(|p| p.to_string_lossy().ends_with(".bpf.c"));
        for source in sources {
            let bytes = clang::compile_file(&source, &["-mcpu=v3"]).unwrap_or_else(|e| panic!("{e}"));
            let object = Arc::new(Object::parse(&bytes, &LoadOptions::default()).unwrap());
            let Ok(instance) = Instance::new(object.clone(), 2) else { continue };
            for (n, image) in object.programs.iter().enumerate() {
                let Ok(image) = image.as_xdp() else { continue };
                let Ok(proof) = verify(&image, &MapsView::from(&*object), &Config::default()) else { continue };
                let Ok(program) = instance.program(n) else { continue };
                for all in [Options::default(), Options { stage_from: Some(0), ..Options::default() }, Options::plain()]
                {
                    let code = |moved| {
                        let options = Options { align_branches: true, jcc_erratum: Some(moved), ..all.clone() };
                        compile(&program, &proof, &options)
                    };
                    // What has no native form has none either way.
                    let Ok(old) = code(false) else { continue };
                    walked.both(&old, &code(true).unwrap());
                }
            }
            instance.maps().iter().for_each(|m| m.clear_programs());
        }
    }
    walked.addresses.clear();
    println!("{walked:?}");
    assert_eq!(walked.bad[1], 0, "jumps that lie badly");
    assert!(walked.bad[0] > 1000 && walked.constants > 0, "{walked:?}");
}
