//! One socket against an application that does everything right, and one that does everything wrong.

mod common;

use std::sync::Arc;

use common::{CHUNK, Raw, burst, collected, copying, lending, over, pool};
use xway_engine::SocketTarget;
use xway_packet::ring::XdpDesc;
use xway_packet::{Burst, Pool, PoolConfig};
use xway_testkit::Rng;
use xway_xsk::{Group, Umem, Xsk};
use xway_xsk_client::Statistics;

fn packet(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at) as u8).collect()
}

fn desc(addr: u64, len: u32) -> XdpDesc {
    XdpDesc { addr, len, options: 0 }
}

#[test]
fn packets_are_copied_in_and_out_in_order() {
    let mut pool = pool(64);
    let (socket, mut raw, _umem) = copying(16, 16, 1);
    for round in 0..20 {
        let sent: Vec<_> = (0..8).map(|n| packet(round * 8 + n, 60 + n * 100)).collect();
        assert_eq!(raw.fill.push_slice(&(0..8).map(|n| n * u64::from(CHUNK) + 77).collect::<Vec<_>>()), 8);
        let mut frames = burst(&mut pool, &sent);
        assert_eq!(socket.deliver(&mut pool, &mut frames).sent, 8);
        let mut came = [desc(0, 0); 16];
        assert_eq!(raw.rx.pop_slice(&mut came), 8);
        for (n, desc) in (0..).zip(&came[..8]) {
            // In the chunk that FILL named, behind 256 bytes.
            assert_eq!((desc.addr, desc.len as usize), (n * u64::from(CHUNK) + 256, sent[n as usize].len()));
        }
        // Sent back as it came: it is what arrived, and each address comes through COMPLETION.
        assert_eq!(raw.tx.push_slice(&came[..8]), 8);
        assert_eq!(collected(&socket, &mut pool), sent);
        let mut back = [0; 16];
        assert_eq!(raw.completion.pop_slice(&mut back), 8);
        assert_eq!(back[..8], came[..8].iter().map(|d| d.addr).collect::<Vec<_>>());
    }
    assert_eq!(socket.statistics(), Statistics { tx_ring_empty_descs: 0, ..socket.statistics() });
    assert_eq!(socket.statistics().rx_dropped + socket.statistics().tx_invalid_descs, 0);
    pool.close().unwrap();
}

#[test]
fn what_does_not_fit_is_counted_as_linux_counts_it() {
    let mut pool = pool(64);
    let (socket, mut raw, _umem) = copying(16, 4, 1);
    let deliver = |pool: &mut Pool, len: usize, count: usize| {
        let mut frames = burst(pool, &vec![packet(1, len); count]);
        let sent = socket.deliver(pool, &mut frames);
        (sent.sent, sent.full, sent.failed)
    };
    assert_eq!(deliver(&mut pool, 60, 2), (0, 2, 0));
    assert_eq!(socket.statistics().rx_fill_ring_empty_descs, 2);
    // Longer than what a chunk has behind its headroom.
    raw.fill.push_slice(&[0]);
    assert_eq!(deliver(&mut pool, CHUNK as usize - 255, 1), (0, 0, 1));
    assert_eq!(socket.statistics().rx_dropped, 1);
    assert_eq!(deliver(&mut pool, CHUNK as usize - 256, 1), (1, 0, 0));
    // Addresses that cannot be are skipped.
    raw.fill.push_slice(&[u64::MAX, 16 * u64::from(CHUNK), 5]);
    assert_eq!(deliver(&mut pool, 60, 1), (1, 0, 0));
    assert_eq!(socket.statistics().rx_invalid_descs, 2);
    raw.fill.push_slice(&[0, 0, 0, 0]);
    assert_eq!(deliver(&mut pool, 60, 4), (2, 2, 0));
    assert_eq!(socket.statistics().rx_ring_full, 2);
    // Descriptors that cannot be: too short, across a chunk's end, outside, several parts.
    let chunk = u64::from(CHUNK);
    raw.tx.push_slice(&[
        desc(0, 13),
        desc(chunk - 20, 60),
        desc(16 * chunk, 60),
        XdpDesc { options: 1, ..desc(0, 60) },
    ]);
    assert!(collected(&socket, &mut pool).is_empty());
    assert_eq!(socket.statistics().tx_invalid_descs, 4);
    raw.tx.push_slice(&[desc(u64::MAX, u32::MAX), desc(1, u32::MAX), desc(chunk - 60, 60)]);
    assert_eq!(collected(&socket, &mut pool).len(), 1);
    assert_eq!(socket.statistics().tx_invalid_descs, 6);
    pool.close().unwrap();
}

