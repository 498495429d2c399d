//! What a lab consists of, before anything is done.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The most hosts of one lab.
pub const MAX_HOSTS: u8 = 16;
/// Interface names have at most 15 bytes; two are for the number.
const MAX_NAME: usize = 12;

/// A lab that can be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    name: String,
    hosts: u8,
    net: u8,
    ipv6: bool,
}

/// Why a lab cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// The name would not be a good beginning of an interface's name.
    #[error("{0:?} is no name for a lab: 1 to {MAX_NAME} lower-case letters, digits or `_`, the last one not a digit")]
    Name(String),
    /// Too many or no hosts.
    #[error("{0} hosts: a lab has 1 to {MAX_HOSTS}")]
    Hosts(u8),
}

impl Plan {
    /// A lab of this name. `net` is the second number of its addresses, `10.NET.HOST.…`; `ipv6`: hosts get such addresses too.
    ///
    /// # Errors
    /// The name or the number of hosts, see [`PlanError`].
    pub fn new(name: &str, hosts: u8, net: u8, ipv6: bool) -> Result<Plan, PlanError> {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        // With a digit at the end `a1` of lab `a` and `a` … `1` would be one name.
        let ends = name.ends_with(|c: char| !c.is_ascii_digit());
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(good) || !ends {
            return Err(PlanError::Name(name.to_owned()));
        }
        if !(1..=MAX_HOSTS).contains(&hosts) {
            return Err(PlanError::Hosts(hosts));
        }
        Ok(Plan { name: name.to_owned(), hosts, net, ipv6 })
    }

    /// How many hosts it has.
    pub fn hosts(&self) -> u8 {
        self.hosts
    }

    /// Name of a host's namespace.
    pub fn namespace(&self, host: u8) -> String {
        format!("{}{host}", prefix(&self.name))
    }

    /// Name of the end of a host's wire that lies here.
    pub fn interface(&self, host: u8) -> String {
        format!("{}{host}", self.name)
    }

    /// Addresses of both ends of a host's wire: here, there. Networks have 24 bits.
    pub fn addresses(&self, host: u8) -> [Ipv4Addr; 2] {
        [1, 2].map(|end| Ipv4Addr::new(10, self.net, host, end))
    }

    /// The same for IPv6, 64 bits; `None` without it.
    pub fn addresses6(&self, host: u8) -> Option<[Ipv6Addr; 2]> {
        let net = u16::from(self.net);
        let both = [1, 2].map(|end| Ipv6Addr::new(0xfd77, net, host.into(), 0, 0, 0, 0, end));
        self.ipv6.then_some(both)
    }

    /// What `ip` is asked to do, one call after the other.
    pub fn steps(&self) -> Vec<Vec<String>> {
        (0..self.hosts).flat_map(|host| self.host(host)).collect()
    }

    fn host(&self, host: u8) -> Vec<Vec<String>> {
        let (ns, here) = (self.namespace(host), self.interface(host));
        let [near, far] = self.addresses(host);
        let mut lines = vec![
            format!("netns add {ns}"),
            format!("link add {here} type veth peer name eth0 netns {ns}"),
            format!("-n {ns} link set lo up"),
            format!("addr add {near}/24 dev {here}"),
            format!("-n {ns} addr add {far}/24 dev eth0"),
        ];
        if let Some([near, far]) = self.addresses6(host) {
            lines.push(format!("addr add {near}/64 dev {here} nodad"));
            lines.push(format!("-n {ns} addr add {far}/64 dev eth0 nodad"));
        }
        lines.push(format!("link set {here} up"));
        lines.push(format!("-n {ns} link set eth0 up"));
        lines.push(format!("-n {ns} route add default via {near}"));
        if let Some([near, _]) = self.addresses6(host) {
            lines.push(format!("-n {ns} -6 route add default via {near}"));
        }
        lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }
}

/// What the namespaces of a lab begin with; the host's number follows.
pub(crate) fn prefix(name: &str) -> String {
    format!("xway-{name}-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_told_apart_are_refused() {
        for bad in ["", "a b", "Lab", "lab-x", "lab1", "a_very_long_name", "ü"] {
            assert_eq!(Plan::new(bad, 1, 77, false), Err(PlanError::Name(bad.into())), "{bad}");
        }
        for good in ["lab", "l", "a1b", "twelve_bytes"] {
            assert!(Plan::new(good, 1, 77, false).is_ok(), "{good}");
        }
        assert_eq!(Plan::new("lab", 0, 77, false), Err(PlanError::Hosts(0)));
        assert_eq!(Plan::new("lab", 17, 77, false), Err(PlanError::Hosts(17)));
    }

    #[test]
    fn interface_names_fit_the_kernel() {
        let plan = Plan::new("twelve_bytes", MAX_HOSTS, 77, false).unwrap();
        assert!(plan.interface(MAX_HOSTS - 1).len() <= 15);
    }

    #[test]
    fn each_host_has_its_own_wire_and_way_out() {
        let plan = Plan::new("lab", 2, 80, true).unwrap();
        let steps: Vec<String> = plan.steps().iter().map(|step| step.join(" ")).collect();
        for expected in [
            "netns add xway-lab-1",
            "link add lab1 type veth peer name eth0 netns xway-lab-1",
            "addr add 10.80.1.1/24 dev lab1",
            "-n xway-lab-1 addr add fd77:50:1::2/64 dev eth0 nodad",
            "-n xway-lab-1 route add default via 10.80.1.1",
        ] {
            assert!(steps.iter().any(|step| step == expected), "{expected} is not in {steps:#?}");
        }
        let plain = Plan::new("lab", 2, 80, false).unwrap().steps();
        assert!(!plain.concat().iter().any(|word| word.contains(':')));
    }
}
