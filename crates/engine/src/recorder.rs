//! Writing down what was decided about each packet.

use xway_abi::Verdict;
use xway_packet::Frame;

use crate::PortError;

/// Sees every frame after its program ran and before the verdict is carried out. Capture writers implement it.
pub trait Recorder: Send {
    /// A frame, as its program left it, with the verdict; `Err` holds a code that is no verdict.
    ///
    /// # Errors
    /// The record could not be written; the worker stops.
    fn record(&mut self, frame: &Frame, verdict: Result<Verdict, u32>) -> Result<(), PortError>;

    /// The run is over: completes what was written.
    ///
    /// # Errors
    /// It could not be completed.
    fn finish(self: Box<Self>) -> Result<(), PortError>;
}
