//! Who asks, and what that one may.
//!
//! The socket's permissions decide who may connect. Its other end is asked for its credentials all the same, so that a socket
//! whose permissions were opened to everybody gives everybody a look, and nobody else a hand.

use std::os::unix::net::UnixStream;

use xway_door::Group;

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

impl Peer {
    /// As the kernel knows it.
    pub fn of(socket: &UnixStream) -> std::io::Result<Peer> {
        let cred = rustix::net::sockopt::socket_peercred(socket)?;
        Ok(Peer { uid: cred.uid.as_raw(), gid: cred.gid.as_raw(), pid: cred.pid.as_raw_nonzero().get() as u32 })
    }
}

/// Who may change things.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owners {
    uid: u32,
    group: Option<Group>,
}

impl Owners {
    /// The user of this process, and a group by its name.
    ///
    /// # Errors
    /// There is no such group.
    pub fn new(group: Option<&str>) -> Result<Owners, String> {
        let uid = rustix::process::geteuid().as_raw();
        let group = group.map(Group::named).transpose().map_err(|e| format!("service.group: {e}"))?;
        Ok(Owners { uid, group })
    }

    /// Number of the group.
    pub fn gid(&self) -> Option<u32> {
        self.group.as_ref().map(Group::gid)
    }

    /// Whether this one is root or who the service runs as: only they may say what is executed.
    pub fn is_owner(&self, peer: Peer) -> bool {
        peer.uid == 0 || peer.uid == self.uid
    }

    /// Whether this one may change things.
    pub fn may_change(&self, peer: Peer) -> bool {
        self.is_owner(peer) || self.group.as_ref().is_some_and(|group| group.has(peer.uid, peer.gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_group_may_change_others_may_not() {
        // Group 0 is there on every machine, by this name.
        let owners = Owners { uid: 500, group: Group::named("root").ok() };
        let peer = |uid, gid| Peer { uid, gid, pid: 1 };
        for (who, may) in [(peer(0, 0), true), (peer(500, 500), true), (peer(1002, 0), true), (peer(1002, 1002), false)]
        {
            assert_eq!(owners.may_change(who), may, "{who:?}");
        }
        assert!(owners.is_owner(peer(0, 0)) && owners.is_owner(peer(500, 1)) && !owners.is_owner(peer(1002, 0)));
    }

    #[test]
    fn the_kernel_tells_who_is_there() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = Peer::of(&near).unwrap();
        assert_eq!((peer.uid, peer.pid), (rustix::process::geteuid().as_raw(), std::process::id()));
    }
}
