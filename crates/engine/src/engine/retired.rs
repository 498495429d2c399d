//! What was attached before, while frames that are on their way still need it.
//!
//! A frame that waits in the queue of a CPUMAP's entry will meet the entry's program, and what that program names: as in Linux it
//! does so also when map and program have been taken off their hook meanwhile. So what is taken off goes through three steps:
//!
//! ```text
//! attached ── change ──> retired ── its queues are empty ──> forgotten by the workers ──> dropped by the caller
//!                        up to a second in the call that changes; then each further call looks again
//! ```
//!
//! Whether a queue is empty cannot be seen by looking into it: a frame in a worker's hands is in no queue, and may be put into
//! another one. But between two bursts a worker has nothing in its hands. Each is asked there, twice: if nothing waited for
//! anybody, and nobody had put anything into a queue between the two answers, nothing is under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_maps::Map;

use super::EngineError;
use super::control::{Control, PortEntry};
use crate::core::Core;
use crate::crew::Member;
use crate::slot::Slot;

impl Control {
    /// Tells every worker of all maps that it does not know, because frames that come from other workers may name any of them, and
    /// takes from it those that nothing names any more.
    pub(super) fn tell_maps(&mut self) -> Result<(), EngineError> {
        let maps = self.maps_of(|_| true);
        let has = |maps: &[Arc<Map>], id| maps.iter().any(|map| map.id() == id);
        if maps.len() == self.maps.len() && maps.iter().all(|map| has(&self.maps, map.id())) {
            return Ok(());
        }
        let tell = |member: &Member| {
            let maps = maps.clone();
            member.send(move |core| core.set_maps(maps))
        };
        let answers: Vec<_> = self.members.iter().map(tell).collect();
        answers.into_iter().try_for_each(|answer| answer.wait().map(drop))?;
        self.crew.keep_maps(&|id| has(&maps, id));
        self.maps = maps;
        Ok(())
    }

    /// Lets go of what was attached before and no frame needs any more. Waits for the youngest of it, and only so long; what has to
    /// stay is looked at again by the next call.
    pub(super) fn let_go(&mut self, mut patience: Duration) -> Result<(), EngineError> {
        if self.retired.is_empty() {
            return Ok(());
        }
        let attached: Vec<u32> = self.maps_of(|retired| !retired).iter().map(|map| map.id()).collect();
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for slot in std::mem::take(&mut self.retired).into_iter().rev() {
            let maps: Arc<[u32]> = maps(&slot).map(|map| map.id()).filter(|id| !attached.contains(id)).collect();
            if !self.crew.has_rings(&maps) {
                gone.push(slot);
                continue;
            }
            // Where a worker is gone nobody can tell; whoever is told of the maps next says so.
            let quiet = self.await_quiet(patience, move |core| core.handed_through(&maps)).unwrap_or(true);
            patience = Duration::ZERO;
            if quiet { gone.push(slot) } else { kept.push(slot) }
        }
        self.retired.extend(kept.into_iter().rev());
        let told = self.tell_maps();
        // Programs leave their own maps with this, so not before the workers have forgotten those.
        drop(gone);
        told
    }

    /// Waits until nothing is on its way between workers, and says whether that is so: `handed` tells what a worker has put into
    /// queues so far, `None` while something waits for it.
    pub(super) fn await_quiet(
        &self,
        patience: Duration,
        handed: impl Fn(&Core) -> Option<u64> + Clone + Send + 'static,
    ) -> Result<bool, EngineError> {
        let deadline = Instant::now() + patience;
        let ask = || -> Result<Option<Vec<u64>>, EngineError> {
            let ask = |member: &Member| {
                let handed = handed.clone();
                member.send(move |core| handed(core))
            };
            let answers: Vec<_> = self.members.iter().map(ask).collect();
            let answers: Vec<_> = answers.into_iter().map(|answer| answer.wait()).collect::<Result<_, _>>()?;
            Ok(answers.into_iter().collect())
        };
        let mut before = ask()?;
        loop {
            let now = ask()?;
            if now.is_some() && now == before {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            before = now;
        }
    }

    /// Maps of all programs that are attached somewhere, or were (`true`) and are still needed: as far as they are wanted.
    fn maps_of(&self, wanted: impl Fn(bool) -> bool) -> Vec<Arc<Map>> {
        let mut all: Vec<Arc<Map>> = Vec::new();
        let attached = self.ports.iter().flat_map(PortEntry::slots).filter(|_| wanted(false));
        let retired = self.retired.iter().filter(|_| wanted(true));
        for map in attached.chain(retired).flat_map(maps) {
            if all.iter().all(|known| known.id() != map.id()) {
                all.push(map.clone());
            }
        }
        all
    }
}

fn maps(slot: &Slot) -> impl Iterator<Item = &Arc<Map>> {
    slot.entries().iter().flat_map(|attached| attached.program.maps())
}
