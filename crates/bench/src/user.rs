//! Our side: the same program over bursts of frames, made anew from the same ring.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use xway_abi::{Errno, MapType};
use xway_jit::Refusal;
use xway_kernel::possible_cpus;
use xway_maps::{Guard, Map};
use xway_object::{Object, Program};
use xway_packet::{Frame, Pool, PoolConfig};
use xway_verifier::{Config, MapsView, Verified};
use xway_vm::{Instance, InstanceError, LinkError};

use crate::fill::{Content, Form, Maps, Untaken};
use crate::flows::Ring;
use crate::packet::{FIELDS_AT, FIELDS_LEN, HEADERS, Renew};
use crate::runner::{Runner, Way};
use crate::{Histogram, Outcome, Shape};

/// Bytes for a packet with all around it, where there are many.
const CHUNK: u32 = 2048;

/// Frames in a burst, as the engine has them.
pub const BURST: usize = 64;

/// Why our side cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum UserSideError {
    /// Maps could not be made.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The program could not be linked.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The compiler refuses the program.
    #[error("not compiled: {0}")]
    Compile(Refusal),
    /// There is no memory for packets, or they do not fit.
    #[error("{BURST} frames of {0} bytes cannot be had")]
    Frames(usize),
    /// A run was stopped.
    #[error("the program was stopped: {0}")]
    Fault(String),
}

/// What runs in a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// Nothing: packets are made and not looked at.
    Nothing,
    /// The least program, in the engine of this index.
    Empty(usize),
    /// The program under test, in the engine of this index.
    Program(usize),
}

/// A way to execute the program, ready to run.
pub struct Engine {
    /// In tables and JSON.
    pub name: String,
    empty: Runner,
    program: Runner,
}

impl Engine {
    /// What compiling the program cost; `None` for the interpreter.
    pub fn compiled(&self) -> Option<xway_jit::Stats> {
        self.program.compiled()
    }

    /// Whether the program is the same machine code in both and runs in the same way.
    pub fn same_as(&self, other: &Engine) -> bool {
        self.program.same_as(&other.program)
    }
}

/// A program with its maps and its engines. All engines share the maps.
pub struct UserSide {
    instance: Instance,
    /// The engines.
    pub engines: Vec<Engine>,
    // Frames go home before the pool does: fields are dropped in order, and `Drop` empties this one first.
    frames: Vec<Frame>,
    /// For packets one by one.
    spare: Vec<Frame>,
    pool: Pool,
    ring: Arc<Ring>,
    template: Vec<u8>,
    renew: Renew,
    /// Where each frame's packet belongs.
    place: (u32, u32, u32),
    /// Where in the ring nothing, the empty program and the program go on. All engines share one place: each goes on where the one before
    /// stopped, so that none meets packets and elements that another has just brought into the cache.
    cursors: [usize; 3],
    rets: [u64; BURST],
    cpu: u32,
}

impl UserSide {
    /// Brings the object to life and links the program for each engine. Programs run as on this CPU, and values for each CPU are its.
    pub fn new(
        object: &Object,
        program: &Program,
        proof: &Verified,
        shape: &Shape<'_>,
        ways: &[Way],
        cpu: u32,
    ) -> Result<UserSide, UserSideError> {
        // Programs that tail calls reach have their proofs, as they have in a worker.
        let cpus = possible_cpus().max(cpu.saturating_add(1));
        let instance = Instance::verified(Arc::new(object.clone()), cpus, Config::default())?;
        let no_frames = |_| UserSideError::Frames(shape.template.len());
        let count = (shape.frames as usize).max(BURST).next_power_of_two();
        let config = PoolConfig::new(count as u32 + 1);
        let config = if count > BURST { PoolConfig { chunk_size: CHUNK, ..config } } else { config };
        let mut pool = Pool::new(config).map_err(|_| UserSideError::Frames(0))?;
        let mut frames = Vec::with_capacity(count);
        for _ in 0..=count {
            let mut frame = pool.alloc().map_err(|_| UserSideError::Frames(0))?;
            frame.fill(shape.template).map_err(no_frames)?;
            frame.set_ingress(1, 0);
            frames.push(frame);
        }
        let spare = frames.pop().into_iter().collect();
        if count > BURST {
            // No prefetcher of the machine guesses the order.
            let mut state = 1u64;
            for n in (1..count).rev() {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                frames.swap(n, (state >> 33) as usize % (n + 1));
            }
            for (n, frame) in frames.iter_mut().enumerate() {
                let entry = shape.ring.entry(n & (shape.ring.len() - 1));
                frame.packet_mut()[FIELDS_AT..FIELDS_AT + FIELDS_LEN].copy_from_slice(&entry[..FIELDS_LEN]);
            }
        }
        let place = (frames[0].data_meta(), frames[0].data(), frames[0].data_end());
        let empty = Program { insns: xway_isa::assemble("r0 = 1\nexit").expect("assembler"), ..Program::default() };
        let empty_proof =
            xway_verifier::verify(&empty, &MapsView::from(object), &Config::default()).expect("it returns a constant");
        let engine = |way: &Way| {
            Ok(Engine {
                name: way.name(),
                empty: Runner::new(&instance, &empty, &empty_proof, way, cpu)?,
                program: Runner::new(&instance, program, proof, way, cpu)?,
            })
        };
        let engines = ways.iter().map(engine).collect::<Result<Vec<_>, UserSideError>>()?;
        Ok(UserSide {
            cursors: [0; 3],
            instance,
            engines,
            frames,
            spare,
            pool,
            ring: shape.ring.clone(),
            template: shape.template.to_vec(),
            renew: shape.renew,
            place,
            rets: [0; BURST],
            cpu,
        })
    }

