//! What maps cost: `cargo run --release -p xway-maps --example measure [TYPE [ENTRIES]]`. Nanoseconds for each operation, medians of rounds.

use rustix::time::{ClockId, clock_gettime};
use xway_abi::MapType;
use xway_maps::measure::Workload;

/// Operations of a round, and rounds.
const OPS: usize = 1 << 16;
const ROUNDS: usize = 25;

fn main() {
    println!("map                 entries   key   look up     by 32    update     churn     by 32   del+ins");
    let hashes = [MapType::Hash, MapType::LruHash, MapType::PercpuHash];
    for map_type in hashes {
        for entries in [1_000, 10_000, 100_000, 1_000_000] {
            for key_size in [4, 16, 40] {
                row(map_type, key_size, entries);
            }
        }
    }
    for (key_size, entries) in [(8, 1_000), (8, 100_000), (8, 1_000_000), (20, 100_000)] {
        row(MapType::LpmTrie, key_size, entries);
    }
    row(MapType::Array, 4, 10_000);
    row(MapType::PercpuArray, 4, 10_000);
}

fn row(map_type: MapType, key_size: u32, entries: u32) {
    let wanted = std::env::args().nth(1);
    let size = std::env::args().nth(2);
    if wanted.is_some_and(|wanted| !map_type.name().starts_with(&wanted))
        || size.is_some_and(|size| size != entries.to_string())
    {
        return;
    }
    let count = entries as usize;
    let evicts = map_type == MapType::LruHash;
    let work = Workload::new(map_type, key_size, 8, entries, if evicts { 4 * count } else { count }).expect("memory");
    work.fill(count);
    let hash = matches!(map_type, MapType::Hash | MapType::LruHash | MapType::PercpuHash);
    let only = |wanted: bool, operation: &dyn Fn(usize) -> usize| wanted.then(|| median(operation));
    let columns = [
        Some(median(&|from| within(from, count, |at, len| work.look_up(at, len)))),
        only(hash, &|from| within(from, count, |at, len| work.look_up_many(at, len, 32))),
        only(map_type != MapType::LpmTrie, &|from| within(from, count, |at, len| work.update(at, len))),
        only(hash, &|from| within(from, count, |at, len| work.delete_and_insert(at, len))),
        only(evicts, &|from| work.churn(count + from, OPS)),
        only(evicts, &|from| work.churn_many(count + from + ROUNDS * OPS, OPS, 32)),
    ];
    let text = columns.map(|ns| ns.map_or("-".into(), |ns| format!("{ns:.1}")));
    let [look_up, many, update, again, churn, churn_many] = text;
    println!(
        "{:<18} {entries:>8} {key_size:>5} {look_up:>9} {many:>9} {update:>9} {churn:>9} {churn_many:>9} {again:>9}   {} bytes each",
        map_type.name(),
        work.map.memory().bytes / u64::from(entries)
    );
}

/// `OPS` operations on the first `count` keys.
fn within(from: usize, count: usize, mut operation: impl FnMut(usize, usize) -> usize) -> usize {
    let (mut done, mut sum) = (0, 0);
    while done < OPS {
        let at = (from + done) % count;
        let len = (count - at).min(OPS - done);
        sum += operation(at, len);
        done += len;
    }
    sum
}

/// The thread's own time: what others run on this CPU does not count.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(operation: &dyn Fn(usize) -> usize) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let start = now();
            std::hint::black_box(operation(round * OPS));
            (now() - start) / OPS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
