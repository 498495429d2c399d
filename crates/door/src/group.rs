//! A group of the machine: who may connect beside the owner.

/// A group, and who is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    gid: u32,
    /// Users who are listed in it.
    members: Vec<u32>,
}

impl Group {
    /// The group with this name, from `/etc/group` and `/etc/passwd`.
    ///
    /// # Errors
    /// There is no such group, or the files cannot be read: in words.
    pub fn named(name: &str) -> Result<Group, String> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
        find(name, &read("/etc/group")?, &read("/etc/passwd")?).ok_or_else(|| format!("there is no group {name}"))
    }

    /// Its number.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Whether a user whose group is this one, or some other, is in it.
    pub fn has(&self, uid: u32, gid: u32) -> bool {
        gid == self.gid || self.members.contains(&uid)
    }
}

/// A group's number and its members', from the two files of the machine.
fn find(name: &str, groups: &str, users: &str) -> Option<Group> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let group = groups.lines().map(fields).find(|f| f.first().is_some_and(|n| n == name))?;
    let gid = group.get(2)?.parse().ok()?;
    let named: Vec<&str> =
        group.get(3).map_or("", String::as_str).trim().split(',').filter(|n| !n.is_empty()).collect();
    let number = |f: Vec<String>| named.contains(&f.first()?.as_str()).then(|| f.get(2)?.parse().ok()).flatten();
    Some(Group { gid, members: users.lines().map(fields).filter_map(number).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_those_of_the_group_and_those_listed_in_it() {
        let groups = "root:x:0:\nxway:x:990:ann,bob\nempty:x:7:\n";
        let users =
            "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\neve:x:1002:1002::/:\n";
        let xway = find("xway", groups, users).unwrap();
        assert_eq!(xway, Group { gid: 990, members: vec![1000, 1001] });
        assert!(xway.has(1000, 1000) && xway.has(1002, 990) && !xway.has(1002, 1002));
        assert_eq!(find("empty", groups, users), Some(Group { gid: 7, members: vec![] }));
        assert_eq!(find("nobody", groups, users), None);
        assert_eq!(Group::named("no such group").unwrap_err(), "there is no group no such group");
    }
}