    /// Runs bursts over about `packets` packets of the ring: nanoseconds for each packet, and how many there were.
    ///
    /// The pass is cut into pieces of 32 bursts. Pieces that took more than twice the median are left out: the thread
    /// was not running for a part of them, and the kernel leaves such times out of a test-run too.
    ///
    /// # Errors
    /// [`UserSideError::Fault`]: what was stopped was not measured.
    pub fn pass(&mut self, run: Run, packets: u32) -> Result<(f64, u32), UserSideError> {
        let bursts = (packets as usize).div_ceil(BURST).max(1);
        let mut pieces = Vec::with_capacity(bursts / PIECE + 1);
        let (mut left, mut fault) = (bursts, None);
        while left > 0 {
            let now = left.min(PIECE);
            let start = Instant::now();
            for _ in 0..now {
                fault = self.burst(run).or(fault);
            }
            pieces.push(start.elapsed().as_nanos() as f64 / (now * BURST) as f64);
            left -= now;
        }
        match fault {
            Some(fault) => Err(UserSideError::Fault(fault)),
            None => Ok((without_interruptions(pieces), (bursts * BURST) as u32)),
        }
    }

    /// Makes the next packets of the ring in all frames and runs what is to be run.
    #[inline]
    fn burst(&mut self, run: Run) -> Option<String> {
        let count = self.frames.len();
        let cursor = &mut self.cursors[match run {
            Run::Nothing => 0,
            Run::Empty(_) => 1,
            Run::Program(_) => 2,
        }];
        let cold = self.frames.len() > BURST;
        let frames = if cold {
            // As many as a power of two, and no fewer than in the ring or a whole part of it.
            let frames = &mut self.frames[*cursor..][..BURST];
            *cursor = (*cursor + BURST) & (count - 1);
            frames
        } else {
            // Rings are powers of two and no shorter than a burst.
            let entries = &self.ring.bytes[*cursor * crate::flows::ENTRY..][..BURST * crate::flows::ENTRY];
            *cursor = (*cursor + BURST) & (self.ring.len() - 1);
            renew(&mut self.frames, entries, &self.template, self.renew, self.place);
            &mut self.frames[..]
        };
        let runner = match run {
            Run::Nothing => {
                black_box(frames);
                return None;
            }
            Run::Empty(n) => &self.engines[n].empty,
            Run::Program(n) => &self.engines[n].program,
        };
        let guard = Guard::pin();
        let fault = runner.run(frames, &guard, &mut self.rets);
        black_box(&self.rets);
        fault
    }

    /// The next packet for the program is the ring's first one.
    pub fn rewind(&mut self) {
        self.cursors[2] = 0;
    }

    /// So many packets of the ring, a multiple of a burst, counting verdicts.
    pub fn histogram(&mut self, engine: usize, packets: usize) -> Result<Histogram, UserSideError> {
        let mut histogram = Histogram::default();
        for _ in 0..packets / BURST {
            if let Some(fault) = self.burst(Run::Program(engine)) {
                return Err(UserSideError::Fault(fault));
            }
            for ret in &self.rets {
                histogram[(*ret as u32).min(7) as usize] += 1;
            }
        }
        Ok(histogram)
    }

