//! XDP verdicts (`enum xdp_action` of `linux/bpf.h`).

/// The five actions that a program may return.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Verdict {
    /// Program error: drop and raise an exception event.
    Aborted = 0,
    /// Drop; the frame goes back to where it came from.
    Drop = 1,
    /// Hand to the port's stack side, possibly changed.
    Pass = 2,
    /// Send out of the port that it came in on.
    Tx = 3,
    /// Send to the target that a redirect helper chose.
    Redirect = 4,
}

impl Verdict {
    /// All five, in numerical order.
    pub const ALL: [Verdict; 5] = [Verdict::Aborted, Verdict::Drop, Verdict::Pass, Verdict::Tx, Verdict::Redirect];

    /// The action for a program's return value; `None` is an invalid action, which Linux drops.
    ///
    /// A program returns 32 bits: the upper half of r0 is ignored, as the kernel ignores it.
    pub const fn from_ret(r0: u64) -> Option<Verdict> {
        match r0 as u32 {
            0 => Some(Verdict::Aborted),
            1 => Some(Verdict::Drop),
            2 => Some(Verdict::Pass),
            3 => Some(Verdict::Tx),
            4 => Some(Verdict::Redirect),
            _ => None,
        }
    }

    /// The name without its `XDP_` prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Aborted => "ABORTED",
            Verdict::Drop => "DROP",
            Verdict::Pass => "PASS",
            Verdict::Tx => "TX",
            Verdict::Redirect => "REDIRECT",
        }
    }
}
