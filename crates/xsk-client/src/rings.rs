//! Where the four rings lie in their memory file, one behind the other, each at the start of a page.

use std::sync::Arc;

use xway_packet::SharedMemory;
use xway_packet::ring::{Plain, RingError, RingMemory, RingOffsets, XdpDesc};

/// The most entries of a ring that is handed over.
pub const ENTRIES_MAX: u32 = 1 << 15;

/// Entries of the four rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// FILL.
    pub fill: u32,
    /// COMPLETION.
    pub completion: u32,
    /// RX.
    pub rx: u32,
    /// TX.
    pub tx: u32,
}

impl Sizes {
    /// Whether each is a power of two within bounds.
    pub fn valid(&self) -> bool {
        [self.fill, self.completion, self.rx, self.tx].iter().all(|n| n.is_power_of_two() && *n <= ENTRIES_MAX)
    }

    /// Bytes of the memory file.
    pub fn bytes(&self) -> usize {
        self.places()[4]
    }

    /// Where each begins, and where the last one ends.
    fn places(&self) -> [usize; 5] {
        let page = |bytes: usize| bytes.next_multiple_of(4096);
        let layout = RingOffsets::LINUX;
        let sizes = [
            layout.size::<u64>(self.fill),
            layout.size::<u64>(self.completion),
            layout.size::<XdpDesc>(self.rx),
            layout.size::<XdpDesc>(self.tx),
        ];
        let mut places = [0; 5];
        for (at, size) in sizes.into_iter().enumerate() {
            places[at + 1] = places[at] + page(size);
        }
        places
    }
}

/// The four rings, either side.
pub struct Rings {
    /// FILL.
    pub fill: RingMemory<u64>,
    /// COMPLETION.
    pub completion: RingMemory<u64>,
    /// RX.
    pub rx: RingMemory<XdpDesc>,
    /// TX.
    pub tx: RingMemory<XdpDesc>,
}

impl Rings {
    /// Lays them over a memory file of [`Sizes::bytes`] bytes.
    ///
    /// # Errors
    /// The memory is too small, or a number of entries makes no sense.
    pub fn over(memory: &Arc<SharedMemory>, sizes: Sizes) -> Result<Rings, RingError> {
        let [fill, completion, rx, tx, _] = sizes.places();
        Ok(Rings {
            fill: ring(memory, fill, sizes.fill)?,
            completion: ring(memory, completion, sizes.completion)?,
            rx: ring(memory, rx, sizes.rx)?,
            tx: ring(memory, tx, sizes.tx)?,
        })
    }
}

fn ring<T: Plain>(memory: &Arc<SharedMemory>, at: usize, entries: u32) -> Result<RingMemory<T>, RingError> {
    RingMemory::over(memory.clone(), at, RingOffsets::LINUX, entries)
}
