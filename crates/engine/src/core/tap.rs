//! Handing samples to those who capture. Only called while somebody does.

use xway_abi::Verdict;
use xway_maps::Guard;
use xway_packet::{Burst, Frame, Pressure};

use super::extras::Extras;
use super::{Core, Site};
use crate::Results;
use crate::capture::{CaptureAt, Seen};
use crate::lane::{Hook, Lane};

/// Verdicts after which nobody needs the frame any more.
fn is_dropped(verdict: Option<Verdict>) -> bool {
    matches!(verdict, None | Some(Verdict::Aborted | Verdict::Drop))
}

/// What decided about frames here; `None` for those that came over a CPUMAP whose entry has no program.
fn deciding<'c>(site: Site, lanes: &[Lane], hooks: &'c [Hook], extras: &'c Extras) -> Option<&'c Hook> {
    match site {
        Site::Lane(at) => hooks.get(lanes[at].hook),
        Site::Cpu { program } => extras.known(program?),
    }
}

impl Core {
    /// As the frames came in.
    #[cold]
    pub(super) fn tap_entry(&mut self, site: Site, burst: &mut Burst, guard: &Guard) {
        self.taps.retain(|tap| !tap.is_closed());
        let (Site::Lane(_), Some(pool)) = (site, self.pools.first_mut()) else { return };
        for tap in self.taps.iter_mut().filter(|tap| tap.at() == CaptureAt::Entry) {
            tap.pick(burst.frames_mut(), guard, |tap, _, frame| tap.watches(frame.ingress_ifindex(), frame.rx_queue()));
            for frame in chosen(tap.picked(), burst.frames()) {
                tap.copy(frame.1, pool, Seen::default());
            }
        }
    }

    /// As the programs left them. Chooses among the frames, for each who captures; takes copies of those that go on, and leaves those
    /// that are dropped to [`Core::tap_dropped`].
    #[cold]
    pub(super) fn tap_exit(&mut self, site: Site, burst: &mut Burst, guard: &Guard) {
        let hook = deciding(site, &self.lanes, &self.hooks, &self.extras);
        let (Some(hook), Some(pool)) = (hook, self.pools.first_mut()) else { return };
        let results = &self.results;
        let ret = |index| results.rets().get(index).copied().unwrap_or(0);
        for tap in self.taps.iter_mut().filter(|tap| tap.at() == CaptureAt::Exit) {
            let all = tap.wants_all();
            tap.pick(burst.frames_mut(), guard, |tap, index, frame| {
                all || tap.watches(frame.ingress_ifindex(), frame.rx_queue())
                    && tap.wants(Verdict::from_ret(ret(index)), hook.name(results.position(index)))
            });
            for (index, frame) in chosen(tap.picked(), burst.frames()) {
                let verdict = Verdict::from_ret(ret(index));
                if is_dropped(verdict) {
                    self.sampled |= 1 << index;
                    continue;
                }
                let program = hook.name(results.position(index));
                tap.copy(frame, pool, Seen { verdict: Some(verdict.ok_or(ret(index) as u32)), program, fault: None });
            }
        }
    }

    /// A frame that is dropped and that somebody captures: whoever does gets the frame itself, and only others before the last one a
    /// copy.
    #[cold]
    pub(super) fn tap_dropped(
        &mut self,
        site: Site,
        index: usize,
        ret: u64,
        results: &Results,
        mut frame: Frame,
    ) -> Option<Frame> {
        let Some(hook) = deciding(site, &self.lanes, &self.hooks, &self.extras) else { return Some(frame) };
        let program = hook.name(results.position(index));
        let (verdict, pool) = (Verdict::from_ret(ret), self.pools.first_mut()?);
        let seen = Seen { verdict: Some(verdict.ok_or(ret as u32)), program, fault: results.fault(index) };
        let mut last = None;
        for tap in self.taps.iter_mut().filter(|tap| tap.at() == CaptureAt::Exit && tap.has_picked(index)) {
            if let Some(tap) = last.replace(tap) {
                tap.copy(&frame, pool, seen);
            }
        }
        match last {
            // A watcher that does not fetch may hold frames that are to spare, not those that packets are received into.
            Some(tap) if frame.pool_pressure() > Pressure::None => tap.lost(1),
            Some(tap) => frame = tap.take(frame, seen)?,
            None => {}
        }
        Some(frame)
    }
}

/// The frames whose bits are set, with their positions.
fn chosen(mut bits: u64, frames: &[Frame]) -> impl Iterator<Item = (usize, &Frame)> {
    std::iter::from_fn(move || {
        let index = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        frames.get(index).map(|frame| (index, frame))
    })
}
