//! Whether looking ahead pays for the packets that come: tried, now and then, on a few bursts with it and a few without.
//!
//! How much of a map is in use says what a look-up may have to wait for (`stage`), and not what it does wait for: a table of a million
//! connections over which ten flows run lies in the cache as far as anybody asks. Which of the two it is, the clock says: of every so
//! many bursts eight are timed, four each way in turns, and what took less is done until the next trial. The quickest of the four
//! counts, because whatever else happens makes a burst slower.
//!
//! The longer an answer stays the same, the more seldom it is asked for again: a trial's other bursts are slower by what staging is worth.

use std::cell::RefCell;

/// Bursts between two trials: at first, and at most.
const EVERY: (u32, u32) = (128, 4_096);
/// Timed bursts of a trial, each way.
const TURNS: u32 = 4;
/// Nothing ahead is chosen where it takes this many parts of eight of the other at most: a trial of what is alike chooses the way that
/// waits for nothing should the packets change.
const LESS: u64 = 7;

/// How a burst is to be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// Looking ahead.
    pub ahead: bool,
    /// Its time is wanted.
    pub timed: bool,
}

/// What a thread knows of a program.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Which program; 0 for none.
    program: usize,
    /// The answer.
    ahead: bool,
    /// Bursts until the next trial, and between the last two.
    left: u32,
    every: u32,
    /// Timed bursts of the running trial.
    turn: u32,
    /// Ticks of 64 frames at least, without and with looking ahead.
    least: [u64; 2],
}

impl Trial {
    const fn new(program: usize) -> Trial {
        Trial { program, ahead: true, left: EVERY.0, every: EVERY.0, turn: 0, least: [u64::MAX; 2] }
    }

    #[inline]
    fn next(&mut self) -> Turn {
        if self.left > 0 {
            self.left -= 1;
            return Turn { ahead: self.ahead, timed: false };
        }
        Turn { ahead: self.turn.is_multiple_of(2), timed: true }
    }

    fn took(&mut self, turn: Turn, ticks: u64, frames: usize) {
        let each = ticks.saturating_mul(64) / frames.max(1) as u64;
        let least = &mut self.least[usize::from(turn.ahead)];
        *least = each.min(*least);
        self.turn += 1;
        if self.turn < 2 * TURNS {
            return;
        }
        let [without, with] = self.least;
        let ahead = without > with / 8 * LESS;
        let every = if ahead == self.ahead { (self.every * 2).min(EVERY.1) } else { EVERY.0 };
        *self = Trial { ahead, left: every, every, ..Trial::new(self.program) };
    }
}

/// Programs that a thread remembers: few of those that run on one have tables that outgrow the cache.
const KNOWN: usize = 8;

thread_local! {
    static TRIALS: RefCell<[Trial; KNOWN]> = const { RefCell::new([Trial::new(0); KNOWN]) };
}

fn with<T>(program: usize, with: impl FnOnce(&mut Trial) -> T) -> T {
    TRIALS.with_borrow_mut(|trials| {
        let trial = &mut trials[program / size_of::<crate::Compiled>() % KNOWN];
        // Another one had its place: it begins anew when it comes back.
        if trial.program != program {
            *trial = Trial::new(program);
        }
        with(trial)
    })
}

/// How the next burst of a program is run by this thread; `program` is any number but 0 that no other one has at the same time.
#[inline]
pub(crate) fn turn(program: usize) -> Turn {
    with(program, Trial::next)
}

/// How long it took, in ticks of the processor's counter.
pub(crate) fn took(program: usize, turn: Turn, ticks: u64, frames: usize) {
    with(program, |trial| trial.took(turn, ticks, frames));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bursts of 64 frames that take so many ticks without and with: how many of them looked ahead, and how many were timed.
    fn bursts(trial: &mut Trial, count: u32, ticks: [u64; 2]) -> (u32, u32) {
        let (mut ahead, mut timed) = (0, 0);
        for n in 0..count {
            let turn = trial.next();
            ahead += u32::from(turn.ahead);
            if turn.timed {
                timed += 1;
                // Every other burst is interrupted.
                let late = if n.is_multiple_of(3) { 100_000 } else { 0 };
                trial.took(turn, ticks[usize::from(turn.ahead)] + late, 64);
            }
        }
        (ahead, timed)
    }

    #[test]
    fn what_takes_less_is_done() {
        let mut trial = Trial::new(1);
        assert_eq!(bursts(&mut trial, EVERY.0, [1, 100]), (EVERY.0, 0), "at first without a question");
        assert_eq!(bursts(&mut trial, 2 * TURNS, [2_000, 4_000]), (TURNS, 2 * TURNS));
        assert!(!trial.ahead);
        assert_eq!(bursts(&mut trial, EVERY.0, [2_000, 4_000]), (0, 0));
        // The packets are others now.
        bursts(&mut trial, 2 * TURNS, [9_000, 4_000]);
        assert!(trial.ahead);
        // A little less is not enough, and nearly the same neither.
        bursts(&mut trial, 10_000, [3_600, 4_000]);
        assert!(trial.ahead);
    }

    /// An answer that stays costs less and less to ask for, and is asked for again for ever.
    #[test]
    fn trials_become_seldom() {
        let mut trial = Trial::new(1);
        let (_, timed) = bursts(&mut trial, 100_000, [9_000, 4_000]);
        assert!((20 * TURNS..80 * TURNS).contains(&timed), "{timed}");
        let (ahead, timed) = bursts(&mut trial, 100_000, [1_000, 4_000]);
        assert!(ahead < 2 * EVERY.1 + 100 * TURNS && timed > 20 * TURNS, "{ahead} {timed}");
    }

    #[test]
    fn programs_are_told_apart() {
        let other = 1 + KNOWN * size_of::<crate::Compiled>();
        let mut last = Turn { ahead: true, timed: false };
        for _ in 0..=EVERY.0 {
            last = turn(1);
        }
        assert!(last.timed);
        assert!(!turn(other).timed && !turn(1).timed, "in the same place");
    }
}
