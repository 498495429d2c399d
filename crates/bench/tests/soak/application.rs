//! Applications with sockets, in processes of their own that are killed.

#[path = "../../../xsk/tests/common/application.rs"]
mod process;

use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use xway_abi::xsk;
use xway_engine::{Sent, SocketTarget};
use xway_packet::{Burst, Pool};
use xway_xsk::{EngineQueues, Queues, Refusal};
use xway_xsk_client::rings::Sizes;
use xway_xsk_client::{Bind, Connection};

use crate::yard::{PORTS, QUEUES, Random};

/// The queues of the engine, where what goes to sockets past all programs is counted.
pub struct Counted {
    pub queues: EngineQueues,
    pub delivered: Arc<AtomicU64>,
}

impl Queues for Counted {
    fn find(&self, name: &str, queue: u32) -> Result<u32, Refusal> {
        self.queues.find(name, queue)
    }

    fn bind(&self, at: (u32, u32), sockets: Option<Arc<dyn SocketTarget>>, direct: bool) -> Result<(), Refusal> {
        let counted = |inner| Arc::new(CountedSocket { inner, delivered: self.delivered.clone() }) as Arc<_>;
        self.queues.bind(at, sockets.map(counted), direct)
    }

    fn wake(&self, at: (u32, u32)) {
        self.queues.wake(at);
    }

    fn without_program(&self, at: (u32, u32)) -> bool {
        self.queues.without_program(at)
    }
}

struct CountedSocket {
    inner: Arc<dyn SocketTarget>,
    delivered: Arc<AtomicU64>,
}

impl SocketTarget for CountedSocket {
    fn id(&self) -> u64 {
        self.inner.id()
    }

    fn bound_to(&self) -> (u32, u32) {
        self.inner.bound_to()
    }

    fn deliver(&self, pool: &mut Pool, burst: &mut Burst) -> Sent {
        let sent = self.inner.deliver(pool, burst);
        self.delivered.fetch_add(sent.sent.into(), Ordering::Relaxed);
        sent
    }

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn collect(&self, pool: &mut Pool, burst: &mut Burst) {
        self.inner.collect(pool, burst);
    }

    fn sent(&self, sent: Sent) {
        self.inner.sent(sent);
    }

    fn close(&self, pool: &mut Pool) {
        self.inner.close(pool);
    }

    fn may_sleep(&self) -> bool {
        self.inner.may_sleep()
    }
}

/// A process that runs this file's test `an_application` until it is killed.
pub fn application(path: &Path, random: &mut Random) -> Child {
    let ifindex = PORTS[random.below(3) as usize];
    let way = process::WAYS[random.below(3) as usize];
    let (queue, zero_copy, direct) = (random.below(QUEUES), random.below(2), random.below(2));
    process::start("application::an_application", path, &format!("sim:d{ifindex} {queue} {way} {zero_copy} {direct}"))
}

/// One that sends back what comes to it from this queue: past all programs, or by a map.
pub fn echo(path: &Path, ifindex: u32, queue: u32, past_programs: bool) -> Child {
    let direct = u8::from(past_programs);
    process::start("application::an_application", path, &format!("sim:d{ifindex} {queue} works 0 {direct}"))
}

/// What such a process does. Its queue may be taken, or gone: then it asks again.
#[test]
fn an_application() {
    let Some((words, path)) = process::words() else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let (zero_copy, direct) = (words[3] == "1", words[4] == "1");
    let flags = if zero_copy { xsk::bind::ZEROCOPY } else { xsk::bind::COPY };
    let sizes = Sizes { fill: 64, completion: 64, rx: 64, tx: 64 };
    let queue = words[1].parse().unwrap();
    let flags = flags | xsk::bind::USE_NEED_WAKEUP | xsk::bind::SHARED_UMEM;
    let bind = Bind { flags, direct, sizes, chunks: 64, ..Bind::new(words[0], queue) };
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        // The server may be on its way out.
        let Ok(mut connection) = Connection::open(&path) else { return };
        let Ok(umem) = connection.umem(128, 2048, 0) else { return };
        match connection.bind(&umem, &bind) {
            // Its queue may go and come back without it.
            Ok(mut socket) => {
                process::live(&mut socket, words[2], until.min(Instant::now() + Duration::from_millis(300)));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