    /// One packet through the program.
    pub fn one(&mut self, engine: usize, packet: &[u8]) -> Result<Outcome, UserSideError> {
        let frame = &mut self.spare[..1];
        frame[0].fill(packet).map_err(|_| UserSideError::Frames(packet.len()))?;
        if let Some(fault) = self.engines[engine].program.run(frame, &Guard::pin(), &mut self.rets[..1]) {
            return Err(UserSideError::Fault(fault));
        }
        let ret = self.rets[0] as u32;
        // As the kernel gives it back: metadata in front.
        let packet = [frame[0].meta(), frame[0].packet()].concat();
        Ok(Outcome { ret, packet })
    }
}

/// Bursts between two looks at the clock.
const PIECE: usize = 32;

/// The mean of the pieces that are no longer than twice the median.
fn without_interruptions(mut pieces: Vec<f64>) -> f64 {
    pieces.sort_unstable_by(f64::total_cmp);
    let limit = 2.0 * pieces[pieces.len() / 2];
    let kept: Vec<f64> = pieces.into_iter().take_while(|p| *p <= limit).collect();
    kept.iter().sum::<f64>() / kept.len() as f64
}

/// The same writes as the kernel's driver makes.
#[inline]
fn renew(frames: &mut [Frame], entries: &[u8], template: &[u8], how: Renew, place: (u32, u32, u32)) {
    for (frame, entry) in frames.iter_mut().zip(entries.as_chunks::<16>().0) {
        if how.moves() {
            frame.place(place.0, place.1, place.2).expect("where it was before");
        }
        let packet = frame.packet_mut();
        if how != Renew::Fields {
            packet[..FIELDS_AT].copy_from_slice(&template[..FIELDS_AT]);
            packet[FIELDS_AT + FIELDS_LEN..HEADERS].copy_from_slice(&template[FIELDS_AT + FIELDS_LEN..HEADERS]);
        }
        packet[FIELDS_AT..FIELDS_AT + FIELDS_LEN].copy_from_slice(&entry[..FIELDS_LEN]);
    }
}

impl Drop for UserSide {
    fn drop(&mut self) {
        for frame in self.frames.drain(..).chain(self.spare.drain(..)) {
            self.pool.release(frame);
        }
    }
}

fn is_per_cpu(map: &Map) -> bool {
    matches!(map.map_type(), MapType::PercpuArray | MapType::PercpuHash | MapType::LruPercpuHash)
}

impl Maps for UserSide {
    fn whose(&self) -> &'static str {
        "ours"
    }

    fn put(&self, map: usize, content: &Content) -> Result<(), Untaken> {
        let map = &self.instance.maps()[map];
        for (at, (key, value)) in content.elements().enumerate() {
            let one = |value: &[u8]| match key.is_empty() {
                // Queues, stacks and filters.
                true => map.push(value, 0),
                false => map.update(key, value, 0),
            };
            let index = || value.first_chunk().map_or(usize::MAX, |n| u32::from_ne_bytes(*n) as usize);
            let done = match content.form {
                Form::Value if is_per_cpu(map) => {
                    let mut padded = value.to_vec();
                    padded.resize(value.len().next_multiple_of(8), 0);
                    one(&padded.repeat(map.cpus() as usize))
                }
                Form::EachCpu => {
                    // A core behind the possible ones cannot be had, so this is no more than the kernel's.
                    let mut all = value.to_vec();
                    all.resize(map.user_value_size(), 0);
                    one(&all)
                }
                Form::Value => one(value),
                Form::Maps => self.instance.map_fd(index()).ok_or(Errno::EBADF).and_then(|fd| one(&fd.to_ne_bytes())),
                Form::Programs => {
                    let fd = self.instance.program_fd(index());
                    fd.map_err(|_| Errno::EBADF).and_then(|fd| one(&fd.to_ne_bytes()))
                }
            };
            done.map_err(|errno| Untaken { at, errno })?;
        }
        Ok(())
    }

    fn get(&self, map: usize, key: &[u8]) -> Option<Vec<u8>> {
        let map = &self.instance.maps()[map];
        let mut value = vec![0; map.user_value_size()];
        map.lookup(key, &mut value, 0).ok()?;
        // Of a value for each CPU the one of this side's.
        let from = if is_per_cpu(map) { map.value_size().next_multiple_of(8) * self.cpu as usize } else { 0 };
        Some(value[from..][..map.value_size()].to_vec())
    }

    fn all(&self, map: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let keys = self.instance.maps()[map].keys().unwrap_or_default();
        keys.into_iter().filter_map(|key| Some((key.clone(), self.get(map, &key)?))).collect()
    }
}
