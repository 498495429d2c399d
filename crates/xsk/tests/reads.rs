//! What an application can change at any time is read once: descriptors, addresses, requests, packets. Each byte that was read is another
//! one behind the instruction that read it, so whatever is read again shows.
#![cfg(target_arch = "x86_64")]

mod common;
mod watched;

use std::sync::Arc;

use common::{CHUNK, attach, burst, pool, sizes};
use watched::{Access, Memory, mapping_of, read_again, watched};
use xway_engine::SocketTarget;
use xway_packet::ring::XdpDesc;
use xway_packet::{Burst, Pool, SharedMemory};
use xway_xsk::{Mode, Shape, Umem, Xsk};

/// Where the parts of a ring stand (`xdp_mmap_offsets` on machines with lines of 64 bytes): indices in front, slots from here on.
const SLOTS: usize = 320;
const RING: usize = 4096;
const ENTRIES: u32 = 8;

/// A socket of an application with memory of its own, and what is to be watched: its rings, its memory.
struct Site {
    socket: Xsk,
    raw: common::Raw,
    umem: Arc<Umem>,
    memories: [Memory; 2],
    _aliases: [SharedMemory; 2],
}

fn site() -> Site {
    let umem = Arc::new(Umem::create(8, CHUNK, 0).unwrap().with_tx_metadata(32).unwrap());
    let mode = Mode::Copy(umem.clone());
    let socket = Xsk::new(&Shape { bound: (1, 0), sizes: sizes(ENTRIES), mode, weight: 1, snap: None }).unwrap();
    // The socket's own mappings, before there are others of the same files.
    let own = [mapping_of(socket.rings_fd().unwrap()), mapping_of(umem.fd().unwrap())];
    let aliases = [socket.rings_fd().unwrap(), umem.fd().unwrap()];
    let aliases = [0, 1].map(|n| SharedMemory::map(aliases[n], 0, own[n].1).unwrap());
    let memories = [0, 1].map(|n| Memory { start: own[n].0, alias: aliases[n].start(), len: own[n].1 });
    let raw = attach(&socket, sizes(ENTRIES));
    Site { socket, raw, umem, memories, _aliases: aliases }
}

fn write(umem: &Umem, at: u64, bytes: &[u8]) {
    rustix::io::pwrite(umem.fd().unwrap(), bytes, at).unwrap();
}

/// Bytes of a packet: as many as `memcpy` moves without overlaps, whatever the width of its vectors. What it reads twice of other lengths
/// is stored twice and looked at nowhere, but would be a second read here.
const LEN: usize = 128;

fn packet(number: u8) -> Vec<u8> {
    (0..LEN as u8).map(|at| number.wrapping_mul(31).wrapping_add(at)).collect()
}

/// Places in slots of the rings, not of their indices.
fn in_slots(access: &Access) -> bool {
    access.memory == 0 && access.at % RING >= SLOTS
}

fn reads(log: &[Access], which: impl Fn(&Access) -> bool) -> usize {
    log.iter().filter(|access| !access.write && which(access)).count()
}

#[test]
fn the_watcher_sees_a_second_read_and_what_it_reads() {
    let file = SharedMemory::create(4096).unwrap();
    let alias = SharedMemory::map(file.fd().unwrap(), 0, 4096).unwrap();
    rustix::io::pwrite(file.fd().unwrap(), &[7; 8], 64).unwrap();
    let memory = Memory { start: file.start(), alias: alias.start(), len: 4096 };
    let at = file.start().map_addr(|start| start.checked_add(64).unwrap());
    let (seen, log) = watched(&[memory], 1, || [watched::read(at), watched::read(at)]);
    assert_eq!(seen, [7, 6]);
    let access = Access { memory: 0, at: 64, write: false };
    assert_eq!((&log[..], &read_again(&log)[..]), (&[access, access][..], &[access][..]));
}

/// From an application that copies: descriptors of TX with their lengths, requests in front of packets, packets.
#[test]
fn what_an_application_sends_is_read_once() {
    let mut pool = pool(64);
    let Site { socket, mut raw, umem, memories, _aliases } = site();
    for chunk in 0..4 {
        let at = chunk * u64::from(CHUNK) + 256;
        // A checksum is asked for, of nothing: two bytes at the end of the packet.
        let request = [&2u64.to_ne_bytes()[..], &34u16.to_ne_bytes(), &16u16.to_ne_bytes(), &[0; 12]].concat();
        write(&umem, at - 32, &request);
        write(&umem, at, &packet(chunk as u8));
        let options = if chunk % 2 == 0 { xway_abi::xsk::TX_METADATA } else { 0 };
        raw.tx.push(XdpDesc { addr: at, len: LEN as u32, options }).unwrap();
    }
    let mut out = Burst::new();
    let (_, log) = watched(&memories, 0xff, || socket.collect(&mut pool, &mut out));
    let expected: Vec<Vec<u8>> = (0..4)
        .map(|chunk| {
            let mut bytes = packet(chunk);
            if chunk % 2 == 0 {
                xway_packet::offload::complete_checksum(&mut bytes, 34, 16);
            }
            bytes
        })
        .collect();
    let got: Vec<Vec<u8>> = out.frames().iter().map(|frame| frame.packet().to_vec()).collect();
    assert_eq!(got, expected, "what was read first is what is used");
    let again: Vec<Access> =
        read_again(&log).into_iter().filter(|access| in_slots(access) || access.memory == 1).collect();
    assert_eq!(again, []);
    // Address, length and options of each, and each packet: the watch was on.
    assert_eq!(reads(&log, in_slots), 4 * 3, "{log:?}");
    assert!(reads(&log, |access| access.memory == 1) > 4, "{log:?}");
    // The index that was read is no index any more, and whoever looked again has counted that.
    assert!(socket.statistics().refused_indices > 0 && socket.statistics().tx_invalid_descs == 0);
    pool.release_burst(&mut out);
    drop(socket);
    pool.close().unwrap();
}

