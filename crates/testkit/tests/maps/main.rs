//! Every map type, flag and errno: each test is one body that runs on our map and on the kernel's.
//!
//! A body gets a [`World`](subject::World), in which it creates maps and works on them through the calls of `bpf(2)`; it
//! either asserts what Linux documents, or returns a log of everything it saw, and the two logs must be equal.

mod batch;
mod create;
mod docs;
mod lru;
mod mapped;
mod memory;
mod objects;
mod ops;
mod programs;
mod subject;
