//! The other side of a socket, at the level of rings, where it can do everything that is wrong.
#![allow(dead_code)] // each test file uses its part

use std::sync::Arc;

use xway_engine::SocketTarget;
use xway_packet::ring::XdpDesc;
use xway_packet::ring::spsc::{Consumer, Producer};
use xway_packet::{Backing, Burst, Pages, Pool, PoolConfig, SharedMemory};
use xway_xsk::{Mode, Shape, Umem, Xsk};
use xway_xsk_client::rings::{Rings, Sizes};

pub const CHUNK: u32 = 2048;

/// An application that is nothing but four rings.
pub struct Raw {
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub rx: Consumer<XdpDesc>,
    pub tx: Producer<XdpDesc>,
}

pub fn sizes(entries: u32) -> Sizes {
    Sizes { fill: entries, completion: entries, rx: entries, tx: entries }
}

pub fn attach(socket: &Xsk, sizes: Sizes) -> Raw {
    let memory = SharedMemory::map(socket.rings_fd().unwrap(), 0, sizes.bytes()).unwrap();
    let rings = Rings::over(&Arc::new(memory), sizes).unwrap();
    Raw {
        fill: Producer::attach(rings.fill).unwrap(),
        completion: Consumer::attach(rings.completion).unwrap(),
        rx: Consumer::attach(rings.rx).unwrap(),
        tx: Producer::attach(rings.tx).unwrap(),
    }
}

/// A socket with copies over `chunks` chunks.
pub fn copying(chunks: u32, entries: u32, weight: u32) -> (Xsk, Raw, Arc<Umem>) {
    let umem = Arc::new(Umem::create(chunks, CHUNK, 0).unwrap());
    let (socket, raw) = over(&umem, entries, weight, None);
    (socket, raw, umem)
}

/// A socket with copies over this memory, which gets so many bytes of each packet.
pub fn over(umem: &Arc<Umem>, entries: u32, weight: u32, snap: Option<u32>) -> (Xsk, Raw) {
    let (mode, sizes) = (Mode::Copy(umem.clone()), sizes(entries));
    let socket = Xsk::new(&Shape { bound: (1, 0), sizes, mode, weight, snap }).unwrap();
    let raw = attach(&socket, sizes);
    (socket, raw)
}

/// A socket without copies, lent `chunks` of the pool.
pub fn lending(pool: &mut Pool, chunks: u32, entries: u32) -> (Xsk, Raw) {
    let sizes = sizes(entries);
    let socket =
        Xsk::new(&Shape { bound: (1, 0), sizes, mode: Mode::ZeroCopy(chunks), weight: 1, snap: None }).unwrap();
    let raw = attach(&socket, sizes);
    // The first call meets the pool.
    socket.collect(pool, &mut Burst::new());
    (socket, raw)
}

pub fn pool(frames: u32) -> Pool {
    Pool::new(PoolConfig { backing: Backing::Memfd, pages: Pages::Base, ..PoolConfig::new(frames) }).unwrap()
}

/// A burst of packets with these bytes.
pub fn burst(pool: &mut Pool, packets: &[Vec<u8>]) -> Burst {
    let mut burst = Burst::new();
    for packet in packets {
        let mut frame = pool.alloc().unwrap();
        frame.fill(packet).unwrap();
        burst.push(frame).unwrap();
    }
    burst
}

/// Everything that the socket wants to send, as bytes; the frames go home.
pub fn collected(target: &dyn SocketTarget, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    target.collect(pool, &mut burst);
    let packets = burst.frames().iter().map(|frame| frame.packet().to_vec()).collect();
    pool.release_burst(&mut burst);
    packets
}
