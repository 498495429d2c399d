//! A small BPF object built by hand, so that there is something to mutate where no clang is.

/// A section: name, type, flags, link, info, entry size, bytes.
struct Section(&'static str, u32, u64, u32, u32, u64, Vec<u8>);

const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const REL: u32 = 9;

/// An object with one program that looks into one map (legacy convention), its relocation, symbols, licence and types.
pub fn small_object(btf: Vec<u8>) -> Vec<u8> {
    let text = "r1 = 0\n*(u32 *)(r10 -4) = r1\nr2 = r10\nr2 += -4\nr1 = 0 ll\ncall #1\nr0 = 2\nexit";
    let program = xway_isa::slots_to_bytes(&xway_isa::assemble(text).expect("the program is right"));
    // type ARRAY, key 4, value 8, 16 entries, no flags.
    let map: Vec<u8> = [2u32, 4, 8, 16, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    let names = b"\0prog\0counts\0_license\0".to_vec();
    let mut symbols = symbol(0, 0, 0, 0, 0);
    symbols.extend(symbol(1, 0x12, 1, 0, program.len() as u64)); // global function
    symbols.extend(symbol(6, 0x11, 2, 0, 20)); // global object
    symbols.extend(symbol(13, 0x11, 3, 0, 4));
    // The 64-bit immediate in slot 4 is symbol 2: R_BPF_64_64.
    let relocation: Vec<u8> = [32u64, 2 << 32 | 1].iter().flat_map(|w| w.to_le_bytes()).collect();
    write(&[
        Section("xdp", PROGBITS, 6, 0, 0, 0, program),
        Section("maps", PROGBITS, 3, 0, 0, 0, map),
        Section("license", PROGBITS, 3, 0, 0, 0, b"GPL\0".to_vec()),
        Section(".BTF", PROGBITS, 0, 0, 0, 0, btf),
        Section(".relxdp", REL, 0, 7, 1, 16, relocation),
        Section(".strtab", STRTAB, 0, 0, 0, 0, names),
        Section(".symtab", SYMTAB, 0, 6, 1, 24, symbols),
    ])
}

fn symbol(name: u32, info: u8, section: u16, value: u64, size: u64) -> Vec<u8> {
    let mut out = name.to_le_bytes().to_vec();
    out.extend([info, 0]);
    out.extend(section.to_le_bytes());
    out.extend(value.to_le_bytes());
    out.extend(size.to_le_bytes());
    out
}

/// Header, section bytes, section names, section headers.
fn write(sections: &[Section]) -> Vec<u8> {
    const HEADER: usize = 64;
    let mut body = Vec::new();
    let mut headers = vec![0u8; 64];
    let mut names = vec![0u8];
    for Section(name, kind, flags, link, info, entry, bytes) in sections {
        body.resize(body.len().next_multiple_of(8), 0);
        headers.extend(header(names.len(), *kind, *flags, HEADER + body.len(), bytes.len(), (*link, *info), *entry));
        names.extend(name.as_bytes());
        names.push(0);
        body.extend(bytes);
    }
    let own = names.len();
    names.extend(b".shstrtab\0");
    headers.extend(header(own, STRTAB, 0, HEADER + body.len(), names.len(), (0, 0), 0));
    body.extend(names);
    body.resize(body.len().next_multiple_of(8), 0);

    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    out.extend(1u16.to_le_bytes()); // relocatable
    out.extend(247u16.to_le_bytes()); // EM_BPF
    out.extend(1u32.to_le_bytes());
    out.extend([0; 16]);
    out.extend(((HEADER + body.len()) as u64).to_le_bytes());
    out.extend([0; 4]);
    let count = sections.len() as u16 + 2;
    for half in [64u16, 0, 0, 64, count, count - 1] {
        out.extend(half.to_le_bytes());
    }
    out.extend(body);
    out.extend(headers);
    out
}

fn header(name: usize, kind: u32, flags: u64, at: usize, len: usize, (link, info): (u32, u32), entry: u64) -> Vec<u8> {
    let mut out = (name as u32).to_le_bytes().to_vec();
    out.extend(kind.to_le_bytes());
    for word in [flags, 0, at as u64, len as u64] {
        out.extend(word.to_le_bytes());
    }
    out.extend(link.to_le_bytes());
    out.extend(info.to_le_bytes());
    out.extend(8u64.to_le_bytes());
    out.extend(entry.to_le_bytes());
    out
}
