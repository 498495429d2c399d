//! The fourth side: a loop in BPF over keys in an array, inside test-runs of the kernel, less the same loop without the call.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use xway_abi::{MapSpec, MapType};
use xway_isa::assemble;
use xway_kernel::{KernelMap, KernelProg, ProgSpec, TestInput};

use super::check::Pass;
use super::keys::Keys;
use super::sides::{Hand, count_of_kernel, held_by_kernel};
use super::{BATCH, MapError, Op, Side, failed};

/// A program for each operation, and one without the call, over an array that holds all keys.
pub(super) struct InTestRun {
    map: Arc<KernelMap>,
    cpu: u32,
    /// Keys of the map, and keys of the evictions.
    rings: Vec<KeyRing>,
    state: KernelMap,
}

struct KeyRing {
    _array: KernelMap,
    /// Operations inside one run of a program.
    batch: usize,
    /// Runs that go through nearly all keys: what is left is less than a batch.
    repeat: u32,
    /// Nothing, look-up, update, delete.
    programs: [KernelProg; 4],
}

/// Bytes of the state: where the next key is; the value to write, or the sum of those that were read; operations that did what was asked.
const STATE: usize = 24;

impl InTestRun {
    /// For a thread that is pinned to this CPU.
    pub(super) fn new(map: Arc<KernelMap>, keys: &Keys, cpu: u32) -> Result<InTestRun, MapError> {
        let create = |name, spec: &MapSpec| KernelMap::create(name, spec).map_err(|e| failed("creating a map", e));
        let state = create("state", &MapSpec::new(MapType::Array, 4, STATE as u32, 1))?;
        let stride = keys.size.next_power_of_two().max(8);
        let mut rings = Vec::new();
        for bytes in [&keys.bytes, &keys.flood] {
            let count = bytes.len() / keys.size;
            if count == 0 {
                continue;
            }
            // A power of two, so that the program finds its way by a mask; what is behind the last key is never reached.
            let len = count.next_power_of_two() * stride;
            let mut padded = vec![0; len];
            for (key, place) in bytes.chunks_exact(keys.size).zip(padded.chunks_exact_mut(stride)) {
                place[..keys.size].copy_from_slice(key);
            }
            let array = create("keys", &MapSpec::new(MapType::Array, 4, len as u32, 1))?;
            array.update(&[0; 4], &padded, 0).map_err(|e| failed("writing the keys", e))?;
            let fds = [&array, &state, &*map];
            let batch = BATCH.min(count);
            let program = |what| load(what, batch, len - stride, stride, fds);
            let programs =
                [program(What::Nothing)?, program(What::Lookup)?, program(What::Update)?, program(What::Delete)?];
            rings.push(KeyRing { _array: array, batch, repeat: (count / batch) as u32, programs });
        }
        Ok(InTestRun { map, cpu, rings, state })
    }

    /// Nanoseconds for each operation, and the state afterwards.
    fn run(&self, ring: &KeyRing, what: What, running: u64) -> Result<(f64, u64, u64), MapError> {
        let mut state = [0; STATE];
        state[8..16].copy_from_slice(&running.to_ne_bytes());
        self.state.update(&[0; 4], &state, 0).map_err(|e| failed("resetting the state", e))?;
        let input = TestInput { repeat: ring.repeat, ..TestInput::packet(&[0; 64]) };
        let out = ring.programs[what as usize].test_run(&input).map_err(|e| failed("test run", e))?;
        let after = self.state.get(&[0; 4]).map_err(|e| failed("reading the state", e))?;
        let word = |at: usize| after[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        Ok((out.duration.as_nanos() as f64 / ring.batch as f64, word(8), word(16)))
    }
}

impl Side for InTestRun {
    fn name(&self) -> &'static str {
        "kernel, program"
    }