#[test]
fn a_full_completion_ring_holds_packets_back() {
    let mut pool = pool(64);
    let (socket, mut raw, _umem) = copying(16, 4, 1);
    for _ in 0..3 {
        raw.tx.push_slice(&[desc(0, 60); 4]);
        assert_eq!(collected(&socket, &mut pool).len(), 4);
        raw.tx.push_slice(&[desc(0, 60); 4]);
        assert_eq!(collected(&socket, &mut pool).len(), 0);
        assert_eq!(raw.completion.pop_slice(&mut [0; 8]), 4);
        assert_eq!(collected(&socket, &mut pool).len(), 4);
        assert_eq!(raw.completion.pop_slice(&mut [0; 8]), 4);
    }
    pool.close().unwrap();
}

#[test]
fn without_copies_chunks_are_exchanged() {
    let mut pool = pool(64);
    let (socket, mut raw) = lending(&mut pool, 16, 16);
    let mut mine = vec![0; 16];
    assert_eq!(raw.completion.pop_slice(&mut mine), 16);
    for round in 0..50 {
        let sent: Vec<_> = (0..8).map(|n| packet(round * 8 + n, 60 + n * 100)).collect();
        raw.fill.push_slice(&mine.split_off(mine.len() - 8));
        let mut frames = burst(&mut pool, &sent);
        // What is written is where the frame is.
        let first = frames.frames()[0].packet().as_ptr();
        let start = pool.memory_range().0.as_ptr();
        assert_eq!(socket.deliver(&mut pool, &mut frames).sent, 8);
        let mut came = [desc(0, 0); 16];
        assert_eq!(raw.rx.pop_slice(&mut came), 8);
        assert_eq!(start.wrapping_add(came[0].addr as usize).cast_const(), first);
        assert_eq!(raw.tx.push_slice(&came[..8]), 8);
        assert_eq!(collected(&socket, &mut pool), sent);
        let mut back = [0; 16];
        assert_eq!(raw.completion.pop_slice(&mut back), 8);
        mine.extend(&back[..8]);
        let mut unique = mine.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), 16, "each chunk once");
    }
    assert_eq!(pool.counters().outstanding, 16);
    SocketTarget::close(&socket, &mut pool);
    assert!(socket.settled());
    pool.close().unwrap();
}

#[test]
fn without_copies_only_what_was_lent_comes_back() {
    let mut pool = pool(64);
    let (socket, mut raw) = lending(&mut pool, 4, 16);
    let mut mine = [0; 4];
    assert_eq!(raw.completion.pop_slice(&mut mine), 4);
    let chunk = u64::from(pool.config().chunk_size);
    let others = (0..64).rev().map(|n| n * chunk).find(|address| !mine.contains(address)).unwrap();
    // Chunks of others, twice the same one, places outside.
    raw.fill.push_slice(&[others, u64::MAX, 64 * chunk, mine[0], mine[0]]);
    let mut frames = burst(&mut pool, &vec![packet(1, 60); 2]);
    let sent = socket.deliver(&mut pool, &mut frames);
    assert_eq!((sent.sent, sent.full), (1, 1));
    assert_eq!(socket.statistics().rx_invalid_descs, 4);
    // Packets in chunks of others, in front of the room for packets, behind it, of no length. A chunk of its own is taken, and
    // another comes for it.
    let behind = mine[3] + chunk - 20;
    raw.tx.push_slice(&[
        desc(others + 256, 60),
        desc(mine[1], 60),
        desc(mine[2] + 256, 0),
        desc(behind, 60),
        desc(7, 60),
    ]);
    assert!(collected(&socket, &mut pool).is_empty());
    assert_eq!(socket.statistics().tx_invalid_descs, 5);
    let mut back = [0; 16];
    let count = raw.completion.pop_slice(&mut back);
    assert!((3..=4).contains(&count), "{count} chunks came for the three or four that were its own");
    SocketTarget::close(&socket, &mut pool);
    assert_eq!(pool.counters().outstanding, 0);
    pool.close().unwrap();
}

