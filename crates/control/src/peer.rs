//! Who asks, and what that one may.
//!
//! The socket's permissions decide who may connect. Its other end is asked for its credentials all the same, so that a socket
//! whose permissions were opened to everybody gives everybody a look, and nobody else a hand.

use std::os::unix::net::UnixStream;

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
    /// Number of the group, and the numbers of those who are listed in it.
    group: Option<(u32, Vec<u32>)>,
}

impl Owners {
    /// The user of this process, and a group by its name.
    ///
    /// # Errors
    /// There is no such group.
    pub fn new(group: Option<&str>) -> Result<Owners, String> {
        let uid = rustix::process::geteuid().as_raw();
        let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
        let group = match group {
            None => None,
            Some(name) => {
                let found = find(name, &read("/etc/group")?, &read("/etc/passwd")?);
                Some(found.ok_or_else(|| format!("service.group: there is no group {name}"))?)
            }
        };
        Ok(Owners { uid, group })
    }

    /// Number of the group.
    pub fn gid(&self) -> Option<u32> {
        self.group.as_ref().map(|(gid, _)| *gid)
    }

    /// Whether this one is root or who the service runs as: only they may say what is executed.
    pub fn is_owner(&self, peer: Peer) -> bool {
        peer.uid == 0 || peer.uid == self.uid
    }

    /// Whether this one may change things.
    pub fn may_change(&self, peer: Peer) -> bool {
        let in_group =
            self.group.as_ref().is_some_and(|(gid, members)| peer.gid == *gid || members.contains(&peer.uid));
        self.is_owner(peer) || in_group
    }
}

/// A group's number and its members', from the two files of the machine.
fn find(name: &str, groups: &str, users: &str) -> Option<(u32, Vec<u32>)> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let group = groups.lines().map(fields).find(|f| f.first().is_some_and(|n| n == name))?;
    let gid = group.get(2)?.parse().ok()?;
    let named: Vec<&str> =
        group.get(3).map_or("", String::as_str).trim().split(',').filter(|n| !n.is_empty()).collect();
    let number = |f: Vec<String>| named.contains(&f.first()?.as_str()).then(|| f.get(2)?.parse().ok()).flatten();
    Some((gid, users.lines().map(fields).filter_map(number).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_group_may_change_others_may_not() {
        let groups = "root:x:0:\nxway:x:990:ann,bob\nempty:x:7:\n";
        let users =
            "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\neve:x:1002:1002::/:\n";
        assert_eq!(find("xway", groups, users), Some((990, vec![1000, 1001])));
        assert_eq!(find("empty", groups, users), Some((7, vec![])));
        assert_eq!(find("nobody", groups, users), None);
        let owners = Owners { uid: 500, group: find("xway", groups, users) };
        let peer = |uid, gid| Peer { uid, gid, pid: 1 };
        for (who, may) in [
            (peer(0, 0), true),
            (peer(500, 500), true),
            (peer(1000, 1000), true),
            (peer(1002, 990), true),
            (peer(1002, 1002), false),
        ] {
            assert_eq!(owners.may_change(who), may, "{who:?}");
        }
        assert!(owners.is_owner(peer(0, 0)) && owners.is_owner(peer(500, 1)) && !owners.is_owner(peer(1002, 990)));
    }

    #[test]
    fn the_kernel_tells_who_is_there() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = Peer::of(&near).unwrap();
        assert_eq!((peer.uid, peer.pid), (rustix::process::geteuid().as_raw(), std::process::id()));
    }
}
