//! The little type information that callbacks, timers and spin locks need.

/// `int`
pub const INT: u32 = 1;
/// `struct value { struct bpf_timer; struct bpf_spin_lock; int }`
pub const VALUE: u32 = 6;
/// Its length.
pub const VALUE_BYTES: u32 = 24;
/// The main function.
pub const MAIN: u32 = 8;
/// The function called back.
pub const CALLBACK: u32 = 9;

/// BTF with the types above (`Documentation/bpf/btf.rst`).
pub fn bytes() -> Vec<u8> {
    const KIND_INT: u32 = 1 << 24;
    const KIND_STRUCT: u32 = 4 << 24;
    const KIND_FUNC: u32 = 12 << 24;
    const KIND_FUNC_PROTO: u32 = 13 << 24;
    const SIGNED_32: u32 = 1 << 24 | 32;

    let mut names = Names(vec![0]);
    let (int, long) = (names.add("int"), names.add("long"));
    let (lock, timer) = (names.add("bpf_spin_lock"), names.add("bpf_timer"));
    let (value, member) = (names.add("value"), names.add("m"));
    let (main, callback) = (names.add("main"), names.add("callback"));
    let types: &[&[u32]] = &[
        /* 1 */ &[int, KIND_INT, 4, SIGNED_32],
        /* 2 */ &[long, KIND_INT, 8, 64],
        /* 3 */ &[lock, KIND_STRUCT | 1, 4, member, INT, 0],
        /* 4 */ &[timer, KIND_STRUCT | 2, 16, member, 2, 0, value, 2, 64],
        /* 5 */ &[0, KIND_FUNC_PROTO, INT],
        /* 6 */ &[value, KIND_STRUCT | 3, VALUE_BYTES, timer, 4, 0, lock, 3, 128, member, INT, 160],
        /* 7 */ &[0, KIND_FUNC_PROTO, INT],
        /* 8 */ &[main, KIND_FUNC, 7],
        /* 9 */ &[callback, KIND_FUNC, 7],
    ];
    let words = types.concat();
    let type_len = 4 * words.len() as u32;
    let mut out = vec![0x9f, 0xeb, 1, 0];
    for field in [24, 0, type_len, type_len, names.0.len() as u32].iter().chain(&words) {
        out.extend(u32::to_le_bytes(*field));
    }
    out.extend(names.0);
    out
}

struct Names(Vec<u8>);

impl Names {
    fn add(&mut self, name: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(name.as_bytes());
        self.0.push(0);
        at
    }
}
