//! `headers`: the first line of each packet is fetched some frames before its turn, when packets are cold.
#![allow(unsafe_code)] // the time-stamp counter, and the first word of frames
//!
//! Where a device or another core has written packets, the first look at each waits for memory, and the next packet's wait
//! begins only when the program is done with this one. So a burst is run in parts, and while one part runs the first lines
//! of the next are on their way. Packets that this core has just written itself need none of that; asking costs nearly
//! nothing, because it is asked once in many bursts: how long does one load from the last frame take?

use std::cell::Cell;
use std::ops::Range;

use xway_packet::{Frame, prefetch};

/// Frames that are fetched for while as many others run.
pub(crate) const PART: usize = 16;

/// Bursts between two questions.
const EVERY: u32 = 64;

/// Ticks of the time-stamp counter that a load from beyond the second-level cache takes longer than one that is warm.
const COLD_TICKS: u64 = 40;

/// Whether the packets that come to this thread are cold. Measured at one burst in 64; an interruption in that moment costs some
/// time in the next 64 and nothing else.
pub(crate) fn are_cold(frames: &[Frame]) -> bool {
    thread_local! { static STATE: Cell<(u32, bool)> = const { Cell::new((0, false)) }; }
    let (left, cold) = STATE.get();
    if left > 0 {
        STATE.set((left - 1, cold));
        return cold;
    }
    let Some(packet) = frames.last().map(Frame::packet).filter(|packet| !packet.is_empty()) else { return false };
    // The clock's first reading after a while takes longer itself: on a Xeon of family 6, model 85 by fifty ticks, which looked like cold packets.
    ticks_of_load(&[0]);
    let first = ticks_of_load(packet);
    let cold = first > ticks_of_load(packet).saturating_add(COLD_TICKS);
    STATE.set((EVERY, cold));
    cold
}

/// Runs over frames part by part, each fetched while the one before runs; `run` gets the place of a part's first frame. When
/// they are not cold, all at once.
#[inline]
pub(crate) fn in_parts(frames: &mut [Frame], cold: bool, mut run: impl FnMut(usize, &mut [Frame])) {
    if !cold {
        return run(0, frames);
    }
    for step in steps(frames.len()) {
        match step {
            Step::Descriptors(which) => fetch_descriptors(&frames[which]),
            Step::Packets(which) => fetch(&frames[which]),
            Step::Run(which) => run(which.start, &mut frames[which]),
        }
    }
}

/// What is done for a burst of cold packets.
#[derive(Debug)]
enum Step {
    /// Lines of descriptors are fetched.
    Descriptors(Range<usize>),
    /// First lines of packets are fetched, whose descriptors are near by now.
    Packets(Range<usize>),
    /// The program runs.
    Run(Range<usize>),
}

/// The steps for so many frames, in order.
#[inline]
fn steps(count: usize) -> impl Iterator<Item = Step> {
    let part = move |n: usize| (n * PART).min(count)..((n + 1) * PART).min(count);
    let first = [Step::Descriptors(part(1)), Step::Packets(part(0))];
    let each = move |n| [Step::Descriptors(part(n + 2)), Step::Packets(part(n + 1)), Step::Run(part(n))];
    first.into_iter().chain((0..count.div_ceil(PART)).flat_map(each))
}

/// Fetches the first line of each packet.
fn fetch(frames: &[Frame]) {
    for frame in frames {
        prefetch::to_read(frame.packet().as_ptr());
    }
}

/// Fetches the first line of each descriptor, which says where the packet is.
fn fetch_descriptors(frames: &[Frame]) {
    for frame in frames {
        // SAFETY: a frame is a pointer to its descriptor (`xway_packet::descriptor`), read as one word.
        prefetch::to_read(unsafe { std::ptr::from_ref(frame).cast::<*const u8>().read() });
    }
}

/// What a load of the first byte takes, with some ticks for the clock; 0 where there is no such clock.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn ticks_of_load(packet: &[u8]) -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: both instructions exist on every x86-64 machine and touch no memory. The fences keep the load between the two.
    unsafe {
        _mm_lfence();
        let start = _rdtsc();
        _mm_lfence();
        std::hint::black_box(packet[0]);
        _mm_lfence();
        _rdtsc().wrapping_sub(start)
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn ticks_of_load(_: &[u8]) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_packet::{Pool, PoolConfig};

    /// The pass changes no code, so its golden file is the order of what is done: `XWAY_BLESS=1 cargo test -p xway-jit --lib headers`.
    #[test]
    fn steps_are_as_the_file_shows() {
        let mut got = String::from("a burst of 40 frames\n\n---- without headers\n");
        let mut pool = Pool::new(PoolConfig::new(64)).unwrap();
        let mut frames: Vec<Frame> = (0..40).map(|_| pool.alloc().unwrap()).collect();
        in_parts(&mut frames, false, |at, part| got += &format!("{:?}\n", Step::Run(at..at + part.len())));
        frames.into_iter().for_each(|frame| pool.release(frame));
        got += "\n---- with headers, packets that are cold\n";
        steps(40).for_each(|step| got += &format!("{step:?}\n"));
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/headers.txt");
        if std::env::var_os("XWAY_BLESS").is_some() {
            std::fs::write(&path, &got).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(golden, got, "{}: XWAY_BLESS=1 writes it anew", path.display());
    }

    #[test]
    fn every_frame_is_run_once_and_in_order() {
        let mut pool = Pool::new(PoolConfig::new(128)).unwrap();
        for count in [0, 1, 15, 16, 17, 31, 32, 33, 48, 64, 100] {
            let mut frames: Vec<Frame> = (0..count).map(|_| pool.alloc().unwrap()).collect();
            for cold in [false, true] {
                let mut seen = 0;
                in_parts(&mut frames, cold, |at, part| {
                    assert!(at == seen && (!cold || part.len() <= PART));
                    seen += part.len();
                });
                assert_eq!(seen, count);
            }
            are_cold(&frames);
            frames.into_iter().for_each(|frame| pool.release(frame));
        }
    }
}
