//! Locks, and what one does instead: alone, and with a second core that does the same.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Barrier, Mutex, RwLock};
use std::time::Instant;

use super::{Cost, came_to, empty_turn, ns_each};
use crate::measure::{MeasureError, pin};

/// A lock of one byte: an exchange to take it, a store to give it back.
#[derive(Default)]
struct Spin(AtomicBool);

impl Spin {
    fn with(&self, what: impl FnOnce()) {
        while self.0.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        what();
        self.0.store(false, Ordering::Release);
    }
}

/// What one core pays while nobody else is there.
pub(super) fn alone() -> Vec<Cost> {
    let turn = empty_turn();
    let mut all = Vec::new();
    let mut add = |name: &'static str, note: &'static str, what: &mut dyn FnMut()| {
        all.push(Cost::new("locks", name, (ns_each(what) - turn).max(0.0)).noted(note));
    };
    let word = AtomicU64::new(0);
    add("load, add and store without lock", "a counter with one writer; where Linux turns interrupts off", &mut || {
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed)
    });
    add("store and fence", "", &mut || {
        word.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    });
    let spin = Spin::default();
    add("spin lock and unlock", "", &mut || spin.with(|| black_box(())));
    let mutex = Mutex::new(0u64);
    add("mutex, lock and unlock", "", &mut || drop(black_box(mutex.lock())));
    let shared = RwLock::new(0u64);
    add("read-write lock, read and unlock", "", &mut || drop(black_box(shared.read())));
    add("pin and unpin an epoch", "what a worker does once a burst instead of a lock", &mut || {
        drop(black_box(xway_maps::Guard::pin()))
    });
    all
}

/// A word with a cache line for itself, and the one beside it that is fetched along.
#[repr(align(128))]
#[derive(Default)]
struct Apart(AtomicU64);

/// The same by two cores at once: what each of them pays.
pub(super) fn together(cpu: u32, other: Option<u32>) -> Result<Vec<Cost>, MeasureError> {
    const TURNS: u64 = 400_000;
    let words: Arc<[Apart; 2]> = Arc::default();
    let (spin, mutex) = (Arc::new(Spin::default()), Arc::new(Mutex::new(0u64)));
    let add = |word: &AtomicU64| _ = word.fetch_add(1, Ordering::Relaxed);
    type Step = Box<dyn Fn(usize) + Send + Sync>;
    let (one, own, under_spin) = (words.clone(), words.clone(), words.clone());
    // What a lock guards is raised in two steps: without the lock some of it would be lost.
    let raise = |word: &AtomicU64| word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let counted = mutex.clone();
    let steps: [(&'static str, Step); 4] = [
        ("add, each to a word of its own", Box::new(move |who| add(&own[who].0))),
        ("add, both to one word", Box::new(move |_| add(&one[0].0))),
        ("spin lock and unlock, one for both", Box::new(move |_| spin.with(|| raise(&under_spin[0].0)))),
        (
            "mutex, one for both",
            Box::new(move |_| *mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += 1),
        ),
    ];
    let sum = || {
        let guarded = *counted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        words.iter().map(|word| word.0.load(Ordering::Relaxed)).sum::<u64>() + guarded
    };
    let mut all = Vec::new();
    for (name, step) in steps {
        let Some(other) = other else {
            all.push(Cost::missing("two cores", name, "there is no second core"));
            continue;
        };
        let (start, before) = (Barrier::new(2), sum());
        let side = |who: usize, cpu: u32| {
            let pinned = pin(cpu).is_ok();
            start.wait();
            let began = Instant::now();
            (0..TURNS).for_each(|_| step(who));
            pinned.then(|| began.elapsed().as_nanos() as f64 / TURNS as f64)
        };
        let (here, there) = std::thread::scope(|scope| {
            let theirs = scope.spawn(|| side(1, other));
            (side(0, cpu), theirs.join().ok().flatten())
        });
        came_to(name, &(2 * TURNS), &(sum() - before))?;
        all.push(match (here, there) {
            (Some(here), Some(there)) => Cost::new("two cores", name, f64::midpoint(here, there)).noted("each core"),
            _ => Cost::missing("two cores", name, "the other thread cannot be pinned"),
        });
    }
    Ok(all)
}
