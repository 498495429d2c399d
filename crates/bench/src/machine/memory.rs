//! Caches by chasing pointers; copies and fills.

use std::hint::black_box;

use super::{Cost, came_to, ns_each};
use crate::flows::Rng;
use crate::measure::MeasureError;

/// Bytes of a cache line, and of a link of a chain.
const LINE: usize = 64;

/// A place in memory that names the next one.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Link {
    next: u32,
}

/// Links in one circle, in random order.
fn chain(bytes: usize) -> Vec<Link> {
    let count = bytes / LINE;
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut rng = Rng(bytes as u64);
    for n in (1..count).rev() {
        order.swap(n, rng.below(n as u32 + 1) as usize);
    }
    let mut links = vec![Link { next: 0 }; count];
    for (n, at) in order.iter().enumerate() {
        links[*at as usize].next = order[(n + 1) % count];
    }
    links
}

const SIZES: &[(usize, &str)] = &[
    (16 << 10, "16 KiB"),
    (256 << 10, "256 KiB"),
    (1 << 20, "1 MiB"),
    (4 << 20, "4 MiB"),
    (16 << 20, "16 MiB"),
    (64 << 20, "64 MiB"),
    (256 << 20, "256 MiB"),
];
/// Chains that are followed at the same time.
const CHAINS: usize = 8;

pub(super) fn costs() -> Result<Vec<Cost>, MeasureError> {
    let mut all = Vec::new();
    for (bytes, name) in SIZES {
        let links = chain(*bytes);
        let mut at = 0;
        let one = ns_each(|| at = black_box(links[at as usize].next));
        all.push(Cost::new("cache", format!("load, each after the one before, {name}"), one));
    }
    let links = chain(256 << 20);
    let mut at: [u32; CHAINS] = std::array::from_fn(|n| (n * links.len() / CHAINS) as u32);
    let eight = ns_each(|| {
        for place in &mut at {
            *place = links[*place as usize].next;
        }
        black_box(&at);
    });
    all.push(Cost::new("cache", "the same, eight chains at once, 256 MiB", eight / CHAINS as f64).noted("each load"));
    drop(links);
    all.extend(copies()?);
    all.extend(pages());
    Ok(all)
}

fn copies() -> Result<Vec<Cost>, MeasureError> {
    let mut all = Vec::new();
    let from: Vec<u8> = (0..64 << 10).map(|n: u32| (n * 7 + 1) as u8).collect();
    let mut to = vec![0u8; 64 << 10];
    for len in [16, 32, 64, 128, 256, 512, 1024, 1500, 2048, 4096, 8192] {
        let ns = ns_each(|| {
            let len = black_box(len);
            to[..len].copy_from_slice(&from[..len]);
            black_box(&mut to);
        });
        came_to("bytes that were copied", &from[..len].to_vec(), &to[..len].to_vec())?;
        all.push(Cost::new("copies", format!("memcpy, {len} bytes, hot"), ns).noted(rate(len, ns)));
    }
    for len in [32, 64, 128, 256, 512, 1024, 1500, 2048, 4096, 8192] {
        let ns = ns_each(|| {
            to[..black_box(len)].fill(black_box(0));
            black_box(&mut to);
        });
        came_to("bytes that were cleared", &vec![0; len], &to[..len].to_vec())?;
        all.push(Cost::new("copies", format!("memset, {len} bytes, hot"), ns).noted(rate(len, ns)));
    }
    all.extend(clearing());
    // Packets all over a large memory, in random order: neither the cache nor the prefetcher has them.
    let memory = vec![3u8; 512 << 20];
    let places = memory.len() / 2048;
    let mut rng = Rng(7);
    let ns = ns_each(|| {
        let at = rng.below(places as u32) as usize * 2048;
        to[..1500].copy_from_slice(&memory[at..at + 1500]);
        black_box(&mut to);
    });
    all.push(Cost::new("copies", "memcpy, 1500 bytes, from DRAM", ns));
    Ok(all)
}

fn rate(bytes: usize, ns: f64) -> String {
    format!("{:.0} bytes a ns", bytes as f64 / ns.max(0.1))
}

/// Clearing what belongs to the packets of a burst: a line at each of 64 places, or all lines side by side. A pool keeps its
/// descriptors side by side and does not clear them: what is written anew for each packet is its first line.
fn clearing() -> Vec<Cost> {
    const PACKETS: usize = 64;
    const STRIDE: usize = 2048 + LINE;
    let mut apart = vec![1u8; PACKETS * STRIDE];
    let each = ns_each(|| {
        apart.chunks_exact_mut(STRIDE).for_each(|chunk| chunk[..black_box(LINE)].fill(0));
        black_box(&mut apart);
    });
    let mut beside = vec![1u8; PACKETS * LINE];
    let all = ns_each(|| {
        beside[..black_box(PACKETS * LINE)].fill(0);
        black_box(&mut beside);
    });
    let cost = |name: &str, ns: f64| Cost::new("copies", name, ns / PACKETS as f64).noted("each packet");
    vec![
        cost("clearing a line of 64 packets, one by one", each),
        cost("clearing a line of 64 packets, side by side at once", all),
    ]
}

/// Getting memory and giving it back.
fn pages() -> Vec<Cost> {
    let mut all = Vec::new();
    for len in [64usize, 4096] {
        let ns = ns_each(|| drop(black_box(Vec::<u8>::with_capacity(black_box(len)))));
        all.push(Cost::new("pages", format!("malloc and free, {len} bytes"), ns));
    }
    // More than an allocator keeps: new from the system each time. Huge pages bring many pages with one fault, so every page counts.
    const BYTES: usize = 40 << 20;
    const PAGE: usize = 4096;
    let ns = ns_each(|| {
        let mut memory = vec![0u8; BYTES];
        memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        black_box(&memory);
    });
    let each = ns / (BYTES / PAGE) as f64;
    all.push(Cost::new("pages", "a page from the system, touched and given back", each).noted("of 40 MiB at once"));
    all
}

/// For the head of other reports.
pub(super) fn short() -> Vec<Cost> {
    let mut all = Vec::new();
    for (bytes, name) in [(16 << 10, "load L1"), (256 << 10, "L2"), (64 << 20, "memory")] {
        let links = chain(bytes);
        let mut at = 0;
        all.push(Cost::new("short", name, ns_each(|| at = black_box(links[at as usize].next))));
    }
    let (from, mut to) = ([1u8; 64], [0u8; 64]);
    let copy = ns_each(|| {
        let len = black_box(64);
        to[..len].copy_from_slice(&from[..len]);
        black_box(&mut to);
    });
    all.push(Cost::new("short", "memcpy 64 B", copy));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_one_circle() {
        let links = chain(1 << 16);
        let (mut at, mut steps) = (0, 0);
        loop {
            at = links[at as usize].next;
            steps += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, links.len());
        assert_eq!(size_of::<Link>(), LINE);
    }
}