/// Random garbage in every ring and every index, while frames come and go: nothing crashes, and at the end every frame is home.
#[test]
fn garbage_harms_only_its_sender() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut pool = pool(128);
        let (copied, mut a, _umem) = copying(16, 8, 1);
        let (lent, mut b) = lending(&mut pool, 16, 8);
        for _ in 0..300 {
            for (socket, raw) in [(&copied, &mut a), (&lent, &mut b)] {
                cheat(&mut rng, socket, raw);
                let packets: Vec<_> = (0..rng.index(12)).map(|n| packet(n, 14 + rng.index(2000))).collect();
                let mut frames = burst(&mut pool, &packets);
                let count = frames.len() as u32;
                let sent = socket.deliver(&mut pool, &mut frames);
                assert_eq!(sent.sent + sent.full + sent.failed, count, "seed {seed}");
                assert!(frames.is_empty());
                socket.flush();
                for packet in collected(socket, &mut pool) {
                    assert!((14..=4096).contains(&packet.len()), "seed {seed}");
                }
                socket.may_sleep();
            }
            assert!(pool.counters().outstanding <= 16, "seed {seed}: lent chunks only");
        }
        let both = [copied.statistics(), lent.statistics()];
        assert!(both.iter().all(|s| s.refused_indices > 0 && s.tx_invalid_descs > 0), "seed {seed}: {both:?}");
        for socket in [&copied, &lent] {
            SocketTarget::close(socket, &mut pool);
            // Calls that come late find a closed socket.
            let mut frames = burst(&mut pool, &[packet(1, 60)]);
            assert_eq!(socket.deliver(&mut pool, &mut frames).sent, 0);
            assert!(collected(socket, &mut pool).is_empty());
        }
        assert_eq!(pool.counters().outstanding, 0, "seed {seed}");
        pool.close().unwrap();
    }
}

/// Rings full of what cannot be cost others the time of a burst, not that of a ring.
#[test]
fn garbage_is_looked_at_a_burst_at_a_time() {
    let mut pool = pool(256);
    let burst_size = Burst::MAX as u64;
    let (cheat, mut raw, _umem) = copying(16, 4096, 1);
    raw.tx.push_slice(&[desc(u64::MAX, 60); 4096]);
    for calls in 1..=3 {
        assert!(collected(&cheat, &mut pool).is_empty());
        assert_eq!(cheat.statistics().tx_invalid_descs, calls * burst_size);
    }
    raw.fill.push_slice(&[u64::MAX; 4095]);
    raw.fill.push_slice(&[0]);
    let mut calls = 0;
    loop {
        let mut frames = burst(&mut pool, &[packet(1, 60)]);
        if cheat.deliver(&mut pool, &mut frames).sent == 1 {
            break;
        }
        calls += 1;
        assert_eq!(cheat.statistics().rx_invalid_descs, calls * (burst_size + 1));
    }
    assert_eq!(calls, 4095 / (burst_size + 1));

    // Beside it, on the same queue, an honest one sends in every round.
    let group = Group::new(1, 0);
    let (honest, mut own, _umem) = copying(64, 64, 1);
    let (cheat, honest) = (std::sync::Arc::new(cheat), std::sync::Arc::new(honest));
    group.add(cheat.clone(), false);
    group.add(honest.clone(), false);
    for _ in 0..8 {
        while raw.tx.push(desc(u64::MAX, 60)).is_ok() {}
        own.completion.pop_slice(&mut [0; 64]);
        own.tx.push_slice(&[desc(0, 60); 32]);
        let before = cheat.statistics().tx_invalid_descs;
        let mut out = Burst::new();
        group.collect(&mut pool, &mut out);
        assert_eq!(out.len(), 32);
        assert!(cheat.statistics().tx_invalid_descs - before <= 3 * burst_size);
        pool.release_burst(&mut out);
    }
    group.close(&mut pool);
    pool.close().unwrap();
}

