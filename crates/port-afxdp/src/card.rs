//! The rules by which a card steers packets to its queues: ethtool's own, set where ethtool sets them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use xway_engine::steer::{Rule, RuleError, SPEC};

use crate::sys;

/// The rules of an interface's card. They stay until they are deleted: they are the card's, not the process's.
pub struct Card {
    interface: String,
    socket: OwnedFd,
}

/// Why a card did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// The driver has no rules.
    #[error(
        "{interface}: its driver has no steering rules (ethtool -n says so, too); the engine's own steer any port: xway steer packet:{interface} …"
    )]
    None {
        /// The interface.
        interface: String,
    },
    /// The card refuses.
    #[error("{interface}: {what}: {cause}")]
    Refused {
        /// The interface.
        interface: String,
        /// What was asked.
        what: String,
        /// What the driver said.
        cause: io::Error,
    },
    /// The rule cannot be said to a card.
    #[error("{0}")]
    Rule(#[from] RuleError),
    /// No place is free.
    #[error("{interface}: all {places} places of its table are taken; `delete LOC` frees one")]
    Full {
        /// The interface.
        interface: String,
        /// Places.
        places: u32,
    },
}

/// Commands of `linux/ethtool.h`.
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;
/// `RX_CLS_LOC_SPECIAL`: the driver chooses places itself when it is told `RX_CLS_LOC_ANY`.
const LOC_SPECIAL: u32 = 0x8000_0000;
const LOC_ANY: u32 = u32::MAX;
/// Places that are asked for at most.
const PLACES_MAX: usize = 4096;

/// Words of `struct ethtool_rxnfc` without and with places behind it.
const RXNFC: usize = 48;
const RXNFC_ALL: usize = 47 + PLACES_MAX + 1;
/// Where its parts are, in words: flow specification, its place in that, number of rules, places.
const SPEC_AT: usize = 4;
const LOCATION: usize = SPEC_AT + 40;
const COUNT: usize = 46;
const PLACES: usize = 47;

impl Card {
    /// The card of an interface in the network namespace that the calling thread is in. Nothing is asked yet.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn open(interface: &str) -> Result<Card, CardError> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let refused = |cause: rustix::io::Errno| CardError::Refused {
            interface: interface.to_owned(),
            what: "a socket to ask about interfaces".into(),
            cause: cause.into(),
        };
        Ok(Card { interface: interface.to_owned(), socket: socket.map_err(refused)? })
    }

    /// All its rules, by place.
    ///
    /// # Errors
    /// The driver has none, or refuses.
    pub fn rules(&self) -> Result<Vec<Rule>, CardError> {
        let (places, _) = self.places()?;
        let mut rules = Vec::new();
        for place in places {
            let mut words = [0; RXNFC];
            (words[0], words[LOCATION]) = (GRXCLSRULE, place);
            self.ask(&format!("rule {place}"), &mut words)?;
            let mut spec = [0; SPEC];
            for (to, word) in spec.chunks_exact_mut(4).zip(&words[SPEC_AT..]) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            rules.push(Rule::from_card(&spec)?);
        }
        Ok(rules)
    }

    /// Adds a rule; one at the same place is replaced. Without a place it gets the driver's choice, or the last free one. Says where it
    /// is.
    ///
    /// # Errors
    /// The driver has no rules, or does not take this one; no place is free.
    pub fn insert(&self, rule: &Rule) -> Result<u32, CardError> {
        let place = match rule.loc {
            Some(place) => place,
            None => {
                let (taken, table) = self.places()?;
                let size = table & !LOC_SPECIAL;
                match table & LOC_SPECIAL {
                    0 => (0..size)
                        .rev()
                        .find(|place| !taken.contains(place))
                        .ok_or_else(|| CardError::Full { interface: self.interface.clone(), places: size })?,
                    _ => LOC_ANY,
                }
            }
        };
        let mut words = insertion(rule, place)?;
        self.ask(&format!("rule {rule}"), &mut words)?;
        Ok(words[LOCATION])
    }

    /// Deletes the rule at a place.
    ///
    /// # Errors
    /// There is none, or the driver has no rules.
    pub fn delete(&self, place: u32) -> Result<(), CardError> {
        let mut words = [0; RXNFC];
        (words[0], words[LOCATION]) = (SRXCLSRLDEL, place);
        self.ask(&format!("delete {place}"), &mut words)
    }

    /// Places that are taken, and the size of the table with the driver's flag.
    fn places(&self) -> Result<(Vec<u32>, u32), CardError> {
        let mut words = [0; RXNFC];
        words[0] = GRXCLSRLCNT;
        self.ask("how many rules it has", &mut words)?;
        let (count, special) = (words[COUNT], words[2] & LOC_SPECIAL);
        let mut words = [0; RXNFC_ALL];
        (words[0], words[COUNT]) = (GRXCLSRLALL, count.min(PLACES_MAX as u32));
        self.ask("places of its rules", &mut words)?;
        let count = (words[COUNT] as usize).min(PLACES_MAX);
        Ok((words[PLACES..PLACES + count].to_vec(), words[2] | special))
    }

    fn ask<const N: usize>(&self, what: &str, words: &mut [u32; N]) -> Result<(), CardError> {
        sys::ethtool(self.socket.as_fd(), &self.interface, words).map_err(|cause| {
            let (interface, what) = (self.interface.clone(), what.to_owned());
            match cause.raw_os_error() {
                Some(libc::EOPNOTSUPP) => CardError::None { interface },
                _ => CardError::Refused { interface, what, cause },
            }
        })
    }
}

