//! How machine code is made in this process, and who is told of it.

use xway_jit::Options;
use xway_jit::profile::{self, Profilers, Trouble};

use crate::args::MachineCode;
use crate::failure::Failure;
use crate::output;

impl MachineCode {
    /// The compiler's switches.
    pub fn options(&self) -> Options {
        Options { stage: !self.no_stage, ..Options::default() }
    }

    /// Tells profilers of what is compiled from now on, where it is wanted.
    pub fn publish(&self) -> Result<(), Failure> {
        let wanted = Profilers { perf_map: self.perf_map, jitdump: self.jitdump.clone() };
        profile::tell(&wanted).map(drop).map_err(|e| failed(&e))
    }

    /// Fails where profilers could not be told of something since.
    pub fn published(&self) -> Result<(), Failure> {
        profile::trouble().map_or(Ok(()), |e| Err(failed(&e)))
    }
}

/// A file that is asked for and cannot be written, as [`output::Whole`] says it of others, by the option that asks for it.
fn failed(trouble: &Trouble) -> Failure {
    let Trouble { file, is_dump, kind, why } = trouble;
    let option = if *is_dump { "--jitdump" } else { "--perf-map" };
    output::not_written(file, *kind, why).at(option)
}
