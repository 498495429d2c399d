//! What it costs to say something of a packet beside its bytes, and to find it there: what the device knew (`RxMeta`), and values
//! under keys in the metadata area in front of the packet, as programs hand them on to each other.

use std::hint::black_box;

use xway_packet::{Frame, Pool, PoolConfig, RxMeta, Vlan};

use super::{Line, MemoryError, MemoryOptions, timed};

/// Frames that take turns: a burst.
const FRAMES: usize = 64;
/// Values in the metadata area: eight bytes each, behind a word of eight that says which keys are there.
const KEYS: u64 = 4;
const AREA: i32 = 8 + 8 * KEYS as i32;

/// Set and get, each for itself.
///
/// # Errors
/// No memory, or what was found is not what was said.
pub(super) fn hints(options: &MemoryOptions) -> Result<Vec<Line>, MemoryError> {
    let mut pool = Pool::new(PoolConfig::new(FRAMES as u32))?;
    let mut frames: Vec<Frame> = (0..FRAMES).map_while(|_| pool.alloc().ok()).collect();
    for frame in &mut frames {
        // There is room for it: less than the headroom, and a multiple of four.
        let _ = frame.adjust_meta(-AREA);
        frame.meta_mut().fill(0);
    }
    let turns = (options.count / FRAMES as u64).max(1);
    let count = turns * FRAMES as u64;
    let expected = turns * (0..FRAMES as u64).map(value).fold(0, u64::wrapping_add);
    let mut samples: [Vec<f64>; 4] = Default::default();
    for _ in 0..options.rounds {
        samples[0].push(timed(count, || {
            for _ in 0..turns {
                frames.iter_mut().zip(0..).for_each(|(frame, n)| frame.set_rx_meta(known(black_box(n))));
            }
        }));
        let mut sum = 0u64;
        samples[1].push(timed(count, || {
            for _ in 0..turns {
                let told = frames.iter().map(|frame| frame.rx_meta().timestamp.unwrap_or_default());
                sum = sum.wrapping_add(told.fold(0, u64::wrapping_add));
            }
        }));
        found("receive metadata", expected, sum)?;
        samples[2].push(timed(count, || {
            for turn in 0..turns {
                frames.iter_mut().zip(0..).for_each(|(frame, n)| set(frame, turn % KEYS, value(black_box(n))));
            }
        }));
        let mut sum = 0u64;
        samples[3].push(timed(count, || {
            for _ in 0..turns {
                let told = frames.iter().map(|frame| get(frame, black_box(0)).unwrap_or_default());
                sum = sum.wrapping_add(told.fold(0, u64::wrapping_add));
            }
        }));
        found("values by key", expected, sum)?;
    }
    frames.into_iter().for_each(|frame| pool.release(frame));
    pool.close()?;
    let names = ["hash, VLAN, time: set", "hash, VLAN, time: get", "value by key: set", "value by key: get"];
    Ok(names.into_iter().zip(samples).map(|(name, samples)| Line::new("metadata", name, 1, samples)).collect())
}

/// What is said of frame `n`.
const fn value(n: u64) -> u64 {
    n * 3 + 1
}

fn known(n: u64) -> RxMeta {
    let vlan = Some(Vlan { proto: 0x8100, tci: n as u16 });
    RxMeta { hash: Some((n as u32, 1)), vlan, timestamp: Some(value(n)) }
}

/// The value of a key: its word is set in the first one, the value stands in the key's place.
fn set(frame: &mut Frame, key: u64, value: u64) {
    let Some((keys, values)) = frame.meta_mut().split_first_chunk_mut::<8>() else { return };
    let Some(place) = values.get_mut(key as usize * 8..).and_then(|rest| rest.first_chunk_mut()) else { return };
    *keys = (u64::from_ne_bytes(*keys) | 1 << key).to_ne_bytes();
    *place = value.to_ne_bytes();
}

fn get(frame: &Frame, key: u64) -> Option<u64> {
    let (keys, values) = frame.meta().split_first_chunk::<8>()?;
    let place = values.get(key as usize * 8..)?.first_chunk()?;
    (u64::from_ne_bytes(*keys) >> key & 1 == 1).then(|| u64::from_ne_bytes(*place))
}

fn found(what: &str, expected: u64, arrived: u64) -> Result<(), MemoryError> {
    if expected == arrived { Ok(()) } else { Err(MemoryError::Lost { what: what.into(), expected, arrived }) }
}