/// Something that no honest application does, or something that one does.
fn cheat(rng: &mut Rng, socket: &Xsk, raw: &mut Raw) {
    let address = |rng: &mut Rng| match rng.below(4) {
        0 => rng.u64(),
        1 => rng.below(1 << 20),
        _ => rng.below(16) * 4096 + 256,
    };
    match rng.below(6) {
        0 => drop(raw.fill.push_slice(&[address(rng), address(rng)])),
        1 => {
            let len = if rng.one_in(3) { rng.u32() } else { rng.below(2100) as u32 };
            let options = if rng.one_in(8) { rng.u32() } else { 0 };
            let _ = raw.tx.push(XdpDesc { addr: address(rng), len, options });
        }
        2 => drop(raw.rx.pop()),
        3 => drop(raw.completion.pop()),
        4 => scribble(rng, socket),
        _ => raw.rx.set_flags(rng.u32()),
    }
}

/// Writes over one of the index words of one of the rings, through the descriptor that the application has.
fn scribble(rng: &mut Rng, socket: &Xsk) {
    // The rings begin at pages 0, 1, 2 and 3 when they have 8 entries; producer at 0, consumer at 128, flags at 196.
    let at = rng.below(4) * 4096 + *rng.pick(&[0u64, 128, 196]);
    let word = if rng.one_in(2) { rng.u32() } else { rng.below(64) as u32 };
    let _ = rustix::io::pwrite(socket.rings_fd().unwrap(), &word.to_ne_bytes(), at);
}

/// A packet that changes while it is collected is one packet all the same: what programs see is a copy that nobody else reaches.
#[test]
fn a_packet_that_changes_is_read_once() {
    let mut pool = pool(64);
    let (socket, mut raw, umem) = copying(4, 8, 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let fd = umem.fd().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0u8;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                value = value.wrapping_add(1);
                rustix::io::pwrite(fd, &[value; 256], 0).unwrap();
            }
        });
        for _ in 0..2000 {
            raw.tx.push(desc(0, 256)).unwrap();
            let mut burst = Burst::new();
            socket.collect(&mut pool, &mut burst);
            let frame = &burst.frames()[0];
            let first = frame.packet().to_vec();
            std::hint::spin_loop();
            assert_eq!(frame.packet(), first, "the frame is ours alone");
            pool.release_burst(&mut burst);
            raw.completion.pop().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    pool.close().unwrap();
}

/// Eight sockets that always have something to send, with packets from 64 to 1,500 bytes, some in fits: equal shares of bytes.
#[test]
fn turns_to_send_are_fair_in_bytes() {
    let mut pool = pool(256);
    let group = Group::new(1, 0);
    let lens = [64, 64, 128, 256, 512, 1000, 1400, 1500];
    let mut sockets: Vec<_> = lens
        .iter()
        .map(|_| {
            let (socket, raw, _) = copying(64, 64, 1);
            let socket = std::sync::Arc::new(socket);
            group.add(socket.clone(), false);
            (socket, raw)
        })
        .collect();
    let mut sent = [0u64; 8];
    let mut round = |sockets: &mut Vec<(std::sync::Arc<Xsk>, Raw)>, sent: &mut [u64; 8]| {
        for (number, ((_, raw), len)) in sockets.iter_mut().zip(lens).enumerate() {
            raw.completion.pop_slice(&mut [0; 64]);
            // The chunk says whose packet it is by its length; two of a length share a line of the table below.
            while raw.tx.push(desc(number as u64 * u64::from(CHUNK), len)).is_ok() {}
        }
        let before: Vec<_> = sockets.iter_mut().map(|(_, raw)| raw.tx.pending()).collect();
        let mut burst = Burst::new();
        group.collect(&mut pool, &mut burst);
        assert!(burst.is_full(), "there is always enough");
        pool.release_burst(&mut burst);
        for (number, ((_, raw), before)) in sockets.iter_mut().zip(before).enumerate() {
            sent[number] += u64::from(before - raw.tx.pending()) * u64::from(lens[number]);
        }
    };
    for _ in 0..3000 {
        round(&mut sockets, &mut sent);
    }
    let jain = |x: &[f64]| x.iter().sum::<f64>().powi(2) / (x.len() as f64 * x.iter().map(|x| x * x).sum::<f64>());
    let index = jain(&sent.map(|bytes| bytes as f64));
    assert!(index >= 0.99, "Jain index {index}: {sent:?}");
    for (socket, _) in &sockets {
        SocketTarget::close(&**socket, &mut pool);
    }
    pool.close().unwrap();
}

