//! Applications with sockets, in processes of their own that are killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
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

/// A process that runs this file's test `application` until it is killed.
pub fn application(path: &Path, random: &mut Random) -> Child {
    let ifindex = PORTS[random.below(3) as usize];
    let way = ["works", "keeps", "stops"][random.below(3) as usize];
    let words = [
        format!("sim:d{ifindex}"),
        random.below(QUEUES).to_string(),
        way.to_owned(),
        random.below(2).to_string(),
        random.below(2).to_string(),
    ];
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "application::an_application", "--nocapture"])
        .env("XWAY_SOAK_APPLICATION", words.join(" "))
        .env("XWAY_SOAK_PATH", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What such a process does. Its queue may be taken, or gone: then it asks again.
#[test]
fn an_application() {
    let Ok(words) = std::env::var("XWAY_SOAK_APPLICATION") else { return };
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
        let Ok(mut connection) = Connection::open(std::env::var("XWAY_SOAK_PATH").unwrap()) else { return };
        let Ok(umem) = connection.umem(128, 2048, 0) else { return };
        let Ok(mut socket) = connection.bind(&umem, &bind) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let mut kept = Vec::new();
        // Its queue may go and come back without it.
        let rebind = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until.min(rebind) {
            socket.fill(32);
            match words[2] {
                // Holds everything that it gets, and gives nothing back.
                "keeps" => kept.extend(socket.receive()),
                // Is in the middle of everything.
                "works" => {
                    while let Some(packet) = socket.receive() {
                        let _ = socket.send(packet);
                    }
                    socket.flush();
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}
