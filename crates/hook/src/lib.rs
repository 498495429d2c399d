//! Hooks: where a program is put so that packets reach it, and what is there.
//!
//! [`Hook`] is the one seam: maps, programs, attachments, features, statistics and events, in plain data. Two implementors
//! live here: [`User`], the engine in this process, and [`Kernel`], Linux. A third, the engine behind the service's socket, is
//! in the crate above. Whatever is written against the trait runs on all of them; one test body proves it.
//!
//! The words are the same everywhere: a *port* (an interface is one), a *mode*, an *attachment*; what was asked for, what was
//! done, and why the two differ.
//!
//! | module | what |
//! |---|---|
//! | `hook`, `api`, `watching` | the trait; the plain data that it speaks |
//! | `words` | the same on a wire |
//! | `batch` | many elements of a map at once, the same for both worlds |
//! | [`kernel`] | Linux: attach, replace, detach, list, on interfaces of this machine |
//! | [`user`] | the engine in this process |
//! | [`pins`] | maps that outlive the command that made them |
//! | [`explain`] | why the kernel said no, and the command that mends it |
//! | `other_end` | the other end of a veth, in whichever namespace |
//! | [`doctor`] | is this machine ready, and the command that mends it |
#![forbid(unsafe_code)]

mod api;
mod batch;
pub mod doctor;
mod error;
pub mod explain;
mod hook;
pub mod kernel;
mod other_end;
pub mod pins;
pub mod user;
mod watching;
mod words;

pub use api::{
    AttachRequest, Attached, AttachmentInfo, ChainCode, ChainPart, Choice, CodeFunction, Dump, Elements, HookKind,
    Image, LoadRequest, MapId, MapInfo, MapTypes, ObjectId, Objects, PRIORITY, PinInfo, PortFeatures, PortMemory,
    ProgId, ProgramInfo, QueueMemory, Replace, SourceLine, TestAnswer, TestRequest, Verdicts, Via,
};
pub use error::{Blame, HookError};
pub use hook::Hook;
pub use kernel::Kernel;
pub use other_end::{OtherEnd, at_other_end};
pub use user::User;
pub use watching::{
    CapturePoint, CaptureRequest, CapturedPacket, CapturedPackets, GAUGES, HookEvent, LOSSES, ProgramStatistics,
    QueueStatistics, Statistics,
};
pub use words::Word;
pub use xway_engine::Outcome;

/// Where a program runs: in Linux, or on a port of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// In the driver where it can, otherwise behind it; which one it became is said.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// Behind the driver, on packets that the kernel has already wrapped: slower, on every interface.
    Generic,
    /// In the device.
    Offload,
    /// In user space: a port of the engine, which has this place only.
    User,
}

impl Mode {
    const fn user() -> Mode {
        Mode::User
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Offload => "offload",
            Mode::User => "user",
        }
    }
}
