//! How machine code is made in this process, and who is told of it.

use xway_jit::Options;
use xway_jit::profile::{self, Profilers};

use crate::args::MachineCode;
use crate::failure::Failure;

impl MachineCode {
    /// The compiler's switches.
    pub fn options(&self) -> Options {
        Options { stage: !self.no_stage, ..Options::default() }
    }

    /// Tells profilers of what is compiled from now on, where it is wanted.
    pub fn publish(&self) -> Result<(), Failure> {
        let wanted = Profilers { perf_map: self.perf_map, jitdump: self.jitdump.clone() };
        profile::tell(&wanted).map(drop).map_err(|e| self.failed(&e.to_string()))
    }

    /// Fails where profilers could not be told of something since.
    pub fn published(&self) -> Result<(), Failure> {
        profile::trouble().map_or(Ok(()), |why| Err(self.failed(&why)))
    }

    fn failed(&self, why: &str) -> Failure {
        let asked = [self.perf_map.then_some("--perf-map"), self.jitdump.as_ref().map(|_| "--jitdump")];
        let asked: Vec<&str> = asked.into_iter().flatten().collect();
        Failure::needs(format!("{}: {why}", asked.join(", ")))
    }
}
