//! Facts that the kernel publishes as files.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};

use rustix::time::ClockId;

use super::Task;

/// Ticks a second (`CONFIG_HZ`). From the kernel's configuration where it is published; else 250, most distributions'
/// choice.
pub(super) fn kernel_hz() -> u64 {
    const DEFAULT: u64 = 250;
    // One answer for all threads, which count the same ticks.
    static HZ: OnceLock<u64> = OnceLock::new();
    *HZ.get_or_init(|| hz_from_config().or_else(hz_from_timer_list).unwrap_or(DEFAULT))
}

fn hz_from_config() -> Option<u64> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let text = fs::read_to_string(format!("/boot/config-{}", release.trim())).ok();
    let from_config =
        |text: String| text.lines().find_map(|l| l.strip_prefix("CONFIG_HZ=")).and_then(|v| v.trim().parse().ok());
    text.and_then(from_config)
}

/// `/proc/timer_list` gives a tick's length to root.
fn hz_from_timer_list() -> Option<u64> {
    let text = fs::read_to_string("/proc/timer_list").ok()?;
    // jiffies counts from 2^32 - 300 * HZ; with the time since boot that determines HZ.
    let number = |key: &str| -> Option<u64> {
        let line = text.lines().find(|l| l.trim_start().starts_with(key))?;
        line.split_whitespace().find_map(|w| w.parse().ok())
    };
    let (jiffies, now) = (number("jiffies:")?, text.lines().find_map(|l| l.strip_prefix("now at "))?);
    let now: u64 = now.split_whitespace().next()?.parse().ok()?;
    let seconds = now / 1_000_000_000;
    [100, 250, 300, 1000]
        .into_iter()
        .min_by_key(|hz| ((1u64 << 32) - 300 * hz).wrapping_add(seconds * hz).abs_diff(jiffies))
}

/// The NUMA node of the CPU that the thread runs on; 0 where that cannot be said. Cost: no system call where the CPU is the one that was
/// asked about last.
pub(super) fn numa_node() -> i32 {
    thread_local! {
        static LAST: Cell<Option<(usize, i32)>> = const { Cell::new(None) };
    }
    let cpu = rustix::thread::sched_getcpu();
    match LAST.get() {
        Some((last, node)) if last == cpu => node,
        _ => {
            let node = xway_numa::of_cpu(cpu).map_or(0, |node| node as i32);
            LAST.set(Some((cpu, node)));
            node
        }
    }
}

/// Nanoseconds for which a thread's name and its control group are taken to be what they were.
const FRESH_NS: u64 = 1_000_000_000;

/// The calling thread; its name and its control group as of the last second. Cost: system calls once a second.
pub(super) fn task() -> Arc<Task> {
    thread_local! {
        static KNOWN: RefCell<Option<(u64, Arc<Task>)>> = const { RefCell::new(None) };
    }
    let now = super::system::clock(ClockId::MonotonicCoarse);
    KNOWN.with_borrow_mut(|known| match known {
        Some((since, task)) if now.wrapping_sub(*since) < FRESH_NS => task.clone(),
        _ => known.insert((now, Arc::new(asked()))).1.clone(),
    })
}

fn asked() -> Task {
    let mut comm = [0; 16];
    if let Ok(name) = fs::read("/proc/thread-self/comm") {
        let name = name.strip_suffix(b"\n").unwrap_or(&name);
        let len = name.len().min(15);
        comm[..len].copy_from_slice(&name[..len]);
    }
    let ns = fs::metadata("/proc/self/ns/pid").map_or((0, 0), |m| (m.dev(), m.ino()));
    Task {
        pid: rustix::thread::gettid().as_raw_nonzero().get() as u32,
        tgid: rustix::process::getpid().as_raw_nonzero().get() as u32,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        comm,
        cgroup_ids: cgroup_ids(),
        pid_ns: ns,
    }
}

/// Ids of the version-2 control group and its ancestors, the root first: the inode numbers of their directories.
fn cgroup_ids() -> Vec<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(path) = text.lines().find_map(|l| l.strip_prefix("0::")) else { return vec![] };
    let mut dir = std::path::PathBuf::from("/sys/fs/cgroup");
    if !dir.join("cgroup.controllers").exists() {
        dir.push("unified");
    }
    let parts = path.split('/').filter(|p| !p.is_empty());
    let mut ids: Vec<u64> = fs::metadata(&dir).map(|m| m.ino()).into_iter().collect();
    for part in parts {
        dir.push(part);
        match fs::metadata(&dir) {
            Ok(m) => ids.push(m.ino()),
            Err(_) => break,
        }
    }
    ids
}
