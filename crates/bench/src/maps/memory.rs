//! What maps cost in memory: what ours have taken, beside what the kernel says of its own (`memlock` of a map's descriptor).
//!
//! Preallocated maps are measured as they are made, those that grow when they hold what they have room for. Both sides get the same keys.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_kernel::{Batch, KernelMap};
use xway_maps::{Env, Map};

use super::{Keys, MapError, Subject, failed};

/// How often in a row the kernel is given time to find memory.
const WAITS: usize = 100;

/// Bytes of one map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRow {
    /// The map.
    pub subject: Subject,
    /// Bytes of a value, on each CPU.
    pub value_size: u32,
    /// It takes memory when elements come (`BPF_F_NO_PREALLOC`).
    pub growing: bool,
    /// Elements that the memory is for: room of a preallocated map, what is in one that grows.
    pub elements: u32,
    /// Ours.
    pub ours: u64,
    /// The kernel's, when it was asked.
    pub kernel: Option<u64>,
}

impl MemoryRow {
    /// Ours over the kernel's.
    pub fn ratio(&self) -> Option<f64> {
        self.kernel.filter(|bytes| *bytes > 0).map(|bytes| self.ours as f64 / bytes as f64)
    }

    /// Bytes for each element: ours, the kernel's.
    pub fn each(&self) -> (f64, Option<f64>) {
        let each = |bytes: u64| bytes as f64 / f64::from(self.elements.max(1));
        (each(self.ours), self.kernel.map(each))
    }
}

/// One map, or two where the type can be preallocated and grow.
///
/// # Errors
/// [`MapError`]: a map cannot be made or filled.
pub fn measure(subject: Subject, value_size: u32, kernel: bool) -> Result<Vec<MemoryRow>, MapError> {
    let forms: &[bool] = match subject.map_type {
        MapType::LpmTrie => &[true],
        MapType::Hash | MapType::PercpuHash => &[false, true],
        _ => &[false],
    };
    forms.iter().map(|growing| one(subject, value_size, *growing, kernel)).collect()
}

fn one(subject: Subject, value_size: u32, growing: bool, kernel: bool) -> Result<MemoryRow, MapError> {
    let mut spec = MapSpec::new(subject.map_type, subject.key_size, value_size, subject.entries);
    if growing {
        spec.flags |= map_flags::NO_PREALLOC;
    }
    let keys = if growing { Keys::new(&subject).bytes } else { Vec::new() };
    let count = if growing { (keys.len() / subject.key_size as usize) as u32 } else { subject.entries };
    let ours = Map::create(&spec, &Env::with_cpus(xway_kernel::possible_cpus()))?;
    let values = vec![1; count as usize * if growing { ours.user_value_size() } else { 0 }];
    if growing {
        let done = ours.update_batch(&keys, &values, count, 0, 0);
        done.result.map_err(|_| MapError::Failed { op: "insert", failures: (count - done.count) as usize })?;
    }
    let theirs = match kernel {
        true => Some(of_kernel(&spec, keys, values, count)?),
        false => None,
    };
    Ok(MemoryRow { subject, value_size, growing, elements: count, ours: ours.memory().bytes, kernel: theirs })
}

/// What the kernel's map takes with these elements.
fn of_kernel(spec: &MapSpec, mut keys: Vec<u8>, mut values: Vec<u8>, count: u32) -> Result<u64, MapError> {
    let map = KernelMap::create("bench_memory", spec).map_err(|errno| failed("creating a map", errno))?;
    let mut left = if keys.is_empty() { 0 } else { count };
    let (of_key, of_value) = (keys.len() / count.max(1) as usize, values.len() / count.max(1) as usize);
    let (mut keys, mut values, mut waits) = (&mut keys[..], &mut values[..], 0);
    while left > 0 {
        let batch = Batch { in_batch: None, out_batch: &mut [], keys, values, count: left, elem_flags: 0, flags: 0 };
        let (done, filled) = map.update_batch(batch);
        match filled {
            Ok(()) => break,
            // Memory for values of each CPU is had in advance, a little at a time, by a worker of the kernel's that runs now and
            // then: insertions that follow one another at once get ahead of it.
            Err(Errno::ENOMEM) if waits < WAITS => {
                waits = if done == 0 { waits + 1 } else { 0 };
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(errno) => return Err(failed("filling a map", errno)),
        }
        keys = &mut keys[done as usize * of_key..];
        values = &mut values[done as usize * of_value..];
        left -= done;
    }
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok());
    line.ok_or_else(|| failed("asking what a map takes (fdinfo)", Errno::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_takes_what_its_elements_are_and_little_more() {
        let kernel = xway_testkit::Needs::of("bench::maps::memory::a_map_takes").root().kernel(6, 4).met();
        for (map_type, key_size, rows) in [
            (MapType::Array, 4, 1),
            (MapType::Hash, 16, 2),
            (MapType::LruHash, 16, 1),
            (MapType::LpmTrie, 8, 1),
            (MapType::PercpuHash, 16, 2),
        ] {
            let measured = measure(Subject { map_type, key_size, entries: 20_000 }, 8, kernel).unwrap();
            assert_eq!(measured.len(), rows, "{map_type:?}");
            for row in measured {
                let least = if map_type == MapType::Array { 8.0 } else { f64::from(key_size + 8) };
                assert!(row.each().0 >= least && row.each().0 < 200.0, "{row:?}");
                assert!(row.ratio().is_none_or(|ratio| ratio < 1.4), "{row:?}");
                assert_eq!((row.kernel.is_some(), row.elements <= 20_000), (kernel, true), "{row:?}");
            }
        }
    }

    /// What the kernel has at hand for values of each CPU is soon gone and comes back only between insertions.
    #[test]
    fn the_kernel_gets_time_for_values_of_each_cpu() {
        const NAME: &str = "bench::maps::memory::the_kernel_gets_time_for_values_of_each_cpu";
        let kernel = xway_testkit::Needs::of(NAME).root().kernel(6, 4).met();
        let subject = Subject { map_type: MapType::PercpuHash, key_size: 4, entries: 2000 };
        for row in measure(subject, 1024, kernel).unwrap() {
            assert_eq!(row.kernel.is_some(), kernel, "{row:?}");
        }
    }
}
