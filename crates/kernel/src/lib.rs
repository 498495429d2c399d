//! Linux's own XDP through a thin `bpf(2)` layer: the kernel takes our loader's instructions and maps as they are.
//!
//! [`sys`] is the system call; the other modules wrap one kind of kernel object each and are safe to call.

pub mod sys;
