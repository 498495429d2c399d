//! Maps: the memory that XDP programs share among their runs, their CPUs and user space.
//!
//! A [`Map`] is created from a [`MapSpec`](xway_abi::MapSpec) and has two sides. *Programs* get pointers: [`Map::value`]
//! gives a [`ValueRef`], in which they read, write and do atomic operations in place, while others do the same. *User
//! space* gets copies through calls named after the commands of `bpf(2)`, with the same flags and the same errno values.
//!
//! Three rules hold for every type:
//!
//! * **Values keep their address** for the life of the element; nothing is moved while someone may point to it.
//! * **What a program may point to outlives the [`Guard`]** it was taken under: elements, inner maps, programs, and the
//!   memory of a map that is dropped meanwhile. Elements that are deleted may be given to another key at once, as in Linux.
//! * **Readers take no lock.** Writers lock the part they change: a bucket, a trie, a ring.
//!
//! Sizes, flags and limits of each type stand in `create.rs`; the type's own file says what is atomic in it. The crate knows
//! nothing of programs, ports or descriptors: what user space writes into maps of objects is resolved by [`Handles`].

pub mod ahead;
mod array;
mod bloom;
mod create;
mod env;
mod free;
mod guard;
mod hash;
mod keyhash;
mod layout;
#[doc(hidden)]
pub mod line;
mod lpm;
mod map;
mod mapped;
pub mod measure;
mod memory;
pub mod native;
mod objects;
mod ops;
mod perf;
mod pool;
mod queue;
mod redirect;
mod ringbuf;
mod shared;
mod signal;
mod slab;
mod slots;
mod stack_trace;
mod storage;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod sum;
mod table;
mod user;
mod value;
mod vector;

pub use create::{CreateError, check, completed, is_supported};
pub use env::{Env, Handles, HugePages, NoHandles, ProgramObject, ProgramUse, SocketObject};
pub use guard::Guard;
pub use map::Map;
pub use mapped::{Shape, Window};
pub use memory::Memory;
pub use objects::stands_for;
pub use perf::{PERF_CURRENT_CPU, PERF_INDEX_MASK, PerfArray, PerfReader, PerfRecord};
pub use redirect::Target;
pub use ringbuf::{HeldRecord, RingBuf, RingRecord, ringbuf_flags, ringbuf_query};
pub use user::{BatchDone, BatchRead};
pub use value::{AccessError, Rmw, ValueRef};
pub use xway_numa::Placement;
