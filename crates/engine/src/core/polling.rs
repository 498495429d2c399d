//! When a worker that finds nothing to do goes to sleep.

use std::time::Duration;

/// How long a worker polls in vain before it sleeps: up to what it was told, and less the longer it has lately slept for nothing
/// else to come. A packet that comes soon is then met awake, and an idle port costs no CPU.
#[derive(Default)]
pub(super) struct Polling {
    /// How often the time to poll is halved.
    halvings: u32,
    /// Rounds in a row in which there was nothing to do.
    idle: u32,
}

/// Sleeps up to this long would have been better spent polling.
const SHORT_SLEEP: Duration = Duration::from_micros(50);

/// Most halvings: one 64th of the time is left.
const HALVINGS_MAX: u32 = 6;

impl Polling {
    /// After each round: whether the worker is to sleep now. `told`: rounds that it may poll in vain.
    pub(super) fn is_over(&mut self, busy: bool, told: u32) -> bool {
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
        self.idle > told >> self.halvings
    }

    /// It has slept, for so long.
    pub(super) fn slept(&mut self, time: Duration) {
        self.idle = 0;
        let more = (self.halvings + 1).min(HALVINGS_MAX);
        self.halvings = if time <= SHORT_SLEEP { self.halvings / 2 } else { more };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: u32 = 640;
    /// What a round takes on the clock of these tests.
    const ROUND: Duration = Duration::from_nanos(100);

    /// A worker on a clock that only these tests move: polls until it sleeps or something comes, `gap` after the last that came.
    /// Says how many rounds it polled in vain and how often it slept.
    fn wait(polling: &mut Polling, gap: Duration) -> (u32, u32) {
        let (mut now, mut polled, mut slept) = (Duration::ZERO, 0, 0);
        while now < gap {
            now += ROUND;
            polled += 1;
            if polling.is_over(false, TOLD) {
                // The packet wakes it.
                polling.slept(gap.saturating_sub(now));
                slept += 1;
                now = gap.max(now);
            }
        }
        assert!(!polling.is_over(true, TOLD), "a worker that has work never sleeps");
        (polled, slept)
    }

    #[test]
    fn long_silences_are_slept_through_and_short_ones_met_awake() {
        let mut polling = Polling::default();
        // Packets close together: no sleep at all, however many.
        for _ in 0..100 {
            assert_eq!(wait(&mut polling, 100 * ROUND), (100, 0));
        }
        // A second between them: each time it polls for half as long before it sleeps, down to a 64th.
        let polled: Vec<_> = (0..9).map(|_| wait(&mut polling, Duration::from_secs(1))).collect();
        let expected = [641, 321, 161, 81, 41, 21, 11, 11, 11].map(|rounds| (rounds, 1));
        assert_eq!(polled, expected);
        // Close together again: it sleeps a little, notices that it was for too short a time, and soon polls as long as it was told.
        let gap = 300 * ROUND;
        let polled: Vec<_> = (0..5).map(|_| wait(&mut polling, gap)).collect();
        assert_eq!(polled, [(11, 1), (81, 1), (300, 0), (300, 0), (300, 0)]);
    }

    #[test]
    fn a_worker_that_is_told_to_poll_never_sleeps_and_one_that_is_not_sleeps_at_once() {
        let mut polling = Polling { idle: u32::MAX - 1, ..Polling::default() };
        assert!((0..10).all(|_| !polling.is_over(false, u32::MAX)));
        let mut polling = Polling::default();
        assert!(!polling.is_over(true, 0) && polling.is_over(false, 0));
    }
}
