//! A socket that was opened before: by systemd (`LISTEN_FDS`, `sd_listen_fds(3)`), or by the process that this one takes over from.
//!
//! Descriptors are taken by their numbers with `pidfd_getfd(2)` from this very process: a duplicate, owned like any other.

use std::os::unix::net::UnixListener;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// First descriptor of a service manager's.
const FIRST: i32 = 3;
/// Tells the next process the number of the listening socket, and by a plus behind it that its file is a service manager's.
pub(crate) const HANDED: &str = "XWAY_LISTEN_FD";

/// A listening socket that was there before this process.
pub(crate) struct Given {
    pub listener: UnixListener,
    /// Its file is a service manager's.
    pub managed: bool,
    /// It comes from the executable that ran in this process before.
    pub succeeds: bool,
}

/// The listening socket that this process was started with, if it was.
///
/// # Errors
/// One was announced and is none.
pub(crate) fn listener() -> Result<Option<Given>, String> {
    let handed = std::env::var(HANDED).unwrap_or_default();
    let number = |name: &str| std::env::var(name).ok()?.trim_end_matches('+').parse::<i32>().ok();
    let (fd, from) = match (number(HANDED), number("LISTEN_PID"), number("LISTEN_FDS")) {
        (Some(fd), ..) => (fd, HANDED),
        (None, Some(pid), Some(count)) if pid == getpid().as_raw_nonzero().get() && count >= 1 => (FIRST, "LISTEN_FDS"),
        _ => return Ok(None),
    };
    let taken = take(fd).map_err(|e| format!("{from}: descriptor {fd}: {e}"))?;
    let listener = UnixListener::from(taken);
    // The number that was given goes on into every child of this process. It is ours, and nobody else's here: whoever started this
    // process has said so, and it is a socket of which the duplicate is as good.
    let closed = || nix::unistd::close(fd).map_err(|e| format!("{from}: descriptor {fd}: {e}"));
    let accepts = rustix::net::sockopt::socket_acceptconn(&listener);
    let unix = listener.local_addr().is_ok();
    match accepts {
        Ok(true) if unix => {
            closed()?;
            let succeeds = from == HANDED;
            Ok(Some(Given { listener, managed: !succeeds || handed.ends_with('+'), succeeds }))
        }
        _ => Err(format!("{from}: descriptor {fd} is not a UNIX socket that listens")),
    }
}

/// Where a socket that a service manager has opened lets in others than the file says.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Differs {
    /// `mode` or `group`.
    pub what: &'static str,
    pub requested: String,
    pub effective: String,
    pub reason: &'static str,
}

/// Compares the mode and group that a socket has with the file's `readable` (as a mode) and `group` (name and number).
pub(crate) fn differs((has, owner): (u32, u32), mode: u32, group: Option<(&str, u32)>) -> Vec<Differs> {
    let octal = |mode: u32| format!("{mode:04o}");
    let mode = (has != mode).then(|| Differs {
        what: "mode",
        requested: octal(mode),
        effective: octal(has),
        reason: "the service manager opened the socket: SocketMode= of its unit says who connects, not `readable`",
    });
    let group = group.filter(|(_, gid)| *gid != owner).map(|(name, gid)| Differs {
        what: "group",
        requested: format!("{name} ({gid})"),
        effective: owner.to_string(),
        reason: "the service manager opened the socket: SocketGroup= of its unit says who connects, not `group`",
    });
    mode.into_iter().chain(group).collect()
}

fn take(fd: i32) -> rustix::io::Result<OwnedFd> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    pidfd_getfd(own, fd, PidfdGetfdFlags::empty())
}

/// Makes a listening socket outlive the next `exec`; gives what the environment of the new process must say. `managed`: its file is a
/// service manager's.
pub(crate) fn hand_over(listener: impl AsFd, managed: bool) -> std::io::Result<(&'static str, String)> {
    use std::os::fd::AsRawFd;
    let listener = listener.as_fd();
    fcntl_setfd(listener, FdFlags::empty())?;
    Ok((HANDED, format!("{}{}", listener.as_raw_fd(), if managed { "+" } else { "" })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_the_manager_opened_is_compared_with_the_file() {
        assert_eq!(differs((0o660, 7), 0o660, Some(("net", 7))), []);
        // Without a group in the file any will do.
        assert_eq!(differs((0o666, 7), 0o666, None), []);
        let both = differs((0o666, 0), 0o660, Some(("net", 7)));
        let words: Vec<_> = both.iter().map(|d| (d.what, d.requested.as_str(), d.effective.as_str())).collect();
        assert_eq!(words, [("mode", "0660", "0666"), ("group", "net (7)", "0")]);
        assert!(both[0].reason.contains("SocketMode=") && both[1].reason.contains("SocketGroup="));
    }

    #[test]
    fn a_descriptor_is_taken_by_its_number() {
        let dir = std::env::temp_dir().join(format!("xway-activate-{}", std::process::id()));
        let _ = std::fs::remove_file(&dir);
        let first = UnixListener::bind(&dir).unwrap();
        let second = UnixListener::from(take(first.as_raw_fd()).unwrap());
        drop(first);
        let peer = std::os::unix::net::UnixStream::connect(&dir).unwrap();
        assert!(second.accept().is_ok());
        drop(peer);
        assert!(take(99_999).is_err());
        std::fs::remove_file(dir).unwrap();
    }
}
