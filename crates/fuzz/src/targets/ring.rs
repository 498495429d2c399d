//! Bytes as what the other side of two shared rings does: it writes indices, entries and flags as it likes, between our own
//! pushes and pops.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use xway_packet::SharedMemory;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::ring::{RingMemory, RingOffsets, XdpDesc};

const ENTRIES: u32 = 8;
const LAYOUT: RingOffsets = RingOffsets::LINUX;
/// Where the second ring begins.
const SECOND: usize = 2048;

pub fn run(data: &[u8]) {
    let Ok(memory) = SharedMemory::create(4096).map(Arc::new) else { return };
    let Some(file) = memory.fd().and_then(|fd| fd.try_clone_to_owned().ok()).map(File::from) else { return };
    let (Ok(rx), Ok(tx)) = (
        RingMemory::<XdpDesc>::over(memory.clone(), 0, LAYOUT, ENTRIES),
        RingMemory::<u64>::over(memory, SECOND, LAYOUT, ENTRIES),
    ) else {
        return;
    };
    let (Ok(mut consumer), Ok(mut producer)) = (Consumer::attach(rx), Producer::attach(tx)) else { return };
    // What the peer has been shown and has not given back, as far as we let it.
    let mut taken = 0u64;
    for step in data.chunks(6) {
        let &[what, how, ref word @ ..] = step else { break };
        let mut bytes = [0; 4];
        bytes[..word.len()].copy_from_slice(word);
        match what % 8 {
            0 => write(&file, LAYOUT.producer, &bytes),
            1 => write(&file, SECOND + LAYOUT.consumer, &bytes),
            // Our own indices, which we must not believe from there.
            2 => write(&file, if how & 1 == 0 { LAYOUT.consumer } else { SECOND + LAYOUT.producer }, &bytes),
            3 => write(&file, usize::from(how) * 4, &bytes),
            4 => {
                let there = consumer.available(u32::from(how));
                assert!(there <= ENTRIES, "{there} entries in a ring of {ENTRIES}");
                taken += consumer.pop_each(usize::from(how), |_| {}) as u64;
            }
            5 => {
                let mut held = 0;
                while held < u32::from(how) && consumer.take().is_some() {
                    held += 1;
                }
                assert!(held <= ENTRIES, "{held} entries taken of a ring of {ENTRIES}");
                assert_eq!(consumer.untake(held / 2), held / 2);
                consumer.release();
            }
            6 => {
                let room = producer.room(u32::from(how));
                assert!(room <= ENTRIES, "room for {room} in a ring of {ENTRIES}");
                let pushed = producer.push_some(usize::from(how), || Some(taken));
                assert!(pushed <= ENTRIES as usize, "{pushed} entries pushed into a ring of {ENTRIES}");
            }
            _ => {
                let _ = producer.stage(taken);
                assert!(producer.pending() <= ENTRIES);
                assert!(producer.unstage() + producer.submit() <= ENTRIES);
            }
        }
    }
}

fn write(file: &File, at: usize, bytes: &[u8]) {
    // Sealed: what would lie outside is refused, and that is what is wanted.
    let _ = file.write_at(bytes, at as u64);
}

pub fn seeds() -> Vec<Vec<u8>> {
    let step = |what: u8, how: u8, word: u32| [&[what, how][..], &word.to_le_bytes()].concat();
    let sound = [(0, 0, 3), (4, 8, 0), (6, 5, 0), (1, 0, 5), (6, 8, 0), (0, 0, 9), (5, 6, 0)];
    // Indices that run ahead, go back and wrap.
    let cheating = [(0, 0, u32::MAX), (4, 255, 0), (1, 0, 9), (6, 9, 0), (0, 0, 2), (0, 0, 1), (4, 8, 0), (7, 0, 0)];
    let of = |steps: &[(u8, u8, u32)]| steps.iter().flat_map(|&(what, how, word)| step(what, how, word)).collect();
    vec![of(&sound), of(&cheating)]
}
