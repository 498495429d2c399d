//! `keep-registers`: ways into entries that leave all registers alone, for calls that are seldom made.
//!
//! A C function may use nine of the registers as it likes, so whatever lives across a call has five, or lies on the stack. Where a
//! look-up or a move of the packet's start is part of the code, the call stands beside the way that nearly every packet takes, but
//! its registers are counted all the same: what the loop over frames keeps was written to the stack and read back for each. A way
//! that saves and restores everything costs the rare call some nanoseconds and the others nothing.
//!
//! Cranelift's convention for that has no result. It is left in the environment ([`offsets::RESULT`]).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::sync::{Mutex, PoisonError};

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{self, AbiParam, InstBuilder, MemFlagsData, Signature, UserFuncName};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use super::Entry;
use crate::code::CodeMemory;
use crate::env::offsets;

/// The same entry by a way that leaves all registers alone; made once for each and kept as long as the process. `None` where there is no
/// memory for it, which the next program asks for again: then the entry is called as it is. `params` counts the environment, and is the
/// same for all uses of an entry.
pub(crate) fn keeping(entry: Entry, params: usize, isa: &dyn TargetIsa) -> Option<Entry> {
    // Of what is made for another machine nothing runs: its ways are its own.
    static WAYS: Mutex<BTreeMap<(&'static str, usize), CodeMemory>> = Mutex::new(BTreeMap::new());
    let mut ways = WAYS.lock().unwrap_or_else(PoisonError::into_inner);
    let code = match ways.entry((isa.name(), entry.address)) {
        Place::Occupied(known) => known.into_mut(),
        Place::Vacant(place) => place.insert(make(entry.address, params, isa)?),
    };
    Some(Entry { address: code.at(0) as usize, ..entry })
}

/// `fn(env, …)` that calls `address` with its arguments and stores the result.
fn make(address: usize, params: usize, isa: &dyn TargetIsa) -> Option<CodeMemory> {
    let signature = |conv, returns: usize| Signature {
        params: vec![AbiParam::new(I64); params],
        returns: vec![AbiParam::new(I64); returns],
        call_conv: conv,
    };
    let mut context = Context::new();
    context.func = ir::Function::with_name_signature(UserFuncName::default(), signature(CallConv::PreserveAll, 0));
    let mut scratch = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut context.func, &mut scratch);
    let block = b.create_block();
    b.append_block_params_for_function_params(block);
    b.switch_to_block(block);
    let args = b.block_params(block).to_vec();
    let callee = b.import_signature(signature(isa.default_call_conv(), 1));
    let target = b.ins().iconst(I64, address as i64);
    let call = b.ins().call_indirect(callee, target, &args);
    let result = b.inst_results(call)[0];
    b.ins().store(MemFlagsData::trusted(), result, args[0], offsets::RESULT);
    b.ins().return_(&[]);
    b.seal_all_blocks();
    b.finalize(isa.frontend_config());
    let code = context.compile(isa, &mut ControlPlane::default()).ok()?;
    let bytes = code.code_buffer().to_vec();
    CodeMemory::placed(bytes.len(), |_| Some(bytes)).ok()?
}
