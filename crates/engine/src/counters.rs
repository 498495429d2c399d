//! One number for each way that a frame can end.

use xway_abi::{Errno, Verdict};

/// What a worker counted. Always on; added once per burst.
///
/// Every received frame ends in exactly one of: `drop`, `aborted`, `invalid`, `passed`, `pass_lost`, `tx`, `tx_full`,
/// `tx_err`, `redirected`, `redirect_err`. [`Counters::balance`] checks that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames received.
    pub rx: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames by verdict, in the order of [`Verdict::ALL`]; unknown codes are in `invalid`.
    pub verdicts: [u64; 5],
    /// Bytes by verdict, of frames as their program left them.
    pub verdict_bytes: [u64; 5],
    /// Frames whose program returned a code that is no verdict. They are dropped.
    pub invalid: u64,
    /// Their bytes.
    pub invalid_bytes: u64,
    /// The same by code.
    pub invalid_codes: Tally<u32>,
    /// Of the aborted frames, those whose program was stopped for a fault.
    pub exceptions: u64,
    /// PASS frames that reached the stack side.
    pub passed: u64,
    /// PASS frames that were lost on the way there, by reason (a full queue is `ENOBUFS`).
    pub pass_lost: Tally<Errno>,
    /// TX frames sent.
    pub tx: u64,
    /// TX frames dropped because the queue was full.
    pub tx_full: u64,
    /// TX frames dropped for another reason.
    pub tx_err: Tally<Errno>,
    /// REDIRECT frames that were sent to at least one target.
    pub redirected: u64,
    /// REDIRECT frames dropped, by reason (a full queue is `ENOSPC`).
    pub redirect_err: Tally<Errno>,
    /// Copies made for broadcasts and sent; beyond the frames themselves.
    pub copies: u64,
    /// Broadcast copies that could not be made or sent, by reason.
    pub copies_lost: Tally<Errno>,
    /// Bursts that had at least one frame.
    pub bursts: u64,
    /// Instructions executed, where the executor counts them.
    pub insns: u64,
    /// Nanoseconds spent running programs.
    pub run_ns: u64,
}

impl Counters {
    /// Frames with this verdict.
    pub fn verdict(&self, verdict: Verdict) -> u64 {
        self.verdicts[verdict as usize]
    }

    /// Whether every received frame has an end.
    ///
    /// # Errors
    /// Frames received, and frames that ended.
    pub fn balance(&self) -> Result<(), (u64, u64)> {
        let ended = self.verdict(Verdict::Drop)
            + self.verdict(Verdict::Aborted)
            + self.invalid
            + self.passed
            + self.pass_lost.total()
            + self.tx
            + self.tx_full
            + self.tx_err.total()
            + self.redirected
            + self.redirect_err.total();
        if ended == self.rx { Ok(()) } else { Err((self.rx, ended)) }
    }
}

/// Counts by key. The number of different keys is bounded, because the keys are what a program makes them: beyond
/// [`Tally::KEYS_MAX`] further keys are counted together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally<K> {
    entries: Vec<(K, u64)>,
    others: u64,
}

impl<K: PartialEq + Copy> Tally<K> {
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
