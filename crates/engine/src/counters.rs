//! One number for each way that a frame can end.

use xway_abi::{Errno, Verdict};

use crate::meters::{Key, Metered};

/// The name of a counter: that of its field, unless Linux has another one for it.
macro_rules! shown {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident, $shown:literal) => {
        $shown
    };
}

/// Makes the plain struct, its live form and their names from one list.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident: $plain:ty $(, as $shown:literal)? $(, by $labels:expr)?;)+) => {
        /// What was counted: for a queue, or for everything that a worker served. Always on; added once per burst.
        ///
        /// Every frame that comes in (`rx`, `steered_in`, `cpu_in`) ends in exactly one of: `drop`, `aborted`, `invalid`,
        /// `passed`, `pass_lost`, `pass_drop`, `tx`, `tx_full`, `tx_err`, `redirected`, `redirect_err`, `egress_drop`,
        /// `egress_err`, `steered_out`, `steer_drop`,
        /// `steer_lost`. [`Counters::balance`] checks that. Frames that a queue sends for another worker were counted there,
        /// and are `relay_in` here, which ends in `relay_sent` or `relay_lost`.
        ///
        /// The names of the counters are [`Counters::NAMES`] everywhere, and stay.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: $plain,)+
        }

        /// [`Counters`] while they grow: one thread adds, any thread reads.
        #[derive(Debug, Default)]
        pub(crate) struct Meters {
            $(pub(crate) $name: <$plain as Metered>::Live,)+
        }

        impl Meters {
            /// The numbers now; not one consistent picture while the owner works.
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: <$plain as Metered>::read(&self.$name),)+ }
            }
        }

        impl Counters {
            /// Every name, and what is counted under it.
            pub const NAMES: &[(&str, &str)] = &[$((shown!($name $(, $shown)?), concat!($($doc),+)),)+];

            /// Adds what another queue or worker counted.
            pub fn merge(&mut self, other: &Counters) {
                $(self.$name.merge(&other.$name);)+
            }

            /// Tells every number: name, label where one name has several (the verdict, the errno), number.
            pub fn each(&self, tell: &mut dyn FnMut(&str, &str, u64)) {
                $({
                    #[allow(unused_mut, unused_assignments)]
                    let mut labels: &[&str] = &[];
                    $(labels = $labels;)?
                    self.$name.each(labels, &mut |label, number| tell(shown!($name $(, $shown)?), label, number));
                })+
            }
        }
    };
}

/// Labels of verdicts, in the order of [`Verdict::ALL`].
const VERDICTS: &[&str] = &["aborted", "drop", "pass", "tx", "redirect"];
/// Sizes of bursts: the upper end of each step.
const SIZES: &[&str] = &["1", "2", "4", "8", "16", "32", "64"];

counters! {
    /// Frames received.
    rx: u64, as "rx_packets";
    /// Bytes received.
    rx_bytes: u64;
    /// Frames by verdict, in the order of [`Verdict::ALL`]; unknown codes are in `invalid`.
    verdicts: [u64; 5], by VERDICTS;
    /// Bytes by verdict, of frames as their program left them.
    verdict_bytes: [u64; 5], by VERDICTS;
    /// Frames whose program returned a code that is no verdict. They are dropped.
    invalid: u64;
    /// Their bytes.
    invalid_bytes: u64;
    /// The same by code.
    invalid_codes: Tally<u32>;
    /// Of the aborted frames, those whose program was stopped for a fault.
    exceptions: u64;
    /// PASS frames that reached the stack side.
    passed: u64;
    /// PASS frames that were lost on the way there, by reason (a full queue is `ENOBUFS`).
    pass_lost: Tally<Errno>;
    /// PASS frames that were dropped because the port was told to have no stack side.
    pass_drop: u64;
    /// TX frames sent.
    tx: u64, as "tx_packets";
    /// TX frames dropped because the queue was full.
    tx_full: u64;
    /// Frames that the byte limit of a queue refused; they are counted under what became of them, too.
    tx_limited: u64;
    /// Doorbells rung, of ports whose queues are looked at: one for many frames where they wait for each other.
    doorbells: u64;
    /// TX frames dropped for another reason.
    tx_err: Tally<Errno>;
    /// REDIRECT frames that were sent to at least one target, or handed to the worker or socket that is the target.
    redirected: u64;
    /// REDIRECT frames dropped, by reason (a full queue is `ENOSPC`).
    redirect_err: Tally<Errno>;
    /// Copies made for broadcasts and sent; beyond the frames themselves.
    copies: u64;
    /// Broadcast copies that could not be made or sent, by reason.
    copies_lost: Tally<Errno>;
    /// REDIRECT frames that the program of a DEVMAP entry dropped on their way out.
    egress_drop: u64;
    /// REDIRECT frames dropped because such a program was stopped, or returned something else than PASS or DROP.
    egress_err: u64;
    /// Of the redirected frames, and of those that came in where a socket is bound past all programs, those that sockets took.
    socket_out: u64;
    /// Frames that a socket bound to this queue had to send.
    socket_in: u64;
    /// Of these, sent.
    socket_sent: u64;
    /// Of these, lost, by reason.
    socket_lost: Tally<Errno>;
    /// Frames taken over from other workers, to be sent or passed by this queue.
    relay_in: u64;
    /// Of these, sent.
    relay_sent: u64;
    /// Of these, lost, by reason (a full queue is `ENOSPC`).
    relay_lost: Tally<Errno>;
    /// Received frames that steering moved to another queue before the hook.
    steered_out: u64;
    /// Frames that steering moved here.
    steered_in: u64;
    /// Frames that a steering rule drops (`action -1`).
    steer_drop: u64;
    /// Frames that steering lost: the other queue does not keep up.
    steer_lost: u64;
    /// Frames that came over a CPUMAP.
    cpu_in: u64;
    /// Frames that waited in the queue of a CPUMAP's entry when its worker ended, and were given up. They are not in `cpu_in`.
    cpu_lost: u64;
    /// Bursts that had at least one frame.
    bursts: u64;
    /// Bursts by size: up to 1, 2, 4, 8, 16, 32, 64 frames.
    burst_sizes: [u64; 7], by SIZES;
    /// Instructions executed, where the executor counts them.
    insns: u64;
    /// Nanoseconds spent running programs, where the worker measures them.
    run_ns: u64;
}

