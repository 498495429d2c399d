//! Perf event records: the kernel's as bpftool reads them, ours, of each engine, from a reader on the map.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_kernel::{KernelObject, TestInput, possible_cpus};
use xway_maps::PerfRecord;
use xway_object::{LoadOptions, Object};
use xway_testkit::{Needs, Rng, clang};
use xway_trial::{ENGINES, Trial};
use xway_verifier::Config;
use xway_vm::{Instance, SystemHost, TestRun};

/// The first bytes of the packet say how much of a buffer and of the packet is sent, and with which flags.
const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); __uint(key_size, 4); __uint(value_size, 4); } events SEC(".maps");
SEC("xdp") int sender(struct xdp_md *ctx)
{
	unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	unsigned char buffer[64] = {};
	if (p + 16 > end)
		return 99;
	__builtin_memcpy(buffer, p, 16);
	__u64 length = *(__u16 *)(buffer + 2), flags = buffer[1] == 0 ? BPF_F_CURRENT_CPU : buffer[1] == 1 ? 0 : 12345;
	if (buffer[1] == 3)
		flags = BPF_F_CURRENT_CPU | 1ULL << 55;
	return -bpf_perf_event_output(ctx, &events, flags | length << 32, buffer, 1 + (buffer[0] & 63));
}
char _license[] SEC("license") = "GPL";
"#;

#[test]
fn perf_events() {
    const NAME: &str = "testkit::differential::perf_events";
    if !Needs::of(NAME).root().command("bpftool").kernel(6, 3).clang().met() {
        return;
    }
    // The folder is there without it.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if !mounts.lines().any(|mount| mount.contains(" /sys/fs/bpf bpf ")) {
        return xway_testkit::skip(NAME, "a BPF file system at /sys/fs/bpf");
    }
    xway_testkit::stay_on_cpu_0();
    let bytes = clang::compile_text("perf_events", SOURCE, &["-mcpu=v3"]).unwrap();
    let object = Arc::new(Object::parse(&bytes, &LoadOptions::of_running_kernel()).unwrap());
    let mut rng = Rng::new(11);
    let packets: Vec<Vec<u8>> = (0..200)
        .map(|_| {
            let len = 16 + rng.below(200) as usize;
            let mut packet: Vec<u8> = (0..len).map(|_| rng.u32() as u8).collect();
            packet[1] = if rng.one_in(4) { rng.below(4) as u8 } else { 0 };
            // Beyond the packet now and then.
            let wanted = if rng.one_in(3) { 0 } else { rng.below(len as u64 + 4) as u16 };
            packet[2..4].copy_from_slice(&wanted.to_ne_bytes());
            packet
        })
        .collect();

    let kernel = KernelObject::load(&object).unwrap();
    let program = kernel.programs[0].as_ref().unwrap_or_else(|e| panic!("{e}"));
    let pin = format!("/sys/fs/bpf/xway-perf-{}", std::process::id());
    xway_kernel::pin(kernel.maps[0].as_fd(), pin.as_ref()).unwrap();
    let mut reader = Command::new("bpftool")
        .args(["-j", "map", "event_pipe", "pinned", &pin])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It is there when an event finds a place; those probes are the first records.
    let deadline = Instant::now() + Duration::from_secs(10);
    let probe = [&[0u8; 4][..], &[0xee; 12]].concat();
    while program.test_run(&TestInput::packet(&probe)).unwrap().ret != 0 {
        assert!(Instant::now() < deadline, "bpftool does not read");
        std::thread::sleep(Duration::from_millis(10));
    }
    let theirs: Vec<u32> = packets.iter().map(|p| program.test_run(&TestInput::packet(p)).unwrap().ret).collect();
    std::thread::sleep(Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&reader);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut text = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    reader.wait().unwrap();
    std::fs::remove_file(&pin).unwrap();
    let records: Vec<Vec<u8>> = text
        .split("\"data\":[")
        .skip(2)
        .map(|r| r.split(']').next().unwrap().split(',').map(|n| n.trim().parse().unwrap()).collect())
        .collect();

    assert!(theirs.iter().filter(|r| **r == 0).count() > 50 && theirs.iter().filter(|r| **r != 0).count() > 20);

    for engine in ENGINES {
        let instance = Instance::verified(object.clone(), possible_cpus(), Config::default()).unwrap();
        let mut readers = instance.maps()[0].perf().unwrap().open_all(possible_cpus(), 1 << 20).unwrap();
        let (trial, host) = (Trial::of(&instance, 0, engine), SystemHost::new());
        let run = |packet: &Vec<u8>| trial.test_run(&TestRun::new(packet), &host).unwrap().retval;
        assert_eq!(packets.iter().map(run).collect::<Vec<_>>(), theirs, "{engine:?}");
        let mut at = 0;
        readers[0].read(usize::MAX, &mut |record| {
            let PerfRecord::Sample(bytes) = record else { panic!("{record:?}") };
            // The kernel's length is rounded up, so that it ends on 8 bytes with its own four.
            assert_eq!(records[at].len(), (bytes.len() + 4).next_multiple_of(8) - 4, "{engine:?}, record {at}");
            assert_eq!(records[at][..bytes.len()], *bytes, "{engine:?}, record {at}");
            at += 1;
        });
        assert_eq!(at, records.len(), "{engine:?}");
    }
}