/// The request that adds a rule.
fn insertion(rule: &Rule, place: u32) -> Result<[u32; RXNFC], RuleError> {
    let mut words = [0; RXNFC];
    words[0] = SRXCLSRLINS;
    for (word, bytes) in words[SPEC_AT..].iter_mut().zip(rule.to_card(place)?.chunks_exact(4)) {
        *word = bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use xway_testkit::Needs;

    /// What `ethtool -N` asks the kernel for, written down by a library that stands between the two.
    fn of_ethtool(shim: &Path, words: &str) -> Vec<u8> {
        let out = shim.with_extension("out");
        let mut ethtool = Command::new("ethtool");
        ethtool.args(["-N", "lo"]).args(words.split_whitespace());
        let done = ethtool.env("LD_PRELOAD", shim).env("XWAY_OUT", &out).output().unwrap();
        let said = std::fs::read(&out).unwrap_or_default();
        assert!(!said.is_empty(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
        std::fs::remove_file(&out).unwrap();
        said
    }

    #[test]
    fn rules_are_those_that_ethtool_sets() {
        let needs = Needs::of("port-afxdp::rules_are_those_that_ethtool_sets").command("ethtool").command("cc");
        if !needs.met() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("xway-ethtool-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (source, shim) = (dir.join("shim.c"), dir.join("shim.so"));
        // Takes the insertion for itself and says that it was done.
        let text = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int ioctl(int fd, unsigned long request, ...)
{
	int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
	struct ifreq *ifr;
	va_list list;

	va_start(list, request);
	ifr = va_arg(list, struct ifreq *);
	va_end(list);
	if (request == SIOCETHTOOL && *(unsigned *)ifr->ifr_data == ETHTOOL_SRXCLSRLINS) {
		FILE *out = fopen(getenv("XWAY_OUT"), "w");

		fwrite(ifr->ifr_data, 1, 184, out);
		fclose(out);
		return 0;
	}
	return real(fd, request, ifr);
}
"#;
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source).arg("-ldl").output();
        let built = built.unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        for words in [
            "flow-type udp4 src-ip 10.1.2.3 dst-port 53 action 2 loc 9",
            "flow-type udp4 src-ip 10.0.0.0 m 0.0.0.255 dst-port 4242 action -1 loc 3",
            "flow-type tcp6 dst-ip 2001:db8::1 src-port 7 action 1 loc 0",
            "flow-type ether dst 02:00:00:00:00:01 proto 0x88cc action 2 loc 5",
            "flow-type ip4 l4proto 1 tos 16 action 0 loc 8",
            "flow-type ip6 l4proto 58 tclass 3 action 0 loc 8",
            "flow-type esp4 spi 0x10 action 3 loc 2",
            "flow-type sctp4 dst-port 9 vlan 5 m 61440 action 3 loc 2",
            "flow-type tcp4 dst-port 22 dst-mac 02:00:00:00:00:02 action 3 loc 2",
        ] {
            let ours = insertion(&Rule::parse(words).unwrap(), 0).unwrap();
            let ours: Vec<u8> = ours[..46].iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut theirs = of_ethtool(&shim, words);
            // `flow_type` and `data`, which this command does not use, are whatever lay there.
            theirs[4..16].fill(0);
            assert_eq!(ours, theirs, "{words}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_card_without_rules_says_so() {
        let card = Card::open("lo").unwrap();
        for error in [card.rules().map(drop).unwrap_err(), card.delete(1).unwrap_err()] {
            assert!(matches!(error, CardError::None { .. }), "{error}");
            assert!(error.to_string().contains("lo: its driver has no steering rules"), "{error}");
        }
        let error = Card::open("nobody0").unwrap().rules().unwrap_err();
        assert!(matches!(error, CardError::Refused { .. }) && error.to_string().contains("nobody0"), "{error}");
    }
}
