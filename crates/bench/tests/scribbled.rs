//! Compiled programs over packets that another process writes into while they run: an application that has a queue's memory without
//! copies can do that. It makes verdicts that mean nothing; it must not make a program step out of what the verifier has granted.
//!
//! What a program has checked it may not read a second time. The program here takes a byte of the packet, checks that it is at most 40,
//! and uses it as an offset into a map's value of 64 bytes: where the byte was read again, the bytes of the value behind the 40th would
//! be written to. It takes an offset into the packet, too, up to its end, and reads and writes there. Behind the last chunk of the
//! packet memory and the map lie other things of this process: a wild access ends it, or shows in the map.

#[cfg(target_arch = "x86_64")]
#[path = "../../xsk/tests/watched/mod.rs"]
mod watched;

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_abi::{MapSpec, MapType};
use xway_engine::{Limits, Linked, LoadedProgram, Stop, Worker, WorkerConfig};
use xway_maps::{Env, Map};
use xway_object::MapDef;
use xway_packet::{Backing, Pages, Pool, PoolConfig};
use xway_port_sim::{Pattern, SimPort, Sink, Traffic};
use xway_verifier::{Config, MapsView};
use xway_vm::Program;

/// The greatest byte that the program lets through, and the size of its map's value.
const ALLOWED: usize = 40;
const VALUE: u32 = 64;
/// Bytes of packet memory for each packet.
const CHUNK: u32 = 4096;

const TEXT: &str = "
r6 = *(u32 *)(r1 + 0)
r7 = *(u32 *)(r1 + 4)
r2 = r6
r2 += 64
if r2 > r7 goto out
r8 = *(u8 *)(r6 + 0)
if r8 > 40 goto far
r2 = 0
*(u32 *)(r10 - 4) = r2
r2 = r10
r2 += -4
r1 = map[idx:0]
call 1
if r0 == 0 goto out
r0 += r8
r1 = 1
*(u8 *)(r0 + 0) = r1
far:
r3 = *(u16 *)(r6 + 2)
r4 = r6
r4 += r3
r5 = r4
r5 += 8
if r5 > r7 goto out
r0 = *(u64 *)(r4 + 0)
*(u32 *)(r4 + 4) = r0
out:
r0 = 1
exit
";

/// Four bytes side by side: two are put together and used as an offset, of which one is checked; two are put together and stored.
#[cfg(target_arch = "x86_64")]
const PAIR: &str = "
r6 = *(u32 *)(r1 + 0)
r7 = *(u32 *)(r1 + 4)
r2 = r6
r2 += 64
if r2 > r7 goto out
r9 = *(u8 *)(r6 + 2)
r8 = *(u8 *)(r6 + 3)
r4 = *(u8 *)(r6 + 4)
r5 = *(u8 *)(r6 + 5)
r5 <<= 8
r4 |= r5
*(u16 *)(r6 + 8) = r4
if r9 > 1 goto out
r2 = 0
*(u32 *)(r10 - 4) = r2
r2 = r10
r2 += -4
r1 = map[idx:0]
call 1
if r0 == 0 goto out
r9 <<= 8
r8 |= r9
r0 += r8
r1 = 1
*(u8 *)(r0 + 0) = r1
out:
r0 = 1
exit
";

/// A look-up by 72 bytes of the packet, which is a call; their checksum by another one, over as many bytes as the packet has; and what was
/// found out stored by a key of its own, with a value that lies in the packet.
#[cfg(target_arch = "x86_64")]
const KEY: &str = "
r6 = *(u32 *)(r1 + 0)
r7 = *(u32 *)(r1 + 4)
r2 = r6
r2 += 128
if r2 > r7 goto out
r8 = 0
r1 = map[idx:0]
r2 = r6
call 1
if r0 == 0 goto none
r8 = *(u32 *)(r0 + 0)
none:
r4 = r7
r4 -= r6
r4 -= 72
r4 &= 32
r3 = r6
r3 += 72
r1 = 0
r2 = 0
r5 = 0
call 28
r8 <<= 32
r8 |= r0
r2 = 0
*(u64 *)(r10 - 72) = r8
*(u64 *)(r10 - 64) = r2
*(u64 *)(r10 - 56) = r2
*(u64 *)(r10 - 48) = r2
*(u64 *)(r10 - 40) = r2
*(u64 *)(r10 - 32) = r2
*(u64 *)(r10 - 24) = r2
*(u64 *)(r10 - 16) = r2
*(u64 *)(r10 - 8) = r2
r1 = map[idx:0]
r2 = r10
r2 += -72
r3 = r6
r3 += 120
r4 = 0
call 2
out:
r0 = 1
exit
";

