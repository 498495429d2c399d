//! A socket at a path.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, shutdown, socket_with,
};

use crate::{STUCK, refuse_rights};

/// Who may connect: whoever may write to the socket's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Permissions of the file, as 0o660.
    pub mode: u32,
    /// Its group; none: that of the process.
    pub gid: Option<u32>,
    /// Who connects may send descriptors, also where the kernel can refuse them. Nobody wants them: it is how older kernels are, for tests.
    pub rights: bool,
}

impl Default for Access {
    /// The owner and the group of the process.
    fn default() -> Access {
        Access { mode: 0o660, gid: None, rights: false }
    }
}

/// Why there is no socket.
#[derive(Debug)]
pub enum Refused {
    /// Somebody listens there.
    Answers,
    /// The system refuses.
    Failed {
        /// What was being done.
        what: &'static str,
        /// What it said.
        cause: io::Error,
    },
}

/// A socket that listens. Connections that wait to be accepted are closed with it, with what they brought: nobody waits for that when it
/// is dropped. When one that [`listen`] has made is dropped nobody can connect any more, also where somebody else has its descriptor.
#[derive(Debug)]
pub struct Listener {
    fd: Option<OwnedFd>,
    /// Nobody else goes on with it.
    own: bool,
}

/// Somebody else has opened it, and may go on with it.
impl From<OwnedFd> for Listener {
    fn from(fd: OwnedFd) -> Listener {
        Listener { fd: Some(fd), own: false }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.own {
            let _ = shutdown(&*self, Shutdown::Both);
        }
        let fd = self.fd.take();
        let closing = std::thread::Builder::new().name("door-close".into()).spawn(move || drop(fd));
        // Usually it takes no time.
        let until = Instant::now() + STUCK;
        while closing.as_ref().is_ok_and(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
}

/// A path as the kernel takes it (`sun_path`).
fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|e| match e {
        Errno::NAMETOOLONG => {
            io::Error::other(format!("it has {} bytes, and that of a socket at most 108", path.as_os_str().len()))
        }
        other => other.into(),
    })
}

/// Whether a socket could be made at a path, or takes the place of one that is there. Nothing is changed, and nobody is called.
///
/// # Errors
/// Something else is there, or there is no such directory.
pub fn look(path: &Path) -> io::Result<()> {
    address(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(is) if is.file_type().is_socket() => Ok(()),
        Ok(_) => Err(io::Error::other("something else than a socket is there")),
        Err(_) => {
            // A name alone is one in the working directory.
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            std::fs::metadata(dir.unwrap_or(Path::new("."))).map(drop)
        }
    }
}

/// Listens at a path, without waiting in calls on the socket. What is left there of somebody who listens no more is replaced; nothing else is. From
/// the first moment on nobody may connect who may not later. Where the kernel can be told so, who connects cannot send
/// descriptors.
///
/// # Errors
/// Somebody listens there, or the system refuses.
pub fn listen(path: &Path, kind: SocketType, access: Access) -> Result<Listener, Refused> {
    let failed = |what| move |errno: Errno| Refused::Failed { what, cause: errno.into() };
    let told = |what| move |cause: io::Error| Refused::Failed { what, cause };
    let address = address(path).map_err(told("its path"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, kind, flags, None).map_err(failed("a socket"));
    look(path).map_err(told("binding"))?;
    if std::fs::symlink_metadata(path).is_ok() {
        match connect(&socket()?, &address) {
            // Nobody accepts fast enough, but somebody listens.
            Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => return Err(Refused::Answers),
            Err(Errno::CONNREFUSED) => {
                std::fs::remove_file(path).map_err(told("removing what is left of another one"))?
            }
            // One of another kind: it shows when ours is bound.
            Err(_) => {}
        }
    }
    let listener = Listener { fd: Some(socket()?), own: true };
    // The file gets the permissions that the socket has (`unix_bind_bsd`): the owner's alone until the group is the right one.
    fchmod(&listener, Mode::RUSR | Mode::WUSR).map_err(failed("its permissions"))?;
    bind(&listener, &address).map_err(failed("binding"))?;
    let open = || {
        if let Some(gid) = access.gid {
            std::os::unix::fs::chown(path, None, Some(gid)).map_err(told("its group"))?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(access.mode))
            .map_err(told("its permissions"))?;
        if !access.rights {
            // Where it cannot, a thread of its own stands between them and the others.
            refuse_rights(&listener);
        }
        rustix::net::listen(&listener, 16).map_err(failed("listening"))
    };
    open().inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })?;
    Ok(listener)
}
