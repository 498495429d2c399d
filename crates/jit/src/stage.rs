//! `stage`: memory of large maps, fetched for a whole burst before the program asks for it.
//!
//! ```text
//! scout   for each frame: which bucket (entry, value) the program will look at        generated, plan/scout.rs
//! fetch   all buckets, then all elements                                              Map::fetch_ahead
//! run     the program over all frames, unchanged                                      the burst function
//! ```
//!
//! Results cannot change: a scout writes nothing that anybody else sees, and nothing of what it found goes into the program. So
//! there is nothing to prove about the order of effects between frames. `docs/design-notes/staging.md` weighs that against
//! splitting the program in two.
//!
//! Whether it pays depends on how much of a map is in use, which is asked for each burst: a few loads.

use std::sync::{Arc, OnceLock};

use xway_maps::Map;

use crate::Options;
use crate::lower::{can_fetch, can_inline};
use crate::plan::Plan;
use crate::plan::scout::{self, Around, Scout, VALUE_MAX};

/// Frames that are looked at ahead: the memory that they need fits the first-level cache, and there are enough of them for the
/// waits to pass side by side.
pub(crate) const FRAMES: usize = 64;
/// With fewer frames there is too little to overlap.
const FRAMES_MIN: usize = 4;

/// What is needed to look ahead.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Offset of the scout in the code.
    pub offset: usize,
    /// The maps of the targets, by index.
    pub indices: Vec<u32>,
    maps: Vec<Arc<Map>>,
    from: usize,
}

impl Stage {
    pub fn new(offset: usize, indices: &[u32], maps: &[Arc<Map>], from: Option<usize>) -> Stage {
        let of = |index: &u32| maps[*index as usize].clone();
        let from = from.unwrap_or_else(second_level);
        Stage { offset, indices: indices.to_vec(), maps: indices.iter().map(of).collect(), from }
    }

    /// Notes for each frame.
    pub fn targets(&self) -> usize {
        self.maps.len()
    }

    /// Whether a burst of so many frames is worth it, as full as the maps are by now.
    #[inline]
    pub fn pays(&self, frames: usize) -> bool {
        (frames >= FRAMES_MIN || self.from == 0) && self.maps.iter().any(|map| map.spread() >= self.from)
    }

    /// Fetches what the scout noted.
    pub fn fetch(&self, cpu: u32, notes: &[u64]) {
        for (n, map) in self.maps.iter().enumerate() {
            map.fetch_ahead(cpu, notes, n, self.maps.len());
        }
    }
}

/// The scout of a program, if some map may outgrow the cache.
pub(crate) fn scout(plan: &Plan, maps: &[Arc<Map>], options: &Options) -> Option<Scout> {
    let from = options.stage_from.unwrap_or_else(second_level);
    let large: Vec<bool> = maps.iter().map(|map| map.spread_max() > from).collect();
    if !(options.stage && options.burst && options.inline_lookups && large.contains(&true)) {
        return None;
    }
    let main = plan.funcs.first()?;
    let inline = |call: &_| can_inline(call, maps, options);
    let fetch = |call: &_| can_fetch(call, maps);
    scout::scout(main, &Around::new(main, maps, &large, &inline, &fetch))
}

/// Address of what a scout takes for a value: zeros.
pub(crate) fn zeros() -> u64 {
    #[repr(align(64))]
    struct Zeros([u8; VALUE_MAX]);
    static ZEROS: Zeros = Zeros([0; VALUE_MAX]);
    ZEROS.0.as_ptr() as u64
}

/// Bytes of the second-level cache; a megabyte where the system does not say.
fn second_level() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
        let kib = text.trim().strip_suffix('K').and_then(|k| k.parse::<usize>().ok());
        kib.map_or(1 << 20, |kib| kib << 10)
    })
}