/// The map, the program over it, compiled, and memory for packets that another process can have.
fn stand(text: &str, spec: MapSpec) -> (Arc<Map>, Linked, Pool) {
    let map = Map::create(&spec, &Env::default()).unwrap();
    let insns = xway_isa::assemble(text).unwrap();
    let image = xway_object::Program { name: "twice".into(), section: "xdp".into(), insns, ..Default::default() };
    let defs = [MapDef::new("seen", spec)];
    let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
    let program = Program::verify(&image, std::slice::from_ref(&map), &view, &Config::default());
    let linked = Linked::new(program.unwrap_or_else(|e| panic!("{e}")));
    assert_eq!(linked.choice().name(), "jit", "{:?}", linked.choice().reason);
    // Few frames, so that each is written to often; pages of the ordinary size, so that the memory is as long as it says.
    let shape = PoolConfig { backing: Backing::Memfd, pages: Pages::Base, chunk_size: CHUNK, ..PoolConfig::new(128) };
    (map, linked, Pool::new(shape).unwrap())
}

/// Where the other process finds the memory: a descriptor of this one, and how many bytes.
const WORDS: &str = "XWAY_SCRIBBLE";

fn scribbler(memory: &File, len: u64) -> Child {
    let words = format!("/proc/{}/fd/{} {len}", std::process::id(), memory.as_raw_fd());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process"])
        .env(WORDS, words)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Writes what is different each time over all packets in the memory until it is killed, or for a minute.
#[test]
fn the_other_process() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let (path, len) = words.split_once(' ').unwrap();
    let (memory, len) = (OpenOptions::new().write(true).open(path).unwrap(), len.parse::<u64>().unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    let (mut random, mut bytes) = (1u64, [0u8; 768]);
    while Instant::now() < until {
        for chunk in (0..len).step_by(CHUNK as usize) {
            for byte in &mut bytes {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Small numbers and great ones in turn, so that checks are passed and failed.
                *byte = (random >> 33) as u8 & if random >> 60 & 1 == 0 { 0x3f } else { 0xff };
            }
            // Packets begin behind their headroom; the program looks at their first bytes.
            if memory.write_all_at(&bytes, chunk + 128).is_err() {
                return;
            }
        }
    }
}

/// The program over packets of which each byte is another one behind the instruction that read it, and the accesses to them. Left out are
/// those to the last packet's first byte: how near packets are is measured now and then, by two loads from there whose bytes nobody
/// uses.
#[cfg(target_arch = "x86_64")]
fn over_changing(linked: &Linked, mut pool: Pool, packets: &[[u8; 128]]) -> Vec<watched::Access> {
    use xway_engine::Results;
    use xway_maps::Guard;
    use xway_packet::{Burst, SharedMemory};

    let (start, len) = pool.memory_range();
    let alias = SharedMemory::map(pool.memory_fd().unwrap(), 0, len).unwrap();
    let memory = watched::Memory { start, alias: alias.start(), len };
    let mut burst = Burst::new();
    for packet in packets {
        let mut frame = pool.alloc().unwrap();
        frame.fill(packet).unwrap();
        burst.push(frame).unwrap();
    }
    let (mut executor, mut results, guard) = (linked.executor(0), Results::default(), Guard::pin());
    let measured = burst.frames()[packets.len() - 1].packet().as_ptr().addr() - start.addr().get();
    let run = || executor.run(burst.frames_mut(), &guard, &mut results);
    // Another number, and no wild one: whoever read it again would show in the map instead of ending the process.
    let ((), mut log) = watched::watched(&[memory], 7, run);
    log.retain(|access| access.at != measured);
    pool.release_burst(&mut burst);
    pool.close().unwrap();
    log
}

/// The same without chance: each byte is another one behind the instruction that read it.
#[cfg(target_arch = "x86_64")]
#[test]
fn what_was_read_is_used_however_it_changes() {
    if std::env::var_os(WORDS).is_some() {
        return;
    }
    let (map, linked, pool) = stand(TEXT, MapSpec::new(MapType::Array, 4, VALUE, 1));
    // Offsets that are checked, up to the last one that is let through, and one behind it.
    let first = [0u8, 8, 16, 24, 32, 40, 48];
    let packets = first.map(|byte| {
        let mut packet = [0x55; 128];
        (packet[0], packet[2], packet[3]) = (byte, 24, 0);
        packet
    });
    let log = over_changing(&linked, pool, &packets);
    let mut seen = [0; VALUE as usize];
    map.lookup(&[0; 4], &mut seen, 0).unwrap();
    let expected: Vec<usize> = first.iter().map(|byte| usize::from(*byte)).filter(|byte| *byte <= ALLOWED).collect();
    let marked: Vec<usize> = (0..seen.len()).filter(|at| seen[*at] != 0).collect();
    assert_eq!(marked, expected);
    assert_eq!(watched::read_again(&log), []);
    // A byte (but for the last packet's, see above), an offset and eight bytes there; and a store.
    let reads = log.iter().filter(|access| !access.write).count();
    assert_eq!((reads, log.len() - reads), (3 * first.len() - 1, first.len()), "{log:?}");
}

/// A byte that is checked and used as part of a wider number is one and the same.
#[cfg(target_arch = "x86_64")]
#[test]
fn bytes_that_are_put_together_are_those_that_were_checked() {
    if std::env::var_os(WORDS).is_some() {
        return;
    }
    // Whoever reads again what has changed since writes into one of the values behind the first.
    let (map, linked, pool) = stand(PAIR, MapSpec::new(MapType::Array, 4, 512, 8));
    let packets = [[0u8, 9], [1, 9], [1, 200], [2, 5]].map(|pair| {
        let mut packet = [0x55; 128];
        packet[2..4].copy_from_slice(&pair);
        packet
    });
    over_changing(&linked, pool, &packets);
    let value = |key: u32| {
        let mut value = [0; 512];
        map.lookup(&key.to_ne_bytes(), &mut value, 0).unwrap();
        value
    };
    let marked: Vec<usize> = (0..512).filter(|at| value(0)[*at] != 0).collect();
    assert_eq!(marked, [9, 256 + 9, 256 + 200]);
    assert!((1..8).all(|key| value(key) == [0; 512]), "written behind the value");
}

/// Helpers read a packet's bytes once too: a key is found though each of its bytes is another one as soon as it was read, sums and values
/// are of what was there first.
#[cfg(target_arch = "x86_64")]
#[test]
fn helpers_read_the_packet_once() {
    if std::env::var_os(WORDS).is_some() {
        return;
    }
    let (map, linked, pool) = stand(KEY, MapSpec::new(MapType::Hash, 72, 4, 8));
    let known: [u8; 72] = std::array::from_fn(|n| n as u8);
    map.update(&known, &9u32.to_ne_bytes(), 0).unwrap();
    let mut packets = [[0x11; 128], [0x22; 128]];
    packets[0][..72].copy_from_slice(&known);
    packets[0][120..124].copy_from_slice(&[1, 2, 3, 4]);
    let log = over_changing(&linked, pool, &packets);
    assert_eq!(watched::read_again(&log), []);
    // 72 of 128 bytes are the key, 32 of the rest are added up, and four more are the value.
    for (found, packet) in [(9u64, packets[0]), (0, packets[1])] {
        let sum = xway_vm::machine::csum_diff(&[], &packet[72..72 + 32], 0);
        let mut key = [0; 72];
        key[..8].copy_from_slice(&(found << 32 | sum).to_ne_bytes());
        let mut value = [0; 4];
        map.lookup(&key, &mut value, 0).unwrap_or_else(|e| panic!("{found}: {e}"));
        assert_eq!(value, packet[120..124], "{found}");
    }
}

#[test]
fn what_was_checked_is_not_read_again() {
    if std::env::var_os(WORDS).is_some() {
        return;
    }
    let (map, linked, pool) = stand(TEXT, MapSpec::new(MapType::Array, 4, VALUE, 1));
    let (memory, len) = (File::from(pool.memory_fd().unwrap().try_clone_to_owned().unwrap()), pool.memory_range().1);
    let mut other = scribbler(&memory, len as u64);
    let stop = Stop::new().unwrap();
    let mut config = WorkerConfig::new(stop.clone());
    config.limits = Limits { count: None, timeout: Some(Duration::from_secs(60)) };
    let traffic = Traffic::udp(64, 512, Pattern::Uniform, 1).unwrap();
    let worked = config.live.clone();
    let seen = || {
        let mut value = [0; VALUE as usize];
        map.lookup(&[0; 4], &mut value, 0).unwrap();
        value
    };
    let report = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let port = SimPort::generated_queues("in", 10, Arc::new(traffic), None, 1, Sink::default());
            Worker::new(vec![Box::new(port)], linked.executor(0), pool, config).run()
        });
        // The traffic's own first byte is one of these; that others come says that the other process is at work.
        let deadline = Instant::now() + Duration::from_secs(50);
        while seen()[..=ALLOWED].contains(&0) || worked.rx() < 2_000_000 {
            assert!(Instant::now() < deadline, "{} packets: {:?}", worked.rx(), seen());
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.ask();
        worker.join().unwrap()
    });
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!((report.counters.balance(), report.leak, report.counters.exceptions), (Ok(()), None, 0));
    assert_eq!(seen()[ALLOWED + 1..], [0; VALUE as usize - ALLOWED - 1], "a byte was checked and then read again");
}
