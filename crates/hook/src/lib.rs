//! Hooks: where a program is put so that packets reach it, and what is there.
//!
//! Today one hook can be asked from outside a process: Linux's own, through [`kernel`]. The words are those that the engine
//! in this process uses too: a *port* (an interface), a *mode*, an *attachment*; what was asked for, what was done, and
//! why the two differ.
//!
//! | module | what |
//! |---|---|
//! | [`kernel`] | attach, replace, detach, list, on interfaces of this machine |
//! | [`pins`] | maps that outlive the command that made them |
//! | [`explain`] | why the kernel said no, and the command that mends it |
//! | [`doctor`] | is this machine ready, and the command that mends it |
#![forbid(unsafe_code)]

pub mod doctor;
mod error;
pub mod explain;
pub mod kernel;
pub mod pins;

pub use error::{Blame, HookError};

/// Where in Linux a program runs.
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
}

impl Mode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Offload => "offload",
        }
    }
}
