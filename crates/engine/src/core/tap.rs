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
            for frame in burst.frames_mut() {
                if tap.watches(frame.ingress_ifindex(), frame.rx_queue()) && tap.picks(frame, guard) {
                    tap.copy(frame, pool, Seen::default());
                }
            }
        }
    }

    /// As the programs left the frames that go on.
    #[cold]
    pub(super) fn tap_exit(&mut self, site: Site, burst: &mut Burst, guard: &Guard) {
        let hook = deciding(site, &self.lanes, &self.hooks, &self.extras);
        let (Some(hook), Some(pool)) = (hook, self.pools.first_mut()) else { return };
        for tap in self.taps.iter_mut().filter(|tap| tap.at() == CaptureAt::Exit) {
            for (index, (frame, ret)) in burst.frames_mut().iter_mut().zip(self.results.all_rets()).enumerate() {
                let verdict = Verdict::from_ret(ret);
                let program = hook.name(self.results.position(index));
                let watched = !is_dropped(verdict) && tap.watches(frame.ingress_ifindex(), frame.rx_queue());
                if watched && tap.wants(verdict, program) && tap.picks(frame, guard) {
                    let seen = Seen { verdict: Some(verdict.ok_or(ret as u32)), program, fault: None };
                    tap.copy(frame, pool, seen);
                }
            }
        }
    }

    /// A frame that is dropped: whoever captures it gets the frame itself, and only others before the last one a copy.
    #[cold]
    pub(super) fn tap_dropped(
        &mut self,
        site: Site,
        index: usize,
        ret: u64,
        results: &Results,
        mut frame: Frame,
        guard: &Guard,
    ) -> Option<Frame> {
        let Some(hook) = deciding(site, &self.lanes, &self.hooks, &self.extras) else { return Some(frame) };
        let program = hook.name(results.position(index));
        let (verdict, pool) = (Verdict::from_ret(ret), self.pools.first_mut()?);
        let (ifindex, queue) = (frame.ingress_ifindex(), frame.rx_queue());
        let seen = Seen { verdict: Some(verdict.ok_or(ret as u32)), program, fault: results.fault(index) };
        let mut last = None;
        for tap in self.taps.iter_mut().filter(|tap| tap.at() == CaptureAt::Exit) {
            if tap.watches(ifindex, queue)
                && tap.wants(verdict, program)
                && tap.picks(&mut frame, guard)
                && let Some(tap) = last.replace(tap)
            {
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
