//! Kinds of memory: a store to one never changes what a load of another gives.

use cranelift_codegen::ir;

/// Numbers of kinds of memory in Cranelift's form that other passes know.
pub(crate) mod region {
    /// Descriptors of frames.
    pub const DESCRIPTOR: u32 = 3;
    /// Packets and their metadata.
    pub const PACKET: u32 = 4;
    /// The stacks of functions.
    pub const STACK: u32 = 5;
    /// Addresses of arrays.
    pub const BASES: u32 = 8;
    /// The state of the generator of random numbers.
    pub const RANDOM: u32 = 9;
    /// What describes the memory of maps.
    pub const LAYOUTS: u32 = 10;
}

/// Kinds of memory that never overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    /// The burst's array of frames and of verdicts.
    Frames,
    Env,
    /// The worker's number in the environment, which never changes.
    Cpu,
    Descriptor,
    /// Packet and metadata.
    Packet,
    /// The stacks of this function and of its callers.
    Stack,
    Record,
    /// Addresses of arrays, which never change.
    Bases,
    /// The worker's random numbers.
    Random,
    /// What describes the memory of maps that only the run knows. It never changes.
    Layouts,
    /// Values of maps.
    Values,
}

impl Area {
    pub(super) fn region(self) -> ir::AliasRegionData {
        let (user_id, description) = match self {
            Area::Frames => (1, "frames".into()),
            Area::Env => (2, "env".into()),
            Area::Descriptor => (region::DESCRIPTOR, "descriptor".into()),
            Area::Packet => (region::PACKET, "packet".into()),
            Area::Stack => (region::STACK, "stack".into()),
            Area::Cpu => (7, "cpu".into()),
            Area::Bases => (region::BASES, "bases".into()),
            Area::Random => (region::RANDOM, "random".into()),
            Area::Layouts => (region::LAYOUTS, "layouts".into()),
            Area::Record => (6, "record".into()),
            Area::Values => (11, "values of maps".into()),
        };
        ir::AliasRegionData { user_id, description }
    }
}
