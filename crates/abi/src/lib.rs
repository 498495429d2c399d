//! Linux's contract as data: numbers, names and rules that an XDP program and its loader may rely on.
//!
//! Every table here has one reader-visible source (`linux/bpf.h`, `linux/if_xdp.h`, the running kernel) and is the only
//! place in the project that states the fact. The crate says what the contract is and knows nothing of how it is kept.
#![forbid(unsafe_code)]

mod errno;
mod helper;
mod helpers;
mod map;
mod verdict;

pub use errno::Errno;
pub use helper::{Arg, ArgKind, Callback, DynptrKind, FuncAccess, HelperProto, MemAccess, MemSize, Ret, SockKind};
pub use helpers::{HELPER_MAX, helper, helper_by_name, helpers};
pub use map::{MapSpec, MapType, SpecialField, SpecialKind, flags as map_flags};
pub use verdict::Verdict;
