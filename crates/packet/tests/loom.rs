//! The return queue under every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p xway-packet --test loom --release`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use xway_packet::returns::Returns;

/// Two threads give numbers back while the owner takes: each number comes home exactly once.
#[test]
fn nothing_is_lost_and_nothing_comes_twice() {
    loom::model(|| {
        let returns = Arc::new(Returns::new(4));
        let others: Vec<_> = [vec![0, 1], vec![2]]
            .into_iter()
            .map(|chain| {
                let returns = returns.clone();
                thread::spawn(move || assert!(!returns.push(&chain)))
            })
            .collect();
        let mut home = Vec::new();
        returns.take(&mut home);
        // What came home at once may go out and come back while the others are still pushing.
        if let Some(again) = home.pop() {
            assert!(!returns.push(&[again]));
        }
        for other in others {
            other.join().unwrap();
        }
        returns.take(&mut home);
        home.sort_unstable();
        assert_eq!(home, [0, 1, 2]);
    });
}

/// The owner closes while two threads give back: exactly one of the three is told to free, after all are home. In every interleaving
/// with at most three preemptions; all of them take minutes.
#[test]
fn exactly_one_frees() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let returns = Arc::new(Returns::new(3));
        let (freed, home) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let others: Vec<_> = (0..2)
            .map(|number| {
                let (returns, freed, home) = (returns.clone(), freed.clone(), home.clone());
                thread::spawn(move || {
                    home.fetch_add(1, Ordering::Relaxed);
                    if returns.push(&[number]) {
                        assert_eq!(home.load(Ordering::Relaxed), 2);
                        freed.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut taken = Vec::new();
        let count = returns.close(&mut taken);
        assert_eq!(count, taken.len());
        if returns.door().settle(2 - count as u32) {
            assert_eq!(home.load(Ordering::Relaxed), 2);
            freed.fetch_add(1, Ordering::Relaxed);
        }
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}
