//! Does this kernel take extension programs (`BPF_PROG_TYPE_EXT`)? The dispatcher that other tools chain programs with is made of
//! them; many kernels refuse them.

use std::os::fd::AsFd;

use xway_isa::{Slot, op};
use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding};

use crate::{FuncInfo, KernelError, KernelProg, ProgSpec, consts, load_btf};

const PASS: i32 = 2;

/// Loads a program of two functions, and an extension for the second one. Both go at once.
///
/// # Errors
/// What the kernel says about the extension: `EPERM` or `EINVAL` where it takes none.
pub fn takes_extensions() -> Result<(), KernelError> {
    let mut types = BtfBuilder::new();
    let int = types.int("int", 4, IntEncoding::Signed);
    let context = types.structure("xdp_md", 4, &[("data", int, 0)]);
    let pointer = types.ptr(context);
    let prototype = types.prototype(int, &[("ctx", pointer)]);
    let main = types.func("dispatch", prototype, FuncLinkage::Global);
    let slot = types.func("slot", prototype, FuncLinkage::Global);
    let btf = load_btf(&types.to_bytes())?;
    let insn = |opcode, src, imm| Slot { opcode, dst: 0, src, off: 0, imm };
    // The context is still in r1 when the function is called, which stands right behind.
    let answer = [insn(0xb7, 0, PASS), insn(op::EXIT, 0, 0)];
    let insns = [&[insn(op::CALL, 1, 1), insn(op::EXIT, 0, 0)], &answer[..]].concat();
    let funcs = [FuncInfo { insn: 0, type_id: main }, FuncInfo { insn: 2, type_id: slot }];
    let typed = ProgSpec { btf: Some(btf.as_fd()), funcs: &funcs, ..ProgSpec::xdp("dispatch", &insns) };
    let target = KernelProg::load(&typed)?;
    let funcs = [FuncInfo { insn: 0, type_id: slot }];
    KernelProg::load(&ProgSpec {
        prog_type: consts::PROG_TYPE_EXT,
        attach_type: 0,
        replaces: Some((target.as_fd(), slot)),
        funcs: &funcs,
        btf: Some(btf.as_fd()),
        ..ProgSpec::xdp("slot", &answer)
    })
    .map(drop)
}
