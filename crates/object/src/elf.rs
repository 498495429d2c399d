//! The ELF file as the rest of the reader wants it: sections with names and bytes, symbols, relocations by the section
//! that they change. The `object` crate reads the structures; here they are checked, and what is wrong gets a place.
//!
//! Everything borrows from the file. Memory is proportional to headers, symbols and relocations that are really there.

use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::ObjectError;

/// The sections and symbols of a BPF object.
pub(crate) struct Elf<'d> {
    pub sections: Vec<Section<'d>>,
    pub symbols: Vec<Symbol<'d>>,
    /// Relocations by the index of the section that they change, in rising order of offset.
    relocations: Vec<Vec<Relocation>>,
}

/// A section.
pub(crate) struct Section<'d> {
    pub index: usize,
    pub name: &'d str,
    /// Length; for `.bss` that of memory, which the file does not hold.
    pub size: u64,
    /// The bytes; empty for `.bss`.
    pub data: &'d [u8],
    pub executable: bool,
    pub alloc: bool,
    pub writable: bool,
    /// Takes no room in the file (`.bss`).
    pub nobits: bool,
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'d> {
    pub name: &'d str,
    pub value: u64,
    pub size: u64,
    pub place: Place,
    pub kind: SymKind,
    pub local: bool,
    pub weak: bool,
}

/// Where a symbol lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Section(usize),
    /// Defined elsewhere: an extern.
    Undefined,
    /// `SHN_COMMON`: an uninitialised variable of old C.
    Common,
    /// Absolute, or a reserved index.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SymKind {
    /// Objects of compilers before clang 8 leave the type out.
    None,
    Data,
    Func,
    Section,
    Other,
}

/// A relocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Relocation {
    /// Place in the section, bytes.
    pub offset: u64,
    /// Index into the symbols.
    pub symbol: usize,
    /// Explicit addend; without one it stands in the section's bytes.
    pub addend: Option<i64>,
}

impl<'d> Elf<'d> {
    pub fn parse(data: &'d [u8]) -> Result<Elf<'d>, ObjectError> {
        let header = header(data)?;
        let table = header.sections(Le, data).map_err(|e| bad("the section headers", e))?;
        let mut sections = Vec::with_capacity(table.len());
        for (index, s) in table.enumerate() {
            sections.push(section(data, index.0, table.section_name(Le, s).ok(), s)?);
        }
        // Sections that share bytes would let a small file describe an endless amount of code and data.
        let claimed = sections.iter().fold(0u64, |sum, s| sum.saturating_add(s.data.len() as u64));
        if claimed > data.len() as u64 {
            let why = format!("their sections overlap: {claimed} bytes in a file of {}", data.len());
            return Err(damaged("the section headers", why));
        }
        let mut relocations = vec![Vec::new(); sections.len()];
        let symtab = table.symbols(Le, data, elf::SHT_SYMTAB).map_err(|e| bad("the symbol table", e))?;
        let mut symbols = Vec::with_capacity(symtab.len());
        for (index, s) in symtab.enumerate() {
            let name = symtab.symbol_name(Le, s).map_err(|e| bad(&format!("symbol {index}"), e))?;
            let place = match s.st_shndx.get(Le).0 {
                0 => Place::Undefined,
                0xfff2 => Place::Common,
                0xffff => symtab.shndx(Le, index).map_or(Place::Other, |n| Place::Section(n as usize)),
                n if n >= 0xff00 => Place::Other,
                n => Place::Section(usize::from(n)),
            };
            if let Place::Section(n) = place
                && n >= sections.len()
            {
                return Err(damaged(
                    &format!("symbol {index}"),
                    format!("it lies in section {n}, which does not exist"),
                ));
            }
            symbols.push(Symbol {
                name: std::str::from_utf8(name).unwrap_or("<not UTF-8>"),
                value: s.st_value.get(Le),
                size: s.st_size.get(Le),
                place,
                kind: match s.st_type() {
                    elf::STT_NOTYPE => SymKind::None,
                    elf::STT_OBJECT => SymKind::Data,
                    elf::STT_FUNC => SymKind::Func,
                    elf::STT_SECTION => SymKind::Section,
                    _ => SymKind::Other,
                },
                local: s.st_bind() == elf::STB_LOCAL,
                weak: s.st_bind() == elf::STB_WEAK,
            });
        }
        for s in table.iter() {
            read_relocations(data, s, &sections, symbols.len(), &mut relocations)?;
        }
        relocations.iter_mut().for_each(|list| list.sort_by_key(|r| r.offset));
        Ok(Elf { sections, symbols, relocations })
    }

    /// The section with this name, the first if there are several.
    pub fn section(&self, name: &str) -> Option<&Section<'d>> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Relocations of a section, by rising offset.
    pub fn relocations(&self, section: usize) -> &[Relocation] {
        self.relocations.get(section).map_or(&[], |v| v)
    }

    /// Relocations of a section with offsets in a range.
    pub fn relocations_in(&self, section: usize, range: std::ops::Range<u64>) -> &[Relocation] {
        let all = self.relocations(section);
        let from = all.partition_point(|r| r.offset < range.start);
        let to = all.partition_point(|r| r.offset < range.end);
        all.get(from..to).unwrap_or(&[])
    }

    /// Symbols that a section defines.
    pub fn symbols_in(&self, section: usize) -> impl Iterator<Item = &Symbol<'d>> {
        self.symbols.iter().filter(move |s| s.place == Place::Section(section))
    }
}

