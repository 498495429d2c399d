//! A bad wire.

use xway_abi::Errno;
use xway_engine::{Port, PortError, PortStats, Rx, Sent};
use xway_packet::{Burst, Frame, Pool};

use crate::as_inner;

/// What goes wrong, and how often: each a probability from 0 to 1, for each packet and each direction.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FaultConfig {
    /// A packet is lost.
    pub loss: f64,
    /// A packet comes twice, if there is a frame for the second.
    pub duplicate: f64,
    /// One bit of a packet is another.
    pub corrupt: f64,
    /// A packet waits and comes after one that came later. At the end of the input, or of the port, none is held back.
    pub reorder: f64,
    /// The pool seems to have no frame when packets are to be received: for each call.
    pub no_frame: f64,
    /// Where the dice start: the same seed does the same to the same packets.
    pub seed: u64,
}

impl FaultConfig {
    /// Whether the probabilities are some.
    ///
    /// # Errors
    /// The first that is none.
    pub fn check(&self) -> Result<(), FaultError> {
        let all = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
            ("reorder", self.reorder),
            ("no_frame", self.no_frame),
        ];
        match all.into_iter().find(|(_, p)| !(0.0..=1.0).contains(p)) {
            Some((what, value)) => Err(FaultError { what, value }),
            None => Ok(()),
        }
    }
}

/// A probability that is none.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("{what} = {value}: a probability is a number from 0 to 1")]
pub struct FaultError {
    /// Which.
    pub what: &'static str,
    /// What was said.
    pub value: f64,
}

/// Does bad things to packets, as a bad wire does, and counts each of them.
pub struct Fault {
    inner: Box<dyn Port>,
    config: FaultConfig,
    dice: Dice,
    rx: Side,
    tx: Side,
    no_frame: u64,
    scratch: Burst,
}

/// One direction.
#[derive(Default)]
struct Side {
    /// A packet that waits for a later one.
    held: Option<Frame>,
    /// One that still waited when the port was closed.
    held_at_end: u64,
    lost: u64,
    doubled: u64,
    damaged: u64,
    reordered: u64,
}

impl Side {
    /// The port is closed: what waits comes no more, and stays counted.
    fn go_home(&mut self, pool: &mut Pool) {
        if let Some(frame) = self.held.take() {
            pool.release(frame);
            self.held_at_end += 1;
        }
    }

    fn held(&self) -> u64 {
        self.held_at_end + u64::from(self.held.is_some())
    }
}

impl Fault {
    /// Wraps a port.
    ///
    /// # Errors
    /// [`FaultError`] for a probability that is none.
    pub fn new(inner: Box<dyn Port>, config: FaultConfig) -> Result<Fault, FaultError> {
        config.check()?;
        let dice = Dice(config.seed);
        let (rx, tx, scratch) = (Side::default(), Side::default(), Burst::new());
        Ok(Fault { inner, config, dice, rx, tx, no_frame: 0, scratch })
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn falls(&mut self, probability: f64) -> bool {
        // No throw for what never happens, so that switching one fault on does not change the others' throws of a packet.
        probability > 0.0 && (self.next() >> 11) as f64 / ((1u64 << 53) as f64) < probability
    }
}

/// Takes what is in `from` through the bad wire into `to`. What finds no room goes home, counted as lost.
fn wire(config: &FaultConfig, dice: &mut Dice, side: &mut Side, pool: &mut Pool, from: &mut Burst, to: &mut Burst) {
    let put = |to: &mut Burst, side: &mut Side, pool: &mut Pool, frame: Frame| {
        if let Err(frame) = to.push(frame) {
            pool.release(frame);
            side.lost += 1;
        }
    };
    for mut frame in from.drain() {
        if dice.falls(config.loss) {
            pool.release(frame);
            side.lost += 1;
            continue;
        }
        if dice.falls(config.corrupt) && !frame.is_empty() {
            let at = dice.next();
            let len = frame.len() as u64;
            frame.packet_mut()[(at % len) as usize] ^= 1 << (at >> 61);
            side.damaged += 1;
        }
        if dice.falls(config.duplicate)
            && to.room() > 1
            && let Ok(copy) = pool.copy(&frame)
        {
            side.doubled += 1;
            put(to, side, pool, copy);
        }
        if side.held.is_none() && dice.falls(config.reorder) {
            // Nobody knows for how long: a frame of another port's memory would keep that from closing.
            match if pool.owns_parts(&frame) { Ok(None) } else { pool.copy(&frame).map(Some) } {
                Ok(None) => side.held = Some(frame),
                Ok(copy) => {
                    side.held = copy;
                    pool.release(frame);
                }
                Err(_) => put(to, side, pool, frame),
            }
            continue;
        }
        put(to, side, pool, frame);
        if let Some(late) = side.held.take() {
            side.reordered += 1;
            put(to, side, pool, late);
        }
    }
}

impl Port for Fault {
    as_inner!(rx, tx);

    fn rx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst, budget: usize) -> Result<Rx, PortError> {
        if self.dice.falls(self.config.no_frame) {
            self.no_frame += 1;
            return Ok(Rx::More);
        }
        // Half of the room is for copies and for a packet that waited.
        let budget = budget.min(burst.room() / 2).max(1);
        let state = self.inner.rx(queue, pool, &mut self.scratch, budget);
        wire(&self.config, &mut self.dice, &mut self.rx, pool, &mut self.scratch, burst);
        // At the end nothing is behind which it could come.
        if !matches!(state, Ok(Rx::More))
            && let Some(late) = self.rx.held.take()
            && let Err(late) = burst.push(late)
        {
            self.rx.held = Some(late);
            return Ok(Rx::More);
        }
        state
    }

    fn tx(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let asked = burst.len() as u32;
        wire(&self.config, &mut self.dice, &mut self.tx, pool, burst, &mut self.scratch);
        let given = self.scratch.len() as u32;
        let sent = self.inner.tx(queue, pool, &mut self.scratch);
        pool.release_burst(&mut self.scratch);
        // Whoever sent must see one end for each frame: what the wire lost or kept was sent, a copy's fate is nobody's.
        let unexplained = given.saturating_sub(sent.sent + sent.full + sent.failed);
        let full = sent.full.min(asked);
        let failed = (sent.failed + unexplained).min(asked - full);
        let errno = sent.errno.or((unexplained > 0).then_some(Errno::EIO));
        Sent { sent: asked - full - failed, full, failed, errno }
    }

    fn pass(&mut self, queue: u32, pool: &mut Pool, burst: &mut Burst) -> Sent {
        self.inner.pass(queue, pool, burst)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()
    }

    fn stats(&mut self) -> PortStats {
        let mut stats = self.inner.stats();
        stats.no_frame += self.no_frame;
        let (rx, tx) = (&self.rx, &self.tx);
        stats.other.extend([
            ("fault: lost on receive", rx.lost),
            ("fault: doubled on receive", rx.doubled),
            ("fault: damaged on receive", rx.damaged),
            ("fault: reordered on receive", rx.reordered),
            ("fault: held on receive", rx.held()),
            ("fault: lost on send", tx.lost),
            ("fault: doubled on send", tx.doubled),
            ("fault: damaged on send", tx.damaged),
            ("fault: reordered on send", tx.reordered),
            ("fault: held on send", tx.held()),
        ]);
        stats.other.retain(|&(_, count)| count > 0);
        stats
    }
}