    fn pass(&mut self, op: Op, keys: &Keys, stamp: u64) -> Result<Pass, MapError> {
        let (map, all, size) = (&*self.map, keys.of(op), keys.size);
        let Some(ring) = self.rings.get(usize::from(op == Op::Evict)) else {
            return Ok(Pass { ns: 0.0, tried: 0, done: 0, sum: 0 });
        };
        let (what, running) = match op {
            Op::Lookup => (What::Lookup, 0),
            Op::Update | Op::Insert | Op::Evict => (What::Update, stamp),
            Op::Delete => (What::Delete, 0),
        };
        let (floor, ..) = self.run(ring, What::Nothing, running)?;
        let (ns, sum, done) = self.run(ring, what, running)?;
        // The last keys, fewer than a batch, go by the system call, untimed.
        let tried = ring.repeat as usize * ring.batch;
        let hand = Hand::new(op, stamp, map.user_value_size());
        let mut hand = hand.after(tried, done as usize, if op == Op::Lookup { sum } else { 0 });
        for key in all[tried * size..].chunks_exact(size) {
            hand.step(key, |op, key, value| match op {
                Op::Lookup => {
                    let words = map.get(key)?;
                    let of = self.cpu as usize * super::VALUE;
                    let own = words.get(of..of + super::VALUE).unwrap_or(&words[..super::VALUE]);
                    value[..super::VALUE].copy_from_slice(own);
                    Ok(())
                }
                Op::Delete => map.delete(key),
                Op::Update | Op::Insert | Op::Evict => map.update(key, value, 0),
            });
        }
        Ok(hand.pass((ns - floor).max(0.0)))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u64>>, MapError> {
        // Other CPUs have values of their own.
        let own = |words: Vec<u64>| words.get(self.cpu as usize).or(words.first()).copied().into_iter().collect();
        Ok(held_by_kernel(&self.map, key)?.map(own))
    }

    fn elements(&self) -> Result<usize, MapError> {
        count_of_kernel(&self.map)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Nothing,
    Lookup,
    Update,
    Delete,
}

/// The loop over keys, with a call of a helper or without.
fn load(what: What, batch: usize, mask: usize, stride: usize, maps: [&KernelMap; 3]) -> Result<KernelProg, MapError> {
    let done = "r1 = *(u64 *)(r9 + 16)\nr1 += 1\n*(u64 *)(r9 + 16) = r1\n";
    let call = match what {
        What::Nothing => String::new(),
        What::Lookup => format!("call 1\nif r0 == 0 goto next\nr1 = *(u64 *)(r0 + 0)\nr6 += r1\n{done}"),
        // The value is in memory: where programs have it, too, most of the time.
        What::Update => {
            format!("*(u64 *)(r9 + 8) = r6\nr6 += 1\nr3 = r9\nr3 += 8\nr4 = 0\ncall 2\nif r0 != 0 goto next\n{done}")
        }
        What::Delete => format!("call 3\nif r0 != 0 goto next\n{done}"),
    };
    let text = format!(
        "r9 = 0x7ffe0001 ll
         r7 = *(u64 *)(r9 + 0)
         r6 = *(u64 *)(r9 + 8)
         r8 = 0
     again:
         r2 = 0x7ffe0000 ll
         r7 &= {mask}
         r2 += r7
         r7 += {stride}
         r1 = 0x7ffe0002 ll
         {call}
     next:
         r8 += 1
         if r8 < {batch} goto again
         *(u64 *)(r9 + 0) = r7
         *(u64 *)(r9 + 8) = r6
         r0 = 2
         exit"
    );
    let mut insns = assemble(&text).expect("the loop is assembler");
    for at in 0..insns.len() {
        if insns[at].is_wide() {
            let number = (insns[at].imm - 0x7ffe_0000) as usize;
            insns[at].imm = maps[number].as_fd().as_raw_fd();
            // A value's address for keys and state, the map itself for the helper.
            insns[at].src = if number == 2 { 1 } else { 2 };
            insns[at + 1].imm = 0;
        }
    }
    Ok(KernelProg::load(&ProgSpec::xdp("bench_map", &insns))?)
}
