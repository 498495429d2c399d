//! A network to try programs on: hosts in network namespaces, each on a wire of its own to this machine.
//!
//! ```text
//!   this namespace                      namespace xway-lab-0
//!   lab0  10.77.0.1/24 ───── wire ───── eth0  10.77.0.2/24   default route to 10.77.0.1
//!         fd77:0:0::1/64                      fd77:0:0::2/64
//!   lab1  10.77.1.1/24 ───── wire ───── eth0  …              namespace xway-lab-1
//! ```
//!
//! The wires are veth pairs. The far ends have a native program that passes everything: without one a veth takes no frames of
//! XDP_TX and redirects.
//! Everything that a lab is can be found again from its name: there is no state file, and removing the namespaces removes
//! the wires. `ip` does the work; [`Plan::steps`] says beforehand what it will be asked.
#![forbid(unsafe_code)]

mod plan;
mod run;

pub use plan::{Plan, PlanError};
pub use run::{Existing, Host, LabError, down, existing, free_net, up};