/// The file header, after saying what the file is if it is something else.
fn header(data: &[u8]) -> Result<&FileHeader64<Le>, ObjectError> {
    let wrong = |what: &str| Err(ObjectError::WrongElf { what: what.to_owned() });
    if !data.starts_with(b"\x7fELF") {
        return Err(ObjectError::NotElf { found: first_bytes(data) });
    }
    let Some(ident) = data.first_chunk::<64>() else {
        return Err(damaged("the file header", format!("it takes 64 bytes, the file has {}", data.len())));
    };
    let big_endian = ident[5] == 2;
    let half = |i: usize| match big_endian {
        true => u16::from_be_bytes([ident[i], ident[i + 1]]),
        false => u16::from_le_bytes([ident[i], ident[i + 1]]),
    };
    let machine = half(18);
    // Compilers before LLVM 4 wrote no machine number.
    if machine != elf::EM_BPF.0 && machine != 0 {
        return wrong(&format!("an ELF file for {}", machine_name(machine)));
    }
    if big_endian {
        return wrong("big-endian BPF; use `-target bpfel`");
    }
    if ident[4] != 2 {
        return wrong("a 32-bit ELF file");
    }
    let header = FileHeader64::<Le>::parse(data).map_err(|e| bad("the file header", e))?;
    match header.e_type(Le) {
        elf::ET_REL => Ok(header),
        elf::ET_EXEC | elf::ET_DYN => wrong("a linked file, not a relocatable object"),
        elf::ET_CORE => wrong("a core dump"),
        _ => wrong("an ELF file of unknown type"),
    }
}

fn section<'d>(
    data: &'d [u8],
    index: usize,
    name: Option<&'d [u8]>,
    s: &SectionHeader64<Le>,
) -> Result<Section<'d>, ObjectError> {
    let name = match name {
        Some(name) => std::str::from_utf8(name).unwrap_or("<not UTF-8>"),
        None => return Err(damaged(&format!("section {index}"), "its name lies outside of the name table".to_owned())),
    };
    let bytes = s.data(Le, data).map_err(|_| {
        let (at, len) = (s.sh_offset.get(Le), s.sh_size.get(Le));
        let why = format!("it claims {len} bytes at offset {at}, the file has {}", data.len());
        damaged(&format!("section {index} `{name}`"), why)
    })?;
    let flags = s.sh_flags(Le).0;
    Ok(Section {
        index,
        name,
        size: s.sh_size.get(Le),
        data: bytes,
        executable: flags & elf::SHF_EXECINSTR.0 != 0,
        alloc: flags & elf::SHF_ALLOC.0 != 0,
        writable: flags & elf::SHF_WRITE.0 != 0,
        nobits: s.sh_type(Le) == elf::SHT_NOBITS,
    })
}

fn read_relocations(
    data: &[u8],
    s: &SectionHeader64<Le>,
    sections: &[Section<'_>],
    symbols: usize,
    out: &mut [Vec<Relocation>],
) -> Result<(), ObjectError> {
    let target = s.sh_info(Le) as usize;
    let what = || format!("the relocations of section {target}");
    let mut entries: Vec<Relocation> = Vec::new();
    if let Some((rel, _)) = s.rel(Le, data).map_err(|e| bad(&what(), e))? {
        entries.extend(rel.iter().map(|r| Relocation {
            offset: r.r_offset.get(Le),
            symbol: r.r_sym(Le) as usize,
            addend: None,
        }));
    } else if let Some((rela, _)) = s.rela(Le, data).map_err(|e| bad(&what(), e))? {
        entries.extend(rela.iter().map(|r| Relocation {
            offset: r.r_offset.get(Le),
            symbol: r.r_sym(Le, false) as usize,
            addend: Some(r.r_addend.get(Le)),
        }));
    } else {
        return Ok(());
    }
    let Some(list) = out.get_mut(target) else {
        return Err(damaged(&what(), "there is no such section".to_owned()));
    };
    let section = &sections[target];
    for r in &entries {
        if r.symbol >= symbols {
            let why = format!("symbol {} does not exist; there are {symbols}", r.symbol);
            return Err(ObjectError::Relocation { section: section.name.to_owned(), insn: r.offset / 8, why });
        }
        if r.offset >= section.size {
            let why = format!("offset {:#x} lies outside of the section's {} bytes", r.offset, section.size);
            return Err(ObjectError::Relocation { section: section.name.to_owned(), insn: r.offset / 8, why });
        }
    }
    list.extend(entries);
    Ok(())
}

fn first_bytes(data: &[u8]) -> String {
    match data {
        [] => "nothing, it is empty".to_owned(),
        [b'B', b'C', 0xc0, 0xde, ..] => "LLVM bitcode (run it through `llc -march=bpf -filetype=obj`)".to_owned(),
        [b'#' | b'/', ..] => "text (is this the source?)".to_owned(),
        _ => data.iter().take(4).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "),
    }
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86".to_owned(),
        8 => "MIPS".to_owned(),
        21 => "PowerPC64".to_owned(),
        22 => "s390".to_owned(),
        40 => "ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "AArch64".to_owned(),
        243 => "RISC-V".to_owned(),
        258 => "LoongArch".to_owned(),
        other => format!("machine number {other}"),
    }
}

fn bad(what: &str, error: object::read::Error) -> ObjectError {
    damaged(what, error.to_string())
}

pub(crate) fn damaged(what: &str, why: String) -> ObjectError {
    ObjectError::Elf { what: what.to_owned(), why }
}
