//! Bytes as type information, and questions that are asked of it.

use xway_object::Btf;
use xway_object::btf::{BtfBuilder, BtfExt, FuncLinkage, IntEncoding, VarLinkage};

pub fn run(data: &[u8]) {
    let _ = BtfExt::parse(data);
    let Ok(btf) = Btf::parse(data.to_vec()) else { return };
    for (id, ty) in btf.types() {
        let _ = (btf.resolve(id), btf.strip_modifiers(id), btf.size_of(id), btf.align_of(id));
        let _ = (btf.type_name(id), btf.declaration(id, "x"), btf.is_char(id));
        let _ = btf.member_at(id, "a.b[3].c");
        let _ = btf.with_essential_name(ty.name).take(8).count();
    }
    let _ = btf.find_struct("value");
}

pub fn seeds() -> Vec<Vec<u8>> {
    vec![small()]
}

/// One type of each common kind.
pub fn small() -> Vec<u8> {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::Signed);
    let long = b.int("unsigned long", 8, IntEncoding::Unsigned);
    let word = b.typedef("word", long);
    let fixed = b.constant(word);
    let array = b.array(fixed, int, 4);
    let ptr = b.ptr(array);
    let value = b.structure("value", 24, &[("a", int, 0), ("b", ptr, 64), ("c", long, 128)]);
    let bits = b.bitfields("bits", 4, &[("x", int, 0, 3), ("y", int, 3, 5)]);
    b.union("either", 24, &[("value", value, 0), ("bits", bits, 0)]);
    b.enumeration("kind", 4, false, &[("NONE", 0), ("SOME", 1)]);
    b.enumeration64("wide", false, &[("BIG", 1 << 40)]);
    let proto = b.prototype(int, &[("value", ptr)]);
    let func = b.func("work", proto, FuncLinkage::Global);
    b.decl_tag("tag", func, -1);
    let var = b.var("counter", long, VarLinkage::Global);
    b.datasec(".data", 8, &[(var, 0, 8)]);
    b.to_bytes()
}