/// To an application that copies: addresses of FILL.
#[test]
fn where_an_application_wants_its_packets_is_read_once() {
    let mut pool = pool(64);
    let Site { socket, mut raw, umem, memories, _aliases } = site();
    raw.fill.push_slice(&[0, 1, 2, 3].map(|chunk| chunk * u64::from(CHUNK)));
    let mut frames = burst(&mut pool, &(0..4).map(packet).collect::<Vec<_>>());
    let (sent, log) = watched(&memories, 0xff, || socket.deliver(&mut pool, &mut frames));
    assert_eq!((sent.sent, sent.full, sent.failed), (4, 0, 0));
    let again: Vec<Access> = read_again(&log).into_iter().filter(in_slots).collect();
    assert_eq!((again, reads(&log, in_slots)), (vec![], 4), "{log:?}");
    // What is written there is not read.
    assert_eq!(reads(&log, |access| access.memory == 1), 0, "{log:?}");
    for chunk in 0..4u8 {
        let mut bytes = vec![0; LEN];
        rustix::io::pread(umem.fd().unwrap(), &mut bytes, u64::from(chunk) * u64::from(CHUNK) + 256).unwrap();
        assert_eq!(bytes, packet(chunk));
    }
    assert_eq!(socket.statistics().rx_invalid_descs, 0);
    drop(socket);
    pool.close().unwrap();
}

/// A socket of an application that maps the pool, and what is to be watched: its rings, the pool.
fn lending(pool: &mut Pool) -> (Xsk, common::Raw, [Memory; 2], [SharedMemory; 2]) {
    let shape = Shape { bound: (1, 0), sizes: sizes(ENTRIES), mode: Mode::ZeroCopy(8), weight: 1, snap: None };
    let socket = Xsk::new(&shape).unwrap();
    let rings = mapping_of(socket.rings_fd().unwrap());
    let (start, len) = pool.memory_range();
    let own = [rings, (start, len.next_multiple_of(4096))];
    let files = [socket.rings_fd().unwrap(), pool.memory_fd().unwrap()];
    let aliases = [0, 1].map(|n| SharedMemory::map(files[n], 0, own[n].1).unwrap());
    let memories = [0, 1].map(|n| Memory { start: own[n].0, alias: aliases[n].start(), len: own[n].1 });
    let raw = attach(&socket, sizes(ENTRIES));
    // The first call meets the pool.
    socket.collect(pool, &mut Burst::new());
    (socket, raw, memories, aliases)
}

/// The application goes: what it had is the pool's again.
fn leave(socket: Xsk, pool: &mut Pool) {
    socket.close();
    socket.collect(pool, &mut Burst::new());
    assert!(socket.settled());
}

/// An application that maps the pool: descriptors and addresses, both ways. Packets are not read at all.
#[test]
fn without_copies_descriptors_are_read_once() {
    let mut pool = pool(64);
    let once = |log: &[Access], slots: usize| {
        let again: Vec<Access> = read_again(log).into_iter().filter(in_slots).collect();
        assert_eq!((again, reads(log, in_slots)), (vec![], slots), "{log:?}");
        assert_eq!(reads(log, |access| access.memory == 1), 0, "{log:?}");
    };
    let (socket, mut raw, memories, aliases) = lending(&mut pool);
    let mut lent = [0; 8];
    assert_eq!(raw.completion.pop_slice(&mut lent), 8);
    raw.tx.push_slice(&[0, 1, 2].map(|n| XdpDesc { addr: lent[n] + 256, len: 60 + n as u32, options: 0 }));
    let mut out = Burst::new();
    let (_, log) = watched(&memories, 0xff, || socket.collect(&mut pool, &mut out));
    assert_eq!(out.frames().iter().map(|frame| frame.len()).collect::<Vec<_>>(), [60, 61, 62]);
    once(&log, 3 * 3);
    pool.release_burst(&mut out);
    leave(socket, &mut pool);
    drop((raw, aliases));
    // The indices of that one are spoilt: another for the other way.
    let (socket, mut raw, memories, _aliases) = lending(&mut pool);
    assert_eq!(raw.completion.pop_slice(&mut lent), 8);
    raw.fill.push_slice(&lent[..3]);
    let mut frames = burst(&mut pool, &(0..3).map(packet).collect::<Vec<_>>());
    let (sent, log) = watched(&memories, 0xff, || socket.deliver(&mut pool, &mut frames));
    assert_eq!((sent.sent, sent.full, sent.failed), (3, 0, 0), "{:?}", socket.statistics());
    once(&log, 3);
    leave(socket, &mut pool);
    pool.close().unwrap();
}
