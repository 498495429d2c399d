//! Everything that can be wrong with an object.

use crate::btf::BtfError;

/// Why an object, or one program in it, cannot be loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObjectError {
    /// Not an ELF file.
    #[error("not an ELF file: it starts with {found}; an XDP object is what `clang -target bpf -c` writes")]
    NotElf {
        /// The first bytes, in words.
        found: String,
    },
    /// An ELF file that is not for a little-endian 64-bit BPF machine.
    #[error("not a BPF object: {what}; compile with `clang -target bpf`")]
    WrongElf {
        /// What it is instead.
        what: String,
    },
    /// The ELF structure contradicts itself or the file ends early.
    #[error("damaged ELF file: {what}: {why}")]
    Elf {
        /// Which structure.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The type information is damaged.
    #[error("{section}: {error}")]
    Btf {
        /// `.BTF` or `.BTF.ext`.
        section: &'static str,
        /// The reason.
        error: BtfError,
    },
    /// A map declaration that cannot be understood.
    #[error("map `{map}` (section `{section}`): {why}")]
    Map {
        /// Map.
        map: String,
        /// Section.
        section: String,
        /// Reason, and what to try.
        why: String,
    },
    /// A relocation that cannot be applied.
    #[error("section `{section}`, instruction {insn}: {why}")]
    Relocation {
        /// Section that is relocated.
        section: String,
        /// Instruction, or byte offset divided by eight in data.
        insn: u64,
        /// Reason.
        why: String,
    },
    /// An extern that has no value here.
    #[error("extern `{name}`: {why}")]
    Extern {
        /// Name.
        name: String,
        /// Reason, and what to try.
        why: String,
    },
    /// A program's code is malformed.
    #[error("program `{program}` (section `{section}`): {why}")]
    Program {
        /// Program.
        program: String,
        /// Section.
        section: String,
        /// Reason.
        why: String,
    },
    /// Nothing in the object has the wanted name.
    #[error("no {what} `{wanted}`; this object has: {have}")]
    NotFound {
        /// `program` or `section`.
        what: &'static str,
        /// What was asked for.
        wanted: String,
        /// What there is.
        have: String,
    },
    /// More than one program fits.
    #[error("{count} programs fit; name one of: {have}")]
    Ambiguous {
        /// How many.
        count: usize,
        /// Their names.
        have: String,
    },
    /// The object has no program to run.
    #[error("no XDP program in this object{hint}")]
    NoProgram {
        /// What it has instead.
        hint: String,
    },
}
