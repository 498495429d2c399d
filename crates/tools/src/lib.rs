//! Tools of the trade, written once against [`xway_hook::Hook`] or against Linux where only Linux can do it:
//! forwarding by the host's routes, dropping by lists, measuring what the kernel's hook carries, making traffic,
//! counting what its tracepoints tell, capturing.
//!
//! Each tool is a BPF program of our own from `bpf/tools`, compiled when this crate is built and embedded in it,
//! and the few lines around it that put it in its place and read what it counted. Nothing is printed here.
//!
//! | module | what |
//! |---|---|
//! | [`objects`] | the embedded programs |
//! | [`capture`] | packets as they come to the kernel's hook |
//! | [`filter`] | packets from listed senders and to listed ports are dropped |
//! | [`forward`] | packets that the host would forward leave in the hook |
//! | [`watch`], [`tally`] | the kernel's tracepoints, counted where they arise |
//! | [`measure`] | what the kernel's hook carries |
//! | [`traffic`], [`packets`] | packets made in the kernel, and what is in them |
//! | [`stream`] | one TCP stream, filled in the kernel |
#![forbid(unsafe_code)]

mod attach;
pub mod capture;
pub mod filter;
pub mod forward;
pub mod measure;
pub mod objects;
pub mod packets;
pub mod stream;
pub mod tally;
pub mod traffic;
pub mod watch;

use xway_hook::HookError;
use xway_kernel::KernelError;

/// Why a tool did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ToolError {
    /// The hook refused.
    #[error("{0}")]
    Hook(HookError),
    /// The kernel refused something that is not about an interface.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// This binary was built without clang.
    #[error("this build has no programs of its own: {0}")]
    NotBuilt(&'static str),
    /// An embedded program is not what it should be.
    #[error("the built-in program {name}: {why}")]
    Object {
        /// Which one.
        name: &'static str,
        /// What is wrong.
        why: String,
    },
    /// What was asked for makes no sense, or is not there.
    #[error("{0}")]
    Request(String),
}

impl From<HookError> for ToolError {
    fn from(error: HookError) -> ToolError {
        ToolError::Hook(error)
    }
}