/// Twice the weight, twice the bytes; who has nothing to send leaves its share to the others and has none saved up after it.
#[test]
fn shares_follow_weights_and_are_not_saved_up() {
    let mut pool = pool(256);
    let group = Group::new(1, 0);
    let mut sockets: Vec<_> = [1, 2]
        .map(|weight| {
            let (socket, raw, _) = copying(64, 64, weight);
            let socket = std::sync::Arc::new(socket);
            group.add(socket.clone(), false);
            (socket, raw)
        })
        .into();
    let mut count = |sockets: &mut Vec<(std::sync::Arc<Xsk>, Raw)>, busy: [bool; 2], rounds: usize| {
        let mut sent = [0; 2];
        for _ in 0..rounds {
            let mut before = [0; 2];
            for (number, (_, raw)) in sockets.iter_mut().enumerate() {
                raw.completion.pop_slice(&mut [0; 64]);
                while busy[number] && raw.tx.push(desc(0, 1000)).is_ok() {}
                before[number] = raw.tx.pending();
            }
            let mut burst = Burst::new();
            group.collect(&mut pool, &mut burst);
            pool.release_burst(&mut burst);
            for (number, (_, raw)) in sockets.iter_mut().enumerate() {
                sent[number] += before[number] - raw.tx.pending();
            }
        }
        sent
    };
    let [one, two] = count(&mut sockets, [true, true], 600);
    let ratio = f64::from(two) / f64::from(one);
    assert!((1.95..2.05).contains(&ratio), "{one} and {two}");
    let [_, alone] = count(&mut sockets, [false, true], 600);
    assert!(alone >= 600 * 60, "{alone}: nobody else wants to send");
    let [one, two] = count(&mut sockets, [true, true], 600);
    let ratio = f64::from(two) / f64::from(one);
    assert!((1.9..2.1).contains(&ratio), "{one} and {two} after a pause");
    sockets.clear();
}

#[test]
fn rings_of_impossible_sizes_are_refused() {
    for entries in [0, 3, 1 << 16] {
        let sizes = common::sizes(entries);
        let mode = xway_xsk::Mode::ZeroCopy(1);
        let shape = xway_xsk::Shape { bound: (1, 0), sizes, mode, weight: 1, snap: None };
        assert_eq!(Xsk::new(&shape).err(), Some(xway_abi::Errno::EINVAL));
    }
}

