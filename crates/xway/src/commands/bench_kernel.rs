//! What the kernel said to a measurement, what that means there, and what to try.

use std::fmt;

use xway_abi::Errno;
use xway_kernel::KernelError;

use crate::args_bench::Versus;
use crate::failure::{Exit, Failure};

const WITHOUT: &str = "or leave out --vs kernel";

/// Whether the kernel is to be measured; refused before a program is tried where that cannot come to anything, because what the kernel
/// then says of the program would be beside the point.
pub fn wanted(vs: Option<Versus>) -> Result<bool, Failure> {
    let Some(Versus::Kernel) = vs else { return Ok(false) };
    match xway_hook::explain::lacking() {
        None => Ok(true),
        Some((missing, hint)) => {
            Err(Failure::needs(format!("--vs kernel: {missing} missing")).hint(format!("{hint}, {WITHOUT}")))
        }
    }
}

/// A failure for something that the kernel did not do.
///
/// `less` is what makes what was asked for smaller: `fewer --entries`.
pub fn refused(said: impl fmt::Display, error: &KernelError, less: &str) -> Failure {
    let plain = || xway_hook::explain::plain(error).hint.unwrap_or_else(|| "another kernel".into());
    let Some(errno) = error.errno() else { return Failure::needs(said).hint(format!("a newer kernel, {WITHOUT}")) };
    if !error.log().is_empty() {
        // The log is a part of what was said.
        return Failure::no(said)
            .hint("what the kernel's verifier does not take cannot be measured there: leave out --vs kernel");
    }
    let (exit, means, hint) = match errno {
        Errno::EPERM | Errno::EACCES => (Exit::Needs, "", plain()),
        Errno::ENOMEM => (Exit::Needs, "the kernel has no memory for it", format!("{less}; {}", plain())),
        Errno::E2BIG => (Exit::Usage, "it is larger than the kernel makes them", less.to_owned()),
        Errno::ENOSPC => (Exit::No, "there is no room for another one", format!("{less}, or another number of them")),
        Errno::EINVAL => (
            Exit::Usage,
            "this kernel has no such thing, or not of these sizes",
            format!("{less} or shorter keys, a newer kernel"),
        ),
        Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::ENOTSUPP | Errno::ENOENT => {
            (Exit::Needs, "this kernel cannot do it", "a newer kernel, with CONFIG_BPF_SYSCALL and CONFIG_NET".into())
        }
        Errno::EAGAIN | Errno::EINTR | Errno::EBUSY => {
            (Exit::No, "something else came between", "the same again".into())
        }
        _ => (Exit::No, "", "the same again, as root".into()),
    };
    let means = if means.is_empty() { String::new() } else { format!("; {means}") };
    Failure { exit, ..Failure::no(format!("{said}{means}")) }.hint(format!("{hint}, {WITHOUT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_has_its_own_way_out() {
        let of = |errno| {
            let error = KernelError::Call { step: "creating a map", errno };
            let failure = refused(&error, &error, "fewer --entries");
            assert!(failure.message.contains(&errno.to_string()), "{failure:?}");
            let hint = failure.hint.expect("something to try");
            assert!(hint.ends_with(", or leave out --vs kernel"), "{hint}");
            (failure.exit, hint)
        };
        let (exit, denied) = of(Errno::EPERM);
        assert!(exit == Exit::Needs && (denied.contains("CAP_BPF") || denied.contains("lock")), "{denied}");
        for (errno, exit) in [(Errno::ENOMEM, Exit::Needs), (Errno::E2BIG, Exit::Usage), (Errno::ENOSPC, Exit::No)] {
            let (said, hint) = of(errno);
            assert!(said == exit && hint.contains("fewer --entries") && !hint.contains("root"), "{errno}: {hint}");
        }
        assert!(of(Errno::EINVAL).1.contains("shorter keys"));
        assert!(of(Errno::EOPNOTSUPP).1.contains("a newer kernel"));
        let refused_by_it =
            KernelError::Program { name: "p".into(), errno: Errno::EACCES, log: "R1 is no pointer".into() };
        let failure = refused(&refused_by_it, &refused_by_it, "fewer --entries");
        assert!(failure.exit == Exit::No && failure.message.contains("R1 is no pointer"), "{failure:?}");
    }
}