impl Counters {
    /// Frames with this verdict.
    pub fn verdict(&self, verdict: Verdict) -> u64 {
        self.verdicts[verdict as usize]
    }

    /// Every number by one name: `rx_packets`, `verdicts.drop`, `pass_lost.ENOBUFS`. In the order of [`Counters::NAMES`].
    pub fn flat(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        self.each(&mut |name, label, number| {
            let name = if label.is_empty() { name.to_owned() } else { format!("{name}.{label}") };
            all.push((name, number));
        });
        all
    }

    /// Whether every frame that came in has an end.
    ///
    /// # Errors
    /// Frames that came in, and frames that ended.
    pub fn balance(&self) -> Result<(), (u64, u64)> {
        let came = self.rx + self.steered_in + self.cpu_in;
        let ended = self.verdict(Verdict::Drop)
            + self.verdict(Verdict::Aborted)
            + self.invalid
            + self.passed
            + self.pass_lost.total()
            + self.pass_drop
            + self.tx
            + self.tx_full
            + self.tx_err.total()
            + self.redirected
            + self.redirect_err.total()
            + self.egress_drop
            + self.egress_err
            + self.steered_out
            + self.steer_drop
            + self.steer_lost;
        if ended == came { Ok(()) } else { Err((came, ended)) }
    }

    /// Whether every frame that was taken over from another worker, or from a socket, has an end.
    ///
    /// # Errors
    /// Frames taken over, and frames that ended.
    pub fn relay_balance(&self) -> Result<(), (u64, u64)> {
        let ended = self.relay_sent + self.relay_lost.total() + self.socket_sent + self.socket_lost.total();
        let came = self.relay_in + self.socket_in;
        if ended == came { Ok(()) } else { Err((came, ended)) }
    }
}

/// Which of [`Counters::burst_sizes`] a burst of `len` frames (1 to 64) is counted in.
#[inline]
pub(crate) fn burst_step(len: usize) -> usize {
    (len.next_power_of_two().trailing_zeros() as usize).min(6)
}

/// Counts by key. The number of different keys is bounded, because the keys are what a program makes them: beyond
/// [`Tally::KEYS_MAX`] further keys are counted together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally<K> {
    entries: Vec<(K, u64)>,
    others: u64,
}

impl<K: Key> Tally<K> {
    /// Most keys that are told apart.
    pub const KEYS_MAX: usize = 32;

    /// Adds `count` to `key`.
    pub fn add(&mut self, key: K, count: u64) {
        if count == 0 {
            return;
        }
        if let Some((_, number)) = self.entries.iter_mut().find(|(known, _)| *known == key) {
            *number += count;
        } else if self.entries.len() < Self::KEYS_MAX {
            self.entries.push((key, count));
        } else {
            self.others += count;
        }
    }

    /// Adds to the keys that are not told apart.
    pub(crate) fn add_others(&mut self, count: u64) {
        self.others += count;
    }

    /// Count of `key`; 0 when it was never added, or too late to be told apart.
    pub fn get(&self, key: K) -> u64 {
        self.entries.iter().find(|(known, _)| *known == key).map_or(0, |&(_, number)| number)
    }

    /// Keys and counts, in order of first appearance.
    pub fn entries(&self) -> &[(K, u64)] {
        &self.entries
    }

    /// Count of the keys that are not told apart.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Sum of everything.
    pub fn total(&self) -> u64 {
        self.others + self.entries.iter().map(|&(_, number)| number).sum::<u64>()
    }
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally { entries: Vec::new(), others: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_counted_by_the_step_that_holds_them() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 33, 64].map(burst_step), [0, 1, 2, 2, 3, 3, 4, 6, 6]);
    }

    #[test]
    fn every_number_has_a_name() {
        let mut counters = Counters { rx: 7, ..Counters::default() };
        counters.verdicts[3] = 5;
        counters.tx_err.add(Errno::ENETDOWN, 2);
        let mut told = Vec::new();
        counters.each(&mut |name, label, number| {
            if number > 0 {
                told.push(format!("{name}/{label}={number}"));
            }
        });
        assert_eq!(told, ["rx_packets/=7", "verdicts/tx=5", "tx_err/ENETDOWN=2"]);
        let flat = counters.flat();
        assert!(flat.contains(&("tx_err.ENETDOWN".into(), 2)) && flat.contains(&("rx_packets".into(), 7)));
        let listed = |name: &str| Counters::NAMES.iter().any(|(n, doc)| *n == name && !doc.is_empty());
        assert!(flat.iter().all(|(name, _)| listed(name.split('.').next().unwrap_or(name))));
        let mut twice = counters.clone();
        twice.merge(&counters);
        assert_eq!((twice.rx, twice.verdicts[3], twice.tx_err.get(Errno::ENETDOWN)), (14, 10, 4));
    }
}
