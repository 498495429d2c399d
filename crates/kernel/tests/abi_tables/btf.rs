//! The little type information that callbacks, timers and spin locks need.

use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding};

/// Ids of the types that the tests name.
pub struct Types {
    /// `int`
    pub int: u32,
    /// `struct value { struct bpf_timer; struct bpf_spin_lock; int }`
    pub value: u32,
    /// The main function.
    pub main: u32,
    /// The function called back.
    pub callback: u32,
    /// All of it, as the kernel reads it.
    pub bytes: Vec<u8>,
}

/// Length of `struct value`.
pub const VALUE_BYTES: u32 = 24;

pub fn types() -> Types {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let long = b.int("long", 8, IntEncoding::Unsigned);
    let lock = b.structure("bpf_spin_lock", 4, &[("val", int, 0)]);
    let timer = b.structure("bpf_timer", 16, &[("a", long, 0), ("b", long, 64)]);
    let value = b.structure("value", VALUE_BYTES, &[("timer", timer, 0), ("lock", lock, 128), ("rest", int, 160)]);
    let proto = b.prototype(int, &[]);
    let main = b.func("main", proto, FuncLinkage::Static);
    let callback = b.func("callback", proto, FuncLinkage::Static);
    Types { int, value, main, callback, bytes: b.to_bytes() }
}
