//! The kernel's side: maps, the four drivers, and passes over the ring inside test-runs.

use std::collections::BTreeMap;

use xway_abi::{Errno, MapType};
use xway_kernel::{Batch, KernelError, KernelMap, KernelObject, TestInput, possible_cpus};
use xway_object::{Object, Program};

use crate::driver::{self, Callee, DriverError, HISTOGRAM_AT, Loop, RING_MAP, STATE_LEN, STATE_MAP};
use crate::fill::{Content, Maps};
use crate::packet::Renew;
use crate::{Histogram, Outcome, Shape};

/// Why the kernel's side cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum KernelSideError {
    /// It cannot be driven.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernel refused maps or programs.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A map could not be written.
    #[error("map {map}: {errno} ({})", errno.text())]
    Map {
        /// Its name.
        map: String,
        /// Why.
        errno: Errno,
    },
    /// A test-run did not start.
    #[error("test run: {errno} ({})", errno.text())]
    TestRun {
        /// Why.
        errno: Errno,
    },
}

/// A program in the kernel, driven.
pub struct KernelSide {
    object: Object,
    loaded: KernelObject,
    template: Vec<u8>,
    program: String,
    runs: u32,
    cpu: u32,
}

impl KernelSide {
    /// Loads the drivers of a program and the ring. The thread must be pinned to `cpu`.
    pub fn load(object: &Object, program: &Program, shape: &Shape<'_>, cpu: u32) -> Result<Self, KernelSideError> {
        let how = Loop { runs: shape.runs, ring_len: shape.ring.len(), renew: shape.renew, template: shape.template };
        let object = driver::driven(object, program, how)?;
        let wanted = |p: &Program| {
            let is_driver = Callee::ALL.iter().any(|c| c.driver_name() == p.name);
            is_driver || p.name == program.name || object.maps.iter().any(|m| m.spec.map_type == MapType::ProgArray)
        };
        let loaded = KernelObject::load_some(&object, wanted)?;
        let side = KernelSide {
            loaded,
            template: shape.template.to_vec(),
            program: program.name.clone(),
            runs: shape.runs,
            cpu,
            object: object.clone(),
        };
        for callee in Callee::ALL {
            side.prog(callee.driver_name())?;
        }
        side.map(RING_MAP).update(&[0; 4], &shape.ring.bytes, 0).map_err(|errno| side.map_error(RING_MAP, errno))?;
        Ok(side)
    }

    /// Runs the driver until it has gone through about `packets` packets of the ring: nanoseconds for each, and how many
    /// there were.
    pub fn pass(&self, callee: Callee, packets: u32) -> Result<(f64, u32), KernelSideError> {
        let repeat = packets.div_ceil(self.runs).max(1);
        let input = TestInput { repeat, ..TestInput::packet(&self.template) };
        let out =
            self.prog(callee.driver_name())?.test_run(&input).map_err(|errno| KernelSideError::TestRun { errno })?;
        Ok((out.duration.as_nanos() as f64 / f64::from(self.runs), repeat * self.runs))
    }

    /// Through so many packets of the ring, from its first one on, counting verdicts.
    pub fn histogram(&self, packets: u32) -> Result<Histogram, KernelSideError> {
        let state = self.map(STATE_MAP);
        state.update(&[0; 4], &[0; STATE_LEN], 0).map_err(|errno| self.map_error(STATE_MAP, errno))?;
        self.pass(Callee::Counted, packets)?;
        let bytes = state.get(&[0; 4]).map_err(|errno| self.map_error(STATE_MAP, errno))?;
        let counters = bytes[HISTOGRAM_AT..].as_chunks::<8>().0;
        Ok(std::array::from_fn(|n| u64::from_ne_bytes(counters[n])))
    }

