//! How close each helper comes to Linux, for the compatibility table.

/// What a program gets from a helper here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    /// What Linux gives.
    Yes,
    /// Something else, for this reason.
    Differs(&'static str),
    /// Nothing: reaching the call stops the program.
    No,
}

/// What the helper with this number gives; `No` for those that XDP programs may not call.
pub fn support(helper_id: u32) -> Support {
    use Support::{Differs, No, Yes};
    const NO_SOCKET: &str = "no socket is ever found, as in Linux when none matches";
    const NEEDS_SOCKET: &str = "cannot be reached: it needs a socket, and none is ever found";
    const OPAQUE: &str = "the task is a handle: its fields read as zero";
    if super::implementation(helper_id).is_none() {
        return No;
    }
    match helper_id {
        5 => Differs(
            "machine code reads the processor's counter where Linux's own clock does: a worker never sees time go back, between workers, and \
             beside CLOCK_MONOTONIC, it may differ by a microsecond",
        ),
        7 => Differs("pseudo-random numbers come from the worker's own generator"),
        8 => Differs("the number of the worker"),
        14..=16 | 120 => Differs("the worker's thread, where Linux reports whatever task was interrupted"),
        17 => Differs("always 0, as in Linux without a net_cls group"),
        6 | 177 => {
            Differs("text goes to the host's trace output instead of trace_pipe; %p prints the address unhashed")
        }
        165 => Differs("%p prints the address unhashed; %pB and the like print numbers"),
        22 | 55 => Differs("perf event arrays hold rings only: counters are never found (ENOENT)"),
        35 | 158 | 175 => Differs(OPAQUE),
        37 => Differs("control groups cannot be put into maps of the engine: EAGAIN"),
        51 => Differs("same results; the target is taken when the burst is flushed"),
        69 => Differs("reads a copy of the kernel's tables that netlink keeps up to date; multipath choice differs"),
        80 | 123 => Differs("the control group of the worker"),
        84 | 85 | 99 => Differs(NO_SOCKET),
        86 | 100 | 110 | 136..=140 | 178 | 196 => Differs(NEEDS_SOCKET),
        109 | 117 => Differs("always EPERM: a packet program gets no handle on the worker's process"),
        112 | 114 => Differs("always EFAULT: there is no user memory behind the program"),
        113 | 115 => Differs("reads what the program may read anyway; all else is EFAULT"),
        141 | 176 => Differs("no stack and no branches to be seen: EOPNOTSUPP, ENOENT"),
        148 | 191 => Differs("refused by Linux in every XDP program; EFAULT here"),
        149 => Differs("kernel types are not kept: EINVAL"),
        153 | 154 => Differs("cannot be reached: kernel variables are not linked"),
        156 | 157 | 210 | 211 => Differs("there are no task and control group storage maps outside the kernel"),
        169..=172 => Differs("callbacks run on the worker between bursts"),
        180 => Differs("the worker's address space is not shown: ENOENT"),
        181 => Differs(
            "always as in the loop that Linux makes of a call with flags of 0 and one callback: the count is all of the register, and one that \
             is too large gives -E2BIG in 32 bits. Where these are no constants Linux calls its helper, which looks at the lower half of the \
             count and gives -E2BIG in 64 bits",
        ),
        204..=207 => {
            Differs("cookies of the engine's own secret: the kernel's TCP does not accept them, and vice versa")
        }
        _ => Yes,
    }
}
