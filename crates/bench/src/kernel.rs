//! The kernel's side: maps, the four drivers, and passes over the ring inside test-runs.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use xway_abi::{Errno, MapType};
use xway_kernel::{Batch, KernelError, KernelMap, KernelObject, TestInput, possible_cpus};
use xway_object::{Object, Program};

use crate::driver::{self, Callee, DriverError, HISTOGRAM_AT, Loop, RING_MAP, STATE_LEN, STATE_MAP};
use crate::fill::{Content, Form, Maps, Untaken};
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
    fn whose(&self) -> &'static str {
        "the kernel's"
    }

    fn put(&self, map: usize, content: &Content) -> Result<(), Untaken> {
        let map = &self.loaded.maps[map];
        let index = |value: &[u8]| value.first_chunk().map_or(usize::MAX, |n| u32::from_ne_bytes(*n) as usize);
        match content.form {
            // A queue's null key is no key of a batch; what holds objects holds few.
            Form::Value | Form::EachCpu if !content.keys.is_empty() => put(map, content),
            Form::Value | Form::EachCpu => one_by_one(content, |key, value| map.update(key, value, 0)),
            Form::Maps => one_by_one(content, |key, value| {
                map.update_fd(key, self.loaded.maps.get(index(value)).ok_or(Errno::EBADF)?.as_fd(), 0)
            }),
            Form::Programs => one_by_one(content, |key, value| {
                let program = self.loaded.programs.get(index(value)).and_then(|p| p.as_ref().ok());
                map.update_fd(key, program.ok_or(Errno::EBADF)?.as_fd(), 0)
            }),
        }
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

fn one_by_one(content: &Content, put: impl Fn(&[u8], &[u8]) -> Result<(), Errno>) -> Result<(), Untaken> {
    let mut all = content.elements().enumerate();
    all.try_for_each(|(at, (key, value))| put(key, value).map_err(|errno| Untaken { at, errno }))
}

/// Fills a map of the kernel that has keys, in batches where it takes some (maps of devices do not).
fn put(map: &KernelMap, content: &Content) -> Result<(), Untaken> {
    let (key, size) = (map.spec().key_size as usize, map.user_value_size());
    let given = content.values.len() / content.count.max(1) as usize;
    let per_cpu = if content.form == Form::EachCpu || size == given { 1 } else { possible_cpus() as usize };
    // What is copied in for a CPU is as long as eight bytes make it.
    let each = size / per_cpu;
    let value = |value: &[u8]| {
        let mut padded = value.to_vec();
        padded.resize(each, 0);
        padded.repeat(per_cpu)
    };
    let batches = content.keys.chunks(key * BATCH).zip(content.values.chunks(given * BATCH));
    for (batch, (keys, values)) in batches.enumerate() {
        let mut keys = keys.to_vec();
        let mut values: Vec<u8> = values.chunks(given).flat_map(value).collect();
        let count = (keys.len() / key) as u32;
        let untaken = |at: usize, errno| Untaken { at: batch * BATCH + at, errno };
        let (done, result) = map.update_batch(Batch {
            in_batch: None,
            out_batch: &mut [],
            keys: &mut keys,
            values: &mut values,
            count,
            elem_flags: 0,
            flags: 0,
        });
        match result {
            Err(Errno::ENOTSUPP) => {
                let mut all = keys.chunks(key).zip(values.chunks(size)).enumerate();
                all.try_for_each(|(at, (key, value))| map.update(key, value, 0).map_err(|e| untaken(at, e)))?;
            }
            result => result.map_err(|errno| untaken(done.min(count) as usize, errno))?,
        }
    }
    Ok(())
}

/// `bpf_xdp_store_bytes`: what it writes is no direct access.
const STORE_BYTES: u32 = 190;

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
        (None, _) if facts.packet_written || facts.helpers.contains(&STORE_BYTES) => Ok(Renew::Headers),
        (None, _) => Ok(Renew::Fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_verifier::{Config, MapsView, verify};

    /// Headers are written by hand or by the helper: they are made anew in either case.
    #[test]
    fn what_is_written_is_put_back() {
        let of = |text: &str| {
            let insns = xway_isa::assemble(text).expect("assembler");
            let program = Program { insns, section: "xdp".into(), ..Program::default() };
            let proof = verify(&program, &MapsView::from(&Object::default()), &Config::default()).expect("a proof");
            renewal(proof.facts())
        };
        let bytes = |helper: u32| {
            format!("*(u64 *)(r10 - 8) = 0\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 8\ncall {helper}\nr0 = 1\nexit\n")
        };
        let by_hand = "r2 = *(u32 *)(r1 + 4)\nr1 = *(u32 *)(r1 + 0)\nr3 = r1\nr3 += 14\nif r3 > r2 goto +1\n\
                       *(u8 *)(r1 + 0) = 1\nr0 = 1\nexit\n";
        assert_eq!(of("r0 = 1\nexit\n"), Ok(Renew::Fields));
        assert_eq!([of(by_hand), of(&bytes(190))], [Ok(Renew::Headers); 2]);
        assert_eq!(of(&bytes(189)), Ok(Renew::Fields));
    }
}
