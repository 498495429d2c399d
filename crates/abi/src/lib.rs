//! Linux's contract as data: numbers, names and rules that an XDP program and its loader may rely on.
//!
//! Every table here has one reader-visible source (`linux/bpf.h`, `linux/if_xdp.h`, the running kernel) and is the only
//! place in the project that states the fact. The crate says what the contract is and knows nothing of how it is kept.
#![forbid(unsafe_code)]

mod ctx;
mod errno;
pub mod flags;
mod helper;
mod helpers;
mod kfunc;
mod map;
mod map_rules;
pub mod prog;
mod verdict;
pub mod xsk;

pub use ctx::{CtxField, CtxValue, XDP_MD, XDP_MD_SIZE, ctx_field};
pub use errno::Errno;
pub use helper::{
    Arg, ArgKind, Callback, DynptrKind, Effect, FuncAccess, HelperProto, IterKind, MemAccess, MemSize, Ret, SockKind,
};
pub use helpers::{HELPER_MAX, helper, helper_by_name, helpers};
pub use kfunc::{KfuncClass, KfuncProto, KfuncRet, KfuncRules, Region, engine_kfuncs, kfunc, kfuncs};
pub use map::{MapSpec, MapType, SpecialField, SpecialKind, flags as map_flags};
pub use map_rules::{helper_maps, helper_takes_map, special_fields_fit};
pub use prog::XdpAttach;
pub use verdict::Verdict;

/// No machine has more processors, and no engine more workers: Linux's largest `NR_CPUS`. `bpf_get_smp_processor_id` answers less,
/// which proofs rely on.
pub const CPUS_MAX: u32 = 8192;
