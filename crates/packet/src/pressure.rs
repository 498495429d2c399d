//! How close a pool is to its limit, in three levels, so that less important packets can be dropped before all are.

use crate::sync::{AtomicU32, Ordering};

/// The level, as programs read it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u32)]
pub enum Pressure {
    /// Plenty of frames.
    #[default]
    None = 0,
    /// The first threshold is reached: time to drop what matters least.
    Some = 1,
    /// The second threshold is reached: allocation will be refused soon.
    Critical = 2,
}

/// From how many outstanding frames on which level holds, in percent of the limit, rounded up to whole frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PressureAt {
    /// [`Pressure::Some`].
    pub some: u8,
    /// [`Pressure::Critical`].
    pub critical: u8,
}

impl PressureAt {
    /// 75 and 90 percent.
    pub const DEFAULT: PressureAt = PressureAt { some: 75, critical: 90 };
}

/// The level that the owner published last. Anybody may read it.
#[derive(Default)]
pub(crate) struct Gauge(AtomicU32);

impl Gauge {
    pub(crate) fn read(&self) -> Pressure {
        match self.0.load(Ordering::Relaxed) {
            0 => Pressure::None,
            1 => Pressure::Some,
            _ => Pressure::Critical,
        }
    }
}

/// The owner's side: tells when the level changes with one comparison for each change of the number outstanding.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Frames outstanding from which each level holds.
    levels: [u32; 2],
    level: Pressure,
    /// Below this the level falls.
    fall: u32,
    /// From this on it rises.
    rise: u32,
}

impl Watch {
    pub(crate) fn new(at: PressureAt, limit: u32) -> Watch {
        let frames = |percent: u8| (u64::from(limit) * u64::from(percent)).div_ceil(100).max(1) as u32;
        let some = frames(at.some);
        let mut watch =
            Watch { levels: [some, frames(at.critical).max(some)], level: Pressure::None, fall: 0, rise: 0 };
        watch.set(0);
        watch
    }

    fn set(&mut self, outstanding: u32) {
        let [some, critical] = self.levels;
        (self.level, self.fall, self.rise) = match outstanding {
            n if n >= critical => (Pressure::Critical, critical, u32::MAX),
            n if n >= some => (Pressure::Some, some, critical),
            _ => (Pressure::None, 0, some),
        };
    }

    /// The number outstanding has changed.
    #[inline]
    pub(crate) fn look(&mut self, outstanding: u32, gauge: &Gauge) {
        if outstanding >= self.rise || outstanding < self.fall {
            self.set(outstanding);
            gauge.0.store(self.level as u32, Ordering::Relaxed);
        }
    }

    pub(crate) fn level(&self) -> Pressure {
        self.level
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_and_fall_at_their_thresholds() {
        let gauge = Gauge::default();
        let mut watch = Watch::new(PressureAt::DEFAULT, 100);
        let mut at = |outstanding| {
            watch.look(outstanding, &gauge);
            assert_eq!(gauge.read(), watch.level());
            watch.level()
        };
        use Pressure::*;
        let steps =
            [(0, None), (74, None), (75, Some), (74, None), (95, Critical), (90, Critical), (89, Some), (0, None)];
        for (outstanding, level) in steps {
            assert_eq!(at(outstanding), level, "{outstanding}");
        }
    }

    #[test]
    fn thresholds_of_tiny_pools_are_at_least_one_frame() {
        let gauge = Gauge::default();
        let mut watch = Watch::new(PressureAt { some: 0, critical: 0 }, 1);
        watch.look(0, &gauge);
        assert_eq!(watch.level(), Pressure::None);
        watch.look(1, &gauge);
        assert_eq!(watch.level(), Pressure::Critical);
    }
}
