//! Doors as others find them: users of other groups, descriptors that come along, what stands at the path.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept, connect, recv, sendmsg, socket, socketpair,
};
use xway_door::{Access, Refused, listen, look, refuse_rights};
use xway_testkit::{Needs, as_user, skip};

const KINDS: [SocketType; 2] = [SocketType::STREAM, SocketType::SEQPACKET];

fn path(label: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("xway-door-{label}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn client(path: &Path, kind: SocketType) -> OwnedFd {
    let client = socket(AddressFamily::UNIX, kind, None).unwrap();
    connect(&client, &SocketAddrUnix::new(path).unwrap()).unwrap();
    client
}

fn send_one(to: &OwnedFd, fd: &OwnedFd) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)
}

#[test]
fn the_file_has_its_mode_and_group_and_no_moment_with_others() {
    for (kind, mode) in KINDS.into_iter().zip([0o660, 0o666]) {
        let path = path("mode");
        let gid = rustix::process::getegid().as_raw();
        let _listener = listen(&path, kind, Access { mode, gid: Some(gid), ..Access::default() }).unwrap();
        let is = std::fs::metadata(&path).unwrap();
        assert_eq!((is.permissions().mode() & 0o7777, is.gid()), (mode, gid));
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn only_what_nobody_listens_at_is_replaced() {
    for kind in KINDS {
        let path = path("stands");
        let listener = listen(&path, kind, Access::default()).unwrap();
        assert!(matches!(listen(&path, kind, Access::default()), Err(Refused::Answers)));
        // Its queue fills up, and nobody waits for that.
        let waiting: Vec<_> = (0..16).map(|_| client(&path, kind)).collect();
        for _ in 0..4 {
            assert!(matches!(listen(&path, kind, Access::default()), Err(Refused::Answers)));
        }
        // One of another kind is somebody's, too.
        let other = if kind == SocketType::STREAM { SocketType::SEQPACKET } else { SocketType::STREAM };
        let Err(Refused::Failed { what, cause }) = listen(&path, other, Access::default()) else {
            panic!("it took the path")
        };
        assert_eq!((what, cause.kind()), ("binding", std::io::ErrorKind::AddrInUse));
        drop((listener, waiting));
        let again = listen(&path, kind, Access::default()).unwrap();
        drop(again);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(listen(&path, kind, Access::default()), Err(Refused::Failed { what: "binding", .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        std::fs::remove_file(&path).unwrap();
    }
}

/// Also while something else still has the descriptor, as a process that was forked a moment ago.
#[test]
fn nobody_connects_to_a_door_that_is_gone() {
    for kind in KINDS {
        let path = path("gone");
        let listener = listen(&path, kind, Access::default()).unwrap();
        let waits = client(&path, kind);
        let again = listener.as_fd().try_clone_to_owned().unwrap();
        drop(listener);
        let late = socket(AddressFamily::UNIX, kind, None).unwrap();
        assert_eq!(connect(&late, &SocketAddrUnix::new(&path).unwrap()), Err(Errno::CONNREFUSED));
        // Its place can be had.
        let next = listen(&path, kind, Access::default()).unwrap();
        client(&path, kind);
        drop((next, waits, again));
        std::fs::remove_file(&path).unwrap();
    }
}

/// Whether this user with this group can connect.
fn connects(path: &Path, (uid, gid): (u32, u32), groups: &[u32]) -> rustix::io::Result<()> {
    let address = SocketAddrUnix::new(path).unwrap();
    as_user((uid, gid), groups, || connect(&socket(AddressFamily::UNIX, SocketType::STREAM, None)?, &address))
}

#[test]
fn the_owner_the_group_and_nobody_else_connect() {
    if !Needs::of("door::the_owner_the_group_and_nobody_else_connect").root().met() {
        return;
    }
    let path = path("who");
    let (stranger, group) = (65_533, 64_001);
    for (access, others) in [
        (Access { gid: Some(group), ..Access::default() }, Err(Errno::ACCESS)),
        (Access { mode: 0o666, gid: Some(group), rights: false }, Ok(())),
    ] {
        let listener = listen(&path, SocketType::STREAM, access).unwrap();
        assert_eq!(connects(&path, (0, 0), &[]), Ok(()));
        assert_eq!(connects(&path, (stranger, group), &[]), Ok(()), "the group is his own");
        assert_eq!(connects(&path, (stranger, stranger), &[group]), Ok(()), "he is listed in it");
        assert_eq!(connects(&path, (stranger, stranger), &[]), others);
        drop(listener);
    }
    // Who may not give the file to a group has none there.
    std::fs::remove_file(&path).unwrap();
    let refused = as_user((stranger, stranger), &[], || {
        listen(&path, SocketType::STREAM, Access { gid: Some(0), ..Access::default() })
    });
    assert!(matches!(refused, Err(Refused::Failed { what: "its group", .. })), "{refused:?}");
    assert!(!path.exists());
}

/// Where the kernel can refuse them no descriptor comes, not even before the connection is accepted; others can still be sent from here.
#[test]
fn who_connects_cannot_send_descriptors() {
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
    let refuses = refuse_rights(&near);
    if !refuses {
        return skip("door::who_connects_cannot_send_descriptors", "Linux 6.16, which has SO_PASSRIGHTS");
    }
    assert_eq!((send_one(&far, &far), send_one(&near, &far)), (Err(Errno::PERM), Ok(1)));
    for kind in KINDS {
        let path = path("rights");
        let listener = listen(&path, kind, Access::default()).unwrap();
        let early = client(&path, kind);
        assert_eq!(send_one(&early, &early), Err(Errno::PERM));
        let accepted = loop {
            match accept(&listener) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                accepted => break accepted.unwrap(),
            }
        };
        assert_eq!(send_one(&early, &early), Err(Errno::PERM));
        assert_eq!(send_one(&accepted, &accepted), Ok(1));
        // Nothing came of what was refused.
        let got = recv(&accepted, &mut [0; 1], RecvFlags::DONTWAIT);
        assert!(matches!(got, Err(Errno::AGAIN)), "{got:?}");
        drop(listener);
        let _listener = listen(&path, kind, Access { rights: true, ..Access::default() }).unwrap();
        let late = client(&path, kind);
        assert_eq!(send_one(&late, &late), Ok(1));
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_name_alone_is_one_in_the_working_directory() {
    assert!(look(Path::new("xway-door-nobody.sock")).is_ok());
    assert!(look(Path::new("no-such-directory/x.sock")).is_err());
    let long = look(Path::new(&"a".repeat(109))).unwrap_err().to_string();
    assert_eq!(long, "it has 109 bytes, and that of a socket at most 108");
}