    /// One packet through the program itself, without a driver.
    pub fn one(&self, packet: &[u8]) -> Result<Outcome, KernelSideError> {
        let out = self
            .prog(&self.program)?
            .test_run(&TestInput::packet(packet))
            .map_err(|errno| KernelSideError::TestRun { errno })?;
        Ok(Outcome { ret: out.ret, packet: out.data })
    }

    fn prog(&self, name: &str) -> Result<&xway_kernel::KernelProg, KernelSideError> {
        let index = self.object.programs.iter().position(|p| p.name == name).expect("a program of the driven object");
        self.loaded.programs[index].as_ref().map_err(|e| KernelSideError::Kernel(e.clone()))
    }

    fn map(&self, name: &str) -> &KernelMap {
        self.loaded.map(&self.object, name).expect("a map of the driven object")
    }

    fn map_error(&self, map: &str, errno: Errno) -> KernelSideError {
        KernelSideError::Map { map: map.into(), errno }
    }

    /// The part of a value that the measured CPU sees.
    fn own(&self, map: &KernelMap, value: Vec<u8>) -> Vec<u8> {
        let size = map.spec().value_size as usize;
        match map.user_value_size() == size {
            true => value,
            false => value[size.next_multiple_of(8) * self.cpu as usize..][..size].to_vec(),
        }
    }
}

/// Elements in one batch call.
const BATCH: usize = 1 << 14;

impl Maps for KernelSide {
    fn put(&self, map: usize, content: &Content) -> Result<(), Errno> {
        put(&self.loaded.maps[map], content)
    }

    fn get(&self, map: usize, key: &[u8]) -> Option<Vec<u8>> {
        let map = &self.loaded.maps[map];
        map.get(key).ok().map(|value| self.own(map, value))
    }

    fn all(&self, map: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let keys = self.loaded.maps[map].keys().unwrap_or_default();
        keys.into_iter().filter_map(|key| Some((key.clone(), self.get(map, &key)?))).collect()
    }
}

/// Fills a map of the kernel, in batches where it takes some (maps of devices do not).
pub fn put(map: &KernelMap, content: &Content) -> Result<(), Errno> {
    let per_cpu = if map.user_value_size() == map.spec().value_size as usize { 1 } else { possible_cpus() as usize };
    let (key, value) = (map.spec().key_size as usize, map.spec().value_size as usize);
    for (keys, values) in content.keys.chunks(key * BATCH).zip(content.values.chunks(value * BATCH)) {
        let mut keys = keys.to_vec();
        let mut values: Vec<u8> = values.chunks(value).flat_map(|v| v.repeat(per_cpu)).collect();
        let count = (keys.len() / key) as u32;
        let batch = Batch {
            in_batch: None,
            out_batch: &mut [],
            keys: &mut keys,
            values: &mut values,
            count,
            elem_flags: 0,
            flags: 0,
        };
        match map.update_batch(batch).1 {
            Err(Errno::ENOTSUPP) => {
                let values = values.chunks(value * per_cpu);
                keys.chunks(key).zip(values).try_for_each(|(key, value)| map.update(key, value, 0))?;
            }
            done => drop(done?),
        }
    }
    Ok(())
}

/// Programs that the driver can put the packet back for.
pub fn renewal(facts: &xway_verifier::Facts) -> Result<Renew, &'static str> {
    // bpf_xdp_adjust_head, bpf_xdp_adjust_meta, bpf_xdp_adjust_tail.
    let moved = [(44, Renew::Place), (54, Renew::Metadata), (65, Renew::End)];
    let mut moved = moved.iter().filter(|(helper, _)| facts.helpers.contains(helper)).map(|(_, renew)| *renew);
    match (moved.next(), moved.next()) {
        (Some(_), Some(_)) => {
            Err("it moves more than one of the packet's start, end and metadata, of which one can be put back")
        }
        (Some(one), None) => Ok(one),
        (None, _) if facts.packet_moved => Ok(Renew::Place),
        (None, _) if facts.packet_written => Ok(Renew::Headers),
        (None, _) => Ok(Renew::Fields),
    }
}
