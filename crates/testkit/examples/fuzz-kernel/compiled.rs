//! The same program as machine code, with maps of its own: what the interpreter did it must do too.

use std::cell::Cell;
use std::sync::Arc;

use xway_abi::MapType;
use xway_jit::{Options, Refusal, RunEnv, compile};
use xway_maps::{Guard, Map};
use xway_object::Program;
use xway_packet::{Frame, Pool};
use xway_verifier::Verified;
use xway_vm::{FixedHost, Instance, Outcome, Timers};

use super::corpus::Sent;
use super::oracle::{bytes_of, frame_of, hex};
use super::repeatable::repeatable;

/// `bpf_probe_read`, `bpf_probe_read_kernel` and `bpf_probe_read_kernel_str`.
const PROBE_READ: [u32; 3] = [4, 113, 115];

/// A compiled program.
pub struct Compiled {
    instance: Instance,
    /// Timers run their callbacks in it.
    _linked: Arc<xway_vm::Program>,
    code: Arc<xway_jit::Compiled>,
    guard: Guard,
    host: FixedHost,
    timers: Timers,
    /// Its results must be those of the interpreter; else it only must not crash.
    exact: bool,
    /// Packets so far: they go through single-packet code and burst code in turns.
    packets: Cell<usize>,
}

impl Compiled {
    /// Compiles an accepted program; `instance` holds the maps that it will use. `None` for one that reads through any number, of which
    /// there is no machine code.
    pub fn new(instance: Instance, program: &Program, proof: &Verified) -> Result<Option<Compiled>, String> {
        let linked = instance.link(program).map_err(|e| format!("accepted, but it cannot be linked: {e}"))?;
        let options = Options { check: true, ..Options::default() };
        let code = match compile(&linked, proof, &options) {
            Err(Refusal::NotYet { .. }) if PROBE_READ.iter().any(|id| proof.facts().helpers.contains(id)) => {
                return Ok(None);
            }
            code => code.map_err(|e| format!("accepted, but it cannot be compiled: {e}"))?,
        };
        let exact = repeatable(proof, instance.object());
        let (guard, host, timers) = (Guard::pin(), FixedHost::new(1), Timers::default());
        Ok(Some(Compiled { instance, _linked: linked, code, guard, host, timers, exact, packets: Cell::new(0) }))
    }

    /// Runs over one packet; `expected`, the bytes and how many of them are metadata are what the interpreter made of it.
    pub fn run(
        &mut self,
        pool: &mut Pool,
        sent: &Sent,
        expected: &Outcome,
        (data, meta): (&[u8], u32),
    ) -> Result<(), String> {
        let mut frame = frame_of(pool, sent);
        let outcome = self.over(&mut frame);
        let (bytes, got_meta) = (bytes_of(&frame), frame.meta_len());
        pool.release(frame);
        let ret = outcome?;
        if self.exact && (ret as u32 != expected.ret as u32 || bytes != data || got_meta != meta) {
            return Err(format!(
                "over {} with {} bytes of metadata compiled code returns {:#x} and {} with {got_meta}, the interpreter {:#x} and {} with {meta}",
                hex(&sent.bytes),
                sent.meta,
                ret as u32,
                hex(&bytes),
                expected.ret as u32,
                hex(data)
            ));
        }
        Ok(())
    }

    fn over(&self, frame: &mut Frame) -> Result<u64, String> {
        let mut env = RunEnv::new(&self.guard, &self.host, 0).with_timers(&self.timers);
        let before = self.packets.replace(self.packets.get() + 1);
        let ran = if before.is_multiple_of(2) {
            self.code.run_one(frame, &mut env)
        } else {
            let mut verdict = [0];
            self.code.run_burst(std::slice::from_mut(frame), &mut env, &mut verdict).map(|()| verdict[0])
        };
        let ret = ran.map_err(|e| format!("compiled code does not run: {e}"))?;
        match env.take_faults().first() {
            Some((_, fault)) => Err(format!("accepted, but compiled code stops: {fault}")),
            None => Ok(ret),
        }
    }

    /// The maps hold what the interpreter's hold.
    pub fn same_maps(&self, interpreted: &Instance) -> Result<(), String> {
        if !self.exact {
            return Ok(());
        }
        for (ours, theirs) in self.instance.maps().iter().zip(interpreted.maps()) {
            if !matches!(ours.map_type(), MapType::Array | MapType::Hash | MapType::PercpuHash | MapType::LpmTrie) {
                continue;
            }
            let values = |map: &Map| {
                let mut keys = map.keys().unwrap_or_default();
                keys.sort();
                let value = |key: &Vec<u8>| {
                    let mut value = vec![0; map.user_value_size()];
                    map.lookup(key, &mut value, 0).map(|()| value)
                };
                keys.into_iter().map(|k| (value(&k).unwrap_or_default(), k)).collect::<Vec<_>>()
            };
            if values(ours) != values(theirs) {
                return Err(format!("map {} differs between compiled code and interpreter", ours.name()));
            }
        }
        Ok(())
    }
}