/// An application's own mapping of its memory.
fn mapped(umem: &Umem, chunks: u32) -> Vec<u8> {
    let mut bytes = vec![0; (chunks * CHUNK) as usize];
    let file = std::fs::File::from(umem.fd().unwrap().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    bytes
}

fn write(umem: &Umem, at: u64, bytes: &[u8]) {
    let file = std::fs::File::from(umem.fd().unwrap().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
}

/// What an application asks for in front of a packet: checksums are completed, what no port can do is refused and counted, what makes
/// no sense is invalid.
#[test]
fn requests_in_front_of_packets_are_met_or_refused_by_name() {
    let mut pool = pool(64);
    let umem = Arc::new(Umem::create(16, CHUNK, 0).unwrap().with_tx_metadata(32).unwrap());
    let (socket, mut raw) = over(&umem, 16, 1, None);
    let ask = |chunk: u64, flags: u64, start: u16, offset: u16| {
        let at = chunk * u64::from(CHUNK) + 256;
        let mut metadata = flags.to_ne_bytes().to_vec();
        metadata.extend(start.to_ne_bytes());
        metadata.extend(offset.to_ne_bytes());
        metadata.resize(24, 0xff);
        write(&umem, at - 32, &metadata);
        write(&umem, at, &packet(chunk as usize, 100));
        XdpDesc { options: 2, ..desc(at, 100) }
    };
    let (checksum, launch, stamp) = (2, 4, 1);
    let plain = desc(256, 100);
    write(&umem, 256, &packet(0, 100));
    let descs = [
        plain,
        ask(1, checksum, 34, 16),
        ask(2, launch, 0, 0),
        ask(3, stamp, 0, 0),
        ask(4, checksum, 84, 15),
        ask(5, 0, 9999, 0),
        ask(6, 8, 0, 0),
        // No room in front of it in its chunk.
        XdpDesc { options: 2, ..desc(7 * u64::from(CHUNK) + 31, 60) },
        ask(8, checksum, 84, 14),
    ];
    assert_eq!(raw.tx.push_slice(&descs), descs.len());
    let sent = collected(&socket, &mut pool);
    let summed = |number: usize, start: usize, offset: usize| {
        let mut packet = packet(number, 100);
        xway_packet::offload::complete_checksum(&mut packet, start, offset);
        packet
    };
    assert_eq!(sent, [packet(0, 100), summed(1, 34, 16), packet(5, 100), summed(8, 84, 14)]);
    assert_ne!(sent[1], packet(1, 100));
    let counts = socket.statistics();
    assert_eq!((counts.tx_unsupported, counts.tx_invalid_descs), (2, 3));
    // Every chunk whose descriptor could be is the application's again.
    let mut back = [0; 16];
    assert_eq!(raw.completion.pop_slice(&mut back), 6);
    assert_eq!(mapped(&umem, 16)[256..356], packet(0, 100)[..]);
    // A memory that was not registered for it has none.
    let (socket, mut raw, umem) = copying(16, 16, 1);
    write(&umem, 256, &packet(0, 100));
    raw.tx.push_slice(&[XdpDesc { options: 2, ..desc(256, 100) }]);
    assert!(collected(&socket, &mut pool).is_empty());
    assert_eq!(socket.statistics().tx_invalid_descs, 1);
    pool.close().unwrap();
}

/// Who is not trusted may get headers only, and who does not keep up sees it without asking.
#[test]
fn headers_only_and_word_of_what_was_lost() {
    let mut pool = pool(64);
    let umem = Arc::new(Umem::create(16, CHUNK, 0).unwrap());
    let (socket, mut raw) = over(&umem, 8, 1, Some(54));
    assert_eq!(raw.fill.push_slice(&[0, u64::from(CHUNK)]), 2);
    // One shorter, one longer, and three that find no chunk.
    let sent: Vec<_> = [40, 1500, 60, 60, 60].iter().map(|&len| packet(len, len)).collect();
    let mut frames = burst(&mut pool, &sent);
    let given = socket.deliver(&mut pool, &mut frames);
    assert_eq!((given.sent, given.full), (2, 3));
    let mut came = [desc(0, 0); 8];
    assert_eq!(raw.rx.pop_slice(&mut came), 2);
    assert_eq!((came[0].len, came[1].len), (40, 54));
    let memory = mapped(&umem, 2);
    let second = CHUNK as usize + 256;
    assert_eq!(memory[second..second + 54], sent[1][..54]);
    assert_eq!(memory[second + 54..second + 1500], [0; 1446]);
    assert_eq!(raw.completion.flags(), 3, "told beside the ring");
    let mut frames = burst(&mut pool, &sent[..2]);
    socket.deliver(&mut pool, &mut frames);
    assert_eq!(raw.completion.flags(), 5);
    pool.close().unwrap();
}

/// A packet of several buffers comes in one piece where it fits a chunk, and is counted where it does not.
#[test]
fn packets_of_several_buffers_are_one_where_they_fit() {
    let mut pool = Pool::new(PoolConfig::compact(64)).unwrap();
    let umem = Arc::new(Umem::create(16, 4096, 0).unwrap());
    let (socket, mut raw) = over(&umem, 8, 1, None);
    assert_eq!(raw.fill.push_slice(&[0, 4096]), 2);
    let mut frames = Burst::new();
    for len in [3000, 3841] {
        frames.push(pool.frame_of(&packet(len, len)).unwrap()).unwrap();
    }
    let given = socket.deliver(&mut pool, &mut frames);
    assert_eq!((given.sent, given.failed, given.errno), (1, 1, Some(xway_abi::Errno::ENOSPC)));
    let mut came = [desc(0, 0); 8];
    assert_eq!((raw.rx.pop_slice(&mut came), came[0].len), (1, 3000));
    let mut bytes = vec![0; 3000];
    let file = std::fs::File::from(umem.fd().unwrap().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 256).unwrap();
    assert_eq!(bytes, packet(3000, 3000));
    assert_eq!(pool.counters().outstanding, 0);
    pool.close().unwrap();
}
