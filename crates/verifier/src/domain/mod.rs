//! The numbers that the analysis computes with: sets of concrete numbers, given by known bits and bounds.

pub mod arith;
pub mod compare;
pub mod range;
pub mod scalar;
pub mod tnum;

pub use compare::refine;
pub use scalar::Scalar;
pub use tnum::Tnum;
