//! Where and when what leaves a map is freed. Alone in its program: guards of other tests would hold it back.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use xway_abi::{MapSpec, MapType, map_flags};
use xway_maps::{Env, Guard, Map, SocketObject};

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A socket that does something when it goes.
struct Goes<F: Fn() + Send + Sync>(u64, F);

impl<F: Fn() + Send + Sync + 'static> SocketObject for Goes<F> {
    fn id(&self) -> u64 {
        self.0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<F: Fn() + Send + Sync> Drop for Goes<F> {
    fn drop(&mut self) {
        self.1();
    }
}

fn map(map_type: MapType, key_size: u32, value_size: u32, flags: u32) -> Arc<Map> {
    let spec = MapSpec::new(map_type, key_size, value_size, 8).with_flags(flags);
    Map::create(&spec, &Env::with_cpus(1)).unwrap()
}

/// Packets do not wait for what others have removed: threads that handle them free none of it, and it is freed all the same.
#[test]
fn threads_that_handle_packets_free_nothing() {
    const ROUNDS: u32 = if cfg!(miri) { 200 } else { 20_000 };
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let (sockets, stop) = (map(MapType::Xskmap, 4, 4, 0), AtomicBool::new(false));
    let (freed, by): (Arc<AtomicU32>, Arc<Mutex<Vec<ThreadId>>>) = Default::default();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            Guard::handles_packets(true);
            while !stop.load(Ordering::Relaxed) {
                let _burst = Guard::pin();
                std::hint::spin_loop();
            }
        });
        let worker = worker.thread().id();
        for round in 0..ROUNDS {
            let (freed, by) = (freed.clone(), by.clone());
            let goes = move || {
                freed.fetch_add(1, Ordering::Relaxed);
                if std::thread::current().id() == worker {
                    by.lock().unwrap().push(worker);
                }
            };
            sockets.set_socket(0, Arc::new(Goes(u64::from(round), goes))).unwrap();
            if round % 16 == 0 {
                std::thread::yield_now();
            }
        }
        sockets.delete(&[0; 4]).unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    Guard::collect();
    assert_eq!((by.lock().unwrap().len(), freed.load(Ordering::Relaxed)), (0, ROUNDS));
}

/// However much has been waiting for somebody's guard: when that is gone, all of it goes.
#[test]
fn what_one_guard_held_back_is_freed_when_it_is_gone() {
    const HELD: u32 = if cfg!(miri) { 100 } else { 5_000 };
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let (sockets, freed) = (map(MapType::Xskmap, 4, 4, 0), Arc::new(AtomicU32::new(0)));
    let ((pinned, is_pinned), (go, may_go)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _guard = Guard::pin();
            pinned.send(()).unwrap();
            may_go.recv().unwrap();
        });
        is_pinned.recv().unwrap();
        for n in 0..HELD {
            let freed = freed.clone();
            let goes = move || {
                freed.fetch_add(1, Ordering::Relaxed);
            };
            sockets.set_socket(0, Arc::new(Goes(u64::from(n), goes))).unwrap();
        }
        sockets.delete(&[0; 4]).unwrap();
        go.send(()).unwrap();
    });
    Guard::collect();
    assert_eq!(freed.load(Ordering::Relaxed), HELD);
}

/// Whoever changes a map may be the one who frees what others have removed, and that may take long: meanwhile programs use the map.
#[test]
#[cfg_attr(miri, ignore = "waits for threads")]
fn programs_go_on_while_removed_things_are_freed() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    type Use = fn(&Map);
    let broadcasts: Use = |map| map.each_device(&Guard::pin(), &mut |_| ());
    let writes: Use = |map| map.prog_update(0, &[8, 0, 0, 0, 10, 0, 0, 0], &[1; 8], 0).unwrap();
    let cases: [(Arc<Map>, [u8; 8], Use); 2] = [
        (map(MapType::DevmapHash, 4, 8, 0), [1, 0, 0, 0, 0, 0, 0, 0], broadcasts),
        (map(MapType::LpmTrie, 8, 8, map_flags::NO_PREALLOC), [8, 0, 0, 0, 10, 0, 0, 0], writes),
    ];
    for (map, key, used) in cases {
        let (freed, stuck): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let (of, user, told) = (freed.clone(), map.clone(), stuck.clone());
        let goes = move || {
            let (done, wait) = mpsc::channel();
            let user = user.clone();
            std::thread::spawn(move || {
                used(&user);
                let _ = done.send(());
            });
            told.fetch_or(wait.recv_timeout(Duration::from_secs(10)).is_err(), Ordering::Relaxed);
            of.store(true, Ordering::Relaxed);
        };
        let sockets = self::map(MapType::Xskmap, 4, 4, 0);
        map.update(&key, &[7, 0, 0, 0, 0, 0, 0, 0], 0).unwrap();
        sockets.set_socket(0, Arc::new(Goes(1, goes))).unwrap();
        sockets.delete(&[0; 4]).unwrap();
        for change in 0.. {
            assert!(change < 1000, "it is never freed");
            map.update(&key, &[9, 0, 0, 0, 0, 0, 0, 0], 0).unwrap();
            if freed.load(Ordering::Relaxed) {
                break;
            }
        }
        assert!(!stuck.load(Ordering::Relaxed), "{:?}", map.map_type());
    }
}
