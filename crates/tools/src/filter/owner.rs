//! Lists that somebody without privileges may change: pins in the BPF file system that belong to him.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use xway_hook::{Blame, HookError};

use crate::ToolError;

/// Whose the pins are to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    name: String,
    uid: u32,
    /// The user's own group, and whether it was asked for: then its members may change the lists too.
    gid: u32,
    group: bool,
}

impl Owner {
    /// From `USER` or `USER:GROUP`, names or numbers, as the two files of the machine have them.
    ///
    /// # Errors
    /// There is no such user or group.
    pub fn parse(text: &str) -> Result<Owner, String> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
        Owner::find(text, &read("/etc/passwd")?, &read("/etc/group")?)
    }

    fn find(text: &str, users: &str, groups: &str) -> Result<Owner, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
        let fields = |lines: &str, name: &str| -> Option<Vec<String>> {
            let all = lines.lines().map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>());
            all.into_iter().find(|f| f.first().is_some_and(|n| n == name) || f.get(2).is_some_and(|n| n == name))
        };
        let number = |fields: &Option<Vec<String>>, at: usize| fields.as_ref()?.get(at)?.parse::<u32>().ok();
        let known = fields(users, user);
        // A number needs no line in the file.
        let uid = number(&known, 2).or_else(|| user.parse().ok());
        let uid = uid.ok_or_else(|| format!("{user}: there is no such user in /etc/passwd"))?;
        let gid = match group {
            None => number(&known, 3).unwrap_or(uid),
            Some(group) => {
                let found = number(&fields(groups, group), 2).or_else(|| group.parse().ok());
                found.ok_or_else(|| format!("{group}: there is no such group in /etc/group"))?
            }
        };
        Ok(Owner { name: text.to_owned(), uid, gid, group: group.is_some() })
    }

    /// Gives a pin to this owner.
    pub(super) fn give(&self, pin: &Path) -> Result<(), ToolError> {
        let mode = if self.group { 0o660 } else { 0o600 };
        let done = chown(pin, Some(self.uid), Some(self.gid))
            .and_then(|()| std::fs::set_permissions(pin, std::fs::Permissions::from_mode(mode)));
        done.map_err(|e| {
            let error = HookError::new(Blame::Machine, format!("{}: giving it to {}: {e}", pin.display(), self.name));
            error.hint("run as root").into()
        })
    }

    /// Directories on the way to a pin that this owner cannot enter.
    pub(super) fn shut_out(&self, dir: &Path) -> Vec<String> {
        let shut = |at: &&Path| {
            let Ok(meta) = std::fs::metadata(at) else { return false };
            let needed = match () {
                () if self.uid == 0 => return false,
                () if meta.uid() == self.uid => 0o100,
                () if meta.gid() == self.gid => 0o010,
                () => 0o001,
            };
            meta.mode() & needed == 0
        };
        let say = |at: &Path| format!("{} may not enter {}: chmod o+x {}", self.name, at.display(), at.display());
        dir.ancestors().filter(shut).map(say).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_found_by_name_and_number() {
        let users = "root:x:0:0::/:/bin/sh\nann:x:1000:1001::/:/bin/sh\n";
        let groups = "root:x:0:\nstaff:x:50:ann\n";
        let find = |text| Owner::find(text, users, groups).map(|o| (o.uid, o.gid, o.group));
        assert_eq!(find("ann"), Ok((1000, 1001, false)));
        assert_eq!(find("ann:staff"), Ok((1000, 50, true)));
        assert_eq!(find("1000"), Ok((1000, 1001, false)));
        assert_eq!(find("77:88"), Ok((77, 88, true)));
        assert!(find("bob").unwrap_err().contains("bob: there is no such user"));
        assert!(find("ann:none").unwrap_err().contains("none: there is no such group"));
    }
}
